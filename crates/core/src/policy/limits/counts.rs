//! Each port's counts of a flow, in words that it alone writes.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// A flow's requests on a port.
pub(crate) struct Activity<P: Platform> {
    /// Submitted requests in the lower half, completed ones in the upper; both wrap.
    requests: P::U64,
    /// Bytes of completed requests; wraps.
    bytes: P::U64,
}

/// A flow's requests on all ports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Demand {
    pub(crate) submitted: u32,
    completed: u32,
    bytes: u64,
}

impl Demand {
    /// Number of live requests.
    pub(crate) fn live(self) -> u32 {
        self.submitted.wrapping_sub(self.completed)
    }

    /// Requests and bytes completed since `before`.
    pub(crate) fn since(self, before: Demand) -> [u64; 2] {
        let requests = self.completed.wrapping_sub(before.completed);
        [requests.into(), self.bytes.wrapping_sub(before.bytes)]
    }
}

impl<P: Platform> Activity<P> {
    pub(crate) fn new() -> Self {
        Activity { requests: P::U64::new(0), bytes: P::U64::new(0) }
    }

    pub(crate) fn add_to(&self, sum: &mut Demand) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        sum.submitted = sum.submitted.wrapping_add(submitted);
        sum.completed = sum.completed.wrapping_add(completed);
        sum.bytes = sum.bytes.wrapping_add(self.bytes.load(Ordering::Relaxed));
    }

    /// Counts a submitted request, or takes one off the count.
    #[inline]
    pub(crate) fn submitted(&self, more: bool) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let submitted = if more { submitted.wrapping_add(1) } else { submitted.wrapping_sub(1) };
        self.requests.store(of_halves(submitted, completed), Ordering::Relaxed);
    }

    /// Counts a completed request.
    #[inline]
    pub(crate) fn completed(&self, bytes: u32) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let word = of_halves(submitted, completed.wrapping_add(1));
        self.requests.store(word, Ordering::Relaxed);
        let sum = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(sum.wrapping_add(bytes.into()), Ordering::Relaxed);
    }
}

/// The lower half of a word, and the upper one.
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn of_halves(lower: u32, upper: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}
