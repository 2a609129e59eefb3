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
//!   The cost is the length while a flow is alone, or requests are of one kind and size, or the
//!   device's time is about proportional to the length. A port loads two shared words per request,
//!   and stores two words of its own lines per completion, but only with this kind of cost. The
//!   default of policies that hold nothing back.
//!
//! **Unit.** Costs are equivalent bytes, so T, tokens and thresholds keep their meaning. The
//! factors for reads and writes multiply what a request costs, and the least cost bounds it.
//!
//! **Joined requests** are one command: with `requests` only the first of them counts
//! ([`Cost::joined`]). With `device` each counts, in windows and in charges alike.
//!
//! **Example.** With `requests` a read of 512 bytes and one of 1 MiB cost 4,096 each; with a
//! `write-cost` of 300 % a write costs 12,288. With `device` both cost 4,096 if the device serves
//! 4,000 of either a second, and 512 bytes and 1 MiB if it is limited by its link.
//!
//! **Knobs.** `cost`, `read-cost`, `write-cost`, `least-cost`.

mod device;
mod fit;
mod tally;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::{ConfigError, boxed, granted};
use crate::contract::cost::{CostModel, scaled};
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::platform::{Lock, Native};
use crate::contract::port::{Cost, Op};
use crate::entry::Built;
use crate::entry::knobs::{Configure, Knob, Knobs, LEAST_COST, READ_COST, WRITE_COST, words};
use device::{Finder, Prices};
use tally::{Tally, Words};

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

    /// The cost of a request by its length, or by the device's time with these prices.
    #[inline]
    fn charge(&self, op: Op, length: u32, by_device: Option<(u64, u64)>) -> Cost {
        let (model, bytes) = (&self.model, u64::from(length));
        let percent = match op {
            Op::Read => model.read_percent,
            Op::Write | Op::WriteZeroes => model.write_percent,
            // The length of a flush stands for the time that the flush was measured to take, so it
            // counts with any kind of cost.
            Op::Flush | Op::Discard => return model.charge(op, length),
        };
        let (alone, joined) = match self.kind {
            CostKind::Bytes => (bytes, bytes),
            CostKind::Requests => (REQUEST_BYTES, 0),
            CostKind::Device => by_device.unwrap_or((bytes, bytes)),
        };
        let least = u64::from(model.min_bytes.max(1));
        let alone = scaled(alone, percent).clamp(least, Cost::MAX);
        Cost { alone, joined: scaled(joined, percent).min(Cost::MAX) }
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
    device: Option<Arc<Shared<P>>>,
}

/// The state of costs by the device's time.
struct Shared<P: Platform> {
    prices: CachePadded<Prices<P>>,
    ports: Box<[CachePadded<Words<P>>]>,
    finder: P::Mutex<Box<Finder>>,
}

/// A port of [`Costs`].
pub struct CostPort<Q, P: Platform = Native> {
    inner: Q,
    config: CostConfig,
    device: Option<Box<Tally<P>>>,
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
            let device = (config.kind == CostKind::Device).then(|| {
                Arc::new(Shared {
                    prices: CachePadded::new(Prices::new()),
                    ports: boxed(ports.len(), |_| CachePadded::new(Words::new())),
                    finder: P::Mutex::new(Finder::boxed()),
                })
            });
            let port = |(index, inner)| {
                let tally =
                    |shared: &Arc<Shared<P>>| Tally::new(shared.clone(), index, tags, flows);
                CostPort { inner, config: *config, device: device.as_ref().map(tally) }
            };
            let ports = ports.into_iter().enumerate().map(port).collect();
            Ok((Costs { inner, device }, ports))
        })
    }
}

layer!(Costs, CostPort);

impl<L: Policy, P: Platform> layer::Layer for Costs<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let inner = &self.inner;
        let Some(shared) = &self.device else { return inner.tick(now_ns, wake) };
        shared.finder.with(|finder| {
            if finder.inner_ns <= now_ns {
                finder.inner_ns = inner.tick(now_ns, wake).unwrap_or(u64::MAX);
            }
            if finder.next_ns <= now_ns {
                let mut sum = [0; 64];
                shared.ports.iter().for_each(|words| words.add_to(&mut sum));
                if let Some(is_much) = finder.look(now_ns, &sum, &inner.stats(), &shared.prices) {
                    inner.costs_vary(is_much);
                }
            }
            Some(finder.inner_ns.min(finder.next_ns))
        })
    }

    layer::forward_policy! {
        add_flow_as set_weight set_urgent set_weights tune remove_flow costs_vary class_weights
    }

    fn stats(&self) -> Stats {
        let cost = self.device.as_ref().map(|shared| shared.finder.with(|finder| finder.stats()));
        Stats { cost, ..self.inner.stats() }
    }
}

impl<L: Limits, P: Platform> Limits for Costs<L, P> {
    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        self.inner.set_target(flow, target)
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.inner.target(flow)
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
        let by_device = self.device.as_mut().map(|tally| tally.charge(request));
        let cost = self.config.charge(request.op, request.length, by_device);
        self.inner.submit(now_ns, &Request { cost, ..*request }, wake)
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued && let Some(tally) = &mut self.device {
            tally.completed(tag);
        }
        was_issued
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let by_device = self.device.as_ref().map(|tally| tally.growth(growth));
        let cost = self.config.charge(growth.op, growth.length, by_device).joined;
        let has_grown = self.inner.grow(now_ns, tag, &Growth { cost, ..*growth }, wake);
        if has_grown && let Some(tally) = &mut self.device {
            tally.grown(tag, growth);
        }
        has_grown
    }

    layer::forward_port! {
        next cancel expedite requeue hold barrier admit has_work staged flow_stats reason
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The costs of reads and writes are multiplied, and parts of a command cost nothing.
    #[test]
    fn requests_cost_the_same_whatever_their_length() {
        let mut config = CostConfig { kind: CostKind::Requests, ..CostConfig::default() };
        config.model.write_percent = 300;
        let cost = |op, length| config.charge(op, length, None);
        let (read, write) = (Cost { alone: 4096, joined: 0 }, Cost { alone: 12_288, joined: 0 });
        assert_eq!([512, 1 << 20].map(|length| cost(Op::Read, length)), [read, read]);
        assert_eq!([Op::Write, Op::WriteZeroes].map(|op| cost(op, 1 << 20)), [write, write]);
        assert_eq!(cost(Op::Flush, 1 << 20), Cost::bytes(1 << 20), "it was seen to take long");
    }
}
