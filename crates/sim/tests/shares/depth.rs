//! The search for D, in the lab: two tenants of weights 300 and 100, which together have twice the
//! depth that fills the device, get shares by their weights at the device's full rate, also after a
//! change of the load.
//!
//! The depth that fills a device is from the table of least depths that keep 97 % of its rate. The
//! list omits 64 KiB on the Z-SSD, which two requests fill: a tenant of depth 2 with both requests
//! on the device has none waiting when one of them completes, so even the best fixed D gives a
//! ratio of only 2.5.

use super::changed;
use fairq_core::depth::DepthConfig;
use fairq_core::kyber_fair::{KyberFair, Totals};
use fairq_core::managed::{Managed, Stages};
use fairq_core::mqfq::Mqfq;
use fairq_core::{ConfigError, Platform};
use fairq_device::{DiskProfile, Profile};
use fairq_sim::policies::{AnySubject, KyberFairSubject, MqfqSubject};
use fairq_sim::scenario::{Access, Job, MS, SECOND, Scenario, Tenant};
use fairq_sim::subject::{Built, Promise, Subject};
use fairq_sim::{Run, run};

/// MQFQ with a search for D.
pub(super) struct Auto;

impl<P: Platform> Subject<P> for Auto {
    type Policy = Managed<Mqfq<P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let multi = MqfqSubject { slots: 64, threshold: 45 << 10 };
        let built = Subject::<P>::build(&multi, scenario)?;
        let depth = Some(DepthConfig::Slots { is_auto: true });
        let stages = Stages { depth, ..Stages::default() };
        Managed::new(built, scenario.tags(), scenario.flows(), &stages)
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// Kyber-fairness with this `busy`, or with a search for it.
struct Tokens(Option<u32>);

impl<P: Platform> Subject<P> for Tokens {
    type Policy = Managed<KyberFair<P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let busy = self.0.unwrap_or(16);
        let fair = KyberFairSubject { busy, totals: Totals::default() };
        let built = Subject::<P>::build(&fair, scenario)?;
        let depth = Some(DepthConfig::Busy { busy, is_auto: self.0.is_none() });
        let stages = Stages { depth, ..Stages::default() };
        Managed::new(built, scenario.tags(), scenario.flows(), &stages)
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// The load: bytes of a request, percentage of reads, and depth of each tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load(pub(super) u32, pub(super) u32, pub(super) u32);

/// Jain's index of the service, for equal weights.
fn jain(got: &[f64]) -> f64 {
    let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|n| n * n).sum::<f64>());
    sum * sum / (squares * got.len() as f64)
}

pub(super) fn tenants(Load(bytes, read_percent, depth): Load, life: (u64, u64)) -> [Tenant; 2] {
    [("gold", 300, 0), ("silver", 100, 1)].map(|(name, weight, core)| Tenant {
        lives: vec![life],
        ..Tenant::new(
            name,
            weight,
            vec![core],
            Job { read_percent, ..Job::random_read(bytes, depth) },
        )
    })
}

/// The ratio of the last two tenants' bytes, and the sum.
pub(super) fn got(run: &Run) -> (f64, u64) {
    let [.., gold, silver] = &run.tenants[..] else { panic!("two tenants") };
    (gold.bytes as f64 / silver.bytes as f64, gold.bytes + silver.bytes)
}

/// Checks the shares after two seconds of search; the load before it also lasts two seconds.
fn check(device: &str, before: Option<Load>, load: Load) {
    let starts_ns = if before.is_some() { 2 * SECOND } else { 0 };
    let mut all = Vec::new();
    if let Some(before) = before {
        all.extend(tenants(before, (0, starts_ns)));
    }
    all.extend(tenants(load, (starts_ns, u64::MAX)));
    let profile = Profile::named(device).unwrap();
    let mut scenario = Scenario::new(profile, 2, all, starts_ns + 4 * SECOND);
    scenario.warmup_ns = starts_ns + 2 * SECOND;
    let (_, possible) = got(&AnySubject::None.measure(&scenario).unwrap());
    let found = run(&scenario, &Auto, vec![]).unwrap();
    let (ratio, total) = got(&found);
    let kept = total as f64 / possible as f64;
    let slots = found.stats.slots;
    println!("{device}, {load:?} after {before:?}: 1:{ratio:.3} at {kept:.3} of none, D={slots:?}");
    assert!(
        (2.85..=3.15).contains(&ratio) && kept >= 0.97,
        "{device}, {load:?} after {before:?}: 1:{ratio:.3} at {kept:.3} of none, D={slots:?}"
    );
}

#[test]
fn weights_hold_on_a_device_that_is_just_filled() {
    check("z-ssd", None, Load(4096, 0, 12));
    check("p3700", None, Load(65536, 100, 8));
    check("p4500", None, Load(4096, 0, 8));
}

