//! Groups of tenants, and reservations: the changes by the control socket and by a reload, and the
//! views of both.

use std::collections::HashMap;
use std::sync::Arc;

use fairq_config::access::Directory;
use fairq_config::group::{self, Described, GroupTable};
use fairq_config::refusal::Refusal;
use fairq_config::settings::Settings;
use fairq_config::tenant::TenantTable;
use fairq_config::{caps, latency};
use fairq_core::{CapStats, ReservationState, ShareStats, Target};
use fairq_host::server::{Admin, GroupStatus, Member, Status, TenantList, TenantSettings};
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::Console;
use super::rpc::Fault;
use crate::parts::server_group;
use crate::view;

/// The value that removes a key.
const OFF: &str = "off";

/// A value in the form of the command line.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Console {
    /// Adds a group, or changes the given keys of one.
    pub(super) fn group(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        keys: &Map<String, Value>,
    ) -> Result<Value, Fault> {
        let mut spec = name.to_owned();
        for (key, value) in keys.iter().filter(|(_, value)| text(value) != OFF) {
            spec += &format!(",{key}={}", text(value));
        }
        let said: GroupTable = spec.parse().map_err(Fault::params)?;
        let is_known = |table: &Spanned<GroupTable>| table.get_ref().name == said.name;
        if !self.settings.group.iter().any(is_known) && self.is_of_users(&said.name)? {
            self.ambiguous.insert(said.name.clone());
        }
        let known = self.settings.group.iter().map(Spanned::get_ref);
        let old = known.clone().find(|table| table.name == said.name);
        let cgroups = self.cgroups.clone();
        let before = old.and_then(|table| table.complete(Some(&cgroups)).ok());
        let mut table = old.cloned().unwrap_or_default().overlaid(said);
        // `off` is not a value: it removes the key from the old table.
        for (key, _) in keys.iter().filter(|(_, value)| text(value) == OFF) {
            table.clear(key).map_err(Fault::params)?;
        }
        let others = known.filter(|other| other.name != table.name);
        let mut all =
            group::complete(others.chain([&table]), Some(&cgroups)).map_err(Fault::from)?;
        self.mark_ambiguous(&mut all);
        let is_it = |group: &&group::Group| group.name == table.name;
        let new = all.iter().find(is_it).ok_or_else(|| Fault::params("there is no such group"))?;
        // The policy may refuse the target of any single tenant, so all targets are set before the
        // group itself changes.
        let changed = self
            .set_targets(admin, &all)
            .and_then(|()| admin.set_group(&server_group(new)).map_err(Fault::refused));
        if let Err(fault) = changed {
            // The groups that were changed before get their old settings back.
            let known = self.known_groups().map_err(Fault::from)?;
            self.set_targets(admin, &known)?;
            return Err(fault);
        }
        let result = json!({
            "group": new.name,
            "from": before.as_ref().map(describe),
            "to": describe(new),
            "warning": super::caps::warn(&format!("group {}", new.name), &new.caps),
        });
        self.write_group(table);
        Ok(result)
    }

    /// Whether the machine has a group of users of this name. Unfinished while the name is
    /// resolved.
    fn is_of_users(&mut self, name: &str) -> Result<bool, Refusal> {
        let what =
            format!("group {name}: checking whether it is a group of users, too (getent group)");
        let wanted = name.to_owned();
        let find = move || Directory::default().has_group(&wanted);
        let is_of_users = self.naming.result(name, &what, find)?;
        self.naming.forget(name);
        Ok(is_of_users)
    }

    /// The groups of tenants: their names, places and targets.
    pub(super) fn known_groups(&self) -> Result<Vec<group::Group>, Refusal> {
        let mut groups = self.settings.known_groups()?;
        self.mark_ambiguous(&mut groups);
        Ok(groups)
    }

    /// Logs a warning for each tenant whose key `group` names groups of users.
    pub(super) fn warn_of_groups<'a>(&self, tables: impl Iterator<Item = &'a TenantTable>) {
        let groups = self.known_groups().unwrap_or_default();
        tables.filter_map(|table| table.warning(&groups)).for_each(|text| tracing::warn!("{text}"));
    }

    /// Marks the groups whose names are also names of groups of users.
    fn mark_ambiguous(&self, groups: &mut [group::Group]) {
        for group in groups {
            group.is_ambiguous = self.ambiguous.contains(&group.name);
        }
    }

    /// Sets the latency targets of all tenants according to these groups.
    fn set_targets(&self, admin: &mut dyn Admin, groups: &[group::Group]) -> Result<(), Fault> {
        let tenants = admin.tenants();
        let tables = self.settings.tenant.iter().map(Spanned::get_ref);
        let mut updates = Vec::new();
        for table in tables {
            let target = table.target(groups).map_err(Fault::params)?;
            let now = tenants.find(&table.name).map(|member| &member.tenant.settings);
            if let Some(now) = now.filter(|now| now.target != target) {
                updates.push((table.name.clone(), TenantSettings { target, ..now.clone() }));
            }
        }
        if updates.is_empty() {
            return Ok(());
        }
        admin.update(&updates).into_iter().try_for_each(|made| made.map_err(Fault::refused))
    }

    /// Updates groups that follow cgroups.
    pub(super) fn follow_groups(&mut self, admin: &mut dyn Admin) {
        let tables = self.settings.group.iter().map(Spanned::get_ref);
        let followers: Vec<GroupTable> = tables.filter(|table| table.follows()).cloned().collect();
        if followers.is_empty() {
            return;
        }
        let cgroups = self.cgroups.clone();
        for table in followers {
            let group = match table.complete(Some(&cgroups)) {
                Ok(group) => group,
                Err(error) => {
                    tracing::debug!(group = table.name, "{error}");
                    continue;
                }
            };
            if self.followed.get(&group.name) == Some(&group) {
                continue;
            }
            let before = self.followed.get(&group.name).and_then(|before| before.unused.as_ref());
            if let Some(unused) = group.unused.as_ref().filter(|unused| before != Some(*unused)) {
                tracing::warn!(
                    group = table.name,
                    "the group has no caps: {unused}; limit one of these disks, or set caps here"
                );
            }
            match admin.set_group(&server_group(&group)) {
                Ok(()) => {
                    let now = describe(&group);
                    let before = self.followed.get(&group.name);
                    if before.is_none_or(|before| before.caps != group.caps) {
                        super::caps::warn(&format!("group {}", group.name), &group.caps);
                    }
                    // The first reading is not a change: the group was made with these settings.
                    if self.followed.insert(group.name.clone(), group).is_some() {
                        tracing::info!(group = table.name, now, "the cgroup's settings changed");
                    }
                }
                Err(error) => {
                    tracing::warn!(group = table.name, %error, "cannot follow the cgroup");
                }
            }
        }
    }

    fn write_group(&mut self, table: GroupTable) {
        let groups = &mut Arc::make_mut(&mut self.settings).group;
        match groups.iter_mut().find(|known| known.get_ref().name == table.name) {
            Some(known) => *known.get_mut() = table,
            None => groups.push(Spanned::new(0..0, table)),
        }
    }

    /// Removes a group without members.
    pub(super) fn remove_group(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
    ) -> Result<Value, Fault> {
        admin.remove_group(name).map_err(Fault::refused)?;
        Arc::make_mut(&mut self.settings).group.retain(|table| table.get_ref().name != name);
        Ok(json!({ "group": name }))
    }

    /// Changes the given keys of a tenant's group or reservation.
    pub(super) fn share(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        keys: &Map<String, Value>,
    ) -> Result<Value, Fault> {
        let groups = self.known_groups()?;
        let mut table = self.table(name)?;
        for (key, value) in keys {
            if key != "group" && !group::KEYS.contains(&key.as_str()) {
                return Err(Fault::params(format!(
                    "no key {key}: write group, min-iops or min-bandwidth"
                )));
            }
            table.set(key, &text(value), &groups).map_err(Fault::params)?;
        }
        let (before, now) = self.update(admin, table)?;
        let words = |of: &TenantSettings| {
            let group = of.group.as_deref().unwrap_or("none");
            format!("group {group}, reservation {}", Described(of.reservation))
        };
        Ok(json!({ "tenant": name, "from": words(&before), "to": words(&now) }))
    }

    /// Adds or changes these groups, and stores the tables of `wanted`. Groups that `wanted` does
    /// not have are not removed here.
    pub(super) fn put_groups(
        &mut self,
        admin: &mut dyn Admin,
        groups: &[group::Group],
        wanted: &Settings,
    ) -> Result<(), Refusal> {
        for group in groups {
            admin
                .set_group(&server_group(group))
                .map_err(|error| Refusal::new(error.to_string()))?;
        }
        for table in wanted.group.iter().map(Spanned::get_ref) {
            self.write_group(table.clone());
        }
        Ok(())
    }

    /// Removes the groups that `wanted` does not have, inner ones first; returns their names.
    pub(super) fn drop_groups(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> Vec<String> {
        let stays = |name: &str| wanted.group.iter().any(|table| table.get_ref().name == name);
        let known = self.settings.group.iter().map(|table| table.get_ref().name.clone());
        let mut gone: Vec<String> = known.filter(|name| !stays(name)).collect();
        // A group with members cannot be removed, and an inner group is a member.
        gone.sort_by_key(|name| std::cmp::Reverse(name.matches('/').count()));
        gone.retain(|name| match admin.remove_group(name) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("{error}");
                false
            }
        });
        Arc::make_mut(&mut self.settings)
            .group
            .retain(|table| !gone.contains(&table.get_ref().name));
        gone
    }
}

