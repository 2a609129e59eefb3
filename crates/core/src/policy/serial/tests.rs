//! Properties of all policies behind one lock, tested with SFQ(D).

use super::*;
use crate::Op;
use crate::policy::serial::sfqd::Sfqd;

const ISSUE: fn(u32) -> Next = |tag| Next::Issue { tag: Tag(tag), class: Class::Medium };

fn config() -> SerialConfig {
    SerialConfig { ports: 2, flows: 2, tags: 5, slots: 2, ..SerialConfig::default() }
}

/// Live requests are numbered densely over all ports, and the last number of 32 bits is kept for
/// "none": 256 ports of 2^24 tags would need it.
#[test]
fn more_live_requests_than_there_are_numbers_are_refused() {
    let bounds = |ports, tags| SerialConfig { ports, tags, ..SerialConfig::default() }.check();
    let refused = Err(ConfigError::Jobs { ports: 256, tags: 1 << 24 });
    assert_eq!((bounds(256, 1 << 24), bounds(256, (1 << 23) + 1)), (refused, refused));
    assert_eq!((bounds(255, 1 << 24), bounds(256, 1 << 23)), (Ok(()), Ok(())));
}

#[test]
fn a_request_is_issued_by_the_port_that_it_was_submitted_to() {
    let (policy, mut ports) = Sfqd::<Native>::new(&config()).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let [a, b] = &mut ports[..] else { panic!("two ports") };
    let request = |tag| Request::new(Tag(tag), flow, Op::Read, 0, 4096);
    let mut wake = PortSet::EMPTY;
    for tag in [4, 0, 2] {
        assert_eq!(b.submit(0, &request(tag), &mut wake), Ok(Submitted::Staged));
    }
    assert_eq!(a.next(0, &mut wake), Next::Idle, "a has nothing, but finds work for b");
    assert_eq!(wake, PortSet::only(PortId(1)));
    assert_eq!(policy.stats().free_slots, Some(0));
    assert_eq!((b.next(0, &mut wake), b.next(0, &mut wake)), (ISSUE(4), ISSUE(0)));
    assert_eq!(b.next(0, &mut wake), Next::Blocked);

    assert_eq!(a.submit(0, &request(1), &mut wake), Ok(Submitted::Staged));
    wake = PortSet::EMPTY;
    b.complete(0, Tag(2), Outcome::Done, &mut wake);
    assert_eq!(policy.stats().free_slots, Some(0), "it is staged, not issued");
    b.complete(0, Tag(4), Outcome::Done, &mut wake);
    b.complete(0, Tag(4), Outcome::Done, &mut wake);
    assert_eq!(policy.stats().free_slots, Some(1));
    b.complete(0, Tag(0), Outcome::Failed, &mut wake);
    assert_eq!((b.next(0, &mut wake), b.next(0, &mut wake)), (ISSUE(2), Next::Idle));
    assert_eq!(wake, PortSet::only(PortId(0)));
    assert_eq!((a.next(0, &mut wake), a.next(0, &mut wake)), (ISSUE(1), Next::Idle));
}

#[test]
fn slots_change_while_requests_are_outstanding() {
    let (policy, mut ports) = Sfqd::<Native>::new(&SerialConfig { tags: 8, ..config() }).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let port = &mut ports[0];
    let mut wake = PortSet::EMPTY;
    for tag in 0..8 {
        let request = Request::new(Tag(tag), flow, Op::Read, 0, 4096);
        port.submit(0, &request, &mut wake).unwrap();
    }
    let issued = |port: &mut SerialPort<_, _>, wake: &mut PortSet| {
        std::iter::from_fn(|| matches!(port.next(0, wake), Next::Issue { .. }).then_some(()))
            .count()
    };
    assert_eq!(issued(port, &mut wake), 2);
    policy.tune(Tuning::Slots(5), &mut wake).unwrap();
    assert_eq!(wake, PortSet::first(2), "every port that may wait for a slot is woken");
    assert_eq!(issued(port, &mut wake), 3);
    policy.tune(Tuning::Slots(2), &mut wake).unwrap();
    policy.tune(Tuning::Slots(3), &mut wake).unwrap();
    for (tag, more) in [(0, 0), (1, 0), (2, 1)] {
        port.complete(0, Tag(tag), Outcome::Done, &mut wake);
        assert_eq!(issued(port, &mut wake), more, "five are outstanding, three may be");
    }
    (3..6).for_each(|tag| assert!(port.complete(0, Tag(tag), Outcome::Done, &mut wake)));
    assert_eq!(policy.stats().free_slots, Some(3));
    assert_eq!(policy.tune(Tuning::Slots(0), &mut wake), Err(ConfigError::Slots(0).into()));
    assert_eq!(policy.tune(Tuning::Threshold(1), &mut wake), Err(TuneError::Fixed));
}

#[test]
fn bounds_that_make_no_sense_are_refused() {
    let refused = |config: SerialConfig| Sfqd::<Native>::new(&config).err();
    assert_eq!(refused(config()), None);
    assert_eq!(refused(SerialConfig { ports: 0, ..config() }), Some(ConfigError::Ports(0)));
    assert_eq!(refused(SerialConfig { ports: 257, ..config() }), Some(ConfigError::Ports(257)));
    assert_eq!(refused(SerialConfig { flows: 0, ..config() }), Some(ConfigError::Flows(0)));
    assert_eq!(refused(SerialConfig { tags: 0, ..config() }), Some(ConfigError::Tags(0)));
    assert_eq!(
        refused(SerialConfig { tags: usize::MAX, ..config() }),
        Some(ConfigError::Tags(usize::MAX))
    );
    assert_eq!(
        refused(SerialConfig { tags: 1 << 40, ..config() }),
        Some(ConfigError::Tags(1 << 40))
    );
    assert_eq!(refused(SerialConfig { slots: 0, ..config() }), Some(ConfigError::Slots(0)));
}
