//! Caps of flows and of groups.

use alloc::format;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

use super::shared::{counted_by, counted_bytes};
use super::waiting::{OPS, pack, unpack};
use super::*;
use crate::contract::layer::names::*;
use crate::contract::port::{Class, Held};
use crate::contract::port::{Cost, Op};
use crate::contract::share::{Cap, Counted, Side};
use crate::entry::Built;
use crate::none::NonePolicy;
use crate::policy::managed::{Managed, Stages};
use crate::registry::Shape;
use crate::{AnyPolicy, AnyPort, Native, Topology};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const TAGS: u32 = 64;

fn over_none(ports: usize) -> Built<Managed<NonePolicy>> {
    let built = NonePolicy::new(ports, 4, TAGS as usize).unwrap();
    let stages = Stages { has_limits: true, ..Stages::default() };
    Managed::new(built, TAGS as usize, 4, &stages).unwrap()
}

fn caps(side: Side, counted: Counted, per_second: u64, burst: u64) -> Caps {
    Caps::default().with(side, counted, Cap::new(per_second, burst))
}

fn ask(tag: u32, flow: FlowId, op: Op, length: u32) -> Request {
    Request::new(Tag(tag), flow, op, 0, length)
}

/// All requests that the port issues now.
fn issued(port: &mut impl Port, now_ns: u64) -> Vec<u32> {
    let mut all = vec![];
    while let Next::Issue { tag, .. } = port.next(now_ns, &mut PortSet::default()) {
        all.push(tag.0);
    }
    all
}

/// Keeps `depth` requests of the flow on the port, and counts the requests sent from `from_ns` on.
struct Load {
    flow: FlowId,
    op: Op,
    free: Vec<u32>,
    sent: Vec<u64>,
}

impl Load {
    fn new(flow: FlowId, op: Op, tags: core::ops::Range<u32>) -> Load {
        Load { flow, op, free: tags.collect(), sent: vec![] }
    }

    /// Submits as much as it can, and completes at once the requests that are issued.
    fn step(&mut self, port: &mut impl Port, now_ns: u64) {
        let mut wake = PortSet::default();
        for _ in 0..4 {
            for tag in std::mem::take(&mut self.free) {
                let request = ask(tag, self.flow, self.op, 4096);
                match port.submit(now_ns, &request, &mut wake).unwrap() {
                    Submitted::Staged => {}
                    Submitted::Issue { .. } => self.complete(port, now_ns, tag),
                }
            }
            for tag in issued(port, now_ns) {
                self.complete(port, now_ns, tag);
            }
        }
    }

    fn complete(&mut self, port: &mut impl Port, now_ns: u64, tag: u32) {
        port.complete(now_ns, Tag(tag), Outcome::Done, &mut PortSet::default());
        self.sent.push(now_ns);
        self.free.push(tag);
    }

    fn sent_in(&self, from_ns: u64, until_ns: u64) -> usize {
        self.sent.iter().filter(|at_ns| (from_ns..until_ns).contains(*at_ns)).count()
    }
}

#[test]
fn a_flow_has_its_cap_and_another_all_that_is_left() {
    let (policy, mut ports) = over_none(1);
    let port = &mut ports[0];
    let [capped, free] = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
    policy.set_caps(capped, &caps(Side::Both, Counted::Requests, 1000, 100)).unwrap();
    let mut load = Load::new(capped, Op::Write, 0..32);
    for at in 0..20_000 {
        load.step(port, SECOND + at * MS / 10);
        let request = ask(40, free, Op::Read, 4096);
        let answer = port.submit(SECOND, &request, &mut PortSet::default());
        assert!(matches!(answer, Ok(Submitted::Issue { .. })), "{answer:?}");
        port.complete(SECOND, Tag(40), Outcome::Done, &mut PortSet::default());
    }
    assert_eq!(load.sent_in(SECOND, 2 * SECOND), 1100 - 1, "the burst, and one each millisecond");
    assert_eq!(load.sent_in(2 * SECOND, 3 * SECOND), 1000);
    assert_eq!(port.flow_stats(capped).staged, 32);
    let stats = policy.caps(capped).unwrap();
    assert_eq!((stats.waiting, stats.held), (32, 2000 - 1 + 32));
    assert!(policy.caps(free).is_none());
    assert_eq!(port.reason(Some(Tag(0))).held, Some(Held::Cap));

    policy.set_caps(capped, &Caps::default()).unwrap();
    assert_eq!(issued(port, 4 * SECOND).len(), 32, "waiting requests go when the cap is removed");
}

