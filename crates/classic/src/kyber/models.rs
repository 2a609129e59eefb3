//! The depths under the model checker, as in `fairq_core::mqfq`'s models.

use std::sync::Arc;

use loom::thread;

use super::depths::Depths;
use fairq_core::contract::platform::{Loom, Platform};
use fairq_core::contract::port_set::{PortId, PortSet};
use fairq_core::kyber_fair::domain::Domain;
use fairq_core::structures::broken::{NoOrder, check};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const C: PortId = PortId(2);

/// A port that needs one token; with `looks_again` it tries again, as `KyberPort::wait` does.
fn want<P: Platform>(depths: &Depths<P>, port: PortId, looks_again: bool) -> bool {
    depths.acquire(Domain::Read, port) || {
        depths.enlist(Domain::Read, port);
        looks_again && depths.acquire(Domain::Read, port)
    }
}

/// The last token is returned, or the depth grows, while B goes to sleep for lack of a token: B is
/// woken, or finds the token.
fn a_token_finds_its_user<P: Platform>(grows: bool, looks_again: bool) {
    check(6, move || {
        let depths = Arc::new(Depths::<P>::new(3, [1; 4]));
        assert!(depths.acquire(Domain::Read, A));
        let other = depths.clone();
        let giver = thread::spawn(move || {
            if grows {
                other.resize(Domain::Read, 2)
            } else {
                other.release(Domain::Read, A, false)
            }
        });
        let got = want(&depths, B, looks_again);
        let wake = giver.join().unwrap();
        assert!(got || wake.contains(B), "a wake-up was lost");
        assert!(got || depths.acquire(Domain::Read, B), "a token was lost");
        assert_eq!(depths.state(Domain::Read).1, if grows { 2 } else { 1 });
    });
}

#[test]
fn a_returned_token_finds_its_user() {
    a_token_finds_its_user::<Loom>(false, true);
}

#[test]
fn a_new_token_finds_its_user() {
    a_token_finds_its_user::<Loom>(true, true);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_a_total_order_a_token_misses_its_user() {
    a_token_finds_its_user::<NoOrder>(false, true);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_looking_again_a_token_misses_its_user() {
    a_token_finds_its_user::<Loom>(false, false);
}

/// B is granted a token that it no longer needs while C goes to sleep for lack of one: C gets it.
fn a_token_is_not_stranded(gives_back: bool) {
    check(6, move || {
        let depths = Arc::new(Depths::<Loom>::new(3, [1; 4]));
        assert!(depths.acquire(Domain::Read, A));
        assert!(!want(&depths, B, true));
        let other = depths.clone();
        let waiter = thread::spawn(move || want(&other, C, true));
        let mut wake = depths.release(Domain::Read, A, false);
        assert_eq!(wake, PortSet::only(B), "the port that waits longest is next");
        if gives_back {
            wake.extend(depths.give_back(B, |_| false));
        }
        let got = waiter.join().unwrap();
        assert!(got || wake.contains(C) && depths.acquire(Domain::Read, C), "a token was stranded");
    });
}

#[test]
fn a_token_that_is_not_wanted_any_more_goes_on() {
    a_token_is_not_stranded(true);
}

#[test]
#[should_panic(expected = "a token was stranded")]
fn without_giving_it_back_a_token_is_stranded() {
    a_token_is_not_stranded(false);
}

/// A and B each return a token while C waits: C is granted exactly one, and no token is lost.
#[test]
fn two_returned_tokens_are_granted_once_each() {
    check(6, || {
        let depths = Arc::new(Depths::<Loom>::new(3, [2; 4]));
        assert!(depths.acquire(Domain::Read, A) && depths.acquire(Domain::Read, B));
        assert!(!want(&depths, C, true));
        let other = depths.clone();
        let second = thread::spawn(move || other.release(Domain::Read, B, false));
        let wakes = [depths.release(Domain::Read, A, false), second.join().unwrap()];
        assert_eq!(wakes.iter().filter(|wake| wake.contains(C)).count(), 1, "C is woken once");
        assert_eq!(depths.state(Domain::Read).1, 1, "C's is in use");
        assert!(
            depths.acquire(Domain::Read, C)
                && depths.acquire(Domain::Read, A)
                && !depths.acquire(Domain::Read, B)
        );
    });
}
