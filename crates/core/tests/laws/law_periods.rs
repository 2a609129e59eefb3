//! **Law: periods.** A policy that hands out tokens by weight once a period is unfair by at most
//! the tokens of a period, however long it runs.
//!
//! With `u` the tokens of a period in units, the same for all flows: tenants that always want more
//! than their tokens differ, over every interval, by at most the tokens of the two partial periods
//! at its ends, `2 u`, and for each port and flow the unused batch, `u / 32`, and the request by
//! which it has overdrawn its tokens. A flow that returns after a pause has no more than that in
//! hand either.

use crate::canary::{self, Fault, caught};
use crate::closed::{Loop, Plan, dispatches, served};
use crate::world::{ONE_UNIT, Subject, Trace};

const SLOTS: u32 = 8;

/// Weights 100, 300 and 600; the last one's requests are larger, and on both ports.
fn tenants(ports: usize) -> [Loop; 3] {
    [
        Loop::new(100, 0, 64, 4096),
        Loop::new(300, ports - 1, 64, 4096),
        Loop::new(600, 0, 32, 16_384).also(ports - 1, 32),
    ]
}

/// The most that any two of these flows may differ by, in units.
fn bound_units(trace: &Trace, flows: &[usize], ports: usize, tokens: u64) -> i128 {
    let weights: u64 = flows.iter().map(|&flow| u64::from(trace.flows[flow].weights[0])).sum();
    let handed = i128::from(tokens * 100 / weights);
    let largest =
        trace.requests.iter().map(|request| request.service()).max().unwrap_or(0) / ONE_UNIT;
    2 * handed + 2 * ports as i128 * (handed / 32 + largest) + 2 * largest
}

/// The greatest lead of the first flow over the second in any part of the interval, and of the
/// second over the first, in units.
fn farthest(trace: &Trace, from: usize, to: usize, pair: [usize; 2]) -> (i128, i128) {
    let (mut value, mut least, mut most, mut ahead, mut behind) = (0, 0, 0, 0, 0);
    for (flow, cost) in dispatches(trace, from, to) {
        let service = i128::from(cost) * 100 * ONE_UNIT / i128::from(trace.flows[flow].weights[0]);
        match pair.iter().position(|&of| of == flow) {
            Some(0) => value += service,
            Some(_) => value -= service,
            None => continue,
        }
        (least, most) = (value.min(least), value.max(most));
        (ahead, behind) = ((value - least).max(ahead), (most - value).max(behind));
    }
    (ahead / ONE_UNIT, behind / ONE_UNIT)
}

fn check(
    trace: &Trace,
    from: usize,
    to: usize,
    flows: &[usize],
    ports: usize,
    tokens: u64,
) -> Result<(), String> {
    let bound = bound_units(trace, flows, ports, tokens);
    for &f in flows {
        for &g in flows.iter().filter(|&&g| g < f) {
            let (ahead, behind) = farthest(trace, from, to, [f, g]);
            if ahead.max(behind) > bound {
                return Err(format!(
                    "flows {f} and {g} differ by {} units within an interval, bound {bound}",
                    ahead.max(behind)
                ));
            }
        }
    }
    Ok(())
}

/// All flows always want more than they get.
pub(crate) fn bounded_deviation(
    subject: &dyn Subject,
    ports: usize,
    tokens: u64,
) -> Result<(), String> {
    let mut plan = Plan::new(subject, ports, SLOTS, 0, Default::default(), &tenants(ports));
    plan.run(1000);
    let from = plan.mark();
    plan.run(20_000);
    let to = plan.mark();
    check(&plan.finish(), from, to, &[0, 1, 2], ports, tokens)
}

/// One flow pauses for a long time and returns.
pub(crate) fn no_credit_beyond_a_period(
    subject: &dyn Subject,
    ports: usize,
    tokens: u64,
) -> Result<(), String> {
    let mut plan = Plan::new(subject, ports, SLOTS, 0, Default::default(), &tenants(ports)[..2]);
    plan.run(1000);
    plan.stop(1);
    plan.run(20_000);
    let back = plan.mark();
    plan.start(1);
    plan.run(4000);
    let to = plan.mark();
    // On each port it may find tokens that it did not use before the pause: half a period's more, a
    // generous bound.
    check(&plan.finish(), back, to, &[0, 1], ports, tokens + tokens / 2)
}

/// The ratio of the bytes of weight 300 to those of weight 100, and the number of periods.
pub(crate) fn shares_and_periods(subject: &dyn Subject) -> (f64, i64) {
    let loops = [Loop::new(100, 0, 64, 4096), Loop::new(300, 1, 64, 4096)];
    let mut plan = Plan::new(subject, 2, SLOTS, 0, Default::default(), &loops);
    let from = plan.mark();
    plan.run(40_000);
    let to = plan.mark();
    let periods = plan.world.policy.stats().tokens.map_or(0, |tokens| tokens.periods);
    let bytes = served(&plan.finish(), from, to);
    (bytes[1] as f64 / bytes[0] as f64, periods as i64)
}

#[test]
fn catches_what_ignores_weights() {
    caught(
        bounded_deviation(&canary::Serial(Fault::FirstComeFirstServed), 1, 1 << 18),
        "units within",
    );
    caught(bounded_deviation(&canary::Serial(Fault::WeightsUpTo100), 2, 1 << 18), "units within");
}

#[test]
fn catches_saved_up_credit() {
    caught(
        no_credit_beyond_a_period(&canary::Serial(Fault::IdleCredit), 1, 1 << 18),
        "units within",
    );
}

#[test]
fn passes_what_is_fair_at_each_request() {
    bounded_deviation(&canary::Serial(Fault::None), 2, 1 << 14).unwrap();
    no_credit_beyond_a_period(&canary::Serial(Fault::None), 2, 1 << 14).unwrap();
}