#[test]
fn a_cap_on_reads_holds_no_writes_and_flushes_are_never_held() {
    let (policy, mut ports) = over_none(1);
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    policy.set_caps(flow, &caps(Side::Reads, Counted::Bytes, 4096, 4096)).unwrap();
    let mut submit = |tag, op| {
        ports[0].submit(SECOND, &ask(tag, flow, op, 4096), &mut PortSet::default()).unwrap()
    };
    assert_ne!(submit(0, Op::Read), Submitted::Staged);
    assert_eq!(submit(1, Op::Read), Submitted::Staged);
    for (tag, op) in (2..).zip([Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes]) {
        assert_ne!(submit(tag, op), Submitted::Staged, "{op:?}");
    }
    let next = ports[0].next(SECOND, &mut PortSet::default());
    assert_eq!(next, Next::WaitUntil(SECOND + AGAIN_NS), "caps may change");
    assert_eq!(issued(&mut ports[0], 2 * SECOND - 1), []);
    assert_eq!(issued(&mut ports[0], 2 * SECOND), [1]);
}

/// One port is polled all the time, the other 50 us late each time.
#[test]
fn ports_of_one_flow_take_turns() {
    for (burst, counted) in [(0, Counted::Requests), (100, Counted::Requests), (0, Counted::Bytes)]
    {
        let (policy, mut ports) = over_none(2);
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let unit = if counted == Counted::Bytes { 4096 } else { 1 };
        policy.set_caps(flow, &caps(Side::Both, counted, 1000 * unit, burst * unit)).unwrap();
        let mut loads = [0, 1].map(|_| Load::new(flow, Op::Read, 0..32));
        for at in 0..200_000 {
            let now_ns = SECOND + at * 10_000;
            loads[0].step(&mut ports[0], now_ns);
            if at % 100 == 5 {
                loads[1].step(&mut ports[1], now_ns);
            }
        }
        let [eager, late] = loads.map(|load| load.sent_in(2 * SECOND, 3 * SECOND));
        assert!(late * 10 >= eager * 7, "{eager} and {late} with a burst of {burst}");
        assert!((980..=1000).contains(&(eager + late)), "{eager} + {late}");
    }
}

/// The waiting requests of a removed flow are still served, and no other flow gets its slot before
/// they are.
#[test]
fn what_a_removed_flow_left_is_served() {
    let (policy, mut ports) = over_none(1);
    let port = &mut ports[0];
    let none = &mut PortSet::default();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    policy.set_caps(flow, &caps(Side::Both, Counted::Bytes, 1, 0)).unwrap();
    for tag in 0..4 {
        port.submit(SECOND, &ask(tag, flow, Op::Write, 1 << 20), none).unwrap();
    }
    assert_eq!(port.submit(SECOND, &ask(1, flow, Op::Write, 512), none), Err(SubmitError::BadTag));
    port.complete(SECOND, Tag(0), Outcome::Done, none);
    policy.remove_flow(flow).unwrap();
    let until_ns = SECOND + AGAIN_NS;
    assert_eq!(port.next(SECOND, none), Next::WaitUntil(until_ns));
    let heir = || policy.add_flow(Weight::DEFAULT).unwrap().slot() == flow.slot();
    assert!(!heir(), "requests wait");
    assert!(port.cancel(SECOND, Tag(3), none));
    assert_eq!(issued(port, until_ns), [1, 2]);
    let again = Some(Submitted::Issue { class: Class::Medium });
    assert_eq!(port.requeue(until_ns, Tag(1), none), again);
    assert!(port.complete(until_ns, Tag(1), Outcome::Done, none));
    assert!(!heir(), "one is on the device");
    assert!(port.complete(until_ns, Tag(2), Outcome::Done, none) && heir());
    assert!(!port.has_work());
    assert_eq!(policy.set_caps(flow, &Caps::default()), Err(FlowError::NoSuchFlow));
}

