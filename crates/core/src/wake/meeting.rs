//! The meeting: a barrier where threads wait until none of them holds a request of the policy that
//! is to be replaced.
//!
//! **Problem.** Requests of one port may wait for completions on other ports, so a thread without
//! requests goes on serving its port until no thread has any; only then may it change to its port
//! of the next policy. **Model.** The meeting counts the threads that have not arrived. The last to
//! arrive wakes the others, which may sleep meanwhile (see [`super::bell`]).
//!
//! **Order.** An arrival is a release and an acquire in one. The subtractions form one chain, so
//! the last one, and each acquire load that reads 0, comes after everything that each thread did
//! before it arrived. The last thread rings after the count has become 0, and a ring makes the
//! owner read the count again; so no thread sleeps while the meeting is over.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// A meeting of some threads. See the [module's text](self).
pub struct Meeting<P: Platform> {
    missing: P::U64,
}

impl<P: Platform> Meeting<P> {
    /// A meeting of `threads` threads, of which none has arrived.
    pub fn new(threads: usize) -> Meeting<P> {
        Meeting { missing: P::U64::new(threads as u64) }
    }

    /// Records that a thread holds no request; each thread calls it once. True for the last one,
    /// which then has to wake the others.
    #[must_use]
    pub fn arrive(&self) -> bool {
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether all threads have arrived; then the caller sees everything that they did before.
    pub fn is_over(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::contract::platform::Native;

    proptest! {
        /// The law over real threads: no thread goes on before all have arrived, and exactly one is
        /// the last.
        #[test]
        fn nobody_goes_on_early(work in proptest::collection::vec(0u32..2_000, 1..5)) {
            let meeting = Meeting::<Native>::new(work.len());
            let [left, last] = [AtomicU64::new(0), AtomicU64::new(0)];
            std::thread::scope(|scope| {
                for &spins in &work {
                    let (meeting, left, last, all) = (&meeting, &left, &last, work.len() as u64);
                    scope.spawn(move || {
                        (0..spins).for_each(|_| core::hint::spin_loop());
                        left.fetch_add(1, Ordering::Relaxed);
                        last.fetch_add(u64::from(meeting.arrive()), Ordering::Relaxed);
                        while !meeting.is_over() {
                            std::thread::yield_now();
                        }
                        assert_eq!(left.load(Ordering::Relaxed), all);
                    });
                }
            });
            prop_assert_eq!(last.into_inner(), 1);
        }
    }
}
