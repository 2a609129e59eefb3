//! One queue of a guest on a shard: its requests, from the ring to orders and back.
//!
//! **States.** An *open* vring takes chains. A *draining* one takes none and answers those that it
//! has; a *detached* one, whose tenant was removed, fails those in the ring, too. A *dead* one
//! answers nothing: its guest has gone, or has broken the rules. It stays until the device has
//! returned the guest's memory.
//!
//! **Ownership.** A request's memory belongs to a generation of the guest's memory, which the vring
//! keeps until the last request with memory of it has ended. The vring has one place for each of
//! its buffers, so a guest has at most as many requests under way as its queue has descriptors.
//! At most `ORDERS` of their orders are in flight; at this bound, the next chain stays in the ring.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fairq_core::{FlowId, Op, Port};
use io_uring::{opcode, types};

use crate::device::Device;
use crate::front::attach::{QUEUE_TAGS, QueuePlace};
use crate::front::guest_calls::Calls;
use crate::front::guest_memory::Guest;
use crate::front::vhost::blk::{self, Parsed, Status, Wish};
use crate::front::vhost::inflight::{Again, Region};
use crate::front::vhost::link::Link;
use crate::front::vhost::queue::{Buffer, Chain, Fault, Layout, Queue, packed_ring};
use crate::io::memory::Memory;
use crate::io::ring::{Asker, Event, Ring, UserData};
use crate::observe::log_limit::STRANGERS;
use crate::shard::fence::{Client, Reach};
use crate::shard::path::{DataPath, Finished};
use crate::shard::request::{Cursor, Request as Orders};
use crate::shard::volume::Volume;

/// The most orders of a vring under way.
const ORDERS: u32 = QUEUE_TAGS as u32;

/// Kinds of ring operations, in the low bits of their user data.
const KICK: u64 = 0;
const CALL: u64 = 1;
const CANCEL: u64 = 2;
const ERROR: u64 = 3;

/// The name of a vring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The number of its session.
    pub session: u32,
    /// Its index in the guest's device.
    pub queue: u16,
}

/// A vring to serve.
pub struct Start {
    /// Its place on the shard.
    pub place: QueuePlace,
    /// Its name.
    pub key: Key,
    /// Its rings.
    pub layout: Layout,
    /// Its rings in the guest's memory.
    pub queue: Queue,
    /// The guest's memory.
    pub guest: Arc<Guest>,
    /// The region of the in-flight area that records its requests.
    pub region: Region,
    /// The requests that the last server has left.
    pub again: Vec<Again>,
    /// The eventfd by which the guest notifies the shard of available chains.
    pub kick: OwnedFd,
    /// The file by which the shard notifies the guest of used buffers.
    pub call: Option<OwnedFd>,
    /// The eventfd that notifies its monitor of a fault.
    pub error: Option<OwnedFd>,
    /// The tenant's range.
    pub volume: Volume,
    /// Whether the guest can flush a cache.
    pub has_flush: bool,
    /// Its session.
    pub link: Arc<Link>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Open,
    Draining,
    Detached,
    Dead,
}

/// A request under way.
struct Request {
    is_busy: bool,
    /// It has a place in `to_submit`.
    is_queued: bool,
    buffer: Buffer,
    /// Its entry in the in-flight area.
    entry: u16,
    /// The number of the generation of its memory.
    generation: u32,
    orders: Orders,
    cursor: Cursor,
    data: Vec<Memory>,
    status: Memory,
    /// If the device reports no error: the bytes written to the guest's memory, and the status.
    writes: u32,
    answer: Status,
    reach: Option<Reach>,
    /// Whether it changes data.
    is_change: bool,
}

/// A generation of the guest's memory that requests still use.
struct Old {
    number: u32,
    requests: u32,
    _guest: Arc<Guest>,
}

