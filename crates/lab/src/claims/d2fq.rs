//! D2FQ's claims that need no model of the host's CPU.
//!
//! The paper's weights are 1 to 8 and its thresholds are given for weight 8. Only ratios matter:
//! where all weights of a figure divide, weight 8 is 100 here and tau_l is 8 MiB; with weights 1
//! and 3 these are 100 and 300, and tau_l is 1 MiB. All runs are on the Z-SSD, with eight cores,
//! 128 requests a thread, and one period of the ratio a second.
//!
//! Threads stay on the cores where they begin, except in Figure 15, where each core has two of them
//! in the end. The paper pins none, and its ratios of that figure need some unevenness: as long as
//! flows of one weight are served exactly alike, none of them is ever ahead of the others, the
//! medium class stays empty, and Eq. 2 gives the ratio for two classes (10 after event1).
//! [`MOVES_NS`] gives the reason for the rate at which threads move.

use std::ops::Range;

use fairq_core::ClassWeights;
use fairq_core::d2fq::Ratio;
use fairq_device::Profile;
use fairq_sim::policies::{AnySubject, D2fqSubject, Kernel, MqfqSubject};
use fairq_sim::scenario::{Job, MOVES_NS, MS, SECOND, Scenario, Tenant};
use fairq_sim::{Got, Run};

use super::{
    Answer, Axis, D2FQ_BUDGET, Experiment, Figure, Line, Outcome, Setting, agreed, go, linux_bfq,
    near, percent, rule,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        ids: &["D-3.2", "D-3.3", "D-3.4", "D-5.1", "D-5.2"],
        seconds: 8,
        run: walkthrough,
    },
    Experiment { ids: &["D-6.1", "D-6.2"], seconds: 8, run: eight_flows },
    Experiment {
        ids: &["D-7.1", "D-7.2", "D-7.3", "D-8.1", "D-8.2", "D-8.3"],
        seconds: 20,
        run: thresholds,
    },
    Experiment {
        ids: &[
            "D-11a.1", "D-11a.2", "D-11a.4", "D-11b.1", "D-11b.2", "D-11c.1", "D-11c.3", "D-13.2",
            "D-14.1",
        ],
        seconds: 40,
        run: three_loads,
    },
    Experiment { ids: &["D-15.1", "D-15.2", "D-15.3"], seconds: 20, run: events },
];

const MQFQ: AnySubject = AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 });
const DYNAMIC: Ratio = Ratio::Dynamic { initial: 256 };
const MIB: u64 = 1 << 20;
const BY_SECOND: [Axis; 2] = [Axis::linear("s"), Axis::linear("MB/s")];

fn d2fq(ratio: Ratio, tau_l: u64) -> AnySubject {
    AnySubject::D2fq(D2fqSubject { ratio, tau_l, tau_m: None, strict_paper: false })
}

/// A scenario of flows, each with a number of threads on a core each, a size and a weight.
fn scenario(flows: &[(usize, u32, u16)], duration_ns: u64) -> Result<Scenario, String> {
    let profile = Profile::named("z-ssd").map_err(|error| error.to_string())?;
    let mut cores = (0..8).cycle();
    let tenant = |&(threads, bytes, weight): &(usize, u32, u16)| {
        let cores = cores.by_ref().take(threads).collect();
        Tenant::new(
            &format!("{threads}x{bytes}({weight})"),
            weight,
            cores,
            Job::random_read(bytes, 128),
        )
    };
    Ok(Scenario::new(profile, 8, flows.iter().map(tenant).collect(), duration_ns))
}

/// The largest relative deviation of a flow from its share by weight.
fn off(run: &Run, weights: &[u16]) -> f64 {
    let all: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let off = |(share, &weight): (f64, &u16)| (share / (f64::from(weight) / all) - 1.0).abs();
    run.shares().into_iter().zip(weights).map(off).fold(0.0, f64::max)
}

/// The H/L ratios in force during a time.
fn ratios(run: &Run, during: Range<u64>) -> Vec<u16> {
    let ratio = |weights: &ClassWeights| weights.high / weights.low;
    // The ratio in force at the start of the time was set earlier.
    let before = run.class_weights.iter().rev().find(|(at_ns, _)| *at_ns <= during.start);
    let within =
        run.class_weights.iter().filter(|(at_ns, _)| *at_ns > during.start && *at_ns < during.end);
    let mut ratios: Vec<u16> =
        before.into_iter().chain(within).map(|(_, weights)| ratio(weights)).collect();
    ratios.sort_unstable();
    ratios.dedup();
    ratios
}

