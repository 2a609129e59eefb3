//! A guest that uses the real protocol on running shards: the front end of the crate `vhost`, and a
//! model of the guest's driver.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use fairq_core::none::NonePolicy;
use fairq_core::{FlowId, Native, Policy, Weight};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::device::ram::RamDevice;
use crate::front::attach::{Attachment, Disk, Places};
use crate::front::vhost::blk::CONFIG;
use crate::front::vhost::queue::tests::{Driver, GUEST, Machine, RINGS, USER};
use crate::front::vhost::sessions::Sessions;
use crate::front::vhost::vrings::{Poll, VhostFront};
use crate::io::wakers::Wakers;
use crate::shard::pool::{Shards, policy_loops};
use crate::shard::shared::Common;
use crate::shard::volume::Volume;
use crate::shard::{Message, Notice};

const DISK: u64 = 8 << 20;
/// The size of a guest's memory: the rings of four queues, and the same amount for data.
const MEMORY: u64 = 8 * RINGS;
const TAGS: usize = 512;
const PATIENCE: Duration = Duration::from_secs(60);

/// The feature bits that the tests negotiate.
const VERSION_1: u64 = 1 << 32;
const PROTOCOL: u64 = 1 << 30;
const EVENT_INDEX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;
const PACKED: u64 = 1 << 34;
const FLUSH: u64 = 1 << 9;

/// Shards with a disk in memory.
struct Host {
    shards: Arc<Mutex<Option<Shards<RamDevice, VhostFront>>>>,
    sessions: Sessions,
    places: Arc<Places>,
    flow: FlowId,
    count: usize,
}

impl Host {
    fn start(count: usize, poll: Poll) -> Host {
        let (policy, ports) = NonePolicy::<Native>::new(count, 2, TAGS).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let device = Arc::new(RamDevice::new(DISK).unwrap());
        let common = Common::new(device, Arc::new(Wakers::new(count).unwrap()), TAGS, 2);
        let front = |_| Ok(VhostFront::new(poll, common.weights.clone()));
        let shards = Shards::start(policy_loops(ports), &common, &[], front).unwrap();
        let shards = Arc::new(Mutex::new(Some(shards)));
        let places = Arc::new(Places::new(count, 64));
        Host { shards, sessions: Sessions::default(), places, flow, count }
    }

    fn connect(&self, read_only: bool) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (tenant, flow, file, base, size) = (0, self.flow, 0, 0, DISK);
        let volume = Volume { tenant, flow, file, base, size, read_only, block: 512 };
        let (name, whole) = ("db".into(), None);
        let disk = Disk { name, volume, block: 4096, preferred: 65536, whole };
        let shards = self.shards.clone();
        let send = move |shard, message| {
            if let Some(shards) = &*shards.lock().unwrap() {
                shards.send(shard, Message::Front(message));
            }
        };
        let place = Attachment::new(self.places.clone());
        self.sessions.spawn(theirs, disk, self.count, Arc::new(send), place).unwrap();
        ours
    }

    fn notify(&self, notice: Notice) {
        let shards = self.shards.lock().unwrap();
        let shards = shards.as_ref().unwrap();
        (0..self.count).for_each(|shard| shards.send(shard, Message::Notice(notice)));
    }

    fn stop(&self) {
        let shards = self.shards.lock().unwrap().take();
        shards.unwrap().stop();
    }
}

/// A guest with its monitor.
struct Machines {
    monitor: Frontend,
    machine: Machine,
    queues: Vec<(Driver, EventFd, EventFd, EventFd)>,
    in_table: bool,
}

impl Machines {
    /// Negotiates, and starts `queues` queues. `area` is the in-flight area of the last server.
    fn boot(
        stream: UnixStream,
        features: u64,
        queues: usize,
        inflight: Option<&(VhostUserInflight, std::fs::File)>,
    ) -> Machines {
        let machine = Machine::with(MEMORY);
        let drivers = (0..queues).map(|index| {
            let at = index as u64 * RINGS;
            Driver::at(at, 16, features & PACKED != 0, features & EVENT_INDEX != 0)
        });
        Machines::resume(stream, features, machine, drivers.collect(), inflight)
    }

