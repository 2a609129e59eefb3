//! The window of a measurement: the time in which requests are counted.
//!
//! **Problem.** A process can be without a CPU for seconds: it is stopped, its virtual machine is
//! paused, or other programs use the CPU. A window with a planned end may then be over when it
//! begins, and a few requests divided by some microseconds give an arbitrary rate. **Model.** The
//! window begins when the warm-up has ended, and then lasts as long as was requested. A `Watch`
//! records by how much its thread ran later than planned. A [`Disturbance`] is the reason why the
//! figures of a window must not be used; the caller then measures again. **Bounds.** A rate is
//! never overstated: the window lasts from before the first reading to after the last one.
//!
//! **Example.** In a window of 10 s the thread planned to sleep until 4.1 s and woke at 6.3 s: it
//! stalled for 2.2 s, more than the 0.5 s that a window of 10 s allows.

use std::fmt;
use std::time::Duration;

use crate::io::clock::Clock;

/// The longest time between two steps of a [`Watch`].
const STEP: Duration = Duration::from_millis(100);
/// A thread may stall for 1 / `STALL_PART` of a window.
const STALL_PART: u32 = 20;
/// A shorter stall is accepted in every window: on a machine whose CPUs are all busy, the scheduler
/// delays a thread by about 10 ms.
const STALL_ALWAYS: Duration = Duration::from_millis(100);
/// The fraction (0 to 1) of the time for which shards may wait for their CPUs. With one busy
/// program on each CPU they wait half of the time, which the caller only reports.
const STARVED: f64 = 0.9;

/// The clock of a measurement; tests use one that jumps.
pub trait Time {
    /// The current time, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Sleeps.
    fn sleep(&self, duration: Duration);
}

impl Time for Clock {
    fn now_ns(&self) -> u64 {
        Clock::now_ns(self)
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// The reason for which the figures of a window must not be used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Disturbance {
    /// The window was shorter than requested.
    Short {
        /// The window's length.
        elapsed: Duration,
        /// The length that was requested.
        measured: Duration,
    },
    /// The measuring thread did not run for this time.
    Stalled(Duration),
    /// The shards waited for their CPUs for this fraction of the time, 0 to 1.
    Starved(f64),
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disturbance::Short { elapsed, measured } => {
                write!(f, "the measurement ended after {elapsed:.2?} of {measured:.2?}")
            }
            Disturbance::Stalled(time) => write!(f, "this process did not run for {time:.2?}"),
            Disturbance::Starved(part) => {
                write!(f, "the shards waited for their CPUs {:.0} % of the time", 100.0 * part)
            }
        }
    }
}

/// Waits in steps, and records by how much its thread ran too late.
pub(crate) struct Watch<'a, T: Time> {
    time: &'a T,
    /// The last time at which the thread is known to have run.
    last_ns: u64,
    /// The longest delay of the thread, in nanoseconds.
    stall_ns: u64,
}

impl<'a, T: Time> Watch<'a, T> {
    pub(crate) fn new(time: &'a T) -> Self {
        Watch { time, last_ns: time.now_ns(), stall_ns: 0 }
    }

    /// Waits until `until_ns`. `step` runs at least every 100 ms; it gets the time, and returns the
    /// time at which it has to run again, or `None` to end the wait early.
    pub(crate) fn wait(&mut self, until_ns: u64, mut step: impl FnMut(u64) -> Option<u64>) {
        let mut now_ns = self.note(self.last_ns);
        while now_ns < until_ns {
            let Some(next_ns) = step(now_ns) else { return };
            let longest_ns = now_ns.saturating_add(STEP.as_nanos() as u64);
            let wake_ns = next_ns.min(until_ns).clamp(now_ns, longest_ns);
            let left_ns = wake_ns.saturating_sub(self.time.now_ns());
            self.time.sleep(Duration::from_nanos(left_ns));
            now_ns = self.note(wake_ns);
        }
    }

    /// Makes a reading, which is assumed to take no time unless the process is stopped. `read` is
    /// called with the time before the reading; that time is returned with the result.
    pub(crate) fn read<R>(&mut self, read: impl FnOnce(u64) -> R) -> (R, u64) {
        let before_ns = self.note(self.last_ns);
        let result = read(before_ns);
        self.note(before_ns);
        (result, before_ns)
    }

    /// Records that the thread runs now and was planned to run at `planned_ns`. Returns the time.
    pub(crate) fn note(&mut self, planned_ns: u64) -> u64 {
        self.last_ns = self.time.now_ns();
        self.stall_ns = self.stall_ns.max(self.last_ns.saturating_sub(planned_ns));
        self.last_ns
    }

