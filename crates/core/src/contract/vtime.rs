//! Virtual time: integer, wrapping, in service per weight.
//!
//! One **unit** is one byte of service at weight 100: `cost x 100 / weight`. The division's
//! remainder is kept per flow and port ([`Normalizer`]) and carried into that flow's next request,
//! so nothing is lost however small the request and large the weight; a tag is at most one unit
//! below the exact rational value.
//!
//! **Representation.** [`VTime`] is a 64-bit word whose upper 56 bits count units and whose lower
//! [`STAMP_BITS`] bits are always zero, free for structures that pack a version stamp beside a tag.
//!
//! **Wrap-around.** Comparison is by signed difference, right while the two values are within 2^55
//! units. Tags of queued requests are: a flow's newest tag is ahead of virtual time by at most its
//! queued requests, and 65,536 requests of 32 MiB at weight 1 are 2^47.7 units, at the least weight
//! of a 64th 2^53.7. Requests that cost more than their bytes may add up to more: units that would
//! move a tag beyond [`MOST_AHEAD`] are not charged ([`VTime::charge`]). Only the end tag of a flow
//! that has been idle while virtual time moved 2^55 units could leave the window. That takes 10
//! minutes at 10 GB/s if every active flow has the least weight (10 hours at weight 1, and 42 days
//! at weight 100). So every policy's `tick`, whose deadline is at most [`LIFT_PERIOD_NS`] away,
//! lifts the end tags of flows that lag behind to virtual time. After a lift no tag is behind
//! virtual time by more than the service of one period (of one period and 16 seconds, if each tick
//! lifts only some of the flows), so no tag leaves the window.

use crate::contract::flow::Weight;
use crate::contract::port::Cost;

/// Low bits of a [`VTime`] that are always zero.
pub const STAMP_BITS: u32 = 8;

/// Units of one byte at a weight of a 256th.
pub const UNITS: u64 = 100 * Weight::ONE;

/// The most that a tag may be ahead of virtual time, in units: half of the window. The other half
/// is for tags that lag.
pub const MOST_AHEAD: u64 = 1 << 54;
/// The most that one request is charged if `ports` ports charge at the same time, in units. Even if
/// each of them charges a request that leads beyond [`MOST_AHEAD`], the tag stays within the
/// window. For 256 ports, the most there can be, it is 32 TiB at weight 100 and 5 GiB at a 64th.
pub(crate) fn most_at_once(ports: usize) -> u64 {
    (MOST_AHEAD / 2).checked_div(ports as u64).unwrap_or(MOST_AHEAD)
}

/// Period in which a policy's `tick` lifts the end tags of lagging flows to virtual time, in
/// nanoseconds: one minute.
pub const LIFT_PERIOD_NS: u64 = 60_000_000_000;

/// A point in virtual time; see the module's text for unit and wrap-around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VTime(u64);

impl VTime {
    /// The start of virtual time.
    pub const ZERO: VTime = VTime(0);

    /// The point `units` after zero.
    pub const fn from_units(units: u64) -> VTime {
        VTime(units << STAMP_BITS)
    }

    /// The point that a word of [`Self::to_word`], or a stamped word, holds; the stamp bits are
    /// dropped.
    #[inline]
    pub const fn from_word(word: u64) -> VTime {
        VTime(word & !((1 << STAMP_BITS) - 1))
    }

    /// The 64-bit word to keep in an atomic; its low [`STAMP_BITS`] bits are zero.
    #[inline]
    pub const fn to_word(self) -> u64 {
        self.0
    }

    /// This point plus `units`, wrapping.
    #[inline]
    #[must_use]
    pub const fn plus(self, units: u64) -> VTime {
        VTime(self.0.wrapping_add(units << STAMP_BITS))
    }

    /// This point minus `units`, wrapping.
    #[inline]
    #[must_use]
    pub const fn minus(self, units: u64) -> VTime {
        VTime(self.0.wrapping_sub(units << STAMP_BITS))
    }

    /// Whether a request that starts here is charged all of its `units` when virtual time is `now`
    /// or later: see [`VTime::charge`].
    #[inline]
    pub(crate) const fn has_room(self, now: VTime, units: u64) -> bool {
        units as i64 <= (MOST_AHEAD as i64).saturating_sub(self.since(now))
    }

