//! One port's requests: the staged ones in order of start tags, and which tags are in flight.
//!
//! **Problem.** The paper's local queue is a priority queue of requests. A tenant with a deep queue would make every
//! operation of every other tenant pay for its depth.
//! **Model.** Start tags of one flow never decrease, so one flow's requests on one port form a FIFO, a linked
//! list through the array of tags, and the priority queue holds only the first of each: it is a queue of *flows*.
//! Requests with the same start tag leave in the order in which they came.
//!
//! The queue is a [`Tournament`]: a binary tree over the flows' slots, where each node holds the first of the two
//! below. When the first request goes, the flow's next one plays its way up the same path. A heap needs fewer
//! comparisons, but each of its steps decides where the next one looks, so their latencies add up, and at thousands of
//! flows most are cache misses. Here the path is known beforehand, its loads overlap, and a step is one 128-bit
//! comparison and a conditional move.
//! **Cost.** A submit to a flow that has requests here touches no tree; a dispatch takes log2(slots in use) steps.
//! Nothing is allocated after construction.
//!
//! **Wrap-around.** In the tree, tags are kept relative to an origin that lies 2^53 units behind the first, so that they
//! compare as plain numbers. When they come near the end of the range, once in 2^54 units (hours at
//! the least, see [`crate::vtime`]), the origin is moved on in one pass.

use alloc::boxed::Box;

use super::end_tags::Account;
use crate::flow::FlowId;
use crate::port::Tag;
use crate::vtime::{Normalizer, STAMP_BITS, VTime};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// One tag, but for its [`Key`].
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The flow's slot and, in the upper two bits, whether the tag is free, staged or issued.
    flow: u32,
    /// Staged: the flow's next request on this port. Issued: the slot it holds.
    link: u32,
}

const FREE: u32 = 0;
const STAGED: u32 = 1 << 30;
const ISSUED: u32 = 2 << 30;
const STATE: u32 = 3 << 30;

/// A request's place in the order: start tag, then arrival. From the top: the start tag's 56 bits of units, 48 bits of
/// arrival number, 24 bits of tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(u128);

const TAG_BITS: u32 = 24;
const START_SHIFT: u32 = 64;
/// Where the part of a key begins that says when: the start tag's units.
const UNITS_SHIFT: u32 = START_SHIFT + STAMP_BITS;
const ARRIVAL_MASK: u64 = (1 << (UNITS_SHIFT - TAG_BITS)) - 1;

impl Key {
    const NONE: Key = Key(0);

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
    fn tag(self) -> usize {
        self.0 as usize & ((1 << TAG_BITS) - 1)
    }
}

/// What a port knows about a flow.
#[derive(Clone, Copy)]
pub(super) struct LocalFlow {
    /// The newest staged request's tag, [`NONE`] if there is none.
    newest: u32,
    pub(super) normalizer: Normalizer,
    pub(super) account: Account,
    /// Whose remainder and account these are: another flow may come to use the slot.
    owner: Option<FlowId>,
}

impl LocalFlow {
    /// What it knows before the first request.
    fn new(owner: Option<FlowId>) -> Self {
        LocalFlow { newest: NONE, normalizer: Normalizer::default(), account: Account::default(), owner }
    }

    /// Whether the flow's newest request is staged.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.newest != NONE
    }
}

/// The requests of one port.
pub(super) struct Queue {
    entries: Box<[Entry]>,
    /// The order of staged tags; apart from the entries, so that neither is padded.
    keys: Box<[Key]>,
    flows: Box<[LocalFlow]>,
    first: Tournament,
    arrivals: u64,
}

impl Queue {
    /// A queue for so many flows and tags.
    pub(super) fn new(flows: usize, tags: usize) -> Self {
        let free = Entry { flow: FREE, link: NONE };
        Queue {
            entries: (0..tags).map(|_| free).collect(),
            keys: (0..tags).map(|_| Key::NONE).collect(),
            flows: (0..flows).map(|_| LocalFlow::new(None)).collect(),
            first: Tournament::new(flows),
            arrivals: 0,
        }
    }

    /// Whether the tag names no live request.
    #[inline]
    pub(super) fn is_free(&self, tag: Tag) -> bool {
        self.entries.get(tag.0 as usize).is_some_and(|entry| entry.flow & STATE == FREE)
    }

