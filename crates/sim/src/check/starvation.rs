//! **No flow starves.** While a flow has requests, the service of the other flows until one of
//! these requests completes is bounded.
//!
//! The check measures the service of other flows and not time, so a stalled device starves no flow,
//! and no time has to be calibrated. For a flow of weight w among flows whose weights add up to W,
//! with L the largest request of the run and D the most requests that the policy can have on the
//! device, the other flows may be served at most this much until one of the flow's requests
//! completes:
//!
//! ```text
//!   SLACK x ( W 2T + (W / w) L + (D + all that may be live) L + F x turn )
//! ```
//!
//! The first two terms follow from weights alone: a request of the flow costs L / w of virtual
//! time, in which the others are served, and each flow may be T ahead or behind. The third term is
//! the service of the requests before this one in the device's queues, which are not reordered.
//! With classes the device may serve one round of the largest weights for each command before this
//! one in a low queue, and one for each queue. The last term is one turn of each of the F flows,
//! for policies that serve one flow at a time. The bound is loose on purpose: `bounds` and `share`
//! check fairness, and this check detects only gross faults.

use super::Check;
use super::threshold::Threshold;
use crate::fact::{Fact, Live};
use crate::scenario::Scenario;
use crate::subject::Promise;

/// Factor between the bound and the estimate.
const SLACK: u64 = 4;

#[derive(Clone, Copy, Default)]
struct Flow {
    weight: u64,
    live: u64,
    /// The service of all flows when this flow was last served, or last became busy.
    since: u64,
}

/// Counts the service of the other flows.
pub struct Starvation {
    threshold: Threshold,
    turn: u64,
    queued: u64,
    largest: u64,
    served: u64,
    flows: Vec<Flow>,
    /// Sum of the weights of all present flows.
    weights: u64,
}

/// The most commands that a round of the weighted classes starts in other queues: 256 high, 16
/// medium, and one of each low queue.
const ROUND: u64 = 256 + 16;

impl Starvation {
    /// A check for a scenario and a policy with this promise.
    pub fn new(scenario: &Scenario, promise: &Promise) -> Self {
        let live: u64 = scenario.tenants.iter().map(|tenant| tenant.depth()).sum();
        // A policy with classes (D2FQ) promises no slots.
        let rounds = if promise.slots.is_some() {
            0
        } else {
            ROUND * (scenario.ports + scenario.tags()) as u64
        };
        Starvation {
            threshold: Threshold::new(promise.threshold.unwrap_or(0)),
            turn: promise.turn,
            queued: live + u64::from(promise.slots.unwrap_or(0)) + rounds,
            largest: 0,
            served: 0,
            flows: Vec::new(),
            weights: 0,
        }
    }

    fn patience(&self, weight: u64) -> u64 {
        let by_weight = (self.weights / weight + 1).saturating_mul(self.largest);
        // A unit is a byte at weight 100.
        let ahead = (self.weights / 100 + 1).saturating_mul(2 * self.threshold.largest());
        let turns = self.flows.len() as u64 * self.turn;
        SLACK * (ahead + by_weight + self.queued * self.largest + turns)
    }

    fn submitted(&mut self, request: &Live) {
        self.largest = self.largest.max(request.cost);
        let flow = &mut self.flows[request.flow];
        // A flow without requests does not wait, so the service of others does not count.
        if flow.live == 0 {
            flow.since = self.served;
        }
        flow.live += 1;
    }

    fn completed(&mut self, request: &Live) -> Result<(), String> {
        self.served += request.cost;
        let flow = &mut self.flows[request.flow];
        flow.live -= 1;
        flow.since = self.served;
        for (number, flow) in self.flows.iter().enumerate() {
            let others = self.served - flow.since;
            if flow.live > 0 && others > self.patience(flow.weight) {
                let Flow { weight, live, .. } = *flow;
                let patience = self.patience(weight);
                return Err(format!(
                    "flow {number} (weight {weight}, {live} requests) got nothing while others got \
                     {others} bytes; the bound is \
                     {patience}"
                ));
            }
        }
        Ok(())
    }
}

impl Check for Starvation {
    fn name(&self) -> &'static str {
        "starvation"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        self.threshold.see(fact);
        match fact {
            Fact::Added { weight, .. } => {
                self.flows.push(Flow {
                    weight: u64::from(*weight),
                    since: self.served,
                    ..Flow::default()
                });
                self.weights += u64::from(*weight);
            }
            // The larger sum is kept: there are still requests of the old weight.
            Fact::Weighed { flow, weight } => {
                let weight = u64::from(*weight);
                self.weights += weight;
                self.flows[*flow].weight = self.flows[*flow].weight.min(weight);
            }
            Fact::Submitted(request) => self.submitted(request),
            Fact::Completed(request, _) => self.completed(request)?,
            _ => {}
        }
        Ok(())
    }
}
