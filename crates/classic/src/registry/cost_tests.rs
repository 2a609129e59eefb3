//! The effect of costs on shares: closed loops in front of simulated devices.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::Cell;
use std::{format, vec};

use super::*;
use fairq_core::cost::CostKind;
use fairq_core::{Op, Topology};

const MS: u64 = 1_000_000;

/// A tenant that always has `depth` requests of `length` bytes.
#[derive(Clone, Copy)]
struct Tenant {
    weight: u32,
    op: Op,
    length: u32,
    depth: usize,
}

const SMALL: Tenant = Tenant { weight: 100 << 8, op: Op::Read, length: 512, depth: 64 };
const LARGE: Tenant = Tenant { length: 1 << 20, depth: 8, ..SMALL };

/// Requests that each tenant is served in the second half of a run of `ms` milliseconds, by a
/// device that serves one request after the other, each in `service_ns`.
fn served(
    policy: (&str, Keys<'_>),
    tenants: &[Tenant],
    ms: u64,
    service_ns: impl Fn(Op, u32) -> u64,
) -> Vec<u64> {
    served_as(policy, tenants, tenants.len(), ms, service_ns)
}

/// As [`served`], but tenants share flows: tenant N sends as flow N modulo `flows`.
fn served_as(
    (name, keys): (&str, Keys<'_>),
    tenants: &[Tenant],
    flows: usize,
    ms: u64,
    service_ns: impl Fn(Op, u32) -> u64,
) -> Vec<u64> {
    let tags = tenants.iter().map(|tenant| tenant.depth).sum();
    let shape = Shape::new(Topology::flat(1), flows, tags);
    let (policy, mut ports) = AnyPolicy::<Native>::new(name, keys, &shape).unwrap();
    let port = &mut ports[0];
    let mut wake = PortSet::EMPTY;
    let mut requests = Vec::new();
    let mut known = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        if number < flows {
            known.push(policy.add_flow(Weight::of_256ths(tenant.weight).unwrap()).unwrap());
        }
        requests.extend((0..tenant.depth).map(|_| (known[number % flows], number, *tenant)));
    }
    // The offsets are far apart, so that no request is sequential.
    let ask = |tag: usize, round: u64| {
        let (flow, _, Tenant { op, length, .. }) = requests[tag];
        let offset = (tag as u64 * 7919 + round * 104_729) << 21;
        Request::new(Tag(tag as u32), flow, op, offset, length)
    };
    (0..tags).for_each(|tag| {
        port.submit(0, &ask(tag, 0), &mut wake).unwrap();
    });
    let (mut now_ns, mut tick_ns, mut device) = (0, Some(0), VecDeque::new());
    let mut counts = vec![0; tenants.len()];
    while now_ns < ms * MS {
        if tick_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            tick_ns = policy.tick(now_ns, &mut wake);
        }
        while let Next::Issue { tag, .. } = port.next(now_ns, &mut wake) {
            device.push_back(tag);
        }
        let tag: Tag = device.pop_front().expect("work conserving");
        let (_, number, Tenant { op, length, .. }) = requests[tag.0 as usize];
        now_ns += service_ns(op, length);
        port.complete(now_ns, tag, Outcome::Done, &mut wake);
        counts[number] += u64::from(now_ns > ms * MS / 2);
        port.submit(now_ns, &ask(tag.0 as usize, now_ns), &mut wake).unwrap();
    }
    counts
}

/// With costs by the device's time a load of one class is served as with costs by bytes, request by
/// request, while D is searched for; and so is a flow that is alone, whatever its requests are.
#[test]
fn costs_do_nothing_where_they_do_not_matter() {
    let usual = Tenant { length: 4096, depth: 32, ..SMALL };
    let heavy = Tenant { weight: 300 << 8, ..usual };
    for tenants in [vec![usual, heavy], vec![Tenant { op: Op::Write, ..usual }; 3], vec![SMALL]] {
        let of = |kind: CostKind| {
            let keys = [("cost", kind as u64)];
            let service_ns = |_, length: u32| 10_000 + u64::from(length);
            [500, 1000, 2000].map(|ms| served(("mqfq", &keys), &tenants, ms, service_ns))
        };
        assert_eq!(of(CostKind::Device), of(CostKind::Bytes), "{} tenants", tenants.len());
    }
    let alone = |kind: CostKind| {
        let mixed = |op, length| Tenant { op, length, depth: 8, ..SMALL };
        let tenant = [mixed(Op::Read, 4096), mixed(Op::Write, 1 << 16)];
        served_as(("mqfq", &[("cost", kind as u64)]), &tenant, 1, 2000, |_, _| 50_000)
    };
    assert_eq!(alone(CostKind::Device), alone(CostKind::Bytes));
}

