//! virtio-blk: parses the request in a chain of descriptors, and builds the device's configuration.
//!
//! A request's readable memory begins with a header of 16 bytes (operation, sector), which may span
//! descriptors; the data of a write or the ranges of a discard follow. Its writable memory holds
//! the data of a read, and ends with a byte for the status.

use std::sync::atomic::{AtomicU8, Ordering};

use fairq_core::Op;
use virtio_bindings::virtio_blk as abi;

use crate::front::guest_memory::{self, read16};
use crate::front::vhost::queue::{Chain, Fault};
use crate::io::memory::Memory;

/// Bytes of a sector, the unit of addresses.
pub const SECTOR: u64 = 512;
/// The largest number of data descriptors in one request. With header and status they fill a queue
/// of 128.
pub const SEGMENTS: u32 = 126;
/// The most bytes of one descriptor of data.
pub const SEGMENT_BYTES: u32 = 4 << 20;
/// The most sectors of a discard, or of zeroes.
pub const RANGE_SECTORS: u32 = 1 << 22;
/// Bytes of the device's configuration.
pub const CONFIG: usize = 96;
/// The offset of the only field that the guest may write: whether the device caches writes.
pub const WRITEBACK: usize = 32;

const HEADER: usize = 16;
const RANGE: u64 = 16;
const ID_BYTES: usize = abi::VIRTIO_BLK_ID_BYTES as usize;

/// The features of the device, in addition to those of every virtio device. `FLUSH` is offered for
/// a cache that the guest may switch off.
pub const FEATURES: u64 = 1 << abi::VIRTIO_BLK_F_SIZE_MAX
    | 1 << abi::VIRTIO_BLK_F_SEG_MAX
    | 1 << abi::VIRTIO_BLK_F_BLK_SIZE
    | 1 << abi::VIRTIO_BLK_F_TOPOLOGY
    | 1 << abi::VIRTIO_BLK_F_MQ
    | FLUSH
    | CONFIG_WCE
    | DISCARD
    | WRITE_ZEROES;
/// The device has a cache, and flushes it on request.
pub const FLUSH: u64 = 1 << abi::VIRTIO_BLK_F_FLUSH;
/// The guest may switch the cache off.
pub const CONFIG_WCE: u64 = 1 << abi::VIRTIO_BLK_F_CONFIG_WCE;
/// The device is read-only.
pub const READ_ONLY: u64 = 1 << abi::VIRTIO_BLK_F_RO;
const DISCARD: u64 = 1 << abi::VIRTIO_BLK_F_DISCARD;
const WRITE_ZEROES: u64 = 1 << abi::VIRTIO_BLK_F_WRITE_ZEROES;

/// The features that a read-only disk does not offer.
pub const CHANGES: u64 = DISCARD | WRITE_ZEROES;

/// The status of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The request has succeeded.
    Ok = abi::VIRTIO_BLK_S_OK as u8,
    /// The request has failed.
    Failed = abi::VIRTIO_BLK_S_IOERR as u8,
    /// The device does not support the request.
    Unsupported = abi::VIRTIO_BLK_S_UNSUPP as u8,
}

/// The content of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// An operation of the storage.
    Storage {
        /// The operation.
        op: Op,
        /// The first byte.
        offset: u64,
        /// The number of bytes; 0 for a flush.
        length: u64,
        /// Zeroes must stay allocated.
        no_hole: bool,
    },
    /// A query of the disk's name.
    Id,
    /// The request cannot be carried out; this is its status.
    Refused(Status),
}

/// A parsed request. The memory of its data is left in the chain: in `readable` for a write, and in
/// `writable` for all other requests.
#[derive(Clone, Copy, Debug)]
pub struct Parsed {
    /// Its content.
    pub wish: Wish,
    /// The byte for its status.
    pub status: Memory,
}

/// Parses a chain, and removes the header and the status from its memory.
pub fn parse(chain: &mut Chain) -> Result<Parsed, Fault> {
    let header = take_header(&mut chain.readable).ok_or(Fault::NoRequest)?;
    let last = chain.writable.last_mut().ok_or(Fault::NoRequest)?;
    last.length -= 1;
    let address = last.address.wrapping_add(last.length as usize);
    if last.length == 0 {
        chain.writable.pop();
    }
    let status = Memory { address, length: 1, fixed: None };
    let [first, sector] = header;
    let wish = match first as u32 {
        abi::VIRTIO_BLK_T_IN => transfer(Op::Read, sector, &chain.writable),
        abi::VIRTIO_BLK_T_OUT => transfer(Op::Write, sector, &chain.readable),
        abi::VIRTIO_BLK_T_FLUSH => {
            Wish::Storage { op: Op::Flush, offset: 0, length: 0, no_hole: false }
        }
        abi::VIRTIO_BLK_T_GET_ID => Wish::Id,
        abi::VIRTIO_BLK_T_DISCARD => range(Op::Discard, &chain.readable),
        abi::VIRTIO_BLK_T_WRITE_ZEROES => range(Op::WriteZeroes, &chain.readable),
        _ => Wish::Refused(Status::Unsupported),
    };
    Ok(Parsed { wish, status })
}

