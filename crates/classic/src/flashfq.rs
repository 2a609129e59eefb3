//! `flashfq`: start-time fair queueing of device time, with throttled dispatch and anticipation.
//!
//! **Problem.** Start-time fair queueing needs flows that always have something queued. A flow that
//! waits for each answer does not: virtual time passes it by, and it starts anew at virtual time
//! with every request. Slices of time cure that by keeping the whole device for one flow at a time,
//! and waste an SSD's parallelism.
//!
//! **Model.** Requests get start and finish tags as in [SFQ(D)](fairq_core::sfqd) and go
//! in the order of start tags. Virtual time is the least tag among the flows that have requests
//! staged *or are [expected][anticipation] to send*: an expected flow holds it at its last finish
//! tag, where its next request will start.
//!
//! - *Throttled dispatch.* No request goes that starts more than `threshold_bytes`, at the
//!   [reference weight](ReferenceWeight), after virtual time. So while a flow is expected the
//!   others go on, in parallel, up to that bound.
//! - *Anticipation.* A flow is expected while it has reads on the device and for `idle_ns` after
//!   the last answer.
//! - *Device time.* A request costs `request_bytes` and its length: a request's time in the device
//!   has a fixed part, given here in bytes of transfer, and grows with its size. The cost model
//!   charges writes more.
//! - *Flows that may not be served* do not hold virtual time: they could not go if they were first.
//!
//! **Fairness.** The bound is that of MQFQ: counted at dispatch, two backlogged flows' service per
//! weight differs by at most `2 T + l_f / w_f + l_g / w_g`, in the costs above.
//!
//! **Left out**: the calibration that finds a device's costs.
//!
//! **Knobs.** `threshold_bytes` (T; 1 MiB): a larger one lets others fill the device while one flow
//! thinks, a smaller one keeps services together; with 0 the others do nothing. `idle_ns` (2 ms; 0
//! is no anticipation). `request_bytes` (4096). `slots` (D, requests); the cost model. The defaults
//! are fairq's, because SSDs answer within a millisecond.
//!
//! **Papers.** Shen, Park: FlashFQ: A Fair Queueing I/O Scheduler for Flash-Based SSDs, USENIX ATC
//! 2013; Jin, Chase, Kaur, SIGMETRICS 2004.
//!
//! [anticipation]: crate::anticipation

use alloc::boxed::Box;

use crate::anticipation::{Anticipation, IDLE};
use crate::staged::Staged;
use fairq_core::contract::bounds::{ConfigError, MAX_THRESHOLD, boxed, granted};
use fairq_core::contract::flow::Weight;
use fairq_core::contract::platform::{Native, Platform};
use fairq_core::contract::port::{Op, Outcome};
use fairq_core::contract::vtime::{Normalizer, ReferenceWeight, VTime};
use fairq_core::entry::Built;
use fairq_core::entry::knobs::{self, Configure, Knob, Knobs};
use fairq_core::serial::entry::Scheduler;
use fairq_core::serial::heap::{Entry, FlowHeap};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Lift, Selection, Serial, SerialConfig, SerialPolicy, SerialPort,
};

/// FlashFQ behind the port contract.
pub type FlashFq<P = Native> = Serial<FlashFqScheduler, P>;

/// A port of [`FlashFq`].
pub type FlashFqPort<P = Native> = SerialPort<FlashFqScheduler, P>;

/// The knobs of FlashFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FlashFqConfig {
    /// The furthest that a request may start after virtual time (T), in bytes at the [reference
    /// weight](ReferenceWeight); default 1 MiB.
    pub threshold_bytes: u64,
    /// Time for which a flow is expected after an answer, in nanoseconds; 0 switches anticipation
    /// off; default 2 ms.
    pub idle_ns: u64,
    /// Cost of a request besides its length, in bytes; default 4096.
    pub request_bytes: u32,
}

fairq_core::changeable!(FlashFqConfig);

impl Default for FlashFqConfig {
    fn default() -> Self {
        FlashFqConfig { threshold_bytes: 1 << 20, idle_ns: 2_000_000, request_bytes: 4096 }
    }
}

impl Configure for FlashFqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let threshold = "T: the most that the lightest tenant may run ahead of the slowest; \
                         heavier ones in proportion, up to 4 T";
        let threshold = Knob::bytes("threshold", 0, MAX_THRESHOLD, threshold).alias("T");
        knobs.is(threshold, &mut self.threshold_bytes);
        knobs.is(IDLE, &mut self.idle_ns);
        let request = "the cost of a request besides its length";
        let most = u32::MAX.into();
        knobs.is(Knob::bytes("request-cost", 0, most, request), &mut self.request_bytes);
    }
}

impl Scheduler for FlashFqScheduler {
    const NAME: &'static str = "flashfq";
    const LIMITED: &'static str = "nass+flashfq";
    type Config = FlashFqConfig;

    fn limited(keeps_room: bool) -> FlashFqConfig {
        let usual = FlashFqConfig::default();
        if keeps_room { FlashFqConfig { idle_ns: 0, ..usual } } else { usual }
    }

