//! One guest: a thread that handles the messages of the guest's monitor, and starts and stops the
//! guest's vrings on the shards.
//!
//! **Negotiation.** The monitor sets features, memory and vrings in any order. A vring is started
//! as soon as it has a size, rings and an eventfd for kicks, and is enabled. The queue with index i
//! runs on shard `number + i`, modulo the number of shards. The monitor may disconnect at any time;
//! [`Message::Close`] then ends the vrings, and the session ends when the device has none of their
//! requests.
//!
//! **Features.** Migration needs a log of the pages that the device writes (`LOG_ALL`). The feature
//! is not offered: data go from the device to the guest's memory without passing through this
//! server's code, and the log would need an entry for every write. A monitor that sets the feature
//! is refused.
//!
//! **Failure.** If a guest violates the rules of its virtqueues, its device fails ([`Link`]): its
//! vrings stop, the status has `NEEDS_RESET`, and the monitor is notified through the vring's error
//! eventfd and the back channel. After a reset the vrings may be started again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use thiserror::Error;
use vhost::vhost_user::message::{
    FrontendReq, VhostUserConfig, VhostUserInflight, VhostUserMemory, VhostUserMemoryRegion,
    VhostUserProtocolFeatures as Protocol, VhostUserSingleMemoryRegion, VhostUserU64,
    VhostUserVirtioFeatures, VhostUserVringAddr, VhostUserVringState,
};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::ByteValued;

use crate::front::attach::{Attachment, Exhausted};
use crate::front::guest_calls::takes_calls;
use crate::front::guest_memory::{Guest, MapError, Plan, REGIONS};
use crate::front::socket::is_eventfd;
use crate::front::vhost::blk::{self, Shape};
use crate::front::vhost::inflight::{self, Area};
use crate::front::vhost::left::{LeftSession, LeftVring};
use crate::front::vhost::link::Link;
use crate::front::vhost::message::{self as wire, Message as Request, MessageError};
use crate::front::vhost::queue::{Addresses, Fault, Layout, Queue, SIZE};
use crate::front::vhost::sessions::{QUEUES, Send};
use crate::front::vhost::vring::{Key, Start};
use crate::front::vhost::vrings::Message;
use crate::shard::volume::Volume;

const PACKED: u64 = 1 << VIRTIO_F_RING_PACKED;
const EVENT_INDEX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
const PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
const LOG_ALL: u64 = VhostUserVirtioFeatures::LOG_ALL.bits();
const FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | PACKED | 1 << VIRTIO_RING_F_INDIRECT_DESC | EVENT_INDEX | PROTOCOL;

/// The protocol features that the server offers.
fn protocol() -> Protocol {
    Protocol::MQ
        | Protocol::REPLY_ACK
        | Protocol::BACKEND_REQ
        | Protocol::CONFIG
        | Protocol::INFLIGHT_SHMFD
        | Protocol::RESET_DEVICE
        | Protocol::CONFIGURE_MEM_SLOTS
        | Protocol::STATUS
}

/// The reason why a request of a monitor fails.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Memory(#[from] MapError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("features {0:#x} are not offered")]
    Features(u64),
    #[error("live migration is not supported: this server does not log the pages that it writes")]
    Log,
    #[error("there is no queue {0}")]
    Queue(u64),
    #[error("queue {0} is running")]
    Running(usize),
    #[error("the file for notifications is not an eventfd (or a socket for calls), or is missing")]
    NoEventfd,
    #[error("the in-flight area: {0}")]
    Area(io::Error),
    #[error("the in-flight area has no region for queue {0}")]
    NoPlace(usize),
    #[error("the guest cannot write to the configuration at {0}")]
    Config(u32),
    #[error("{0:?} is not supported")]
    Unsupported(FrontendReq),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("the server is shutting down")]
    Ending,
}

impl From<RecvError> for Refusal {
    fn from(_: RecvError) -> Refusal {
        Refusal::Ending
    }
}

/// The properties of a vring that the monitor has set.
#[derive(Default)]
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) base: u32,
    pub(super) addresses: Option<Addresses>,
    pub(super) kick: Option<OwnedFd>,
    pub(super) call: Option<OwnedFd>,
    pub(super) error: Option<OwnedFd>,
    pub(super) is_enabled: bool,
    pub(super) is_started: bool,
    /// Whether it was running under the last program. Its requests are then executed again.
    pub(super) is_left: bool,
}

