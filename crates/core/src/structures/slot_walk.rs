//! A walk over all slots of a table, some in each tick, so that no tick takes long however many
//! flows there are.

use core::ops::Range;

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// The slots of one step: a step takes some microseconds.
const AT_ONCE: usize = 1024;
/// The pause between two steps of a walk, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;

/// The next step. Only one thread ticks at a time (the port's contract), so the words need no
/// order.
pub(crate) struct SlotWalk<P: Platform> {
    at: P::U64,
    next_ns: P::U64,
}

impl<P: Platform> SlotWalk<P> {
    /// The first walk is due.
    pub(crate) fn new() -> Self {
        SlotWalk { at: P::U64::new(0), next_ns: P::U64::new(0) }
    }

    /// The slots of the step that is due now, of `capacity` slots; none if none is due. The next
    /// walk begins `period_ns` after the end of this one.
    pub(crate) fn step(&self, now_ns: u64, capacity: usize, period_ns: u64) -> Range<usize> {
        if now_ns < self.next_ns.load(Ordering::Relaxed) {
            return 0..0;
        }
        let first = (self.at.load(Ordering::Relaxed) as usize).min(capacity);
        let end = first.saturating_add(AT_ONCE).min(capacity);
        let (at, pause_ns) = if end == capacity { (0, period_ns) } else { (end, PAUSE_NS) };
        self.at.store(at as u64, Ordering::Relaxed);
        self.next_ns.store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        first..end
    }

    /// The time of the next step, in nanoseconds.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::Relaxed)
    }

    /// Whether a walk is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.at.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;

    #[test]
    fn each_walk_visits_each_slot_once() {
        let walk = SlotWalk::<Native>::new();
        let mut now_ns = 0;
        for _ in 0..3 {
            let mut end = 0;
            while end < 2500 {
                let early = now_ns > 0 && !walk.step(now_ns - 1, 2500, 0).is_empty();
                assert!(!early, "it is not due");
                let slots = walk.step(now_ns, 2500, 900_000_000);
                assert!(slots.start == end && slots.len() <= AT_ONCE && !slots.is_empty());
                end = slots.end;
                assert_eq!(walk.is_under_way(), end < 2500);
                now_ns = walk.next_ns();
            }
        }
        assert!(SlotWalk::<Native>::new().step(0, 0, 1).is_empty());
    }
}
