//! Merged requests, and the results of their parts.

use std::io;

use fairq_core::serial::SerialConfig;
use fairq_core::sfqd::{Sfqd, SfqdPort};
use fairq_core::{FlowId, FlowStats, Growth, Native, Policy, Reason, SubmitError, Weight};

use super::*;
use crate::device::store::Store;
use crate::device::{Info, Place};
use crate::io::memory::{Buffer, Region};
use crate::io::wakers::Wakers;
use crate::shard::volume::{Piece, Volume};

const TAGS: usize = 64;
const BLOCK: u32 = 4096;

/// Memory with a bad block, which records the offsets and lengths of the commands that it receives.
struct Flawed {
    info: Info,
    store: Arc<Store>,
    bad: u64,
}

struct FlawedQueue {
    store: Arc<Store>,
    bad: u64,
    sent: Vec<(u64, u32)>,
    done: Vec<Completion>,
}

impl Device for Flawed {
    type Queue = FlawedQueue;
    fn info(&self) -> &Info {
        &self.info
    }
    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<FlawedQueue> {
        Ok(FlawedQueue {
            store: self.store.clone(),
            bad: self.bad,
            sent: Vec::new(),
            done: Vec::new(),
        })
    }
}

impl FlawedQueue {
    fn note(&mut self, command: &Command, carry_out: impl FnOnce(&Store) -> i32) {
        self.sent.push((command.offset, command.length));
        let range = command.offset..command.offset + u64::from(command.length);
        let errno = if range.contains(&self.bad) { libc::EIO } else { carry_out(&self.store) };
        self.done.push(Completion { tag: command.tag, errno });
    }
}

impl Queue for FlawedQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &Command, rest: &[Memory]) {
        assert!(command.fits(rest));
        // SAFETY: the caller vouches for the memory.
        self.note(command, |store| unsafe { store.execute_all(command, rest) });
    }
    fn reap(
        &mut self,
        _now_ns: u64,
        _ring: &mut Ring,
        done: &mut Vec<Completion>,
        _wake: &mut PortSet,
    ) {
        done.append(&mut self.done);
    }
}

struct Bench {
    policy: Sfqd,
    path: DataPath<SfqdPort, Flawed>,
    ring: Ring,
    flow: FlowId,
    region: Region,
    buffers: Vec<Buffer>,
}

impl Bench {
    fn new(bad: u64) -> Bench {
        let config = SerialConfig::new(1, 1, TAGS).with(|config| {
            config.slots = 1;
            config.merge_bytes = 1 << 16;
        });
        let (policy, mut ports) = Sfqd::<Native>::new(&config).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let store = Arc::new(Store::map(1 << 20).unwrap());
        let device =
            Flawed { info: crate::device::ram::memory_info("flawed", 1 << 20), store, bad };
        let common = Common::new(Arc::new(device), Arc::new(Wakers::new(1).unwrap()), TAGS, 1);
        let mut ring = Ring::new(0).unwrap();
        let place = Place { port: PortId(0), ports: 1, wakers: common.wakers.clone() };
        let queue = common.device.open_queue(&place, &mut ring).unwrap();
        let path = DataPath::new(PortId(0), queue, &common).with_port(ports.remove(0));
        Bench {
            policy,
            path,
            ring,
            flow,
            region: Region::map(1 << 20).unwrap(),
            buffers: Vec::new(),
        }
    }

    fn submit(&mut self, op: Op, block: u64, fua: bool) {
        let mut buffer = self.region.allocate(BLOCK).unwrap();
        buffer.bytes_mut().fill(if op == Op::Write { block as u8 + 1 } else { 0xee });
        let (offset, cookie) = (block * u64::from(BLOCK), self.buffers.len() as u64);
        let piece = Piece { fua, ..Piece::new(op, offset, BLOCK, buffer.memory(), cookie) };
        let order = volume(self.flow).order(&piece).unwrap();
        self.buffers.push(buffer);
        // SAFETY: the buffers outlive the orders and are not accessed before `run` has received all
        // finished orders.
        unsafe { self.path.submit(0, &mut self.ring, &order, &[]) }.unwrap();
    }

    /// Runs until no order is left; returns the errno of each order, in the order of submission,
    /// and the commands that the device received.
    fn run(&mut self) -> (Vec<i32>, Vec<(u64, u32)>) {
        let mut errnos = vec![-1; self.buffers.len()];
        while self.path.dispatch(0, &mut self.ring) || !self.path.is_idle() {
            self.path.reap(0, &mut self.ring);
            while let Some(Finished { cookie, errno, .. }) = self.path.finished() {
                assert_eq!(
                    std::mem::replace(&mut errnos[cookie as usize], errno),
                    -1,
                    "finished once"
                );
            }
        }
        assert_eq!(self.policy.stats().free_slots, Some(1));
        let sent = std::mem::take(&mut self.path.queue.sent);
        (
            errnos,
            sent.into_iter()
                .map(|(offset, length)| (offset / u64::from(BLOCK), length / BLOCK))
                .collect(),
        )
    }

