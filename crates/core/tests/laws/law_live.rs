//! **Law: live changes.** An operator's change counts at once and in full while requests run.
//! Weights of several flows that change in one call give the flows their new shares. A cap holds
//! over any number of policies that replace one another, and a policy is replaced without waiting
//! for a cap: requests that wait for one move to the next policy.

use fairq_core::{
    Cap, Caps, CapsOf, Counted, FlowId, Group, GroupId, Held, Limits, Next, Op, Outcome, Policy,
    Port, PortSet, Request, Share, Side, Submitted, Tag, Weight,
};

use crate::canary::{self, Misbehave, caught};
use crate::clocked::{Host, MS, SECOND, Tenant};
use crate::subjects::registered;
use crate::world::{Shape, Subject};

/// Three backlogged flows of 4:2:1 become flows of 1:2:4, and each gets its share within 3 %.
pub(crate) fn weights_change_at_once(subject: &dyn Subject) -> Result<(), String> {
    let (before, after) = ([400, 200, 100], [100, 200, 400]);
    let of = |weight| Tenant { weight, depth: 32, ports: vec![0, 1] };
    let mut host = Host::new(subject, 2, 8, 0, MS / 20, &before.map(of));
    (0..3).try_for_each(|tenant| host.start(tenant))?;
    for weights in [before, after] {
        host.set_weights(&weights);
        // Requests that were submitted before the change keep their tags, and periods their tokens.
        host.run(2 * SECOND)?;
        let then = host.served.clone();
        host.run(SECOND)?;
        let served: Vec<u64> = host.served.iter().zip(then).map(|(now, then)| now - then).collect();
        let all: u64 = served.iter().sum();
        for (&served, weight) in served.iter().zip(weights) {
            let due = all * u64::from(weight) / 700;
            if served.abs_diff(due) > due * 3 / 100 {
                return Err(format!("{served} requests instead of {due} for weight {weight}"));
            }
        }
    }
    host.stop()
}

const RATE: u64 = 20;
const BURST: u64 = 2;
/// Live requests of the flow with a cap, and of the one without.
const DEPTHS: [u32; 2] = [8, 4];
const GROUP: GroupId = GroupId(0);
const POLICIES: [&str; 6] = ["none", "mqfq", "kyber-fair", "d2fq", "sfqd", "bfq"];

/// The part of a change of policies that a broken host leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    Withdrawing,
    Resuming,
}

/// A host with one port that replaces its policy, as the server does: requests that wait for a cap
/// are withdrawn, all others are served, and the new policy takes over the caps and then the
/// withdrawn requests.
struct Changing {
    policy: fairq_classic::AnyPolicy,
    port: fairq_classic::AnyPort,
    /// Whether the cap is that of the flow's group.
    of_group: bool,
    flows: [FlowId; 2],
    now_ns: u64,
    tick_ns: u64,
    wake: PortSet,
    staged: Vec<Tag>,
    device: Vec<Tag>,
    issued: [u64; 2],
}

fn build(
    name: &str,
    known: [Option<FlowId>; 2],
    of_group: bool,
) -> (fairq_classic::AnyPolicy, fairq_classic::AnyPort, [FlowId; 2]) {
    let cost = Default::default();
    let shape =
        Shape { ports: 1, flows: 4, tags: 16, slots: 4, threshold: 0, cost, merge_bytes: 0 };
    let (policy, mut ports) = registered(name, &shape, &[("slots", 4)]);
    let flows = known.map(|flow| policy.add_flow_as(flow, Weight::DEFAULT).expect("it fits"));
    let caps = Caps::default().with(Side::Both, Counted::Requests, Cap::new(RATE, BURST));
    if of_group {
        policy.set_group(GROUP, Some(&Group { caps, ..Group::default() })).expect("it fits");
        let share = Share { group: Some(GROUP), ..Share::default() };
        policy.set_share(flows[0], &share).expect("the flow is there");
    } else {
        policy.set_caps(flows[0], &caps).expect("the flow is there");
    }
    (policy, ports.remove(0), flows)
}

impl Changing {
    fn new(of_group: bool) -> Changing {
        let (policy, port, flows) = build("none", [None; 2], of_group);
        Changing {
            policy,
            port,
            of_group,
            flows,
            now_ns: SECOND,
            tick_ns: 0,
            wake: PortSet::EMPTY,
            staged: Vec::new(),
            device: Vec::new(),
            issued: [0; 2],
        }
    }

    fn flow_of(tag: Tag) -> usize {
        usize::from(tag.0 >= DEPTHS[0])
    }

    fn submit(&mut self, tag: Tag) {
        let request = Request::new(tag, self.flows[Self::flow_of(tag)], Op::Read, 0, 4096);
        match self.port.submit(self.now_ns, &request, &mut self.wake) {
            Ok(Submitted::Staged) => self.staged.push(tag),
            Ok(Submitted::Issue { .. }) => self.issue(tag),
            Err(why) => panic!("{why}"),
        }
    }

