//! MQFQ to the letter of its paper (Hedayati, Shen, Scott and Marty, USENIX ATC 2019), made of the
//! parts that the paper compares.
//!
//! | | `fairq_core::mqfq` | here | paper |
//! |---|---|---|---|
//! | a flow's end tag | ports charge it in batches | one shared fetch-and-add for each request | 3.1 |
//! | window | T less a reserve for charges not yet made | T | 2.1 |
//! | a port's lead | published when it has moved by more than a lag | published after each dispatch | Figure 2 |
//! | arrival at the head | updates the tree's path up to the root | up to the first node whose minimum does not change | 3.1 |
//! | virtual time | read again only if the last value throttles the port | read for each request | Figure 2 |
//! | polling | none | for virtual time and for slots | 4.3.2 |
//!
//! **Open in the paper.** Figure 2 advances the end tag when a request is submitted, Section 3.1
//! "on each request dispatch". Here the end tag advances at submission: the next request's start
//! tag is this request's end tag and is assigned at submission, so dispatch would be too late. In
//! both cases each request costs one shared fetch-and-add. Figure 2 says `MAX(VT, end tag)`, which
//! an addition alone cannot compute: for a lagging flow an additional compare-and-swap raises the
//! end tag to virtual time.
//!
//! **Bounds.** Both theorems hold where verbs do not overlap. Figure 2 says "Logic to mitigate
//! races has been elided", and there is none here: where verbs overlap, a request may start before
//! virtual time. With [`SlotKind::TokenPath`] a port may wait while other nodes have tokens, and
//! waits for ever if no port below those nodes sends another request. Virtual time does not wrap in
//! a run.

use std::collections::BTreeSet;
use std::sync::Arc;

use fairq_core::mqfq::wheel::{Place, Wheel, Window};
use fairq_core::platform::{AtomicWord, Lock, Ordering, Platform};
use fairq_core::structures::flow_table::FlowTable;
use fairq_core::structures::mindicator::VirtualTime;
use fairq_core::structures::port_flows::PortFlows;
use fairq_core::vtime::{Normalizer, VTime};
use fairq_core::{
    Class, FlowError, FlowId, FlowStats, Growth, Limits, Next, Outcome, Policy, Port, PortId,
    PortSet, Reason, ReferenceWeight, Request, Stats, SubmitError, Submitted, Tag, Topology,
    Weight,
};

use super::slots::{SlotKind, Slots};

/// The structure that computes virtual time from the ports' lead requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VirtualTimeKind {
    /// A tree of minima over ports, cores and sockets (Section 3.1).
    Mindicator,
    /// One array of all ports' minima, scanned at each update (Section 4.3.1).
    ArrayScan,
    /// None: no port is throttled (Section 4.3.3).
    None,
}

/// The way in which a throttled port is released when virtual time has advanced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnthrottleKind {
    /// The port that advances virtual time wakes the throttled port (Section 3.3).
    Wheel,
    /// The throttled port reads virtual time once a period (Section 4.3.2).
    Polling {
        /// The period, in nanoseconds; at least 1. The paper tries 1,000 and 5,000.
        period_ns: u64,
    },
}

/// The parts that MQFQ is made of (Sections 4.2 and 4.3).
#[derive(Clone, Copy, Debug)]
pub struct MqfqParts {
    /// D.
    pub slots: u32,
    /// T, in bytes at the reference weight.
    pub threshold: u64,
    /// The computation of virtual time.
    pub virtual_time: VirtualTimeKind,
    /// The structure that counts free slots.
    pub slot_kind: SlotKind,
    /// The wake-up of throttled ports.
    pub unthrottle: UnthrottleKind,
    /// Whether one lock is held throughout each dispatch (MQFQ-serial).
    pub serial: bool,
}

impl MqfqParts {
    /// The paper's own choice of parts.
    pub fn new(slots: u32, threshold: u64) -> MqfqParts {
        MqfqParts {
            slots,
            threshold,
            virtual_time: VirtualTimeKind::Mindicator,
            slot_kind: SlotKind::TokenTree,
            unthrottle: UnthrottleKind::Wheel,
            serial: false,
        }
    }
}

/// MQFQ's control side.
pub struct StrictMqfq<P: Platform> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Platform> {
    parts: MqfqParts,
    is_timed: bool,
    flows: FlowTable<P>,
    /// Virtual time at which each flow's next request starts.
    ends: Box<[End<P>]>,
    time: VirtualTime<P>,
    wheel: Wheel<P>,
    slots: Slots<P>,
    /// Held throughout `next` if dispatches are serialized.
    serial: P::Mutex<()>,
}

/// A flow's end tag, in a cache line of its own.
#[repr(align(64))]
struct End<P: Platform>(P::U64);

