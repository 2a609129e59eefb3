//! **Law: taking back.** A cancelled request is never issued; a requeued one is issued once more,
//! by its port, whatever happens meanwhile. Slots and virtual time stay correct, and no slot is
//! free while a request is staged. A flow is not charged for its cancelled requests.

use fairq_core::CostModel;

use crate::canary::{self, Fault, Misbehave, caught};
use crate::closed::{Loop, Plan, served};
use crate::script::{ANYTHING, Kind, for_all};
use crate::world::Subject;
use crate::{law_requests, law_slots, law_virtual_time, law_work};

pub(crate) const TAKING_BACK: Kind = Kind { takes_back: true, ..ANYTHING };

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, TAKING_BACK, 200, law_requests::check)
}

/// The law for a policy that has slots, and whose virtual time, if any, does not go back.
pub(crate) fn keeps_slots(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, TAKING_BACK, 200, |trace| {
        law_slots::check(trace)?;
        law_virtual_time::check(trace)
    })
}

/// The law for a policy that serves whenever it can.
pub(crate) fn is_work_conserving(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, TAKING_BACK, 200, law_work::check)
}

/// Two flows of equal weight keep the same number of requests staged, but one of them cancels one
/// after each completion. Both must be served alike.
pub(crate) fn is_free(subject: &dyn Subject) -> Result<(), String> {
    let loops = [Loop::new(100, 0, 16, 4096), Loop::new(100, 0, 16, 4096)];
    let mut plan = Plan::new(subject, 1, 4, 65_536, CostModel::default(), &loops);
    plan.run(200);
    let from = plan.mark();
    for _ in 0..2000 {
        plan.run(1);
        plan.take_back(0, 0);
    }
    let to = plan.mark();
    let trace = plan.finish();
    law_requests::check(&trace)?;
    let [a, b] = served(&trace, from, to)[..] else { return Err("two flows".into()) };
    // T, and the requests that are outstanding and staged when bytes are counted.
    let slack = 65_536 + 32 * 4096;
    if a.abs_diff(b) <= slack { Ok(()) } else { Err(format!("{a} and {b} bytes, equal weights")) }
}

#[test]
fn catches_what_forgets_or_repeats() {
    for fault in [Misbehave::CancelForgets, Misbehave::CancelOnlySays, Misbehave::RequeueForgets] {
        caught(holds(&canary::Wrapped(fault)), "law broken");
    }
}

#[test]
fn catches_a_charge_for_what_was_cancelled() {
    is_free(&canary::Serial(Fault::None)).unwrap();
    caught(is_free(&canary::Serial(Fault::ChargesForCancelled)), "equal weights");
}