#[test]
fn what_waits_counts_as_the_flows() {
    let (policy, mut ports) = over_none(1);
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    policy.set_caps(flow, &caps(Side::Both, Counted::Requests, 1, 1)).unwrap();
    let port = &mut ports[0];
    let none = &mut PortSet::default();
    let taken = (0..TAGS).take_while(|&tag| {
        let is_admitted = port.admit(flow).is_ok();
        is_admitted && port.submit(SECOND, &ask(tag, flow, Op::Read, 512), none).is_ok()
    });
    assert_eq!(taken.count() as u32, TAGS / 2, "half of the tags are for others");
}

#[derive(Debug, Clone)]
struct Setting {
    caps: Vec<(usize, u64, u64)>,
    steps: Vec<(u64, usize, Op, u32)>,
    late_ns: u64,
    /// The owner of the caps: 0 is a flow, 1 a group of three flows; 2 gives one half of the caps
    /// to that group and the other to a group inside it.
    place: usize,
}

fn setting() -> impl Strategy<Value = Setting> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Discard)];
    let step = (0u64..3 * MS, 0usize..3, op, 1u32..100_000);
    (
        prop::collection::vec((0usize..6, 1u64..20_000, 0u64..40), 1..4),
        prop::collection::vec(step, 1..150),
        0u64..5 * MS,
        0usize..3,
    )
        .prop_map(|(caps, steps, late_ns, place)| Setting { caps, steps, late_ns, place })
}

fn described(index: usize) -> (Side, Counted) {
    let side = [Side::Both, Side::Reads, Side::Writes][index / 2];
    (side, [Counted::Requests, Counted::Bytes][index % 2])
}

proptest! {
    /// With caps of a flow or of groups, on three ports: over every interval no cap is exceeded by
    /// more than its burst, each request is issued exactly once, and the requests of a lane are
    /// issued in their order.
    #[test]
    fn no_cap_is_exceeded_by_more_than_its_burst(setting in setting()) {
        let shape = Shape::new(Topology::flat(3), 4, 256);
        // With several flows, `mqfq` would hold requests back for its own order, so their ports
        // would need other ports' wake-ups.
        let (name, keys): (_, &[_]) = match setting.place {
            0 => ("mqfq", &[("slots", 1000)]),
            _ => ("none", &[]),
        };
        let (policy, mut ports) = AnyPolicy::<Native>::new(name, keys, &shape).unwrap();
        let flows = [(); 3].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
        let flow = flows[0];
        let mut all = Caps::default();
        for &(index, per_second, burst) in &setting.caps {
            let unit = if index % 2 == 1 { 4096 } else { 1 };
            let (side, counted) = described(index);
            all = all.with(side, counted, Cap::new(per_second * unit, burst * unit));
        }
        if setting.place == 0 {
            policy.set_caps(flow, &all).unwrap();
        } else {
            let mut of = [Caps::default(); 2];
            for index in 0..6 {
                let (side, counted) = described(index);
                let level = &mut of[index % setting.place];
                *level = level.with(side, counted, all.get(side, counted));
            }
            let [outer, inner] = of;
            policy.set_group(ACME, Some(&Group { caps: outer, ..Group::default() })).unwrap();
            let inner = Group { parent: Some(ACME), caps: inner, ..Group::default() };
            policy.set_group(BATCH, Some(&inner)).unwrap();
            flows.iter().for_each(|&flow| put(&policy, flow, Some(BATCH)));
        }
        let mut now_ns = SECOND;
        let mut asked: Vec<(usize, Op, u32)> = vec![];
        let mut sent: Vec<(u64, usize)> = vec![];
        let mut due = [u64::MAX; 3];
        let poll = |port: &mut AnyPort, now_ns: u64, sent: &mut Vec<(u64, usize)>| {
            let none = &mut PortSet::default();
            loop {
                match port.next(now_ns, none) {
                    Next::Issue { tag, .. } => {
                        sent.push((now_ns, tag.0 as usize));
                        port.complete(now_ns, tag, Outcome::Done, none);
                    }
                    Next::WaitUntil(at_ns) if at_ns > now_ns => return at_ns,
                    Next::WaitUntil(_) => {}
                    _ => return u64::MAX,
                }
            }
        };
        let mut steps: VecDeque<_> = setting.steps.iter().collect();
        loop {
            let first = (0..3).min_by_key(|at| due[*at]).unwrap();
            let due_ns = due[first].saturating_add(setting.late_ns);
            match steps.front() {
                Some((pause_ns, port, op, length)) if now_ns + pause_ns <= due_ns => {
                    now_ns += pause_ns;
                    steps.pop_front();
                    let tag = asked.len() as u32;
                    asked.push((*port, *op, *length));
                    let own = if setting.place == 0 { flow } else { flows[*port] };
                    let request = ask(tag, own, *op, *length);
                    let wake = &mut PortSet::default();
                    let answer = ports[*port].submit(now_ns, &request, wake).unwrap();
                    if let Submitted::Issue { .. } = answer {
                        sent.push((now_ns, tag as usize));
                        ports[*port].complete(now_ns, Tag(tag), Outcome::Done, wake);
                    }
                    due[*port] = poll(&mut ports[*port], now_ns, &mut sent);
                }
                _ if due_ns < u64::MAX => {
                    now_ns = now_ns.max(due_ns);
                    due[first] = poll(&mut ports[first], now_ns, &mut sent);
                }
                _ => break,
            }
        }
        let mut once: Vec<usize> = sent.iter().map(|sent| sent.1).collect();
        for port in 0..3 {
            for is_read in [false, true] {
                let of_lane = once.iter().filter(|&&tag| {
                    asked[tag].0 == port && (asked[tag].1 == Op::Read) == is_read
                });
                prop_assert!(of_lane.is_sorted(), "each lane in its order");
            }
        }
        once.sort_unstable();
        prop_assert_eq!(once, (0..asked.len()).collect::<Vec<_>>(), "all of them, once");
        for index in 0..6 {
            let (side, counted) = described(index);
            let Some(cap) = all.get(side, counted) else { continue };
            let counts: Vec<(u64, u64)> = sent
                .iter()
                .map(|&(at_ns, tag)| (at_ns, ask(tag as u32, flow, asked[tag].1, asked[tag].2)))
                .filter(|(_, request)| counted_by(request.op) >> index & 1 != 0)
                .map(|(at_ns, request)| match counted {
                    Counted::Requests => (at_ns, 1),
                    Counted::Bytes => (at_ns, counted_bytes(request.op, request.length).into()),
                })
                .collect();
            for first in 0..counts.len() {
                let (mut sum, mut largest) = (0, 0);
                for &(at_ns, amount) in &counts[first..] {
                    sum += amount;
                    largest = largest.max(amount);
                    let lasts_ns = u128::from(at_ns - counts[first].0);
                    let rate = (u128::from(cap.per_second()) * lasts_ns / 1_000_000_000) as u64;
                    let most = rate + cap.burst().max(largest);
                    prop_assert!(sum <= most + sum / 1_000_000 + 1, "{:?}: {sum} of {most}", cap);
                }
            }
        }
    }
}

