//! One shard's queue on the device: commands in, completions out, and the controller polled on the
//! way.
//!
//! A command on whole blocks is one command of the controller's. Others, those longer than 32 MiB,
//! and those whose stretches of memory are no whole blocks or too many, are jobs, which
//! [`super::job`] cuts into pieces. A command for which its class has no slot waits here, in the
//! order of its class, and never goes by way of another.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fairq_core::{Op, PortSet};

use super::Shared;
use super::job::{Blocks, Job, Jobs, NextPart};
use super::lane::Lane;
use super::set::{Ended, Owner, Part, Set, class_index};
use crate::device::file::inside;
use crate::device::guard::{Access, Held as Guarded};
use crate::device::nvme::controller::AWAKE_NS;
use crate::device::nvme::spec::{BLOCKS_MAX, LBA};
use crate::device::{Command, Completion, Queue};
use crate::io::memory::Memory;
use crate::io::ring::{Event, Ring};

/// The most bytes of one read, write or zeroing.
pub(super) const BYTES_MAX: u32 = BLOCKS_MAX * LBA;
const CLASSES: usize = 4;

/// The set of queues of a shard: its own, or shared with its neighbours.
pub(super) enum Hold {
    Own(Box<Set>),
    Shared(Arc<Mutex<Set>>),
}

