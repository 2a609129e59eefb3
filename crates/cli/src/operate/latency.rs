//! Latency targets: their changes by the control socket, their view, and their log lines.
//!
//! A missed target is logged once, with the cause if it cannot be met, and once more when it has
//! been met for [`CALM`] seconds. Shorter changes of the state are not logged.

use std::collections::HashMap;

use fairq_core::{Target, TargetState, TargetStats};
use fairq_host::server::{Admin, Status, TenantList};
use serde_json::{Value, json};

use super::Console;
use super::rpc::Fault;
use crate::view::{LatencyTarget, TargetOfTenant};
use fairq_config::latency;
use fairq_config::units::{Nanos, Part, Percentile};

/// Seconds in a row of a new state before it is logged.
const CALM: u32 = 3;

/// A tenant's target as configured.
type Written = (Option<Nanos>, Option<Percentile>, Option<Part>);

impl Console {
    /// Sets a tenant's target; without values it removes the target.
    pub(super) fn set_latency(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        said: Written,
    ) -> Result<Value, Fault> {
        let mut table = self.table(name)?;
        // Without a target of its own the tenant has its group's, as at the start.
        (table.latency, table.latency_percentile, table.floor) = said;
        let (before, now) = self.update(admin, table)?;
        let words = |target: Option<Target>| target.map(latency::describe);
        Ok(json!({ "tenant": name, "from": words(before.target), "to": words(now.target) }))
    }
}

/// The targets of tenants, with their state.
pub(super) fn all(tenants: &TenantList, now: &Status) -> Vec<TargetOfTenant> {
    let targets = tenants.members().filter_map(|member| {
        let stats = now.target_of(member)?;
        Some(TargetOfTenant {
            tenant: member.tenant.name.clone(),
            target: latency::describe(stats.target),
            state: latency::state(stats.state).into(),
            cause: latency::cause(stats),
            completed: stats.completed,
            late: stats.late,
        })
    });
    targets.collect()
}

/// A tenant's target and its state.
pub(super) fn view(stats: &TargetStats) -> LatencyTarget {
    let target = stats.target;
    LatencyTarget {
        target_ns: target.latency_ns(),
        percentile: f64::from(1_000_000 - target.late_ppm()) / 10_000.0,
        floor_percent: target.floor_percent(),
        state: latency::state(stats.state).into(),
        cause: latency::cause(stats),
        completed: stats.completed,
        late: stats.late,
        alone_mean_ns: None,
        weight: stats.weight.get(),
        slots_bound: stats.bound.map(u64::from),
    }
}

/// The state of each tenant's target in the log.
#[derive(Default)]
pub(super) struct TargetLog {
    spells: HashMap<String, Spell>,
}

struct Spell {
    /// The state that was logged last.
    logged: TargetState,
    /// Seconds in a row with another state.
    seconds: u32,
}

impl TargetLog {
    /// Logs the states that are new in the second that ends now.
    pub(super) fn log(&mut self, now: &Status, tenants: &TenantList) {
        self.spells.retain(|name, _| tenants.find(name).is_some());
        for member in tenants.members() {
            let Some(stats) = now.target_of(member) else { continue };
            let tenant = &*member.tenant.name;
            if !self.is_news(tenant, stats.state) {
                continue;
            }
            let target = latency::describe(stats.target);
            match latency::cause(stats) {
                Some(cause) => {
                    tracing::warn!(tenant, target, "its latency target cannot be met: {cause}");
                }
                None if stats.state == TargetState::Missed => tracing::warn!(
                    tenant,
                    target,
                    "its latency target is missed, and other tenants are throttled for it"
                ),
                None => tracing::info!(tenant, target, "its latency target is met"),
            }
        }
    }

    /// Whether a state was not logged and has lasted for [`CALM`] seconds; a target that the policy
    /// has given up is logged at once.
    fn is_news(&mut self, tenant: &str, state: TargetState) -> bool {
        // At first a target counts as met, so that only a missed one is logged.
        let met = Spell { logged: TargetState::Met, seconds: 0 };
        let spell = self.spells.entry(tenant.to_owned()).or_insert(met);
        // An idle tenant has no latencies, so its target has no state.
        if state == TargetState::Idle || state == spell.logged {
            spell.seconds = 0;
            return false;
        }
        spell.seconds += 1;
        if spell.seconds < CALM && state != TargetState::Device {
            return false;
        }
        *spell = Spell { logged: state, seconds: 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_told_when_it_is_missed_for_a_while_and_when_it_is_met_again() {
        let mut target_log = TargetLog::default();
        use TargetState::{Device, Idle, Met, Missed};
        let seconds = [
            Met, Missed, Met, Missed, Missed, Missed, Missed, Idle, Met, Met, Met, Device, Missed,
            Device,
        ];
        let news: Vec<usize> = (0..seconds.len())
            .filter(|&second| target_log.is_news("db", seconds[second]))
            .collect();
        assert_eq!(news, [5, 10, 11]);
    }
}
