//! A request in flight: its data, what has been submitted of it, and its reply.

use std::ops::Range;

use fairq_core::Op;

use crate::device::Device;
use crate::io::memory::{Buffer, Memory};
use crate::nbd::serve::transport::Outbox;
use crate::nbd::wire::proto::{Command, CommandFlags, MAX_PAYLOAD, NbdError, Request};
use crate::nbd::wire::reply::HeaderBuf;
use crate::shard::fence::{Client, Reach};
use crate::shard::volume::{Order, Piece, PieceError, Volume};

/// The longest order made of a read or write, in bytes: long enough that a device reaches its
/// bandwidth with a few, short enough that one delays others by a fraction of a millisecond, and is
/// in the cache from the device to the socket.
pub(super) const CHUNK: u32 = 64 << 10;
/// Chunks of the longest read.
pub(super) const CHUNKS: usize = (MAX_PAYLOAD / CHUNK) as usize;
/// The longest order made of a discard or zeroing, in bytes: what a device does at a time. Where
/// zeroes are written it is [`CHUNK`].
const DATALESS_CHUNK: u64 = 32 << 20;

/// What an op answers.
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
    /// Bytes of the data that are there, so that chunks of them may be submitted.
    pub(super) filled: u32,
    /// Chunks submitted (for requests without data: bytes submitted).
    pub(super) submitted: u64,
    /// The order that ends it, a flush or one without work, has been submitted.
    pub(super) is_flushed: bool,
    /// Why it is refused, if it is.
    pub(super) refusal: Option<NbdError>,
    pub(super) outstanding: u32,
    pub(super) errno: i32,
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
            filled: 0,
            submitted: 0,
            is_flushed: false,
            refusal: None,
            outstanding: 0,
            errno: 0,
            is_late: false,
            reply: Reply::Pending,
            queued: false,
        }
    }

    pub(super) fn has_data(&self) -> bool {
        matches!(self.request.command, Command::Read | Command::Write)
    }

    /// Whether the device has nothing to do for it: it is refused, advice, or a question that
    /// another thread answers. Its tenant is charged for it all the same, before it is answered, so
    /// that a flood of such requests takes a tenant's part of the server and no more.
    pub(super) fn is_void(&self) -> bool {
        self.refusal.is_some()
            || matches!(self.request.command, Command::Cache | Command::BlockStatus)
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

    /// How many chunks its data make.
    pub(super) fn chunks(&self) -> u64 {
        self.request.length.div_ceil(u64::from(CHUNK))
    }

    /// Where in the data a chunk begins and ends.
    pub(super) fn chunk(&self, index: u64) -> Range<u32> {
        let start = index * u64::from(CHUNK);
        start as u32..(start + u64::from(CHUNK)).min(self.request.length) as u32
    }

    /// The data that are yet to come, which nobody else has.
    pub(super) fn unfilled(&mut self) -> &mut [u8] {
        let rest = self.filled..self.request.length as u32;
        self.buffer.as_mut().map_or(&mut [], |buffer| buffer.part_mut(rest))
    }

    /// Whether another order can be submitted now.
    pub(super) fn is_submittable(&self) -> bool {
        if self.errno != 0 {
            return false;
        }
        match self.request.command {
            _ if self.is_void() => !self.is_flushed,
            Command::Read | Command::Write => {
                self.submitted < self.chunks() && self.chunk(self.submitted).end <= self.filled
            }
            Command::Flush => !self.is_flushed,
            _ => self.outstanding == 0 && (self.has_pieces() || self.wants_flush()),
        }
    }

    /// Whether a piece of a discard or zeroing is still to be submitted.
    fn has_pieces(&self) -> bool {
        self.submitted < self.request.length
    }

    /// Whether it ends with a flush that is still to be submitted. A discard or zeroing that is to
    /// be durable does: one flush is cheaper than a durable order for each piece, and a discard
    /// changes only maps, for which devices have no flag.
    fn wants_flush(&self) -> bool {
        self.request.fua() && !self.is_flushed
    }

    /// Whether nothing more will happen to it.
    pub(super) fn is_finished(&self) -> bool {
        let all = match self.request.command {
            _ if self.is_void() => self.is_flushed,
            Command::Read | Command::Write => self.submitted == self.chunks(),
            Command::Flush => self.is_flushed,
            _ => !self.has_pieces() && !self.wants_flush(),
        };
        self.outstanding == 0 && (all || self.errno != 0)
    }

    /// Makes its next order, if it is submittable.
    pub(super) fn next_order<D: Device>(
        &mut self,
        volume: &Volume,
        device: &D,
        cookie: u64,
    ) -> Result<Order, PieceError> {
        let request = &self.request;
        let no_hole = request.flags.contains(CommandFlags::NO_HOLE);
        let (op, at, length, memory) = match request.command {
            _ if self.is_void() => {
                self.is_flushed = true;
                return Ok(volume.void(cookie));
            }
            Command::Read | Command::Write => {
                let chunk = self.chunk(self.submitted);
                let op = if request.command == Command::Read { Op::Read } else { Op::Write };
                let memory =
                    self.buffer.as_ref().map_or(Memory::NONE, |buffer| buffer.memory_of(&chunk));
                self.submitted += 1;
                (op, u64::from(chunk.start), chunk.end - chunk.start, memory)
            }
            _ if request.command == Command::Flush || !self.has_pieces() => {
                self.is_flushed = true;
                (Op::Flush, 0, 0, Memory::NONE)
            }
            _ => {
                let op =
                    if request.command == Command::Trim { Op::Discard } else { Op::WriteZeroes };
                let is_written =
                    op == Op::WriteZeroes && !device.zeroes_by_map(volume.file, no_hole);
                let longest = if is_written { u64::from(CHUNK) } else { DATALESS_CHUNK };
                let at = self.submitted;
                // It ends at a multiple of that in the file: no block is cut.
                let length = (request.length - at)
                    .min(longest - (volume.base + request.offset + at) % longest);
                self.submitted += length;
                (op, at, length as u32, Memory::NONE)
            }
        };
        volume.order(&Piece {
            // Zeroes and discards end with a flush instead, and the other commands write nothing.
            fua: request.fua() && op == Op::Write,
            no_hole,
            fast_only: request.flags.contains(CommandFlags::FAST_ZERO),
            ..Piece::new(op, request.offset + at, length, memory, cookie)
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::null::NullDevice;

    /// What is submitted for a request, as the device gets it.
    fn orders(command: Command, flags: CommandFlags, length: u64) -> Vec<(Op, u32, bool)> {
        use fairq_core::{Native, Policy, Weight, none::NonePolicy};
        let (policy, _ports) = NonePolicy::<Native>::new(1, 1, 1).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let (tenant, file, base, size) = (0, 0, 0, length);
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        let request = Request { flags, command, cookie: 0, offset: 0, length };
        let mut op = LiveRequest { request, ..LiveRequest::idle() };
        let (device, mut orders) = (NullDevice::new(1 << 30), Vec::new());
        while op.is_submittable() {
            let order = op.next_order(&volume, &device, 0).unwrap();
            assert!(!order.is_void());
            orders.push((order.op(), order.length(), order.fua()));
        }
        assert!(op.is_finished());
        orders
    }

    /// Discards and zeroes go by pieces; those that are to be durable end with one flush.
    #[test]
    fn durable_discards_and_zeroes_end_with_a_flush() {
        let flush = (Op::Flush, 0, false);
        for (command, op) in [(Command::Trim, Op::Discard), (Command::WriteZeroes, Op::WriteZeroes)]
        {
            let pieces = [(op, 32 << 20, false), (op, 8 << 20, false)];
            assert_eq!(orders(command, CommandFlags(0), 40 << 20), pieces);
            let durable = orders(command, CommandFlags::FUA, 40 << 20);
            assert_eq!(durable, [&pieces[..], &[flush]].concat());
        }
        assert_eq!(orders(Command::Flush, CommandFlags::FUA, 0), [flush]);
    }
}
