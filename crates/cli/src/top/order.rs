//! The order of the tenants on the screen.

use anyhow::Context;
use serde_json::json;

use crate::connection::Connection;
use crate::view::{LastSecond, Look, TenantRow};

/// The sort key of the tenants.
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
    /// The next order.
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
    /// Fetches a view from a server.
    pub(crate) fn at(server: &mut Connection) -> anyhow::Result<Look> {
        let look = server.call("look", json!({}))?;
        serde_json::from_value(look).context("the server is of another version than this program")
    }

    pub(crate) fn sort(&mut self, order: Order) {
        let last = |tenant: &TenantRow, value: fn(&LastSecond) -> f64| {
            // No value of an active tenant is negative, so idle ones come last.
            tenant.last_second.as_ref().map_or(-1.0, value)
        };
        let most = |value: fn(&LastSecond) -> f64| {
            move |a: &TenantRow, b: &TenantRow| {
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
            Order::P99 => self.tenants.sort_by(most(|last| last.p99_ns as f64)),
        }
    }
}

impl TenantRow {
    /// The tenant that delays this one most, except this one itself, and the part of the delay that
    /// it causes.
    pub(crate) fn worst(&self) -> Option<(&str, f64)> {
        let others = self.hurt_by.iter().flatten().filter(|(name, _)| **name != self.name);
        others.map(|(name, part)| (name.as_str(), *part)).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
