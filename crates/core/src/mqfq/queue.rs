//! One port's requests: the staged ones in order of start tags, and which tags are in flight.
//!
//! **Problem.** The paper's local queue is a priority queue of requests. A tenant with a deep queue would make every
//! operation of every other tenant pay for its depth.
//! **Model.** Start tags of one flow never decrease, so one flow's requests on one port form a FIFO, a linked
//! list through the array of tags, and the priority queue holds only the first of each: a heap of *flows*. It is
//! 4-ary, so that the four children that a step compares lie in one cache line, and it has half
//! the levels of a binary one. Dispatching puts the flow's next request in the place of the first in one pass.
//! Requests with the same start tag leave in the order in which they came.
//! **Cost.** A submit to a flow that has requests here touches no heap; a dispatch takes log4(flows with
//! requests here) steps. Nothing is allocated after construction.

use alloc::boxed::Box;
use core::hint::select_unpredictable;

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
struct Key(u128);

const TAG_BITS: u32 = 24;
const START_SHIFT: u32 = 64;
const ARRIVAL_MASK: u64 = (1 << (START_SHIFT + STAMP_BITS - TAG_BITS)) - 1;

impl Key {
    const NONE: Key = Key(0);

    fn new(start: VTime, arrival: u64, tag: Tag) -> Key {
        Key(u128::from(start.to_word()) << START_SHIFT
            | u128::from(arrival & ARRIVAL_MASK) << TAG_BITS
            | u128::from(tag.0))
    }

    /// One subtraction: its sign is that of the difference of start tags, which wrap, or of the rest if
    /// those are equal. (Arrival numbers wrap after 2^48; two requests with one start tag may then swap places.)
    #[inline]
    fn is_before(self, other: Key) -> bool {
        (self.0.wrapping_sub(other.0) as i128) < 0
    }

    #[inline]
    fn start(self) -> VTime {
        VTime::from_word((self.0 >> START_SHIFT) as u64)
    }

    #[inline]
    fn tag(self) -> usize {
        self.0 as usize & ((1 << TAG_BITS) - 1)
    }
}

/// What a port knows about a flow.
#[derive(Clone, Copy)]
struct LocalFlow {
    /// The newest staged request's tag, [`NONE`] if there is none.
    newest: u32,
    normalizer: Normalizer,
    /// Whose remainder the normalizer holds: another flow may come to use the slot.
    owner: Option<FlowId>,
}

/// The requests of one port.
pub(super) struct Queue {
    entries: Box<[Entry]>,
    /// The order of staged tags; apart from the entries, so that neither is padded.
    keys: Box<[Key]>,
    flows: Box<[LocalFlow]>,
    heap: Heap,
    arrivals: u64,
}

impl Queue {
    /// A queue for so many flows and tags.
    pub(super) fn new(flows: usize, tags: usize) -> Self {
        let free = Entry { flow: FREE, link: NONE };
        let idle = LocalFlow { newest: NONE, normalizer: Normalizer::default(), owner: None };
        Queue {
            entries: (0..tags).map(|_| free).collect(),
            keys: (0..tags).map(|_| Key::NONE).collect(),
            flows: (0..flows).map(|_| idle).collect(),
            heap: Heap::new(flows),
            arrivals: 0,
        }
    }

    /// Whether the tag names no live request.
    #[inline]
    pub(super) fn is_free(&self, tag: Tag) -> bool {
        self.entries.get(tag.0 as usize).is_some_and(|entry| entry.flow & STATE == FREE)
    }

