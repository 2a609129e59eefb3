//! `cfq`: one flow at a time has the device, for slices of time in proportion to weights.
//!
//! **Problem.** A disk that serves two streams in turn seeks all the time. If each stream has the
//! disk for a while, it gets the disk as if it were alone, and the streams share what all use
//! alike: time.
//!
//! **Model.** The flow that has the device, the *active* one, is the only one served until its
//! slice is over, or until it has nothing staged. Then the used part of its slice, per weight, is
//! added to its virtual disk time, and the flow with the least becomes active. A slice is `slice_ns
//! x weight / R`, with the [reference weight](ReferenceWeight) R, which is 100 if all weights are.
//! It is shorter when many flows wait: all slices together are at most `target_ns`, and each at
//! least [`LEAST_SLICE_NS`]. A flow that comes back after a pause starts at the virtual disk time
//! of the flow that was activated last.
//!
//! - *Quantum.* While others wait, the active flow has at most `quantum` requests on the device, so
//!   that the next slice does not begin behind a full queue of the last slice's requests.
//! - *Idling.* When the active flow has nothing staged but is [expected][anticipation] to send, its
//!   slice goes on and the device waits, at most `idle_ns` after the last completion. Without it
//!   (`idle_ns` = 0, CFQ-NA) a flow that waits for its answers loses the slice at once. The device
//!   does not wait for writes.
//! - *Least charge.* A slice that is given up at once costs [`LEAST_CHARGE_NS`], as in a kernel
//!   that counts ticks: else a flow that sends one request at a time would be active before all
//!   others for ever.
//! - *A flow that may not be served* keeps its slice; the others go on beside it (`serve_beside`).
//!
//! **Shared time** is the time for which flows have the device. It equals device time only while
//! one flow's requests do not stay on the device in the next flow's slice, which they do on a
//! device that queues.
//!
//! **Left out**: CFQ's optimizations for disks (sorting by sector, seek detection, preemption by
//! neighbouring requests), classes of priority, and the one shared queue for asynchronous writes:
//! here every write has a flow.
//!
//! **Knobs.** `slice_ns` (100 ms at the reference weight), `target_ns` (300 ms), `quantum` (8
//! requests), `idle_ns` (8 ms; 0 for CFQ-NA): Linux's defaults. `slots` (D, requests).
//!
//! **Sources.** Linux 3.10, Documentation/block/cfq-iosched.txt and cgroups/blkio-controller.txt;
//! the NASS paper, MSST 2020, Table I. [Anticipation][anticipation] has its own.
//!
//! [anticipation]: crate::anticipation

use alloc::boxed::Box;

use crate::anticipation::{Anticipation, IDLE};
use crate::staged::Staged;
use fairq_core::contract::bounds::{ConfigError, MAX_KNOB_NS, MAX_SLOTS, boxed, granted};
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

/// The shortest slice, in nanoseconds.
pub const LEAST_SLICE_NS: u64 = 1_000_000;
/// The least cost of a slice, in nanoseconds: a tick of a kernel that has a thousand a second.
pub const LEAST_CHARGE_NS: u64 = 1_000_000;

/// CFQ behind the port contract.
pub type Cfq<P = Native> = Serial<CfqScheduler, P>;

/// A port of [`Cfq`].
pub type CfqPort<P = Native> = SerialPort<CfqScheduler, P>;

/// The knobs of CFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CfqConfig {
    /// The slice of a flow of the [reference weight](ReferenceWeight), in nanoseconds; default
    /// 100 ms.
    pub slice_ns: u64,
    /// The longest time of all slices together, in nanoseconds; default 300 ms.
    pub target_ns: u64,
    /// The most requests of the active flow on the device while others wait; default 8.
    pub quantum: u32,
    /// The longest wait for the active flow's next request, in nanoseconds; 0 is CFQ-NA; default 8
    /// ms.
    pub idle_ns: u64,
}

