//! The H/L ratio: the speed of the high class relative to the low one (Section 3.2).
//!
//! **Problem.** Too small a ratio cannot slow a flow down to its share; too large a one makes the
//! throttled flows' tails long for nothing (Figure 5). **Model.** Once a period the ratio is
//! computed from each flow's activity in it:
//! - *Increase* (Eq. 2), if the foremost flow is more than tau_w ahead of the least: the ratio is
//!   multiplied by the speed of the foremost relative to the least, rounded down, plus 1.
//! - Else *decrease* (Eq. 3) to the largest **virtual slowdown**: the time of a flow's requests in
//!   their classes, relative to their time if all were in the high class; rounded up. But the ratio
//!   does not fall below the one that the period's shares need ([`kept`]).
//!
//! **The registers** are `H = r`, `M = ceil(sqrt r)`, `L = 1`: M is at the geometric mean, and no
//! smaller numbers have these ratios. Their sum is a round of the arbiter. A flow with few requests
//! in flight uses its turn of a round and waits for the others' turns, so its latency grows with
//! the round: at H/L = 4 a round is 7 commands, and 448 with the registers of the paper's authors,
//! 256, 128, 64.
//!
//! # Flows that are left behind
//! A flow that wants less than its share is always in the high class and still more than tau_w
//! behind, which the paper takes as a sign that the ratio is too small. But no ratio helps a flow
//! that waits for its own client. Arbitration distinguishes the two cases:
//! - A queue that is backed up gets as many turns as any other queue of its class. So if none of a
//!   flow's high queues got as many requests as the busiest one, the flow is served at once.
//! - While the high and the low class are backed up, the high class gets `r` requests for each one
//!   of the low class. If it got less than a quarter of that, its queues were empty most of the
//!   time, and a larger ratio has no effect.
//!
//! Eq. 2 is applied to the least of the flows that are behind and pass both tests. Without such a
//! flow the ratio decreases, and Eq. 3 is taken relative to the *least* slowdown of the flows that
//! are not behind: beside a flow that is left behind all others are throttled, and only the ratio
//! of their slowdowns counts. The ratio stays at one and a half times the need, because the medium
//! class takes its part; beside a flow that waits in the high class it stays at four times the
//! measured use, so that the class is empty more often than not. The ratio falls to a quarter at
//! most, because all measurements were taken at the old ratio.

use super::gvt::KIU;
use super::{DEPTHS, SPAN_MAX};
use crate::contract::port::ClassWeights;
use crate::contract::vtime::VTime;

/// The smallest ratio that can be set.
pub const RATIO_MIN: u16 = 1;
/// The largest: one class's weight is at most 256 times another's.
pub const RATIO_MAX: u16 = 256;
/// The smallest ratio that the adjustment sets.
pub const RATIO_FLOOR: u16 = 3;

/// The parts of one whole, for fractions that are counted in parts.
const ONE: u64 = 256;

/// The high class counts as backed up if it got at least one part in this many of the requests that
/// the ratio allows.
const BACKED_UP: u64 = 4;

/// While a flow is left behind, the ratio falls to one part in this many at most: a period's
/// measurements are rough for a ratio that is far away.
const FALL: u16 = 4;

/// A flow's activity in a period.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Its virtual time at the end.
    pub vt: VTime,
    /// The distance that it moved by service, in units.
    pub progress: u64,
    /// Requests submitted to the high, medium and low classes.
    pub requests: [u64; 3],
    /// Whether it is on a port that submitted about as many requests to the high class as the
    /// busiest port.
    pub waits: bool,
    /// Its requests in flight, in units.
    pub in_flight: u64,
}

impl Sample {
    /// Whether at least 15 of 16 of its requests were in the high class.
    fn is_high(&self) -> bool {
        let [high, medium, low] = self.requests;
        (medium + low) * 15 <= high
    }
}

/// The weights that the classes get at this ratio.
pub fn class_weights(ratio: u16) -> ClassWeights {
    ClassWeights { high: ratio, medium: ceil_sqrt(ratio), low: 1 }
}

/// The least whole number whose square is at least `ratio`.
fn ceil_sqrt(ratio: u16) -> u16 {
    (1..=16).find(|root| root * root >= ratio).unwrap_or(16)
}

/// The tau_w, in units, for a flow that is ahead and has `in_flight` units in flight; `unfair` is
/// the least.
pub fn unfair(unfair: u64, in_flight: u64) -> u64 {
    unfair.max(in_flight.saturating_mul(2 * DEPTHS)).min(SPAN_MAX)
}

