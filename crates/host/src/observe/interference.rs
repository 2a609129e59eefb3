//! Interference: the tenants whose requests were served while a tenant's request waited.
//!
//! **Problem.** The operator of a slow tenant needs to know which tenants delay it. An exact
//! account would need, for each request, the service of every other tenant during the request's
//! lifetime.
//!
//! **Model.** A few requests are sampled. Each shard observes at most one request at a time, and
//! begins an observation at most once per [`PERIOD_NS`], so the cost does not depend on the number
//! of requests. When the request arrives, the bytes served to each tenant so far are recorded, over
//! all shards. When it ends, its latency is divided among the tenants by the bytes served to each
//! during its lifetime. A tenant's own part is the delay that its own queue causes.
//!
//! **Bounds.** All tenants with numbers from [`GROUPS`]` - 1` on share one entry, so a shard's
//! matrix has 32 KiB.
//!
//! *Memory ordering.* The service of each shard is a row of counters that only this shard writes.
//! Other shards read the rows for their samples with relaxed ordering: a sample may miss requests
//! that end in the same moment, and no other data depend on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use fairq_core::Tag;

/// The number of groups of tenants; the last one stands for all other tenants.
pub const GROUPS: usize = 64;
/// The time between the beginnings of two observations of a shard, in nanoseconds, for up to eight
/// shards; it increases in proportion for more shards.
pub const PERIOD_NS: u64 = 1_000_000;
/// The number of bytes as which a request without data is counted.
const DATALESS_BYTES: u64 = 4096;

/// Nanoseconds of delay that one tenant (row) suffered while others (columns) were served, over the
/// observed requests.
pub type Matrix = Box<[[u64; GROUPS]; GROUPS]>;

/// A matrix of zeroes.
pub fn empty_matrix() -> Matrix {
    Box::new([[0; GROUPS]; GROUPS])
}

/// The group in which a tenant is counted.
#[inline]
pub fn group(tenant: u16) -> usize {
    usize::from(tenant).min(GROUPS - 1)
}

/// The bytes that each shard has served to each group. The last row has the bytes written from the
/// page cache to the disk: a write to the cache counts as served when its data are on the disk.
pub struct Served {
    shards: Box<[CachePadded<[AtomicU64; GROUPS]>]>,
}

impl Served {
    /// Zero counters for `shards` shards.
    pub fn new(shards: usize) -> Served {
        let none = |_| CachePadded::new([const { AtomicU64::new(0) }; GROUPS]);
        Served { shards: (0..=shards).map(none).collect() }
    }

    /// Counts bytes of a tenant that were written from the page cache to the disk. Callers must be
    /// serialised.
    pub fn written(&self, tenant: u16, bytes: u64) {
        self.add(self.shards.len() - 1, group(tenant), bytes);
    }

    #[inline]
    fn add(&self, shard: usize, group: usize, bytes: u64) {
        let counter = &self.shards[shard][group];
        // Each row has one writer at a time.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
    }

    fn sum(&self, into: &mut [u64; GROUPS]) {
        into.fill(0);
        for shard in &self.shards {
            for (sum, counter) in into.iter_mut().zip(shard.iter()) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
    }
}

/// A shard's observations.
pub struct Observed {
    served: Arc<Served>,
    shard: usize,
    period_ns: u64,
    /// The time from which the next observation may begin.
    next_ns: u64,
    /// The request under observation.
    tag: Option<Tag>,
    /// The bytes that had been served when it arrived.
    before: Box<[u64; GROUPS]>,
    matrix: Matrix,
}

impl Observed {
    /// The observations of a shard.
    pub fn new(served: Arc<Served>, shard: usize) -> Observed {
        let period_ns = PERIOD_NS * (served.shards.len() - 1).div_ceil(8) as u64;
        let before = Box::new([0; GROUPS]);
        Observed { served, shard, period_ns, next_ns: 0, tag: None, before, matrix: empty_matrix() }
    }

    /// Observes a request that arrives, if an observation is due.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64, tag: Tag) {
        if now_ns >= self.next_ns && self.tag.is_none() {
            self.next_ns = now_ns + self.period_ns;
            self.tag = Some(tag);
            self.served.sum(&mut self.before);
        }
    }

    /// Counts a request that has ended, and finishes its observation.
    #[inline]
    pub fn ended(&mut self, tag: Tag, tenant: u16, bytes: u64, latency_ns: u64) {
        // Its own bytes are counted first: they are its own part of its delay, and the divisor of
        // the delay cannot be 0.
        self.served.add(self.shard, group(tenant), bytes.max(DATALESS_BYTES));
        if self.tag == Some(tag) {
            self.attribute(group(tenant), latency_ns);
        }
    }

    /// Drops the observation of a cancelled request.
    pub fn cancelled(&mut self, tag: Tag) {
        self.tag = self.tag.filter(|observed| *observed != tag);
    }

    #[cold]
    fn attribute(&mut self, victim: usize, latency_ns: u64) {
        self.tag = None;
        let mut meanwhile = [0; GROUPS];
        self.served.sum(&mut meanwhile);
        meanwhile
            .iter_mut()
            .zip(self.before.iter())
            .for_each(|(now, before)| *now = now.wrapping_sub(*before));
        let total: u64 = meanwhile.iter().sum();
        for (suffered, bytes) in self.matrix[victim].iter_mut().zip(meanwhile) {
            *suffered +=
                (u128::from(latency_ns) * u128::from(bytes) / u128::from(total.max(1))) as u64;
        }
    }

    /// Clears a tenant's group, because the tenant's number now belongs to another tenant.
    pub fn forget(&mut self, tenant: u16) {
        let group = group(tenant);
        // The last group belongs to many tenants, and is not cleared for one of them.
        if group < GROUPS - 1 {
            self.matrix[group].fill(0);
            self.matrix.iter_mut().for_each(|row| row[group] = 0);
        }
    }

    /// The observations since the start.
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Adds the matrix of another shard.
    pub fn add(&mut self, other: &Matrix) {
        let cells = self.matrix.iter_mut().flatten().zip(other.iter().flatten());
        cells.for_each(|(own, other)| *own += other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_divided_by_what_others_got_meanwhile() {
        let served = Arc::new(Served::new(2));
        let [mut here, mut there] = [0, 1].map(|shard| Observed::new(served.clone(), shard));
        there.ended(Tag(9), 2, 1 << 20, 1);
        here.arrived(5, Tag(0));
        here.arrived(6, Tag(1));
        there.ended(Tag(8), 1, 12_288, 1);
        here.ended(Tag(1), 70, 4096, 1000);
        here.ended(Tag(0), 0, 0, 5000);
        let row = here.matrix()[0];
        assert_eq!((row[0], row[1], row[2], row[GROUPS - 1]), (1000, 3000, 0, 1000));
        assert_eq!(
            here.matrix()[GROUPS - 1].iter().sum::<u64>(),
            0,
            "one request at a time is observed"
        );
        here.arrived(7, Tag(3));
        here.ended(Tag(3), 0, 4096, 700);
        assert_eq!(here.matrix()[0][0], 1000, "and one per period");
        here.arrived(5 + PERIOD_NS, Tag(3));
        here.ended(Tag(3), 1, 4096, 700);
        assert_eq!(here.matrix()[1][1], 700);
        here.forget(1);
        assert_eq!((here.matrix()[1][1], here.matrix()[0][1], here.matrix()[0][0]), (0, 0, 1000));
    }
}
