//! NASS's claims: schedulers on a SATA drive with a queue of 32 commands, with NASS and without.
//!
//! Figures 3 to 6 are about eight pairs of loads (Table II) under six schedulers and three lengths
//! of the queue, Figures 9 to 11 about three of them with and without NASS. BDR is the part that a
//! tenant keeps of its bandwidth alone under the same scheduler. Fairness (FV) is Jain's index of
//! the quantity that the scheduler shares: BDR (CFQ, FlashFQ), bytes (BFQ) or requests (FIOPS).
//! Utilization (DU) is the sum of the BDRs. Each of fio's jobs is one thread with libaio: it sends
//! one request after another, and each takes it 10 us.
//!
//! **CFQ** is that of Linux 3.10 on such a drive (`fairq_sim::policies`, decision 43), because the
//! paper ran it; **BFQ** is that of Linux 4.15, because the paper names features that 4.12 merged.
//!
//! **FlashFQ's costs** are the device's ("processing time of requests", Table I): the times of
//! reads of 4 and 128 KiB, one at a time.
//!
//! **NASS** is Algorithm 1 to the letter (`strict-paper`), as the paper measured it; fairq's own is
//! reported beside it.
//!
//! **Merging** is the paper's kernel's: adjacent requests in a scheduler become one command of up
//! to 512 KiB.

use fairq_classic::nass::NassConfig;
use fairq_device::{Profile, State, closed};
use fairq_sim::Run;
use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
use fairq_sim::proxy::Proxy;
use fairq_sim::scenario::{Access, Job, SECOND, Scenario, Tenant, US};

use super::{Experiment, Figure, Line, Setting, go, jain};

mod applications;
mod conflicts;
mod disk;
mod examples;
mod limits;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        ids: &["N-3.1", "N-3.2", "N-3.3", "N-3.4", "N-3.5"],
        seconds: 20,
        run: conflicts::sequentiality,
    },
    Experiment { ids: &["N-4.1", "N-4.2", "N-4.3"], seconds: 12, run: conflicts::reads_and_writes },
    Experiment { ids: &["N-5.1", "N-5.2"], seconds: 8, run: conflicts::sizes },
    Experiment {
        ids: &["N-6.1", "N-6.2", "N-6.3", "N-O5", "N-O6"],
        seconds: 20,
        run: conflicts::intensities,
    },
    Experiment { ids: &["N-hdd"], seconds: 1, run: disk::on_a_disk },
    Experiment { ids: &["N-8.1"], seconds: 1, run: limits::reserve },
    Experiment { ids: &["N-9.1", "N-9.2", "N-9.3"], seconds: 6, run: limits::sizes },
    Experiment { ids: &["N-10.1", "N-10.2"], seconds: 6, run: limits::idleness },
    Experiment { ids: &["N-11.1", "N-11.2"], seconds: 8, run: limits::merging },
    Experiment {
        ids: &["N-12.1", "N-12.2", "N-12.3", "N-12.4"],
        seconds: 18,
        run: applications::filebench,
    },
    Experiment { ids: &["N-13.1", "N-13.2", "N-13.3"], seconds: 20, run: applications::spark },
    Experiment { ids: &["N-14.1"], seconds: 12, run: applications::overhead },
    Experiment { ids: &["N-U1"], seconds: 1, run: examples::worked_examples },
];

const NCQ: u32 = 32;
/// Without control groups, and with budgets by the drive's rate.
const BFQ: Scheduler = Scheduler::LinuxBfq(LinuxBfqConfig {
    kernel: Kernel::V4_15,
    processes: 0,
    budget: 0,
    cycles: LinuxBfqConfig::CYCLES,
    low_latency: false,
});
const FOUR: [Scheduler; 4] = [Scheduler::LinuxCfq, BFQ, Scheduler::FlashFq, Scheduler::Fiops];

/// A scheduler as the paper names it.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    lock: SerialSubject,
}

fn named(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::LinuxCfq => "CFQ",
        Scheduler::Cfq => "fairq's CFQ",
        Scheduler::Bfq => "fairq's BFQ",
        Scheduler::LinuxBfq(_) => "BFQ",
        Scheduler::FlashFq => "FlashFQ",
        Scheduler::Fiops => "FIOPS",
    }
}

