//! What requests cost: one layer in front of any policy, which computes it.
//!
//! **Problem.** A policy shares whatever requests cost. Bytes are what a fast device is short of at
//! large sizes; at small ones it is short of requests: on a device of 4,000 requests a second one
//! of 512 bytes takes as long as one of 1 MiB, and a tenant that sends those gets 2 % of what it
//! has alone beside one that sends these. **Model.** [`Costs`] stands around a policy and gives
//! each request its [`Cost`] before the policy sees it:
//!
//! - `bytes`: its length ([`CostModel`]).
//! - `requests`: each read or write costs what one of [`REQUEST_BYTES`] does, whatever its length.
//! - `device`: a base for its kind (random or sequential, read or write) and so much for each byte,
//!   found while requests run (`device`, `fit`, `tally`), so that flows share the device's time;
//!   the length where several flows do not ask for several kinds and sizes, or the device's time is
//!   about proportional to it (`mix`). A port loads three shared words per request, and stores four
//!   words of its own lines per completion; the other two kinds of cost pay nothing for it. The
//!   default of policies that hold nothing back.
//!
//! **Unit.** Costs are equivalent bytes, so T, tokens and thresholds keep their meaning. The
//! factors for reads and writes multiply what a request costs, and the least cost bounds it.
//!
//! **Joined requests** are one command: where requests are counted, only the first of them counts
//! ([`Cost::joined`]).
//!
//! **Example.** With `requests` a read of 512 bytes and one of 1 MiB cost 4,096 each; with a
//! `write-cost` of 300 % a write costs 12,288. Where the device takes 4,000 of either a second
//! `device` finds 4,096 for both, and 512 and 1 MiB where it is limited by its link.
//!
//! **Knobs.** `cost`, `read-cost`, `write-cost`, `least-cost`.

mod device;
mod fit;
mod mix;
mod tally;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::ConfigError;
use crate::contract::cost::{Cost, CostModel, scaled};
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::op::Op;
use crate::contract::platform::{Lock, Native};
use crate::contract::port::DepthState;
use crate::entry::Built;
use crate::entry::knobs::{Configure, Knob, Knobs, LEAST_COST, READ_COST, WRITE_COST, words};
use crate::structures::allocation::{boxed, granted};
use device::{Finder, Prices};
use tally::{KINDS, Sum, Tally, Words};

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
    /// The device's time.
    Device,
}

words!(CostKind:
    "bytes" => Self::Bytes, "requests" => Self::Requests, "device" => Self::Device);

/// What requests cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CostConfig {
    /// What is counted; default bytes, in the registry the device's time for some policies.
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
    /// The usual factors.
    pub(crate) fn of(kind: CostKind) -> Self {
        CostConfig { kind, ..CostConfig::default() }
    }

    /// What a request costs.
    #[inline]
    fn charge(&self, op: Op, length: u32) -> Cost {
        let model = &self.model;
        let percent = match (self.kind, op) {
            // The length of a flush stands for the time that it was seen to take, so it counts in
            // any kind.
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
        let kind = "what requests cost: their bytes, the same for each, or the device's time";
        knobs.is(Knob::one_of("cost", CostKind::WORDS, kind), &mut self.kind);
    }
}

/// A configuration, and what requests cost.
pub struct Costed<C> {
    pub(crate) policy: C,
    pub(crate) cost: CostConfig,
}

impl<C> Costed<C> {
    /// By bytes.
    pub(crate) fn new(policy: C) -> Self {
        Costed { policy, cost: CostConfig::default() }
    }

    /// By the device's time.
    pub(crate) fn by_device(policy: C) -> Self {
        Costed { policy, cost: CostConfig::of(CostKind::Device) }
    }
}

impl<C: Configure> Configure for Costed<C> {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        self.policy.knobs(knobs);
        self.cost.knobs(knobs);
    }
}