    /// The units that a request that starts here is charged when virtual time is `now` or later:
    /// `units`, or only those up to [`MOST_AHEAD`], and then at least 1.
    #[inline]
    #[must_use]
    pub const fn charge(self, now: VTime, units: u64) -> u64 {
        let room = (MOST_AHEAD as i64).saturating_sub(self.since(now));
        if self.has_room(now, units) {
            units
        } else if room > 1 {
            room as u64
        } else {
            1
        }
    }

    /// Units from `earlier` to this point; negative if this point is before it.
    #[inline]
    pub const fn since(self, earlier: VTime) -> i64 {
        (self.0.wrapping_sub(earlier.0) as i64) >> STAMP_BITS
    }

    /// Whether this point is strictly before `other`.
    #[inline]
    pub const fn is_before(self, other: VTime) -> bool {
        (self.0.wrapping_sub(other.0) as i64) < 0
    }

    /// The later of the two.
    #[inline]
    #[must_use]
    pub const fn max(self, other: VTime) -> VTime {
        if self.is_before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    #[must_use]
    pub const fn min(self, other: VTime) -> VTime {
        if other.is_before(self) { other } else { self }
    }

    /// The distance from zero in units, modulo 2^56.
    pub const fn units(self) -> u64 {
        self.0 >> STAMP_BITS
    }
}

/// Turns costs into virtual time for one flow on one port, without losing remainders. A change of
/// weight drops the remainder: less than one unit, once.
///
/// A division would be the longest single instruction on a request's path, so the cost is
/// multiplied by the reciprocal of the weight instead, which is computed once for a weight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Normalizer {
    /// 2^64 divided by the weight in 256ths, rounded down, or 1 less.
    reciprocal: u64,
    /// Numerator left over by earlier requests, in 25,600ths of a byte; less than `weight`.
    remainder: u32,
    /// The weight that left the remainder, in 256ths.
    weight: u32,
}

impl Normalizer {
    /// Without a remainder.
    pub(crate) const NEW: Normalizer = Normalizer { reciprocal: 0, remainder: 0, weight: 0 };

    /// The state before the first request at this weight.
    #[cold]
    fn at(weight: Weight) -> Normalizer {
        // A weight is never 0; `max` shows that to the compiler, which would otherwise check for a
        // division by zero.
        Normalizer {
            reciprocal: u64::MAX / u64::from(weight.in_256ths()).max(1),
            remainder: 0,
            weight: weight.in_256ths(),
        }
    }

    /// The remainder that the next call adds, in 256ths of a unit.
    #[cold]
    pub(crate) fn rest(&self) -> u64 {
        (u64::from(self.remainder) << STAMP_BITS) / u64::from(self.weight).max(1)
    }

