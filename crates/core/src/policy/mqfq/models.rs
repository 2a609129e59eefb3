//! The scalable structures under the model checker: every interleaving (with few preemptions) and
//! every value that the memory model lets a load return.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib mqfq::models`
//!
//! Each law is also checked on a broken machine or a broken use that the model must catch, so that
//! the check itself is tested ([`crate::structures::broken`]).

use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::slots::Slots;
use super::wheel::{Wheel, Window};
use super::{Account, EndTags, Mqfq, MqfqConfig, MqfqPort};
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{Loom, Platform};
use crate::contract::port::{Cost, Next, Op, Outcome, Policy, Port, Request, Tag};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::VTime;
use crate::structures::broken::{NoOrder, NoStamp, Torn, check};
use crate::structures::mindicator::VirtualTime;
use crate::structures::topology::Topology;

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const C: PortId = PortId(2);

fn at(units: u64) -> VTime {
    VTime::from_units(units)
}

/// Two ports on one core, one or two on another.
fn two_cores(ports: u16) -> Topology {
    Topology::new((0..ports).map(|port| (0, port / 2)).collect())
}

// End tags.

/// Two ports tag requests of one flow while `tick` lifts it: each request is charged once, and
/// starts at virtual time or later.
fn each_request_is_charged_once<P: Platform>() {
    check(6, || {
        let ends = Arc::new(EndTags::<P>::new(1, 2));
        let window = ends.window(200);
        // The arrears of both ports may be an eighth of the window, so the idle flow's word is
        // lifted to 980.
        let now = at(1_000);
        let work = |costs: [u64; 3]| {
            let ends = ends.clone();
            move || {
                let mut account = Account::default();
                let mut last = ends.tag_at(0, &mut account, costs[0], now, window).unwrap();
                assert!(!last.is_before(now));
                for units in &costs[1..] {
                    let start = ends.tag_from(0, &mut account, *units, now, true, window).unwrap();
                    assert!(last.is_before(start));
                    last = start;
                }
                account
            }
        };
        let other = thread::spawn(work([7, 9, 50]));
        let lifter = ends.clone();
        let lifting = thread::spawn(move || lifter.lift(0, now, window));
        let mine = work([8, 6, 3])();
        let other = other.join().unwrap();
        lifting.join().unwrap();
        // Costs of 6 and 3 may stay arrears, a cost of 50 may not: it was charged together with the
        // 9 before it.
        assert_eq!(
            ends.earliest(0, &other, now),
            Some(at(980 + 7 + 9 + 50 + 8)),
            "a charge was lost"
        );
        assert_eq!(
            ends.earliest(0, &mine, now),
            Some(at(980 + 7 + 9 + 50 + 8 + 6 + 3)),
            "a charge was lost"
        );
    });
}

#[test]
fn a_shared_flow_is_charged_for_each_request() {
    each_request_is_charged_once::<Loom>();
}

#[test]
#[should_panic(expected = "a charge was lost")]
fn without_atomic_additions_charges_are_lost() {
    each_request_is_charged_once::<Torn>();
}

// Virtual time.

/// An arrival runs beside a raise: once a request has been pinned and tagged, virtual time does not
/// pass it until its port raises its leaf, and virtual time never goes back.
fn an_arrival_holds_time_back<P: Platform>(topology: fn() -> Topology) {
    check(6, move || {
        let time = Arc::new(VirtualTime::<P>::new(topology().tree()));
        for (port, lead) in [(A, 5), (B, 9)] {
            time.pin(port, VTime::ZERO);
            time.raise(port, Some(at(lead)));
        }
        time.raise(A, Some(at(6)));
        let other = time.clone();
        let raiser = thread::spawn(move || {
            other.raise(A, Some(at(20)));
        });
        // A request of an idle flow comes to B, before its lead.
        let before = time.now();
        let tag = time.pin(B, before);
        assert!(!tag.is_before(before));
        time.raise(B, Some(tag));
        assert_eq!(time.now(), tag, "time has passed a waiting request");
        raiser.join().unwrap();
        assert_eq!(time.now(), tag, "time has passed a waiting request");
        assert!(tag == at(6) || tag == at(9));
        time.raise(B, None);
        assert_eq!(time.now(), at(20));
    });
}

