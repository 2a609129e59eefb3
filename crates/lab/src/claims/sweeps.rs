//! Beyond the papers: questions of users. How do fairness and tails change with the number of
//! tenants, with weights, with the device's window W and MQFQ's D and T; does the rule of `fairq
//! calibrate` choose D and T well; and which policy suits which situation.
//!
//! These rows claim nothing, so nothing holds or fails. Runs are without checks, because some
//! checks visit every pair of flows.

use fairq_classic::nass::NassConfig;
use fairq_core::d2fq::Ratio;
use fairq_core::kyber_fair::Totals;
use fairq_device::Profile;
use fairq_device::profile::{Count, Interface};
use fairq_sim::Run;
use fairq_sim::policies::{
    AnySubject, D2fqSubject, KyberFairSubject, MqfqSubject, Scheduler, SerialSubject, SfqdSubject,
};
use fairq_sim::scenario::{Burst, Job, MS, SECOND, Scenario, Tenant, US};

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Setting, Table, jain, measured};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["X-tenants"], seconds: 40, run: tenants },
    Experiment { ids: &["X-weights"], seconds: 25, run: weights },
    Experiment { ids: &["X-window"], seconds: 25, run: window },
    Experiment { ids: &["X-depth"], seconds: 8, run: depth },
    Experiment { ids: &["X-threshold"], seconds: 5, run: threshold },
    Experiment { ids: &["X-auto"], seconds: 25, run: automatic },
    Experiment { ids: &["X-which"], seconds: 30, run: which },
];

const MQFQ: AnySubject = AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 });
const D2FQ: AnySubject = AnySubject::D2fq(D2fqSubject {
    ratio: Ratio::Dynamic { initial: 256 },
    tau_l: 8 << 20,
    tau_m: None,
    strict_paper: false,
});
const TOKENS: AnySubject = AnySubject::KyberFair(KyberFairSubject {
    busy: 32,
    totals: Totals::between(16 << 20, 1 << 20, 1 << 38),
});

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).map_err(|error| error.to_string())
}

/// Jain's index of bytes per weight.
fn fairness(run: &Run, scenario: &Scenario) -> f64 {
    jain(
        run.tenants
            .iter()
            .zip(&scenario.tenants)
            .map(|(got, tenant)| got.bytes as f64 / f64::from(tenant.weight)),
    )
}

/// A row that reports a value and claims nothing.
fn told(id: &'static str, measured: String, note: &'static str) -> Answer {
    Answer { id, measured, holds: None, note: note.into() }
}

fn list(values: impl Iterator<Item = f64>, digits: usize) -> String {
    values.map(|value| format!("{value:.digits$}")).collect::<Vec<_>>().join(" ")
}

