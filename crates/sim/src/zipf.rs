//! Addresses of which some are requested far more often than others.
//!
//! **Model.** Of `count` places the place of rank k is requested in proportion to k^-q (Zipf's
//! law). Ranks are drawn by rejection from the inverted integral of that curve (Hörmann and
//! Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
//! 1996): this takes a few logarithms for each rank and no table, for any count. Ranks are
//! scattered over the device by a multiplication with a prime, so that the most frequent places are
//! not neighbours.
//!
//! The logarithms are those of `libm`, because it gives the same bits on every machine.

use crate::random::Random;

/// A prime that is larger than the number of places of any device, so it has no factor in common
/// with that number.
const PRIME: u64 = 0xffff_ffff_ffff_ffc5;
/// The distance between two numbers that [`uniform`] can return.
const FRACTION: f64 = 1.0 / (1_u64 << 53) as f64;

/// A sampler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    exponent: f64,
    count: u64,
    /// The integral at the first rank and at the last; and the distance within which a draw is
    /// accepted at once.
    first: f64,
    last: f64,
    near: f64,
}

impl Zipf {
    /// A sampler of `count` places, at least one; the exponent is in thousandths, above 0.
    pub(crate) fn new(count: u64, thousandths: u32) -> Zipf {
        let mut zipf = Zipf {
            exponent: f64::from(thousandths) / 1000.0,
            count: count.max(1),
            first: 0.0,
            last: 0.0,
            near: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.count as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.curve(2.0));
        zipf
    }

    /// Draws a place, counted from 0.
    #[inline]
    pub(crate) fn place(&self, random: &mut Random) -> u64 {
        let rank = self.rank(random) - 1;
        (u128::from(rank) * u128::from(PRIME) % u128::from(self.count)) as u64
    }

    /// Draws a rank, counted from 1.
    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let drawn = self.last + uniform(random) * (self.first - self.last);
            let x = self.inverse(drawn);
            // Rounding may put x slightly outside of the range.
            let rank = ((x + 0.5) as u64).clamp(1, self.count);
            let k = rank as f64;
            if k - x <= self.near || drawn >= self.integral(k + 0.5) - self.curve(k) {
                return rank;
            }
        }
    }

    /// x^-q.
    fn curve(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// Its integral from 1: (x^(1 - q) - 1) / (1 - q), or ln x.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.exponent) * log;
        // (e^t - 1) / t, which is 1 at 0.
        let factor = if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 };
        factor * log
    }

    fn inverse(&self, value: f64) -> f64 {
        // Rounding may take it below -1, where the logarithm of 1 + t does not exist.
        let t = (value * (1.0 - self.exponent)).max(-1.0);
        // ln(1 + t) / t, which is 1 at 0.
        let factor = if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 };
        libm::exp(factor * value)
    }
}

/// A number above 0 and at most 1.
pub(crate) fn uniform(random: &mut Random) -> f64 {
    // Uses as many bits as a float represents exactly. The result is never 0, which has no
    // logarithm.
    ((random.word() >> 11) + 1) as f64 * FRACTION
}

/// A time between two independent arrivals, with this mean, in nanoseconds.
pub(crate) fn interval_ns(mean_ns: u64, random: &mut Random) -> u64 {
    (-libm::log(uniform(random)) * mean_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frequency of each rank follows the law for every exponent; exponent 1 has a formula of
    /// its own.
    #[test]
    fn ranks_come_as_often_as_the_law_says() {
        for thousandths in [500, 1000, 1200, 2500] {
            let (count, draws) = (50, 200_000);
            let zipf = Zipf::new(count, thousandths);
            let mut random = Random::new(3, 1);
            let mut seen = vec![0_u32; count as usize];
            (0..draws).for_each(|_| seen[zipf.rank(&mut random) as usize - 1] += 1);
            let weight = |rank: usize| (rank as f64).powf(-f64::from(thousandths) / 1000.0);
            let all: f64 = (1..=count as usize).map(weight).sum();
            for (rank, seen) in (1..).zip(seen) {
                let due = f64::from(draws) * weight(rank) / all;
                let off = (f64::from(seen) - due).abs();
                assert!(off < 5.0 * due.sqrt() + 1.0, "{thousandths}: {rank}: {seen}, due {due}");
            }
        }
    }

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        let count = 1 << 12;
        let places: std::collections::BTreeSet<u64> = (0..count)
            .map(|rank| (u128::from(rank as u64) * u128::from(PRIME) % count as u128) as u64)
            .collect();
        assert_eq!(places.len(), count);
        let one = Zipf::new(1, 900);
        assert_eq!(one.place(&mut Random::new(1, 1)), 0);
    }

    #[test]
    fn arrivals_have_the_mean_that_was_asked_for() {
        let mut random = Random::new(1, 1);
        let sum: u64 = (0..100_000).map(|_| interval_ns(1_000, &mut random)).sum();
        assert!((99_000_000..101_000_000).contains(&sum), "{sum}");
    }
}