    /// [`Self::boot`] with rings that are already in use.
    fn resume(
        stream: UnixStream,
        features: u64,
        machine: Machine,
        drivers: Vec<Driver>,
        inflight: Option<&(VhostUserInflight, std::fs::File)>,
    ) -> Machines {
        let mut monitor = Frontend::from_stream(stream, 64);
        monitor.set_owner().unwrap();
        let offered = monitor.get_features().unwrap();
        let features = VERSION_1 | PROTOCOL | features;
        assert_eq!(features & !offered, 0);
        let protocol = monitor.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::BACKEND_REQ;
        assert!(protocol.contains(wanted) && protocol.contains(VhostUserProtocolFeatures::STATUS));
        monitor.set_protocol_features(wanted).unwrap();
        monitor.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        monitor.set_features(features).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: machine.file.as_raw_fd(),
        };
        monitor.add_mem_region(&region).unwrap();
        if let Some((shape, file)) = inflight {
            monitor.set_inflight_fd(shape, file.as_raw_fd()).unwrap();
        }
        let mut queues = Vec::new();
        for (index, driver) in drivers.into_iter().enumerate() {
            let eventfd = || EventFd::new(EFD_NONBLOCK).unwrap();
            let (kick, call, error) = (eventfd(), eventfd(), eventfd());
            let at = driver.layout.addresses;
            let config = VringConfigData {
                queue_max_size: driver.layout.size,
                queue_size: driver.layout.size,
                flags: 0,
                desc_table_addr: at.descriptors,
                used_ring_addr: at.device,
                avail_ring_addr: at.driver,
                log_addr: None,
            };
            monitor.set_vring_num(index, driver.layout.size).unwrap();
            monitor.set_vring_base(index, driver.base() as u16).unwrap();
            monitor.set_vring_addr(index, &config).unwrap();
            monitor.set_vring_call(index, &call).unwrap();
            monitor.set_vring_err(index, &error).unwrap();
            monitor.set_vring_kick(index, &kick).unwrap();
            monitor.set_vring_enable(index, true).unwrap();
            queues.push((driver, kick, call, error));
        }
        Machines { monitor, machine, queues, in_table: features & INDIRECT != 0 }
    }

    /// Submits a request; `at` is the index of its data, in units of 4 KiB.
    fn submit(&mut self, queue: usize, op: u32, sector: u64, length: u32, at: u64) {
        let data = MEMORY / 2 + at * 4096;
        let header = MEMORY / 2 + at * 4096 + 3072;
        let mut bytes = op.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        bytes.extend([0xff; 2]);
        self.machine.set(header, &bytes);
        let mut parts = vec![(header, 16, false)];
        if length > 0 {
            parts.push((data, length, op != 1));
        }
        parts.push((header + 16, 1, true));
        let (driver, kick, ..) = &mut self.queues[queue];
        driver.submit(&self.machine, &parts, self.in_table).expect("there is room");
        if driver.wants_kick(&self.machine) {
            kick.write(1).unwrap();
        }
    }

    /// Waits for the next used buffer of a queue, like a guest that sleeps until a call.
    fn wait(&mut self, queue: usize) -> u32 {
        let (driver, _, call, _) = &mut self.queues[queue];
        let start = Instant::now();
        loop {
            if let Some((_, length)) = driver.used(&self.machine) {
                return length;
            }
            driver.want_calls(&self.machine, true);
            if let Some((_, length)) = driver.used(&self.machine) {
                return length;
            }
            while call.read().is_err() {
                std::thread::sleep(Duration::from_micros(200));
                assert!(start.elapsed() < PATIENCE, "no call comes");
            }
        }
    }

    fn status(&self, at: u64) -> u8 {
        // SAFETY: this is memory of the test.
        unsafe { self.machine.at(MEMORY / 2 + at * 4096 + 3072 + 16).read_volatile() }
    }

    fn fill(&self, at: u64, byte: u8, length: usize) {
        self.machine.set(MEMORY / 2 + at * 4096, &vec![byte; length]);
    }

    fn data(&self, at: u64, length: usize) -> Vec<u8> {
        // SAFETY: as above.
        (0..length as u64)
            .map(|byte| unsafe { self.machine.at(MEMORY / 2 + at * 4096 + byte).read_volatile() })
            .collect()
    }

    /// Writes and reads back, on all queues at the same time.
    fn exercise(&mut self, rounds: u64) {
        for round in 0..rounds {
            let queues = self.queues.len() as u64;
            for queue in 0..queues {
                for deep in 0..4 {
                    let at = queue * 16 + deep;
                    self.fill(at, (round * 31 + at) as u8, 1024);
                    self.submit(queue as usize, 1, at * 8, 1024, at);
                }
            }
            for queue in 0..queues {
                (0..4).for_each(|_| assert_eq!(self.wait(queue as usize), 1));
            }
            for queue in 0..queues {
                for deep in 0..4 {
                    self.submit(
                        queue as usize,
                        0,
                        (queue * 16 + deep) * 8,
                        1024,
                        queue * 16 + deep + 8,
                    );
                }
            }
            for queue in 0..queues {
                (0..4).for_each(|_| assert_eq!(self.wait(queue as usize), 1025));
                for deep in 0..4 {
                    let at = queue * 16 + deep;
                    assert_eq!((self.status(at), self.status(at + 8)), (0, 0));
                    assert_eq!(self.data(at + 8, 1024), vec![(round * 31 + at) as u8; 1024]);
                }
            }
        }
    }
}

