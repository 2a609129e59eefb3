//! The whole policy, driven by one thread that delivers every wake-up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::contract::port::{Next, Op, Outcome, Port, Request, SubmitError, Submitted, Tag};
use crate::contract::vtime::VTime;
use crate::structures::topology::Topology;

/// The policy, its ports, and a device that completes in any order.
struct Rig {
    policy: Mqfq,
    ports: Vec<MqfqPort>,
    flows: Vec<FlowId>,
    wake: PortSet,
    staged: Vec<BTreeSet<u32>>,
    in_flight: Vec<(usize, u32)>,
    free_tags: Vec<VecDeque<u32>>,
    issued: Vec<(usize, u32)>,
    now_ns: u64,
}

const TAGS: u32 = 64;

impl Rig {
    fn new(config: MqfqConfig, weights: &[u16]) -> Self {
        let (policy, ports) = Mqfq::new(config).unwrap();
        let flows = weights
            .iter()
            .map(|&weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap())
            .collect();
        let count = ports.len();
        Rig {
            policy,
            ports,
            flows,
            wake: PortSet::EMPTY,
            staged: std::vec![BTreeSet::new(); count],
            in_flight: Vec::new(),
            free_tags: std::vec![(0..TAGS).collect(); count],
            issued: Vec::new(),
            now_ns: 0,
        }
    }

    fn submit(&mut self, port: usize, flow: usize, length: u32) -> Option<u32> {
        let tag = self.free_tags[port].pop_front()?;
        let request = Request::new(Tag(tag), self.flows[flow], Op::Read, 0, length);
        let answer = self.ports[port].submit(self.now_ns, &request, &mut self.wake);
        assert_eq!(answer, Ok(Submitted::Staged));
        assert!(self.staged[port].insert(tag));
        self.wake.insert(PortId(port as u8));
        Some(tag)
    }

    fn complete(&mut self, which: usize) {
        if !self.in_flight.is_empty() {
            let (port, tag) = self.in_flight.remove(which % self.in_flight.len());
            self.ports[port].complete(self.now_ns, Tag(tag), Outcome::Done, &mut self.wake);
            self.free_tags[port].push_back(tag);
            self.wake.insert(PortId(port as u8));
        }
    }

    /// Runs all woken ports until none is left.
    fn settle(&mut self) {
        while let Some(PortId(port)) = self.wake.next() {
            self.run(usize::from(port));
        }
    }

    fn run(&mut self, port: usize) {
        loop {
            match self.ports[port].next(self.now_ns, &mut self.wake) {
                Next::Issue { tag: Tag(tag), .. } => {
                    assert!(self.staged[port].remove(&tag), "issued once, by its own port");
                    self.in_flight.push((port, tag));
                    let slots = self.policy.stats().slots.unwrap();
                    assert!(
                        self.in_flight.len() as u64 <= slots,
                        "never more than D are sent, whatever D was before"
                    );
                    self.issued.push((port, tag));
                }
                Next::Blocked => return assert!(!self.staged[port].is_empty()),
                Next::Idle => return assert!(self.staged[port].is_empty()),
                next => panic!("it merges nothing, and does not wait for a time: {next:?}"),
            }
        }
    }

    /// Checks the invariants that hold whenever no wake-up is outstanding.
    fn check(&self) {
        let stats = self.policy.stats();
        let (slots, free) = (stats.slots.unwrap(), stats.free_slots.unwrap());
        // After D has become less, more may be in flight.
        assert_eq!(free, slots.saturating_sub(self.in_flight.len() as u64), "slots are conserved");
        assert!(
            free == 0 || self.staged.iter().all(BTreeSet::is_empty),
            "no slot is free while a request waits"
        );
    }
}

