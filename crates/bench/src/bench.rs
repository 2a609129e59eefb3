//! `fairq bench`: runs policies one after the other under the same load, and reports each tenant's
//! service under each.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fairq_config::device::{DeviceConfig, Kind};
use fairq_config::engine::{Shape, shard_cpus, shards_in_words, topology, with_policy};
use fairq_config::files::{Output, write_out};
use fairq_config::flags::Policies;
use fairq_config::group::{self, Group};
use fairq_config::layout::pool::refuse_pool;
use fairq_config::policy::PolicyConfig;
use fairq_config::policy::PolicyTable;
use fairq_config::refusal::Refusal;
use fairq_config::units::{Nanos, exact_size, show_duration, show_percent, show_size};
use fairq_config::weight::{Cgroups, cgroup_root};
use fairq_core::{Caps, Native, Reservation, Weight};
use fairq_host::device::Device;
use fairq_host::device::any::AnyDevice;
use fairq_host::io::wakers::Wakers;
use fairq_host::measure::client;
use fairq_host::measure::load::{self, Measured, Times};
use fairq_host::observe::stats::TenantStats;
use fairq_host::shard::shared::Common;

use crate::args::{BenchArgs, Way};
use crate::fiojob;
use crate::job::Job;
use crate::load::{Load, Progress, connections, deal, ranges};
use crate::plausible::{self, Limits};
use crate::report::{Got, Report, Run};
use crate::series::{Life, Series};

/// The tenants of a run if none is named, as in `fairq serve`: weights three to one, and both
/// submit more than the device can serve.
const DEMO: [&str; 2] = ["gold=weight:300,bs:4k,depth:128", "silver=weight:100,bs:4k,depth:128"];
/// The default of `--timeout`, in nanoseconds.
const TIMEOUT_NS: u64 = 10_000_000_000;
/// Default time for which a job stays on one shard, in nanoseconds: as for threads in the lab.
const MOVES_NS: u64 = 120_000_000;
/// Default interval of a run in which tenants start or stop.
const LIFE_INTERVAL: Duration = Duration::from_millis(10);
/// The most intervals of a series.
const INTERVALS_MAX: u128 = 1_000_000;
/// The most memory of all jobs' buffers, in bytes.
const MEMORY_MAX: u64 = 8 << 30;
/// Memory that is allocated between two updates of the progress, in bytes.
const MEMORY_AT_ONCE: u64 = 32 << 20;
/// The fraction of the time that shards may wait for their CPUs without a warning: a machine always
/// has some other work.
const MUCH_WAITING: f64 = 0.05;
/// The advice in messages about a lack of CPU time.
const CPU_CURE: &str = "give fairq priority (nice -n -10, chrt -r 10), other CPUs (--cpus) or a \
                        machine without other work";
/// A measurement that is disturbed is repeated until [`ATTEMPTS`] attempts were made and
/// [`PATIENCE`] has passed. Short measurements get more attempts, because a stall of the same
/// length is a larger part of their time.
const ATTEMPTS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// The complete plan of a run.
struct Plan {
    place: Place,
    policies: Vec<PolicyConfig>,
    jobs: Vec<Job>,
    groups: Vec<Group>,
    times: Times,
}

/// The place of a run: a device in this process, or a server.
enum Place {
    Device { device: DeviceConfig, cpus: Vec<usize>, path: load::Path, moves: Option<Duration> },
    Server { target: client::Target, uri: String, timeout: Duration },
}

impl Plan {
    /// The label of a run: the policy's name, with its options if the same policy runs more than
    /// once.
    fn label(&self, policy: &PolicyConfig) -> String {
        match &self.place {
            Place::Server { .. } => "connect".into(),
            Place::Device { device, .. } => {
                let namesakes =
                    self.policies.iter().filter(|other| other.policy == policy.policy).count();
                if namesakes > 1 {
                    policy.describe(device.default_slots())
                } else {
                    policy.name().into()
                }
            }
        }
    }
}

