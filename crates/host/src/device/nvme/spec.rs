//! The words of the specification: layouts, opcodes, status codes, register fields (NVMe Base 2.1,
//! NVM Command Set 1.1).
//!
//! Only what this controller or this driver uses. Everything in memory is little-endian, as are the
//! machines that this runs on.

#[cfg(not(target_endian = "little"))]
compile_error!("queue entries are laid out for little-endian machines");

/// Bytes of a memory page (CC.MPS = 0).
pub const PAGE: u64 = 4096;
/// Bytes of a logical block, as a power of two.
pub const LBA_SHIFT: u32 = 9;
/// Bytes of a logical block.
pub const LBA: u32 = 1 << LBA_SHIFT;
/// Blocks of one read, write or zeroing: the field is 16 bits wide and one less.
pub const BLOCKS_MAX: u32 = 1 << 16;
/// Bytes of a submission queue entry.
pub const SQE: usize = 64;
/// Bytes of a completion queue entry.
pub const CQE: usize = 16;
/// All namespaces.
pub const NSID_ALL: u32 = u32::MAX;

/// A submission queue entry. [`Sqe::default`] is all zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Sqe {
    /// The operation: one of [`admin`] or [`nvm`].
    pub opcode: u8,
    /// Fused operation (bits 1:0) and PSDT (bits 7:6).
    pub flags: u8,
    /// The command identifier.
    pub cid: u16,
    /// The namespace identifier.
    pub nsid: u32,
    /// Command dwords 2 and 3.
    pub cdw2: [u32; 2],
    /// The metadata pointer.
    pub metadata: u64,
    /// The data pointer: PRP entries 1 and 2, or an SGL descriptor.
    pub data: [u64; 2],
    /// Command dword 10.
    pub cdw10: u32,
    /// Command dword 11.
    pub cdw11: u32,
    /// Command dword 12.
    pub cdw12: u32,
    /// Command dword 13.
    pub cdw13: u32,
    /// Command dwords 14 and 15.
    pub cdw14: [u32; 2],
}

impl Sqe {
    /// From the words of the entry in memory.
    #[inline]
    pub fn from_words(words: [u64; 8]) -> Sqe {
        let [w0, w1, metadata, data1, data2, w5, w6, w7] = words;
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        Sqe {
            opcode: w0 as u8,
            flags: (w0 >> 8) as u8,
            cid: (w0 >> 16) as u16,
            nsid: high(w0),
            cdw2: [low(w1), high(w1)],
            metadata,
            data: [data1, data2],
            cdw10: low(w5),
            cdw11: high(w5),
            cdw12: low(w6),
            cdw13: high(w6),
            cdw14: [low(w7), high(w7)],
        }
    }

    /// The words of the entry in memory.
    #[inline]
    pub fn to_words(self) -> [u64; 8] {
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let head = u32::from(self.opcode) | u32::from(self.flags) << 8 | u32::from(self.cid) << 16;
        [
            join(head, self.nsid),
            join(self.cdw2[0], self.cdw2[1]),
            self.metadata,
            self.data[0],
            self.data[1],
            join(self.cdw10, self.cdw11),
            join(self.cdw12, self.cdw13),
            join(self.cdw14[0], self.cdw14[1]),
        ]
    }

    /// Points to one contiguous range with an SGL data block descriptor.
    pub fn point_sgl(&mut self, address: u64, length: u32) {
        self.flags = self.flags & 0x3f | 1 << 6;
        self.data = [address, u64::from(length)];
    }

    /// Says where its data is: in the places that a list of `length` bytes of SGL descriptors
    /// names.
    #[inline]
    pub fn point_sgl_list(&mut self, address: u64, length: u32) {
        const LAST_SEGMENT: u64 = 0x30 << 56;
        self.flags = self.flags & 0x3f | 1 << 6;
        self.data = [address, LAST_SEGMENT | u64::from(length)];
    }
}

/// A completion queue entry without its phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// Dword 0: what the command answers.
    pub result: u32,
    /// The controller's head in the submission queue.
    pub sq_head: u16,
    /// The submission queue.
    pub sqid: u16,
    /// The command.
    pub cid: u16,
    /// The status of the command.
    pub status: Status,
}

impl Cqe {
    /// Both words in memory, with the phase tag.
    #[inline]
    pub fn to_words(self, phase: bool) -> [u64; 2] {
        let status = u64::from(self.status.0) << 1 | u64::from(phase);
        let place =
            u64::from(self.sq_head) | u64::from(self.sqid) << 16 | u64::from(self.cid) << 32;
        [u64::from(self.result), place | status << 48]
    }

    /// From both words in memory.
    #[inline]
    pub fn from_words([first, second]: [u64; 2]) -> Cqe {
        Cqe {
            result: first as u32,
            sq_head: second as u16,
            sqid: (second >> 16) as u16,
            cid: (second >> 32) as u16,
            status: Status((second >> 49) as u16),
        }
    }

    /// The phase tag in the second word.
    #[inline]
    pub fn phase(second: u64) -> bool {
        second >> 48 & 1 != 0
    }
}

