//! The gate: chooses the thread that polls a device without a thread of its own.
//!
//! **Problem.** Every shard rings doorbells and takes completions; the arbiter between is one state
//! that only one shard at a time may access. If shards waited for each other, they would waste CPU
//! time; if a shard left its doorbell unread, its commands would be stranded. **Model.** One word
//! has a bit for each doorbell that was rung, and its highest bit is set while a poller is inside.
//! A shard that has rung tries to enter; if a poller is inside, the shard leaves its bits in the
//! word and goes on, because the poller cannot leave while bits are set. **No bit is lost.** All
//! changes are read-modify-writes of one word, so they have an order: a ring comes either after the
//! poller has left, and then the shard enters, or before, and then the poller's exchange on leaving
//! fails and takes the bits. The model below checks this, and that bits are lost if a poller leaves
//! without this check. **Memory ordering.** Entering acquires the writes that the last poller
//! released by leaving, and each shard's writes before it set its bits. So a shard that rings
//! always writes the word, even if its bits are already set: a poller may otherwise take the bits
//! of an earlier ring without seeing this shard's doorbell. **Cost.** A shard that rings, enters,
//! works and leaves writes the word twice.

use crossbeam_utils::CachePadded;
use fairq_core::platform::{AtomicWord, Ordering, Platform};

/// Lets one poller in at a time and loses no doorbell. See the [module's text](self).
pub struct Gate<P: Platform>(CachePadded<P::U64>);

/// Set while a poller is inside.
const INSIDE: u64 = 1 << 63;

impl<P: Platform> Default for Gate<P> {
    fn default() -> Self {
        Gate(CachePadded::new(P::U64::new(0)))
    }
}

impl<P: Platform> Gate<P> {
    /// The bits that may be rung.
    pub const BITS: u64 = !INSIDE;

    /// Sets bits for the next poller that [enters](Self::enter) or is inside.
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

    /// Rings `bits`, which may be 0, and enters, taking all bits that are set; `None` if a poller
    /// is inside, which then gets the bits. A thread that enters sees all writes of the last
    /// poller; it has to work and leave.
    #[inline]
    pub fn enter(&self, bits: u64) -> Option<u64> {
        debug_assert!(bits & INSIDE == 0);
        // With bits to set this thread writes the word anyway, so it skips the load and gets the
        // line for writing at once.
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

    /// Leaves, unless bits were set meanwhile: then takes and returns them, and the caller stays
    /// inside.
    #[inline]
    #[must_use]
    pub fn leave(&self) -> Option<u64> {
        // The exchange fails only if bits were set: no other thread clears them, or `INSIDE`, while
        // this one is inside.
        if self.0.compare_exchange(INSIDE, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        Some(self.0.swap(INSIDE, Ordering::AcqRel) & Self::BITS)
    }

    /// Leaves. These bits, and all bits that were rung meanwhile, stay set for another poller.
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

    /// The property over real threads: every ring is handled by some thread before all are done.
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

    /// A gate, two doorbells, their last seen values, and the number of visits inside. The last two
    /// fields stand for plain state: they are read and written without synchronization of their
    /// own.
    struct Shared {
        gate: Gate<Loom>,
        doorbells: [AtomicU64; 2],
        seen: [AtomicU64; 2],
        visits: AtomicU64,
    }

    /// Rings `times` times and polls, as a shard does. With `looks` it leaves by [`Gate::leave`];
    /// without, it clears the word, which loses bits that were set meanwhile. Returns the number of
    /// visits inside.
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
                "a doorbell was not read after its last ring"
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
    #[should_panic(expected = "not read after its last ring")]
    fn without_a_look_when_leaving_one_is() {
        model(false);
    }
}
