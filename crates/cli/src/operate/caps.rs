//! Caps: changed by the control socket, and shown.

use std::sync::Arc;

use fairq_core::{CapStats, Caps};
use fairq_host::server::{Admin, Change};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Console;
use super::rpc::Fault;
use crate::view::{Cap, Capped};
use fairq_config::caps::{self, Burst, Written};
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
        tenant: &str,
        said: Said,
    ) -> Result<Value, Fault> {
        let said = fairq_config::caps_of!(said);
        let known = self.settings.tenant.iter().map(toml::Spanned::get_ref);
        // `set_caps` below refuses caps that are invalid by themselves.
        if let (Some(table), Ok(caps)) =
            (known.clone().find(|table| table.name == tenant), said.caps())
        {
            let reserved = table.reservation().reservation(&caps);
            reserved.map_err(|text| Fault::params(format!("tenant {tenant}: {text}")))?;
        }
        self.set_caps(admin, tenant, &said)
    }

    pub(super) fn set_caps(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        said: &Written,
    ) -> Result<Value, Fault> {
        let wanted = said.caps().map_err(|text| Fault::params(format!("tenant {name}: {text}")))?;
        let before = admin.tenants().find(name).map(|member| member.tenant.caps);
        admin.change_one(name, Change::Caps(wanted)).map_err(Fault::refused)?;
        let mut tables =
            Arc::make_mut(&mut self.settings).tenant.iter_mut().map(toml::Spanned::get_mut);
        if let Some(table) = tables.find(|table| table.name == name) {
            table.set_caps(said);
        }
        let before = before.unwrap_or_default();
        let warning = warn(&format!("tenant {name}"), &wanted);
        Ok(json!({
            "tenant": name,
            "from": caps::describe(&before),
            "to": caps::describe(&wanted),
            "warning": warning,
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
