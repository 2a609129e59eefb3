//! One NBD connection in its transmission phase, as a shard serves it.
//!
//! ```text
//!   socket ─ recv ─▶ inbuf ─ parse ─▶ LiveRequest ─ pieces ─▶ orders ─▶ data path
//!   socket ◀─ send ─ outbox ◀─ ready ◀─ all orders finished ◀─────────────────┘
//! ```
//!
//! **Bounds.** A connection has a fixed number of requests in flight and one region of buffers.
//! When either is exhausted the next request stays where it is (`Intake::Stalled`), nothing more is
//! read from this socket, and the client feels it; no other connection does.
//!
//! **Ownership.** An op has one buffer for all its data, so that one receive takes all of its
//! payload that has come. A piece's part of it is the socket's while a receive names it, the
//! device's between submit and finish, the socket's again while the reply is sent; the op frees the
//! buffer when the reply has left. So a reply is the server's own memory until it is the socket's,
//! and shows nothing that is written to the file later. Ops live in a boxed slice that never moves,
//! because replies are sent from the headers inside them.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use fairq_core::Port;
use io_uring::{opcode, types};

use crate::device::Device;
use crate::io::memory::Region;
use crate::io::ring::{Asker, Ring, UserData};
use crate::nbd::serve::live_request::{LiveRequest, Reply};
use crate::nbd::serve::pacing::{PATIENCE, Pacing};
use crate::nbd::serve::survey::{Answer, Question, SurveyClient};
use crate::nbd::serve::transport::{Incoming, Outbox};
use crate::nbd::wire::proto::{
    Command, CommandFlags, NbdError, Negotiated, Request, parse_request, request_len, validate,
};
use crate::nbd::wire::reply::{BlockStatus, ReplyStyle, STATE_HOLE, STATE_ZERO};
use crate::observe::log_limit::STRANGERS;
use crate::shard::Meeting;
use crate::shard::fence::{Client, Reach};
use crate::shard::path::{DataPath, Finished};
use crate::shard::request::PIECE;
use crate::shard::volume::Volume;

mod accepted;
mod behind;
mod ending;
mod packed;

pub use accepted::{Connect, Pass};
use behind::Behind;
use ending::{Closed, Farewell};
pub use packed::{Packed, Rest};

/// Extents in one block status reply.
const MAX_EXTENTS: usize = 128;
/// Pieces of memory in a reply: a header, and data.
const REPLY_PIECES: usize = 2;
/// A payload of at least this much is received straight into its buffer, and then just the header
/// that follows it; a smaller one goes through `inbuf` with whatever follows it.
const DIRECT_PAYLOAD: u64 = 16 << 10;
/// Why a request fails that has waited too long for an earlier connection's.
const LATE: &str =
    "writes of an earlier connection to the same bytes have not ended on the storage";
/// The most of a payload that one receive takes, in bytes: a batch of orders. The received bytes
/// are then still in a cache when the device takes them.
const PAYLOAD_PART: usize = 8 * PIECE as usize;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight.
    pub depth: u16,
    /// Bytes of buffers; at least [`Limits::MIN_MEMORY`].
    pub memory: usize,
}

impl Limits {
    /// Room for one request of the largest size and some small ones beside it.
    pub const MIN_MEMORY: usize = 40 << 20;

    /// The live requests that a shard must be able to hold so that no connection ever waits for
    /// another's to end: each request in flight is one order, and the memory has room for so many
    /// whole pieces more.
    pub const fn tags(&self, connections: usize) -> usize {
        connections * (self.depth as usize + self.memory / PIECE as usize)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: 512, memory: Self::MIN_MEMORY }
    }
}

