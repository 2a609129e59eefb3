//! `nass`: a limit for each flow on what it has in the device's queue, around any serial scheduler.
//!
//! **Problem.** A scheduler decides who goes next, but the device has a queue of its own, SATA's NCQ with 32 places for
//! instance. A flow of large requests, or of many, fills it and the channels behind it. The requests of others then wait
//! where no scheduler sees them: the shares that it gave are not what they get.
//!
//! **Model.** [`Nass`] is a [`SerialPolicy`] around another, to which it says which flows may be served, by [`Lane`]s: it shuts
//! out those that have reached their limit, and reserves a lane for those that room is kept for; the other knows nothing of
//! it. Each flow has a limit on its requests on the device, MDN in the paper, and so have all together. Three mechanisms
//! set them, and each can be switched off:
//!
//! 1. *Aggressiveness* (Eq. 4, 5). A request occupies one channel if it is no longer than `sub_request_bytes`, else
//!    `floor(length / sub_request_bytes) + 1`; a flow's aggressiveness is the sum over its requests on the device. When one is
//!    sent or completed while all together occupy more than `channels` channels, for more than one flow, and its flow
//!    occupies more than the average of those flows, the flow's limit is halved.
//! 2. *Sequentiality* (Eq. 6, 7). `S = decay^-(T - T_last) S + 1` for an arrival that could be merged with a staged request,
//!    `- 1` for another. With `S > 0` each arrival lowers the flow's limit by one while its aggressiveness rises, so that
//!    requests wait and can be merged; and raises it by one when it fell.
//! 3. *Deceptive idleness*, instead of anticipation: build the scheduler inside without. A flow that has sent all that it
//!    had, and of which there is a request among the last `history` arrivals, is about to send more. While there is one,
//!    the others together may fill only `reserve` places: what comes finds room at once, and nothing waits.
//!
//! A new flow sets all limits to `queue_length / flows`.
//!
//! **What it costs** is a few counters for each request, and a change of lane where a flow comes to its limit or away from it.
//! Where all limits change at once each flow looks its own up when it next sends or has an answer.
//!
//! # What the paper leaves open
//! - *How far a limit is halved.* Not below what makes its flow average: `dispatched x its part of all channels / its channels`.
//!   To be average is what halving is for; a flow of less is the one whose requests wait. Without this bound the one that
//!   happens to have a request too many loses half, the other is above the average then, and so on: both limits are noise
//!   around 1, and so are shares, whatever the scheduler inside wants (weights 3:1 came out as 2.8:1 to 3.4:1, on half the
//!   device). With it limits stand in the proportion of weights where all have enough to send, at any depth.
//! - *How a limit recovers.* The paper only halves, and sets limits anew when a flow comes; after a burst, a flow would be
//!   at 1 until then. Here a limit is raised by one with each completion of its flow that finds no cause to halve it; that asks
//!   for no time and no parameter, and stops where the conflict begins again. A busier flow recovers faster so, but no further
//!   than to its part. And all limits are set anew, as by a new flow, after two queue lengths of completions, whosever they
//!   are: of what they were found for nothing is on the device then. (With the first alone, limits that fit one moment's mix
//!   of sizes stay: `flashfq` gets less fair by them where 4 KiB meet 128 KiB, with both fairer. With the second alone shares
//!   follow noise.) A limit is at least 1, since a flow at 0 would have no completion to recover by, and at most `queue_length`.
//! - *Weights.* The paper has none. A flow is above the average here if it occupies more than its weight's part of all
//!   channels, and a new flow gives each its weight's part of the queue. With equal weights both are the paper's. A scheduler
//!   inside that serves one flow at a time lets others by while that one may not go, and lets them pay for it.
//! - *For how long a flow is deceptively idle.* The paper asks whether it has a request staged. Of two that arrive together the
//!   first would then leave the second behind, without its place. Here it stays so while it has no more than `reserve` requests.
//! - *Whom the total limit binds.* Lines 16 to 22 set one number, and set it back only when a flow leaves that has not
//!   been seen for long. The text wants requests of deceptively idle flows "issued on their arrival", so the limit is not
//!   for them; and it lasts while there is such a flow other than the one that asks. No room is kept for one that has reached its
//!   own limit, since it could not use it: else flows that have all they may have on the device stand for idle ones, and with
//!   256 flows around `cfq` the device has 14 requests where it takes 32.
//! - *Who counts as a flow of the scheduler*, `W(n)`: those with requests staged, on the device, or among the last arrivals.
//! - *The unit of time* in Eq. 6: [`DECAY_UNIT_NS`], whole ones.
//! - *What can be merged* is what [was merged](crate::serial::merge): NASS hears of it as the scheduler inside does. Where
//!   requests are not merged (`merge_bytes` is 0) no flow is sequential, and the second mechanism does nothing.
//!
//! **Beyond the paper.** Its authors plan to look at the submission queues of NVMe. A device takes far more commands there than
//! it works on, so the queue's length says nothing; what stands for NCQ's 32 places is the *window*, the number of commands that
//! the device works on at a time, and `queue_length` is that. [`NassConfig::nvme`] has 64, what MQFQ's authors measured, with
//! the paper's proportions of channels and reserve to it. *Around MQFQ*: what MQFQ approximates over many queues is one
//! order, by start tags, and behind one lock there is nothing to approximate. So NASS around MQFQ is NASS around
//! [`crate::sfqd::StartTime`], which is MQFQ on one queue (its throttle never stops the least start tag). The limits
//! count what is on the device per flow over all ports, which is just what MQFQ does without: they have no lock-free form here.
//!
//! **Work conserving** it is not: places are kept free on purpose.
//!
//! **Knobs.** `channels` (10), `sub_request_bytes` (8 KiB), `history` (128 requests), `decay` (2), `reserve` (8 requests),
//! `queue_length` (32 requests): the paper's for an Intel 530. The three switches.
//!
//! **Paper.** NASS, an NCQ-aware I/O scheduling scheme, MSST 2020, sections II and III.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::config::{ConfigError, MAX_SLOTS, in_range};
use crate::flow::Weight;
use crate::platform::{Native, Platform};
use crate::port::{Op, Outcome};
use crate::serial::{Arrival, Job, Lane, Lanes, Selection, Serial, SerialConfig, SerialPolicy, SerialPort};

