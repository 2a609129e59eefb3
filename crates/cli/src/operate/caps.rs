//! Caps: their changes by the control socket, and their view.

use fairq_core::{CapStats, Caps};
use fairq_host::server::Admin;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Console;
use super::rpc::Fault;
use crate::view::{Cap, Capped};
use fairq_config::caps::{self, Burst};
use fairq_config::units::{Bandwidth, Count};

/// The keys of caps, as in a tenant's table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Said {
    max_iops: Option<Count>,
    read_max_iops: Option<Count>,
    write_max_iops: Option<Count>,
    max_bandwidth: Option<Bandwidth>,
    read_max_bandwidth: Option<Bandwidth>,
    write_max_bandwidth: Option<Bandwidth>,
    burst: Option<Burst>,
}

impl Console {
    /// Replaces a tenant's caps.
    pub(super) fn caps(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        said: Said,
    ) -> Result<Value, Fault> {
        let mut table = self.table(name)?;
        table.set_caps(&fairq_config::caps_of!(said));
        let (before, now) = self.update(admin, table)?;
        Ok(json!({
            "tenant": name,
            "from": caps::describe(&before.caps),
            "to": caps::describe(&now.caps),
            "warning": warn(&format!("tenant {name}"), &now.caps),
        }))
    }
}

/// Logs and returns a warning about caps that may make a client wait too long.
pub(super) fn warn(whose: &str, caps: &Caps) -> Option<String> {
    let warning = caps::warning(caps).map(|text| format!("{whose}: {text}"))?;
    tracing::warn!("{warning}");
    Some(warning)
}

/// A tenant's caps and their counters.
pub(super) fn view(stats: &CapStats) -> Capped {
    let cap = |of: fairq_core::Cap| Cap { per_s: of.per_second(), burst: of.burst() };
    Capped {
        caps: caps::listed(&stats.caps).map(|(key, of)| (key.to_owned(), cap(of))).collect(),
        held: stats.held,
        held_ns: stats.held_ns,
        waiting: stats.waiting,
    }
}
