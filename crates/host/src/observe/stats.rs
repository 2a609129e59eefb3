//! The service of each tenant and the work of each shard. Each shard counts for itself, in plain
//! memory, and sends copies on request.
//!
//! A shard copies only the tenants whose counters have changed since the last report. The pool of
//! shards keeps the earlier values in a `Ledger` and adds up only the changed tenants. Reports are
//! shared, not copied, so the cost of a report depends on the number of changed tenants and not on
//! the number of all tenants.

use std::sync::Arc;

use fairq_core::Op;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::observe::cpu_time::CpuTime;
use crate::observe::interference::{Matrix, empty_matrix};

/// The largest latency that is recorded, in nanoseconds: 100 seconds. Longer latencies are recorded
/// as this value.
const MAX_LATENCY_NS: u64 = 100_000_000_000;
/// The value of `starved_since_ns` for a tenant that is not starved.
const NOT_STARVED: u64 = u64::MAX;

/// The times of a request's arrival, issue and completion, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The time of its arrival.
    pub arrived_ns: u64,
    /// The time when it was issued to the device.
    pub issued_ns: u64,
    /// The time of its completion.
    pub done_ns: u64,
}

impl Times {
    /// The time from arrival to completion, in nanoseconds.
    #[inline]
    pub fn latency_ns(&self) -> u64 {
        self.done_ns.saturating_sub(self.arrived_ns)
    }
}

/// The requests of a tenant's clients, by operation. Each request counts as one, whatever its
/// length; it is counted when its first order has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientRequests {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes, discards, zeroings, and requests that the server answers without the device.
    pub others: u64,
}

impl ClientRequests {
    /// Counts a request.
    #[inline]
    pub fn count(&mut self, op: Op) {
        match op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Flush | Op::Discard | Op::WriteZeroes => self.others += 1,
        }
    }

    fn each(&mut self, other: &ClientRequests, change: fn(u64, u64) -> u64) {
        self.reads = change(self.reads, other.reads);
        self.writes = change(self.writes, other.writes);
        self.others = change(self.others, other.others);
    }
}

/// The service of one tenant on one shard, or on several together: counters since the start. An
/// *operation* is the unit of the scheduler and the device: a piece of at most
/// [`PIECE`](crate::shard::request::PIECE) bytes of a read or write, or an order without data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenantStats {
    /// The clients' requests; zero in states from programs that did not count them.
    #[serde(default)]
    pub requests: ClientRequests,
    /// Operations of reads completed.
    pub reads: u64,
    /// Operations of writes completed.
    pub writes: u64,
    /// Operations of flushes, discards and zeroings completed.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that the device failed.
    pub errors: u64,
    /// The errno of the last of them; 0 if there was none.
    pub last_errno: i32,
    /// Time that requests waited in the scheduler, in total, in nanoseconds.
    pub staged_ns: u64,
    /// Time that requests were on the device, in total, in nanoseconds.
    pub device_ns: u64,
    /// Time during which requests waited in the scheduler and none was on the device, in
    /// nanoseconds; summed over shards.
    pub starved_ns: u64,
    /// Requests accepted and not yet completed.
    #[serde(skip)]
    pub in_flight: u64,
    /// The requests in flight that wait in the scheduler.
    #[serde(skip)]
    pub staged: u64,
    /// The time from which the tenant is starved; [`NOT_STARVED`] if it is not.
    #[serde(skip, default = "not_starved")]
    starved_since_ns: u64,
    /// The latencies from arrival to completion, in nanoseconds, with two significant digits.
    #[serde(with = "sparse")]
    pub latency_ns: Histogram<u64>,
}

fn not_starved() -> u64 {
    NOT_STARVED
}

fn no_latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(100, MAX_LATENCY_NS, 2).expect("the bounds are valid")
}

/// Serialises a histogram as its values and their counts.
mod sparse {
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let values = histogram.iter_recorded();
        serializer.collect_seq(values.map(|at| (at.value_iterated_to(), at.count_at_value())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = super::no_latencies();
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            histogram.saturating_record_n(value, count);
        }
        Ok(histogram)
    }
}

