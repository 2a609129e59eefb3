//! What the control thread holds: all that can be asked of and changed in a running server, one
//! after the other.
//!
//! **Another policy** ([`Admin::change_policy`]) takes the old one's place in every shard when no
//! shard holds a request of the old one any more. Until then both are ticked, and what is changed
//! meanwhile is changed in the new one: nobody is admitted to the old one any more. Flows keep
//! their names, so that connections, statistics and the roster need not hear of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fairq_core::{FlowId, Policy, PortSet, Tuning, Weight};
use tokio::task::JoinHandle;

use crate::device::Device;
use crate::device::any::AnyDevice;
use crate::device::control::Control;
use crate::device::file::FileSpec;
use crate::device::write_back::WriteBack;
use crate::io::wakers::Wakers;
use crate::nbd::session::tls::TlsMode;
use crate::observe::record::Recording;
use crate::server::accept::Listening;
use crate::server::closing::Closing;
use crate::server::tenants::add_flow;
use crate::server::{
    Admin, AdminError, BuiltPolicy, Listen, Member, Roster, Server, Status, Tenant,
};
use crate::shard::Meeting;

/// How far a server is from its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Drain {
    /// It serves.
    No,
    /// It waits for its last client to go.
    Waiting,
    /// It is to end now.
    Now,
}

/// What the control thread itself holds: all that can be changed.
pub(super) struct Desk<'a> {
    pub(super) server: Arc<Server>,
    pub(super) device: &'a Arc<AnyDevice>,
    /// A look at the files that is under way.
    pub(super) inspection: Option<JoinHandle<()>>,
    pub(super) wakers: Arc<Wakers>,
    pub(super) write_back: Arc<WriteBack>,
    pub(super) control: Control<'a, Arc<dyn Policy>, AnyDevice>,
    /// The policy before, as long as a shard holds requests of it.
    pub(super) leaving: Option<Leaving<'a>>,
    /// The last flow of each slot, from the first slot on.
    pub(super) flows: Vec<FlowId>,
    /// Who has been removed, and may have requests under way.
    pub(super) leftovers: Vec<(Tenant, FlowId)>,
    /// Whose range is to be zeroed when nobody else writes there any more.
    pub(super) waiting: Vec<FlowId>,
    /// Files that are to be closed.
    pub(super) closing: Vec<Closing>,
    /// The device's preferred size of a transfer.
    pub(super) preferred: u32,
    pub(super) listeners: Vec<Listening>,
    pub(super) started: Instant,
    pub(super) drain: Drain,
}

/// A policy that finishes what it has.
pub(super) struct Leaving<'a> {
    control: Control<'a, Arc<dyn Policy>, AnyDevice>,
    /// Over when it has finished.
    meeting: Arc<Meeting>,
    since: Instant,
}

