//! The cost of a verb and of a tick, with few flows and ports and with many.
//!
//! Accesses to shared words are the cost of a verb, and would show a policy that went through all
//! flows or all ports. A platform counts them. The costliest verb must not make more of them with
//! 10,000 flows on 256 ports than with a few, except for the terms in `bounds`. The accesses of a
//! tick must stay within the bounds that the policies' headers state.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use fairq_classic::AnyPolicy;
use fairq_classic::registry::{self, Shape};
use fairq_core::d2fq::D2fqConfig;
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::platform::{AtomicWord, Lock, Ordering};
use fairq_core::{
    FlowId, Native, Next, Op, Outcome, Platform, Policy, Port, PortSet, Request, Submitted, Tag,
    Topology, Tuning, Weight,
};

use strict::d2fq::{StrictD2fq, TrackerKind};
use strict::mqfq::{MqfqParts, StrictMqfq, VirtualTimeKind};

/// The policies of the papers' authors are part of the laboratory.
#[allow(dead_code, unreachable_pub, reason = "the laboratory uses all of it")]
#[path = "../../sim/src/policies/strict/mod.rs"]
mod strict;

thread_local! {
    static ACCESSES: Cell<u64> = const { Cell::new(0) };
}

/// The result of a call, and the number of accesses to shared words and locks that it made.
fn counted<R>(f: impl FnOnce() -> R) -> (R, u64) {
    ACCESSES.set(0);
    (f(), ACCESSES.get())
}

fn count() {
    ACCESSES.set(ACCESSES.get() + 1);
}

/// Native words and locks that count their accesses.
struct Counting;

struct Word(AtomicU64);

struct CountedLock<T>(Mutex<T>);

impl Platform for Counting {
    type U64 = Word;
    type Mutex<T: Send + 'static> = CountedLock<T>;
    fn relax() {}
}

macro_rules! counted_word {
    ($($verb:ident($($value:ident),*) -> $gives:ty;)*) => {
        impl AtomicWord for Word {
            fn new(value: u64) -> Self {
                Word(AtomicU64::new(value))
            }
            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                count();
                self.0.compare_exchange(current, new, success, failure)
            }
            $(fn $verb(&self, $($value: u64,)* order: Ordering) -> $gives {
                count();
                self.0.$verb($($value,)* order)
            })*
        }
    };
}

counted_word! {
    load() -> u64;
    store(value) -> ();
    swap(value) -> u64;
    fetch_add(value) -> u64;
    fetch_sub(value) -> u64;
    fetch_or(value) -> u64;
    fetch_and(value) -> u64;
}

impl<T: Send + 'static> Lock<T> for CountedLock<T> {
    fn new(value: T) -> Self {
        CountedLock(Mutex::new(value))
    }
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        count();
        f(&mut self.0.lock().unwrap())
    }
}

const TAGS: usize = 16;
const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;

/// Ports and slots for flows that a policy is built with; `open` slots have a flow.
#[derive(Clone, Copy)]
struct Size {
    ports: usize,
    flows: usize,
    open: usize,
}

const FEW: Size = Size { ports: 4, flows: 8, open: 8 };
const MANY: Size = Size { ports: 256, flows: 10_000, open: 250 };

/// The largest number of accesses, by verb.
type Most = BTreeMap<&'static str, u64>;

struct Rig<Q: Policy = AnyPolicy<Counting>> {
    policy: Q,
    ports: Vec<Q::Port>,
    flows: Vec<FlowId>,
    /// Tags that are issued, by port.
    issued: Vec<Vec<Tag>>,
    now_ns: u64,
    most: Most,
}

impl Rig {
    fn new(name: &str, keys: registry::Keys<'_>, size: Size) -> Rig {
        let shape = Shape::new(Topology::flat(size.ports), size.flows, TAGS).before(32);
        Rig::of(AnyPolicy::new(name, keys, &shape).unwrap(), size)
    }
}

impl<Q: Policy> Rig<Q> {
    fn of((policy, ports): (Q, Vec<Q::Port>), size: Size) -> Self {
        // Names of flows in given slots, as a layer gives them to the policy inside.
        let (names, _ports) = NonePolicy::<Native>::new(1, 1, 1).unwrap();
        let first = names.add_flow(Weight::DEFAULT).unwrap();
        let slots = (0..size.open).map(|at| at * (size.flows - 1) / (size.open - 1));
        let names = slots.map(|slot| first.at(slot as u32));
        let weight = |name: FlowId| Weight::new(1 + name.slot() as u16 % 400).unwrap();
        let flows = names.map(|name| policy.add_flow_as(Some(name), weight(name)).unwrap());
        let (flows, issued) = (flows.collect(), ports.iter().map(|_| Vec::new()).collect());
        Rig { policy, ports, flows, issued, now_ns: MS, most: Most::new() }
    }

