//! One shard's queue on the files: the commands in flight, and the state of each.
//!
//! A command is an [`Operation`] in a slot, whose index is the user data of its io_uring
//! operations. It is always in one of these states:
//!
//! ```text
//! issue -> [starved: no bounce buffer] -> [blocked: guard] -> in the kernel -> next part -> done
//!                                                                 |   ^
//!                                                                 v   |
//!                                                       [again: EINTR]
//! ```
//!
//! **No call here waits for a device.** Direct reads and writes go to the ring with the flag
//! `RWF_NOWAIT`; cached reads are made synchronously if the cache has the data (`at_once`). If the
//! kernel returns `EAGAIN`, or the call has no such flag, a thread of the file's store makes the
//! call (`call`, `workers`).
//!
//! Writes to the page cache are passed to a thread in one batch per store when the queue is rung;
//! writes that arrive while a batch is in progress form the next batch. Writes that are contiguous
//! in the file, such as the pieces of a long write, become one system call. The written bytes are
//! attributed to the writes in order; if the call fails, each write is retried alone. Writes to
//! file systems in memory are made synchronously.
//!
//! A command leaves `starved` when a bounce buffer is freed. `blocked` commands are retried in
//! every turn, and `again` ones after `RETRY_NS`. `deadline_ns` makes sure that the shard runs
//! these turns.
//!
//! **Ownership.** The contract gives the command's memory to the device from issue to reap. A
//! bounce buffer belongs to its operation, and to the kernel while the operation is in the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use fairq_core::{Op, PortSet};

use crate::device::file::at_once;
use crate::device::file::call::{Batch, Replies, Reply, shares};
use crate::device::file::open::Backing;
use crate::device::file::operation::{File, Operation, Verdict};
use crate::device::file::part::{Next, Step, around, inside, next};
use crate::device::file::stores::MAX_STORES;
use crate::device::file::workers::Workers;
use crate::device::file::{BOUNCE_MEMORY, Shared};
use crate::device::guard::Access;
use crate::device::vectors::Vectors;
use crate::device::{Command, Completion, Place, Queue, STRETCHES};
use crate::io::memory::{Memory, Region};
use crate::io::ring::{Asker, Event, Ring, UserData};

/// The longest time until a command in `blocked` or `again` is retried, in nanoseconds.
const RETRY_NS: u64 = 20_000;

/// One shard's queue on a [`crate::device::file::FileDevice`].
pub struct FileQueue {
    shared: Arc<Shared>,
    /// The files, by number.
    files: Vec<Option<Open>>,
    /// The version of the device's files to which `files` corresponds.
    version: u64,
    /// Whether the ring has a table of files.
    has_table: bool,
    bounce: Region,
    slots: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// The slots that wait for a bounce buffer.
    starved: VecDeque<u32>,
    /// The slots that wait for the guard.
    blocked: Vec<u32>,
    /// The slots that are to be submitted to the kernel once more.
    again: Vec<u32>,
    retry_ns: u64,
    /// The replies of the stores' worker threads.
    replies: Arc<Replies>,
    taken: Vec<Reply>,
    /// The stores, by number, that have a batch of writes of this queue.
    is_writing: [bool; MAX_STORES],
    /// One thread for each store's batches, on the shard's CPU: the shard has nothing else to do
    /// while it waits for a batch, and waking a thread on another CPU takes longer than the writes.
    writers: [Option<Workers>; MAX_STORES],
    /// The slots of writes to be made when the queue is rung, whether some of them are new, and the
    /// memory of the writes that form one system call.
    pub(super) writes: Vec<u32>,
    has_new_writes: bool,
    pub(super) pieces: Vec<libc::iovec>,
    /// The slots of operations that were carried out at once, with the results.
    news: Vec<(u32, i32)>,
    done: Vec<Completion>,
    /// Vectors that are not in use.
    spare: Vec<Vectors>,
}

/// A file in this queue's table.
struct Open {
    backing: Arc<Backing>,
    /// Whether it is registered with the ring, under the file's number.
    is_registered: bool,
}