#[test]
fn an_arrival_holds_time_back_below_the_root() {
    an_arrival_holds_time_back::<Loom>(|| Topology::flat(2));
}

#[test]
fn an_arrival_holds_time_back_below_a_core() {
    an_arrival_holds_time_back::<Loom>(|| two_cores(3));
}

#[test]
#[should_panic(expected = "time has passed a waiting request")]
fn without_stamps_an_arrival_is_passed_over() {
    an_arrival_holds_time_back::<NoStamp>(|| Topology::flat(2));
}

/// Neighbours raise their leaves: when all raises have returned, virtual time is the least lead,
/// and one of the raises has returned it.
fn raises_are_not_forgotten<P: Platform>(
    topology: fn() -> Topology,
    ends: &'static [(PortId, u64)],
) {
    check(6, move || {
        let time = Arc::new(VirtualTime::<P>::new(topology().tree()));
        for &(port, _) in ends {
            time.pin(port, VTime::ZERO);
        }
        let raise = |(port, lead): (PortId, u64)| {
            let time = time.clone();
            move || time.raise(port, Some(at(lead)))
        };
        let others: Vec<_> = ends[1..].iter().map(|&end| thread::spawn(raise(end))).collect();
        let mut told = Vec::from([raise(ends[0])()]);
        told.extend(others.into_iter().map(|other| other.join().unwrap()));
        let least = ends.iter().map(|&(_, lead)| lead).min().unwrap();
        assert_eq!(time.now(), at(least), "a raise was forgotten");
        assert!(told.contains(&Some(at(least))));
    });
}

#[test]
fn raises_below_the_root_are_not_forgotten() {
    raises_are_not_forgotten::<Loom>(|| Topology::flat(2), &[(A, 9), (B, 7)]);
}

#[test]
fn raises_below_a_core_are_not_forgotten() {
    raises_are_not_forgotten::<Loom>(|| two_cores(3), &[(A, 9), (B, 7), (C, 8)]);
}

#[test]
#[should_panic(expected = "a raise was forgotten")]
fn without_a_total_order_raises_are_forgotten() {
    raises_are_not_forgotten::<NoOrder>(|| Topology::flat(2), &[(A, 9), (B, 7)]);
}

/// Two ports become empty and busy at the same time; virtual time never goes back and is right in
/// the end.
#[test]
fn arrivals_and_departures() {
    check(6, || {
        let time = Arc::new(VirtualTime::<Loom>::new(two_cores(3).tree()));
        for (port, lead) in [(A, 3), (C, 4)] {
            time.pin(port, VTime::ZERO);
            time.raise(port, Some(at(lead)));
        }
        let other = time.clone();
        let departure = thread::spawn(move || {
            other.raise(A, None);
            other.now()
        });
        let tag = time.pin(B, time.now());
        let lead = tag.plus(2);
        time.raise(B, Some(lead));
        time.raise(C, None);
        let seen = time.now();
        assert!(!lead.is_before(seen) && !seen.is_before(tag));
        assert!(!departure.join().unwrap().is_before(at(3)));
        assert_eq!(time.now(), lead);
    });
}

// Slots.

/// Takes one slot as a port does; with `looks_again` it tries twice, as `Local::acquire` does.
fn want<P: Platform>(slots: &Slots<P>, port: PortId, looks_again: bool) -> bool {
    if slots.acquire(port) {
        return true;
    }
    slots.enlist(port);
    let taken = looks_again && slots.acquire(port);
    if taken {
        slots.delist(port);
    }
    taken
}

/// The last slot comes back, to a port that has nothing to send, while another port becomes ready:
/// that port is woken, or finds the slot.
fn a_slot_finds_its_user<P: Platform>(topology: fn() -> Topology, user: PortId, looks_again: bool) {
    check(6, move || {
        let slots = Arc::new(Slots::<P>::new(topology().tree(), 1));
        assert!(slots.acquire(A));
        let other = slots.clone();
        let finisher = thread::spawn(move || {
            let mut wake = other.release(A, false);
            wake.extend(other.stop(A));
            wake
        });
        let mut got = want(&slots, user, looks_again);
        let wake = finisher.join().unwrap();
        if !got {
            assert!(wake.contains(user), "a wake-up was lost");
            got = want(&slots, user, looks_again);
        }
        assert!(got, "a slot was lost");
        assert_eq!(slots.free(), 0);
    });
}

