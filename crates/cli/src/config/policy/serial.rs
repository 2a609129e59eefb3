//! The knobs of the schedulers behind one lock, and of NASS around them.

use fairq_core::bfq::BfqConfig;
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
    pub(crate) nass: NassConfig,
}

impl SerialKnobs {
    /// What is said, and defaults for the rest. Whoever does not anticipate has no time to idle: cfq-na, bfq-na, and
    /// what is inside NASS, which keeps room for a flow instead of waiting for it. There CFQ has no quantum of its own either: what a
    /// flow may have on the device is for NASS to say.
    pub(crate) fn new(name: PolicyName, table: &PolicyTable) -> SerialKnobs {
        let defaults = SerialKnobs::default();
        let time = |given: Option<Nanos>, default: u64| given.map_or(default, |Nanos(ns)| ns);
        let bytes = |given: Option<Size>, default: u64| given.map_or(default, |Size(bytes)| bytes);
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let nass = if name == PolicyName::NassMqfq { NassConfig::nvme() } else { defaults.nass };
        let nass = NassConfig {
            channels: table.channels.unwrap_or(nass.channels),
            sub_request_bytes: narrow(bytes(table.sub_request, nass.sub_request_bytes.into())),
            history: table.history.unwrap_or(nass.history),
            decay: table.decay.unwrap_or(nass.decay),
            reserve: table.reserve.unwrap_or(nass.reserve),
            queue_length: table.queue_length.unwrap_or(nass.queue_length),
            aggressiveness: table.aggressiveness.unwrap_or(nass.aggressiveness),
            sequentiality: table.sequentiality.unwrap_or(nass.sequentiality),
            idleness: table.idleness.unwrap_or(nass.idleness),
        };
        let anticipates = match name {
            PolicyName::CfqNa | PolicyName::BfqNa => false,
            _ => !(name.is_limited() && nass.idleness),
        };
        let quantum = if name.is_limited() { nass.queue_length } else { defaults.cfq.quantum };
        let idle = |default_ns: u64| if anticipates { time(table.idle, default_ns) } else { 0 };
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
                ..defaults.bfq
            },
            flashfq: FlashFqConfig {
                threshold_bytes: bytes(table.threshold, defaults.flashfq.threshold_bytes),
                idle_ns: idle(defaults.flashfq.idle_ns),
                request_bytes: narrow(bytes(table.request_cost, defaults.flashfq.request_bytes.into())),
            },
            nass,
        }
    }
}
