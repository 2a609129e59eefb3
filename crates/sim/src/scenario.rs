//! Scenarios: the tenants of a device, their requests, and the cores that submit them. A scenario
//! with a policy and a seed determines a run.

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
    /// A disk in place of the device of the profile, with the disk's own queue and size.
    pub disk: Option<DiskProfile>,
    /// The device's state at the start of the run.
    pub state: State,
    /// Number of cores; each has a port.
    pub ports: usize,
    /// Number of consecutive cores that share a set of submission queues; with 1 each core has its
    /// own.
    pub cores_per_queue: usize,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// The groups of tenants, by number; a policy without groups ignores them.
    pub groups: Vec<Group>,
    /// Period, in nanoseconds, after which the operating system places the threads anew, evenly
    /// over the cores and otherwise at random; outstanding requests complete on the core that
    /// submitted them. `None`: each thread stays on the core that its tenant names.
    pub moves_ns: Option<u64>,
    /// Time at which tenants stop submitting, in nanoseconds. Requests submitted by then are still
    /// served.
    pub duration_ns: u64,
    /// Start of the measurement, in nanoseconds.
    pub warmup_ns: u64,
    /// Length of the intervals of the time series, in nanoseconds; `None` for no series.
    pub series_ns: Option<u64>,
    /// Time to wake another core (an inter-processor interrupt), in nanoseconds. A host has times
    /// of its own.
    pub wake_ns: u64,
    /// The host, whose CPUs take time; `None`: only the device takes time.
    pub host: Option<Host>,
    /// Faults of the device.
    pub faults: Faults,
    /// The costs of requests; the policy is built with the same costs.
    pub cost: CostModel,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// A tenant, and the threads that submit its requests.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Its weight, 1 to 10,000.
    pub weight: u16,
    /// The core of each of its threads.
    pub threads: Vec<usize>,
    /// The job of each thread.
    pub job: Job,
    /// Start and end of each time in which the tenant is present (a *life*), in nanoseconds. At the
    /// start a flow is added to the policy, and at the end it is removed, so each life has a flow
    /// of its own.
    pub lives: Vec<(u64, u64)>,
    /// Changes of its weight: time in nanoseconds, and new weight.
    pub reweights: Vec<(u64, u16)>,
    /// Latency target of its requests; a policy without targets ignores it.
    pub target: Option<Target>,
    /// Its group and reservation; a policy without groups ignores them.
    pub share: Share,
    /// Its caps; a policy without caps ignores them.
    pub caps: Caps,
}

/// The job of a thread. Usually a closed loop, as in fio: the thread keeps a number of requests
/// outstanding and submits the next one when one completes.
#[derive(Clone, Debug)]
pub struct Job {
    /// Sizes in bytes, each with its relative frequency.
    pub sizes: Vec<(u32, u32)>,
    /// Percentage of reads, 0 to 100.
    pub read_percent: u32,
    /// The addresses of requests.
    pub access: Access,
    /// The most outstanding requests of a thread.
    pub depth: u32,
    /// The event that makes the thread submit.
    pub arrivals: Arrivals,
    /// The pause between a request's completion and the next submission, in nanoseconds.
    pub think_ns: u64,
    /// The least time between two requests of a thread, in nanoseconds, or 0 for no limit; in an
    /// open loop the mean time.
    pub interval_ns: u64,
    /// Bursts: alternating times with and without requests; `None` for requests at all times.
    pub burst: Option<Burst>,
    /// A trace that gives operation, address and length, in place of `sizes`, `read_percent` and
    /// `access`. The tenant's threads replay its requests in turn.
    pub replay: Option<Replay>,
}

/// The event that makes a thread submit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arrivals {
    /// A completion, so the load follows the device.
    #[default]
    Closed,
    /// The clock: a request arrives once every interval, independent of the device. If `depth`
    /// requests are outstanding, it waits, and its latency counts from its arrival.
    Even,
    /// The clock, with random intervals of exponential distribution (a Poisson process).
    Poisson,
}

