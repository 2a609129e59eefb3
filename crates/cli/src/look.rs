//! The answer of a server to `look`: its status and its tenants, as `fairq top` shows them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A view of a server.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Look {
    pub(crate) status: Status,
    pub(crate) tenants: Vec<Tenant>,
    #[serde(default)]
    pub(crate) groups: Vec<Group>,
}

/// The shown fields of `status`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Status {
    pub(crate) uptime_s: f64,
    pub(crate) device: String,
    pub(crate) policy: String,
    pub(crate) connections: u64,
    pub(crate) draining: bool,
    pub(crate) policy_state: PolicyState,
    #[serde(default)]
    pub(crate) stores: Vec<Store>,
}

/// The shown fields of a store.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Store {
    pub(crate) name: String,
    pub(crate) oldest_s: f64,
    pub(crate) stuck: bool,
}

/// The policy's state.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PolicyState {
    pub(crate) virtual_time: Option<u64>,
    pub(crate) virtual_time_spread: Option<u64>,
    pub(crate) slots: Option<u64>,
    pub(crate) slots_in_use: Option<u64>,
    pub(crate) throttles: u64,
    pub(crate) blocks: u64,
    pub(crate) class_weights: Option<BTreeMap<String, u64>>,
    /// The search for D, if there is one.
    #[serde(default)]
    pub(crate) depth: Option<Depth>,
}

/// A search for D.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Depth {
    /// The least D that is believed to fill the device.
    pub(crate) slots: u64,
    pub(crate) state: String,
    /// The device's measured rates with it.
    #[serde(default)]
    pub(crate) requests_per_s: u64,
    #[serde(default)]
    pub(crate) bytes_per_s: u64,
}

/// The shown fields of a group of tenants.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) weight: u64,
    /// Tenants and groups in it; and those that are active.
    pub(crate) members: u64,
    pub(crate) active: u64,
    /// Its reservation, its caps, and the requests that wait for these.
    pub(crate) promised: Option<String>,
}

/// The shown fields of a tenant.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) weight: u64,
    #[serde(default)]
    pub(crate) store: Option<String>,
    pub(crate) staged: u64,
    pub(crate) in_flight: u64,
    pub(crate) errors: u64,
    pub(crate) last_second: Option<LastSecond>,
    #[serde(default)]
    pub(crate) latency_target: Option<LatencyTarget>,
    /// Its group, its reservation, its caps, and the requests that wait for these.
    #[serde(default)]
    pub(crate) promised: Option<String>,
    /// The tenants whose requests were served while its own waited, as parts of its delay.
    pub(crate) hurt_by: Option<BTreeMap<String, f64>>,
}

/// Measurements of an active tenant in the last second.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct LastSecond {
    pub(crate) entitled: f64,
    pub(crate) share: f64,
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) staged_ns: f64,
    pub(crate) device_ns: f64,
}

/// A tenant's latency target and its state.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct LatencyTarget {
    pub(crate) target_ns: u64,
    /// Percent of its requests that must meet the target.
    pub(crate) percentile: f64,
    pub(crate) state: String,
    /// The reason for which it cannot be met, and the remedy.
    pub(crate) cause: Option<String>,
    /// Requests completed in the last second, and the late ones among them.
    pub(crate) completed: u64,
    pub(crate) late: u64,
    /// The bound of D for all targets together, if there is one.
    #[serde(default)]
    pub(crate) slots_bound: Option<u64>,
}

impl LatencyTarget {
    /// Whether the target was missed in the last second.
    #[cfg(feature = "top")]
    pub(crate) fn is_missed(&self) -> bool {
        !["idle", "met"].contains(&&self.state[..])
    }
}

impl Look {
    /// The view as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }
}
