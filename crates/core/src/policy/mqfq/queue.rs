//! One port's requests: the staged ones in order of start tags, and the tags in flight.
//!
//! **Problem.** The paper's local queue is a priority queue of requests. A tenant with a deep queue
//! would make every operation of every other tenant pay for its depth. **Model.** Start tags of one
//! flow never decrease, so one flow's requests on one port form a FIFO, a linked list through the
//! array of tags, and the priority queue holds only the first request of each flow: it is a queue
//! of *flows*, a [`Tournament`]. Requests with the same start tag leave in the order in which they
//! came.
//!
//! A request that was issued and is requeued keeps its slot and waits in a list of its own, which
//! is issued first.
//!
//! **Cost.** A submit to a flow that has requests here updates no tree; a dispatch takes log2(seats
//! in use) steps, and so does a cancellation. Nothing is allocated after construction.

use alloc::boxed::Box;

use bytemuck::Zeroable;

use super::{Account, EndTags};
use crate::contract::bounds::zeroes;
use crate::contract::flow::FlowId;
use crate::contract::platform::Platform;
use crate::contract::port::Tag;
use crate::contract::vtime::{Normalizer, VTime};
use crate::structures::port_flows::PortFlows;
use crate::structures::queues::{Fifo, Key, Links, Tournament};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The state of one tag, without its [`Key`]. An entry of zeroes is free.
#[derive(Clone, Copy, Debug, Zeroable)]
struct Entry {
    /// The flow's seat and, in the upper two bits, the state: free, staged, issued, or to be issued
    /// again.
    flow: u32,
    /// The flow's next request on this port, while it is staged.
    link: u32,
}

// Seats are below 2^24 (`MAX_TAGS`), so the upper two bits of a word are free for the state.
const FREE: u32 = 0;
const STAGED: u32 = 1 << 30;
const ISSUED: u32 = 2 << 30;
const AGAIN: u32 = 3 << 30;
const STATE: u32 = 3 << 30;

/// The part of a request's state that `next` does not read.
#[derive(Clone, Copy, Debug, Zeroable)]
struct Past {
    /// Tag of the flow's previous request on this port when this one was staged; that request may
    /// have left.
    before: u32,
    /// Cost in equivalent bytes, at most `u32::MAX`: the amount that the flow's `taken` contains.
    cost: u32,
    /// Cost when it was staged plus growth, in units.
    units: u64,
}

/// A port's state of a flow.
#[derive(Clone, Copy)]
pub(super) struct LocalFlow {
    /// The newest staged request's tag, [`NONE`] if there is none.
    newest: u32,
    /// The number of staged requests.
    staged: u32,
    pub(super) normalizer: Normalizer,
    pub(super) account: Account,
    /// Cost of cancelled requests that has not been refunded yet, in units.
    pub(super) credit: u64,
    /// Total cost of its requests that were issued or are staged, in equivalent bytes, wrapping.
    taken: u64,
}

impl Default for LocalFlow {
    fn default() -> Self {
        LocalFlow {
            newest: NONE,
            staged: 0,
            normalizer: Normalizer::default(),
            account: Account::default(),
            credit: 0,
            taken: 0,
        }
    }
}

impl LocalFlow {
    /// Whether the flow's newest request is staged.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.newest != NONE
    }

    /// Charges the arrears to the flow's end tag and refunds the credit, because the port drops its
    /// state of the flow. No request of the flow is staged here.
    #[cold]
    pub(super) fn leave<P: Platform>(&self, ends: &EndTags<P>, flow: FlowId) {
        let mut account = self.account;
        ends.give_back(flow.slot(), &mut account, self.credit);
        ends.pay(flow.slot(), &mut account, self.normalizer.rest());
    }
}

/// A cancelled request.
pub(super) struct Cancelled {
    /// Its flow's seat.
    pub(super) seat: usize,
    /// Whether it held a slot, because it had been issued.
    pub(super) has_slot: bool,
}

/// The requests of one port.
pub(super) struct Queue {
    entries: Box<[Entry]>,
    /// The keys of staged tags; apart from the entries, so that neither array is padded.
    keys: Box<[Key]>,
    past: Box<[Past]>,
    first: Tournament,
    arrivals: u64,
    /// The requests to be issued again.
    again: Fifo,
    again_links: Links,
}

