//! The meter: the service of each tenant.

use fairq_core::{Class, ClassWeights, Stats};
use fairq_device::{Busy, Parts, Usage};
use hdrhistogram::Histogram;

use crate::cpu::{CpuUse, Reaped};
use crate::scenario::Scenario;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The service of each tenant, in the order of the scenario.
    pub tenants: Vec<Got>,
    /// The device's class weights, each with the time in nanoseconds from which on they were in
    /// force.
    pub class_weights: Vec<(u64, ClassWeights)>,
    /// The CPU use of each hardware thread; empty without a host.
    pub cpus: Vec<CpuUse>,
    /// Utilization of an SSD's parts during the measurement; `None` for a disk.
    pub device: Option<Busy>,
    /// Length of the measurement, in nanoseconds.
    pub measured_ns: u64,
    /// Number of completed requests, measured or not.
    pub requests: u64,
    /// A hash of every completion's time, port and tag: equal runs have equal digests.
    pub digest: u64,
    /// The policy's counters at the end.
    pub stats: Stats,
    /// The violation that a check found, if any.
    pub violation: Option<Violation>,
}

/// A broken law.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{check}, at {at_ns} ns: {what}")]
pub struct Violation {
    /// Name of the check.
    pub check: &'static str,
    /// Time of the violation, in nanoseconds.
    pub at_ns: u64,
    /// Description of the violation.
    pub what: String,
}

/// The service of a tenant during the measurement.
#[derive(Clone, Debug)]
pub struct Got {
    /// Bytes completed.
    pub bytes: u64,
    /// Requests completed.
    pub requests: u64,
    /// Commands issued for these requests: fewer, if requests are merged.
    pub commands: u64,
    /// Latencies from submission to completion, in nanoseconds; in an open loop from arrival.
    pub latency_ns: Histogram<u64>,
    /// Bytes issued to the classes urgent, high, medium and low.
    pub classes: [u64; 4],
    /// Bytes completed in each interval of the series, from the beginning of the run.
    pub series: Vec<u64>,
}

pub(crate) struct Meter {
    from_ns: u64,
    until_ns: u64,
    series_ns: u64,
    tenants: Vec<Got>,
    class_weights: Vec<(u64, ClassWeights)>,
    cpus: Vec<CpuUse>,
    /// Busy times of the device at the start and at the end of the measurement.
    usage: [Option<(Usage, Parts)>; 2],
    requests: u64,
    digest: Digest,
}

/// Latencies are kept between a nanosecond and this, to three digits.
const LONGEST_NS: u64 = 100_000_000_000;

