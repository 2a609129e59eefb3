//! The bounds of every policy, and why a configuration is refused.

use crate::port::PortSet;

/// The most flows of a policy.
pub const MAX_FLOWS: usize = 1 << 24;
/// The most live requests of a port.
pub const MAX_TAGS: usize = 1 << 24;
/// The most slots D: the deepest an NVMe queue can be.
pub const MAX_SLOTS: u32 = 65_536;
/// The largest threshold T, in bytes at weight 100: 1 TiB, far inside the window of virtual time.
pub const MAX_THRESHOLD: u64 = 1 << 40;

/// Why a policy cannot be built, or not be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// No ports, or too many.
    #[error("{0} ports, but there must be 1 to {max}", max = PortSet::MAX_PORTS)]
    Ports(usize),
    /// No flows, or too many.
    #[error("{0} flows, but there must be 1 to {MAX_FLOWS}")]
    Flows(usize),
    /// No tags, or too many.
    #[error("{0} tags per port, but there must be 1 to {MAX_TAGS}")]
    Tags(usize),
    /// No slots, or too many.
    #[error("{0} slots, but there must be 1 to {MAX_SLOTS}")]
    Slots(u32),
    /// The threshold is too large.
    #[error("a threshold of {0} bytes, but it must be at most {MAX_THRESHOLD}")]
    Threshold(u64),
    /// Polling without a pause would spin.
    #[error("the polling period must not be 0")]
    Period,
}

/// Checks what every policy has.
pub(crate) fn check(ports: usize, flows: usize, tags: usize, slots: u32) -> Result<(), ConfigError> {
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
