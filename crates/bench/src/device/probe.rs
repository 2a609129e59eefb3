//! `fairq device probe`: derives a profile from measurements of a real file or disk.
//!
//! It measures 4 KiB random reads at depth 1 and at growing depths, and sequential reads; also
//! writes where it may write: into a scratch file if a directory is given, or over existing data
//! with `--overwrite`. The scratch file has no name, so that nothing remains however the program
//! ends. From these points a [profile](fairq_device::derive) is derived, and from the highest rates
//! the costs of requests (`coefficients`).

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fairq_config::device::{DeviceConfig, Direct, FileConfig};
use fairq_config::engine::shard_cpus;
use fairq_config::files::Output;
use fairq_config::files::write_out;
use fairq_config::layout::pool::refuse_pool;
use fairq_config::policy::{PolicyConfig, PolicyTable};
use fairq_config::refusal::Refusal;
use fairq_config::units::{Count as Number, Nanos, Size, exact_size};
use fairq_device::derivation::{Derivation, Derived, derive};
use fairq_device::profile::{Count, Load, Point, State};
use fairq_host::device::Device;
use fairq_host::measure::load::{self, Times};
use fairq_host::observe::stats::TenantStats;
use rand::{RngCore, SeedableRng};

use super::coefficients::{Coefficients, SMALL, Speed};
use super::{comparisons, points_table};
use crate::args::ProbeArgs;
use crate::bench::{Bench, Target};
use crate::job::{Job, JobTable, Pattern};
use crate::plausible::Limits;

/// The size of sequential requests in bytes, and their depth.
const SEQUENTIAL: (u64, u32) = (128 << 10, 32);
/// A scratch file is written in pieces of this size.
const PIECE: usize = 1 << 20;
/// The least size in bytes: a smaller file has not enough places for random requests.
const SMALLEST: u64 = 1 << 20;

/// Measures and derives.
pub(crate) fn run(args: ProbeArgs) -> anyhow::Result<()> {
    if args.seconds.0 < 10_000_000 {
        return Err(Refusal::new(
            "seconds: less than 10 ms a point is too short to measure: write --seconds 1, say",
        )
        .into());
    }
    let place = Place::open(&args)?;
    let output = Output::open_if_named(args.output.as_deref())?;
    let config = DeviceConfig::File {
        file: Some(FileConfig { path: place.path.clone(), size: None, create: false, store: None }),
        direct: Direct::Auto,
    };
    let cpus = shard_cpus(args.shards.shards, args.shards.cpus.as_ref())?;
    let (shards, slots) = (cpus.len() as u32, config.default_slots());
    let device = config.open(Vec::new())?;
    let capacity = device.info().sizes.first().copied().unwrap_or(0);
    if capacity < SMALLEST {
        let text = format!(
            "{}: has {}: less than 1M is too small to measure",
            args.path.display(),
            exact_size(capacity)
        );
        return Err(Refusal::new(text).into());
    }
    let Nanos(ns) = args.seconds;
    let measured = Duration::from_nanos(ns);
    let gauge = Gauge {
        bench: Bench {
            groups: Vec::new(),
            target: Target::Device {
                device,
                cpus,
                slots,
                limits: Limits::NONE,
                path: load::Path::Shards,
                moves: None,
            },
            is_quiet: args.json,
        },
        none: "none".parse::<PolicyTable>().map_err(Refusal::new)?.complete()?,
        times: Times { warmup: measured / 5, measured, interval: None },
        shards,
        source: format!("measured, {}", args.path.display()),
    };
    let (points, costs) = gauge.points(args.most, place.may_write)?;
    let name = args.name.clone().unwrap_or_else(|| "probed".to_owned());
    let model = args.path.display().to_string();
    let derived = derive(&Derivation { name, model, capacity, points })?;
    if let Some(output) = output {
        output.write_text(&derived.text)?;
    }
    report(&args, &place, &derived, &costs)
}

