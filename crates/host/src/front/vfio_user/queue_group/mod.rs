//! The I/O queues of one controller on one shard: its commands, from submission entries to orders
//! and back to completion entries.
//!
//! **Queues** are addresses: each access resolves the address in the present generation of the
//! guest's memory, so a guest may unmap the memory of a queue and map it again. An entry is copied
//! once, and the copy is checked. A command is fetched only when its completion queue has a place
//! for its completion, which is then kept for it; the arbiter chooses among those commands.
//!
//! **Doorbells** are words that the session stores, or words in the guest's memory (shadow
//! doorbells). An *awake* group reads them in each turn. Before it sleeps it notes that, and reads
//! them once more; the next doorbell then kicks it. If the client has mapped the doorbells, nothing
//! may kick the group: it *naps*, that is, the shard reads them again after a time.
//!
//! **States.** An *open* group takes commands. A *draining* one takes none and answers those that
//! it has; a *detached* one, whose tenant was removed, fails those that are not submitted, too. A
//! *dead* one answers nothing: its client has gone, or its guest has broken the rules. It stays
//! until the device has returned the guest's memory.
//!
//! **Bounds.** A group has [`QUEUE_TAGS`] orders, and as many commands, for each of its submission
//! queues, and at most as many commands as its window. A command has at most 1 MiB of data, in at
//! most 513 stretches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fairq_core::{FlowId, Op, Port};
use fairq_device::arbiter::class_of_qprio;
use fairq_device::{Arbiter, Arbitration, Mechanism, QueueIndex};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::device::nvme::queue::{CqTail, SqHead};
use crate::device::nvme::spec::{Cqe, LBA_SHIFT, SQE, Sqe, Status};
use crate::front::attach::{QUEUE_TAGS, QueuePlace};
use crate::front::guest_memory::{Guest, Outside};
use crate::front::vfio_user::bridge::{Bridge, QUEUES};
use crate::front::vfio_user::decode::{self, Decoded, Kind};
use crate::io::memory::Memory;
use crate::io::ring::Ring;
use crate::shard::fence::{Client, Reach};
use crate::shard::path::{DataPath, Finished};
use crate::shard::request::{Cursor, Request as Orders};
use crate::shard::volume::Volume;

use buffered::Buffer;
pub(super) use guest_ring::{Fault, GuestRing, Which};

mod buffered;
mod doorbells;
mod endings;
mod guest_ring;

/// A completion queue to serve.
pub struct NewCq {
    pub(super) id: u16,
    pub(super) ring: CqTail<GuestRing>,
}

/// A submission queue to serve.
pub struct NewSq {
    pub(super) id: u16,
    pub(super) ring: SqHead<GuestRing>,
    /// The queue priority.
    pub(super) qprio: u32,
    /// The commands that the last program has begun; their completions are promised.
    pub(super) begun: Vec<Sqe>,
    pub(super) place: QueuePlace,
}

/// The group that a session starts on a shard.
pub struct NewGroup {
    pub(super) session: u32,
    pub(super) shard: usize,
    pub(super) bridge: Arc<Bridge>,
    pub(super) volume: Volume,
    pub(super) guest: Arc<Guest>,
    pub(super) shadow: Option<[u64; 2]>,
    pub(super) mechanism: Mechanism,
    /// The most commands that it has fetched and not completed.
    pub(super) window: usize,
    pub(super) arbitration: Arbitration,
}

struct Sq {
    ring: SqHead<GuestRing>,
    qprio: u32,
    /// The session that deletes it waits for this to be dropped.
    deleting: Option<Sender<()>>,
    _place: QueuePlace,
}

struct Cq {
    ring: CqTail<GuestRing>,
    /// The line of its interrupts.
    line: Option<usize>,
    has_posted: bool,
}

