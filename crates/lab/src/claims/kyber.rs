//! The claims of Kyber-fairness.
//!
//! Four tenants of four threads with 32 requests each, weights 1000:500:250:100, on the P4500
//! (Tables 1 and 2), and on its machine, where the code of Linux and the schedulers takes the
//! cores' time. The paper runs for 60 s; here it is 2 s, measured after the first: ten times the
//! period of the tokens. BFQ serves threads ([`go_by_thread`]), and waits for the thread in
//! service, as Linux 5.2 does with control groups: only one queue at a time can send requests to
//! the device, which is the paper's criticism (Section II).

use fairq_core::kyber_fair::Totals;
use fairq_sim::Run;
use fairq_sim::check::Check;
use fairq_sim::fact::{Fact, Moment};
use fairq_sim::host::Machine;
use fairq_sim::policies::{
    AnySubject, Kernel, KyberFairSubject, LinuxBfqConfig, Scheduler, SerialSubject,
};
use fairq_sim::run;
use fairq_sim::scenario::{Access, Job, MS, SECOND, Scenario, Tenant};

use super::{
    Answer, Axis, Experiment, Figure, LINUX_SLOTS, Line, Outcome, Setting, agreed, go,
    go_by_thread, jain, near, percent, rule,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["K-1.1", "K-1.2", "K-1.3", "K-1.4"], seconds: 6, run: mixed },
    Experiment { ids: &["K-4a.1", "K-4a.2", "K-4a.3", "K-4b.1"], seconds: 20, run: synthetic },
    Experiment { ids: &["K-5a.1", "K-5a.2", "K-5b.1", "K-T4"], seconds: 20, run: traces },
    Experiment { ids: &["K-6.1"], seconds: 20, run: groups },
    Experiment { ids: &["K-w.1"], seconds: 10, run: predictions },
    Experiment { ids: &["K-w.2"], seconds: 3, run: never_idle },
];

const WEIGHTS: [u16; 4] = [1000, 500, 250, 100];
/// Half of the requests that fill the device.
const FAIR: AnySubject = AnySubject::KyberFair(KyberFairSubject { busy: 64, totals: TOTALS });
const TOTALS: Totals = Totals::between(16 << 20, 1 << 20, 1 << 38);

/// Each tenant is a control group of four processes.
const BFQ: LinuxBfqConfig = LinuxBfqConfig {
    kernel: Kernel::V5_2,
    processes: 4,
    budget: 0,
    cycles: LinuxBfqConfig::CYCLES,
    low_latency: false,
};

/// A longer run, because 16 queues take turns.
fn bfq(scenario: &Scenario, setting: Setting<'_>) -> Result<Run, String> {
    let longer = Scenario { duration_ns: scenario.duration_ns.max(5 * SECOND), ..scenario.clone() };
    go_by_thread(SerialSubject::new(Scheduler::LinuxBfq(BFQ), LINUX_SLOTS), &longer, setting)
}

/// Tenants of four threads each, on cores of their own.
fn scenario(jobs: [Job; 4], weights: [u16; 4]) -> Result<Scenario, String> {
    let tenant = |(number, (job, weight)): (usize, (Job, u16))| {
        Tenant::new(
            &format!("weight {weight}"),
            weight,
            (4 * number..4 * number + 4).collect(),
            job,
        )
    };
    machine(16, jobs.into_iter().zip(weights).enumerate().map(tenant).collect())
}

