//! The tenants that are served, their flows and their exports; the list changes while connections
//! are open.
//!
//! A handshake uses one [`TenantList`] from its beginning to its end, and each change makes a new
//! list. A tenant's number, the index of its statistics, is its flow's slot. The policy gives the
//! slot to another flow only when no shard holds a request of the old one, so no request of the old
//! tenant is counted for the new one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairq_core::FlowId;

use crate::nbd::session::exports::{Export, Exports, ExportsError};
use crate::nbd::session::place::Connections;
use crate::nbd::wire::proto::BlockSizes;
use crate::shard::volume::Volume;
use crate::shard::wipe::Wiping;

use super::{DefaultTenant, Tenant};

/// A tenant that is being served.
#[derive(Clone, Debug)]
pub struct Member {
    /// The tenant.
    pub tenant: Tenant,
    /// Its flow.
    pub flow: FlowId,
    /// The store of its file; weights apply among the tenants of one store.
    pub store: u16,
    /// Set while no client may open it, because a removed tenant's requests may still use its range
    /// or the range is being zeroed.
    pub preparing: Option<Arc<Wiping>>,
    /// Its connections, including those whose handshake is about to complete.
    pub connections: Arc<Connections>,
    /// Its previous sizes, each with the connections whose clients still know that size.
    pub outdated: Vec<(u64, Arc<Connections>)>,
    /// Set while its range is being resized.
    pub resizing: Option<Resizing>,
}

impl Member {
    /// A member whose range is ready, without connections.
    pub(super) fn new(
        tenant: Tenant,
        flow: FlowId,
        store: u16,
        connections: Arc<Connections>,
    ) -> Member {
        let (preparing, outdated, resizing) = (None, Vec::new(), None);
        Member { tenant, flow, store, preparing, connections, outdated, resizing }
    }

    /// The number of its connections, with the present size or a previous one.
    pub fn all_connections(&self) -> usize {
        let outdated = self.outdated.iter().map(|(_, count)| count);
        outdated.chain([&self.connections]).map(|one| one.count()).sum()
    }

