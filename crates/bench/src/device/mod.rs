//! `fairq device`: the profiles of devices, and the probe of real ones.

use std::path::Path;

use fairq_config::files::read_text;
use fairq_config::files::write_out;
use fairq_config::refusal::Refusal;
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_bandwidth, show_count, show_duration};
use fairq_device::closed::predict;
use fairq_device::profile::{BUILT_IN, Interface, Load, Point, State, Wrr};
use fairq_device::{Profile, ProfileError};
use serde::Serialize;

use crate::args::{DeviceCommand, ShowArgs};

mod classes;
mod coefficients;
mod probe;

/// Runs a subcommand.
pub fn run(command: DeviceCommand) -> anyhow::Result<()> {
    match command {
        DeviceCommand::List { json } => list(json),
        DeviceCommand::Show(args) => show(&args),
        DeviceCommand::Probe(args) => match args.path.to_str().filter(|text| is_controller(text)) {
            Some(device) => classes::run(device, &args),
            None => probe::run(args),
        },
    }
}

/// Whether the argument of `probe` is the software controller, and not a path.
fn is_controller(text: &str) -> bool {
    // An existing file of this name is a file.
    text.split(',').next() == Some("nvme-soft") && !Path::new(text).exists()
}

/// One profile in a line.
#[derive(Debug, Serialize)]
struct Summary {
    name: String,
    model: String,
    queues: u32,
    window: u32,
    wrr: Wrr,
    /// Latency of a 4 KiB random read (1 KiB if only that is known) at depth 1, in microseconds.
    latency_us: Option<f64>,
    /// The highest known rate of small random reads, in requests a second.
    read_iops: Option<f64>,
}

impl Summary {
    fn new(profile: &Profile) -> Summary {
        let reads = || profile.points.iter().filter(|point| point.load == Load::RandomRead);
        let alone = reads().find(|point| point.depth.get() == 1);
        // At depth 1 one request follows another, so the rate gives the latency.
        let latency = |point: &Point| point.latency_us.or(point.iops.map(|iops| 1e6 / iops));
        Summary {
            name: profile.name.clone(),
            model: profile.model.clone(),
            queues: profile.host.queues.get(),
            window: profile.host.window.get(),
            wrr: profile.host.wrr,
            latency_us: alone.and_then(latency),
            read_iops: reads().filter_map(|point| point.iops).max_by(f64::total_cmp),
        }
    }
}

fn wrr_in_words(wrr: Wrr) -> &'static str {
    match wrr {
        Wrr::Yes => "yes",
        Wrr::No => "no",
        Wrr::Unknown => "not known",
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    let profiles = BUILT_IN.iter().map(|(name, _)| Profile::named(name));
    let summaries: Vec<Summary> = profiles
        .map(|profile| profile.map(|profile| Summary::new(&profile)))
        .collect::<Result<_, _>>()?;
    if json {
        return write_out(&serde_json::to_string_pretty(&summaries)?);
    }
    let mut table = plain_table();
    table.set_header(["profile", "queues", "window", "WRR", "read latency", "read IOPS", "drive"]);
    for summary in summaries {
        let latency = summary.latency_us.map_or("–".into(), |us| show_duration(us * 1e3));
        table.add_row([
            summary.name,
            summary.queues.to_string(),
            summary.window.to_string(),
            wrr_in_words(summary.wrr).into(),
            latency,
            summary.read_iops.map_or("–".into(), show_count),
            summary.model,
        ]);
    }
    align_right(&mut table);
    if let Some(column) = table.column_mut(6) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    let about =
        "WRR: whether the device itself shares by queue class. The software controller always can.";
    write_out(&format!("{table}\n\n{about}"))
}

/// A built-in profile by its name, or a file's.
fn profile(name: &str) -> Result<(Profile, String), Refusal> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return Ok((
            Profile::parse(text).map_err(|error| Refusal::new(error.to_string()))?,
            (*text).to_owned(),
        ));
    }
    // A name that cannot be a path is a misspelt profile.
    let is_path = name.contains(['/', '.']) || Path::new(name).exists();
    if !is_path {
        let unknown = ProfileError::Unknown { name: name.to_owned() };
        return Err(Refusal::new(format!("{unknown}; or write the path of a profile file")));
    }
    let text = read_text(Path::new(name))?;
    let profile =
        Profile::parse(&text).map_err(|error| Refusal::new(format!("{name}: {error}")))?;
    Ok((profile, text))
}

