//! One set of queues: a submission queue for each class and the completion queue they share, seen
//! from the driver.
//!
//! **Slots.** Each class has one slot less than its queue has entries. A command needs a slot from
//! when it is put in the queue until its completion is taken, so a queue never overflows, the
//! completion queue has a place for every slot, and what one class has outstanding takes nothing
//! from another. The slot is the command identifier, and names the window on the command's memory
//! and the place of its range if it discards.
//!
//! **Commands with several stretches** of memory have a list of SGL descriptors, of which a set has
//! a few, each with a window for every entry. Where there is none left, a job cuts the command.
//!
//! **Sharing.** A set of one shard belongs to that shard. A set that several shards share is behind
//! a mutex, which each of them takes once per batch; who takes completions leaves the others theirs
//! in a mailbox, and as the vector wakes all members, each comes for them.

use fairq_core::serial::merge::MOST_PARTS;
use fairq_core::{Class, Op, Tag};

use super::bus::Bus;
use super::layout::Layout;
use crate::device::Command;
use crate::device::guard::Held;
use crate::device::nvme::controller::Controller;
use crate::device::nvme::queue::{CqEntries, CqHead, SqEntries, SqTail};
use crate::device::nvme::spec::{CQE, LBA_SHIFT, SQE, Sqe, nvm};
use crate::io::memory::{Memory, PAGE};

/// Entries of each submission queue.
pub(super) const ENTRIES: u16 = 1024;
/// Slots of each class.
const SLOTS: usize = ENTRIES as usize - 1;
/// Classes of a set at most.
const CLASSES: usize = 4;
/// Slots of a set at most; also how many windows it has on the bus.
pub(super) const SET_SLOTS: usize = SLOTS * CLASSES;
/// Lists of stretches, and how many each has.
const LISTS: usize = 32;
const LIST_ENTRIES: usize = MOST_PARTS as usize;
const LIST_BYTES: usize = LIST_ENTRIES * SGL_BYTES;
/// An SGL descriptor: an address, and a length with a type (0 for data) above it.
const SGL_BYTES: usize = 16;
/// Windows of a set on the bus: one for each slot, and those of the lists.
pub(super) const SET_WINDOWS: usize = SET_SLOTS + LISTS * LIST_ENTRIES;
/// Of a slot whose command has no list.
const NO_LIST: u16 = u16::MAX;
/// Entries of the completion queue.
pub(super) const CQ_ENTRIES: u16 = SET_SLOTS as u16 + 1;

/// The number of completions that are taken before the head doorbell is written. Until then the
/// controller lacks room for as many slots only; if all other places are reserved, their
/// completions arrive, and taking them writes the doorbell.
const TAKEN_MAX: u16 = CQ_ENTRIES / 16;

/// Bytes of the ranges of a set's discards.
const RANGES: usize = (SET_SLOTS * nvm::RANGE as usize).next_multiple_of(PAGE);
const SQ_BYTES: usize = ENTRIES as usize * SQE;
const CQ_BYTES: usize = (CQ_ENTRIES as usize * CQE).next_multiple_of(PAGE);
/// Bytes of a set in the part of the bus that is mapped for good.
pub(super) const SET_BYTES: usize = SQ_BYTES * CLASSES + CQ_BYTES + RANGES + LISTS * LIST_BYTES;

/// Whose a command is, and what is to be done when it has ended: two words, so that it travels in
/// registers. Copied field by field and read back whole it would wait for its own stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    /// The number of the part (bits 31:0), the member (39:32) and whether it is a piece (40).
    name: u64,
    /// The part of the guard that it holds.
    pub(super) held: Held,
}

/// The part of a shard's command that a command of the controller carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// All of it.
    Whole(Tag),
    /// A piece of the job of this index.
    Piece(u32),
}

const IS_PIECE: u64 = 1 << 40;

impl Owner {
    /// Of a slot that is not in use.
    const NOBODY: Owner = Owner { name: u64::MAX, held: Held::NONE };

    /// One of the shards that share the set, for a part of its command.
    #[inline]
    pub(super) fn new(member: u8, part: Part, held: Held) -> Owner {
        let part = match part {
            Part::Whole(tag) => u64::from(tag.0),
            Part::Piece(job) => IS_PIECE | u64::from(job),
        };
        Owner { name: u64::from(member) << 32 | part, held }
    }

    /// Which of the shards that share the set.
    #[inline]
    pub(super) fn member(self) -> u8 {
        (self.name >> 32) as u8
    }

    #[inline]
    pub(super) fn part(self) -> Part {
        let number = self.name as u32;
        if self.name & IS_PIECE == 0 { Part::Whole(Tag(number)) } else { Part::Piece(number) }
    }
}

/// A command that has ended.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) owner: Owner,
    pub(super) errno: i32,
}

