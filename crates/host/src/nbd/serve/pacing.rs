//! Decides when a receive from a client should be delayed.
//!
//! **Problem.** A client with many requests in flight sends the next one whenever it has read a
//! reply. A server that is faster than its client then receives the requests one by one: each costs
//! two system calls and contention for the socket's locks, which costs both sides more than the
//! request itself.
//!
//! **Model.** Replies that the client has not read keep it busy. While they fill more than a
//! quarter of the socket's send buffer (the kernel then reports a Unix socket as not writable), the
//! client does not need the server, and the requests that it sends meanwhile are received together:
//! the receive begins when the socket is writable. The client's own reading triggers this, so no
//! time has to be guessed, and the client then still has a quarter of the buffer to read.
//!
//! A client with one request in flight never has an unread reply when it sends. A receive is
//! delayed only if several replies were sent together recently, so the latency of such a client
//! does not change.
//!
//! **A client that sends everything before it reads** would wait for the server while the server
//! waits for it. So the pause ends after [`PATIENCE`], and that client's receives are never delayed
//! again.

use io_uring::types::Timespec;

/// The longest pause. It is longer than a scheduler's tick, so that setting the timer costs next to
/// nothing.
pub(super) static PATIENCE: Timespec = Timespec::new().nsec(5_000_000);
/// The requested size of the send buffer, in bytes (the kernel doubles it). Every kernel grants it
/// without privileges, and a quarter of it keeps a client busy for a while.
pub(crate) const SEND_BUFFER: usize = 212_992;
/// The number of consecutive batches with a single reply after which a client counts as one with
/// one request in flight.
const MEMORY: u8 = 64;

/// The measurements of one client.
#[derive(Default)]
pub(super) struct Pacing {
    /// Above 0 if one of the last [`MEMORY`] batches had several replies.
    several: u8,
    /// Whether the last batch had data (4 KiB or more), but less than 64 KiB: with more, a separate
    /// receive for each request is cheap enough.
    is_small: bool,
    /// Whether a pause has once ended by its timeout.
    never_pause: bool,
}

impl Pacing {
    /// Records that a batch of `replies` replies, together `bytes` long, is about to be sent.
    pub(super) fn replying(&mut self, replies: usize, bytes: usize) {
        self.several = if replies > 1 { MEMORY } else { self.several.saturating_sub(1) };
        self.is_small = (4 << 10..64 << 10).contains(&bytes);
    }

    /// Whether the next receive should begin only when the client has read most of its replies.
    pub(super) fn can_pause(&self) -> bool {
        self.several > 0 && self.is_small && !self.never_pause
    }

    /// Records that a pause has ended by its timeout.
    pub(super) fn gave_up(&mut self) {
        self.never_pause = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_with_several_small_requests_are_left_alone() {
        let mut pace = Pacing::default();
        assert!(!pace.can_pause());
        pace.replying(1, 4112);
        assert!(!pace.can_pause(), "one in flight");
        pace.replying(2, 8224);
        pace.replying(1, 4112);
        assert!(pace.can_pause());
        pace.replying(1, 1 << 20);
        assert!(!pace.can_pause(), "large");
        pace.replying(8, 128);
        assert!(!pace.can_pause(), "no data to read");
        for _ in 0..MEMORY {
            pace.replying(1, 4112);
        }
        assert!(!pace.can_pause(), "forgotten");
        pace.replying(2, 8224);
        pace.gave_up();
        assert!(!pace.can_pause());
    }
}