/// A waiting request is unpacked as it was packed, whatever it is.
#[test]
fn a_request_that_waits_is_kept_whole() {
    for op in OPS {
        let flow = FlowId::new(u32::MAX, u32::MAX - 1);
        let cost = Cost { alone: u64::MAX, joined: u64::MAX - 2 };
        let request = Request { offset: u64::MAX - 3, cost, ..ask(7, flow, op, u32::MAX - 4) };
        let (out, since_ns) = unpack(Tag(7), &pack(&request, u64::MAX - 5));
        assert_eq!(since_ns, u64::MAX - 5);
        assert_eq!(format!("{out:?}"), format!("{request:?}"));
    }
}

/// A change of the policy gives no flow a new burst, unless its cap changes, too.
#[test]
fn caps_go_on_under_the_next_policy() {
    let cap = |burst| caps(Side::Both, Counted::Requests, 100, burst);
    let group = |burst| Group { caps: cap(burst), ..Group::default() };
    let set = |policy: &Managed<NonePolicy>, flows: &[FlowId], burst| {
        policy.set_group(SOLO, Some(&group(burst))).unwrap();
        policy.set_caps(flows[0], &cap(burst)).unwrap();
        let share = Share { group: Some(SOLO), ..Share::default() };
        policy.set_share(flows[1], &share).unwrap();
    };
    let ask_for = |port: &mut dyn FnMut(&Request) -> Submitted, flow, tag| {
        port(&ask(tag, flow, Op::Read, 4096)) != Submitted::Staged
    };
    let (old, mut ports) = over_none(1);
    let flows = [0, 1].map(|_| old.add_flow(Weight::DEFAULT).unwrap());
    set(&old, &flows, 10);
    let (now_ns, mut wake) = (SECOND, PortSet::default());
    let mut submit = |request: &Request| ports[0].submit(now_ns, request, &mut wake).unwrap();
    let went = |tag: &u32| ask_for(&mut submit, flows[(tag % 2) as usize], *tag);
    assert_eq!((0..24).filter(went).count(), 20, "a burst of the flow's, and one of the group's");
    for (burst, expected) in [(10, 0), (5, 10)] {
        let (new, mut ports) = over_none(1);
        for flow in flows {
            new.add_flow_as(Some(flow), Weight::DEFAULT).unwrap();
        }
        set(&new, &flows, burst);
        let before = old.caps(flows[0]).unwrap();
        new.resume_caps(CapsOf::Flow(flows[0]), &before);
        new.resume_caps(CapsOf::Group(SOLO), &old.group(SOLO).unwrap().caps.unwrap());
        assert_eq!(new.caps(flows[0]).unwrap().held, before.held, "the counts go on");
        let mut wake = PortSet::default();
        let mut submit = |request: &Request| ports[0].submit(now_ns, request, &mut wake).unwrap();
        let went = |tag: &u32| ask_for(&mut submit, flows[(tag % 2) as usize], *tag);
        assert_eq!((0..24).filter(went).count(), expected);
    }
}

