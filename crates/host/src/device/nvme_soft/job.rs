//! Commands that the controller does not take as they are: those that do not begin and end with a
//! block, those that are too long for one, and those whose memory is in stretches that it has no
//! list for.
//!
//! A job is cut into pieces, one after the other. Whole blocks that lie in one stretch go straight
//! between memory and device, and others by a bounce buffer. A read of parts of blocks fetches the
//! blocks to a bounce buffer; a write of a part reads the block, changes it and writes it back,
//! under the [`Guard`], alone in its region. A piece waits first for its bounce buffer, then for
//! the guard, so that no ticket waits for memory.

use std::collections::VecDeque;
use std::io;

use fairq_core::{Op, Tag};

use crate::device::Command;
use crate::device::file::around;
use crate::device::guard::{Access, Guard};
use crate::device::vectors::{Vectors, Way, copy};
use crate::io::memory::{Buffer, Memory, Region};

/// The most that a piece bounces.
const BOUNCE: u32 = 256 << 10;
/// Bounce memory of a queue. It is address space until it is needed.
const BOUNCE_MEMORY: usize = 4 << 20;
/// The pause before a job tries to get the guard again, in nanoseconds.
const RETRY_NS: u64 = 20_000;

/// The transfers of the device: blocks of `size` bytes, at most `most` bytes at once.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) size: u32,
    pub(super) most: u32,
}

/// A command in pieces.
pub(super) struct Job {
    command: Command,
    /// Its memory, if that has several stretches.
    vectors: Vectors,
    /// Bytes that are done.
    done: u32,
    /// Bytes of the piece that is on its way, and how it is done.
    length: u32,
    step: Step,
    bounce: Option<Buffer>,
    access: Access,
    errno: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Between pieces.
    Next,
    /// Has its bounce buffer, and waits for the guard.
    Enter(Piece),
    /// On its way.
    Issued(Piece),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Piece {
    Straight,
    /// Writes whole blocks by the bounce buffer.
    Copy,
    /// Reads the blocks around the range to the bounce buffer.
    Fetch,
    /// Reads the block around the range, to go on with `Changed`.
    Read,
    /// Writes the block back.
    Changed,
}

/// The next step of a job.
pub(super) enum NextPart {
    /// This piece.
    Issue(Command),
    /// It is in line for memory or for the guard.
    Wait,
    /// It has ended and is gone.
    End(Tag, i32),
}

/// The jobs of one queue.
pub(super) struct Jobs {
    slots: Vec<Option<Job>>,
    free: Vec<u32>,
    region: Region,
    /// Vectors that are not in use.
    spare: Vec<Vectors>,
    /// Waiting for a bounce buffer.
    starved: VecDeque<u32>,
    /// Waiting for the guard.
    blocked: VecDeque<u32>,
    retry_ns: u64,
}

impl Job {
    pub(super) fn new(command: &Command) -> Job {
        let (step, bounce, access) = (Step::Next, None, Access::NONE);
        let vectors = Vectors::default();
        Job { command: *command, vectors, done: 0, length: 0, step, bounce, access, errno: 0 }
    }

    /// A command that could go as it is but for the guard.
    pub(super) fn waiting(command: &Command, access: Access) -> Job {
        let step = Step::Enter(Piece::Straight);
        Job { length: command.length, step, access, ..Job::new(command) }
    }

    /// The kind of the next piece, and its length.
    fn cut(&self, blocks: Blocks) -> (Piece, u32) {
        let (at, rest) =
            (self.command.offset + u64::from(self.done), self.command.length - self.done);
        let misalignment = (at % u64::from(blocks.size)) as u32;
        let whole = rest / blocks.size * blocks.size;
        if misalignment == 0 && whole > 0 {
            let straight = whole.min(self.memory().length) / blocks.size * blocks.size;
            return match self.command.op {
                _ if straight > 0 => (Piece::Straight, straight.min(blocks.most)),
                // A block that lies in several stretches.
                Op::Read => (Piece::Fetch, whole.min(BOUNCE)),
                _ => (Piece::Copy, whole.min(BOUNCE)),
            };
        }
        match self.command.op {
            Op::Read => (Piece::Fetch, rest.min(BOUNCE - misalignment)),
            _ => (Piece::Read, rest.min(blocks.size - misalignment)),
        }
    }

