//! Groups and reservations: closed loops.

#![cfg(not(loom))]

use std::collections::VecDeque;

use proptest::prelude::*;

use fairq_classic::{AnyPolicy, AnyPort};
use fairq_core::Limits;
use fairq_core::registry::Shape;
use fairq_core::{
    FlowError, FlowId, Group, GroupId, Held, Native, Next, Op, Outcome, Policy, Port, PortSet,
    Request, Reservation, ReservationState, Share, SubmitError, Submitted, Tag, Topology, Weight,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A tenant that always has this number of requests of 4 KiB outstanding on each port, in these
/// milliseconds.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    group: Option<u16>,
    weight: u16,
    min_iops: u64,
    depth: usize,
    length: u32,
    ms: (u64, u64),
}

fn tenant(group: Option<u16>, weight: u16) -> Tenant {
    Tenant { group, weight, min_iops: 0, depth: 32, length: 4096, ms: (0, u64::MAX) }
}

fn group(parent: Option<u16>, weight: u16) -> Group {
    let weight = Weight::new(weight).unwrap();
    Group { parent: parent.map(GroupId), weight, ..Group::default() }
}

fn iops(iops: u64) -> Reservation {
    Reservation::new(iops, 0).unwrap()
}

/// A policy before a device that serves one request after the other.
struct Rig {
    policy: AnyPolicy<Native>,
    ports: Vec<AnyPort<Native>>,
    flows: Vec<FlowId>,
    tenants: Vec<Tenant>,
    service_ns: u64,
    now_ns: u64,
    tick_ns: Option<u64>,
    /// Free tags of each port.
    free: Vec<Vec<u32>>,
    /// The tenant of each port's tags.
    of: Vec<Vec<usize>>,
    outstanding: Vec<Vec<usize>>,
    device: VecDeque<(usize, Tag)>,
    /// Broken: the policy is never ticked.
    is_blind: bool,
}

impl Rig {
    fn new(name: &str, ports: usize, groups: &[Group], tenants: &[Tenant]) -> Rig {
        let tags = tenants.iter().map(|tenant| tenant.depth).sum::<usize>().max(8);
        let shape = Shape::new(Topology::flat(ports), tenants.len() + 1, tags);
        let keys: &[_] = if name == "none" { &[] } else { &[("slots", 8)] };
        let keys = if name.starts_with("kyber") { &[] } else { keys };
        let (policy, handles) = AnyPolicy::<Native>::new(name, keys, &shape).unwrap();
        for (id, group) in (0..).zip(groups) {
            policy.set_group(GroupId(id), Some(group)).unwrap();
        }
        let add = |tenant: &Tenant| {
            let flow = policy.add_flow(Weight::new(tenant.weight).unwrap()).unwrap();
            let reservation = iops(tenant.min_iops);
            let share = Share { group: tenant.group.map(GroupId), reservation };
            policy.set_share(flow, &share).unwrap();
            flow
        };
        let flows = tenants.iter().map(add).collect();
        Rig {
            policy,
            ports: handles,
            flows,
            tenants: tenants.to_vec(),
            service_ns: 50_000,
            now_ns: 0,
            tick_ns: Some(0),
            free: vec![(0..tags as u32).collect(); ports],
            of: vec![vec![0; tags]; ports],
            outstanding: vec![vec![0; tenants.len()]; ports],
            device: VecDeque::new(),
            is_blind: false,
        }
    }

