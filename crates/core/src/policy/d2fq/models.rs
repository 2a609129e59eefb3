//! The word of global virtual time and the count of active ports under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --profile loom --lib d2fq::models`

use std::sync::Arc;

use loom::thread;

use super::activity::FlowState;
use super::gvt::{Floor, Gvt, Holder};
use crate::contract::platform::{Loom, Platform};
use crate::contract::vtime::VTime;
use crate::structures::broken::{NoOrder, check};

fn at(kiu: u64) -> VTime {
    VTime::from_units(kiu << 10)
}

/// A flow and the word, as a port uses them.
struct Flow<P: Platform = Loom> {
    state: FlowState<P>,
    me: Holder,
}

impl<P: Platform> Flow<P> {
    fn new(slot: usize) -> Arc<Self> {
        Arc::new(Flow { state: FlowState::new(), me: Holder::new(slot, 1) })
    }

    /// One request from submission to completion, the only one on its port.
    fn serve(&self, gvt: &Gvt<P>, kiu: u64, releases: bool) {
        self.state.enter(1000);
        self.publish(gvt, kiu);
        if self.state.leave(2000) && releases {
            gvt.release(self.me);
        }
    }

    fn publish(&self, gvt: &Gvt<P>, kiu: u64) {
        let before = self.state.charge(kiu << 10);
        gvt.update(self.me, before, before.plus(kiu << 10));
    }
}

/// A flow on two ports goes idle: the word is not held, whichever port was last; its value is not
/// after the flow's virtual time.
fn an_idle_flow_holds_nothing(releases: bool) {
    check(5, move || {
        let (gvt, flow) = (Arc::new(Gvt::<Loom>::new()), Flow::new(0));
        let (other_gvt, other_flow) = (gvt.clone(), flow.clone());
        let other = thread::spawn(move || other_flow.serve(&other_gvt, 3, releases));
        flow.serve(&gvt, 5, releases);
        other.join().unwrap();
        assert_eq!(flow.state.activity().ports(), 0);
        assert_eq!(gvt.holder_slot(), None, "held by a flow that cannot move it");
        assert_eq!(flow.state.vt(), at(8));
        assert!(gvt.ahead(at(8)) >= 0, "ahead of everyone");
    });
}

#[test]
fn a_flow_that_goes_idle_lets_go() {
    an_idle_flow_holds_nothing(true);
}

#[test]
#[should_panic(expected = "held by a flow that cannot move it")]
fn without_release_an_idle_flow_keeps_it() {
    an_idle_flow_holds_nothing(false);
}

/// Two flows publish: after its publication neither is behind a word that is held. A flow that
/// stays active and publishes again takes the word again, whatever the other flow did meanwhile.
#[test]
fn the_word_is_never_lost_and_never_runs_ahead() {
    check(5, || {
        let gvt = Arc::new(Gvt::<Loom>::new());
        let (a, b) = (Flow::new(0), Flow::new(1));
        a.state.enter(0);
        let (other_gvt, other) = (gvt.clone(), b.clone());
        let leaver = thread::spawn(move || other.serve(&other_gvt, 2, true));
        a.publish(&gvt, 4);
        leaver.join().unwrap();
        assert_eq!(b.state.activity().ports(), 0);
        assert_ne!(gvt.holder_slot(), Some(1), "held by a flow that cannot move it");
        // The value is raised to the least flow without a holder, and that flow publishes next.
        gvt.raise_unheld(a.state.vt());
        a.publish(&gvt, 1);
        assert_eq!(gvt.holder_slot(), Some(0), "nobody can move it");
        assert_eq!(gvt.ahead(at(5)), 0);
    });
}

/// Two flows stay active: in the end one of them holds the word, and the word is not after the
/// lesser of their virtual times.
#[test]
fn the_lesser_of_two_holds_it() {
    check(5, || {
        let gvt = Arc::new(Gvt::<Loom>::new());
        let (a, b) = (Flow::new(0), Flow::new(1));
        for flow in [&a, &b] {
            flow.state.enter(0);
        }
        let (other_gvt, other) = (gvt.clone(), b.clone());
        let peer = thread::spawn(move || other.publish(&other_gvt, 2));
        a.publish(&gvt, 4);
        peer.join().unwrap();
        b.publish(&gvt, 1);
        assert!(gvt.ahead(at(3)) >= 0, "after the flow that has just published");
        assert!(gvt.holder_slot().is_some());
    });
}

/// Two ports enter and leave at the same time: `enter` of the first port returns the previous
/// state, and `leave` of the last port returns true. Both ports are first only if one left before
/// the other entered.
#[test]
fn activity_is_counted() {
    check(5, || {
        let flow = Flow::<Loom>::new(0);
        let other = flow.clone();
        let peer = thread::spawn(move || {
            let first = other.state.enter(1000).is_some();
            (first, other.state.leave(3000))
        });
        let first = flow.state.enter(2000).is_some();
        let last = flow.state.leave(4000);
        let (other_first, other_last) = peer.join().unwrap();
        assert_eq!(flow.state.activity().ports(), 0);
        assert!(first || other_first);
        assert!(last || other_last);
        assert_eq!(
            first && other_first,
            last && other_last,
            "both first only if one left before the other came"
        );
    });
}

