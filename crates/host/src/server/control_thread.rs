//! The state of the control thread: queries and changes of a running server, one after the other.
//!
//! **Another policy** ([`Admin::change_policy`]) replaces the old one in every shard when no shard
//! holds a request of the old one. Requests that wait for caps do not delay this: they move to the
//! new policy, and so does the consumption of the caps. Until then both policies are ticked.
//! Changes of settings apply to the new policy only, since the old one admits no requests. Flows
//! keep their names, so connections, statistics and the list of tenants do not change.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairq_core::{FlowId, PortSet, Stats, Tuning};

use crate::device::Device;
use crate::device::file::FileSpec;
use crate::nbd::session::tls::TlsMode;
use crate::observe::record::{DepthChange, DepthRecorder, Recording};
use crate::observe::stats::{StoreLoad, Totals};
use crate::server::accept::Listening;
use crate::server::closing::Closing;
use crate::server::schedulers::{PolicyCounts, Schedulers};
use crate::server::{
    Admin, AdminError, BuiltPolicy, ControlThread, DefaultTenant, Drain, Group, Listen, Member,
    Operator, Status, StoreStatus, Successor, Tenant, TenantList, TenantSettings,
};
use crate::shard::{Exchange, Notice};

/// The state of the policies of all stores together. Slots and counters are summed. The other
/// values belong to one store's policy, so they are omitted if there are several stores.
fn together(stores: &[StoreStatus]) -> Stats {
    let mut policies = stores.iter().map(|store| store.policy);
    let first = policies.next().unwrap_or_default();
    // If one store has no limit, the sum has none.
    let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
    policies.fold(first, |all, one| Stats {
        slots: sum(all.slots, one.slots),
        free_slots: sum(all.free_slots, one.free_slots),
        throttles: all.throttles + one.throttles,
        blocks: all.blocks + one.blocks,
        wakes: all.wakes + one.wakes,
        ..Stats::default()
    })
}

/// A policy that completes its last requests before another replaces it.
pub(super) struct Leaving<'a> {
    schedulers: Schedulers<'a>,
    /// The exchange, which is over when the old policy has completed its requests.
    exchange: Arc<Exchange>,
    since: Instant,
}

