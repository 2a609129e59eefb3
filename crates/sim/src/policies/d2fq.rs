//! D2FQ: fairq's own, and its paper's.

use fairq_core::d2fq::{D2fq, D2fqConfig, Ratio};
use fairq_core::{ConfigError, Platform};

use super::strict::d2fq::StrictD2fq;
pub use super::strict::d2fq::TrackerKind;
use crate::scenario::Scenario;
use crate::subject::{Built, Promise, Subject};

/// D2FQ.
#[derive(Clone, Copy, Debug)]
pub struct D2fqSubject {
    /// The H/L ratio.
    pub ratio: Ratio,
    /// The threshold of the low class, in units.
    pub tau_l: u64,
    /// The threshold of the medium class, in units: by default the paper's tau_l / 2; at tau_l
    /// there is no medium class.
    pub tau_m: Option<u64>,
    /// Whether the policy is the paper's, to the letter, instead of fairq's own.
    pub strict_paper: bool,
}

/// D2FQ to the letter of its paper, with one of the trackers of global virtual time that the paper
/// compares (Figure 17).
#[derive(Clone, Copy, Debug)]
pub struct D2fqParts {
    /// The ratio and the thresholds.
    pub direct: D2fqSubject,
    /// The tracker.
    pub tracker: TrackerKind,
}

impl D2fqSubject {
    /// The paper's policy, if this is it.
    pub(super) fn strictly(self) -> Option<D2fqParts> {
        let parts = D2fqParts { direct: self, tracker: TrackerKind::Sloppy };
        self.strict_paper.then_some(parts)
    }

    /// The configuration for a scenario.
    fn config(&self, scenario: &Scenario) -> D2fqConfig {
        let mut config = D2fqConfig::new(scenario.topology(), scenario.flows(), scenario.tags());
        config.ratio = self.ratio;
        config.tau_l = Some(self.tau_l);
        config.tau_m = self.tau_m;
        config
    }
}

impl<P: Platform> Subject<P> for D2fqSubject {
    type Policy = D2fq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<D2fq<P>>, ConfigError> {
        D2fq::new(self.config(scenario))
    }

    /// Shares hold only after the ratio has adapted, and where queues are backlogged, so the lab
    /// checks them. Global virtual time may go back: a flow that is behind it lowers it (Figure 9).
    fn promise(&self) -> Promise {
        Promise::NONE
    }
}

impl<P: Platform> Subject<P> for D2fqParts {
    type Policy = StrictD2fq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<StrictD2fq<P>>, ConfigError> {
        Ok(StrictD2fq::new(&self.direct.config(scenario), self.tracker))
    }

    fn promise(&self) -> Promise {
        Subject::<P>::promise(&self.direct)
    }
}
