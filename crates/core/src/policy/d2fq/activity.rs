//! What all ports know about a flow: its virtual time, and on how many ports it has requests in
//! flight, since when.
//!
//! **Problem.** The paper counts each flow's requests in flight to tell active flows from idle
//! ones. A shared counter would be written twice for every request, by every port. **Model.** Each
//! port counts in its own memory; shared is only the number of *ports* that have any, which changes
//! when a port's own count goes between 0 and 1. Beside it is the time at which the flow's state
//! began: since when it has been in flight without a break, or since when it has not been. A flow
//! that has had nothing in flight for longer than the **grace period** is idle; before that it may
//! just be thinking (deceptive idleness, Section 3.5).
//!
//! **A pause between two bursts is not a break.** A shard takes completions in batches, and a
//! client answers many replies with many requests at once; a flow of any depth may have nothing in
//! flight for a moment in between. If that counted, the hungriest flows would look as if they asked
//! for little: no measure for Eq. 2, and brought up to the others each time they come back. So each
//! flow has a **presence**: time in which it was deep adds to it, up to 8 grace periods; time in
//! which it was away, or shallow, is taken from it. As long as that is covered, the flow has been
//! in flight *all along*. One that is away or shallow for longer, or more than half of the time,
//! waits for its client: that is a break.
//!
//! **The word**, from the top: 57 bits of time in units of 128 ns, 7 bits of ports. 0: the flow has
//! never been active.
//!
//! **Memory ordering.** Leaving is Release and Acquire: who takes the number to 0 has seen all that
//! ports did while they were counted. When a spell in flight began and since when it counts are
//! written by the port that begins one; they are Relaxed, as they decide no more than a threshold.
//! Virtual time is a counter of its own and is accessed with Relaxed; nothing is published through
//! it.

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::vtime::VTime;

/// Low bits of the word: the ports.
const PORT_BITS: u32 = 7;
const PORTS: u64 = (1 << PORT_BITS) - 1;
/// The most presence, in grace periods.
const PRESENCE_GRACES: u64 = 8;

/// The shared part of a flow, in a cache line of its own.
#[repr(align(64))]
pub(super) struct FlowState<P: Platform> {
    vt: P::U64,
    activity: P::U64,
    /// Since when it has been in flight all along, as in the word.
    since: P::U64,
    /// When it last came to have something in flight, in nanoseconds.
    entered: P::U64,
    /// Its presence then, in nanoseconds.
    presence: P::U64,
    /// Units by which `vt` has been moved without service, so that what was served can be told.
    moved: P::U64,
    /// 1 if it may be urgent.
    urgent: P::U64,
}

/// Whether a flow is active, and since when it is or is not in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Activity {
    word: u64,
    since: u64,
}

impl Activity {
    /// The ports on which it has requests.
    #[inline]
    pub(super) fn ports(self) -> u64 {
        self.word & PORTS
    }

    /// How long it has been in flight, or not been.
    fn lasts_ns(self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.word & !PORTS)
    }

    /// Whether it is in flight, or was so lately.
    #[inline]
    pub(super) fn is_active(self, now_ns: u64, grace_ns: u64) -> bool {
        self.ports() > 0 || (self.word != 0 && self.lasts_ns(now_ns) <= grace_ns)
    }

    /// Whether it has been in flight without a break for this long.
    pub(super) fn is_backlogged(self, now_ns: u64, for_ns: u64) -> bool {
        self.ports() > 0 && now_ns.saturating_sub(self.since) >= for_ns
    }
}

impl<P: Platform> FlowState<P> {
    pub(super) fn new() -> Self {
        let zero = || P::U64::new(0);
        FlowState {
            vt: zero(),
            activity: zero(),
            since: zero(),
            entered: zero(),
            presence: zero(),
            moved: zero(),
            urgent: zero(),
        }
    }

