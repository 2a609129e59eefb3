//! `fairq kernel metrics`: counters of the kernel's schedulers, for Prometheus.
//!
//! Names end in their unit, counters in `_total`, as those of `serve` do. Labels are `device` and
//! `cgroup`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use super::sysfs::{Cgroup, Counts, Drive, Machine};
use crate::operate::metrics::Text;

/// Prints the metrics, or writes them to a file periodically.
pub(super) fn run(machine: &Machine, output: Option<&Path>, every: Duration) -> anyhow::Result<()> {
    let Some(path) = output else { return super::print(&text(machine)) };
    loop {
        write(path, &text(machine))
            .with_context(|| format!("cannot write {} (--output)", path.display()))?;
        std::thread::sleep(every);
    }
}

/// Replaces the file, so that readers see the old text or the new one.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".fairq")
        // By default only the owner can read a temporary file, and the node exporter is another
        // user.
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// A family with a sample for each cgroup on each drive.
type Family = (&'static str, &'static str, &'static str, fn(&Counts) -> f64);

const FAMILIES: [Family; 12] = [
    ("read_bytes_total", "counter", "Bytes read for a cgroup", |counts| counts.read_bytes as f64),
    ("written_bytes_total", "counter", "Bytes written for a cgroup", |counts| {
        counts.written_bytes as f64
    }),
    ("other_bytes_total", "counter", "Bytes discarded or zeroed for a cgroup", |counts| {
        counts.other_bytes as f64
    }),
    ("reads_total", "counter", "Reads completed for a cgroup", |counts| counts.reads as f64),
    ("writes_total", "counter", "Writes completed for a cgroup", |counts| counts.writes as f64),
    ("others_total", "counter", "Discards and zeroings completed for a cgroup", |counts| {
        counts.others as f64
    }),
    ("wait_seconds_total", "counter", "Time of a cgroup's requests in the scheduler", |counts| {
        counts.wait_us as f64 / 1e6
    }),
    ("device_seconds_total", "counter", "Time of a cgroup's requests on the drive", |counts| {
        counts.device_us as f64 / 1e6
    }),
    (
        "throttled_requests_total",
        "counter",
        "Requests of a cgroup that were throttled: a later request was issued first, or the \
         scheduler issued none at that moment",
        |counts| counts.throttled as f64,
    ),
    (
        "entitled",
        "gauge",
        "The part of the drive to which a cgroup is entitled now, from 0 to 1",
        |counts| counts.entitled / 100.0,
    ),
    ("staged_requests", "gauge", "Requests of a cgroup that the scheduler holds", |counts| {
        counts.staged as f64
    }),
    ("in_flight_requests", "gauge", "Requests of a cgroup on the drive", |counts| {
        counts.in_flight as f64
    }),
];

fn text(machine: &Machine) -> String {
    let drives = machine.drives();
    let cgroups = machine.cgroups();
    let mut text = Text::default();
    text.family("fairq_kernel_scheduler_info", "gauge", "The scheduler that a drive has");
    for Drive { name, scheduler, .. } in &drives {
        text.sample(
            "fairq_kernel_scheduler_info",
            &[("device", name), ("scheduler", scheduler)],
            1.0,
        );
    }
    let ours: Vec<_> = drives.iter().filter(|drive| drive.knobs.is_some()).collect();
    for (key, kind, help) in [
        ("slots", "gauge", "D: the most requests on the drive; 0 without a bound"),
        ("free_slots", "gauge", "Slots of D that are free"),
        ("throttles", "counter", "Times a port stopped, too far ahead of virtual time"),
        ("blocks", "counter", "Times a port stopped because no slot was free"),
        ("wakes", "counter", "Wake-ups that ports sent to other ports"),
    ] {
        let total = if kind == "counter" { "_total" } else { "" };
        let family = format!("fairq_kernel_{key}{total}");
        text.family(&family, kind, help);
        for drive in &ours {
            let value = drive.statistics.get(key).and_then(|value| value.parse().ok());
            if let Some(value) = value {
                text.sample(&family, &[("device", &drive.name)], value);
            }
        }
    }
    text.family("fairq_kernel_cgroup_weight", "gauge", "A cgroup's weight on a drive");
    for (drive, Cgroup { name, weights, .. }, _) in each(&ours, &cgroups) {
        if let Some(weights) = weights {
            let labels = [("device", drive.name.as_str()), ("cgroup", name)];
            let weight = weights.on(&drive.number);
            text.sample("fairq_kernel_cgroup_weight", &labels, weight.into());
        }
    }
    for (name, kind, help, value) in FAMILIES {
        let family = format!("fairq_kernel_cgroup_{name}");
        text.family(&family, kind, help);
        for (drive, cgroup, counts) in each(&ours, &cgroups) {
            let labels = [("device", drive.name.as_str()), ("cgroup", &cgroup.name)];
            text.sample(&family, &labels, value(counts));
        }
    }
    text.into_text()
}

/// The pairs of a cgroup and a drive that the cgroup has used.
fn each<'a>(
    drives: &'a [&'a Drive],
    cgroups: &'a [Cgroup],
) -> impl Iterator<Item = (&'a Drive, &'a Cgroup, &'a Counts)> {
    drives.iter().flat_map(move |drive| {
        cgroups.iter().filter_map(move |cgroup| {
            cgroup.counts.get(&drive.number).map(|counts| (*drive, cgroup, counts))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::machine;
    use super::*;

    #[test]
    fn what_is_counted_is_exposed() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let line =
            "259:0 rbytes=12000 rios=12 wait_usec=1200000 throttled=7 entitled=75.00 staged=5\n";
        std::fs::write(root.path().join("cgroups/db/io.fairq.stat"), line).unwrap();
        let path = root.path().join("fairq.prom");
        write(&path, &text(&machine)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for line in [
            "fairq_kernel_scheduler_info{device=\"n1\",scheduler=\"none\"} 1",
            "fairq_kernel_free_slots{device=\"n0\"} 3",
            "fairq_kernel_cgroup_weight{device=\"n0\",cgroup=\"db\"} 300",
            "fairq_kernel_cgroup_read_bytes_total{device=\"n0\",cgroup=\"db\"} 12000",
            "fairq_kernel_cgroup_wait_seconds_total{device=\"n0\",cgroup=\"db\"} 1.2",
            "fairq_kernel_cgroup_throttled_requests_total{device=\"n0\",cgroup=\"db\"} 7",
            "fairq_kernel_cgroup_entitled{device=\"n0\",cgroup=\"db\"} 0.75",
        ] {
            assert!(text.lines().any(|said| said == line), "{line} in {text}");
        }
        assert!(!text.contains("cgroup=\"web\""), "it has not used the drive");
    }
}
