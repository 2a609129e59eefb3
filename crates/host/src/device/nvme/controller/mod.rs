//! The controller: registers, queues, arbitration, and the life of a command.
//!
//! **Problem.** To schedule like a real SSD (weighted round robin over classes of queues, a finite
//! number of commands fetched at a time) before any storage, for any driver, without a thread of
//! its own. **Model.** Registers and doorbells are plain atomic words: writing one never waits. The
//! thread that [polls](Controller::poll) acts on them, one thread at a time, behind a [`Gate`]:
//!
//! ```text
//!   poll: completions of the storage ─▶ events of the timing model, in their order, each freeing a slot for the next
//!         command ─▶ configuration ─▶ admin commands ─▶ doorbells ─▶ fetch: Arbiter, Window ─▶ Storage ─▶ CQE
//! ```
//!
//! - *Room.* A command is shown to the arbiter only when its completion queue has a place for its
//!   completion, which is then kept for it. So nothing that has been fetched can get stuck, and a
//!   slow driver holds up only itself.
//! - *Window.* At most `window` commands are fetched and not completed, over all queues; the rest
//!   stays in the submission queues, where arbitration decides.
//! - *Time.* With a timing model each event is handled at its own time, even if the poll comes
//!   late: the slot it frees takes the next command that was waiting then. So a backlog is served
//!   at the model's exact rate.
//! - *Interrupts.* A completion adds the ports behind its queue's vector to the poller's `wake`. If
//!   the next event comes earlier than sleepers could know, all who have commands here are woken to
//!   set their alarms anew.
//! - *Reset* (CC.EN to 0): nothing more is fetched or posted; when the storage has ended its
//!   commands, the queues are gone and CSTS.RDY clears. So the controller never accesses memory
//!   after a reset has ended.
//!
//! **Hostile drivers.** Entries are read once and checked; addresses are resolved by [`Dma`]; queue
//! identifiers, sizes and doorbells are checked; every list that is followed has a bound. Nothing
//! here panics, whatever a driver writes.
//!
//! **Cost.** A command takes no lock of its own, no allocation and no system call; a poll with
//! nothing to do reads two words.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use fairq_core::{Native, Op, PortBits, PortSet, Tag};
use fairq_device::arbiter::class_of_qprio;
use fairq_device::{Arbiter, Arbitration, Gate, Mechanism, QueueIndex, Window};

use crate::device::Command;
use crate::device::nvme::data::Transfer;
use crate::device::nvme::dma::{Dma, queue_memory};
use crate::device::nvme::namespaces::Namespaces;
use crate::device::nvme::queue::{CqEntries, CqTail, SqEntries, SqHead};
use crate::device::nvme::spec::{
    CAP_WRR, CC_ENABLE, CQE, CSTS_FATAL, CSTS_READY, CSTS_SHUTDOWN_COMPLETE, Cqe, PAGE, SQE,
    Status, register,
};
use crate::device::nvme::storage::Storage;
use crate::io::memory::Memory;

mod abort;
mod admin_commands;
mod io_commands;
#[cfg(test)]
mod tests;
mod timing;

use admin_commands::Admin;
use timing::Model;

pub use timing::Timing;

/// Bits of the gate: one for each I/O submission queue, one for commands that have been seen and
/// wait for somebody with a storage, and one for what no storage is needed for: the admin queue and
/// all other registers.
const CONTROL: u64 = 1;
const FETCH: u64 = 1 << 62;
/// Queues of each kind, the admin queues included: as many as there are bits for.
const QUEUES: usize = 62;
/// The most I/O queues of each kind.
pub const QUEUES_MAX: u16 = QUEUES as u16 - 1;
/// Aborts that may wait at a time (ACL + 1).
const ABORTS: usize = 4;
/// Asynchronous event requests that are kept (AERL + 1).
const EVENT_REQUESTS: usize = 4;
/// The most entries of a queue.
pub const ENTRIES_MAX: u16 = 4096;
/// Interrupt vectors.
pub const VECTORS: u16 = QUEUES as u16;
/// Version 1.4, the last one whose mandatory log pages and data structures are all here.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// A thread that has commands here and waits for an event stays awake for this long before it:
/// sleeping is not that exact.
pub const AWAKE_NS: u64 = 30_000;
/// No event is due.
const NEVER: u64 = u64::MAX;