    fn build(
        config: &FlashFqConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        Ok(Box::new(FlashFqScheduler::new(bounds, config)?))
    }
}

/// FlashFQ behind one lock, and its ports.
pub fn new<P: Platform>(
    config: &SerialConfig,
    flashfq: &FlashFqConfig,
) -> Result<Built<FlashFq<P>>, ConfigError> {
    Serial::with_policy(FlashFqScheduler::new(config, flashfq)?, config)
}

/// FlashFQ as a [`SerialPolicy`].
pub struct FlashFqScheduler {
    config: FlashFqConfig,
    /// T in units, for the weights of the present flows.
    threshold_units: u64,
    virtual_time: VTime,
    flows: Box<[FlowState]>,
    /// The flows that have requests staged, by their first request.
    heap: FlowHeap,
    /// The flows that have no request staged but were expected to send at the last check, by the
    /// start of their next request.
    absent: FlowHeap,
    staged: Staged<JobState>,
    arrivals: u64,
    lift: Lift,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    end: VTime,
    /// Growth, in units, of requests that left the queue after others had been tagged behind them.
    /// It is added to all tags of the queue when they are compared.
    shift: u64,
    normalizer: Normalizer,
    anticipation: Anticipation,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    start: VTime,
    /// Its cost when it was tagged, in units.
    units: u64,
    /// Its growth after it was tagged, in units.
    grown: u64,
    arrival: u64,
    read: bool,
}

impl FlashFqScheduler {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig, flashfq: &FlashFqConfig) -> Result<Self, ConfigError> {
        config.check()?;
        knobs::check(&mut flashfq.clone())?;
        granted(|| {
            Ok(FlashFqScheduler {
                config: *flashfq,
                threshold_units: ReferenceWeight::default().units(flashfq.threshold_bytes),
                virtual_time: VTime::ZERO,
                flows: boxed(config.flows, |_| FlowState::default()),
                heap: FlowHeap::new(config.flows),
                absent: FlowHeap::new(config.flows),
                staged: Staged::new(config.flows, config.jobs()),
                arrivals: 0,
                lift: Lift::default(),
            })
        })
    }

    /// The time until which a flow with nothing staged is expected.
    #[inline]
    fn expected_until(&self, now_ns: u64, flow: usize) -> Option<u64> {
        self.flows.get(flow)?.anticipation.until(now_ns, self.config.idle_ns)
    }

    /// Gives a flow its place after its first request has left.
    #[inline]
    fn follow(&mut self, now_ns: u64, slot: usize) {
        let Some(flow) = self.flows.get(slot) else { return };
        if let Some(first) = self.staged.first(slot) {
            let tag = first.start.plus(flow.shift);
            self.heap.push(Entry { tag, arrival: first.arrival, flow: slot as u32 });
        } else if self.expected_until(now_ns, slot).is_some() {
            self.absent.push(Entry { tag: flow.end, arrival: self.arrivals, flow: slot as u32 });
        }
    }

    /// Removes the flows at the front that are no longer expected, and returns the first expected
    /// flow. Each flow was put in by a request that was served, so this is one round a request.
    #[inline]
    fn first_expected(&mut self, now_ns: u64) -> Option<Entry> {
        loop {
            let first = self.absent.first(Lanes::All)?;
            if self.expected_until(now_ns, first.flow as usize).is_some() {
                return Some(*first);
            }
            self.absent.remove(first.flow as usize);
        }
    }
}

impl SerialPolicy for FlashFqScheduler {
    /// The slot's last flow is no longer expected.
    fn add_flow(&mut self, slot: usize, _weight: Weight) {
        self.absent.remove(slot);
        if let Some(flow) = self.flows.get_mut(slot) {
            *flow = FlowState { end: self.virtual_time, ..FlowState::default() };
        }
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.threshold_units = reference.units(self.config.threshold_bytes);
    }

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let slot = arrival.flow;
        let alone = self.staged.is_empty(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.anticipation.arrived(now_ns, alone, self.config.idle_ns);
        // The flow's tags are kept without `shift`, which is added to all of them when they are
        // compared.
        let start = self.virtual_time.minus(flow.shift).max(flow.end);
        let cost = arrival.cost.saturating_add(self.config.request_bytes.into());
        let units = flow.normalizer.units(cost, arrival.weight);
        let units = start.plus(flow.shift).charge(self.virtual_time, units);
        flow.end = start.plus(units);
        let read = arrival.op == Op::Read;
        let kept = JobState { start, units, grown: 0, arrival: self.arrivals, read };
        self.staged.push(slot, arrival.job, kept);
        if alone {
            self.absent.remove(slot);
            self.heap.push(Entry {
                tag: start.plus(flow.shift),
                arrival: self.arrivals,
                flow: slot as u32,
            });
        }
        self.arrivals = self.arrivals.wrapping_add(1);
    }

