//! A connection that one program passes to the next, in the same process.
//!
//! The client's requests without a complete answer are encoded as a stream of requests again, which
//! the next program reads before the socket. Unsent answers become bytes that it sends first. So a
//! partly executed request is executed again. This is safe: its client has no answer, so no client
//! may rely on the bytes that it has already changed.
//!
//! ```text
//!   requests without an answer ─ the one whose payload is arriving ─ unread bytes │ the socket
//! ```
//!
//! TLS sessions are not passed on: their clients receive `ESHUTDOWN` and the end of the session.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use serde::{Deserialize, Serialize};

use super::*;
use crate::io::area::{Area, Piece, Span, SpanReader};
use crate::nbd::wire::proto::EXTENDED_REQUEST_LEN;

/// A connection between two programs.
#[derive(Serialize, Deserialize)]
pub struct Packed {
    /// Its socket.
    pub fd: RawFd,
    /// Its tenant's number.
    pub tenant: u16,
    /// The result of the handshake.
    pub negotiated: Negotiated,
    /// Bytes that the next program reads before the socket.
    pub input: Span,
    /// Bytes that the next program sends first.
    pub output: Span,
    /// Whether its client has ended, so that its requests precede those of other clients.
    pub has_ended: bool,
}

/// The initial state of a connection that was packed.
pub struct Rest {
    /// Bytes that are read before the socket.
    pub input: SpanReader,
    /// Bytes that are sent first.
    pub output: Box<[u8]>,
    /// Whether its client has ended.
    pub has_ended: bool,
}

impl Conn {
    /// Starts no more operations on the ring, and cancels the operations in flight if `cancel`.
    /// True if no operation is in flight.
    pub(in crate::nbd) fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        self.is_halted = true;
        let name = |kind| UserData { asker: Asker::Nbd, value: event_value(self.index, kind) };
        if self.incoming.in_ring && cancel {
            // While the pause lasts, the receive that is linked to it cannot be found, so the pause
            // is cancelled first.
            ring.cancel(name(PAUSE), name(CANCEL));
            ring.cancel(name(RECEIVE), name(CANCEL));
        }
        if self.outbox.in_ring && cancel {
            ring.cancel(name(SEND), name(CANCEL));
        }
        !(self.incoming.in_ring || self.outbox.in_ring)
    }

    /// Resumes after [`Conn::halt`].
    pub(in crate::nbd) fn go_on(&mut self, ring: &mut Ring) {
        self.is_halted = false;
        if !self.outbox.is_empty() && !self.outbox.in_ring {
            self.send(ring);
        }
    }

    /// Whether its session ends with the program.
    pub(in crate::nbd) fn is_bound(&self) -> bool {
        self.incoming.is_tls()
    }

    /// Ends a connection that cannot be passed on: its unsubmitted and cancelled requests are
    /// answered with `ESHUTDOWN`. Bytes that the socket does not accept at once are lost.
    pub(in crate::nbd) fn end_bound<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        self.detach(false);
        self.end_waits();
        self.submit(now_ns, ring, path, u32::MAX);
        self.is_halted = false;
        if self.outbox.is_empty() {
            self.flush(ring);
        } else if !self.outbox.in_ring {
            self.send(ring);
        }
        self.is_halted = true;
    }

    /// Serialises the state for the next program, after [`Conn::halt`]; `None` if the connection
    /// ends with this program.
    pub(in crate::nbd) fn pack(&self, area: &Area) -> io::Result<Option<Packed>> {
        if self.state == State::Dead || self.is_detached || self.is_bound() {
            return Ok(None);
        }
        Ok(Some(Packed {
            fd: self.fd.as_raw_fd(),
            tenant: self.volume.tenant,
            negotiated: self.negotiated.clone(),
            input: area.add(&self.unanswered()?)?,
            output: area.add(&self.unsent())?,
            has_ended: self.client.has_ended(),
        }))
    }

    /// The stream of the unanswered requests and of the received bytes that follow them.
    fn unanswered(&self) -> io::Result<Vec<Piece<'_>>> {
        let mut is_free = vec![false; self.ops.len()];
        self.free.iter().for_each(|&index| is_free[usize::from(index)] = true);
        let coming = match self.intake {
            Intake::Payload { op } => Some(op),
            _ => None,
        };
        let mut pieces = Vec::new();
        for (index, op) in (0u16..).zip(&self.ops) {
            let is_answered = !matches!(op.reply, Reply::Pending);
            if !is_free[usize::from(index)] && !is_answered && coming != Some(index) {
                self.push(&mut pieces, &op.request, op.data());
            }
        }
        match &self.intake {
            Intake::Header => {}
            Intake::Stalled(request) => pieces.push(self.header(request)),
            Intake::Payload { op } => {
                let op = &self.ops[usize::from(*op)];
                pieces.push(self.header(&op.request));
                let came = op.data().and_then(|data| data.get(..op.orders.ready() as usize));
                pieces.push(Piece::Bytes(came.unwrap_or_default().into()));
            }
            // The next program refuses it again.
            Intake::Refused { request, skip, .. } => {
                pieces.push(self.header(request));
                let payload = request.payload(self.negotiated.extended);
                pieces.push(Piece::Zeroes(payload.saturating_sub(*skip)));
            }
        }
        if self.state == State::Draining && self.farewell == Farewell::GoodBye {
            // Bytes after `DISC` are not read, so it is the last request.
            pieces.push(self.header(&LiveRequest::idle().request));
        } else {
            pieces.push(Piece::Bytes(self.incoming.bytes().into()));
            if let Some(replay) = self.incoming.replay() {
                pieces.push(Piece::Bytes(replay.rest()?.into()));
            }
        }
        Ok(pieces)
    }

    /// Adds a request as its client sent it. The payload of a refused request was not kept, so
    /// zeroes replace it.
    fn push<'a>(&self, pieces: &mut Vec<Piece<'a>>, request: &Request, data: Option<&'a [u8]>) {
        pieces.push(self.header(request));
        let payload = request.payload(self.negotiated.extended);
        match data.filter(|data| data.len() as u64 == payload) {
            Some(data) => pieces.push(Piece::Bytes(data.into())),
            None => pieces.push(Piece::Zeroes(payload)),
        }
    }

    fn header(&self, request: &Request) -> Piece<'static> {
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(self.negotiated.extended, &mut bytes);
        Piece::Bytes(Cow::Owned(bytes[..length].to_vec()))
    }

    /// The answers that have not been sent.
    fn unsent(&self) -> Vec<Piece<'_>> {
        if self.is_unread {
            return Vec::new();
        }
        let ready = self.ready.iter().flat_map(|&index| self.ops[usize::from(index)].answer());
        let bytes = self.outbox.unsent().into_iter().chain(ready);
        bytes.map(|bytes| Piece::Bytes(bytes.into())).collect()
    }

    /// Continues where the previous program has ended.
    pub(in crate::nbd) fn with_rest(mut self, rest: Option<Rest>) -> Conn {
        let Some(Rest { input, output, has_ended }) = rest else { return self };
        self.incoming.replay_first(input);
        if !output.is_empty()
            && let Some(index) = self.free.pop()
        {
            self.ops[usize::from(index)].reply = Reply::Bytes(output);
            self.ready.push_back(index);
        }
        if has_ended {
            self.leave();
        }
        self
    }
}