/// The properties of a controller.
pub struct Options {
    /// The namespaces; their sizes are multiples of 512.
    pub namespaces: Arc<Namespaces>,
    /// I/O queues of each kind, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// The most commands that are fetched and not completed; at least 1.
    pub window: u16,
    /// Whether weighted round robin with urgent priority class is offered.
    pub wrr: bool,
    /// Whether the storage keeps what it has written in a volatile cache.
    pub volatile_cache: bool,
    /// Whether deallocated blocks read as zeroes.
    pub discard_zeroes: bool,
    /// The drive whose timing it has; `None` for no delays.
    pub timing: Option<Timing>,
}

/// A software NVMe controller. See the [module's text](self).
pub struct Controller<M> {
    dma: M,
    cap: u64,
    registers: Registers,
    doorbells: Box<[Doorbells]>,
    /// Completion queues before which commands wait for room.
    crowded: CachePadded<AtomicU64>,
    /// The ports that each vector interrupts.
    vectors: Box<[PortBits<Native>]>,
    gate: Gate<Native>,
    /// When the next event of the timing model is due.
    next_ns: CachePadded<AtomicU64>,
    state: UnsafeCell<State>,
}

// SAFETY: only the thread inside the gate accesses `state`; the gate lets one thread in at a time
// and orders them. The other fields are atomic or do not change.
unsafe impl<M: Dma> Sync for Controller<M> {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl<M: Dma> Send for Controller<M> {}

#[derive(Default)]
struct Registers {
    cc: AtomicU32,
    csts: AtomicU32,
    aqa: AtomicU32,
    asq: AtomicU64,
    acq: AtomicU64,
}

/// The doorbells of the queues of one identifier, each on a cache line of its own.
#[derive(Default)]
struct Doorbells {
    sq_tail: CachePadded<AtomicU32>,
    cq_head: CachePadded<AtomicU32>,
}

/// The state that only the thread inside the gate accesses.
struct State {
    options: Options,
    phase: Phase,
    /// The latest time seen: pollers read the clock before they get in.
    now_ns: u64,
    arbiter: Arbiter,
    window: Window,
    model: Option<Model>,
    sqs: Box<[Option<SqHead>]>,
    cqs: Box<[Option<CqTail>]>,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    admin: Admin,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// CSTS.RDY = 0.
    Disabled,
    Ready,
    /// CC.EN has been cleared; what is with the storage is not done yet.
    Stopping,
    /// The configuration makes no sense; only a reset helps.
    Fatal,
}

/// A command that has been fetched and not completed.
struct Slot {
    sqid: u16,
    cid: u16,
    /// The next piece of it: what is left.
    command: Command,
    transfer: Transfer,
    /// Ranges to discard, in bytes, last first; what it takes is kept for the next command.
    ranges: Vec<(u64, u64)>,
    /// Namespaces yet to flush.
    flushes: u32,
}

/// The next step of a command.
enum Step {
    Piece(Command),
    End(Status),
}

/// The arguments that all functions of a poll share.
struct Context<'a, M, S> {
    controller: &'a Controller<M>,
    storage: &'a mut S,
    wake: &'a mut PortSet,
}

impl<M: Dma> Controller<M> {
    /// A disabled controller.
    ///
    /// # Panics
    /// When an option is out of its range.
    pub fn new(options: Options, dma: M) -> Controller<M> {
        assert!(
            options.window > 0 && (1..=QUEUES_MAX).contains(&options.queues),
            "options out of range"
        );
        let contiguous_required = 1 << 16;
        let timeout_500_ms = 20 << 24;
        let nvm_command_set = 1 << 37;
        let wrr = if options.wrr { CAP_WRR } else { 0 };
        let cap = u64::from(ENTRIES_MAX - 1)
            | contiguous_required
            | wrr
            | timeout_500_ms
            | nvm_command_set;
        Controller {
            dma,
            cap,
            registers: Registers::default(),
            doorbells: (0..QUEUES).map(|_| Doorbells::default()).collect(),
            crowded: CachePadded::default(),
            vectors: (0..VECTORS).map(|_| PortBits::new(PortSet::MAX_PORTS)).collect(),
            gate: Gate::default(),
            next_ns: CachePadded::new(AtomicU64::new(NEVER)),
            state: UnsafeCell::new(State::new(options)),
        }
    }

