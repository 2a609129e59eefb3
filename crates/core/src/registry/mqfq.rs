//! MQFQ in the registry: its knobs and its promises.

use crate::contract::bounds::{ConfigError, MAX_THRESHOLD};
use crate::contract::platform::Platform;
use crate::contract::port::Tuning;
use crate::contract::share::Limits;
use crate::cost::Costed;
use crate::entry::knobs::{AUTO, Configure, Knob, Knobs, SLOTS};
use crate::entry::{self, Built, Keys, Promises, Shape};
use crate::policy::managed::{Managed, Stages};
use crate::policy::mqfq::{Mqfq, MqfqConfig};

impl Configure for MqfqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        knobs.is(SLOTS, &mut self.slots);
        let threshold = "T: the most that the lightest tenant may run ahead of the slowest; \
                         heavier ones in proportion, up to 4 T";
        let threshold = Knob::bytes("threshold", 0, MAX_THRESHOLD, threshold);
        let given = (!self.threshold_follows).then_some(self.threshold_bytes);
        let tuning = |bytes: Option<u64>| {
            bytes.map_or(Tuning::FollowingThreshold(MqfqConfig::THRESHOLD), Tuning::Threshold)
        };
        knobs.by(threshold.alias("T").live(tuning), given, |bytes| {
            (self.threshold_bytes, self.threshold_follows) = (bytes, false);
        });
    }
}

/// MQFQ. With `SERIAL` one lock surrounds all dispatches, for comparison. With `ANTICIPATES`, which
/// the Linux kernel module uses, slots are kept for a moment; this costs each verb 4 ns.
pub enum Entry<const SERIAL: bool = false, const ANTICIPATES: bool = false> {}

impl<const SERIAL: bool, const ANTICIPATES: bool> entry::Entry for Entry<SERIAL, ANTICIPATES> {
    const NAME: &'static str = if SERIAL { "mqfq-serial" } else { "mqfq" };
    /// If slots are kept, the device has free slots at times while requests wait.
    const PROMISES: Promises = Promises {
        slots: !ANTICIPATES,
        holds_back: ANTICIPATES,
        threshold: true,
        steady_time: true,
        shares: true,
        ..Promises::NONE
    };
    type Config = Costed<MqfqConfig>;
    type Policy<P: Platform> = Managed<Mqfq<P>, P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<Self::Config, ConfigError> {
        let mut config = MqfqConfig::new(shape.ports.clone(), shape.flows, shape.tags);
        config.slots = AUTO;
        config.threshold_follows = true;
        (config.serial, config.anticipates) = (SERIAL, ANTICIPATES);
        Ok(Costed::by_device(config))
    }

    fn build<P: Platform>(
        config: Self::Config,
        has_limits: bool,
    ) -> Result<Built<Self::Policy<P>>, ConfigError> {
        let Costed { policy: mut config, cost } = config;
        let stages = Stages { has_limits, ..Stages::of_slots(cost, &mut config.slots) };
        let (tags, flows) = (config.tags, config.flows);
        Managed::new(Mqfq::new(config)?, tags, flows, &stages)
    }
}

/// `mqfq` by itself keeps no limits.
impl<P: Platform> Limits for Mqfq<P> {}
