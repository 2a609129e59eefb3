//! The data structures of Identify and the log pages of controllers, byte by byte as they are
//! specified.

use crate::device::nvme::namespaces::Namespaces;
use crate::device::nvme::spec::{LBA_SHIFT, Status, admin, nvm};

/// Bytes of an Identify data structure.
const IDENTIFY: usize = 4096;
/// 27 degrees, in kelvin.
const TEMPERATURE: u16 = 300;
/// Entries of the error log (ELPE + 1).
pub(crate) const ERRORS: usize = 64;

/// The properties of a controller that Identify reports.
pub(crate) struct About<'a> {
    pub(crate) serial: &'a str,
    pub(crate) model: &'a str,
    pub(crate) name: &'a str,
    pub(crate) version: u32,
    /// The longest transfer, as a power of two in pages.
    pub(crate) mdts: u8,
    pub(crate) entries_max: u16,
    pub(crate) namespaces: u32,
    /// Aborts, and asynchronous event requests, that are kept at a time.
    pub(crate) aborts: u8,
    pub(crate) event_requests: u8,
    pub(crate) async_events: u32,
    pub(crate) admin_commands: u16,
    pub(crate) commands: u16,
    pub(crate) has_cache: bool,
    /// The numbers of the vendor and of the subsystem's vendor.
    pub(crate) vendor: u16,
    pub(crate) has_effects_log: bool,
}

/// Bits of [`About::commands`] (ONCS).
pub(crate) mod oncs {
    pub(crate) const COMPARE: u16 = 1;
    pub(crate) const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 3;
    pub(crate) const VERIFY: u16 = 1 << 7;
}

/// One entry of the error log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Error {
    pub(crate) count: u64,
    pub(crate) sqid: u16,
    pub(crate) cid: u16,
    pub(crate) status: Status,
    pub(crate) lba: u64,
    pub(crate) nsid: u32,
}

/// The counters of the SMART log.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counters {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) errors: u64,
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// ASCII, padded with spaces.
fn put_text(bytes: &mut [u8], at: usize, width: usize, text: &str) {
    bytes[at..at + width].fill(b' ');
    put_bytes(bytes, at, width, text.as_bytes());
}

/// The first `width` bytes of a value.
fn put_bytes(bytes: &mut [u8], at: usize, width: usize, value: &[u8]) {
    bytes[at..at + width].iter_mut().zip(value).for_each(|(place, byte)| *place = *byte);
}

/// CNS 01h.
pub(crate) fn controller(about: &About<'_>) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    put(&mut data, 0, about.vendor.to_le_bytes());
    put(&mut data, 2, about.vendor.to_le_bytes());
    put_text(&mut data, 4, 20, about.serial);
    put_text(&mut data, 24, 40, about.model);
    put_text(&mut data, 64, 8, env!("CARGO_PKG_VERSION"));
    // The burst that suits it: one command.
    data[72] = 0;
    data[77] = about.mdts;
    put(&mut data, 80, about.version.to_le_bytes());
    put(&mut data, 92, about.async_events.to_le_bytes());
    put(&mut data, 256, about.admin_commands.to_le_bytes());
    data[258] = about.aborts - 1;
    data[259] = about.event_requests - 1;
    let one_slot_read_only = 1 << 1 | 1;
    data[260] = one_slot_read_only;
    let offsets_in_logs = 1 << 2;
    data[261] = offsets_in_logs | u8::from(about.has_effects_log) << 1;
    data[262] = ERRORS as u8 - 1;
    put(&mut data, 266, (TEMPERATURE + 50).to_le_bytes());
    put(&mut data, 268, (TEMPERATURE + 60).to_le_bytes());
    // I/O controller.
    data[111] = 1;
    data[512] = 0x66;
    data[513] = 0x44;
    put(&mut data, 514, about.entries_max.to_le_bytes());
    put(&mut data, 516, about.namespaces.to_le_bytes());
    put(&mut data, 520, about.commands.to_le_bytes());
    // Flush takes all namespaces (bits 2:1 = 11).
    data[525] = 0b110 | u8::from(about.has_cache);
    let sgl_any_alignment = 1u32;
    put(&mut data, 536, sgl_any_alignment.to_le_bytes());
    put_bytes(&mut data, 768, 223, about.name.as_bytes());
    // Power state 0: 10 W, in units of 0.01 W.
    put(&mut data, 2048, 1000u16.to_le_bytes());
    data
}

