//! Policies as scenarios name them, and what each promises, which is what it is checked for.

use fairq_core::d2fq::{D2fq, D2fqConfig, Ratio};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::sfqd::Sfqd;
use fairq_core::{ConfigError, Native, Platform, Policy};

use crate::check;
use crate::meter::Run;
use crate::scenario::{Scenario, ScenarioError};
use crate::traced::Traced;
use crate::variant::{Budgeted, DirectBy, MultiOf};
use crate::world::{run, run_traced};

pub use kyber::{Depths, Tokens};
pub use serial::{OneLock, Scheduler};

mod kyber;
mod serial;

/// A policy and its ports.
pub type Built<P> = (P, Vec<<P as Policy>::Port>);

/// Something that can be run: on the processor's atomics, or on traced ones where CPUs take time.
pub trait Subject<P: Platform = Native> {
    /// The policy.
    type Policy: Policy;

    /// Builds it for a scenario.
    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError>;

    /// What it promises.
    fn promise(&self) -> Promise;
}

/// What a policy promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// At most so many requests are outstanding (D), and as many are while enough wait.
    pub slots: Option<u32>,
    /// Backlogged flows differ by no more than Theorems 1 and 2 of MQFQ say with this T, in units of virtual time.
    pub threshold: Option<u64>,
    /// Virtual time never goes back.
    pub steady_time: bool,
    /// Over long times backlogged flows are served by weight.
    pub shares: bool,
    /// It may keep requests while the device has room for them.
    pub holds_back: bool,
    /// What one flow may be served in a turn during which no other is, in bytes.
    pub turn: u64,
}

impl Promise {
    /// Nothing but what holds for every policy.
    pub const NONE: Promise =
        Promise { slots: None, threshold: None, steady_time: false, shares: false, holds_back: false, turn: 0 };
}

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
    /// One of those that Linux had before multi-queue, and FlashFQ and FIOPS; with NASS, or without.
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

/// Runs a scenario under a policy, on its host if it has one, with every check of what it promises or with none.
fn go<S: Subject + Subject<Traced>>(scenario: &Scenario, subject: &S, is_checked: bool) -> Result<Run, ScenarioError> {
    let promise = Subject::<Native>::promise(subject);
    let checks = if is_checked { check::all(scenario, &promise) } else { Vec::new() };
    if scenario.host.is_some() { run_traced(scenario, subject, checks) } else { run(scenario, subject, checks) }
}

/// First come, first served.
#[derive(Clone, Copy, Debug)]
pub struct FirstCome;

/// SFQ(D).
#[derive(Clone, Copy, Debug)]
pub struct SfqD {
    /// D.
    pub slots: u32,
}

/// MQFQ.
#[derive(Clone, Copy, Debug)]
pub struct Multi {
    /// D.
    pub slots: u32,
    /// T, in units.
    pub threshold: u64,
}

/// D2FQ.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    /// The H/L ratio.
    pub ratio: Ratio,
    /// The threshold of the low class, in units.
    pub tau_l: u64,
    /// The threshold of the medium class, in units: the paper's tau_l / 2 if nothing is said; at tau_l there is no such class.
    pub tau_m: Option<u64>,
    /// Exactly what the paper says, where our default differs.
    pub strict_paper: bool,
}

impl<P: Platform> Subject<P> for FirstCome {
    type Policy = NonePolicy<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<NonePolicy<P>>, ConfigError> {
        NonePolicy::new(scenario.ports, scenario.flows(), scenario.tags())
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

impl<P: Platform> Subject<P> for SfqD {
    type Policy = Sfqd<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Sfqd<P>>, ConfigError> {
        Sfqd::new(&scenario.serial(self.slots))
    }

    /// Not the theorems: it dispatches in one port's `next` what another port issues a wake-up later, so that the
    /// moment of dispatch cannot be seen.
    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), steady_time: true, shares: true, ..Promise::NONE }
    }
}

impl Multi {
    /// The knobs for a scenario.
    pub(crate) fn config(&self, scenario: &Scenario) -> MqfqConfig {
        let mut config = MqfqConfig::new(scenario.topology(), scenario.flows(), scenario.tags());
        config.slots = self.slots;
        config.threshold_bytes = self.threshold;
        config.cost = scenario.cost;
        config
    }
}

impl<P: Platform> Subject<P> for Multi {
    type Policy = Mqfq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Mqfq<P>>, ConfigError> {
        Mqfq::new(self.config(scenario))
    }

    fn promise(&self) -> Promise {
        let (slots, threshold) = (Some(self.slots), Some(self.threshold));
        Promise { slots, threshold, steady_time: true, shares: true, ..Promise::NONE }
    }
}

impl Direct {
    /// The knobs for a scenario.
    pub(crate) fn config(&self, scenario: &Scenario) -> D2fqConfig {
        let mut config = D2fqConfig::new(scenario.topology(), scenario.flows(), scenario.tags());
        config.ratio = self.ratio;
        config.tau_l = Some(self.tau_l);
        config.tau_m = self.tau_m;
        config.strict_paper = self.strict_paper;
        config.cost = scenario.cost;
        config
    }
}

impl<P: Platform> Subject<P> for Direct {
    type Policy = D2fq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<D2fq<P>>, ConfigError> {
        D2fq::new(self.config(scenario))
    }

    /// Shares come only once the ratio has adapted, and where queues are backed up: a matter for the lab. Global virtual
    /// time may go back: whoever is behind it lowers it (Figure 9).
    fn promise(&self) -> Promise {
        Promise::NONE
    }
}
