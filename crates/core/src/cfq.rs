//! `cfq`: the device to one flow at a time, for slices of time in proportion to weights.
//!
//! **Problem.** A disk that serves two streams in turn seeks all the time. Give it to each stream for a while: then the
//! stream gets the disk as it is alone, and what is shared is the one thing that all streams use alike, time.
//!
//! **Model.** The flow that has the device, the *active* one, is the only one served until its slice is over, or until
//! it has nothing staged. Then what it used of its slice, per weight, is added to its virtual disk time, and
//! the flow with the least becomes active. A slice is `slice_ns x weight / 100`, but less when many are waiting: all
//! slices together are at most `target_ns`, and each at least [`LEAST_SLICE_NS`]. A flow that comes back after a pause
//! starts at the virtual disk time of the flow that was activated last.
//!
//! - *Quantum.* While others wait, the active flow has at most `quantum` requests on the device, so that the next
//!   slice does not begin behind a full queue of the last one's.
//! - *Idling.* When the active flow has nothing staged but is [expected][anticipation] to, its slice goes on and the device
//!   waits, at most `idle_ns` since the last answer. Without it (`idle_ns` = 0, CFQ-NA) a flow that waits for its answers
//!   loses the slice at once. Writes are not waited for.
//! - *Least charge.* A slice that is given up at once costs [`LEAST_CHARGE_NS`], as in a kernel that counts ticks: else a
//!   flow that sends one request at a time would be active before all others for ever.
//! - *A flow that is not eligible* keeps its slice; those that are go on in the meantime, in their order, and pay for
//!   their part of its time: what their bytes took in a slice of their own. The active flow pays for what is left.
//!
//! **What is shared** is time that flows have the device for. It is the same as device time only while one flow's
//! requests do not linger in the next one's slice, which on a device that queues they do.
//!
//! **Left out**: what CFQ does for disks (sorting by sector, seek detection, preemption by neighbouring requests),
//! classes of priority, and the one shared queue for writes that nobody waits for: here every write has a flow.
//!
//! **Knobs.** `slice_ns` (100 ms at weight 100), `target_ns` (300 ms), `quantum` (8 requests), `idle_ns` (8 ms; 0 for
//! CFQ-NA): Linux's defaults. `slots` (D, requests).
//!
//! **Sources.** Linux 3.10, Documentation/block/cfq-iosched.txt and cgroups/blkio-controller.txt; the NASS paper, MSST
//! 2020, Table I. [Anticipation][anticipation] has its own.
//!
//! [anticipation]: crate::serial::anticipation

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::config::{ConfigError, MAX_KNOB_NS, in_range};
use crate::flow::Weight;
use crate::platform::{Native, Platform};
use crate::port::{Op, Outcome};
use crate::serial::anticipation::Anticipation;
use crate::serial::heap::{Entry, FlowHeap};
use crate::serial::staged::Staged;
use crate::serial::{Arrival, Job, Selection, Serial, SerialConfig, SerialPolicy, SerialPort};
use crate::vtime::{LIFT_PERIOD_NS, Normalizer, VTime};

/// No slice is shorter, in nanoseconds.
pub const LEAST_SLICE_NS: u64 = 1_000_000;
/// What a slice costs at least, in nanoseconds: a tick of a kernel that has a thousand a second.
pub const LEAST_CHARGE_NS: u64 = 1_000_000;

/// CFQ behind the port contract.
pub type Cfq<P = Native> = Serial<TimeSlices, P>;

/// A port of [`Cfq`].
pub type CfqPort<P = Native> = SerialPort<TimeSlices, P>;

/// The knobs of CFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CfqConfig {
    /// The slice of a flow of weight 100, in nanoseconds; default 100 ms.
    pub slice_ns: u64,
    /// What all slices together take at most, in nanoseconds; default 300 ms.
    pub target_ns: u64,
    /// How many requests the active flow may have on the device while others wait; default 8.
    pub quantum: u32,
    /// How long to wait for the active flow's next request, in nanoseconds; 0 is CFQ-NA; default 8 ms.
    pub idle_ns: u64,
}

impl Default for CfqConfig {
    fn default() -> Self {
        CfqConfig { slice_ns: 100_000_000, target_ns: 300_000_000, quantum: 8, idle_ns: 8_000_000 }
    }
}

