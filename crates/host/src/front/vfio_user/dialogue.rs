//! One controller's client: a thread that holds the conversation, and carries out register
//! accesses and admin commands.
//!
//! The client sends one command after the other, and waits for the replies that it wants. It may go
//! at any time; then [`Message::Close`] ends the queues on the shards, and the session is over when
//! the device has none of their orders.
//!
//! **Memory.** A region of the guest's memory comes with a file, which is mapped, or without one;
//! then no command can have data there. The reply to a removal comes when no command has memory of
//! a generation with the region. A command's wait in the scheduler therefore delays the reply.
//!
//! **Doorbells** are writes of a region, or words of a page that the client maps. The page gives no
//! sign, so a server that sleeps has to read it from time to time; it is offered to a client that
//! would wait for a reply to each of its writes. Others announce `write_multiple` and post theirs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use thiserror::Error;

use crate::device::nvme::spec::register;
use crate::front::guest_memory::{Guest, MapError, Plan, REGIONS};
use crate::front::socket::{FILES, is_eventfd};
use crate::front::vfio_user::bridge::Bridge;
use crate::front::vfio_user::controller_state::{Registers, Session, VECTORS, lock};
use crate::front::vfio_user::framing::{self, Command, FramingError, TRANSFER, command, word};
use crate::front::vfio_user::pci_config::{self, PciConfig};
use crate::front::vfio_user::queue_groups::Message;

const PAGE: u64 = 4096;

/// Regions: BAR 0 to 5, the ROM, the configuration space, and VGA.
const BAR_0: u32 = 0;
const CONFIG: u32 = 7;
const REGION_COUNT: u32 = 9;
/// Kinds of interrupts: INTx, MSI, MSI-X, error, request.
const MSIX: u32 = 2;
const IRQ_COUNT: u32 = 5;

/// Flags of a region.
const ACCESSIBLE: u32 = 3;
const MAPPABLE: u32 = 1 << 2;
const HAS_CAPABILITIES: u32 = 1 << 3;
/// Bytes of a region's description, and of that with one area that can be mapped.
const REGION_INFO: u32 = 32;
const SPARSE_INFO: u32 = REGION_INFO + 32;

/// The session's thread reads the admin queue's doorbell in a mapped page at least this often after
/// a command, and half as often after each time without one.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LAST_NAP: Duration = Duration::from_millis(10);

/// Flags of DMA_MAP and DMA_UNMAP.
const WRITEABLE: u32 = 2;
const UNMAP_ALL: u32 = 2;

/// Flags of SET_IRQS.
const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 1 << 1;
const DATA_EVENTFD: u32 = 1 << 2;
const TRIGGER: u32 = 1 << 5;

