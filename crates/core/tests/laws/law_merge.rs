//! **Law: merging.** A port joins to one command only requests that a device can serve as one: of
//! one flow and port, all reads or all writes, each beginning where the one before it ends,
//! together within the bound of bytes, and all on the same side of each barrier of their flow on
//! that port. And all other laws hold of commands as they do of requests: none is lost or issued
//! twice, at most D are outstanding, and flows differ by no more than T and the largest commands.

use fairq_core::Op;
use fairq_core::serial::merge::MOST_PARTS;

use crate::canary::{self, Fault, caught};
use crate::script::{ANYTHING, Kind, for_all};
use crate::subjects::{KyberFairSubject, KyberSubject, SfqdSubject};
use crate::world::{Req, Subject, Trace};
use crate::{law_fairness, law_requests, law_slots, law_virtual_time, law_work};

/// Streams in pieces, some of which are as long as the longest command.
pub(crate) const STREAMS: Kind = Kind {
    merge_bytes: 32_768,
    lengths: &[512, 4096, 4096, 12_288, 32_768],
    max_slots: 4,
    ..ANYTHING
};

/// Few enough for flows to run out of them.
const TOKENS: KyberFairSubject = KyberFairSubject(1 << 16);

/// The requests of each command, in the order in which they were joined.
fn commands(trace: &Trace) -> Vec<Vec<&Req>> {
    let mut commands: Vec<Vec<&Req>> = Vec::new();
    for event in &trace.events {
        if let crate::world::Event::Issued { request: Some(request), .. } = *event {
            let request = &trace.requests[request];
            commands.resize_with(commands.len().max(request.command + 1), Vec::new);
            commands[request.command].push(request);
        }
    }
    commands
}

pub(crate) fn check(trace: &Trace) -> Result<(), String> {
    for parts in commands(trace).iter().filter(|parts| parts.len() > 1) {
        let length: u64 = parts.iter().map(|part| u64::from(part.length)).sum();
        let what = |why: &str| Err(format!("a command {why}: {parts:?}"));
        if length > trace.shape.merge_bytes.into() || parts.len() > MOST_PARTS as usize {
            return what("is too long");
        }
        if parts.windows(2).any(|two| two[0].offset + u64::from(two[0].length) != two[1].offset) {
            return what("is of parts that do not lie one after the other");
        }
        let first = parts[0];
        if parts
            .iter()
            .any(|part| (part.flow, part.port, part.op) != (first.flow, first.port, first.op))
        {
            return what("is of parts that differ");
        }
        if !matches!(first.op, Op::Read | Op::Write) {
            return what("is of something else than reads or writes");
        }
        if parts.iter().any(|part| part.barriers != first.barriers) {
            return what("crosses a barrier");
        }
    }
    Ok(())
}

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, STREAMS, 200, |trace| {
        check(trace)?;
        law_requests::check(trace)?;
        law_slots::check_depth(trace)?;
        law_slots::check_conservation(trace)?;
        law_virtual_time::check(trace)
    })
}

/// The law for policies that limit requests by other means than slots, but send while fewer than D
/// are outstanding.
pub(crate) fn holds_without_slots(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, STREAMS, 200, |trace| {
        check(trace)?;
        law_requests::check(trace)?;
        law_work::check(trace)
    })
}

/// The bound for backlogged flows, for policies whose shares are of bytes.
pub(crate) fn bounded_unfairness(subject: &dyn Subject) -> Result<(), String> {
    let steady = Kind { control: false, late: false, max_steps: 400, ..STREAMS };
    for_all(subject, steady, 120, |trace| law_fairness::check(trace, false))
}

/// Requests and commands over all scripts.
fn merged(subject: &dyn Subject) -> (usize, usize) {
    let counts = std::cell::Cell::new((0, 0));
    let count = |trace: &Trace| {
        let (requests, of) = counts.get();
        counts.set((requests + trace.requests.len(), of + commands(trace).len()));
        Ok(())
    };
    for_all(subject, STREAMS, 50, count).expect("nothing is asked");
    counts.get()
}

#[test]
fn streams_are_merged_and_nothing_else() {
    let counts = [merged(&canary::Serial(Fault::None)), merged(&KyberSubject), merged(&TOKENS)];
    for (requests, commands) in counts {
        assert!(
            10 * requests > 11 * commands,
            "{requests} requests in {commands} commands: {counts:?}"
        );
    }
    let off = Kind { merge_bytes: 0, ..STREAMS };
    let one_each = |trace: &Trace| match commands_of_several(trace) {
        0 => Ok(()),
        several => Err(format!("{several} commands of several requests")),
    };
    for_all(&canary::Serial(Fault::None), off, 50, one_each).unwrap();
    for_all(&KyberSubject, off, 50, one_each).unwrap();
    for_all(&TOKENS, off, 50, one_each).unwrap();
}

fn commands_of_several(trace: &Trace) -> usize {
    commands(trace).iter().filter(|parts| parts.len() > 1).count()
}

#[test]
fn catches_what_joins_too_much() {
    let faults = [
        (canary::Joins::AcrossBarriers, "crosses a barrier"),
        (canary::Joins::TooMuch, "is too long"),
        (canary::Joins::Gaps, "do not lie one after the other"),
        (canary::Joins::WritesToReads, "parts that differ"),
    ];
    for (fault, how) in faults {
        caught(for_all(&canary::Joining(SfqdSubject, fault), STREAMS, 200, check), how);
        caught(for_all(&canary::Joining(KyberSubject, fault), STREAMS, 200, check), how);
        caught(for_all(&canary::Joining(TOKENS, fault), STREAMS, 200, check), how);
    }
}

#[test]
fn catches_growth_that_nobody_pays_for() {
    caught(bounded_unfairness(&canary::Serial(Fault::GrowsForNothing)), "counted at");
}

#[test]
fn passes_a_naive_serial_policy() {
    holds(&canary::Serial(Fault::None)).unwrap();
    bounded_unfairness(&canary::Serial(Fault::None)).unwrap();
}
