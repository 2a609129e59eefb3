//! What a policy's module tells of it: its name, its [knobs], what it promises, and how it is
//! built. The registry lists those that there are.

pub(crate) mod knobs;

use alloc::vec::Vec;

use crate::contract::bounds::ConfigError;
use crate::contract::platform::Platform;
use crate::contract::port::Policy;
use crate::structures::topology::Topology;
use knobs::Configure;

/// What a policy is built for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Shape {
    /// Where each port runs.
    pub ports: Topology,
    /// The most flows there can be.
    pub flows: usize,
    /// The bound of tags per port: its live requests.
    pub tags: usize,
    /// How many requests the device works on at a time; default 64. Knobs that follow the device
    /// (D, what keeps it busy) are found from it.
    pub slots: u32,
}

impl Shape {
    /// For this number of flows, and of tags of each port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Shape {
        Shape { ports, flows, tags, slots: 64 }
    }

    /// Before a device that works on this number of requests at a time.
    #[must_use]
    pub fn before(self, slots: u32) -> Shape {
        Shape { slots, ..self }
    }
}

/// What a policy promises beside what the [contract](crate::port) says of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promises {
    /// It schedules by the device's classes, and needs a device that has them.
    pub needs_classes: bool,
    /// At most D requests are outstanding, and as many are while enough wait.
    pub slots: bool,
    /// Backlogged flows differ by no more than MQFQ's theorems say with its T.
    pub threshold: bool,
    /// Virtual time never goes back.
    pub steady_time: bool,
    /// Over long times backlogged flows are served by weight.
    pub shares: bool,
    /// It may keep requests while the device has room for them.
    pub holds_back: bool,
    /// What one flow may be served in a turn during which no other is, in bytes.
    pub turn: u64,
}

impl Promises {
    /// Nothing but what holds for every policy.
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

/// Keys and their values; the last one counts.
pub type Keys<'a> = &'a [(&'a str, u64)];

/// What is said of this key.
pub(crate) fn said(keys: Keys<'_>, key: &str) -> Option<u64> {
    keys.iter().rev().find(|(said, _)| *said == key).map(|(_, value)| *value)
}

/// A policy as the registry knows it.
pub trait Entry: 'static {
    /// Its name.
    const NAME: &'static str;
    /// Knobs of its configuration that it does not offer.
    const WITHOUT: &'static [&'static str] = &[];
    /// What it promises.
    const PROMISES: Promises;
    /// What it is built from.
    type Config: Configure;
    /// What is built.
    type Policy<P: Platform>: Policy<Port: 'static>;

    /// Its configuration for this shape before any key is set. Keys are given for those knobs whose
    /// defaults depend on others.
    fn config(shape: &Shape, keys: Keys<'_>) -> Result<Self::Config, ConfigError>;

    /// Builds it.
    fn build<P: Platform>(config: Self::Config) -> Result<Built<Self::Policy<P>>, ConfigError>;
}