/// Where the connection is in the stream of requests.
enum Intake {
    /// At a request's header.
    Header,
    /// A request for which there was no room.
    Stalled(Request),
    /// In the payload of a write: this op.
    Payload { op: u16 },
    /// In the payload of a refused request: bytes to skip, then answer with the error.
    Refused { request: Request, error: NbdError, skip: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Serving.
    Open,
    /// Takes no more requests, answers those it has.
    Draining,
    /// Answers nothing any more; waits for what others still hold.
    Dead,
}

/// A connection.
pub struct Conn {
    index: u32,
    fd: OwnedFd,
    negotiated: Negotiated,
    style: ReplyStyle,
    volume: Volume,
    client: Client,
    /// Over when all shards have found out which clients of its tenant have ended; until then it
    /// takes nothing in.
    gate: Option<Arc<Meeting>>,
    region: Region,
    incoming: Incoming,
    intake: Intake,
    /// The last request had a large payload.
    is_bulky: bool,
    ops: Box<[LiveRequest]>,
    free: Vec<u16>,
    /// Ops with orders that are yet to be submitted.
    to_submit: VecDeque<u16>,
    /// It waits for its turn to do that.
    has_turn: bool,
    /// Ops that wait for requests of clients that have ended.
    behind: VecDeque<Behind>,
    /// Ops that are questions of what a range holds, and whether one has been put.
    to_ask: VecDeque<u16>,
    is_asking: bool,
    /// Ops whose reply is ready.
    ready: VecDeque<u16>,
    outbox: Outbox,
    pacing: Pacing,
    state: State,
    farewell: Farewell,
    /// The client's stream is received to its end.
    is_received: bool,
    /// A request that has no room does not keep the stream behind it from being received.
    reads_ahead: bool,
    /// The peer reads nothing: answers are dropped.
    is_unread: bool,
    /// The client has taken bytes since the last check.
    has_taken: bool,
    /// For how many seconds a client that leaves has been waited for.
    waited_s: u8,
    /// Its tenant has been removed.
    is_detached: bool,
    /// It has begun a request since the last check.
    was_used: bool,
    /// Its staged requests have been cancelled, as far as that was possible.
    is_cancelled: bool,
    /// It starts no operation on the ring.
    is_halted: bool,
}

/// Kinds of ring operations of a connection, in the low bits of their user data.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
/// The pause before a receive begins; nothing waits for its end.
const PAUSE: u64 = 2;
/// The cancellation of one of these; nothing waits for its end, either.
const CANCEL: u64 = 3;

/// The user data's value of an operation of connection `index`.
fn event_value(index: u32, kind: u64) -> u64 {
    u64::from(index) << 2 | kind
}

/// The connection that an event's value names.
pub(super) fn event_index(value: u64) -> usize {
    (value >> 2) as usize
}

/// The connection that a finished order's cookie names.
pub(super) fn cookie_index(cookie: u64) -> usize {
    (cookie >> 32) as usize
}

impl Conn {
    /// A connection that has finished its handshake.
    pub fn new(
        index: u32,
        connect: Connect,
        client: Client,
        region: Region,
        limits: Limits,
    ) -> Conn {
        let Connect { fd, tls, negotiated, volume, .. } = connect;
        Conn {
            index,
            fd,
            style: ReplyStyle::of(&negotiated),
            negotiated,
            volume,
            client,
            gate: None,
            region,
            incoming: Incoming::new(tls),
            intake: Intake::Header,
            is_bulky: false,
            ops: (0..limits.depth).map(|_| LiveRequest::idle()).collect(),
            free: (0..limits.depth).rev().collect(),
            to_submit: VecDeque::with_capacity(usize::from(limits.depth)),
            has_turn: false,
            behind: VecDeque::new(),
            to_ask: VecDeque::new(),
            is_asking: false,
            ready: VecDeque::with_capacity(usize::from(limits.depth)),
            outbox: Outbox::default(),
            pacing: Pacing::default(),
            state: State::Open,
            farewell: Farewell::None,
            is_received: false,
            reads_ahead: false,
            is_unread: false,
            has_taken: false,
            waited_s: 0,
            is_detached: false,
            was_used: false,
            is_cancelled: false,
            is_halted: false,
        }
    }

    /// Its volume has this many bytes now. Its client knows the size of the time when it
    /// connected: it finds a smaller one out by an error, and a larger one when it connects again.
    pub(super) fn resize(&mut self, size: u64) {
        self.volume.size = self.volume.size.min(size);
    }

    /// It takes nothing in before this meeting is over.
    pub fn after(self, gate: Option<Arc<Meeting>>) -> Conn {
        Conn { gate, ..self }
    }

    /// Takes in the received requests for which there is room, and starts the next receive. Their
    /// orders are submitted in the connection's turn.
    pub fn arrivals(&mut self, ring: &mut Ring, survey: &mut SurveyClient) {
        if self.state == State::Dead {
            return self.discard();
        }
        self.gate.take_if(|gate| gate.is_over());
        if self.gate.is_some() {
            return;
        }
        while self.state == State::Open && self.take_in() {}
        if self.is_received && !self.is_stalled() {
            self.drain();
            self.leave();
        }
        if !self.behind.is_empty() {
            self.take_up();
        }
        self.ask(survey);
        self.receive(ring);
    }