/// The six schedulers of Figures 3 to 6.
fn six(slots: u32) -> [Variant; 6] {
    let lock = |scheduler| SerialSubject::new(scheduler, slots).merging();
    [
        Variant { name: "CFQ", lock: lock(Scheduler::LinuxCfq) },
        Variant { name: "CFQ-NA", lock: lock(Scheduler::LinuxCfq).without_waiting() },
        Variant { name: "BFQ", lock: lock(BFQ) },
        Variant { name: "BFQ-NA", lock: lock(BFQ).without_waiting() },
        Variant { name: "FlashFQ", lock: lock(Scheduler::FlashFq) },
        Variant { name: "FIOPS", lock: lock(Scheduler::Fiops) },
    ]
}

/// A job of 4 KiB unless another size is given, at depth 32. A request follows the last one after
/// 10 us, the time in which a program sends one.
fn job(access: Access, read_percent: u32) -> Job {
    Job { access, read_percent, interval_ns: 10 * US, ..Job::random_read(4096, 32) }
}

fn of_size(bytes: u32, job: Job) -> Job {
    Job { sizes: vec![(bytes, 1)], ..job }
}

/// A test's two jobs of Table II, one thread each.
fn pair(test: usize, setting: Setting<'_>) -> Result<[Proxy; 2], String> {
    let [first, second] = jobs(test);
    Ok([(1, setting.fio(first)?), (1, setting.fio(second)?)])
}

fn jobs(test: usize) -> [Job; 2] {
    use Access::{Random, Sequential};
    let shallow = |read_percent| Job { depth: 2, ..job(Random, read_percent) };
    match test {
        1 => [job(Sequential, 100), job(Random, 100)],
        2 => [job(Sequential, 0), job(Random, 0)],
        3 => [job(Sequential, 100), job(Sequential, 0)],
        4 => [job(Random, 100), job(Random, 0)],
        5 => [job(Random, 100), of_size(128 << 10, job(Random, 100))],
        6 => [job(Random, 0), of_size(128 << 10, job(Random, 0))],
        7 => [shallow(100), job(Random, 100)],
        _ => [shallow(0), job(Random, 0)],
    }
}

/// The measurements of a pair of loads, in the order of Table II.
#[derive(Clone, Debug)]
struct Measured {
    kept: Vec<f64>,
    /// Bytes that each tenant received.
    got: Vec<f64>,
    fairness: f64,
    utilization: f64,
    /// Mean number of requests in one command, by tenant.
    merged: Vec<f64>,
}

fn profile() -> Result<Profile, String> {
    Profile::named("intel-530").map_err(|error| error.to_string())
}

/// Tenants on enough ports for their requests. A port has 32 requests, because the device's queue
/// holds 32. The drive has been written to for long, as by earlier tests: on a fresh drive small
/// writes take less time than reads, the opposite of the paper's drive (Section II-C).
fn scenario(profile: &Profile, loads: &[Proxy]) -> Scenario {
    let mut ports = 0;
    let tenant = |(number, (threads, job)): (usize, &Proxy)| {
        let (first, to_a_port) = (ports, (NCQ / job.depth).max(1) as usize);
        ports += threads.div_ceil(to_a_port);
        let on = (0..*threads).map(|thread| first + thread / to_a_port).collect();
        Tenant::new(&format!("W{}", number + 1), 100, on, job.clone())
    };
    let tenants: Vec<Tenant> = loads.iter().enumerate().map(tenant).collect();
    let mut scenario = Scenario::new(profile.clone(), ports, tenants, 3 * SECOND);
    scenario.warmup_ns = SECOND / 2;
    scenario.state = State::Steady;
    scenario
}