#[test]
fn a_guest_writes_and_reads_on_four_queues() {
    for poll in [Poll::Auto, Poll::Never, Poll::Always] {
        let host = Host::start(2, poll);
        for features in [0, EVENT_INDEX, PACKED, PACKED | EVENT_INDEX | INDIRECT, INDIRECT | FLUSH]
        {
            let mut guest = Machines::boot(host.connect(false), features, 4, None);
            guest.exercise(20);
            // A queue is stopped, and then continues at its position.
            let base = guest.monitor.get_vring_base(1).unwrap();
            let expected = if features & PACKED == 0 { 160 } else { 0x8000_8000 };
            assert_eq!(base, expected, "eight chains in each of twenty rounds");
        }
        host.stop();
    }
}

#[test]
fn requests_of_all_kinds_are_answered() {
    let host = Host::start(1, Poll::Auto);
    let mut guest = Machines::boot(host.connect(false), FLUSH | INDIRECT, 1, None);
    guest.fill(1, 7, 1024);
    guest.submit(0, 1, 2, 1024, 1);
    guest.wait(0);
    guest.submit(0, 4, 0, 0, 2);
    assert_eq!((guest.wait(0), guest.status(2)), (1, 0));
    guest.submit(0, 8, 0, 20, 3);
    assert_eq!((guest.wait(0), guest.status(3)), (21, 0));
    assert_eq!(guest.data(3, 3), b"db\0");
    // These requests are beyond the end, unaligned, and unknown.
    guest.submit(0, 0, DISK / 512, 512, 4);
    assert_eq!((guest.wait(0), guest.status(4)), (1, 1));
    guest.submit(0, 0, 0, 100, 5);
    assert_eq!((guest.wait(0), guest.status(5)), (1, 1));
    guest.submit(0, 99, 0, 512, 6);
    assert_eq!((guest.wait(0), guest.status(6)), (1, 2));
    let (_, config) =
        guest.monitor.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &[0; 60]).unwrap();
    assert_eq!(config[..8], (DISK / 512).to_le_bytes());
    assert!(CONFIG > config.len());
    let mut guest = Machines::boot(host.connect(true), 1 << 5, 1, None);
    guest.submit(0, 1, 0, 512, 1);
    assert_eq!((guest.wait(0), guest.status(1)), (1, 1), "the disk is read-only");
    drop(guest);
    host.stop();
}

#[test]
fn a_guest_that_breaks_the_rules_fails_alone() {
    let host = Host::start(1, Poll::Auto);
    let mut other = Machines::boot(host.connect(false), 0, 1, None);
    for packed in [0, PACKED] {
        let mut guest = Machines::boot(host.connect(false), packed, 2, None);
        guest.exercise(1);
        // The header is at an address outside the guest's memory.
        let (driver, kick, _, error) = &mut guest.queues[0];
        driver.submit(&guest.machine, &[(MEMORY, 16, false), (MEMORY / 2, 1, true)], false);
        kick.write(1).unwrap();
        let start = Instant::now();
        while error.read().is_err() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(start.elapsed() < PATIENCE, "the fault is not reported");
        }
        other.exercise(2);
        // After a reset the device works again.
        guest.monitor.reset_device().unwrap();
        let stream = host.connect(false);
        drop(guest);
        Machines::boot(stream, packed, 1, None).exercise(1);
    }
    // The memory of this guest disappears.
    let mut guest = Machines::boot(host.connect(false), 0, 1, None);
    guest.exercise(1);
    guest.machine.file.set_len(MEMORY / 4).unwrap();
    guest.queues[0].1.write(1).unwrap();
    let (driver, kick, _, error) = &mut guest.queues[0];
    driver.submit(&guest.machine, &[(MEMORY / 2, 16, false), (MEMORY / 2 + 64, 1, true)], false);
    kick.write(1).unwrap();
    host.notify(Notice::Second);
    let start = Instant::now();
    while error.read().is_err() {
        std::thread::sleep(Duration::from_millis(1));
        host.notify(Notice::Second);
        assert!(start.elapsed() < PATIENCE, "the lost memory is not reported");
    }
    other.exercise(2);
    host.stop();
}

