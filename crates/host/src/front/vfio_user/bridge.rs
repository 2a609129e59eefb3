//! The state that a controller's session shares with its queues on the shards.
//!
//! *Memory ordering.* The session stores a doorbell and then reads whether the queues of the shard
//! sleep; the shard notes that they sleep and then reads the doorbells. Both are sequentially
//! consistent, so one of the two finds the other's store.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fairq_core::{FlowId, Op};
use serde::{Deserialize, Serialize};

use crate::device::nvme::identify::{Counters, ERRORS, Error};
use crate::device::nvme::spec::{PAGE, Status, register};
use crate::front::guest_memory::{self, Guest, MapError, Plan};

/// The most I/O queues of each kind of a controller.
pub const QUEUES: usize = 64;

/// The state that a session shares with its queues.
pub struct Bridge {
    pub(super) name: String,
    pub(super) flow: FlowId,
    pub(super) stream: UnixStream,
    /// An eventfd that wakes the session's thread for an event.
    pub(super) bell: OwnedFd,
    /// The namespace's size in bytes. A session that starts queues with it holds the lock until the
    /// message is sent, so that all queues start with the present size, or get it later.
    size: Mutex<u64>,
    has_failed: AtomicBool,
    has_resized: AtomicBool,
    caches_writes: AtomicBool,
    /// A page with the tails and heads that were written, of queue 0 first.
    doorbells: Guest,
    /// The file of that page, which lies there as it does in BAR 0.
    pub(super) page: File,
    /// A client may have mapped the page, and then writes doorbells without a message.
    is_mapped: AtomicBool,
    shards: Box<[OfShard]>,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: Mutex<Errors>,
}

/// The state between two programs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeftBridge {
    pub(super) has_failed: bool,
    pub(super) has_resized: bool,
    pub(super) caches_writes: bool,
    pub(super) is_mapped: bool,
    /// Reads, writes, bytes of each, errors.
    pub(super) counts: [u64; 5],
}

#[derive(Default)]
struct OfShard {
    /// The shard reads no doorbell before it is kicked.
    is_asleep: AtomicBool,
    /// Commands there wait for room in a completion queue.
    is_crowded: AtomicBool,
}

#[derive(Default)]
struct Errors {
    count: u64,
    last: VecDeque<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file with a page of doorbells, all of them 0.
pub(super) fn doorbells() -> io::Result<File> {
    guest_memory::sealed("vfio-user-doorbells", u64::from(register::DOORBELLS) + PAGE)
}

impl Bridge {
    /// The state of a new session. `page` is the file of its doorbells.
    pub(super) fn new(
        name: String,
        flow: FlowId,
        stream: UnixStream,
        bell: OwnedFd,
        size: u64,
        shards: usize,
        page: File,
    ) -> Result<Bridge, MapError> {
        let plan = Plan { guest: 0, size: PAGE, user: 0, offset: register::DOORBELLS.into() };
        Ok(Bridge {
            name,
            flow,
            stream,
            bell,
            size: Mutex::new(size),
            has_failed: AtomicBool::new(false),
            has_resized: AtomicBool::new(false),
            caches_writes: AtomicBool::new(true),
            doorbells: Guest::map([(plan, page.try_clone()?)])?,
            page,
            is_mapped: AtomicBool::new(false),
            shards: (0..shards).map(|_| OfShard::default()).collect(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            errors: Mutex::default(),
        })
    }

    /// The disk's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace's size in bytes.
    pub(super) fn size(&self) -> MutexGuard<'_, u64> {
        lock(&self.size)
    }

    /// Ends the session.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    // The status.

    /// Whether the controller has failed, and waits for a reset.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The controller fails.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Whether the guest lets the controller cache writes.
    #[inline]
    pub fn caches_writes(&self) -> bool {
        self.caches_writes.load(Ordering::Relaxed)
    }

    pub(super) fn set_cache(&self, is_on: bool) {
        self.caches_writes.store(is_on, Ordering::Relaxed);
    }

    /// A reset begins: nothing of the past counts.
    pub(super) fn reset(&self) {
        self.has_failed.store(false, Ordering::Relaxed);
        self.set_cache(true);
        (0..2 * (QUEUES + 1)).for_each(|place| self.ring(place, 0));
    }