/// Runs and reports.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let plan = plan(&args)?;
    // With the JSON on standard output nothing else is printed there.
    let is_quiet = args.json.as_deref() == Some(Path::new("-"));
    // Opened before the device and the run, so that a path that cannot be written costs no
    // measurement.
    let output = Output::open_if_named(args.json.as_deref())?;
    let target = match &plan.place {
        Place::Device { device, cpus, path, moves } => Target::Device {
            device: device.open(Vec::new())?,
            cpus: cpus.clone(),
            slots: device.default_slots(),
            limits: Limits::of(device),
            path: *path,
            moves: *moves,
        },
        Place::Server { target, timeout, .. } => Target::Server(target.clone(), *timeout),
    };
    let bench = Bench { target, groups: plan.groups.clone(), is_quiet };
    if !is_quiet {
        write_out(&introduction(&plan))?;
    }
    bench.take_memory(&plan.jobs)?;
    let alone =
        if args.alone { bench.alone(&plan.jobs, plan.times)? } else { vec![None; plan.jobs.len()] };
    let (mut report, mut failed) = (Report { runs: Vec::new() }, Vec::new());
    // The policy divides a group's weight itself; only the tenants' entitled shares need the
    // division here.
    let weighed = effective(&plan.jobs, &plan.groups);
    for policy in &plan.policies {
        let label = plan.label(policy);
        let measured = bench.measure(policy, &plan.jobs, plan.times, &label)?;
        report.runs.push(outcome(&label, &weighed, plan.times, &measured, &alone));
        failed.extend(failures(&label, &plan.jobs, &measured));
    }
    let json = || serde_json::to_string_pretty(&report);
    if is_quiet {
        write_out(&json()?)?;
    } else {
        if let Some(output) = output {
            output.write_text(&json()?)?;
        }
        write_out(report.text().trim_end())?;
    }
    ensure!(failed.is_empty(), "{}: the figures count them as completed", failed.join("; "));
    Ok(())
}

/// The tenants whose requests failed, in words.
fn failures(label: &str, jobs: &[Job], measured: &Measured) -> Vec<String> {
    let failure = |(job, stats): (&Job, &TenantStats)| {
        let error = std::io::Error::from_raw_os_error(stats.last_errno);
        let (errors, all) = (stats.errors, stats.operations());
        let text = format!("{label}: {errors} of {all} requests of tenant {} failed", job.name);
        (errors > 0).then(|| format!("{text} ({error})"))
    };
    jobs.iter().zip(&measured.tenants).filter_map(failure).collect()
}

fn plan(args: &BenchArgs) -> Result<Plan, Refusal> {
    let mut jobs = args.tenant.clone();
    let (mut runtime, mut ramp) = (None, None);
    for path in &args.fio {
        let file = fiojob::load(path)?;
        file.warnings.iter().for_each(|warning| eprintln!("fairq: {warning}"));
        jobs.extend(file.jobs);
        runtime = file.runtime.or(runtime);
        ramp = file.ramp.or(ramp);
    }
    if jobs.is_empty() {
        let usual: &[&str] = if args.connect.is_some() { &["load"] } else { &DEMO };
        jobs.extend(
            usual
                .iter()
                .map(|text| text.parse::<Job>().expect("the usual tenants are well formed")),
        );
    }
    check_jobs(&jobs)?;
    let disk = args.device.as_ref().and_then(|device| device.path.as_deref());
    let groups = group::complete(&args.group, Some(&Cgroups::new(cgroup_root(), disk)))?;
    check_groups(&jobs, &groups)?;
    for job in &mut jobs {
        job.target = job.target.or_else(|| group::target(job.group.as_deref(), &groups));
    }
    let duration = |given: Option<Nanos>, file: Option<Duration>, usual: u64| {
        given
            .map(|Nanos(ns)| Duration::from_nanos(ns))
            .or(file)
            .unwrap_or(Duration::from_secs(usual))
    };
    let (warmup, measured) = (duration(args.warmup, ramp, 1), duration(args.seconds, runtime, 10));
    let times = Times { warmup, measured, interval: interval(args, &jobs, measured)? };
    if times.measured < Duration::from_millis(10) {
        return Err(Refusal::new(
            "seconds: less than 10 ms is too short to measure: write --seconds 10, say",
        ));
    }
    if let Some(uri) = &args.connect {
        let target =
            client::Target::parse(uri).map_err(|text| Refusal::new(format!("connect: {text}")))?;
        check_connect(args, &jobs)?;
        // The server has its own policy; this one only makes the loop over policies run once.
        let once = PolicyTable::of("none", &[]).complete()?;
        return Ok(Plan {
            place: Place::Server { target, uri: uri.clone(), timeout: timeout(args)? },
            policies: vec![once],
            jobs,
            groups,
            times,
        });
    }
    let device = args.device.clone().unwrap_or_default().complete(Kind::Paced)?;
    if matches!(device, DeviceConfig::File { file: None, .. }) {
        return Err(Refusal::new("device: a file needs a path: add path=/srv/disk.img, say"));
    }
    refuse_overwriting(&device, &jobs, args.overwrite)?;
    let usual = || vec![Policies::usual()];
    let lists = if args.policy.is_empty() { usual() } else { args.policy.clone() };
    let cpus = shard_cpus(args.shards.shards, args.shards.cpus.as_ref())?;
    let policies: Vec<_> = lists
        .into_iter()
        .flat_map(|list| list.0)
        .map(PolicyTable::complete)
        .collect::<Result<_, _>>()?;
    let path = path(args.path.unwrap_or_default(), &device, &policies)?;
    let interval = args.moves.map(|interval| interval.unwrap_or(Nanos(MOVES_NS)));
    let moves = interval.map(|interval| moves(interval, &jobs)).transpose()?;
    Ok(Plan { place: Place::Device { device, cpus, path, moves }, policies, jobs, groups, times })
}

