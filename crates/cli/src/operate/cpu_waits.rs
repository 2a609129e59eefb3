//! Logs that shards wait for their CPUs.
//!
//! **Problem.** If other programs use the shards' CPUs, the device is not fully used, and no other
//! output shows the reason. **Model.** The kernel counts the time for which a shard is ready to run
//! and does not. A warning is logged if one shard waited for more than [`MUCH`] percent of the last
//! [`WINDOW_S`] seconds, because the other shards then wait for that shard. A second line is logged
//! when it is below [`LITTLE`]; the gap between the bounds limits the number of lines.

use std::collections::VecDeque;
use std::time::Duration;

use fairq_host::observe::stats::ShardCounters;

/// Length of the measured time, in seconds.
const WINDOW_S: usize = 10;
/// Percent of the time that cause a warning.
const MUCH: u64 = 20;
/// Percent of the time below which the warning is over.
const LITTLE: u64 = 5;

/// The times that shards waited for their CPUs.
#[derive(Default)]
pub(super) struct CpuWaits {
    /// Time of a sample, and each shard's wait until then, in nanoseconds; the oldest first.
    seconds: VecDeque<(Duration, Vec<u64>)>,
    is_told: bool,
}

impl CpuWaits {
    /// Adds a sample of each shard's wait. Returns the percentage of the shard that waited most, if
    /// it is to be logged.
    fn count(&mut self, now: Duration, waited_ns: Vec<u64>) -> Option<u64> {
        self.seconds.push_back((now, waited_ns));
        if self.seconds.len() <= WINDOW_S {
            return None;
        }
        let (then, before) = self.seconds.pop_front()?;
        let (_, after) = self.seconds.back()?;
        let most_ns =
            before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).max()?;
        let percent = most_ns * 100 / ((now - then).as_nanos() as u64).max(1);
        // Between the two bounds nothing is logged, so a load near one of them makes few lines.
        let is_news = if self.is_told { percent < LITTLE } else { percent > MUCH };
        self.is_told ^= is_news;
        is_news.then_some(percent)
    }

    /// Adds the sample of the second that ends now, and logs a change.
    pub(super) fn log(&mut self, now: Duration, shards: &[ShardCounters]) {
        let waited_ns =
            shards.iter().map(|shard| shard.cpu.map_or(0, |cpu| cpu.waited_ns)).collect();
        match (self.count(now, waited_ns), self.is_told) {
            (None, _) => {}
            (Some(percent), true) => tracing::warn!(
                percent,
                "shards wait for their CPUs, which other programs use: give the server priority \
                 (Nice= or CPUSchedulingPolicy=rr in its unit), CPUs of its own (--cpus), or the \
                 policy kyber-fair, which suffers least from such waits"
            ),
            (Some(percent), false) => tracing::info!(percent, "shards get their CPUs again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_of_waiting_are_told_and_nothing_between() {
        let (mut waits, mut waited_ns, mut told) = (CpuWaits::default(), 0, Vec::new());
        // Two shards, one of which waits for this part of each second.
        for second in 0..100_u64 {
            let percent = match second {
                20..50 => 60,
                50..70 => 10,
                _ => 0,
            };
            waited_ns += percent * 10_000_000;
            let logged_now = waits.count(Duration::from_secs(second), vec![7, waited_ns]);
            told.extend(logged_now.map(|percent| (second, percent)));
        }
        assert_eq!(told, [(23, 24), (75, 4)]);
    }
}
