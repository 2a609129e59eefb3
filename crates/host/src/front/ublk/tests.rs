//! Tests the order of a device's requests relative to those of the tenant's other clients. A sparse
//! file replaces the character device: its first bytes are the descriptors, and a request's data
//! are at the request's offset. The file refuses commands, so the tests generate the events of
//! commands.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc;

use fairq_core::none::NonePolicy;
use fairq_core::{FlowId, Native, Policy, Port, PortId, Weight};

use super::disk_queue::Attach;
use super::disk_queues::{Message, UblkFront};
use super::sys;
use crate::device::ram::RamDevice;
use crate::device::{Device, Place};
use crate::front::attach::{Attachment, Places};
use crate::io::budget::Budget;
use crate::io::ring::{Asker, Event, Ring, UserData};
use crate::io::wakers::Wakers;
use crate::shard::fence::{Client, Reach};
use crate::shard::path::DataPath;
use crate::shard::shared::Common;
use crate::shard::volume::Volume;
use crate::shard::{Front, Notice};

const BLOCK: usize = 4096;
const TAGS: usize = 64;
const DEPTH: u16 = 8;

/// A shard with a queue of a block device, without its loop.
struct Bench<P> {
    file: Arc<File>,
    front: UblkFront,
    path: DataPath<P, RamDevice>,
    ring: Ring,
    common: Common<RamDevice>,
}

fn bench() -> Bench<impl Port> {
    let (policy, mut ports) = NonePolicy::<Native>::new(1, 1, TAGS).unwrap();
    let flow = policy.add_flow(Weight::DEFAULT).unwrap();
    let device = Arc::new(RamDevice::new(1 << 20).unwrap());
    let common = Common::new(device, Arc::new(Wakers::new(1).unwrap()), TAGS, 1);
    let mut ring = Ring::new(0).unwrap();
    let place = Place { port: PortId(0), ports: 1, wakers: common.wakers.clone() };
    let queue = common.device.open_queue(&place, &mut ring).unwrap();
    let path = DataPath::new(PortId(0), queue, &common).with_port(ports.remove(0));
    let front = UblkFront::new(common.weights.clone(), Arc::new(Budget::new(64 << 20, 1)));
    let file: File =
        rustix::fs::memfd_create("ublkc", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    file.set_len(sys::data_offset(0, DEPTH)).unwrap();
    let mut bench = Bench { file: Arc::new(file), front, path, ring, common };
    bench.attach(flow);
    bench
}

impl<P: Port> Bench<P> {
    fn attach(&mut self, flow: FlowId) {
        let place = Attachment::new(Arc::new(Places::new(1, 1))).take(0).unwrap();
        let (tenant, file, base, size) = (0, 0, 0, 1 << 20);
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 512 };
        let attach = Attach { file: self.file.clone(), queue: 0, depth: DEPTH, volume, place };
        let (reply, attached) = mpsc::channel();
        self.path.serve(Asker::Ublk);
        let message = Message::Attach(Box::new(attach), reply);
        self.front.message(0, &mut self.ring, &mut self.path, message);
        attached.recv().unwrap().unwrap();
    }

    /// Delivers a request of one block as the kernel does; `data` fills its block if it is a write.
    fn arrive(&mut self, tag: u16, operation: u32, block: u64, data: u8) {
        let mut descriptor = [0; size_of::<sys::IoDescriptor>()];
        descriptor[..4].copy_from_slice(&operation.to_ne_bytes());
        descriptor[4..8].copy_from_slice(&(BLOCK as u32 / 512).to_ne_bytes());
        descriptor[8..16].copy_from_slice(&(block * BLOCK as u64 / 512).to_ne_bytes());
        self.file.write_all_at(&descriptor, u64::from(tag) * descriptor.len() as u64).unwrap();
        self.file.write_all_at(&[data; BLOCK], sys::data_offset(0, tag)).unwrap();
        let data = UserData { asker: Asker::Ublk, value: tag.into() };
        self.front.event(0, &mut self.ring, Event { data, result: 0 });
    }

    /// Runs more turns than the requests of a test need.
    fn turns(&mut self) {
        for _ in 0..20 {
            self.front.arrivals(0, &mut self.ring, &mut self.path);
            self.path.dispatch(0, &mut self.ring);
            self.path.reap(0, &mut self.ring);
            while let Some(finished) = self.path.finished() {
                self.front.finished(0, finished);
            }
            self.front.flush(0, &mut self.ring);
            self.ring.enter(1, Some(1_000_000));
            while let Some(event) = self.ring.event() {
                // The kind 0 is a command, which the file refuses, so its event is ignored.
                if event.data.value >> 16 & 0xff != 0 {
                    self.front.event(0, &mut self.ring, event);
                }
            }
        }
    }

    /// The first byte of a block, as a read of the device returns it.
    fn read(&mut self, tag: u16, block: u64) -> u8 {
        self.arrive(tag, sys::OP_READ, block, 0xee);
        self.turns();
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, sys::data_offset(0, tag)).unwrap();
        byte[0]
    }

    /// A client of another front end that has disconnected with a write of block 1 in flight.
    fn vanished(&self) -> Client {
        let mut client = self.path.client(0);
        assert!(client.end());
        client.leave(7, Reach::Bytes { file: 0, start: BLOCK as u64, end: 2 * BLOCK as u64 });
        client
    }

    fn waited(&self) -> u64 {
        self.common.fences.stats().map(|(_, stats)| stats.waited).sum()
    }
}

#[test]
fn requests_wait_for_a_write_to_their_bytes_that_a_vanished_client_has_left() {
    let mut bench = bench();
    assert_eq!(bench.read(0, 1), 0);
    let vanished = bench.vanished();
    bench.arrive(1, sys::OP_WRITE, 2, b'a');
    bench.turns();
    assert_eq!((bench.read(2, 2), bench.waited()), (b'a', 0), "other bytes do not wait");
    bench.arrive(3, sys::OP_WRITE, 1, b'b');
    bench.arrive(4, sys::OP_FLUSH, 0, 0);
    assert_eq!((bench.read(5, 2), bench.waited()), (0xee, 1), "the requests behind it wait");
    vanished.over(7);
    assert!(bench.common.wakers.take_pending(0), "the shard is woken");
    bench.turns();
    assert_eq!((bench.read(6, 1), bench.read(7, 2)), (b'b', b'a'));
    assert_eq!(bench.waited(), 1);
}

#[test]
fn a_request_that_has_waited_too_long_fails() {
    let mut bench = bench();
    let vanished = bench.vanished();
    bench.arrive(0, sys::OP_WRITE, 1, b'a');
    bench.arrive(1, sys::OP_WRITE, 2, b'b');
    bench.turns();
    for _ in 0..=vanished.patience_s() {
        bench.front.notice(0, &mut bench.ring, &mut bench.path, Notice::Second);
    }
    bench.turns();
    assert_eq!(bench.read(2, 2), b'b', "the request behind it goes on");
    vanished.over(7);
    bench.turns();
    assert_eq!(bench.read(3, 1), 0, "it was not executed later");
}
