//! A host with a clock. The host of [`World`](crate::world::World) may delay its calls; here the
//! event that is due first happens first: a completion, a port's timer or a tick.
//!
//! The device is paced: it serves one request after the other, in the order of issue, with a fixed
//! time for each, and takes as many as it is given. All requests are reads of 4 KiB, so a tenant's
//! share is its part of the completions.

use std::collections::VecDeque;

use fairq_core::{
    CostModel, FlowId, Limits, Next, Op, Outcome, PortId, PortSet, Request, Submitted, Tag, Weight,
};

use crate::world::{Handle, Shape, Subject};

pub(crate) const LENGTH: u32 = 4096;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

/// A tenant that keeps `depth` requests live on each of its ports while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) weight: u16,
    pub(crate) depth: usize,
    pub(crate) ports: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Live {
    tenant: usize,
    issued: bool,
}

pub(crate) struct Host {
    policy: Box<dyn Limits>,
    ports: Vec<Box<dyn Handle>>,
    pub(crate) now_ns: u64,
    owed: PortSet,
    timers: Vec<Option<u64>>,
    tick_ns: Option<u64>,
    /// Live requests, by port and tag.
    live: Vec<Vec<Option<Live>>>,
    /// The time at which each request completes, its port and its tag.
    device: VecDeque<(u64, usize, Tag)>,
    free_ns: u64,
    service_ns: u64,
    tenants: Vec<Tenant>,
    flows: Vec<FlowId>,
    running: Vec<bool>,
    /// Completions so far, by tenant.
    pub(crate) served: Vec<u64>,
}

impl Host {
    /// Builds a policy with `slots` for D; no tenant runs yet.
    pub(crate) fn new(
        subject: &dyn Subject,
        ports: usize,
        slots: u32,
        threshold: u64,
        service_ns: u64,
        tenants: &[Tenant],
    ) -> Host {
        let on = |port| {
            let here = tenants.iter().filter(|tenant| tenant.ports.contains(&port));
            here.map(|tenant| tenant.depth).sum::<usize>()
        };
        let tags = (0..ports).map(on).max().unwrap_or(0);
        let shape = Shape {
            ports,
            flows: tenants.len(),
            tags,
            slots,
            threshold,
            cost: CostModel::default(),
            merge_bytes: 0,
        };
        let (policy, handles) = subject.build(&shape);
        let weight = |tenant: &Tenant| Weight::new(tenant.weight).expect("a legal weight");
        let flows = tenants
            .iter()
            .map(|tenant| policy.add_flow(weight(tenant)).expect("it fits"))
            .collect();
        let mut host = Host {
            policy,
            ports: handles,
            now_ns: 0,
            owed: PortSet::EMPTY,
            timers: vec![None; ports],
            tick_ns: None,
            live: vec![vec![None; tags]; ports],
            device: VecDeque::new(),
            free_ns: 0,
            service_ns,
            tenants: tenants.to_vec(),
            flows,
            running: vec![false; tenants.len()],
            served: vec![0; tenants.len()],
        };
        host.tick();
        host
    }

    /// Starts the tenant: it keeps its requests live from now on.
    pub(crate) fn start(&mut self, tenant: usize) -> Result<(), String> {
        self.running[tenant] = true;
        let Tenant { depth, ports, .. } = self.tenants[tenant].clone();
        for port in ports {
            (0..depth).try_for_each(|_| self.submit(tenant, port))?;
        }
        self.pay()
    }

