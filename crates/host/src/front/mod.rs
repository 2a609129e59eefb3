//! The front ends of a shard, side by side.
//!
//! A front end is a protocol by which clients reach their tenants. Each shard has one of each kind,
//! and [`Fronts`] passes on to them what the shard gets: an event of the ring and an ended order go
//! to the front end whose they are ([`Asker`]), a [`Notice`] to all, and a [`Message`] to the one
//! that it names. All of them submit to the same data path, so a tenant has the same share whatever
//! its clients speak.
//!
//! One more front end is a field of [`Fronts`], a value of [`Asker`], a line in each method here,
//! and the limits that it adds to those of a shard.

use fairq_core::Port;

pub mod ublk;

use crate::device::Device;
use crate::front::ublk::front::{Message as UblkMessage, UblkFront};
use crate::io::ring::{Asker, Event, Ring};
use crate::nbd::serve::front::{Message as NbdMessage, NbdFront};
use crate::shard::path::{DataPath, Finished};
use crate::shard::{Front, Notice};

/// The front ends of one shard.
pub struct Fronts {
    nbd: NbdFront,
    ublk: UblkFront,
    /// Whether `nbd` submits its orders first in the next turn. Where the shard has room for fewer
    /// orders than there are, the first front end would take it all.
    is_nbd_first: bool,
}

/// A message to one front end.
pub enum Message {
    /// To the one for NBD.
    Nbd(NbdMessage),
    /// To the one for ublk.
    Ublk(UblkMessage),
}

impl From<NbdMessage> for Message {
    fn from(message: NbdMessage) -> Message {
        Message::Nbd(message)
    }
}

impl From<UblkMessage> for Message {
    fn from(message: UblkMessage) -> Message {
        Message::Ublk(message)
    }
}

impl Fronts {
    /// These front ends.
    pub fn new(nbd: NbdFront, ublk: UblkFront) -> Fronts {
        Fronts { nbd, ublk, is_nbd_first: true }
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
            Message::Ublk(message) => {
                path.serve(Asker::Ublk);
                self.ublk.message(now_ns, ring, path, message);
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
        path.serve(Asker::Ublk);
        self.ublk.notice(now_ns, ring, path, notice);
    }

    #[inline]
    fn event(&mut self, now_ns: u64, ring: &mut Ring, event: Event) {
        match event.data.asker {
            Asker::Nbd => self.nbd.event(now_ns, ring, event),
            Asker::Ublk => self.ublk.event(now_ns, ring, event),
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
        self.is_nbd_first = !self.is_nbd_first;
        if !self.is_nbd_first {
            path.serve(Asker::Nbd);
            self.nbd.arrivals(now_ns, ring, path);
        }
        path.serve(Asker::Ublk);
        self.ublk.arrivals(now_ns, ring, path);
        if self.is_nbd_first {
            path.serve(Asker::Nbd);
            self.nbd.arrivals(now_ns, ring, path);
        }
    }

    #[inline]
    fn finished(&mut self, now_ns: u64, finished: Finished) {
        match finished.asker {
            Asker::Nbd => self.nbd.finished(now_ns, finished),
            Asker::Ublk => self.ublk.finished(now_ns, finished),
            asker => debug_assert!(false, "no front end is {asker:?}"),
        }
    }

    #[inline]
    fn flush(&mut self, now_ns: u64, ring: &mut Ring) -> bool {
        self.nbd.flush(now_ns, ring) | self.ublk.flush(now_ns, ring)
    }

    fn deadline_ns(&self) -> Option<u64> {
        [self.nbd.deadline_ns(), self.ublk.deadline_ns()].into_iter().flatten().min()
    }

    fn resume(&mut self) {
        self.nbd.resume();
        self.ublk.resume();
    }

    fn halt(&mut self, ring: &mut Ring, cancel: bool) -> bool {
        self.nbd.halt(ring, cancel) & self.ublk.halt(ring, cancel)
    }

    fn go_on(&mut self, ring: &mut Ring) {
        self.nbd.go_on(ring);
        self.ublk.go_on(ring);
    }

    fn stop(&mut self) {
        self.nbd.stop();
        self.ublk.stop();
    }

    fn is_stopped(&self) -> bool {
        self.nbd.is_stopped() && self.ublk.is_stopped()
    }
}
