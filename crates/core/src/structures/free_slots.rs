//! A set of numbers from which the lowest is taken: the free slots of a table.
//!
//! **Problem.** A table with thousands of flows needs a free slot for each flow that is added. A
//! scan takes time in proportion to the number of flows, so that adding all of them takes time in
//! proportion to its square. **Model.** A bit for each number, and above each 64 words a word with
//! a bit for each of them that is not empty, up to one word. Threads add numbers at any time; one
//! thread at a time takes them.
//!
//! **Bounds of loops.** To add a number is one step a level, four at most. To take a number is as
//! much for each bit that is cleared on the way; a bit that was set is cleared once.
//!
//! *Memory ordering.* A thread that adds a number sets the bits from the lowest word up. A thread
//! that finds a word empty clears the bit above, *then* reads the word once more, and sets that bit
//! again if the word is not empty. Both do read-modify-writes of the same two words, with acquire
//! and release. Either the second read finds the number, or it comes before the addition in the
//! order of the lower word; then the adding thread sets the bit above after it was cleared. So no
//! number is lost.

use alloc::boxed::Box;

use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::structures::allocation::boxed;

/// Bits of a word.
const BITS: usize = 64;

/// The set.
pub(crate) struct FreeSlots<P: Platform> {
    /// The bits of numbers, and then those of each level above; the last one has one word.
    levels: Box<[Box<[P::U64]>]>,
}

impl<P: Platform> FreeSlots<P> {
    /// The numbers `0..count`.
    pub(crate) fn all(count: usize) -> Self {
        let mut sizes = [count.max(1), 0, 0, 0, 0];
        let mut used = 1;
        // 2^24 slots are the most there are: four levels of words.
        while let [.., below, above] = sizes.get_mut(..=used).unwrap_or_default()
            && (*below > 1 || used == 1)
        {
            *above = below.div_ceil(BITS);
            used += 1;
        }
        let level = |level: usize| {
            let [bits, words] = [level, level + 1].map(|at| sizes.get(at).copied().unwrap_or(0));
            let left = |word: usize| bits.saturating_sub(word * BITS).min(BITS);
            let full = |word| u64::MAX.checked_shr((BITS - left(word)) as u32).unwrap_or(0);
            boxed(words, |word| P::U64::new(full(word)))
        };
        FreeSlots { levels: boxed(used - 1, level) }
    }

    fn word(&self, level: usize, at: usize) -> Option<&P::U64> {
        self.levels.get(level)?.get(at)
    }

    /// Adds the number. Any thread may.
    pub(crate) fn insert(&self, number: usize) {
        let mut at = number;
        for words in &self.levels {
            if let Some(word) = words.get(at / BITS) {
                word.fetch_or(bit(at), Ordering::AcqRel);
            }
            at /= BITS;
        }
    }

    /// Takes the number out. One thread at a time calls this and [`Self::take`].
    pub(crate) fn remove(&self, number: usize) {
        if let Some(word) = self.word(0, number / BITS) {
            word.fetch_and(!bit(number), Ordering::AcqRel);
        }
    }

    /// Takes out the lowest number; `None` if there is none.
    pub(crate) fn take(&self) -> Option<usize> {
        self.take_by(Self::clear)
    }

    /// Takes out the lowest number; `clear` takes out the bit above a word that seems empty.
    pub(super) fn take_by(&self, clear: fn(&Self, usize, usize)) -> Option<usize> {
        let top = self.levels.len().checked_sub(1)?;
        let (mut level, mut at) = (top, 0);
        loop {
            let bits = self.word(level, at)?.load(Ordering::Acquire);
            if bits != 0 {
                at = at * BITS + bits.trailing_zeros() as usize;
                if level == 0 {
                    self.remove(at);
                    return Some(at);
                }
                level -= 1;
                continue;
            }
            if level == top {
                return None;
            }
            clear(self, level, at);
            (level, at) = (top, 0);
        }
    }

    /// [`Self::clear`] without the second read of the word: a number that was added in between is
    /// lost, which the model must find.
    #[cfg(all(test, loom))]
    pub(super) fn clear_without_second_read(&self, level: usize, at: usize) {
        if let Some(above) = self.word(level + 1, at / BITS) {
            above.fetch_and(!bit(at), Ordering::AcqRel);
        }
    }

    /// Takes out the bit above a word that seems empty.
    #[cold]
    pub(super) fn clear(&self, level: usize, at: usize) {
        let (Some(word), Some(above)) = (self.word(level, at), self.word(level + 1, at / BITS))
        else {
            return;
        };
        above.fetch_and(!bit(at), Ordering::AcqRel);
        // A read-modify-write, so that it comes before or after that of the thread that adds.
        if word.fetch_or(0, Ordering::AcqRel) != 0 {
            above.fetch_or(bit(at), Ordering::AcqRel);
        }
    }
}

fn bit(number: usize) -> u64 {
    1u64.wrapping_shl((number % BITS) as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_are_there_in_order_and_no_more() {
        for count in [1, 2, 63, 64, 65, 4096, 4097, 300_000] {
            let free = FreeSlots::<Native>::all(count);
            assert!((0..count).all(|number| free.take() == Some(number)), "{count}");
            assert_eq!(free.take(), None, "{count}");
        }
    }

    proptest! {
        #[test]
        fn the_lowest_is_taken(
            count in prop::sample::select(std::vec![1usize, 64, 100, 5000]),
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..300),
        ) {
            let (free, mut model) = (FreeSlots::<Native>::all(count), (0..count).collect::<BTreeSet<_>>());
            for (step, number) in steps {
                let number = number.index(count);
                match step {
                    0 => {
                        free.insert(number);
                        model.insert(number);
                    }
                    1 => {
                        free.remove(number);
                        model.remove(&number);
                    }
                    _ => prop_assert_eq!(free.take(), model.pop_first()),
                }
            }
        }
    }
}
