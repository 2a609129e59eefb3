//! What is asked of the device: which classes of requests (kind and size) there are, and of how
//! many flows.
//!
//! Only where several flows ask for several classes does it matter what requests cost. A load of
//! one class is shared alike by any costs, and one flow has all that there is. A class is there if
//! it has [`SOME`] of the requests, of the bytes, or of the costs; counts fade by a [`FADES`]th
//! with each window.

use super::fit::Parts;
use super::tally::{CLASSES, KINDS, direction, of_class};

/// A class is there if it has one part in this.
const SOME: u64 = 16;
/// Counts lose one part in this with each window.
const FADES: u64 = 16;
/// Several flows are there for this many windows after the last in which they were.
const LATELY: u32 = 16;
/// Costs are those of bytes if no two classes are further apart, relative to their bytes, than
/// this, in 256ths; above twice that they are what was found, and in between partly.
const NEAR: u64 = 2 << 8;
/// One, in counts and ratios.
const ONE: u64 = 1 << 8;

/// Which classes of requests complete.
pub(super) struct Mix {
    /// Of each class, in 256ths.
    counts: [u64; CLASSES],
    /// Windows for which several flows are taken to be there.
    several: u32,
}

/// What a request of a class costs.
fn cost(parts: &Parts, class: usize) -> u64 {
    let (kind, length) = of_class(class);
    let price = parts.get(KINDS + direction(kind)).map_or(0, |price| (price * length) >> 16);
    parts.get(kind).map_or(0, |base| base + price).max(1)
}

impl Mix {
    pub(super) const EMPTY: Mix = Mix { counts: [0; CLASSES], several: 0 };

    /// A window is over.
    pub(super) fn add(&mut self, counts: &[u64; CLASSES], are_several: bool) {
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            // The bound lets a sixteenth of a count times the longest class fit into a word.
            *sum = (*sum - *sum / FADES).saturating_add(count * ONE).min(1 << 40);
        }
        self.several = if are_several { LATELY } else { self.several.saturating_sub(1) };
    }

    /// The classes that are there, with these costs.
    fn classes(&self, parts: &Parts) -> impl Iterator<Item = usize> {
        let mut sums = [0u64; 3];
        let measures = |class: usize| {
            let count = self.counts.get(class).copied().unwrap_or(0);
            [1, of_class(class).1, cost(parts, class)].map(|unit| (count >> 4).saturating_mul(unit))
        };
        for class in 0..CLASSES {
            sums.iter_mut().zip(measures(class)).for_each(|(sum, measure)| {
                *sum = sum.saturating_add(measure);
            });
        }
        (0..CLASSES).filter(move |&class| {
            let parts = measures(class);
            parts.iter().zip(sums).any(|(part, sum)| *part > 0 && *part >= sum / SOME)
        })
    }

    /// Several flows ask for several classes.
    pub(super) fn is_mixed(&self, parts: &Parts) -> bool {
        self.several > 0 && self.classes(parts).nth(1).is_some()
    }

    /// How far these costs are to be believed, in 256ths: not at all if all classes that are there
    /// cost about as much for each of their bytes.
    pub(super) fn belief(&self, parts: &Parts) -> u64 {
        let (mut least, mut most) = (u64::MAX, 1);
        for class in self.classes(parts) {
            let each = (cost(parts, class) << 16) / of_class(class).1;
            (least, most) = (least.min(each.max(1)), most.max(each));
        }
        // Where no class is there, none is apart from another.
        let apart = if least > most { ONE } else { (most << 8) / least };
        (apart.saturating_sub(NEAR) * ONE / NEAR).min(ONE)
    }
}
