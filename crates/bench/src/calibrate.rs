//! `fairq calibrate`: the D and T that suit a device (MQFQ, Section 3.4).
//!
//! **D.** Without a policy, the number of outstanding requests is raised from 1 until throughput
//! does not rise. D is the smallest number with (nearly) the highest throughput: a smaller D would
//! leave the device idle, a larger one would only add unfairness. Each size of request is swept by
//! itself, and the size that needs the largest D decides. The sweep tries the powers of two, and
//! then the middle between the last number that is too small and the first that is enough.
//!
//! **T.** With that D, small requests from every shard, each with a tenant of its own, are the
//! worst case: the shards throttle each other most often. T is the smallest value with (nearly) the
//! throughput of no throttling; a larger T would only let tenants run further ahead.
//!
//! *Nearly* is 98 % by default, so that noise does not double the result.

use std::time::Duration;

use anyhow::ensure;
use fairq_config::device::{Backing, DeviceConfig, Kind, NvmeConfig};
use fairq_config::engine::{shard_cpus, shards_in_words};
use fairq_config::files::write_out;
use fairq_config::layout::pool::refuse_pool;
use fairq_config::policy::{PolicyConfig, PolicyTable};
use fairq_config::refusal::Refusal;
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{
    Count, Nanos, Size, exact_size, show_bandwidth, show_count, show_duration,
};
use fairq_host::measure::load::{self, Measured, Times};
use fairq_host::observe::stats::TenantStats;
use serde::Serialize;

use crate::args::CalibrateArgs;
use crate::bench::{Bench, Target};
use crate::job::{Job, JobTable, Pattern};
use crate::plausible::Limits;

