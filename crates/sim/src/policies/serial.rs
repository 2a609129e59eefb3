//! The schedulers behind one lock, alone or with NASS around them.

use fairq_classic::bfq::{BfqConfig, BfqScheduler};
use fairq_classic::cfq::{CfqConfig, CfqScheduler};
use fairq_classic::fiops::{FiopsConfig, FiopsScheduler};
use fairq_classic::flashfq::{FlashFqConfig, FlashFqScheduler};
use fairq_classic::nass::{Nass, NassConfig};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Selection, Serial, SerialConfig, SerialPolicy,
};
use fairq_core::{ConfigError, Outcome, Platform, ReferenceWeight, Weight};

use super::linux_bfq::{LinuxBfq, LinuxBfqConfig};
use super::linux_cfq::LinuxCfq;
use super::strict_nass::StrictNass;
use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};
use crate::traced;

/// A scheduler behind one lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    /// fairq's CFQ: slices of time.
    Cfq,
    /// CFQ as Linux 3.10 runs it on an SSD with tagged queueing.
    LinuxCfq,
    /// fairq's BFQ: budgets of bytes.
    Bfq,
    /// BFQ as Linux runs it on an SSD with tagged queueing, each flow a process.
    LinuxBfq(LinuxBfqConfig),
    /// FlashFQ: virtual time with a threshold, and anticipation.
    FlashFq,
    /// FIOPS: one request a turn.
    Fiops,
}

/// A scheduler behind one lock; options that are not listed here have their defaults.
#[derive(Clone, Copy, Debug)]
pub struct SerialSubject {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// D; on SATA the length of the device's queue.
    pub slots: u32,
    /// Whether it waits for the next request of a flow whose request has just completed
    /// (anticipation).
    pub waits: bool,
    /// The NASS limits around it, if any.
    pub nass: Option<NassConfig>,
    /// Whether the limits follow the paper to the letter instead of fairq's NASS.
    pub strict_nass: bool,
    /// The most requests of one flow that CFQ has on the device; with NASS its queue length applies
    /// instead.
    pub quantum: u32,
    /// Whether Linux's CFQ treats writes as asynchronous, as from the page cache.
    pub async_writes: bool,
    /// The most bytes that are merged into one command; 0 merges none.
    pub merge_bytes: u32,
    /// FlashFQ's configuration; `idle_ns` applies only if `waits` is set.
    pub flashfq: FlashFqConfig,
}

/// The most bytes that Linux merges into one command on most drives (max_sectors_kb).
const LINUX_MERGES: u32 = 512 << 10;

/// A number of bytes above the service of a flow in one turn of any scheduler, which is at most
/// that of a slice of 100 ms on the fastest device.
const TURN: u64 = 1 << 30;

impl SerialSubject {
    /// A scheduler without limits or merging; with anticipation, if the scheduler has it.
    pub fn new(scheduler: Scheduler, slots: u32) -> SerialSubject {
        SerialSubject {
            scheduler,
            slots,
            waits: true,
            nass: None,
            strict_nass: false,
            quantum: CfqConfig::default().quantum,
            async_writes: false,
            merge_bytes: 0,
            flashfq: FlashFqConfig::default(),
        }
    }

    /// The same scheduler, with adjacent requests merged as in Linux.
    #[must_use]
    pub fn merging(self) -> SerialSubject {
        SerialSubject { merge_bytes: LINUX_MERGES, ..self }
    }

    /// The same scheduler without anticipation.
    #[must_use]
    pub fn without_waiting(self) -> SerialSubject {
        SerialSubject { waits: false, ..self }
    }

    /// The same scheduler within NASS limits. If NASS has `idleness`, it reserves slots for flows
    /// that are about to send, so the scheduler does not wait for them.
    #[must_use]
    pub fn limited(self, nass: NassConfig) -> SerialSubject {
        SerialSubject { waits: self.waits && !nass.idleness, nass: Some(nass), ..self }
    }

    /// The same scheduler within the limits of NASS to the letter of its paper.
    #[must_use]
    pub fn limited_strictly(self, nass: NassConfig) -> SerialSubject {
        SerialSubject { strict_nass: true, ..self.limited(nass) }
    }

    /// The most requests of a flow on the device: NASS's queue length, if there is NASS.
    fn quantum(&self) -> u32 {
        self.nass.map_or(self.quantum, |nass| nass.queue_length)
    }

