//! Scenarios: who asks a device for what, when, and on which cores. Together with a policy and a
//! seed a scenario is a run.

use fairq_core::Topology;
use fairq_core::serial::SerialConfig;
use fairq_core::{Cap, Caps, CostModel, Counted, Group, Share, Side, Target, Weight};
use fairq_device::{DiskProfile, Profile, State};

use crate::host::Host;
use crate::trace::Trace;

/// A host, a device, and tenants.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The device.
    pub profile: Profile,
    /// A disk in its place, with the disk's own queue and size.
    pub disk: Option<DiskProfile>,
    /// What has been written to it before.
    pub state: State,
    /// How many cores there are; each has a port.
    pub ports: usize,
    /// How many cores that follow each other share a set of submission queues; 1: each has its own.
    pub cores_per_queue: usize,
    /// Who asks.
    pub tenants: Vec<Tenant>,
    /// The groups that tenants are in, by their numbers; a policy without groups ignores them.
    pub groups: Vec<Group>,
    /// How often the operating system places the threads anew, evenly over the cores and otherwise
    /// by chance; what they have outstanding ends where it began. `None`: each stays where its
    /// tenant says.
    pub moves_ns: Option<u64>,
    /// When tenants stop asking. What they have asked for by then is still served.
    pub duration_ns: u64,
    /// From when on it is measured.
    pub warmup_ns: u64,
    /// How long the intervals of the time series are; `None` for no series.
    pub series_ns: Option<u64>,
    /// How long it takes to wake another core: an inter-processor interrupt. A host has times of
    /// its own.
    pub wake_ns: u64,
    /// Whose CPUs take time; `None`: nothing but the device does.
    pub host: Option<Host>,
    /// What goes wrong.
    pub faults: Faults,
    /// What requests cost; the policy is built with the same.
    pub cost: CostModel,
    /// Names the run.
    pub seed: u64,
}

/// A flow, and the threads that feed it.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// What it is called.
    pub name: String,
    /// Its weight, 1 to 10,000.
    pub weight: u16,
    /// The core of each of its threads.
    pub threads: Vec<usize>,
    /// What each thread does.
    pub job: Job,
    /// When it is there: from, and until. It is told to the policy at the first moment, and taken
    /// away at the last: each life is a flow of its own.
    pub lives: Vec<(u64, u64)>,
    /// When its weight changes, and to what.
    pub reweights: Vec<(u64, u16)>,
    /// How long its requests are to take; a policy without targets ignores it.
    pub target: Option<Target>,
    /// Its group, and what it has at least; a policy without groups ignores it.
    pub share: Share,
    /// What it has at most; a policy without caps ignores it.
    pub caps: Caps,
}

/// What a thread does. Usually a closed loop, as of fio: so many requests at a time, each followed
/// by the next.
#[derive(Clone, Debug)]
pub struct Job {
    /// Sizes in bytes, and how often each is chosen relative to the others.
    pub sizes: Vec<(u32, u32)>,
    /// How many of a hundred requests read.
    pub read_percent: u32,
    /// Where.
    pub access: Access,
    /// How many requests a thread has outstanding, at most.
    pub depth: u32,
    /// What makes it ask.
    pub arrivals: Arrivals,
    /// The pause between a request's end and the next one.
    pub think_ns: u64,
    /// The least time between two requests of a thread; 0 for no limit. In an open loop the mean.
    pub interval_ns: u64,
    /// Requests are made only at times.
    pub burst: Option<Burst>,
    /// What is asked for and where comes from a trace, instead of sizes, reads and access. The
    /// tenant's threads take turns.
    pub replay: Option<Replay>,
}

/// What makes a thread ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arrivals {
    /// An answer: the load follows the device.
    #[default]
    Closed,
    /// The clock, once every interval, whatever the device does. A request that finds no place
    /// waits for one, and its latency counts from its arrival.
    Even,
    /// The same, with intervals by chance: their distribution is exponential (a Poisson process).
    Poisson,
}