    /// Submits the tenants' requests, and gives the device those that the ports issue.
    fn turn(&mut self, wake: &mut PortSet) {
        for port in 0..self.ports.len() {
            for (at, tenant) in self.tenants.iter().enumerate() {
                let ms = self.now_ns / MS;
                let is_there = (tenant.ms.0..tenant.ms.1).contains(&ms);
                while is_there && self.outstanding[port][at] < tenant.depth {
                    let tag = self.free[port].pop().unwrap();
                    let offset = self.now_ns << 12 | u64::from(tag) << 20;
                    let (flow, length) = (self.flows[at], tenant.length);
                    let request = Request::new(Tag(tag), flow, Op::Read, offset, length);
                    match self.ports[port].submit(self.now_ns, &request, wake).unwrap() {
                        Submitted::Staged => {}
                        Submitted::Issue { .. } => self.device.push_back((port, Tag(tag))),
                    }
                    self.of[port][tag as usize] = at;
                    self.outstanding[port][at] += 1;
                }
            }
        }
        for port in 0..self.ports.len() {
            while let Next::Issue { tag, .. } = self.ports[port].next(self.now_ns, wake) {
                self.device.push_back((port, tag));
            }
        }
    }

    /// Requests of each tenant that are served in this number of milliseconds.
    fn run(&mut self, ms: u64) -> Vec<u64> {
        let mut served = vec![0; self.tenants.len()];
        let until_ns = self.now_ns + ms * MS;
        while self.now_ns < until_ns {
            let mut wake = PortSet::EMPTY;
            if !self.is_blind && self.tick_ns.is_some_and(|at_ns| at_ns <= self.now_ns) {
                self.tick_ns = self.policy.tick(self.now_ns, &mut wake);
            }
            self.turn(&mut wake);
            self.now_ns += self.service_ns;
            let Some((port, tag)) = self.device.pop_front() else { continue };
            self.ports[port].complete(self.now_ns, tag, Outcome::Done, &mut wake);
            let at = self.of[port][tag.0 as usize];
            served[at] += 1;
            self.outstanding[port][at] -= 1;
            self.free[port].push(tag.0);
        }
        served
    }

    fn share(&self, at: usize) -> fairq_core::ShareStats {
        self.policy.share(self.flows[at]).unwrap()
    }
}

fn parts(served: &[u64]) -> Vec<f64> {
    let all: u64 = served.iter().sum();
    served.iter().map(|&one| one as f64 / all as f64).collect()
}

fn is_near(parts: &[f64], wanted: &[f64]) -> bool {
    parts.iter().zip(wanted).all(|(part, wanted)| (part - wanted).abs() <= 0.015)
}

/// Policies that promise shares over long times and hold requests.
const POLICIES: [&str; 4] = ["mqfq", "mqfq-serial", "sfqd", "flashfq"];

/// Acme has 300, its two members the same, beside one of 100.
const NESTED: [Tenant; 3] =
    [Tenant { group: Some(0), weight: 100, min_iops: 0, depth: 32, length: 4096, ms: (0, 5000) };
        3];

fn nested() -> ([Group; 1], [Tenant; 3]) {
    let b = Tenant { ms: (0, u64::MAX), ..NESTED[0] };
    ([group(None, 300)], [NESTED[0], b, Tenant { group: None, ..b }])
}

#[test]
fn shares_hold_on_each_level_and_siblings_come_first() {
    let (groups, tenants) = nested();
    for name in POLICIES {
        let mut rig = Rig::new(name, 2, &groups, &tenants);
        rig.run(1000);
        let both = parts(&rig.run(4000));
        rig.run(500);
        let alone = parts(&rig.run(2000));
        println!("{name}: {both:.3?}, then {alone:.3?}");
        assert!(is_near(&both, &[0.375, 0.375, 0.25]), "{name}: {both:?}");
        assert!(is_near(&alone, &[0.0, 0.75, 0.25]), "{name}: {alone:?}");
        assert_eq!(rig.share(0).weight.get(), 150, "as if it were active");
        let acme = rig.policy.group(GroupId(0)).unwrap();
        assert_eq!((acme.weight.get(), acme.members, acme.active), (300, 2, 1));
    }
}

/// The failure that the test above is to notice.
#[test]
fn a_layer_that_never_looks_is_caught() {
    let (groups, tenants) = nested();
    let mut rig = Rig::new("mqfq", 2, &groups, &tenants);
    rig.is_blind = true;
    rig.run(1000);
    let both = parts(&rig.run(1000));
    assert!(!is_near(&both, &[0.375, 0.375, 0.25]), "{both:?}");
}

