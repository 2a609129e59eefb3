//! Laws of every line of the registry.

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;
use fairq_core::entry::knobs::AUTO;
use fairq_core::{ConfigError, Op, Topology};

fn shape() -> Shape {
    Shape::new(Topology::flat(1), 4, 8).before(4)
}

/// Serves two requests of a flow and removes it.
fn serve(policy: &AnyPolicy, port: &mut AnyPort) -> Result<usize, alloc::string::String> {
    let mut wake = PortSet::EMPTY;
    let flow = policy.add_flow(Weight::DEFAULT).map_err(|error| error.to_string())?;
    let mut issued = Vec::new();
    for tag in [0, 1].map(Tag) {
        let request = Request::new(tag, flow, Op::Read, 1 << 20, 4096);
        match port.submit(0, &request, &mut wake).map_err(|error| error.to_string())? {
            Submitted::Issue { .. } => issued.push(tag),
            Submitted::Staged => {}
        }
    }
    let mut now_ns = 0;
    for _ in 0..8 {
        match port.next(now_ns, &mut wake) {
            Next::Issue { tag, .. } | Next::Join { tag } => issued.push(tag),
            Next::WaitUntil(until) => now_ns = until,
            Next::Blocked | Next::Idle => break,
        }
    }
    issued.iter().for_each(|&tag| assert!(port.complete(now_ns, tag, Outcome::Done, &mut wake)));
    policy.remove_flow(flow).map_err(|error| error.to_string())?;
    Ok(issued.len())
}

#[test]
fn every_policy_is_built_by_its_name_and_serves() {
    for &Registered { name, .. } in ALL {
        let (policy, mut ports) = AnyPolicy::new(name, &[], &shape()).unwrap();
        assert_eq!(serve(&policy, &mut ports[0]), Ok(2), "{name}");
    }
}

/// A flow's service is the cost of its issued requests: a cancelled request costs nothing, and a
/// request that was taken back and issued again is charged once.
#[test]
fn what_a_flow_was_served_is_counted() {
    const CHARGE_NOTHING: [&str; 2] = ["none", "kyber"];
    for &Registered { name, .. } in ALL {
        let shape = Shape::new(Topology::flat(1), 4, 8);
        let (policy, mut ports) = AnyPolicy::<Native>::new(name, &[], &shape).unwrap();
        let (port, mut wake) = (&mut ports[0], PortSet::EMPTY);
        let flows = [100, 300].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let mut issued = Vec::new();
        for (tag, blocks) in (0..).map(Tag).zip([1, 2, 4, 8]) {
            let flow = flows[usize::from(blocks >= 4)];
            let request = Request::new(tag, flow, Op::Read, u64::from(tag.0) << 30, blocks << 12);
            if let Submitted::Issue { .. } = port.submit(0, &request, &mut wake).unwrap() {
                issued.push(tag);
            }
        }
        let cancelled = port.cancel(0, Tag(3), &mut wake);
        let mut requeued = issued.first().copied();
        requeued.map(|tag| port.requeue(0, tag, &mut wake));
        let mut now_ns = 0;
        while issued.len() < if cancelled { 3 } else { 4 } {
            match port.next(now_ns, &mut wake) {
                Next::Issue { tag, .. } if requeued.is_none() => {
                    requeued = Some(tag);
                    assert_eq!(port.requeue(now_ns, tag, &mut wake), Some(Submitted::Staged));
                }
                Next::Issue { tag, .. } => issued.push(tag),
                Next::WaitUntil(until) => now_ns = until,
                // The policy waits for the flow that has the device.
                _ => {
                    now_ns += 1_000_000;
                    issued.iter().for_each(|&tag| {
                        port.complete(now_ns, tag, Outcome::Done, &mut wake);
                    });
                }
            }
        }
        issued
            .iter()
            .for_each(|&tag| assert!(port.complete(now_ns, tag, Outcome::Done, &mut wake)));
        let services = flows.map(|flow| port.flow_stats(flow).service);
        let second = if cancelled { 4 } else { 12 };
        let due = match CHARGE_NOTHING.contains(&name) {
            true => [Option::None; 2],
            false => [3, second].map(|blocks| Some(blocks << 12)),
        };
        assert_eq!(services, due, "{name}");
    }
}

/// Every policy is built from keys and a shape, as its own type.
#[test]
fn every_policy_is_built_by_its_type_alike() {
    fn ports<E: Entry>(keys: Keys<'_>) -> Result<usize, Error> {
        let (policy, ports) = build::<E, Native>(keys, &Shape::new(Topology::flat(3), 4, 8))?;
        policy.add_flow(Weight::DEFAULT).expect("there is room");
        Ok(ports.len())
    }
    let built = [
        ports::<none::Entry>(&[]),
        ports::<mqfq::Entry>(&[("slots", 3)]),
        ports::<mqfq::Entry<true>>(&[("slots", 3)]),
        ports::<d2fq::Entry>(&[("urgent", 10)]),
        ports::<kyber::Entry>(&[]),
        ports::<kyber_fair::Entry>(&[("busy", 2)]),
        ports::<Alone<bfq::BfqScheduler>>(&[("merge", 1 << 16)]),
        ports::<Limited<fiops::FiopsScheduler>>(&[("slots", 3)]),
    ];
    assert!(built.iter().all(|built| *built == Ok(3)), "{built:?}");
    let no_key = Error::NoKey { policy: "none", key: "slots".into() };
    assert_eq!(ports::<none::Entry>(&[("slots", 3)]), Err(no_key));
}