    /// What this port knows about the flow.
    #[inline]
    pub(super) fn local(&mut self, flow: FlowId) -> Option<&mut LocalFlow> {
        let local = self.flows.get_mut(flow.slot())?;
        if local.owner != Some(flow) {
            // The old flow's last request here has completed.
            *local = LocalFlow::new(Some(flow));
        }
        Some(local)
    }

    /// Stages a request. Its tag is free, and its start tag not before those of its flow that are staged here.
    #[inline]
    pub(super) fn stage(&mut self, tag: Tag, flow: FlowId, start: VTime) {
        let key = Key::new(start, self.arrivals, tag);
        self.arrivals = self.arrivals.wrapping_add(1);
        let index = tag.0 as usize;
        let (Some(entry), Some(place)) = (self.entries.get_mut(index), self.keys.get_mut(index)) else { return };
        let Some(local) = self.flows.get_mut(flow.slot()) else { return };
        *entry = Entry { flow: flow.slot() as u32 | STAGED, link: NONE };
        *place = key;
        let previous = core::mem::replace(&mut local.newest, tag.0);
        match self.entries.get_mut(previous as usize) {
            Some(previous) => previous.link = tag.0,
            None => self.first.put(flow.slot(), key),
        }
    }

    /// The start tag of the request that is to go first.
    #[inline]
    pub(super) fn lead(&self) -> Option<VTime> {
        self.first.get().map(Key::start)
    }

    /// A live request's start tag.
    pub(super) fn start(&self, tag: Tag) -> Option<VTime> {
        let is_live = !self.is_free(tag);
        self.keys.get(tag.0 as usize).filter(|_| is_live).map(|key| key.start())
    }

    /// Takes out the request that is to go first; it holds `slot` from now on.
    #[inline]
    pub(super) fn issue(&mut self, slot: u32) -> Option<Tag> {
        let tag = self.first.get()?.tag();
        let entry = self.entries.get_mut(tag)?;
        let next = core::mem::replace(&mut entry.link, slot);
        entry.flow ^= STAGED | ISSUED;
        let flow = (entry.flow & !STATE) as usize;
        match self.keys.get(next as usize) {
            Some(&next) => self.first.put(flow, next),
            None => {
                self.first.remove(flow);
                if let Some(local) = self.flows.get_mut(flow) {
                    local.newest = NONE;
                }
            }
        }
        Some(Tag(tag as u32))
    }

    /// Frees the tag of an issued request; gives its flow's slot and the slot it held on the device.
    #[inline]
    pub(super) fn finish(&mut self, tag: Tag) -> Option<(usize, u32)> {
        let entry = self.entries.get_mut(tag.0 as usize).filter(|entry| entry.flow & STATE == ISSUED)?;
        entry.flow &= !STATE;
        Some((entry.flow as usize, entry.link))
    }
}

/// A key less the origin, or [`ABSENT`].
#[derive(Clone, Copy)]
struct Relative(i128);

/// What a node holds below which no flow has requests: after all keys.
const ABSENT: Relative = Relative(i128::MAX);

/// How far the first key is ahead of a new origin. Keys are below thrice that, and so is the difference of any two nodes
/// below the largest number.
const MARGIN: i128 = 1 << (UNITS_SHIFT + 53);

impl Relative {
    #[inline]
    fn new(key: Key, origin: u128) -> Self {
        Relative(key.0.wrapping_sub(origin) as i128)
    }

    /// No key comes near it: the upper half tells.
    #[inline]
    fn is_absent(self) -> bool {
        (self.0 >> 64) as i64 == i64::MAX
    }

    /// The first of two. In any but the simplest mix the outcome is random, and mispredicting it would cost more
    /// than all the rest: so it is computed from the sign of the difference. (Chosen by a condition, even by
    /// `select_unpredictable`, it becomes a branch in the loop that uses it.)
    #[inline]
    fn first(self, other: Relative) -> Relative {
        let other_if_first = other.0.wrapping_sub(self.0) >> (i128::BITS - 1);
        Relative(self.0 ^ ((self.0 ^ other.0) & other_if_first))
    }
}

/// A tree over the flows' slots whose nodes hold the first of the two keys below. The children of node `n` are `2 n`
/// and `2 n + 1`; the leaves are the second half.
pub(crate) struct Tournament {
    nodes: Box<[Relative]>,
    /// The node above all slots that have been used so far: lower than the root as long as only low slots are.
    top: usize,
    origin: u128,
}

