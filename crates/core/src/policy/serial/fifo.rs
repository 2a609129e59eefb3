//! Queues threaded through one array: many first-in first-out lists of small numbers, without
//! allocation.
//!
//! Every number below the capacity is in at most one list at a time, so one link per number is
//! enough for any number of lists.

use alloc::boxed::Box;

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
    after: Box<[u32]>,
}

impl Links {
    /// Links for the numbers `0..capacity`.
    pub fn new(capacity: usize) -> Self {
        Links { after: (0..capacity).map(|_| NONE).collect() }
    }

    /// Appends `number`, which is in no queue; ignored if it is not below the capacity.
    #[inline]
    pub fn push(&mut self, queue: &mut Fifo, number: u32) {
        let Some(link) = self.after.get_mut(number as usize) else { return };
        *link = NONE;
        match self.after.get_mut(queue.tail as usize) {
            Some(link) => *link = number,
            None => queue.head = number,
        }
        queue.tail = number;
    }

    /// Takes the first number out.
    #[inline]
    pub fn pop(&mut self, queue: &mut Fifo) -> Option<u32> {
        let first = queue.head;
        let after = *self.after.get(first as usize)?;
        queue.head = after;
        if after == NONE {
            queue.tail = NONE;
        }
        Some(first)
    }

    /// Appends all of `other`, which is empty afterwards.
    #[inline]
    pub fn append(&mut self, queue: &mut Fifo, other: &mut Fifo) {
        if other.is_empty() {
            return;
        }
        match self.after.get_mut(queue.tail as usize) {
            Some(link) => *link = other.head,
            None => queue.head = other.head,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