    /// The memory that it reaches.
    pub fn dma(&self) -> &M {
        &self.dma
    }

    /// Reads four bytes of the registers; what is not there reads as 0.
    pub fn read32(&self, offset: u32) -> u32 {
        let high = |word: u64| (word >> 32) as u32;
        let registers = &self.registers;
        match offset {
            register::CAP => self.cap as u32,
            0x04 => high(self.cap),
            register::VS => VERSION,
            register::CC => registers.cc.load(Ordering::Acquire),
            register::CSTS => registers.csts.load(Ordering::Acquire),
            register::AQA => registers.aqa.load(Ordering::Acquire),
            register::ASQ => registers.asq.load(Ordering::Acquire) as u32,
            0x2c => high(registers.asq.load(Ordering::Acquire)),
            register::ACQ => registers.acq.load(Ordering::Acquire) as u32,
            0x34 => high(registers.acq.load(Ordering::Acquire)),
            _ => 0,
        }
    }

    /// Reads eight bytes of the registers.
    pub fn read64(&self, offset: u32) -> u64 {
        u64::from(self.read32(offset)) | u64::from(self.read32(offset.wrapping_add(4))) << 32
    }

    /// Writes four bytes of the registers, doorbells included; what is not there or cannot be
    /// written is ignored.
    pub fn write32(&self, offset: u32, value: u32) {
        let registers = &self.registers;
        let low = |word: &AtomicU64| {
            word.store(
                word.load(Ordering::Acquire) >> 32 << 32 | u64::from(value),
                Ordering::Release,
            )
        };
        let high = |word: &AtomicU64| {
            let low = word.load(Ordering::Acquire) & 0xffff_ffff;
            word.store(u64::from(value) << 32 | low, Ordering::Release);
        };
        match offset {
            register::CC => {
                registers.cc.store(value, Ordering::Release);
                self.gate.ring(CONTROL);
            }
            register::AQA => registers.aqa.store(value, Ordering::Release),
            register::ASQ => low(&registers.asq),
            0x2c => high(&registers.asq),
            register::ACQ => low(&registers.acq),
            0x34 => high(&registers.acq),
            _ if offset >= register::DOORBELLS && offset.is_multiple_of(4) => {
                let index = (offset - register::DOORBELLS) / 4;
                let id = (index / 2) as usize;
                match index % 2 {
                    _ if id >= QUEUES => {}
                    0 => self.ring_sq(id as u16, value),
                    _ => self.ring_cq(id as u16, value),
                }
            }
            _ => {}
        }
    }

