//! Latency histograms, and the depths that follow from them.
//!
//! **Histograms.** Reads, writes and discards have two each: one of the *total* latency (submit to
//! complete) and one of the *device's* (issue to complete). A bucket is a quarter of the domain's
//! target wide: four *good* buckets up to the target, four *bad* ones beyond, the last for
//! everything above 7/4 of it. Each port counts in words that it alone writes; `tick` adds them up.
//!
//! **Depths** (each tick, 100 ms). The device is *congested* if the 90th percentile of any domain's
//! device latency is in a bad bucket. Then the depth of each domain is multiplied by its 99th
//! percentile of total latency over its target, rounded up to a quarter: domains that meet their
//! target lose depth, domains that miss it gain. Without congestion only the depths of domains that
//! miss their target grow. No depth is below 1 or above its initial value.
//!
//! A percentile needs 500 samples, or the samples of a second. If there is congestion and a domain
//! has too few samples, its last percentile is used, once.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use fairq_core::contract::bounds::boxed;
use fairq_core::contract::platform::{AtomicWord, Ordering, Platform};
use fairq_core::contract::port_set::PortId;
use fairq_core::kyber_fair::domain::{DOMAINS, Domain};

/// Domains with a target: read, write, discard.
pub(super) const TIMED: usize = 3;
const BUCKETS: usize = 8;
const GOOD: usize = 4;
const ENOUGH: u64 = 500;
const PATIENCE_NS: u64 = 1_000_000_000;

/// Two histograms of one domain: counts by bucket.
#[derive(Clone, Copy, Default)]
struct Counts {
    total: [u64; BUCKETS],
    device: [u64; BUCKETS],
}

/// The words that one port writes.
struct Line<P: Platform>([[[P::U64; BUCKETS]; 2]; TIMED]);

/// The counts of all ports.
pub(super) struct Latencies<P: Platform> {
    lines: Box<[CachePadded<Line<P>>]>,
    /// 2^62 / target: turns nanoseconds into quarters of the target, times 2^60.
    scales: [u64; TIMED],
    targets: [u64; TIMED],
}

impl<P: Platform> Latencies<P> {
    /// Empty histograms. Targets are in nanoseconds, at least 1 and at most an hour.
    pub(super) fn new(ports: usize, targets: [u64; TIMED]) -> Self {
        let zero = || P::U64::new(0);
        let line = || {
            Line(core::array::from_fn(|_| {
                core::array::from_fn(|_| core::array::from_fn(|_| zero()))
            }))
        };
        let scales = targets.map(|target| (1 << 62) / target.max(1));
        Latencies { lines: boxed(ports, |_| CachePadded::new(line())), scales, targets }
    }

    /// Counts one request of `port`; only that port calls this.
    #[inline]
    pub(super) fn record(&self, port: PortId, domain: Domain, total_ns: u64, device_ns: u64) {
        let index = domain as usize;
        let Some(Line(domains)) = self.lines.get(usize::from(port.0)).map(|line| &**line) else {
            return;
        };
        let Some([total, device]) = domains.get(index) else { return };
        let (Some(&scale), Some(&target)) = (self.scales.get(index), self.targets.get(index))
        else {
            return;
        };
        for (words, ns) in [(total, total_ns), (device, device_ns)] {
            // The latency is capped at twice the target, so its product with 2^62 / target is at
            // most 2^63.
            let quarters = (ns.min(2 * target) * scale) >> 60;
            if let Some(word) = words.get((quarters as usize).min(BUCKETS - 1)) {
                word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
        }
    }

    /// The counts of all ports since the start.
    fn sum(&self) -> [Counts; TIMED] {
        let mut sums = [Counts::default(); TIMED];
        for line in &self.lines {
            for (sum, [total, device]) in sums.iter_mut().zip(&line.0) {
                for (sum, words) in [(&mut sum.total, total), (&mut sum.device, device)] {
                    sum.iter_mut()
                        .zip(words)
                        .for_each(|(sum, word)| *sum += word.load(Ordering::Relaxed));
                }
            }
        }
        sums
    }
}

/// Samples since the last percentile.
#[derive(Clone, Copy, Default)]
struct Window {
    counts: [u64; BUCKETS],
    since_ns: Option<u64>,
}

impl Window {
    fn add(&mut self, now_ns: u64, counts: impl Iterator<Item = u64>) {
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        if self.samples() > 0 {
            self.since_ns.get_or_insert(now_ns);
        }
    }

    fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The bucket of the percentile, if there are enough samples; then the window begins anew.
    fn percentile(&mut self, now_ns: u64, percent: u64) -> Option<usize> {
        let samples = self.samples();
        let since_ns = self.since_ns?;
        if samples < ENOUGH && now_ns.saturating_sub(since_ns) < PATIENCE_NS {
            return None;
        }
        let mut left = (samples * percent).div_ceil(100);
        let bucket = self.counts.iter().position(|&count| {
            let within = left <= count;
            left = left.saturating_sub(count);
            within
        });
        *self = Window::default();
        bucket
    }
}

/// State that `tick` keeps between calls.
#[derive(Default)]
pub(super) struct Adjuster {
    seen: [Counts; TIMED],
    total: [Window; TIMED],
    device: [Window; TIMED],
    last: [Option<usize>; TIMED],
}

impl Adjuster {
    /// The new depths; `depths` are the present ones, `most` the initial ones.
    pub(super) fn adjust<P: Platform>(
        &mut self,
        now_ns: u64,
        latencies: &Latencies<P>,
        depths: [u32; DOMAINS],
        most: [u32; DOMAINS],
    ) -> [u32; DOMAINS] {
        let sums = latencies.sum();
        let mut congested = false;
        for (domain, sum) in sums.iter().enumerate() {
            let seen = core::mem::replace(&mut self.seen[domain], *sum);
            let news = |now: [u64; BUCKETS], then: [u64; BUCKETS]| {
                now.into_iter().zip(then).map(|(a, b)| a - b)
            };
            self.total[domain].add(now_ns, news(sum.total, seen.total));
            self.device[domain].add(now_ns, news(sum.device, seen.device));
            // This does not use `||`: a window that gives a percentile begins anew, so each window
            // is read regardless of the others.
            congested |=
                self.device[domain].percentile(now_ns, 90).is_some_and(|bucket| bucket >= GOOD);
        }
        let mut new = depths;
        for domain in 0..TIMED {
            let fresh = self.total[domain].percentile(now_ns, 99);
            // A domain's last percentile counts once, so it is taken away.
            let p99 = if congested { fresh.or(self.last[domain].take()) } else { fresh };
            self.last[domain] = fresh.or(self.last[domain]);
            if let Some(bucket) = p99
                && (congested || bucket >= GOOD)
            {
                let scaled = u64::from(depths[domain]) * (bucket as u64 + 1) / GOOD as u64;
                new[domain] = (scaled as u32).clamp(1, most[domain]);
            }
        }
        new
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use fairq_core::Native;

    const MOST: [u32; DOMAINS] = [256, 128, 64, 16];
    const MS: u64 = 1_000_000;
    const PORT: PortId = PortId(0);

    fn latencies() -> Latencies<Native> {
        Latencies::new(2, [2 * MS, 10 * MS, 5_000 * MS])
    }

    fn record(
        latencies: &Latencies<Native>,
        domain: Domain,
        count: u32,
        total_ns: u64,
        device_ns: u64,
    ) {
        (0..count).for_each(|n| latencies.record(PortId(n as u8 % 2), domain, total_ns, device_ns));
    }

    #[test]
    fn buckets_are_quarters_of_the_target() {
        for (target, ns, bucket) in [
            (2 * MS, 0, 0),
            (2 * MS, MS / 2 - 1, 0),
            (2 * MS, MS / 2 + 1, 1),
            (2 * MS, 2 * MS - 1, 3),
            (2 * MS, 2 * MS + 1, 4),
            (2 * MS, u64::MAX, 7),
            (1, 1, 4),
            (3_600_000 * MS, u64::MAX, 7),
        ] {
            let latencies = Latencies::<Native>::new(1, [target; TIMED]);
            latencies.record(PORT, Domain::Write, ns, 0);
            let sum = latencies.sum()[1];
            assert_eq!(
                sum.total.iter().position(|&count| count == 1),
                Some(bucket),
                "{ns} ns, target {target}"
            );
            assert_eq!(sum.device[0], 1);
        }
    }

    #[test]
    fn without_congestion_depths_only_grow() {
        let latencies = latencies();
        let mut adjuster = Adjuster::default();
        record(&latencies, Domain::Read, 600, MS / 10, MS / 10);
        assert_eq!(adjuster.adjust(0, &latencies, MOST, MOST), MOST);
        // Reads take three times their target, but not in the device.
        record(&latencies, Domain::Read, 600, 6 * MS, MS / 10);
        assert_eq!(adjuster.adjust(MS, &latencies, [8, 4, 2, 1], MOST), [16, 4, 2, 1]);
        record(&latencies, Domain::Read, 600, 6 * MS, MS / 10);
        assert_eq!(adjuster.adjust(MS, &latencies, [200, 4, 2, 1], MOST), [256, 4, 2, 1]);
    }

    #[test]
    fn under_congestion_what_meets_its_target_gives_way() {
        let latencies = latencies();
        let mut adjuster = Adjuster::default();
        record(&latencies, Domain::Read, 600, 6 * MS, 3 * MS);
        record(&latencies, Domain::Write, 600, MS, MS);
        assert_eq!(adjuster.adjust(0, &latencies, [128, 128, 64, 16], MOST), [256, 32, 64, 16]);
        // There are too few writes for a percentile, so their last percentile counts once more, and
        // only once.
        for expected in [8, 32] {
            record(&latencies, Domain::Read, 600, 6 * MS, 3 * MS);
            record(&latencies, Domain::Write, 1, MS, MS);
            assert_eq!(
                adjuster.adjust(MS, &latencies, [256, 32, 64, 16], MOST),
                [256, expected, 64, 16]
            );
        }
        record(&latencies, Domain::Read, 600, 6 * MS, 3 * MS);
        assert_eq!(
            adjuster.adjust(PATIENCE_NS, &latencies, [256, 1, 64, 16], MOST),
            [256, 1, 64, 16]
        );
    }

    #[test]
    fn the_tail_decides_not_the_mean() {
        let latencies = latencies();
        let mut adjuster = Adjuster::default();
        record(&latencies, Domain::Read, 985, MS / 10, MS / 10);
        record(&latencies, Domain::Read, 15, 10 * MS, MS / 10);
        assert_eq!(adjuster.adjust(0, &latencies, [100, 4, 2, 1], MOST)[0], 200);
        record(&latencies, Domain::Read, 995, MS / 10, MS / 10);
        record(&latencies, Domain::Read, 5, 10 * MS, 10 * MS);
        assert_eq!(adjuster.adjust(0, &latencies, [100, 4, 2, 1], MOST)[0], 100);
    }
}
