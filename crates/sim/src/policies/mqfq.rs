//! MQFQ, and MQFQ made of the parts that its paper compares with.

use std::marker::PhantomData;

use fairq_core::mqfq::{Mqfq, MqfqConfig, Reading, SlotKind, UnthrottleKind, VirtualTimeKind};
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

/// MQFQ made of these parts (Sections 4.2 and 4.3 of its paper).
#[derive(Clone, Copy, Debug)]
pub struct MqfqParts {
    /// MQFQ.
    pub multi: MqfqSubject,
    /// The computation of virtual time.
    pub virtual_time: VirtualTimeKind,
    /// The structure that holds free slots.
    pub slots: SlotKind,
    /// The wake-up of throttled ports.
    pub unthrottle: UnthrottleKind,
    /// Whether one lock is held throughout each verb.
    pub serial: bool,
}

impl MqfqSubject {
    /// The parts of fairq's MQFQ, some of which the caller replaces.
    pub fn parts(self) -> MqfqParts {
        MqfqParts {
            multi: self,
            virtual_time: VirtualTimeKind::default(),
            slots: SlotKind::default(),
            unthrottle: UnthrottleKind::default(),
            serial: false,
        }
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

/// MQFQ made of these parts, by a reading of its paper: fairq's own, to the letter, without virtual
/// time (Section 4.3.3), or with ports that search for tokens only on their own path through the
/// token tree (Section 3.2).
pub(super) struct MqfqRead<R> {
    parts: MqfqParts,
    reading: PhantomData<R>,
}

impl<R: Reading> MqfqRead<R> {
    pub(super) fn of(parts: &MqfqParts) -> MqfqRead<R> {
        MqfqRead { parts: *parts, reading: PhantomData }
    }
}

impl<P: Platform, R: Reading> Subject<P> for MqfqRead<R> {
    type Policy = Mqfq<P, R>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P, R>>, ConfigError> {
        Mqfq::read(self.parts.config(scenario))
    }

    /// The promise of MQFQ, with exceptions: without virtual time only slots decide; a port that
    /// polls leaves slots free until its next poll; and a port that searches only its own path may
    /// wait while tokens are elsewhere.
    fn promise(&self) -> Promise {
        let promise = match R::IS_TIMED {
            true => Subject::<P>::promise(&self.parts.multi),
            false => Promise { slots: Some(self.parts.multi.slots), ..Promise::NONE },
        };
        let polls = matches!(self.parts.unthrottle, UnthrottleKind::Polling { .. });
        Promise { holds_back: polls || !R::LOOKS_ELSEWHERE, ..promise }
    }
}