    fn issue(&mut self, tag: Tag) {
        self.issued[Self::flow_of(tag)] += 1;
        self.device.push(tag);
    }

    /// Ticks, issues what may go, completes all that is on the device, and issues again.
    fn serve(&mut self) -> Vec<Tag> {
        if self.now_ns >= self.tick_ns {
            let at_ns = self.policy.tick(self.now_ns, &mut self.wake);
            self.tick_ns = at_ns.unwrap_or(u64::MAX);
        }
        let mut done = Vec::new();
        loop {
            while let Next::Issue { tag, .. } | Next::Join { tag } =
                self.port.next(self.now_ns, &mut self.wake)
            {
                self.staged.retain(|&staged| staged != tag);
                self.issue(tag);
            }
            if self.device.is_empty() {
                return done;
            }
            for tag in std::mem::take(&mut self.device) {
                self.port.complete(self.now_ns, tag, Outcome::Done, &mut self.wake);
                done.push(tag);
            }
        }
    }

    /// Lets time pass in steps of a millisecond, while each flow keeps its requests live.
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.now_ns += MS;
            self.serve().into_iter().for_each(|tag| self.submit(tag));
        }
    }

    fn replace(&mut self, name: &str, leaves_out: LeftOut) -> Result<(), String> {
        let waits = |port: &fairq_classic::AnyPort, tag| {
            matches!(port.reason(Some(tag)).held, Some(Held::Cap | Held::GroupCap))
        };
        let mut moved = Vec::new();
        if leaves_out != LeftOut::Withdrawing {
            moved = self.staged.iter().copied().filter(|&tag| waits(&self.port, tag)).collect();
            for &tag in &moved {
                assert!(self.port.cancel(self.now_ns, tag, &mut self.wake));
            }
            self.staged.retain(|tag| !moved.contains(tag));
        }
        // The others go soon: after those before them, or in the next period.
        for _ in 0..30 {
            moved.extend(self.serve());
            if self.staged.is_empty() {
                break;
            }
            self.now_ns += MS;
        }
        if !self.staged.is_empty() {
            return Err(format!("{name} waits for {} requests", self.staged.len()));
        }
        let (policy, port, flows) = build(name, self.flows.map(Some), self.of_group);
        if leaves_out != LeftOut::Resuming {
            if let Some(caps) = self.policy.caps(flows[0]) {
                policy.resume_caps(CapsOf::Flow(flows[0]), &caps);
            }
            if let Some(caps) = self.policy.group(GROUP).and_then(|group| group.caps) {
                policy.resume_caps(CapsOf::Group(GROUP), &caps);
            }
        }
        (self.policy, self.port, self.flows, self.tick_ns) = (policy, port, flows, 0);
        moved.into_iter().for_each(|tag| self.submit(tag));
        Ok(())
    }
}

/// Replaces the policy every 50 to 250 ms, over half a minute.
fn caps_hold(of_group: bool, seed: usize, leaves_out: LeftOut) -> Result<(), String> {
    let mut host = Changing::new(of_group);
    (0..DEPTHS.iter().sum()).for_each(|tag| host.submit(Tag(tag)));
    let mut random = seed;
    let mut policies = Vec::new();
    while host.now_ns < 31 * SECOND {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let others = host.issued[1];
        host.run(50 + (random >> 33) as u64 % 200);
        if host.issued[1] < others + 50 {
            return Err(format!("the flow without a cap stands still under {policies:?}"));
        }
        let name = POLICIES[(random >> 45) % POLICIES.len()];
        policies.push(name);
        host.replace(name, leaves_out)?;
        let due = RATE * (host.now_ns - SECOND) / SECOND;
        if host.issued[0] > due + BURST + 1 {
            return Err(format!("{} requests instead of {due} under {policies:?}", host.issued[0]));
        }
    }
    let due = RATE * 30;
    if host.issued[0] < due - due / 10 {
        return Err(format!("{} requests of {due} under {policies:?}", host.issued[0]));
    }
    let live = host.staged.len() + host.device.len();
    if live as u32 != DEPTHS.iter().sum::<u32>() {
        return Err(format!("{live} requests are left"));
    }
    Ok(())
}

#[test]
fn caps_hold_over_changes_of_the_policy() {
    for (of_group, seed) in [(false, 1), (false, 2), (true, 3), (true, 4)] {
        caps_hold(of_group, seed, LeftOut::Nothing).unwrap();
    }
}

#[test]
fn catches_caps_that_begin_anew_and_waits_for_caps() {
    for of_group in [false, true] {
        caught(caps_hold(of_group, 5, LeftOut::Resuming), "requests instead of");
        caught(caps_hold(of_group, 5, LeftOut::Withdrawing), "waits for");
    }
}

#[test]
fn catches_weights_that_stay() {
    caught(weights_change_at_once(&canary::Wrapped(Misbehave::WeightsStay)), "requests instead of");
}