/// The values of T to try, in bytes.
const THRESHOLDS: [u64; 10] =
    [0, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// A T that in practice throttles no tenant. The results of the other values are compared with its
/// result.
const FREE: u64 = 1 << 30;
/// Each point is measured this many times, each for a part of its time, and the best result counts:
/// a disturbance only lowers a result.
const ROUNDS: u32 = 3;
/// Requests in flight in the search for T, as a multiple of D: enough that no shard runs empty.
const PRESSURE: u32 = 2;
/// Columns of the longest bar.
const BAR: f64 = 48.0;

/// The result of a calibration.
#[derive(Debug, Serialize)]
struct Calibration {
    device: String,
    shards: usize,
    sweeps: Vec<Sweep>,
    /// Requests a second with D slots and no throttling.
    unthrottled_iops: f64,
    thresholds: Vec<Trial>,
    slots: u32,
    threshold: u64,
    recommend: String,
}

/// The sweep of one size of request.
#[derive(Debug, Serialize)]
struct Sweep {
    block: u64,
    points: Vec<Point>,
    /// The smallest number of outstanding requests that is enough.
    slots: u32,
}

/// The result for one number of outstanding requests.
#[derive(Clone, Debug, Serialize)]
struct Point {
    outstanding: u32,
    iops: f64,
    bytes_per_s: f64,
    p50_ns: u64,
    p99_ns: u64,
}

/// The result for one T.
#[derive(Clone, Debug, Serialize)]
struct Trial {
    threshold: u64,
    iops: f64,
}

/// Measures and recommends.
pub fn run(args: CalibrateArgs) -> anyhow::Result<()> {
    let device = args.device.clone().unwrap_or_default().complete(Kind::Paced)?;
    check(&args, &device)?;
    if let Some(file) = device.shared_file() {
        refuse_pool(&file.path, args.overwrite)?;
    }
    let cpus = shard_cpus(args.shards.shards, args.shards.cpus.as_ref())?;
    let shards = cpus.len();
    let target = Target::Device {
        device: device.open(Vec::new())?,
        cpus,
        slots: device.default_slots(),
        limits: Limits::of(&device),
        moves: None,
        path: load::Path::Shards,
    };
    let Nanos(ns) = args.seconds;
    let measured = Duration::from_nanos(ns);
    let bench = Bench { target, groups: Vec::new(), is_quiet: args.json };
    let gauge = Gauge {
        measure: |policy: &PolicyConfig, jobs: &[Job], times, label: &str| {
            bench.measure(policy, jobs, times, label)
        },
        times: Times { warmup: measured / ROUNDS / 5, measured: measured / ROUNDS, interval: None },
        pattern: if args.write { Pattern::RandWrite } else { Pattern::RandRead },
        shards,
        enough: f64::from(args.enough) / 100.0,
    };
    let describe = format!("{} · {}", device.describe(), shards_in_words(shards));
    if !args.json {
        write_out(&describe)?;
    }
    let mut sweeps = Vec::new();
    for &Size(block) in &args.bs {
        let sweep = gauge.sweep(block, args.most)?;
        if !args.json {
            write_out(&sweep.picture(gauge.pattern))?;
        }
        sweeps.push(sweep);
    }
    let slots = sweeps.iter().map(|sweep| sweep.slots).max().unwrap_or(1);
    let smallest = args.bs.iter().map(|size| size.0).min().unwrap_or(4096);
    let (unthrottled_iops, thresholds) = gauge.thresholds(slots, smallest)?;
    let enough = enough_threshold(&thresholds, gauge.enough * unthrottled_iops);
    // Without a sufficient T the largest one comes nearest; the text below states that it was not
    // enough.
    let threshold = enough.unwrap_or(THRESHOLDS[THRESHOLDS.len() - 1]);
    let recommend = format!("mqfq:slots={slots},threshold={}", exact_size(threshold));
    let device = device.describe();
    let found = Calibration {
        device,
        shards,
        sweeps,
        unthrottled_iops,
        thresholds,
        slots,
        threshold,
        recommend,
    };
    if args.json {
        return write_out(&serde_json::to_string_pretty(&found)?);
    }
    write_out(&found.threshold_picture(smallest))?;
    if enough.is_none() {
        let text = "No T was enough: shards lose by throttling, or something else kept the machine \
         busy. Try again, or";
        write_out(&format!("{text} give each point more --seconds.\n"))?;
    }
    write_out(&format!(
        "D = {slots}, T = {}\n\n  --policy {}",
        exact_size(threshold),
        found.recommend
    ))
}

fn check(args: &CalibrateArgs, device: &DeviceConfig) -> Result<(), Refusal> {
    match device {
        DeviceConfig::Null { .. }
        | DeviceConfig::NvmeSoft(NvmeConfig {
            backing: Backing::Null { .. }, profile: None, ..
        }) => Err(Refusal::new(
            "the null device has no parallelism to find, it completes everything at once: name \
             another",
        )),
        DeviceConfig::File { file: None, .. } => {
            Err(Refusal::new("device: a file needs a path: add path=/srv/disk.img, say"))
        }
        _ if args.seconds.0 < 10_000_000 => Err(Refusal::new(
            "seconds: less than 10 ms a point is too short to measure: write --seconds 1, say",
        )),
        _ => Ok(()),
    }
}

/// A measurement, and the settings with which calibrate repeats it under each policy.
struct Gauge<F: Fn(&PolicyConfig, &[Job], Times, &str) -> anyhow::Result<Measured>> {
    measure: F,
    times: Times,
    pattern: Pattern,
    shards: usize,
    enough: f64,
}

impl<F: Fn(&PolicyConfig, &[Job], Times, &str) -> anyhow::Result<Measured>> Gauge<F> {
    fn job(&self, name: &str, block: u64, depth: u32) -> Result<Job, Refusal> {
        let table = JobTable {
            name: name.into(),
            bs: Some(Size(block)),
            depth: Some(Count(depth.into())),
            rw: Some(self.pattern),
            ..JobTable::default()
        };
        table.complete()
    }

    fn sweep(&self, block: u64, most: u32) -> anyhow::Result<Sweep> {
        let none: PolicyConfig = "none".parse::<PolicyTable>().map_err(Refusal::new)?.complete()?;
        let mut points = Vec::new();
        for outstanding in doublings(most) {
            points.push(self.point(&none, block, outstanding)?);
        }
        if let Some(middle) = middle(&points, self.enough) {
            points.push(self.point(&none, block, middle)?);
            points.sort_by_key(|point| point.outstanding);
        }
        let slots = enough(&points, self.enough).map_or(1, |point| point.outstanding);
        Ok(Sweep { block, points, slots })
    }

    /// `outstanding` requests, spread over the shards.
    fn point(&self, none: &PolicyConfig, block: u64, outstanding: u32) -> anyhow::Result<Point> {
        // A job keeps at least one request in flight, so there are no more jobs than requests.
        let shards = (self.shards as u32).min(outstanding);
        let part = |shard: u32| outstanding / shards + u32::from(shard < outstanding % shards);
        let jobs: Vec<Job> = (0..shards)
            .map(|shard| self.job(&format!("s{shard}"), block, part(shard)))
            .collect::<Result<_, _>>()?;
        let label = format!("{} × {outstanding}", exact_size(block));
        let (all, seconds) = self.best(none, &jobs, &label)?;
        Ok(Point {
            outstanding,
            iops: all.operations() as f64 / seconds,
            bytes_per_s: all.bytes() as f64 / seconds,
            p50_ns: all.latency_ns.value_at_quantile(0.5),
            p99_ns: all.latency_ns.value_at_quantile(0.99),
        })
    }

    /// The statistics of the best round, and its length in seconds.
    fn best(
        &self,
        policy: &PolicyConfig,
        jobs: &[Job],
        label: &str,
    ) -> anyhow::Result<(TenantStats, f64)> {
        let mut best = (TenantStats::default(), 1.0);
        for _ in 0..ROUNDS {
            let measured = (self.measure)(policy, jobs, self.times, label)?;
            let round = (total(&measured), measured.elapsed.as_secs_f64());
            ensure!(
                round.0.errors == 0,
                "{label}: the device failed {} requests: see the kernel's log",
                round.0.errors
            );
            // An equal rate counts too: a first round without a request replaces the placeholder,
            // whose length is one second.
            if rate(&round) >= rate(&best) {
                best = round;
            }
        }
        Ok(best)
    }

    /// Requests a second without throttling, and with each T.
    fn thresholds(&self, slots: u32, block: u64) -> anyhow::Result<(f64, Vec<Trial>)> {
        let depth = (slots * PRESSURE).div_ceil(self.shards as u32).clamp(8, 4096);
        let jobs: Vec<Job> = (0..self.shards)
            .map(|shard| self.job(&format!("s{shard}"), block, depth))
            .collect::<Result<_, _>>()?;
        let trial = |threshold: u64| -> anyhow::Result<Trial> {
            let keys = [("slots", slots.into()), ("threshold", threshold)];
            let table = PolicyTable::of("mqfq", &keys);
            let best =
                self.best(&table.complete()?, &jobs, &format!("T = {}", exact_size(threshold)))?;
            Ok(Trial { threshold, iops: rate(&best) })
        };
        // The reference is MQFQ itself with a T that throttles no tenant, so that only T differs.
        let free = trial(FREE)?.iops;
        Ok((free, THRESHOLDS.into_iter().map(trial).collect::<Result<_, _>>()?))
    }
}

fn rate((stats, seconds): &(TenantStats, f64)) -> f64 {
    stats.operations() as f64 / seconds
}

fn total(measured: &Measured) -> TenantStats {
    let mut all = TenantStats::default();
    measured.tenants.iter().for_each(|tenant| all.add(tenant));
    all
}

/// 1, 2, 4 and so on, and `most`.
fn doublings(most: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> =
        std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(|&n| n < most).collect();
    numbers.push(most);
    numbers
}

/// The first point with the fraction `part` of the highest throughput.
fn enough(points: &[Point], part: f64) -> Option<&Point> {
    let most = points.iter().map(|point| point.iops).fold(0.0, f64::max);
    points.iter().find(|point| point.iops >= part * most)
}

/// The number halfway between the last one that is too small and the first one that is enough.
fn middle(points: &[Point], part: f64) -> Option<u32> {
    let first = enough(points, part)?.outstanding;
    let before = points
        .iter()
        .map(|point| point.outstanding)
        .filter(|&outstanding| outstanding < first)
        .max()?;
    let middle = before.midpoint(first);
    (middle > before).then_some(middle)
}

/// The smallest T from which on every T gives at least `iops`.
fn enough_threshold(trials: &[Trial], iops: f64) -> Option<u64> {
    trials.iter().rev().take_while(|trial| trial.iops >= iops).last().map(|trial| trial.threshold)
}

/// A bar for `part` of the whole, in eighths of a column.
fn bar(part: f64) -> String {
    let eighths = (part.clamp(0.0, 1.0) * BAR * 8.0).round() as usize;
    let last = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + last
}

impl Sweep {
    fn picture(&self, pattern: Pattern) -> String {
        let most =
            self.points.iter().map(|point| point.iops).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let what = if pattern == Pattern::RandWrite { "random writes" } else { "random reads" };
        let mut table = plain_table();
        table.set_header(["outstanding", "IOPS", "bandwidth", "p50", "p99", ""]);
        for point in &self.points {
            let mark = if point.outstanding == self.slots { "  ◀ enough" } else { "" };
            table.add_row([
                point.outstanding.to_string(),
                show_count(point.iops),
                show_bandwidth(point.bytes_per_s),
                show_duration(point.p50_ns as f64),
                show_duration(point.p99_ns as f64),
                format!("{}{mark}", bar(point.iops / most)),
            ]);
        }
        format!("\n{} {what}\n{}", exact_size(self.block), finish(table, 5))
    }
}

impl Calibration {
    fn threshold_picture(&self, block: u64) -> String {
        let trials = || self.thresholds.iter().map(|trial| trial.iops);
        let most = trials().fold(self.unthrottled_iops, f64::max).max(f64::MIN_POSITIVE);
        let mut table = plain_table();
        table.set_header(["T", "IOPS", ""]);
        for trial in &self.thresholds {
            let mark = if trial.threshold == self.threshold { "  ◀ T" } else { "" };
            let bar = format!("{}{mark}", bar(trial.iops / most));
            table.add_row([exact_size(trial.threshold), show_count(trial.iops), bar]);
        }
        table.add_row([
            "none".into(),
            show_count(self.unthrottled_iops),
            bar(self.unthrottled_iops / most),
        ]);
        format!(
            "\n{} requests from {}, a tenant each, D = {}\n{}\n",
            exact_size(block),
            shards_in_words(self.shards),
            self.slots,
            finish(table, 2)
        )
    }
}

/// Aligns figures to the right, and the bars in column `bars` to the left.
fn finish(mut table: comfy_table::Table, bars: usize) -> String {
    align_right(&mut table);
    for index in [0, bars] {
        let right = index == 0;
        if let Some(column) = table.column_mut(index) {
            use comfy_table::CellAlignment::{Left, Right};
            column.set_cell_alignment(if right { Right } else { Left });
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plausible::tests::measured;
    use std::cell::Cell;

    /// A device that takes 2 ms for each request and serves four at once. Under `mqfq` it gets at
    /// most three at a time with a T below 64 KiB. Every other measurement is disturbed and has
    /// half the requests.
    fn four_at_once(rounds: &Cell<u32>, label: &str, jobs: &[Job], times: Times) -> Measured {
        rounds.set(rounds.get() + 1);
        let is_small = ["T = 0", "T = 4k", "T = 8k", "T = 16k", "T = 32k"].contains(&label);
        let most = if is_small { 3 } else { 4 };
        let outstanding: u32 = jobs.iter().map(Job::outstanding).sum();
        let per_second = u64::from(outstanding.min(most)) * 500;
        let disturbed = if rounds.get().is_multiple_of(2) { 2 } else { 1 };
        let operations = per_second * times.measured.as_millis() as u64 / 1000 / disturbed;
        measured(operations, Duration::from_millis(2), times.measured)
    }

    #[test]
    fn calibrate_finds_how_many_requests_a_device_holds_and_the_threshold_that_suffices() {
        let times =
            Times { warmup: Duration::ZERO, measured: Duration::from_secs(10), interval: None };
        let rounds = Cell::new(0);
        let gauge = Gauge {
            measure: |_: &PolicyConfig, jobs: &[Job], times, label: &str| {
                Ok(four_at_once(&rounds, label, jobs, times))
            },
            times,
            pattern: Pattern::RandRead,
            shards: 2,
            enough: 0.98,
        };
        let sweep = gauge.sweep(4096, 16).unwrap();
        let outstanding: Vec<u32> = sweep.points.iter().map(|point| point.outstanding).collect();
        assert_eq!((outstanding, sweep.slots), (vec![1, 2, 3, 4, 8, 16], 4));
        assert_eq!(sweep.points[2].iops, 1_500.0);
        let (free, trials) = gauge.thresholds(sweep.slots, 4096).unwrap();
        assert_eq!((free, enough_threshold(&trials, 0.98 * free)), (2_000.0, Some(64 << 10)));
        assert_eq!(rounds.get(), (6 + 11) * ROUNDS);
    }

    #[test]
    fn calibrate_recommends_nothing_from_a_measurement_that_failed() {
        let gauge = |measure: fn() -> anyhow::Result<Measured>| {
            let times = Times {
                warmup: Duration::ZERO,
                measured: Duration::from_millis(10),
                interval: None,
            };
            let measure = move |_: &PolicyConfig, _: &[Job], _, _: &str| measure();
            let gauge = Gauge { measure, times, pattern: Pattern::Read, shards: 1, enough: 0.98 };
            gauge.sweep(4096, 4).map(|sweep| sweep.slots).map_err(|error| error.to_string())
        };
        assert_eq!(gauge(|| anyhow::bail!("it was disturbed")), Err("it was disturbed".into()));
        let failed = || {
            let mut measured = measured(5, Duration::from_millis(1), Duration::from_millis(10));
            measured.tenants[0].errors = 5;
            Ok(measured)
        };
        let text = gauge(failed).unwrap_err();
        assert!(text.ends_with("the device failed 5 requests: see the kernel's log"), "{text}");
    }

    fn points(values: &[(u32, f64)]) -> Vec<Point> {
        let point = |&(outstanding, iops)| Point {
            outstanding,
            iops,
            bytes_per_s: 0.0,
            p50_ns: 0,
            p99_ns: 0,
        };
        values.iter().map(point).collect()
    }

    #[test]
    fn enough_is_the_first_that_reaches_the_part() {
        let points = points(&[
            (1, 11.0),
            (2, 22.0),
            (4, 44.0),
            (8, 88.0),
            (16, 99.0),
            (32, 100.0),
            (64, 99.5),
        ]);
        assert_eq!(enough(&points, 0.98).unwrap().outstanding, 16);
        assert_eq!(enough(&points, 1.0).unwrap().outstanding, 32);
        assert_eq!(middle(&points, 0.98), Some(12));
        assert_eq!(middle(&points, 0.05), None, "nothing is below 1");
        assert_eq!(middle(&points[..2], 0.98), None, "nothing is between 1 and 2");
    }

    #[test]
    fn every_larger_threshold_must_do_as_well() {
        let trial = |(threshold, iops)| Trial { threshold, iops };
        let trials = |values: &[(u64, f64)]| values.iter().copied().map(trial).collect::<Vec<_>>();
        assert_eq!(
            enough_threshold(&trials(&[(0, 50.0), (4, 90.0), (8, 99.0), (16, 100.0)]), 98.0),
            Some(8)
        );
        let lucky = trials(&[(0, 99.0), (4, 90.0), (8, 99.0), (16, 100.0)]);
        assert_eq!(enough_threshold(&lucky, 98.0), Some(8), "0 was luck");
        assert_eq!(enough_threshold(&trials(&[(0, 100.0), (4, 100.0)]), 98.0), Some(0));
        assert_eq!(enough_threshold(&trials(&[(0, 50.0), (4, 90.0)]), 98.0), None);
    }

    #[test]
    fn doublings_end_with_the_most() {
        assert_eq!(doublings(512), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(doublings(5), [1, 2, 4, 5]);
        assert_eq!(doublings(1), [1]);
    }

    #[test]
    fn bars_are_drawn_in_eighths() {
        assert_eq!(bar(1.0).chars().count(), 48);
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.5 / 48.0), "█▌");
    }
}
