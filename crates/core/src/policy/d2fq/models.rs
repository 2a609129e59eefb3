//! The sloppy word and the count of active ports under the model checker.
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib d2fq::models`

use std::sync::Arc;

use loom::thread;

use super::activity::FlowState;
use super::gvt::{Gvt, Holder};
use crate::contract::platform::Loom;
use crate::contract::vtime::VTime;

fn at(kiu: u64) -> VTime {
    VTime::from_units(kiu << 10)
}

/// Runs the model in every interleaving with at most so many preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// A flow and the word, as a port uses them.
struct Flow {
    state: FlowState<Loom>,
    me: Holder,
}

impl Flow {
    fn new(slot: usize) -> Arc<Flow> {
        Arc::new(Flow { state: FlowState::new(), me: Holder::new(slot, 1) })
    }

    /// One request from submission to completion, the only one on its port.
    fn serve(&self, gvt: &Gvt<Loom>, kiu: u64, releases: bool) {
        self.state.enter(1000);
        self.publish(gvt, kiu);
        if self.state.leave(2000) && releases {
            gvt.release(self.me);
        }
    }

    fn publish(&self, gvt: &Gvt<Loom>, kiu: u64) {
        let before = self.state.charge(kiu << 10);
        gvt.update(self.me, before, before.plus(kiu << 10));
    }
}

/// A flow on two ports goes idle: nobody holds the word, whoever was last; its value is what the
/// flow reached.
fn an_idle_flow_holds_nothing(releases: bool) {
    check(move || {
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

/// Two flows: after its publication neither is behind a word that is held; a flow that stays active
/// and publishes again takes it up again, whatever the other did meanwhile.
#[test]
fn the_word_is_never_lost_and_never_runs_ahead() {
    check(|| {
        let gvt = Arc::new(Gvt::<Loom>::new());
        let (a, b) = (Flow::new(0), Flow::new(1));
        a.state.enter(0);
        let (other_gvt, other) = (gvt.clone(), b.clone());
        let leaver = thread::spawn(move || other.serve(&other_gvt, 2, true));
        a.publish(&gvt, 4);
        leaver.join().unwrap();
        assert_eq!(b.state.activity().ports(), 0);
        assert_ne!(gvt.holder_slot(), Some(1), "held by a flow that cannot move it");
        // What the least flow is found to be, without a holder, and that flow's next publication.
        gvt.raise_unheld(a.state.vt());
        a.publish(&gvt, 1);
        assert_eq!(gvt.holder_slot(), Some(0), "nobody can move it");
        assert_eq!(gvt.ahead(at(5)), 0);
    });
}

/// Two flows that stay: the word ends at one of them, held by it, and not after the lesser.
#[test]
fn the_lesser_of_two_holds_it() {
    check(|| {
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

/// Two ports come and go at once: exactly one finds that it is the last, and whoever comes first is
/// told what was before.
#[test]
fn activity_is_counted() {
    check(|| {
        let flow = Flow::new(0);
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

/// A lift of an idle flow and a port that charges it lose nothing of the charge.
#[test]
fn a_lift_and_a_charge_both_count() {
    check(|| {
        let flow = Flow::new(0);
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
