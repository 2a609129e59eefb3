//! The policies and scenarios of the experiments' tables.
//!
//! A scenario has the keys of a scenario file ([`scenario`](crate::scenario)) and those of
//! [`Extras`]. Any value may be an expression, which is a text that begins with `=`. A tenant with
//! the key `count` stands for that number of tenants, each with its own `number`, counted from 0.

use std::cell::OnceCell;
use std::path::Path;

use fairq_classic::nass::NassConfig;
use fairq_config::units::{Nanos, Size};
use fairq_core::d2fq::Ratio;
use fairq_core::kyber_fair::Totals;
use fairq_device::{DiskProfile, closed};
use fairq_sim::check::Check;
use fairq_sim::fact::{Fact, Moment};
use fairq_sim::policies::{
    AnySubject, D2fqParts, D2fqSubject, Kernel, KyberFairSubject, LinuxBfqConfig, MqfqParts,
    MqfqSerial, MqfqSubject, Scheduler, SerialSubject, SfqdSubject, SlotKind, TrackerKind,
    UnthrottleKind, VirtualTimeKind,
};
use fairq_sim::scenario::Scenario;
use fairq_sim::{Run, run};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value as Toml};

use super::keys::{self, Change};
use super::{Setting, go, go_by_thread};
use crate::host::chosen;
use crate::scenario::parse;

/// A scenario and a policy.
pub(super) struct Planned {
    pub(super) scenario: Scenario,
    policy: AnySubject,
    made: Made,
    run: OnceCell<Run>,
}

/// The way in which a run is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Under all checks.
    Usual,
    /// Under all checks, with a queue of the scheduler for each thread ([`go_by_thread`]).
    ByThread,
    /// Without checks, some of which visit every pair of flows.
    Unchecked,
    /// Only under the check that the device is never idle while a request waits.
    NeverIdle,
}

impl Planned {
    /// Plans a run of a policy on a scenario.
    pub(super) fn new(
        policy: Table,
        scenario: Table,
        setting: Setting<'_>,
    ) -> Result<Self, String> {
        let policy: PolicyTable = read(policy)?;
        let (scenario, extras) = built(scenario, setting)?;
        let made = match &extras {
            Extras { never_idle: true, .. } => Made::NeverIdle,
            Extras { unchecked: true, .. } => Made::Unchecked,
            _ if policy.by_thread => Made::ByThread,
            _ => Made::Usual,
        };
        Ok(Planned { policy: policy.subject(&scenario)?, scenario, made, run: OnceCell::new() })
    }

    /// The same run with one tenant alone, on its own cores or, if `is_packed`, on at most as many
    /// cores as it has threads.
    pub(super) fn alone(mut self, tenant: usize, is_packed: bool) -> Result<Self, String> {
        let scenario = &mut self.scenario;
        if tenant >= scenario.tenants.len() {
            return Err(format!("there is no tenant {tenant}"));
        }
        scenario.tenants = vec![scenario.tenants.swap_remove(tenant)];
        if is_packed {
            let threads = &mut scenario.tenants[0].threads;
            let first = threads.iter().copied().min().unwrap_or(0);
            threads.iter_mut().for_each(|port| *port -= first);
            scenario.ports = threads.iter().max().map_or(0, |port| port + 1);
            scenario.host = scenario.host.take().map(|host| host.machine.host(scenario.ports));
        }
        Ok(self)
    }

    /// Runs the scenario, unless it has been run; a broken law is an error.
    pub(super) fn run(&self, setting: Setting<'_>) -> Result<&Run, String> {
        if let Some(run) = self.run.get() {
            return Ok(run);
        }
        let run = match (self.made, self.policy) {
            (Made::ByThread, AnySubject::Serial(lock)) => {
                go_by_thread(lock, &self.scenario, setting)?
            }
            (Made::NeverIdle, AnySubject::KyberFair(tokens)) => {
                let scenario = setting.applied(&self.scenario)?;
                let checks: Vec<Box<dyn Check>> = vec![Box::new(NeverIdle)];
                let run = run(&scenario, &tokens, checks).map_err(|error| error.to_string())?;
                run.violation.as_ref().map_or(Ok(()), |violation| Err(violation.to_string()))?;
                run
            }
            (Made::Unchecked, policy) => {
                let scenario = setting.applied(&self.scenario)?;
                let policy = setting.policy(policy, &scenario)?;
                policy.measure(&scenario).map_err(|error| error.to_string())?
            }
            (_, policy) => go(policy, &self.scenario, setting)?,
        };
        Ok(self.run.get_or_init(|| run))
    }
}

/// The check that the device always has work while a request waits, once wake-ups have arrived.
struct NeverIdle;

impl Check for NeverIdle {
    fn name(&self) -> &'static str {
        "never idle"
    }

    fn see(&mut self, _now_ns: u64, fact: &Fact) -> Result<(), String> {
        match *fact {
            Fact::Settled(Moment {
                wakes_under_way: 0,
                staged: staged @ 1..,
                outstanding: 0,
                ..
            }) => Err(format!("{staged} wait and the device has nothing")),
            _ => Ok(()),
        }
    }
}