impl FileQueue {
    pub(super) fn open(
        shared: Arc<Shared>,
        place: &Place,
        ring: &mut Ring,
    ) -> io::Result<FileQueue> {
        let table = ring.register_files(&vec![-1; shared.files.room()]);
        if let Err(error) = &table {
            tracing::debug!(%error, "no registered files");
        }
        let mut queue = FileQueue {
            // This matches no version, as the queue has no files yet.
            version: shared.files.version().wrapping_sub(1),
            shared,
            files: Vec::new(),
            has_table: table.is_ok(),
            bounce: Region::map(BOUNCE_MEMORY)?,
            slots: Vec::new(),
            free: Vec::new(),
            starved: VecDeque::new(),
            blocked: Vec::new(),
            again: Vec::new(),
            retry_ns: 0,
            replies: Arc::new(Replies::new(place.wakers.clone(), usize::from(place.port.0))),
            taken: Vec::new(),
            is_writing: [false; MAX_STORES],
            writers: Default::default(),
            writes: Vec::new(),
            has_new_writes: false,
            pieces: Vec::new(),
            news: Vec::new(),
            done: Vec::new(),
            spare: Vec::new(),
        };
        queue.follow(ring);
        Ok(queue)
    }

    /// Updates the table of files to that of the device: adds new files, and releases retired ones
    /// unless an operation still uses them.
    #[cold]
    pub(super) fn follow(&mut self, ring: &mut Ring) {
        let version = self.shared.files.version();
        let open = self.shared.files.in_use();
        let mut is_equal = true;
        self.files.resize_with(self.files.len().max(open.len()), || None);
        for (number, (ours, theirs)) in self.files.iter_mut().zip(open).enumerate() {
            if let Some(old) = ours {
                if theirs.as_ref().is_some_and(|theirs| Arc::ptr_eq(&old.backing, theirs)) {
                    continue;
                }
                let names = |operation: &Operation| usize::from(operation.command.file) == number;
                // The version stays outdated, so that the next turn retries.
                if self.slots.iter().flatten().any(names) {
                    is_equal = false;
                    continue;
                }
                if old.is_registered {
                    ring.register_file(number as u32, -1);
                }
                *ours = None;
            }
            *ours = theirs.map(|backing| Open {
                is_registered: self.has_table
                    && ring.register_file(number as u32, backing.file.as_raw_fd()),
                backing,
            });
        }
        if is_equal {
            self.version = version;
        }
    }

    /// The file of a new command.
    #[inline]
    fn file(&mut self, ring: &mut Ring, number: u16) -> Option<&Backing> {
        // The file may have been added after this shard's last turn.
        if self.files.get(usize::from(number)).is_none_or(Option::is_none) {
            self.follow(ring);
        }
        Some(&self.files.get(usize::from(number))?.as_ref()?.backing)
    }