/// Reads the header, and removes it from the memory.
fn take_header(readable: &mut Vec<Memory>) -> Option<[u64; 2]> {
    if let Some(first) = readable.first()
        && first.length as usize == HEADER
    {
        // SAFETY: the chain was translated in a generation of the guest's memory that is mapped.
        let words = unsafe { read16(first.address) };
        readable.remove(0);
        return Some(words.map(u64::from_le));
    }
    let mut bytes = [0; HEADER];
    // SAFETY: as above.
    if unsafe { guest_memory::read(readable, 0, &mut bytes) } < HEADER {
        return None;
    }
    let mut left = HEADER;
    while let Some(first) = readable.first_mut()
        && left > 0
    {
        let count = left.min(first.length as usize);
        (first.address, left) = (first.address.wrapping_add(count), left - count);
        first.length -= count as u32;
        if first.length == 0 {
            readable.remove(0);
        }
    }
    let (first, sector) = bytes.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    Some([word(first), word(sector)])
}

/// A read or write whose length is that of the memory.
fn transfer(op: Op, sector: u64, data: &[Memory]) -> Wish {
    let length: u64 = data.iter().map(|part| u64::from(part.length)).sum();
    let fits = length > 0 && length.is_multiple_of(SECTOR) && length <= u32::MAX.into();
    match sector.checked_mul(SECTOR) {
        Some(offset) if fits => Wish::Storage { op, offset, length, no_hole: false },
        _ => Wish::Refused(Status::Failed),
    }
}

/// A discard or a zeroing, whose range is in `data`.
fn range(op: Op, data: &[Memory]) -> Wish {
    let mut bytes = [0; RANGE as usize + 1];
    // SAFETY: as above.
    if unsafe { guest_memory::read(data, 0, &mut bytes) } as u64 != RANGE {
        return Wish::Refused(Status::Unsupported);
    }
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (sector, count, flags) = (u64::from(word(4)) << 32 | u64::from(word(0)), word(8), word(12));
    let unmaps = flags & abi::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
    let has_others = flags & !abi::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
    if has_others || unmaps && op == Op::Discard {
        return Wish::Refused(Status::Unsupported);
    }
    match sector.checked_mul(SECTOR) {
        Some(offset) if count <= RANGE_SECTORS => {
            let length = u64::from(count) * SECTOR;
            Wish::Storage { op, offset, length, no_hole: op == Op::WriteZeroes && !unmaps }
        }
        _ => Wish::Refused(Status::Failed),
    }
}

/// Writes the disk's name: at most 20 bytes, filled up with zeroes. Returns the bytes written.
///
/// # Safety
/// The memory is in a guest's memory that is mapped.
pub unsafe fn write_id(name: &str, writable: &[Memory]) -> u32 {
    let mut bytes = [0; ID_BYTES];
    bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    // SAFETY: the caller guarantees that the memory is mapped.
    unsafe { guest_memory::write(writable, &bytes) as u32 }
}

/// Writes the status of a request.
///
/// # Safety
/// The memory is in a guest's memory that is mapped.
#[inline]
pub unsafe fn write_status(status: Memory, value: Status) {
    // SAFETY: the caller guarantees that the memory is mapped; a byte is always aligned.
    unsafe { AtomicU8::from_ptr(status.address) }.store(value as u8, Ordering::Relaxed);
}

/// The properties of a disk that its guest sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Its size in bytes.
    pub size: u64,
    /// The block of the device below, in bytes; a power of two.
    pub block: u32,
    /// The size of requests that the device serves best, in bytes.
    pub preferred: u32,
    /// The largest number of queues.
    pub queues: u16,
    /// Whether the guest lets the device cache writes.
    pub writeback: bool,
}