    /// The stretch in which the next byte lies, from that byte on.
    fn memory(&self) -> Memory {
        let memory = self.command.memory;
        if self.vectors.is_empty() {
            // Zeroing has no memory, and needs none.
            let (address, length) = (memory.address.wrapping_add(self.done as usize), u32::MAX);
            return Memory { address, length, ..memory };
        }
        let (address, length) = self.vectors.run(self.done);
        Memory { address, length, fixed: None }
    }

    /// The command for the piece that is next.
    fn piece(&self, piece: Piece, block: u32) -> Command {
        let offset = self.command.offset + u64::from(self.done);
        if piece == Piece::Straight {
            let memory = Memory { length: self.length, ..self.memory() };
            return Command { offset, length: self.length, memory, ..self.command };
        }
        let op = match piece {
            Piece::Changed | Piece::Copy => Op::Write,
            Piece::Straight | Piece::Fetch | Piece::Read => Op::Read,
        };
        let (offset, length) = around(offset, self.length, block);
        let memory = self.bounce.as_ref().map_or(Memory::NONE, Buffer::memory);
        Command { op, offset, length, memory, ..self.command }
    }

    /// The bytes of the bounce buffer that the piece is about.
    fn bounced(&mut self, block: u32) -> Option<&mut [u8]> {
        let start = ((self.command.offset + u64::from(self.done)) % u64::from(block)) as usize;
        let length = self.length as usize;
        Some(&mut self.bounce.as_mut()?.bytes_mut()[start..start + length])
    }

    /// Copies the command's bytes of this piece to or from the bounce buffer.
    fn copy(&mut self, block: u32, way: Way) {
        let address = self.command.memory.address.wrapping_add(self.done as usize);
        let Some(bytes) = self.bounced(block) else { return };
        let (bytes, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the command's memory is the device's and has room for its length; the bounce
        // buffer is elsewhere.
        unsafe {
            match self.vectors.is_empty() {
                true => copy(address, bytes, length, way),
                false => self.vectors.copy(self.done, bytes, length, way),
            }
        }
    }

    /// Puts the command's bytes (zeroes, if it has none) in the bounce buffer.
    fn change(&mut self, block: u32) {
        if self.command.op != Op::WriteZeroes {
            return self.copy(block, Way::In);
        }
        if let Some(bytes) = self.bounced(block) {
            bytes.fill(0);
        }
    }
}

impl Jobs {
    pub(super) fn new() -> io::Result<Jobs> {
        Ok(Jobs {
            slots: Vec::new(),
            free: Vec::new(),
            region: Region::map(BOUNCE_MEMORY)?,
            spare: Vec::new(),
            starved: VecDeque::new(),
            blocked: VecDeque::new(),
            retry_ns: 0,
        })
    }

    pub(super) fn add(&mut self, job: Job) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize] = Some(job);
        id
    }

    /// Adds a job for a command whose data may lie in several stretches.
    pub(super) fn begin(&mut self, command: &Command, rest: &[Memory]) -> u32 {
        let mut job = Job::new(command);
        if !rest.is_empty() {
            job.vectors = self.spare.pop().unwrap_or_default();
            job.vectors.set(command.stretches(rest));
        }
        self.add(job)
    }

    /// Puts a job in line for the guard.
    pub(super) fn block(&mut self, now_ns: u64, id: u32) {
        if self.blocked.is_empty() {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
        }
        self.blocked.push_back(id);
    }

    /// Whether a job waits for an event that is not a completion.
    #[inline]
    pub(super) fn wait(&self) -> bool {
        !self.blocked.is_empty() || !self.starved.is_empty()
    }