/// A port of MQFQ.
pub struct StrictMqfqPort<P: Platform> {
    shared: Arc<Shared<P>>,
    port: PortId,
    flows: PortFlows<Normalizer>,
    /// The seat of each live request, by tag, and the slot that it has, unless it is staged.
    live: Vec<Option<(usize, Option<u32>)>>,
    /// Start tag, number of the arrival and tag of the staged requests.
    queue: BTreeSet<(u64, u64, u32)>,
    arrivals: u64,
    /// The start tag in the port's leaf.
    published: Option<VTime>,
    /// Virtual time when last read.
    time: VTime,
    /// The port's place in the wheel, if it sleeps.
    place: Option<Place>,
    enlisted: bool,
    hint: usize,
}

impl<P: Platform> StrictMqfq<P> {
    /// The policy and its ports.
    pub fn new(
        parts: MqfqParts,
        ports: &Topology,
        flows: usize,
        tags: usize,
    ) -> (Self, Vec<StrictMqfqPort<P>>) {
        let tree = match parts.virtual_time {
            VirtualTimeKind::ArrayScan => ports.scan(),
            _ => ports.tree(),
        };
        let window = Window::new(ReferenceWeight::default().units(parts.threshold), false);
        let shared = Arc::new(Shared {
            parts,
            is_timed: parts.virtual_time != VirtualTimeKind::None,
            flows: FlowTable::new(flows, ports.ports()),
            ends: (0..flows).map(|_| End(P::U64::new(0))).collect(),
            time: VirtualTime::new(tree),
            wheel: Wheel::new(window, ports.ports()),
            slots: Slots::new(parts.slot_kind, ports, parts.slots),
            serial: P::Mutex::new(()),
        });
        let port = |port| StrictMqfqPort {
            shared: shared.clone(),
            port: PortId(port as u8),
            flows: PortFlows::new(PortId(port as u8), &shared.flows, tags),
            live: vec![None; tags],
            queue: BTreeSet::new(),
            arrivals: 0,
            published: None,
            time: VTime::ZERO,
            place: None,
            enlisted: false,
            hint: port,
        };
        let handles = (0..ports.ports()).map(port).collect();
        (StrictMqfq { shared }, handles)
    }

    /// Computes W again after a change of flows or weights; the next port that runs adopts it.
    fn weigh(&self) {
        let Shared { parts, flows, wheel, .. } = &*self.shared;
        if wheel.want(Window::new(flows.reference().units(parts.threshold), false)) {
            flows.tell();
        }
    }
}

impl<P: Platform> Limits for StrictMqfq<P> {}

impl<P: Platform> Policy for StrictMqfq<P> {
    type Port = StrictMqfqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, ends, time, .. } = &*self.shared;
        let start = |slot: usize| ends[slot].0.store(time.now().to_word(), Ordering::Relaxed);
        let added = flows.add(known, weight, start)?;
        self.weigh();
        Ok(added)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)?;
        self.weigh();
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let ports = self.shared.flows.close(flow)?;
        self.weigh();
        Ok(ports)
    }

    fn tick(&self, _now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        None
    }

    fn stats(&self) -> Stats {
        let Shared { time, slots, parts, .. } = &*self.shared;
        Stats {
            virtual_time: Some(time.now().units()),
            slots: Some(parts.slots.into()),
            free_slots: Some(slots.free()),
            ..Stats::default()
        }
    }
}

impl<P: Platform> Port for StrictMqfqPort<P> {
    fn submit(
        &mut self,
        _now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let tag = request.tag.0 as usize;
        if self.live.get(tag).is_none_or(Option::is_some) {
            return Err(SubmitError::BadTag);
        }
        let left = |_, _: &Normalizer| ();
        let (weight, seat) =
            self.flows.admit(&self.shared.flows, request.flow, request.tag, left)?;
        let normalizer = self.flows.kept_mut(seat).ok_or(SubmitError::NoSuchFlow)?;
        // A request with a cost of 0 would not advance the end tag, so its flow would never be
        // throttled.
        let units = normalizer.units(request.cost.alone.max(1), weight);
        let start = self.tag(request.flow.slot(), units, wake);
        self.queue.insert((start.units(), self.arrivals, request.tag.0));
        self.arrivals += 1;
        self.live[tag] = Some((seat, None));
        Ok(Submitted::Staged)
    }

    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if !self.shared.parts.serial {
            return self.dispatch(now_ns, wake);
        }
        let shared = self.shared.clone();
        shared.serial.with(|()| self.dispatch(now_ns, wake))
    }

    fn complete(&mut self, _now_ns: u64, tag: Tag, _outcome: Outcome, wake: &mut PortSet) -> bool {
        let live = self.live.get_mut(tag.0 as usize);
        let Some((seat, slot)) = live.and_then(|live| live.take_if(|(_, slot)| slot.is_some()))
        else {
            return false;
        };
        self.flows.finish(&self.shared.flows, seat);
        let can_use = self.lead().is_some_and(|lead| {
            let window = self.shared.wheel.window();
            let is_held = |time| self.shared.is_timed && window.holds_back(lead, time);
            // Virtual time only advances, so the port has to read it again only if the value read
            // last throttles the request.
            if is_held(self.time) {
                self.time = self.shared.time.now();
            }
            !is_held(self.time)
        });
        wake.extend(self.shared.slots.release(self.port, slot.unwrap_or_default(), can_use));
        true
    }

    fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    unused_verbs!();
}

