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

use crate::flow::FlowId;
use crate::port::Tag;
use crate::vtime::{Normalizer, VTime};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// What a tag is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Staged,
    Issued,
}

/// One tag.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    flow: u32,
    /// Staged: the flow's next request on this port. Issued: the slot it holds.
    link: u32,
    state: State,
}

/// A request's place in the order: start tag, then arrival.
#[derive(Clone, Copy, Debug)]
struct Key {
    start: VTime,
    /// Arrival number in the upper 40 bits, tag in the lower 24. The number wraps; it is compared by
    /// difference, among requests that wait at one time with one start tag.
    arrival: u64,
}

const TAG_BITS: u32 = 24;

impl Key {
    #[inline]
    fn is_before(self, other: Key) -> bool {
        let start = self.start.to_word().wrapping_sub(other.start.to_word()) as i64;
        let arrival = self.arrival.wrapping_sub(other.arrival) as i64;
        // Not short-circuited: in a heap the outcome is random, and a mispredicted branch costs more than both.
        (start < 0) | ((start == 0) & (arrival < 0))
    }

    #[inline]
    fn tag(self) -> usize {
        (self.arrival & ((1 << TAG_BITS) - 1)) as usize
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
    flows: Box<[LocalFlow]>,
    heap: Heap,
    arrivals: u64,
}

impl Queue {
    /// A queue for so many flows and tags.
    pub(super) fn new(flows: usize, tags: usize) -> Self {
        let free = Entry { key: Key { start: VTime::ZERO, arrival: 0 }, flow: 0, link: NONE, state: State::Free };
        let idle = LocalFlow { newest: NONE, normalizer: Normalizer::default(), owner: None };
        Queue {
            entries: (0..tags).map(|_| free).collect(),
            flows: (0..flows).map(|_| idle).collect(),
            heap: Heap::new(flows),
            arrivals: 0,
        }
    }

    /// Whether the tag names no live request.
    #[inline]
    pub(super) fn is_free(&self, tag: Tag) -> bool {
        self.entries.get(tag.0 as usize).is_some_and(|entry| entry.state == State::Free)
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
        let key = Key { start, arrival: self.arrivals << TAG_BITS | u64::from(tag.0) };
        self.arrivals = self.arrivals.wrapping_add(1);
        let (Some(entry), Some(local)) = (self.entries.get_mut(tag.0 as usize), self.flows.get_mut(flow.slot())) else {
            return;
        };
        *entry = Entry { key, flow: flow.slot() as u32, link: NONE, state: State::Staged };
        let previous = core::mem::replace(&mut local.newest, tag.0);
        match self.entries.get_mut(previous as usize) {
            Some(previous) => previous.link = tag.0,
            None => self.heap.push(key),
        }
    }

    /// The start tag of the request that is to go first.
    #[inline]
    pub(super) fn lead(&self) -> Option<VTime> {
        self.heap.first().map(|key| key.start)
    }

    /// Takes out the request that is to go first; it holds `slot` from now on.
    #[inline]
    pub(super) fn issue(&mut self, slot: u32) -> Option<Tag> {
        let tag = self.heap.first()?.tag();
        let entry = self.entries.get_mut(tag)?;
        let next = core::mem::replace(&mut entry.link, slot);
        entry.state = State::Issued;
        let flow = entry.flow as usize;
        match self.entries.get(next as usize) {
            Some(next) => self.heap.replace_first(next.key),
            None => {
                self.heap.pop();
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
        let entry = self.entries.get_mut(tag.0 as usize).filter(|entry| entry.state == State::Issued)?;
        entry.state = State::Free;
        Some((entry.flow as usize, entry.link))
    }
}

/// A 4-ary heap in a fixed array.
struct Heap {
    keys: Box<[Key]>,
    len: usize,
}

impl Heap {
    fn new(capacity: usize) -> Self {
        let empty = Key { start: VTime::ZERO, arrival: 0 };
        Heap { keys: (0..capacity).map(|_| empty).collect(), len: 0 }
    }

    #[inline]
    fn first(&self) -> Option<Key> {
        if self.len == 0 { None } else { self.keys.first().copied() }
    }

    fn push(&mut self, key: Key) {
        let mut hole = self.len;
        self.len += 1;
        while hole > 0 {
            let parent = (hole - 1) / 4;
            let Some(&above) = self.keys.get(parent) else { return };
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
        if let Some(&key) = self.keys.get(last) {
            self.replace_first(key);
        }
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
        let children = self.keys.get(first..self.len.min(first + 4))?;
        if let [a, b, c, d] = *children {
            let left = if b.is_before(a) { (1, b) } else { (0, a) };
            let right = if d.is_before(c) { (3, d) } else { (2, c) };
            let (child, key) = if right.1.is_before(left.1) { right } else { left };
            return Some((first + child, key));
        }
        let mut rest = (first..).zip(children.iter().copied());
        let smallest = rest.next()?;
        Some(rest.fold(smallest, |best, next| if next.1.is_before(best.1) { next } else { best }))
    }

    #[inline]
    fn put(&mut self, place: usize, key: Key) {
        if let Some(slot) = self.keys.get_mut(place) {
            *slot = key;
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
