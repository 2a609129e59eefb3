//! The lanes of a port, in the order of the times at which they are visited.

use alloc::boxed::Box;

use crate::contract::bounds::boxed;
use crate::contract::flow::FlowId;
use crate::contract::port::Tag;
use crate::contract::vtime::VTime;
use crate::structures::queues::{Fifo, Key, Links, Tournament};

/// Lanes by number. Each has a key, such as its flow's slot.
pub(crate) struct Agenda {
    /// The flow of each lane that is open, and the time of the lane's next visit: the order uses
    /// only the lower 56 bits of the time, two years of nanoseconds.
    lanes: Box<[(Option<FlowId>, u64)]>,
    /// The lane of each key, as its number plus one; 0 for none.
    of: Box<[u32]>,
    free: Fifo,
    links: Links,
    order: Tournament,
    turns: u64,
    pub(crate) open: u32,
    /// Time of the first visit; [`u64::MAX`] if there is none.
    pub(crate) first_ns: u64,
}

impl Agenda {
    /// An agenda for the keys below `keys`, of which at most `lanes` have a lane at once.
    pub(crate) fn new(lanes: usize, keys: usize) -> Self {
        let (mut free, mut links) = (Fifo::default(), Links::new(lanes));
        (0..lanes as u32).for_each(|lane| links.push(&mut free, lane));
        Agenda {
            lanes: boxed(lanes, |_| (None, 0)),
            of: boxed(keys, |_| 0),
            free,
            links,
            order: Tournament::new(lanes),
            turns: 0,
            open: 0,
            first_ns: u64::MAX,
        }
    }

    /// The lane to be visited first, and its flow.
    pub(crate) fn first(&self) -> Option<(usize, FlowId)> {
        let lane = self.order.get()?.tag();
        Some((lane, self.lanes.get(lane)?.0?))
    }

    /// The flow's lane under this key.
    #[inline]
    pub(crate) fn lane(&self, key: usize, flow: FlowId) -> Option<usize> {
        let lane = (*self.of.get(key)? as usize).checked_sub(1)?;
        (self.lanes.get(lane)?.0 == Some(flow)).then_some(lane)
    }

    /// Sets the time of the lane's next visit. Lanes with the same time are visited in the order in
    /// which their times were set.
    pub(crate) fn visit_at(&mut self, lane: usize, at_ns: u64) {
        if let Some((_, time)) = self.lanes.get_mut(lane) {
            *time = at_ns;
        }
        self.turns = self.turns.wrapping_add(1);
        self.order.put(lane, Key::new(VTime::from_units(at_ns), self.turns, Tag(lane as u32)));
        self.note_first();
    }

    fn note_first(&mut self) {
        let first = self.order.get().and_then(|key| self.lanes.get(key.tag()));
        self.first_ns = first.map_or(u64::MAX, |&(_, at_ns)| at_ns);
    }

    /// Opens a lane for the flow under a key that has none, to be visited at this time. `None` if
    /// no lane is free.
    pub(crate) fn open(&mut self, key: usize, flow: FlowId, at_ns: u64) -> Option<usize> {
        let lane = self.links.pop(&mut self.free)?;
        self.open += 1;
        if let Some(place) = self.lanes.get_mut(lane as usize) {
            place.0 = Some(flow);
        }
        if let Some(of) = self.of.get_mut(key) {
            *of = lane.wrapping_add(1);
        }
        self.visit_at(lane as usize, at_ns);
        Some(lane as usize)
    }

    /// Closes the lane of this key; gives whether there was one.
    pub(crate) fn close(&mut self, key: usize) -> bool {
        let lane = self.of.get_mut(key).map_or(0, core::mem::take).wrapping_sub(1);
        let Some(place) = self.lanes.get_mut(lane as usize) else { return false };
        place.0 = None;
        self.order.remove(lane as usize);
        self.note_first();
        self.links.push_front(&mut self.free, lane);
        self.open = self.open.saturating_sub(1);
        true
    }
}
