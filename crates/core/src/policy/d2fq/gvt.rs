//! Global virtual time in one word (Section 3.4, Figure 9).
//!
//! **Problem.** Every submission compares its flow's virtual time with the least of all active
//! flows. A minimum that is exact costs a look at every flow, or a tree of contended words.
//! **Model.** One word says a virtual time and its *holder*, the flow that it belongs to. Only the
//! holder moves it on, when its requests complete; any flow that finds itself behind moves it back
//! and becomes the holder. A holder with nothing in flight lets go, and the value stays.
//!
//! **The word**, from the top: virtual time in KiU (1024 units) modulo 2^40, 8 bits of the holder's
//! generation, 16 bits of its slot plus one; 0 in the lower 24 bits says that nobody holds it. Two
//! points compare by their signed difference, right while they are within 2^49 units.
//!
//! **Nothing leaves the window**, whatever weights, depths and sizes are ([`Floor`]).
//!
//! **How sloppy.** When the holder moves on it may pass a flow that is behind it: then the word is
//! too late until that flow's next publication, which moves it back. So after each publication the
//! word is not after the publisher, unless nobody held it: a value that was let go never goes back
//! (decision 6).
//!
//! **Taking it up again.** The paper lets the first flow that completes something take an unheld
//! word at *its* virtual time, however far ahead that is, and everybody else is behind. Here a flow
//! takes it if it was not ahead of the value when its requests were served: that flow was the
//! least. Otherwise the least is looked for ([`super::Shared::survey`]) and the value raised to it,
//! without a holder; the flow that it belongs to takes it with its next publication.
//!
//! **Memory ordering.** The word is complete in itself: a submission reads it with Relaxed. V and F
//! need a total order between them (SeqCst): a port that raises F *then* reads V, and a port that
//! moves V back *then* reads F. So at least one of the two sees the other's write, and raises V.
//! `P::fence` marks the places. That no flow holds V while it has nothing in flight follows from
//! `activity`: a port publishes only while it is counted; the port that takes the count to 0
//! synchronizes with all that left before (AcqRel), so it sees their swaps of this word, and then
//! lets go. If the flow comes back at that very moment, its next publication takes the word again.
//! The models show both.
//!
//! **Rejected.** A version stamp: each swap is right for whatever history led to the value that it
//! replaces.

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
        // Slots are below 65,535 (`MAX_HOLDERS`), so that plus 1 they fit; 0 stands for no holder.
        Holder(u64::from(generation & 0xff) << 16 | (slot as u64 + 1) & Self::SLOT)
    }
}

/// A point in virtual time as the word has it; the holder's bits are 0.
#[inline]
fn point(vt: VTime) -> u64 {
    (vt.to_word() >> (STAMP_BITS + KIU)) << HOLDER_BITS
}

/// How far `a` is after `b`, in KiU; the holder's bits of either are ignored.
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

    /// How far `vt` is ahead of it, in KiU; negative if behind.
    #[inline]
    pub(super) fn ahead(&self, vt: VTime) -> i64 {
        since(point(vt), self.0.load(Ordering::Relaxed))
    }

    /// Its value in units, modulo 2^50.
    pub(super) fn units(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> HOLDER_BITS << KIU
    }

    /// The slot of its holder.
    pub(super) fn holder_slot(&self) -> Option<usize> {
        ((self.0.load(Ordering::Relaxed) & Holder::SLOT) as usize).checked_sub(1)
    }

    /// A flow's virtual time went from `before` to `after`. False: no flow holds the word, and it
    /// is not this flow's.
    #[inline]
    pub(super) fn update(&self, me: Holder, before: VTime, after: VTime) -> bool {
        let my = point(after);
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let new = match old & HOLDER {
                // The flow was ahead of the value, so another may be the least: the caller looks
                // for it.
                0 if since(point(before), old) > 0 => return false,
                // What was let go does not go back.
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

    /// The same as the paper has it: the first that comes takes a word that nobody holds, at its
    /// own virtual time.
    pub(super) fn update_as_in_paper(&self, me: Holder, after: VTime) {
        let my = point(after);
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let holder = old & HOLDER;
            let mine = holder == me.0;
            if holder != 0 && !(mine && since(my, old) > 0 || !mine && since(my, old) < 0) {
                return;
            }
            match self.0.compare_exchange(old, my | me.0, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
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

    /// This flow has nothing in flight: if it is the holder, none is. The value stays.
    #[inline]
    pub(super) fn release(&self, me: Holder) {
        self.release_if(|holder| holder == me);
    }

    /// The same for whatever flow was in this slot.
    pub(super) fn release_slot(&self, slot: usize) {
        self.release_if(|holder| holder.0 & Holder::SLOT == slot as u64 + 1);
    }

    #[inline]
    fn release_if(&self, lets_go: impl Fn(Holder) -> bool) {
        let mut old = self.0.load(Ordering::Relaxed);
        while old & HOLDER != 0 && lets_go(Holder(old & HOLDER)) {
            match self.0.compare_exchange(old, old & !HOLDER, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }
}

// **Nothing leaves the window.** Let V be the word and F the floor, both in units.
// - *F <= V* whenever no publication is under way: a flow that raises F raises V to it, and a flow
//   that swaps V looks at F once more (below).
// - *vt - V <= 2^46 + 2^40 for each port* for any flow: a publication charges at most 2^40 units
//   (`super::CHARGE_MAX`) and then raises F to at least vt less 2^46 (`super::SPAN_MAX`). With 256
//   ports that is less than 2^48.4.
// - *V - F <= 2^46 + 2^40 for each port*, because V is never after all published virtual times, and
//   F is within a span of each of them.
// - *vt >= F* after each publication of the flow and each tick. Between two ticks F moves by what
//   the device serves: 2^46 units in a minute, the longest that a tick is away, at 10 GB/s to a
//   flow of weight 1.
//
// So whatever weights, depths and sizes are, |vt - V| < 2^49 for flows in use or not.
/// The least that global virtual time may be: no flow is farther ahead of it than its span.
pub(super) struct Floor<P: Platform>(P::U64);

impl<P: Platform> Floor<P> {
    pub(super) fn new() -> Self {
        Floor(P::U64::new(VTime::ZERO.to_word()))
    }

    #[inline]
    pub(super) fn get(&self) -> VTime {
        VTime::from_word(self.0.load(Ordering::SeqCst))
    }

    /// It never goes back.
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
