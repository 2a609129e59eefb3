//! Submission and completion queues in shared memory, and both ends of each.
//!
//! A queue is a ring of entries; one side writes at the tail, the other reads at the head, and it
//! is full when the tail is one behind the head. Doorbells publish the tail of a submission queue
//! and the head of a completion queue. Nothing publishes the tail of a completion queue: each entry
//! has a phase tag that flips with every pass, so an entry whose phase is the one expected is new.
//!
//! **Memory order.** An SQE is written before its doorbell is (release) and read after the doorbell
//! has been (acquire); its place is written again only after a completion has reported that it was
//! fetched. A CQE's second word, which has the phase tag, is stored last (release) and read first
//! (acquire); its place is written again only after the head doorbell has passed it. A driver that
//! breaks these rules gets nonsense in its own queues, no more: the controller reads each entry
//! once, with volatile or atomic accesses.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::device::nvme::spec::{CQE, Cqe, SQE, Sqe};

/// The entries of a submission queue.
#[derive(Clone, Copy)]
pub(crate) struct SqEntries {
    base: NonNull<u64>,
    pub(crate) size: u16,
}

// SAFETY: an address; which thread may use it when is said where it is made.
unsafe impl Send for SqEntries {}

impl SqEntries {
    /// # Safety
    /// `base` must be valid for reads and writes of `size` entries for as long as this is used.
    pub(crate) unsafe fn new(base: NonNull<u64>, size: u16) -> SqEntries {
        SqEntries { base, size }
    }

    fn at(self, index: u16) -> *mut u64 {
        debug_assert!(index < self.size);
        // SAFETY: inside the queue.
        unsafe { self.base.as_ptr().add(usize::from(index) * (SQE / 8)) }
    }

    /// The driver's side: writes an entry that the controller will not read before the doorbell.
    #[inline]
    pub(crate) fn write(self, index: u16, sqe: &Sqe) {
        let at = self.at(index);
        for (word, value) in sqe.to_words().into_iter().enumerate() {
            // SAFETY: inside the queue; the writes are volatile because the other side may read at
            // any time.
            unsafe { at.add(word).write_volatile(value) };
        }
    }

    /// The controller's side: reads an entry, once.
    #[inline]
    pub(crate) fn read(self, index: u16) -> Sqe {
        let at = self.at(index);
        // SAFETY: inside the queue; volatile reads, as the other side may write whenever it wants.
        Sqe::from_words(std::array::from_fn(|word| unsafe { at.add(word).read_volatile() }))
    }
}

/// The entries of a completion queue.
#[derive(Clone, Copy)]
pub(crate) struct CqEntries {
    base: NonNull<u64>,
    pub(crate) size: u16,
}

// SAFETY: an address; which thread may use it when is said where it is made.
unsafe impl Send for CqEntries {}

impl CqEntries {
    /// # Safety
    /// `base` must be valid for reads and writes of `size` entries for as long as this is used.
    pub(crate) unsafe fn new(base: NonNull<u64>, size: u16) -> CqEntries {
        CqEntries { base, size }
    }

    fn words(self, index: u16) -> [&'static AtomicU64; 2] {
        debug_assert!(index < self.size);
        // SAFETY: inside the queue, which is aligned to words and lives while this is used; both
        // sides use atomics.
        [0, 1].map(|word| unsafe {
            AtomicU64::from_ptr(self.base.as_ptr().add(usize::from(index) * (CQE / 8) + word))
        })
    }

    /// The controller's side.
    #[inline]
    pub(crate) fn write(self, index: u16, cqe: Cqe, phase: bool) {
        let ([first, second], words) = (self.words(index), cqe.to_words(phase));
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Release);
    }

    /// The driver's side: whether there is an entry of the phase.
    #[inline]
    pub(crate) fn is_new(self, index: u16, phase: bool) -> bool {
        Cqe::phase(self.words(index)[1].load(Ordering::Acquire)) == phase
    }

    /// The driver's side: the entry, if it is of the phase.
    #[inline]
    pub(crate) fn read(self, index: u16, phase: bool) -> Option<Cqe> {
        let [first, second] = self.words(index);
        let second = second.load(Ordering::Acquire);
        (Cqe::phase(second) == phase)
            .then(|| Cqe::from_words([first.load(Ordering::Relaxed), second]))
    }
}

/// The driver's end of a submission queue.
pub(crate) struct SqTail {
    entries: SqEntries,
    tail: u16,
}

impl SqTail {
    pub(crate) fn new(entries: SqEntries) -> SqTail {
        SqTail { entries, tail: 0 }
    }

    /// Adds an entry, for which the driver knows that there is room; gives the tail to ring.
    #[inline]
    pub(crate) fn push(&mut self, sqe: &Sqe) -> u16 {
        self.entries.write(self.tail, sqe);
        self.tail = if self.tail + 1 == self.entries.size { 0 } else { self.tail + 1 };
        self.tail
    }
}

/// The driver's end of a completion queue.
pub(crate) struct CqHead {
    entries: CqEntries,
    head: u16,
    phase: bool,
}

impl CqHead {
    /// Of a queue whose memory is zero.
    pub(crate) fn new(entries: CqEntries) -> CqHead {
        CqHead { entries, head: 0, phase: true }
    }

    /// Whether there is an entry to take.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        self.entries.is_new(self.head, self.phase)
    }

    /// Takes the next entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Cqe> {
        let cqe = self.entries.read(self.head, self.phase)?;
        self.head += 1;
        if self.head == self.entries.size {
            (self.head, self.phase) = (0, !self.phase);
        }
        Some(cqe)
    }

    /// The value for the head doorbell.
    #[inline]
    pub(crate) fn head(&self) -> u16 {
        self.head
    }
}