/// The reason why a session ends.
#[derive(Debug, Error)]
enum End {
    #[error(transparent)]
    Framing(#[from] FramingError),
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
}

/// The reason why a command gets an error.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Because(&'static str, i32),
    #[error(transparent)]
    Memory(#[from] MapError),
}

impl Refusal {
    fn errno(&self) -> i32 {
        match self {
            Refusal::Because(_, errno) => *errno,
            Refusal::Memory(MapError::TooMany) => libc::ENOSPC,
            Refusal::Memory(MapError::TooLarge) => libc::ENOMEM,
            Refusal::Memory(MapError::Kernel(error)) => error.raw_os_error().unwrap_or(libc::EIO),
            Refusal::Memory(_) => libc::EINVAL,
        }
    }
}

fn invalid(why: &'static str) -> Refusal {
    Refusal::Because(why, libc::EINVAL)
}

/// The body of a session's thread. It waits for a command without its state, so that others find
/// the state between two commands.
pub(super) fn run(bridge: &Bridge, session: &Mutex<Session>) {
    let (disk, number) = (bridge.name(), lock(session).number);
    tracing::info!(disk, session = number, "a guest attaches its controller");
    match converse(bridge, session) {
        Ok(()) => tracing::info!(disk, session = number, "a guest detaches its controller"),
        Err(end) => tracing::warn!(disk, session = number, %end, "a controller's session ends"),
    }
    let session = lock(session);
    bridge.hang_up();
    session.close(true);
}

fn converse(bridge: &Bridge, session: &Mutex<Session>) -> Result<(), End> {
    let (mut nap, mut naps) = (FIRST_NAP, bridge.is_mapped());
    loop {
        let timeout = Timespec::try_from(nap).ok().filter(|_| naps);
        let [socket, bell] = {
            let stream = PollFd::new(&bridge.stream, PollFlags::IN);
            let mut fds = [stream, PollFd::new(&bridge.bell, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result.map_err(io::Error::from)?,
            };
            fds.map(|fd| !fd.revents().is_empty())
        };
        let mut session = lock(session);
        if bell && bridge.take_resized() {
            session.namespace_changed();
        }
        if socket {
            let Some(mut command) = framing::receive(&bridge.stream)? else { return Ok(()) };
            session.answer(&mut command)?;
        }
        naps = bridge.is_mapped() && session.admin.is_some();
        let is_used = naps && !bridge.has_failed() && session.administer() || socket;
        nap = if is_used { FIRST_NAP } else { (2 * nap).min(LAST_NAP) };
    }
}

impl Session {
    /// Ends all queues, and waits until the device has none of their orders.
    pub(super) fn close(&self, is_end: bool) {
        self.on_all(|reply| Message::Close { session: self.number, is_end, reply });
    }

    /// Sends all shards a message, and waits until all have carried it out.
    pub(super) fn on_all(&self, message: impl Fn(std::sync::mpsc::Sender<()>) -> Message) {
        let (reply, ends) = channel();
        (0..self.shards).for_each(|shard| (self.send)(shard, message(reply.clone())));
        drop(reply);
        // Nothing is sent: the senders are dropped.
        let _ = ends.recv();
    }

    fn answer(&mut self, command: &mut Command) -> Result<(), End> {
        let stream = self.bridge.clone();
        match self.handle(command) {
            Ok(body) => {
                let is_region = command.number == command::GET_REGION_INFO;
                let has_page = is_region && body.len() == SPARSE_INFO as usize;
                if has_page {
                    self.bridge.set_mapped();
                }
                let page = [stream.page.as_fd()];
                let files = if has_page { &page[..] } else { &[] };
                framing::reply(&stream.stream, command, &body, files)?;
            }
            Err(refusal) => {
                let (number, disk) = (command.number, self.bridge.name());
                tracing::debug!(disk, command = number, %refusal, "refused");
                framing::refuse(&stream.stream, command, refusal.errno())?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, request: &mut Command) -> Result<Vec<u8>, Refusal> {
        if !self.is_open && request.number != command::VERSION {
            return Err(invalid("the version is not agreed"));
        }
        match request.number {
            command::VERSION => self.agree(request),
            command::DMA_MAP => self.map(request),
            command::DMA_UNMAP => self.unmap(request),
            command::GET_INFO => {
                let (can_reset, is_pci) = (1, 2);
                fields(request, 16, [16, can_reset | is_pci, REGION_COUNT, IRQ_COUNT])
            }
            command::GET_REGION_INFO => region_info(request, self.offers_page),
            command::GET_REGION_IO_FDS => {
                let (flags, index) = (request.word(4), request.word(8));
                if flags != 0 || index >= REGION_COUNT {
                    return Err(invalid("no such region"));
                }
                fields(request, 16, [16, 0, index, 0])
            }
            command::GET_IRQ_INFO => {
                let (index, by_eventfd) = (request.word(8), 1);
                match index {
                    MSIX => fields(request, 16, [16, by_eventfd, index, VECTORS.into()]),
                    _ if index < IRQ_COUNT => fields(request, 16, [16, 0, index, 0]),
                    _ => Err(invalid("no such interrupt")),
                }
            }
            command::SET_IRQS => self.set_irqs(request).map(|()| Vec::new()),
            command::REGION_READ => self.read(request),
            command::REGION_WRITE => {
                let data = request.body.get(16..).unwrap_or_default();
                if !request.has(16) || data.len() != request.word(12) as usize {
                    return Err(invalid("the data do not have the length that they should"));
                }
                self.write(request.word(8), request.long(0), data)?;
                Ok(request.body[..16].to_vec())
            }
            command::REGION_WRITE_MULTI => self.write_all(request),
            command::RESET => {
                self.reset();
                Ok(Vec::new())
            }
            command::DEVICE_FEATURE => Err(device_feature(request)),
            _ => Err(Refusal::Because("not supported", libc::EOPNOTSUPP)),
        }
    }

    /// Agrees on the version, and on what both sides can do.
    fn agree(&mut self, request: &Command) -> Result<Vec<u8>, Refusal> {
        if self.is_open || !request.has(4) {
            return Err(invalid("the version comes once, and first"));
        }
        let (major, text) = (request.word(0) as u16, &request.body[4..]);
        let proposed: Value = match text.split(|&byte| byte == 0).next() {
            None | Some([]) => Value::Null,
            Some(text) => serde_json::from_slice(text)
                .map_err(|_| invalid("the version's data are no JSON"))?,
        };
        if major != 0 {
            return Err(invalid("the version is another"));
        }
        let mut capabilities = json!({
            "max_msg_fds": FILES,
            "max_data_xfer_size": TRANSFER,
            "max_dma_maps": REGIONS,
            "pgsizes": PAGE,
        });
        let posts_writes = proposed["capabilities"]["write_multiple"] == json!(true);
        if posts_writes {
            capabilities["write_multiple"] = json!(true);
        }
        self.offers_page = !posts_writes;
        self.is_open = true;
        let text = json!({ "capabilities": capabilities }).to_string();
        Ok([&[0; 4], text.as_bytes(), &[0]].concat())
    }

    // Memory.

    fn map(&mut self, request: &mut Command) -> Result<Vec<u8>, Refusal> {
        let (flags, offset) = (request.word(4), request.long(8));
        let (address, size) = (request.long(16), request.long(24));
        let is_aligned = (address | size | offset).is_multiple_of(PAGE) && size > 0;
        if !request.has(32) || !is_aligned || address.checked_add(size).is_none() {
            return Err(invalid("a region of memory has no address, size or offset of pages"));
        }
        let meets =
            |(other, length): (u64, u64)| other < address + size && address < other + length;
        let is_mapped = self.guest.regions().any(|(plan, _)| meets((plan.guest, plan.size)));
        if is_mapped || self.blind.iter().copied().any(meets) {
            return Err(Refusal::Because("there is memory already", libc::EEXIST));
        }
        match request.files.pop() {
            Some(file) if request.files.is_empty() && flags & WRITEABLE != 0 => {
                let plan = Plan { guest: address, size, user: address, offset };
                let guest = self.guest.with(plan, file)?;
                self.move_to(guest, false);
            }
            _ if self.blind.len() == REGIONS => return Err(MapError::TooMany.into()),
            _ => self.blind.push((address, size)),
        }
        Ok(Vec::new())
    }

    fn unmap(&mut self, request: &Command) -> Result<Vec<u8>, Refusal> {
        let (flags, address, size) = (request.word(4), request.long(8), request.long(16));
        if !request.has(24) || flags & !UNMAP_ALL != 0 {
            return Err(invalid("a removal of memory has flags that are not known"));
        }
        if flags & UNMAP_ALL != 0 {
            self.blind.clear();
            self.move_to(Guest::default(), true);
        } else if let Some(place) = self.blind.iter().position(|&one| one == (address, size)) {
            self.blind.remove(place);
        } else {
            let plan = Plan { guest: address, size, user: address, offset: 0 };
            let guest = self.guest.without(&plan);
            let guest = guest.map_err(|_| Refusal::Because("no such memory", libc::ENOENT))?;
            self.move_to(guest, true);
        }
        Ok(request.body[..24].to_vec())
    }

    /// Makes the queues go on in another generation of the memory. After a removal, waits until no
    /// command has memory of an earlier one.
    fn move_to(&mut self, guest: Guest, is_removal: bool) {
        self.guest = Arc::new(guest);
        if self.admin.is_some() {
            let (session, guest) = (self.number, &self.guest);
            self.on_all(|reply| {
                let guest = guest.clone();
                Message::Memory { session, guest, is_removal, reply }
            });
        }
    }

    // Interrupts.

    fn set_irqs(&mut self, request: &mut Command) -> Result<(), Refusal> {
        let (flags, index) = (request.word(4), request.word(8));
        let (start, count) = (request.word(12) as usize, request.word(16) as usize);
        let end = start.checked_add(count).filter(|&end| end <= VECTORS.into());
        let (true, Some(end)) = (request.has(20) && index < IRQ_COUNT, end) else {
            return Err(invalid("no such interrupts"));
        };
        let is_end = flags == DATA_NONE | TRIGGER && count == 0;
        if index != MSIX {
            return if is_end { Ok(()) } else { Err(invalid("the controller has only MSI-X")) };
        }
        let files = std::mem::take(&mut request.files);
        if is_end {
            (0..self.vectors.len()).for_each(|vector| self.set_vector(vector, None));
        } else if flags == DATA_EVENTFD | TRIGGER && files.is_empty() {
            (start..end).for_each(|vector| self.set_vector(vector, None));
        } else if flags == DATA_EVENTFD | TRIGGER {
            if files.len() != count || !files.iter().all(is_eventfd) {
                return Err(invalid("the files are no eventfds, or not one for each interrupt"));
            }
            for (vector, file) in (start..end).zip(files) {
                self.set_vector(vector, Some(file.into()));
            }
        } else if flags == DATA_NONE | TRIGGER || flags == DATA_BOOL | TRIGGER {
            let wanted = request.body.get(20..20 + count).unwrap_or_default();
            for (place, vector) in (start..end).enumerate() {
                let is_wanted = wanted.get(place).is_some_and(|&wanted| wanted != 0);
                if flags & DATA_NONE != 0 || is_wanted {
                    self.interrupt(vector);
                }
            }
        } else {
            return Err(invalid("these interrupts cannot be masked"));
        }
        Ok(())
    }

    pub(super) fn set_vector(&mut self, vector: usize, file: Option<OwnedFd>) {
        let call = file.map(Arc::new);
        let (session, number) = (self.number, vector as u16);
        self.on_all(|reply| {
            let call = call.clone();
            Message::Vector { session, vector: number, call, reply }
        });
        self.vectors[vector] = call;
        // An interrupt on the old file may have been missed.
        if self.admin.is_some() {
            self.interrupt(vector);
        }
    }

    /// Interrupts the guest.
    pub(super) fn interrupt(&self, vector: usize) {
        if self.vectors.get(vector).is_some_and(Option::is_some) {
            let (session, vector) = (self.number, vector as u16);
            (self.send)(self.home(), Message::Signal { session, vector });
        }
    }

    /// The shard of the session's messages that belong to no queue.
    pub(super) fn home(&self) -> usize {
        self.number as usize % self.shards
    }

    // Regions.

    fn read(&self, request: &Command) -> Result<Vec<u8>, Refusal> {
        let (offset, region, count) = (request.long(0), request.word(8), request.word(12) as usize);
        let outside = || invalid("a read is not in the region");
        if !request.has(16) || count > TRANSFER {
            return Err(outside());
        }
        let mut reply = request.body[..16].to_vec();
        let at = usize::try_from(offset).map_err(|_| outside())?;
        match region {
            CONFIG => reply.extend_from_slice(self.config.read(at, count).ok_or_else(outside)?),
            BAR_0 if at.checked_add(count).is_some_and(|end| end as u64 <= pci_config::BAR) => {
                reply.resize(16 + count, 0);
                self.read_bar(at, &mut reply[16..]);
            }
            _ => return Err(outside()),
        }
        Ok(reply)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Refusal> {
        let outside = || invalid("a write is not in the region");
        let at = usize::try_from(offset).map_err(|_| outside())?;
        match region {
            CONFIG if self.config.write(at, data) => Ok(()),
            BAR_0
                if at.checked_add(data.len()).is_some_and(|end| end as u64 <= pci_config::BAR) =>
            {
                self.write_bar(at, data);
                Ok(())
            }
            _ => Err(outside()),
        }
    }

    fn write_all(&mut self, request: &Command) -> Result<Vec<u8>, Refusal> {
        let (count, writes) = (request.long(0), request.body.get(8..).unwrap_or_default());
        if count.checked_mul(24) != Some(writes.len() as u64) {
            return Err(invalid("there are not as many writes as there should be"));
        }
        for write in writes.chunks_exact(24) {
            let long = u64::from(word(write, 0)) | u64::from(word(write, 4)) << 32;
            let data = write[16..].get(..word(write, 12) as usize);
            self.write(
                word(write, 8),
                long,
                data.ok_or(invalid("a write has more than 8 bytes"))?,
            )?;
        }
        Ok(count.to_ne_bytes().to_vec())
    }

    /// The controller and its configuration are as after power-on.
    fn reset(&mut self) {
        self.disable();
        self.registers = Registers::default();
        self.config = PciConfig::new(VECTORS);
        self.table.fill(0);
    }
}

/// The fields of a reply, for a client that has room for `least` bytes.
fn fields<const N: usize>(
    request: &Command,
    least: usize,
    fields: [u32; N],
) -> Result<Vec<u8>, Refusal> {
    if !request.has(16) || (request.word(0) as usize) < least {
        return Err(invalid("the request has no room for its reply"));
    }
    Ok(fields.map(u32::to_ne_bytes).concat())
}

/// The refusal of a feature: this controller has none of them, neither migration nor a log of the
/// memory that it writes. Clients take this errno for that, as from the kernel's VFIO.
fn device_feature(request: &Command) -> Refusal {
    let (least, flags) = (request.word(0) as usize, request.word(4));
    let (get, set, probe) = (1 << 16, 1 << 17, 1 << 18);
    let does = |what: u32| flags & what != 0;
    let is_one = does(probe) || does(get) != does(set);
    match request.has(8) && least >= 8 && is_one && flags >> 19 == 0 {
        true => Refusal::Because("no such feature", libc::ENOTTY),
        false => invalid("a feature is probed, or it is got or set"),
    }
}

fn region_info(request: &Command, offers_page: bool) -> Result<Vec<u8>, Refusal> {
    let index = request.word(8);
    let (flags, size) = match index {
        BAR_0 if offers_page => (ACCESSIBLE | MAPPABLE | HAS_CAPABILITIES, pci_config::BAR as u32),
        BAR_0 => (ACCESSIBLE, pci_config::BAR as u32),
        CONFIG => (ACCESSIBLE, pci_config::BYTES as u32),
        _ if index < REGION_COUNT => (0, 0),
        _ => return Err(invalid("no such region")),
    };
    let length = if flags & MAPPABLE == 0 { REGION_INFO } else { SPARSE_INFO };
    if request.word(0) < length {
        // The client repeats its request with as much room as it finds here.
        return fields(request, REGION_INFO as usize, [length, flags, index, 0, size, 0, 0, 0]);
    }
    let has_areas = length == SPARSE_INFO;
    let first = if has_areas { REGION_INFO } else { 0 };
    let mut info = fields(request, 0, [length, flags, index, first, size, 0, 0, 0])?;
    if has_areas {
        // A capability (number 1, version 1, the last one) with one area: offset and size.
        let (head, areas) = (1 | 1 << 16, 1);
        let capability = [head, 0, areas, 0, register::DOORBELLS, 0, PAGE as u32, 0];
        info.extend_from_slice(capability.map(u32::to_ne_bytes).as_flattened());
    }
    Ok(info)
}