fn report(
    args: &ProbeArgs,
    place: &Place,
    derived: &Derived,
    costs: &Coefficients,
) -> anyhow::Result<()> {
    let points = comparisons(&derived.profile);
    if args.json {
        let object = serde_json::json!({
            "profile": &derived.profile,
            "model": points,
            "costs": costs,
        });
        return write_out(&serde_json::to_string_pretty(&object)?);
    }
    let mut text = points_table(&points);
    text += "\n\nDerived: turns, fixed times, link, dies and their read time, window. Assumed, \
             because it cannot be measured from outside:\npages, channels, buffer, the cost of \
             clearing old data, queues, WRR, protection against power loss.\n\
             (WRR: the kernel's driver does not use it, and a block device shows neither classes \
             nor whether the controller \
             offers any.)\n\n";
    text += &costs.text();
    text += "\n";
    if !place.may_write {
        text += "Writes were not measured and are assumed to be like reads: give a directory for a \
                 scratch file, or --overwrite\nif the data there may be lost.\n";
    }
    if place.has_holes {
        text += "Parts of this file were never written: reads of these parts do not reach the \
                 disk, so the figures are too good.\n";
    }
    text += &match &args.output {
        Some(path) => format!("\nWritten to {0}: fairq device show {0}", path.display()),
        None => "\n--output FILE keeps it as a profile.".to_owned(),
    };
    write_out(&text)
}

/// The file or device to measure.
struct Place {
    path: PathBuf,
    may_write: bool,
    /// A file of which parts were never written.
    has_holes: bool,
    /// Keeps the scratch file open, and so alive.
    _scratch: Option<File>,
}

impl Place {
    fn open(args: &ProbeArgs) -> anyhow::Result<Place> {
        let path = &args.path;
        let about = std::fs::metadata(path)
            .map_err(|error| Refusal::new(format!("{}: {error}", path.display())))?;
        if !about.is_dir() {
            if args.size.is_some() {
                return Err(Refusal::new(
                    "size: is for the scratch file in a directory: leave it out",
                )
                .into());
            }
            refuse_pool(path, args.overwrite)?;
            // `st_blocks` counts 512 bytes whatever the file system's blocks are.
            let has_holes = about.is_file() && about.blocks() * 512 < about.len();
            return Ok(Place {
                path: path.clone(),
                may_write: args.overwrite,
                has_holes,
                _scratch: None,
            });
        }
        let Size(size) = args.size.unwrap_or(Size(1 << 30));
        let scratch = scratch(path, size, args.json)?;
        // The scratch file has no name: its descriptor is the only way to open it again.
        let path = PathBuf::from(format!("/proc/self/fd/{}", scratch.as_raw_fd()));
        Ok(Place { path, may_write: true, has_holes: false, _scratch: Some(scratch) })
    }
}

/// A file without a name, full of data that cannot be compressed.
fn scratch(directory: &Path, size: u64, is_quiet: bool) -> anyhow::Result<File> {
    let context =
        || format!("cannot make a scratch file of {} in {}", exact_size(size), directory.display());
    let mut file = tempfile::tempfile_in(directory).with_context(context)?;
    let mut random = rand::rngs::SmallRng::seed_from_u64(1);
    let mut piece = vec![0; PIECE];
    if !is_quiet {
        write_out(&format!(
            "writing a scratch file of {} in {}",
            exact_size(size),
            directory.display()
        ))?;
    }
    let mut left = size;
    while left > 0 {
        // No piece equals another, because a file system with deduplication would store equal
        // pieces once.
        random.fill_bytes(&mut piece);
        let part = left.min(PIECE as u64) as usize;
        file.write_all(&piece[..part]).with_context(context)?;
        left -= part as u64;
    }
    // Otherwise the kernel would write the file back during the measurement of reads.
    file.sync_all().with_context(context)?;
    Ok(file)
}

/// The measurement of a load.
struct Measured {
    iops: f64,
    mb_s: f64,
    latency_us: f64,
}

/// Runs the measurements.
struct Gauge {
    bench: Bench,
    none: PolicyConfig,
    times: Times,
    shards: u32,
    source: String,
}

