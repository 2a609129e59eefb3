//! Deceptive idleness: a flow that has nothing staged and is about to send, and the places that are
//! kept for it.
//!
//! This mechanism replaces anticipation, so the scheduler inside is built without that. A flow that
//! has sent all its requests, and has a request among the last `history` arrivals, is *expected*.
//! While a flow is expected, the others together may fill only `reserve` places (lines 16 to 22):
//! its next requests find places at once.
//!
//! **Model.** The history is a ring of flows. A flow has the number of its last arrival: when this
//! arrival falls out of the ring, the flow has none left there. NASS has to act only then, and only
//! for a flow that is expected or has no request staged or on the device.
//!
//! # Points that the paper leaves open
//! - *The end of deceptive idleness.* In the paper it ends when the flow has a request staged. Of
//!   two requests that arrive together the second would then find no place kept. Here the flow
//!   stays deceptively idle while it has at most `reserve` requests.
//! - *The flows that the total limit binds.* Lines 16 to 22 set one number, and reset it only when
//!   a flow that has not been seen for long leaves. The text wants requests of deceptively idle
//!   flows "issued on their arrival", so the limit does not bind them; and the limit lasts while a
//!   flow other than the sender is deceptively idle. No place is kept for a flow at its own limit,
//!   since it could not use it: otherwise flows at their limits would count as idle ones, and with
//!   256 flows around `cfq` the device would have 14 requests where it takes 32. The requests of
//!   such a flow on the device still do not count as the others'.
//! - *The flows that may be expected.* A flow beyond its part of the queue, by its weight, is not
//!   expected. Expected flows go before the scheduler's order, and of many flows that send eight
//!   requests each the first to have all of them on the device would stay there: four tenants would
//!   keep the device and the others starve.

use alloc::boxed::Box;
use fairq_core::contract::bounds::boxed;

use super::flow_state::FlowState;

/// The flows of the last arrivals.
pub(super) struct History {
    flows: Box<[u32]>,
    newest: usize,
    /// The number of the last arrival. It wraps: numbers are compared only while their requests are
    /// in the ring, staged or on the device, and no request stays there for 2^32 arrivals.
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

    /// Puts an arrival in; gives its number, and the arrival that falls out, with its flow.
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

/// An arrival that has fallen out of the history.
#[derive(Clone, Copy)]
pub(super) struct Fallen {
    pub(super) flow: usize,
    pub(super) arrival: u32,
}

/// Flows that are expected.
#[derive(Clone, Copy, Default)]
pub(super) struct Reserved {
    /// Flows that have not reached their limit, in
    /// [`Lane::Reserved`](fairq_core::serial::Lane::Reserved): places are kept for them.
    pub(super) flows: u32,
    /// Flows of these that have requests staged.
    pub(super) staged: u32,
    /// Requests on the device, of all expected flows.
    pub(super) dispatched: u32,
}

impl Reserved {
    /// Notes that a flow has sent a request, and whether it is expected to send more.
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

    /// Notes that a flow is no longer expected.
    pub(super) fn forget(&mut self, flow: &mut FlowState) {
        if core::mem::take(&mut flow.is_expected) {
            self.dispatched = self.dispatched.wrapping_sub(flow.dispatched);
        }
    }

    /// Counts a flow that comes into the reserved lane.
    #[inline]
    pub(super) fn add(&mut self, flow: &FlowState) {
        self.flows = self.flows.wrapping_add(1);
        self.staged = self.staged.wrapping_add((flow.staged > 0).into());
    }

    /// Stops counting a flow that leaves the reserved lane.
    #[inline]
    pub(super) fn remove(&mut self, flow: &FlowState) {
        self.flows = self.flows.wrapping_sub(1);
        self.staged = self.staged.wrapping_sub((flow.staged > 0).into());
    }
}
