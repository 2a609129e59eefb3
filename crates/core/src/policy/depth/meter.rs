//! Each port's counts of requests sent and completed, for the search for D, for latency targets and
//! for reservations.
//!
//! A port counts in words that it alone writes; the search reads them some hundred times a second.
//! *Memory ordering.* The words are counts that guard no data, so they are accessed with Relaxed; a
//! sum over ports may lack the counts of the last microseconds, which the next sum has.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// Period of the control of D, costs and targets, in nanoseconds. It is longer than the few
/// milliseconds for which other programs have a CPU, and short enough that a tenant does not wait
/// long for a change of D; useful from 5 to 50 ms.
pub(crate) const TICK_NS: u64 = 10_000_000;
/// Time that gives a slow device a hundred completions, in nanoseconds; useful from 0.1 to 1 s.
pub(crate) const LONG_NS: u64 = 250_000_000;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The whole, in millionths.
pub(crate) const PPM: u64 = 1_000_000;

/// A count of `time_ns`, for a second.
pub(crate) fn per_second(count: u64, time_ns: u64) -> u64 {
    let all = u128::from(count) * u128::from(SECOND_NS) / u128::from(time_ns.max(1));
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Counts, and the words in which a port keeps them.
macro_rules! counts {
    ($counts:ident, $words:ident: $($(#[$text:meta])* $count:ident,)*) => {
        /// The counts of all ports since the start, wrapping.
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub(crate) struct $counts {
            $($(#[$text])* pub(crate) $count: u64,)*
        }

        impl $counts {
            /// The counts since `before`.
            pub(crate) fn since(&self, before: &Self) -> Self {
                $counts { $($count: self.$count.wrapping_sub(before.$count),)* }
            }
        }

        /// A port's words.
        pub(crate) struct $words<P: Platform> {
            $($count: P::U64,)*
        }

        impl<P: Platform> $words<P> {
            pub(crate) fn new() -> Self {
                $words { $($count: P::U64::new(0),)* }
            }

            /// Adds the port's counts.
            pub(crate) fn add_to(&self, sum: &mut $counts) {
                $(sum.$count = sum.$count.wrapping_add(self.$count.load(Ordering::Relaxed));)*
            }
        }
    };
}
pub(crate) use counts;

/// Adds to a word that the port alone writes.
#[inline(always)]
pub(crate) fn add(word: &impl AtomicWord, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

counts! { Sum, Words:
    /// Requests completed.
    requests,
    /// Their bytes.
    bytes,
    /// Their cost as the policy charged it, in equivalent bytes.
    charged,
    /// The time that they were on the device, in nanoseconds.
    spent_ns,
    /// The time since they came, in nanoseconds.
    took_ns,
    /// Requests that came, and the sums of their flows' numbers and of the squares of those.
    sent,
    flows,
    squares,
    /// Sum over ports of the most requests that each had recently, no counter: a port that does
    /// requests at once has few when one completes, but had all of its clients' requests before.
    most,
    /// Sums over ports of the requests that policies hold, counted while there are reservations,
    /// and of the live ones; no counters either.
    staged,
    live,
}

/// The most requests that a port had recently is the most within this number of its last
/// completions, or within twice as many: a second of a slow device, and a tenth of a millisecond of
/// a fast one. More than the requests of a batch.
const RECENT: u32 = 256;

impl<P: Platform> Words<P> {
    /// Whether the port has requests.
    pub(crate) fn has_live(&self) -> bool {
        self.live.load(Ordering::Relaxed) > 0
    }

    /// Publishes the number of requests that the policy holds, and of the live ones.
    #[inline]
    pub(crate) fn hold(&self, staged: u32, live: u64) {
        self.staged.store(staged.into(), Ordering::Relaxed);
        self.live.store(live, Ordering::Relaxed);
    }

    /// Counts a request that has come, of the flow in this slot.
    #[inline]
    pub(crate) fn came(&self, slot: usize) {
        let flow = slot as u64;
        add(&self.sent, 1);
        add(&self.flows, flow);
        add(&self.squares, flow.wrapping_mul(flow));
    }

    /// Counts a completed request, and the most requests that the port had recently.
    #[inline]
    pub(crate) fn completed(&self, done: &Done, most: u64) {
        add(&self.requests, 1);
        add(&self.bytes, done.bytes);
        add(&self.charged, done.cost);
        add(&self.spent_ns, done.spent_ns);
        add(&self.took_ns, done.took_ns);
        self.most.store(most, Ordering::Relaxed);
    }
}

/// A completed request: its bytes and its cost, the time that it was on the device and the time
/// since it came, in nanoseconds.
pub(crate) struct Done {
    pub(crate) bytes: u64,
    pub(crate) cost: u64,
    pub(crate) spent_ns: u64,
    pub(crate) took_ns: u64,
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
