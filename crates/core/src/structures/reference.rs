//! The reference weight: the weight for which a threshold in bytes is meant.
//!
//! **Problem.** Only the ratios of weights matter, but a unit of virtual time is a byte at weight
//! 100 ([`crate::contract::vtime`]). A threshold of 45 KiB, taken as 46,080 units, lets a flow of
//! weight 10,000 be 4.5 MiB ahead, which on a slow device is a second of service for all others,
//! and holds a flow of weight 1 to 460 bytes. **Model.** A threshold is meant in bytes of a flow of
//! the *reference weight* `R`: `B` bytes are `B x 100 / R` units. Over all flows,
//! `R = max(lightest, heaviest / 4)`. Then
//! - all weights times any factor leave every flow as many bytes as they did;
//! - where all weights are 100, `R` is 100: a byte is a unit;
//! - where weights are within 1:4, the lightest flow may be ahead by `B`, and `R` does not depend
//!   on the number of flows of each weight;
//! - no flow is ever ahead by more than `4 B` bytes, whatever its weight.
//!
//! **Why not another weight.** With the lightest flow alone, one flow of weight 1 lets flows of
//! weight 10,000 be ahead by 10,000 times `B`. With the heaviest alone, requests of flows a little
//! lighter do not fit into the threshold, and ports work in lockstep. With the sum or the mean,
//! idle flows, of which there may be thousands, determine the threshold of the active ones. The
//! factor 4 is a compromise: a larger one costs the heavy flows' fairness among each other, a
//! smaller one the light flows' speed while no heavy one is active. All flows count, not only the
//! active ones, so no verb has to compute `R`: it changes only with flows and weights.
//!
//! **Example.** A threshold of 45 KiB. Weights 100, 200, 400: R is 100; they may be ahead by 45, 90
//! and 180 KiB. Weights 1 and 10,000: R is 2,500; 18 bytes, which is one request, and 180 KiB.
//!
//! **Arithmetic.** Four times `R` is a whole number of 256ths, so nothing is rounded but the
//! quotient, and a threshold of 2^40 and weights below 2^22 in 256ths stay below 2^64.

use crate::contract::flow::Weight;
use crate::contract::vtime::UNITS;

/// The most that the heaviest flow may be heavier than the reference weight, as a factor.
const RANGE: u64 = 4;

/// The weight for which thresholds are meant.
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
    /// scale of weights fits at all.
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
        // In two parts, since units times the weight do not fit into 64 bits.
        (units / parts)
            .saturating_mul(self.times_range)
            .saturating_add((units % parts).saturating_mul(self.times_range) / parts)
    }

    /// Service due to a flow of this weight while a flow of the reference weight has `service`.
    pub fn due(self, service: u64, weight: Weight) -> u64 {
        service.saturating_mul(RANGE * u64::from(weight.in_256ths())) / self.divisor()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

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
