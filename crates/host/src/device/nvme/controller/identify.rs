//! The Identify data structures and log pages of the controller, byte by byte as they are
//! specified.

use super::{ABORTS, ENTRIES_MAX, ERRORS, EVENT_REQUESTS, Options, VERSION};
use crate::device::nvme::namespaces::Namespaces;
use crate::device::nvme::spec::{LBA_SHIFT, Status, log};

/// Bytes of an Identify data structure.
const IDENTIFY: usize = 4096;
/// MDTS: 2^13 pages, 32 MiB, which is the most that a read or write can name anyway.
const MDTS: u8 = 13;
/// 27 degrees, in kelvin.
const TEMPERATURE: u16 = 300;

/// One entry of the error log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Error {
    pub(super) count: u64,
    pub(super) sqid: u16,
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) lba: u64,
    pub(super) nsid: u32,
}

/// The counters of the SMART log.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counters {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) errors: u64,
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// ASCII, padded with spaces.
fn put_text(bytes: &mut [u8], at: usize, width: usize, text: &str) {
    bytes[at..at + width].fill(b' ');
    bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
}

/// CNS 01h.
pub(super) fn controller(options: &Options) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    put_text(&mut data, 4, 20, "FAIRQ0001");
    put_text(&mut data, 24, 40, "fairq software NVMe controller");
    put_text(&mut data, 64, 8, env!("CARGO_PKG_VERSION"));
    // The burst that suits it: one command.
    data[72] = 0;
    data[77] = MDTS;
    put(&mut data, 80, VERSION.to_le_bytes());
    let abort_limit = ABORTS as u8 - 1;
    data[258] = abort_limit;
    data[259] = EVENT_REQUESTS as u8 - 1;
    let one_slot_read_only = 1 << 1 | 1;
    data[260] = one_slot_read_only;
    let offsets_in_logs = 1 << 2;
    data[261] = offsets_in_logs;
    data[262] = ERRORS as u8 - 1;
    put(&mut data, 266, (TEMPERATURE + 50).to_le_bytes());
    put(&mut data, 268, (TEMPERATURE + 60).to_le_bytes());
    // I/O controller.
    data[111] = 1;
    data[512] = 0x66;
    data[513] = 0x44;
    put(&mut data, 514, ENTRIES_MAX.to_le_bytes());
    put(&mut data, 516, (options.namespaces.count() as u32).to_le_bytes());
    let (write_zeroes, dataset_management) = (1u16 << 3, 1 << 2);
    put(&mut data, 520, (write_zeroes | dataset_management).to_le_bytes());
    // Flush takes all namespaces (bits 2:1 = 11).
    data[525] = 0b110 | u8::from(options.volatile_cache);
    let sgl_any_alignment = 1u32;
    put(&mut data, 536, sgl_any_alignment.to_le_bytes());
    let name = b"nqn.2026-01.org.fairq:soft";
    data[768..768 + name.len()].copy_from_slice(name);
    // Power state 0: 10 W, in units of 0.01 W.
    put(&mut data, 2048, 1000u16.to_le_bytes());
    data
}

/// CNS 00h, of a namespace of `size` bytes; of 0 bytes, what all have in common.
pub(super) fn namespace(options: &Options, size: u64) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    for at in [0, 8, 16] {
        put(&mut data, at, (size >> LBA_SHIFT).to_le_bytes());
    }
    let write_zeroes_deallocates = 1 << 3;
    data[33] = write_zeroes_deallocates | u8::from(options.discard_zeroes);
    data[130] = LBA_SHIFT as u8;
    data
}

/// CNS 02h: the namespaces above `above`.
pub(super) fn active_namespaces(above: u32, namespaces: &Namespaces) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    let all = above.saturating_add(1)..=namespaces.count() as u32;
    let list = all.filter(|&nsid| namespaces.size(nsid as usize - 1).is_some()).take(IDENTIFY / 4);
    data.chunks_exact_mut(4)
        .zip(list)
        .for_each(|(entry, nsid)| entry.copy_from_slice(&nsid.to_le_bytes()));
    data
}

/// CNS 03h: one descriptor, a UUID.
pub(super) fn descriptors(nsid: u32) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    let (uuid, length) = (3, 16);
    data[..2].copy_from_slice(&[uuid, length]);
    data[4..20].copy_from_slice(b"fairq\0\x40\0\x80\0\0\0\0\0\0\0");
    put(&mut data, 16, nsid.to_be_bytes());
    data
}

/// Log 00h: which logs there are.
pub(super) fn supported_logs() -> Vec<u8> {
    let mut data = vec![0; 1024];
    for id in [log::SUPPORTED, log::ERROR, log::SMART, log::FIRMWARE] {
        data[usize::from(id) * 4] = 1;
    }
    data
}

/// Log 01h: errors, the newest first.
pub(super) fn error_log<'a>(errors: impl Iterator<Item = &'a Error>) -> Vec<u8> {
    let mut data = vec![0; 64 * ERRORS];
    for (entry, error) in data.chunks_exact_mut(64).zip(errors) {
        put(entry, 0, error.count.to_le_bytes());
        put(entry, 8, error.sqid.to_le_bytes());
        put(entry, 10, error.cid.to_le_bytes());
        put(entry, 12, (error.status.0 << 1).to_le_bytes());
        let unknown_location = u16::MAX;
        put(entry, 14, unknown_location.to_le_bytes());
        put(entry, 16, error.lba.to_le_bytes());
        put(entry, 24, error.nsid.to_le_bytes());
    }
    data
}

/// Log 02h.
pub(super) fn smart(counters: &Counters) -> Vec<u8> {
    let mut data = vec![0; 512];
    put(&mut data, 1, TEMPERATURE.to_le_bytes());
    // Available spare and its threshold, in percent.
    (data[3], data[4]) = (100, 10);
    // Thousands of 512 bytes, rounded up.
    let units = |bytes: u64| (bytes.div_ceil(512_000)).to_le_bytes();
    put(&mut data, 32, units(counters.bytes_read));
    put(&mut data, 48, units(counters.bytes_written));
    put(&mut data, 64, counters.reads.to_le_bytes());
    put(&mut data, 80, counters.writes.to_le_bytes());
    put(&mut data, 112, 1u64.to_le_bytes());
    put(&mut data, 176, counters.errors.to_le_bytes());
    data
}

/// Log 03h: one slot.
pub(super) fn firmware() -> Vec<u8> {
    let mut data = vec![0; 512];
    data[0] = 1;
    put_text(&mut data, 8, 8, env!("CARGO_PKG_VERSION"));
    data
}
