//! MQFQ: fairq's own, and its paper's, made of the parts that the paper compares.

use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::{ConfigError, Platform};

use super::strict::mqfq::StrictMqfq;
pub use super::strict::mqfq::{MqfqParts, UnthrottleKind, VirtualTimeKind};
pub use super::strict::slots::SlotKind;
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

/// MQFQ with one lock around dispatches.
#[derive(Clone, Copy, Debug)]
pub struct MqfqSerial(pub MqfqSubject);

impl MqfqSubject {
    /// The paper's MQFQ, some of whose parts the caller replaces.
    pub fn parts(self) -> MqfqParts {
        MqfqParts::new(self.slots, self.threshold)
    }

    /// The configuration for a scenario.
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

impl<P: Platform> Subject<P> for MqfqSerial {
    type Policy = Mqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P>>, ConfigError> {
        Mqfq::new(self.0.config(scenario).with(|config| config.serial = true))
    }

    fn promise(&self) -> Promise {
        Subject::<P>::promise(&self.0)
    }
}

impl<P: Platform> Subject<P> for MqfqParts {
    type Policy = StrictMqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<StrictMqfq<P>>, ConfigError> {
        let (flows, tags) = (scenario.flows(), scenario.tags());
        Ok(StrictMqfq::new(*self, &scenario.topology(), flows, tags))
    }

    /// The promise of MQFQ, with three exceptions: without virtual time only slots limit
    /// dispatches; a port that polls leaves slots free until its next poll; and a port that
    /// searches only its own path may wait while other nodes have tokens.
    fn promise(&self) -> Promise {
        let MqfqParts { slots, threshold, virtual_time, slot_kind, unthrottle, .. } = *self;
        let promise = match virtual_time {
            VirtualTimeKind::None => Promise { slots: Some(slots), ..Promise::NONE },
            _ => Subject::<P>::promise(&MqfqSubject { slots, threshold }),
        };
        let polls = matches!(unthrottle, UnthrottleKind::Polling { .. });
        Promise { holds_back: polls || slot_kind == SlotKind::TokenPath, ..promise }
    }
}
