//! A client's request on its way through a shard: it is split into orders, which are counted until
//! they have ended.
//!
//! A front end has a [`Request`] for each request of its clients. [`Request::next`] returns the
//! next part of it, [`Part::order`] makes the part's [`Order`], and [`Request::finished`] records
//! the end of each order. A request has ended when [`Request::is_finished`] is true, and has failed
//! if [`Request::errno`] is not 0.
//!
//! | request | its orders |
//! |---|---|
//! | read, write | pieces of [`PIECE`] bytes, submitted when their data have arrived |
//! | discard, write zeroes | one piece after the other, at most 32 MiB; zeroes that the device has to write, [`PIECE`] |
//! | either of them with FUA | a flush at the end, which is cheaper than a durable order for each piece; devices have no FUA flag for discards, which change only maps |
//! | flush | one |
//! | one that the server answers, or refuses | one without work, for which the tenant is charged |
//!
//! So the scheduler decides about small pieces, and one client's 32 MiB do not delay another
//! client's 512 bytes. After the first error no further order is submitted.
//!
//! **Example.** A guest writes 96 KiB from 24 pages. The parts have 64 and 32 KiB, for which
//! [`Cursor::take`] returns the first 16 and the last 8 pages.

use std::ops::Range;

use fairq_core::Op;

use crate::device::Device;
use crate::io::memory::Memory;
use crate::shard::volume::{Order, Piece, PieceError, Volume};

/// The longest order made of a read or write, in bytes. It is long enough that a device reaches its
/// bandwidth with a few orders, and short enough that one order delays others by only a fraction of
/// a millisecond and that its data stay in the CPU's cache between device and client.
pub const PIECE: u32 = 64 << 10;
/// The longest order made of a discard or zeroing that changes only maps, in bytes.
const MAP_PIECE: u64 = 32 << 20;

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    op: Op,
    /// Start of the range, in bytes from the volume's start.
    offset: u64,
    length: u64,
    /// Whether the data must be on stable storage at the end.
    pub fua: bool,
    /// See [`crate::device::Command::no_hole`].
    pub no_hole: bool,
    /// See [`crate::device::Command::fast_only`].
    pub fast_only: bool,
    /// The longest order for zeroes that the device has to write, in bytes.
    pub written_piece: u32,
    is_void: bool,
    /// Whether a client sent it, so that the client statistics count it.
    is_clients: bool,
    /// Bytes of the data that have arrived, so that pieces of them may be submitted.
    ready: u64,
    /// Bytes submitted.
    submitted: u64,
    /// Whether the order that ends it (a flush, or an order without work) has been submitted.
    is_closed: bool,
    outstanding: u32,
    errno: i32,
}

/// The next part of a request.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    piece: Piece,
    is_void: bool,
    /// The part's start among the request's bytes.
    start: u64,
}

impl Part {
    /// The part's range within the request's bytes.
    pub fn range(&self) -> Range<u32> {
        self.start as u32..self.start as u32 + self.piece.length
    }

    /// Its length in bytes.
    pub fn length(&self) -> u32 {
        self.piece.length
    }

    /// Whether the order needs memory.
    pub fn has_data(&self) -> bool {
        !self.is_void && matches!(self.piece.op, Op::Read | Op::Write)
    }

    /// The part's order. `memory` is the first stretch of the data, or [`Memory::NONE`] if it has
    /// none.
    #[inline]
    pub fn order(self, volume: &Volume, memory: Memory, cookie: u64) -> Result<Order, PieceError> {
        if self.is_void {
            return Ok(volume.void(cookie));
        }
        volume.order(&Piece { memory, cookie, ..self.piece })
    }
}

impl Request {
    /// A request whose data, if it has any, have already arrived.
    pub fn new(op: Op, offset: u64, length: u64) -> Request {
        Request {
            op,
            offset,
            length,
            fua: false,
            no_hole: false,
            fast_only: false,
            written_piece: PIECE,
            is_void: false,
            is_clients: true,
            ready: length,
            submitted: 0,
            is_closed: false,
            outstanding: 0,
            errno: 0,
        }
    }

    /// A request that needs no work of the device: a refused request, an advice, or a query that
    /// another thread answers. Its tenant is still charged for it, before the answer, so that many
    /// such requests use only the tenant's share of the server.
    pub fn void() -> Request {
        Request { is_void: true, ..Request::new(Op::Flush, 0, 0) }
    }

    /// The same request as the server's own work, which client statistics do not count.
    pub fn of_server(self) -> Request {
        Request { is_clients: false, ..self }
    }

