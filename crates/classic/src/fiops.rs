//! `fiops`: requests in proportion to weights, whatever their size.
//!
//! **Problem.** Seeks and streams mattered on disks, and schedulers gave each flow the disk for a
//! while. An SSD has no seeks: flows may take turns after every request, and a scheduler may simply
//! share the number of requests.
//!
//! **Model.** A flow's virtual I/O count grows by `1 / weight` with each of its requests, when it
//! is dispatched. The flow with the least count is served, one request a turn, and is queued again.
//! A flow that comes back after a pause starts at the count of the flow served last: it has saved
//! nothing up. The device never waits.
//!
//! A request is one I/O: [`IO_UNITS`] units at weight 100, times the factor of its operation. Its
//! cost in bytes does not count.
//!
//! **Fairness.** The bound is that of SFQ(D), with every request of the same length.
//!
//! **Limits.** A flow that sends 128 KiB at a time gets 32 times the bandwidth of one that sends 4
//! KiB; a flow that keeps few requests at the device gets fewer than its share, since its turn
//! passes while it has none.
//!
//! **Knobs.** `slots` (D, requests); the weights; `read_percent` and `write_percent`, 100 by
//! default: if a write takes the device three times as long, 300 evens that out.
//!
//! **Sources.** Li: FIOPS I/O scheduler, messages to the Linux kernel's mailing list, 2012; the
//! NASS paper, MSST 2020, Table I.

use alloc::boxed::Box;

use crate::staged::Staged;
use fairq_core::contract::bounds::{ConfigError, boxed, granted};
use fairq_core::contract::flow::Weight;
use fairq_core::contract::platform::{Native, Platform};
use fairq_core::contract::port::Op;
use fairq_core::contract::vtime::{Normalizer, VTime};
use fairq_core::entry::Built;
use fairq_core::entry::knobs::{Configure, Knobs, LEAST_COST, READ_COST, WRITE_COST};
use fairq_core::serial::entry::Scheduler;
use fairq_core::serial::heap::{Entry, FlowHeap};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Lift, Selection, Serial, SerialConfig, SerialPolicy, SerialPort,
};

/// Units of virtual time of one I/O at weight 100.
pub const IO_UNITS: u64 = 4096;

/// FIOPS behind the port contract.
pub type Fiops<P = Native> = Serial<FiopsScheduler, P>;

/// A port of [`Fiops`].
pub type FiopsPort<P = Native> = SerialPort<FiopsScheduler, P>;

/// The knobs of FIOPS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FiopsConfig {
    /// Cost of a read, in hundredths of an I/O; default 100.
    pub read_percent: u32,
    /// Cost of a write, in hundredths of an I/O; default 100.
    pub write_percent: u32,
}

fairq_core::changeable!(FiopsConfig);

impl Default for FiopsConfig {
    fn default() -> Self {
        FiopsConfig { read_percent: 100, write_percent: 100 }
    }
}

impl Configure for FiopsConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        knobs.is(READ_COST, &mut self.read_percent);
        knobs.is(WRITE_COST, &mut self.write_percent);
        // All requests cost the same: the key is accepted for compatibility and changes nothing.
        let mut least = 512u32;
        knobs.is(LEAST_COST, &mut least);
    }
}

impl Scheduler for FiopsScheduler {
    const NAME: &'static str = "fiops";
    const LIMITED: &'static str = "nass+fiops";
    const COSTS: bool = false;
    type Config = FiopsConfig;

    fn build(
        config: &FiopsConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        Ok(Box::new(FiopsScheduler::new(bounds, config)))
    }
}

/// FIOPS behind one lock, and its ports.
pub fn new<P: Platform>(
    config: &SerialConfig,
    fiops: &FiopsConfig,
) -> Result<Built<Fiops<P>>, ConfigError> {
    config.check()?;
    granted(|| Serial::with_policy(FiopsScheduler::new(config, fiops), config))
}

/// FIOPS as a [`SerialPolicy`].
pub struct FiopsScheduler {
    /// The count of the flow served last; it never decreases.
    virtual_time: VTime,
    flows: Box<[FlowState]>,
    /// The flows that have requests staged.
    heap: FlowHeap,
    staged: Staged<JobState>,
    turns: u64,
    factors: FiopsConfig,
    lift: Lift,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    count: VTime,
    normalizer: Normalizer,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    units: u64,
    weight: Weight,
}

