//! Caps and reservations that ports share, under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib limits::models`

use std::sync::Arc;

use loom::thread;

use super::bucket::Time;
use super::shared::{Claim, LEAST_SHIFT, Shared, Word, of_side};
use crate::contract::flow::FlowId;
use crate::contract::platform::{Loom, Ordering, Platform};
use crate::contract::port::{Op, Request, Tag};
use crate::contract::share::{GroupId, Reservation, Side};
use crate::structures::broken::{Fault, Unordered, check};

const NOW_NS: u64 = 1_000_000_000;

fn flow() -> FlowId {
    FlowId::new(0, 1)
}

fn request(length: u32) -> Request {
    Request::new(Tag(0), flow(), Op::Read, 0, length)
}

/// A machine that swaps without comparing.
struct Careless;

impl Fault for Careless {
    fn order(order: Ordering) -> Ordering {
        order
    }
    const BLIND: u64 = u64::MAX;
}

/// A flow with a cap of two requests at once, in a group with one of 4,096 bytes.
fn capped<P: Platform>() -> Arc<Shared<P>> {
    let shared = Shared::<P>::new(1, 1, false);
    shared.accounts[0].caps[0].set(1_000_000, 2);
    shared.accounts[1].caps[1].set(1 << 30, 4096);
    let caps = of_side(Side::Both);
    shared.put(1, Word { kinds: caps & 2, ..Word::default() });
    let generation = flow().generation();
    shared.put(0, Word { kinds: caps & 1, above: Some(GroupId(0)), generation });
    Arc::new(shared)
}

/// Two ports take from both buckets at the same time: at most the burst of either, and an amount
/// that only one bucket gave is refunded.
fn two_ports_have_the_burst_between_them<P: Platform>() {
    check(4, || {
        let shared = capped::<P>();
        let now = Time::of_ns(NOW_NS);
        let take = |length| {
            let shared = shared.clone();
            move || u64::from(shared.take(now, &shared.path(&request(length))).is_ok())
        };
        let other = thread::spawn(take(2048));
        let mine = take(4096)();
        let other = other.join().unwrap();
        assert_eq!(mine + other, 1, "4,096 bytes are enough for one of the two");
        let requests = &shared.accounts[0].caps[0];
        assert_eq!(requests.take(now, requests.cost(1)), Ok(()), "the amount was refunded");
        assert!(requests.take(now, requests.cost(1)).is_err());
    });
}

#[test]
fn caps_hold_between_ports() {
    two_ports_have_the_burst_between_them::<Loom>();
}

#[test]
#[should_panic]
fn the_model_sees_what_is_taken_twice() {
    two_ports_have_the_burst_between_them::<Careless>();
}

/// Gives the flow a reservation of 20 requests a second. Its bucket holds one request, and begins
/// empty: one request may go after a twentieth of a second.
fn grant<P: Platform>(shared: &Shared<P>) {
    let rate = Reservation::new(20, 0).unwrap();
    shared.grant(Time::of_ns(NOW_NS), 0, Reservation::NONE, rate);
    let kinds = rate.kinds() << LEAST_SHIFT;
    shared.put(0, Word { kinds, above: None, generation: flow().generation() });
}

fn claim<P: Platform>(shared: &Shared<P>) -> Claim {
    Claim { slot: 0, kinds: shared.least_of(flow()), bytes: 4096 }
}

/// Two ports take at the same time from a reservation that has enough for one of them; a port that
/// has taken and cannot send refunds it.
fn two_ports_go_ahead_once_between_them<P: Platform>() {
    check(4, || {
        let shared = Arc::new(Shared::<P>::new(1, 0, false));
        grant(&shared);
        let now = Time::of_ns(NOW_NS + 60_000_000);
        let take = |gives_back: bool| {
            let shared = shared.clone();
            move || {
                let claim = claim(&shared);
                let is_taken = shared.take_least(now, claim).is_ok();
                if is_taken && gives_back {
                    shared.refund_least(claim);
                }
                u64::from(is_taken && !gives_back)
            }
        };
        let others = [thread::spawn(take(false)), thread::spawn(take(true))];
        let mine = take(false)();
        let sent = others.into_iter().map(|other| other.join().unwrap()).sum::<u64>() + mine;
        assert!(sent <= 1, "{sent} went ahead");
        let is_left = shared.take_least(now, claim(&shared)).is_ok();
        assert_eq!(sent + u64::from(is_left), 1, "the refunded amount is there");
    });
}

#[test]
fn reservations_hold_between_ports() {
    two_ports_go_ahead_once_between_them::<Loom>();
}

#[test]
#[should_panic]
fn the_model_sees_what_goes_ahead_twice() {
    two_ports_go_ahead_once_between_them::<Careless>();
}

/// A port that sees that a flow has a reservation sees its rate, and that its bucket begins empty.
fn a_reservation_that_is_seen_has_its_rate<P: Platform>() {
    check(4, || {
        let shared = Arc::new(Shared::<P>::new(1, 0, false));
        let control = shared.clone();
        let grants = thread::spawn(move || grant(&control));
        let claim = claim(&shared);
        if claim.kinds != 0 {
            let now = Time::of_ns(NOW_NS);
            assert!(shared.take_least(now, claim).is_err(), "it is empty");
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
