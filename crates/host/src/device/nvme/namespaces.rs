//! The namespaces of a controller: how large each is. They may be attached and detached while it
//! works.
//!
//! *Memory ordering.* A size is written before the count that covers it (Release), and read after
//! the count was (Acquire). A size orders nothing else: a shard that reuses the number of a
//! detached namespace informs the senders of commands by other means.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of each namespace, by number from 0; none has 0.
pub struct Namespaces {
    sizes: Box<[AtomicU64]>,
    count: AtomicUsize,
}

impl Namespaces {
    /// These, with room for `later` ones.
    pub fn new(first: &[u64], later: usize) -> Namespaces {
        let sizes = first
            .iter()
            .copied()
            .chain(std::iter::repeat_n(0, later))
            .map(AtomicU64::new)
            .collect();
        Namespaces { sizes, count: AtomicUsize::new(first.len()) }
    }

    /// The number of namespaces, gaps included.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The size of one that is there.
    #[inline]
    pub fn size(&self, number: usize) -> Option<u64> {
        if number >= self.count.load(Ordering::Acquire) {
            return None;
        }
        self.sizes.get(number).map(|size| size.load(Ordering::Relaxed)).filter(|&size| size > 0)
    }

    /// Attaches one at a number that nobody has.
    pub fn attach(&self, number: usize, size: u64) {
        if let Some(slot) = self.sizes.get(number) {
            slot.store(size, Ordering::Relaxed);
            self.count.fetch_max(number + 1, Ordering::Release);
        }
    }

    /// Detaches one.
    pub fn detach(&self, number: usize) {
        if let Some(slot) = self.sizes.get(number) {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

impl From<Vec<u64>> for Namespaces {
    fn from(sizes: Vec<u64>) -> Namespaces {
        Namespaces::new(&sizes, 0)
    }
}