/// The unit of time in which sequentiality decays, in nanoseconds.
pub const DECAY_UNIT_NS: u64 = 1_000_000;

/// Sequentiality 1 in fixed point.
const ONE: i64 = 1 << 16;

/// NASS around a scheduler, behind the port contract.
pub type NassOver<S, P = Native> = Serial<Nass<S>, P>;

/// A port of [`NassOver`].
pub type NassPort<S, P = Native> = SerialPort<Nass<S>, P>;

/// The parameters of NASS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NassConfig {
    /// η: channels of the device; default 10.
    pub channels: u32,
    /// Size(sub): what one channel takes of a request, in bytes; default 8192.
    pub sub_request_bytes: u32,
    /// α: how many arrivals are remembered; default 128.
    pub history: u32,
    /// µ: by what sequentiality is divided in each [`DECAY_UNIT_NS`]; default 2.
    pub decay: u32,
    /// β: how many requests may be on the device while one of another flow is expected; default 8.
    pub reserve: u32,
    /// NCQ length: the most requests on the device; default 32.
    pub queue_length: u32,
    /// Whether aggressive flows are limited; default true.
    pub aggressiveness: bool,
    /// Whether sequential flows are held back or let go; default true (false is the paper's variant NM).
    pub sequentiality: bool,
    /// Whether room is kept for flows that are deceptively idle; default true.
    pub idleness: bool,
}

impl Default for NassConfig {
    fn default() -> Self {
        NassConfig {
            channels: 10,
            sub_request_bytes: 8192,
            history: 128,
            decay: 2,
            reserve: 8,
            queue_length: 32,
            aggressiveness: true,
            sequentiality: true,
            idleness: true,
        }
    }
}

impl NassConfig {
    /// For an NVMe device that works on 64 commands at a time, see the [module's text](self).
    pub fn nvme() -> Self {
        NassConfig { channels: 20, reserve: 16, queue_length: 64, ..NassConfig::default() }
    }

    fn check(&self) -> Result<(), ConfigError> {
        in_range("the number of channels", self.channels.into(), 1, 1 << 20)?;
        in_range("the size of a sub-request", self.sub_request_bytes.into(), 512, 1 << 30)?;
        in_range("the length of the history", self.history.into(), 1, 1 << 20)?;
        in_range("the decay factor", self.decay.into(), 2, 1 << 20)?;
        in_range("the reserve", self.reserve.into(), 1, MAX_SLOTS.into())?;
        in_range("the queue's length", self.queue_length.into(), 1, MAX_SLOTS.into())
    }
}

impl<S: SerialPolicy, P: Platform> Serial<Nass<S>, P> {
    /// NASS around `inner`, made for the same bounds, and the ports.
    pub fn new(inner: S, config: &SerialConfig, nass: &NassConfig) -> Result<(Self, Vec<NassPort<S, P>>), ConfigError> {
        Serial::with_policy(Nass::new(inner, config, nass)?, config)
    }
}