/// The value of `--timeout`.
fn timeout(args: &BenchArgs) -> Result<Duration, Refusal> {
    match args.timeout.unwrap_or(Nanos(TIMEOUT_NS)) {
        Nanos(ns) if ns < 1_000_000 => {
            Err(Refusal::new("timeout: less than 1 ms is too short: write --timeout 10s, say"))
        }
        Nanos(ns) => Ok(Duration::from_nanos(ns)),
    }
}

/// The time for which jobs stay on one shard, if all of them can be moved.
fn moves(Nanos(interval_ns): Nanos, jobs: &[Job]) -> Result<Duration, Refusal> {
    if interval_ns < 1_000_000 {
        return Err(Refusal::new(
            "moves: less than 1 ms is shorter than what a request may take: write --moves 120ms, \
             say",
        ));
    }
    match jobs.iter().find(|job| !job.random || job.rate.is_some() || job.think_ns > 0) {
        Some(job) => Err(Refusal::new(format!(
            "tenant {}: with --moves a job starts afresh on each shard, where its position in a \
             sequence, its rate and its pauses are lost: use rw:randread or rw:randwrite without \
             rate and think, or \
             leave out --moves",
            job.name
        ))),
        None => Ok(Duration::from_nanos(interval_ns)),
    }
}

/// The path to the device, if all policies and the device support it.
fn path(way: Way, device: &DeviceConfig, policies: &[PolicyConfig]) -> Result<load::Path, Refusal> {
    if way == Way::Shards {
        return Ok(load::Path::Shards);
    }
    let stages = |config: &&PolicyConfig| !config.policy.is_direct;
    if let Some(policy) = policies.iter().find(stages) {
        return Err(Refusal::new(format!(
            "path: the direct path needs a policy that never holds a request back, and {} does: \
             use --policy none,d2fq, \
             or --path shards",
            policy.name()
        )));
    }
    if !device.is_polled() {
        return Err(Refusal::new(format!(
            "path: the direct path polls for completions, and those of {} come as events: use \
             --device \
             nvme-soft,backing=ram, say, or add poller=core to nvme-soft over a file, or use \
             --path shards",
            device.describe()
        )));
    }
    Ok(load::Path::Direct)
}