/// Whether this is the only ratio that was in force.
fn is_only(ratios: &[u16], ratio: f64) -> bool {
    ratios.len() == 1 && f64::from(ratios[0]) == ratio
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

/// Sections 3.1 and 3.2, Figure 5: weights 3:1, deep queues, fixed ratios.
fn walkthrough(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut scenario = scenario(&[(1, 4096, 300), (1, 4096, 100)], 6 * SECOND)?;
    scenario.warmup_ns = 3 * SECOND;
    // Two classes, as in Section 3.1: no flow gets to the medium one.
    let mut at = |ratio| {
        let direct = D2fqSubject {
            ratio: Ratio::Static(ratio),
            tau_l: MIB,
            tau_m: Some(MIB),
            strict_paper: false,
        };
        go(AnySubject::D2fq(direct), &scenario, setting)
    };
    let (two, three, six) = (at(2)?, at(3)?, at(6)?);
    let more = [16, 64, 256].map(&mut at).into_iter().collect::<Result<Vec<Run>, String>>()?;
    let by_ratio: Vec<&Run> = [&three, &six].into_iter().chain(&more).collect();
    let tails: Vec<f64> =
        by_ratio.iter().map(|run| run.tenants[1].quantile_us(0.99) / 1e3).collect();
    let highs: Vec<f64> = by_ratio.iter().map(|run| high_and_low(run, 1).0).collect();
    let share = |run: &Run| run.shares()[0] / run.shares()[1];
    let (a, b) = (high_and_low(&three, 0).0, high_and_low(&three, 1).1);
    let list = |values: &[f64], digits| {
        values.iter().map(|v| format!("{v:.digits$}")).collect::<Vec<_>>().join(" ")
    };
    let percents: Vec<f64> = highs.iter().map(|high| 100.0 * high).collect();
    let by = |values: &[f64]| {
        [3.0, 6.0, 16.0, 64.0, 256.0].into_iter().zip(values.iter().copied()).collect()
    };
    let answers = vec![
        Answer {
            id: "D-3.2",
            measured: format!(
                "{:.2}:1; a {} high, b {} \
             low",
                share(&three),
                percent(a),
                percent(b)
            ),
            holds: Some(
                near(share(&three), rule("D-3.2", "ratio"), rule("D-3.2", "off"))
                    && a.min(b) >= rule("D-3.2", "class"),
            ),
            note: "".into(),
        },
        Answer {
            id: "D-3.3",
            measured: format!("{:.2}:1", share(&two)),
            holds: Some(share(&two) < rule("D-3.3", "ratio") * (1.0 - rule("D-3.3", "less"))),
            note: "".into(),
        },
        Answer {
            id: "D-3.4",
            measured: format!("{:.2}:1; b {} high", share(&six), percent(highs[1])),
            holds: Some(
                near(share(&six), rule("D-3.4", "ratio"), rule("D-3.4", "off"))
                    && (highs[1] - rule("D-3.4", "high")).abs() <= rule("D-3.4", "points"),
            ),
            note: "two classes".into(),
        },
        Answer {
            id: "D-5.1",
            measured: format!("p99 of b {} ms", list(&tails, 2)),
            holds: Some(tails.is_sorted()),
            note: "H/L 3, 6, 16, 64, 256, two classes".into(),
        },
        Answer {
            id: "D-5.2",
            measured: format!("b in high: {} %", list(&percents, 1)),
            holds: Some(
                a.min(b) >= rule("D-5.2", "class") && highs.is_sorted() && highs[4] > highs[0],
            ),
            note: "H/L 3, 6, 16, 64, 256".into(),
        },
    ];
    const B: &str = "b, weight 1 of 4";
    // Percent of b's bytes in the high class: none at H/L 3, three fifths at H/L 6.
    let high = vec![(3.0, 0.0), (6.0, 100.0 * rule("D-3.4", "high"))];
    let axes = |label| [Axis::log("H/L"), Axis::linear(label)];
    let figures = vec![
        Figure::lines(
            "d-5a",
            "D2FQ, Fig 5a: tail of the throttled flow",
            axes("p99, ms"),
            vec![Line::new(B, by(&tails))],
        ),
        Figure::lines(
            "d-5b",
            "D2FQ, Fig 5b: its part in the high class",
            axes("%"),
            vec![Line::new(B, by(&percents)), Line::of_paper(B, high)],
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 6: one flow of weight 1, seven of weight 3, two classes.
fn eight_flows(setting: Setting<'_>) -> Result<Outcome, String> {
    let weights = [100, 300, 300, 300, 300, 300, 300, 300];
    let mut scenario = scenario(&weights.map(|weight| (1, 4096, weight)), 15 * SECOND)?;
    scenario.warmup_ns = 10 * SECOND;
    let two_classes = |ratio| {
        AnySubject::D2fq(D2fqSubject { ratio, tau_l: MIB, tau_m: Some(MIB), strict_paper: false })
    };
    let (fixed, dynamic) = (
        go(two_classes(Ratio::Static(4)), &scenario, setting)?,
        go(two_classes(DYNAMIC), &scenario, setting)?,
    );
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
            holds: Some(
                low.min(high) >= rule("D-6.1", "class")
                    && off(&fixed, &weights) > rule("D-6.1", "off"),
            ),
            note: "".into(),
        },
        Answer {
            id: "D-6.2",
            measured: format!("H/L {}; {} off", listed(&found), percent(off(&dynamic, &weights))),
            holds: Some(
                is_only(&found, rule("D-6.2", "ratio"))
                    && off(&dynamic, &weights) <= rule("D-6.2", "off"),
            ),
            note: "the last 5 of 15 seconds".into(),
        },
    ]
    .into())
}

const INTERVAL: u64 = 50 * MS;

/// The time, in seconds, from which on every interval is fair within 10 %.
fn fair_from(run: &Run) -> f64 {
    let intervals = run.tenants[0].series.len();
    let is_fair = |interval: usize| {
        let bytes = run.tenants.iter().map(|got| got.series[interval] as f64);
        let (least, most) = bytes
            .fold((f64::MAX, 0.0f64), |(least, most), bytes| (least.min(bytes), most.max(bytes)));
        most <= 1.1 * least
    };
    let last = (0..intervals).rev().find(|&interval| !is_fair(interval));
    last.map_or(0.0, |last| ((last + 1) as u64 * INTERVAL) as f64 / 1e9)
}

/// Figures 7 and 8: three flows of 4, 8 and 16 KB, tau_l from 1 MB to 1 GB. The paper's algorithm
/// decides the verdict. The note reports fairq's own, which keeps tau_l at eight times a flow's
/// bytes in flight, and keeps a flow's debt while the flow is idle.
fn thresholds(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut scenario = scenario(&[(1, 4096, 100), (1, 8192, 100), (1, 16_384, 100)], 8 * SECOND)?;
    // The paper mentions no warm-up; fio reports the whole run.
    scenario.warmup_ns = 0;
    scenario.series_ns = Some(INTERVAL);
    let strict = |tau_l, tau_m| {
        AnySubject::D2fq(D2fqSubject { ratio: DYNAMIC, tau_l, tau_m, strict_paper: true })
    };
    let all = |policy: &dyn Fn(u64) -> AnySubject| {
        let runs = [MIB, 10 * MIB, 100 * MIB, 1024 * MIB]
            .map(|tau_l| go(policy(tau_l), &scenario, setting));
        runs.into_iter().collect::<Result<Vec<Run>, String>>()
    };
    let (paper, ours) = (all(&|tau_l| strict(tau_l, None))?, all(&|tau_l| d2fq(DYNAMIC, tau_l))?);
    let from = |runs: &[Run]| runs.iter().map(fair_from).collect::<Vec<f64>>();
    let (from, from_ours) = (from(&paper), from(&ours));
    let tail = |run: &Run, flow: usize| run.tenants[flow].quantile_us(0.99);
    let longer_at = |a: &Run, b: &Run, part: f64| {
        let times =
            |flow: usize| a.tenants[flow].quantile_us(part) / b.tenants[flow].quantile_us(part);
        (0..3).map(times).fold(0.0, f64::max)
    };
    let longer = |a: &Run, b: &Run| longer_at(a, b, 0.99);
    let differ = |runs: &[Run]| longer(&runs[1], &runs[2]).max(longer(&runs[2], &runs[1]));
    let ten = differ(&paper);
    let up_to =
        |runs: &[Run]| [0.99, 0.999, 0.9999].map(|part| longer_at(&runs[0], &runs[2], part));
    let (one, ours_one) = (up_to(&paper), up_to(&ours));
    // The paper does not say which of the three quantiles its figure ends with: each is a reading.
    let up_to_one = |last: usize| one[..=last].iter().copied().fold(0.0, f64::max);
    let readings =
        [0, 1, 2].map(|last| near(up_to_one(last), rule("D-8.2", "times"), rule("D-8.2", "off")));
    let times_said = |times: [f64; 3]| times.map(|times| format!("{times:.2}")).join(" ");
    let medium = |tau_m| go(strict(10 * MIB, Some(tau_m)), &scenario, setting);
    let medium = [medium(5 * MIB / 2)?, medium(5 * MIB)?, medium(15 * MIB / 2)?];
    let spread = |runs: &[&Run]| {
        let flow = |flow: usize| {
            let tails = || runs.iter().map(|run| tail(run, flow));
            tails().fold(0.0, f64::max) / tails().fold(f64::MAX, f64::min) - 1.0
        };
        (0..3).map(flow).fold(0.0, f64::max)
    };
    let (by_medium, by_low) =
        (spread(&medium.each_ref()), spread(&[&paper[0], &paper[1], &paper[2]]));
    let times =
        |from: &[f64]| from.iter().map(|from| format!("{from:.2}")).collect::<Vec<_>>().join(" ");
    let answers = vec![
        Answer {
            id: "D-7.1",
            measured: format!("fair from {:.2} s on; ours {:.2} s", from[0], from_ours[0]),
            holds: Some(from[0] <= rule("D-7.1", "seconds")),
            note: "intervals of 50 ms, the most at most 10 % above the least".into(),
        },
        Answer {
            id: "D-7.2",
            measured: format!("fair from {:.2} s on; ours {:.2} s", from[3], from_ours[3]),
            // The run ends at 8 s: fair from there on is never.
            holds: Some(from[3] > rule("D-7.2", "seconds") && from[3] < 8.0),
            note: "8 s were looked at".into(),
        },
        Answer {
            id: "D-7.3",
            measured: format!("{} s; ours {} s", times(&from), times(&from_ours)),
            holds: Some(from.is_sorted() && from[3] > from[0]),
            note: "1, 10, 100 MB, 1 GB".into(),
        },
        Answer {
            id: "D-8.1",
            measured: format!("p99 differ {ten:.2} times; ours {:.2}", differ(&ours)),
            holds: Some(ten <= rule("D-8.1", "times")),
            note: "10 MB and 100 MB, the flow where they differ most".into(),
        },
        Answer {
            id: "D-8.2",
            measured: format!(
                "p99, p99.9, p99.99 {} times as long; ours {}",
                times_said(one),
                times_said(ours_one)
            ),
            holds: agreed(&readings),
            note: "1 MB and 100 MB, the flow where they differ most, over the whole run, as fio \
             tells: with its first seconds, when H/L is 256, more than it needs to be. Ours never \
             takes tau_l at less than eight times what is in flight"
                .into(),
        },
        Answer {
            id: "D-8.3",
            measured: format!(
                "p99 differ by {} with tau_m, by {} with \
             tau_l",
                percent(by_medium),
                percent(by_low)
            ),
            holds: Some(by_medium < rule("D-8.3", "part") * by_low),
            note: "tau_m of a quarter, half and three quarters of 10 MB; tau_l of 1, 10 and 100 \
             MB"
            .into(),
        },
    ];
    let drawn = |id, title: &str, run: &Run| {
        let flows = ["4 KB", "8 KB", "16 KB"].into_iter().zip(&run.tenants);
        let line = |(name, got): (_, &Got)| Line::bandwidth(name, &got.series, INTERVAL, 2);
        let title = format!("D2FQ, Fig 7: 4, 8 and 16 KB, {title}");
        Figure::lines(id, &title, BY_SECOND, flows.map(line).collect())
    };
    let figures = vec![
        drawn("d-7a", "tau_l = 1 MB, the paper's algorithm", &paper[0]),
        drawn("d-7b", "tau_l = 1 GB, the paper's algorithm", &paper[3]),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 11's three loads, ten seconds, measured from the sixth on.
const LOADS: [&[(usize, u32, u16)]; 3] = [
    &[(4, 4096, 100), (4, 8192, 100)],
    &[(2, 8192, 100), (6, 8192, 100)],
    &[(2, 8192, 100), (2, 8192, 75), (2, 8192, 50), (2, 8192, 25)],
];
const LAST: Range<u64> = 6 * SECOND..10 * SECOND;

/// The runs of a load under none, MQFQ, D2FQ and BFQ.
struct Load {
    weights: Vec<u16>,
    none: Run,
    mqfq: Run,
    d2fq: Run,
    bfq: Run,
}

impl Load {
    fn new(flows: &[(usize, u32, u16)], setting: Setting<'_>) -> Result<Load, String> {
        let mut scenario = scenario(flows, 10 * SECOND)?;
        scenario.warmup_ns = 6 * SECOND;
        scenario.series_ns = Some(10 * MS);
        let run = |policy| go(policy, &scenario, setting);
        Ok(Load {
            weights: flows.iter().map(|flow| flow.2).collect(),
            none: run(AnySubject::None)?,
            mqfq: run(MQFQ)?,
            d2fq: run(d2fq(DYNAMIC, 8 * MIB))?,
            bfq: run(AnySubject::Serial(linux_bfq(Kernel::V5_3, D2FQ_BUDGET)))?,
        })
    }

    fn all(&self) -> [(&'static str, &Run); 4] {
        [("none", &self.none), ("MQFQ", &self.mqfq), ("D2FQ", &self.d2fq), ("BFQ", &self.bfq)]
    }

    /// Whether none gives the `unscheduled` ratio, and the others are fair within `within`.
    fn fair(&self, id: &'static str, unscheduled: f64, within: f64, with_bfq: bool) -> Answer {
        let ratio = self.none.tenants[1].bytes as f64 / self.none.tenants[0].bytes as f64;
        let [_, mqfq, d2fq, bfq] = self.all().map(|(_, run)| off(run, &self.weights));
        let (mqfq_said, d2fq_said, bfq_said) = (percent(mqfq), percent(d2fq), percent(bfq));
        Answer {
            id,
            measured: format!(
                "none 1:{ratio:.2}; MQFQ {mqfq_said} off, D2FQ {d2fq_said}, BFQ {bfq_said}"
            ),
            holds: Some(
                near(ratio, unscheduled, within)
                    && mqfq.max(d2fq) <= within
                    && (!with_bfq || bfq <= within),
            ),
            note: "".into(),
        }
    }

    fn converged(&self, id: &'static str, ratio: f64) -> Answer {
        let found = ratios(&self.d2fq, LAST);
        let holds = Some(is_only(&found, ratio));
        let note = "the last 4 of 10 seconds".into();
        Answer { id, measured: listed(&found), holds, note }
    }

    /// Bandwidths of the flows, with the paper's expectation for fair schedulers: by weight.
    fn drawn(&self, id: &'static str, title: &str, fair: &[&str]) -> Figure {
        let line = |(name, run): (&str, &Run)| {
            let mb_s = |got: &Got| got.bytes as f64 * 1e3 / run.measured_ns as f64;
            Line::bars(name, &run.tenants.iter().map(mb_s).collect::<Vec<f64>>())
        };
        let all: f64 = self.weights.iter().map(|&weight| f64::from(weight)).sum();
        let divided = |(name, run): (&str, &Run)| {
            let due = self.weights.iter().map(|&weight| f64::from(weight) / all);
            let mb_s: Vec<f64> = due.map(|part| part * run.bandwidth() / 1e6).collect();
            Line { paper: true, ..Line::bars(name, &mb_s) }
        };
        let of_paper = self.all().into_iter().filter(|(name, _)| fair.contains(name)).map(divided);
        let groups = (1..=self.weights.len()).map(|flow| format!("flow {flow}"));
        let lines = self.all().into_iter().map(line).chain(of_paper).collect();
        Figure::bars(id, &format!("D2FQ, {title}"), "MB/s", groups, lines)
    }
}

/// Figures 11, 13 and 14.
fn three_loads(setting: Setting<'_>) -> Result<Outcome, String> {
    let loads = LOADS
        .iter()
        .map(|flows| Load::new(flows, setting))
        .collect::<Result<Vec<Load>, String>>()?;
    let [sizes, threads, weights] = &loads[..] else { return Err("three loads".into()) };
    let totals = sizes.all().map(|(_, run)| run.bandwidth() / 1e9);
    let (least, most) = totals[..3]
        .iter()
        .fold((f64::MAX, 0.0f64), |(least, most), &t| (least.min(t), most.max(t)));
    // From the sixth second on, as for all figures of these runs: 600 intervals of 10 ms.
    let variation = |run: &Run, flow: usize| {
        let series: Vec<f64> =
            run.tenants[flow].series[600..].iter().map(|&bytes| bytes as f64).collect();
        let mean = series.iter().sum::<f64>() / series.len() as f64;
        (series.iter().map(|bytes| (bytes - mean).powi(2)).sum::<f64>() / series.len() as f64)
            .sqrt()
            / mean
    };
    let varies = [0, 1].map(|flow| variation(&sizes.d2fq, flow));
    let latencies =
        |run: &Run| run.tenants.iter().map(|got| got.mean_us() / 1e3).collect::<Vec<f64>>();
    let [mqfq, d2fq] = [latencies(&weights.mqfq), latencies(&weights.d2fq)];
    let list =
        |values: &[f64]| values.iter().map(|v| format!("{v:.2}")).collect::<Vec<_>>().join(" ");
    let answers = vec![
        sizes.fair("D-11a.1", rule("D-11a.1", "none"), rule("D-11a.1", "off"), true),
        Answer {
            id: "D-11a.2",
            measured: format!(
                "none {:.2}, MQFQ {:.2}, D2FQ {:.2} GB/s",
                totals[0], totals[1], totals[2]
            ),
            holds: Some(most <= (1.0 + rule("D-11a.2", "off")) * least),
            note: "".into(),
        },
        sizes.converged("D-11a.4", rule("D-11a.4", "ratio")),
        threads.fair("D-11b.1", rule("D-11b.1", "none"), rule("D-11b.1", "off"), true),
        threads.converged("D-11b.2", rule("D-11b.2", "ratio")),
        // BFQ is not compared here: D-11c.2 measures its deviation from weights.
        weights.fair("D-11c.1", 1.0, rule("D-11c.1", "off"), false),
        weights.converged("D-11c.3", rule("D-11c.3", "ratio")),
        Answer {
            id: "D-13.2",
            measured: format!("mean ms: MQFQ {}; D2FQ {}", list(&mqfq), list(&d2fq)),
            holds: Some(mqfq.is_sorted() && d2fq.is_sorted()),
            note: "the load of Fig 11c, weights 8, 6, 4, 2".into(),
        },
        Answer {
            id: "D-14.1",
            measured: format!(
                "variation {} and {}, {} off",
                percent(varies[0]),
                percent(varies[1]),
                percent(off(&sizes.d2fq, &sizes.weights))
            ),
            holds: Some(
                varies.iter().all(|&varies| varies <= rule("D-14.1", "varies"))
                    && off(&sizes.d2fq, &sizes.weights) <= rule("D-14.1", "off"),
            ),
            note: "coefficient of variation over intervals of 10 ms".into(),
        },
    ];
    let last = |name: &str, got: &Got| Line::bandwidth(name, &got.series[900..], 10 * MS, 1);
    let stable = Figure::lines(
        "d-14",
        "D2FQ, Fig 14: every 10 ms of the last second",
        BY_SECOND,
        vec![
            last("D2FQ 4 KB", &sizes.d2fq.tenants[0]),
            last("D2FQ 8 KB", &sizes.d2fq.tenants[1]),
            last("MQFQ 4 KB", &sizes.mqfq.tenants[0]),
            last("MQFQ 8 KB", &sizes.mqfq.tenants[1]),
        ],
    );
    let figures = vec![
        sizes.drawn("d-11a", "Fig 11a: 4 KB beside 8 KB", &["MQFQ", "D2FQ", "BFQ"]),
        threads.drawn("d-11b", "Fig 11b: two threads beside six", &["MQFQ", "D2FQ", "BFQ"]),
        weights.drawn("d-11c", "Fig 11c: weights 8, 6, 4, 2", &["MQFQ", "D2FQ"]),
        stable,
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 15: a flow of weight 1, three of weight 3 from 10 s on, four more from 20 s on.
fn events(setting: Setting<'_>) -> Result<Outcome, String> {
    let weights = [100, 300, 300, 300, 300, 300, 300, 300];
    let mut scenario = scenario(&weights.map(|weight| (2, 4096, weight)), 30 * SECOND)?;
    scenario.warmup_ns = 25 * SECOND;
    scenario.series_ns = Some(100 * MS);
    scenario.moves_ns = Some(MOVES_NS);
    for (number, tenant) in scenario.tenants.iter_mut().enumerate() {
        *tenant = tenant.clone().from(match number {
            0 => 0,
            1..=3 => 10 * SECOND,
            _ => 20 * SECOND,
        });
    }
    let run = |ratio| go(d2fq(ratio, MIB), &scenario, setting);
    let (three, many, dynamic) = (run(Ratio::Static(3))?, run(Ratio::Static(128))?, run(DYNAMIC)?);
    let (first, second) =
        (ratios(&dynamic, 15 * SECOND..20 * SECOND), ratios(&dynamic, 25 * SECOND..30 * SECOND));
    let tail = |run: &Run| run.tenants[0].quantile_us(0.99) / 1e3;
    let [a, b, c] = [&three, &many, &dynamic].map(|run| off(run, &weights));
    let answers =
        vec![
        Answer {
            id: "D-15.1",
            measured: format!("static-3 {} off, static-128 {}, dynamic \
             {}", percent(a), percent(b), percent(c)),
            holds: Some({
                let within = rule("D-15.1", "off");
                a > within && b <= within && c <= within
            }),
            note: "the last 5 of 30 seconds".into(),
        },
        Answer {
            id: "D-15.2",
            measured: format!("p99 of base: static-128 {:.1}, dynamic {:.1} \
             ms", tail(&many), tail(&dynamic)),
            holds: Some(tail(&many) >= rule("D-15.2", "times") * tail(&dynamic)),
            note: "the last 5 of 30 seconds".into(),
        },
        Answer {
            id: "D-15.3",
            measured: format!("{} after event1, {} after event2", listed(&first), listed(&second)),
            holds: Some({
                let after = rule("D-15.3", "least")..=rule("D-15.3", "most");
                is_only(&first, rule("D-15.3", "first"))
                    && second.iter().all(|&ratio| after.contains(&f64::from(ratio)))
            }),
            note: "the last 5 seconds of each; threads placed anew every 120 ms, about as often as \
             Linux would; where each stays on its core no flow of weight 3 is \
                   ever ahead of another, the medium class stays empty, and it is 10, and 9 and 10"
                .into(),
        },
    ];
    let bandwidth = |id, title: &str, run: &Run, is_fair: bool| {
        let mut lines =
            [("base, weight 1", 0), ("one of three, weight 3", 1), ("one of four more", 4)]
                .map(|(name, flow)| Line::bandwidth(name, &run.tenants[flow].series, 100 * MS, 1))
                .to_vec();
        if is_fair {
            // A third of the heavy flows' rate, some time after each event.
            let third = |&(at_s, mb_s): &(f64, f64)| (at_s, mb_s / 3.0);
            let after = [150, 190, 250, 290].map(|interval| third(&lines[1].points[interval]));
            lines.push(Line::of_paper(lines[0].name.clone(), after.to_vec()));
        }
        Figure::lines(id, &format!("D2FQ, Fig 15: {title}"), BY_SECOND, lines)
    };
    let points = dynamic
        .class_weights
        .iter()
        .map(|(at_ns, weights)| (*at_ns as f64 / 1e9, f64::from(weights.high / weights.low)));
    let (first, second) =
        (rule("D-15.3", "first"), (rule("D-15.3", "least") + rule("D-15.3", "most")) / 2.0);
    let after = vec![(15.0, first), (20.0, first), (25.0, second), (30.0, second)];
    let ratio = Figure::lines(
        "d-15e",
        "D2FQ, Fig 15e: the H/L ratio",
        [Axis::linear("s"), Axis::log("H/L")],
        vec![Line::new("dynamic", points.collect()), Line::of_paper("dynamic", after)],
    );
    let figures = vec![
        bandwidth("d-15a", "static-3", &three, false),
        bandwidth("d-15b", "static-128", &many, true),
        bandwidth("d-15c", "dynamic", &dynamic, true),
        ratio,
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}
