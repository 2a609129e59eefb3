//! A T that follows the device, for who gives none.
//!
//! **Problem.** T lets ports work without asking each other. What it has to be is a matter of time: how long a port takes to hear
//! that virtual time has moved, which is a wake-up, and in that time virtual time moves as fast as the device serves. The paper
//! finds T once for each device (Section 3.4), 45 KiB at 2 GB/s and 64 KiB at 4 GB/s: 16 to 22 us of what the device does, on
//! machines that wake a thread in a few microseconds. The same bytes are half a millisecond of a disk, where they cost nothing, and one
//! microsecond of memory, where ports then stop for each other all the time.
//! **Model.** Once in [`PERIOD_NS`] T is set to what virtual time has moved in [`AHEAD_NS`], and never below the T that was configured.
//! Virtual time moves by the share of a flow of weight 100, so that all flows together are ahead by what the device
//! serves in [`AHEAD_NS`], however many they are.
//! **Only where ports stop each other.** If ports stopped for want of a slot more often than for being ahead, the device is what
//! holds them up, and a larger T would gain nothing and cost those who send one request at a time: T goes back to what was
//! configured, a quarter of the way each time.
//!
//! **What it means for fairness.** Theorems 1 and 2 hold in every interval with the largest T that was in force in it. A flow may
//! be ahead by what it is due in [`AHEAD_NS`]; over a second, that is one part in five thousand.

use crate::config::MAX_THRESHOLD;
use crate::vtime::VTime;

/// How often T is looked at, in nanoseconds.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// How far flows may be ahead, in nanoseconds of virtual time's movement: a slow wake-up, and once more.
const AHEAD_NS: u64 = 200_000;
/// The largest T that is set, in bytes.
const MOST: u64 = 8 << 20;

/// What was counted when T was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) at_ns: u64,
    pub(super) now: VTime,
    pub(super) throttles: u64,
    pub(super) blocks: u64,
}

/// The T in force, and what it follows.
#[derive(Debug)]
pub(super) struct Follow {
    least: u64,
    threshold: u64,
    last: Option<Count>,
}

impl Follow {
    /// From this T on, which it never falls below.
    pub(super) fn new(least: u64) -> Follow {
        Follow { least, threshold: least, last: None }
    }

    /// When to look next.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.last.map_or(0, |last| last.at_ns.saturating_add(PERIOD_NS))
    }

    /// Looks; gives the new T in bytes if it is another.
    pub(super) fn look(&mut self, count: Count) -> Option<u64> {
        let last = self.last.replace(count)?;
        let throttles = count.throttles.wrapping_sub(last.throttles);
        let blocks = count.blocks.wrapping_sub(last.blocks);
        let wanted = if throttles > blocks { self.wanted(&last, &count) } else { self.least };
        let before = self.threshold;
        if wanted > before {
            self.threshold = wanted;
        } else if throttles > 0 || blocks > 0 {
            // Rounded up, so that it arrives.
            self.threshold -= (before - wanted).div_ceil(4);
        }
        (self.threshold != before).then_some(self.threshold)
    }

    /// What virtual time has moved in [`AHEAD_NS`].
    fn wanted(&self, last: &Count, count: &Count) -> u64 {
        let moved = u64::try_from(count.now.since(last.now)).unwrap_or(0);
        let passed_ns = count.at_ns.saturating_sub(last.at_ns).max(1);
        let ahead = moved.saturating_mul(AHEAD_NS) / passed_ns;
        ahead.min(MOST.min(MAX_THRESHOLD)).max(self.least)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEAST: u64 = 45 << 10;

    /// Looks after another period in which this happened; gives T.
    fn after(follow: &mut Follow, bytes_per_s: u64, throttles: u64, blocks: u64) -> u64 {
        let last = follow.last.expect("it has looked once");
        follow.look(Count {
            at_ns: last.at_ns + PERIOD_NS,
            now: last.now.plus(bytes_per_s / 1_000_000 * (PERIOD_NS / 1_000)),
            throttles: last.throttles.wrapping_add(throttles),
            blocks: last.blocks.wrapping_add(blocks),
        });
        follow.threshold
    }

    fn follow() -> Follow {
        let mut follow = Follow::new(LEAST);
        let first = Count { at_ns: 5, now: VTime::ZERO.minus(1_000), throttles: u64::MAX - 10, blocks: 0 };
        assert_eq!(follow.look(first), None);
        assert_eq!(follow.deadline_ns(), 5 + PERIOD_NS);
        follow
    }

    #[test]
    fn it_grows_with_a_device_as_fast_as_memory_and_not_with_a_disk() {
        let mut follow = follow();
        assert_eq!(after(&mut follow, 80_000_000, 1_000, 10), LEAST);
        assert_eq!(after(&mut follow, 5_000_000_000, 100_000, 10), 1_000_000);
        assert_eq!(after(&mut follow, 20_000_000_000, 100_000, 10), 4_000_000);
        assert_eq!(after(&mut follow, 80_000_000_000, 100_000, 10), MOST);
        assert_eq!(after(&mut follow, u64::MAX / 1_000, 100_000, 10), MOST);
    }

    #[test]
    fn it_goes_back_where_the_device_is_the_limit_and_stays_where_nothing_happens() {
        let mut follow = follow();
        let large = after(&mut follow, 20_000_000_000, 100_000, 10);
        assert_eq!(after(&mut follow, 20_000_000_000, 0, 0), large);
        let times = (1..).find(|_| after(&mut follow, 20_000_000_000, 10, 100_000) == LEAST);
        assert!(times.is_some_and(|times| times < 100), "{times:?}");
    }
}