#[test]
fn a_token_finds_its_user() {
    a_slot_finds_its_user::<Loom>(|| Topology::flat(2), B, true);
    a_slot_finds_its_user::<Loom>(|| two_cores(3), B, true);
    a_slot_finds_its_user::<Loom>(|| two_cores(3), C, true);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_a_total_order_a_token_misses_its_user() {
    a_slot_finds_its_user::<NoOrder>(|| Topology::flat(2), B, true);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_looking_again_a_token_misses_its_user() {
    a_slot_finds_its_user::<Loom>(|| Topology::flat(2), B, false);
}

/// Whether a port that stops gives up its tokens.
type Stops = bool;

/// A token is given to B, which has nothing left to send when it is woken, while C, on another
/// core, becomes ready.
fn a_token_is_not_stranded(stops: Stops) {
    check(6, move || {
        let slots = Arc::new(Slots::<Loom>::new(two_cores(3).tree(), 1));
        assert!(slots.acquire(A));
        assert!(!want(&slots, B, true));
        let giver = slots.clone();
        let giving = thread::spawn(move || {
            let wake = giver.release(A, false);
            // Once A has given the token away it does not stop, so that B alone has to pass it on.
            if wake.is_empty() { giver.stop(A) } else { wake }
        });
        let waiter = slots.clone();
        let waiting = thread::spawn(move || want(&waiter, C, true));
        // B runs without a wake-up, finds that it has nothing to send, and stops.
        slots.delist(B);
        let mut wake = if stops { slots.stop(B) } else { PortSet::EMPTY };
        wake.extend(giving.join().unwrap());
        let mut got = waiting.join().unwrap();
        if wake.contains(B) && stops {
            wake.extend(slots.stop(B));
        }
        if !got {
            assert!(wake.contains(C), "a token was stranded");
            got = want(&slots, C, true);
        }
        assert!(got && slots.free() == 0);
    });
}

#[test]
fn a_token_that_is_not_wanted_any_more_goes_on() {
    a_token_is_not_stranded(true);
}

#[test]
#[should_panic(expected = "a token was stranded")]
fn without_giving_up_a_token_is_stranded() {
    a_token_is_not_stranded(false);
}

/// D becomes greater while a port becomes ready: that port is woken, or finds the new slot.
fn a_new_slot_finds_its_user(looks_again: bool) {
    check(6, move || {
        let slots = Arc::new(Slots::<Loom>::new(Topology::flat(2).tree(), 1));
        assert!(slots.acquire(A));
        let other = slots.clone();
        let setter = thread::spawn(move || other.resize(2));
        let mut got = want(&slots, B, looks_again);
        let wake = setter.join().unwrap();
        if !got {
            assert!(wake.contains(B), "a wake-up was lost");
            got = want(&slots, B, looks_again);
        }
        assert!(got && slots.free() == 0);
    });
}

#[test]
fn a_new_slot_is_found() {
    a_new_slot_finds_its_user(true);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_looking_again_a_new_slot_is_not_found() {
    a_new_slot_finds_its_user(false);
}

/// D goes from 2 to 1 and to 2 again, or only to 1, while one port releases a slot and another
/// takes one. Afterwards D slots can be taken, whichever port paid. With `pays` ports take slots as
/// `Local::take` does.
fn a_debt_is_paid_once<P: Platform>(back: bool, pays: bool) {
    check(5, move || {
        let slots = Arc::new(Slots::<P>::new(Topology::flat(2).tree(), 2));
        assert!(slots.acquire(A));
        let take = move |slots: &Slots<P>, port| {
            if pays { slots.acquire_owing(port).0 } else { slots.acquire(port) }
        };
        let finisher = slots.clone();
        let finishing = thread::spawn(move || {
            finisher.release(A, true);
            let again = take(&finisher, A);
            finisher.stop(A);
            again
        });
        let other = slots.clone();
        let taking = thread::spawn(move || {
            let got = take(&other, B);
            other.stop(B);
            got
        });
        slots.resize(1);
        if back {
            slots.resize(2);
        }
        let taken = [finishing.join().unwrap(), taking.join().unwrap()];
        let mut outstanding = taken.into_iter().map(u64::from).sum::<u64>();
        let total = u64::from(slots.total());
        assert!(outstanding <= 2);
        assert_eq!(slots.free(), total.saturating_sub(outstanding), "slots were made or lost");
        // All old requests end; then D holds.
        for port in [A, B].into_iter().take(outstanding as usize) {
            slots.release(port, true);
            slots.stop(port);
        }
        outstanding = 0;
        while take(&slots, A) {
            outstanding += 1;
        }
        assert_eq!(outstanding, total, "not as many as D says");
    });
}

#[test]
fn a_debt_is_paid() {
    a_debt_is_paid_once::<Loom>(false, true);
    a_debt_is_paid_once::<Loom>(true, true);
}

#[test]
#[should_panic(expected = "not as many as D says")]
fn a_debt_that_nobody_pays_is_noticed() {
    a_debt_is_paid_once::<Loom>(false, false);
}

#[test]
#[should_panic(expected = "slots were made or lost")]
fn without_atomic_additions_slots_are_lost() {
    a_debt_is_paid_once::<Torn>(true, true);
}

// The wheel.

/// A port goes to sleep while others move virtual time so far that the port may run: the port
/// notices this, or is woken. Its bit may lie in another word than the turners' bits.
fn a_sleeper_is_woken<P: Platform>(sleeper: PortId, turners: u8) {
    check(6, move || {
        let time = Arc::new(VirtualTime::<P>::new(Topology::flat(1 + usize::from(turners)).tree()));
        let wheel = Arc::new(Wheel::<P>::new(
            Window::new(2, false),
            1 + usize::from(sleeper.0.max(turners)),
        ));
        for turner in 0..turners {
            time.pin(PortId(1 + turner), VTime::ZERO);
        }
        let turning: Vec<_> = (0..turners)
            .map(|turner| {
                let (time, wheel) = (time.clone(), wheel.clone());
                let lead = Some(at(5 + 2 * u64::from(turner)));
                thread::spawn(move || {
                    time.raise(PortId(1 + turner), lead)
                        .map_or(PortSet::EMPTY, |now| wheel.turn(now))
                })
            })
            .collect();
        let now = time.now();
        let window = wheel.window();
        let lead = at(7);
        let asleep = window.holds_back(lead, now)
            && wheel.enter(sleeper, lead, window, now, &time).is_some();
        let woken = turning.into_iter().fold(PortSet::EMPTY, |mut woken, turner| {
            woken.extend(turner.join().unwrap());
            woken
        });
        assert!(!asleep || woken.contains(sleeper), "a port sleeps on");
    });
}

#[test]
fn a_sleeper_is_woken_by_one() {
    a_sleeper_is_woken::<Loom>(A, 1);
}

#[test]
fn a_sleeper_beyond_the_first_word_is_woken() {
    a_sleeper_is_woken::<Loom>(PortId(200), 1);
}

#[test]
fn a_sleeper_is_woken_by_one_of_two() {
    a_sleeper_is_woken::<Loom>(A, 2);
}

#[test]
#[should_panic(expected = "a port sleeps on")]
fn without_a_total_order_a_sleeper_sleeps_on() {
    a_sleeper_is_woken::<NoOrder>(A, 1);
}

/// T is raised while a port goes to sleep: the port notices the new window.
#[test]
fn a_sleeper_notices_a_new_window() {
    check(6, || {
        let time = Arc::new(VirtualTime::<Loom>::new(Topology::flat(2).tree()));
        let wheel = Arc::new(Wheel::<Loom>::new(Window::new(2, false), 2));
        let other = wheel.clone();
        let setter = thread::spawn(move || {
            other.want(Window::new(10, false));
            other.adopt()
        });
        let window = wheel.window();
        let lead = at(7);
        let asleep = window.holds_back(lead, VTime::ZERO)
            && wheel.enter(A, lead, window, VTime::ZERO, &time).is_some();
        let woken = setter.join().unwrap();
        assert!(!asleep || woken.contains(A));
    });
}

/// A thread adopts a window while another one is wanted, possibly the original one: the window
/// wanted last is adopted.
fn the_last_window_is_adopted(last: u64, looks_again: bool) {
    check(3, move || {
        let wheel = Arc::new(Wheel::<Loom>::new(Window::new(2, false), 2));
        wheel.want(Window::new(20, false));
        let adopt = move |wheel: &Wheel<Loom>| match looks_again {
            true => Some(wheel.adopt()),
            false => wheel.adopt_once(),
        };
        let other = wheel.clone();
        let adopting = thread::spawn(move || adopt(&other));
        if wheel.want(Window::new(last, false)) {
            adopt(&wheel);
        }
        adopting.join().unwrap();
        assert_eq!(wheel.window().units(), last, "a window that is not wanted");
    });
}

#[test]
fn the_last_of_two_windows_is_adopted() {
    the_last_window_is_adopted(10, true);
}

#[test]
fn a_window_that_is_wanted_again_stays() {
    the_last_window_is_adopted(2, true);
}

#[test]
#[should_panic(expected = "a window that is not wanted")]
fn without_looking_again_an_old_window_stays() {
    the_last_window_is_adopted(10, false);
}

// The whole.

/// Runs a port until it stops, as its owner would, completing each request at once.
fn run<P: Platform>(port: &mut MqfqPort<P>, wake: &mut PortSet) -> u32 {
    let mut issued = 0;
    loop {
        match port.next(0, wake) {
            Next::Issue { tag, .. } => {
                issued += 1;
                port.complete(0, tag, Outcome::Done, wake);
            }
            _ => return issued,
        }
    }
}

/// Two ports and a T of 0: each port submits `requests` requests and runs. When all wake-ups have
/// been delivered, all requests have been issued and all `slots` are free.
fn all_is_issued<P: Platform>(slots: u32, requests: u32) {
    all_is_issued_within::<P>(4, slots, requests, 0, |_, _| ());
}

/// The law of [`all_is_issued`] with this bound on preemptions, with this T, and with a concurrent
/// change of the policy.
fn all_is_issued_within<P: Platform>(
    preemptions: usize,
    slots: u32,
    requests: u32,
    threshold_bytes: u64,
    change: fn(&Mqfq<P>, FlowId),
) {
    check(preemptions, move || {
        let config =
            MqfqConfig { slots, threshold_bytes, ..MqfqConfig::new(Topology::flat(2), 2, 2) };
        let (policy, ports) = Mqfq::<P>::new(config).unwrap();
        let flows: Vec<_> = (0..2).map(|_| policy.add_flow(Weight::DEFAULT).unwrap()).collect();
        let work = |mut port: MqfqPort<P>, flow| {
            move || {
                let mut wake = PortSet::EMPTY;
                for tag in 0..requests {
                    let request = Request::new(Tag(tag), flow, Op::Read, 0, 1);
                    let request = Request { cost: Cost::bytes(1), ..request };
                    port.submit(0, &request, &mut wake).unwrap();
                }
                let issued = run(&mut port, &mut wake);
                (port, wake, issued)
            }
        };
        let mut ports = ports.into_iter();
        let (first, second) = (ports.next().unwrap(), ports.next().unwrap());
        let second = thread::spawn(work(second, flows[1]));
        change(&policy, flows[1]);
        let first = work(first, flows[0])();
        let second = second.join().unwrap();
        let mut wake = first.1;
        wake.extend(second.1);
        let mut issued = first.2 + second.2;
        let mut ports = [first.0, second.0];
        while let Some(PortId(port)) = wake.next() {
            issued += run(&mut ports[usize::from(port)], &mut wake);
        }
        assert_eq!(issued, 2 * requests, "requests wait for ever");
        assert_eq!(policy.stats().free_slots, Some(u64::from(slots)));
    });
}

#[test]
fn all_is_issued_through_one_slot() {
    all_is_issued::<Loom>(1, 1);
}

#[test]
fn all_is_issued_in_lockstep() {
    all_is_issued::<Loom>(2, 2);
}

/// A weight changes, and the window with it, while a port works or sleeps. A fourth preemption
/// takes ten times as long: `tests/long models` runs it.
#[test]
fn all_is_issued_while_weights_change() {
    all_is_issued_within::<Loom>(3, 2, 2, 4, |policy, flow| {
        policy.set_weight(flow, Weight::new(400).unwrap()).unwrap();
        policy.set_weight(flow, Weight::new(50).unwrap()).unwrap();
    });
}

#[test]
#[should_panic(expected = "requests wait for ever")]
fn without_a_total_order_requests_wait_for_ever() {
    all_is_issued::<NoOrder>(1, 1);
}
