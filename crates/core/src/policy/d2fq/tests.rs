//! The decisions on the points that the paper leaves open, one by one, on one thread;
//! `decisions.md` numbers them.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::ratio::{class_weights, next};
use super::*;
use crate::contract::bounds::MAX_THRESHOLD;
use crate::contract::cost::CostModel;
use crate::contract::port::{Class, Op, Outcome, Port, Request, Submitted, Tag};
use crate::structures::topology::Topology;

const MS: u64 = 1_000_000;

struct Rig {
    policy: D2fq,
    ports: Vec<D2fqPort>,
    flows: Vec<FlowId>,
    free: Vec<u32>,
    now_ns: u64,
    /// The cost of reads, in hundredths of their bytes.
    percent: u32,
}

impl Rig {
    fn new(ports: usize, weights: &[u16], change: impl Fn(&mut D2fqConfig)) -> Rig {
        let mut config = D2fqConfig::new(Topology::flat(ports), weights.len() + 1, 4096);
        change(&mut config);
        let (policy, ports) = D2fq::new(config).unwrap();
        let flows = weights
            .iter()
            .map(|&weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap())
            .collect();
        let free = (0..4096).rev().collect();
        Rig { policy, ports, flows, free, now_ns: 1000 * MS, percent: 100 }
    }

    fn submit(&mut self, port: usize, flow: usize, length: u32) -> (Class, u32) {
        let tag = self.free.pop().unwrap();
        let model = CostModel { read_percent: self.percent, ..CostModel::default() };
        let cost = model.charge(Op::Read, length);
        let request =
            Request { cost, ..Request::new(Tag(tag), self.flows[flow], Op::Read, 0, length) };
        let answer = self.ports[port].submit(self.now_ns, &request, &mut { PortSet::EMPTY });
        let Ok(Submitted::Issue { class }) = answer else { panic!("{answer:?}") };
        (class, tag)
    }

    fn complete(&mut self, port: usize, tag: u32) {
        self.ports[port].complete(self.now_ns, Tag(tag), Outcome::Done, &mut { PortSet::EMPTY });
        self.free.push(tag);
    }

    /// Makes the flow, which has one more request in flight, hold gvt at 256 KiB.
    fn hold(&mut self, flow: usize) -> u32 {
        let tags = [0; 2].map(|_: u32| self.submit(0, flow, 256 << 10).1);
        self.complete(0, tags[0]);
        tags[1]
    }

    /// Serves `mib` requests of a MiB, one at a time; returns their classes.
    fn serve(&mut self, flow: usize, mib: usize) -> Vec<Class> {
        let one = |_| {
            let (class, tag) = self.submit(0, flow, 1 << 20);
            self.complete(0, tag);
            class
        };
        (0..mib).map(one).collect()
    }

    /// Ticks, and returns the number of requests in each sample of the adjustment.
    fn tick(&mut self) -> Vec<u64> {
        self.policy.tick(self.now_ns, &mut { PortSet::EMPTY });
        let requests = |sample: &Sample| sample.requests.iter().sum();
        self.policy.adjuster.with(|adjuster| adjuster.samples.iter().map(requests).collect())
    }

    /// The flow that holds gvt.
    fn holder(&self) -> Option<usize> {
        let holder = self.policy.shared.tracker.gvt.holder_slot();
        holder.and_then(|holder| self.flows.iter().position(|flow| flow.slot() == holder))
    }

    fn vt(&self, flow: usize) -> u64 {
        self.policy.shared.states[self.flows[flow].slot()].vt().units()
    }
}

/// The defaults of the knobs are the paper's.
#[test]
fn the_defaults_are_the_papers() {
    let config = D2fqConfig::new(Topology::flat(1), 1, 1);
    assert_eq!((config.medium(), config.low(), config.unfair()), (4 << 20, 8 << 20, 16 << 20));
    assert_eq!((config.ratio, config.period_ns), (Ratio::Dynamic { initial: 256 }, 1000 * MS));
    assert_eq!(config.urgent_percent, 0);
    assert!((MS..=10 * MS).contains(&config.grace_ns), "the paper does not say");
    let (policy, _) = D2fq::<Native>::new(config).unwrap();
    assert_eq!(policy.class_weights(), Some(class_weights(256)));
}

