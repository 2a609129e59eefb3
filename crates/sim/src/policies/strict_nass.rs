//! NASS to the letter of its paper's Algorithm 1, for the laboratory alone: the authors' claims are
//! about this algorithm.
//!
//! **Differences from `nass`.** fairq's own NASS does not lower a limit below the value at which
//! the flow occupies an average number of channels; it lets limits recover, resets them from time
//! to time, takes weights into account, and, while it waits for a flow, limits only the other flows
//! (decision 14). Algorithm 1 does none of this. Section and line numbers are the paper's (Sections
//! III.B and III.C).
//!
//! **Model.** Each workload has a limit on its requests on the drive (MDN), and all workloads
//! together have one, too.
//! - *Lines 1 to 6.* A workload is new if no request of it is staged, on the drive, or among the
//!   last α arrivals. When it arrives, all limits become `NCQdef / W(n)`, rounded down; `W(n)` is
//!   the number of workloads that are not new, including this one.
//! - *Lines 7 to 13.* While a workload is sequential, each of its arrivals raises its limit by one
//!   if the last change of its aggressiveness was a fall, and otherwise lowers the limit by one.
//! - *Lines 16 to 22.* When a request enters the drive and its workload has no other request
//!   staged, the limit of all workloads together becomes β if the workload is among the last α
//!   arrivals, else NCQdef. The limit stays until the next such request enters the drive.
//! - *Lines 23 to 29.* When a request enters or is completed, its workload's limit is halved,
//!   rounded down, if all workloads together need more than η channels, more than one workload has
//!   requests on the drive, and this workload needs more channels than the average.
//!
//! **Choices for points that the paper leaves open**: the average is that of all workloads (Table
//! III), including workloads without requests on the drive. Sequentiality decays each millisecond,
//! as in fairq's own NASS (Eq. 6 has no unit). A limit is at least 1: no rule would raise a limit
//! of 0 of a workload without merging, which would never be served again. A limit has no upper
//! bound. Weights have no effect.
//!
//! **Example.** Two workloads: limits of 16. The first has sixteen requests of 4 KiB on the drive,
//! which need 16 channels; the second sends one of 128 KiB, which needs 17. Together they need 33
//! channels, more than 10, and 17 is above the average of 16.5. So the second's limit becomes 8,
//! and with its next requests 4 and 2.

use std::collections::VecDeque;

use fairq_classic::nass::{DECAY_UNIT_NS, NassConfig};
use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy};
use fairq_core::{Op, Outcome, ReferenceWeight, Weight};

/// Sequentiality 1 in fixed point.
const ONE: i64 = 1 << 16;

/// A request of a workload.
#[derive(Clone, Copy, Debug)]
struct Sent {
    op: Op,
    length: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Workload {
    /// MDN.
    limit: u32,
    staged: u32,
    on_drive: u32,
    /// The number of its own arrivals among the last α.
    remembered: usize,
    /// Aggre, and its value before the last change: Haggre.
    channels: u64,
    channels_before: u64,
    /// S in fixed point, at `decayed_ms`.
    sequentiality: i64,
    decayed_ms: u64,
    lane: Lane,
}

impl Workload {
    fn is_there(&self) -> bool {
        self.staged > 0 || self.on_drive > 0 || self.remembered > 0
    }

    /// Eq. 7: updates S at an arrival, which merges or does not.
    fn perceive(&mut self, now_ns: u64, merges: bool, decay: u32) {
        let now_ms = now_ns / DECAY_UNIT_NS;
        // 64 divisions by 2 or more leave 0, so a longer absence makes no difference.
        for _ in self.decayed_ms..now_ms.min(self.decayed_ms + 64) {
            self.sequentiality /= i64::from(decay);
        }
        self.decayed_ms = now_ms;
        self.sequentiality += if merges { ONE } else { -ONE };
    }
}

/// Algorithm 1 around another scheduler.
pub(super) struct StrictNass {
    inner: Box<dyn SerialPolicy>,
    config: NassConfig,
    workloads: Vec<Workload>,
    /// Requests by job.
    requests: Vec<Option<Sent>>,
    /// The workloads of the last α arrivals, the oldest first.
    history: VecDeque<usize>,
    /// MDN(total).
    total: u32,
}

impl StrictNass {
    pub(super) fn new(
        inner: Box<dyn SerialPolicy>,
        bounds: &SerialConfig,
        config: NassConfig,
    ) -> StrictNass {
        StrictNass {
            inner,
            config: config.with(|config| config.sequentiality &= bounds.merge_bytes > 0),
            workloads: vec![Workload::default(); bounds.flows],
            requests: Vec::new(),
            history: VecDeque::new(),
            total: config.queue_length,
        }
    }

