//! Arrivals and closed loops for the tests of serial policies.

use std::vec::Vec;

use fairq_core::contract::flow::Weight;
use fairq_core::contract::port::{Op, Outcome};
use fairq_core::serial::{Arrival, Job, Lanes, Selection, SerialConfig, SerialPolicy};

pub(crate) fn config(slots: u32) -> SerialConfig {
    SerialConfig::default().with(|config| {
        (config.flows, config.tags, config.slots) = (8, 512, slots);
    })
}

pub(crate) fn read(job: u32, flow: usize, weight: u16, length: u32) -> Arrival {
    let weight = Weight::new(weight).expect("legal");
    Arrival { job: Job(job), flow, weight, op: Op::Read, offset: 0, length, cost: length.into() }
}

/// A flow that keeps `depth` requests live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) weight: u16,
    pub(crate) length: u32,
    pub(crate) depth: u32,
}

/// Runs closed loops on a device that serves up to `slots` requests at a time, each for
/// `service_ns` of its length, until `end_ns`; gives the requests that each flow was served, in
/// order. Jobs `64 i..` are flow `i`'s.
pub(crate) fn run<S: SerialPolicy>(
    policy: &mut S,
    loops: &[Loop],
    slots: usize,
    end_ns: u64,
    service_ns: impl Fn(u32) -> u64,
) -> Vec<usize> {
    let submit = |policy: &mut S, now_ns: u64, job: u32| {
        let flow = (job / 64) as usize;
        policy.insert(now_ns, &read(job, flow, loops[flow].weight, loops[flow].length));
    };
    for (flow, tenant) in loops.iter().enumerate() {
        policy.add_flow(flow, Weight::new(tenant.weight).expect("legal"));
        (0..tenant.depth).for_each(|nth| submit(policy, 0, flow as u32 * 64 + nth));
    }
    let (mut served, mut device, mut now_ns) = (Vec::new(), Vec::<(u64, u32)>::new(), 1);
    while now_ns < end_ns {
        let mut wait_ns = u64::MAX;
        while device.len() < slots {
            match policy.select(now_ns, Lanes::All) {
                Selection::Serve(Job(job), flow) => {
                    served.push(flow);
                    device.push((now_ns + service_ns(loops[flow].length), job));
                }
                Selection::WaitUntil(until_ns) => {
                    wait_ns = until_ns;
                    break;
                }
                Selection::Nothing => break,
            }
        }
        let first = device.iter().copied().min();
        let Some((done_ns, job)) = first.filter(|first| first.0 <= wait_ns) else {
            assert!(wait_ns < u64::MAX && wait_ns > now_ns, "it waits for something");
            now_ns = wait_ns;
            continue;
        };
        device.retain(|&(_, other)| other != job);
        now_ns = done_ns;
        policy.completed(now_ns, Job(job), (job / 64) as usize, Outcome::Done);
        submit(policy, now_ns + 1, job);
    }
    served
}

/// Number of requests served of each flow.
pub(crate) fn counts(served: &[usize], flows: usize) -> Vec<usize> {
    (0..flows).map(|flow| served.iter().filter(|&&of| of == flow).count()).collect()
}
