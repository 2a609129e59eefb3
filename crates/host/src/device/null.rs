//! The null device: completes everything at once and stores nothing; reads leave the buffer
//! unchanged.
//!
//! It is used to measure the cost of the software above it.

use std::io;

use fairq_core::PortSet;

use crate::device::{Command, Completion, Device, Info, Place, Queue};
use crate::io::memory::Memory;
use crate::io::ring::Ring;

/// The null device.
pub struct NullDevice {
    info: Info,
}

/// One shard's queue on it.
#[derive(Default)]
pub struct NullQueue {
    done: Vec<Completion>,
}

impl NullDevice {
    /// A null device of `size` bytes.
    pub fn new(size: u64) -> NullDevice {
        NullDevice {
            info: Info {
                name: "null".into(),
                sizes: vec![size],
                block_size: 1,
                preferred_size: 4096,
                has_classes: false,
                discard_zeroes: false,
            },
        }
    }
}

impl Device for NullDevice {
    type Queue = NullQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<NullQueue> {
        Ok(NullQueue::default())
    }
}

impl Queue for NullQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &Command, _: &[Memory]) {
        self.done.push(Completion { tag: command.tag, errno: 0 });
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
