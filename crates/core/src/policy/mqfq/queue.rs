//! One port's requests: the staged ones in order of start tags, and which tags are in flight.
//!
//! **Problem.** The paper's local queue is a priority queue of requests. A tenant with a deep queue
//! would make every operation of every other tenant pay for its depth. **Model.** Start tags of one
//! flow never decrease, so one flow's requests on one port form a FIFO, a linked list through the
//! array of tags, and the priority queue holds only the first of each: it is a queue of *flows*, a
//! [`Tournament`]. Requests with the same start tag leave in the order in which they came.
//!
//! **Cost.** A submit to a flow that has requests here touches no tree; a dispatch takes log2(slots
//! in use) steps. Nothing is allocated after construction.

use alloc::boxed::Box;

use super::end_tags::Account;
use crate::contract::flow::FlowId;
use crate::contract::port::Tag;
use crate::contract::vtime::{Normalizer, VTime};
use crate::structures::tournament::{Key, Tournament};

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
        LocalFlow {
            newest: NONE,
            normalizer: Normalizer::default(),
            account: Account::default(),
            owner,
        }
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

    /// Stages a request. Its tag is free, and its start tag not before those of its flow that are
    /// staged here.
    #[inline]
    pub(super) fn stage(&mut self, tag: Tag, flow: FlowId, start: VTime) {
        let key = Key::new(start, self.arrivals, tag);
        self.arrivals = self.arrivals.wrapping_add(1);
        let index = tag.0 as usize;
        let (Some(entry), Some(place)) = (self.entries.get_mut(index), self.keys.get_mut(index))
        else {
            return;
        };
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

    /// Frees the tag of an issued request; gives its flow's slot and the slot it held on the
    /// device.
    #[inline]
    pub(super) fn finish(&mut self, tag: Tag) -> Option<(usize, u32)> {
        let entry =
            self.entries.get_mut(tag.0 as usize).filter(|entry| entry.flow & STATE == ISSUED)?;
        entry.flow &= !STATE;
        Some((entry.flow as usize, entry.link))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::contract::flow::Weight;
    use crate::structures::flow_table::FlowTable;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn flows(count: usize) -> Vec<FlowId> {
        let table = FlowTable::<Native>::new(count, 1);
        (0..count).map(|_| table.add(None, Weight::DEFAULT, |_| ()).unwrap()).collect()
    }

    proptest! {
        /// Against a sorted list: the order is start tag, then arrival, whatever the flows, also
        /// across the wrap of virtual time.
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
        crate::structures::flow_table::PortFlows::<()>::new(crate::PortId(0), &table, 1)
            .poll(&table);
        let new = table.add(None, Weight::MAX, |_| ()).unwrap();
        assert_eq!((new.slot(), new == old), (0, false));
        assert_eq!(queue.local(new).unwrap().normalizer.units(1, Weight::MAX), 0);
    }
}