/// Runs the loads together and alone. The runs alone are without NASS and with the whole queue,
/// because only then can a shorter queue lower the utilization (Observation 5).
fn measure(
    lock: SerialSubject,
    profile: &Profile,
    loads: &[Proxy],
    setting: Setting<'_>,
) -> Result<Measured, String> {
    let mut lock = lock;
    lock.flashfq.request_bytes = closed::read_cost_bytes(profile);
    let alone = SerialSubject { nass: None, waits: true, slots: NCQ, ..lock };
    let together = go(AnySubject::Serial(lock), &scenario(profile, loads), setting)?;
    let bytes = |run: &Run, tenant: usize| run.tenants[tenant].bytes as f64;
    let mut kept = Vec::new();
    for (number, load) in loads.iter().enumerate() {
        let single = scenario(profile, std::slice::from_ref(load));
        kept.push(
            bytes(&together, number) / bytes(&go(AnySubject::Serial(alone), &single, setting)?, 0),
        );
    }
    let shared: Vec<f64> = match lock.scheduler {
        _ if setting.asks_for("every-fv-is-of-what-is-kept") => kept.clone(),
        Scheduler::Cfq | Scheduler::LinuxCfq | Scheduler::FlashFq => kept.clone(),
        Scheduler::Bfq | Scheduler::LinuxBfq(_) => {
            together.tenants.iter().map(|got| got.bytes as f64).collect()
        }
        Scheduler::Fiops => together.tenants.iter().map(|got| got.requests as f64).collect(),
    };
    let merged = together
        .tenants
        .iter()
        .map(|got| got.requests as f64 / got.commands.max(1) as f64)
        .collect();
    Ok(Measured {
        fairness: jain(shared.into_iter()),
        utilization: kept.iter().sum(),
        got: together.tenants.iter().map(|got| got.bytes as f64).collect(),
        kept,
        merged,
    })
}

/// Every scheduler of Figures 3 to 6 on a test, at a length of the queue.
fn at(
    test: usize,
    slots: u32,
    setting: Setting<'_>,
) -> Result<Vec<(&'static str, Measured)>, String> {
    let profile = profile()?;
    let one = |variant: Variant| {
        Ok((variant.name, measure(variant.lock, &profile, &pair(test, setting)?, setting)?))
    };
    six(slots).into_iter().map(one).collect()
}