#[test]
fn names_and_keys_are_unambiguous() {
    for (at, policy) in ALL.iter().enumerate() {
        assert!(!policy.name.is_empty());
        assert!(ALL[..at].iter().all(|other| other.name != policy.name), "{}", policy.name);
        let knobs = policy.knobs();
        for (at, knob) in knobs.iter().enumerate() {
            assert!(knobs[..at].iter().all(|other| other.key != knob.key), "{}", knob.key);
            assert!(!knob.help.is_empty(), "{}", knob.key);
        }
    }
}

/// Programs read a value before they know which policy it is for.
#[test]
fn a_key_is_written_the_same_way_for_all_policies() {
    let knobs: Vec<Knob> = ALL.iter().flat_map(Registered::knobs).collect();
    for knob in &knobs {
        let first = knobs.iter().find(|first| first.key == knob.key).unwrap();
        let written = |knob: &Knob| (knob.unit, knob.words, knob.prefix, knob.alias);
        assert_eq!(written(first), written(knob), "{}", knob.key);
    }
}

/// A default is in its range, and each knob is set by its own key.
#[test]
fn each_knob_holds_what_it_was_given() {
    for policy in ALL {
        for (knob, value) in policy.configured(&[], &shape()).unwrap() {
            let name = (policy.name, knob.key);
            if let Some(value) = value {
                assert_eq!(knob.check(value), Ok(()), "{name:?}");
                AnyPolicy::<Native>::new(policy.name, &[(knob.key, value)], &shape()).unwrap();
            }
            let ends = [knob.least, knob.most].into_iter().filter(|_| knob.least <= knob.most);
            for value in ends.chain(knob.words.iter().map(|(_, value)| *value)) {
                let keys = [(knob.key, value)];
                let now = policy.configured(&keys, &shape()).unwrap();
                let now = now.iter().find(|(other, _)| other.key == knob.key).unwrap();
                assert_eq!(now.1, Some(value), "{name:?}");
            }
            let beyond = knob.most.checked_add(1).filter(|_| knob.least <= knob.most);
            if let Some(value) = beyond.filter(|value| knob.word_of(*value).is_none()) {
                let refused = policy.configured(&[(knob.key, value)], &shape()).unwrap_err();
                assert!(matches!(refused, Error::Config(ConfigError::Knob { .. })), "{name:?}");
            }
        }
    }
}

#[test]
fn what_there_is_not_is_refused() {
    let refusal = |name: &str, keys: Keys<'_>| {
        AnyPolicy::<Native>::new(name, keys, &shape()).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(refusal("mqf", &[]), "there is no policy mqf");
    assert_eq!(refusal("none", &[("slots", 4)]), "none takes no slots");
    assert_eq!(refusal("mqfq-serial", &[("slot-kind", 1)]), "mqfq-serial takes no slot-kind");
    assert_eq!(refusal("mqfq", &[("slots", 0)]), "slots is 0, but it must be 1 to 65536");
}

#[test]
fn defaults_follow_the_device_and_each_other() {
    let value = |name: &str, keys: Keys<'_>, slots: u32, key: &str| {
        let shape = Shape::new(Topology::flat(1), 4, 8).before(slots);
        let knobs = find(name).unwrap().configured(keys, &shape).unwrap();
        knobs.iter().find(|(knob, _)| knob.key == key).unwrap().1
    };
    for name in ["mqfq", "bfq"] {
        assert_eq!(value(name, &[], 32, "slots"), Some(AUTO.into()), "D is found");
    }
    assert_eq!(value("nass+bfq", &[], 32, "slots"), Some(32), "its limits are parts of D");
    assert_eq!(value("mqfq", &[], 32, "threshold"), None, "it follows the device");
    assert_eq!(value("kyber-fair", &[], 32, "busy"), Some(AUTO.into()), "it is found");
    assert_eq!(value("kyber-fair", &[], 1, "write-cost"), None, "it is measured");
    assert_eq!(value("nass+mqfq", &[], 128, "channels"), Some(40));
    assert_eq!(value("nass+mqfq", &[("slots", 128)], 4, "channels"), Some(40));
    assert_eq!(value("nass+mqfq", &[], 4, "queue-length"), Some(32));
    assert_eq!(value("nass+mqfq", &[("queue-length", 4)], 128, "reserve"), Some(1));
    assert_eq!(value("nass+bfq", &[], 32, "idle"), Some(0), "it keeps room instead");
    assert_eq!(value("nass+bfq", &[("idleness", 0)], 32, "idle"), Some(8_000_000));
    assert_eq!(value("cfq", &[], 32, "quantum"), Some(8));
    assert_eq!(value("nass+cfq", &[], 32, "quantum"), Some(65_536));
}
