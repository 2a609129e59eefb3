//! Dispatch control: the steps when a request arrives, enters the device, and completes (Algorithm
//! 1).
//!
//! Each of the three reads one flow and updates a few counters; the scheduler inside is called only
//! when the flow changes its [`Lane`]: when it reaches its limit or falls below it, and when places
//! begin or cease to be kept for it. A flow's state is half a cache line, a request's eight bytes.

use alloc::boxed::Box;

use super::NassConfig;
use super::aggressiveness::{Served, channels_of};
use super::flow_state::{FALLEN, FlowState, LEAVING};
use super::idleness::{Fallen, History, Reserved};
use super::limits::Limits;
use super::sequentiality::Sequentiality;
use fairq_core::contract::bounds::boxed;
use fairq_core::contract::flow::Weight;
use fairq_core::serial::{Arrival, Job, Lane, Lanes, SerialConfig, SerialPolicy};

/// Evaluation model and dispatch control.
pub(super) struct Control {
    pub(super) config: NassConfig,
    pub(super) flows: Box<[FlowState]>,
    /// Channels that each job occupies.
    channels: Box<[u32]>,
    /// By flow, and `lengths` by job; empty if requests are not merged.
    pub(super) sequentiality: Box<[Sequentiality]>,
    lengths: Box<[u32]>,
    history: History,
    pub(super) limits: Limits,
    pub(super) served: Served,
    pub(super) reserved: Reserved,
}

impl FlowState {
    /// Puts the flow into the lane where it belongs now.
    #[inline]
    pub(super) fn settle<S: SerialPolicy>(
        &mut self,
        slot: usize,
        reserved: &mut Reserved,
        inner: &mut S,
    ) {
        // A limit is updated when the flow sends, so a flow with nothing on the device may have an
        // outdated limit. A limit is at least 1 anyway.
        let lane = match self.dispatched > 0 && self.dispatched >= self.limit {
            true => Lane::Shut,
            false if self.is_expected => Lane::Reserved,
            false => Lane::Common,
        };
        // In the usual case the lane stays, and the scheduler inside moves nothing.
        if lane == self.lane {
            return;
        }
        if self.lane == Lane::Reserved {
            reserved.remove(self);
        } else if lane == Lane::Reserved {
            reserved.add(self);
        }
        self.lane = lane;
        inner.set_lane(slot, lane);
    }
}

impl Control {
    pub(super) fn new(config: &SerialConfig, nass: &NassConfig) -> Self {
        let sequentiality = nass.sequentiality && config.merge_bytes > 0;
        let merged = |count: usize| if config.merge_bytes > 0 { count } else { 0 };
        Control {
            config: NassConfig { sequentiality, ..*nass },
            flows: boxed(config.flows, |_| FlowState::default()),
            channels: boxed(config.jobs(), |_| 0),
            sequentiality: boxed(merged(config.flows), |_| Sequentiality::default()),
            lengths: boxed(merged(config.jobs()), |_| 0),
            history: History::new(nass.history),
            limits: Limits::new(nass.queue_length),
            served: Served::default(),
            reserved: Reserved::default(),
        }
    }