/// The groups, with their members.
pub(super) fn shown(settings: &Settings, now: &Status, tenants: &TenantList) -> Vec<view::Group> {
    let known = settings.known_groups().unwrap_or_default();
    let find = |name: &str| known.iter().find(|group| group.name == name);
    let target = |name: &str| find(name).and_then(|group| group.target);
    let mut members: HashMap<&str, Vec<&str>> = HashMap::new();
    for Member { tenant, .. } in tenants.members() {
        if let Some(group) = &tenant.settings.group {
            members.entry(group).or_default().push(&tenant.name);
        }
    }
    let members = |name: &str| members.get(name).map(Vec::as_slice).unwrap_or_default();
    let of = |of: &GroupStatus| view_of(of, target(&of.group.name), members(&of.group.name));
    now.groups.iter().map(of).collect()
}

fn describe(group: &group::Group) -> String {
    let mut text = format!("weight {}", group.weight.get());
    if !group.reservation.is_none() {
        text += &format!(", {}", Described(group.reservation));
    }
    if !group.caps.is_empty() {
        text += &format!(", {}", caps::describe(&group.caps));
    }
    if let Some(target) = group.target {
        text += &format!(", {}", latency::describe(target));
    }
    text
}

fn view_of(of: &GroupStatus, target: Option<Target>, tenants: &[&str]) -> view::Group {
    view::Group {
        name: of.group.name.clone(),
        weight: of.group.weight.get(),
        effective_weight: f64::from(of.weight.in_256ths()) / 256.0,
        min_iops: of.group.reservation.iops(),
        min_bandwidth: of.group.reservation.bytes(),
        members: of.members,
        active: of.active,
        tenants: tenants.iter().map(|name| (*name).to_owned()).collect(),
        caps: of.caps.as_ref().map(super::caps::view),
        promised: phrases([least(of.group.reservation, None), of.caps.as_ref().and_then(most)]),
        latency: target.map(latency::describe),
    }
}