/// A queue of a guest.
pub struct Vring {
    index: u16,
    pub(super) key: Key,
    layout: Layout,
    queue: Queue,
    guest: Arc<Guest>,
    /// The number of the current generation (`guest`), and the number of its requests.
    generation: u32,
    of_generation: u32,
    old: Vec<Old>,
    region: Region,
    again: VecDeque<Again>,
    kick: OwnedFd,
    calls: Calls,
    /// Calls its monitor when the device has failed.
    errors: Calls,
    has_reported: bool,
    volume: Volume,
    has_flush: bool,
    link: Arc<Link>,
    client: Client,
    state: State,
    requests: Box<[Request]>,
    busy: u32,
    orders: u32,
    to_submit: VecDeque<u16>,
    /// Whether the next request waits for requests of ended clients, and the seconds waited.
    is_behind: bool,
    behind_s: u32,
    chain: Chain,
    parts: Vec<Memory>,
    has_turn: bool,
    /// Whether its last turn ended at the bound of orders, so that it may have more.
    is_cut_short: bool,
    is_awake: bool,
    pub(super) is_changed: bool,
    has_pushed: bool,
    /// The memory for the bytes of the kick's eventfd.
    kicks: Box<u64>,
    kick_in_ring: bool,
    stopping: Option<Sender<u32>>,
    closing: Vec<Sender<()>>,
    /// Its session ends with it.
    is_given_up: bool,
    _place: QueuePlace,
}

impl Vring {
    /// A vring in this place of the front end.
    pub fn new(index: u16, start: Start, client: Client) -> Vring {
        let Start { key, layout, queue, guest, region, again, kick, call, error, .. } = start;
        let Start { volume, has_flush, link, place, .. } = start;
        let idle = |_| Request {
            is_busy: false,
            is_queued: false,
            buffer: Buffer { id: 0, places: 0 },
            entry: 0,
            generation: 0,
            orders: Orders::void(),
            cursor: Cursor::default(),
            data: Vec::new(),
            status: Memory::NONE,
            writes: 0,
            answer: Status::Ok,
            reach: None,
            is_change: false,
        };
        let name = |kind| UserData { asker: Asker::Vhost, value: u64::from(index) << 2 | kind };
        let calls =
            |file: Option<OwnedFd>, kind| Calls::new(file.map(Arc::new), name(kind), name(CANCEL));
        Vring {
            index,
            key,
            layout,
            queue,
            guest,
            generation: 0,
            of_generation: 0,
            old: Vec::new(),
            region,
            again: again.into(),
            kick,
            calls: calls(call, CALL),
            errors: calls(error, ERROR),
            has_reported: false,
            volume,
            has_flush,
            link,
            client,
            state: State::Open,
            requests: (0..layout.size).map(idle).collect(),
            busy: 0,
            orders: 0,
            to_submit: VecDeque::new(),
            is_behind: false,
            behind_s: 0,
            chain: Chain::default(),
            parts: Vec::new(),
            has_turn: false,
            is_cut_short: false,
            is_awake: false,
            is_changed: false,
            has_pushed: false,
            kicks: Box::new(0),
            kick_in_ring: false,
            stopping: None,
            closing: Vec::new(),
            is_given_up: false,
            _place: place,
        }
    }

    /// Its place in the front end.
    pub fn index(&self) -> usize {
        self.index.into()
    }

    /// The vring of an order's cookie.
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

    /// Whether it answers nothing any more.
    pub fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    fn takes_chains(&self) -> bool {
        matches!(self.state, State::Open | State::Detached)
    }

    fn event(&self, kind: u64) -> UserData {
        UserData { asker: Asker::Vhost, value: u64::from(self.index) << 2 | kind }
    }

    /// The vring of an event; `None` for an event to ignore.
    pub fn of_event(value: u64) -> Option<usize> {
        (value & 3 != CANCEL).then_some((value >> 2) as usize)
    }

    /// Takes an event. True if it is a kick.
    pub fn take(&mut self, ring: &mut Ring, event: Event, awaits_kicks: bool) -> bool {
        match event.data.value & 3 {
            CALL => self.calls.ended(ring),
            ERROR => self.errors.ended(ring),
            _ => {
                if self.kicked(event.result) && awaits_kicks {
                    self.await_kick(ring);
                }
                return true;
            }
        }
        false
    }

