//! `sfqd`: start-time fair queueing with depth D, SFQ(D).
//!
//! **Problem.** Share a device that serves several requests at once, in proportion to weights,
//! whatever the requests' sizes, and without idling it.
//!
//! **Model.** Each request gets a start tag, the later of virtual time and its flow's last finish
//! tag, and a finish tag, `start + cost / weight`, which becomes the flow's. Requests are
//! dispatched in the order of start tags, in order of arrival among equals, at most D at a time.
//! Virtual time is the start tag of the request dispatched last; once nothing is staged or in
//! service it is the largest finish tag of all requests served. So a flow that comes back after a
//! pause starts at virtual time: it has saved nothing up, and its debt is at most the cost of its
//! queued requests. D = 1 is SFQ.
//!
//! **Fairness.** Over every interval in which two flows are backlogged, the difference of their
//! service per weight is at most `(D + 1) (lmax_f / w_f + lmax_g / w_g)`.
//!
//! **Example.** Flows a (weight 100) and b (weight 300) queue three requests of 300 bytes each.
//! Tags of a: 0, 300, 600; of b: 0, 100, 200. Dispatched: a0 b0 b100 b200 a300 a600.
//!
//! **Scaling.** None: one lock, one heap. It is the order that multi-queue schedulers approximate.
//!
//! **Knobs.** `slots` (D, requests): more keeps a parallel device busy, fewer makes shares exact
//! over shorter times; 64 by default. The weights.
//!
//! **Papers.** Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996 (D = 1); Jin, Chase, Kaur:
//! Interposed Proportional Sharing for a Storage Service Utility, SIGMETRICS 2004, section 4.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::bounds::{ConfigError, boxed, granted};
use crate::contract::flow::Weight;
use crate::contract::platform::{Native, Platform};
use crate::contract::port::Outcome;
use crate::contract::vtime::{Normalizer, VTime};
use crate::cost::CostKind;
use crate::entry::Promises;
use crate::policy::serial::entry::Scheduler;
use crate::policy::serial::heap::{Entry, FlowHeap};
use crate::policy::serial::{
    Arrival, Job, Lane, Lanes, Lift, Selection, Serial, SerialConfig, SerialPolicy, SerialPort,
};
use crate::structures::queues::{Fifo, Links};

/// SFQ(D) behind the port contract.
pub type Sfqd<P = Native> = Serial<SfqdScheduler, P>;

/// A port of [`Sfqd`].
pub type SfqdPort<P = Native> = SerialPort<SfqdScheduler, P>;

impl Scheduler for SfqdScheduler {
    const NAME: &'static str = "sfqd";
    /// MQFQ on one queue is SFQ(D).
    const LIMITED: &'static str = "nass+mqfq";
    const COST: CostKind = CostKind::Device;
    /// It does not promise MQFQ's theorems, because `next` of one port chooses requests that
    /// another port issues a wake-up later, so the moment of the choice cannot be observed.
    const PROMISES: Promises = Promises { steady_time: true, shares: true, ..Promises::NONE };
    type Config = ();

    fn build(_config: &(), bounds: &SerialConfig) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        Ok(Box::new(SfqdScheduler::new(bounds)))
    }
}

impl<P: Platform> Serial<SfqdScheduler, P> {
    /// The policy and its ports.
    pub fn new(config: &SerialConfig) -> Result<(Self, Vec<SfqdPort<P>>), ConfigError> {
        config.check()?;
        granted(|| Serial::with_policy(SfqdScheduler::new(config), config))
    }
}

/// Start-time fair queueing as a [`SerialPolicy`].
pub struct SfqdScheduler {
    virtual_time: VTime,
    /// The largest finish tag of all requests dispatched; never before virtual time.
    max_finish: VTime,
    flows: Box<[FlowState]>,
    /// The flows that have requests staged, by their first request.
    heap: FlowHeap,
    jobs: Box<[JobState]>,
    links: Links,
    arrivals: u64,
    in_service: u32,
    lift: Lift,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    end: VTime,
    /// Growth, in units, of requests that left the queue after others had been tagged behind them.
    /// It is added to all tags of the queue when they are compared.
    shift: u64,
    normalizer: Normalizer,
    staged: Fifo,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    start: VTime,
    finish: VTime,
    /// Its growth after it was tagged, in units.
    grown: u64,
    arrival: u64,
}