/// A set that may be used now.
pub(super) enum Held<'a> {
    Own(&'a mut Set),
    Shared(MutexGuard<'a, Set>),
}

impl Hold {
    #[inline]
    pub(super) fn get(&mut self) -> Held<'_> {
        match self {
            Hold::Own(set) => Held::Own(set),
            // A shard that panics ends the process.
            Hold::Shared(set) => Held::Shared(set.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

impl std::ops::Deref for Held<'_> {
    type Target = Set;
    #[inline]
    fn deref(&self) -> &Set {
        match self {
            Held::Own(set) => set,
            Held::Shared(set) => set,
        }
    }
}

impl std::ops::DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Set {
        match self {
            Held::Own(set) => set,
            Held::Shared(set) => set,
        }
    }
}

/// One shard's queue on a [`super::NvmeSoft`].
pub struct NvmeQueue {
    shared: Arc<Shared>,
    /// Taken only when the queue is closed.
    hold: Option<Hold>,
    set: usize,
    member: u8,
    /// The storage when this shard polls; `None` if the controller has a core of its own.
    lane: Option<Lane>,
    jobs: Jobs,
    /// Commands for which their class has no slot.
    overflow: [VecDeque<(Command, Owner)>; CLASSES],
    /// Commands of this shard that are in the set.
    in_flight: usize,
    done: Vec<Completion>,
    ended: Vec<Ended>,
}

impl NvmeQueue {
    pub(super) fn open(
        shared: Arc<Shared>,
        hold: Hold,
        (set, member): (usize, usize),
        lane: Option<Lane>,
    ) -> io::Result<NvmeQueue> {
        Ok(NvmeQueue {
            shared,
            hold: Some(hold),
            set,
            member: member as u8,
            lane,
            jobs: Jobs::new()?,
            overflow: Default::default(),
            in_flight: 0,
            done: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Puts a command in its class's queue, or behind those that wait for it.
    #[inline]
    fn push(&mut self, command: &Command, owner: Owner) {
        let Some(hold) = &mut self.hold else { return };
        let waiting = &mut self.overflow[class_index(command.class)];
        if !waiting.is_empty() {
            return waiting.push_back((*command, owner));
        }
        if hold.get().push(self.shared.controller.dma(), command, owner) {
            self.in_flight += 1;
        } else {
            waiting.push_back((*command, owner));
        }
    }

    /// Puts what waits in the queues, as far as there are slots.
    fn refill(&mut self) {
        let Some(hold) = &mut self.hold else { return };
        let mut set = hold.get();
        for waiting in &mut self.overflow {
            while let Some((command, owner)) = waiting.pop_front() {
                if !set.push(self.shared.controller.dma(), &command, owner) {
                    waiting.push_front((command, owner));
                    break;
                }
                self.in_flight += 1;
            }
        }
    }

    /// Announces the queues in `rung`, and polls if this shard does and there is something to do,
    /// or the lane wants it.
    #[inline]
    fn announce_and_poll(
        &mut self,
        rung: u64,
        lane_wants: bool,
        now_ns: u64,
        ring: &mut Ring,
        wake: &mut PortSet,
    ) {
        let controller = &self.shared.controller;
        match &mut self.lane {
            Some(lane) if rung != 0 || lane_wants || controller.wants_poll(now_ns) => {
                lane.poll(controller, rung, now_ns, ring, wake);
            }
            None if rung != 0 => controller.announce(rung),
            _ => {}
        }
    }

    /// Goes on with a job as far as possible.
    fn advance(&mut self, now_ns: u64, id: u32) {
        let (guard, blocks) = (&self.shared.guard, Blocks { size: LBA, most: BYTES_MAX });
        match self.jobs.advance(now_ns, guard, blocks, id) {
            NextPart::Issue(piece) => {
                let owner = Owner::new(self.member, Part::Piece(id), Guarded::NONE);
                self.push(&piece, owner);
            }
            NextPart::Wait => {}
            NextPart::End(tag, errno) => self.done.push(Completion { tag, errno }),
        }
    }

    /// Takes in a command that has ended.
    fn end(&mut self, now_ns: u64, ended: Ended) {
        let Ended { owner, errno } = ended;
        self.in_flight -= 1;
        match owner.part() {
            Part::Whole(tag) => {
                self.shared.guard.leave_shared(owner.held);
                self.done.push(Completion { tag, errno });
            }
            Part::Piece(id) => {
                self.jobs.finished(&self.shared.guard, id, errno);
                self.advance(now_ns, id);
            }
        }
    }

    fn begin_job(&mut self, now_ns: u64, command: &Command, rest: &[Memory]) {
        let id = self.jobs.begin(command, rest);
        self.advance(now_ns, id);
    }

    /// Takes a read or write whose data lie in several stretches.
    fn issue_scattered(&mut self, now_ns: u64, command: &Command, rest: &[Memory]) {
        if !self.push_scattered(command, rest) {
            self.begin_job(now_ns, command, rest);
        }
    }

    /// The same as one command of the controller's; false if it cannot be one, or not now.
    fn push_scattered(&mut self, command: &Command, rest: &[Memory]) -> bool {
        let block = u64::from(LBA);
        // It must not pass those of its class that wait for a slot.
        let is_one = command.length <= BYTES_MAX
            && command.offset.is_multiple_of(block)
            && command.stretches(rest).all(|memory| memory.length.is_multiple_of(LBA))
            && self.overflow[class_index(command.class)].is_empty();
        let Some(hold) = self.hold.as_mut().filter(|_| is_one) else { return false };
        let mut held = Guarded::NONE;
        if command.op == Op::Write {
            match self.shared.guard.try_shared(command.file, command.offset, command.length.into())
            {
                Some(entered) => held = entered,
                // Somebody changes a part of a block there.
                None => return false,
            }
        }
        let owner = Owner::new(self.member, Part::Whole(command.tag), held);
        let is_pushed =
            hold.get().push_scattered(self.shared.controller.dma(), command, rest, owner);
        if is_pushed {
            self.in_flight += 1;
        } else {
            self.shared.guard.leave_shared(held);
        }
        is_pushed
    }
}

impl Queue for NvmeQueue {
    #[inline]
    unsafe fn issue(&mut self, now_ns: u64, _: &mut Ring, command: &Command, rest: &[Memory]) {
        let end = command.offset.checked_add(u64::from(command.length));
        let size = self.shared.namespaces.size(usize::from(command.file));
        let is_inside =
            size.zip(end).is_some_and(|(size, end)| end <= size || command.op == Op::Flush);
        if !is_inside {
            return self.done.push(Completion { tag: command.tag, errno: libc::EINVAL });
        }
        debug_assert!(command.fits(rest));
        if !rest.is_empty() {
            return self.issue_scattered(now_ns, command, rest);
        }
        let blocks;
        let command = if command.op == Op::Discard {
            let (offset, length) = inside(command.offset, command.length, LBA);
            blocks = Command { offset, length, ..*command };
            &blocks
        } else {
            command
        };
        if command.length == 0 && command.op != Op::Flush {
            return self.done.push(Completion { tag: command.tag, errno: 0 });
        }
        let is_aligned = (command.offset | u64::from(command.length)).is_multiple_of(LBA.into());
        let is_whole = match command.op {
            Op::Flush | Op::Discard => true,
            _ => is_aligned && command.length <= BYTES_MAX,
        };
        let mut held = Guarded::NONE;
        if is_whole && !matches!(command.op, Op::Flush | Op::Read) {
            let mut access = Access::shared(command.file, command.offset, command.length.into());
            if !self.shared.guard.poll(&mut access) {
                // Somebody changes a part of a block there: wait for it, and use what has been
                // drawn.
                let id = self.jobs.add(Job::waiting(command, access));
                return self.jobs.block(now_ns, id);
            }
            held = access.into_held();
        }
        if !is_whole {
            return self.begin_job(now_ns, command, &[]);
        }
        self.push(command, Owner::new(self.member, Part::Whole(command.tag), held));
    }

    #[inline]
    fn ring(&mut self, now_ns: u64, ring: &mut Ring, wake: &mut PortSet) {
        if self.jobs.wait() {
            while let Some(id) = self.jobs.next_ready(now_ns, &self.shared.guard) {
                self.advance(now_ns, id);
            }
        }
        if self.overflow.iter().any(|waiting| !waiting.is_empty()) {
            self.refill();
        }
        let Some(hold) = &mut self.hold else { return };
        let rung = hold.get().set_tails(&self.shared.controller);
        self.announce_and_poll(rung, false, now_ns, ring, wake);
    }

    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        if let Some(lane) = &mut self.lane {
            lane.event(now_ns, ring, event);
        }
    }

    #[inline]
    fn reap(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        done: &mut Vec<Completion>,
        wake: &mut PortSet,
    ) {
        let lane_wants = self.lane.as_mut().is_some_and(|lane| lane.wants_poll(now_ns, ring));
        self.announce_and_poll(0, lane_wants, now_ns, ring, wake);
        let Some(hold) = &mut self.hold else { return };
        let (mut ended, member) = (std::mem::take(&mut self.ended), self.member);
        let mut set = hold.get();
        if let Some(mail) = set.mail.get_mut(usize::from(member)) {
            ended.append(mail);
        }
        while let Some(one) = set.reap() {
            match one.owner.part() {
                _ if one.owner.member() != member => {
                    set.mail[usize::from(one.owner.member())].push(one)
                }
                Part::Whole(tag) => {
                    self.in_flight -= 1;
                    self.shared.guard.leave_shared(one.owner.held);
                    done.push(Completion { tag, errno: one.errno });
                }
                Part::Piece(_) => ended.push(one),
            }
        }
        set.write_taken(&self.shared.controller);
        drop(set);
        ended.drain(..).for_each(|one| self.end(now_ns, one));
        self.ended = ended;
        done.append(&mut self.done);
    }

    fn deadline_ns(&self) -> Option<u64> {
        const NOW: Option<u64> = Some(0);
        let has_ended = match &self.hold {
            Some(Hold::Own(set)) => set.has_ended(),
            Some(Hold::Shared(set)) => {
                let set = set.lock().unwrap_or_else(PoisonError::into_inner);
                set.has_ended()
                    || set.mail.get(usize::from(self.member)).is_some_and(|mail| !mail.is_empty())
            }
            None => false,
        };
        if has_ended || !self.done.is_empty() {
            return NOW;
        }
        // With a core of its own the controller wakes us.
        let lane_ns = self.lane.as_ref().and_then(|lane| {
            let event_ns = self.shared.controller.next_ns().filter(|_| self.in_flight > 0);
            let event_ns = event_ns.map(|event_ns| event_ns.saturating_sub(AWAKE_NS));
            [event_ns, lane.deadline_ns()].into_iter().flatten().min()
        });
        [lane_ns, self.jobs.deadline_ns()].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.lane.as_ref().is_none_or(Lane::is_idle)
    }
}

impl Drop for NvmeQueue {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.shared.close(self.set, hold);
        }
    }
}
