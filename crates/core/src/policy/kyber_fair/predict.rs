//! The tokens of the next period and the cost of a write: the paper's Section 4.3.
//!
//! # Algorithm 1, reconstructed
//! The paper's Algorithm 1 is a picture; the text around it says: record the used tokens `u_i` and
//! the throttled time `t_i` of each flow; average the used ones; their sum predicts what the next
//! period needs; "if throttled time of cgroup is shorter than allocation period, the predicted
//! number increases, otherwise it decreases"; hand it out by weight. This module reads it as
//! follows:
//!
//! - *Throttled time* can only be the time *after which* a flow was throttled. (Time spent
//!   throttled is always shorter than the period in which it is spent, and the number would only
//!   ever increase.) If tokens ran out before the period's end they were too few; if they did not,
//!   too many. The period ends as soon as the last active flow has run out, so the greatest `t_i`
//!   is the length `L` of the last period, and one clock serves all flows.
//! - *By how much?* The paper does not say. `U` tokens in a time `L` are `U P / L` in a whole
//!   period `P`: the rate at which the device served, which tokens stand for. If all ran out early,
//!   that is more than was handed out; if time ran out with tokens left (`L = P`, `U` less than was
//!   handed out), it is less. So the rule holds as stated, and has a size.
//! - *Average.* The sum of the flows' averages is the average of their sum, so one is kept: used
//!   tokens over time, both halved whenever the time exceeds four periods. When time ran out the
//!   last period counts by itself if its rate is less: a device that has slowed down (garbage
//!   collection) is followed at once, since too many tokens cost fairness, and too few cost only
//!   another beginning of a period.
//! - *For the same reason* a sixteenth is taken off: in a steady state the tokens run out shortly
//!   before the time does.
//! - *Slowly.* The number at most doubles or halves from one period to the next, because the first
//!   requests of a burst go to an empty device at once and show nothing of its rate. If all flows
//!   have run out and nothing was used, all tokens pay debts for requests larger than their flows'
//!   tokens: then the number doubles until a request can go, for that period only.
//!
//! **The ratio.** The paper takes the latencies from Kyber's histogram, whose buckets are half a
//! millisecond wide for reads and 2.5 for writes: on an SSD all are in the first and the ratio is
//! that of the targets, 5. So exact sums are kept instead: whenever a period's time has passed, the
//! ratio moves a quarter of the way to the mean latency of writes divided by that of reads. If most
//! of the latency is queueing in the device, both means contain it, and the ratio is too small; an
//! operator can then set the costs.

use crate::contract::bounds::{ConfigError, within};

/// No period has more tokens than this: 2^38, 256 GiB.
pub(super) const MAX_TOKENS: u64 = 1 << 38;

/// Tokens of a period, in bytes of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Totals {
    /// Tokens of the first period. Default 16 MiB.
    pub first: u64,
    /// The least tokens of later periods. Default 4 KiB, one request: no device is so slow that the
    /// bound matters.
    pub least: u64,
    /// The most tokens of later periods. Default 256 GiB.
    pub most: u64,
}

impl Default for Totals {
    fn default() -> Self {
        Totals { first: 16 << 20, least: 1 << 12, most: MAX_TOKENS }
    }
}

impl Totals {
    /// The tokens of the first period, and the least and the most of later ones.
    pub const fn between(first: u64, least: u64, most: u64) -> Totals {
        Totals { first, least, most }
    }

    /// Always the same number: no prediction.
    pub const fn fixed(tokens: u64) -> Totals {
        Totals::between(tokens, tokens, tokens)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Totals { first, least, most } = *self;
        within("tokens", first, 1, MAX_TOKENS)?;
        within("tokens", most, 1, MAX_TOKENS)?;
        within("tokens", least, 1, most)
    }
}

/// Parts of a period in which time is counted here, so that products fit into 64 bits.
const PARTS: u64 = 1 << 16;

/// Predicts tokens.
pub(super) struct Predictor {
    totals: Totals,
    part_ns: u64,
    tokens: u64,
    /// The time at which the period began; `None` before the first.
    began_ns: Option<u64>,
    /// The counter of used tokens at that time.
    used_before: u64,
    /// Tokens and time (parts) that are averaged over.
    used: u64,
    parts: u64,
    /// Periods in a row in which all flows ran out and nothing was used.
    barren: u32,
}

impl Predictor {
    pub(super) fn new(totals: Totals, period_ns: u64) -> Self {
        Predictor {
            totals,
            part_ns: (period_ns / PARTS).max(1),
            tokens: totals.first.clamp(totals.least, totals.most),
            began_ns: None,
            used_before: 0,
            used: 0,
            parts: 0,
            barren: 0,
        }
    }