impl CfqConfig {
    fn check(&self) -> Result<(), ConfigError> {
        in_range("the slice", self.slice_ns, 1, MAX_KNOB_NS)?;
        in_range("the target latency", self.target_ns, 1, MAX_KNOB_NS)?;
        in_range("the quantum", self.quantum.into(), 1, u32::MAX.into())?;
        in_range("the time to idle", self.idle_ns, 0, MAX_KNOB_NS)
    }
}

impl<P: Platform> Serial<TimeSlices, P> {
    /// The policy and its ports.
    pub fn new(config: &SerialConfig, cfq: &CfqConfig) -> Result<(Self, Vec<CfqPort<P>>), ConfigError> {
        Serial::with_policy(TimeSlices::new(config, cfq)?, config)
    }
}

/// CFQ as a [`SerialPolicy`].
pub struct TimeSlices {
    config: CfqConfig,
    /// The virtual disk time of the flow that was activated last; never less than before.
    virtual_time: VTime,
    flows: Box<[FlowState]>,
    /// The flows that have requests staged, but for the active one.
    heap: FlowHeap,
    staged: Staged<JobState>,
    active: Option<Slice>,
    /// The weights of all flows that have requests staged or are active.
    busy_weight: u64,
    turns: u64,
    next_lift_ns: u64,
}

#[derive(Clone, Copy)]
struct Slice {
    flow: usize,
    began_ns: u64,
    ends_ns: u64,
    /// Its flow's bytes.
    bytes: u64,
    /// What others have paid for, in nanoseconds.
    paid_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    /// Virtual disk time: nanoseconds at weight 100.
    used: VTime,
    normalizer: Normalizer,
    weight: Weight,
    anticipation: Anticipation,
    /// How long a KiB took in its last slice, in nanoseconds.
    pace: u64,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    flow: u32,
    length: u32,
    read: bool,
}

