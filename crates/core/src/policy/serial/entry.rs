//! Schedulers behind one lock in the registry.
//!
//! All run as a `Box<dyn SerialPolicy>`: with a port type for each, callers would compile their
//! whole data path for each; beside the lock, the cost of a call by pointer does not matter.

use alloc::boxed::Box;
use core::marker::PhantomData;

use crate::contract::bounds::ConfigError;
use crate::contract::platform::Platform;
use crate::contract::share::Limits;
use crate::cost::{CostConfig, CostKind};
use crate::entry::knobs::{AUTO, Configure, Knobs, MERGE, SLOTS};
use crate::entry::{self, Built, Keys, Promises, Shape};
use crate::policy::managed::{Managed, Stages};
use crate::policy::serial::{Serial, SerialConfig, SerialPolicy};

/// A scheduler as the registry knows it.
pub trait Scheduler: 'static {
    /// Its name.
    const NAME: &'static str;
    /// Its name within the limits of NASS.
    const LIMITED: &'static str = "";
    /// Knobs of its configuration that it does not offer.
    const WITHOUT: &'static [&'static str] = &[];
    /// Whether it charges requests' costs; if not, it does not have the keys of costs.
    const COSTS: bool = true;
    /// The kind of cost, unless the key sets it. The device's time can be measured only with a
    /// scheduler that never holds requests back while the device has room.
    const COST: CostKind = CostKind::Bytes;
    /// Its promises besides D.
    const PROMISES: Promises = Promises { holds_back: true, turn: 1 << 30, ..Promises::NONE };
    /// Its configuration.
    type Config: Configure + Default;

    /// Its configuration before any key is set.
    fn config() -> Self::Config {
        Self::Config::default()
    }

    /// Its configuration within the limits of NASS. With `_keeps_room` NASS keeps slots for a flow
    /// that is about to send, so the scheduler does not wait for that flow.
    fn limited(_keeps_room: bool) -> Self::Config {
        Self::config()
    }

    /// Builds it.
    fn build(
        config: &Self::Config,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError>;
}

/// The configuration of a scheduler and of the policy around it.
pub struct Behind<S: Scheduler, N> {
    /// Its dimensions.
    pub bounds: SerialConfig,
    /// The costs of requests.
    pub cost: CostConfig,
    /// Its own configuration.
    pub scheduler: S::Config,
    /// The configuration of a filter around it.
    pub around: N,
}

impl<S: Scheduler, N: Configure> Configure for Behind<S, N> {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        knobs.is(SLOTS, &mut self.bounds.slots);
        knobs.is(MERGE, &mut self.bounds.merge_bytes);
        self.scheduler.knobs(knobs);
        if S::COSTS {
            self.cost.knobs(knobs);
        }
        self.around.knobs(knobs);
    }
}

/// No knobs.
impl Configure for () {
    fn knobs(&mut self, _knobs: &mut Knobs<'_>) {}
}

/// A scheduler alone.
pub struct Alone<S>(PhantomData<fn() -> S>);

/// The dimensions of a policy of this shape, with an automatic D.
pub fn bounds(shape: &Shape) -> SerialConfig {
    SerialConfig {
        ports: shape.ports.ports(),
        flows: shape.flows,
        tags: shape.tags,
        slots: AUTO,
        ..SerialConfig::default()
    }
}

/// Any scheduler, with an automatic D and costs.
pub type Any<P> = Managed<Serial<Box<dyn SerialPolicy>, P>, P>;

/// Puts the scheduler that `build` makes behind one lock, and searches for D if none is given.
pub fn behind<P: Platform>(
    mut bounds: SerialConfig,
    cost: CostConfig,
    has_limits: bool,
    build: impl FnOnce(&SerialConfig) -> Result<Box<dyn SerialPolicy>, ConfigError>,
) -> Result<Built<Any<P>>, ConfigError> {
    let stages = Stages { has_limits, ..Stages::of_slots(cost, &mut bounds.slots) };
    let built = Serial::with_policy(build(&bounds)?, &bounds)?;
    Managed::new(built, bounds.tags, bounds.flows, &stages)
}

impl<S: Scheduler> entry::Entry for Alone<S> {
    const NAME: &'static str = S::NAME;
    const WITHOUT: &'static [&'static str] = S::WITHOUT;
    const PROMISES: Promises = Promises { slots: true, ..S::PROMISES };
    type Config = Behind<S, ()>;
    type Policy<P: Platform> = Any<P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        let (bounds, cost) = (bounds(shape), CostConfig::of(S::COST));
        Ok(Behind { bounds, cost, scheduler: S::config(), around: () })
    }

    fn build<P: Platform>(
        config: Self::Config,
        has_limits: bool,
    ) -> Result<Built<Any<P>>, ConfigError> {
        let build = |bounds: &SerialConfig| S::build(&config.scheduler, bounds);
        behind(config.bounds, config.cost, has_limits, build)
    }
}

/// A policy behind one lock keeps no limits by itself.
impl<S: SerialPolicy, P: Platform> Limits for Serial<S, P> {}