impl Meter {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let intervals =
            scenario.series_ns.map_or(0, |series_ns| scenario.duration_ns.div_ceil(series_ns));
        let latencies =
            || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are legal");
        let got = Got {
            bytes: 0,
            requests: 0,
            commands: 0,
            latency_ns: latencies(),
            classes: [0; 4],
            series: vec![0; intervals as usize],
        };
        Meter {
            from_ns: scenario.warmup_ns,
            until_ns: scenario.duration_ns,
            series_ns: scenario.series_ns.unwrap_or(u64::MAX),
            tenants: vec![got; scenario.tenants.len()],
            class_weights: Vec::new(),
            cpus: scenario
                .host
                .as_ref()
                .map_or_else(Vec::new, |_| vec![CpuUse::default(); scenario.ports]),
            usage: [None; 2],
            requests: 0,
            digest: Digest::new(),
        }
    }

    /// Whether [`used`](Self::used) has to be called at this time.
    #[inline]
    pub(crate) fn is_to_know(&self, now_ns: u64) -> bool {
        match self.usage {
            [None, _] => now_ns >= self.from_ns,
            [Some(_), None] => now_ns >= self.until_ns,
            _ => false,
        }
    }

    /// Records the busy times of the device, when the measurement begins and when it has ended.
    pub(crate) fn used(&mut self, usage: Option<(Usage, Parts)>) {
        let unknown = self.usage.iter_mut().find(|usage| usage.is_none());
        unknown.into_iter().for_each(|place| *place = usage);
    }

    pub(crate) fn weigh(&mut self, now_ns: u64, weights: ClassWeights) {
        if self.class_weights.last().is_none_or(|last| last.1 != weights) {
            self.class_weights.push((now_ns, weights));
        }
    }

    #[inline]
    pub(crate) fn issued(&mut self, now_ns: u64, tenant: usize, class: Class, bytes: u32) {
        if now_ns >= self.from_ns && now_ns < self.until_ns {
            self.tenants[tenant].commands += 1;
            self.tenants[tenant].classes[class as usize] += u64::from(bytes);
        }
    }

    #[inline]
    pub(crate) fn completed(&mut self, now_ns: u64, tenant: usize, answer: &Reaped) {
        let &Reaped { id, bytes, since_ns, .. } = answer;
        self.requests += 1;
        // The digest includes completions before the end of the warm-up and after the measurement.
        self.digest.add(now_ns);
        self.digest.add(id.into());
        if now_ns >= self.until_ns {
            return;
        }
        let got = &mut self.tenants[tenant];
        // Without a series every time falls into interval 0, which then does not exist.
        if let Some(interval) = got.series.get_mut((now_ns / self.series_ns) as usize) {
            *interval += u64::from(bytes);
        }
        if now_ns >= self.from_ns {
            got.bytes += u64::from(bytes);
            got.requests += 1;
            let latency_ns = now_ns - since_ns;
            // A histogram refuses values beyond its bounds: such a latency counts as the longest.
            got.latency_ns.saturating_record(latency_ns);
        }
    }

    /// Adds a hardware thread's time in the policy's verbs and in waits for locks, in picoseconds.
    pub(crate) fn verbs(&mut self, now_ns: u64, port: usize, verbs_ps: u64, locks_ps: u64) {
        if now_ns >= self.from_ns && now_ns < self.until_ns {
            self.cpus[port].verbs_ns += verbs_ps / 1000;
            self.cpus[port].locks_ns += locks_ps / 1000;
        }
    }

    /// Adds failed compare-and-swaps of a hardware thread.
    pub(crate) fn failed(&mut self, now_ns: u64, port: usize, failed: u64) {
        if now_ns >= self.from_ns && now_ns < self.until_ns {
            self.cpus[port].failed_swaps += failed;
        }
    }

    /// Adds a task of a hardware thread; `reschedule` and `for_nothing` classify it.
    pub(crate) fn worked(
        &mut self,
        port: usize,
        since_ns: u64,
        now_ns: u64,
        reschedule: bool,
        for_nothing: bool,
    ) {
        let cpu = &mut self.cpus[port];
        // Work that begins before the measurement or ends after it counts in part.
        cpu.busy_ns += now_ns.min(self.until_ns).saturating_sub(since_ns.max(self.from_ns));
        if now_ns >= self.from_ns && now_ns < self.until_ns {
            cpu.reschedules += u64::from(reschedule);
            cpu.idle_reschedules += u64::from(for_nothing);
        }
    }

    pub(crate) fn finish(self, stats: Stats, violation: Option<Violation>) -> Run {
        let device = match self.usage {
            [Some((before, _)), Some((after, parts))] => {
                Some(after.since(&before, self.until_ns - self.from_ns, parts))
            }
            _ => None,
        };
        Run {
            device,
            tenants: self.tenants,
            class_weights: self.class_weights,
            cpus: self.cpus,
            measured_ns: self.until_ns - self.from_ns,
            requests: self.requests,
            digest: self.digest.0,
            stats,
            violation,
        }
    }
}

/// FNV-1a, a word at a time: fast, and the same on every machine. It detects changes; it need not
/// resist attacks.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    #[inline]
    fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 = mixed ^ mixed >> 29;
    }
}

impl Run {
    /// Bytes a second of all tenants.
    pub fn bandwidth(&self) -> f64 {
        self.tenants.iter().map(|got| got.bytes).sum::<u64>() as f64 * 1e9 / self.measured_ns as f64
    }

    /// Requests a second of all tenants.
    pub fn iops(&self) -> f64 {
        self.tenants.iter().map(|got| got.requests).sum::<u64>() as f64 * 1e9
            / self.measured_ns as f64
    }

    /// CPU utilization of the hardware threads, 0 to 1.
    pub fn cpu(&self) -> f64 {
        self.busy_ns() / (self.cpus.len().max(1) as f64 * self.measured_ns as f64)
    }

    /// CPU time per request, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        let requests = self.tenants.iter().map(|got| got.requests).sum::<u64>().max(1);
        self.busy_ns() / 1e3 / requests as f64
    }

    fn busy_ns(&self) -> f64 {
        self.cpus.iter().map(|cpu| cpu.busy_ns).sum::<u64>() as f64
    }

    /// Each tenant's share of all bytes, 0 to 1.
    pub fn shares(&self) -> Vec<f64> {
        let all = self.tenants.iter().map(|got| got.bytes).sum::<u64>().max(1) as f64;
        self.tenants.iter().map(|got| got.bytes as f64 / all).collect()
    }
}

impl Got {
    /// The sum of both.
    pub fn with(mut self, other: Got) -> Got {
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.latency_ns.add(&other.latency_ns).expect("all have the same bounds");
        self.classes.iter_mut().zip(other.classes).for_each(|(mine, more)| *mine += more);
        self.series.iter_mut().zip(other.series).for_each(|(mine, more)| *mine += more);
        self
    }

    /// Mean latency, in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.latency_ns.mean() / 1e3
    }

    /// The latency that a fraction `part` (0 to 1) of the requests do not exceed, in microseconds.
    pub fn quantile_us(&self, part: f64) -> f64 {
        self.latency_ns.value_at_quantile(part) as f64 / 1e3
    }
}
