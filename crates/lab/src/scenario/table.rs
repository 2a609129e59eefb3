//! A scenario file, and its scenario.
//!
//! The keys and their units are described in [`scenario`](super).

use std::io::BufReader;
use std::path::{Path, PathBuf};

use fairq_bench::fiojob;
use fairq_bench::job::{Job, Pattern};
use fairq_config::caps::Burst as CapBurst;
use fairq_config::device::{State, load_profile};
use fairq_config::group::{self, Group, GroupTable};
use fairq_config::latency;
use fairq_config::name::Origin;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{line_and_column, misread};
use fairq_config::units::{Bandwidth, Count, Nanos, Part, Percentile, Size};
use fairq_config::weight::{self, WeightSource};
use fairq_core::{GroupId, Share};
use fairq_device::profile::{Mapping, State as Written};
use fairq_sim::proxy;
use fairq_sim::scenario::{Access, Arrivals, Burst, Faults, Job as Load, Replay, Scenario, Tenant};
use fairq_sim::trace::{Format, Trace};
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::args::SEED;
use crate::host::HostTable;

/// The most cores: the caches of a simulated host have a bit for each of 64.
const CORES: u32 = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ScenarioTable {
    device: String,
    state: Option<State>,
    mapping: Option<Mapping>,
    cores: Option<u32>,
    cores_per_queue: Option<u32>,
    duration: Nanos,
    warmup: Option<Nanos>,
    wake: Option<Nanos>,
    moves: Option<Nanos>,
    host: Option<Spanned<HostTable>>,
    seed: Option<u64>,
    #[serde(default)]
    fio: Vec<PathBuf>,
    #[serde(default)]
    tenant: Vec<Spanned<TenantTable>>,
    #[serde(default)]
    group: Vec<Spanned<GroupTable>>,
    #[serde(default)]
    errors_per_million: u32,
    #[serde(default)]
    stalls: Vec<(Nanos, Nanos)>,
    /// The values to sweep, each in a scenario of its own (`sweep` reads them).
    #[serde(default, rename = "sweep")]
    _sweep: IgnoredAny,
}

