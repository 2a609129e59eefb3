//! From configuration to running parts: devices opened, policies built for the machine at hand.

use std::path::Path;
use std::sync::Arc;

use fairq_core::Topology;
use fairq_core::bfq::Budgets;
use fairq_core::cfq::TimeSlices;
use fairq_core::d2fq::{D2fq, D2fqConfig, Ratio, TrackerKind};
use fairq_core::fiops::VirtualIops;
use fairq_core::flashfq::Throttled;
use fairq_core::kyber::{Kyber, KyberConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig, Totals};
use fairq_core::mqfq::{Mqfq, MqfqConfig, SlotKind, UnthrottleKind, VirtualTimeKind};
use fairq_core::nass::Nass;
use fairq_core::none::NonePolicy;
use fairq_core::serial::{Serial, SerialConfig, SerialPolicy};
use fairq_core::sfqd::StartTime;
use fairq_core::{ConfigError, Platform, Policy};
use fairq_host::device::any::{AnyDevice, DeviceSpec};
use fairq_host::device::file::{self, FileSpec};
use fairq_host::device::nvme_soft::{self, BackingSpec, NvmeSoftSpec};
use fairq_host::device::paced::Pace;

use crate::config::device::{
    Backing, DeviceConfig, Direct, FileConfig, NvmeConfig, Poller, State, load_profile,
};
use crate::config::policy::PolicyConfig;
use crate::config::policy::name::PolicyName;
use crate::config::policy::serial::SerialKnobs;
use crate::config::policy::values;
use crate::config::{CpuList, complete_cpus};
use crate::refusal::Refusal;
use crate::units::{exact_size, show_count, show_duration};

/// D where neither the operator nor the device says: what the authors of MQFQ measured on an SSD.
const DEFAULT_SLOTS: u32 = 64;
/// Flows for which a policy has room at least: a server's tenants and those that may be added to
/// them.
pub(crate) const FLOWS_MIN: usize = 64;

/// What to do with a policy once it is built; a trait, because each policy is a type of its own.
pub(crate) trait WithPolicy {
    /// What comes of it.
    type Output;
    /// Does it.
    fn run<L: Policy>(self, policy: L, ports: Vec<L::Port>) -> Self::Output
    where
        L::Port: 'static;
}

/// What a policy is built for.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Where each shard runs.
    pub(crate) topology: Topology,
    /// Tenants.
    pub(crate) flows: usize,
    /// Live requests of each shard.
    pub(crate) tags: usize,
    /// D, if the policy's configuration does not say.
    pub(crate) slots: u32,
}

