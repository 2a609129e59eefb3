//! A connection's place among those that there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::io::budget::Budget;

/// A connection's place; another may have it when it is dropped.
pub struct Place {
    tenant: Arc<AtomicUsize>,
    budget: Arc<Budget>,
    number: u16,
    /// As long as no shard counts the connection.
    shard: Option<Arc<AtomicUsize>>,
}

impl Place {
    /// A place that is counted in `tenant`, in `shard`, and in the budget under the tenant's
    /// number.
    pub(crate) fn new(
        tenant: Arc<AtomicUsize>,
        budget: Arc<Budget>,
        number: u16,
        shard: Option<Arc<AtomicUsize>>,
    ) -> Place {
        Place { tenant, budget, number, shard }
    }

    /// The shard counts the connection from now on.
    pub(crate) fn handed_over(mut self) -> Place {
        self.shard = None;
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tenant.fetch_sub(1, Ordering::Relaxed);
        self.budget.give(self.number, Budget::CONNECTION);
        if let Some(shard) = &self.shard {
            shard.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
