//! One NBD connection in its transmission phase, as a shard serves it.
//!
//! ```text
//!   socket ─ recv ─▶ incoming ─ parse ─▶ LiveRequest ─ pieces ─▶ orders ─▶ data path
//!   socket ◀─ send ─ outbox ◀─ ready ◀─ all orders finished ◀────────────────────┘
//! ```
//!
//! **Bounds.** A connection has a fixed number of requests in flight and one region of buffers. If
//! either is exhausted, the next request is not taken in (`Intake::Stalled`) and the server stops
//! reading this socket. This delays this client and no other connection.
//!
//! **Ownership.** An *op* is the slot of a request in flight (`LiveRequest`). It has one buffer
//! for all data of the request, so that one receive takes all of the payload that has arrived. Each
//! piece has a part of this buffer. The part belongs to the socket during a receive, to the device
//! between submit and finish, and to the socket again while the reply is sent; the buffer is freed
//! when the reply has been sent. So later writes to the file cannot change a reply. Ops are in a
//! boxed slice that never moves, because replies are sent from the headers in them.

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

/// The largest number of extents in one block status reply.
const MAX_EXTENTS: usize = 128;
/// The pieces of memory in a reply: a header, and data.
const REPLY_PIECES: usize = 2;
/// A payload of at least this many bytes is received directly into its buffer, and the next receive
/// then takes only the header after it. A smaller payload is received into `incoming` with the
/// bytes after it.
const DIRECT_PAYLOAD: u64 = 16 << 10;
/// The reason in the reply to a request that has waited too long for an earlier connection's
/// writes.
const LATE: &str =
    "writes of an earlier connection to the same bytes have not ended on the storage";
/// The most payload that one receive takes, in bytes: as many pieces as the shard issues in a
/// batch. The received bytes are then still in a cache when the device takes them.
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
    /// Memory for one request of the largest size and some small ones, in bytes.
    pub const MIN_MEMORY: usize = 40 << 20;

    /// The number of tags that a shard needs, so that no connection ever waits for another's
    /// requests to end. A tag is needed for each order: at least one for each request in flight,
    /// and one for each of the `memory / PIECE` whole pieces that the memory holds.
    pub const fn tags(&self, connections: usize) -> usize {
        connections * (self.depth as usize + self.memory / PIECE as usize)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: 512, memory: Self::MIN_MEMORY }
    }
}

/// The connection's position in the stream of requests.
enum Intake {
    /// The next bytes are a request's header.
    Header,
    /// A request waits for a free op or for buffer memory.
    Stalled(Request),
    /// The next bytes are the payload of this op, a write.
    Payload { op: u16 },
    /// The payload of a refused request is skipped (`skip` bytes); then the error is sent.
    Refused { request: Request, error: NbdError, skip: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The connection serves requests.
    Open,
    /// It accepts no more requests, and answers the requests it has.
    Draining,
    /// It sends no more replies; it waits until the device and the ring have returned its buffers.
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
    /// The barrier at which all shards report which clients of this tenant have ended. The
    /// connection takes nothing in before the barrier is released.
    gate: Option<Arc<Meeting>>,
    region: Region,
    incoming: Incoming,
    intake: Intake,
    /// Whether the last request had a large payload.
    is_bulky: bool,
    ops: Box<[LiveRequest]>,
    free: Vec<u16>,
    /// Ops with orders that have not yet been submitted.
    to_submit: VecDeque<u16>,
    /// Whether the connection is queued for its turn to submit.
    has_turn: bool,
    /// Ops that wait for requests of clients that have ended.
    behind: VecDeque<Behind>,
    /// Block status requests that wait for the surveyor, and whether one is with the surveyor.
    to_ask: VecDeque<u16>,
    is_asking: bool,
    /// Ops whose reply is ready.
    ready: VecDeque<u16>,
    outbox: Outbox,
    pacing: Pacing,
    state: State,
    farewell: Farewell,
    /// Whether the end of the client's stream has been received.
    is_received: bool,
    /// Whether the stream is received further while a request waits for buffers.
    reads_ahead: bool,
    /// Whether the peer no longer reads, so that replies are dropped.
    is_unread: bool,
    /// Whether the client has taken bytes since the last check.
    has_taken: bool,
    /// The number of seconds for which the server has waited for a client that leaves.
    waited_s: u8,
    /// Whether its tenant has been removed.
    is_detached: bool,
    /// Whether it has begun a request since the last check.
    was_used: bool,
    /// Whether its staged requests have been cancelled, where that was possible.
    is_cancelled: bool,
    /// Whether the shard is paused, so that the connection starts no operation on the ring.
    is_halted: bool,
}

/// Kinds of ring operations of a connection, in the low bits of their user data.
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
/// The pause before a receive begins. Its completion is ignored.
const PAUSE: u64 = 2;
/// The cancellation of one of these operations. Its completion is ignored as well.
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

