//! Checks that the figures of a measurement are possible.
//!
//! **Problem.** A fault of the clock or of the counting gives figures that resemble results.
//! **Model.** Three laws bound the requests that complete in a window of length T, for every device
//! and policy. *Little's law*: the time that N jobs' requests are in flight is at most N × T, and a
//! request that was in flight when the window began adds at most its latency. *The CPU*: no thread
//! completes a request in less than [`LEAST_NS`]. *The device*: a device with known limits
//! completes at most the requests that these allow in T, and those that it had completed before the
//! window began and that were counted in it: at most the requests in flight.
//!
//! **Example.** 52 requests in 1 ms, on a device of 2,000 a second with 8 in flight: at most
//! 2 + 8 are possible.

use anyhow::ensure;
use fairq_config::device::DeviceConfig;
use fairq_config::units::{show_bandwidth, show_count, show_duration};
use fairq_host::measure::load::Measured;

use crate::job::Job;

/// The least time in nanoseconds that a thread takes to make a request and handle its completion.
const LEAST_NS: f64 = 5.0;
/// The factor for the error of latencies, which are recorded to two digits.
const SLACK: f64 = 1.05;
/// The unit in which latencies are recorded, in nanoseconds.
const UNIT_NS: f64 = 64.0;

/// The most that a device can do in one second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Limits {
    pub(crate) iops: f64,
    pub(crate) bytes: f64,
}

impl Limits {
    /// The limits of a device without known limits.
    pub(crate) const NONE: Limits = Limits { iops: f64::INFINITY, bytes: f64::INFINITY };

    /// The limits in the configuration of a device.
    pub(crate) fn of(device: &DeviceConfig) -> Limits {
        let &DeviceConfig::Paced { iops, bandwidth, latency_ns, parallelism, .. } = device else {
            return Limits::NONE;
        };
        // A limit of 0 is no limit.
        let limit = |value: f64| if value > 0.0 { value } else { f64::INFINITY };
        let inside = limit(f64::from(parallelism)) * 1e9 / latency_ns as f64;
        Limits { iops: limit(iops as f64).min(inside), bytes: limit(bandwidth as f64) }
    }
}

/// Fails if these jobs cannot have completed the measured requests on this many threads.
pub(crate) fn check(
    jobs: &[Job],
    threads: usize,
    limits: Limits,
    measured: &Measured,
) -> anyhow::Result<()> {
    let ns = measured.elapsed.as_nanos() as f64;
    let (mut operations, mut bytes, mut outstanding) = (0.0, 0.0, 0.0);
    for (job, stats) in jobs.iter().zip(&measured.tenants) {
        let (done, depth) = (stats.operations() as f64, f64::from(job.outstanding()));
        let in_flight_ns = done * (stats.latency_ns.mean() - UNIT_NS).max(0.0);
        let longest_ns = stats.latency_ns.max() as f64;
        ensure!(
            in_flight_ns <= SLACK * depth * (ns + longest_ns),
            "tenant {}: {} requests of {} each in {} need more than its {} in flight",
            job.name,
            show_count(done),
            show_duration(stats.latency_ns.mean()),
            show_duration(ns),
            job.outstanding()
        );
        operations += done;
        bytes += stats.bytes() as f64;
        outstanding += depth * f64::from(job.block);
    }
    let requests: f64 = jobs.iter().map(|job| f64::from(job.outstanding())).sum();
    let done = show_count(operations);
    let during = show_duration(ns);
    ensure!(
        operations <= threads as f64 * ns / LEAST_NS,
        "{done} requests in {during} are more than this number of threads can make: {threads}"
    );
    ensure!(
        operations <= SLACK * limits.iops * ns / 1e9 + requests,
        "{done} requests in {during} are more than the device's {} a second allow",
        show_count(limits.iops)
    );
    ensure!(
        bytes <= SLACK * limits.bytes * ns / 1e9 + outstanding,
        "{done} requests in {during} are more than the device's {} allow",
        show_bandwidth(limits.bytes)
    );
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fairq_config::device::{DeviceTable, Kind};
    use fairq_core::Op;
    use fairq_host::observe::stats::TenantStats;
    use std::time::Duration;

    /// A measurement of one tenant: requests of 4 KiB with one latency, within a time.
    pub(crate) fn measured(operations: u64, latency: Duration, elapsed: Duration) -> Measured {
        let mut stats = TenantStats::default();
        let latency_ns = latency.as_nanos() as u64;
        (0..operations).for_each(|_| stats.count(Op::Read, 4096, 0, latency_ns, 0));
        Measured {
            tenants: vec![stats],
            elapsed,
            disturbance: None,
            cpu: elapsed,
            preempted: 0,
            cpu_wait: None,
            series: Vec::new(),
            class_weights: Vec::new(),
            slots: None,
        }
    }

    fn limits(device: &str) -> Limits {
        Limits::of(&device.parse::<DeviceTable>().unwrap().complete(Kind::Paced).unwrap())
    }

    fn refusal(device: &str, operations: u64, latency: Duration, elapsed: Duration) -> String {
        let jobs = ["a=depth:8".parse().unwrap()];
        let checked = check(&jobs, 1, limits(device), &measured(operations, latency, elapsed));
        checked.map_or_else(|error| error.to_string(), |()| "possible".into())
    }

    #[test]
    fn limits_of_a_paced_device_are_those_of_its_controller_link_and_places() {
        let free = "paced,size=1M,iops=0,bandwidth=0,latency=0,parallelism=4";
        assert_eq!(limits(free), Limits::NONE);
        assert_eq!(limits("ram,size=1M"), Limits::NONE);
        let four = limits("paced,size=1M,iops=9000,bandwidth=5M/s,latency=2ms,parallelism=4");
        assert_eq!(four, Limits { iops: 2_000.0, bytes: f64::from(5 << 20) });
    }

    #[test]
    fn a_device_does_not_do_more_than_it_can() {
        let (ms, second) = (Duration::from_millis(4), Duration::from_secs(1));
        let device = "paced,size=1M,iops=2000,bandwidth=0";
        assert_eq!(refusal(device, 2_000, ms, second), "possible");
        let text = refusal(device, 2_500, Duration::from_millis(3), second);
        assert!(text.contains("more than the device's 2.00 k a second allow"), "{text}");
        let device = "paced,size=1M,iops=0,bandwidth=1M/s";
        assert_eq!(refusal(device, 256, ms, second), "possible");
        let text = refusal(device, 512, ms, second);
        assert!(text.contains("more than the device's 1.05 MB/s allow"), "{text}");
    }

    #[test]
    fn jobs_do_not_do_more_than_their_depth_allows() {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        assert_eq!(refusal("ram", 8_000, ms, second), "possible");
        let text = refusal("ram", 9_000, ms, second);
        assert!(text.starts_with("tenant a: 9.00 k requests of 1.0"), "{text}");
        assert!(text.ends_with("in 1.00 s need more than its 8 in flight"), "{text}");
    }

    #[test]
    fn threads_do_not_do_more_than_a_cpu_can() {
        let text = refusal("ram", 20_000, Duration::ZERO, Duration::from_micros(76));
        assert_eq!(
            text,
            "20.0 k requests in 76.0 µs are more than this number of threads can make: 1"
        );
    }
}