/// The interval of the series: the value of `--series`, or 10 ms if tenants start or stop during
/// the run, because their entitled shares are computed from a series.
fn interval(
    args: &BenchArgs,
    jobs: &[Job],
    measured: Duration,
) -> Result<Option<Duration>, Refusal> {
    let Some(Nanos(ns)) = args.series else {
        let comes_or_goes = |job: &Job| job.starts_ns > 0 || job.stops_ns < u64::MAX;
        return Ok(jobs.iter().any(comes_or_goes).then_some(LIFE_INTERVAL));
    };
    let interval = Duration::from_nanos(ns);
    // Each job has a counter for every interval, in memory that is allocated before the run.
    if interval.is_zero() || measured.as_nanos() / interval.as_nanos().max(1) > INTERVALS_MAX {
        return Err(Refusal::new(format!(
            "series: {} in intervals of {} would be more than {INTERVALS_MAX}: make them longer, \
             10ms say",
            show_duration(measured.as_nanos() as f64),
            show_duration(ns as f64)
        )));
    }
    Ok(Some(interval))
}

/// The jobs with the effective weights that they have while all tenants are active.
fn effective(jobs: &[Job], groups: &[Group]) -> Vec<Job> {
    // `acme/batch` is below `acme`, `acme2` is not.
    let is_below = |name: &str, group: &str| {
        name.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let has_any = |group: &Group| {
        jobs.iter().any(|job| job.group.as_ref().is_some_and(|own| is_below(own, &group.name)))
    };
    let weight = |weight: Weight| f64::from(weight.in_256ths());
    // The sum of the weights of a group's members.
    let members = |name: &str| -> f64 {
        let own = jobs.iter().filter(|job| job.group.as_deref() == Some(name));
        let inner = groups.iter().filter(|group| group.parent() == Some(name) && has_any(group));
        own.map(|job| weight(job.weight)).chain(inner.map(|group| weight(group.weight))).sum()
    };
    let weighed = |job: &Job| {
        let (mut parts, mut above) = (weight(job.weight), job.group.as_deref());
        while let Some(group) = above.and_then(|name| groups.iter().find(|of| of.name == name)) {
            parts *= weight(group.weight) / members(&group.name);
            above = group.parent();
        }
        let weight = Weight::of_256ths(parts.round() as u32).unwrap_or(job.weight);
        Job { weight, ..job.clone() }
    };
    jobs.iter().map(weighed).collect()
}

fn check_groups(jobs: &[Job], groups: &[Group]) -> Result<(), Refusal> {
    let is_there = |name: &String| groups.iter().any(|group| group.name == *name);
    for job in jobs {
        if let Some(name) = job.group.as_ref().filter(|name| !is_there(name)) {
            return Err(Refusal::new(format!(
                "tenant {}: there is no group {name}: add --group {name}=weight:100",
                job.name
            )));
        }
    }
    Ok(())
}

fn check_jobs(jobs: &[Job]) -> Result<(), Refusal> {
    for (index, job) in jobs.iter().enumerate() {
        if jobs[..index].iter().any(|earlier| earlier.name == job.name) {
            return Err(Refusal::new(format!("tenant {} is given twice: rename one", job.name)));
        }
    }
    // Each request has a buffer of its own, and all are mapped before the run.
    let memory: u64 =
        jobs.iter().map(|job| u64::from(job.outstanding()) * u64::from(job.block)).sum();
    if memory > MEMORY_MAX {
        return Err(Refusal::new(format!(
            "the tenants' requests in flight need {}, more than {}: lower depth, jobs or bs",
            show_size(memory),
            exact_size(MEMORY_MAX)
        )));
    }
    Ok(())
}

/// Refuses options that make no sense with a server, or are impossible there.
fn check_connect(args: &BenchArgs, jobs: &[Job]) -> Result<(), Refusal> {
    let here = [
        ("--device", args.device.is_some()),
        ("--policy", !args.policy.is_empty()),
        ("--path", args.path.is_some()),
        ("--shards", args.shards.shards.is_some()),
        ("--cpus", args.shards.cpus.is_some()),
        ("--series", args.series.is_some()),
        ("--moves", args.moves.is_some()),
        ("--group", !args.group.is_empty()),
    ];
    if let Some((flag, _)) = here.iter().find(|(_, given)| *given) {
        return Err(Refusal::new(format!(
            "{flag} applies to a device in this process, not to --connect: leave it out"
        )));
    }
    if let Some(job) = jobs.iter().find(|job| {
        let is_placed = job.group.is_some() || !job.reservation.is_none();
        is_placed || job.urgent || job.target.is_some() || !job.caps.is_empty()
    }) {
        return Err(Refusal::new(format!(
            "tenant {}: with --connect the server decides latency, caps, group, reservation and \
             urgent: leave them out, and set them for the tenant of fairq serve",
            job.name
        )));
    }
    let comes_or_goes = |job: &&Job| job.starts_ns > 0 || job.stops_ns < u64::MAX;
    match jobs.iter().find(comes_or_goes) {
        Some(job) => Err(Refusal::new(format!(
            "tenant {}: with --connect every tenant is active for the whole run: leave out start \
             and stop",
            job.name
        ))),
        None => Ok(()),
    }
}

/// Refuses a load that would overwrite data, unless that is allowed.
fn refuse_overwriting(device: &DeviceConfig, jobs: &[Job], allowed: bool) -> Result<(), Refusal> {
    let Some(file) = device.shared_file() else { return Ok(()) };
    refuse_pool(&file.path, allowed)?;
    match jobs.iter().find(|job| job.read_percent < 100) {
        // A file that does not exist is made by the run, and has no data to lose.
        Some(job) if !allowed && file.path.exists() => Err(Refusal::new(format!(
            "tenant {} writes, and the data on {} would be lost: add --overwrite to allow this, or \
             use rw:randread",
            job.name,
            file.path.display()
        ))),
        _ => Ok(()),
    }
}

/// A description of the run, in a few lines.
fn introduction(plan: &Plan) -> String {
    let mut text = match &plan.place {
        Place::Server { uri, .. } => format!("{uri}\n"),
        Place::Device { device, cpus, path, moves } => {
            let describe = |policy: &PolicyConfig| policy.describe(device.default_slots());
            let policies: Vec<_> = plan.policies.iter().map(describe).collect();
            let way = if *path == load::Path::Direct { " on the direct path" } else { "" };
            let moves = moves.map(|interval| {
                format!(", jobs placed anew every {}", show_duration(interval.as_nanos() as f64))
            });
            let shards = shards_in_words(cpus.len()) + &moves.unwrap_or_default();
            format!("{} · {shards}{way} · {}\n", device.describe(), policies.join(", "))
        }
    };
    let width = plan.jobs.iter().map(|job| job.name.len()).max().unwrap_or(0);
    for job in &plan.jobs {
        text +=
            &format!("  {:<width$}  weight {:>5}  {}\n", job.name, job.weight.get(), job.summary());
    }
    text
}

/// The target of the load.
pub(crate) enum Target {
    /// A device, through a policy, inside this process.
    Device {
        device: Arc<AnyDevice>,
        /// The CPU of each shard.
        cpus: Vec<usize>,
        /// D for a policy whose configuration has none.
        slots: u32,
        /// The limits that the device's results cannot exceed.
        limits: Limits,
        /// The path to the device.
        path: load::Path,
        /// The time for which a job stays on one shard, if jobs move.
        moves: Option<Duration>,
    },
    /// An NBD server, and the time for which it may send nothing.
    Server(client::Target, Duration),
}

/// Runs loads on a target.
pub(crate) struct Bench {
    pub(crate) target: Target,
    /// Groups of tenants, outer ones first.
    pub(crate) groups: Vec<Group>,
    /// Whether the progress is not shown on the terminal.
    pub(crate) is_quiet: bool,
}

impl Bench {
    /// Makes a device in memory allocate the ranges that the jobs write before the measurement, so
    /// that the first policy does not alone pay for the allocation: a virtual machine may wait
    /// milliseconds for its host for each 2 MiB.
    fn take_memory(&self, jobs: &[Job]) -> anyhow::Result<()> {
        let Target::Device { device, .. } = &self.target else { return Ok(()) };
        let ranges = ranges(jobs, &device.info().sizes)?;
        let written = || {
            jobs.iter()
                .zip(&ranges)
                .filter(|(job, _)| job.read_percent < 100)
                .map(|(_, &range)| range)
        };
        let total: u64 = written().map(|(_, size)| size).sum();
        // The ranges may cover a large device, while the run uses only a part of them: allocating
        // all of them would take memory from other programs.
        if total > memory_available() / 2 {
            return Ok(());
        }
        let mut progress = Progress::new("taking memory", self.is_quiet);
        let mut taken = 0;
        for (base, size) in written() {
            for at in (base..base + size).step_by(MEMORY_AT_ONCE as usize) {
                progress.show(taken as f64 / total as f64);
                let length = MEMORY_AT_ONCE.min(base + size - at);
                device
                    .take_memory(0, at, length)
                    .context("cannot take the memory that the tenants write to")?;
                taken += length;
            }
        }
        Ok(())
    }

    /// Each tenant's bytes a second alone on the device.
    fn alone(&self, jobs: &[Job], times: Times) -> anyhow::Result<Vec<Option<f64>>> {
        let none = PolicyTable::of("none", &[]).complete()?;
        let mut alone = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            // The other tenants are present without jobs, so that this tenant has the same range as
            // in the later runs.
            let plain = |job: &Job| Job {
                urgent: false,
                target: None,
                caps: Caps::default(),
                group: None,
                reservation: Reservation::NONE,
                ..job.clone()
            };
            let silent = |other: &Job| Job { jobs: 0, ..plain(other) };
            let only: Vec<Job> = jobs
                .iter()
                .enumerate()
                .map(|(i, other)| if i == index { plain(job) } else { silent(other) })
                .collect();
            let measured = self.measure(&none, &only, times, &format!("{} alone", job.name))?;
            let bytes = measured.tenants.get(index).map_or(0, TenantStats::bytes);
            alone.push(Some(bytes as f64 / measured.elapsed.as_secs_f64()));
        }
        Ok(alone)
    }

    /// Runs the jobs, under a policy if they run in this process. A disturbed measurement is
    /// repeated; impossible figures are an error.
    pub(crate) fn measure(
        &self,
        policy: &PolicyConfig,
        jobs: &[Job],
        times: Times,
        label: &str,
    ) -> anyhow::Result<Measured> {
        let measured = undisturbed(label, PATIENCE, || self.attempt(policy, jobs, times, label))?;
        let (threads, limits) = match &self.target {
            Target::Device { cpus, limits, .. } => (cpus.len(), *limits),
            Target::Server(..) => {
                (jobs.iter().map(|job| usize::from(job.jobs)).sum(), Limits::NONE)
            }
        };
        plausible::check(jobs, threads, limits, &measured)
            .with_context(|| format!("the measurement of {label} is not valid"))?;
        if let Some(part) = measured.cpu_wait.filter(|part| *part > MUCH_WAITING) {
            eprintln!(
                "fairq: under {label} shards waited for their CPUs {} of the time, because other \
                 programs used them: {CPU_CURE}",
                show_percent(part)
            );
        }
        Ok(measured)
    }

    fn attempt(
        &self,
        policy: &PolicyConfig,
        jobs: &[Job],
        times: Times,
        label: &str,
    ) -> anyhow::Result<Measured> {
        let mut progress = Progress::new(label, self.is_quiet);
        match &self.target {
            Target::Server(target, timeout) => {
                let connections = connections(jobs, target, *timeout);
                client::run(&connections, times, |part| progress.show(part))
                    .context("cannot run the load")
            }
            Target::Device { device, cpus, slots, path, moves, limits: _ } => {
                let ranges = ranges(jobs, &device.info().sizes)?;
                let hands = deal(jobs, cpus.len());
                let depths = |hand: &Vec<(usize, u16)>| {
                    hand.iter().map(|&(tenant, _)| usize::from(jobs[tenant].depth)).sum()
                };
                let tags: Vec<usize> = hands.iter().map(depths).collect();
                // All jobs may be on the same shard.
                let tags =
                    if moves.is_some() { Some(tags.iter().sum()) } else { tags.into_iter().max() };
                let common = Common::new(
                    device.clone(),
                    Arc::new(Wakers::new(cpus.len())?),
                    tags.unwrap_or(0).max(1),
                    jobs.len(),
                );
                let shape = Shape::new(topology(cpus), jobs.len(), common.tags).before(*slots);
                let threads = load::Threads { cpus, path: *path, moves: *moves };
                let groups = &self.groups[..];
                let load = Load { jobs, groups, ranges, hands, common, threads, times, progress };
                let name = policy.name();
                with_policy::<Native, _>(policy, shape, load)?
                    .with_context(|| format!("cannot run the load under {name}"))
            }
        }
    }
}