/// Keys of an experiment's scenario that a scenario file does not have.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Extras {
    /// Length of the intervals of the time series.
    series: Option<Nanos>,
    /// The least cost of a request, in bytes.
    least_cost: Option<u32>,
    /// Other values of the device's profile, by key.
    profile: Table,
    /// Whether a disk replaces the device.
    disk: bool,
    /// Whether the tenants are jobs of fio as NASS's authors run it.
    fio: bool,
    unchecked: bool,
    never_idle: bool,
}

const EXTRAS: [&str; 7] =
    ["series", "least-cost", "profile", "disk", "fio", "unchecked", "never-idle"];

fn built(mut table: Table, setting: Setting<'_>) -> Result<(Scenario, Extras), String> {
    let mut extras = Table::new();
    for key in EXTRAS {
        extras.extend(table.remove_entry(key));
    }
    let extras: Extras = read(extras)?;
    let tenants = table.get("tenant").and_then(Toml::as_array).into_iter().flatten();
    let like = |tenant: &Toml| tenant.get("like")?.as_str().map(str::to_owned);
    let proxies: Vec<Option<String>> = tenants.map(like).collect();
    let text = toml::to_string(&table).map_err(|error| error.to_string())?;
    let scenario = parse(&text, "experiment", Path::new(""));
    let mut scenario = scenario.map_err(|refusal| format!("{refusal}:\n{text}"))?;
    for (tenant, proxy) in scenario.tenants.iter_mut().zip(proxies) {
        if let Some(name) = proxy {
            setting.on_proxy(&name, &mut tenant.job)?;
        }
        if extras.fio {
            setting.on_fio(&mut tenant.job)?;
        }
    }
    for (key, value) in &extras.profile {
        keys::on_device(&mut scenario.profile, key, Change::To(value))?;
    }
    scenario.series_ns = extras.series.as_ref().map(|&Nanos(ns)| ns);
    scenario.cost.min_bytes = extras.least_cost.unwrap_or(scenario.cost.min_bytes);
    scenario.disk = extras.disk.then(DiskProfile::deskstar);
    Ok((scenario, extras))
}

fn read<T: DeserializeOwned>(table: Table) -> Result<T, String> {
    let shown = table.to_string();
    table.try_into().map_err(|error| format!("{error} in\n{shown}"))
}

/// A policy: its kind, and the keys that its kind has.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PolicyTable {
    kind: String,
    /// D; by default a number above all tenants' requests, because Linux does not limit the
    /// requests of a scheduler to those that the drive takes.
    slots: Option<u32>,
    threshold: Option<Size>,
    /// Parts of the paper's MQFQ: the computation of virtual time (`mindicator`, `scan` or `none`),
    /// the counter of slots (`tree`, `path`, `counter` or `bitmap`), and the period of polling.
    virtual_time: Option<String>,
    slot_kind: Option<String>,
    unthrottle: Option<Nanos>,
    serial: bool,
    /// D2FQ's H/L ratio; by default it begins at 256 and follows the weights.
    ratio: Option<u16>,
    tau_l: Option<Size>,
    tau_m: Option<Size>,
    /// The paper's D2FQ with a tracker: `sloppy`, `scan` or `mindicator`.
    tracker: Option<String>,
    /// Requests outstanding below which Kyber-fairness throttles no flow.
    busy: u32,
    /// Tokens of each period; by default they are predicted.
    tokens: Option<Size>,
    /// Linux's BFQ: the kernel, the processes of a group, the greatest budget in sectors.
    kernel: String,
    processes: usize,
    budget: u64,
    /// Whether each thread is a queue of its own ([`go_by_thread`]).
    by_thread: bool,
    /// Anticipation, by default on; merging of adjacent requests.
    waits: Option<bool>,
    merges: bool,
    /// Whether FlashFQ's cost of a read is the device's.
    cost_of_device: bool,
    /// The limits of NASS around a scheduler: `none`, `strict` (to the letter of its paper) or
    /// `ours`.
    nass: Option<String>,
    aggressiveness: Option<bool>,
    sequentiality: Option<bool>,
    idleness: Option<bool>,
    queue_length: Option<u32>,
}

const KERNELS: [(&str, Kernel); 3] =
    [("4.15", Kernel::V4_15), ("5.2", Kernel::V5_2), ("5.3", Kernel::V5_3)];
const TIMES: [(&str, VirtualTimeKind); 3] = [
    ("mindicator", VirtualTimeKind::Mindicator),
    ("scan", VirtualTimeKind::ArrayScan),
    ("none", VirtualTimeKind::None),
];
const SLOTS: [(&str, SlotKind); 4] = [
    ("tree", SlotKind::TokenTree),
    ("path", SlotKind::TokenPath),
    ("counter", SlotKind::AtomicCounter),
    ("bitmap", SlotKind::ScalableBitmap),
];
const TRACKERS: [(&str, TrackerKind); 3] = [
    ("sloppy", TrackerKind::Sloppy),
    ("scan", TrackerKind::Scan),
    ("mindicator", TrackerKind::Mindicator),
];

