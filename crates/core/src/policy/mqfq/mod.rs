//! `mqfq`: multi-queue fair queueing (Hedayati, Shen, Scott and Marty, USENIX ATC 2019).
//!
//! **Problem.** A fast SSD serves several queues, one per core, without regard to tenants: a tenant
//! with more queues, deeper ones or larger requests gets more of the device. Classical fair
//! queueing sorts all requests in one queue, and the lock of that queue costs more than the device
//! takes for a request.
//!
//! **Model.** Each request of a flow gets a *start tag*, the flow's place in virtual time: the
//! later of virtual time and the end tag of the flow's previous request. Its *end tag* is its start
//! tag plus its cost divided by the flow's weight. One unit is a byte at weight 100
//! ([`crate::contract::vtime`]). *Virtual time* is the least start tag of all requests that wait,
//! on any port (Section 2.1), and never decreases. A flow that does not use its share forfeits it:
//! when it comes back it starts at virtual time.
//!
//! **Control.** Each port sends its own requests in the order of start tags, under two conditions:
//! - the lead request is within the *window* ahead of virtual time, which is **T**, or four fifths
//!   of it if there are several ports (`end_tags`); else it is *throttled*, in the `wheel`. T is in
//!   bytes of a flow of the [reference weight](ReferenceWeight);
//! - one of the **D** slots of the device is free (`slots`); else the port is *ready* and is woken
//!   by a completion.
//!
//! **Guarantees** (Section 2.2). For two flows f and m that have requests waiting throughout an
//! interval, the services received, in units, differ by at most
//! `(D + 1) (2 T + l_f / r_f + l_m / r_m)`, `l / r` being the largest request at that weight. It is
//! work-conserving. With T = 0, D = 1 and one port it is start-time fair queueing.
//!
//! **Worked example.** Flows a (weight 100) and b (weight 200) both send 4 KiB reads on two ports;
//! T = 5,120, a window of 4,096; D = 2. Both start at virtual time 0. a's requests start at 0,
//! 4096, 8192, ...; b's at 0, 2048, 4096, .... Suppose that a's are on port 0 and b's on port 1.
//! Port 0 sends a's first request and may send the second, at 4096, but not the third, at 8192,
//! while virtual time is 0. Port 1 sends b's first; its lead is 2048, port 0's is 8192: virtual
//! time is 2048. Port 0 sleeps until it is 4096. Port 1 sends b's second: virtual time is 4096, and
//! it wakes port 0. In the long run b sends two for each of a's.
//!
//! **Bounds.** A verb walks a path of the trees and, if virtual time or T has changed, empties the
//! wheel: 64 buckets, each a word for 64 ports. A `tick` reads 2 words of each port ten times a
//! second while T follows, and 3 of 1,024 flows in walks once a minute; it takes no verb's lock.
//!
//! **Knobs.** [`MqfqConfig`]. Decision 6 lists where this is finer than the paper's algorithm (it
//! is in `crates/sim`), and which cache lines move. Each file argues its memory ordering.

mod end_tags;
mod follow;
mod kept;
#[cfg(all(test, loom))]
mod models;
mod port;
mod queue;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod wheel;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use port::MqfqPort;

use crate::contract::bounds::{
    ConfigError, MAX_SLOTS, MAX_THRESHOLD, boxed, changeable, check, granted, within,
};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{Policy, Stats, TuneError, Tuning};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{LIFT_PERIOD_NS, ReferenceWeight};
use crate::structures::flow_table::{FlowTable, SlotWalk};
use crate::structures::mindicator::VirtualTime;
use crate::structures::topology::Topology;
use end_tags::EndTags;
use follow::{Count, Follow, Late};
use slots::Slots;
use wheel::{Wheel, Window};

/// The knobs of MQFQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MqfqConfig {
    /// Core and socket of each port.
    pub ports: Topology,
    /// The maximum number of flows.
    pub flows: usize,
    /// The number of tags per port: its tags are `0..tags`.
    pub tags: usize,
    /// D, the most requests outstanding on the device. Default 64, the internal parallelism that
    /// the paper measured on its SSD: fewer starve the device, more weaken the bound on unfairness.
    pub slots: u32,
    /// T, the most that a request's start tag may be ahead of virtual time when the request is
    /// dispatched, in bytes of service at the [reference weight](ReferenceWeight), which is
    /// 100 where all weights are. Default 45 KiB, the paper's for its SSD: the smallest that caused
    /// no significant contention. 0 gives SFQ(D)'s order at the price of its contention. With
    /// several ports a fifth of T is reserved for late charges (see `end_tags`).
    pub threshold_bytes: u64,
    /// Whether T grows from `threshold_bytes` while ports are throttled too often, up to the bytes
    /// that the device serves in 0.4 ms, or while ports are late most of the time, up to the bytes
    /// of 20 ms (see `follow`). Default: no, as in the paper, which finds T once for each device
    /// (Section 3.4).
    pub threshold_follows: bool,
    /// Whether one lock serializes dispatches: it is held throughout `next` (the paper's
    /// MQFQ-serial, Section 4.2). Default: no.
    pub serial: bool,
    /// Whether the slot of a completed request is kept for its flow for a moment, if the flow has
    /// had less than its share and mostly comes back at once (`kept`). MQFQ is then not
    /// work-conserving, by a 64th of the slots' time. Default: no.
    pub anticipates: bool,
}

