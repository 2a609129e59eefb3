//! The calls of a queue that may block on a device. Threads of the file's store make them, and send
//! the results to the queue's shard.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::file::at_once;
use crate::device::file::open::Backing;
use crate::device::file::workers::Workers;
use crate::io::wakers::Wakers;

/// The number of bytes that a batch writes between two sends of replies.
const TOGETHER: usize = 512 << 10;

/// The result of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// The operation in this slot has ended, with this number of bytes or negative errno.
    Done { slot: u32, result: i32 },
    /// The call that wrote this operation together with others has failed: the operation is to be
    /// retried alone.
    Alone { slot: u32 },
    /// The batch of writes of this store has ended.
    Written { store: u16 },
}

/// The replies that wait for a queue.
pub(super) struct Replies {
    list: Mutex<Vec<Reply>>,
    /// Whether there may be replies, so that a turn without replies takes no lock. Set (Release)
    /// after a reply is in the list, cleared before the list is taken.
    is_some: AtomicBool,
    wakers: Arc<Wakers>,
    shard: usize,
}

impl Replies {
    pub(super) fn new(wakers: Arc<Wakers>, shard: usize) -> Replies {
        Replies { list: Mutex::default(), is_some: AtomicBool::new(false), wakers, shard }
    }

    /// Adds replies, and wakes the shard.
    fn give(&self, replies: &[Reply]) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(replies);
        self.is_some.store(true, Ordering::Release);
        // A thread that polls (a direct path) has no waker, and needs none.
        if self.shard < self.wakers.count() {
            self.wakers.wake(self.shard);
        }
    }

    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.is_some.load(Ordering::Acquire)
    }

    /// Takes all replies, and leaves an empty list.
    #[cold]
    pub(super) fn take(&self, empty: Vec<Reply>) -> Vec<Reply> {
        self.is_some.store(false, Ordering::Relaxed);
        std::mem::replace(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner), empty)
    }
}

/// Ranges of memory, which stay valid until the operation's reply has been taken.
pub(super) enum Pieces {
    One(libc::iovec),
    Many(*const libc::iovec, usize),
}

/// One system call.
pub(super) enum Call {
    Read {
        pieces: Pieces,
        offset: u64,
    },
    Write {
        pieces: Pieces,
        offset: u64,
        is_durable: bool,
    },
    /// Makes a range durable, or the whole file if the length is 0.
    Sync {
        offset: u64,
        length: u64,
    },
    Allocate {
        mode: i32,
        offset: u64,
        length: u64,
    },
}

// SAFETY: the memory that a call points to belongs to the operation, and stays valid and unused
// until the reply has been taken; any thread of this process may access it.
unsafe impl Send for Call {}

impl Pieces {
    /// # Safety
    /// The operation has not ended.
    unsafe fn list(&self) -> &[libc::iovec] {
        match self {
            Pieces::One(one) => std::slice::from_ref(one),
            // SAFETY: these are the operation's vectors, which stay in place until it has ended.
            &Pieces::Many(first, count) => unsafe { std::slice::from_raw_parts(first, count) },
        }
    }
}

impl Call {
    /// Makes the call; returns the number of bytes, or a negative errno.
    ///
    /// # Safety
    /// The operation has not ended, and its memory belongs to the device.
    unsafe fn make(&self, backing: &Backing) -> i32 {
        let file = &backing.file;
        match self {
            Call::Read { pieces, offset } => {
                // SAFETY: the caller vouches for the operation.
                let list = unsafe { pieces.list() };
                let (first, count) = (list.as_ptr(), list.len() as i32);
                let (fd, offset) = (file.as_raw_fd(), *offset as i64);
                // SAFETY: the memory is writable and belongs to the device.
                at_once::result(unsafe { libc::preadv(fd, first, count, offset) })
            }
            Call::Write { pieces, offset, is_durable } => {
                let flags = if *is_durable { libc::RWF_DSYNC } else { 0 };
                // SAFETY: the caller vouches for the operation; the memory is readable and belongs
                // to the device.
                unsafe { at_once::write(file, pieces.list(), *offset, flags) }
            }
            &Call::Sync { offset, length } => {
                backing.sync(offset, length).map_or_else(|e| -e.raw_os_error(), |()| 0)
            }
            Call::Allocate { mode, offset, length } => {
                let (offset, length) = (*offset as i64, *length as i64);
                // SAFETY: the arguments are plain numbers.
                at_once::result(
                    unsafe { libc::fallocate(file.as_raw_fd(), *mode, offset, length) } as isize
                )
            }
        }
    }

