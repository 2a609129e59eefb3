//! **Law: the order of SFQ.** On one port with T = 0, requests are dispatched in exactly the order
//! that start-time fair queueing prescribes, ties in order of arrival, compared with an independent
//! [reference](crate::reference) that computes in fractions. Lengths and weights are such that tags
//! are whole units: nothing may differ, not even ties.
//!
//! SFQ(D) is compared at any D. MQFQ is compared at D = 1, and the reference has MQFQ's virtual
//! time (section 2.1: the least start tag of the staged requests; SFQ's is that of the request in
//! service). The two definitions differ only for a flow that becomes backlogged while others are:
//! it may start up to one request later. If no flow does, both references give the same order, and
//! MQFQ's is SFQ's; that is tested too.

use fairq_core::Op;

use crate::canary::{self, Fault, caught};
use crate::reference::{Sfq, VirtualTime};
use crate::script::{ANYTHING, Kind, for_all};
use crate::world::{Event, Shape, Subject, Trace, World};

pub(crate) fn check(trace: &Trace, rule: VirtualTime) -> Result<(), String> {
    let mut reference = Sfq::new(rule);
    for (at, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Submitted(request) => {
                let of = &trace.requests[request];
                reference.arrive(request, of.flow, of.cost, of.weight);
            }
            Event::Issued { request: Some(request), .. } => {
                let expected = reference.dispatch();
                if expected != Some(request) {
                    let expected = expected.map(|expected| (expected, trace.requests[expected]));
                    let got = &trace.requests[request];
                    return Err(format!(
                        "event {at}: dispatched {request} {got:?}, expected {expected:?}"
                    ));
                }
            }
            Event::Completed(_) => reference.complete(),
            _ => {}
        }
    }
    Ok(())
}

const EXACT: Kind = Kind {
    ports: (1, 1),
    thresholds: &[0],
    weights: &[1, 5, 20, 50, 100, 100, 160, 400, 1024, 3200, 6400],
    lengths: &[512, 1024, 4096, 51_200, 1 << 20],
    ..ANYTHING
};

/// At any D, for SFQ(D).
pub(crate) fn holds_at_any_depth(subject: &dyn Subject, rule: VirtualTime) -> Result<(), String> {
    for_all(subject, EXACT, 200, |trace| check(trace, rule))
}

/// At D = 1, without late calls: MQFQ's ports check their lead again in the `next` after an issue,
/// and a request that comes in between would find the older virtual time.
pub(crate) fn holds(subject: &dyn Subject, rule: VirtualTime) -> Result<(), String> {
    for_all(subject, Kind { max_slots: 1, late: false, ..EXACT }, 200, |trace| check(trace, rule))
}

/// At D = 1, with flows that are backlogged from the start until their last request: then the order
/// is SFQ's by any definition of virtual time.
pub(crate) fn holds_for_backlogged_flows(subject: &dyn Subject) -> Result<(), String> {
    let shape = Shape {
        ports: 1,
        flows: 8,
        tags: 256,
        slots: 1,
        threshold: 0,
        cost: Default::default(),
        merge_bytes: 0,
    };
    for seed in 0..100 {
        let mut world = World::new(subject, shape, seed);
        let mut left = Vec::new();
        for _ in 0..2 + world.random(6) {
            let weight = EXACT.weights[world.random(EXACT.weights.len())];
            world.add_flow(weight).expect("it fits");
            left.push(world.random(200));
        }
        let mut staged = vec![0; left.len()];
        for flow in 0..left.len() {
            arrive(&mut world, flow, &mut staged);
        }
        while staged.iter().any(|&staged| staged > 0) || !world.device.is_empty() {
            for flow in 0..left.len() {
                // The next request comes before the flow's last staged one is dispatched, or never.
                if left[flow] > 0
                    && (staged[flow] == 1
                        || ((2..20).contains(&staged[flow]) && world.random(3) == 0))
                {
                    left[flow] -= 1;
                    arrive(&mut world, flow, &mut staged);
                }
            }
            world.settle();
            let served = world.complete(0);
            staged[world.trace.requests[served].flow] -= 1;
        }
        check(&world.trace, VirtualTime::LastDispatched)?;
        check(&world.trace, VirtualTime::LeastStaged)?;
    }
    Ok(())
}

fn arrive(world: &mut World, flow: usize, staged: &mut [usize]) {
    let length = EXACT.lengths[world.random(EXACT.lengths.len())];
    world.submit(0, flow, Op::Read, length).expect("tags enough");
    staged[flow] += 1;
}

#[test]
fn catches_other_orders() {
    for fault in
        [Fault::ByFinishTag, Fault::FirstComeFirstServed, Fault::LastOfEquals, Fault::IdleCredit]
    {
        caught(holds(&canary::Serial(fault), VirtualTime::LastDispatched), "expected Some");
    }
    caught(holds_for_backlogged_flows(&canary::Serial(Fault::ByFinishTag)), "expected Some");
}

#[test]
fn tells_the_two_definitions_of_virtual_time_apart() {
    holds(&canary::Serial(Fault::None), VirtualTime::LastDispatched).unwrap();
    caught(holds(&canary::Serial(Fault::None), VirtualTime::LeastStaged), "expected Some");
}
