//! A T that follows the device, for who gives none.
//!
//! **Problem.** T lets ports work without asking each other. What it has to be is a matter of time: how long a port takes to hear
//! that virtual time has moved, which is a wake-up, and in that time virtual time moves as fast as the device serves. The paper
//! finds T once for each device (Section 3.4), 45 KiB at 2 GB/s and 64 KiB at 4 GB/s: 16 to 22 us of what the device does, on
//! machines that wake a thread in a few microseconds. The same bytes are half a millisecond of a disk, where they cost nothing, and one
//! microsecond of memory, where ports then stop for each other all the time.
//! **Model.** The paper chooses the smallest T that causes no significant contention. Contention is that ports stop because they are
//! ahead ([`MANY`] times a second costs about a hundredth of the time): once in [`PERIOD_NS`] T is doubled if they
//! did so more often, and otherwise goes back an eighth of the way to what was configured.
//! **Bound.** T never becomes more than what virtual time moves in [`AHEAD_NS`]. That moves by the share of a flow of
//! weight 100, so that all flows together are ahead by what the device serves in [`AHEAD_NS`], however many they are. A device
//! that is slow enough for T as configured to last that long never sees another one.
//!
//! **What it means for fairness.** Theorems 1 and 2 hold in every interval with the largest T that was in force in it. A flow may
//! be ahead by what it is due in [`AHEAD_NS`]; over a second, that is one part in 2,500.

use crate::vtime::VTime;

/// How often T is looked at, in nanoseconds.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// How far flows may be ahead, in nanoseconds of virtual time's movement: what two wake-ups take in a virtual machine.
const AHEAD_NS: u64 = 400_000;
/// How often a second ports may stop because they are ahead: what they and their wakers lose by it is some microseconds each.
const MANY: u64 = 1_000;
/// What follows a T of 0, in bytes.
const FIRST: u64 = 4 << 10;
/// The largest T that is set, in bytes.
const MOST: u64 = 8 << 20;

/// What was counted when T was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) at_ns: u64,
    pub(super) now: VTime,
    pub(super) throttles: u64,
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
        let passed_ns = count.at_ns.saturating_sub(last.at_ns).max(1);
        // Nothing is known of a device that nobody uses.
        let moved = u64::try_from(count.now.since(last.now)).ok().filter(|&moved| moved > 0)?;
        let most = self.most(passed_ns, moved);
        let stops = count.throttles.wrapping_sub(last.throttles);
        let before = self.threshold;
        self.threshold = if stops.saturating_mul(1_000_000_000) / passed_ns > MANY {
            before.saturating_mul(2).max(FIRST).min(most)
        } else {
            // Rounded up, so that it arrives.
            before.min(most) - (before.min(most) - self.least).div_ceil(8)
        };
        (self.threshold != before).then_some(self.threshold)
    }

    /// What virtual time has moved in [`AHEAD_NS`].
    fn most(&self, passed_ns: u64, moved: u64) -> u64 {
        let ahead = moved.saturating_mul(AHEAD_NS) / passed_ns;
        ahead.clamp(FIRST, MOST).max(self.least)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const LEAST: u64 = 45 << 10;

    /// Looks after another period in which this happened; gives T.
    fn after(follow: &mut Follow, bytes_per_s: u64, stops_per_s: u64) -> u64 {
        let last = follow.last.expect("it has looked once");
        follow.look(Count {
            at_ns: last.at_ns + PERIOD_NS,
            now: last.now.plus(bytes_per_s / 1_000_000 * (PERIOD_NS / 1_000)),
            throttles: last.throttles.wrapping_add(stops_per_s / (1_000_000_000 / PERIOD_NS)),
        });
        follow.threshold
    }

    fn follow() -> Follow {
        let mut follow = Follow::new(LEAST);
        let first = Count { at_ns: 5, now: VTime::ZERO.minus(1_000), throttles: u64::MAX - 10 };
        assert_eq!(follow.look(first), None);
        assert_eq!(follow.deadline_ns(), 5 + PERIOD_NS);
        follow
    }

    #[test]
    fn it_grows_with_a_device_as_fast_as_memory_and_not_with_a_disk() {
        for (bytes_per_s, most) in
            [(80_000_000, LEAST), (500_000_000, 200_000), (5_000_000_000, 2_000_000), (u64::MAX >> 8, MOST)]
        {
            let mut follow = follow();
            (0..10).for_each(|_| _ = after(&mut follow, bytes_per_s, 100_000));
            assert_eq!(follow.threshold, most, "{bytes_per_s}");
        }
    }

    #[test]
    fn it_is_as_small_as_ports_can_do_with() {
        let mut follow = follow();
        // Ports that stop as long as T is below 1 MB.
        let mut seen: Vec<u64> = (0..200)
            .map(|_| {
                let stops_per_s = if follow.threshold < 1_000_000 { 50_000 } else { 10 };
                after(&mut follow, 20_000_000_000, stops_per_s)
            })
            .collect();
        let settled = seen.split_off(20);
        assert!(settled.iter().all(|t| (800_000..2_000_000).contains(t)), "{settled:?}");
        let gone = (0..200).find(|_| after(&mut follow, 20_000_000_000, 0) == LEAST);
        assert!(gone.is_some(), "{follow:?}");
    }

    /// The device has become slow, or is not used.
    #[test]
    fn it_never_lasts_longer_than_the_bound() {
        let mut follow = follow();
        (0..10).for_each(|_| _ = after(&mut follow, 20_000_000_000, 100_000));
        assert_eq!(after(&mut follow, 500_000_000, 100_000), 200_000);
        assert_eq!(after(&mut follow, 0, 0), 200_000);
        assert_eq!(after(&mut follow, 80_000_000, 0), LEAST);
    }

    #[test]
    fn a_t_of_nothing_grows_too() {
        let mut follow = Follow::new(0);
        follow.look(Count { at_ns: 0, now: VTime::ZERO, throttles: 0 });
        assert_eq!(after(&mut follow, 20_000_000_000, 100_000), 4096);
    }
}
