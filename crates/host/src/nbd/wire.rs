//! The two directions of a connection's byte stream, with or without TLS.
//!
//! [`Incoming`] holds bytes that have come and are not yet consumed; [`Outbox`] holds one batch of
//! replies until the socket has taken it. Neither makes a decision about the protocol.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};
use rustls::ServerConnection;

use crate::device::file::Source;
use crate::memory::Memory;
use crate::nbd::pipe::{INLINE, Pipe};

/// Bytes of requests that may wait to be consumed: hundreds of small requests, or the start of a
/// large payload.
const INCOMING: usize = 64 << 10;
/// Memory pieces in one send; the kernel allows 1024.
const MAX_PIECES: usize = 1000;
/// Bytes after which a batch is full, so that with TLS its copy stays small.
const MAX_BATCH: usize = 4 << 20;

/// Bytes from the client.
pub(super) struct Incoming {
    plain: Box<[u8]>,
    start: usize,
    end: usize,
    tls: Option<Tls>,
    /// A receive is under way.
    pub(super) in_ring: bool,
    /// The first so many bytes of the receive go to a payload buffer, not here.
    pub(super) direct: usize,
    /// What the kernel reads while a receive to two places is in the ring.
    message: Box<Message>,
}

/// A message header and its two pieces.
struct Message {
    header: libc::msghdr,
    pieces: [libc::iovec; 2],
}

// SAFETY: the raw pointers are to memory of the connection that owns this, and move with it.
unsafe impl Send for Message {}

struct Tls {
    session: Box<ServerConnection>,
    /// What the socket gave.
    cipher: Box<[u8]>,
    start: usize,
    end: usize,
    /// The good-bye has been said.
    is_closed: bool,
}

impl Incoming {
    pub(super) fn new(session: Option<Box<ServerConnection>>) -> Incoming {
        let cipher = || vec![0; INCOMING].into_boxed_slice();
        Incoming {
            plain: vec![0; INCOMING].into_boxed_slice(),
            start: 0,
            end: 0,
            tls: session.map(|session| Tls {
                session,
                cipher: cipher(),
                start: 0,
                end: 0,
                is_closed: false,
            }),
            in_ring: false,
            direct: 0,
            // SAFETY: all-zero is a valid message header and are valid pieces: no address, no
            // control data.
            message: Box::new(unsafe { std::mem::zeroed() }),
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn tls(&mut self) -> Option<&mut ServerConnection> {
        self.tls.as_mut().map(|tls| &mut *tls.session)
    }

    /// Whether TLS itself has something to send.
    pub(super) fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.wants_write())
    }

    /// Makes TLS say good-bye, once.
    pub(super) fn close_tls(&mut self) {
        if let Some(tls) = &mut self.tls
            && !std::mem::replace(&mut tls.is_closed, true)
        {
            tls.session.send_close_notify();
        }
    }

