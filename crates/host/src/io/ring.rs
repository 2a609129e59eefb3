//! One io_uring per shard, for everything the shard waits for: sockets, files, wake-ups and time.
//!
//! A completion carries 64 bits of user data: the asker, which is the component that submitted the
//! operation (upper 8 bits), and that component's own value (lower 56). A shard blocks nowhere
//! else, so one system call submits the operations of a turn of the loop and waits for the next
//! event.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// Entries of the submission queue. A full queue is submitted and refilled, so this limits the size
/// of a batch, not the number of operations.
const SUBMISSION_ENTRIES: u32 = 1024;
/// Entries of the completion queue. The kernel keeps completions that overflow, so a small queue
/// costs only time.
const COMPLETION_ENTRIES: u32 = 8192;

/// The asker of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// The device queue.
    Device,
    /// The shard itself.
    Shard,
    /// The front end for NBD.
    Nbd,
    /// The front end for vhost-user.
    Vhost,
    /// The front end for ublk.
    Ublk,
    /// The front end for vfio-user.
    VfioUser,
}

/// The user data of one operation, or the cookie of an order on the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserData {
    /// The asker.
    pub asker: Asker,
    /// The asker's own 56 bits.
    pub value: u64,
}

impl UserData {
    const VALUE_BITS: u32 = 56;

    pub(crate) fn to_word(self) -> u64 {
        debug_assert!(self.value >> Self::VALUE_BITS == 0);
        (self.asker as u64) << Self::VALUE_BITS | self.value
    }

    pub(crate) fn from_word(word: u64) -> UserData {
        let asker = match word >> Self::VALUE_BITS {
            0 => Asker::Device,
            1 => Asker::Shard,
            2 => Asker::Nbd,
            3 => Asker::Vhost,
            4 => Asker::Ublk,
            _ => Asker::VfioUser,
        };
        UserData { asker, value: word & ((1 << Self::VALUE_BITS) - 1) }
    }
}

/// One finished operation.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The operation that has finished.
    pub data: UserData,
    /// The system call's result: negative errno on failure.
    pub result: i32,
}

/// A shard's io_uring.
pub struct Ring {
    uring: IoUring,
    /// Whether a flag of the ring shows that the kernel has deferred work, so that needless system
    /// calls can be avoided.
    tells: bool,
}

