//! One run: a scenario under a policy, and its results in the terms of `fairq bench`.

use fairq_bench::report::{Device, Got, Run};
use fairq_config::engine::{Shape, WithPolicy, with_policy};
use fairq_config::policy::PolicyConfig;
use fairq_config::refusal::Refusal;
use fairq_core::d2fq::Ratio;
use fairq_core::mqfq::MqfqConfig;
use fairq_core::{Limits, Native};
use fairq_sim::check;
use fairq_sim::policies::{
    AnySubject, D2fqParts, D2fqSubject, MqfqParts, SlotKind, TrackerKind, UnthrottleKind,
    VirtualTimeKind,
};
use fairq_sim::scenario::{Scenario, Tenant};
use fairq_sim::traced::Traced;
use fairq_sim::{Promise, Run as Simulated, on_host, simulate};

/// Simulates a scenario with any policy.
struct Simulate<'a>(&'a Scenario);

impl WithPolicy for Simulate<'_> {
    type Output = Simulated;

    fn run<L: Limits>(self, policy: L, ports: Vec<L::Port>) -> Simulated
    where
        L::Port: 'static,
    {
        // The promise of every policy: no request is lost, no tenant starves, and the device
        // fetches commands while its window has room. `turn` is longer than the turn of any policy,
        // and small enough that the products in the starvation check do not overflow.
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
    let mut name = policy.describe(slots);
    let run = match &scenario.host {
        _ if !policy.of_paper.is_empty() => {
            let subject = of_paper(policy)?;
            let keys = policy.keys.iter().chain(&policy.of_paper);
            let keys = keys.map(|(key, value)| format!(" {key}={}", policy.shown(key, *value)));
            name = format!("{} of the paper{}", policy.name(), keys.collect::<String>());
            subject.run(scenario)?
        }
        None => with_policy::<Native, _>(policy, shape, Simulate(scenario))?,
        Some(host) => {
            on_host(host, || with_policy::<Traced, _>(policy, shape, Simulate(scenario)))?
        }
    };
    if let Some(violation) = run.violation {
        return Err(anyhow::anyhow!("under {name} a law is broken: {violation}"));
    }
    Ok(Outcome { policy: name, run })
}

/// The paper's policy that these keys name, which servers do not have: MQFQ made of other parts, or
/// D2FQ to the letter.
fn of_paper(policy: &PolicyConfig) -> anyhow::Result<AnySubject> {
    let value = |wanted: &str| {
        let all = policy.keys.iter().chain(&policy.of_paper);
        all.rev().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
    };
    let taken: &[&str] = match policy.name() {
        "mqfq" => &["slots", "threshold"],
        _ => &["tau-l", "tau-m", "hl", "initial"],
    };
    if let Some((key, _)) = policy.keys.iter().find(|(key, _)| !taken.contains(key)) {
        let name = policy.name();
        return Err(Refusal::new(format!("policy: the paper's {name} takes no `{key}`")).into());
    }
    if policy.name() == "mqfq" {
        // `auto` is represented by a number above all values of D.
        let slots = value("slots").filter(|slots| *slots < u64::from(u32::MAX));
        let slots = slots.map_or(MqfqConfig::SLOTS, |slots| slots as u32);
        let mut parts = MqfqParts::new(slots, value("threshold").unwrap_or(45 << 10));
        if value("virtual-time") == Some(1) {
            parts.virtual_time = VirtualTimeKind::ArrayScan;
        }
        parts.slot_kind = match value("slot-kind") {
            Some(1) => SlotKind::AtomicCounter,
            Some(2) => SlotKind::ScalableBitmap,
            _ => SlotKind::TokenTree,
        };
        if let Some(period_ns @ 1..) = value("unthrottle") {
            parts.unthrottle = UnthrottleKind::Polling { period_ns };
        }
        return Ok(AnySubject::MqfqStrict(parts));
    }
    let ratio = match (value("hl"), value("initial")) {
        (Some(ratio @ 1..), _) => Ratio::Static(ratio as u16),
        (_, initial) => Ratio::Dynamic { initial: initial.unwrap_or(256) as u16 },
    };
    let (tau_l, tau_m) = (value("tau-l").unwrap_or(8 << 20), value("tau-m"));
    let tracker = match value("tracker") {
        Some(1) => TrackerKind::Scan,
        Some(2) => TrackerKind::Mindicator,
        _ => TrackerKind::Sloppy,
    };
    let direct = D2fqSubject { ratio, tau_l, tau_m, strict_paper: true };
    Ok(AnySubject::D2fqParts(D2fqParts { direct, tracker }))
}

/// Bytes a second that each tenant gets when it runs alone without a scheduler.
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
    // Without an interval between requests there is no limit.
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
