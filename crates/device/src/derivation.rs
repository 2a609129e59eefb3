//! Derives a profile from measurements of a device from outside.
//!
//! **Problem.** A probe measures latencies, rates and bandwidths, not dies and channels. Many
//! internal structures give the same figures. **Model.** The simplest structure with these figures
//! is chosen: each figure sets one value, and where a figure depends on two values, a search finds
//! both.
//!
//! | figure | sets |
//! |---|---|
//! | most random reads a second | the controller's turn (the dies may be the limit instead) |
//! | sequential bandwidth | the link |
//! | latency at depth 1 | without turn and link, the sum of the die's time and the fixed time |
//! | rates at other depths | both times of that sum; more dies if rates grow with depth |
//!
//! Writes likewise, without dies: a program is assumed to take no time, so that turn and link set
//! the pace. **Assumed, because it cannot be derived**: pages, channels, the buffer's size, the
//! cost of clearing old data, number and length of queues, weighted round robin, protection against
//! loss of power.

use crate::closed::predict;
use crate::profile::{
    Buffer, Controller, Count, Host, Interface, Link, Load, MbPerS, Media, Micros, Point, Profile,
    ProfileError, Wrr,
};

/// The input from which a profile is derived.
#[derive(Clone, Debug)]
pub struct Derivation {
    /// The name of the profile.
    pub name: String,
    /// The drive that was measured.
    pub model: String,
    /// Its size in bytes.
    pub capacity: u64,
    /// The measurements: 4 KiB random reads, with the latency at depth 1 and rates at larger
    /// depths, and sequential reads; also the same measurements of writes, or none of writes.
    pub points: Vec<Point>,
}

/// A profile, and its text as a profile file.
#[derive(Clone, Debug)]
pub struct Derived {
    /// The profile.
    pub profile: Profile,
    /// The text of the file, with comments.
    pub text: String,
}

/// The measurements of one direction.
struct Direction {
    latency_us: f64,
    /// The most requests a second.
    iops: f64,
    mb_s: f64,
}

/// The length of random requests, in bytes.
const BYTES: f64 = 4096.0;
/// The candidates for the part of the time that reading a page takes.
const PARTS: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// The part of the highest rate that counts as full.
const FULL: f64 = 0.98;

/// Derives a profile.
pub fn derive(from: &Derivation) -> Result<Derived, ProfileError> {
    let needs = "needs random reads at depth 1 and at larger depths, and sequential reads";
    let reads = direction(&from.points, Load::RandomRead, Load::SequentialRead)
        .ok_or_else(|| ProfileError::Contradiction(format!("a profile {needs}")))?;
    let measured_writes = direction(&from.points, Load::RandomWrite, Load::SequentialWrite);
    let writes = measured_writes.as_ref().unwrap_or(&reads);
    let mut best = (f64::INFINITY, plain(from, &reads, writes));
    let (left_us, whole) = (best.1.controller.read_fixed_us.ns() as f64 / 1e3, best.1);
    best.1 = whole.clone();
    for part in PARTS {
        for dies in (0..10).map(|power| 1u32 << power) {
            let die_us = left_us * part;
            // With fewer dies the dies would limit the rate, below the measured one.
            let enough = f64::from(dies) >= reads.iops * die_us / 1e6;
            // Where dies take no time, their number changes nothing: one candidate is enough.
            if !enough || (part == 0.0 && dies > 1) {
                continue;
            }
            let mut candidate = whole.clone();
            candidate.media.channels = Count::new(if part == 0.0 { 64 } else { dies });
            candidate.media.read_us = micros(die_us);
            candidate.controller.read_fixed_us = micros(left_us - die_us);
            let error = error(&candidate, &from.points);
            if error < best.0 {
                best = (error, candidate);
            }
        }
    }
    let profile = best.1;
    let text = write(&profile, measured_writes.is_some())?;
    Ok(Derived { profile, text })
}

/// One direction as the points show it; `None` if there are too few points.
fn direction(points: &[Point], random: Load, sequential: Load) -> Option<Direction> {
    let of = |load| points.iter().filter(move |point| point.load == load);
    let one = of(random).find(|point| point.depth.get() == 1)?.latency_us?;
    let iops = of(random).filter_map(|point| point.iops).fold(f64::NAN, f64::max);
    let mb_s = of(sequential).filter_map(|point| point.mb_s).fold(f64::NAN, f64::max);
    // The link can move at least the bytes that random requests move.
    (iops > 0.0 && mb_s > 0.0).then(|| Direction {
        latency_us: one,
        iops,
        mb_s: mb_s.max(iops * BYTES / 1e6),
    })
}