/// A size, or several with their frequencies.
#[derive(Deserialize)]
#[serde(untagged)]
enum Sizes {
    One(Size),
    Many(Vec<(Size, u32)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Timing {
    /// Requests are submitted as soon as the depth allows.
    Fast,
    /// Requests are submitted not earlier than in the trace.
    Original,
}

/// The arrivals of a tenant's requests.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Loop {
    Closed,
    Even,
    Poisson,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TenantTable {
    name: String,
    #[serde(default, deserialize_with = "weight::weight")]
    weight: Option<fairq_core::Weight>,
    latency: Option<Nanos>,
    latency_percentile: Option<Percentile>,
    floor: Option<Part>,
    max_iops: Option<Count>,
    read_max_iops: Option<Count>,
    write_max_iops: Option<Count>,
    max_bandwidth: Option<Bandwidth>,
    read_max_bandwidth: Option<Bandwidth>,
    write_max_bandwidth: Option<Bandwidth>,
    burst: Option<CapBurst>,
    min_iops: Option<Count>,
    min_bandwidth: Option<Bandwidth>,
    group: Option<String>,
    like: Option<String>,
    bs: Option<Sizes>,
    depth: Option<u32>,
    jobs: Option<usize>,
    cores: Option<Vec<usize>>,
    rw: Option<Pattern>,
    rwmix: Option<u32>,
    distribution: Option<String>,
    rate: Option<Bandwidth>,
    iops: Option<Count>,
    arrivals: Option<Loop>,
    think: Option<Nanos>,
    on: Option<Nanos>,
    off: Option<Nanos>,
    start: Option<Nanos>,
    stop: Option<Nanos>,
    #[serde(default)]
    lives: Vec<(Nanos, Nanos)>,
    #[serde(default)]
    weights: Vec<(Nanos, u16)>,
    trace: Option<PathBuf>,
    format: Option<String>,
    volume: Option<String>,
    timing: Option<Timing>,
}

/// Reads a scenario. `shown` is the file's name in messages; paths in the file are relative to
/// `folder`.
pub(crate) fn parse(text: &str, shown: &str, folder: &Path) -> Result<Scenario, Refusal> {
    let table: ScenarioTable =
        toml::from_str(text).map_err(|error| misread(text, shown, &error))?;
    let refuse = |what: String| Refusal::new(format!("{shown}: {what}"));
    let mut profile = load_profile(&table.device)?;
    if let Some(mapping) = table.mapping {
        let Some(garbage) = &mut profile.garbage else {
            return Err(refuse(format!(
                "mapping: {} writes in place, so nothing is mapped: leave mapping out",
                profile.name
            )));
        };
        garbage.mapping = mapping;
    }
    let cores = table.cores.unwrap_or(8);
    if !(1..=CORES).contains(&cores) {
        return Err(refuse(format!("cores {cores} is not in 1..{CORES}")));
    }
    let groups = groups(&table.group, text, shown)?;
    // All tenants share one iterator, which gives their threads to the cores in turn.
    let mut free = (0..cores as usize).cycle();
    let mut tenants = Vec::new();
    for spanned in table.tenant {
        let starts = spanned.span().start;
        let tenant = spanned.into_inner();
        let name = tenant.name.clone();
        let told = |what: String| {
            let (line, _) = line_and_column(text, starts);
            Refusal::new(format!("{shown}:{line}: tenant {name}: {what}"))
        };
        tenants.push(tenant.complete(&mut free, folder, &groups).map_err(told)?);
    }
    for file in &table.fio {
        let fio = fiojob::load(&folder.join(file))?;
        tenants.extend(fio.jobs.iter().map(|job| from_fio(job, &mut free)));
    }
    if tenants.is_empty() {
        return Err(refuse("no tenant has requests: add a [[tenant]], or a fio job file".into()));
    }
    let Nanos(duration_ns) = table.duration;
    let mut scenario = Scenario::new(profile, cores as usize, tenants, duration_ns);
    // A trace may be short, so by default a run with a trace has no warm-up.
    let replays = scenario.tenants.iter().any(|tenant| tenant.job.replay.is_some());
    let warmup_ns = if replays { 0 } else { scenario.warmup_ns };
    scenario.warmup_ns = table.warmup.map_or(warmup_ns, |Nanos(ns)| ns);
    scenario.wake_ns = table.wake.map_or(scenario.wake_ns, |Nanos(ns)| ns);
    scenario.cores_per_queue = table.cores_per_queue.unwrap_or(1) as usize;
    scenario.moves_ns = table.moves.map(|Nanos(ns)| ns);
    if let Some(spanned) = table.host {
        let (line, _) = line_and_column(text, spanned.span().start);
        let told = |what: String| Refusal::new(format!("{shown}:{line}: host: {what}"));
        if table.wake.is_some() {
            return Err(told(
                "a host has times of wake-ups of its own (wake and far-wake): leave wake out above"
                    .into(),
            ));
        }
        scenario.host = Some(spanned.into_inner().complete(cores as usize).map_err(told)?);
    }
    scenario.groups = groups.iter().map(|group| settings(group, &groups)).collect();
    scenario.seed = table.seed.unwrap_or(SEED);
    scenario.state = match table.state {
        Some(State::Steady) => Written::Steady,
        _ => Written::Fresh,
    };
    scenario.faults = Faults {
        errors_per_million: table.errors_per_million,
        stalls: table.stalls.iter().map(|&(Nanos(from), Nanos(until))| (from, until)).collect(),
    };
    scenario.check().map_err(|error| refuse(error.to_string()))?;
    Ok(scenario)
}

/// The groups of tenants, outer ones first.
fn groups(tables: &[Spanned<GroupTable>], text: &str, shown: &str) -> Result<Vec<Group>, Refusal> {
    let mut all = Vec::new();
    for spanned in tables {
        let (line, _) = line_and_column(text, spanned.span().start);
        let table = spanned.get_ref();
        let is_followed = matches!(table.weight, Some(WeightSource::Cgroup(_)));
        if is_followed || table.cgroup.is_some() {
            return Err(Refusal::new(format!(
                "{shown}:{line}: group {}: a simulation has no cgroups: write its weight and caps",
                table.name
            )));
        }
        let origin = Origin::File(shown.to_owned(), line);
        all.push(GroupTable { origin, ..table.clone() });
    }
    group::complete(&all, None)
}

/// The number of the group of this name.
fn id_of(name: &str, groups: &[Group]) -> Option<GroupId> {
    groups.iter().position(|group| group.name == name).map(|at| GroupId(at as u16))
}

/// A group's settings for the policy.
fn settings(group: &Group, all: &[Group]) -> fairq_core::Group {
    let parent = group.parent().and_then(|name| id_of(name, all));
    let Group { weight, reservation, caps, .. } = *group;
    fairq_core::Group { parent, weight, reservation, caps }
}

/// A fio job, with the same meaning as in `fairq bench`.
fn from_fio(job: &Job, free: &mut impl Iterator<Item = usize>) -> Tenant {
    let threads: Vec<usize> = free.take(usize::from(job.jobs)).collect();
    let load = Load {
        read_percent: u32::from(job.read_percent),
        access: if job.random { Access::Random } else { Access::Sequential },
        think_ns: job.think_ns,
        interval_ns: job
            .rate
            .map_or(0, |rate| interval_ns(threads.len(), u64::from(job.block), rate)),
        ..Load::random_read(job.block, u32::from(job.depth))
    };
    let mut tenant = Tenant::new(&job.name, job.weight.get(), threads, load);
    tenant.lives = vec![(job.starts_ns, job.stops_ns)];
    tenant
}

/// The interval in ns between two requests of one thread, if `threads` threads together send `rate`
/// bytes a second.
fn interval_ns(threads: usize, bytes: u64, rate: u64) -> u64 {
    (threads as u64).saturating_mul(bytes).saturating_mul(1_000_000_000) / rate.max(1)
}

impl TenantTable {
    fn complete(
        self,
        free: &mut impl Iterator<Item = usize>,
        folder: &Path,
        groups: &[Group],
    ) -> Result<Tenant, String> {
        let own = latency::target(self.latency, self.latency_percentile, self.floor)?;
        let target = own.or_else(|| group::target(self.group.as_deref(), groups));
        let caps = fairq_config::caps_of!(self).caps()?;
        let reserved = group::Written { iops: self.min_iops, bandwidth: self.min_bandwidth };
        let reservation = reserved.reservation(&caps)?;
        let group = match self.group.as_deref() {
            None => None,
            Some(name) => Some(id_of(name, groups).ok_or_else(|| {
                format!("there is no group {name}: add [[group]] name = \"{name}\"")
            })?),
        };
        let (usual_threads, mut load) = match &self.like {
            None => (1, Load::random_read(4096, 32)),
            Some(name) => proxy::named(name).ok_or_else(|| {
                format!(
                    "like: nothing is called `{name}`: there are {}",
                    proxy::ALL.map(|proxy| proxy.0).join(", ")
                )
            })?,
        };
        if self.jobs.is_some() && self.cores.is_some() {
            return Err(
                "jobs is the number of threads, cores has the core of each: leave one out".into()
            );
        }
        let threads = match self.cores {
            Some(cores) => cores,
            None => free.take(self.jobs.unwrap_or(usual_threads)).collect(),
        };
        if threads.is_empty() {
            return Err("it has no thread: give it jobs or cores".into());
        }
        if let Some(sizes) = self.bs {
            let bytes = |Size(bytes): Size| {
                u32::try_from(bytes).map_err(|_| format!("bs {bytes} is too large"))
            };
            load.sizes = match sizes {
                Sizes::One(size) => vec![(bytes(size)?, 1)],
                Sizes::Many(sizes) => sizes
                    .into_iter()
                    .map(|(size, often)| Ok((bytes(size)?, often)))
                    .collect::<Result<_, String>>()?,
            };
        }
        load.depth = self.depth.unwrap_or(load.depth);
        if let Some(pattern) = self.rw {
            load.access = if pattern.is_random() { Access::Random } else { Access::Sequential };
            load.read_percent = match pattern {
                Pattern::Read | Pattern::RandRead => 100,
                Pattern::Write | Pattern::RandWrite => 0,
                Pattern::Rw | Pattern::RandRw => 50,
            };
        }
        match (self.rwmix, self.rw) {
            (Some(percent), _) if percent > 100 => {
                return Err(format!("rwmix {percent} is more than 100 %"));
            }
            (
                Some(_),
                Some(Pattern::Read | Pattern::RandRead | Pattern::Write | Pattern::RandWrite),
            ) => {
                return Err(
                    "rwmix is for both reads and writes: set rw = \"rw\" or \"randrw\", too".into(),
                );
            }
            (Some(percent), _) => load.read_percent = percent,
            (None, _) => {}
        }
        if let Some(distribution) = &self.distribution {
            if load.access == Access::Sequential {
                return Err("distribution is for random requests: set rw = \"randread\", \
                            \"randwrite\" or \"randrw\""
                    .into());
            }
            load.access = distributed(distribution)?;
        }
        load.think_ns = self.think.map_or(load.think_ns, |Nanos(ns)| ns);
        load.burst = match (self.on, self.off) {
            (Some(Nanos(on_ns)), Some(Nanos(off_ns))) => Some(Burst { on_ns, off_ns }),
            (None, None) => load.burst,
            _ => return Err("bursts have an `on` and an `off`: give both".into()),
        };
        // Frequencies of 0 are refused later, by the scenario's own check.
        let mean = load
            .sizes
            .iter()
            .map(|&(bytes, often)| u64::from(bytes) * u64::from(often))
            .sum::<u64>()
            / load.sizes.iter().map(|size| u64::from(size.1)).sum::<u64>().max(1);
        load.interval_ns = match (self.rate, self.iops) {
            (Some(_), Some(_)) => {
                return Err("rate and iops are two words for one limit: leave one out".into());
            }
            (Some(Bandwidth(0)), _) | (_, Some(Count(0))) => {
                return Err("a limit of 0 allows no request: leave it out for no limit".into());
            }
            (Some(Bandwidth(rate)), None) => interval_ns(threads.len(), mean, rate),
            (None, Some(Count(iops))) => interval_ns(threads.len(), 1, iops),
            (None, None) => load.interval_ns,
        };
        load.arrivals = match self.arrivals {
            Some(_) if self.rate.is_none() && self.iops.is_none() => {
                return Err("arrivals need rate or iops: how often requests arrive".into());
            }
            Some(Loop::Even) => Arrivals::Even,
            Some(Loop::Poisson) => Arrivals::Poisson,
            Some(Loop::Closed) | None => Arrivals::Closed,
        };
        load.replay = replay(self.trace, self.format, self.volume, self.timing, folder)?;
        let mut tenant =
            Tenant::new(&self.name, self.weight.unwrap_or_default().get(), threads, load);
        tenant.lives = match (self.start, self.stop, self.lives) {
            (None, None, lives) if lives.is_empty() => tenant.lives,
            (None, None, lives) => {
                lives.into_iter().map(|(Nanos(from), Nanos(until))| (from, until)).collect()
            }
            (start, stop, lives) if lives.is_empty() => {
                vec![(start.map_or(0, |Nanos(ns)| ns), stop.map_or(u64::MAX, |Nanos(ns)| ns))]
            }
            _ => return Err("start and stop are one life, lives has several: leave one out".into()),
        };
        (tenant.target, tenant.caps) = (target, caps);
        tenant.share = Share { group, reservation };
        tenant.reweights =
            self.weights.into_iter().map(|(Nanos(at_ns), weight)| (at_ns, weight)).collect();
        Ok(tenant)
    }
}

/// `random`, or `zipf:1.2`, in fio's notation.
fn distributed(text: &str) -> Result<Access, String> {
    let unknown =
        || format!("distribution `{text}` is neither random nor zipf:EXPONENT, as zipf:1.2");
    let exponent = match text.split_once(':') {
        None if text == "random" => return Ok(Access::Random),
        Some(("zipf", exponent)) => exponent.parse::<f64>().map_err(|_| unknown())?,
        _ => return Err(unknown()),
    };
    // NaN and values out of range become 0 or a value above the bound, which the scenario's check
    // refuses.
    Ok(Access::Zipf { thousandths: (exponent * 1000.0).round() as u32 })
}

fn replay(
    trace: Option<PathBuf>,
    format: Option<String>,
    volume: Option<String>,
    timing: Option<Timing>,
    folder: &Path,
) -> Result<Option<Replay>, String> {
    let formats = || Format::ALL.map(|format| format.0).join(", ");
    let Some(path) = trace else {
        return match (format, volume, timing) {
            (None, None, None) => Ok(None),
            _ => Err("format, volume and timing belong to a trace: name its file".into()),
        };
    };
    let path = folder.join(path);
    let format = format.ok_or_else(|| format!("a trace needs its format: one of {}", formats()))?;
    let known = Format::named(&format)
        .ok_or_else(|| format!("format `{format}` is none of {}", formats()))?;
    let file =
        std::fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let trace = Trace::read(known, BufReader::new(file), volume.as_deref());
    let trace = trace.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(Replay { trace, keeps_time: timing == Some(Timing::Original) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Scenario, String> {
        parse(text, "my.toml", Path::new("")).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let error = |tenant: &str| {
            read(&format!("device = \"z-ssd\"\nduration = \"1s\"\n\n[[tenant]]\n{tenant}\n"))
                .unwrap_err()
        };
        let unknown = error("name = \"a\"\nbsize = \"4k\"");
        assert!(unknown.starts_with("my.toml:6:1: unknown key `bsize`"), "{unknown}");
        assert_eq!(
            error("name = \"a\"\nlike = \"x\"").split(": there are").next(),
            Some("my.toml:4: tenant a: like: nothing is called `x`")
        );
        assert_eq!(
            error("name = \"a\"\non = \"1ms\""),
            "my.toml:4: tenant a: bursts have an `on` and an `off`: give both"
        );
        assert_eq!(
            error("name = \"a\"\ntrace = \"t.csv\""),
            "my.toml:4: tenant a: a trace needs its format: one of msr, systor, tencent, alibaba, \
             mqsim, blkparse, vscsi, fairq"
        );
        assert!(
            error("name = \"a\"\ndistribution = \"pareto:1\"")
                .ends_with("is neither random nor zipf:EXPONENT, as zipf:1.2")
        );
        assert_eq!(
            error("name = \"a\"\ndistribution = \"zipf:nan\""),
            "my.toml: tenant a: the exponent of Zipf's law is from 0.001 to 10"
        );
        assert!(
            error("name = \"a\"\nrw = \"read\"\ndistribution = \"zipf:1\"")
                .contains("distribution is for random requests: set rw = ")
        );
        assert_eq!(
            error("name = \"a\"\narrivals = \"poisson\""),
            "my.toml:4: tenant a: arrivals need rate or iops: how often requests arrive"
        );
        assert_eq!(
            error("name = \"a\"\niops = \"1k\"\nthink = \"1us\"\narrivals = \"even\""),
            "my.toml: tenant a: arrivals by the clock cannot have think times or a trace"
        );
        assert_eq!(
            error("name = \"a\"\ndepth = 0"),
            "my.toml: tenant a: depth, sizes and their frequencies must be above 0"
        );
        assert_eq!(
            error("name = \"a\"\ncores = [99]"),
            "my.toml: tenant a: a thread is on port 99, but there are 8 ports"
        );
        assert!(
            read("device = \"z-ssd\"\nduration = \"1s\"")
                .unwrap_err()
                .contains("no tenant has requests")
        );
        assert!(
            read("device = \"none\"\nduration = \"1s\"")
                .unwrap_err()
                .contains("no profile is called `none`")
        );
    }

    #[test]
    fn groups_caps_reservations_and_targets_are_as_serve_has_them() {
        let text = |group: &str, tenant: &str| {
            format!(
                "device = \"z-ssd\"\nduration = \"1s\"\n[[group]]\nname = \"acme/batch\"\nmax-iops = \
                 5000\n{group}\n[[group]]\nname = \"acme\"\nweight = 300\nlatency = \
                 \"1ms\"\n[[tenant]]\nname = \"a\"\n{tenant}\n"
            )
        };
        let tenant = "group = \"acme/batch\"\nmin-iops = 100\nmax-bandwidth = \"10M/s\"";
        let scenario = read(&text("", tenant)).unwrap();
        assert_eq!(scenario.groups[1].parent, Some(GroupId(0)), "outer ones first");
        let a = &scenario.tenants[0];
        assert_eq!(a.share.group, Some(GroupId(1)));
        assert_eq!(a.share.reservation, fairq_core::Reservation::new(100, 0).unwrap());
        assert_eq!(a.target.map(|target| target.latency_ns()), Some(1_000_000), "its group's");
        let cap = a.caps.get(fairq_core::Side::Both, fairq_core::Counted::Bytes).unwrap();
        assert_eq!(cap.per_second(), 10 << 20);
        let error = |group, tenant| read(&text(group, tenant)).unwrap_err();
        assert_eq!(
            error("weight = \"cgroup:/x\"", ""),
            "my.toml:3: group acme/batch: a simulation has no cgroups: write its weight and caps"
        );
        assert_eq!(
            error("", "group = \"b\""),
            "my.toml:11: tenant a: there is no group b: add [[group]] name = \"b\""
        );
        assert!(error("", "min-iops = 0").contains("min-iops 0 reserves nothing"));
        assert!(error("", "burst = 5").contains("without a cap: add"));
    }

    #[test]
    fn a_host_that_cannot_be_is_told_with_its_line() {
        let text = |host: &str| {
            format!(
                "device = \"z-ssd\"\nduration = \"20ms\"\ncores = 1\n{host}\n[[tenant]]\nname = \
                 \"a\"\ndepth = 64\n"
            )
        };
        assert_eq!(
            read(&text("wake = \"1us\"\n[host]\n")).unwrap_err(),
            "my.toml:5: host: a host has times of wake-ups of its own (wake and far-wake): leave \
             wake out above"
        );
        let many = text("[host]\ncores = 1\nsockets = 0\n");
        assert_eq!(
            read(&many).unwrap_err(),
            "my.toml:4: host: sockets, cores and threads must be above 0"
        );
    }

    #[test]
    fn rates_are_for_the_tenant_as_a_whole() {
        assert_eq!(interval_ns(4, 4096, 4096 * 1000), 4_000_000);
        assert_eq!(interval_ns(1, 1, 1000), 1_000_000);
    }
}