/// Joins the promises that exist to one text; `None` if there are none.
fn phrases<const N: usize>(all: [Option<String>; N]) -> Option<String> {
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" · "))
}

/// A reservation and its state.
fn least(reservation: fairq_core::Reservation, state: Option<ReservationState>) -> Option<String> {
    let state = state.map_or_else(String::new, |state| format!(" {}", word(state)));
    (!reservation.is_none()).then(|| format!("{}{state}", Described(reservation)))
}

/// Caps, and the number of requests that wait for them.
fn most(of: &CapStats) -> Option<String> {
    let waiting = match of.waiting {
        0 => String::new(),
        waiting => format!("{waiting} requests wait for a cap"),
    };
    let own = (!of.caps.is_empty()).then(|| caps::describe(&of.caps));
    phrases([own, Some(waiting).filter(|text| !text.is_empty())])
}

/// A tenant's group, reservation and caps, in a few words.
pub(super) fn promised(now: &Status, member: &Member) -> Option<String> {
    let share = now.share_of(member);
    let group = member.tenant.settings.group.as_ref().map(|group| match share {
        Some(share) => format!("{group}, effective weight {}", share.weight.get()),
        None => group.clone(),
    });
    let kept = share.and_then(|share| least(share.granted, Some(share.state)));
    phrases([group, kept, now.caps_of(member).and_then(most)])
}

/// The word for a state.
pub(super) fn word(state: ReservationState) -> &'static str {
    match state {
        ReservationState::Idle => "idle",
        ReservationState::Met => "met",
        ReservationState::Demand => "asks for less",
        ReservationState::Shrunk => "shrunk",
        ReservationState::Missed => "missed",
    }
}

/// A tenant's effective weight and reservation.
pub(super) fn view(stats: &ShareStats) -> view::Place {
    let ShareStats { share, weight, granted, state, requests, bytes, ahead, is_active } = stats;
    view::Place {
        effective_weight: f64::from(weight.in_256ths()) / 256.0,
        active: *is_active,
        min_iops: share.reservation.iops(),
        min_bandwidth: share.reservation.bytes(),
        granted_iops: granted.iops(),
        granted_bandwidth: granted.bytes(),
        reservation: word(*state).into(),
        iops: *requests,
        bytes_per_s: *bytes,
        ahead: *ahead,
    }
}

/// The reserved part of each store's device.
pub(super) fn reserved(now: &Status) -> Vec<view::Reserved> {
    let stores = now.stores.iter().filter_map(|store| {
        let reserved = store.policy.reserved.as_ref()?;
        Some(view::Reserved {
            store: store.name.clone(),
            asked: reserved.asked_ppm as f64 / 1e6,
            granted: reserved.granted_ppm as f64 / 1e6,
            device_iops: reserved.requests_per_s,
            device_bytes_per_s: reserved.bytes_per_s,
        })
    });
    stores.collect()
}
