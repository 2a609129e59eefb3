//! The offset and length with which the scheduler sees a request, so that its tenant is charged for
//! the cost of the request on the device.
//!
//! **Problem.** A policy charges for bytes. Some requests cost more than their bytes: a write of a
//! part of a block is a read and a write of whole blocks, and a flush has no bytes at all. A tenant
//! that sends such requests would use the others' share of the device without being charged for it.
//!
//! **Model.** The offset and length for the scheduler differ from those for the device:
//!
//! - A read or write that covers a block of the device only in part is charged for whole blocks. A
//!   write is charged for whole [`UNIT`]s, the least cost of an operation of a device, and for one
//!   more unit for each partial block, which has to be read. Such a request is not merged with
//!   another one, since the policy does not know its real end.
//! - A flush is charged for the bytes that the device could have transferred instead: the bytes
//!   that one slot of the device moves in the measured mean time of this tenant's flushes. The
//!   charge is at least the policy's own charge for a flush.
//!
//! **Example.** The device moves 4 KiB in 100 us, and a tenant's flushes take 5 ms: each is charged
//! 50 * 4 KiB. A write of 1 byte is charged 8 KiB.
//!
//! **Bounds.** A shard's state is two words, and one for each tenant. A flush is charged at most
//! [`MOST_OF_A_FLUSH`], so that a flush that hung does not starve its tenant for ever.

use fairq_core::Op;

/// The least cost of an operation of a device, in bytes: SSDs map 4 KiB at a time.
const UNIT: u32 = 4096;
/// The largest charge of a flush, in bytes: the length of the longest request of a client.
const MOST_OF_A_FLUSH: u64 = 32 << 20;
/// The number of bytes after which the weight of earlier measurements is halved; some seconds on a
/// slow device.
const MEMORY: u64 = 256 << 20;

/// The range of a request as it is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charged {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Whether its range differs from the device's, so that it must not be merged.
    pub(crate) stands_alone: bool,
}

/// The charge of a read or write on a device with this block.
#[inline]
pub(crate) fn of_data(op: Op, offset: u64, length: u32, block: u32) -> Charged {
    // Blocks are powers of two.
    let within = |at: u64| at & u64::from(block.max(1) - 1) != 0;
    let end = offset + u64::from(length);
    // A discard is shrunk to whole blocks, so it has no partial blocks.
    if !(within(offset) || within(end)) || matches!(op, Op::Flush | Op::Discard) {
        return Charged { offset, length, stands_alone: false };
    }
    cut(op, offset, length, block)
}

#[cold]
fn cut(op: Op, offset: u64, length: u32, block: u32) -> Charged {
    if op == Op::Read {
        let (offset, length) = around(offset, length, block);
        return Charged { offset, length, stands_alone: true };
    }
    let unit = UNIT.max(block);
    let is_cut = |at: u64| !at.is_multiple_of(u64::from(block));
    let end = offset + u64::from(length);
    let is_one = offset / u64::from(block) == end / u64::from(block);
    let reads = if is_one { 1 } else { u32::from(is_cut(offset)) + u32::from(is_cut(end)) };
    let (offset, length) = around(offset, length, unit);
    Charged { offset, length: length.saturating_add(reads * unit), stands_alone: true }
}

/// The whole blocks that contain a range: offset and length.
fn around(offset: u64, length: u32, block: u32) -> (u64, u32) {
    let block = u64::from(block);
    let start = offset / block * block;
    (start, ((offset + u64::from(length)).next_multiple_of(block) - start) as u32)
}

/// The times of reads, writes and flushes on the device, as one shard has measured them.
pub(crate) struct Observation {
    /// Bytes of reads and writes.
    bytes: u64,
    busy_ns: u64,
    /// The mean time of a flush, by tenant; 0 if none has been measured.
    flush_ns: Box<[u64]>,
}

impl Observation {
    /// An empty observation of `tenants` tenants.
    pub(crate) fn new(tenants: usize) -> Observation {
        Observation { bytes: 0, busy_ns: 0, flush_ns: vec![0; tenants].into_boxed_slice() }
    }

    /// Forgets a tenant, because its number now belongs to another tenant.
    pub(crate) fn forget(&mut self, tenant: u16) {
        if let Some(flush_ns) = self.flush_ns.get_mut(usize::from(tenant)) {
            *flush_ns = 0;
        }
    }

