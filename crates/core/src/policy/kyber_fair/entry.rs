//! Kyber-fairness in the registry: its knobs, and what it promises.

use super::{KyberFair, KyberFairConfig, Totals};
use crate::contract::bounds::{ConfigError, MAX_SLOTS};
use crate::contract::platform::Platform;
use crate::cost::{CostKind, Costed, Costs};
use crate::entry::knobs::{Configure, Knob, Knobs, LEAST_COST, MERGE, READ_COST, WRITE_COST};
use crate::entry::{self, Built, Keys, Promises, Shape};

/// The most tokens of a period, in bytes.
const MAX_TOKENS: u64 = 1 << 38;

impl Configure for KyberFairConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let period = "the longest time between two rounds of tokens";
        let period = Knob::duration("period", 1, u64::MAX, period).brief("period");
        knobs.is(period, &mut self.period_ns);
        let busy = "so many requests on the device that tenants may be throttled";
        knobs.is(Knob::requests("busy", MAX_SLOTS, busy).brief("busy"), &mut self.busy);
        let patience = "the device may have less than busy for one part in so many of a period; \
                        0: never";
        let most = u32::MAX.into();
        knobs.is(Knob::number("patience", 0, most, patience), &mut self.patience);
        let tokens = "what all tenants together may have served in a period";
        let Totals { first, least, most } = self.tokens;
        let given = (first == least && least == most).then_some(first);
        knobs.by(Knob::bytes("tokens", 1, MAX_TOKENS, tokens), given, |tokens| {
            self.tokens = Totals::fixed(tokens);
        });
        knobs.is(MERGE, &mut self.merge_bytes);
    }
}

/// Kyber-fairness, and what requests cost.
pub struct Config(Costed<KyberFairConfig>);

impl Configure for Config {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let Config(Costed { policy, cost }) = self;
        policy.knobs(knobs);
        knobs.is(READ_COST, &mut cost.model.read_percent);
        // What writes cost is measured unless it is given.
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
    type Policy<P: Platform> = Costs<KyberFair<P>, P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Config, ConfigError> {
        let mut config = KyberFairConfig::new(shape.ports.ports(), shape.flows, shape.tags);
        // So that tenants who keep half of what the device takes outstanding get their shares.
        config.busy = (shape.slots / 2).max(1);
        Ok(Config(Costed::new(config)))
    }

    fn build<P: Platform>(config: Config) -> Result<Built<Self::Policy<P>>, ConfigError> {
        let Config(Costed { mut policy, cost }) = config;
        // What writes cost beside reads is in their cost already.
        policy.measured_writes &= cost.kind != CostKind::Device;
        let (tags, flows) = (policy.tags, policy.flows);
        let (policy, ports) = KyberFair::new(&policy)?;
        Ok(Costs::new(policy, ports, tags, flows, &cost))
    }
}