    /// Puts a command in a slot.
    fn admit(&mut self, command: &Command, rest: &[Memory]) -> u32 {
        let vectors = match rest {
            [] => Vectors::default(),
            _ => {
                let mut vectors = self.spare.pop().unwrap_or_default();
                vectors.set(command.stretches(rest));
                vectors
            }
        };
        let operation = Operation {
            command: *command,
            done: 0,
            step: Step::Straight,
            length: 0,
            moved: 0,
            stalls: 0,
            is_synced: false,
            bounce: None,
            access: Access::NONE,
            vectors,
            may_wait: false,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(operation);
        slot
    }

    fn finish(&mut self, slot: u32, errno: i32) {
        self.release(slot);
        if let Some(mut operation) = self.slots[slot as usize].take() {
            if !operation.vectors.is_empty() {
                operation.vectors.clear();
                self.spare.push(operation.vectors);
            }
            self.done.push(Completion { tag: operation.command.tag, errno });
            self.free.push(slot);
        }
    }

    /// Releases the bounce buffer and the guard of the last part.
    fn release(&mut self, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        self.shared.guard.leave(&mut operation.access);
        if let Some(buffer) = operation.bounce.take() {
            self.bounce.free(buffer);
        }
    }

    /// Begins the next part of a command.
    fn advance(&mut self, now_ns: u64, ring: &mut Ring, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        let command = &operation.command;
        let backing = &of(&self.files, command.file).backing;
        let Operation { vectors, done, is_synced, .. } = &*operation;
        let (step, length) = match next(backing, command, vectors, *done, *is_synced) {
            Next::End(errno) => return self.finish(slot, errno),
            Next::Part { step, length } => (step, length),
        };
        (operation.step, operation.length, operation.moved, operation.stalls) =
            (step, length, 0, 0);
        operation.may_wait = false;
        if backing.block > 1 && step.is_guarded(command.op) {
            let offset = command.offset + u64::from(operation.done);
            operation.access = match step {
                Step::ReadBlock => Access::exclusive(command.file, offset, u64::from(length)),
                _ => Access::shared(command.file, offset, u64::from(length)),
            };
        }
        let wants_bounce = matches!(step, Step::Fetch | Step::Copy | Step::ReadBlock);
        // New parts queue behind the waiting ones; otherwise small parts could delay a large one
        // forever.
        if wants_bounce && !(self.starved.is_empty() && self.get_bounce(slot)) {
            self.starved.push_back(slot);
        } else {
            self.enter(now_ns, ring, slot);
        }
    }

    fn get_bounce(&mut self, slot: u32) -> bool {
        let Some(operation) = &mut self.slots[slot as usize] else { return false };
        let block = of(&self.files, operation.command.file).backing.block;
        let offset = operation.command.offset + u64::from(operation.done);
        let (_, length) = around(offset, operation.length, block);
        operation.bounce = self.bounce.allocate(length);
        operation.bounce.is_some()
    }

    /// Enters the guard, or waits for it.
    fn enter(&mut self, now_ns: u64, ring: &mut Ring, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        if self.shared.guard.poll(&mut operation.access) {
            self.begin(ring, slot);
        } else {
            self.wait(now_ns);
            self.blocked.push(slot);
        }
    }

    fn wait(&mut self, now_ns: u64) {
        // The first command that waits sets the time of the retry; later ones must not postpone it.
        if self.blocked.is_empty() && self.again.is_empty() {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
        }
    }

    /// Starts a part that has its bounce buffer and has entered the guard.
    fn begin(&mut self, ring: &mut Ring, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        if operation.step == Step::Copy {
            operation.fill_bounce(0);
        }
        self.submit(ring, slot);
    }

    /// Carries out the rest of the part synchronously or when the queue is rung, or passes it to
    /// the ring or to the store's threads.
    fn submit(&mut self, ring: &mut Ring, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        operation.select();
        let backing = &of(&self.files, operation.command.file).backing;
        if operation.is_cached_write(backing) {
            self.writes.push(slot);
            self.has_new_writes = true;
        } else if let Some(result) = operation.read_at_once(backing) {
            self.news.push((slot, result));
        } else if operation.may_wait(backing) {
            self.hand_over(slot);
        } else {
            self.push(ring, slot);
        }
    }

    /// Puts the rest of the part on the ring, as an operation that does not block.
    fn push(&mut self, ring: &mut Ring, slot: u32) {
        let Some(operation) = &self.slots[slot as usize] else { return };
        let file = operation.command.file;
        let Open { backing, is_registered } = of(&self.files, file);
        let entry = if *is_registered {
            operation.entry(backing, File::Registered(u32::from(file)))
        } else {
            operation.entry(backing, File::Plain(backing.file.as_raw_fd()))
        };
        // SAFETY: the memory belongs to the command, which is the device's until the completion is
        // reaped; or to the bounce buffer, which the operation keeps until this event has been
        // taken; or is a constant. The vectors belong to the operation.
        unsafe { ring.push(entry, UserData { asker: Asker::Device, value: u64::from(slot) }) };
    }

    /// Passes the rest of the part to a thread of the store.
    fn hand_over(&mut self, slot: u32) {
        let Some(operation) = &mut self.slots[slot as usize] else { return };
        operation.may_wait = true;
        let backing = &of(&self.files, operation.command.file).backing;
        // SAFETY: as in `push`: memory and vectors stay valid, and no other code uses them, until
        // the reply is taken.
        unsafe { operation.call(backing).hand_over(backing, slot, &self.replies) };
    }

    /// Makes the queued cached writes: writes to file systems in memory synchronously, and the
    /// writes of each store without a batch of this queue as one batch.
    fn write(&mut self) {
        self.has_new_writes = false;
        let mut slots = std::mem::take(&mut self.writes);
        let (mut kept, mut at, mut batches) = (0, 0, [const { None }; MAX_STORES]);
        while at < slots.len() {
            let (file, offset, count) = self.gather(&slots[at..]);
            let run = at..at + count;
            at = run.end;
            let backing = &of(&self.files, file).backing;
            let number = usize::from(backing.store.number);
            if self.is_writing[number] {
                slots.copy_within(run, kept);
                kept += count;
                continue;
            }
            let left = slots[run].iter().map(|&slot| {
                let operation = self.slots[slot as usize].as_ref().expect("it is to be written");
                (slot, operation.left().1)
            });
            if backing.is_in_memory {
                let left: Vec<(u32, u32)> = left.collect();
                // SAFETY: the pieces are memory of commands, which belongs to the device, and no
                // kernel operation uses it now.
                let result = unsafe { at_once::write(&backing.file, &self.pieces, offset, 0) };
                shares(result, &left, &mut self.taken);
                continue;
            }
            let batch = batches[number].get_or_insert_with(|| Batch::new(backing.store.number));
            batch.add(backing, offset, &self.pieces, left);
        }
        slots.truncate(kept);
        self.writes = slots;
        for (number, batch) in batches.into_iter().enumerate() {
            if let Some(batch) = batch {
                self.hand_over_batch(number, batch);
            }
        }
        for reply in std::mem::take(&mut self.taken) {
            self.hear(reply);
        }
    }

    /// Passes a batch to the thread for batches of a store.
    fn hand_over_batch(&mut self, store: usize, batch: Batch) {
        let writer = match &self.writers[store] {
            Some(writer) => writer,
            None => match Workers::at_most(1) {
                Ok(writer) => self.writers[store].insert(writer),
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread for writes to the page cache");
                    // The store's other threads make the writes, one by one.
                    return batch.slots().for_each(|slot| self.hand_over(slot));
                }
            },
        };
        self.is_writing[store] = true;
        // SAFETY: as in `hand_over`, for each of the operations.
        unsafe { batch.hand_over(writer, &self.replies) };
    }

