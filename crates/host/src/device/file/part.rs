//! Splits a command into parts: computes the next step on a file that needs whole blocks.
//!
//! This is a pure function of the command, its finished bytes, and the file.

use fairq_core::Op;

use crate::device::Command;
use crate::device::file::BOUNCE;
use crate::device::file::open::Backing;
use crate::device::vectors::Vectors;

/// The number of zero bytes that are written at a time where zeroing is not supported.
pub(super) const ZEROES: u32 = 64 << 10;

/// The next step of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// The command has ended with this errno (or 0).
    End(i32),
    /// `step` is to be carried out for the next `length` bytes of the command.
    Part {
        /// The way to carry out the part.
        step: Step,
        /// Bytes of the command; 0 for [`Step::Sync`].
        length: u32,
    },
}

/// A way to carry out a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Reads or writes whole blocks (any bytes, through the page cache) from or to the command's
    /// memory.
    Straight,
    /// Reads the blocks around the range to the bounce buffer.
    Fetch,
    /// Writes whole blocks through the bounce buffer, because the command's memory is not aligned.
    Copy,
    /// Reads the block around the range to the bounce buffer; `ChangedBlock` follows.
    ReadBlock,
    /// Writes the bounce buffer back.
    ChangedBlock,
    /// Makes a hole.
    Punch,
    /// Zeroes the range and keeps it allocated.
    ZeroRange,
    /// Writes zeroes.
    WriteZeroes,
    /// Makes the command's data durable.
    Sync,
}

impl Step {
    /// Whether the step has to enter the guard: all steps that change the file.
    pub(super) fn is_guarded(self, op: Op) -> bool {
        match self {
            Step::Fetch | Step::Sync => false,
            Step::Straight => op == Op::Write,
            _ => true,
        }
    }
}

/// The blocks around a range: offset and length.
pub(in crate::device) fn around(offset: u64, length: u32, block: u32) -> (u64, u32) {
    let block = u64::from(block);
    let start = offset / block * block;
    (start, ((offset + u64::from(length)).next_multiple_of(block) - start) as u32)
}

/// The blocks inside a range: offset and length, 0 if there are none.
pub(in crate::device) fn inside(offset: u64, length: u32, block: u32) -> (u64, u32) {
    let block = u64::from(block);
    let start = offset.next_multiple_of(block);
    let end = (offset + u64::from(length)) / block * block;
    (start, end.saturating_sub(start) as u32)
}

/// The next step of a command of which `done` bytes are finished. `vectors` is the command's memory
/// if it has several stretches; `is_synced` is true if [`Step::Sync`] is finished.
pub(super) fn next(
    backing: &Backing,
    command: &Command,
    vectors: &Vectors,
    done: u32,
    is_synced: bool,
) -> Next {
    let at = command.offset + u64::from(done);
    let rest = command.length - done;
    if rest == 0 || command.op == Op::Flush {
        let wants_sync = command.op == Op::Flush || command.op == Op::WriteZeroes && command.fua;
        return if wants_sync && !is_synced {
            Next::Part { step: Step::Sync, length: 0 }
        } else {
            Next::End(0)
        };
    }
    if command.op == Op::Discard {
        // The discard was shrunk to whole blocks on arrival.
        return if backing.punch.is_refused() {
            Next::End(0)
        } else {
            Next::Part { step: Step::Punch, length: rest }
        };
    }
    let block = if command.op == Op::WriteZeroes { backing.zero_block } else { backing.block };
    let misalignment = (at % u64::from(block)) as u32;
    let (_, whole) = inside(at, rest, block);
    if command.op == Op::Read {
        if misalignment == 0
            && whole > 0
            && is_memory_aligned(backing, command, vectors, done, whole)
        {
            return Next::Part { step: Step::Straight, length: whole };
        }
        return Next::Part { step: Step::Fetch, length: rest.min(BOUNCE - misalignment) };
    }
    // A fast zeroing that cannot be fast is refused before any part of it is written.
    if done == 0
        && whole > 0
        && command.op == Op::WriteZeroes
        && command.fast_only
        && let Next::End(refused) = zero(backing, command, whole)
    {
        return Next::End(refused);
    }
    if misalignment > 0 || whole == 0 {
        // Through the page cache, only zeroing by the device needs whole blocks, so partial blocks
        // are simply written.
        let step = if backing.block > 1 { Step::ReadBlock } else { Step::WriteZeroes };
        return Next::Part { step, length: rest.min(block - misalignment) };
    }
    if command.op == Op::WriteZeroes {
        return zero(backing, command, whole);
    }
    if is_memory_aligned(backing, command, vectors, done, whole) {
        Next::Part { step: Step::Straight, length: whole }
    } else {
        Next::Part { step: Step::Copy, length: whole.min(BOUNCE) }
    }
}

fn is_memory_aligned(
    backing: &Backing,
    command: &Command,
    vectors: &Vectors,
    done: u32,
    length: u32,
) -> bool {
    if !vectors.is_empty() {
        return vectors.are_aligned(done, length, backing.memory_align, backing.block);
    }
    (command.memory.address as usize)
        .wrapping_add(done as usize)
        .is_multiple_of(backing.memory_align as usize)
}

/// The best way to zero whole blocks.
fn zero(backing: &Backing, command: &Command, length: u32) -> Next {
    // If a block device cannot zero, the kernel writes zeroes, which `fast_only` forbids.
    let can_be_slow = command.fast_only && backing.is_block_device;
    if !command.no_hole && !backing.punch.is_refused() {
        Next::Part { step: Step::Punch, length }
    } else if !can_be_slow && !backing.zero_range.is_refused() {
        Next::Part { step: Step::ZeroRange, length }
    } else if command.fast_only {
        Next::End(libc::EOPNOTSUPP)
    } else {
        Next::Part { step: Step::WriteZeroes, length: length.min(ZEROES) }
    }
}
