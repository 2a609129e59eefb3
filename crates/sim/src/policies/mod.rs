//! The policies that a scenario may name, each with its promise.

use fairq_core::Native;

use crate::check;
use crate::meter::Run;
use crate::scenario::{Scenario, ScenarioError};
use crate::subject::Subject;
use crate::traced::Traced;
use crate::world::{run, run_traced};

pub use d2fq::{D2fqParts, D2fqSubject, TrackerKind};
pub use first_come::NoneSubject;
pub use kyber::{KyberFairSubject, KyberSubject};
pub use linux_bfq::{Kernel, LinuxBfqConfig};
pub use mqfq::{MqfqParts, MqfqSerial, MqfqSubject, SlotKind, UnthrottleKind, VirtualTimeKind};
pub use serial::{Scheduler, SerialSubject};
pub use sfqd::SfqdSubject;
pub use strict::d2fq::{StrictD2fq, StrictD2fqPort};
pub use strict::mqfq::{StrictMqfq, StrictMqfqPort};

mod d2fq;
mod first_come;
mod kyber;
mod linux_bfq;
mod linux_cfq;
mod mqfq;
mod serial;
mod sfqd;
mod strict;
mod strict_nass;

/// One of the policies, chosen at run time.
#[derive(Clone, Copy, Debug)]
pub enum AnySubject {
    /// First come, first served.
    None,
    /// SFQ(D).
    Sfqd(SfqdSubject),
    /// MQFQ.
    Mqfq(MqfqSubject),
    /// D2FQ.
    D2fq(D2fqSubject),
    /// MQFQ with one lock around dispatches.
    MqfqSerial(MqfqSerial),
    /// MQFQ to the letter of its paper, made of these parts.
    MqfqStrict(MqfqParts),
    /// D2FQ to the letter of its paper, with one of its trackers of virtual time.
    D2fqParts(D2fqParts),
    /// A scheduler behind one lock: CFQ, BFQ, FlashFQ or FIOPS, with or without NASS.
    Serial(SerialSubject),
    /// Kyber.
    Kyber(KyberSubject),
    /// Kyber-fairness.
    KyberFair(KyberFairSubject),
}

impl AnySubject {
    /// Runs a scenario under this policy, with every check of its promise.
    pub fn run(&self, scenario: &Scenario) -> Result<Run, ScenarioError> {
        self.with(scenario, true)
    }

    /// Runs a scenario under this policy without checks, some of which compare every pair of flows.
    pub fn measure(&self, scenario: &Scenario) -> Result<Run, ScenarioError> {
        self.with(scenario, false)
    }

    fn with(&self, scenario: &Scenario, is_checked: bool) -> Result<Run, ScenarioError> {
        match self {
            AnySubject::None => go(scenario, &NoneSubject, is_checked),
            AnySubject::Sfqd(policy) => go(scenario, policy, is_checked),
            AnySubject::Mqfq(policy) => go(scenario, policy, is_checked),
            AnySubject::D2fq(policy) => match policy.strictly() {
                Some(policy) => go(scenario, &policy, is_checked),
                None => go(scenario, policy, is_checked),
            },
            AnySubject::Serial(policy) => go(scenario, policy, is_checked),
            AnySubject::Kyber(policy) => go(scenario, policy, is_checked),
            AnySubject::KyberFair(policy) => go(scenario, policy, is_checked),
            AnySubject::MqfqSerial(policy) => go(scenario, policy, is_checked),
            AnySubject::MqfqStrict(policy) => go(scenario, policy, is_checked),
            AnySubject::D2fqParts(policy) => go(scenario, policy, is_checked),
        }
    }
}

/// Runs a scenario under a policy, on the scenario's host if it has one, with every check of the
/// policy's promise or with none.
fn go<S: Subject + Subject<Traced>>(
    scenario: &Scenario,
    subject: &S,
    is_checked: bool,
) -> Result<Run, ScenarioError> {
    // Checks can only be made for a legal scenario.
    scenario.check()?;
    let promise = Subject::<Native>::promise(subject);
    let checks = if is_checked { check::all(scenario, &promise) } else { Vec::new() };
    if scenario.host.is_some() {
        run_traced(scenario, subject, checks)
    } else {
        run(scenario, subject, checks)
    }
}