/// A trace, and how it is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The requests.
    pub trace: Trace,
    /// Whether requests wait for their times, counted from the tenant's start; otherwise they are
    /// submitted as soon as fewer than `depth` are outstanding.
    pub keeps_time: bool,
}

/// The addresses of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Anywhere on the device.
    Random,
    /// Anywhere, but some places more often than others: the place of rank k with a frequency in
    /// proportion to k^-(`thousandths` / 1000) (Zipf's law).
    Zipf {
        /// The exponent in thousandths, above 0.
        thousandths: u32,
    },
    /// Consecutive addresses, from a start that differs between threads.
    Sequential,
}

/// Alternating times with and without requests, from time 0 on.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Length of the time with requests, in nanoseconds.
    pub on_ns: u64,
    /// Length of the time without requests, in nanoseconds.
    pub off_ns: u64,
}

/// Faults of the device.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Number of a million commands that fail.
    pub errors_per_million: u32,
    /// Start and end of each time in which the device completes nothing, in nanoseconds.
    pub stalls: Vec<(u64, u64)>,
}

/// The reason why a scenario cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The values do not fit together.
    #[error("{0}")]
    Illegal(String),
    /// The policy cannot be built.
    #[error(transparent)]
    Policy(#[from] fairq_core::ConfigError),
}

/// A microsecond in nanoseconds.
pub const US: u64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: u64 = 1_000_000;
/// A second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// Period, in nanoseconds, after which threads that are not pinned are placed anew in the runs of
/// D2FQ's Figure 15.
///
/// It follows from the balancing of Linux (`sd_init` and
/// Documentation/scheduler/sched-domains.rst): an idle CPU searches for a thread to take over once
/// every n milliseconds, where n is the number of CPUs of its domain, 8 on the paper's machine, and
/// finds one if another CPU has two runnable threads. 750 K requests a second at 3.9 us
/// ([`crate::host`]) keep eight CPUs busy 37 % of the time and each of 16 threads 18 %: 21 % of the
/// time at least one of the seven other CPUs has two runnable threads. So the eight CPUs, which are
/// idle 63 % of the time, take over 132 threads a second in all, and each thread moves every 120 ms
/// on average.
pub const MOVES_NS: u64 = 120 * MS;

/// The bound of all times in a scenario, some eighteen years, so that sums of a few times do not
/// overflow.
const LONGEST_NS: u64 = 1 << 59;

impl Job {
    /// Random reads of one size in a closed loop without pauses.
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

    /// Its largest request, in bytes.
    pub fn largest(&self) -> u32 {
        if let Some(replay) = &self.replay {
            return replay.trace.asked().iter().map(|asked| asked.length).max().unwrap_or(0);
        }
        self.sizes.iter().map(|size| size.0).max().unwrap_or(0)
    }
}

impl Tenant {
    /// A tenant that is present from beginning to end.
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

    /// The same tenant, present from `from_ns` until the end.
    #[must_use]
    pub fn from(mut self, from_ns: u64) -> Tenant {
        self.lives = vec![(from_ns, u64::MAX)];
        self
    }

    /// The most outstanding requests of the tenant.
    pub fn depth(&self) -> u64 {
        self.threads.len() as u64 * u64::from(self.job.depth)
    }
}

