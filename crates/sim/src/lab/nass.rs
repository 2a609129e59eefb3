//! NASS's claims: schedulers on a SATA drive with a queue of 32 commands, with NASS and without.
//!
//! Figures 3 to 6 are about eight pairs of loads (Table II) under six schedulers and three lengths of the queue, Figures 9 to 11
//! about three of them with and without NASS. Measures: of the bandwidth that a tenant has alone under the same scheduler, how
//! much it keeps (BDR); fairness (FV), Jain's index of what the scheduler shares: BDR (CFQ, FlashFQ), bytes (BFQ) or requests
//! (FIOPS); utilization (DU), the sum of what is kept. A tenant takes 10 us from an answer to its next request.
//!
//! **Merging** as the paper's kernel does it: requests that lie side by side in a scheduler are one command of up to 512 KiB.

use fairq_core::nass::NassConfig;
use fairq_device::{DiskProfile, Profile, State};

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Shape, go, jain};
use crate::host::Machine;
use crate::meter::Run;
use crate::policies::{AnyPolicy, OneLock, Scheduler};
use crate::proxy;
use crate::scenario::{Access, Job, MS, SECOND, Scenario, Tenant, US};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["N-3.1", "N-3.2", "N-3.3", "N-3.4", "N-3.5"], seconds: 20, run: sequentiality },
    Experiment { ids: &["N-4.1", "N-4.2", "N-4.3"], seconds: 12, run: reads_and_writes },
    Experiment { ids: &["N-5.1", "N-5.2"], seconds: 8, run: sizes },
    Experiment { ids: &["N-6.1", "N-6.2", "N-6.3", "N-O5", "N-O6"], seconds: 20, run: intensities },
    Experiment { ids: &["N-hdd"], seconds: 1, run: on_a_disk },
    Experiment { ids: &["N-8.1"], seconds: 1, run: reserve },
    Experiment { ids: &["N-9.1", "N-9.2", "N-9.3"], seconds: 4, run: limits },
    Experiment { ids: &["N-10.1", "N-10.2"], seconds: 4, run: idleness },
    Experiment { ids: &["N-11.1", "N-11.2"], seconds: 4, run: merging },
    Experiment { ids: &["N-12.1", "N-12.2", "N-12.3", "N-12.4"], seconds: 12, run: filebench },
    Experiment { ids: &["N-13.1", "N-13.2", "N-13.3"], seconds: 15, run: spark },
    Experiment { ids: &["N-14.1"], seconds: 8, run: overhead },
    Experiment { ids: &["N-U1"], seconds: 1, run: worked_examples },
];

const NCQ: u32 = 32;
const FOUR: [Scheduler; 4] = [Scheduler::Cfq, Scheduler::Bfq, Scheduler::FlashFq, Scheduler::Fiops];

/// A scheduler as the paper names it.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    lock: OneLock,
}

fn named(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::Cfq => "CFQ",
        Scheduler::Bfq => "BFQ",
        Scheduler::FlashFq => "FlashFQ",
        Scheduler::Fiops => "FIOPS",
    }
}

/// The six of Figures 3 to 6.
fn six(slots: u32) -> [Variant; 6] {
    let lock = |scheduler| OneLock::new(scheduler, slots).merging();
    [
        Variant { name: "CFQ", lock: lock(Scheduler::Cfq) },
        Variant { name: "CFQ-NA", lock: lock(Scheduler::Cfq).without_waiting() },
        Variant { name: "BFQ", lock: lock(Scheduler::Bfq) },
        Variant { name: "BFQ-NA", lock: lock(Scheduler::Bfq).without_waiting() },
        Variant { name: "FlashFQ", lock: lock(Scheduler::FlashFq) },
        Variant { name: "FIOPS", lock: lock(Scheduler::Fiops) },
    ]
}

/// 4 KiB unless another size is said, 32 requests deep, with the time that a program takes between two requests.
fn job(access: Access, read_percent: u32) -> Job {
    Job { access, read_percent, think_ns: 10 * US, ..Job::random_read(4096, 32) }
}

fn of_size(bytes: u32, job: Job) -> Job {
    Job { sizes: vec![(bytes, 1)], ..job }
}

