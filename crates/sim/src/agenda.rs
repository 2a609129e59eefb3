//! The agenda: the events to come, in a total order that depends on the scenario alone.
//!
//! Events of the same time happen in the order in which they were added. Nothing hashes and nothing
//! compares floats, so a run does not depend on the machine or the build. The device keeps an
//! agenda of its own (its commands are most of all events); of two events at the same time the
//! device's comes first.
//!
//! **Structure.** If CPUs take time, a request causes some eight events, and nearly all of them are
//! due within microseconds: the logarithmic cost of a heap would then be a large part of a run.
//! Events that are due soon go into a *wheel* of short buckets, each a list in order that seldom
//! has two entries, found by two levels of bitmaps; later events go into a heap. No event moves
//! from one to the other: the next event is the earlier of the wheel's first and the heap's first.
//!
//! ```text
//!   add ─▶ due within 65 us?  yes ─▶ wheel: 64 x 64 buckets of 16 ns ─┐
//!                             no  ─▶ heap ────────────────────────────┴─▶ take: the earlier
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events to come.
pub(crate) struct Agenda<E> {
    wheel: Wheel<E>,
    heap: BinaryHeap<Reverse<Entry<E>>>,
    /// Number of events that have gone into the heap.
    added: u64,
    /// Time of the last event taken.
    now_ns: u64,
    /// Time and place of the first event: kept here, so that reading them costs one load.
    first: Option<(u64, Place)>,
}

#[derive(Clone, Copy)]
enum Place {
    Bucket(usize),
    Heap,
}

/// An event in the heap.
#[derive(Clone, Copy)]
struct Entry<E> {
    at_ns: u64,
    number: u64,
    event: E,
}

impl<E: Copy> Agenda<E> {
    pub(crate) fn new() -> Self {
        Agenda { wheel: Wheel::new(), heap: BinaryHeap::new(), added: 0, now_ns: 0, first: None }
    }

    #[inline]
    pub(crate) fn add(&mut self, at_ns: u64, event: E) {
        // An event that is due already goes into the bucket of this moment: in an earlier bucket it
        // would be found one turn of the wheel late.
        let (turn, now) = (at_ns.max(self.now_ns) >> WIDTH_BITS, self.now_ns >> WIDTH_BITS);
        let place = if turn - now < BUCKETS as u64 {
            let bucket = turn as usize % BUCKETS;
            self.wheel.add(bucket, at_ns, event);
            Place::Bucket(bucket)
        } else {
            self.add_far(at_ns, event);
            Place::Heap
        };
        // Of two events at the same time the one that was added first is first.
        if self.first.is_none_or(|(first_ns, _)| at_ns < first_ns) {
            self.first = Some((at_ns, place));
        }
    }

    #[inline(never)]
    fn add_far(&mut self, at_ns: u64, event: E) {
        self.heap.push(Reverse(Entry { at_ns, number: self.added, event }));
        self.added += 1;
    }

    /// Time of the first event.
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.first.map(|(at_ns, _)| at_ns)
    }

    /// Takes the first event out.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<E> {
        let (at_ns, place) = self.first?;
        let event = match place {
            Place::Bucket(bucket) => self.wheel.take(bucket),
            Place::Heap => self.take_far()?,
        };
        // An event that was added for a past time must not turn the wheel back.
        self.now_ns = self.now_ns.max(at_ns);
        self.first = self.find();
        Some(event)
    }

    #[inline(never)]
    fn take_far(&mut self) -> Option<E> {
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }

    /// The earlier of the two first events. At equal times the heap's was added earlier, because
    /// the wheel's was added when that time was nearer.
    #[inline]
    fn find(&self) -> Option<(u64, Place)> {
        let far_ns = self.heap.peek().map(|Reverse(entry)| entry.at_ns);
        match self.wheel.first((self.now_ns >> WIDTH_BITS) as usize % BUCKETS) {
            Some((bucket, at_ns)) if far_ns.is_none_or(|far_ns| at_ns < far_ns) => {
                Some((at_ns, Place::Bucket(bucket)))
            }
            _ => far_ns.map(|at_ns| (at_ns, Place::Heap)),
        }
    }
}