/// The status field: status code (bits 7:0), its type (10:8) and Do Not Retry (14).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

const DO_NOT_RETRY: u16 = 1 << 14;

impl Status {
    const fn generic(code: u16) -> Status {
        Status(code | DO_NOT_RETRY)
    }
    const fn command(code: u16) -> Status {
        Status(1 << 8 | code | DO_NOT_RETRY)
    }

    /// Successful completion.
    pub const SUCCESS: Status = Status(0);
    /// The opcode is not one of this controller's.
    pub const INVALID_OPCODE: Status = Status::generic(0x01);
    /// A field has a value that is reserved or not supported.
    pub const INVALID_FIELD: Status = Status::generic(0x02);
    /// The data could not be moved: the address is not one that the controller can reach.
    pub const DATA_TRANSFER: Status = Status::generic(0x04);
    /// Something inside the controller.
    pub const INTERNAL: Status = Status(0x06);
    /// The namespace does not exist.
    pub const INVALID_NAMESPACE: Status = Status::generic(0x0b);
    /// Not at this time.
    pub const COMMAND_SEQUENCE: Status = Status::generic(0x0c);
    /// An SGL segment that is no multiple of a descriptor, or not the last where it must be.
    pub const INVALID_SGL_SEGMENT: Status = Status::generic(0x0d);
    /// More descriptors than the controller follows.
    pub const INVALID_SGL_COUNT: Status = Status::generic(0x0e);
    /// The SGL describes fewer bytes than the command moves.
    pub const DATA_SGL_LENGTH: Status = Status::generic(0x0f);
    /// An SGL descriptor of a type that is not supported.
    pub const SGL_TYPE: Status = Status::generic(0x11);
    /// A PRP entry with an offset that it may not have.
    pub const PRP_OFFSET: Status = Status::generic(0x13);
    /// Its submission queue was deleted.
    pub const SQ_DELETED: Status = Status::generic(0x08);
    /// The namespace is write protected.
    pub const WRITE_PROTECTED: Status = Status::generic(0x20);
    /// An Abort ended it.
    pub const ABORT_REQUESTED: Status = Status::generic(0x07);
    /// Blocks beyond the namespace's end.
    pub const LBA_OUT_OF_RANGE: Status = Status::generic(0x80);
    /// No space for what was to be written.
    pub const CAPACITY_EXCEEDED: Status = Status::generic(0x81);
    /// The submission queue names a completion queue that does not exist.
    pub const CQ_INVALID: Status = Status::command(0x00);
    /// The queue identifier is 0, too large, in use, or of no queue.
    pub const INVALID_QUEUE_ID: Status = Status::command(0x01);
    /// A queue of fewer than 2 or more than CAP.MQES entries.
    pub const INVALID_QUEUE_SIZE: Status = Status::command(0x02);
    /// More Aborts at a time than the controller keeps.
    pub const ABORT_LIMIT: Status = Status::command(0x03);
    /// More asynchronous event requests than the controller keeps.
    pub const AER_LIMIT: Status = Status::command(0x05);
    /// An interrupt vector that does not exist.
    pub const INVALID_VECTOR: Status = Status::command(0x08);
    /// A log page that does not exist.
    pub const INVALID_LOG_PAGE: Status = Status::command(0x09);
    /// A completion queue is deleted before its submission queues.
    pub const INVALID_QUEUE_DELETION: Status = Status::command(0x0c);
    /// Features are not saved.
    pub const NOT_SAVEABLE: Status = Status::command(0x0d);
    /// The value of a feature cannot be changed.
    pub const NOT_CHANGEABLE: Status = Status::command(0x0e);
    /// The data differ.
    pub const COMPARE_FAILURE: Status = Status(2 << 8 | 0x85 | DO_NOT_RETRY);
    /// Writing failed.
    pub const WRITE_FAULT: Status = Status(2 << 8 | 0x80);
    /// Reading failed.
    pub const UNRECOVERED_READ: Status = Status(2 << 8 | 0x81);

    const VENDOR: u16 = 7 << 8;

    /// Whether it is success.
    #[inline]
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// For the errno of a backing store. An errno without a status of its own has a vendor-specific
    /// one.
    pub fn of_errno(errno: i32, is_read: bool) -> Status {
        match errno {
            0 => Status::SUCCESS,
            libc::EIO if is_read => Status::UNRECOVERED_READ,
            libc::EIO => Status::WRITE_FAULT,
            libc::ENOSPC => Status::CAPACITY_EXCEEDED,
            1..=255 => Status(Status::VENDOR | errno as u16),
            _ => Status::INTERNAL,
        }
    }

    /// The errno that a user of the device gets.
    #[inline]
    pub fn to_errno(self) -> i32 {
        if self.is_success() { 0 } else { self.to_error() }
    }