impl Queue {
    /// A queue for flows in `seats` seats, and for the tags `0..tags`.
    pub(super) fn new(seats: usize, tags: usize) -> Self {
        Queue {
            entries: zeroes(tags),
            keys: zeroes(tags),
            past: zeroes(tags),
            first: Tournament::new(seats),
            arrivals: 0,
            again: Fifo::default(),
            again_links: Links::new(tags),
        }
    }

    /// Whether the tag names no live request.
    #[inline]
    pub(super) fn is_free(&self, tag: Tag) -> bool {
        self.entries.get(tag.0 as usize).is_some_and(|entry| entry.flow & STATE == FREE)
    }

    /// The seat of the flow of a request that is staged and has not been issued before.
    #[inline]
    pub(super) fn staged_seat(&self, tag: Tag) -> Option<usize> {
        let entry = self.entries.get(tag.0 as usize)?;
        (entry.flow & STATE == STAGED).then_some((entry.flow & !STATE) as usize)
    }

    /// Whether the tag's request is staged, for the first time or to be issued again.
    pub(super) fn is_staged(&self, tag: Tag) -> bool {
        let state = self.entries.get(tag.0 as usize).map_or(FREE, |entry| entry.flow & STATE);
        state == STAGED || state == AGAIN
    }

    /// Stages a request of the flow in `seat`; the pair is its cost in equivalent bytes and in
    /// units. Its tag is free, and its start tag is not before those of the flow's requests that
    /// are staged here.
    #[inline(always)]
    pub(super) fn stage(
        &mut self,
        tag: Tag,
        seat: usize,
        local: &mut LocalFlow,
        start: VTime,
        (cost, units): (u64, u64),
    ) {
        let key = Key::new(start, self.arrivals, tag);
        self.arrivals = self.arrivals.wrapping_add(1);
        let index = tag.0 as usize;
        let (Some(entry), Some(place), Some(past)) =
            (self.entries.get_mut(index), self.keys.get_mut(index), self.past.get_mut(index))
        else {
            return;
        };
        *entry = Entry { flow: seat as u32 | STAGED, link: NONE };
        *place = key;
        let previous = core::mem::replace(&mut local.newest, tag.0);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        *past = Past { before: previous, cost, units };
        local.taken = local.taken.wrapping_add(cost.into());
        local.staged += 1;
        match self.entries.get_mut(previous as usize) {
            Some(previous) => previous.link = tag.0,
            None => self.first.put(seat, key),
        }
    }

    /// Adds to the cost of a staged request of the flow, in equivalent bytes and in units.
    pub(super) fn grow(&mut self, tag: Tag, local: &mut LocalFlow, (cost, units): (u64, u64)) {
        if let Some(past) = self.past.get_mut(tag.0 as usize) {
            past.units = past.units.saturating_add(units);
            let grown = past.cost.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
            local.taken = local.taken.wrapping_add((grown - past.cost).into());
            past.cost = grown;
        }
    }

    /// The cost of the issued requests of the flow in the seat, in equivalent bytes. Walks its
    /// staged requests.
    pub(super) fn service(&self, seat: usize, local: &LocalFlow) -> u64 {
        let first = self.first.key_of(seat).map(|key| key.tag() as u32);
        let after = |&tag: &u32| {
            let next = self.entries.get(tag as usize)?.link;
            (next != NONE).then_some(next)
        };
        let staged = core::iter::successors(first, after).take(self.entries.len());
        let costs = staged.filter_map(|tag| self.past.get(tag as usize));
        local.taken.wrapping_sub(costs.map(|past| u64::from(past.cost)).sum())
    }

    /// The start tag of the first staged request.
    #[inline]
    pub(super) fn lead(&self) -> Option<VTime> {
        self.first.get().map(Key::start)
    }

    /// The end tag of the first staged request.
    pub(super) fn lead_end(&self) -> Option<VTime> {
        let lead = self.first.get()?;
        Some(lead.start().plus(self.units(Tag(lead.tag() as u32))))
    }

    /// The cost of the tag's request, in units; also of a request that has just completed.
    pub(super) fn units(&self, tag: Tag) -> u64 {
        self.past.get(tag.0 as usize).map_or(0, |past| past.units)
    }

    /// A live request's start tag.
    pub(super) fn start(&self, tag: Tag) -> Option<VTime> {
        let is_live = !self.is_free(tag);
        self.keys.get(tag.0 as usize).filter(|_| is_live).map(|key| key.start())
    }

    /// The start tag of the first request that the flow in the seat has staged.
    pub(super) fn lead_of(&self, seat: usize) -> Option<VTime> {
        self.first.key_of(seat).map(Key::start)
    }