impl Gauge {
    fn points(&self, most: u32, may_write: bool) -> anyhow::Result<(Vec<Point>, Coefficients)> {
        let mut points = Vec::new();
        let read = self.direction(Pattern::RandRead, Pattern::Read, most, &mut points)?;
        let write = may_write
            .then(|| self.direction(Pattern::RandWrite, Pattern::Write, most, &mut points))
            .transpose()?;
        Ok((points, Coefficients::new(read, write)))
    }

    fn direction(
        &self,
        random: Pattern,
        sequential: Pattern,
        most: u32,
        points: &mut Vec<Point>,
    ) -> anyhow::Result<Speed> {
        let (bytes, depth) = SEQUENTIAL;
        let large = self.measure(sequential, bytes, depth.min(most))?;
        points.push(self.point(sequential, bytes, depth.min(most), &large));
        // Not a point of the profile: the model of a device has no faster path for these.
        let small = self.measure(sequential, SMALL, depth.min(most))?;
        // The measurement at depth 1 gives the latency, and those at larger depths give the growth
        // of the rate.
        let mut fastest = 0.0f64;
        for depth in std::iter::successors(Some(1u32), |depth| depth.checked_mul(2))
            .take_while(|&depth| depth <= most)
        {
            let measured = self.measure(random, SMALL, depth)?;
            points.push(self.point(random, SMALL, depth, &measured));
            fastest = fastest.max(measured.iops);
        }
        let bytes_s = large.mb_s * 1e6;
        Ok(Speed { random_iops: fastest, sequential_iops: small.iops, bytes_s })
    }

    /// Measures with `depth` requests outstanding, spread over the shards; sequential requests come
    /// from one job, so that they are one stream.
    fn measure(&self, pattern: Pattern, bytes: u64, depth: u32) -> anyhow::Result<Measured> {
        // A job with no request to keep in flight is refused.
        let jobs = if pattern.is_random() { self.shards.min(depth) } else { 1 };
        let part = |index: u32| depth / jobs + u32::from(index < depth % jobs);
        let job = |index: u32| {
            let (bs, depth) = (Some(Size(bytes)), Some(Number(part(index).into())));
            JobTable {
                name: format!("p{index}"),
                bs,
                depth,
                rw: Some(pattern),
                ..JobTable::default()
            }
            .complete()
        };
        let jobs: Vec<Job> = (0..jobs).map(job).collect::<Result<_, Refusal>>()?;
        let label = format!("{} {} × {depth}", load_of(pattern).1, exact_size(bytes));
        let measured = self.bench.measure(&self.none, &jobs, self.times, &label)?;
        let mut all = TenantStats::default();
        measured.tenants.iter().for_each(|tenant| all.add(tenant));
        let failed = all.errors;
        anyhow::ensure!(
            failed == 0,
            "{label}: the device failed {failed} requests: see the kernel's log"
        );
        anyhow::ensure!(
            all.operations() > 0,
            "{label}: nothing completed: give each point more --seconds"
        );
        let seconds = measured.elapsed.as_secs_f64();
        Ok(Measured {
            iops: all.operations() as f64 / seconds,
            mb_s: all.bytes() as f64 / seconds / 1e6,
            latency_us: all.latency_ns.mean() / 1e3,
        })
    }

    fn point(&self, pattern: Pattern, bytes: u64, depth: u32, measured: &Measured) -> Point {
        let &Measured { iops, mb_s, latency_us } = measured;
        let point = Point {
            load: load_of(pattern).0,
            kib: Count::new((bytes >> 10) as u32),
            depth: Count::new(depth),
            state: State::Fresh,
            iops: None,
            latency_us: None,
            mb_s: None,
            within: 25.0,
            source: self.source.clone(),
        };
        match (pattern.is_random(), depth) {
            (false, _) => Point { mb_s: Some(mb_s), ..point },
            (true, 1) => Point { latency_us: Some(latency_us), ..point },
            (true, _) => Point { iops: Some(iops), ..point },
        }
    }
}

fn load_of(pattern: Pattern) -> (Load, &'static str) {
    match pattern {
        Pattern::RandWrite => (Load::RandomWrite, "random write"),
        Pattern::Read => (Load::SequentialRead, "read"),
        Pattern::Write => (Load::SequentialWrite, "write"),
        _ => (Load::RandomRead, "random read"),
    }
}
