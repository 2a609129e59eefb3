//! None, the baseline of all papers.

use fairq_core::none::NonePolicy;
use fairq_core::{ConfigError, Platform};

use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// First come, first served.
#[derive(Clone, Copy, Debug)]
pub struct NoneSubject;

impl<P: Platform> Subject<P> for NoneSubject {
    type Policy = NonePolicy<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<NonePolicy<P>>, ConfigError> {
        NonePolicy::new(scenario.ports, scenario.flows(), scenario.tags())
    }

    fn promise(&self) -> Promise {
        Promise::NONE
    }
}
