//! MQFQ, and MQFQ made of the parts that its paper compares with.

use fairq_core::mqfq::{
    Mqfq, MqfqConfig, OnPath, SlotKind, StrictPaper, UnthrottleKind, Untimed, VirtualTimeKind,
};
use fairq_core::{ConfigError, Platform};

use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// MQFQ.
#[derive(Clone, Copy, Debug)]
pub struct MqfqSubject {
    /// D.
    pub slots: u32,
    /// T, in bytes at the reference weight.
    pub threshold: u64,
}

/// MQFQ, made of these parts (Sections 4.2 and 4.3 of its paper).
#[derive(Clone, Copy, Debug)]
pub struct MqfqParts {
    /// MQFQ.
    pub multi: MqfqSubject,
    /// How virtual time is computed.
    pub virtual_time: VirtualTimeKind,
    /// How slots are kept.
    pub slots: SlotKind,
    /// How throttled ports learn that they may go on.
    pub unthrottle: UnthrottleKind,
    /// Whether one lock is held throughout each verb.
    pub serial: bool,
}

impl MqfqSubject {
    /// Made of its own parts; replace some.
    pub fn parts(self) -> MqfqParts {
        MqfqParts {
            multi: self,
            virtual_time: VirtualTimeKind::default(),
            slots: SlotKind::default(),
            unthrottle: UnthrottleKind::default(),
            serial: false,
        }
    }

    /// The knobs for a scenario.
    pub(crate) fn config(&self, scenario: &Scenario) -> MqfqConfig {
        let mut config = MqfqConfig::new(scenario.topology(), scenario.flows(), scenario.tags());
        config.slots = self.slots;
        config.threshold_bytes = self.threshold;
        config
    }
}

impl<P: Platform> Subject<P> for MqfqSubject {
    type Policy = Mqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P>>, ConfigError> {
        Mqfq::new(self.config(scenario))
    }

    fn promise(&self) -> Promise {
        let (slots, threshold) = (Some(self.slots), Some(self.threshold));
        Promise { slots, threshold, steady_time: true, shares: true, ..Promise::NONE }
    }
}

impl MqfqParts {
    fn config(&self, scenario: &Scenario) -> MqfqConfig {
        let mut config = self.multi.config(scenario);
        config.virtual_time = self.virtual_time;
        config.slot_kind = self.slots;
        config.unthrottle = self.unthrottle;
        config.serial = self.serial;
        config
    }
}

/// MQFQ to the letter of its paper, made of these parts.
#[derive(Clone, Copy, Debug)]
pub struct MqfqStrict(pub MqfqParts);

impl<P: Platform> Subject<P> for MqfqStrict {
    type Policy = Mqfq<P, StrictPaper>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        Mqfq::read(self.0.config(scenario))
    }

    fn promise(&self) -> Promise {
        Subject::<P>::promise(&self.0)
    }
}

/// MQFQ to the letter of its paper without virtual time, which leaves slots alone to decide
/// (Section 4.3.3).
#[derive(Clone, Copy, Debug)]
pub struct MqfqUntimed(pub MqfqParts);

impl<P: Platform> Subject<P> for MqfqUntimed {
    type Policy = Mqfq<P, Untimed>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        Mqfq::read(self.0.config(scenario))
    }

    fn promise(&self) -> Promise {
        Promise { slots: Some(self.0.multi.slots), ..Promise::NONE }
    }
}

/// MQFQ to the letter of its paper, for ports that look for tokens nowhere but on their path
/// through the token tree (Section 3.2).
#[derive(Clone, Copy, Debug)]
pub struct MqfqOnPath(pub MqfqParts);

impl<P: Platform> Subject<P> for MqfqOnPath {
    type Policy = Mqfq<P, OnPath>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError> {
        Mqfq::read(self.0.config(scenario))
    }

    /// A port may wait while tokens lie elsewhere.
    fn promise(&self) -> Promise {
        Promise { holds_back: true, ..Subject::<P>::promise(&self.0) }
    }
}

impl<P: Platform> Subject<P> for MqfqParts {
    type Policy = Mqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P>>, ConfigError> {
        Mqfq::new(self.config(scenario))
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
