//! The bound of the memory of all connections' buffers together.
//!
//! **Problem.** A connection's buffers are bounded, and so is the number of connections; their
//! product is more than most machines have. **Model.** A region of a connection's memory asks the
//! budget before it uses pages that it has not used, and gives pages back when its connection is
//! idle, or, while memory is short, as soon as none of its buffers is out. A region that gets
//! nothing says that it is full: the request waits, and its client with it. At the bound no new
//! connection is admitted. A tenant has at most half of it, so that one whose clients do not read
//! their answers leaves the other half to the others.
//!
//! **No deadlock.** One connection of each tenant may go beyond the budget for one request, if it
//! has no other buffer out; it then hands out nothing more until that request is over, and gives
//! all back. So each request is served in the end, if its tenant's clients read their answers.
//!
//! *Memory ordering.* Counters of bytes and flags that guard no data: relaxed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the [module's text](self).
#[derive(Debug)]
pub struct Budget {
    most: u64,
    used: AtomicU64,
    tenants: Box<[Part]>,
}

/// One tenant's part.
#[derive(Debug, Default)]
struct Part {
    used: AtomicU64,
    is_overdrawn: AtomicBool,
}

impl Budget {
    /// The memory of a connection without the buffers of its requests, in bytes, rounded up:
    /// received bytes that are not consumed, the state of TLS and its output for a part of a reply,
    /// and the places of its requests.
    pub const CONNECTION: u64 = 1 << 20;

    /// Of so many bytes, for so many tenants.
    pub fn new(most: u64, tenants: usize) -> Budget {
        let tenants = (0..tenants).map(|_| Part::default()).collect();
        Budget { most, used: AtomicU64::new(0), tenants }
    }

    /// The most bytes, but for one request of a tenant.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes for a tenant; false, and nothing taken, if that is too much.
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

    /// Gives bytes back that were taken.
    pub fn give(&self, tenant: u16, bytes: u64) {
        self.part(tenant).used.fetch_sub(bytes, Ordering::Relaxed);
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(used >= bytes, "more is given than was taken");
    }

    /// Whether little is left for a tenant: less than a quarter of its half.
    pub fn is_short(&self, tenant: u16) -> bool {
        let margin = self.most / 8;
        self.used() > self.most - margin
            || self.part(tenant).used.load(Ordering::Relaxed) > self.most / 2 - margin
    }

    /// Takes the one request that may go beyond; [`Self::settle`] gives it back.
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
