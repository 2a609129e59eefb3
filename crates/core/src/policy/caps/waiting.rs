//! The waiting requests of a port: the lanes of flows' reads and writes, in the order in which they
//! are tried.

use alloc::boxed::Box;

use super::account::Groups;
use super::is_write;
use crate::contract::cost::Cost;
use crate::contract::flow::FlowId;
use crate::contract::op::Op;
use crate::contract::port::{Request, Tag};
use crate::contract::vtime::VTime;
use crate::structures::allocation::{boxed, zeroes};
use crate::structures::fifo::{Fifo, Links};
use crate::structures::tournament::{Key, Tournament};

/// No lane.
const NONE: u32 = u32::MAX;

/// The place of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Free, or the policy has it and no cap has paid for it.
    Policy,
    /// In the lane of its flow and side.
    Lane,
    /// The policy has it, and caps have paid for it.
    Passed,
    /// Like `Passed`, and it was on the device before.
    Again,
}

/// A tag's request while it waits.
#[derive(Clone, Copy)]
pub(super) struct Waiter {
    pub(super) place: Place,
    pub(super) since_ns: u64,
    pub(super) request: Request,
    /// The group whose cap held its lane when it came, as in [`Wait::by`](super::Wait::by); for a
    /// request that has passed, the number of changes of caps until then.
    pub(super) by: u16,
}

/// A waiter in words; zeroes say that the policy has the tag. Memory that is allocated as zeroes
/// takes no room until it is written, and most tags never wait for a cap. Of a request that has
/// passed only the first two words count.
pub(super) type Packed = [u64; 6];