    /// A job that waited and can go on.
    pub(super) fn next_ready(&mut self, now_ns: u64, guard: &Guard) -> Option<u32> {
        for _ in 0..self.blocked.len() {
            let id = self.blocked.pop_front()?;
            let job = self.slots[id as usize].as_mut()?;
            if guard.poll(&mut job.access) {
                return Some(id);
            }
            self.blocked.push_back(id);
        }
        self.retry_ns = now_ns.saturating_add(RETRY_NS);
        let &id = self.starved.front()?;
        let has_bounce = self.give_bounce(id);
        if has_bounce { self.starved.pop_front() } else { None }
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.wait().then_some(self.retry_ns)
    }

    /// Gives a job the bounce buffer for its piece, if there is one.
    fn give_bounce(&mut self, id: u32) -> bool {
        let Some(job) = self.slots[id as usize].as_mut() else { return false };
        // The blocks around a piece reach beyond it by less than one at each end.
        let length = job.length + 2 * crate::device::nvme::spec::LBA;
        job.bounce = self.region.allocate(length);
        job.bounce.is_some()
    }

    /// Goes on with a job.
    pub(super) fn advance(
        &mut self,
        now_ns: u64,
        guard: &Guard,
        blocks: Blocks,
        id: u32,
    ) -> NextPart {
        let Some(job) = self.slots[id as usize].as_mut() else { return NextPart::Wait };
        if job.step == Step::Next {
            if job.errno != 0 || job.done == job.command.length {
                let (tag, errno) = (job.command.tag, job.errno);
                let mut vectors = std::mem::take(&mut job.vectors);
                if !vectors.is_empty() {
                    vectors.clear();
                    self.spare.push(vectors);
                }
                self.slots[id as usize] = None;
                self.free.push(id);
                return NextPart::End(tag, errno);
            }
            let (piece, length) = job.cut(blocks);
            (job.step, job.length) = (Step::Enter(piece), length);
            let offset = job.command.offset + u64::from(job.done);
            job.access = match piece {
                Piece::Straight if job.command.op == Op::Read => Access::NONE,
                Piece::Straight | Piece::Copy => {
                    Access::shared(job.command.file, offset, length.into())
                }
                Piece::Fetch => Access::NONE,
                Piece::Read | Piece::Changed => {
                    Access::exclusive(job.command.file, offset, length.into())
                }
            };
            let wants_bounce = piece != Piece::Straight;
            // Behind those that wait already, or small pieces would keep a large one waiting.
            if wants_bounce && !(self.starved.is_empty() && self.give_bounce(id)) {
                self.starved.push_back(id);
                return NextPart::Wait;
            }
        }
        let Some(job) = self.slots[id as usize].as_mut() else { return NextPart::Wait };
        if let Step::Enter(piece) = job.step {
            if !guard.poll(&mut job.access) {
                self.block(now_ns, id);
                return NextPart::Wait;
            }
            job.step = Step::Issued(piece);
            if piece == Piece::Copy {
                job.change(blocks.size);
            }
        }
        match job.step {
            Step::Issued(piece) => NextPart::Issue(job.piece(piece, blocks.size)),
            Step::Next | Step::Enter(_) => NextPart::Wait,
        }
    }

    /// Takes in the end of a job's piece.
    pub(super) fn finished(&mut self, guard: &Guard, id: u32, errno: i32) {
        let Some(job) = self.slots[id as usize].as_mut() else { return };
        let block = crate::device::nvme::spec::LBA;
        job.errno = errno;
        match job.step {
            Step::Issued(Piece::Read) if errno == 0 => {
                job.change(block);
                job.step = Step::Issued(Piece::Changed);
                return;
            }
            Step::Issued(Piece::Fetch) if errno == 0 => job.copy(block, Way::Out),
            _ => {}
        }
        job.done += job.length;
        job.step = Step::Next;
        guard.leave(&mut job.access);
        if let Some(bounce) = job.bounce.take() {
            self.region.free(bounce);
        }
    }
}
