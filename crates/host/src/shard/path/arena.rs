//! The memory of live orders whose data are in several stretches.
//!
//! An order with one stretch uses no list. Each other order has a list of the stretches after the
//! first. A freed list keeps its memory for a later order, so a running shard allocates only when
//! it has more such orders, or more stretches in one, than ever before.

use crate::io::memory::Memory;

/// The lists of a shard.
#[derive(Default)]
pub(super) struct Arena {
    lists: Vec<Vec<Memory>>,
    free: Vec<u32>,
}

/// The list of one order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rest(u32);

impl Rest {
    /// The list of an order with at most one stretch.
    pub(super) const NONE: Rest = Rest(u32::MAX);
}

impl Arena {
    /// Keeps the stretches of an order after the first until [`Self::free`].
    #[inline]
    pub(super) fn keep(&mut self, rest: &[Memory]) -> Rest {
        if rest.is_empty() { Rest::NONE } else { self.copy(rest) }
    }

    fn copy(&mut self, rest: &[Memory]) -> Rest {
        let index = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        });
        self.lists[index as usize].extend_from_slice(rest);
        Rest(index)
    }

    /// The stretches after the first.
    #[inline]
    pub(super) fn get(&self, rest: Rest) -> &[Memory] {
        self.lists.get(rest.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Frees an order's list.
    #[inline]
    pub(super) fn free(&mut self, rest: Rest) {
        if rest != Rest::NONE {
            self.lists[rest.0 as usize].clear();
            self.free.push(rest.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_used_again() {
        let mut arena = Arena::default();
        assert_eq!(arena.keep(&[]), Rest::NONE);
        let (one, two) = ([Memory::NONE; 1], [Memory::NONE; 2]);
        let (a, b) = (arena.keep(&one), arena.keep(&two));
        assert_eq!([Rest::NONE, a, b].map(|rest| arena.get(rest).len()), [0, 1, 2]);
        arena.free(a);
        arena.free(Rest::NONE);
        assert_eq!(arena.keep(&two), a);
        assert_eq!((arena.get(a).len(), arena.get(b).len(), arena.lists.len()), (2, 2, 2));
    }
}