/// Measures until a measurement was not disturbed: at least [`ATTEMPTS`] times, and until
/// `patience` is over.
fn undisturbed(
    label: &str,
    patience: Duration,
    mut attempt: impl FnMut() -> anyhow::Result<Measured>,
) -> anyhow::Result<Measured> {
    let begun = Instant::now();
    let mut attempts = 0;
    loop {
        let measured = attempt()?;
        attempts += 1;
        let Some(disturbance) = measured.disturbance else { return Ok(measured) };
        ensure!(
            attempts < ATTEMPTS || begun.elapsed() < patience,
            "cannot measure {label}: each of {attempts} measurements was disturbed, in the last \
             one {disturbance}: {CPU_CURE}, or measure for longer (--seconds)"
        );
        if attempts == 1 {
            eprintln!("fairq: {label} is measured again, since {disturbance}");
        }
    }
}

/// The result of a run.
fn outcome(
    label: &str,
    jobs: &[Job],
    times: Times,
    measured: &Measured,
    alone: &[Option<f64>],
) -> Run {
    let nothing = TenantStats::default();
    let got: Vec<Got> = jobs
        .iter()
        .zip(alone)
        .enumerate()
        .map(|(index, (job, alone))| {
            let stats = measured.tenants.get(index).unwrap_or(&nothing);
            let quantile = |quantile| stats.latency_ns.value_at_quantile(quantile);
            Got {
                name: job.name.clone(),
                weight: job.weight.get(),
                rate: job.rate,
                operations: stats.operations(),
                bytes: stats.bytes(),
                mean_ns: stats.latency_ns.mean(),
                p50_ns: quantile(0.5),
                p99_ns: quantile(0.99),
                p999_ns: quantile(0.999),
                alone: *alone,
                histogram: None,
            }
        })
        .collect();
    let life = |job: &Job| Life {
        starts_ns: job.starts_ns,
        stops_ns: job.stops_ns,
        weight: job.weight.get().into(),
        most: job.rate.map_or(f64::INFINITY, |rate| rate as f64),
    };
    let lives: Vec<(String, Life)> = jobs.iter().map(|job| (job.name.clone(), life(job))).collect();
    let series = times.interval.map(|interval| {
        Series::new(interval, measured.series.clone(), &lives, &measured.class_weights)
    });
    let seconds = measured.elapsed.as_secs_f64();
    let run = Run::new(label, seconds, measured.cpu.as_nanos() as f64, &got, series);
    Run { slots: measured.slots, ..run }
}

