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
    /// Not known yet.
    Pending,
    /// A header alone.
    Header(HeaderBuf),
    /// A header and the data.
    Data(HeaderBuf),
    /// A reply of its own making.
    Bytes(Box<[u8]>),
}

/// A request in flight.
pub(super) struct LiveRequest {
    pub(super) request: Request,
    /// All data of a read or write.
    pub(super) buffer: Option<Buffer>,
    /// Its orders.
    pub(super) orders: request::Request,
    /// Why it is refused, if it is.
    pub(super) refusal: Option<NbdError>,
    /// The surveyor has its question.
    pub(super) is_asked: bool,
    pub(super) reply: Reply,
    /// It has waited too long for an earlier connection's requests.
    pub(super) is_late: bool,
    /// It stands in `to_submit`, or waits for an earlier connection's requests.
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

    /// A request that is carried out; the data of a write are yet to come.
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

    /// Its client has ended: if it may change the volume's bytes, it stands before the requests of
    /// others from now on.
    pub(super) fn leave(&self, client: &Client, index: u16, volume: &Volume) {
        if matches!(self.request.command, Command::Write | Command::Trim | Command::WriteZeroes)
            && let Some(reach) = self.reach(volume)
        {
            client.leave(index.into(), reach);
        }
    }

    /// The bytes that it is about, if any.
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

    /// The data that are yet to come, which nobody else has.
    pub(super) fn unfilled(&mut self) -> &mut [u8] {
        let rest = self.orders.ready() as u32..self.request.length as u32;
        self.buffer.as_mut().map_or(&mut [], |buffer| buffer.part_mut(rest))
    }

    /// Whether nothing more will happen to it.
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

    /// All data of a read or write, as far as they are there.
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
    /// It stays where it is, and as it is, until the outbox has been cleared.
    pub(super) unsafe fn add_reply(&self, outbox: &mut Outbox) {
        for part in self.answer() {
            // SAFETY: it is a part of this op, or its own, for which the caller vouches.
            unsafe { outbox.add(part) };
        }
    }
}

/// The device's part of a request. Reading ahead is advice that a server with direct I/O
/// has no use for, and the surveyor answers questions of what a range holds.
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
