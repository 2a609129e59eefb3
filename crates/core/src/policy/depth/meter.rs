//! Each port's counts of requests sent and completed, for the search for D.
//!
//! A port counts in a line of words that it alone writes; the search reads them some hundred times
//! a second. *Memory ordering.* The words are counts that guard no data, so they are accessed with
//! Relaxed; a sum over ports may lack the counts of the last microseconds, which the next sum has.

use alloc::boxed::Box;

use bytemuck::Zeroable;

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::structures::allocation::zeroes;

/// The counts of all ports since the start, wrapping.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Requests completed.
    pub(super) requests: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The time that they were on the device, and that they waited before that, in nanoseconds.
    pub(super) spent_ns: u64,
    pub(super) waited_ns: u64,
    /// Completions of another flow than that of the port's last completion.
    pub(super) turns: u32,
    /// Submissions of another flow than that of the port's last completion.
    pub(super) others: u32,
    /// Requests staged or on the device, when each port last completed one.
    pub(super) live: u64,
    /// Sum over ports of the most requests that each had recently: a port that does requests at
    /// once has few when one completes, but had all of its clients' requests a moment before.
    pub(super) most: u64,
    /// Sum of the flows of all requests completed, plus one each: with the number of requests it
    /// shows whether all were of the same flow.
    pub(super) flows: u64,
    /// The last completions of the ports that have requests were of several flows.
    pub(super) are_several: bool,
    /// Some port has requests.
    pub(super) is_live: bool,
    /// The flow of some port's last completion, plus one; of a port that has requests, if there is
    /// one.
    pub(super) last: u64,
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;
/// The most requests that a port had recently is the most within this number of its last
/// completions, or within twice as many.
const RECENT: u32 = 256;

/// A port's words.
pub(super) struct Words<P: Platform> {
    requests: P::U64,
    bytes: P::U64,
    spent_ns: P::U64,
    waited_ns: P::U64,
    /// `turns` and, above it, `others`.
    turns: P::U64,
    /// `live` and, above it, `most`; each is at most a port's tags.
    live: P::U64,
    last: P::U64,
    flows: P::U64,
}

impl<P: Platform> Words<P> {
    pub(super) fn new() -> Self {
        let [requests, bytes, spent_ns, waited_ns, turns, live, last, flows] =
            core::array::from_fn(|_| P::U64::new(0));
        Words { requests, bytes, spent_ns, waited_ns, turns, live, last, flows }
    }

    /// Adds the port's counts.
    pub(super) fn add_to(&self, sum: &mut Sum) {
        let load = |word: &P::U64| word.load(Ordering::Relaxed);
        sum.requests = sum.requests.wrapping_add(load(&self.requests));
        sum.bytes = sum.bytes.wrapping_add(load(&self.bytes));
        sum.spent_ns = sum.spent_ns.wrapping_add(load(&self.spent_ns));
        sum.waited_ns = sum.waited_ns.wrapping_add(load(&self.waited_ns));
        let turns = load(&self.turns);
        sum.turns = sum.turns.wrapping_add(turns as u32);
        sum.others = sum.others.wrapping_add((turns >> 32) as u32);
        sum.flows = sum.flows.wrapping_add(load(&self.flows));
        let (live, last) = (load(&self.live), load(&self.last));
        sum.most = sum.most.saturating_add(live >> 32);
        let live = live & LOW;
        sum.live = sum.live.saturating_add(live);
        // A port without requests does not show that there are several flows: its last flow may
        // have gone.
        if live > 0 && last > 0 {
            sum.are_several |= sum.is_live && sum.last != last;
            sum.is_live = true;
        }
        // The last flow of a port without requests counts only while no port with requests was
        // seen.
        if last > 0 && (live > 0 || !sum.is_live) {
            sum.last = last;
        }
    }
}

/// A request that the port has.
#[derive(Clone, Copy, Zeroable)]
struct Live {
    arrived_ns: u64,
    issued_ns: u64,
    length: u32,
    /// Its flow's slot plus one; 0: not counted.
    flow: u32,
}