    /// The units that `cost` bytes take at `weight`; the next call adds the remainder.
    #[inline(always)]
    pub fn units(&mut self, cost: u64, weight: Weight) -> u64 {
        if weight.in_256ths() != self.weight {
            *self = Normalizer::at(weight);
        }
        // The numerator is at most 2^42 times 2^14.7 plus a remainder below 2^22, so it fits into
        // 64 bits.
        let numerator = cost.min(Cost::MAX) * UNITS + u64::from(self.remainder);
        let divisor = u64::from(self.weight);
        // The reciprocal is at most 1 too small, so the product is less than numerator / 2^64 < 1
        // too small: rounded down, it is the quotient or one less.
        let below = ((u128::from(numerator) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = numerator - below * divisor;
        let is_one_less = rest >= divisor;
        self.remainder = (if is_one_less { rest - divisor } else { rest }) as u32;
        below + u64::from(is_one_less)
    }
}

// **The reference weight**: the weight at which a threshold in bytes holds literally.
//
// **Problem.** Only the ratios of weights matter, but a unit of virtual time is a byte at weight
// 100 (see above). A threshold of 45 KiB, taken as 46,080 units, lets a flow of weight 10,000 be
// 4.5 MiB ahead, which on a slow device is a second of service for all others, but a flow of weight
// 1 by only 460 bytes. **Model.** A threshold is in bytes of a flow of the *reference weight*
// `R`: `B` bytes are `B x 100 / R` units. Over all flows, `R = max(lightest, heaviest / 4)`. Then
// - if all weights are multiplied by one factor, every flow keeps its number of bytes;
// - if all weights are 100, `R` is 100: a byte is a unit;
// - if weights are within 1:4, the lightest flow may be ahead by `B`, and `R` does not depend on
//   the number of flows of each weight;
// - no flow is ever ahead by more than `4 B` bytes, whatever its weight.
//
// **Why not another weight.** With the lightest flow alone, one flow of weight 1 lets flows of
// weight 10,000 be ahead by 10,000 times `B`. With the heaviest alone, requests of flows a little
// lighter do not fit into the threshold, and ports work in lockstep. With the sum or the mean,
// idle flows, of which there may be thousands, determine the threshold of the active ones. The
// factor 4 is a compromise: a larger one costs the heavy flows' fairness among each other, a
// smaller one the light flows' speed while no heavy one is active. All flows count, not only the
// active ones, so no verb has to compute `R`: it changes only with flows and weights.
//
// **Example.** A threshold of 45 KiB. Weights 100, 200, 400: R is 100; they may be ahead by 45, 90
// and 180 KiB. Weights 1 and 10,000: R is 2,500; they may be ahead by 18 bytes, which is one
// request, and by 180 KiB.
//
// **Arithmetic.** Four times `R` is a whole number of 256ths, so nothing is rounded but the
// quotient, and a threshold of 2^40 and weights below 2^22 in 256ths stay below 2^64.

/// The most that the heaviest flow may be heavier than the reference weight, as a factor.
const RANGE: u64 = 4;

/// The weight at which a threshold in bytes holds literally.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReferenceWeight {
    /// [`RANGE`] times the weight in 256ths.
    times_range: u64,
}

impl Default for ReferenceWeight {
    /// The reference weight without flows.
    fn default() -> Self {
        ReferenceWeight::of([])
    }
}

impl ReferenceWeight {
    /// The reference weight of flows with these weights; [`Weight::DEFAULT`] if there are none.
    pub fn of(weights: impl IntoIterator<Item = Weight>) -> ReferenceWeight {
        let each = weights.into_iter().map(|weight| u64::from(weight.in_256ths()));
        let extremes = each.fold(None, |extremes, weight| {
            let (lightest, heaviest) = extremes.unwrap_or((weight, weight));
            Some((weight.min(lightest), weight.max(heaviest)))
        });
        let default = u64::from(Weight::DEFAULT.in_256ths());
        let (lightest, heaviest) = extremes.unwrap_or((default, default));
        ReferenceWeight { times_range: (RANGE * lightest).max(heaviest) }
    }

    /// Units of virtual time for this service of a flow of the reference weight, in bytes or
    /// nanoseconds. Rounded up, because tags are rounded down: a service that fits exactly at one
    /// scale of weights fits at every scale.
    pub fn units(self, service: u64) -> u64 {
        service.saturating_mul(UNITS * RANGE).div_ceil(self.divisor())
    }

    /// The divisor, never 0; `max` shows that to the compiler, which would otherwise check for it.
    #[inline]
    fn divisor(self) -> u64 {
        self.times_range.max(1)
    }

    /// Service of a flow of the reference weight in these units of virtual time, in bytes or
    /// nanoseconds.
    pub fn service(self, units: u64) -> u64 {
        let parts = UNITS * RANGE;
        // The product is computed in two parts, since units times the weight do not fit into 64
        // bits.
        (units / parts)
            .saturating_mul(self.times_range)
            .saturating_add((units % parts).saturating_mul(self.times_range) / parts)
    }

