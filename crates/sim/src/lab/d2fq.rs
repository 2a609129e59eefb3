//! D2FQ's claims that need no model of the host's CPU.
//!
//! The paper's weights are 1 to 8 and its thresholds are told for weight 8. Only ratios matter: where all weights of a figure
//! divide, weight 8 is 100 here and tau_l is 8 MiB; with weights 1 and 3 these are 100 and 300, and tau_l is 1 MiB. All runs are on the
//! Z-SSD, with eight cores, 128 requests a thread, and one period of the ratio a second.

use std::ops::Range;

use fairq_core::ClassWeights;
use fairq_core::d2fq::Ratio;
use fairq_device::Profile;

use super::{Answer, Experiment, go, near};
use crate::meter::Run;
use crate::scenario::{Job, MS, SECOND, Scenario, Tenant};
use crate::subject::{AnyPolicy, Direct, Multi};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["D-3.2", "D-3.3", "D-3.4", "D-5.1", "D-5.2"], run: walkthrough },
    Experiment { ids: &["D-6.1", "D-6.2"], run: eight_flows },
    Experiment { ids: &["D-7.1", "D-7.2", "D-7.3", "D-8.1", "D-8.2"], run: thresholds },
    Experiment { ids: &["D-11a.1", "D-11a.2", "D-11a.4", "D-14.1"], run: sizes },
    Experiment { ids: &["D-11b.1", "D-11b.2"], run: threads },
    Experiment { ids: &["D-11c.1", "D-11c.3", "D-13.2"], run: weights },
    Experiment { ids: &["D-15.1", "D-15.2", "D-15.3"], run: events },
];

const MQFQ: AnyPolicy = AnyPolicy::Multi(Multi { slots: 64, threshold: 45 << 10 });
const DYNAMIC: Ratio = Ratio::Dynamic { initial: 256 };
const MIB: u64 = 1 << 20;

fn d2fq(ratio: Ratio, tau_l: u64) -> AnyPolicy {
    AnyPolicy::Direct(Direct { ratio, tau_l, medium: true })
}

/// Flows of so many threads on a core each, sizes and weights.
fn scenario(flows: &[(usize, u32, u16)], duration_ns: u64) -> Result<Scenario, String> {
    let profile = Profile::named("z-ssd").map_err(|error| error.to_string())?;
    let mut cores = (0..8).cycle();
    let tenant = |&(threads, bytes, weight): &(usize, u32, u16)| {
        let cores = cores.by_ref().take(threads).collect();
        Tenant::new(&format!("{threads}x{bytes}({weight})"), weight, cores, Job::random_read(bytes, 128))
    };
    Ok(Scenario::new(profile, 8, flows.iter().map(tenant).collect(), duration_ns))
}

/// How far the flow that is farthest off is from its share by weight, as a part of that.
fn off(run: &Run, weights: &[u16]) -> f64 {
    let all: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let off = |(share, &weight): (f64, &u16)| (share / (f64::from(weight) / all) - 1.0).abs();
    run.shares().into_iter().zip(weights).map(off).fold(0.0, f64::max)
}

/// The H/L ratios that were in force during a time.
fn ratios(run: &Run, during: Range<u64>) -> Vec<u16> {
    let ratio = |weights: &ClassWeights| weights.high / weights.low;
    let before = run.class_weights.iter().rev().find(|(at_ns, _)| *at_ns <= during.start);
    let within = run.class_weights.iter().filter(|(at_ns, _)| *at_ns > during.start && *at_ns < during.end);
    let mut ratios: Vec<u16> = before.into_iter().chain(within).map(|(_, weights)| ratio(weights)).collect();
    ratios.sort_unstable();
    ratios.dedup();
    ratios
}