    /// The start tag of the flow's newest staged request.
    pub(super) fn newest_start(&self, local: &LocalFlow) -> Option<VTime> {
        self.keys.get(local.newest as usize).map(|key| key.start())
    }

    /// The first staged request of the flow in the seat, and the number of its staged requests.
    /// Walks the requests to be issued again, which are few and mostly none.
    pub(super) fn staged_of(&self, seat: usize, local: &LocalFlow) -> (Option<Tag>, u32) {
        let of_flow = |tag: &u32| {
            let entry = self.entries.get(*tag as usize);
            entry.is_some_and(|entry| entry.flow & !STATE == seat as u32)
        };
        let again = core::iter::successors(self.again.first(), |&tag| self.again_links.after(tag));
        let again = again.filter(of_flow);
        let count = local.staged.saturating_add(again.clone().count() as u32);
        let first = self.first.key_of(seat).map(|key| key.tag() as u32);
        (again.clone().next().or(first).map(Tag), count)
    }

    /// Removes the first staged request; it holds a slot from now on.
    #[inline]
    pub(super) fn issue(&mut self, flows: &mut PortFlows<LocalFlow>) -> Option<Tag> {
        self.take_out(flows, self.first.get()?.tag())
    }

    /// Removes the first request of the flow in the seat; it holds a slot from now on.
    #[cold]
    pub(super) fn issue_of(
        &mut self,
        flows: &mut PortFlows<LocalFlow>,
        seat: usize,
    ) -> Option<Tag> {
        self.take_out(flows, self.first.key_of(seat)?.tag())
    }

    /// Removes a request that is its flow's first.
    #[inline(always)]
    fn take_out(&mut self, flows: &mut PortFlows<LocalFlow>, tag: usize) -> Option<Tag> {
        let entry = self.entries.get_mut(tag)?;
        let next = entry.link;
        // Both bits of the state change, from staged to issued; the seat stays.
        entry.flow ^= STAGED | ISSUED;
        let seat = (entry.flow & !STATE) as usize;
        let local = flows.kept_mut(seat)?;
        local.staged = local.staged.wrapping_sub(1);
        match self.keys.get(next as usize) {
            Some(&next) => self.first.put(seat, next),
            None => {
                self.first.remove(seat);
                local.newest = NONE;
            }
        }
        Some(Tag(tag as u32))
    }

    /// Frees the tag of an issued request; returns its flow's seat.
    #[inline]
    pub(super) fn finish(&mut self, tag: Tag) -> Option<usize> {
        let entry =
            self.entries.get_mut(tag.0 as usize).filter(|entry| entry.flow & STATE == ISSUED)?;
        entry.flow &= !STATE;
        Some(entry.flow as usize)
    }

    /// Stages an issued request to be issued again, before all others; false if it is not issued.
    pub(super) fn requeue(&mut self, tag: Tag) -> bool {
        let issued = |entry: &&mut Entry| entry.flow & STATE == ISSUED;
        let Some(entry) = self.entries.get_mut(tag.0 as usize).filter(issued) else {
            return false;
        };
        entry.flow |= AGAIN;
        self.again_links.push(&mut self.again, tag.0);
        true
    }

    /// Whether a request is to be issued again.
    #[inline]
    pub(super) fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// The next request that is to be issued again; it has kept its slot.
    pub(super) fn issue_again(&mut self) -> Option<Tag> {
        let tag = self.again_links.pop(&mut self.again)?;
        let entry = self.entries.get_mut(tag as usize)?;
        entry.flow ^= AGAIN ^ ISSUED;
        Some(Tag(tag))
    }

    /// Cancels a request that is staged, which gives its flow credit, or that is to be issued
    /// again. Its tag is then free.
    pub(super) fn cancel(
        &mut self,
        flows: &mut PortFlows<LocalFlow>,
        tag: Tag,
    ) -> Option<Cancelled> {
        let index = tag.0 as usize;
        let Entry { flow, link } = *self.entries.get(index)?;
        let seat = (flow & !STATE) as usize;
        match flow & STATE {
            STAGED => {
                let local = flows.kept_mut(seat)?;
                local.credit = local.credit.saturating_add(self.unlink(index, seat, link, local)?);
            }
            // The request was issued, so its flow stays charged for it (the port's contract).
            AGAIN => self.again_links.remove(&mut self.again, tag.0),
            // An issued request is on the device until `complete` or `requeue`.
            _ => return None,
        }
        self.entries.get_mut(index)?.flow = FREE;
        Some(Cancelled { seat, has_slot: flow & STATE == AGAIN })
    }