pub(super) const PLACES: [Place; 4] = [Place::Policy, Place::Lane, Place::Passed, Place::Again];
pub(super) const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// The operation's place in [`OPS`]. An operation that is added does not compile without one.
fn number(op: Op) -> u64 {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

impl Waiter {
    pub(super) fn pack(&self) -> Packed {
        let Request { tag: _, flow, op, offset, length, cost } = self.request;
        let [place, op] = [self.place as u64, number(op)];
        let first = u64::from(length) << 32 | u64::from(self.by) << 16 | op << 8 | place;
        let flow = (flow.slot() as u64) << 32 | u64::from(flow.generation());
        [first, flow, self.since_ns, offset, cost.alone, cost.joined]
    }

    pub(super) fn unpack(tag: Tag, packed: &Packed) -> Waiter {
        let [first, flow, since_ns, offset, alone, joined] = *packed;
        let request = Request {
            tag,
            flow: FlowId::new((flow >> 32) as u32, flow as u32),
            op: OPS.get((first >> 8 & 0xff) as usize).copied().unwrap_or(Op::Read),
            offset,
            length: (first >> 32) as u32,
            cost: Cost { alone, joined },
        };
        Waiter { place: place(packed), since_ns, request, by: (first >> 16) as u16 }
    }
}

pub(super) fn place([first, ..]: &Packed) -> Place {
    PLACES.get((first & 0xff) as usize).copied().unwrap_or(Place::Policy)
}

/// The waiting requests of one flow's reads, or of its writes.
#[derive(Clone, Copy, Default)]
pub(super) struct Lane {
    pub(super) flow: Option<FlowId>,
    pub(super) queue: Fifo,
    pub(super) count: u32,
    pub(super) is_write: bool,
    /// Time of the next try, and of the last or next turn.
    at_ns: u64,
    turn_ns: u64,
    /// The group whose cap holds it, as in [`Wait::by`](super::Wait::by).
    by: u16,
    /// The groups in which it is counted, and the weight with which it is.
    pub(super) groups: Groups,
    pub(super) weight: u64,
    /// No request that leaves it may be joined with one that the policy has, or gets later.
    pub(super) is_fenced: bool,
}

/// The waiting requests of a port.
pub(super) struct Waiting {
    pub(super) tags: Box<[Packed]>,
    links: Links,
    pub(super) lanes: Box<[Lane]>,
    /// The lanes that are not in use, and the number of lanes in use.
    free: Fifo,
    free_links: Links,
    pub(super) open: usize,
    /// The lane of each slot's reads, and of its writes.
    lane_of: Box<[[u32; 2]]>,
    /// The lanes by the time of their next try.
    order: Tournament,
    turns: u64,
}

impl Waiting {
    pub(super) fn new(tags: usize, flows: usize) -> Self {
        // A lane that is open has a request, so there are never more of them than tags.
        let lanes = tags.min(flows.saturating_mul(2)).max(1);
        let (mut free, mut free_links) = (Fifo::default(), Links::new(lanes));
        for lane in 0..lanes as u32 {
            free_links.push(&mut free, lane);
        }
        Waiting {
            tags: zeroes(tags),
            links: Links::new(tags),
            lanes: boxed(lanes, |_| Lane::default()),
            free,
            free_links,
            open: 0,
            lane_of: boxed(flows, |_| [NONE; 2]),
            order: Tournament::new(lanes),
            turns: 0,
        }
    }

    pub(super) fn place(&self, tag: Tag) -> Place {
        self.tags.get(tag.0 as usize).map_or(Place::Policy, place)
    }

    pub(super) fn waiter(&self, tag: u32) -> Option<Waiter> {
        self.tags.get(tag as usize).map(|packed| Waiter::unpack(Tag(tag), packed))
    }

    /// Notes that the request has passed its caps, after this number of changes of caps.
    #[inline]
    pub(super) fn pass(&mut self, request: &Request, changes: u16) {
        let (place, since_ns) = (Place::Passed, 0);
        let passed = Waiter { place, since_ns, request: *request, by: changes }.pack();
        if let Some([first, flow, ..]) = self.tags.get_mut(request.tag.0 as usize) {
            (*first, *flow) = (passed[0], passed[1]);
        }
    }

    pub(super) fn put(&mut self, tag: Tag, waiter: Option<Waiter>) {
        if let Some(packed) = self.tags.get_mut(tag.0 as usize) {
            *packed = waiter.map_or([0; 6], |waiter| waiter.pack());
        }
    }

    /// The lane of the flow's reads or writes, if it has one.
    pub(super) fn lane(&self, flow: FlowId, is_write: bool) -> Option<u32> {
        let number = self.lane_of.get(flow.slot())?[usize::from(is_write)];
        (self.lanes.get(number as usize)?.flow == Some(flow)).then_some(number)
    }

    pub(super) fn lane_mut(&mut self, flow: FlowId, is_write: bool) -> Option<&mut Lane> {
        let number = self.lane(flow, is_write)?;
        self.lanes.get_mut(number as usize)
    }

    /// The flow's lanes.
    pub(super) fn lanes(&self, flow: FlowId) -> impl Iterator<Item = &Lane> {
        let lanes = [false, true].map(|is_write| self.lane(flow, is_write));
        lanes.into_iter().flatten().filter_map(|number| self.lanes.get(number as usize))
    }

    /// Time of the next try of a lane.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.lanes.get(self.order.get()?.tag()).map(|lane| lane.at_ns)
    }

    /// The first lane, and the first request in it.
    pub(super) fn first(&self) -> Option<(u32, Request)> {
        let number = self.order.get()?.tag();
        let tag = self.lanes.get(number)?.queue.first()?;
        Some((number as u32, self.waiter(tag)?.request))
    }

    /// Notes that this group's cap, or the flow's own, holds the lane.
    pub(super) fn is_held_by(&mut self, number: u32, by: u16) {
        if let Some(lane) = self.lanes.get_mut(number as usize) {
            lane.by = by;
        }
    }

    /// Has the lane tried at this time.
    pub(super) fn try_at(&mut self, number: u32, at_ns: u64) {
        let Some(lane) = self.lanes.get_mut(number as usize) else { return };
        lane.at_ns = at_ns;
        self.turns = self.turns.wrapping_add(1);
        // Of lanes that are due at the same time the one that was put there first is tried first.
        let key = Key::new(VTime::from_units(at_ns), self.turns, Tag(number));
        self.order.put(number as usize, key);
    }

    /// Notes that the lane has sent a request: it has one each `pace_ns`, and catches up on one if
    /// it is late.
    pub(super) fn sent(&mut self, number: u32, now_ns: u64, pace_ns: u64) {
        let Some(lane) = self.lanes.get_mut(number as usize) else { return };
        let turn_ns = lane.turn_ns.clamp(now_ns.saturating_sub(pace_ns), now_ns);
        lane.turn_ns = turn_ns.saturating_add(pace_ns);
        let at_ns = lane.turn_ns;
        self.try_at(number, at_ns);
    }

    /// Opens a lane for such requests, to be tried at this time. A lane is free, since each lane in
    /// use has a request.
    pub(super) fn open(&mut self, request: &Request, at_ns: u64, by: u16) {
        let (flow, is_write) = (request.flow, is_write(request));
        let Some(number) = self.free_links.pop(&mut self.free) else { return };
        self.open += 1;
        if let Some(lane) = self.lanes.get_mut(number as usize) {
            *lane = Lane { flow: Some(flow), is_write, by, turn_ns: at_ns, ..Lane::default() };
        }
        if let Some(place) = self.lane_of.get_mut(flow.slot()) {
            place[usize::from(is_write)] = number;
        }
        self.try_at(number, at_ns);
    }

    /// Puts the request at the end of its lane; gives the group whose cap holds the lane.
    pub(super) fn push(&mut self, now_ns: u64, request: &Request) -> u16 {
        let number = self.lane(request.flow, is_write(request));
        let mut by = 0;
        if let Some(lane) = number.and_then(|number| self.lanes.get_mut(number as usize)) {
            self.links.push(&mut lane.queue, request.tag.0);
            lane.count = lane.count.saturating_add(1);
            by = lane.by;
        }
        let waiter = Waiter { place: Place::Lane, since_ns: now_ns, request: *request, by };
        self.put(request.tag, Some(waiter));
        by
    }

    /// Takes a waiting request out of its lane. Gives its state, its lane's number, and whether the
    /// lane is empty.
    pub(super) fn take(&mut self, request: &Request) -> (Option<Waiter>, Option<(u32, bool)>) {
        let tag = request.tag.0;
        let number = self.lane(request.flow, is_write(request));
        let lane = number.and_then(|number| {
            let lane = self.lanes.get_mut(number as usize)?;
            self.links.remove(&mut lane.queue, tag);
            lane.count = lane.count.saturating_sub(1);
            Some((number, lane.queue.is_empty()))
        });
        let waiter = self.waiter(tag);
        self.put(request.tag, None);
        (waiter, lane)
    }

    /// Closes the lane, which is empty; gives its last state.
    pub(super) fn close(&mut self, number: u32) -> Option<Lane> {
        let lane = self.lanes.get_mut(number as usize)?;
        let lane = core::mem::take(lane);
        self.order.remove(number as usize);
        self.free_links.push_front(&mut self.free, number);
        self.open = self.open.saturating_sub(1);
        if let Some(place) = lane.flow.and_then(|flow| self.lane_of.get_mut(flow.slot())) {
            place[usize::from(lane.is_write)] = NONE;
        }
        Some(lane)
    }
}