    /// Waits for the next kick.
    pub fn await_kick(&mut self, ring: &mut Ring) {
        if self.kick_in_ring || self.is_dead() {
            return;
        }
        let fd = types::Fd(self.kick.as_raw_fd());
        let read = opcode::Read::new(fd, (&raw mut *self.kicks).cast(), 8).build();
        // SAFETY: the box stays until the event has come; see `has_ended`.
        unsafe { ring.push(read, self.event(KICK)) };
        self.kick_in_ring = true;
    }

    /// Takes a kick. True if the next one is to be awaited.
    fn kicked(&mut self, result: i32) -> bool {
        self.kick_in_ring = false;
        // A read of an eventfd returns 8 bytes. Of the errors, only these two permit a retry.
        result == 8 || matches!(-result, libc::EAGAIN | libc::EINTR)
    }

    /// Makes each turn read the ring. True if the vring slept until now.
    pub fn awake(&mut self) -> bool {
        let was_asleep = !std::mem::replace(&mut self.is_awake, true);
        if was_asleep && self.takes_chains() {
            self.queue.disable_kicks();
        }
        was_asleep
    }

    /// Waits for kicks from now on; false if there is a chain already.
    pub fn sleep(&mut self) -> bool {
        if self.takes_chains() && self.queue.enable_kicks() {
            self.queue.disable_kicks();
            return false;
        }
        self.is_awake = false;
        true
    }