/// A test at the three lengths, 8, 16 and 32.
fn lengths(
    test: usize,
    setting: Setting<'_>,
) -> Result<[Vec<(&'static str, Measured)>; 3], String> {
    Ok([at(test, 8, setting)?, at(test, 16, setting)?, at(test, NCQ, setting)?])
}

fn of<'a>(results: &'a [(&'static str, Measured)], name: &str) -> &'a Measured {
    &results.iter().find(|result| result.0 == name).expect("it is one of the six").1
}

fn list(
    results: &[(&'static str, Measured)],
    names: &[&str],
    show: impl Fn(&Measured) -> String,
) -> String {
    names
        .iter()
        .map(|name| format!("{name} {}", show(of(results, name))))
        .collect::<Vec<_>>()
        .join(", ")
}

fn both(measured: &Measured) -> String {
    measured.kept.iter().map(|kept| format!("{kept:.2}")).collect::<Vec<_>>().join("/")
}

/// FV at the three lengths.
fn fairness_by_length(results: &[Vec<(&'static str, Measured)>; 3], names: &[&str]) -> String {
    let one = |name: &&str| {
        let values = results
            .iter()
            .map(|at| format!("{:.2}", of(at, name).fairness))
            .collect::<Vec<_>>()
            .join(" ");
        format!("{name} {values}")
    };
    names.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// How much larger FV is at 32 than at 8.
fn fairness_grows(results: &[Vec<(&'static str, Measured)>; 3], name: &str) -> f64 {
    of(&results[2], name).fairness - of(&results[0], name).fairness
}

/// BDRs, FV and DU of the six schedulers as a figure.
fn drawn(
    id: &'static str,
    title: &str,
    weak: &str,
    strong: &str,
    results: &[(&'static str, Measured)],
) -> Figure {
    let bars = |name: &str, value: &dyn Fn(&Measured) -> f64| {
        Line::bars(name, &results.iter().map(|result| value(&result.1)).collect::<Vec<f64>>())
    };
    let lines = vec![
        bars(weak, &|m| m.kept[0]),
        bars(strong, &|m| m.kept[1]),
        bars("FV", &fv),
        bars("DU", &du),
    ];
    let groups = results.iter().map(|result| result.0);
    Figure::bars(id, &format!("NASS, {title}"), MEASURES, groups, lines)
}

const MEASURES: &str = "BDR and FV (1 is best), DU";

/// Gains of one variant of a scheduler over another in a measure, according to the paper.
struct Said {
    measure: &'static str,
    of: fn(&Measured) -> f64,
    /// Suffixes of the scheduler's name: of the lower variant, and of the higher one.
    variants: [&'static str; 2],
    gains: Vec<(Scheduler, f64)>,
}

impl Said {
    fn new(
        measure: &'static str,
        of: fn(&Measured) -> f64,
        schedulers: &[Scheduler],
        gains: &[f64],
    ) -> Said {
        let gains = schedulers.iter().copied().zip(gains.iter().copied()).collect();
        Said { measure, of, variants: ["", "(N)"], gains }
    }
}

/// The four schedulers, each without NASS and with it.
struct Pairs(Vec<(Scheduler, Measured, Measured)>);

/// The pairs with NASS to the letter of its paper, which decides the verdict, and with fairq's own.
struct Both {
    strict: Pairs,
    ours: Pairs,
}

impl Both {
    fn new(loads: &[Proxy], nass: NassConfig, setting: Setting<'_>) -> Result<Both, String> {
        let profile = profile()?;
        let (mut strict, mut ours) = (Vec::new(), Vec::new());
        for scheduler in FOUR {
            let lock = SerialSubject::new(scheduler, NCQ).merging();
            let under = |lock| measure(lock, &profile, loads, setting);
            let before = under(lock)?;
            strict.push((scheduler, before.clone(), under(lock.limited_strictly(nass))?));
            ours.push((scheduler, before, under(lock.limited(nass))?));
        }
        Ok(Both { strict: Pairs(strict), ours: Pairs(ours) })
    }

    /// The gains of both, first those of NASS to the letter.
    fn gains(&self, schedulers: &[Scheduler], value: impl Fn(&Measured) -> f64) -> String {
        let ours = self.ours.gains(schedulers, &value);
        format!("{}; ours {ours}", self.strict.gains(schedulers, &value))
    }
}

impl Pairs {
    fn of(&self, scheduler: Scheduler) -> (&Measured, &Measured) {
        let found = self.0.iter().find(|one| one.0 == scheduler).expect("one of the four");
        (&found.1, &found.2)
    }

    /// Relative gain of a scheduler's value with NASS.
    fn gain(&self, scheduler: Scheduler, value: impl Fn(&Measured) -> f64) -> f64 {
        let (before, after) = self.of(scheduler);
        value(after) / value(before) - 1.0
    }

    fn gains(&self, schedulers: &[Scheduler], value: impl Fn(&Measured) -> f64) -> String {
        let one = |&scheduler: &Scheduler| {
            let gain = self.gain(scheduler, &value);
            format!(
                "{} {:+.0} % ({:.2})",
                named(scheduler),
                100.0 * gain,
                value(self.of(scheduler).0)
            )
        };
        schedulers.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Each scheduler's results without NASS and with it.
    fn groups(&self) -> Vec<(String, &Measured)> {
        let both = self.0.iter().flat_map(|(scheduler, before, after)| {
            [(named(*scheduler).to_owned(), before), (format!("{}(N)", named(*scheduler)), after)]
        });
        both.collect()
    }
}

/// A figure of schedulers with and without NASS. A value of the paper is the measurement here with
/// the paper's gain on top.
fn with_nass(
    id: &'static str,
    title: &str,
    tenants: &[&str],
    groups: &[(String, &Measured)],
    said: impl IntoIterator<Item = Said>,
) -> Figure {
    let bars = |name: &str, value: &dyn Fn(&Measured) -> f64| {
        Line::bars(name, &groups.iter().map(|group| value(group.1)).collect::<Vec<f64>>())
    };
    let kept = |(number, name): (usize, &&str)| bars(name, &|m| m.kept[number]);
    let mut lines: Vec<Line> = tenants.iter().enumerate().map(kept).collect();
    lines.extend([bars("FV", &fv), bars("DU", &du)]);
    let of_paper = |Said { measure, of, variants, gains }: Said| {
        let point = |(scheduler, gain): (Scheduler, f64)| {
            let [from, to] = variants.map(|variant| {
                let name = format!("{}{variant}", named(scheduler));
                groups.iter().position(|group| group.0 == name).expect("a group of this name")
            });
            (to as f64, (1.0 + gain) * of(groups[from].1))
        };
        Line::of_paper(measure, gains.into_iter().map(point).collect())
    };
    lines.extend(said.into_iter().map(of_paper));
    let groups = groups.iter().map(|group| group.0.as_str());
    Figure::bars(id, &format!("NASS, {title}"), MEASURES, groups, lines)
}

fn fv(measured: &Measured) -> f64 {
    measured.fairness
}

fn du(measured: &Measured) -> f64 {
    measured.utilization
}

const CHANGES: &str = "change with NASS, and the value without in brackets";
