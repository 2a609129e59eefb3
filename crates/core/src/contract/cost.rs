//! The cost of a request to its flow, in equivalent bytes of service, by its operation and length.
//!
//! A request reaches a policy with its [`Cost`]; no policy computes it. A [`CostModel`] counts
//! bytes; for the policies of the registry [`crate::cost`] computes the costs.

use crate::contract::flow::FlowId;
use crate::contract::port::{Cost, Op, Request, Tag};

/// The cost of each operation. The default counts bytes: a read or write costs its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CostModel {
    /// Multiplier of a read's length, in hundredths; default 100 (one byte costs one byte).
    pub read_percent: u32,
    /// Multiplier of a write's length, in hundredths; default 100.
    pub write_percent: u32,
    /// The least that any request costs, in bytes; default 512, the smallest block.
    pub min_bytes: u32,
    /// The least a flush costs, in bytes; default 4096. A flush moves no data but occupies the
    /// device. A caller that has measured its duration gives it a length: the bytes that could have
    /// been moved in that time.
    pub flush_bytes: u32,
    /// The least a discard costs, in bytes; default 4096. It changes the device's or the file
    /// system's map and writes nothing.
    pub discard_bytes: u32,
    /// Bytes of a discard's length that cost one byte; 0 if the length costs nothing. Default 256,
    /// because the map of a long range is long, too.
    pub discard_part: u32,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            read_percent: 100,
            write_percent: 100,
            min_bytes: 512,
            flush_bytes: 4096,
            discard_bytes: 4096,
            discard_part: 256,
        }
    }
}

impl CostModel {
    /// The model after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut CostModel)) -> CostModel {
        change(&mut self);
        self
    }

    /// The cost of `op` over `length` bytes as a command of its own, at least 1 and at most
    /// [`Cost::MAX`].
    #[inline]
    pub fn cost(&self, op: Op, length: u32) -> u64 {
        self.charge(op, length).alone
    }

    /// The cost of `op` over `length` bytes. Joined to another command it costs its bytes, without
    /// the least cost.
    #[inline]
    pub fn charge(&self, op: Op, length: u32) -> Cost {
        let percent = match op {
            Op::Read => self.read_percent,
            Op::Write | Op::WriteZeroes => self.write_percent,
            Op::Flush => return self.bounded(u64::from(self.flush_bytes.max(length))),
            Op::Discard => {
                let part = length.checked_div(self.discard_part).unwrap_or(0);
                return self.bounded(u64::from(part.max(self.discard_bytes)));
            }
        };
        self.bounded(scaled(length.into(), percent))
    }

    #[inline]
    fn bounded(&self, bytes: u64) -> Cost {
        let alone = bytes.clamp(u64::from(self.min_bytes.max(1)), Cost::MAX);
        Cost { alone, joined: bytes.min(Cost::MAX) }
    }
}

impl Request {
    /// A request that costs its bytes, as [`CostModel::default`] counts them.
    #[inline]
    pub fn new(tag: Tag, flow: FlowId, op: Op, offset: u64, length: u32) -> Request {
        let cost = CostModel::default().charge(op, length);
        Request { tag, flow, op, offset, length, cost }
    }
}

/// `bytes` times `percent`, in hundredths.
#[inline]
pub(crate) fn scaled(bytes: u64, percent: u32) -> u64 {
    // This usual case needs no division: every later step waits for the cost.
    if percent == 100 {
        return bytes;
    }
    bytes.saturating_mul(percent.into()) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_bytes_with_minimum_charges() {
        let model = CostModel::default();
        assert_eq!(model.cost(Op::Read, 4096), 4096);
        assert_eq!(model.cost(Op::Write, 1), 512);
        assert_eq!(model.cost(Op::Flush, 0), 4096);
        assert_eq!(model.cost(Op::Discard, 1 << 20), 4096);
        assert_eq!(model.cost(Op::Discard, 1 << 30), 4 << 20);
        assert_eq!(CostModel { discard_part: 0, ..model }.cost(Op::Discard, 1 << 30), 4096);
        assert_eq!(model.cost(Op::WriteZeroes, 1 << 30), 1 << 30, "the device writes the zeroes");
        assert_eq!(model.cost(Op::Flush, 1 << 20), 1 << 20, "a measured flush costs its length");
        let at_least = CostModel { min_bytes: 16_384, ..model };
        for op in [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes] {
            assert_eq!(at_least.cost(op, 512), 16_384, "{op:?}");
        }
        let joined = Cost { alone: 16_384, joined: 512 };
        assert_eq!(at_least.charge(Op::Read, 512), joined, "the least cost is charged once");
        assert_eq!(model.charge(Op::Read, 4096), Cost::bytes(4096));
        let writes_cost_triple = CostModel { write_percent: 300, ..model };
        assert_eq!(writes_cost_triple.cost(Op::Write, 4096), 12_288);
        assert_eq!(writes_cost_triple.cost(Op::Read, 4096), 4096);
    }

    #[test]
    fn cost_is_never_zero_and_never_too_large() {
        let free = CostModel {
            read_percent: 0,
            write_percent: u32::MAX,
            min_bytes: 0,
            flush_bytes: 0,
            discard_bytes: 0,
            discard_part: 0,
        };
        assert_eq!(free.cost(Op::Read, 4096), 1);
        assert_eq!(free.cost(Op::Flush, 0), 1);
        assert_eq!(free.cost(Op::Write, u32::MAX), Cost::MAX);
    }
}
