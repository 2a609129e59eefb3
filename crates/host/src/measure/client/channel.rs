//! A connection's two directions, with or without TLS: sends requests without a copy, and receives
//! replies.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::ClientConnection;

use crate::nbd::wire::proto::{Command, EXTENDED_REQUEST_LEN, Request};

/// The most pieces of memory in one send.
const PIECES: usize = 64;
/// The amount of plain text that TLS encrypts before the records are sent, in bytes.
const BATCH: usize = 256 << 10;
/// The largest amount of TLS records in one receive, in bytes; any buffer for their plain text is
/// at least as large.
const RECORDS: usize = 256 << 10;
/// The size of the smallest buffer for [`Channel::receive`], in bytes.
pub(super) const ROOM: usize = RECORDS;

/// One connection to a server.
pub(super) struct Channel {
    pub(super) socket: OwnedFd,
    outgoing: Outgoing,
    tls: Option<Tls>,
}

/// TLS and its records.
struct Tls {
    session: Box<ClientConnection>,
    /// TLS records; the bytes from `sent` on have not been sent.
    records: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd, session: Option<Box<ClientConnection>>) -> Channel {
        let tls =
            |session| Tls { session, records: Vec::new(), sent: 0, received: vec![0; RECORDS] };
        Channel { socket, outgoing: Outgoing::default(), tls: session.map(tls) }
    }

    /// Sets the payload of all writes.
    pub(super) fn set_payload(&mut self, payload: Vec<u8>) {
        self.outgoing.payload = payload;
    }

    /// Queues a request.
    pub(super) fn add(&mut self, request: &Request) {
        self.outgoing.add(request);
    }

    /// Sends as many bytes as the socket accepts; true if all queued requests are sent.
    pub(super) fn send(&mut self) -> io::Result<bool> {
        loop {
            let sent = match &mut self.tls {
                None if self.outgoing.is_empty() => return Ok(true),
                None => self.outgoing.send(&self.socket),
                Some(tls) => {
                    if !tls.fill(&mut self.outgoing)? {
                        return Ok(true);
                    }
                    tls.send(&self.socket)
                }
            };
            match sent {
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives available bytes without waiting; `room` has at least [`ROOM`] bytes. Returns 0 if
    /// no bytes are available now, and an error if the stream has ended.
    pub(super) fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let into = match &mut self.tls {
            None => &mut *room,
            Some(tls) => &mut tls.received[..],
        };
        let count = match recv(&self.socket, into, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ));
            }
            Ok((_, count)) => count,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        match &mut self.tls {
            None => Ok(count),
            Some(tls) => tls.decrypt(count, room),
        }
    }
}

impl Tls {
    /// Makes TLS records if all earlier ones are sent; false if there is nothing to send.
    fn fill(&mut self, outgoing: &mut Outgoing) -> io::Result<bool> {
        if self.sent == self.records.len() {
            self.records.clear();
            self.sent = 0;
            let mut taken = 0;
            while taken < BATCH
                && let Some(part) = outgoing.first()
            {
                let count = self.session.writer().write(part)?;
                taken += count;
                outgoing.advance(count);
            }
            while self.session.wants_write() {
                self.session.write_tls(&mut self.records)?;
            }
        }
        Ok(self.sent < self.records.len())
    }

    fn send(&mut self, socket: &OwnedFd) -> rustix::io::Result<()> {
        self.sent +=
            send(socket, &self.records[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Decrypts the first `count` received bytes to `room`. The plain text is at most as long as
    /// these bytes and the part of a record that TLS received before them.
    fn decrypt(&mut self, count: usize, room: &mut [u8]) -> io::Result<usize> {
        let mut records = &self.received[..count];
        let mut taken = 0;
        while !records.is_empty() {
            // TLS accepts records until its buffer is full, and the rest after its plain text has
            // been read.
            self.session.read_tls(&mut records)?;
            self.session.process_new_packets().map_err(io::Error::other)?;
            loop {
                match self.session.reader().read(&mut room[taken..]) {
                    Ok(0) => break,
                    Ok(count) => taken += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(taken)
    }
}

/// Unsent requests: headers, each followed for a write by the payload that all writes share.
#[derive(Default)]
struct Outgoing {
    headers: Vec<u8>,
    payload: Vec<u8>,
    pieces: VecDeque<Piece>,
}

/// A part of the bytes to send.
enum Piece {
    Headers(Range<usize>),
    Payload(Range<usize>),
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn add(&mut self, request: &Request) {
        let mut header = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(false, &mut header);
        let start = self.headers.len();
        self.headers.extend_from_slice(&header[..length]);
        match self.pieces.back_mut() {
            Some(Piece::Headers(last)) => last.end += length,
            _ => self.pieces.push_back(Piece::Headers(start..start + length)),
        }
        if request.command == Command::Write {
            self.pieces.push_back(Piece::Payload(0..self.payload.len()));
        }
    }

    /// The first unsent bytes.
    fn first(&self) -> Option<&[u8]> {
        self.pieces.front().map(|piece| self.bytes(piece))
    }

    fn bytes(&self, piece: &Piece) -> &[u8] {
        match piece {
            Piece::Headers(range) => &self.headers[range.clone()],
            Piece::Payload(range) => &self.payload[range.clone()],
        }
    }

    /// Sends once, without waiting.
    fn send(&mut self, socket: &OwnedFd) -> rustix::io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = self.pieces.len().min(PIECES);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(self.bytes(piece));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags)?;
        self.advance(sent);
        Ok(())
    }

    /// Removes `count` bytes that have been sent.
    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(Piece::Headers(range) | Piece::Payload(range)) = self.pieces.front_mut()
            else {
                break;
            };
            let part = count.min(range.len());
            range.start += part;
            count -= part;
            if range.start == range.end {
                self.pieces.pop_front();
            }
        }
        // Pieces refer to headers by offset, so the headers are kept until no piece is left.
        if self.pieces.is_empty() {
            self.headers.clear();
        }
    }
}
