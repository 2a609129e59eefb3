//! Compares the model of Linux's BFQ with Linux, by the loads of `linux_bfq.toml` and the figures
//! there, which `bench/oracle` has measured.
//!
//! The test requires all bytes and each share within 15 %, and the order of latencies that differ
//! by more than 15 %. The file lists the exceptions.

use std::collections::BTreeMap;

use fairq_device::Profile;
use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
use fairq_sim::scenario::{Access, Job, SECOND, Scenario, Tenant};
use fairq_sim::{Got, Run};
use serde::Deserialize;

/// The number of requests that the drive executes at a time, plus one: Linux detects a full drive
/// only when it has taken the next request from its scheduler.
const SLOTS: u32 = 16 + 1;
/// The tolerance; a smaller difference counts as none.
const WITHIN: f64 = 0.15;
const FILE: &str = include_str!("linux_bfq.toml");

#[derive(Deserialize)]
struct Measured {
    drive: toml::Table,
    load: Vec<Load>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Load {
    name: String,
    #[serde(default = "yes")]
    groups: bool,
    #[serde(default)]
    low_latency: bool,
    #[serde(default = "four")]
    before: u64,
    #[serde(default = "forty")]
    seconds: u64,
    tenants: Vec<Asks>,
    /// Linux's figures by version.
    linux: BTreeMap<String, Linux>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Asks {
    weight: u16,
    depth: u32,
    kib: u32,
    rw: String,
    processes: usize,
    starts: u64,
    pause_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Linux {
    mb_s: f64,
    shares: Vec<f64>,
    mean_ms: Vec<f64>,
    #[serde(default)]
    apart: Vec<String>,
}

fn modelled(version: &str) -> Kernel {
    match version {
        "4.15" => Kernel::V4_15,
        "5.2" => Kernel::V5_2,
        "5.3" => Kernel::V5_3,
        "7.2" => Kernel::V7_2,
        other => panic!("no model of {other}"),
    }
}

fn yes() -> bool {
    true
}

fn four() -> u64 {
    4
}

fn forty() -> u64 {
    40
}

impl Default for Asks {
    fn default() -> Asks {
        let rw = "randread".to_owned();
        Asks { weight: 100, depth: 32, kib: 4, rw, processes: 1, starts: 0, pause_ms: 0 }
    }
}

impl Asks {
    fn job(&self) -> Job {
        let (access, read_percent) = match &*self.rw {
            "randread" => (Access::Random, 100),
            "randwrite" => (Access::Random, 0),
            "read" => (Access::Sequential, 100),
            other => panic!("rw = {other}"),
        };
        // The time that fio takes from a completion to the next request; meanwhile requests of
        // other processes are dispatched.
        let think_ns = 20_000 + self.pause_ms * 1_000_000;
        let job = Job { think_ns, ..Job::random_read(self.kib << 10, self.depth) };
        Job { access, read_percent, ..job }
    }
}

impl Load {
    /// Runs the load; each process is a flow, which has a part of its group's weight.
    fn run(&self, drive: &Profile, kernel: Kernel) -> Run {
        let begin = self.before + self.tenants.iter().map(|asks| asks.starts).max().unwrap_or(0);
        let end_ns = (begin + self.seconds) * SECOND;
        let processes = self.tenants.iter().flat_map(|asks| vec![asks; asks.processes]);
        let tenant = |(at, asks): (usize, &Asks)| {
            let name = format!("t{at}");
            let mut tenant = Tenant::new(&name, asks.weight, vec![at % 4], asks.job());
            if asks.starts > 0 {
                tenant.lives = vec![(asks.starts * SECOND, end_ns)];
            }
            tenant
        };
        let tenants: Vec<Tenant> = processes.enumerate().map(tenant).collect();
        let mut scenario = Scenario::new(drive.clone(), 4, tenants, end_ns);
        scenario.warmup_ns = begin * SECOND;
        let processes = if self.groups { self.tenants[0].processes } else { 0 };
        let bfq = LinuxBfqConfig {
            kernel,
            processes,
            budget: 0,
            cycles: LinuxBfqConfig::CYCLES,
            low_latency: self.low_latency,
        };
        let lock = SerialSubject::new(Scheduler::LinuxBfq(bfq), SLOTS).merging();
        let mut run = AnySubject::Serial(lock).run(&scenario).unwrap();
        assert!(run.violation.is_none(), "{}: {:?}", self.name, run.violation);
        let mut flows = std::mem::take(&mut run.tenants).into_iter();
        let together = |asks: &Asks| flows.by_ref().take(asks.processes).reduce(Got::with);
        run.tenants = self.tenants.iter().filter_map(together).collect();
        run
    }
}

fn is_near(ours: f64, linux: f64) -> bool {
    (ours / linux - 1.0).abs() <= WITHIN
}

#[test]
fn the_model_does_what_linux_does() {
    let Measured { drive, load: loads } = toml::from_str(FILE).unwrap();
    let drive = Profile::parse(&drive.to_string()).unwrap();
    let mut wrong = Vec::new();
    let measured = |load: &Load| load.linux.keys().cloned().collect::<Vec<_>>();
    let all = loads.iter().flat_map(|load| measured(load).into_iter().map(move |of| (load, of)));
    for (load, version) in all {
        let run = load.run(&drive, modelled(&version));
        let mb_s = run.bandwidth() / 1e6;
        let shares: Vec<f64> = run.shares().iter().map(|share| 100.0 * share).collect();
        let means: Vec<f64> = run.tenants.iter().map(|got| got.mean_us() / 1000.0).collect();
        let told = |values: &[f64]| {
            values.iter().map(|value| format!("{value:.1}")).collect::<Vec<_>>().join(" ")
        };
        // `bench/oracle` reads these lines.
        println!("{} | {version} | {mb_s:.2} | {} | {}", load.name, told(&shares), told(&means));

        let linux = &load.linux[&version];
        let mut apart = Vec::new();
        if !is_near(mb_s, linux.mb_s) {
            apart.push("bytes".to_owned());
        }
        for (at, (&ours, &theirs)) in shares.iter().zip(&linux.shares).enumerate() {
            if !is_near(ours, theirs) {
                apart.push(format!("share {at}"));
            }
        }
        for a in 0..means.len() {
            for b in 0..a {
                let (here, there) = (means[a] / means[b], linux.mean_ms[a] / linux.mean_ms[b]);
                if there.max(1.0 / there) > 1.0 + WITHIN && (here > 1.0) != (there > 1.0) {
                    apart.push(format!("order of {b} and {a}"));
                }
            }
        }
        if apart != linux.apart {
            wrong.push(format!("{}, {version}: {apart:?}, not {:?}", load.name, linux.apart));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
