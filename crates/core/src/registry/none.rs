//! `none` in the registry.

use crate::contract::bounds::ConfigError;
use crate::contract::platform::Platform;
use crate::contract::share::Limits;
use crate::entry::knobs::{Configure, Knobs};
use crate::entry::{self, Built, Keys, Promises, Shape};
use crate::policy::none::NonePolicy;

/// `none`.
pub enum Entry {}

impl entry::Entry for Entry {
    const NAME: &'static str = "none";
    const PROMISES: Promises = Promises::NONE;
    type Config = Shape;
    type Policy<P: Platform> = NonePolicy<P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Shape, ConfigError> {
        Ok(shape.clone())
    }

    fn build<P: Platform>(shape: Shape) -> Result<Built<NonePolicy<P>>, ConfigError> {
        NonePolicy::new(shape.ports.ports(), shape.flows, shape.tags)
    }
}

/// `none` has no knobs.
impl Configure for Shape {
    fn knobs(&mut self, _knobs: &mut Knobs<'_>) {}
}

/// `none` by itself keeps no limits.
impl<P: Platform> Limits for NonePolicy<P> {}
