//! `--device KIND,key=value,…` and `[device]`: the store behind the tenants.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fairq_device::Profile;
use fairq_device::profile::Wrr;
use fairq_host::device::nvme_soft;
use serde::{Deserialize, Serialize};

use crate::files::read_text;
use crate::keys;
use crate::pairs::{self, Pair};
use crate::refusal::Refusal;
use crate::units::{Bandwidth, Count, Nanos, Size, exact_size};

/// The defaults of a paced device: a small SATA-like drive that any machine's CPU can fill.
/// Requests a second.
pub const PACED_IOPS: u64 = 20_000;
/// Bytes a second; see [`PACED_IOPS`].
pub const PACED_BANDWIDTH: u64 = 400 << 20;
/// Latency in nanoseconds; see [`PACED_IOPS`].
pub const PACED_LATENCY_NS: u64 = 100_000;
/// Concurrent requests; see [`PACED_IOPS`].
pub const PACED_PARALLELISM: u32 = 32;
/// Default size of a device in memory, in bytes; pages are allocated when they are first written.
pub const MEMORY_SIZE: u64 = 4 << 30;
/// The largest factor by which a software controller can be slower than its profile.
const SLOWDOWN_MAX: u32 = 100_000;
/// Sizes and offsets are multiples of this number of bytes, the block that clients address.
pub const SECTOR: u64 = 512;

/// The kind of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Stores nothing, completes at once.
    Null,
    /// Memory.
    Ram,
    /// Memory, with configured limits of its speed.
    Paced,
    /// A file or block device.
    File,
    /// A software NVMe controller with memory or a file behind it.
    NvmeSoft,
}

impl Kind {
    /// The keys that this kind takes.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Kind::Null | Kind::Ram => &["size"],
            Kind::Paced => &["size", "iops", "bandwidth", "latency", "parallelism"],
            Kind::File => &["path", "size", "create", "direct"],
            Kind::NvmeSoft => &[
                "backing", "size", "create", "direct", "profile", "state", "slowdown", "window",
                "queues", "wrr", "poller",
            ],
        }
    }

    /// The kind's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Null => "null",
            Kind::Ram => "ram",
            Kind::Paced => "paced",
            Kind::File => "file",
            Kind::NvmeSoft => "nvme-soft",
        }
    }
}

/// The thread that polls a software controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Poller {
    /// The shards, between other work.
    #[default]
    Inline,
    /// A thread of its own.
    Core,
}

/// The earlier writes of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No writes.
    #[default]
    Fresh,
    /// The whole device, at random.
    Steady,
}

/// Whether requests bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direct {
    /// If the file system allows it.
    #[default]
    Auto,
    /// Always; an error if the file system does not allow it.
    #[serde(alias = "always")]
    On,
    /// Through the page cache.
    #[serde(alias = "never")]
    Off,
}

/// The device's keys as configured, without defaults.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct DeviceTable {
    pub kind: Option<Kind>,
    pub size: Option<Size>,
    pub iops: Option<Count>,
    pub bandwidth: Option<Bandwidth>,
    pub latency: Option<Nanos>,
    pub parallelism: Option<u32>,
    pub path: Option<PathBuf>,
    pub create: Option<bool>,
    pub direct: Option<Direct>,
    pub backing: Option<String>,
    pub profile: Option<String>,
    pub state: Option<State>,
    pub slowdown: Option<u32>,
    pub window: Option<u16>,
    pub queues: Option<u16>,
    pub wrr: Option<bool>,
    pub poller: Option<Poller>,
}

/// The complete device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields are keys, which docs/REFERENCE.md describes")]
pub enum DeviceConfig {
    /// See [`Kind::Null`].
    Null { size: u64 },
    /// See [`Kind::Ram`].
    Ram { size: u64 },
    /// See [`Kind::Paced`].
    Paced { size: u64, iops: u64, bandwidth: u64, latency_ns: u64, parallelism: u32 },
    /// See [`Kind::File`]. There may be no shared file if tenants have files of their own.
    File { file: Option<FileConfig>, direct: Direct },
    /// See [`Kind::NvmeSoft`].
    NvmeSoft(NvmeConfig),
}