    fn scheduler(&self, bounds: &SerialConfig) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        let idle = |idle_ns| if self.waits { idle_ns } else { 0 };
        Ok(match self.scheduler {
            Scheduler::Cfq => {
                let usual = CfqConfig::default();
                let cfq = usual.with(|config| {
                    config.idle_ns = idle(usual.idle_ns);
                    config.quantum = self.quantum();
                });
                Box::new(CfqScheduler::new(bounds, &cfq)?)
            }
            Scheduler::LinuxCfq => {
                let quantum = self.quantum();
                Box::new(LinuxCfq::new(bounds, self.waits, quantum, self.async_writes))
            }
            Scheduler::Bfq => {
                let bfq = BfqConfig::default()
                    .with(|config| config.idle_ns = idle(BfqConfig::default().idle_ns));
                Box::new(BfqScheduler::new(bounds, &bfq)?)
            }
            Scheduler::LinuxBfq(config) => Box::new(LinuxBfq::new(bounds, config, self.waits)),
            Scheduler::FlashFq => {
                let usual = self.flashfq;
                let flashfq = usual.with(|config| config.idle_ns = idle(usual.idle_ns));
                Box::new(FlashFqScheduler::new(bounds, &flashfq)?)
            }
            Scheduler::Fiops => Box::new(FiopsScheduler::new(bounds, &FiopsConfig::default())),
        })
    }
}

impl<P: Platform> Subject<P> for SerialSubject {
    type Policy = Serial<Box<dyn SerialPolicy>, P>;

    fn build(
        &self,
        scenario: &Scenario,
    ) -> Result<Built<Serial<Box<dyn SerialPolicy>, P>>, ConfigError> {
        let bounds =
            scenario.serial(self.slots).with(|config| config.merge_bytes = self.merge_bytes);
        let takes = |scheduler: Box<dyn SerialPolicy>, hook_ps| -> Box<dyn SerialPolicy> {
            match &scenario.host {
                None => scheduler,
                Some(host) => {
                    let step_ps = host.times().verb_ps;
                    Box::new(Stepwise { scheduler, step_ps, hook_ps: step_ps.max(hook_ps) })
                }
            }
        };
        let timed = |scheduler| takes(scheduler, 0);
        let hook_ps = match self.scheduler {
            Scheduler::LinuxBfq(config) => {
                scenario.host.as_ref().map_or(0, |host| config.hook_ps(host))
            }
            _ => 0,
        };
        let inner = takes(self.scheduler(&bounds)?, hook_ps);
        let scheduler = match &self.nass {
            None => inner,
            Some(nass) if self.strict_nass => {
                timed(Box::new(StrictNass::new(inner, &bounds, *nass)))
            }
            Some(nass) => timed(Box::new(Nass::new(inner, &bounds, nass)?)),
        };
        Serial::with_policy(scheduler, &bounds)
    }

    /// These schedulers serve one flow at a time, wait, or keep slots free, so they promise no
    /// shares; the lab measures their fairness. With either kind of NASS at most as many requests
    /// are on the device as its queue takes.
    fn promise(&self) -> Promise {
        let queue = self.nass.map_or(self.slots, |nass| nass.queue_length);
        Promise {
            slots: Some(self.slots.min(queue)),
            holds_back: true,
            turn: TURN,
            ..Promise::NONE
        }
    }
}

/// A scheduler whose steps take time. The traced platform does not measure work on plain memory
/// behind a lock, so this type counts the work in steps, each of which is a call of the scheduler
/// or of the NASS around it. For every scheduler a step takes as long as a verb without its shared
/// words; if a scheduler's hooks were measured, the hooks of a request take the measured time.
struct Stepwise {
    scheduler: Box<dyn SerialPolicy>,
    step_ps: u64,
    /// Time of each hook (insertion, dispatch, completion) of a request, in picoseconds.
    hook_ps: u64,
}

impl Stepwise {
    fn step(&mut self) -> &mut dyn SerialPolicy {
        traced::work(self.step_ps);
        &mut *self.scheduler
    }

    fn hook(&mut self) -> &mut dyn SerialPolicy {
        traced::work(self.hook_ps);
        &mut *self.scheduler
    }
}

impl SerialPolicy for Stepwise {
    fn add_flow(&mut self, flow: usize, weight: Weight) {
        self.scheduler.add_flow(flow, weight);
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        self.scheduler.set_weight(flow, weight);
    }

    fn remove_flow(&mut self, flow: usize) {
        self.scheduler.remove_flow(flow);
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.scheduler.set_reference(reference);
    }

    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        self.hook().insert(now_ns, arrival);
    }

    fn grow(&mut self, now_ns: u64, arrival: &Arrival) {
        self.step().grow(now_ns, arrival);
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        self.step().cancel(job, flow);
    }

    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.step().set_lane(flow, lane);
    }

    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        let selection = self.scheduler.select(now_ns, lanes);
        let is_dispatch = matches!(selection, Selection::Serve(..));
        traced::work(if is_dispatch { self.hook_ps } else { self.step_ps });
        selection
    }

    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        self.hook().completed(now_ns, job, flow, outcome);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.scheduler.tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        self.scheduler.virtual_time()
    }
}
