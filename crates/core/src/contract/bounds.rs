//! The bounds of every policy, the reasons for which a configuration is refused, and the allocation
//! of a policy's memory.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_slice_box;

use crate::contract::port_set::PortSet;

/// The most flows of a policy.
pub const MAX_FLOWS: usize = 1 << 24;
/// The most flows of `d2fq`: the holder of global virtual time is named by 16 bits.
pub const MAX_HOLDERS: usize = 65_535;
/// The most live requests of a port.
pub const MAX_TAGS: usize = 1 << 24;
/// The most live requests of a scheduler behind one lock, over all ports. They are numbered with 32
/// bits, and one of these numbers means "none".
pub const MAX_JOBS: usize = u32::MAX as usize;
/// The most slots D: the deepest an NVMe queue can be.
pub const MAX_SLOTS: u32 = 65_536;
/// The largest threshold T, in bytes at the [reference weight](crate::ReferenceWeight): 1 TiB. That
/// is at most 2^52.7 units, if all weights are a 64th: inside the window of virtual time (2^55).
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
}

/// Gives a configuration a method that changes it where it is made. Programs cannot write it as a
/// struct literal, because later versions may add fields.
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

/// Refuses a value of a knob that is out of range.
pub fn within(knob: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError::Knob { knob, value, least, most }),
    }
}

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

// **Memory**, whose allocation may fail.
//
// **Problem.** A policy takes its memory when it is built. Where that fails, in a kernel say, the
// caller wants an error; collecting into a `Box` ends the program instead. **Model.** Arrays that
// grow with flows, ports or tags are made by [`boxed`]. Without memory it gives an empty one and
// counts a refusal, and [`granted`], around the constructor of a policy, turns a refusal into an
// error. So the constructors of structures cannot fail and need no error; a policy with an array
// that was refused is dropped unused.
//
// **Bounds.** All threads share one count: if one of two policies that are built at the same time
// was refused memory, the other may be refused as well. Allocations whose size does not depend on
// flows or tags (a policy's few `Arc`s of some hundred bytes, and the tree over its ports) are not
// checked: if one of them fails, the program ends.

/// Number of refusals of memory. A thread sees its own refusals, so Relaxed is enough.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// An empty vector with room for `count` things, or without room if there is no memory for them.
#[doc(hidden)]
pub fn room<T>(count: usize) -> Vec<T> {
    let mut room = Vec::new();
    if room.try_reserve_exact(count).is_err() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    room
}

/// `count` things, each made from its own number; none if there is no memory for them.
#[doc(hidden)]
pub fn boxed<T>(count: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut things = room(count);
    if things.capacity() >= count {
        // This stays within the capacity; growth beyond it would end the program if there is no
        // memory.
        things.extend((0..count).map(make));
    }
    things.into_boxed_slice()
}

/// `count` things that are all zeroes; none if there is no memory for them. A large allocation of
/// zeroes takes no physical memory until it is written.
#[doc(hidden)]
pub fn zeroes<T: Zeroable>(count: usize) -> Box<[T]> {
    try_zeroed_slice_box(count).unwrap_or_else(|()| {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        Box::default()
    })
}

/// The result of `build`, if no allocation was refused meanwhile.
#[doc(hidden)]
pub fn granted<R>(build: impl FnOnce() -> Result<R, ConfigError>) -> Result<R, ConfigError> {
    let before = REFUSED.load(Ordering::Relaxed);
    let built = build()?;
    match REFUSED.load(Ordering::Relaxed) == before {
        true => Ok(built),
        false => Err(ConfigError::Memory),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Refusals are tested in a program of their own (`tests/short_memory.rs`): here they would
    /// fail other tests that run at the same time.
    #[test]
    fn what_there_is_memory_for_is_there() {
        assert_eq!(boxed(3, |number| number * 2)[..], [0, 2, 4]);
        assert_eq!(granted(|| Ok(boxed(5, |_| 0u64).len())), Ok(5));
        for count in [0, 3, 10_000] {
            assert_eq!(*zeroes::<[u64; 2]>(count), [[0; 2]].repeat(count));
        }
    }
}
