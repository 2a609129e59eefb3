//! A T that follows the device, where none is given.
//!
//! **Problem.** T lets ports work without asking each other. What it has to be is a matter of time:
//! how long a port takes to hear that virtual time has moved, which is a wake-up, and in that time
//! virtual time moves as fast as the device serves. The paper finds T once for each device (Section
//! 3.4), 45 KiB at 2 GB/s and 64 KiB at 4 GB/s: 16 to 22 us of what the device does, on machines
//! that wake a thread in a few microseconds. The same bytes are half a millisecond of a disk, where
//! they cost nothing, and one microsecond of memory, where ports then stop for each other all the
//! time. **Model.** The paper chooses the smallest T that causes no significant contention.
//! Contention is that ports stop because they are ahead ([`MANY`] times a second costs a port up to
//! a hundredth of its time): once in [`PERIOD_NS`] T is doubled if one port did so more often, and
//! otherwise goes back an eighth of the way to what was configured. It is the port that stopped
//! most that counts: all ports together stop the more often the more there are, and cost each other
//! no more for it, and most ports of many may be idle. **Bound.** T never becomes more than what
//! virtual time moves in [`AHEAD_NS`]. That moves by the share of a flow of the reference weight,
//! so that all flows together are ahead by what the device serves in [`AHEAD_NS`], however many
//! they are. A device that is slow enough for T as configured to last that long never sees another
//! one.
//!
//! **Late ports.** A thread that shares its CPU with other programs comes when they let it, which
//! takes a hundred times as long as a wake-up. While all wait for it nothing moves, the bound
//! neither, and a device that could do millions of requests a second does thousands. What counts is
//! how long ports that virtual time let go did not come, while the device had room. Time in which
//! several were late counts once ([`Late`]), so what all ports count together is never more than
//! the time that passed, however many they are. Where it is more than half of that the bound is
//! [`LATEST_NS`]: T doubles until it is not, and stays while it is more than an eighth. For less
//! than that fairness is not given up: a tenant with a short queue has nothing left to send while
//! the others make up for what they are behind.
//!
//! **What it means for fairness.** Theorems 1 and 2 hold in every interval with the largest T that
//! was in force in it. A flow may be ahead by what it is due in [`AHEAD_NS`]: over a second, that
//! is one part in 2,500; where ports are late, at most one part in 50.

use alloc::boxed::Box;

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::vtime::VTime;
use crate::structures::allocation::boxed;
use crate::structures::reference::ReferenceWeight;

/// How often T is looked at, in nanoseconds.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// How far flows may be ahead, in nanoseconds of virtual time's movement: what two wake-ups take in
/// a virtual machine.
const AHEAD_NS: u64 = 400_000;
/// The same where ports are late.
const LATEST_NS: u64 = 20_000_000;
/// How often a second a port may stop because it is ahead: what it and its waker lose by it is some
/// microseconds each, and in a virtual machine, where a wake-up takes a hundred, some fifty.
const MANY: u64 = 200;
/// From which part of the time on ports are late, and until which they stay so.
const LATE: u64 = 2;
const NOT_LATE: u64 = 8;
/// What follows a T of 0, in bytes at the reference weight.
const FIRST: u64 = 4 << 10;
/// The largest T that is set, in bytes at the reference weight.
const MOST: u64 = 8 << 20;

/// What was counted when T was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) at_ns: u64,
    pub(super) now: VTime,
    /// For how long ports that virtual time had let go had not come, and found a slot free then.
    pub(super) late_ns: u64,
}

/// Until when it has been counted that ports are late.
pub(super) struct Late<P: Platform> {
    counted_ns: P::U64,
}

impl<P: Platform> Late<P> {
    pub(super) fn new() -> Self {
        Late { counted_ns: P::U64::new(0) }
    }

    /// A port that was free to go since `free_ns` has come now. Gives the part of the time in
    /// between that no port has counted: what is after the latest arrival of a late port. Of two
    /// ports that come at once one counts the time, and the other nothing. The word is a count and
    /// publishes no other data, so it is accessed with Relaxed.
    pub(super) fn since(&self, free_ns: u64, now_ns: u64) -> u64 {
        let counted_ns = self.counted_ns.load(Ordering::Relaxed);
        let late_ns = now_ns.saturating_sub(free_ns.max(counted_ns));
        let order = Ordering::Relaxed;
        let is_mine = late_ns > 0
            && self.counted_ns.compare_exchange(counted_ns, now_ns, order, order).is_ok();
        if is_mine { late_ns } else { 0 }
    }
}