impl Scenario {
    /// The capacity of its device, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.disk.as_ref().map_or_else(|| self.profile.host.capacity(), DiskProfile::capacity)
    }

    /// Default time to wake another core, in nanoseconds. A guess between the times of an interrupt
    /// within a socket and to another socket: about a microsecond.
    pub const WAKE_NS: u64 = US;

    /// A scenario of these tenants on a fresh device, which lasts for `duration_ns`; the
    /// measurement begins after a tenth of that time.
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

    /// The longest time for which caps may hold all outstanding requests, in nanoseconds.
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

    /// The same scenario on a host that has at least as many hardware threads as the scenario has
    /// ports.
    #[must_use]
    pub fn on(self, host: Host) -> Scenario {
        Scenario { host: Some(host), ..self }
    }

    /// The places of the ports: on cores of one socket, if there is no host.
    pub fn topology(&self) -> Topology {
        self.host.as_ref().map_or_else(|| Topology::flat(self.ports), Host::topology)
    }

    /// The most live requests of a port: the bound of its tags.
    pub fn tags(&self) -> usize {
        if self.moves_ns.is_some() {
            // All threads may be placed on one port; submissions that a queue cannot take are
            // delayed.
            let all = self.tenants.iter().map(|tenant| tenant.depth() as usize).sum::<usize>();
            return all.min(self.profile.host.queue_entries.get() as usize);
        }
        let mut depths = vec![0; self.ports];
        for tenant in &self.tenants {
            tenant.threads.iter().for_each(|&port| depths[port] += tenant.job.depth as usize);
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// The configuration of a scheduler behind one lock with this many slots; it merges nothing.
    pub(crate) fn serial(&self, slots: u32) -> SerialConfig {
        let (ports, flows, tags) = (self.ports, self.flows(), self.tags());
        SerialConfig::new(ports, flows, tags).with(|config| config.slots = slots)
    }

    /// The most flows: one for each life, because the last requests of a life may be served in the
    /// next.
    pub fn flows(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.lives.len()).sum()
    }

    /// Returns an error with the cure if the scenario cannot be run.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let refuse = |what: String| Err(ScenarioError::Illegal(what));
        if self.ports == 0 || self.ports > MAX_CORES {
            return refuse(format!("{} ports: there must be 1 to {}", self.ports, MAX_CORES));
        }
        if self.moves_ns == Some(0) {
            return refuse(
                "moves_ns is 0: threads must stay on a core for at least 1 ns".to_owned(),
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
        // This follows the check of the tenants, because `tags` counts by the ports of their
        // threads, which must exist.
        let (tags, entries) =
            (self.tags() * self.cores_per_queue, self.profile.host.queue_entries.get() as usize);
        if tags > entries {
            return refuse(format!(
                "{tags} requests on one set of queues, but a queue of the device holds at most \
                 {entries}"
            ));
        }
        Ok(())
    }
}

/// The most cores that the caches can model: a word has a bit for each core.
const MAX_CORES: usize = 64;
/// The longest time to wake a core. The bound is this small so that many requests, each of which
/// waits for a wake-up after the one before it, still complete in the time after the end of
/// submissions (`CALM_NS`).
const WAKE_MOST_NS: u64 = 1_000_000;
/// With a larger exponent nearly all requests go to one place.
const MOST_THOUSANDTHS: u32 = 10_000;
const TOO_LONG: &str = "a time of more than eighteen years";

impl Tenant {
    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let legal = |weight: u16| Weight::new(weight).is_some();
        if !legal(self.weight) || !self.reweights.iter().all(|&(_, weight)| legal(weight)) {
            return Err("weights are 1 to 10000".into());
        }
        if let Some(port) = self.threads.iter().find(|&&port| port >= scenario.ports) {
            return Err(format!(
                "a thread is on port {port}, but there are {} ports",
                scenario.ports
            ));
        }
        let Job { sizes, depth, burst, .. } = &self.job;
        let capacity = scenario.profile.host.capacity();
        if *depth == 0
            || sizes.is_empty()
            || sizes.iter().any(|&(bytes, often)| bytes == 0 || often == 0)
        {
            return Err("depth, sizes and their frequencies must be above 0".into());
        }
        if let Access::Zipf { thousandths } = self.job.access
            && !(1..=MOST_THOUSANDTHS).contains(&thousandths)
        {
            return Err("the exponent of Zipf's law is from 0.001 to 10".into());
        }
        if self.job.arrivals != Arrivals::Closed {
            if self.job.interval_ns == 0 {
                return Err("arrivals by the clock need a rate".into());
            }
            if self.job.think_ns > 0 || self.job.replay.is_some() {
                return Err("arrivals by the clock cannot have think times or a trace".into());
            }
        }
        if u64::from(self.job.largest()) > capacity {
            return Err("a request larger than the device".into());
        }
        if burst.is_some_and(|burst| burst.on_ns == 0) {
            return Err("a burst needs a time with requests: `on` must be above 0".into());
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
            return Err("each life must begin after the last one has ended, and end later".into());
        }
        Ok(())
    }
}
