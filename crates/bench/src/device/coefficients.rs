//! The costs of requests, derived from a device's speed: the linear model of Linux's io.cost, in
//! equivalent bytes.
//!
//! A request has a base cost and a cost for each byte. Large sequential requests give the cost of a
//! byte, and 4 KiB requests the base: random and sequential ones have a base each. The unit is that
//! of `cost=device`: a random read of 4 KiB costs 4,096.

use serde::Serialize;

/// The length of the small requests that are measured.
pub(super) const SMALL: u64 = 4096;

/// The speed of the device in one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Speed {
    /// Requests of 4 KiB a second: random ones and sequential ones.
    pub random_iops: f64,
    pub sequential_iops: f64,
    /// Bytes a second, of large sequential requests.
    pub bytes_s: f64,
}

/// The costs of requests of one direction, in equivalent bytes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Line {
    /// Base cost of a random request, and of a sequential one.
    pub random: u64,
    pub sequential: u64,
    /// Cost of each KiB.
    pub kib: u64,
}

/// The costs of requests, as `status` shows them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Coefficients {
    pub read: Line,
    /// `None`: writes were not measured.
    pub write: Option<Line>,
    /// Cost of a KiB written, in percent of a KiB read: `write-cost` for policies that count bytes.
    pub write_percent: Option<u64>,
    /// The same speeds in the form of the kernel's `io.cost.model`.
    pub io_cost_model: String,
}

impl Coefficients {
    pub(super) fn new(read: Speed, write: Option<Speed>) -> Coefficients {
        // The rate of small random requests can exceed the bandwidth of large ones; then requests
        // have no base, and 4 KiB cost only their bytes.
        let unit = SMALL as f64 / (1.0 / read.random_iops).max(SMALL as f64 / read.bytes_s);
        let line = |speed: Speed| {
            let byte_s = 1.0 / speed.bytes_s;
            let base = |iops: f64| (1.0 / iops - SMALL as f64 * byte_s).max(0.0) * unit;
            Line {
                random: base(speed.random_iops).round() as u64,
                sequential: base(speed.sequential_iops).round() as u64,
                kib: (1024.0 * byte_s * unit).round() as u64,
            }
        };
        let large = |speed: Speed| read.bytes_s / speed.bytes_s;
        let keys = |letter: char, speed: Speed| {
            format!(
                "{letter}bps={:.0} {letter}seqiops={:.0} {letter}randiops={:.0}",
                speed.bytes_s, speed.sequential_iops, speed.random_iops
            )
        };
        let writes = write.map(|speed| format!(" {}", keys('w', speed))).unwrap_or_default();
        Coefficients {
            read: line(read),
            write: write.map(line),
            write_percent: write.map(|speed| (large(speed) * 100.0).round() as u64),
            io_cost_model: format!("ctrl=user model=linear {}{writes}", keys('r', read)),
        }
    }

    /// The costs as text, one line each.
    pub(super) fn text(&self) -> String {
        let line = |name: &str, Line { random, sequential, kib }: Line| {
            format!("\n{name:<6} {random:>8} {sequential:>11} {kib:>8}")
        };
        let mut text = format!(
            "Costs in equivalent bytes (a random read of 4 KiB costs 4096): the base of random and \
             of sequential requests, and each KiB.\n{:<6} {:>8} {:>11} {:>8}",
            "", "random", "sequential", "KiB"
        );
        text += &line("read", self.read);
        if let Some(write) = self.write {
            text += &line("write", write);
        }
        if let Some(percent) = self.write_percent {
            text += &format!("\nFor policies that count bytes: write-cost={percent}%");
        }
        text + &format!("\nThe kernel's io.cost.model: {}", self.io_cost_model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read takes 1 us and 1 ns a byte, a write twice that; sequential requests have half the
    /// base.
    #[test]
    fn costs_are_those_that_the_speeds_come_from() {
        let speed = |times: f64| Speed {
            random_iops: 1e9 / (times * (1000.0 + 4096.0)),
            sequential_iops: 1e9 / (times * (500.0 + 4096.0)),
            bytes_s: 1e9 / times,
        };
        let found = Coefficients::new(speed(1.0), Some(speed(2.0)));
        let line = |times: f64| {
            let of = |ns: f64| (ns * times * 4096.0 / 5096.0).round() as u64;
            Line { random: of(1000.0), sequential: of(500.0), kib: of(1024.0) }
        };
        assert_eq!((found.read, found.write), (line(1.0), Some(line(2.0))));
        assert_eq!(found.write_percent, Some(200));
        let random = found.read.random + 4 * found.read.kib;
        assert!((4094..=4098).contains(&random), "{found:?}");
        let model = "ctrl=user model=linear rbps=1000000000 rseqiops=217581 rrandiops=196232 \
                     wbps=500000000 wseqiops=108790 wrandiops=98116";
        assert_eq!(found.io_cost_model, model);
    }

    #[test]
    fn a_device_that_has_no_bases_costs_bytes() {
        let fast = Speed { random_iops: 1e6, sequential_iops: 2e6, bytes_s: 2e9 };
        let found = Coefficients::new(fast, None);
        assert_eq!(found.read, Line { random: 0, sequential: 0, kib: 1024 });
        assert_eq!((found.write, found.write_percent), (None, None));
        assert!(!found.text().contains("write"), "{}", found.text());
    }
}
