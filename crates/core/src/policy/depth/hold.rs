//! The state while D holds: the rates counted at D, at a step less and at twice as much, and the
//! verdict on D.

use super::rate::{ENOUGH, FAR, KEPT, KEPT_OF_ALL, Rate, WHOLE};

/// Trials of D itself between two others: at first, and at most.
const OFTEN: u32 = 2;
const RARELY: u32 = 32;
/// If a step less is far from enough, one trial of it in this many is made.
const SKIPS: u32 = 8;
/// Another load: its rate or latency differs by more than one part in this.
const CHANGED: u64 = 6;
/// Trials of D itself between a search and the next change of load that is believed.
const CALM: u32 = 4;
/// Counts are halved when they are this many trials' worth, so that old ones fade.
const MEMORY: u64 = 64;

/// A step of the ladder: some 3/16, and at least one.
pub(super) fn step_up(slots: u32) -> u32 {
    slots.saturating_add(slots.div_ceil(16).saturating_mul(3)).max(slots + 1)
}

pub(super) fn step_down(slots: u32) -> u32 {
    slots.saturating_sub((slots / 32 * 5).max(slots * 5 / 32).max(1)).max(1)
}

/// The state while D holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hold {
    /// Rates counted at D, at a step less, and at twice D; with all the demand on the device, the
    /// last at half of the demand.
    pub(super) base: Rate,
    pub(super) less: Rate,
    pub(super) more: Rate,
    pub(super) trial: Trial,
    /// The last trial of D that was like the earlier ones.
    pub(super) last: Rate,
    /// Trials of D until the next trial of another value, and their number before the last one.
    pub(super) left: u32,
    pub(super) between: u32,
    /// The last trial of another value was `Trial::More`.
    pub(super) was_more: bool,
    /// Counts trials that may be left out: one in [`SKIPS`] is made.
    pub(super) skipped: u32,
    /// Trials of D, and the number in a row that were like another load's.
    pub(super) trials: u32,
    pub(super) strange: u32,
    /// Trials of D in a row that left slots free.
    pub(super) free: u32,
    /// All the demand is on the device: D does not hold anything back.
    pub(super) is_short: bool,
    /// D, or all the demand if that is less.
    pub(super) reached: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Trial {
    #[default]
    Base,
    Less,
    More,
}

/// The verdict of the counts on D.
pub(super) enum Verdict {
    Stay,
    /// A step less is enough.
    Less,
    /// Half of all the demand is nearly enough, so that weights need not be given up.
    Half,
    /// A step more is needed.
    More,
    /// Much more is needed.
    Search,
}

impl Hold {
    pub(super) fn new() -> Hold {
        Hold { left: OFTEN, between: OFTEN, ..Hold::default() }
    }

    /// Notes a trial of D; true if the load is another one.
    pub(super) fn note_base(&mut self, rate: &Rate, jitter: u64) -> bool {
        // If trials of one load differ by `jitter`, a difference of twice that is not another load.
        let apart = |a: u64, b: u64| a.abs_diff(b) > b / CHANGED + 1 + b * 2 * jitter / WHOLE;
        let is_strange = self.base.requests > 0
            && (apart(rate.over(&self.base), WHOLE)
                || apart(rate.latency_ns(), self.base.latency_ns())
                || rate.is_short != self.is_short);
        self.strange = if is_strange { self.strange + 1 } else { 0 };
        self.trials = self.trials.saturating_add(1);
        self.left = self.left.saturating_sub(1);
        // A trial of another load would falsify the counts at D.
        if !is_strange {
            self.base.add(rate);
            (self.last, self.is_short) = (*rate, rate.is_short);
        }
        self.strange >= 2 && self.trials >= CALM
    }

    /// The rate with which all others are compared: with all the demand on the device, D's own.
    pub(super) fn most(&self) -> &Rate {
        if self.is_short { &self.base } else { &self.more }
    }

    pub(super) fn verdict(&self, jitter: u64) -> Verdict {
        let (base, less, most) = (&self.base, &self.less, self.most());
        if most.requests == 0 {
            return Verdict::Stay;
        }
        let doubt = |rate: &Rate| rate.noise().max(rate.spread(jitter));
        // Below a D of 1 there is no step, and a trial of less was one of D itself.
        let is_less = less.requests > 0
            && step_down(self.reached) < self.reached
            && less.keeps(most) >= KEPT + doubt(less) + doubt(most);
        if self.is_short {
            let is_half = self.more.requests > 0
                && self.reached > 1
                && self.more.keeps(base) >= KEPT_OF_ALL + doubt(&self.more) + doubt(base);
            return match () {
                () if is_half => Verdict::Half,
                () if is_less => Verdict::Less,
                () => Verdict::Stay,
            };
        }
        // Only the search decides to give up weights.
        let (kept, sure) = if most.is_short { (KEPT_OF_ALL, 2) } else { (KEPT, 1) };
        let short = kept.saturating_sub(base.keeps(most) + sure * (doubt(base) + doubt(most)));
        match short {
            0 if is_less => Verdict::Less,
            0 => Verdict::Stay,
            1..=FAR if !most.is_short => Verdict::More,
            _ => Verdict::Search,
        }
    }

    /// Old counts fade.
    pub(super) fn fade(&mut self) {
        if self.base.requests > MEMORY * ENOUGH.max(self.more.requests) {
            self.base.halve();
            self.less.halve();
            self.more.halve();
        }
    }

    /// Chooses the next trial.
    pub(super) fn choose(&mut self, slots: u32, demand: u64, jitter: u64) {
        self.reached = u32::try_from(demand).unwrap_or(slots).clamp(1, slots);
        // After a strange trial D itself is tried again: the next one shows whether the load has
        // changed.
        if self.left > 0 || self.strange > 0 {
            self.trial = Trial::Base;
            return;
        }
        self.between = (self.between * 2).min(RARELY);
        self.left = self.between;
        self.was_more = !self.was_more;
        let (trial, kept) = match (self.was_more, self.is_short) {
            (false, _) => (Trial::Less, KEPT),
            (true, true) => (Trial::More, KEPT_OF_ALL),
            // A trial of more is never left out, since all other counts are compared with it.
            (true, false) => {
                self.trial = Trial::More;
                return;
            }
        };
        let rate = if self.was_more { &self.more } else { &self.less };
        let doubt = rate.noise().max(rate.spread(jitter));
        let is_far = rate.requests > 0 && rate.keeps(self.most()) + doubt + FAR < kept;
        self.skipped = (self.skipped + 1) % SKIPS;
        self.trial = if is_far && self.skipped > 0 { Trial::Base } else { trial };
    }
}