    /// The tokens predicted.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The tokens of the period that begins now. `used` counts the tokens used since the start,
    /// over all ports; `ran_out_early` says that the last period ended because all had run out.
    pub(super) fn next(&mut self, now_ns: u64, used: u64, ran_out_early: bool) -> u64 {
        let used = used.wrapping_sub(core::mem::replace(&mut self.used_before, used)).min(1 << 46);
        let began_ns = self.began_ns.replace(now_ns);
        if used == 0 {
            // 2^38 times one token is the most there may be (`MAX_TOKENS`).
            self.barren = if ran_out_early { (self.barren + 1).min(38) } else { 0 };
        } else {
            self.barren = 0;
            if let Some(began_ns) = began_ns {
                self.learn(now_ns.saturating_sub(began_ns), used, ran_out_early);
            }
        }
        self.tokens.saturating_mul(1 << self.barren.min(38)).min(MAX_TOKENS)
    }

    fn learn(&mut self, length_ns: u64, used: u64, ran_out_early: bool) {
        let parts = (length_ns / self.part_ns.max(1)).clamp(1, 4 * PARTS);
        self.used = (self.used + used).min(1 << 47);
        self.parts += parts;
        while self.parts > 4 * PARTS {
            self.used /= 2;
            self.parts /= 2;
        }
        // The products are at most 2^47 tokens times 2^15.
        let rate = |used: u64, parts: u64| 2 * (used * (PARTS / 2) / parts.max(1));
        let mut tokens = rate(self.used, self.parts);
        if !ran_out_early && parts >= PARTS {
            tokens = tokens.min(rate(used, parts));
        }
        tokens -= tokens / 16;
        // This does not use `clamp`, which panics if the bounds are the wrong way round.
        let bounded = tokens.max(self.tokens / 2).min(self.tokens.saturating_mul(2));
        self.tokens = bounded.max(self.totals.least).min(self.totals.most);
    }
}

/// Measures how long requests stay in the device.
#[derive(Default)]
pub(super) struct Stay {
    /// Latency and number of all requests at the last update.
    before: [u64; 2],
    mean_ns: u64,
}

impl Stay {
    /// The time in nanoseconds after which a flow that was not seen has nothing in the device. It
    /// is twice the mean, because while a queue builds up, later requests may wait twice as long as
    /// those that complete.
    pub(super) fn horizon_ns(&self) -> u64 {
        self.mean_ns.saturating_mul(2)
    }

    /// Updates the mean from latency (nanoseconds) and number of requests since the start, of each
    /// kind, the time since the last update, and whether any request is in the device.
    pub(super) fn update(&mut self, kinds: [[u64; 2]; 3], elapsed_ns: u64, is_busy: bool) {
        let now = kinds.into_iter().fold([0u64; 2], |[ns, count], [more_ns, more]| {
            [ns.wrapping_add(more_ns), count.wrapping_add(more)]
        });
        let [ns, count] = [0, 1].map(|of| now[of].wrapping_sub(self.before[of]));
        self.before = now;
        self.mean_ns = match ns.checked_div(count) {
            // Nothing is in the device, so no flow counts for what it has there.
            _ if !is_busy => 0,
            Some(mean_ns) => mean_ns,
            // The requests in the device have been there all the time.
            None => self.mean_ns.saturating_add(elapsed_ns),
        };
    }
}

/// Measures the ratio of latencies.
#[derive(Default)]
pub(super) struct Ratio {
    /// Latency and number of reads and writes at the last update.
    before: [[u64; 2]; 2],
    /// In 1/256; 0 until the first measurement.
    ratio: u64,
}

impl Ratio {
    /// A ratio of 1.
    pub(super) const ONE: u64 = 256;
    const MAX: u64 = 16 * Self::ONE;
    /// Requests of each kind that a new ratio needs.
    const SAMPLES: u64 = 32;