#[test]
fn all_weights_times_a_factor_change_nothing() {
    let served = |factor: u16| {
        let (mut groups, mut tenants) = nested();
        groups[0] = group(None, 3 * factor);
        tenants.iter_mut().for_each(|tenant| tenant.weight = factor);
        let mut rig = Rig::new("mqfq", 1, &groups, &tenants);
        rig.run(1000);
        parts(&rig.run(3000))
    };
    for factor in [1, 33, 3333] {
        let got = served(factor);
        assert!(is_near(&got, &[0.375, 0.375, 0.25]), "{factor}: {got:?}");
    }
}

/// A group of weight 1 whose members have a thousandth each: less than the least weight.
#[test]
fn weights_below_the_least_are_scaled() {
    let mut tenants = vec![Tenant { depth: 2, ..tenant(Some(0), 1) }; 300];
    tenants.push(Tenant { depth: 64, ..tenant(None, 1) });
    let mut rig = Rig::new("mqfq", 1, &[group(None, 1)], &tenants);
    rig.run(2000);
    let served = rig.run(4000);
    let alone = served[300] as f64 / served.iter().sum::<u64>() as f64;
    assert!((0.48..=0.52).contains(&alone), "{alone}");
}

/// At weight 1 beside two floods of 10,000, in each second.
#[test]
fn a_reservation_holds_whatever_others_weigh() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let least = Tenant { min_iops: 2000, ..tenant(None, 1) };
    let policies = POLICIES.iter().chain(&["fiops", "bfq", "kyber-fair"]);
    for name in policies {
        for ports in [1, 3] {
            let mut rig = Rig::new(name, ports, &[], &[least, flood, flood]);
            let seconds: Vec<u64> = (0..4).map(|_| rig.run(1000)[0]).collect();
            println!("{name}, {ports}: {seconds:?}");
            // A flow's first budget of `bfq` is not measured yet, and goes at once.
            let later = usize::from(*name == "bfq");
            let seconds = &seconds[later..];
            let is_held = |&one: &u64| (1940..=2060).contains(&one);
            assert!(seconds.iter().all(is_held), "{name}: {seconds:?}");
            let stats = rig.share(0);
            assert_eq!(stats.state, ReservationState::Met, "{name}: {stats:?}");
            assert!(stats.ahead > 5500, "{name}: {stats:?}");
        }
    }
}

/// At depth 16 beside floods that keep 128 requests in a device which serves one after the other,
/// where the policy bounds nothing: half of the device takes 32 requests at most in it.
#[test]
fn a_reservation_holds_where_the_policy_bounds_nothing_on_the_device() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    for (name, min_iops) in [("kyber-fair", 10_000), ("kyber", 10_000), ("kyber-fair", 3000)] {
        for ports in [1, 2] {
            let depth = 16 / ports;
            let least = Tenant { min_iops, depth, ..tenant(None, 1) };
            let mut rig = Rig::new(name, ports, &[], &[least, flood, flood]);
            rig.run(1000);
            let seconds: Vec<Vec<u64>> = (0..4).map(|_| rig.run(1000)).collect();
            println!("{name}, {ports}: {seconds:?}");
            for second in seconds {
                assert!(second[0] >= min_iops * 97 / 100, "{name}: {second:?}");
                assert!(second.iter().sum::<u64>() >= 19_990, "{name}: {second:?}");
            }
            assert_eq!(rig.share(0).state, ReservationState::Met, "{name}");
        }
    }
}

/// A reservation that is given while all is staged: requests that the ports issued earlier are not
/// known, and staged ones are not taken for them.
#[test]
fn a_reservation_that_comes_to_a_full_device_stops_nothing() {
    let flood = Tenant { depth: 64, ..tenant(Some(0), 10_000) };
    for name in ["mqfq", "kyber-fair", "sfqd"] {
        let least = Tenant { depth: 16, ..tenant(None, 1) };
        let mut rig = Rig::new(name, 3, &[group(None, 100)], &[least, flood, flood]);
        rig.run(1000);
        let share = Share { group: None, reservation: iops(10_000) };
        rig.policy.set_share(rig.flows[0], &share).unwrap();
        rig.run(1000);
        for _ in 0..3 {
            let second = rig.run(1000);
            println!("{name}: {second:?}");
            assert!(second[0] >= 9700, "{name}: {second:?}");
            assert!(second.iter().sum::<u64>() >= 19_990, "{name}: {second:?}");
        }
    }
}

