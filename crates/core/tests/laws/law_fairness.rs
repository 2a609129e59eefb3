//! **Law: bounded unfairness** (MQFQ, Theorems 1 and 2), over every interval in which two flows are
//! backlogged.
//!
//! With `l` the largest service per weight of one request, both in units of virtual time:
//!
//! - Counted at dispatch, two flows differ by at most `2T + l_f + l_g`, whatever D. This is Theorem
//!   1, which is about D = 1. At dispatch it holds for any D by the same proof: all requests that
//!   are dispatched between two moments start at or after the first one's virtual time and at most
//!   T after the second one's, and all that start before the second one's virtual time have been
//!   dispatched.
//! - Counted at completion: each flow's completions lag its dispatches by at most the requests
//!   outstanding, D in all. So the bound grows by `D (l_f + l_g)` at most, and by nothing if D = 1,
//!   where dispatches and completions alternate. This is within Theorem 2's
//!   `(D + 1)(2T + l_f + l_g)`. Only requests dispatched in the interval count.
//!
//! All intervals are checked at once: the difference of the two flows' services is a walk, and the
//! worst interval goes from its least to its greatest value, or back. Slack for integers: one unit
//! per flow and port, and one more for each change of the flow's weight, which drops the remainder.
//!
//! A policy that assigns requests to ports dispatches inside one port's `next` what others issue
//! later: it is checked only when no port needs a `next`.

use crate::canary::{self, Fault, caught};
use crate::script::{ANYTHING, Kind, for_all};
use crate::world::{Event, ONE_UNIT, Req, Subject, Trace};

#[derive(Clone, Copy, PartialEq)]
enum Counted {
    AtDispatch,
    AtCompletion,
}

/// The walk of one pair's difference in service within one interval of joint backlog.
struct Walk {
    since: usize,
    value: i128,
    least: i128,
    most: i128,
}

struct Pair<'a> {
    trace: &'a Trace,
    flows: [usize; 2],
    counted: Counted,
    bound: i128,
    walk: Option<Walk>,
}

impl Pair<'_> {
    fn backlog(&mut self, both: bool, at: usize) {
        match (both, &self.walk) {
            (true, None) => self.walk = Some(Walk { since: at, value: 0, least: 0, most: 0 }),
            (false, Some(_)) => self.walk = None,
            _ => {}
        }
    }

    fn serve(&mut self, request: &Req) {
        let Some(walk) = &mut self.walk else { return };
        if request.flow == self.flows[0] {
            walk.value += request.service();
        } else if request.flow == self.flows[1] {
            walk.value -= request.service();
        }
    }

    fn look(&mut self, at: usize) -> Result<(), String> {
        let Some(walk) = &mut self.walk else { return Ok(()) };
        walk.least = walk.least.min(walk.value);
        walk.most = walk.most.max(walk.value);
        let worst = (walk.most - walk.value).max(walk.value - walk.least);
        if worst <= self.bound {
            return Ok(());
        }
        let [f, g] = self.flows.map(|flow| &self.trace.flows[flow].weights);
        let how = if self.counted == Counted::AtDispatch { "dispatch" } else { "completion" };
        Err(format!(
            "flows {:?} (weights {f:?} and {g:?}) differ by {} units counted at {how}, bound {}, \
             at event {at} of an \
             interval since {}; {:?}",
            self.flows,
            worst / ONE_UNIT,
            self.bound / ONE_UNIT,
            walk.since,
            self.trace.shape,
        ))
    }
}

/// The service that rounding may cost a flow.
fn slack(trace: &Trace, flow: usize) -> i128 {
    (trace.shape.ports * trace.flows[flow].weights.len()) as i128 * ONE_UNIT
}

fn bound(trace: &Trace, flows: [usize; 2], counted: Counted) -> i128 {
    let largest = |flow: usize| {
        let alone =
            trace.requests.iter().filter(|r| r.flow == flow).map(Req::service).max().unwrap_or(0);
        let lightest = trace.flows[flow].weights.iter().min().copied().unwrap_or(1);
        alone.max(i128::from(trace.shape.merge_bytes) * 100 * ONE_UNIT / i128::from(lightest))
    };
    let requests: i128 = flows.map(largest).iter().sum();
    let slack: i128 = flows.map(|flow| slack(trace, flow)).iter().sum();
    let depth = match (counted, trace.shape.slots) {
        (Counted::AtDispatch, _) | (_, 1) => 1,
        (Counted::AtCompletion, depth) => i128::from(depth) + 1,
    };
    2 * i128::from(trace.threshold) * ONE_UNIT + depth * requests + slack
}

