//! `mqfq`: multi-queue fair queueing (Hedayati, Shen, Scott and Marty, USENIX ATC 2019).
//!
//! **Problem.** A fast SSD serves several queues, one per core, without regard to whose requests they hold: whoever has
//! more queues, deeper ones or larger requests gets more of the device. Classical fair queueing sorts all requests in one
//! queue, and that queue's lock costs more than the device takes for a request.
//!
//! **Model.** Each request of a flow gets a *start tag*, the flow's place in virtual time: the later of virtual time
//! and the end tag of the flow's request before. Its *end tag* is its start tag plus its cost divided by the
//! flow's weight. One unit is a byte at weight 100 ([`crate::vtime`]). *Virtual time* is the least start tag of all
//! requests that wait, on any port (Section 2.1), and never decreases. A flow that does not use its share
//! forfeits it: when it comes back it starts at virtual time.
//!
//! **Control.** Each port sends its own requests in the order of start tags, under two conditions:
//! - the lead request is at most **T** ahead of virtual time; else the port is *throttled* and sleeps in the
//!   `wheel` until virtual time has come near enough;
//! - one of the **D** slots of the device is free (`slots`); else the port is *ready* and is woken by a completion.
//!
//! Within the window that T opens, ports do not wait for each other, and most requests touch nothing shared but
//! their flow's end tag.
//!
//! **What it guarantees** (Section 2.2). For two flows f and m that have requests waiting throughout an
//! interval, the services received, in units, differ by at most `(D + 1) (2 T + l_f / r_f + l_m / r_m)`, where `l / r` is
//! the largest request's cost at that flow's weight. It is work-conserving: the port that holds the least start tag is
//! never throttled, so when every wake-up has been delivered a slot is free only if nothing waits anywhere.
//! With T = 0, D = 1 and one port it is start-time fair queueing, to the order of each request.
//!
//! **Worked example.** Flows a (weight 100) and b (weight 200) both send 4 KiB reads on two ports; T = 4,096, D = 2. Both start
//! at virtual time 0. a's requests start at 0, 4096, 8192, ...; b's at 0, 2048, 4096, .... Suppose that a's are on port 0 and
//! b's on port 1. Port 0 sends a's first request and may send the second, at 4096, but not the third, at 8192, while
//! virtual time is 0. Port 1 sends b's first; its lead is 2048, port 0's is 8192: virtual time is 2048. Port 0 sleeps until
//! 4096. Port 1 sends b's second: virtual time is 4096, and it wakes port 0. In the long run b sends two for each of a's.
//!
//! | structure | what it holds | file |
//! |---|---|---|
//! | `queue` | a port's requests, by start tag | private to the port |
//! | `virtual_time` | the least start tag over all ports (mindicator, or array scan) | Section 3.1 |
//! | `slots` | free slots and ready ports (token tree, counter, or bitmap) | Sections 3.2, 3.3, 4.3.3 |
//! | `wheel` | throttled ports (or they poll) | Section 3.3 |
//! | `topology` | which ports are near each other | Section 3.3 |
//!
//! **Knobs.** [`MqfqConfig`], with the paper's alternatives.
//!
//! # Where this is finer than the paper's text
//!
//! - *A port publishes its lead lazily* (`virtual_time`): while it keeps dispatching, what it has published may lag behind
//!   its lead by the width of a bucket of the wheel, at most T/8 (and not at all if T is below 16). When it stops, for
//!   whatever reason, or finds itself throttled, it publishes exactly. Virtual time is then at most T/8 earlier than the
//!   least start tag; it is never later, so both lemmas of Section 2.2 hold as they stand: a request is sent only
//!   if it is at most T ahead of virtual time, and all that start more than T before it have been sent. Throttling
//!   begins up to T/8 earlier, and an idle flow comes back up to T/8 earlier, which is less than the window allows anyway.
//!   For that, two ports that dispatch as fast as they can seldom write a word that the other reads.
//! - *Virtual time is held still while a request is tagged with it* (the pin, see `virtual_time`), so that no
//!   request is ever published behind virtual time.
//! - *End tags* advance when a request is submitted, as in the paper's Figure 2, by one atomic addition, and
//!   keep each division's remainder.
//!
//! **Memory ordering.** End tags are a flow's own counter: each request's place follows from one atomic operation on that
//! word, no other data is published through it, so it is accessed with Relaxed. What links virtual time, wheel and slots is
//! sequentially consistent, argued in each file.

mod config;
#[cfg(all(test, loom))]
mod models;
mod port;
mod queue;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
mod topology;
mod virtual_time;
mod wheel;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use config::{MqfqConfig, SlotKind, UnthrottleKind, VirtualTimeKind};
pub use port::MqfqPort;
pub use topology::Topology;

