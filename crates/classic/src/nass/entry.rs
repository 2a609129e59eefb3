//! Schedulers within the limits of NASS in the registry.

use alloc::boxed::Box;
use core::marker::PhantomData;

use fairq_core::contract::bounds::ConfigError;
use fairq_core::contract::platform::Platform;
use fairq_core::cost::CostConfig;
use fairq_core::entry::knobs::AUTO;
use fairq_core::entry::{Built, Entry, Keys, Promises, Shape, said};
use fairq_core::serial::entry::{Any, Behind, Scheduler, behind, bounds};

use super::{Nass, NassConfig};

/// A scheduler within the limits of NASS.
pub struct Limited<S>(PhantomData<fn() -> S>);

impl<S: Scheduler> Entry for Limited<S> {
    const NAME: &'static str = S::LIMITED;
    const WITHOUT: &'static [&'static str] = S::WITHOUT;
    const PROMISES: Promises =
        Promises { slots: true, holds_back: true, turn: 1 << 30, ..Promises::NONE };
    type Config = Behind<S, NassConfig>;
    type Policy<P: Platform> = Any<P>;

    /// D is the length of the device's queue, because limits are parts of D. A search for D may end
    /// at the demand, on a device that gains a little with each further request; then limits have
    /// no effect.
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

    fn build<P: Platform>(
        config: Self::Config,
        has_limits: bool,
    ) -> Result<Built<Any<P>>, ConfigError> {
        let Behind { bounds, cost, scheduler, around } = config;
        behind(bounds, cost, has_limits, |bounds| {
            let inner = S::build(&scheduler, bounds)?;
            Ok(Box::new(Nass::new(inner, bounds, &around)?))
        })
    }
}