changeable!(MqfqConfig);

impl MqfqConfig {
    /// The default D: the parallelism that the authors measured on their SSD.
    pub const SLOTS: u32 = 64;
    /// The default T, in bytes: the paper's for its SSD.
    pub const THRESHOLD: u64 = 45 << 10;

    /// The default knobs for this number of flows, and of tags per port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Self {
        MqfqConfig {
            ports,
            flows,
            tags,
            slots: Self::SLOTS,
            threshold_bytes: Self::THRESHOLD,
            threshold_follows: false,
            serial: false,
            anticipates: false,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports.ports(), self.flows, self.tags, self.slots)?;
        within("threshold", self.threshold_bytes, 0, MAX_THRESHOLD)
    }
}

/// The control side of MQFQ.
pub struct Mqfq<P: Platform = Native> {
    shared: Arc<Shared<P>>,
}

/// State that all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    ends: EndTags<P>,
    time: VirtualTime<P>,
    wheel: Wheel<P>,
    slots: Slots<P>,
    counters: Box<[CachePadded<Counters<P>>]>,
    threshold: P::Mutex<Threshold>,
    late: Late<P>,
    /// The walk that lifts the tags of lagging flows.
    walk: SlotWalk<P>,
    /// Held throughout `next`, if dispatches are serialized.
    serial: Option<P::Mutex<()>>,
}

/// T, in bytes at the reference weight, and the other inputs of W.
struct Threshold {
    bytes: u64,
    /// Reference weight of the present flows.
    reference: ReferenceWeight,
    /// State of the adjustment of T, if T follows the device.
    follow: Option<Follow>,
}

/// Counters of a port. Only that port writes them, except for `free_ns`.
struct Counters<P: Platform> {
    throttles: P::U64,
    blocks: P::U64,
    wakes: P::U64,
    late_ns: P::U64,
    /// Time at which virtual time released the port from the wheel, in nanoseconds, or 0. Written
    /// by the port that moved virtual time, and cleared by this port when it leaves the wheel.
    free_ns: P::U64,
}

impl<P: Platform> Counters<P> {
    fn new() -> Self {
        let zero = || P::U64::new(0);
        Counters {
            throttles: zero(),
            blocks: zero(),
            wakes: zero(),
            late_ns: zero(),
            free_ns: zero(),
        }
    }
}

