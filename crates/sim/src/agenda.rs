//! The agenda: what will happen when, in one order that nothing but the scenario decides.
//!
//! Events of the same time happen in the order in which they were added: the key is (time, number), and numbers are given
//! out once. Nothing hashes, nothing compares floats, so a run does not depend on where or how it was built. The
//! device keeps an agenda of its own (its commands are most of all events); where both have something at the same time the
//! device's comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events to come.
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Agenda { heap: BinaryHeap::new(), added: 0 }
    }

    pub(crate) fn add(&mut self, at_ns: u64, event: E) {
        self.heap.push(Reverse(Entry { at_ns, number: self.added, event }));
        self.added += 1;
    }

    /// When the first happens.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at_ns)
    }

    /// Takes the first out.
    pub(crate) fn take(&mut self) -> Option<E> {
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.number)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_and_then_in_the_order_of_arrival() {
        let mut agenda = Agenda::new();
        for (at_ns, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (9, 'e')] {
            agenda.add(at_ns, event);
        }
        assert_eq!(agenda.next_ns(), Some(1));
        let order: String = std::iter::from_fn(|| agenda.take()).collect();
        assert_eq!((order.as_str(), agenda.next_ns()), ("abcde", None));
    }
}
