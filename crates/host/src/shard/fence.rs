//! Fences: later requests wait for the writes that an ended client has left in flight.
//!
//! **Problem.** A client that ends, by a hang-up, a disconnect or a half-close, may leave writes in
//! the scheduler or on the device. If its successor writes the same bytes and flushes, an old write
//! must not overwrite the data that the flush has acknowledged.
//!
//! **Model.** Each tenant has a fence, which all shards and front ends share. A front end has a
//! [`Client`] for each of its clients. When a client ends ([`Client::end`]), it receives the
//! tenant's next number, and the front end puts its requests that change data into the fence
//! ([`Client::leave`]) until they are over. A request waits ([`Client::waits`]) while it overlaps a
//! request in the fence that belongs to a client with a lower number; a client that has not ended
//! counts as the highest number. So no two clients wait for each other. A flush overlaps all
//! requests, and so does the unread part of an ended client's stream, since its requests are not
//! known.
//!
//! **Example.** a sends a write of block 7, which waits for a cap, and disconnects. b connects,
//! possibly on another shard, and writes blocks 7 and 8. The write of block 8 is submitted at once;
//! the write of block 7, and a flush by b, are submitted when a's write is over.
//!
//! **Bounds.** While no ended client has requests in flight, the check costs one load of a word
//! that does not change. The front end bounds the wait ([`Client::patience_s`]).
//!
//! *Memory ordering.* `left` is increased before another thread can learn of the client's end
//! through a message or a socket. A shard adds itself to the waiting set under the lock under which
//! it has found the overlapping request, and that request is removed under the same lock, so the
//! wake-up is not lost. `changes` is stored (Release) between the removal and the wake-up, and read
//! (Acquire) by the woken shard.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairq_core::{PortId, PortSet};

use crate::io::wakers::Wakers;

/// The default of the longest wait of a request, in seconds; its front end then fails it. The
/// default is longer than a kernel's command timeout of 30 s and the retry that follows it.
pub const PATIENCE_S: u32 = 60;

/// The fences of all tenants of one run.
pub struct Fences {
    tenants: Box<[Fence]>,
    patience_s: AtomicU32,
    wakers: Arc<Wakers>,
}

#[derive(Default)]
struct Fence {
    /// The number of entries in `inner`; nearly always 0.
    left: AtomicUsize,
    /// The number of times that entries were removed.
    changes: AtomicU64,
    /// The number of requests that have waited.
    waited: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The number of clients that have ended.
    ended: u64,
    left: Vec<Left>,
    /// Shards with waiting requests.
    waiting: PortSet,
}

/// The counts of a tenant's fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FenceStats {
    /// Writes of ended connections that are still in flight.
    pub left: usize,
    /// Requests that have waited for such writes.
    pub waited: u64,
}

/// A request of a client that has ended.
struct Left {
    client: u64,
    key: u32,
    reach: Reach,
}

/// The bytes that a request affects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// All bytes of the tenant.
    All,
    /// A range of a file.
    Bytes {
        /// The number of the device's file.
        file: u16,
        /// Start of the range, in bytes.
        start: u64,
        /// End of the range, in bytes.
        end: u64,
    },
}

impl Reach {
    fn overlaps(self, other: Reach) -> bool {
        match (self, other) {
            (Reach::All, _) | (_, Reach::All) => true,
            (
                Reach::Bytes { file, start, end },
                Reach::Bytes { file: other_file, start: other_start, end: other_end },
            ) => file == other_file && start < other_end && other_start < end,
        }
    }
}

impl Fences {
    /// The fences of `tenants` tenants, for the shards that `wakers` wakes.
    pub fn new(tenants: usize, wakers: Arc<Wakers>) -> Fences {
        let patience_s = AtomicU32::new(PATIENCE_S);
        Fences { tenants: (0..tenants).map(|_| Fence::default()).collect(), patience_s, wakers }
    }

    /// Sets the longest wait of requests, which is rounded up to whole seconds.
    pub fn set_patience(&self, patience: Duration) {
        let seconds = patience.as_nanos().div_ceil(1_000_000_000);
        self.patience_s.store(seconds.try_into().unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// The counts of the tenants whose fence has an entry or has made a request wait.
    pub fn stats(&self) -> impl Iterator<Item = (u16, FenceStats)> + '_ {
        let stats = self.tenants.iter().map(|fence| FenceStats {
            left: fence.left.load(Ordering::Relaxed),
            waited: fence.waited.load(Ordering::Relaxed),
        });
        (0..).zip(stats).filter(|(_, stats)| *stats != FenceStats::default())
    }

    /// Adds the number of a tenant's requests that have waited under the previous program.
    pub fn count_before(&self, tenant: u16, waited: u64) {
        if let Some(fence) = self.tenants.get(usize::from(tenant)) {
            fence.waited.fetch_add(waited, Ordering::Relaxed);
        }
    }

    /// Resets a fence, because its tenant's number now belongs to another tenant.
    pub fn forget(&self, tenant: u16) {
        if let Some(fence) = self.tenants.get(usize::from(tenant)) {
            fence.waited.store(0, Ordering::Relaxed);
        }
    }
}

impl Fence {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the entries for which `is_over` is true; returns the shards to wake.
    fn take_out(&self, is_over: impl Fn(&Left) -> bool) -> PortSet {
        let mut inner = self.inner();
        let before = inner.left.len();
        inner.left.retain(|left| !is_over(left));
        if inner.left.len() == before {
            return PortSet::EMPTY;
        }
        self.left.store(inner.left.len(), Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        std::mem::replace(&mut inner.waiting, PortSet::EMPTY)
    }
}

/// A front end's client of a tenant.
pub struct Client {
    fences: Arc<Fences>,
    tenant: u16,
    shard: PortId,
    /// Its number, once it has ended.
    number: Option<u64>,
    /// The value of [`Fence::changes`] at the last attempt to submit its waiting requests.
    seen: u64,
}

impl Client {
    /// A client of a tenant, served by the shard of port `shard`.
    pub fn new(fences: Arc<Fences>, tenant: u16, shard: PortId) -> Client {
        Client { fences, tenant, shard, number: None, seen: 0 }
    }

