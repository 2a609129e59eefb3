//! Ports' counts of the flows that have a latency target.
//!
//! A flow with a target has a *seat*. A word for each flow has the seat and the time that its
//! requests may take; when a request completes a port reads it, compares once and adds to its own
//! line of the seat. Until the first target is set nothing is read.
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
pub(crate) struct Count {
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
pub(crate) struct Seat<P: Platform>([P::U64; 5]);

impl<P: Platform> Seat<P> {
    /// A port's seats.
    pub(crate) fn all() -> Box<[Seat<P>]> {
        boxed(SEATS, |_| Seat(core::array::from_fn(|_| P::U64::new(0))))
    }

    /// Counts a completion of a flow that has the seat and this word.
    fn completed(&self, word: u64, took_ns: u64, spent_ns: u64, bytes: u64) {
        let is_late = u64::from(took_ns > word >> 8);
        let more = [1, is_late, took_ns - spent_ns, spent_ns, bytes];
        for (word, more) in self.0.iter().zip(more) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, sum: &mut Count) {
        let [done, late, held, spent, bytes] =
            self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        sum.done = sum.done.wrapping_add(done);
        sum.late = sum.late.wrapping_add(late);
        sum.held_ns = sum.held_ns.wrapping_add(held);
        sum.spent_ns = sum.spent_ns.wrapping_add(spent);
        sum.bytes = sum.bytes.wrapping_add(bytes);
    }
}

/// The flows' targets.
pub(crate) struct Watch<P: Platform> {
    /// 1 once there has been a target: until then `flows` is not read.
    is_on: P::U64,
    /// For each flow its seat plus one in the lowest byte, and the time above; 0 without a target.
    flows: Box<[P::U64]>,
}

impl<P: Platform> Watch<P> {
    pub(crate) fn new(flows: usize) -> Self {
        Watch { is_on: P::U64::new(0), flows: boxed(flows, |_| P::U64::new(0)) }
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

    /// Counts a completion of the flow in this slot, on the port with these seats. `took_ns` is the
    /// time since the request arrived, `spent_ns` the part of it on the device.
    #[inline(always)]
    pub(crate) fn completed(
        &self,
        seats: &[Seat<P>],
        slot: u32,
        (took_ns, spent_ns): (u64, u64),
        bytes: u64,
    ) {
        if self.is_on.load(Ordering::Relaxed) == 0 {
            return;
        }
        let word = self.flows.get(slot as usize).map_or(0, |word| word.load(Ordering::Relaxed));
        if let Some(seat) = seats.get((word & 0xff).wrapping_sub(1) as usize) {
            seat.completed(word, took_ns, spent_ns, bytes);
        }
    }
}
