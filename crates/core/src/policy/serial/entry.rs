//! Schedulers behind one lock in the registry: alone, and within the limits of NASS.
//!
//! All run as a `Box<dyn SerialPolicy>`: with a port type for each, callers would compile their
//! whole data path for each; beside the lock, the cost of a call by pointer does not matter.

use alloc::boxed::Box;
use core::marker::PhantomData;

use crate::contract::bounds::ConfigError;
use crate::contract::platform::Platform;
use crate::cost::{CostConfig, CostKind, Costs};
use crate::entry::knobs::{AUTO, Configure, Knobs, MERGE, SLOTS};
use crate::entry::{self, Built, Keys, Promises, Shape, said};
use crate::policy::depth::{AutoDepth, FIRST};
use crate::policy::serial::nass::{Nass, NassConfig};
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
    /// The kind of cost, unless its key says it. The device's time can be measured only with a
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

    /// The same within the limits of NASS, which keeps places for a flow instead of waiting for it
    /// unless `_keeps_room` is false.
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
    bounds: SerialConfig,
    cost: CostConfig,
    scheduler: S::Config,
    around: N,
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

/// A scheduler within the limits of NASS.
pub struct Limited<S>(PhantomData<fn() -> S>);

fn bounds(shape: &Shape) -> SerialConfig {
    SerialConfig {
        ports: shape.ports.ports(),
        flows: shape.flows,
        tags: shape.tags,
        slots: AUTO,
        ..SerialConfig::default()
    }
}

/// Any scheduler, with an automatic D and costs.
type Any<P> = Costs<AutoDepth<Serial<Box<dyn SerialPolicy>, P>, P>, P>;

/// Puts the scheduler that `build` makes behind one lock, and searches for D if none is given.
fn behind<P: Platform>(
    mut bounds: SerialConfig,
    cost: &CostConfig,
    build: impl FnOnce(&SerialConfig) -> Result<Box<dyn SerialPolicy>, ConfigError>,
) -> Result<Built<Any<P>>, ConfigError> {
    let searches = bounds.slots == AUTO;
    // `AUTO` is no number of slots, so the scheduler begins where the search does.
    if searches {
        bounds.slots = FIRST;
    }
    let (policy, ports) = Serial::with_policy(build(&bounds)?, &bounds)?;
    let (policy, ports) = AutoDepth::new(policy, ports, bounds.tags, bounds.flows, searches)?;
    Costs::new(policy, ports, bounds.tags, bounds.flows, cost)
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

    fn build<P: Platform>(config: Self::Config) -> Result<Built<Any<P>>, ConfigError> {
        behind(config.bounds, &config.cost, |bounds| S::build(&config.scheduler, bounds))
    }
}

impl<S: Scheduler> entry::Entry for Limited<S> {
    const NAME: &'static str = S::LIMITED;
    const WITHOUT: &'static [&'static str] = S::WITHOUT;
    const PROMISES: Promises =
        Promises { slots: true, holds_back: true, turn: 1 << 30, ..Promises::NONE };
    type Config = Behind<S, NassConfig>;
    type Policy<P: Platform> = Any<P>;

    /// D is the device's queue, since limits are parts of it. A D that is searched for may become
    /// as large as the demand, on a device that gains a little with each further request; then
    /// limits limit nothing.
    ///
    /// For a device that takes fewer requests than the paper's, limits are parts of the paper's
    /// queue: limits are whole requests, and with few places they would determine the shares (1:0.9
    /// for 1:3, 64 KiB beside 4 KiB on 16 places).
    fn config(shape: &Shape, keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        // The keys are read here, too, since NASS's own defaults are parts of D.
        let slots = said(keys, "slots")
            .filter(|&slots| slots != u64::from(AUTO))
            .unwrap_or(shape.slots.into());
        let least = NassConfig::default().queue_length;
        let window = said(keys, "queue-length").unwrap_or(slots.max(least.into()));
        let nass = NassConfig::of_window(u32::try_from(window).unwrap_or(u32::MAX));
        let keeps_room = said(keys, "idleness") != Some(0);
        let scheduler = S::limited(keeps_room);
        let bounds = bounds(shape).with(|bounds| bounds.slots = shape.slots);
        Ok(Behind { bounds, cost: CostConfig::default(), scheduler, around: nass })
    }

    fn build<P: Platform>(config: Self::Config) -> Result<Built<Any<P>>, ConfigError> {
        let Behind { bounds, cost, scheduler, around } = config;
        behind(bounds, &cost, |bounds| {
            let inner = S::build(&scheduler, bounds)?;
            Ok(Box::new(Nass::new(inner, bounds, &around)?))
        })
    }
}
