//! Deceptive idleness: a flow that has nothing staged and is about to send, and the room that is
//! kept for it.
//!
//! It takes the place of anticipation: build the scheduler inside without. A flow that has sent all
//! that it had, and of which there is a request among the last `history` arrivals, is *expected*.
//! While there is one, the others together may fill only `reserve` places (lines 16 to 22): what
//! comes finds room at once, and nothing waits.
//!
//! **Model.** The history is a ring of flows. A flow knows the number of its last arrival: when
//! that falls out of the ring it was the flow's last sign. Only then, and for a flow that nothing
//! of is staged or on the device, or that is expected, is there something to do.
//!
//! # What the paper leaves open
//! - *For how long a flow is deceptively idle.* The paper asks whether it has a request staged. Of
//!   two that arrive together the first would then leave the second behind, without its place. Here
//!   it stays so while it has no more than `reserve` requests.
//! - *Whom the total limit binds.* Lines 16 to 22 set one number, and set it back only when a flow
//!   leaves that has not been seen for long. The text wants requests of deceptively idle flows
//!   "issued on their arrival", so the limit is not for them; and it lasts while there is such a
//!   flow other than the one that asks. No room is kept for one that has reached its own limit,
//!   since it could not use it: else flows that have all they may have on the device stand for idle
//!   ones, and with 256 flows around `cfq` the device has 14 requests where it takes 32. What such
//!   a flow has there is not the others' all the same.
//! - *Who may be expected.* Nobody beyond its part of the queue, by its weight. To be expected is
//!   to go before the scheduler's order, and of many flows that send eight requests each the first
//!   to have all of theirs on the device would stay there: four tenants would keep the device and
//!   the others starve.

use crate::structures::allocation::boxed;
use alloc::boxed::Box;

use super::flow_state::FlowState;

/// The flows of the last arrivals.
pub(super) struct History {
    flows: Box<[u32]>,
    newest: usize,
    /// The number of the last arrival. It wraps: numbers are compared only while the request that
    /// has one is in the ring, staged or on the device, and none is for 2^32 arrivals of others.
    arrivals: u32,
}

impl History {
    pub(super) fn new(length: u32) -> Self {
        History { flows: boxed(length as usize, |_| u32::MAX), newest: 0, arrivals: 0 }
    }

    /// Whether the arrival of this number is among the last.
    #[inline]
    pub(super) fn holds(&self, arrival: u32) -> bool {
        (self.arrivals.wrapping_sub(arrival) as usize) < self.flows.len()
    }

    /// Puts an arrival in and gives its number; and the one that falls out, with its flow.
    #[inline]
    pub(super) fn push(&mut self, flow: usize) -> (u32, Fallen) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.newest = if self.newest + 1 < self.flows.len() { self.newest + 1 } else { 0 };
        let oldest = self
            .flows
            .get_mut(self.newest)
            .map_or(u32::MAX, |place| core::mem::replace(place, flow as u32));
        let arrival = self.arrivals.wrapping_sub(self.flows.len() as u32);
        (self.arrivals, Fallen { flow: oldest as usize, arrival })
    }
}

/// An arrival that is not among the last any more.
#[derive(Clone, Copy)]
pub(super) struct Fallen {
    pub(super) flow: usize,
    pub(super) arrival: u32,
}

/// Flows that are expected.
#[derive(Clone, Copy, Default)]
pub(super) struct Reserved {
    /// Those that have not reached their limit, in
    /// [`Lane::Reserved`](crate::policy::serial::Lane::Reserved): room is kept for them.
    pub(super) flows: u32,
    /// Of these, those that have something staged.
    pub(super) staged: u32,
    /// Requests on the device, of all that are expected.
    pub(super) dispatched: u32,
}

impl Reserved {
    /// A flow has sent a request, and is expected to send more or not.
    #[inline]
    pub(super) fn sent(&mut self, flow: &mut FlowState, is_expected: bool) {
        if flow.is_expected | is_expected {
            // The request that is being sent is in `dispatched` already, and was not counted
            // before.
            let before = if flow.is_expected { flow.dispatched.wrapping_sub(1) } else { 0 };
            let now = if is_expected { flow.dispatched } else { 0 };
            self.dispatched = self.dispatched.wrapping_sub(before).wrapping_add(now);
            flow.is_expected = is_expected;
        }
    }

    /// A flow is expected no more.
    pub(super) fn forget(&mut self, flow: &mut FlowState) {
        if core::mem::take(&mut flow.is_expected) {
            self.dispatched = self.dispatched.wrapping_sub(flow.dispatched);
        }
    }

    /// A flow comes into the reserved lane.
    #[inline]
    pub(super) fn add(&mut self, flow: &FlowState) {
        self.flows = self.flows.wrapping_add(1);
        self.staged = self.staged.wrapping_add((flow.staged > 0).into());
    }

    /// A flow leaves it.
    #[inline]
    pub(super) fn remove(&mut self, flow: &FlowState) {
        self.flows = self.flows.wrapping_sub(1);
        self.staged = self.staged.wrapping_sub((flow.staged > 0).into());
    }
}