    /// The ratio, given latency (nanoseconds) and number of all reads and all writes since the
    /// start.
    pub(super) fn update(&mut self, reads: [u64; 2], writes: [u64; 2]) -> u64 {
        let since = |[ns, count]: [u64; 2], [ns_before, count_before]: [u64; 2]| {
            [ns.wrapping_sub(ns_before), count.wrapping_sub(count_before)]
        };
        let [reads_before, writes_before] = self.before;
        let [read_ns, reads_done] = since(reads, reads_before);
        let [write_ns, writes_done] = since(writes, writes_before);
        // With fewer requests `before` stays, so that they add up over several calls.
        if reads_done >= Self::SAMPLES && writes_done >= Self::SAMPLES {
            self.before = [reads, writes];
            let mean_read = (read_ns / reads_done).max(1);
            let mean_write = (write_ns / writes_done).min(u64::MAX / Self::ONE);
            let new = (mean_write * Self::ONE / mean_read).clamp(Self::ONE, Self::MAX);
            self.ratio = if self.ratio == 0 { new } else { (3 * self.ratio + new + 2) / 4 };
        }
        self.ratio.max(Self::ONE)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;
    const PERIOD: u64 = 100 * MS;

    /// A device of `capacity` bytes per 100 ms under full load: gives the tokens after each of
    /// `periods` periods. A period ends when the tokens have been served, or its time is over.
    fn follow(
        predictor: &mut Predictor,
        clock: &mut (u64, u64),
        capacity: u64,
        periods: u32,
    ) -> u64 {
        let mut tokens = predictor.tokens();
        for _ in 0..periods {
            let served = tokens.min(capacity);
            let length = if tokens < capacity {
                PERIOD * (tokens / 1024) / (capacity / 1024)
            } else {
                PERIOD
            };
            clock.0 += length;
            clock.1 += served;
            tokens = predictor.next(clock.0, clock.1, tokens < capacity);
        }
        tokens
    }

    fn predictor(first: u64) -> Predictor {
        let mut predictor = Predictor::new(Totals { first, ..Totals::default() }, PERIOD);
        predictor.next(0, 0, false);
        predictor
    }

    #[test]
    fn too_few_tokens_become_more_and_too_many_fewer() {
        for (first, periods) in [(MIB, 8), (20 * MIB, 3), (100 * MIB, 2), (10_000 * MIB, 8)] {
            let mut predictor = predictor(first);
            let tokens = follow(&mut predictor, &mut (0, 0), 100 * MIB, periods);
            assert!((93 * MIB..=95 * MIB).contains(&tokens), "from {first}: {tokens}");
        }
    }

    #[test]
    fn a_device_that_slows_down_is_followed_at_once_and_one_that_recovers_soon() {
        let mut predictor = predictor(100 * MIB);
        let clock = &mut (0, 0);
        follow(&mut predictor, clock, 100 * MIB, 20);
        let tokens = follow(&mut predictor, clock, 40 * MIB, 2);
        assert!(tokens <= 40 * MIB, "{tokens}");
        let tokens = follow(&mut predictor, clock, 100 * MIB, 20);
        assert!((90 * MIB..=95 * MIB).contains(&tokens), "{tokens}");
    }

    #[test]
    fn idle_periods_teach_nothing() {
        let mut predictor = predictor(20 * MIB);
        for period in 1..100 {
            assert_eq!(predictor.next(period * PERIOD, 0, false), 20 * MIB);
        }
        assert_eq!(predictor.tokens(), 20 * MIB);
    }

    #[test]
    fn tokens_that_only_pay_debts_double_until_something_goes() {
        let mut predictor = Predictor::new(Totals::fixed(1000), PERIOD);
        assert_eq!([(); 4].map(|()| predictor.next(5, 0, true)), [2000, 4000, 8000, 16_000]);
        assert_eq!(predictor.next(6, 5000, true), 1000);
        (0..100).for_each(|_| assert!(predictor.next(5, 5000, true) > 1000));
        assert_eq!(predictor.next(6, 5000, true), MAX_TOKENS);
        let mut large = Predictor::new(Totals::fixed(MAX_TOKENS), PERIOD);
        assert_eq!(large.next(0, 0, true), MAX_TOKENS);
        assert_eq!(large.next(u64::MAX, u64::MAX, true), MAX_TOKENS);
    }

    #[test]
    fn the_ratio_is_that_of_the_means_within_bounds() {
        let mut ratio = Ratio::default();
        assert_eq!(ratio.update([0, 0], [0, 0]), Ratio::ONE);
        assert_eq!(ratio.update([100_000, 100], [3000, 31]), Ratio::ONE, "too few writes");
        assert_eq!(ratio.update([100_000, 100], [300_000, 100]), 3 * Ratio::ONE);
        assert_eq!(
            ratio.update([200_000, 200], [400_000, 200]),
            5 * Ratio::ONE / 2,
            "a quarter of the way to 1"
        );
        assert_eq!(Ratio::default().update([1, 100], [u64::MAX, 100]), Ratio::MAX);
        assert_eq!(Ratio::default().update([u64::MAX, 100], [1, 100]), Ratio::ONE);
    }

    #[test]
    fn requests_stay_for_the_mean_and_what_does_not_come_back_for_longer() {
        let mut stay = Stay::default();
        let mut horizon_ms = |reads, others, is_busy| {
            stay.update([reads, [0; 2], others], 100 * MS, is_busy);
            stay.horizon_ns() / MS
        };
        assert_eq!(horizon_ms([0; 2], [0; 2], true), 200, "in the device since the last update");
        assert_eq!(horizon_ms([0; 2], [0; 2], true), 400);
        assert_eq!(horizon_ms([30 * MS, 2], [10 * MS, 2], true), 20, "10 ms each");
        assert_eq!(horizon_ms([30 * MS, 2], [40 * MS, 3], true), 60);
        assert_eq!(horizon_ms([30 * MS, 2], [90 * MS, 4], false), 0, "nothing is in the device");
    }

    #[test]
    fn totals_that_contradict_each_other_are_refused() {
        assert_eq!(Totals::default().check(), Ok(()));
        let refused =
            |value, most| Err(ConfigError::Knob { knob: "tokens", value, least: 1, most });
        assert_eq!(Totals { least: 5, most: 4, first: 5 }.check(), refused(5, 4));
        for tokens in [0, MAX_TOKENS + 1] {
            assert_eq!(Totals::fixed(tokens).check(), refused(tokens, MAX_TOKENS));
        }
    }
}