/// NASS around another [`SerialPolicy`].
pub struct Nass<S> {
    inner: S,
    control: Control,
}

/// Evaluation model and dispatch control.
struct Control {
    config: NassConfig,
    flows: Box<[FlowState]>,
    jobs: Box<[JobState]>,
    /// The flows of the last arrivals, in a ring, and how many have ever arrived.
    history: Box<[u32]>,
    newest: usize,
    arrivals: u64,
    /// The weights of the flows that are there, W(n).
    present_weight: u64,
    served: Served,
    reserved: Reserved,
    /// Raised when all limits are set.
    round: u64,
    /// Whether one was halved since, and how many requests have been completed.
    halved: bool,
    completions: u32,
}

/// What is on the device: requests, the channels that they occupy, and whose they are.
#[derive(Clone, Copy, Default)]
struct Served {
    requests: u32,
    channels: u64,
    flows: u32,
    weight: u64,
}

/// The flows in [`Lane::Reserved`]: those that are deceptively idle and have not reached their limit.
#[derive(Clone, Copy, Default)]
struct Reserved {
    flows: u32,
    /// Those that have something staged.
    staged: u32,
    /// Requests on the device.
    dispatched: u32,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    weight: Weight,
    is_present: bool,
    is_expected: bool,
    /// Whether its aggressiveness fell when it last changed.
    has_fallen: bool,
    /// As the scheduler inside knows it.
    lane: Lane,
    staged: u32,
    dispatched: u32,
    /// MDN, if set in this round.
    limit: u32,
    round: u64,
    /// The number of its last arrival; 0 if there was none.
    arrival: u64,
    /// Aggressiveness.
    channels: u64,
    /// In fixed point, as of `decayed`.
    sequentiality: i64,
    /// In [`DECAY_UNIT_NS`].
    decayed: u64,
}

impl FlowState {
    /// Where it belongs now.
    #[inline]
    fn lane(&self) -> Lane {
        match self.dispatched > 0 && self.dispatched >= self.limit {
            true => Lane::Shut,
            false if self.is_expected => Lane::Reserved,
            false => Lane::Common,
        }
    }

    /// Puts it into the lane where it belongs now.
    #[inline]
    fn settle<S: SerialPolicy>(&mut self, slot: usize, reserved: &mut Reserved, inner: &mut S) {
        let lane = self.lane();
        if lane == self.lane {
            return;
        }
        if self.lane == Lane::Reserved {
            reserved.flows = reserved.flows.wrapping_sub(1);
            reserved.staged = reserved.staged.wrapping_sub((self.staged > 0).into());
            reserved.dispatched = reserved.dispatched.wrapping_sub(self.dispatched);
        } else if lane == Lane::Reserved {
            reserved.flows = reserved.flows.wrapping_add(1);
            reserved.staged = reserved.staged.wrapping_add((self.staged > 0).into());
            reserved.dispatched = reserved.dispatched.wrapping_add(self.dispatched);
        }
        self.lane = lane;
        inner.set_lane(slot, lane);
    }

    /// Halves its limit if it is aggressive where channels are short, but not below what makes it average; lets it recover by
    /// what comes back if not. Says whether it was halved.
    #[inline]
    fn judge(&mut self, served: &Served, config: &NassConfig, recovers: bool) -> bool {
        let weight = u64::from(self.weight.get());
        let conflict = served.channels > u64::from(config.channels) && served.flows > 1;
        // Above the average: more than its weight's part of all channels.
        let above = conflict && self.channels * served.weight > served.channels * weight;
        let before = self.limit;
        if !(above && config.aggressiveness) {
            let most = if recovers { config.queue_length } else { before };
            self.limit = (before + 1).min(most);
        } else if before > 1 {
            let average = u64::from(self.dispatched) * served.channels * weight;
            let average = average.checked_div(self.channels * served.weight).unwrap_or(0) as u32;
            self.limit = (before / 2).max(average).max(1);
        }
        self.limit < before
    }
}

#[derive(Clone, Copy, Default)]
struct JobState {
    flow: u32,
    length: u32,
    channels: u32,
}

impl<S: SerialPolicy> Nass<S> {
    /// Puts the limits around `inner`.
    pub fn new(inner: S, config: &SerialConfig, nass: &NassConfig) -> Result<Self, ConfigError> {
        config.check()?;
        nass.check()?;
        let sequentiality = nass.sequentiality && config.merge_bytes > 0;
        let control = Control {
            config: NassConfig { sequentiality, ..*nass },
            flows: (0..config.flows).map(|_| FlowState::default()).collect(),
            jobs: (0..config.jobs()).map(|_| JobState::default()).collect(),
            history: (0..nass.history).map(|_| u32::MAX).collect(),
            newest: 0,
            arrivals: 0,
            present_weight: 0,
            served: Served::default(),
            reserved: Reserved::default(),
            round: 0,
            halved: false,
            completions: 0,
        };
        Ok(Nass { inner, control })
    }