const SOLO: GroupId = GroupId(7);
const ACME: GroupId = GroupId(3);
const BATCH: GroupId = GroupId(5);

fn of_group(parent: Option<GroupId>, iops: u64, burst: u64) -> Group {
    let caps = match iops {
        0 => Caps::default(),
        iops => caps(Side::Both, Counted::Requests, iops, burst),
    };
    Group { parent, caps, ..Group::default() }
}

/// Lets all loads submit as much as they can for a second, each on its port, and completes at once
/// the requests that are issued. Tags distinguish the loads of one port.
fn flood(
    policy: &impl Limits,
    ports: &mut [impl Port],
    loads: &mut [(usize, core::ops::Range<u32>, Load)],
    from_ns: u64,
) {
    let mut wake = PortSet::default();
    for now_ns in (0..10_000).map(|at| from_ns + at * MS / 10) {
        policy.tick(now_ns, &mut wake);
        for _ in 0..2 {
            for (at, _, load) in &mut *loads {
                for tag in std::mem::take(&mut load.free) {
                    let request = ask(tag, load.flow, load.op, 4096);
                    match ports[*at].submit(now_ns, &request, &mut wake).unwrap() {
                        Submitted::Staged => {}
                        Submitted::Issue { .. } => load.complete(&mut ports[*at], now_ns, tag),
                    }
                }
            }
            for (number, port) in ports.iter_mut().enumerate() {
                for tag in issued(port, now_ns) {
                    let is_it = |(at, tags, _): &&mut (usize, core::ops::Range<u32>, Load)| {
                        *at == number && tags.contains(&tag)
                    };
                    let (_, _, load) = loads.iter_mut().find(is_it).unwrap();
                    load.complete(port, now_ns, tag);
                }
            }
        }
    }
}

fn put(policy: &impl Limits, flow: FlowId, group: Option<GroupId>) {
    policy.set_share(flow, &Share { group, ..Share::default() }).unwrap();
}

