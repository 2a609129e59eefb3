//! MQFQ in the registry: its knobs and its promises.

use core::marker::PhantomData;

use super::{Mqfq, MqfqConfig, Ours, Reading, SlotKind, UnthrottleKind, VirtualTimeKind};
use crate::contract::bounds::{ConfigError, MAX_THRESHOLD};
use crate::contract::platform::Platform;
use crate::contract::port::Tuning;
use crate::cost::{Costed, Costs};
use crate::entry::knobs::{AUTO, Configure, Knob, Knobs, SLOTS, words};
use crate::entry::{self, Built, Keys, Promises, Shape};
use crate::policy::depth::{AutoDepth, FIRST};

/// T where none is configured, in bytes; T follows the device from there.
const THRESHOLD: u64 = 45 << 10;
/// The longest polling period, in nanoseconds.
const MAX_POLL_NS: u64 = u64::MAX;

words!(VirtualTimeKind: "mindicator" => Self::Mindicator, "scan" => Self::ArrayScan);
words!(SlotKind:
    "tree" => Self::TokenTree, "counter" => Self::AtomicCounter, "bitmap" => Self::ScalableBitmap);

impl Configure for MqfqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        knobs.is(SLOTS, &mut self.slots);
        let threshold = "T: how far the lightest tenant may run ahead of the slowest; heavier \
                         ones in proportion, up to 4 T";
        let threshold = Knob::bytes("threshold", 0, MAX_THRESHOLD, threshold);
        let given = (!self.threshold_follows).then_some(self.threshold_bytes);
        let tuning = |bytes: Option<u64>| {
            bytes.map_or(Tuning::FollowingThreshold(THRESHOLD), Tuning::Threshold)
        };
        knobs.by(threshold.alias("T").live(tuning), given, |bytes| {
            (self.threshold_bytes, self.threshold_follows) = (bytes, false);
        });
        let time = "how virtual time is found";
        let time = Knob::one_of("virtual-time", VirtualTimeKind::WORDS, time);
        knobs.is(time, &mut self.virtual_time);
        let kind = "how dispatch slots are handed out";
        knobs.is(Knob::one_of("slot-kind", SlotKind::WORDS, kind), &mut self.slot_kind);
        let unthrottle = "how throttled shards are woken";
        let unthrottle = Knob::duration("unthrottle", 1, MAX_POLL_NS, unthrottle)
            .or(&[("wheel", 0), ("poll", 1_000)])
            .after("poll:");
        let now = match self.unthrottle {
            UnthrottleKind::Wheel => 0,
            UnthrottleKind::Polling { period_ns } => period_ns,
        };
        knobs.by(unthrottle, Some(now), |period_ns| {
            self.unthrottle = match period_ns {
                0 => UnthrottleKind::Wheel,
                period_ns => UnthrottleKind::Polling { period_ns },
            };
        });
    }
}

/// MQFQ with an automatic D and the costs of requests.
type Layered<P, R> = Costs<AutoDepth<Mqfq<P, R>, P>, P>;

/// Builds the policy. The bitmap's D cannot change, so no search for D runs with it.
fn build<P: Platform, R: Reading>(
    config: Costed<MqfqConfig>,
) -> Result<Built<Layered<P, R>>, ConfigError> {
    let Costed { policy: mut config, cost } = config;
    let searches = config.slots == AUTO;
    let is_fixed = config.slot_kind == SlotKind::ScalableBitmap;
    if searches {
        config.slots = if is_fixed { MqfqConfig::SLOTS } else { FIRST };
    }
    let (tags, flows) = (config.tags, config.flows);
    let (policy, ports) = Mqfq::read(config)?;
    let (policy, ports) = AutoDepth::new(policy, ports, tags, flows, searches && !is_fixed)?;
    Costs::new(policy, ports, tags, flows, &cost)
}

/// MQFQ, by a reading of its paper.
#[derive(Debug)]
pub struct Entry<R = Ours>(PhantomData<R>);

/// MQFQ with one lock around dispatches, for comparison.
#[derive(Debug)]
pub struct SerialEntry<R = Ours>(PhantomData<R>);

/// The promises of a reading. If slots are kept, the device has free slots at times while requests
/// wait.
const fn promises<R: Reading>() -> Promises {
    Promises {
        slots: !R::KEEPS_SLOTS,
        holds_back: R::KEEPS_SLOTS,
        threshold: true,
        steady_time: true,
        shares: true,
        ..Promises::NONE
    }
}

fn config(shape: &Shape) -> Costed<MqfqConfig> {
    let mut config = MqfqConfig::new(shape.ports.clone(), shape.flows, shape.tags);
    config.slots = AUTO;
    (config.threshold_bytes, config.threshold_follows) = (THRESHOLD, true);
    Costed::by_device(config)
}

impl<R: Reading> entry::Entry for Entry<R> {
    const NAME: &'static str = "mqfq";
    const PROMISES: Promises = promises::<R>();
    type Config = Costed<MqfqConfig>;
    type Policy<P: Platform> = Layered<P, R>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        Ok(config(shape))
    }

    fn build<P: Platform>(config: Self::Config) -> Result<Built<Layered<P, R>>, ConfigError> {
        build(config)
    }
}

impl<R: Reading> entry::Entry for SerialEntry<R> {
    const NAME: &'static str = "mqfq-serial";
    const WITHOUT: &'static [&'static str] = &["virtual-time", "slot-kind", "unthrottle"];
    const PROMISES: Promises = promises::<R>();
    type Config = Costed<MqfqConfig>;
    type Policy<P: Platform> = Layered<P, R>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        let mut config = config(shape);
        config.policy.serial = true;
        Ok(config)
    }

    fn build<P: Platform>(config: Self::Config) -> Result<Built<Layered<P, R>>, ConfigError> {
        build(config)
    }
}
