//! Orders of service that are not fair.

use std::collections::VecDeque;

use fairq_core::serial::{Arrival, Job, Selection, SerialPolicy};
use fairq_core::{Outcome, Weight};

/// First in, first out.
#[derive(Default)]
pub(crate) struct FirstIn {
    queue: VecDeque<(usize, Job)>,
}

impl SerialPolicy for FirstIn {
    fn add_flow(&mut self, _flow: usize, _weight: Weight) {}
    fn set_weight(&mut self, _flow: usize, _weight: Weight) {}
    fn remove_flow(&mut self, _flow: usize) {}
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        self.queue.push_back((arrival.flow, arrival.job));
    }
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}
    fn select(&mut self, _now_ns: u64, eligible: &dyn Fn(usize) -> bool) -> Selection {
        let at = self.queue.iter().position(|&(flow, _)| eligible(flow));
        at.and_then(|at| self.queue.remove(at)).map_or(Selection::Nothing, |(_, job)| Selection::Serve(job))
    }
    fn completed(&mut self, _now_ns: u64, _job: Job, _outcome: Outcome) {}
    fn tick(&mut self, _now_ns: u64) -> Option<u64> {
        None
    }
    fn virtual_time(&self) -> Option<u64> {
        None
    }
}

/// The largest weight first, and nobody else while it has anything.
#[derive(Default)]
pub(crate) struct ByWeight {
    queue: Vec<(Weight, usize, Job)>,
}

impl SerialPolicy for ByWeight {
    fn add_flow(&mut self, _flow: usize, _weight: Weight) {}
    fn set_weight(&mut self, _flow: usize, _weight: Weight) {}
    fn remove_flow(&mut self, _flow: usize) {}
    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        self.queue.push((arrival.weight, arrival.flow, arrival.job));
    }
    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}
    fn select(&mut self, _now_ns: u64, eligible: &dyn Fn(usize) -> bool) -> Selection {
        let staged = self.queue.iter().enumerate().filter(|(_, (_, flow, _))| eligible(*flow));
        let Some((at, _)) = staged.max_by_key(|(_, (weight, ..))| *weight) else { return Selection::Nothing };
        Selection::Serve(self.queue.swap_remove(at).2)
    }
    fn completed(&mut self, _now_ns: u64, _job: Job, _outcome: Outcome) {}
    fn tick(&mut self, _now_ns: u64) -> Option<u64> {
        None
    }
    fn virtual_time(&self) -> Option<u64> {
        None
    }
}
