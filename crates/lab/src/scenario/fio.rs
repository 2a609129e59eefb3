//! Results as fio's JSON (`--output-format=json`; with histograms `json+`), for programs that read
//! fio's output: a job for each tenant of each run.
//!
//! fio knows no policies, seeds and sweeps: a job's options name them. Fields that a simulation
//! does not have (submission latency, context switches, disk use) are left out.

use fairq_sim::scenario::{Scenario, Tenant};
use fairq_sim::{Got, Run};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// fio's usual percentiles.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// fio's whole output.
pub(super) fn output(jobs: &[Value]) -> Value {
    json!({ "fio version": concat!("fairq-", env!("CARGO_PKG_VERSION")), "jobs": jobs })
}

/// A job for each tenant; `options` identifies the run.
pub(super) fn jobs(
    scenario: &Scenario,
    run: &Run,
    options: &Map<String, Value>,
    with_bins: bool,
) -> Vec<Value> {
    let job = |(tenant, got): (&Tenant, &Got)| {
        let mut options = options.clone();
        options.insert("weight".into(), tenant.weight.into());
        options.insert("numjobs".into(), tenant.threads.len().into());
        options.insert("iodepth".into(), tenant.job.depth.into());
        let mut reads = got.latency_ns.clone();
        let (mut written, mut written_bytes) = (0, 0);
        let mut writes = Histogram::new_from(&reads);
        // The meter counts all requests, and writes separately: the difference is reads.
        if let Some(all) = &got.writes {
            reads.subtract(&all.latency_ns).expect("writes are a part of all");
            writes.add(&all.latency_ns).expect("all have the same bounds");
            (written, written_bytes) = (all.requests, all.bytes);
        }
        let (requests, bytes) = (got.requests - written, got.bytes - written_bytes);
        json!({
            "jobname": tenant.name,
            "groupid": 0,
            "error": 0,
            "elapsed": run.measured_ns.div_ceil(1_000_000_000),
            "job options": options,
            "read": way(run.measured_ns, requests, bytes, latency(&reads, with_bins)),
            "write": way(run.measured_ns, written, written_bytes, latency(&writes, with_bins)),
            "job_runtime": run.measured_ns / 1_000_000,
        })
    };
    scenario.tenants.iter().zip(&run.tenants).map(job).collect()
}

/// The reads or the writes of a job.
fn way(measured_ns: u64, requests: u64, bytes: u64, latency: Value) -> Value {
    let per_second = |count: u64| count as f64 * 1e9 / measured_ns.max(1) as f64;
    json!({
        "io_bytes": bytes,
        "io_kbytes": bytes / 1024,
        "bw_bytes": per_second(bytes) as u64,
        "bw": per_second(bytes) as u64 / 1024,
        "iops": per_second(requests),
        "runtime": measured_ns / 1_000_000,
        "total_ios": requests,
        "short_ios": 0,
        "drop_ios": 0,
        "clat_ns": latency,
        "lat_ns": latency,
    })
}

fn latency(latencies: &Histogram<u64>, with_bins: bool) -> Value {
    let mut told = json!({
        "min": if latencies.is_empty() { 0 } else { latencies.min() },
        "max": latencies.max(),
        "mean": latencies.mean(),
        "stddev": latencies.stdev(),
        "N": latencies.len(),
    });
    if !latencies.is_empty() {
        let percentile =
            |part: f64| (format!("{part:.6}"), latencies.value_at_percentile(part).into());
        let bin = |count: hdrhistogram::iterators::IterationValue<u64>| {
            (count.value_iterated_to().to_string(), count.count_at_value().into())
        };
        told["percentile"] = PERCENTILES.map(percentile).into_iter().collect::<Map<_, _>>().into();
        if with_bins {
            told["bins"] = latencies.iter_recorded().map(bin).collect::<Map<_, _>>().into();
        }
    }
    told
}
