//! The rate counted at one D, and the comparison of two rates.

/// The part of the device's rate that D is to keep, in ten thousandths.
pub(super) const KEPT: u64 = 9_850;
/// One, in ten thousandths.
pub(super) const WHOLE: u64 = 10_000;
/// The part of the rate with all the demand that half of it is to keep, in ten thousandths: with
/// all the demand on the device weights have no effect, and they are given up for a clear gain
/// only. A host that does the device's work gains by each doubling, since it wakes up less often.
pub(super) const KEPT_OF_ALL: u64 = 8_900;
/// The further part that a smaller D may lose if the larger one serves another mixture, in ten
/// thousandths; it is at most an eighth of the smaller D's gain in requests or bytes.
pub(super) const PRICE_OF_WEIGHTS: u64 = 300;
/// The difference from [`KEPT`] that is far, in ten thousandths.
pub(super) const FAR: u64 = 4 * (WHOLE - KEPT);
/// Completions that show that a rate is far from enough.
pub(super) const CLEAR: u64 = 64;
/// Completions that decide a comparison.
pub(super) const ENOUGH: u64 = 1024;

/// The rate counted at one D.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) requests: u64,
    /// Blocks of 512 bytes.
    pub(super) blocks: u64,
    pub(super) time_us: u64,
    /// The time that requests spent on the device, all together, in microseconds.
    pub(super) spent_us: u64,
    /// The time that they waited before that, in microseconds.
    pub(super) waited_us: u64,
    /// Number of trials in which it was counted.
    pub(super) trials: u32,
    /// D was at least all the demand.
    pub(super) is_short: bool,
}

/// The result of a comparison of two values of D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Enough,
    TooLittle,
    /// Rates vary more from trial to trial than these two differ.
    Unclear,
}

impl Rate {
    /// `self` over `than`, in ten thousandths: the lesser of requests and bytes, and the greater.
    fn ratios(&self, than: &Rate) -> (u64, u64) {
        let ratio = |a: u64, b: u64| {
            // The divisor is divided by `WHOLE`, since `a` times `WHOLE` may not fit. A rate of 0,
            // as when no request has bytes, is kept entirely.
            let (a, b) = (a.saturating_mul(than.time_us), b.saturating_mul(self.time_us));
            if b == 0 { WHOLE } else { (a / (b / WHOLE).max(1)).min(100 * WHOLE) }
        };
        let requests = ratio(self.requests, than.requests);
        let blocks = ratio(self.blocks, than.blocks);
        (requests.min(blocks), requests.max(blocks))
    }

    /// `self` over `than`, in ten thousandths: the lesser of requests and bytes.
    pub(super) fn over(&self, than: &Rate) -> u64 {
        self.ratios(than).0
    }

    /// The part of the rate at the larger D of `more` that this D keeps, in ten thousandths. If it
    /// does less in one of requests and bytes and much more in the other, the larger D serves
    /// another mixture: flows with small requests lose their places to flows with large ones, and
    /// weights do not hold. To avoid that is worth [`PRICE_OF_WEIGHTS`].
    pub(super) fn keeps(&self, more: &Rate) -> u64 {
        let (least, most) = self.ratios(more);
        least + (most.saturating_sub(WHOLE) / 8).min(PRICE_OF_WEIGHTS)
    }

    /// Whether this D keeps enough of the rate at the larger D of `more`. With few completions the
    /// doubt counts for this D, so that a slow device stays at the initial D of a search unless a
    /// larger one does clearly more; a gain of a tenth (a disk that orders its requests) shows in a
    /// hundred completions. `jitter`: the difference of rates of trials at the same D.
    pub(super) fn against(&self, more: &Rate, jitter: u64) -> Answer {
        if self.is_short {
            // A larger D makes no difference.
            return Answer::Enough;
        }
        let (doubt, spread) = if self.requests < ENOUGH {
            (self.noise(), 0)
        } else {
            (0, self.spread(jitter) + more.spread(jitter))
        };
        let kept = if more.is_short { KEPT_OF_ALL } else { KEPT };
        let keeps = self.keeps(more) + doubt;
        if keeps >= kept + spread {
            Answer::Enough
        } else if keeps + spread < kept {
            Answer::TooLittle
        } else {
            Answer::Unclear
        }
    }