impl Default for TenantStats {
    fn default() -> Self {
        TenantStats {
            requests: ClientRequests::default(),
            reads: 0,
            writes: 0,
            others: 0,
            read_bytes: 0,
            written_bytes: 0,
            errors: 0,
            last_errno: 0,
            staged_ns: 0,
            device_ns: 0,
            starved_ns: 0,
            in_flight: 0,
            staged: 0,
            starved_since_ns: NOT_STARVED,
            latency_ns: no_latencies(),
        }
    }
}

impl TenantStats {
    /// Counts a request that arrives; it is staged until it is issued.
    #[inline]
    pub fn arrive(&mut self, now_ns: u64) {
        // The tenant has no request on the device: it is starved until one is issued.
        if self.staged == self.in_flight && self.starved_since_ns == NOT_STARVED {
            self.starved_since_ns = now_ns;
        }
        self.in_flight += 1;
        self.staged += 1;
    }

    /// Counts a request that is issued.
    #[inline]
    pub fn issue(&mut self, now_ns: u64) {
        self.staged -= 1;
        if self.starved_since_ns != NOT_STARVED {
            self.starved_ns += now_ns.saturating_sub(self.starved_since_ns);
            self.starved_since_ns = NOT_STARVED;
        }
    }

    /// Counts a staged request that is cancelled.
    pub fn cancel(&mut self, now_ns: u64) {
        self.in_flight -= 1;
        self.staged -= 1;
        if self.staged == 0 && self.starved_since_ns != NOT_STARVED {
            self.starved_ns += now_ns.saturating_sub(self.starved_since_ns);
            self.starved_since_ns = NOT_STARVED;
        }
    }

    /// Counts an issued request that has completed.
    #[inline]
    pub fn complete(&mut self, op: Op, length: u32, errno: i32, times: Times) {
        self.in_flight -= 1;
        // The tenant now has no request on the device while others are staged, so it is starved.
        if self.staged > 0 && self.staged == self.in_flight {
            self.starved_since_ns = times.done_ns;
        }
        self.count(
            op,
            length,
            errno,
            times.latency_ns(),
            times.issued_ns.saturating_sub(times.arrived_ns),
        );
    }

    /// A copy that includes the current time of starvation up to `now_ns`.
    #[must_use]
    pub fn at(&self, now_ns: u64) -> TenantStats {
        let mut copy = self.clone();
        if self.starved_since_ns != NOT_STARVED {
            copy.starved_ns += now_ns.saturating_sub(self.starved_since_ns);
        }
        copy
    }

    /// Counts a completed request. It failed unless `errno` is 0. `staged_ns` is the part of its
    /// latency that it spent in the scheduler.
    pub fn count(&mut self, op: Op, length: u32, errno: i32, latency_ns: u64, staged_ns: u64) {
        match op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += u64::from(length);
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += u64::from(length);
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => self.others += 1,
        }
        if errno != 0 {
            self.errors += 1;
            self.last_errno = errno;
        }
        self.staged_ns += staged_ns;
        self.device_ns += latency_ns.saturating_sub(staged_ns);
        self.latency_ns.saturating_record(latency_ns);
    }

    /// Operations completed.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.others
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    /// Adds the counts of another shard.
    pub fn add(&mut self, other: &TenantStats) {
        self.requests.each(&other.requests, |own, other| own + other);
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
        self.last_errno = if other.last_errno != 0 { other.last_errno } else { self.last_errno };
        self.staged_ns += other.staged_ns;
        self.device_ns += other.device_ns;
        self.starved_ns += other.starved_ns;
        self.in_flight += other.in_flight;
        self.staged += other.staged;
        if other.latency_ns.is_empty() {
            return;
        }
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
    }

    /// The counts since `earlier`, a previous copy of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &TenantStats) -> TenantStats {
        let mut latency_ns = self.latency_ns.clone();
        latency_ns.subtract(&earlier.latency_ns).expect("counters only grow");
        let mut requests = self.requests;
        requests.each(&earlier.requests, |now, earlier| now - earlier);
        TenantStats {
            requests,
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            others: self.others - earlier.others,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            errors: self.errors - earlier.errors,
            last_errno: self.last_errno,
            staged_ns: self.staged_ns - earlier.staged_ns,
            device_ns: self.device_ns - earlier.device_ns,
            starved_ns: self.starved_ns.saturating_sub(earlier.starved_ns),
            in_flight: self.in_flight,
            staged: self.staged,
            starved_since_ns: NOT_STARVED,
            latency_ns,
        }
    }
}

