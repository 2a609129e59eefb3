//! One run: a scenario under a policy, and its results in the terms of `fairq bench`.

use fairq_bench::report::{Device, Got, Run};
use fairq_config::engine::{Shape, WithPolicy, with_policy};
use fairq_config::policy::PolicyConfig;
use fairq_core::{Native, Policy};
use fairq_sim::check;
use fairq_sim::scenario::{Scenario, Tenant};
use fairq_sim::traced::Traced;
use fairq_sim::{Promise, Run as Simulated, on_host, simulate};

/// Simulates a scenario with any policy.
struct Simulate<'a>(&'a Scenario);

impl WithPolicy for Simulate<'_> {
    type Output = Simulated;

    fn run<L: Policy>(self, policy: L, ports: Vec<L::Port>) -> Simulated
    where
        L::Port: 'static,
    {
        // Every policy promises this: no request is lost, no tenant starves, and the device fetches
        // commands while its window has room. The turn is longer than any policy's, and small
        // enough that the products of the starvation check fit.
        let promise = Promise { holds_back: true, turn: u64::MAX >> 20, ..Promise::NONE };
        simulate(self.0, policy, ports, check::all(self.0, &promise))
    }
}

/// The results of a run, and the policy's description.
pub(super) struct Outcome {
    /// The policy in a few words.
    pub(super) policy: String,
    pub(super) run: Simulated,
}

/// Runs a scenario under a policy. A broken law is an error.
pub(super) fn under(scenario: &Scenario, policy: &PolicyConfig) -> anyhow::Result<Outcome> {
    let slots = scenario.profile.host.window.get();
    let shape = Shape::new(scenario.topology(), scenario.flows(), scenario.tags()).before(slots);
    let name = policy.describe(slots);
    let run = match &scenario.host {
        None => with_policy::<Native, _>(policy, shape, Simulate(scenario)),
        Some(host) => on_host(host, || with_policy::<Traced, _>(policy, shape, Simulate(scenario))),
    }?;
    if let Some(violation) = run.violation {
        return Err(anyhow::anyhow!("under {name} a law is broken: {violation}"));
    }
    Ok(Outcome { policy: name, run })
}

/// Bytes a second that each tenant gets where it is alone, under no scheduler.
pub(super) fn alone(scenario: &Scenario) -> anyhow::Result<Vec<f64>> {
    let none = "none".parse::<fairq_config::policy::PolicyTable>();
    let none = none.map_err(anyhow::Error::msg)?.complete()?;
    let only = |tenant: &Tenant| {
        let scenario = Scenario { tenants: vec![tenant.clone()], ..scenario.clone() };
        Ok(under(&scenario, &none)?.run.bandwidth())
    };
    scenario.tenants.iter().map(only).collect()
}

/// The tenant's demand in bytes a second, if its requests have an interval.
fn rate(tenant: &Tenant) -> Option<u64> {
    let job = &tenant.job;
    let often = |&(_, often): &(u32, u32)| u64::from(often);
    let bytes = |&(bytes, often): &(u32, u32)| u64::from(bytes) * u64::from(often);
    let mean = job.sizes.iter().map(bytes).sum::<u64>() / job.sizes.iter().map(often).sum::<u64>();
    let all = mean.saturating_mul(tenant.threads.len() as u64).saturating_mul(1_000_000_000);
    // Without an interval there is no limit.
    all.checked_div(job.interval_ns)
}

impl Outcome {
    /// The results as `fairq bench` reports them. `alone` has the tenants' bandwidths alone, if
    /// they are known.
    pub(super) fn told(
        &self,
        scenario: &Scenario,
        alone: Option<&[f64]>,
        with_histograms: bool,
    ) -> Run {
        let run = &self.run;
        let got = |(index, (tenant, got)): (usize, (&Tenant, &fairq_sim::Got))| {
            let latencies = &got.latency_ns;
            let buckets = || {
                let counted = latencies.iter_recorded();
                counted
                    .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
                    .collect()
            };
            Got {
                name: tenant.name.clone(),
                weight: tenant.weight,
                rate: rate(tenant),
                operations: got.requests,
                bytes: got.bytes,
                mean_ns: latencies.mean(),
                p50_ns: latencies.value_at_quantile(0.5),
                p99_ns: latencies.value_at_quantile(0.99),
                p999_ns: latencies.value_at_quantile(0.999),
                alone: alone.and_then(|alone| alone.get(index)).copied(),
                histogram: with_histograms.then(buckets),
            }
        };
        let tenants = scenario.tenants.iter().zip(&run.tenants).enumerate();
        let got: Vec<Got> = tenants.map(got).collect();
        let cpu_ns: u64 = run.cpus.iter().map(|cpu| cpu.busy_ns).sum();
        let slots = run.stats.known_slots();
        let seconds = run.measured_ns as f64 / 1e9;
        let device = run.device.map(|busy| Device {
            controller: busy.controller,
            reads: busy.dies[0],
            programs: busy.dies[1],
            moves: busy.dies[2],
            erases: busy.dies[3],
            channels: busy.channels,
            link_out: busy.links[0],
            link_in: busy.links[1],
            buffer: busy.buffer,
            amplification: busy.amplification,
        });
        Run { slots, device, ..Run::new(&self.policy, seconds, cpu_ns as f64, &got, None) }
    }
}
