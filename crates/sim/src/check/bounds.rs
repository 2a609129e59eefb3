//! **Theorems 1 and 2 of MQFQ**: over every interval in which two flows are backlogged the services
//! that they receive differ by no more than a bound. With `l` the largest service per weight of one
//! request, in units of virtual time:
//!
//! - counted at dispatch, by `2T + l_f + l_m`, whatever D is: Theorem 1. (The paper states it for a
//!   D of 1. For services counted at dispatch its proof does not depend on D: requests dispatched
//!   between two moments have start tags from the virtual time of the first moment up to T after
//!   the virtual time of the second one, and all requests with earlier start tags have been
//!   dispatched.)
//! - counted at completion, by `(D + 1) (2T + l_f + l_m)`: Theorem 2.
//!
//! A flow is backlogged while it has requests staged. All intervals are checked at once: the
//! difference of two flows' services is a function of time, and the worst interval lies between its
//! least and its greatest value. Slack for integers: a unit per flow and port, and one more for
//! each weight that a flow has had (a change drops the remainder). Where cores race, a request that
//! a core is dispatching at the beginning or the end of an interval may count inside or outside the
//! interval: this adds one request for each flow, port and end of the interval.
//!
//! The cost of this check: each service is compared with that of every other backlogged flow.

use super::Check;
use super::threshold::Threshold;
use crate::fact::{Fact, Live, ONE_UNIT};
use crate::scenario::Scenario;

#[derive(Clone, Copy, Default)]
struct Flow {
    staged: usize,
    /// The largest service of one request.
    largest: i128,
    weights: i128,
    /// Services since the beginning.
    dispatched: i128,
    completed: i128,
}

/// The difference of a pair's services, counted from the moment at which both flows are backlogged,
/// and its extremes.
#[derive(Clone, Copy)]
struct Walk {
    least: i128,
    most: i128,
}

/// Follows every pair of flows.
pub struct Bounds {
    ports: i128,
    slots: i128,
    /// The number of dispatches that may be in progress at an end of an interval.
    under_way: i128,
    threshold: Threshold,
    flows: Vec<Flow>,
    /// The backlogged flows.
    backlogged: Vec<usize>,
    /// Per pair `(f, m)`, `m < f`, at `f (f - 1) / 2 + m`: at dispatch and at completion.
    walks: Vec<[Walk; 2]>,
}

const AT_DISPATCH: usize = 0;
const AT_COMPLETION: usize = 1;

impl Bounds {
    /// A check for this D, and for T in bytes at the reference weight.
    pub fn new(scenario: &Scenario, slots: u32, threshold: u64) -> Self {
        Bounds {
            ports: scenario.ports as i128,
            slots: i128::from(slots),
            under_way: 2 * i128::from(super::under_way(scenario)),
            threshold: Threshold::new(threshold),
            flows: Vec::new(),
            backlogged: Vec::new(),
            walks: Vec::new(),
        }
    }

    fn difference(&self, f: usize, m: usize, counted: usize) -> i128 {
        let service =
            |flow: &Flow| if counted == AT_DISPATCH { flow.dispatched } else { flow.completed };
        service(&self.flows[f]) - service(&self.flows[m])
    }

    fn begin(&mut self, flow: usize) {
        for at in 0..self.backlogged.len() {
            let (f, m) = ordered(flow, self.backlogged[at]);
            self.walks[pair(f, m)] = [AT_DISPATCH, AT_COMPLETION].map(|counted| {
                let value = self.difference(f, m, counted);
                Walk { least: value, most: value }
            });
        }
        self.backlogged.push(flow);
    }

    /// A backlogged flow has been served.
    fn served(&mut self, flow: usize, counted: usize) -> Result<(), String> {
        for at in 0..self.backlogged.len() {
            let other = self.backlogged[at];
            if other == flow {
                continue;
            }
            let (f, m) = ordered(flow, other);
            let value = self.difference(f, m, counted);
            let walk = &mut self.walks[pair(f, m)][counted];
            walk.least = walk.least.min(value);
            walk.most = walk.most.max(value);
            let worst = (walk.most - value).max(value - walk.least);
            let bound = self.bound(f, m, counted);
            if worst > bound {
                let theorem = if counted == AT_DISPATCH {
                    "at dispatch (Theorem 1)"
                } else {
                    "at completion (Theorem 2)"
                };
                let (worst, bound) = (worst / ONE_UNIT, bound / ONE_UNIT);
                return Err(format!(
                    "flows {m} and {f} differ by {worst} units counted {theorem}, bound {bound}"
                ));
            }
        }
        Ok(())
    }

    fn bound(&self, f: usize, m: usize, counted: usize) -> i128 {
        let [f, m] = [self.flows[f], self.flows[m]];
        let slack = self.ports * (f.weights + m.weights) * ONE_UNIT
            + self.under_way * (f.largest + m.largest);
        let one = 2 * i128::from(self.threshold.largest()) * ONE_UNIT + f.largest + m.largest;
        slack + if counted == AT_DISPATCH { one } else { (self.slots + 1) * one }
    }

    fn is_backlogged(&self, request: &Live) -> bool {
        self.flows[request.flow].staged > 0
    }
}

fn ordered(a: usize, b: usize) -> (usize, usize) {
    (a.max(b), a.min(b))
}

fn pair(f: usize, m: usize) -> usize {
    f * (f - 1) / 2 + m
}

impl Check for Bounds {
    fn name(&self) -> &'static str {
        "bounds"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        self.threshold.see(fact);
        match fact {
            Fact::Added { flow, .. } => {
                self.flows.push(Flow { weights: 1, ..Flow::default() });
                self.walks.resize(pair(flow + 1, 0), [Walk { least: 0, most: 0 }; 2]);
            }
            Fact::Weighed { flow, .. } => self.flows[*flow].weights += 1,
            Fact::Submitted(request) => {
                let flow = &mut self.flows[request.flow];
                flow.largest = flow.largest.max(request.service());
                flow.staged += 1;
                if flow.staged == 1 {
                    self.begin(request.flow);
                }
            }
            Fact::Issued(request) => {
                self.flows[request.flow].dispatched += request.service();
                // Called while the request still counts as staged: the last request of a backlog
                // belongs to its interval.
                self.served(request.flow, AT_DISPATCH)?;
                self.flows[request.flow].staged -= 1;
                if !self.is_backlogged(request) {
                    self.backlogged.retain(|&flow| flow != request.flow);
                }
            }
            Fact::Completed(request, _) => {
                self.flows[request.flow].completed += request.service();
                // The theorem does not cover requests that complete after their flow's backlog.
                if self.is_backlogged(request) {
                    self.served(request.flow, AT_COMPLETION)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