impl FiopsScheduler {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig, fiops: &FiopsConfig) -> Self {
        FiopsScheduler {
            virtual_time: VTime::ZERO,
            flows: boxed(config.flows, |_| FlowState::default()),
            heap: FlowHeap::new(config.flows),
            staged: Staged::new(config.flows, config.jobs()),
            turns: 0,
            factors: *fiops,
            lift: Lift::default(),
        }
    }

    /// An entry behind those of flows with the same count.
    fn entry(&mut self, flow: usize, tag: VTime) -> Entry {
        self.turns = self.turns.wrapping_add(1);
        Entry { tag, arrival: self.turns, flow: flow as u32 }
    }

    fn units(&self, op: Op) -> u64 {
        let percent = match op {
            Op::Read => self.factors.read_percent,
            Op::Write | Op::WriteZeroes => self.factors.write_percent,
            Op::Flush | Op::Discard => 100,
        };
        // With a factor of 0 a flow's count would stand still, and it would be first for ever.
        (u64::from(percent) * IO_UNITS / 100).max(1)
    }
}

impl SerialPolicy for FiopsScheduler {
    fn add_flow(&mut self, flow: usize, _weight: Weight) {
        if let Some(flow) = self.flows.get_mut(flow) {
            *flow = FlowState { count: self.virtual_time, ..FlowState::default() };
        }
    }

    #[inline]
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        let newly_backlogged = self.staged.is_empty(arrival.flow);
        let kept = JobState { units: self.units(arrival.op), weight: arrival.weight };
        self.staged.push(arrival.flow, arrival.job, kept);
        if newly_backlogged && let Some(flow) = self.flows.get_mut(arrival.flow) {
            flow.count = flow.count.max(self.virtual_time);
            let count = flow.count;
            let entry = self.entry(arrival.flow, count);
            self.heap.push(entry);
        }
    }

    /// A request that has grown is still one I/O.
    #[inline]
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}

    /// Nothing was charged: a flow is charged when it is served.
    fn cancel(&mut self, job: Job, slot: usize) {
        self.staged.remove(slot, job);
        if self.staged.is_empty(slot) {
            self.heap.remove(slot);
        }
    }

    #[inline]
    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.heap.set_lane(flow, lane);
    }

    #[inline]
    fn select(&mut self, _now_ns: u64, lanes: Lanes) -> Selection {
        let Some(Entry { flow: slot, tag, .. }) = self.heap.take_first(lanes) else {
            return Selection::Nothing;
        };
        let slot = slot as usize;
        let Some((job, kept)) = self.staged.pop(slot) else { return Selection::Nothing };
        let Some(flow) = self.flows.get_mut(slot) else { return Selection::Nothing };
        // Virtual time is the later of the two, because a flow that was shut out for a while is
        // served behind virtual time.
        self.virtual_time = self.virtual_time.max(tag);
        flow.count = tag.plus(flow.normalizer.units(kept.units, kept.weight));
        let count = flow.count;
        if !self.staged.is_empty(slot) {
            let entry = self.entry(slot, count);
            self.heap.push(entry);
        }
        Selection::Serve(job, slot)
    }

    #[inline]
    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.lift.tick(now_ns, &mut self.flows, |slot, flow| {
            // A flow with staged requests is not moved up to virtual time, because it is still due
            // the service by which it is behind.
            if self.staged.is_empty(slot) {
                flow.count = flow.count.max(self.virtual_time);
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

    #[test]
    fn requests_are_shared_whatever_their_length() {
        let loops = [(100, 512), (200, 1 << 20), (300, 4096)].map(|(weight, length)| Loop {
            weight,
            length,
            depth: 32,
        });
        let served = run(
            &mut FiopsScheduler::new(&config(8), &FiopsConfig::default()),
            &loops,
            8,
            60_000_000,
            |length| 1000 + u64::from(length),
        );
        let counts = counts(&served, 3);
        assert!(counts[0] > 50 && counts[1].abs_diff(2 * counts[0]) <= 8, "{counts:?}");
        assert!(counts[2].abs_diff(3 * counts[0]) <= 8, "{counts:?}");
        // One request a turn: no flow is served more often in a row than its weight says.
        assert!(served[8..].chunk_by(|a, b| a == b).all(|turn| turn.len() <= 3));
    }
}