    /// Prepares the slot for a new flow, which no port uses yet.
    pub(super) fn reset(&self, vt: VTime) {
        self.vt.store(vt.to_word(), Ordering::Relaxed);
        self.activity.store(0, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.entered.store(0, Ordering::Relaxed);
        self.presence.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        self.urgent.store(0, Ordering::Relaxed);
    }

    /// Its virtual time, less what ports have not published yet.
    #[inline]
    pub(super) fn vt(&self) -> VTime {
        VTime::from_word(self.vt.load(Ordering::Relaxed))
    }

    /// Charges it; gives its virtual time before.
    #[inline]
    pub(super) fn charge(&self, units: u64) -> VTime {
        VTime::from_word(self.vt.fetch_add(VTime::from_units(units).to_word(), Ordering::Relaxed))
    }

    /// Moves its virtual time to what `to` makes of it, `None` to leave it.
    pub(super) fn shift(&self, to: impl Fn(VTime) -> Option<VTime>) {
        let mut old = self.vt.load(Ordering::Relaxed);
        while let Some(new) = to(VTime::from_word(old)) {
            match self.vt.compare_exchange(old, new.to_word(), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    let units = new.since(VTime::from_word(old)) as u64;
                    self.moved.fetch_add(units, Ordering::Relaxed);
                    return;
                }
                Err(now) => old = now,
            }
        }
    }

    /// Units by which it has been moved without service, wrapping.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_urgent(&self, urgent: bool) {
        self.urgent.store(u64::from(urgent), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn activity(&self) -> Activity {
        let word = self.activity.load(Ordering::Acquire);
        Activity { word, since: self.since.load(Ordering::Relaxed) }
    }

    /// The flow is in flight again, and `was` before; true if that was a pause, and it has been in
    /// flight all along. For the port that brought it back: another that sees the flow before this
    /// is done takes it for what it was before.
    pub(super) fn resume(&self, was: Activity, was_deep: bool, now_ns: u64, grace_ns: u64) -> bool {
        let left_ns = was.word & !PORTS;
        let served_ns = left_ns.saturating_sub(self.entered.load(Ordering::Relaxed));
        let away_ns = now_ns.saturating_sub(left_ns);
        let (earned_ns, missed_ns) =
            if was_deep { (served_ns, away_ns) } else { (0, away_ns.saturating_add(served_ns)) };
        let most_ns = grace_ns.saturating_mul(PRESENCE_GRACES);
        let presence_ns =
            self.presence.load(Ordering::Relaxed).saturating_add(earned_ns).min(most_ns);
        let paused = presence_ns > missed_ns;
        self.entered.store(now_ns, Ordering::Relaxed);
        self.presence.store(presence_ns.saturating_sub(missed_ns), Ordering::Relaxed);
        if !paused {
            self.since.store(now_ns, Ordering::Relaxed);
        }
        paused
    }

    /// Whether it has come back from having nothing in flight since then.
    pub(super) fn has_paused_since(&self, ns: u64) -> bool {
        self.entered.load(Ordering::Relaxed) >= ns
    }

    /// A port has a request in flight again. If no other had, gives what the flow was before.
    pub(super) fn enter(&self, now_ns: u64) -> Option<Activity> {
        let mut old = self.activity.load(Ordering::Relaxed);
        loop {
            let new = if old & PORTS == 0 { (now_ns & !PORTS) | 1 } else { old + 1 };
            match self.activity.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (old & PORTS == 0).then_some(Activity { word: old, since: 0 }),
                Err(now) => old = now,
            }
        }
    }

    /// A port has none any more; true if none has.
    pub(super) fn leave(&self, now_ns: u64) -> bool {
        let mut old = self.activity.load(Ordering::Relaxed);
        loop {
            let last = old & PORTS <= 1;
            // 1 more than nothing: the word of a flow that has been active is not 0.
            let new = if last { (now_ns & !PORTS).max(PORTS + 1) } else { old - 1 };
            match self.activity.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(now) => old = now,
            }
        }
    }
}