/// See the [module's text](self).
pub(super) struct Set {
    queues: Vec<ClassQueue>,
    cq: CqHead,
    cqid: u16,
    owners: Box<[Owner]>,
    /// The list of each slot's command, if it has one, and the lists that are free.
    list_of: Box<[u16]>,
    free_lists: Vec<u16>,
    /// Where its windows begin.
    window: usize,
    /// Where its ranges are, in the fixed part of the bus.
    ranges: usize,
    /// Submission queues with commands that have not been rung, as bits of their identifiers.
    dirty: u64,
    /// The queue of each class.
    index_of: [u8; CLASSES],
    /// Completions taken for which the head doorbell has not been written.
    taken: u16,
    /// The commands of each member that ended while another member took completions.
    pub(super) mail: Vec<Vec<Ended>>,
}

struct ClassQueue {
    sq: SqTail,
    sqid: u16,
    tail: u16,
    /// Slots not in use.
    free: Vec<u16>,
}

/// Where a set has what, in the fixed part of the bus: `base` is its first byte.
pub(super) fn sq_offset(base: usize, class: usize) -> usize {
    base + class * SQ_BYTES
}

pub(super) fn cq_offset(base: usize) -> usize {
    base + CLASSES * SQ_BYTES
}

fn ranges_offset(base: usize) -> usize {
    cq_offset(base) + CQ_BYTES
}

impl Set {
    /// The driver's end of a set whose queues are about to be created, at `base` of the fixed part
    /// of the bus, for so many members.
    pub(super) fn new(bus: &Bus, layout: Layout, set: usize, base: usize, members: usize) -> Set {
        let at = |offset: usize, length: usize| bus.memory(Bus::fixed(offset), length);
        let queue = |class: usize| {
            let memory = at(sq_offset(base, class), SQ_BYTES).cast();
            // SAFETY: the bus keeps the memory, and this set is the only driver of this queue.
            let entries = unsafe { SqEntries::new(memory, ENTRIES) };
            let free = (class * SLOTS..(class + 1) * SLOTS).rev().map(|slot| slot as u16).collect();
            ClassQueue { sq: SqTail::new(entries), sqid: layout.sqid(set, class), tail: 0, free }
        };
        let memory = at(cq_offset(base), CQ_BYTES);
        // SAFETY: as above; the queue does not exist yet, so the controller does not write here.
        unsafe { memory.as_ptr().write_bytes(0, CQ_BYTES) };
        // SAFETY: as above.
        let cq = unsafe { CqEntries::new(memory.cast(), CQ_ENTRIES) };
        Set {
            queues: (0..layout.classes().len()).map(queue).collect(),
            cq: CqHead::new(cq),
            cqid: layout.cqid(set),
            owners: vec![Owner::NOBODY; SET_SLOTS].into(),
            list_of: vec![NO_LIST; SET_SLOTS].into(),
            free_lists: (0..LISTS as u16).collect(),
            window: set * SET_WINDOWS,
            ranges: ranges_offset(base),
            dirty: 0,
            // Urgent commands go with the high ones where there is no urgent queue.
            index_of: if layout.classes().len() > 3 { [3, 0, 1, 2] } else { [0, 0, 1, 2] },
            taken: 0,
            mail: (0..members).map(|_| Vec::new()).collect(),
        }
    }

    /// Puts a command in the queue of its class; false if that has no room. The range is whole
    /// blocks.
    #[inline]
    pub(super) fn push(&mut self, bus: &Bus, command: &Command, owner: Owner) -> bool {
        let queue = &mut self.queues[usize::from(self.index_of[class_index(command.class)])];
        let Some(slot) = queue.free.pop() else { return false };
        let mut sqe = entry(command, slot);
        match command.op {
            Op::Read | Op::Write => {
                let address = bus.open(self.window + usize::from(slot), command.memory);
                sqe.point_sgl(address, command.length);
            }
            Op::Discard => {
                let address = Bus::fixed(self.ranges + usize::from(slot) * nvm::RANGE as usize);
                let range =
                    [u64::from(command.length >> LBA_SHIFT) << 32, command.offset >> LBA_SHIFT];
                let memory = bus.memory(address, nvm::RANGE as usize);
                // SAFETY: the place of this slot, which nobody else uses until its completion.
                unsafe { memory.as_ptr().cast::<[u64; 2]>().write_volatile(range) };
                sqe.point_sgl(address, nvm::RANGE);
            }
            Op::Flush | Op::WriteZeroes => {}
        }
        queue.tail = queue.sq.push(&sqe);
        self.dirty |= 1 << queue.sqid;
        self.owners[usize::from(slot)] = owner;
        true
    }

