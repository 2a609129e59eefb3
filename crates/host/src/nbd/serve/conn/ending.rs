//! The end of a connection: no client keeps its place by not caring.
//!
//! | the client | what it has asked for |
//! |---|---|
//! | says good-bye and reads | is done and answered, however long the device takes |
//! | says good-bye and does not read | is given up after [`FAREWELL_S`] without a byte taken |
//! | says good-bye and has gone | is done for [`FAREWELL_S`], as the protocol demands of a good-bye |
//! | has gone without a word | is given up at once |
//! | ends its stream, and may still read | is done and answered for [`FAREWELL_S`] |
//!
//! TCP cannot tell the last two apart before an answer has been refused. What is given up and
//! staged is cancelled; what is on the device runs to its end, since the device has its memory, and
//! the connection's place is given back then.

use fairq_core::FlowId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// How long a client that leaves is waited for, in seconds: for its next byte if it takes its
/// answers, in all if it takes none.
const FAREWELL_S: u8 = 5;

/// How a client has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// It has not.
    None,
    /// It said good-bye.
    GoodBye,
    /// It sends nothing any more.
    EndOfStream,
}

impl Conn {
    /// Whether it serves this flow.
    pub fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Its flow is no more. What it has asked for is answered, unless it is to be cut off.
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
            // Ends a receive or send that the ring still has.
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
            self.abandon_payload();
        }
    }

    /// The client neither sends nor reads any more.
    pub(super) fn has_gone(&mut self) {
        if self.farewell == Farewell::GoodBye && self.state == State::Draining {
            self.is_unread = true;
        } else {
            self.hang_up();
        }
    }

    /// Whether the other side has closed the socket, or it is broken.
    pub(super) fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        // Asked for nothing, the kernel tells of errors and of the end of both directions.
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// A second has passed: looks whether the client is still there, and gives memory back that was
    /// not used in that time, about `allowance` bytes of it at the most. True if the connection may
    /// have something to do.
    pub fn second(&mut self, allowance: &mut usize) -> bool {
        if !std::mem::take(&mut self.was_used) && self.region.is_unused() && *allowance > 0 {
            *allowance = allowance.saturating_sub(self.region.give_back());
            self.outbox.shrink();
        }
        let stalled = matches!(self.intake, Intake::Stalled(_));
        let was = (self.state, self.is_unread);
        // Otherwise a receive is under way, which tells.
        if (self.state == State::Draining || self.state == State::Open && stalled)
            && !self.is_unread
            && self.is_hung_up()
        {
            self.has_gone();
        }
        let has_taken = std::mem::take(&mut self.has_taken);
        let is_late = self.is_unread
            || self.farewell == Farewell::EndOfStream
            || self.farewell == Farewell::GoodBye && self.outbox.in_ring && !has_taken;
        self.waited_s = if is_late { self.waited_s.saturating_add(1) } else { 0 };
        if self.state == State::Draining && self.waited_s >= FAREWELL_S {
            self.hang_up();
        }
        // One that waits for memory gets it from another's, which does not tell.
        stalled || was != (self.state, self.is_unread)
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

    /// A write whose payload will never be complete is dropped; chunks of it that were submitted
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
            op.errno = libc::ECONNRESET;
            // One with chunks to submit is settled when it is looked at for that.
            if op.outstanding == 0 && !op.queued {
                self.release(index);
            }
        }
    }

    /// Frees what a dead connection has ready, and what it has not submitted: nothing waits for it.
    pub(super) fn discard(&mut self) {
        while let Some(index) = self.to_submit.pop_front() {
            let op = &mut self.ops[usize::from(index)];
            op.queued = false;
            op.errno = libc::ECONNRESET;
            self.settle(index);
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
