//! Reads and writes through the page cache that are done on the spot, without the ring.
//!
//! **Problem.** A read that the page cache can answer and a write that it can take are a copy of
//! memory. The ring does such a read on the spot, too, but a write of a file system that cannot
//! promise not to wait (ext4) goes to a worker thread: a wake-up and a switch each way, several
//! times what the write itself costs, and one at a time for each file, as workers take turns there.
//! **Model.** The shard does them itself. A read says that it must not wait (`RWF_NOWAIT`) and goes
//! by the ring if it would have to. A write might wait for the disk, and with it everybody on this
//! shard: for a page of which it changes a part, so that only whole pages are written here, and for
//! the disk to take what is dirty, which the kernel makes writers wait for by pauses of many
//! milliseconds. So each is timed, and those in which the thread has slept for more than
//! [`LONG_NS`] are added up: as long as they have taken more than one part in [`RARE`] of the time,
//! beyond [`TOLERANCE_NS`], writes go by the ring. That bounds what a shard waits, whatever the
//! disk does. Shorter sleeps are turns at the file's lock, which a worker would have to wait for as
//! well. A thread that had to let another one run has not slept: where CPUs are scarce a write
//! takes long for that, and a worker's would take longer. The kernel counts either; it is asked
//! once a turn, and again when a write has taken long. What has to be on stable storage (FUA) waits
//! for the disk, and never goes here; nor does what goes past the page cache.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

/// A write that slept for longer has waited for the disk, in nanoseconds.
const LONG_NS: u64 = 1_000_000;
/// What waiting may be of the time: one part in so many.
const RARE: u64 = 64;
/// What may be waited beyond that, in nanoseconds: a few waits are no reason to do otherwise.
const TOLERANCE_NS: u64 = 10_000_000;

/// What one shard has waited in writes of its files.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Waited by then and not yet made up for, in nanoseconds.
    waited_ns: u64,
    then_ns: u64,
    /// How often the thread had slept in all, and the turn in which that was asked.
    sleeps: i64,
    turn_ns: u64,
}

impl Waits {
    fn waited_ns(&self, now_ns: u64) -> u64 {
        self.waited_ns.saturating_sub(now_ns.saturating_sub(self.then_ns) / RARE)
    }

    /// Whether a write may be done on the spot.
    pub(super) fn may_write(&self, now_ns: u64) -> bool {
        self.waited_ns(now_ns) <= TOLERANCE_NS
    }

    /// A write has waited.
    fn waited(&mut self, now_ns: u64, took_ns: u64) {
        (self.waited_ns, self.then_ns) = (self.waited_ns(now_ns) + took_ns, now_ns);
    }

    /// Writes to the page cache; `None` if writes have waited too much of late.
    ///
    /// # Safety
    /// The pieces are readable memory that nobody changes.
    pub(super) unsafe fn write(
        &mut self,
        now_ns: u64,
        file: &File,
        pieces: &[libc::iovec],
        offset: u64,
    ) -> Option<i32> {
        if !self.may_write(now_ns) {
            return None;
        }
        // A thread sleeps between its turns, and in them only here.
        if self.turn_ns != now_ns {
            (self.turn_ns, self.sleeps) = (now_ns, sleeps());
        }
        let (start, fd, offset) = (Instant::now(), file.as_raw_fd(), offset as i64);
        // SAFETY: the caller vouches for the pieces.
        let result = unsafe {
            match pieces {
                // A vector takes the kernel a little longer.
                [one] => libc::pwrite(fd, one.iov_base, one.iov_len, offset),
                _ => libc::pwritev(fd, pieces.as_ptr(), pieces.len() as i32, offset),
            }
        };
        let error = io::Error::last_os_error();
        let took_ns = start.elapsed().as_nanos() as u64;
        if took_ns > LONG_NS {
            let before = std::mem::replace(&mut self.sleeps, sleeps());
            if self.sleeps != before {
                self.waited(now_ns, took_ns);
            }
        }
        Some(if result < 0 { -error.raw_os_error().unwrap_or(libc::EIO) } else { result as i32 })
    }
}

/// How often this thread has gone to sleep of its own accord.
fn sleeps() -> i64 {
    // SAFETY: all-zero is a valid value, which the kernel overwrites.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a value of the right type.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw
}

/// Reads what is in the page cache; `None` if some of it, or all, is not, or cannot be read in this
/// way.
///
/// # Safety
/// The pieces are writable memory that nobody else has.
pub(super) unsafe fn read(file: &File, pieces: &[libc::iovec], offset: u64) -> Option<i32> {
    let (pointer, count) = (pieces.as_ptr(), pieces.len() as i32);
    // SAFETY: the caller vouches for the pieces.
    let result =
        unsafe { libc::preadv2(file.as_raw_fd(), pointer, count, offset as i64, libc::RWF_NOWAIT) };
    // Errors are found out once more, and at leisure, by the ring.
    if result < 0 { None } else { Some(result as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_waited_goes_by_the_ring_for_a_while() {
        let mut waits = Waits::default();
        waits.waited(0, TOLERANCE_NS);
        assert!(waits.may_write(0), "once");
        waits.waited(1_000, 9 * TOLERANCE_NS);
        assert!(!waits.may_write(1_000));
        assert!(!waits.may_write(1_000 + 8 * TOLERANCE_NS * RARE));
        assert!(waits.may_write(1_000 + 9 * TOLERANCE_NS * RARE));
    }

    #[test]
    fn sleeping_is_counted() {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(sleeps() > before);
    }

    /// However long writes take: what they wait is bounded.
    #[test]
    fn waiting_is_rare() {
        const WAIT_NS: u64 = 3_000_000;
        let (mut waits, mut now_ns, mut waited_ns) = (Waits::default(), 0, 0);
        while now_ns < 10_000_000_000 {
            if waits.may_write(now_ns) {
                waits.waited(now_ns, WAIT_NS);
                (now_ns, waited_ns) = (now_ns + WAIT_NS, waited_ns + WAIT_NS);
            }
            now_ns += 10_000;
        }
        assert!(waited_ns < now_ns / RARE + TOLERANCE_NS + WAIT_NS, "{waited_ns}");
        assert!(waited_ns > now_ns / RARE / 2, "{waited_ns}: it never tries again");
    }
}
