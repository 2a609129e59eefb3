//! The slow path of the driver: the admin queues, and what is set up with them. One at a time,
//! behind a mutex.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairq_core::{ClassWeights, PortSet};
use fairq_device::arbiter::qprio;
use fairq_device::{Arbitration, Burst};

use super::Shared;
use super::bus::Bus;
use super::layout::{Layout, QUEUES_MIN};
use super::queue::Hold;
use super::set::{self, CQ_ENTRIES, ENTRIES, SET_BYTES, SET_WINDOWS, Set};
use crate::device::Place;
use crate::device::nvme::queue::{CqEntries, CqHead, SqEntries, SqTail};
use crate::device::nvme::spec::{
    CAP_WRR, CC_ENABLE, CC_ENTRY_SIZES, CC_WRR, CQE, CSTS_FATAL, CSTS_READY, PAGE, SQE, Sqe, admin,
    feature, register,
};
use crate::io::clock::Clock;

/// Entries of the admin queues, each of which is on a page of its own.
const ADMIN_ENTRIES: u16 = 32;
const ADMIN_BYTES: usize = 2 * PAGE as usize;
/// The time limit of an admin command or a reset.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the [module's text](self).
pub(super) struct Driver {
    sq: SqTail,
    cq: CqHead,
    cid: u16,
    has_wrr: bool,
    weights: ClassWeights,
    /// I/O queues of each kind.
    queues: u16,
    layout: Option<Layout>,
    /// The number of shards whose queues are open.
    open: usize,
    /// The sets that are not out; those that are shared stay in.
    sets: Vec<Option<Hold>>,
}

impl Driver {
    /// The bus with room for everything.
    pub(super) fn bus(queues: u16) -> io::Result<Bus> {
        let sets = usize::from(queues / QUEUES_MIN);
        Bus::map(ADMIN_BYTES + sets * SET_BYTES, sets * SET_WINDOWS)
    }

    /// Of a controller that has not been started.
    pub(super) fn new(bus: &Bus, queues: u16) -> Driver {
        let (sq, cq) = admin_queues(bus);
        let weights = Arbitration::RESET.weights;
        Driver {
            sq,
            cq,
            cid: 0,
            has_wrr: false,
            weights,
            queues,
            layout: None,
            open: 0,
            sets: Vec::new(),
        }
    }

    /// Brings the controller from whatever state to one without I/O queues, with the weights that
    /// were set last.
    pub(super) fn reset(&mut self, shared: &Shared) -> io::Result<()> {
        if self.open > 0 {
            return Err(io::Error::other(format!(
                "{} queues are open: close them first",
                self.open
            )));
        }
        let controller = &shared.controller;
        let csts = || controller.read32(register::CSTS) & (CSTS_READY | CSTS_FATAL);
        controller.write32(register::CC, 0);
        wait_until(shared, "stopped", || csts() == 0)?;
        (self.layout, self.sets) = (None, Vec::new());
        (self.sq, self.cq) = admin_queues(controller.dma());
        self.has_wrr = controller.read64(register::CAP) & CAP_WRR != 0;
        let size = u32::from(ADMIN_ENTRIES - 1);
        // The specification has the admin queues set up before the controller is started.
        controller.write32(register::AQA, size << 16 | size);
        controller.write64(register::ASQ, Bus::fixed(0));
        controller.write64(register::ACQ, Bus::fixed(PAGE as usize));
        let mechanism = if self.has_wrr { CC_WRR } else { 0 };
        controller.write32(register::CC, CC_ENABLE | CC_ENTRY_SIZES | mechanism);
        wait_until(shared, "started", || csts() != 0)?;
        if csts() & CSTS_FATAL != 0 {
            return Err(io::Error::other("the controller does not accept its configuration"));
        }
        let wanted = u32::from(self.queues) - 1;
        let granted = self.set_feature(shared, feature::NUMBER_OF_QUEUES, wanted << 16 | wanted)?;
        // Both numbers count from 0; a set needs queues of both kinds.
        self.queues = (granted & 0xffff).min(granted >> 16) as u16 + 1;
        if self.has_wrr { self.send_weights(shared) } else { Ok(()) }
    }

