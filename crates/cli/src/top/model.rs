//! What is shown: the server's answers, sorted.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::connection::Connection;

/// One look at a server.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Look {
    pub(crate) status: Status,
    pub(crate) tenants: Vec<Tenant>,
}

/// Of `status`, what is shown.
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

/// Of a store, what is shown.
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
}

/// Of a tenant, what is shown.
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
    /// Whose requests were served while its own waited, as parts of its delay.
    pub(crate) hurt_by: Option<BTreeMap<String, f64>>,
}

/// What an active tenant got in the last second.
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

/// By what tenants are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Order {
    #[default]
    Share,
    Name,
    Weight,
    Iops,
    P99,
}

impl Order {
    /// The next one.
    pub(crate) fn next(self) -> Order {
        match self {
            Order::Share => Order::Name,
            Order::Name => Order::Weight,
            Order::Weight => Order::Iops,
            Order::Iops => Order::P99,
            Order::P99 => Order::Share,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Order::Share => "share",
            Order::Name => "name",
            Order::Weight => "weight",
            Order::Iops => "IOPS",
            Order::P99 => "p99",
        }
    }
}

impl Look {
    /// Asks a server.
    pub(crate) fn at(server: &mut Connection) -> anyhow::Result<Look> {
        let look = server.call("look", json!({}))?;
        serde_json::from_value(look).context("the server is of another version than this program")
    }

    pub(crate) fn sort(&mut self, order: Order) {
        let last = |tenant: &Tenant, value: fn(&LastSecond) -> f64| {
            tenant.last_second.as_ref().map_or(-1.0, value)
        };
        let most = |value: fn(&LastSecond) -> f64| {
            move |a: &Tenant, b: &Tenant| {
                last(b, value).total_cmp(&last(a, value)).then_with(|| a.name.cmp(&b.name))
            }
        };
        match order {
            Order::Name => self.tenants.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Weight => self
                .tenants
                .sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name))),
            Order::Share => self.tenants.sort_by(most(|last| last.share)),
            Order::Iops => self.tenants.sort_by(most(|last| last.iops)),
            Order::P99 => self.tenants.sort_by(most(|last| last.p99_ns)),
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }
}

impl Tenant {
    /// Who hurts it most beside itself, and by how much.
    pub(crate) fn worst(&self) -> Option<(&str, f64)> {
        let others = self.hurt_by.iter().flatten().filter(|(name, _)| **name != self.name);
        others.map(|(name, part)| (name.as_str(), *part)).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
