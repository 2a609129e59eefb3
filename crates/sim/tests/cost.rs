//! Costs by the device's time, in the lab.

use fairq_core::cost::{CostConfig, CostKind, Costs};
use fairq_core::depth::AutoDepth;
use fairq_core::mqfq::Mqfq;
use fairq_core::{ConfigError, Platform};
use fairq_device::{Profile, State};
use fairq_sim::policies::MqfqSubject;
use fairq_sim::scenario::{Access, Job, MS, SECOND, Scenario, Tenant};
use fairq_sim::subject::{Built, Promise, Subject};
use fairq_sim::{Run, run};

/// MQFQ with these costs, and a D that is searched for or not.
struct Costed(CostKind, Option<u32>);

impl<P: Platform> Subject<P> for Costed {
    type Policy = Costs<AutoDepth<Mqfq<P>, P>, P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        let multi = MqfqSubject { slots: self.1.unwrap_or(64), threshold: 45 << 10 };
        let (policy, ports) = Subject::<P>::build(&multi, scenario)?;
        let (tags, flows) = (scenario.tags(), scenario.flows());
        let (policy, ports) = AutoDepth::new(policy, ports, tags, flows, self.1.is_none());
        let mut cost = CostConfig::default();
        cost.kind = self.0;
        Ok(Costs::new(policy, ports, tags, flows, &cost))
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

/// A profile with some of its lines changed.
fn changed(name: &str, lines: &[(&str, &str)]) -> Profile {
    let (_, text) =
        fairq_device::profile::BUILT_IN.into_iter().find(|(known, _)| *known == name).unwrap();
    let mut text = text[..text.find("[[point]]").unwrap()].to_owned();
    for (from, to) in lines {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    Profile::parse(&text).unwrap()
}

/// 4,000 requests a second, 16 of them at a time.
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

/// A link of 100 MB/s.
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

struct Case {
    name: &'static str,
    profile: Profile,
    state: State,
    tenants: Vec<Tenant>,
}

fn rates(run: &Run) -> Vec<f64> {
    run.tenants.iter().map(|got| got.bytes as f64).collect()
}

fn explore(case: &Case) {
    let scenario = |tenants: Vec<Tenant>, ns: u64, warm: u64| {
        let mut scenario = Scenario::new(case.profile.clone(), 2, tenants, ns);
        scenario.warmup_ns = warm;
        scenario.state = case.state;
        scenario
    };
    let alone: Vec<f64> = case
        .tenants
        .iter()
        .map(|tenant| {
            let scenario = scenario(vec![tenant.clone()], 1200 * MS, 200 * MS);
            rates(&run(&scenario, &Costed(CostKind::Bytes, Some(64)), vec![]).unwrap())[0]
        })
        .collect();
    for (kind, depth) in [
        (CostKind::Bytes, Some(64)),
        (CostKind::Bytes, None),
        (CostKind::Requests, Some(16)),
        (CostKind::Requests, None),
        (CostKind::Device, Some(16)),
        (CostKind::Device, Some(64)),
        (CostKind::Device, None),
    ] {
        let mut scenario = scenario(
            case.tenants.clone(),
            std::env::var("SECS").map_or(6, |s| s.parse().unwrap()) * SECOND,
            2 * SECOND,
        );
        scenario.series_ns = Some(scenario.duration_ns / 20);
        let start = std::time::Instant::now();
        let run = run(&scenario, &Costed(kind, depth), vec![]).unwrap();
        let parts: Vec<String> = rates(&run)
            .iter()
            .zip(&alone)
            .map(|(got, alone)| format!("{:.3}", got / (run.measured_ns as f64 / 1e9) / alone))
            .collect();
        println!(
            "{} {kind:?} {depth:?}: {} {:?} D={:?} {:?}",
            case.name,
            parts.join(" "),
            run.stats.cost.map(|c| (c.bases, c.per_kib, c.windows)),
            run.stats.slots,
            start.elapsed()
        );
        if std::env::var("SERIES").is_ok() {
            for got in &run.tenants {
                println!("   {:?}", got.series);
            }
        }
    }
}

fn reader(name: &str, bytes: u32, depth: u32, core: usize) -> Tenant {
    Tenant::new(name, 100, vec![core], Job::random_read(bytes, depth))
}

fn writer(name: &str, bytes: u32, depth: u32, core: usize) -> Tenant {
    Tenant::new(name, 100, vec![core], Job { read_percent: 0, ..Job::random_read(bytes, depth) })
}

#[test]
fn exploring() {
    let only = std::env::var("CASE").unwrap_or_default();
    let mut cases = vec![];
    let mut case =
        |name, profile: Profile, state, tenants| cases.push(Case { name, profile, state, tenants });
    case(
        "4000",
        four_thousand(16),
        State::Fresh,
        vec![reader("a", 512, 64, 0), reader("b", 1 << 20, 8, 1)],
    );
    case(
        "4000 beside",
        four_thousand(16),
        State::Fresh,
        vec![reader("a", 4096, 64, 0), reader("b", 65536, 64, 1)],
    );
    case(
        "4k1",
        four_thousand(1),
        State::Fresh,
        vec![reader("a", 512, 64, 0), reader("b", 1 << 20, 8, 1)],
    );
    case(
        "4k4",
        four_thousand(4),
        State::Fresh,
        vec![reader("a", 512, 64, 0), reader("b", 1 << 20, 8, 1)],
    );
    case("link", link(), State::Fresh, vec![reader("a", 4096, 64, 0), reader("b", 1 << 16, 32, 1)]);
    case("link2", link(), State::Fresh, vec![reader("a", 512, 64, 0), reader("b", 1 << 20, 8, 1)]);
    for (device, name) in
        [("z-ssd", "z"), ("p3700", "p3700"), ("p4500", "p4500"), ("980-pro", "980")]
    {
        let profile = Profile::named(device).unwrap();
        let of =
            |what: &str| -> &'static str { Box::leak(format!("{name} {what}").into_boxed_str()) };
        case(
            of("4k 64k"),
            profile.clone(),
            State::Fresh,
            vec![reader("a", 4096, 128, 0), reader("b", 65536, 32, 1)],
        );
        case(
            of("same"),
            profile.clone(),
            State::Fresh,
            vec![reader("a", 4096, 128, 0), reader("b", 4096, 128, 1)],
        );
        case(
            of("r w"),
            profile.clone(),
            State::Fresh,
            vec![reader("a", 4096, 128, 0), writer("b", 4096, 128, 1)],
        );
        case(
            of("r w steady"),
            profile.clone(),
            State::Steady,
            vec![reader("a", 4096, 128, 0), writer("b", 4096, 128, 1)],
        );
        case(
            of("r w64"),
            profile.clone(),
            State::Fresh,
            vec![reader("a", 4096, 128, 0), writer("b", 65536, 32, 1)],
        );
    }
    for case in cases.iter().filter(|case| case.name.contains(&only)) {
        explore(case);
    }
    let _ = Access::Random;
}
