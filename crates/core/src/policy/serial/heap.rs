//! Flows in the order of their tags: the least first, the earliest arrival among equals, and only
//! those that may be served.
//!
//! The order consists of binary heaps in fixed arrays, one for each [`Lane`] that is served from. A
//! flow that is [shut](Lane::Shut) out is in neither: its entry lies aside, and no search for the
//! first visits it. So however many flows are shut out, to find the first costs nothing, and to
//! serve it, or to change a flow's lane, at most the logarithm of the number of flows.
//!
//! The loops go from a place to its parent or to a child: at most as many rounds as the heap has
//! levels.
//!
//! A heap has at most one entry outside of it. An entry that is put in becomes that entry if there
//! is none, or if it comes before the present one, which then goes into the heap; otherwise the new
//! entry goes into the heap. So nothing moves for a flow that is served and is the first again, or
//! that is admitted again as the first, as often happens under a limit.

use alloc::boxed::Box;

use super::{Lane, Lanes};
use crate::contract::bounds::boxed;
use crate::contract::vtime::VTime;

/// A flow, with its keys in the order.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The order: least first, by signed difference.
    pub tag: VTime,
    /// Decides between equal tags: least first.
    pub arrival: u64,
    /// The flow's slot.
    pub flow: u32,
}

impl Entry {
    const NOBODY: Entry = Entry { tag: VTime::ZERO, arrival: 0, flow: u32::MAX };

    /// Whether it comes before the other.
    #[inline]
    pub fn is_before(&self, other: &Entry) -> bool {
        self.tag.is_before(other.tag) || (self.tag == other.tag && self.arrival < other.arrival)
    }
}

/// Places of a flow's entry, besides the positions in its heap.
const NOWHERE: u32 = u32::MAX;
const ASIDE: u32 = u32::MAX - 1;
const LATEST: u32 = u32::MAX - 2;

/// Flows in order, each at most once.
pub struct FlowHeap {
    common: Heap,
    reserved: Heap,
    seats: Box<[Seat]>,
    len: usize,
}

/// State of a flow.
#[derive(Clone, Copy)]
struct Seat {
    /// Its entry, while it is here.
    entry: Entry,
    at: u32,
    lane: Lane,
}

/// The flows of one lane.
struct Heap {
    /// The entry that is outside the heap, if its flow is not `NOBODY`'s.
    latest: Entry,
    entries: Box<[Entry]>,
    len: usize,
}

impl FlowHeap {
    /// An empty order of the flows `0..flows`.
    pub fn new(flows: usize) -> Self {
        let seat = Seat { entry: Entry::NOBODY, at: NOWHERE, lane: Lane::default() };
        FlowHeap {
            common: Heap::new(flows),
            reserved: Heap::new(flows),
            seats: boxed(flows, |_| seat),
            len: 0,
        }
    }

    /// Whether there is no flow in any lane.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the flow may be served when these lanes are served.
    #[inline]
    pub fn admits(&self, flow: usize, lanes: Lanes) -> bool {
        match self.seats.get(flow).map(|seat| seat.lane) {
            Some(Lane::Common) => lanes == Lanes::All,
            Some(Lane::Reserved) => true,
            Some(Lane::Shut) | None => false,
        }
    }

