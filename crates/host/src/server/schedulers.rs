//! The policies in force: one for each store, all of the same kind.

use std::fmt::Display;
use std::mem::discriminant;
use std::sync::Arc;

use fairq_core::{
    CapStats, Caps, CapsOf, ClassWeights, FlowError, FlowId, GroupId, Limits, PortSet, Reservation,
    Share, ShareStats, Stats, Target, TargetStats, TuneError, Tuning, Weight,
};

use crate::device::any::AnyDevice;
use crate::device::control::{Control, ControlError};
use crate::io::wakers::Wakers;
use crate::observe::record::DepthRecorder;
use serde::{Deserialize, Serialize};

use crate::server::built::{Later, Policies};
use crate::server::groups::{Groups, together};
use crate::server::{Group, GroupStatus, Tenant};
use crate::shard::stores::Names;

/// The counts of policies: how often ports were throttled, were blocked, and woke each other.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct PolicyCounts {
    pub(super) throttles: u64,
    pub(super) blocks: u64,
    pub(super) wakes: u64,
}

impl PolicyCounts {
    /// The sum of these counts and the counts in `stats`.
    pub(super) fn and(self, stats: &Stats) -> PolicyCounts {
        PolicyCounts {
            throttles: self.throttles + stats.throttles,
            blocks: self.blocks + stats.blocks,
            wakes: self.wakes + stats.wakes,
        }
    }
}

/// The policies in force, with their ticks, flows and groups.
pub(super) struct Schedulers<'a> {
    controls: Vec<Control<'a, Arc<dyn Limits>, AnyDevice>>,
    later: Option<Later>,
    device: &'a AnyDevice,
    wakers: Arc<Wakers>,
    names: Arc<Names>,
    groups: Groups,
    /// The last tuning of each parameter, which is also applied to policies of later stores.
    tunings: Vec<Tuning>,
}

impl<'a> Schedulers<'a> {
    /// Starts with the policy of the first store. The device's class weights do not change until
    /// [`Schedulers::fit_device`].
    pub(super) fn new(
        Policies { first, later }: Policies,
        names: Arc<Names>,
        device: &'a AnyDevice,
        wakers: &Arc<Wakers>,
    ) -> Result<Self, ControlError> {
        let (wakers, groups) = (wakers.clone(), Groups::default());
        let controls = vec![Control::new(first, device, wakers.clone())?];
        Ok(Schedulers { controls, later, device, wakers, names, groups, tunings: Vec::new() })
    }

    /// Builds the missing policies, up to the policy of this store.
    fn build_to(&mut self, store: usize) -> Result<(), FlowError> {
        while self.controls.len() <= store {
            let number = self.controls.len();
            let later = self.later.as_ref().filter(|later| number < later.most);
            let later = later.ok_or(FlowError::Full)?;
            let refused = |error: &dyn Display| {
                tracing::error!(store = number, %error, "the scheduler of another store cannot be \
                 built, and its tenants are refused: remove the cause of the error");
                FlowError::Full
            };
            let built = later.build().map_err(|error| refused(&error))?;
            let control = Control::new(built.policy.clone(), self.device, self.wakers.clone())
                .map_err(|error| refused(&error))?;
            for group in self.groups.outer_first() {
                let (id, settings) = self.groups.place(group)?;
                control.policy().set_group(id, Some(&settings))?;
            }
            for &tuning in &self.tunings {
                // No shard runs under this policy yet, so none has to be woken.
                let tuned = control.policy().tune(tuning, &mut PortSet::EMPTY.clone());
                tuned.map_err(|error| refused(&error))?;
            }
            later.put(built);
            self.controls.push(control);
        }
        Ok(())
    }

    /// Sets the weights of the device's classes as the policies require: before any shard runs
    /// under these policies, or again after another policy has changed the weights.
    pub(super) fn fit_device(&mut self) -> Result<(), ControlError> {
        self.controls.iter_mut().try_for_each(Control::fit)
    }

