//! What each tenant got: counted by each shard alone, in plain memory, and copied out when asked.

use fairq_core::Op;
use hdrhistogram::Histogram;

/// Latencies above this are counted as this: 100 seconds.
const MAX_LATENCY_NS: u64 = 100_000_000_000;

/// What one tenant got on one shard, or on several together; counters since the start.
#[derive(Clone, Debug)]
pub struct TenantStats {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes, discards and zeroings completed.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that the device failed.
    pub errors: u64,
    /// Time that requests waited in the scheduler, in total.
    pub staged_ns: u64,
    /// Requests taken in and not yet completed.
    pub in_flight: u64,
    /// From a request's arrival to its completion, in nanoseconds, two significant digits.
    pub latency_ns: Histogram<u64>,
}

impl Default for TenantStats {
    fn default() -> Self {
        let latency_ns = Histogram::new_with_bounds(100, MAX_LATENCY_NS, 2).expect("the bounds are valid");
        TenantStats {
            reads: 0,
            writes: 0,
            others: 0,
            read_bytes: 0,
            written_bytes: 0,
            errors: 0,
            staged_ns: 0,
            in_flight: 0,
            latency_ns,
        }
    }
}

impl TenantStats {
    /// Counts a completed request.
    pub fn count(&mut self, op: Op, length: u32, failed: bool, latency_ns: u64, staged_ns: u64) {
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
        self.errors += u64::from(failed);
        self.staged_ns += staged_ns;
        self.latency_ns.saturating_record(latency_ns);
    }

    /// Requests completed.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.others
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    /// Adds what another shard counted.
    pub fn add(&mut self, other: &TenantStats) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors += other.errors;
        self.staged_ns += other.staged_ns;
        self.in_flight += other.in_flight;
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
    }

    /// What was counted since `earlier`, a previous copy of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &TenantStats) -> TenantStats {
        let mut latency_ns = self.latency_ns.clone();
        latency_ns.subtract(&earlier.latency_ns).expect("counters only grow");
        TenantStats {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            others: self.others - earlier.others,
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            errors: self.errors - earlier.errors,
            staged_ns: self.staged_ns - earlier.staged_ns,
            in_flight: self.in_flight,
            latency_ns,
        }
    }
}
