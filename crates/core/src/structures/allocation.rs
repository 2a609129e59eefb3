//! Memory for as many things as a policy is built for, which may not be there.
//!
//! **Problem.** A policy takes its memory when it is built. Where that fails, in a kernel say, the
//! caller wants an error; collecting into a `Box` ends the program instead. **Model.** What grows
//! with flows, ports or tags is made by [`boxed`]. Without memory it gives nothing and counts a
//! refusal, and [`granted`], around the constructor of a policy, makes an error of what was built
//! meanwhile. So the constructors of structures cannot fail and need no error; what they are given
//! too little for is dropped unused.
//!
//! **Bounds.** The count is one for all threads. Of two policies that are built at once, of which
//! one was refused memory, the other may be refused as well. Not counted is what does not grow
//! with flows or tags: a policy's few `Arc`s of some hundred bytes, and the tree over its ports.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_slice_box;

use crate::contract::bounds::ConfigError;

/// How often memory was refused. A thread sees its own refusals, so Relaxed is enough.
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// Room for a number of things, of which there are none yet.
pub(crate) fn room<T>(count: usize) -> Vec<T> {
    let mut room = Vec::new();
    if room.try_reserve_exact(count).is_err() {
        REFUSED.fetch_add(1, Ordering::Relaxed);
    }
    room
}

/// A number of things, each made from its own number; none if there is no memory for them.
pub(crate) fn boxed<T>(count: usize, make: impl FnMut(usize) -> T) -> Box<[T]> {
    let mut things = room(count);
    if things.capacity() >= count {
        // Within the room: to grow beyond it would end the program where there is no memory.
        things.extend((0..count).map(make));
    }
    things.into_boxed_slice()
}

/// A number of things that are all zeroes; none if there is no memory for them. Much memory that is
/// allocated as zeroes takes no room until it is written.
pub(crate) fn zeroes<T: Zeroable>(count: usize) -> Box<[T]> {
    try_zeroed_slice_box(count).unwrap_or_else(|()| {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        Box::default()
    })
}

/// What `build` gives, if it was given all the memory that it asked for.
pub(crate) fn granted<R>(build: impl FnOnce() -> Result<R, ConfigError>) -> Result<R, ConfigError> {
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

    /// What is refused is tried in a program of its own (`tests/short_memory.rs`): others that are
    /// tested at once here would be refused theirs.
    #[test]
    fn what_there_is_memory_for_is_there() {
        assert_eq!(boxed(3, |number| number * 2)[..], [0, 2, 4]);
        assert_eq!(granted(|| Ok(boxed(5, |_| 0u64).len())), Ok(5));
        for count in [0, 3, 10_000] {
            assert_eq!(*zeroes::<[u64; 2]>(count), [[0; 2]].repeat(count));
        }
    }
}
