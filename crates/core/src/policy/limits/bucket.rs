//! A rate with a burst: a token bucket that all ports take from, kept as a time.
//!
//! **Model.** The word is the *theoretical arrival time* of the generic cell rate algorithm (ITU-T
//! I.371): the time at which the bucket will be full again. Taking an amount advances this time, or
//! the present if that is later, by the time that the rate needs for the amount. An amount may be
//! taken as long as the result is at most the burst's time ahead of the present. So a bucket is one
//! word, and nothing refills it.
//!
//! **Law.** Within any interval at most rate x interval + burst is taken, where a request larger
//! than the burst counts instead of the burst. If a request grows after it has taken its amount,
//! the growth becomes a debt: nothing more is taken until the rate has made up for it.
//!
//! **Bounds of loops.** A compare-and-swap is tried again only if another port has taken or
//! refunded in between.
//!
//! *Memory ordering.* The words guard no data; a port that reads an old value detects this in its
//! compare-and-swap. So all accesses are Relaxed.

use crate::contract::platform::{AtomicWord, Ordering, Platform};

/// Time is counted in 64ths of a nanosecond, so that the interval of millions of requests a second
/// is exact to a thousandth of a percent.
const FRACTION_BITS: u32 = 6;
/// Additional fractional bits of a step: at high rates a byte takes less than a 64th of a
/// nanosecond.
const STEP_BITS: u32 = 20;
const SECOND: u64 = 1_000_000_000 << FRACTION_BITS;

/// The most debt, in bursts, of requests that go regardless of the bucket.
const DEBT: u64 = 2;

/// A point in time or a length of it, in 64ths of a nanosecond. The value saturates when the clock
/// has run for nine years; caps and reservations are not counted from then on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Time(u64);

impl Time {
    pub(crate) fn of_ns(ns: u64) -> Time {
        Time(ns.min(u64::MAX >> FRACTION_BITS) << FRACTION_BITS)
    }

    /// In nanoseconds, rounded up so that it is never early.
    pub(crate) fn ns(self) -> u64 {
        self.0.div_ceil(1 << FRACTION_BITS)
    }
}

/// A bucket that all ports share.
pub(crate) struct Bucket<P: Platform> {
    full_at: P::U64,
    /// Time that the rate needs for one request or byte, in 2^-20 of a [`Time`].
    step: P::U64,
    /// Time that the rate needs for the burst.
    burst: P::U64,
}

impl<P: Platform> Bucket<P> {
    pub(crate) fn new() -> Self {
        let [full_at, step, burst] = core::array::from_fn(|_| P::U64::new(0));
        Bucket { full_at, step, burst }
    }

    /// Changes the rate and the burst, and fills the bucket.
    pub(crate) fn set(&self, per_second: u64, burst: u64) {
        self.set_rate(per_second, burst);
        self.full_at.store(0, Ordering::Relaxed);
    }

    /// Changes the rate and the burst; amounts that were taken stay taken.
    pub(crate) fn set_rate(&self, per_second: u64, burst: u64) {
        let step = (SECOND << STEP_BITS).div_ceil(per_second.max(1));
        self.step.store(step, Ordering::Relaxed);
        self.burst.store(lasts(step, burst).0, Ordering::Relaxed);
    }

    /// The time at which the bucket will be full again, in the unit of [`Time`]. For one rate and
    /// burst it represents the amount taken.
    pub(crate) fn taken(&self) -> u64 {
        self.full_at.load(Ordering::Relaxed)
    }

    /// Restores the value that [`taken`](Self::taken) gave for the same rate and burst.
    pub(crate) fn resume(&self, taken: u64) {
        self.full_at.store(taken, Ordering::Relaxed);
    }

    /// Time that its rate needs for `amount` requests or bytes.
    #[inline]
    pub(crate) fn cost(&self, amount: u64) -> Time {
        lasts(self.step.load(Ordering::Relaxed), amount)
    }

    /// The earliest time at which `cost` may be taken if nothing else is, and the word to store
    /// then.
    #[inline]
    fn earliest(&self, full_at: u64, now: Time, cost: Time) -> (Time, u64) {
        let after = full_at.max(now.0).saturating_add(cost.0);
        // A request larger than the burst may go when the bucket is full, because otherwise it
        // would wait for ever.
        let burst = self.burst.load(Ordering::Relaxed).max(cost.0);
        (Time(after.saturating_sub(burst)).max(now), after)
    }

    /// The earliest time at which `cost` may be taken if nothing else is.
    pub(crate) fn when(&self, now: Time, cost: Time) -> Time {
        self.earliest(self.full_at.load(Ordering::Relaxed), now, cost).0
    }

    /// Takes `cost` now, or gives the earliest time at which it may be taken.
    #[inline]
    pub(crate) fn take(&self, now: Time, cost: Time) -> Result<(), Time> {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let (when, after) = self.earliest(full_at, now, cost);
            if when > now {
                return Err(when);
            }
            let order = Ordering::Relaxed;
            match self.full_at.compare_exchange(full_at, after, order, order) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }

    /// Takes `cost` for a request that goes regardless of the bucket. The missing part becomes a
    /// debt of at most [`DEBT`] bursts. If the debt may grow by no more than an eighth of the
    /// request's cost, nothing is written, so that a flow far above this rate does not write the
    /// shared word for each request.
    #[inline]
    pub(crate) fn spend(&self, now: Time, cost: Time) {
        let burst = self.burst.load(Ordering::Relaxed).max(cost.0);
        let most = now.0.saturating_add(burst.saturating_mul(1 + DEBT));
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        while full_at < most.saturating_sub(cost.0 / 8) {
            let after = full_at.max(now.0).saturating_add(cost.0).min(most);
            let order = Ordering::Relaxed;
            match self.full_at.compare_exchange(full_at, after, order, order) {
                Ok(_) => return,
                Err(other) => full_at = other,
            }
        }
    }

