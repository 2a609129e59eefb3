//! Policies as scenarios name them, and what each promises, which is what it is checked for.

use fairq_core::d2fq::{D2fq, D2fqConfig, D2fqPort, Ratio};
use fairq_core::mqfq::{Mqfq, MqfqConfig, MqfqPort, Topology};
use fairq_core::none::{NonePolicy, NonePort};
use fairq_core::serial::SerialConfig;
use fairq_core::sfqd::{Sfqd, SfqdPort};
use fairq_core::{ConfigError, Policy};

use crate::check;
use crate::meter::Run;
use crate::scenario::{Scenario, ScenarioError};
use crate::world::run;

/// A policy and its ports.
pub type Built<P> = (P, Vec<<P as Policy>::Port>);

/// Something that can be run.
pub trait Subject {
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
}

impl AnyPolicy {
    /// Runs a scenario under it, with every check of what it promises.
    pub fn run(&self, scenario: &Scenario) -> Result<Run, ScenarioError> {
        fn checked<S: Subject>(scenario: &Scenario, subject: &S) -> Result<Run, ScenarioError> {
            run(scenario, subject, check::all(scenario, &subject.promise()))
        }
        match self {
            AnyPolicy::FirstCome => checked(scenario, &FirstCome),
            AnyPolicy::SfqD(policy) => checked(scenario, policy),
            AnyPolicy::Multi(policy) => checked(scenario, policy),
            AnyPolicy::Direct(policy) => checked(scenario, policy),
        }
    }
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
    /// Whether the medium class is used.
    pub medium: bool,
}

impl Subject for FirstCome {
    type Policy = NonePolicy;

    fn build(&self, scenario: &Scenario) -> Result<(NonePolicy, Vec<NonePort>), ConfigError> {
        NonePolicy::new(scenario.ports, scenario.flows(), scenario.tags())
    }

    fn promise(&self) -> Promise {
        Promise { slots: None, threshold: None, steady_time: false, shares: false }
    }
}

impl Subject for SfqD {
    type Policy = Sfqd;

    fn build(&self, scenario: &Scenario) -> Result<(Sfqd, Vec<SfqdPort>), ConfigError> {
        Sfqd::new(&SerialConfig {
            ports: scenario.ports,
            flows: scenario.flows(),
            tags: scenario.tags(),
            slots: self.slots,
            cost: scenario.cost,
        })
    }

    /// Not the theorems: it dispatches in one port's `next` what another port issues a wake-up later, so that the
    /// moment of dispatch cannot be seen.
    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), threshold: None, steady_time: true, shares: true }
    }
}

impl Subject for Multi {
    type Policy = Mqfq;

    fn build(&self, scenario: &Scenario) -> Result<(Mqfq, Vec<MqfqPort>), ConfigError> {
        let topology = Topology::flat(scenario.ports);
        let mut config = MqfqConfig::new(topology, scenario.flows(), scenario.tags());
        config.slots = self.slots;
        config.threshold_bytes = self.threshold;
        config.cost = scenario.cost;
        Mqfq::new(config)
    }

    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), threshold: Some(self.threshold), steady_time: true, shares: true }
    }
}

impl Subject for Direct {
    type Policy = D2fq;

    fn build(&self, scenario: &Scenario) -> Result<(D2fq, Vec<D2fqPort>), ConfigError> {
        let mut config = D2fqConfig::new(Topology::flat(scenario.ports), scenario.flows(), scenario.tags());
        config.ratio = self.ratio;
        config.tau_l = Some(self.tau_l);
        config.tau_m = (!self.medium).then_some(self.tau_l);
        config.cost = scenario.cost;
        D2fq::new(config)
    }

    /// Shares come only once the ratio has adapted, and where queues are backed up: a matter for the lab. Global virtual
    /// time may go back: whoever is behind it lowers it (Figure 9).
    fn promise(&self) -> Promise {
        Promise { slots: None, threshold: None, steady_time: false, shares: false }
    }
}
