//! The bounds of every policy, and the reasons for which a configuration is refused.

use crate::contract::port_set::PortSet;

/// The most flows of a policy.
pub const MAX_FLOWS: usize = 1 << 24;
/// The most flows of `d2fq`: the holder of global virtual time is named by 16 bits.
pub const MAX_HOLDERS: usize = 65_535;
/// The most live requests of a port.
pub const MAX_TAGS: usize = 1 << 24;
/// The most live requests of a scheduler behind one lock, over all ports: one number of 32 bits
/// means "none".
pub const MAX_JOBS: usize = u32::MAX as usize;
/// The most slots D: the deepest an NVMe queue can be.
pub const MAX_SLOTS: u32 = 65_536;
/// The largest threshold T, in bytes at the [reference weight](crate::ReferenceWeight): 1 TiB. That
/// is at most 2^46.7 units, if all weights are 1: far inside the window of virtual time.
pub const MAX_THRESHOLD: u64 = 1 << 40;

/// The largest value of a knob that is a time: a minute, in nanoseconds.
pub const MAX_KNOB_NS: u64 = 60_000_000_000;

/// The reason why a policy cannot be built or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is not enough memory for the policy's ports, flows and tags.
    #[error("no memory for so many ports, flows and tags: take fewer of them")]
    Memory,
    /// No ports, or too many.
    #[error("{0} ports, but there must be 1 to {max}", max = PortSet::MAX_PORTS)]
    Ports(usize),
    /// No flows, or too many.
    #[error("{0} flows, but there must be 1 to {MAX_FLOWS}")]
    Flows(usize),
    /// No tags, or too many.
    #[error("{0} tags per port, but there must be 1 to {MAX_TAGS}")]
    Tags(usize),
    /// More live requests over all ports than a scheduler behind one lock has numbers for.
    #[error(
        "{ports} ports of {tags} tags each, but a scheduler behind one lock numbers at most \
         {MAX_JOBS} live requests: take fewer ports or tags"
    )]
    Jobs {
        /// Ports.
        ports: usize,
        /// Tags per port, rounded up to a power of two.
        tags: usize,
    },
    /// No slots, or too many.
    #[error("{0} slots, but there must be 1 to {MAX_SLOTS}")]
    Slots(u32),
    /// The threshold is too large.
    #[error("a threshold of {0} bytes, but it must be at most {MAX_THRESHOLD}")]
    Threshold(u64),
    /// The period is 0, so `tick` would be due all the time.
    #[error("the period must not be 0")]
    Period,
    /// More flows than the holder of global virtual time can name.
    #[error("{0} flows, but d2fq takes at most {max}", max = MAX_HOLDERS)]
    HolderFlows(usize),
    /// The thresholds of d2fq are out of range or out of order.
    #[error(
        "thresholds tau_m {medium}, tau_l {low}, tau_w {unfair} bytes, but tau_m <= tau_l <= tau_w \
         must hold, with tau_l \
         from 65536 to {MAX_THRESHOLD}"
    )]
    Thresholds {
        /// tau_m.
        medium: u64,
        /// tau_l.
        low: u64,
        /// tau_w.
        unfair: u64,
    },
    /// The weights of two NVMe queue classes cannot differ by that much.
    #[error("an H/L ratio of {0}, but it must be 1 to 256")]
    Ratio(u16),
    /// An initial ratio was given for a static one.
    #[error(
        "initial {initial} is where a dynamic ratio begins, but hl is static-{ratio}: leave one out"
    )]
    Initial {
        /// The initial ratio.
        initial: u64,
        /// The static ratio.
        ratio: u64,
    },
    /// The period of the H/L adjustment is out of range.
    #[error("a period of {0} ns for the H/L ratio, but it must be 1 ms to 1 minute")]
    AdjustPeriod(u64),
    /// The grace period is out of range.
    #[error("a grace period of {0} ns, but it must be at most 1 minute")]
    Grace(u64),
    /// The budget of urgent requests is so large that they could starve the others.
    #[error("{0} % of the bytes for urgent requests, but it must be at most 50 %")]
    Urgent(u8),
    /// A knob of one policy is out of range.
    #[error("{knob} is {value}, but it must be {least} to {most}")]
    Knob {
        /// Its key.
        knob: &'static str,
        /// The value that it was set to.
        value: u64,
        /// The least value allowed.
        least: u64,
        /// The largest value allowed.
        most: u64,
    },
    /// The depth of a domain is out of range; with 0 its requests would wait for ever.
    #[error("a depth of {0} requests, but it must be 1 to {MAX_SLOTS}")]
    Depth(u32),
    /// A latency target is 0 or above an hour.
    #[error("a latency target of {0} ns, but it must be 1 ns to 1 hour")]
    Target(u64),
    /// The bounds of the tokens of a period contradict each other or are too large.
    #[error("{0} tokens a period, but there must be 1 to {max}, and the least no more than the \
     most", max = 1u64 << 38)]
    Tokens(u64),
}

/// Lets programs change a configuration where they make it. They cannot write it out, because it
/// may get more fields.
#[doc(hidden)]
#[macro_export]
macro_rules! changeable {
    ($config:ty) => {
        impl $config {
            /// The configuration after `change`.
            #[must_use]
            pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
                change(&mut self);
                self
            }
        }
    };
}

pub(crate) use changeable;

/// Checks the bounds that apply to every policy.
pub fn check(ports: usize, flows: usize, tags: usize, slots: u32) -> Result<(), ConfigError> {
    if ports == 0 || ports > PortSet::MAX_PORTS {
        return Err(ConfigError::Ports(ports));
    }
    if flows == 0 || flows > MAX_FLOWS {
        return Err(ConfigError::Flows(flows));
    }
    if tags == 0 || tags > MAX_TAGS {
        return Err(ConfigError::Tags(tags));
    }
    if slots == 0 || slots > MAX_SLOTS {
        return Err(ConfigError::Slots(slots));
    }
    Ok(())
}