/// Decisions 1 and 13: bytes at weight 100, remainders kept, and a failed request is charged, once.
#[test]
fn virtual_time_is_exact_and_charged_at_completion() {
    let mut rig = Rig::new(1, &[7777], |_| ());
    let tags: Vec<u32> = (0..1000).map(|_| rig.submit(0, 0, 512).1).collect();
    assert_eq!(rig.vt(0), 0);
    for &tag in &tags {
        rig.ports[0].complete(rig.now_ns, Tag(tag), Outcome::Failed, &mut { PortSet::EMPTY });
        rig.ports[0].complete(rig.now_ns, Tag(tag), Outcome::Failed, &mut { PortSet::EMPTY });
    }
    assert_eq!(rig.vt(0), 1000 * 512 * 100 / 7777);
}

/// Decision 13: a request without data has a cost.
#[test]
fn flushes_and_discards_are_charged() {
    let mut rig = Rig::new(1, &[100], |_| ());
    for (tag, op, length) in
        [(1, Op::Flush, 0), (2, Op::Discard, 1 << 20), (3, Op::WriteZeroes, 4096)]
    {
        let request = Request::new(Tag(tag), rig.flows[0], op, 0, length);
        rig.ports[0].submit(rig.now_ns, &request, &mut { PortSet::EMPTY }).unwrap();
        rig.ports[0].complete(rig.now_ns, Tag(tag), Outcome::Done, &mut { PortSet::EMPTY });
        assert_eq!(rig.vt(0), u64::from(tag) * 4096, "{op:?}");
    }
}

/// Decision 0: a lone flow uses the high class; the authors' code gives it the medium class.
#[test]
fn a_lone_flow_is_high() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(0);
    assert_eq!(rig.serve(0, 40), [Class::High; 40]);
}

/// Eq. 1, and decision 4: a flow behind gvt is high.
#[test]
fn the_gap_chooses_the_class() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    let classes = rig.serve(0, 12);
    assert_eq!(classes[..4], [Class::High; 4]);
    assert_eq!(classes[4..8], [Class::Medium; 4]);
    assert_eq!(classes[8..], [Class::Low; 4]);
    // A flow that is behind gvt.
    rig.policy.shared.states[1].shift(|vt| Some(vt.minus(1 << 30)));
    assert_eq!(rig.submit(0, 1, 4096).0, Class::High);
}

#[test]
fn the_spread_is_that_of_flows_in_flight() {
    let mut rig = Rig::new(1, &[100, 100, 100], |_| ());
    assert_eq!(rig.policy.stats().spread, Some(0));
    let _held = rig.hold(1);
    rig.serve(0, 3);
    assert_eq!(rig.policy.stats().spread, Some(0), "flow 0 has nothing in flight");
    let (_, tag) = rig.submit(0, 0, 4096);
    assert_eq!(rig.policy.stats().spread, Some(rig.vt(0).abs_diff(rig.vt(1))));
    assert!(rig.vt(0) > rig.vt(1));
    rig.complete(0, tag);
}

/// Decision 2: a holder is a slot and a generation, so a new flow in the slot is another.
#[test]
fn a_new_flow_in_the_holders_slot_is_not_the_holder() {
    let gvt = gvt::Gvt::<Native>::new();
    let (old, new) = (Holder::new(3, 1), Holder::new(3, 2));
    assert!(gvt.update(old, VTime::ZERO, VTime::from_units(1 << 20)));
    gvt.release(new);
    assert_eq!(gvt.holder_slot(), Some(3));
    gvt.update(new, VTime::ZERO, VTime::from_units(4 << 20));
    assert_eq!(gvt.units(), 1 << 20, "only the holder moves it on");
    gvt.release(old);
    assert_eq!(gvt.holder_slot(), None);
}

/// Decision 3: thresholds grow with a flow's requests in flight.
#[test]
fn thresholds_are_above_what_is_in_flight() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    rig.serve(0, 20);
    for _ in 0..60 {
        rig.submit(0, 0, 1 << 20);
    }
    assert_eq!(rig.submit(0, 0, 4096).0, Class::High);
}

/// Decision 5: a flow that is ahead of gvt is still ahead after it was idle.
#[test]
fn idling_does_not_erase_debt() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    rig.serve(0, 10);
    rig.now_ns += 100 * MS;
    assert_ne!(rig.submit(0, 0, 4096).0, Class::High);
}