/// `a` is in a group of 1,000 requests a second, `b` in one of 400 inside of it, `c` in neither.
#[test]
fn a_request_goes_when_the_caps_of_all_its_groups_allow_it() {
    let (policy, mut ports) = over_none(1);
    policy.set_group(ACME, Some(&of_group(None, 1000, 10))).unwrap();
    policy.set_group(BATCH, Some(&of_group(Some(ACME), 0, 0))).unwrap();
    let [a, b, c] = [(); 3].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
    put(&policy, a, Some(ACME));
    put(&policy, b, Some(BATCH));
    policy.set_group(BATCH, Some(&of_group(Some(ACME), 400, 10))).unwrap();
    let load = |flow, op, tags: core::ops::Range<u32>| (0, tags.clone(), Load::new(flow, op, tags));
    let mut loads =
        [load(a, Op::Read, 0..16), load(b, Op::Write, 16..32), load(c, Op::Read, 40..41)];
    flood(&policy, &mut ports, &mut loads, SECOND);
    flood(&policy, &mut ports, &mut loads, 2 * SECOND);
    let sent = |loads: &[(usize, core::ops::Range<u32>, Load)], second: u64| {
        let second = |(_, _, load): &(usize, core::ops::Range<u32>, Load)| {
            load.sent_in(second * SECOND, (second + 1) * SECOND)
        };
        loads.iter().map(second).collect::<Vec<_>>()
    };
    let [first, last, free] = sent(&loads, 2)[..] else { unreachable!() };
    assert!((990..=1000).contains(&(first + last)), "{first} + {last}");
    assert!((390..=400).contains(&last), "the inner group's: {last}");
    // A tenant of no group is not held.
    assert!(free >= 10_000, "{free}");
    let stats = policy.group(BATCH).unwrap().caps.unwrap();
    assert_eq!((stats.waiting, stats.caps.is_empty()), (16, false));
    assert!(policy.group(ACME).unwrap().caps.unwrap().held_ns > SECOND);
    assert_eq!(policy.caps(b).unwrap().waiting, 16, "counted for the tenant, too");
    assert_eq!(ports[0].reason(Some(Tag(16))).held, Some(Held::GroupCap));

    // A tenant that leaves its group has the caps of its new place; groups without caps hold
    // nothing.
    put(&policy, b, None);
    flood(&policy, &mut ports, &mut loads, 4 * SECOND);
    let [first, last, _] = sent(&loads, 4)[..] else { unreachable!() };
    assert!((990..=1010).contains(&first) && last > 10_000, "{first}, {last}");
    policy.set_group(ACME, Some(&of_group(None, 0, 0))).unwrap();
    flood(&policy, &mut ports, &mut loads, 5 * SECOND);
    assert!(sent(&loads, 5)[0] > 10_000);
    assert_eq!(policy.group(ACME).unwrap().caps.unwrap().waiting, 0);
    policy.set_group(BATCH, None).unwrap();
    assert!(policy.group(BATCH).is_none());
    let accounts = &policy.shared.limits.accounts;
    let lanes = |at: usize| accounts[at].lanes.each_ref().map(|l| l.load(Ordering::Relaxed));
    assert!((0..accounts.len()).all(|at| lanes(at) == [0; 2]), "all are counted off");
}

/// A group's cap is shared by weight, on one port and on several, and a group inside it has turns
/// by its own weight.
#[test]
fn what_a_groups_cap_allows_goes_by_weight() {
    for ports in [1, 2] {
        let (policy, mut ports) = over_none(ports);
        policy.set_group(ACME, Some(&of_group(None, 1000, 0))).unwrap();
        let solo = Group { weight: Weight::new(200).unwrap(), ..of_group(Some(ACME), 0, 0) };
        policy.set_group(SOLO, Some(&solo)).unwrap();
        let weights = [300, 100, 10_000].map(|weight| Weight::new(weight).unwrap());
        let flows = weights.map(|weight| policy.add_flow(weight).unwrap());
        for (flow, group) in flows.into_iter().zip([ACME, ACME, SOLO]) {
            put(&policy, flow, Some(group));
        }
        let mut loads = vec![];
        for (flow, tags) in flows.into_iter().zip([0..8, 8..16, 16..24]) {
            let load = Load::new(flow, Op::Read, tags.clone());
            loads.push((loads.len() % ports.len(), tags, load));
        }
        (1..7).for_each(|second| flood(&policy, &mut ports, &mut loads, second * SECOND));
        let sent = loads.iter().map(|(_, _, load)| load.sent_in(3 * SECOND, 7 * SECOND));
        let sent: Vec<usize> = sent.collect();
        assert!((3900..=4000).contains(&sent.iter().sum::<usize>()), "{sent:?}");
        for (sent, due) in sent.iter().zip([2000, 667, 1333]) {
            assert!(sent.abs_diff(due) * 20 <= due, "{sent} of {due}, on {} ports", ports.len());
        }
    }
}

