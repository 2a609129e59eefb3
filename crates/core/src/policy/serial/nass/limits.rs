//! Limits: how many requests a flow may have on the device, MDN in the paper, when nobody has
//! halved it, and how it recovers.
//!
//! A new flow sets all limits to their flows' parts of `queue_length`. That is one number, the
//! *round*: each flow looks its own limit up when it next sends or has an answer.
//!
//! # What the paper leaves open
//! - *How a limit recovers.* The paper only halves, and sets limits anew when a flow comes; after a
//!   burst, a flow would be at 1 until then. Here a limit is raised by one with each completion of
//!   its flow that finds no cause to halve it; that asks for no time and no parameter. It is raised
//!   to the flow's part, rounded up, since who has the last place where parts are no whole requests
//!   is for the scheduler inside to say, and beyond that while one more request would not make the
//!   flow aggressive: a limit that would be halved as soon as it is used is not one, and with more
//!   flows than places each would go from one to two and back with each request. (With one request
//!   more than the whole ones of its part, where these are all of it, a flow of weight 100 has nine
//!   of 32 beside one of 300 in each moment in which that one has sent all it had, and 24 for that
//!   one are the most: clients whose queues run dry now and then share 1:2.8.) And all limits are
//!   set anew, as by a new flow, after two queue lengths of completions, whosever they are: of what
//!   they were found for nothing is on the device then. (With the first alone, limits that fit one
//!   moment's mix of sizes stay: `flashfq` gets less fair by them where 4 KiB meet 128 KiB, with
//!   both fairer. With the second alone shares follow noise.) A limit is at least 1, since a flow
//!   at 0 would have no completion to recover by, and at most `queue_length`.
//! - *Weights.* The paper has none. A flow's part is its weight's. A scheduler inside that serves
//!   one flow at a time lets others by while that one may not go, and lets them pay for it.
//! - *Who counts as a flow of the scheduler*, `W(n)`: those with requests staged, on the device, or
//!   among the last arrivals.

use super::flow_state::FlowState;
use crate::contract::flow::Weight;

/// Bits after the point of a part of the queue, which has at most 2^16 requests.
const FRACTION: u32 = 40;

/// What flows' limits are set to.
pub(super) struct Limits {
    queue_length: u32,
    /// The weights of the flows that are there, W(n), in 256ths.
    present_weight: u64,
    /// The part of the queue that a 256th of a weight has, times 2^[`FRACTION`].
    per_weight: u64,
    /// Raised when all limits are set. It wraps: a flow of which nothing is sent or answered for
    /// 2^32 rounds, each of them two queues of completions, goes by its limit of then until the
    /// next round.
    round: u32,
    /// Whether one was halved since, and how many requests have been completed.
    halved: bool,
    completions: u32,
}

impl Limits {
    pub(super) fn new(queue_length: u32) -> Self {
        let per_weight = u64::from(queue_length) << FRACTION;
        Limits {
            queue_length,
            present_weight: 0,
            per_weight,
            round: 0,
            halved: false,
            completions: 0,
        }
    }

    /// MDN of a flow.
    #[inline]
    pub(super) fn of(&self, flow: &FlowState) -> u32 {
        if flow.round == self.round { flow.limit } else { self.part(flow.weight) }
    }

    /// The flow's limit is of this round from now on.
    #[inline]
    pub(super) fn look_up(&self, flow: &mut FlowState) {
        if flow.round != self.round {
            (flow.limit, flow.round) = (self.part(flow.weight), self.round);
        }
    }

    /// A flow's part of the queue.
    #[inline]
    pub(super) fn part(&self, weight: Weight) -> u32 {
        // Less than weight / 2^32 too much: no more when rounded down, while all weights are
        // 400,000 or less.
        let whole = self.per_weight.saturating_mul(weight.in_256ths().into()) >> FRACTION;
        // Not `clamp`, which would have to know that the queue is not of length 0.
        whole.max(1).min(self.queue_length.into()) as u32
    }

    /// Whether a limit is less than its flow's part, so that it may be raised whatever else is on
    /// the device.
    #[inline]
    pub(super) fn is_due_more(&self, flow: &FlowState) -> bool {
        u64::from(flow.limit) * self.present_weight
            < u64::from(self.queue_length) * u64::from(flow.weight.in_256ths())
    }

    /// One limit was halved.
    #[inline]
    pub(super) fn halved(&mut self) {
        self.halved = true;
    }

    /// After two queues' worth of completions all that limits were found for has left the device:
    /// they are set anew.
    #[inline]
    pub(super) fn completed(&mut self) {
        self.completions = self.completions.wrapping_add(1);
        if self.completions >= 2 * self.queue_length {
            self.completions = 0;
            if core::mem::take(&mut self.halved) {
                self.begin_round();
            }
        }
    }

    /// All limits are set.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// W(n) changes by a flow that comes, goes, or has another weight.
    #[cold]
    pub(super) fn weigh(&mut self, gone: Option<Weight>, come: Option<Weight>) {
        let [gone, come] =
            [gone, come].map(|weight| weight.map_or(0, |weight| u64::from(weight.in_256ths())));
        self.present_weight = (self.present_weight + come).saturating_sub(gone);
        // Never 0, where the compiler would otherwise plan for a division by zero.
        self.per_weight =
            (u64::from(self.queue_length) << FRACTION).div_ceil(self.present_weight.max(1));
    }
}