pub(super) struct Session {
    pub(super) number: u32,
    pub(super) stream: UnixStream,
    pub(super) link: Arc<Link>,
    pub(super) volume: Volume,
    pub(super) block: u32,
    pub(super) preferred: u32,
    pub(super) shards: usize,
    pub(super) send: Send,
    pub(super) attachment: Arc<Attachment>,
    pub(super) features: u64,
    pub(super) protocol: u64,
    pub(super) status: u8,
    pub(super) guest: Arc<Guest>,
    /// The file of the in-flight area and its shape; it is mapped when the first vring starts.
    pub(super) inflight: Option<(File, VhostUserInflight)>,
    pub(super) area: Option<Arc<Area>>,
    /// Whether the server has made the area itself, for upgrades, because the monitor has given
    /// none.
    pub(super) is_area_own: bool,
    pub(super) vrings: Vec<Vring>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to a request.
enum Answer {
    /// An acknowledgement, if the monitor has requested one.
    Done,
    /// A reply with these bytes.
    Bytes(Vec<u8>),
    /// A reply with these bytes and a file.
    File(Vec<u8>, File),
}

impl Answer {
    fn word(value: u64) -> Answer {
        Answer::Bytes(value.to_ne_bytes().to_vec())
    }
}

/// The body of a session's thread. It waits for messages without locking the session's state, so
/// that an upgrade finds the state between two messages.
pub(super) fn run(stream: &UnixStream, session: &Mutex<Session>) {
    let (disk, number) = {
        let session = lock(session);
        (session.link.name.clone(), session.number)
    };
    tracing::info!(disk, session = number, "a guest attaches its disk");
    let end = loop {
        let mut fds = [PollFd::new(stream, PollFlags::IN)];
        if let Err(error) = poll(&mut fds, None)
            && error != rustix::io::Errno::INTR
        {
            break Err(Refusal::Message(io::Error::from(error).into()));
        }
        let mut session = lock(session);
        match wire::receive(stream) {
            Ok(None) => break Ok(()),
            Err(error) => break Err(Refusal::Message(error)),
            Ok(Some(request)) => {
                if let Err(refusal) = session.answer(request) {
                    break Err(refusal);
                }
            }
        }
    };
    match end {
        Ok(()) => tracing::info!(disk, session = number, "a guest detaches its disk"),
        Err(refusal) => {
            tracing::warn!(disk, session = number, %refusal, "a guest's session ends");
        }
    }
    let mut session = lock(session);
    session.link.hang_up();
    session.close();
}

impl Session {
    /// The state that is passed to the next program.
    pub(super) fn left(&self) -> LeftSession {
        let fd = |file: &Option<OwnedFd>| file.as_ref().map(AsRawFd::as_raw_fd);
        let vring = |(index, vring): (u16, &Vring)| LeftVring {
            index,
            size: vring.size,
            base: vring.base,
            addresses: vring.addresses,
            kick: fd(&vring.kick),
            call: fd(&vring.call),
            error: fd(&vring.error),
            is_enabled: vring.is_enabled,
            is_started: vring.is_started,
        };
        let is_used = |(_, vring): &(u16, &Vring)| vring.size > 0 || vring.call.is_some();
        let area = |(file, shape): &(File, VhostUserInflight)| {
            let (size, offset) = (shape.mmap_size, shape.mmap_offset);
            let (queues, queue_size) = (shape.num_queues, shape.queue_size);
            (file.as_raw_fd(), [size, offset], [queues, queue_size], self.is_area_own)
        };
        LeftSession {
            tenant: self.volume.tenant,
            stream: self.stream.as_raw_fd(),
            back: lock(&self.link.back).as_ref().map(AsRawFd::as_raw_fd),
            features: self.features,
            protocol: self.protocol,
            status: self.status,
            caches_writes: self.link.caches_writes(),
            memory: self.guest.regions().collect(),
            inflight: self.inflight.as_ref().map(area),
            vrings: (0..).zip(&self.vrings).filter(is_used).map(vring).collect(),
        }
    }

    /// Stops all vrings, and waits until the device has none of their requests.
    fn close(&mut self) {
        let (reply, ends) = channel();
        for shard in 0..self.shards {
            (self.send)(shard, Message::Close { session: self.number, reply: reply.clone() });
        }
        drop(reply);
        // No message arrives: the receive ends when all senders have been dropped.
        let _ = ends.recv();
    }

