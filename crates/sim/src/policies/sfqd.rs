//! SFQ(D).

use fairq_core::sfqd::Sfqd;
use fairq_core::{ConfigError, Platform};

use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// SFQ(D).
#[derive(Clone, Copy, Debug)]
pub struct SfqdSubject {
    /// D.
    pub slots: u32,
}

impl<P: Platform> Subject<P> for SfqdSubject {
    type Policy = Sfqd<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Sfqd<P>>, ConfigError> {
        Sfqd::new(&scenario.serial(self.slots))
    }

    /// The policy does not promise the theorems: one port's `next` dispatches requests that another
    /// port issues only after a wake-up, so the checks do not know the moment of dispatch.
    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), steady_time: true, shares: true, ..Promise::NONE }
    }
}