    /// Sets the weights of the classes, and remembers them if the controller takes them.
    pub(super) fn set_weights(&mut self, shared: &Shared, weights: ClassWeights) -> io::Result<()> {
        if !self.has_wrr {
            let text = "it offers no weighted round robin (CAP.AMS), so classes of queues mean \
             nothing to it";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let ClassWeights { high, medium, low } = weights;
        if [high, medium, low].iter().any(|weight| !(1..=256).contains(weight)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the weight of a class is 1 to 256",
            ));
        }
        let before = std::mem::replace(&mut self.weights, weights);
        self.send_weights(shared).inspect_err(|_| self.weights = before)
    }

    fn send_weights(&mut self, shared: &Shared) -> io::Result<()> {
        let arbitration = Arbitration { burst: Burst::ONE, weights: self.weights };
        self.set_feature(shared, feature::ARBITRATION, arbitration.cdw11())?;
        Ok(())
    }

    /// Sets a feature; what the controller answers.
    fn set_feature(&mut self, shared: &Shared, feature: u8, cdw11: u32) -> io::Result<u32> {
        let sqe =
            Sqe { opcode: admin::SET_FEATURES, cdw10: feature.into(), cdw11, ..Sqe::default() };
        self.command(shared, "Set Features", sqe)
    }

    /// Carries out an admin command and checks its status.
    pub(super) fn command(&mut self, shared: &Shared, name: &str, sqe: Sqe) -> io::Result<u32> {
        self.cid = self.cid.wrapping_add(1);
        let tail = self.sq.push(&Sqe { cid: self.cid, ..sqe });
        shared.controller.ring_sq(0, tail.into());
        let mut answer = None;
        wait_until(shared, "answered an admin command", || {
            answer = self.cq.pop();
            answer.is_some()
        })?;
        shared.controller.ring_cq(0, self.cq.head().into());
        match answer {
            Some(cqe) if cqe.cid != self.cid => {
                Err(io::Error::other(format!("{name}: an answer to something else")))
            }
            Some(cqe) if !cqe.status.is_success() => {
                Err(io::Error::other(format!("{name}: {:?}", cqe.status)))
            }
            Some(cqe) => Ok(cqe.result),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Hands a shard its set, laying the queues out for the run if they are not; and where in the
    /// layout the shard is.
    pub(super) fn open(
        &mut self,
        shared: &Shared,
        place: &Place,
    ) -> io::Result<(Hold, (usize, usize))> {
        let layout = Layout::plan(self.queues, place.ports);
        if self.layout != Some(layout) {
            self.lay_out(shared, layout)?;
        }
        let at = layout.place(place.port);
        let slot = self.sets.get_mut(at.0);
        let hold = match slot {
            Some(Some(Hold::Shared(set))) => Hold::Shared(set.clone()),
            Some(own) => {
                let taken =
                    || io::Error::other(format!("shard {} has its queue already", place.port.0));
                own.take().ok_or_else(taken)?
            }
            None => {
                return Err(io::Error::other(format!(
                    "there is no shard {} in this run",
                    place.port.0
                )));
            }
        };
        self.open += 1;
        Ok((hold, at))
    }

    /// Takes a shard's set back.
    pub(super) fn close(&mut self, set: usize, hold: Hold) {
        self.open -= 1;
        let Hold::Own(own) = hold else { return };
        debug_assert!(
            own.is_idle() || std::thread::panicking(),
            "a queue is closed with commands on their way"
        );
        if own.is_idle() {
            self.sets[set] = Some(Hold::Own(own));
        } else {
            // Of no more use: the next run begins with a reset.
            self.layout = None;
        }
    }

    /// Creates the queues for a run in place of those of the last one.
    fn lay_out(&mut self, shared: &Shared, layout: Layout) -> io::Result<()> {
        if self.open > 0 {
            return Err(io::Error::other(
                "queues are open for a run with another number of shards: close them first",
            ));
        }
        // Taken, and set again at the end: after a failure the next run begins with a reset.
        match self.layout.take() {
            Some(old) => self.delete_queues(shared, old)?,
            None => self.reset(shared)?,
        }
        self.sets = Vec::new();
        for index in 0..layout.sets() {
            let base = ADMIN_BYTES + index * SET_BYTES;
            let (members, vector) = (layout.members(index), index as u16 + 1);
            shared.controller.set_vector(vector, members);
            let set = Set::new(shared.controller.dma(), layout, index, base, members.len());
            self.create_set(shared, layout, index, base, vector)?;
            let is_shared = members.len() > 1;
            let hold = if is_shared {
                Hold::Shared(Arc::new(Mutex::new(set)))
            } else {
                Hold::Own(Box::new(set))
            };
            self.sets.push(Some(hold));
        }
        self.layout = Some(layout);
        Ok(())
    }

    fn create_set(
        &mut self,
        shared: &Shared,
        layout: Layout,
        set: usize,
        base: usize,
        vector: u16,
    ) -> io::Result<()> {
        // The completion queue comes first: submission queues name one that has to be there.
        let cqid = layout.cqid(set);
        let (contiguous, interrupts) = (1, 1 << 1);
        let create = Sqe {
            opcode: admin::CREATE_CQ,
            data: [Bus::fixed(set::cq_offset(base)), 0],
            cdw10: u32::from(CQ_ENTRIES - 1) << 16 | u32::from(cqid),
            cdw11: u32::from(vector) << 16 | interrupts | contiguous,
            ..Sqe::default()
        };
        self.command(shared, "Create I/O Completion Queue", create)?;
        for (index, &class) in layout.classes().iter().enumerate() {
            let create = Sqe {
                opcode: admin::CREATE_SQ,
                data: [Bus::fixed(set::sq_offset(base, index)), 0],
                cdw10: u32::from(ENTRIES - 1) << 16 | u32::from(layout.sqid(set, index)),
                cdw11: u32::from(cqid) << 16 | qprio(class) << 1 | contiguous,
                ..Sqe::default()
            };
            self.command(shared, "Create I/O Submission Queue", create)?;
        }
        Ok(())
    }

    fn delete_queues(&mut self, shared: &Shared, layout: Layout) -> io::Result<()> {
        for set in 0..layout.sets() {
            // A completion queue can be deleted only after the submission queues that name it.
            for index in 0..layout.classes().len() {
                let cdw10 = layout.sqid(set, index).into();
                let delete = Sqe { opcode: admin::DELETE_SQ, cdw10, ..Sqe::default() };
                self.command(shared, "Delete I/O Submission Queue", delete)?;
            }
            let delete =
                Sqe { opcode: admin::DELETE_CQ, cdw10: layout.cqid(set).into(), ..Sqe::default() };
            self.command(shared, "Delete I/O Completion Queue", delete)?;
        }
        Ok(())
    }
}

/// Lets the controller work until something is so.
fn wait_until(shared: &Shared, what: &str, mut is_so: impl FnMut() -> bool) -> io::Result<()> {
    let start = Instant::now();
    while !is_so() {
        let mut wake = PortSet::EMPTY;
        shared.controller.poll_admin(Clock::default().now_ns(), &mut wake);
        shared.wake(wake);
        if start.elapsed() > PATIENCE {
            let text = format!("the controller has not {what} within {} s", PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// The driver's end of empty admin queues.
fn admin_queues(bus: &Bus) -> (SqTail, CqHead) {
    let at = |offset: usize, bytes: usize| bus.memory(Bus::fixed(offset), bytes);
    let entries = usize::from(ADMIN_ENTRIES);
    let (sq, cq) = (at(0, entries * SQE), at(PAGE as usize, entries * CQE));
    // SAFETY: the controller is disabled, so it does not use this memory, and the driver begins
    // anew.
    unsafe { cq.as_ptr().write_bytes(0, entries * CQE) };
    // SAFETY: the bus keeps the memory, and the holder of `Driver` is the only one to drive these
    // queues.
    unsafe {
        (
            SqTail::new(SqEntries::new(sq.cast(), ADMIN_ENTRIES)),
            CqHead::new(CqEntries::new(cq.cast(), ADMIN_ENTRIES)),
        )
    }
}