/// Decision 7: only idleness without a break counts, if it is longer than the grace period.
#[test]
fn grace_is_for_idleness_without_a_break() {
    for grace_ns in [5 * MS, 20 * MS] {
        let (state, mut now_ns) = (FlowState::<Native>::new(), MS);
        for _ in 0..5 {
            state.enter(now_ns);
            now_ns += 2 * grace_ns;
            assert!(state.activity().is_active(now_ns, grace_ns), "it is in flight");
            state.leave(now_ns);
            now_ns += grace_ns - MS;
            assert!(state.activity().is_active(now_ns, grace_ns));
        }
        assert!(!state.activity().is_active(now_ns + 2 * MS, grace_ns));
    }
}

/// Decision 6: a flow with nothing in flight holds nothing.
#[test]
fn a_holder_without_requests_lets_go() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    let tag = rig.hold(1);
    assert_eq!(rig.holder(), Some(1));
    rig.complete(0, tag);
    assert_eq!(rig.holder(), None);
    assert_eq!(rig.policy.stats().virtual_time, Some(512 << 10), "the value stays");
    let (_, tag) = rig.submit(0, 0, 4 << 20);
    rig.now_ns += 4 * MS;
    rig.submit(0, 0, 4096);
    rig.complete(0, tag);
    assert_eq!(rig.holder(), Some(0));
}

/// Decision 6: the holder releases gvt at once and its value stays; the least flow takes it, not
/// the first.
#[test]
fn gvt_without_a_holder_is_the_least_active() {
    let mib = |mib: u64| VTime::from_units(mib << 20);
    let [a, b, c] = [0, 1, 2].map(|slot| Holder::new(slot, 1));
    let gvt = gvt::Gvt::<Native>::new();
    assert!(gvt.update(a, mib(0), mib(1)));
    gvt.release(a);
    assert_eq!((gvt.holder_slot(), gvt.units()), (None, 1 << 20), "the value stays");
    assert!(!gvt.update(b, mib(4), mib(6)), "it was not the least");
    gvt.raise_unheld(mib(3));
    assert_eq!((gvt.holder_slot(), gvt.units()), (None, 3 << 20));
    assert!(gvt.update(c, mib(2), mib(2)), "the least takes it");
    assert_eq!((gvt.holder_slot(), gvt.units()), (Some(2), 3 << 20), "it never goes back");
}

/// Decision 8: a flow that wants little does not hold gvt back by more than a span, whether it
/// always has a request in flight or comes back for each.
#[test]
fn what_a_flow_that_wants_little_is_owed_is_limited() {
    for returns in [false, true] {
        let mut rig = Rig::new(1, &[100, 100], |config| config.tau_l = Some(8 << 20));
        let _always = (!returns).then(|| rig.submit(0, 1, 4096));
        let _held = rig.submit(0, 0, 4096);
        let mut tag = rig.submit(0, 1, 4096).1;
        for _ in 0..200 {
            rig.serve(0, 1);
            rig.now_ns += MS / 4;
            rig.complete(0, tag);
            tag = rig.submit(0, 1, 4096).1;
        }
        let lag = (rig.vt(0) - rig.vt(1)) >> 20;
        let Shared { tracker, states, .. } = &*rig.policy.shared;
        let ahead = tracker.gvt.ahead(states[0].vt()) >> 10;
        // The flow is lifted when it publishes: here after 62 MiB of the other flow, or at once.
        let late = if returns { 0 } else { 62 };
        assert!(ahead == 32 && lag <= 32 + late, "returns {returns}: {ahead}, {lag} MiB");
    }
}

/// The same for a flow that publishes nothing for long: a tick lifts it.
#[test]
fn a_tick_lifts_who_publishes_nothing() {
    let mut rig = Rig::new(1, &[100, 100], |config| config.tau_l = Some(8 << 20));
    let _stuck = rig.submit(0, 1, 4096);
    let _held = rig.submit(0, 0, 4096);
    rig.serve(0, 200);
    assert_eq!(rig.vt(1), 0);
    rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
    assert_eq!((rig.vt(0) - rig.vt(1)) >> 20, 32);
}

