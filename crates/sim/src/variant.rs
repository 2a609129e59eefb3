//! Policies built otherwise than by default: the alternatives that the papers compare with.

use fairq_core::ConfigError;
use fairq_core::bfq::{Bfq, BfqConfig};
use fairq_core::d2fq::{D2fq, TrackerKind};
use fairq_core::mqfq::{Mqfq, SlotKind, UnthrottleKind, VirtualTimeKind};
use fairq_core::platform::Platform;

use crate::scenario::Scenario;
use crate::subject::{Built, Direct, Multi, Promise, Subject};

/// MQFQ, made of these parts (Sections 4.2 and 4.3 of its paper).
#[derive(Clone, Copy, Debug)]
pub struct MultiOf {
    /// MQFQ.
    pub multi: Multi,
    /// How virtual time is computed.
    pub virtual_time: VirtualTimeKind,
    /// How slots are kept.
    pub slots: SlotKind,
    /// How throttled ports learn that they may go on.
    pub unthrottle: UnthrottleKind,
    /// Whether one lock is held throughout each verb.
    pub serial: bool,
}

/// D2FQ with another way to global virtual time (Figure 17).
#[derive(Clone, Copy, Debug)]
pub struct DirectBy {
    /// D2FQ.
    pub direct: Direct,
    /// The way.
    pub tracker: TrackerKind,
}

/// BFQ as in Linux, behind one lock.
#[derive(Clone, Copy, Debug)]
pub struct Budgeted {
    /// D: as many as the device works on.
    pub slots: u32,
    /// The largest budget, in bytes.
    pub budget: u64,
    /// Whether it waits for the flow in service, or never for any. Writes are synchronous.
    pub waits: bool,
}

impl Budgeted {
    /// With Linux's budget, and without waiting.
    pub fn new(slots: u32) -> Budgeted {
        Budgeted { slots, budget: BfqConfig::default().budget_bytes, waits: false }
    }

    /// It waits for whomever it serves.
    #[must_use]
    pub fn waiting(self) -> Budgeted {
        Budgeted { waits: true, ..self }
    }
}

impl Multi {
    /// Made of its own parts; replace some.
    pub fn parts(self) -> MultiOf {
        MultiOf {
            multi: self,
            virtual_time: VirtualTimeKind::default(),
            slots: SlotKind::default(),
            unthrottle: UnthrottleKind::default(),
            serial: false,
        }
    }
}

impl<P: Platform> Subject<P> for MultiOf {
    type Policy = Mqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P>>, ConfigError> {
        let mut config = self.multi.config(scenario);
        config.virtual_time = self.virtual_time;
        config.slot_kind = self.slots;
        config.unthrottle = self.unthrottle;
        config.serial = self.serial;
        Mqfq::new(config)
    }

    /// What MQFQ promises, but a port that polls leaves slots free until it looks again.
    fn promise(&self) -> Promise {
        let promise = Subject::<P>::promise(&self.multi);
        match self.unthrottle {
            UnthrottleKind::Wheel => promise,
            UnthrottleKind::Polling { .. } => Promise { holds_back: true, ..promise },
        }
    }
}

impl<P: Platform> Subject<P> for DirectBy {
    type Policy = D2fq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<D2fq<P>>, ConfigError> {
        let mut config = self.direct.config(scenario);
        config.tracker = self.tracker;
        D2fq::new(config)
    }

    fn promise(&self) -> Promise {
        Subject::<P>::promise(&self.direct)
    }
}

/// More than BFQ serves one flow in a turn.
const TURN: u64 = 1 << 30;

impl<P: Platform> Subject<P> for Budgeted {
    type Policy = Bfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Bfq<P>>, ConfigError> {
        let bounds = scenario.serial(self.slots);
        let usual = BfqConfig::default();
        let bfq = BfqConfig {
            budget_bytes: self.budget,
            idle_ns: if self.waits { usual.idle_ns } else { 0 },
            waits_for_equals: true,
            sync_writes: true,
            ..usual
        };
        Bfq::new(&bounds, &bfq)
    }

    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), holds_back: true, turn: TURN, ..Promise::NONE }
    }
}
