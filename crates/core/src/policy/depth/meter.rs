//! Each port's counts of requests sent and completed, for the search for D, for latency targets and
//! for reservations.
//!
//! A port counts in words that it alone writes; the search reads them some hundred times a second.
//! *Memory ordering.* The words are counts that guard no data, so they are accessed with Relaxed; a
//! sum over ports may lack the counts of the last microseconds, which the next sum has.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// The counts of all ports since the start, wrapping.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Requests completed.
    pub(crate) requests: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Their cost as the policy charged it, in equivalent bytes.
    pub(crate) charged: u64,
    /// The time that they were on the device, in nanoseconds.
    pub(crate) spent_ns: u64,
    /// The time since they came, in nanoseconds.
    pub(crate) took_ns: u64,
    /// Requests that came, and the sums of their flows' numbers and of the squares of those.
    pub(crate) sent: u64,
    pub(crate) flows: u64,
    pub(crate) squares: u64,
    /// Sum over ports of the most requests that each had recently, no counter: a port that does
    /// requests at once has few when one completes, but had all of its clients' requests before.
    pub(crate) most: u64,
    /// Sums over ports of the requests that policies hold, counted while there are reservations, in
    /// the lower half, and of the live ones in the upper; no counters either.
    pub(crate) held: u64,
}

/// The most requests that a port had recently is the most within this number of its last
/// completions, or within twice as many.
const RECENT: u32 = 256;

/// A port's words: those of [`Sum`].
pub(crate) struct Words<P: Platform>([P::U64; 10]);

impl<P: Platform> Words<P> {
    pub(crate) fn new() -> Self {
        Words(core::array::from_fn(|_| P::U64::new(0)))
    }

    /// Adds the port's counts.
    pub(crate) fn add_to(&self, sum: &mut Sum) {
        let sums = [
            &mut sum.requests,
            &mut sum.bytes,
            &mut sum.charged,
            &mut sum.spent_ns,
            &mut sum.took_ns,
            &mut sum.sent,
            &mut sum.flows,
            &mut sum.squares,
            &mut sum.most,
            &mut sum.held,
        ];
        for (sum, word) in sums.into_iter().zip(&self.0) {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }

    /// Whether the port has requests.
    pub(crate) fn has_live(&self) -> bool {
        self.0[9].load(Ordering::Relaxed) >> 32 > 0
    }

    /// Publishes the number of requests that the policy holds, and of the live ones.
    #[inline]
    pub(crate) fn hold(&self, staged: u32, live: u64) {
        self.0[9].store(live << 32 | u64::from(staged), Ordering::Relaxed);
    }

    /// Counts a request that has come, of the flow in this slot.
    #[inline]
    pub(crate) fn came(&self, slot: usize) {
        let flow = slot as u64;
        self.add(5, [1, flow, flow.wrapping_mul(flow)]);
    }

    /// Counts a completed request: its bytes and its cost, the time that it was on the device and
    /// the time since it came; and the most requests that the port had recently.
    #[inline]
    pub(crate) fn completed(&self, [bytes, cost, spent_ns, took_ns]: [u64; 4], most: u64) {
        self.add(0, [1, bytes, cost, spent_ns, took_ns]);
        self.0[8].store(most, Ordering::Relaxed);
    }

    /// Adds to words from `first` on. The port alone writes them.
    #[inline]
    fn add<const N: usize>(&self, first: usize, more: [u64; N]) {
        for (word, more) in self.0.iter().skip(first).zip(more) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }
}

/// The number of a port's live requests.
#[derive(Default)]
pub(crate) struct Live {
    /// Requests staged or on the device.
    now: u64,
    /// The most live since `recent` completions, and in the [`RECENT`] before them.
    most: u64,
    most_before: u64,
    recent: u32,
}

impl Live {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    pub(crate) fn add(&mut self) {
        self.now = self.now.wrapping_add(1);
        self.most = self.most.max(self.now);
    }

    #[inline]
    pub(crate) fn remove(&mut self) {
        self.now = self.now.wrapping_sub(1);
    }

    /// The most live ones recently, at the completion of one.
    #[inline]
    pub(crate) fn recent(&mut self) -> u64 {
        let most = self.most.max(self.most_before);
        self.recent += 1;
        if self.recent == RECENT {
            (self.most_before, self.most, self.recent) = (self.most, self.now, 0);
        }
        most
    }
}
