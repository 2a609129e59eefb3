//! The T that follows the device, if none is configured.
//!
//! **Problem.** T lets ports work without synchronizing. The T that is needed depends on time: a
//! port learns by a wake-up that virtual time has moved, and during the wake-up virtual time moves
//! as fast as the device serves. The paper finds T once for each device (Section 3.4), 45 KiB at 2
//! GB/s and 64 KiB at 4 GB/s: 16 to 22 us of the device's service, on machines that wake a thread
//! in a few microseconds. The same bytes are half a millisecond of a disk, where they cost nothing,
//! and one microsecond of memory, where ports are then throttled all the time. **Model.** The paper
//! chooses the smallest T that causes no significant contention. Contention means that ports are
//! throttled ([`MANY`] throttles in [`PERIOD_NS`] cost a port up to a hundredth of its time). Once
//! in [`PERIOD_NS`] T doubles if one port was throttled more often; otherwise T goes back an eighth
//! of the way to the configured value. Only the most throttled port counts: the sum over ports
//! grows with their number although no port loses more, and of many ports most may be idle.
//! **Bound.** T never exceeds the distance that virtual time moves in [`AHEAD_NS`]. Virtual time
//! moves by the share of a flow of the reference weight, so all flows together are ahead by the
//! service of the device in [`AHEAD_NS`], for any number of flows. On a device so slow that the
//! configured T lasts that long, T stays as configured.
//!
//! **Late ports.** A thread that shares its CPU with other programs runs when they yield, which
//! takes a hundred times as long as a wake-up. While all ports wait for it, virtual time stands
//! still and so does the bound, and a device that could do millions of requests a second does
//! thousands. The measure is the *late time*: the time for which ports that virtual time had
//! released did not run, while the device had a free slot. Time in which several ports were late
//! counts once ([`Late`]), so the late time of all ports together never exceeds the time that
//! passed. While it is more than half of that time, the bound is [`LATEST_NS`] and T doubles; T
//! stays while it is more than an eighth. A smaller late time does not justify a loss of fairness:
//! a tenant with a short queue has nothing left to send while the others catch up.
//!
//! **Fairness.** Theorems 1 and 2 hold in every interval with the largest T that was in force in
//! it. A flow may be ahead by the service that it is due in [`AHEAD_NS`]: over a second, one part
//! in 2,500; with late ports, at most one part in 50.

use alloc::boxed::Box;

use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::vtime::{ReferenceWeight, VTime};

/// Period of the adjustment of T, in nanoseconds: ten of the shortest windows of the search for D,
/// which T is not to disturb; 50 ms to 1 s.
pub(super) const PERIOD_NS: u64 = 100_000_000;
/// The most that flows may be ahead, in nanoseconds of the movement of virtual time: the time of
/// two wake-ups in a virtual machine.
const AHEAD_NS: u64 = 400_000;
/// The most that flows may be ahead while ports are late, in nanoseconds: some turns of a CPU that
/// other programs share, of 3 to 10 ms.
const LATEST_NS: u64 = 20_000_000;
/// Throttles in a period that a port may have: each costs the port and its waker some microseconds,
/// and in a virtual machine, where a wake-up takes a hundred, some fifty.
const MANY: u64 = 20;
/// Ports are late if their late time exceeds half of the period; a raised T stays while it exceeds
/// one part in this. T goes back by one part in this of the way to the configured one. 4 to 16.
const EIGHTH: u64 = 8;
/// The first T above a T of 0, in bytes at the reference weight: a small request.
const FIRST: u64 = 1 << 12;
/// The largest T that the adjustment sets, in bytes at the reference weight (8 MiB): the service of
/// 0.4 ms of memory, at 20 GB/s.
const MOST: u64 = 1 << 23;

/// The counts at an adjustment of T.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) at_ns: u64,
    pub(super) now: VTime,
    /// Late time of all ports so far, in nanoseconds: from the release of a port by virtual time
    /// until it ran, if it then found a slot free.
    pub(super) late_ns: u64,
}

/// The time up to which late time has been counted.
pub(super) struct Late<P: Platform> {
    counted_ns: P::U64,
}

impl<P: Platform> Late<P> {
    pub(super) fn new() -> Self {
        Late { counted_ns: P::U64::new(0) }
    }

