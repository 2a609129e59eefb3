//! Groups and reservations in the lab: shares follow the weights on each level of a tree, and a
//! tenant gets its reservation in each second, for any weights of others.

use fairq_classic::AnyPolicy;
use fairq_core::registry::Shape;
use fairq_core::{Group, GroupId, Native, Reservation, Share, Weight};
use fairq_device::Profile;
use fairq_sim::scenario::{Job, SECOND, Scenario, Tenant};
use fairq_sim::{Run, simulate};

/// Runs a scenario; policies with a D search for it while requests run.
fn run(name: &str, scenario: &Scenario) -> Run {
    scenario.check().unwrap();
    let shape = Shape::new(scenario.topology(), scenario.flows(), scenario.tags());
    let has_slots = !["d2fq", "kyber-fair"].contains(&name);
    let keys: &[_] = if has_slots { &[("slots", u64::from(u32::MAX))] } else { &[] };
    let (policy, ports) = AnyPolicy::<Native>::new(name, keys, &shape).unwrap();
    simulate(scenario, policy, ports, vec![])
}

fn reads(name: &str, weight: u16, depth: u32) -> Tenant {
    Tenant::new(name, weight, vec![0, 1], Job::random_read(4096, depth))
}

fn scenario(device: &str, tenants: Vec<Tenant>, seconds: u64) -> Scenario {
    let mut scenario = Scenario::new(Profile::named(device).unwrap(), 2, tenants, seconds * SECOND);
    scenario.series_ns = Some(SECOND);
    scenario.warmup_ns = SECOND / 10;
    scenario
}

/// The number of each tenant's requests in each second.
fn seconds(run: &Run) -> Vec<Vec<u64>> {
    let of = |bytes: &Vec<u64>| bytes.iter().map(|bytes| bytes / 4096).collect();
    run.tenants.iter().map(|tenant| of(&tenant.series)).collect()
}

/// Each tenant's share of all requests between two seconds.
fn parts(all: &[Vec<u64>], from: usize, to: usize) -> Vec<f64> {
    let sums: Vec<u64> = all.iter().map(|one| one[from..to].iter().sum()).collect();
    let total: u64 = sums.iter().sum();
    sums.iter().map(|&one| one as f64 / total as f64).collect()
}

fn assert_near(parts: &[f64], wanted: &[f64], what: &str) {
    for (part, wanted) in parts.iter().zip(wanted) {
        assert!((part - wanted).abs() <= 0.03 * wanted, "{what}: {parts:.4?}");
    }
}

/// Acme has weight 300, and its members a and b 100 each, beside solo's 100; a leaves after two
/// seconds.
#[test]
fn acme_has_three_quarters_and_a_leaves_what_it_has_to_b() {
    for (device, name) in [("p4500", "mqfq"), ("p4500", "sfqd"), ("z-ssd", "d2fq")] {
        let in_acme = Share { group: Some(GroupId(0)), ..Share::default() };
        let mut tenants = vec![reads("a", 100, 128), reads("b", 100, 128), reads("solo", 100, 128)];
        tenants[0].share = in_acme;
        tenants[1].share = in_acme;
        tenants[0].lives = vec![(0, 2 * SECOND)];
        let mut scenario = scenario(device, tenants, 4);
        let weight = Weight::new(300).unwrap();
        scenario.groups = vec![Group { weight, ..Group::default() }];
        let all = seconds(&run(name, &scenario));
        let (both, alone) = (parts(&all, 1, 2), parts(&all, 3, 4));
        println!("{device}, {name}: {both:.4?}, then {alone:.4?}");
        assert_near(&both, &[0.375, 0.375, 0.25], name);
        assert_near(&alone[1..], &[0.75, 0.25], name);
    }
}

/// A tenant of weight 1 gets its reservation in each second beside two tenants of weight 10,000
/// that send without pause. The test uses a small reservation, and one so large that the search for
/// D also has to count the requests that bypass the policy. `d2fq` gives a tenant of such a weight
/// more than its share, and sends the requests of a reservation to the urgent class.
fn holds_a_reservation(on: &[(&str, &str, u64)]) {
    for &(device, name, iops) in on {
        let mut tenants =
            vec![reads("least", 1, 16), reads("x", 10_000, 256), reads("y", 10_000, 256)];
        tenants[0].share.reservation = Reservation::new(iops, 0).unwrap();
        let has = seconds(&run(name, &scenario(device, tenants, 3)))[0].clone();
        println!("{device}, {name}: {has:?}");
        // For this policy the reservation holds only as soon as the device's rate is known, so the
        // first second does not count.
        let unknown = usize::from(name == "kyber-fair");
        for second in has.into_iter().skip(unknown) {
            let is_more = ["d2fq", "kyber-fair"].contains(&name);
            let most = if is_more { u64::MAX } else { iops / 100 * 103 };
            assert!((iops / 100 * 97..=most).contains(&second), "{device}, {name}: {second}");
        }
    }
}

#[test]
fn a_reservation_holds_in_each_second() {
    holds_a_reservation(&[
        ("p4500", "mqfq", 130_000),
        ("z-ssd", "d2fq", 2000),
        ("p4500", "kyber-fair", 100_000),
    ]);
}

#[test]
#[ignore = "a step of tests/long: ignored"]
fn a_reservation_holds_with_other_policies_and_devices() {
    holds_a_reservation(&[
        ("z-ssd", "mqfq", 2000),
        ("p4500", "mqfq", 2000),
        ("p4500", "sfqd", 2000),
        ("z-ssd", "mqfq", 300_000),
    ]);
}

/// Without a reservation the test above must fail.
#[test]
fn without_a_reservation_it_does_not() {
    let tenants = vec![reads("least", 1, 16), reads("x", 10_000, 256), reads("y", 10_000, 256)];
    let has = seconds(&run("mqfq", &scenario("p4500", tenants, 2)))[0].clone();
    assert!(has.iter().all(|&second| second < 1000), "{has:?}");
}