/// A trace, and how it is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The requests.
    pub trace: Trace,
    /// Not before their time, counted from the tenant's beginning; else as fast as there are
    /// places.
    pub keeps_time: bool,
}

/// Where requests go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Anywhere on the device.
    Random,
    /// Anywhere, some places more often than others: the place of rank k in proportion to k to the
    /// power of minus so many thousandths (Zipf's law).
    Zipf {
        /// The exponent in thousandths, above 0.
        thousandths: u32,
    },
    /// One after the other, from a place of the thread's own.
    Sequential,
}

/// On and off, over and over, from the beginning of time.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// How long requests are made.
    pub on_ns: u64,
    /// How long none are.
    pub off_ns: u64,
}

/// What goes wrong with the device.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// How many of a million commands fail.
    pub errors_per_million: u32,
    /// From when until when it completes nothing.
    pub stalls: Vec<(u64, u64)>,
}

/// Why a scenario cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The numbers do not fit.
    #[error("{0}")]
    Illegal(String),
    /// The policy cannot be built.
    #[error(transparent)]
    Policy(#[from] fairq_core::ConfigError),
}

/// One nanosecond's multiples.
pub const US: u64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// How often threads that nobody pins are placed anew, in nanoseconds, where D2FQ's Figure 15 is
/// run.
///
/// It follows from how Linux balances (`sd_init` and Documentation/scheduler/sched-domains.rst): an
/// idle CPU looks for a thread to take over every so many milliseconds as its domain has CPUs, 8 on
/// the paper's machine, and finds one where another CPU has two that could run. 750 K requests a
/// second at 3.9 us ([`crate::host`]) keep eight CPUs busy 37 % of the time and each of 16 threads
/// 18 %: one of seven CPUs has two to run 21 % of the time, so eight CPUs that are idle 63 % of it
/// take 132 threads a second, and each moves every 120 ms on average.
pub const MOVES_NS: u64 = 120 * MS;

/// Times are shorter than this, some eighteen years: then no sum of a few overflows.
const LONGEST_NS: u64 = 1 << 59;

impl Job {
    /// Random reads of one size, one after the other without a pause.
    pub fn random_read(bytes: u32, depth: u32) -> Job {
        Job {
            sizes: vec![(bytes, 1)],
            read_percent: 100,
            access: Access::Random,
            depth,
            arrivals: Arrivals::Closed,
            think_ns: 0,
            interval_ns: 0,
            burst: None,
            replay: None,
        }
    }

    /// Its largest size.
    pub fn largest(&self) -> u32 {
        if let Some(replay) = &self.replay {
            return replay.trace.asked().iter().map(|asked| asked.length).max().unwrap_or(0);
        }
        self.sizes.iter().map(|size| size.0).max().unwrap_or(0)
    }
}

impl Tenant {
    /// One that is there from beginning to end.
    pub fn new(name: &str, weight: u16, threads: Vec<usize>, job: Job) -> Tenant {
        let name = name.to_owned();
        let lives = vec![(0, u64::MAX)];
        let (share, caps) = (Share::default(), Caps::default());
        Tenant {
            name,
            weight,
            threads,
            job,
            lives,
            reweights: Vec::new(),
            target: None,
            share,
            caps,
        }
    }

    /// It is there from then until the end.
    #[must_use]
    pub fn from(mut self, from_ns: u64) -> Tenant {
        self.lives = vec![(from_ns, u64::MAX)];
        self
    }

    /// The most requests that it has outstanding.
    pub fn depth(&self) -> u64 {
        self.threads.len() as u64 * u64::from(self.job.depth)
    }
}