    /// Puts a flow in; ignored if it is there.
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        let Some(seat) = self.seats.get_mut(entry.flow as usize).filter(|seat| seat.at == NOWHERE)
        else {
            return;
        };
        (seat.entry, seat.at) = (entry, ASIDE);
        self.len += 1;
        match seat.lane {
            Lane::Common => self.common.push(entry, &mut self.seats),
            Lane::Reserved => self.reserved.push(entry, &mut self.seats),
            Lane::Shut => {}
        }
    }

    /// The first flow that may be served.
    #[inline]
    pub fn first(&self, lanes: Lanes) -> Option<&Entry> {
        let reserved = self.reserved.first();
        if lanes == Lanes::Reserved {
            return reserved;
        }
        match (self.common.first(), reserved) {
            (Some(common), Some(reserved)) if reserved.is_before(common) => Some(reserved),
            (common, reserved) => common.or(reserved),
        }
    }

    /// The flow's entry, whether it may be served or not.
    #[inline]
    pub fn get(&self, flow: usize) -> Option<Entry> {
        self.seats.get(flow).filter(|seat| seat.at != NOWHERE).map(|seat| seat.entry)
    }

    /// Takes out the first flow that may be served.
    #[inline]
    pub fn take_first(&mut self, lanes: Lanes) -> Option<Entry> {
        let first = self.first(lanes)?.flow;
        self.remove(first as usize)
    }

    /// Takes a flow out.
    #[inline]
    pub fn remove(&mut self, flow: usize) -> Option<Entry> {
        let seat = self.seats.get_mut(flow).filter(|seat| seat.at != NOWHERE)?;
        let Seat { entry, at, lane } = *seat;
        seat.at = NOWHERE;
        self.len -= 1;
        self.leave(lane, at);
        Some(entry)
    }

    /// Puts the flow into another lane, whether it is here now or not.
    #[inline]
    pub fn set_lane(&mut self, flow: usize, lane: Lane) {
        let Some(seat) = self.seats.get_mut(flow) else { return };
        let latest = &mut self.common.latest;
        match (seat.lane, lane) {
            // A flow that is not here has no entry that could move.
            (before, lane) if before == lane || seat.at == NOWHERE => seat.lane = lane,
            // Under a limit these two are the usual cases, and nothing moves.
            (Lane::Common, Lane::Shut) if seat.at == LATEST => {
                latest.flow = Entry::NOBODY.flow;
                (seat.at, seat.lane) = (ASIDE, lane);
            }
            (Lane::Shut, Lane::Common) if latest.flow == Entry::NOBODY.flow => {
                *latest = seat.entry;
                (seat.at, seat.lane) = (LATEST, lane);
            }
            _ => self.move_to(flow, lane),
        }
    }

    /// Puts a flow that is here into another lane.
    #[inline(never)]
    fn move_to(&mut self, flow: usize, lane: Lane) {
        let Some(seat) = self.seats.get_mut(flow) else { return };
        let Seat { entry, at, lane: before } = *seat;
        (seat.at, seat.lane) = (ASIDE, lane);
        self.leave(before, at);
        match lane {
            Lane::Common => self.common.push(entry, &mut self.seats),
            Lane::Reserved => self.reserved.push(entry, &mut self.seats),
            Lane::Shut => {}
        }
    }

    /// Takes out the entry at this place of the lane's heap, if it has one.
    #[inline]
    fn leave(&mut self, lane: Lane, at: u32) {
        match lane {
            Lane::Common => self.common.remove(at, &mut self.seats),
            Lane::Reserved => self.reserved.remove(at, &mut self.seats),
            Lane::Shut => {}
        }
    }
}

impl Heap {
    fn new(capacity: usize) -> Self {
        Heap { latest: Entry::NOBODY, entries: boxed(capacity, |_| Entry::NOBODY), len: 0 }
    }

    #[inline]
    fn first(&self) -> Option<&Entry> {
        let top = if self.len > 0 { self.entries.first() } else { None };
        match top {
            Some(top) if self.latest.flow == Entry::NOBODY.flow || top.is_before(&self.latest) => {
                Some(top)
            }
            _ => Some(&self.latest).filter(|latest| latest.flow != Entry::NOBODY.flow),
        }
    }

    /// Puts an entry in; the lesser of this entry and the latest stays outside of the heap.
    #[inline]
    fn push(&mut self, entry: Entry, seats: &mut [Seat]) {
        let latest = self.latest;
        if latest.flow == Entry::NOBODY.flow {
            self.latest = entry;
            return set(seats, entry.flow, LATEST);
        }
        if latest.is_before(&entry) {
            return self.sit(entry, seats);
        }
        self.latest = entry;
        set(seats, entry.flow, LATEST);
        self.sit(latest, seats);
    }

    /// Puts an entry into the heap.
    fn sit(&mut self, entry: Entry, seats: &mut [Seat]) {
        if self.len < self.entries.len() {
            self.len += 1;
            self.rise(self.len - 1, entry, seats);
        }
    }

    /// Takes out the entry at this place.
    #[inline]
    fn remove(&mut self, at: u32, seats: &mut [Seat]) {
        if at == LATEST {
            self.latest.flow = Entry::NOBODY.flow;
        } else {
            self.unsit(at as usize, seats);
        }
    }

    /// Takes out the entry at this place of the heap.
    fn unsit(&mut self, at: usize, seats: &mut [Seat]) {
        let Some(last) = self.len.checked_sub(1).and_then(|last| self.get(last)) else { return };
        self.len -= 1;
        if at < self.len {
            // The last entry comes from another branch: it may belong above this place or below it.
            let parent = at.checked_sub(1).and_then(|below| self.get(below / 2));
            match parent {
                Some(parent) if last.is_before(&parent) => self.rise(at, last, seats),
                _ => self.sink(at, last, seats),
            }
        }
    }