impl<P: Platform> StrictMqfqPort<P> {
    /// The start tag of the first staged request.
    fn lead(&self) -> Option<VTime> {
        self.queue.first().map(|&(start, ..)| VTime::from_units(start))
    }

    /// Assigns a start tag to a request: virtual time, or the end tag of the flow's last request if
    /// that is later. If the request becomes the port's lead, lowers the port's leaf to its start
    /// tag.
    fn tag(&mut self, flow: usize, units: u64, wake: &mut PortSet) -> VTime {
        if self.shared.is_timed {
            self.time = self.shared.time.now();
        }
        let word = &self.shared.ends[flow].0;
        let cost = VTime::from_units(units).to_word();
        let old = VTime::from_word(word.fetch_add(cost, Ordering::Relaxed));
        let end = self.time.plus(units).to_word();
        let mut seen = old.plus(units).to_word();
        // The flow lags behind virtual time: the maximum needs this swap beside the addition.
        while VTime::from_word(seen).is_before(VTime::from_word(end))
            && let Err(newer) =
                word.compare_exchange(seen, end, Ordering::Relaxed, Ordering::Relaxed)
        {
            seen = newer;
        }
        let start = old.max(self.time);
        if self.published.is_none_or(|published| start.is_before(published)) {
            self.published = Some(start);
            if self.shared.is_timed {
                let moved = self.shared.time.arrive(self.port, start);
                self.turn(moved, wake);
            }
        }
        start
    }

    /// One call of `next`.
    fn dispatch(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.flows.poll(&self.shared.flows, wake) {
            wake.extend(self.shared.wheel.adopt());
        }
        let stopped = match self.shared.parts.unthrottle {
            UnthrottleKind::Wheel => Next::Blocked,
            UnthrottleKind::Polling { period_ns } => Next::WaitUntil(now_ns + period_ns),
        };
        loop {
            let Some(lead) = self.lead() else {
                self.rest(wake);
                self.publish(None, wake);
                return Next::Idle;
            };
            if self.shared.is_timed {
                self.time = self.shared.time.now();
            }
            let window = self.shared.wheel.window();
            if self.shared.is_timed && window.holds_back(lead, self.time) {
                // The port's own leaf may hold virtual time back.
                self.publish(Some(lead), wake);
                self.time = self.shared.time.now();
                if window.holds_back(lead, self.time) {
                    match self.throttle(lead, wake) {
                        true => return stopped,
                        false => continue,
                    }
                }
            }
            self.leave_wheel();
            let Some(slot) = self.acquire() else {
                self.publish(Some(lead), wake);
                return stopped;
            };
            let Some((_, _, tag)) = self.queue.pop_first() else { continue };
            if let Some((_, has)) = &mut self.live[tag as usize] {
                *has = Some(slot);
            }
            let lead = self.lead();
            self.publish(lead, wake);
            return Next::Issue { tag: Tag(tag), class: Class::Medium };
        }
    }

    /// Raises the port's leaf to `lead`.
    fn publish(&mut self, lead: Option<VTime>, wake: &mut PortSet) {
        if self.published != lead {
            self.published = lead;
            if self.shared.is_timed {
                let moved = self.shared.time.raise(self.port, lead);
                self.turn(moved, wake);
            }
        }
    }

    /// If virtual time has advanced to `moved`, wakes the ports that this releases.
    fn turn(&mut self, moved: Option<VTime>, wake: &mut PortSet) {
        if let Some(now) = moved {
            self.time = now;
            if self.shared.parts.unthrottle == UnthrottleKind::Wheel {
                wake.extend(self.shared.wheel.turn(now));
            }
        }
    }