/// A policy whose requests get their costs here. See the [module's text](self).
pub struct Costs<L, P: Platform = Native> {
    inner: L,
    device: Option<ByDevice<P>>,
}

/// Costs by the device's time.
struct ByDevice<P: Platform> {
    shared: Arc<Shared<P>>,
    control: P::Mutex<Control>,
}

struct Control {
    finder: Box<Finder>,
    /// When the policy itself wants to be called.
    inner_ns: Option<u64>,
}

/// What ports and the estimator share.
struct Shared<P: Platform> {
    prices: CachePadded<Prices<P>>,
    ports: Box<[CachePadded<Words<P>>]>,
}

/// A port of it.
pub struct CostPort<Q, P: Platform = Native> {
    inner: Q,
    config: CostConfig,
    device: Option<Box<PortByDevice<P>>>,
}

struct PortByDevice<P: Platform> {
    shared: Arc<Shared<P>>,
    tally: Tally,
    index: usize,
}

impl<L: Policy, P: Platform> Costs<L, P> {
    /// Around a policy of at most `flows` flows and its ports, which have `tags` tags each.
    // A call of its own: what builds a policy inside Linux has a stack of 16 KiB.
    #[inline(never)]
    pub fn new(
        inner: L,
        ports: Vec<L::Port>,
        tags: usize,
        flows: usize,
        config: &CostConfig,
    ) -> Result<Built<Self>, ConfigError> {
        granted(|| {
            let shared = (config.kind == CostKind::Device).then(|| {
                Arc::new(Shared {
                    prices: CachePadded::new(Prices::new()),
                    ports: boxed(ports.len(), |_| CachePadded::new(Words::new())),
                })
            });
            let port = |(index, inner)| {
                let device = shared.clone().map(|shared| {
                    Box::new(PortByDevice { shared, tally: Tally::new(tags, flows), index })
                });
                CostPort { inner, config: *config, device }
            };
            let ports = ports.into_iter().enumerate().map(port).collect();
            let device = shared.map(|shared| {
                let finder = Finder::boxed(L::Port::IS_DIRECT);
                ByDevice { shared, control: P::Mutex::new(Control { finder, inner_ns: Some(0) }) }
            });
            Ok((Costs { inner, device }, ports))
        })
    }
}

impl<P: Platform> ByDevice<P> {
    fn tick<L: Policy>(&self, now_ns: u64, inner: &L, wake: &mut PortSet) -> Option<u64> {
        self.control.with(|control| {
            if control.inner_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                control.inner_ns = inner.tick(now_ns, wake);
            }
            let finder = &mut control.finder;
            if finder.deadline_ns() <= now_ns {
                let mut sum = Sum::default();
                // Most looks end before they ask, and the answer takes the locks of the layers
                // inside.
                let is_calm = || {
                    let state = inner.stats().depth.map(|depth| depth.state);
                    state != Some(DepthState::Searching)
                };
                let since_ns = now_ns.saturating_sub(device::SHORTEST_NS);
                self.shared.ports.iter().for_each(|words| words.add_to(&mut sum, since_ns));
                if let Some(is_much) = finder.look(now_ns, &sum, &*self.shared.prices, is_calm) {
                    inner.costs_vary(is_much);
                }
            }
            let own_ns = finder.deadline_ns();
            Some(control.inner_ns.map_or(own_ns, |at_ns| at_ns.min(own_ns)))
        })
    }
}

impl<P: Platform> PortByDevice<P> {
    /// The kind of a request, and what it costs.
    #[inline]
    fn charge(&mut self, request: &Request, model: &CostModel) -> (usize, Cost) {
        let kind = self.tally.kind(request);
        if kind == KINDS {
            return (kind, model.charge(request.op, request.length));
        }
        let (alone, joined) = self.shared.prices.cost(kind, request.length);
        let percent =
            if tally::direction(kind) == 0 { model.read_percent } else { model.write_percent };
        let least = u64::from(model.min_bytes.max(1));
        let alone = scaled(alone, percent).clamp(least, CostModel::MAX_COST);
        (kind, Cost { alone, joined: scaled(joined, percent).min(CostModel::MAX_COST) })
    }

