//! I/O commands: the request in an entry is checked and cut into pieces that the storage takes.

use fairq_core::Op;

use super::{Slot, Step};
use crate::device::Command;
use crate::device::nvme::data::{ENTRIES_MAX, Transfer};
use crate::device::nvme::dma::{Dma, read_pair};
use crate::device::nvme::namespaces::Namespaces;
use crate::device::nvme::spec::{LBA, LBA_SHIFT, NSID_ALL, Sqe, Status, nvm};
use crate::io::memory::Memory;

/// The most that is discarded at once: lengths of pieces are 32 bits wide.
const DISCARD: u64 = 1 << 30;

impl Slot {
    /// Takes in an entry, or says what is wrong with it.
    // Always: the entry then stays in registers.
    #[inline(always)]
    pub(super) fn decode(
        &mut self,
        sqe: &Sqe,
        namespaces: &Namespaces,
        dma: &impl Dma,
    ) -> Result<(), Status> {
        let op = match sqe.opcode {
            nvm::READ => Op::Read,
            nvm::WRITE => Op::Write,
            nvm::WRITE_ZEROES => Op::WriteZeroes,
            nvm::FLUSH => Op::Flush,
            nvm::DATASET_MANAGEMENT => Op::Discard,
            _ => return Err(Status::INVALID_OPCODE),
        };
        let is_fused = sqe.flags & 3 != 0;
        if is_fused {
            return Err(Status::INVALID_FIELD);
        }
        self.flushes = 0;
        if op == Op::Flush && sqe.nsid == NSID_ALL {
            self.flushes = namespaces.count() as u32;
        }
        let (file, size) = match self.flushes {
            0 => {
                let file = sqe.nsid.wrapping_sub(1);
                (file, namespaces.size(file as usize).ok_or(Status::INVALID_NAMESPACE)?)
            }
            _ => (0, 0),
        };
        self.transfer = Transfer::NONE;
        self.command = Command {
            op,
            file: file as u16,
            offset: 0,
            length: 0,
            span: 0,
            fua: sqe.cdw12 & nvm::FUA != 0 && matches!(op, Op::Write | Op::WriteZeroes),
            no_hole: sqe.cdw12 & nvm::DEALLOCATE == 0,
            fast_only: sqe.cdw12 & nvm::LIMITED_RETRY != 0 && op == Op::WriteZeroes,
            memory: Memory::NONE,
            ..self.command
        };
        match op {
            Op::Flush => self.flushes = self.flushes.max(1),
            Op::Discard => self.decode_ranges(sqe, size, dma)?,
            Op::Read | Op::Write | Op::WriteZeroes => {
                let lba = u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32;
                let blocks = u64::from(sqe.cdw12 & 0xffff) + 1;
                (self.command.offset, _) = range(lba, blocks, size)?;
                self.command.length = (blocks as u32) << LBA_SHIFT;
                if op != Op::WriteZeroes {
                    self.transfer = Transfer::new(sqe, self.command.length, ENTRIES_MAX)?;
                }
            }
        }
        Ok(())
    }

    /// The ranges of a Dataset Management command, all checked before the first is discarded.
    #[cold]
    fn decode_ranges(&mut self, sqe: &Sqe, size: u64, dma: &impl Dma) -> Result<(), Status> {
        self.ranges.clear();
        let mut transfer = Transfer::new(sqe, ((sqe.cdw10 & 0xff) + 1) * nvm::RANGE, ENTRIES_MAX)?;
        if sqe.cdw11 & nvm::ATTRIBUTE_DEALLOCATE == 0 {
            // The rest is advice that nobody here could use.
            return Ok(());
        }
        while let Some(piece) = transfer.next_address(dma) {
            let (address, length) = piece?;
            // A range that is not in one piece of memory would be a strange one.
            if !length.is_multiple_of(nvm::RANGE) {
                return Err(Status::INVALID_FIELD);
            }
            for index in 0..u64::from(length / nvm::RANGE) {
                let words = read_pair(dma, address.wrapping_add(index * u64::from(nvm::RANGE)));
                let [first, lba] = words.ok_or(Status::DATA_TRANSFER)?;
                self.ranges.push(range(lba, first >> 32, size)?);
            }
        }
        self.ranges.reverse();
        Ok(())
    }

    /// The next step, when all earlier ones are done.
    // Always: the command in the answer is then never put together in memory.
    #[inline(always)]
    pub(super) fn step(&mut self, namespaces: &Namespaces, dma: &impl Dma) -> Step {
        let command = &mut self.command;
        match command.op {
            Op::Read | Op::Write if self.transfer.is_at_end() => Step::End(Status::SUCCESS),
            Op::Read | Op::Write => match self.transfer.next(dma) {
                None => Step::End(Status::SUCCESS),
                Some(Err(status)) => Step::End(status),
                Some(Ok(memory)) => {
                    let piece = Command { length: memory.length, memory, ..*command };
                    command.offset += u64::from(memory.length);
                    Step::Piece(piece)
                }
            },
            Op::WriteZeroes if command.length == 0 => Step::End(Status::SUCCESS),
            Op::WriteZeroes => {
                let piece = *command;
                command.length = 0;
                Step::Piece(piece)
            }
            Op::Flush => loop {
                let Some(rest) = self.flushes.checked_sub(1) else {
                    break Step::End(Status::SUCCESS);
                };
                let piece = *command;
                self.flushes = rest;
                command.file = command.file.wrapping_add(1);
                if namespaces.size(piece.file.into()).is_some() {
                    break Step::Piece(piece);
                }
            },
            Op::Discard => match self.ranges.last_mut() {
                None => Step::End(Status::SUCCESS),
                Some((offset, length)) => {
                    let piece = Command {
                        offset: *offset,
                        length: (*length).min(DISCARD) as u32,
                        ..*command
                    };
                    (*offset, *length) =
                        (*offset + u64::from(piece.length), *length - u64::from(piece.length));
                    if *length == 0 {
                        self.ranges.pop();
                    }
                    Step::Piece(piece)
                }
            },
        }
    }
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