    /// Writes eight bytes of the registers.
    pub fn write64(&self, offset: u32, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset.wrapping_add(4), (value >> 32) as u32);
    }

    /// Writes the tail doorbell of a submission queue.
    #[inline]
    pub fn ring_sq(&self, sqid: u16, tail: u32) {
        self.set_tail(sqid, tail);
        self.announce(1 << sqid);
    }

    /// The first half of [`ring_sq`](Self::ring_sq), for who rings several.
    #[inline]
    pub(crate) fn set_tail(&self, sqid: u16, tail: u32) {
        self.doorbells[usize::from(sqid)].sq_tail.store(tail, Ordering::Release);
    }

    /// The second half: all queues whose tails were set, as bits.
    #[inline]
    pub(crate) fn announce(&self, sqids: u64) {
        self.gate.ring(sqids);
    }

    /// Writes the head doorbell of a completion queue.
    #[inline]
    pub fn ring_cq(&self, cqid: u16, head: u32) {
        // The driver first writes its head and then reads whether the controller waits; the
        // controller first publishes that it waits and then reads the head again.
        self.doorbells[usize::from(cqid)].cq_head.swap(head, Ordering::SeqCst);
        if self.crowded.load(Ordering::SeqCst) >> cqid & 1 != 0 {
            self.gate.ring(CONTROL);
        }
    }

    /// Sets whom a vector interrupts.
    pub fn set_vector(&self, vector: u16, ports: PortSet) {
        self.vectors[usize::from(vector)].set().store(ports, Ordering::Release);
    }

    /// Whether [`poll`](Self::poll) would find something to do.
    #[inline]
    pub fn wants_poll(&self, now_ns: u64) -> bool {
        self.next_ns.load(Ordering::Acquire) <= now_ns || self.gate.rung() != 0
    }

    /// When the timing model's next event is due; a thread with commands here polls then.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        Some(self.next_ns.load(Ordering::Acquire)).filter(|&next_ns| next_ns != NEVER)
    }

    /// Does all that there is to do, unless somebody is doing it: then that one does. Adds to
    /// `wake` the ports that it interrupts.
    pub fn poll<S: Storage>(&self, now_ns: u64, storage: &mut S, wake: &mut PortSet) {
        self.announce_and_poll(0, now_ns, storage, wake);
    }

    /// [`announce`](Self::announce), and then [`poll`](Self::poll).
    #[inline]
    pub(crate) fn announce_and_poll<S: Storage>(
        &self,
        rung: u64,
        now_ns: u64,
        storage: &mut S,
        wake: &mut PortSet,
    ) {
        let mut inside = self.gate.enter(rung);
        while let Some(rung) = inside {
            // SAFETY: only who is inside the gate gets here, until it leaves, and `state` is not
            // used after that.
            let state = unsafe { &mut *self.state.get() };
            let mut context = Context { controller: self, storage, wake };
            state.work(&mut context, now_ns, rung);
            self.publish(state, now_ns, wake);
            inside = self.gate.leave();
        }
    }

    /// For who has no storage to carry out I/O commands with: works off the configuration and admin
    /// commands, and leaves all else to the ports that it wakes.
    pub fn poll_admin(&self, now_ns: u64, wake: &mut PortSet) {
        while self.gate.rung() & CONTROL != 0 {
            let Some(rung) = self.gate.enter(0) else { break };
            // SAFETY: as in `poll`.
            let state = unsafe { &mut *self.state.get() };
            state.control(self, wake, now_ns);
            let fetch = if state.arbiter.has_commands() { FETCH } else { 0 };
            self.publish(state, now_ns, wake);
            self.gate.hand_over(rung & !CONTROL | fetch);
        }
        if self.gate.rung() & !CONTROL != 0 {
            // Left above, or rung by somebody who then found the gate closed.
            let vectors = self.vectors.iter().map(|ports| ports.set().load(Ordering::Acquire));
            vectors.for_each(|ports| wake.extend(ports));
        }
    }

    /// Publishes the time of the next event. Ports that sleep until a later event are woken.
    #[inline]
    fn publish(&self, state: &State, now_ns: u64, wake: &mut PortSet) {
        let next_ns = state.next_ns();
        let before_ns = self.next_ns.load(Ordering::Relaxed);
        if next_ns != before_ns {
            self.next_ns.store(next_ns, Ordering::Release);
            if next_ns < before_ns && before_ns.saturating_sub(AWAKE_NS) > now_ns {
                wake.extend(self.waiting(state));
            }
        }
    }

    /// The ports that have commands here.
    fn waiting(&self, state: &State) -> PortSet {
        let mut ports = PortSet::EMPTY;
        for cq in state.cqs.iter().flatten().filter(|cq| cq.is_in_use()) {
            ports.extend(self.ports_of(cq));
        }
        ports
    }

    fn ports_of(&self, cq: &CqTail) -> PortSet {
        let ports = |vector: u16| self.vectors[usize::from(vector)].set().load(Ordering::Acquire);
        cq.vector.map_or(PortSet::EMPTY, ports)
    }
}

impl State {
    fn new(options: Options) -> State {
        let window = options.window;
        let none = || (0..QUEUES).map(|_| None);
        State {
            phase: Phase::Disabled,
            now_ns: 0,
            arbiter: Arbiter::new(Mechanism::RoundRobin, QUEUES, Arbitration::RESET),
            window: Window::new(window.into()),
            model: options.timing.as_ref().map(|timing| Model::new(timing, window)),
            sqs: none().collect(),
            cqs: (0..QUEUES).map(|_| None).collect(),
            slots: (0..window).map(Slot::new).collect(),
            free: (0..window).rev().collect(),
            admin: Admin::new(&options),
            options,
        }
    }