    /// The most requests that the flow may have on the device now.
    pub fn limit(&self, flow: usize) -> u32 {
        self.control.flows.get(flow).map_or(0, |flow| self.control.limit(flow))
    }
}

impl Control {
    /// Which flows may send; `None` if there is none.
    #[inline]
    fn open(&self) -> Option<Lanes> {
        let theirs = self.served.requests.saturating_sub(self.reserved.dispatched);
        match self.reserved {
            _ if self.served.requests >= self.config.queue_length => None,
            Reserved { flows: 0, .. } => Some(Lanes::All),
            _ if theirs < self.config.reserve => Some(Lanes::All),
            Reserved { staged: 0, .. } => None,
            _ => Some(Lanes::Reserved),
        }
    }

    /// All limits are set: each flow looks its own up when it next sends or has an answer.
    #[inline]
    fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// MDN of a flow.
    #[inline]
    fn limit(&self, flow: &FlowState) -> u32 {
        if flow.round == self.round { flow.limit } else { self.part(flow.weight) }
    }

    /// A flow's part of the queue.
    #[inline]
    fn part(&self, weight: Weight) -> u32 {
        let weight = u64::from(weight.get());
        let part = u64::from(self.config.queue_length) * weight / self.present_weight.max(weight).max(1);
        (part as u32).max(1)
    }

