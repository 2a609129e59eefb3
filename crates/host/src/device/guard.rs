//! Keeps a read-modify-write cycle and other writes to the same block apart, across all shards.
//!
//! **Problem.** With direct I/O, a write of part of a block reads the block, changes it and writes
//! it back. If another command writes the rest of the block in between, its data are lost.
//!
//! **Model.** A file is divided into regions of 1 MiB, which are distributed over 64 stripes. A
//! stripe is a lock: many writers of whole blocks hold it *shared*, or one read-modify-write cycle
//! holds it *exclusively*. No thread is blocked: an access that cannot enter keeps a ticket and
//! retries ([`Guard::poll`]).
//!
//! A stripe is a fair ticket lock: each access draws a ticket, and accesses enter in the order of
//! tickets.
//!
//! - *shared* enters when all accesses before it have entered (`turn` equals its ticket), and then
//!   increments `turn` at once;
//! - *exclusive* enters when all accesses before it have left (`left` equals its ticket), and
//!   increments `turn` when it leaves.
//!
//! So neither kind starves the other, and in the usual case, without read-modify-write, an access
//! costs three uncontended atomic operations. The counters may wrap, because they are compared only
//! for equality and far fewer than 2^32 accesses wait.
//!
//! **No lost write.** A cycle holds its stripe exclusively from before its read until after its
//! write. Every other writer of the block needs the same stripe, since a block is inside one
//! region. Reads need no guard, because a cycle writes back the surrounding bytes unchanged.
//!
//! **No deadlock.** An access enters its stripes one by one in ascending order, and does its I/O
//! only when it holds them all. The first access that waits at a stripe waits only for accesses
//! that hold the stripe. If one of these waits, it waits at a higher stripe, and an access that
//! holds the highest stripe waits only for I/O. Exclusive accesses obtain their bounce buffer
//! before they draw a ticket, so no ticket waits for memory. A drawn ticket is always used, because
//! a command in flight cannot be cancelled.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

const STRIPES: u32 = u64::BITS;
/// The binary logarithm of a region's size in bytes. Blocks are not larger than a region.
const REGION_SHIFT: u32 = 20;

/// The stripes of one device.
pub(in crate::device) struct Guard {
    stripes: [CachePadded<Stripe>; STRIPES as usize],
}

#[derive(Default)]
struct Stripe {
    /// The next ticket.
    next: AtomicU32,
    /// All accesses with earlier tickets have entered, and none of them holds the stripe
    /// exclusively.
    turn: AtomicU32,
    /// The number of accesses that have left. The exclusive access whose ticket equals it may
    /// enter.
    left: AtomicU32,
}

/// The state of one write in the guard.
#[derive(Debug, Default)]
pub(in crate::device) struct Access {
    is_exclusive: bool,
    /// Stripes yet to enter.
    wanted: u64,
    /// Stripes entered.
    held: u64,
    /// The ticket for the lowest wanted stripe.
    ticket: Option<u32>,
}

impl Access {
    /// An access that needs no stripe.
    pub(in crate::device) const NONE: Access =
        Access { is_exclusive: false, wanted: 0, held: 0, ticket: None };

    /// The access of a write of whole blocks.
    pub(in crate::device) fn shared(file: u16, offset: u64, length: u64) -> Access {
        Access { wanted: stripes_of(file, offset, length), ..Access::NONE }
    }

    /// The access of the read-modify-write cycle of one block.
    pub(in crate::device) fn exclusive(file: u16, offset: u64, length: u64) -> Access {
        debug_assert!(offset >> REGION_SHIFT == (offset + length - 1) >> REGION_SHIFT);
        Access { is_exclusive: true, ..Access::shared(file, offset, length) }
    }

    /// The stripes of a shared access for which [`Guard::poll`] has returned true.
    pub(in crate::device) fn into_held(self) -> Held {
        debug_assert!(
            !self.is_exclusive && self.wanted == 0,
            "it has entered everywhere, and not alone"
        );
        Held(self.held)
    }
}

/// The stripes that a write of whole blocks holds, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::device) struct Held(u64);

impl Held {
    /// No stripe.
    pub(in crate::device) const NONE: Held = Held(0);
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { stripes: std::array::from_fn(|_| CachePadded::default()) }
    }
}

