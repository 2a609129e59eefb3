//! The device side of the host: the traits of devices and of the queues to which a shard issues
//! commands.
//!
//! A [`Device`] is shared; each shard opens its own [`Queue`] on it. A queue has four functions:
//! `issue` takes a command, `ring` makes issued commands visible to the device, `event` handles an
//! event of the shard's io_uring, and `reap` returns completions. None of them blocks. A device
//! whose completions depend on time (the paced one) returns from `deadline_ns` when to reap again.
//! A device that any shard may poll may complete commands of another shard: it adds the shards to
//! wake to a set, as the functions of a [`Port`](fairq_core::Port) do.
//!
//! **Data.** The data of a command are in one range of memory (a stretch) or in several, at any
//! address and of any length. `issue` receives the first stretch in the command and the others
//! beside it. Devices copy such bytes by address only and never make a slice of them, since a guest
//! may change its memory at any time.
//!
//! **Ownership.** From `issue` until its completion is reaped, the bytes of a command's stretches
//! belong to the device.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use fairq_core::{Class, ClassWeights, Op, PortId, PortSet, Tag};

use crate::io::memory::Memory;
use crate::io::ring::{Event, Ring};
use crate::io::wakers::Wakers;

pub mod any;
pub mod control;
pub mod error;
pub mod file;
mod guard;
#[cfg(test)]
pub(crate) mod harness;
pub mod null;
pub mod nvme;
pub mod nvme_soft;
pub mod paced;
pub mod ram;
pub(crate) mod store;
#[cfg(test)]
pub(crate) mod tests;
mod vectors;
pub mod write_back;

/// The largest number of stretches of one command. The kernel accepts 1024 in one system call.
pub const STRETCHES: usize = 1000;

/// The properties of a device.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its name for operators, e.g. `file /srv/disk.img`.
    pub name: String,
    /// Size in bytes of each of its files (a device without files has one).
    pub sizes: Vec<u64>,
    /// The smallest unit that it can write without reading first, in bytes. Requests need not be
    /// aligned to it.
    pub block_size: u32,
    /// The size of requests that it serves best, in bytes.
    pub preferred_size: u32,
    /// Whether it arbitrates between classes of queues.
    pub has_classes: bool,
    /// Whether discarded ranges read as zeroes.
    pub discard_zeroes: bool,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The shard's identifier of the command.
    pub tag: Tag,
    /// The operation.
    pub op: Op,
    /// The queue class; ignored by devices without classes.
    pub class: Class,
    /// The number of the device's file.
    pub file: u16,
    /// Start of the range in the file, in bytes; any alignment.
    pub offset: u64,
    /// Length of the range, in bytes; any alignment. 0 for a flush.
    pub length: u32,
    /// For a flush: the bytes from `offset` on that are to be on stable storage; 0 stands for the
    /// whole file.
    pub span: u64,
    /// For writes: the data must be on stable storage before the completion.
    pub fua: bool,
    /// For writing zeroes: keep the range allocated.
    pub no_hole: bool,
    /// For writing zeroes: fail with `EOPNOTSUPP` rather than be slow.
    pub fast_only: bool,
    /// The first stretch of the data of a read or write. If it is the only one, it has at least
    /// `length` bytes. [`Memory::NONE`] for the other operations.
    pub memory: Memory,
}

impl Command {
    /// The stretches that hold the data, in order; `rest` are those after the first.
    pub(crate) fn stretches(&self, rest: &[Memory]) -> impl Iterator<Item = Memory> {
        let length = if rest.is_empty() { self.length } else { self.memory.length };
        std::iter::once(Memory { length, ..self.memory }).chain(rest.iter().copied())
    }

    /// Whether the total length of these stretches is the command's length.
    pub(crate) fn fits(&self, rest: &[Memory]) -> bool {
        let lengths = self.stretches(rest).map(|memory| u64::from(memory.length));
        match self.op {
            Op::Read | Op::Write if rest.is_empty() => self.memory.length >= self.length,
            Op::Read | Op::Write => lengths.sum::<u64>() == u64::from(self.length),
            _ => rest.is_empty(),
        }
    }
}

/// The end of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The command's tag.
    pub tag: Tag,
    /// 0, or the errno it failed with.
    pub errno: i32,
}

/// A range of a file and whether it holds data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The length in bytes.
    pub length: u64,
    /// Whether no storage is allocated, so that the range reads as zeroes.
    pub is_hole: bool,
}

/// A file that has become shorter while it was served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutOff {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes when it was opened.
    pub size: u64,
    /// The length in bytes of the part, from the start, that it still has. Commands that reach
    /// beyond it fail with `EIO`.
    pub intact: u64,
}

/// The shard of a run for which a queue is opened.
#[derive(Clone)]
pub struct Place {
    /// The shard's port.
    pub port: PortId,
    /// The number of shards of the run.
    pub ports: usize,
    /// The wakers of the shards, for a device with a thread of its own.
    pub wakers: Arc<Wakers>,
}

/// Writes a range of a file from the page cache to the disk; waits for this if the second argument
/// is true.
pub type WriteOut<'a> = dyn FnMut(Range<u64>, bool) + 'a;
/// See [`Device::write_out`].
pub type WriteOutJob = Box<dyn FnOnce(&mut WriteOut<'_>) + Send>;

/// The limits of an NVMe controller over a whole device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControllerLimits {
    /// The most commands that it fetches and has not completed.
    pub window: u16,
    /// I/O queues of each kind.
    pub queues: u16,
    /// Whether it offers weighted round robin.
    pub has_wrr: bool,
}