/// One request at a time takes two turns at least on such a device beside others: 10,000 a second
/// at most. Others make room for it one second in seventeen, and more seldom with time.
#[test]
fn others_make_no_room_for_a_flow_to_which_it_gives_nothing() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let least = Tenant { min_iops: 15_000, depth: 1, ..tenant(None, 1) };
    let mut rig = Rig::new("kyber-fair", 1, &[], &[least, flood]);
    rig.run(4000);
    let stats = rig.share(0);
    assert_eq!(stats.state, ReservationState::Demand, "{stats:?}");
    let mut narrow = 0;
    for _ in 0..40 {
        rig.run(1000);
        narrow += u32::from(rig.device.len() < 32);
    }
    assert!((1..=3).contains(&narrow), "{narrow}");
}

/// A tenant that sends two requests now and then has its answers in time, whatever is reserved.
#[test]
fn others_make_no_room_for_a_flow_that_rests() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let least = Tenant { min_iops: 10_000, depth: 2, ..tenant(None, 1) };
    let mut rig = Rig::new("kyber-fair", 1, &[], &[least, flood]);
    let mut narrow = 0;
    for ms in 0..5000 {
        // Twenty milliseconds of a hundred.
        rig.tenants[0].ms = if ms % 100 < 20 { (ms, ms + 1) } else { (0, 0) };
        rig.run(1);
        narrow += u32::from(rig.device.len() < 32);
    }
    assert!(narrow <= 150, "{narrow} of 5,000 ms");
}

/// A request that waits while the device works on requests that went first for another flow's
/// reservation waits for that; otherwise, or without reservations, for a slot.
#[test]
fn what_waits_for_a_reservation_of_others_says_so() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    for (name, min_iops) in [("mqfq", 700), ("sfqd", 700), ("mqfq", 0)] {
        let least = Tenant { min_iops, depth: 4, ..tenant(None, 1) };
        let mut rig = Rig::new(name, 1, &[], &[least, flood]);
        let mut counts = [0; 2];
        for _ in 0..500 {
            rig.run(1);
            rig.turn(&mut PortSet::default());
            let port = &rig.ports[0];
            let is_first = |(_, tag): &(usize, Tag)| port.reason(Some(*tag)).is_reserved;
            let is_ahead = rig.device.iter().any(is_first);
            let held = if is_ahead { Held::Reserved } else { Held::NoSlot };
            assert_eq!(port.reason(None).held, Some(held), "{name}");
            counts[usize::from(is_ahead)] += 1;
        }
        assert!(counts[0] > 50 && (counts[1] > 50) == (min_iops > 0), "{name}: {counts:?}");
    }
}

/// A port does not wait for a time that has passed, which would keep its thread awake: two years of
/// nanoseconds are all that an order has bits for.
#[test]
fn a_reservation_holds_on_a_machine_that_has_been_up_for_years() {
    for years in [0, 2, 3, 5] {
        let db = Tenant { depth: 16, min_iops: 4000, ms: (0, u64::MAX), ..tenant(None, 1) };
        let flood = Tenant { depth: 64, ms: (0, u64::MAX), ..tenant(None, 10_000) };
        let mut rig = Rig::new("mqfq", 1, &[], &[db, flood]);
        rig.now_ns = years * 365 * 24 * 3600 * SECOND + SECOND;
        rig.run(1000);
        let served = rig.run(1000);
        assert!((3900..=4100).contains(&served[0]), "{years} years: {served:?}");
        let mut waits = 0;
        for _ in 0..1000 {
            let mut next = || rig.ports[0].next(rig.now_ns, &mut PortSet::default());
            let last = loop {
                match next() {
                    Next::Issue { tag, .. } => rig.device.push_back((0, tag)),
                    other => break other,
                }
            };
            if let Next::WaitUntil(at_ns) = last {
                assert!(at_ns > rig.now_ns, "{years} years: until {at_ns} at {}", rig.now_ns);
                waits += 1;
            }
            rig.run(1);
        }
        assert!(waits > 500, "{years} years: {waits}");
    }
}

