//! The claims of Kyber-fairness that need no model of the host's CPU.
//!
//! Four tenants of four threads with 32 requests each, weights 1000:500:250:100, on the P4500 (Tables 1 and 2). The paper runs for
//! 60 s; here it is 3 s, measured after the first: ten times the period of the tokens, twice.

use fairq_core::kyber::fair::Totals;

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Shape, go, jain, near, percent};
use crate::check::Check;
use crate::fact::{Fact, Moment};
use crate::meter::Run;
use crate::scenario::{Access, Job, MS, SECOND, Scenario, Tenant};
use crate::subject::{AnyPolicy, OneLock, Scheduler, Tokens};
use crate::world::run;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["K-1.1", "K-1.2"], seconds: 6, run: mixed },
    Experiment { ids: &["K-4a.1", "K-4b.1"], seconds: 20, run: synthetic },
    Experiment { ids: &["K-5a.1", "K-5a.2", "K-5b.1", "K-T4"], seconds: 20, run: traces },
    Experiment { ids: &["K-w.1"], seconds: 10, run: predictions },
    Experiment { ids: &["K-w.2"], seconds: 3, run: never_idle },
];

const WEIGHTS: [u16; 4] = [1000, 500, 250, 100];
/// Half of what fills the device.
const FAIR: AnyPolicy = AnyPolicy::Tokens(Tokens { busy: 64, totals: TOTALS });
const TOTALS: Totals = Totals { first: 16 << 20, least: 1 << 20, most: 1 << 38 };

/// As many requests on the device as fill it.
fn bfq() -> AnyPolicy {
    AnyPolicy::OneLock(OneLock::new(Scheduler::Bfq, 128))
}

/// Tenants of four threads each, on cores of their own.
fn scenario(jobs: [Job; 4], weights: [u16; 4]) -> Result<Scenario, String> {
    let profile = fairq_device::Profile::named("p4500").map_err(|error| error.to_string())?;
    let tenant = |(number, (job, weight)): (usize, (Job, u16))| {
        Tenant::new(&format!("weight {weight}"), weight, (4 * number..4 * number + 4).collect(), job)
    };
    let tenants = jobs.into_iter().zip(weights).enumerate().map(tenant).collect();
    let mut scenario = Scenario::new(profile, 16, tenants, 3 * SECOND);
    scenario.warmup_ns = SECOND;
    Ok(scenario)
}

fn four(job: &Job) -> [Job; 4] {
    [0; 4].map(|_| job.clone())
}

/// Jain's index of throughput per weight.
fn fairness(run: &Run, weights: &[u16]) -> f64 {
    jain(run.tenants.iter().zip(weights).map(|(got, &weight)| got.bytes as f64 / f64::from(weight)))
}

fn listed(shares: &[f64]) -> String {
    shares.iter().map(|share| format!("{:.0}", 100.0 * share)).collect::<Vec<_>>().join("/")
}

