//! Closed loops: tenants that keep a constant number of requests live, as a benchmark or a busy
//! guest does, and that can stop and return. `next` is called at once on each port that needs it.

use fairq_core::{CostModel, Op};

use crate::world::{Event, ONE_UNIT, Shape, Subject, Trace, World};

/// A tenant: a flow and its live requests, by port.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    weight: u16,
    length: u32,
    /// Port and depth.
    feeds: Vec<(usize, usize)>,
}

impl Loop {
    pub(crate) fn new(weight: u16, port: usize, depth: usize, length: u32) -> Loop {
        Loop { weight, length, feeds: vec![(port, depth)] }
    }

    pub(crate) fn also(mut self, port: usize, depth: usize) -> Loop {
        self.feeds.push((port, depth));
        self
    }
}

pub(crate) struct Plan {
    pub(crate) world: World,
    loops: Vec<Loop>,
    running: Vec<bool>,
}

impl Plan {
    /// Starts all tenants; flow numbers are positions in `loops`.
    pub(crate) fn new(
        subject: &dyn Subject,
        ports: usize,
        slots: u32,
        threshold: u64,
        cost: CostModel,
        loops: &[Loop],
    ) -> Plan {
        let depth = |port| {
            loops
                .iter()
                .flat_map(|l| &l.feeds)
                .filter(|feed| feed.0 == port)
                .map(|feed| feed.1)
                .sum()
        };
        let tags = (0..ports).map(depth).max().unwrap_or(0);
        let shape =
            Shape { ports, flows: loops.len(), tags, slots, threshold, cost, merge_bytes: 0 };
        let mut world = World::new(subject, shape, 12_345);
        for tenant in loops {
            world.add_flow(tenant.weight).expect("it fits");
        }
        let mut plan = Plan { world, loops: loops.to_vec(), running: vec![false; loops.len()] };
        for tenant in 0..loops.len() {
            plan.start(tenant);
        }
        plan
    }

    pub(crate) fn start(&mut self, tenant: usize) {
        self.running[tenant] = true;
        for (port, depth) in self.loops[tenant].feeds.clone() {
            for _ in 0..depth {
                self.submit(tenant, port);
            }
        }
    }

    pub(crate) fn stop(&mut self, tenant: usize) {
        self.running[tenant] = false;
    }

    fn submit(&mut self, tenant: usize, port: usize) {
        self.world
            .submit(port, tenant, Op::Read, self.loops[tenant].length)
            .expect("a tag is free");
        self.world.settle();
    }

    /// Completes `count` requests in a random order; each is followed by its successor.
    pub(crate) fn run(&mut self, count: usize) {
        for _ in 0..count {
            if self.world.device.is_empty() {
                return;
            }
            let pick = self.world.random(self.world.device.len());
            self.complete(pick);
        }
    }

    /// Runs for `duration_ns` on a device that takes `service_ns` for each request, in parallel for
    /// all that it has.
    pub(crate) fn run_for(&mut self, duration_ns: u64, service_ns: u64) {
        let until = self.world.now_ns + duration_ns;
        while let Some(&first) = self.world.device.first() {
            let done = self.world.issued_ns[first] + service_ns;
            if done > until {
                return;
            }
            self.world.now_ns = self.world.now_ns.max(done);
            self.complete(0);
        }
    }

    /// The tenant cancels one of its staged requests and submits another in its place.
    pub(crate) fn take_back(&mut self, tenant: usize, port: usize) {
        if self.world.cancel_of(tenant, port) {
            self.world.settle();
            self.submit(tenant, port);
        }
    }

    /// Runs for `duration_ns` on a device that serves one request after the other, each in
    /// `service_ns`.
    pub(crate) fn run_paced(&mut self, duration_ns: u64, service_ns: u64) {
        let mut done_ns = self.world.now_ns;
        let until_ns = done_ns + duration_ns;
        while done_ns < until_ns && !self.world.device.is_empty() {
            done_ns = self.world.now_ns.max(done_ns + service_ns);
            self.world.now_ns = done_ns;
            self.complete(0);
        }
    }

    fn complete(&mut self, position: usize) {
        let request = self.world.complete(position);
        let done = self.world.trace.requests[request];
        // `next` is called on the completing port before the successor is submitted, as when
        // replies are slow.
        self.world.settle();
        if self.running[done.flow] {
            self.submit(done.flow, done.port);
        }
    }

    /// The longest time that a request of each flow has waited to be issued, in nanoseconds;
    /// requests that still wait count as if they were issued now.
    pub(crate) fn longest_waits_ns(&self) -> Vec<u64> {
        let mut longest = vec![0; self.loops.len()];
        let World { submitted_ns, issued_ns, now_ns, trace, .. } = &self.world;
        for (request, (&submitted, &issued)) in
            trace.requests.iter().zip(submitted_ns.iter().zip(issued_ns))
        {
            let until = if issued == 0 { *now_ns } else { issued };
            let flow = request.flow;
            longest[flow] = longest[flow].max(until - submitted);
        }
        longest
    }

    /// The present end of the trace, for [`served`].
    pub(crate) fn mark(&self) -> usize {
        self.world.trace.events.len()
    }

    /// Stops all tenants and drains.
    pub(crate) fn finish(mut self) -> Trace {
        self.running.iter_mut().for_each(|running| *running = false);
        self.world.drain();
        self.world.trace
    }
}

/// Bytes that each flow had dispatched in a part of the trace.
pub(crate) fn served(trace: &Trace, from: usize, to: usize) -> Vec<u64> {
    let mut bytes = vec![0; trace.flows.len()];
    for flow_and_cost in dispatches(trace, from, to) {
        bytes[flow_and_cost.0] += flow_and_cost.1;
    }
    bytes
}

/// The flows and costs of the requests that were dispatched in a part of the trace, in order.
pub(crate) fn dispatches(
    trace: &Trace,
    from: usize,
    to: usize,
) -> impl Iterator<Item = (usize, u64)> + '_ {
    trace.events[from..to].iter().filter_map(|event| match *event {
        Event::Issued { request: Some(request), .. } => {
            Some((trace.requests[request].flow, trace.requests[request].cost))
        }
        _ => None,
    })
}

/// The most that two flows may differ by, in units: Theorem 1's bound with slack for rounding.
pub(crate) fn bound_units(trace: &Trace, f: usize, g: usize) -> u64 {
    let largest = |flow| {
        trace.requests.iter().filter(|r| r.flow == flow).map(|r| r.service()).max().unwrap_or(0)
    };
    let units = (largest(f) + largest(g) + ONE_UNIT - 1) / ONE_UNIT;
    2 * trace.threshold + units as u64 + 2 * trace.shape.ports as u64
}
