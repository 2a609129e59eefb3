//! `nass`: a limit for each flow on its requests in the device's queue, around any serial
//! scheduler.
//!
//! **Problem.** A scheduler decides which request goes next, but the device has a queue of its own,
//! SATA's NCQ with 32 places for instance. A flow of large requests, or of many, fills it and the
//! channels behind it. The requests of others then wait where no scheduler sees them, and flows do
//! not get the shares that the scheduler gave.
//!
//! **Model.** [`Nass`] is a [`SerialPolicy`] around another, whose flows it puts into [`Lane`]s: it
//! shuts out flows at their limit, and reserves a lane for flows for which places are kept; the
//! other policy does not know about limits. Each flow has a limit on its requests on the device,
//! MDN in the paper, and so have all flows together. Three mechanisms set them, and each can be
//! switched off:
//!
//! 1. *Aggressiveness* (Eq. 4, 5): a flow that occupies more of the device's channels than others
//!    has its limit halved.
//! 2. *Sequentiality* (Eq. 6, 7): a flow whose requests merge waits a little longer, so that more
//!    of them merge.
//! 3. *Deceptive idleness*, instead of anticipation: places are kept for a flow that is about to
//!    send.
//!
//! Each has a module; `limits` has the limits before any halving and their recovery, and `control`
//! is the paper's Algorithm 1. Each module decides, with arguments, what the paper leaves open.
//!
//! **Cost**: a few counters for each request, and a change of lane when a flow reaches its limit or
//! falls below it.
//!
//! **Beyond the paper.** Its authors plan to study the submission queues of NVMe. There a device
//! takes far more commands than it works on, so the queue's length says nothing. NCQ's 32 places
//! correspond to the *window*, the number of commands that the device works on at a time, and
//! `queue_length` is the window: [`NassConfig::of_window`], with the paper's proportions of
//! channels and reserve to it. Around MQFQ it is NASS around SFQ(D) (decision 14).
//!
//! It is not **work conserving**: places are kept free on purpose.
//!
//! **Knobs.** `channels` (10), `sub_request_bytes` (8 KiB), `history` (128 requests), `decay` (2),
//! `reserve` (8 requests), `queue_length` (32 requests): the paper's for an Intel 530. The three
//! switches.
//!
//! **Paper.** NASS, an NCQ-aware I/O scheduling scheme, MSST 2020, sections II and III.

mod aggressiveness;
mod control;
mod entry;
mod flow_state;
mod idleness;
mod limits;
mod sequentiality;
#[cfg(all(test, not(loom)))]
mod tests;

use fairq_core::contract::bounds::{ConfigError, MAX_SLOTS, granted};
use fairq_core::contract::flow::Weight;
use fairq_core::contract::platform::{Native, Platform};
use fairq_core::contract::port::Outcome;
use fairq_core::contract::vtime::ReferenceWeight;
use fairq_core::entry::Built;
use fairq_core::entry::knobs::{self, Configure, Knob, Knobs};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Selection, Serial, SerialConfig, SerialPolicy, SerialPort,
};

use control::Control;

pub use entry::Limited;
pub use sequentiality::DECAY_UNIT_NS;

/// NASS around a scheduler, behind the port contract.
pub type NassOver<S, P = Native> = Serial<Nass<S>, P>;

/// A port of [`NassOver`].
pub type NassPort<S, P = Native> = SerialPort<Nass<S>, P>;

/// The parameters of NASS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NassConfig {
    /// η: channels of the device; default 10.
    pub channels: u32,
    /// Size(sub): the part of a request that one channel takes, in bytes; default 8192.
    pub sub_request_bytes: u32,
    /// α: number of arrivals in the history; default 128.
    pub history: u32,
    /// µ: divisor of sequentiality in each [`DECAY_UNIT_NS`]; default 2.
    pub decay: u32,
    /// β: the most requests of other flows on the device while a flow is expected; default 8.
    pub reserve: u32,
    /// NCQ length: the most requests on the device; default 32.
    pub queue_length: u32,
    /// Whether aggressive flows are limited; default true.
    pub aggressiveness: bool,
    /// Whether sequential flows' limits are lowered and raised; default true (false is the paper's
    /// variant NM).
    pub sequentiality: bool,
    /// Whether places are kept for flows that are deceptively idle; default true.
    pub idleness: bool,
}

