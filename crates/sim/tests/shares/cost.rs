//! Costs by the device's time, in the lab.

use super::changed;
use fairq_core::cost::{CostConfig, CostKind};
use fairq_core::depth::DepthConfig;
use fairq_core::managed::{Managed, Stages};
use fairq_core::mqfq::Mqfq;
use fairq_core::{ConfigError, Platform};
use fairq_device::{Profile, State};
use fairq_sim::policies::MqfqSubject;
use fairq_sim::scenario::{Job, MS, SECOND, Scenario, Tenant};
use fairq_sim::subject::{Built, Promise, Subject};
use fairq_sim::{Run, run};

/// MQFQ with these costs, and a fixed D or a search for D.
struct Costed(CostKind, Option<u32>);

impl<P: Platform> Subject<P> for Costed {
    type Policy = Managed<Mqfq<P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let multi = MqfqSubject { slots: self.1.unwrap_or(64), threshold: 45 << 10 };
        let built = Subject::<P>::build(&multi, scenario)?;
        let mut cost = CostConfig::default();
        cost.kind = self.0;
        let depth = Some(DepthConfig::Slots { is_auto: self.1.is_none() });
        let stages = Stages { cost: Some(cost), depth, ..Stages::default() };
        Managed::new(built, scenario.tags(), scenario.flows(), &stages)
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// A device of 4,000 requests a second that executes `inside` requests at a time.
fn four_thousand(inside: u32) -> Profile {
    let fixed = format!("read-fixed-us = {} #", (inside - 1) * 250);
    changed(
        "z-ssd",
        &[
            ("read-us = 1.333", "read-us = 250"),
            ("read-fixed-us", &fixed),
            ("write-us = 1.333", "write-us = 250"),
            ("read-mb-s = 3200", "read-mb-s = 9000"),
            ("channel-mb-s = 800", "channel-mb-s = 2000"),
        ],
    )
}

/// A device whose link has 100 MB/s.
fn link() -> Profile {
    changed(
        "z-ssd",
        &[
            ("read-mb-s = 3200", "read-mb-s = 100"),
            ("write-mb-s = 3200", "write-mb-s = 100"),
            ("read-fixed-us", "read-fixed-us = 300 #"),
        ],
    )
}

fn reader(name: &str, bytes: u32, depth: u32, core: usize) -> Tenant {
    Tenant::new(name, 100, vec![core], Job::random_read(bytes, depth))
}

fn writer(name: &str, bytes: u32, depth: u32, core: usize) -> Tenant {
    Tenant::new(name, 100, vec![core], Job { read_percent: 0, ..Job::random_read(bytes, depth) })
}

/// Two tenants on a device.
#[derive(Clone)]
struct Case {
    profile: Profile,
    state: State,
    tenants: [Tenant; 2],
}

impl Case {
    fn new(profile: Profile, tenants: [Tenant; 2]) -> Case {
        Case { profile, state: State::Fresh, tenants }
    }

    /// Bytes a second of each tenant between two times.
    fn run(&self, costed: &Costed, tenants: &[Tenant], [from, to]: [u64; 2]) -> (Vec<f64>, Run) {
        let mut scenario = Scenario::new(self.profile.clone(), 2, tenants.to_vec(), to);
        (scenario.warmup_ns, scenario.state) = (from, self.state);
        let run = run(&scenario, costed, vec![]).unwrap();
        let seconds = run.measured_ns as f64 / SECOND as f64;
        (run.tenants.iter().map(|got| got.bytes as f64 / seconds).collect(), run)
    }

