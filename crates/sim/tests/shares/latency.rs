//! Latency targets in the lab: a tenant of depth 1 beside four of depth 256 meets its target, and
//! the device is as busy as the target allows.

use fairq_core::depth::DepthConfig;
use fairq_core::managed::{Managed, Stages};
use fairq_core::mqfq::Mqfq;
use fairq_core::{ConfigError, Platform, Target};
use fairq_device::Profile;
use fairq_sim::policies::{AnySubject, MqfqSubject};
use fairq_sim::scenario::{Job, MS, SECOND, Scenario, Tenant, US};
use fairq_sim::subject::{Built, Promise, Subject};
use fairq_sim::{Run, run};

/// MQFQ with this D, or with a search for D.
struct Held(Option<u32>);

impl<P: Platform> Subject<P> for Held {
    type Policy = Managed<Mqfq<P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let multi = MqfqSubject { slots: self.0.unwrap_or(64), threshold: 45 << 10 };
        let built = Subject::<P>::build(&multi, scenario)?;
        let depth = Some(DepthConfig::Slots { is_auto: self.0.is_none() });
        let stages = Stages { depth, ..Stages::default() };
        Managed::new(built, scenario.tags(), scenario.flows(), &stages)
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// The first tenant reads 4 KiB at depth 1, four others at depth 256.
fn scenario(device: &str, target_us: Option<u64>, seed: u64) -> Scenario {
    let read = |depth| Job::random_read(4096, depth);
    let mut all = vec![Tenant::new("lc", 100, vec![0], read(1))];
    all[0].target = target_us.and_then(|us| Target::new(us * US, 10_000, 50));
    all.extend(
        ["b", "c", "d", "e"]
            .into_iter()
            .zip(0..)
            .map(|(name, core)| Tenant::new(name, 100, vec![core % 2], read(256))),
    );
    let profile = Profile::named(device).unwrap();
    let mut scenario = Scenario::new(profile, 2, all, 8 * SECOND);
    scenario.warmup_ns = 4 * SECOND;
    scenario.seed = seed;
    scenario
}

/// The number of requests of the first tenant alone on a device, and of all tenants together
/// without a scheduler.
struct Base {
    seed: u64,
    alone: f64,
    full: f64,
}

fn base(device: &str, seed: u64) -> Base {
    let full = AnySubject::None.measure(&scenario(device, None, seed)).unwrap().iops();
    let mut alone = scenario(device, None, seed);
    alone.tenants.truncate(1);
    let alone = AnySubject::None.measure(&alone).unwrap().tenants[0].requests as f64;
    Base { seed, alone, full }
}

/// The first tenant's rate as a fraction of its rate alone, its 99th percentile in microseconds,
/// and the total rate as a fraction of that of `none`.
fn point(policy: &Held, device: &str, target_us: u64, base: &Base) -> [f64; 3] {
    let held = run(&scenario(device, Some(target_us), base.seed), policy, vec![]).unwrap();
    let lc = &held.tenants[0];
    let point = [lc.requests as f64 / base.alone, lc.quantile_us(0.99), held.iops() / base.full];
    println!("{device}, {target_us} us: {point:.3?}, D={:?}", held.stats.slots);
    point
}

/// The seeds whose median is checked: one, or three with `FAIRQ_LONG` (`tests/long targets`).
fn seeds() -> &'static [u64] {
    if std::env::var_os("FAIRQ_LONG").is_some() { &[1, 2, 3] } else { &[1] }
}

/// Checks each policy with a target in microseconds, the least fraction of the first tenant's rate
/// alone, and the least fraction of the total.
fn check(device: &str, wanted: &[(Held, u64, f64, f64)]) {
    let bases: Vec<Base> = seeds().iter().map(|&seed| base(device, seed)).collect();
    for &(ref policy, target_us, lc, total) in wanted {
        let points: Vec<_> =
            bases.iter().map(|base| point(policy, device, target_us, base)).collect();
        let [has, p99_us, kept] = std::array::from_fn(|at| {
            let mut all: Vec<f64> = points.iter().map(|point| point[at]).collect();
            all.sort_unstable_by(f64::total_cmp);
            all[all.len() / 2]
        });
        assert!(
            p99_us <= target_us as f64 && has >= lc && kept >= total,
            "{device}, {target_us} us: p99 {p99_us} us, {has:.3} of alone, {kept:.3} of none"
        );
    }
}

#[test]
#[ignore = "a step of tests/long: ignored"]
fn a_target_is_met_on_a_device_of_one_link() {
    // If there is a target, a configured D is only an upper bound.
    check("z-ssd", &[(Held(Some(256)), 60, 0.3, 0.98)]);
}

#[test]
#[ignore = "a step of tests/long: ignored"]
fn a_target_is_met_with_a_d_that_is_found() {
    check("z-ssd", &[(Held(None), 60, 0.6, 0.92), (Held(None), 100, 0.3, 0.94)]);
}

#[test]
fn a_target_is_met_on_a_device_of_many_dies() {
    check("p4500", &[(Held(None), 260, 0.6, 0.6)]);
}

#[test]
fn a_tenant_that_comes_late_has_its_share_at_once_and_its_target_in_a_second() {
    comes_late("p4500", 260);
}

#[test]
#[ignore = "a step of tests/long: ignored"]
fn a_tenant_that_comes_late_to_a_device_of_one_link() {
    comes_late("z-ssd", 60);
}

/// The first tenant starts when the others have run for ten seconds.
fn comes_late(device: &str, target_us: u64) {
    let burst = |warmup_ns: u64, until_ns: u64| {
        let mut scenario = scenario(device, Some(target_us), 1);
        scenario.tenants[0].lives = vec![(10 * SECOND, u64::MAX)];
        (scenario.warmup_ns, scenario.duration_ns) = (warmup_ns, until_ns);
        run(&scenario, &Held(None), vec![]).unwrap()
    };
    let per_second = |run: &Run| run.tenants[0].requests as f64 * 1e9 / run.measured_ns as f64;
    let soon = burst(10 * SECOND + 100 * MS, 10 * SECOND + 200 * MS);
    let later = burst(11 * SECOND, 12 * SECOND);
    let (soon, settled) = (per_second(&soon), per_second(&later));
    let p99_us = later.tenants[0].quantile_us(0.99);
    println!("{device}: {soon:.0} and {settled:.0} a second, {p99_us} us");
    assert!(p99_us <= target_us as f64, "{device}: {p99_us} us in the second second");
    assert!(soon >= 0.6 * settled, "{device}: {soon} a second at first, {settled} later");
}
