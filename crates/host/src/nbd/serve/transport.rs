//! The two directions of a connection's byte stream, with or without TLS.
//!
//! [`Incoming`] holds received bytes that are not yet consumed; [`Outbox`] holds one batch of
//! replies until the socket has accepted it. Neither interprets the protocol.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};
use rustls::ServerConnection;

use crate::io::area::SpanReader;

/// The most received bytes that may wait to be consumed: hundreds of small requests, or the start
/// of a large payload.
const INCOMING: usize = 64 << 10;
/// The largest number of memory pieces in one send; the kernel allows 1024.
const MAX_PIECES: usize = 1000;
/// The number of bytes at which a batch is full.
const MAX_BATCH: usize = 4 << 20;
/// The most bytes of replies that TLS encrypts at a time. They are sent before the next ones are
/// encrypted, so a reply of any length takes no more memory than this.
const CIPHER: usize = 256 << 10;
/// The amount of plain text that is passed to TLS at a time, in bytes.
const TLS_PART: usize = 64 << 10;

/// Bytes from the client.
pub(super) struct Incoming {
    plain: Box<[u8]>,
    start: usize,
    end: usize,
    tls: Option<Tls>,
    /// Bytes that are consumed before the socket is read.
    replay: Option<SpanReader>,
    /// Whether a receive is in the ring.
    pub(super) in_ring: bool,
    /// The number of bytes at the start of the receive that go to a payload buffer, not here.
    pub(super) direct: usize,
    /// The message header that the kernel reads while a receive to two places is in the ring.
    message: Box<Message>,
}

/// A message header and its two pieces.
struct Message {
    header: libc::msghdr,
    pieces: [libc::iovec; 2],
}

// SAFETY: the raw pointers refer to memory of the connection that owns this, and that memory moves
// to another thread together with it.
unsafe impl Send for Message {}

struct Tls {
    session: Box<ServerConnection>,
    /// Bytes received from the socket.
    cipher: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the server's `close_notify` has been sent.
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
            replay: None,
            in_ring: false,
            direct: 0,
            // SAFETY: zeroed memory is a valid message header and valid pieces: no address, no
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

    /// Whether TLS itself has records to send.
    pub(super) fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.wants_write())
    }

    /// Makes TLS send `close_notify`, once.
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

    /// Copies bytes to `out` and consumes them; returns their number.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.end - self.start);
        out[..count].copy_from_slice(&self.plain[self.start..self.start + count]);
        self.consume(count);
        count
    }

    /// Consumes up to `count` bytes; returns their number.
    pub(super) fn discard(&mut self, count: u64) -> u64 {
        let count = count.min((self.end - self.start) as u64);
        self.consume(count as usize);
        count
    }

    /// Moves the unconsumed bytes to the front of the buffer, so that all free space is at its end.
    fn compact(&mut self) {
        if self.start > 0 {
            self.plain.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Makes these bytes precede the bytes of the socket, which is not read until they are
    /// consumed.
    pub(super) fn replay_first(&mut self, bytes: SpanReader) {
        self.replay = Some(bytes).filter(|bytes| !bytes.is_empty());
    }

    /// The bytes of [`Self::replay_first`] that have not been consumed.
    pub(super) fn replay(&self) -> Option<&SpanReader> {
        self.replay.as_ref()
    }

    /// Takes more bytes from [`Self::replay_first`], or else plain text that TLS holds; true if
    /// there were any. An error of TLS concerns records that were received earlier and not
    /// processed, because TLS already held as much plain text as it may.
    pub(super) fn refill(&mut self) -> Result<bool, rustls::Error> {
        self.compact();
        if let Some(replay) = &mut self.replay {
            let read = replay.read(&mut self.plain[self.end..]);
            let count = read.map_err(|error| rustls::Error::General(error.to_string()))?;
            self.end += count;
            self.replay.take_if(|replay| replay.is_empty());
            return Ok(count > 0);
        }
        let Some(tls) = &mut self.tls else { return Ok(false) };
        tls.decrypt()?;
        // An error only means that there is no plain text now.
        let count = tls.session.reader().read(&mut self.plain[self.end..]).unwrap_or(0);
        self.end += count;
        Ok(count > 0)
    }

    /// A receive operation for as many bytes as the buffer has space for. Without TLS it is also
    /// limited so that at most `most` bytes wait to be consumed.
    pub(super) fn receive(&mut self, fd: types::Fd, most: usize) -> Option<squeue::Entry> {
        let waiting = self.bytes().len();
        // At least one byte is received: a receive of 0 bytes would return 0, like the end of the
        // stream.
        let most = if self.is_tls() { usize::MAX } else { most.saturating_sub(waiting).max(1) };
        let (address, length) = self.space()?;
        self.direct = 0;
        Some(opcode::Recv::new(fd, address, length.min(most) as u32).build())
    }

    /// A receive operation for the rest of a large payload and the `header` bytes that begin the
    /// next request. With that header, the next payload can also be received directly into its
    /// buffer, without a copy. No bytes may be waiting to be consumed.
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

    /// The space for the next receive: address and length.
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

    /// Handles the end of a receive of `count` bytes.
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
    /// Passes received records to TLS while it accepts them.
    fn decrypt(&mut self) -> Result<(), rustls::Error> {
        while self.start < self.end {
            let mut cipher = &self.cipher[self.start..self.end];
            match self.session.read_tls(&mut cipher) {
                // After the client's `close_notify`, TLS accepts nothing more. Later bytes are
                // dropped, as the protocol requires; if they filled the buffer, the server would
                // not notice that the client disconnects.
                Ok(0) => self.start = self.end,
                Ok(count) => self.start += count,
                // TLS holds as much plain text as it may, and continues when that has been read.
                Err(_) => break,
            }
            self.session.process_new_packets()?;
        }
        Ok(())
    }
}

/// One batch of replies. They are sent from where they are; with TLS, its records are sent.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: Vec<libc::iovec>,
    /// The first piece not yet sent or passed to TLS.
    first: usize,
    bytes: usize,
    /// The TLS records of some of the replies, and the number of their bytes that have been sent.
    cipher: Vec<u8>,
    cipher_sent: usize,
    /// The unsent part of `cipher`, as a memory piece for the kernel.
    cipher_piece: Option<Box<libc::iovec>>,
    /// The message header that the kernel reads while a send is in the ring.
    message: Option<Box<libc::msghdr>>,
    /// The ops whose replies are in it.
    pub(super) sending: Vec<u16>,
    /// Whether a send is in the ring.
    pub(super) in_ring: bool,
}

