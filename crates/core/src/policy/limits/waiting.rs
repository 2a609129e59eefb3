//! The requests of a port that wait for caps, in lanes: one for the reads of each flow, and one for
//! its writes.

use alloc::boxed::Box;

use super::agenda::Agenda;
use super::shared::{Groups, is_write};
use crate::contract::bounds::{boxed, zeroes};
use crate::contract::flow::FlowId;
use crate::contract::port::{Cost, Growth, Op, Request, Tag};
use crate::structures::queues::{Fifo, Links};

/// A request and the time of its arrival, in words. Memory that is allocated as zeroes takes no
/// room until it is written, and most tags never wait for a cap.
type Packed = [u64; 6];

pub(crate) const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

pub(crate) fn pack(request: &Request, since_ns: u64) -> Packed {
    let Request { tag: _, flow, op, offset, length, cost } = *request;
    let op = OPS.iter().position(|&other| other == op).unwrap_or(0);
    let first = u64::from(length) << 32 | op as u64;
    let flow = (flow.slot() as u64) << 32 | u64::from(flow.generation());
    [first, flow, since_ns, offset, cost.alone, cost.joined]
}

/// The request, and the time of its arrival.
pub(crate) fn unpack(tag: Tag, packed: &Packed) -> (Request, u64) {
    let [first, flow, since_ns, offset, alone, joined] = *packed;
    let request = Request {
        tag,
        flow: FlowId::new((flow >> 32) as u32, flow as u32),
        op: OPS.get(first as u32 as usize).copied().unwrap_or(Op::Read),
        offset,
        length: (first >> 32) as u32,
        cost: Cost { alone, joined },
    };
    (request, since_ns)
}

/// The waiting requests of one flow's reads, or of its writes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lane {
    pub(crate) queue: Fifo,
    pub(crate) count: u32,
    /// Time of the last or next turn.
    turn_ns: u64,
    /// The group whose cap holds it, as in [`Wait::by`](super::shared::Wait::by).
    pub(crate) by: u16,
    /// The groups in which it is counted, and its weight there.
    pub(crate) groups: Groups,
    pub(crate) weight: u64,
    /// No request that leaves it may be joined with one that the policy has, or gets later.
    pub(crate) is_fenced: bool,
}

/// The waiting requests of a port.
pub(crate) struct Waiting {
    requests: Box<[Packed]>,
    links: Links,
    pub(crate) lanes: Box<[Lane]>,
    /// The lanes by the time of their next try; the key is twice the flow's slot, plus 1 for
    /// writes.
    pub(crate) agenda: Agenda,
}

fn key(flow: FlowId, is_write: bool) -> usize {
    flow.slot() * 2 + usize::from(is_write)
}

impl Waiting {
    pub(crate) fn new(tags: usize, flows: usize) -> Self {
        // A lane that is open has a request, so there are never more of them than tags.
        let keys = flows.saturating_mul(2);
        let lanes = tags.min(keys).max(1);
        Waiting {
            requests: zeroes(tags),
            links: Links::new(tags),
            lanes: boxed(lanes, |_| Lane::default()),
            agenda: Agenda::new(lanes, keys),
        }
    }

    /// The waiting request of this tag, and the time of its arrival.
    pub(crate) fn request(&self, tag: Tag) -> Option<(Request, u64)> {
        self.requests.get(tag.0 as usize).map(|packed| unpack(tag, packed))
    }

    /// The lane for requests like this one.
    pub(crate) fn lane_of(&self, request: &Request) -> Option<usize> {
        self.agenda.lane(key(request.flow, is_write(request)), request.flow)
    }

    /// The flow's lanes.
    pub(crate) fn lanes(&self, flow: FlowId) -> impl Iterator<Item = &Lane> {
        let lanes = [false, true].map(|is_write| self.agenda.lane(key(flow, is_write), flow));
        lanes.into_iter().flatten().filter_map(|lane| self.lanes.get(lane))
    }

    /// Fences the flow's lanes.
    pub(crate) fn fence(&mut self, flow: FlowId) {
        for is_write in [false, true] {
            let lane = self.agenda.lane(key(flow, is_write), flow);
            if let Some(lane) = lane.and_then(|lane| self.lanes.get_mut(lane)) {
                lane.is_fenced = true;
            }
        }
    }

    /// The lane that is tried first, the first request in it, and the time of its arrival.
    pub(crate) fn first(&self) -> Option<(usize, Request, u64)> {
        let (lane, _) = self.agenda.first()?;
        let tag = self.lanes.get(lane)?.queue.first()?;
        let (request, since_ns) = self.request(Tag(tag))?;
        Some((lane, request, since_ns))
    }

    /// Records that the lane has sent a request. The lane may send one every `pace_ns`; a late lane
    /// makes up for at most one.
    pub(crate) fn sent(&mut self, number: usize, now_ns: u64, pace_ns: u64) {
        let Some(lane) = self.lanes.get_mut(number) else { return };
        let turn_ns = lane.turn_ns.clamp(now_ns.saturating_sub(pace_ns), now_ns);
        lane.turn_ns = turn_ns.saturating_add(pace_ns);
        self.agenda.visit_at(number, lane.turn_ns);
    }

    /// Opens a lane for requests like this one, to be tried at this time. A lane is free, since
    /// each lane in use has a request.
    pub(crate) fn open(&mut self, request: &Request, at_ns: u64, by: u16) -> Option<usize> {
        let (flow, is_write) = (request.flow, is_write(request));
        let number = self.agenda.open(key(flow, is_write), flow, at_ns)?;
        if let Some(lane) = self.lanes.get_mut(number) {
            *lane = Lane { by, turn_ns: at_ns, ..Lane::default() };
        }
        Some(number)
    }

    /// Puts the request at the end of the lane; gives the group whose cap holds the lane.
    pub(crate) fn push(&mut self, number: usize, now_ns: u64, request: &Request) -> u16 {
        if let Some(packed) = self.requests.get_mut(request.tag.0 as usize) {
            *packed = pack(request, now_ns);
        }
        let Some(lane) = self.lanes.get_mut(number) else { return 0 };
        self.links.push(&mut lane.queue, request.tag.0);
        lane.count = lane.count.saturating_add(1);
        lane.by
    }

    /// Takes a waiting request out of its lane; gives the lane's number, and the lane's last state
    /// if it is closed now.
    pub(crate) fn take(&mut self, request: &Request) -> Option<(usize, Option<Lane>)> {
        let number = self.lane_of(request)?;
        let lane = self.lanes.get_mut(number)?;
        self.links.remove(&mut lane.queue, request.tag.0);
        lane.count = lane.count.saturating_sub(1);
        if !lane.queue.is_empty() {
            return Some((number, None));
        }
        let lane = core::mem::take(lane);
        self.agenda.close(key(request.flow, is_write(request)));
        Some((number, Some(lane)))
    }

    /// Records the growth of a waiting request. Its cost and its caps are computed when it goes.
    pub(crate) fn grow(&mut self, tag: Tag, growth: &Growth) {
        if let Some(packed) = self.requests.get_mut(tag.0 as usize) {
            let (mut request, since_ns) = unpack(tag, packed);
            request.offset = request.offset.min(growth.offset);
            request.length = request.length.saturating_add(growth.length);
            *packed = pack(&request, since_ns);
        }
    }
}
