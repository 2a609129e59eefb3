//! A closed loop in virtual time: threads that keep a constant number of requests live, a direct
//! policy, and a device with weighted round robin behind a window, which takes the same time for
//! every command.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fairq_core::{
    Class, ClassWeights, FlowId, Op, Outcome, Policy, Port, PortSet, Request, Submitted, Tag,
    Weight,
};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, QueueIndex, Window};

pub(crate) const SECOND: u64 = 1_000_000_000;

/// A thread of a flow: the requests that it keeps live on one port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub(crate) flow: usize,
    pub(crate) port: usize,
    pub(crate) depth: usize,
    pub(crate) length: u32,
}

/// The device: the number of commands that it works on at a time, and the time that each takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) window: u32,
    pub(crate) service_ns: u64,
}

/// 64 commands at a time, 320,000 a second.
pub(crate) const DEVICE: Device = Device { window: 64, service_ns: 200_000 };

#[derive(Clone, Copy)]
struct Live {
    thread: usize,
    class: Class,
    submitted_ns: u64,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) flow: usize,
    pub(crate) class: Class,
    pub(crate) length: u32,
    pub(crate) at_ns: u64,
    pub(crate) latency_ns: u64,
}

pub(crate) struct Lab<P: Policy> {
    pub(crate) policy: P,
    ports: Vec<P::Port>,
    pub(crate) flows: Vec<FlowId>,
    threads: Vec<Thread>,
    running: Vec<bool>,
    free: Vec<Vec<u32>>,
    live: Vec<Vec<Option<Live>>>,
    arbiter: Arbiter,
    queues: Vec<VecDeque<(usize, Tag)>>,
    window: Window,
    service_ns: u64,
    in_service: BinaryHeap<Reverse<(u64, u64, usize, u32)>>,
    fetched: u64,
    pub(crate) now_ns: u64,
    tick_ns: u64,
    pub(crate) served: Vec<Served>,
    /// Each change of the H/L ratio: time and ratio.
    pub(crate) ratios: Vec<(u64, u16)>,
    /// Maps the policy's class to the queue's; a canary maps it wrongly.
    pub(crate) twist: fn(Class) -> Class,
}

const TAGS: usize = 4096;
const CLASSES: [Class; 4] = [Class::Urgent, Class::High, Class::Medium, Class::Low];

fn arbitration(weights: ClassWeights) -> Arbitration {
    Arbitration { burst: Burst::power(0), weights }
}

impl<P: Policy> Lab<P> {
    /// `build` takes the numbers of ports, flows and tags. All threads are stopped at first.
    pub(crate) fn new(
        build: impl FnOnce(usize, usize, usize) -> (P, Vec<P::Port>),
        weights: &[u16],
        threads: &[Thread],
        device: Device,
    ) -> Lab<P> {
        let count = threads.iter().map(|thread| thread.port + 1).max().unwrap_or(1);
        let (policy, ports) = build(count, weights.len() + 1, TAGS);
        let add = |&weight| policy.add_flow(Weight::new(weight).expect("legal")).expect("it fits");
        let flows = weights.iter().map(add).collect();
        let even = ClassWeights { high: 1, medium: 1, low: 1 };
        let wanted = policy.class_weights().unwrap_or(even);
        let mut arbiter = Arbiter::new(Mechanism::Weighted, 4 * count, arbitration(wanted));
        for port in 0..count {
            for (class, kind) in CLASSES.into_iter().enumerate() {
                arbiter.add(QueueIndex((4 * port + class) as u16), kind);
            }
        }
        Lab {
            policy,
            ports,
            flows,
            threads: threads.to_vec(),
            running: vec![false; threads.len()],
            free: vec![(0..TAGS as u32).rev().collect(); count],
            live: vec![vec![None; TAGS]; count],
            arbiter,
            queues: vec![VecDeque::new(); 4 * count],
            window: Window::new(device.window),
            service_ns: device.service_ns,
            in_service: BinaryHeap::new(),
            fetched: 0,
            now_ns: SECOND,
            tick_ns: SECOND,
            served: Vec::new(),
            ratios: Vec::new(),
            twist: |class| class,
        }
    }

    pub(crate) fn start(&mut self, flow: usize) {
        for thread in (0..self.threads.len())
            .filter(|&thread| self.threads[thread].flow == flow)
            .collect::<Vec<_>>()
        {
            self.running[thread] = true;
            (0..self.threads[thread].depth).for_each(|_| self.submit(thread));
        }
    }

