//! The clock of shards and devices.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time when the first clock was made.
static START: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since the first clock was made. All shards, devices and runs of a process share this
/// start, so that consecutive runs can use one device whose completions depend on time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { start: *START.get_or_init(Instant::now) }
    }
}

impl Clock {
    /// The current time, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The machine's monotonic time at which this clock was 0, in nanoseconds.
    pub fn origin_ns(&self) -> u64 {
        machine_ns().saturating_sub(self.now_ns())
    }

    /// Makes all clocks of this process continue those of the previous program, whose
    /// [`Clock::origin_ns`] is given. Must be called before the first clock is made.
    pub fn go_on_from(origin_ns: u64) {
        let since = Duration::from_nanos(machine_ns().saturating_sub(origin_ns));
        let start = Instant::now().checked_sub(since);
        let _ = START.set(start.unwrap_or_else(Instant::now));
    }
}

/// The machine's monotonic time, in nanoseconds.
fn machine_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the length of the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert_eq!(result, 0, "Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