    /// Whether the rate is far from enough, whatever the effect of chance.
    pub(super) fn is_far_below(&self, more: &Rate) -> bool {
        self.requests >= CLEAR && self.keeps(more) + FAR + 2 * self.noise() < KEPT
    }

    pub(super) fn add(&mut self, other: &Rate) {
        self.requests = self.requests.saturating_add(other.requests);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.time_us = self.time_us.saturating_add(other.time_us);
        self.spent_us = self.spent_us.saturating_add(other.spent_us);
        self.waited_us = self.waited_us.saturating_add(other.waited_us);
        self.trials = self.trials.saturating_add(other.trials);
        self.is_short = other.is_short;
    }

    pub(super) fn halve(&mut self) {
        *self = Rate {
            requests: self.requests / 2,
            blocks: self.blocks / 2,
            time_us: self.time_us / 2,
            spent_us: self.spent_us / 2,
            waited_us: self.waited_us / 2,
            trials: self.trials.div_ceil(2),
            is_short: self.is_short,
        };
    }

    /// The possible deviation by chance, in ten thousandths: half of that of independent
    /// completions, because a closed loop is steadier than these.
    pub(super) fn noise(&self) -> u64 {
        WHOLE / 2 / self.requests.isqrt().max(1)
    }

    /// The possible deviation of its mean from that of more trials, in ten thousandths, if single
    /// trials at the same D differ by `jitter`.
    pub(super) fn spread(&self, jitter: u64) -> u64 {
        // A mean of n trials differs by the square root of n less; the root is taken in hundredths.
        jitter.saturating_mul(100) / u64::from(self.trials).saturating_mul(10_000).isqrt().max(100)
    }

    /// The difference from another rate at the same D, in ten thousandths.
    pub(super) fn apart(&self, other: &Rate) -> u64 {
        WHOLE.saturating_sub(self.over(other).min(other.over(self)))
    }

    /// Requests on the device on average, in hundredths (Little's law).
    pub(super) fn outstanding(&self) -> u64 {
        self.spent_us.saturating_mul(100) / self.time_us.max(1)
    }

    /// Whether fewer requests than `slots` waited or were on the device on average (Little's law):
    /// then slots were free most of the time, and a smaller D would have served as much.
    pub(super) fn leaves_free(&self, slots: u32) -> bool {
        let live_us = self.spent_us.saturating_add(self.waited_us);
        live_us < self.time_us.saturating_mul(slots.into())
    }

    /// Mean time of a request on the device, in nanoseconds.
    pub(super) fn latency_ns(&self) -> u64 {
        self.spent_us.saturating_mul(1000) / self.requests.max(1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn rate(requests: u64, blocks: u64) -> Rate {
        Rate { requests, blocks, time_us: 1_000_000, trials: 8, ..Rate::default() }
    }

    #[test]
    fn another_mixture_is_not_more() {
        let large = rate(250_000, 6_200_000);
        // The rates of 28 and 16 requests on a device beside that of 32, of which small ones lose
        // their places.
        assert_eq!(rate(385_000, 6_070_000).against(&large, 0), Answer::Enough);
        assert_eq!(rate(375_000, 5_800_000).against(&large, 0), Answer::TooLittle);
        // The same loss of bytes, but as many requests, or 1 % more: the larger D does more.
        assert_eq!(rate(250_000, 6_070_000).against(&large, 0), Answer::TooLittle);
        assert_eq!(rate(252_000, 6_070_000).against(&large, 0), Answer::TooLittle);
        assert_eq!(rate(250_000, 6_110_000).against(&large, 0), Answer::Enough);
    }

    #[test]
    fn the_price_of_weights_is_bounded() {
        for more in [10_000, 11_000, 20_000, 1_000_000] {
            let keeps = rate(more, 9_000).keeps(&rate(10_000, 10_000));
            assert!((9_000..=9_000 + PRICE_OF_WEIGHTS).contains(&keeps), "{more}: {keeps}");
        }
        assert_eq!(rate(10_000, 9_000).keeps(&rate(10_000, 10_000)), 9_000);
    }
}
