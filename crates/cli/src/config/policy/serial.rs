//! The knobs of the schedulers behind one lock, and of NASS around them.

use fairq_core::bfq::BfqConfig;
use fairq_core::bounds::MAX_SLOTS;
use fairq_core::cfq::CfqConfig;
use fairq_core::flashfq::FlashFqConfig;
use fairq_core::nass::NassConfig;

use super::name::PolicyName;
use super::table::PolicyTable;
use crate::units::{Nanos, Size};

/// What each of them is built with; only what the policy's name asks for matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SerialKnobs {
    /// For cfq and cfq-na.
    pub(crate) cfq: CfqConfig,
    /// For bfq and bfq-na.
    pub(crate) bfq: BfqConfig,
    /// For flashfq.
    pub(crate) flashfq: FlashFqConfig,
    /// For nass+….
    pub(crate) nass: NassKnobs,
}

/// The knobs of NASS. Those that are not said follow the device's window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct NassKnobs {
    channels: Option<u32>,
    reserve: Option<u32>,
    queue_length: Option<u32>,
    others: NassConfig,
}

impl NassKnobs {
    /// NASS before a device that takes so many requests at a time. Before one that takes fewer than
    /// the paper's it is as for that one: limits are whole requests, and of a few places they would
    /// be the shares (1:0.9 for 1:3, 64 KiB beside 4 KiB on 16 places).
    pub(crate) fn of_window(&self, slots: u32) -> NassConfig {
        let least = NassConfig::default().queue_length;
        let window = NassConfig::of_window(self.queue_length.unwrap_or(slots.max(least)));
        NassConfig {
            channels: self.channels.unwrap_or(window.channels),
            reserve: self.reserve.unwrap_or(window.reserve),
            queue_length: window.queue_length,
            ..self.others
        }
    }
}

impl SerialKnobs {
    /// What is said, and defaults for the rest. Whoever does not anticipate has no time to idle:
    /// cfq-na, bfq-na, and, unless it is said, what is inside NASS, which keeps room for a flow
    /// instead of waiting for it. There CFQ has no quantum of its own either: what a flow may have
    /// on the device is for NASS to say.
    pub(crate) fn new(name: PolicyName, table: &PolicyTable) -> SerialKnobs {
        let defaults = SerialKnobs::default();
        let time = |given: Option<Nanos>, default: u64| given.map_or(default, |Nanos(ns)| ns);
        let bytes = |given: Option<Size>, default: u64| given.map_or(default, |Size(bytes)| bytes);
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let usual = defaults.nass.others;
        let nass = NassKnobs {
            channels: table.channels,
            reserve: table.reserve,
            queue_length: table.queue_length,
            others: NassConfig {
                sub_request_bytes: narrow(bytes(table.sub_request, usual.sub_request_bytes.into())),
                history: table.history.unwrap_or(usual.history),
                decay: table.decay.unwrap_or(usual.decay),
                aggressiveness: table.aggressiveness.unwrap_or(usual.aggressiveness),
                sequentiality: table.sequentiality.unwrap_or(usual.sequentiality),
                idleness: table.idleness.unwrap_or(usual.idleness),
                ..usual
            },
        };
        let anticipates = match name {
            PolicyName::CfqNa | PolicyName::BfqNa => false,
            _ => !(name.is_limited() && nass.others.idleness),
        };
        let quantum = if name.is_limited() { MAX_SLOTS } else { defaults.cfq.quantum };
        let idle = |default_ns: u64| time(table.idle, if anticipates { default_ns } else { 0 });
        SerialKnobs {
            cfq: CfqConfig {
                slice_ns: time(table.slice, defaults.cfq.slice_ns),
                quantum: table.quantum.unwrap_or(quantum),
                idle_ns: idle(defaults.cfq.idle_ns),
                target_ns: time(table.target, defaults.cfq.target_ns),
            },
            bfq: BfqConfig {
                budget_bytes: bytes(table.budget, defaults.bfq.budget_bytes),
                timeout_ns: time(table.timeout, defaults.bfq.timeout_ns),
                idle_ns: idle(defaults.bfq.idle_ns),
                waits_for_equals: table.wait_for_equals.unwrap_or(defaults.bfq.waits_for_equals),
                sync_writes: table.sync_writes.unwrap_or(defaults.bfq.sync_writes),
            },
            flashfq: FlashFqConfig {
                threshold_bytes: bytes(table.threshold, defaults.flashfq.threshold_bytes),
                idle_ns: idle(defaults.flashfq.idle_ns),
                request_bytes: narrow(bytes(
                    table.request_cost,
                    defaults.flashfq.request_bytes.into(),
                )),
            },
            nass,
        }
    }
}
