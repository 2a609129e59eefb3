//! Waiting until no request reaches beyond the new end of a range that has shrunk.
//!
//! Front ends take no more requests there; those that a shard has are carried out. Another tenant
//! may have the bytes when each shard has said that none of its requests reaches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::Command;

/// The bytes from which a tenant's requests are to be gone.
pub struct Cut {
    tenant: u16,
    file: u16,
    end: u64,
    /// Shards that may have such requests.
    left: Arc<AtomicUsize>,
}

impl Cut {
    /// No request of this tenant's may reach beyond `end` in a file; `left` counts the shards.
    pub fn new(tenant: u16, file: u16, end: u64, left: Arc<AtomicUsize>) -> Cut {
        Cut { tenant, file, end, left }
    }

    /// Whether a live request is beyond it.
    pub(super) fn is_crossed_by(&self, tenant: u16, command: &Command) -> bool {
        let end = command.offset.saturating_add(u64::from(command.length));
        tenant == self.tenant && command.file == self.file && end > self.end
    }

    /// Counts this shard as one that has none.
    pub(super) fn end(self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}
