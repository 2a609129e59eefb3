//! **Law: slots.** At most D commands are outstanding; and when no port needs a `next`, the
//! policy's count of free slots is D less the commands outstanding: no slot leaks, and none
//! appears.

use crate::canary::{self, Fault, Misbehave, caught};
use crate::script::{ANYTHING, for_all};
use crate::world::{Event, Subject, Trace};

pub(crate) fn check_depth(trace: &Trace) -> Result<(), String> {
    check_within(trace, trace.shape.slots)
}

fn check_within(trace: &Trace, slots: u32) -> Result<(), String> {
    let mut outstanding = 0;
    // Live requests of each command. A requeued request belongs to another command afterwards.
    let commands = trace.events.iter().filter(|event| matches!(event, Event::Issued { .. }));
    let mut live = vec![0; commands.count()];
    for request in &trace.requests {
        if let Some(live) = live.get_mut(request.command) {
            *live += 1;
        }
    }
    for (at, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Issued { joined, .. } => outstanding += u32::from(!joined),
            Event::Completed(request) => {
                let live = &mut live[trace.requests[request].command];
                *live -= 1;
                outstanding -= u32::from(*live == 0);
            }
            Event::Requeued(_) => outstanding -= 1,
            _ => {}
        }
        if outstanding > slots {
            return Err(format!("event {at}: {outstanding} requests outstanding, D is {slots}"));
        }
    }
    Ok(())
}

pub(crate) fn check_conservation(trace: &Trace) -> Result<(), String> {
    for (at, event) in trace.events.iter().enumerate() {
        if let Event::Settled { free_slots: Some(free), outstanding, .. } = *event
            && free + outstanding as u64 != u64::from(trace.shape.slots)
        {
            return Err(format!(
                "event {at}: {free} slots free, {outstanding} in use, of {}",
                trace.shape.slots
            ));
        }
    }
    Ok(())
}

pub(crate) fn check(trace: &Trace) -> Result<(), String> {
    check_depth(trace)?;
    check_conservation(trace)
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, ANYTHING, 150, check)
}

/// The law for a policy that never has more than `most` outstanding, however great D is.
pub(crate) fn holds_within(subject: &dyn Subject, most: u32) -> Result<(), String> {
    for_all(subject, ANYTHING, 150, |trace| check_within(trace, most.min(trace.shape.slots)))
}

#[test]
fn catches_one_slot_too_many() {
    caught(
        for_all(&canary::Wrapped(Misbehave::OneSlotTooMany), ANYTHING, 150, check_depth),
        "outstanding, D is",
    );
}

#[test]
fn catches_a_leaked_slot() {
    caught(
        for_all(&canary::Wrapped(Misbehave::ForgetCompletions), ANYTHING, 150, check_conservation),
        "slots free",
    );
}

#[test]
fn passes_a_naive_serial_policy() {
    holds(&canary::Serial(Fault::None)).unwrap();
}
