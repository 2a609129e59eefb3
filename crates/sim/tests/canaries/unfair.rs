//! Orders of service that are not fair.

use std::collections::VecDeque;

use fairq_core::Weight;
use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialPolicy};

/// First in, first out.
#[derive(Default)]
pub(crate) struct FirstIn {
    /// Jobs with their flows.
    queue: VecDeque<(Job, usize)>,
}

impl SerialPolicy for FirstIn {
    fn add_flow(&mut self, _flow: usize, _weight: Weight) {}
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        self.queue.push_back((arrival.job, arrival.flow));
    }
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}
    fn cancel(&mut self, job: Job, _flow: usize) {
        self.queue.retain(|queued| queued.0 != job);
    }
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    fn select(&mut self, _now_ns: u64, _lanes: Lanes) -> Selection {
        self.queue.pop_front().map_or(Selection::Nothing, |(job, flow)| Selection::Serve(job, flow))
    }
}

/// The flow with the largest weight first, and no other while it has requests.
#[derive(Default)]
pub(crate) struct ByWeight {
    /// Jobs with their flows.
    queue: Vec<(Weight, Job, usize)>,
}

impl SerialPolicy for ByWeight {
    fn add_flow(&mut self, _flow: usize, _weight: Weight) {}
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        self.queue.push((arrival.weight, arrival.job, arrival.flow));
    }
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}
    fn cancel(&mut self, job: Job, _flow: usize) {
        self.queue.retain(|queued| queued.1 != job);
    }
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    fn select(&mut self, _now_ns: u64, _lanes: Lanes) -> Selection {
        let heaviest = self.queue.iter().enumerate().max_by_key(|(_, (weight, ..))| *weight);
        let Some((at, _)) = heaviest else { return Selection::Nothing };
        let (_, job, flow) = self.queue.swap_remove(at);
        Selection::Serve(job, flow)
    }
}
