//! Profiles: the properties of devices, as data.
//!
//! A profile is a TOML file: the interface to the host (`[host]`), the times and sizes of the
//! [timing model](crate::ssd), and the points that the model must reproduce (`[[point]]`), each
//! with its source. Seven are built in; a user's own file is read the same way. Times are
//! microseconds, bandwidths MB/s (10^6 bytes a second), sizes KiB, capacities GB.

use serde::{Deserialize, Serialize};

pub use quantity::{Count, MbPerS, Micros, Spare};

mod quantity;

/// The profiles built in: name and text.
pub const BUILT_IN: [(&str, &str); 7] = [
    ("z-ssd", include_str!("../../profiles/z-ssd.toml")),
    ("p3700", include_str!("../../profiles/p3700.toml")),
    ("p4500", include_str!("../../profiles/p4500.toml")),
    ("980-pro", include_str!("../../profiles/980-pro.toml")),
    ("p4800x", include_str!("../../profiles/p4800x.toml")),
    ("intel-530", include_str!("../../profiles/intel-530.toml")),
    ("nvmf-ramdisk", include_str!("../../profiles/nvmf-ramdisk.toml")),
];

/// The reason why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile has this name.
    #[error("no profile is called `{name}`: there are {}", names())]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The text is not a profile; the error names the line and the fault.
    #[error("{0}")]
    Syntax(Box<toml::de::Error>),
    /// Legal values contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

fn names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

/// A device's properties.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    /// Its name on the command line.
    pub name: String,
    /// The drive that it models.
    pub model: String,
    /// The interface to the host.
    pub host: Host,
    /// The cost of each command.
    pub controller: Controller,
    /// The link between host and device.
    pub link: Link,
    /// The media, which hold the data.
    pub media: Media,
    /// The buffer in which writes wait for the media.
    pub buffer: Buffer,
    /// The cost of overwriting data; absent where media is written in place.
    pub garbage: Option<Garbage>,
    /// Cells that are written faster, until they are full.
    pub slc: Option<Slc>,
    /// Reading ahead of requests; absent if the device does not read ahead.
    pub read_ahead: Option<ReadAhead>,
    /// The device's measured performance.
    #[serde(default, rename = "point")]
    pub points: Vec<Point>,
}

/// The interface to the host.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    /// Kind of the interface.
    pub interface: Interface,
    /// The most I/O submission queues; 1 for SATA.
    pub queues: Count<1, 4095>,
    /// The most entries of a queue; for SATA the slots of native command queueing.
    pub queue_entries: Count<2, 65536>,
    /// W, the most commands that the device has fetched and not completed.
    pub window: Count<1, 4096>,
    /// Whether it offers weighted round robin.
    pub wrr: Wrr,
    /// Its capacity in GB (10^9 bytes).
    pub capacity_gb: Count<1, 1_000_000>,
}

impl Host {
    /// Its capacity in bytes: whole MiB.
    pub fn capacity(&self) -> u64 {
        (u64::from(self.capacity_gb.get()) * 1_000_000_000) >> 20 << 20
    }
}

/// Kind of the interface of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Interface {
    /// Many queues.
    Nvme,
    /// One queue of up to 32 commands, and one transfer at a time in either direction.
    Sata,
}

/// Whether a device offers weighted round robin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrr {
    /// The device offers it.
    Yes,
    /// The device does not offer it.
    No,
    /// Unknown; treated as no.
    Unknown,
}

/// The cost of each command.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Controller {
    /// A read's turn in the controller, which serves one command at a time.
    pub read_us: Micros,
    /// The turn of a write, or of any other command, in the controller.
    pub write_us: Micros,
    /// The fixed time of a read outside the queues of all parts: protocol, interrupt.
    pub read_fixed_us: Micros,
    /// The fixed time of a write outside the queues of all parts.
    pub write_fixed_us: Micros,
    /// The most pages of one read that are under way at once, so that other reads get dies,
    /// channels and link between the pages of a large one; all pages if absent.
    pub pages_at_once: Option<Count<1, 65_536>>,
    /// Whether the buffer's data survives a loss of power, so that a flush has nothing to wait for.
    pub power_loss_protection: bool,
}

/// The link between host and device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// Bandwidth to the host.
    pub read_mb_s: MbPerS,
    /// Bandwidth to the device.
    pub write_mb_s: MbPerS,
}

/// The media, which hold the data.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Media {
    /// Number of channels; each moves one page at a time.
    pub channels: Count<1, 1024>,
    /// Number of dies of each channel; each reads or programs one page at a time.
    pub dies_per_channel: Count<1, 1024>,
    /// The bytes of one read of a die, and the unit by which logical addresses are striped; a power
    /// of two.
    pub page_kib: Count<1, 64>,
    /// Time to read a page from the cells to the die's register.
    pub read_us: Micros,
    /// Time of a program.
    pub program_us: Micros,
    /// The bytes of one program.
    pub program_kib: Count<1, 4096>,
    /// Bandwidth of each channel.
    pub channel_mb_s: MbPerS,
    /// The time to suspend a program or an erase for a read; absent if the die cannot.
    pub suspend_us: Option<Micros>,
    /// Whether a die can do nothing until the page it has read has left through the channel.
    #[serde(default)]
    pub held_through_transfer: bool,
}

/// The buffer in which writes wait for the media.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Buffer {
    /// Its capacity, in KiB.
    pub size_kib: Count<4, 16_777_216>,
}

