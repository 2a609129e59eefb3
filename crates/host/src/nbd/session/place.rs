//! A connection's place: its share of the bounded number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::io::budget::Budget;

/// The connections of a tenant, by shard.
#[derive(Debug)]
pub struct Connections {
    all: AtomicUsize,
    on: Box<[AtomicUsize]>,
}

impl Connections {
    /// No connections yet, on `shards` shards.
    pub(crate) fn on(shards: usize) -> Arc<Connections> {
        let on = (0..shards).map(|_| AtomicUsize::new(0)).collect();
        Arc::new(Connections { all: AtomicUsize::new(0), on })
    }

    /// A new counter without connections, for the same number of shards.
    pub(crate) fn anew(&self) -> Arc<Connections> {
        Connections::on(self.on.len())
    }

    /// The number of connections.
    pub fn count(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// The number of connections on a shard.
    pub(crate) fn count_on(&self, shard: usize) -> usize {
        self.on[shard].load(Ordering::Relaxed)
    }

    fn come(&self, shard: usize) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.on[shard].fetch_add(1, Ordering::Relaxed);
    }

    fn go(&self, shard: usize) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.on[shard].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's place, which becomes free when this is dropped.
pub struct Place {
    tenant: Arc<Connections>,
    on: usize,
    budget: Arc<Budget>,
    number: u16,
    /// The shard's count of connections, until the shard itself counts this one.
    shard: Option<Arc<AtomicUsize>>,
}

impl Place {
    /// A place on a shard. It is counted in `tenant`, and has already been counted in the budget
    /// under the tenant's number and in the shard's count.
    pub(crate) fn new(
        tenant: Arc<Connections>,
        on: usize,
        budget: Arc<Budget>,
        number: u16,
        shard: Arc<AtomicUsize>,
    ) -> Place {
        tenant.come(on);
        Place { tenant, on, budget, number, shard: Some(shard) }
    }

    /// Passes the place to the shard, which counts the connection from now on.
    pub(crate) fn handed_over(mut self) -> Place {
        self.shard = None;
        self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tenant.go(self.on);
        self.budget.give(self.number, Budget::CONNECTION);
        if let Some(shard) = &self.shard {
            shard.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