    /// Stops all tenants and serves all live requests; an error if that takes more than ten
    /// seconds.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.running.fill(false);
        let until_ns = self.now_ns + 10 * SECOND;
        while self.is_live() {
            if !self.step(until_ns)? {
                return Err("requests are lost: some are live after ten seconds".into());
            }
        }
        Ok(())
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, duration_ns: u64) -> Result<(), String> {
        let until_ns = self.now_ns + duration_ns;
        while self.step(until_ns)? {}
        Ok(())
    }

    /// Changes the weights of all tenants in one call.
    pub(crate) fn set_weights(&mut self, weights: &[u16]) {
        let weight = |&weight| Weight::new(weight).expect("a legal weight");
        let all: Vec<_> = self.flows.iter().copied().zip(weights.iter().map(weight)).collect();
        self.policy.set_weights(&all);
    }

    /// Sends one request and runs until a request of the tenant completes, for `limit_ns` at most.
    pub(crate) fn send_one(&mut self, tenant: usize, limit_ns: u64) -> Result<(), String> {
        let (before, until_ns) = (self.served[tenant], self.now_ns + limit_ns);
        self.submit(tenant, self.tenants[tenant].ports[0])?;
        self.pay()?;
        self.await_one(tenant, before, until_ns)
    }

    /// Runs until the tenant has more than `before` completions.
    pub(crate) fn await_one(
        &mut self,
        tenant: usize,
        before: u64,
        until_ns: u64,
    ) -> Result<(), String> {
        while self.served[tenant] == before {
            if !self.step(until_ns)? {
                return Err(format!("tenant {tenant} waits and is not served"));
            }
        }
        Ok(())
    }

    /// Runs to the next tick's deadline, or to `until_ns`.
    pub(crate) fn run_to_tick(&mut self, until_ns: u64) -> Result<(), String> {
        let to_ns = self.tick_ns.map_or(until_ns, |tick_ns| tick_ns.min(until_ns));
        self.run(to_ns.saturating_sub(self.now_ns))
    }

    /// Suspends the machine: the clock goes on and nothing else happens.
    pub(crate) fn sleep(&mut self, until_ns: u64) {
        self.now_ns = self.now_ns.max(until_ns);
    }

    fn is_live(&self) -> bool {
        self.live.iter().flatten().any(Option::is_some)
    }

    /// Handles the next event that is due; returns false if there is none until `until_ns`.
    fn step(&mut self, until_ns: u64) -> Result<bool, String> {
        let done = self.device.front().map(|&(done_ns, ..)| done_ns);
        let timer = self.timers.iter().flatten().min().copied();
        let Some(due_ns) = [done, timer, self.tick_ns].into_iter().flatten().min() else {
            self.now_ns = self.now_ns.max(until_ns);
            return Ok(false);
        };
        if due_ns > until_ns {
            self.now_ns = self.now_ns.max(until_ns);
            return Ok(false);
        }
        self.now_ns = self.now_ns.max(due_ns);
        if self.tick_ns == Some(due_ns) {
            self.tick();
        } else if done == Some(due_ns) {
            self.complete()?;
        } else {
            for port in 0..self.ports.len() {
                if self.timers[port] == Some(due_ns) {
                    self.timers[port] = None;
                    self.owed.insert(PortId(port as u8));
                }
            }
        }
        self.pay()?;
        Ok(true)
    }

    fn tick(&mut self) {
        let deadline = self.policy.tick(self.now_ns, &mut self.owed);
        self.tick_ns = deadline.map(|deadline_ns| deadline_ns.max(self.now_ns + 1));
    }

    fn submit(&mut self, tenant: usize, port: usize) -> Result<(), String> {
        let free = self.live[port].iter().position(Option::is_none);
        let tag = free.ok_or("no tag is free")?;
        self.live[port][tag] = Some(Live { tenant, issued: false });
        let flow = self.flows[tenant];
        let tag = Tag(tag as u32);
        let request = Request::new(tag, flow, Op::Read, 0, LENGTH);
        match self.ports[port].submit(self.now_ns, &request, &mut self.owed) {
            Ok(Submitted::Issue { .. }) => self.issue(port, tag)?,
            Ok(Submitted::Staged) => {}
            Err(why) => return Err(format!("a request is refused: {why}")),
        }
        self.owed.insert(PortId(port as u8));
        Ok(())
    }

    fn issue(&mut self, port: usize, tag: Tag) -> Result<(), String> {
        match self.live[port].get_mut(tag.0 as usize) {
            Some(Some(live)) if !live.issued => live.issued = true,
            _ => return Err(format!("{tag:?} is issued, which is not staged")),
        }
        self.free_ns = self.free_ns.max(self.now_ns) + self.service_ns;
        self.device.push_back((self.free_ns, port, tag));
        Ok(())
    }

    fn complete(&mut self) -> Result<(), String> {
        let Some((_, port, tag)) = self.device.pop_front() else { return Ok(()) };
        let live = self.live[port][tag.0 as usize].take().ok_or("it completes twice")?;
        self.served[live.tenant] += 1;
        self.ports[port].complete(self.now_ns, tag, Outcome::Done, &mut self.owed);
        self.owed.insert(PortId(port as u8));
        if self.running[live.tenant] { self.submit(live.tenant, port) } else { Ok(()) }
    }

    /// Calls `next` on the ports that need it.
    fn pay(&mut self) -> Result<(), String> {
        let bound = 256 + 8 * self.ports.len() * self.live.iter().map(Vec::len).sum::<usize>();
        for _ in 0..bound {
            let Some(port) = self.owed.next() else { return Ok(()) };
            let index = usize::from(port.0);
            self.timers[index] = None;
            match self.ports[index].next(self.now_ns, &mut self.owed) {
                Next::Issue { tag, .. } => {
                    self.issue(index, tag)?;
                    self.owed.insert(port);
                }
                Next::Join { .. } => return Err("nothing is merged here".into()),
                // A timer fires once at each instant: a second call at the same time would give
                // nothing new.
                Next::WaitUntil(time_ns) => {
                    self.timers[index] = Some(time_ns.max(self.now_ns + 1));
                }
                Next::Blocked => {}
                Next::Idle => {
                    let staged = |live: &Option<Live>| live.is_some_and(|live| !live.issued);
                    if self.live[index].iter().any(staged) {
                        return Err(format!("port {index} says idle, and requests are staged"));
                    }
                }
            }
        }
        Err(format!("ports keep waking each other: {bound} calls of next without an end"))
    }
}
