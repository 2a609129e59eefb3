//! `toy`: first come, first served, D at a time; or last come. Weights have no effect.
//!
//! A new policy needs no more than this module and its line in the registry. The feature `toy` adds
//! the policy for the tests that show this.

use alloc::boxed::Box;

use fairq_core::contract::bounds::{ConfigError, boxed};
use fairq_core::contract::flow::Weight;
use fairq_core::entry::Promises;
use fairq_core::entry::knobs::{Configure, Knob, Knobs};
use fairq_core::serial::entry::Scheduler;
use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy};
use fairq_core::structures::queues::{Fifo, Links};

/// The knobs of the toy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ToyConfig {
    /// Whether the last request goes first. Default: no.
    pub newest_first: bool,
}

impl Configure for ToyConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let newest = Knob::switch("newest-first", "whether the last request goes first");
        knobs.is(newest, &mut self.newest_first);
    }
}

/// The toy.
pub struct Toy {
    config: ToyConfig,
    staged: Fifo,
    links: Links,
    /// The flow of each request.
    flows: Box<[usize]>,
}

impl Scheduler for Toy {
    const NAME: &'static str = "toy";
    const COSTS: bool = false;
    const PROMISES: Promises = Promises::NONE;
    type Config = ToyConfig;

    fn build(
        config: &ToyConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        bounds.check()?;
        let flows = boxed(bounds.jobs(), |_| 0);
        let links = Links::new(bounds.jobs());
        Ok(Box::new(Toy { config: *config, staged: Fifo::default(), links, flows }))
    }
}

impl SerialPolicy for Toy {
    fn add_flow(&mut self, _flow: usize, _weight: Weight) {}

    fn insert(&mut self, _now_ns: u64, arrival: &Arrival) {
        let job = arrival.job.0;
        let Some(flow) = self.flows.get_mut(job as usize) else { return };
        *flow = arrival.flow;
        match self.config.newest_first {
            true => self.links.push_front(&mut self.staged, job),
            false => self.links.push(&mut self.staged, job),
        }
    }

    fn grow(&mut self, _now_ns: u64, _arrival: &Arrival) {}

    /// This does nothing, because no limits are put around the toy.
    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    fn select(&mut self, _now_ns: u64, _lanes: Lanes) -> Selection {
        let Some(job) = self.links.pop(&mut self.staged) else { return Selection::Nothing };
        match self.flows.get(job as usize) {
            Some(&flow) => Selection::Serve(Job(job), flow),
            None => Selection::Nothing,
        }
    }

    fn cancel(&mut self, job: Job, _flow: usize) {
        self.links.remove(&mut self.staged, job.0);
    }
}
