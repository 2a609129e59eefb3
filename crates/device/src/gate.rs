//! The gate: who polls a device that has no thread of its own.
//!
//! **Problem.** Every shard rings doorbells and takes completions; the arbiter between is one state that one shard at a
//! time may touch. Waiting for each other would waste the shards, and a shard that goes away without its doorbell having
//! been looked at would strand its commands.
//! **Model.** A word of bits says what was rung. Whoever has rung tries to enter; who finds somebody inside goes away, as
//! the one inside looks at the bits once more after it has left, and enters again if there are any.
//! **No bit is lost.** A ringer sets its bit and then looks whether somebody is inside; the one inside marks that it has
//! left and then looks at the bits. Both write before they read, in one total order (sequential consistency), so at
//! least one of them sees the other: either the ringer finds the gate free and enters, or the leaver sees the bit. The
//! model below checks it, and that it would fail without the second look.

use crossbeam_utils::CachePadded;
use fairq_core::platform::{AtomicWord, Ordering, Platform};

/// Lets one poller in at a time and loses no doorbell. See the [module's text](self).
pub struct Gate<P: Platform> {
    rung: CachePadded<P::U64>,
    inside: CachePadded<P::U64>,
}

impl<P: Platform> Default for Gate<P> {
    fn default() -> Self {
        Gate { rung: CachePadded::new(P::U64::new(0)), inside: CachePadded::new(P::U64::new(0)) }
    }
}

impl<P: Platform> Gate<P> {
    /// Sets bits. The caller then tries to [`enter`](Self::enter).
    #[inline]
    pub fn ring(&self, bits: u64) {
        self.rung.fetch_or(bits, Ordering::SeqCst);
        P::fence();
    }

    /// The bits that nobody has taken.
    #[inline]
    pub fn rung(&self) -> u64 {
        self.rung.load(Ordering::SeqCst)
    }

    /// Enters, unless somebody is inside. Who enters has all that the last one inside did before it, takes the bits,
    /// works, and leaves.
    #[inline]
    pub fn enter(&self) -> bool {
        // The look spares the one inside the loss of its cache line.
        self.inside.load(Ordering::SeqCst) == 0 && self.inside.swap(1, Ordering::SeqCst) == 0
    }

    /// Takes the bits; for who is inside.
    #[inline]
    pub fn take(&self) -> u64 {
        if self.rung.load(Ordering::SeqCst) == 0 { 0 } else { self.rung.swap(0, Ordering::SeqCst) }
    }

    /// Leaves. True if bits were set meanwhile: the caller must then try to enter again.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> bool {
        self.inside.store(0, Ordering::SeqCst);
        P::fence();
        self.rung.load(Ordering::SeqCst) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fairq_core::Native;

    use super::*;

    #[test]
    fn one_at_a_time_and_a_second_look() {
        let gate = Gate::<Native>::default();
        assert!(gate.enter());
        gate.ring(4);
        assert!(!gate.enter(), "somebody is inside");
        assert!(gate.leave(), "a bit was set meanwhile");
        assert!(gate.enter());
        gate.ring(1);
        assert_eq!((gate.rung(), gate.take(), gate.take()), (5, 5, 0));
        assert!(!gate.leave());
    }

    /// The property over real threads: every ring is worked off by somebody before all are done.
    #[test]
    fn no_ring_is_lost_between_threads() {
        use std::sync::atomic::AtomicU64;
        const ROUNDS: u64 = 200_000;
        let gate = Gate::<Native>::default();
        let [asked, done] = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (gate, asked, done) = (&gate, &asked, &done);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        asked.fetch_add(1, Ordering::SeqCst);
                        gate.ring(1 << thread);
                        while gate.enter() {
                            gate.take();
                            done.store(asked.load(Ordering::SeqCst), Ordering::SeqCst);
                            if !gate.leave() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!((gate.rung(), done.into_inner()), (0, 3 * ROUNDS));
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release -p fairq-device --lib models`
#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use fairq_core::platform::Loom;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// Rings a bit and polls, as a shard does; `looks_again` is what makes it right.
    fn poll(gate: &Gate<Loom>, worked: &AtomicU64, bit: u64, looks_again: bool) {
        gate.ring(bit);
        while gate.enter() {
            let bits = gate.take();
            // Plain state, as far as the model can tell: what one inside leaves behind, the next one must see.
            worked.store(worked.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
            if !gate.leave() || !looks_again {
                break;
            }
        }
    }

    fn model(looks_again: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new((Gate::<Loom>::default(), AtomicU64::new(0)));
            let other = shared.clone();
            let thread = thread::spawn(move || poll(&other.0, &other.1, 1, looks_again));
            poll(&shared.0, &shared.1, 2, looks_again);
            thread.join().unwrap();
            assert_eq!(shared.0.rung(), 0, "somebody's bit was never looked at");
            assert_eq!(
                shared.1.load(Ordering::Relaxed),
                3,
                "two were inside at once, or one did not see the other's work"
            );
        });
    }

    #[test]
    fn no_bit_is_lost() {
        model(true);
    }

    #[test]
    #[should_panic(expected = "never looked at")]
    fn without_the_second_look_one_is() {
        model(false);
    }
}