    /// Service due to a flow of this weight while a flow of the reference weight is served
    /// `service`.
    pub fn due(self, service: u64, weight: Weight) -> u64 {
        service.saturating_mul(RANGE * u64::from(weight.in_256ths())) / self.divisor()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn order_survives_the_wrap() {
        let before = VTime::from_units((1 << 56) - 3);
        let after = before.plus(10);
        assert_eq!(after.units(), 7);
        assert!(before.is_before(after) && !after.is_before(before));
        assert_eq!(after.since(before), 10);
        assert_eq!(before.since(after), -10);
        assert_eq!(before.max(after), after);
        assert_eq!(after.min(before), before);
        assert_eq!(after.minus(10), before);
    }

    /// For any number of queued requests and any weight, a tag that is charged by `VTime::charge`
    /// stays in the window, and no tag is before an earlier one.
    #[test]
    fn no_tag_leaves_the_window() {
        for parts in [Weight::LEAST_256THS, 256, 25_600] {
            let weight = Weight::of_256ths(parts).unwrap();
            let now = VTime::from_units((1 << 56) - 7);
            let (mut normalizer, mut end) = (Normalizer::NEW, now);
            for _ in 0..20_000 {
                let before = end;
                let units = end.charge(now, normalizer.units(Cost::MAX, weight));
                end = end.plus(units);
                assert!(before.is_before(end) && now.is_before(end), "at {parts}");
                assert!(end.since(now).unsigned_abs() <= MOST_AHEAD + 20_000);
            }
        }
        assert_eq!(VTime::ZERO.charge(VTime::ZERO, 5), 5);
    }

    proptest! {
        /// Multiplying by the reciprocal gives the exact quotient, at the largest costs too.
        #[test]
        fn the_quotient_is_exact(
            weight in prop_oneof![Just(4u32), Just(256), Just(2_560_000), 4u32..=2_560_000],
            costs in prop::collection::vec(
                prop_oneof![1u64..100_000, Cost::MAX / 2..=Cost::MAX],
                1..20,
            ),
        ) {
            let (mut normalizer, mut remainder) = (Normalizer::NEW, 0);
            for cost in costs {
                let numerator = cost * UNITS + remainder;
                let units = normalizer.units(cost, Weight::of_256ths(weight).unwrap());
                remainder = numerator % u64::from(weight);
                prop_assert_eq!(units, numerator / u64::from(weight));
                prop_assert_eq!(u64::from(normalizer.remainder), remainder);
            }
        }

        /// The law of remainders: however a total is cut into requests, and whatever the weight,
        /// the sum of the units is the exact quotient of the whole, rounded down once.
        #[test]
        fn nothing_is_lost(
            weight in 4u32..=2_560_000,
            costs in prop::collection::vec(1u64..200_000, 1..200),
        ) {
            let weight = Weight::of_256ths(weight).unwrap();
            let mut normalizer = Normalizer::default();
            let total: u64 = costs.iter().sum();
            let units: u64 = costs.iter().map(|&cost| normalizer.units(cost, weight)).sum();
            prop_assert_eq!(units, total * UNITS / u64::from(weight.in_256ths()));
        }
    }

    fn of(weights: &[u16]) -> ReferenceWeight {
        ReferenceWeight::of(weights.iter().map(|&weight| Weight::new(weight).unwrap()))
    }

    fn weight(weight: u16) -> Weight {
        Weight::new(weight).unwrap()
    }

    #[test]
    fn at_weight_100_a_byte_is_a_unit() {
        for reference in [of(&[]), of(&[100]), of(&[100, 100]), of(&[100, 250, 400])] {
            assert_eq!((reference.units(46_080), reference.service(46_080)), (46_080, 46_080));
        }
    }

    #[test]
    fn the_example() {
        let threshold = 45 << 10;
        let ahead = |reference: ReferenceWeight, at| {
            reference.units(threshold) * u64::from(weight(at).get()) / 100
        };
        let near = of(&[100, 200, 400]);
        assert_eq!([100, 200, 400].map(|at| ahead(near, at) >> 10), [45, 90, 180]);
        let far = of(&[1, 10_000]);
        assert_eq!((ahead(far, 1), ahead(far, 10_000) >> 10), (18, 180));
        assert_eq!(far.due(threshold, weight(10_000)) >> 10, 180);
    }

    proptest! {
        /// The service that a flow may be ahead does not change with the scale of weights, except
        /// for a unit, and is at most four times the threshold.
        #[test]
        fn scale_changes_nothing(
            weights in prop::collection::vec(1u16..=100, 1..10),
            scale in 1u16..=100,
            threshold in 0u64..=1 << 40,
        ) {
            let scaled: Vec<u16> = weights.iter().map(|weight| weight * scale).collect();
            let [one, other] = [of(&weights), of(&scaled)];
            for (&light, &heavy) in weights.iter().zip(&scaled) {
                prop_assert_eq!(one.due(threshold, weight(light)), other.due(threshold, weight(heavy)));
                prop_assert!(one.due(threshold, weight(light)) <= 4 * threshold);
            }
            let apart = one.units(threshold) as i128 - i128::from(scale) * other.units(threshold) as i128;
            prop_assert!(apart.abs() < i128::from(scale));
            prop_assert!(one.service(one.units(threshold)).abs_diff(threshold) <= 100);
        }
    }
}