    /// Whether the ring has a chain that the vring would take now.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        self.takes_more() && self.queue.has_news()
    }

    /// Whether it would take another chain now.
    #[inline]
    pub fn takes_more(&self) -> bool {
        self.takes_chains() && !self.is_blocked()
    }

    /// Whether it takes no new chain, whatever kicks come, before its present requests advance.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        !self.to_submit.is_empty() || self.orders >= ORDERS
    }

    /// Whether its last turn ended at the bound of orders: no event causes the turn that it needs.
    pub fn is_cut_short(&self) -> bool {
        self.is_cut_short
    }

    /// Whether it has orders to submit and is not yet queued for a turn; it then is queued.
    #[inline]
    pub fn wants_turn(&mut self) -> bool {
        self.is_cut_short = false;
        let has_some = self.orders < ORDERS
            && (!self.to_submit.is_empty() || !self.again.is_empty() || self.has_news());
        has_some && !std::mem::replace(&mut self.has_turn, true)
    }

    /// Submits at most `most` orders. Returns their number, and whether it needs another turn.
    pub fn take_turn<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        most: u32,
    ) -> (u32, bool) {
        // The turn may have been queued by an earlier vring with the same index.
        if !self.has_turn {
            return (0, false);
        }
        let (mut given, mut has_more) = (0, true);
        while given < most && path.has_room() {
            has_more = self.orders < ORDERS && self.is_ready();
            if !has_more {
                break;
            }
            given += u32::from(self.submit(now_ns, ring, path));
        }
        self.has_turn = has_more && P::IS_DIRECT;
        self.is_cut_short = given == most && !P::IS_DIRECT;
        (given, self.has_turn)
    }

    /// Whether `to_submit` has a request that may go on; takes the next chain if not.
    fn is_ready(&mut self) -> bool {
        if self.link.has_failed() && !self.is_dead() {
            self.hang_up();
        }
        while self.to_submit.is_empty() {
            let begun = match self.again.pop_front() {
                Some(again) => self.begin_again(&again),
                None if self.takes_chains() => self.begin_next(),
                None => Ok(false),
            };
            match begun {
                Ok(true) => {}
                Ok(false) => return false,
                Err(fault) => {
                    self.fail(fault);
                    return false;
                }
            }
        }
        !self.waits()
    }

    /// Takes the next chain; false if there is none.
    fn begin_next(&mut self) -> Result<bool, Fault> {
        let Some(buffer) = self.queue.pop(&self.guest, &mut self.chain)? else { return Ok(false) };
        if self.place(buffer.id)?.is_busy {
            return Err(Fault::Buffer(buffer.id));
        }
        let entry = self.region.begin(buffer, &self.chain);
        self.begin(buffer, entry)?;
        Ok(true)
    }

    /// Begins a request that the last server has left.
    fn begin_again(&mut self, again: &Again) -> Result<bool, Fault> {
        if self.place(again.buffer.id)?.is_busy {
            return Err(Fault::Buffer(again.buffer.id));
        }
        self.chain.clear();
        match &self.queue {
            Queue::Split(split) => split.walk(&self.guest, again.buffer.id, &mut self.chain)?,
            Queue::Packed(_) => {
                self.chain.ring.extend_from_slice(&again.descriptors);
                packed_ring::walk(&self.guest, &mut self.chain)?;
            }
        }
        self.begin(again.buffer, again.entry)?;
        Ok(true)
    }

    fn place(&mut self, id: u16) -> Result<&mut Request, Fault> {
        self.requests.get_mut(usize::from(id)).ok_or(Fault::Buffer(id))
    }

    /// Makes the chain a request.
    fn begin(&mut self, buffer: Buffer, entry: u16) -> Result<(), Fault> {
        let Parsed { wish, status } = blk::parse(&mut self.chain)?;
        let is_durable = !(self.has_flush && self.link.caches_writes());
        let (mut answer, mut writes, mut reach, mut is_change) = (Status::Ok, 0, None, false);
        let orders = match wish {
            Wish::Refused(status) => {
                answer = status;
                Orders::void()
            }
            Wish::Id => {
                // SAFETY: the chain was translated with the current generation.
                writes = unsafe { blk::write_id(self.link.name(), &self.chain.writable) };
                Orders::void()
            }
            Wish::Storage { op, offset, length, no_hole } => {
                is_change = !matches!(op, Op::Read | Op::Flush);
                if op == Op::Read {
                    writes = length as u32;
                }
                let start = self.volume.base.saturating_add(offset);
                let end = start.saturating_add(length);
                reach = Some(match op {
                    Op::Flush => Reach::All,
                    _ => Reach::Bytes { file: self.volume.file, start, end },
                });
                let mut orders = Orders::new(op, offset, length);
                orders.fua = is_durable && is_change;
                orders.no_hole = no_hole;
                orders
            }
        };
        let generation = self.generation;
        let Some(request) = self.requests.get_mut(usize::from(buffer.id)) else {
            return Err(Fault::Buffer(buffer.id));
        };
        let is_write = matches!(wish, Wish::Storage { op: Op::Write, .. });
        let data = if is_write { &mut self.chain.readable } else { &mut self.chain.writable };
        std::mem::swap(&mut request.data, data);
        *request = Request {
            is_busy: true,
            is_queued: true,
            buffer,
            entry,
            generation,
            orders,
            cursor: Cursor::default(),
            data: std::mem::take(&mut request.data),
            status,
            writes,
            answer,
            reach,
            is_change,
        };
        self.busy += 1;
        self.of_generation += 1;
        self.to_submit.push_back(buffer.id);
        Ok(())
    }

    /// Whether the next request has to wait for requests of ended clients of the tenant.
    fn waits(&mut self) -> bool {
        if !self.client.is_fenced() || self.client.has_ended() {
            self.is_behind = false;
            return false;
        }
        if self.is_behind && !self.client.has_news() {
            return true;
        }
        let next = self.to_submit.front().and_then(|&id| self.requests.get(usize::from(id)));
        let reach = next.and_then(|request| request.reach);
        let waits = reach.is_some_and(|reach| self.client.waits(reach));
        if waits && !std::mem::replace(&mut self.is_behind, waits) {
            self.client.count();
            self.behind_s = 0;
        }
        self.is_behind = waits;
        waits
    }

    /// Submits the next order of the first request. False if there was none.
    fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) -> bool {
        let Some(&id) = self.to_submit.front() else { return false };
        let Some(request) = self.requests.get_mut(usize::from(id)) else { return false };
        if self.state == State::Detached {
            request.orders.fail(libc::ESHUTDOWN);
        } else if self.state == State::Dead {
            request.orders.fail(libc::ECANCELED);
        }
        if !request.orders.is_submittable() {
            request.is_queued = false;
            self.to_submit.pop_front();
            self.answer(id);
            return false;
        }
        let part = request.orders.next(&self.volume, path.device());
        self.parts.clear();
        if part.has_data() {
            request.cursor.take(&request.data, part.length(), &mut self.parts);
        }
        let (first, rest) = match self.parts.split_first() {
            Some((first, rest)) => (*first, rest),
            None => (Memory::NONE, &[][..]),
        };
        let cookie = u64::from(self.index) << 16 | u64::from(id);
        let submitted = match part.order(&self.volume, first, cookie) {
            // SAFETY: the memory is mapped until the last request of its generation has ended, and
            // this request does not end before its orders.
            Ok(order) => unsafe { path.submit(now_ns, ring, &order, rest) }.is_ok(),
            Err(error) => {
                request.orders.fail(error.errno());
                return false;
            }
        };
        if submitted {
            request.orders.submitted();
            self.orders += 1;
        } else {
            // The tenant was removed.
            request.orders.fail(libc::ESHUTDOWN);
        }
        submitted
    }

    /// Takes a finished order.
    pub fn finished(&mut self, Finished { cookie, errno, .. }: Finished) {
        self.orders -= 1;
        let id = cookie as u16;
        let Some(request) = self.requests.get_mut(usize::from(id)) else { return };
        request.orders.finished(errno);
        if request.orders.is_submittable() && !std::mem::replace(&mut request.is_queued, true) {
            self.to_submit.push_back(id);
        }
        self.answer(id);
    }

    /// Answers a request if it is not queued and all its orders have ended.
    fn answer(&mut self, id: u16) {
        let Some(request) = self.requests.get_mut(usize::from(id)) else { return };
        if !request.is_busy || request.is_queued || !request.orders.is_finished() {
            return;
        }
        let status = match request.orders.errno() {
            0 => request.answer,
            libc::EOPNOTSUPP => Status::Unsupported,
            _ => Status::Failed,
        };
        request.is_busy = false;
        if self.state != State::Dead {
            // SAFETY: the generation of the request's memory is still mapped.
            unsafe { blk::write_status(request.status, status) };
            let written = if status == Status::Ok { request.writes } else { 0 };
            self.queue.push(request.buffer, written.saturating_add(1));
            self.region.used(request.entry);
            self.has_pushed = true;
        }
        if self.client.has_ended() && request.is_change {
            self.client.over(u32::from(self.index) << 16 | u32::from(id));
        }
        let generation = request.generation;
        self.busy -= 1;
        self.leave(generation);
    }

    /// Counts a request of a generation as ended; drops an old generation without requests.
    fn leave(&mut self, generation: u32) {
        if generation == self.generation {
            self.of_generation -= 1;
            return;
        }
        self.old.retain_mut(|old| {
            old.requests -= u32::from(old.number == generation);
            old.requests > 0
        });
    }

    /// Publishes the used buffers, and calls the guest if it wants a call. True if it was called.
    pub fn flush(&mut self, ring: &mut Ring) -> bool {
        let mut has_called = false;
        if std::mem::take(&mut self.has_pushed) && !self.is_dead() {
            self.region.publishing(&self.queue);
            self.queue.publish();
            self.region.published(&self.queue);
            has_called = self.queue.wants_call();
            if has_called {
                self.calls.call(ring);
            }
            if self.guest.is_broken() {
                self.fail(Fault::Shrunk);
            }
        }
        if self.link.has_failed() {
            if !std::mem::replace(&mut self.has_reported, true) {
                self.errors.call(ring);
            }
            self.hang_up();
        }
        has_called
    }

    /// Marks the guest's device as failed and stops this vring; the others stop in a later turn.
    fn fail(&mut self, fault: Fault) {
        if STRANGERS.allows() {
            tracing::warn!(
                disk = self.link.name(), queue = self.key.queue, %fault,
                "a guest breaks the rules of its virtqueue: its device stops until it is reset"
            );
        }
        self.link.fail();
        self.hang_up();
    }

    /// Takes nothing more, and answers `reply` with its position when its requests have ended.
    pub fn stop(&mut self, reply: Sender<u32>) {
        self.drain();
        self.stopping = Some(reply);
    }

    /// Takes nothing more. One whose device has failed has nothing to answer, and ends.
    pub fn drain(&mut self) {
        match self.state {
            State::Open => self.state = State::Draining,
            State::Dead => self.is_given_up = true,
            State::Draining | State::Detached => {}
        }
    }

    /// Its tenant was removed: fails everything, and ends the session.
    pub fn detach(&mut self) {
        if self.state == State::Open {
            self.state = State::Detached;
        }
    }

    /// Answers nothing more, and ends its session.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
        self.hang_up();
    }

    /// Answers nothing more. `reply` is dropped when the device has no request of it.
    pub fn close(&mut self, reply: &Sender<()>) {
        self.closing.push(reply.clone());
        self.hang_up();
    }

    /// Answers nothing more. A vring whose device has failed stays until it is stopped or closed.
    fn hang_up(&mut self) {
        if self.state == State::Dead {
            return;
        }
        self.state = State::Dead;
        self.again.clear();
        if self.client.end() {
            for request in
                self.requests.iter().filter(|request| request.is_busy && request.is_change)
            {
                if let Some(reach) = request.reach {
                    let key = u32::from(self.index) << 16 | u32::from(request.buffer.id);
                    self.client.leave(key, reach);
                }
            }
        }
        // Orders that are not submitted end here; the front end cancels those that the policy has.
        while let Some(id) = self.to_submit.pop_front() {
            if let Some(request) = self.requests.get_mut(usize::from(id)) {
                request.is_queued = false;
                request.orders.fail(libc::ECANCELED);
            }
            self.answer(id);
        }
    }

    /// Goes on in another generation of the guest's memory.
    pub fn move_to(&mut self, ring: &mut Ring, guest: &Arc<Guest>) {
        self.flush(ring);
        let old = std::mem::replace(&mut self.guest, guest.clone());
        if self.of_generation > 0 {
            let (number, requests) = (self.generation, self.of_generation);
            self.old.push(Old { number, requests, _guest: old });
        }
        (self.generation, self.of_generation) = (self.generation.wrapping_add(1), 0);
        if !self.is_dead()
            && let Err(fault) = self.queue.rebind(guest, &self.layout.addresses)
        {
            self.fail(fault);
        }
    }

    /// Calls the guest on another file.
    pub fn set_call(&mut self, ring: &mut Ring, call: Option<OwnedFd>) {
        self.calls.replace(ring, call.map(Arc::new));
        // A call on the old file may have been missed.
        self.calls.call(ring);
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
            && let Some(&id) = self.to_submit.front()
            && let Some(request) = self.requests.get_mut(usize::from(id))
        {
            tracing::error!(
                disk = self.link.name(),
                "a request fails: writes of an earlier client of the tenant to the same bytes have \
                 not ended, and would land after it; see to the storage"
            );
            (request.reach, self.is_behind, self.behind_s) = (None, false, 0);
            request.orders.fail(libc::EIO);
        }
    }

    /// Cancels its pending read of a kick if `cancel`. True if no such read is pending.
    pub fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        if self.kick_in_ring && cancel {
            ring.cancel(self.event(KICK), self.event(CANCEL));
        }
        !self.kick_in_ring
    }

    /// Whether it has ended and may be dropped. Cancels operations on the ring that delay its end.
    pub fn has_ended(&mut self, ring: &mut Ring) -> bool {
        let is_over = match self.state {
            State::Open => false,
            State::Draining => true,
            State::Detached => !self.queue.has_news(),
            State::Dead => self.stopping.is_some() || !self.closing.is_empty() || self.is_given_up,
        };
        if !is_over || self.busy > 0 || !self.again.is_empty() {
            return false;
        }
        let has_kick = !self.halt(ring, true);
        if !self.calls.has_ended(ring) | !self.errors.has_ended(ring) | has_kick {
            return false;
        }
        match self.stopping.take() {
            Some(reply) => drop(reply.send(self.queue.base())),
            // The session has not requested this end, so the session ends, too.
            None if self.closing.is_empty() => self.link.hang_up(),
            None => {}
        }
        true
    }
}