    #[inline]
    fn next_ns(&self) -> u64 {
        self.model.as_ref().and_then(Model::next_ns).unwrap_or(NEVER)
    }

    /// Everything that one poll does, in its order.
    #[inline]
    fn work<M: Dma, S: Storage>(
        &mut self,
        context: &mut Context<'_, M, S>,
        now_ns: u64,
        rung: u64,
    ) {
        self.now_ns = self.now_ns.max(now_ns);
        let now_ns = self.now_ns;
        while let Some((slot, errno)) = context.storage.finished() {
            self.resume(context, now_ns, slot, errno);
        }
        while let Some(completed) = self.model.as_mut().and_then(|model| model.pop(now_ns)) {
            self.advance(context, completed.at_ns, completed.id as u16);
            // The slot takes the next command that was waiting at that time.
            self.fetch(context, completed.at_ns);
        }
        if rung & CONTROL != 0 {
            self.control(context.controller, context.wake, now_ns);
        }
        self.see(context.controller, rung & !(CONTROL | FETCH));
        self.fetch(context, now_ns);
        if self.phase == Phase::Stopping && self.window.fetched() == 0 {
            self.stopped(context.controller);
        }
    }

    /// Does the work that needs no storage: the configuration, room in completion queues, and admin
    /// commands.
    #[cold]
    fn control<M: Dma>(&mut self, controller: &Controller<M>, wake: &mut PortSet, now_ns: u64) {
        self.configure(controller);
        let crowded = controller.crowded.swap(0, Ordering::SeqCst);
        for id in 0..QUEUES {
            if self.sqs[id].as_ref().is_some_and(|sq| crowded >> sq.cqid & 1 != 0) {
                self.admit(controller, id);
            }
        }
        if self.sqs[0].is_some() {
            self.see(controller, 1);
            self.administer(controller, wake, now_ns);
        }
    }

    /// Takes in CC.
    fn configure<M: Dma>(&mut self, controller: &Controller<M>) {
        let cc = controller.registers.cc.load(Ordering::Acquire);
        let is_enabled = cc & CC_ENABLE != 0;
        match self.phase {
            Phase::Disabled if is_enabled => self.enable(controller, cc),
            Phase::Ready | Phase::Fatal if !is_enabled => {
                self.phase = Phase::Stopping;
                if self.window.fetched() == 0 {
                    self.stopped(controller);
                }
            }
            _ => {}
        }
        // Shutdown: nothing is kept here that would have to be put away.
        if cc >> 14 & 3 != 0 && self.phase == Phase::Ready {
            controller.registers.csts.fetch_or(CSTS_SHUTDOWN_COMPLETE, Ordering::AcqRel);
        }
    }

    fn enable<M: Dma>(&mut self, controller: &Controller<M>, cc: u32) {
        let registers = &controller.registers;
        let mechanism = match cc >> 11 & 7 {
            0 => Some(Mechanism::RoundRobin),
            1 if self.options.wrr => Some(Mechanism::Weighted),
            _ => None,
        };
        let is_supported = cc >> 4 & 7 == 0 && cc >> 7 & 0xf == 0;
        let aqa = registers.aqa.load(Ordering::Acquire);
        let sizes = [aqa & 0xfff, aqa >> 16 & 0xfff].map(|size| size as u16 + 1);
        let bases = [&registers.asq, &registers.acq].map(|base| base.load(Ordering::Acquire));
        let admin = admin_queues(&controller.dma, sizes, bases);
        let (Some(mechanism), true, Some((sq, cq))) = (mechanism, is_supported, admin) else {
            self.phase = Phase::Fatal;
            registers.csts.store(CSTS_FATAL, Ordering::Release);
            return;
        };
        // Values that were written to doorbells before are discarded.
        for doorbells in &controller.doorbells {
            doorbells.sq_tail.store(0, Ordering::Relaxed);
            doorbells.cq_head.store(0, Ordering::Relaxed);
        }
        self.arbiter = Arbiter::new(mechanism, QUEUES, Arbitration::RESET);
        self.admin = Admin::new(&self.options);
        (self.sqs[0], self.cqs[0]) = (Some(sq), Some(cq));
        self.phase = Phase::Ready;
        registers.csts.store(CSTS_READY, Ordering::Release);
    }

