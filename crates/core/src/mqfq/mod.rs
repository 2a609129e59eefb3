//! `mqfq`: multi-queue fair queueing (Hedayati et al., USENIX ATC 2019).

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

pub use config::{ConfigError, MqfqConfig, SlotKind, UnthrottleKind, VirtualTimeKind};
pub use port::MqfqPort;
pub use topology::Topology;

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
    /// The end tag of each flow's newest request.
    ends: Box<[CachePadded<P::U64>]>,
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
            ends: (0..config.flows).map(|_| CachePadded::new(P::U64::new(0))).collect(),
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
        if threshold_bytes > MqfqConfig::MAX_THRESHOLD {
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
            if let Some(end) = ends.get(slot) {
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
            let Some(end) = ends.get(slot) else { continue };
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
