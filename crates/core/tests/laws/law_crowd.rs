//! **Law: crowds.** What holds for a few flows on a few ports holds for 1,000 on 64: requests are
//! neither lost nor repeated, virtual time does not go back, no slot is free while something is
//! staged; and shares are by weight. A port has fewer tags than there are flows here, so flows take
//! each other's seats.

use crate::canary::{self, Fault, Misbehave, caught};
use crate::closed::{Loop, Plan, served};
use crate::law_take_back::TAKING_BACK;
use crate::script::{Kind, for_all};
use crate::world::Subject;
use crate::{law_requests, law_slots, law_virtual_time};

const PORTS: usize = 64;
const FLOWS: usize = 1000;
/// Scripts are long here, so a few of them do.
const CASES: u32 = 3;

const CROWD: Kind = Kind {
    ports: (PORTS, PORTS),
    flows: (FLOWS, FLOWS),
    tags: 8,
    max_slots: 200,
    max_steps: 2000,
    ..TAKING_BACK
};

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, CROWD, CASES, law_requests::check)
}

/// The same for a policy that has slots, and a virtual time that does not go back, if any.
pub(crate) fn keeps_slots(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, CROWD, CASES, |trace| {
        law_slots::check(trace)?;
        law_virtual_time::check(trace)
    })
}

/// Every second flow has three times the others' weight; each keeps four requests, on two ports
/// where only flows of its own weight are. No two flows are further apart than T and a few
/// requests; and where T is less than what a flow is served, all heavy flows together have three
/// times what all others have, within a fiftieth.
pub(crate) fn shares_by_weight(subject: &dyn Subject, threshold: u64) -> Result<(), String> {
    const LENGTH: u32 = 4096;
    let weight = |flow: usize| if flow.is_multiple_of(2) { 300 } else { 100 };
    let a_loop =
        |flow: usize| Loop::new(weight(flow), flow % PORTS, 2, LENGTH).also((flow + 2) % PORTS, 2);
    let loops: Vec<Loop> = (0..FLOWS).map(a_loop).collect();
    let mut plan = Plan::new(subject, PORTS, 128, threshold, Default::default(), &loops);
    let from = plan.mark();
    plan.run(12 * FLOWS);
    let to = plan.mark();
    let trace = plan.finish();
    let bytes = served(&trace, from, to);
    let sum = |first| bytes.iter().skip(first).step_by(2).sum::<u64>() as f64;
    let ratio = sum(0) / sum(1);
    let units = bytes.iter().enumerate().map(|(flow, bytes)| bytes * 100 / u64::from(weight(flow)));
    let (least, most) = units.fold((u64::MAX, 0), |(least, most), x| (least.min(x), most.max(x)));
    if trace.threshold < least && (ratio / 3.0 - 1.0).abs() > 0.02 {
        return Err(format!("shares of {ratio:.3} instead of 3"));
    }
    let bound = 2 * trace.threshold + 4 * u64::from(LENGTH);
    match most - least <= bound {
        true => Ok(()),
        false => Err(format!("{least} to {most} units, bound {bound}")),
    }
}

#[test]
fn catches_what_loses_wake_ups_or_requests() {
    for fault in [Misbehave::LoseRequests, Misbehave::KeepRemovedFlows] {
        caught(holds(&canary::Wrapped(fault)), "law broken");
    }
}

#[test]
fn catches_unfairness() {
    shares_by_weight(&canary::Serial(Fault::None), 0).unwrap();
    caught(shares_by_weight(&canary::PerPort, 0), "instead of 3");
}