impl TimeSlices {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig, cfq: &CfqConfig) -> Result<Self, ConfigError> {
        config.check()?;
        cfq.check()?;
        Ok(TimeSlices {
            config: *cfq,
            virtual_time: VTime::ZERO,
            flows: (0..config.flows).map(|_| FlowState::default()).collect(),
            heap: FlowHeap::new(config.flows),
            staged: Staged::new(config.flows, config.jobs()),
            active: None,
            busy_weight: 0,
            turns: 0,
            next_lift_ns: 0,
        })
    }

    /// Behind those that have used as much.
    fn entry(&mut self, flow: usize, tag: VTime) -> Entry {
        self.turns = self.turns.wrapping_add(1);
        Entry { tag, arrival: self.turns, flow: flow as u32 }
    }

    /// Gives the device to the first eligible flow for a slice.
    #[inline]
    fn activate(&mut self, now_ns: u64, eligible: impl Fn(usize) -> bool) -> Option<Slice> {
        let at = self.heap.first(eligible)?;
        let Entry { flow, tag, .. } = self.heap.get(at)?;
        self.heap.replace(at, None);
        self.virtual_time = self.virtual_time.max(tag);
        let flow = flow as usize;
        let weight = u64::from(self.flows.get(flow)?.weight.get());
        let part = self.config.target_ns * weight / self.busy_weight.max(weight).max(1);
        let length_ns = (self.config.slice_ns * weight / 100).min(part).max(LEAST_SLICE_NS);
        let ends_ns = now_ns.saturating_add(length_ns);
        let slice = Slice { flow, began_ns: now_ns, ends_ns, bytes: 0, paid_ns: 0 };
        self.active = Some(slice);
        Some(slice)
    }

    /// Takes the device from the active flow and charges it.
    #[inline]
    fn expire(&mut self, now_ns: u64, slice: Slice) {
        self.active = None;
        let Some(flow) = self.flows.get_mut(slice.flow) else { return };
        // Nothing was decided, and nobody wanted the device, since the slice ended.
        let used_ns = now_ns.min(slice.ends_ns).saturating_sub(slice.began_ns);
        let left_ns = used_ns.saturating_sub(slice.paid_ns);
        if slice.bytes >= 1024 {
            flow.pace = left_ns / (slice.bytes >> 10).max(1);
        }
        let charged_ns = left_ns.max(LEAST_CHARGE_NS);
        flow.used = flow.used.plus(flow.normalizer.units(charged_ns, flow.weight).max(1));
        let (used, weight) = (flow.used, flow.weight);
        if self.staged.is_empty(slice.flow) {
            self.busy_weight = self.busy_weight.saturating_sub(weight.get().into());
        } else {
            let entry = self.entry(slice.flow, used);
            self.heap.push(entry);
        }
    }

    /// The first request of a flow leaves for the device.
    #[inline]
    fn serve(&mut self, slot: usize) -> Option<(Job, u32)> {
        let (job, kept) = self.staged.pop(slot)?;
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.anticipation.served(if kept.read { Op::Read } else { Op::Write });
        }
        Some((job, kept.length))
    }

    /// While the active flow may not be served, the first that may is, and pays for that.
    #[inline]
    fn serve_meanwhile(&mut self, slice: Slice, eligible: impl Fn(usize) -> bool) -> Selection {
        let Some(at) = self.heap.first(eligible) else { return Selection::Nothing };
        let Some(entry) = self.heap.get(at) else { return Selection::Nothing };
        let slot = entry.flow as usize;
        let Some((job, length)) = self.serve(slot) else { return Selection::Nothing };
        let Some(flow) = self.flows.get_mut(slot) else { return Selection::Nothing };
        let took_ns = (flow.pace.saturating_mul(length.into()) >> 10).min(MAX_KNOB_NS);
        flow.used = flow.used.plus(flow.normalizer.units(took_ns, flow.weight));
        self.active = Some(Slice { paid_ns: slice.paid_ns.saturating_add(took_ns), ..slice });
        if self.staged.is_empty(slot) {
            self.heap.replace(at, None);
            self.busy_weight = self.busy_weight.saturating_sub(flow.weight.get().into());
        } else {
            self.heap.replace(at, Some(Entry { tag: flow.used, ..entry }));
        }
        Selection::Serve(job)
    }

    /// What the active flow's slice allows; `None` if it is over.
    #[inline]
    fn within(&mut self, now_ns: u64, slice: Slice, eligible: impl Fn(usize) -> bool) -> Option<Selection> {
        let others_wait = !self.heap.is_empty();
        if now_ns >= slice.ends_ns && (others_wait || !self.staged.is_empty(slice.flow)) {
            return None;
        }
        let anticipation = self.flows.get(slice.flow).map(|flow| flow.anticipation).unwrap_or_default();
        if !self.staged.is_empty(slice.flow) {
            if !eligible(slice.flow) {
                return Some(self.serve_meanwhile(slice, eligible));
            }
            if others_wait && anticipation.in_service() >= self.config.quantum {
                return Some(Selection::Nothing);
            }
            let Some((job, length)) = self.serve(slice.flow) else { return Some(Selection::Nothing) };
            self.active = Some(Slice { bytes: slice.bytes.saturating_add(length.into()), ..slice });
            return Some(Selection::Serve(job));
        }
        if !others_wait {
            return Some(Selection::Nothing);
        }
        let until_ns = anticipation.until(now_ns, self.config.idle_ns)?;
        Some(Selection::WaitUntil(until_ns.min(slice.ends_ns)))
    }
}

impl SerialPolicy for TimeSlices {
    fn add_flow(&mut self, slot: usize, weight: Weight) {
        if let Some(slice) = self.active.filter(|slice| slice.flow == slot) {
            // The slot's last life has nothing staged any more.
            self.expire(slice.ends_ns, slice);
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            *flow = FlowState { used: self.virtual_time, weight, ..FlowState::default() };
        }
    }

    /// Nothing to do: every arrival carries its weight.
    fn set_weight(&mut self, _flow: usize, _weight: Weight) {}