    fn free(&mut self) -> Vec<u8> {
        let first = |buffer: &Buffer| buffer.bytes()[0];
        let bytes = self.buffers.iter().map(first).collect();
        self.buffers.drain(..).for_each(|buffer| self.region.free(buffer));
        bytes
    }
}

#[test]
fn adjacent_requests_are_one_command_up_to_the_barrier() {
    let mut bench = Bench::new(u64::MAX);
    // The blocks are submitted in ascending order, then one before them and one after a gap. A
    // durable write and one adjacent to it follow.
    [4, 5, 6, 3, 9].into_iter().for_each(|block| bench.submit(Op::Write, block, false));
    bench.submit(Op::Write, 7, true);
    bench.submit(Op::Write, 8, false);
    let (errnos, sent) = bench.run();
    assert_eq!((errnos, sent), (vec![0; 7], vec![(3, 4), (9, 1), (7, 1), (8, 1)]));
    assert_eq!(bench.path.report(0).counters.joined, 3);
    bench.free();
    (2..11).for_each(|block| bench.submit(Op::Read, block, false));
    let (errnos, sent) = bench.run();
    assert_eq!((errnos, sent), (vec![0; 9], vec![(2, 9)]));
    assert_eq!(bench.free(), [0, 4, 5, 6, 7, 8, 9, 10, 0], "each reads what was written there");
}

/// The error belongs to the request that has the bad block, and to no other.
#[test]
fn the_parts_of_a_failed_command_go_alone() {
    let mut bench = Bench::new(5 * u64::from(BLOCK));
    (3..8).for_each(|block| bench.submit(Op::Write, block, false));
    let (errnos, sent) = bench.run();
    assert_eq!(errnos, [0, 0, libc::EIO, 0, 0]);
    assert_eq!(sent, [(3, 5), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]);
    bench.free();
    (6..8).for_each(|block| bench.submit(Op::Read, block, false));
    assert_eq!(bench.run().1, [(6, 2)]);
    assert_eq!(bench.free(), [7, 8]);
}

/// Stretches of memory, in order, each filled with its own byte.
fn stretches(buffers: &mut [Buffer], byte: u8) -> Vec<Memory> {
    let memory = |(index, buffer): (usize, &mut Buffer)| {
        buffer.bytes_mut().fill(byte + index as u8);
        buffer.memory()
    };
    buffers.iter_mut().enumerate().map(memory).collect()
}

/// Orders whose data are in several stretches are merged with their neighbours, and each part is
/// issued alone if the command fails.
#[test]
fn the_stretches_of_an_order_stay_with_it() {
    for bad in [u64::MAX, 3 * u64::from(BLOCK)] {
        let mut bench = Bench::new(bad);
        let allocate = |bench: &mut Bench| bench.region.allocate(BLOCK / 4).unwrap();
        let mut memory: Vec<Vec<Buffer>> = Vec::new();
        for order in 0..3_u64 {
            let mut buffers: Vec<Buffer> = (0..4).map(|_| allocate(&mut bench)).collect();
            let all = stretches(&mut buffers, 10 * order as u8);
            let write = Piece::new(Op::Write, (2 + order) * u64::from(BLOCK), BLOCK, all[0], order);
            let write = volume(bench.flow).order(&write).unwrap();
            // SAFETY: the buffers outlive the orders and are not accessed until `run` has received
            // them.
            unsafe { bench.path.submit(0, &mut bench.ring, &write, &all[1..]) }.unwrap();
            // An order whose stretches do not match its length is refused, and the device does not
            // receive it.
            // SAFETY: as above.
            unsafe { bench.path.submit(0, &mut bench.ring, &write, &all[2..]) }.unwrap();
            bench.path.reap(0, &mut bench.ring);
            let refused = bench.path.finished().unwrap();
            assert_eq!((refused.cookie, refused.errno), (order, libc::EINVAL));
            memory.push(buffers);
            let placeholder = allocate(&mut bench);
            bench.buffers.push(placeholder);
        }
        let (errnos, sent) = bench.run();
        let is_bad = bad != u64::MAX;
        assert_eq!(errnos, [0, if is_bad { libc::EIO } else { 0 }, 0]);
        assert_eq!(sent.len(), if is_bad { 4 } else { 1 });
        bench.free();
        [2, 4].into_iter().for_each(|block| bench.submit(Op::Read, block, false));
        bench.run();
        for (buffer, first) in bench.buffers.iter().zip([0, 20]) {
            let quarters = buffer.bytes().chunks(BLOCK as usize / 4);
            for (quarter, byte) in quarters.zip(first..) {
                assert!(quarter.iter().all(|&one| one == byte));
            }
        }
        bench.free();
        memory.into_iter().flatten().for_each(|buffer| bench.region.free(buffer));
    }
}