    /// Notes that the size has changed, and wakes the session.
    pub(super) fn resized(&self) {
        self.has_resized.store(true, Ordering::Relaxed);
        // A full eventfd wakes just as well.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Whether the size has changed after the last call.
    pub(super) fn take_resized(&self) -> bool {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.has_resized.swap(false, Ordering::Relaxed)
    }

    /// The state for the next program.
    pub(super) fn left(&self) -> LeftBridge {
        let Counters { reads, writes, bytes_read, bytes_written, errors } = self.counters();
        LeftBridge {
            has_failed: self.has_failed(),
            has_resized: self.has_resized.load(Ordering::Relaxed),
            caches_writes: self.caches_writes(),
            is_mapped: self.is_mapped(),
            counts: [reads, writes, bytes_read, bytes_written, errors],
        }
    }

    /// Goes on with the state of the last program, whose log of errors is not kept.
    pub(super) fn go_on(&self, left: &LeftBridge) {
        self.has_failed.store(left.has_failed, Ordering::Relaxed);
        self.set_cache(left.caches_writes);
        if left.has_resized {
            self.resized();
        }
        self.is_mapped.store(left.is_mapped, Ordering::Relaxed);
        let counts = [&self.reads, &self.writes, &self.bytes_read, &self.bytes_written];
        counts.iter().zip(left.counts).for_each(|(to, from)| to.store(from, Ordering::Relaxed));
        lock(&self.errors).count = left.counts[4];
    }

    // Doorbells.

    /// A doorbell, by its place from queue 0's tail on.
    #[inline]
    fn doorbell(&self, place: usize) -> Option<&AtomicU32> {
        guest_memory::word(&self.doorbells, 4 * place as u64).ok()
    }

    /// Stores a doorbell, by its place from queue 0's tail on.
    pub(super) fn ring(&self, place: usize, value: u32) {
        if let Some(doorbell) = self.doorbell(place) {
            doorbell.store(value, Ordering::SeqCst);
        }
    }

    /// Notes that the client gets the page of doorbells.
    pub(super) fn set_mapped(&self) {
        self.is_mapped.store(true, Ordering::Relaxed);
    }

    /// Whether doorbells may be written without a message.
    #[inline]
    pub(super) fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// Whether the queues on a shard have to be kicked after a doorbell of theirs was stored.
    pub(super) fn wants_kick(&self, shard: usize, is_head: bool) -> bool {
        self.shards.get(shard).is_some_and(|of| {
            let waits = !is_head || of.is_crowded.load(Ordering::SeqCst);
            waits && of.is_asleep.swap(false, Ordering::SeqCst)
        })
    }

    /// The tail doorbell of a submission queue.
    #[inline]
    pub(super) fn tail(&self, sqid: u16) -> u32 {
        let doorbell = self.doorbell(2 * usize::from(sqid));
        doorbell.map_or(0, |doorbell| doorbell.load(Ordering::SeqCst))
    }

    /// The head doorbell of a completion queue.
    #[inline]
    pub(super) fn head(&self, cqid: u16) -> u32 {
        let doorbell = self.doorbell(2 * usize::from(cqid) + 1);
        doorbell.map_or(0, |doorbell| doorbell.load(Ordering::SeqCst))
    }

    /// Notes whether a shard reads no doorbell before it is kicked.
    pub(super) fn set_asleep(&self, shard: usize, is_asleep: bool) {
        if let Some(of) = self.shards.get(shard) {
            of.is_asleep.store(is_asleep, Ordering::SeqCst);
        }
    }

    /// Notes whether commands on a shard wait for room in a completion queue.
    pub(super) fn set_crowded(&self, shard: usize, is_crowded: bool) {
        if let Some(of) = self.shards.get(shard) {
            of.is_crowded.store(is_crowded, Ordering::SeqCst);
        }
    }

    // Counts.

    /// Counts a command that has succeeded.
    #[inline]
    pub(super) fn count(&self, op: Op, bytes: u64) {
        let (commands, all) = match op {
            Op::Read => (&self.reads, &self.bytes_read),
            Op::Write => (&self.writes, &self.bytes_written),
            _ => return,
        };
        commands.fetch_add(1, Ordering::Relaxed);
        all.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn counters(&self) -> Counters {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Counters {
            reads: read(&self.reads),
            writes: read(&self.writes),
            bytes_read: read(&self.bytes_read),
            bytes_written: read(&self.bytes_written),
            errors: lock(&self.errors).count,
        }
    }

    /// Notes a command that has failed.
    #[cold]
    pub(super) fn log_error(&self, sqid: u16, cid: u16, status: Status, lba: u64, nsid: u32) {
        let mut errors = lock(&self.errors);
        errors.count += 1;
        let error = Error { count: errors.count, sqid, cid, status, lba, nsid };
        errors.last.truncate(ERRORS - 1);
        errors.last.push_front(error);
    }

    /// The last errors, the newest first.
    pub(super) fn errors(&self) -> Vec<Error> {
        lock(&self.errors).last.iter().copied().collect()
    }
}