fn check_pair(
    trace: &Trace,
    flows: [usize; 2],
    counted: Counted,
    at_every_event: bool,
) -> Result<(), String> {
    let mut pair = Pair { trace, flows, counted, bound: bound(trace, flows, counted), walk: None };
    let mut staged = [0u64; 2];
    let mut dispatched_at = vec![0; trace.requests.len()];
    // Requests issued after the last `Settled`, for policies that are checked only there.
    let mut unseen: Vec<usize> = Vec::new();
    for (at, event) in trace.events.iter().enumerate() {
        match *event {
            Event::Submitted(request) => {
                let flow = trace.requests[request].flow;
                staged
                    .iter_mut()
                    .zip(flows)
                    .for_each(|(staged, of)| *staged += u64::from(flow == of));
            }
            Event::Issued { request: Some(request), .. } => {
                let flow = trace.requests[request].flow;
                dispatched_at[request] = at;
                if !at_every_event {
                    unseen.push(request);
                } else if counted == Counted::AtDispatch {
                    // Before the flow may stop being backlogged: the interval ends with this
                    // request.
                    pair.serve(&trace.requests[request]);
                    pair.look(at)?;
                }
                staged
                    .iter_mut()
                    .zip(flows)
                    .for_each(|(staged, of)| *staged -= u64::from(flow == of));
            }
            Event::Completed(request) if counted == Counted::AtCompletion => {
                let in_interval =
                    pair.walk.as_ref().is_some_and(|walk| dispatched_at[request] > walk.since);
                if in_interval {
                    pair.serve(&trace.requests[request]);
                    pair.look(at)?;
                }
            }
            Event::Settled { .. } if !at_every_event => {
                pair.backlog(staged[0] > 0 && staged[1] > 0, at);
                for request in unseen.drain(..) {
                    if counted == Counted::AtDispatch {
                        pair.serve(&trace.requests[request]);
                    }
                }
                pair.look(at)?;
            }
            _ => continue,
        }
        if at_every_event {
            pair.backlog(staged[0] > 0 && staged[1] > 0, at);
        }
    }
    Ok(())
}

pub(crate) fn check(trace: &Trace, at_every_event: bool) -> Result<(), String> {
    for f in 0..trace.flows.len() {
        for g in 0..f {
            check_pair(trace, [f, g], Counted::AtDispatch, at_every_event)?;
            check_pair(trace, [f, g], Counted::AtCompletion, at_every_event)?;
        }
    }
    Ok(())
}

/// Few slots, few flows and many arrivals, so that flows are backlogged most of the time.
const STEADY: Kind =
    Kind { control: false, lengths: &[512, 4096, 65_536], max_steps: 400, ..ANYTHING };

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    holds_for(subject, |kind| kind)
}

/// The law for the scripts that `exempt` leaves, for policies that promise less.
pub(crate) fn holds_for(
    subject: &dyn Subject,
    exempt: impl Fn(Kind) -> Kind,
) -> Result<(), String> {
    let assigns = subject.assigns_to_ports();
    for kind in [STEADY, Kind { max_slots: 1, ..STEADY }, ANYTHING] {
        for_all(subject, Kind { late: !assigns, ..exempt(kind) }, 120, |trace| {
            check(trace, !assigns)
        })?;
    }
    Ok(())
}

#[test]
fn catches_what_ignores_weights() {
    caught(holds(&canary::Serial(Fault::FirstComeFirstServed)), "counted at");
    caught(holds(&canary::Serial(Fault::WeightsUpTo100)), "counted at");
}

#[test]
fn catches_what_ignores_the_threshold() {
    caught(holds(&canary::Serial(Fault::AheadByAMegabyte)), "counted at");
}

#[test]
fn catches_what_saves_up_credit() {
    caught(holds(&canary::Serial(Fault::IdleCredit)), "counted at");
}

#[test]
fn passes_a_naive_serial_policy() {
    holds(&canary::Serial(Fault::None)).unwrap();
}