    /// Whether it has orders to submit and does not wait for its turn yet; it does then.
    pub fn wants_turn(&mut self) -> bool {
        !self.to_submit.is_empty() && !std::mem::replace(&mut self.has_turn, true)
    }

    /// Submits at most so many orders. Gives how many they were, and whether it waits for another
    /// turn.
    pub fn take_turn<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        orders: u32,
    ) -> (u32, bool) {
        // The turn may be that of a connection which had this one's place.
        if !self.has_turn {
            return (0, false);
        }
        let given = self.submit(now_ns, ring, path, orders);
        self.has_turn = !self.to_submit.is_empty();
        (given, self.has_turn)
    }

    /// The number of its tenant.
    pub fn tenant(&self) -> u16 {
        self.volume.tenant
    }

    /// Takes one step through the stream of requests; false if it cannot go on now.
    fn take_in(&mut self) -> bool {
        match std::mem::replace(&mut self.intake, Intake::Header) {
            Intake::Header => {
                match parse_request(self.incoming.bytes(), self.negotiated.extended) {
                    Ok(None) => self.refill(),
                    Ok(Some((request, header))) => {
                        self.incoming.consume(header);
                        self.begin(request)
                    }
                    Err(error) => {
                        if STRANGERS.allows() {
                            tracing::warn!(connection = self.index, %error, "malformed request: \
                             closing the connection");
                        }
                        self.hang_up();
                        false
                    }
                }
            }
            Intake::Stalled(request) => self.begin(request),
            Intake::Payload { op } => self.take_payload(op),
            Intake::Refused { request, error, skip } => self.skip(request, error, skip),
        }
    }

    /// Whether it has a request for which there is no room.
    fn is_stalled(&self) -> bool {
        matches!(self.intake, Intake::Stalled(_) | Intake::Refused { skip: 0, .. })
    }

    /// Gets more bytes that came earlier; false if there are none.
    fn refill(&mut self) -> bool {
        self.incoming.refill().unwrap_or_else(|error| {
            self.end_tls(&error);
            false
        })
    }

    /// The received bytes are no TLS, so the connection ends.
    fn end_tls(&mut self, error: &rustls::Error) {
        if STRANGERS.allows() {
            tracing::warn!(connection = self.index, %error, "TLS: closing the connection");
        }
        self.hang_up();
    }

    /// Starts a request; false if it has to wait for room.
    fn begin(&mut self, request: Request) -> bool {
        if request.command == Command::Disconnect {
            self.farewell = Farewell::GoodBye;
            self.state = State::Draining;
            self.leave();
            return false;
        }
        self.is_bulky = false;
        self.was_used = true;
        if let Err(error) = validate(&request, &self.negotiated) {
            // The payload of a refused write comes all the same, and the next header is behind it.
            return self.skip(request, error, request.payload(self.negotiated.extended));
        }
        let Some(index) = self.free.pop() else {
            self.intake = Intake::Stalled(request);
            return false;
        };
        let op = &mut self.ops[usize::from(index)];
        *op = LiveRequest::new(request);
        if op.has_data() {
            op.buffer = self.region.allocate(request.length as u32);
            if op.buffer.is_none() {
                self.free.push(index);
                self.intake = Intake::Stalled(request);
                return false;
            }
        }
        if self.client.has_ended() {
            op.leave(&self.client, index, &self.volume);
        }
        self.reads_ahead = false;
        self.is_bulky = request.command == Command::Write && request.length >= DIRECT_PAYLOAD;
        match request.command {
            Command::Write => self.intake = Intake::Payload { op: index },
            _ => self.enqueue(index),
        }
        true
    }

    /// Notes that an op has orders to submit.
    fn enqueue(&mut self, index: u16) {
        let op = &mut self.ops[usize::from(index)];
        if !op.queued {
            op.queued = true;
            self.to_submit.push_back(index);
        }
    }

    /// Copies payload that has come into the op's buffer; false if more has to come first.
    fn take_payload(&mut self, index: u16) -> bool {
        let count = self.incoming.read(self.ops[usize::from(index)].unfilled());
        self.payload_came(index, count as u32) || self.refill()
    }

    /// Notes that so much of a write's payload is in its buffer: pieces that are complete may be
    /// submitted. True if that was all.
    fn payload_came(&mut self, index: u16, count: u32) -> bool {
        let op = &mut self.ops[usize::from(index)];
        op.orders.data_came(count.into());
        let is_complete = op.orders.is_ready();
        self.intake = if is_complete { Intake::Header } else { Intake::Payload { op: index } };
        // A write that has already failed is answered when its payload has come to its end.
        if is_complete || op.orders.is_submittable() {
            self.enqueue(index);
        }
        is_complete
    }