#[test]
fn weights_hold_on_a_device_of_many_dies() {
    check("980-pro", None, Load(65536, 100, 12));
    check("980-pro", None, Load(4096, 0, 24));
}

#[test]
fn weights_hold_when_the_load_has_changed() {
    check("980-pro", Some(Load(4096, 100, 96)), Load(65536, 100, 12));
}

/// The other rows of the table of least depths.
#[test]
#[ignore = "a step of tests/long: ignored"]
fn weights_hold_on_all_devices() {
    check("z-ssd", None, Load(4096, 100, 16));
    check("p3700", None, Load(4096, 100, 48));
    check("p3700", None, Load(4096, 0, 12));
    check("p4500", None, Load(65536, 100, 8));
    check("p4500", None, Load(4096, 100, 96));
    check("980-pro", None, Load(4096, 100, 96));
    check("p4500", Some(Load(65536, 100, 8)), Load(4096, 100, 96));
    check("z-ssd", Some(Load(4096, 100, 128)), Load(4096, 0, 12));
}

/// A device like the paced one in the tests of clients: a link of 16 MB/s, and 16 commands at a
/// time.
fn link() -> Profile {
    let lines = [
        ("read-mb-s = 3200", "read-mb-s = 16"),
        ("read-fixed-us", "read-fixed-us = 300 #"),
        ("window", "window = 16 #"),
    ];
    changed("z-ssd", &lines)
}

/// A device of 500 requests a second that executes `inside` requests at a time.
fn five_hundred(inside: u32) -> Profile {
    let fixed = format!("read-fixed-us = {} #", (inside - 1) * 2000);
    changed("z-ssd", &[("read-us", "read-us = 2000 #"), ("read-fixed-us", &fixed)])
}

/// The requests of each tenant with a search for D, and with a fixed D.
fn beside(scenario: &Scenario, slots: u32) -> [Vec<u64>; 2] {
    let requests = |run: Run| {
        println!("D={:?}", run.stats.slots);
        run.tenants.iter().map(|got| got.requests).collect()
    };
    let fixed = AnySubject::Mqfq(MqfqSubject { slots, threshold: 45 << 10 });
    [run(scenario, &Auto, vec![]).unwrap(), fixed.measure(scenario).unwrap()].map(requests)
}

/// Two connections have two requests of 32 MiB each outstanding, which are scheduled in pieces of
/// 64 KiB: a thousand pieces arrive at once at a device that has served only small requests so far.
#[test]
fn large_requests_leave_short_queues_their_part() {
    for depth in [32, 16] {
        let large = Job { access: Access::Sequential, ..Job::random_read(65_536, 512) };
        let tenants = vec![
            Tenant::new("good", 100, vec![0], Job::random_read(4096, depth)),
            Tenant::new("bad", 100, vec![0, 1], large).from(2 * SECOND),
        ];
        let mut scenario = Scenario::new(link(), 2, tenants, 2 * SECOND + 3500 * MS);
        scenario.warmup_ns = 2 * SECOND + 500 * MS;
        let [auto, fixed] = beside(&scenario, 16);
        let part = |of: &[u64]| of[0] as f64 / (of[0] + 16 * of[1]) as f64;
        let (part, usual) = (part(&auto), part(&fixed));
        assert!(part >= 0.425 && part >= 0.95 * usual, "depth {depth}: {part:.3}, {usual:.3}");
    }
}

/// Checks that the device reaches nearly its rate with the usual D of 64, and that a short queue
/// gets nearly the same service as with that D; on a disk it has some 1,900 requests in the time,
/// with random deviations of 2 %.
fn is_no_worse_than_usual(name: &str, scenario: &Scenario) {
    let [auto, fixed] = beside(scenario, 64);
    let kept = auto.iter().sum::<u64>() as f64 / fixed.iter().sum::<u64>() as f64;
    assert!(kept >= 0.95, "{name}: {kept:.3} of the rate with D=64: {auto:?}, {fixed:?}");
    let (short, usual) = (auto[0] as f64, fixed[0] as f64);
    println!("{name}: {short} of {usual}, at {kept:.3}");
    assert!(short >= 0.9 * usual, "{name}: the short queue has {short}, with D=64 {usual}");
}

#[test]
fn slow_devices_are_no_worse_than_with_a_fixed_d() {
    for inside in [1, 4, 16] {
        for short in [1, 8] {
            let tenants = vec![
                Tenant::new("short", 100, vec![0], Job::random_read(4096, short)),
                Tenant::new("deep", 100, vec![1], Job::random_read(65_536, 128)),
            ];
            let mut scenario = Scenario::new(five_hundred(inside), 2, tenants, 30 * SECOND);
            scenario.warmup_ns = 10 * SECOND;
            is_no_worse_than_usual(&format!("{inside} inside, depth {short}"), &scenario);
        }
    }
}