impl<E> Entry<E> {
    #[inline]
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

/// A bucket is 16 ns.
const WIDTH_BITS: u32 = 4;
/// The number of buckets that two levels of 64 bits distinguish.
const BUCKETS: usize = 64 * 64;

/// The events within one turn from now on. They are less than a turn apart, so all events of a
/// bucket are due within the same 16 ns.
struct Wheel<E> {
    /// Index of the first node of each bucket, plus 1; 0 for none.
    heads: Box<[u32; BUCKETS]>,
    /// A bit for each bucket that is not empty; `words` has a bit for each word here that is not 0.
    some: [u64; 64],
    words: u64,
    nodes: Vec<Node<E>>,
    /// Index of the first unused node, plus 1; 0 for none.
    unused: u32,
}

#[derive(Clone, Copy)]
struct Node<E> {
    at_ns: u64,
    event: E,
    /// Index of the next node of the bucket, or of the next unused node, plus 1.
    after: u32,
}

impl<E: Copy> Wheel<E> {
    fn new() -> Self {
        Wheel {
            heads: Box::new([0; BUCKETS]),
            some: [0; 64],
            words: 0,
            nodes: Vec::new(),
            unused: 0,
        }
    }

    #[inline]
    fn add(&mut self, bucket: usize, at_ns: u64, event: E) {
        let first = self.heads[bucket];
        if first != 0 && self.nodes[first as usize - 1].at_ns <= at_ns {
            return self.add_after(first, at_ns, event);
        }
        self.heads[bucket] = self.node(Node { at_ns, event, after: first });
        self.some[bucket / 64] |= 1 << (bucket % 64);
        self.words |= 1 << (bucket / 64);
    }

    /// Adds an event behind a node and behind the following nodes that are not due later, so that
    /// events of the same time stay in the order in which they were added.
    #[inline(never)]
    fn add_after(&mut self, mut before: u32, at_ns: u64, event: E) {
        loop {
            let after = self.nodes[before as usize - 1].after;
            if after == 0 || self.nodes[after as usize - 1].at_ns > at_ns {
                let node = self.node(Node { at_ns, event, after });
                self.nodes[before as usize - 1].after = node;
                return;
            }
            before = after;
        }
    }

    #[inline]
    fn node(&mut self, node: Node<E>) -> u32 {
        let number = self.unused;
        if number == 0 {
            self.nodes.push(node);
            return self.nodes.len() as u32;
        }
        let place = &mut self.nodes[number as usize - 1];
        self.unused = place.after;
        *place = node;
        number
    }

    /// The first bucket that is not empty, from `from` on and around, and the time of its first
    /// event.
    #[inline]
    fn first(&self, from: usize) -> Option<(usize, u64)> {
        if self.words == 0 {
            return None;
        }
        let word = from / 64 % 64;
        let here = self.some[word] >> (from % 64);
        let bucket = if here != 0 {
            from + here.trailing_zeros() as usize
        } else {
            // Searches the words after this one, and after the last word the first ones.
            let on = self.words.rotate_right(word as u32 + 1).trailing_zeros() as usize;
            let word = (word + 1 + on) % 64;
            word * 64 + self.some[word].trailing_zeros() as usize
        };
        Some((bucket, self.nodes[self.heads[bucket % BUCKETS] as usize - 1].at_ns))
    }

    /// Takes the first event out of a bucket that is not empty.
    #[inline]
    fn take(&mut self, bucket: usize) -> E {
        let number = self.heads[bucket % BUCKETS];
        let node = &mut self.nodes[number as usize - 1];
        let Node { event, after, .. } = *node;
        node.after = self.unused;
        self.unused = number;
        self.heads[bucket % BUCKETS] = after;
        if after == 0 {
            let word = bucket / 64 % 64;
            self.some[word] &= !(1 << (bucket % 64));
            if self.some[word] == 0 {
                self.words &= !(1 << word);
            }
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        /// Events leave the agenda as they leave a sorted list, for any order of calls and any
        /// distance.
        #[test]
        fn as_from_a_sorted_list(
            steps in prop::collection::vec((0u8..3, prop_oneof![0u64..40, 0u64..70_000, 60_000u64..70_000, 0u64..1_000_000]), 0..400)
        ) {
            let (mut agenda, mut plain, mut now_ns) = (Agenda::new(), Vec::new(), 0);
            for (event, (kind, ahead_ns)) in steps.into_iter().enumerate() {
                if kind > 0 {
                    agenda.add(now_ns + ahead_ns, event);
                    plain.push((now_ns + ahead_ns, event));
                    plain.sort_unstable();
                } else if plain.is_empty() {
                    prop_assert_eq!(agenda.take(), None);
                } else {
                    let (at_ns, event) = plain.remove(0);
                    prop_assert_eq!(agenda.take(), Some(event));
                    now_ns = at_ns;
                }
                prop_assert_eq!(agenda.next_ns(), plain.first().map(|first| first.0));
            }
        }
    }
}