    /// Records that a request was on the device for `device_ns`.
    #[inline]
    pub(crate) fn ended(&mut self, tenant: u16, op: Op, length: u32, device_ns: u64) {
        match op {
            Op::Read | Op::Write => {
                self.bytes += u64::from(length.max(UNIT));
                self.busy_ns += device_ns;
                if self.bytes > MEMORY {
                    self.bytes /= 2;
                    self.busy_ns /= 2;
                }
            }
            Op::Flush => {
                // A running mean with a memory of about eight flushes.
                let mean = &mut self.flush_ns[usize::from(tenant)];
                *mean = if *mean == 0 { device_ns } else { (*mean * 7 + device_ns) / 8 };
            }
            // Discards and zeroing move no data, so they are not used for the rate of a slot.
            Op::Discard | Op::WriteZeroes => {}
        }
    }

    /// The charge for a flush of this tenant, in bytes; 0 while none has been measured.
    pub(crate) fn flush_bytes(&self, tenant: u16) -> u32 {
        let flush_ns = u128::from(self.flush_ns[usize::from(tenant)]);
        let bytes = (flush_ns * u128::from(self.bytes)).checked_div(u128::from(self.busy_ns));
        bytes.unwrap_or(0).min(u128::from(MOST_OF_A_FLUSH)) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn length(op: Op, offset: u64, length: u32, block: u32) -> u32 {
        of_data(op, offset, length, block).length
    }

    #[test]
    fn a_part_of_a_block_is_charged_as_what_it_takes() {
        assert_eq!(length(Op::Write, 0, 512, 512), 512, "a whole block");
        assert_eq!(length(Op::Write, 1, 1, 1), 1, "no blocks");
        assert_eq!(length(Op::Write, 5, 1, 512), 8192, "a read and a write");
        assert_eq!(length(Op::Write, 511, 2, 512), 3 * 4096, "two blocks are cut");
        assert_eq!(length(Op::Write, 0, 5000, 512), 8192 + 4096);
        assert_eq!(length(Op::WriteZeroes, 4096, 4097, 4096), 3 * 4096);
        assert_eq!(length(Op::Read, 5, 1, 4096), 4096);
        assert_eq!(length(Op::Read, 511, 2, 512), 1024);
        assert_eq!(length(Op::Discard, 5, 100, 512), 100, "shrunk to whole blocks");
    }

    #[test]
    fn a_flush_is_charged_for_its_time() {
        let mut seen = Observation::new(2);
        assert_eq!(seen.flush_bytes(0), 0);
        (0..100).for_each(|_| seen.ended(0, Op::Read, 4096, 100_000));
        assert_eq!(seen.flush_bytes(0), 0, "none was seen");
        seen.ended(0, Op::Flush, 0, 5_000_000);
        assert_eq!((seen.flush_bytes(0), seen.flush_bytes(1)), (50 * 4096, 0), "of its own only");
        seen.ended(0, Op::Flush, 0, u64::MAX / 16);
        assert_eq!(u64::from(seen.flush_bytes(0)), MOST_OF_A_FLUSH);
        seen.forget(0);
        assert_eq!(seen.flush_bytes(0), 0);
    }

    #[test]
    fn what_was_measured_long_ago_counts_less() {
        let mut seen = Observation::new(1);
        seen.ended(0, Op::Flush, 0, 1_000_000);
        (0..1 << 17).for_each(|_| seen.ended(0, Op::Write, 4096, 1_000_000));
        let slow = seen.flush_bytes(0);
        (0..1 << 17).for_each(|_| seen.ended(0, Op::Write, 4096, 1_000));
        assert_eq!(slow, 4096);
        assert!(seen.flush_bytes(0) > 2 * slow, "{}", seen.flush_bytes(0));
    }

    proptest! {
        /// The charge is never less than the bytes, and exceeds them by a bounded amount.
        #[test]
        fn charges_are_near_the_bytes(
            at in 0..1_u64 << 40, bytes in 1..1_u32 << 25, shift in 0..13_u32, write in any::<bool>(),
        ) {
            let op = if write { Op::Write } else { Op::Read };
            let charged = of_data(op, at, bytes, 1 << shift);
            prop_assert!(charged.length >= bytes && charged.length <= bytes + 5 * 4096);
            prop_assert!(charged.stands_alone || (charged.offset, charged.length) == (at, bytes));
        }
    }
}
