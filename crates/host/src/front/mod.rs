//! The front ends of a shard, side by side.
//!
//! A front end is a protocol by which clients access their tenants. Each shard has one front end of
//! each kind. [`Fronts`] dispatches to them: an event of the ring and a finished order go to the
//! front end that owns them ([`Asker`]), a [`Notice`] goes to all, and a [`Message`] to the one
//! that it names. All of them submit to the same data path, so a tenant's share does not depend on
//! its clients' protocols.
//!
//! To add a front end, add a field to [`Fronts`], a value to [`Asker`], a line to each method here,
//! and its limits to those of a shard.

use fairq_core::Port;

use crate::device::Device;
use crate::front::ublk::disk_queues::{Message as UblkMessage, UblkFront};
use crate::front::vfio_user::queue_groups::{Message as VfioUserMessage, VfioUserFront};
use crate::front::vhost::vrings::{Message as VhostMessage, VhostFront};
use crate::io::ring::{Asker, Event, Ring};
use crate::nbd::serve::front::{Message as NbdMessage, NbdFront};
use crate::shard::path::{DataPath, Finished};
use crate::shard::{Front, Notice};

pub mod attach;
pub mod guest_calls;
pub mod guest_memory;
pub mod socket;
pub mod ublk;
pub mod vfio_user;
pub mod vhost;

/// The front ends of one shard.
pub struct Fronts {
    nbd: NbdFront,
    vhost: VhostFront,
    ublk: UblkFront,
    vfio_user: VfioUserFront,
    /// The front end that submits its orders first in the next turn. It rotates, because the first
    /// one may use up all free tags.
    first: Asker,
}

/// A message to one front end.
pub enum Message {
    /// A message to the NBD front end.
    Nbd(NbdMessage),
    /// A message to the vhost-user front end.
    Vhost(VhostMessage),
    /// A message to the ublk front end.
    Ublk(UblkMessage),
    /// A message to the vfio-user front end.
    VfioUser(VfioUserMessage),
}

impl From<VfioUserMessage> for Message {
    fn from(message: VfioUserMessage) -> Message {
        Message::VfioUser(message)
    }
}

impl From<UblkMessage> for Message {
    fn from(message: UblkMessage) -> Message {
        Message::Ublk(message)
    }
}

impl From<VhostMessage> for Message {
    fn from(message: VhostMessage) -> Message {
        Message::Vhost(message)
    }
}

impl From<NbdMessage> for Message {
    fn from(message: NbdMessage) -> Message {
        Message::Nbd(message)
    }
}

impl Fronts {
    /// Combines these front ends.
    pub fn new(
        nbd: NbdFront,
        vhost: VhostFront,
        ublk: UblkFront,
        vfio_user: VfioUserFront,
    ) -> Fronts {
        Fronts { nbd, vhost, ublk, vfio_user, first: Asker::Nbd }
    }
}

/// The number of front ends.
const FRONTS: usize = 4;

/// The front end that submits first in the turn after `front` did.
fn after(front: Asker) -> Asker {
    match front {
        Asker::Nbd => Asker::Vhost,
        Asker::Vhost => Asker::Ublk,
        Asker::Ublk => Asker::VfioUser,
        _ => Asker::Nbd,
    }
}

impl Front for Fronts {
    type Message = Message;