/// A software NVMe controller.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields are keys, which docs/REFERENCE.md describes")]
pub struct NvmeConfig {
    pub backing: Backing,
    /// The drive whose speed it has: a built-in profile's name or a file, and the drive's earlier
    /// writes.
    pub profile: Option<(String, State)>,
    /// The factor by which it is slower than that drive.
    pub slowdown: u32,
    pub window: u16,
    pub queues: u16,
    pub wrr: bool,
    pub poller: Poller,
}

/// The storage behind a software controller.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields are keys, which docs/REFERENCE.md describes")]
pub enum Backing {
    /// No storage.
    Null { size: u64 },
    /// Memory.
    Ram { size: u64 },
    /// A file or block device.
    File { file: FileConfig, direct: Direct },
}

/// One file of a file device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileConfig {
    /// Path of the file.
    pub path: PathBuf,
    /// Size that the file must have, in bytes; any size if `None`.
    pub size: Option<u64>,
    /// Whether a missing file is made, as a sparse one. The default is false, because the file
    /// system itself may be missing.
    pub create: bool,
    /// The name of the file's store. `None` is the store of the block device that holds the file.
    pub store: Option<String>,
}

impl FromStr for DeviceTable {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceTable, String> {
        let items = pairs::items(text);
        let mut pairs = pairs::pairs(&items);
        let word =
            pairs.first().filter(|first| first.value.is_none()).map(|first| first.key.to_string());
        match pairs.first_mut() {
            // The kind comes first, without a key. A path there means a file.
            Some(first) if first.value.is_none() && first.key.contains('/') => {
                *first = Pair::new("path", &first.key);
                pairs.push(Pair::new("kind", "file"));
            }
            Some(first) if first.value.is_none() => *first = Pair::new("kind", &first.key),
            Some(_) => {}
            None => {
                return Err("no device: write null, ram, paced, nvme-soft or file,path=…".into());
            }
        }
        pairs::read(pairs).map_err(|error: String| match word {
            Some(word) if error.starts_with("kind: ") => {
                format!("{error}; a file of that name is ./{word}")
            }
            _ => error,
        })
    }
}

impl DeviceTable {
    /// Overrides keys with those of `flags`. If `flags` has another kind, none of these keys
    /// remain.
    pub fn overlaid(self, flags: DeviceTable) -> DeviceTable {
        if flags.kind.is_some() && flags.kind != self.kind {
            return flags;
        }
        keys::overlay(&self, &flags)
    }

    /// Fills in defaults and refuses invalid keys. `implied` is the kind if none is given.
    pub fn complete(self, implied: Kind) -> Result<DeviceConfig, Refusal> {
        let kind = self.kind.unwrap_or(if self.path.is_some() { Kind::File } else { implied });
        self.refuse_foreign_keys(kind)?;
        if let Some(Size(size)) = self.size
            && (size == 0 || size % SECTOR != 0)
        {
            return Err(Refusal::new(format!(
                "device: size {} is not a multiple of {SECTOR} above 0: round it up to {}",
                exact_size(size),
                exact_size(size.max(1).next_multiple_of(SECTOR))
            )));
        }
        let size = self.size.map_or(MEMORY_SIZE, |Size(bytes)| bytes);
        Ok(match kind {
            Kind::Null => DeviceConfig::Null { size },
            Kind::Ram => DeviceConfig::Ram { size },
            Kind::Paced => self.complete_paced(size),
            Kind::NvmeSoft => DeviceConfig::NvmeSoft(self.complete_nvme(size)?),
            Kind::File => {
                let size = self.size.map(|Size(bytes)| bytes);
                let create = self.create.unwrap_or(false);
                if create && size.is_none() {
                    return Err(Refusal::new(
                        "device: create needs to know how large: add size=10G, say",
                    ));
                }
                if self.path.is_none() && size.is_some() {
                    return Err(Refusal::new(
                        "device: a file needs a path: add path=/srv/disk.img, say",
                    ));
                }
                let file = self.path.map(|path| FileConfig { path, size, create, store: None });
                DeviceConfig::File { file, direct: self.direct.unwrap_or_default() }
            }
        })
    }