    /// The same request before its data have arrived.
    pub fn without_data(self) -> Request {
        Request { ready: 0, ..self }
    }

    /// Records that `count` more bytes of its data have arrived.
    pub fn data_came(&mut self, count: u64) {
        self.ready += count;
    }

    /// Bytes of its data that have arrived.
    pub fn ready(&self) -> u64 {
        self.ready
    }

    /// Whether all of its data have arrived.
    pub fn is_ready(&self) -> bool {
        self.ready == self.length
    }

    /// Whether it is [`Request::void`].
    pub fn is_void(&self) -> bool {
        self.is_void
    }

    /// The first error, or 0.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Sets its error, unless it has failed already. No further order of it is submitted.
    pub fn fail(&mut self, errno: i32) {
        if self.errno == 0 {
            self.errno = errno;
        }
    }

    /// The number of its orders in flight.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Its operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Whether it reads or writes data.
    pub fn has_data(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }

    /// The end of the piece of data that begins at `submitted`.
    fn piece_end(&self) -> u64 {
        (self.submitted + u64::from(PIECE)).min(self.length)
    }

    /// Whether its last order, which has no bytes, has still to be submitted.
    fn wants_close(&self) -> bool {
        (self.op == Op::Flush || self.fua && !self.has_data()) && !self.is_closed
    }

    /// Whether [`Self::next`] has a part to submit now.
    pub fn is_submittable(&self) -> bool {
        if self.errno != 0 {
            return false;
        }
        match self.op {
            Op::Read | Op::Write => self.submitted < self.length && self.piece_end() <= self.ready,
            Op::Flush => !self.is_closed,
            Op::Discard | Op::WriteZeroes => {
                self.outstanding == 0 && (self.submitted < self.length || self.wants_close())
            }
        }
    }

    /// Whether all its orders have ended and none is to be submitted.
    pub fn is_finished(&self) -> bool {
        let is_submitted =
            !self.wants_close() && (self.op == Op::Flush || self.submitted == self.length);
        self.outstanding == 0 && (is_submitted || self.errno != 0)
    }

    /// Its next part; the request must be submittable. The caller then passes the order to the data
    /// path and calls [`Self::submitted`], or ends the request with [`Self::fail`].
    pub fn next<D: Device>(&mut self, volume: &Volume, device: &D) -> Part {
        let start = self.submitted;
        let (op, length) = match self.op {
            Op::Read | Op::Write => (self.op, self.piece_end() - start),
            Op::Discard | Op::WriteZeroes if start < self.length => {
                let is_written =
                    self.op == Op::WriteZeroes && !device.zeroes_by_map(volume.file, self.no_hole);
                let longest = if is_written { self.written_piece.into() } else { MAP_PIECE };
                // The part ends at a multiple of `longest` in the file, so that no block is split.
                let at = volume.base.wrapping_add(self.offset).wrapping_add(start);
                (self.op, (self.length - start).min(longest - at % longest))
            }
            _ => {
                self.is_closed = true;
                (Op::Flush, 0)
            }
        };
        self.submitted += length;
        let piece = Piece {
            // Zeroes and discards end with a flush instead.
            fua: self.fua && op == Op::Write,
            no_hole: self.no_hole,
            fast_only: self.fast_only,
            begins: self.is_clients && start == 0,
            ..Piece::new(op, self.offset.wrapping_add(start), length as u32, Memory::NONE, 0)
        };
        Part { piece, is_void: self.is_void, start }
    }

    /// Records that the data path has accepted an order.
    pub fn submitted(&mut self) {
        self.outstanding += 1;
    }

    /// Records that an order has ended with this errno, or 0.
    pub fn finished(&mut self, errno: i32) {
        self.outstanding -= 1;
        self.fail(errno);
    }
}

/// A position in the memory of a request that has several stretches.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cursor {
    stretch: usize,
    at: u32,
}