/// A span grows with the requests that the flow ahead has, and recently had, in flight.
#[test]
fn a_span_grows_with_what_is_in_flight() {
    let mut rig = Rig::new(1, &[100, 100], |config| config.tau_l = Some(8 << 20));
    let _stuck = rig.submit(0, 1, 4096);
    let tags: Vec<u32> = (0..4).map(|_| rig.submit(0, 0, 1 << 20).1).collect();
    rig.serve(0, 400);
    tags.into_iter().for_each(|tag| rig.complete(0, tag));
    let span = |rig: &mut Rig| {
        let floor = rig.policy.shared.tracker.floor();
        rig.policy.shared.states[0].vt().since(floor) >> 20
    };
    assert_eq!(span(&mut rig), 2 * 2 * 8 * 5, "8 times 5 MiB; 2 reaches are tau_w, 2 tau_w a span");
    for expected in [80, 40, 32, 32] {
        rig.now_ns += 1000 * MS;
        rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
        rig.serve(0, 1);
        assert_eq!(span(&mut rig), expected);
    }
}

/// Within a span nothing changes: a client in bursts is behind the others, and high.
#[test]
fn a_flow_in_bursts_keeps_its_credit() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    let mut large: Vec<u32> = (0..2).map(|_| rig.submit(0, 0, 1 << 20).1).collect();
    for _ in 0..40 {
        let burst: Vec<u32> = (0..16).map(|_| rig.submit(0, 1, 4096).1).collect();
        rig.now_ns += MS;
        burst.into_iter().for_each(|tag| rig.complete(0, tag));
        // One request is always in flight.
        rig.complete(0, large.remove(0));
        large.push(rig.submit(0, 0, 1 << 20).1);
        rig.now_ns += MS / 20;
    }
    let lag = rig.vt(0) - rig.vt(1);
    assert!(lag > 30 << 20, "{lag}");
}

/// Thresholds are halved for a slow device, and whole again as soon as it is fast; thresholds that
/// are set stay.
#[test]
fn thresholds_follow_the_device() {
    for (tau_l, expected) in [(None, [4, 4, 0, 1, 2]), (Some(8 << 20), [0; 5])] {
        let mut rig = Rig::new(1, &[100], |config| config.tau_l = tau_l);
        rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
        assert_eq!(rig.policy.shared.scale(), 0, "nothing has been served yet");
        let scales = [64, 70, 2000, 64, 64].map(|mib| {
            rig.now_ns += 1000 * MS;
            rig.serve(0, mib);
            rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
            rig.policy.shared.scale()
        });
        assert_eq!(scales, expected);
    }
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    rig.policy.shared.scale.store(2, Ordering::Relaxed);
    let classes = rig.serve(0, 3);
    assert_eq!(
        classes,
        [Class::High, Class::Medium, Class::Low],
        "tau_l is 2 MiB, tau_m half of it"
    );
}

/// A flow at `vt_mib` MiB, on a port with as many requests in the high class as any.
fn sample(vt_mib: u64, progress: u64, requests: [u64; 3]) -> Sample {
    let vt = VTime::from_units(vt_mib << 20);
    Sample { vt, progress, waits: true, requests, in_flight: 1 << 10 }
}

/// Eq. 2 and decisions 9 and 10.
#[test]
fn the_ratio_increases_by_equation_2() {
    let unfair = 16 << 20;
    let most = sample(40, 700, [0, 0, 100]);
    let least = sample(10, 100, [300, 0, 0]);
    assert_eq!(next(3, &[most, least], unfair), 22, "Figure 6: 7 x 3 + 1");
    let stuck = sample(0, 0, [0, 0, 0]);
    assert_eq!(next(3, &[most, least, stuck], unfair), 256);
    let small = sample(0, 1, [300, 0, 0]);
    let is_served_at_once = Sample { waits: false, ..small };
    assert_eq!(next(3, &[most, least, is_served_at_once], unfair), 22, "no ratio helps it");
    assert_eq!(next(77, &[], unfair), 77, "no samples, no change");
    let deep = Sample { in_flight: 4 << 20, ..most };
    assert_eq!(next(9, &[deep, least], unfair), 9, "with 4 MiB in flight 30 MiB are no gap");
    let closing = sample(40, 50, [0, 0, 100]);
    assert_eq!(next(10, &[closing, least], unfair), 6, "by the gap, though it is closing");
    assert_eq!(next(1, &[closing, least], unfair), 3, "the floor");
}

