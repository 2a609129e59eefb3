//! Driver for guests of the vfio-user front end: arbitrary messages, entries, registers and memory,
//! on a running shard.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use fairq_core::none::NonePolicy;
use fairq_core::{FlowId, Native, Policy, Weight};
use fairq_host::device::nvme::spec::{CC_ENABLE, CC_ENTRY_SIZES, nvm, register};
use fairq_host::device::ram::RamDevice;
use fairq_host::front::attach::{Attachment, Disk, Places};
use fairq_host::front::socket;
use fairq_host::front::vfio_user::controllers::Controllers;
use fairq_host::front::vfio_user::framing::command;
use fairq_host::front::vfio_user::queue_groups::VfioUserFront;
use fairq_host::front::vhost::inflight;
use fairq_host::front::vhost::vrings::Poll;
use fairq_host::io::wakers::Wakers;
use fairq_host::shard::Message;
use fairq_host::shard::pool::{Shards, policy_loops};
use fairq_host::shard::shared::Common;
use fairq_host::shard::volume::Volume;

const MEMORY: u64 = 1 << 20;
const BUS: u64 = 1 << 32;
/// The disk, of which the hostile guest's tenant has the middle third.
const THIRD: u64 = 1 << 20;
const DISK: u64 = 3 * THIRD;
/// Entries of each queue; the submission queues are `QUEUE` apart, and each completion queue lies
/// in the second half of that.
const ENTRIES: u16 = 16;
const QUEUE: u64 = 0x2000;
const SQE: usize = 64;

struct Host {
    shards: Arc<Mutex<Option<Shards<RamDevice, VfioUserFront>>>>,
    controllers: Controllers,
    places: Arc<Places>,
    flow: FlowId,
}

impl Host {
    fn start() -> Host {
        let (policy, ports) = NonePolicy::<Native>::new(1, 2, 1024).expect("the bounds are right");
        let flow = policy.add_flow(Weight::DEFAULT).expect("there is room");
        let device = Arc::new(RamDevice::new(DISK).expect("there is memory"));
        let wakers = Arc::new(Wakers::new(1).expect("there are files"));
        let common = Common::new(device, wakers, 1024, 2);
        let front = |_| Ok(VfioUserFront::new(Poll::Never, common.weights.clone()));
        let shards = Shards::start(policy_loops(ports), &common, &[], front);
        let shards = Arc::new(Mutex::new(Some(shards.expect("there are threads"))));
        let (controllers, places) = (Controllers::default(), Arc::new(Places::new(1, 4)));
        Host { shards, controllers, places, flow }
    }

    fn connect(&self, base: u64, size: u64) -> Guest {
        let (stream, theirs) = UnixStream::pair().expect("there are files");
        let (tenant, flow, file, read_only) = (0, self.flow, 0, false);
        let volume = Volume { tenant, flow, file, base, size, read_only, block: 512 };
        let disk = Disk { name: "db".into(), volume, block: 4096, preferred: 4096, whole: None };
        let shards = self.shards.clone();
        let send = move |shard, message| {
            if let Some(shards) = &*shards.lock().expect("nothing panics") {
                shards.send(shard, Message::Front(message));
            }
        };
        let place = Attachment::new(self.places.clone());
        let session = self.controllers.spawn(theirs, disk, 1, Arc::new(send), place);
        let memory = inflight::create(MEMORY).expect("there is memory");
        let session = session.expect("there are threads");
        let mut guest = Guest { stream, session, memory, tails: [0; 4] };
        guest.enable();
        guest
    }
}

struct Guest {
    stream: UnixStream,
    session: std::thread::JoinHandle<()>,
    memory: std::fs::File,
    tails: [u16; 4],
}

impl Guest {
    /// The reply's body; nothing for an error, and `None` if the session has ended.
    fn call(&mut self, number: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Option<Vec<u8>> {
        let head = u32::from(number) << 16 | 7;
        let header = [head, 16 + body.len() as u32, 0, 0].map(u32::to_ne_bytes).concat();
        socket::send(&self.stream, &[&header, body].concat(), files).ok()?;
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).ok()?;
        let size = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let mut reply = vec![0; size.checked_sub(16).expect("a size includes the header") as usize];
        self.stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }

    fn write(&mut self, at: u64, value: u32) -> Option<Vec<u8>> {
        let place = [at, 4 << 32].map(u64::to_ne_bytes).concat();
        self.call(command::REGION_WRITE, &[&place[..], &value.to_le_bytes()].concat(), &[])
    }

    fn enable(&mut self) {
        self.call(command::VERSION, &[0; 4], &[]);
        let file = self.memory.try_clone().expect("there are files");
        let map = [32 | 3 << 32, 0, BUS, MEMORY].map(u64::to_ne_bytes).concat();
        self.call(command::DMA_MAP, &map, &[file.as_fd()]);
        let size = u32::from(ENTRIES - 1);
        let [asq, acq, high] = [BUS as u32, (BUS + QUEUE / 2) as u32, (BUS >> 32) as u32];
        for (at, value) in [
            (register::AQA, size << 16 | size),
            (register::ASQ, asq),
            (register::ASQ + 4, high),
            (register::ACQ, acq),
            (register::ACQ + 4, high),
            (register::CC, CC_ENABLE | CC_ENTRY_SIZES),
        ] {
            self.write(at.into(), value);
        }
    }

