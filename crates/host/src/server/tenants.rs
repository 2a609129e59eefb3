//! Adding, removing and changing tenants of a running server.
//!
//! A tenant is a flow of the policy, a member of the list of tenants, and, if its range belonged to
//! another tenant before, a range that has to be zeroed first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use fairq_core::{CapStats, FlowId, TargetStats};

use crate::device::Device;
use crate::device::any::AnyDevice;
use crate::nbd::session::exports::ExportsError;
use crate::nbd::session::place::Connections;
use crate::server::ControlThread;
use crate::server::schedulers::Schedulers;
use crate::server::tenant_list::Resizing;
use crate::server::{
    AdminError, AttachmentKind, Config, Member, Operator, PREPARE_PAUSE, PREPARE_PERIOD, Server,
    ServerError, Tenant, TenantList, TenantSettings,
};
use crate::shard::cut::Cut;
use crate::shard::volume::Volume;
use crate::shard::wipe::{Wipe, Wiping};
use crate::shard::{Message, Notice};

pub(super) fn add_flows(
    schedulers: &mut Schedulers<'_>,
    device: &AnyDevice,
    config: &Config,
    shards: usize,
) -> Result<Vec<Arc<Member>>, ServerError> {
    let add = |tenant: &Tenant| match schedulers.add(device.store_of(tenant.file), tenant) {
        Ok(flow) => {
            let (tenant, store) = (tenant.clone(), device.store_of(tenant.file));
            let is_zeroed = !config.zero.contains(&tenant.name);
            let preparing = (!is_zeroed).then(|| Arc::new(Wiping::new(tenant.size)));
            let member = Member::new(tenant, flow, store, Connections::on(shards));
            Ok(Arc::new(Member { preparing, ..member }))
        }
        Err(error) => Err(ServerError::Flow { name: tenant.name.clone(), error }),
    };
    config.tenants.iter().map(add).collect()
}

/// Whether two tenants' ranges have bytes in common.
fn overlap(a: &Tenant, b: &Tenant) -> bool {
    a.file == b.file && a.base < b.base + b.size && b.base < a.base + a.size
}

fn no_tenant(name: &str) -> AdminError {
    AdminError::NoSuchTenant(name.into())
}

/// Ends the connections of removed tenants: after their requests in flight are answered, or at once
/// if `cut_off`.
fn detach(server: &Server, flows: &[FlowId], cut_off: bool) {
    for &flow in flows {
        for shard in 0..server.shards.count() {
            server.shards.send(shard, Message::EndWipes(flow));
            server.shards.send(shard, Message::Notice(Notice::Detach { flow, cut_off }));
        }
        // Without queues, no shard serves the guest and could end its session.
        if cut_off {
            server.sessions.hang_up(flow);
            server.controllers.hang_up(flow);
        }
    }
}