fairq_core::changeable!(CfqConfig);

impl Default for CfqConfig {
    fn default() -> Self {
        CfqConfig { slice_ns: 100_000_000, target_ns: 300_000_000, quantum: 8, idle_ns: 8_000_000 }
    }
}

impl Configure for CfqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let slice = "the lightest tenant's slice of time; a heavier tenant's is longer by its \
                     weight, up to 4 times this";
        knobs.is(Knob::duration("slice", 1, MAX_KNOB_NS, slice), &mut self.slice_ns);
        let target = "the longest time of all slices together";
        knobs.is(Knob::duration("target", 1, MAX_KNOB_NS, target), &mut self.target_ns);
        let quantum = "the most requests of a tenant on the device in its slice while others wait";
        knobs.is(Knob::requests("quantum", u32::MAX, quantum), &mut self.quantum);
        knobs.is(IDLE, &mut self.idle_ns);
    }
}

impl Scheduler for CfqScheduler {
    const NAME: &'static str = "cfq";
    const LIMITED: &'static str = "nass+cfq";
    const COSTS: bool = false;
    type Config = CfqConfig;

    /// NASS limits a flow's requests on the device.
    fn limited(keeps_room: bool) -> CfqConfig {
        let usual = CfqConfig { quantum: MAX_SLOTS, ..CfqConfig::default() };
        if keeps_room { CfqConfig { idle_ns: 0, ..usual } } else { usual }
    }

    fn build(
        config: &CfqConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        Ok(Box::new(CfqScheduler::new(bounds, config)?))
    }
}

/// CFQ without anticipation.
pub enum CfqNa {}

impl Scheduler for CfqNa {
    const NAME: &'static str = "cfq-na";
    const WITHOUT: &'static [&'static str] = &["idle"];
    const COSTS: bool = false;
    type Config = CfqConfig;

    fn config() -> CfqConfig {
        CfqConfig { idle_ns: 0, ..CfqConfig::default() }
    }

    fn build(
        config: &CfqConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        CfqScheduler::build(config, bounds)
    }
}

/// CFQ behind one lock, and its ports.
pub fn new<P: Platform>(
    config: &SerialConfig,
    cfq: &CfqConfig,
) -> Result<Built<Cfq<P>>, ConfigError> {
    Serial::with_policy(CfqScheduler::new(config, cfq)?, config)
}

/// CFQ as a [`SerialPolicy`].
pub struct CfqScheduler {
    config: CfqConfig,
    reference: ReferenceWeight,
    /// [`LEAST_CHARGE_NS`] of a flow of the reference weight, in units.
    tick_units: u64,
    /// The virtual disk time of the flow that was activated last; it never decreases.
    virtual_time: VTime,
    flows: Box<[FlowState]>,
    /// The flows that have requests staged, except the active one.
    heap: FlowHeap,
    staged: Staged<JobState>,
    active: Option<Slice>,
    division: Division,
    /// The weights of all flows that have requests staged or are active.
    busy_weight: u64,
    turns: u64,
    lift: Lift,
}

#[derive(Clone, Copy)]
struct Slice {
    flow: usize,
    began_ns: u64,
    ends_ns: u64,
    /// Time that others pay for, in [`PARTS`] of a nanosecond.
    others: u64,
}

/// Parts that a nanosecond on the device is divided into.
const PARTS: u64 = 256;

/// Divides the time of the device between the requests on it, while some of them are not the active
/// flow's.
#[derive(Clone, Copy, Default)]
struct Division {
    /// Time up to which it has been divided.
    now_ns: u64,
    in_service: u32,
    beside: u32,
    /// Time of a request that has always been on the device, in [`PARTS`] of a nanosecond.
    each: u64,
}