    /// Handles a request. An error ends the session.
    fn answer(&mut self, mut request: Request) -> Result<(), Refusal> {
        let (name, needs_reply) = (request.request, request.needs_reply);
        match self.handle(&mut request) {
            Ok(Answer::Bytes(bytes)) => wire::reply(&self.stream, name, &bytes, None)?,
            Ok(Answer::File(bytes, file)) => {
                wire::reply(&self.stream, name, &bytes, Some(file.as_fd()))?;
            }
            Ok(Answer::Done) if needs_reply => {
                wire::reply(&self.stream, name, &0u64.to_ne_bytes(), None)?;
            }
            Ok(Answer::Done) => {}
            Err(refusal @ (Refusal::Message(_) | Refusal::Ending)) => return Err(refusal),
            Err(refusal) if needs_reply => {
                tracing::warn!(disk = self.link.name, request = ?name, %refusal, "refused");
                wire::reply(&self.stream, name, &1u64.to_ne_bytes(), None)?;
            }
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    fn handle(&mut self, request: &mut Request) -> Result<Answer, Refusal> {
        match request.request {
            FrontendReq::SET_OWNER => {}
            FrontendReq::GET_FEATURES => return Ok(Answer::word(self.offered())),
            FrontendReq::SET_FEATURES => {
                self.set_features(request.body::<VhostUserU64>()?.value)?;
            }
            FrontendReq::GET_PROTOCOL_FEATURES => return Ok(Answer::word(protocol().bits())),
            FrontendReq::SET_PROTOCOL_FEATURES => {
                let features = request.body::<VhostUserU64>()?.value;
                if features & !protocol().bits() != 0 {
                    return Err(Refusal::Features(features));
                }
                self.protocol = features;
            }
            FrontendReq::GET_QUEUE_NUM => return Ok(Answer::word(QUEUES as u64)),
            FrontendReq::GET_MAX_MEM_SLOTS => return Ok(Answer::word(REGIONS as u64)),
            FrontendReq::SET_MEM_TABLE => self.set_memory(request)?,
            FrontendReq::ADD_MEM_REG => {
                let file = request.file()?;
                let region: VhostUserSingleMemoryRegion = request.body()?;
                self.move_to(self.guest.with(plan(&region), file)?)?;
            }
            FrontendReq::REM_MEM_REG => {
                let region: VhostUserSingleMemoryRegion = request.body()?;
                self.move_to(self.guest.without(&plan(&region))?)?;
            }
            FrontendReq::SET_VRING_NUM
            | FrontendReq::SET_VRING_BASE
            | FrontendReq::SET_VRING_ENABLE => {
                let state: VhostUserVringState = request.body()?;
                self.set_vring(request.request, state)?;
            }
            FrontendReq::SET_VRING_ADDR => self.set_addresses(request.body()?)?,
            FrontendReq::SET_VRING_KICK
            | FrontendReq::SET_VRING_CALL
            | FrontendReq::SET_VRING_ERR => self.set_eventfd(request)?,
            FrontendReq::GET_VRING_BASE => {
                let state: VhostUserVringState = request.body()?;
                let index = self.index(state.index.into())?;
                self.stop(index)?;
                let vring = &mut self.vrings[index];
                vring.kick = None;
                let state = VhostUserVringState::new(state.index, vring.base);
                return Ok(Answer::Bytes(state.as_slice().to_vec()));
            }
            FrontendReq::GET_CONFIG => return self.config(request),
            FrontendReq::SET_CONFIG => self.set_config(request)?,
            FrontendReq::SET_BACKEND_REQ_FD => {
                let channel = UnixStream::from(OwnedFd::from(request.file()?));
                *lock(&self.link.back) = Some(channel);
            }
            FrontendReq::GET_INFLIGHT_FD => return self.new_area(request),
            FrontendReq::SET_INFLIGHT_FD => {
                let file = request.file()?;
                self.inflight = Some((file, inflight_shape(request)?));
                (self.area, self.is_area_own) = (None, false);
            }
            FrontendReq::SET_STATUS => {
                let status = request.body::<VhostUserU64>()?.value as u8;
                self.status = status;
                if status == 0 {
                    self.reset()?;
                }
            }
            FrontendReq::GET_STATUS => {
                let failed = if self.link.has_failed() { VIRTIO_CONFIG_S_NEEDS_RESET } else { 0 };
                return Ok(Answer::word(u64::from(u32::from(self.status) | failed)));
            }
            FrontendReq::RESET_DEVICE | FrontendReq::RESET_OWNER => {
                self.reset()?;
                self.status = 0;
            }
            FrontendReq::SET_LOG_BASE | FrontendReq::SET_LOG_FD => return Err(Refusal::Log),
            other => return Err(Refusal::Unsupported(other)),
        }
        Ok(Answer::Done)
    }

    fn index(&self, index: u64) -> Result<usize, Refusal> {
        let index = usize::try_from(index).ok().filter(|&index| index < QUEUES);
        index.ok_or(Refusal::Queue(index.unwrap_or(usize::MAX) as u64))
    }

    fn key(&self, index: usize) -> Key {
        Key { session: self.number, queue: index as u16 }
    }

    fn shard(&self, index: usize) -> usize {
        (self.number as usize).wrapping_add(index) % self.shards
    }

    fn offered(&self) -> u64 {
        let of_disk = match self.volume.read_only {
            true => blk::FEATURES & !blk::CHANGES | blk::READ_ONLY,
            false => blk::FEATURES,
        };
        FEATURES | of_disk
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        if features & LOG_ALL != 0 {
            return Err(Refusal::Log);
        }
        if features & !self.offered() != 0 {
            return Err(Refusal::Features(features & !self.offered()));
        }
        if let Some(index) = self.vrings.iter().position(|vring| vring.is_started)
            && features != self.features
        {
            return Err(Refusal::Running(index));
        }
        self.features = features;
        if features & blk::CONFIG_WCE == 0 {
            self.link.caches_writes.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    // Memory.

    fn set_memory(&mut self, request: &mut Request) -> Result<(), Refusal> {
        let files = std::mem::take(&mut request.files);
        let count = request.start::<VhostUserMemory>()?.num_regions as usize;
        let regions = request.rest::<VhostUserMemory>();
        let is_whole = regions.len() == count * size_of::<VhostUserMemoryRegion>();
        if !is_whole || files.len() != count {
            return Err(request.wrong().into());
        }
        let plans = regions.chunks(size_of::<VhostUserMemoryRegion>()).map(|bytes| {
            let mut region = VhostUserMemoryRegion::default();
            region.as_mut_slice().copy_from_slice(bytes);
            plan(&region)
        });
        self.move_to(Guest::map(plans.zip(files))?)
    }

    /// Moves the vrings to another generation of the memory.
    fn move_to(&mut self, guest: Guest) -> Result<(), Refusal> {
        self.guest = Arc::new(guest);
        let (reply, moved) = channel();
        let mut shards: Vec<usize> = (0..QUEUES)
            .filter(|&index| self.vrings[index].is_started)
            .map(|index| self.shard(index))
            .collect();
        shards.sort_unstable();
        shards.dedup();
        for &shard in &shards {
            let (session, guest, reply) = (self.number, self.guest.clone(), reply.clone());
            (self.send)(shard, Message::Memory { session, guest, reply });
        }
        shards.iter().try_for_each(|_| moved.recv())?;
        self.start_all()
    }

    // Vrings.

    fn set_vring(&mut self, what: FrontendReq, state: VhostUserVringState) -> Result<(), Refusal> {
        let (index, value) = (self.index(state.index.into())?, state.num);
        if what == FrontendReq::SET_VRING_ENABLE {
            self.vrings[index].is_enabled = value != 0;
            return if value == 0 { self.stop(index) } else { self.start(index) };
        }
        if self.vrings[index].is_started {
            return Err(Refusal::Running(index));
        }
        if what == FrontendReq::SET_VRING_BASE {
            self.vrings[index].base = value;
        } else {
            let size = u16::try_from(value).ok().filter(|&size| size > 0 && size <= SIZE);
            self.vrings[index].size = size.ok_or(Fault::Size(value))?;
        }
        self.start(index)
    }

    fn set_addresses(&mut self, given: VhostUserVringAddr) -> Result<(), Refusal> {
        if given.flags != 0 {
            return Err(Refusal::Log);
        }
        let index = self.index(given.index.into())?;
        let addresses = Addresses {
            descriptors: given.descriptor,
            driver: given.available,
            device: given.used,
        };
        let vring = &mut self.vrings[index];
        if vring.is_started && vring.addresses != Some(addresses) {
            return Err(Refusal::Running(index));
        }
        vring.addresses = Some(addresses);
        self.start(index)
    }

    fn set_eventfd(&mut self, request: &mut Request) -> Result<(), Refusal> {
        let value = request.body::<VhostUserU64>()?.value;
        let index = self.index(value & 0xff)?;
        let file = if value & 0x100 == 0 { Some(request.file()?) } else { None };
        let is_call = request.request == FrontendReq::SET_VRING_CALL;
        let is_fit = if is_call { takes_calls } else { is_eventfd };
        if file.as_ref().is_some_and(|file| !is_fit(file)) {
            return Err(Refusal::NoEventfd);
        }
        let file = file.map(OwnedFd::from);
        match request.request {
            FrontendReq::SET_VRING_KICK => {
                if file.is_none() {
                    return Err(Refusal::NoEventfd);
                }
                self.stop(index)?;
                self.vrings[index].kick = file;
                self.start(index)
            }
            FrontendReq::SET_VRING_CALL => {
                if self.vrings[index].is_started {
                    let file = file.as_ref().map(OwnedFd::try_clone).transpose();
                    let (key, file) = (self.key(index), file.map_err(Refusal::Area)?);
                    (self.send)(self.shard(index), Message::Call { key, file });
                }
                self.vrings[index].call = file;
                Ok(())
            }
            _ => {
                self.vrings[index].error = file;
                Ok(())
            }
        }
    }

    pub(super) fn start_all(&mut self) -> Result<(), Refusal> {
        (0..QUEUES).try_for_each(|index| self.start(index))
    }

    /// Starts a vring, if it has all that it needs and is not running.
    fn start(&mut self, index: usize) -> Result<(), Refusal> {
        let is_enabled = self.features & PROTOCOL == 0 || self.vrings[index].is_enabled;
        let vring = &self.vrings[index];
        let (Some(addresses), Some(kick)) = (vring.addresses, &vring.kick) else { return Ok(()) };
        if vring.is_started || !is_enabled || vring.size == 0 || self.guest.is_empty() {
            return Ok(());
        }
        if self.link.has_failed() {
            // A failed device works again after all its vrings were stopped.
            if self.vrings.iter().any(|vring| vring.is_started) {
                return Ok(());
            }
            self.link.has_failed.store(false, Ordering::Relaxed);
        }
        let layout = Layout {
            size: vring.size,
            is_packed: self.features & PACKED != 0,
            has_event_index: self.features & EVENT_INDEX != 0,
            addresses,
        };
        let clone = |file: &Option<OwnedFd>| {
            file.as_ref().map(OwnedFd::try_clone).transpose().map_err(Refusal::Area)
        };
        let kick = kick.try_clone().map_err(Refusal::Area)?;
        let (call, error) = (clone(&vring.call)?, clone(&vring.error)?);
        let place = self.attachment.take(self.shard(index))?;
        let mut queue = match Queue::new(&self.guest, &layout, vring.base) {
            Ok(queue) => queue,
            Err(fault) => {
                self.link.fail();
                return Err(fault.into());
            }
        };
        self.map_area(layout.is_packed)?;
        let (size, is_packed) = (layout.size, layout.is_packed);
        let area = self.area.as_ref();
        let region = area.and_then(|area| area.region(index, size, is_packed));
        let mut region = region.ok_or(Refusal::NoPlace(index))?;
        // The server's own area is only for upgrades, so a queue that the monitor starts begins
        // without requests to repeat.
        if self.is_area_own && !self.vrings[index].is_left {
            region.forget();
        }
        let again = region.recover(&mut queue);
        if !again.is_empty() {
            let (disk, requests) = (&self.link.name, again.len());
            tracing::info!(disk, queue = index, requests, "repeating requests of the last server");
        }
        let mut volume = self.volume.clone();
        let size = self.link.size();
        volume.size = *size;
        let start = Start {
            place,
            key: self.key(index),
            layout,
            queue,
            guest: self.guest.clone(),
            region,
            again,
            kick,
            call,
            error,
            volume,
            has_flush: self.features & blk::FLUSH != 0,
            link: self.link.clone(),
        };
        (self.send)(self.shard(index), Message::Start(Box::new(start)));
        drop(size);
        self.vrings[index].is_started = true;
        self.vrings[index].is_left = false;
        Ok(())
    }

    /// Stops a vring, and waits until its requests have ended.
    fn stop(&mut self, index: usize) -> Result<(), Refusal> {
        if !self.vrings[index].is_started {
            return Ok(());
        }
        let (reply, position) = channel();
        (self.send)(self.shard(index), Message::Stop { key: self.key(index), reply });
        self.vrings[index].base = position.recv()?;
        self.vrings[index].is_started = false;
        Ok(())
    }

    /// Stops all vrings, which keep their positions, and clears a failure of the device.
    fn reset(&mut self) -> Result<(), Refusal> {
        (0..QUEUES).try_for_each(|index| self.stop(index))?;
        self.vrings.iter_mut().for_each(|vring| vring.is_enabled = false);
        self.link.has_failed.store(false, Ordering::Relaxed);
        self.link.caches_writes.store(true, Ordering::Relaxed);
        Ok(())
    }

    // The configuration.

    fn config(&self, request: &Request) -> Result<Answer, Refusal> {
        let asked: VhostUserConfig = request.start()?;
        let (offset, size) = (asked.offset as usize, asked.size as usize);
        if request.rest::<VhostUserConfig>().len() != size {
            return Err(request.wrong().into());
        }
        let shape = Shape {
            size: *self.link.size(),
            block: self.block,
            preferred: self.preferred,
            queues: QUEUES as u16,
            writeback: self.link.caches_writes(),
        };
        // The bytes after the last field that this server knows are zero.
        let config = shape.config();
        let fields = (offset..offset.saturating_add(size)).map(|at| config.get(at).copied());
        let mut bytes = asked.as_slice().to_vec();
        bytes.extend(fields.map(Option::unwrap_or_default));
        Ok(Answer::Bytes(bytes))
    }

    fn set_config(&mut self, request: &Request) -> Result<(), Refusal> {
        let asked: VhostUserConfig = request.start()?;
        let [value] = request.rest::<VhostUserConfig>() else {
            return Err(Refusal::Config(asked.offset));
        };
        let is_it = asked.offset as usize == blk::WRITEBACK;
        if !is_it || self.features & blk::CONFIG_WCE == 0 {
            return Err(Refusal::Config(asked.offset));
        }
        self.link.caches_writes.store(*value != 0, Ordering::Relaxed);
        Ok(())
    }

    // The in-flight area.

    fn new_area(&self, request: &Request) -> Result<Answer, Refusal> {
        let mut shape = inflight_shape(request)?;
        let (queues, size) = (shape.num_queues, shape.queue_size);
        if queues == 0 || usize::from(queues) > QUEUES || size == 0 || size > SIZE {
            return Err(Fault::Size(size.into()).into());
        }
        // The ring format may be negotiated later, so the larger of both sizes is used.
        let length = [false, true].map(|is_packed| inflight::bytes(queues, size, is_packed));
        let length = length.into_iter().max().unwrap_or(0);
        let file = inflight::create(length).map_err(Refusal::Area)?;
        (shape.mmap_size, shape.mmap_offset) = (length, 0);
        Ok(Answer::File(shape.as_slice()[..request.body.len()].to_vec(), file))
    }

    fn map_area(&mut self, is_packed: bool) -> Result<(), Refusal> {
        if self.inflight.is_none() {
            let length = inflight::bytes(QUEUES as u16, SIZE, true);
            let file = inflight::create(length).map_err(Refusal::Area)?;
            let shape = VhostUserInflight {
                mmap_size: length,
                mmap_offset: 0,
                num_queues: QUEUES as u16,
                queue_size: SIZE,
            };
            (self.inflight, self.is_area_own) = (Some((file, shape)), true);
        }
        if self.area.is_none()
            && let Some((file, shape)) = &self.inflight
        {
            let (offset, queues, size) = (shape.mmap_offset, shape.num_queues, shape.queue_size);
            let area = Area::map(file, offset, queues, size, is_packed);
            self.area = Some(Arc::new(area.map_err(Refusal::Area)?));
        }
        Ok(())
    }
}

/// The shape of an in-flight area. Some monitors also send the padding at its end, which is not in
/// the specification.
fn inflight_shape(request: &Request) -> Result<VhostUserInflight, MessageError> {
    let (whole, fields) = (size_of::<VhostUserInflight>(), 20);
    if request.body.len() != whole && request.body.len() != fields {
        return Err(request.wrong());
    }
    let mut shape = VhostUserInflight::default();
    shape.as_mut_slice()[..fields].copy_from_slice(&request.body[..fields]);
    Ok(shape)
}

fn plan(region: &VhostUserMemoryRegion) -> Plan {
    Plan {
        guest: region.guest_phys_addr,
        size: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    }
}
