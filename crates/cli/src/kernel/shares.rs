//! The share of each drive that each cgroup got between two samples.

use std::time::{Duration, Instant};

use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent};
use serde_json::{Value, json};

use super::sysfs::{Cgroup, Counts, Drive, Machine};

/// A cgroup on a drive.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Line {
    pub(super) cgroup: String,
    /// The weight on the drive; `None` for the root cgroup.
    pub(super) weight: Option<u32>,
    /// The counts between the two samples.
    pub(super) counts: Counts,
    /// Its part of the bytes of all cgroups.
    pub(super) share: f64,
}

/// Drives, and the cgroups that use them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Shares {
    pub(super) seconds: f64,
    pub(super) drives: Vec<(Drive, Vec<Line>)>,
}

/// Takes two samples with this pause.
pub(super) fn two_looks(
    machine: &Machine,
    devices: &[String],
    pause: Duration,
) -> anyhow::Result<Shares> {
    let (first, began) = (machine.cgroups(), Instant::now());
    std::thread::sleep(pause);
    let drives = machine.chosen(devices)?;
    Ok(between(&first, &machine.cgroups(), drives, began.elapsed().as_secs_f64()))
}

/// The counts between two samples.
pub(super) fn between(
    first: &[Cgroup],
    second: &[Cgroup],
    drives: Vec<Drive>,
    seconds: f64,
) -> Shares {
    let before = |cgroup: &Cgroup, number: &str| {
        let same = first.iter().find(|old| old.name == cgroup.name);
        same.and_then(|old| old.counts.get(number)).copied().unwrap_or_default()
    };
    let lines = |drive: Drive| {
        let number = drive.number.clone();
        let mut lines: Vec<Line> = second
            .iter()
            .filter_map(|cgroup| {
                let counts = less(cgroup.counts.get(&number)?, &before(cgroup, &number));
                let weight = cgroup.weights.as_ref().map(|weights| weights.on(&number));
                Some(Line { cgroup: cgroup.name.clone(), weight, counts, share: 0.0 })
            })
            .collect();
        let all: u64 = lines.iter().map(|line| line.counts.bytes()).sum();
        for line in &mut lines {
            line.share = line.counts.bytes() as f64 / all.max(1) as f64;
        }
        (drive, lines)
    };
    Shares { seconds, drives: drives.into_iter().map(lines).collect() }
}

/// The counts since an earlier sample. A cgroup or a scheduler that was removed and made again
/// counts from 0.
fn less(now: &Counts, before: &Counts) -> Counts {
    // The number of requests only grows, so a smaller one means a new count.
    let is_new = now.requests() < before.requests();
    let from = |value: u64, before: u64| if is_new { value } else { value.saturating_sub(before) };
    Counts {
        read_bytes: from(now.read_bytes, before.read_bytes),
        written_bytes: from(now.written_bytes, before.written_bytes),
        other_bytes: from(now.other_bytes, before.other_bytes),
        reads: from(now.reads, before.reads),
        writes: from(now.writes, before.writes),
        others: from(now.others, before.others),
        wait_us: from(now.wait_us, before.wait_us),
        device_us: from(now.device_us, before.device_us),
        throttled: from(now.throttled, before.throttled),
        ..*now
    }
}

impl Line {
    fn is_active(&self) -> bool {
        let Counts { staged, in_flight, .. } = self.counts;
        self.counts.requests() + staged + in_flight > 0
    }

    /// A request's mean time before the device and on it, in nanoseconds.
    fn times_ns(&self) -> (f64, f64) {
        let each = |us: u64| us as f64 * 1000.0 / self.counts.requests().max(1) as f64;
        (each(self.counts.wait_us), each(self.counts.device_us))
    }

    /// The text of each of [`COLUMNS`]; the cgroup's name has at most `name` columns.
    fn cells(&self, seconds: f64, name: usize) -> [String; COLUMNS.len()] {
        let (name, weight) =
            (shortened(&self.cgroup, name), self.weight.map_or("–".into(), |w| w.to_string()));
        if !self.is_active() {
            let mut cells = COLUMNS.map(|_| String::new());
            [cells[0], cells[1]] = [name, weight];
            return cells;
        }
        let (wait_ns, device_ns) = self.times_ns();
        [
            name,
            weight,
            show_percent(self.counts.entitled / 100.0),
            show_percent(self.share),
            show_count(self.counts.requests() as f64 / seconds),
            show_bandwidth(self.counts.bytes() as f64 / seconds),
            self.counts.staged.to_string(),
            self.counts.in_flight.to_string(),
            show_duration(wait_ns),
            show_duration(device_ns),
        ]
    }
}

