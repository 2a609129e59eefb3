//! **Law: growth.** A request that grows while it is staged counts with its new length: caps,
//! reservations and the search for D treat it as one that was submitted with that length.

use std::collections::VecDeque;

use fairq_core::{
    Cap, Caps, CostModel, Counted, FlowId, Growth, Limits, Next, Op, Outcome, PortSet, Request,
    Reservation, Share, Side, Submitted, Tag, Weight,
};

use crate::canary::caught;
use crate::law_layers::Every;
use crate::subjects::registered;
use crate::world::{Handle, Shape, Subject};

const SHORT: u32 = 4096;
const MORE: u32 = 1 << 20;
const LONG: u64 = SHORT as u64 + MORE as u64;
const SECOND: u64 = 1_000_000_000;

/// A policy and its port.
type Rig = (Box<dyn Limits>, Box<dyn Handle>);

fn read(tag: u32, flow: FlowId, length: u32) -> Request {
    Request::new(Tag(tag), flow, Op::Read, 0, length)
}

fn grow(port: &mut dyn Handle, now_ns: u64, tag: u32) -> bool {
    let (offset, length, cost) = (u64::from(SHORT), MORE, u64::from(MORE));
    let growth = Growth { op: Op::Read, offset, length, cost };
    port.grow(now_ns, Tag(tag), &growth, &mut PortSet::default())
}

/// A cap of 1 MB/s. Another flow has the only slot, so each request is still in the policy when it
/// grows by a MiB: in ten seconds at most ten MB and two requests may be issued.
fn cap_counts_it((policy, mut port): Rig) -> Result<(), String> {
    let port = &mut *port;
    let [a, b] = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).expect("it fits"));
    let cap = Caps::default().with(Side::Both, Counted::Bytes, Cap::new(1_000_000, 0));
    policy.set_caps(a, &cap).expect("it has caps");
    let (mut wake, mut now_ns, mut bytes) = (PortSet::EMPTY, SECOND, 0);
    policy.tick(now_ns, &mut wake);
    'over: while now_ns < 11 * SECOND {
        port.submit(now_ns, &read(1, b, SHORT), &mut wake).expect("its tag is free");
        assert!(matches!(port.next(now_ns, &mut wake), Next::Issue { tag: Tag(1), .. }));
        let said = port.submit(now_ns, &read(0, a, SHORT), &mut wake);
        assert_eq!(said, Ok(Submitted::Staged));
        // Until the cap admits the request, and D holds it.
        while let Next::WaitUntil(at_ns) = port.next(now_ns, &mut wake) {
            now_ns = at_ns.max(now_ns + 1);
            if now_ns > 11 * SECOND {
                break 'over;
            }
            policy.tick(now_ns, &mut wake);
        }
        assert!(grow(port, now_ns, 0));
        port.complete(now_ns, Tag(1), Outcome::Done, &mut wake);
        assert!(matches!(port.next(now_ns, &mut wake), Next::Issue { tag: Tag(0), .. }));
        bytes += LONG;
        now_ns += 1000;
        port.complete(now_ns, Tag(0), Outcome::Done, &mut wake);
    }
    match bytes <= 10_000_000 + 2 * LONG {
        true => Ok(()),
        false => Err(format!("{bytes} bytes in ten seconds at 1 MB/s")),
    }
}

/// The service of some seconds.
#[derive(Debug)]
struct Served {
    /// Bytes a second of the first flow, its bytes of the last second as the policy counts them,
    /// and bytes a second of both flows.
    first: u64,
    counted: u64,
    all: u64,
    /// The rate that the search for D measures, if there is a search.
    depth: Option<u64>,
}

