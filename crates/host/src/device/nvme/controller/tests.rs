//! The controller as a foreign driver meets it: registers, doorbells, and queues in memory, nothing
//! else.

use fairq_core::PortId;
use fairq_device::{Profile, State as DriveState};
use proptest::prelude::*;

use super::*;
use crate::device::nvme::dma::Flat;
use crate::device::nvme::queue::{CqHead, SqTail};
use crate::device::nvme::spec::{CC_ENTRY_SIZES, CC_WRR, Sqe, admin, feature, log, nvm};
use crate::device::nvme::storage::RamStorage;
use crate::device::store::Store;

mod aborts;

const BUS: u64 = 0x10_0000;
const MEMORY: usize = 4 << 20;
/// Where things are in the memory.
const ADMIN_SQ: u64 = BUS;
const ADMIN_CQ: u64 = BUS + 0x1000;
const DATA: u64 = BUS + 0x2000;
const QUEUE_MEMORY: u64 = BUS + 0x10_0000;
const ADMIN_ENTRIES: u16 = 8;
const SIZE: u64 = 1 << 20;

/// A driver that knows no more than the specification.
struct Foreign {
    controller: Controller<Flat>,
    store: Store,
    now_ns: u64,
    admin: Pair,
    pairs: Vec<Pair>,
    /// Where the next queue goes.
    free: u64,
    woken: PortSet,
}

struct Pair {
    id: u16,
    sq: SqTail,
    cq: CqHead,
}

fn options() -> Options {
    Options {
        namespaces: Arc::new(vec![SIZE].into()),
        queues: 8,
        window: 4,
        wrr: true,
        volatile_cache: false,
        discard_zeroes: true,
        timing: None,
    }
}

impl Foreign {
    fn new(options: Options) -> Foreign {
        let controller = Controller::new(options, Flat::map(BUS, MEMORY).unwrap());
        let admin = pair(&controller, 0, ADMIN_SQ, ADMIN_CQ, ADMIN_ENTRIES);
        let store = Store::map(SIZE).unwrap();
        let (pairs, woken) = (Vec::new(), PortSet::EMPTY);
        let mut foreign =
            Foreign { controller, store, now_ns: 0, admin, pairs, free: QUEUE_MEMORY, woken };
        foreign.enable(CC_WRR);
        foreign
    }

    /// With queue pairs of so many entries.
    fn with_pairs(options: Options, entries: &[u16]) -> Foreign {
        let mut foreign = Foreign::new(options);
        for &entries in entries {
            assert_eq!(foreign.create_pair(entries, 1), Status::SUCCESS);
        }
        foreign
    }

    fn enable(&mut self, mechanism: u32) {
        let size = u32::from(ADMIN_ENTRIES - 1);
        self.controller.write32(register::AQA, size << 16 | size);
        self.controller.write64(register::ASQ, ADMIN_SQ);
        self.controller.write64(register::ACQ, ADMIN_CQ);
        self.controller.write32(register::CC, CC_ENABLE | CC_ENTRY_SIZES | mechanism);
        self.poll();
        self.admin = pair(&self.controller, 0, ADMIN_SQ, ADMIN_CQ, ADMIN_ENTRIES);
        (self.pairs, self.free) = (Vec::new(), QUEUE_MEMORY);
    }

    fn csts(&self) -> u32 {
        self.controller.read32(register::CSTS)
    }

    fn poll(&mut self) {
        self.controller.poll(self.now_ns, &mut RamStorage(&self.store), &mut self.woken);
    }

    /// Rings by register, as a foreign driver does.
    fn doorbell(&self, id: u16, is_head: bool, value: u16) {
        let offset = register::DOORBELLS + 4 * (2 * u32::from(id) + u32::from(is_head));
        self.controller.write32(offset, value.into());
    }

    fn admin(&mut self, sqe: Sqe) -> Cqe {
        let tail = self.admin.sq.push(&sqe);
        self.doorbell(0, false, tail);
        self.poll();
        let cqe = self.admin.cq.pop().expect("admin commands are carried out at once");
        self.doorbell(0, true, self.admin.cq.head());
        assert_eq!((cqe.cid, cqe.sqid), (sqe.cid, 0));
        cqe
    }

