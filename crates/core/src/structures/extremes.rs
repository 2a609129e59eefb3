//! The least and the largest of many numbers, each of which changes at times.
//!
//! **Model.** Numbers are in blocks of 64. The least and the largest are kept for each block, for
//! each 64 blocks, and so on up to one range. A number that changes is compared with the extremes
//! of its block. The block is scanned only if the old number was one of them, and the blocks above
//! are updated only if the block's extremes have changed.
//!
//! **Bounds.** A change takes at most 64 steps on each of at most four levels; mostly one step.

use alloc::boxed::Box;

use crate::structures::allocation::boxed;

const BLOCK: usize = 64;

/// The least and the largest of some numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    least: u32,
    most: u32,
}

impl Range {
    /// The range of no numbers.
    const NONE: Range = Range { least: u32::MAX, most: 0 };

    fn of(ranges: impl Iterator<Item = Range>) -> Range {
        ranges.fold(Range::NONE, Range::and)
    }

    fn one(number: Option<u32>) -> Range {
        number.map_or(Range::NONE, |number| Range { least: number, most: number })
    }

    fn and(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// Whether this range may become narrower without the other.
    fn hangs_on(self, other: Range) -> bool {
        other != Range::NONE && (self.least == other.least || self.most == other.most)
    }
}

/// The extremes of numbers that their owner keeps.
pub(crate) struct Extremes {
    levels: Box<[Box<[Range]>]>,
}

impl Extremes {
    /// The extremes of `count` places, none of which has a number.
    pub(crate) fn new(count: usize) -> Self {
        let size = |level: u32| count.max(1).div_ceil(BLOCK.saturating_pow(level + 1));
        let levels = (0..).find(|&level| size(level) == 1).unwrap_or(0) as usize + 1;
        Extremes { levels: boxed(levels, |level| boxed(size(level as u32), |_| Range::NONE)) }
    }

    /// The number at this place was `old` and is `new`; `at` gives the present number of a place.
    pub(crate) fn change(
        &mut self,
        place: usize,
        old: Option<u32>,
        new: Option<u32>,
        at: impl Fn(usize) -> Option<u32>,
    ) {
        let (mut index, mut old, mut new) = (place, Range::one(old), Range::one(new));
        for level in 0..self.levels.len() {
            let block = index / BLOCK;
            let first = block * BLOCK;
            let Some(&before) = self.levels.get(level).and_then(|ranges| ranges.get(block)) else {
                return;
            };
            let after = match before.hangs_on(old) {
                false => before.and(new),
                true if level == 0 => {
                    Range::of((first..first + BLOCK).map(|place| Range::one(at(place))))
                }
                true => {
                    let below = level.checked_sub(1).and_then(|level| self.levels.get(level));
                    let below = below.map_or(&[][..], |below| below);
                    Range::of(below.iter().copied().skip(first).take(BLOCK))
                }
            };
            if after == before {
                return;
            }
            if let Some(range) = self.levels.get_mut(level).and_then(|level| level.get_mut(block)) {
                *range = after;
            }
            (index, old, new) = (block, before, after);
        }
    }

    /// The least and the largest, if there are any.
    pub(crate) fn get(&self) -> Option<(u32, u32)> {
        let Range { least, most } = *self.levels.last()?.first()?;
        (least <= most).then_some((least, most))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_the_extremes(
            count in prop::sample::select(std::vec![1usize, 64, 65, 5000]),
            steps in prop::collection::vec(
                (any::<prop::sample::Index>(), prop::option::of(0u32..9)),
                1..300,
            ),
        ) {
            let (mut extremes, mut numbers) = (Extremes::new(count), std::vec![None; count]);
            for (place, number) in steps {
                // A few places, so that numbers change and go.
                let place = place.index(count.min(90)) * (count / count.min(90));
                let old = core::mem::replace(&mut numbers[place], number);
                extremes.change(place, old, number, |at| numbers.get(at).copied().flatten());
                let all = || numbers.iter().flatten().copied();
                prop_assert_eq!(extremes.get(), all().min().zip(all().max()));
            }
        }
    }
}
