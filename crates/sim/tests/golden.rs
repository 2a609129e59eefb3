//! Golden digests: the same scenario, policy and seed give the same run, on any machine and in any
//! build.
//!
//! A digest depends on every completion's time, port and tag. If a digest changes for a known
//! reason (a change of a policy or of a profile), the commit that states the reason also changes
//! the digest here.

use fairq_classic::nass::NassConfig;
use fairq_core::d2fq::Ratio;
use fairq_device::Profile;
use fairq_sim::policies::{
    AnySubject, D2fqSubject, MqfqParts, MqfqSubject, Scheduler, SerialSubject, SfqdSubject,
    SlotKind, VirtualTimeKind,
};
use fairq_sim::scenario::{Access, Burst, MS, US};
use fairq_sim::{Job, Machine, Scenario, Tenant, swarm};

fn scenario() -> Scenario {
    let profile = Profile::named("z-ssd").expect("it is built in");
    let mixed = Job {
        sizes: vec![(4096, 3), (65_536, 1)],
        read_percent: 70,
        access: Access::Sequential,
        think_ns: 20 * US,
        burst: Some(Burst { on_ns: MS, off_ns: MS }),
        ..Job::random_read(4096, 16)
    };
    let tenants = vec![
        Tenant::new("reader", 300, vec![0, 1], Job::random_read(4096, 32)),
        Tenant::new("mixed", 100, vec![1, 2], mixed),
        Tenant::new("late", 200, vec![2], Job::random_read(8192, 32)).from(3 * MS),
    ];
    Scenario::new(profile, 3, tenants, 10 * MS)
}

#[test]
fn the_same_run_for_ever() {
    let policies = [
        (AnySubject::None, 0xd51d_22b2_d74a_b4ae),
        (AnySubject::Sfqd(SfqdSubject { slots: 32 }), 0x0001_8eb6_48d8_c671),
        (AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 }), 0x6209_51dc_0ecb_c5ad),
    ];
    let digests = policies.map(|(policy, _)| policy.run(&scenario()).expect("it is legal").digest);
    assert_eq!(digests, policies.map(|(_, digest)| digest), "\n{digests:#x?}");
}

#[test]
fn twice_the_same_and_another_seed_another_run() {
    let digest = |seed| {
        let (scenario, policy) = swarm::scenario(seed);
        policy.run(&scenario).expect("it is legal").digest
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

/// The loads above on two sockets whose CPUs take time: the digest includes the effects of the
/// simulated host's caches.
#[test]
fn the_same_run_on_a_host_for_ever() {
    let policies = [
        (AnySubject::None, 0x9d13_5dc0_c424_62b7),
        (AnySubject::Sfqd(SfqdSubject { slots: 32 }), 0x73d0_bc65_7949_b482),
        (AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 }), 0xd539_3e2d_dac6_8592),
        (
            AnySubject::D2fq(D2fqSubject {
                ratio: Ratio::Static(8),
                tau_l: 1 << 20,
                tau_m: None,
                strict_paper: false,
            }),
            0x64bb_e612_0ba3_0c16,
        ),
    ];
    let digests = policies.map(|(policy, _)| digest_on_two_sockets(policy));
    assert_eq!(digests, policies.map(|(_, digest)| digest), "\n{digests:#x?}");
}

/// Ports on both sockets, and two hardware threads of one core.
fn digest_on_two_sockets(policy: AnySubject) -> u64 {
    let mut host = Machine::GOLD_5112.host(5);
    host.places[2] = host.places[1];
    host.places.drain(3..);
    host.places[0] = Machine::GOLD_5112.host(5).places[4];
    let run = policy.run(&scenario().on(host)).expect("it is legal");
    assert_eq!(run.violation, None);
    assert!(run.cpus.iter().all(|cpu| cpu.busy_ns > 0 && cpu.busy_ns <= run.measured_ns));
    run.digest
}

/// The policies that the papers' authors measured, which the laboratory compares with fairq's own.
#[test]
fn the_same_run_of_the_papers_letters_for_ever() {
    let multi = MqfqSubject { slots: 32, threshold: 45 << 10 };
    let parts = multi.parts();
    let nass = NassConfig::default();
    let serial = |scheduler| SerialSubject::new(scheduler, 32).merging();
    let policies = [
        (AnySubject::Mqfq(multi), 0x9dda_117a_8dd7_6308),
        (AnySubject::MqfqStrict(parts), 0x86d5_186b_6536_4cfe),
        (
            AnySubject::MqfqStrict(MqfqParts { virtual_time: VirtualTimeKind::None, ..parts }),
            0xf8a3_34e1_9b18_540a,
        ),
        (
            AnySubject::MqfqStrict(MqfqParts { slot_kind: SlotKind::TokenPath, ..parts }),
            0x5390_5a03_abf6_a880,
        ),
        (AnySubject::Serial(serial(Scheduler::Fiops).limited(nass)), 0x9b31_c030_0518_e62e),
        (
            AnySubject::Serial(serial(Scheduler::Fiops).limited_strictly(nass)),
            0x8ba3_b892_dd63_e411,
        ),
        (AnySubject::Serial(serial(Scheduler::Bfq).limited_strictly(nass)), 0x8e25_f794_dd0c_c165),
        (
            AnySubject::Serial(serial(Scheduler::LinuxCfq).limited_strictly(nass)),
            0xba58_00a2_cb29_38f8,
        ),
    ];
    let digests = policies.map(|(policy, _)| digest_on_two_sockets(policy));
    assert_eq!(digests, policies.map(|(_, digest)| digest), "\n{digests:#x?}");
}

/// Where cores race, every law holds, two runs are equal, and they differ from a run in which each
/// verb runs as a whole.
#[test]
fn the_same_run_twice_with_races() {
    let scenario = scenario();
    let whole = scenario.clone().on(Machine::E5_2630_V3.host(3));
    let racing = scenario.on(Machine::E5_2630_V3.host(3).racing());
    for policy in [
        AnySubject::None,
        AnySubject::Sfqd(SfqdSubject { slots: 32 }),
        AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 }),
    ] {
        let run = |scenario| policy.run(scenario).expect("it is legal");
        let (first, second) = (run(&racing), run(&racing));
        assert_eq!(first.violation, None);
        assert!(first.cpus.iter().all(|cpu| cpu.busy_ns > 0 && cpu.busy_ns <= first.measured_ns));
        assert_eq!((first.digest, &first.cpus), (second.digest, &second.cpus));
        assert_ne!(first.digest, run(&whole).digest);
    }
}
