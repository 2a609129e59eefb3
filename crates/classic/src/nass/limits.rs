//! Limits: the most requests of a flow on the device, MDN in the paper, before any halving, and
//! their recovery.
//!
//! A new flow sets all limits to their flows' parts of `queue_length`. This changes one number, the
//! *round*: each flow updates its own limit when it next sends or completes a request.
//!
//! # Points that the paper leaves open
//! - *Recovery of a limit.* The paper only halves limits, and sets them anew when a flow comes;
//!   after a burst, a flow would be at 1 until then. Here each completion of a flow that finds no
//!   cause to halve its limit raises it by one; this needs no time and no parameter. It is raised
//!   up to the flow's part, rounded up, since the scheduler inside decides about the last place if
//!   parts are not whole numbers. It is raised beyond that only while one more request would not
//!   make the flow aggressive: otherwise the limit would be halved as soon as it is used, and with
//!   more flows than places each limit would go from one to two and back with each request. (An
//!   example shows why a part that is a whole number is not rounded up to the next one. A flow of
//!   weight 100 would then have nine of 32 places whenever the other flow, of weight 300, had sent
//!   all its requests. The other flow would still have at most 24. So clients whose queues
//!   sometimes run empty would share 1:2.8.) All limits are also set anew, as by a new flow,
//!   after two queue lengths of completions of any flows: by then the requests for which limits
//!   were found have left the device. (With the first rule alone, limits that fit one moment's mix
//!   of sizes stay: with them `flashfq` is less fair between requests of 4 KiB and of 128 KiB, and
//!   with both rules it is fairer. With the second alone shares follow noise.) A limit is at least
//!   1, since a flow at 0 would have no completion to recover by, and at most `queue_length`.
//! - *Weights.* The paper has none. A flow's part is in proportion to its weight. A scheduler
//!   inside that serves one flow at a time serves others while that flow may not be served, and
//!   charges them.
//! - *The flows of the scheduler*, `W(n)`: all with requests staged, on the device, or among the
//!   last arrivals.

use super::flow_state::FlowState;
use fairq_core::contract::flow::Weight;

/// Fractional bits of a part of the queue, which has at most 2^16 requests.
const FRACTION: u32 = 40;

/// The values that flows' limits are set to.
pub(super) struct Limits {
    queue_length: u32,
    /// Sum of the weights of the flows that are present, W(n), in 256ths.
    present_weight: u64,
    /// The part of the queue that a 256th of a weight has, times 2^[`FRACTION`].
    per_weight: u64,
    /// Raised when all limits are set. It wraps: a flow that sends and completes nothing for 2^32
    /// rounds, each of two queues of completions, uses its old limit until the next round.
    round: u32,
    /// Whether a limit was halved in the present count of `completions`.
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

    /// Updates the flow's limit to this round.
    #[inline]
    pub(super) fn look_up(&self, flow: &mut FlowState) {
        if flow.round != self.round {
            (flow.limit, flow.round) = (self.part(flow.weight), self.round);
        }
    }

    /// A flow's part of the queue.
    #[inline]
    pub(super) fn part(&self, weight: Weight) -> u32 {
        // The product is less than weight / 2^32 too large, and exact when rounded down while all
        // weights are 400,000 or less.
        let whole = self.per_weight.saturating_mul(weight.in_256ths().into()) >> FRACTION;
        // This does not use `clamp`, which would panic if the queue had length 0.
        whole.max(1).min(self.queue_length.into()) as u32
    }

    /// Whether a limit is less than its flow's part, so that it may be raised regardless of other
    /// requests on the device.
    #[inline]
    pub(super) fn is_due_more(&self, flow: &FlowState) -> bool {
        u64::from(flow.limit) * self.present_weight
            < u64::from(self.queue_length) * u64::from(flow.weight.in_256ths())
    }

    /// Notes that a limit was halved.
    #[inline]
    pub(super) fn halved(&mut self) {
        self.halved = true;
    }

    /// Counts a completion. After two queue lengths of them the requests for which limits were
    /// found have left the device: if one was halved, all are set anew.
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

    /// Sets all limits anew.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Updates W(n) for a flow that comes, goes, or has another weight.
    #[cold]
    pub(super) fn weigh(&mut self, gone: Option<Weight>, come: Option<Weight>) {
        let [gone, come] =
            [gone, come].map(|weight| weight.map_or(0, |weight| u64::from(weight.in_256ths())));
        self.present_weight = (self.present_weight + come).saturating_sub(gone);
        // `max` shows the compiler that the divisor is not 0.
        self.per_weight =
            (u64::from(self.queue_length) << FRACTION).div_ceil(self.present_weight.max(1));
    }
}