fn configs() -> impl Strategy<Value = MqfqConfig> {
    let ports = prop_oneof![
        Just(Topology::flat(1)),
        Just(Topology::flat(3)),
        Just(Topology::new((0..8).map(|port| (port / 4, port / 2)).collect())),
    ];
    let threshold = prop_oneof![Just(0), 1u64..20_000, Just(45 * 1024)];
    (ports, 1u32..12, threshold, any::<bool>()).prop_map(
        |(ports, slots, threshold_bytes, serial)| MqfqConfig {
            slots,
            threshold_bytes,
            serial,
            ..MqfqConfig::new(ports, 5, TAGS as usize)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// In every configuration and for any changes of D and T: each request is issued exactly once
    /// by its own port, slots are conserved, no request is sent beyond D, no slot stays free while
    /// a request waits, virtual time never decreases, and in the end all requests are issued.
    #[test]
    fn all_configurations_keep_the_contract(
        config in configs(),
        steps in prop::collection::vec((0u8..16, 0usize..64, 0usize..5, 1u32..40_000), 1..250),
    ) {
        let mut rig = Rig::new(config, &[1, 100, 100, 333, 10_000]);
        let mut time = 0;
        let mut submitted = 0;
        for (action, pick, flow, length) in steps {
            match action {
                0..=6 => submitted += usize::from(rig.submit(pick % rig.ports.len(), flow, length).is_some()),
                7..=10 => rig.complete(pick),
                11 => {
                    let slots = 1 + pick as u32 % 12;
                    rig.policy.tune(Tuning::Slots(slots), &mut rig.wake).unwrap();
                }
                12 => rig.policy.tune(Tuning::Threshold(u64::from(length)), &mut rig.wake).unwrap(),
                _ => {
                    rig.settle();
                    rig.check();
                }
            }
            let now = rig.policy.stats().virtual_time.unwrap();
            prop_assert!(now >= time);
            time = now;
        }
        rig.settle();
        while !rig.in_flight.is_empty() {
            rig.complete(0);
            rig.settle();
            rig.check();
        }
        prop_assert_eq!(rig.issued.len(), submitted);
    }

    /// One port, D = 1, T = 0 is start-time fair queueing: the order is that of a single queue
    /// sorted by start tag and then arrival, with virtual time the start tag of the request that
    /// waits first.
    #[test]
    fn one_port_without_slack_is_sfq(
        steps in prop::collection::vec((0u8..3, 0usize..4, 1u32..20_000), 1..200),
    ) {
        let weights = [50u16, 100, 100, 700];
        let config = MqfqConfig { slots: 1, threshold_bytes: 0, ..MqfqConfig::new(Topology::flat(1), 4, TAGS as usize) };
        let mut rig = Rig::new(config, &weights);
        let (mut ends, mut remainders, mut now) = ([0u64; 4], [0u64; 4], 0u64);
        let mut queue: Vec<(u64, usize, u32)> = Vec::new();
        let mut order = Vec::new();
        for (arrival, (action, flow, length)) in steps.into_iter().enumerate() {
            if action < 2 {
                let Some(tag) = rig.submit(0, flow, length) else { continue };
                let start = ends[flow].max(now);
                let numerator = u64::from(length.max(512)) * 100 + remainders[flow];
                let weight = u64::from(weights[flow]);
                ends[flow] = start + numerator / weight;
                remainders[flow] = numerator % weight;
                queue.push((start, arrival, tag));
            } else {
                rig.complete(0);
            }
            queue.sort_unstable();
            now = queue.first().map_or(now, |&(start, ..)| now.max(start));
            if rig.in_flight.is_empty() && !queue.is_empty() {
                order.push((0, queue.remove(0).2));
                now = queue.first().map_or(now, |&(start, ..)| now.max(start));
            }
            rig.settle();
            prop_assert_eq!(&rig.issued, &order);
            prop_assert_eq!(rig.policy.stats().virtual_time, Some(now));
        }
    }
}

#[test]
fn requests_are_refused_without_trace() {
    let config = MqfqConfig { slots: 1, ..MqfqConfig::new(Topology::flat(1), 1, 2) };
    let mut rig = Rig::new(config, &[100]);
    let request = |tag, flow| Request::new(Tag(tag), flow, Op::Write, 0, 4096);
    let flow = rig.flows[0];
    let port = &mut rig.ports[0];
    assert_eq!(port.submit(0, &request(2, flow), &mut rig.wake), Err(SubmitError::BadTag));
    assert_eq!(port.submit(0, &request(0, flow), &mut rig.wake), Ok(Submitted::Staged));
    assert_eq!(port.submit(0, &request(0, flow), &mut rig.wake), Err(SubmitError::BadTag));
    port.complete(0, Tag(0), Outcome::Done, &mut rig.wake);
    port.complete(0, Tag(9), Outcome::Done, &mut rig.wake);
    assert_eq!(
        rig.policy.stats().free_slots,
        Some(1),
        "a staged or unknown tag cannot be completed"
    );
    rig.policy.remove_flow(flow).unwrap();
    assert_eq!(port.submit(0, &request(1, flow), &mut rig.wake), Err(SubmitError::NoSuchFlow));
    assert!(matches!(port.next(0, &mut rig.wake), Next::Issue { tag: Tag(0), .. }));
    assert_eq!(port.next(0, &mut rig.wake), Next::Idle);
    assert_eq!(
        rig.policy.add_flow(Weight::DEFAULT),
        Err(FlowError::Full),
        "its request is in flight"
    );
    port.complete(0, Tag(0), Outcome::Failed, &mut rig.wake);
    let new = rig.policy.add_flow(Weight::DEFAULT).unwrap();
    assert_eq!(port.submit(0, &request(0, new), &mut rig.wake), Ok(Submitted::Staged));
}

#[test]
fn tick_lifts_flows_that_lag() {
    let config = MqfqConfig::new(Topology::flat(1), 2, TAGS as usize);
    let mut rig = Rig::new(config, &[100, 100]);
    for _ in 0..10 {
        rig.submit(0, 0, 4096);
        rig.settle();
        rig.complete(0);
        rig.settle();
    }
    let time = rig.policy.stats().virtual_time.unwrap();
    assert_eq!(time, 9 * 4096);
    let ends = |rig: &Rig| {
        [0, 1].map(|slot| {
            rig.policy.shared.ends.earliest(slot, &Account::default(), VTime::ZERO).unwrap().units()
        })
    };
    assert_eq!(ends(&rig), [10 * 4096, 0]);
    assert_eq!(rig.policy.tick(5, &mut PortSet::EMPTY.clone()), Some(5 + LIFT_PERIOD_NS));
    assert_eq!(ends(&rig), [10 * 4096, time]);
}

#[test]
fn a_new_threshold_takes_effect() {
    let config =
        MqfqConfig { threshold_bytes: 0, slots: 8, ..MqfqConfig::new(Topology::flat(2), 2, 8) };
    let mut rig = Rig::new(config, &[100, 100]);
    let mut wake = PortSet::EMPTY;
    (0..4).for_each(|_| assert!(rig.submit(0, 0, 4096).is_some()));
    // Port 1 holds virtual time at 0 and is not run.
    let held = Request::new(Tag(0), rig.flows[1], Op::Read, 0, 4096);
    rig.ports[1].submit(0, &held, &mut wake).unwrap();
    rig.settle();
    assert_eq!(rig.issued.len(), 1);
    // With two ports the window is four fifths of T: 9,831.
    rig.policy.set_threshold(3 * 4096, false, &mut wake).unwrap();
    assert_eq!(wake, PortSet::only(PortId(0)));
    rig.wake = wake;
    rig.settle();
    assert_eq!(rig.issued.len(), 3);
    assert!(rig.policy.set_threshold(MAX_THRESHOLD + 1, false, &mut wake).is_err());
}

#[test]
fn a_threshold_follows_until_one_is_given() {
    let config = MqfqConfig {
        threshold_bytes: 4096,
        threshold_follows: true,
        ..MqfqConfig::new(Topology::flat(2), 1, 8)
    };
    let mut rig = Rig::new(config, &[100]);
    let window = |rig: &Rig| rig.policy.shared.wheel.window().units();
    let before = window(&rig);
    let mut wake = PortSet::EMPTY;
    assert_eq!(rig.policy.tick(0, &mut wake), Some(follow::PERIOD_NS));
    (0..2).for_each(|_| assert!(rig.submit(0, 0, 64 << 20).is_some()));
    rig.settle();
    rig.policy.shared.counters[0].throttles.fetch_add(100_000, Ordering::Relaxed);
    assert_eq!(rig.policy.tick(follow::PERIOD_NS, &mut wake), Some(2 * follow::PERIOD_NS));
    assert_eq!(window(&rig), rig.policy.shared.ends.window(2 * 4096));
    rig.policy.tune(Tuning::Threshold(4096), &mut wake).unwrap();
    assert_eq!((window(&rig), rig.policy.tick(7, &mut wake)), (before, Some(LIFT_PERIOD_NS)));
    rig.policy.tune(Tuning::FollowingThreshold(8192), &mut wake).unwrap();
    assert_eq!(rig.policy.tick(9, &mut wake), Some(9 + follow::PERIOD_NS));
}

/// A port runs 5 us after its release. The time counts as late if a slot is free, and not if the
/// device is full.
#[test]
fn late_ports_count_if_the_device_waits_for_them() {
    for (slots, late_ns) in [(8, 5_000), (6, 0)] {
        let config = MqfqConfig {
            threshold_bytes: 5 * 4096,
            slots,
            ..MqfqConfig::new(Topology::flat(2), 2, 64)
        };
        let mut rig = Rig::new(config, &[100, 100]);
        // Port 0 sends five requests ahead of the first one of port 1, which holds virtual time.
        (0..8).for_each(|_| assert!(rig.submit(0, 0, 4096).is_some()));
        (0..4).for_each(|_| assert!(rig.submit(1, 1, 16 * 4096).is_some()));
        rig.run(0);
        assert_eq!(rig.issued.len(), 5);
        (rig.wake, rig.now_ns) = (PortSet::EMPTY, 1_000);
        rig.run(1);
        assert!(rig.wake.contains(PortId(0)), "virtual time has moved on");
        rig.now_ns = 6_000;
        rig.settle();
        assert_eq!(rig.policy.sum(|port| &port.late_ns), late_ns);
    }
}

/// Once in each period all ports but one are released, and run together a hundredth of the period
/// later. For any number of ports, the late time is a hundredth of all time, so T stays.
#[test]
fn many_late_ports_are_not_late_many_times() {
    for ports in [2usize, 16, 64] {
        let config = MqfqConfig {
            threshold_bytes: 4096,
            threshold_follows: true,
            slots: 1024,
            ..MqfqConfig::new(Topology::flat(ports), ports, 64)
        };
        let mut rig = Rig::new(config, &std::vec![100; ports]);
        let window = |rig: &Rig| rig.policy.shared.wheel.window().units();
        let (before, mut wake) = (window(&rig), PortSet::EMPTY);
        for period in 0..20 {
            rig.now_ns = period * follow::PERIOD_NS;
            rig.policy.tick(rig.now_ns, &mut wake);
            // The first port holds the others back by the first of its two requests.
            (0..2).for_each(|_| assert!(rig.submit(0, 0, 1 << 20).is_some()));
            for port in 1..ports {
                (0..2).for_each(|_| assert!(rig.submit(port, port, 1 << 20).is_some()));
                rig.run(port);
            }
            rig.wake = PortSet::EMPTY;
            rig.run(0);
            rig.now_ns += follow::PERIOD_NS / 100;
            rig.settle();
            (0..2 * ports).for_each(|_| rig.complete(0));
            rig.settle();
        }
        let late_ns = rig.policy.sum(|port| &port.late_ns);
        assert!(late_ns > 0, "{ports} ports: somebody was late");
        assert!(late_ns <= 20 * follow::PERIOD_NS / 100, "{ports} ports: {late_ns} ns");
        assert_eq!(window(&rig), before, "{ports} ports");
    }
}

/// T is in bytes at the reference weight, whichever flows come and go.
#[test]
fn the_window_follows_the_weights() {
    let config = MqfqConfig::new(Topology::flat(1), 3, 8);
    let rig = Rig::new(config, &[]);
    let weigh = |weight| Weight::new(weight).unwrap();
    let mut port = rig.ports.into_iter().next().unwrap();
    let mut window = || {
        assert_eq!(port.next(0, &mut PortSet::EMPTY.clone()), Next::Idle);
        rig.policy.shared.wheel.window().units()
    };
    assert_eq!(window(), 46_080);
    let heavy = rig.policy.add_flow(weigh(10_000)).unwrap();
    assert_eq!(window(), 461);
    let light = rig.policy.add_flow(weigh(100)).unwrap();
    assert_eq!(window(), 1_844, "the heavy one may be four times as far ahead");
    rig.policy.set_weight(heavy, weigh(400)).unwrap();
    assert_eq!(window(), 46_080);
    rig.policy.remove_flow(light).unwrap();
    assert_eq!(window(), 11_520);
    rig.policy.tune(Tuning::Threshold(4096), &mut PortSet::EMPTY.clone()).unwrap();
    assert_eq!(rig.policy.shared.wheel.window().units(), 1_024, "at once");
}

/// A change of weights wakes the ports that sleep by the old window, as soon as any port runs.
#[test]
fn a_new_weight_wakes_sleepers() {
    let config = MqfqConfig { slots: 8, ..MqfqConfig::new(Topology::flat(3), 3, 8) };
    let mut rig = Rig::new(config, &[100, 100, 100]);
    (0..3).for_each(|_| assert!(rig.submit(0, 0, 40_000).is_some()));
    let mut wake = PortSet::EMPTY;
    let held = Request::new(Tag(0), rig.flows[1], Op::Read, 0, 4096);
    rig.ports[1].submit(0, &held, &mut wake).unwrap();
    rig.settle();
    assert_eq!(rig.issued.len(), 1, "the second starts at 40,000, beyond 36,864");
    rig.policy.set_weight(rig.flows[2], Weight::new(50).unwrap()).unwrap();
    rig.run(2);
    assert_eq!(rig.wake, PortSet::only(PortId(0)));
    rig.settle();
    assert_eq!(rig.issued.len(), 2);
}

/// The sleeper itself may be the first port that runs: it reports that it has work.
#[test]
fn a_sleeper_has_work_once_there_are_other_weights() {
    let config = MqfqConfig { slots: 8, ..MqfqConfig::new(Topology::flat(2), 3, 8) };
    let mut rig = Rig::new(config, &[100, 100, 100]);
    (0..2).for_each(|_| assert!(rig.submit(0, 0, 40_000).is_some()));
    let held = Request::new(Tag(0), rig.flows[1], Op::Read, 0, 4096);
    rig.ports[1].submit(0, &held, &mut PortSet::EMPTY.clone()).unwrap();
    rig.settle();
    assert!(rig.issued.len() == 1 && !rig.ports[0].has_work(), "it sleeps");
    rig.policy.set_weight(rig.flows[2], Weight::new(50).unwrap()).unwrap();
    assert!(rig.ports[0].has_work(), "the wanted W is twice the old one");
    rig.run(0);
    assert_eq!(rig.issued.len(), 2);
}

/// The port is woken at virtual time 8,192, where a bucket begins, but may dispatch at 4,097
/// already.
#[test]
fn a_sleeper_has_work_once_it_may_go() {
    let config = MqfqConfig { slots: 8, ..MqfqConfig::new(Topology::flat(2), 2, 8) };
    let mut rig = Rig::new(config, &[100, 100]);
    (0..2).for_each(|_| assert!(rig.submit(0, 0, 40_961).is_some()));
    let mut wake = PortSet::EMPTY;
    for tag in [Tag(0), Tag(1)] {
        let other = Request::new(tag, rig.flows[1], Op::Read, 0, 5000);
        rig.ports[1].submit(0, &other, &mut wake).unwrap();
    }
    rig.settle();
    assert!(rig.issued.len() == 1 && !rig.ports[0].has_work(), "it sleeps");
    assert!(matches!(rig.ports[1].next(0, &mut wake), Next::Issue { .. }));
    assert_eq!((rig.policy.stats().virtual_time, wake), (Some(5000), PortSet::EMPTY), "not woken");
    assert!(rig.ports[0].has_work());
    rig.run(0);
    assert_eq!(rig.issued.len(), 2);
}

#[test]
fn slots_change_while_requests_are_outstanding() {
    let config = MqfqConfig { slots: 6, ..MqfqConfig::new(Topology::flat(2), 1, TAGS as usize) };
    let mut rig = Rig::new(config, &[100]);
    let slots = |rig: &mut Rig, count| rig.policy.tune(Tuning::Slots(count), &mut rig.wake);
    // Four are outstanding, and port 0 keeps the two slots that are free.
    (0..6).for_each(|_| assert!(rig.submit(0, 0, 512).is_some()));
    rig.settle();
    (0..2).for_each(|_| rig.complete(0));
    (0..4).for_each(|_| assert!(rig.submit(0, 0, 512).is_some()));
    slots(&mut rig, 3).unwrap();
    assert_eq!((rig.policy.stats().slots, rig.policy.stats().free_slots), (Some(3), Some(0)));
    for left in [4, 3] {
        rig.settle();
        assert_eq!(rig.in_flight.len(), left, "nothing is sent beyond the new D");
        rig.complete(0);
    }
    rig.settle();
    assert_eq!(rig.in_flight.len(), 3, "free slots are used again");
    // The debt is cancelled, and one token is added.
    slots(&mut rig, 1).unwrap();
    slots(&mut rig, 4).unwrap();
    assert!(rig.wake.contains(PortId(0)), "a port that waits for a slot is woken");
    rig.settle();
    assert_eq!((rig.in_flight.len(), rig.policy.stats().free_slots), (4, Some(0)));
    rig.check();
    let too_many = crate::contract::bounds::MAX_SLOTS + 1;
    for count in [0, too_many] {
        assert_eq!(slots(&mut rig, count), Err(ConfigError::Slots(count).into()));
    }
}

#[test]
fn wrong_configurations_are_refused() {
    let good = || MqfqConfig::new(Topology::flat(1), 1, 1);
    let refused = |config| Mqfq::<Native>::new(config).err();
    assert_eq!(refused(good()), None);
    assert_eq!(
        refused(MqfqConfig { ports: Topology::flat(0), ..good() }),
        Some(ConfigError::Ports(0))
    );
    assert_eq!(
        refused(MqfqConfig { ports: Topology::flat(257), ..good() }),
        Some(ConfigError::Ports(257))
    );
    assert_eq!(refused(MqfqConfig { slots: 0, ..good() }), Some(ConfigError::Slots(0)));
    assert_eq!(refused(MqfqConfig { flows: 0, ..good() }), Some(ConfigError::Flows(0)));
    assert_eq!(refused(MqfqConfig { tags: 0, ..good() }), Some(ConfigError::Tags(0)));
    let threshold_bytes = u64::MAX;
    let error = refused(MqfqConfig { threshold_bytes, ..good() });
    assert!(matches!(error, Some(ConfigError::Knob { knob: "threshold", .. })), "{error:?}");
}

#[test]
fn weights_divide_a_busy_device() {
    let config = MqfqConfig { slots: 4, ..MqfqConfig::new(Topology::flat(2), 3, TAGS as usize) };
    let mut rig = Rig::new(config, &[100, 200, 500]);
    let mut owner = BTreeMap::new();
    for port in 0..2 {
        for flow in 0..3 {
            for _ in 0..8 {
                owner.insert((port, rig.submit(port, flow, 4096).unwrap()), flow);
            }
        }
    }
    rig.settle();
    let mut served = [0u32; 3];
    while served.iter().sum::<u32>() < 8_000 {
        let (port, tag) = rig.in_flight[0];
        let flow = owner.remove(&(port, tag)).unwrap();
        served[flow] += 1;
        rig.complete(0);
        owner.insert((port, rig.submit(port, flow, 4096).unwrap()), flow);
        rig.settle();
    }
    for (served, ideal) in served.into_iter().zip([1000, 2000, 5000]) {
        assert!(served.abs_diff(ideal) <= 30, "{served} for {ideal}");
    }
}

/// A flow of weight 1 has requests of the largest cost on one port, more than fit into the window
/// of virtual time. They are all ahead of virtual time, so the flow's next request on another port
/// is ahead, too.
#[test]
fn a_flow_has_its_debt_however_large() {
    let (tags, live) = (16_384, 10_000);
    let config = MqfqConfig { slots: 1, ..MqfqConfig::new(Topology::flat(2), 2, tags) };
    let (policy, mut ports) = Mqfq::<Native>::new(config).unwrap();
    let [heavy, light] =
        [1, 10_000].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
    let wake = &mut PortSet::default();
    let mut submit = |port: &mut MqfqPort, tag: u32, flow, cost| {
        let request = Request::new(Tag(tag), flow, Op::Read, 0, 4096);
        let cost = crate::Cost::bytes(cost);
        port.submit(0, &Request { cost, ..request }, wake).unwrap();
    };
    for tag in 0..live {
        submit(&mut ports[0], tag, heavy, crate::Cost::MAX);
    }
    submit(&mut ports[1], 0, heavy, 4096);
    submit(&mut ports[1], 1, light, 4096);
    let lag = |port: &MqfqPort, flow| port.flow_stats(flow).lag.unwrap();
    let most = crate::vtime::MOST_AHEAD + u64::from(live);
    assert!((1 << 53..=most).contains(&lag(&ports[1], heavy)), "{}", lag(&ports[1], heavy));
    let next = ports[1].next(0, &mut PortSet::default());
    assert!(matches!(next, Next::Issue { tag: Tag(1), .. }), "{next:?}");
}

// End tags.

const THRESHOLD: u64 = 45 * 1024;

fn word(ends: &EndTags<Native>) -> u64 {
    ends.earliest(0, &Account::default(), VTime::ZERO).unwrap().units()
}

proptest! {
    /// One flow, always backlogged on all ports, which run in any order: each request is
    /// charged once, no port's arrears exceed `L`, a port's tags do not decrease; and the
    /// requests that start before any point cost at least the distance of that point, and at
    /// most `A` and one request more.
    #[test]
    fn requests_tile_virtual_time_but_for_the_arrears(
        ports in 2usize..6,
        steps in prop::collection::vec((0usize..6, 1u64..6_000), 1..300),
    ) {
        let ends = EndTags::<Native>::new(1, ports);
        let window = ends.window(THRESHOLD);
        let mut accounts: Vec<_> = (0..ports).map(|_| Account::default()).collect();
        let mut requests: Vec<(u64, u64)> = Vec::new();
        for (port, units) in steps {
            let account = &mut accounts[port % ports];
            let before = account.end;
            let start = ends.tag_from(0, account, units, VTime::ZERO, true, window).unwrap();
            prop_assert!(!start.is_before(before) && account.arrears <= ends.most(window));
            requests.push((start.units(), units));
        }
        let owed: u64 = accounts.iter().map(|account| account.arrears).sum();
        prop_assert_eq!(word(&ends) + owed, requests.iter().map(|request| request.1).sum::<u64>());
        let bound = ends.most_of_all(window) + 6_000;
        for &(point, _) in &requests {
            let cost: u64 = requests.iter().filter(|request| request.0 < point).map(|request| request.1).sum();
            prop_assert!((point..=point + bound).contains(&cost), "{cost} before {point}");
        }
    }
}

/// The header's claim: two windows and four times `A` are at most two thresholds.
#[test]
fn the_window_leaves_room_for_the_arrears() {
    for ports in 1..=64 {
        let ends = EndTags::<Native>::new(1, ports);
        for threshold in (0..2_000).chain([THRESHOLD, crate::contract::bounds::MAX_THRESHOLD]) {
            let window = ends.window(threshold);
            assert!(ends.most(window) * ports as u64 <= ends.most_of_all(window));
            assert!(2 * window + 4 * ends.most_of_all(window) <= 2 * threshold);
            assert!(ports > 1 || window == threshold);
        }
    }
}

#[test]
fn the_worked_example() {
    let ends = EndTags::<Native>::new(1, 2);
    let window = ends.window(THRESHOLD);
    assert_eq!((window, ends.most(window)), (36_864, 2_304));
    for (units, charged) in [(4096, [true; 6]), (2048, [false, true, false, true, false, true])] {
        let mut account = Account::default();
        for charged in charged {
            let before = word(&ends);
            ends.tag_from(0, &mut account, units, VTime::ZERO, true, window).unwrap();
            assert_eq!(word(&ends) != before, charged);
        }
    }
}

#[test]
fn an_idle_flow_comes_back_at_virtual_time_and_its_word_not_far_behind() {
    let ends = EndTags::<Native>::new(1, 2);
    let window = ends.window(THRESHOLD);
    let mut account = Account { end: VTime::ZERO, arrears: 500 };
    let now = VTime::from_units(1 << 40);
    assert_eq!(ends.tag_from(0, &mut account, 100, now, false, window), None);
    assert_eq!(ends.tag_at(0, &mut account, 100, now, window), Some(now));
    assert_eq!(word(&ends), now.units() - ends.most_of_all(window) + 100);
    // Another port, with an empty account, starts the flow at virtual time as well.
    assert_eq!(ends.tag_at(0, &mut Account::default(), 100, now, window), Some(now));
    // While a request waits, the next one starts at its end, however far the word is behind.
    assert_eq!(ends.tag_from(0, &mut account, 100, now, true, window), Some(now.plus(100)));
}