    /// The last time at which the thread is known to have run.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Judges a window of length `elapsed`, in which shards waited for this part of the time.
    pub(crate) fn judge(
        &self,
        elapsed: Duration,
        measured: Duration,
        cpu_wait: Option<f64>,
    ) -> Option<Disturbance> {
        let stall = Duration::from_nanos(self.stall_ns);
        if elapsed < measured {
            Some(Disturbance::Short { elapsed, measured })
        } else if stall > STALL_ALWAYS.max(measured / STALL_PART) {
            Some(Disturbance::Stalled(stall))
        } else {
            cpu_wait.filter(|part| *part > STARVED).map(Disturbance::Starved)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// A clock that advances while its thread sleeps, and makes the given jumps.
    pub(crate) struct Jumping {
        now_ns: Cell<u64>,
        /// The jumps: each from the first time to the second.
        jumps: RefCell<Vec<(u64, u64)>>,
    }

    impl Jumping {
        pub(crate) fn new(jumps: &[(u64, u64)]) -> Jumping {
            Jumping { now_ns: Cell::new(0), jumps: RefCell::new(jumps.to_vec()) }
        }
    }

    impl Time for Jumping {
        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }

        fn sleep(&self, duration: Duration) {
            let after_ns = self.now_ns.get() + duration.as_nanos() as u64;
            let due = self.jumps.borrow_mut().extract_if(.., |(at, _)| *at <= after_ns).last();
            self.now_ns.set(due.map_or(after_ns, |(_, to_ns)| to_ns));
        }
    }

    const MS: u64 = 1_000_000;
    const SECOND: Duration = Duration::from_secs(1);

    /// A window of a second after a warm-up of a second: its length, and its judgement.
    fn window(jumps: &[(u64, u64)]) -> (Duration, Option<Disturbance>) {
        let time = Jumping::new(jumps);
        let step = |_| Some(u64::MAX);
        Watch::new(&time).wait(1_000 * MS, step);
        let mut watch = Watch::new(&time);
        let begins_ns = watch.last_ns();
        watch.wait(begins_ns + 1_000 * MS, step);
        let elapsed = Duration::from_nanos(watch.last_ns().saturating_sub(begins_ns));
        (elapsed, watch.judge(elapsed, SECOND, None))
    }

    #[test]
    fn a_stall_during_the_warm_up_does_not_shorten_the_window() {
        assert_eq!(window(&[]), (SECOND, None));
        assert_eq!(window(&[(300 * MS, 9_000 * MS)]), (SECOND, None));
    }

    #[test]
    fn a_stall_during_the_window_is_noticed_wherever_it_is() {
        for at_ns in [1_001 * MS, 1_500 * MS, 1_999 * MS] {
            let (_, disturbance) = window(&[(at_ns, at_ns + 300 * MS)]);
            assert!(matches!(disturbance, Some(Disturbance::Stalled(_))), "{disturbance:?}");
        }
        let (_, disturbance) = window(&[(1_500 * MS, 1_560 * MS)]);
        assert_eq!(disturbance, None, "60 ms are what a busy machine does");
    }

    #[test]
    fn a_reading_that_takes_long_is_a_stall() {
        let time = Jumping::new(&[]);
        let mut watch = Watch::new(&time);
        watch.read(|_| time.sleep(Duration::from_millis(400)));
        let stalled = Disturbance::Stalled(Duration::from_millis(400));
        assert_eq!(watch.judge(SECOND, SECOND, None), Some(stalled));
        assert_eq!(watch.judge(10 * SECOND, 10 * SECOND, None), None, "4 % of it");
    }

    #[test]
    fn a_window_that_is_shorter_than_requested_is_rejected() {
        let time = Jumping::new(&[]);
        let elapsed = Duration::from_micros(76);
        let disturbance = Watch::new(&time).judge(elapsed, SECOND, None).unwrap();
        assert_eq!(disturbance, Disturbance::Short { elapsed, measured: SECOND });
        assert_eq!(disturbance.to_string(), "the measurement ended after 76.00µs of 1.00s");
    }

    #[test]
    fn shards_without_their_cpus_are_a_disturbance_and_shards_that_share_them_are_none() {
        let time = Jumping::new(&[]);
        let judge = |part| Watch::new(&time).judge(SECOND, SECOND, Some(part));
        assert_eq!((judge(0.95), judge(0.5)), (Some(Disturbance::Starved(0.95)), None));
    }

    #[test]
    fn a_wait_ends_early_if_its_step_says_so() {
        let time = Jumping::new(&[]);
        let mut steps = 0;
        Watch::new(&time).wait(u64::MAX, |now_ns| {
            steps += 1;
            (steps < 4).then_some(now_ns + 1)
        });
        assert_eq!((steps, time.now_ns()), (4, 3));
    }
}
