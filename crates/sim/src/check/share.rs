//! **Shares.** Over a long time, flows that are backlogged throughout are served in proportion to
//! their weights.
//!
//! Whenever the set of backlogged flows (those with requests staged) changes, a weight changes or a
//! flow leaves, counting begins anew. An *exchange* is the largest service by which a policy may
//! serve one flow before another. After [`ENOUGH`] exchanges, in units of virtual time, each pair
//! of these flows must have received the same service per weight, within [`TOLERANCE`].
//!
//! `bounds` checks every interval of MQFQ exactly. This check does not depend on how a policy
//! works, so it applies to all policies that stage requests.

use super::Check;
use super::threshold::Threshold;
use crate::fact::{Fact, ONE_UNIT};
use crate::subject::Promise;

/// Two flows' services per weight may differ by one part in this many.
const TOLERANCE: i128 = 20;
/// The service after which the check compares, in exchanges: a single exchange is then less than
/// half of the tolerance.
const ENOUGH: i128 = 2 * TOLERANCE;

#[derive(Clone, Copy, Default)]
struct Flow {
    staged: usize,
    service: i128,
}

/// Adds up services while the same flows are backlogged.
pub struct Share {
    threshold: Threshold,
    slots: i128,
    flows: Vec<Flow>,
    backlogged: Vec<usize>,
    /// The largest service of one request.
    largest: i128,
}

impl Share {
    /// A check for a policy with this promise.
    pub fn new(promise: &Promise) -> Self {
        Share {
            threshold: Threshold::new(promise.threshold.unwrap_or(0)),
            slots: i128::from(promise.slots.unwrap_or(0)),
            flows: Vec::new(),
            backlogged: Vec::new(),
            largest: 0,
        }
    }

    fn begin(&mut self) {
        self.backlogged.iter().for_each(|&flow| self.flows[flow].service = 0);
    }

    fn compare(&self) -> Result<(), String> {
        let threshold = i128::from(self.threshold.largest()) * ONE_UNIT;
        let exchange = 2 * threshold + (self.slots + 1) * 2 * self.largest;
        let services = || self.backlogged.iter().map(|&flow| self.flows[flow].service);
        let (Some(least), Some(most)) = (services().min(), services().max()) else { return Ok(()) };
        if most < ENOUGH * exchange || (most - least) * TOLERANCE <= most {
            return Ok(());
        }
        let services: Vec<i128> = services().map(|service| service / ONE_UNIT).collect();
        Err(format!(
            "flows {:?} were backlogged all the while and got {services:?} units",
            self.backlogged
        ))
    }
}

impl Check for Share {
    fn name(&self) -> &'static str {
        "share"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        self.threshold.see(fact);
        match fact {
            Fact::Added { .. } => self.flows.push(Flow::default()),
            Fact::Weighed { .. } | Fact::Removed { .. } => self.begin(),
            Fact::Submitted(request) => {
                self.largest = self.largest.max(request.service());
                self.flows[request.flow].staged += 1;
                if self.flows[request.flow].staged == 1 {
                    self.backlogged.push(request.flow);
                    self.begin();
                }
            }
            Fact::Issued(request) => {
                let flow = &mut self.flows[request.flow];
                flow.service += request.service();
                flow.staged -= 1;
                if flow.staged == 0 {
                    self.backlogged.retain(|&flow| flow != request.flow);
                    self.begin();
                } else {
                    self.compare()?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
