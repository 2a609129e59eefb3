//! Calls to a guest or its monitor (interrupts, faults): events that are written to a file of the
//! monitor.
//!
//! The ring makes these writes, because a write may block for ever: on an eventfd whose counter is
//! full, or on a socket whose reader has stopped. At most `CALLS` writes of a queue or of an
//! interrupt vector are under way, so that a guest cannot fill the kernel's memory with blocked
//! writes. Events that occur at this bound are combined into one event, which is written when one
//! of the writes has completed. The kernel keeps the file of a write that was submitted, so a file
//! is closed only after the submission of its queued writes.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use io_uring::{opcode, types};

use super::socket::is_eventfd;
use crate::io::ring::{Ring, UserData};

/// The most writes of a queue or of an interrupt vector under way.
const CALLS: u8 = 16;

/// The bytes of one event.
static ONE: u64 = 1;

/// Whether a file takes calls: an eventfd, or one end of a pair of sockets, which user-mode Linux
/// uses instead.
pub fn takes_calls(file: &File) -> bool {
    is_eventfd(file) || file.metadata().is_ok_and(|of| of.file_type().is_socket())
}

/// The calls on one file.
pub struct Calls {
    file: Option<Arc<OwnedFd>>,
    name: UserData,
    cancellation: UserData,
    under_way: u8,
    is_due: bool,
}

impl Calls {
    /// Calls on this file, or on none. `ended` is to be called with each event of this name; the
    /// events of cancellations are to be ignored.
    pub fn new(file: Option<Arc<OwnedFd>>, name: UserData, cancellation: UserData) -> Calls {
        Calls { file, name, cancellation, under_way: 0, is_due: false }
    }

    /// Calls the guest.
    pub fn call(&mut self, ring: &mut Ring) {
        let Some(file) = &self.file else { return };
        if self.under_way == CALLS {
            self.is_due = true;
            return;
        }
        self.under_way += 1;
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), (&raw const ONE).cast(), 8);
        // SAFETY: the bytes are a constant.
        unsafe { ring.push(write.build(), self.name) };
    }

    /// A write has completed. One that failed is not repeated: the file had more events than it can
    /// count.
    pub fn ended(&mut self, ring: &mut Ring) {
        self.under_way = self.under_way.saturating_sub(1);
        if std::mem::take(&mut self.is_due) {
            self.call(ring);
        }
    }

    /// Uses another file. It gets an event for those that the old one has not taken.
    pub fn replace(&mut self, ring: &mut Ring, file: Option<Arc<OwnedFd>>) {
        self.cancel(ring);
        (self.file, self.is_due) = (file, self.under_way > 0);
    }

    /// Whether no write is under way; the ones that are under way are cancelled.
    pub fn has_ended(&mut self, ring: &mut Ring) -> bool {
        if self.under_way > 0 {
            self.cancel(ring);
            (self.file, self.is_due) = (None, false);
        }
        self.under_way == 0
    }

    fn cancel(&self, ring: &mut Ring) {
        ring.enter(0, None);
        ring.cancel_all(self.name, self.cancellation);
        // An older kernel cancels at least one of them.
        ring.cancel(self.name, self.cancellation);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::io::ring::Asker;

    const CALL: UserData = UserData { asker: Asker::Vhost, value: 1 };
    const CANCEL: UserData = UserData { asker: Asker::Vhost, value: 2 };

    fn calls_on(file: File) -> Calls {
        Calls::new(Some(Arc::new(file.into())), CALL, CANCEL)
    }

    fn full() -> File {
        let mut file = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
        file.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        file
    }

    /// Passes on the events of completed writes; returns their results.
    fn completed(calls: &mut Calls, ring: &mut Ring, want: usize) -> Vec<i32> {
        let mut results = Vec::new();
        while results.len() < want {
            ring.enter(1, Some(1_000_000_000));
            let Some(event) = ring.event() else { return results };
            if event.data == CALL {
                calls.ended(ring);
                results.push(event.result);
            }
        }
        results
    }

    #[test]
    fn a_full_file_keeps_a_bounded_number_of_writes() {
        let mut ring = Ring::new(0).unwrap();
        let mut file = full();
        let mut calls = calls_on(file.try_clone().unwrap());
        for _ in 0..1000 {
            calls.call(&mut ring);
            ring.enter(0, None);
        }
        assert_eq!((calls.under_way, calls.is_due), (CALLS, true));
        assert!(ring.event().is_none());
        // The guest reads its calls: all of them are written, and the one that was due.
        assert_eq!(file.read(&mut [0; 8]).unwrap(), 8);
        assert_eq!(completed(&mut calls, &mut ring, usize::from(CALLS) + 1), [8; 17]);
        assert!(calls.has_ended(&mut ring));
    }

    #[test]
    fn writes_that_wait_are_cancelled_at_the_end() {
        let mut ring = Ring::new(0).unwrap();
        let mut calls = calls_on(full());
        for _ in 0..100 {
            calls.call(&mut ring);
        }
        let mut results = Vec::new();
        while !calls.has_ended(&mut ring) {
            results.extend(completed(&mut calls, &mut ring, 1));
        }
        assert!(results.len() == 16 && results.iter().all(|result| *result < 0), "{results:?}");
    }

    #[test]
    fn another_file_gets_an_event_for_those_that_the_old_one_has_not_taken() {
        let mut ring = Ring::new(0).unwrap();
        let mut calls = calls_on(full());
        for _ in 0..100 {
            calls.call(&mut ring);
        }
        let mut file = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
        calls.replace(&mut ring, Some(Arc::new(file.try_clone().unwrap().into())));
        let results = completed(&mut calls, &mut ring, usize::from(CALLS) + 1);
        assert_eq!(results.iter().filter(|result| **result == 8).count(), 1, "{results:?}");
        let mut events = [0; 8];
        assert_eq!((file.read(&mut events).unwrap(), u64::from_ne_bytes(events)), (8, 1));
        assert!(calls.has_ended(&mut ring));
    }

    /// User-mode Linux takes its calls from a pair of sockets.
    #[test]
    fn a_socket_takes_calls_and_a_regular_file_does_not() {
        let mut ring = Ring::new(0).unwrap();
        let (mut guest, end) = UnixStream::pair().unwrap();
        let end = File::from(OwnedFd::from(end));
        assert!(takes_calls(&end) && !takes_calls(&File::open("/dev/null").unwrap()));
        let mut calls = calls_on(end);
        calls.call(&mut ring);
        assert_eq!(completed(&mut calls, &mut ring, 1), [8]);
        assert_eq!(guest.read(&mut [0; 16]).unwrap(), 8);
    }
}