/// Figure 1: 4 KiB, random, half of them reads.
fn mixed(seed: u64) -> Result<Outcome, String> {
    let scenario = scenario(four(&Job { read_percent: 50, ..Job::random_read(4096, 32) }), WEIGHTS)?;
    let (none, bfq) = (go(AnyPolicy::FirstCome, &scenario, seed)?, go(bfq(), &scenario, seed)?);
    let due = WEIGHTS.map(|weight| f64::from(weight) / 1850.0);
    let lines = [("none", &none), ("BFQ", &bfq)].map(|(name, run)| Line::bars(name, &run.shares()));
    let figure = Figure {
        id: "k-1",
        title: "Kyber-fairness, Fig 1: shares of four tenants, weights 1000:500:250:100".into(),
        x: Axis::linear(""),
        y: Axis::linear("share of all bytes"),
        shape: Shape::Bars(WEIGHTS.map(|weight| format!("weight {weight}")).to_vec()),
        lines: [lines.to_vec(), vec![Line::bars("by weight", &due)]].concat(),
    };
    let answers = vec![
        Answer {
            id: "K-1.1",
            measured: format!("{} %", listed(&none.shares())),
            holds: Some(none.shares().iter().all(|&share| near(share, 0.25, 0.1))),
            note: "".into(),
        },
        Answer {
            id: "K-1.2",
            measured: format!("{} %", listed(&bfq.shares())),
            holds: Some(bfq.shares().iter().zip(due).all(|(&share, due)| near(share, due, 0.1))),
            note: "by weight: 54/27/14/5 %".into(),
        },
    ];
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 4: random reads and writes of 4 KiB, sequential ones of 1 MiB.
fn synthetic(seed: u64) -> Result<Outcome, String> {
    let small = Job::random_read(4096, 32);
    // 32 MiB a thread would wait for longer than it is measured: a quarter keeps the device as busy.
    let large = Job { access: Access::Sequential, ..Job::random_read(1 << 20, 8) };
    let writes = |job: &Job| Job { read_percent: 0, ..job.clone() };
    let kinds = [("RR", small.clone()), ("RW", writes(&small)), ("SR", large.clone()), ("SW", writes(&large))];
    let (mut ratios, mut ours, mut theirs, mut rates) = (Vec::new(), Vec::new(), Vec::new(), [vec![], vec![]]);
    for (_, job) in &kinds {
        let scenario = scenario(four(job), WEIGHTS)?;
        let (none, fair) = (go(AnyPolicy::FirstCome, &scenario, seed)?, go(FAIR, &scenario, seed)?);
        ratios.push(fair.bandwidth() / none.bandwidth());
        ours.push(fairness(&fair, &WEIGHTS));
        theirs.push(fairness(&none, &WEIGHTS));
        rates[0].push(none.bandwidth() / 1e6);
        rates[1].push(fair.bandwidth() / 1e6);
    }
    let groups = kinds.iter().map(|kind| kind.0.to_owned()).collect::<Vec<_>>();
    let bars = |id, title: &str, label, values: [&[f64]; 2]| Figure {
        id,
        title: format!("Kyber-fairness, {title}"),
        x: Axis::linear(""),
        y: Axis::linear(label),
        shape: Shape::Bars(groups.clone()),
        lines: vec![Line::bars("none", values[0]), Line::bars("kyber-fair", values[1])],
    };
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(" ");
    let answers = vec![
        Answer {
            id: "K-4a.1",
            measured: format!("of none's throughput: {}", list(&ratios)),
            holds: Some(ratios.iter().all(|&ratio| near(ratio, 1.0, 0.05))),
            note: "RR, RW, SR, SW on a fresh drive; sequential threads keep 8 MiB each".into(),
        },
        Answer {
            id: "K-4b.1",
            measured: format!("kyber-fair {}; none {}", list(&ours), list(&theirs)),
            holds: Some(ours.iter().zip(&theirs).all(|(ours, theirs)| *ours >= 0.95 && theirs < ours)),
            note: "Jain's index of throughput per weight: RR, RW, SR, SW".into(),
        },
    ];
    let figures = vec![
        bars("k-4a", "Fig 4a: throughput", "MB/s", [&rates[0], &rates[1]]),
        bars("k-4b", "Fig 4b: fairness index", "Jain's index", [&theirs, &ours]),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Sizes, reads, and what the paper tells: mean KiB, and reads per write.
type Mix = (&'static [(u32, u32)], u32, f64, f64);

/// Table 4's rows as mixes of sizes: KiB and how often, and how many of a hundred requests read.
const MIXES: [Mix; 4] = [
    (&[(4, 50), (16, 20), (64, 20), (128, 10)], 77, 31.1, 3.44),
    (&[(4, 54), (16, 24), (64, 14), (96, 10)], 76, 24.8, 3.19),
    (&[(4, 36), (32, 24), (64, 20), (128, 20)], 74, 50.4, 2.78),
    (&[(4, 26), (32, 25), (64, 23), (128, 26)], 62, 63.7, 1.60),
];

/// A row of Table 4 as a load.
fn mix(row: usize) -> Job {
    let (sizes, read_percent, ..) = MIXES[row];
    let sizes = sizes.iter().map(|&(kib, often)| (kib << 10, often)).collect();
    Job { sizes, read_percent, ..Job::random_read(4096, 32) }
}

/// What a mix asks for on average: KiB, and reads per write.
fn averages(row: usize) -> (f64, f64) {
    let (sizes, reads, ..) = MIXES[row];
    let often: u32 = sizes.iter().map(|size| size.1).sum();
    let kib: u32 = sizes.iter().map(|size| size.0 * size.1).sum();
    (f64::from(kib) / f64::from(often), f64::from(reads) / f64::from(100 - reads))
}

/// Figure 5: mixes like the traces', each with every weight in turn.
fn traces(seed: u64) -> Result<Outcome, String> {
    let (mut gains, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..4 {
        let weights = [0, 1, 2, 3].map(|row| WEIGHTS[(row + 4 - turn) % 4]);
        let scenario = scenario([0, 1, 2, 3].map(mix), weights)?;
        let (fair, bfq) = (go(FAIR, &scenario, seed)?, go(bfq(), &scenario, seed)?);
        gains.push(fair.bandwidth() / bfq.bandwidth());
        ours.push(fairness(&fair, &weights));
        theirs.push(fairness(&bfq, &weights));
    }
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" ");
    let close = |row: usize| {
        let ((kib, ratio), (.., paper_kib, paper_ratio)) = (averages(row), MIXES[row]);
        near(kib, paper_kib, 0.05) && near(ratio, paper_ratio, 0.05)
    };
    let said = [0, 1, 2, 3].map(|row| format!("{:.1} KiB {:.2}:1", averages(row).0, averages(row).1)).join(", ");
    let most = gains.iter().copied().fold(0.0, f64::max);
    let cpu = "no CPU time here, which is what BFQ loses in the paper";
    let answers = vec![
        Answer {
            id: "K-5a.1",
            measured: format!("{most:.2} times BFQ's throughput"),
            holds: Some(near(most, 1.33, 0.1)),
            note: format!("mixes of Table 4, not the traces, which are not public; {cpu}").into(),
        },
        Answer {
            id: "K-5a.2",
            measured: format!("of BFQ's throughput: {}", list(&gains)),
            holds: Some(gains.iter().all(|&gain| gain >= gains[1])),
            note: format!("the top weight at row 1, 2, 3, 4 of Table 4; row 2 is taken for LUN3; {cpu}").into(),
        },
        Answer {
            id: "K-5b.1",
            measured: format!("kyber-fair {}; BFQ {}", list(&ours), list(&theirs)),
            holds: Some(ours.iter().zip(&theirs).all(|(ours, theirs)| ours >= theirs)),
            note: "the same four runs".into(),
        },
        Answer {
            id: "K-T4",
            measured: said,
            holds: Some((0..4).all(close)),
            note: "of our mixes, by their definition".into(),
        },
    ];
    Ok(answers.into())
}

/// What too many tokens a period do, and too few.
fn predictions(seed: u64) -> Result<Outcome, String> {
    let scenario = scenario(four(&Job::random_read(4096, 32)), WEIGHTS)?;
    let with = |totals| go(AnyPolicy::Tokens(Tokens { busy: 64, totals }), &scenario, seed);
    // The device serves about 200 MB in a period.
    let [few, right, many] = [with(Totals::fixed(8 << 20))?, with(TOTALS)?, with(Totals::fixed(4 << 30))?];
    let index = |run: &Run| fairness(run, &WEIGHTS);
    let stops = |run: &Run| run.stats.throttles;
    Ok(vec![Answer {
        id: "K-w.1",
        measured: format!(
            "index: {:.3} with 8 MiB a period, {:.3} predicted, {:.3} with 4 GiB; throttled {} and {} times with 8 MiB and predicted",
            index(&few),
            index(&right),
            index(&many),
            stops(&few),
            stops(&right)
        ),
        holds: Some(index(&many) < index(&right) - 0.05 && stops(&few) > 2 * stops(&right)),
        note: "the device serves about 200 MB in a period of 100 ms".into(),
    }]
    .into())
}

/// The device is never without work while a request waits, once wake-ups have arrived.
#[derive(Default)]
struct NeverIdle;

impl Check for NeverIdle {
    fn name(&self) -> &'static str {
        "never idle"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Settled(Moment { wakes_under_way: 0, staged, outstanding: 0, .. }) = *fact else { return Ok(()) };
        if staged == 0 { Ok(()) } else { Err(format!("{staged} wait and the device has nothing")) }
    }
}

/// A heavy tenant that sends little beside light ones that send much: tokens are left over, and nobody else has any.
fn never_idle(seed: u64) -> Result<Outcome, String> {
    let little = Job { think_ns: MS, ..Job::random_read(4096, 1) };
    let much = Job::random_read(4096, 32);
    let mut scenario = scenario([little, much.clone(), much.clone(), much], WEIGHTS)?;
    scenario.seed = seed;
    let AnyPolicy::Tokens(tokens) = FAIR else { return Err("FAIR is made of tokens".into()) };
    let fair = run(&scenario, &tokens, vec![Box::new(NeverIdle)]).map_err(|error| error.to_string())?;
    let none = go(AnyPolicy::FirstCome, &scenario, seed)?;
    let kept = fair.bandwidth() / none.bandwidth();
    let measured = match &fair.violation {
        None => format!("never idle in {} requests; {} of none's throughput", fair.requests, percent(kept)),
        Some(violation) => violation.to_string(),
    };
    Ok(vec![Answer {
        id: "K-w.2",
        measured,
        holds: Some(fair.violation.is_none()),
        note: "the heaviest tenant sends one request a millisecond".into(),
    }]
    .into())
}