    fn fill(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at % (MEMORY - SQE as u64)).expect("it is memory");
    }

    /// Puts an entry in a queue and rings.
    fn push(&mut self, queue: usize, entry: &[u8]) -> Option<Vec<u8>> {
        let tail = self.tails[queue];
        self.fill(queue as u64 * QUEUE + u64::from(tail) * SQE as u64, entry);
        self.tails[queue] = (tail + 1) % ENTRIES;
        self.write(u64::from(register::DOORBELLS) + 8 * queue as u64, self.tails[queue].into())
    }

    fn admin(&mut self, opcode: u8, cdw10: u32, cdw11: u32, data: u64) {
        self.push(0, &entry(opcode, 0, data, cdw10, cdw11, 0));
    }

    fn leave(self) {
        drop(self.stream);
        self.session.join().expect("a session does not panic");
    }
}

fn entry(opcode: u8, nsid: u32, data: u64, cdw10: u32, cdw11: u32, cdw12: u32) -> Vec<u8> {
    let mut words = [0u32; 16];
    (words[0], words[1]) = (opcode.into(), nsid);
    (words[6], words[7]) = (data as u32, (data >> 32) as u32);
    (words[10], words[11], words[12]) = (cdw10, cdw11, cdw12);
    words.map(u32::to_le_bytes).concat()
}

/// Records of 66 bytes: what, where, and 64 bytes.
///
/// ```text
///   0  an entry of the admin queue      3  memory: the 64 bytes, at 64 times the first two
///   1  an entry of I/O queue 1 to 3     4  a message of number `where`: the first byte has the
///   2  a write of BAR 0: offset, value     number of files (bits 0, 1) and their kind (bit 2),
///                                          the second one the length, and the body follows
/// ```
///
/// For all records, nothing panics, no byte of the disk beside the tenant's changes, and another
/// guest's controller works meanwhile and afterwards.
pub fn controller(data: &[u8]) {
    let host = Host::start();
    let mut other = host.connect(0, DISK);
    other.admin(0x05, 15 << 16 | 1, 1, BUS + QUEUE + QUEUE / 2);
    other.admin(0x01, 15 << 16 | 1, 1 << 16 | 1, BUS + QUEUE);
    let mut hostile = host.connect(THIRD, THIRD);
    for record in data.chunks_exact(2 + SQE) {
        let (what, place, bytes) = (record[0] % 5, record[1], &record[2..]);
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let went_on = match what {
            0 => hostile.push(0, bytes),
            1 => hostile.push(1 + usize::from(place % 3), bytes),
            2 => hostile.write(word(0).into(), word(4)),
            3 => {
                hostile.fill(u64::from(word(0) as u16) * SQE as u64, bytes);
                Some(Vec::new())
            }
            _ => {
                let files: Vec<OwnedFd> =
                    (0..bytes[0] & 3).map(|_| opened(bytes[0] >> 2 & 1)).collect();
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                let length = usize::from(bytes[1]).min(SQE - 2);
                hostile.call(place.into(), &bytes[2..2 + length], &files)
            }
        };
        if went_on.is_none() {
            break;
        }
    }
    hostile.leave();
    for lba in [0, (2 * THIRD / 512) as u32] {
        let length = 512 * 256;
        for part in 0..(THIRD / length) as u32 {
            let page = BUS + MEMORY / 2;
            let list: Vec<u8> = (1..32).flat_map(|at| (page + at * 4096).to_le_bytes()).collect();
            other.memory.write_all_at(&list, MEMORY / 4).expect("it is memory");
            other.memory.write_all_at(&[7; 128 << 10], MEMORY / 2).expect("it is memory");
            let mut read = entry(nvm::READ, 1, page, lba + part * 256, 0, 255);
            read[32..40].copy_from_slice(&(BUS + MEMORY / 4).to_le_bytes());
            other.push(1, &read);
            other.wait();
            let mut bytes = vec![0; 128 << 10];
            other.memory.read_exact_at(&mut bytes, MEMORY / 2).expect("it is memory");
            assert!(bytes.iter().all(|&byte| byte == 0), "another tenant's bytes");
        }
    }
    other.leave();
    let shards = host.shards.lock().expect("nothing panics").take();
    shards.expect("they run").stop();
}

impl Guest {
    /// Waits for the completion of the last entry of queue 1, which must be good. The queue has
    /// completions of its first pass only, whose phase is 1.
    fn wait(&mut self) {
        let index = u64::from((self.tails[1] + ENTRIES - 1) % ENTRIES);
        let at = QUEUE + QUEUE / 2 + 16 * index;
        loop {
            let mut words = [0; 16];
            self.memory.read_exact_at(&mut words, at).expect("it is memory");
            let status = u16::from_le_bytes([words[14], words[15]]);
            if status != 0 {
                assert!(status == 1, "status {status:x}");
                break;
            }
            std::thread::yield_now();
        }
        self.memory.write_all_at(&[0; 16], at).expect("it is memory");
        self.write(u64::from(register::DOORBELLS) + 12, self.tails[1].into());
    }
}

fn opened(kind: u8) -> OwnedFd {
    match kind {
        0 => inflight::create(1 << 16).expect("there is memory").into(),
        _ => {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).expect("there are files")
        }
    }
}
