//! D by itself, in the lab: two tenants 300:100 that are together twice as deep as fills the device
//! get their weights at the device's full rate; and again when the load has changed.
//!
//! How much fills a device is from the table of least depths that keep 97 % of its rate. Not in the
//! list is 64 KiB on the Z-SSD, which two requests fill: a tenant of depth 2 that has both on the
//! device has none to send when one of them completes, so the best fixed D gives 2.5 there, too.

use fairq_core::depth::AutoDepth;
use fairq_core::mqfq::Mqfq;
use fairq_core::{ConfigError, Platform};
use fairq_device::Profile;
use fairq_sim::policies::{AnySubject, MqfqSubject};
use fairq_sim::scenario::{Job, SECOND, Scenario, Tenant};
use fairq_sim::subject::{Built, Promise, Subject};
use fairq_sim::{Run, run};

/// MQFQ with a D that is searched for.
struct Auto;

impl<P: Platform> Subject<P> for Auto {
    type Policy = AutoDepth<Mqfq<P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let multi = MqfqSubject { slots: 64, threshold: 45 << 10 };
        let (policy, ports) = Subject::<P>::build(&multi, scenario)?;
        Ok(AutoDepth::new(policy, ports, scenario.tags(), scenario.flows(), true))
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// What is asked for: bytes, how many percent are reads, and the depth of each tenant.
#[derive(Clone, Copy, Debug)]
struct Load(u32, u32, u32);

fn tenants(Load(bytes, read_percent, depth): Load, life: (u64, u64)) -> [Tenant; 2] {
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

/// The last two tenants' ratio, and their bytes.
fn got(run: &Run) -> (f64, u64) {
    let [.., gold, silver] = &run.tenants[..] else { panic!("two tenants") };
    (gold.bytes as f64 / silver.bytes as f64, gold.bytes + silver.bytes)
}

/// Two seconds are for the search; the loads before last as long.
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
    assert!(
        (2.85..=3.15).contains(&ratio) && kept >= 0.97,
        "{device}, {load:?} after {before:?}: 1:{ratio:.3} at {kept:.3} of none, D={slots:?}"
    );
}

#[test]
fn weights_hold_on_a_device_that_is_just_filled() {
    check("z-ssd", None, Load(4096, 100, 16));
    check("z-ssd", None, Load(4096, 0, 12));
    check("p3700", None, Load(4096, 100, 48));
    check("p3700", None, Load(65536, 100, 8));
    check("p3700", None, Load(4096, 0, 12));
    check("p4500", None, Load(65536, 100, 8));
    check("p4500", None, Load(4096, 0, 8));
}

#[test]
fn weights_hold_on_a_device_of_many_dies() {
    check("p4500", None, Load(4096, 100, 96));
    check("980-pro", None, Load(4096, 100, 96));
    check("980-pro", None, Load(65536, 100, 12));
    check("980-pro", None, Load(4096, 0, 24));
}

#[test]
fn weights_hold_when_the_load_has_changed() {
    check("p4500", Some(Load(65536, 100, 8)), Load(4096, 100, 96));
    check("z-ssd", Some(Load(4096, 100, 128)), Load(4096, 0, 12));
    check("980-pro", Some(Load(4096, 100, 96)), Load(65536, 100, 12));
}
