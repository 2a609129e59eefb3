//! A command in flight in a queue: its current part, as an operation of the ring or as a call that
//! may block, and the evaluation of the result.

use std::os::fd::RawFd;

use fairq_core::Op;
use io_uring::{opcode, squeue, types};

use crate::device::Command;
use crate::device::file::at_once;
use crate::device::file::call::{Call, Pieces};
use crate::device::file::open::Backing;
use crate::device::file::part::{Step, ZEROES, around};
use crate::device::guard::Access;
use crate::device::vectors::{Vectors, Way, copy};
use crate::io::memory::{Buffer, Memory};

/// The largest number of consecutive writes that complete no whole block; one more fails the
/// command.
const STALLS_MAX: u8 = 3;

#[repr(align(4096))]
struct Zeroes([u8; ZEROES as usize]);
static ZERO_BYTES: Zeroes = Zeroes([0; ZEROES as usize]);

/// A command in flight.
pub(super) struct Operation {
    pub(super) command: Command,
    /// Bytes of the command that are finished.
    pub(super) done: u32,
    pub(super) step: Step,
    /// Bytes of the command that the step covers.
    pub(super) length: u32,
    /// Bytes that the step's read or write has transferred.
    pub(super) moved: u32,
    pub(super) stalls: u8,
    pub(super) is_synced: bool,
    pub(super) bounce: Option<Buffer>,
    pub(super) access: Access,
    /// The command's memory, if it has several stretches.
    pub(super) vectors: Vectors,
    /// Whether a thread of the store makes its call, because the call may block.
    pub(super) may_wait: bool,
}

/// The way in which the ring refers to a file.
pub(super) enum File {
    Registered(u32),
    Plain(RawFd),
}

/// Builds an entry for a registered file or a descriptor.
macro_rules! build {
    ($file:expr, $fd:ident => $entry:expr) => {
        match $file {
            File::Registered(index) => {
                let $fd = types::Fixed(index);
                $entry
            }
            File::Plain(fd) => {
                let $fd = types::Fd(fd);
                $entry
            }
        }
    };
}

/// The next action after a result.
pub(super) enum Verdict {
    /// The part is finished.
    Part,
    /// The part is to be carried out in another way.
    Otherwise,
    /// The rest of the part is to be submitted to the kernel.
    More,
    /// A thread that may block is to carry out the part.
    Wait,
    /// The part is to be retried after a pause.
    Again,
    /// The command has failed.
    Failed(i32),
}

impl Operation {
    /// Start of the part in the file, in bytes.
    pub(super) fn offset(&self) -> u64 {
        self.command.offset + u64::from(self.done)
    }