impl Admin for ControlThread<'_> {
    fn status(&self) -> Status {
        let totals = self.server.shards.stats();
        let stores = self.stores(&totals);
        let policy = together(&stores);
        let PolicyCounts { throttles, blocks, wakes } = self.counted.and(&policy);
        Status {
            elapsed: self.started.elapsed(),
            totals,
            connections: self
                .server
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            memory: (self.server.budget.used(), self.server.budget.most()),
            policy: Stats { throttles, blocks, wakes, ..policy },
            stores,
            changing: self.leaving.as_ref().map(|leaving| leaving.since.elapsed()),
            classes: self.schedulers.class_weights(),
            is_draining: self.drain != Drain::No,
            cut_off: self.device.cut_off(),
            write_back_errors: self.write_back.failed(),
            fences: self.fences.stats().collect(),
            targets: self.targets(),
            caps: self.caps(),
            groups: self.groups(),
            shares: self.shares(),
            attachments: self.attachments(),
            control: self.turns,
            upgrades: self.upgrades,
        }
    }

    fn tenants(&self) -> Arc<TenantList> {
        self.server.tenants()
    }

    fn listening(&self) -> Vec<Listen> {
        let listeners = self.listeners.iter().map(|listening| listening.at.clone());
        let directories = self.guest_directories.iter().cloned();
        let disks = self.has_disks_of_all.then_some(Listen::Ublk);
        listeners.chain(directories).chain(disks).collect()
    }

    fn sockets(&self) -> Vec<(Listen, BorrowedFd<'_>)> {
        self.listeners.iter().filter_map(Listening::own_socket).collect()
    }

    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError> {
        let open = self.opened(spec)?;
        // If the file was about to be closed, its closing is cancelled.
        self.closing.retain(|closing| closing.file != open.0);
        Ok(open)
    }

    fn prepare_file(&mut self, spec: &FileSpec) -> Result<(), AdminError> {
        self.prepared(spec).map(drop)
    }

    fn close_file(&mut self, file: u16) {
        self.device.keep_file_open(file);
        self.closing.push(Closing::new(file));
    }

    fn add(&mut self, tenants: Vec<(Tenant, bool)>) -> Vec<Result<(), AdminError>> {
        self.add_tenants(tenants)
    }

    fn remove(&mut self, names: &[&str]) -> Vec<Result<(), AdminError>> {
        self.remove_tenants(names)
    }

    fn rename(&mut self, name: &str, new: &str) -> Result<(), AdminError> {
        self.rename_tenant(name, new)
    }

    fn resize(&mut self, name: &str, size: u64, wipe: bool) -> Result<(), AdminError> {
        self.resize_tenant(name, size, wipe)
    }

    fn set_default(&mut self, default: Option<DefaultTenant>) -> Result<(), AdminError> {
        self.default = default;
        self.put_members(self.server.tenants().to_members())
    }

    fn size_of(&self, file: u16) -> Option<u64> {
        self.device.size_of(file)
    }

    fn update(&mut self, updates: &[(String, TenantSettings)]) -> Vec<Result<(), AdminError>> {
        self.update_tenants(updates)
    }

    fn set_group(&mut self, group: &Group) -> Result<(), AdminError> {
        self.put_group(group)
    }

    fn remove_group(&mut self, name: &str) -> Result<(), AdminError> {
        self.drop_group(name)
    }

    fn lose(&self, member: &Member, errno: i32) {
        self.write_back.lose(member.number(), errno);
    }

    fn clear_error(&mut self, name: &str) -> Result<Option<i32>, AdminError> {
        let tenants = self.server.tenants();
        let member = tenants.find(name).ok_or_else(|| AdminError::NoSuchTenant(name.into()))?;
        Ok(self.write_back.clear(member.number()))
    }

    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError> {
        let mut wake = PortSet::EMPTY;
        let result = self.schedulers.tune(tuning, &mut wake);
        self.server.shards.wake(wake);
        Ok(result?)
    }

    fn change_policy(&mut self, next: BuiltPolicy) -> Result<(), AdminError> {
        self.exchange_policy(next)
    }

    fn set_tls(&mut self, tls: TlsMode) {
        self.server.set_tls(tls);
        // The new TLS mode is set first, because this uses the revocation lists in force.
        self.server.end_revoked();
    }

    fn listen(&mut self, at: &Listen) -> Result<Listen, AdminError> {
        self.listen_at(at)
    }

    fn unlisten(&mut self, at: &Listen) -> Result<(), AdminError> {
        self.unlisten_at(at)
    }

    fn record(&mut self, events: usize) {
        self.server.shards.record(events);
        self.depths = Some(DepthRecorder::default());
    }

    fn recorded(&mut self) -> (Vec<Recording>, Vec<DepthChange>) {
        let changes = self.depths.take().unwrap_or_default().finish();
        (self.server.shards.recorded(), changes)
    }

    fn upgrade_state(&self, operator: serde_json::Value) -> Result<File, AdminError> {
        self.state_to_check(operator)
    }

    fn is_ready_for_upgrade(&mut self) -> bool {
        self.pause_accepting()
    }

    fn upgrade(&mut self, successor: &Successor, operator: serde_json::Value) -> AdminError {
        self.hand_over(successor, operator)
    }

    fn drain(&mut self, now: bool) {
        self.listeners.drain(..).for_each(|listening| listening.task.abort());
        self.guest_directories.clear();
        self.guests.clear();
        self.drain = if now { Drain::Now } else { Drain::Waiting };
    }
}

