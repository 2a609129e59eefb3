//! Tells in the log that shards wait for their CPUs.
//!
//! **Problem.** Where other programs have the shards' CPUs, a device that could do more is slow,
//! and nothing else says why. **Model.** A shard that is ready to run and does not is counted by
//! the kernel. When one of them was so for more than [`MUCH`] of the last [`WINDOW_S`] seconds it
//! is told, since others wait for it then, and again when that is over: below [`LITTLE`], so that
//! it is not told each minute.

use std::collections::VecDeque;
use std::time::Duration;

use fairq_host::observe::stats::ShardCounters;

/// Over how many seconds.
const WINDOW_S: usize = 10;
/// Percent of the time that are too many.
const MUCH: u64 = 20;
/// Percent of the time that are none to speak of.
const LITTLE: u64 = 5;

/// The times that shards waited for their CPUs.
#[derive(Default)]
pub(super) struct CpuWaits {
    /// When, and what each shard had waited until then, in nanoseconds; the oldest first.
    seconds: VecDeque<(Duration, Vec<u64>)>,
    is_told: bool,
}

impl CpuWaits {
    /// Takes in what each shard had waited until now. Gives the percentage of the one that waited
    /// most, if that is to be told.
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
        // Between the two bounds nothing is news: a load near one of them is not told each second.
        let is_news = if self.is_told { percent < LITTLE } else { percent > MUCH };
        self.is_told ^= is_news;
        is_news.then_some(percent)
    }

    /// Takes in the second that ends now, and tells what is new.
    pub(super) fn tell(&mut self, now: Duration, shards: &[ShardCounters]) {
        let waited_ns =
            shards.iter().map(|shard| shard.cpu.map_or(0, |cpu| cpu.waited_ns)).collect();
        match (self.count(now, waited_ns), self.is_told) {
            (None, _) => {}
            (Some(percent), true) => tracing::warn!(
                percent,
                "shards wait for their CPUs, which others have: give the server priority (Nice= or \
                 CPUSchedulingPolicy=rr in its \
                 unit), CPUs of its own (--cpus), or the policy kyber-fair, which minds it least"
            ),
            (Some(percent), false) => tracing::info!(percent, "shards wait no more for their CPUs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_of_waiting_are_told_and_nothing_between() {
        let (mut waits, mut waited_ns, mut told) = (CpuWaits::default(), 0, Vec::new());
        // Two shards, of which one waits for so much of each second.
        for second in 0..100_u64 {
            let percent = match second {
                20..50 => 60,
                50..70 => 10,
                _ => 0,
            };
            waited_ns += percent * 10_000_000;
            let told_now = waits.count(Duration::from_secs(second), vec![7, waited_ns]);
            told.extend(told_now.map(|percent| (second, percent)));
        }
        assert_eq!(told, [(23, 24), (75, 4)]);
    }
}