/// From 2 to 10,000 tenants, half of them three times as heavy, some 512 requests in all.
fn tenants(setting: Setting<'_>) -> Result<Outcome, String> {
    let counts = [2, 10, 100, 1000, 10_000];
    let scenario = |count: usize| {
        let depth = (512 / count).clamp(1, 128) as u32;
        let tenant = |number: usize| {
            let weight = if number.is_multiple_of(2) { 100 } else { 300 };
            Tenant::new(
                &format!("t{number}"),
                weight,
                vec![number % 16],
                Job::random_read(4096, depth),
            )
        };
        let mut scenario =
            Scenario::new(profile("z-ssd")?, 16, (0..count).map(tenant).collect(), 3 * SECOND);
        scenario.warmup_ns = 2 * SECOND;
        Ok::<Scenario, String>(scenario)
    };
    let policies =
        [("none", AnySubject::None), ("mqfq", MQFQ), ("d2fq", D2FQ), ("kyber-fair", TOKENS)];
    let (mut fair, mut tails, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for (name, policy) in policies {
        let mut points = [vec![], vec![], vec![]];
        for count in counts {
            let scenario = scenario(count)?;
            let run = measured(policy, &scenario, setting)?;
            // The light tenants' tail over all of them, so that a few requests of each are enough.
            let mut light = run.tenants[0].latency_ns.clone();
            for got in run.tenants.iter().step_by(2).skip(1) {
                light.add(&got.latency_ns).map_err(|error| error.to_string())?;
            }
            let values = [
                fairness(&run, &scenario),
                light.value_at_quantile(0.99) as f64 / 1e6,
                run.iops() / 1e3,
            ];
            points
                .iter_mut()
                .zip(values)
                .for_each(|(points, value)| points.push((count as f64, value)));
        }
        let [a, b, c] = points;
        fair.push(Line::new(name, a));
        tails.push(Line::new(name, b));
        rates.push(Line::new(name, c));
    }
    let said =
        |line: &Line| format!("{} {}", line.name, list(line.points.iter().map(|point| point.1), 3));
    let x = Axis::log("tenants");
    let answers = vec![told(
        "X-tenants",
        fair.iter().map(said).collect::<Vec<_>>().join("; "),
        "Jain's index of bytes per weight with 2, 10, 100, 1000 and 10,000 tenants, weights 1 and \
         3; measured in the third second",
    )];
    let figures = vec![
        Figure::lines(
            "x-tenants-fairness",
            "Fairness by the number of tenants (Z-SSD)",
            [x, Axis::linear("Jain's index")],
            fair,
        ),
        Figure::lines(
            "x-tenants-tail",
            "Tail of the light ones by the number of tenants",
            [x, Axis::log("p99, ms")],
            tails,
        ),
        Figure::lines(
            "x-tenants-rate",
            "All requests by the number of tenants",
            [x, Axis::linear("thousand a second")],
            rates,
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Two tenants, deep, from 1:1 to 1:10,000.
fn weights(setting: Setting<'_>) -> Result<Outcome, String> {
    let policies = [("mqfq", MQFQ), ("d2fq", D2FQ), ("kyber-fair", TOKENS)];
    let ratios: [u16; 6] = [1, 3, 10, 100, 1000, 10_000];
    let mut got = Vec::new();
    for (name, policy) in policies {
        let mut points = Vec::new();
        for ratio in ratios {
            let light = Tenant::new("light", 1, (0..4).collect(), Job::random_read(4096, 64));
            let heavy = Tenant::new("heavy", ratio, (4..8).collect(), Job::random_read(4096, 64));
            let mut scenario = Scenario::new(profile("z-ssd")?, 8, vec![light, heavy], 5 * SECOND);
            // Virtual time runs a hundred times as fast at weight 1; the thresholds of D2FQ are
            // reached at once.
            scenario.warmup_ns = 3 * SECOND;
            let run = measured(policy, &scenario, setting)?;
            // The minimum of 1 byte keeps the ratio finite if a light tenant received nothing.
            let bytes = run.tenants.iter().map(|got| got.bytes.max(1) as f64).collect::<Vec<_>>();
            points.push((f64::from(ratio), bytes[1] / bytes[0]));
        }
        got.push(Line::new(name, points));
    }
    let said =
        |line: &Line| format!("{} {}", line.name, list(line.points.iter().map(|point| point.1), 1));
    let measured = got.iter().map(said).collect::<Vec<_>>().join("; ");
    got.push(Line::new(
        "by weight",
        ratios.map(|ratio| (f64::from(ratio), f64::from(ratio))).to_vec(),
    ));
    let axes = [Axis::log("weights, 1 to"), Axis::log("bytes, 1 to")];
    Ok(Outcome {
        answers: vec![told(
            "X-weights",
            measured,
            "bytes of the heavy tenant for one of the light, weights 1 to 1, 3, 10, 100, 1000, \
             10,000; D2FQ's ratio ends at 256",
        )],
        figures: vec![Figure::lines(
            "x-weights",
            "Shares by weights (Z-SSD, two deep tenants)",
            axes,
            got,
        )],
        tables: Vec::new(),
    })
}

/// Relative deviation of the first of two tenants from its share by weight.
fn off(run: &Run, scenario: &Scenario) -> f64 {
    let all: f64 = scenario.tenants.iter().map(|tenant| f64::from(tenant.weight)).sum();
    let due = f64::from(scenario.tenants[0].weight) / all;
    (run.shares()[0] / due - 1.0).abs()
}

/// Devices that fetch from 8 to 512 commands: a device that fetches everything leaves nothing to be
/// reordered.
fn window(setting: Setting<'_>) -> Result<Outcome, String> {
    let windows = [8, 16, 32, 64, 128, 256, 512];
    let (mut errors, mut tails) = (Vec::new(), Vec::new());
    for (name, policy) in [("mqfq", MQFQ), ("d2fq", D2FQ)] {
        let (mut by_error, mut by_tail) = (Vec::new(), Vec::new());
        for window in windows {
            let mut profile = profile("z-ssd")?;
            profile.host.window = Count::new(window);
            let light = Tenant::new("light", 100, (0..4).collect(), Job::random_read(4096, 64));
            let heavy = Tenant::new("heavy", 300, (4..8).collect(), Job::random_read(4096, 64));
            let mut scenario = Scenario::new(profile, 8, vec![light, heavy], 5 * SECOND);
            scenario.warmup_ns = 3 * SECOND;
            let run = measured(policy, &scenario, setting)?;
            by_error.push((f64::from(window), 100.0 * off(&run, &scenario)));
            by_tail.push((f64::from(window), run.tenants[1].quantile_us(0.99) / 1e3));
        }
        errors.push(Line::new(name, by_error));
        tails.push(Line::new(name, by_tail));
    }
    let said = |line: &Line| {
        format!("{} {} %", line.name, list(line.points.iter().map(|point| point.1), 1))
    };
    let x = Axis::log("commands that the device fetches (W)");
    Ok(Outcome {
        answers: vec![told(
            "X-window",
            errors.iter().map(said).collect::<Vec<_>>().join("; "),
            "how far the light one of two tenants, 1:3 and 256 requests each, is from its share, W \
             = 8, 16, 32, 64, 128, 256, 512; mqfq's D is 64",
        )],
        figures: vec![
            Figure::lines(
                "x-window-share",
                "Error of the share by the device's window",
                [x, Axis::linear("%")],
                errors,
            ),
            Figure::lines(
                "x-window-tail",
                "Tail of the heavy one by the device's window",
                [x, Axis::linear("p99, ms")],
                tails,
            ),
        ],
        tables: Vec::new(),
    })
}

/// A tenant in bursts beside a deep one, for D and T.
fn bursts_beside_deep(profile: Profile) -> Scenario {
    let bursts =
        Job { burst: Some(Burst { on_ns: 2 * MS, off_ns: 8 * MS }), ..Job::random_read(4096, 8) };
    let tenants = vec![
        Tenant::new("bursts", 100, vec![0, 1], bursts),
        Tenant::new("deep", 100, (2..8).collect(), Job::random_read(4096, 64)),
    ];
    Scenario::new(profile, 8, tenants, 400 * MS)
}

/// The effect of D, on a device that would take more.
fn depth(setting: Setting<'_>) -> Result<Outcome, String> {
    let depths = [4, 8, 16, 32, 64, 128, 256, 512];
    let mut wide = profile("z-ssd")?;
    wide.host.window = Count::new(512);
    let scenario = bursts_beside_deep(wide);
    let (mut rates, mut tails) = (Vec::new(), Vec::new());
    for slots in depths {
        let run = measured(
            AnySubject::Mqfq(MqfqSubject { slots, threshold: 45 << 10 }),
            &scenario,
            setting,
        )?;
        rates.push((f64::from(slots), run.iops() / 1e3));
        tails.push((f64::from(slots), run.tenants[0].quantile_us(0.99)));
    }
    let measured = format!(
        "{} K a second, p99 of the bursts {} us",
        list(rates.iter().map(|point| point.1), 0),
        list(tails.iter().map(|point| point.1), 0)
    );
    let x = Axis::log("D");
    Ok(Outcome {
        answers: vec![told(
            "X-depth",
            measured,
            "mqfq, D = 4, 8, 16, 32, 64, 128, 256, 512, a Z-SSD that fetches up to 512",
        )],
        figures: vec![
            Figure::lines(
                "x-depth-rate",
                "Throughput by D",
                [x, Axis::linear("thousand a second")],
                vec![Line::new("all", rates)],
            ),
            Figure::lines(
                "x-depth-tail",
                "Tail of a tenant in bursts by D",
                [x, Axis::linear("p99, us")],
                vec![Line::new("bursts", tails)],
            ),
        ],
        tables: Vec::new(),
    })
}

/// The effect of T.
fn threshold(setting: Setting<'_>) -> Result<Outcome, String> {
    let thresholds = [0, 4 << 10, 16 << 10, 45 << 10, 128 << 10, 512 << 10, 2 << 20];
    let scenario = bursts_beside_deep(profile("z-ssd")?);
    let (mut rates, mut tails) = (Vec::new(), Vec::new());
    for threshold in thresholds {
        let run =
            measured(AnySubject::Mqfq(MqfqSubject { slots: 64, threshold }), &scenario, setting)?;
        rates.push((threshold as f64 / 1024.0, run.iops() / 1e3));
        tails.push((threshold as f64 / 1024.0, run.tenants[0].quantile_us(0.99)));
    }
    let measured = format!(
        "{} K a second, p99 of the bursts {} us",
        list(rates.iter().map(|point| point.1), 0),
        list(tails.iter().map(|point| point.1), 0)
    );
    let x = Axis::linear("T, KiB");
    Ok(Outcome {
        answers: vec![told(
            "X-threshold",
            measured,
            "mqfq, D = 64, T = 0, 4, 16, 45, 128, 512, 2048 KiB, Z-SSD",
        )],
        figures: vec![
            Figure::lines(
                "x-threshold-rate",
                "Throughput by T",
                [x, Axis::linear("thousand a second")],
                vec![Line::new("all", rates)],
            ),
            Figure::lines(
                "x-threshold-tail",
                "Tail of a tenant in bursts by T",
                [x, Axis::linear("p99, us")],
                vec![Line::new("bursts", tails)],
            ),
        ],
        tables: Vec::new(),
    })
}

/// The rule of `fairq calibrate`: the least D that gives 98 % of the greatest rate, then the least
/// T that loses nothing. It is compared with the best of all pairs that give 98 %: the pair with
/// the shortest tail for a tenant in bursts.
fn automatic(setting: Setting<'_>) -> Result<Outcome, String> {
    const DEPTHS: [u32; 8] = [4, 8, 16, 32, 64, 96, 128, 256];
    const THRESHOLDS: [u64; 4] = [0, 16 << 10, 64 << 10, 256 << 10];
    let mut rows = Vec::new();
    let mut worst = 0.0f64;
    for name in ["z-ssd", "p3700", "p4500", "nvmf-ramdisk", "p4800x"] {
        let scenario = bursts_beside_deep(profile(name)?);
        let mut grid = Vec::new();
        for slots in DEPTHS {
            for threshold in THRESHOLDS {
                let run = measured(
                    AnySubject::Mqfq(MqfqSubject { slots, threshold }),
                    &scenario,
                    setting,
                )?;
                grid.push((slots, threshold, run.iops(), run.tenants[0].quantile_us(0.99)));
            }
        }
        let most = grid.iter().map(|point| point.2).fold(0.0, f64::max);
        let enough = |point: &&(u32, u64, f64, f64)| point.2 >= 0.98 * most;
        // D is chosen where T throttles least; `fairq calibrate` seeks it with no policy at all.
        let widest = grid.iter().filter(|point| point.1 == THRESHOLDS[3]);
        let slots = widest.clone().find(enough).or(grid.last()).map_or(0, |point| point.0);
        let chosen = grid.iter().filter(|point| point.0 == slots).find(enough).unwrap_or(&grid[0]);
        let best =
            grid.iter().filter(enough).min_by(|a, b| a.3.total_cmp(&b.3)).unwrap_or(&grid[0]);
        worst = worst.max(chosen.3 / best.3);
        let cells = |point: &(u32, u64, f64, f64)| {
            [
                point.0.to_string(),
                (point.1 >> 10).to_string(),
                format!("{:.0}", point.2 / 1e3),
                format!("{:.0}", point.3),
            ]
        };
        rows.push([vec![name.to_owned()], cells(chosen).to_vec(), cells(best).to_vec()].concat());
    }
    let header = [
        "device",
        "D",
        "T, KiB",
        "K a second",
        "p99, us",
        "best D",
        "T, KiB",
        "K a second",
        "p99, us",
    ];
    Ok(Outcome {
        answers: vec![told(
            "X-auto",
            format!("the tail is at most {worst:.2} times that of the best fixed choice"),
            "p99 of a tenant in bursts beside a deep one, on five devices; 98 % of the throughput \
             is asked of both",
        )],
        figures: Vec::new(),
        tables: vec![Table {
            id: "x-auto",
            title: "D and T as calibrated, and the best fixed choice of 32".into(),
            header: header.map(str::to_owned).to_vec(),
            rows,
        }],
    })
}

/// A load and a device that users ask about.
struct Situation {
    name: &'static str,
    device: &'static str,
    tenants: Vec<Tenant>,
}

fn situations() -> Vec<Situation> {
    let on = |name: &str, weight, threads: std::ops::Range<usize>, job| {
        Tenant::new(name, weight, threads.collect(), job)
    };
    let deep = Job::random_read(4096, 32);
    let large = Job::random_read(128 << 10, 16);
    let shallow = Job { think_ns: 20 * US, ..Job::random_read(4096, 1) };
    let writes = Job { read_percent: 0, ..Job::random_read(16 << 10, 32) };
    let pair =
        |a: &Job, b: &Job| vec![on("a", 100, 0..4, a.clone()), on("b", 100, 4..8, b.clone())];
    let crowd = (0..64).map(|number| {
        on(&format!("t{number}"), 100, number % 8..number % 8 + 1, Job::random_read(4096, 2))
    });
    vec![
        Situation { name: "small beside large", device: "z-ssd", tenants: pair(&deep, &large) },
        Situation {
            name: "one at a time beside deep",
            device: "z-ssd",
            tenants: pair(&shallow, &deep),
        },
        Situation {
            name: "readers beside writers",
            device: "p4500",
            tenants: pair(&deep, &writes),
        },
        Situation { name: "64 equal ones", device: "p4500", tenants: crowd.collect() },
        Situation {
            name: "small beside large",
            device: "intel-530",
            tenants: pair(&Job { depth: 8, ..deep.clone() }, &Job { depth: 8, ..large.clone() }),
        },
        Situation {
            name: "one at a time beside deep",
            device: "intel-530",
            tenants: pair(&shallow, &Job { depth: 8, ..deep }),
        },
    ]
}

/// The best policy in each situation.
fn which(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut rows = Vec::new();
    let mut winners = Vec::new();
    for Situation { name, device, tenants } in situations() {
        let profile = profile(device)?;
        let sata = profile.host.interface == Interface::Sata;
        let slots = profile.host.window.get().min(64);
        let lock = |scheduler| SerialSubject::new(scheduler, slots);
        let nass = NassConfig::default().with(|config| config.queue_length = slots);
        let mut policies = vec![
            ("none", AnySubject::None),
            ("mqfq", AnySubject::Mqfq(MqfqSubject { slots, threshold: 45 << 10 })),
            ("sfqd", AnySubject::Sfqd(SfqdSubject { slots })),
            (
                "kyber-fair",
                AnySubject::KyberFair(KyberFairSubject {
                    busy: slots / 2,
                    totals: Totals::default(),
                }),
            ),
            ("bfq", AnySubject::Serial(lock(Scheduler::Bfq))),
            ("flashfq", AnySubject::Serial(lock(Scheduler::FlashFq))),
        ];
        // The only one of these devices that is known to have weighted classes.
        if device == "z-ssd" {
            policies.push(("d2fq", D2FQ));
        }
        if sata {
            policies.push(("nass+fiops", AnySubject::Serial(lock(Scheduler::Fiops).limited(nass))));
        }
        let mut scenario = Scenario::new(profile, 8, tenants, 2 * SECOND);
        scenario.warmup_ns = SECOND;
        let alone = Scenario { tenants: vec![scenario.tenants[0].clone()], ..scenario.clone() };
        let wanted = measured(AnySubject::None, &alone, setting)?.bandwidth();
        let mut all = Vec::new();
        for (policy, with) in policies {
            let run = measured(with, &scenario, setting)?;
            // The part that the first tenant gets of its entitlement: an equal part of the total,
            // or its whole demand if that is less.
            let due = (run.bandwidth() / scenario.tenants.len() as f64).min(wanted);
            let kept = run.tenants[0].bytes as f64 * 1e9 / run.measured_ns as f64 / due;
            all.push((policy, kept, run.bandwidth() / 1e6, run.tenants[0].quantile_us(0.99)));
        }
        // The rate under `none`, which is the first policy.
        let full = all[0].2;
        let good = all.iter().filter(|one| one.1 >= 0.95 && one.2 >= 0.9 * full);
        let best = good.min_by(|a, b| a.3.total_cmp(&b.3)).map_or("none of them", |one| one.0);
        winners.push(format!("{name} on {device}: {best}"));
        for (policy, kept, rate, tail) in all {
            let cells = [name, device, policy].map(str::to_owned).to_vec();
            let numbers =
                [format!("{:.0} %", 100.0 * kept), format!("{rate:.0}"), format!("{tail:.0}")];
            rows.push([cells, numbers.to_vec()].concat());
        }
    }
    let header = [
        "situation",
        "device",
        "policy",
        "the first gets of its due",
        "MB/s in all",
        "its p99, us",
    ];
    Ok(Outcome {
        answers: vec![told(
            "X-which",
            winners.join("; "),
            "the shortest p99 of the first tenant among policies that give it 95 % of its due and \
             keep 90 % of none's throughput",
        )],
        figures: Vec::new(),
        tables: vec![Table {
            id: "x-which",
            title: "Which policy when".into(),
            header: header.map(str::to_owned).to_vec(),
            rows,
        }],
    })
}
