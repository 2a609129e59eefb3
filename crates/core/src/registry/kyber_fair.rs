//! Kyber-fairness in the registry: its knobs and its promises.

use crate::contract::bounds::{ConfigError, MAX_SLOTS};
use crate::contract::platform::Platform;
use crate::contract::share::Limits;
use crate::cost::{CostKind, Costed};
use crate::entry::knobs::{
    AUTO, Configure, Knob, Knobs, LEAST_COST, MERGE, READ_COST, WRITE_COST, slots,
};
use crate::entry::{self, Built, Keys, Promises, Shape};
use crate::policy::kyber_fair::{KyberFair, KyberFairConfig, Totals};
use crate::policy::managed::{Managed, Stages};

/// The most tokens of a period, in bytes.
const MAX_TOKENS: u64 = 1 << 38;

impl Configure for KyberFairConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let period = "the longest time between two rounds of tokens";
        let period = Knob::duration("period", 1, u64::MAX, period).brief("period");
        knobs.is(period, &mut self.period_ns);
        let busy = "the fewest requests on the device with which tenants may be throttled; auto \
                    finds the least that fills it";
        let busy = Knob::requests("busy", MAX_SLOTS, busy).brief("busy");
        knobs.is(busy.or(&[("auto", AUTO as u64)]).live(slots), &mut self.busy);
        let patience = "the part of a period for which fewer requests than busy may be on the \
                        device: 64 is a 64th, 0 none";
        let most = u32::MAX.into();
        knobs.is(Knob::number("patience", 0, most, patience), &mut self.patience);
        let tokens = "the service that all tenants together may get in a period";
        let Totals { first, least, most } = self.tokens;
        let given = (first == least && least == most).then_some(first);
        knobs.by(Knob::bytes("tokens", 1, MAX_TOKENS, tokens), given, |tokens| {
            self.tokens = Totals::fixed(tokens);
        });
        knobs.is(MERGE, &mut self.merge_bytes);
    }
}

/// Kyber-fairness and the cost of requests.
pub struct Config(Costed<KyberFairConfig>);

impl Configure for Config {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let Config(Costed { policy, cost }) = self;
        policy.knobs(knobs);
        knobs.is(READ_COST, &mut cost.model.read_percent);
        // The cost of writes is measured unless it is given.
        let given = (!policy.measured_writes).then_some(cost.model.write_percent.into());
        knobs.by(WRITE_COST, given, |percent| {
            (cost.model.write_percent, policy.measured_writes) = (percent as u32, false);
        });
        knobs.is(LEAST_COST, &mut cost.model.min_bytes);
        cost.kind(knobs);
    }
}

/// Kyber-fairness.
pub enum Entry {}

impl entry::Entry for Entry {
    const NAME: &'static str = "kyber-fair";
    const PROMISES: Promises = Promises { holds_back: true, turn: 1 << 30, ..Promises::NONE };
    type Config = Config;
    type Policy<P: Platform> = Managed<KyberFair<P>, P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Config, ConfigError> {
        let mut config = KyberFairConfig::new(shape.ports.ports(), shape.flows, shape.tags);
        config.busy = AUTO;
        Ok(Config(Costed::new(config)))
    }

    fn build<P: Platform>(
        Config(config): Config,
        has_limits: bool,
    ) -> Result<Built<Self::Policy<P>>, ConfigError> {
        let Costed { policy: mut config, cost } = config;
        // Costs by the device already contain the ratio of writes to reads, so it is not measured
        // twice.
        config.measured_writes &= cost.kind != CostKind::Device;
        let stages = Stages { has_limits, ..Stages::of_busy(cost, &mut config.busy) };
        Managed::new(KyberFair::new(&config)?, config.tags, config.flows, &stages)
    }
}

/// `kyber-fair` by itself keeps no limits.
impl<P: Platform> Limits for KyberFair<P> {}