/// Table II.
fn pair(test: usize) -> [Job; 2] {
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

/// What came of a pair: in the order of Table II.
#[derive(Clone, Debug)]
struct Measured {
    kept: Vec<f64>,
    fairness: f64,
    utilization: f64,
    /// Requests that went in one command, on average.
    merged: Vec<f64>,
}

fn profile() -> Result<Profile, String> {
    Profile::named("intel-530").map_err(|error| error.to_string())
}

/// Tenants with so many threads' requests, on ports of 32 each, since that is what the device's queue holds. The drive is one that has
/// been written to for long, as by the tests before: on a fresh one small writes take less time than reads, the opposite of
/// what the paper says of its own (Section II-C).
fn scenario(profile: &Profile, loads: &[Job], ports: &[usize]) -> Scenario {
    let mut next = 0..;
    let tenant = |(number, (job, &ports)): (usize, (&Job, &usize))| {
        let threads = next.by_ref().take(ports).collect();
        Tenant::new(&format!("W{}", number + 1), 100, threads, job.clone())
    };
    let tenants: Vec<Tenant> = loads.iter().zip(ports).enumerate().map(tenant).collect();
    let mut scenario = Scenario::new(profile.clone(), next.start, tenants, 3 * SECOND);
    scenario.warmup_ns = SECOND / 2;
    scenario.state = State::Steady;
    scenario
}

/// `alone` is under the scheduler without NASS and with the whole queue: only so can a shorter queue lower what is used of the device
/// (Observation 5).
fn measure(lock: OneLock, profile: &Profile, loads: &[Job], ports: &[usize], seed: u64) -> Result<Measured, String> {
    let alone = OneLock { nass: None, waits: true, slots: NCQ, ..lock };
    let together = go(AnyPolicy::OneLock(lock), &scenario(profile, loads, ports), seed)?;
    let bytes = |run: &Run, tenant: usize| run.tenants[tenant].bytes as f64;
    let mut kept = Vec::new();
    for (number, (job, &ports)) in loads.iter().zip(ports).enumerate() {
        let single = scenario(profile, std::slice::from_ref(job), &[ports]);
        kept.push(bytes(&together, number) / bytes(&go(AnyPolicy::OneLock(alone), &single, seed)?, 0));
    }
    let shared: Vec<f64> = match lock.scheduler {
        Scheduler::Cfq | Scheduler::FlashFq => kept.clone(),
        Scheduler::Bfq => together.tenants.iter().map(|got| got.bytes as f64).collect(),
        Scheduler::Fiops => together.tenants.iter().map(|got| got.requests as f64).collect(),
    };
    let merged = together.tenants.iter().map(|got| got.requests as f64 / got.commands.max(1) as f64).collect();
    Ok(Measured { fairness: jain(shared.into_iter()), utilization: kept.iter().sum(), kept, merged })
}

/// Every scheduler of Figures 3 to 6 on a test, at a length of the queue.
fn at(test: usize, slots: u32, seed: u64) -> Result<Vec<(&'static str, Measured)>, String> {
    let profile = profile()?;
    let one = |variant: Variant| Ok((variant.name, measure(variant.lock, &profile, &pair(test), &[1, 1], seed)?));
    six(slots).into_iter().map(one).collect()
}

/// A test at the three lengths, 8, 16 and 32.
fn lengths(test: usize, seed: u64) -> Result<[Vec<(&'static str, Measured)>; 3], String> {
    Ok([at(test, 8, seed)?, at(test, 16, seed)?, at(test, NCQ, seed)?])
}

fn of<'a>(results: &'a [(&'static str, Measured)], name: &str) -> &'a Measured {
    &results.iter().find(|result| result.0 == name).expect("it is one of the six").1
}

fn list(results: &[(&'static str, Measured)], names: &[&str], show: impl Fn(&Measured) -> String) -> String {
    names.iter().map(|name| format!("{name} {}", show(of(results, name)))).collect::<Vec<_>>().join(", ")
}

fn both(measured: &Measured) -> String {
    measured.kept.iter().map(|kept| format!("{kept:.2}")).collect::<Vec<_>>().join("/")
}

/// FV at the three lengths.
fn fairness_by_length(results: &[Vec<(&'static str, Measured)>; 3], names: &[&str]) -> String {
    let one = |name: &&str| {
        let values = results.iter().map(|at| format!("{:.2}", of(at, name).fairness)).collect::<Vec<_>>().join(" ");
        format!("{name} {values}")
    };
    names.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Whether FV at 32 is above that at 8 by more than a hundredth (`grows`), or below.
fn fairness_moves(results: &[Vec<(&'static str, Measured)>; 3], name: &str, grows: bool) -> bool {
    let change = of(&results[2], name).fairness - of(&results[0], name).fairness;
    if grows { change > 0.01 } else { change < -0.01 }
}

/// BDRs, FV and DU of the six.
fn drawn(id: &'static str, title: &str, weak: &str, strong: &str, results: &[(&'static str, Measured)]) -> Figure {
    let bars = |name: &str, value: &dyn Fn(&Measured) -> f64| {
        Line::bars(name, &results.iter().map(|result| value(&result.1)).collect::<Vec<f64>>())
    };
    Figure {
        id,
        title: format!("NASS, {title}"),
        x: Axis::linear(""),
        y: Axis::linear("BDR and FV (1 is best), DU"),
        shape: Shape::Bars(results.iter().map(|result| result.0.to_owned()).collect()),
        lines: vec![
            bars(weak, &|m| m.kept[0]),
            bars(strong, &|m| m.kept[1]),
            bars("FV", &|m| m.fairness),
            bars("DU", &|m| m.utilization),
        ],
    }
}

/// Figure 3.
fn sequentiality(seed: u64) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(1, seed)?, lengths(2, seed)?);
    let all = |names: &[&str], claim: &dyn Fn(&Measured) -> bool| {
        [&reads[2], &writes[2]].iter().all(|results| names.iter().all(|name| claim(of(results, name))))
    };
    let said = |names: &[&str]| format!("T1 {}; T2 {}", list(&reads[2], names, both), list(&writes[2], names, both));
    let by_length =
        |names: &[&str]| format!("T1 {}; T2 {}", fairness_by_length(&reads, names), fairness_by_length(&writes, names));
    let (random, sequential) = (["CFQ", "CFQ-NA"], ["FIOPS", "FlashFQ"]);
    let grows = |name| [&reads, &writes].iter().all(|results| fairness_moves(results, name, true));
    let falls = |results: &[Vec<(&'static str, Measured)>; 3]| {
        of(&results[2], "FIOPS").kept[0] < of(&results[0], "FIOPS").kept[0] - 0.01
    };
    let profile = profile()?;
    let apart = six(NCQ).map(|variant| (variant.name, OneLock { merge_bytes: 0, ..variant.lock }));
    let unmerged = apart
        .into_iter()
        .filter(|(name, _)| random.contains(name))
        .map(|(name, lock)| Ok((name, measure(lock, &profile, &pair(1), &[1, 1], seed)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let merging_hurts = |name: &&str| {
        let (with, without) = (of(&reads[2], name), of(&unmerged, name));
        with.merged[0] > 1.5 * without.merged[0] && with.fairness < without.fairness - 0.01
    };
    let effect = |name: &&str| {
        let (with, without) = (of(&reads[2], name), of(&unmerged, name));
        format!(
            "{name} {:.1} requests a command, FV {:.2}; without {:.2}",
            with.merged[0], with.fairness, without.fairness
        )
    };
    let answers = vec![
        Answer {
            id: "N-3.5",
            measured: random.iter().map(effect).collect::<Vec<_>>().join("; "),
            holds: Some(random.iter().all(merging_hurts)),
            note: "T1 at 32".into(),
        },
        Answer {
            id: "N-3.1",
            measured: format!("BDR-S/BDR-R: {}", said(&random)),
            holds: Some(all(&random, &|m| m.kept[1] > 1.05 * m.kept[0])),
            note: "with anticipation our CFQ waits for the sequential tenant, whose merged requests are served faster, so that it gains in its slices; of T2's writes 32 are always waiting, and nobody runs out of requests as in the paper".into(),
        },
        Answer {
            id: "N-3.2",
            measured: format!("BDR-S/BDR-R: {}", said(&sequential)),
            holds: Some(all(&sequential, &|m| m.kept[0] >= 0.9 * m.kept[1])),
            note: "alone the sequential tenant's requests are merged to larger commands than beside another, so that it keeps less of what it has alone".into(),
        },
        Answer {
            id: "N-3.3",
            measured: format!("FV at 8, 16, 32: {}", by_length(&["BFQ", "BFQ-NA"])),
            holds: Some(grows("BFQ") && grows("BFQ-NA")),
            note: "".into(),
        },
        Answer {
            id: "N-3.4",
            measured: format!("FV at 8, 16, 32: {}", by_length(&["FIOPS"])),
            holds: Some(grows("FIOPS") && falls(&reads) && falls(&writes)),
            note: "".into(),
        },
    ];
    let figures = vec![
        drawn("n-3a", "Fig 3a: sequential beside random reads, NCQ 32", "BDR-S", "BDR-R", &reads[2]),
        drawn("n-3b", "Fig 3b: sequential beside random writes, NCQ 32", "BDR-S", "BDR-R", &writes[2]),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// The same drive, but writing takes no longer than reading: the buffer takes a write as soon as the link brings it, and the
/// dies keep up with the link.
fn symmetric() -> Result<Profile, String> {
    let (_, text) = fairq_device::profile::BUILT_IN.iter().find(|(name, _)| *name == "intel-530").expect("built in");
    let even = text
        .replace("program-us = 870", "program-us = 400")
        .replace("write-us = 17.2", "write-us = 18.8")
        .replace("write-fixed-us = 32", "write-fixed-us = 160");
    Profile::parse(&even).map_err(|error| error.to_string())
}

/// Figure 4.
fn reads_and_writes(seed: u64) -> Result<Outcome, String> {
    let (sequential, random) = (lengths(3, seed)?, at(4, NCQ, seed)?);
    let names = ["CFQ", "CFQ-NA", "BFQ", "BFQ-NA", "FlashFQ", "FIOPS"];
    let even = symmetric()?;
    let one = |variant: Variant| Ok((variant.name, measure(variant.lock, &even, &pair(3), &[1, 1], seed)?));
    let even: Vec<(&'static str, Measured)> = six(NCQ).into_iter().map(one).collect::<Result<_, String>>()?;
    let fv = |measured: &Measured| format!("{:.2}", measured.fairness);
    let better = |name: &&str| {
        let (before, after) = (of(&sequential[2], name).fairness, of(&even, name).fairness);
        after >= 0.95 && after >= before - 0.01
    };
    let answers = vec![
        Answer {
            id: "N-4.1",
            measured: format!("BDR-R/BDR-W: {}", list(&sequential[2], &names, both)),
            holds: Some(names.iter().all(|name| of(&sequential[2], name).kept[0] > of(&sequential[2], name).kept[1])),
            note: "T3. Sequential writes are merged while they wait for the dies, so that each that goes is larger: they gain by merging, where the paper's lose by it. CFQ waits after reads and not after writes".into(),
        },
        Answer {
            id: "N-4.2",
            measured: format!("FV at 8, 16, 32: {}", fairness_by_length(&sequential, &names)),
            holds: Some(names.iter().all(|name| fairness_moves(&sequential, name, false))),
            note: "T3; as in N-4.1 it is the writer that gains, and its merging is what a shorter queue adds to".into(),
        },
        Answer {
            id: "N-4.3",
            measured: format!("FV with equal times: {}", list(&even, &names, fv)),
            holds: Some(names.iter().all(better)),
            note: "T3 on a drive that writes as fast as it reads; CFQ still waits for readers and not for writers, and the buffer still takes writes in larger commands".into(),
        },
    ];
    let figures = vec![
        drawn("n-4a", "Fig 4a: sequential reads beside sequential writes, NCQ 32", "BDR-R", "BDR-W", &sequential[2]),
        drawn("n-4b", "Fig 4b: random reads beside random writes, NCQ 32", "BDR-R", "BDR-W", &random),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 5.
fn sizes(seed: u64) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(5, seed)?, lengths(6, seed)?);
    let budgets = ["BFQ", "BFQ-NA"];
    let suffers = |m: &Measured| m.fairness < 0.9 && m.kept[0] < m.kept[1];
    let show = |m: &Measured| format!("{} FV {:.2}", both(m), m.fairness);
    let rising = ["BFQ", "FlashFQ"];
    let answers = vec![
        Answer {
            id: "N-5.1",
            measured: format!("T5 {}; T6 {}", list(&reads[2], &budgets, show), list(&writes[2], &budgets, show)),
            holds: Some([&reads[2], &writes[2]].iter().all(|at| budgets.iter().all(|name| suffers(of(at, name))))),
            note: "BDR-4K/BDR-128K; counted in bytes BFQ is fair here: it chooses among all that is staged, whatever its size"
                .into(),
        },
        Answer {
            id: "N-5.2",
            measured: format!("T5 {}; T6 {}", fairness_by_length(&reads, &rising), fairness_by_length(&writes, &rising)),
            holds: Some(
                [&reads, &writes].iter().all(|at| rising.iter().all(|name| fairness_moves(at, name, false))),
            ),
            note: "FV at 8, 16, 32. BFQ does; FlashFQ is fair at any length here, since it shares time by what requests cost and looks at nothing else".into(),
        },
    ];
    let figures = vec![
        drawn("n-5a", "Fig 5a: reads of 4 KiB beside 128 KiB, NCQ 32", "BDR-4", "BDR-128", &reads[2]),
        drawn("n-5b", "Fig 5b: writes of 4 KiB beside 128 KiB, NCQ 32", "BDR-4", "BDR-128", &writes[2]),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 6, and what the paper sees over all tests.
fn intensities(seed: u64) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(7, seed)?, at(8, NCQ, seed)?);
    let deep = &reads[2];
    let show = |m: &Measured| format!("FV {:.2} DU {:.2}", m.fairness, m.utilization);
    let (waiting, hasty) = (["CFQ", "FlashFQ"], ["BFQ-NA", "CFQ-NA", "FIOPS"]);
    let fairer = waiting.iter().all(|a| hasty.iter().all(|b| of(deep, a).fairness > of(deep, b).fairness));
    let slower = waiting.iter().all(|a| hasty.iter().all(|b| of(deep, a).utilization < of(deep, b).utilization));
    let (short, long) = (of(&reads[0], "FIOPS"), of(deep, "FIOPS"));
    let mut costs = Vec::new();
    for test in 1..=8 {
        let profile = profile()?;
        let du = |lock| Ok::<f64, String>(measure(lock, &profile, &pair(test), &[1, 1], seed)?.utilization);
        let cfq = OneLock::new(Scheduler::Cfq, NCQ).merging();
        costs.push((du(cfq)?, du(cfq.without_waiting())?));
    }
    let cheaper = costs.iter().all(|(with, without)| *with < without - 0.005);
    let costs = costs.iter().map(|(with, without)| format!("{with:.2}/{without:.2}")).collect::<Vec<_>>().join(" ");
    let answers = vec![
        Answer {
            id: "N-6.1",
            measured: format!("{}; {}", list(deep, &waiting, show), list(deep, &hasty, show)),
            holds: Some(fairer && slower),
            note: "T7. Our FlashFQ gives up waiting for a flow that has turned out to think; CFQ-NA serves its slices alone and wastes what the shallow tenant leaves".into(),
        },
        Answer {
            id: "N-6.2",
            measured: format!("FV of CFQ: T7 {:.2}, T8 {:.2}", of(deep, "CFQ").fairness, of(&writes, "CFQ").fairness),
            holds: Some(of(&writes, "CFQ").fairness < 0.95 * of(deep, "CFQ").fairness),
            note: "".into(),
        },
        Answer {
            id: "N-6.3",
            measured: fairness_by_length(&reads, &["FIOPS"]),
            holds: Some(fairness_moves(&reads, "FIOPS", false)),
            note: "FV at 8, 16, 32, T7".into(),
        },
        Answer {
            id: "N-O5",
            measured: format!(
                "FIOPS at 8: FV {:.2} DU {:.2}; at 32: FV {:.2} DU {:.2}",
                short.fairness, short.utilization, long.fairness, long.utilization
            ),
            holds: Some(short.fairness > long.fairness + 0.01 && short.utilization < long.utilization - 0.01),
            note: "T7. With eight places the shallow tenant gets more and the deep one keeps what eight places give alone: their sum does not fall".into(),
        },
        Answer {
            id: "N-O6",
            measured: format!("DU of CFQ/CFQ-NA: {costs}"),
            holds: Some(cheaper),
            note: "tests 1 to 8; where both tenants always have requests waiting, nobody waits for one".into(),
        },
    ];
    let figures = vec![
        drawn("n-6a", "Fig 6a: reads at depth 2 beside depth 32, NCQ 32", "BDR-NON", "BDR-INTEN", deep),
        drawn("n-6b", "Fig 6b: writes at depth 2 beside depth 32, NCQ 32", "BDR-NON", "BDR-INTEN", &writes),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Section II-B: a shallow reader beside a deep one on a disk, which has its queue, and without the queue.
fn on_a_disk(seed: u64) -> Result<Outcome, String> {
    let disk = DiskProfile::deskstar();
    let profile = profile()?;
    let fairness = |lock: OneLock| {
        let on_disk = |loads: &[Job]| {
            let mut scenario = scenario(&profile, loads, &vec![1; loads.len()]);
            scenario.disk = Some(disk.clone());
            // A hundred requests a second.
            (scenario.warmup_ns, scenario.duration_ns) = (10 * SECOND, 130 * SECOND);
            scenario
        };
        let [shallow, deep] = pair(7);
        let alone =
            |job: Job| Ok::<_, String>(go(AnyPolicy::OneLock(lock), &on_disk(&[job]), seed)?.tenants[0].clone());
        let (one, other) = (alone(shallow.clone())?, alone(deep.clone())?);
        let both = go(AnyPolicy::OneLock(lock), &on_disk(&[shallow, deep]), seed)?;
        let shared = both.tenants.iter().zip([one, other]).map(|(got, alone)| match lock.scheduler {
            Scheduler::Cfq | Scheduler::FlashFq => got.bytes as f64 / alone.bytes as f64,
            Scheduler::Bfq | Scheduler::Fiops => got.bytes as f64,
        });
        Ok::<_, String>(jain(shared))
    };
    let (mut said, mut none) = (Vec::new(), true);
    for name in ["BFQ-NA", "CFQ-NA", "FIOPS"] {
        let at = |slots| {
            let variant = six(slots).into_iter().find(|variant| variant.name == name);
            fairness(variant.ok_or("it is one of the six")?.lock)
        };
        let (single, queued) = (at(1)?, at(NCQ)?);
        none &= queued >= single - 0.05;
        said.push(format!("{name} {single:.2} and {queued:.2}"));
    }
    Ok(vec![Answer {
        id: "N-hdd",
        measured: format!("FV at 1 and 32: {}", said.join(", ")),
        holds: Some(none),
        note: "T7 on a disk of 7200 turns a minute that takes the nearest of its queue first; the deep tenant alone fills the queue \
               there too, and the disk takes longer for each of the others' requests"
            .into(),
    }]
    .into())
}

/// Figure 8: an intensive load alone, with so many requests on the device.
fn reserve(seed: u64) -> Result<Outcome, String> {
    let profile = profile()?;
    let at = |slots: u32| {
        let alone = scenario(&profile, &[job(Access::Random, 100)], &[1]);
        Ok((slots, go(AnyPolicy::OneLock(OneLock::new(Scheduler::Fiops, slots)), &alone, seed)?.bandwidth()))
    };
    let points: Vec<(u32, f64)> = [1, 2, 4, 8, 12, 16, 24, 32].map(at).into_iter().collect::<Result<_, String>>()?;
    let most = points[7].1;
    let parts: Vec<(u32, f64)> = points.iter().map(|&(slots, rate)| (slots, rate / most)).collect();
    let first = parts.iter().rev().find(|&&(_, part)| part < 0.9).map_or(0, |&(slots, _)| slots);
    let figure = Figure {
        id: "n-8",
        title: "NASS, Fig 8: utilization of an intensive load alone".into(),
        x: Axis::linear("requests on the device (β)"),
        y: Axis::linear("of the bandwidth at 32"),
        shape: Shape::Lines,
        lines: vec![Line::new("4 KiB random reads", parts.iter().map(|&(b, part)| (f64::from(b), part)).collect())],
    };
    let answers = vec![Answer {
        id: "N-8.1",
        measured: parts.iter().map(|(slots, part)| format!("{slots}: {part:.2}")).collect::<Vec<_>>().join(", "),
        holds: Some(first == 8),
        note: "T7 on a disk of 7200 turns a minute that takes the nearest of its queue first. Whoever has 32 requests outstanding fills the queue of a disk, too: slowness keeps nobody from sending, and in the paper nothing was measured".into(),
    }];
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// The four schedulers, each as it is and with NASS.
struct Pairs(Vec<(Scheduler, Measured, Measured)>);

impl Pairs {
    fn new(loads: &[Job], ports: &[usize], nass: NassConfig, seed: u64) -> Result<Pairs, String> {
        let profile = profile()?;
        let one = |scheduler| {
            let lock = OneLock::new(scheduler, NCQ).merging();
            let before = measure(lock, &profile, loads, ports, seed)?;
            Ok((scheduler, before, measure(lock.limited(nass), &profile, loads, ports, seed)?))
        };
        FOUR.into_iter().map(one).collect::<Result<_, String>>().map(Pairs)
    }

    fn of(&self, scheduler: Scheduler) -> (&Measured, &Measured) {
        let found = self.0.iter().find(|one| one.0 == scheduler).expect("one of the four");
        (&found.1, &found.2)
    }

    /// By how much something grows, as a part of what it was.
    fn gain(&self, scheduler: Scheduler, value: impl Fn(&Measured) -> f64) -> f64 {
        let (before, after) = self.of(scheduler);
        value(after) / value(before) - 1.0
    }

    fn gains(&self, schedulers: &[Scheduler], value: impl Fn(&Measured) -> f64) -> String {
        let one = |&scheduler: &Scheduler| {
            let gain = self.gain(scheduler, &value);
            format!("{} {:+.0} % ({:.2})", named(scheduler), 100.0 * gain, value(self.of(scheduler).0))
        };
        schedulers.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn drawn(&self, id: &'static str, title: &str, tenants: &[&str]) -> Figure {
        let rows = self.0.iter().flat_map(|(scheduler, before, after)| {
            [(named(*scheduler).to_owned(), before), (format!("{}(N)", named(*scheduler)), after)]
        });
        let (groups, all): (Vec<String>, Vec<&Measured>) = rows.unzip();
        let bars = |name: &str, value: &dyn Fn(&Measured) -> f64| {
            Line::bars(name, &all.iter().map(|measured| value(measured)).collect::<Vec<f64>>())
        };
        let mut lines: Vec<Line> =
            tenants.iter().enumerate().map(|(number, name)| bars(name, &|m| m.kept[number])).collect();
        lines.extend([bars("FV", &|m| m.fairness), bars("DU", &|m| m.utilization)]);
        Figure {
            id,
            title: format!("NASS, {title}"),
            x: Axis::linear(""),
            y: Axis::linear("BDR and FV (1 is best), DU"),
            shape: Shape::Bars(groups),
            lines,
        }
    }
}

fn fv(measured: &Measured) -> f64 {
    measured.fairness
}

fn du(measured: &Measured) -> f64 {
    measured.utilization
}

const CHANGES: &str = "change with NASS, and the value without in brackets";

/// Figure 9.
fn limits(seed: u64) -> Result<Outcome, String> {
    use Scheduler::{Bfq, Cfq, Fiops, FlashFq};
    let pairs = Pairs::new(&pair(5), &[1, 1], NassConfig::default(), seed)?;
    let (before, after) = pairs.of(Fiops);
    let high = FOUR.iter().all(|&one| (pairs.gain(one, du)).abs() <= 0.1);
    let order = pairs.gain(Bfq, fv) > pairs.gain(FlashFq, fv) && pairs.gain(FlashFq, fv) > pairs.gain(Cfq, fv);
    let answers = vec![
        Answer {
            id: "N-9.1",
            measured: format!(
                "FV {:.2} and {:.2}, DU {:.2} and {:.2}",
                before.fairness, after.fairness, before.utilization, after.utilization
            ),
            holds: Some([before, after].iter().all(|m| m.fairness >= 0.9) && pairs.gain(Fiops, du).abs() <= 0.1),
            note: "FIOPS without and with NASS, which halves the limit of the large requests until they get less of what FIOPS counts, requests".into(),
        },
        Answer {
            id: "N-9.2",
            measured: pairs.gains(&[Cfq, FlashFq, Bfq], fv),
            holds: Some(order && pairs.gain(Cfq, fv) > 0.0),
            note: format!("FV, {CHANGES}. Theirs is high without NASS, since nothing but the device stands in their way").into(),
        },
        Answer {
            id: "N-9.3",
            measured: pairs.gains(&FOUR, du),
            holds: Some(high),
            note: format!("DU, {CHANGES}. More of it is used with NASS: small requests get through, and a few large ones keep the link busy").into(),
        },
    ];
    let figure = pairs.drawn("n-9", "Fig 9: reads of 4 KiB beside 128 KiB", &["BDR-4K", "BDR-128K"]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 10.
fn idleness(seed: u64) -> Result<Outcome, String> {
    use Scheduler::{Bfq, Cfq, Fiops, FlashFq};
    let pairs = Pairs::new(&pair(7), &[1, 1], NassConfig::default(), seed)?;
    let within = |gain: f64, paper: f64| (gain - paper).abs() <= 0.2;
    let utilization = [(Cfq, 0.59), (FlashFq, 0.70), (Bfq, 0.11)];
    let (before, after) = pairs.of(FlashFq);
    let flashfq = after.fairness < before.fairness && after.kept.iter().zip(&before.kept).all(|(a, b)| a > b);
    let fairness = [(Cfq, 0.03), (Bfq, 0.40), (Fiops, 0.35)];
    let all = |claims: &[(Scheduler, f64)], value: fn(&Measured) -> f64| {
        claims.iter().all(|&(one, paper)| within(pairs.gain(one, value), paper))
    };
    let fiops = pairs.gain(Fiops, du);
    let answers = vec![
        Answer {
            id: "N-10.1",
            measured: pairs.gains(&[Cfq, FlashFq, Bfq, Fiops], du),
            holds: Some(all(&utilization, du) && (-0.2..=0.0).contains(&fiops)),
            note: format!("DU, {CHANGES}. NASS lets both send all the time, and what waiting costs without it depends on how long each waits").into(),
        },
        Answer {
            id: "N-10.2",
            measured: format!(
                "{}; BDRs of FlashFQ {} to {}",
                pairs.gains(&[Cfq, Bfq, Fiops, FlashFq], fv),
                both(before),
                both(after)
            ),
            holds: Some(all(&fairness, fv) && flashfq),
            note: format!("FV, {CHANGES}. Near for BFQ and FIOPS; FlashFQ without NASS gives up waiting here, so that it is unfair and gains").into(),
        },
    ];
    let figure = pairs.drawn("n-10", "Fig 10: reads at depth 2 beside depth 32", &["BDR-NON", "BDR-INTEN"]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 11: NASS without its second mechanism (NM), and with it (N).
fn merging(seed: u64) -> Result<Outcome, String> {
    let limited = Pairs::new(&pair(3), &[1, 1], NassConfig { sequentiality: false, ..NassConfig::default() }, seed)?;
    let full = Pairs::new(&pair(3), &[1, 1], NassConfig::default(), seed)?;
    let poor = FOUR.iter().all(|&one| limited.of(one).0.fairness < 0.9);
    let better = FOUR.iter().all(|&one| limited.gain(one, fv) >= 0.3 && limited.gain(one, du) < 0.0);
    let change = |one: Scheduler, value: fn(&Measured) -> f64| value(full.of(one).1) / value(limited.of(one).1) - 1.0;
    let said = |value: fn(&Measured) -> f64| {
        let one = |&one: &Scheduler| format!("{} {:+.0} %", named(one), 100.0 * change(one, value));
        FOUR.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let answers = vec![
        Answer {
            id: "N-11.1",
            measured: limited.gains(&FOUR, fv),
            holds: Some(poor && better),
            note: format!("FV of NM, {CHANGES}. BFQ, FlashFQ and FIOPS are fair enough without it, as the writer gains by merging (N-4.1), and limits stop its merging").into(),
        },
        Answer {
            id: "N-11.2",
            measured: format!("FV {}; DU {}", said(fv), said(du)),
            holds: Some(FOUR.iter().all(|&one| change(one, fv) > 0.0 && change(one, du) > 0.0)),
            note: "N against NM".into(),
        },
    ];
    let figure =
        limited.drawn("n-11", "Fig 11 (Ori and NM): sequential reads beside sequential writes", &["BDR-R", "BDR-W"]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Table IV: file, mail and database servers of Filebench.
fn servers() -> [Job; 3] {
    [proxy::file_server().1, proxy::mail_server().1, proxy::database().1]
}

/// Figure 12.
fn filebench(seed: u64) -> Result<Outcome, String> {
    use Scheduler::{Bfq, Cfq, Fiops, FlashFq};
    let pairs = Pairs::new(&servers(), &[1, 1, 2], NassConfig::default(), seed)?;
    let dominates = |m: &Measured| m.kept[0] > m.kept[1] && m.kept[0] > m.kept[2];
    let (mail, db) = (pairs.gain(Bfq, |m| m.kept[1]), pairs.gain(Bfq, |m| m.kept[2]));
    let fiops = pairs.gain(Fiops, du);
    let before = pairs.0.iter().map(|(one, before, _)| format!("{} {}", named(*one), both(before)));
    let answers = vec![
        Answer {
            id: "N-12.1",
            measured: pairs.gains(&[Bfq, Cfq, FlashFq, Fiops], fv),
            holds: Some(FOUR.iter().all(|&one| pairs.gain(one, fv) >= 0.05)),
            note: format!("FV, {CHANGES}. FlashFQ and FIOPS are fair without it here").into(),
        },
        Answer {
            id: "N-12.2",
            measured: before.collect::<Vec<_>>().join(", "),
            holds: Some(pairs.0.iter().all(|(_, before, _)| dominates(before))),
            note: "BDR of file, mail and database server; the applications are proxies. Under BFQ the random requests of the database go between budgets".into(),
        },
        Answer {
            id: "N-12.3",
            measured: format!(
                "mail {:+.0} %, DB {:+.0} %, FV {:.2}",
                100.0 * mail,
                100.0 * db,
                pairs.of(Bfq).1.fairness
            ),
            holds: Some(mail >= 0.2 && db >= 0.2),
            note: "BFQ's BDRs with NASS; without it the mail server, whose eight requests are sequential and merged, gets next to nothing here".into(),
        },
        Answer {
            id: "N-12.4",
            measured: pairs.gains(&[Bfq, FlashFq, Cfq, Fiops], du),
            holds: Some(
                [Bfq, FlashFq, Cfq].iter().all(|&one| pairs.gain(one, du) > 0.0) && (-0.1..=0.0).contains(&fiops),
            ),
            note: format!("DU, {CHANGES}. The applications are proxies, and what they compute between requests is a guess").into(),
        },
    ];
    let figure = pairs.drawn("n-12", "Fig 12: three servers of Filebench", &["BDR-F", "BDR-M", "BDR-D"]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Hardware threads of the authors' machine: four processors of four cores.
const CORES: f64 = 16.0;

/// Figure 14: Filebench's servers on four cores of that machine, where what schedulers do under their lock takes time by steps
/// ([`crate::policies::OneLock`]).
fn overhead(seed: u64) -> Result<Outcome, String> {
    let mut scenario = scenario(&profile()?, &servers(), &[1, 1, 2]);
    scenario.host = Some(Machine::FOUR_QUAD_CORES.host(scenario.ports));
    let used = |lock| {
        let run = go(AnyPolicy::OneLock(lock), &scenario, seed)?;
        Ok::<_, String>((100.0 * run.cpu() * scenario.ports as f64 / CORES, run.cpu_us()))
    };
    let (mut said, mut more) = (Vec::new(), Vec::new());
    for scheduler in [Scheduler::Cfq, Scheduler::Fiops] {
        let lock = OneLock::new(scheduler, NCQ).merging();
        let ((before, request), (after, with)) = (used(lock)?, used(lock.limited(NassConfig::default()))?);
        more.push(after - before);
        said.push(format!(
            "{} {before:.2} to {after:.2} % ({:+.2}), {request:.2} to {with:.2} us a request",
            named(scheduler),
            after - before
        ));
    }
    Ok(vec![Answer {
        id: "N-14.1",
        measured: said.join("; "),
        holds: Some(more[0] <= 1.5 && more[1] <= 1.9),
        note: "of all 16 cores; without what Filebench itself takes. Each call of a scheduler and of NASS \
               takes what a verb takes, 40 cycles; a request more is more work too"
            .into(),
    }]
    .into())
}

/// Figure 13: OLTP from the beginning, Sort's map phase from 12 to 34 s, Wordcount's from 20 to 39 s. Eight requests at a time
/// each; Sort's are intensive, Wordcount computes in between.
fn applications() -> [Tenant; 3] {
    let mut tenants = [
        Tenant::new("OLTP", 100, vec![0], proxy::oltp().1),
        Tenant::new("Sort", 100, vec![1], proxy::sort().1),
        Tenant::new("Wordcount", 100, vec![2], proxy::wordcount().1),
    ];
    tenants[1].lives = vec![(12 * SECOND, 34 * SECOND)];
    tenants[2].lives = vec![(20 * SECOND, 39 * SECOND)];
    tenants
}

fn spark(seed: u64) -> Result<Outcome, String> {
    let profile = profile()?;
    let over = |tenants: Vec<Tenant>, seconds: u64| {
        let mut scenario = Scenario::new(profile.clone(), 3, tenants, seconds * SECOND);
        scenario.series_ns = Some(SECOND);
        scenario
    };
    let cfq = OneLock::new(Scheduler::Cfq, NCQ).merging();
    let mut alone = Vec::new();
    for tenant in applications() {
        let tenant = Tenant { lives: vec![(0, u64::MAX)], ..tenant };
        alone.push(go(AnyPolicy::OneLock(cfq), &over(vec![tenant], 4), seed)?.bandwidth());
    }
    let run = |lock| go(AnyPolicy::OneLock(lock), &over(applications().to_vec(), 40), seed);
    let (plain, limited) = (run(cfq)?, run(cfq.limited(NassConfig::default()))?);
    // What each of those who are there keeps in a second.
    let present = |second: u64| {
        applications().map(|tenant| tenant.lives.iter().any(|&(a, b)| (a..b).contains(&(second * SECOND))))
    };
    let kept = |run: &Run, second: u64| -> Vec<f64> {
        let each = run.tenants.iter().zip(&alone).zip(present(second));
        each.filter(|(_, is_there)| *is_there)
            .map(|((got, alone), _)| got.series[second as usize] as f64 / alone)
            .collect()
    };
    let mean = |run: &Run, seconds: std::ops::Range<u64>, value: &dyn Fn(&[f64]) -> f64| {
        let values = seconds.map(|second| value(&kept(run, second))).collect::<Vec<f64>>();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let (index, sum) = (|kept: &[f64]| jain(kept.iter().copied()), |kept: &[f64]| kept.iter().sum::<f64>());
    let phases = [13..20, 20..34, 35..39].map(|seconds| mean(&plain, seconds, &index));
    let oltp = mean(&plain, 13..20, &|kept| kept[0]);
    let least = (13..39).map(|second| index(&kept(&limited, second))).fold(1.0, f64::min);
    let gain = mean(&limited, 13..39, &sum) / mean(&plain, 13..39, &sum) - 1.0;
    let line = |name: &str, run: &Run, value: &dyn Fn(&[f64]) -> f64| {
        Line::new(name, (12..39).map(|second| (second as f64, value(&kept(run, second)))).collect())
    };
    let drawn = |id, title: &str, label, value: &dyn Fn(&[f64]) -> f64| Figure {
        id,
        title: format!("NASS, {title}"),
        x: Axis::linear("s"),
        y: Axis::linear(label),
        shape: Shape::Lines,
        lines: vec![line("CFQ", &plain, value), line("CFQ(N)", &limited, value)],
    };
    let answers = vec![
        Answer {
            id: "N-13.1",
            measured: format!(
                "FV {:.2}, {:.2}, {:.2}; OLTP keeps {:.0} %",
                phases[0],
                phases[1],
                phases[2],
                100.0 * oltp
            ),
            holds: Some(oltp < 0.1 && phases.is_sorted() && phases[2] >= 0.9),
            note: "12 to 20, 20 to 34, 35 to 39 s; the applications are proxies".into(),
        },
        Answer {
            id: "N-13.2",
            measured: format!("at least {least:.2}"),
            holds: Some(least > 0.9),
            note: "each second from 13 to 39; while Sort's merged requests of up to 512 KiB are on the drive OLTP's wait behind them, whatever their number".into(),
        },
        Answer {
            id: "N-13.3",
            measured: format!("{:+.0} %", 100.0 * gain),
            holds: Some((gain - 0.1).abs() <= 0.1 && gain > 0.0),
            note: "mean DU from 13 to 39 s; whether DU dips when bursts end is in the figure".into(),
        },
    ];
    let figures = vec![drawn("n-13a", "Fig 13a: FV", "FV", &index), drawn("n-13b", "Fig 13b: DU", "DU", &sum)];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// How many requests flows have on a device that stands still, with the limits that they begin with. They ask in turn, so
/// that each is known before anybody has all that it may have.
fn worked_examples(seed: u64) -> Result<Outcome, String> {
    const BYTES: u64 = 4096;
    let profile = profile()?;
    let limits = NassConfig { aggressiveness: false, sequentiality: false, idleness: false, ..NassConfig::default() };
    let most = |tenants: usize| {
        let loads = vec![Job { interval_ns: 10 * US, ..job(Access::Random, 100) }; tenants];
        let mut scenario = scenario(&profile, &loads, &vec![1; tenants]);
        (scenario.duration_ns, scenario.warmup_ns) = (20 * MS, 0);
        scenario.faults.stalls = vec![(0, 21 * MS)];
        let lock = OneLock::new(Scheduler::Fiops, NCQ).limited(limits);
        let run = go(AnyPolicy::OneLock(lock), &scenario, seed)?;
        let issued = |got: &crate::Got| got.classes.iter().sum::<u64>() / BYTES;
        Ok::<Vec<u64>, String>(run.tenants.iter().map(issued).collect())
    };
    let (one, two, four) = (most(1)?, most(2)?, most(4)?);
    Ok(vec![Answer {
        id: "N-U1",
        measured: format!("on a device that stands still: {one:?}, {two:?}, {four:?}"),
        holds: Some(one == [32] && two == [16; 2] && four == [8; 4]),
        note: "one, two and four flows, MDN = 32 / n; Cn, Aggre, halving and the direction of SBDA are fairq-core's own tests".into(),
    }]
    .into())
}
