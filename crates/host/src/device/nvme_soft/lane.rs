//! The storage of one poller: nothing, memory, or files by the poller's own io_uring.
//!
//! With files, the shard that has fetched a command puts it on its own ring and gets the kernel's
//! answer there; it then posts the completion, also if another shard sent the command. So a shard
//! whose ring has commands of others on it is not idle.

use std::io;
use std::sync::Arc;

use fairq_core::{PortId, PortSet};

use super::bus::Bus;
use crate::device::file::{FileDevice, FileQueue};
use crate::device::nvme::controller::Controller;
use crate::device::nvme::storage::{NullStorage, RamStorage, Storage};
use crate::device::store::Store;
use crate::device::{Command, Completion, Device, Place, Queue};
use crate::io::memory::Memory;
use crate::io::ring::{Event, Ring};

/// Where the device's data is.
pub(super) enum Backing {
    Null,
    Ram(Arc<Store>),
    File(FileDevice),
}

/// See the [module's text](self).
pub(super) enum Lane {
    Null,
    Ram(Arc<Store>),
    File(Box<FileLane>),
}

/// The files as one poller sees them.
pub(super) struct FileLane {
    queue: FileQueue,
    /// Whose buffers are registered with this ring: the shard's, if it is one.
    port: Option<PortId>,
    done: Vec<Completion>,
    in_flight: usize,
}

impl Lane {
    /// For a poller that is a shard, or none.
    pub(super) fn open(
        backing: &Backing,
        place: &Place,
        is_shard: bool,
        ring: &mut Ring,
    ) -> io::Result<Lane> {
        Ok(match backing {
            Backing::Null => Lane::Null,
            Backing::Ram(store) => Lane::Ram(store.clone()),
            Backing::File(device) => Lane::File(Box::new(FileLane {
                queue: device.open_queue(place, ring)?,
                port: is_shard.then_some(place.port),
                done: Vec::new(),
                in_flight: 0,
            })),
        })
    }

    /// Announces the queues in `rung`, and lets the controller work.
    #[inline]
    pub(super) fn poll(
        &mut self,
        controller: &Controller<Bus>,
        rung: u64,
        now_ns: u64,
        ring: &mut Ring,
        wake: &mut PortSet,
    ) {
        match self {
            Lane::Null => controller.announce_and_poll(rung, now_ns, &mut NullStorage, wake),
            Lane::Ram(store) => {
                controller.announce_and_poll(rung, now_ns, &mut RamStorage(store), wake)
            }
            Lane::File(lane) => {
                controller.announce_and_poll(rung, now_ns, &mut FileStorage { lane, ring }, wake);
                lane.queue.ring(now_ns, ring, wake);
            }
        }
    }

    /// Whether it has something for the controller.
    #[inline]
    pub(super) fn wants_poll(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        let Lane::File(lane) = self else { return false };
        // Tries again what the kernel did not take.
        lane.queue.ring(now_ns, ring, &mut PortSet::default());
        lane.queue.reap(now_ns, ring, &mut lane.done, &mut PortSet::default());
        !lane.done.is_empty()
    }

    pub(super) fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        if let Lane::File(lane) = self {
            lane.queue.event(now_ns, ring, event);
        }
    }

    /// When to poll though no event comes.
    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let Lane::File(lane) = self else { return None };
        // Completions that the controller could not take, because another thread polled it, are
        // tried again at once.
        if lane.done.is_empty() { lane.queue.deadline_ns() } else { Some(0) }
    }

    /// Whether nothing is on its way here, of whomever.
    pub(super) fn is_idle(&self) -> bool {
        if let Lane::File(lane) = self { lane.in_flight == 0 } else { true }
    }
}

struct FileStorage<'a> {
    lane: &'a mut FileLane,
    ring: &'a mut Ring,
}

impl Storage for FileStorage<'_> {
    unsafe fn start(
        &mut self,
        now_ns: u64,
        owners: impl Fn() -> PortSet,
        piece: &Command,
    ) -> Option<i32> {
        // Buffers are registered with the ring of the shard that they belong to, and with no other.
        let is_own = self.lane.port.is_some_and(|port| owners() == PortSet::only(port));
        let fixed = piece.memory.fixed.filter(|_| is_own);
        let piece = Command { memory: Memory { fixed, ..piece.memory }, ..*piece };
        self.lane.in_flight += 1;
        // SAFETY: the caller vouches for the memory until the piece is done.
        unsafe { self.lane.queue.issue(now_ns, self.ring, &piece, &[]) };
        None
    }

    fn finished(&mut self) -> Option<(u16, i32)> {
        if self.lane.done.is_empty() {
            self.lane.queue.reap(0, self.ring, &mut self.lane.done, &mut PortSet::default());
        }
        let Completion { tag, errno, .. } = self.lane.done.pop()?;
        self.lane.in_flight -= 1;
        Some((tag.0 as u16, errno))
    }
}
