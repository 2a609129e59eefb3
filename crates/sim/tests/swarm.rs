//! The swarm: many seeds, every check. `FAIRQ_SWARM_SEED=n` replays one, `FAIRQ_SWARM_SEEDS=n` runs so many.

use fairq_sim::{Machine, swarm};

/// How many seeds a usual run of the tests takes.
const SEEDS: u64 = 1500;

/// And how many for the policies that were not made for this.
const OLDER_SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

#[test]
fn nothing_is_wrong_under_any_seed() {
    let seeds = match number("FAIRQ_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FAIRQ_SWARM_SEEDS").unwrap_or(SEEDS),
    };
    let mut requests = 0;
    for seed in seeds.clone() {
        let (scenario, policy) = swarm::scenario(seed);
        let run = policy.run(&scenario).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if let Some(violation) = run.violation {
            panic!("FAIRQ_SWARM_SEED={seed} under {policy:?}: {violation}\n{scenario:#?}");
        }
        requests += run.requests;
    }
    println!("{requests} requests under seeds {seeds:?}");
    assert!(requests > 0);
}

/// The same on hosts whose CPUs take time: what is asked for, and what goes wrong, then meets cores that are busy.
#[test]
fn nothing_is_wrong_where_cpus_take_time() {
    for seed in 0..300 {
        let (scenario, policy) = swarm::scenario(seed);
        let hosts = [Machine::GOLD_5112, Machine::E5_2630_V3, Machine::FOUR_SOCKETS];
        let scenario = scenario.clone().on(hosts[seed as usize % 3].host(scenario.ports));
        let run = policy.run(&scenario).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if let Some(violation) = run.violation {
            panic!("seed {seed} on a host under {policy:?}: {violation}\n{scenario:#?}");
        }
    }
}

#[test]
fn nothing_is_wrong_with_older_policies() {
    let seeds = match number("FAIRQ_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FAIRQ_SWARM_SEEDS").unwrap_or(OLDER_SEEDS),
    };
    for seed in seeds {
        let ((scenario, _), policy) = (swarm::scenario(seed), swarm::older_policy(seed));
        let run = policy.run(&scenario).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if let Some(violation) = run.violation {
            panic!("FAIRQ_SWARM_SEED={seed} under {policy:?}: {violation}\n{scenario:#?}");
        }
    }
}