    /// Nothing is with the storage any more: the reset ends.
    fn stopped<M: Dma>(&mut self, controller: &Controller<M>) {
        self.sqs.iter_mut().for_each(|sq| *sq = None);
        self.cqs.iter_mut().for_each(|cq| *cq = None);
        self.arbiter = Arbiter::new(Mechanism::RoundRobin, QUEUES, Arbitration::RESET);
        controller.crowded.store(0, Ordering::SeqCst);
        self.phase = Phase::Disabled;
        controller.registers.csts.store(0, Ordering::Release);
        // It may have been enabled again meanwhile.
        if controller.registers.cc.load(Ordering::Acquire) & CC_ENABLE != 0 {
            controller.gate.ring(CONTROL);
        }
    }

    /// Takes in the tail doorbells of the queues in `rung`.
    #[inline]
    fn see<M: Dma>(&mut self, controller: &Controller<M>, rung: u64) {
        let mut rung = rung;
        while rung != 0 && self.phase == Phase::Ready {
            let id = rung.trailing_zeros() as usize;
            rung &= rung - 1;
            let Some(sq) = self.sqs[id].as_mut().filter(|_| !self.admin.is_deleting(id as u16))
            else {
                continue;
            };
            let tail = controller.doorbells[id].sq_tail.load(Ordering::Acquire);
            sq.held += sq.see(tail).unwrap_or(0);
            self.admit(controller, id);
        }
    }

    /// Gives the arbiter the commands of a queue for whose completions there is room.
    #[inline]
    fn admit<M: Dma>(&mut self, controller: &Controller<M>, id: usize) {
        let Some(sq) = &mut self.sqs[id] else { return };
        let Some(cq) = &mut self.cqs[usize::from(sq.cqid)] else { return };
        let mut granted = cq.reserve(sq.held);
        if granted < sq.held {
            let head = &controller.doorbells[usize::from(sq.cqid)].cq_head;
            cq.see(head.load(Ordering::SeqCst));
            granted += cq.reserve(sq.held - granted);
            if granted < sq.held {
                // The controller first publishes that it waits and then reads the head again; the
                // driver first writes its head and then reads whether the controller waits.
                controller.crowded.fetch_or(1 << sq.cqid, Ordering::SeqCst);
                cq.see(head.load(Ordering::SeqCst));
                granted += cq.reserve(sq.held - granted);
            }
        }
        sq.held -= granted;
        if id == 0 {
            self.admin.waiting += granted;
        } else if granted > 0 {
            self.arbiter.post(QueueIndex(id as u16), granted);
        }
    }

    /// Fetches while there are commands and slots.
    #[inline]
    fn fetch<M: Dma, S: Storage>(&mut self, context: &mut Context<'_, M, S>, now_ns: u64) {
        while self.phase == Phase::Ready && self.window.free() > 0 {
            let Some(QueueIndex(sqid)) = self.arbiter.next() else { break };
            let Some(sq) = &mut self.sqs[usize::from(sqid)] else { break };
            let Some(slot) = self.free.pop() else { break };
            let _ = self.window.take();
            let abort = self.admin.abort_of(sqid, sq.head());
            let sqe = sq.fetch();
            sq.in_flight += 1;
            let record = &mut self.slots[usize::from(slot)];
            (record.sqid, record.cid) = (sqid, sqe.cid);
            let decoded = record.decode(&sqe, &self.options.namespaces, &context.controller.dma);
            if let Some(cid) = abort {
                self.complete(context, slot, Status::ABORT_REQUESTED);
                self.post(context.controller, context.wake, 0, cid, 0, Status::SUCCESS);
                continue;
            }
            match decoded {
                Err(status) => self.complete(context, slot, status),
                Ok(()) => match &mut self.model {
                    None => self.advance(context, now_ns, slot),
                    Some(model) => {
                        let Command { op, offset, length, .. } = record.command;
                        model.start(now_ns, slot.into(), op, offset, length);
                    }
                },
            }
        }
    }

    /// A piece has been carried out.
    fn resume<M: Dma, S: Storage>(
        &mut self,
        context: &mut Context<'_, M, S>,
        now_ns: u64,
        slot: u16,
        errno: i32,
    ) {
        if errno == 0 {
            return self.advance(context, now_ns, slot);
        }
        let is_read = self.slots[usize::from(slot)].command.op == Op::Read;
        self.complete(context, slot, Status::of_errno(errno, is_read));
    }

