//! The admin queue: a session's thread carries out its commands, one after the other, when the
//! guest rings its doorbell.
//!
//! **Queues.** A completion queue belongs to shard `number + id`, modulo the number of shards, and
//! its submission queues are there, too. If the guest has chosen weighted round robin, or if the
//! controller has the whole device, all queues are on one shard, so that one arbiter chooses among
//! their commands.
//!
//! **Aborts.** A command that was fetched runs to its end, so an Abort takes back only requests for
//! asynchronous events. The deletion of a submission queue takes back the commands that wait in the
//! scheduler; the reply comes when the device has returned the memory of the others.
//!
//! **Bounds.** A guest that fills its admin queue without end keeps its own session's thread busy.

use fairq_device::{Arbitration, Mechanism};

use crate::device::nvme::identify::{self, About, oncs};
use crate::device::nvme::queue::{CqTail, SqHead};
use crate::device::nvme::spec::{CQE, Cqe, NSID_ALL, PAGE, SQE, Sqe, Status, admin, feature, log};
use crate::front::guest_memory::{self, Outside};
use crate::front::vfio_user::controller_state::{
    AdminQueue, CqPlace, ENTRIES, EVENT_REQUESTS, HOST_BEHAVIOR, Session, SqPlace, VECTORS,
    VERSION, WARNING,
};
use crate::front::vfio_user::decode::{self, MDTS, NSID};
use crate::front::vfio_user::pci_config::VENDOR;
use crate::front::vfio_user::queue_group::{Fault, GuestRing, NewCq, NewGroup, NewSq, Which};
use crate::front::vfio_user::queue_groups::Message;

/// The most commands of a tenant that are fetched and not completed under weighted round robin. The
/// others wait in their queues, where the arbiter decides.
const WINDOW: usize = 32;
/// Aborts at a time (ACL + 1); each ends at once.
const ABORTS: u8 = 4;
/// Result of an Abort whose command goes on, or is unknown.
const NOT_ABORTED: u32 = 1;
/// CC.IOSQES and CC.IOCQES of entries of 64 and of 16 bytes.
const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// OACS: the doorbell buffer.
const DOORBELL_BUFFER: u16 = 1 << 8;
/// The notice that the namespace has changed: its bit in OAES and in the feature, and the event.
const NAMESPACE_CHANGED: u32 = 1 << 8;
const NAMESPACE_EVENT: u32 = (log::CHANGED_NAMESPACES as u32) << 16 | 2;
/// The logs that there are.
const LOGS: [u8; 6] =
    [log::SUPPORTED, log::ERROR, log::SMART, log::FIRMWARE, log::CHANGED_NAMESPACES, log::EFFECTS];
/// The end of an admin command.
enum Answer {
    Now(u32),
    /// When an event comes.
    Later,
}

impl Session {
    /// Carries out the admin commands that wait. True if there were any.
    pub(super) fn administer(&mut self) -> bool {
        let Some(mut queue) = self.admin.take() else { return false };
        let head = queue.sq.head();
        if let Err(fault) = self.carry_out(&mut queue) {
            self.fail(&fault);
        }
        let has_moved = queue.sq.head() != head;
        self.put_back(queue);
        has_moved
    }

    /// Puts the admin queue back, and interrupts the guest if it has completions.
    fn put_back(&mut self, mut queue: AdminQueue) {
        let has_posted = std::mem::take(&mut queue.has_posted);
        self.admin = Some(queue);
        if has_posted {
            self.interrupt(0);
        }
    }

    fn carry_out(&self, queue: &mut AdminQueue) -> Result<(), Fault> {
        let tail = self.bridge.tail(0);
        let new = queue.sq.see(tail).ok_or(Fault::Doorbell(Which::Submission(0), tail))?;
        queue.sq.held += new;
        self.see_head(queue)?;
        while queue.sq.held > 0 && !self.bridge.has_failed() {
            if queue.cq.reserve(1) == 0 {
                break;
            }
            queue.sq.held -= 1;
            let index = queue.sq.advance();
            let sqe = queue.sq.entries.read(&self.guest, index)?;
            let (result, status) = match self.execute(queue, &sqe) {
                Ok(Answer::Later) => {
                    queue.cq.release(1);
                    continue;
                }
                Ok(Answer::Now(result)) => (result, Status::SUCCESS),
                Err(status) => (0, status),
            };
            if !status.is_success() {
                self.bridge.log_error(0, sqe.cid, status, 0, sqe.nsid);
            }
            self.post(queue, sqe.cid, result, status)?;
        }
        self.notify(queue)
    }

