//! The bell: a wake-up for a thread that serves a port.
//!
//! **Problem.** A port's thread sleeps when it has nothing to do, and others have to wake it:
//! policies for virtual time and slots, the control thread for messages. A wake-up costs a system
//! call, so a busy thread, which reads the bell soon anyway, should not be woken; and a thread that
//! is about to sleep must not be missed. **Model.** A bit records that the bell rang, and a word
//! the owner's state: it runs, it polls (it reads the bit in a loop, for a while), or it is parked.
//! A ringer sets the bit and then reads the state; only a parked owner has to be woken, by the
//! first ringer that finds it parked. An owner that is about to sleep sets the state and then reads
//! the bit.
//!
//! **No ring is lost.** Both sides write before they read, in one total order (sequential
//! consistency), so at least one of them sees the other's write: either the ringer finds the owner
//! parked and wakes it, or the owner finds the bit and stays awake. A ringer that finds the owner
//! polling has set the bit before the owner parks, because the state was not parked yet; the
//! owner's read of the bit after parking finds it. Only a ringer that changes the state from parked
//! to running wakes the owner, so one sleep costs one wake-up. Both words change by exchange, so
//! that each change acts on the value that the last change left; an exchange costs as much as an
//! ordered store. **Writes before a ring are seen.** Taking the bit acquires the ringer's setting
//! of it, so the owner then sees everything that the ringer had written before it rang. Only
//! [`Bell::is_rung`] and the first read of [`Bell::take`] are relaxed: at worst they see the bit
//! late, but not after [`Bell::park`] has seen it, because the same thread calls all three.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// The owner runs, and may ring others.
const RUNS: u64 = 0;
/// The owner polls the bell, and rings no other meanwhile.
const LOOKS: u64 = 1;
/// The owner sleeps, or is about to.
const PARKED: u64 = 2;

/// One thread's bell. See the [module's text](self).
pub struct Bell<P: Platform> {
    rung: P::U64,
    state: P::U64,
}

impl<P: Platform> Default for Bell<P> {
    fn default() -> Self {
        Bell { rung: P::U64::new(0), state: P::U64::new(RUNS) }
    }
}

impl<P: Platform> Bell<P> {
    /// Rings the bell. True if the owner sleeps, or is about to: then the caller has to wake it.
    #[inline]
    #[must_use]
    pub fn ring(&self) -> bool {
        self.rung.swap(1, Ordering::SeqCst);
        P::fence();
        // The load comes first so that the cache line of an owner that runs is not taken from it.
        self.state.load(Ordering::SeqCst) != RUNS
            && self.state.swap(RUNS, Ordering::SeqCst) == PARKED
    }

    /// Whether the bell rang since the last call; for the owner.
    #[inline]
    pub fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) != 0 && self.rung.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the bell rang, for an owner that polls it; only a hint until [`Self::take`].
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) != 0
    }

    /// Whether the owner runs, so that it may soon ring others. Only a hint.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNS
    }

    /// The owner polls the bell from now on, until [`Self::wake`].
    #[inline]
    pub fn look(&self) {
        self.state.swap(LOOKS, Ordering::AcqRel);
    }

    /// The owner is about to sleep. False if the bell rang: then it must not. The owner calls
    /// [`Self::wake`] in both cases.
    #[inline]
    #[must_use]
    pub fn park(&self) -> bool {
        self.state.swap(PARKED, Ordering::SeqCst);
        P::fence();
        self.rung.load(Ordering::SeqCst) == 0
    }

    /// The owner runs again, for whatever reason.
    #[inline]
    pub fn wake(&self) {
        // A ringer that still finds the owner parked wakes it needlessly, which costs one turn of
        // the owner's loop.
        self.state.swap(RUNS, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::contract::platform::Native;

    #[test]
    fn only_who_is_parked_is_woken_and_only_once() {
        let bell = Bell::<Native>::default();
        assert!(!bell.ring(), "it runs");
        assert!(!bell.park(), "it rang");
        bell.wake();
        assert_eq!((bell.take(), bell.take()), (true, false));
        bell.look();
        assert!(!bell.is_running() && !bell.ring(), "it polls");
        assert!(bell.is_rung() && bell.take());
        assert!(bell.park());
        assert_eq!((bell.ring(), bell.ring()), (true, false));
    }

    proptest! {
        /// In any history an owner that may sleep has taken all rings, and the first ring after
        /// that wakes it.
        #[test]
        fn nobody_sleeps_through_a_ring(steps in proptest::collection::vec(0u8..5, 0..200)) {
            let bell = Bell::<Native>::default();
            let (mut rung, mut asleep) = (false, false);
            for step in steps {
                match step {
                    0 | 1 => {
                        prop_assert_eq!(bell.ring(), asleep);
                        (rung, asleep) = (true, false);
                    }
                    _ if asleep => {}
                    2 => prop_assert_eq!(bell.take(), core::mem::take(&mut rung)),
                    3 => {
                        bell.look();
                        prop_assert_eq!(bell.is_rung(), rung);
                        bell.wake();
                    }
                    _ => {
                        asleep = bell.park();
                        prop_assert_eq!(asleep, !rung);
                        if !asleep {
                            bell.wake();
                        }
                    }
                }
            }
        }
    }

    /// The law over real threads: the owner sees every write before a ring, and does not sleep
    /// while it has not seen one.
    #[test]
    fn everything_said_is_heard() {
        const EACH: u64 = 100_000;
        const PATIENCE: Duration = Duration::from_secs(10);
        let (bell, said) = (Bell::<Native>::default(), AtomicU64::new(0));
        let heard = std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                let mut heard = 0;
                while heard < 3 * EACH {
                    if bell.take() {
                        heard = said.load(Ordering::Relaxed);
                    } else if bell.park() {
                        // The owner may be woken needlessly, by a ringer that found it parked
                        // before the owner saw the ring and went on.
                        let since = Instant::now();
                        std::thread::park_timeout(PATIENCE);
                        assert!(
                            since.elapsed() < PATIENCE,
                            "asleep though {} was said",
                            said.load(Ordering::Relaxed)
                        );
                    }
                    bell.wake();
                }
                heard
            });
            for _ in 0..3 {
                let (bell, said, thread) = (&bell, &said, owner.thread().clone());
                scope.spawn(move || {
                    for _ in 0..EACH {
                        said.fetch_add(1, Ordering::Relaxed);
                        if bell.ring() {
                            thread.unpark();
                        }
                    }
                });
            }
            owner.join().unwrap()
        });
        assert_eq!(heard, 3 * EACH);
    }
}
