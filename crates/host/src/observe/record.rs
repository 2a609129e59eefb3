//! Decisions of the scheduler with the numbers that caused them, recorded on request.
//!
//! **Problem.** To explain why a request waited, each decision of the scheduler has to be recorded
//! when it is made. Requests must not become slower while no recording is requested.
//!
//! **Model.** A shard that records keeps its last [`Decision`]s in a ring buffer of its own. The
//! buffer is plain memory, allocated when recording begins, and neither shared nor formatted. A
//! shard that does not record has no buffer, and each of the events below costs it one check of a
//! pointer.
//!
//! | kind | when | numbers |
//! |---|---|---|
//! | arrive | accepted and tagged | the request; start tag, virtual time |
//! | issue | issued to the device | class, free slots; start tag, virtual time |
//! | held | requests are staged and none may be dispatched | reason ([`Held`]); the next request's start tag |
//! | complete, fail | completed | – |
//! | cancel | cancelled while staged: its client has ended, or its tenant was removed | – |
//!
//! The scheduler checks a hold repeatedly, but a hold is recorded only when it begins and when its
//! reason changes.
//!
//! The control thread searches for D and has its own recorder ([`DepthRecorder`]), with a row for
//! each value of D of a store, and the reason.

use std::collections::VecDeque;

use fairq_core::{Class, DepthStats, Held, Op, Reason, Stats, Tag};

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A request was accepted.
    Arrive,
    /// A request was issued to the device.
    Issue,
    /// Requests are staged and none may be dispatched; the event belongs to no request.
    Held,
    /// A request has completed.
    Complete,
    /// A request has failed.
    Fail,
    /// A staged request was cancelled.
    Cancel,
}

/// One decision, or an event that causes one.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The time, in nanoseconds of the process's clock.
    pub at_ns: u64,
    /// The kind of event.
    pub kind: Kind,
    /// The tag of the request on its shard.
    pub tag: Tag,
    /// The tenant.
    pub tenant: u16,
    /// The operation.
    pub op: Op,
    /// The queue class to which it was issued.
    pub class: Class,
    /// Start of its range in the device's file, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub length: u32,
    /// The numbers that caused it.
    pub reason: Reason,
}

// The documentation states this size of a recording's entries.
const _: () = assert!(size_of::<Decision>() <= 80);

/// The recorded decisions of a shard.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The decisions, in order.
    pub decisions: Vec<Decision>,
    /// The number of earlier decisions, which the ring has overwritten.
    pub lost: u64,
}

/// A ring buffer of decisions.
pub struct Recorder {
    ring: Vec<Decision>,
    /// The largest number of decisions in the ring.
    most: usize,
    /// Decisions recorded so far.
    count: u64,
    /// The last record, if it is a hold.
    held: Option<(Option<Held>, Option<u64>)>,
}

impl Recorder {
    /// A ring of the last `most` decisions, at least one.
    pub fn new(most: usize) -> Recorder {
        let most = most.max(1);
        Recorder { ring: Vec::with_capacity(most), most, count: 0, held: None }
    }

    /// Records a decision.
    pub fn add(&mut self, decision: Decision) {
        self.held = None;
        self.push(decision);
    }

    /// Records that requests are held, unless the last record is the same hold.
    pub fn hold(&mut self, at_ns: u64, reason: Reason) {
        let held = Some((reason.held, reason.start_tag));
        if self.held != held {
            let (op, class) = (Op::Read, Class::Medium);
            self.push(Decision {
                at_ns,
                kind: Kind::Held,
                tag: Tag(0),
                tenant: 0,
                op,
                class,
                offset: 0,
                length: 0,
                reason,
            });
            self.held = held;
        }
    }

    fn push(&mut self, decision: Decision) {
        let at = (self.count % self.most as u64) as usize;
        match self.ring.get_mut(at) {
            Some(place) => *place = decision,
            None => self.ring.push(decision),
        }
        self.count += 1;
    }

    /// Ends the recording and returns it.
    pub fn finish(self) -> Recording {
        let Recorder { mut ring, most, count, .. } = self;
        let lost = count.saturating_sub(most as u64);
        if lost > 0 {
            // In a full ring the oldest decision is at the index where the next one would be
            // written.
            ring.rotate_left((count % most as u64) as usize);
        }
        Recording { decisions: ring, lost }
    }
}

/// A change of a store's D, or of its reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthChange {
    /// The time, in nanoseconds of the process's clock.
    pub at_ns: u64,
    /// The store's number.
    pub store: u16,
    /// D; `None` is no limit.
    pub slots: Option<u64>,
    /// The reason, and the estimated performance of the device. `None` if D is configured; only
    /// latency targets may then reduce it.
    pub depth: Option<DepthStats>,
}

/// Records the search for D of each store.
#[derive(Debug, Default)]
pub struct DepthRecorder {
    changes: VecDeque<DepthChange>,
    /// The last record of each store.
    last: Vec<Option<DepthChange>>,
}