impl Division {
    /// Divides the time up to `now_ns`; gives the part of the requests beside.
    #[inline]
    fn advance(&mut self, now_ns: u64) -> u64 {
        // The time is at most a minute, so that products stay within a word.
        let passed_ns = now_ns.saturating_sub(self.now_ns).min(MAX_KNOB_NS);
        self.now_ns = now_ns;
        if self.beside == 0 || passed_ns == 0 {
            return 0;
        }
        let each = passed_ns * PARTS / u64::from(self.in_service.max(self.beside));
        self.each = self.each.wrapping_add(each);
        each * u64::from(self.beside)
    }
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    /// Virtual disk time, in units: nanoseconds at weight 100.
    used: VTime,
    normalizer: Normalizer,
    weight: Weight,
    anticipation: Anticipation,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    read: bool,
    /// For a request that is on the device beside the active flow's requests: the value of
    /// [`Division::each`] when it was served.
    beside: Option<u64>,
}

impl CfqScheduler {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig, cfq: &CfqConfig) -> Result<Self, ConfigError> {
        config.check()?;
        knobs::check(&mut cfq.clone())?;
        granted(|| {
            Ok(CfqScheduler {
                config: *cfq,
                reference: ReferenceWeight::default(),
                tick_units: ReferenceWeight::default().units(LEAST_CHARGE_NS),
                virtual_time: VTime::ZERO,
                flows: boxed(config.flows, |_| FlowState::default()),
                heap: FlowHeap::new(config.flows),
                staged: Staged::new(config.flows, config.jobs()),
                active: None,
                division: Division::default(),
                busy_weight: 0,
                turns: 0,
                lift: Lift::default(),
            })
        })
    }

    /// An entry behind those of flows that have used as much.
    fn entry(&mut self, flow: usize, tag: VTime) -> Entry {
        self.turns = self.turns.wrapping_add(1);
        Entry { tag, arrival: self.turns, flow: flow as u32 }
    }

    /// The first flow that may be served.
    #[inline]
    fn first(&mut self, lanes: Lanes) -> Option<usize> {
        let first = *self.heap.first(lanes)?;
        let flow = first.flow as usize;
        match self.flows.get(flow)?.used.since(first.tag) <= self.tick_units as i64 {
            true => Some(flow),
            false => self.first_anew(lanes),
        }
    }

    /// Gives a new place to each flow at the front that has paid for more than a tick since it got
    /// its place, and returns the first flow then. Each flow gets at most one new place, since it
    /// has paid for nothing yet there.
    #[cold]
    fn first_anew(&mut self, lanes: Lanes) -> Option<usize> {
        loop {
            let &Entry { tag, flow, .. } = self.heap.first(lanes)?;
            let flow = flow as usize;
            let used = self.flows.get(flow)?.used;
            if used.since(tag) <= self.tick_units as i64 {
                return Some(flow);
            }
            self.heap.remove(flow);
            let entry = self.entry(flow, used);
            self.heap.push(entry);
        }
    }

    /// The next active flow: the first that may be served, or the flow whose slice has just ended,
    /// if this flow comes first and cannot be served now.
    #[inline]
    fn next_active(&mut self, lanes: Lanes, last: Option<usize>) -> Option<Entry> {
        let first = self.first(lanes).and_then(|flow| self.heap.get(flow));
        let held = last
            .filter(|&flow| !self.heap.admits(flow, lanes))
            .and_then(|flow| self.heap.get(flow));
        let next = match (first, held) {
            (Some(first), Some(held)) if held.is_before(&first) => held,
            (first, held) => first.or(held)?,
        };
        self.heap.remove(next.flow as usize)
    }

    /// Gives the device to a flow for a slice.
    #[inline]
    fn activate(&mut self, now_ns: u64, lanes: Lanes, last: Option<usize>) -> Option<Slice> {
        let Entry { flow, tag, .. } = self.next_active(lanes, last)?;
        self.virtual_time = self.virtual_time.max(tag);
        let flow = flow as usize;
        let flow_weight = self.flows.get(flow)?.weight;
        let weight = u64::from(flow_weight.in_256ths());
        let part = self.config.target_ns * weight / self.busy_weight.max(weight).max(1);
        let slice_ns = self.reference.due(self.config.slice_ns, flow_weight);
        let length_ns = slice_ns.min(part).max(LEAST_SLICE_NS);
        let ends_ns = now_ns.saturating_add(length_ns);
        let slice = Slice { flow, began_ns: now_ns, ends_ns, others: 0 };
        self.active = Some(slice);
        Some(slice)
    }

    /// Takes the device from the active flow and charges it.
    #[inline]
    fn expire(&mut self, now_ns: u64, slice: Slice) {
        self.active = None;
        let Some(flow) = self.flows.get_mut(slice.flow) else { return };
        // Time after the slice's end is not charged: no flow wanted the device then, and nothing
        // was decided.
        let used_ns = now_ns.min(slice.ends_ns).saturating_sub(slice.began_ns);
        let charged_ns = used_ns.saturating_sub(slice.others / PARTS).max(LEAST_CHARGE_NS);
        flow.used = flow.used.plus(flow.normalizer.units(charged_ns, flow.weight).max(1));
        if slice.others > 0
            && let Some(first) = self.heap.first(Lanes::All)
        {
            flow.used = flow.used.max(first.tag.minus(self.reference.units(self.config.slice_ns)));
        }
        let (used, weight) = (flow.used, flow.weight);
        if self.staged.is_empty(slice.flow) {
            self.busy_weight = self.busy_weight.saturating_sub(weight.in_256ths().into());
        } else {
            let entry = self.entry(slice.flow, used);
            self.heap.push(entry);
        }
    }

    /// Sends the first request of a flow to the device.
    #[inline]
    fn serve(&mut self, slot: usize) -> Option<Job> {
        let (job, kept) = self.staged.pop(slot)?;
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.anticipation.served(if kept.read { Op::Read } else { Op::Write });
        }
        self.division.in_service = self.division.in_service.wrapping_add(1);
        Some(job)
    }

    // *A flow that may not be served* keeps its slice, and flows that may be served go on *beside*
    // it, in their order. Time on the device is then divided evenly between the requests on it:
    // each request beside pays for its part when it completes, and the active flow for the rest of
    // its slice. Like a slice, a place in the order lasts for at least a tick. If the active flow
    // has used the least even when its slice is over, it gets the next slice, too: a flow that is
    // held back when a slice ends must not lose its turn. But it saves up at most a slice: with
    // more it would have the device to itself as soon as it is no longer held back, for example
    // because all clients paused for a moment and the device ran empty.
    /// While the active flow may not be served, serves the first flow that may.
    #[inline]
    fn serve_beside(&mut self, lanes: Lanes) -> Selection {
        let Some(slot) = self.first(lanes) else { return Selection::Nothing };
        let Some(job) = self.serve(slot) else { return Selection::Nothing };
        self.division.beside = self.division.beside.wrapping_add(1);
        if let Some(kept) = self.staged.kept_mut(job) {
            kept.beside = Some(self.division.each);
        }
        if self.staged.is_empty(slot) {
            self.heap.remove(slot);
            let weight = self.flows.get(slot).map_or(0, |flow| flow.weight.in_256ths());
            self.busy_weight = self.busy_weight.saturating_sub(weight.into());
        }
        Selection::Serve(job, slot)
    }

    /// Divides the device's time up to `now_ns`.
    #[inline]
    fn divide(&mut self, now_ns: u64) {
        let others = self.division.advance(now_ns);
        if let Some(slice) = self.active.as_mut().filter(|_| others > 0) {
            slice.others = slice.others.saturating_add(others);
        }
    }

    /// The selection that the active flow's slice allows; `None` if it is over.
    #[inline]
    fn within(&mut self, now_ns: u64, slice: Slice, lanes: Lanes) -> Option<Selection> {
        let others_wait = !self.heap.is_empty();
        if now_ns >= slice.ends_ns && (others_wait || !self.staged.is_empty(slice.flow)) {
            return None;
        }
        let is_held = !self.heap.admits(slice.flow, lanes);
        if is_held && !self.staged.is_empty(slice.flow) {
            return Some(self.serve_beside(lanes));
        }
        let anticipation =
            self.flows.get(slice.flow).map(|flow| flow.anticipation).unwrap_or_default();
        if !self.staged.is_empty(slice.flow) {
            if others_wait && anticipation.in_service() >= self.config.quantum {
                return Some(Selection::Nothing);
            }
            return Some(
                self.serve(slice.flow)
                    .map_or(Selection::Nothing, |job| Selection::Serve(job, slice.flow)),
            );
        }
        if !others_wait {
            return Some(Selection::Nothing);
        }
        let until_ns = anticipation.until(now_ns, self.config.idle_ns)?;
        Some(Selection::WaitUntil(until_ns.min(slice.ends_ns)))
    }
}