/// A port's state of its requests; its counts are in its [`Words`].
pub(super) struct Meter {
    requests: Box<[Live]>,
    /// Requests staged or on the device.
    live: u64,
    /// Completions, and requests, of another flow than the one of the last completion.
    turns: u32,
    others: u32,
    /// The flow of the last completion, plus one.
    last: u64,
    /// The most live since `recent` completions, and in the [`RECENT`] before them.
    most: u64,
    most_before: u64,
    recent: u32,
}

/// Adds to a word of the port, which writes it alone.
#[inline]
fn add(word: &impl AtomicWord, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Meter {
    pub(super) fn new(tags: usize) -> Self {
        let requests = zeroes(tags);
        Meter {
            requests,
            live: 0,
            turns: 0,
            others: 0,
            last: 0,
            most: 0,
            most_before: 0,
            recent: 0,
        }
    }

    #[inline]
    pub(super) fn submitted(&mut self, now_ns: u64, tag: u32, flow: usize, length: u32) {
        if let Some(live) = self.requests.get_mut(tag as usize) {
            self.live = self.live.wrapping_add(1);
            self.most = self.most.max(self.live);
            // A part of a command is not issued by itself, and its time is not counted.
            let flow = flow as u32 + 1;
            *live = Live { arrived_ns: now_ns, issued_ns: u64::MAX, length, flow };
            let is_other = u64::from(live.flow) != self.last;
            self.others = self.others.wrapping_add(is_other.into());
        }
    }

    #[inline]
    pub(super) fn issued(&mut self, tag: u32, now_ns: u64) {
        if let Some(live) = self.requests.get_mut(tag as usize) {
            live.issued_ns = now_ns;
        }
    }

    /// Notes that a staged request has grown.
    pub(super) fn grown(&mut self, tag: u32, length: u32) {
        if let Some(live) = self.requests.get_mut(tag as usize) {
            live.length = live.length.saturating_add(length);
        }
    }

    /// Whether requests that were counted when they came are live.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.live > 0
    }

    /// Takes a request off the live ones that was taken back, or completes while nothing is
    /// counted.
    pub(super) fn forget<P: Platform>(&mut self, tag: u32, words: &Words<P>) {
        if let Some(live) = self.requests.get_mut(tag as usize).filter(|live| live.flow != 0) {
            live.flow = 0;
            self.live = self.live.wrapping_sub(1);
            // The port's published count must not stay when this was the last request that it
            // counted.
            let most = self.most.max(self.most_before);
            words.live.store(most << 32 | self.live & LOW, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn completed<P: Platform>(&mut self, tag: u32, now_ns: u64, words: &Words<P>) {
        let Some(live) = self.requests.get_mut(tag as usize).filter(|live| live.flow != 0) else {
            return;
        };
        let flow = u64::from(live.flow);
        add(&words.requests, 1);
        add(&words.bytes, live.length.into());
        let spent_ns = now_ns.saturating_sub(live.issued_ns);
        let took_ns = now_ns.saturating_sub(live.arrived_ns);
        add(&words.spent_ns, spent_ns);
        add(&words.waited_ns, took_ns.saturating_sub(spent_ns));
        add(&words.flows, flow);
        live.flow = 0;
        self.live = self.live.wrapping_sub(1);
        self.turns = self.turns.wrapping_add((flow != self.last).into());
        self.last = flow;
        let most = self.most.max(self.most_before);
        self.recent += 1;
        if self.recent == RECENT {
            (self.most_before, self.most, self.recent) = (self.most, self.live, 0);
        }
        let turns = u64::from(self.others) << 32 | u64::from(self.turns);
        words.turns.store(turns, Ordering::Relaxed);
        words.live.store(most << 32 | self.live & LOW, Ordering::Relaxed);
        words.last.store(flow, Ordering::Relaxed);
    }
}