    #[inline]
    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        let Some(flow) = self.flows.get_mut(arrival.flow) else { return };
        if let Some(kept) = self.staged.kept_mut(arrival.job) {
            kept.grown =
                kept.grown.saturating_add(flow.normalizer.units(arrival.cost, arrival.weight));
        }
    }

    /// Later arrivals are tagged as if the request had not been there; requests staged behind it
    /// keep their tags.
    fn cancel(&mut self, job: Job, slot: usize) {
        let was_first = self.staged.first_job(slot) == Some(job);
        let Some(kept) = self.staged.remove(slot, job) else { return };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.end = flow.end.minus(kept.units);
        let (following, shift) = (self.staged.first(slot), flow.shift);
        if following.is_none() {
            flow.end = flow.end.plus(core::mem::take(&mut flow.shift));
        }
        if was_first {
            self.heap.remove(slot);
            if let Some(JobState { start, arrival, .. }) = following {
                self.heap.push(Entry { tag: start.plus(shift), arrival, flow: slot as u32 });
            }
        }
    }

    #[inline]
    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.heap.set_lane(flow, lane);
    }

    #[inline]
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        // The first entry of both heaps holds virtual time: an expected flow's next request will
        // start at its end.
        let expected = self.first_expected(now_ns);
        let first = self.heap.first(lanes).copied();
        let holder = match (first, expected) {
            (Some(first), Some(expected)) if expected.is_before(&first) => expected,
            (Some(holder), _) | (None, Some(holder)) => holder,
            (None, None) => return Selection::Nothing,
        };
        self.virtual_time = self.virtual_time.max(holder.tag);
        // No flow that may be served has a request: an arrival or a completion calls again.
        let Some(first) = first else { return Selection::Nothing };
        let ahead = first.tag.since(self.virtual_time);
        if ahead > 0 && ahead.unsigned_abs() > self.threshold_units {
            // Only an expected flow holds others up; if it waits for an answer, the completion
            // calls again.
            return match self.expected_until(now_ns, holder.flow as usize) {
                Some(until_ns) if until_ns < u64::MAX => Selection::WaitUntil(until_ns),
                _ => Selection::Nothing,
            };
        }
        let slot = first.flow as usize;
        self.heap.remove(slot);
        let Some((job, kept)) = self.staged.pop(slot) else { return Selection::Nothing };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.anticipation.served(if kept.read { Op::Read } else { Op::Write });
            if kept.grown > 0 {
                let grown = flow.end.plus(flow.shift).charge(self.virtual_time, kept.grown);
                flow.shift = flow.shift.saturating_add(grown);
            }
            if self.staged.is_empty(slot) {
                flow.end = flow.end.plus(core::mem::take(&mut flow.shift));
            }
        }
        self.follow(now_ns, slot);
        Selection::Serve(job, slot)
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, _job: Job, flow: usize, _outcome: Outcome) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.anticipation.completed(now_ns);
        }
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.lift.tick(now_ns, &mut self.flows, |_, flow| {
            flow.end = flow.end.max(self.virtual_time.minus(flow.shift));
        })
    }

    fn virtual_time(&self) -> Option<u64> {
        Some(self.virtual_time.units())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{Loop, config, counts, run};

    fn flashfq(knobs: FlashFqConfig) -> FlashFqScheduler {
        FlashFqScheduler::new(&config(8), &knobs).unwrap()
    }

    /// Device time is shared by weight, however long requests are.
    #[test]
    fn shares_device_time() {
        let knobs = FlashFqConfig::default();
        let loops = [
            Loop { weight: 100, length: 4096, depth: 32 },
            Loop { weight: 300, length: 131_072, depth: 32 },
        ];
        let served =
            run(&mut flashfq(knobs), &loops, 8, 2_000_000_000, |length| 8_000 + u64::from(length));
        let counts = counts(&served, 2);
        let time =
            |flow: usize| counts[flow] as f64 * f64::from(loops[flow].length + knobs.request_bytes);
        let ratio = time(1) / time(0);
        assert!((ratio - 3.0).abs() < 0.03, "{ratio}");
    }

    /// Beside a flow with a deep queue, a flow that waits for its answers has its share of service
    /// if it is expected; and the other flow goes on in the meantime.
    #[test]
    fn an_expected_flow_holds_virtual_time() {
        let tenant = |weight, depth| Loop { weight, length: 4096, depth };
        let share = |idle_ns, threshold_bytes| {
            let knobs = FlashFqConfig { idle_ns, threshold_bytes, ..FlashFqConfig::default() };
            let served = run(
                &mut flashfq(knobs),
                &[tenant(300, 1), tenant(100, 32)],
                8,
                1_000_000_000,
                |_| 100_000,
            );
            (counts(&served, 2)[0] as f64 / served.len() as f64, served.len())
        };
        let ((expected, few), (na, many)) = (share(2_000_000, 65_536), share(0, 65_536));
        assert!(
            expected > 0.72 && na < 0.2 && few * 3 < many,
            "{expected} of {few}, {na} of {many}"
        );
    }
}
