//! Groups of tenants, by name; the policies of all stores use their numbers.

use std::collections::HashMap;

use fairq_core::{
    CapStats, FlowError, GroupId, GroupStats, Reservation, Share, ShareStats, Weight,
};

use crate::server::{AdminError, ControlThread, Group};

/// A group and its state.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// The group.
    pub group: Group,
    /// Its effective weight, which is comparable with the weights of top-level tenants and groups.
    pub weight: Weight,
    /// The number of tenants and groups in it.
    pub members: u32,
    /// The number of members with recent requests.
    pub active: u32,
    /// The statistics of its caps, if it has caps.
    pub caps: Option<CapStats>,
}

impl Group {
    fn parent(&self) -> Option<&str> {
        self.name.rsplit_once('/').map(|(parent, _)| parent)
    }

    fn settings(&self, parent: Option<GroupId>) -> fairq_core::Group {
        let Group { weight, reservation, caps, .. } = *self;
        fairq_core::Group { parent, weight, reservation, caps }
    }
}

/// All groups by their numbers; a number is reused when its group has been removed.
#[derive(Clone, Default)]
pub(super) struct Groups(Vec<Option<Group>>);

impl Groups {
    pub(super) fn id(&self, name: &str) -> Option<GroupId> {
        let is_it = |group: &Option<Group>| group.as_ref().is_some_and(|group| group.name == name);
        self.0.iter().position(is_it).map(|at| GroupId(at as u16))
    }

    /// The share of a tenant in this group, or in none, with its reservation.
    pub(super) fn share(
        &self,
        group: Option<&str>,
        reservation: Reservation,
    ) -> Result<Share, FlowError> {
        let id = |name| self.id(name).ok_or(FlowError::NoSuchGroup);
        Ok(Share { group: group.map(id).transpose()?, reservation })
    }

    /// The number of the group, existing or new, and its settings for policies.
    pub(super) fn place(&self, group: &Group) -> Result<(GroupId, fairq_core::Group), FlowError> {
        let parent = match group.parent() {
            None => None,
            Some(name) => Some(self.id(name).ok_or(FlowError::NoSuchGroup)?),
        };
        let free = || self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let id = self.id(&group.name).unwrap_or_else(|| GroupId(free() as u16));
        Ok((id, group.settings(parent)))
    }

    pub(super) fn put(&mut self, id: GroupId, group: Option<Group>) {
        let at = usize::from(id.0);
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = group;
    }

    /// All groups, each after its parent group: the order in which policies must add them.
    pub(super) fn outer_first(&self) -> Vec<&Group> {
        let mut all: Vec<&Group> = self.all().map(|(_, group)| group).collect();
        all.sort_by_key(|group| group.name.matches('/').count());
        all
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        let numbered = self.0.iter().zip(0..);
        numbered.filter_map(|(group, id)| Some((GroupId(id), group.as_ref()?)))
    }
}

impl ControlThread<'_> {
    /// See [`crate::server::Admin::set_group`].
    pub(super) fn put_group(&mut self, group: &Group) -> Result<(), AdminError> {
        let refused = |error| AdminError::Group { name: group.name.clone(), error };
        self.schedulers.set_group(group).map_err(refused)
    }

    /// See [`crate::server::Admin::remove_group`].
    pub(super) fn drop_group(&mut self, name: &str) -> Result<(), AdminError> {
        let tenants = self.server.tenants();
        let refused = |error| AdminError::Group { name: name.into(), error };
        // All tenants are checked first. A store's policy knows only its own members, so the
        // policies of other stores would already have removed the group when one refuses.
        if tenants.members().any(|member| member.tenant.settings.group.as_deref() == Some(name)) {
            return Err(refused(FlowError::HasMembers));
        }
        self.schedulers.remove_group(name).map_err(refused)
    }

    /// The state of each group.
    pub(super) fn groups(&self) -> Vec<GroupStatus> {
        self.schedulers.groups()
    }

    /// Makes shards share their CPUs by the effective weights of tenants in groups.
    pub(super) fn weigh_groups(&self) {
        let tenants = self.server.tenants();
        for member in tenants.members().filter(|member| member.tenant.settings.group.is_some()) {
            if let Some(share) = self.schedulers.share(member.flow) {
                self.weights.set(member.number(), share.weight);
            }
        }
    }

    /// The tenants' effective weights and reservations; empty if the policy has none.
    pub(super) fn shares(&self) -> HashMap<u16, ShareStats> {
        let tenants = self.server.tenants();
        let of = |member: &crate::server::Member| {
            Some((member.number(), self.schedulers.share(member.flow)?))
        };
        tenants.members().filter_map(of).collect()
    }
}

/// The state of a group over several stores: members and held requests are summed, and the weight
/// is that of the first store in which the group has members.
pub(super) fn together(group: &Group, stores: &[GroupStats]) -> GroupStatus {
    let caps = stores.iter().filter_map(|stats| stats.caps).reduce(|sum, of| CapStats {
        caps: sum.caps,
        held: sum.held.saturating_add(of.held),
        held_ns: sum.held_ns.saturating_add(of.held_ns),
        waiting: sum.waiting.saturating_add(of.waiting),
        // The consumption of each store's caps is separate, so it is not summed.
        taken: sum.taken,
    });
    let first = stores.iter().find(|stats| stats.members > 0).or(stores.first());
    GroupStatus {
        group: group.clone(),
        weight: first.map_or(group.weight, |stats| stats.weight),
        members: stores.iter().map(|stats| stats.members).sum(),
        active: stores.iter().map(|stats| stats.active).sum(),
        caps,
    }
}