    /// The flow's limit is of this round from now on.
    #[cold]
    fn look_up(&mut self, slot: usize) {
        let Some(limit) = self.flows.get(slot).map(|flow| self.part(flow.weight)) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            (flow.limit, flow.round) = (limit, self.round);
        }
    }

    /// A request's flow, its limit looked up, and what the request occupies.
    #[inline]
    fn sender(&mut self, job: Job) -> Option<(usize, u64)> {
        let JobState { flow, channels, .. } = *self.jobs.get(job.0 as usize)?;
        if self.flows.get(flow as usize)?.round != self.round {
            self.look_up(flow as usize);
        }
        Some((flow as usize, channels.into()))
    }

    /// How many channels a request occupies (Eq. 4).
    #[inline]
    fn channels_of(&self, op: Op, length: u32) -> u32 {
        let size = self.config.sub_request_bytes;
        match op {
            Op::Read | Op::Write if length > size => length.checked_div(size).unwrap_or(0) + 1,
            _ => 1,
        }
    }

    /// A request arrives: lines 1 to 14.
    #[inline]
    fn arrived<S: SerialPolicy>(&mut self, now_ns: u64, arrival: &Arrival, inner: &mut S) {
        let channels = self.channels_of(arrival.op, arrival.length);
        if let Some(job) = self.jobs.get_mut(arrival.job.0 as usize) {
            *job = JobState { flow: arrival.flow as u32, length: arrival.length, channels };
        }
        self.remember(arrival.flow, inner);
        let Some(flow) = self.flows.get_mut(arrival.flow) else { return };
        flow.arrival = self.arrivals;
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

    /// A flow is new, or has another weight.
    #[cold]
    fn weigh(&mut self, slot: usize, weight: Weight) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let counted = core::mem::replace(&mut flow.weight, weight);
        let (counted, weight) = (u64::from(counted.get()), u64::from(weight.get()));
        if flow.dispatched > 0 {
            self.served.weight = (self.served.weight + weight).saturating_sub(counted);
        }
        let counted = if core::mem::replace(&mut flow.is_present, true) { counted } else { 0 };
        self.present_weight = (self.present_weight + weight).saturating_sub(counted);
        self.begin_round();
    }

    /// A request arrives and is merged with a staged one: the same, but nothing more is staged.
    #[inline]
    fn grown<S: SerialPolicy>(&mut self, now_ns: u64, arrival: &Arrival, inner: &mut S) {
        let length = self.jobs.get(arrival.job.0 as usize).map_or(0, |job| job.length);
        let length = length.saturating_add(arrival.length);
        let channels = self.channels_of(arrival.op, length);
        if let Some(job) = self.jobs.get_mut(arrival.job.0 as usize) {
            (job.length, job.channels) = (length, channels);
        }
        self.remember(arrival.flow, inner);
        if let Some(flow) = self.flows.get_mut(arrival.flow) {
            flow.arrival = self.arrivals;
        }
        if self.config.sequentiality {
            self.perceive(now_ns, true, arrival.flow, inner);
        }
    }

    /// Puts an arrival into the history; what falls out of it may have been its flow's last sign.
    #[inline]
    fn remember<S: SerialPolicy>(&mut self, slot: usize, inner: &mut S) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.newest = if self.newest + 1 < self.history.len() { self.newest + 1 } else { 0 };
        let Some(place) = self.history.get_mut(self.newest) else { return };
        let oldest = core::mem::replace(place, slot as u32) as usize;
        let fallen = self.arrivals.wrapping_sub(u64::from(self.config.history));
        if oldest != slot && self.flows.get(oldest).is_some_and(|flow| flow.arrival == fallen) {
            self.look_for(oldest);
            if let Some(flow) = self.flows.get_mut(oldest) {
                flow.settle(oldest, &mut self.reserved, inner);
            }
        }
    }

    /// Sees whether a flow that is not among the last arrivals is there at all.
    #[cold]
    fn look_for(&mut self, slot: usize) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.is_present && flow.staged == 0 && flow.dispatched == 0 {
            flow.is_present = false;
            self.present_weight = self.present_weight.saturating_sub(flow.weight.get().into());
        }
        flow.is_expected = false;
    }

    /// The flow's sequentiality with this arrival (Eq. 7), and what follows for its limit.
    fn perceive<S: SerialPolicy>(&mut self, now_ns: u64, merges: bool, slot: usize, inner: &mut S) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let now = now_ns / DECAY_UNIT_NS;
        let mut units = now.saturating_sub(flow.decayed);
        flow.decayed = now;
        while units > 0 && flow.sequentiality != 0 {
            flow.sequentiality = flow.sequentiality.checked_div(self.config.decay.into()).unwrap_or(0);
            units -= 1;
        }
        flow.sequentiality = flow.sequentiality.saturating_add(if merges { ONE } else { -ONE });
        if flow.sequentiality > 0 {
            if flow.round != self.round {
                self.look_up(slot);
            }
            let Some(flow) = self.flows.get_mut(slot) else { return };
            flow.limit = match flow.has_fallen {
                false => flow.limit.saturating_sub(1).max(1),
                true => (flow.limit + 1).min(self.config.queue_length),
            };
            flow.settle(slot, &mut self.reserved, inner);
        }
    }

    /// A request enters the device: lines 15 to 30.
    #[inline]
    fn sent<S: SerialPolicy>(&mut self, job: Job, inner: &mut S) {
        let Some((slot, channels)) = self.sender(job) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if flow.dispatched == 0 {
            self.served.flows = self.served.flows.wrapping_add(1);
            self.served.weight += u64::from(flow.weight.get());
        }
        flow.staged = flow.staged.wrapping_sub(1);
        flow.dispatched = flow.dispatched.wrapping_add(1);
        if flow.lane == Lane::Reserved {
            self.reserved.dispatched = self.reserved.dispatched.wrapping_add(1);
            self.reserved.staged = self.reserved.staged.wrapping_sub((flow.staged == 0).into());
        }
        flow.channels += channels;
        flow.has_fallen = false;
        self.served.requests = self.served.requests.wrapping_add(1);
        self.served.channels += channels;
        let sends_little = flow.staged == 0 || flow.is_expected && flow.staged + flow.dispatched <= self.config.reserve;
        let is_recent = self.arrivals.wrapping_sub(flow.arrival) < self.config.history.into();
        flow.is_expected = sends_little && is_recent && self.config.idleness;
        self.halved |= flow.judge(&self.served, &self.config, false);
        flow.settle(slot, &mut self.reserved, inner);
    }

    /// A request is completed: lines 23 to 30.
    #[inline]
    fn came_back<S: SerialPolicy>(&mut self, job: Job, inner: &mut S) {
        self.forget();
        let Some((slot, channels)) = self.sender(job) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.dispatched = flow.dispatched.wrapping_sub(1);
        if flow.lane == Lane::Reserved {
            self.reserved.dispatched = self.reserved.dispatched.wrapping_sub(1);
        }
        flow.channels = flow.channels.wrapping_sub(channels);
        flow.has_fallen = true;
        self.served.requests = self.served.requests.wrapping_sub(1);
        self.served.channels = self.served.channels.wrapping_sub(channels);
        if flow.dispatched == 0 {
            self.served.flows = self.served.flows.wrapping_sub(1);
            self.served.weight = self.served.weight.saturating_sub(flow.weight.get().into());
        }
        self.halved |= flow.judge(&self.served, &self.config, true);
        if self.arrivals.wrapping_sub(flow.arrival) >= self.config.history.into() {
            self.look_for(slot);
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.settle(slot, &mut self.reserved, inner);
        }
    }

    /// After two queues' worth of completions all that limits were found for has left the device: they are set anew.
    #[inline]
    fn forget(&mut self) {
        self.completions = self.completions.wrapping_add(1);
        if self.completions >= 2 * self.config.queue_length {
            self.completions = 0;
            if core::mem::take(&mut self.halved) {
                self.begin_round();
            }
        }
    }
}