    /// The transfer of the part's read or write: file offset, length, and memory.
    pub(super) fn transfer(&self, block: u32) -> (u64, u32, Memory) {
        let bounce = || self.bounce.as_ref().map_or(Memory::NONE, Buffer::memory);
        match self.step {
            Step::Fetch | Step::ReadBlock | Step::ChangedBlock => {
                let (offset, length) = around(self.offset(), self.length, block);
                (offset, length, bounce())
            }
            Step::Copy => (self.offset(), self.length, bounce()),
            Step::WriteZeroes => {
                let address = ZERO_BYTES.0.as_ptr().cast_mut();
                (self.offset(), self.length, Memory { address, length: ZEROES, fixed: None })
            }
            _ => {
                let memory = self.command.memory;
                let address = memory.address.wrapping_add(self.done as usize);
                (self.offset(), self.length, Memory { address, ..memory })
            }
        }
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.step, Step::Fetch | Step::ReadBlock)
            || self.step == Step::Straight && self.command.op == Op::Read
    }

    /// Whether a thread that may block has to make the call: because the call has no non-blocking
    /// form, or because the file does not support `RWF_NOWAIT`.
    pub(super) fn may_wait(&self, backing: &Backing) -> bool {
        let is_transfer = !matches!(self.step, Step::Sync | Step::Punch | Step::ZeroRange);
        !is_transfer || self.is_cached(backing) || backing.no_wait.is_refused()
    }

    /// Selects the memory of the rest of the part, if the command has several stretches.
    #[inline]
    pub(super) fn select(&mut self) {
        if self.is_scattered() {
            self.vectors.select(self.done + self.moved, self.length - self.moved);
        }
    }

    fn is_scattered(&self) -> bool {
        !self.vectors.is_empty() && self.step == Step::Straight
    }

    /// The memory of the rest of the part, if the command has several stretches.
    pub(super) fn selected(&self) -> Option<&[libc::iovec]> {
        self.is_scattered().then(|| self.vectors.selected())
    }

    /// The call for the rest of the part.
    pub(super) fn call(&self, backing: &Backing) -> Call {
        match self.step {
            Step::Sync => {
                let Command { op, offset, length, span, .. } = self.command;
                let length = if op == Op::Flush { span } else { length.into() };
                Call::Sync { offset, length }
            }
            Step::Punch | Step::ZeroRange => {
                let kind = if self.step == Step::Punch {
                    libc::FALLOC_FL_PUNCH_HOLE
                } else {
                    libc::FALLOC_FL_ZERO_RANGE
                };
                let mode = kind | libc::FALLOC_FL_KEEP_SIZE;
                Call::Allocate { mode, offset: self.offset(), length: u64::from(self.length) }
            }
            _ => {
                let (offset, length, address) = self.left_in(backing.block);
                let one = libc::iovec { iov_base: address.cast(), iov_len: length as usize };
                let pieces = match self.selected() {
                    Some(list) => Pieces::Many(list.as_ptr(), list.len()),
                    None => Pieces::One(one),
                };
                if self.is_read() {
                    Call::Read { pieces, offset }
                } else {
                    Call::Write { pieces, offset, is_durable: self.is_durable() }
                }
            }
        }
    }

    /// Whether its data must be on stable storage when the write ends.
    pub(super) fn is_durable(&self) -> bool {
        self.command.fua && self.command.op == Op::Write
    }

    /// The io_uring operation for the rest of the part: a read or write that does not block.
    pub(super) fn entry(&self, backing: &Backing, file: File) -> squeue::Entry {
        let durable = if self.is_durable() { libc::RWF_DSYNC } else { 0 };
        let (no_wait, flags) = (libc::RWF_NOWAIT, libc::RWF_NOWAIT | durable);
        if let Some(list) = self.selected() {
            let (offset, _, _) = self.left();
            let (vectors, count) = (list.as_ptr(), list.len() as u32);
            return match self.is_read() {
                true => build!(file, fd =>
                    opcode::Readv::new(fd, vectors, count).offset(offset).rw_flags(no_wait).build()),
                false => build!(file, fd =>
                    opcode::Writev::new(fd, vectors, count).offset(offset).rw_flags(flags).build()),
            };
        }
        let (offset, length, address) = self.left_in(backing.block);
        let (_, _, memory) = self.transfer(backing.block);
        match (self.is_read(), memory.fixed.map(|index| index as u16)) {
            (true, Some(index)) => build!(file, fd =>
                opcode::ReadFixed::new(fd, address, length, index).offset(offset).rw_flags(no_wait).build()),
            (true, None) => build!(file, fd =>
                opcode::Read::new(fd, address, length).offset(offset).rw_flags(no_wait).build()),
            (false, Some(index)) => build!(file, fd =>
                opcode::WriteFixed::new(fd, address, length, index).offset(offset).rw_flags(flags).build()),
            (false, None) => build!(file, fd =>
                opcode::Write::new(fd, address, length).offset(offset).rw_flags(flags).build()),
        }
    }

    /// The rest of a part that is a plain read or write: file offset, length, and address.
    pub(super) fn left(&self) -> (u64, u32, *mut u8) {
        self.left_in(1)
    }

    /// The rest of a read or write of whole blocks: file offset, length, and address.
    pub(super) fn left_in(&self, block: u32) -> (u64, u32, *mut u8) {
        let (offset, length, memory) = self.transfer(block);
        (
            offset + u64::from(self.moved),
            length - self.moved,
            memory.address.wrapping_add(self.moved as usize),
        )
    }

    /// Whether it is a read or write through the page cache.
    pub(super) fn is_cached(&self, backing: &Backing) -> bool {
        backing.block == 1
            && backing.memory_align == 1
            && matches!(self.step, Step::Straight | Step::WriteZeroes)
    }

    /// Whether it is a write that ends in the page cache. A durable write waits for the disk, so it
    /// is not batched with other writes.
    pub(super) fn is_cached_write(&self, backing: &Backing) -> bool {
        !self.is_read() && !self.command.fua && self.is_cached(backing)
    }

    /// Reads synchronously, and returns the result; `None` if it is not a cached read, or would
    /// block.
    pub(super) fn read_at_once(&self, backing: &Backing) -> Option<i32> {
        if !self.is_read() || !self.is_cached(backing) {
            return None;
        }
        let (offset, length, address) = self.left();
        let one = [libc::iovec { iov_base: address.cast(), iov_len: length as usize }];
        let pieces = self.selected().unwrap_or(&one);
        // SAFETY: the pieces are the command's memory, which belongs to the device, and no kernel
        // operation uses it now.
        unsafe { at_once::read(&backing.file, pieces, offset, backing.is_in_memory) }
    }

    /// Evaluates the result of the system call.
    pub(super) fn finished(&mut self, backing: &Backing, result: i32) -> Verdict {
        match -result {
            libc::EAGAIN if !self.may_wait => return Verdict::Wait,
            libc::EAGAIN | libc::EINTR => return Verdict::Again,
            // The file does not support `RWF_NOWAIT`.
            libc::EOPNOTSUPP if !self.may_wait => {
                backing.no_wait.note_refused();
                return Verdict::Wait;
            }
            libc::EOPNOTSUPP if self.step == Step::Punch => {
                backing.punch.note_refused();
                return Verdict::Otherwise;
            }
            libc::EOPNOTSUPP if self.step == Step::ZeroRange => {
                backing.zero_range.note_refused();
                return Verdict::Otherwise;
            }
            errno if errno > 0 => return Verdict::Failed(errno),
            _ => {}
        }
        match self.step {
            Step::Sync => {
                self.is_synced = true;
                Verdict::Part
            }
            Step::Punch => {
                backing.punch.note_done();
                Verdict::Part
            }
            Step::ZeroRange => {
                backing.zero_range.note_done();
                Verdict::Part
            }
            _ if self.is_read() => self.has_read(backing, result as u32),
            _ => self.has_written(backing, result as u32),
        }
    }

    pub(super) fn has_read(&mut self, backing: &Backing, count: u32) -> Verdict {
        let (offset, length, _) = self.transfer(backing.block);
        self.moved += count.min(length - self.moved);
        if self.moved < length {
            // Direct reads end inside a block only at the end of the file.
            if count > 0 && count.is_multiple_of(backing.block) {
                return Verdict::More;
            }
            backing.note_end(offset + u64::from(self.moved));
            return Verdict::Failed(libc::EIO);
        }
        match self.step {
            Step::Fetch => {
                self.drain_bounce((self.offset() % u64::from(backing.block)) as usize);
                Verdict::Part
            }
            Step::ReadBlock => {
                self.fill_bounce((self.offset() % u64::from(backing.block)) as usize);
                (self.step, self.moved, self.stalls) = (Step::ChangedBlock, 0, 0);
                Verdict::More
            }
            _ => Verdict::Part,
        }
    }

    pub(super) fn has_written(&mut self, backing: &Backing, count: u32) -> Verdict {
        let (_, length, _) = self.transfer(backing.block);
        // Only whole blocks are counted, so that the rest is aligned. It is harmless to write part
        // of a block again.
        let count = count.min(length - self.moved) / backing.block * backing.block;
        self.moved += count;
        if self.moved == length {
            return Verdict::Part;
        }
        // The next attempt reports the error that stopped this one, most likely a lack of space.
        self.stalls = if count == 0 { self.stalls + 1 } else { 0 };
        if self.stalls > STALLS_MAX { Verdict::Failed(libc::EIO) } else { Verdict::More }
    }

    /// Copies the command's bytes of this part (zeroes, if it has none) to the bounce buffer.
    pub(super) fn fill_bounce(&mut self, at: usize) {
        let Some(bounce) = &mut self.bounce else { return };
        let bytes = &mut bounce.bytes_mut()[at..at + self.length as usize];
        if self.command.op == Op::WriteZeroes {
            bytes.fill(0);
            return;
        }
        let (bytes, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is a part of the bounce buffer, which does not overlap the command's
        // memory.
        unsafe { self.copy(bytes, length, Way::In) };
    }

    /// Copies the fetched bytes to the command's memory.
    pub(super) fn drain_bounce(&mut self, at: usize) {
        let Some(bounce) = &mut self.bounce else { return };
        let bytes = &mut bounce.bytes_mut()[at..at + self.length as usize];
        let (bytes, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: `bytes` is a part of the bounce buffer, which does not overlap the command's
        // memory.
        unsafe { self.copy(bytes, length, Way::Out) };
    }

    /// Copies the command's bytes of this part.
    ///
    /// # Safety
    /// `bytes` has `length` bytes, which are not the command's memory.
    unsafe fn copy(&self, bytes: *mut u8, length: usize, way: Way) {
        let address = self.command.memory.address.wrapping_add(self.done as usize);
        // SAFETY: the command's memory belongs to the device and has at least its length; the
        // caller vouches for `bytes`.
        unsafe {
            match self.vectors.is_empty() {
                true => copy(address, bytes, length, way),
                false => self.vectors.copy(self.done, bytes, length, way),
            }
        }
    }
}