// **Other points that the paper leaves open.** The floor is 3: the paper reports 3 where less would
// suffice. If the flow of Eq. 2 got nothing at all, the ratio becomes 256 (decision 10). tau_w is
// at least twice the tau_l of the flow that is ahead. Eq. 2 is taken as it stands, even if it gives
// a smaller ratio because the gap is closing: a ratio that could not fall climbed to 256 and stayed
// there. Slowdown counts requests, as arbitration does; the paper counts bytes. A flow whose weight
// changed, or that was idle, counts from the next period on (decision 11).
/// The ratio of the next period.
pub fn next(ratio: u16, samples: &[Sample], unfair: u64) -> u16 {
    // A flow before this point is unfairly far behind the flow of `sample`.
    let edge = |sample: &Sample| sample.vt.minus(self::unfair(unfair, sample.in_flight));
    // Flows are compared by that point and not by virtual time, because a flow with much in flight
    // may be farther ahead.
    let foremost = samples.iter().reduce(|a, b| if edge(a).is_before(edge(b)) { b } else { a });
    let Some(foremost) = foremost else { return ratio };
    let is_behind = |sample: &&Sample| sample.vt.is_before(edge(foremost)) && sample.is_high();
    if !samples.iter().any(|sample| is_behind(&sample)) {
        // Without a gap the ratio is large enough: the need of the shares may keep it, but not
        // raise it.
        return decreased(ratio, samples).max(kept(samples).min(ratio));
    }
    let used = used(samples);
    let waiting = samples.iter().filter(|sample| is_behind(sample) && sample.waits);
    let least = waiting.min_by_key(|sample| sample.progress);
    if let Some(least) = least
        && used * BACKED_UP >= u64::from(ratio) * ONE
    {
        return increased(ratio, foremost, least);
    }
    let others = samples.iter().filter(|sample| !is_behind(sample));
    let slowdowns = others.filter_map(|sample| slowdown(sample, class_weights(ratio)));
    let (min, max) =
        slowdowns.fold((u64::MAX, 0), |(min, max), slow| (slow.min(min), slow.max(max)));
    // No slowdown is less than 1, and `min` is not 0 without samples either.
    let needed = (max * ONE / min).max(used) * 3 / 2;
    let needed = if least.is_some() { needed.max(used * BACKED_UP) } else { needed };
    let next = u16::try_from(needed.div_ceil(ONE) + 1).unwrap_or(ratio);
    next.max(ratio / FALL).min(ratio).max(RATIO_FLOOR)
}

/// The requests of the high class for each one of the low class, in parts.
fn used(samples: &[Sample]) -> u64 {
    let (high, low) = samples.iter().fold((0, 0), |(high, low), sample| {
        let [h, _, l] = sample.requests;
        (high + h, low + l)
    });
    high * ONE / low.max(1)
}

/// Eq. 2.
pub fn increased(ratio: u16, most: &Sample, least: &Sample) -> u16 {
    // A flow that got nothing, though it has requests in flight, needs the most (decision 10).
    if least.progress == 0 {
        return if least.in_flight == 0 { ratio } else { RATIO_MAX };
    }
    // The units are KiU if the product would not fit otherwise.
    let shift = if most.progress >> 54 == 0 { 0 } else { KIU };
    let widened = (most.progress >> shift) * u64::from(ratio) / (least.progress >> shift).max(1);
    u16::try_from(widened + 1).map_or(RATIO_MAX, |next| next.clamp(RATIO_FLOOR, RATIO_MAX))
}

/// The largest slowdown of all flows (Eq. 3), rounded up; without any, no change.
pub fn decreased(ratio: u16, samples: &[Sample]) -> u16 {
    let weights = class_weights(ratio);
    let most = samples.iter().filter_map(|sample| slowdown(sample, weights)).max();
    let next = most.and_then(|most| u16::try_from(most.div_ceil(ONE)).ok());
    next.map_or(ratio, |next| next.clamp(RATIO_FLOOR, RATIO_MAX))
}

/// The ratio that keeps the shares of this period. It assumes that the throttled flow with the
/// fewest requests is in the low class, together with each throttled flow that has less than twice
/// as many, and that all others are in the classes above, which get `r + ceil(sqrt r)` requests for
/// each one of the low class.
///
/// Eq. 3 takes a class's speed for a flow's, as if no other flow were in the medium class. After a
/// ratio that was too large its result is too small, and the ratio would oscillate between 5 and 33
/// in Figure 15 with flows that are unevenly placed.
fn kept(samples: &[Sample]) -> u16 {
    let requests = |sample: &Sample| sample.requests.iter().sum::<u64>();
    let throttled = || samples.iter().filter(|sample| !sample.is_high()).map(requests);
    let Some(least) = throttled().min() else { return RATIO_FLOOR };
    let low = throttled().filter(|&requests| requests < 2 * least).sum::<u64>();
    let others = samples.iter().map(requests).sum::<u64>() - low;
    let enough = |ratio: &u16| u64::from(ratio + ceil_sqrt(*ratio)) * low >= others;
    (RATIO_FLOOR..RATIO_MAX).find(enough).unwrap_or(RATIO_MAX)
}

/// Eq. 3 in parts, at least one whole, rounded up; `None` for a flow that submitted nothing.
fn slowdown(sample: &Sample, weights: ClassWeights) -> Option<u64> {
    let [h, m, l] = [weights.high, weights.medium, weights.low].map(u64::from);
    let [high, medium, low] = sample.requests;
    let served = (high + medium + low) * m * l;
    let in_high_only = high * m * l + medium * h * l + low * h * m;
    (served > 0).then(|| (in_high_only * ONE).div_ceil(served))
}
