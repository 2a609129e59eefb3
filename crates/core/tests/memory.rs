//! What policies take for many flows on many ports: memory grows with the flows that have requests,
//! of which a port can have as many as tags, and with a word for each flow and port; not with what
//! a policy keeps of a flow, times ports. And all of it is taken when the policy is built: adding
//! flows takes nothing, so it cannot fail for want of memory.
//!
//! Measured as the growth of the process's data in `/proc`, so there is one test in this file.
#![cfg(target_os = "linux")]

use fairq_core::registry::{self, Shape};
use fairq_core::{AnyPolicy, Native, Policy, Topology, Weight};

const PORTS: usize = 64;
const FLOWS: usize = 10_000;
const TAGS: usize = 512;
/// In KiB: less than 20 bytes for each pair of a flow and a port.
const BOUND_KIB: u64 = 12_000;

/// The process's private memory in KiB, touched or not.
fn data_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Builds a policy as the registry does, adds flows to it, and gives what it has taken, in KiB. It
/// is kept, so that the next one takes nothing that this one has given back.
fn takes(name: &str) -> u64 {
    let shape = Shape::new(Topology::flat(PORTS), FLOWS, TAGS);
    let before = data_kib();
    let built = AnyPolicy::<Native>::new(name, &[], &shape).unwrap();
    let after = data_kib();
    (0..FLOWS / 10).for_each(|_| _ = built.0.add_flow(Weight::DEFAULT).unwrap());
    // The test's own harness may take some.
    assert!(data_kib() - after < 64, "adding flows to {name} has taken memory");
    std::mem::forget(built);
    after - before
}

#[test]
fn memory_grows_with_live_flows() {
    let taken: Vec<_> = registry::ALL.iter().map(|of| (of.name, takes(of.name))).collect();
    println!("{taken:?} KiB");
    for (policy, kib) in &taken {
        assert!(*kib < BOUND_KIB, "{policy} takes {kib} KiB; all: {taken:?}");
    }
}
