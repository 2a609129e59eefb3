//! Memory of policies with many flows on many ports. It grows with the flows that have requests, of
//! which a port has at most as many as tags, and with a word for each flow and port; it does not
//! grow with flows times ports times the state of a flow. All of it is allocated when the policy is
//! built: adding flows allocates nothing, so it cannot fail for want of memory.
//!
//! It is measured as the growth of the process's data in `/proc`, so there is one test in this
//! file.
#![cfg(target_os = "linux")]

use fairq_classic::AnyPolicy;
use fairq_classic::registry::{self, Shape};
use fairq_core::none::NonePolicy;
use fairq_core::{Native, Policy, Topology, Weight};

const PORTS: usize = 64;
const FLOWS: usize = 10_000;
const TAGS: usize = 512;
/// Bound in KiB: 20 bytes for each pair of a flow and a port.
const BOUND_KIB: u64 = 12_500;
/// Bound in KiB of the layer for limits, which the registry puts around each policy: 52
/// bytes for each pair, of which 16 count what the flow has requested and received there.
const LAYERS_KIB: u64 = 33_000;

/// The process's private memory in KiB, resident or not.
fn data_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Builds a policy, adds flows to it, and returns the memory that it took, in KiB. The policy is
/// leaked, so that the next one cannot reuse its memory.
fn takes<P: Policy<Port: 'static>>(build: impl FnOnce() -> (P, Vec<P::Port>)) -> u64 {
    let before = data_kib();
    let built = build();
    let after = data_kib();
    (0..FLOWS / 10).for_each(|_| _ = built.0.add_flow(Weight::DEFAULT).unwrap());
    // The test harness may allocate meanwhile.
    assert!(data_kib() - after < 64, "adding flows has taken memory");
    std::mem::forget(built);
    after - before
}

#[test]
fn memory_grows_with_live_flows() {
    let shape = Shape::new(Topology::flat(PORTS), FLOWS, TAGS);
    let of = |name| takes(|| AnyPolicy::<Native>::new(name, &[], &shape).unwrap());
    let alone = takes(|| NonePolicy::<Native>::new(PORTS, FLOWS, TAGS).unwrap());
    let layers = of("none") - alone;
    println!("the layers take {layers} KiB");
    assert!(layers < LAYERS_KIB, "the layers take {layers} KiB");
    let each = registry::ALL.iter().map(|policy| (policy.name, of(policy.name) - layers));
    let taken: Vec<_> = each.collect();
    println!("{taken:?} KiB");
    for (policy, kib) in &taken {
        assert!(*kib < BOUND_KIB, "{policy} takes {kib} KiB; all: {taken:?}");
    }
}
