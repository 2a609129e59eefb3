//! A connection that goes from one program to the next, in the same process.
//!
//! The client's requests without a whole answer become a stream of requests again, which the next
//! program reads before it reads the socket. Answers that have not been sent become bytes that it
//! sends first. So a request that was carried out in part is carried out once more: its client has
//! no answer, and nobody may rely on what of it is there.
//!
//! ```text
//!   requests without an answer ─ the one whose payload is coming ─ unread bytes │ the socket
//! ```
//!
//! TLS sessions do not go over: their clients get `ESHUTDOWN` and the end of the session.

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
    /// Bytes that are read before those of the socket.
    pub input: Span,
    /// Bytes that are sent first.
    pub output: Span,
    /// Its client has ended: what it has sent stands before the requests of others.
    pub has_ended: bool,
}

/// The beginning of a connection that was packed.
pub struct Rest {
    /// Bytes that are read before those of the socket.
    pub input: SpanReader,
    /// Bytes that are sent first.
    pub output: Box<[u8]>,
    /// Its client has ended.
    pub has_ended: bool,
}

impl Conn {
    /// Starts no more operations on the ring, and cancels those there are if `cancel`. True if
    /// there are none.
    pub(in crate::nbd) fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        self.is_halted = true;
        let name = |kind| UserData { asker: Asker::Nbd, value: event_value(self.index, kind) };
        if self.incoming.in_ring && cancel {
            // A receive that waits behind a pause is not found before the pause has ended.
            ring.cancel(name(PAUSE), name(CANCEL));
            ring.cancel(name(RECEIVE), name(CANCEL));
        }
        if self.outbox.in_ring && cancel {
            ring.cancel(name(SEND), name(CANCEL));
        }
        !(self.incoming.in_ring || self.outbox.in_ring)
    }

    /// Goes on after that.
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

    /// Ends it: what has not been submitted is answered by `ESHUTDOWN`, and so is what was
    /// cancelled. Bytes that its socket does not take at once are lost.
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

    /// Writes down all that the next program has to know, after [`Conn::halt`]; nothing if the
    /// connection ends with this one.
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

    /// The stream of what has no answer, and what has come behind that.
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
            // Bytes behind the good-bye are not read.
            pieces.push(self.header(&LiveRequest::idle().request));
        } else {
            pieces.push(Piece::Bytes(self.incoming.bytes().into()));
            if let Some(replay) = self.incoming.replay() {
                pieces.push(Piece::Bytes(replay.rest()?.into()));
            }
        }
        Ok(pieces)
    }

    /// A request as its client sent it. The payload of one that is refused is not there: any will
    /// do.
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

    /// The answers that have not left.
    fn unsent(&self) -> Vec<Piece<'_>> {
        if self.is_unread {
            return Vec::new();
        }
        let ready = self.ready.iter().flat_map(|&index| self.ops[usize::from(index)].answer());
        let bytes = self.outbox.unsent().into_iter().chain(ready);
        bytes.map(|bytes| Piece::Bytes(bytes.into())).collect()
    }

    /// Begins where the program before this one has ended.
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
