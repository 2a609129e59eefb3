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
//! them once more; the next doorbell then kicks it.
//!
//! **States.** An *open* group takes commands. A *draining* one takes none and answers those that it
//! has; a *detached* one, whose tenant was removed, fails those that are not submitted, too. A *dead*
//! one answers nothing: its client has gone, or its guest has broken the rules. It stays until the
//! device has returned the guest's memory.
//!
//! **Bounds.** A group has [`QUEUE_TAGS`] orders, and as many commands, for each of its submission
//! queues. A command has at most 1 MiB of data, in at most 513 stretches.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::mpsc::Sender;

use fairq_core::{Class, FlowId, Op, Port};
use fairq_device::{Arbiter, Arbitration, Mechanism, QueueIndex};
use io_uring::{opcode, squeue, types};
use thiserror::Error;

use crate::device::Device;
use crate::device::nvme::queue::{CqTail, Entries, SqHead};
use crate::device::nvme::spec::{CQE, Cqe, LBA_SHIFT, SQE, Sqe, Status};
use crate::front::attach::{QUEUE_TAGS, QueuePlace};
use crate::front::guest_memory::{self, Guest, Outside, read16};
use crate::front::vfio_user::bridge::{Bridge, QUEUES};
use crate::front::vfio_user::decode::{self, Decoded, Kind};
use crate::io::memory::{Memory, Region};
use crate::io::ring::{Asker, Ring, UserData};
use crate::observe::log_limit::STRANGERS;
use crate::shard::fence::{Client, Reach};
use crate::shard::path::{DataPath, Finished};
use crate::shard::request::{Cursor, PIECE, Request as Orders};
use crate::shard::volume::Volume;

/// The bytes that an eventfd takes for one event.
static ONE: u64 = 1;

/// The rule that a guest has broken, so that its controller fails.
#[derive(Debug, Error)]
pub(super) enum Fault {
    #[error("a queue: {0}")]
    Queue(#[from] Outside),
    #[error("the file of a region of memory has become shorter")]
    Shrunk,
}

/// The memory of a queue: an address of the guest, and the number of entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestRing {
    pub(super) address: u64,
    pub(super) size: u16,
}

impl Entries for GuestRing {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }
}

impl GuestRing {
    /// Copies a submission entry.
    #[inline]
    pub(super) fn read(self, guest: &Guest, index: u16) -> Result<Sqe, Outside> {
        let at = self.address.wrapping_add(u64::from(index) * SQE as u64);
        let from = guest.at(at, SQE as u64)?;
        let mut words = [0; SQE / 8];
        for (pair, to) in words.chunks_exact_mut(2).enumerate() {
            // SAFETY: the generation has just resolved these bytes, and is mapped.
            to.copy_from_slice(&unsafe { read16(from.add(16 * pair)) });
        }
        Ok(Sqe::from_words(words))
    }

    /// Writes a completion entry; its phase comes last.
    #[inline]
    pub(super) fn write(
        self,
        guest: &Guest,
        (index, phase): (u16, bool),
        cqe: Cqe,
    ) -> Result<(), Outside> {
        let at = self.address.wrapping_add(u64::from(index) * CQE as u64);
        let outside = Outside { address: at, length: CQE as u64 };
        let to = guest.at(at, CQE as u64)?.cast::<u64>();
        if !to.is_aligned() {
            return Err(outside);
        }
        let [first, second] = cqe.to_words(phase);
        // SAFETY: mapped, as above, and aligned; the guest reads it from outside the process.
        unsafe {
            AtomicU64::from_ptr(to).store(first, Ordering::Relaxed);
            AtomicU64::from_ptr(to.add(1)).store(second, Ordering::Release);
        }
        Ok(())
    }
}

/// A word of the guest's memory.
fn shadow(guest: &Guest, address: u64) -> Result<&AtomicU32, Outside> {
    let at = guest.at(address, 4)?.cast::<u32>();
    if !at.is_aligned() {
        return Err(Outside { address, length: 4 });
    }
    // SAFETY: mapped as long as the generation, and aligned; all access is atomic.
    Ok(unsafe { AtomicU32::from_ptr(at) })
}

/// A completion queue to serve.
pub struct NewCq {
    pub(super) id: u16,
    pub(super) ring: GuestRing,
    /// Its interrupt vector, if it interrupts, and the vector's eventfd.
    pub(super) vector: Option<u16>,
    pub(super) call: Option<Arc<OwnedFd>>,
}