impl Cursor {
    /// Appends the stretches of the next `length` bytes to `part`; fewer at the end of the memory.
    pub fn take(&mut self, stretches: &[Memory], length: u32, part: &mut Vec<Memory>) {
        let mut left = length;
        while left > 0
            && let Some(stretch) = stretches.get(self.stretch)
        {
            let count = left.min(stretch.length - self.at);
            if count > 0 {
                let address = stretch.address.wrapping_add(self.at as usize);
                part.push(Memory { address, length: count, ..*stretch });
            }
            (left, self.at) = (left - count, self.at + count);
            if self.at == stretch.length {
                (self.stretch, self.at) = (self.stretch + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::null::NullDevice;
    use crate::shard::volume::tests::volume;

    /// The orders of a request, where each order ends before the next is submitted: operation,
    /// offset, length and FUA.
    fn orders(mut request: Request) -> Vec<(Op, u64, u32, bool)> {
        let volume = volume(0, 1 << 40, false, 1);
        let (device, mut orders) = (NullDevice::new(1 << 30), Vec::new());
        while request.is_submittable() {
            let order = request.next(&volume, &device).order(&volume, Memory::NONE, 0).unwrap();
            assert!(!order.is_void());
            orders.push((order.op(), order.offset(), order.length(), order.fua()));
            request.submitted();
            request.finished(0);
        }
        assert!(request.is_finished());
        orders
    }

    /// Discards and zeroes are split into pieces; durable ones end with one flush.
    #[test]
    fn durable_discards_and_zeroes_end_with_a_flush() {
        let flush = (Op::Flush, 0, 0, false);
        for op in [Op::Discard, Op::WriteZeroes] {
            let request = Request::new(op, 0, 40 << 20);
            let pieces = [(op, 0, 32 << 20, false), (op, 32 << 20, 8 << 20, false)];
            assert_eq!(orders(request), pieces);
            let durable = orders(Request { fua: true, ..request });
            assert_eq!(durable, [&pieces[..], &[flush]].concat());
        }
        assert_eq!(orders(Request { fua: true, ..Request::new(Op::Flush, 0, 0) }), [flush]);
    }

    #[test]
    fn a_write_is_cut_as_its_data_come_and_ends_with_its_first_error() {
        let volume = volume(0, 1 << 40, false, 1);
        let device = NullDevice::new(1 << 30);
        let write = Request { fua: true, ..Request::new(Op::Write, 512, 150_000) };
        let mut write = write.without_data();
        assert!(!write.is_submittable());
        write.data_came(65_535);
        assert!(!write.is_submittable());
        write.data_came(84_465);
        let mut parts = Vec::new();
        while write.is_submittable() {
            let part = write.next(&volume, &device);
            parts.push(part.range());
            assert!(part.order(&volume, Memory::NONE, 0).unwrap().fua());
            write.submitted();
        }
        assert_eq!(parts, [0..65_536, 65_536..131_072, 131_072..150_000]);
        [0, libc::ENOSPC, libc::EIO].into_iter().for_each(|errno| write.finished(errno));
        assert!(write.is_finished() && write.errno() == libc::ENOSPC);
        assert!(orders(Request::new(Op::Read, 0, 0)).is_empty());
    }

    #[test]
    fn a_void_request_is_one_order_without_work() {
        let volume = volume(0, 1 << 40, false, 1);
        let (device, mut request) = (NullDevice::new(1 << 30), Request::void());
        let order = request.next(&volume, &device).order(&volume, Memory::NONE, 7).unwrap();
        assert!(order.is_void() && order.cookie() == 7);
        request.submitted();
        assert!(!request.is_submittable() && !request.is_finished());
        request.finished(0);
        assert!(request.is_finished());
    }

    proptest! {
        /// The parts of a request have all stretches' bytes, in order, and no others.
        #[test]
        fn the_parts_of_a_request_have_its_memory(
            lengths in prop::collection::vec(0..100_000_u32, 0..20),
        ) {
            let mut address = 4096_usize;
            let stretches: Vec<Memory> = lengths.iter().map(|&length| {
                let memory = Memory { address: address as *mut u8, length, fixed: None };
                address += length as usize + 100;
                memory
            }).collect();
            let length: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
            let volume = volume(0, 1 << 40, false, 1);
            let (device, mut cursor) = (NullDevice::new(1 << 30), Cursor::default());
            let mut request = Request::new(Op::Write, 0, length);
            let mut all: Vec<Memory> = Vec::new();
            while request.is_submittable() {
                let part = request.next(&volume, &device);
                let mut memories = Vec::new();
                cursor.take(&stretches, part.length(), &mut memories);
                prop_assert_eq!(memories.iter().map(|one| one.length).sum::<u32>(), part.length());
                for memory in memories {
                    match all.last_mut() {
                        Some(last)
                            if last.address.wrapping_add(last.length as usize)
                                == memory.address =>
                        {
                            last.length += memory.length;
                        }
                        _ => all.push(memory),
                    }
                }
            }
            let place = |memory: &Memory| (memory.address as usize, memory.length);
            let whole: Vec<_> = stretches.iter().filter(|one| one.length > 0).map(place).collect();
            prop_assert_eq!(all.iter().map(place).collect::<Vec<_>>(), whole);
        }
    }
}