impl Direction {
    fn turn_us(&self) -> f64 {
        1e6 / self.iops
    }

    /// The time of a request without the controller's turn and the link, in microseconds.
    fn left_us(&self) -> f64 {
        (self.latency_us - self.turn_us() - BYTES / self.mb_s).max(0.0)
    }
}

fn micros(us: f64) -> Micros {
    Micros::from_ns((us * 1e3).round() as u64)
}

/// A profile with all values that one figure sets; reading takes no time at the dies.
fn plain(from: &Derivation, reads: &Direction, writes: &Direction) -> Profile {
    let rates = || {
        from.points.iter().filter(|point| point.load == Load::RandomRead && point.iops.is_some())
    };
    let full = rates().filter(|point| point.iops.unwrap_or(0.0) >= FULL * reads.iops);
    let window = full.map(|point| point.depth.get()).min().unwrap_or(64);
    Profile {
        name: from.name.clone(),
        model: from.model.clone(),
        host: Host {
            interface: Interface::Nvme,
            queues: Count::new(32),
            queue_entries: Count::new(1024),
            window: Count::new(window),
            wrr: Wrr::Unknown,
            capacity_gb: Count::new(
                from.capacity.div_ceil(1_000_000_000).try_into().unwrap_or(u32::MAX),
            ),
        },
        controller: Controller {
            read_us: micros(reads.turn_us()),
            write_us: micros(writes.turn_us()),
            read_fixed_us: micros(reads.left_us()),
            write_fixed_us: micros(writes.left_us()),
            pages_at_once: None,
            power_loss_protection: false,
        },
        link: Link {
            read_mb_s: MbPerS::new(reads.mb_s.round()),
            write_mb_s: MbPerS::new(writes.mb_s.round()),
        },
        media: Media {
            channels: Count::new(64),
            dies_per_channel: Count::new(1),
            page_kib: Count::new(16),
            read_us: Micros::default(),
            program_us: Micros::default(),
            program_kib: Count::new(4),
            channel_mb_s: MbPerS::new(1e6),
            suspend_us: None,
            held_through_transfer: false,
        },
        buffer: Buffer { size_kib: Count::new(1024) },
        garbage: None,
        slc: None,
        read_ahead: None,
        points: from.points.clone(),
    }
}

/// The distance of a profile from the measured reads: the sum of the squared errors.
fn error(profile: &Profile, points: &[Point]) -> f64 {
    let reads =
        points.iter().filter(|point| matches!(point.load, Load::RandomRead | Load::SequentialRead));
    // The error is the logarithm of the ratio, so that half and twice a figure have the same error.
    reads.map(|point| (1.0 + predict(profile, point).against(point).1).ln().powi(2)).sum()
}

/// The profile as a file, with comments on the origin of the values.
fn write(profile: &Profile, wrote: bool) -> Result<String, ProfileError> {
    let text =
        toml::to_string(profile).map_err(|error| ProfileError::Contradiction(error.to_string()))?;
    let of_writes =
        |measured| if wrote { measured } else { "as for reads: writes were not measured" };
    let comment = |section: &str, key: &str| match (section, key) {
        ("[host]", "window") => "the smallest measured depth that gives nearly the highest rate",
        ("[host]", "capacity-gb") => "measured",
        ("[host]", _) => "assumed",
        ("[controller]", "read-us") => "derived from the most random reads a second",
        ("[controller]", "read-fixed-us") | ("[media]", "read-us" | "channels") => {
            "fitted to latency and rates of random reads"
        }
        ("[controller]", "write-us") => of_writes("derived from the most random writes a second"),
        ("[controller]", "write-fixed-us") => of_writes("derived from the latency of a write"),
        ("[controller]", _) => "assumed: cannot be measured from outside",
        ("[link]", "read-mb-s") => "derived from sequential reads",
        ("[link]", _) => of_writes("derived from sequential writes"),
        ("[media]", "program-us") => "assumed 0: turn and link set the pace of writes",
        ("[media]" | "[buffer]", _) => "assumed: cannot be measured from outside",
        _ => "",
    };
    let mut section = String::new();
    let mut lines = vec![
        "# Derived by `fairq device probe` from the points below: the simplest internal structure \
         with these figures.".to_owned(),
        "# Not derived: the cost of clearing old data ([garbage]). The profile has one state, that \
         of the measurement.".to_owned(),
    ];
    for line in text.lines() {
        if line.starts_with('[') {
            section = line.to_owned();
        }
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        let comment = if key.is_empty() { "" } else { comment(&section, key) };
        lines.push(if comment.is_empty() {
            line.to_owned()
        } else {
            format!("{line:<28} # {comment}")
        });
    }
    Ok(lines.join("\n") + "\n")
}
