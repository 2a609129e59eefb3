//! A common bound of the memory of all connections' buffers.
//!
//! **Problem.** A connection's buffers are bounded, and so is the number of connections, but the
//! product of the bounds is more memory than most machines have. **Model.** A connection's region
//! takes bytes from the budget before it uses new pages. It returns pages when its connection is
//! idle or, while memory is short, as soon as none of its buffers is in use. A region that gets no
//! bytes counts as full: the request waits, and so does its client. At the bound no new connection
//! is admitted. A tenant has at most half of the budget, so a tenant whose clients do not read
//! their answers leaves the other half to the other tenants.
//!
//! **No deadlock.** One connection of each tenant may exceed the budget for one request, if it has
//! no other buffer in use. It allocates no other buffer until that request is over, and then
//! returns all its memory. So each request is eventually served, if its tenant's clients read their
//! answers.
//!
//! *Memory ordering.* The counters and flags guard no data, so all accesses are relaxed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the [module's text](self).
#[derive(Debug)]
pub struct Budget {
    most: u64,
    used: AtomicU64,
    tenants: Box<[Part]>,
}

/// The bytes of one tenant.
#[derive(Debug, Default)]
struct Part {
    used: AtomicU64,
    is_overdrawn: AtomicBool,
}

impl Budget {
    /// The memory of a connection without the buffers of its requests, in bytes, rounded up:
    /// received bytes that are not consumed, the state of TLS and the records of a part of a reply,
    /// and the table of its requests.
    pub const CONNECTION: u64 = 1 << 20;

    /// A budget of `most` bytes, for `tenants` tenants.
    pub fn new(most: u64, tenants: usize) -> Budget {
        let tenants = (0..tenants).map(|_| Part::default()).collect();
        Budget { most, used: AtomicU64::new(0), tenants }
    }

    /// The bound in bytes; one request of each tenant may exceed it.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes bytes for a tenant; if they would exceed a bound, returns false and takes none.
    pub fn take(&self, tenant: u16, bytes: u64) -> bool {
        let part = &self.part(tenant).used;
        if !add(part, bytes, self.most / 2) {
            return false;
        }
        let is_taken = add(&self.used, bytes, self.most);
        if !is_taken {
            part.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Returns bytes that were taken.
    pub fn give(&self, tenant: u16, bytes: u64) {
        self.part(tenant).used.fetch_sub(bytes, Ordering::Relaxed);
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(used >= bytes, "more is given than was taken");
    }

    /// Whether little memory is left for a tenant: less than an eighth of the budget, either in the
    /// whole budget or in the tenant's half of it.
    pub fn is_short(&self, tenant: u16) -> bool {
        let margin = self.most / 8;
        self.used() > self.most - margin
            || self.part(tenant).used.load(Ordering::Relaxed) > self.most / 2 - margin
    }

    /// Permits one request of a tenant to exceed the budget, until [`Self::settle`]; false if
    /// another one already has this permission.
    pub(crate) fn overdraw(&self, tenant: u16) -> bool {
        !self.part(tenant).is_overdrawn.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn settle(&self, tenant: u16) {
        self.part(tenant).is_overdrawn.store(false, Ordering::Relaxed);
    }

    fn part(&self, tenant: u16) -> &Part {
        &self.tenants[usize::from(tenant)]
    }
}

/// Adds to a counter unless the sum is more than `most`.
fn add(counter: &AtomicU64, bytes: u64, most: u64) -> bool {
    let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}