// SAFETY: the raw pointers refer to memory of the connection that owns the outbox, and that memory
// moves to another thread together with it.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.cipher.is_empty()
    }

    /// The unsent part of the replies; not for TLS.
    pub(super) fn unsent(&self) -> Vec<&[u8]> {
        // SAFETY: the caller that added the pieces keeps them in place and unchanged until the
        // outbox has been cleared, and the result borrows the outbox.
        let piece = |piece: &libc::iovec| unsafe {
            std::slice::from_raw_parts(piece.iov_base.cast::<u8>().cast_const(), piece.iov_len)
        };
        self.pieces[self.first..].iter().map(piece).collect()
    }

    /// The length of the replies in it, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn has_room_for(&self, pieces: usize) -> bool {
        self.pieces.is_empty() && self.cipher.is_empty() && self.sending.is_empty()
            || (self.pieces.len() + pieces <= MAX_PIECES && self.bytes < MAX_BATCH)
    }

    /// Adds bytes, which are not copied.
    ///
    /// # Safety
    /// They stay in place, and are not written to, until the outbox has been cleared.
    pub(super) unsafe fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        let iov_base = bytes.as_ptr().cast_mut().cast();
        self.pieces.push(libc::iovec { iov_base, iov_len: bytes.len() });
    }

    /// If all records have been sent, makes TLS encrypt the next part of the replies, after its own
    /// messages. A session that has failed takes no more replies.
    fn encrypt(&mut self, session: &mut ServerConnection) -> io::Result<()> {
        if self.cipher_sent < self.cipher.len() {
            return Ok(());
        }
        self.cipher.clear();
        self.cipher_sent = 0;
        loop {
            while session.wants_write() {
                session.write_tls(&mut self.cipher).expect("writing to memory does not fail");
            }
            let Some(piece) =
                self.pieces.get(self.first).copied().filter(|_| self.cipher.len() < CIPHER)
            else {
                return Ok(());
            };
            let length = piece.iov_len.min(TLS_PART);
            // SAFETY: the caller that added the piece keeps it in place until the batch has been
            // sent, and the part is inside the piece.
            let part = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), length) };
            session.writer().write_all(part)?;
            self.advance(length);
        }
    }

    /// Sends without waiting: true if everything has been sent, false if the socket is full.
    pub(super) fn send_now(
        &mut self,
        fd: &OwnedFd,
        mut tls: Option<&mut ServerConnection>,
    ) -> io::Result<bool> {
        loop {
            if let Some(session) = &mut tls {
                self.encrypt(session)?;
            }
            if self.is_sent() {
                return Ok(true);
            }
            let message = self.header();
            // SAFETY: the header refers to pieces that stay in place until the batch has been sent.
            let sent = unsafe {
                libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
            if sent < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(false),
                    Some(libc::EINTR) => continue,
                    _ => return Err(error),
                }
            }
            self.sent(sent as usize);
        }
    }

    /// The operation that sends the rest as soon as the socket has space.
    pub(super) fn send_operation(&mut self, fd: &OwnedFd) -> squeue::Entry {
        let header = self.header();
        let message: &libc::msghdr = self.message.insert(Box::new(header));
        opcode::SendMsg::new(types::Fd(fd.as_raw_fd()), message)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
    }

    /// Handles the end of the send that was in the ring.
    pub(super) fn event(&mut self, result: i32) -> io::Result<()> {
        self.in_ring = false;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        self.sent(result as usize);
        Ok(())
    }

    /// Records that `count` bytes have been sent.
    fn sent(&mut self, count: usize) {
        if self.cipher.is_empty() {
            self.advance(count);
        } else {
            self.cipher_sent += count;
        }
    }

    /// Removes `count` bytes of the replies, which have been sent or passed to TLS.
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

    fn is_sent(&self) -> bool {
        self.first == self.pieces.len() && self.cipher_sent == self.cipher.len()
    }

    pub(super) fn clear(&mut self) {
        debug_assert!(!self.in_ring);
        self.pieces.clear();
        self.first = 0;
        self.bytes = 0;
        self.cipher.clear();
        self.cipher_sent = 0;
    }

    /// Frees the memory that TLS needs only while there is something to send.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.cipher = Vec::new();
        }
    }

    fn header(&mut self) -> libc::msghdr {
        let rest = if self.cipher.is_empty() {
            &mut self.pieces[self.first..]
        } else {
            let rest = &mut self.cipher[self.cipher_sent..];
            let piece = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            std::slice::from_mut(&mut **self.cipher_piece.insert(Box::new(piece)))
        };
        // SAFETY: all-zero is a valid message header: no address, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = rest.as_mut_ptr();
        message.msg_iovlen = rest.len() as _;
        message
    }
}
#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::io::ring::{Asker, Ring, UserData};

    /// Sends the outbox to a client that reads `step` bytes whenever the socket is full; returns
    /// the received bytes, and how often the socket was full.
    fn send(outbox: &mut Outbox, total: usize, step: usize) -> (Vec<u8>, usize) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = OwnedFd::from(ours);
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
        let mut ring = Ring::new(0).unwrap();
        let (mut got, mut bytes, mut waits) = (Vec::new(), vec![0; step], 0);
        while !outbox.send_now(&ours, None).unwrap() {
            waits += 1;
            let entry = outbox.send_operation(&ours);
            // SAFETY: the outbox keeps the memory of the operation in place until its event has
            // been taken, below.
            unsafe { ring.push(entry, UserData { asker: Asker::Nbd, value: 0 }) };
            outbox.in_ring = true;
            ring.enter(0, None);
            let event = loop {
                if let Some(event) = ring.event() {
                    break event;
                }
                let count = theirs.read(&mut bytes).unwrap();
                got.extend_from_slice(&bytes[..count]);
                ring.enter(0, None);
            };
            outbox.event(event.result).unwrap();
        }
        outbox.clear();
        drop(ours);
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), total);
        (got, waits)
    }

    /// Headers and data of any size arrive as they were added, even if the socket accepts only a
    /// little at a time.
    #[test]
    fn all_comes_in_order() {
        let data: Vec<u8> = (0..1usize << 20).map(|at| ((at / 61) ^ at) as u8).collect();
        let waits = std::cell::Cell::new(0);
        let piece = (0..800_000_usize, 1..200_000_usize);
        let cases = (proptest::collection::vec(piece, 1..12), 1000..100_000_usize);
        proptest!(ProptestConfig::with_cases(30), |((pieces, step) in cases)| {
            let (mut expected, mut outbox) = (Vec::new(), Outbox::default());
            for &(at, length) in &pieces {
                let bytes = &data[at..at + length];
                expected.extend_from_slice(bytes);
                // SAFETY: the data live until the outbox is gone.
                unsafe { outbox.add(bytes) };
            }
            let (got, waited) = send(&mut outbox, expected.len(), step);
            waits.set(waits.get() + waited);
            prop_assert!(got == expected);
        });
        assert!(waits.get() > 0, "the socket has been full");
    }

    #[test]
    fn a_client_that_is_gone_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut outbox = Outbox::default();
        // SAFETY: a constant.
        unsafe { outbox.add(&[0; 64]) };
        assert!(outbox.send_now(&OwnedFd::from(ours), None).is_err());
    }
}