/// The data that a device reads ahead of requests, when reads follow each other.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ReadAhead {
    /// The amount for each stream of reads, in KiB.
    pub kib: Count<1, 65_536>,
    /// The number of streams that the device distinguishes; they take `streams` times `kib` of the
    /// buffer.
    pub streams: Count<1, 64>,
}

impl ReadAhead {
    /// The part of the buffer for reading ahead, in KiB.
    pub fn room_kib(self) -> u32 {
        self.kib.get() * self.streams.get()
    }
}

/// The cost of overwriting data.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Garbage {
    /// Spare space, as a fraction of the host's capacity.
    pub over_provisioning: Spare,
    /// Time of an erase.
    pub erase_us: Micros,
    /// The number of programs that fill the space of one erase.
    pub programs_per_erase: Count<1, 100_000>,
    /// The source of the number of moves.
    #[serde(default)]
    pub mapping: Mapping,
}

/// The source of the number of pages that are moved before a block can be erased.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// The average of uniform random writes.
    #[default]
    Average,
    /// A map of the pages, with greedy collection.
    Pages,
}

/// Cells written faster, until they are full.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Slc {
    /// Size of the fast cells, in GB (10^9 bytes).
    pub size_gb: Count<1, 1_000_000>,
    /// Time of a program.
    pub program_us: Micros,
}

/// The measured performance of the device under a closed loop that keeps `depth` requests
/// outstanding.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Point {
    /// The load.
    pub load: Load,
    /// Size of each request, in KiB.
    pub kib: Count<1, 4096>,
    /// Number of outstanding requests.
    pub depth: Count<1, 4096>,
    /// Whether the device has been written over; fresh by default.
    #[serde(default)]
    pub state: State,
    /// Requests a second.
    pub iops: Option<f64>,
    /// Mean, in microseconds.
    pub latency_us: Option<f64>,
    /// Bandwidth, in MB/s (10^6 bytes a second).
    pub mb_s: Option<f64>,
    /// The tolerance of the model in percent: 10 by default.
    #[serde(default = "ten")]
    pub within: f64,
    /// The source of the figure.
    pub source: String,
}

fn ten() -> f64 {
    10.0
}

/// Kinds of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Uniform random reads.
    RandomRead,
    /// Uniform random writes.
    RandomWrite,
    /// One stream of reads.
    SequentialRead,
    /// One stream of writes.
    SequentialWrite,
}

/// Earlier writes to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No writes: there is free space that needs no clearing.
    #[default]
    Fresh,
    /// Random writes over the whole device: new writes need space to be cleared.
    Steady,
}

impl Profile {
    /// The built-in profile with this name.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        let text = BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| text);
        Profile::parse(text.ok_or_else(|| ProfileError::Unknown { name: name.to_owned() })?)
    }

    /// Reads a profile from the text of a profile file.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile =
            toml::from_str(text).map_err(|error| ProfileError::Syntax(Box::new(error)))?;
        profile.check()?;
        Ok(profile)
    }

    /// Checks that its values do not contradict each other; [`parse`](Self::parse) includes this
    /// check.
    pub fn check(&self) -> Result<(), ProfileError> {
        let refuse = |what: String| Err(ProfileError::Contradiction(what));
        let Media { page_kib, program_kib, .. } = &self.media;
        // The model finds a page by shifting the address.
        if !page_kib.get().is_power_of_two() {
            return refuse(format!("media.page-kib: {} is not a power of two", page_kib.get()));
        }
        if self.dies() > 65535 {
            return refuse(format!("media: {} dies are too many: at most 65535", self.dies()));
        }
        if self.buffer.size_kib.get() < program_kib.get() {
            let (size, unit) = (self.buffer.size_kib.get(), program_kib.get());
            return refuse(format!(
                "buffer.size-kib: {size} is less than one program writes (media.program-kib: \
                 {unit}), so nothing would \
                 ever be written: give it a few programs for each die"
            ));
        }
        self.check_read_ahead()?;
        // Native command queueing has 32 tags.
        if self.host.interface == Interface::Sata
            && (self.host.queues.get() > 1 || self.host.window.get() > 32)
        {
            return refuse(
                "host: a SATA device has one queue and a window of at most 32".to_owned(),
            );
        }
        for point in &self.points {
            let figures = [point.iops, point.latency_us, point.mb_s];
            if figures.iter().flatten().count() != 1
                || figures.iter().flatten().any(|&figure| figure <= 0.0)
            {
                let what = format!(
                    "point ({}): needs one of iops, latency-us and mb-s, above 0",
                    point.source
                );
                return refuse(what);
            }
        }
        Ok(())
    }

    fn check_read_ahead(&self) -> Result<(), ProfileError> {
        let Some(ahead) = self.read_ahead else { return Ok(()) };
        let (kib, streams, page) =
            (ahead.kib.get(), ahead.streams.get(), self.media.page_kib.get());
        if kib < page {
            return Err(ProfileError::Contradiction(format!(
                "read-ahead.kib: {kib} is less than a page (media.page-kib: {page}), so nothing \
                 would ever be read ahead"
            )));
        }
        let (size, unit) = (self.buffer.size_kib.get(), self.media.program_kib.get());
        if size.saturating_sub(ahead.room_kib()) < unit {
            return Err(ProfileError::Contradiction(format!(
                "read-ahead: {streams} streams of {kib} KiB leave writes less than one program \
                 (media.program-kib: {unit}) of the buffer (buffer.size-kib: {size}): give it \
                 fewer streams, or a larger buffer"
            )));
        }
        Ok(())
    }

    /// The number of dies.
    pub fn dies(&self) -> u32 {
        self.media.channels.get() * self.media.dies_per_channel.get()
    }
}