/// The queues between two programs.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct LeftQueues {
    pub(super) cqs: Vec<LeftCq>,
    pub(super) sqs: Vec<LeftSq>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftCq {
    pub(super) id: u16,
    pub(super) ring: CqTail<GuestRing>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftSq {
    pub(super) id: u16,
    pub(super) ring: SqHead<GuestRing>,
    pub(super) qprio: u32,
    /// The entries that were fetched and are not completed.
    pub(super) begun: Vec<[u64; SQE / 8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Draining,
    Detached,
    Dead,
}

/// A command under way.
struct Command {
    is_busy: bool,
    /// It has a place in `to_submit`.
    is_queued: bool,
    sqid: u16,
    /// Its entry.
    sqe: Sqe,
    kind: Kind,
    /// Its status, if its orders succeed.
    status: Status,
    /// The number of the generation of its memory.
    generation: u32,
    orders: Orders,
    cursor: Cursor,
    data: Vec<Memory>,
    /// Ranges to discard after the present one, the last first.
    ranges: Vec<(u64, u64)>,
    op: Op,
    fua: bool,
    offset: u64,
    length: u64,
    /// Bytes that were compared or verified.
    done: u64,
    reach: Option<Reach>,
    /// Whether it changes data.
    is_change: bool,
}

impl Command {
    fn idle() -> Command {
        Command {
            is_busy: false,
            is_queued: false,
            sqid: 0,
            sqe: Sqe::default(),
            kind: Kind::Plain,
            status: Status::SUCCESS,
            generation: 0,
            orders: Orders::void(),
            cursor: Cursor::default(),
            data: Vec::new(),
            ranges: Vec::new(),
            op: Op::Flush,
            fua: false,
            offset: 0,
            length: 0,
            done: 0,
            reach: None,
            is_change: false,
        }
    }

    /// Whether its data go through the group's buffer.
    fn is_buffered(&self) -> bool {
        matches!(self.kind, Kind::Compare | Kind::Verify)
    }
}

/// A generation of the guest's memory that commands still use.
struct Old {
    number: u32,
    commands: u32,
    _guest: Arc<Guest>,
    /// The session that waits for the end of these commands.
    _moved: Option<Sender<()>>,
}

/// The queues of a controller on a shard.
pub struct QueueGroup {
    index: u16,
    pub(super) session: u32,
    shard: usize,
    bridge: Arc<Bridge>,
    volume: Volume,
    client: Client,
    guest: Arc<Guest>,
    /// The number of `guest`, and its commands.
    generation: u32,
    of_generation: u32,
    old: Vec<Old>,
    /// The guest's addresses of shadow doorbells and of event indexes.
    shadow: Option<[u64; 2]>,
    sqs: Box<[Option<Sq>]>,
    cqs: Box<[Option<Cq>]>,
    /// The identifiers of its submission queues.
    active: Vec<u16>,
    arbiter: Arbiter,
    window: usize,
    commands: Vec<Command>,
    free: Vec<u16>,
    orders: u32,
    /// Commands that the last program has begun, with their queues.
    again: VecDeque<(u16, Sqe)>,
    /// Commands with orders to submit.
    to_submit: VecDeque<u16>,
    buffer: Option<Buffer>,
    /// Number of seconds for which the first command in `to_submit` has waited for requests of a
    /// client that has ended.
    is_behind: bool,
    behind_s: u32,
    ranges: Vec<(u64, u64)>,
    parts: Vec<Memory>,
    state: State,
    has_turn: bool,
    is_cut_short: bool,
    is_awake: bool,
    /// It has slept, and no command has come.
    is_napping: bool,
    is_crowded: bool,
    pub(super) is_changed: bool,
    has_posted: bool,
    closing: Vec<Sender<()>>,
    /// Its session ends with it.
    is_given_up: bool,
}

impl QueueGroup {
    /// A group without queues, in this place of the front end.
    pub fn new(index: u16, new: NewGroup, client: Client) -> QueueGroup {
        let NewGroup { session, shard, bridge, volume, guest, shadow, .. } = new;
        QueueGroup {
            index,
            session,
            shard,
            bridge,
            volume,
            client,
            guest,
            generation: 0,
            of_generation: 0,
            old: Vec::new(),
            shadow,
            sqs: (0..=QUEUES).map(|_| None).collect(),
            cqs: (0..=QUEUES).map(|_| None).collect(),
            active: Vec::with_capacity(QUEUES),
            arbiter: Arbiter::new(new.mechanism, QUEUES + 1, new.arbitration),
            window: new.window,
            commands: Vec::new(),
            free: Vec::new(),
            orders: 0,
            again: VecDeque::new(),
            to_submit: VecDeque::new(),
            buffer: None,
            is_behind: false,
            behind_s: 0,
            ranges: Vec::new(),
            parts: Vec::new(),
            state: State::Open,
            has_turn: false,
            is_cut_short: false,
            is_awake: false,
            is_napping: false,
            is_crowded: false,
            is_changed: false,
            has_posted: false,
            closing: Vec::new(),
            is_given_up: false,
        }
    }

    /// Its place in the front end.
    pub fn index(&self) -> usize {
        self.index.into()
    }

    /// The group of an order's cookie.
    pub fn index_of(cookie: u64) -> usize {
        (cookie >> 16) as usize
    }

    /// The number of its tenant.
    pub fn tenant(&self) -> u16 {
        self.volume.tenant
    }

    /// Whether it serves this flow.
    pub fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// Whether the result of an order is wanted no longer.
    pub fn is_unwanted(&self, cookie: u64) -> bool {
        let command = self.commands.get(usize::from(cookie as u16));
        self.is_dead() || command.is_some_and(|command| self.is_deleting(command.sqid))
    }

    fn sq(&self, id: u16) -> Option<&Sq> {
        self.sqs.get(usize::from(id))?.as_ref()
    }

    fn is_deleting(&self, sqid: u16) -> bool {
        self.sq(sqid).is_some_and(|sq| sq.deleting.is_some())
    }

    // Queues.

    /// Adds a completion queue, which interrupts by this line.
    pub fn add_cq(&mut self, new: NewCq, line: Option<usize>) {
        let NewCq { id, ring } = new;
        if let Some(place) = self.cqs.get_mut(usize::from(id)) {
            *place = Some(Cq { ring, line, has_posted: false });
        }
    }

    /// Adds a submission queue, whose completion queue is there.
    pub fn add_sq(&mut self, new: NewSq) {
        let NewSq { id, ring, qprio, begun, place } = new;
        let Some(sq) = self.sqs.get_mut(usize::from(id)).filter(|sq| sq.is_none()) else { return };
        *sq = Some(Sq { ring, qprio, deleting: None, _place: place });
        self.again.extend(begun.into_iter().map(|sqe| (id, sqe)));
        self.arbiter.add(QueueIndex(id), class_of_qprio(qprio));
        self.active.push(id);
        let first = self.commands.len() as u16;
        let limit = self.active.len() * QUEUE_TAGS;
        while self.commands.len() < limit {
            self.commands.push(Command::idle());
        }
        self.free.extend((first..self.commands.len() as u16).rev());
    }

    /// Removes a completion queue, which no submission queue has.
    pub fn remove_cq(&mut self, id: u16) {
        if let Some(cq) = self.cqs.get_mut(usize::from(id)) {
            *cq = None;
        }
    }

    /// Takes nothing more from a submission queue, and drops `reply` when its commands have ended.
    /// The caller cancels the orders that the policy has.
    pub fn delete_sq(&mut self, id: u16, reply: Sender<()>) {
        let Some(sq) = self.sqs.get_mut(usize::from(id)).and_then(Option::as_mut) else { return };
        self.active.retain(|&active| active != id);
        let dropped = self.arbiter.remove(QueueIndex(id));
        if let Some(cq) = self.cqs.get_mut(usize::from(sq.ring.cqid)).and_then(Option::as_mut) {
            cq.ring.release(dropped);
        }
        sq.deleting = Some(reply);
        self.end_sq(id);
    }

    /// Drops a submission queue that is being deleted, if none of its commands is left.
    fn end_sq(&mut self, id: u16) {
        let Some(place) = self.sqs.get_mut(usize::from(id)) else { return };
        if place.as_ref().is_some_and(|sq| sq.deleting.is_some() && sq.ring.in_flight == 0) {
            *place = None;
        }
    }

    /// Its queues for the next program, and the commands that have no completion.
    pub fn left(&self) -> LeftQueues {
        let sq = |(id, sq): (u16, &Option<Sq>)| {
            let Sq { ring, qprio, .. } = sq.as_ref()?;
            let busy = self.commands.iter().filter(|one| one.is_busy && one.sqid == id);
            let again = self.again.iter().filter(|(sqid, _)| *sqid == id).map(|(_, sqe)| sqe);
            let begun = busy.map(|one| &one.sqe).chain(again).map(|sqe| sqe.to_words());
            Some(LeftSq { id, ring: ring.left(), qprio: *qprio, begun: begun.collect() })
        };
        let cq = |(id, cq): (u16, &Option<Cq>)| {
            let Cq { ring, .. } = cq.as_ref()?;
            let users = self.sqs.iter().flatten().filter(|sq| sq.ring.cqid == id);
            let promised = users.map(|sq| sq.ring.in_flight).sum();
            Some(LeftCq { id, ring: ring.left(promised) })
        };
        LeftQueues {
            cqs: (0..).zip(&self.cqs).filter_map(cq).collect(),
            sqs: (0..).zip(&self.sqs).filter_map(sq).collect(),
        }
    }

    /// Changes the weights of classes.
    pub fn set_arbitration(&mut self, arbitration: Arbitration) {
        self.arbiter.set(arbitration);
    }

    /// Reads doorbells at other places.
    pub fn set_shadow(&mut self, shadow: [u64; 2]) {
        self.shadow = Some(shadow);
    }

    // Commands.

    /// Submits at most `most` orders. Returns their number, and whether the group waits for another
    /// turn.
    pub fn take_turn<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        most: u32,
    ) -> (u32, bool) {
        // The turn may be that of a group which had this one's place.
        if !self.has_turn {
            return (0, false);
        }
        let (mut given, mut has_more) = (0, true);
        while given < most && path.has_room() {
            has_more = !self.is_full() && self.is_ready();
            if !has_more {
                break;
            }
            given += u32::from(self.submit(now_ns, ring, path));
        }
        self.has_turn = has_more && P::IS_DIRECT;
        self.is_cut_short = given == most && !P::IS_DIRECT;
        (given, self.has_turn)
    }

    /// Whether `to_submit` has a command that may go on; fetches the next one if not.
    fn is_ready(&mut self) -> bool {
        if self.bridge.has_failed() && !self.is_dead() {
            self.hang_up();
        }
        while self.to_submit.is_empty() {
            if self.has_all() {
                return false;
            }
            if let Some((sqid, sqe)) = self.again.pop_front() {
                if let Some(place) = self.free.pop() {
                    self.begin(place, sqid, &sqe);
                }
                continue;
            }
            if !self.has_news() {
                return false;
            }
            if let Err(fault) = self.fetch() {
                self.fail(fault);
                return false;
            }
        }
        !self.waits()
    }

    /// Fetches the command that the arbiter chooses, if there is one.
    fn fetch(&mut self) -> Result<(), Fault> {
        let Some(QueueIndex(id)) = self.arbiter.next() else { return Ok(()) };
        let Some(sq) = self.sqs[usize::from(id)].as_mut() else { return Ok(()) };
        let index = sq.ring.advance();
        let sqe = sq.ring.entries.read(&self.guest, index)?;
        if let Some(place) = self.free.pop() {
            sq.ring.in_flight += 1;
            self.begin(place, id, &sqe);
        }
        Ok(())
    }

    /// Makes an entry a command.
    fn begin(&mut self, place: u16, sqid: u16, sqe: &Sqe) {
        let command = &mut self.commands[usize::from(place)];
        command.data.clear();
        self.ranges.clear();
        let (data, ranges) = (&mut command.data, &mut self.ranges);
        let decoded = decode::decode(sqe, &self.volume, &self.guest, data, ranges);
        std::mem::swap(&mut command.ranges, &mut self.ranges);
        let (status, decoded) = match decoded {
            Ok(decoded) => (Status::SUCCESS, decoded),
            Err(status) => {
                let lba = u64::from(sqe.cdw10) | u64::from(sqe.cdw11) << 32;
                self.bridge.log_error(sqid, sqe.cid, status, lba, sqe.nsid);
                let (op, kind) = (Op::Flush, Kind::Advice);
                let nothing =
                    Decoded { kind, op, offset: 0, length: 0, fua: false, no_hole: false };
                (status, nothing)
            }
        };
        let Decoded { kind, op, offset, length, fua, no_hole } = decoded;
        let is_change = !matches!(op, Op::Read | Op::Flush);
        let fua = is_change && (fua || !self.bridge.caches_writes());
        let start = self.volume.base.saturating_add(offset);
        let end = start.saturating_add(length);
        let reach = match op {
            Op::Flush if kind == Kind::Plain => Some(Reach::All),
            Op::Flush => None,
            _ if !command.ranges.is_empty() => Some(Reach::All),
            _ => Some(Reach::Bytes { file: self.volume.file, start, end }),
        };
        let all = match kind {
            Kind::Advice => Orders::void(),
            _ => orders(op, offset, length, fua, no_hole),
        };
        *command = Command {
            is_busy: true,
            is_queued: false,
            sqid,
            sqe: *sqe,
            kind,
            status,
            generation: self.generation,
            orders: all,
            cursor: Cursor::default(),
            data: std::mem::take(&mut command.data),
            ranges: std::mem::take(&mut command.ranges),
            op,
            fua,
            offset,
            length,
            done: 0,
            reach,
            is_change,
        };
        self.of_generation += 1;
        if command.is_buffered() { self.begin_buffered(place) } else { self.queue(place) }
    }

    fn queue(&mut self, place: u16) {
        self.commands[usize::from(place)].is_queued = true;
        self.to_submit.push_back(place);
    }

    /// Whether the next command has to wait for requests of ended clients of the tenant.
    fn waits(&mut self) -> bool {
        if !self.client.is_fenced() || self.client.has_ended() {
            self.is_behind = false;
            return false;
        }
        if self.is_behind && !self.client.has_news() {
            return true;
        }
        let next = self.to_submit.front().and_then(|&place| self.commands.get(usize::from(place)));
        let reach = next.and_then(|command| command.reach);
        let waits = reach.is_some_and(|reach| self.client.waits(reach));
        if waits && !std::mem::replace(&mut self.is_behind, waits) {
            self.client.count();
            self.behind_s = 0;
        }
        self.is_behind = waits;
        waits
    }

    /// Submits the next order of the first command. False if there was none.
    fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) -> bool {
        let Some(&place) = self.to_submit.front() else { return false };
        let is_deleting = self.is_deleting(self.commands[usize::from(place)].sqid);
        let command = &mut self.commands[usize::from(place)];
        match self.state {
            State::Detached => command.orders.fail(libc::ESHUTDOWN),
            State::Dead => command.orders.fail(libc::ECANCELED),
            State::Open | State::Draining if is_deleting => command.orders.fail(libc::ECANCELED),
            State::Open | State::Draining => {}
        }
        if !command.orders.is_submittable() {
            command.is_queued = false;
            self.to_submit.pop_front();
            self.answer(place);
            return false;
        }
        let part = command.orders.next(&self.volume, path.device());
        self.parts.clear();
        if part.has_data() {
            match &self.buffer {
                Some(buffer) if command.is_buffered() => {
                    self.parts.push(Memory { length: part.length(), ..buffer.half(0) });
                }
                _ => command.cursor.take(&command.data, part.length(), &mut self.parts),
            }
        }
        let (first, rest) = match self.parts.split_first() {
            Some((first, rest)) => (*first, rest),
            None => (Memory::NONE, &[][..]),
        };
        let cookie = u64::from(self.index) << 16 | u64::from(place);
        let submitted = match part.order(&self.volume, first, cookie) {
            // SAFETY: the memory is mapped until the last command of its generation has ended,
            // which this one has not before its orders have; so is the group's buffer.
            Ok(order) => unsafe { path.submit(now_ns, ring, &order, rest) }.is_ok(),
            Err(error) => {
                command.orders.fail(error.errno());
                return false;
            }
        };
        if submitted {
            command.orders.submitted();
            self.orders += 1;
        } else {
            // The tenant was removed.
            command.orders.fail(libc::ESHUTDOWN);
        }
        submitted
    }

    /// Takes a finished order.
    pub fn finished(&mut self, Finished { cookie, errno, .. }: Finished) {
        self.orders -= 1;
        let place = cookie as u16;
        let Some(command) = self.commands.get_mut(usize::from(place)) else { return };
        command.orders.finished(errno);
        if command.orders.is_submittable() && !command.is_queued {
            self.queue(place);
        }
        self.answer(place);
    }

    /// Answers a command if nothing more will happen to it.
    fn answer(&mut self, place: u16) {
        let Some(command) = self.commands.get(usize::from(place)) else { return };
        if !command.is_busy || command.is_queued || !command.orders.is_finished() {
            return;
        }
        if command.orders.errno() == 0 && command.status.is_success() && self.goes_on(place) {
            return;
        }
        let command = &mut self.commands[usize::from(place)];
        command.is_busy = false;
        let (sqid, cid, errno) = (command.sqid, command.sqe.cid, command.orders.errno());
        let (op, length, generation) = (command.op, command.length, command.generation);
        let status = match errno {
            0 => command.status,
            libc::ECANCELED => Status::SQ_DELETED,
            libc::EPERM => Status::WRITE_PROTECTED,
            _ => Status::of_errno(errno, op == Op::Read),
        };
        if status.is_success() {
            self.bridge.count(op, length);
        } else if errno != 0 {
            let lba = command.offset >> LBA_SHIFT;
            self.bridge.log_error(sqid, cid, status, lba, decode::NSID);
        }
        if self.client.has_ended() && command.is_change {
            self.client.over(u32::from(self.index) << 16 | u32::from(place));
        }
        let is_buffered = command.is_buffered();
        self.free.push(place);
        if let Err(outside) = self.post(sqid, cid, status) {
            self.fail(outside.into());
        }
        if let Some(sq) = self.sqs[usize::from(sqid)].as_mut() {
            sq.ring.in_flight -= 1;
            self.end_sq(sqid);
        }
        self.leave(generation);
        if is_buffered {
            self.end_buffered(place);
        }
    }

    /// Posts the completion of a command, for which there is a place.
    fn post(&mut self, sqid: u16, cid: u16, status: Status) -> Result<(), Outside> {
        if self.is_dead() {
            return Ok(());
        }
        let Some(sq) = self.sqs[usize::from(sqid)].as_ref() else { return Ok(()) };
        let Some(cq) = self.cqs[usize::from(sq.ring.cqid)].as_mut() else { return Ok(()) };
        let cqe = Cqe { result: 0, sq_head: sq.ring.head(), sqid, cid, status };
        let place = cq.ring.advance();
        cq.ring.entries.write(&self.guest, place, cqe)?;
        cq.has_posted = true;
        self.has_posted = true;
        Ok(())
    }

    /// One command less has memory of a generation.
    fn leave(&mut self, generation: u32) {
        if generation == self.generation {
            self.of_generation -= 1;
            return;
        }
        self.old.retain_mut(|old| {
            old.commands -= u32::from(old.number == generation);
            old.commands > 0
        });
    }
}

/// The orders of a command's range.
fn orders(op: Op, offset: u64, length: u64, fua: bool, no_hole: bool) -> Orders {
    let mut orders = Orders::new(op, offset, length);
    (orders.fua, orders.no_hole) = (fua, no_hole);
    orders
}
