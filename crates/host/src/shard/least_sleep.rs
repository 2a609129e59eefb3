//! The shortest timed sleep of a shard while other programs use its CPU.
//!
//! **Problem.** Linux runs a woken thread at once, as long as the thread uses less than its share
//! of the CPU. A shard that uses more waits for other programs, 3 or 4 ms each time, while
//! completed requests are not reaped. Much of this CPU use is avoidable: a timed sleep of 1 us
//! takes 23 us of CPU time in a virtual machine, and a poll for another shard ends by yielding the
//! CPU anyway. **Model.** The kernel counts the time in which the thread was ready to run and did
//! not run. If that is a sixteenth of the time or more, timed sleeps last for at least
//! [`FIRST_NS`], then twice that, up to [`MOST_NS`], and the shard does not poll. Several requests
//! are then completed in a turn, so the shard stays below its share. **Bounds.** Nothing changes on
//! a quiet host. On a busy one, completions are delayed by at most 0.13 ms, instead of by
//! milliseconds. The measurement is one system call every [`PERIOD_NS`].

use crate::observe::cpu_time::{CpuClock, CpuTime};

/// The period of the measurement, in nanoseconds.
const PERIOD_NS: u64 = 10_000_000;

/// The host is busy if the thread waits for its CPU for 1/`BUSY` of a period or more, and quiet if
/// it waits for 1/`QUIET` or less.
const BUSY: u64 = 16;
const QUIET: u64 = 64;

/// The first and the largest value of the shortest sleep, in nanoseconds.
const FIRST_NS: u64 = 16_000;
const MOST_NS: u64 = 128_000;

/// A shard's shortest sleep, and the measurement on which it depends.
#[derive(Debug)]
pub(crate) struct LeastSleep {
    is_on: bool,
    ns: u64,
    since_ns: u64,
    then: Option<CpuTime>,
}

impl LeastSleep {
    /// `is_on` is false for a shard that must not sleep longer, because the software controller
    /// runs on it and makes no progress meanwhile.
    pub(crate) fn new(is_on: bool) -> LeastSleep {
        LeastSleep { is_on, ns: 0, since_ns: 0, then: None }
    }

    /// The shortest duration of a timed sleep, in nanoseconds; 0 on a quiet host.
    pub(crate) fn ns(&self) -> u64 {
        self.ns
    }

    /// Whether other programs use the shard's CPU.
    pub(crate) fn is_on_busy_host(&self) -> bool {
        self.ns > 0
    }

    /// Makes a new measurement if a period has passed.
    #[inline]
    pub(crate) fn measure(&mut self, now_ns: u64, clock: &CpuClock) {
        if self.is_on && now_ns.saturating_sub(self.since_ns) >= PERIOD_NS {
            self.adjust(now_ns, clock.read());
        }
    }

    /// Adjusts the shortest sleep to the time for which the thread waited in the last period.
    #[cold]
    fn adjust(&mut self, now_ns: u64, time: Option<CpuTime>) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if let (Some(time), Some(then)) = (time, self.then) {
            let waited_ns = time.waited_ns.saturating_sub(then.waited_ns);
            if waited_ns >= passed_ns / BUSY {
                self.ns = (self.ns * 2).clamp(FIRST_NS, MOST_NS);
            } else if waited_ns <= passed_ns / QUIET {
                self.ns /= 2;
                if self.ns < FIRST_NS {
                    self.ns = 0;
                }
            }
        }
        (self.since_ns, self.then) = (now_ns, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest sleep after `periods` periods, in each of which the thread waits for its CPU
    /// for `waited_ns`.
    fn after(sleep: &mut LeastSleep, periods: u64, waited_ns: u64) -> u64 {
        for _ in 0..periods {
            let before = sleep.then.unwrap_or_default();
            let time = CpuTime { ran_ns: 0, waited_ns: before.waited_ns + waited_ns };
            sleep.adjust(sleep.since_ns + PERIOD_NS, Some(time));
        }
        sleep.ns()
    }

    #[test]
    fn a_shard_that_waits_for_its_cpu_sleeps_longer_until_it_does_not() {
        let mut sleep = LeastSleep::new(true);
        assert_eq!(after(&mut sleep, 100, 100_000), 0, "a hundredth");
        assert_eq!(after(&mut sleep, 1, 1_000_000), FIRST_NS);
        assert_eq!(after(&mut sleep, 100, 5_000_000), MOST_NS);
        assert_eq!(after(&mut sleep, 100, 300_000), MOST_NS, "neither busy nor quiet");
        assert_eq!(after(&mut sleep, 4, 0), 0);
        assert!(!sleep.is_on_busy_host());
    }

    #[test]
    fn a_kernel_that_does_not_count_changes_nothing() {
        let mut sleep = LeastSleep::new(true);
        (1..9).for_each(|period| sleep.adjust(period * PERIOD_NS, None));
        assert!(!sleep.is_on_busy_host());
    }
}
