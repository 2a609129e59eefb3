//! The cost of requests: it is computed before a policy sees them.
//!
//! **Problem.** A policy gives flows equal costs for each weight, whatever a cost counts. A fast
//! device is limited in bytes at large sizes and in requests at small ones. On a device of 4,000
//! requests a second, a request of 512 bytes takes as long as one of 1 MiB; if costs are bytes, a
//! tenant that sends requests of 1 MiB beside one that sends requests of 512 bytes gets 2 % of its
//! rate when alone. **Model.** [`Managed`](crate::managed::Managed) gives each request its [`Cost`]
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

use crate::contract::bounds::zeroes;
use crate::contract::cost::{CostModel, scaled};
use crate::contract::platform::Platform;
use crate::contract::port::{Cost, Op};
use crate::contract::port::{Growth, Request};
use crate::entry::knobs::{Configure, Knob, Knobs, LEAST_COST, READ_COST, WRITE_COST, words};
pub(crate) use device::{Finder, Prices};
use tally::{CURSORS, KINDS, NEAR, class};
pub(crate) use tally::{Classes, NO_CLASS, grown};

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

    /// Whether costs are by the device's time.
    pub(crate) fn is_by_device(&self) -> bool {
        self.kind == CostKind::Device
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

/// A port's computation of costs.
pub(crate) struct Pricer {
    /// `None`: requests come with their costs.
    config: Option<CostConfig>,
    /// For each cursor, the end of the last request of a flow.
    ends: Box<[u64]>,
}

impl Pricer {
    pub(crate) fn new(config: Option<CostConfig>, flows: usize) -> Self {
        let is_by_device = config.is_some_and(|config| config.is_by_device());
        let cursors = if is_by_device { flows.clamp(1, CURSORS) } else { 0 };
        Pricer { config, ends: zeroes(cursors) }
    }

    /// The class of a request, and its cost. By the device's time its cost alone and as a part of a
    /// command is the same, because windows count requests.
    #[inline(always)]
    pub(crate) fn price<P: Platform>(
        &mut self,
        request: &Request,
        prices: &Prices<P>,
    ) -> (u8, Cost) {
        let Some(config) = &self.config else { return (NO_CLASS, request.cost) };
        let Request { op, length, .. } = *request;
        if !config.is_by_device() {
            return (NO_CLASS, config.charge(op, length, None));
        }
        let mut kind = tally::first(op);
        if kind >= KINDS {
            return (NO_CLASS, config.charge(op, length, None));
        }
        // With fewer flows than cursors each flow has its own, since the mask changes no slot.
        if let Some(end) = self.ends.get_mut(request.flow.slot() & (CURSORS - 1)) {
            kind += usize::from(end.abs_diff(request.offset) <= NEAR);
            *end = request.offset.saturating_add(length.into());
        }
        let class = class(kind, length);
        let alone = prices.cost(kind, class, length);
        (class as u8, config.charge(op, length, Some((alone, alone))))
    }

    /// The cost of a growth: that of its bytes, which is the same for all kinds of a direction.
    pub(crate) fn growth<P: Platform>(&self, growth: &Growth, prices: &Prices<P>) -> u64 {
        let Some(config) = &self.config else { return growth.cost };
        let bytes = prices.of_bytes(tally::first(growth.op), growth.length);
        config.charge(growth.op, growth.length, Some((bytes, bytes))).joined
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