    /// Hands the storage piece after piece until it needs time for one, or the command is done.
    #[inline]
    fn advance<M: Dma, S: Storage>(
        &mut self,
        context: &mut Context<'_, M, S>,
        now_ns: u64,
        slot: u16,
    ) {
        let record = &mut self.slots[usize::from(slot)];
        let (sqs, cqs, sqid) = (&self.sqs, &self.cqs, usize::from(record.sqid));
        let owners = || {
            let cq = sqs[sqid].as_ref().and_then(|sq| cqs[usize::from(sq.cqid)].as_ref());
            cq.map_or(PortSet::EMPTY, |cq| context.controller.ports_of(cq))
        };
        let status = loop {
            let piece = match record.step(&self.options.namespaces, &context.controller.dma) {
                Step::Piece(piece) => piece,
                Step::End(status) => break status,
            };
            // SAFETY: the memory was resolved, and stays valid until the command completes, as
            // `Dma` promises.
            match unsafe { context.storage.start(now_ns, owners, &piece) } {
                None => return,
                Some(0) => {}
                Some(errno) => break Status::of_errno(errno, piece.op == Op::Read),
            }
        };
        self.complete(context, slot, status);
    }

    /// The command has ended: its slot is free, and its completion is posted.
    // Always: nearly every call is the last step of `advance`.
    #[inline(always)]
    fn complete<M: Dma, S: Storage>(
        &mut self,
        context: &mut Context<'_, M, S>,
        slot: u16,
        status: Status,
    ) {
        let record = &self.slots[usize::from(slot)];
        let (sqid, cid) = (record.sqid, record.cid);
        self.free.push(slot);
        self.window.release();
        self.admin.count(sqid, cid, status, &record.command);
        let Some(sq) = &mut self.sqs[usize::from(sqid)] else { return };
        sq.in_flight -= 1;
        let is_last = sq.in_flight == 0;
        if self.phase == Phase::Ready {
            self.post(context.controller, context.wake, sqid, cid, 0, status);
            if is_last && self.admin.is_deleting(sqid) {
                self.delete_sq(context.controller, context.wake, sqid);
            }
        }
    }

    /// Posts a completion for which there is a place.
    // Always: it has more arguments than go in registers.
    #[inline(always)]
    fn post<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        sqid: u16,
        cid: u16,
        result: u32,
        status: Status,
    ) {
        let Some(sq) = &self.sqs[usize::from(sqid)] else { return };
        let Some(cq) = &mut self.cqs[usize::from(sq.cqid)] else { return };
        cq.post(Cqe { result, sq_head: sq.head(), sqid, cid, status });
        if cq.vector.is_some() {
            wake.extend(controller.ports_of(cq));
        }
    }
}

/// The admin queues that the registers describe.
fn admin_queues(dma: &impl Dma, sizes: [u16; 2], bases: [u64; 2]) -> Option<(SqHead, CqTail)> {
    if sizes.iter().any(|&size| size < 2) || bases.iter().any(|base| !base.is_multiple_of(PAGE)) {
        return None;
    }
    let sq = queue_memory(dma, bases[0], u32::from(sizes[0]) * SQE as u32)?;
    let cq = queue_memory(dma, bases[1], u32::from(sizes[1]) * CQE as u32)?;
    // SAFETY: the memory was resolved for these sizes, and stays valid until the controller is
    // reset.
    let (sq, cq) = unsafe { (SqEntries::new(sq, sizes[0]), CqEntries::new(cq, sizes[1])) };
    Some((SqHead::new(sq, 0), CqTail::new(cq, Some(0))))
}

impl Slot {
    fn new(index: u16) -> Slot {
        let command = Command {
            tag: Tag(index.into()),
            op: Op::Flush,
            class: fairq_core::Class::Medium,
            file: 0,
            offset: 0,
            length: 0,
            span: 0,
            fua: false,
            no_hole: false,
            fast_only: false,
            memory: Memory::NONE,
        };
        let (transfer, ranges) = (Transfer::NONE, Vec::new());
        Slot { sqid: 0, cid: 0, command, transfer, ranges, flushes: 0 }
    }
}