impl Guard {
    /// Enters the next stripes until one is not free; true when the access holds all stripes that
    /// it needs.
    pub(in crate::device) fn poll(&self, access: &mut Access) -> bool {
        while access.wanted != 0 {
            let index = access.wanted.trailing_zeros();
            let stripe = &self.stripes[index as usize];
            let ticket =
                *access.ticket.get_or_insert_with(|| stripe.next.fetch_add(1, Ordering::Relaxed));
            if access.is_exclusive {
                if stripe.left.load(Ordering::Acquire) != ticket {
                    return false;
                }
            } else {
                if stripe.turn.load(Ordering::Acquire) != ticket {
                    return false;
                }
                // No other thread changes `turn` while it equals this ticket, so no update is lost.
                stripe.turn.store(ticket.wrapping_add(1), Ordering::Release);
            }
            access.ticket = None;
            access.wanted &= access.wanted - 1;
            access.held |= 1 << index;
        }
        true
    }

    /// Enters all stripes without waiting, or none: `None` if another access must enter a stripe
    /// first. The call then leaves no ticket.
    pub(in crate::device) fn try_shared(
        &self,
        file: u16,
        offset: u64,
        length: u64,
    ) -> Option<Held> {
        let mut access = Access::shared(file, offset, length);
        while access.wanted != 0 {
            let index = access.wanted.trailing_zeros();
            let stripe = &self.stripes[index as usize];
            let turn = stripe.turn.load(Ordering::Acquire);
            let following = turn.wrapping_add(1);
            // A ticket is drawn only if it equals `turn`, so the stripe can be entered at once;
            // this thread then increments `turn`.
            if stripe
                .next
                .compare_exchange(turn, following, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
            {
                access.wanted = 0;
                self.leave(&mut access);
                return None;
            }
            stripe.turn.store(following, Ordering::Release);
            access.wanted &= access.wanted - 1;
            access.held |= 1 << index;
        }
        Some(access.into_held())
    }

    /// Leaves the stripes that the access holds.
    pub(in crate::device) fn leave(&self, access: &mut Access) {
        debug_assert!(access.wanted == 0, "an access that waits has a ticket, which it must use");
        while access.held != 0 {
            let stripe = &self.stripes[access.held.trailing_zeros() as usize];
            access.held &= access.held - 1;
            if access.is_exclusive {
                // All earlier accesses have left, so `turn` equals this access's ticket.
                stripe.turn.fetch_add(1, Ordering::AcqRel);
            }
            stripe.left.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Leaves the stripes that a write of whole blocks holds.
    #[inline]
    pub(in crate::device) fn leave_shared(&self, held: Held) {
        if held != Held::NONE {
            self.leave(&mut Access { held: held.0, ..Access::NONE });
        }
    }
}

/// The stripes of a range, one bit each.
fn stripes_of(file: u16, offset: u64, length: u64) -> u64 {
    let (first, last) = (offset >> REGION_SHIFT, (offset + length.max(1) - 1) >> REGION_SHIFT);
    let count = last - first + 1;
    let bits = if count >= u64::from(STRIPES) { u64::MAX } else { (1 << count) - 1 };
    // Files start at different stripes, since their first regions are likely the busiest.
    let start = first.wrapping_add(u64::from(file) * 11) % u64::from(STRIPES);
    bits.rotate_left(start as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const MIB: u64 = 1 << REGION_SHIFT;

    #[test]
    fn ranges_meet_in_the_stripes_they_have_in_common() {
        assert_eq!(stripes_of(0, 0, MIB), 1);
        assert_eq!(stripes_of(0, MIB - 1, 2), 3);
        assert_eq!(stripes_of(0, 63 * MIB, 2 * MIB), 1 << 63 | 1);
        assert_eq!(stripes_of(0, 5, 64 * MIB), u64::MAX);
        assert_eq!(stripes_of(9, 5, 1 << 40), u64::MAX);
        assert_eq!(stripes_of(1, 0, 1), 1 << 11);
    }

    #[test]
    fn shared_together_exclusive_alone_and_turns_in_order() {
        let guard = Guard::default();
        let mut readers = [Access::shared(0, 0, MIB), Access::shared(0, 0, 3 * MIB)];
        assert!(readers.iter_mut().all(|access| guard.poll(access)));
        let mut cycle = Access::exclusive(0, 512, 512);
        let mut late = Access::shared(0, 0, 512);
        assert!(!guard.poll(&mut cycle));
        assert!(!guard.poll(&mut late), "who comes after a waiting cycle does not overtake it");
        assert!(guard.poll(&mut Access::shared(0, 8 * MIB, MIB)), "other stripes are free");
        guard.leave(&mut readers[1]);
        assert!(!guard.poll(&mut cycle));
        guard.leave(&mut readers[0]);
        assert!(!guard.poll(&mut late));
        assert!(guard.poll(&mut cycle));
        assert!(!guard.poll(&mut late));
        let mut second = Access::exclusive(0, 0, 512);
        assert!(!guard.poll(&mut second));
        guard.leave(&mut cycle);
        assert!(!guard.poll(&mut second));
        assert!(guard.poll(&mut late));
        guard.leave(&mut late);
        assert!(guard.poll(&mut second));
        guard.leave(&mut second);
    }

    #[test]
    fn who_does_not_wait_enters_everywhere_or_nowhere() {
        let guard = Guard::default();
        let both = guard.try_shared(0, 0, 2 * MIB).unwrap();
        let mut cycle = Access::exclusive(0, MIB, 512);
        assert!(!guard.poll(&mut cycle));
        assert_eq!(guard.try_shared(0, 0, 2 * MIB), None, "a cycle waits at the second stripe");
        guard.leave_shared(both);
        assert!(guard.poll(&mut cycle));
        assert_eq!(guard.try_shared(0, MIB, 512), None);
        let mut alone = Access::exclusive(0, 0, 512);
        assert!(guard.poll(&mut alone), "the first was given back");
        guard.leave(&mut alone);
        guard.leave(&mut cycle);
        guard.leave_shared(guard.try_shared(0, 0, 2 * MIB).unwrap());
    }

    #[test]
    fn counters_may_wrap() {
        let guard = Guard::default();
        for stripe in &guard.stripes {
            stripe.next.store(u32::MAX - 1, Ordering::Relaxed);
            stripe.turn.store(u32::MAX - 1, Ordering::Relaxed);
            stripe.left.store(u32::MAX - 1, Ordering::Relaxed);
        }
        for round in 0..6 {
            let exclusive = Access::exclusive(0, 0, 512);
            let mut access =
                if round % 2 == 0 { exclusive } else { Access::shared(0, 0, 100 * MIB) };
            assert!(guard.poll(&mut access));
            guard.leave(&mut access);
        }
    }

    /// Threads increment a counter by a separate read and write. Exclusive accesses must lose no
    /// increment, and shared accesses must never see an unfinished cycle.
    #[test]
    fn threads_exclude_each_other() {
        const ROUNDS: u64 = 4000;
        let guard = Guard::default();
        let counters: [AtomicU64; 2] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (guard, counters) = (&guard, &counters);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let is_cycle = (round + thread) % 3 == 0;
                        let wide = Access::shared(0, 60 * MIB, 10 * MIB);
                        let mut access =
                            if is_cycle { Access::exclusive(0, 64 * MIB, 512) } else { wide };
                        let without_waiting = !is_cycle && round % 2 == 0;
                        let held = without_waiting
                            .then(|| guard.try_shared(0, 60 * MIB, 10 * MIB))
                            .flatten();
                        while held.is_none() && !guard.poll(&mut access) {
                            std::thread::yield_now();
                        }
                        let seen =
                            counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
                        assert_eq!(seen[0], seen[1]);
                        if is_cycle {
                            counters[0].store(seen[0] + 1, Ordering::Relaxed);
                            std::hint::spin_loop();
                            counters[1].store(seen[1] + 1, Ordering::Relaxed);
                        }
                        match held {
                            Some(held) => guard.leave_shared(held),
                            None => guard.leave(&mut access),
                        }
                    }
                });
            }
        });
        let cycles: u64 = (0..4)
            .map(|thread| (0..ROUNDS).filter(|round| (round + thread) % 3 == 0).count() as u64)
            .sum();
        assert_eq!(counters[0].load(Ordering::Relaxed), cycles);
    }
}
