//! **Law: work conserving.** When no port needs a `next`, a slot is free only if no request is
//! staged. (Throttling is no excuse: the request that is least ahead is not throttled, and virtual
//! time advances with it.)

use crate::canary::{self, Misbehave, caught};
use crate::script::{ANYTHING, for_all};
use crate::world::{Event, Subject, Trace};

pub(crate) fn check(trace: &Trace) -> Result<(), String> {
    for (at, event) in trace.events.iter().enumerate() {
        if let Event::Settled { outstanding, staged, .. } = *event
            && outstanding < trace.shape.slots as usize
            && staged > 0
        {
            let slots = trace.shape.slots;
            return Err(format!(
                "event {at}: {outstanding} outstanding of {slots}, and {staged} staged"
            ));
        }
    }
    Ok(())
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, ANYTHING, 200, check)
}

/// The weaker law: the device is not idle while a request is staged.
pub(crate) fn is_never_idle(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, ANYTHING, 200, |trace| {
        for (at, event) in trace.events.iter().enumerate() {
            if let Event::Settled { outstanding: 0, staged: 1.., .. } = *event {
                return Err(format!("event {at}: nothing outstanding, but something is staged"));
            }
        }
        Ok(())
    })
}

#[test]
fn catches_an_idle_device() {
    caught(is_never_idle(&canary::Wrapped(Misbehave::LoseWakeUps)), "nothing outstanding");
}

#[test]
fn catches_a_lost_wake_up() {
    caught(holds(&canary::Wrapped(Misbehave::LoseWakeUps)), "outstanding of");
}

#[test]
fn catches_a_slot_too_few() {
    caught(holds(&canary::Wrapped(Misbehave::OneSlotTooFew)), "outstanding of");
}
