//! The two directions of a connection's byte stream, with or without TLS.
//!
//! [`Incoming`] holds bytes that have come and are not yet consumed; [`Outbox`] holds one batch of
//! replies until the socket has taken it. Neither makes a decision about the protocol.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};
use rustls::ServerConnection;

use crate::io::area::SpanReader;

/// Bytes of requests that may wait to be consumed: hundreds of small requests, or the start of a
/// large payload.
const INCOMING: usize = 64 << 10;
/// Memory pieces in one send; the kernel allows 1024.
const MAX_PIECES: usize = 1000;
/// Bytes after which a batch is full.
const MAX_BATCH: usize = 4 << 20;
/// The most bytes of replies that TLS encrypts at a time. They are sent before the next ones are
/// encrypted, so a reply of any length takes no more memory than this.
const CIPHER: usize = 256 << 10;
/// Plain text that TLS is given at a time, in bytes.
const TLS_PART: usize = 64 << 10;

/// Bytes from the client.
pub(super) struct Incoming {
    plain: Box<[u8]>,
    start: usize,
    end: usize,
    tls: Option<Tls>,
    /// Bytes that are read before those of the socket.
    replay: Option<SpanReader>,
    /// A receive is under way.
    pub(super) in_ring: bool,
    /// The first so many bytes of the receive go to a payload buffer, not here.
    pub(super) direct: usize,
    /// The message header that the kernel reads while a receive to two places is in the ring.
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
    /// Bytes received from the socket.
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
            replay: None,
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

    /// Has these bytes come before the socket's, which is not to be read until they have come.
    pub(super) fn replay_first(&mut self, bytes: SpanReader) {
        self.replay = Some(bytes).filter(|bytes| !bytes.is_empty());
    }

    /// The bytes before the socket's that have not been read.
    pub(super) fn replay(&self) -> Option<&SpanReader> {
        self.replay.as_ref()
    }

    /// Gets more bytes out of TLS, if it holds any; true if it did. An error is of records that
    /// came earlier and had to wait, since TLS held as much plain text as it may.
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
        // Without an error there is what there is, or nothing yet.
        let count = tls.session.reader().read(&mut self.plain[self.end..]).unwrap_or(0);
        self.end += count;
        Ok(count > 0)
    }

    /// The operation that takes what has come, until so many bytes (as they come, with TLS) wait to
    /// be consumed, or as there is room for.
    pub(super) fn receive(&mut self, fd: types::Fd, most: usize) -> Option<squeue::Entry> {
        let waiting = self.bytes().len();
        // At least one byte: a receive of none ends with 0, as if the client had closed the stream.
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
                // After the client's good-bye TLS takes nothing more. Later bytes are dropped, as
                // the protocol demands: with a full buffer the server would not notice that the
                // client leaves.
                Ok(0) => self.start = self.end,
                Ok(count) => self.start += count,
                // It holds as much plaintext as it may: it goes on when that has been read.
                Err(_) => break,
            }
            self.session.process_new_packets()?;
        }
        Ok(())
    }
}

/// One batch of replies. They are sent from where they are; with TLS, what that makes of them.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: Vec<libc::iovec>,
    /// The first piece not yet sent, or given to TLS.
    first: usize,
    bytes: usize,
    /// Some of the replies as TLS encrypted them, and the number of these bytes that have been
    /// sent.
    cipher: Vec<u8>,
    cipher_sent: usize,
    /// The rest of it, as the kernel wants it named.
    cipher_piece: Option<Box<libc::iovec>>,
    /// The message header that the kernel reads while a send is in the ring.
    message: Option<Box<libc::msghdr>>,
    /// The ops whose replies are in it.
    pub(super) sending: Vec<u16>,
    /// A send is under way.
    pub(super) in_ring: bool,
}

// SAFETY: the raw pointers are to memory of the connection that owns the outbox, and move with it.
unsafe impl Send for Outbox {}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.cipher.is_empty()
    }

    /// The replies in it, as far as they have not left; without TLS.
    pub(super) fn unsent(&self) -> Vec<&[u8]> {
        // SAFETY: who added the pieces keeps them in place, and as they are, until the outbox has
        // been cleared, and this borrows it.
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

    /// Has TLS make the next part, if all that it made has left, of the replies and of what it has
    /// to say itself. A session that has failed takes no more replies.
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
            // SAFETY: the caller that added the piece keeps it in place until the batch has left,
            // and the part is what is left of it, or less.
            let part = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), length) };
            session.writer().write_all(part)?;
            self.advance(length);
        }
    }

    /// Sends without waiting: true if all has left, false if the socket is full.
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
            // SAFETY: the header names pieces that stay in place until the batch has left.
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

    /// The operation that sends the rest when the socket takes it.
    pub(super) fn send_operation(&mut self, fd: &OwnedFd) -> squeue::Entry {
        let header = self.header();
        let message: &libc::msghdr = self.message.insert(Box::new(header));
        opcode::SendMsg::new(types::Fd(fd.as_raw_fd()), message)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
    }

    /// The send that was under way has ended.
    pub(super) fn event(&mut self, result: i32) -> io::Result<()> {
        self.in_ring = false;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        self.sent(result as usize);
        Ok(())
    }

    /// `count` bytes have left.
    fn sent(&mut self, count: usize) {
        if self.cipher.is_empty() {
            self.advance(count);
        } else {
            self.cipher_sent += count;
        }
    }

    /// `count` bytes of the replies have left, or been given to TLS.
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

    /// Gives back what TLS needs while there is something to send.
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

    /// Sends what is in the outbox to a client that reads `step` bytes whenever the socket is full;
    /// what that got, and how often the socket was full.
    fn send(outbox: &mut Outbox, total: usize, step: usize) -> (Vec<u8>, usize) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = OwnedFd::from(ours);
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 8 << 10).unwrap();
        let mut ring = Ring::new(0).unwrap();
        let (mut got, mut bytes, mut waits) = (Vec::new(), vec![0; step], 0);
        while !outbox.send_now(&ours, None).unwrap() {
            waits += 1;
            let entry = outbox.send_operation(&ours);
            // SAFETY: the outbox keeps what the operation names until its event has been taken,
            // below.
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

    /// Headers and data of any size come as they were added, however little the socket takes.
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
