//! The device side of the host: what a shard issues commands to.
//!
//! A [`Device`] is shared; each shard opens its own [`Queue`] on it. A queue has four verbs:
//! `issue` takes a command, `ring` makes what was issued visible to the device, `event` takes what
//! the shard's io_uring finished for it, and `reap` gives completions. None of them blocks. A
//! device that works in time (one that is paced) says with `deadline_ns` when to reap again. A
//! device that is polled by whichever shard comes by may complete commands of another one: it names
//! the shards to wake, as the verbs of a [`Port`](fairq_core::Port) do.
//!
//! **Ownership.** From `issue` until its completion is reaped, the bytes of a command's [`Memory`]
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
pub mod write_back;

/// What a device is and can do.
#[derive(Clone, Debug)]
pub struct Info {
    /// What an operator would call it, e.g. `file /srv/disk.img`.
    pub name: String,
    /// Size in bytes of each of its files (a device without files has one).
    pub sizes: Vec<u64>,
    /// The smallest unit it reads and writes without reading more, in bytes. Requests need not be
    /// aligned to it.
    pub block_size: u32,
    /// The size at which it works best, in bytes.
    pub preferred_size: u32,
    /// Whether it arbitrates between classes of queues.
    pub has_classes: bool,
    /// Whether discarded ranges read as zeroes.
    pub discard_zeroes: bool,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The shard's name for it.
    pub tag: Tag,
    /// What to do.
    pub op: Op,
    /// The queue class; ignored by devices without classes.
    pub class: Class,
    /// Which of the device's files.
    pub file: u16,
    /// Where in the file, in bytes; any alignment.
    pub offset: u64,
    /// How much, in bytes; any alignment. 0 for a flush.
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
    /// The data: at least `length` bytes for reads and writes, [`Memory::NONE`] otherwise.
    pub memory: Memory,
}

/// The end of one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Which.
    pub tag: Tag,
    /// 0, or the errno it failed with.
    pub errno: i32,
}

/// A range of a file and whether it holds data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// No storage is allocated and it reads as zeroes.
    pub is_hole: bool,
}

/// A file that has become shorter while it was served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutOff {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes that it had when it was opened.
    pub size: u64,
    /// Bytes at its start that it has kept; commands that reach beyond them fail with `EIO`.
    pub intact: u64,
}

/// Where a queue is opened: one shard of a run.
#[derive(Clone)]
pub struct Place {
    /// The shard's port.
    pub port: PortId,
    /// How many shards the run has.
    pub ports: usize,
    /// How to wake them, for a device with a thread of its own.
    pub wakers: Arc<Wakers>,
}

/// Writes a range of a file to its disk, and waits for that if the second argument says so.
pub type WriteOut<'a> = dyn FnMut(Range<u64>, bool) + 'a;
/// See [`Device::write_out`].
pub type WriteOutJob = Box<dyn FnOnce(&mut WriteOut<'_>) + Send>;

/// A storage device, shared by all shards.
pub trait Device: Send + Sync + 'static {
    /// One shard's queue.
    type Queue: Queue;

    /// What it is.
    fn info(&self) -> &Info;

    /// Opens the queue of the calling shard, on whose `ring` it may put operations as
    /// [`crate::io::ring::Asker::Device`].
    fn open_queue(&self, place: &Place, ring: &mut Ring) -> io::Result<Self::Queue>;

    /// Sets how many commands each class of queues may start per round; an error if it does not
    /// arbitrate between classes ([`Info::has_classes`]) or refuses.
    fn set_class_weights(&self, _weights: ClassWeights) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Puts everything written on stable storage; called when no queue is open. Gives the files
    /// with which that failed, and why.
    fn sync(&self) -> Vec<(u16, io::Error)> {
        Vec::new()
    }

    /// Whether the kernel has failed to write back data of a file since this was last asked. Does
    /// not wait. Callers take turns at asking and at what they do about it.
    fn write_back_failed(&self, _file: u16) -> bool {
        false
    }

    /// Has a thread that may wait call `job` with a function that writes ranges of a cached file to
    /// its disk ([`Queue::is_cached`]).
    fn write_out(&self, _file: u16, job: WriteOutJob) {
        job(&mut |_, _| {});
    }

    /// Has files looked at, whether they have become shorter or longer; waits for nothing.
    fn inspect(&self) {}

    /// The files that have been found to be shorter than when they were opened.
    fn cut_off(&self) -> Vec<CutOff> {
        Vec::new()
    }

    /// Takes the memory now that writing a range of a file would take, so that nobody who writes
    /// has to wait for it. Nothing where data is not kept in memory, or not written for the first
    /// time.
    fn take_memory(&self, _file: u16, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    /// Whether it is faster with buffers that are registered with the ring.
    fn has_fixed_buffers(&self) -> bool {
        false
    }

    /// Whether its queues need polling only: `ring` and `reap` do it all, without an event of the
    /// ring's.
    fn is_polled(&self) -> bool {
        false
    }

    /// Which store a file is in: its number in [`Device::stores`], below the most there may be.
    fn store_of(&self, _file: u16) -> u16 {
        0
    }

    /// The names of its stores: what fails and hangs as one. A device without files is one.
    fn stores(&self) -> Vec<String> {
        vec![self.info().name.clone()]
    }

    /// Whether zeroing a range of a file changes a map alone and writes nothing, as far as is known
    /// by now. The scheduler charges it by that, and it is done in small pieces where it is
    /// writing.
    fn zeroes_by_map(&self, _file: u16, _no_hole: bool) -> bool {
        true
    }

    /// The allocation of a range of a file, in order, at least one extent, at most `most`; together
    /// no longer than `length`.
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
    /// Takes a command. It may start at once or wait until [`Queue::ring`].
    ///
    /// # Safety
    /// The command's memory must stay valid and untouched until its completion has been reaped.
    unsafe fn issue(&mut self, now_ns: u64, ring: &mut Ring, command: &Command);

    /// Takes a read or write whose data lies in several places, one after the other; they are
    /// together as long as the command, whose own memory is the first. False, and nothing done, if
    /// it cannot be one command here.
    ///
    /// # Safety
    /// As for [`Queue::issue`], of each of the places.
    unsafe fn issue_merged(
        &mut self,
        _now_ns: u64,
        _ring: &mut Ring,
        _command: &Command,
        _memories: &[Memory],
    ) -> bool {
        false
    }

    /// Makes everything issued visible to the device: once per turn of the shard's loop. Adds to
    /// `wake` the shards that have completions to reap because of it.
    fn ring(&mut self, _now_ns: u64, _ring: &mut Ring, _wake: &mut PortSet) {}

    /// Takes an event of an operation that this queue put on the ring.
    fn event(&mut self, _now_ns: u64, _ring: &mut Ring, _event: Event) {}

    /// Appends the completions that have happened by `now_ns`, and adds to `wake` the other shards
    /// that have some.
    fn reap(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        done: &mut Vec<Completion>,
        wake: &mut PortSet,
    );

    /// Which store a file of commands on their way is in; see [`Device::store_of`].
    fn store_of(&self, _file: u16) -> u16 {
        0
    }

    /// Whether writes to a file end when a cache has them, whose dirty bytes have to be bounded.
    fn is_cached(&self, _file: u16) -> bool {
        false
    }

    /// When to call `reap` again, if that is a matter of time and not of an event.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Whether it has nothing on its way for other shards either, so that the shard may end.
    fn is_idle(&self) -> bool {
        true
    }
}