impl Admin for Desk<'_> {
    fn status(&self) -> Status {
        Status {
            elapsed: self.started.elapsed(),
            totals: self.server.shards.stats(),
            connections: self
                .server
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            memory: (self.server.budget.used(), self.server.budget.most()),
            policy: self.policy().stats(),
            changing: self.leaving.as_ref().map(|leaving| leaving.since.elapsed()),
            classes: self.control.class_weights(),
            is_draining: self.drain != Drain::No,
            cut_off: self.device.cut_off(),
            write_back_errors: self.write_back.failed(),
        }
    }

    fn roster(&self) -> Arc<Roster> {
        self.server.roster()
    }

    fn listening(&self) -> Vec<Listen> {
        self.listeners.iter().map(|listening| listening.at.clone()).collect()
    }

    fn open_file(&mut self, spec: &FileSpec) -> Result<(u16, u64), AdminError> {
        let open = self.device.add_file(spec)?;
        // It may be one that was to be closed.
        self.closing.retain(|closing| closing.file != open.0);
        Ok(open)
    }

    fn close_file(&mut self, file: u16) {
        self.device.linger_file(file);
        self.closing.push(Closing::new(file));
    }

    fn add(&mut self, tenant: Tenant, wipe: bool) -> Result<(), AdminError> {
        self.add_tenant(tenant, wipe)
    }

    fn remove(&mut self, name: &str) -> Result<(), AdminError> {
        self.remove_tenant(name)
    }

    fn set_weight(&mut self, name: &str, weight: Weight) -> Result<(), AdminError> {
        self.set_tenant_weight(name, weight)
    }

    fn clear_error(&mut self, name: &str) -> Result<Option<i32>, AdminError> {
        let roster = self.server.roster();
        let member = roster.find(name).ok_or_else(|| AdminError::NoSuchTenant(name.into()))?;
        Ok(self.write_back.clear(member.number()))
    }

    fn tune(&mut self, tuning: Tuning) -> Result<(), AdminError> {
        let mut wake = PortSet::EMPTY;
        let result = self.policy().tune(tuning, &mut wake);
        self.server.shards.wake(wake);
        Ok(result?)
    }

    fn change_policy(&mut self, next: BuiltPolicy) -> Result<(), AdminError> {
        self.exchange_policy(next)
    }

    fn set_tls(&mut self, tls: TlsMode) {
        self.server.set_tls(tls);
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
    }

    fn recorded(&mut self) -> Vec<Recording> {
        self.server.shards.recorded()
    }

    fn drain(&mut self, now: bool) {
        self.listeners.drain(..).for_each(|listening| listening.task.abort());
        self.drain = if now { Drain::Now } else { Drain::Waiting };
    }
}

impl Desk<'_> {
    /// The policy in force.
    pub(super) fn policy(&self) -> &dyn Policy {
        self.control.policy()
    }

    fn exchange_policy(
        &mut self,
        BuiltPolicy { policy, ports }: BuiltPolicy,
    ) -> Result<(), AdminError> {
        if self.leaving.is_some() {
            return Err(AdminError::Changing);
        }
        let roster = self.server.roster();
        for &flow in &self.flows {
            match roster.members().iter().find(|member| member.flow == flow) {
                Some(Member { tenant, .. }) => {
                    let refused = |error| AdminError::Flow { name: tenant.name.clone(), error };
                    add_flow(&*policy, Some(flow), tenant).map_err(refused)?;
                }
                // A removed tenant's connections may still know its flow: the policy must tell it
                // from a later one.
                None => {
                    let refused = |error| AdminError::Flow { name: "(removed)".into(), error };
                    policy.add_flow_as(Some(flow), Weight::DEFAULT).map_err(refused)?;
                    policy.remove_flow(flow).map_err(refused)?;
                }
            }
        }
        let control = Control::start(policy, &**self.device, self.wakers.clone())?;
        let control = std::mem::replace(&mut self.control, control);
        let meeting = self.server.shards.change(ports);
        self.leaving = Some(Leaving { control, meeting, since: Instant::now() });
        Ok(())
    }

    /// When to call [`Self::tick`] next; never again if `None`.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let leaving = self.leaving.as_ref().and_then(|leaving| leaving.control.deadline_ns());
        [self.control.deadline_ns(), leaving].into_iter().flatten().min()
    }

    /// Ticks what is due, and lets a policy go that has finished.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.control.tick(now_ns);
        if let Some(leaving) = &mut self.leaving {
            leaving.control.tick_policy(now_ns);
            if leaving.meeting.is_over() {
                tracing::info!(
                    waited_ms = leaving.since.elapsed().as_millis() as u64,
                    "the policy has changed"
                );
                self.leaving = None;
            }
        }
    }

    /// Begins to look whether files have become shorter, unless the last look still waits for a
    /// file system: it has a thread of its own.
    pub(super) fn inspect_files(&mut self) {
        if self.inspection.as_ref().is_none_or(JoinHandle::is_finished) {
            let device = self.device.clone();
            self.inspection = Some(tokio::task::spawn_blocking(move || device.inspect()));
        }
    }

    /// Whether it is time to end.
    pub(super) fn is_over(&self) -> bool {
        match self.drain {
            Drain::No => false,
            Drain::Waiting => self.server.is_empty(),
            Drain::Now => true,
        }
    }
}