    /// The same for a read or write with several stretches; false also if there is no list for
    /// them.
    pub(super) fn push_scattered(
        &mut self,
        bus: &Bus,
        command: &Command,
        rest: &[Memory],
        owner: Owner,
    ) -> bool {
        let queue = &mut self.queues[usize::from(self.index_of[class_index(command.class)])];
        let count = 1 + rest.len();
        if count > LIST_ENTRIES || self.free_lists.is_empty() {
            return false;
        }
        let Some(slot) = queue.free.pop() else { return false };
        // There is a list, as was just seen: the slot is not lost.
        let Some(list) = self.free_lists.pop() else { return false };
        let address = Bus::fixed(self.ranges + RANGES + usize::from(list) * LIST_BYTES);
        let entries = bus.memory(address, LIST_BYTES).cast::<[u64; 2]>();
        let windows = self.window + SET_SLOTS + usize::from(list) * LIST_ENTRIES;
        for (index, memory) in command.stretches(rest).enumerate() {
            let descriptor = [bus.open(windows + index, memory), memory.length.into()];
            // SAFETY: an entry of this list, which is nobody else's until the completion.
            unsafe { entries.add(index).as_ptr().write_volatile(descriptor) };
        }
        let mut sqe = entry(command, slot);
        sqe.point_sgl_list(address, (count * SGL_BYTES) as u32);
        queue.tail = queue.sq.push(&sqe);
        self.dirty |= 1 << queue.sqid;
        self.owners[usize::from(slot)] = owner;
        self.list_of[usize::from(slot)] = list;
        true
    }

    /// Writes every doorbell that has to be rung; which queues are to be announced, as bits.
    #[inline]
    pub(super) fn set_tails(&mut self, controller: &Controller<Bus>) -> u64 {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty != 0 {
            for queue in self.queues.iter().filter(|queue| dirty >> queue.sqid & 1 != 0) {
                controller.set_tail(queue.sqid, queue.tail.into());
            }
        }
        dirty
    }

    /// Whether there is something for [`Self::reap`] to take.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.cq.has_entry()
    }

    /// Takes the next command that has ended.
    #[inline]
    pub(super) fn reap(&mut self) -> Option<Ended> {
        let cqe = self.cq.pop()?;
        self.taken += 1;
        let owner = std::mem::replace(&mut self.owners[usize::from(cqe.cid)], Owner::NOBODY);
        assert!(owner != Owner::NOBODY, "the controller completes what it was given, once");
        self.queues[usize::from(cqe.cid) / SLOTS].free.push(cqe.cid);
        let list = &mut self.list_of[usize::from(cqe.cid)];
        if *list != NO_LIST {
            self.free_lists.push(std::mem::replace(list, NO_LIST));
        }
        Some(Ended { owner, errno: cqe.status.to_errno() })
    }

    /// Tells the controller what has been taken, now and then.
    #[inline]
    pub(super) fn write_taken(&mut self, controller: &Controller<Bus>) {
        if self.taken >= TAKEN_MAX {
            self.taken = 0;
            controller.ring_cq(self.cqid, self.cq.head().into());
        }
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.iter().all(|queue| queue.free.len() == SLOTS)
    }
}

/// The entry of a command on whole blocks, without its data.
#[inline]
fn entry(command: &Command, cid: u16) -> Sqe {
    let (lba, blocks) = (command.offset >> LBA_SHIFT, command.length >> LBA_SHIFT);
    let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    let fua = flag(command.fua, nvm::FUA);
    let (opcode, cdw12) = match command.op {
        Op::Read => (nvm::READ, blocks - 1),
        Op::Write => (nvm::WRITE, (blocks - 1) | fua),
        Op::WriteZeroes => {
            let deallocate = flag(!command.no_hole, nvm::DEALLOCATE);
            (
                nvm::WRITE_ZEROES,
                (blocks - 1) | fua | deallocate | flag(command.fast_only, nvm::LIMITED_RETRY),
            )
        }
        Op::Flush => {
            return Sqe {
                opcode: nvm::FLUSH,
                cid,
                nsid: u32::from(command.file) + 1,
                ..Sqe::default()
            };
        }
        Op::Discard => {
            let (opcode, cdw11) = (nvm::DATASET_MANAGEMENT, nvm::ATTRIBUTE_DEALLOCATE);
            return Sqe { opcode, cid, nsid: u32::from(command.file) + 1, cdw11, ..Sqe::default() };
        }
    };
    Sqe {
        opcode,
        cid,
        nsid: u32::from(command.file) + 1,
        cdw10: lba as u32,
        cdw11: (lba >> 32) as u32,
        cdw12,
        ..Sqe::default()
    }
}

/// A number for each class.
#[inline]
pub(super) fn class_index(class: Class) -> usize {
    match class {
        Class::Urgent => 0,
        Class::High => 1,
        Class::Medium => 2,
        Class::Low => 3,
    }
}