    /// Runs a verb of a port, counts its accesses, and then calls `next` on the ports that it woke.
    fn verb<R>(
        &mut self,
        name: &'static str,
        port: usize,
        verb: impl FnOnce(&mut Q::Port, u64, &mut PortSet) -> R,
    ) -> R {
        self.now_ns += 1000;
        let mut wake = PortSet::EMPTY;
        let (result, taken) = counted(|| verb(&mut self.ports[port], self.now_ns, &mut wake));
        let most = self.most.entry(name).or_default();
        *most = taken.max(*most);
        for woken in wake {
            self.drain(woken.0.into());
        }
        result
    }

    /// Calls `next` until it issues nothing.
    fn drain(&mut self, port: usize) {
        while let Next::Issue { tag, .. } | Next::Join { tag } =
            self.verb("next", port, |port, now_ns, wake| port.next(now_ns, wake))
        {
            self.issued[port].push(tag);
        }
    }

    fn submit(&mut self, port: usize, tag: usize, flow: usize) {
        let flow = self.flows[flow % self.flows.len()];
        let op = if flow.slot().is_multiple_of(3) { Op::Write } else { Op::Read };
        let request = Request::new(Tag(tag as u32), flow, op, (tag as u64) << 20, 65_536);
        let submit = |port: &mut Q::Port, now_ns, wake: &mut PortSet| {
            port.submit(now_ns, &request, wake).unwrap()
        };
        if let Submitted::Issue { .. } = self.verb("submit", port, submit) {
            self.issued[port].push(request.tag);
        }
    }

    /// All ports stage more than the device takes; each cancels one request and requeues one; then
    /// all are served.
    fn round(&mut self, round: usize) {
        for port in 0..self.ports.len() {
            for tag in 0..8 {
                self.submit(port, tag, round * 17 + port * 5 + tag * 31);
            }
            let cancel =
                |port: &mut Q::Port, now_ns, wake: &mut PortSet| port.cancel(now_ns, Tag(7), wake);
            self.verb("cancel", port, cancel);
            self.drain(port);
        }
        for step in 0.. {
            assert!(step < 20_000, "round {round}: {} are left", self.left());
            for port in 0..self.ports.len() {
                let Some(tag) = self.issued[port].pop() else { continue };
                if step == 0 {
                    let requeue = |port: &mut Q::Port, now_ns, wake: &mut PortSet| {
                        port.requeue(now_ns, tag, wake)
                    };
                    match self.verb("requeue", port, requeue) {
                        Some(Submitted::Issue { .. }) | None => self.issued[port].push(tag),
                        Some(Submitted::Staged) => {}
                    }
                } else {
                    self.verb("complete", port, |port, now_ns, wake| {
                        port.complete(now_ns, tag, Outcome::Done, wake);
                    });
                }
                self.drain(port);
            }
            // Time passes for the ports that wait for a time or for the end of a period.
            self.now_ns += 10 * MS;
            (0..self.ports.len()).for_each(|port| self.drain(port));
            if self.left() == 0 {
                break;
            }
        }
    }

    /// Ports with requests that are staged or issued.
    fn left(&self) -> usize {
        let ports = self.ports.iter().zip(&self.issued);
        ports.filter(|(port, issued)| port.has_work() || !issued.is_empty()).count()
    }

    /// A tick after a pause.
    fn tick(&mut self, pause_ns: u64) {
        self.now_ns += pause_ns;
        let mut wake = PortSet::EMPTY;
        let (_, taken) = counted(|| self.policy.tick(self.now_ns, &mut wake));
        let most = self.most.entry("tick").or_default();
        *most = taken.max(*most);
        for woken in wake {
            self.drain(woken.0.into());
        }
    }

    fn run(mut self) -> Most {
        for round in 0..4 {
            self.round(round);
            self.tick(100 * MS);
            self.tick(MINUTE);
        }
        self.most
    }
}

/// The most accesses that a verb and a tick may make, as the headers of the policies state.
fn bounds(name: &str, size: Size) -> [u64; 2] {
    let Size { ports, flows, .. } = size;
    let [ports, flows, seats] = [ports, flows, TAGS.min(flows)].map(|count| count as u64);
    let [verbs, tick] = match name {
        "none" => [5, 0],
        // Each bucket of the wheel has a word for 64 ports.
        "mqfq" | "mqfq-serial" => [150 + 72 * ports.div_ceil(64), 3 * flows + 8 * ports + 100],
        "d2fq" => [120, 8 * flows + 8 * ports * seats + 20],
        "kyber" => [20, 48 * ports + 20],
        "kyber-fair" => [160 + 8 * ports, 3 * flows + 8 * ports + 160],
        // The lock, and the counters of statistics.
        _ => [10, 4],
    };
    // Counters of ports for the search for D, their sum in a tick, and a new D.
    let [counted, added] = match name {
        "none" | "d2fq" | "kyber" => [0, 0],
        _ => [17, 16 * ports + 40],
    };
    // Counters of costs by the device and their sum in a tick: six words of a port, and one for
    // each class of requests that it has seen, of which there are few here.
    let [charged, found] = match name {
        "mqfq" | "mqfq-serial" | "sfqd" => [14, 12 * ports + 16],
        _ => [0, 0],
    };
    // A tick takes the lock of the stages.
    [verbs + counted + charged, tick + added + found + 2]
}

