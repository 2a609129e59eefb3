//! `fairq device probe nvme-soft,…`: whether the queue classes of a controller really differ in
//! speed.
//!
//! The probe runs two loads, both with more requests than the controller fetches at a time, one in
//! the high class and one in the low class, at H/L ratios of 1, 8 and 64. `d2fq` itself, with a
//! fixed ratio, selects these classes: one load has ten thousand times the weight of the other, so
//! it is always behind its share and stays in the high class, and the other is always ahead.
//!
//! Classes have an effect only while commands wait in both. Whenever another program has the CPU
//! for a millisecond, the class that is served faster runs empty and the other class gets its
//! turns, so on a busy machine the measured ratio is below the device's. Hence each ratio is
//! measured several times, and the round with the most requests counts, as the least disturbed one.
//! If its ratio is not as set, and the load's threads were preempted all the time, the result is
//! unknown.

use std::time::Duration;

use anyhow::Context;
use fairq_config::device::{DeviceTable, Kind};
use fairq_config::engine::shard_cpus;
use fairq_config::files::write_out;
use fairq_config::policy::PolicyTable;
use fairq_config::refusal::Refusal;
use fairq_config::table::{align_right, plain_table};
use fairq_host::device::Device;
use fairq_host::measure::load::{self, Times};
use fairq_host::observe::stats::TenantStats;
use serde::Serialize;

use crate::args::ProbeArgs;
use crate::bench::{Bench, Target};
use crate::job::Job;
use crate::plausible::Limits;

/// The H/L ratios to measure.
const RATIOS: [u16; 3] = [1, 8, 64];
/// The measured ratio may differ from the set one by this factor: a class that is empty for a
/// moment loses its turn to the other, and the loss grows with the ratio.
const WITHIN: f64 = 3.0;
/// Each ratio is measured this many times, each for a part of its time.
const ROUNDS: u32 = 4;
/// The requests of each load: 512 are in flight, more than a device like a Z-SSD serves in
/// 0.6 ms.
const LOAD: &str = "bs:4k,depth:256,jobs:2";
/// A load that is preempted more often than this a second has not kept the queues full: each
/// preemption may last milliseconds.
const PUSHED: f64 = 50.0;

/// The result at one ratio.
#[derive(Debug, Serialize)]
struct Outcome {
    /// Ratio of high to low, as set.
    ratio: u16,
    /// Requests a second of each class.
    high_iops: f64,
    low_iops: f64,
    /// Ratio of high to low, as measured.
    measured: f64,
    /// Preemptions of the load's threads a second.
    preempted: f64,
}

/// The finding about a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// Its classes differ as set.
    Differ,
    /// Its classes do not differ as set.
    Alike,
    /// The queues were not kept full, so nothing is known of the device.
    Unknown,
}

impl Outcome {
    fn is_as_set(&self) -> bool {
        let off = self.measured / f64::from(self.ratio);
        (1.0 / WITHIN..=WITHIN).contains(&off)
    }

    fn is_disturbed(&self) -> bool {
        self.preempted > PUSHED
    }
}

fn find(outcomes: &[Outcome]) -> Finding {
    let wrong = || outcomes.iter().filter(|outcome| !outcome.is_as_set());
    match wrong().next() {
        None => Finding::Differ,
        // A ratio that was measured as set is accepted in spite of disturbance, which only makes
        // the classes more alike.
        Some(_) if wrong().any(Outcome::is_disturbed) => Finding::Unknown,
        Some(_) => Finding::Alike,
    }
}

/// Probes a device that is given as for `serve`.
pub(super) fn run(device: &str, args: &ProbeArgs) -> anyhow::Result<()> {
    let foreign = [
        ("--output", args.output.is_some()),
        ("--name", args.name.is_some()),
        ("--size", args.size.is_some()),
    ];
    // The flags are shared with the probe of a file, where a profile is derived.
    if let Some((flag, _)) = foreign.iter().find(|(_, given)| *given) {
        return Err(Refusal::new(format!(
            "{flag} is for the probe of a profile, and for nvme-soft only the classes are probed: \
             leave it out"
        ))
        .into());
    }
    let config = device.parse::<DeviceTable>().map_err(Refusal::new)?.complete(Kind::NvmeSoft)?;
    let cpus = shard_cpus(args.shards.shards, args.shards.cpus.as_ref())?;
    let (slots, opened) = (config.default_slots(), config.open(Vec::new())?);
    if !opened.info().has_classes {
        return Err(Refusal::new(format!(
            "{}: offers no weighted round robin: use mqfq there",
            config.describe()
        ))
        .into());
    }
    let target = Target::Device {
        device: opened,
        cpus,
        slots,
        limits: Limits::NONE,
        path: load::Path::Shards,
        moves: None,
    };
    let bench = Bench { target, groups: Vec::new(), is_quiet: args.json };
    let measured = Duration::from_nanos(args.seconds.0) / ROUNDS;
    let times = Times { warmup: measured / 2, measured, interval: None };
    let outcomes = RATIOS
        .into_iter()
        .map(|ratio| at(&bench, ratio, times))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if args.json {
        let differ = match find(&outcomes) {
            Finding::Differ => Some(true),
            Finding::Alike => Some(false),
            Finding::Unknown => None,
        };
        let object = serde_json::json!({ "classes": &outcomes, "differ": differ });
        return write_out(&serde_json::to_string_pretty(&object)?);
    }
    write_out(&format!("{}\n\n{}\n\n{}", config.describe(), table(&outcomes), verdict(&outcomes)))
}

