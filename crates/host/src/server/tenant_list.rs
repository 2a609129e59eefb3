//! What is being served: the tenants, their flows and their exports, changed while connections come
//! and go.
//!
//! A handshake looks at one [`TenantList`] from its beginning to its end; a change makes a new one.
//! A tenant's number, by which statistics are kept, is its flow's slot: the policy gives that to
//! another flow only when no shard holds a request of the old one, so nothing of the old tenant can
//! be counted for the new one.

use std::collections::HashMap;
use std::sync::Arc;

use fairq_core::FlowId;

use crate::nbd::session::exports::{Export, Exports, ExportsError};
use crate::nbd::session::place::Connections;
use crate::nbd::wire::proto::BlockSizes;
use crate::shard::volume::Volume;
use crate::shard::wipe::Wiping;

use super::Tenant;

/// A tenant that is being served.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who.
    pub tenant: Tenant,
    /// Its flow.
    pub flow: FlowId,
    /// The store that its file is in; weights compare the tenants of a store.
    pub store: u16,
    /// As long as nobody may open it: its range is still another's, or is being zeroed.
    pub preparing: Option<Arc<Wiping>>,
    /// Its connections, those included whose handshake is about to end.
    pub connections: Arc<Connections>,
}

impl Member {
    /// Its number in statistics.
    pub fn number(&self) -> u16 {
        self.flow.slot() as u16
    }

    /// Its range, for a front end whose requests are multiples of `block` bytes.
    pub(super) fn volume(&self, block: u32) -> Volume {
        let &Tenant { file, base, size, read_only, .. } = &self.tenant;
        Volume { tenant: self.number(), flow: self.flow, file, base, size, read_only, block }
    }
}

/// The tenants at one time; the first is the export that clients get who name none.
#[derive(Clone, Debug)]
pub struct TenantList {
    members: Vec<Member>,
    /// The place of each name among the members.
    places: Arc<HashMap<String, usize>>,
    exports: Exports,
    /// The member of each export.
    open: Arc<[usize]>,
    /// The members that may not be opened yet.
    preparing: Arc<[usize]>,
}

impl TenantList {
    /// These tenants, on a device that prefers transfers of `preferred` bytes.
    pub(super) fn new(members: Vec<Member>, preferred: u32) -> Result<TenantList, ExportsError> {
        let export = |Member { tenant, .. }: &Member| Export {
            description: tenant.description.clone(),
            read_only: tenant.read_only,
            allowed_identity: tenant.identity.clone(),
            allowed_users: tenant.users.clone(),
            blocks: BlockSizes { preferred, ..BlockSizes::default() },
            ..Export::new(&tenant.name, tenant.size)
        };
        let (open, preparing): (Vec<usize>, Vec<usize>) =
            (0..members.len()).partition(|&member| members[member].preparing.is_none());
        let list: Vec<Export> = open.iter().map(|&member| export(&members[member])).collect();
        let default = if list.is_empty() { None } else { Some(0) };
        let exports = Exports::new(list, default)?;
        let name = |(place, member): (usize, &Member)| (member.tenant.name.clone(), place);
        let places = Arc::new(members.iter().enumerate().map(name).collect());
        let (open, preparing) = (open.into(), preparing.into());
        Ok(TenantList { members, places, exports, open, preparing })
    }

    /// The same tenants at the same places, with other settings that their exports do not show.
    /// This costs a copy of the members and no new exports.
    pub(super) fn with(&self, members: Vec<Member>) -> TenantList {
        debug_assert_eq!(self.members.len(), members.len());
        TenantList {
            members,
            places: self.places.clone(),
            exports: self.exports.clone(),
            open: self.open.clone(),
            preparing: self.preparing.clone(),
        }
    }

    /// The tenants, in the order in which they came.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The tenant of this name.
    pub fn find(&self, name: &str) -> Option<&Member> {
        self.place_of(name).map(|place| &self.members[place])
    }

    /// The place of the tenant of this name among the members.
    pub(super) fn place_of(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// Whose an export is.
    pub(super) fn member_of(&self, export: usize) -> &Member {
        &self.members[self.open[export]]
    }

    /// The tenants that may not be opened yet.
    pub(super) fn preparing(&self) -> impl Iterator<Item = &Member> {
        self.preparing.iter().map(|&member| &self.members[member])
    }

    /// What clients see: those that may be opened.
    pub(super) fn exports(&self) -> &Exports {
        &self.exports
    }
}
