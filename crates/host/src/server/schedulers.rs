//! The policies in force: one for each store, all of the same kind.

use std::sync::Arc;

use fairq_core::{
    CapStats, Caps, ClassWeights, FlowError, FlowId, Policy, PortSet, Stats, Target, TargetStats,
    TuneError, Tuning, Weight,
};

use crate::device::any::AnyDevice;
use crate::device::control::{Control, ControlError};
use crate::io::wakers::Wakers;
use crate::observe::record::DepthRecorder;
use crate::server::Tenant;
use crate::shard::stores::Names;

/// What ticks the policies and keeps their flows.
pub(super) struct Schedulers<'a> {
    controls: Vec<Control<'a, Arc<dyn Policy>, AnyDevice>>,
    names: Arc<Names>,
}

impl<'a> Schedulers<'a> {
    /// Fits the device to them, before any shard runs under them.
    pub(super) fn start(
        policies: Vec<Arc<dyn Policy>>,
        names: Arc<Names>,
        device: &'a AnyDevice,
        wakers: &Arc<Wakers>,
    ) -> Result<Self, ControlError> {
        let start = |policy| Control::start(policy, device, wakers.clone());
        let controls = policies.into_iter().map(start).collect::<Result<_, _>>()?;
        Ok(Schedulers { controls, names })
    }

    fn policy(&self, store: usize) -> Result<&dyn Policy, FlowError> {
        self.controls.get(store).map(Control::policy).ok_or(FlowError::Full)
    }

    fn of(&self, flow: FlowId) -> Result<(&dyn Policy, FlowId), FlowError> {
        let (store, flow) = self.names.of(flow).ok_or(FlowError::NoSuchFlow)?;
        Ok((self.policy(store)?, flow))
    }

    /// Adds a tenant's flow to its store's policy.
    pub(super) fn add(&self, store: u16, tenant: &Tenant) -> Result<FlowId, FlowError> {
        let policy = self.policy(store.into())?;
        let flow = add(policy, None, tenant)?;
        match self.names.assign(store, flow.slot()) {
            Some(number) => Ok(flow.at(number)),
            None => {
                // No port has heard of it yet.
                let _ = policy.remove_flow(flow);
                Err(FlowError::Full)
            }
        }
    }

    /// Adds a flow that the policies before these had, a tenant's or that of a removed one: the
    /// connections of that may still know it, and the policy must tell it from a later one.
    pub(super) fn add_known(&self, flow: FlowId, tenant: Option<&Tenant>) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        match tenant {
            Some(tenant) => add(policy, Some(flow), tenant).map(drop),
            None => {
                policy.add_flow_as(Some(flow), Weight::DEFAULT)?;
                policy.remove_flow(flow).map(drop)
            }
        }
    }

    pub(super) fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.set_weight(flow, weight)
    }

    pub(super) fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.set_target(flow, target)
    }

    pub(super) fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.set_caps(flow, caps)
    }

    /// What a flow's caps have done.
    pub(super) fn caps(&self, flow: FlowId) -> Option<CapStats> {
        let (policy, flow) = self.of(flow).ok()?;
        policy.caps(flow)
    }

    /// How a flow does beside its target.
    pub(super) fn target(&self, flow: FlowId) -> Option<TargetStats> {
        let (policy, flow) = self.of(flow).ok()?;
        policy.target(flow)
    }

    pub(super) fn remove(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.remove_flow(flow)
    }

    /// Changes a parameter in all of them; they are of one kind, so that all take it or none.
    pub(super) fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        self.controls.iter().try_for_each(|control| control.policy().tune(tuning, wake))
    }

    /// The state of a store's policy.
    pub(super) fn stats_of(&self, store: usize) -> Stats {
        self.controls.get(store).map(|control| control.policy().stats()).unwrap_or_default()
    }

    pub(super) fn class_weights(&self) -> Option<ClassWeights> {
        self.controls.first().and_then(Control::class_weights)
    }

    /// When to call [`Self::tick`] next; never again if `None`.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.controls.iter().filter_map(Control::deadline_ns).min()
    }

    /// Ticks those that are due.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.controls.iter_mut().for_each(|control| control.tick(now_ns));
    }

    /// Records what D of each store is now.
    pub(super) fn note_depths(&self, now_ns: u64, depths: &mut DepthRecorder) {
        for (store, control) in (0..).zip(&self.controls) {
            depths.note(now_ns, store, &control.policy().stats());
        }
    }

    /// Ticks policies that get rid of what they have.
    pub(super) fn tick_policies(&mut self, now_ns: u64) {
        for control in &mut self.controls {
            control.tick_policy(now_ns);
        }
    }
}

fn add(policy: &dyn Policy, known: Option<FlowId>, tenant: &Tenant) -> Result<FlowId, FlowError> {
    let flow = policy.add_flow_as(known, tenant.weight)?;
    let urgent = || if tenant.urgent { policy.set_urgent(flow, true) } else { Ok(()) };
    let target = || match tenant.target {
        Some(target) => policy.set_target(flow, Some(target)),
        None => Ok(()),
    };
    let caps = || match tenant.caps.is_empty() {
        true => Ok(()),
        false => policy.set_caps(flow, &tenant.caps),
    };
    urgent().and_then(|()| target()).and_then(|()| caps()).inspect_err(|_| {
        // No port has heard of it yet.
        let _ = policy.remove_flow(flow);
    })?;
    Ok(flow)
}
