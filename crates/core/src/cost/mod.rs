//! What requests cost: one layer in front of any policy, which computes it.
//!
//! **Problem.** A policy shares whatever requests cost. Bytes are what a fast device is short of at
//! large sizes; at small ones it is short of requests: on a device of 4,000 requests a second one
//! of 512 bytes takes as long as one of 1 MiB, and a tenant that sends those gets 2 % of what it
//! has alone beside one that sends these. **Model.** [`Costs`] stands around a policy and gives
//! each request its [`Cost`] before the policy sees it:
//!
//! - `bytes`: its length ([`CostModel`]); the default.
//! - `requests`: each read or write costs what one of [`REQUEST_BYTES`] does, whatever its length.
//!
//! **Unit.** Costs are equivalent bytes, so T, tokens and thresholds keep their meaning. The
//! factors for reads and writes multiply what a request costs, and the least cost bounds it.
//!
//! **Joined requests** are one command: where requests are counted, only the first of them counts
//! ([`Cost::joined`]).
//!
//! **Example.** With `requests` a read of 512 bytes and one of 1 MiB cost 4,096 each; with a
//! `write-cost` of 300 % a write costs 12,288.
//!
//! **Knobs.** `cost`, `read-cost`, `write-cost`, `least-cost`.

use alloc::vec::Vec;

use crate::contract::cost::{Cost, CostModel, scaled};
use crate::contract::flow::{FlowError, FlowId, Target, TargetStats, Weight};
use crate::contract::port::{
    ClassWeights, FlowStats, Growth, Next, Op, Outcome, Policy, Port, Reason, Request, Stats,
    SubmitError, Submitted, Tag, TuneError, Tuning,
};
use crate::contract::port_set::PortSet;
use crate::entry::knobs::{Configure, Knob, Knobs, LEAST_COST, READ_COST, WRITE_COST, words};

/// What a read or write costs where requests are counted, in bytes.
pub const REQUEST_BYTES: u64 = 4096;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CostKind {
    /// Bytes.
    #[default]
    Bytes,
    /// Requests.
    Requests,
}

words!(CostKind: "bytes" => Self::Bytes, "requests" => Self::Requests);

/// What requests cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CostConfig {
    /// What is counted; default bytes.
    pub kind: CostKind,
    /// Factors, least costs, and what flushes and discards cost.
    pub model: CostModel,
}

impl Configure for CostConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        knobs.is(READ_COST, &mut self.model.read_percent);
        knobs.is(WRITE_COST, &mut self.model.write_percent);
        knobs.is(LEAST_COST, &mut self.model.min_bytes);
        self.kind(knobs);
    }
}

impl CostConfig {
    /// What a request costs.
    #[inline]
    fn charge(&self, op: Op, length: u32) -> Cost {
        let model = &self.model;
        let percent = match (self.kind, op) {
            (CostKind::Bytes, _) | (_, Op::Flush | Op::Discard) => {
                return model.charge(op, length);
            }
            (_, Op::Read) => model.read_percent,
            (_, Op::Write | Op::WriteZeroes) => model.write_percent,
        };
        let least = u64::from(model.min_bytes.max(1));
        let alone = scaled(REQUEST_BYTES, percent).clamp(least, CostModel::MAX_COST);
        Cost { alone, joined: 0 }
    }

    /// The knob that says what is counted.
    pub(crate) fn kind(&mut self, knobs: &mut Knobs<'_>) {
        let kind = "what requests cost: their bytes, or the same for each";
        knobs.is(Knob::one_of("cost", CostKind::WORDS, kind), &mut self.kind);
    }
}

/// A configuration, and what requests cost.
pub struct Costed<C> {
    pub(crate) policy: C,
    pub(crate) cost: CostConfig,
}

impl<C> Costed<C> {
    /// With the usual costs.
    pub(crate) fn new(policy: C) -> Self {
        Costed { policy, cost: CostConfig::default() }
    }
}

impl<C: Configure> Configure for Costed<C> {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        self.policy.knobs(knobs);
        self.cost.knobs(knobs);
    }
}

/// A policy whose requests get their costs here. See the [module's text](self).
pub struct Costs<L> {
    inner: L,
}

/// A port of it.
pub struct CostPort<Q> {
    inner: Q,
    config: CostConfig,
}

impl<L: Policy> Costs<L> {
    /// Around a policy and its ports.
    pub fn new(
        inner: L,
        ports: Vec<L::Port>,
        config: &CostConfig,
    ) -> (Self, Vec<CostPort<L::Port>>) {
        let port = |inner| CostPort { inner, config: *config };
        (Costs { inner }, ports.into_iter().map(port).collect())
    }
}

impl<L: Policy> Policy for Costs<L> {
    type Port = CostPort<L::Port>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.inner.add_flow_as(known, weight)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.inner.set_weight(flow, weight)
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.inner.set_weights(weights);
    }

    fn set_urgent(&self, flow: FlowId, urgent: bool) -> Result<(), FlowError> {
        self.inner.set_urgent(flow, urgent)
    }

    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        self.inner.set_target(flow, target)
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.inner.target(flow)
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        self.inner.tune(tuning, wake)
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.inner.remove_flow(flow)
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.inner.tick(now_ns, wake)
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        self.inner.class_weights()
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

impl<Q: Port> Port for CostPort<Q> {
    const IS_DIRECT: bool = Q::IS_DIRECT;

    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let cost = self.config.charge(request.op, request.length);
        self.inner.submit(now_ns, &Request { cost, ..*request }, wake)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        self.inner.next(now_ns, wake)
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) {
        self.inner.complete(now_ns, tag, outcome, wake);
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.admit(flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.inner.cancel(now_ns, tag, wake)
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.inner.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let cost = self.config.charge(growth.op, growth.length).joined;
        self.inner.grow(now_ns, tag, &Growth { cost, ..*growth }, wake)
    }

    fn has_work(&self) -> bool {
        self.inner.has_work()
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.inner.staged(flow)
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        self.inner.flow_stats(flow)
    }

    fn barrier(&mut self, flow: FlowId) {
        self.inner.barrier(flow);
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        self.inner.reason(tag)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What reads and writes cost is multiplied, and parts of a command cost nothing.
    #[test]
    fn requests_cost_the_same_whatever_their_length() {
        let mut config = CostConfig { kind: CostKind::Requests, ..CostConfig::default() };
        config.model.write_percent = 300;
        let cost = |op, length| config.charge(op, length);
        let (read, write) = (Cost { alone: 4096, joined: 0 }, Cost { alone: 12_288, joined: 0 });
        assert_eq!([512, 1 << 20].map(|length| cost(Op::Read, length)), [read, read]);
        assert_eq!([Op::Write, Op::WriteZeroes].map(|op| cost(op, 1 << 20)), [write, write]);
        assert_eq!(cost(Op::Flush, 1 << 20), Cost::bytes(1 << 20), "it was seen to take long");
    }
}
