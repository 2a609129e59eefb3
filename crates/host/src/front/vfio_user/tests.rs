//! A small client of the protocol, and a driver that knows no more than the NVMe specification, on
//! running shards.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairq_core::none::NonePolicy;
use fairq_core::{FlowId, Native, Policy, Weight};
use fairq_device::{Profile, State};
use rustix::event::{EventfdFlags, eventfd};

use super::controllers::{Controllers, Send};
use super::framing::command;
use super::pci_config::BAR;
use super::queue_groups::VfioUserFront;
use crate::device::any::{AnyDevice, DeviceSpec};
use crate::device::nvme::queue::{CqEntries, CqHead, SqEntries, SqTail};
use crate::device::nvme::spec::{
    CC_ENABLE, CC_ENTRY_SIZES, CSTS_FATAL, CSTS_READY, Cqe, NSID_ALL, PAGE, Sqe, Status, admin,
    feature, log, nvm, register,
};
use crate::device::nvme_soft::{BackingSpec, NvmeSoftSpec, Poller, Timing};
use crate::device::{ControllerLimits, Device};
use crate::front::attach::{Attachment, Disk, Places};
use crate::front::guest_memory::tests::file;
use crate::front::guest_memory::{self, Guest, Plan};
use crate::front::socket;
use crate::front::vhost::vrings::Poll;
use crate::io::wakers::Wakers;
use crate::shard::pool::{Shards, policy_loops};
use crate::shard::shared::Common;
use crate::shard::volume::Volume;
use crate::shard::{Message, Notice};

mod arbitration;
mod full_eventfds;
mod other_drivers;
mod resumed;

const DISK: u64 = 8 << 20;
const MEMORY: u64 = 8 << 20;
const BUS: u64 = 1 << 32;
/// Places in the memory.
const ADMIN_SQ: u64 = BUS;
const ADMIN_CQ: u64 = BUS + 0x1000;
const PAGES: u64 = BUS + 0x2000;
const QUEUES: u64 = BUS + 0x1_0000;
const DATA: u64 = BUS + (4 << 20);
const ADMIN_ENTRIES: u16 = 16;
const TAGS: usize = 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// Shards with a device.
struct Host {
    shards: Arc<Mutex<Option<Shards<AnyDevice, VfioUserFront>>>>,
    controllers: Controllers,
    places: Arc<Places>,
    flow: FlowId,
    count: usize,
    whole: Option<ControllerLimits>,
}

impl Host {
    fn start(count: usize, poll: Poll) -> Host {
        Host::of(count, poll, &DeviceSpec::Ram { size: DISK }, |_| None)
    }

    /// A controller over the whole of a device.
    fn whole(spec: NvmeSoftSpec) -> Host {
        let spec = DeviceSpec::NvmeSoft(Box::new(spec));
        Host::of(1, Poll::Auto, &spec, |device| Some(device.controller_limits()))
    }

    fn of(
        count: usize,
        poll: Poll,
        device: &DeviceSpec,
        whole: impl Fn(&AnyDevice) -> Option<ControllerLimits>,
    ) -> Host {
        let (policy, ports) = NonePolicy::<Native>::new(count, 2, TAGS).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let device = Arc::new(device.open().unwrap());
        let whole = whole(&device);
        let common = Common::new(device, Arc::new(Wakers::new(count).unwrap()), TAGS, 2);
        let front = |_| Ok(VfioUserFront::new(poll, common.weights.clone()));
        let shards = Shards::start(policy_loops(ports), &common, &[], front).unwrap();
        let shards = Arc::new(Mutex::new(Some(shards)));
        let places = Arc::new(Places::new(count, 4));
        Host { shards, controllers: Controllers::default(), places, flow, count, whole }
    }

    fn connect(&self, read_only: bool) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (disk, send, place) = self.parts(read_only);
        self.controllers.spawn(theirs, disk, self.count, send, place).unwrap();
        ours
    }

    /// The disk, the way to the shards, and the place of a guest.
    fn parts(&self, read_only: bool) -> (Disk, Send, Arc<Attachment>) {
        let (tenant, flow, file, base, size) = (0, self.flow, 0, 0, DISK);
        let volume = Volume { tenant, flow, file, base, size, read_only, block: 512 };
        let (name, whole) = ("db".into(), self.whole);
        let disk = Disk { name, volume, block: 4096, preferred: 65536, whole };
        let shards = self.shards.clone();
        let send = move |shard, message| {
            if let Some(shards) = &*shards.lock().unwrap() {
                shards.send(shard, Message::Front(message));
            }
        };
        (disk, Arc::new(send), Attachment::new(self.places.clone()))
    }

    fn boot(&self) -> Machine {
        Machine::boot(self.connect(false), 0)
    }

    fn send(&self, message: impl Fn() -> Message<AnyDevice, VfioUserFront>) {
        let shards = self.shards.lock().unwrap();
        let shards = shards.as_ref().unwrap();
        (0..self.count).for_each(|shard| shards.send(shard, message()));
    }

    fn notify(&self, notice: Notice) {
        self.send(|| Message::Notice(notice));
    }

    fn stop(&self) {
        let shards = self.shards.lock().unwrap().take();
        shards.unwrap().stop();
    }
}