    /// Eq. 4.
    fn channels(&self, job: Job) -> u64 {
        let Some(Some(Sent { op, length })) = self.requests.get(job.0 as usize) else { return 0 };
        let part = u64::from(self.config.sub_request_bytes);
        match op {
            Op::Read | Op::Write | Op::WriteZeroes if *length > part => length / part + 1,
            _ => 1,
        }
    }

    /// W(n).
    fn present(&self) -> u32 {
        self.workloads.iter().filter(|workload| workload.is_there()).count() as u32
    }

    /// Lines 1 to 14.
    fn arrived(&mut self, now_ns: u64, flow: usize, merges: bool) {
        let is_new = !self.workloads[flow].is_there();
        self.remember(flow);
        if !merges {
            self.workloads[flow].staged += 1;
        }
        if is_new {
            // After `remember`: W(n) counts this workload, too.
            let part = (self.config.queue_length / self.present()).max(1);
            self.workloads[flow].channels = 0;
            for number in 0..self.workloads.len() {
                self.workloads[number].limit = part;
                self.settle(number);
            }
        }
        let NassConfig { sequentiality, decay, .. } = self.config;
        let workload = &mut self.workloads[flow];
        workload.perceive(now_ns, merges, decay);
        if sequentiality && workload.sequentiality > 0 {
            workload.limit = match workload.channels_before <= workload.channels {
                true => (workload.limit - 1).max(1),
                false => workload.limit + 1,
            };
            self.settle(flow);
        }
    }

    fn remember(&mut self, flow: usize) {
        self.history.push_back(flow);
        self.workloads[flow].remembered += 1;
        if self.history.len() > self.config.history as usize {
            let oldest = self.history.pop_front().expect("it has more than none");
            self.workloads[oldest].remembered -= 1;
        }
    }

    /// Lines 16 to 22, then lines 23 to 30.
    fn entered(&mut self, job: Job, flow: usize) {
        let workload = &mut self.workloads[flow];
        workload.staged -= 1;
        workload.on_drive += 1;
        if workload.staged == 0 && self.config.idleness {
            let is_expected = workload.remembered > 0;
            self.total = if is_expected { self.config.reserve } else { self.config.queue_length };
        }
        let channels = self.workloads[flow].channels + self.channels(job);
        self.evaluate(flow, channels);
    }

    /// Lines 23 to 30: the workload needs this many channels now.
    fn evaluate(&mut self, flow: usize, channels: u64) {
        let workload = &mut self.workloads[flow];
        workload.channels_before = std::mem::replace(&mut workload.channels, channels);
        let all: u64 = self.workloads.iter().map(|workload| workload.channels).sum();
        let on_drive = self.workloads.iter().filter(|workload| workload.on_drive > 0).count();
        let is_above = channels * u64::from(self.present()) > all;
        let is_short = all > u64::from(self.config.channels) && on_drive > 1;
        if self.config.aggressiveness && is_short && is_above {
            let limit = &mut self.workloads[flow].limit;
            *limit = (*limit / 2).max(1);
        }
        self.settle(flow);
    }

    /// Sets the workload's lane, which decides whether it may send.
    fn settle(&mut self, flow: usize) {
        let workload = &mut self.workloads[flow];
        let lane = match workload.on_drive < workload.limit {
            true => Lane::Common,
            false => Lane::Shut,
        };
        if workload.is_there() && lane != workload.lane {
            workload.lane = lane;
            self.inner.set_lane(flow, lane);
        }
    }
}

impl SerialPolicy for StrictNass {
    /// Resets the slot's state except the lane, which the scheduler inside still has.
    fn add_flow(&mut self, flow: usize, weight: Weight) {
        self.inner.add_flow(flow, weight);
        let lane = self.workloads[flow].lane;
        self.workloads[flow] = Workload { lane, ..Workload::default() };
        self.history.retain(|&other| other != flow);
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        self.inner.set_weight(flow, weight);
    }

