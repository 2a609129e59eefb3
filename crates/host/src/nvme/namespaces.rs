//! The namespaces of a controller: how large each is. More may be attached while it works, none goes.
//!
//! *Memory ordering.* A size is written before the count that covers it (Release), and read after the count was (Acquire).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of each namespace, by number from 0.
pub struct Namespaces {
    sizes: Box<[AtomicU64]>,
    count: AtomicUsize,
}

impl Namespaces {
    /// These, with room for `later` ones.
    pub fn new(first: &[u64], later: usize) -> Namespaces {
        let sizes = first.iter().copied().chain(std::iter::repeat_n(0, later)).map(AtomicU64::new).collect();
        Namespaces { sizes, count: AtomicUsize::new(first.len()) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The size of one.
    #[inline]
    pub fn size(&self, number: usize) -> Option<u64> {
        let is_there = number < self.count.load(Ordering::Acquire);
        is_there.then(|| self.sizes.get(number).map_or(0, |size| size.load(Ordering::Relaxed)))
    }

    /// Attaches one more, by one thread at a time; false if there is no room.
    pub fn attach(&self, size: u64) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let Some(slot) = self.sizes.get(count) else { return false };
        slot.store(size, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
        true
    }
}

impl From<Vec<u64>> for Namespaces {
    fn from(sizes: Vec<u64>) -> Namespaces {
        Namespaces::new(&sizes, 0)
    }
}
