//! The time that shards and devices go by.

use std::sync::LazyLock;
use std::time::Instant;

/// Nanoseconds since the first clock was made: one time for all shards, devices and runs of a
/// process, so that a device that works in time may be used by one run after the other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        Clock { start: *START }
    }
}

impl Clock {
    /// Now, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}
