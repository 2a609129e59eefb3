//! The measures of a run: a number for the whole run, or a list with a number for each tenant.

use fairq_sim::{CpuUse, Got, Run};

use super::values::{Value, Valued};

/// A measure by its name.
pub(super) fn measure(name: &str, run: &Run, scenario: &fairq_sim::Scenario) -> Valued {
    let each = |of: &dyn Fn(&Got) -> f64| run.tenants.iter().map(of).collect::<Value>();
    let quantile = |part: f64| each(&|got| got.quantile_us(part));
    let class = |class: usize| {
        each(&|got| {
            got.classes[class] as f64 / (got.classes[1..].iter().sum::<u64>().max(1) as f64)
        })
    };
    let tenants = || scenario.tenants.iter();
    let weights = || tenants().map(|tenant| f64::from(tenant.weight));
    Ok(match name {
        "iops" => run.iops().into(),
        // Bytes a second of all tenants.
        "bandwidth" => run.bandwidth().into(),
        // Length of the measurement, in nanoseconds.
        "ns" => (run.measured_ns as f64).into(),
        // Completed requests, measured or not.
        "completed" => (run.requests as f64).into(),
        "digest" => run.digest.to_string().as_str().into(),
        "throttles" => (run.stats.throttles as f64).into(),
        "free_slots" => run.stats.free_slots.map_or(-1.0, |free| free as f64).into(),
        // CPU utilization, the part of it in waits for locks, and CPU time of a request.
        "cpu" => run.cpu().into(),
        "spun" => {
            let spun: u64 = run.cpus.iter().map(|cpu| cpu.locks_ns).sum();
            (spun as f64 / (run.cpus.len() as u64 * run.measured_ns) as f64).into()
        }
        "cpu_us" => run.cpu_us().into(),
        // Interrupts by wake-ups and timers for each request: all, and those after which nothing
        // was issued.
        "reschedules" => a_request(run, |cpu| cpu.reschedules).into(),
        "idle_reschedules" => a_request(run, |cpu| cpu.idle_reschedules).into(),
        // The H/L ratios, and the times in seconds from which on they were in force.
        "ratios" => ratios(run).map(|(_, ratio)| ratio).collect(),
        "ratios_from" => ratios(run).map(|(from_s, _)| from_s).collect(),
        "fair_from" => fair_from(run, scenario).into(),
        "p99_of_lightest_ms" => p99_of_lightest_ms(run, scenario)?.into(),
        // These measures have a number for each tenant.
        "bytes" => each(&|got| got.bytes as f64),
        "requests" => each(&|got| got.requests as f64),
        "shares" => run.shares().into_iter().collect(),
        "weights" => weights().collect(),
        // The relative deviation from the share by weight.
        "off" => {
            let all: f64 = weights().sum();
            let off = |(share, weight): (f64, f64)| (share / (weight / all) - 1.0).abs();
            run.shares().into_iter().zip(weights()).map(off).collect()
        }
        "mean_us" => each(&Got::mean_us),
        "p99" => quantile(0.99),
        "p999" => quantile(0.999),
        "p9999" => quantile(0.9999),
        // Parts of the bytes in the high and in the low class.
        "high" => class(1),
        "low" => class(3),
        "issued" => each(&|got| got.classes.iter().sum::<u64>() as f64),
        // Requests in a command.
        "merged" => each(&|got| got.requests as f64 / got.commands.max(1) as f64),
        // Bytes in each interval of the series.
        "series" => run
            .tenants
            .iter()
            .map(|got| got.series.iter().map(|&bytes| bytes as f64).collect::<Value>())
            .collect(),
        // Properties of the load: think time in nanoseconds, mean KiB of a request, reads for each
        // write.
        "think_ns" => tenants().map(|tenant| tenant.job.think_ns as f64).collect(),
        "mean_kib" => {
            let mean = |tenant: &fairq_sim::Tenant| {
                let all: u32 = tenant.job.sizes.iter().map(|size| size.1).sum();
                let bytes: u32 = tenant.job.sizes.iter().map(|(size, often)| size * often).sum();
                f64::from(bytes) / 1024.0 / f64::from(all)
            };
            tenants().map(mean).collect()
        }
        "reads_per_write" => {
            let percent = |tenant: &fairq_sim::Tenant| f64::from(tenant.job.read_percent);
            tenants().map(percent).map(|reads| reads / (100.0 - reads)).collect()
        }
        _ => return Err(format!("no measure is called `{name}`")),
    })
}

fn a_request(run: &Run, of: fn(&CpuUse) -> u64) -> f64 {
    let requests = run.tenants.iter().map(|got| got.requests).sum::<u64>().max(1);
    run.cpus.iter().map(of).sum::<u64>() as f64 / requests as f64
}

/// Each H/L ratio with the time in seconds from which on it was in force.
fn ratios(run: &Run) -> impl Iterator<Item = (f64, f64)> {
    run.class_weights
        .iter()
        .map(|(at_ns, weights)| (*at_ns as f64 / 1e9, f64::from(weights.high / weights.low)))
}

/// The H/L ratios in force between two times in seconds, each once, in order.
pub(super) fn ratios_between(run: &Run, from_s: f64, until_s: f64) -> Value {
    // The ratio in force at the start was set earlier.
    let before = ratios(run).take_while(|(at_s, _)| *at_s <= from_s).last();
    let within = ratios(run).filter(|(at_s, _)| *at_s > from_s && *at_s < until_s);
    let mut found: Vec<f64> = before.into_iter().chain(within).map(|(_, ratio)| ratio).collect();
    found.sort_by(f64::total_cmp);
    found.dedup();
    found.into_iter().collect()
}

/// The time, in seconds, from which on the tenants' bytes are within 10 % in every interval.
fn fair_from(run: &Run, scenario: &fairq_sim::Scenario) -> f64 {
    let is_fair = |interval: usize| {
        let bytes = || run.tenants.iter().map(|got| got.series[interval] as f64);
        bytes().fold(0.0, f64::max) <= 1.1 * bytes().fold(f64::MAX, f64::min)
    };
    let intervals = run.tenants.first().map_or(0, |got| got.series.len());
    let last = (0..intervals).rev().find(|&interval| !is_fair(interval));
    let interval_ns = scenario.series_ns.unwrap_or(0);
    last.map_or(0.0, |last| ((last + 1) as u64 * interval_ns) as f64 / 1e9)
}

/// The 99th percentile in milliseconds over all tenants of the least weight, so that a few requests
/// of each tenant are enough.
fn p99_of_lightest_ms(run: &Run, scenario: &fairq_sim::Scenario) -> Result<f64, String> {
    let least = scenario.tenants.iter().map(|tenant| tenant.weight).min();
    let light = run.tenants.iter().zip(&scenario.tenants);
    let mut light = light.filter(|(_, tenant)| Some(tenant.weight) == least).map(|(got, _)| got);
    let first = light.next().ok_or("there is no tenant")?;
    let mut all = first.latency_ns.clone();
    for got in light {
        all.add(&got.latency_ns).map_err(|error| error.to_string())?;
    }
    Ok(all.value_at_quantile(0.99) as f64 / 1e6)
}
