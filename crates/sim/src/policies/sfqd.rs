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

    /// The theorems are not promised: one port's `next` dispatches requests that another port
    /// issues a wake-up later, so the moment of dispatch is not visible.
    fn promise(&self) -> Promise {
        Promise { slots: Some(self.slots), steady_time: true, shares: true, ..Promise::NONE }
    }
}