    #[inline]
    fn fence(&self) -> &Fence {
        &self.fences.tenants[usize::from(self.tenant)]
    }

    /// Ends the client. True at the first call: the front end must then leave its unfinished
    /// requests that change data in the fence.
    pub fn end(&mut self) -> bool {
        if self.has_ended() {
            return false;
        }
        let mut inner = self.fence().inner();
        inner.ended += 1;
        let number = inner.ended;
        drop(inner);
        self.number = Some(number);
        true
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.number.is_some()
    }

    /// Puts one of its requests in the fence; `key` is the front end's identifier of the request.
    pub fn leave(&self, key: u32, reach: Reach) {
        let Some(client) = self.number else { return };
        let fence = self.fence();
        let mut inner = fence.inner();
        inner.left.push(Left { client, key, reach });
        fence.left.store(inner.left.len(), Ordering::Release);
    }

    /// Removes a request from the fence, because it is over.
    pub fn over(&self, key: u32) {
        let Some(client) = self.number else { return };
        self.wake(self.fence().take_out(|left| left.client == client && left.key == key));
    }

    fn wake(&self, shards: PortSet) {
        self.fences.wakers.wake_all(shards);
    }

    /// The longest wait of one of its requests, in seconds.
    pub fn patience_s(&self) -> u32 {
        self.fences.patience_s.load(Ordering::Relaxed)
    }

    /// Whether its requests may have to wait.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        self.fence().left.load(Ordering::Acquire) != 0
    }

    /// Whether a request was removed from the fence since the last call; the client's waiting
    /// requests are then to be retried.
    pub fn has_news(&mut self) -> bool {
        let changes = self.fence().changes.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, changes) != changes
    }

    /// Counts a request that begins to wait.
    pub fn count(&self) {
        self.fence().waited.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a request has to wait. If so, its shard is woken when this may have changed.
    #[cold]
    pub fn waits(&self, reach: Reach) -> bool {
        let mut inner = self.fence().inner();
        let number = self.number.unwrap_or(u64::MAX);
        let waits =
            inner.left.iter().any(|left| left.client < number && left.reach.overlaps(reach));
        if waits {
            inner.waiting.insert(self.shard);
        }
        waits
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(client) = self.number {
            self.wake(self.fence().take_out(|left| left.client == client));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fences(shards: usize) -> (Arc<Fences>, Arc<Wakers>) {
        let wakers = Arc::new(Wakers::new(shards).unwrap());
        (Arc::new(Fences::new(2, wakers.clone())), wakers)
    }

    fn bytes(start: u64, end: u64) -> Reach {
        Reach::Bytes { file: 0, start, end }
    }

    #[test]
    fn a_later_request_waits_for_what_it_overlaps_and_is_woken_when_that_is_over() {
        let (fences, wakers) = fences(2);
        let mut old = Client::new(fences.clone(), 0, PortId(0));
        let mut new = Client::new(fences.clone(), 0, PortId(1));
        let other = Client::new(fences.clone(), 1, PortId(1));
        assert!(!new.is_fenced() && old.end() && !old.end());
        old.leave(7, bytes(4096, 8192));
        assert!(new.is_fenced() && !other.is_fenced());
        assert!(!new.waits(bytes(8192, 9000)) && !old.waits(Reach::All));
        assert!(!new.waits(Reach::Bytes { file: 1, start: 4096, end: 8192 }));
        assert!(new.waits(bytes(8191, 9000)) && new.waits(Reach::All));
        old.over(8);
        assert!(!wakers.take_pending(1) && !new.has_news());
        old.over(7);
        assert!(wakers.take_pending(1) && new.has_news() && !new.is_fenced());
    }

    /// If a second request begins to wait, the first one still learns that the request for which it
    /// waits is over.
    #[test]
    fn no_news_are_lost_to_a_request_that_comes_in_between() {
        let (fences, _wakers) = fences(1);
        let mut old = Client::new(fences.clone(), 0, PortId(0));
        let mut new = Client::new(fences.clone(), 0, PortId(0));
        old.end();
        old.leave(1, bytes(0, 1));
        old.leave(2, bytes(1, 2));
        assert!(new.waits(bytes(0, 1)) && !new.has_news());
        old.over(1);
        assert!(new.waits(bytes(1, 2)) && new.has_news() && !new.has_news());
    }

    #[test]
    fn clients_that_have_ended_wait_in_the_order_of_their_ends() {
        let (fences, wakers) = fences(1);
        let [mut first, mut second] =
            [0, 0].map(|tenant| Client::new(fences.clone(), tenant, PortId(0)));
        second.end();
        first.end();
        second.leave(0, Reach::All);
        first.leave(0, bytes(0, 1));
        assert!(first.waits(bytes(0, 1)) && !second.waits(bytes(0, 1)));
        drop(second);
        assert!(wakers.take_pending(0) && !first.waits(bytes(0, 1)));
        first.count();
        let stats = |fences: &Fences| fences.stats().collect::<Vec<_>>();
        assert_eq!(stats(&fences), [(0, FenceStats { left: 1, waited: 1 })]);
        drop(first);
        fences.forget(0);
        assert_eq!(stats(&fences), []);
    }
}