impl SerialPolicy for CfqScheduler {
    fn add_flow(&mut self, slot: usize, weight: Weight) {
        if let Some(slice) = self.active.filter(|slice| slice.flow == slot) {
            // The slot's last flow no longer has anything staged.
            self.expire(slice.ends_ns, slice);
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            *flow = FlowState { used: self.virtual_time, weight, ..FlowState::default() };
        }
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.reference = reference;
        self.tick_units = reference.units(LEAST_CHARGE_NS);
    }

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let slot = arrival.flow;
        let alone = self.staged.is_empty(slot);
        let is_active = self.active.is_some_and(|slice| slice.flow == slot);
        let kept = JobState { read: arrival.op == Op::Read, beside: None };
        self.staged.push(slot, arrival.job, kept);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.anticipation.arrived(now_ns, alone, self.config.idle_ns);
        let counted = if alone && !is_active { 0 } else { flow.weight.in_256ths() };
        flow.weight = arrival.weight;
        self.busy_weight = (self.busy_weight + u64::from(arrival.weight.in_256ths()))
            .saturating_sub(counted.into());
        if alone && !is_active {
            flow.used = flow.used.max(self.virtual_time);
            let used = flow.used;
            let entry = self.entry(slot, used);
            self.heap.push(entry);
        }
    }

    /// Growth is not charged: the flow pays for time.
    #[inline]
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}

    /// Nothing was charged: a flow is charged for its slices.
    fn cancel(&mut self, job: Job, slot: usize) {
        self.staged.remove(slot, job);
        let is_active = self.active.is_some_and(|slice| slice.flow == slot);
        if self.staged.is_empty(slot) && !is_active && self.heap.remove(slot).is_some() {
            let weight = self.flows.get(slot).map_or(0, |flow| flow.weight.in_256ths());
            self.busy_weight = self.busy_weight.saturating_sub(weight.into());
        }
    }

    #[inline]
    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.heap.set_lane(flow, lane);
    }

    #[inline]
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        self.divide(now_ns);
        let mut last = None;
        // The loop calls `within` in one place, for the active slice and for a new one, so that the
        // compiler lets `within` write its result where the caller reads it, without a copy.
        while let Some(slice) = self.active.or_else(|| self.activate(now_ns, lanes, last)) {
            if let Some(selection) = self.within(now_ns, slice, lanes) {
                return selection;
            }
            self.expire(now_ns, slice);
            if last.replace(slice.flow).is_some() {
                break;
            }
        }
        Selection::Nothing
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, _outcome: Outcome) {
        self.divide(now_ns);
        let Some(kept) = self.staged.kept(job) else { return };
        let Some(flow) = self.flows.get_mut(flow) else { return };
        flow.anticipation.completed(now_ns);
        let Division { in_service, beside, each, .. } = &mut self.division;
        *in_service = in_service.saturating_sub(1);
        if let Some(before) = kept.beside {
            *beside = beside.saturating_sub(1);
            let took_ns = each.wrapping_sub(before) / PARTS;
            flow.used = flow.used.plus(flow.normalizer.units(took_ns, flow.weight));
        }
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.lift.tick(now_ns, &mut self.flows, |slot, flow| {
            // A flow with staged requests is not moved up to virtual time, because it is still due
            // the service by which it is behind.
            if self.staged.is_empty(slot) {
                flow.used = flow.used.max(self.virtual_time);
            }
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
    use proptest::prelude::*;

    const LATENCY_NS: u64 = 100_000;

    fn cfq(knobs: CfqConfig) -> CfqScheduler {
        CfqScheduler::new(&config(8), &knobs).unwrap()
    }

    fn tenant(weight: u16, depth: u32) -> Loop {
        Loop { weight, length: 4096, depth }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        /// Flows get time in proportion to their weights, for any costs of their requests.
        #[test]
        fn slices_are_proportional_to_weights(weights in prop::collection::vec(20u16..500, 2..5), idle in any::<bool>()) {
            let idle_ns = if idle { 8_000_000 } else { 0 };
            let mut policy = cfq(CfqConfig { idle_ns, ..CfqConfig::default() });
            let loops: std::vec::Vec<Loop> = weights.iter().map(|&weight| tenant(weight, 32)).collect();
            let served = run(&mut policy, &loops, 8, 20_000_000_000, |_| LATENCY_NS);
            let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            for (count, weight) in counts(&served, loops.len()).into_iter().zip(weights) {
                let share = count as f64 / served.len() as f64;
                let entitled = f64::from(weight) / total;
                prop_assert!((share - entitled).abs() < 0.02, "{share} of {entitled}");
            }
        }
    }

    #[test]
    fn a_slice_is_one_flows_and_lasts_100_ms() {
        let served =
            run(&mut cfq(CfqConfig::default()), &[tenant(100, 32); 2], 8, 1_000_000_000, |_| {
                LATENCY_NS
            });
        let slices = served.chunk_by(|a, b| a == b).map(<[usize]>::len);
        // The device serves 8 requests at a time, each in a 10,000th of a second.
        let slices: std::vec::Vec<usize> = slices.collect();
        assert!(slices[..9].iter().all(|&slice| (7_990..=8_016).contains(&slice)), "{slices:?}");
    }

    /// A flow that waits for its answers keeps half of the time if the device waits for it, and
    /// next to nothing if not.
    #[test]
    fn idling_is_for_those_who_wait_for_answers() {
        let share = |idle_ns| {
            let mut policy = cfq(CfqConfig { idle_ns, ..CfqConfig::default() });
            let served =
                run(&mut policy, &[tenant(100, 1), tenant(100, 32)], 8, 4_000_000_000, |_| {
                    LATENCY_NS
                });
            // A flow of depth 1 sends an eighth of the requests that the device can serve in a
            // slice.
            counts(&served, 2)[0] as f64 / (4e9 / LATENCY_NS as f64)
        };
        let (cfq, na) = (share(8_000_000), share(0));
        assert!((0.4..0.6).contains(&cfq) && na < 0.05, "{cfq} with idling, {na} without");
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let refused = |knobs: CfqConfig| {
            CfqScheduler::new(&config(8), &knobs).err().map(|error| std::format!("{error}"))
        };
        assert_eq!(refused(CfqConfig::default()), None);
        let why = refused(CfqConfig { quantum: 0, ..CfqConfig::default() });
        assert_eq!(why.as_deref(), Some("quantum is 0, but it must be 1 to 4294967295"));
        assert!(refused(CfqConfig { slice_ns: 0, ..CfqConfig::default() }).is_some());
        assert!(refused(CfqConfig { idle_ns: u64::MAX, ..CfqConfig::default() }).is_some());
    }
}
