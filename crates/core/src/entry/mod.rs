//! The definition of a policy by its module: its name, its [knobs], its promises, and its
//! constructor. The registry lists all definitions.

pub mod knobs;

use alloc::vec::Vec;

use crate::contract::bounds::ConfigError;
use crate::contract::platform::Platform;
use crate::contract::port::Policy;
use crate::contract::share::Limits;
use crate::structures::topology::Topology;
use knobs::Configure;

/// The dimensions that a policy is built for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shape {
    /// The place of each port.
    pub ports: Topology,
    /// The most flows there can be.
    pub flows: usize,
    /// The number of tags per port: the most live requests.
    pub tags: usize,
    /// Requests that the device works on at a time; default 64. Defaults of knobs that depend on
    /// the device are computed from it.
    pub slots: u32,
}

impl Shape {
    /// A shape of this number of flows, and of tags of each port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Shape {
        Shape { ports, flows, tags, slots: 64 }
    }

    /// The shape for a device that works on this number of requests at a time.
    #[must_use]
    pub fn before(self, slots: u32) -> Shape {
        Shape { slots, ..self }
    }
}

/// The promises of a policy in addition to the [contract](crate::port) of all policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promises {
    /// It schedules by the device's classes, and needs a device that has them.
    pub needs_classes: bool,
    /// At most D requests are outstanding, and exactly D while enough requests wait.
    pub slots: bool,
    /// The service of backlogged flows differs by at most the bound of MQFQ's theorems with its T.
    pub threshold: bool,
    /// Virtual time never goes back.
    pub steady_time: bool,
    /// Over long times backlogged flows are served by weight.
    pub shares: bool,
    /// It may hold requests while the device has free slots.
    pub holds_back: bool,
    /// Bytes that one flow may be served in a turn during which no other flow is served.
    pub turn: u64,
}

impl Promises {
    /// No promises in addition to the contract.
    pub const NONE: Promises = Promises {
        needs_classes: false,
        slots: false,
        threshold: false,
        steady_time: false,
        shares: false,
        holds_back: false,
        turn: 0,
    };
}

/// A policy and its ports.
pub type Built<L> = (L, Vec<<L as Policy>::Port>);

/// Keys and their values; if a key is given twice, the last value counts.
pub type Keys<'a> = &'a [(&'a str, u64)];

/// The value of this key, if it is given.
pub fn said(keys: Keys<'_>, key: &str) -> Option<u64> {
    keys.iter().rev().find(|(said, _)| *said == key).map(|(_, value)| *value)
}

/// A policy as the registry knows it.
pub trait Entry: 'static {
    /// Its name.
    const NAME: &'static str;
    /// Knobs of its configuration that it does not offer.
    const WITHOUT: &'static [&'static str] = &[];
    /// Its promises.
    const PROMISES: Promises;
    /// Its configuration.
    type Config: Configure;
    /// The type of the policy with its stages around it.
    type Policy<P: Platform>: Limits<Port: 'static>;

    /// Its configuration for this shape before any key is set. Only defaults that depend on other
    /// knobs use `keys`.
    fn config(shape: &Shape, keys: Keys<'_>) -> Result<Self::Config, ConfigError>;

    /// Builds the policy, within its stages, and its ports. `has_limits`: flows can have caps and
    /// reservations, and be in groups.
    fn build<P: Platform>(
        config: Self::Config,
        has_limits: bool,
    ) -> Result<Built<Self::Policy<P>>, ConfigError>;
}