/// Builds the policy on a platform and does something with it.
pub(crate) fn with_policy<P: Platform, W: WithPolicy>(
    config: &PolicyConfig,
    shape: Shape,
    with: W,
) -> Result<W::Output, Refusal> {
    let flows = shape.flows.max(FLOWS_MIN);
    let slots = config.slots.unwrap_or(shape.slots);
    let ports = shape.topology.ports();
    let refuse = |error: &dyn std::fmt::Display| {
        Refusal::new(format!("policy {}: {error}", config.name.name()))
    };
    match config.name {
        PolicyName::None => {
            let built = NonePolicy::<P>::new(ports, flows, shape.tags);
            let (policy, ports) = built.map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
        PolicyName::Sfqd
        | PolicyName::Cfq
        | PolicyName::CfqNa
        | PolicyName::Bfq
        | PolicyName::BfqNa
        | PolicyName::FlashFq
        | PolicyName::Fiops
        | PolicyName::NassCfq
        | PolicyName::NassBfq
        | PolicyName::NassFlashFq
        | PolicyName::NassFiops
        | PolicyName::NassMqfq => {
            let bounds = SerialConfig {
                ports,
                flows,
                tags: shape.tags,
                slots,
                cost: config.cost,
                merge_bytes: config.merge_bytes,
            };
            let built = serial(config, &bounds)
                .and_then(|scheduler| Serial::<_, P>::with_policy(scheduler, &bounds));
            let (policy, ports) = built.map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
        PolicyName::Mqfq | PolicyName::MqfqSerial => {
            let mut mqfq = MqfqConfig::new(shape.topology, flows, shape.tags);
            mqfq.slots = slots;
            mqfq.threshold_bytes = config.threshold.unwrap_or(mqfq.threshold_bytes);
            mqfq.threshold_follows = config.threshold.is_none();
            mqfq.cost = config.cost;
            mqfq.serial = config.name == PolicyName::MqfqSerial;
            mqfq.virtual_time = match config.virtual_time {
                values::VirtualTime::Mindicator => VirtualTimeKind::Mindicator,
                values::VirtualTime::Scan => VirtualTimeKind::ArrayScan,
            };
            mqfq.slot_kind = match config.slot_kind {
                values::SlotKind::Tree => SlotKind::TokenTree,
                values::SlotKind::Counter => SlotKind::AtomicCounter,
                values::SlotKind::Bitmap => SlotKind::ScalableBitmap,
            };
            mqfq.unthrottle = match config.unthrottle {
                values::Unthrottle::Wheel => UnthrottleKind::Wheel,
                values::Unthrottle::Poll(period_ns) => UnthrottleKind::Polling { period_ns },
            };
            let (policy, ports) = Mqfq::<P>::new(mqfq).map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
        PolicyName::D2fq => {
            let d2fq = d2fq(config, shape.topology, flows, shape.tags);
            let (policy, ports) = D2fq::<P>::new(d2fq).map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
        PolicyName::Kyber => {
            let mut kyber = KyberConfig::new(ports, flows, shape.tags);
            [kyber.read_target_ns, kyber.write_target_ns, kyber.discard_target_ns] =
                kyber_targets(config);
            kyber.depths = kyber_depths(config);
            kyber.merge_bytes = config.merge_bytes;
            let (policy, ports) = Kyber::<P>::new(&kyber).map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
        PolicyName::KyberFair => {
            let mut fair = KyberFairConfig::new(ports, flows, shape.tags);
            fair.cost = config.cost;
            fair.measured_writes = config.measured_writes;
            fair.period_ns = config.period_ns.unwrap_or(fair.period_ns);
            fair.busy = kyber_fair_busy(config, shape.slots);
            fair.patience = config.patience.unwrap_or(fair.patience);
            fair.tokens = config.tokens.map_or(fair.tokens, Totals::fixed);
            fair.merge_bytes = config.merge_bytes;
            let (policy, ports) = KyberFair::<P>::new(&fair).map_err(|error| refuse(&error))?;
            Ok(with.run(policy, ports))
        }
    }
}

/// D2FQ as it is configured.
pub(crate) fn d2fq(
    config: &PolicyConfig,
    ports: Topology,
    flows: usize,
    tags: usize,
) -> D2fqConfig {
    let keys = &config.d2fq;
    let defaults = D2fqConfig::new(ports, flows, tags);
    D2fqConfig {
        tau_l: keys.tau_l,
        tau_m: keys.tau_m,
        tau_w: keys.tau_w,
        grace_ns: keys.grace_ns.unwrap_or(defaults.grace_ns),
        period_ns: keys.period_ns.unwrap_or(defaults.period_ns),
        ratio: match (keys.hl, keys.initial) {
            (values::Hl::Static(ratio), _) => Ratio::Static(ratio),
            (values::Hl::Dynamic, Some(initial)) => Ratio::Dynamic { initial },
            (values::Hl::Dynamic, None) => defaults.ratio,
        },
        tracker: match keys.tracker {
            values::Tracker::Sloppy => TrackerKind::Sloppy,
            values::Tracker::Scan => TrackerKind::Scan,
            values::Tracker::Mindicator => TrackerKind::Mindicator,
        },
        strict_paper: keys.strict_paper,
        urgent_percent: keys.urgent_percent,
        cost: config.cost,
        ..defaults
    }
}

/// The scheduler that is to run behind one lock.
fn serial(
    config: &PolicyConfig,
    bounds: &SerialConfig,
) -> Result<Box<dyn SerialPolicy>, ConfigError> {
    let SerialKnobs { cfq, bfq, flashfq, nass } = &config.serial;
    let inner: Box<dyn SerialPolicy> = match config.name {
        PolicyName::Cfq | PolicyName::CfqNa | PolicyName::NassCfq => {
            Box::new(TimeSlices::new(bounds, cfq)?)
        }
        PolicyName::Bfq | PolicyName::BfqNa | PolicyName::NassBfq => {
            Box::new(Budgets::new(bounds, bfq)?)
        }
        PolicyName::FlashFq | PolicyName::NassFlashFq => Box::new(Throttled::new(bounds, flashfq)?),
        PolicyName::Fiops | PolicyName::NassFiops => Box::new(VirtualIops::new(bounds)),
        _ => Box::new(StartTime::new(bounds)),
    };
    Ok(if config.name.is_limited() {
        Box::new(Nass::new(inner, bounds, &nass.of_window(bounds.slots))?)
    } else {
        inner
    })
}

/// A policy in a few words: `mqfq D=64 T=auto`.
pub(crate) fn describe_policy(config: &PolicyConfig, device_slots: u32) -> String {
    let slots = config.slots.unwrap_or(device_slots);
    let name = config.name.name();
    let merge = match config.merge_bytes {
        0 => String::new(),
        bytes => format!(" merge={}", exact_size(bytes.into())),
    };
    match config.name {
        PolicyName::None => name.into(),
        PolicyName::FlashFq | PolicyName::NassFlashFq => {
            format!(
                "{name} D={slots} T={}{merge}",
                exact_size(config.serial.flashfq.threshold_bytes)
            )
        }
        PolicyName::Mqfq | PolicyName::MqfqSerial => {
            format!("{name} D={slots} T={}", config.threshold.map_or("auto".into(), exact_size))
        }
        PolicyName::D2fq => {
            let d2fq = d2fq(config, Topology::flat(1), 1, 1);
            let ratio = match d2fq.ratio {
                Ratio::Dynamic { .. } => "dynamic".into(),
                Ratio::Static(ratio) => format!("static-{ratio}"),
            };
            let paper = if d2fq.strict_paper { " strict-paper" } else { "" };
            let tau_l = d2fq.tau_l.map_or("auto".into(), exact_size);
            format!("{name} tau-l={tau_l} hl={ratio}{paper}")
        }
        PolicyName::Kyber => {
            let [read, write, _] = kyber_targets(config).map(|ns| show_duration(ns as f64));
            format!("{name} read={read} write={write}{merge}")
        }
        PolicyName::KyberFair => {
            let period = config.period_ns.unwrap_or(KyberFairConfig::new(1, 1, 1).period_ns);
            let busy = kyber_fair_busy(config, device_slots);
            format!("{name} period={} busy={busy}{merge}", show_duration(period as f64))
        }
        _ => format!("{name} D={slots}{merge}"),
    }
}

/// What T of mqfq begins with, and follows the device from, if nobody says.
pub(crate) fn default_threshold() -> u64 {
    MqfqConfig::new(Topology::flat(1), 1, 1).threshold_bytes
}

/// The latency targets of reads, writes and discards.
pub(crate) fn kyber_targets(config: &PolicyConfig) -> [u64; 3] {
    let default = KyberConfig::new(1, 1, 1);
    let [read, write, discard] = config.targets;
    [
        read.unwrap_or(default.read_target_ns),
        write.unwrap_or(default.write_target_ns),
        discard.unwrap_or(default.discard_target_ns),
    ]
}

/// The most reads, writes, discards and others on the device.
pub(crate) fn kyber_depths(config: &PolicyConfig) -> [u32; 4] {
    let default = KyberConfig::new(1, 1, 1).depths;
    std::array::from_fn(|domain| config.depths[domain].unwrap_or(default[domain]))
}

/// Half of what the device takes: so that tenants who keep no more than that outstanding still get
/// their shares.
pub(crate) fn kyber_fair_busy(config: &PolicyConfig, device_slots: u32) -> u32 {
    config.busy.unwrap_or((device_slots / 2).max(1))
}

/// The socket and core of each shard's CPU, as the kernel tells them.
pub(crate) fn topology(cpus: &[usize]) -> Topology {
    let number = |cpu: usize, name: &str| -> Option<u16> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        std::fs::read_to_string(Path::new(&path)).ok()?.trim().parse().ok()
    };
    let place = |&cpu: &usize| Some((number(cpu, "physical_package_id")?, number(cpu, "core_id")?));
    match cpus.iter().map(place).collect::<Option<Vec<_>>>() {
        Some(places) => Topology::new(places),
        None => Topology::flat(cpus.len()),
    }
}

/// The CPUs that this process may use.
pub(crate) fn available_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// `1 shard`, `2 shards`.
pub(crate) fn shards_in_words(count: usize) -> String {
    if count == 1 { "1 shard".into() } else { format!("{count} shards") }
}

/// The CPU of each shard, as flags say.
pub(crate) fn shard_cpus(
    shards: Option<u32>,
    cpus: Option<&CpuList>,
) -> Result<Vec<usize>, Refusal> {
    complete_cpus(shards, cpus, &available_cpus())
}

/// A file as the device opens it; one that is not there is only made if that is asked for.
pub(crate) fn file_spec(file: FileConfig) -> FileSpec {
    let FileConfig { path, size, create, store } = file;
    FileSpec { path, create_size: size, create, store }
}

fn pass_by(direct: Direct) -> file::Direct {
    match direct {
        Direct::Auto => file::Direct::Auto,
        Direct::On => file::Direct::On,
        Direct::Off => file::Direct::Off,
    }
}

fn nvme_spec(config: &NvmeConfig, own: Vec<FileConfig>) -> Result<NvmeSoftSpec, Refusal> {
    let backing = match &config.backing {
        &Backing::Null { size } => BackingSpec::Null { size },
        &Backing::Ram { size } => BackingSpec::Ram { size },
        Backing::File { file, direct } => {
            let files = std::iter::once(file.clone()).chain(own).map(file_spec).collect();
            BackingSpec::File { files, direct: pass_by(*direct) }
        }
    };
    let timing = |(name, state): &(String, State)| {
        let state = match state {
            State::Fresh => fairq_device::State::Fresh,
            State::Steady => fairq_device::State::Steady,
        };
        Ok::<_, Refusal>((load_profile(name)?, state))
    };
    let poller = match config.poller {
        Poller::Inline => nvme_soft::Poller::Inline,
        Poller::Core => nvme_soft::Poller::Core,
    };
    let timing = config.profile.as_ref().map(timing).transpose()?;
    let &NvmeConfig { window, queues, wrr, .. } = config;
    Ok(NvmeSoftSpec { backing, timing, window, queues, wrr, poller })
}

impl DeviceConfig {
    /// The file that is shared, if it is one.
    pub(crate) fn shared_file(&self) -> Option<&FileConfig> {
        match self {
            DeviceConfig::File { file, .. } => file.as_ref(),
            DeviceConfig::NvmeSoft(NvmeConfig { backing: Backing::File { file, .. }, .. }) => {
                Some(file)
            }
            _ => None,
        }
    }

    /// Whether tenants without a file of their own have something to share.
    pub(crate) fn has_shared_file(&self) -> bool {
        !matches!(self, DeviceConfig::File { file: None, .. })
    }

    /// Whether polling is all that its completions need, as
    /// [`fairq_host::device::Device::is_polled`] says of it when it is open.
    pub(crate) fn is_polled(&self) -> bool {
        match self {
            DeviceConfig::File { .. } => false,
            DeviceConfig::NvmeSoft(NvmeConfig {
                backing: Backing::File { .. }, poller, ..
            }) => *poller == Poller::Core,
            _ => true,
        }
    }

    /// Opens the device.
    ///
    /// `own` are the files of tenants, which follow the shared one.
    pub(crate) fn open(&self, own: Vec<FileConfig>) -> anyhow::Result<Arc<AnyDevice>> {
        let spec = match self {
            &DeviceConfig::Null { size } => DeviceSpec::Null { size },
            &DeviceConfig::Ram { size } => DeviceSpec::Ram { size },
            &DeviceConfig::Paced { size, iops, bandwidth, latency_ns, parallelism } => {
                DeviceSpec::Paced { size, pace: Pace { iops, bandwidth, latency_ns, parallelism } }
            }
            DeviceConfig::File { file, direct } => {
                let shared = file.iter().cloned().collect::<Vec<_>>();
                let files = shared.into_iter().chain(own).map(file_spec).collect();
                DeviceSpec::File { files, direct: pass_by(*direct) }
            }
            DeviceConfig::NvmeSoft(config) => {
                DeviceSpec::NvmeSoft(Box::new(nvme_spec(config, own)?))
            }
        };
        Ok(Arc::new(spec.open()?))
    }

    /// D if nobody says: what fits inside a paced device or a controller's window, 64 otherwise.
    pub(crate) fn default_slots(&self) -> u32 {
        match self {
            DeviceConfig::Paced { parallelism, .. } if *parallelism > 0 => *parallelism,
            DeviceConfig::NvmeSoft(config) => config.window.into(),
            _ => DEFAULT_SLOTS,
        }
    }

    /// The device in a few words.
    pub(crate) fn describe(&self) -> String {
        match self {
            DeviceConfig::Null { size } => format!("null {}", exact_size(*size)),
            DeviceConfig::Ram { size } => format!("ram {}", exact_size(*size)),
            DeviceConfig::Paced { size, iops, bandwidth, latency_ns, parallelism } => {
                let mut limits = Vec::new();
                if *iops > 0 {
                    limits.push(format!("{} IOPS", show_count(*iops as f64)));
                }
                if *bandwidth > 0 {
                    limits.push(format!("{}/s", exact_size(*bandwidth)));
                }
                if *latency_ns > 0 {
                    limits.push(show_duration(*latency_ns as f64));
                }
                if *parallelism > 0 {
                    limits.push(format!("parallelism {parallelism}"));
                }
                format!("paced {} ({})", exact_size(*size), limits.join(", "))
            }
            DeviceConfig::File { file: Some(file), .. } => format!("file {}", file.path.display()),
            DeviceConfig::File { file: None, .. } => "files of the tenants".into(),
            DeviceConfig::NvmeSoft(config) => {
                let backing = match &config.backing {
                    Backing::Null { size } => format!("null {}", exact_size(*size)),
                    Backing::Ram { size } => format!("ram {}", exact_size(*size)),
                    Backing::File { file, .. } => format!("file {}", file.path.display()),
                };
                let like = config
                    .profile
                    .as_ref()
                    .map_or(String::new(), |(name, _)| format!(" like {name}"));
                let arbiter = if config.wrr { "weighted round robin" } else { "round robin" };
                format!("nvme-soft over {backing}{like} (window {}, {arbiter})", config.window)
            }
        }
    }
}