/// A known figure of a device beside that of its model.
#[derive(Debug, Serialize)]
struct Comparison<'a> {
    #[serde(flatten)]
    point: &'a Point,
    /// The same figure of the model.
    model: f64,
    /// The model's deviation, in percent.
    off: f64,
}

fn comparisons(profile: &Profile) -> Vec<Comparison<'_>> {
    let compare = |point| {
        let (model, off) = predict(profile, point).against(point);
        Comparison { point, model, off: off * 100.0 }
    };
    profile.points.iter().map(compare).collect()
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let (profile, text) = profile(&args.name)?;
    if args.toml {
        return write_out(text.trim_end());
    }
    let points = comparisons(&profile);
    if args.json {
        let object = serde_json::json!({ "profile": &profile, "model": points });
        return write_out(&serde_json::to_string_pretty(&object)?);
    }
    write_out(&format!("{}\n\n{}", describe(&profile), points_table(&points)))
}

/// The parts of the device, in a few lines.
fn describe(profile: &Profile) -> String {
    let Profile { host, controller, link, media, .. } = profile;
    let interface = match host.interface {
        Interface::Nvme => {
            format!("NVMe, {} queues of {}", host.queues.get(), host.queue_entries.get())
        }
        Interface::Sata => format!("SATA, one queue of {}", host.queue_entries.get()),
    };
    let time = |us: fairq_device::profile::Micros| show_duration(us.ns() as f64);
    let mut lines = vec![
        format!("{}: {}, {} GB", profile.name, profile.model, host.capacity_gb.get()),
        format!(
            "  host        {interface}; {} commands at a time; WRR {}",
            host.window.get(),
            wrr_in_words(host.wrr)
        ),
        format!(
            "  controller  a read takes {} here and {} fixed; a write {} and {}; {}",
            time(controller.read_us),
            time(controller.read_fixed_us),
            time(controller.write_us),
            time(controller.write_fixed_us),
            if controller.power_loss_protection {
                "a flush waits for nothing"
            } else {
                "a flush waits for the media"
            },
        ),
        format!(
            "  link        {} MB/s to the host, {} MB/s back",
            link.read_mb_s.get(),
            link.write_mb_s.get()
        ),
        format!(
            "  media       {} channels of {} MB/s, {} dies; {}k pages, read in {}; {}k programmed \
             in {}",
            media.channels.get(),
            media.channel_mb_s.get(),
            profile.dies(),
            media.page_kib.get(),
            time(media.read_us),
            media.program_kib.get(),
            time(media.program_us),
        ),
    ];
    if let Some(garbage) = &profile.garbage {
        let spare = garbage.over_provisioning.get() * 100.0;
        lines
            .push(format!("  garbage     {spare:.1} % spare, an erase {}", time(garbage.erase_us)));
    }
    if let Some(slc) = &profile.slc {
        let (size, program) = (slc.size_gb.get(), time(slc.program_us));
        lines.push(format!("  SLC         {size} GB, programmed in {program}"));
    }
    if let Some(ahead) = &profile.read_ahead {
        let (kib, streams) = (ahead.kib.get(), ahead.streams.get());
        lines.push(format!("  read ahead  {kib}k of each of {streams} streams"));
    }
    if let Some(pages) = controller.pages_at_once {
        lines.push(format!("  turns       {} pages of a read at once", pages.get()));
    }
    lines.join("\n")
}

fn points_table(points: &[Comparison<'_>]) -> String {
    let mut table = plain_table();
    table.set_header(["load", "size", "depth", "state", "known", "model", "off", "source"]);
    for Comparison { point, model, off } in points {
        let show = |value: f64| match (point.iops, point.latency_us) {
            (Some(_), _) => format!("{} IOPS", show_count(value)),
            (_, Some(_)) => show_duration(value * 1e3),
            _ => show_bandwidth(value * 1e6),
        };
        let known = [point.iops, point.latency_us, point.mb_s]
            .into_iter()
            .flatten()
            .next()
            .unwrap_or(f64::NAN);
        let load = match point.load {
            Load::RandomRead => "random read",
            Load::RandomWrite => "random write",
            Load::SequentialRead => "sequential read",
            Load::SequentialWrite => "sequential write",
        };
        table.add_row([
            load.to_owned(),
            format!("{}k", point.kib.get()),
            point.depth.get().to_string(),
            if point.state == State::Fresh { "fresh" } else { "steady" }.to_owned(),
            show(known),
            show(*model),
            format!("{off:+.1} %"),
            point.source.clone(),
        ]);
    }
    align_right(&mut table);
    if let Some(column) = table.column_mut(7) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    table.to_string()
}