/// Decision 9: a flow that is left behind does not count if the high class is not backed up, and
/// the ratio is the one that the others need between themselves.
#[test]
fn a_flow_left_behind_does_not_drive_the_ratio() {
    let unfair = 16 << 20;
    let left = Sample { waits: false, ..sample(0, 10, [20, 0, 0]) };
    let [a, b] = [sample(60, 100, [60, 0, 30]), sample(64, 100, [0, 0, 30])];
    assert_eq!(next(256, &[left, a, b], unfair), 64, "a is slowed down by 86; a quarter a period");
    assert_eq!(next(6, &[left, a, b], unfair), 5, "b is slowed down 2.25 times as much as a");
    assert_eq!(next(3, &[left, a, b], unfair), 3);
    let shallow = Sample { waits: true, ..left };
    assert_eq!(next(256, &[shallow, a, b], unfair), 64, "80 of the high for 60 of the low");
    assert_eq!(next(5, &[shallow, a, b], unfair), 51, "it waits in a class that is backed up");
    assert_eq!(next(6, &[shallow, a, b], unfair), 6, "four times the use, rounded up");
    let alone = sample(64, 100, [0, 0, 30]);
    assert_eq!(next(4, &[left, alone], unfair), 3, "only one flow is throttled");
}

/// Decision 10: each device has a ratio of its own.
#[test]
fn each_device_has_its_own_ratio() {
    let mut rigs = [0, 1].map(|_| Rig::new(1, &[100, 100], |_| ()));
    let [busy, idle] = &mut rigs;
    busy.hold(0);
    for rig in [&mut *busy, idle] {
        rig.tick();
        rig.now_ns += 1000 * MS;
    }
    busy.serve(0, 40);
    for rig in [&mut *busy, idle] {
        rig.tick();
    }
    let weights = rigs.map(|rig| rig.policy.class_weights());
    assert_eq!(weights, [Some(class_weights(3)), Some(class_weights(256))]);
}

/// Eq. 3: the ratio is the largest slowdown of all flows, rounded up, and at least 3.
#[test]
fn the_ratio_decreases_to_the_largest_slowdown() {
    let high = sample(0, 1, [1 << 30, 0, 0]);
    assert_eq!(next(256, &[high], u64::MAX), 3);
    let half = sample(0, 1, [1 << 30, 0, 1 << 30]);
    assert_eq!(next(21, &[high, half], u64::MAX), 11);
    assert_eq!(next(16, &[sample(0, 1, [0, 1 << 32, 0])], u64::MAX), 4);
    assert_eq!(next(18, &[sample(0, 1, [0, 0, u64::from(u32::MAX)])], u64::MAX), 18);
}

/// Eq. 3 alone would give 3 for flows that are throttled in the medium class; the ratio stays where
/// it can give these shares, which are Figure 15's after each event.
#[test]
fn the_ratio_keeps_what_the_shares_ask_for() {
    for (flows, expected) in [(3, 6), (7, 17)] {
        let mut samples = vec![sample(0, 1, [300, 0, 0]); flows];
        samples.push(sample(0, 1, [45, 55, 0]));
        assert_eq!(next(30, &samples, u64::MAX), expected);
        assert_eq!(next(4, &samples, u64::MAX), 4, "shares do not raise it");
    }
    let alike = [sample(0, 1, [50, 50, 0]), sample(0, 1, [0, 60, 0])];
    assert_eq!(next(9, &alike, u64::MAX), 3, "both are throttled, so no flow needs more");
}

/// Eq. 3 counts requests, as arbitration does.
#[test]
fn equation_3_counts_requests() {
    let mut rig = Rig::new(1, &[100], |_| ());
    rig.hold(0);
    for _ in 0..2 {
        rig.tick();
        rig.now_ns += 1000 * MS;
        rig.serve(0, 1);
    }
    assert_eq!(rig.tick(), [1]);
}

#[test]
fn class_weights_are_as_derived() {
    let at = |ratio| {
        let ClassWeights { high, medium, low } = class_weights(ratio);
        (high, medium, low)
    };
    let expected =
        [(1, (1, 1, 1)), (3, (3, 2, 1)), (6, (6, 3, 1)), (18, (18, 5, 1)), (256, (256, 16, 1))];
    expected.into_iter().for_each(|(ratio, weights)| assert_eq!(at(ratio), weights));
    for ratio in 1..=256 {
        let (high, medium, low) = at(ratio);
        assert!(high == ratio * low && medium >= low && medium <= high);
    }
}