    /// The bytes not yet consumed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.plain[self.start..self.end]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Copies bytes to `out` and consumes them; how many.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.end - self.start);
        out[..count].copy_from_slice(&self.plain[self.start..self.start + count]);
        self.consume(count);
        count
    }

    /// Consumes up to `count` bytes; how many.
    pub(super) fn discard(&mut self, count: u64) -> u64 {
        let count = count.min((self.end - self.start) as u64);
        self.consume(count as usize);
        count
    }

    /// Moves what waits to the front of the buffer, making room behind it.
    fn compact(&mut self) {
        if self.start > 0 {
            self.plain.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Gets more bytes out of TLS, if it holds any; true if it did.
    pub(super) fn refill(&mut self) -> bool {
        self.compact();
        let Some(tls) = &mut self.tls else { return false };
        // An error here was noticed when the bytes were received; what is left is "no more".
        let _ = tls.decrypt();
        let count = tls.session.reader().read(&mut self.plain[self.end..]).unwrap_or(0);
        self.end += count;
        count > 0
    }

    /// The operation that takes what has come, until so many bytes (as they come, with TLS) wait to
    /// be consumed, or as there is room for.
    pub(super) fn receive(&mut self, fd: types::Fd, most: usize) -> Option<squeue::Entry> {
        let waiting = self.bytes().len();
        let most = if self.is_tls() { usize::MAX } else { most.saturating_sub(waiting).max(1) };
        let (address, length) = self.space()?;
        self.direct = 0;
        Some(opcode::Recv::new(fd, address, length.min(most) as u32).build())
    }

    /// The operation that takes the rest of a large payload, and the `header` bytes that begin the
    /// next request: with those the next payload can go to its own place, too, and none of it is
    /// copied. Nothing may wait to be consumed.
    pub(super) fn receive_payload(
        &mut self,
        fd: types::Fd,
        rest: &mut [u8],
        header: usize,
    ) -> Option<squeue::Entry> {
        let (address, length) = self.space()?;
        self.direct = rest.len();
        let Message { header: message, pieces } = &mut *self.message;
        *pieces = [
            libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
            libc::iovec { iov_base: address.cast(), iov_len: header.min(length) },
        ];
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        Some(opcode::RecvMsg::new(fd, message).build())
    }

    /// Where the next receive may write: address and length.
    fn space(&mut self) -> Option<(*mut u8, usize)> {
        self.compact();
        let space = match &mut self.tls {
            None => &mut self.plain[self.end..],
            Some(tls) => {
                tls.cipher.copy_within(tls.start..tls.end, 0);
                tls.end -= tls.start;
                tls.start = 0;
                &mut tls.cipher[tls.end..]
            }
        };
        if space.is_empty() { None } else { Some((space.as_mut_ptr(), space.len())) }
    }

    /// The receive brought `count` bytes.
    pub(super) fn received(&mut self, count: usize) -> Result<(), rustls::Error> {
        match &mut self.tls {
            None => {
                self.end += count;
                Ok(())
            }
            Some(tls) => {
                tls.end += count;
                tls.decrypt()
            }
        }
    }
}

impl Tls {
    /// Gives TLS what has come, as far as it takes it.
    fn decrypt(&mut self) -> Result<(), rustls::Error> {
        while self.start < self.end {
            let mut cipher = &self.cipher[self.start..self.end];
            match self.session.read_tls(&mut cipher) {
                Ok(0) => break,
                Ok(count) => self.start += count,
                // It holds as much plaintext as it may: it goes on when that has been read.
                Err(_) => break,
            }
            self.session.process_new_packets()?;
        }
        Ok(())
    }
}

/// One batch of replies.
///
/// **Data in place.** A piece may be memory that is yet to be filled, with a place in the file
/// where the data are ([`InFile`]). Such a piece goes to the socket by the [`Pipe`], without being
/// read, and short pieces with it, as it is mostly a header before data. What the file does not
/// have any more in its cache, or has lost at its end, when the piece's turn comes, is fetched into
/// that memory by the ring; from then on it is a piece like others. So however far a reply has been
/// sent, the rest of it can follow.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: Vec<libc::iovec>,
    /// The first piece not yet sent, or put into the pipe.
    first: usize,
    /// Those whose data are in the file, in order.
    in_file: VecDeque<InFile>,
    pipe: Option<Pipe>,
    /// Time has passed since the data in the file were known to be in the cache.
    pub(super) has_waited: bool,
    bytes: usize,
    /// What TLS made of the replies; without TLS they are sent from where they are.
    cipher: Vec<u8>,
    /// What the kernel reads while a send is in the ring.
    message: Option<Box<libc::msghdr>>,
    /// The ops whose replies are in it.
    pub(super) sending: Vec<u16>,
    /// An operation is under way, and what it does.
    pub(super) in_ring: Option<Pending>,
}

/// A piece whose data are in the file.
struct InFile {
    piece: usize,
    /// Where in the file they end.
    end: u64,
    /// Bytes of it that have been fetched.
    fetched: usize,
}

/// What is under way for an outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pending {
    /// Pieces of memory are sent.
    Send,
    /// The socket is to take more.
    Room,
    /// The first piece is read from the file.
    Fetch,
}

