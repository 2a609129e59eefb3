//! Kyber in the registry: its knobs and its promises.

use super::{Kyber, KyberConfig};
use fairq_core::contract::bounds::{ConfigError, MAX_SLOTS};
use fairq_core::contract::platform::Platform;
use fairq_core::contract::share::Limits;
use fairq_core::entry::knobs::{Configure, Knob, Knobs, MERGE};
use fairq_core::entry::{self, Built, Keys, Promises, Shape};
use fairq_core::managed::{Managed, Stages};

const HOUR_NS: u64 = 3_600_000_000_000;

impl Configure for KyberConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let target = |key, help| Knob::duration(key, 1, HOUR_NS, help);
        let depth = |key, help| Knob::requests(key, MAX_SLOTS, help);
        let read = target("read-target", "the latency that reads should have").brief("read");
        knobs.is(read, &mut self.read_target_ns);
        let write = target("write-target", "the latency that writes should have").brief("write");
        knobs.is(write, &mut self.write_target_ns);
        let discard = target("discard-target", "the latency that discards should have");
        knobs.is(discard, &mut self.discard_target_ns);
        let [reads, writes, discards, others] = &mut self.depths;
        knobs.is(depth("read-depth", "the most reads on the device"), reads);
        knobs.is(depth("write-depth", "the most writes on the device"), writes);
        knobs.is(depth("discard-depth", "the most discards on the device"), discards);
        let help = "the most flushes and writes of zeroes on the device";
        knobs.is(depth("other-depth", help), others);
        knobs.is(MERGE, &mut self.merge_bytes);
    }
}

/// Kyber.
pub enum Entry {}

impl entry::Entry for Entry {
    const NAME: &'static str = "kyber";
    const PROMISES: Promises = Promises { holds_back: true, turn: 1 << 30, ..Promises::NONE };
    type Config = KyberConfig;
    type Policy<P: Platform> = Managed<Kyber<P>, P>;

    fn config(shape: &Shape, _keys: Keys<'_>) -> Result<KyberConfig, ConfigError> {
        Ok(KyberConfig::new(shape.ports.ports(), shape.flows, shape.tags))
    }

    fn build<P: Platform>(
        config: KyberConfig,
        has_limits: bool,
    ) -> Result<Built<Self::Policy<P>>, ConfigError> {
        let stages = Stages { has_limits, ..Stages::default() };
        Managed::new(Kyber::new(&config)?, config.tags, config.flows, &stages)
    }
}

/// Kyber by itself keeps no limits.
impl<P: Platform> Limits for Kyber<P> {}
