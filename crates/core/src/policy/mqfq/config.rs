//! The configuration of MQFQ.

use crate::contract::bounds::{ConfigError, MAX_THRESHOLD, check};
use crate::entry::knobs::changeable;
use crate::structures::topology::Topology;

/// The structure that computes virtual time from the ports' lead requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VirtualTimeKind {
    /// A tree of minima over ports, cores and sockets (Section 3.1).
    #[default]
    Mindicator,
    /// One array of all ports' minima, scanned at each update: the paper's alternative
    /// (Section 4.3.1).
    ArrayScan,
}

/// The structure that holds the free slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlotKind {
    /// A tree of counters that keeps slots near the ports that use them (Section 3.2).
    #[default]
    TokenTree,
    /// One shared counter (Section 4.3.3).
    AtomicCounter,
    /// Bits spread over cache lines, like Linux's sbitmap (Section 4.3.3).
    ScalableBitmap,
}

/// The way in which a throttled port learns that virtual time has caught up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnthrottleKind {
    /// The port that moves virtual time on wakes the throttled port (Section 3.3).
    #[default]
    Wheel,
    /// The throttled port reads virtual time once a period (Section 4.3.2).
    Polling {
        /// The period, in nanoseconds; at least 1. The paper tries 1,000 and 5,000.
        period_ns: u64,
    },
}

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
    /// dispatched, in bytes of service at the [reference weight](crate::ReferenceWeight), which is
    /// 100 where all weights are. Default 45 KiB, the paper's for its SSD: the smallest that caused
    /// no significant contention. 0 gives SFQ(D)'s order at the price of its contention. With
    /// several ports a fifth of T is reserved for late charges (see `end_tags`).
    pub threshold_bytes: u64,
    /// Whether T grows from `threshold_bytes` while ports are throttled too often, up to the bytes
    /// that the device serves in 0.4 ms, or while ports are late most of the time, up to the bytes
    /// of 20 ms (see `follow`). Default: no, as in the paper, which finds T once for each device
    /// (Section 3.4).
    pub threshold_follows: bool,
    /// The structure that computes virtual time. Default: [`VirtualTimeKind::Mindicator`].
    pub virtual_time: VirtualTimeKind,
    /// The structure that holds the free slots. Default: [`SlotKind::TokenTree`].
    pub slot_kind: SlotKind,
    /// The way in which throttled ports are woken. Default: [`UnthrottleKind::Wheel`].
    pub unthrottle: UnthrottleKind,
    /// Whether one lock serializes dispatches: it is held throughout `next` (the paper's
    /// MQFQ-serial, Section 4.2). Default: no.
    pub serial: bool,
}

changeable!(MqfqConfig);

impl MqfqConfig {
    /// The default D: the parallelism that the authors measured on their SSD.
    pub const SLOTS: u32 = 64;

    /// The default knobs for this number of flows, and of tags per port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Self {
        MqfqConfig {
            ports,
            flows,
            tags,
            slots: Self::SLOTS,
            threshold_bytes: 45 * 1024,
            threshold_follows: false,
            virtual_time: VirtualTimeKind::default(),
            slot_kind: SlotKind::default(),
            unthrottle: UnthrottleKind::default(),
            serial: false,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports.ports(), self.flows, self.tags, self.slots)?;
        if self.threshold_bytes > MAX_THRESHOLD {
            return Err(ConfigError::Threshold(self.threshold_bytes));
        }
        match self.unthrottle {
            UnthrottleKind::Polling { period_ns: 0 } => Err(ConfigError::Period),
            _ => Ok(()),
        }
    }
}