    /// The volume now has this many bytes. The client still uses the size that it received when it
    /// connected: if the volume is smaller, its requests beyond the end fail; if it is larger, the
    /// client has to connect again to use the rest.
    pub(super) fn resize(&mut self, size: u64) {
        self.volume.size = self.volume.size.min(size);
    }

    /// Makes the connection take nothing in until this barrier is released.
    pub fn after(self, gate: Option<Arc<Meeting>>) -> Conn {
        Conn { gate, ..self }
    }

    /// Takes in the received requests while ops and buffers are free, and starts the next receive.
    /// Their orders are submitted in the connection's turn.
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

    /// Whether it has orders to submit and is not yet queued for its turn; it then is queued.
    pub fn wants_turn(&mut self) -> bool {
        !self.to_submit.is_empty() && !std::mem::replace(&mut self.has_turn, true)
    }

    /// Submits at most `most` orders. Returns their number, and whether the connection needs
    /// another turn.
    pub fn take_turn<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        orders: u32,
    ) -> (u32, bool) {
        // The turn may have been queued by an earlier connection with the same index.
        if !self.has_turn {
            return (0, false);
        }
        let given = self.submit(now_ns, ring, path, orders);
        self.has_turn = !self.to_submit.is_empty();
        (given, self.has_turn)
    }

    /// The number of the connection's tenant.
    pub fn tenant(&self) -> u16 {
        self.volume.tenant
    }

    /// Takes one step through the stream of requests; false if it has to wait for bytes or buffers.
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

    /// Whether a request waits for a free op or for buffers.
    fn is_stalled(&self) -> bool {
        matches!(self.intake, Intake::Stalled(_) | Intake::Refused { skip: 0, .. })
    }

    /// Moves bytes that were received earlier into `incoming`; false if there are none.
    fn refill(&mut self) -> bool {
        self.incoming.refill().unwrap_or_else(|error| {
            self.end_tls(&error);
            false
        })
    }

    /// Closes the connection, because the received bytes are not valid TLS.
    fn end_tls(&mut self, error: &rustls::Error) {
        if STRANGERS.allows() {
            tracing::warn!(connection = self.index, %error, "TLS: closing the connection");
        }
        self.hang_up();
    }

    /// Starts a request; false if it has to wait for a free op or for buffers.
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
            // The client sends the payload of a refused write anyway, before its next header.
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

    /// Queues an op whose orders are to be submitted.
    fn enqueue(&mut self, index: u16) {
        let op = &mut self.ops[usize::from(index)];
        if !op.queued {
            op.queued = true;
            self.to_submit.push_back(index);
        }
    }

    /// Copies received payload into the op's buffer; false if the payload is not yet complete.
    fn take_payload(&mut self, index: u16) -> bool {
        let count = self.incoming.read(self.ops[usize::from(index)].unfilled());
        self.payload_came(index, count as u32) || self.refill()
    }

    /// Records that `count` more bytes of a write's payload are in its buffer, so that complete
    /// pieces may be submitted. True if the payload is complete.
    fn payload_came(&mut self, index: u16, count: u32) -> bool {
        let op = &mut self.ops[usize::from(index)];
        op.orders.data_came(count.into());
        let is_complete = op.orders.is_ready();
        self.intake = if is_complete { Intake::Header } else { Intake::Payload { op: index } };
        // A write that has already failed is answered after its whole payload has arrived.
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
        // A refusal needs an op, too, because the tenant is charged for it and its reply has a
        // header. Once all of the payload is skipped, it waits until `flush` frees an op.
        self.intake = Intake::Refused { request, error, skip };
        skip > 0 && self.refill()
    }

    /// Sends the next block status request to the surveyor, if the last one has been answered.
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

    /// Turns the surveyor's answer into a reply.
    pub(super) fn surveyed(&mut self, Answer { op: index, extents, .. }: Answer) {
        self.is_asking = false;
        let op = &mut self.ops[usize::from(index)];
        op.is_asked = false;
        let request = op.request;
        // The protocol requires an extent. Without one, as after a failure, the reply is `EIO`.
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

    /// Submits at most `most` orders while the shard has tags for them; returns their number.
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
                // A write that failed early is answered when the rest of its payload has arrived.
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

    /// Handles a finished order.
    pub fn finished(&mut self, Finished { cookie, errno, .. }: Finished) {
        let index = cookie as u16;
        let op = &mut self.ops[usize::from(index)];
        op.orders.finished(errno);
        if op.orders.is_submittable() {
            self.enqueue(index);
        }
        self.answer_if_over(index);
    }

    /// Answers an op if it has no payload to receive and no order to finish. An op in `to_submit`
    /// is answered when it leaves that list.
    fn answer_if_over(&mut self, index: u16) {
        let op = &self.ops[usize::from(index)];
        let in_payload = matches!(self.intake, Intake::Payload { op } if op == index);
        if op.queued || !op.is_finished() || in_payload || !matches!(op.reply, Reply::Pending) {
            return;
        }
        // An order without work has charged the tenant; the surveyor then provides the answer.
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

    /// Sends the replies that are ready. True if this freed an op or buffers for a waiting request.
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

    /// Whether it has orders that wait for the shard's tags or for other connections. Both waits
    /// end with an event or a wake-up.
    pub fn has_unsubmitted(&self) -> bool {
        !self.to_submit.is_empty() || !self.behind.is_empty() || self.gate.is_some()
    }

    /// Sends the outbox: at once, or otherwise when the socket is writable.
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

    /// Frees the ops in the outbox: their replies have been sent, or will never be sent.
    fn sent(&mut self) {
        let mut sending = std::mem::take(&mut self.outbox.sending);
        sending.drain(..).for_each(|index| self.release(index));
        self.outbox.sending = sending;
        self.outbox.clear();
    }

    /// Starts a receive if its bytes are needed and there is memory for them: at once, or when the
    /// client has read most of its replies.
    fn receive(&mut self, ring: &mut Ring) {
        let has_more = self.incoming.in_ring || self.incoming.replay().is_some();
        if self.state != State::Open || has_more || self.is_received {
            return;
        }
        let payload = match self.intake {
            // A socket that is not read fills, and its client waits: this is the back pressure.
            Intake::Stalled(_) if !self.reads_ahead && !self.is_unread => return,
            // TLS has to decrypt first, and bytes in `incoming` precede those in the socket.
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
        // payload goes to. Neither is accessed or freed while `in_ring` is set, which the event of
        // this operation clears. The message is boxed and changed only by the next receive, and the
        // timeout is a static.
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

    /// Handles the event of a ring operation.
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
            // If both directions are closed, the client can read no answer. If only one is, the
            // client may still read. The bytes before the end are taken in first.
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
            // The connection has an event, so the next `arrivals` starts another receive.
            errno if errno == -libc::EINTR || errno == -libc::EAGAIN => {}
            // The time limit of the pause expired, which cancels the linked receive.
            errno if errno == -libc::ECANCELED => self.pacing.gave_up(),
            // The connection was reset: no bytes follow those already received.
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

/// The cookie of an op's order: the connection and the op.
fn cookie(conn: u32, op: u16) -> u64 {
    u64::from(conn) << 32 | u64::from(op)
}