impl Scenario {
    /// How much its device holds, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.disk.as_ref().map_or_else(|| self.profile.host.capacity(), DiskProfile::capacity)
    }

    /// How long it takes to wake another core, unless a scenario says otherwise. A guess between
    /// what an interrupt takes within a socket and what it takes to another: about a microsecond.
    pub const WAKE_NS: u64 = US;

    /// Tenants on a fresh device for so long; measured from a tenth on.
    pub fn new(profile: Profile, ports: usize, tenants: Vec<Tenant>, duration_ns: u64) -> Scenario {
        Scenario {
            profile,
            disk: None,
            state: State::Fresh,
            ports,
            tenants,
            cores_per_queue: 1,
            moves_ns: None,
            duration_ns,
            warmup_ns: duration_ns / 10,
            series_ns: None,
            groups: Vec::new(),
            wake_ns: Self::WAKE_NS,
            host: None,
            faults: Faults::default(),
            cost: CostModel::default(),
            seed: 1,
        }
    }

    /// How long all that is outstanding may be held by caps, at most.
    pub(crate) fn held_ns(&self) -> u64 {
        let requests: u64 = self.tenants.iter().map(Tenant::depth).sum();
        let largest = self.tenants.iter().map(|tenant| tenant.job.largest()).max().unwrap_or(0);
        let bytes = requests.saturating_mul(largest.into());
        let lasts_ns = |caps: &Caps, side, counted| {
            let amount = if counted == Counted::Bytes { bytes } else { requests };
            let lasts_ns = |cap: Cap| amount.saturating_mul(SECOND) / cap.per_second().max(1);
            caps.get(side, counted).map_or(0, lasts_ns)
        };
        let of_tenants = self.tenants.iter().map(|tenant| &tenant.caps);
        let of_groups = self.groups.iter().map(|group| &group.caps);
        let mut all_ns: u64 = 0;
        for caps in of_tenants.chain(of_groups) {
            for side in [Side::Both, Side::Reads, Side::Writes] {
                let both = [Counted::Requests, Counted::Bytes];
                all_ns = both
                    .into_iter()
                    .fold(all_ns, |sum, counted| sum.saturating_add(lasts_ns(caps, side, counted)));
            }
        }
        all_ns
    }

    /// The same on a host with as many hardware threads as there are ports.
    #[must_use]
    pub fn on(self, host: Host) -> Scenario {
        Scenario { host: Some(host), ..self }
    }

    /// Where ports are: on cores of one socket, if there is no host.
    pub fn topology(&self) -> Topology {
        self.host.as_ref().map_or_else(|| Topology::flat(self.ports), Host::topology)
    }

    /// The most requests that a port has live: the bound of its tags.
    pub fn tags(&self) -> usize {
        if self.moves_ns.is_some() {
            // Wherever they are placed; what a queue cannot take is put off.
            let all = self.tenants.iter().map(|tenant| tenant.depth() as usize).sum::<usize>();
            return all.min(self.profile.host.queue_entries.get() as usize);
        }
        let mut depths = vec![0; self.ports];
        for tenant in &self.tenants {
            tenant.threads.iter().for_each(|&port| depths[port] += tenant.job.depth as usize);
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// What a scheduler behind one lock is built with, for so many slots; it merges nothing.
    pub(crate) fn serial(&self, slots: u32) -> SerialConfig {
        let (ports, flows, tags) = (self.ports, self.flows(), self.tags());
        SerialConfig::new(ports, flows, tags).with(|config| config.slots = slots)
    }

    /// The most flows that there can be: one for each life, since the last requests of one are
    /// served in the next.
    pub fn flows(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.lives.len()).sum()
    }

    /// Whether it can be run; the cure, if it cannot.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let refuse = |what: String| Err(ScenarioError::Illegal(what));
        if self.ports == 0 || self.ports > MAX_CORES {
            return refuse(format!("{} ports: there must be 1 to {}", self.ports, MAX_CORES));
        }
        if self.moves_ns == Some(0) {
            return refuse(
                "moves_ns is 0: threads stay at least a nanosecond where they are".to_owned(),
            );
        }
        if self.wake_ns == 0 || self.wake_ns > WAKE_MOST_NS {
            return refuse(format!(
                "wake_ns is {}: waking another core takes 1 ns to 1 ms",
                self.wake_ns
            ));
        }
        if let Some(host) = &self.host {
            host.check(self.ports).or_else(refuse)?;
        }
        if self.warmup_ns >= self.duration_ns || self.series_ns == Some(0) {
            return refuse(
                "nothing to measure: the warm-up must end before the run, and an interval be above \
                 0".into(),
            );
        }
        let times = [self.duration_ns, self.moves_ns.unwrap_or(0), self.series_ns.unwrap_or(0)];
        if times.into_iter().any(|ns| ns >= LONGEST_NS) {
            return refuse(TOO_LONG.into());
        }
        for tenant in &self.tenants {
            tenant.check(self).or_else(|what| refuse(format!("tenant {}: {what}", tenant.name)))?;
        }
        if !(1..=MAX_CORES).contains(&self.cores_per_queue) {
            return refuse(format!(
                "{} cores share queues: there must be 1 to {}",
                self.cores_per_queue, MAX_CORES
            ));
        }
        // After the tenants were checked: `tags` counts by the ports of their threads.
        let (tags, entries) =
            (self.tags() * self.cores_per_queue, self.profile.host.queue_entries.get() as usize);
        if tags > entries {
            return refuse(format!(
                "{tags} requests on one set of queues, of which a queue of the device holds \
                 {entries}"
            ));
        }
        Ok(())
    }
}