    /// What a request's growth costs: its bytes.
    fn growth(&self, growth: &Growth, model: &CostModel) -> u64 {
        // A byte has the same price in random and in sequential requests.
        let (kind, percent) = match growth.op {
            Op::Read => (0, model.read_percent),
            Op::Write | Op::WriteZeroes => (2, model.write_percent),
            Op::Flush | Op::Discard => return model.charge(growth.op, growth.length).joined,
        };
        let (_, bytes) = self.shared.prices.cost(kind, growth.length);
        scaled(bytes, percent).min(CostModel::MAX_COST)
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, tag: Tag) {
        if let Some(words) = self.shared.ports.get(self.index) {
            self.tally.completed(tag.0, now_ns, &**words);
        }
    }
}

layer!(Costs, CostPort);

impl<L: Policy, P: Platform> layer::Layer for Costs<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        match &self.device {
            Some(device) => device.tick(now_ns, &self.inner, wake),
            None => self.inner.tick(now_ns, wake),
        }
    }

    layer::forward_policy! {
        add_flow_as set_weight set_urgent set_target target set_caps caps set_weights set_group
        group set_share share tune remove_flow costs_vary class_weights resume_caps
    }

    fn stats(&self) -> Stats {
        let finder = self.device.as_ref();
        let cost = finder.map(|device| device.control.with(|control| control.finder.stats()));
        Stats { cost, ..self.inner.stats() }
    }
}

impl<Q: Port, P: Platform> layer::PortLayer for CostPort<Q, P> {
    type Inner = Q;

    fn inner(&self) -> &Q {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let (kind, cost) = match &mut self.device {
            None => (KINDS, self.config.charge(request.op, request.length)),
            Some(device) => device.charge(request, &self.config.model),
        };
        // The policy first: a request that it refuses is not counted.
        let submitted = self.inner.submit(now_ns, &Request { cost, ..*request }, wake)?;
        if let Some(device) = &mut self.device {
            device.tally.submitted(request, kind, submitted == Submitted::Staged);
        }
        Ok(submitted)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let next = self.inner.next(now_ns, wake);
        if let Some(device) = &mut self.device {
            match next {
                Next::Issue { tag, .. } => device.tally.issued(tag.0, false),
                Next::Join { tag } => device.tally.issued(tag.0, true),
                Next::WaitUntil(_) | Next::Blocked | Next::Idle => {}
            }
        }
        next
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if let Some(device) = &mut self.device
            && was_issued
        {
            device.completed(now_ns, tag);
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if let Some(device) = &mut self.device
            && is_gone
        {
            device.tally.cancelled(tag.0);
        }
        is_gone
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.expedite(now_ns, tag, wake);
        if let Some(device) = &mut self.device
            && is_gone
        {
            device.tally.expedited(tag.0);
        }
        is_gone
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        let requeued = self.inner.requeue(now_ns, tag, wake);
        // A direct policy has it issued again: it stays on the device.
        if let Some(device) = &mut self.device
            && requeued == Some(Submitted::Staged)
        {
            device.tally.requeued(tag.0);
        }
        requeued
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let Some(device) = &mut self.device else {
            let cost = self.config.charge(growth.op, growth.length).joined;
            return self.inner.grow(now_ns, tag, &Growth { cost, ..*growth }, wake);
        };
        let cost = device.growth(growth, &self.config.model);
        let has_grown = self.inner.grow(now_ns, tag, &Growth { cost, ..*growth }, wake);
        if has_grown {
            device.tally.grown(tag.0, growth.length);
        }
        has_grown
    }

    layer::forward_port! { hold barrier admit has_work staged flow_stats reason }
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