    /// Skips the payload of a refused request and answers it.
    fn skip(&mut self, request: Request, error: NbdError, mut skip: u64) -> bool {
        skip -= self.incoming.discard(skip);
        if skip == 0
            && let Some(index) = self.free.pop()
        {
            self.ops[usize::from(index)] = LiveRequest::refused(request, error);
            self.enqueue(index);
            return true;
        }
        // A refusal needs an op, too: its tenant is charged for it, and its reply needs a place.
        // With all of the payload skipped it waits until `flush` frees one.
        self.intake = Intake::Refused { request, error, skip };
        skip > 0 && self.refill()
    }

    /// Puts the next question of what a range holds, if the last has been answered.
    fn ask(&mut self, survey: &mut SurveyClient) {
        if self.is_asking || self.state == State::Dead {
            return;
        }
        let Some(index) = self.to_ask.pop_front() else { return };
        let op = &mut self.ops[usize::from(index)];
        op.is_asked = true;
        self.is_asking = true;
        let most = if op.request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { MAX_EXTENTS };
        let (file, offset) = (self.volume.file, self.volume.base + op.request.offset);
        survey.ask(Question {
            conn: self.index,
            op: index,
            file,
            offset,
            length: op.request.length,
            most,
        });
    }

    /// Takes the answer to a question, and makes it a reply.
    pub(super) fn surveyed(&mut self, Answer { op: index, extents, .. }: Answer) {
        self.is_asking = false;
        let op = &mut self.ops[usize::from(index)];
        op.is_asked = false;
        let request = op.request;
        // An answer without an extent is not allowed: then, as after a failure, it is `EIO`.
        let reply = extents.ok().and_then(|extents| {
            let context = self.negotiated.base_allocation?;
            let mut bytes = vec![0; BlockStatus::buffer_len(MAX_EXTENTS)];
            let mut status = BlockStatus::new(self.style, &request, context, &mut bytes);
            for extent in extents {
                let flags = if extent.is_hole { STATE_HOLE | STATE_ZERO } else { 0 };
                if !status.push(extent.length, flags) {
                    break;
                }
            }
            let length = status.finish()?;
            bytes.truncate(length);
            Some(Reply::Bytes(bytes.into_boxed_slice()))
        });
        let reply =
            reply.unwrap_or_else(|| Reply::Header(self.style.error(&request, NbdError::Io)));
        self.answer(index, reply);
    }

