//! Kyber and Kyber-fairness.

use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig, Totals};
use fairq_core::{ConfigError, Platform};

use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// Kyber, with Linux's depths and targets.
#[derive(Clone, Copy, Debug)]
pub struct KyberSubject;

/// Kyber-fairness.
#[derive(Clone, Copy, Debug)]
pub struct KyberFairSubject {
    /// While fewer requests than this are outstanding, no flow is throttled.
    pub busy: u32,
    /// The limits of the tokens of a period.
    pub totals: Totals,
}

/// A number of bytes above the service of any flow in a period of 100 ms.
const TURN: u64 = 1 << 30;

impl<P: Platform> Subject<P> for KyberSubject {
    type Policy = Kyber<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<Kyber<P>>, ConfigError> {
        Kyber::new(&KyberConfig::new(scenario.ports, scenario.flows(), scenario.tags()))
    }

    fn promise(&self) -> Promise {
        Promise { holds_back: true, turn: TURN, ..Promise::NONE }
    }
}

impl<P: Platform> Subject<P> for KyberFairSubject {
    type Policy = KyberFair<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<KyberFair<P>>, ConfigError> {
        let mut config = KyberFairConfig::new(scenario.ports, scenario.flows(), scenario.tags());
        config.busy = self.busy;
        config.tokens = self.totals;
        KyberFair::new(&config)
    }

    fn promise(&self) -> Promise {
        Promise { holds_back: true, turn: TURN, ..Promise::NONE }
    }
}