    fn complete_paced(&self, size: u64) -> DeviceConfig {
        DeviceConfig::Paced {
            size,
            iops: self.iops.map_or(PACED_IOPS, |Count(iops)| iops),
            bandwidth: self.bandwidth.map_or(PACED_BANDWIDTH, |Bandwidth(bytes)| bytes),
            latency_ns: self.latency.map_or(PACED_LATENCY_NS, |Nanos(ns)| ns),
            parallelism: self.parallelism.unwrap_or(PACED_PARALLELISM),
        }
    }

    fn complete_nvme(self, size: u64) -> Result<NvmeConfig, Refusal> {
        let backing = match self.backing.as_deref().unwrap_or("ram") {
            "ram" => Backing::Ram { size },
            "null" => Backing::Null { size },
            path if path.contains('/') => {
                let (size, create) =
                    (self.size.map(|Size(bytes)| bytes), self.create.unwrap_or(false));
                if create && size.is_none() {
                    return Err(Refusal::new(
                        "device: create needs to know how large: add size=10G, say",
                    ));
                }
                let file = FileConfig { path: path.into(), size, create, store: None };
                Backing::File { file, direct: self.direct.unwrap_or_default() }
            }
            other => {
                return Err(Refusal::new(format!(
                    "device: backing {other} is not known: write ram, null, or a path with a / \
                     in it (./{other})"
                )));
            }
        };
        let in_memory = !matches!(backing, Backing::File { .. });
        if in_memory && (self.create.is_some() || self.direct.is_some()) {
            return Err(Refusal::new(
                "device: create and direct are for files: leave them out, or add backing=PATH",
            ));
        }
        let name = self.profile.filter(|name| name != "none");
        if !in_memory && name.is_some() {
            return Err(Refusal::new(
                "device: a profile sets the speed of a device in memory, and a file has a speed of \
                 its own: leave out profile or backing",
            ));
        }
        let of_profiles = [("state", self.state.is_some()), ("slowdown", self.slowdown.is_some())];
        if let (None, Some((key, _))) = (&name, of_profiles.iter().find(|(_, is_given)| *is_given))
        {
            return Err(Refusal::new(format!(
                "device: {key} applies only to a profile: add profile=z-ssd, say, or leave it out"
            )));
        }
        let slowdown = self.slowdown.unwrap_or(1);
        within("slowdown", slowdown, 1..=SLOWDOWN_MAX)?;
        let profile = name.as_deref().map(load_profile).transpose()?;
        // A profile may have fewer queues (SATA: one) or a larger window than the software
        // controller supports: its values are clamped to the controller's ranges.
        let of_profile = |get: fn(&Profile) -> u32, range: RangeInclusive<u16>| {
            let (least, most) = range.into_inner();
            profile.as_ref().map(|one| get(one).clamp(least.into(), most.into()) as u16)
        };
        let window = of_profile(|profile| profile.host.window.get(), nvme_soft::WINDOW_RANGE);
        let window = self.window.or(window).unwrap_or(nvme_soft::WINDOW);
        let queues = of_profile(|profile| profile.host.queues.get(), nvme_soft::QUEUES_RANGE);
        let queues = self.queues.or(queues).unwrap_or(nvme_soft::QUEUES);
        // A profile's values are clamped above, so only configured ones can be out of range.
        within("window", window, nvme_soft::WINDOW_RANGE)?;
        within("queues", queues, nvme_soft::QUEUES_RANGE)?;
        let has_wrr = profile.as_ref().is_none_or(|profile| profile.host.wrr == Wrr::Yes);
        Ok(NvmeConfig {
            backing,
            profile: name.map(|name| (name, self.state.unwrap_or_default())),
            slowdown,
            window,
            queues,
            wrr: self.wrr.unwrap_or(has_wrr),
            poller: self.poller.unwrap_or_default(),
        })
    }