/// The work of one shard; counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardCounters {
    /// Requests sent to the device, by class: urgent, high, medium, low.
    pub issued: [u64; 4],
    /// The issued requests that were joined to the command of an earlier one: the number of
    /// commands saved.
    pub joined: u64,
    /// Requests completed.
    pub completed: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// The number of times that it slept.
    pub sleeps: u64,
    /// Its CPU time, if the kernel reports it.
    #[serde(skip)]
    pub cpu: Option<CpuTime>,
}

impl ShardCounters {
    /// Adds the counts of another shard. The CPU time is not added.
    pub fn add(&mut self, other: &ShardCounters) {
        self.issued.iter_mut().zip(other.issued).for_each(|(own, other)| *own += other);
        self.joined += other.joined;
        self.completed += other.completed;
        self.bytes += other.bytes;
        self.turns += other.turns;
        self.sleeps += other.sleeps;
    }
}

/// The counts of the previous program in this process.
#[derive(Default)]
pub struct Counted {
    /// The counts of tenants, by number.
    pub tenants: Vec<(u16, TenantStats)>,
    /// The counts of the shard.
    pub counters: ShardCounters,
    /// The delays that tenants caused each other.
    pub matrix: Option<Matrix>,
}

/// The report of a shard.
pub struct ShardReport {
    /// The tenants whose counts have changed since the last report, by number.
    pub tenants: Vec<(u16, TenantStats)>,
    /// The work of the shard.
    pub counters: ShardCounters,
    /// The delays that tenants caused each other.
    pub matrix: Matrix,
    /// The requests on each store that has some, by number.
    pub stores: Vec<StoreLoad>,
}

/// The requests that a store has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreLoad {
    /// The number of requests.
    pub on_device: u64,
    /// Age of the oldest of these requests, in nanoseconds.
    pub oldest_ns: u64,
}

/// The reports of all shards together.
#[derive(Clone, Debug)]
pub struct Totals {
    /// The service of each tenant, by number; the same object as the last time if the tenant's
    /// counts have not changed.
    pub tenants: Vec<Arc<TenantStats>>,
    /// The work of each shard.
    pub shards: Vec<ShardCounters>,
    /// The delays that tenants caused each other.
    pub matrix: Matrix,
    /// The requests on each store that has some, by number.
    pub stores: Vec<StoreLoad>,
}

/// The last report of each shard, and the totals.
pub(crate) struct Ledger {
    /// The last counts by shard and tenant; `None` until the shard has reported the tenant.
    kept: Vec<Vec<Option<Arc<TenantStats>>>>,
    /// The matrices, by shard.
    matrices: Vec<Matrix>,
    stores: Vec<Vec<StoreLoad>>,
    totals: Totals,
}

impl Ledger {
    /// A ledger without reports.
    pub(crate) fn new(shards: usize, tenants: usize) -> Ledger {
        let nothing = Arc::new(TenantStats::default());
        let totals = Totals {
            tenants: vec![nothing; tenants],
            shards: vec![ShardCounters::default(); shards],
            matrix: empty_matrix(),
            stores: Vec::new(),
        };
        Ledger {
            stores: vec![Vec::new(); shards],
            kept: vec![vec![None; tenants]; shards],
            matrices: vec![empty_matrix(); shards],
            totals,
        }
    }