/// A storage device, shared by all shards.
pub trait Device: Send + Sync + 'static {
    /// One shard's queue.
    type Queue: Queue;

    /// Its properties.
    fn info(&self) -> &Info;

    /// Opens the queue of the calling shard, on whose `ring` the queue may put operations as
    /// [`crate::io::ring::Asker::Device`].
    fn open_queue(&self, place: &Place, ring: &mut Ring) -> io::Result<Self::Queue>;

    /// Sets how many commands of each queue class the device starts per arbitration round. Fails if
    /// the device does not arbitrate between classes ([`Info::has_classes`]) or refuses the
    /// weights.
    fn set_class_weights(&self, _weights: ClassWeights) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The limits of a controller over the whole device. If its window is that of the drive that
    /// the device models, further commands wait in the controller's queues, between which it
    /// arbitrates, and not in the drive.
    fn controller_limits(&self) -> ControllerLimits {
        ControllerLimits { window: 32, queues: 64, has_wrr: true }
    }

    /// Makes all written data durable; called when no queue is open. Returns the files for which
    /// that failed, with the errors.
    fn sync(&self) -> Vec<(u16, io::Error)> {
        Vec::new()
    }

    /// Whether the kernel has failed to write back data of a file since the last call. Does not
    /// wait. Callers must hold a lock during the call and while they record its result.
    fn write_back_failed(&self, _file: u16) -> bool {
        false
    }

    /// Calls `job` on a thread that may block, with a function that writes ranges of a cached file
    /// from the page cache to the disk ([`Queue::is_cached`]).
    fn write_out(&self, _file: u16, job: WriteOutJob) {
        job(&mut |_, _| {});
    }

    /// Starts a check whether files have become shorter or longer; does not wait.
    fn inspect(&self) {}

    /// The files that have been found to be shorter than when they were opened.
    fn cut_off(&self) -> Vec<CutOff> {
        Vec::new()
    }

    /// Allocates the memory of a range of a file in advance, so that no write has to wait for it.
    /// Has no effect if the device does not keep its data in memory, or if the range is already
    /// allocated.
    fn take_memory(&self, _file: u16, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether it is faster with buffers that are registered with the ring.
    fn has_fixed_buffers(&self) -> bool {
        false
    }

    /// Whether `ring` and `reap` suffice to drive its queues: it needs no event of the ring.
    fn is_polled(&self) -> bool {
        false
    }

    /// Whether the device makes no progress while its shards sleep, because its work runs on them.
    fn runs_on_shards(&self) -> bool {
        false
    }

    /// The store of a file: its index in [`Device::stores`], below the maximum number of stores.
    fn store_of(&self, _file: u16) -> u16 {
        0
    }

    /// The names of its stores, each a set of files that fail and hang together. A device without
    /// files is one store.
    fn stores(&self) -> Vec<String> {
        vec![self.info().name.clone()]
    }

    /// Whether zeroing a range of a file is known to change only a map and to write no data. The
    /// scheduler's charge depends on it, and zeroing that writes data is split into small pieces.
    fn zeroes_by_map(&self, _file: u16, _no_hole: bool) -> bool {
        true
    }

    /// The allocation of a range of a file, in order: at least one extent and at most `most`,
    /// together not longer than `length`.
    fn extents(
        &self,
        _file: u16,
        _offset: u64,
        length: u64,
        _most: usize,
    ) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { length, is_hole: false }])
    }
}

/// One shard's queue on a device.
pub trait Queue: 'static {
    /// Takes a command. The command may start at once or wait until [`Queue::ring`].
    ///
    /// The data of a read or write are in the command's own memory and then in the stretches of
    /// `rest`, in order. If `rest` is not empty, the total length of all stretches is the command's
    /// length, and there are at most [`STRETCHES`] of them.
    ///
    /// # Safety
    /// All of this memory must stay valid until the completion has been reaped. Until then
    /// no code of this process except the device may access it; a guest may access its own memory
    /// at any time.
    unsafe fn issue(&mut self, now_ns: u64, ring: &mut Ring, command: &Command, rest: &[Memory]);

    /// Makes all issued commands visible to the device; called once per turn of the shard's loop.
    /// Adds the other shards whose commands this completes to `wake`.
    fn ring(&mut self, _now_ns: u64, _ring: &mut Ring, _wake: &mut PortSet) {}

    /// Handles the event of an operation that this queue put on the ring.
    fn event(&mut self, _now_ns: u64, _ring: &mut Ring, _event: Event) {}

    /// Appends the commands that have completed by `now_ns`, and adds the other shards that have
    /// completions to `wake`.
    fn reap(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        done: &mut Vec<Completion>,
        wake: &mut PortSet,
    );

    /// The store of a file that has commands in flight; see [`Device::store_of`].
    fn store_of(&self, _file: u16) -> u16 {
        0
    }

    /// Whether writes to a file end when their data are in a cache. The cache's dirty bytes then
    /// have to be bounded.
    fn is_cached(&self, _file: u16) -> bool {
        false
    }

    /// The time of the next `reap`, if it depends on time and not on an event.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Whether it has no command in flight, including other shards' commands, so that the shard may
    /// end.
    fn is_idle(&self) -> bool {
        true
    }
}