fairq_core::changeable!(NassConfig);

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
    /// For a device that works on `window` requests at a time, with the paper's proportions of
    /// channels and reserve to it (10 and 8 of 32); see the [module's text](self).
    pub fn of_window(window: u32) -> Self {
        let of_32 = |part: u32| (u64::from(window) * u64::from(part) / 32).max(1) as u32;
        NassConfig {
            channels: of_32(10),
            reserve: of_32(8),
            queue_length: window.max(1),
            ..NassConfig::default()
        }
    }
}

impl Configure for NassConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        const MOST: u64 = 1 << 20;
        let channels = "eta: channels of the device";
        knobs.is(Knob::number("channels", 1, MOST, channels), &mut self.channels);
        let part = "the part of a request that one channel serves";
        knobs.is(Knob::bytes("sub-request", 512, 1 << 30, part), &mut self.sub_request_bytes);
        let history = "alpha: the number of arrivals that are remembered";
        knobs.is(Knob::requests("history", 1 << 20, history), &mut self.history);
        let decay = "mu: the divisor of sequentiality in each millisecond";
        knobs.is(Knob::number("decay", 2, MOST, decay), &mut self.decay);
        let reserve = "beta: the most requests of others while a tenant is expected to send";
        knobs.is(Knob::requests("reserve", MAX_SLOTS, reserve), &mut self.reserve);
        let length = "the most requests on the device";
        knobs.is(Knob::requests("queue-length", MAX_SLOTS, length), &mut self.queue_length);
        let aggressive = "whether aggressive tenants are limited";
        knobs.is(Knob::switch("aggressiveness", aggressive), &mut self.aggressiveness);
        let sequential = "whether the limits of sequential tenants are lowered and raised";
        knobs.is(Knob::switch("sequentiality", sequential), &mut self.sequentiality);
        let idle = "whether slots are kept for tenants that only seem idle";
        knobs.is(Knob::switch("idleness", idle), &mut self.idleness);
    }
}

/// NASS around `inner`, made for the same bounds, and its ports.
pub fn new<S: SerialPolicy, P: Platform>(
    inner: S,
    config: &SerialConfig,
    nass: &NassConfig,
) -> Result<Built<NassOver<S, P>>, ConfigError> {
    Serial::with_policy(Nass::new(inner, config, nass)?, config)
}

/// NASS around another [`SerialPolicy`].
pub struct Nass<S> {
    inner: S,
    control: Control,
}

impl<S: SerialPolicy> Nass<S> {
    /// Puts the limits around `inner`.
    pub fn new(inner: S, config: &SerialConfig, nass: &NassConfig) -> Result<Self, ConfigError> {
        config.check()?;
        knobs::check(&mut nass.clone())?;
        granted(|| Ok(Nass { inner, control: Control::new(config, nass) }))
    }

    /// The most requests that the flow may have on the device now.
    pub fn limit(&self, flow: usize) -> u32 {
        self.control.flows.get(flow).map_or(0, |flow| self.control.limits.of(flow))
    }
}

impl<S: SerialPolicy> SerialPolicy for Nass<S> {
    /// The slot's last flow may still be in the history, and falls out of it as usual.
    fn add_flow(&mut self, slot: usize, weight: Weight) {
        self.control.begin_life(slot);
        self.inner.add_flow(slot, weight);
        if let Some(flow) = self.control.flows.get_mut(slot) {
            flow.settle(slot, &mut self.control.reserved, &mut self.inner);
        }
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        self.inner.set_weight(flow, weight);
    }

    /// No place is kept for a removed flow.
    fn remove_flow(&mut self, slot: usize) {
        self.control.end_life(slot);
        if let Some(flow) = self.control.flows.get_mut(slot) {
            flow.settle(slot, &mut self.control.reserved, &mut self.inner);
        }
        self.inner.remove_flow(slot);
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.inner.set_reference(reference);
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

    fn cancel(&mut self, job: Job, flow: usize) {
        self.inner.cancel(job, flow);
        self.control.cancelled(flow);
    }

    /// This does nothing, because NASS sets lanes itself, and no policy is around it.
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    #[inline]
    fn select(&mut self, now_ns: u64, _lanes: Lanes) -> Selection {
        let Nass { inner, control } = self;
        let Some(lanes) = control.open() else { return Selection::Nothing };
        let selection = inner.select(now_ns, lanes);
        if let Selection::Serve(job, flow) = selection {
            control.sent(job, flow, inner);
        }
        selection
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        self.inner.completed(now_ns, job, flow, outcome);
        self.control.came_back(job, flow, &mut self.inner);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.inner.tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        self.inner.virtual_time()
    }
}