impl<S: SerialPolicy> SerialPolicy for Nass<S> {
    /// The slot's last life may still be in the history: it falls out of it as it would have.
    fn add_flow(&mut self, slot: usize, weight: Weight) {
        if let Some(flow) = self.control.flows.get_mut(slot) {
            let FlowState { weight, arrival, is_present, is_expected, lane, .. } = *flow;
            *flow = FlowState { weight, arrival, is_present, is_expected, lane, ..FlowState::default() };
        }
        self.inner.add_flow(slot, weight);
        if let Some(flow) = self.control.flows.get_mut(slot) {
            flow.settle(slot, &mut self.control.reserved, &mut self.inner);
        }
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        self.inner.set_weight(flow, weight);
    }

    /// Nobody waits for it any more.
    fn remove_flow(&mut self, slot: usize) {
        if let Some(flow) = self.control.flows.get_mut(slot) {
            flow.is_expected = false;
            flow.settle(slot, &mut self.control.reserved, &mut self.inner);
        }
        self.inner.remove_flow(slot);
    }

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        self.control.arrived(now_ns, arrival, &mut self.inner);
        self.inner.insert(now_ns, arrival);
    }

    #[inline]
    fn grow(&mut self, now_ns: u64, arrival: &Arrival) {
        self.control.grown(now_ns, arrival, &mut self.inner);
        self.inner.grow(now_ns, arrival);
    }

    /// Nothing to do: lanes are this one's own, and nobody is around it.
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    #[inline]
    fn select(&mut self, now_ns: u64, _lanes: Lanes) -> Selection {
        let Nass { inner, control } = self;
        let Some(lanes) = control.open() else { return Selection::Nothing };
        let selection = inner.select(now_ns, lanes);
        if let Selection::Serve(job) = selection {
            control.sent(job, inner);
        }
        selection
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, outcome: Outcome) {
        self.inner.completed(now_ns, job, outcome);
        self.control.came_back(job, &mut self.inner);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.inner.tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        self.inner.virtual_time()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bfq::{BfqConfig, Budgets};
    use crate::cfq::{CfqConfig, TimeSlices};
    use crate::fiops::VirtualIops;
    use crate::flashfq::{FlashFqConfig, Throttled};
    use crate::serial::testing::{Loop, config, counts as served_counts, read, run};
    use crate::sfqd::StartTime;

    type Limited = Nass<VirtualIops>;

    fn nass(nass: NassConfig) -> Limited {
        let config = SerialConfig { merge_bytes: 1 << 19, ..config(64) };
        Nass::new(VirtualIops::new(&config), &config, &nass).unwrap()
    }

    fn only(aggressiveness: bool, sequentiality: bool, idleness: bool) -> NassConfig {
        NassConfig { aggressiveness, sequentiality, idleness, ..NassConfig::default() }
    }

    /// Takes what may be sent. Jobs `100 i..` are flow `i`'s.
    fn send(nass: &mut Limited) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Selection::Serve(Job(job)) = nass.select(0, Lanes::All) {
            sent.push(job);
        }
        sent
    }

    /// How many of them are of each flow.
    fn counts(jobs: &[u32]) -> [usize; 2] {
        [0, 1].map(|flow| jobs.iter().filter(|&&job| job / 100 == flow).count())
    }

    fn stage(nass: &mut Limited, flow: u32, jobs: core::ops::Range<u32>, length: u32) {
        jobs.for_each(|job| nass.insert(0, &read(100 * flow + job, flow as usize, 100, length)));
    }

    fn complete(nass: &mut Limited, jobs: &[u32]) {
        jobs.iter().for_each(|&job| nass.completed(0, Job(job), Outcome::Done));
    }

    #[test]
    fn channels_as_equation_4_has_them() {
        let mut nass = nass(NassConfig::default());
        let channels = [0, 4096, 8192, 8193, 16_384, 131_072].map(|length| nass.control.channels_of(Op::Read, length));
        assert_eq!(channels, [1, 1, 1, 2, 3, 17]);
        assert_eq!(nass.control.channels_of(Op::Discard, 1 << 30), 1);
        stage(&mut nass, 0, 0..16, 4096);
        assert_eq!(counts(&send(&mut nass)), [16, 0]);
        assert_eq!(nass.control.flows[0].channels, 16);
    }

    #[test]
    fn a_new_flow_sets_every_limit_to_its_part() {
        let mut nass = nass(NassConfig::default());
        stage(&mut nass, 0, 0..40, 4096);
        assert_eq!(nass.limit(0), 32);
        stage(&mut nass, 1, 0..40, 4096);
        assert_eq!((nass.limit(0), nass.limit(1)), (16, 16));
        // Three times the weight, three times the part.
        nass.insert(0, &Arrival { weight: Weight::new(300).unwrap(), ..read(199, 1, 100, 4096) });
        assert_eq!((nass.limit(0), nass.limit(1)), (8, 24));
    }

    /// The life of a limit: an aggressive flow is limited, keeps one request, and recovers when the other has gone.
    #[test]
    fn an_aggressive_flow_is_limited_and_recovers() {
        let mut nass = nass(only(true, false, false));
        stage(&mut nass, 0, 0..16, 4096);
        stage(&mut nass, 1, 0..64, 131_072);
        let first = send(&mut nass);
        let [small, large] = counts(&first);
        assert!(small == 16 && large <= 3, "{first:?}");
        let (small, mut large): (Vec<u32>, Vec<u32>) = first.into_iter().partition(|job| job / 100 == 0);
        for _ in 0..10 {
            complete(&mut nass, &large);
            large = send(&mut nass);
            assert!((1..=2).contains(&large.len()) && nass.limit(1) <= 2, "{large:?}");
        }
        assert!(nass.limit(0) >= 16, "the other is not limited");
        complete(&mut nass, &small);
        let mut most = 0;
        for _ in 0..200 {
            complete(&mut nass, &large);
            large.iter().for_each(|&job| stage(&mut nass, 1, job - 100..job - 99, 131_072));
            large = send(&mut nass);
            most = most.max(large.len());
        }
        assert_eq!((most, nass.limit(1)), (32, 32));
    }

    /// Switched off, the mechanism limits nobody further than to their part.
    #[test]
    fn without_aggressiveness_nobody_is_halved() {
        let mut nass = nass(only(false, false, false));
        stage(&mut nass, 0, 0..40, 4096);
        stage(&mut nass, 1, 0..40, 131_072);
        assert_eq!(counts(&send(&mut nass)), [16, 16]);
        assert_eq!((nass.limit(0), nass.limit(1)), (16, 16));
    }

    #[test]
    fn room_is_kept_for_a_flow_that_is_about_to_send() {
        let mut nass = nass(only(false, false, true));
        stage(&mut nass, 0, 0..2, 4096);
        assert_eq!(counts(&send(&mut nass)), [2, 0]);
        stage(&mut nass, 1, 0..80, 4096);
        assert_eq!(counts(&send(&mut nass)), [0, 8], "beside the others' two");
        stage(&mut nass, 0, 2..3, 4096);
        assert_eq!(counts(&send(&mut nass)), [1, 0], "what comes finds room at once");
        complete(&mut nass, &[0, 1, 2]);
        assert_eq!(counts(&send(&mut nass)), [0, 0]);
        complete(&mut nass, &[100, 101]);
        assert_eq!(counts(&send(&mut nass)), [0, 2]);
        // 128 arrivals later it is taken to be gone.
        stage(&mut nass, 1, 80..100, 4096);
        stage(&mut nass, 2, 0..110, 4096);
        assert_eq!(nass.control.reserved.flows, 0);
        assert_eq!(counts(&send(&mut nass))[1], 8, "beside eight, to half of the queue");
    }

    #[test]
    fn without_idleness_no_room_is_kept() {
        let mut nass = nass(only(false, false, false));
        stage(&mut nass, 0, 0..2, 4096);
        stage(&mut nass, 1, 0..80, 4096);
        assert_eq!(counts(&send(&mut nass)), [2, 16]);
    }

    #[test]
    fn a_stream_is_held_back_while_its_aggressiveness_rises() {
        let part = |job: u32| read(job, 0, 100, 4096);
        let mut nass = nass(only(false, true, false));
        (0..3).for_each(|job| nass.insert(0, &part(job)));
        // What could not be merged counts against it.
        assert_eq!((nass.control.flows[0].sequentiality, nass.limit(0)), (-3 * ONE, 32));
        (0..10).for_each(|_| nass.grow(0, &part(2)));
        // The fourth is the first that makes it sequential.
        assert_eq!(nass.control.flows[0].sequentiality, 7 * ONE);
        assert_eq!(nass.limit(0), 32 - 7);
        assert_eq!(send(&mut nass), [0, 1, 2]);
        assert_eq!(nass.control.served.channels, 1 + 1 + 6, "the third is 44 KiB by now");
        complete(&mut nass, &[2]);
        let limit = nass.limit(0);
        // It has just had one back.
        nass.insert(0, &part(3));
        assert_eq!((nass.control.flows[0].sequentiality, nass.limit(0)), (6 * ONE, (limit + 1).min(32)));
        // It decays to a half with each unit of time, rounded to zero.
        nass.grow(3 * DECAY_UNIT_NS, &part(3));
        assert_eq!(nass.control.flows[0].sequentiality, 6 * ONE / 8 + ONE);
    }

    /// A flow of large requests has room for one at a time here. It can still get its share, a quarter, if the scheduler
    /// inside does not take that for all it wants.
    #[test]
    fn a_limited_flow_keeps_its_turns() {
        fn ratio<S: SerialPolicy>(inner: S) -> f64 {
            let mut nass = Nass::new(inner, &config(16), &NassConfig::default()).unwrap();
            let loops =
                [Loop { weight: 100, length: 65_536, depth: 32 }, Loop { weight: 300, length: 4096, depth: 64 }];
            let served = served_counts(&run(&mut nass, &loops, 16, 20_000_000_000, |_| 1_000_000), 2);
            served[1] as f64 * 4096.0 / (served[0] as f64 * 65_536.0)
        }
        // Budgets so small that no turn ends by time.
        let bfq = BfqConfig { budget_bytes: 1 << 20, idle_ns: 0, ..BfqConfig::default() };
        let bfq = ratio(Budgets::new(&config(16), &bfq).unwrap());
        let cfq = ratio(TimeSlices::new(&config(16), &CfqConfig { idle_ns: 0, ..CfqConfig::default() }).unwrap());
        assert!((2.9..3.1).contains(&bfq), "bfq 1:{bfq}");
        // Time is what is shared there, three requests to one, and channels are what is limited, 27 requests to one.
        assert!((3.0 / 16.0..27.0 / 16.0).contains(&cfq), "cfq 1:{cfq}");
    }

    /// Weights 3:1 count whatever is inside: two flows that both have more to send than the device takes, of requests so large
    /// that channels are always short, on a device of even service times and on one of random ones.
    #[test]
    fn weights_count_where_channels_are_always_short() {
        fn ratio<S: SerialPolicy>(inner: S, even: bool) -> f64 {
            let mut nass = Nass::new(inner, &config(32), &NassConfig::default()).unwrap();
            let loops = [300, 100].map(|weight| Loop { weight, length: 16_384, depth: 64 });
            let random = core::cell::Cell::new(1u64);
            let service_ns = |_| {
                random
                    .set(random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
                if even { 1_000_000 } else { 100_000 + (random.get() >> 33) % 1_800_000 }
            };
            let served = run(&mut nass, &loops, 32, 10_000_000_000, service_ns);
            let counts = served_counts(&served, 2);
            counts[0] as f64 / counts[1] as f64
        }
        let (cfq, bfq) =
            (CfqConfig { idle_ns: 0, ..CfqConfig::default() }, BfqConfig { idle_ns: 0, ..BfqConfig::default() });
        let flashfq = FlashFqConfig { idle_ns: 0, ..FlashFqConfig::default() };
        let config = config(32);
        for even in [true, false] {
            let ratios = [
                ("cfq", ratio(TimeSlices::new(&config, &cfq).unwrap(), even)),
                ("bfq", ratio(Budgets::new(&config, &bfq).unwrap(), even)),
                ("flashfq", ratio(Throttled::new(&config, &flashfq).unwrap(), even)),
                ("fiops", ratio(VirtualIops::new(&config), even)),
                ("mqfq", ratio(StartTime::new(&config), even)),
            ];
            for (name, ratio) in ratios {
                assert!((2.85..3.15).contains(&ratio), "{name}, even {even}: {ratio}:1");
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let config = config(64);
        let refused = |nass: NassConfig| Nass::new(VirtualIops::new(&config), &config, &nass).is_err();
        assert!(!refused(NassConfig::default()));
        let zeroes = [
            NassConfig { channels: 0, ..NassConfig::default() },
            NassConfig { sub_request_bytes: 0, ..NassConfig::default() },
            NassConfig { history: 0, ..NassConfig::default() },
            NassConfig { decay: 1, ..NassConfig::default() },
            NassConfig { reserve: 0, ..NassConfig::default() },
            NassConfig { queue_length: 0, ..NassConfig::default() },
        ];
        assert!(zeroes.into_iter().all(refused));
    }
}