/// A client of the protocol.
struct Client(UnixStream);

impl Client {
    fn send(&mut self, number: u16, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        let head = u32::from(number) << 16 | 7;
        let header = [head, 16 + body.len() as u32, flags, 0].map(u32::to_ne_bytes).concat();
        socket::send(&self.0, &[header, body.to_vec()].concat(), files).unwrap();
    }

    /// The reply's body, or its errno.
    fn call(&mut self, number: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, i32> {
        self.send(number, 0, body, files);
        let mut header = [0; 16];
        self.0.read_exact(&mut header).unwrap();
        let word = |at| super::framing::word(&header, at);
        assert_eq!(word(0), u32::from(number) << 16 | 7);
        let mut reply = vec![0; word(4) as usize - 16];
        self.0.read_exact(&mut reply).unwrap();
        match word(8) {
            1 => Ok(reply),
            0x21 => Err(word(12) as i32),
            flags => panic!("flags {flags:x}"),
        }
    }

    fn version(&mut self) {
        let text = b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":8,\"write_multiple\":true}}\0";
        let reply = self.call(command::VERSION, text, &[]).unwrap();
        let text = String::from_utf8(reply[4..reply.len() - 1].to_vec()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["capabilities"]["max_msg_fds"], 16);
        assert_eq!(value["capabilities"]["write_multiple"], true);
    }

    fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        file: Option<&File>,
    ) -> Result<(), i32> {
        let words = [32 | 3 << 32, offset, address, size];
        let body = words.map(u64::to_ne_bytes).concat();
        let files: Vec<_> = file.into_iter().map(|file| file.as_fd()).collect();
        self.call(command::DMA_MAP, &body, &files).map(drop)
    }

