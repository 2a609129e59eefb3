//! The configuration of D2FQ.

use super::ratio::{RATIO_MAX, RATIO_MIN};
use crate::contract::bounds::{
    ConfigError, MAX_HOLDERS, MAX_KNOB_NS, MAX_SLOTS, MAX_THRESHOLD, changeable, check, within,
};
use crate::structures::topology::Topology;

/// The ratio of the weights of the high and the low class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ratio {
    /// Adjusted once a period (Section 3.2).
    Dynamic {
        /// The ratio before the first adjustment, 1 to 256. The paper begins at 256, which allows
        /// every share.
        initial: u16,
    },
    /// A fixed ratio, 1 to 256.
    Static(u16),
}

impl Default for Ratio {
    fn default() -> Self {
        Ratio::Dynamic { initial: RATIO_MAX }
    }
}

/// The knobs of D2FQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct D2fqConfig {
    /// The ports; their places make no difference.
    pub ports: Topology,
    /// The maximum number of flows, up to [`MAX_HOLDERS`].
    pub flows: usize,
    /// The number of tags per port: its tags are `0..tags`.
    pub tags: usize,
    /// tau_l: a flow this far ahead of global virtual time uses the low class; in units, bytes at
    /// weight 100. `None`: the paper's 8 MiB, halved with the other thresholds for a slower device,
    /// until the device serves tau_l in 1/128 of a period ([`super`]). A smaller value throttles
    /// earlier and lengthens tails (Figures 7 and 8).
    pub tau_l: Option<u64>,
    /// tau_m: a flow this far ahead uses the medium class; in units. `None`: tau_l / 2, the
    /// paper's. If it equals tau_l, no flow uses the medium class.
    pub tau_m: Option<u64>,
    /// tau_w: if two flows are this far apart, the ratio is too small; in units. `None`: 2 tau_l,
    /// the paper's.
    pub tau_w: Option<u64>,
    /// The longest time that a flow may have nothing in flight before it counts as idle, in
    /// nanoseconds; at most a minute. Default 5 ms: longer than a client computes between two
    /// requests, shorter than a real pause.
    pub grace_ns: u64,
    /// The period of the adjustment of the ratio, in nanoseconds. Default 1 s, the paper's.
    pub period_ns: u64,
    /// The H/L ratio. Default: dynamic.
    pub ratio: Ratio,
    /// The largest part of all bytes served that may be urgent, in percent, 0 to 50. Default 0: no
    /// flow is ever urgent.
    pub urgent_percent: u8,
}

changeable!(D2fqConfig);

impl D2fqConfig {
    /// The default knobs for this number of flows, and of tags per port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Self {
        D2fqConfig {
            ports,
            flows,
            tags,
            tau_l: None,
            tau_m: None,
            tau_w: None,
            grace_ns: 5_000_000,
            period_ns: 1_000_000_000,
            ratio: Ratio::default(),
            urgent_percent: 0,
        }
    }

    /// tau_l in units, before it is halved.
    pub fn low(&self) -> u64 {
        self.tau_l.unwrap_or(8 << 20)
    }

    /// tau_m in units, before it is halved.
    pub fn medium(&self) -> u64 {
        self.tau_m.unwrap_or(self.low() / 2)
    }

    /// tau_w in units, before it is halved.
    pub fn unfair(&self) -> u64 {
        self.tau_w.unwrap_or(self.low().saturating_mul(2))
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports.ports(), self.flows, self.tags, MAX_SLOTS)?;
        within("flows", self.flows as u64, 1, MAX_HOLDERS as u64)?;
        let (medium, low, unfair) = (self.medium(), self.low(), self.unfair());
        if !(1 << 16..=MAX_THRESHOLD).contains(&low) || medium > low || unfair < low {
            return Err(ConfigError::Thresholds { medium, low, unfair });
        }
        let (Ratio::Dynamic { initial: ratio } | Ratio::Static(ratio)) = self.ratio;
        within("hl", ratio.into(), RATIO_MIN.into(), RATIO_MAX.into())?;
        within("period", self.period_ns, 1_000_000, MAX_KNOB_NS)?;
        within("grace", self.grace_ns, 0, MAX_KNOB_NS)?;
        within("urgent", self.urgent_percent.into(), 0, 50)
    }
}