    fn create_pair(&mut self, entries: u16, qprio: u32) -> Status {
        let id = self.pairs.len() as u16 + 1;
        let (sq, cq) = (self.free, self.free + u64::from(entries) * 64);
        let cq = cq.next_multiple_of(PAGE);
        self.free = (cq + u64::from(entries) * 16).next_multiple_of(PAGE);
        let cdw10 = u32::from(entries - 1) << 16 | u32::from(id);
        let vector = u32::from(id);
        self.controller.set_vector(id, PortSet::only(PortId(id as u8)));
        let create_cq = Sqe {
            opcode: admin::CREATE_CQ,
            cdw10,
            cdw11: vector << 16 | 3,
            data: [cq, 0],
            ..Sqe::default()
        };
        let create_sq = Sqe {
            opcode: admin::CREATE_SQ,
            cdw10,
            cdw11: u32::from(id) << 16 | qprio << 1 | 1,
            data: [sq, 0],
            ..Sqe::default()
        };
        let created = [create_cq, create_sq].map(|sqe| self.admin(sqe).status);
        self.pairs.push(pair(&self.controller, id, sq, cq, entries));
        if created[0] == Status::SUCCESS { created[1] } else { created[0] }
    }

    /// Puts a command in a queue without ringing.
    fn push(&mut self, pair: usize, sqe: Sqe) -> u16 {
        self.pairs[pair].sq.push(&sqe)
    }

    fn ring(&mut self, pair: usize, tail: u16) {
        self.doorbell(self.pairs[pair].id, false, tail);
    }

    fn pop(&mut self, pair: usize) -> Option<Cqe> {
        let cqe = self.pairs[pair].cq.pop()?;
        self.doorbell(self.pairs[pair].id, true, self.pairs[pair].cq.head());
        Some(cqe)
    }

    /// One I/O command from beginning to end.
    fn io(&mut self, sqe: Sqe) -> Status {
        let tail = self.push(0, sqe);
        self.ring(0, tail);
        self.poll();
        self.pop(0).expect("memory answers at once").status
    }

    fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let at = self.controller.dma().at(address, length).unwrap();
        // SAFETY: inside the mapping, and nobody writes there now.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), length) }.to_vec()
    }

    fn fill(&self, address: u64, bytes: &[u8]) {
        let at = self.controller.dma().at(address, bytes.len()).unwrap();
        // SAFETY: inside the mapping, and nobody reads there now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
    }
}

fn pair(controller: &Controller<Flat>, id: u16, sq: u64, cq: u64, entries: u16) -> Pair {
    let at = |address, bytes: usize| {
        controller.dma().at(address, bytes * usize::from(entries)).unwrap().cast()
    };
    let cq_memory = at(cq, 16);
    // SAFETY: inside the mapping; a new queue is not used by the controller yet (nor by a reset one
    // any more).
    unsafe {
        if id == 0 || !controller.read32(register::CSTS) & CSTS_READY != 0 {
            cq_memory.cast::<u8>().as_ptr().write_bytes(0, 16 * usize::from(entries));
        }
        Pair {
            id,
            sq: SqTail::new(SqEntries::new(at(sq, 64), entries)),
            cq: CqHead::new(CqEntries::new(cq_memory, entries)),
        }
    }
}

fn transfer(opcode: u8, cid: u16, lba: u32, blocks: u32, data: u64) -> Sqe {
    Sqe {
        opcode,
        cid,
        nsid: 1,
        data: [data, data + PAGE],
        cdw10: lba,
        cdw12: blocks - 1,
        ..Sqe::default()
    }
}

fn read(cid: u16, lba: u32) -> Sqe {
    transfer(nvm::READ, cid, lba, 1, DATA)
}