use crate::config::{ConfigError, MAX_THRESHOLD};
use crate::cost::CostModel;
use crate::flow::{FlowError, FlowId, FlowTable, Weight};
use crate::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::port::{Policy, PortId, PortSet, Stats};
use crate::vtime::{LIFT_PERIOD_NS, VTime};
use slots::Slots;
use virtual_time::VirtualTime;
use wheel::Wheel;

/// The control side of MQFQ.
pub struct Mqfq<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    slots: u32,
}

/// What all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    ends: Box<[EndTag<P>]>,
    time: VirtualTime<P>,
    wheel: Wheel<P>,
    slots: Slots<P>,
    counters: Box<[CachePadded<Counters<P>>]>,
    cost: CostModel,
    /// Whether there is one port only.
    alone: bool,
    /// The period, if throttled ports poll instead of sleeping in the wheel.
    polling: Option<u64>,
    /// Held throughout each verb, if there is one.
    serial: Option<P::Mutex<()>>,
}

/// The end tag of a flow's newest request, in a cache line of its own. (Not in two, as `CachePadded` would have it: with
/// thousands of flows the footprint costs more than the processor's fetching of neighbouring lines.)
#[repr(align(64))]
struct EndTag<P: Platform>(P::U64);

/// What a port counts; each is written by that port alone.
struct Counters<P: Platform> {
    throttles: P::U64,
    blocks: P::U64,
    wakes: P::U64,
}

impl<P: Platform> Mqfq<P> {
    /// The policy and its ports, in the order of the topology.
    pub fn new(config: MqfqConfig) -> Result<(Self, Vec<MqfqPort<P>>), ConfigError> {
        config.validate()?;
        let ports = config.ports.ports();
        let tree = config.ports.tree();
        let time = match config.virtual_time {
            VirtualTimeKind::Mindicator => tree.clone(),
            VirtualTimeKind::ArrayScan => config.ports.scan(),
        };
        let counters = || Counters { throttles: P::U64::new(0), blocks: P::U64::new(0), wakes: P::U64::new(0) };
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, ports),
            ends: (0..config.flows).map(|_| EndTag(P::U64::new(0))).collect(),
            time: VirtualTime::new(time),
            wheel: Wheel::new(config.threshold_bytes),
            slots: Slots::new(config.slot_kind, tree, config.slots),
            counters: (0..ports).map(|_| CachePadded::new(counters())).collect(),
            cost: config.cost,
            alone: ports == 1,
            polling: match config.unthrottle {
                UnthrottleKind::Wheel => None,
                UnthrottleKind::Polling { period_ns } => Some(period_ns),
            },
            serial: config.serial.then(|| P::Mutex::new(())),
        });
        let port = |port| MqfqPort::new(PortId(port as u8), config.flows, config.tags, shared.clone());
        let handles = (0..ports).map(port).collect();
        Ok((Mqfq { shared, slots: config.slots }, handles))
    }

    /// Changes T, in units, for requests dispatched from now on. The caller wakes the ports that are added to `wake`.
    pub fn set_threshold(&self, threshold_bytes: u64, wake: &mut PortSet) -> Result<(), ConfigError> {
        if threshold_bytes > MAX_THRESHOLD {
            return Err(ConfigError::Threshold(threshold_bytes));
        }
        wake.extend(self.shared.wheel.set_threshold(threshold_bytes));
        Ok(())
    }
}

impl<P: Platform> Policy for Mqfq<P> {
    type Port = MqfqPort<P>;

    fn add_flow(&self, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, ends, time, .. } = &*self.shared;
        flows.add(weight, |slot| {
            if let Some(EndTag(end)) = ends.get(slot) {
                // No port uses the slot yet; the table makes it visible.
                end.store(time.now().to_word(), Ordering::Relaxed);
            }
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.shared.flows.close(flow)
    }

    fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        let Shared { flows, ends, time, .. } = &*self.shared;
        let now = time.now();
        for slot in flows.open_slots() {
            let Some(EndTag(end)) = ends.get(slot) else { continue };
            let mut old = end.load(Ordering::Relaxed);
            // To lift an end tag to virtual time changes no start tag: each is at least virtual time anyway.
            while VTime::from_word(old).is_before(now) {
                match end.compare_exchange(old, now.to_word(), Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => break,
                    Err(newer) => old = newer,
                }
            }
        }
        Some(now_ns.saturating_add(LIFT_PERIOD_NS))
    }

    fn stats(&self) -> Stats {
        let Shared { time, slots, counters, .. } = &*self.shared;
        let sum = |field: fn(&Counters<P>) -> &P::U64| {
            counters.iter().fold(0u64, |sum, port| sum.wrapping_add(field(port).load(Ordering::Relaxed)))
        };
        Stats {
            virtual_time: Some(time.now().units()),
            slots: Some(u64::from(self.slots)),
            free_slots: Some(slots.free()),
            throttles: sum(|port| &port.throttles),
            blocks: sum(|port| &port.blocks),
            wakes: sum(|port| &port.wakes),
        }
    }
}
