//! Random numbers that are the same on every machine and in every version.
//!
//! A run is identified by its seed, so the numbers of a seed must not depend on the machine or on
//! the version of a library. `rand`'s small generators and its distributions do not promise this.
//! ChaCha with eight rounds is a published function, which `rand_chacha` implements. It has
//! independent streams, so that a thread's requests do not change when another thread is added, and
//! takes about a nanosecond for a number. This module scales a number into a range.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers.
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream with this number under a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        Random(generator)
    }

    /// The next 64 bits of the stream.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // A product, and not rejection sampling: for every bound each call takes exactly one number
        // of the stream, so the later numbers do not depend on the bound. The bias is below bound /
        // 2^64.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `times`, on average.
    #[inline]
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Shuffles these.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values: if these numbers change, the results of every run change.
    #[test]
    fn a_seed_means_the_same_numbers_for_ever() {
        let mut random = Random::new(1, 2);
        assert_eq!(
            [random.word(), random.word()],
            [6_938_885_953_644_749_562, 2_026_289_535_659_934_096]
        );
        assert_eq!(random.below(1000), 406);
    }

    #[test]
    fn streams_differ_and_numbers_are_in_range() {
        let [mut a, mut b] = [0, 1].map(|stream| Random::new(7, stream));
        assert_ne!(a.word(), b.word());
        let mut seen = [false; 6];
        (0..100).for_each(|_| seen[a.below(6) as usize] = true);
        assert_eq!(seen, [true; 6]);
        assert_eq!(a.below(0), 0);
    }
}
