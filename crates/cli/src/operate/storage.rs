//! Reports about the storage behind the tenants, and the operator's remedies.

use std::collections::HashSet;

use fairq_config::device::SECTOR;
use fairq_host::device::CutOff;
use fairq_host::server::{Admin, Member, Status, StoreStatus, TenantList};
use serde_json::{Value, json};

use super::Console;
use super::rpc::Fault;
use crate::view::{CutOffFile, OutdatedTenant, PolicyState, Store};

/// The names of tenants whose flushes fail, because written data may be lost.
pub(super) fn write_back_errors(tenants: &TenantList, now: &Status) -> Vec<String> {
    let failed = tenants.members().filter(|member| now.write_back_errno(member).is_some());
    failed.map(|member| member.tenant.name.clone()).collect()
}

/// The tenants with connections that have a size from before a resize.
pub(super) fn outdated(tenants: &TenantList) -> Vec<OutdatedTenant> {
    let outdated = tenants.members().filter_map(|member| {
        let count: usize = member.outdated_connections().iter().map(|(_, count)| count).sum();
        let tenant = || member.tenant.name.clone();
        (count > 0).then(|| OutdatedTenant { tenant: tenant(), connections: count })
    });
    outdated.collect()
}

/// The files that became shorter while they were served.
pub(super) fn cut_off_files(now: &Status) -> Vec<CutOffFile> {
    let file = |of: &CutOff| CutOffFile { path: of.path.clone(), size: of.size, intact: of.intact };
    now.cut_off.iter().map(file).collect()
}

/// The stores, their tenants, and whether they answer.
pub(super) fn stores(tenants: &TenantList, now: &Status) -> Vec<Store> {
    let store = |store: &StoreStatus| {
        let policy_state = PolicyState::of(&store.policy);
        Store {
            name: store.name.clone(),
            tenants: tenants_of(store, tenants),
            on_device: store.on_device,
            oldest_s: store.oldest.as_secs_f64(),
            stuck: store.is_stuck,
            slots: policy_state.slots,
            slots_in_use: policy_state.slots_in_use,
            policy_state,
        }
    };
    now.stores.iter().map(store).collect()
}

/// The names of the tenants of a store.
fn tenants_of(store: &StoreStatus, tenants: &TenantList) -> Vec<String> {
    let members = tenants.members().filter(|member| member.store == store.number);
    members.map(|member| member.tenant.name.clone()).collect()
}

/// The stores that were stuck at the last second.
#[derive(Default)]
pub(super) struct Stuck(Vec<String>);

impl Stuck {
    /// Logs the stores that have stopped answering, and those that answer again.
    pub(super) fn log(&mut self, now: &Status, tenants: &TenantList) {
        for store in now.stores.iter().filter(|store| store.is_stuck) {
            // A store is logged once: it may be stuck for hours, and is checked each second.
            if self.0.contains(&store.name) {
                continue;
            }
            tracing::error!(
                store = store.name,
                seconds = store.oldest.as_secs(),
                requests = store.on_device,
                tenants = tenants_of(store, tenants).join(", "),
                "a store has not answered for some seconds: its tenants wait, and other tenants do \
                 not; check its device or file system (is it frozen? does it report errors? is a \
                 path down?), or remove its tenants"
            );
            self.0.push(store.name.clone());
        }
        self.0.retain(|name| {
            let is_stuck = now.stores.iter().any(|store| store.name == *name && store.is_stuck);
            if !is_stuck {
                tracing::info!(store = name, "the store answers again");
            }
            is_stuck
        });
    }
}

/// Lets a tenant's flushes succeed again.
pub(super) fn clear_error(admin: &mut dyn Admin, tenant: &str) -> Result<Value, Fault> {
    let errno = admin.clear_error(tenant).map_err(Fault::refused)?;
    Ok(json!({ "tenant": tenant, "errno": errno }))
}

impl Console {
    /// Bytes of the device's files that are in no tenant's range.
    pub(super) fn unassigned(&self, tenants: &TenantList) -> u64 {
        let own: u64 = self.own.values().map(|&(_, size)| size).sum();
        let files: HashSet<u16> = self.own.values().map(|&(file, _)| file).collect();
        let is_own = |member: &&Member| files.contains(&member.tenant.file);
        let sizes = |of_own| {
            let members = tenants.members().filter(move |member| is_own(member) == of_own);
            members.map(|member| member.tenant.size).sum::<u64>()
        };
        let free = match &self.layout {
            // Less than a sector at the end of a file belongs to no tenant.
            Some(layout) => {
                let gaps: u64 = layout.record().gaps().iter().map(|gap| gap.1).sum();
                gaps + self.shared % SECTOR
            }
            None if self.plan.device.has_shared_file() => self.shared.saturating_sub(sizes(false)),
            None => 0,
        };
        free + own.saturating_sub(sizes(true))
    }

    /// Removes new tenants that have waited too long for requests of removed ones: requests on a
    /// device cannot be cancelled.
    pub(super) fn give_up_waiting(&mut self, admin: &mut dyn Admin) {
        let longest = self.plan.timeouts.range;
        for member in admin.tenants().members() {
            let Some(wiping) = &member.preparing else { continue };
            if wiping.waited().is_none_or(|waited| waited < longest) {
                continue;
            }
            let (tenant, waits_for) = (&member.tenant.name, wiping.waits_for().join(", "));
            tracing::error!(
                tenant,
                waits_for,
                "not added: requests of removed tenants that had its range or file are still in \
                 flight after {} s; check the device, then add the tenant again",
                longest.as_secs_f64()
            );
            // If the range holds the tenant's own data, it stays reserved for the tenant.
            let keep = self.is_ready(tenant);
            if let Err(fault) = self.remove(admin, tenant, true) {
                tracing::error!(tenant, "cannot undo the addition: {}", fault.message());
            } else if !keep {
                self.disown_later(tenant);
            }
        }
    }
}
