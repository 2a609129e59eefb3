//! State that ports of [`Grouped`](super::Grouped) share, under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib groups::models`

use std::sync::Arc;

use loom::thread;

use super::shared::Shared;
use crate::contract::flow::FlowId;
use crate::contract::platform::{Loom, Ordering, Platform};
use crate::contract::share::Reservation;
use crate::policy::bucket::Time;
use crate::structures::broken::{Fault, Unordered, check};

const GRANTED_NS: u64 = 1_000_000_000;

/// 20 requests a second: one at once, after a twentieth of a second.
fn rate() -> Reservation {
    Reservation::new(20, 0).unwrap()
}

/// Two ports take at once from a reservation that has enough for one of them; a port that has taken
/// and cannot send refunds it.
fn two_ports_go_ahead_once_between_them<P: Platform>() {
    check(4, || {
        let (shared, flow) = (Arc::new(Shared::<P>::new(2, 1, false)), FlowId::new(0, 1));
        shared.grant(GRANTED_NS, flow, Reservation::NONE, rate());
        let now = Time::of_ns(GRANTED_NS + 60_000_000);
        let ask = |gives_back: bool| {
            let shared = shared.clone();
            move || {
                let kinds = shared.kinds(flow);
                let is_taken = shared.take(now, 0, kinds, 4096).is_ok();
                if is_taken && gives_back {
                    shared.give_back(0, kinds, 4096);
                }
                u64::from(is_taken && !gives_back)
            }
        };
        let others = [thread::spawn(ask(false)), thread::spawn(ask(true))];
        let mine = ask(false)();
        let sent = others.into_iter().map(|other| other.join().unwrap()).sum::<u64>() + mine;
        assert!(sent <= 1, "{sent} went ahead");
        let is_left = shared.take(now, 0, shared.kinds(flow), 4096).is_ok();
        assert_eq!(sent + u64::from(is_left), 1, "what was given back is there");
    });
}

#[test]
fn reservations_hold_between_ports() {
    two_ports_go_ahead_once_between_them::<Loom>();
}

/// A machine that swaps without comparing.
struct Careless;

impl Fault for Careless {
    fn order(order: Ordering) -> Ordering {
        order
    }
    const BLIND: u64 = u64::MAX;
}

#[test]
#[should_panic]
fn the_model_sees_what_goes_ahead_twice() {
    two_ports_go_ahead_once_between_them::<Careless>();
}

/// A port that sees that a flow has a reservation sees its rate, and that its bucket begins empty.
fn a_reservation_that_is_seen_has_its_rate<P: Platform>() {
    check(4, || {
        let (shared, flow) = (Arc::new(Shared::<P>::new(1, 1, false)), FlowId::new(0, 1));
        let control = shared.clone();
        let grants = thread::spawn(move || {
            control.grant(GRANTED_NS, flow, Reservation::NONE, rate());
        });
        let kinds = shared.kinds(flow);
        if kinds != 0 {
            let now = Time::of_ns(GRANTED_NS);
            assert!(shared.take(now, 0, kinds, 4096).is_err(), "it is empty");
        }
        grants.join().unwrap();
    });
}

#[test]
fn a_reservation_is_there_when_it_is_seen() {
    a_reservation_that_is_seen_has_its_rate::<Loom>();
}

#[test]
#[should_panic]
fn the_model_sees_a_reservation_without_its_rate() {
    a_reservation_that_is_seen_has_its_rate::<Unordered>();
}
