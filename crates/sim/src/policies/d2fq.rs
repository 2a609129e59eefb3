//! D2FQ, and D2FQ with the trackers that its paper compares with.

use fairq_core::d2fq::{D2fq, D2fqConfig, Ratio, TrackerKind};
use fairq_core::{ConfigError, Platform};

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
    /// Whether the policy follows the paper exactly where fairq's default differs.
    pub strict_paper: bool,
}

/// D2FQ with another tracker of global virtual time (Figure 17).
#[derive(Clone, Copy, Debug)]
pub struct D2fqParts {
    /// D2FQ.
    pub direct: D2fqSubject,
    /// The tracker.
    pub tracker: TrackerKind,
}

impl D2fqSubject {
    /// The configuration for a scenario.
    pub(crate) fn config(&self, scenario: &Scenario) -> D2fqConfig {
        let mut config = D2fqConfig::new(scenario.topology(), scenario.flows(), scenario.tags());
        config.ratio = self.ratio;
        config.tau_l = Some(self.tau_l);
        config.tau_m = self.tau_m;
        config.strict_paper = self.strict_paper;
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
    type Policy = D2fq<P>;

    fn build(&self, scenario: &Scenario) -> Result<Built<D2fq<P>>, ConfigError> {
        let mut config = self.direct.config(scenario);
        config.tracker = self.tracker;
        D2fq::new(config)
    }

    fn promise(&self) -> Promise {
        Subject::<P>::promise(&self.direct)
    }
}
