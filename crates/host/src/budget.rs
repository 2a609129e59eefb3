//! How much memory all connections' buffers may have together.
//!
//! **Problem.** A connection's buffers are bounded, and so is the number of connections; their
//! product is more than most machines have. **Model.** A [`Region`](crate::memory::Region) asks the
//! budget before it uses pages that it has not used, and gives pages back when its connection is
//! idle, or, while memory is short, as soon as none of its buffers is out. A region that gets
//! nothing says that it is full: the request waits, and its client with it. At the bound no new
//! connection is admitted.
//!
//! **No deadlock.** One region at a time, of all, may go beyond the budget for one request, if it
//! has no other buffer out; it then hands out nothing more until that request is over, and gives
//! all back. So each request is served in the end, and the bound is exceeded by one request at the
//! most.
//!
//! *Memory ordering.* Two counters of bytes and a flag that guard no data: relaxed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the [module's text](self).
#[derive(Debug)]
pub struct Budget {
    most: u64,
    used: AtomicU64,
    is_overdrawn: AtomicBool,
}

impl Budget {
    /// What a connection has beside the buffers of its requests, in bytes, rounded up: what was
    /// received and not consumed, the state of TLS and what it made of a part of a reply, and the
    /// places of its requests.
    pub const CONNECTION: u64 = 1 << 20;

    /// Of so many bytes.
    pub fn new(most: u64) -> Budget {
        Budget { most, used: AtomicU64::new(0), is_overdrawn: AtomicBool::new(false) }
    }

    /// The most bytes, but for one request.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes so many bytes; false, and nothing taken, if that is too much.
    pub fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives bytes back that were taken.
    pub fn give(&self, bytes: u64) {
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(used >= bytes, "more is given than was taken");
    }

    /// Whether little is left: less than an eighth.
    pub fn is_short(&self) -> bool {
        self.used() > self.most - self.most / 8
    }

    /// Takes the one request that may go beyond; [`Self::settle`] gives it back.
    pub(crate) fn overdraw(&self) -> bool {
        !self.is_overdrawn.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn settle(&self) {
        self.is_overdrawn.store(false, Ordering::Relaxed);
    }
}
