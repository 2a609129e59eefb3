//! Caps under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib caps::models`

use std::sync::Arc;

use loom::thread;

use super::account::{Shared, Word, bits};
use crate::contract::flow::{FlowId, Side};
use crate::contract::op::Op;
use crate::contract::platform::{Loom, Ordering, Platform};
use crate::contract::port::{Request, Tag};
use crate::contract::share::GroupId;
use crate::policy::bucket::Time;
use crate::structures::broken::{Fault, check};

fn request(length: u32) -> Request {
    Request::new(Tag(0), FlowId::new(0, 1), Op::Read, 0, length)
}

/// A flow with a cap of two requests at once, in a group with one of 4,096 bytes.
fn shared<P: Platform>() -> Arc<Shared<P>> {
    let shared = Shared::<P>::new(1, 1);
    let [requests, ..] = &shared.accounts[0].buckets;
    requests.set(1_000_000, 2);
    let [_, bytes, ..] = &shared.accounts[1].buckets;
    bytes.set(1 << 30, 4096);
    let caps = bits(Side::Both);
    shared.put_group(GroupId(0), Word { caps: caps & 2, ..Word::default() });
    let generation = request(0).flow.generation();
    shared.put(0, Word { caps: caps & 1, above: Some(GroupId(0)), generation });
    Arc::new(shared)
}

/// Two ports take from both buckets at once: at most the burst of either, and an amount that only
/// one bucket gave is refunded.
fn two_ports_have_the_burst_between_them<P: Platform>() {
    check(4, || {
        let shared = shared::<P>();
        let now = Time::of_ns(1_000_000_000);
        let take = |length| {
            let shared = shared.clone();
            move || {
                let (request, path) =
                    (request(length), shared.path(request(length).flow, Op::Read));
                u64::from(shared.take(now, &path, &request).is_ok())
            }
        };
        let other = thread::spawn(take(2048));
        let mine = take(4096)();
        let other = other.join().unwrap();
        assert_eq!(mine + other, 1, "4,096 bytes are enough for one of the two");
        let requests = &shared.accounts[0].buckets[0];
        assert_eq!(requests.take(now, requests.cost(1)), Ok(()), "it was given back");
        assert!(requests.take(now, requests.cost(1)).is_err());
    });
}

#[test]
fn caps_hold_between_ports() {
    two_ports_have_the_burst_between_them::<Loom>();
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
fn the_model_sees_what_is_taken_twice() {
    two_ports_have_the_burst_between_them::<Careless>();
}
