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

use super::meter::{add, counts};
use super::target::SEATS;
use crate::contract::bounds::boxed;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::share::Target;

counts! { Count, Seat:
    /// Requests of the flow in the seat that completed.
    done,
    /// Of those, the ones that took longer than the target.
    late,
    /// Time that the policy held them, and time that they were on the device, in nanoseconds.
    held_ns,
    spent_ns,
    /// Their bytes.
    bytes,
}

impl<P: Platform> Seat<P> {
    /// A port's seats.
    pub(crate) fn all() -> Box<[Seat<P>]> {
        boxed(SEATS, |_| Seat::new())
    }

    /// Counts a completion of a flow that has the seat and this word.
    fn completed(&self, word: u64, took_ns: u64, spent_ns: u64, bytes: u64) {
        add(&self.done, 1);
        add(&self.late, (took_ns > word >> SEAT_BITS).into());
        add(&self.held_ns, took_ns - spent_ns);
        add(&self.spent_ns, spent_ns);
        add(&self.bytes, bytes);
    }
}

/// Bits of a flow's word for its seat: enough for [`SEATS`] and for none. The others have the time,
/// of up to two years.
const SEAT_BITS: u32 = u8::BITS;

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
                word.store(target.latency_ns() << SEAT_BITS | (seat as u64 + 1), Ordering::Relaxed);
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
        if let Some(seat) = seats.get((word & u64::from(u8::MAX)).wrapping_sub(1) as usize) {
            seat.completed(word, took_ns, spent_ns, bytes);
        }
    }
}