    fn policy(&self, store: usize) -> Result<&dyn Limits, FlowError> {
        self.controls.get(store).map(Control::policy).ok_or(FlowError::Full)
    }

    fn of(&self, flow: FlowId) -> Result<(&dyn Limits, FlowId), FlowError> {
        let (store, flow) = self.names.of(flow).ok_or(FlowError::NoSuchFlow)?;
        Ok((self.policy(store)?, flow))
    }

    /// Adds a tenant's flow to its store's policy.
    pub(super) fn add(&mut self, store: u16, tenant: &Tenant) -> Result<FlowId, FlowError> {
        self.build_to(store.into())?;
        let policy = self.policy(store.into())?;
        let flow = add(policy, None, tenant, &self.groups)?;
        self.names.assign(store, flow).ok_or_else(|| {
            // No port has used the flow yet, so it can be removed at once.
            let _ = policy.remove_flow(flow);
            FlowError::Full
        })
    }

    /// Whether no number may be free for a new slot; false with one store, where each slot has its
    /// own number.
    pub(super) fn lack_numbers(&self) -> bool {
        self.later.is_some() && self.names.is_full()
    }

    /// Releases the number of a removed flow without requests in flight, for a slot of any store.
    pub(super) fn give_back(&self, flow: FlowId) {
        self.names.give_back(flow.slot() as u32);
    }

    /// Adds a flow that existed under the previous policies, of a present tenant or a removed one.
    /// Connections of a removed tenant may still use its flow, and the policy must distinguish it
    /// from a later flow. A flow whose number was released is refused by all policies.
    pub(super) fn add_known(&self, flow: FlowId, tenant: Option<&Tenant>) -> Result<(), FlowError> {
        let Some((store, flow)) = self.names.of(flow) else { return Ok(()) };
        let policy = self.policy(store)?;
        match tenant {
            Some(tenant) => add(policy, Some(flow), tenant, &self.groups).map(drop),
            None => {
                policy.add_flow_as(Some(flow), Weight::DEFAULT)?;
                policy.remove_flow(flow).map(drop)
            }
        }
    }

