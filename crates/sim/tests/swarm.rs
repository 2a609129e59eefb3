//! The swarm: many seeds, every check. A failure prints its seed, the commit and the command that
//! runs it again; `FAIRQ_SWARM_SEED=n` replays one seed, `FAIRQ_SWARM_SEEDS=n` runs n seeds.

use std::ops::Range;
use std::process::Command;

use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
use fairq_sim::{Machine, Scenario, swarm};

/// Number of seeds of a usual run of the tests.
const SEEDS: u64 = 1500;

/// Number of seeds on hosts whose CPUs take time, and for older policies.
const FEWER_SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

fn seeds(usual: u64) -> Range<u64> {
    match number("FAIRQ_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FAIRQ_SWARM_SEEDS").unwrap_or(usual),
    }
}

/// The output of a git command here; empty if it fails.
fn git(arguments: &[&str]) -> String {
    let output =
        Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

/// The place of a failure, and the command that repeats it.
fn told(test: &str, seed: u64, what: &str) -> String {
    let changes =
        if git(&["status", "--porcelain"]).is_empty() { "" } else { " with uncommitted changes" };
    format!(
        "seed {seed} at commit {}{changes}: {what}\nagain: FAIRQ_SWARM_SEED={seed} cargo test -p \
         fairq-sim --test swarm {test}",
        git(&["rev-parse", "HEAD"])
    )
}

/// Runs all seeds; returns the number of requests.
fn nothing_is_wrong(test: &str, usual: u64, case: impl Fn(u64) -> (Scenario, AnySubject)) -> u64 {
    let one = |seed| {
        let (scenario, policy) = case(seed);
        let run = policy
            .run(&scenario)
            .unwrap_or_else(|error| panic!("{}", told(test, seed, &error.to_string())));
        if let Some(violation) = run.violation {
            panic!(
                "{}",
                told(test, seed, &format!("under {policy:?}: {violation}\n{scenario:#?}"))
            );
        }
        run.requests
    };
    seeds(usual).map(one).sum()
}

#[test]
fn nothing_is_wrong_under_any_seed() {
    let requests = nothing_is_wrong("nothing_is_wrong_under_any_seed", SEEDS, swarm::scenario);
    println!("{requests} requests");
    assert!(requests > 0);
}

/// The swarm on hosts whose CPUs take time, so that requests and faults also arrive at busy cores.
/// In every second run the cores race.
#[test]
fn nothing_is_wrong_where_cpus_take_time() {
    let hosts = [Machine::GOLD_5112, Machine::E5_2630_V3, Machine::FOUR_SOCKETS];
    nothing_is_wrong("nothing_is_wrong_where_cpus_take_time", FEWER_SEEDS, |seed| {
        let (scenario, policy) = swarm::scenario(seed);
        let ports = scenario.ports;
        let host = hosts[seed as usize % 3].host(ports);
        (scenario.on(if seed % 2 == 0 { host } else { host.racing() }), policy)
    });
}

#[test]
fn nothing_is_wrong_with_older_policies() {
    nothing_is_wrong("nothing_is_wrong_with_older_policies", FEWER_SEEDS, |seed| {
        (swarm::scenario(seed).0, swarm::older_policy(seed))
    });
}

#[test]
fn nothing_is_wrong_where_linux_bfq_raises_weights() {
    nothing_is_wrong("nothing_is_wrong_where_linux_bfq_raises_weights", FEWER_SEEDS, |seed| {
        let bfq = LinuxBfqConfig {
            kernel: Kernel::ALL[seed as usize % 4],
            processes: seed as usize / 4 % 3,
            budget: 0,
            cycles: LinuxBfqConfig::CYCLES,
            low_latency: true,
        };
        let mut lock = SerialSubject::new(Scheduler::LinuxBfq(bfq), 1 << (seed % 6));
        lock.waits = seed % 5 > 0;
        (swarm::scenario(seed).0, AnySubject::Serial(lock))
    });
}

/// The swarm with the policies of the papers' authors, while flows come, go and change their
/// weights: each request is served once and in time, at most D requests are outstanding and exactly
/// D while enough wait, virtual time does not go back, and flows stay within the bounds of MQFQ's
/// theorems.
#[test]
fn nothing_is_wrong_with_the_papers_policies() {
    nothing_is_wrong("nothing_is_wrong_with_the_papers_policies", FEWER_SEEDS, |seed| {
        (swarm::scenario(seed).0, swarm::papers_policy(seed))
    });
}
