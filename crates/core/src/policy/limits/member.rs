//! A flow with its settings, as the control side keeps it.

use super::counts::Demand;
use super::supply::Supply;
use super::tree::Part;
use crate::contract::flow::{FlowId, Weight};
use crate::contract::share::{Caps, Reservation, ReservationState, Share};

const SECOND_NS: u64 = 1_000_000_000;
/// A flow that has had no request for this time, in nanoseconds, is idle.
const IDLE_NS: u64 = 100_000_000;
/// If a flow misses its reservation in a second in which the other flows made room for it, they
/// make no room for it for this time, in nanoseconds. The time doubles with each such second in a
/// row, up to 16 times this value.
const FUTILE_NS: u64 = 16_000_000_000;
const FUTILE_MOST: u32 = 4;
/// A reservation counts as met if the flow was served at least this part of it, in percent.
const MET_PERCENT: u64 = 97;

/// A flow and its settings.
pub(super) struct Member {
    pub(super) flow: FlowId,
    pub(super) caps: Caps,
    /// Its own weight, and the weight last set in the policy.
    pub(super) weight: Weight,
    pub(super) effective: Weight,
    pub(super) share: Share,
    /// Whether it is active; the time when it was last seen with a request, and its count of
    /// submitted requests then.
    pub(super) is_active: bool,
    active_ns: u64,
    submitted: u32,
    /// Its granted reservation.
    pub(super) granted: Reservation,
    /// The second that is counted: its start, the counts then, and whether the flow has had nothing
    /// outstanding at times.
    second_ns: u64,
    begun: Demand,
    has_rested: bool,
    pub(super) last: [u64; 2],
    pub(super) state: ReservationState,
    /// The most requests that it had outstanding; decays by an eighth with each visit.
    peak: u32,
    /// Time from which others make room for it on the device; time until which they do not, because
    /// room did not help; and the number of such seconds in a row.
    room_ns: Option<u64>,
    futile_ns: u64,
    futile: u32,
}

impl Member {
    /// `begun`: the counts of the slot at this time. They are subtracted from later counts, because
    /// a new flow in the slot does not reset them.
    pub(super) fn new(flow: FlowId, weight: Weight, effective: Weight, begun: Demand) -> Member {
        Member {
            flow,
            caps: Caps::default(),
            weight,
            effective,
            share: Share::default(),
            is_active: false,
            active_ns: 0,
            submitted: begun.submitted,
            granted: Reservation::NONE,
            second_ns: 0,
            begun,
            has_rested: true,
            last: [0; 2],
            state: ReservationState::Idle,
            peak: 0,
            room_ns: None,
            futile_ns: 0,
            futile: 0,
        }
    }

    pub(super) fn own(&self) -> Part {
        Part::of(self.weight, self.share.reservation)
    }

    /// The part that it adds to its group.
    pub(super) fn part(&self) -> Part {
        if self.is_active { self.own() } else { Part::default() }
    }

    /// Whether it is active with this demand.
    pub(super) fn is_active_at(&mut self, now_ns: u64, demand: Demand) -> bool {
        if demand.live() != 0 || demand.submitted != self.submitted {
            (self.active_ns, self.submitted) = (now_ns, demand.submitted);
        }
        // The time is 0 for a flow that has never had a request.
        now_ns.saturating_sub(self.active_ns) < IDLE_NS && self.active_ns > 0
    }

    /// The most requests that may be on the device for it to have its granted reservation.
    pub(super) fn most(
        &mut self,
        now_ns: u64,
        demand: Demand,
        supply: &Supply,
        has_more: bool,
    ) -> Option<u64> {
        self.peak = demand.live().max(self.peak - self.peak.div_ceil(8));
        // Room does not help a flow that at times has nothing outstanding, and a flow that gets
        // more than its reservation by its weight needs no room.
        let can_be = self.is_active && !self.has_rested && now_ns >= self.futile_ns;
        let is_to_be = can_be && !has_more;
        let most = supply.most(self.peak.into(), self.granted).filter(|_| is_to_be);
        self.room_ns = most.and(self.room_ns.or(Some(now_ns)));
        most
    }

    /// Ends the second, if it is over.
    pub(super) fn count(&mut self, now_ns: u64, demand: Demand, is_short: bool) {
        let is_live = demand.live() != 0;
        self.has_rested |= !is_live;
        let lasted_us = now_ns.saturating_sub(self.second_ns) / 1000;
        if lasted_us < SECOND_NS / 1000 {
            return;
        }
        let done = demand.since(self.begun);
        self.last = done.map(|done| done.saturating_mul(1_000_000) / lasted_us);
        let has = |(last, granted): (&u64, u64)| *last >= granted / 100 * MET_PERCENT;
        let is_met = self.last.iter().zip(self.granted.rates()).all(has);
        // Others have made room for all of this second, so the second shows whether room helps the
        // flow.
        if self.room_ns.is_some_and(|since_ns| since_ns <= self.second_ns) {
            // If room does not help, the flow keeps too few requests outstanding.
            let pause_ns = if is_met { 0 } else { FUTILE_NS << self.futile.min(FUTILE_MOST) };
            self.futile_ns = now_ns.saturating_add(pause_ns);
            self.futile = if is_met { 0 } else { self.futile.saturating_add(1) };
        }
        self.state = match is_met {
            _ if self.last == [0, 0] && self.has_rested => ReservationState::Idle,
            true if is_short => ReservationState::Shrunk,
            true => ReservationState::Met,
            false if self.has_rested || now_ns < self.futile_ns => ReservationState::Demand,
            false => ReservationState::Missed,
        };
        (self.second_ns, self.begun, self.has_rested) = (now_ns, demand, !is_live);
    }
}