impl Shape {
    /// The configuration of the device.
    pub fn config(&self) -> [u8; CONFIG] {
        let mut bytes = [0; CONFIG];
        let mut set = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let physical = self.block.max(SECTOR as u32);
        let in_sectors = |bytes: u32| bytes / SECTOR as u32;
        set(0, &(self.size / SECTOR).to_le_bytes());
        set(8, &SEGMENT_BYTES.to_le_bytes());
        set(12, &SEGMENTS.to_le_bytes());
        set(20, &(SECTOR as u32).to_le_bytes());
        set(24, &[in_sectors(physical).ilog2() as u8, 0]);
        set(26, &(in_sectors(physical).min(u16::MAX.into()) as u16).to_le_bytes());
        set(28, &in_sectors(self.preferred).to_le_bytes());
        set(WRITEBACK, &[u8::from(self.writeback)]);
        set(34, &self.queues.to_le_bytes());
        set(36, &RANGE_SECTORS.to_le_bytes());
        set(40, &1u32.to_le_bytes());
        set(44, &in_sectors(physical).to_le_bytes());
        set(48, &RANGE_SECTORS.to_le_bytes());
        set(52, &1u32.to_le_bytes());
        set(56, &[1]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::vhost::queue::tests::Machine;

    fn part(machine: &Machine, offset: u64, length: u32) -> Memory {
        Memory { address: machine.at(offset), length, fixed: None }
    }

    /// Parses a request with this header and payload, whose readable bytes are split into parts of
    /// `step`.
    fn parsed(op: u32, sector: u64, payload: &[u8], writable: u32, step: usize) -> Option<Wish> {
        let machine = Machine::new();
        let mut bytes = op.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        bytes.extend(payload);
        machine.set(0x1000, &bytes);
        let mut chain = Chain::default();
        let mut at = 0;
        while at < bytes.len() {
            let length = step.min(bytes.len() - at);
            chain.readable.push(part(&machine, 0x1000 + at as u64, length as u32));
            at += length;
        }
        if writable > 0 {
            chain.writable.push(part(&machine, 0x8000, writable));
        }
        let parsed = parse(&mut chain).ok()?;
        assert_eq!(parsed.status.address, machine.at(0x8000 + u64::from(writable) - 1));
        let left = |parts: &[Memory]| parts.iter().map(|part| part.length).sum::<u32>();
        assert_eq!(left(&chain.readable) as usize, payload.len());
        assert_eq!(left(&chain.writable), writable - 1);
        Some(parsed.wish)
    }

    fn storage(op: Op, offset: u64, length: u64) -> Option<Wish> {
        Some(Wish::Storage { op, offset, length, no_hole: false })
    }

    #[test]
    fn requests_are_the_same_however_their_descriptors_cut_them() {
        for step in [16, 7, 1024, 1] {
            assert_eq!(parsed(0, 3, &[], 1025, step), storage(Op::Read, 1536, 1024));
            assert_eq!(parsed(1, 1, &[7; 512], 1, step), storage(Op::Write, 512, 512));
            assert_eq!(parsed(4, 9, &[], 1, step), storage(Op::Flush, 0, 0));
            assert_eq!(parsed(8, 0, &[], 21, step), Some(Wish::Id));
            let refused = |status| Some(Wish::Refused(status));
            assert_eq!(parsed(1, 1, &[7; 511], 1, step), refused(Status::Failed));
            assert_eq!(parsed(0, u64::MAX, &[], 513, step), refused(Status::Failed));
            assert_eq!(parsed(0, 0, &[], 1, step), refused(Status::Failed), "no data");
            assert_eq!(parsed(77, 0, &[], 1, step), refused(Status::Unsupported));
            assert_eq!(parsed(0, 0, &[], 0, step), None, "no status");
        }
    }

    #[test]
    fn discards_and_zeroes_have_one_range() {
        let range = |sector: u64, count: u32, flags: u32| {
            [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        let zeroes = |no_hole| {
            Some(Wish::Storage { op: Op::WriteZeroes, offset: 4096, length: 512, no_hole })
        };
        assert_eq!(parsed(11, 0, &range(8, 2, 0), 1, 16), storage(Op::Discard, 4096, 1024));
        assert_eq!(parsed(13, 0, &range(8, 1, 1), 1, 9), zeroes(false));
        assert_eq!(parsed(13, 0, &range(8, 1, 0), 1, 9), zeroes(true));
        let refused = |status| Some(Wish::Refused(status));
        assert_eq!(parsed(11, 0, &range(8, 2, 1), 1, 16), refused(Status::Unsupported));
        assert_eq!(parsed(13, 0, &range(8, 2, 2), 1, 16), refused(Status::Unsupported));
        assert_eq!(parsed(13, 0, &[0; 32], 1, 16), refused(Status::Unsupported));
        assert_eq!(parsed(13, 0, &[0; 15], 1, 16), refused(Status::Unsupported));
        assert_eq!(parsed(11, 0, &range(8, u32::MAX, 0), 1, 16), refused(Status::Failed));
        assert_eq!(parsed(11, 0, &range(u64::MAX, 1, 0), 1, 16), refused(Status::Failed));
    }

    #[test]
    fn the_configuration_has_its_fields_where_the_specification_has_them() {
        let shape =
            Shape { size: 10 << 20, block: 4096, preferred: 65536, queues: 4, writeback: true };
        let config = shape.config();
        let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(20)), (20480, 0, 512));
        assert_eq!((config[24], config[26], word(28)), (3, 8, 128));
        assert_eq!((config[32], config[34], config[56]), (1, 4, 1));
        assert_eq!(Shape { block: 1, ..shape }.config()[24], 0);
    }

    #[test]
    fn a_name_has_twenty_bytes() {
        let machine = Machine::new();
        machine.set(0, &[9; 24]);
        let mut back = [0; 24];
        // SAFETY: the machine's memory is mapped.
        unsafe {
            assert_eq!(write_id("db", &[part(&machine, 0, 3), part(&machine, 3, 21)]), 20);
            guest_memory::read(&[part(&machine, 0, 24)], 0, &mut back);
        }
        assert_eq!(back, *b"db\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x09\x09\x09\x09");
    }
}