impl DepthRecorder {
    /// The number of changes that are kept; older ones are dropped.
    pub const MOST: usize = 4096;

    /// Records a store's D or its reason if either has changed. The device's performance differs in
    /// every call, so it is recorded only together with such a change.
    pub fn note(&mut self, at_ns: u64, store: u16, policy: &Stats) {
        let Stats { slots, depth, .. } = *policy;
        if slots.is_none() && depth.is_none() {
            return;
        }
        let index = usize::from(store);
        if self.last.len() <= index {
            self.last.resize(index + 1, None);
        }
        let change = DepthChange { at_ns, store, slots, depth };
        let key = |of: &DepthChange| (of.slots, of.depth.map(|depth| (depth.slots, depth.state)));
        if self.last[index].as_ref().map(key) == Some(key(&change)) {
            return;
        }
        self.last[index] = Some(change);
        if self.changes.len() == Self::MOST {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    /// The records, in order.
    pub fn finish(self) -> Vec<DepthChange> {
        self.changes.into()
    }
}

#[cfg(test)]
mod tests {
    use fairq_core::DepthState;

    use super::*;

    #[test]
    fn d_is_told_when_it_or_its_reason_changes_for_each_store() {
        let mut recorder = DepthRecorder::default();
        let stats = |slots, state, requests_per_s| Stats {
            slots: Some(slots),
            depth: Some(DepthStats { slots: 8, state, requests_per_s, bytes_per_s: 0 }),
            ..Stats::default()
        };
        recorder.note(1, 1, &stats(64, DepthState::Searching, 0));
        recorder.note(2, 0, &stats(64, DepthState::Searching, 0));
        recorder.note(3, 0, &stats(64, DepthState::Searching, 500));
        recorder.note(4, 2, &Stats { slots: Some(32), ..Stats::default() });
        recorder.note(4, 3, &Stats::default());
        recorder.note(5, 2, &Stats { slots: Some(32), ..Stats::default() });
        recorder.note(5, 0, &stats(64, DepthState::Found, 500));
        recorder.note(6, 1, &stats(16, DepthState::Searching, 0));
        let changes = recorder.finish();
        let told: Vec<_> = changes.iter().map(|of| (of.at_ns, of.store, of.slots)).collect();
        let expected = [
            (1, 1, Some(64)),
            (2, 0, Some(64)),
            (4, 2, Some(32)),
            (5, 0, Some(64)),
            (6, 1, Some(16)),
        ];
        assert_eq!(told, expected);
        assert_eq!(changes[3].depth.map(|depth| depth.requests_per_s), Some(500));
    }

    #[test]
    fn the_last_changes_of_d_are_kept() {
        let mut recorder = DepthRecorder::default();
        for at_ns in 0..DepthRecorder::MOST as u64 + 3 {
            let state = DepthState::Searching;
            let depth = DepthStats { slots: 1, state, requests_per_s: 0, bytes_per_s: 0 };
            let stats = Stats { slots: Some(at_ns), depth: Some(depth), ..Stats::default() };
            recorder.note(at_ns, 0, &stats);
        }
        let changes = recorder.finish();
        assert_eq!((changes.len(), changes[0].at_ns), (DepthRecorder::MOST, 3));
    }

    fn arrive(recorder: &mut Recorder, at_ns: u64) {
        let (kind, tag, op, class) = (Kind::Arrive, Tag(0), Op::Read, Class::Medium);
        let reason = Reason::default();
        recorder.add(Decision {
            at_ns,
            kind,
            tag,
            tenant: 0,
            op,
            class,
            offset: 0,
            length: 1,
            reason,
        });
    }

    fn times(recorder: Recorder) -> (Vec<u64>, u64) {
        let Recording { decisions, lost } = recorder.finish();
        (decisions.iter().map(|decision| decision.at_ns).collect(), lost)
    }

    #[test]
    fn the_last_ones_are_kept_in_order() {
        for (count, expected, lost) in
            [(2, vec![0, 1], 0), (3, vec![0, 1, 2], 0), (7, vec![4, 5, 6], 4)]
        {
            let mut recorder = Recorder::new(3);
            (0..count).for_each(|at_ns| arrive(&mut recorder, at_ns));
            assert_eq!(times(recorder), (expected, lost));
        }
    }

    #[test]
    fn being_held_is_told_once() {
        let mut recorder = Recorder::new(9);
        let reason = |held| Reason { held: Some(held), start_tag: Some(7), ..Reason::default() };
        recorder.hold(1, reason(Held::Ahead));
        recorder.hold(2, reason(Held::Ahead));
        recorder.hold(3, reason(Held::NoSlot));
        arrive(&mut recorder, 4);
        recorder.hold(5, reason(Held::NoSlot));
        recorder.hold(6, reason(Held::NoSlot));
        assert_eq!(times(recorder), (vec![1, 3, 4, 5], 0));
    }
}