/// How far a batch has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// It has left.
    Sent,
    /// The socket is full, or data have to be fetched: an operation is to be put on the ring.
    Waits(Pending),
}

// SAFETY: the raw pointers are to memory of the connection that owns the outbox, and move with it.
unsafe impl Send for Outbox {}

impl Outbox {
    /// With a pipe data in place can be added.
    pub(super) fn new(pipe: Option<Pipe>) -> Outbox {
        Outbox { pipe, ..Outbox::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// How much the replies in it are, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_room_for(&self, pieces: usize) -> bool {
        self.pieces.is_empty() && self.cipher.is_empty() && self.sending.is_empty()
            || (self.pieces.len() + pieces <= MAX_PIECES && self.bytes < MAX_BATCH)
    }

    /// Adds bytes. Without TLS they are not copied: they stay in place until the batch has left.
    pub(super) fn add(&mut self, bytes: &[u8], tls: &mut Option<&mut ServerConnection>) {
        self.bytes += bytes.len();
        match tls {
            None => {
                let iov_base = bytes.as_ptr().cast_mut().cast();
                self.pieces.push(libc::iovec { iov_base, iov_len: bytes.len() });
            }
            Some(session) => {
                // The session buffers without bound here; the batch is bounded.
                session
                    .writer()
                    .write_all(bytes)
                    .expect("writing to a TLS session's buffer does not fail");
            }
        }
    }

    /// Adds data that are in the file from `offset` on. The memory is where they go if they have to
    /// be fetched, and nobody else's until the batch has left.
    pub(super) fn add_in_file(&mut self, memory: Memory, offset: u64) {
        let length = memory.length as usize;
        self.bytes += length;
        self.in_file.push_back(InFile {
            piece: self.pieces.len(),
            end: offset + u64::from(memory.length),
            fetched: 0,
        });
        self.pieces.push(libc::iovec { iov_base: memory.address.cast(), iov_len: length });
    }

    /// Ends the batch.
    pub(super) fn seal(&mut self, tls: Option<&mut ServerConnection>) {
        let Some(session) = tls else { return };
        while session.wants_write() {
            session.write_tls(&mut self.cipher).expect("writing to memory does not fail");
        }
        if !self.cipher.is_empty() {
            let iov_base = self.cipher.as_mut_ptr().cast();
            self.pieces.push(libc::iovec { iov_base, iov_len: self.cipher.len() });
        }
    }

    /// Sends without waiting.
    pub(super) fn send_now(
        &mut self,
        fd: &OwnedFd,
        source: Option<&Source>,
    ) -> io::Result<Progress> {
        loop {
            if let (Some(_), Some(source)) = (self.in_file.front(), source)
                && let Some(pending) = self.fill_pipe(source)?
                && self.pipe.as_ref().is_none_or(Pipe::is_empty)
            {
                return Ok(Progress::Waits(pending));
            }
            if let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
                if !pipe.send(fd.as_fd())? {
                    return Ok(Progress::Waits(Pending::Room));
                }
            } else if self.first == self.pieces.len() {
                return Ok(Progress::Sent);
            } else if !self.send_memory(fd)? {
                return Ok(Progress::Waits(Pending::Send));
            }
        }
    }

    /// Puts pieces into the pipe, if it is empty, until it is full or a longer one is memory. What
    /// has to be done if a piece in the file cannot go there.
    fn fill_pipe(&mut self, source: &Source) -> io::Result<Option<Pending>> {
        let Some(mut pipe) = self.pipe.take_if(|pipe| pipe.is_empty()) else { return Ok(None) };
        let pending = self.fill(&mut pipe, source);
        self.pipe = Some(pipe);
        pending
    }

