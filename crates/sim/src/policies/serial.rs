//! The schedulers behind one lock, and NASS around them.

use fairq_core::bfq::{BfqConfig, BfqScheduler};
use fairq_core::cfq::{CfqConfig, CfqScheduler};
use fairq_core::fiops::{FiopsConfig, FiopsScheduler};
use fairq_core::flashfq::{FlashFqConfig, FlashFqScheduler};
use fairq_core::nass::{Nass, NassConfig};
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

/// Which of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    /// Slices of time.
    Cfq,
    /// CFQ as Linux 3.10 runs it on an SSD with tagged queueing.
    LinuxCfq,
    /// Budgets of bytes.
    Bfq,
    /// BFQ as Linux runs it on an SSD with tagged queueing, each flow a process.
    LinuxBfq(LinuxBfqConfig),
    /// Virtual time with a threshold, and anticipation.
    FlashFq,
    /// A request a turn.
    Fiops,
}

/// A scheduler behind one lock, with the knobs that it has by default but for what is said here.
#[derive(Clone, Copy, Debug)]
pub struct SerialSubject {
    /// Which.
    pub scheduler: Scheduler,
    /// D; over SATA the length of the device's queue.
    pub slots: u32,
    /// Whether it waits for the next request of a flow that has just been answered (anticipation).
    pub waits: bool,
    /// The limits around it, if there are any.
    pub nass: Option<NassConfig>,
    /// Whether these are the paper's to the letter, not fairq's own.
    pub strict_nass: bool,
    /// The most requests that CFQ has of one flow on the device; NASS, if it is there, says that.
    pub quantum: u32,
    /// Whether Linux's CFQ takes writes for asynchronous ones, as from the page cache.
    pub async_writes: bool,
    /// The most bytes that are merged to one command; 0 merges none.
    pub merge_bytes: u32,
    /// FlashFQ's knobs; of `idle_ns` only where it waits.
    pub flashfq: FlashFqConfig,
}

/// What Linux merges to one command on most drives (max_sectors_kb), in bytes.
const LINUX_MERGES: u32 = 512 << 10;

/// More than any of them serves one flow at a time: a slice of 100 ms on the fastest device.
const TURN: u64 = 1 << 30;

impl SerialSubject {
    /// With anticipation, if it has any, and without limits or merging.
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

    /// With adjacent requests merged as Linux does it.
    #[must_use]
    pub fn merging(self) -> SerialSubject {
        SerialSubject { merge_bytes: LINUX_MERGES, ..self }
    }

    /// Without anticipation.
    #[must_use]
    pub fn without_waiting(self) -> SerialSubject {
        SerialSubject { waits: false, ..self }
    }

    /// Within limits. NASS keeps room for flows instead of waiting for them, unless it is told not
    /// to.
    #[must_use]
    pub fn limited(self, nass: NassConfig) -> SerialSubject {
        SerialSubject { waits: self.waits && !nass.idleness, nass: Some(nass), ..self }
    }

    /// Within limits to the letter of NASS's paper.
    #[must_use]
    pub fn limited_strictly(self, nass: NassConfig) -> SerialSubject {
        SerialSubject { strict_nass: true, ..self.limited(nass) }
    }

    /// What a flow may have on the device is for NASS to say, if it is there.
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

    /// They keep the device for one flow, wait, or keep places free; how fair they are is for the
    /// lab to find out. NASS, whosever it is, never has more on the device than its queue takes.
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

/// A scheduler whose steps take time. What is done behind a lock is plain work, which the traced
/// platform does not see; it is counted in steps, calls of the scheduler or of what is around it.
/// Each takes as long as a verb beside its shared words, whosever it is; but of a scheduler whose
/// hooks were measured, those of a request take what was measured.
struct Stepwise {
    scheduler: Box<dyn SerialPolicy>,
    step_ps: u64,
    /// Insertion, dispatch and completion of a request.
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
