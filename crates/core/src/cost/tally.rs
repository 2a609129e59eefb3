//! Each port's counts of its requests and completions, for costs by the device's time.
//!
//! A port counts in its own memory and publishes its sums in words that it alone writes; the layer
//! reads them a hundred times a second. *Memory ordering.* The words are counts that guard no data,
//! so they are accessed with Relaxed; a sum over ports may lack the counts of the last
//! microseconds, which the next sum has.
//!
//! A request is sequential if it begins within [`NEAR`] of the end of its flow's last request on
//! the same port.

use alloc::boxed::Box;

use bytemuck::Zeroable;

use crate::contract::op::Op;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::Request;
use crate::structures::allocation::{boxed, zeroes};

/// The largest distance of a sequential request from the last end, in bytes.
const NEAR: u64 = 1 << 20;
/// Places for the flows' last ends; requests of flows that use one place by turns count as random.
const CURSORS: usize = 1024;

/// Kinds of request: random and sequential reads, random and sequential writes.
pub(super) const KINDS: usize = 4;

/// Sizes: powers of 2 from 512 bytes to 16 MiB; and classes, of one kind and size each.
const POWERS: usize = 16;
pub(super) const CLASSES: usize = KINDS * POWERS;

/// The class of a request.
#[inline]
pub(super) const fn class(kind: usize, length: u32) -> usize {
    let power = 31 - (length >> 9 | 1).leading_zeros() as usize;
    kind * POWERS + if power < POWERS { power } else { POWERS - 1 }
}

/// The kind of a class, and the length of its requests, in bytes.
pub(super) const fn of_class(class: usize) -> (usize, u64) {
    (class / POWERS, 512 << (class % POWERS))
}

/// The direction of a kind: 0 for reads, 1 for writes.
pub(super) const fn direction(kind: usize) -> usize {
    kind >> 1 & 1
}

/// The counts of all ports since the start, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Commands completed, of each class.
    pub(super) counts: [u64; CLASSES],
    /// Their bytes, read and written.
    pub(super) bytes: [u64; 2],
    /// Completions of a request of another flow than the port's completion before.
    pub(super) turns: u64,
    /// The flow's slot, plus one, of a request completed lately, and whether the ports' last
    /// completions were of several flows.
    last: u64,
    pub(super) are_several: bool,
    /// Requests that policies hold.
    pub(super) staged: u64,
    /// Requests that policies hold, and those on the device.
    pub(super) live: u64,
    /// Time of the last completion, in nanoseconds.
    pub(super) last_ns: u64,
}

impl Default for Sum {
    fn default() -> Self {
        Sum {
            counts: [0; CLASSES],
            bytes: [0; 2],
            turns: 0,
            last: 0,
            are_several: false,
            staged: 0,
            live: 0,
            last_ns: 0,
        }
    }
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;

/// A port's words.
pub(super) struct Words<P: Platform> {
    counts: [P::U64; CLASSES],
    /// A bit for each class that has a count.
    classes: P::U64,
    bytes: [P::U64; 2],
    turns: P::U64,
    last: P::U64,
    /// `live` and, above it, `staged`; each is at most a port's tags.
    live: P::U64,
    last_ns: P::U64,
}

impl<P: Platform> Words<P> {
    pub(super) fn new() -> Self {
        let word = |_| P::U64::new(0);
        Words {
            counts: core::array::from_fn(word),
            classes: word(0),
            bytes: core::array::from_fn(word),
            turns: word(0),
            last: word(0),
            live: word(0),
            last_ns: word(0),
        }
    }

    /// Adds the counts that the port has published; a completion after `since_ns` counts as lately.
    pub(super) fn add_to(&self, sum: &mut Sum, since_ns: u64) {
        let load = |word: &P::U64| word.load(Ordering::Relaxed);
        // A load has a few classes: the other words of a port are not read.
        let mut classes = load(&self.classes);
        while classes != 0 {
            let class = classes.trailing_zeros() as usize;
            classes &= classes - 1;
            if let (Some(sum), Some(word)) = (sum.counts.get_mut(class), self.counts.get(class)) {
                *sum = sum.wrapping_add(load(word));
            }
        }
        for (sum, word) in sum.bytes.iter_mut().zip(&self.bytes) {
            *sum = sum.wrapping_add(load(word));
        }
        let live = load(&self.live);
        sum.staged = sum.staged.saturating_add(live >> 32);
        sum.live = sum.live.saturating_add(live & LOW);
        sum.turns = sum.turns.wrapping_add(load(&self.turns));
        let (last_ns, last) = (load(&self.last_ns), load(&self.last));
        sum.last_ns = sum.last_ns.max(last_ns);
        if last > 0 && last_ns > since_ns {
            sum.are_several |= sum.last != 0 && sum.last != last;
            sum.last = last;
        }
    }
}

/// The place of a request.
#[derive(Clone, Copy, Default, PartialEq, Eq, Zeroable)]
#[repr(u8)]
enum Place {
    /// Nowhere.
    #[default]
    Gone,
    Staged,
    /// On the device.
    Issued,
    /// On the device as a part of another's command.
    Joined,
}

/// A request that the port has.
#[derive(Clone, Copy, Default, Zeroable)]
struct Live {
    length: u32,
    /// The flow's slot.
    slot: u32,
    /// [`KINDS`] for one that is neither read nor write.
    kind: u8,
    place: Place,
}

/// The counts of a port.
pub(super) struct Tally {
    live: Box<[Live]>,
    /// For each cursor, the end of the last request of a flow, and that flow's slot.
    ends: Box<[(u64, u32)]>,
    counts: [u64; CLASSES],
    classes: u64,
    bytes: [u64; 2],
    turns: u64,
    last: u64,
    staged: u32,
    on_device: u32,
}

impl Tally {
    pub(super) fn new(tags: usize, flows: usize) -> Self {
        Tally {
            live: zeroes(tags),
            ends: boxed(flows.clamp(1, CURSORS), |_| (0, u32::MAX)),
            counts: [0; CLASSES],
            classes: 0,
            bytes: [0; 2],
            turns: 0,
            last: 0,
            staged: 0,
            on_device: 0,
        }
    }

