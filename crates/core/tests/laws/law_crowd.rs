//! **Law: crowds.** The laws for a few flows on a few ports hold for 1,000 on 64: requests are
//! neither lost nor repeated, virtual time does not go back, no slot is free while a request is
//! staged; and shares are by weight. A port has fewer tags than there are flows here, so flows
//! evict each other from its seats.

use fairq_core::{FlowId, Next, Op, Outcome, PortSet, Request, Tag, Weight};

use crate::canary::{self, Fault, Misbehave, caught};
use crate::closed::{Loop, Plan, served};
use crate::law_take_back::TAKING_BACK;
use crate::script::{Kind, for_all};
use crate::world::{Handle, Shape, Subject, World};
use crate::{law_requests, law_slots, law_virtual_time};

const PORTS: usize = 64;
const FLOWS: usize = 1000;
/// Scripts are long here, so a few are enough.
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

/// The law for a policy that has slots, and whose virtual time, if any, does not go back.
pub(crate) fn keeps_slots(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, CROWD, CASES, |trace| {
        law_slots::check(trace)?;
        law_virtual_time::check(trace)
    })
}

/// Every second flow has three times the others' weight; each keeps four requests, on two ports
/// that it shares only with flows of its own weight. No two flows may be further apart than T and a
/// few requests allow; and if T is less than the service of each flow, all heavy flows together
/// must get three times what the others get, within 2 %.
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

const LENGTH: u32 = 4096;
/// T of the law of evictions, in bytes.
const AHEAD: u64 = 1 << 20;

/// Two ports with their flows; each port's first four tags are used.
struct Pair {
    ports: Vec<Box<dyn Handle>>,
    flows: Vec<FlowId>,
    now_ns: u64,
    wake: PortSet,
    served: [u64; 2],
}

impl Pair {
    fn submit(&mut self, port: usize, tag: u32, flow: usize) {
        let request = Request::new(Tag(tag), self.flows[flow], Op::Read, 0, LENGTH);
        self.ports[port].submit(self.now_ns, &request, &mut self.wake).expect("its tag is free");
    }

    /// Issues and completes one request of the port, if it may issue one; returns its tag.
    fn serve(&mut self, port: usize) -> Option<u32> {
        self.now_ns += 1000;
        let Next::Issue { tag, .. } = self.ports[port].next(self.now_ns, &mut self.wake) else {
            return None;
        };
        self.ports[port].complete(self.now_ns, tag, Outcome::Done, &mut self.wake);
        Some(tag.0)
    }

    /// Serves one request of the second port, on which the first two flows always have two each.
    fn serve_steady(&mut self) -> bool {
        let Some(tag) = self.serve(1) else { return false };
        let flow = tag as usize / 2;
        self.served[flow] += u64::from(LENGTH);
        self.submit(1, tag, flow);
        true
    }

    /// Serves all of the flow's requests on the first port; the second port serves while that
    /// waits.
    fn drain(&mut self, flow: usize, count: usize) {
        let (mut left, mut in_vain) = (count, 0);
        while left > 0 && in_vain < 1000 {
            if self.serve(0).is_some() {
                left -= 1;
                in_vain = 0;
                if let Some(served) = self.served.get_mut(flow) {
                    *served += u64::from(LENGTH);
                }
            } else {
                in_vain += 1;
                self.serve_steady();
            }
        }
    }
}

/// Two flows of equal weight are backlogged throughout on one port. One of them also comes to
/// another port again and again, with some requests each time, and is evicted from its seat there
/// by flows that come and go, of which there are more than tags. It must never be further ahead
/// than Section 2.2 allows.
pub(crate) fn evicted_flows_are_not_ahead(subject: &dyn Subject) -> Result<(), String> {
    let cost = Default::default();
    let shape =
        Shape { ports: 2, flows: 64, tags: 4, slots: 1, threshold: AHEAD, cost, merge_bytes: 0 };
    let (policy, ports) = subject.build(&shape);
    let flows = (0..6).map(|_| policy.add_flow(Weight::DEFAULT).expect("it fits")).collect();
    let mut pair = Pair { ports, flows, now_ns: 0, wake: PortSet::EMPTY, served: [0; 2] };
    (0..4).for_each(|tag| pair.submit(1, tag, tag as usize / 2));
    for round in 0..1500 {
        (0..4).for_each(|tag| pair.submit(0, tag, 0));
        pair.drain(0, 4);
        for other in 2..6 {
            pair.submit(0, 0, other);
            pair.drain(other, 1);
        }
        (0..8).for_each(|_| _ = pair.serve_steady());
        let [a, b] = pair.served;
        // D is 1.
        let bound = 2 * (2 * AHEAD + 2 * u64::from(LENGTH));
        if a.abs_diff(b) > bound {
            return Err(format!("round {round}: {a} and {b} bytes, equal weights, bound {bound}"));
        }
    }
    Ok(())
}

/// More flows are removed at once than a port releases in one verb: one `next` on each port that is
/// woken, and on the ports that these wake, must give all slots back.
pub(crate) fn slots_come_back(subject: &dyn Subject) -> Result<(), String> {
    let cost = Default::default();
    let flows = 200;
    let shape = Shape { ports: 2, flows, tags: 8, slots: 4, threshold: 0, cost, merge_bytes: 0 };
    let mut world = World::new(subject, shape, 1);
    for _ in 0..2 {
        for _ in 0..flows {
            let flow = world.add_flow(100).map_err(|why| format!("{why}: slots are lost"))?;
            world.remove_flow(flow);
        }
        world.settle();
    }
    world.check_flow_slots();
    law_requests::check(&world.trace)
}

#[test]
fn catches_a_port_that_forgets_what_it_has_not_charged() {
    evicted_flows_are_not_ahead(&canary::Serial(Fault::None)).unwrap();
    caught(evicted_flows_are_not_ahead(&canary::Serial(Fault::ForgetsWhatAPortOwes)), "bound");
}

#[test]
fn each_of_the_registry_gives_all_slots_back() {
    for policy in fairq_classic::registry::ALL {
        let verdict = slots_come_back(&crate::subjects::Registered(policy.name));
        verdict.unwrap_or_else(|why| panic!("{}: {why}", policy.name));
    }
    caught(slots_come_back(&canary::Wrapped(Misbehave::LoseWakeUps)), "slots are lost");
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