#[test]
fn a_disk_is_no_worse_than_with_a_fixed_d() {
    for short in [1, 8] {
        let tenants = vec![
            Tenant::new("short", 100, vec![0], Job::random_read(4096, short)),
            Tenant::new("deep", 100, vec![1], Job::random_read(4096, 128)),
        ];
        let mut scenario = Scenario::new(link(), 2, tenants, 400 * SECOND);
        scenario.disk = Some(DiskProfile::deskstar());
        scenario.warmup_ns = 20 * SECOND;
        is_no_worse_than_usual(&format!("depth {short}"), &scenario);
    }
}

/// If fewer requests are outstanding than the device takes, tokens give shares by weight if `busy`
/// is at most that number. A tenant that does not use its tokens also leaves its part of the device
/// unused.
#[test]
fn what_keeps_a_device_busy_is_found_for_tokens() {
    let (device, load) = ("p4500", Load(65536, 100, 8));
    let all = tenants(load, (0, u64::MAX));
    let mut scenario = Scenario::new(Profile::named(device).unwrap(), 2, all.to_vec(), 3 * SECOND);
    scenario.warmup_ns = SECOND;
    let (_, possible) = got(&AnySubject::None.measure(&scenario).unwrap());
    let (ratio, total) = got(&run(&scenario, &Tokens(None), vec![]).unwrap());
    let kept = total as f64 / possible as f64;
    assert!(
        (2.85..=3.15).contains(&ratio) && kept >= 0.97,
        "{device}: 1:{ratio:.3} at {kept:.3} of none"
    );
    for (device, depth) in [("z-ssd", 1), ("p4500", 16)] {
        let all = vec![
            Tenant::new("shallow", 300, vec![0], Job::random_read(4096, depth)),
            Tenant::new("deep", 100, vec![1], Job::random_read(4096, 256)),
        ];
        let mut scenario = Scenario::new(Profile::named(device).unwrap(), 2, all, 3 * SECOND);
        scenario.warmup_ns = 2 * SECOND;
        let none = AnySubject::None.measure(&scenario).unwrap();
        let kept = |busy| run(&scenario, &Tokens(busy), vec![]).unwrap().iops() / none.iops();
        let (found, least) = (kept(None), kept(Some(1)));
        assert!(found >= 0.96 && least <= 0.6, "{device}: {found:.3}, with busy of 1 {least:.3}");
    }
}

/// There are 16 small requests, all of which are on the device if D is 16 or more. A larger D only
/// adds large requests, which take the device's time from the small ones: slightly more bytes and
/// only a sixth of the requests are served.
#[test]
fn small_requests_are_not_given_up_for_a_little_more_in_bytes() {
    let tenant = |number: usize| {
        let bytes = if number < 4 { 4096 } else { 256 << 10 };
        let cores = vec![number % 2];
        Tenant::new(&format!("t{number}"), 100, cores, Job::random_read(bytes, 4))
    };
    let profile = Profile::named("z-ssd").unwrap();
    let mut scenario = Scenario::new(profile, 2, (0..8).map(tenant).collect(), 4 * SECOND);
    scenario.warmup_ns = 2 * SECOND;
    let none = AnySubject::None.measure(&scenario).unwrap();
    let found = run(&scenario, &Auto, vec![]).unwrap();
    let bytes = |run: &Run| run.tenants.iter().map(|got| got.bytes as f64).sum::<f64>();
    let kept = bytes(&found) / bytes(&none);
    let shares: Vec<f64> = found.tenants.iter().map(|got| got.bytes as f64).collect();
    let jain = jain(&shares);
    let slots = found.stats.slots;
    assert!(kept >= 0.95 && jain >= 0.98, "{kept:.3} of none, Jain {jain:.3}, D={slots:?}");
}

/// Each of ten thousand tenants has one request outstanding; together these are far more than the
/// device needs.
#[test]
#[ignore = "a step of tests/long: ignored"]
fn ten_thousand_tenants_have_the_device_in_equal_parts() {
    let tenant = |number: usize| {
        let job = Job::random_read(4096, 1);
        Tenant::new(&format!("t{number}"), 100, vec![number % 16], job)
    };
    let all = (0..10_000).map(tenant).collect();
    let mut scenario = Scenario::new(Profile::named("z-ssd").unwrap(), 16, all, 2500 * MS);
    scenario.warmup_ns = 2 * SECOND;
    let none = AnySubject::None.measure(&scenario).unwrap();
    let found = run(&scenario, &Auto, vec![]).unwrap();
    let kept = found.iops() / none.iops();
    let each: Vec<f64> = found.tenants.iter().map(|got| got.requests as f64).collect();
    let jain = jain(&each);
    let slots = found.stats.slots;
    // Each tenant gets some 37 requests, and T allows a difference of eleven requests.
    assert!(kept >= 0.97 && jain >= 0.9, "{kept:.3} of none, Jain {jain:.3}, D={slots:?}");
}