    /// Its connections whose clients know a previous size: that size in bytes, and their number.
    pub fn outdated_connections(&self) -> Vec<(u64, usize)> {
        let counts = self.outdated.iter().map(|(size, count)| (*size, count.count()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// The part of the file that is to be zeroed for it (as a `Tenant` with that range), and the
    /// progress of the zeroing.
    pub(super) fn to_prepare(&self) -> Option<(Tenant, Arc<Wiping>)> {
        if let Some(wiping) = &self.preparing {
            return Some((self.tenant.clone(), wiping.clone()));
        }
        let Resizing { to, wiping, .. } = self.resizing.as_ref()?;
        let Tenant { base, size, .. } = self.tenant;
        let added =
            Tenant { base: base + size, size: to.saturating_sub(size), ..self.tenant.clone() };
        Some((added, wiping.clone()?))
    }

    /// Records that the clients of its connections use a previous size.
    pub(super) fn outdate(&mut self) {
        self.outdated.retain(|(_, count)| count.count() > 0);
        let connections = self.connections.anew();
        let connections = std::mem::replace(&mut self.connections, connections);
        self.outdated.push((self.tenant.size, connections));
    }

    /// Its number in statistics.
    pub fn number(&self) -> u16 {
        self.flow.slot() as u16
    }

    /// Its range, for a front end with requests in multiples of `block` bytes.
    pub(super) fn volume(&self, block: u32) -> Volume {
        let &Tenant { file, base, size, .. } = &self.tenant;
        let read_only = self.tenant.settings.read_only;
        Volume { tenant: self.number(), flow: self.flow, file, base, size, read_only, block }
    }
}

/// A change of a range's size that is in progress.
#[derive(Clone, Debug)]
pub struct Resizing {
    /// The size that the range is to have.
    pub to: u64,
    /// The part that is being zeroed, if it grows.
    pub wiping: Option<Arc<Wiping>>,
    /// The number of shards that may have requests beyond the new end, if the range shrinks.
    pub(super) cut: Option<Arc<AtomicUsize>>,
}

impl Resizing {
    /// 0 if the new size can take effect, otherwise the errno of the failure; `None` while the
    /// change is in progress.
    pub(super) fn outcome(&self) -> Option<i32> {
        let is_cut = self.cut.as_ref().is_none_or(|left| left.load(Ordering::Acquire) == 0);
        match &self.wiping {
            Some(wiping) => wiping.outcome(),
            None => is_cut.then_some(0),
        }
    }
}

/// The tenants at one moment.
#[derive(Clone, Debug)]
pub struct TenantList {
    members: Vec<Arc<Member>>,
    /// The index of each name among the members.
    places: Arc<HashMap<String, usize>>,
    exports: Exports,
    /// The index of the member of each export.
    open: Arc<[usize]>,
    /// The members that may not be opened yet, and those whose size is being changed.
    changing: Arc<[usize]>,
}

impl TenantList {
    /// A list of these tenants, on a device that prefers transfers of `preferred` bytes.
    ///
    /// A client that names no export gets `default`. It never gets an arbitrary tenant, because
    /// after a tenant's removal it would then write to another tenant's disk.
    pub(super) fn new(
        members: Vec<Arc<Member>>,
        preferred: u32,
        default: Option<&DefaultTenant>,
    ) -> Result<TenantList, ExportsError> {
        let export = |Member { tenant, .. }: &Member| Export {
            description: tenant.settings.description.clone(),
            read_only: tenant.settings.read_only,
            allowed_identity: tenant.settings.identity.clone(),
            allowed_users: tenant.settings.users.clone(),
            blocks: BlockSizes { preferred, ..BlockSizes::default() },
            ..Export::new(&tenant.name, tenant.size)
        };
        let is_open = |member: &usize| members[*member].preparing.is_none();
        let is_changing = |member: &usize| !is_open(member) || members[*member].resizing.is_some();
        let open: Vec<usize> = (0..members.len()).filter(is_open).collect();
        let changing: Vec<usize> = (0..members.len()).filter(is_changing).collect();
        let list: Vec<Export> = open.iter().map(|&member| export(&members[member])).collect();
        let default = default.filter(|default| default.is_named || members.len() == 1);
        let default = default.and_then(|default| {
            open.iter().position(|&member| members[member].tenant.name == default.name)
        });
        let exports = Exports::new(list, default)?;
        let name = |(place, member): (usize, &Arc<Member>)| (member.tenant.name.clone(), place);
        let places = Arc::new(members.iter().enumerate().map(name).collect());
        let (open, changing) = (open.into(), changing.into());
        Ok(TenantList { members, places, exports, open, changing })
    }

    /// This list with changed settings that the exports do not contain; the tenants and their
    /// indices are the same. This costs a reference to each member and no new exports.
    pub(super) fn with(&self, members: Vec<Arc<Member>>) -> TenantList {
        debug_assert_eq!(self.members.len(), members.len());
        TenantList {
            members,
            places: self.places.clone(),
            exports: self.exports.clone(),
            open: self.open.clone(),
            changing: self.changing.clone(),
        }
    }

    /// The tenants, in the order of their addition.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Member> + Clone {
        self.members.iter().map(|member| &**member)
    }

    /// A copy of the members for changes, which shares the members that stay unchanged.
    pub(super) fn to_members(&self) -> Vec<Arc<Member>> {
        self.members.clone()
    }

    /// The tenant of this name.
    pub fn find(&self, name: &str) -> Option<&Member> {
        self.place_of(name).map(|place| &*self.members[place])
    }

    /// The index of the tenant of this name among the members.
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The owner of an export.
    pub(super) fn member_of(&self, export: usize) -> &Member {
        &self.members[self.open[export]]
    }

    /// The tenants that may not be opened yet, and those whose size is being changed.
    pub(super) fn changing(&self) -> impl Iterator<Item = &Member> {
        self.changing.iter().map(|&member| &*self.members[member])
    }

    /// The exports that clients see: those that may be opened.
    pub(super) fn exports(&self) -> &Exports {
        &self.exports
    }
}
