//! The gate: which thread polls a device that has no thread of its own.
//!
//! **Problem.** Every shard rings doorbells and takes completions; the arbiter between is one state
//! that one shard at a time may touch. Waiting for each other would waste the shards, and a shard
//! that goes away without its doorbell having been looked at would strand its commands. **Model.**
//! One word of bits says what was rung, and its highest bit that somebody is inside. Whoever has
//! rung tries to enter; who finds somebody inside leaves its bits there and goes away, as the one
//! inside cannot leave while there are any. **No bit is lost.** All changes are read-modify-writes
//! of one word, so they have an order: a ringer either comes after the one inside has left, and
//! enters, or before, and then the exchange by which that one would leave fails and takes the bits.
//! The model below checks it, and that bits would be lost if one left without looking. **Memory
//! ordering.** Entering acquires what the last one inside released by leaving, and what each ringer
//! did before it set its bits. So a ringer always writes the word, also if its bits are there
//! already: they may have been taken for those of another one by somebody who has not seen this
//! one's doorbell. **Cost.** One who rings and enters, works and leaves writes the word twice.

use crossbeam_utils::CachePadded;
use fairq_core::platform::{AtomicWord, Ordering, Platform};

/// Lets one poller in at a time and loses no doorbell. See the [module's text](self).
pub struct Gate<P: Platform>(CachePadded<P::U64>);

/// A poller is inside.
const INSIDE: u64 = 1 << 63;

impl<P: Platform> Default for Gate<P> {
    fn default() -> Self {
        Gate(CachePadded::new(P::U64::new(0)))
    }
}

impl<P: Platform> Gate<P> {
    /// The bits that may be rung.
    pub const BITS: u64 = !INSIDE;

    /// Sets bits. A thread that does not [`enter`](Self::enter) then leaves them to one that does.
    #[inline]
    pub fn ring(&self, bits: u64) {
        debug_assert!(bits & INSIDE == 0);
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    /// The bits that are set and not taken.
    #[inline]
    pub fn rung(&self) -> u64 {
        self.0.load(Ordering::Acquire) & Self::BITS
    }

    /// Rings `bits`, which may be none, and enters with all that are set, taking them; if a poller
    /// is inside, that one gets them. The one that enters sees all that the last one inside did
    /// before it; it works, and leaves.
    #[inline]
    pub fn enter(&self, bits: u64) -> Option<u64> {
        debug_assert!(bits & INSIDE == 0);
        // A ringer writes the word anyway, and takes its line for that at once.
        let mut word = if bits == 0 { self.0.load(Ordering::Relaxed) } else { 0 };
        loop {
            let is_free = word & INSIDE == 0;
            if !is_free && bits == 0 {
                return None;
            }
            // Bits are left to the poller inside, which cannot leave while there are any.
            let next = if is_free { INSIDE } else { word | bits };
            match self.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return is_free.then_some(word | bits),
                Err(seen) => word = seen,
            }
        }
    }

    /// Leaves, unless bits were set meanwhile: takes those, and the caller is still inside.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<u64> {
        // It fails only where bits were set: no other thread takes them, or `INSIDE`, while this
        // one is inside.
        if self.0.compare_exchange(INSIDE, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        Some(self.0.swap(INSIDE, Ordering::AcqRel) & Self::BITS)
    }

    /// Leaves with these bits set, and those that were set meanwhile, for another one to take.
    pub fn hand_over(&self, bits: u64) {
        let mut word = self.0.load(Ordering::Relaxed);
        while let Err(seen) = self.0.compare_exchange(
            word,
            word & Self::BITS | bits,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            word = seen;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use fairq_core::Native;

    use super::*;

    #[test]
    fn one_at_a_time_and_nobody_leaves_bits_behind() {
        let gate = Gate::<Native>::default();
        assert_eq!(gate.enter(2), Some(2));
        gate.ring(4);
        assert_eq!((gate.enter(8), gate.enter(0)), (None, None), "somebody is inside");
        assert_eq!(gate.rung(), 12);
        assert_eq!((gate.leave(), gate.rung()), (Some(12), 0), "bits were set meanwhile");
        assert_eq!(gate.leave(), None);
        gate.ring(1);
        assert_eq!(gate.enter(0), Some(1));
        gate.ring(16);
        gate.hand_over(32);
        assert_eq!(
            (gate.rung(), gate.enter(1)),
            (48, Some(49)),
            "others take what was handed over"
        );
        assert_eq!(gate.leave(), None);
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
                        asked.fetch_add(1, Ordering::Relaxed);
                        let mut inside = gate.enter(1 << thread);
                        while inside.is_some() {
                            done.store(asked.load(Ordering::Relaxed), Ordering::Relaxed);
                            inside = gate.leave();
                        }
                    }
                });
            }
        });
        assert_eq!((gate.rung(), done.into_inner()), (0, 3 * ROUNDS));
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --profile loom -p fairq-device --lib models`
#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use fairq_core::platform::Loom;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    /// A gate, a doorbell for each of two, what was last seen of them, and how often somebody was
    /// inside. The last two stand for plain state: they are read and written as if nobody else did.
    struct Shared {
        gate: Gate<Loom>,
        doorbells: [AtomicU64; 2],
        seen: [AtomicU64; 2],
        visits: AtomicU64,
    }

    /// Rings so many times and polls, as a shard does; `looks` is what makes it right. How often it
    /// was inside.
    fn poll(shared: &Shared, who: usize, times: u64, looks: bool) -> u64 {
        let mut visits = 0;
        for ring in 1..=times {
            shared.doorbells[who].store(ring, Ordering::Relaxed);
            let mut inside = shared.gate.enter(1 << who);
            while let Some(bits) = inside {
                visits += 1;
                shared.visits.store(shared.visits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                for bell in (0..2).filter(|bell| bits >> bell & 1 != 0) {
                    let value = shared.doorbells[bell].load(Ordering::Relaxed);
                    shared.seen[bell].store(value, Ordering::Relaxed);
                }
                if looks {
                    inside = shared.gate.leave();
                } else {
                    shared.gate.0.swap(0, Ordering::AcqRel);
                    inside = None;
                }
            }
        }
        visits
    }

    fn model(looks: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let words = || [AtomicU64::new(0), AtomicU64::new(0)];
            let gate = Gate::default();
            let shared = Arc::new(Shared {
                gate,
                doorbells: words(),
                seen: words(),
                visits: AtomicU64::new(0),
            });
            let other = shared.clone();
            let thread = thread::spawn(move || poll(&other, 0, 2, looks));
            let visits = poll(&shared, 1, 1, looks) + thread.join().unwrap();
            let seen = [0, 1].map(|bell: usize| shared.seen[bell].load(Ordering::Relaxed));
            assert_eq!(
                (shared.gate.rung(), seen),
                (0, [2, 1]),
                "somebody's bell was never looked at"
            );
            let counted = shared.visits.load(Ordering::Relaxed);
            assert_eq!(
                counted, visits,
                "two were inside at once, or one did not see the other's work"
            );
        });
    }

    #[test]
    fn no_bell_is_lost() {
        model(true);
    }

    #[test]
    #[should_panic(expected = "never looked at")]
    fn without_a_look_when_leaving_one_is() {
        model(false);
    }
}