/// Decision 11: a new weight counts for later completions, also those of requests submitted before.
#[test]
fn a_weight_counts_for_later_completions() {
    let mut rig = Rig::new(1, &[100], |_| ());
    let tags: Vec<u32> = (0..3).map(|_| rig.submit(0, 0, 4096).1).collect();
    rig.complete(0, tags[0]);
    rig.policy.set_weight(rig.flows[0], Weight::new(400).unwrap()).unwrap();
    rig.complete(0, tags[1]);
    rig.complete(0, tags[2]);
    assert_eq!(rig.vt(0), 4096 + 2 * 1024);
}

/// Decision 11: the adjustment does not compare a flow's activity in a period with two weights.
#[test]
fn a_new_weight_begins_a_new_period() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(0);
    rig.hold(1);
    let both: &[u64] = &[1, 2];
    for (changes, counted) in [(false, &[][..]), (false, both), (true, &both[1..]), (false, both)] {
        if changes {
            rig.policy.set_weight(rig.flows[0], Weight::new(400).unwrap()).unwrap();
        }
        rig.serve(0, 1);
        rig.serve(1, 2);
        rig.now_ns += 1000 * MS;
        assert_eq!(rig.tick(), counted);
    }
}

/// Weights that a layer computes may change in every period: the adjustment still uses the flows'
/// activity, because virtual time is charged at the weight of each moment.
#[test]
fn a_weight_that_is_computed_leaves_the_period() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(0);
    rig.hold(1);
    for (weight, counted) in [(100, &[][..]), (400, &[1, 2]), (50, &[1, 2])] {
        rig.policy.set_weights(&[(rig.flows[0], Weight::new(weight).unwrap())]);
        rig.serve(0, 1);
        rig.serve(1, 2);
        rig.now_ns += 1000 * MS;
        assert_eq!(rig.tick(), counted);
        assert_eq!(rig.policy.shared.flows.weight(rig.flows[0]).unwrap().get(), weight);
    }
}

/// The policy's part of decision 12: a throttled flow is never given another class because its own
/// is full.
#[test]
fn a_low_flow_stays_low_however_much_it_submits() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    rig.serve(0, 20);
    assert!((0..200).all(|_| rig.submit(0, 0, 4096).0 == Class::Low));
}

/// Published service lags by less than a batch per port, and not at all once nothing is in flight.
#[test]
fn virtual_time_is_published_in_batches() {
    let mut rig = Rig::new(2, &[100], |_| ());
    let batch = rig.policy.shared.batch;
    assert_eq!(batch, (8 << 20) / 64);
    let tags: Vec<(usize, u32)> = (0..400).map(|n| (n % 2, rig.submit(n % 2, 0, 4096).1)).collect();
    for (done, &(port, tag)) in tags.iter().enumerate() {
        rig.complete(port, tag);
        let lag = (done as u64 + 1) * 4096 - rig.vt(0);
        assert!(lag < 2 * batch && (done < 399 || lag == 0), "{lag}");
    }
}

/// A flow that has requests on every port that there may be is counted on each, and is idle when
/// the last has none.
#[test]
fn a_flow_is_counted_on_256_ports() {
    let mut rig = Rig::new(PortSet::MAX_PORTS, &[100, 100], |config| config.tags = 257);
    let tags: Vec<u32> = (0..256).map(|port| rig.submit(port, 0, 4096).1).collect();
    let activity = |rig: &Rig| rig.policy.shared.states[0].activity();
    assert_eq!(activity(&rig).ports(), 256);
    for (port, &tag) in tags.iter().enumerate() {
        rig.now_ns += MS;
        assert!(activity(&rig).is_active(rig.now_ns, 0));
        rig.complete(port, tag);
        assert_eq!(activity(&rig).ports(), 255 - port as u64);
    }
    assert!(
        activity(&rig).is_active(rig.now_ns, MS) && !activity(&rig).is_active(2 * rig.now_ns, MS)
    );
    assert_eq!((rig.holder(), rig.vt(0)), (None, 256 * 4096));
}

/// A request that the device has not begun is sent again, to the flow's present class, and charged
/// once.
#[test]
fn what_is_sent_again_is_charged_once() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    rig.hold(1);
    let (class, tag) = rig.submit(0, 0, 4096);
    assert_eq!(class, Class::High);
    rig.serve(0, 12);
    let again =
        |rig: &mut Rig, tag| rig.ports[0].requeue(rig.now_ns, Tag(tag), &mut { PortSet::EMPTY });
    for _ in 0..2 {
        assert_eq!(again(&mut rig, tag), Some(Submitted::Issue { class: Class::Low }));
    }
    assert_eq!(rig.ports[0].flow_stats(rig.flows[0]).in_flight, 1);
    let before = rig.vt(0);
    rig.complete(0, tag);
    assert_eq!(rig.vt(0) - before, 4096);
    assert_eq!(again(&mut rig, tag), None, "it has completed");
    assert_eq!(again(&mut rig, 5000), None, "there is no such tag");
}