impl Tournament {
    pub(crate) fn new(flows: usize) -> Self {
        let leaves = flows.next_power_of_two();
        Tournament { nodes: (0..2 * leaves).map(|_| ABSENT).collect(), top: leaves, origin: 0 }
    }

    /// The first of all keys.
    #[inline]
    pub(crate) fn get(&self) -> Option<Key> {
        let first = self.node(self.top);
        if first.is_absent() { None } else { Some(Key((first.0 as u128).wrapping_add(self.origin))) }
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
            // The slots that come in are empty so far.
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
        let step = (first.wrapping_sub(MARGIN) >> UNITS_SHIFT << UNITS_SHIFT) as u128;
        self.origin = self.origin.wrapping_add(step);
        for node in self.nodes.iter_mut().filter(|node| !node.is_absent()) {
            *node = Relative::new(Key(node.0 as u128), step);
        }
    }

    /// Whether the leaf is among those that the top covers: the leftmost ones, as many as the top's level allows.
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
    use crate::Native;
    use crate::flow::{FlowTable, Weight};
    use proptest::prelude::*;
    use std::vec::Vec;

    fn flows(count: usize) -> Vec<FlowId> {
        let table = FlowTable::<Native>::new(count, 1);
        (0..count).map(|_| table.add(None, Weight::DEFAULT, |_| ()).unwrap()).collect()
    }

    proptest! {
        /// Against a sorted list: the order is start tag, then arrival, whatever the flows, also across the wrap of
        /// virtual time.
        #[test]
        fn issues_in_order_of_start_tag_then_arrival(
            origin in prop_oneof![Just(0u64), Just((1 << 56) - 50)],
            steps in prop::collection::vec((any::<bool>(), 0usize..6, 0u64..4), 1..400),
        ) {
            let ids = flows(6);
            let mut queue = Queue::new(6, 400);
            let mut ends = [VTime::from_units(origin); 6];
            let mut model: Vec<(i64, u32)> = Vec::new();
            for (number, (submit, flow, units)) in steps.into_iter().enumerate() {
                if submit {
                    let start = ends[flow];
                    ends[flow] = start.plus(units);
                    queue.stage(Tag(number as u32), ids[flow], start);
                    model.push((start.since(VTime::from_units(origin)), number as u32));
                } else {
                    model.sort_unstable();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    let lead = queue.lead().map(|lead| lead.since(VTime::from_units(origin)));
                    prop_assert_eq!(lead, expected.map(|(start, _)| start));
                    prop_assert_eq!(queue.issue(7), expected.map(|(_, tag)| Tag(tag)));
                    if let Some((_, tag)) = expected {
                        prop_assert!(!queue.is_free(Tag(tag)));
                        prop_assert_eq!(queue.finish(Tag(tag)).map(|(_, slot)| slot), Some(7));
                        prop_assert!(queue.is_free(Tag(tag)));
                    }
                }
            }
        }
    }

    #[test]
    fn only_issued_tags_can_be_finished_and_only_free_ones_used() {
        let ids = flows(1);
        let mut queue = Queue::new(1, 2);
        assert!(queue.is_free(Tag(1)) && !queue.is_free(Tag(2)));
        queue.stage(Tag(1), ids[0], VTime::ZERO);
        assert!(!queue.is_free(Tag(1)));
        assert_eq!(queue.finish(Tag(1)), None);
        assert_eq!(queue.issue(3), Some(Tag(1)));
        assert_eq!(queue.finish(Tag(1)), Some((0, 3)));
        assert_eq!(queue.finish(Tag(1)), None);
        assert_eq!(queue.finish(Tag(2)), None);
        assert_eq!(queue.issue(3), None);
    }

    #[test]
    fn a_new_flow_in_the_same_slot_does_not_pay_the_old_ones_remainder() {
        let table = FlowTable::<Native>::new(1, 1);
        let old = table.add(None, Weight::MAX, |_| ()).unwrap();
        let mut queue = Queue::new(1, 1);
        assert_eq!(queue.local(old).unwrap().normalizer.units(199, Weight::MAX), 1);
        table.close(old).unwrap();
        crate::flow::PortFlows::new(crate::PortId(0), &table).poll(&table);
        let new = table.add(None, Weight::MAX, |_| ()).unwrap();
        assert_eq!((new.slot(), new == old), (0, false));
        assert_eq!(queue.local(new).unwrap().normalizer.units(1, Weight::MAX), 0);
    }
}
