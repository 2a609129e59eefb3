//! One queue of a ublk device, as a shard serves it.
//!
//! ```text
//!   kernel ─ FETCH ends ─▶ slot ─ write: copy in ─▶ orders ─▶ data path
//!   kernel ◀─ COMMIT_AND_FETCH ◀─ read: copy out ◀─ all orders finished ◀─┘
//! ```
//!
//! **Model.** Each request of the queue has a slot, whose index is the request's tag. For each
//! slot, either the kernel holds a command, which completes when a request arrives, or the slot is
//! busy with a request. The command that answers a request also fetches the next one.
//!
//! **Data** are copied between the kernel's request and a buffer of the queue's region, by reads
//! and writes of the character device at the request's offset. A request for which the region has
//! no memory waits; this delays only its own client.
//!
//! **Order.** A request waits for writes to the same bytes that a disconnected client of the tenant
//! has left in flight (`shard/fence.rs`), and the requests behind it wait with it.
//!
//! **The end.** When the device is stopped, the kernel completes all commands with `ENODEV`. When
//! the server ends or is replaced, the commands end because the server's ring is closed; the kernel
//! keeps all unanswered requests for the next server.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use fairq_core::{FlowId, Op, Port};
use io_uring::{opcode, squeue, types};

use super::sys::{self, IoCommand, IoDescriptor};
use crate::device::Device;
use crate::front::attach::{QUEUE_TAGS, QueuePlace};
use crate::io::memory::{Buffer, Memory, Region};
use crate::io::ring::{Asker, Ring, UserData};
use crate::shard::fence::{Client, Reach};
use crate::shard::path::DataPath;
use crate::shard::request::Request;
use crate::shard::volume::Volume;

/// The most bytes of a request.
pub const MAX_BYTES: u32 = 1 << 20;
const SECTOR: u64 = 512;

/// A queue that a shard is to serve.
pub struct Attach {
    /// The character device.
    pub file: Arc<File>,
    /// The queue's number.
    pub queue: u16,
    /// The number of its requests.
    pub depth: u16,
    /// The tenant's range.
    pub volume: Volume,
    /// Its reserved place among the shard's queues.
    pub place: QueuePlace,
}

/// The descriptors of a queue's requests, in memory that the kernel writes.
struct Descriptors {
    first: NonNull<IoDescriptor>,
    bytes: usize,
    depth: u16,
}

// SAFETY: the mapping is this value's own; moving it to another thread moves that ownership.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let page = rustix::param::page_size();
        let round = |requests: usize| (requests * size_of::<IoDescriptor>()).next_multiple_of(page);
        let offset = usize::from(queue) * round(sys::MAX_QUEUE_DEPTH);
        let bytes = round(depth.into());
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other mapping.
        let first = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::POPULATE,
                file,
                offset as u64,
            )
        }?;
        let first = NonNull::new(first.cast()).expect("a mapping is never at address 0");
        Ok(Descriptors { first, bytes, depth })
    }

    /// The descriptor of a request that the kernel has handed over.
    fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "a tag of the queue");
        // SAFETY: the descriptor lies in the mapping, and the kernel writes it before it completes
        // the command that hands the request over, and not again before the request is answered.
        unsafe { self.first.add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing else refers to it.
        let _ = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

/// The stage of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The kernel holds the command that fetches a request.
    Fetching,
    /// The kernel has delivered a request. The region may have no memory for it yet.
    Arrived,
    /// A write's data are being copied in.
    CopyingIn,
    /// The request's orders are to be submitted or in flight.
    Serving,
    /// A read's data are being copied out; the answer follows.
    CopyingOut,
    /// The kernel has ended the command for good.
    Ended,
}

/// A request of the kernel's.
struct Slot {
    stage: Stage,
    request: Request,
    buffer: Option<Buffer>,
    /// The bytes of its data.
    length: u32,
    /// Whether it is in `to_submit`.
    is_queued: bool,
}

/// Kinds of ring operations of a queue, in the user data above the tag.
const COMMAND: u64 = 0;
const COPY: u64 = 1;

/// A ublk queue.
pub struct Queue {
    index: u32,
    number: u16,
    file: Arc<File>,
    descriptors: Descriptors,
    volume: Volume,
    region: Region,
    slots: Box<[Slot]>,
    /// Slots whose requests have arrived and not begun, in order of arrival.
    arrived: VecDeque<u16>,
    /// Slots with orders to submit.
    to_submit: VecDeque<u16>,
    has_turn: bool,
    /// The number of slots whose command the kernel has not ended for good.
    open: usize,
    /// The number of slots whose requests have begun and whose answers are not yet on the ring.
    busy: usize,
    /// The number of copies on the ring.
    copies: usize,
    is_detached: bool,
    /// Whether it begins no requests; they stay with the kernel.
    is_halted: bool,
    /// The number of orders in flight, at most [`QUEUE_TAGS`].
    outstanding: usize,
    /// The queue as a client of the tenant's fence, which orders the requests of different clients.
    client: Client,
    /// Whether the first arrived request waits for requests of a disconnected client, and for how
    /// many seconds it has waited.
    is_behind: bool,
    behind_s: u32,
    _place: QueuePlace,
}