/// The best round at a ratio.
fn at(bench: &Bench, ratio: u16, times: Times) -> anyhow::Result<Outcome> {
    let rounds =
        (0..ROUNDS).map(|_| round(bench, ratio, times)).collect::<anyhow::Result<Vec<_>>>()?;
    let total = |outcome: &Outcome| outcome.high_iops + outcome.low_iops;
    rounds
        .into_iter()
        .reduce(|a, b| if total(&b) > total(&a) { b } else { a })
        .context("there are rounds")
}

fn round(bench: &Bench, ratio: u16, times: Times) -> anyhow::Result<Outcome> {
    let policy = format!("d2fq:hl=static-{ratio},tau-l=64k")
        .parse::<PolicyTable>()
        .map_err(Refusal::new)?
        .complete()?;
    let job = |text: &str| format!("{text},{LOAD}").parse::<Job>().map_err(Refusal::new);
    let jobs = [job("high=weight:10000")?, job("low=weight:1")?];
    let measured = bench.measure(&policy, &jobs, times, &format!("high to low {ratio}:1"))?;
    let seconds = measured.elapsed.as_secs_f64();
    let iops = |index: usize| {
        measured.tenants.get(index).map_or(0, TenantStats::operations) as f64 / seconds
    };
    let (high_iops, low_iops) = (iops(0), iops(1));
    anyhow::ensure!(
        high_iops > 0.0 && low_iops > 0.0,
        "a class got nothing at {ratio}:1: give each point more --seconds"
    );
    let preempted = measured.preempted as f64 / seconds;
    Ok(Outcome { ratio, high_iops, low_iops, measured: high_iops / low_iops, preempted })
}

fn table(outcomes: &[Outcome]) -> String {
    let mut table = plain_table();
    table.set_header(["H/L set", "H/L measured", "high", "low"]);
    for outcome in outcomes {
        let thousands = |iops: f64| format!("{:.1} K/s", iops / 1e3);
        table.add_row([
            format!("{}", outcome.ratio),
            format!("{:.2}", outcome.measured),
            thousands(outcome.high_iops),
            thousands(outcome.low_iops),
        ]);
    }
    align_right(&mut table);
    table.to_string()
}

fn verdict(outcomes: &[Outcome]) -> String {
    let most = outcomes.iter().map(|outcome| outcome.measured).fold(1.0, f64::max);
    let preempted = outcomes.iter().map(|outcome| outcome.preempted).fold(0.0, f64::max);
    match find(outcomes) {
        Finding::Differ => format!(
            "The classes differ by their weights: d2fq can share this device, up to {most:.0}:1 \
             as it was loaded here."
        ),
        Finding::Alike => {
            "The classes do not differ by their weights: outstanding commands do not wait in the \
             queues. The device is faster\nthan its clients here, or fetches too much at a time: \
             configure a smaller window, or use mqfq."
                .into()
        }
        Finding::Unknown => format!(
            "It is not known whether the classes differ: other programs had the CPU {preempted:.0} \
             times a \
             second, and meanwhile the \
             queues ran empty.\nTry again when the machine has nothing else to do."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(measured: [f64; 3], preempted: f64) -> Vec<Outcome> {
        let outcome = |(ratio, measured)| Outcome {
            ratio,
            high_iops: 1.0,
            low_iops: 1.0,
            measured,
            preempted,
        };
        RATIOS.into_iter().zip(measured).map(outcome).collect()
    }

    #[test]
    fn classes_differ_only_if_all_ratios_come_out() {
        let outcomes = |measured: [f64; 3]| outcomes(measured, 0.0);
        assert!(verdict(&outcomes([1.01, 6.7, 27.2])).contains("up to 27:1"));
        assert!(verdict(&outcomes([1.0, 1.0, 1.0])).contains("do not differ"));
        assert!(verdict(&outcomes([1.0, 8.0, 9.0])).contains("do not differ"));
        assert!(verdict(&outcomes([8.0, 8.0, 64.0])).contains("do not differ"));
    }

    #[test]
    fn on_a_busy_machine_only_what_comes_out_is_believed() {
        assert!(verdict(&outcomes([1.0, 7.0, 30.0], 400.0)).contains("up to 30:1"));
        assert!(
            verdict(&outcomes([1.0, 4.0, 9.0], 400.0))
                .contains("whether the classes differ: other programs had the CPU 400 times")
        );
        assert!(verdict(&outcomes([1.0, 4.0, 9.0], 10.0)).contains("do not differ"));
    }
}