    #[cold]
    fn to_error(self) -> i32 {
        let plain = Status(self.0 & 0x7ff);
        let is = |status: Status| status.0 & 0x7ff == plain.0;
        match plain {
            _ if plain.0 & Status::VENDOR == Status::VENDOR => i32::from(plain.0 & 0xff),
            _ if is(Status::CAPACITY_EXCEEDED) => libc::ENOSPC,
            _ if is(Status::LBA_OUT_OF_RANGE) || is(Status::INVALID_NAMESPACE) => libc::EINVAL,
            _ => libc::EIO,
        }
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "status type {:x}h code {:02x}h", self.0 >> 8 & 7, self.0 & 0xff)
    }
}

/// Admin opcodes.
pub mod admin {
    #![allow(missing_docs)]
    pub const DELETE_SQ: u8 = 0x00;
    pub const CREATE_SQ: u8 = 0x01;
    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const DELETE_CQ: u8 = 0x04;
    pub const CREATE_CQ: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
}

/// I/O opcodes of the NVM command set.
pub mod nvm {
    #![allow(missing_docs)]
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    pub const VERIFY: u8 = 0x0c;
    /// CDW12: the data is on stable storage before the completion.
    pub const FUA: u32 = 1 << 30;
    /// CDW12: no more effort than usual; for zeroing, fail rather than write.
    pub const LIMITED_RETRY: u32 = 1 << 31;
    /// CDW12 of Write Zeroes: the range may be deallocated.
    pub const DEALLOCATE: u32 = 1 << 25;
    /// CDW12: protection information, of which this has none.
    pub const PRINFO: u32 = 0xf << 26;
    /// CDW11 of Dataset Management: deallocate.
    pub const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;
    /// Bytes of one range of Dataset Management.
    pub const RANGE: u32 = 16;
}

/// Feature identifiers.
pub mod feature {
    #![allow(missing_docs)]
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    pub const ASYNC_EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
    pub const HOST_BEHAVIOR: u8 = 0x16;
}

/// Log page identifiers.
pub mod log {
    #![allow(missing_docs)]
    pub const SUPPORTED: u8 = 0x00;
    pub const ERROR: u8 = 0x01;
    pub const SMART: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const EFFECTS: u8 = 0x05;
}

/// Controller registers: offsets in bytes.
pub mod register {
    #![allow(missing_docs)]
    pub const CAP: u32 = 0x00;
    pub const VS: u32 = 0x08;
    pub const INTMS: u32 = 0x0c;
    pub const INTMC: u32 = 0x10;
    pub const CC: u32 = 0x14;
    pub const CSTS: u32 = 0x1c;
    pub const AQA: u32 = 0x24;
    pub const ASQ: u32 = 0x28;
    pub const ACQ: u32 = 0x30;
    pub const DOORBELLS: u32 = 0x1000;
}

/// CAP: weighted round robin with urgent priority class is supported (AMS, bit 17).
pub const CAP_WRR: u64 = 1 << 17;
/// CC: enable.
pub const CC_ENABLE: u32 = 1;
/// CC.AMS = 001: weighted round robin with urgent priority class.
pub const CC_WRR: u32 = 1 << 11;
/// CC.IOSQES = 6 and CC.IOCQES = 4: entries of 64 and of 16 bytes.
pub const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// CSTS: ready.
pub const CSTS_READY: u32 = 1;
/// CSTS: controller fatal status.
pub const CSTS_FATAL: u32 = 2;
/// CSTS.SHST = 10: shutdown complete.
pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_laid_out_as_specified() {
        let sqe = Sqe {
            opcode: 0x02,
            flags: 0x40,
            cid: 0x1234,
            nsid: 1,
            data: [0x1000, 0x2000],
            cdw10: 10,
            cdw11: 11,
            cdw12: 12,
            cdw13: 13,
            cdw14: [14, 15],
            ..Sqe::default()
        };
        let words = sqe.to_words();
        assert_eq!(
            words,
            [0x1_1234_4002, 0, 0, 0x1000, 0x2000, 11 << 32 | 10, 13 << 32 | 12, 15 << 32 | 14]
        );
        assert_eq!(Sqe::from_words(words), sqe);
        assert_eq!((size_of::<Sqe>(), size_of_val(&words)), (SQE, SQE));
        let cqe =
            Cqe { result: 7, sq_head: 3, sqid: 2, cid: 0x1234, status: Status::INVALID_FIELD };
        let words = cqe.to_words(true);
        assert_eq!(words, [7, 0x8005_1234_0002_0003]);
        assert!(Cqe::phase(words[1]) && !Cqe::phase(cqe.to_words(false)[1]));
        assert_eq!(Cqe::from_words(words), cqe);
    }

    #[test]
    fn errnos_survive() {
        for errno in
            [0, libc::EIO, libc::ENOSPC, libc::EOPNOTSUPP, libc::EFBIG, libc::EINVAL, libc::EROFS]
        {
            for is_read in [false, true] {
                assert_eq!(Status::of_errno(errno, is_read).to_errno(), errno);
            }
        }
        assert_eq!(Status::LBA_OUT_OF_RANGE.to_errno(), libc::EINVAL);
        assert_eq!(Status::INVALID_OPCODE.to_errno(), libc::EIO);
        assert_eq!(Status::of_errno(512, true).to_errno(), libc::EIO);
    }
}