#[test]
fn a_reservation_below_the_share_changes_nothing() {
    let mut tenants = [tenant(None, 200), tenant(None, 100)];
    tenants[0].min_iops = 2000;
    let mut rig = Rig::new("mqfq", 2, &[], &tenants);
    rig.run(500);
    let got = parts(&rig.run(2000));
    assert!(is_near(&got, &[0.667, 0.333]), "{got:?}");
}

/// One of all requests, and of a group's, which its members have by weight.
#[test]
fn a_groups_reservation_is_its_members() {
    let reserved = Group { reservation: iops(6000), ..group(None, 1) };
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let mut tenants = [tenant(Some(0), 200), tenant(Some(0), 100), flood];
    tenants[0].ms = (0, 3000);
    let mut rig = Rig::new("mqfq", 1, &[reserved], &tenants);
    rig.run(1000);
    let both = rig.run(2000);
    assert!((7800..=8200).contains(&both[0]) && (3880..=4120).contains(&both[1]), "{both:?}");
    rig.run(500);
    let alone = rig.run(1000);
    assert!((5820..=6180).contains(&alone[1]), "{alone:?}");
}

/// 15,000 and 10,000 of a device that does 20,000: three quarters of each, and the rest is the
/// others'.
#[test]
fn reservations_that_are_too_much_shrink_in_proportion() {
    let least = |min_iops| Tenant { min_iops, depth: 256, ..tenant(None, 1) };
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let mut rig = Rig::new("mqfq", 1, &[], &[least(15_000), least(10_000), flood]);
    rig.run(3000);
    let served = rig.run(2000);
    println!("{served:?}, {:?}", rig.policy.stats().reserved);
    let reserved = rig.policy.stats().reserved.unwrap();
    assert!((1_230_000..=1_270_000).contains(&reserved.asked_ppm), "{reserved:?}");
    assert!((19_800..=20_200).contains(&reserved.requests_per_s), "{reserved:?}");
    let wanted = [22_500, 15_000, 2_500];
    for (got, wanted) in served.iter().zip(wanted) {
        assert!(got.abs_diff(wanted) <= 900, "{served:?}");
    }
    assert_eq!(rig.share(0).state, ReservationState::Shrunk);
}

/// 32 requests are staged at weight 1; their turn would come in half a minute.
#[test]
fn a_reservation_that_is_given_later_holds_at_once() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let mut rig = Rig::new("mqfq", 2, &[], &[tenant(None, 1), flood, flood]);
    rig.run(1000);
    let set = |rig: &Rig, min: u64| {
        let share = Share { group: None, reservation: iops(min) };
        rig.policy.set_share(rig.flows[0], &share).unwrap();
    };
    set(&rig, 2000);
    let got = rig.run(1000)[0];
    assert!((1940..=2060).contains(&got), "{got}");
    set(&rig, 500);
    let got = rig.run(1000)[0];
    assert!((480..=520).contains(&got), "{got}");
    set(&rig, 0);
    rig.run(500);
    let got = rig.run(1000)[0];
    assert!(got < 20, "{got}");
    assert_eq!(rig.share(0).state, ReservationState::Idle);
}

