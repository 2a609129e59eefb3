//! The policies that a scenario may name, each with what it promises.

use fairq_core::Native;

use crate::check;
use crate::meter::Run;
use crate::scenario::{Scenario, ScenarioError};
use crate::subject::Subject;
use crate::traced::Traced;
use crate::world::{run, run_traced};

pub use bfq::Budgeted;
pub use d2fq::{Direct, DirectBy};
pub use first_come::FirstCome;
pub use kyber::{Depths, Tokens};
pub use mqfq::{Multi, MultiOf};
pub use serial::{OneLock, Scheduler};
pub use sfqd::SfqD;

mod bfq;
mod d2fq;
mod first_come;
mod kyber;
mod mqfq;
mod serial;
mod sfqd;

/// One of the policies, chosen while running.
#[derive(Clone, Copy, Debug)]
pub enum AnyPolicy {
    /// First come, first served.
    FirstCome,
    /// SFQ(D).
    SfqD(SfqD),
    /// MQFQ.
    Multi(Multi),
    /// D2FQ.
    Direct(Direct),
    /// MQFQ, made of other parts.
    MultiOf(MultiOf),
    /// D2FQ, with another way to virtual time.
    DirectBy(DirectBy),
    /// BFQ.
    Budgeted(Budgeted),
    /// One of those that Linux had before multi-queue, and FlashFQ and FIOPS; with NASS, or
    /// without.
    OneLock(OneLock),
    /// Kyber.
    Depths(Depths),
    /// Kyber-fairness.
    Tokens(Tokens),
}

impl AnyPolicy {
    /// Runs a scenario under it, with every check of what it promises.
    pub fn run(&self, scenario: &Scenario) -> Result<Run, ScenarioError> {
        self.with(scenario, true)
    }

    /// Runs a scenario under it without checks: some of them look at every pair of flows.
    pub fn measure(&self, scenario: &Scenario) -> Result<Run, ScenarioError> {
        self.with(scenario, false)
    }

    fn with(&self, scenario: &Scenario, is_checked: bool) -> Result<Run, ScenarioError> {
        match self {
            AnyPolicy::FirstCome => go(scenario, &FirstCome, is_checked),
            AnyPolicy::SfqD(policy) => go(scenario, policy, is_checked),
            AnyPolicy::Multi(policy) => go(scenario, policy, is_checked),
            AnyPolicy::Direct(policy) => go(scenario, policy, is_checked),
            AnyPolicy::OneLock(policy) => go(scenario, policy, is_checked),
            AnyPolicy::Depths(policy) => go(scenario, policy, is_checked),
            AnyPolicy::Tokens(policy) => go(scenario, policy, is_checked),
            AnyPolicy::MultiOf(policy) => go(scenario, policy, is_checked),
            AnyPolicy::DirectBy(policy) => go(scenario, policy, is_checked),
            AnyPolicy::Budgeted(policy) => go(scenario, policy, is_checked),
        }
    }
}

/// Runs a scenario under a policy, on its host if it has one, with every check of what it promises
/// or with none.
fn go<S: Subject + Subject<Traced>>(
    scenario: &Scenario,
    subject: &S,
    is_checked: bool,
) -> Result<Run, ScenarioError> {
    // Checks are made for a scenario that there can be.
    scenario.check()?;
    let promise = Subject::<Native>::promise(subject);
    let checks = if is_checked { check::all(scenario, &promise) } else { Vec::new() };
    if scenario.host.is_some() {
        run_traced(scenario, subject, checks)
    } else {
        run(scenario, subject, checks)
    }
}