/// The memory of a queue.
pub(crate) trait Entries {
    /// The number of entries.
    fn size(&self) -> u16;
}

impl Entries for SqEntries {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }
}

impl Entries for CqEntries {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }
}

/// The number of places from one to another in a ring.
#[inline]
fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}

/// The controller's end of a submission queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SqHead<E = SqEntries> {
    pub(crate) entries: E,
    head: u16,
    /// The tail that was last seen.
    tail: u16,
    /// The completion queue that it goes with.
    pub(crate) cqid: u16,
    /// Commands seen that the completion queue has no room for yet.
    pub(crate) held: u32,
    /// Commands fetched and not completed.
    pub(crate) in_flight: u32,
}

impl<E: Entries> SqHead<E> {
    pub(crate) fn new(entries: E, cqid: u16) -> SqHead<E> {
        SqHead { entries, head: 0, tail: 0, cqid, held: 0, in_flight: 0 }
    }

    /// Takes in the doorbell; how many commands are new. `None` for a tail that is beyond the queue
    /// or passes the head, which has no effect.
    #[inline]
    pub(crate) fn see(&mut self, tail: u32) -> Option<u32> {
        let size = u32::from(self.entries.size());
        let [head, before] = [self.head, self.tail].map(u32::from);
        let waiting = distance(head, before, size);
        let new = distance(before, tail, size);
        if tail >= size || waiting + new >= size {
            return None;
        }
        self.tail = tail as u16;
        Some(new)
    }

    /// The same queue for another arbiter, which has none of its commands.
    pub(crate) fn left(&self) -> SqHead<E>
    where
        E: Copy,
    {
        let [head, tail, size] = [self.head, self.tail, self.entries.size()].map(u32::from);
        SqHead { held: distance(head, tail, size), entries: self.entries, ..*self }
    }

    /// The tail that was last seen.
    #[inline]
    pub(crate) fn tail(&self) -> u16 {
        self.tail
    }

    /// The place of the next command; there must be one.
    #[inline]
    pub(crate) fn advance(&mut self) -> u16 {
        let index = self.head;
        self.head = if index + 1 == self.entries.size() { 0 } else { index + 1 };
        index
    }

    #[inline]
    pub(crate) fn head(&self) -> u16 {
        self.head
    }
}

impl SqHead {
    /// Where the first command of this identifier is that has been seen and not fetched, if there
    /// is one.
    pub(crate) fn find(&self, cid: u16) -> Option<u16> {
        let size = self.entries.size;
        let next = |&index: &u16| Some(if index + 1 == size { 0 } else { index + 1 });
        let waiting =
            std::iter::successors(Some(self.head), next).take_while(|&index| index != self.tail);
        waiting.take(size.into()).find(|&index| self.entries.read(index).cid == cid)
    }

    /// Fetches the next command; there must be one.
    #[inline]
    pub(crate) fn fetch(&mut self) -> Sqe {
        let index = self.advance();
        self.entries.read(index)
    }
}

/// The controller's end of a completion queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CqTail<E = CqEntries> {
    pub(crate) entries: E,
    tail: u16,
    phase: bool,
    /// The head that was last seen.
    head: u16,
    /// Entries posted that the driver has not been seen to take.
    filled: u16,
    /// The filled entries and the entries reserved for commands.
    reserved: u16,
    /// The interrupt vector, if it is to interrupt.
    pub(crate) vector: Option<u16>,
}

impl<E: Entries> CqTail<E> {
    pub(crate) fn new(entries: E, vector: Option<u16>) -> CqTail<E> {
        CqTail { entries, tail: 0, phase: true, head: 0, filled: 0, reserved: 0, vector }
    }

    /// Takes in the doorbell. False for a head beyond what was posted, which has no effect.
    pub(crate) fn see(&mut self, head: u32) -> bool {
        let size = u32::from(self.entries.size());
        let taken = distance(self.head.into(), head, size);
        if head >= size || taken > self.filled.into() {
            return false;
        }
        self.head = head as u16;
        self.filled -= taken as u16;
        self.reserved -= taken as u16;
        true
    }

    /// Promises entries to as many of `wanted` commands as there is room for.
    #[inline]
    pub(crate) fn reserve(&mut self, wanted: u32) -> u32 {
        let granted = wanted.min(u32::from(self.entries.size() - 1 - self.reserved));
        self.reserved += granted as u16;
        granted
    }

    /// The same queue with this number of promised entries.
    pub(crate) fn left(&self, promised: u32) -> CqTail<E>
    where
        E: Copy,
    {
        CqTail { reserved: self.filled + promised as u16, entries: self.entries, ..*self }
    }

    /// Takes promises back.
    pub(crate) fn release(&mut self, count: u32) {
        self.reserved -= count as u16;
    }

    /// Whether anything is promised or posted and not taken.
    pub(crate) fn is_in_use(&self) -> bool {
        self.reserved > 0
    }

    /// The place and the phase of the next entry, which was promised to a command.
    #[inline]
    pub(crate) fn advance(&mut self) -> (u16, bool) {
        debug_assert!(self.filled < self.reserved);
        let next = (self.tail, self.phase);
        self.filled += 1;
        self.tail += 1;
        if self.tail == self.entries.size() {
            (self.tail, self.phase) = (0, !self.phase);
        }
        next
    }
}

impl CqTail {
    /// Posts the entry of a command to which it was promised.
    #[inline]
    pub(crate) fn post(&mut self, cqe: Cqe) {
        let (index, phase) = self.advance();
        self.entries.write(index, cqe, phase);
    }
}
