//! Calls to a guest (interrupts): events that are written to a file of the guest's monitor.
//!
//! The ring makes these writes, because a write may block for ever: on an eventfd whose counter is
//! full, or on a socket whose reader has stopped. At most `CALLS` writes of a queue are under way,
//! so that a guest cannot fill the kernel's memory with blocked writes. Events that occur at this
//! bound are combined into one event, which is written when one of the writes has completed.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

use io_uring::{opcode, types};

use super::socket::is_eventfd;
use crate::io::ring::{Ring, UserData};

/// The most writes of a queue under way.
const CALLS: u8 = 16;

/// The bytes of one event.
static ONE: u64 = 1;

/// Whether a file takes calls: an eventfd, or one end of a pair of sockets, which user-mode Linux
/// uses instead.
pub fn takes_calls(file: &File) -> bool {
    is_eventfd(file) || file.metadata().is_ok_and(|of| of.file_type().is_socket())
}

/// The calls of a queue.
pub struct Calls {
    file: Option<OwnedFd>,
    under_way: u8,
    is_due: bool,
}

impl Calls {
    /// A queue that calls on this file, or does not call.
    pub fn new(file: Option<OwnedFd>) -> Calls {
        Calls { file, under_way: 0, is_due: false }
    }

    /// Calls the guest; `ended` is to be called with the event of this name.
    pub fn call(&mut self, ring: &mut Ring, name: UserData) {
        let Some(file) = &self.file else { return };
        if self.under_way == CALLS {
            self.is_due = true;
            return;
        }
        self.under_way += 1;
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), (&raw const ONE).cast(), 8);
        // SAFETY: the bytes are a constant.
        unsafe { ring.push(write.build(), name) };
    }

    /// A write has completed. One that failed is not repeated: the file had more events than it can
    /// count.
    pub fn ended(&mut self, ring: &mut Ring, name: UserData) {
        self.under_way = self.under_way.saturating_sub(1);
        if std::mem::take(&mut self.is_due) {
            self.call(ring, name);
        }
    }

    /// Uses another file for calls, and calls the guest at once, since the guest may have missed a
    /// call on the old file.
    pub fn replace(&mut self, ring: &mut Ring, file: Option<OwnedFd>, name: UserData) {
        // The queued writes are submitted before the server closes the old file.
        ring.enter(0, None);
        self.file = file;
        self.call(ring, name);
    }

    /// Whether no write is under way; one that is under way is cancelled.
    pub fn has_ended(&mut self, ring: &mut Ring, name: UserData, cancellation: UserData) -> bool {
        if self.under_way > 0 {
            (self.file, self.is_due) = (None, false);
            ring.cancel(name, cancellation);
        }
        self.under_way == 0
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

    /// Passes on the events of completed writes; returns their results.
    fn completed(calls: &mut Calls, ring: &mut Ring, want: usize) -> Vec<i32> {
        let mut results = Vec::new();
        while results.len() < want {
            ring.enter(1, Some(1_000_000_000));
            let Some(event) = ring.event() else { return results };
            if event.data == CALL {
                calls.ended(ring, CALL);
                results.push(event.result);
            }
        }
        results
    }

    #[test]
    fn a_full_file_keeps_a_bounded_number_of_writes() {
        let mut ring = Ring::new(0).unwrap();
        let mut file = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
        file.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        let mut calls = Calls::new(Some(file.try_clone().unwrap().into()));
        for _ in 0..1000 {
            calls.call(&mut ring, CALL);
            ring.enter(0, None);
        }
        assert_eq!((calls.under_way, calls.is_due), (CALLS, true));
        assert!(ring.event().is_none());
        // The guest reads its calls: all of them are written, and the one that was due.
        assert_eq!(file.read(&mut [0; 8]).unwrap(), 8);
        assert_eq!(completed(&mut calls, &mut ring, usize::from(CALLS) + 1), [8; 17]);
        assert!(calls.has_ended(&mut ring, CALL, CANCEL));
    }

    #[test]
    fn writes_that_wait_are_cancelled_at_the_end() {
        let mut ring = Ring::new(0).unwrap();
        let mut file = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
        file.write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        let mut calls = Calls::new(Some(file.into()));
        for _ in 0..100 {
            calls.call(&mut ring, CALL);
        }
        let mut results = Vec::new();
        while !calls.has_ended(&mut ring, CALL, CANCEL) {
            results.extend(completed(&mut calls, &mut ring, 1));
        }
        assert!(results.len() == 16 && results.iter().all(|result| *result < 0), "{results:?}");
    }

    /// User-mode Linux takes its calls from a pair of sockets.
    #[test]
    fn a_socket_takes_calls_and_a_regular_file_does_not() {
        let mut ring = Ring::new(0).unwrap();
        let (mut guest, end) = UnixStream::pair().unwrap();
        let end = File::from(OwnedFd::from(end));
        assert!(takes_calls(&end) && !takes_calls(&File::open("/dev/null").unwrap()));
        let mut calls = Calls::new(Some(end.into()));
        calls.call(&mut ring, CALL);
        assert_eq!(completed(&mut calls, &mut ring, 1), [8]);
        assert_eq!(guest.read(&mut [0; 16]).unwrap(), 8);
    }
}
