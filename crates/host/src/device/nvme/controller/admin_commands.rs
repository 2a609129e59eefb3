//! Admin commands.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use fairq_core::{Op, PortSet};
use fairq_device::{Arbitration, QueueIndex};

use super::{
    ABORTS, Controller, ENTRIES_MAX, EVENT_REQUESTS, Options, QUEUES, State, VECTORS, VERSION,
    class_of_qprio,
};
use crate::device::Command;
use crate::device::nvme::data::{self, Transfer};
use crate::device::nvme::dma::{Dma, queue_memory};
use crate::device::nvme::identify::{self, About, ERRORS, oncs};
use crate::device::nvme::queue::{CqEntries, CqTail, SqEntries, SqHead};
use crate::device::nvme::spec::{
    CQE, LBA_SHIFT, NSID_ALL, PAGE, SQE, Sqe, Status, admin, feature, log,
};

/// MDTS: 2^13 pages, 32 MiB, which is the most that a read or write can name anyway.
const MDTS: u8 = 13;
/// The logs that there are.
const LOGS: [u8; 4] = [log::SUPPORTED, log::ERROR, log::SMART, log::FIRMWARE];

/// An Abort that waits for its command's turn.
pub(super) struct Abort {
    pub(super) sqid: u16,
    /// The command's place in its queue.
    pub(super) index: u16,
    /// Of the Abort itself.
    pub(super) cid: u16,
}

/// The state that admin commands have set, and the logs that they return.
pub(super) struct Admin {
    /// Commands to fetch.
    pub(super) waiting: u32,
    /// I/O queues of each kind that may be created, and whether any has been.
    granted: u16,
    has_queues: bool,
    /// CDW11 of the features.
    arbitration: u32,
    async_events: u32,
    /// Asynchronous event requests that nothing has happened for.
    pub(super) event_requests: Vec<u16>,
    /// Aborts whose commands wait for their turn.
    pub(super) aborts: Vec<Abort>,
    /// For each submission queue that is being deleted, the command that does.
    deletions: [Option<u16>; QUEUES],
    errors: VecDeque<identify::Error>,
    pub(super) counters: identify::Counters,
}

/// The outcome of an admin command.
pub(super) enum Answer {
    Now(u32),
    /// When something else is done.
    Later,
}

impl Admin {
    pub(super) fn new(options: &Options) -> Admin {
        Admin {
            waiting: 0,
            granted: options.queues,
            has_queues: false,
            arbitration: Arbitration::RESET.cdw11(),
            async_events: 0,
            event_requests: Vec::with_capacity(EVENT_REQUESTS),
            aborts: Vec::with_capacity(ABORTS),
            deletions: [None; QUEUES],
            errors: VecDeque::with_capacity(ERRORS),
            counters: identify::Counters::default(),
        }
    }

    #[inline]
    pub(super) fn is_deleting(&self, sqid: u16) -> bool {
        self.deletions[usize::from(sqid)].is_some()
    }

    /// Counts an I/O command that has ended.
    #[inline]
    pub(super) fn count(&mut self, sqid: u16, cid: u16, status: Status, command: &Command) {
        match command.op {
            Op::Read if status.is_success() => {
                self.counters.reads += 1;
                self.counters.bytes_read += u64::from(command.length);
            }
            Op::Write if status.is_success() => {
                self.counters.writes += 1;
                self.counters.bytes_written += u64::from(command.length);
            }
            _ if status.is_success() => {}
            _ => self.log_error(
                sqid,
                cid,
                status,
                command.offset >> LBA_SHIFT,
                u32::from(command.file) + 1,
            ),
        }
    }

    #[cold]
    fn log_error(&mut self, sqid: u16, cid: u16, status: Status, lba: u64, nsid: u32) {
        self.counters.errors += 1;
        self.errors.truncate(ERRORS - 1);
        let count = self.counters.errors;
        self.errors.push_front(identify::Error { count, sqid, cid, status, lba, nsid });
    }
}

