//! What is run: a policy, as it is built for a scenario, and what it promises, which is what it is
//! checked for.

use fairq_core::{ConfigError, Native, Platform, Policy};

use crate::scenario::Scenario;

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
    /// Backlogged flows differ by no more than Theorems 1 and 2 of MQFQ say with this T, in bytes
    /// at the reference weight.
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
    pub const NONE: Promise = Promise {
        slots: None,
        threshold: None,
        steady_time: false,
        shares: false,
        holds_back: false,
        turn: 0,
    };
}