/// Serves two flows of weights 1 and 1000, of which the first has 1 MB/s reserved, on a device that
/// does 1000 requests a second.
fn serve((policy, mut port): Rig, grows: bool) -> Served {
    let port = &mut *port;
    let flows = [1, 1000].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
    let reservation = Reservation::new(0, 1_000_000).unwrap();
    policy.set_share(flows[0], &Share { group: None, reservation }).unwrap();
    let (mut wake, mut now_ns) = (PortSet::EMPTY, SECOND);
    let mut tick_ns = policy.tick(now_ns, &mut wake);
    let (mut device, mut served) = (VecDeque::new(), [0; 2]);
    let submit = |port: &mut dyn Handle, now_ns, tag: u32| {
        let length = if grows { SHORT } else { LONG as u32 };
        let request = read(tag, flows[tag as usize / 8], length);
        port.submit(now_ns, &request, &mut PortSet::default()).unwrap();
        assert!(!grows || grow(port, now_ns, tag));
    };
    (0..16).for_each(|tag| submit(port, now_ns, tag));
    while now_ns < 6 * SECOND {
        now_ns += SECOND / 1000;
        if tick_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            tick_ns = policy.tick(now_ns, &mut wake);
        }
        while let Next::Issue { tag, .. } = port.next(now_ns, &mut wake) {
            device.push_back(tag);
        }
        let Some(tag) = device.pop_front() else { continue };
        port.complete(now_ns, tag, Outcome::Done, &mut wake);
        served[tag.0 as usize / 8] += LONG;
        submit(port, now_ns, tag.0);
    }
    let counted = policy.share(flows[0]).map_or(0, |share| share.bytes);
    let depth = policy.stats().depth.map(|depth| depth.bytes_per_s);
    Served { first: served[0] / 5, counted, all: (served[0] + served[1]) / 5, depth }
}

/// Grown requests get the same service as long ones, within a tenth.
fn is_the_same(build: impl Fn() -> Rig) -> Result<(), String> {
    let [grown, whole] = [true, false].map(|grows| serve(build(), grows));
    let near = |one: u64, other: u64| one.abs_diff(other) <= other / 10 + 2 * LONG;
    let is_right = near(grown.first, whole.first)
        && near(grown.counted, whole.counted)
        && grown.depth.is_none_or(|depth| near(depth, grown.all));
    if is_right { Ok(()) } else { Err(format!("not the same: {grown:?}, {whole:?}")) }
}

fn build(name: &'static str, slots: u32) -> Rig {
    let (policy, mut ports) = registered(name, &shape(slots), &[("slots", slots.into())]);
    (Box::new(policy), Box::new(ports.remove(0)))
}

fn shape(slots: u32) -> Shape {
    let cost = CostModel::default();
    Shape { ports: 1, flows: 8, tags: 64, slots, threshold: 0, cost, merge_bytes: 0 }
}

fn automatic() -> Rig {
    let (policy, mut ports) = Subject::build(&Every("mqfq"), &shape(1));
    (policy, ports.remove(0))
}

#[test]
fn holds() {
    for name in ["mqfq", "sfqd"] {
        cap_counts_it(build(name, 1)).unwrap();
        is_the_same(|| build(name, 2)).unwrap();
    }
    is_the_same(automatic).unwrap();
}

/// A port that confirms growth and does not pass it on.
struct Deaf(Box<dyn Handle>);

impl Handle for Deaf {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, fairq_core::SubmitError> {
        self.0.submit(now_ns, request, wake)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        self.0.next(now_ns, wake)
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.0.complete(now_ns, tag, outcome, wake)
    }
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.0.cancel(now_ns, tag, wake)
    }
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.0.expedite(now_ns, tag, wake)
    }
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.0.requeue(now_ns, tag, wake)
    }
    fn grow(&mut self, _: u64, _: Tag, _: &Growth, _: &mut PortSet) -> bool {
        true
    }
    fn has_work(&self) -> bool {
        self.0.has_work()
    }
    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.0.staged(flow)
    }
    fn barrier(&mut self, flow: FlowId) {
        self.0.barrier(flow);
    }
}

#[test]
fn catches_what_does_not_pass_growth_on() {
    let deaf = |(policy, port): Rig| -> Rig { (policy, Box::new(Deaf(port))) };
    caught(cap_counts_it(deaf(build("mqfq", 1))), "at 1 MB/s");
    caught(is_the_same(|| deaf(build("mqfq", 2))), "not the same");
    caught(is_the_same(|| deaf(automatic())), "not the same");
}