    /// Takes in the completions that the guest has read.
    fn see_head(&self, queue: &mut AdminQueue) -> Result<(), Fault> {
        let head = self.bridge.head(0);
        match queue.cq.see(head) {
            true => Ok(()),
            false => Err(Fault::Doorbell(Which::Completion(0), head)),
        }
    }

    /// Posts a completion, for which there is a place.
    fn post(
        &self,
        queue: &mut AdminQueue,
        cid: u16,
        result: u32,
        status: Status,
    ) -> Result<(), Outside> {
        let cqe = Cqe { result, sq_head: queue.sq.head(), sqid: 0, cid, status };
        let place = queue.cq.advance();
        queue.cq.entries.write(&self.guest, place, cqe)?;
        queue.has_posted = true;
        Ok(())
    }

    /// The namespace has another size.
    pub(super) fn namespace_changed(&mut self) {
        let Some(mut queue) = self.admin.take() else { return };
        queue.has_changed = true;
        if let Err(fault) = self.notify(&mut queue) {
            self.fail(&fault);
        }
        self.put_back(queue);
    }

    /// Sends the notice that the namespace has changed, once until the guest reads the log.
    fn notify(&self, queue: &mut AdminQueue) -> Result<(), Fault> {
        let is_wanted = queue.async_events & NAMESPACE_CHANGED != 0;
        if !queue.has_changed || queue.is_notified || !is_wanted {
            return Ok(());
        }
        self.see_head(queue)?;
        if queue.event_requests.is_empty() || queue.cq.reserve(1) == 0 {
            return Ok(());
        }
        let cid = queue.event_requests.remove(0);
        queue.is_notified = true;
        Ok(self.post(queue, cid, NAMESPACE_EVENT, Status::SUCCESS)?)
    }

