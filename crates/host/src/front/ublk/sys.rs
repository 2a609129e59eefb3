//! The part of Linux's ublk interface (`include/uapi/linux/ublk_cmd.h`) that fairq uses: constants
//! and structures, with the sizes that the kernel checks.
//!
//! The crate `libublk-rs-sys` has all of them, but generates them with bindgen at build time, so
//! every build of fairq would need libclang.

#![allow(missing_docs, reason = "the names are the kernel's, and its header explains them")]

/// The file of control commands.
pub const CONTROL: &str = "/dev/ublk-control";

/// The number of a command: the direction and size of its argument, the letter `u`, and its own
/// number, as `_IOR` and `_IOWR` combine them.
const fn number(direction: u32, own: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | own
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const CONTROL_SIZE: usize = size_of::<ControlCommand>();
const IO_SIZE: usize = size_of::<IoCommand>();

/// Control commands.
pub const GET_DEV_INFO: u32 = number(READ, 0x02, CONTROL_SIZE);
pub const ADD_DEV: u32 = number(READ_WRITE, 0x04, CONTROL_SIZE);
pub const DEL_DEV: u32 = number(READ_WRITE, 0x05, CONTROL_SIZE);
pub const START_DEV: u32 = number(READ_WRITE, 0x06, CONTROL_SIZE);
pub const STOP_DEV: u32 = number(READ_WRITE, 0x07, CONTROL_SIZE);
pub const SET_PARAMS: u32 = number(READ_WRITE, 0x08, CONTROL_SIZE);
pub const START_USER_RECOVERY: u32 = number(READ_WRITE, 0x10, CONTROL_SIZE);
pub const END_USER_RECOVERY: u32 = number(READ_WRITE, 0x11, CONTROL_SIZE);
pub const GET_FEATURES: u32 = number(READ, 0x13, CONTROL_SIZE);
pub const UPDATE_SIZE: u32 = number(READ_WRITE, 0x15, CONTROL_SIZE);

/// I/O commands.
pub const FETCH_REQ: u32 = number(READ_WRITE, 0x20, IO_SIZE);
pub const COMMIT_AND_FETCH_REQ: u32 = number(READ_WRITE, 0x21, IO_SIZE);

/// Features of a device, `flags` of [`DeviceInfo`].
pub const F_USER_RECOVERY: u64 = 1 << 3;
pub const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
pub const F_USER_COPY: u64 = 1 << 7;
pub const F_UPDATE_SIZE: u64 = 1 << 10;

/// States of a device.
pub const S_DEAD: u16 = 0;
pub const S_LIVE: u16 = 1;
pub const S_QUIESCED: u16 = 2;

/// Attributes of a device, `attrs` of [`BasicParams`].
pub const ATTR_READ_ONLY: u32 = 1 << 0;
pub const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
pub const ATTR_FUA: u32 = 1 << 3;

/// Groups of parameters, `types` of [`Params`].
pub const PARAM_BASIC: u32 = 1 << 0;
pub const PARAM_DISCARD: u32 = 1 << 1;

/// Operations, the low eight bits of `op_flags` of [`IoDescriptor`].
pub const OP_READ: u32 = 0;
pub const OP_WRITE: u32 = 1;
pub const OP_FLUSH: u32 = 2;
pub const OP_DISCARD: u32 = 3;
pub const OP_WRITE_ZEROES: u32 = 5;
/// Flags of an operation in the same word.
pub const IO_FUA: u32 = 1 << 13;
pub const IO_NOUNMAP: u32 = 1 << 15;

/// The largest number of requests of a queue; every queue has space for this many descriptors.
pub const MAX_QUEUE_DEPTH: usize = 4096;

/// The offset of a request's data in the character device.
pub const fn data_offset(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + ((queue as u64) << 41 | (tag as u64) << 25)
}

/// The argument of a control command.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ControlCommand {
    pub dev_id: u32,
    /// `u16::MAX` for commands that concern no queue.
    pub queue_id: u16,
    /// The length of the buffer at `addr`, in bytes.
    pub len: u16,
    pub addr: u64,
    pub data: u64,
    pub dev_path_len: u16,
    pub pad: u16,
    pub reserved: u32,
}

/// A device as the kernel describes it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct DeviceInfo {
    pub nr_hw_queues: u16,
    pub queue_depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub max_io_buf_bytes: u32,
    pub dev_id: u32,
    pub ublksrv_pid: i32,
    pub pad1: u32,
    pub flags: u64,
    /// A number that the server chooses and the kernel keeps.
    pub ublksrv_flags: u64,
    pub owner_uid: u32,
    pub owner_gid: u32,
    pub reserved1: u64,
    pub reserved2: u64,
}

/// The parameters of a device.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Params {
    pub len: u32,
    pub types: u32,
    pub basic: BasicParams,
    pub discard: DiscardParams,
    // The kernel's structure has further fields; `len` shows that they are omitted.
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct BasicParams {
    pub attrs: u32,
    pub logical_bs_shift: u8,
    pub physical_bs_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub max_sectors: u32,
    pub chunk_sectors: u32,
    pub dev_sectors: u64,
    pub virt_boundary_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct DiscardParams {
    pub discard_alignment: u32,
    pub discard_granularity: u32,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_discard_segments: u16,
    pub reserved0: u16,
}

/// A request of the kernel, in memory that it shares with the server.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IoDescriptor {
    pub op_flags: u32,
    pub nr_sectors: u32,
    pub start_sector: u64,
    pub addr: u64,
}

/// The argument of an I/O command.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IoCommand {
    pub q_id: u16,
    pub tag: u16,
    /// The number of bytes done, or a negative errno.
    pub result: i32,
    pub addr: u64,
}

impl IoCommand {
    /// The bytes of a submission queue entry.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.q_id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.addr.to_ne_bytes());
        bytes
    }
}

impl ControlCommand {
    /// The bytes of a long submission queue entry.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.dev_id.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue_id.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.dev_path_len.to_ne_bytes());
        bytes
    }
}

// The sizes that the kernel expects.
const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<BasicParams>() == 32);
const _: () = assert!(size_of::<DiscardParams>() == 20);
const _: () = assert!(size_of::<IoDescriptor>() == 24);
const _: () = assert!(size_of::<IoCommand>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers in hexadecimal, as strace shows them.
    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(UPDATE_SIZE, 0xc020_7515);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
        assert_eq!(data_offset(1, 2), 0x8000_0000 + (1 << 41) + (2 << 25));
    }
}