const COLUMNS: [&str; 10] = [
    "cgroup",
    "weight",
    "entitled",
    "share",
    "IOPS",
    "bandwidth",
    "staged",
    "in flight",
    "wait",
    "device",
];
/// The columns that are left out if the terminal is too narrow, in this order.
const LESS_URGENT: [&str; 4] = ["in flight", "device", "staged", "bandwidth"];
/// Width of a wide text if nothing else limits it, in columns.
const USUAL_WIDTH: usize = 96;
/// Least width of a cgroup's name, in columns.
const LEAST_NAME: usize = 24;

/// The name, without its middle if it is longer than `most`: names of containers differ mostly at
/// the end.
fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let head = most / 3;
    let tail = most - head - 1;
    let end = name.chars().skip(length - tail);
    name.chars().take(head).chain(['…']).chain(end).collect()
}

/// A table of these cgroups with these columns; names have at most `name` characters.
fn table(lines: &[&Line], seconds: f64, name: usize, columns: &[&str]) -> String {
    let kept = |column: &usize| columns.contains(&COLUMNS[*column]);
    let mut table = plain_table();
    table.set_header(columns);
    for line in lines {
        let cells = line.cells(seconds, name);
        table.add_row((0..COLUMNS.len()).filter(kept).map(|column| &cells[column]));
    }
    align_right(&mut table);
    table.to_string()
}

/// The table in this width: if it is too wide, it gets fewer columns and shorter names.
fn fitted(lines: &[&Line], seconds: f64, width: usize) -> String {
    let longest = lines.iter().map(|line| line.cgroup.chars().count()).max().unwrap_or(0);
    let mut columns = COLUMNS.to_vec();
    let mut less_urgent = LESS_URGENT.iter();
    let mut name = longest;
    loop {
        let text = table(lines, seconds, name, &columns);
        let widest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0);
        let beyond = widest.saturating_sub(width);
        if beyond == 0 {
            return text;
        }
        if name > LEAST_NAME {
            name = name.saturating_sub(beyond).max(LEAST_NAME);
        } else if let Some(column) = less_urgent.next() {
            columns.retain(|kept| kept != column);
            // The removed column may leave room for longer names.
            name = longest;
        } else {
            return text;
        }
    }
}

