//! The end of a connection. A client that vanishes or stops reading loses its connection in bounded
//! time.
//!
//! | client | its requests |
//! |---|---|
//! | sends `DISC` and reads | are completed and answered, however long the device takes |
//! | sends `DISC` and does not read | are dropped after [`FAREWELL_S`] in which it took no byte |
//! | sends `DISC` and closes | are completed for [`FAREWELL_S`], as the protocol requires |
//! | closes without `DISC` | are dropped when its stream has been read to the end |
//! | only closes its sending direction | are completed and answered for [`FAREWELL_S`] |
//!
//! If the `DISC` or the end of the stream is behind a request that waits for buffers, and the
//! client does not read, its requests are dropped after [`FAREWELL_S`] in which it took no byte.
//!
//! A failed send shows only that the client does not read. Its `DISC` (its good-bye) may be among
//! the bytes that are still to be received, so the stream is read on, but nothing more is answered.
//!
//! A connection whose next request waits for buffers receives nothing, so its socket is polled for
//! the end once a second, and whenever another client of the tenant connects. After a second of
//! waiting, or after a failed send, it receives until its buffer is full, to find a `DISC` there.
//!
//! Until a send fails, TCP does not distinguish a client that has closed from one that has closed
//! only its sending direction. A staged request that is dropped is cancelled. A request on the
//! device runs to its end, because the device uses its memory; only then is the connection's place
//! free.

use fairq_core::FlowId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// The longest time for which the server waits for a leaving client, in seconds. Each byte that the
/// client takes restarts it, unless a send has failed or the stream has ended without a `DISC`.
const FAREWELL_S: u8 = 5;

/// The way in which a client has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// It has not left.
    None,
    /// It has sent `DISC`.
    GoodBye,
    /// It has closed its sending direction.
    EndOfStream,
}

/// The directions of its stream that a client has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// It sends no more, and may still read.
    Sending,
    /// It does not read either, or the connection is broken.
    Both,
}

impl Conn {
    /// Whether it serves this flow.
    pub fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Its flow has been removed. With `cut_off` the connection ends at once; otherwise its
    /// requests are answered first.
    pub fn detach(&mut self, cut_off: bool) {
        self.is_detached = true;
        if cut_off { self.hang_up() } else { self.drain() }
    }

    /// Takes no more requests, but answers the complete ones.
    pub fn drain(&mut self) {
        if self.state == State::Open {
            self.state = State::Draining;
            self.abandon_payload();
        }
    }

    /// Closes the connection: its submitted requests are finished but not answered.
    pub fn hang_up(&mut self) {
        if self.state != State::Dead {
            self.state = State::Dead;
            self.leave();
            // Ends a receive or send that the ring still has.
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            self.abandon_payload();
        }
    }

    /// A send has failed with this error. Only these two errors mean that the client has closed.
    pub(super) fn answer_refused(&mut self, errno: Option<i32>) {
        match errno {
            Some(libc::EPIPE | libc::ECONNRESET) => self.has_gone(),
            _ => self.hang_up(),
        }
    }

    /// The client reads no more answers. It may still have sent `DISC`, in bytes that are not yet
    /// received or that wait behind a request without buffers.
    pub(super) fn has_gone(&mut self) {
        if self.state == State::Dead {
            return;
        }
        if self.state == State::Open && !self.is_received {
            self.is_unread = true;
            if self.farewell == Farewell::None {
                self.farewell = Farewell::EndOfStream;
            }
            return self.leave();
        }
        while self.refill() {}
        if self.state == State::Dead {
            return;
        }
        if self.farewell == Farewell::GoodBye || self.has_good_bye_ahead() {
            self.farewell = Farewell::GoodBye;
            self.is_unread = true;
        } else {
            self.hang_up();
        }
    }