impl<P: Platform> Mqfq<P> {
    /// The policy and its ports, in the order of the topology.
    pub fn new(config: MqfqConfig) -> Result<(Self, Vec<MqfqPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(&config)))
    }

    /// Builds them from a valid configuration.
    #[inline(never)]
    fn of(config: &MqfqConfig) -> (Self, Vec<MqfqPort<P>>) {
        let ports = config.ports.ports();
        let tree = config.ports.tree();
        let ends = EndTags::new(config.flows, ports);
        let reference = ReferenceWeight::default();
        let window = ends.window(reference.units(config.threshold_bytes));
        let window = Window::new(window, config.threshold_follows);
        let follow = config.threshold_follows.then(|| Follow::new(config.threshold_bytes, ports));
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, ports),
            ends,
            time: VirtualTime::new(tree.clone()),
            wheel: Wheel::new(window, ports),
            slots: Slots::new(tree, config.slots),
            counters: boxed(ports, |_| CachePadded::new(Counters::new())),
            threshold: P::Mutex::new(Threshold {
                bytes: config.threshold_bytes,
                reference,
                follow,
            }),
            late: Late::new(),
            walk: SlotWalk::new(),
            serial: config.serial.then(|| P::Mutex::new(())),
        });
        let port = |port| MqfqPort::new(PortId(port as u8), config, shared.clone());
        let handles = boxed(ports, port).into_vec();
        (Mqfq { shared }, handles)
    }

    /// Changes T, in bytes at the reference weight, for requests dispatched from now on. If it
    /// `follows`, T follows the device from there. The caller wakes the ports that are added to
    /// `wake`.
    fn set_threshold(
        &self,
        bytes: u64,
        follows: bool,
        wake: &mut PortSet,
    ) -> Result<(), ConfigError> {
        within("threshold", bytes, 0, MAX_THRESHOLD)?;
        let follow = follows.then(|| Follow::new(bytes, self.shared.counters.len()));
        self.shared.threshold.with(|threshold| {
            *threshold = Threshold { bytes, follow, ..*threshold };
            // `adopt`, below, checks by itself whether W has changed.
            self.want_window(threshold);
        });
        wake.extend(self.shared.wheel.adopt());
        Ok(())
    }

    /// Sets the wanted W; returns whether it differs from the W in force.
    fn want_window(&self, threshold: &Threshold) -> bool {
        let Shared { ends, wheel, .. } = &*self.shared;
        let units = ends.window(threshold.reference.units(threshold.bytes));
        wheel.want(Window::new(units, threshold.follow.is_some()))
    }

    /// Computes W again after a change of flows or weights, for requests dispatched from now on.
    /// The first port that runs adopts the new W, because a port can wake others, and no port
    /// dispatches a request before W is adopted.
    fn weigh(&self) {
        let Shared { flows, threshold, .. } = &*self.shared;
        threshold.with(|threshold| {
            // Read under the lock, so that the last writer has seen all earlier changes.
            threshold.reference = flows.reference();
            if self.want_window(threshold) {
                flows.tell();
            }
        });
    }

    /// Lifts the tags of lagging flows, so that no tag ever leaves the range of virtual time.
    /// Returns the time of the next step, in nanoseconds.
    fn lift(&self, now_ns: u64) -> u64 {
        let Shared { flows, ends, time, wheel, walk, .. } = &*self.shared;
        let slots = walk.step(now_ns, flows.capacity(), LIFT_PERIOD_NS);
        if !slots.is_empty() {
            let (now, window) = (time.now(), wheel.window().units());
            flows.open_among(slots).for_each(|slot| ends.lift(slot, now, window));
        }
        walk.next_ns()
    }

    /// Adjusts T to the device, if T follows the device and the adjustment is due. Returns the time
    /// of the next adjustment, in nanoseconds.
    fn follow(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let Shared { time, counters, threshold, wheel, .. } = &*self.shared;
        let (deadline_ns, changed) = threshold.with(|threshold| {
            let follow = threshold.follow.as_mut()?;
            if follow.deadline_ns() > now_ns {
                return Some((follow.deadline_ns(), false));
            }
            let late_ns = self.sum(|port| &port.late_ns);
            let count = Count { at_ns: now_ns, now: time.now(), late_ns };
            let stops = counters.iter().map(|port| port.throttles.load(Ordering::Relaxed));
            let changed = follow.look(count, stops, threshold.reference);
            let deadline_ns = follow.deadline_ns();
            threshold.bytes = changed.unwrap_or(threshold.bytes);
            Some((deadline_ns, changed.is_some() && self.want_window(threshold)))
        })?;
        if changed {
            wake.extend(wheel.adopt());
        }
        Some(deadline_ns)
    }

    /// Sum of a counter over all ports, wrapping.
    fn sum(&self, field: fn(&Counters<P>) -> &P::U64) -> u64 {
        let counts = self.shared.counters.iter().map(|port| field(port).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Changes D, for requests dispatched from now on. The caller wakes the ports that are added to
    /// `wake`.
    fn set_slots(&self, count: u32, wake: &mut PortSet) -> Result<(), TuneError> {
        if count == 0 || count > MAX_SLOTS {
            return Err(ConfigError::Slots(count).into());
        }
        wake.extend(self.shared.slots.resize(count));
        // After the debt is published: a port that reads the notification also finds the debt, and
        // pays it.
        self.shared.flows.tell();
        Ok(())
    }
}

impl<P: Platform> Policy for Mqfq<P> {
    type Port = MqfqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, ends, time, .. } = &*self.shared;
        let added = flows.add(known, weight, |slot| ends.start(slot, time.now()))?;
        self.weigh();
        Ok(added)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)?;
        self.weigh();
        Ok(())
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.shared.flows.set_weights(weights, |_, _| ());
        self.weigh();
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        match tuning {
            Tuning::Threshold(bytes) => Ok(self.set_threshold(bytes, false, wake)?),
            Tuning::FollowingThreshold(least) => Ok(self.set_threshold(least, true, wake)?),
            Tuning::Slots(count) => self.set_slots(count, wake),
            Tuning::AutoSlots => Err(TuneError::Fixed),
        }
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let ports = self.shared.flows.close(flow)?;
        self.weigh();
        Ok(ports)
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let follow_ns = self.follow(now_ns, wake).unwrap_or(u64::MAX);
        Some(self.lift(now_ns).min(follow_ns))
    }

    fn stats(&self) -> Stats {
        let Shared { time, slots, .. } = &*self.shared;
        Stats {
            virtual_time: Some(time.now().units()),
            spread: Some(time.spread()),
            slots: Some(u64::from(slots.total())),
            free_slots: Some(slots.free()),
            throttles: self.sum(|port| &port.throttles),
            blocks: self.sum(|port| &port.blocks),
            wakes: self.sum(|port| &port.wakes),
            ..Stats::default()
        }
    }
}
