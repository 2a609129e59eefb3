//! Queues threaded through one array: many first-in first-out lists of small numbers, without
//! allocation.
//!
//! Every number below the capacity is in at most one list at a time, so one link per number is
//! enough for any number of lists.

use alloc::boxed::Box;

use bytemuck::Zeroable;

use crate::structures::allocation::zeroes;

const NONE: u32 = u32::MAX;

/// One queue: the ends of a chain in [`Links`].
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { head: NONE, tail: NONE }
    }
}

/// The links of all queues over the numbers `0..capacity`.
pub struct Links {
    links: Box<[Link]>,
}

/// A number's neighbours in its queue. The first one's `before` is never read, nor is the link of a
/// number that is in no queue.
#[derive(Clone, Copy, Zeroable)]
struct Link {
    before: u32,
    after: u32,
}

impl Links {
    /// Links for the numbers `0..capacity`.
    pub fn new(capacity: usize) -> Self {
        Links { links: zeroes(capacity) }
    }

    /// Appends `number`, which is in no queue; ignored if it is not below the capacity.
    #[inline]
    pub fn push(&mut self, queue: &mut Fifo, number: u32) {
        let Some(link) = self.links.get_mut(number as usize) else { return };
        *link = Link { before: queue.tail, after: NONE };
        match self.links.get_mut(queue.tail as usize) {
            Some(link) => link.after = number,
            None => queue.head = number,
        }
        queue.tail = number;
    }

    /// Puts `number`, which is in no queue, before all others; ignored if it is not below the
    /// capacity.
    #[inline]
    pub fn push_front(&mut self, queue: &mut Fifo, number: u32) {
        let Some(link) = self.links.get_mut(number as usize) else { return };
        *link = Link { before: NONE, after: queue.head };
        match self.links.get_mut(queue.head as usize) {
            Some(link) => link.before = number,
            None => queue.tail = number,
        }
        queue.head = number;
    }

    /// Takes the first number out.
    #[inline]
    pub fn pop(&mut self, queue: &mut Fifo) -> Option<u32> {
        let first = queue.head;
        let after = self.links.get(first as usize)?.after;
        // The new first one's `before` stays: it is never read.
        queue.head = after;
        if after == NONE {
            queue.tail = NONE;
        }
        Some(first)
    }

    /// Takes `number`, which is in this queue, out of it.
    #[inline]
    pub fn remove(&mut self, queue: &mut Fifo, number: u32) {
        let Some(&Link { before, after }) = self.links.get(number as usize) else { return };
        if queue.head == number {
            queue.head = after;
        } else if let Some(link) = self.links.get_mut(before as usize) {
            link.after = after;
        }
        if queue.tail == number {
            // A lone number's `before` may be stale: it is not read where the queue has run empty.
            queue.tail = if queue.head == NONE { NONE } else { before };
        } else if let Some(link) = self.links.get_mut(after as usize) {
            link.before = before;
        }
    }

    /// The number after `number` in its queue.
    #[inline]
    pub fn after(&self, number: u32) -> Option<u32> {
        self.links.get(number as usize).map(|link| link.after).filter(|&after| after != NONE)
    }

    /// Appends all of `other`, which is empty afterwards.
    #[inline]
    pub fn append(&mut self, queue: &mut Fifo, other: &mut Fifo) {
        if other.is_empty() {
            return;
        }
        match self.links.get_mut(queue.tail as usize) {
            Some(link) => link.after = other.head,
            None => queue.head = other.head,
        }
        if let Some(link) = self.links.get_mut(other.head as usize) {
            link.before = queue.tail;
        }
        queue.tail = other.tail;
        *other = Fifo::default();
    }
}

impl Fifo {
    /// The first number.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn queues_share_one_array_and_keep_their_order() {
        let mut links = Links::new(6);
        let (mut a, mut b) = (Fifo::default(), Fifo::default());
        for number in [3, 0, 5] {
            links.push(&mut a, number);
        }
        for number in [1, 4] {
            links.push(&mut b, number);
        }
        links.push(&mut b, 6);
        assert_eq!((a.first(), b.first()), (Some(3), Some(1)));
        assert_eq!(links.pop(&mut a), Some(3));
        links.push(&mut b, 3);
        assert_eq!([(); 4].map(|()| links.pop(&mut b)), [Some(1), Some(4), Some(3), None]);
        assert!(b.is_empty() && !a.is_empty());
        links.push(&mut b, 2);
        assert_eq!([(); 3].map(|()| links.pop(&mut a)), [Some(0), Some(5), None]);
        assert_eq!(links.pop(&mut b), Some(2));
        links.push(&mut a, 4);
        links.push(&mut b, 1);
        links.push(&mut b, 0);
        links.append(&mut a, &mut b);
        assert!(b.is_empty());
        links.append(&mut b, &mut a);
        links.append(&mut b, &mut a);
        links.push(&mut b, 5);
        assert_eq!([(); 5].map(|()| links.pop(&mut b)), [Some(4), Some(1), Some(0), Some(5), None]);
    }

    proptest! {
        /// Two queues over one array behave like two lists, wherever numbers are inserted and
        /// removed.
        #[test]
        fn queues_are_lists(steps in prop::collection::vec((0u8..6, any::<bool>(), 0u32..12), 1..200)) {
            let mut links = Links::new(12);
            let mut queues = [Fifo::default(), Fifo::default()];
            let mut lists = [VecDeque::new(), VecDeque::new()];
            for (verb, second, number) in steps {
                let at = usize::from(second);
                let is_queued = lists.iter().any(|list: &VecDeque<u32>| list.contains(&number));
                match verb {
                    0 | 1 if !is_queued => {
                        links.push(&mut queues[at], number);
                        lists[at].push_back(number);
                    }
                    2 if !is_queued => {
                        links.push_front(&mut queues[at], number);
                        lists[at].push_front(number);
                    }
                    3 => prop_assert_eq!(links.pop(&mut queues[at]), lists[at].pop_front()),
                    4 if lists[at].contains(&number) => {
                        links.remove(&mut queues[at], number);
                        lists[at].retain(|&other| other != number);
                    }
                    5 => {
                        let [a, b] = &mut queues;
                        links.append(a, b);
                        let more = core::mem::take(&mut lists[1]);
                        lists[0].extend(more);
                    }
                    _ => {}
                }
                for (queue, list) in queues.iter().zip(&lists) {
                    let all = core::iter::successors(queue.first(), |&at| links.after(at));
                    prop_assert_eq!(all.collect::<VecDeque<u32>>(), list.clone());
                }
            }
        }
    }
}