impl ControlThread<'_> {
    /// See [`crate::server::Admin::add`].
    pub(super) fn add_tenants(&mut self, new: Vec<(Tenant, bool)>) -> Vec<Result<(), AdminError>> {
        let tenants = self.server.tenants();
        let mut members = tenants.to_members();
        let before = members.len();
        let add = |(tenant, wipe): (Tenant, bool)| {
            let is_there = |member: &Arc<Member>| member.tenant.name == tenant.name;
            if tenants.find(&tenant.name).is_some() || members[before..].iter().any(is_there) {
                return Err(AdminError::TenantExists(tenant.name));
            }
            self.open_guests_of(&tenant)?;
            let member = self.new_member(tenant.clone(), wipe);
            members.push(Arc::new(member.inspect_err(|_| self.close_guests_of(&tenant))?));
            Ok(())
        };
        let mut results: Vec<Result<(), AdminError>> = new.into_iter().map(add).collect();
        let flows: Vec<FlowId> = members[before..].iter().map(|member| member.flow).collect();
        // All tenants are added in one new list, because each list has an entry for every tenant.
        match self.list(members) {
            Ok(tenants) => {
                let waits = tenants.changing().map(|member| member.flow);
                self.waiting.extend(waits.filter(|flow| flows.contains(flow)));
                // Each shard receives this message before it receives a connection of a new tenant.
                for shard in 0..self.server.shards.count() {
                    for flow in &flows {
                        self.server.shards.send(shard, Message::Forget(flow.slot() as u16));
                    }
                }
                self.server.set_roster(tenants);
                self.fit_guests_of_flows(&flows);
            }
            Err(error) => {
                self.fit_guests_or_log();
                flows.iter().for_each(|flow| self.remove_flow(*flow));
                for result in results.iter_mut().filter(|result| result.is_ok()) {
                    *result = Err(AdminError::Exports(error.clone()));
                }
            }
        }
        // This comes before the answer, which names the removed tenants for whose requests a new
        // one waits.
        self.begin_wipes();
        results
    }

    /// Adds a tenant's flow, and returns the tenant as a member.
    fn new_member(&mut self, tenant: Tenant, wipe: bool) -> Result<Member, AdminError> {
        let store = self.device.store_of(tenant.file);
        self.give_numbers_back();
        let flow = self
            .schedulers
            .add(store, &tenant)
            .map_err(|error| AdminError::Flow { name: tenant.name.clone(), error })?;
        self.schedulers.hurry();
        self.note(flow);
        self.write_back.assign(flow.slot() as u16, Some((&tenant.name, tenant.file)));
        // A range or a file gets a new owner only when no request of the old owner can reach it any
        // more.
        if self.has_leftovers(&tenant) {
            self.forget_leftovers();
        }
        let is_left = self.has_leftovers(&tenant);
        let zeroes = if wipe { tenant.size } else { 0 };
        let preparing = (wipe || is_left).then(|| Arc::new(Wiping::new(zeroes)));
        self.weights.set(flow.slot() as u16, tenant.settings.weight);
        self.fences.forget(flow.slot() as u16);
        let connections = Connections::on(self.server.shards.count());
        Ok(Member { preparing, ..Member::new(tenant, flow, store, connections) })
    }

    /// See [`crate::server::Admin::remove`].
    pub(super) fn remove_tenants(&mut self, names: &[&str]) -> Vec<Result<(), AdminError>> {
        let tenants = self.server.tenants();
        let find = |name: &&str| tenants.find(name).cloned().ok_or_else(|| no_tenant(name));
        let gone: Vec<Result<Member, AdminError>> = names.iter().map(find).collect();
        let flows: Vec<FlowId> = gone.iter().flatten().map(|member| member.flow).collect();
        let is_gone: HashSet<FlowId> = flows.iter().copied().collect();
        // The list changes first, so that a handshake that ends from here on finds that the tenant
        // is removed.
        let mut rest = tenants.to_members();
        rest.retain(|member| !is_gone.contains(&member.flow));
        match self.list(rest) {
            Ok(tenants) => self.server.set_roster(tenants),
            Err(error) => {
                let refused = |_| Err(AdminError::Exports(error.clone()));
                return gone.into_iter().map(|one| one.and_then(refused)).collect();
            }
        }
        gone.iter().flatten().for_each(|member| self.close_guests_of(&member.tenant));
        detach(&self.server, &flows, false);
        flows.iter().for_each(|flow| self.remove_flow(*flow));
        self.waiting.retain(|waiting| !is_gone.contains(waiting));
        let last = &self.flows;
        self.leftovers.retain(|(_, old)| last[old.slot()] == *old);
        let members = gone.iter().flatten();
        self.leftovers.extend(members.map(|member| (member.tenant.clone(), member.flow)));
        let patience = self.server.config.timeouts.answers;
        // The server ends when its last `Arc` is dropped, which must not happen in this task.
        let server = Arc::downgrade(&self.server);
        tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            if let Some(server) = server.upgrade() {
                detach(&server, &flows, true);
            }
        });
        gone.into_iter().map(|one| one.map(drop)).collect()
    }

    /// The list of these members.
    fn list(&self, members: Vec<Arc<Member>>) -> Result<TenantList, ExportsError> {
        TenantList::new(members, self.preferred, self.default.as_ref())
    }

    /// Replaces the members.
    pub(super) fn put_members(&self, members: Vec<Arc<Member>>) -> Result<(), AdminError> {
        self.server.set_roster(self.list(members)?);
        Ok(())
    }

    /// See [`crate::server::Admin::update`].
    pub(super) fn update_tenants(
        &mut self,
        updates: &[(String, TenantSettings)],
    ) -> Vec<Result<(), AdminError>> {
        let tenants = self.server.tenants();
        let mut members = tenants.to_members();
        // The policy is given all weights in one call, since each call may visit all flows.
        let mut weights = Vec::new();
        let mut has_sockets = false;
        let mut update = |(name, new): &(String, TenantSettings)| {
            let place = tenants.place_of(name);
            let place = place.ok_or_else(|| AdminError::NoSuchTenant(name.clone()))?;
            let Member { tenant, flow, .. } = Arc::make_mut(&mut members[place]);
            let (flow, old) = (*flow, tenant.settings.clone());
            let new = old.updated(new);
            if let Err(error) = self.apply_settings(name, flow, &old, &new) {
                // The policy has accepted the old values once, so this succeeds.
                let _ = self.apply_settings(name, flow, &new, &old);
                return Err(error);
            }
            if old.weight != new.weight {
                weights.push((flow, new.weight));
                self.weights.set(flow.slot() as u16, new.weight);
            }
            has_sockets |= old.vhost_user != new.vhost_user || old.vfio_user != new.vfio_user;
            tenant.settings = new;
            Ok(())
        };
        let updated = updates.iter().map(&mut update).collect();
        self.schedulers.set_weights(&weights);
        // All updates are in one new list, because each list has an entry for every tenant.
        self.server.set_roster(tenants.with(members));
        if has_sockets {
            self.fit_guests_or_log();
        }
        updated
    }

    /// Applies the settings in which `new` differs from `old`, except for the weight.
    fn apply_settings(
        &mut self,
        name: &str,
        flow: FlowId,
        old: &TenantSettings,
        new: &TenantSettings,
    ) -> Result<(), AdminError> {
        let refused = |error| AdminError::Flow { name: name.to_owned(), error };
        if old.group != new.group || old.reservation != new.reservation {
            let group = new.group.as_deref();
            self.schedulers.set_share(flow, group, new.reservation).map_err(refused)?;
        }
        if old.target != new.target {
            self.schedulers.set_target(flow, new.target).map_err(refused)?;
        }
        if old.caps != new.caps {
            self.schedulers.set_caps(flow, &new.caps).map_err(refused)?;
        }
        for (kind, before, path) in [
            (AttachmentKind::VhostUser, &old.vhost_user, &new.vhost_user),
            (AttachmentKind::VfioUser, &old.vfio_user, &new.vfio_user),
        ] {
            if let Some(path) = path
                && before.as_ref() != Some(path)
            {
                self.open_guest(kind, path, &new.users)?;
            }
        }
        Ok(())
    }

    /// The statistics of caps, for tenants that have caps or are in a group that may have caps.
    pub(super) fn caps(&self) -> HashMap<u16, CapStats> {
        let tenants = self.server.tenants();
        let in_groups = self.schedulers.has_capped_groups();
        let members = tenants.members().filter(|member| {
            !member.tenant.settings.caps.is_empty()
                || (in_groups && member.tenant.settings.group.is_some())
        });
        members
            .filter_map(|member| Some((member.number(), self.schedulers.caps(member.flow)?)))
            .collect()
    }

    /// The latencies of the tenants that have a target.
    pub(super) fn targets(&self) -> HashMap<u16, TargetStats> {
        let tenants = self.server.tenants();
        let members = tenants.members().filter(|member| member.tenant.settings.target.is_some());
        members
            .filter_map(|member| Some((member.number(), self.schedulers.target(member.flow)?)))
            .collect()
    }

    /// Records a flow as the last one of its slot.
    fn note(&mut self, flow: FlowId) {
        match self.flows.get_mut(flow.slot()) {
            Some(last) => *last = flow,
            // Slots are taken in order, so a new slot is the next index.
            None => self.flows.push(flow),
        }
    }

    /// Whether a range is being prepared or resized, or a file is to be closed.
    pub(super) fn has_chores(&self) -> bool {
        !self.closing.is_empty() || self.is_preparing()
    }

    /// Advances the preparation and resizing of ranges and the closing of files by a step.
    pub(super) fn do_chores(&mut self, operator: &mut dyn Operator) {
        let (at, pause) = self.next_look;
        if !(self.waiting.is_empty() && self.closing.is_empty()) && at <= Instant::now() {
            let before = self.leftovers.len();
            self.forget_leftovers();
            let is_stuck = !self.leftovers.is_empty() && self.leftovers.len() == before;
            let pause = if is_stuck { (pause * 2).min(PREPARE_PAUSE) } else { PREPARE_PERIOD };
            self.next_look = (Instant::now() + pause, pause);
        }
        self.close_files();
        if !self.waiting.is_empty() {
            self.begin_wipes();
        }
        self.open_prepared(operator);
    }

    /// Whether a tenant's range is being prepared or resized.
    fn is_preparing(&self) -> bool {
        // A range that could not be zeroed stays closed, and needs no further work.
        let tenants = self.server.tenants();
        tenants.changing().any(|Member { preparing, resizing, .. }| {
            let wiping = preparing.as_ref().map(|wiping| wiping.outcome());
            resizing.is_some() || wiping.is_some_and(|outcome| outcome.is_none_or(|no| no == 0))
        })
    }

    /// Opens the tenants whose ranges are zeroed, if the operator agrees, and completes the
    /// resizing of ranges.
    fn open_prepared(&mut self, operator: &mut dyn Operator) {
        let tenants = self.server.tenants();
        let is_due = |member: &Member| {
            member.preparing.as_ref().is_some_and(|wiping| wiping.outcome() == Some(0))
                || member.resizing.as_ref().is_some_and(|resizing| resizing.outcome().is_some())
        };
        // Mostly no member is due, so the list, which may be long, is copied only if one is.
        if !tenants.changing().any(is_due) {
            return;
        }
        let mut members = tenants.to_members();
        let (mut is_changed, mut opened, mut resized) = (false, Vec::new(), Vec::new());
        for member in members.iter_mut().filter(|member| is_due(member)).map(Arc::make_mut) {
            if let Some(errno) = member.resizing.as_ref().and_then(Resizing::outcome)
                && errno != 0
            {
                let tenant = &member.tenant.name;
                tracing::error!(tenant, errno, "not resized: the new part cannot be zeroed");
                (member.resizing, is_changed) = (None, true);
                continue;
            }
            let mut tenant = member.tenant.clone();
            tenant.size = member.resizing.as_ref().map_or(tenant.size, |resizing| resizing.to);
            if !operator.opening(&tenant) {
                continue;
            }
            let Tenant { name, size, .. } = &tenant;
            if member.resizing.take().is_some() {
                tracing::info!(tenant = name, size, "the tenant has its new size");
                if member.tenant.size != *size {
                    member.outdate();
                    resized.push((member.flow, *size));
                }
                member.tenant = tenant;
            } else {
                tracing::info!(
                    tenant = name,
                    "the tenant's range is free and zeroed: it can be opened"
                );
                member.preparing = None;
                opened.push(member.flow);
            }
            is_changed = true;
        }
        if is_changed && let Err(error) = self.put_members(members) {
            tracing::error!(%error, "cannot open a tenant's export");
        }
        self.fit_guests_of_flows(&opened);
        resized.iter().for_each(|&(flow, size)| self.resize_guests(flow, size));
    }

    /// Sends the new size of a tenant's range to the front ends.
    fn resize_guests(&self, flow: FlowId, size: u64) {
        let server = &self.server;
        let notify = || server.notify_all(Notice::Resize { flow, size });
        server.controllers.resize(flow, size, || server.sessions.resize(flow, size, notify));
    }

    /// Whether requests of a removed tenant may be in flight in a tenant's range.
    fn has_leftovers(&self, tenant: &Tenant) -> bool {
        self.leftovers.iter().any(|(old, _)| overlap(old, tenant))
    }

    /// Forgets the removed tenants that have no requests in flight. They cannot get new ones,
    /// because a shard that reports its statistics has processed the removal.
    fn forget_leftovers(&mut self) {
        let totals = self.server.shards.stats();
        let flows = &self.flows;
        // A slot is given to another flow only when no shard holds a request of the previous flow,
        // neither staged nor on the device.
        self.leftovers.retain(|(_, flow)| {
            let is_last = flows[flow.slot()] == *flow;
            let is_left = is_last && totals.tenants[flow.slot()].in_flight > 0;
            // If a later flow has the slot, the write-back account already belongs to that flow's
            // tenant.
            if is_last && !is_left {
                self.write_back.assign(flow.slot() as u16, None);
            }
            is_left
        });
    }

    /// If no number is free for another slot of a store, releases the numbers of removed tenants
    /// without requests in flight, for use by any store.
    fn give_numbers_back(&mut self) {
        if !self.schedulers.lack_numbers() {
            return;
        }
        self.forget_leftovers();
        let tenants = self.server.tenants();
        let members = tenants.members().map(|member| member.flow);
        let used: HashSet<FlowId> =
            members.chain(self.leftovers.iter().map(|(_, flow)| *flow)).collect();
        let unused = self.flows.iter().filter(|flow| !used.contains(flow));
        unused.for_each(|flow| self.schedulers.give_back(*flow));
    }

    /// Begins to prepare the ranges in which no request of a removed tenant is in flight. Such
    /// requests are still carried out, so the range is zeroed, or opened unchanged, only after
    /// them.
    fn begin_wipes(&mut self) {
        let tenants = self.server.tenants();
        let (server, leftovers) = (&self.server, &self.leftovers);
        self.waiting.retain(|flow| {
            let member = tenants.members().find(|member| member.flow == *flow);
            let Some((member, part, wiping)) = member.and_then(|member| {
                let (part, wiping) = member.to_prepare()?;
                Some((member, part, wiping))
            }) else {
                return false;
            };
            let others = leftovers.iter().filter(|(old, _)| overlap(old, &part));
            let names: Vec<String> = others.map(|(old, _)| old.name.clone()).collect();
            let waits = !names.is_empty();
            wiping.wait_for(names);
            if waits {
                return true;
            }
            if wiping.size() == 0 {
                wiping.skip();
                return false;
            }
            // A read-only tenant's range is also zeroed, so the volume must be writable.
            let Tenant { base, size, .. } = part;
            let volume = Volume { base, size, read_only: false, ..member.volume(1) };
            let wipe = Box::new(Wipe::new(volume, wiping));
            server.shards.send(flow.slot() % server.shards.count(), Message::Wipe(wipe));
            false
        });
    }

    /// See [`crate::server::Admin::rename`].
    pub(super) fn rename_tenant(&mut self, name: &str, new: &str) -> Result<(), AdminError> {
        let tenants = self.server.tenants();
        if tenants.find(new).is_some() {
            return Err(AdminError::TenantExists(new.into()));
        }
        let mut members = tenants.to_members();
        let place = tenants.place_of(name).ok_or_else(|| no_tenant(name))?;
        self.rename_guests(name, new)?;
        let member = Arc::make_mut(&mut members[place]);
        member.tenant.name = new.to_owned();
        let number = member.number();
        if let Some(default) = self.default.as_mut().filter(|default| default.name == name) {
            default.name = new.to_owned();
        }
        self.put_members(members)?;
        self.write_back.rename(number, new);
        Ok(())
    }

    /// See [`crate::server::Admin::resize`].
    pub(super) fn resize_tenant(
        &mut self,
        name: &str,
        size: u64,
        wipe: bool,
    ) -> Result<(), AdminError> {
        let tenants = self.server.tenants();
        let mut members = tenants.to_members();
        let place = tenants.place_of(name).ok_or_else(|| no_tenant(name))?;
        let member = Arc::make_mut(&mut members[place]);
        if member.preparing.is_some() || member.resizing.is_some() {
            return Err(AdminError::Busy(name.into()));
        }
        let (flow, before) = (member.flow, member.tenant.size);
        let mut resizing = Resizing { to: size, wiping: None, cut: None };
        match size.checked_sub(before) {
            Some(0) => return Ok(()),
            Some(added) => {
                resizing.wiping = Some(Arc::new(Wiping::new(if wipe { added } else { 0 })));
                self.waiting.push(flow);
            }
            None => {
                // From now on no new request may reach the removed part, and a handshake returns
                // the new size.
                let left = Arc::new(AtomicUsize::new(self.server.shards.count()));
                let Tenant { file, base, .. } = member.tenant;
                self.resize_guests(flow, size);
                for shard in 0..self.server.shards.count() {
                    let cut = Cut::new(member.number(), file, base + size, left.clone());
                    self.server.shards.send(shard, Message::Cut(cut));
                }
                resizing.cut = Some(left);
                member.outdate();
                member.tenant.size = size;
            }
        }
        member.resizing = Some(resizing);
        self.put_members(members)?;
        self.begin_wipes();
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) {
        // This cannot fail: the flow was found above, and no other thread removes flows.
        if let Ok(ports) = self.schedulers.remove(flow) {
            self.server.shards.wake(ports);
        }
    }
}
