//! The I/O command that a submission entry is: checked against the namespace, with the memory of
//! its data.
//!
//! An entry is a copy that the guest cannot change. Lists of PRP entries and SGL descriptors are
//! the guest's memory: each of their entries is read once, at most [`ENTRIES`] for one command.

use fairq_core::Op;

use crate::device::nvme::data::Transfer;
use crate::device::nvme::spec::{LBA, LBA_SHIFT, NSID_ALL, Sqe, Status, nvm};
use crate::front::guest_memory::{self, Guest};
use crate::io::memory::Memory;
use crate::shard::volume::Volume;

/// The longest transfer, as a power of two in pages of 4 KiB.
pub(super) const MDTS: u8 = 8;
/// The longest transfer, in bytes.
pub(super) const TRANSFER: u32 = 4096 << MDTS;
/// The only namespace.
pub(super) const NSID: u32 = 1;
/// The most entries of lists for one command: a transfer of pages, and the links of its lists.
const ENTRIES: u32 = 512;
/// The most ranges of one command.
const RANGES: usize = 256;
const RANGE: usize = nvm::RANGE as usize;

/// The kinds of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Read, write, zeroes or flush.
    Plain,
    /// Discards; the ranges after the first are listed.
    Ranges,
    /// A read whose data are compared with those of the guest.
    Compare,
    /// A read without a destination.
    Verify,
    /// Advice, for which there is nothing to do.
    Advice,
}

/// A checked command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Decoded {
    pub(super) kind: Kind,
    pub(super) op: Op,
    /// The first range, in bytes from the namespace's start.
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Force unit access.
    pub(super) fua: bool,
    /// Zeroes must stay allocated.
    pub(super) no_hole: bool,
}

/// Decodes an entry. Appends the memory of its data to `data`, and the ranges of a discard after
/// the first one, the last first, to `ranges`.
#[inline]
pub(super) fn decode(
    sqe: &Sqe,
    volume: &Volume,
    guest: &Guest,
    data: &mut Vec<Memory>,
    ranges: &mut Vec<(u64, u64)>,
) -> Result<Decoded, Status> {
    let (kind, op) = match sqe.opcode {
        nvm::READ => (Kind::Plain, Op::Read),
        nvm::WRITE => (Kind::Plain, Op::Write),
        nvm::FLUSH => (Kind::Plain, Op::Flush),
        nvm::WRITE_ZEROES => (Kind::Plain, Op::WriteZeroes),
        nvm::DATASET_MANAGEMENT => (Kind::Ranges, Op::Discard),
        nvm::COMPARE => (Kind::Compare, Op::Read),
        nvm::VERIFY => (Kind::Verify, Op::Read),
        _ => return Err(Status::INVALID_OPCODE),
    };
    let is_fused = sqe.flags & 3 != 0;
    if is_fused {
        return Err(Status::INVALID_FIELD);
    }
    let is_all = sqe.nsid == NSID_ALL && op == Op::Flush;
    if sqe.nsid != NSID && !is_all {
        return Err(Status::INVALID_NAMESPACE);
    }
    if volume.read_only && !matches!(op, Op::Read | Op::Flush) {
        return Err(Status::WRITE_PROTECTED);
    }
    let mut decoded = Decoded { kind, op, offset: 0, length: 0, fua: false, no_hole: false };
    match op {
        Op::Flush => {}
        Op::Discard => {
            if sqe.cdw11 & nvm::ATTRIBUTE_DEALLOCATE == 0 {
                return Ok(Decoded { kind: Kind::Advice, ..decoded });
            }
            read_ranges(sqe, volume.size, guest, data, ranges)?;
            (decoded.offset, decoded.length) = ranges.pop().unwrap_or_default();
        }
        Op::Read | Op::Write | Op::WriteZeroes => {
            let lba = u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32;
            let blocks = u64::from(sqe.cdw12 & 0xffff) + 1;
            (decoded.offset, decoded.length) = range(lba, blocks, volume.size)?;
            decoded.fua = sqe.cdw12 & nvm::FUA != 0 && op != Op::Read;
            decoded.no_hole = sqe.cdw12 & nvm::DEALLOCATE == 0;
            if op != Op::WriteZeroes {
                if decoded.length > TRANSFER.into() {
                    return Err(Status::INVALID_FIELD);
                }
                if kind != Kind::Verify {
                    translate(sqe, decoded.length as u32, guest, data)?;
                }
            }
        }
    }
    Ok(decoded)
}