    fn fill(&mut self, pipe: &mut Pipe, source: &Source) -> io::Result<Option<Pending>> {
        while pipe.has_room()
            && let Some(&libc::iovec { iov_base, iov_len }) = self.pieces.get(self.first)
        {
            match self.in_file.front() {
                Some(&InFile { piece, end, fetched }) if piece == self.first => {
                    let offset = end - iov_len as u64;
                    if fetched > 0 || self.has_waited && !source.is_cached(offset, iov_len as u64) {
                        return Ok(Some(Pending::Fetch));
                    }
                    let count = match pipe.splice(source, offset, iov_len) {
                        Ok(0) => return Ok(Some(Pending::Fetch)),
                        Ok(count) => count,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        Err(error) => return Err(error),
                    };
                    if count == iov_len {
                        self.in_file.pop_front();
                    }
                    self.advance(count);
                }
                _ if iov_len <= INLINE => {
                    // SAFETY: a piece of memory stays in place and is nobody else's until the batch
                    // has left.
                    pipe.write(unsafe { std::slice::from_raw_parts(iov_base.cast(), iov_len) })?;
                    self.advance(iov_len);
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Sends the pieces of memory that come first; false if the socket is full.
    fn send_memory(&mut self, fd: &OwnedFd) -> io::Result<bool> {
        let message = self.header();
        // SAFETY: the header names pieces that stay in place until the batch has left.
        let sent = unsafe {
            libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        if sent < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(false),
                Some(libc::EINTR) => Ok(true),
                _ => Err(error),
            };
        }
        self.advance(sent as usize);
        Ok(true)
    }

    /// The operation that goes on when that is possible.
    pub(super) fn operation(
        &mut self,
        pending: Pending,
        fd: &OwnedFd,
        source: Option<&Source>,
    ) -> squeue::Entry {
        let socket = types::Fd(fd.as_raw_fd());
        match (pending, source, self.in_file.front()) {
            (Pending::Fetch, Some(source), Some(&InFile { piece, end, fetched })) => {
                let libc::iovec { iov_base, iov_len } = self.pieces[piece];
                let (address, length) = (iov_base.wrapping_byte_add(fetched), iov_len - fetched);
                let file = types::Fd(source.as_fd().as_raw_fd());
                let entry = opcode::Read::new(file, address.cast(), length as u32);
                entry.offset(end - length as u64).build()
            }
            (Pending::Send, ..) => {
                let header = self.header();
                let message: &libc::msghdr = self.message.insert(Box::new(header));
                opcode::SendMsg::new(socket, message).flags(libc::MSG_NOSIGNAL as u32).build()
            }
            _ => opcode::PollAdd::new(socket, libc::POLLOUT as u32).build(),
        }
    }

    /// The operation has ended.
    pub(super) fn event(&mut self, result: i32) -> io::Result<()> {
        self.has_waited = true;
        match (self.in_ring.take(), result) {
            (Some(Pending::Fetch), result) if result == -libc::EAGAIN || result == -libc::EINTR => {
                Ok(())
            }
            (_, errno) if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
            (Some(Pending::Send), count) => {
                self.advance(count as usize);
                Ok(())
            }
            (Some(Pending::Fetch), count) => {
                self.fetched(count as usize);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// So much of the first piece that is in the file has been read. What the file has lost at its
    /// end reads as zeroes.
    fn fetched(&mut self, count: usize) {
        let Some(InFile { piece, fetched, .. }) = self.in_file.front_mut() else { return };
        let libc::iovec { iov_base, iov_len } = self.pieces[*piece];
        *fetched += count;
        if count > 0 && *fetched < iov_len {
            return;
        }
        // SAFETY: the memory is as long as the piece, and the kernel has given it back.
        unsafe { iov_base.cast::<u8>().add(*fetched).write_bytes(0, iov_len - *fetched) };
        self.in_file.pop_front();
    }

    /// Copies all that is to be sent from the file into the memory that it has for that, and may
    /// wait for it.
    pub(super) fn take_out_of_file(&mut self, source: &Source) -> io::Result<()> {
        if self.in_ring == Some(Pending::Fetch) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        for InFile { piece, end, .. } in self.in_file.drain(..) {
            let libc::iovec { iov_base, iov_len } = self.pieces[piece];
            // SAFETY: the memory is the piece's own, as it was added, and the kernel does not have
            // it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(iov_base.cast::<u8>(), iov_len) };
            source.read(bytes, end - iov_len as u64)?;
        }
        Ok(())
    }

    /// `count` bytes have left, or are in the pipe.
    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if count < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(count);
                piece.iov_len -= count;
                return;
            }
            count -= piece.iov_len;
            self.first += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        debug_assert!(self.in_ring.is_none());
        self.pieces.clear();
        self.in_file.clear();
        self.first = 0;
        self.bytes = 0;
        self.cipher.clear();
    }

    /// The pieces before the first that is in the file.
    fn header(&mut self) -> libc::msghdr {
        let end = self.in_file.front().map_or(self.pieces.len(), |in_file| in_file.piece);
        let rest = &mut self.pieces[self.first..end];
        // SAFETY: all-zero is a valid message header: no address, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = rest.len() as _;
        message
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::device::Device;
    use crate::device::file::{Direct, FileDevice, FileSpec};
    use crate::memory::Region;
    use crate::ring::{Asker, Ring, UserData};

    const FILE: usize = 1 << 20;

    /// An outbox on a socket that takes little, and a file with data in the cache.
    struct Bench {
        file: tempfile::NamedTempFile,
        source: Source,
        data: Vec<u8>,
        outbox: Outbox,
        ours: OwnedFd,
        theirs: UnixStream,
        region: Region,
        ring: Ring,
        pendings: Vec<Pending>,
    }

    impl Bench {
        /// `None` where pages cannot be given.
        fn new() -> Option<Bench> {
            let data: Vec<u8> = (0..FILE).map(|at| ((at / 61) ^ at) as u8).collect();
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().write_all_at(&data, 0).unwrap();
            let spec = FileSpec { path: file.path().into(), create_size: None };
            let source = FileDevice::open(&[spec], Direct::Off).unwrap().source(0);
            let Some(source) = source else {
                eprintln!("skipped: this file system or kernel does not give pages");
                return None;
            };
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ours = OwnedFd::from(ours);
            rustix::net::sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
            let outbox = Outbox::new(Some(Pipe::new().unwrap()));
            let (region, ring) = (Region::map(4 << 20).unwrap(), Ring::new(0).unwrap());
            Some(Bench {
                file,
                source,
                data,
                outbox,
                ours,
                theirs,
                region,
                ring,
                pendings: Vec::new(),
            })
        }

        /// Sends it all, to a client that reads `step` bytes whenever the socket is full; what that
        /// got.
        fn send(&mut self, total: usize, step: usize) -> Vec<u8> {
            let (mut got, mut bytes) = (Vec::new(), vec![0; step]);
            while let Progress::Waits(pending) =
                self.outbox.send_now(&self.ours, Some(&self.source)).unwrap()
            {
                self.pendings.push(pending);
                let entry = self.outbox.operation(pending, &self.ours, Some(&self.source));
                // SAFETY: the outbox keeps what the operation names until its event has been taken,
                // below.
                unsafe { self.ring.push(entry, UserData { asker: Asker::Front, value: 0 }) };
                self.outbox.in_ring = Some(pending);
                self.ring.enter(0, None);
                let event = loop {
                    if let Some(event) = self.ring.event() {
                        break event;
                    }
                    if pending != Pending::Fetch {
                        let count = self.theirs.read(&mut bytes).unwrap();
                        got.extend_from_slice(&bytes[..count]);
                    }
                    self.ring.enter(1, Some(1_000_000));
                };
                self.outbox.event(event.result).unwrap();
            }
            while got.len() < total {
                let count = self.theirs.read(&mut bytes).unwrap();
                assert!(count > 0);
                got.extend_from_slice(&bytes[..count]);
            }
            self.outbox.clear();
            got
        }
    }

    /// Headers, data in memory and data in the file, in any order and of any size: they come as
    /// they were added.
    #[test]
    fn all_comes_in_order() {
        let Some(bench) = Bench::new() else { return };
        let bench = std::cell::RefCell::new(bench);
        let piece = (0..3_u8, 0..FILE - 200_000, 1..200_000_usize);
        let cases = (proptest::collection::vec(piece, 1..12), 1..100_000_usize);
        proptest!(ProptestConfig::with_cases(40), |((pieces, step) in cases)| {
            let bench = &mut *bench.borrow_mut();
            let (mut expected, mut buffers) = (Vec::new(), Vec::new());
            for &(kind, at, length) in &pieces {
                let length = if kind == 0 { length % INLINE + 1 } else { length };
                let data = &bench.data[at..at + length];
                expected.extend_from_slice(data);
                if kind < 2 {
                    bench.outbox.add(data, &mut None);
                } else {
                    let mut buffer = bench.region.allocate(length as u32).unwrap();
                    buffer.bytes_mut().fill(0xee);
                    bench.outbox.add_in_file(buffer.memory(), at as u64);
                    buffers.push(buffer);
                }
            }
            let got = bench.send(expected.len(), step);
            buffers.into_iter().for_each(|buffer| bench.region.free(buffer));
            prop_assert!(got == expected);
        });
        let bench = bench.borrow();
        assert!(bench.pendings.contains(&Pending::Room), "the pipe has been held up");
    }

    /// Whatever happens to the file after its data were found in the cache: the reply is as long as
    /// it was to be.
    #[test]
    fn what_the_file_has_lost_reads_as_zeroes() {
        let Some(mut bench) = Bench::new() else { return };
        for has_waited in [false, true] {
            bench.file.as_file().write_all_at(&bench.data, 0).unwrap();
            let mut buffer = bench.region.allocate(100_000).unwrap();
            buffer.bytes_mut().fill(0xee);
            bench.outbox.has_waited = has_waited;
            bench.outbox.add(&[1; 16], &mut None);
            bench.outbox.add_in_file(buffer.memory(), 50_000);
            bench.outbox.add(&[2; 16], &mut None);
            bench.file.as_file().set_len(77_777).unwrap();
            bench.pendings.clear();
            let got = bench.send(100_032, 7_000);
            bench.region.free(buffer);
            assert!(bench.pendings.contains(&Pending::Fetch));
            let kept = 77_777 - 50_000;
            assert_eq!(
                (&got[..16], &got[16..16 + kept]),
                (&[1; 16][..], &bench.data[50_000..77_777])
            );
            assert!(got[16 + kept..100_016].iter().all(|&byte| byte == 0), "zeroes");
            assert_eq!(got[100_016..], [2; 16]);
        }
    }

    /// Who had to wait looks again, and what is no longer in the cache comes by the ring.
    #[test]
    fn what_is_no_longer_in_the_cache_is_fetched() {
        let Some(mut bench) = Bench::new() else { return };
        bench.file.as_file().sync_all().unwrap();
        // SAFETY: advice on an open file.
        unsafe {
            libc::posix_fadvise(bench.file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
        };
        if bench.source.is_cached(0, 65_536) {
            eprintln!("skipped: this file system keeps what it has");
            return;
        }
        let buffer = bench.region.allocate(65_536).unwrap();
        bench.outbox.has_waited = true;
        bench.outbox.add_in_file(buffer.memory(), 0);
        assert!(bench.send(65_536, 65_536) == bench.data[..65_536]);
        bench.region.free(buffer);
        assert!(bench.pendings.contains(&Pending::Fetch));
    }

    #[test]
    fn a_client_that_is_gone_is_an_error() {
        let Some(mut bench) = Bench::new() else { return };
        let buffer = bench.region.allocate(65_536).unwrap();
        bench.outbox.add_in_file(buffer.memory(), 0);
        rustix::net::shutdown(&bench.theirs, rustix::net::Shutdown::Both).unwrap();
        assert!(bench.outbox.send_now(&bench.ours, Some(&bench.source)).is_err());
        bench.region.free(buffer);
    }
}