    /// Nothing to do: what is staged keeps its place.
    fn remove_flow(&mut self, _flow: usize) {}

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let slot = arrival.flow;
        let alone = self.staged.is_empty(slot);
        let is_active = self.active.is_some_and(|slice| slice.flow == slot);
        self.staged.push(
            slot,
            arrival.job,
            JobState { flow: slot as u32, length: arrival.length, read: arrival.op == Op::Read },
        );
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.anticipation.arrived(now_ns, alone, self.config.idle_ns);
        let counted = if alone && !is_active { 0 } else { flow.weight.get() };
        flow.weight = arrival.weight;
        self.busy_weight = (self.busy_weight + u64::from(arrival.weight.get())).saturating_sub(counted.into());
        if alone && !is_active {
            flow.used = flow.used.max(self.virtual_time);
            let used = flow.used;
            let entry = self.entry(slot, used);
            self.heap.push(entry);
        }
    }

    #[inline]
    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        if let Some(kept) = self.staged.kept_mut(arrival.job) {
            kept.length = kept.length.saturating_add(arrival.length);
        }
    }

    #[inline]
    fn select(&mut self, now_ns: u64, eligible: &dyn Fn(usize) -> bool) -> Selection {
        if let Some(slice) = self.active {
            if let Some(selection) = self.within(now_ns, slice, eligible) {
                return selection;
            }
            self.expire(now_ns, slice);
        }
        match self.activate(now_ns, eligible) {
            Some(slice) => self.within(now_ns, slice, eligible).unwrap_or(Selection::Nothing),
            None => Selection::Nothing,
        }
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, _outcome: Outcome) {
        let flow = self.staged.kept(job).map_or(usize::MAX, |kept| kept.flow as usize);
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.anticipation.completed(now_ns);
        }
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns >= self.next_lift_ns {
            for (slot, flow) in self.flows.iter_mut().enumerate() {
                // Those that are waiting have a right to be behind.
                if self.staged.is_empty(slot) {
                    flow.used = flow.used.max(self.virtual_time);
                }
            }
            self.next_lift_ns = now_ns.saturating_add(LIFT_PERIOD_NS);
        }
        Some(self.next_lift_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        Some(self.virtual_time.units())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::serial::testing::{Loop, config, counts, run};
    use proptest::prelude::*;

    const LATENCY_NS: u64 = 100_000;

    fn cfq(knobs: CfqConfig) -> TimeSlices {
        TimeSlices::new(&config(8), &knobs).unwrap()
    }

    fn tenant(weight: u16, depth: u32) -> Loop {
        Loop { weight, length: 4096, depth }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever their requests cost, flows get time in proportion to their weights.
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
        let served = run(&mut cfq(CfqConfig::default()), &[tenant(100, 32); 2], 8, 1_000_000_000, |_| LATENCY_NS);
        let slices = served.chunk_by(|a, b| a == b).map(<[usize]>::len);
        // 8 at a time, 10,000 times a second.
        let slices: std::vec::Vec<usize> = slices.collect();
        assert!(slices[..9].iter().all(|&slice| (7_990..=8_016).contains(&slice)), "{slices:?}");
    }

    /// A flow that waits for its answers keeps half of the time when it is waited for, and next to nothing when not.
    #[test]
    fn idling_is_for_those_who_wait_for_answers() {
        let share = |idle_ns| {
            let mut policy = cfq(CfqConfig { idle_ns, ..CfqConfig::default() });
            let served = run(&mut policy, &[tenant(100, 1), tenant(100, 32)], 8, 4_000_000_000, |_| LATENCY_NS);
            // At depth 1 it makes an eighth of a slice.
            counts(&served, 2)[0] as f64 / (4e9 / LATENCY_NS as f64)
        };
        let (cfq, na) = (share(8_000_000), share(0));
        assert!((0.4..0.6).contains(&cfq) && na < 0.05, "{cfq} with idling, {na} without");
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let refused = |knobs: CfqConfig| TimeSlices::new(&config(8), &knobs).err().map(|error| std::format!("{error}"));
        assert_eq!(refused(CfqConfig::default()), None);
        let why = refused(CfqConfig { quantum: 0, ..CfqConfig::default() });
        assert_eq!(why.as_deref(), Some("the quantum is 0, but it must be 1 to 4294967295"));
        assert!(refused(CfqConfig { slice_ns: 0, ..CfqConfig::default() }).is_some());
        assert!(refused(CfqConfig { idle_ns: u64::MAX, ..CfqConfig::default() }).is_some());
    }
}