    /// Removes a staged request from its flow's list; returns its cost in units.
    fn unlink(
        &mut self,
        index: usize,
        seat: usize,
        next: u32,
        local: &mut LocalFlow,
    ) -> Option<u64> {
        let Past { before, cost, units } = *self.past.get(index)?;
        local.taken = local.taken.wrapping_sub(cost.into());
        // A previous request that has left is free, or issued, or staged again behind this one.
        let precedes =
            |entry: &&mut Entry| entry.flow == seat as u32 | STAGED && entry.link == index as u32;
        let previous = self.entries.get_mut(before as usize).filter(precedes);
        let is_first = previous.is_none();
        if let Some(previous) = previous {
            previous.link = next;
        }
        if let Some(past) = self.past.get_mut(next as usize) {
            past.before = if is_first { NONE } else { before };
        }
        if local.newest == index as u32 {
            local.newest = if is_first { NONE } else { before };
        }
        local.staged = local.staged.wrapping_sub(1);
        if is_first {
            match self.keys.get(next as usize) {
                Some(&next) => self.first.put(seat, next),
                None => self.first.remove(seat),
            }
        }
        Some(units)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Native;
    use crate::contract::flow::Weight;
    use crate::contract::port_set::{PortId, PortSet};
    use crate::structures::flow_table::FlowTable;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A queue and its flows.
    struct Bench {
        table: FlowTable<Native>,
        flows: PortFlows<LocalFlow>,
        ids: Vec<FlowId>,
        queue: Queue,
    }

    impl Bench {
        fn new(flows: usize, tags: usize) -> Bench {
            let table = FlowTable::<Native>::new(flows, 1);
            let ids =
                (0..flows).map(|_| table.add(None, Weight::DEFAULT, |_| ()).unwrap()).collect();
            let flows = PortFlows::new(PortId(0), &table, tags);
            let queue = Queue::new(flows.seats(), tags);
            Bench { table, flows, ids, queue }
        }

        fn stage(&mut self, tag: u32, flow: usize, start: VTime, units: u64) {
            let (_, seat) =
                self.flows.admit(&self.table, self.ids[flow], Tag(tag), |_, _| ()).unwrap();
            let local = self.flows.kept_mut(seat).unwrap();
            self.queue.stage(Tag(tag), seat, local, start, (units, units));
        }

        fn issue(&mut self) -> Option<Tag> {
            self.queue.issue(&mut self.flows)
        }

        fn finish(&mut self, tag: Tag) -> bool {
            let seat = self.queue.finish(tag);
            seat.inspect(|&seat| self.flows.finish(&self.table, seat)).is_some()
        }

        fn cancel(&mut self, tag: Tag) -> Option<bool> {
            let Cancelled { seat, has_slot } = self.queue.cancel(&mut self.flows, tag)?;
            self.flows.finish(&self.table, seat);
            Some(has_slot)
        }

        fn credit(&self, flow: usize) -> u64 {
            let seat = self.flows.seat(self.ids[flow]);
            seat.and_then(|seat| self.flows.kept(seat)).map_or(0, |local| local.credit)
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Stage(usize, u64),
        Issue,
        Cancel(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0usize..6, 0u64..4).prop_map(|(flow, units)| Step::Stage(flow, units)),
            3 => Just(Step::Issue),
            2 => any::<usize>().prop_map(Step::Cancel),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// The queue agrees with a sorted list: the order is start tag, then arrival, for any flows
        /// and cancellations, also across the wrap of virtual time; tags are used again at once;
        /// and a flow has credit for its cancelled requests.
        #[test]
        fn issues_in_order_of_start_tag_then_arrival(
            origin in prop_oneof![Just(0u64), Just((1 << 56) - 50)],
            steps in steps(),
        ) {
            const TAGS: u32 = 24;
            let mut bench = Bench::new(6, TAGS as usize);
            let origin = VTime::from_units(origin);
            let (mut ends, mut credit) = ([origin; 6], [0; 6]);
            // Start, arrival, tag, flow and units.
            let mut model: Vec<(i64, usize, u32, usize, u64)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                model.sort_unstable();
                match step {
                    Step::Stage(flow, units) => {
                        let Some(tag) = (0..TAGS).find(|&tag| bench.queue.is_free(Tag(tag))) else { continue };
                        let start = ends[flow];
                        ends[flow] = start.plus(units);
                        bench.stage(tag, flow, start, units);
                        model.push((start.since(origin), number, tag, flow, units));
                    }
                    Step::Issue => {
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        let lead = bench.queue.lead().map(|lead| lead.since(origin));
                        prop_assert_eq!(lead, expected.map(|(start, ..)| start));
                        prop_assert_eq!(bench.issue(), expected.map(|(_, _, tag, ..)| Tag(tag)));
                        if let Some((_, _, tag, ..)) = expected {
                            prop_assert_eq!(bench.cancel(Tag(tag)), None, "it is issued");
                            prop_assert!(bench.finish(Tag(tag)));
                        }
                    }
                    Step::Cancel(pick) if !model.is_empty() => {
                        let (_, _, tag, flow, units) = model.remove(pick % model.len());
                        prop_assert_eq!(bench.cancel(Tag(tag)), Some(false));
                        credit[flow] += units;
                        prop_assert!(bench.queue.is_free(Tag(tag)));
                    }
                    Step::Cancel(_) => {}
                }
                for (flow, &credit) in credit.iter().enumerate() {
                    let id = bench.ids[flow];
                    let staged = model.iter().filter(|request| request.3 == flow).count();
                    let Some(seat) = bench.flows.seat(id) else { continue };
                    let (one, count) = bench.queue.staged_of(seat, bench.flows.kept(seat).unwrap());
                    prop_assert_eq!((one.is_some(), count as usize), (staged > 0, staged));
                    prop_assert_eq!(bench.credit(flow), credit);
                    let first = model.iter().filter(|request| request.3 == flow).map(|request| request.0).min();
                    prop_assert_eq!(bench.queue.lead_of(seat).map(|lead| lead.since(origin)), first);
                }
            }
        }
    }

    #[test]
    fn only_issued_tags_can_be_finished_and_only_free_ones_used() {
        let mut bench = Bench::new(1, 2);
        assert!(bench.queue.is_free(Tag(1)) && !bench.queue.is_free(Tag(2)));
        bench.stage(1, 0, VTime::ZERO, 5);
        assert!(!bench.queue.is_free(Tag(1)));
        assert_eq!((bench.finish(Tag(1)), bench.queue.requeue(Tag(1))), (false, false));
        assert_eq!(bench.issue(), Some(Tag(1)));
        assert!(bench.finish(Tag(1)));
        assert_eq!(
            (bench.finish(Tag(1)), bench.finish(Tag(2)), bench.issue()),
            (false, false, None)
        );
    }

    #[test]
    fn what_is_requeued_keeps_its_slot_and_goes_again_or_gives_it_back() {
        let mut bench = Bench::new(1, 2);
        bench.stage(0, 0, VTime::ZERO, 5);
        bench.stage(1, 0, VTime::from_units(5), 5);
        assert_eq!([bench.issue(), bench.issue()], [Some(Tag(0)), Some(Tag(1))]);
        assert!(bench.queue.requeue(Tag(1)) && bench.queue.requeue(Tag(0)));
        assert!(!bench.queue.requeue(Tag(0)) && !bench.finish(Tag(0)));
        assert_eq!(bench.queue.issue_again(), Some(Tag(1)));
        assert_eq!(bench.cancel(Tag(0)), Some(true), "with its slot, and without credit");
        assert_eq!((bench.queue.issue_again(), bench.credit(0)), (None, 0));
        assert!(bench.finish(Tag(1)));
    }

    #[test]
    fn a_new_flow_in_the_same_slot_does_not_pay_the_old_ones_remainder() {
        let mut bench = Bench::new(1, 1);
        let units = |bench: &mut Bench, id| {
            let (_, seat) = bench.flows.admit(&bench.table, id, Tag(0), |_, _| ()).unwrap();
            let units = bench.flows.kept_mut(seat).unwrap().normalizer.units(199, Weight::MAX);
            bench.flows.finish(&bench.table, seat);
            units
        };
        let old = bench.ids[0];
        assert_eq!([units(&mut bench, old), units(&mut bench, old)], [1, 2], "remainders are kept");
        bench.table.close(old).unwrap();
        bench.flows.poll(&bench.table, &mut PortSet::default());
        let new = bench.table.add(None, Weight::DEFAULT, |_| ()).unwrap();
        assert_eq!((new.slot(), new == old), (0, false));
        assert_eq!(units(&mut bench, new), 1);
    }
}