    /// Whether the debt is more than a quarter of the burst.
    pub(crate) fn has_debt(&self, now: Time) -> bool {
        let burst = self.burst.load(Ordering::Relaxed);
        let empty = now.0.saturating_add(burst);
        self.full_at.load(Ordering::Relaxed) > empty.saturating_add(burst / 4)
    }

    /// Takes `cost` for the growth of a request that has taken its amount; the missing part is a
    /// debt.
    pub(crate) fn charge(&self, now: Time, cost: Time) {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        while let Err(other) = self.full_at.compare_exchange(
            full_at,
            full_at.max(now.0).saturating_add(cost.0),
            order,
            order,
        ) {
            full_at = other;
        }
    }

    /// Refunds `cost`, which was not used. (The bucket may have been [set](Self::set) meanwhile.)
    pub(crate) fn refund(&self, cost: Time) {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        while let Err(other) =
            self.full_at.compare_exchange(full_at, full_at.saturating_sub(cost.0), order, order)
        {
            full_at = other;
        }
    }
}

#[inline]
fn lasts(step: u64, amount: u64) -> Time {
    let time = (u128::from(step) * u128::from(amount)) >> STEP_BITS;
    Time(u64::try_from(time).unwrap_or(u64::MAX >> 2).min(u64::MAX >> 2))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn a_thousand_a_second_with_a_burst_of_a_hundred() {
        let bucket = Bucket::<Native>::new();
        bucket.set(1000, 100);
        let one = bucket.cost(1);
        let taken = |from_ms: u64, until_ms: u64| {
            let times = (from_ms * 10..until_ms * 10).map(|at| Time::of_ns(at * 100_000));
            times
                .map(|now| std::iter::from_fn(|| bucket.take(now, one).ok()).count())
                .sum::<usize>()
        };
        assert_eq!(taken(5000, 5001), 100, "the burst");
        assert_eq!(taken(5001, 6000), 999);
        assert_eq!(taken(6000, 6500), 500);
        assert_eq!(taken(9000, 10_000), 1099, "the burst again, and no more after a longer pause");
    }

    #[test]
    fn what_is_larger_than_the_burst_goes_from_a_full_bucket_and_is_waited_for() {
        let bucket = Bucket::<Native>::new();
        bucket.set(1 << 20, 4096);
        let (now, huge) = (Time::of_ns(7_000_000_000), bucket.cost(8 << 20));
        assert_eq!(bucket.take(now, huge), Ok(()));
        let page = bucket.cost(4096);
        let next = bucket.take(now, page).unwrap_err();
        assert_eq!(next.ns(), 15_000_000_000, "eight seconds' worth");
        assert_eq!(bucket.take(next, page), Ok(()));
        bucket.refund(page);
        assert_eq!(bucket.when(next, page), next);
    }

    /// Amounts taken regardless of the bucket leave a debt of some bursts at most.
    #[test]
    fn what_is_spent_is_owed_up_to_some_bursts() {
        let bucket = Bucket::<Native>::new();
        bucket.set(1000, 10);
        let (now, one) = (Time::of_ns(5_000_000_000), bucket.cost(1));
        (0..4).for_each(|_| bucket.spend(now, one));
        assert_eq!((0..9).take_while(|_| bucket.take(now, one).is_ok()).count(), 6);
        assert!(!bucket.has_debt(now));
        (0..100_000).for_each(|_| bucket.spend(now, one));
        assert_eq!(bucket.when(now, one).ns(), 5_021_000_000);
        assert!(bucket.has_debt(now) && !bucket.has_debt(Time::of_ns(5_018_000_000)));
    }

    proptest! {
        /// For any amounts at any times, retried at the returned time or not: over every interval
        /// at most rate x interval + burst is taken.
        #[test]
        fn over_every_interval_the_rate_and_the_burst(
            per_second in 1u64..1_000_000_000_000,
            burst in 0u64..1_000_000_000,
            asked in prop::collection::vec((1u64..2_000_000, 0u64..20_000_000, any::<bool>()), 1..120),
        ) {
            let bucket = Bucket::<Native>::new();
            bucket.set(per_second, burst);
            let mut now_ns = 1_000_000_000u64;
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (amount, later_ns, waits) in asked {
                now_ns += later_ns;
                let cost = bucket.cost(amount);
                match bucket.take(Time::of_ns(now_ns), cost) {
                    Ok(()) => taken.push((now_ns, amount)),
                    Err(when) if waits && when.ns() < 1 << 56 => {
                        now_ns = when.ns();
                        prop_assert_eq!(bucket.take(Time::of_ns(now_ns), cost), Ok(()));
                        taken.push((now_ns, amount));
                    }
                    Err(when) => prop_assert!(when > Time::of_ns(now_ns)),
                }
            }
            for first in 0..taken.len() {
                let (mut sum, mut largest) = (0u128, 0);
                for &(at_ns, amount) in &taken[first..] {
                    sum += u128::from(amount);
                    largest = largest.max(amount);
                    let lasts_ns = u128::from(at_ns - taken[first].0);
                    let most = u128::from(per_second) * lasts_ns / 1_000_000_000
                        + u128::from(burst.max(largest));
                    // Rounding: a millionth of the sum, and a unit.
                    prop_assert!(sum <= most + sum / 1_000_000 + 1, "{sum} of {most}");
                }
            }
        }
    }
}