impl Ring {
    /// Sets up a ring for the calling thread. `fixed_buffers` is the size of the table of
    /// registered buffers.
    pub fn new(fixed_buffers: u32) -> io::Result<Ring> {
        // With these options, deferred completions are processed only when this thread enters the
        // kernel, and never interrupt it (Linux 6.1). The flag shows that there are deferred
        // completions; without the flag, an `enter` that does not wait would not process them.
        let modern = IoUring::builder()
            .setup_cqsize(COMPLETION_ENTRIES)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSION_ENTRIES);
        let (uring, tells) = match modern {
            Ok(uring) => (uring, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (
                IoUring::builder().setup_cqsize(COMPLETION_ENTRIES).build(SUBMISSION_ENTRIES)?,
                false,
            ),
            Err(error) => return Err(error),
        };
        if fixed_buffers > 0 {
            // Registered buffers are an optimisation: without them (old kernel) plain reads and
            // writes are used.
            if let Err(error) = uring.submitter().register_buffers_sparse(fixed_buffers) {
                tracing::debug!(%error, "no registered buffers");
            }
        }
        Ok(Ring { uring, tells })
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// Memory that the operation references must stay valid, and unused by other code as the
    /// operation requires, until its [`Event`] has been taken.
    pub unsafe fn push(&mut self, entry: squeue::Entry, data: UserData) {
        // SAFETY: the caller's guarantee for the memory holds here.
        unsafe { self.push_chain([(entry, data)]) }
    }

    /// Queues a chain of operations. Each begins when the previous one has succeeded, and is
    /// cancelled if the previous one failed.
    ///
    /// # Safety
    /// As for [`Self::push`], for each of them.
    pub unsafe fn push_chain<const N: usize>(&mut self, chain: [(squeue::Entry, UserData); N]) {
        let mut left = N;
        let chain = chain.map(|(entry, data)| {
            left -= 1;
            let entry = entry.user_data(data.to_word());
            if left == 0 { entry } else { entry.flags(squeue::Flags::IO_LINK) }
        });
        // A chain ends where a submission ends, so it is queued as a whole. SAFETY: the caller
        // vouches for the memory that the entries reference.
        while unsafe { self.uring.submission().push_multiple(&chain) }.is_err() {
            // The queue is full: submit it to the kernel and retry.
            self.enter(0, None);
        }
    }

    /// Makes the kernel cancel an operation. The operation's event arrives in any case. `name` is
    /// the user data of the cancellation.
    pub fn cancel(&mut self, operation: UserData, name: UserData) {
        let entry = opcode::AsyncCancel::new(operation.to_word()).build();
        // SAFETY: a cancellation references no memory.
        unsafe { self.push(entry, name) };
    }

    /// As [`Self::cancel`], for all operations of this user data. Linux before 5.19 refuses that.
    pub fn cancel_all(&mut self, operations: UserData, name: UserData) {
        let of = types::CancelBuilder::user_data(operations.to_word()).all();
        // SAFETY: a cancellation references no memory.
        unsafe { self.push(opcode::AsyncCancel2::new(of).build(), name) };
    }

    /// Submits queued operations to the kernel, and waits for `want` events or until `timeout_ns`
    /// has passed. Makes no system call if there is nothing to submit or to wait for and no
    /// deferred work.
    pub fn enter(&mut self, want: usize, timeout_ns: Option<u64>) {
        if want == 0 && self.tells {
            let submission = self.uring.submission();
            if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
                return;
            }
        }
        let result = match timeout_ns {
            Some(ns) if want > 0 => {
                let time = types::Timespec::new()
                    .sec(ns / 1_000_000_000)
                    .nsec((ns % 1_000_000_000) as u32);
                let args = types::SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(want, &args)
            }
            // A wait for 0 events still runs deferred work, which posts completions.
            _ => self.uring.submitter().submit_with_args(want, &types::SubmitArgs::new()),
        };
        if let Err(error) = result {
            match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                _ => panic!("io_uring_enter failed: {error}"),
            }
        }
    }

    /// Whether an event has arrived, or the kernel has deferred work that may post one.
    pub fn has_news(&mut self) -> bool {
        let submission = self.uring.submission();
        let runs = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        runs || !self.uring.completion().is_empty()
    }

    /// Takes the next event that has already arrived.
    pub fn event(&mut self) -> Option<Event> {
        let entry: cqueue::Entry = self.uring.completion().next()?;
        Some(Event { data: UserData::from_word(entry.user_data()), result: entry.result() })
    }

    /// Registers memory as fixed buffer `index`; false if the kernel or the memory-lock limit
    /// refuses.
    ///
    /// # Safety
    /// The memory must stay mapped until the index is registered again or cleared, or the ring is
    /// dropped.
    pub unsafe fn register_buffer(&mut self, index: u32, address: *mut u8, length: usize) -> bool {
        let buffer = libc::iovec { iov_base: address.cast(), iov_len: length };
        // SAFETY: the caller keeps the memory mapped.
        unsafe { self.uring.submitter().register_buffers_update(index, &[buffer], None) }.is_ok()
    }

    /// Removes fixed buffer `index` from the table; its memory may then be unmapped.
    pub fn clear_buffer(&mut self, index: u32) {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty buffer references no memory.
        let _ = unsafe { self.uring.submitter().register_buffers_update(index, &[none], None) };
    }

    /// Registers files, which operations then reference by index; -1 leaves an index empty.
    pub fn register_files(&mut self, files: &[RawFd]) -> io::Result<()> {
        self.uring.submitter().register_files(files)
    }

    /// Registers another file (or none, -1) at an index of the table; false if the kernel refuses.
    /// Operations in flight keep the file with which they began.
    pub fn register_file(&mut self, index: u32, file: RawFd) -> bool {
        self.uring.submitter().register_files_update(index, &[file]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_survives_the_kernel() {
        let mut ring = Ring::new(0).unwrap();
        let fronts = [Asker::Nbd, Asker::Vhost, Asker::Ublk, Asker::VfioUser];
        for asker in [Asker::Device, Asker::Shard].into_iter().chain(fronts) {
            let data = UserData { asker, value: 0x00ab_cdef_0123_4567 };
            // SAFETY: a no-op references no memory.
            unsafe { ring.push(io_uring::opcode::Nop::new().build(), data) };
            ring.enter(1, None);
            let event = ring.event().unwrap();
            assert_eq!((event.data, event.result), (data, 0));
        }
        assert!(ring.event().is_none());
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let mut ring = Ring::new(0).unwrap();
        let start = std::time::Instant::now();
        ring.enter(1, Some(20_000_000));
        assert!(start.elapsed().as_millis() >= 19);
        assert!(ring.event().is_none());
    }

    /// A shard that only enters without waiting must receive its completions, although the kernel
    /// defers them.
    #[test]
    fn completions_appear_without_waiting_for_them() {
        let mut ring = Ring::new(0).unwrap();
        let time = types::Timespec::new().nsec(1_000_000);
        let data = UserData { asker: Asker::Shard, value: 1 };
        // SAFETY: the time is read when the operation is submitted, and lives until the end of the
        // test.
        unsafe { ring.push(io_uring::opcode::Timeout::new(&time).build(), data) };
        let start = std::time::Instant::now();
        let event = loop {
            ring.enter(0, None);
            if let Some(event) = ring.event() {
                break event;
            }
            assert!(start.elapsed().as_secs() < 10, "the completion never appears");
        };
        assert_eq!((event.data, event.result), (data, -libc::ETIME));
    }

    #[test]
    fn more_operations_than_the_queue_holds() {
        let mut ring = Ring::new(0).unwrap();
        let count = u64::from(SUBMISSION_ENTRIES) * 2 + 5;
        for value in 0..count {
            // SAFETY: a no-op references no memory.
            unsafe {
                ring.push(
                    io_uring::opcode::Nop::new().build(),
                    UserData { asker: Asker::Nbd, value },
                )
            };
        }
        ring.enter(1, None);
        let mut seen: Vec<u64> =
            std::iter::from_fn(|| ring.event()).map(|event| event.data.value).collect();
        while (seen.len() as u64) < count {
            ring.enter(1, Some(1_000_000_000));
            seen.extend(std::iter::from_fn(|| ring.event()).map(|event| event.data.value));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
    }
}