/// Appends the memory of the first `length` bytes of a command's data.
#[inline]
pub(super) fn translate(
    sqe: &Sqe,
    length: u32,
    guest: &Guest,
    data: &mut Vec<Memory>,
) -> Result<(), Status> {
    let mut transfer = Transfer::new(sqe, length, ENTRIES)?;
    while let Some(piece) = transfer.next_address(guest) {
        let (address, length) = piece?;
        let start = data.len();
        guest.translate(address, length, data).map_err(|_| Status::DATA_TRANSFER)?;
        join(data, start);
    }
    Ok(())
}

/// Joins the stretch at `at` with the one before it, if they are neighbours.
#[inline]
fn join(data: &mut Vec<Memory>, at: usize) {
    let Some([last, next]) = at.checked_sub(1).and_then(|before| data.get_mut(before..=at)) else {
        return;
    };
    if last.address.wrapping_add(last.length as usize) == next.address {
        last.length += next.length;
        data.remove(at);
    }
}

/// The ranges of a command, all checked, the last first; `data` has their memory, and is empty at
/// the end.
#[cold]
fn read_ranges(
    sqe: &Sqe,
    size: u64,
    guest: &Guest,
    data: &mut Vec<Memory>,
    ranges: &mut Vec<(u64, u64)>,
) -> Result<(), Status> {
    let mut bytes = [0; RANGES * RANGE];
    let count = (sqe.cdw10 & 0xff) as usize + 1;
    let list = &mut bytes[..count * RANGE];
    translate(sqe, list.len() as u32, guest, data)?;
    // SAFETY: the memory was translated with a generation that is mapped.
    unsafe { guest_memory::read(data, 0, list) };
    data.clear();
    for entry in list.chunks_exact(RANGE).rev() {
        let [first, lba] = [&entry[..8], &entry[8..]]
            .map(|half| half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        ranges.push(range(lba, first >> 32, size)?);
    }
    Ok(())
}

/// Blocks of a namespace of `size` bytes, as offset and length in bytes.
#[inline]
fn range(lba: u64, blocks: u64, size: u64) -> Result<(u64, u64), Status> {
    let end = lba.checked_add(blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
    if end > size >> LBA_SHIFT {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    Ok((lba << LBA_SHIFT, blocks * u64::from(LBA)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::nvme::spec::PAGE;
    use crate::front::guest_memory::Plan;
    use crate::front::guest_memory::tests::file;
    use crate::shard::volume::tests::volume;

    const BUS: u64 = 1 << 30;
    const MEMORY: u64 = 1 << 20;

    fn guest() -> Guest {
        let plan = Plan { guest: BUS, size: MEMORY, user: BUS, offset: 0 };
        Guest::map([(plan, file(MEMORY))]).unwrap()
    }

    fn write(guest: &Guest, at: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut memory = Vec::new();
        guest.translate(BUS + at, bytes.len() as u32, &mut memory).unwrap();
        // SAFETY: the memory is mapped.
        unsafe { guest_memory::write(&memory, &bytes) };
    }

    fn decoded(guest: &Guest, sqe: Sqe, is_read_only: bool) -> Result<(Decoded, usize), Status> {
        let volume = volume(1 << 20, 8 << 20, is_read_only, 512);
        let (mut data, mut ranges) = (Vec::new(), Vec::new());
        let decoded = decode(&sqe, &volume, guest, &mut data, &mut ranges)?;
        let bytes: u64 = data.iter().map(|part| u64::from(part.length)).sum();
        let has_data = decoded.kind != Kind::Verify && matches!(decoded.op, Op::Read | Op::Write);
        assert_eq!(bytes, if has_data { decoded.length } else { 0 });
        Ok((decoded, if decoded.kind == Kind::Ranges { ranges.len() } else { data.len() }))
    }

    fn transfer(opcode: u8, lba: u32, blocks: u32) -> Sqe {
        let data = [BUS, BUS + PAGE];
        Sqe { opcode, nsid: 1, data, cdw10: lba, cdw12: blocks - 1, ..Sqe::default() }
    }

    #[test]
    fn commands_lie_in_the_namespace_and_their_data_in_the_guest() {
        let guest = guest();
        let of = |sqe| decoded(&guest, sqe, false);
        let (read, parts) = of(transfer(nvm::READ, 5, 16)).unwrap();
        assert_eq!((read.op, read.offset, read.length, parts), (Op::Read, 2560, 8192, 1));
        let last = (8 << 20) / 512;
        assert!(of(transfer(nvm::READ, last - 1, 1)).is_ok());
        for (sqe, status) in [
            (transfer(nvm::READ, last, 1), Status::LBA_OUT_OF_RANGE),
            (transfer(nvm::WRITE, last - 1, 2), Status::LBA_OUT_OF_RANGE),
            (
                Sqe { cdw11: u32::MAX, ..transfer(nvm::WRITE, u32::MAX, 2) },
                Status::LBA_OUT_OF_RANGE,
            ),
            (transfer(nvm::READ, 0, 4096), Status::INVALID_FIELD),
            (Sqe { nsid: 2, ..transfer(nvm::READ, 0, 1) }, Status::INVALID_NAMESPACE),
            (Sqe { nsid: NSID_ALL, ..transfer(nvm::READ, 0, 1) }, Status::INVALID_NAMESPACE),
            (Sqe { flags: 1, ..transfer(nvm::READ, 0, 1) }, Status::INVALID_FIELD),
            (Sqe { data: [0, 0], ..transfer(nvm::READ, 0, 1) }, Status::DATA_TRANSFER),
            (
                Sqe { data: [BUS + MEMORY - 4, 0], ..transfer(nvm::READ, 0, 1) },
                Status::DATA_TRANSFER,
            ),
            (Sqe { data: [BUS + 1, 0], ..transfer(nvm::READ, 0, 1) }, Status::PRP_OFFSET),
            (transfer(0x77, 0, 1), Status::INVALID_OPCODE),
        ] {
            assert_eq!(of(sqe).unwrap_err(), status, "{sqe:?}");
        }
        let flush = Sqe { opcode: nvm::FLUSH, nsid: NSID_ALL, ..Sqe::default() };
        assert_eq!(of(flush).unwrap().0.op, Op::Flush);
        let verify = Sqe { data: [0, 0], ..transfer(nvm::VERIFY, 1, 8) };
        assert_eq!(of(verify).unwrap().0.kind, Kind::Verify);
        for opcode in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT] {
            let refused = decoded(&guest, transfer(opcode, 0, 1), true).unwrap_err();
            assert_eq!(refused, Status::WRITE_PROTECTED);
        }
    }

    #[test]
    fn lists_are_followed_to_their_bound() {
        let guest = guest();
        // A list of scattered pages, and one that goes on in itself.
        let pages: Vec<u64> = (0..255).map(|page| BUS + (254 - page) % 128 * 2 * PAGE).collect();
        write(&guest, 0x1000, &pages);
        let whole = Sqe { data: [BUS + 0x3000, BUS + 0x1000], ..transfer(nvm::WRITE, 0, 2048) };
        let (_, parts) = decoded(&guest, whole, false).unwrap();
        assert!(parts > 200, "{parts}");
        let circle: Vec<u64> = (0..512).map(|_| BUS + 0x5000).collect();
        write(&guest, 0x5000, &circle);
        let mut endless = Sqe { data: [BUS + 0x5000, 0x20 << 56 | 16], ..whole };
        endless.flags = 0x40;
        write(&guest, 0x5000, &[BUS + 0x5000, 0x20 << 56 | 16]);
        assert_eq!(decoded(&guest, endless, false).unwrap_err(), Status::INVALID_SGL_COUNT);
    }

    #[test]
    fn all_ranges_of_a_discard_are_checked_before_the_first() {
        let guest = guest();
        write(&guest, 0, &[2 << 32, 8, 1 << 32, 100, 0, 7]);
        let trim = Sqe {
            opcode: nvm::DATASET_MANAGEMENT,
            nsid: 1,
            data: [BUS, 0],
            cdw10: 2,
            cdw11: nvm::ATTRIBUTE_DEALLOCATE,
            ..Sqe::default()
        };
        let (first, more) = decoded(&guest, trim, false).unwrap();
        assert_eq!((first.offset, first.length, more), (4096, 1024, 2));
        assert_eq!(decoded(&guest, Sqe { cdw11: 0, ..trim }, false).unwrap().0.kind, Kind::Advice);
        write(&guest, 16, &[1 << 32, (8 << 20) / 512]);
        assert_eq!(decoded(&guest, trim, false).unwrap_err(), Status::LBA_OUT_OF_RANGE);
        let beyond = Sqe { data: [BUS + MEMORY - 16, 0], cdw10: 255, ..trim };
        assert_eq!(decoded(&guest, beyond, false).unwrap_err(), Status::DATA_TRANSFER);
    }
}
