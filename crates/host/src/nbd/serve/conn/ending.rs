//! The end of a connection: no client keeps its place by not caring.
//!
//! | the client | its requests |
//! |---|---|
//! | says good-bye and reads | are done and answered, however long the device takes |
//! | says good-bye and does not read | are given up after [`FAREWELL_S`] without a byte taken |
//! | says good-bye and has gone | are done for [`FAREWELL_S`], as the protocol demands of a good-bye |
//! | has gone without a word | are given up when its stream has been read to its end |
//! | ends its stream, and may still read | is done and answered for [`FAREWELL_S`] |
//! | ends its stream or says good-bye behind requests that have no room, and does not read | is \
//! given up after [`FAREWELL_S`] without a byte taken |
//!
//! A refused answer says only that the client does not read: its good-bye may be among the bytes
//! that are still to be received, so the stream is read on, and nothing more is answered.
//!
//! A connection whose next request has no room receives nothing, so its socket is polled for the
//! end once a second, and whenever another client of the tenant connects. After a second without
//! room, or after a refused answer, it receives what its buffer takes, to find a good-bye there.
//!
//! TCP does not distinguish the last two before an answer has been refused. A staged request that
//! is given up is cancelled. A request on the device runs to its end, because the device has its
//! memory; the connection's place is given back then.

use fairq_core::FlowId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// The time for which a leaving client is waited for, in seconds: for its next byte if it takes its
/// answers, in all if it takes none.
const FAREWELL_S: u8 = 5;

/// The way in which a client has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// It has not.
    None,
    /// It said good-bye.
    GoodBye,
    /// It sends nothing any more.
    EndOfStream,
}

/// Which directions of its stream a client has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// It sends nothing more, and may still read.
    Sending,
    /// It does not read either, or the connection is broken.
    Both,
}

impl Conn {
    /// Whether it serves this flow.
    pub fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Its flow has been removed. Its requests are answered, unless it is to be cut off.
    pub fn detach(&mut self, cut_off: bool) {
        self.is_detached = true;
        if cut_off { self.hang_up() } else { self.drain() }
    }

    /// Takes no more requests, but answers those that are complete.
    pub fn drain(&mut self) {
        if self.state == State::Open {
            self.state = State::Draining;
            self.abandon_payload();
        }
    }

    /// Gives the connection up: what it has submitted is finished but not answered.
    pub fn hang_up(&mut self) {
        if self.state != State::Dead {
            self.state = State::Dead;
            self.leave();
            // Ends a receive or send that the ring still has.
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            self.abandon_payload();
        }
    }

    /// An answer was refused with this error. Others than these two say nothing of the client.
    pub(super) fn answer_refused(&mut self, errno: Option<i32>) {
        match errno {
            Some(libc::EPIPE | libc::ECONNRESET) => self.has_gone(),
            _ => self.hang_up(),
        }
    }

    /// The client reads no more answers. It may have said good-bye all the same, in bytes that are
    /// still to be received or that wait behind a request without room.
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

    /// Another client of the tenant has come, whose requests wait for this one's if it has ended.
    pub fn check_end(&mut self) {
        if !self.client.has_ended() && (self.closed().is_some() || self.has_good_bye_ahead()) {
            self.leave();
        }
    }

    /// Whether a good-bye has come behind the request that has no room.
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

    /// Detects the end of a client whose next request has no room; otherwise a receive is under
    /// way, and ends with it.
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

    /// A second has passed: checks whether the client is still there, and gives back memory that
    /// was not used in that time, about `allowance` bytes of it at the most. True if the connection
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
        // A connection that waits for memory gets it from another one, which gives no notice.
        self.is_stalled() || has_late || was != (self.state, self.is_unread)
    }

    /// Whether nothing of it is answered any more.
    pub(in crate::nbd) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// Whether its orders are to be cancelled.
    pub(in crate::nbd) fn wants_cancel(&self) -> bool {
        self.is_dead() && !self.is_cancelled && self.free.len() < self.ops.len()
    }

    /// The same, and notes that they are.
    pub(in crate::nbd) fn begin_cancel(&mut self) -> bool {
        let wants_cancel = self.wants_cancel();
        self.is_cancelled |= wants_cancel;
        wants_cancel
    }

    /// A write whose payload will never be complete is dropped; pieces of it that were submitted
    /// run to their end.
    fn abandon_payload(&mut self) {
        if let Intake::Payload { op: index } = self.intake {
            if self.incoming.in_ring && self.incoming.direct > 0 {
                // The kernel may still write into the buffer: the event of the receive, which the
                // shutdown brings about, comes first. See `is_closed`.
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

    /// Frees what a dead connection has ready, and what it has not submitted: nothing waits for it.
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

    /// Whether nothing is left to do and none of its memory is held; it may then be dropped.
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
