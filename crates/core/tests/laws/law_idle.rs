//! **Law: an idle flow gains no credit.** A flow that returns starves no other, and does not wait
//! long itself.
//!
//! The cases are from other schedulers. In dmclock, a tenant that pauses for ten seconds and
//! returns shuts the other out for ten seconds (a million requests of a 100 k IOPS device); in
//! Seastar's fair queue, for 5148 requests. Here the bound on unfairness limits the wait of a
//! backlogged flow: other flows' requests worth `2T + l_f + l_g` units.

use crate::canary::{self, Fault, caught};
use crate::closed::{Loop, Plan, bound_units, dispatches, served};
use crate::law_fairness;
use crate::world::{Subject, Trace};

const LENGTH: u32 = 4096;
const SLOTS: u64 = 8;

/// The most requests of others between two of `flow`.
fn longest_wait(dispatched: impl Iterator<Item = (usize, u64)>, flow: usize) -> u64 {
    let (mut wait, mut longest) = (0, 0);
    for (of, _) in dispatched {
        wait = if of == flow { 0 } else { wait + 1 };
        longest = longest.max(wait);
    }
    longest
}

/// Tenant b pauses while a goes on for 20,000 requests; then both are backlogged again. Returns the
/// trace and the positions at which that begins and ends.
fn returning(subject: &dyn Subject, ports: usize, threshold: u64) -> (Trace, usize, usize) {
    let loops = [Loop::new(100, 0, 40, LENGTH), Loop::new(100, ports - 1, 40, LENGTH)];
    let mut plan = Plan::new(subject, ports, SLOTS as u32, threshold, Default::default(), &loops);
    plan.run(2000);
    plan.stop(1);
    plan.run(20_000);
    let back = plan.mark();
    plan.start(1);
    plan.run(4000);
    let end = plan.mark();
    (plan.finish(), back, end)
}

/// Once b is back, no flow waits for more than `most` requests of the other.
fn waits_for_no_more(trace: &Trace, back: usize, end: usize, most: u64) -> Result<(), String> {
    for flow in [0, 1] {
        let wait = longest_wait(dispatches(trace, back, end), flow);
        if wait > most {
            return Err(format!(
                "flow {flow} waits for {wait} requests of the other, at most {most} are fair"
            ));
        }
    }
    Ok(())
}

/// After the return no flow waits for longer, or gets more, than the bound on unfairness allows.
pub(crate) fn returning_starves_nobody(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
) -> Result<(), String> {
    let (trace, back, end) = returning(subject, ports, threshold);
    waits_for_no_more(&trace, back, end, bound_units(&trace, 0, 1) / u64::from(LENGTH))?;
    let [a, b] = served(&trace, back, end)[..] else { return Err("two flows".into()) };
    // The tenant that stayed has its queue in order; the one that returned starts at virtual time.
    let slots = SLOTS * u64::from(LENGTH);
    if a.abs_diff(b) > bound_units(&trace, 0, 1) + slots {
        return Err(format!("since b is back: {a} bytes of a, {b} of b"));
    }
    law_fairness::check(&trace, !subject.assigns_to_ports())
}

/// The law for policies that limit requests outstanding and set limits anew when a flow comes:
/// while they do so, a flow may wait for up to `4 D` requests of the other; over the whole interval
/// both get the same within a tenth.
pub(crate) fn returning_is_soon_even(subject: &dyn Subject, ports: usize) -> Result<(), String> {
    let (trace, back, end) = returning(subject, ports, 0);
    waits_for_no_more(&trace, back, end, 4 * SLOTS)?;
    let [a, b] = served(&trace, back, end)[..] else { return Err("two flows".into()) };
    if 10 * a.abs_diff(b) > a + b {
        return Err(format!("since b is back: {a} bytes of a, {b} of b"));
    }
    Ok(())
}

/// A tenant with one request at a time beside a flood waits only for the requests that the rules
/// put ahead of it: requests of the other flow worth T, and those with equal tags.
pub(crate) fn one_at_a_time_beside_a_flood(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
) -> Result<(), String> {
    let loops = [Loop::new(100, 0, 256, LENGTH), Loop::new(100, ports - 1, 1, LENGTH)];
    let mut plan = Plan::new(subject, ports, 8, threshold, Default::default(), &loops);
    plan.run(20_000);
    let end = plan.mark();
    let trace = plan.finish();
    let most = bound_units(&trace, 0, 1) / u64::from(LENGTH);
    let mut waits = Vec::new();
    let mut waiting: Option<u64> = None;
    for event in &trace.events[..end] {
        match *event {
            crate::world::Event::Submitted(request) if trace.requests[request].flow == 1 => {
                waiting = Some(0)
            }
            crate::world::Event::Issued { request: Some(request), .. } => {
                if trace.requests[request].flow == 1 {
                    waits.extend(waiting.take());
                } else if let Some(waited) = &mut waiting {
                    *waited += 1;
                }
            }
            _ => {}
        }
    }
    let longest = waits.iter().copied().max().unwrap_or(0);
    if waits.len() < 500 || longest > most {
        let times = waits.len();
        return Err(format!(
            "{times} requests beside the flood, one waited for {longest}, at most {most} are fair"
        ));
    }
    Ok(())
}

/// Two shards with one request at a time each keep a device with two slots busy (another fair
/// queue's users saw 1/17): each gets all that its depth allows, whatever the weights.
pub(crate) fn two_shards_at_depth_one(subject: &dyn Subject, threshold: u64) -> Result<(), String> {
    for (weights, length) in [
        ([100, 100], [LENGTH, LENGTH]),
        ([1, 1000], [LENGTH, LENGTH]),
        ([100, 100], [512, 1 << 20]),
    ] {
        let loops =
            [Loop::new(weights[0], 0, 1, length[0]), Loop::new(weights[1], 1, 1, length[1])];
        let mut plan = Plan::new(subject, 2, 2, threshold, Default::default(), &loops);
        let from = plan.mark();
        plan.run_for(1_000_000_000, 100_000);
        let to = plan.mark();
        let bytes = served(&plan.finish(), from, to);
        for (flow, bytes) in bytes.iter().enumerate() {
            let served = bytes / u64::from(length[flow]);
            if served < 9_980 {
                return Err(format!(
                    "weights {weights:?}: flow {flow} was served {served} of 10,000 times"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn catches_saved_up_credit() {
    caught(returning_starves_nobody(&canary::Serial(Fault::IdleCredit), 1, 0), "of the other");
    returning_starves_nobody(&canary::Serial(Fault::None), 1, 0).unwrap();
    caught(returning_is_soon_even(&canary::Serial(Fault::IdleCredit), 1), "of the other");
}

#[test]
fn catches_a_long_wait() {
    caught(
        one_at_a_time_beside_a_flood(&canary::Serial(Fault::FirstComeFirstServed), 2, 0),
        "beside the flood",
    );
}

#[test]
fn catches_idle_slots() {
    caught(
        two_shards_at_depth_one(&canary::Wrapped(canary::Misbehave::OneSlotTooFew), 0),
        "of 10,000 times",
    );
}