    fn execute(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<Answer, Status> {
        let (is_fused, is_sgl) = (sqe.flags & 3 != 0, sqe.flags >> 6 != 0);
        if is_fused || is_sgl {
            return Err(Status::INVALID_FIELD);
        }
        let done = |()| Answer::Now(0);
        match sqe.opcode {
            admin::IDENTIFY => self.identify(sqe).map(done),
            admin::CREATE_CQ => self.create_cq(queue, sqe).map(done),
            admin::CREATE_SQ => self.create_sq(queue, sqe).map(done),
            admin::DELETE_CQ => self.delete_cq(queue, sqe).map(done),
            admin::DELETE_SQ => self.delete_sq(queue, sqe).map(done),
            admin::SET_FEATURES => self.set_feature(queue, sqe).map(Answer::Now),
            admin::GET_FEATURES => self.get_feature(queue, sqe).map(Answer::Now),
            admin::GET_LOG_PAGE => self.get_log(queue, sqe).map(done),
            admin::ABORT => self.abort(queue, sqe).map(Answer::Now),
            admin::KEEP_ALIVE => Ok(Answer::Now(0)),
            admin::DOORBELL_BUFFER_CONFIG => self.set_shadow(queue, sqe).map(done),
            admin::ASYNC_EVENT_REQUEST if queue.event_requests.len() == EVENT_REQUESTS => {
                Err(Status::AER_LIMIT)
            }
            admin::ASYNC_EVENT_REQUEST => {
                queue.event_requests.push(sqe.cid);
                Ok(Answer::Later)
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn identify(&self, sqe: &Sqe) -> Result<(), Status> {
        let (structure, command_set) = (sqe.cdw10 & 0xff, sqe.cdw11 >> 24);
        let is_it = sqe.nsid == NSID;
        let nothing = || vec![0; PAGE as usize];
        let bytes = match structure {
            // Only controllers that create namespaces have data that all namespaces share.
            0x00 | 0x05 if !is_it => return Err(Status::INVALID_NAMESPACE),
            0x00 => {
                let mut data = identify::namespace(*self.bridge.size(), true);
                identify::prefer(&mut data, self.block, self.preferred, self.volume.read_only);
                data
            }
            0x01 => {
                let name = format!("nqn.2026-01.org.fairq:{}", self.bridge.name());
                // Names have any characters, and serial numbers those of ASCII.
                let serial: String = self
                    .bridge
                    .name()
                    .chars()
                    .map(|one| if one.is_ascii_graphic() { one } else { '?' })
                    .collect();
                identify::controller(&about(&serial, &name))
            }
            0x02 if sqe.nsid >= NSID_ALL - 1 => return Err(Status::INVALID_NAMESPACE),
            0x02 => identify::active_namespaces(sqe.nsid, &vec![1].into()),
            0x03 if !is_it => return Err(Status::INVALID_NAMESPACE),
            0x03 => identify::descriptors(identify::named(self.bridge.name())),
            // The parts of the NVM command set: no limits beside MDTS, no formats with metadata.
            0x05 | 0x06 if command_set == 0 => nothing(),
            _ => return Err(Status::INVALID_FIELD),
        };
        self.give(sqe, &bytes)
    }

    /// Writes bytes to a command's data.
    fn give(&self, sqe: &Sqe, bytes: &[u8]) -> Result<(), Status> {
        let mut memory = Vec::new();
        decode::translate(sqe, bytes.len() as u32, &self.guest, &mut memory)?;
        // SAFETY: the memory was translated with the present generation, which is mapped.
        unsafe { guest_memory::write(&memory, bytes) };
        Ok(())
    }

    // Queues.

    /// The identifier and the ring of a queue to be created.
    fn new_queue(
        &self,
        queue: &AdminQueue,
        sqe: &Sqe,
        entry: usize,
    ) -> Result<(u16, GuestRing), Status> {
        let (id, size) = (sqe.cdw10 as u16, sqe.cdw10 >> 16);
        if id == 0 || id > queue.granted {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let are_entries = self.registers.cc & 0xff << 16 == ENTRY_SIZES;
        if size == 0 || size >= u32::from(ENTRIES) || !are_entries {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let is_contiguous = sqe.cdw11 & 1 != 0;
        if !is_contiguous {
            return Err(Status::INVALID_FIELD);
        }
        let (address, size) = (sqe.data[0], size as u16 + 1);
        if !address.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET);
        }
        let bytes = u32::from(size) * entry as u32;
        let is_there = self.guest.translate(address, bytes, &mut Vec::new());
        is_there.map_err(|_| Status::DATA_TRANSFER)?;
        Ok((id, GuestRing { address, size }))
    }

    fn create_cq(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let (id, ring) = self.new_queue(queue, sqe, CQE)?;
        let (vector, interrupts) = ((sqe.cdw11 >> 16) as u16, sqe.cdw11 & 2 != 0);
        if queue.cqs[usize::from(id)].is_some() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if vector >= VECTORS {
            return Err(Status::INVALID_VECTOR);
        }
        self.bridge.ring(2 * usize::from(id) + 1, 0);
        self.add_cq(queue, id, CqTail::new(ring, interrupts.then_some(vector)));
        Ok(())
    }

    /// Has a completion queue served.
    pub(super) fn add_cq(&self, queue: &mut AdminQueue, id: u16, ring: CqTail<GuestRing>) {
        let shard = match (queue.is_weighted, self.whole) {
            (false, None) => (self.home() + usize::from(id)) % self.shards,
            _ => self.home(),
        };
        let window = match (queue.is_weighted, self.whole) {
            (_, Some(whole)) => whole.window.into(),
            (true, None) => WINDOW,
            (false, None) => usize::MAX,
        };
        let Some(place) = queue.cqs.get_mut(usize::from(id)) else { return };
        *place = Some(CqPlace { shard, users: 0, size: ring.entries.size });
        queue.has_queues = true;
        // The size does not change between here and the message.
        let size = self.bridge.size();
        let mut volume = self.volume.clone();
        volume.size = *size;
        let group = NewGroup {
            session: self.number,
            shard,
            bridge: self.bridge.clone(),
            volume,
            guest: self.guest.clone(),
            shadow: queue.shadow,
            mechanism: if queue.is_weighted { Mechanism::Weighted } else { Mechanism::RoundRobin },
            window,
            arbitration: Arbitration::from_cdw11(queue.arbitration),
        };
        let (reply, done) = std::sync::mpsc::channel();
        let cq = NewCq { id, ring };
        (self.send)(shard, Message::AddCq { group: Box::new(group), cq, reply });
        drop(size);
        let _ = done.recv();
    }

    fn create_sq(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let (id, ring) = self.new_queue(queue, sqe, SQE)?;
        let cqid = (sqe.cdw11 >> 16) as u16;
        if queue.sqs[usize::from(id)].is_some() || cqid == 0 || cqid > queue.granted {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let cq = queue.cqs[usize::from(cqid)].as_mut().ok_or(Status::CQ_INVALID)?;
        let place = self.attachment.take(cq.shard).map_err(|error| {
            tracing::warn!(disk = self.bridge.name(), queue = id, %error, "no queue");
            Status::INTERNAL
        })?;
        self.bridge.ring(2 * usize::from(id), 0);
        let (ring, qprio, begun) = (SqHead::new(ring, cqid), sqe.cdw11 >> 1 & 3, Vec::new());
        self.add_sq(queue, NewSq { id, ring, qprio, begun, place });
        Ok(())
    }

    /// Has a submission queue served, whose completion queue is.
    pub(super) fn add_sq(&self, queue: &mut AdminQueue, sq: NewSq) {
        let (id, cqid, size) = (usize::from(sq.id), sq.ring.cqid, sq.ring.entries.size);
        let cq = queue.cqs.get_mut(usize::from(cqid)).and_then(Option::as_mut);
        let (Some(cq), Some(place)) = (cq, queue.sqs.get_mut(id)) else { return };
        cq.users += 1;
        *place = Some(SqPlace { cqid, size });
        let (session, shard) = (self.number, cq.shard);
        self.on(shard, |reply| Message::AddSq { session, sq: Box::new(sq), reply });
    }

    fn delete_sq(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let id = sqe.cdw10 as u16;
        let cqid = queue.sqs.get_mut(usize::from(id)).and_then(Option::take);
        let SqPlace { cqid, .. } = cqid.ok_or(Status::INVALID_QUEUE_ID)?;
        let session = self.number;
        if let Some(cq) = queue.cqs[usize::from(cqid)].as_mut() {
            cq.users -= 1;
            self.on(cq.shard, |reply| Message::DeleteSq { session, id, reply });
        }
        Ok(())
    }

    fn delete_cq(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let id = sqe.cdw10 as u16;
        let place = queue.cqs.get_mut(usize::from(id)).ok_or(Status::INVALID_QUEUE_ID)?;
        let cq = place.ok_or(Status::INVALID_QUEUE_ID)?;
        if cq.users > 0 {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        *place = None;
        let session = self.number;
        self.on(cq.shard, |reply| Message::DeleteCq { session, id, reply });
        Ok(())
    }

    /// Sends a shard a message, and waits until it has carried it out.
    fn on(&self, shard: usize, message: impl FnOnce(std::sync::mpsc::Sender<()>) -> Message) {
        let (reply, done) = std::sync::mpsc::channel();
        (self.send)(shard, message(reply));
        // Nothing is sent: the sender is dropped.
        let _ = done.recv();
    }

    fn set_shadow(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let addresses = sqe.data;
        if !addresses.iter().all(|address| address.is_multiple_of(PAGE)) {
            return Err(Status::PRP_OFFSET);
        }
        let is_there = addresses.iter().all(|&address| self.guest.range(address, PAGE).is_ok());
        if !is_there {
            return Err(Status::INVALID_FIELD);
        }
        queue.shadow = Some(addresses);
        let session = self.number;
        self.on_all(|reply| Message::Shadow { session, addresses, reply });
        Ok(())
    }

    fn abort(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<u32, Status> {
        let (sqid, cid) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16);
        let place = queue.event_requests.iter().position(|&request| request == cid);
        match place.filter(|_| sqid == 0) {
            Some(place) if queue.cq.reserve(1) > 0 => {
                queue.event_requests.remove(place);
                let aborted = self.post(queue, cid, 0, Status::ABORT_REQUESTED);
                aborted.map(|()| 0).map_err(|_| Status::INTERNAL)
            }
            _ => Ok(NOT_ABORTED),
        }
    }

    // Features.

    fn set_feature(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<u32, Status> {
        let (wants_saving, value) = (sqe.cdw10 >> 31 != 0, sqe.cdw11);
        if wants_saving {
            return Err(Status::NOT_SAVEABLE);
        }
        match sqe.cdw10 as u8 {
            feature::ARBITRATION => {
                let (session, arbitration) = (self.number, Arbitration::from_cdw11(value));
                queue.arbitration = arbitration.cdw11();
                self.on_all(|reply| Message::Arbitration { session, arbitration, reply });
            }
            // There is one power state.
            feature::POWER_MANAGEMENT if value & 0x1f != 0 => return Err(Status::INVALID_FIELD),
            feature::POWER_MANAGEMENT => {}
            feature::TEMPERATURE_THRESHOLD => {
                // Only the composite temperature has thresholds: over, and under.
                let (sensor, kind) = (value >> 16 & 0xf, value >> 20 & 3);
                let threshold = queue.thresholds.get_mut(kind as usize);
                let threshold = threshold.filter(|_| sensor == 0 || sensor == 0xf);
                *threshold.ok_or(Status::INVALID_FIELD)? = value as u16;
            }
            feature::ERROR_RECOVERY if value >> 16 != 0 => return Err(Status::INVALID_FIELD),
            feature::ERROR_RECOVERY => queue.error_recovery = value,
            feature::VOLATILE_WRITE_CACHE => self.bridge.set_cache(value & 1 != 0),
            feature::NUMBER_OF_QUEUES if queue.has_queues => return Err(Status::COMMAND_SEQUENCE),
            feature::NUMBER_OF_QUEUES => {
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                // Submission and completion queues come in pairs.
                queue.granted = (submission.max(completion) + 1).min(queue.most.into()) as u16;
                return Ok(queue.number_of_queues());
            }
            feature::INTERRUPT_COALESCING => queue.coalescing = value & 0xffff,
            feature::INTERRUPT_VECTOR => {
                let (vector, is_uncoalesced) = (value as u16, value >> 16 & 1 != 0);
                if vector >= VECTORS {
                    return Err(Status::INVALID_FIELD);
                }
                queue.uncoalesced.retain(|&other| other != vector);
                queue.uncoalesced.extend(is_uncoalesced.then_some(vector));
            }
            feature::WRITE_ATOMICITY => queue.atomicity = value & 1,
            feature::ASYNC_EVENTS => queue.async_events = value,
            // No timer runs (KAS = 0): a client that goes ends its session.
            feature::KEEP_ALIVE if value != 0 => return Err(Status::INVALID_FIELD),
            feature::KEEP_ALIVE => {}
            feature::HOST_BEHAVIOR => {
                let mut memory = Vec::new();
                let length = queue.host_behavior.len() as u32;
                decode::translate(sqe, length, &self.guest, &mut memory)?;
                // SAFETY: the memory was translated with the present generation, which is mapped.
                unsafe { guest_memory::read(&memory, 0, &mut queue.host_behavior) };
            }
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(0)
    }

    fn get_feature(&self, queue: &AdminQueue, sqe: &Sqe) -> Result<u32, Status> {
        let (id, select, argument) = (sqe.cdw10 as u8, sqe.cdw10 >> 8 & 7, sqe.cdw11);
        let (current, default) = match id {
            feature::ARBITRATION => (queue.arbitration, Arbitration::RESET.cdw11()),
            feature::POWER_MANAGEMENT => (0, 0),
            feature::TEMPERATURE_THRESHOLD => {
                let kind = (argument >> 20 & 3) as usize;
                let value = queue.thresholds.get(kind).filter(|_| argument >> 16 & 0xf == 0);
                let value = *value.ok_or(Status::INVALID_FIELD)?;
                (value.into(), if kind == 0 { WARNING.into() } else { 0 })
            }
            feature::ERROR_RECOVERY => (queue.error_recovery, 0),
            feature::VOLATILE_WRITE_CACHE => (u32::from(self.bridge.caches_writes()), 1),
            feature::NUMBER_OF_QUEUES => {
                let most = u32::from(queue.most) - 1;
                (queue.number_of_queues(), most << 16 | most)
            }
            feature::INTERRUPT_COALESCING => (queue.coalescing, 0),
            feature::INTERRUPT_VECTOR => {
                let vector = argument as u16;
                if vector >= VECTORS {
                    return Err(Status::INVALID_FIELD);
                }
                let is_uncoalesced = queue.uncoalesced.contains(&vector);
                (u32::from(is_uncoalesced) << 16 | u32::from(vector), vector.into())
            }
            feature::WRITE_ATOMICITY => (queue.atomicity, 0),
            feature::ASYNC_EVENTS => (queue.async_events, 0),
            feature::KEEP_ALIVE => (0, 0),
            feature::HOST_BEHAVIOR => {
                if select == 0 {
                    self.give(sqe, &queue.host_behavior)?;
                } else if select < 3 {
                    self.give(sqe, &[0; HOST_BEHAVIOR])?;
                }
                (0, 0)
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        let is_changeable = 1 << 2;
        match select {
            0 => Ok(current),
            // Nothing is saved, so the saved value is the default.
            1 | 2 => Ok(default),
            3 => Ok(is_changeable),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    // Logs.

    fn get_log(&self, queue: &mut AdminQueue, sqe: &Sqe) -> Result<(), Status> {
        let (id, retains_event) = (sqe.cdw10 as u8, sqe.cdw10 >> 15 & 1 != 0);
        let page = match id {
            log::SUPPORTED => identify::supported_logs(&LOGS),
            log::ERROR => identify::error_log(self.bridge.errors().iter()),
            log::SMART if sqe.nsid != 0 && sqe.nsid != NSID_ALL => {
                return Err(Status::INVALID_FIELD);
            }
            log::SMART => identify::smart(&self.bridge.counters()),
            log::FIRMWARE => identify::firmware(),
            log::CHANGED_NAMESPACES => identify::changed_namespaces(queue.has_changed),
            log::EFFECTS => identify::effects(),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xffff) << 16;
        let offset = u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32;
        if !offset.is_multiple_of(4) || offset > page.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        let rest = &page[offset as usize..];
        let length = ((dwords + 1) * 4).min(rest.len() as u64) as usize;
        self.give(sqe, &rest[..length])?;
        if id == log::CHANGED_NAMESPACES && !retains_event {
            (queue.has_changed, queue.is_notified) = (false, false);
        }
        Ok(())
    }
}

fn about<'a>(serial: &'a str, name: &'a str) -> About<'a> {
    About {
        serial,
        model: "fairq",
        name,
        version: VERSION,
        mdts: MDTS,
        entries_max: ENTRIES,
        namespaces: 1,
        aborts: ABORTS,
        event_requests: EVENT_REQUESTS as u8,
        async_events: NAMESPACE_CHANGED,
        admin_commands: DOORBELL_BUFFER,
        commands: oncs::COMPARE | oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES | oncs::VERIFY,
        has_cache: true,
        vendor: VENDOR,
        has_effects_log: true,
    }
}

impl AdminQueue {
    fn number_of_queues(&self) -> u32 {
        let count = u32::from(self.granted) - 1;
        count << 16 | count
    }
}