    /// A port that was released at `free_ns` runs now. Returns the part of the time in between that
    /// no port has counted: the time after the last late port ran. If two ports run at once, one of
    /// them counts the time and the other counts nothing. The word is a count and publishes no
    /// other data, so it is accessed with Relaxed.
    pub(super) fn since(&self, free_ns: u64, now_ns: u64) -> u64 {
        let counted_ns = self.counted_ns.load(Ordering::Relaxed);
        let late_ns = now_ns.saturating_sub(free_ns.max(counted_ns));
        let order = Ordering::Relaxed;
        let is_mine = late_ns > 0
            && self.counted_ns.compare_exchange(counted_ns, now_ns, order, order).is_ok();
        if is_mine { late_ns } else { 0 }
    }
}

/// The T in force, and the state of its adjustment.
#[derive(Debug)]
pub(super) struct Follow {
    least: u64,
    threshold: u64,
    last: Option<Count>,
    /// Throttles of each port at the last adjustment, wrapping.
    stops: Box<[u64]>,
}

impl Follow {
    /// Begins with the T `least`, in bytes; T never falls below it.
    pub(super) fn new(least: u64, ports: usize) -> Follow {
        let stops = boxed(ports, |_| 0);
        Follow { least, threshold: least, last: None, stops }
    }

    /// Time of the next adjustment, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        // The first adjustment only records the counts, so it is due at once.
        self.last.map_or(0, |last| last.at_ns.saturating_add(PERIOD_NS))
    }

    /// Adjusts T. `stops` gives the throttles of each port so far. Returns the new T in bytes, if
    /// it has changed.
    pub(super) fn look(
        &mut self,
        count: Count,
        stops: impl Iterator<Item = u64>,
        reference: ReferenceWeight,
    ) -> Option<u64> {
        // Counts are recorded even if this adjustment ends early, so that the next one covers one
        // period only.
        let each = self.stops.iter_mut().zip(stops);
        let stops = each
            .map(|(last, stops)| stops.wrapping_sub(core::mem::replace(last, stops)))
            .max()
            .unwrap_or(0);
        let last = self.last.replace(count)?;
        let passed_ns = count.at_ns.saturating_sub(last.at_ns).max(1);
        // An idle device gives no measurement.
        let moved = u64::try_from(count.now.since(last.now)).ok().filter(|&moved| moved > 0)?;
        let moved = reference.service(moved);
        let late_ns = count.late_ns.wrapping_sub(last.late_ns);
        // A T of 0 could not be doubled, hence `FIRST`; T never falls below the configured value.
        let within =
            |ns: u64| (moved.saturating_mul(ns) / passed_ns).clamp(FIRST, MOST).max(self.least);
        let (near, far) = (within(AHEAD_NS), within(LATEST_NS));
        let before = self.threshold;
        let is_late = late_ns > passed_ns / 2;
        // `near` is never above `far`, so `clamp` does not panic.
        let most = match late_ns {
            _ if is_late => far,
            // T was raised for late ports; it would oscillate if it fell as soon as they are less
            // late.
            _ if late_ns > passed_ns / EIGHTH => before.clamp(near, far),
            _ => near,
        };
        self.threshold = if is_late || stops.saturating_mul(PERIOD_NS) / passed_ns > MANY {
            before.saturating_mul(2).max(FIRST).min(most)
        } else if before > near {
            // The device is slower, or ports are on time again: T falls to the bound at once.
            before.min(most)
        } else {
            // Rounded up, so that T reaches `least`.
            before - (before - self.least).div_ceil(EIGHTH)
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

    /// Adjusts T after another period with these rates, on each port, and without late ports;
    /// returns T.
    fn after(follow: &mut Follow, bytes_per_s: u64, stops_per_s: u64) -> u64 {
        after_late(follow, bytes_per_s, stops_per_s, 0)
    }

    /// The same with ports that are late by `late_ns` after each throttle.
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
        // Ports that are throttled often while T is below 1 MB.
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

    /// Two ports take turns on a device that could do far more: each runs late, sends T bytes, and
    /// then waits.
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
            // T lets the device work for half of the time, or reaches `MOST`, and stays there.
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

    /// Each port is throttled as often as a port may be, or a little more often.
    #[test]
    fn as_many_ports_as_there_are_stop_for_one_reason() {
        for ports in [1, 2, 16, 64] {
            let mut follow = follow_on(ports);
            let many = MANY * (1_000_000_000 / PERIOD_NS);
            let few = (0..10).find(|_| after(&mut follow, 20_000_000_000, many) > LEAST);
            assert_eq!(few, None, "{ports} ports");
            assert_eq!(after(&mut follow, 20_000_000_000, many + 10), 2 * LEAST, "{ports} ports");
        }
    }

    /// One port is throttled too often, and all others are idle.
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

    /// At any weight T follows the service, not the units in which service is counted.
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

    /// All ports are released at the same time and run one after the other, or each is released
    /// when the previous one runs: only the time in which no port ran counts.
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