impl State {
    /// Carries out the admin commands that wait.
    pub(super) fn administer<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        _now_ns: u64,
    ) {
        while self.admin.waiting > 0 {
            let Some(sq) = &mut self.sqs[0] else { return };
            self.admin.waiting -= 1;
            let sqe = sq.fetch();
            let (result, status) = match self.execute(controller, wake, &sqe) {
                Ok(Answer::Later) => continue,
                Ok(Answer::Now(result)) => (result, Status::SUCCESS),
                Err(status) => (0, status),
            };
            if !status.is_success() {
                self.admin.log_error(0, sqe.cid, status, 0, sqe.nsid);
            }
            self.post(controller, wake, 0, sqe.cid, result, status);
        }
    }

    fn execute<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        sqe: &Sqe,
    ) -> Result<Answer, Status> {
        let (is_fused, is_sgl) = (sqe.flags & 3 != 0, sqe.flags >> 6 != 0);
        if is_fused || is_sgl {
            return Err(Status::INVALID_FIELD);
        }
        let done = |()| Answer::Now(0);
        match sqe.opcode {
            admin::IDENTIFY => self.identify(controller, sqe).map(done),
            admin::CREATE_CQ => self.create_cq(controller, sqe).map(done),
            admin::CREATE_SQ => self.create_sq(controller, sqe).map(done),
            admin::DELETE_CQ => self.delete_cq(sqe).map(done),
            admin::DELETE_SQ => self.begin_delete_sq(controller, wake, sqe),
            admin::SET_FEATURES => self.set_features(sqe).map(Answer::Now),
            admin::GET_FEATURES => self.get_features(sqe).map(Answer::Now),
            admin::GET_LOG_PAGE => self.get_log_page(controller, sqe).map(done),
            admin::ABORT => self.abort(controller, wake, sqe),
            admin::ASYNC_EVENT_REQUEST if self.admin.event_requests.len() == EVENT_REQUESTS => {
                Err(Status::AER_LIMIT)
            }
            admin::ASYNC_EVENT_REQUEST => {
                self.admin.event_requests.push(sqe.cid);
                Ok(Answer::Later)
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn identify<M: Dma>(&self, controller: &Controller<M>, sqe: &Sqe) -> Result<(), Status> {
        let size = || {
            let index = sqe.nsid.wrapping_sub(1) as usize;
            self.options.namespaces.size(index)
        };
        let bytes = match sqe.cdw10 & 0xff {
            0x00 if sqe.nsid == NSID_ALL => identify::namespace(0, self.options.discard_zeroes),
            0x00 => {
                let size = size().ok_or(Status::INVALID_NAMESPACE)?;
                identify::namespace(size, self.options.discard_zeroes)
            }
            0x01 => identify::controller(&self.about()),
            0x02 if sqe.nsid >= NSID_ALL - 1 => return Err(Status::INVALID_NAMESPACE),
            0x02 => identify::active_namespaces(sqe.nsid, &self.options.namespaces),
            0x03 => {
                size().ok_or(Status::INVALID_NAMESPACE)?;
                identify::descriptors(identify::numbered(sqe.nsid))
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        send(&controller.dma, sqe, &bytes)
    }

    fn about(&self) -> About<'static> {
        About {
            serial: "FAIRQ0001",
            model: "fairq software NVMe controller",
            name: "nqn.2026-01.org.fairq:soft",
            version: VERSION,
            mdts: MDTS,
            entries_max: ENTRIES_MAX,
            namespaces: self.options.namespaces.count() as u32,
            aborts: ABORTS as u8,
            event_requests: EVENT_REQUESTS as u8,
            async_events: 0,
            admin_commands: 0,
            commands: oncs::WRITE_ZEROES | oncs::DATASET_MANAGEMENT,
            has_cache: self.options.volatile_cache,
            vendor: 0,
            has_effects_log: false,
        }
    }

    fn create_cq<M: Dma>(&mut self, controller: &Controller<M>, sqe: &Sqe) -> Result<(), Status> {
        let (id, entries) = self.new_queue(sqe, |state, id| state.cqs[id].is_some())?;
        let (vector, interrupts) = ((sqe.cdw11 >> 16) as u16, sqe.cdw11 & 2 != 0);
        if vector >= VECTORS {
            return Err(Status::INVALID_VECTOR);
        }
        let base = queue_memory(&controller.dma, sqe.data[0], u32::from(entries) * CQE as u32);
        let base = base.ok_or(Status::DATA_TRANSFER)?;
        // SAFETY: the memory was resolved for these entries and stays valid until the queue is
        // deleted.
        let cq = unsafe { CqEntries::new(base, entries) };
        controller.doorbells[id].cq_head.store(0, Ordering::Relaxed);
        self.cqs[id] = Some(CqTail::new(cq, interrupts.then_some(vector)));
        self.admin.has_queues = true;
        Ok(())
    }

    fn create_sq<M: Dma>(&mut self, controller: &Controller<M>, sqe: &Sqe) -> Result<(), Status> {
        let (id, entries) = self.new_queue(sqe, |state, id| state.sqs[id].is_some())?;
        let cqid = (sqe.cdw11 >> 16) as u16;
        if cqid == 0 || cqid > self.admin.granted {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if self.cqs[usize::from(cqid)].is_none() {
            return Err(Status::CQ_INVALID);
        }
        let base = queue_memory(&controller.dma, sqe.data[0], u32::from(entries) * SQE as u32);
        let base = base.ok_or(Status::DATA_TRANSFER)?;
        // SAFETY: the memory was resolved for these entries and stays valid until the queue is
        // deleted.
        let sq = unsafe { SqEntries::new(base, entries) };
        controller.doorbells[id].sq_tail.store(0, Ordering::Relaxed);
        self.sqs[id] = Some(SqHead::new(sq, cqid));
        self.arbiter.add(QueueIndex(id as u16), class_of_qprio(sqe.cdw11 >> 1));
        Ok(())
    }

    /// The identifier and the entries of a queue to be created.
    fn new_queue(
        &self,
        sqe: &Sqe,
        exists: impl Fn(&State, usize) -> bool,
    ) -> Result<(usize, u16), Status> {
        let (id, size) = (sqe.cdw10 as u16, sqe.cdw10 >> 16);
        if id == 0 || id > self.admin.granted || exists(self, usize::from(id)) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if size == 0 || size >= u32::from(ENTRIES_MAX) {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let is_contiguous = sqe.cdw11 & 1 != 0;
        if !is_contiguous {
            return Err(Status::INVALID_FIELD);
        }
        if !sqe.data[0].is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET);
        }
        Ok((usize::from(id), size as u16 + 1))
    }

    fn delete_cq(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let id = usize::from(sqe.cdw10 as u16);
        if id == 0 || id >= QUEUES || self.cqs[id].is_none() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if self.sqs.iter().flatten().any(|sq| usize::from(sq.cqid) == id) {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        self.cqs[id] = None;
        Ok(())
    }

    /// Deletes a submission queue, when what has been fetched of it is done. The rest is never
    /// fetched.
    fn begin_delete_sq<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        sqe: &Sqe,
    ) -> Result<Answer, Status> {
        let id = sqe.cdw10 as u16;
        let index = usize::from(id);
        if id == 0 || index >= QUEUES || self.admin.is_deleting(id) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let Some(sq) = &mut self.sqs[index] else { return Err(Status::INVALID_QUEUE_ID) };
        let dropped = self.arbiter.remove(QueueIndex(id));
        if let Some(cq) = &mut self.cqs[usize::from(sq.cqid)] {
            cq.release(dropped);
        }
        sq.held = 0;
        let is_busy = sq.in_flight > 0;
        self.end_aborts(controller, wake, id);
        if is_busy {
            self.admin.deletions[index] = Some(sqe.cid);
            return Ok(Answer::Later);
        }
        self.sqs[index] = None;
        controller.doorbells[index].sq_tail.store(0, Ordering::Relaxed);
        Ok(Answer::Now(0))
    }

    /// The last command of a submission queue that is being deleted is done.
    pub(super) fn delete_sq<M: Dma>(
        &mut self,
        controller: &Controller<M>,
        wake: &mut PortSet,
        id: u16,
    ) {
        let index = usize::from(id);
        self.sqs[index] = None;
        controller.doorbells[index].sq_tail.store(0, Ordering::Relaxed);
        if let Some(cid) = self.admin.deletions[index].take() {
            self.post(controller, wake, 0, cid, 0, Status::SUCCESS);
        }
    }

    fn set_features(&mut self, sqe: &Sqe) -> Result<u32, Status> {
        let wants_saving = sqe.cdw10 >> 31 != 0;
        if wants_saving {
            return Err(Status::NOT_SAVEABLE);
        }
        match sqe.cdw10 as u8 {
            feature::ARBITRATION => {
                let arbitration = Arbitration::from_cdw11(sqe.cdw11);
                self.admin.arbitration = arbitration.cdw11();
                self.arbiter.set(arbitration);
                Ok(0)
            }
            feature::NUMBER_OF_QUEUES if self.admin.has_queues => Err(Status::COMMAND_SEQUENCE),
            feature::NUMBER_OF_QUEUES => {
                let (submission, completion) = (sqe.cdw11 & 0xffff, sqe.cdw11 >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                // Submission and completion queues come in pairs: the larger number is granted of
                // both, at most what the controller has.
                let wanted = submission.max(completion) + 1;
                self.admin.granted = wanted.min(self.options.queues.into()) as u16;
                Ok(self.number_of_queues())
            }
            // The controller either never caches writes or always does, so the feature cannot be
            // switched.
            feature::VOLATILE_WRITE_CACHE if !self.options.volatile_cache => {
                Err(Status::INVALID_FIELD)
            }
            feature::VOLATILE_WRITE_CACHE if sqe.cdw11 & 1 == 0 => Err(Status::INVALID_FIELD),
            feature::VOLATILE_WRITE_CACHE => Ok(0),
            feature::ASYNC_EVENTS => {
                self.admin.async_events = sqe.cdw11;
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn get_features(&self, sqe: &Sqe) -> Result<u32, Status> {
        let is_current = sqe.cdw10 >> 8 & 7 == 0;
        match sqe.cdw10 as u8 {
            _ if !is_current => Err(Status::INVALID_FIELD),
            feature::ARBITRATION => Ok(self.admin.arbitration),
            feature::NUMBER_OF_QUEUES => Ok(self.number_of_queues()),
            feature::VOLATILE_WRITE_CACHE if self.options.volatile_cache => Ok(1),
            feature::ASYNC_EVENTS => Ok(self.admin.async_events),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn number_of_queues(&self) -> u32 {
        let count = u32::from(self.admin.granted) - 1;
        count << 16 | count
    }

    fn get_log_page<M: Dma>(&self, controller: &Controller<M>, sqe: &Sqe) -> Result<(), Status> {
        let page = match sqe.cdw10 as u8 {
            log::SUPPORTED => identify::supported_logs(&LOGS),
            log::ERROR => identify::error_log(self.admin.errors.iter()),
            log::SMART if sqe.nsid != 0 && sqe.nsid != NSID_ALL => {
                return Err(Status::INVALID_FIELD);
            }
            log::SMART => identify::smart(&self.admin.counters),
            log::FIRMWARE => identify::firmware(),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xffff) << 16;
        let offset = u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32;
        if !offset.is_multiple_of(4) || offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        let rest = &page[offset as usize..];
        let length = ((dwords + 1) * 4).min(rest.len() as u64) as usize;
        send(&controller.dma, sqe, &rest[..length])
    }
}

/// Writes bytes to a command's data.
fn send(dma: &impl Dma, sqe: &Sqe, bytes: &[u8]) -> Result<(), Status> {
    let mut transfer = Transfer::new(sqe, bytes.len() as u32, data::ENTRIES_MAX)?;
    let mut rest = bytes;
    while let Some(piece) = transfer.next(dma) {
        let memory = piece?;
        let (now, later) = rest.split_at(memory.length as usize);
        // SAFETY: the memory was resolved for this length, and the bytes are our own.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), memory.address, now.len()) };
        rest = later;
    }
    Ok(())
}