fn machine(threads: usize, tenants: Vec<Tenant>) -> Result<Scenario, String> {
    let profile = fairq_device::Profile::named("p4500").map_err(|error| error.to_string())?;
    let mut scenario =
        Scenario::new(profile, threads, tenants, 2 * SECOND).on(Machine::E5_2620_V4.host(threads));
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

/// The loads that replace the traces.
const MIXED: &str = "not the traces, which SNIA gives to whoever accepts its licence and which \
 are not in this repository: mixes of the sizes of a public sample of the same volumes' traces, \
 weighted so that mean and reads per write are a row's";

fn listed(shares: &[f64]) -> String {
    shares.iter().map(|share| format!("{:.0}", 100.0 * share)).collect::<Vec<_>>().join("/")
}

/// Figure 1: 4 KiB, random, half of them reads.
fn mixed(setting: Setting<'_>) -> Result<Outcome, String> {
    let scenario =
        scenario(four(&Job { read_percent: 50, ..Job::random_read(4096, 32) }), WEIGHTS)?;
    let (none, bfq) = (go(AnySubject::None, &scenario, setting)?, bfq(&scenario, setting)?);
    let part = bfq.bandwidth() / none.bandwidth();
    let top = bfq.shares()[0] * bfq.bandwidth();
    let least = none.shares().into_iter().fold(1.0, f64::min) * none.bandwidth();
    let due = WEIGHTS.map(|weight| f64::from(weight) / 1850.0);
    let of_none = |run: &Run| -> Vec<f64> {
        run.shares().iter().map(|share| share * run.bandwidth() / none.bandwidth()).collect()
    };
    // The paper's values: by weight, and in all a part of the bandwidth under none.
    let of_paper = due.map(|due| due * rule("K-1.3", "part"));
    let figure = Figure::bars(
        "k-1",
        "Kyber-fairness, Fig 1: throughput of four tenants, weights 1000:500:250:100",
        "of all that none serves",
        WEIGHTS.map(|weight| format!("weight {weight}")),
        vec![
            Line::bars("none", &of_none(&none)),
            Line::bars("BFQ", &of_none(&bfq)),
            Line { paper: true, ..Line::bars("BFQ", &of_paper) },
        ],
    );
    let answers = vec![
        Answer {
            id: "K-1.1",
            measured: format!("{} %", listed(&none.shares())),
            holds: Some(
                none.shares()
                    .iter()
                    .all(|&share| near(share, rule("K-1.1", "share"), rule("K-1.1", "off"))),
            ),
            note: "".into(),
        },
        Answer {
            id: "K-1.2",
            measured: format!("{} %", listed(&bfq.shares())),
            holds: Some(
                bfq.shares()
                    .iter()
                    .zip(due)
                    .all(|(&share, due)| near(share, due, rule("K-1.2", "off"))),
            ),
            note: "by weight: 54/27/14/5 %".into(),
        },
        Answer {
            id: "K-1.3",
            measured: format!("{part:.2} times none's {:.0} MB/s", none.bandwidth() / 1e6),
            holds: Some(near(part, rule("K-1.3", "part"), rule("K-1.3", "off"))),
            note: "BFQ is as fast as the one core whose thread it serves: a request takes that \
             core 8.9 us, 2.2 of them in BFQ"
                .into(),
        },
        Answer {
            id: "K-1.4",
            measured: format!("{:.2} of what any has under none", top / least),
            holds: Some(top < least),
            note: "".into(),
        },
    ];
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 4: random reads and writes of 4 KiB, sequential ones of 1 MiB.
fn synthetic(setting: Setting<'_>) -> Result<Outcome, String> {
    let small = Job::random_read(4096, 32);
    let large = Job { access: Access::Sequential, ..Job::random_read(1 << 20, 32) };
    let writes = |job: &Job| Job { read_percent: 0, ..job.clone() };
    let kinds = [
        ("RR", small.clone()),
        ("RW", writes(&small)),
        ("SR", large.clone()),
        ("SW", writes(&large)),
    ];
    let (mut ratios, mut ours, mut theirs, mut rates) =
        (Vec::new(), Vec::new(), Vec::new(), [vec![], vec![], vec![]]);
    let (mut gains, mut indices) = (Vec::new(), Vec::new());
    for (_, job) in &kinds {
        let mut scenario = scenario(four(job), WEIGHTS)?;
        if job.largest() > 4096 {
            // These requests are few and large: the prediction of tokens takes longer to converge.
            (scenario.warmup_ns, scenario.duration_ns) = (3 * SECOND, 15 * SECOND);
        }
        let (none, fair) =
            (go(AnySubject::None, &scenario, setting)?, go(FAIR, &scenario, setting)?);
        let bfq = bfq(&scenario, setting)?;
        gains.push(fair.bandwidth() / bfq.bandwidth());
        ratios.push(fair.bandwidth() / none.bandwidth());
        ours.push(fairness(&fair, &WEIGHTS));
        theirs.push(fairness(&none, &WEIGHTS));
        rates[0].push(none.bandwidth() / 1e6);
        rates[1].push(fair.bandwidth() / 1e6);
        rates[2].push(bfq.bandwidth() / 1e6);
        indices.push(fairness(&bfq, &WEIGHTS));
    }
    let bars = |id, title: &str, label, values: [&[f64]; 3]| {
        let all = ["none", "kyber-fair", "BFQ"].into_iter().zip(values);
        let lines = all.map(|(name, bars)| Line::bars(name, bars)).collect();
        Figure::bars(
            id,
            &format!("Kyber-fairness, {title}"),
            label,
            kinds.iter().map(|kind| kind.0),
            lines,
        )
    };
    let list = |values: &[f64]| {
        values.iter().map(|value| format!("{value:.3}")).collect::<Vec<_>>().join(" ")
    };
    let answers = vec![
        Answer {
            id: "K-4a.1",
            measured: format!("of none's throughput: {}", list(&ratios)),
            holds: Some(ratios.iter().all(|&ratio| near(ratio, 1.0, rule("K-4a.1", "off")))),
            note: "RR, RW, SR, SW on a fresh drive".into(),
        },
        Answer {
            id: "K-4a.2",
            measured: format!("{:.2}×; {:.2}×", gains[0], gains[1]),
            holds: Some({
                let within = rule("K-4a.2", "off");
                near(gains[0], rule("K-4a.2", "reads"), within)
                    && near(gains[1], rule("K-4a.2", "writes"), within)
            }),
            note: "a fresh drive, whose writes go at 1.05 GB/s. BFQ is as fast as one core at 2.1 \
             GHz, since it serves one thread at a time; what \
                   makes it slower with writes than with reads is not known"
                .into(),
        },
        Answer {
            id: "K-4a.3",
            measured: format!("{:.2}×; {:.2}×", gains[2], gains[3]),
            holds: Some(
                gains[2..]
                    .iter()
                    .all(|&gain| gain <= rule("K-4a.3", "most") && gain < gains[0].min(gains[1])),
            ),
            note: "SR, SW".into(),
        },
        Answer {
            id: "K-4b.1",
            measured: format!("kyber-fair {}; none {}", list(&ours), list(&theirs)),
            holds: Some(
                ours.iter()
                    .zip(&theirs)
                    .all(|(ours, theirs)| *ours >= rule("K-4b.1", "least") && theirs < ours),
            ),
            note: "Jain's index of throughput per weight: RR, RW, SR, SW".into(),
        },
    ];
    let mut throughput =
        bars("k-4a", "Fig 4a: throughput", "MB/s", [&rates[0], &rates[1], &rates[2]]);
    let gains = [rule("K-4a.2", "reads"), rule("K-4a.2", "writes")];
    let of_paper = rates[1].iter().zip(gains).map(|(fair, gain)| fair / gain);
    throughput.lines.push(Line::of_paper(
        "BFQ",
        of_paper.enumerate().map(|(at, mb_s)| (at as f64, mb_s)).collect(),
    ));
    let figures = vec![
        throughput,
        bars("k-4b", "Fig 4b: fairness index", "Jain's index", [&theirs, &ours, &indices]),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Frequency of each of [`SIZES`], percentage of reads, and the paper's figures: mean KiB, and
/// reads per write.
type Mix = ([u32; 7], u32, f64, f64);

/// Sizes of the sample, in bytes: 41, 974, 152, 133, 218, 147 and 333 of its 1998 requests are at
/// most as large as these.
const SIZES: [u32; 7] = [512, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// Table 4's rows: the sample's numbers, each times the same constant to the power of its size, for
/// the row's mean.
const MIXES: [Mix; 4] = [
    ([21, 502, 78, 68, 109, 71, 151], 77, 31.1, 3.44),
    ([23, 548, 84, 71, 107, 62, 104], 76, 24.8, 3.19),
    ([15, 377, 61, 56, 102, 86, 303], 74, 50.4, 2.78),
    ([12, 300, 49, 47, 92, 89, 412], 62, 63.7, 1.60),
];

/// A row of Table 4 as a load.
fn mix(row: usize) -> Job {
    let (often, read_percent, ..) = MIXES[row];
    let sizes = SIZES.into_iter().zip(often).collect();
    Job { sizes, read_percent, ..Job::random_read(4096, 32) }
}

/// Averages of a mix: KiB, and reads per write.
fn averages(row: usize) -> (f64, f64) {
    let (often, reads, ..) = MIXES[row];
    let all: u32 = often.iter().sum();
    let bytes: u32 = SIZES.iter().zip(often).map(|(size, often)| size * often).sum();
    (f64::from(bytes) / 1024.0 / f64::from(all), f64::from(reads) / f64::from(100 - reads))
}

/// Figure 5: mixes like the traces', each with every weight in turn.
fn traces(setting: Setting<'_>) -> Result<Outcome, String> {
    let (mut gains, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..4 {
        let weights = [0, 1, 2, 3].map(|row| WEIGHTS[(row + 4 - turn) % 4]);
        let scenario = scenario([0, 1, 2, 3].map(mix), weights)?;
        let (fair, bfq) = (go(FAIR, &scenario, setting)?, bfq(&scenario, setting)?);
        gains.push(fair.bandwidth() / bfq.bandwidth());
        ours.push(fairness(&fair, &weights));
        theirs.push(fairness(&bfq, &weights));
    }
    let list = |values: &[f64]| {
        values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" ")
    };
    let fine = |values: &[f64]| {
        values.iter().map(|value| format!("{value:.4}")).collect::<Vec<_>>().join(" ")
    };
    let close = |row: usize| {
        let ((kib, ratio), (.., paper_kib, paper_ratio)) = (averages(row), MIXES[row]);
        near(kib, paper_kib, rule("K-T4", "off")) && near(ratio, paper_ratio, rule("K-T4", "off"))
    };
    let said = [0, 1, 2, 3]
        .map(|row| format!("{:.1} KiB {:.2}:1", averages(row).0, averages(row).1))
        .join(", ");
    let most = gains.iter().copied().fold(0.0, f64::max);
    let least = gains.iter().copied().fold(f64::MAX, f64::min);
    let is_least = |row: usize| gains[row] < least + rule("K-5a.2", "alike");
    let answers = vec![
        Answer {
            id: "K-5a.1",
            measured: format!("{most:.2} times BFQ's throughput"),
            holds: Some(near(most, rule("K-5a.1", "most"), rule("K-5a.1", "off"))),
            note: MIXED.into(),
        },
        Answer {
            id: "K-5a.2",
            measured: format!("of BFQ's throughput: {}", list(&gains)),
            holds: agreed(&[is_least(1), is_least(2), is_least(3)]),
            note: "the top weight at row 1, 2, 3, 4 of Table 4, whose names are lost: LUN3 is the \
             second if these are LUN 2, 3, 4 and 6, the third if they are LUN 1 to 4, and the \
             fourth, which has the largest requests, if they are LUN 0 to 3"
                .into(),
        },
        Answer {
            id: "K-5b.1",
            measured: format!("kyber-fair {}; BFQ {}", fine(&ours), fine(&theirs)),
            holds: Some(ours.iter().zip(&theirs).all(|(ours, theirs)| ours >= theirs)),
            note: "the same four runs, all within 0.006 of 1; BFQ is as exact over \
             seconds"
                .into(),
        },
        Answer { id: "K-T4", measured: said, holds: Some((0..4).all(close)), note: MIXED.into() },
    ];
    Ok(answers.into())
}

/// Figure 6: 1 KiB, random reads, more and more tenants of four threads; the last ones share cores
/// with the first.
fn groups(setting: Setting<'_>) -> Result<Outcome, String> {
    let numbers = [1, 2, 4, 8];
    let mut rates = [vec![], vec![], vec![]];
    for number in numbers {
        let job = Job::random_read(1024, 32);
        let tenant = |at| {
            Tenant::new(&format!("group {at}"), 100, (4 * at..4 * at + 4).collect(), job.clone())
        };
        let scenario = machine(4 * number, (0..number).map(tenant).collect())?;
        let runs = [
            go(AnySubject::None, &scenario, setting)?,
            go(FAIR, &scenario, setting)?,
            bfq(&scenario, setting)?,
        ];
        rates.iter_mut().zip(runs).for_each(|(rates, run)| rates.push(run.iops() / 1e3));
    }
    let [none, fair, bfq] = &rates;
    let list =
        |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.0}")).collect::<Vec<_>>().join(" ");
    let points = |rates: &[f64]| {
        numbers.iter().zip(rates).map(|(&number, &rate)| (number as f64, rate)).collect()
    };
    let all = ["none", "kyber-fair", "BFQ"].into_iter().zip(&rates);
    let figure = Figure::lines(
        "k-6",
        "Kyber-fairness, Fig 6: more and more tenants",
        [Axis::linear("tenants of four threads"), Axis::linear("thousand requests a second")],
        all.map(|(name, rates)| Line::new(name, points(rates))).collect(),
    );
    let answer = Answer {
        id: "K-6.1",
        measured: format!(
            "none {}; kyber-fair {}; BFQ {} K a \
         second",
            list(none),
            list(fair),
            list(bfq)
        ),
        holds: Some(
            none.iter().zip(fair).all(|(none, fair)| near(*fair, *none, rule("K-6.1", "off")))
                && bfq[3] <= rule("K-6.1", "falls") * bfq[0],
        ),
        note: "1, 2, 4, 8 tenants; BFQ waits for the one thread that it serves, so that it is as \
               slow with one tenant as with eight. Linux 5.2 does that in every control group; \
               later ones do not where one group alone has requests"
            .into(),
    };
    Ok(Outcome { answers: vec![answer], figures: vec![figure], tables: Vec::new() })
}

/// Effects of too many tokens a period, and of too few.
fn predictions(setting: Setting<'_>) -> Result<Outcome, String> {
    let scenario = scenario(four(&Job::random_read(4096, 32)), WEIGHTS)?;
    let with = |totals| {
        go(AnySubject::KyberFair(KyberFairSubject { busy: 64, totals }), &scenario, setting)
    };
    // The device serves about 200 MB in a period.
    let [few, right, many] =
        [with(Totals::fixed(8 << 20))?, with(TOTALS)?, with(Totals::fixed(4 << 30))?];
    let index = |run: &Run| fairness(run, &WEIGHTS);
    let stops = |run: &Run| run.stats.throttles;
    Ok(vec![Answer {
        id: "K-w.1",
        measured: format!(
            "index: {:.3} with 8 MiB a period, {:.3} predicted, {:.3} with 4 GiB; throttled {} and \
             {} times with 8 MiB and predicted",
            index(&few),
            index(&right),
            index(&many),
            stops(&few),
            stops(&right)
        ),
        holds: Some(
            index(&many) < index(&right) - rule("K-w.1", "index")
                && stops(&few) as f64 > rule("K-w.1", "times") * stops(&right) as f64,
        ),
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
        let Fact::Settled(Moment { wakes_under_way: 0, staged, outstanding: 0, .. }) = *fact else {
            return Ok(());
        };
        if staged == 0 { Ok(()) } else { Err(format!("{staged} wait and the device has nothing")) }
    }
}

/// A heavy tenant that sends little beside light ones that send much: tokens of the heavy one are
/// left over, and no other tenant has any.
fn never_idle(setting: Setting<'_>) -> Result<Outcome, String> {
    let little = Job { think_ns: MS, ..Job::random_read(4096, 1) };
    let much = Job::random_read(4096, 32);
    let mut scenario = scenario([little, much.clone(), much.clone(), much], WEIGHTS)?;
    // The check for an idle device runs between commands, and does not see requests on their way
    // through cores, so CPUs take no time.
    scenario.host = None;
    let AnySubject::KyberFair(tokens) = FAIR else { return Err("FAIR is made of tokens".into()) };
    // A check of its own, so it does not pass through `go`.
    let fair = run(&setting.applied(&scenario)?, &tokens, vec![Box::new(NeverIdle)])
        .map_err(|error| error.to_string())?;
    let none = go(AnySubject::None, &scenario, setting)?;
    let kept = fair.bandwidth() / none.bandwidth();
    let measured = match &fair.violation {
        None => format!(
            "never idle in {} requests; {} of none's throughput",
            fair.requests,
            percent(kept)
        ),
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
