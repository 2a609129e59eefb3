//! Aggressiveness: the flows that occupy more of the device's channels than others (Eq. 4 and 5),
//! and their limits.
//!
//! A request occupies one channel if it is no longer than `sub_request_bytes`, else `floor(length /
//! sub_request_bytes) + 1`; a flow's aggressiveness is the sum over its requests on the device.
//! There is a conflict while the requests on the device occupy more than `channels` channels and
//! belong to more than one flow; then a flow that sends or completes a request, and occupies more
//! than the average of these flows, has its limit halved.
//!
//! # Points that the paper leaves open
//! - *The least limit by halving* is the one that makes the flow average: `dispatched x its part of
//!   all channels / its channels`. Halving is to make a flow average; a flow below the average is
//!   the one whose requests wait. Without this bound a flow that happens to have one request too
//!   many loses half, then the other flow is above the average, and so on: both limits are noise
//!   around 1, and so are shares, whatever the scheduler inside decides (weights 3:1 came out as
//!   2.8:1 to 3.4:1, on half the device). With the bound, limits are in the proportion of weights
//!   if all flows have enough to send, at any depth.
//! - *Weights.* The paper has none. A flow is above the average here if it occupies more than its
//!   weight's part of all channels; with equal weights that is the paper's average.

use super::NassConfig;
use super::flow_state::FlowState;
use super::limits::Limits;
use fairq_core::contract::flow::Weight;
use fairq_core::contract::port::Op;

/// The most channels that a request counts as occupying, so that the channels of
/// [`MAX_SLOTS`](fairq_core::contract::bounds::MAX_SLOTS) requests fit a word.
const MOST_CHANNELS: u32 = u16::MAX as u32;

/// Number of channels that a request occupies (Eq. 4).
#[inline]
pub(super) fn channels_of(config: &NassConfig, op: Op, length: u32) -> u32 {
    let size = config.sub_request_bytes;
    match op {
        Op::Read | Op::Write | Op::WriteZeroes if length > size => {
            (length.checked_div(size).unwrap_or(0) + 1).min(MOST_CHANNELS)
        }
        _ => 1,
    }
}

/// The requests on the device, the channels that they occupy, and their flows.
#[derive(Clone, Copy, Default)]
pub(super) struct Served {
    pub(super) requests: u32,
    pub(super) channels: u32,
    flows: u32,
    weight: u64,
}

impl Served {
    /// Adds a flow's request that goes to the device.
    #[inline]
    pub(super) fn add(&mut self, flow: &mut FlowState, channels: u32) {
        if flow.dispatched == 0 {
            self.flows = self.flows.wrapping_add(1);
            self.weight += u64::from(flow.weight.in_256ths());
        }
        flow.dispatched = flow.dispatched.wrapping_add(1);
        flow.channels = flow.channels.wrapping_add(channels);
        self.requests = self.requests.wrapping_add(1);
        self.channels = self.channels.wrapping_add(channels);
    }

    /// Removes a flow's request that has completed.
    #[inline]
    pub(super) fn remove(&mut self, flow: &mut FlowState, channels: u32) {
        flow.dispatched = flow.dispatched.wrapping_sub(1);
        flow.channels = flow.channels.wrapping_sub(channels);
        self.requests = self.requests.wrapping_sub(1);
        self.channels = self.channels.wrapping_sub(channels);
        if flow.dispatched == 0 {
            self.flows = self.flows.wrapping_sub(1);
            self.weight = self.weight.saturating_sub(flow.weight.in_256ths().into());
        }
    }

    /// Changes the weight of a flow that has requests on the device.
    pub(super) fn weigh(&mut self, before: Weight, now: Weight) {
        self.weight =
            (self.weight + u64::from(now.in_256ths())).saturating_sub(before.in_256ths().into());
    }

    /// Halves the limit of a flow that is aggressive, but not below the value that makes it average
    /// (lines 25 to 29); gives whether it is aggressive.
    #[inline]
    pub(super) fn limit(
        &self,
        flow: &mut FlowState,
        config: &NassConfig,
        limits: &mut Limits,
    ) -> bool {
        let is_aggressive = self.is_aggressive(flow, config);
        // A limit stays at 1: at 0 a flow would have no completion to recover by.
        if is_aggressive && flow.limit > 1 {
            let limit = (flow.limit / 2).max(self.average(flow)).max(1);
            if limit < flow.limit {
                limits.halved();
                flow.limit = limit;
            }
        }
        is_aggressive
    }

    /// Whether channels are short, and the flow has more than its weight's part of them.
    #[inline]
    fn is_aggressive(&self, flow: &FlowState, config: &NassConfig) -> bool {
        // Its part of the channels is compared with its part of the weights, multiplied out to save
        // divisions. One flow alone has no conflict.
        let theirs = u64::from(flow.channels).saturating_mul(self.weight);
        let part = u64::from(self.channels) * u64::from(flow.weight.in_256ths());
        self.channels > config.channels && self.flows > 1 && theirs > part && config.aggressiveness
    }

    /// Whether a flow, of which a request of `channels` channels has just completed, would be
    /// aggressive with one more such request on the device than its limit allows.
    #[inline]
    pub(super) fn is_short_for(
        &self,
        flow: &FlowState,
        channels: u32,
        config: &NassConfig,
    ) -> bool {
        let weight = u64::from(flow.weight.in_256ths());
        let theirs = u64::from(flow.limit + 1) * u64::from(channels);
        let others = u64::from(self.channels.wrapping_sub(flow.channels));
        // A flow with nothing on the device has no part in the sum of weights.
        let others_weight =
            self.weight.saturating_sub(if flow.dispatched > 0 { weight } else { 0 });
        theirs + others > config.channels.into()
            && theirs.saturating_mul(others_weight) > others.saturating_mul(weight)
            && config.aggressiveness
    }

    /// Number of requests, like those it has on the device, that make a flow average.
    #[inline]
    fn average(&self, flow: &FlowState) -> u32 {
        let part = u64::from(self.channels) * u64::from(flow.weight.in_256ths());
        let theirs = u64::from(flow.channels).saturating_mul(self.weight);
        let average = u64::from(flow.dispatched).saturating_mul(part).checked_div(theirs);
        average.unwrap_or(0) as u32
    }
}
