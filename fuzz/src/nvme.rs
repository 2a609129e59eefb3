//! Driver for the software NVMe controller: arbitrary entries, registers and memory, and laws that
//! hold whatever they are.

use std::sync::Arc;

use fairq_core::PortSet;
use fairq_host::device::nvme::controller::{Controller, Options};
use fairq_host::device::nvme::dma::Flat;
use fairq_host::device::nvme::spec::{CC_ENABLE, CC_ENTRY_SIZES, CC_WRR, CSTS_READY, register};
use fairq_host::device::nvme::storage::NullStorage;

const BUS: u64 = 0x1_0000;
const MEMORY: usize = 1 << 20;
const ENTRIES: u16 = 16;
const SQE: usize = 64;

/// Records of 66 bytes: what, where, and 64 bytes.
///
/// ```text
///   0  an entry of the admin queue        2  a register: offset and value in the first six bytes
///   1  an entry of I/O queue `where`      3  memory: the 64 bytes, at 64 times the first two
/// ```
///
/// An entry of an I/O queue goes to the memory at which the seeds create that queue. For any values
/// nothing panics, and a reset ends in a controller that works.
pub fn controller(data: &[u8]) {
    let options = Options {
        namespaces: Arc::new(vec![1 << 30, 1 << 20].into()),
        queues: 4,
        window: 3,
        wrr: true,
        volatile_cache: true,
        discard_zeroes: false,
        timing: None,
    };
    let controller = Controller::new(options, Flat::map(BUS, MEMORY).expect("memory is there"));
    enable(&controller);
    let mut tails = [0u16; 5];
    for record in data.chunks_exact(2 + SQE) {
        let (what, place, bytes) = (record[0] % 4, u32::from(record[1]), &record[2..]);
        match what {
            0 | 1 => {
                let queue = if what == 0 { 0 } else { 1 + place % 4 };
                let tail = &mut tails[queue as usize];
                controller
                    .dma()
                    .write(BUS + u64::from(queue) * 0x2000 + u64::from(*tail) * SQE as u64, bytes);
                *tail = (*tail + 1) % ENTRIES;
                controller.write32(register::DOORBELLS + queue * 8, (*tail).into());
            }
            2 => {
                let offset = u32::from(bytes[0]) | u32::from(bytes[1]) << 8;
                controller.write32(
                    offset & 0x10ff,
                    u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
                );
            }
            _ => {
                let at = u64::from(u16::from_le_bytes([bytes[0], bytes[1]])) * 64;
                controller.dma().write(BUS + at % (MEMORY as u64 - 64), bytes);
            }
        }
        poll(&controller);
    }
    enable(&controller);
}

/// Resets and enables; the tails of whoever drives it begin at 0 again.
fn enable(controller: &Controller<Flat>) {
    controller.write32(register::CC, 0);
    poll(controller);
    assert_eq!(controller.read32(register::CSTS), 0, "a reset ends");
    let size = u32::from(ENTRIES) - 1;
    controller.write32(register::AQA, size << 16 | size);
    controller.write64(register::ASQ, BUS);
    controller.write64(register::ACQ, BUS + 0x1000);
    controller.write32(register::CC, CC_ENABLE | CC_ENTRY_SIZES | CC_WRR);
    poll(controller);
    assert_eq!(controller.read32(register::CSTS), CSTS_READY, "and it starts again");
}

fn poll(controller: &Controller<Flat>) {
    controller.poll(0, &mut NullStorage, &mut PortSet::default());
}
