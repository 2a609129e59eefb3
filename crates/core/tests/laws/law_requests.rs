//! **Law: requests.** None is lost, none is issued twice, each is issued by the port that it was
//! submitted to, and everything drains; a port says `Idle` or `Blocked` truthfully; refusals leave
//! no trace; the slots of removed flows come back. A cancelled request is not issued, a requeued
//! one once more.

use crate::canary::{self, Misbehave, caught};
use crate::script::{ANYTHING, Kind, for_all};
use crate::world::{Event, Subject, Trace};

pub(crate) fn check(trace: &Trace) -> Result<(), String> {
    check_for(trace, true)
}

/// Without `all_drain`, requests may stay staged.
fn check_for(trace: &Trace, all_drain: bool) -> Result<(), String> {
    let mut issued = vec![0; trace.requests.len()];
    let mut cancelled = vec![false; trace.requests.len()];
    for (at, event) in trace.events.iter().enumerate() {
        match event {
            Event::Issued { port, tag, request: None, .. } => {
                return Err(format!(
                    "event {at}: port {port} issued {tag:?}, which it has not staged"
                ));
            }
            Event::Issued { port, request: Some(request), .. } => {
                issued[*request] += 1;
                if trace.requests[*request].port != *port {
                    return Err(format!(
                        "event {at}: port {port} issued {:?}",
                        trace.requests[*request]
                    ));
                }
            }
            Event::Requeued(request) => issued[*request] -= 1,
            Event::Cancelled(request) => cancelled[*request] = true,
            Event::SaidIdle { port, staged } if *staged > 0 => {
                return Err(format!(
                    "event {at}: port {port} said Idle with {staged} requests staged"
                ));
            }
            Event::SaidBlocked { port, staged: 0 } => {
                return Err(format!("event {at}: port {port} said that it has requests staged"));
            }
            Event::Broken(what) => return Err(format!("event {at}: {what}")),
            _ => {}
        }
    }
    let mut owed = issued.iter().zip(&cancelled).map(|(&times, &cancelled)| (times, cancelled));
    let is_wrong = |(times, cancelled): (i32, bool)| match i32::from(!cancelled) {
        due if all_drain => times != due,
        due => !(0..=due).contains(&times),
    };
    match owed.position(is_wrong) {
        Some(request) => {
            let (times, whose) = (issued[request], trace.requests[request]);
            let fate = if cancelled[request] { "cancelled and " } else { "" };
            Err(format!("{whose:?} was {fate}issued {times} times"))
        }
        None => Ok(()),
    }
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, ANYTHING, 300, check)
}

/// The law for a policy that may keep requests staged for ever.
pub(crate) fn holds_for_issued(subject: &dyn Subject, kind: Kind) -> Result<(), String> {
    for_all(subject, kind, 300, |trace| check_for(trace, false))
}

#[test]
fn catches_what_loses_repeats_or_misdirects() {
    let faults = [
        Misbehave::LoseRequests,
        Misbehave::IssueTwice,
        Misbehave::WrongPort,
        Misbehave::LoseWakeUps,
        Misbehave::WakeForEver,
        Misbehave::SayIdle,
        Misbehave::SayBlocked,
        Misbehave::TakeBadTags,
        Misbehave::KeepRemovedFlows,
    ];
    for fault in faults {
        // Most faults break several clauses, and the script decides which one is found.
        caught(holds(&canary::Wrapped(fault)), "law broken");
        let verdict = holds_for_issued(&canary::Wrapped(fault), ANYTHING);
        match fault {
            // The requests that are issued are correct.
            Misbehave::LoseWakeUps => verdict.unwrap(),
            _ => caught(verdict, "law broken"),
        }
    }
}
