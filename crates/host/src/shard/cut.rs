//! Detects when no request reaches beyond the new end of a range that has shrunk.
//!
//! Front ends accept no more requests to the removed bytes, but shards still carry out accepted
//! ones. Another tenant may get the bytes when each shard has reported that none of its requests
//! reaches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::Command;

/// A part of a file that no request of a tenant may reach any longer.
pub struct Cut {
    tenant: u16,
    file: u16,
    end: u64,
    /// The number of shards that may have such requests.
    left: Arc<AtomicUsize>,
}

impl Cut {
    /// A cut of a tenant's range at `end` in a file; `left` is the number of shards that may still
    /// have requests beyond it.
    pub fn new(tenant: u16, file: u16, end: u64, left: Arc<AtomicUsize>) -> Cut {
        Cut { tenant, file, end, left }
    }

    /// Whether a live request reaches beyond the end.
    pub(super) fn is_crossed_by(&self, tenant: u16, command: &Command) -> bool {
        let end = command.offset.saturating_add(u64::from(command.length));
        tenant == self.tenant && command.file == self.file && end > self.end
    }

    /// Records that this shard has no such requests.
    pub(super) fn end(self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}