impl SfqdScheduler {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig) -> Self {
        SfqdScheduler {
            virtual_time: VTime::ZERO,
            max_finish: VTime::ZERO,
            flows: boxed(config.flows, |_| FlowState::default()),
            heap: FlowHeap::new(config.flows),
            jobs: boxed(config.jobs(), |_| JobState::default()),
            links: Links::new(config.jobs()),
            arrivals: 0,
            in_service: 0,
            lift: Lift::default(),
        }
    }

    fn entry(&self, flow: u32, first: Option<u32>, shift: u64) -> Option<Entry> {
        let state = self.jobs.get(first? as usize)?;
        Some(Entry { tag: state.start.plus(shift), arrival: state.arrival, flow })
    }
}

impl SerialPolicy for SfqdScheduler {
    fn add_flow(&mut self, flow: usize, _weight: Weight) {
        if let Some(flow) = self.flows.get_mut(flow) {
            *flow = FlowState { end: self.virtual_time, ..FlowState::default() };
        }
    }

    #[inline]
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        let Some(flow) = self.flows.get_mut(arrival.flow) else { return };
        let Some(job) = self.jobs.get_mut(arrival.job.0 as usize) else { return };
        // The flow's tags are kept without `shift`, which is added to all of them when they are
        // compared.
        let start = self.virtual_time.minus(flow.shift).max(flow.end);
        let units = flow.normalizer.units(arrival.cost, arrival.weight);
        let finish = start.plus(start.plus(flow.shift).charge(self.virtual_time, units));
        *job = JobState { start, finish, grown: 0, arrival: self.arrivals };
        flow.end = finish;
        let newly_backlogged = flow.staged.is_empty();
        self.links.push(&mut flow.staged, arrival.job.0);
        if newly_backlogged {
            self.heap.push(Entry {
                tag: start.plus(flow.shift),
                arrival: self.arrivals,
                flow: arrival.flow as u32,
            });
        }
        self.arrivals = self.arrivals.wrapping_add(1);
    }

    #[inline]
    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        let Some(flow) = self.flows.get_mut(arrival.flow) else { return };
        if let Some(job) = self.jobs.get_mut(arrival.job.0 as usize) {
            job.grown =
                job.grown.saturating_add(flow.normalizer.units(arrival.cost, arrival.weight));
        }
    }

    #[inline]
    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.heap.set_lane(flow, lane);
    }

    #[inline]
    fn select(&mut self, _now_ns: u64, lanes: Lanes) -> Selection {
        let Some(Entry { flow: slot, .. }) = self.heap.take_first(lanes) else {
            return Selection::Nothing;
        };
        let Some(flow) = self.flows.get_mut(slot as usize) else { return Selection::Nothing };
        let Some(job) = self.links.pop(&mut flow.staged) else { return Selection::Nothing };
        let following = flow.staged.first();
        if let Some(state) = self.jobs.get(job as usize) {
            // Virtual time is the later of the two, because a flow that was shut out for a while is
            // served behind virtual time.
            self.virtual_time = self.virtual_time.max(state.start.plus(flow.shift));
            if state.grown > 0 {
                let grown = flow.end.plus(flow.shift).charge(self.virtual_time, state.grown);
                flow.shift = flow.shift.saturating_add(grown);
            }
            self.max_finish = self.max_finish.max(state.finish.plus(flow.shift));
        }
        let shift = flow.shift;
        // No tag is left that `shift` is to be added to, so the flow's end takes it over.
        if following.is_none() {
            flow.end = flow.end.plus(core::mem::take(&mut flow.shift));
        }
        if let Some(entry) = self.entry(slot, following, shift) {
            self.heap.push(entry);
        }
        self.in_service = self.in_service.wrapping_add(1);
        Selection::Serve(Job(job), slot as usize)
    }

    /// Later arrivals are tagged as if the request had not been there; requests staged behind it
    /// keep their tags.
    fn cancel(&mut self, job: Job, slot: usize) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let was_first = flow.staged.first() == Some(job.0);
        self.links.remove(&mut flow.staged, job.0);
        if let Some(state) = self.jobs.get(job.0 as usize) {
            flow.end = flow.end.minus(state.finish.since(state.start).unsigned_abs());
        }
        let (following, shift) = (flow.staged.first(), flow.shift);
        if following.is_none() {
            flow.end = flow.end.plus(core::mem::take(&mut flow.shift));
        }
        if was_first {
            self.heap.remove(slot);
            if let Some(entry) = self.entry(slot as u32, following, shift) {
                self.heap.push(entry);
            }
        }
    }

    #[inline]
    fn completed(&mut self, _now_ns: u64, _job: Job, _flow: usize, _outcome: Outcome) {
        self.in_service = self.in_service.saturating_sub(1);
        // A flow that comes back to an idle device starts no earlier than the end of all requests
        // served.
        if self.in_service == 0 && self.heap.is_empty() {
            self.virtual_time = self.max_finish;
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
    use crate::contract::flow::FlowId;
    use crate::contract::port::{Cost, Next, Op, Policy, Port, Request, Submitted, Tag};
    use crate::contract::port_set::PortSet;

    fn submit(port: &mut SfqdPort, tag: u32, flow: FlowId, length: u32) {
        let cost = Cost::bytes(length.into());
        let request = Request { cost, ..Request::new(Tag(tag), flow, Op::Read, 0, length) };
        assert_eq!(port.submit(0, &request, &mut PortSet::default()), Ok(Submitted::Staged));
    }

    fn next(port: &mut SfqdPort) -> Option<u32> {
        match port.next(0, &mut PortSet::default()) {
            Next::Issue { tag, .. } => Some(tag.0),
            _ => None,
        }
    }

    /// A request costs its length here, even if that is below the usual minimum.
    fn config(slots: u32) -> SerialConfig {
        SerialConfig { flows: 2, tags: 8, slots, ..Default::default() }
    }

    #[test]
    fn the_example_of_the_header() {
        let (policy, mut ports) = Sfqd::<Native>::new(&config(6)).unwrap();
        let [a, b] =
            [100, 300].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let port = &mut ports[0];
        (0..3).for_each(|tag| submit(port, tag, a, 300));
        (3..6).for_each(|tag| submit(port, tag, b, 300));
        assert_eq!(
            [(); 7].map(|()| next(port)),
            [Some(0), Some(3), Some(4), Some(5), Some(1), Some(2), None]
        );
    }

    #[test]
    fn virtual_time_is_the_last_start_tag_and_when_idle_the_largest_finish_tag() {
        let (policy, mut ports) = Sfqd::<Native>::new(&config(1)).unwrap();
        let [a, b] =
            [100, 200].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let port = &mut ports[0];
        submit(port, 0, a, 1000);
        submit(port, 1, b, 1000);
        submit(port, 2, b, 1000);
        let time = || policy.stats().virtual_time.unwrap();
        let mut times = std::vec::Vec::new();
        while let Some(tag) = next(port) {
            times.push(time());
            port.complete(0, Tag(tag), Outcome::Done, &mut PortSet::default());
        }
        assert_eq!((times, time()), (std::vec![0, 0, 500], 1000));
    }

    #[test]
    fn a_flow_that_may_not_be_served_keeps_its_place() {
        let mut policy = SfqdScheduler::new(&config(1));
        policy.add_flow(0, Weight::DEFAULT);
        policy.add_flow(1, Weight::DEFAULT);
        for (job, flow) in [(0, 0), (1, 1), (2, 1)] {
            let job = Job(job);
            let arrival = Arrival {
                job,
                flow,
                weight: Weight::DEFAULT,
                op: Op::Read,
                offset: 0,
                length: 100,
                cost: 100,
            };
            policy.insert(0, &arrival);
        }
        assert_eq!(policy.select(0, Lanes::Reserved), Selection::Nothing);
        policy.set_lane(0, Lane::Shut);
        assert_eq!(policy.select(0, Lanes::All), Selection::Serve(Job(1), 1));
        policy.set_lane(1, Lane::Reserved);
        assert_eq!(policy.select(0, Lanes::Reserved), Selection::Serve(Job(2), 1));
        assert_eq!(policy.select(0, Lanes::All), Selection::Nothing);
        assert_eq!(policy.virtual_time(), Some(100));
        policy.set_lane(0, Lane::Common);
        assert_eq!(policy.select(0, Lanes::Reserved), Selection::Nothing);
        assert_eq!(policy.select(0, Lanes::All), Selection::Serve(Job(0), 0));
        assert_eq!(policy.virtual_time(), Some(100), "it does not go back");
        assert_eq!(policy.select(0, Lanes::All), Selection::Nothing);
    }
}