fn bytes(size: &Option<Size>) -> Option<u64> {
    size.as_ref().map(|&Size(bytes)| bytes)
}

impl PolicyTable {
    fn subject(&self, scenario: &Scenario) -> Result<AnySubject, String> {
        let slots = self.slots.unwrap_or(8192);
        let mqfq = MqfqSubject { slots, threshold: bytes(&self.threshold).unwrap_or(0) };
        let direct = D2fqSubject {
            ratio: self.ratio.map_or(Ratio::Dynamic { initial: 256 }, Ratio::Static),
            tau_l: bytes(&self.tau_l).unwrap_or(8 << 20),
            tau_m: bytes(&self.tau_m),
            strict_paper: self.kind == "d2fq-paper",
        };
        let scheduler = match self.kind.as_str() {
            "none" => return Ok(AnySubject::None),
            "sfqd" => return Ok(AnySubject::Sfqd(SfqdSubject { slots })),
            "mqfq" if self.serial => return Ok(AnySubject::MqfqSerial(MqfqSerial(mqfq))),
            "mqfq" => return Ok(AnySubject::Mqfq(mqfq)),
            "mqfq-paper" => return Ok(AnySubject::MqfqStrict(self.parts(mqfq)?)),
            "d2fq" | "d2fq-paper" => {
                return Ok(match &self.tracker {
                    None => AnySubject::D2fq(direct),
                    Some(name) => {
                        let tracker = chosen(&TRACKERS, "tracker", name)?;
                        AnySubject::D2fqParts(D2fqParts { direct, tracker })
                    }
                });
            }
            "kyber-fair" => {
                let predicted = Totals::between(16 << 20, 1 << 20, 1 << 38);
                let totals = bytes(&self.tokens).map_or(predicted, Totals::fixed);
                return Ok(AnySubject::KyberFair(KyberFairSubject { busy: self.busy, totals }));
            }
            "linux-cfq" => Scheduler::LinuxCfq,
            "cfq" => Scheduler::Cfq,
            "bfq" => Scheduler::Bfq,
            "flashfq" => Scheduler::FlashFq,
            "fiops" => Scheduler::Fiops,
            "linux-bfq" => Scheduler::LinuxBfq(LinuxBfqConfig {
                kernel: chosen(&KERNELS, "kernel", &self.kernel)?,
                processes: self.processes,
                budget: self.budget,
                cycles: LinuxBfqConfig::CYCLES,
                low_latency: false,
            }),
            other => return Err(format!("no policy is called {other}")),
        };
        Ok(AnySubject::Serial(self.limited(SerialSubject::new(scheduler, slots), scenario)?))
    }

    fn parts(&self, mqfq: MqfqSubject) -> Result<MqfqParts, String> {
        let usual = mqfq.parts();
        let polling = |&Nanos(period_ns): &Nanos| UnthrottleKind::Polling { period_ns };
        Ok(MqfqParts {
            virtual_time: or(&TIMES, "virtual-time", &self.virtual_time, usual.virtual_time)?,
            slot_kind: or(&SLOTS, "slot-kind", &self.slot_kind, usual.slot_kind)?,
            unthrottle: self.unthrottle.as_ref().map_or(usual.unthrottle, polling),
            serial: self.serial,
            ..usual
        })
    }

    /// A scheduler behind one lock with its options, and with NASS if there is any.
    fn limited(&self, lock: SerialSubject, on: &Scenario) -> Result<SerialSubject, String> {
        let lock = SerialSubject { waits: self.waits.unwrap_or(true), ..lock };
        let mut lock = if self.merges { lock.merging() } else { lock };
        if self.cost_of_device {
            lock.flashfq.request_bytes = closed::read_cost_bytes(&on.profile);
        }
        let nass = NassConfig::default().with(|config| {
            config.aggressiveness = self.aggressiveness.unwrap_or(true);
            config.sequentiality = self.sequentiality.unwrap_or(true);
            config.idleness = self.idleness.unwrap_or(true);
            config.queue_length = self.queue_length.unwrap_or(config.queue_length);
        });
        match self.nass.as_deref() {
            None | Some("none") => Ok(lock),
            Some("strict") => Ok(lock.limited_strictly(nass)),
            Some("ours") => Ok(lock.limited(nass)),
            Some(other) => Err(format!("no NASS is called {other}")),
        }
    }
}

/// The part with this name, or `usual` if no name is given.
fn or<T: Copy>(all: &[(&str, T)], key: &str, name: &Option<String>, usual: T) -> Result<T, String> {
    name.as_ref().map_or(Ok(usual), |name| chosen(all, key, name))
}