/// Seven flows take turns on a port of two tags, and so of two seats: the service of each is
/// charged to it alone, and counts where it keeps its seat.
#[test]
fn flows_share_the_seats_of_a_port() {
    let mut rig = Rig::new(1, &[100, 200, 300, 400, 500, 600, 700], |config| config.tags = 2);
    rig.free = vec![1, 0];
    (0..7).for_each(|flow| _ = rig.serve(flow, 1));
    for flow in (0..7).cycle().take(35) {
        let before = rig.vt(flow);
        rig.serve(flow, 7);
        // Less than a unit is lost each time that a flow comes to a seat.
        let lost = (7 << 20) / (flow as u64 + 1) - (rig.vt(flow) - before);
        assert!(lost <= 1, "flow {flow}: {lost}");
    }
    assert_eq!(rig.tick(), []);
    for (served, counted) in [
        (&[(5, 3), (6, 4)][..], &[3, 4][..]),
        // Flow 0 takes flow 5's seat, and counts from the next period on.
        (&[(0, 2), (6, 3)], &[3]),
        (&[(0, 2), (5, 1)], &[2]),
    ] {
        rig.now_ns += 1000 * MS;
        served.iter().for_each(|&(flow, mib)| _ = rig.serve(flow, mib));
        assert_eq!(rig.tick(), counted);
    }
}

#[test]
fn a_removed_flow_leaves_nothing_behind() {
    let mut rig = Rig::new(1, &[100, 100], |_| ());
    let (_, tag) = rig.submit(0, 0, 64 << 20);
    rig.policy.remove_flow(rig.flows[0]).unwrap();
    rig.ports[0].next(rig.now_ns, &mut { PortSet::EMPTY });
    rig.complete(0, tag);
    rig.flows[0] = rig.policy.add_flow(Weight::DEFAULT).unwrap();
    assert_eq!(rig.submit(0, 0, 4096).0, Class::High, "the old flow's debt is not the new one's");
}

#[test]
fn urgent_is_off_by_default_and_never_beyond_a_share() {
    let rig = Rig::new(1, &[100], |_| ());
    assert_eq!(rig.policy.set_urgent(rig.flows[0], true), Err(FlowError::NotUrgent));
    let mut rig = Rig::new(1, &[100, 100], |config| config.urgent_percent = 50);
    rig.policy.set_urgent(rig.flows[0], true).unwrap();
    rig.hold(1);
    let classes = rig.serve(0, 20);
    assert!(
        classes.contains(&Class::Urgent) && classes[12..].iter().all(|&class| class == Class::Low),
        "{classes:?}"
    );
}

