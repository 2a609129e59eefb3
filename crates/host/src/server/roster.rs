//! Who is being served: the tenants, their flows and their exports, changed while connections come and go.
//!
//! A handshake looks at one [`Roster`] from its beginning to its end; a change makes a new one. A tenant's number, by which
//! statistics are kept, is its flow's slot: the policy gives that to another flow only when no shard holds a request of
//! the old one, so nothing of the old tenant can be counted for the new one.

use fairq_core::FlowId;

use crate::nbd::exports::{Export, Exports, ExportsError};
use crate::nbd::proto::BlockSizes;

use super::Tenant;

/// A tenant that is being served.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who.
    pub tenant: Tenant,
    /// Its flow.
    pub flow: FlowId,
}

impl Member {
    /// Its number in statistics.
    pub fn number(&self) -> u16 {
        self.flow.slot() as u16
    }
}

/// The tenants at one time; the first is the export that clients get who name none.
#[derive(Clone, Debug)]
pub struct Roster {
    members: Vec<Member>,
    exports: Exports,
}

impl Roster {
    /// These tenants, on a device that prefers transfers of `preferred` bytes.
    pub(super) fn new(members: Vec<Member>, preferred: u32) -> Result<Roster, ExportsError> {
        let export = |Member { tenant, .. }: &Member| Export {
            description: tenant.description.clone(),
            read_only: tenant.read_only,
            allowed_identity: tenant.identity.clone(),
            blocks: BlockSizes { preferred, ..BlockSizes::default() },
            ..Export::new(&tenant.name, tenant.size)
        };
        let list: Vec<Export> = members.iter().map(export).collect();
        let default = if list.is_empty() { None } else { Some(0) };
        let exports = Exports::new(list, default)?;
        Ok(Roster { members, exports })
    }

    /// The tenants, in the order in which they came.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The tenant of this name.
    pub fn find(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.tenant.name == name)
    }

    /// What clients see; an export's index is its member's.
    pub(super) fn exports(&self) -> &Exports {
        &self.exports
    }
}