#[test]
fn neither_verbs_nor_ticks_take_longer_than_is_said() {
    for policy in registry::ALL {
        for size in [FEW, MANY] {
            let most = Rig::new(policy.name, &[], size).run();
            println!("{}: {most:?}", policy.name);
            let [verbs, tick] = bounds(policy.name, size);
            for (verb, accesses) in most {
                let bound = if verb == "tick" { tick } else { verbs };
                let said = format!("{accesses} accesses in {verb} of {}", policy.name);
                assert!(accesses <= bound, "{said}, at most {bound} are documented");
            }
        }
    }
}

/// MQFQ by the letter of its paper also accesses only its own flow and port, and every port only
/// where an array scan finds virtual time.
#[test]
fn mqfq_by_the_letter_of_its_paper_takes_no_longer() {
    let most = |virtual_time, size: Size| {
        let parts = MqfqParts { virtual_time, ..MqfqParts::new(32, 46_080) };
        let topology = Topology::flat(size.ports);
        Rig::of(StrictMqfq::<Counting>::new(parts, &topology, size.flows, TAGS), size).run()
    };
    for size in [FEW, MANY] {
        let [verbs, tick] = bounds("mqfq", size);
        for (verb, accesses) in most(VirtualTimeKind::Mindicator, size) {
            let bound = if verb == "tick" { tick } else { verbs };
            assert!(accesses <= bound, "{accesses} accesses in {verb}, at most {bound}");
        }
    }
    let scan = most(VirtualTimeKind::ArrayScan, MANY);
    assert!(scan["submit"] > MANY.ports as u64, "{scan:?}");
}

/// A verb that goes through all flows is caught: the paper's scanning tracker does so.
#[test]
fn a_verb_that_looks_at_all_flows_is_noticed() {
    let config = D2fqConfig::new(Topology::flat(MANY.ports), MANY.flows, TAGS);
    let most = Rig::of(StrictD2fq::<Counting>::new(&config, TrackerKind::Scan), MANY).run();
    assert!(most["submit"] > bounds("d2fq", MANY)[0], "{most:?}");
}

/// The cost of the control side: adding, weighing or removing a flow takes a bounded number of
/// accesses, however many flows there are; weighing all in one call takes a bounded number for
/// each.
#[test]
fn flows_are_added_and_weighed_in_a_few_steps() {
    for (name, flows, most) in [("mqfq", 20_000, 180), ("sfqd", 20_000, 180)] {
        let shape = Shape::new(Topology::flat(2), flows, TAGS);
        let (policy, mut ports) = AnyPolicy::<Counting>::new(name, &[], &shape).unwrap();
        let weight = |at: usize| Weight::new(1 + at as u16 % 400).unwrap();
        let mut wake = PortSet::EMPTY;
        let mut all = Vec::new();
        for at in 0..flows {
            let (flow, taken) = counted(|| policy.add_flow(weight(at)).unwrap());
            assert!(taken <= most, "{taken} accesses to add flow {at}");
            all.push(flow);
        }
        let (_, taken) = counted(|| policy.set_weight(all[77], weight(5)).unwrap());
        assert!(taken <= most, "{taken} accesses to weigh a flow");
        let others: Vec<_> = all.iter().map(|&flow| (flow, weight(flow.slot() * 7))).collect();
        let (_, taken) = counted(|| policy.set_weights(&others));
        assert!(taken <= flows as u64 * 70, "{taken} accesses to weigh {flows} flows");
        for &flow in &all {
            let (_, taken) = counted(|| policy.remove_flow(flow).unwrap());
            assert!(taken <= most, "{taken} accesses to remove a flow");
        }
        // One `next` releases a bounded number of removed flows, and wakes its own port for the
        // rest.
        for port in &mut ports {
            let mut calls = 0;
            while calls == 0 || !wake.is_empty() {
                wake = PortSet::EMPTY;
                let (_, taken) = counted(|| port.next(MS, &mut wake));
                assert!(taken <= 1000, "{taken} accesses to let go of flows");
                calls += 1;
            }
        }
        assert!((0..flows).all(|at| policy.add_flow(weight(at)).is_ok()));
    }
}

/// A much smaller D costs one step for each node of the tree, not for each slot.
#[test]
fn a_smaller_d_is_paid_in_a_few_steps() {
    for size in [FEW, MANY] {
        let mut config = MqfqConfig::new(Topology::flat(size.ports), size.flows, TAGS);
        config.slots = 65_536;
        let (policy, mut ports) = Mqfq::<Counting>::new(config).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let mut wake = PortSet::EMPTY;
        let request = |tag| Request::new(Tag(tag), flow, Op::Read, 0, 4096);
        for tag in 0..3 {
            if tag == 1 {
                policy.tune(Tuning::Slots(1), &mut wake).unwrap();
            }
            ports[0].submit(0, &request(tag), &mut wake).unwrap();
            let (next, taken) = counted(|| ports[0].next(0, &mut wake));
            assert!(matches!(next, Next::Issue { .. }), "{next:?}");
            assert!(taken <= bounds("mqfq", size)[0], "{taken} accesses");
            assert!(ports[0].complete(0, Tag(tag), Outcome::Done, &mut wake));
        }
    }
}
