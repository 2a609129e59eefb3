//! When to leave a client alone for a moment.
//!
//! **Problem.** A client with many requests in flight sends the next one whenever it has read a
//! reply. A server that is faster than its client then takes requests one by one: two system calls
//! and the fight for the socket's locks for each, which costs both sides more than the request
//! itself.
//!
//! **Model.** Replies that the client has not read are work that it has. As long as they fill more
//! than a quarter of the socket's send buffer, which is when the kernel calls a Unix socket not
//! writable, the client does not miss us, and what it sends meanwhile is taken in one go: the
//! receive begins when the socket is writable. It is the client's own reading that wakes us, so
//! there is no timer to guess, and it still has a quarter of the buffer to read then.
//!
//! A client with one request in flight never has an unread reply when it sends; the question is not
//! even put unless several replies have left together not long ago, so its latency stays what it
//! is.
//!
//! **A client that sends everything before it reads** would wait for us as we wait for it. The
//! pause therefore ends after [`PATIENCE`], and that client is never left alone again.

use io_uring::types::Timespec;

/// The longest pause. Longer than a scheduler's tick, so that setting the timer costs next to
/// nothing.
pub(super) static PATIENCE: Timespec = Timespec::new().nsec(5_000_000);
/// The requested size of the send buffer, in bytes (the kernel doubles it). Every kernel grants it
/// without privileges, and a quarter of it is work for a while.
pub(crate) const SEND_BUFFER: usize = 212_992;
/// Batches of single replies after which a client counts as one that has one request in flight.
const MEMORY: u8 = 64;

/// The measurements of one client.
#[derive(Default)]
pub(super) struct Pacing {
    /// Above 0 if several replies left together at most so many batches before [`MEMORY`].
    several: u8,
    /// The last batch had data, and not so much that waking for it was worth it anyway.
    is_small: bool,
    /// It once did not read for as long as we were patient.
    never_pause: bool,
}

impl Pacing {
    /// A batch of `replies` replies, together `bytes` long, is about to leave.
    pub(super) fn replying(&mut self, replies: usize, bytes: usize) {
        self.several = if replies > 1 { MEMORY } else { self.several.saturating_sub(1) };
        self.is_small = (4 << 10..64 << 10).contains(&bytes);
    }

    /// Whether the next receive should begin only when the client has read most of what it got.
    pub(super) fn can_pause(&self) -> bool {
        self.several > 0 && self.is_small && !self.never_pause
    }

    /// The pause had to be ended.
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