/// CNS 00h, of a namespace of `size` bytes; of 0 bytes, what all have in common.
pub(crate) fn namespace(size: u64, discard_zeroes: bool) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    for at in [0, 8, 16] {
        put(&mut data, at, (size >> LBA_SHIFT).to_le_bytes());
    }
    let write_zeroes_deallocates = 1 << 3;
    data[33] = write_zeroes_deallocates | u8::from(discard_zeroes);
    data[130] = LBA_SHIFT as u8;
    data
}

/// Adds the sizes in bytes of writes and discards that suit a namespace, and write protection.
pub(crate) fn prefer(data: &mut [u8], block: u32, preferred: u32, is_protected: bool) {
    let blocks = |bytes: u32| ((bytes >> LBA_SHIFT).clamp(1, 1 << 16) - 1) as u16;
    let sizes_are_there = 1 << 4;
    data[24] |= sizes_are_there;
    // Granularity and alignment of writes, the same of deallocation, and the optimal size.
    for at in [64, 66, 68, 70] {
        put(data, at, blocks(block).to_le_bytes());
    }
    put(data, 72, blocks(preferred).to_le_bytes());
    data[99] = u8::from(is_protected);
}

/// CNS 02h: the namespaces above `above`.
pub(crate) fn active_namespaces(above: u32, namespaces: &Namespaces) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    let all = above.saturating_add(1)..=namespaces.count() as u32;
    let list = all.filter(|&nsid| namespaces.size(nsid as usize - 1).is_some()).take(IDENTIFY / 4);
    data.chunks_exact_mut(4)
        .zip(list)
        .for_each(|(entry, nsid)| entry.copy_from_slice(&nsid.to_le_bytes()));
    data
}

/// CNS 03h: one descriptor, a UUID.
pub(crate) fn descriptors(uuid: [u8; 16]) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    let (kind, length) = (3, 16);
    data[..2].copy_from_slice(&[kind, length]);
    put(&mut data, 4, uuid);
    data
}

/// The UUID of a namespace that has no other name.
pub(crate) fn numbered(nsid: u32) -> [u8; 16] {
    let mut uuid = *b"fairq\0\x40\0\x80\0\0\0\0\0\0\0";
    put(&mut uuid, 12, nsid.to_be_bytes());
    uuid
}

/// The UUID of a namespace that has a name: FNV-1a of the name, twice.
pub(crate) fn named(name: &str) -> [u8; 16] {
    let hash = |seed: u64| {
        name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    };
    let mut uuid = [0; 16];
    put(&mut uuid, 0, hash(0xcbf2_9ce4_8422_2325).to_be_bytes());
    put(&mut uuid, 8, hash(0x6c62_272e_07bb_0142).to_be_bytes());
    // Version 8, and the usual variant.
    (uuid[6], uuid[8]) = (uuid[6] & 0xf | 0x80, uuid[8] & 0x3f | 0x80);
    uuid
}

/// Log 04h: namespace 1 if it has changed.
pub(crate) fn changed_namespaces(has_changed: bool) -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    data[0] = u8::from(has_changed);
    data
}

/// Log 05h: the commands that are supported, and those that change data.
pub(crate) fn effects() -> Vec<u8> {
    let mut data = vec![0; IDENTIFY];
    let (supported, changes_data) = (1u32, 1 << 1);
    for opcode in [
        admin::DELETE_SQ,
        admin::CREATE_SQ,
        admin::GET_LOG_PAGE,
        admin::DELETE_CQ,
        admin::CREATE_CQ,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
        admin::DOORBELL_BUFFER_CONFIG,
    ] {
        put(&mut data, 4 * usize::from(opcode), supported.to_le_bytes());
    }
    for opcode in [nvm::FLUSH, nvm::READ, nvm::COMPARE, nvm::VERIFY] {
        put(&mut data, 1024 + 4 * usize::from(opcode), supported.to_le_bytes());
    }
    for opcode in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT] {
        put(&mut data, 1024 + 4 * usize::from(opcode), (supported | changes_data).to_le_bytes());
    }
    data
}

/// Log 00h: the logs that there are.
pub(crate) fn supported_logs(all: &[u8]) -> Vec<u8> {
    let mut data = vec![0; 1024];
    for &id in all {
        data[usize::from(id) * 4] = 1;
    }
    data
}

/// Log 01h: errors, the newest first.
pub(crate) fn error_log<'a>(errors: impl Iterator<Item = &'a Error>) -> Vec<u8> {
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
pub(crate) fn smart(counters: &Counters) -> Vec<u8> {
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
pub(crate) fn firmware() -> Vec<u8> {
    let mut data = vec![0; 512];
    data[0] = 1;
    put_text(&mut data, 8, 8, env!("CARGO_PKG_VERSION"));
    data
}