    /// Takes the reports of shards, each with the shard's number.
    pub(crate) fn take(&mut self, reports: impl IntoIterator<Item = (usize, ShardReport)>) {
        let mut changed = Vec::new();
        for (shard, ShardReport { tenants, counters, matrix, stores }) in reports {
            self.stores[shard] = stores;
            for (tenant, stats) in tenants {
                self.kept[shard][usize::from(tenant)] = Some(Arc::new(stats));
                changed.push(usize::from(tenant));
            }
            (self.totals.shards[shard], self.matrices[shard]) = (counters, matrix);
        }
        changed.sort_unstable();
        changed.dedup();
        for tenant in changed {
            let mut parts = self.kept.iter().filter_map(|shard| shard[tenant].as_ref());
            let Some(mut total) = parts.next().cloned() else { continue };
            // The total is copied only if another shard has a part: a tenant with one connection
            // is on one shard.
            parts.for_each(|part| Arc::make_mut(&mut total).add(part));
            self.totals.tenants[tenant] = total;
        }
        self.totals.stores.clear();
        for (store, load) in self.stores.iter().flat_map(|shard| shard.iter().enumerate()) {
            if self.totals.stores.len() <= store {
                self.totals.stores.resize(store + 1, StoreLoad::default());
            }
            let total = &mut self.totals.stores[store];
            total.on_device += load.on_device;
            total.oldest_ns = total.oldest_ns.max(load.oldest_ns);
        }
        let cells = self.totals.matrix.as_flattened_mut();
        cells.fill(0);
        for matrix in &self.matrices {
            cells.iter_mut().zip(matrix.as_flattened()).for_each(|(total, cell)| *total += cell);
        }
    }

    /// The sums.
    pub(crate) fn totals(&self) -> Totals {
        self.totals.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_are_added_up_to_whom_something_has_happened() {
        let report = |tenants: &[(u16, u64)]| ShardReport {
            tenants: tenants
                .iter()
                .map(|&(tenant, reads)| (tenant, TenantStats { reads, ..Default::default() }))
                .collect(),
            counters: ShardCounters { completed: 1, ..Default::default() },
            matrix: empty_matrix(),
            stores: Vec::new(),
        };
        let mut ledger = Ledger::new(2, 4);
        ledger.take([(1, report(&[(1, 5), (2, 7)])), (0, report(&[(2, 10)]))]);
        let first = ledger.totals();
        ledger.take([(0, report(&[(2, 11)]))]);
        let second = ledger.totals();
        let reads =
            |totals: &Totals| totals.tenants.iter().map(|tenant| tenant.reads).collect::<Vec<_>>();
        assert_eq!((reads(&first), reads(&second)), (vec![0, 5, 17, 0], vec![0, 5, 18, 0]));
        assert!(Arc::ptr_eq(&first.tenants[1], &second.tenants[1]), "nothing has happened to it");
        assert_eq!(
            second.shards[1].completed, 1,
            "of a shard that does not tell, the last that it told"
        );
    }

    #[test]
    fn starved_is_who_waits_with_nothing_on_the_device() {
        let mut stats = TenantStats::default();
        let times = |issued_ns, done_ns| Times { arrived_ns: 10, issued_ns, done_ns };
        stats.arrive(10);
        stats.arrive(20);
        assert_eq!((stats.staged, stats.at(25).starved_ns, stats.starved_ns), (2, 15, 0));
        stats.issue(30);
        assert_eq!(stats.at(99).starved_ns, 20, "one is on the device");
        stats.complete(Op::Read, 4096, 0, times(30, 100));
        assert_eq!(stats.at(130).starved_ns, 50);
        stats.issue(140);
        stats.complete(Op::Write, 512, 28, times(140, 150));
        assert_eq!((stats.at(1000).starved_ns, stats.staged, stats.in_flight), (60, 0, 0));
        assert_eq!(
            (stats.staged_ns, stats.device_ns, stats.errors, stats.last_errno),
            (150, 80, 1, 28)
        );
    }
}
