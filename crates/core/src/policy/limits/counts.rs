//! The counts that each port publishes, in words that it alone writes.

use super::supply::Total;
use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// A flow's requests on a port.
pub(super) struct Activity<P: Platform> {
    /// Submitted requests in the lower half, completed ones in the upper; both wrap.
    requests: P::U64,
    /// Bytes of completed requests; wraps.
    bytes: P::U64,
}

/// A flow's requests on all ports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Demand {
    pub(super) submitted: u32,
    completed: u32,
    bytes: u64,
}

impl Demand {
    /// Number of live requests.
    pub(super) fn live(self) -> u32 {
        self.submitted.wrapping_sub(self.completed)
    }

    /// Requests and bytes completed since then.
    pub(super) fn since(self, before: Demand) -> [u64; 2] {
        let requests = self.completed.wrapping_sub(before.completed);
        [requests.into(), self.bytes.wrapping_sub(before.bytes)]
    }
}

impl<P: Platform> Activity<P> {
    pub(super) fn new() -> Self {
        Activity { requests: P::U64::new(0), bytes: P::U64::new(0) }
    }

    pub(super) fn add_to(&self, sum: &mut Demand) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        sum.submitted = sum.submitted.wrapping_add(submitted);
        sum.completed = sum.completed.wrapping_add(completed);
        sum.bytes = sum.bytes.wrapping_add(self.bytes.load(Ordering::Relaxed));
    }

    /// Counts a submitted request, or takes one off the count.
    #[inline]
    pub(super) fn submitted(&self, more: bool) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let submitted = if more { submitted.wrapping_add(1) } else { submitted.wrapping_sub(1) };
        self.requests.store(of_halves(submitted, completed), Ordering::Relaxed);
    }

    /// Counts a completed request.
    #[inline]
    pub(super) fn completed(&self, bytes: u32) {
        let [submitted, completed] = halves(self.requests.load(Ordering::Relaxed));
        let word = of_halves(submitted, completed.wrapping_add(1));
        self.requests.store(word, Ordering::Relaxed);
        let sum = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(sum.wrapping_add(bytes.into()), Ordering::Relaxed);
    }
}

/// A port's requests of all flows.
pub(super) struct Words<P: Platform> {
    done: [P::U64; 2],
    /// Staged requests in the lower half, live ones in the upper.
    held: P::U64,
}

impl<P: Platform> Words<P> {
    pub(super) fn new() -> Self {
        Words { done: core::array::from_fn(|_| P::U64::new(0)), held: P::U64::new(0) }
    }

    pub(super) fn show(&self, done: [u64; 2], staged: u32, live: u32) {
        self.done.iter().zip(done).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.held.store(of_halves(staged, live), Ordering::Relaxed);
    }

    pub(super) fn has_live(&self) -> bool {
        self.held.load(Ordering::Relaxed) >> 32 > 0
    }

    pub(super) fn add_to(&self, total: &mut Total) {
        let done = self.done.each_ref().map(|word| word.load(Ordering::Relaxed));
        for (sum, value) in total.done.iter_mut().zip(done) {
            *sum = sum.wrapping_add(value);
        }
        let [staged, live] = halves(self.held.load(Ordering::Relaxed));
        total.staged = total.staged.saturating_add(staged.into());
        total.live = total.live.saturating_add(live.into());
    }
}

/// The lower half of a word, and the upper one.
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn of_halves(lower: u32, upper: u32) -> u64 {
    u64::from(upper) << 32 | u64::from(lower)
}