/// A submission queue to serve.
pub struct NewSq {
    pub(super) id: u16,
    pub(super) ring: GuestRing,
    pub(super) cqid: u16,
    pub(super) class: Class,
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
    pub(super) arbitration: Arbitration,
}

struct Sq {
    ring: SqHead<GuestRing>,
    /// The session that deletes it waits for this to be dropped.
    deleting: Option<Sender<()>>,
    _place: QueuePlace,
}

struct Cq {
    ring: CqTail<GuestRing>,
    call: Option<Arc<OwnedFd>>,
    has_posted: bool,
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
    cid: u16,
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
            cid: 0,
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
    _moved: Sender<()>,
}

/// The memory for commands whose data do not go to the guest: 64 KiB of the disk's, and as many of
/// the guest's.
struct Buffer {
    region: Region,
    /// The command that uses it, and the ones that wait.
    user: Option<u16>,
    waiting: VecDeque<u16>,
}

impl Buffer {
    fn half(&self, index: usize) -> Memory {
        let (start, _) = self.region.head(usize::MAX);
        let address = start.wrapping_add(index * PIECE as usize);
        Memory { address, length: PIECE, fixed: None }
    }
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
    commands: Vec<Command>,
    free: Vec<u16>,
    orders: u32,
    /// Commands with orders to submit.
    to_submit: VecDeque<u16>,
    buffer: Option<Buffer>,
    /// The first of `to_submit` waits for requests of an ended client, for so many seconds.
    is_behind: bool,
    behind_s: u32,
    ranges: Vec<(u64, u64)>,
    parts: Vec<Memory>,
    state: State,
    has_turn: bool,
    is_awake: bool,
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
            commands: Vec::new(),
            free: Vec::new(),
            orders: 0,
            to_submit: VecDeque::new(),
            buffer: None,
            is_behind: false,
            behind_s: 0,
            ranges: Vec::new(),
            parts: Vec::new(),
            state: State::Open,
            has_turn: false,
            is_awake: false,
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

    /// Adds a completion queue.
    pub fn add_cq(&mut self, new: NewCq) {
        let NewCq { id, ring, vector, call } = new;
        if let Some(place) = self.cqs.get_mut(usize::from(id)) {
            *place = Some(Cq { ring: CqTail::new(ring, vector), call, has_posted: false });
        }
    }

