//! Each port's counts of its requests and completions, for costs by the device's time.
//!
//! A port counts in words that it alone writes; the layer reads them a hundred times a second.
//! *Memory ordering.* The words are counts that guard no data, so they are accessed with Relaxed; a
//! sum over ports may lack the counts of the last microseconds, which the next sum has.
//!
//! A request is sequential if it begins within [`NEAR`] of the end of its flow's last request on
//! the same port.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Shared;
use crate::contract::bounds::zeroes;
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{Growth, Op, Request, Tag};

/// The largest distance of a sequential request from the last end, in bytes: the readahead of an
/// operating system skips less.
const NEAR: u64 = 1 << 20;
/// Places for the flows' last ends, a power of 2; requests of flows that use one place by turns
/// count as random. 16 KiB for each port.
const CURSORS: usize = 1024;

/// Kinds of request: random and sequential reads, random and sequential writes. Half of a kind is
/// its direction.
pub(super) const KINDS: usize = 4;
/// Sizes: powers of 2 from 512 bytes to 8 MiB; and classes, of one kind and size each.
const POWERS: usize = 15;
pub(super) const CLASSES: usize = KINDS * POWERS;

/// The counts of a port, or of all ports, since the start, wrapping: the requests completed of each
/// class, and then the bytes read and written. A bit of a word stands for each.
pub(super) type Sum = [u64; 64];

/// The class of a request.
#[inline]
pub(super) fn class(kind: usize, length: u32) -> usize {
    let power = (length >> 9 | 1).ilog2() as usize;
    (kind * POWERS + power.min(POWERS - 1)).min(CLASSES - 1)
}

/// The kind of a class, and the length of its requests, in bytes.
pub(super) const fn of_class(class: usize) -> (usize, u64) {
    (class / POWERS, 512 << (class % POWERS))
}

/// The bits of a word that are 1.
pub(super) fn bits(word: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word >> bit & 1 == 1)
}

/// The kind of an operation's random requests; [`KINDS`] for one that is neither read nor write.
pub(super) const fn first(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 2,
        Op::Flush | Op::Discard => KINDS,
    }
}

/// A port's words.
pub(super) struct Words<P: Platform> {
    counts: [P::U64; 64],
    /// A bit for each word that has a count.
    seen: P::U64,
}

/// Adds to a word that the port alone writes.
#[inline]
fn add(word: &impl AtomicWord, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl<P: Platform> Words<P> {
    pub(super) fn new() -> Self {
        let counts = core::array::from_fn(|_| P::U64::new(0));
        Words { counts, seen: P::U64::new(0) }
    }

    /// Adds the counts that the port has published.
    pub(super) fn add_to(&self, sum: &mut Sum) {
        // A load has a few classes: the other words of a port are not read.
        for word in bits(self.seen.load(Ordering::Relaxed)) {
            sum[word] = sum[word].wrapping_add(self.counts[word].load(Ordering::Relaxed));
        }
    }
}

/// A port's record of its requests.
pub(super) struct Tally<P: Platform> {
    shared: Arc<Shared<P>>,
    index: usize,
    /// Of each tag the length of its request, and its kind plus one; 0: there is no request.
    requests: Box<[(u32, u32)]>,
    /// For each cursor, the end of the last request of a flow.
    ends: Box<[u64]>,
}

impl<P: Platform> Tally<P> {
    pub(super) fn new(
        shared: Arc<Shared<P>>,
        index: usize,
        tags: usize,
        flows: usize,
    ) -> Box<Self> {
        let (requests, ends) = (zeroes(tags), zeroes(flows.clamp(1, CURSORS)));
        Box::new(Tally { shared, index, requests, ends })
    }

    /// Records a request. Its price alone and as a part of a command is the same, because windows
    /// count requests.
    #[inline]
    pub(super) fn charge(&mut self, request: &Request) -> (u64, u64) {
        let (cursor, mut kind) = (request.flow.slot() & (CURSORS - 1), first(request.op));
        // With fewer flows than cursors each flow has its own, since the mask changes no slot.
        if kind < KINDS
            && let Some(end) = self.ends.get_mut(cursor)
        {
            kind += usize::from(end.abs_diff(request.offset) <= NEAR);
            *end = request.offset.saturating_add(request.length.into());
        }
        if let Some(live) = self.requests.get_mut(request.tag.0 as usize) {
            *live = (request.length, kind as u32 + 1);
        }
        let (alone, _) = self.shared.prices.cost(kind, request.length);
        (alone, alone)
    }

    /// The price of a growth: that of its bytes, which is the same for all kinds of a direction.
    pub(super) fn growth(&self, growth: &Growth) -> (u64, u64) {
        self.shared.prices.cost(first(growth.op), growth.length)
    }

    /// A staged request has become longer.
    pub(super) fn grown(&mut self, tag: Tag, growth: &Growth) {
        if let Some(live) = self.requests.get_mut(tag.0 as usize) {
            live.0 = live.0.saturating_add(growth.length);
        }
    }

    /// Counts a request. One that waited in a layer in front never came here and has no record, or
    /// that of an earlier request that was taken back.
    #[inline]
    pub(super) fn completed(&mut self, tag: Tag) {
        let Some(live) = self.requests.get_mut(tag.0 as usize) else { return };
        let (length, kind) = core::mem::take(live);
        // Flushes and discards have no class: neither they nor their bytes are part of the model.
        let Some(kind) = (kind as usize).checked_sub(1).filter(|kind| *kind < KINDS) else {
            return;
        };
        let Some(words) = self.shared.ports.get(self.index) else { return };
        let (class, bytes) = (class(kind, length), CLASSES + kind / 2);
        // Both are below 64; the compiler does not see it.
        for (word, more) in [(class, 1), (bytes, length.into())] {
            words.counts.get(word).into_iter().for_each(|count| add(count, more));
        }
        // Few classes are ever seen, so this word seldom changes.
        let seen = words.seen.load(Ordering::Relaxed);
        let now = seen | 1 << class | 1 << bytes;
        if now != seen {
            words.seen.store(now, Ordering::Relaxed);
        }
    }
}
