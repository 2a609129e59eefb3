//! The RAM device: sparse memory, as fast as a copy.
//!
//! A command is carried out when it is issued, in the shard's own thread, and completes at the next
//! reap. `store.rs` describes the results of overlapping commands of several shards.

use std::io;
use std::sync::Arc;

use fairq_core::PortSet;

use crate::device::store::Store;
use crate::device::{Command, Completion, Device, Extent, Info, Place, Queue};
use crate::io::memory::Memory;
use crate::io::ring::Ring;

/// A RAM device.
pub struct RamDevice {
    info: Info,
    store: Arc<Store>,
}

/// One shard's queue on it.
pub struct RamQueue {
    store: Arc<Store>,
    done: Vec<Completion>,
}

impl RamDevice {
    /// A RAM device of `size` bytes, all zero. Memory is allocated when it is written.
    pub fn new(size: u64) -> io::Result<RamDevice> {
        Ok(RamDevice { info: memory_info("ram", size), store: Arc::new(Store::map(size)?) })
    }
}

impl RamDevice {
    /// The memory with its data.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }
}

/// The properties of devices that keep their data in a [`Store`].
pub(crate) fn memory_info(name: &str, size: u64) -> Info {
    Info {
        name: name.into(),
        sizes: vec![size],
        block_size: 1,
        preferred_size: 4096,
        has_classes: false,
        discard_zeroes: true,
    }
}

impl Device for RamDevice {
    type Queue = RamQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<RamQueue> {
        Ok(RamQueue { store: self.store.clone(), done: Vec::new() })
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn take_memory(&self, _file: u16, offset: u64, length: u64) -> io::Result<()> {
        self.store.take_memory(offset, length)
    }

    fn extents(
        &self,
        _file: u16,
        offset: u64,
        length: u64,
        most: usize,
    ) -> io::Result<Vec<Extent>> {
        self.store.extents(offset, length, most)
    }
}

impl Queue for RamQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &Command, rest: &[Memory]) {
        // SAFETY: the caller of `issue` keeps the memory valid until the completion, which is
        // later.
        let errno = unsafe { self.store.execute_all(command, rest) };
        self.done.push(Completion { tag: command.tag, errno });
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