    /// Adds a submission queue, whose completion queue is there.
    pub fn add_sq(&mut self, new: NewSq) {
        let NewSq { id, ring, cqid, class, place } = new;
        let Some(sq) = self.sqs.get_mut(usize::from(id)).filter(|sq| sq.is_none()) else { return };
        *sq = Some(Sq { ring: SqHead::new(ring, cqid), deleting: None, _place: place });
        self.arbiter.add(QueueIndex(id), class);
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
    /// Those that the policy has are to be cancelled.
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

    /// Changes the weights of classes.
    pub fn set_arbitration(&mut self, arbitration: Arbitration) {
        self.arbiter.set(arbitration);
    }

    /// Reads doorbells at other places.
    pub fn set_shadow(&mut self, shadow: [u64; 2]) {
        self.shadow = Some(shadow);
    }

    // Doorbells, and polling.

    #[inline]
    fn tail(&self, sqid: u16) -> Result<u32, Outside> {
        match self.shadow {
            None => Ok(self.bridge.tail(sqid)),
            Some([tails, _]) => {
                let address = tails.wrapping_add(8 * u64::from(sqid));
                Ok(shadow(&self.guest, address)?.load(Ordering::Acquire))
            }
        }
    }

    fn head(&self, cqid: u16) -> Result<u32, Outside> {
        match self.shadow {
            None => Ok(self.bridge.head(cqid)),
            Some([heads, _]) => {
                let address = heads.wrapping_add(8 * u64::from(cqid) + 4);
                Ok(shadow(&self.guest, address)?.load(Ordering::SeqCst))
            }
        }
    }

    /// Has the guest write the doorbell at this place when it passes `value`.
    fn want_event(&self, place: u64, value: u16) -> Result<(), Outside> {
        if let Some([_, events]) = self.shadow {
            let address = events.wrapping_add(4 * place);
            shadow(&self.guest, address)?.store(value.into(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Reads the doorbells, and gives the arbiter the commands for whose completions there is room.
    #[inline]
    fn see(&mut self) -> Result<(), Fault> {
        let was_crowded = std::mem::replace(&mut self.is_crowded, false);
        for place in 0..self.active.len() {
            let id = self.active[place];
            let tail = self.tail(id)?;
            let Some(sq) = self.sqs[usize::from(id)].as_mut() else { continue };
            sq.ring.held += sq.ring.see(tail);
            if sq.ring.held > 0 {
                self.admit(id)?;
            }
        }
        if was_crowded && !self.is_crowded {
            self.bridge.set_crowded(self.shard, false);
        }
        Ok(())
    }

    fn admit(&mut self, id: u16) -> Result<(), Fault> {
        let Some(sq) = self.sqs[usize::from(id)].as_mut() else { return Ok(()) };
        let (cqid, held) = (sq.ring.cqid, sq.ring.held);
        let Some(cq) = self.cqs[usize::from(cqid)].as_mut() else { return Ok(()) };
        let mut granted = cq.ring.reserve(held);
        if granted < held {
            granted += self.admit_after(cqid, held - granted)?;
        }
        if let Some(sq) = self.sqs[usize::from(id)].as_mut() {
            sq.ring.held -= granted;
            self.arbiter.post(QueueIndex(id), granted);
        }
        Ok(())
    }

    /// The number of commands for which a completion queue has room after the guest has read it.
    #[cold]
    fn admit_after(&mut self, cqid: u16, held: u32) -> Result<u32, Fault> {
        let mut granted = 0;
        for pass in 0..2 {
            let head = self.head(cqid)?;
            let Some(cq) = self.cqs[usize::from(cqid)].as_mut() else { break };
            cq.ring.see(head);
            granted += cq.ring.reserve(held - granted);
            if granted == held || pass > 0 {
                break;
            }
            // Noted, and then read once more: the next head kicks the group.
            self.is_crowded = true;
            self.bridge.set_crowded(self.shard, true);
            self.want_event(2 * u64::from(cqid) + 1, head as u16)?;
        }
        Ok(granted)
    }

    fn takes_commands(&self) -> bool {
        self.state == State::Open
    }

    /// Reads the doorbells in each turn from now on. True if it did not.
    pub fn awake(&mut self) -> bool {
        if std::mem::replace(&mut self.is_awake, true) {
            return false;
        }
        self.bridge.set_asleep(self.shard, false);
        true
    }

    /// Waits for kicks from now on; false if there is a command already.
    pub fn sleep(&mut self) -> bool {
        if self.takes_commands() {
            self.bridge.set_asleep(self.shard, true);
            if let Err(outside) = self.want_events() {
                self.fail(outside.into());
            }
            fence(Ordering::SeqCst);
            if self.has_news() {
                self.bridge.set_asleep(self.shard, false);
                return false;
            }
        }
        self.is_awake = false;
        true
    }

    fn want_events(&self) -> Result<(), Outside> {
        if self.shadow.is_none() {
            return Ok(());
        }
        self.active.iter().try_for_each(|&id| {
            let tail = self.sq(id).map_or(0, |sq| sq.ring.tail());
            self.want_event(2 * u64::from(id), tail)
        })
    }

    /// Whether there is a command that it would take.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        if !self.takes_more() {
            return false;
        }
        if let Err(fault) = self.see() {
            self.fail(fault);
        }
        self.takes_commands() && self.arbiter.has_commands()
    }

    /// Whether it would take another command now.
    #[inline]
    pub fn takes_more(&self) -> bool {
        self.takes_commands() && !self.is_blocked()
    }

    /// Whether it goes on with a completion, and not with a kick.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        !self.to_submit.is_empty() || self.is_full() || self.free.is_empty()
    }

    fn is_full(&self) -> bool {
        self.orders as usize >= self.commands.len()
    }

    /// Whether it has orders to submit and does not wait for its turn yet; it does then.
    #[inline]
    pub fn wants_turn(&mut self) -> bool {
        let has_some = !self.is_full() && (!self.to_submit.is_empty() || self.has_news());
        has_some && !std::mem::replace(&mut self.has_turn, true)
    }

    // Commands.

    /// Submits at most so many orders. Returns their number, and whether it waits for another turn.
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
        self.has_turn = has_more;
        (given, has_more)
    }

    /// Whether `to_submit` has a command that may go on; fetches the next one if not.
    fn is_ready(&mut self) -> bool {
        if self.bridge.has_failed() && !self.is_dead() {
            self.hang_up();
        }
        while self.to_submit.is_empty() {
            if self.free.is_empty() || !self.has_news() {
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
            cid: sqe.cid,
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
            // SAFETY: the memory is mapped until the last command of its generation has ended, which
            // this one has not before its orders have; so is the group's buffer.
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
        let (sqid, cid, errno) = (command.sqid, command.cid, command.orders.errno());
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

    // Commands of several steps.

    /// Begins the next step of a command whose orders have succeeded. False if there is none.
    fn goes_on(&mut self, place: u16) -> bool {
        let command = &mut self.commands[usize::from(place)];
        if let Some((offset, length)) = command.ranges.pop() {
            command.orders = orders(command.op, offset, length, command.fua, false);
            self.queue(place);
            return true;
        }
        if !command.is_buffered() {
            return false;
        }
        let length = (command.length - command.done).min(PIECE.into());
        if command.kind == Kind::Compare
            && let Some(buffer) = &self.buffer
        {
            let [disk, guest] = [0, 1].map(|half| buffer.half(half).address);
            let length = length as usize;
            // SAFETY: both halves are this group's, and no order has them now; the command's memory
            // is mapped until it ends.
            let is_same = unsafe {
                let guest = std::slice::from_raw_parts_mut(guest, length);
                guest_memory::read(&command.data, command.done, guest);
                std::slice::from_raw_parts(disk, length) == guest
            };
            if !is_same {
                command.status = Status::COMPARE_FAILURE;
                return false;
            }
        }
        command.done += length;
        if command.done == command.length {
            return false;
        }
        self.read_piece(place);
        true
    }

    /// Reads the next piece of a command into the buffer.
    fn read_piece(&mut self, place: u16) {
        let command = &mut self.commands[usize::from(place)];
        let length = (command.length - command.done).min(PIECE.into());
        command.orders = Orders::new(Op::Read, command.offset + command.done, length);
        self.queue(place);
    }

    /// Begins a command that needs the buffer, when that is free.
    fn begin_buffered(&mut self, place: u16) {
        if self.buffer.is_none() {
            let Ok(region) = Region::map(2 * PIECE as usize) else {
                let command = &mut self.commands[usize::from(place)];
                (command.status, command.kind) = (Status::INTERNAL, Kind::Advice);
                command.orders = Orders::void();
                return self.queue(place);
            };
            self.buffer = Some(Buffer { region, user: None, waiting: VecDeque::new() });
        }
        let Some(buffer) = &mut self.buffer else { return };
        match buffer.user {
            Some(_) => buffer.waiting.push_back(place),
            None => {
                buffer.user = Some(place);
                self.read_piece(place);
            }
        }
    }

    /// The buffer is the next command's.
    fn end_buffered(&mut self, place: u16) {
        let Some(buffer) = self.buffer.as_mut().filter(|buffer| buffer.user == Some(place)) else {
            return;
        };
        buffer.user = buffer.waiting.pop_front();
        if let Some(next) = buffer.user {
            self.read_piece(next);
        }
    }

    // Changes.

    /// Calls the guest for the completions that it has got.
    pub fn flush(&mut self, ring: &mut Ring) {
        if std::mem::take(&mut self.has_posted) && !self.is_dead() {
            for cq in self.cqs.iter_mut().flatten() {
                if std::mem::take(&mut cq.has_posted) && cq.ring.vector.is_some() {
                    signal(ring, cq.call.as_deref());
                }
            }
            if self.guest.is_broken() {
                self.fail(Fault::Shrunk);
            }
        }
        if self.bridge.has_failed() {
            self.hang_up();
        }
    }

    /// Interrupts by another eventfd.
    pub fn set_vector(&mut self, ring: &mut Ring, vector: u16, call: Option<&Arc<OwnedFd>>) {
        for cq in self.cqs.iter_mut().flatten().filter(|cq| cq.ring.vector == Some(vector)) {
            // The kernel has the old file before it is closed.
            ring.enter(0, None);
            cq.call = call.cloned();
            // An interrupt on the old file may have been missed.
            signal(ring, cq.call.as_deref());
        }
    }

    /// Goes on in another generation of the guest's memory; drops `moved` when no command has
    /// memory of the one before.
    pub fn move_to(&mut self, ring: &mut Ring, guest: &Arc<Guest>, moved: Sender<()>) {
        self.flush(ring);
        let old = std::mem::replace(&mut self.guest, guest.clone());
        if self.of_generation > 0 {
            let (number, commands) = (self.generation, self.of_generation);
            self.old.push(Old { number, commands, _guest: old, _moved: moved });
        }
        (self.generation, self.of_generation) = (self.generation.wrapping_add(1), 0);
    }

    /// The guest's controller fails: this group now, and the others when they see it.
    fn fail(&mut self, fault: Fault) {
        if STRANGERS.allows() {
            tracing::warn!(
                disk = self.bridge.name(), %fault,
                "a guest breaks the rules of NVMe: its controller has failed until it is reset"
            );
        }
        self.bridge.fail();
        self.hang_up();
    }

    /// Takes nothing more. One whose controller has failed has nothing to answer, and ends.
    pub fn drain(&mut self) {
        match self.state {
            State::Open => self.state = State::Draining,
            State::Dead => self.is_given_up = true,
            State::Draining | State::Detached => {}
        }
    }

    /// Its tenant was removed: fails what is not submitted, and ends the session.
    pub fn detach(&mut self) {
        match self.state {
            State::Open | State::Draining => self.state = State::Detached,
            State::Dead => self.is_given_up = true,
            State::Detached => {}
        }
    }

    /// Answers nothing more, and ends its session.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
        self.hang_up();
    }

    /// Answers nothing more. `reply` is dropped when the device has no order of it.
    pub fn close(&mut self, reply: &Sender<()>) {
        self.closing.push(reply.clone());
        self.hang_up();
    }

    /// Answers nothing more. A group whose controller has failed stays until it is closed.
    fn hang_up(&mut self) {
        if self.state == State::Dead {
            return;
        }
        self.state = State::Dead;
        if self.client.end() {
            for (place, command) in (0..).zip(&self.commands) {
                if command.is_busy
                    && command.is_change
                    && let Some(reach) = command.reach
                {
                    self.client.leave(u32::from(self.index) << 16 | place, reach);
                }
            }
        }
        if let Some(buffer) = &mut self.buffer {
            self.to_submit.extend(buffer.waiting.drain(..));
        }
        // Orders that are not submitted end here; the front end cancels those that the policy has.
        while let Some(place) = self.to_submit.pop_front() {
            if let Some(command) = self.commands.get_mut(usize::from(place)) {
                command.is_queued = false;
                command.orders.fail(libc::ECANCELED);
            }
            self.answer(place);
        }
    }

    /// The range has this many bytes.
    pub fn resize(&mut self, size: u64) {
        self.volume.size = size;
    }

    /// A second has passed.
    pub fn second(&mut self) {
        if self.guest.is_broken() && !self.is_dead() {
            self.fail(Fault::Shrunk);
        }
        if !self.is_behind {
            return;
        }
        self.behind_s = self.behind_s.saturating_add(1);
        if self.behind_s > self.client.patience_s()
            && let Some(&place) = self.to_submit.front()
            && let Some(command) = self.commands.get_mut(usize::from(place))
        {
            tracing::error!(
                disk = self.bridge.name(),
                "a request fails: writes of an earlier client of the tenant to the same bytes have \
                 not ended, and would land after it; see to the storage"
            );
            (command.reach, self.is_behind, self.behind_s) = (None, false, 0);
            command.orders.fail(libc::EIO);
        }
    }

    /// Whether nothing is left to do; it may then be dropped.
    pub fn has_ended(&mut self, ring: &mut Ring) -> bool {
        let is_over = match self.state {
            State::Open => false,
            State::Draining | State::Detached => true,
            State::Dead => !self.closing.is_empty() || self.is_given_up,
        };
        if !is_over || self.free.len() < self.commands.len() {
            return false;
        }
        // The kernel has the files of interrupts before they are closed.
        ring.enter(0, None);
        if self.closing.is_empty() {
            self.bridge.hang_up();
        }
        true
    }
}

/// The orders of a command's range.
fn orders(op: Op, offset: u64, length: u64, fua: bool, no_hole: bool) -> Orders {
    let mut orders = Orders::new(op, offset, length);
    (orders.fua, orders.no_hole) = (fua, no_hole);
    orders
}

/// Adds an event to an eventfd. The ring does that, since an eventfd may make its writer wait.
pub(super) fn signal(ring: &mut Ring, file: Option<&OwnedFd>) {
    let Some(file) = file else { return };
    let fd = types::Fd(file.as_raw_fd());
    let write = opcode::Write::new(fd, (&raw const ONE).cast(), 8).build();
    let write = write.flags(squeue::Flags::SKIP_SUCCESS);
    // SAFETY: the bytes are a constant.
    unsafe { ring.push(write, UserData { asker: Asker::VfioUser, value: 0 }) };
}