    /// Handles a reply.
    fn hear(&mut self, reply: Reply) {
        match reply {
            Reply::Done { slot, result } => self.news.push((slot, result)),
            Reply::Alone { slot } => self.hand_over(slot),
            Reply::Written { store } => {
                self.is_writing[usize::from(store)] = false;
                self.has_new_writes = !self.writes.is_empty();
            }
        }
    }

    /// Handles the replies that have arrived.
    #[cold]
    fn take_replies(&mut self) {
        let empty = std::mem::take(&mut self.taken);
        let mut replies = self.replies.take(empty);
        replies.drain(..).for_each(|reply| self.hear(reply));
        self.taken = replies;
    }

    /// Gathers the memory of the first write and of the writes that follow it in the file; returns
    /// the file's number, the offset in bytes, and the number of writes.
    pub(super) fn gather(&mut self, slots: &[u32]) -> (u16, u64, usize) {
        self.pieces.clear();
        let (mut file, mut start, mut end, mut count) = (0, 0, 0, 0);
        for &slot in slots {
            let operation = self.slots[slot as usize].as_ref().expect("it is to be written");
            let (offset, length, address) = operation.left();
            let selected = operation.selected();
            let pieces = selected.map_or(1, <[_]>::len);
            if count == 0 {
                (file, start) = (operation.command.file, offset);
            } else if file != operation.command.file
                || offset != end
                || self.pieces.len() + pieces > STRETCHES
            {
                break;
            }
            if let Some(selected) = selected {
                self.pieces.extend_from_slice(selected);
            } else {
                let piece = libc::iovec { iov_base: address.cast(), iov_len: length as usize };
                match self.pieces.last_mut() {
                    // Pieces of one long write are adjacent in memory, too.
                    Some(last)
                        if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base =>
                    {
                        last.iov_len += piece.iov_len;
                    }
                    _ => self.pieces.push(piece),
                }
            }
            end = offset + u64::from(length);
            count += 1;
        }
        (file, start, count)
    }

    /// Retries the waiting commands.
    fn resume(&mut self, now_ns: u64, ring: &mut Ring) {
        while let Some(&slot) = self.starved.front() {
            if !self.get_bounce(slot) {
                break;
            }
            self.starved.pop_front();
            self.enter(now_ns, ring, slot);
        }
        let mut index = 0;
        while let Some(&slot) = self.blocked.get(index) {
            let Some(operation) = &mut self.slots[slot as usize] else { break };
            if self.shared.guard.poll(&mut operation.access) {
                self.blocked.remove(index);
                self.begin(ring, slot);
            } else {
                index += 1;
            }
        }
    }
}