proptest! {
    /// Law: in any interval urgent bytes are at most the budget's part of all bytes, plus the
    /// burst. All bytes are the bytes submitted by the end of the interval, less the bytes already
    /// counted at its beginning.
    #[test]
    fn urgent_keeps_its_budget(
        percent in 1u8..=50,
        steps in prop::collection::vec((0usize..2, 1u32..200_000, any::<bool>()), 1..300),
    ) {
        let mut rig = Rig::new(2, &[10_000, 10_000], |config| {
            config.urgent_percent = percent;
            config.tau_l = Some(1 << 20);
        });
        rig.policy.set_urgent(rig.flows[0], true).unwrap();
        let (mut all, mut urgent, mut live) = (0u64, 0u64, Vec::new());
        // The worst interval: the largest rise of urgent bytes above their part.
        let mut least = 0i64;
        for (flow, length, completes) in steps {
            let length = length.max(512);
            let (class, tag) = rig.submit(flow, flow, length);
            live.push((flow, tag));
            all += u64::from(length);
            urgent += u64::from(length) * u64::from(class == Class::Urgent);
            prop_assert!(flow == 0 || class != Class::Urgent);
            let above = urgent as i64 * 100 - all as i64 * i64::from(percent);
            prop_assert!(above - least <= 100 * ((512 << 10) + 300 * 200_000 * i64::from(percent) / 100));
            prop_assert!(urgent * 100 <= all * u64::from(percent), "never more than was earned");
            least = least.min(above);
            if completes {
                let (port, tag) = live.remove(0);
                rig.complete(port, tag);
            }
        }
    }

    /// After a publication gvt is not ahead of the publisher, unless no flow held it; and a flow
    /// without requests never holds it. This holds for any history, also across the wrap.
    #[test]
    fn gvt_is_not_ahead_of_who_publishes(
        origin in prop_oneof![Just(0u64), Just((1 << 50) - (1 << 20)), Just((1 << 56) - (1 << 20))],
        steps in prop::collection::vec((0usize..4, 0u64..5000, any::<bool>()), 1..300),
    ) {
        let gvt = gvt::Gvt::<Native>::new();
        let mut vts = [VTime::from_units(origin); 4];
        gvt.update(Holder::new(0, 1), VTime::ZERO, VTime::ZERO);
        gvt.release(Holder::new(0, 1));
        if origin > 0 {
            // One step can move gvt by at most half of the wrapping range.
            (1..8).for_each(|step| gvt.raise_unheld(VTime::from_units(origin / 8 * step)));
            gvt.raise_unheld(vts[0]);
        }
        for (flow, kiu, releases) in steps {
            let (me, before) = (Holder::new(flow, 7), vts[flow]);
            vts[flow] = before.plus(kiu << 10);
            let unheld = gvt.holder_slot().is_none();
            let mine = gvt.holder_slot() == Some(flow);
            let took = gvt.update(me, before, vts[flow]);
            prop_assert!(unheld || mine || (took && gvt.ahead(vts[flow]) >= 0));
            if !took {
                prop_assert!(unheld && gvt.holder_slot().is_none());
                gvt.raise_unheld(*vts.iter().reduce(|a, b| if b.is_before(*a) { b } else { a }).unwrap());
            }
            if releases {
                gvt.release(me);
                prop_assert!(gvt.holder_slot() != Some(flow));
            }
        }
    }

    /// For any weights, sizes and thresholds, and any flow that never completes a request: active
    /// flows and gvt stay within the window in which they compare, and a flow behind gvt is high.
    #[test]
    fn nothing_leaves_the_window(
        weights in prop::collection::vec(prop_oneof![Just(1u16), Just(10_000), 1u16..=10_000], 4),
        tau_l in prop_oneof![Just(None), Just(Some(1 << 16)), Just(Some(MAX_THRESHOLD))],
        percent in prop_oneof![Just(100u32), Just(u32::MAX)],
        leaps in prop_oneof![Just(0), 0..4000],
        steps in prop::collection::vec((0usize..4, 12u32..32, 0usize..8), 1..200),
    ) {
        let mut rig = Rig::new(4, &weights, |config| config.tau_l = tau_l);
        rig.percent = percent;
        // Flow 3 is stuck from the beginning.
        rig.submit(3, 3, 4096);
        // Flow 0 has the device to itself: without a floor it would be ahead by 2^51 units and
        // more.
        for leap in 0..leaps {
            let (_, tag) = rig.submit(0, 0, 1 << 31);
            rig.complete(0, tag);
            if leap % 32 == 0 {
                rig.now_ns += 1000 * MS;
                rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
            }
        }
        let mut live: Vec<(usize, u32)> = Vec::new();
        for (flow, shift, older) in steps {
            if older == 7 {
                rig.now_ns += 1000 * MS;
                rig.policy.tick(rig.now_ns, &mut { PortSet::EMPTY });
            } else if older < live.len() {
                let (port, tag) = live.remove(older);
                rig.complete(port, tag);
            }
            let flow = flow % 3;
            let (class, tag) = rig.submit(flow, flow, 1 << shift);
            live.push((flow, tag));
            let Shared { states, tracker, .. } = &*rig.policy.shared;
            let floor = tracker.floor();
            let gap = tracker.gvt.ahead(floor);
            prop_assert!(gap <= 0, "gvt is before its floor");
            for state in states.iter().take(4) {
                // The distances in the word's 50 bits and in all 56 bits are equal.
                let (ahead, exact) = (tracker.gvt.ahead(state.vt()), state.vt().since(floor));
                prop_assert!((ahead - gap - (exact >> KIU)).abs() <= 2, "{ahead}, {exact}");
            }
            let behind = tracker.gvt.ahead(states[flow].vt()) < 0;
            prop_assert!(!behind || class == Class::High);
        }
    }
}