/// The user data of an operation.
fn event_value(index: u32, kind: u64, tag: u16) -> u64 {
    u64::from(index) << 24 | kind << 16 | u64::from(tag)
}

/// The queue that an event's value names.
pub(super) fn event_index(value: u64) -> usize {
    (value >> 24) as usize
}

/// The queue that a finished order's cookie names.
pub(super) fn cookie_index(cookie: u64) -> usize {
    (cookie >> 16) as usize
}

impl Queue {
    /// Starts serving a queue: gives the kernel a command for each request.
    pub fn new(
        index: u32,
        attach: Attach,
        (region, client): (Region, Client),
        ring: &mut Ring,
    ) -> io::Result<Queue> {
        let Attach { file, queue: number, depth, volume, place } = attach;
        let descriptors = Descriptors::map(&file, number, depth)?;
        let slot = |_| Slot {
            stage: Stage::Fetching,
            request: Request::void(),
            buffer: None,
            length: 0,
            is_queued: false,
        };
        let queue = Queue {
            index,
            number,
            file,
            descriptors,
            volume,
            region,
            slots: (0..depth).map(slot).collect(),
            arrived: VecDeque::with_capacity(depth.into()),
            to_submit: VecDeque::with_capacity(depth.into()),
            has_turn: false,
            open: depth.into(),
            busy: 0,
            copies: 0,
            is_detached: false,
            is_halted: false,
            outstanding: 0,
            client,
            is_behind: false,
            behind_s: 0,
            _place: place,
        };
        for tag in 0..depth {
            // SAFETY: the command references no memory of this process.
            unsafe { ring.push(queue.command(sys::FETCH_REQ, tag, 0), queue.data(COMMAND, tag)) };
        }
        Ok(queue)
    }

    /// The number of its tenant.
    pub fn tenant(&self) -> u16 {
        self.volume.tenant
    }

    /// Whether it serves this flow.
    pub fn is_of(&self, flow: FlowId) -> bool {
        self.volume.flow == flow
    }

    /// Sets the size of the range in bytes.
    pub fn resize(&mut self, size: u64) {
        self.volume.size = size;
    }

    /// The tenant was removed: requests fail from now on, until the kernel ends the commands.
    pub fn detach(&mut self) {
        self.is_detached = true;
    }

    /// Begins no more requests until [`Self::go_on`].
    pub fn stop(&mut self) {
        self.is_halted = true;
    }

    /// Begins no more requests until [`Self::go_on`], and answers the requests that have ended.
    /// True if no operation on the ring uses its memory. Requests that are not answered go to the
    /// next program.
    pub fn halt(&mut self, ring: &mut Ring) -> bool {
        self.stop();
        let ended = |tag: &u16| self.slots[usize::from(*tag)].request.is_finished();
        let ended: Vec<u16> = self.to_submit.iter().copied().filter(ended).collect();
        ended.into_iter().for_each(|tag| self.settle(ring, tag));
        self.copies == 0
    }

    /// Resumes after [`Self::stop`] or [`Self::halt`].
    pub fn go_on(&mut self) {
        self.is_halted = false;
    }

    /// Whether no request has begun and is unanswered.
    pub fn is_idle(&self) -> bool {
        self.busy == 0
    }

    /// Whether the kernel has ended all its commands.
    pub fn is_closed(&self) -> bool {
        self.open == 0 && self.busy == 0
    }