    /// Takes a slot, or marks the port as waiting for one.
    fn acquire(&mut self) -> Option<u32> {
        let mut slot = self.shared.slots.acquire(self.port, &mut self.hint);
        if self.shared.parts.unthrottle != UnthrottleKind::Wheel {
            // A port that polls tries again by itself; no other port has to wake it.
            return slot;
        }
        if slot.is_none() && !(self.enlisted && self.shared.slots.is_enlisted(self.port)) {
            self.shared.slots.enlist(self.port);
            self.enlisted = true;
            // If a port frees a slot and does not see the mark, it freed the slot before this
            // attempt, so the attempt finds the slot.
            slot = self.shared.slots.acquire(self.port, &mut self.hint);
        }
        if slot.is_some() {
            self.delist();
        }
        slot
    }

    /// Throttles the port because `lead` is too far ahead; returns false if that is no longer the
    /// case.
    fn throttle(&mut self, lead: VTime, wake: &mut PortSet) -> bool {
        if let Some(place) = self.place
            && self.shared.wheel.sleeps(self.port, lead, place)
        {
            // The port is in the wheel already. It passes a slot that it has got meanwhile to other
            // ports.
            self.rest_awake(wake);
            return true;
        }
        self.rest(wake);
        if self.shared.parts.unthrottle != UnthrottleKind::Wheel {
            return true;
        }
        let window = self.shared.wheel.window();
        // W may have grown since the caller read it.
        if window.holds_back(lead, self.time) {
            let Shared { wheel, time, .. } = &*self.shared;
            self.place = wheel.enter(self.port, lead, window, self.time, time);
        }
        self.place.is_some()
    }

    /// The port has no request that may be issued: removes it from the wheel and gives up its
    /// slots.
    fn rest(&mut self, wake: &mut PortSet) {
        self.leave_wheel();
        self.rest_awake(wake);
    }

    fn rest_awake(&mut self, wake: &mut PortSet) {
        self.delist();
        wake.extend(self.shared.slots.stop(self.port));
    }

    fn leave_wheel(&mut self) {
        if let Some(place) = self.place.take() {
            self.shared.wheel.leave(self.port, place);
        }
    }

    fn delist(&mut self) {
        if std::mem::take(&mut self.enlisted) {
            self.shared.slots.delist(self.port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::{Native, Op};

    /// A request's start tag is the end tag of the flow's last request, on any port, or virtual
    /// time if that is later.
    #[test]
    fn each_request_is_charged_at_once() {
        let parts = MqfqParts::new(64, 46_080);
        let (policy, mut ports) = StrictMqfq::<Native>::new(parts, &Topology::flat(3), 2, 8);
        let [flow, other] = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
        let wake = &mut PortSet::default();
        let mut submit = |port: usize, tag, flow, length| {
            let request = Request::new(Tag(tag), flow, Op::Read, 0, length);
            ports[port].submit(0, &request, wake).unwrap();
            let end = policy.shared.ends[0].0.load(Ordering::Relaxed);
            let starts = ports[port].queue.iter();
            let start = starts.filter(|(.., at)| *at == tag).map(|(start, ..)| *start).next();
            (start.unwrap(), VTime::from_word(end).units())
        };
        assert_eq!(submit(0, 0, flow, 1000), (0, 1000));
        assert_eq!(submit(1, 0, flow, 600), (1000, 1600));
        assert_eq!(submit(0, 1, flow, 700), (1600, 2300));
        // Virtual time advances to the start tag of the other flow's second request.
        submit(2, 0, other, 9000);
        submit(2, 1, other, 9000);
        for (port, tags) in [(0, 2), (1, 1), (2, 1)] {
            (0..tags).for_each(|_| _ = ports[port].next(0, &mut PortSet::default()));
        }
        assert_eq!(policy.stats().virtual_time, Some(9000));
        let request = Request::new(Tag(1), flow, Op::Read, 0, 800);
        ports[1].submit(0, &request, &mut PortSet::default()).unwrap();
        let (start, ..) = *ports[1].queue.first().unwrap();
        let end = policy.shared.ends[0].0.load(Ordering::Relaxed);
        assert_eq!((start, VTime::from_word(end).units()), (9000, 9800), "it has lagged behind");
    }

    #[test]
    fn polling_ports_ask_again_after_the_period() {
        let unthrottle = UnthrottleKind::Polling { period_ns: 1000 };
        let parts = MqfqParts { unthrottle, ..MqfqParts::new(1, 0) };
        let (policy, mut ports) = StrictMqfq::<Native>::new(parts, &Topology::flat(1), 1, 2);
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let wake = &mut PortSet::default();
        for tag in [Tag(0), Tag(1)] {
            ports[0].submit(0, &Request::new(tag, flow, Op::Read, 0, 512), wake).unwrap();
        }
        assert!(matches!(ports[0].next(0, wake), Next::Issue { tag: Tag(0), .. }));
        assert_eq!(ports[0].next(5, wake), Next::WaitUntil(1005), "for a slot");
    }
}