    fn message<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        message: Message,
    ) {
        match message {
            Message::Nbd(message) => {
                path.serve(Asker::Nbd);
                self.nbd.message(now_ns, ring, path, message);
            }
            Message::Vhost(message) => {
                path.serve(Asker::Vhost);
                self.vhost.message(now_ns, ring, path, message);
            }
            Message::Ublk(message) => {
                path.serve(Asker::Ublk);
                self.ublk.message(now_ns, ring, path, message);
            }
            Message::VfioUser(message) => {
                path.serve(Asker::VfioUser);
                self.vfio_user.message(now_ns, ring, path, message);
            }
        }
    }

    fn notice<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
        notice: Notice,
    ) {
        path.serve(Asker::Nbd);
        self.nbd.notice(now_ns, ring, path, notice);
        path.serve(Asker::Vhost);
        self.vhost.notice(now_ns, ring, path, notice);
        path.serve(Asker::Ublk);
        self.ublk.notice(now_ns, ring, path, notice);
        path.serve(Asker::VfioUser);
        self.vfio_user.notice(now_ns, ring, path, notice);
    }

    #[inline]
    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        match event.data.asker {
            Asker::Nbd => self.nbd.event(now_ns, ring, event),
            Asker::Vhost => self.vhost.event(now_ns, ring, event),
            Asker::Ublk => self.ublk.event(now_ns, ring, event),
            Asker::VfioUser => self.vfio_user.event(now_ns, ring, event),
            asker => debug_assert!(false, "no front end is {asker:?}"),
        }
    }

    #[inline]
    fn arrivals<P: Port, D: Device>(
        &mut self,
        now_ns: u64,
        ring: &mut Ring,
        path: &mut DataPath<P, D>,
    ) {
        let mut turn = self.first;
        for _ in 0..FRONTS {
            path.serve(turn);
            match turn {
                Asker::Nbd => self.nbd.arrivals(now_ns, ring, path),
                Asker::Vhost => self.vhost.arrivals(now_ns, ring, path),
                Asker::Ublk => self.ublk.arrivals(now_ns, ring, path),
                _ => self.vfio_user.arrivals(now_ns, ring, path),
            }
            turn = after(turn);
        }
        self.first = after(self.first);
    }

    #[inline]
    fn finished(&mut self, now_ns: u64, finished: Finished) {
        match finished.asker {
            Asker::Nbd => self.nbd.finished(now_ns, finished),
            Asker::Vhost => self.vhost.finished(now_ns, finished),
            Asker::Ublk => self.ublk.finished(now_ns, finished),
            Asker::VfioUser => self.vfio_user.finished(now_ns, finished),
            asker => debug_assert!(false, "no front end is {asker:?}"),
        }
    }

    #[inline]
    fn flush(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        let is_busy = self.nbd.flush(now_ns, ring) | self.vhost.flush(now_ns, ring);
        self.ublk.flush(now_ns, ring) | self.vfio_user.flush(now_ns, ring) | is_busy
    }

    fn deadline_ns(&self) -> Option<u64> {
        [self.nbd.deadline_ns(), self.vfio_user.deadline_ns()].into_iter().flatten().min()
    }

    #[inline]
    fn polls_ns(&mut self) -> u64 {
        self.vhost.polls_ns().max(self.vfio_user.polls_ns())
    }

    #[inline]
    fn has_news(&mut self) -> bool {
        self.vhost.has_news() || self.vfio_user.has_news()
    }

    fn polled(&mut self, waited_ns: Option<u64>) {
        if self.vhost.polls_ns() > 0 {
            self.vhost.polled(waited_ns);
        }
        if self.vfio_user.polls_ns() > 0 {
            self.vfio_user.polled(waited_ns);
        }
    }

    #[inline]
    fn rest(&mut self) -> bool {
        self.vhost.rest() & self.vfio_user.rest()
    }

    fn resume(&mut self) {
        self.nbd.resume();
        self.vhost.resume();
        self.ublk.resume();
        self.vfio_user.resume();
    }

    fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        let is_quiet = self.nbd.halt(ring, cancel) & self.vhost.halt(ring, cancel);
        self.ublk.halt(ring, cancel) & self.vfio_user.halt(ring, cancel) & is_quiet
    }

    fn go_on(&mut self, ring: &mut Ring) {
        self.nbd.go_on(ring);
        self.vhost.go_on(ring);
        self.ublk.go_on(ring);
        self.vfio_user.go_on(ring);
    }

    fn stop(&mut self) {
        self.nbd.stop();
        self.vhost.stop();
        self.ublk.stop();
        self.vfio_user.stop();
    }

    fn is_stopped(&self) -> bool {
        let are_others = self.vhost.is_stopped() && self.ublk.is_stopped();
        self.nbd.is_stopped() && are_others && self.vfio_user.is_stopped()
    }
}