/// The speed of a device varies by chance, from request to request and from tenth to tenth of a
/// second, and it takes the same time for each byte: tenants get equal bytes.
#[test]
fn chance_is_not_taken_for_costs() {
    for (apart, seed) in [(10, 1u64), (30, 1), (30, 2), (50, 3), (50, 4)] {
        let random = Cell::new(0x9e37_79b9_7f4a_7c15 ^ seed);
        let chance = || {
            let mut next = random.get();
            next ^= next << 13;
            next ^= next >> 7;
            next ^= next << 17;
            random.set(next);
            100 - apart + next % (2 * apart + 1)
        };
        let (speed, served_ns) = (Cell::new(100), Cell::new(0));
        let service_ns = |_, length: u32| {
            let takes_ns = u64::from(length) * 100 * speed.get() * chance() / 10_000;
            served_ns.set(served_ns.get() + takes_ns);
            if served_ns.get() > 100 * MS {
                served_ns.set(0);
                speed.set(chance());
            }
            takes_ns
        };
        let tenant = |length, depth| Tenant { length, depth, ..SMALL };
        let tenants = [tenant(4096, 64), tenant(1 << 16, 16)];
        let keys = keys(CostKind::Device);
        let counts = served(("mqfq", &keys), &tenants, 20_000, service_ns);
        let ratio = counts[0] as f64 / (16 * counts[1]) as f64;
        assert!((0.9..=1.1).contains(&ratio), "{apart} hundredths, {seed}: {ratio:.3}, {counts:?}");
    }
}

/// The policies that promise shares and charge costs. They have few slots here, so that the
/// policies and not the device decide.
const POLICIES: [&str; 4] = ["mqfq", "mqfq-serial", "sfqd", "flashfq"];

fn keys(kind: CostKind) -> Vec<(&'static str, u64)> {
    vec![("slots", 4), ("cost", kind as u64)]
}

/// Requests of 512 bytes and of 1 MiB share a device of 4,000 requests a second. With costs by
/// bytes the large ones get next to nothing; with costs by requests or by the device's time each
/// tenant gets half of its rate when alone.
#[test]
fn a_device_that_is_short_of_requests_is_shared_by_requests() {
    let both =
        |name, kind: CostKind| served((name, &keys(kind)), &[SMALL, LARGE], 10_000, |_, _| 250_000);
    let parts = |counts: Vec<u64>| [counts[0] as f64 / 20_000.0, counts[1] as f64 / 20_000.0];
    for name in ["mqfq", "mqfq-serial", "sfqd"] {
        for kind in [CostKind::Requests, CostKind::Device] {
            let got = parts(both(name, kind));
            let said = format!("{name}, {kind:?}: {got:?} of what each has alone");
            assert!(got.iter().all(|part| (0.45..=0.55).contains(part)), "{said}");
        }
        let [_, large] = parts(both(name, CostKind::Bytes));
        assert!(large < 0.05, "{name}: {large}");
    }
}

/// Shares follow weights of 1.5 and 1, which are not both whole numbers, and also a quarter of
/// both, and a thousand times both.
#[test]
fn shares_follow_weights_between_whole_numbers() {
    for name in POLICIES {
        for scale in [64, 256, 256_000] {
            let tenant = |weight| Tenant { weight, length: 4096, depth: 16, ..SMALL };
            let tenants = [tenant(scale * 3 / 2), tenant(scale)];
            let counts = served((name, &keys(CostKind::Bytes)), &tenants, 2000, |_, _| 100_000);
            let ratio = counts[0] as f64 / counts[1] as f64;
            assert!((1.47..=1.53).contains(&ratio), "{name} at {scale}: {counts:?}");
        }
    }
}