    fn refuse_foreign_keys(&self, kind: Kind) -> Result<(), Refusal> {
        let Some(key) = keys::foreign(self, "kind", kind.keys()) else { return Ok(()) };
        let has_key = |kind: &Kind| kind.keys().contains(&key.as_str());
        // Each key is taken by at least one of these three kinds, because null and ram take only
        // `size`, which the three kinds take, too.
        let other = [Kind::File, Kind::Paced, Kind::NvmeSoft]
            .into_iter()
            .find(has_key)
            .unwrap_or(Kind::File);
        Err(Refusal::new(format!(
            "device: kind {} takes no `{key}` (it takes: {}): leave it out, or use kind {}",
            kind.name(),
            kind.keys().join(", "),
            other.name(),
        )))
    }
}

fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Refusal> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Refusal::new(format!(
        "device: {key} {value} is out of range: {} to {}",
        range.start(),
        range.end()
    )))
}

/// Loads a built-in profile, or one from a file.
pub fn load_profile(name: &str) -> Result<Profile, Refusal> {
    let refuse =
        |error: &dyn std::fmt::Display| Refusal::new(format!("device: profile {name}: {error}"));
    if !name.contains('/') && !name.ends_with(".toml") {
        return Profile::named(name).map_err(|error| refuse(&error));
    }
    let text = read_text(Path::new(name))?;
    Profile::parse(&text).map_err(|error| refuse(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(text: &str) -> Result<DeviceConfig, String> {
        text.parse::<DeviceTable>()?.complete(Kind::Paced).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn every_kind_with_what_it_takes() {
        assert_eq!(complete("null,size=1T"), Ok(DeviceConfig::Null { size: 1 << 40 }));
        assert_eq!(complete("ram"), Ok(DeviceConfig::Ram { size: 4 << 30 }));
        assert_eq!(
            complete("paced,size=1G,iops=50k,bandwidth=200M/s,latency=1ms,parallelism=64"),
            Ok(DeviceConfig::Paced {
                size: 1 << 30,
                iops: 50_000,
                bandwidth: 200 << 20,
                latency_ns: 1_000_000,
                parallelism: 64
            })
        );
        assert_eq!(
            complete("paced,iops=0,bandwidth=0,latency=0,parallelism=0"),
            Ok(DeviceConfig::Paced {
                size: 4 << 30,
                iops: 0,
                bandwidth: 0,
                latency_ns: 0,
                parallelism: 0
            }),
            "0 is no limit"
        );
        let file = |path: &str, size, create| {
            Some(FileConfig { path: path.into(), size, create, store: None })
        };
        assert_eq!(
            complete("file,path=/srv/a.img,size=10G,create,direct=off"),
            Ok(DeviceConfig::File {
                file: file("/srv/a.img", Some(10 << 30), true),
                direct: Direct::Off
            })
        );
        assert_eq!(
            complete("/dev/nvme0n1"),
            Ok(DeviceConfig::File {
                file: file("/dev/nvme0n1", None, false),
                direct: Direct::Auto
            })
        );
        assert_eq!(complete("path=/dev/sdb"), complete("file,path=/dev/sdb"));
    }

    #[test]
    fn a_software_controller_takes_after_its_profile() {
        let nvme = |text: &str| match complete(text) {
            Ok(DeviceConfig::NvmeSoft(config)) => config,
            other => panic!("{text}: {other:?}"),
        };
        let plain = nvme("nvme-soft");
        assert_eq!(
            (plain.backing, plain.window, plain.queues),
            (Backing::Ram { size: 4 << 30 }, 64, 32)
        );
        assert!(plain.wrr && plain.profile.is_none() && plain.poller == Poller::Inline);
        let slow =
            nvme("nvme-soft,backing=ram,size=1G,profile=z-ssd,state=steady,window=32,poller=core");
        assert_eq!((slow.profile, slow.window), (Some(("z-ssd".into(), State::Steady)), 32));
        assert_eq!(
            (slow.backing, slow.queues, slow.poller),
            (Backing::Ram { size: 1 << 30 }, 32, Poller::Core)
        );
        let sata = nvme("nvme-soft,profile=intel-530");
        assert_eq!(
            (sata.window, sata.queues, sata.wrr),
            (31, *nvme_soft::QUEUES_RANGE.start(), false)
        );
        assert!(!nvme("nvme-soft,wrr=false").wrr);
        assert_eq!(nvme("nvme-soft,profile=z-ssd,slowdown=200").slowdown, 200);
        assert_eq!(nvme("nvme-soft,profile=none"), nvme("nvme-soft"));
        let file = FileConfig {
            path: "/srv/a.img".into(),
            size: Some(1 << 30),
            create: true,
            store: None,
        };
        let backing = nvme("nvme-soft,backing=/srv/a.img,size=1G,create").backing;
        assert_eq!(backing, Backing::File { file, direct: Direct::Auto });
    }

    #[test]
    fn what_a_software_controller_cannot_be() {
        let refusal = |text: &str| complete(text).unwrap_err();
        assert!(
            refusal("nvme-soft,backing=/a,profile=z-ssd").contains("leave out profile or backing")
        );
        assert!(refusal("nvme-soft,backing=disk").contains("(./disk)"));
        assert!(refusal("nvme-soft,profile=y-ssd").contains("z-ssd"));
        assert!(refusal("nvme-soft,queues=2").ends_with("queues 2 is out of range: 3 to 61"));
        assert!(refusal("nvme-soft,window=0").ends_with("window 0 is out of range: 1 to 4096"));
        assert!(refusal("nvme-soft,state=fresh").contains("add profile=z-ssd"));
        assert!(refusal("nvme-soft,direct=on").contains("add backing=PATH"));
        assert!(refusal("ram,window=3").ends_with("or use kind nvme-soft"));
    }

    #[test]
    fn refusals_name_the_key_and_the_cure() {
        let refusal = |text: &str| complete(text).unwrap_err();
        assert_eq!(
            refusal("nvme"),
            "kind: unknown value `nvme` (allowed: null, ram, paced, file, nvme-soft); a file of \
             that name is ./nvme"
        );
        assert_eq!(
            refusal("ram,iops=5k"),
            "device: kind ram takes no `iops` (it takes: size): leave it out, or use kind paced"
        );
        assert_eq!(
            refusal("paced,path=/a"),
            "device: kind paced takes no `path` (it takes: size, iops, bandwidth, latency, \
             parallelism): leave it out, \
             or use kind file"
        );
        assert_eq!(
            refusal("ram,size=1000"),
            "device: size 1000 is not a multiple of 512 above 0: round it up to 1k"
        );
        assert_eq!(
            refusal("file,path=/a,create"),
            "device: create needs to know how large: add size=10G, say"
        );
        assert_eq!(
            refusal("file,size=1G"),
            "device: a file needs a path: add path=/srv/disk.img, say"
        );
        assert_eq!(refusal(""), "no device: write null, ram, paced, nvme-soft or file,path=…");
    }

    #[test]
    fn flags_win_key_by_key_unless_the_kind_is_another() {
        let file: DeviceTable = "paced,size=1G,iops=50k".parse().unwrap();
        let same: DeviceTable = "paced,iops=10k".parse().unwrap();
        let other: DeviceTable = "ram,size=2G".parse().unwrap();
        assert_eq!(file.clone().overlaid(same), "paced,size=1G,iops=10k".parse().unwrap());
        assert_eq!(file.overlaid(other.clone()), other);
    }
}