    /// Changes the weights of flows, with one call to each store's policy. Removed flows are
    /// skipped.
    pub(super) fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        let mut of_stores = vec![Vec::new(); self.controls.len()];
        for &(flow, weight) in weights {
            if let Some((store, flow)) = self.names.of(flow)
                && let Some(of_store) = of_stores.get_mut(store)
            {
                of_store.push((flow, weight));
            }
        }
        for (control, weights) in self.controls.iter().zip(&of_stores) {
            match weights[..] {
                [] => {}
                // For a single flow, this call does not visit all others, and it fails only if the
                // flow was removed.
                [(flow, weight)] => drop(control.policy().set_weight(flow, weight)),
                _ => control.policy().set_weights(weights),
            }
        }
    }

    pub(super) fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.set_target(flow, target)
    }

    pub(super) fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.set_caps(flow, caps)
    }

    /// The statistics of a flow's caps.
    pub(super) fn caps(&self, flow: FlowId) -> Option<CapStats> {
        let (policy, flow) = self.of(flow).ok()?;
        policy.caps(flow)
    }

    /// Takes over the stores and groups of the previous schedulers.
    pub(super) fn take_stores_and_groups(
        &mut self,
        before: &Schedulers<'_>,
    ) -> Result<(), FlowError> {
        before.groups.outer_first().into_iter().try_for_each(|group| self.set_group(group))?;
        self.build_to(before.controls.len() - 1)
    }

    /// Returns a function that transfers the consumption of caps, of flows and groups, from the
    /// previous schedulers to these.
    pub(super) fn take_caps(
        &self,
        before: &Schedulers<'_>,
        flows: &[FlowId],
    ) -> impl Fn() + Send + Sync + 'static {
        let policies = |of: &Schedulers<'_>| -> Vec<Arc<dyn Limits>> {
            of.controls.iter().map(|control| control.shared_policy().clone()).collect()
        };
        let (old, new) = (policies(before), policies(self));
        let flows: Vec<(usize, FlowId)> =
            flows.iter().filter_map(|&flow| self.names.of(flow)).collect();
        let groups: Vec<GroupId> = self.groups.all().map(|(id, _)| id).collect();
        move || {
            let pair = |store: usize| Some((old.get(store)?, new.get(store)?));
            for &(store, flow) in &flows {
                if let Some((old, new)) = pair(store)
                    && let Some(before) = old.caps(flow)
                {
                    new.resume_caps(CapsOf::Flow(flow), &before);
                }
            }
            for ((old, new), &id) in
                old.iter().zip(&new).flat_map(|pair| groups.iter().map(move |id| (pair, id)))
            {
                if let Some(before) = old.group(id).and_then(|group| group.caps) {
                    new.resume_caps(CapsOf::Group(id), &before);
                }
            }
        }
    }

    /// Restores the consumption of a flow's caps from the previous program. `left` computes it from
    /// the flow's current statistics of caps.
    pub(super) fn resume_caps(&self, flow: FlowId, left: impl FnOnce(&CapStats) -> CapStats) {
        if let Ok((policy, flow)) = self.of(flow)
            && let Some(now) = policy.caps(flow)
        {
            policy.resume_caps(CapsOf::Flow(flow), &left(&now));
        }
    }

    /// [`Self::resume_caps`] for a group in a store.
    pub(super) fn resume_group(
        &self,
        name: &str,
        store: usize,
        left: impl FnOnce(&CapStats) -> CapStats,
    ) {
        let Some((id, policy)) = self.groups.id(name).zip(self.policy(store).ok()) else { return };
        if let Some(now) = policy.group(id).and_then(|group| group.caps) {
            policy.resume_caps(CapsOf::Group(id), &left(&now));
        }
    }

    /// The statistics of each group's caps in each store.
    pub(super) fn caps_of_groups(&self) -> Vec<(String, Vec<Option<CapStats>>)> {
        let caps = |id| {
            let groups = self.controls.iter().map(move |of| of.policy().group(id));
            groups.map(|group| group.and_then(|group| group.caps)).collect()
        };
        self.groups.all().map(|(id, group)| (group.name.clone(), caps(id))).collect()
    }

    /// Adds a group to all policies, or changes it.
    pub(super) fn set_group(&mut self, group: &Group) -> Result<(), FlowError> {
        let (id, settings) = self.groups.place(group)?;
        // The policies are of one kind and have the same groups, so all accept the group or none.
        self.controls.iter().try_for_each(|of| of.policy().set_group(id, Some(&settings)))?;
        self.groups.put(id, Some(group.clone()));
        self.hurry();
        Ok(())
    }

    /// Removes a group without tenants from all policies.
    pub(super) fn remove_group(&mut self, name: &str) -> Result<(), FlowError> {
        let id = self.groups.id(name).ok_or(FlowError::NoSuchGroup)?;
        self.controls.iter().try_for_each(|of| of.policy().set_group(id, None))?;
        self.groups.put(id, None);
        Ok(())
    }

    /// Puts a flow into a group (or into none), and sets its reservation.
    pub(super) fn set_share(
        &mut self,
        flow: FlowId,
        group: Option<&str>,
        reservation: Reservation,
    ) -> Result<(), FlowError> {
        let share = self.groups.share(group, reservation)?;
        let (policy, flow) = self.of(flow)?;
        policy.set_share(flow, &share)?;
        self.hurry();
        Ok(())
    }

    /// A flow's effective weight and reservation.
    pub(super) fn share(&self, flow: FlowId) -> Option<ShareStats> {
        let (policy, flow) = self.of(flow).ok()?;
        policy.share(flow)
    }

    /// Whether some group has caps.
    pub(super) fn has_capped_groups(&self) -> bool {
        self.groups.all().any(|(_, group)| !group.caps.is_empty())
    }

    /// The state of each group.
    pub(super) fn groups(&self) -> Vec<GroupStatus> {
        let status = |(id, group): (_, &Group)| {
            let stores: Vec<_> =
                self.controls.iter().filter_map(|of| of.policy().group(id)).collect();
            together(group, &stores)
        };
        let mut all: Vec<GroupStatus> = self.groups.all().map(status).collect();
        all.sort_by(|a, b| a.group.name.cmp(&b.group.name));
        all
    }

    /// Makes all policies due for a tick soon.
    pub(super) fn hurry(&mut self) {
        self.controls.iter_mut().for_each(Control::hurry);
    }

    /// A flow's latency against its target.
    pub(super) fn target(&self, flow: FlowId) -> Option<TargetStats> {
        let (policy, flow) = self.of(flow).ok()?;
        policy.target(flow)
    }

    pub(super) fn remove(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let (policy, flow) = self.of(flow)?;
        policy.remove_flow(flow)
    }

    /// Changes a parameter in all policies. They are of one kind, so all accept it or none.
    pub(super) fn tune(&mut self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        self.controls.iter().try_for_each(|control| control.policy().tune(tuning, wake))?;
        self.tunings.retain(|other| discriminant(other) != discriminant(&tuning));
        self.tunings.push(tuning);
        Ok(())
    }

    /// The statistics of all policies.
    pub(super) fn stats(&self) -> impl Iterator<Item = Stats> + '_ {
        self.controls.iter().map(|control| control.policy().stats())
    }

    /// The statistics of a store's policy.
    pub(super) fn stats_of(&self, store: usize) -> Stats {
        self.controls.get(store).map(|control| control.policy().stats()).unwrap_or_default()
    }

    pub(super) fn class_weights(&self) -> Option<ClassWeights> {
        self.controls.first().and_then(Control::class_weights)
    }

    /// The time of the next [`Self::tick`]; `None` if no policy needs one.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.controls.iter().filter_map(Control::deadline_ns).min()
    }

    /// Ticks the policies that are due.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.controls.iter_mut().for_each(|control| control.tick(now_ns));
    }

    /// Records the current D of each store.
    pub(super) fn note_depths(&self, now_ns: u64, depths: &mut DepthRecorder) {
        for (store, control) in (0..).zip(&self.controls) {
            depths.note(now_ns, store, &control.policy().stats());
        }
    }

    /// Ticks all policies, so that they dispatch their last requests.
    pub(super) fn tick_policies(&mut self, now_ns: u64) {
        for control in &mut self.controls {
            control.tick_policy(now_ns);
        }
    }
}

fn add(
    policy: &dyn Limits,
    known: Option<FlowId>,
    tenant: &Tenant,
    groups: &Groups,
) -> Result<FlowId, FlowError> {
    let share = groups.share(tenant.settings.group.as_deref(), tenant.settings.reservation)?;
    let flow = policy.add_flow_as(known, tenant.settings.weight)?;
    let urgent = || if tenant.settings.urgent { policy.set_urgent(flow, true) } else { Ok(()) };
    // A policy without targets, caps or groups refuses these calls even for empty settings, so they
    // are made only if something is set.
    let target = || match tenant.settings.target {
        Some(target) => policy.set_target(flow, Some(target)),
        None => Ok(()),
    };
    let caps = || match tenant.settings.caps.is_empty() {
        true => Ok(()),
        false => policy.set_caps(flow, &tenant.settings.caps),
    };
    let place = || match share == Share::default() {
        true => Ok(()),
        false => policy.set_share(flow, &share),
    };
    urgent().and_then(|()| target()).and_then(|()| caps()).and_then(|()| place()).inspect_err(
        |_| {
            // No port has used the flow yet, so it can be removed at once.
            let _ = policy.remove_flow(flow);
        },
    )?;
    Ok(flow)
}
