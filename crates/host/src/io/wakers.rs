//! Wakes shards: each shard has a [`Bell`] and an eventfd.
//!
//! The bell (explained in `fairq_core::wake`) shows whether a shard has to be woken at all. A
//! wake-up costs no system call while the shard runs, or polls the bell before it sleeps (see
//! `shard::spin`). Only the eventfd of a parked shard is written.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crossbeam_utils::CachePadded;
use fairq_core::wake::Bell;
use fairq_core::{Native, PortSet};
use rustix::event::{EventfdFlags, eventfd};

/// The wakers of all shards.
pub struct Wakers {
    shards: Box<[CachePadded<Waker>]>,
}

/// One shard's bell and eventfd.
pub(crate) struct Waker {
    bell: Bell<Native>,
    eventfd: OwnedFd,
}

impl Waker {
    /// The bell.
    #[inline]
    pub(crate) fn bell(&self) -> &Bell<Native> {
        &self.bell
    }

    /// The descriptor that becomes readable when the parked shard is woken.
    pub(crate) fn fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    /// Empties the eventfd, so that it waits for the next wake-up.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

impl Wakers {
    /// The wakers of `shards` shards.
    pub fn new(shards: usize) -> io::Result<Wakers> {
        let waker = |_| {
            let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(CachePadded::new(Waker { bell: Bell::default(), eventfd }))
        };
        Ok(Wakers { shards: (0..shards).map(waker).collect::<io::Result<_>>()? })
    }

    /// The number of shards.
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The waker of a shard.
    #[inline]
    pub(crate) fn of(&self, shard: usize) -> &Waker {
        &self.shards[shard]
    }

    /// Wakes a shard, so that it runs a turn.
    pub fn wake(&self, shard: usize) {
        let waker = self.of(shard);
        if waker.bell.ring() {
            // The eventfd is written once for each sleep, so its count never approaches its limit.
            rustix::io::write(&waker.eventfd, &1u64.to_ne_bytes()).expect("an eventfd takes a 1");
        }
    }

    /// Wakes the shards of `ports`, so that each runs a turn.
    pub fn wake_all(&self, ports: PortSet) {
        ports.for_each(|port| self.wake(usize::from(port.0)));
    }

    /// Whether a shard other than this one runs, so that it may soon wake this one. The result is
    /// only a hint.
    pub(crate) fn any_runs(&self, except: usize) -> bool {
        self.shards
            .iter()
            .enumerate()
            .any(|(index, waker)| index != except && waker.bell.is_running())
    }

    /// Whether a shard has been woken since the last call.
    #[inline]
    pub(crate) fn take_pending(&self, shard: usize) -> bool {
        self.of(shard).bell.take()
    }
}