fn listed(ratios: &[u16]) -> String {
    ratios.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

/// The part of a flow's bytes in the high class, and in the low.
fn high_and_low(run: &Run, flow: usize) -> (f64, f64) {
    let [_, high, medium, low] = run.tenants[flow].classes.map(|bytes| bytes as f64);
    let all = (high + medium + low).max(1.0);
    (high / all, low / all)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Sections 3.1 and 3.2, Figure 5: weights 3:1, deep queues, fixed ratios.
fn walkthrough(seed: u64) -> Result<Vec<Answer>, String> {
    let mut scenario = scenario(&[(1, 4096, 300), (1, 4096, 100)], 6 * SECOND)?;
    scenario.warmup_ns = 3 * SECOND;
    let mut at = |ratio| go(d2fq(Ratio::Static(ratio), MIB), &scenario, seed);
    let (two, three, six) = (at(2)?, at(3)?, at(6)?);
    let more = [16, 64, 256].map(&mut at).into_iter().collect::<Result<Vec<Run>, String>>()?;
    let by_ratio: Vec<&Run> = [&three, &six].into_iter().chain(&more).collect();
    let tails: Vec<f64> = by_ratio.iter().map(|run| run.tenants[1].quantile_us(0.99) / 1e3).collect();
    let highs: Vec<f64> = by_ratio.iter().map(|run| high_and_low(run, 1).0).collect();
    let share = |run: &Run| run.shares()[0] / run.shares()[1];
    let (a, b) = (high_and_low(&three, 0).0, high_and_low(&three, 1).1);
    let list = |values: &[f64], digits| values.iter().map(|v| format!("{v:.digits$}")).collect::<Vec<_>>().join(" ");
    let percents: Vec<f64> = highs.iter().map(|high| 100.0 * high).collect();
    Ok(vec![
        Answer {
            id: "D-3.2",
            measured: format!("{:.2}:1; a {} high, b {} low", share(&three), percent(a), percent(b)),
            holds: near(share(&three), 3.0, 0.05) && a >= 0.95 && b >= 0.95,
            note: "",
        },
        Answer { id: "D-3.3", measured: format!("{:.2}:1", share(&two)), holds: share(&two) < 3.0 * 0.95, note: "" },
        Answer {
            id: "D-3.4",
            measured: format!("{:.2}:1; b {} high", share(&six), percent(highs[1])),
            holds: near(share(&six), 3.0, 0.05) && (highs[1] - 0.6).abs() <= 0.05,
            note: "b uses the medium class instead of high and low in turn; the paper's 60 % has two classes",
        },
        Answer {
            id: "D-5.1",
            measured: format!("p99 of b {} ms", list(&tails, 2)),
            holds: tails.is_sorted(),
            note: "H/L 3, 6, 16, 64, 256; up to about 9 the medium class takes b",
        },
        Answer {
            id: "D-5.2",
            measured: format!("b in high: {} %", list(&percents, 1)),
            holds: a >= 0.95 && b >= 0.95 && highs.is_sorted() && highs[4] > highs[0],
            note: "H/L 3, 6, 16, 64, 256",
        },
    ])
}

/// Figure 6: one flow of weight 1, seven of weight 3, two classes.
fn eight_flows(seed: u64) -> Result<Vec<Answer>, String> {
    let weights = [100, 300, 300, 300, 300, 300, 300, 300];
    let mut scenario = scenario(&weights.map(|weight| (1, 4096, weight)), 15 * SECOND)?;
    scenario.warmup_ns = 10 * SECOND;
    let two_classes = |ratio| AnyPolicy::Direct(Direct { ratio, tau_l: MIB, medium: false });
    let (fixed, dynamic) =
        (go(two_classes(Ratio::Static(4)), &scenario, seed)?, go(two_classes(DYNAMIC), &scenario, seed)?);
    let found = ratios(&dynamic, 10 * SECOND..15 * SECOND);
    let (low, high) = (high_and_low(&fixed, 0).1, high_and_low(&fixed, 1).0);
    Ok(vec![
        Answer {
            id: "D-6.1",
            measured: format!(
                "f1 {} low, f3 {} high; {} off",
                percent(low),
                percent(high),
                percent(off(&fixed, &weights))
            ),
            holds: low >= 0.95 && high >= 0.95 && off(&fixed, &weights) > 0.05,
            note: "",
        },
        Answer {
            id: "D-6.2",
            measured: format!("H/L {}; {} off", listed(&found), percent(off(&dynamic, &weights))),
            holds: found == [22] && off(&dynamic, &weights) <= 0.05,
            note: "the last 5 of 15 seconds",
        },
    ])
}

const INTERVAL: u64 = 50 * MS;

/// From when on every interval is fair within 10 %, in seconds.
fn fair_from(run: &Run) -> f64 {
    let intervals = run.tenants[0].series.len();
    let is_fair = |interval: usize| {
        let bytes = run.tenants.iter().map(|got| got.series[interval] as f64);
        let (least, most) = bytes.fold((f64::MAX, 0.0f64), |(least, most), bytes| (least.min(bytes), most.max(bytes)));
        most <= 1.1 * least
    };
    let last = (0..intervals).rev().find(|&interval| !is_fair(interval));
    last.map_or(0.0, |last| ((last + 1) as u64 * INTERVAL) as f64 / 1e9)
}

/// Figures 7 and 8: three flows of 4, 8 and 16 KB, tau_l from 1 MB to 1 GB.
fn thresholds(seed: u64) -> Result<Vec<Answer>, String> {
    let mut scenario = scenario(&[(1, 4096, 100), (1, 8192, 100), (1, 16_384, 100)], 8 * SECOND)?;
    scenario.warmup_ns = 4 * SECOND;
    scenario.series_ns = Some(INTERVAL);
    let at = |tau_l| go(d2fq(DYNAMIC, tau_l), &scenario, seed);
    let runs = [MIB, 10 * MIB, 100 * MIB, 1024 * MIB].map(at).into_iter().collect::<Result<Vec<Run>, String>>()?;
    let from: Vec<f64> = runs.iter().map(fair_from).collect();
    let tail = |run: &Run, flow: usize| run.tenants[flow].quantile_us(0.99);
    let longer = |a: &Run, b: &Run| (0..3).map(|flow| tail(a, flow) / tail(b, flow)).fold(0.0, f64::max);
    let (ten, one) = (longer(&runs[1], &runs[2]).max(longer(&runs[2], &runs[1])), longer(&runs[0], &runs[2]));
    let times = from.iter().map(|from| format!("{from:.2}")).collect::<Vec<_>>().join(" ");
    Ok(vec![
        Answer {
            id: "D-7.1",
            measured: format!("fair from {:.2} s on", from[0]),
            holds: from[0] <= 0.1,
            note: "intervals of 50 ms, the most at most 10 % above the least",
        },
        Answer {
            id: "D-7.2",
            measured: format!("fair from {:.2} s on", from[3]),
            holds: from[3] > 1.0 && from[3] < 8.0,
            note: "",
        },
        Answer {
            id: "D-7.3",
            measured: format!("{times} s"),
            holds: from.is_sorted() && from[3] > from[0],
            note: "1, 10, 100 MB, 1 GB",
        },
        Answer {
            id: "D-8.1",
            measured: format!("p99 differ {ten:.2} times"),
            holds: ten <= 1.25,
            note: "10 MB and 100 MB, the flow where they differ most",
        },
        Answer {
            id: "D-8.2",
            measured: format!("p99 {one:.2} times as long"),
            holds: near(one, 3.7, 0.3),
            note: "1 MB and 100 MB, the flow where they differ most",
        },
    ])
}

/// Figure 11's three loads under none, MQFQ and D2FQ, ten seconds, measured from the sixth on.
fn figure_11(flows: &[(usize, u32, u16)], seed: u64) -> Result<[Run; 3], String> {
    let mut scenario = scenario(flows, 10 * SECOND)?;
    scenario.warmup_ns = 6 * SECOND;
    scenario.series_ns = Some(10 * MS);
    let run = |policy| go(policy, &scenario, seed);
    Ok([run(AnyPolicy::FirstCome)?, run(MQFQ)?, run(d2fq(DYNAMIC, 8 * MIB))?])
}

const BFQ: &str = "BFQ's part is not built yet";
const LAST: Range<u64> = 6 * SECOND..10 * SECOND;

/// Whether none gives these parts and the others are fair, within 5 %.
fn fair(id: &'static str, runs: &[Run; 3], unscheduled: f64, weights: &[u16]) -> Answer {
    let [none, mqfq, d2fq] = runs;
    let ratio = none.tenants[1].bytes as f64 / none.tenants[0].bytes as f64;
    let (mqfq, d2fq) = (off(mqfq, weights), off(d2fq, weights));
    Answer {
        id,
        measured: format!("none 1:{ratio:.2}; MQFQ {} off, D2FQ {} off", percent(mqfq), percent(d2fq)),
        holds: near(ratio, unscheduled, 0.05) && mqfq <= 0.05 && d2fq <= 0.05,
        note: BFQ,
    }
}

fn converged(id: &'static str, run: &Run, ratio: u16) -> Answer {
    let found = ratios(run, LAST);
    Answer { id, measured: listed(&found), holds: found == [ratio], note: "the last 4 of 10 seconds" }
}

fn sizes(seed: u64) -> Result<Vec<Answer>, String> {
    let runs = figure_11(&[(4, 4096, 100), (4, 8192, 100)], seed)?;
    let totals = runs.each_ref().map(|run| run.bandwidth() / 1e9);
    let (least, most) = totals.iter().fold((f64::MAX, 0.0f64), |(least, most), &t| (least.min(t), most.max(t)));
    let variation = |run: &Run, flow: usize| {
        let series: Vec<f64> = run.tenants[flow].series[600..].iter().map(|&bytes| bytes as f64).collect();
        let mean = series.iter().sum::<f64>() / series.len() as f64;
        (series.iter().map(|bytes| (bytes - mean).powi(2)).sum::<f64>() / series.len() as f64).sqrt() / mean
    };
    let varies = [variation(&runs[2], 0), variation(&runs[2], 1)];
    Ok(vec![
        fair("D-11a.1", &runs, 2.0, &[100, 100]),
        Answer {
            id: "D-11a.2",
            measured: format!("none {:.2}, MQFQ {:.2}, D2FQ {:.2} GB/s", totals[0], totals[1], totals[2]),
            holds: most <= 1.05 * least,
            note: "",
        },
        converged("D-11a.4", &runs[2], 3),
        Answer {
            id: "D-14.1",
            measured: format!(
                "variation {} and {}, {} off",
                percent(varies[0]),
                percent(varies[1]),
                percent(off(&runs[2], &[100, 100]))
            ),
            holds: varies.iter().all(|&varies| varies <= 0.05) && off(&runs[2], &[100, 100]) <= 0.05,
            note: "coefficient of variation over intervals of 10 ms",
        },
    ])
}

fn threads(seed: u64) -> Result<Vec<Answer>, String> {
    let runs = figure_11(&[(2, 8192, 100), (6, 8192, 100)], seed)?;
    Ok(vec![fair("D-11b.1", &runs, 3.0, &[100, 100]), converged("D-11b.2", &runs[2], 3)])
}

fn weights(seed: u64) -> Result<Vec<Answer>, String> {
    let weights = [100, 75, 50, 25];
    let runs = figure_11(&weights.map(|weight| (2, 8192, weight)), seed)?;
    let latencies = |run: &Run| run.tenants.iter().map(|got| got.mean_us() / 1e3).collect::<Vec<f64>>();
    let [mqfq, d2fq] = [latencies(&runs[1]), latencies(&runs[2])];
    let list = |values: &[f64]| values.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>().join(" ");
    Ok(vec![
        fair("D-11c.1", &runs, 1.0, &weights),
        converged("D-11c.3", &runs[2], 6),
        Answer {
            id: "D-13.2",
            measured: format!("mean ms: MQFQ {}; D2FQ {}", list(&mqfq), list(&d2fq)),
            holds: mqfq.is_sorted() && d2fq.is_sorted(),
            note: "the load of Fig 11c, weights 8, 6, 4, 2",
        },
    ])
}

/// Figure 15: a flow of weight 1, three of weight 3 from 10 s on, four more from 20 s on.
fn events(seed: u64) -> Result<Vec<Answer>, String> {
    let weights = [100, 300, 300, 300, 300, 300, 300, 300];
    let mut scenario = scenario(&weights.map(|weight| (2, 4096, weight)), 30 * SECOND)?;
    scenario.warmup_ns = 25 * SECOND;
    for (number, tenant) in scenario.tenants.iter_mut().enumerate() {
        *tenant = tenant.clone().from(match number {
            0 => 0,
            1..=3 => 10 * SECOND,
            _ => 20 * SECOND,
        });
    }
    let run = |ratio| go(d2fq(ratio, MIB), &scenario, seed);
    let (three, many, dynamic) = (run(Ratio::Static(3))?, run(Ratio::Static(128))?, run(DYNAMIC)?);
    let (first, second) = (ratios(&dynamic, 15 * SECOND..20 * SECOND), ratios(&dynamic, 25 * SECOND..30 * SECOND));
    let tail = |run: &Run| run.tenants[0].quantile_us(0.99) / 1e3;
    let [a, b, c] = [&three, &many, &dynamic].map(|run| off(run, &weights));
    Ok(vec![
        Answer {
            id: "D-15.1",
            measured: format!("static-3 {} off, static-128 {}, dynamic {}", percent(a), percent(b), percent(c)),
            holds: a > 0.05 && b <= 0.05 && c <= 0.05,
            note: "the last 5 of 30 seconds",
        },
        Answer {
            id: "D-15.2",
            measured: format!("p99 of base: static-128 {:.1}, dynamic {:.1} ms", tail(&many), tail(&dynamic)),
            holds: tail(&many) >= 1.5 * tail(&dynamic),
            note: "base keeps 256 requests waiting: their number and its share set its latency, and the share is the same",
        },
        Answer {
            id: "D-15.3",
            measured: format!("{} after event1, {} after event2", listed(&first), listed(&second)),
            holds: first == [7] && second.iter().all(|ratio| (17..=18).contains(ratio)),
            note: "the last 5 seconds of each; 10 = 9 + 1 is what two classes ask for; why event2 does not raise it is open",
        },
    ])
}
