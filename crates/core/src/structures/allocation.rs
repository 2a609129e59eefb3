//! Allocation of a policy's memory, which may fail.
//!
//! **Problem.** A policy takes its memory when it is built. Where that fails, in a kernel say, the
//! caller wants an error; collecting into a `Box` ends the program instead. **Model.** Arrays that
//! grow with flows, ports or tags are made by [`boxed`]. Without memory it gives an empty one and
//! counts a refusal, and [`granted`], around the constructor of a policy, turns a refusal into an
//! error. So the constructors of structures cannot fail and need no error; a policy with an array
//! that was refused is dropped unused.
//!
//! **Bounds.** All threads share one count: if one of two policies that are built at once was
//! refused memory, the other may be refused as well. Allocations that do not grow with flows or
//! tags are not counted: a policy's few `Arc`s of some hundred bytes, and the tree over its ports.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_slice_box;

use crate::contract::bounds::ConfigError;

/// Number of refusals of memory. A thread sees its own refusals, so Relaxed is enough.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// An empty vector with room for `count` things, or with none if there is no memory for them.
pub fn room<T>(count: usize) -> Vec<T> {
    let mut room = Vec::new();
    if room.try_reserve_exact(count).is_err() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    room
}

/// `count` things, each made from its own number; none if there is no memory for them.
pub fn boxed<T>(count: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut things = room(count);
    if things.capacity() >= count {
        // Within the capacity: growth beyond it would end the program if there is no memory.
        things.extend((0..count).map(make));
    }
    things.into_boxed_slice()
}

/// `count` things that are all zeroes; none if there is no memory for them. A large allocation of
/// zeroes takes no physical memory until it is written.
pub fn zeroes<T: Zeroable>(count: usize) -> Box<[T]> {
    try_zeroed_slice_box(count).unwrap_or_else(|()| {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        Box::default()
    })
}

/// The result of `build`, if no allocation was refused meanwhile.
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