/// Wraps words into lines of this width; the second and later ones are indented.
fn wrapped(words: &str, width: usize) -> String {
    let mut column = 0;
    let mut text = String::new();
    for word in words.split(' ') {
        if column > 0 && column + 1 + word.len() > width {
            text.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text
}

impl Shares {
    /// A paragraph for each drive, wrapped to this width if there is one.
    pub(super) fn text(&self, width: Option<usize>) -> String {
        if self.drives.is_empty() {
            return "no drive has one of fairq's schedulers: fairq kernel set DEVICE scheduler=mqfq"
                .into();
        }
        let drive = |(drive, lines): &(Drive, Vec<Line>)| {
            let Some(knobs) = &drive.knobs else {
                return format!("{}: {}, none of fairq's\n", drive.name, drive.scheduler);
            };
            let told = |map: &std::collections::BTreeMap<String, String>| {
                let pairs = map.iter().map(|(key, value)| format!("{key}={value}"));
                pairs.collect::<Vec<_>>().join(" ")
            };
            let Drive { name, number, scheduler, nr_requests, statistics, .. } = drive;
            let head = format!(
                "{name} ({number}): {scheduler}, nr_requests={nr_requests} {}",
                told(knobs)
            );
            let room = width.unwrap_or(USUAL_WIDTH).min(USUAL_WIDTH);
            // Statistics are indented by two.
            let statistics = wrapped(&told(statistics), room.saturating_sub(2));
            let mut shown: Vec<&Line> = lines.iter().collect();
            shown.sort_by(|one, other| other.share.total_cmp(&one.share));
            let table = fitted(&shown, self.seconds, width.unwrap_or(usize::MAX));
            format!("{}\n  {statistics}\n{table}\n", wrapped(&head, room))
        };
        self.drives.iter().map(drive).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn json(&self) -> Value {
        let line = |line: &Line| {
            let (wait_ns, device_ns) = line.times_ns();
            json!({
                "cgroup": line.cgroup,
                "weight": line.weight,
                "entitled": line.counts.entitled / 100.0,
                "share": line.share,
                "requests_per_s": line.counts.requests() as f64 / self.seconds,
                "bytes_per_s": line.counts.bytes() as f64 / self.seconds,
                "throttled_per_s": line.counts.throttled as f64 / self.seconds,
                "staged": line.counts.staged,
                "in_flight": line.counts.in_flight,
                "wait_ns": wait_ns,
                "device_ns": device_ns,
            })
        };
        let drive = |(drive, lines): &(Drive, Vec<Line>)| {
            json!({
                "device": drive.name,
                "number": drive.number,
                "scheduler": drive.scheduler,
                "nr_requests": drive.nr_requests.parse::<u64>().ok(),
                "knobs": drive.knobs,
                "statistics": drive.statistics,
                "cgroups": lines.iter().map(line).collect::<Vec<_>>(),
            })
        };
        json!({
            "seconds": self.seconds,
            "devices": self.drives.iter().map(drive).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::machine;
    use super::*;

    #[test]
    fn shares_are_of_what_was_counted_between_the_looks() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let count = |name: &str, line: &str| {
            std::fs::write(root.path().join("cgroups").join(name).join("io.fairq.stat"), line)
                .unwrap();
        };
        count("db", "259:0 rbytes=9000 rios=9 wait_usec=900 device_usec=90 entitled=0.00");
        let first = machine.cgroups();
        let now =
            "259:0 rbytes=12000 rios=12 wait_usec=1200 device_usec=390 entitled=75.00 staged=5";
        count("db", now);
        count("web/front", "259:0 wbytes=1000 wios=1 entitled=25.00\n");
        let shares = between(&first, &machine.cgroups(), machine.chosen(&[]).unwrap(), 2.0);
        let [(drive, lines)] = &shares.drives[..] else { panic!("{shares:?}") };
        assert_eq!((drive.name.as_str(), lines.len()), ("n0", 2));
        assert_eq!(
            (lines[0].cgroup.as_str(), lines[0].weight, lines[0].share),
            ("db", Some(300), 0.75)
        );
        let json = shares.json();
        let db = &json["devices"][0]["cgroups"][0];
        assert_eq!((&db["bytes_per_s"], &db["requests_per_s"]), (&json!(1500.0), &json!(1.5)));
        assert_eq!((&db["wait_ns"], &db["device_ns"]), (&json!(100_000.0), &json!(100_000.0)));
        let text = shares.text(None);
        assert!(
            text.contains("n0 (259:0): mqfq, nr_requests=256 slots=16 threshold=auto"),
            "{text}"
        );
        assert!(text.contains("75.0 %") && text.contains("web/front"), "{text}");
    }

    #[test]
    fn many_knobs_are_all_seen_beside_a_table() {
        let text = wrapped(&["threshold=4k"; 20].join(" "), USUAL_WIDTH);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.len() <= 96), "{text}");
        assert_eq!(text.split_whitespace().count(), 20, "{text}");
    }

    #[test]
    fn a_table_fits_where_containers_have_long_names() {
        let pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0123456789.slice";
        let line = |digit: &str| Line {
            cgroup: format!("{pod}/cri-containerd-{}.scope", digit.repeat(64)),
            weight: Some(100),
            counts: Counts { reads: 9000, read_bytes: 36_000_000, ..Counts::default() },
            share: 0.5,
        };
        let (one, other) = (line("1"), line("2"));
        let widest = |text: &str| text.lines().map(|line| line.trim_end().chars().count()).max();
        for width in [80, 100, 132] {
            let text = fitted(&[&one, &other], 1.0, width);
            assert!(widest(&text) <= Some(width), "{text}");
            assert!(text.contains("kubepods") && text.contains("entitled"), "{text}");
            assert!(text.contains("111.scope") && text.contains("222.scope"), "{text}");
            assert_eq!(text.contains("in flight"), width > 100, "{text}");
        }
        assert!(fitted(&[&one], 1.0, usize::MAX).contains(&one.cgroup));
        assert_eq!(fitted(&[&one], 1.0, 10).lines().count(), 3, "too narrow for anything");
    }

    #[test]
    fn a_cgroup_made_anew_counts_from_nothing() {
        let now = Counts { reads: 2, read_bytes: 20, ..Counts::default() };
        let before = Counts { reads: 5, read_bytes: 10, ..Counts::default() };
        assert_eq!((less(&now, &before).reads, less(&now, &before).read_bytes), (2, 20));
    }
}
