//! Global virtual time in one word (Section 3.4, Figure 9).
//!
//! **Problem.** Every submission compares its flow's virtual time with the least of all active
//! flows. An exact minimum costs a scan of all flows, or a tree of contended words. **Model.** One
//! word contains a virtual time and its *holder*, the flow to which the time belongs. Only the
//! holder moves the word on, when its requests complete; any flow that finds itself behind moves
//! the word back and becomes the holder. A holder with nothing in flight releases the word, and the
//! value stays.
//!
//! **The word**, from the top: virtual time in KiU (1024 units) modulo 2^40, 8 bits of the holder's
//! generation, 16 bits of its slot plus one; 0 in the lower 24 bits means that no flow holds the
//! word. Two points compare by their signed difference, which is right while they are within 2^49
//! units.
//!
//! **No virtual time leaves this window**, for any weights, depths and sizes ([`Floor`]).
//!
//! **Error.** When the holder moves the word on, it may pass a flow that is behind: then the word
//! is too late until that flow's next publication, which moves the word back. So after each
//! publication the word is not after the publisher, unless no flow held it: a released value never
//! goes back (decision 6).
//!
//! **Taking an unheld word.** The paper lets the first flow that completes a request take it at
//! *its* virtual time, however far ahead that is, and all other flows are then behind. Here a flow
//! takes it if the flow was not ahead of the value when its requests were served: that flow was the
//! least. Otherwise a survey finds the least flow ([`super::Shared::survey`]), and the value is
//! raised to it without a holder; the least flow takes the word with its next publication.
//!
//! **Memory ordering.** The word is complete in itself: a submission reads it with Relaxed. The
//! word V and the floor F need a total order between them (SeqCst): a port that raises F *then*
//! reads V, and a port that moves V back *then* reads F. So at least one of the two sees the
//! other's write, and raises V. `P::fence` marks the places. No flow holds V while it has nothing
//! in flight; this follows from `activity`: a port publishes only while it is counted; the port
//! that takes the count to 0 synchronizes with all ports that left earlier (AcqRel), so it sees
//! their swaps of this word, and then releases the word. If the flow comes back at that very
//! moment, its next publication takes the word again. The models show both.
//!
//! **Rejected.** A version stamp is not needed, because each swap is right for any history of the
//! value that it replaces.

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::vtime::{STAMP_BITS, VTime};

/// Low bits of the word: the holder.
const HOLDER_BITS: u32 = 24;
const HOLDER: u64 = (1 << HOLDER_BITS) - 1;
/// Units per KiU, as a shift.
pub(super) const KIU: u32 = 10;

/// A flow in the gvt word: a slot and 8 bits of its generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder(u64);

impl Holder {
    const SLOT: u64 = 0xffff;

    #[inline]
    pub(super) fn new(slot: usize, generation: u32) -> Holder {
        // Slots are below 65,535 (`MAX_HOLDERS`), so a slot plus 1 fits; 0 stands for no holder.
        Holder(u64::from(generation & 0xff) << 16 | (slot as u64 + 1) & Self::SLOT)
    }
}

/// A point in virtual time in the format of the word; the holder's bits are 0.
#[inline]
fn point(vt: VTime) -> u64 {
    (vt.to_word() >> (STAMP_BITS + KIU)) << HOLDER_BITS
}

/// The distance from `b` to `a`, in KiU, negative if `a` is before `b`; the holder's bits of both
/// are ignored.
#[inline]
fn since(a: u64, b: u64) -> i64 {
    ((a & !HOLDER).wrapping_sub(b & !HOLDER) as i64) >> HOLDER_BITS
}

/// The word.
pub(super) struct Gvt<P: Platform>(P::U64);

impl<P: Platform> Gvt<P> {
    /// Virtual time 0, held by no flow.
    pub(super) fn new() -> Self {
        Gvt(P::U64::new(0))
    }

    /// The distance of `vt` ahead of the word, in KiU; negative if `vt` is behind.
    #[inline]
    pub(super) fn ahead(&self, vt: VTime) -> i64 {
        since(point(vt), self.0.load(Ordering::Relaxed))
    }

    /// Its value in units, modulo 2^50.
    pub(super) fn units(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> HOLDER_BITS << KIU
    }

    /// The slot of its holder.
    #[cfg(test)]
    pub(super) fn holder_slot(&self) -> Option<usize> {
        ((self.0.load(Ordering::Relaxed) & Holder::SLOT) as usize).checked_sub(1)
    }

    /// Updates the word after a flow's virtual time went from `before` to `after`. False: no flow
    /// holds the word, and this flow may not take it.
    #[inline]
    pub(super) fn update(&self, me: Holder, before: VTime, after: VTime) -> bool {
        let my = point(after);
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let new = match old & HOLDER {
                // The flow was ahead of the value, so another flow may be the least: the caller
                // searches for it.
                0 if since(point(before), old) > 0 => return false,
                // A released value does not go back.
                0 => (if since(my, old) > 0 { my } else { old }) | me.0,
                // The holder moves the word on; another flow moves it back, and then holds it.
                holder if (holder == me.0) == (since(my, old) > 0) && since(my, old) != 0 => {
                    my | me.0
                }
                _ => return true,
            };
            match self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// Raises the value to the floor; its holder stays. The caller has raised the floor before, or
    /// swapped the word.
    #[inline]
    pub(super) fn raise(&self, floor: VTime) {
        let mut old = self.0.load(Ordering::SeqCst);
        while since(point(floor), old) > 0 {
            let new = point(floor) | old & HOLDER;
            match self.0.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Raises a value that no flow holds.
    pub(super) fn raise_unheld(&self, least: VTime) {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & HOLDER == 0 && since(point(least), old) > 0 {
            match self.0.compare_exchange(old, point(least), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Releases the word if this flow, which has nothing in flight, is the holder. The value stays.
    #[inline]
    pub(super) fn release(&self, me: Holder) {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & HOLDER == me.0 {
            match self.0.compare_exchange(old, old & !HOLDER, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
}

// **No virtual time leaves the window.** Let V be the word and F the floor, both in units.
// - *F <= V* whenever no publication is under way: a flow that raises F raises V to it, and a flow
//   that swaps V then reads F once more (memory ordering, above).
// - *vt - V <= 2^46 + 2^40 for each port* for any flow: a publication charges at most 2^40 units
//   (`super::CHARGE_MAX`) and then raises F to at least vt less 2^46 (`super::SPAN_MAX`). With 256
//   ports that is less than 2^48.4.
// - *V - F <= 2^46 + 2^40 for each port*, because V is never after all published virtual times, and
//   F is within a span of each of them.
// - *vt >= F* after each publication of the flow and each tick. Between two ticks F moves by the
//   device's service: 2^46 units in a minute, the longest time between ticks, at 10 GB/s to a flow
//   of weight 1.
//
// So for any weights, depths and sizes, |vt - V| < 2^49 for all flows, in use or not.
/// The least that global virtual time may be. No flow is farther ahead of this floor than the
/// flow's span.
pub(super) struct Floor<P: Platform>(P::U64);

impl<P: Platform> Floor<P> {
    pub(super) fn new() -> Self {
        Floor(P::U64::new(VTime::ZERO.to_word()))
    }

    #[inline]
    pub(super) fn get(&self) -> VTime {
        VTime::from_word(self.0.load(Ordering::SeqCst))
    }

    /// Raises the floor to `to`; the floor never goes back.
    pub(super) fn raise(&self, to: VTime) {
        let mut old = self.0.load(Ordering::Relaxed);
        while VTime::from_word(old).is_before(to) {
            match self.0.compare_exchange(old, to.to_word(), Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
}
