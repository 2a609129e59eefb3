//! The cost of requests: one layer in front of any policy, which computes it.
//!
//! **Problem.** A policy gives flows equal costs for each weight, whatever a cost counts. A fast
//! device is limited in bytes at large sizes and in requests at small ones. On a device of 4,000
//! requests a second, a request of 512 bytes takes as long as one of 1 MiB; if costs are bytes, a
//! tenant that sends requests of 1 MiB beside one that sends requests of 512 bytes gets 2 % of its
//! rate when alone. **Model.** [`Costs`] surrounds a policy and gives each request its [`Cost`]
//! before the policy sees it:
//!
//! - `bytes`: its length ([`CostModel`]).
//! - `requests`: each read or write costs [`REQUEST_BYTES`], whatever its length.
//! - `device`: a base for its kind (random or sequential, read or write) and a price for each byte,
//!   found while requests run (`device`, `fit`, `tally`), so that flows share the device's time.
//!   The cost is the length while there is only one flow, or only requests of one kind and size, or
//!   while the device's time is about proportional to the length (`mix`). A port loads three shared
//!   words per request, and stores four words of its own lines per completion, but only with this
//!   kind of cost. The default of policies that hold nothing back.
//!
//! **Unit.** Costs are equivalent bytes, so T, tokens and thresholds keep their meaning. The
//! factors for reads and writes multiply what a request costs, and the least cost bounds it.
//!
//! **Joined requests** are one command: where requests are counted, only the first of them counts
//! ([`Cost::joined`]).
//!
//! **Example.** With `requests` a read of 512 bytes and one of 1 MiB cost 4,096 each; with a
//! `write-cost` of 300 % a write costs 12,288. With `device` both cost 4,096 if the device serves
//! 4,000 of either a second, and 512 bytes and 1 MiB if it is limited by its link.
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

/// Cost of a read or write where requests are counted, in bytes.
pub const REQUEST_BYTES: u64 = 4096;

/// The quantity that costs count.
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

/// The configuration of costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CostConfig {
    /// The quantity that costs count; default bytes, in the registry the device's time for some
    /// policies.
    pub kind: CostKind,
    /// Factors, least costs, and the costs of flushes and discards.
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
    /// The usual factors with this kind of cost.
    pub(crate) fn of(kind: CostKind) -> Self {
        CostConfig { kind, ..CostConfig::default() }
    }

    /// The cost of a request.
    #[inline]
    fn charge(&self, op: Op, length: u32) -> Cost {
        let model = &self.model;
        let percent = match (self.kind, op) {
            // The length of a flush stands for the time that the flush was measured to take, so it
            // counts with any kind of cost.
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

    /// The knob for the kind of cost.
    pub(crate) fn kind(&mut self, knobs: &mut Knobs<'_>) {
        let kind = "what requests cost: their bytes, the same for each, or the device's time";
        knobs.is(Knob::one_of("cost", CostKind::WORDS, kind), &mut self.kind);
    }
}

/// The configuration of a policy, and that of its costs.
pub struct Costed<C> {
    pub(crate) policy: C,
    pub(crate) cost: CostConfig,
}

impl<C> Costed<C> {
    /// The configuration with costs by bytes.
    pub(crate) fn new(policy: C) -> Self {
        Costed { policy, cost: CostConfig::default() }
    }

    /// The configuration with costs by the device's time.
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
    /// Time of the next tick of the policy inside, in nanoseconds.
    inner_ns: Option<u64>,
}

/// The state that ports and the estimator share.
struct Shared<P: Platform> {
    prices: CachePadded<Prices<P>>,
    ports: Box<[CachePadded<Words<P>>]>,
}

/// A port of [`Costs`].
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
    /// The layer around a policy of at most `flows` flows and its ports, which have `tags` tags
    /// each.
    // Not inlined: the builder of a policy inside Linux has a stack of 16 KiB.
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
                // A closure, because it takes the locks of the layers inside, and most calls of
                // `look` end before they need it.
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
    /// The kind of a request, and its cost.
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

    /// The cost of a request's growth: that of its bytes.
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
        // A direct policy issues the request again, so it stays on the device.
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

    /// The costs of reads and writes are multiplied, and parts of a command cost nothing.
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