    fn command(&self, operation: u32, tag: u16, result: i32) -> squeue::Entry {
        let command = IoCommand { q_id: self.number, tag, result, addr: 0 };
        opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), operation)
            .cmd(command.to_bytes())
            .build()
    }

    fn data(&self, kind: u64, tag: u16) -> UserData {
        UserData { asker: Asker::Ublk, value: event_value(self.index, kind, tag) }
    }

    /// Handles the event of one of its operations.
    pub fn event(&mut self, ring: &mut Ring, value: u64, result: i32) {
        let tag = value as u16;
        let Some(slot) = self.slots.get_mut(usize::from(tag)) else { return };
        let is_whole = u32::try_from(result).is_ok_and(|bytes| bytes == slot.length);
        match (value >> 16 & 0xff, slot.stage) {
            (COPY, Stage::CopyingIn) => {
                self.copies -= 1;
                slot.stage = Stage::Serving;
                if !is_whole {
                    slot.request.fail(libc::EIO);
                }
                self.enqueue(tag);
            }
            (COPY, _) => {
                self.copies -= 1;
                self.answer(ring, tag, if is_whole { result } else { -libc::EIO });
            }
            _ if result == 0 => {
                slot.stage = Stage::Arrived;
                self.arrived.push_back(tag);
            }
            _ => {
                slot.stage = Stage::Ended;
                self.open -= 1;
            }
        }
    }

    /// Begins the requests that have arrived, in order, while there is memory for them.
    pub fn arrivals(&mut self, ring: &mut Ring) {
        while !self.is_halted
            && let Some(&tag) = self.arrived.front()
            && !self.waits(tag)
            && self.begin(ring, tag)
        {
            self.arrived.pop_front();
        }
    }

    /// Whether a request has to wait for requests that a disconnected client has left in flight.
    fn waits(&mut self, tag: u16) -> bool {
        let is_fenced = self.client.is_fenced() && !self.is_detached && !self.is_late();
        let waits = is_fenced && self.client.waits(self.reach(tag));
        if waits && !self.is_behind {
            self.client.count();
            self.behind_s = 0;
        }
        // `begin` fails a late request, which ends its wait.
        self.is_behind = waits || self.is_late();
        waits
    }

    /// Whether the first arrived request has waited for longer than it may
    /// ([`Client::patience_s`]).
    fn is_late(&self) -> bool {
        self.is_behind && self.behind_s > self.client.patience_s()
    }

    /// Counts a second of waiting.
    pub fn second(&mut self) {
        self.behind_s = self.behind_s.saturating_add(1);
    }

    /// The bytes that a request reads or writes.
    fn reach(&self, tag: u16) -> Reach {
        let IoDescriptor { op_flags, nr_sectors, start_sector, .. } = self.descriptors.get(tag);
        if op_flags & 0xff == sys::OP_FLUSH {
            return Reach::All;
        }
        let start = self.volume.base.saturating_add(start_sector.saturating_mul(SECTOR));
        let end = start.saturating_add(u64::from(nr_sectors) * SECTOR);
        Reach::Bytes { file: self.volume.file, start, end }
    }

    /// Begins a request; false if the region has no memory for it.
    fn begin(&mut self, ring: &mut Ring, tag: u16) -> bool {
        let IoDescriptor { op_flags, nr_sectors, start_sector, .. } = self.descriptors.get(tag);
        // A flush has no start sector: the kernel sends the largest number, which must not overflow
        // here.
        let (offset, length) = (start_sector.wrapping_mul(SECTOR), u64::from(nr_sectors) * SECTOR);
        let request = |op| Request::new(op, offset, length);
        let mut request = match op_flags & 0xff {
            sys::OP_READ => request(Op::Read),
            sys::OP_WRITE => request(Op::Write),
            sys::OP_FLUSH => Request::new(Op::Flush, 0, 0),
            sys::OP_DISCARD => request(Op::Discard),
            sys::OP_WRITE_ZEROES => request(Op::WriteZeroes),
            _ => {
                let mut refused = Request::void();
                refused.fail(libc::EOPNOTSUPP);
                refused
            }
        };
        let is_late = self.is_late();
        let slot = &mut self.slots[usize::from(tag)];
        request.fua = op_flags & sys::IO_FUA != 0;
        request.no_hole = op_flags & sys::IO_NOUNMAP != 0;
        (slot.request, slot.length) = (request, 0);
        if self.is_detached {
            slot.request.fail(libc::ESHUTDOWN);
        } else if is_late {
            slot.request.fail(libc::EIO);
            self.is_behind = false;
        } else if request.has_data() {
            slot.length = length as u32;
            slot.buffer = self.region.allocate(slot.length);
            if slot.buffer.is_none() {
                return false;
            }
        }
        self.busy += 1;
        match &slot.buffer {
            Some(buffer) if op_flags & 0xff == sys::OP_WRITE => {
                slot.stage = Stage::CopyingIn;
                self.copies += 1;
                let memory = buffer.memory();
                let file = types::Fd(self.file.as_raw_fd());
                let copy = opcode::Read::new(file, memory.address, memory.length)
                    .offset(sys::data_offset(self.number, tag))
                    .build();
                // SAFETY: the slot keeps the buffer, and does not use it, until the copy's event.
                unsafe { ring.push(copy, self.data(COPY, tag)) };
            }
            _ => {
                slot.stage = Stage::Serving;
                self.enqueue(tag);
            }
        }
        true
    }

    /// Queues a slot that has orders to submit, or is to be answered.
    fn enqueue(&mut self, tag: u16) {
        let slot = &mut self.slots[usize::from(tag)];
        if !std::mem::replace(&mut slot.is_queued, true) {
            self.to_submit.push_back(tag);
        }
    }

    /// Whether it has orders to submit and is not yet queued for its turn; it then counts as
    /// queued.
    pub fn wants_turn(&mut self) -> bool {
        let has_room = self.outstanding < QUEUE_TAGS;
        !self.to_submit.is_empty() && has_room && !std::mem::replace(&mut self.has_turn, true)
    }

    /// Submits at most `most` orders. Returns their number, and whether it needs another turn.
    pub fn take_turn<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        most: u32,
    ) -> (u32, bool) {
        // The turn may have been queued by an earlier queue with the same index.
        if !self.has_turn {
            return (0, false);
        }
        let mut given = 0;
        while given < most
            && path.has_room()
            && let Some(&tag) = self.to_submit.front()
        {
            let slot = &mut self.slots[usize::from(tag)];
            if !slot.request.is_submittable() {
                slot.is_queued = false;
                self.to_submit.pop_front();
                self.settle(ring, tag);
                continue;
            }
            if self.outstanding == QUEUE_TAGS {
                break;
            }
            let part = slot.request.next(&self.volume, path.device());
            let memory = match &slot.buffer {
                Some(buffer) if part.has_data() => buffer.memory_of(&part.range()),
                _ => Memory::NONE,
            };
            let cookie = u64::from(self.index) << 16 | u64::from(tag);
            let order = match part.order(&self.volume, memory, cookie) {
                Ok(order) => order,
                Err(error) => {
                    slot.request.fail(error.errno());
                    continue;
                }
            };
            // SAFETY: the memory is a part of the slot's buffer, which is neither used nor freed
            // until all orders of the request have finished.
            match unsafe { path.submit(now_ns, ring, &order, &[]) } {
                Ok(()) => {
                    slot.request.submitted();
                    self.outstanding += 1;
                    given += 1;
                }
                // The tenant was removed.
                Err(_) => slot.request.fail(libc::ESHUTDOWN),
            }
        }
        // A queue with the largest number of orders in flight gets another turn when an order has
        // finished.
        self.has_turn = !self.to_submit.is_empty() && self.outstanding < QUEUE_TAGS;
        (given, self.has_turn)
    }

    /// Handles a finished order.
    pub fn finished(&mut self, cookie: u64, errno: i32) {
        let tag = cookie as u16;
        self.outstanding -= 1;
        let slot = &mut self.slots[usize::from(tag)];
        slot.request.finished(errno);
        if slot.request.is_submittable() || slot.request.is_finished() {
            self.enqueue(tag);
        }
    }

    /// Answers a request if all its orders have finished.
    fn settle(&mut self, ring: &mut Ring, tag: u16) {
        let slot = &mut self.slots[usize::from(tag)];
        if slot.stage != Stage::Serving || !slot.request.is_finished() {
            return;
        }
        let errno = slot.request.errno();
        if errno == libc::ESHUTDOWN && self.is_halted && !self.is_detached {
            // The scheduler cancelled it because this program ends. The kernel sends it to the next
            // program.
            slot.stage = Stage::Arrived;
            self.busy -= 1;
            if let Some(buffer) = slot.buffer.take() {
                self.region.free(buffer);
            }
            return;
        }
        match &slot.buffer {
            Some(buffer) if errno == 0 && slot.request.op() == Op::Read => {
                slot.stage = Stage::CopyingOut;
                self.copies += 1;
                let memory = buffer.memory();
                let file = types::Fd(self.file.as_raw_fd());
                let copy = opcode::Write::new(file, memory.address, memory.length)
                    .offset(sys::data_offset(self.number, tag))
                    .build();
                // SAFETY: the slot keeps the buffer unchanged until the copy's event.
                unsafe { ring.push(copy, self.data(COPY, tag)) };
            }
            _ => {
                let result = if errno == 0 { slot.length as i32 } else { -errno };
                self.answer(ring, tag, result);
            }
        }
    }

    /// Answers a request and fetches the next one.
    fn answer(&mut self, ring: &mut Ring, tag: u16, result: i32) {
        let slot = &mut self.slots[usize::from(tag)];
        slot.stage = Stage::Fetching;
        if let Some(buffer) = slot.buffer.take() {
            self.region.free(buffer);
        }
        self.busy -= 1;
        let answer = self.command(sys::COMMIT_AND_FETCH_REQ, tag, result);
        // SAFETY: the command references no memory of this process.
        unsafe { ring.push(answer, self.data(COMMAND, tag)) };
    }

    /// Whether a request waits for memory or for its turn, or has arrived while the queue was
    /// halted.
    pub fn has_unsubmitted(&self) -> bool {
        !self.to_submit.is_empty() || !self.arrived.is_empty()
    }
}
