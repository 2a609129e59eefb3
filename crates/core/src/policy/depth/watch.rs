//! Ports' counts of the flows that have a latency target.
//!
//! A flow with a target has a *seat*. A word for each flow has the seat and the time that its
//! requests may take; a port reads it when a request is submitted, and when the request completes
//! compares once and adds to its own line of the seat. Until the first target is set nothing is
//! read.
//!
//! *Memory ordering.* The words are counts and numbers that guard no data, so they are accessed
//! with Relaxed: a port that still reads the old word counts some requests for the old target. A
//! seat's counts go on when another flow takes it, since only differences of them are used; the old
//! flow's requests on the device are then counted for the new one.

use alloc::boxed::Box;

use super::target::SEATS;
use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::share::Target;

/// The counts of one seat, wrapping.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// Requests completed.
    pub(super) done: u64,
    /// Of those, the ones that took longer than the target.
    pub(super) late: u64,
    /// Time that the policy held them, and time that they were on the device, in nanoseconds.
    pub(super) held_ns: u64,
    pub(super) spent_ns: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl Count {
    /// The counts since `before`.
    pub(super) fn since(&self, before: &Count) -> Count {
        Count {
            done: self.done.wrapping_sub(before.done),
            late: self.late.wrapping_sub(before.late),
            held_ns: self.held_ns.wrapping_sub(before.held_ns),
            spent_ns: self.spent_ns.wrapping_sub(before.spent_ns),
            bytes: self.bytes.wrapping_sub(before.bytes),
        }
    }
}

/// A port's counts of one seat, in a line that it alone writes.
#[repr(align(64))]
struct Words<P: Platform>([P::U64; 5]);

/// State that ports and the controller share.
pub(super) struct Watch<P: Platform> {
    /// 1 once there has been a target: until then `flows` is not read.
    is_on: P::U64,
    /// For each flow its seat plus one in the lowest byte, and the time above; 0 without a target.
    flows: Box<[P::U64]>,
    /// By port and seat.
    ports: Box<[Box<[Words<P>]>]>,
}

impl<P: Platform> Watch<P> {
    pub(super) fn new(flows: usize, ports: usize) -> Self {
        let words = || Words(core::array::from_fn(|_| P::U64::new(0)));
        Watch {
            is_on: P::U64::new(0),
            flows: boxed(flows, |_| P::U64::new(0)),
            ports: boxed(ports, |_| boxed(SEATS, |_| words())),
        }
    }

    /// Gives the flow in this slot this seat and target, or none.
    pub(super) fn seat(&self, slot: usize, seat: Option<(usize, Target)>) {
        let Some(word) = self.flows.get(slot) else { return };
        match seat {
            Some((seat, target)) => {
                word.store(target.latency_ns() << 8 | (seat as u64 + 1), Ordering::Relaxed);
                self.is_on.store(1, Ordering::Relaxed);
            }
            None => word.store(0, Ordering::Relaxed),
        }
    }

    /// The word of the flow in this slot: 0 without a target.
    #[inline]
    pub(super) fn word(&self, slot: usize) -> u64 {
        let flow = self.flows.get(slot).filter(|_| self.is_on.load(Ordering::Relaxed) != 0);
        flow.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Counts a completion on this port of a flow that had this word. `took_ns` is the time since
    /// the request arrived, `spent_ns` the part of it on the device.
    #[inline]
    pub(super) fn completed(
        &self,
        port: usize,
        word: u64,
        took_ns: u64,
        spent_ns: u64,
        length: u32,
    ) {
        let seat = (word & 0xff).wrapping_sub(1) as usize;
        let Some(Words(words)) = self.ports.get(port).and_then(|port| port.get(seat)) else {
            return;
        };
        let is_late = u64::from(took_ns > word >> 8);
        let more = [1, is_late, took_ns - spent_ns, spent_ns, length.into()];
        for (word, more) in words.iter().zip(more) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    /// The counts of all ports for this seat.
    pub(super) fn count(&self, seat: usize) -> Count {
        let mut sum = Count::default();
        for Words(words) in self.ports.iter().filter_map(|port| port.get(seat)) {
            let [done, late, held, spent, bytes] =
                words.each_ref().map(|word| word.load(Ordering::Relaxed));
            sum.done = sum.done.wrapping_add(done);
            sum.late = sum.late.wrapping_add(late);
            sum.held_ns = sum.held_ns.wrapping_add(held);
            sum.spent_ns = sum.spent_ns.wrapping_add(spent);
            sum.bytes = sum.bytes.wrapping_add(bytes);
        }
        sum
    }
}