/// The most cores that caches are modelled for: a word has a bit for each.
const MAX_CORES: usize = 64;
/// The longest that waking a core may take: requests behind one another, each of which waits for
/// that, must get through in the time that is left for it when a run ends.
const WAKE_MOST_NS: u64 = 1_000_000;
/// Beyond that nearly all requests go to one place.
const MOST_THOUSANDTHS: u32 = 10_000;
const TOO_LONG: &str = "a time of more than eighteen years";

impl Tenant {
    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let legal = |weight: u16| Weight::new(weight).is_some();
        if !legal(self.weight) || !self.reweights.iter().all(|&(_, weight)| legal(weight)) {
            return Err("weights are 1 to 10000".into());
        }
        if let Some(port) = self.threads.iter().find(|&&port| port >= scenario.ports) {
            return Err(format!("a thread on port {port} of {}", scenario.ports));
        }
        let Job { sizes, depth, burst, .. } = &self.job;
        let capacity = scenario.profile.host.capacity();
        if *depth == 0
            || sizes.is_empty()
            || sizes.iter().any(|&(bytes, often)| bytes == 0 || often == 0)
        {
            return Err("depth, sizes and how often they are chosen must be above 0".into());
        }
        if let Access::Zipf { thousandths } = self.job.access
            && !(1..=MOST_THOUSANDTHS).contains(&thousandths)
        {
            return Err("the exponent of Zipf's law is from 0.001 to 10".into());
        }
        if self.job.arrivals != Arrivals::Closed {
            if self.job.interval_ns == 0 {
                return Err("arrivals need their rate".into());
            }
            if self.job.think_ns > 0 || self.job.replay.is_some() {
                return Err("arrivals do not wait for answers: no pauses, and no trace".into());
            }
        }
        if u64::from(self.job.largest()) > capacity {
            return Err("a request larger than the device".into());
        }
        if burst.is_some_and(|burst| burst.on_ns == 0) {
            return Err("bursts that are never on".into());
        }
        let Job { think_ns, interval_ns, .. } = self.job;
        let pauses = burst.map_or([think_ns, interval_ns, 0, 0], |burst| {
            [think_ns, interval_ns, burst.on_ns, burst.off_ns]
        });
        if pauses.into_iter().any(|ns| ns >= LONGEST_NS) {
            return Err(TOO_LONG.into());
        }
        let ends = self.lives.iter().flat_map(|&(from, until)| [from, until]);
        if !ends.is_sorted_by(|a, b| a < b) {
            return Err("lives begin before they end, one after the other".into());
        }
        Ok(())
    }
}