/// Each front end receives its own orders back, and cancels no others.
#[test]
fn an_order_is_its_front_ends() {
    let mut bench = Bench::new(u64::MAX);
    for asker in [Asker::Shard, Asker::Nbd, Asker::Ublk] {
        bench.path.serve(asker);
        bench.submit(Op::Write, bench.buffers.len() as u64 * 2, false);
    }
    bench.path.serve(Asker::Nbd);
    bench.path.cancel(0, libc::ECANCELED, |_| true);
    let mut ended = Vec::new();
    while bench.path.dispatch(0, &mut bench.ring) || !bench.path.is_idle() {
        bench.path.reap(0, &mut bench.ring);
        ended.extend(std::iter::from_fn(|| bench.path.finished()));
    }
    ended.sort_by_key(|one| one.cookie);
    let ended: Vec<_> = ended.iter().map(|one| (one.asker, one.cookie, one.errno)).collect();
    let nbd = (Asker::Nbd, 1, libc::ECANCELED);
    assert_eq!(ended, [(Asker::Shard, 0, 0), nbd, (Asker::Ublk, 2, 0)]);
    bench.free();
}

/// A policy's port that issues all requests at once and records the calls.
#[derive(Default)]
struct Spy(Vec<Request>);

impl Port for Spy {
    const IS_DIRECT: bool = true;

    fn submit(
        &mut self,
        _now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        self.0.push(*request);
        Ok(Submitted::Issue { class: Class::Medium })
    }

    fn next(&mut self, _now_ns: u64, _wake: &mut PortSet) -> Next {
        Next::Idle
    }

    fn complete(&mut self, _now_ns: u64, _tag: Tag, _outcome: Outcome, _: &mut PortSet) -> bool {
        true
    }

    fn admit(&self, _flow: FlowId) -> Result<(), SubmitError> {
        Ok(())
    }

    fn cancel(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
        false
    }

    fn expedite(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> bool {
        false
    }

    fn hold(&mut self, _tag: Tag, _flow: FlowId) -> Result<(), SubmitError> {
        Ok(())
    }

    fn requeue(&mut self, _now_ns: u64, _tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        Some(Submitted::Issue { class: Class::Medium })
    }

    fn grow(&mut self, _now_ns: u64, _tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
        false
    }

    fn has_work(&self) -> bool {
        false
    }

    fn staged(&self, _flow: FlowId) -> Option<Tag> {
        None
    }

    fn flow_stats(&self, _flow: FlowId) -> FlowStats {
        FlowStats::default()
    }

    fn barrier(&mut self, _flow: FlowId) {}

    fn reason(&self, _tag: Option<Tag>) -> Reason {
        Reason::default()
    }
}

/// The whole device as one tenant's range.
fn volume(flow: FlowId) -> Volume {
    let (tenant, file, base, size) = (0, 0, 0, 1 << 20);
    Volume { tenant, flow, file, base, size, read_only: false, block: 1 }
}

/// The policy receives the length for which the tenant is charged: for blocks that a write covers
/// only in part, for the time of flushes, and for orders that the device never receives.
#[test]
fn the_policy_hears_what_a_request_costs() {
    let mut bench = Bench::new(u64::MAX);
    let (mut path, _) = bench.path.with(Spy::default());
    path.block = 512;
    let buffer = bench.region.allocate(BLOCK).unwrap();
    let volume = volume(bench.flow);
    let order = |op, offset, length| {
        let memory = if length > 0 { buffer.memory() } else { Memory::NONE };
        volume.order(&Piece::new(op, offset, length, memory, 0)).unwrap()
    };
    let orders = [
        (order(Op::Read, 0, BLOCK), 100_000),
        (order(Op::Write, 5, 1), 100_000),
        (volume.void(0), 0),
        (order(Op::Flush, 0, 0), 1_000_000),
        (order(Op::Flush, 0, 0), 1_000_000),
        (volume.void(0), 0),
    ];
    let mut now_ns = 1;
    for (order, takes_ns) in orders {
        // SAFETY: the buffer outlives the order, which is over at the end of the turn.
        unsafe { path.submit(now_ns, &mut bench.ring, &order, &[]) }.unwrap();
        now_ns += takes_ns;
        assert!(path.reap(now_ns, &mut bench.ring));
        assert_eq!(path.finished().map(|finished| finished.errno), Some(0));
    }
    let charged: Vec<u32> = path.port.0.iter().map(|request| request.length).collect();
    // 4 KiB took 100 us, so a flush of 1 ms is charged as ten times 4 KiB.
    assert_eq!(charged, [BLOCK, 8192, 0, 0, 10 * BLOCK, 0]);
    assert_eq!(path.queue.sent.len(), 4, "the device has nothing to do for the others");
    bench.region.free(buffer);
}