    /// Passes the call to a thread of the file's store.
    ///
    /// # Safety
    /// The operation in the slot does not end before its reply has been taken, and its memory
    /// belongs to the device.
    pub(super) unsafe fn hand_over(self, backing: &Arc<Backing>, slot: u32, to: &Arc<Replies>) {
        let (file, replies) = (backing.clone(), to.clone());
        backing.store.push(Box::new(move || {
            // SAFETY: the caller guarantees this.
            let result = unsafe { self.make(&file) };
            // A file is closed only when no thread holds a reference to it.
            drop(file);
            replies.give(&[Reply::Done { slot, result }]);
        }));
    }
}

/// A batch of writes to the page cache of one store. Writes that are contiguous in a file form a
/// run, which is one system call.
pub(super) struct Batch {
    store: u16,
    runs: Vec<Run>,
    pieces: Vec<libc::iovec>,
    /// The slots of the operations, each with the number of bytes still to write.
    slots: Vec<(u32, u32)>,
}

struct Run {
    backing: Arc<Backing>,
    offset: u64,
    pieces: usize,
    slots: usize,
}

// SAFETY: as for `Call`.
unsafe impl Send for Batch {}

impl Batch {
    pub(super) fn new(store: u16) -> Batch {
        Batch { store, runs: Vec::new(), pieces: Vec::new(), slots: Vec::new() }
    }

    /// Adds a run.
    pub(super) fn add(
        &mut self,
        backing: &Arc<Backing>,
        offset: u64,
        pieces: &[libc::iovec],
        slots: impl Iterator<Item = (u32, u32)>,
    ) {
        self.pieces.extend_from_slice(pieces);
        self.slots.extend(slots);
        let (pieces, slots) = (self.pieces.len(), self.slots.len());
        self.runs.push(Run { backing: backing.clone(), offset, pieces, slots });
    }

    /// The slots of the operations.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().map(|&(slot, _)| slot)
    }

    /// Writes the runs, and passes their replies to `told`.
    ///
    /// # Safety
    /// As for [`Call::make`], of each operation.
    unsafe fn make(self, mut told: impl FnMut(&[Reply])) {
        let (mut piece, mut slot, mut replies) = (0, 0, Vec::new());
        let mut written = 0;
        for run in &self.runs {
            let (pieces, slots) = (&self.pieces[piece..run.pieces], &self.slots[slot..run.slots]);
            (piece, slot) = (run.pieces, run.slots);
            // SAFETY: the caller vouches for the operations; the memory is readable and belongs to
            // the device.
            let result = unsafe { at_once::write(&run.backing.file, pieces, run.offset, 0) };
            shares(result, slots, &mut replies);
            written += result.max(0) as usize;
            // Replies are collected, since each single one would wake the shard and then the
            // client.
            if written >= TOGETHER {
                told(&replies);
                replies.clear();
                written = 0;
            }
        }
        replies.push(Reply::Written { store: self.store });
        told(&replies);
    }

    /// Passes the batch to the thread of `writer`; the last reply is [`Reply::Written`].
    ///
    /// # Safety
    /// As for [`Call::hand_over`], of each operation.
    pub(super) unsafe fn hand_over(self, writer: &Workers, to: &Arc<Replies>) {
        let replies = to.clone();
        writer.push(Box::new(move || {
            // SAFETY: the caller guarantees this.
            unsafe { self.make(|some| replies.give(some)) };
        }));
    }
}

/// Distributes the bytes that one system call has written over its operations, in order. If the
/// call failed, each operation is to be retried alone.
pub(super) fn shares(mut result: i32, slots: &[(u32, u32)], replies: &mut Vec<Reply>) {
    for &(slot, left) in slots {
        if result < 0 && slots.len() > 1 {
            replies.push(Reply::Alone { slot });
            continue;
        }
        let part = result.min(left as i32);
        replies.push(Reply::Done { slot, result: part });
        result -= part.max(0);
    }
}