/// Two ports enter and leave beside 254 further ports that stay: the last two of 256 are counted,
/// and neither is the last to leave.
#[test]
fn as_many_ports_as_there_may_be_are_counted() {
    check(5, || {
        let flow = Flow::<Loom>::new(0);
        assert!(flow.state.enter(1000).is_some());
        (1..254).for_each(|_| assert!(flow.state.enter(1000).is_none()));
        let other = flow.clone();
        let peer = thread::spawn(move || {
            let first = other.state.enter(1000).is_some();
            (first, other.state.leave(3000))
        });
        let found = (flow.state.enter(2000).is_some(), flow.state.activity().ports());
        assert!(!found.0 && (255..=256).contains(&found.1), "{found:?}");
        assert!(!flow.state.leave(4000));
        assert_eq!(peer.join().unwrap(), (false, false));
        assert_eq!(flow.state.activity().ports(), 254);
    });
}

/// A lift of an idle flow and a port that charges it lose nothing of the charge.
#[test]
fn a_lift_and_a_charge_both_count() {
    check(5, || {
        let flow = Flow::<Loom>::new(0);
        let other = flow.clone();
        let lifter =
            thread::spawn(move || other.state.shift(|vt| vt.is_before(at(10)).then(|| at(10))));
        flow.state.charge(3 << 10);
        lifter.join().unwrap();
        let charged = flow.state.vt().since(VTime::ZERO) - flow.state.moved() as i64;
        assert_eq!(charged, 3 << 10);
        assert!(!flow.state.vt().is_before(at(10)));
    });
}

/// A flow far ahead raises the floor while one that is left behind publishes and moves gvt back: in
/// the end gvt is not before the floor, and neither is the flow that was left behind once it has
/// published again. `rises` lists the values to which the floor is raised; gvt is at 3 KiU in the
/// beginning.
fn gvt_is_not_before_its_floor<P: Platform>(looks_again: bool, rises: &'static [u64]) {
    check(5, move || {
        let (gvt, floor) = (Arc::new(Gvt::<P>::new()), Arc::new(Floor::<P>::new()));
        let behind = Flow::<P>::new(0);
        let last = at(*rises.last().unwrap());
        let publish = move |gvt: &Gvt<P>, floor: &Floor<P>, flow: &Flow<P>| {
            let before = flow.state.charge(1 << 10);
            flow.state.lift(floor.get());
            gvt.update(flow.me, before, before.plus(1 << 10).max(floor.get()));
            if looks_again {
                P::fence();
                gvt.raise(floor.get());
            }
        };
        behind.state.enter(0);
        gvt.update(Holder::new(1, 1), VTime::ZERO, at(3));
        let (other_gvt, other_floor) = (gvt.clone(), floor.clone());
        let foremost = thread::spawn(move || {
            for &kiu in rises {
                other_floor.raise(at(kiu));
                P::fence();
                other_gvt.raise(at(kiu));
            }
        });
        publish(&gvt, &floor, &behind);
        foremost.join().unwrap();
        assert!(gvt.ahead(last) <= 0, "before the floor");
        publish(&gvt, &floor, &behind);
        assert!(!behind.state.vt().is_before(last));
        assert!(gvt.ahead(behind.state.vt()) >= 0, "a flow that has published is behind");
    });
}

#[test]
fn the_floor_holds_against_a_flow_that_is_behind() {
    gvt_is_not_before_its_floor::<Loom>(true, &[2, 4]);
}

/// The floor is not after gvt when it is raised, so the foremost flow does not swap the word.
#[test]
fn the_floor_holds_against_a_flow_that_moves_gvt_back() {
    gvt_is_not_before_its_floor::<Loom>(true, &[2]);
}

#[test]
#[should_panic(expected = "before the floor")]
fn without_a_total_order_the_floor_does_not_hold() {
    gvt_is_not_before_its_floor::<NoOrder>(true, &[2]);
}

#[test]
#[should_panic(expected = "before the floor")]
fn without_a_second_look_the_floor_does_not_hold() {
    gvt_is_not_before_its_floor::<Loom>(false, &[2, 4]);
}

/// Two flows raise the floor: in the end floor and gvt are at the later of the two values.
#[test]
fn the_floor_is_the_latest() {
    check(5, || {
        let (gvt, floor) = (Arc::new(Gvt::<Loom>::new()), Arc::new(Floor::<Loom>::new()));
        let (other_gvt, other_floor) = (gvt.clone(), floor.clone());
        let other = thread::spawn(move || {
            other_floor.raise(at(5));
            other_gvt.raise(at(5));
        });
        floor.raise(at(3));
        gvt.raise(at(3));
        other.join().unwrap();
        assert_eq!((floor.get(), gvt.ahead(at(5))), (at(5), 0));
    });
}