#[test]
fn a_tenant_that_asks_for_less_has_no_complaint() {
    let flood = Tenant { depth: 64, ..tenant(None, 10_000) };
    let one = Tenant { min_iops: 30_000, depth: 1, ..tenant(None, 1) };
    let mut rig = Rig::new("mqfq", 1, &[], &[one, flood]);
    // Before the first measurement of the device.
    rig.run(200);
    assert_eq!(rig.share(0).granted.iops(), 30_000);
    rig.run(3000);
    let stats = rig.share(0);
    assert_eq!(stats.state, ReservationState::Demand, "at times it asks for nothing");
    assert!(stats.granted.iops() <= 18_750, "the device does 20,000: {stats:?}");
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let (groups, tenants) = nested();
    let mut rig = Rig::new("mqfq", 1, &groups, &tenants);
    let share = |group| Share { group: Some(GroupId(group)), ..Share::default() };
    let (policy, flow) = (&rig.policy, rig.flows[0]);
    assert_eq!(policy.set_share(flow, &share(7)), Err(FlowError::NoSuchGroup));
    assert_eq!(policy.set_group(GroupId(0), None), Err(FlowError::HasMembers));
    assert_eq!(rig.share(0).share, share(0));
    rig.policy.remove_flow(flow).unwrap();
    assert_eq!(rig.policy.set_share(flow, &share(0)), Err(FlowError::NoSuchFlow));
    assert_eq!(rig.policy.share(flow), None);
    rig.policy.set_share(rig.flows[1], &Share::default()).unwrap();
    assert_eq!(rig.policy.set_group(GroupId(0), None), Ok(()));
    assert_eq!(rig.policy.group(GroupId(0)), None);
    // A request on the device that the policy does not know is as live as any.
    let least = Share { group: None, reservation: iops(1000) };
    rig.policy.set_share(rig.flows[1], &least).unwrap();
    let request = Request::new(Tag(3), rig.flows[1], Op::Read, 0, 4096);
    let (port, mut wake) = (&mut rig.ports[0], PortSet::EMPTY);
    rig.policy.tick(SECOND / 2, &mut wake);
    // Until `next` has been called once, the port may be within a command.
    assert_eq!(port.next(SECOND, &mut wake), Next::Idle);
    port.submit(SECOND, &request, &mut wake).unwrap();
    assert!(matches!(port.next(SECOND, &mut wake), Next::Issue { tag: Tag(3), .. }));
    assert_eq!(port.submit(SECOND, &request, &mut wake), Err(SubmitError::BadTag));
    assert!(!port.cancel(SECOND, Tag(3), &mut wake));
    assert_eq!(port.flow_stats(rig.flows[1]).in_flight, 1);
    assert!(matches!(port.requeue(SECOND, Tag(3), &mut wake), Some(Submitted::Issue { .. })));
    port.complete(SECOND, Tag(3), Outcome::Failed, &mut wake);
    assert_eq!(port.next(2 * SECOND, &mut wake), Next::Idle);
    assert!(!port.has_work());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// In each tree every member has its part of its group, and its reservation besides.
    #[test]
    fn shares_hold_in_every_tree(
        parents in prop::collection::vec(0u16..4, 1..4),
        weights in prop::collection::vec(1u16..20, 10),
        places in prop::collection::vec(0u16..5, 2..7),
    ) {
        // A group is in an earlier one, or in none.
        let groups: Vec<Group> = parents.iter().enumerate().map(|(at, &parent)| {
            let parent = Some(parent).filter(|&parent| usize::from(parent) < at);
            group(parent, weights[at] * 50)
        }).collect();
        let tenants: Vec<Tenant> = places.iter().enumerate().map(|(at, &place)| {
            let group = Some(place).filter(|&place| usize::from(place) < groups.len());
            tenant(group, weights[3 + at] * 50)
        }).collect();
        // The due shares, computed from the top: each node's weight among its active siblings.
        let is_active = |group: usize| {
            let mut active: Vec<bool> = (0..groups.len())
                .map(|at| tenants.iter().any(|tenant| tenant.group == Some(at as u16)))
                .collect();
            for at in (0..groups.len()).rev() {
                if let Some(GroupId(parent)) = groups[at].parent.filter(|_| active[at]) {
                    active[usize::from(parent)] = true;
                }
            }
            active[group]
        };
        let siblings = |parent: Option<u16>| {
            let flows = tenants.iter().filter(|one| one.group == parent).map(|one| one.weight);
            let inner = groups.iter().enumerate()
                .filter(|(at, one)| one.parent == parent.map(GroupId) && is_active(*at))
                .map(|(_, one)| one.weight.get());
            flows.chain(inner).map(f64::from).sum::<f64>()
        };
        let due = |tenant: &Tenant| {
            let mut part = f64::from(tenant.weight) / siblings(tenant.group);
            let mut above = tenant.group;
            while let Some(at) = above {
                let group = &groups[usize::from(at)];
                above = group.parent.map(|parent| parent.0);
                part *= f64::from(group.weight.get()) / siblings(above);
            }
            part
        };
        let mut rig = Rig::new("mqfq", 1, &groups, &tenants);
        rig.run(1000);
        let got = parts(&rig.run(4000));
        let due: Vec<f64> = tenants.iter().map(due).collect();
        for (got, due) in got.iter().zip(&due) {
            prop_assert!((got - due).abs() <= 0.015 + due * 0.03, "{got}, {due}: {tenants:?}, {groups:?}");
        }
    }
}