    #[inline]
    fn rise(&mut self, mut at: usize, entry: Entry, seats: &mut [Seat]) {
        while let Some(below) = at.checked_sub(1) {
            let Some(parent) = self.get(below / 2) else { break };
            if !entry.is_before(&parent) {
                break;
            }
            self.put(at, parent, seats);
            at = below / 2;
        }
        self.put(at, entry, seats);
    }

    #[inline]
    fn sink(&mut self, mut at: usize, entry: Entry, seats: &mut [Seat]) {
        loop {
            let left = at * 2 + 1;
            let Some(mut least) = self.get(left) else { break };
            let mut child = left;
            if let Some(right) = self.get(left + 1).filter(|right| right.is_before(&least)) {
                least = right;
                child = left + 1;
            }
            if !least.is_before(&entry) {
                break;
            }
            self.put(at, least, seats);
            at = child;
        }
        self.put(at, entry, seats);
    }

    #[inline]
    fn get(&self, at: usize) -> Option<Entry> {
        self.entries.get(..self.len)?.get(at).copied()
    }

    #[inline]
    fn put(&mut self, at: usize, entry: Entry, seats: &mut [Seat]) {
        if let Some(place) = self.entries.get_mut(at) {
            *place = entry;
            set(seats, entry.flow, at as u32);
        }
    }
}

#[inline]
fn set(seats: &mut [Seat], flow: u32, at: u32) {
    if let Some(seat) = seats.get_mut(flow as usize) {
        seat.at = at;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const FLOWS: usize = 16;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, u64),
        Take(Lanes),
        Remove(usize),
        SetLane(usize, Lane),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let lanes = prop_oneof![Just(Lanes::All), Just(Lanes::Reserved)];
        let lane = prop_oneof![Just(Lane::Common), Just(Lane::Reserved), Just(Lane::Shut)];
        let step = prop_oneof![
            4 => (0..FLOWS, 0u64..20).prop_map(|(flow, units)| Step::Push(flow, units)),
            4 => lanes.prop_map(Step::Take),
            1 => (0..FLOWS).prop_map(Step::Remove),
            3 => (0..FLOWS, lane).prop_map(|(flow, lane)| Step::SetLane(flow, lane)),
        ];
        prop::collection::vec(step, 1..300)
    }

    proptest! {
        /// The order agrees with a sorted list: the first is the least of the flows that may be
        /// served, whatever lanes they were in before.
        #[test]
        fn gives_the_least_that_may_be_served(steps in steps()) {
            let mut heap = FlowHeap::new(FLOWS);
            let mut list: Vec<(u64, u64, usize)> = Vec::new();
            let mut of = [Lane::Common; FLOWS];
            // Tags start just below the wrap, so that the order is the wrapped one.
            let tag = |units: u64| VTime::from_units((1 << 56) - 10).plus(units);
            for (arrival, step) in (0..).zip(steps) {
                match step {
                    Step::Push(flow, units) => {
                        heap.push(Entry { tag: tag(units), arrival, flow: flow as u32 });
                        if !list.iter().any(|entry| entry.2 == flow) {
                            list.push((units, arrival, flow));
                        }
                    }
                    Step::Take(lanes) => {
                        let may = |flow: usize| of[flow] == Lane::Reserved || of[flow] == Lane::Common && lanes == Lanes::All;
                        let expected = list.iter().position(|entry| may(entry.2)).map(|at| list.remove(at));
                        let taken = heap.take_first(lanes);
                        prop_assert_eq!(taken.map(|entry| entry.arrival), expected.map(|entry| entry.1));
                    }
                    Step::Remove(flow) => {
                        let expected = list.iter().position(|entry| entry.2 == flow).map(|at| list.remove(at));
                        prop_assert_eq!(heap.remove(flow).map(|entry| entry.arrival), expected.map(|entry| entry.1));
                    }
                    Step::SetLane(flow, lane) => {
                        heap.set_lane(flow, lane);
                        of[flow] = lane;
                        prop_assert_eq!(heap.admits(flow, Lanes::Reserved), lane == Lane::Reserved);
                        prop_assert_eq!(heap.admits(flow, Lanes::All), lane != Lane::Shut);
                    }
                }
                list.sort_unstable();
                prop_assert_eq!(heap.is_empty(), list.is_empty());
            }
        }
    }
}