/// The file of an admitted command.
#[inline]
fn of(files: &[Option<Open>], number: u16) -> &Open {
    files[usize::from(number)].as_ref().expect("a file stays as long as an operation names it")
}

impl Queue for FileQueue {
    unsafe fn issue(&mut self, now_ns: u64, ring: &mut Ring, command: &Command, rest: &[Memory]) {
        let Some(backing) = self.file(ring, command.file) else {
            self.done.push(Completion { tag: command.tag, errno: libc::EINVAL });
            return;
        };
        let end = command.offset.checked_add(u64::from(command.length));
        if command.op != Op::Flush && end.is_none_or(|end| end > backing.intact()) {
            let is_lost = end.is_some_and(|end| end <= backing.size());
            let errno = if is_lost { libc::EIO } else { libc::EINVAL };
            self.done.push(Completion { tag: command.tag, errno });
            return;
        }
        let mut command = *command;
        if command.op == Op::Discard {
            (command.offset, command.length) =
                inside(command.offset, command.length, backing.zero_block);
        }
        debug_assert!(command.fits(rest));
        let slot = self.admit(&command, rest);
        self.advance(now_ns, ring, slot);
    }

    fn ring(&mut self, now_ns: u64, ring: &mut Ring, _wake: &mut PortSet) {
        if self.version != self.shared.files.version() {
            self.follow(ring);
        }
        if self.has_new_writes {
            self.write();
        }
        if self.blocked.is_empty() && self.again.is_empty() {
            return;
        }
        if !self.again.is_empty() && self.retry_ns <= now_ns {
            for slot in std::mem::take(&mut self.again) {
                self.submit(ring, slot);
            }
        }
        self.resume(now_ns, ring);
        if self.retry_ns <= now_ns {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
        }
    }

    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        self.finished(now_ns, ring, event.data.value as u32, event.result);
        self.resume(now_ns, ring);
    }

    fn reap(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        done: &mut Vec<Completion>,
        _wake: &mut PortSet,
    ) {
        if self.replies.is_some() {
            self.take_replies();
        }
        // These results may free a bounce buffer for which other commands wait.
        let is_news = !self.news.is_empty();
        while let Some((slot, result)) = self.news.pop() {
            self.finished(now_ns, ring, slot, result);
        }
        if is_news {
            self.resume(now_ns, ring);
        }
        done.append(&mut self.done);
    }

    fn store_of(&self, file: u16) -> u16 {
        let open = self.files.get(usize::from(file)).and_then(Option::as_ref);
        open.map_or(0, |open| open.backing.store.number)
    }

    #[inline]
    fn is_cached(&self, file: u16) -> bool {
        let open = self.files.get(usize::from(file)).and_then(Option::as_ref);
        open.is_some_and(|open| open.backing.is_cached())
    }

    fn deadline_ns(&self) -> Option<u64> {
        if self.has_new_writes || !self.news.is_empty() || self.replies.is_some() {
            return Some(0);
        }
        if self.blocked.is_empty() && self.again.is_empty() { None } else { Some(self.retry_ns) }
    }
}

impl FileQueue {
    /// Handles the result of a submitted part, and continues the command.
    fn finished(&mut self, now_ns: u64, ring: &mut Ring, slot: u32, result: i32) {
        let Some(Some(operation)) = self.slots.get_mut(slot as usize) else {
            debug_assert!(false, "slot {slot} has ended and gets the result {result}");
            return;
        };
        let backing = &of(&self.files, operation.command.file).backing;
        match operation.finished(backing, result) {
            Verdict::Part => {
                operation.done += operation.length;
                self.release(slot);
                self.advance(now_ns, ring, slot);
            }
            Verdict::Otherwise => {
                self.release(slot);
                self.advance(now_ns, ring, slot);
            }
            Verdict::More => {
                operation.may_wait = false;
                self.submit(ring, slot);
            }
            Verdict::Wait => self.hand_over(slot),
            Verdict::Again => {
                self.wait(now_ns);
                self.again.push(slot);
            }
            Verdict::Failed(errno) => self.finish(slot, errno),
        }
    }
}
