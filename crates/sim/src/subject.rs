//! Subjects of a run: a policy, its construction for a scenario, and its promise, which the checks
//! verify.

use fairq_core::{ConfigError, Limits, Native, Platform, Policy};

use crate::scenario::Scenario;

/// A policy and its ports.
pub type Built<P> = (P, Vec<<P as Policy>::Port>);

/// A subject of runs. Its policy uses the processor's atomics, or traced ones if CPUs take time.
pub trait Subject<P: Platform = Native> {
    /// The policy.
    type Policy: Limits;

    /// Builds the policy and its ports for a scenario.
    fn build(&self, scenario: &Scenario) -> Result<Built<Self::Policy>, ConfigError>;

    /// The promise of the policy.
    fn promise(&self) -> Promise;
}

/// The laws that a policy promises to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    /// D: at most this many requests are outstanding, and exactly this many while enough wait.
    pub slots: Option<u32>,
    /// Services of backlogged flows differ at most by the bounds of Theorems 1 and 2 of MQFQ with
    /// this T (in bytes at the reference weight).
    pub threshold: Option<u64>,
    /// Virtual time never goes back.
    pub steady_time: bool,
    /// Over long times backlogged flows are served by weight.
    pub shares: bool,
    /// The policy may keep requests while the device has room for them.
    pub holds_back: bool,
    /// The most service of one flow in a turn during which no other flow is served, in bytes.
    pub turn: u64,
}

impl Promise {
    /// Only the laws that hold for every policy.
    pub const NONE: Promise = Promise {
        slots: None,
        threshold: None,
        steady_time: false,
        shares: false,
        holds_back: false,
        turn: 0,
    };
}