    /// The directions that the client has closed, if any.
    pub(super) fn closed(&self) -> Option<Closed> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        // The kernel reports errors and the end of both directions in any case.
        if poll(&mut fds, Some(&Timespec::default())).unwrap_or(0) == 0 {
            return None;
        }
        let is_broken = fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        Some(if is_broken { Closed::Both } else { Closed::Sending })
    }

    /// Called when another client of the tenant connects: its requests wait for this client's if
    /// this client has ended.
    pub fn check_end(&mut self) {
        if !self.client.has_ended() && (self.closed().is_some() || self.has_good_bye_ahead()) {
            self.leave();
        }
    }

    /// Whether a `DISC` has been received behind the request that waits for buffers.
    fn has_good_bye_ahead(&self) -> bool {
        let extended = self.negotiated.extended;
        let mut payload = match &self.intake {
            Intake::Stalled(request) => request.payload(extended),
            Intake::Refused { skip: 0, .. } => 0,
            _ => return false,
        };
        let mut bytes = self.incoming.bytes();
        while let Some(rest) = bytes.get(usize::try_from(payload).unwrap_or(usize::MAX)..)
            && let Ok(Some((request, header))) = parse_request(rest, extended)
        {
            if request.command == Command::Disconnect {
                return true;
            }
            (bytes, payload) = (&rest[header..], request.payload(extended));
        }
        false
    }

    /// Detects the end of a client whose next request waits for buffers. Other connections have a
    /// receive on the ring, which the end of the client completes.
    fn detect_end(&mut self) {
        let is_stalled = self.state == State::Open && self.is_stalled();
        if self.is_unread || !(is_stalled || self.state == State::Draining) {
            return;
        }
        if is_stalled && std::mem::replace(&mut self.reads_ahead, true) {
            while self.refill() {}
            if self.farewell == Farewell::None && self.has_good_bye_ahead() {
                self.farewell = Farewell::GoodBye;
                self.leave();
            }
        }
        match self.closed() {
            Some(Closed::Both) => self.has_gone(),
            Some(Closed::Sending) if self.state == State::Open => {
                if self.farewell == Farewell::None {
                    self.farewell = Farewell::EndOfStream;
                }
                self.leave();
            }
            _ => {}
        }
    }

    /// Called once a second: checks whether the client has left, and returns memory that was not
    /// used in that second to the system, about `allowance` bytes at most. True if the connection
    /// may have something to do.
    pub fn second(&mut self, allowance: &mut usize) -> bool {
        if !std::mem::take(&mut self.was_used) && self.region.is_unused() && *allowance > 0 {
            *allowance = allowance.saturating_sub(self.region.give_back());
            self.outbox.shrink();
        }
        let was = (self.state, self.is_unread);
        self.detect_end();
        let has_taken = std::mem::take(&mut self.has_taken);
        let is_late = match self.farewell {
            Farewell::None => false,
            _ if self.is_unread => true,
            Farewell::GoodBye => self.outbox.in_ring && !has_taken,
            Farewell::EndOfStream => self.state == State::Draining || !has_taken,
        };
        self.waited_s = if is_late { self.waited_s.saturating_add(1) } else { 0 };
        if self.waited_s >= FAREWELL_S {
            self.hang_up();
        }
        let has_late = self.fail_late();
        // Memory for which a connection waits is freed by other connections, without a
        // notification, so the connection retries.
        self.is_stalled() || has_late || was != (self.state, self.is_unread)
    }

    /// Whether its requests are no longer answered.
    pub(in crate::nbd) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// Whether its orders are to be cancelled.
    pub(in crate::nbd) fn wants_cancel(&self) -> bool {
        self.is_dead() && !self.is_cancelled && self.free.len() < self.ops.len()
    }

    /// [`Self::wants_cancel`]; also records that the orders are being cancelled.
    pub(in crate::nbd) fn begin_cancel(&mut self) -> bool {
        let wants_cancel = self.wants_cancel();
        self.is_cancelled |= wants_cancel;
        wants_cancel
    }

    /// Drops a write whose payload will never be complete; submitted pieces of it run to their end.
    fn abandon_payload(&mut self) {
        if let Intake::Payload { op: index } = self.intake {
            if self.incoming.in_ring && self.incoming.direct > 0 {
                // The kernel may still write into the buffer. The shutdown ends the receive, and
                // `is_closed` calls this again after its event.
                let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Read);
                return;
            }
            self.intake = Intake::Header;
            let op = &mut self.ops[usize::from(index)];
            op.orders.fail(libc::ECONNRESET);
            // An op with pieces to submit is answered when its turn to submit comes.
            if op.orders.outstanding() == 0 && !op.queued {
                self.release(index);
            }
        }
    }

    /// Frees the finished and the unsubmitted requests of a dead connection, for which nothing
    /// waits.
    pub(super) fn discard(&mut self) {
        self.end_waits();
        while let Some(index) = self.to_submit.pop_front() {
            let op = &mut self.ops[usize::from(index)];
            op.queued = false;
            op.orders.fail(libc::ECONNRESET);
            self.answer_if_over(index);
        }
        self.ready.append(&mut self.to_ask);
        while let Some(index) = self.ready.pop_front() {
            self.release(index);
        }
    }

    /// Whether the connection has no request left and all its memory is free, so that it may be
    /// dropped.
    pub fn is_closed(&mut self) -> bool {
        if self.state == State::Open {
            return false;
        }
        if !self.incoming.in_ring {
            self.abandon_payload();
        }
        let unanswered = self.state == State::Draining
            && !self.is_unread
            && !(self.ready.is_empty() && self.to_submit.is_empty() && !self.incoming.has_output());
        let all_free = self.free.len() == self.ops.len();
        if unanswered || !all_free || !self.outbox.is_empty() || self.outbox.in_ring {
            return false;
        }
        if self.incoming.in_ring {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            return false;
        }
        true
    }
}