    fn unmap(&mut self, address: u64, size: u64) -> Result<(), i32> {
        let body = [24, address, size].map(u64::to_ne_bytes).concat();
        self.call(command::DMA_UNMAP, &body, &[]).map(|reply| assert_eq!(reply, body))
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, i32> {
        let place = u64::from(region) | u64::from(count) << 32;
        let body = [offset, place].map(u64::to_ne_bytes).concat();
        self.call(command::REGION_READ, &body, &[]).map(|reply| reply[16..].to_vec())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), i32> {
        let place = u64::from(region) | (data.len() as u64) << 32;
        let body = [[offset, place].map(u64::to_ne_bytes).as_flattened(), data].concat();
        self.call(command::REGION_WRITE, &body, &[]).map(drop)
    }

    fn register(&mut self, at: u32) -> u32 {
        let bytes = self.read(0, at.into(), 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn set(&mut self, at: u32, value: u32) {
        self.write(0, at.into(), &value.to_le_bytes()).unwrap();
    }

    fn words<const N: usize>(&mut self, number: u16, body: [u32; N]) -> Result<Vec<u32>, i32> {
        let reply = self.call(number, &body.map(u32::to_ne_bytes).concat(), &[])?;
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        Ok(reply.chunks(4).map(word).collect())
    }
}

struct Pair {
    id: u16,
    sq: SqTail,
    cq: CqHead,
}

/// A machine with its monitor, and a driver.
struct Machine {
    client: Client,
    memory: Guest,
    file: File,
    admin: Pair,
    pairs: Vec<Pair>,
    free: u64,
    /// Doorbells are in memory.
    shadow: bool,
    /// The mapped page of doorbells.
    page: Option<Guest>,
    mechanism: u32,
}

impl Machine {
    fn boot(stream: UnixStream, mechanism: u32) -> Machine {
        let mut client = Client(stream);
        client.version();
        Machine::start(client, mechanism, None)
    }

    fn start(mut client: Client, mechanism: u32, page: Option<Guest>) -> Machine {
        let file = file(MEMORY);
        let plan = Plan { guest: BUS, size: MEMORY, user: BUS, offset: 0 };
        let memory = Guest::map([(plan, file.try_clone().unwrap())]).unwrap();
        client.map(BUS, MEMORY, 0, Some(&file)).unwrap();
        let admin = pair(&memory, 0, ADMIN_SQ, ADMIN_CQ, ADMIN_ENTRIES);
        let (pairs, free, shadow) = (Vec::new(), QUEUES, false);
        let mut machine =
            Machine { client, memory, file, admin, pairs, free, shadow, page, mechanism };
        machine.enable();
        assert_eq!(machine.client.register(register::CSTS), CSTS_READY);
        machine
    }

    fn enable(&mut self) {
        let size = u32::from(ADMIN_ENTRIES - 1);
        self.client.set(register::AQA, size << 16 | size);
        self.client.write(0, register::ASQ.into(), &ADMIN_SQ.to_le_bytes()).unwrap();
        self.client.write(0, register::ACQ.into(), &ADMIN_CQ.to_le_bytes()).unwrap();
        self.admin = pair(&self.memory, 0, ADMIN_SQ, ADMIN_CQ, ADMIN_ENTRIES);
        (self.pairs, self.free, self.shadow) = (Vec::new(), QUEUES, false);
        self.client.set(register::CC, CC_ENABLE | CC_ENTRY_SIZES | self.mechanism);
    }

    fn admin(&mut self, sqe: Sqe) -> Cqe {
        let tail = self.admin.sq.push(&sqe);
        self.write_doorbell(0, tail);
        let since = Instant::now();
        let cqe = loop {
            let cqe = self.admin.cq.pop();
            // It is carried out before the reply to a write.
            assert!(cqe.is_some() || self.page.is_some() && since.elapsed() < PATIENCE);
            if let Some(cqe) = cqe {
                break cqe;
            }
            std::thread::yield_now();
        };
        self.write_doorbell(1, self.admin.cq.head());
        assert_eq!((cqe.cid, cqe.sqid), (sqe.cid, 0));
        cqe
    }

    fn create(&mut self, entries: u16, vector: u16, qprio: u32) -> Status {
        let id = self.pairs.len() as u16 + 1;
        let (sq, cq) = (self.free, (self.free + u64::from(entries) * 64).next_multiple_of(PAGE));
        self.free = (cq + u64::from(entries) * 16).next_multiple_of(PAGE);
        let cdw10 = u32::from(entries - 1) << 16 | u32::from(id);
        let (opcode, cdw11) = (admin::CREATE_CQ, u32::from(vector) << 16 | 3);
        let create_cq = Sqe { opcode, cdw10, cdw11, data: [cq, 0], ..Sqe::default() };
        let (opcode, cdw11) = (admin::CREATE_SQ, u32::from(id) << 16 | qprio << 1 | 1);
        let create_sq = Sqe { opcode, cdw10, cdw11, data: [sq, 0], ..Sqe::default() };
        self.pairs.push(pair(&self.memory, id, sq, cq, entries));
        let created = self.admin(create_cq).status;
        if created != Status::SUCCESS { created } else { self.admin(create_sq).status }
    }

    fn use_shadow(&mut self) {
        let opcode = admin::DOORBELL_BUFFER_CONFIG;
        let set = Sqe { opcode, data: [PAGES, PAGES + PAGE], ..Sqe::default() };
        assert_eq!(self.admin(set).status, Status::SUCCESS);
        self.shadow = true;
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: aligned words of mapped memory, which both sides access by atomics.
        unsafe { AtomicU32::from_ptr(self.memory.range(at, 4).unwrap().cast()) }
    }

    /// Writes a shadow doorbell; returns its old value.
    fn set_shadow(&self, place: u32, value: u16) -> u16 {
        self.word(PAGES + 4 * u64::from(place)).swap(value.into(), Ordering::SeqCst) as u16
    }

    fn ring(&mut self, place: u32, value: u16) {
        if self.shadow {
            // Written, then compared with the event index, as a driver does.
            let old = self.set_shadow(place, value);
            let event =
                self.word(PAGES + PAGE + 4 * u64::from(place)).load(Ordering::SeqCst) as u16;
            if value.wrapping_sub(event).wrapping_sub(1) >= value.wrapping_sub(old) {
                return;
            }
        }
        self.write_doorbell(place, value);
    }

    fn write_doorbell(&mut self, place: u32, value: u16) {
        match &self.page {
            Some(page) => {
                let doorbell = guest_memory::word(page, 4 * u64::from(place)).unwrap();
                doorbell.store(value.into(), Ordering::Release);
            }
            None => self.client.set(register::DOORBELLS + 4 * place, value.into()),
        }
    }

    fn push(&mut self, pair: usize, sqe: Sqe) {
        let (id, tail) = (self.pairs[pair].id, self.pairs[pair].sq.push(&sqe));
        self.ring(2 * u32::from(id), tail);
    }

    /// Waits for the next completion.
    fn pop(&mut self, pair: usize) -> Cqe {
        let since = Instant::now();
        loop {
            if let Some(cqe) = self.try_pop(pair) {
                return cqe;
            }
            assert!(since.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    fn try_pop(&mut self, pair: usize) -> Option<Cqe> {
        let cqe = self.pairs[pair].cq.pop()?;
        let (id, head) = (self.pairs[pair].id, self.pairs[pair].cq.head());
        self.ring(2 * u32::from(id) + 1, head);
        Some(cqe)
    }

    fn io(&mut self, sqe: Sqe) -> Status {
        self.push(0, sqe);
        let cqe = self.pop(0);
        assert_eq!(cqe.cid, sqe.cid);
        cqe.status
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        let mut parts = Vec::new();
        self.memory.translate(at, bytes.len() as u32, &mut parts).unwrap();
        // SAFETY: mapped memory.
        unsafe { guest_memory::write(&parts, bytes) };
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let (mut parts, mut bytes) = (Vec::new(), vec![0; length]);
        self.memory.translate(at, length as u32, &mut parts).unwrap();
        // SAFETY: mapped memory.
        unsafe { guest_memory::read(&parts, 0, &mut bytes) };
        bytes
    }
}

fn pair(memory: &Guest, id: u16, sq: u64, cq: u64, entries: u16) -> Pair {
    let at = |address, bytes: u64| {
        let bytes = bytes * u64::from(entries);
        let start = memory.range(address, bytes).unwrap();
        // SAFETY: mapped memory, which the device does not use yet.
        unsafe { start.write_bytes(0, bytes as usize) };
        NonNull::new(start.cast::<u64>()).unwrap()
    };
    // SAFETY: mapped as long as the machine.
    unsafe {
        let sq = SqTail::new(SqEntries::new(at(sq, 64), entries));
        Pair { id, sq, cq: CqHead::new(CqEntries::new(at(cq, 16), entries)) }
    }
}

fn transfer(opcode: u8, cid: u16, lba: u32, blocks: u32, data: u64) -> Sqe {
    let (data, cdw10, cdw12) = ([data, data + PAGE], lba, blocks - 1);
    Sqe { opcode, cid, nsid: 1, data, cdw10, cdw12, ..Sqe::default() }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed) as u8).collect()
}

#[test]
fn a_client_finds_a_pci_device_with_an_nvme_controller() {
    let host = Host::start(1, Poll::Never);
    let mut client = Client(host.connect(false));
    assert_eq!(client.read(7, 0, 4), Err(libc::EINVAL), "the version comes first");
    client.version();
    assert_eq!(client.words(command::GET_INFO, [16, 0, 0, 0]).unwrap(), [16, 3, 9, 5]);
    let region = |index| [32, 0, index, 0, 0, 0, 0, 0];
    let info = client.words(command::GET_REGION_INFO, region(0)).unwrap();
    assert_eq!(info, [32, 3, 0, 0, BAR as u32, 0, 0, 0]);
    assert_eq!(client.words(command::GET_REGION_INFO, region(7)).unwrap()[4], 256);
    assert_eq!(client.words(command::GET_REGION_INFO, region(1)).unwrap()[4], 0);
    assert_eq!(client.words(command::GET_REGION_INFO, region(9)), Err(libc::EINVAL));
    assert_eq!(client.words(command::GET_REGION_IO_FDS, [16, 0, 0, 0]).unwrap(), [16, 0, 0, 0]);
    assert_eq!(client.words(command::GET_IRQ_INFO, [16, 0, 2, 0]).unwrap(), [16, 1, 2, 65]);
    assert_eq!(client.words(command::GET_IRQ_INFO, [16, 0, 0, 0]).unwrap()[3], 0);
    for (flags, errno) in
        [(1 << 18 | 1, libc::ENOTTY), (1 << 16 | 2, libc::ENOTTY), (1, libc::EINVAL)]
    {
        assert_eq!(client.words(command::DEVICE_FEATURE, [8, flags]), Err(errno), "{flags:x}");
    }
    assert_eq!(client.words(17, [8, 0]), Err(libc::EOPNOTSUPP), "no migration");
    assert_eq!(client.read(7, 9, 3).unwrap(), [0x02, 0x08, 0x01]);
    for (region, offset, count) in [(7, 255, 2), (0, BAR - 1, 2), (1, 0, 1), (0, u64::MAX, 4)] {
        assert_eq!(client.read(region, offset, count), Err(libc::EINVAL));
        assert_eq!(client.write(region, offset, &vec![0; count as usize]), Err(libc::EINVAL));
    }
    assert_eq!(client.register(register::VS), 0x0001_0400);
    // Several writes in one message.
    let writes =
        [2, 0x24, 4 << 32, 0x000f_000f, 0x14, 4 << 32, u64::from(CC_ENABLE | CC_ENTRY_SIZES)];
    let body = writes.map(u64::to_ne_bytes).concat();
    assert_eq!(client.call(command::REGION_WRITE_MULTI, &body, &[]).unwrap().len(), 8);
    assert_eq!(client.register(register::CSTS), CSTS_READY);
    client.call(command::RESET, &[], &[]).unwrap();
    assert_eq!(client.register(register::CSTS), 0);
    client.set(register::CC, CC_ENABLE | 2 << 11);
    assert_eq!(client.register(register::CSTS), CSTS_FATAL, "no such arbitration");
    drop(client);
    host.stop();
}

#[test]
fn the_controller_describes_itself_and_keeps_its_features() {
    let host = Host::start(1, Poll::Never);
    let mut machine = host.boot();
    let identify = |cns: u32, nsid| Sqe {
        opcode: admin::IDENTIFY,
        nsid,
        cdw10: cns,
        data: [DATA, 0],
        ..Sqe::default()
    };
    assert_eq!(machine.admin(identify(1, 0)).status, Status::SUCCESS);
    let data = machine.bytes(DATA, 4096);
    assert_eq!((&data[4..7], data[512], data[513], data[77]), (&b"db "[..], 0x66, 0x44, 8));
    assert_eq!(data[..2], machine.client.read(7, 0, 2).unwrap(), "the vendor");
    assert_eq!(data[261] & 2, 2, "a log of effects");
    assert_eq!(machine.admin(identify(0, 1)).status, Status::SUCCESS);
    let data = machine.bytes(DATA, 4096);
    assert_eq!((data[..8].to_vec(), data[130]), ((DISK / 512).to_le_bytes().to_vec(), 9));
    assert_eq!((data[24] & 16, data[64], data[72]), (16, 7, 127));
    assert_eq!(machine.admin(identify(2, 0)).status, Status::SUCCESS);
    assert_eq!(machine.bytes(DATA, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(machine.admin(identify(3, 1)).status, Status::SUCCESS);
    for (cns, nsid, status) in [
        (0, 2, Status::INVALID_NAMESPACE),
        (3, 0, Status::INVALID_NAMESPACE),
        (2, u32::MAX, Status::INVALID_NAMESPACE),
        (0x77, 0, Status::INVALID_FIELD),
    ] {
        assert_eq!(machine.admin(identify(cns, nsid)).status, status);
    }
    let (opcode, other) = (admin::SET_FEATURES, admin::GET_FEATURES);
    let set = |id: u8, cdw11| Sqe { opcode, cdw10: id.into(), cdw11, ..Sqe::default() };
    let get = |id: u8, select: u32| Sqe {
        opcode: other,
        cdw10: u32::from(id) | select << 8,
        ..Sqe::default()
    };
    let answer = |cqe: Cqe| (cqe.status, cqe.result);
    let granted = machine.admin(set(feature::NUMBER_OF_QUEUES, 99 << 16 | 99));
    assert_eq!(answer(granted), (Status::SUCCESS, 63 << 16 | 63));
    for (id, value) in [(feature::ARBITRATION, 0x0908_0700), (feature::ASYNC_EVENTS, 0x100)] {
        assert_eq!(machine.admin(set(id, value)).status, Status::SUCCESS);
        assert_eq!(answer(machine.admin(get(id, 0))), (Status::SUCCESS, value));
    }
    assert_eq!(answer(machine.admin(get(feature::VOLATILE_WRITE_CACHE, 0))).1, 1);
    assert_eq!(machine.admin(set(feature::VOLATILE_WRITE_CACHE, 0)).status, Status::SUCCESS);
    assert_eq!(answer(machine.admin(get(feature::VOLATILE_WRITE_CACHE, 0))).1, 0);
    assert_eq!(answer(machine.admin(get(feature::VOLATILE_WRITE_CACHE, 1))).1, 1, "the default");
    assert_eq!(machine.admin(set(0x77, 0)).status, Status::INVALID_FIELD);
    let page = |id: u8, dwords: u32| Sqe {
        opcode: admin::GET_LOG_PAGE,
        cdw10: (dwords - 1) << 16 | u32::from(id),
        nsid: NSID_ALL,
        data: [DATA, 0],
        ..Sqe::default()
    };
    for id in [log::SUPPORTED, log::ERROR, log::SMART, log::FIRMWARE, log::EFFECTS] {
        assert_eq!(machine.admin(page(id, 128)).status, Status::SUCCESS, "{id}");
    }
    assert_eq!(machine.admin(page(log::ERROR, 16)).status, Status::SUCCESS);
    assert_eq!(machine.bytes(DATA, 1), [5], "errors are logged");
    assert_eq!(machine.admin(page(0x77, 4)).status, Status::INVALID_LOG_PAGE);
    let refused = Sqe { opcode: 0x80, ..Sqe::default() };
    assert_eq!(machine.admin(refused).status, Status::INVALID_OPCODE, "no formatting");
    drop(machine);
    host.stop();
}

#[test]
fn data_go_to_the_disk_and_back() {
    for (shards, poll) in [(1, Poll::Never), (2, Poll::Auto), (1, Poll::Always)] {
        let host = Host::start(shards, poll);
        let mut machine = host.boot();
        let call = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let body = [20u32, 4 | 32, 2, 1, 1].map(u32::to_ne_bytes).concat();
        machine.client.call(command::SET_IRQS, &body, &[call.as_fd()]).unwrap();
        assert_eq!(machine.create(64, 1, 0), Status::SUCCESS);
        let bytes = pattern(64 << 10, 3);
        machine.fill(DATA + 0x200, &bytes);
        let list: Vec<u8> =
            (1..17u64).flat_map(|page| (DATA + page * PAGE).to_le_bytes()).collect();
        machine.fill(PAGES, &list);
        let write = Sqe { data: [DATA + 0x200, PAGES], ..transfer(nvm::WRITE, 1, 100, 128, 0) };
        assert_eq!(machine.io(write), Status::SUCCESS);
        let since = Instant::now();
        while rustix::io::read(&call, &mut [0; 8]).is_err() {
            assert!(since.elapsed() < PATIENCE, "no interrupt");
        }
        let mut back = transfer(nvm::READ, 2, 100, 128, 0);
        back.point_sgl(DATA + 0x10_0001, 64 << 10);
        assert_eq!(machine.io(back), Status::SUCCESS);
        assert_eq!(machine.bytes(DATA + 0x10_0001, 64 << 10), bytes);
        let compare = Sqe { opcode: nvm::COMPARE, cid: 3, ..write };
        assert_eq!(machine.io(compare), Status::SUCCESS);
        assert_eq!(machine.io(Sqe { cdw10: 101, ..compare }), Status::COMPARE_FAILURE);
        assert_eq!(machine.io(transfer(nvm::VERIFY, 4, 0, 2048, 0)), Status::SUCCESS);
        // Two of the disk's blocks as zeroes, and two ranges of a discard.
        let zeroes = Sqe { data: [0, 0], ..transfer(nvm::WRITE_ZEROES, 5, 101, 2, 0) };
        assert_eq!(machine.io(zeroes), Status::SUCCESS);
        machine.fill(DATA, &[1u64 << 32, 110, 2 << 32, 120].map(u64::to_le_bytes).concat());
        let trim = Sqe { cdw10: 1, cdw11: 4, ..transfer(nvm::DATASET_MANAGEMENT, 6, 0, 1, DATA) };
        assert_eq!(machine.io(trim), Status::SUCCESS);
        assert_eq!(machine.io(back), Status::SUCCESS);
        let now = machine.bytes(DATA + 0x10_0001, 64 << 10);
        for (block, now) in now.chunks(512).enumerate() {
            let is_zero = [1, 2, 10, 20, 21].contains(&block);
            let expected = if is_zero { &[0; 512] } else { &bytes[block * 512..][..512] };
            assert!(now == expected, "{block}");
        }
        let flush = Sqe { opcode: nvm::FLUSH, cid: 7, nsid: 1, ..Sqe::default() };
        assert_eq!(machine.io(flush), Status::SUCCESS);
        assert_eq!(machine.io(transfer(nvm::READ, 8, 1 << 20, 1, DATA)), Status::LBA_OUT_OF_RANGE);
        drop(machine);
        host.stop();
    }
}

#[test]
fn a_read_only_disk_takes_no_writes() {
    let host = Host::start(1, Poll::Never);
    let mut machine = Machine::boot(host.connect(true), 0);
    assert_eq!(machine.create(8, 0, 0), Status::SUCCESS);
    assert_eq!(machine.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
    assert_eq!(machine.io(transfer(nvm::WRITE, 2, 0, 1, DATA)), Status::WRITE_PROTECTED);
    drop(machine);
    host.stop();
}

/// Deep queues on two shards, whose rings and phases wrap many times, with and without shadow
/// doorbells, and completions that are taken late.
#[test]
fn many_commands_complete_once_each() {
    for shadow in [false, true] {
        let host = Host::start(2, Poll::Auto);
        let mut machine = host.boot();
        if shadow {
            machine.use_shadow();
        }
        for pair in 0..4 {
            assert_eq!(machine.create(16, pair, 0), Status::SUCCESS);
        }
        let mut done = [0u16; 4];
        let mut sent = [0u16; 4];
        while done.iter().any(|&done| done < 400) {
            for pair in 0..4 {
                // More than the completion queue has room for, if nothing was taken.
                while sent[pair] < 400 && sent[pair] - done[pair] < 15 {
                    machine.push(pair, transfer(nvm::READ, sent[pair], 8, 8, DATA));
                    sent[pair] += 1;
                }
                let expected = if pair == 0 { 1 } else { sent[pair] - done[pair] };
                for _ in 0..expected {
                    let cqe = machine.pop(pair);
                    assert_eq!((cqe.status, cqe.sqid), (Status::SUCCESS, pair as u16 + 1));
                    done[pair] += 1;
                }
            }
        }
        for pair in 0..4 {
            assert!(machine.try_pop(pair).is_none());
        }
        drop(machine);
        host.stop();
    }
}

#[test]
fn a_submission_queue_is_deleted_under_load() {
    let host = Host::start(1, Poll::Never);
    let mut machine = host.boot();
    assert_eq!(machine.create(256, 0, 0), Status::SUCCESS);
    let delete = |opcode, id| Sqe { opcode, cdw10: id, ..Sqe::default() };
    for round in 0..20 {
        for cid in 0..200 {
            let data = transfer(nvm::READ, cid, 0, 128, 0);
            let mut sgl = data;
            sgl.point_sgl(DATA, 64 << 10);
            machine.push(0, sgl);
        }
        let status = machine.admin(delete(admin::DELETE_CQ, 1)).status;
        assert_eq!(status, Status::INVALID_QUEUE_DELETION);
        assert_eq!(machine.admin(delete(admin::DELETE_SQ, 1)).status, Status::SUCCESS);
        // The fetched commands have ended, and nothing comes later.
        let mut ended = 0;
        while let Some(cqe) = machine.pairs[0].cq.pop() {
            assert!([Status::SUCCESS, Status::SQ_DELETED].contains(&cqe.status));
            ended += 1;
        }
        assert!(ended <= 200, "{round}: {ended}");
        assert_eq!(machine.admin(delete(admin::DELETE_CQ, 1)).status, Status::SUCCESS);
        assert_eq!(machine.admin(delete(admin::DELETE_SQ, 1)).status, Status::INVALID_QUEUE_ID);
        (machine.pairs, machine.free) = (Vec::new(), QUEUES);
        assert_eq!(machine.create(256, 0, 0), Status::SUCCESS);
    }
    assert_eq!(machine.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
    // Four queues are all that the shard has places for.
    for _ in 0..3 {
        assert_eq!(machine.create(4, 0, 0), Status::SUCCESS);
    }
    assert_eq!(machine.create(4, 0, 0), Status::INTERNAL);
    drop(machine);
    host.stop();
}

#[test]
fn memory_comes_and_goes_while_the_controller_is_enabled() {
    let host = Host::start(2, Poll::Auto);
    let mut machine = host.boot();
    assert_eq!(machine.create(8, 0, 0), Status::SUCCESS);
    assert_eq!(machine.io(transfer(nvm::WRITE, 1, 0, 1, DATA)), Status::SUCCESS);
    // All of it is unmapped and mapped again, as a BIOS does.
    let file = machine.file.try_clone().unwrap();
    assert_eq!(machine.client.map(BUS + PAGE, PAGE, 0, Some(&file)), Err(libc::EEXIST));
    assert_eq!(machine.client.unmap(BUS, PAGE), Err(libc::ENOENT));
    machine.client.unmap(BUS, MEMORY).unwrap();
    machine.client.map(BUS, MEMORY / 2, 0, Some(&file)).unwrap();
    machine.client.map(BUS + MEMORY / 2, MEMORY / 2, MEMORY / 2, Some(&file)).unwrap();
    assert_eq!(machine.io(transfer(nvm::READ, 2, 0, 1, DATA)), Status::SUCCESS);
    // Without the data's half, commands fail; a region without a file is no data's place.
    machine.client.unmap(BUS + MEMORY / 2, MEMORY / 2).unwrap();
    assert_eq!(machine.io(transfer(nvm::READ, 3, 0, 1, DATA)), Status::DATA_TRANSFER);
    machine.client.map(DATA, PAGE, 0, None).unwrap();
    assert_eq!(machine.io(transfer(nvm::READ, 4, 0, 1, DATA)), Status::DATA_TRANSFER);
    machine.client.unmap(DATA, PAGE).unwrap();
    for (address, size, offset) in [(1, PAGE, 0), (0, 1, 0), (0, 0, 0), (0, PAGE, 1)] {
        let refused = machine.client.map(address, size, offset, Some(&file));
        assert_eq!(refused, Err(libc::EINVAL));
    }
    assert!(machine.client.map(u64::MAX - PAGE + 1, PAGE, 0, Some(&file)).is_err());
    // Without its queues the controller fails, and after a reset it works again.
    machine.client.unmap(BUS, MEMORY / 2).unwrap();
    machine.push(0, transfer(nvm::READ, 5, 0, 1, DATA));
    let since = Instant::now();
    while machine.client.register(register::CSTS) & CSTS_FATAL == 0 {
        assert!(since.elapsed() < PATIENCE);
    }
    machine.client.map(BUS, MEMORY, 0, Some(&file)).unwrap();
    machine.client.set(register::CC, 0);
    assert_eq!(machine.client.register(register::CSTS), 0);
    machine.enable();
    assert_eq!(machine.create(8, 0, 0), Status::SUCCESS);
    assert_eq!(machine.io(transfer(nvm::READ, 6, 0, 1, DATA)), Status::SUCCESS);
    drop(machine);
    host.stop();
}

#[test]
fn a_guest_notices_another_size() {
    let host = Host::start(1, Poll::Never);
    let mut machine = host.boot();
    assert_eq!(machine.create(8, 0, 0), Status::SUCCESS);
    let (opcode, cdw10) = (admin::SET_FEATURES, feature::ASYNC_EVENTS.into());
    let wanted = Sqe { opcode, cdw10, cdw11: 1 << 8, ..Sqe::default() };
    assert_eq!(machine.admin(wanted).status, Status::SUCCESS);
    let event = Sqe { opcode: admin::ASYNC_EVENT_REQUEST, cid: 77, ..Sqe::default() };
    let tail = machine.admin.sq.push(&event);
    machine.client.set(register::DOORBELLS, tail.into());
    assert!(machine.admin.cq.pop().is_none());
    let flow = host.flow;
    host.controllers.resize(flow, DISK / 2, || {
        host.notify(Notice::Resize { flow, size: DISK / 2 });
    });
    let since = Instant::now();
    let cqe = loop {
        if let Some(cqe) = machine.admin.cq.pop() {
            break cqe;
        }
        assert!(since.elapsed() < PATIENCE);
        std::thread::yield_now();
    };
    assert_eq!((cqe.cid, cqe.result), (77, 4 << 16 | 2));
    let beyond = transfer(nvm::READ, 1, (DISK / 1024) as u32, 1, DATA);
    assert_eq!(machine.io(beyond), Status::LBA_OUT_OF_RANGE);
    drop(machine);
    host.stop();
}

#[test]
fn strangers_hurt_only_themselves() {
    let host = Host::start(1, Poll::Auto);
    let mut good = host.boot();
    assert_eq!(good.create(8, 0, 0), Status::SUCCESS);
    // Doorbells of queues that are not there.
    for (place, value) in [(40, 1), (131, 1), (500, 1)] {
        good.client.set(register::DOORBELLS + 4 * place, value);
    }
    // Values that a queue cannot have, in a register and in a shadow doorbell.
    let mut odd = host.boot();
    let fails = |odd: &mut Machine, place: u32, value: u32| {
        odd.client.set(register::DOORBELLS + 4 * place, value);
        let since = Instant::now();
        while odd.client.register(register::CSTS) & CSTS_FATAL == 0 {
            assert!(since.elapsed() < PATIENCE, "doorbell {place}: {value}");
        }
        odd.client.set(register::CC, 0);
        odd.enable();
        assert_eq!(odd.create(8, 0, 0), Status::SUCCESS);
    };
    assert_eq!(odd.create(8, 0, 0), Status::SUCCESS);
    for (place, value) in [(0, 999), (1, 999), (1, 5), (2, 8), (2, 0xffff_ffff), (3, 0xffff)] {
        fails(&mut odd, place, value);
    }
    odd.use_shadow();
    odd.set_shadow(2, 77);
    fails(&mut odd, 2, 1);
    assert_eq!(odd.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
    assert_eq!(good.io(transfer(nvm::READ, 1, 0, 1, DATA)), Status::SUCCESS);
    // A client that goes in the middle of a message, and one that goes under load.
    let mut half = Client(host.connect(false));
    half.version();
    half.0.write_all(&[7, 0, 2, 0, 48, 0]).unwrap();
    drop(half);
    let mut gone = host.boot();
    assert_eq!(gone.create(256, 0, 0), Status::SUCCESS);
    for cid in 0..200 {
        let mut write = transfer(nvm::WRITE, cid, 0, 128, 0);
        write.point_sgl(DATA, 64 << 10);
        gone.push(0, write);
    }
    drop(gone);
    for number in 0..30 {
        let mut odd = Client(host.connect(false));
        odd.version();
        odd.send(number, 0, &[0xff; 40], &[]);
        odd.send(number, 0, &[], &[]);
        // Without a wait for the replies.
    }
    assert_eq!(good.io(transfer(nvm::READ, 2, 0, 1, DATA)), Status::SUCCESS);
    // The tenant is removed: the session ends.
    host.notify(Notice::Detach { flow: host.flow, cut_off: false });
    assert_eq!(good.client.0.read(&mut [0]).unwrap_or(0), 0);
    host.stop();
}