/// Bytes of memory that programs can take without swapping; 0 if the kernel does not report them.
fn memory_available() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()
    });
    kib.unwrap_or(0u64) << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plausible::tests::measured;
    use fairq_host::measure::stall::Disturbance;

    /// The number of measurements if the first `disturbed` of them are disturbed, and the requests
    /// of the result.
    fn repeated(disturbed: u32) -> (u32, Result<u64, String>) {
        let (ms, second) = (Duration::from_millis(1), Duration::from_secs(1));
        let mut made = 0;
        let result = undisturbed("mqfq", Duration::ZERO, || {
            made += 1;
            let disturbance = (made <= disturbed).then_some(Disturbance::Stalled(second));
            Ok(Measured { disturbance, ..measured(made.into(), ms, second) })
        });
        let operations = |measured: Measured| measured.tenants[0].operations();
        (made, result.map(operations).map_err(|error| error.to_string()))
    }

    #[test]
    fn a_measurement_that_is_disturbed_is_made_again_and_in_the_end_rejected() {
        assert_eq!(repeated(0), (1, Ok(1)));
        assert_eq!(repeated(2), (3, Ok(3)));
        let (made, result) = repeated(u32::MAX);
        let text = result.unwrap_err();
        assert_eq!(made, ATTEMPTS);
        let reason = "each of 3 measurements was disturbed, in the last one this process did not";
        assert!(text.starts_with(&format!("cannot measure mqfq: {reason}")), "{text}");
    }
}