/// 99 submits of a tag that is in use are refused, and the flow's next request waits no longer for
/// its cap because of them. A tag in use is refused even if the cap has nothing left.
#[test]
fn a_refused_request_pays_nothing_and_a_live_tag_is_never_taken() {
    let (policy, mut ports) = over_none(1);
    let (port, wake) = (&mut ports[0], &mut PortSet::default());
    let [flow, gone] = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
    let cap = caps(Side::Both, Counted::Requests, 10, 100);
    [flow, gone].iter().for_each(|&flow| policy.set_caps(flow, &cap).unwrap());
    policy.remove_flow(gone).unwrap();
    let mut submit = |tag, flow| port.submit(SECOND, &ask(tag, flow, Op::Read, 512), wake);
    submit(0, flow).unwrap();
    for _ in 0..99 {
        assert_eq!(submit(0, flow), Err(SubmitError::BadTag));
        assert_eq!(submit(1, gone), Err(SubmitError::NoSuchFlow));
    }
    let went = (1..TAGS).take_while(|&tag| submit(tag, flow) != Ok(Submitted::Staged));
    assert_eq!(went.count(), TAGS as usize - 1, "100 may go at once");
    (0..TAGS).for_each(|tag| assert!(port.complete(SECOND, Tag(tag), Outcome::Done, wake)));
    let mut submit = |tag, flow| port.submit(SECOND, &ask(tag, flow, Op::Read, 512), wake);
    let went = (0..TAGS).take_while(|&tag| submit(tag, flow) != Ok(Submitted::Staged));
    assert_eq!(went.count() as u32, 100 - TAGS, "and then the cap has nothing left");
    for tag in 0..=100 - TAGS {
        assert_eq!(submit(tag, flow), Err(SubmitError::BadTag), "{tag}");
    }
}

/// A request that is taken back is refunded by its caps, unless it was on the device. Growth is a
/// debt. A request in a lane can go before all others, is the flow's until it is completed, and can
/// be issued again.
#[test]
fn what_is_taken_back_pays_nothing_and_what_grows_pays_more() {
    let shape = Shape::new(Topology::flat(1), 4, TAGS as usize);
    let (policy, mut ports) = AnyPolicy::<Native>::new("mqfq", &[("slots", 1)], &shape).unwrap();
    let (port, wake) = (&mut ports[0], &mut PortSet::default());
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    policy.set_caps(flow, &caps(Side::Both, Counted::Bytes, 4096, 4 * 4096)).unwrap();
    let submit = |port: &mut AnyPort, tag| {
        port.submit(SECOND, &ask(tag, flow, Op::Read, 4096), &mut PortSet::default()).unwrap();
        port.reason(Some(Tag(tag))).held
    };
    assert_eq!([0, 1, 2, 3].map(|tag| submit(port, tag)), [None; 4]);
    assert_eq!(submit(port, 4), Some(Held::Cap));
    assert!(port.cancel(SECOND, Tag(4), wake) && port.cancel(SECOND, Tag(3), wake));
    assert_eq!(submit(port, 3), None, "a cancelled request is refunded");
    assert_eq!(issued(port, SECOND), [0]);
    assert_eq!(port.requeue(SECOND, Tag(0), wake), Some(Submitted::Staged));
    assert!(port.cancel(SECOND, Tag(0), wake));
    assert_eq!(submit(port, 0), Some(Held::Cap), "an issued request is not refunded");
    let growth = Growth { op: Op::Read, offset: 4096, length: 4 * 4096, cost: 4 * 4096 };
    assert!(port.grow(SECOND, Tag(1), &growth, wake));
    let Next::Issue { tag: Tag(1), .. } = port.next(SECOND, wake) else { panic!() };
    assert_eq!(port.next(SECOND, wake), Next::WaitUntil(SECOND + SECOND / 10));
    assert_eq!(issued(port, 5 * SECOND), [], "its debt lasts for four seconds");
    assert_eq!(port.flow_stats(flow).in_flight, 1);
    assert!(port.expedite(5 * SECOND, Tag(0), wake));
    assert_eq!((port.flow_stats(flow).staged, port.flow_stats(flow).in_flight), (2, 2));
    assert!(!port.expedite(5 * SECOND, Tag(0), wake) && !port.cancel(5 * SECOND, Tag(0), wake));
    let again = Some(Submitted::Issue { class: Class::Medium });
    assert_eq!(port.requeue(5 * SECOND, Tag(0), wake), again);
    assert!(port.complete(5 * SECOND, Tag(0), Outcome::Done, wake));
    assert!(!port.complete(5 * SECOND, Tag(2), Outcome::Done, wake), "it is staged");
}