    pub(crate) fn stop(&mut self, flow: usize) {
        for (thread, running) in self.threads.iter().zip(&mut self.running) {
            *running &= thread.flow != flow;
        }
    }

    pub(crate) fn submit(&mut self, thread: usize) {
        let Thread { flow, port, length, .. } = self.threads[thread];
        let tag = Tag(self.free[port].pop().expect("a tag is free"));
        let request = Request::new(tag, self.flows[flow], Op::Read, 0, length);
        let mut wake = PortSet::EMPTY;
        let answer = self.ports[port].submit(self.now_ns, &request, &mut wake);
        let Ok(Submitted::Issue { class }) = answer else { panic!("{answer:?}") };
        let class = (self.twist)(class);
        self.ports[port].next(self.now_ns, &mut wake);
        assert!(wake.is_empty(), "there is nobody to wake");
        let at = &mut self.live[port][tag.0 as usize];
        assert!(at.is_none());
        *at = Some(Live { thread, class, submitted_ns: self.now_ns });
        let queue = 4 * port + CLASSES.iter().position(|&kind| kind == class).expect("a class");
        self.queues[queue].push_back((port, tag));
        self.arbiter.post(QueueIndex(queue as u16), 1);
        self.fetch();
    }

    /// The device fetches commands while its window has room.
    fn fetch(&mut self) {
        while self.window.free() > 0
            && let Some(QueueIndex(queue)) = self.arbiter.next()
        {
            assert!(self.window.take());
            let (port, tag) =
                self.queues[usize::from(queue)].pop_front().expect("the arbiter counts");
            self.fetched += 1;
            self.in_service.push(Reverse((
                self.now_ns + self.service_ns,
                self.fetched,
                port,
                tag.0,
            )));
        }
    }

    /// Runs for a time.
    pub(crate) fn run(&mut self, duration_ns: u64) {
        let until = self.now_ns + duration_ns;
        loop {
            let done_ns = self.in_service.peek().map_or(u64::MAX, |Reverse((done, ..))| *done);
            if done_ns.min(self.tick_ns) > until {
                self.now_ns = until;
                return;
            }
            if self.tick_ns <= done_ns { self.tick() } else { self.complete() }
        }
    }

    fn tick(&mut self) {
        self.now_ns = self.tick_ns;
        let mut wake = PortSet::EMPTY;
        self.tick_ns = self.policy.tick(self.now_ns, &mut wake).unwrap_or(u64::MAX);
        assert!(self.tick_ns > self.now_ns);
        if let Some(weights) = self.policy.class_weights() {
            self.arbiter.set(arbitration(weights));
            self.ratios.push((self.now_ns, weights.high / weights.low));
        }
    }

    fn complete(&mut self) {
        let Some(Reverse((done_ns, _, port, tag))) = self.in_service.pop() else { return };
        self.now_ns = done_ns;
        let Live { thread, class, submitted_ns } =
            self.live[port][tag as usize].take().expect("it is live");
        self.window.release();
        let mut wake = PortSet::EMPTY;
        self.ports[port].complete(done_ns, Tag(tag), Outcome::Done, &mut wake);
        self.free[port].push(tag);
        let Thread { flow, length, .. } = self.threads[thread];
        self.served.push(Served {
            flow,
            class,
            length,
            at_ns: done_ns,
            latency_ns: done_ns - submitted_ns,
        });
        self.fetch();
        if self.running[thread] {
            self.submit(thread);
        }
    }

    /// The completions since a time.
    pub(crate) fn since(&self, ns: u64) -> impl Iterator<Item = &Served> {
        let first = self.served.partition_point(|served| served.at_ns < ns);
        self.served[first..].iter()
    }

    /// Bytes of each flow since a time.
    pub(crate) fn bytes_since(&self, ns: u64) -> Vec<u64> {
        let mut bytes = vec![0; self.flows.len()];
        self.since(ns).for_each(|served| bytes[served.flow] += u64::from(served.length));
        bytes
    }

    /// The part of a flow's commands that went to a class, in percent, since a time.
    pub(crate) fn percent_in(&self, flow: usize, class: Class, ns: u64) -> u64 {
        let of = |wanted: Option<Class>| {
            self.since(ns)
                .filter(|s| s.flow == flow && wanted.is_none_or(|class| class == s.class))
                .count() as u64
        };
        of(Some(class)) * 100 / of(None).max(1)
    }

    /// The ratios set since a time.
    pub(crate) fn ratios_since(&self, ns: u64) -> Vec<u16> {
        self.ratios.iter().filter(|&&(at, _)| at >= ns).map(|&(_, ratio)| ratio).collect()
    }
}