/// A monitor does not read its eventfd for faults: the write of each fault ends with its queue.
#[test]
fn faults_that_a_monitor_does_not_read_do_not_add_up() {
    let host = Host::start(1, Poll::Auto);
    let error = EventFd::new(0).unwrap();
    error.write(u64::MAX - 1).unwrap();
    for _ in 0..30 {
        let mut guest = Machines::boot(host.connect(false), 0, 1, None);
        let (ours, theirs) = UnixStream::pair().unwrap();
        guest.monitor.set_backend_request_fd(&theirs).unwrap();
        let base = guest.monitor.get_vring_base(0).unwrap();
        guest.monitor.set_vring_err(0, &error).unwrap();
        guest.monitor.set_vring_base(0, base as u16).unwrap();
        let (driver, kick, ..) = &mut guest.queues[0];
        driver.submit(&guest.machine, &[(MEMORY, 16, false), (MEMORY / 2, 1, true)], false);
        kick.write(1).unwrap();
        guest.monitor.set_vring_kick(0, kick).unwrap();
        std::io::Read::read_exact(&mut &ours, &mut [0; 12]).unwrap();
        drop(guest);
        let start = Instant::now();
        while !host.sessions.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(start.elapsed() < PATIENCE, "the session does not end");
        }
    }
    assert_eq!(error.read().unwrap(), u64::MAX - 1);
    Machines::boot(host.connect(false), 0, 1, None).exercise(5);
    // SAFETY: the eventfd stays open until the end of the test.
    let error = unsafe { BorrowedFd::borrow_raw(error.as_raw_fd()) };
    let mut ready = [PollFd::from_borrowed_fd(error, PollFlags::IN)];
    let count = poll(&mut ready, Some(&Timespec::default())).unwrap();
    assert_eq!(count, 0, "a write has outlived its queue");
    host.stop();
}

#[test]
fn the_next_server_executes_recorded_requests_again() {
    for features in [0, PACKED, PACKED | EVENT_INDEX, INDIRECT] {
        let first = Host::start(1, Poll::Auto);
        let mut guest = Machines::boot(first.connect(false), features, 0, None);
        let shape = VhostUserInflight { num_queues: 1, queue_size: 16, ..Default::default() };
        let area = guest.monitor.get_inflight_fd(&shape).unwrap();
        let mut guest = Machines::boot(first.connect(false), features, 1, Some(&area));
        guest.exercise(5);
        first.stop();
        // The next server gets the requests that arrived while there was no server, and two that
        // the previous server had taken.
        guest.fill(1, 9, 512);
        guest.submit(0, 1, 0, 512, 1);
        let Machines { machine, queues, .. } = guest;
        let drivers = queues.into_iter().map(|(driver, ..)| driver).collect();
        let next = Host::start(1, Poll::Auto);
        let mut guest =
            Machines::resume(next.connect(false), features, machine, drivers, Some(&area));
        assert_eq!((guest.wait(0), guest.status(1)), (1, 0));
        guest.exercise(5);
        drop(guest);
        next.stop();
    }
}

#[test]
fn a_disk_that_grows_or_goes_is_noticed() {
    let host = Host::start(2, Poll::Auto);
    let mut guest = Machines::boot(host.connect(false), 0, 2, None);
    let (ours, theirs) = UnixStream::pair().unwrap();
    guest.monitor.set_backend_request_fd(&theirs).unwrap();
    guest.exercise(1);
    let (flow, size) = (host.flow, DISK / 2);
    host.sessions.resize(flow, size, || host.notify(Notice::Resize { flow, size }));
    let mut header = [0; 12];
    std::io::Read::read_exact(&mut &ours, &mut header).unwrap();
    assert_eq!(header[..8], [2, 0, 0, 0, 1, 0, 0, 0]);
    guest.submit(0, 0, DISK / 2 / 512, 512, 1);
    assert_eq!((guest.wait(0), guest.status(1)), (1, 1));
    host.notify(Notice::Detach { flow: host.flow, cut_off: false });
    let start = Instant::now();
    while host.sessions.count(host.flow) > 0 {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < PATIENCE, "the session does not end");
    }
    host.stop();
}
