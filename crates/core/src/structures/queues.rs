//! Queues without allocation: first-in first-out lists of small numbers, threaded through one array
//! ([`Fifo`], [`Links`]), and the first of many flows' keys (`Tournament`).

use alloc::boxed::Box;

use bytemuck::Zeroable;

use crate::contract::bounds::{boxed, zeroes};
use crate::contract::port::Tag;
use crate::contract::vtime::{STAMP_BITS, VTime};

// **Lists.** Every number below the capacity is in at most one list at a time, so one link per
// number is enough for any number of lists.

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
            // A lone number's `before` may be stale: it is not read if the queue has run empty.
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

// **The first of many flows' keys**: a tree of comparisons, as in a tournament.
//
// **Problem.** A heap needs few comparisons, but each of its steps determines which key the next
// one reads, so their latencies add up, and at thousands of flows most are cache misses. **Model.**
// A binary tree over the flows' slots, where each node holds the first of the two below. When the
// key of a flow changes, the new key is compared upwards along the same path. The path is known
// beforehand, its loads overlap, and a step is one 128-bit comparison and a conditional move:
// log2(slots in use) steps. Nothing is allocated after construction.
//
// **Bounds of loops.** A change of a key takes one step on each level. The top rises one level at a
// time and never falls, so it takes log2(flows) steps in all.
//
// **Wrap-around.** In the tree, tags are kept relative to an origin that lies 2^53 units behind
// the first, so that they compare as plain numbers. When they come near the end of the range, once
// in 2^54 units (hours at the least, see [`crate::contract::vtime`]), the origin is moved on in
// one pass.

/// A request's place in the order: start tag, then arrival. From the top: the start tag's 56 bits
/// of units, 48 bits of arrival number, 24 bits of tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Zeroable)]
pub(crate) struct Key(u128);

const TAG_BITS: u32 = 24;
const START_SHIFT: u32 = 64;
/// The lowest bit of a key's part for the start tag's units.
const UNITS_SHIFT: u32 = START_SHIFT + STAMP_BITS;
const ARRIVAL_MASK: u64 = (1 << (UNITS_SHIFT - TAG_BITS)) - 1;

impl Key {
    pub(crate) fn new(start: VTime, arrival: u64, tag: Tag) -> Key {
        Key(u128::from(start.to_word()) << START_SHIFT
            | u128::from(arrival & ARRIVAL_MASK) << TAG_BITS
            | u128::from(tag.0))
    }

    #[inline]
    pub(crate) fn start(self) -> VTime {
        VTime::from_word((self.0 >> START_SHIFT) as u64)
    }

    #[inline]
    pub(crate) fn tag(self) -> usize {
        self.0 as usize & ((1 << TAG_BITS) - 1)
    }
}
/// A key minus the origin, or [`ABSENT`].
#[derive(Clone, Copy)]
struct Relative(i128);

/// The value of a node below which no flow has requests: after all keys.
const ABSENT: Relative = Relative(i128::MAX);

/// Distance of the first key from a new origin. Keys are less than three times this, so the
/// difference of any two nodes does not overflow.
const MARGIN: i128 = 1 << (UNITS_SHIFT + 53);

impl Relative {
    #[inline]
    fn new(key: Key, origin: u128) -> Self {
        Relative(key.0.wrapping_sub(origin) as i128)
    }

    /// No key comes near [`ABSENT`], so the upper half is enough.
    #[inline]
    fn is_absent(self) -> bool {
        (self.0 >> 64) as i64 == i64::MAX
    }

    /// The first of two. In all but the simplest mixes the outcome is random, and a misprediction
    /// would cost more than all the rest, so it is computed from the sign of the difference.
    /// (Chosen by a condition, even by `select_unpredictable`, it becomes a branch in the loop that
    /// uses it.)
    #[inline]
    fn first(self, other: Relative) -> Relative {
        let other_if_first = other.0.wrapping_sub(self.0) >> (i128::BITS - 1);
        Relative(self.0 ^ ((self.0 ^ other.0) & other_if_first))
    }
}

/// A tree over the flows' slots whose nodes hold the first of the two keys below. The children of
/// node `n` are `2 n` and `2 n + 1`; the leaves are the second half.
pub(crate) struct Tournament {
    nodes: Box<[Relative]>,
    /// The node above all slots that have been used so far: lower than the root as long as only low
    /// slots have been used.
    top: usize,
    origin: u128,
}

impl Tournament {
    pub(crate) fn new(flows: usize) -> Self {
        let leaves = flows.next_power_of_two();
        Tournament { nodes: boxed(2 * leaves, |_| ABSENT), top: leaves, origin: 0 }
    }

    /// The first of all keys.
    #[inline]
    pub(crate) fn get(&self) -> Option<Key> {
        let first = self.node(self.top);
        if first.is_absent() {
            None
        } else {
            Some(Key((first.0 as u128).wrapping_add(self.origin)))
        }
    }

    /// The flow's key.
    pub(crate) fn key_of(&self, slot: usize) -> Option<Key> {
        let leaf = self.node(self.nodes.len() / 2 + slot);
        (!leaf.is_absent()).then(|| Key((leaf.0 as u128).wrapping_add(self.origin)))
    }

    /// Gives the flow this key.
    #[inline]
    pub(crate) fn put(&mut self, slot: usize, key: Key) {
        let mut relative = Relative::new(key, self.origin);
        if !(0..3 * MARGIN).contains(&relative.0) {
            self.move_origin(key);
            relative = Relative::new(key, self.origin);
        }
        let leaf = self.nodes.len() / 2 + slot;
        while !self.is_below_top(leaf) {
            // The slots that a higher top adds have no keys so far, so its first key is that of the
            // old top.
            let first = self.node(self.top);
            self.top /= 2;
            self.set(self.top, first);
        }
        self.play(leaf, relative);
    }

    /// Takes the flow's key out.
    pub(crate) fn remove(&mut self, slot: usize) {
        self.play(self.nodes.len() / 2 + slot, ABSENT);
    }

    #[inline]
    fn play(&mut self, leaf: usize, key: Relative) {
        let mut node = leaf;
        let mut first = key;
        self.set(node, first);
        while node > self.top {
            let Some(&other) = self.nodes.get(node ^ 1) else { return };
            first = first.first(other);
            node /= 2;
            self.set(node, first);
        }
    }

    /// Moves the origin to [`MARGIN`] before the first key, or before `key` if there is none.
    #[cold]
    fn move_origin(&mut self, key: Key) {
        let first = Relative::new(self.get().unwrap_or(key), self.origin).0;
        // The origin moves by whole units, so that arrivals and tags in the bits below stay as they
        // are.
        let step = (first.wrapping_sub(MARGIN) >> UNITS_SHIFT << UNITS_SHIFT) as u128;
        self.origin = self.origin.wrapping_add(step);
        for node in self.nodes.iter_mut().filter(|node| !node.is_absent()) {
            *node = Relative::new(Key(node.0 as u128), step);
        }
    }

    /// Whether the leaf is among those that the top covers: the leftmost ones, as many as the top's
    /// level allows.
    #[inline]
    fn is_below_top(&self, leaf: usize) -> bool {
        let leaves = self.nodes.len() / 2;
        (leaf ^ leaves) * self.top < leaves
    }

    #[inline]
    fn node(&self, node: usize) -> Relative {
        self.nodes.get(node).copied().unwrap_or(ABSENT)
    }

    #[inline]
    fn set(&mut self, node: usize, key: Relative) {
        if let Some(place) = self.nodes.get_mut(node) {
            *place = key;
        }
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
