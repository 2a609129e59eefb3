//! From configuration to running parts: opens devices, and builds policies for this machine.

use std::path::Path;
use std::sync::Arc;

use fairq_classic::registry;
use fairq_core::{Platform, Topology};
use fairq_host::device::any::{AnyDevice, DeviceSpec, Inherited};
use fairq_host::device::file::{self, FileSpec};
use fairq_host::device::nvme_soft::{self, BackingSpec, NvmeSoftSpec, Timing};
use fairq_host::device::paced::Pace;

use crate::device::{
    Backing, DeviceConfig, Direct, FileConfig, NvmeConfig, Poller, State, load_profile,
};
use crate::policy::PolicyConfig;
use crate::refusal::Refusal;
use crate::settings::{CpuList, complete_cpus};
use crate::units::{exact_size, show_count, show_duration};

pub use fairq_classic::registry::{Shape, WithPolicy};

/// Default D if neither the operator nor the device sets one: the value that MQFQ's authors
/// measured on an SSD.
const DEFAULT_SLOTS: u32 = 64;
/// Least number of flows for which a policy has space: a server's tenants, and those that are added
/// later.
pub const FLOWS_MIN: usize = 64;

/// Builds the policy on a platform and passes it to `with`.
pub fn with_policy<P: Platform, W: WithPolicy>(
    config: &PolicyConfig,
    mut shape: Shape,
    with: W,
) -> Result<W::Output, Refusal> {
    shape.flows = shape.flows.max(FLOWS_MIN);
    registry::with::<P, W>(config.name(), &config.keys, &shape, with)
        .map_err(|error| Refusal::new(format!("policy {}: {error}", config.name())))
}

/// The socket and core of each shard's CPU, from sysfs.
pub fn topology(cpus: &[usize]) -> Topology {
    let number = |cpu: usize, name: &str| -> Option<u16> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        std::fs::read_to_string(Path::new(&path)).ok()?.trim().parse().ok()
    };
    let place = |&cpu: &usize| Some((number(cpu, "physical_package_id")?, number(cpu, "core_id")?));
    match cpus.iter().map(place).collect::<Option<Vec<_>>>() {
        Some(places) => Topology::new(places),
        // If a CPU's place is unknown there is no tree of sockets and cores: all CPUs count as
        // equally near.
        None => Topology::flat(cpus.len()),
    }
}

/// The CPUs that this process may use.
pub fn available_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    // The call fails (EINVAL) if the kernel's mask is larger than this set.
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// `1 shard`, `2 shards`.
pub fn shards_in_words(count: usize) -> String {
    if count == 1 { "1 shard".into() } else { format!("{count} shards") }
}

/// The CPU of each shard, from flags.
pub fn shard_cpus(shards: Option<u32>, cpus: Option<&CpuList>) -> Result<Vec<usize>, Refusal> {
    complete_cpus(shards, cpus, &available_cpus())
}

/// The specification of a file for the device; a missing file is made only if `create` is set.
pub fn file_spec(file: FileConfig) -> FileSpec {
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
        let (profile, slowdown) = (load_profile(name)?, config.slowdown);
        Ok::<_, Refusal>(Timing { profile, state, slowdown })
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
    /// The shared file, if there is one.
    pub fn shared_file(&self) -> Option<&FileConfig> {
        match self {
            DeviceConfig::File { file, .. } => file.as_ref(),
            DeviceConfig::NvmeSoft(NvmeConfig { backing: Backing::File { file, .. }, .. }) => {
                Some(file)
            }
            _ => None,
        }
    }

    /// Whether the device has shared storage for tenants without files of their own.
    pub fn has_shared_file(&self) -> bool {
        !matches!(self, DeviceConfig::File { file: None, .. })
    }

    /// Whether the device is in memory, so that its data are lost when the server ends.
    pub fn is_in_memory(&self) -> bool {
        self.has_shared_file() && self.shared_file().is_none()
    }

    /// Whether polling alone finds its completions, like [`fairq_host::device::Device::is_polled`]
    /// of the open device.
    pub fn is_polled(&self) -> bool {
        match self {
            DeviceConfig::File { .. } => false,
            // Completions of a file are events on the ring of the controller's poller. With `core`
            // the poller is a thread of its own, so that shards find all completions by polling.
            DeviceConfig::NvmeSoft(NvmeConfig {
                backing: Backing::File { .. }, poller, ..
            }) => *poller == Poller::Core,
            _ => true,
        }
    }

    /// Opens the device.
    ///
    /// `own` are the tenants' own files. They are numbered in order, after the shared file, which
    /// is number 0.
    pub fn open(&self, own: Vec<FileConfig>) -> anyhow::Result<Arc<AnyDevice>> {
        self.open_after(own, Inherited::default())
    }

    /// Like [`open`](Self::open), with open files of the previous program in this process.
    pub fn open_after(
        &self,
        own: Vec<FileConfig>,
        left: Inherited,
    ) -> anyhow::Result<Arc<AnyDevice>> {
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
        Ok(Arc::new(spec.open_after(left)?))
    }

    /// Default D: the parallelism of a paced device, or a controller's window; 64 otherwise.
    pub fn default_slots(&self) -> u32 {
        match self {
            // A parallelism of 0 is no limit, so no D follows from it.
            DeviceConfig::Paced { parallelism, .. } if *parallelism > 0 => *parallelism,
            DeviceConfig::NvmeSoft(config) => config.window.into(),
            _ => DEFAULT_SLOTS,
        }
    }

    /// A short description of the device.
    pub fn describe(&self) -> String {
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
                let like = match config.slowdown {
                    1 => like,
                    slowdown => format!("{like}, {slowdown} times slower"),
                };
                let arbiter = if config.wrr { "weighted round robin" } else { "round robin" };
                format!("nvme-soft over {backing}{like} (window {}, {arbiter})", config.window)
            }
        }
    }
}