#[test]
fn it_starts_stops_and_says_what_it_is() {
    let mut foreign = Foreign::new(options());
    let cap = foreign.controller.read64(register::CAP);
    assert_eq!((cap & 0xffff, cap & CAP_WRR), (4095, CAP_WRR));
    assert_eq!(foreign.csts(), CSTS_READY);
    let identify = |cns: u32, nsid: u32| Sqe {
        opcode: admin::IDENTIFY,
        nsid,
        cdw10: cns,
        data: [DATA, 0],
        ..Sqe::default()
    };
    assert_eq!(foreign.admin(identify(1, 0)).status, Status::SUCCESS);
    let data = foreign.bytes(DATA, 4096);
    assert_eq!((&data[4..13], data[512], data[513], data[516]), (&b"FAIRQ0001"[..], 0x66, 0x44, 1));
    assert_eq!(foreign.admin(identify(0, 1)).status, Status::SUCCESS);
    let data = foreign.bytes(DATA, 4096);
    assert_eq!((data[..8].to_vec(), data[130]), ((SIZE / 512).to_le_bytes().to_vec(), 9));
    assert_eq!(foreign.admin(identify(2, 0)).status, Status::SUCCESS);
    assert_eq!(foreign.bytes(DATA, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(foreign.admin(identify(2, NSID)).status, Status::SUCCESS);
    assert_eq!(foreign.bytes(DATA, 4), [0; 4], "none above the last");
    for (cns, nsid, status) in [
        (0, 2, Status::INVALID_NAMESPACE),
        (0, 0, Status::INVALID_NAMESPACE),
        (2, u32::MAX, Status::INVALID_NAMESPACE),
        (0x77, 0, Status::INVALID_FIELD),
    ] {
        assert_eq!(foreign.admin(identify(cns, nsid)).status, status);
    }
    let beyond = Sqe { data: [BUS + MEMORY as u64, 0], ..identify(1, 0) };
    assert_eq!(foreign.admin(beyond).status, Status::DATA_TRANSFER);
    foreign.controller.write32(register::CC, 0);
    foreign.poll();
    assert_eq!(foreign.csts(), 0);
    for cc in [CC_ENABLE | 2 << 11, CC_ENABLE | 1 << 4, CC_ENABLE | 1 << 7] {
        foreign.controller.write32(register::CC, cc);
        foreign.poll();
        assert_eq!(foreign.csts(), CSTS_FATAL, "{cc:x}");
        foreign.controller.write32(register::CC, 0);
        foreign.poll();
    }
    foreign.doorbell(0, false, 5);
    foreign.poll();
    foreign.enable(0);
    assert_eq!(foreign.csts(), CSTS_READY);
    let status = foreign.admin(identify(1, 0)).status;
    assert_eq!(
        status,
        Status::SUCCESS,
        "a doorbell that was rung while it was disabled means nothing"
    );
}

const NSID: u32 = 1;

#[test]
fn without_wrr_it_is_neither_offered_nor_accepted() {
    let mut foreign = Foreign::new(Options { wrr: false, ..options() });
    assert_eq!(foreign.controller.read64(register::CAP) & CAP_WRR, 0);
    assert_eq!(foreign.csts(), CSTS_FATAL);
    foreign.controller.write32(register::CC, 0);
    foreign.poll();
    foreign.enable(0);
    assert_eq!(foreign.csts(), CSTS_READY);
}

#[test]
fn queues_are_refused_for_what_is_wrong_with_them() {
    let mut foreign = Foreign::with_pairs(options(), &[4]);
    let create = |opcode, size: u32, id: u32, cdw11, address| Sqe {
        opcode,
        cdw10: size << 16 | id,
        cdw11,
        data: [address, 0],
        ..Sqe::default()
    };
    let at = foreign.free;
    let delete = |opcode, id| Sqe { opcode, cdw10: id, ..Sqe::default() };
    for (sqe, status) in [
        (create(admin::CREATE_CQ, 3, 1, 1, at), Status::INVALID_QUEUE_ID),
        (create(admin::CREATE_CQ, 3, 0, 1, at), Status::INVALID_QUEUE_ID),
        (create(admin::CREATE_CQ, 3, 9, 1, at), Status::INVALID_QUEUE_ID),
        (create(admin::CREATE_CQ, 0, 2, 1, at), Status::INVALID_QUEUE_SIZE),
        (create(admin::CREATE_CQ, 4096, 2, 1, at), Status::INVALID_QUEUE_SIZE),
        (create(admin::CREATE_CQ, 3, 2, 0, at), Status::INVALID_FIELD),
        (create(admin::CREATE_CQ, 3, 2, 1, at + 8), Status::PRP_OFFSET),
        (create(admin::CREATE_CQ, 3, 2, 999 << 16 | 1, at), Status::INVALID_VECTOR),
        (create(admin::CREATE_CQ, 3, 2, 1, BUS - PAGE), Status::DATA_TRANSFER),
        (create(admin::CREATE_SQ, 3, 1, 1 << 16 | 1, at), Status::INVALID_QUEUE_ID),
        (create(admin::CREATE_SQ, 3, 2, 3 << 16 | 1, at), Status::CQ_INVALID),
        (create(admin::CREATE_SQ, 3, 2, 99 << 16 | 1, at), Status::INVALID_QUEUE_ID),
        (create(admin::CREATE_SQ, 3, 2, 1, at), Status::INVALID_QUEUE_ID),
        (delete(admin::DELETE_CQ, 1), Status::INVALID_QUEUE_DELETION),
        (delete(admin::DELETE_CQ, 2), Status::INVALID_QUEUE_ID),
        (delete(admin::DELETE_SQ, 60000), Status::INVALID_QUEUE_ID),
        (delete(admin::DELETE_SQ, 0), Status::INVALID_QUEUE_ID),
        (Sqe { opcode: 0x77, ..Sqe::default() }, Status::INVALID_OPCODE),
        (Sqe { flags: 0x40, opcode: admin::IDENTIFY, ..Sqe::default() }, Status::INVALID_FIELD),
        (delete(admin::DELETE_SQ, 1), Status::SUCCESS),
        (delete(admin::DELETE_SQ, 1), Status::INVALID_QUEUE_ID),
        (delete(admin::DELETE_CQ, 1), Status::SUCCESS),
    ] {
        assert_eq!(foreign.admin(sqe).status, status, "{sqe:?}");
    }
}

#[test]
fn features_and_logs() {
    let mut foreign = Foreign::new(options());
    let set = |id: u8, cdw11| Sqe {
        opcode: admin::SET_FEATURES,
        cdw10: id.into(),
        cdw11,
        ..Sqe::default()
    };
    let get = |id: u8| Sqe { opcode: admin::GET_FEATURES, cdw10: id.into(), ..Sqe::default() };
    let answer = |cqe: Cqe| (cqe.status, cqe.result);
    assert_eq!(
        answer(foreign.admin(set(feature::NUMBER_OF_QUEUES, 99 << 16 | 3))),
        (Status::SUCCESS, 7 << 16 | 7)
    );
    assert_eq!(
        answer(foreign.admin(set(feature::NUMBER_OF_QUEUES, 2 << 16 | 3))),
        (Status::SUCCESS, 3 << 16 | 3)
    );
    assert_eq!(foreign.admin(set(feature::NUMBER_OF_QUEUES, 0xffff)).status, Status::INVALID_FIELD);
    foreign.create_pair(4, 0);
    assert_eq!(foreign.admin(set(feature::NUMBER_OF_QUEUES, 3)).status, Status::COMMAND_SEQUENCE);
    assert_eq!(answer(foreign.admin(set(feature::ARBITRATION, 0x0908_07f8))), (Status::SUCCESS, 0));
    assert_eq!(answer(foreign.admin(get(feature::ARBITRATION))), (Status::SUCCESS, 0x0908_0700));
    let saved = Sqe { cdw10: 1 << 31 | 1, ..set(feature::ARBITRATION, 0) };
    assert_eq!(foreign.admin(saved).status, Status::NOT_SAVEABLE);
    assert_eq!(foreign.admin(get(feature::VOLATILE_WRITE_CACHE)).status, Status::INVALID_FIELD);
    let page = |id: u8, dwords: u32, offset| Sqe {
        opcode: admin::GET_LOG_PAGE,
        cdw10: (dwords - 1) << 16 | u32::from(id),
        cdw12: offset,
        data: [DATA, 0],
        ..Sqe::default()
    };
    assert_eq!(foreign.admin(page(log::ERROR, 16, 0)).status, Status::SUCCESS);
    let entry = foreign.bytes(DATA, 64);
    assert_eq!(
        (entry[0], entry[12..14].to_vec()),
        (4, (Status::INVALID_FIELD.0 << 1).to_le_bytes().to_vec())
    );
    assert_eq!(foreign.io(read(0, 3)), Status::SUCCESS);
    assert_eq!(foreign.admin(page(log::SMART, 128, 0)).status, Status::SUCCESS);
    assert_eq!((foreign.bytes(DATA + 64, 1), foreign.bytes(DATA + 32, 1)), (vec![1], vec![1]));
    assert_eq!(foreign.admin(page(log::SUPPORTED, 4, 0)).status, Status::SUCCESS);
    assert_eq!(foreign.bytes(DATA, 16), [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(foreign.admin(page(log::SMART, 4, 513)).status, Status::INVALID_FIELD);
    assert_eq!(foreign.admin(page(0x77, 4, 0)).status, Status::INVALID_LOG_PAGE);
}

#[test]
fn data_goes_where_it_belongs_and_errors_have_their_codes() {
    let mut foreign = Foreign::with_pairs(options(), &[8]);
    let bytes: Vec<u8> = (0..8192u32).map(|index| (index * 7 + index / 256) as u8).collect();
    foreign.fill(DATA + 0x200, &bytes);
    // Sixteen blocks over three pages, by a list.
    let list: Vec<u8> =
        [DATA + 0x1000, DATA + 0x2000].iter().flat_map(|entry| entry.to_le_bytes()).collect();
    foreign.fill(DATA + 0x8000, &list);
    let write = Sqe { data: [DATA + 0x200, DATA + 0x8000], ..transfer(nvm::WRITE, 1, 5, 16, 0) };
    assert_eq!(foreign.io(write), Status::SUCCESS);
    let mut back = transfer(nvm::READ, 2, 5, 16, 0);
    back.point_sgl(DATA + 0x1_0003, 8192);
    assert_eq!(foreign.io(back), Status::SUCCESS);
    assert_eq!(foreign.bytes(DATA + 0x1_0003, 8192), bytes);
    let zero = Sqe {
        opcode: nvm::WRITE_ZEROES,
        cdw10: 6,
        cdw12: nvm::DEALLOCATE,
        nsid: 1,
        ..Sqe::default()
    };
    assert_eq!(foreign.io(zero), Status::SUCCESS);
    let ranges: Vec<u8> =
        [1u64 << 32, 5, 2 << 32, 8].iter().flat_map(|word| word.to_le_bytes()).collect();
    foreign.fill(DATA, &ranges);
    let trim = Sqe {
        opcode: nvm::DATASET_MANAGEMENT,
        nsid: 1,
        cdw10: 1,
        cdw11: 4,
        data: [DATA, 0],
        ..Sqe::default()
    };
    assert_eq!(foreign.io(trim), Status::SUCCESS);
    assert_eq!(foreign.io(back), Status::SUCCESS);
    let now = foreign.bytes(DATA + 0x1_0003, 8192);
    for (block, now) in now.chunks(512).enumerate() {
        let is_gone = matches!(block, 0 | 1 | 3 | 4);
        assert!(
            if is_gone {
                now.iter().all(|&byte| byte == 0)
            } else {
                now == &bytes[block * 512..][..512]
            },
            "{block}"
        );
    }
    foreign.fill(DATA + 0x4000, &[2u64 << 32, SIZE / 512 - 1].map(u64::to_le_bytes).concat());
    let last = (SIZE / 512) as u32;
    let flush = |nsid| Sqe { opcode: nvm::FLUSH, nsid, ..Sqe::default() };
    for (sqe, status) in [
        (read(0, last - 1), Status::SUCCESS),
        (read(0, last), Status::LBA_OUT_OF_RANGE),
        (transfer(nvm::WRITE, 0, last - 1, 2, DATA), Status::LBA_OUT_OF_RANGE),
        (Sqe { cdw10: u32::MAX, cdw11: u32::MAX, ..read(0, 0) }, Status::LBA_OUT_OF_RANGE),
        (Sqe { cdw10: 0, data: [DATA + 0x4000, 0], ..trim }, Status::LBA_OUT_OF_RANGE),
        (Sqe { cdw11: 0, ..trim }, Status::SUCCESS),
        (Sqe { nsid: 2, ..read(0, 0) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: 0, ..read(0, 0) }, Status::INVALID_NAMESPACE),
        (Sqe { nsid: u32::MAX, ..read(0, 0) }, Status::INVALID_NAMESPACE),
        (Sqe { flags: 1, ..read(0, 0) }, Status::INVALID_FIELD),
        (Sqe { data: [1, 0], ..read(0, 0) }, Status::PRP_OFFSET),
        (Sqe { data: [0, 0], ..read(0, 0) }, Status::DATA_TRANSFER),
        (Sqe { opcode: 0x05, ..read(0, 0) }, Status::INVALID_OPCODE),
        (flush(1), Status::SUCCESS),
        (flush(u32::MAX), Status::SUCCESS),
        (flush(7), Status::INVALID_NAMESPACE),
    ] {
        assert_eq!(foreign.io(sqe), status, "{sqe:?}");
    }
    assert!(foreign.woken.contains(PortId(1)), "completions interrupt");
}

#[test]
fn rings_wrap_phases_flip_and_a_full_completion_queue_holds_commands_back() {
    let mut foreign = Foreign::with_pairs(options(), &[4]);
    let mut cid = 0;
    for _ in 0..50 {
        // Three commands fill the queue of four.
        let tail = (0..3)
            .map(|_| {
                cid += 1;
                foreign.push(0, read(cid, 0))
            })
            .last()
            .unwrap();
        foreign.ring(0, tail);
        foreign.poll();
        // They are completed, and not taken: for the next ones there is no room.
        let tail = (3..6)
            .map(|_| {
                cid += 1;
                foreign.push(0, read(cid, 0))
            })
            .last()
            .unwrap();
        foreign.ring(0, tail);
        foreign.poll();
        for expected in cid - 5..=cid - 3 {
            let cqe = foreign.pairs[0].cq.pop().expect("the first three are there");
            assert_eq!((cqe.cid, cqe.status, cqe.sqid), (expected, Status::SUCCESS, 1));
        }
        assert!(
            foreign.pairs[0].cq.pop().is_none(),
            "nothing is written over what has not been taken"
        );
        let head = foreign.pairs[0].cq.head();
        foreign.doorbell(1, true, head);
        assert!(
            foreign.controller.wants_poll(0),
            "the head doorbell makes room for those that wait"
        );
        foreign.poll();
        for expected in cid - 2..=cid {
            assert_eq!(foreign.pop(0).unwrap().cid, expected);
        }
    }
    for nonsense in [4, 77, 0xffff] {
        foreign.doorbell(1, false, nonsense);
        foreign.doorbell(1, true, nonsense);
    }
    foreign.doorbell(1, true, 3);
    foreign.poll();
    assert_eq!(foreign.io(read(9, 0)), Status::SUCCESS, "doorbells that cannot be are ignored");
}

fn timed(window: u16) -> Options {
    let profile = Profile::named("z-ssd").unwrap();
    let timing = Some(Timing { profile, state: DriveState::Fresh, slowdown: 1 });
    Options { window, timing, ..options() }
}

/// Polls at each event until there is none.
fn run_out(foreign: &mut Foreign) {
    while let Some(next_ns) = foreign.controller.next_ns() {
        foreign.now_ns = foreign.now_ns.max(next_ns);
        foreign.poll();
    }
}

#[test]
fn classes_under_backlog_share_by_their_weights() {
    let mut foreign = Foreign::new(timed(4));
    // High, medium, low.
    [1, 2, 3]
        .iter()
        .for_each(|&qprio| assert_eq!(foreign.create_pair(1024, qprio), Status::SUCCESS));
    let weights = (9 - 1) << 24 | (3 - 1) << 16;
    let cdw10 = feature::ARBITRATION.into();
    let set = Sqe { opcode: admin::SET_FEATURES, cdw10, cdw11: weights, ..Sqe::default() };
    assert_eq!(foreign.admin(set).status, Status::SUCCESS);
    for pair in 0..3 {
        let tail = (0..1000).map(|cid| foreign.push(pair, read(cid, 0))).last().unwrap();
        foreign.ring(pair, tail);
    }
    foreign.poll();
    let mut done = [0u32; 3];
    while done[0] < 900 {
        foreign.now_ns = foreign.controller.next_ns().unwrap();
        foreign.poll();
        for (pair, done) in done.iter_mut().enumerate() {
            while foreign.pop(pair).is_some() {
                *done += 1;
            }
        }
    }
    assert!(
        done[0].abs_diff(9 * done[2]) <= 9 + 4 && done[1].abs_diff(3 * done[2]) <= 3 + 4,
        "{done:?}"
    );
    run_out(&mut foreign);
    let rest = (0..3).map(|pair| std::iter::from_fn(|| foreign.pop(pair)).count()).sum::<usize>();
    assert_eq!(rest as u32 + done.iter().sum::<u32>(), 3000);
}

#[test]
fn a_late_poll_does_not_slow_a_backlog_down() {
    let total_ns = |late_ns: u64| {
        let mut foreign = Foreign::with_pairs(timed(8), &[1024]);
        let tail = (0..1000).map(|cid| foreign.push(0, read(cid, 0))).last().unwrap();
        foreign.ring(0, tail);
        foreign.poll();
        let mut last_ns = 0;
        while let Some(next_ns) = foreign.controller.next_ns() {
            last_ns = next_ns;
            foreign.now_ns = next_ns + late_ns;
            foreign.poll();
        }
        assert_eq!(std::iter::from_fn(|| foreign.pop(0)).count(), 1000);
        last_ns
    };
    let (punctual, late) = (total_ns(0), total_ns(100_000));
    assert!(late <= punctual, "{late} for {punctual}");
}

#[test]
fn a_reset_waits_for_what_is_on_its_way_and_forgets_the_rest() {
    let mut foreign = Foreign::with_pairs(timed(2), &[16]);
    let tail = (0..10).map(|cid| foreign.push(0, read(cid, 0))).last().unwrap();
    foreign.ring(0, tail);
    foreign.poll();
    foreign.controller.write32(register::CC, 0);
    foreign.poll();
    assert_eq!(foreign.csts(), CSTS_READY, "two commands are with the storage");
    run_out(&mut foreign);
    assert_eq!(foreign.csts(), 0);
    assert!(foreign.pairs[0].cq.pop().is_none(), "nothing is posted any more");
    foreign.enable(CC_WRR);
    assert_eq!(foreign.create_pair(16, 1), Status::SUCCESS);
    let tail = foreign.push(0, read(77, 0));
    foreign.ring(0, tail);
    foreign.poll();
    run_out(&mut foreign);
    assert_eq!(foreign.pop(0).map(|cqe| (cqe.cid, cqe.status)), Some((77, Status::SUCCESS)));
}

#[test]
fn a_queue_is_deleted_when_its_last_command_is_done() {
    let mut foreign = Foreign::with_pairs(timed(2), &[16, 16]);
    let tail = (0..10).map(|cid| foreign.push(0, read(cid, 0))).last().unwrap();
    foreign.ring(0, tail);
    foreign.poll();
    let tail = foreign.admin.sq.push(&Sqe {
        opcode: admin::DELETE_SQ,
        cid: 5,
        cdw10: 1,
        ..Sqe::default()
    });
    foreign.doorbell(0, false, tail);
    foreign.poll();
    assert!(foreign.admin.cq.pop().is_none());
    run_out(&mut foreign);
    assert_eq!(foreign.admin.cq.pop().map(|cqe| (cqe.cid, cqe.status)), Some((5, Status::SUCCESS)));
    assert_eq!(std::iter::from_fn(|| foreign.pop(0)).count(), 2, "those that were fetched");
    let tail = foreign.push(1, read(3, 0));
    foreign.ring(1, tail);
    foreign.poll();
    run_out(&mut foreign);
    assert!(foreign.pop(1).is_some(), "others go on");
}

/// Entries that a hostile driver might write: mostly nonsense, often nearly right.
fn hostile() -> impl Strategy<Value = Sqe> {
    let address = prop_oneof![
        4 => (0..MEMORY as u64).prop_map(|offset| BUS + offset),
        2 => (0..MEMORY as u64 / PAGE).prop_map(|page| BUS + page * PAGE),
        1 => any::<u64>(),
        1 => Just(BUS + MEMORY as u64 - 8),
    ];
    let small = || prop_oneof![3 => 0..20u32, 1 => any::<u32>()];
    let opcode = prop_oneof![4 => 0..0x0du8, 1 => any::<u8>()];
    let flags = prop_oneof![3 => Just(0u8), 3 => Just(0x40), 1 => any::<u8>()];
    let descriptor = prop_oneof![
        any::<u64>(),
        (0..4u64, 0..9000u64).prop_map(|(kind, length)| kind << 60 | length),
        (0..MEMORY as u64).prop_map(|offset| BUS + offset)
    ];
    let words = (small(), small(), small(), small());
    (opcode, flags, any::<u16>(), small(), address, descriptor, words).prop_map(
        |(opcode, flags, cid, nsid, address, second, (cdw10, cdw11, cdw12, cdw13))| Sqe {
            opcode,
            flags,
            cid,
            nsid,
            data: [address, second],
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            ..Sqe::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No written value makes the controller panic or access memory outside its own (the mapping
    /// ends with the memory), and after a reset it works.
    #[test]
    fn hostile_drivers_hurt_only_themselves(
        entries in prop::collection::vec((any::<bool>(), hostile(), prop::option::weighted(0.1, any::<(u8, u32)>())), 1..60),
        is_timed in any::<bool>(),
    ) {
        let mut foreign = Foreign::with_pairs(if is_timed { timed(3) } else { options() }, &[8, 8]);
        for (is_admin, sqe, register) in entries {
            if is_admin {
                let tail = foreign.admin.sq.push(&sqe);
                foreign.doorbell(0, false, tail);
            } else {
                let tail = foreign.push(0, sqe);
                foreign.ring(0, tail);
            }
            if let Some((offset, value)) = register {
                let doorbells = register::DOORBELLS + u32::from(offset) / 2 * 4;
                let offset = if offset % 2 == 0 { doorbells } else { u32::from(offset) / 4 * 4 };
                foreign.controller.write32(offset, if offset == register::CC { value } else { value % 9 });
            }
            foreign.now_ns += 1000;
            foreign.poll();
            while foreign.admin.cq.pop().is_some() {}
            let head = foreign.admin.cq.head();
            foreign.doorbell(0, true, head);
            while foreign.pop(0).is_some() {}
        }
        run_out(&mut foreign);
        foreign.controller.write32(register::CC, 0);
        foreign.poll();
        run_out(&mut foreign);
        prop_assert_eq!(foreign.csts(), 0);
        foreign.enable(CC_WRR);
        prop_assert_eq!(foreign.create_pair(8, 1), Status::SUCCESS);
        let tail = foreign.push(0, transfer(nvm::READ, 1, 0, 1, DATA));
        foreign.ring(0, tail);
        foreign.poll();
        run_out(&mut foreign);
        prop_assert_eq!(foreign.pop(0).map(|cqe| (cqe.cid, cqe.status)), Some((1, Status::SUCCESS)));
    }
}
