//! A request in flight: its data, what has been submitted of it, and its reply.

use fairq_core::Op;

use crate::device::Device;
use crate::io::memory::{Buffer, Memory};
use crate::nbd::serve::transport::Outbox;
use crate::nbd::wire::proto::{Command, CommandFlags, NbdError, Request};
use crate::nbd::wire::reply::HeaderBuf;
use crate::shard::fence::{Client, Reach};
use crate::shard::request;
use crate::shard::volume::{Order, PieceError, Volume};

/// The reply of an op.
pub(super) enum Reply {
    /// The reply is not known yet.
    Pending,
    /// A header without data.
    Header(HeaderBuf),
    /// A header, followed by the data.
    Data(HeaderBuf),
    /// A complete reply in memory of its own.
    Bytes(Box<[u8]>),
}

/// A request in flight.
pub(super) struct LiveRequest {
    pub(super) request: Request,
    /// All data of a read or write.
    pub(super) buffer: Option<Buffer>,
    /// The orders into which it is split.
    pub(super) orders: request::Request,
    /// The error with which it is refused, if it is.
    pub(super) refusal: Option<NbdError>,
    /// Whether the surveyor is processing its block status query.
    pub(super) is_asked: bool,
    pub(super) reply: Reply,
    /// Whether it has waited too long for an earlier connection's requests.
    pub(super) is_late: bool,
    /// Whether it is in `to_submit`, or waits for an earlier connection's requests.
    pub(super) queued: bool,
}

impl LiveRequest {
    pub(super) fn idle() -> LiveRequest {
        let request = Request {
            flags: CommandFlags(0),
            command: Command::Disconnect,
            cookie: 0,
            offset: 0,
            length: 0,
        };
        LiveRequest {
            request,
            buffer: None,
            orders: request::Request::void(),
            refusal: None,
            is_asked: false,
            is_late: false,
            reply: Reply::Pending,
            queued: false,
        }
    }

    /// A request that is to be carried out; the data of a write have not yet arrived.
    pub(super) fn new(request: Request) -> LiveRequest {
        LiveRequest { request, orders: orders_of(&request), ..LiveRequest::idle() }
    }

    /// A request that is refused.
    pub(super) fn refused(request: Request, error: NbdError) -> LiveRequest {
        LiveRequest { request, refusal: Some(error), ..LiveRequest::idle() }
    }

    pub(super) fn has_data(&self) -> bool {
        matches!(self.request.command, Command::Read | Command::Write)
    }

    /// Called when its client has ended. If it may change the volume's bytes, it is put in the
    /// fence, so that other clients' requests wait for it.
    pub(super) fn leave(&self, client: &Client, index: u16, volume: &Volume) {
        if matches!(self.request.command, Command::Write | Command::Trim | Command::WriteZeroes)
            && let Some(reach) = self.reach(volume)
        {
            client.leave(index.into(), reach);
        }
    }

    /// The bytes that it reads or changes, if any.
    pub(super) fn reach(&self, volume: &Volume) -> Option<Reach> {
        let Request { command, offset, length, .. } = self.request;
        match command {
            _ if self.refusal.is_some() => None,
            Command::Flush => Some(Reach::All),
            Command::Read
            | Command::Write
            | Command::Trim
            | Command::WriteZeroes
            | Command::BlockStatus => {
                let start = volume.base + offset;
                Some(Reach::Bytes { file: volume.file, start, end: start + length })
            }
            _ => None,
        }
    }

    /// The part of the buffer whose data have not yet arrived; no order uses it.
    pub(super) fn unfilled(&mut self) -> &mut [u8] {
        let rest = self.orders.ready() as u32..self.request.length as u32;
        self.buffer.as_mut().map_or(&mut [], |buffer| buffer.part_mut(rest))
    }

    /// Whether it has no query and no order left.
    pub(super) fn is_finished(&self) -> bool {
        !self.is_asked && self.orders.is_finished()
    }

    /// Makes its next order, if it is submittable.
    #[inline]
    pub(super) fn next_order<D: Device>(
        &mut self,
        volume: &Volume,
        device: &D,
        cookie: u64,
    ) -> Result<Order, PieceError> {
        let part = self.orders.next(volume, device);
        let memory = match &self.buffer {
            Some(buffer) if part.has_data() => buffer.memory_of(&part.range()),
            _ => Memory::NONE,
        };
        part.order(volume, memory, cookie)
    }

    /// The buffer of a read or write, if it has one.
    pub(super) fn data(&self) -> Option<&[u8]> {
        self.buffer.as_ref().map(Buffer::bytes)
    }

    /// The parts of its reply.
    pub(super) fn answer(&self) -> impl Iterator<Item = &[u8]> {
        let (header, data) = match &self.reply {
            Reply::Pending => unreachable!("an op without a reply is not ready"),
            Reply::Header(header) => (header.as_bytes(), None),
            Reply::Bytes(bytes) => (&bytes[..], None),
            Reply::Data(header) => (header.as_bytes(), self.data()),
        };
        std::iter::once(header).chain(data)
    }

    /// Puts its reply in the outbox.
    ///
    /// # Safety
    /// `self` stays in place and unchanged until the outbox has been cleared.
    pub(super) unsafe fn add_reply(&self, outbox: &mut Outbox) {
        for part in self.answer() {
            // SAFETY: the part belongs to this op, and the caller guarantees that the op stays in
            // place.
            unsafe { outbox.add(part) };
        }
    }
}

/// The orders of a request. A read-ahead (advice that a server with direct I/O cannot use) and a
/// block status request (which the surveyor answers) are one order without work.
fn orders_of(request: &Request) -> request::Request {
    let op = match request.command {
        Command::Read => Op::Read,
        Command::Write => Op::Write,
        Command::Trim => Op::Discard,
        Command::WriteZeroes => Op::WriteZeroes,
        Command::Flush => Op::Flush,
        _ => return request::Request::void(),
    };
    let length = if op == Op::Flush { 0 } else { request.length };
    let mut orders = request::Request::new(op, request.offset, length);
    orders.fua = request.fua();
    orders.no_hole = request.flags.contains(CommandFlags::NO_HOLE);
    orders.fast_only = request.flags.contains(CommandFlags::FAST_ZERO);
    if op == Op::Write { orders.without_data() } else { orders }
}
