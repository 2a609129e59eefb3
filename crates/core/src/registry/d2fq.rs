//! D2FQ in the registry: its knobs and its promises.

use crate::contract::bounds::{ConfigError, MAX_KNOB_NS, MAX_THRESHOLD};
use crate::contract::platform::Platform;
use crate::contract::share::Limits;
use crate::cost::Costed;
use crate::entry::knobs::{Configure, Knob, Knobs};
use crate::entry::{self, Built, Keys, Promises, Shape, said};
use crate::policy::d2fq::ratio::{RATIO_MAX, RATIO_MIN};
use crate::policy::d2fq::{D2fq, D2fqConfig, Ratio};
use crate::policy::managed::{Managed, Stages};

impl Configure for D2fqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let low = "the distance ahead of virtual time from which a tenant uses the low class";
        let low = Knob::at_100("tau-l", 1 << 16, MAX_THRESHOLD, low).brief("tau-l");
        knobs.is(low, &mut self.tau_l);
        let medium = "the distance ahead of virtual time from which a tenant uses the medium \
                      class; at most tau-l";
        knobs.is(Knob::at_100("tau-m", 0, MAX_THRESHOLD, medium), &mut self.tau_m);
        let unfair = "the distance of two tenants at which the H/L ratio is too small; at least \
                      tau-l";
        knobs.is(Knob::at_100("tau-w", 1 << 16, MAX_THRESHOLD, unfair), &mut self.tau_w);
        let grace = "the longest pause of a tenant that does not count as idleness";
        knobs.is(Knob::duration("grace", 0, MAX_KNOB_NS, grace), &mut self.grace_ns);
        let period = "the time between two adjustments of the H/L ratio";
        knobs.is(Knob::duration("period", 1_000_000, MAX_KNOB_NS, period), &mut self.period_ns);
        let (least, most) = (u64::from(RATIO_MIN), u64::from(RATIO_MAX));
        let ratio = Knob::number("hl", least, most, "the H/L ratio")
            .or(&[("dynamic", 0)])
            .after("static-")
            .brief("hl");
        let now = match self.ratio {
            Ratio::Dynamic { .. } => 0,
            Ratio::Static(ratio) => ratio.into(),
        };
        knobs.by(ratio, Some(now), |ratio| match ratio {
            0 => self.ratio = Ratio::default(),
            ratio => self.ratio = Ratio::Static(ratio as u16),
        });
        let initial = Knob::number("initial", least, most, "the first value of a dynamic ratio");
        knobs.by(initial, None, |initial| {
            self.ratio = Ratio::Dynamic { initial: initial as u16 };
        });
        let urgent = Knob::factor("urgent", 1, 50, "the largest urgent part of all bytes");
        knobs.is(urgent.or(&[("none", 0)]), &mut self.urgent_percent);
    }
}

/// D2FQ.
pub enum Entry {}

impl entry::Entry for Entry {
    const NAME: &'static str = "d2fq";
    /// It does not promise shares, because they follow the weights only after the H/L ratio has
    /// been adapted, and while commands wait in the device's queues. It does not promise a steady
    /// virtual time, because a flow behind global virtual time lowers it (Figure 9).
    const PROMISES: Promises = Promises { needs_classes: true, ..Promises::NONE };
    type Config = Costed<D2fqConfig>;
    type Policy<P: Platform> = Managed<D2fq<P>, P>;

    fn config(shape: &Shape, keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        if let (Some(ratio @ 1..), Some(initial)) = (said(keys, "hl"), said(keys, "initial")) {
            return Err(ConfigError::Initial { initial, ratio });
        }
        let config = D2fqConfig::new(shape.ports.clone(), shape.flows, shape.tags);
        Ok(Costed::new(config))
    }

    fn build<P: Platform>(
        config: Self::Config,
        has_limits: bool,
    ) -> Result<Built<Self::Policy<P>>, ConfigError> {
        let stages = Stages { cost: Some(config.cost), depth: None, has_limits };
        let (tags, flows) = (config.policy.tags, config.policy.flows);
        Managed::new(D2fq::new(config.policy)?, tags, flows, &stages)
    }
}

/// `d2fq` by itself keeps no limits.
impl<P: Platform> Limits for D2fq<P> {}
