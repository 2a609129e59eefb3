//! The mix of requests on the device: their classes (kind and size), and whether several flows send
//! them.
//!
//! Costs matter only if several flows send requests of several classes. A load of one class is
//! shared alike by any costs, and a single flow gets the whole device. A class is present if it has
//! one part in [`SOME`] of the requests, of the bytes, or of the costs; counts fade by one part in
//! [`FADES`] with each window.

use super::fit::Parts;
use super::tally::{CLASSES, KINDS, direction, of_class};

/// A class is present if it has one part in this.
const SOME: u64 = 16;
/// Counts lose one part in this with each window.
const FADES: u64 = 16;
/// Windows for which several flows count as present after the last window with several flows.
const LATELY: u32 = 16;
/// Costs are those of bytes if the costs per byte of any two classes differ by at most this factor,
/// in 256ths; from twice that factor on they are the ones found, and in between a mean of both.
const NEAR: u64 = 2 << 8;
/// One, in counts and ratios.
const ONE: u64 = 1 << 8;

/// The classes of completed requests.
pub(super) struct Mix {
    /// The count of each class, in 256ths.
    counts: [u64; CLASSES],
    /// Windows for which several flows count as present.
    several: u32,
}

/// The cost of a request of a class.
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

    /// The classes that are present, with these costs.
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

    /// Whether several flows send requests of several classes.
    pub(super) fn is_mixed(&self, parts: &Parts) -> bool {
        self.several > 0 && self.classes(parts).nth(1).is_some()
    }

    /// The weight of these costs against those of bytes, in 256ths: 0 if all present classes cost
    /// about as much for each of their bytes.
    pub(super) fn belief(&self, parts: &Parts) -> u64 {
        let (mut least, mut most) = (u64::MAX, 1);
        for class in self.classes(parts) {
            let each = (cost(parts, class) << 16) / of_class(class).1;
            (least, most) = (least.min(each.max(1)), most.max(each));
        }
        // Without any class present there is no difference.
        let apart = if least > most { ONE } else { (most << 8) / least };
        (apart.saturating_sub(NEAR) * ONE / NEAR).min(ONE)
    }
}