impl ControlThread<'_> {
    fn exchange_policy(&mut self, built: BuiltPolicy) -> Result<(), AdminError> {
        if self.leaving.is_some() {
            return Err(AdminError::Changing);
        }
        // Steps that may fail come first, since after a failure the shards still run under the old
        // policy.
        let (policies, ports) = built.split(&self.names, self.server.config.tags);
        let mut schedulers =
            Schedulers::new(policies, self.names.clone(), self.device, &self.wakers)?;
        let refused = |error| AdminError::Group { name: "(all)".into(), error };
        schedulers.take_stores_and_groups(&self.schedulers).map_err(refused)?;
        let tenants = self.server.tenants();
        let members: HashMap<FlowId, &Member> =
            tenants.members().map(|member| (member.flow, member)).collect();
        for &flow in &self.flows {
            let member = members.get(&flow);
            let name = || member.map_or("(removed)".into(), |member| member.tenant.name.clone());
            schedulers
                .add_known(flow, member.map(|member| &member.tenant))
                .map_err(|error| AdminError::Flow { name: name(), error })?;
        }
        if let Err(error) = schedulers.fit_device() {
            // The policy in force remains, so its weights are set again.
            if let Err(error) = self.schedulers.fit_device() {
                tracing::error!("{error}");
            }
            return Err(error.into());
        }
        schedulers.hurry();
        self.counted = self.policy_counts();
        let schedulers = std::mem::replace(&mut self.schedulers, schedulers);
        let hand_over = self.schedulers.take_caps(&schedulers, &self.flows);
        let patience = self.server.config.timeouts.change;
        let exchange = self.server.shards.change(ports, patience, hand_over);
        self.leaving = Some(Leaving { schedulers, exchange, since: Instant::now() });
        Ok(())
    }

    /// The counts of all policies so far.
    pub(super) fn policy_counts(&self) -> PolicyCounts {
        self.schedulers.stats().fold(self.counted, |counts, stats| counts.and(&stats))
    }

    /// The stores that have files, and their requests on the device.
    fn stores(&self, totals: &Totals) -> Vec<StoreStatus> {
        let names = self.device.stores().into_iter().enumerate();
        let stuck = self.server.config.timeouts.stuck;
        let status = |(number, name)| {
            // Shards report only stores on which they have requests.
            let StoreLoad { on_device, oldest_ns } =
                totals.stores.get(number).copied().unwrap_or_default();
            let oldest = Duration::from_nanos(oldest_ns);
            let policy = self.schedulers.stats_of(number);
            let number = number as u16;
            let is_stuck = oldest >= stuck;
            StoreStatus { number, name, on_device, oldest, is_stuck, policy }
        };
        names.map(status).collect()
    }

    /// The time of the next [`Self::tick`]; `None` if no policy needs one.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let leaving = self.leaving.as_ref().and_then(|leaving| leaving.schedulers.deadline_ns());
        [self.schedulers.deadline_ns(), leaving].into_iter().flatten().min()
    }

    /// Ticks the policies that are due, and drops an old policy that has completed its requests.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.schedulers.tick(now_ns);
        if let Some(depths) = &mut self.depths {
            self.schedulers.note_depths(now_ns, depths);
        }
        if let Some(leaving) = &mut self.leaving {
            // The old policy may need ticks to dispatch its last requests.
            leaving.schedulers.tick_policies(now_ns);
            if leaving.exchange.is_over() {
                tracing::info!(
                    waited_ms = leaving.since.elapsed().as_millis() as u64,
                    "the policy has changed"
                );
                self.leaving = None;
            }
        }
    }

    /// Does the work that is due once a second.
    pub(super) fn second(&mut self, operator: &mut dyn Operator) {
        operator.second(self);
        self.accept_after_all();
        self.device.inspect();
        self.close_unclaimed();
        self.weigh_groups();
        self.server.log_failures();
        self.server.end_expired();
        self.server.notify_all(Notice::Second);
    }

    /// Whether the server is to end now.
    pub(super) fn is_over(&self) -> bool {
        match self.drain {
            Drain::No => false,
            Drain::Waiting => self.server.is_empty(),
            Drain::Now => true,
        }
    }
}