    /// The kind of a request, [`KINDS`] for one that is neither read nor write; records its end for
    /// the flow's next request.
    #[inline]
    pub(super) fn kind(&mut self, request: &Request) -> usize {
        let first = match request.op {
            Op::Read => 0,
            Op::Write | Op::WriteZeroes => 2,
            Op::Flush | Op::Discard => return KINDS,
        };
        let slot = request.flow.slot();
        // With fewer flows than cursors each slot has its own, since the mask changes no slot.
        let Some(end) = self.ends.get_mut(slot & (CURSORS - 1)) else { return first };
        let is_near = end.1 == slot as u32 && end.0.abs_diff(request.offset) <= NEAR;
        *end = (request.offset.saturating_add(request.length.into()), slot as u32);
        first + usize::from(is_near)
    }

    #[inline]
    pub(super) fn submitted(&mut self, request: &Request, kind: usize, is_staged: bool) {
        if let Some(live) = self.live.get_mut(request.tag.0 as usize) {
            let place = if is_staged { Place::Staged } else { Place::Issued };
            let slot = request.flow.slot() as u32;
            *live = Live { length: request.length, slot, kind: kind as u8, place };
            let count = if is_staged { &mut self.staged } else { &mut self.on_device };
            *count = count.wrapping_add(1);
        }
    }

    #[inline]
    fn left(&mut self, place: Place) {
        match place {
            Place::Gone => {}
            Place::Staged => self.staged = self.staged.wrapping_sub(1),
            Place::Issued | Place::Joined => self.on_device = self.on_device.wrapping_sub(1),
        }
    }

    #[inline]
    pub(super) fn issued(&mut self, tag: u32, is_joined: bool) {
        let Some(live) = self.live.get_mut(tag as usize) else { return };
        let place = if is_joined { Place::Joined } else { Place::Issued };
        let before = core::mem::replace(&mut live.place, place);
        self.left(before);
        self.on_device = self.on_device.wrapping_add(1);
    }

    /// A staged request has left the policy for the device. A request that this layer never had is
    /// not counted.
    pub(super) fn expedited(&mut self, tag: u32) {
        if self.live.get(tag as usize).is_some_and(|live| live.place == Place::Staged) {
            self.issued(tag, false);
        }
    }

    /// An issued request is staged again.
    pub(super) fn requeued(&mut self, tag: u32) {
        let Some(live) = self.live.get_mut(tag as usize) else { return };
        let before = core::mem::replace(&mut live.place, Place::Staged);
        self.left(before);
        self.staged = self.staged.wrapping_add(1);
    }

    /// A staged request was taken back.
    pub(super) fn cancelled(&mut self, tag: u32) {
        let Some(live) = self.live.get_mut(tag as usize) else { return };
        let before = core::mem::take(live).place;
        self.left(before);
    }

    /// A staged request has become longer.
    pub(super) fn grown(&mut self, tag: u32, length: u32) {
        if let Some(live) = self.live.get_mut(tag as usize) {
            live.length = live.length.saturating_add(length);
        }
    }

    #[inline]
    pub(super) fn completed<P: Platform>(&mut self, tag: u32, now_ns: u64, words: &Words<P>) {
        let Some(live) = self.live.get_mut(tag as usize) else { return };
        let Live { length, slot, kind, place } = core::mem::take(live);
        // It waited in front of the policy and never came to this layer.
        if place == Place::Gone {
            return;
        }
        self.left(place);
        let last = core::mem::replace(&mut self.last, u64::from(slot) + 1);
        let store = |word: &P::U64, value| word.store(value, Ordering::Relaxed);
        let shown = u64::from(self.staged) << 32 | u64::from(self.staged + self.on_device);
        store(&words.live, shown);
        store(&words.last_ns, now_ns);
        // Two completions of one flow in a row change neither word, so neither is stored.
        if last != self.last {
            self.turns = self.turns.wrapping_add(u64::from(last != 0));
            store(&words.turns, self.turns);
            store(&words.last, self.last);
        }
        let (class, direction) = (class(kind.into(), length), direction(kind.into()));
        // Flushes and discards have no class: neither they nor their bytes are part of the model.
        let (Some(count), Some(word)) = (self.counts.get_mut(class), words.counts.get(class))
        else {
            return;
        };
        // A command is counted once, and the bytes of all its parts.
        if place != Place::Joined {
            *count = count.wrapping_add(1);
            store(word, *count);
            // Few classes are ever seen.
            let seen = self.classes | 1 << (class & (CLASSES - 1));
            if seen != self.classes {
                self.classes = seen;
                store(&words.classes, seen);
            }
        }
        if let (Some(bytes), Some(word)) =
            (self.bytes.get_mut(direction), words.bytes.get(direction))
        {
            *bytes = bytes.wrapping_add(length.into());
            store(word, *bytes);
        }
    }
}
