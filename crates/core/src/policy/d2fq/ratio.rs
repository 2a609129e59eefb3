//! The H/L ratio: how much faster the high class is to be than the low one (Section 3.2).
//!
//! **Problem.** Too small a ratio cannot slow a flow down to its share; too large a one makes the
//! throttled flows' tails long for nothing (Figure 5). **Model.** Once a period, from what each
//! flow did in it:
//! - *Increase* (Eq. 2), if the flow that is most ahead is more than tau_w ahead of the least: the
//!   ratio is multiplied by how much faster it ran, rounded down, plus 1.
//! - Else *decrease* (Eq. 3) to the largest **virtual slowdown**: what a flow's bytes in each class
//!   would have cost it in the low and medium classes, relative to all in the high one; rounded up.
//!
//! The registers are `L = 256 / r`, `M = L x ceil(sqrt r)`, `H = L x r`, so that H/L is the ratio
//! exactly, and M is at the geometric mean.
//!
//! **What the paper leaves open.** The floor is 3: the paper reports 3 where less would do. Flows
//! that were not in flight all period are no measure for the least (decision 9), because no ratio
//! helps a flow that waits for its own client. If the least flow got nothing all period though it
//! was backlogged, the ratio becomes 256 (decision 10). tau_w is at least twice what tau_l is for
//! the foremost flow. Eq. 2 is taken as it stands, also when it gives less than before because the
//! gap is closing: kept from falling, the ratio was seen to climb to 256 and stay. A flow whose
//! weight changed counts from the next period on (decision 11).

use super::DEPTHS;
use super::gvt::KIU;
use crate::contract::port::ClassWeights;
use crate::contract::vtime::VTime;

/// The smallest ratio that can be set.
pub(super) const RATIO_MIN: u16 = 1;
/// The largest: one class's weight is at most 256 times another's.
pub(super) const RATIO_MAX: u16 = 256;
/// The smallest that the adjustment gives.
pub(super) const RATIO_FLOOR: u16 = 3;

/// What a flow did in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Whose it is.
    pub(super) slot: usize,
    /// Its virtual time at the end.
    pub(super) vt: VTime,
    /// How far that moved by service, in units.
    pub(super) progress: u64,
    /// Whether it was in flight all the time, short pauses included.
    pub(super) backlogged: bool,
    /// Whether it paused.
    pub(super) paused: bool,
    /// Bytes submitted to the high, medium and low classes.
    pub(super) bytes: [u64; 3],
    /// What it has in flight, in units.
    pub(super) in_flight: u64,
}

/// The weights that the classes get at this ratio.
pub(super) fn class_weights(ratio: u16) -> ClassWeights {
    let low = RATIO_MAX / ratio.max(1);
    ClassWeights { high: low * ratio, medium: low * ceil_sqrt(ratio), low }
}

/// The least whole number whose square is at least `ratio`.
fn ceil_sqrt(ratio: u16) -> u16 {
    (1..=16).find(|root| root * root >= ratio).unwrap_or(16)
}

/// What counts as unfair when the foremost flow has so much in flight.
pub(super) fn unfair(unfair: u64, in_flight: u64) -> u64 {
    unfair.max(in_flight.saturating_mul(2 * DEPTHS))
}

/// The ratio of the next period.
pub(super) fn next(ratio: u16, samples: &[Sample], unfair: u64, strict_paper: bool) -> u16 {
    let most = samples.iter().reduce(|a, b| if a.vt.is_before(b.vt) { b } else { a });
    let counts = |sample: &&Sample| strict_paper || sample.backlogged;
    let least =
        samples.iter().filter(counts).reduce(|a, b| if b.vt.is_before(a.vt) { b } else { a });
    if let (Some(most), Some(least)) = (most, least) {
        let limit = if strict_paper { unfair } else { self::unfair(unfair, most.in_flight) };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        if most.vt.since(least.vt) > limit {
            return increased(ratio, most, least);
        }
    }
    decreased(ratio, samples)
}

/// Eq. 2.
fn increased(ratio: u16, most: &Sample, least: &Sample) -> u16 {
    match least.progress {
        0 if least.backlogged => RATIO_MAX,
        0 => ratio,
        progress => {
            // In KiU where the product would not fit.
            let shift = if most.progress >> 54 == 0 { 0 } else { KIU };
            let widened = (most.progress >> shift) * u64::from(ratio) / (progress >> shift).max(1);
            u16::try_from(widened + 1).map_or(RATIO_MAX, |next| next.clamp(RATIO_FLOOR, RATIO_MAX))
        }
    }
}

/// The largest Eq. 3 of all flows; without any, no change.
fn decreased(ratio: u16, samples: &[Sample]) -> u16 {
    let weights = class_weights(ratio);
    let slowdown = samples.iter().filter_map(|sample| slowdown(sample, weights)).max();
    slowdown.map_or(ratio, |next| next.clamp(RATIO_FLOOR, RATIO_MAX))
}

/// Eq. 3, rounded up.
fn slowdown(sample: &Sample, weights: ClassWeights) -> Option<u16> {
    let [h, m, l] = [weights.high, weights.medium, weights.low].map(u64::from);
    // 40 bits are exact enough for a ratio of at most 8 bits.
    let total = sample.bytes.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    let shift = 24u32.saturating_sub(total.leading_zeros());
    let [high, medium, low] = sample.bytes.map(|bytes| bytes >> shift);
    let served = (high + medium + low) * m * l;
    let in_high_only = high * m * l + medium * h * l + low * h * m;
    (served > 0).then(|| u16::try_from(in_high_only.div_ceil(served)).unwrap_or(RATIO_MAX))
}