    /// Submits at most so many orders while the shard has room for them; gives their number.
    fn submit<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        most: u32,
    ) -> u32 {
        let mut given = 0;
        while let Some(&index) = self.to_submit.front() {
            if given == most || !path.has_room() {
                break;
            }
            if self.goes_behind(index) {
                self.to_submit.pop_front();
                continue;
            }
            let op = &mut self.ops[usize::from(index)];
            if self.is_detached {
                op.orders.fail(libc::ESHUTDOWN);
            }
            if !op.orders.is_submittable() {
                op.queued = false;
                self.to_submit.pop_front();
                // A write that failed early is answered when the rest of its payload has come.
                self.answer_if_over(index);
                continue;
            }
            let cookie = cookie(self.index, index);
            let order = match op.next_order(&self.volume, path.device(), cookie) {
                Ok(order) => order,
                Err(error) => {
                    op.orders.fail(error.errno());
                    continue;
                }
            };
            // SAFETY: the memory is a part of the op's buffer, which the op neither accesses nor
            // frees until the order is finished (`finished` counts its orders down to 0 before the
            // op goes on).
            match unsafe { path.submit(now_ns, ring, &order, &[]) } {
                Ok(()) => {
                    op.orders.submitted();
                    given += 1;
                }
                // The tenant was removed while its connection was open.
                Err(_) => op.orders.fail(libc::ESHUTDOWN),
            }
        }
        given
    }

    /// Takes a finished order.
    pub fn finished(&mut self, Finished { cookie, errno, .. }: Finished) {
        let index = cookie as u16;
        let op = &mut self.ops[usize::from(index)];
        op.orders.finished(errno);
        if op.orders.is_submittable() {
            self.enqueue(index);
        }
        self.answer_if_over(index);
    }

    /// Answers an op if nothing more will happen to it. An op in `to_submit` is answered when it
    /// leaves that list.
    fn answer_if_over(&mut self, index: u16) {
        let op = &self.ops[usize::from(index)];
        let in_payload = matches!(self.intake, Intake::Payload { op } if op == index);
        if op.queued || !op.is_finished() || in_payload || !matches!(op.reply, Reply::Pending) {
            return;
        }
        // Its tenant has been charged by an order without work; the surveyor gives the answer.
        if op.orders.errno() == 0
            && op.refusal.is_none()
            && op.request.command == Command::BlockStatus
        {
            return self.to_ask.push_back(index);
        }
        let error = match op.orders.errno() {
            0 => op.refusal,
            errno => Some(NbdError::from_errno_for(errno, &op.request)),
        };
        let reply = match (error, op.request.command) {
            (Some(error), _) if op.is_late => {
                Reply::Bytes(self.style.error_because(&op.request, error, LATE))
            }
            (Some(error), _) => Reply::Header(self.style.error(&op.request, error)),
            (None, Command::Read) => Reply::Data(self.style.data(
                &op.request,
                op.request.offset,
                op.request.length as u32,
                true,
            )),
            (None, _) => Reply::Header(self.style.done(&op.request)),
        };
        self.answer(index, reply);
    }

    fn answer(&mut self, index: u16, reply: Reply) {
        if self.client.has_ended() {
            self.client.over(index.into());
        }
        self.ops[usize::from(index)].reply = reply;
        self.ready.push_back(index);
    }

    /// Frees an op and its buffers.
    fn release(&mut self, index: u16) {
        if self.client.has_ended() {
            self.client.over(index.into());
        }
        let op = &mut self.ops[usize::from(index)];
        op.reply = Reply::Pending;
        if let Some(buffer) = op.buffer.take() {
            self.region.free(buffer);
        }
        self.free.push(index);
    }

    /// Sends the replies that are ready. True if that made room for a request that waits for it.
    pub fn flush(&mut self, ring: &mut Ring) -> bool {
        let free = self.free.len();
        loop {
            if self.state == State::Draining && self.free.len() == self.ops.len() {
                // The last answer has been sent, so the TLS session ends.
                self.incoming.close_tls();
            }
            if self.is_unread {
                while let Some(index) = self.ready.pop_front() {
                    self.release(index);
                }
                break;
            }
            let has_output = !self.ready.is_empty() || self.incoming.has_output();
            if !has_output || !self.outbox.is_empty() || self.state == State::Dead {
                break;
            }
            while let Some(&index) = self.ready.front() {
                let op = &self.ops[usize::from(index)];
                if !self.outbox.has_room_for(REPLY_PIECES) {
                    break;
                }
                self.ready.pop_front();
                // SAFETY: ops never move, and this one is not accessed before `sent` has cleared
                // the outbox and released it.
                unsafe { op.add_reply(&mut self.outbox) };
                self.outbox.sending.push(index);
            }
            self.pacing.replying(self.outbox.sending.len(), self.outbox.bytes());
            self.send(ring);
        }
        if self.state == State::Dead {
            self.discard();
        }
        let waits = matches!(self.intake, Intake::Stalled(_) | Intake::Refused { .. });
        self.state == State::Open && waits && self.free.len() > free
    }

    /// Whether it has orders that the shard had no room for, or that wait for other connections:
    /// both end with an event or a wake-up.
    pub fn has_unsubmitted(&self) -> bool {
        !self.to_submit.is_empty() || !self.behind.is_empty() || self.gate.is_some()
    }

    /// Sends what is in the outbox: at once if the socket takes it, else when it does.
    fn send(&mut self, ring: &mut Ring) {
        match self.outbox.send_now(&self.fd, self.incoming.tls()) {
            Ok(true) => {
                self.has_taken = true;
                self.sent();
            }
            Ok(false) => {
                let entry = self.outbox.send_operation(&self.fd);
                let value = event_value(self.index, SEND);
                // SAFETY: the outbox keeps its message header, iovecs and their memory (op headers,
                // buffers, its own bytes) in place until the event of this operation has been
                // taken.
                unsafe { ring.push(entry, UserData { asker: Asker::Nbd, value }) };
                self.outbox.in_ring = true;
            }
            Err(error) => {
                tracing::debug!(connection = self.index, %error, "client is gone");
                self.sent();
                self.answer_refused(error.raw_os_error());
            }
        }
    }

    /// Everything in the outbox has left, or never will.
    fn sent(&mut self) {
        let mut sending = std::mem::take(&mut self.outbox.sending);
        sending.drain(..).for_each(|index| self.release(index));
        self.outbox.sending = sending;
        self.outbox.clear();
    }

    /// Asks for more bytes, if there is room for them and use: at once, or when the client has read
    /// most of its replies.
    fn receive(&mut self, ring: &mut Ring) {
        let has_more = self.incoming.in_ring || self.incoming.replay().is_some();
        if self.state != State::Open || has_more || self.is_received {
            return;
        }
        let payload = match self.intake {
            // A socket that is not read fills, and its client waits: this is the back pressure.
            Intake::Stalled(_) if !self.reads_ahead && !self.is_unread => return,
            // TLS has to decrypt first, and bytes that wait in `incoming` come before the socket's.
            Intake::Payload { op }
                if !self.incoming.is_tls() && self.incoming.bytes().is_empty() =>
            {
                self.is_bulky.then(|| self.ops[usize::from(op)].unfilled())
            }
            _ => None,
        };
        let fd = types::Fd(self.fd.as_raw_fd());
        let header = request_len(self.negotiated.extended);
        let entry = match payload {
            Some(rest) if rest.len() > PAYLOAD_PART => {
                self.incoming.receive_payload(fd, &mut rest[..PAYLOAD_PART], 0)
            }
            Some(rest) => self.incoming.receive_payload(fd, rest, header),
            // Another large payload may follow this one.
            None if self.is_bulky => self.incoming.receive(fd, header),
            None => self.incoming.receive(fd, usize::MAX),
        };
        let Some(entry) = entry else { return };
        let name = |kind| UserData { asker: Asker::Nbd, value: event_value(self.index, kind) };
        // SAFETY: the bytes are free space of `incoming`, or the rest of the buffer that the
        // payload goes to; neither is accessed or freed while `in_ring` is set, which the event of
        // this operation clears. The message is boxed and changed by the next receive only, and the
        // time is a static.
        unsafe {
            if self.pacing.can_pause() && self.incoming.direct == 0 {
                let writable = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
                let patience = opcode::LinkTimeout::new(&PATIENCE).build();
                ring.push_chain([
                    (writable, name(PAUSE)),
                    (patience, name(PAUSE)),
                    (entry, name(RECEIVE)),
                ]);
            } else {
                ring.push(entry, name(RECEIVE));
            }
        }
        self.incoming.in_ring = true;
    }

    /// Takes the event of a ring operation.
    pub fn event(&mut self, ring: &mut Ring, value: u64, result: i32) {
        if matches!(value & 3, PAUSE | CANCEL) {
            return;
        }
        if value & 3 == SEND {
            self.has_taken |= result > 0;
            if self.is_halted && matches!(-result, libc::ECANCELED | libc::EINTR | libc::EAGAIN) {
                self.outbox.in_ring = false;
                return;
            }
            if self.outbox.event(result).is_err() || self.state == State::Dead {
                self.sent();
                self.answer_refused(Some(-result));
            } else if !self.is_halted {
                self.send(ring);
            }
            return;
        }
        self.incoming.in_ring = false;
        match result {
            _ if self.state == State::Dead => {}
            // With both directions closed no answer can be read. With one, a client may still read.
            // The bytes before the end are taken in first.
            0 => {
                self.is_received = true;
                if self.farewell == Farewell::None {
                    self.farewell = Farewell::EndOfStream;
                }
                self.leave();
                if self.closed() == Some(Closed::Both) {
                    self.has_gone();
                }
            }
            // The connection has an event, so the next `arrivals` starts a receive again.
            errno if errno == -libc::EINTR || errno == -libc::EAGAIN => {}
            // The time limit of the pause ran out, which cancels the receive that is chained to it.
            errno if errno == -libc::ECANCELED => self.pacing.gave_up(),
            // A reset: what has come before it is all there is.
            errno if errno < 0 => {
                self.is_received = true;
                self.leave();
                self.has_gone();
            }
            count => {
                let payload = self.incoming.direct.min(count as usize);
                if payload > 0
                    && let Intake::Payload { op } = self.intake
                {
                    self.payload_came(op, payload as u32);
                }
                let count = count as usize - payload;
                if let Err(error) = self.incoming.received(count) {
                    self.end_tls(&error);
                }
            }
        }
    }
}

/// The name of an op's order: which connection, which op.
fn cookie(conn: u32, op: u16) -> u64 {
    u64::from(conn) << 32 | u64::from(op)
}