/// The T in force, and what it follows.
#[derive(Debug)]
pub(super) struct Follow {
    least: u64,
    threshold: u64,
    last: Option<Count>,
    /// How often each port had stopped because it was ahead.
    stops: Box<[u64]>,
}

impl Follow {
    /// From this T on, which it never falls below.
    pub(super) fn new(least: u64, ports: usize) -> Follow {
        let stops = boxed(ports, |_| 0);
        Follow { least, threshold: least, last: None, stops }
    }

    /// When to look next.
    pub(super) fn deadline_ns(&self) -> u64 {
        // The first look only notes what it finds, so it is due at once.
        self.last.map_or(0, |last| last.at_ns.saturating_add(PERIOD_NS))
    }

    /// Looks, with how often each port has stopped because it was ahead; gives the new T in bytes
    /// if it is another.
    pub(super) fn look(
        &mut self,
        count: Count,
        stops: impl Iterator<Item = u64>,
        reference: ReferenceWeight,
    ) -> Option<u64> {
        // Counts are noted also where the look ends early, so that the next one sees one period
        // only.
        let each = self.stops.iter_mut().zip(stops);
        let stops = each
            .map(|(last, stops)| stops.wrapping_sub(core::mem::replace(last, stops)))
            .max()
            .unwrap_or(0);
        let last = self.last.replace(count)?;
        let passed_ns = count.at_ns.saturating_sub(last.at_ns).max(1);
        // Nothing is known of a device that is not used.
        let moved = u64::try_from(count.now.since(last.now)).ok().filter(|&moved| moved > 0)?;
        let moved = reference.service(moved);
        let late_ns = count.late_ns.wrapping_sub(last.late_ns);
        // A T of 0 could not be doubled, hence `FIRST`; and T as configured is never undercut.
        let within =
            |ns: u64| (moved.saturating_mul(ns) / passed_ns).clamp(FIRST, MOST).max(self.least);
        let (near, far) = (within(AHEAD_NS), within(LATEST_NS));
        let before = self.threshold;
        let is_late = late_ns > passed_ns / LATE;
        // `near` is never above `far`, so `clamp` does not panic.
        let most = match late_ns {
            _ if is_late => far,
            // T was raised for late ports: if it fell as soon as they are less late, it would
            // swing.
            _ if late_ns > passed_ns / NOT_LATE => before.clamp(near, far),
            _ => near,
        };
        self.threshold = if is_late || stops.saturating_mul(1_000_000_000) / passed_ns > MANY {
            before.saturating_mul(2).max(FIRST).min(most)
        } else if before > near {
            // The device is slower, or ports are in time again: T falls to the bound at once.
            before.min(most)
        } else {
            // Rounded up, so that it arrives.
            before - (before - self.least).div_ceil(8)
        };
        (self.threshold != before).then_some(self.threshold)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::Native;
    use crate::contract::flow::Weight;

    const LEAST: u64 = 45 << 10;

    /// Looks after another period in which this happened on each port, and ports came at once;
    /// gives T.
    fn after(follow: &mut Follow, bytes_per_s: u64, stops_per_s: u64) -> u64 {
        after_late(follow, bytes_per_s, stops_per_s, 0)
    }

    /// The same where ports came so late each time.
    fn after_late(follow: &mut Follow, bytes_per_s: u64, stops_per_s: u64, late_ns: u64) -> u64 {
        let stops = stops_per_s / (1_000_000_000 / PERIOD_NS);
        let last = follow.last.expect("it has looked once");
        let count = Count {
            at_ns: last.at_ns + PERIOD_NS,
            now: last.now.plus(bytes_per_s / 1_000_000 * (PERIOD_NS / 1_000)),
            late_ns: last.late_ns.wrapping_add(stops * late_ns),
        };
        let each: Vec<u64> = follow.stops.iter().map(|last| last.wrapping_add(stops)).collect();
        follow.look(count, each.into_iter(), ReferenceWeight::default());
        follow.threshold
    }

    const ALMOST: u64 = u64::MAX - 10;

    fn follow() -> Follow {
        follow_on(2)
    }

    fn follow_on(ports: usize) -> Follow {
        let mut follow = Follow::new(LEAST, ports);
        let first = Count { at_ns: 5, now: VTime::ZERO.minus(1_000), late_ns: ALMOST };
        let stops = core::iter::repeat_n(ALMOST, ports);
        assert_eq!(follow.look(first, stops, ReferenceWeight::default()), None);
        assert_eq!(follow.deadline_ns(), 5 + PERIOD_NS);
        follow
    }

    #[test]
    fn it_grows_with_a_device_as_fast_as_memory_and_not_with_a_disk() {
        for (bytes_per_s, most) in [
            (80_000_000, LEAST),
            (500_000_000, 200_000),
            (5_000_000_000, 2_000_000),
            (u64::MAX >> 8, MOST),
        ] {
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
        let mut follow = Follow::new(0, 1);
        let first = Count { at_ns: 0, now: VTime::ZERO, late_ns: 0 };
        follow.look(first, [0].into_iter(), ReferenceWeight::default());
        assert_eq!(after(&mut follow, 20_000_000_000, 100_000), 4096);
    }

    /// Two ports in turns, each of which comes late, before a device that could do far more: each
    /// gives it T, and then waits.
    #[test]
    fn late_ports_do_not_keep_the_device_waiting() {
        const CAN: u64 = 20_000_000_000;
        for late_ns in [50_000, 500_000, 4_000_000] {
            let mut follow = follow();
            let seen: Vec<u64> = (0..40)
                .map(|_| {
                    let turn_ns = late_ns + follow.threshold.saturating_mul(1_000_000_000) / CAN;
                    let turns_per_s = 1_000_000_000 / turn_ns;
                    let bytes_per_s = follow.threshold.saturating_mul(turns_per_s);
                    after_late(&mut follow, bytes_per_s, turns_per_s, late_ns)
                })
                .collect();
            // Half of the device's time, or the most there is; and there it stays.
            let within = |ns: u64| (CAN / 1_000_000_000 * ns).min(MOST);
            let enough = within(late_ns)..=within(2 * late_ns).max(within(AHEAD_NS));
            assert!(seen[20..].iter().all(|t| enough.contains(t)), "{late_ns}: {seen:?}");
        }
    }

    #[test]
    fn a_port_that_is_late_now_and_then_costs_no_fairness() {
        let mut follow = follow();
        (0..20).for_each(|_| _ = after_late(&mut follow, 50_000_000, 500, 500_000));
        assert_eq!(follow.threshold, LEAST, "a quarter of the time, and 0.4 ms are 20 KB");
    }

    /// Each of them stops as often as one may, or a little more often.
    #[test]
    fn as_many_ports_as_there_are_stop_for_one_reason() {
        for ports in [1, 2, 16, 64] {
            let mut follow = follow_on(ports);
            let few = (0..10).find(|_| after(&mut follow, 20_000_000_000, MANY) > LEAST);
            assert_eq!(few, None, "{ports} ports");
            assert_eq!(after(&mut follow, 20_000_000_000, MANY + 10), 2 * LEAST, "{ports} ports");
        }
    }

    /// One port stops too often, and all others are idle.
    #[test]
    fn idle_ports_hide_no_contention() {
        for ports in [1, 2, 16, 64] {
            let mut follow = follow_on(ports);
            let last = follow.last.expect("it has looked once");
            let count = Count { at_ns: 5 + PERIOD_NS, now: last.now.plus(1 << 30), ..last };
            let stops = (0..ports).map(|port| ALMOST.wrapping_add(if port == 0 { 100 } else { 0 }));
            let changed = follow.look(count, stops, ReferenceWeight::default());
            assert_eq!(changed, Some(2 * LEAST), "{ports} ports");
        }
    }

    /// At any weight T follows the service, not the units that it is counted in.
    #[test]
    fn units_are_of_the_reference_weight() {
        for weight in [1, 100, 10_000] {
            let reference = ReferenceWeight::of(Weight::new(weight));
            let mut follow = Follow::new(LEAST, 1);
            for at in 0..10 {
                let now = VTime::ZERO.plus(reference.units(at * 50_000_000));
                let count = Count { at_ns: at * PERIOD_NS, now, late_ns: 0 };
                follow.look(count, [at * 1_000].into_iter(), reference);
            }
            assert!(follow.threshold.abs_diff(200_000) <= 400, "{weight}: {}", follow.threshold);
        }
    }

    /// All are let go at the same time and come one after the other, or come in turns, each when
    /// the one before it has come: what counts is the time for which none had come.
    #[test]
    fn time_is_counted_once_however_many_are_late() {
        for ports in [1, 2, 16, 64] {
            let (together, turns) = (Late::<Native>::new(), Late::<Native>::new());
            let together: u64 = (1..=ports).map(|port| together.since(50, 100 + port)).sum();
            assert_eq!(together, 50 + ports, "{ports} ports");
            let turns: u64 = (1..=ports).map(|port| turns.since(50 * port, 50 * port + 50)).sum();
            assert_eq!(turns, 50 * ports, "{ports} ports");
        }
    }
}
