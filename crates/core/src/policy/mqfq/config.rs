//! The configuration of MQFQ.

use crate::contract::bounds::{ConfigError, MAX_THRESHOLD, check};
use crate::entry::knobs::changeable;
use crate::structures::topology::Topology;

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

    /// The default knobs for this number of flows, and of tags per port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Self {
        MqfqConfig {
            ports,
            flows,
            tags,
            slots: Self::SLOTS,
            threshold_bytes: 45 * 1024,
            threshold_follows: false,
            serial: false,
            anticipates: false,
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports.ports(), self.flows, self.tags, self.slots)?;
        if self.threshold_bytes > MAX_THRESHOLD {
            return Err(ConfigError::Threshold(self.threshold_bytes));
        }
        Ok(())
    }
}