/// Weights that are changed all at once are those of the tree: a group's members divide it by them,
/// and later changes start from them.
#[test]
fn weights_that_change_at_once_are_the_trees() {
    let member = tenant(Some(0), 100);
    let mut rig = Rig::new("mqfq", 1, &[group(None, 300)], &[member, member, tenant(None, 100)]);
    rig.run(1000);
    let weights = [300, 100, 100].map(|weight| Weight::new(weight).unwrap());
    let all: Vec<_> = rig.flows.iter().copied().zip(weights).collect();
    rig.policy.set_weights(&all);
    rig.run(500);
    let served = rig.run(2000);
    let all: u64 = served.iter().sum();
    for (served, percent) in served.iter().zip([56.25, 18.75, 25.0]) {
        let part = *served as f64 * 100.0 / all as f64;
        assert!((part - percent).abs() < 1.0, "{part} and not {percent} %");
    }
}

/// A device that does 4,000 requests a second, whatever their length.
const SLOW_NS: u64 = 250_000;

/// 2,000 of 4,000 for a flow of weight 100 beside one of 10,000 whose requests are 16 times as
/// long: service that its weight gives it in bursts is part of its reservation, not beside it.
#[test]
fn a_reservation_is_not_beside_what_a_weight_gives() {
    let least = Tenant { min_iops: 2000, ..tenant(None, 100) };
    let plain = Tenant { length: 65_536, ..tenant(None, 10_000) };
    for name in ["mqfq", "kyber-fair", "bfq"] {
        let mut rig = Rig::new(name, 1, &[], &[least, plain]);
        rig.service_ns = SLOW_NS;
        rig.run(2000);
        let served = rig.run(4000);
        println!("{name}: {served:?}");
        assert!((7760..=8240).contains(&served[0]), "{name}: {served:?}");
    }
}

/// Two flows whose short requests have far more than they reserve take no more of the third flow's
/// share than without reservations.
#[test]
fn a_reservation_below_what_a_weight_gives_costs_nobody_anything() {
    let plain = Tenant { length: 1 << 20, depth: 16, ..tenant(None, 10_000) };
    for name in ["mqfq", "kyber-fair", "bfq"] {
        let served = |min_iops| {
            let short = Tenant { length: 512, depth: 64, min_iops, ..tenant(None, 100) };
            let mut rig = Rig::new(name, 1, &[], &[short, short, plain]);
            rig.service_ns = SLOW_NS;
            rig.run(2000);
            rig.run(4000)
        };
        let without = served(0);
        for min_iops in [600, 1200] {
            let with = served(min_iops);
            println!("{name}: {without:?}, with {min_iops} {with:?}");
            if without[0].min(without[1]) >= 4 * min_iops * 11 / 10 {
                assert!(with[2] * 20 >= without[2] * 17, "{name}: {with:?} of {without:?}");
            }
        }
    }
}
