//! The parameters of policies, for those who look at a running server: what each takes, what it
//! means, and what it is now.

use fairq_core::Topology;
use fairq_core::kyber_fair::KyberFairConfig;

use super::policy::PolicyConfig;
use super::policy::name::PolicyName;
use super::policy::values::{Hl, SlotKind, Tracker, Unthrottle, VirtualTime};
use crate::engine::{d2fq, kyber_depths, kyber_fair_busy, kyber_targets};
use crate::units::{Factor, Nanos, exact_size};

/// What is to be known of a parameter.
pub(crate) struct About {
    key: &'static str,
    /// Unit and range.
    pub(crate) takes: &'static str,
    /// What it is.
    pub(crate) summary: &'static str,
}

const fn parameter(key: &'static str, takes: &'static str, summary: &'static str) -> About {
    About { key, takes, summary }
}

const PARAMETERS: &[About] = &[
    parameter("slots", "requests, 1 to 65536", "D: the most requests outstanding on the device"),
    parameter(
        "merge",
        "bytes, up to 32M, or on or off",
        "the longest command that adjacent waiting requests are merged to",
    ),
    parameter(
        "threshold",
        "bytes, up to 1T",
        "T: how far the lightest tenant may run ahead of the slowest; heavier ones in proportion, \
         up to 4 T",
    ),
    parameter("virtual-time", "mindicator or scan", "how virtual time is found"),
    parameter("slot-kind", "tree, counter or bitmap", "how dispatch slots are handed out"),
    parameter("unthrottle", "wheel or poll:DURATION", "how throttled shards are woken"),
    parameter(
        "tau-l",
        "bytes at weight 100, 64k to 1T",
        "this far ahead of virtual time a tenant uses the low class",
    ),
    parameter("tau-m", "bytes at weight 100, up to tau-l", "from here on the medium class"),
    parameter(
        "tau-w",
        "bytes at weight 100, tau-l to 1T",
        "two tenants this far apart mean that the H/L ratio is too small",
    ),
    parameter(
        "grace",
        "a duration, up to 1m",
        "how long a tenant may pause before it counts as idle",
    ),
    parameter("hl", "dynamic, or static-1 to static-256", "the H/L ratio"),
    parameter("initial", "a ratio, 1 to 256", "what a dynamic H/L ratio begins with"),
    parameter("tracker", "sloppy, scan or mindicator", "how global virtual time is found"),
    parameter("strict-paper", "true or false", "exactly what the paper says"),
    parameter("urgent", "a part, 1% to 50%; at first none", "how much of all bytes may be urgent"),
    parameter("read-cost", "a factor, as 2.5 or 250%", "what reads cost for each byte"),
    parameter("write-cost", "a factor, as 2.5 or 250%", "what writes cost for each byte"),
    parameter(
        "least-cost",
        "bytes, 1 to 32M",
        "what any request costs at least, refused ones too; 512 if not said",
    ),
    parameter(
        "slice",
        "a duration, 1ns to 1m",
        "the lightest tenant's slice of time; those of heavier ones are in proportion, up to 4 \
         times that",
    ),
    parameter("target", "a duration, 1ns to 1m", "what all slices together take at most"),
    parameter(
        "quantum",
        "requests, from 1",
        "what a tenant may have on the device in its slice while others wait",
    ),
    parameter("idle", "a duration, up to 1m", "how long a tenant's next request is waited for"),
    parameter("budget", "bytes, 1 to 1T", "the most that a turn may serve"),
    parameter("timeout", "a duration, 1ns to 1m", "the longest turn while others wait"),
    parameter(
        "wait-for-equals",
        "true or false",
        "whether to wait also while all busy tenants have the same weight",
    ),
    parameter("sync-writes", "true or false", "whether those who write are waited for, too"),
    parameter("request-cost", "bytes, below 4G", "what a request costs beside its length"),
    parameter("channels", "a number, from 1", "eta: channels of the device"),
    parameter("sub-request", "bytes, 512 to 1G", "what one channel takes of a request"),
    parameter("history", "requests, from 1", "alpha: how many arrivals are remembered"),
    parameter("decay", "a number, from 2", "mu: by what sequentiality is divided over time"),
    parameter(
        "reserve",
        "requests, from 1",
        "beta: the most on the device while another tenant's request is expected",
    ),
    parameter("queue-length", "requests, from 1", "the most requests on the device"),
    parameter("aggressiveness", "true or false", "whether aggressive tenants are limited"),
    parameter(
        "sequentiality",
        "true or false",
        "whether sequential tenants are held back or let go",
    ),
    parameter("idleness", "true or false", "whether room is kept for tenants that only seem idle"),
    parameter("read-target", "a duration, 1ns to 1h", "the latency that reads should have"),
    parameter("write-target", "a duration, 1ns to 1h", "the latency that writes should have"),
    parameter("discard-target", "a duration, 1ns to 1h", "the latency that discards should have"),
    parameter("read-depth", "requests, 1 to 65536", "the most reads on the device"),
    parameter("write-depth", "requests, 1 to 65536", "the most writes on the device"),
    parameter("discard-depth", "requests, 1 to 65536", "the most discards on the device"),
    parameter(
        "other-depth",
        "requests, 1 to 65536",
        "the most flushes and writes of zeroes on the device",
    ),
    parameter("busy", "requests, 1 to 65536", "with fewer on the device nobody is throttled"),
    parameter(
        "patience",
        "a number; 0: none",
        "the device may have less than busy for one part in so many of a period",
    ),
    parameter(
        "tokens",
        "bytes, 1 to 256G",
        "what all tenants together may have served in a period",
    ),
    parameter(
        "period",
        "a duration; d2fq 1ms to 1m",
        "of the H/L ratio's adjustment (d2fq); the longest between two rounds of tokens \
         (kyber-fair)",
    ),
];

