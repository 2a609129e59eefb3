//! Each port's counts of its completions, for costs by the device's time.
//!
//! A port counts in words that it alone writes; the finder reads them a hundred times a second.
//! *Memory ordering.* The words are counts that guard no data, so they are accessed with Relaxed; a
//! sum over ports may lack the counts of the last microseconds, which the next sum has.
//!
//! A request is sequential if it begins within [`NEAR`] of the end of its flow's last request on
//! the same port.

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::Op;
use crate::policy::depth::meter::add;

/// The largest distance of a sequential request from the last end, in bytes: the readahead of an
/// operating system skips less.
pub(super) const NEAR: u64 = 1 << 20;
/// Places for the flows' last ends, a power of 2; requests of flows that use one place by turns
/// count as random. 16 KiB for each port.
pub(super) const CURSORS: usize = 1024;

/// Kinds of request: random and sequential reads, random and sequential writes. Half of a kind is
/// its direction.
pub(super) const KINDS: usize = 4;
/// Sizes: powers of 2 from 512 bytes to 8 MiB; and classes, of one kind and size each.
const POWERS: usize = (WORDS - 2) / KINDS;
pub(super) const CLASSES: usize = KINDS * POWERS;
/// Bytes of a block: the least length.
pub(super) const BLOCK: u64 = 512;
/// Words of a port: one for each class, and those of the bytes read and written.
pub(super) const WORDS: usize = u64::BITS as usize;

/// The counts of a port, or of all ports, since the start, wrapping: the requests completed of each
/// class, and then the bytes read and written. A bit of a word stands for each.
pub(crate) type Sum = [u64; WORDS];

/// The fewest requests of a window: a difference of a sixteenth is then several requests; twice D
/// if that is more, because the requests that a window finds and leaves on the device are not its
/// own. A class is present if its requests are charged one part in this of all charges, and a kind
/// takes time if it takes one part in this: less has no effect on the shares of others. 32 to 128.
pub(super) const SOME: u64 = 64;

/// The class of a request.
#[inline]
pub(super) fn class(kind: usize, length: u32) -> usize {
    let power = ((u64::from(length) / BLOCK) | 1).ilog2() as usize;
    (kind * POWERS + power.min(POWERS - 1)).min(CLASSES - 1)
}

/// The kind of a class, and the length of its requests, in bytes.
pub(super) const fn of_class(class: usize) -> (usize, u64) {
    (class / POWERS, BLOCK << (class % POWERS))
}

/// The bits of a word that are 1.
pub(super) fn bits(word: u64) -> impl Iterator<Item = usize> {
    (0..WORDS).filter(move |bit| word >> bit & 1 == 1)
}

/// The kind of an operation's random requests; [`KINDS`] for one that is neither read nor write.
pub(super) const fn first(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 2,
        Op::Flush | Op::Discard => KINDS,
    }
}

/// The class of a request that is in none: a flush or a discard.
pub(crate) const NO_CLASS: u8 = u8::MAX;

/// The class of a request of this class whose length has become `length`.
pub(crate) fn grown(before: u8, length: u32) -> u8 {
    if before == NO_CLASS { NO_CLASS } else { class(usize::from(before) / POWERS, length) as u8 }
}

/// A port's words.
pub(crate) struct Classes<P: Platform> {
    counts: [P::U64; WORDS],
    /// A bit for each word that has a count.
    seen: P::U64,
}

impl<P: Platform> Classes<P> {
    pub(crate) fn new() -> Self {
        let counts = core::array::from_fn(|_| P::U64::new(0));
        Classes { counts, seen: P::U64::new(0) }
    }

    /// Adds the counts that the port has published.
    pub(crate) fn add_to(&self, sum: &mut Sum) {
        // A load has a few classes: the other words of a port are not read.
        for word in bits(self.seen.load(Ordering::Relaxed)) {
            sum[word] = sum[word].wrapping_add(self.counts[word].load(Ordering::Relaxed));
        }
    }

    /// Counts a completed request of this class.
    #[inline]
    pub(crate) fn completed(&self, class: u8, length: u64) {
        // Flushes and discards have no class: neither they nor their bytes are part of the model.
        let class = usize::from(class);
        if class >= CLASSES {
            return;
        }
        let bytes = if class < CLASSES / 2 { CLASSES } else { CLASSES + 1 };
        // Both are below the number of words; the compiler does not see it.
        for (word, more) in [(class, 1), (bytes, length)] {
            self.counts.get(word).into_iter().for_each(|count| add(count, more));
        }
        // Few classes are ever seen, so this word seldom changes.
        let seen = self.seen.load(Ordering::Relaxed);
        let now = seen | 1 << class | 1 << bytes;
        if now != seen {
            self.seen.store(now, Ordering::Relaxed);
        }
    }
}