    /// Marks a flow whose tenant is gone: it is not expected.
    pub(super) fn end_life(&mut self, slot: usize) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.marks |= LEAVING;
            self.reserved.forget(flow);
        }
    }

    /// Gives the slot to another flow. The slot's last flow may still be in the history, and falls
    /// out of it as usual.
    pub(super) fn begin_life(&mut self, slot: usize) {
        if let Some(flow) = self.flows.get_mut(slot) {
            // The slot's weight is in W(n) until the history forgets it, and the scheduler inside
            // has it in this lane.
            let FlowState { weight, arrival, is_present, is_expected, lane, .. } = *flow;
            *flow = FlowState {
                weight,
                arrival,
                is_present,
                is_expected,
                lane,
                ..FlowState::default()
            };
        }
        if let Some(sequentiality) = self.sequentiality.get_mut(slot) {
            *sequentiality = Sequentiality::default();
        }
    }

    /// The lanes that may send; `None` if none may.
    #[inline]
    pub(super) fn open(&self) -> Option<Lanes> {
        let theirs = self.served.requests.saturating_sub(self.reserved.dispatched);
        match self.reserved {
            _ if self.served.requests >= self.config.queue_length => None,
            Reserved { flows: 0, .. } => Some(Lanes::All),
            _ if theirs < self.config.reserve => Some(Lanes::All),
            Reserved { staged: 0, .. } => None,
            _ => Some(Lanes::Reserved),
        }
    }

    /// Records that a request arrives: lines 1 to 14.
    #[inline]
    pub(super) fn arrived<S: SerialPolicy>(
        &mut self,
        now_ns: u64,
        arrival: &Arrival,
        inner: &mut S,
    ) {
        let channels = channels_of(&self.config, arrival.op, arrival.length);
        if let Some(place) = self.channels.get_mut(arrival.job.0 as usize) {
            *place = channels;
        }
        if let Some(length) = self.lengths.get_mut(arrival.job.0 as usize) {
            *length = arrival.length;
        }
        let number = self.remember(arrival.flow, inner);
        let Some(flow) = self.flows.get_mut(arrival.flow) else { return };
        flow.arrival = number;
        if flow.staged == 0 && flow.lane == Lane::Reserved {
            self.reserved.staged = self.reserved.staged.wrapping_add(1);
        }
        flow.staged = flow.staged.wrapping_add(1);
        if !flow.is_present || flow.weight != arrival.weight {
            self.weigh(arrival.flow, arrival.weight);
        }
        if self.config.sequentiality {
            self.perceive(now_ns, false, arrival.flow, inner);
        }
    }

    /// Records that a request arrives and is merged with a staged request: lines 1 to 14, but no
    /// further request is staged.
    #[inline]
    pub(super) fn grown<S: SerialPolicy>(&mut self, now_ns: u64, arrival: &Arrival, inner: &mut S) {
        let Some(channels) = self.channels.get_mut(arrival.job.0 as usize) else { return };
        *channels = match self.lengths.get_mut(arrival.job.0 as usize) {
            Some(length) => {
                *length = length.saturating_add(arrival.length);
                channels_of(&self.config, arrival.op, *length)
            }
            // The caller has merged the request, and its total length is not kept here.
            None => {
                let more = channels_of(&self.config, arrival.op, arrival.length);
                channels.saturating_add(more).min(self.config.channels)
            }
        };
        let number = self.remember(arrival.flow, inner);
        if let Some(flow) = self.flows.get_mut(arrival.flow) {
            flow.arrival = number;
        }
        if self.config.sequentiality {
            self.perceive(now_ns, true, arrival.flow, inner);
        }
    }

    /// Records that a staged request is taken back.
    pub(super) fn cancelled(&mut self, slot: usize) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.staged = flow.staged.saturating_sub(1);
        if flow.staged == 0 && flow.lane == Lane::Reserved {
            self.reserved.staged = self.reserved.staged.wrapping_sub(1);
        }
    }

    /// Sets all limits anew, because a flow is new or has another weight.
    #[cold]
    fn weigh(&mut self, slot: usize, weight: Weight) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let before = core::mem::replace(&mut flow.weight, weight);
        if flow.dispatched > 0 {
            self.served.weigh(before, weight);
        }
        let gone = core::mem::replace(&mut flow.is_present, true).then_some(before);
        self.limits.weigh(gone, Some(weight));
        self.limits.begin_round();
    }

    /// Puts an arrival into the history and gives its number; the arrival that falls out may have
    /// been its flow's last one there.
    #[inline]
    fn remember<S: SerialPolicy>(&mut self, slot: usize, inner: &mut S) -> u32 {
        let (number, Fallen { flow: oldest, arrival }) = self.history.push(slot);
        // This is one condition and not three, because unpredictable branches took 4 ns of an
        // arrival.
        if let Some(flow) = self.flows.get_mut(oldest)
            && (oldest != slot) & (flow.arrival == arrival) & (flow.is_idle() | flow.is_expected)
        {
            self.lose_sight_of(oldest, inner);
        }
        number
    }

    /// Records that a flow has no arrival in the history: it is not expected, and if it has no
    /// requests either, it is not present.
    #[cold]
    fn lose_sight_of<S: SerialPolicy>(&mut self, slot: usize, inner: &mut S) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.is_present && flow.is_idle() {
            flow.is_present = false;
            self.limits.weigh(Some(flow.weight), None);
        }
        self.reserved.forget(flow);
        flow.settle(slot, &mut self.reserved, inner);
    }

    /// Updates the flow's sequentiality by this arrival, and its limit: lines 7 to 13.
    fn perceive<S: SerialPolicy>(&mut self, now_ns: u64, merges: bool, slot: usize, inner: &mut S) {
        let Some(sequentiality) = self.sequentiality.get_mut(slot) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if sequentiality.perceive(now_ns, merges, self.config.decay) {
            self.limits.look_up(flow);
            flow.limit = match flow.marks & FALLEN != 0 {
                false => flow.limit.saturating_sub(1).max(1),
                true => (flow.limit + 1).min(self.config.queue_length),
            };
            flow.settle(slot, &mut self.reserved, inner);
        }
    }

    /// Records that a request enters the device: lines 15 to 30.
    #[inline]
    pub(super) fn sent<S: SerialPolicy>(&mut self, job: Job, slot: usize, inner: &mut S) {
        let Some(&channels) = self.channels.get(job.0 as usize) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        self.limits.look_up(flow);
        self.served.add(flow, channels);
        flow.marks &= !FALLEN;
        flow.staged = flow.staged.wrapping_sub(1);
        if flow.lane == Lane::Reserved {
            self.reserved.staged = self.reserved.staged.wrapping_sub((flow.staged == 0).into());
        }
        let sends_little = flow.staged == 0
            || flow.is_expected && flow.staged + flow.dispatched <= self.config.reserve;
        // A flow beyond its part of the queue is not expected: it would keep its places for ever,
        // since expected flows go before the scheduler's order.
        let is_modest = sends_little
            && flow.marks & LEAVING == 0
            && flow.dispatched <= self.limits.part(flow.weight);
        let is_expected = is_modest && self.history.holds(flow.arrival) && self.config.idleness;
        self.reserved.sent(flow, is_expected);
        self.served.limit(flow, &self.config, &mut self.limits);
        flow.settle(slot, &mut self.reserved, inner);
    }

    /// Records that a request is completed: lines 23 to 30.
    #[inline]
    pub(super) fn came_back<S: SerialPolicy>(&mut self, job: Job, slot: usize, inner: &mut S) {
        // This comes first: it may begin a round, which changes this flow's limit.
        self.limits.completed();
        let Some(&channels) = self.channels.get(job.0 as usize) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        self.limits.look_up(flow);
        self.served.remove(flow, channels);
        flow.marks |= FALLEN;
        if flow.is_expected {
            self.reserved.dispatched = self.reserved.dispatched.wrapping_sub(1);
        }
        let is_aggressive = self.served.limit(flow, &self.config, &mut self.limits);
        // Up to its flow's part a limit recovers regardless of other flows; beyond that only if one
        // more request would not cause it to be halved at once.
        if !is_aggressive
            && (self.limits.is_due_more(flow)
                || !self.served.is_short_for(flow, channels, &self.config))
        {
            flow.limit = (flow.limit + 1).min(self.config.queue_length);
        }
        if (flow.is_idle() || flow.is_expected) && !self.history.holds(flow.arrival) {
            return self.lose_sight_of(slot, inner);
        }
        flow.settle(slot, &mut self.reserved, inner);
    }
}