/// What is to be known of this parameter.
pub(crate) fn about(key: &str) -> &'static About {
    PARAMETERS.iter().find(|about| about.key == key).expect("every key of a policy is described")
}

/// What this parameter is now, as it could be written; `auto` where the policy decides while it
/// runs.
pub(crate) fn present(key: &str, config: &PolicyConfig, device_slots: u32) -> String {
    let d2fq = d2fq(config, Topology::flat(1), 1, 1);
    let serial = &config.serial;
    let nass = serial.nass.of_window(config.slots.unwrap_or(device_slots));
    let ns = |ns: u64| Nanos(ns).to_string();
    let auto = |bytes: Option<u64>| bytes.map_or("auto".into(), exact_size);
    match key {
        "slots" => config.slots.unwrap_or(device_slots).to_string(),
        "merge" if config.merge_bytes == 0 => "off".into(),
        "merge" => exact_size(config.merge_bytes.into()),
        "threshold" if config.name.is_flashfq() => exact_size(serial.flashfq.threshold_bytes),
        "threshold" => auto(config.threshold),
        "virtual-time" => match config.virtual_time {
            VirtualTime::Mindicator => "mindicator".into(),
            VirtualTime::Scan => "scan".into(),
        },
        "slot-kind" => match config.slot_kind {
            SlotKind::Tree => "tree".into(),
            SlotKind::Counter => "counter".into(),
            SlotKind::Bitmap => "bitmap".into(),
        },
        "unthrottle" => match config.unthrottle {
            Unthrottle::Wheel => "wheel".into(),
            Unthrottle::Poll(period_ns) => format!("poll:{}", ns(period_ns)),
        },
        "tau-l" => auto(d2fq.tau_l),
        "tau-m" => auto(d2fq.tau_m),
        "tau-w" => auto(d2fq.tau_w),
        "grace" => ns(d2fq.grace_ns),
        "period" if config.name == PolicyName::D2fq => ns(d2fq.period_ns),
        "period" => ns(config.period_ns.unwrap_or(KyberFairConfig::new(1, 1, 1).period_ns)),
        "hl" => match config.d2fq.hl {
            Hl::Dynamic => "dynamic".into(),
            Hl::Static(ratio) => format!("static-{ratio}"),
        },
        "initial" => config.d2fq.initial.map_or("auto".into(), |ratio| ratio.to_string()),
        "tracker" => match config.d2fq.tracker {
            Tracker::Sloppy => "sloppy".into(),
            Tracker::Scan => "scan".into(),
            Tracker::Mindicator => "mindicator".into(),
        },
        "strict-paper" => d2fq.strict_paper.to_string(),
        "urgent" if d2fq.urgent_percent == 0 => "none".into(),
        "urgent" => Factor(d2fq.urgent_percent.into()).to_string(),
        "read-cost" => Factor(config.cost.read_percent).to_string(),
        "write-cost" if config.name == PolicyName::KyberFair && config.measured_writes => {
            "auto".into()
        }
        "write-cost" => Factor(config.cost.write_percent).to_string(),
        "least-cost" => exact_size(config.cost.min_bytes.into()),
        "slice" => ns(serial.cfq.slice_ns),
        "target" => ns(serial.cfq.target_ns),
        "quantum" => serial.cfq.quantum.to_string(),
        "idle" => ns(config.idle_ns()),
        "budget" => exact_size(serial.bfq.budget_bytes),
        "timeout" => ns(serial.bfq.timeout_ns),
        "wait-for-equals" => serial.bfq.waits_for_equals.to_string(),
        "sync-writes" => serial.bfq.sync_writes.to_string(),
        "request-cost" => exact_size(serial.flashfq.request_bytes.into()),
        "channels" => nass.channels.to_string(),
        "sub-request" => exact_size(nass.sub_request_bytes.into()),
        "history" => nass.history.to_string(),
        "decay" => nass.decay.to_string(),
        "reserve" => nass.reserve.to_string(),
        "queue-length" => nass.queue_length.to_string(),
        "aggressiveness" => nass.aggressiveness.to_string(),
        "sequentiality" => nass.sequentiality.to_string(),
        "idleness" => nass.idleness.to_string(),
        "read-target" => ns(kyber_targets(config)[0]),
        "write-target" => ns(kyber_targets(config)[1]),
        "discard-target" => ns(kyber_targets(config)[2]),
        "read-depth" => kyber_depths(config)[0].to_string(),
        "write-depth" => kyber_depths(config)[1].to_string(),
        "discard-depth" => kyber_depths(config)[2].to_string(),
        "other-depth" => kyber_depths(config)[3].to_string(),
        "busy" => kyber_fair_busy(config, device_slots).to_string(),
        "patience" => config.patience.unwrap_or(KyberFairConfig::new(1, 1, 1).patience).to_string(),
        "tokens" => auto(config.tokens),
        _ => unreachable!("{key} is no parameter"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::policy::table::PolicyTable;

    #[test]
    fn every_parameter_is_told_as_it_can_be_given() {
        for name in PolicyName::ALL {
            let config =
                PolicyTable { name: Some(name), ..PolicyTable::default() }.complete().unwrap();
            for key in config.name.keys() {
                let value = present(key, &config, 64);
                assert!(!about(key).takes.is_empty() && !about(key).summary.is_empty());
                if !["auto", "none"].contains(&value.as_str()) {
                    let given: PolicyTable = format!("{}:{key}={value}", config.name.name())
                        .parse()
                        .unwrap_or_else(|error| panic!("{key}={value}: {error}"));
                    let same = given.complete().unwrap();
                    assert_eq!(present(key, &same, 64), value, "{} {key}", config.name.name());
                }
            }
        }
    }
}