    /// The flow's remainder on this port.
    #[inline]
    pub(super) fn normalizer(&mut self, flow: FlowId) -> Option<&mut Normalizer> {
        let local = self.flows.get_mut(flow.slot())?;
        if local.owner != Some(flow) {
            local.owner = Some(flow);
            local.normalizer = Normalizer::default();
        }
        Some(&mut local.normalizer)
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
            None => self.heap.push(key),
        }
    }

    /// The start tag of the request that is to go first.
    #[inline]
    pub(super) fn lead(&self) -> Option<VTime> {
        self.heap.first().map(Key::start)
    }

    /// Takes out the request that is to go first; it holds `slot` from now on.
    #[inline]
    pub(super) fn issue(&mut self, slot: u32) -> Option<Tag> {
        let tag = self.heap.first()?.tag();
        let entry = self.entries.get_mut(tag)?;
        let next = core::mem::replace(&mut entry.link, slot);
        entry.flow ^= STAGED | ISSUED;
        match self.keys.get(next as usize) {
            Some(&next) => self.heap.replace_first(next),
            None => {
                self.heap.pop();
                if let Some(local) = self.flows.get_mut((entry.flow & !STATE) as usize) {
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

/// The four children of one node, in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Siblings([Key; 4]);

/// A 4-ary heap in a fixed array. Nodes are numbered from the top, 0, by level; the children of node `n` are
/// `4 n + 1` to `4 n + 4`, together in `siblings[n]`.
struct Heap {
    top: Key,
    siblings: Box<[Siblings]>,
    len: usize,
}

impl Heap {
    fn new(capacity: usize) -> Self {
        let groups = capacity.saturating_sub(1).div_ceil(4);
        Heap { top: Key::NONE, siblings: (0..groups).map(|_| Siblings([Key::NONE; 4])).collect(), len: 0 }
    }

    #[inline]
    fn first(&self) -> Option<Key> {
        if self.len == 0 { None } else { Some(self.top) }
    }

    fn push(&mut self, key: Key) {
        let mut hole = self.len;
        self.len += 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            let above = self.get(parent);
            if !key.is_before(above) {
                break;
            }
            self.put(hole, above);
            hole = parent;
        }
        self.put(hole, key);
    }

    fn pop(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        self.len = last;
        self.replace_first(self.get(last));
    }

    /// Puts `key` in the place of the first.
    #[inline]
    fn replace_first(&mut self, key: Key) {
        let mut hole = 0;
        while let Some((child, smallest)) = self.smallest_child(hole) {
            if !smallest.is_before(key) {
                break;
            }
            self.put(hole, smallest);
            hole = child;
        }
        self.put(hole, key);
    }

    #[inline]
    fn smallest_child(&self, node: usize) -> Option<(usize, Key)> {
        let first = node * 4 + 1;
        let count = self.len.saturating_sub(first);
        let Siblings(keys) = self.siblings.get(node)?;
        if count >= 4 {
            let [a, b, c, d] = *keys;
            let left = (select(b.is_before(a), b, a), usize::from(b.is_before(a)));
            let right = (select(d.is_before(c), d, c), 2 + usize::from(d.is_before(c)));
            let is_right = right.0.is_before(left.0);
            return Some((first + select_unpredictable(is_right, right.1, left.1), select(is_right, right.0, left.0)));
        }
        let mut rest = (first..).zip(keys.iter().copied()).take(count);
        let smallest = rest.next()?;
        Some(rest.fold(smallest, |best, next| if next.1.is_before(best.1) { next } else { best }))
    }

    #[inline]
    fn get(&self, node: usize) -> Key {
        let Some(below) = node.checked_sub(1) else { return self.top };
        let lane = |Siblings(keys): &Siblings| keys.get(below % 4).copied();
        self.siblings.get(below / 4).and_then(lane).unwrap_or(Key::NONE)
    }

    #[inline]
    fn put(&mut self, node: usize, key: Key) {
        let Some(below) = node.checked_sub(1) else {
            self.top = key;
            return;
        };
        if let Some(place) = self.siblings.get_mut(below / 4).and_then(|Siblings(keys)| keys.get_mut(below % 4)) {
            *place = key;
        }
    }
}

/// Selects without a branch: in a heap the outcome is random, and mispredicting costs more than all the rest.
#[inline]
fn select(condition: bool, a: Key, b: Key) -> Key {
    Key(select_unpredictable(condition, a.0, b.0))
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
        (0..count).map(|_| table.add(Weight::DEFAULT, |_| ()).unwrap()).collect()
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
        let old = table.add(Weight::MAX, |_| ()).unwrap();
        let mut queue = Queue::new(1, 1);
        assert_eq!(queue.normalizer(old).unwrap().units(199, Weight::MAX), 1);
        table.close(old).unwrap();
        crate::flow::PortFlows::new(crate::PortId(0), &table).poll(&table);
        let new = table.add(Weight::MAX, |_| ()).unwrap();
        assert_eq!((new.slot(), new == old), (0, false));
        assert_eq!(queue.normalizer(new).unwrap().units(1, Weight::MAX), 0);
    }
}