    /// Each tenant's throughput as a fraction of its throughput alone.
    fn parts(&self, costed: &Costed, times: [u64; 2]) -> ([f64; 2], Run) {
        let (got, run) = self.run(costed, &self.tenants, times);
        let part = |index: usize| {
            let only = &self.tenants[index..=index];
            let alone = Costed(CostKind::Bytes, Some(64));
            got[index] / self.run(&alone, only, [200 * MS, 1200 * MS]).0[0]
        };
        ([part(0), part(1)], run)
    }
}

const SMALL_AND_LARGE: fn() -> [Tenant; 2] =
    || [reader("small", 512, 64, 0), reader("large", 1 << 20, 8, 1)];

/// 512 bytes at depth 64 beside 1 MiB at depth 8: each has half of its throughput alone, within two
/// seconds at a given D, and with a search for D.
#[test]
fn a_device_that_is_short_of_requests_is_shared_by_requests() {
    for (inside, slots, times) in
        [(1, Some(16), [2, 4]), (4, Some(16), [2, 4]), (1, None, [5, 11]), (4, None, [5, 11])]
    {
        let case = Case::new(four_thousand(inside), SMALL_AND_LARGE());
        let times = times.map(|time| time * SECOND);
        let (parts, run) = case.parts(&Costed(CostKind::Device, slots), times);
        let said = format!("{inside} inside, D {slots:?}: {parts:?}, {:?}", run.stats.cost);
        assert!(parts.iter().all(|part| (0.45..=0.55).contains(part)), "{said}");
        let (parts, _) = case.parts(&Costed(CostKind::Bytes, slots), times);
        assert!(parts[1] < 0.05, "{inside} inside: by bytes {parts:?}");
    }
}

/// A device whose bottleneck is bytes is shared by bytes.
#[test]
fn a_link_is_shared_by_bytes() {
    for slots in [Some(16), None] {
        let case = Case::new(link(), [reader("a", 4096, 64, 0), reader("b", 1 << 16, 32, 1)]);
        let (parts, run) = case.parts(&Costed(CostKind::Device, slots), [2 * SECOND, 6 * SECOND]);
        let said = format!("D {slots:?}: {parts:?}, {:?}", run.stats.cost);
        assert!(parts.iter().all(|part| (0.48..=0.52).contains(part)), "{said}");
    }
}

/// Requests of the same kind and size have the same cost at any time, so shares follow the weights
/// as with costs in bytes.
#[test]
fn shares_of_the_same_requests_stay_as_they_are() {
    let mut tenants = [reader("gold", 4096, 64, 0), reader("silver", 4096, 64, 1)];
    tenants[0].weight = 300;
    let case = Case::new(Profile::named("p3700").unwrap(), tenants);
    let ratio = |kind| {
        let (got, _) = case.run(&Costed(kind, Some(64)), &case.tenants, [SECOND / 4, SECOND]);
        got[0] / got[1]
    };
    let [by_bytes, by_time] = [CostKind::Bytes, CostKind::Device].map(ratio);
    assert!((0.99..=1.01).contains(&(by_time / by_bytes)), "{by_bytes:.3}, {by_time:.3}");
}

/// On a device that has been written over, a write takes ten times as long as a read; with costs in
/// bytes the reader has a tenth of its throughput alone.
#[test]
fn a_reader_has_half_of_a_device_that_has_been_written_over() {
    let tenants = [reader("reads", 4096, 128, 0), writer("writes", 4096, 128, 1)];
    let case =
        Case { state: State::Steady, ..Case::new(Profile::named("980-pro").unwrap(), tenants) };
    let (parts, run) = case.parts(&Costed(CostKind::Device, Some(64)), [1500 * MS, 2500 * MS]);
    assert!(parts.iter().all(|part| *part >= 0.45), "{parts:?}, {:?}", run.stats.cost);
    let (parts, _) = case.parts(&Costed(CostKind::Bytes, Some(64)), [1500 * MS, 2500 * MS]);
    assert!(parts[0] < 0.15, "by bytes {parts:?}");
}

/// Prints the table of decision 41: each tenant's throughput as a fraction of its throughput alone,
/// with costs in bytes and with costs by the device's time.
#[test]
#[ignore = "a step of tests/long: ignored"]
fn by_the_devices_time_the_one_that_has_less_has_no_less_than_by_bytes() {
    let rows: [(&str, State, [Tenant; 2]); 5] = [
        (
            "4 KiB and 64 KiB reads",
            State::Fresh,
            [reader("a", 4096, 128, 0), reader("b", 65_536, 32, 1)],
        ),
        (
            "4 KiB reads and writes",
            State::Fresh,
            [reader("a", 4096, 128, 0), writer("b", 4096, 128, 1)],
        ),
        (
            "the same, written over",
            State::Steady,
            [reader("a", 4096, 128, 0), writer("b", 4096, 128, 1)],
        ),
        (
            "4 KiB reads, 64 KiB writes",
            State::Fresh,
            [reader("a", 4096, 128, 0), writer("b", 65_536, 32, 1)],
        ),
        ("4 KiB reads both", State::Fresh, [reader("a", 4096, 128, 0), reader("b", 4096, 128, 1)]),
    ];
    let mut gained = Vec::new();
    println!("| device | load | by bytes | by the device |\n|---|---|---|---|");
    let devices = ["z-ssd", "p3700", "p4500", "980-pro"];
    for (device, (load, state, tenants)) in
        devices.iter().flat_map(|device| rows.iter().map(move |row| (device, row)))
    {
        let profile = Profile::named(device).unwrap();
        let case = Case { state: *state, ..Case::new(profile, tenants.clone()) };
        let parts = |kind| case.parts(&Costed(kind, None), [2 * SECOND, 8 * SECOND]).0;
        let [bytes, time] = [CostKind::Bytes, CostKind::Device].map(parts);
        let show = |[a, b]: [f64; 2]| format!("{a:.2} {b:.2}");
        println!("| {device} | {load} | {} | {} |", show(bytes), show(time));
        // A reader beside a writer may get slightly less if both together get more of the device.
        let least = |[a, b]: [f64; 2]| a.min(b);
        assert!(least(time) > least(bytes) - 0.1, "{device}, {load}: {time:?}, by bytes {bytes:?}");
        gained.push(least(time) / least(bytes));
    }
    let mean = gained.iter().sum::<f64>() / gained.len() as f64;
    assert!(mean > 1.3, "the one that has less has {mean:.2} of what it has by bytes: {gained:?}");
}