    fn remove_flow(&mut self, flow: usize) {
        self.inner.remove_flow(flow);
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.inner.set_reference(reference);
    }

    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let Arrival { job, flow, op, length, .. } = *arrival;
        let index = job.0 as usize;
        if self.requests.len() <= index {
            self.requests.resize(index + 1, None);
        }
        self.requests[index] = Some(Sent { op, length: length.into() });
        self.arrived(now_ns, flow, false);
        self.inner.insert(now_ns, arrival);
    }

    fn grow(&mut self, now_ns: u64, arrival: &Arrival) {
        if let Some(Some(request)) = self.requests.get_mut(arrival.job.0 as usize) {
            request.length += u64::from(arrival.length);
        }
        self.arrived(now_ns, arrival.flow, true);
        self.inner.grow(now_ns, arrival);
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        self.inner.cancel(job, flow);
        self.workloads[flow].staged -= 1;
    }

    /// Does nothing: this scheduler sets the lanes itself, and is the outermost.
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        let on_drive: u32 = self.workloads.iter().map(|workload| workload.on_drive).sum();
        if on_drive >= self.total {
            return Selection::Nothing;
        }
        let selection = self.inner.select(now_ns, lanes);
        if let Selection::Serve(job, flow) = selection {
            self.entered(job, flow);
        }
        selection
    }

    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        self.inner.completed(now_ns, job, flow, outcome);
        self.workloads[flow].on_drive -= 1;
        let channels = self.workloads[flow].channels - self.channels(job);
        self.evaluate(flow, channels);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.inner.tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        self.inner.virtual_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_classic::fiops::{FiopsConfig, FiopsScheduler};

    struct Bench {
        nass: StrictNass,
        now_ns: u64,
        next: u32,
        on_drive: Vec<Vec<Job>>,
    }

    impl Bench {
        fn new(config: NassConfig) -> Bench {
            let mut bounds = SerialConfig::new(1, 3, 512);
            bounds.merge_bytes = 1 << 19;
            let fiops = FiopsScheduler::new(&bounds, &FiopsConfig::default());
            let mut nass = StrictNass::new(Box::new(fiops), &bounds, config);
            (0..3).for_each(|flow| nass.add_flow(flow, Weight::DEFAULT));
            Bench { nass, now_ns: 1_000_000, next: 0, on_drive: vec![Vec::new(); 3] }
        }

        fn arrival(&self, job: u32, flow: usize, length: u32) -> Arrival {
            Arrival {
                job: Job(job),
                flow,
                weight: Weight::DEFAULT,
                op: Op::Read,
                offset: 0,
                length,
                cost: length.into(),
            }
        }

        fn stage(&mut self, flow: usize, count: u32, length: u32) {
            for _ in 0..count {
                let arrival = self.arrival(self.next, flow, length);
                self.nass.insert(self.now_ns, &arrival);
                self.next += 1;
            }
        }

        /// Dispatches all requests that may go; returns the number of each flow's on the drive.
        fn send(&mut self) -> [usize; 3] {
            while let Selection::Serve(job, flow) = self.nass.select(self.now_ns, Lanes::All) {
                self.on_drive[flow].push(job);
            }
            [0, 1, 2].map(|flow| self.on_drive[flow].len())
        }

        fn comes_back(&mut self, flow: usize, count: usize) {
            for _ in 0..count {
                let job = self.on_drive[flow].remove(0);
                self.nass.completed(self.now_ns, job, flow, Outcome::Done);
            }
        }

        fn limits(&self) -> [u32; 3] {
            [0, 1, 2].map(|flow| self.nass.workloads[flow].limit)
        }
    }

    fn only(aggressiveness: bool, sequentiality: bool, idleness: bool) -> NassConfig {
        NassConfig::default().with(|config| {
            (config.aggressiveness, config.idleness) = (aggressiveness, idleness);
            config.sequentiality = sequentiality;
        })
    }

    #[test]
    fn a_new_workload_divides_the_queue_evenly() {
        let mut bench = Bench::new(only(false, false, false));
        bench.stage(0, 40, 4096);
        assert_eq!((bench.limits()[0], bench.send()[0]), (32, 32));
        bench.stage(1, 40, 4096);
        assert_eq!(bench.limits(), [16, 16, 16]);
        bench.stage(2, 40, 4096);
        assert_eq!(bench.limits(), [10, 10, 10], "32 / 3, rounded down");
        bench.comes_back(0, 32);
        assert_eq!(bench.send(), [8, 10, 10]);
    }

    /// The paper's example: sixteen requests of 4 KiB need 16 channels.
    #[test]
    fn channels_are_those_of_the_paper() {
        let mut bench = Bench::new(only(true, false, false));
        bench.stage(0, 16, 4096);
        bench.send();
        assert_eq!(bench.nass.workloads[0].channels, 16);
        bench.stage(1, 1, 128 << 10);
        bench.stage(2, 1, 8192);
        bench.send();
        assert_eq!([1, 2].map(|flow| bench.nass.workloads[flow].channels), [17, 1]);
    }

    #[test]
    fn a_limit_is_halved_with_each_request_and_answer_and_does_not_recover() {
        let mut bench = Bench::new(only(true, false, false));
        bench.stage(1, 4, 4096);
        bench.send();
        bench.stage(0, 40, 128 << 10);
        assert_eq!(bench.limits()[..2], [16, 16]);
        // One request needs 17 channels, beside one that needs 4: the limit of 16 becomes 8, with
        // the second request 4, and with the third 2.
        assert_eq!((bench.send()[0], bench.limits()[0]), (3, 2));
        bench.comes_back(0, 1);
        assert_eq!((bench.send()[0], bench.limits()[0]), (2, 1), "the answer halved it once more");
        bench.comes_back(0, 2);
        assert_eq!((bench.send()[0], bench.limits()[0]), (1, 1));
        bench.comes_back(1, 4);
        bench.comes_back(0, 1);
        assert_eq!((bench.send()[0], bench.limits()[0]), (1, 1), "alone it stays so");
        bench.stage(2, 1, 4096);
        assert_eq!(bench.limits(), [10, 10, 10], "until another comes");
    }

    #[test]
    fn the_total_stays_at_the_reserve_once_one_that_is_remembered_runs_dry() {
        let mut bench = Bench::new(only(false, false, true));
        bench.stage(0, 2, 4096);
        bench.stage(1, 100, 4096);
        assert_eq!(bench.send(), [2, 6, 0], "eight together, its own two among them");
        bench.comes_back(1, 6);
        bench.comes_back(0, 2);
        bench.stage(1, 200, 4096);
        assert_eq!(bench.send(), [0, 8, 0], "however long ago that was");
        // The workload is not among the last 128 arrivals when its last request enters.
        let mut bench = Bench::new(only(false, false, true));
        bench.stage(0, 1, 4096);
        bench.stage(1, 200, 4096);
        assert_eq!(bench.nass.workloads[0].remembered, 0);
        assert_eq!(bench.send(), [1, 16, 0]);
    }

    #[test]
    fn a_sequential_workload_is_lowered_unless_its_aggressiveness_fell() {
        let mut bench = Bench::new(only(false, true, false));
        bench.stage(0, 1, 4096);
        let part = bench.arrival(0, 0, 4096);
        // S is -1 after the first arrival and 0 after the second: not above 0.
        bench.nass.grow(bench.now_ns, &part);
        assert_eq!(bench.limits()[0], 32);
        (0..3).for_each(|_| bench.nass.grow(bench.now_ns, &part));
        assert_eq!(bench.limits()[0], 29);
        bench.send();
        assert_eq!(bench.nass.workloads[0].channels, 3, "20 KiB");
        bench.comes_back(0, 1);
        bench.stage(0, 1, 4096);
        assert_eq!(bench.limits()[0], 30, "still sequential, and it had one back");
        bench.now_ns += 40 * DECAY_UNIT_NS;
        bench.stage(0, 1, 4096);
        assert_eq!((bench.limits()[0], bench.nass.workloads[0].sequentiality), (30, -ONE));
    }
}
