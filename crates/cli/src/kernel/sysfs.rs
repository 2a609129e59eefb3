//! The files of the kernel: drives and their schedulers, cgroups and their weights and counts.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fairq_config::refusal::Refusal;

/// The folders of the kernel's files.
#[derive(Debug)]
pub(super) struct Machine {
    sys: PathBuf,
    /// The root of cgroups of the second version.
    cgroups: PathBuf,
}

/// A drive.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Drive {
    pub(super) name: String,
    /// `MAJ:MIN`, as cgroups name it.
    pub(super) number: String,
    pub(super) scheduler: String,
    pub(super) nr_requests: String,
    /// The settings of its scheduler, if that is one of fairq's.
    pub(super) knobs: Option<BTreeMap<String, String>>,
    /// The scheduler's statistics.
    pub(super) statistics: BTreeMap<String, String>,
}

/// A cgroup's weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Weights {
    pub(super) usual: u32,
    /// Weights by `MAJ:MIN`.
    pub(super) own: BTreeMap<String, u32>,
}

impl Weights {
    /// The weight on a drive.
    pub(super) fn on(&self, number: &str) -> u32 {
        self.own.get(number).copied().unwrap_or(self.usual)
    }

    /// Reads `default N` and lines `MAJ:MIN N`.
    pub(super) fn parse(text: &str) -> Option<Weights> {
        let mut weights = Weights { usual: 100, own: BTreeMap::new() };
        for line in text.lines() {
            let (key, weight) = line.split_once(' ')?;
            let weight = weight.trim().parse().ok()?;
            match key {
                "default" => weights.usual = weight,
                number => drop(weights.own.insert(number.to_owned(), weight)),
            }
        }
        Some(weights)
    }
}

/// A cgroup's use of a drive, since the start or in an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Counts {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) other_bytes: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) others: u64,
    pub(super) wait_us: u64,
    pub(super) device_us: u64,
    /// Requests that the scheduler throttled.
    pub(super) throttled: u64,
    /// The part of the drive to which the cgroup is entitled now, in percent.
    pub(super) entitled: f64,
    /// Requests that are staged, and on the drive, now.
    pub(super) staged: u64,
    pub(super) in_flight: u64,
}

impl Counts {
    /// The drive's number and the counts in a line of `io.fairq.stat`.
    fn parse(line: &str) -> Option<(&str, Counts)> {
        let mut words = line.split_whitespace();
        let number = words.next()?;
        let mut counts = Counts::default();
        for word in words {
            let (key, value) = word.split_once('=')?;
            let field = match key {
                "rbytes" => &mut counts.read_bytes,
                "wbytes" => &mut counts.written_bytes,
                "obytes" => &mut counts.other_bytes,
                "rios" => &mut counts.reads,
                "wios" => &mut counts.writes,
                "oios" => &mut counts.others,
                "wait_usec" => &mut counts.wait_us,
                "device_usec" => &mut counts.device_us,
                "throttled" => &mut counts.throttled,
                "staged" => &mut counts.staged,
                "inflight" => &mut counts.in_flight,
                "entitled" => {
                    counts.entitled = value.parse().ok()?;
                    continue;
                }
                // Later versions of the module may have more counters.
                _ => continue,
            };
            *field = value.parse().ok()?;
        }
        Some((number, counts))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes + self.other_bytes
    }

    pub(super) fn requests(&self) -> u64 {
        self.reads + self.writes + self.others
    }
}

/// A cgroup.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Cgroup {
    /// Path below the root; the root is `/`.
    pub(super) name: String,
    /// `None` for the root.
    pub(super) weights: Option<Weights>,
    /// Counts by `MAJ:MIN`.
    pub(super) counts: BTreeMap<String, Counts>,
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

impl Machine {
    /// This machine.
    pub(super) fn found() -> anyhow::Result<Machine> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        let mount = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.get(2) == Some(&"cgroup2"))
            .and_then(|words| words.get(1).map(PathBuf::from));
        let cgroups = mount.ok_or_else(|| {
            Refusal::new(
                "cgroups of the second version are not mounted: boot with \
                 systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 cgroup /sys/fs/cgroup",
            )
        })?;
        Ok(Machine { sys: "/sys".into(), cgroups })
    }

    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Machine {
        Machine { sys: root.join("sys"), cgroups: root.join("cgroups") }
    }

    /// Refuses if the module is not loaded.
    pub(super) fn has_module(&self) -> anyhow::Result<()> {
        if self.sys.join("module/fairq").exists() {
            return Ok(());
        }
        Err(Refusal::new(
            "the module fairq is not loaded: modprobe fairq, or select one of its schedulers \
             (fairq kernel set DEVICE scheduler=mqfq); kernel/README.md says how it is installed",
        )
        .into())
    }

    fn queue(&self, device: &str) -> PathBuf {
        self.sys.join("block").join(device).join("queue")
    }

    /// All drives that have schedulers.
    pub(super) fn drives(&self) -> Vec<Drive> {
        let names = names(&self.sys.join("block"));
        names.iter().filter_map(|name| self.drive(name)).collect()
    }

    fn drive(&self, name: &str) -> Option<Drive> {
        let queue = self.queue(name);
        let scheduler = read(&queue.join("scheduler"))?;
        let selected = scheduler
            .split_whitespace()
            .find_map(|word| word.strip_prefix('[').and_then(|word| word.strip_suffix(']')));
        // Only fairq's schedulers have statistics there.
        let statistics = read(&queue.join("iosched/stats"));
        let knobs = statistics.as_ref().map(|_| {
            let folder = queue.join("iosched");
            let knobs = names(&folder).into_iter().filter(|name| name != "stats");
            knobs.filter_map(|knob| Some((knob.clone(), read(&folder.join(knob))?))).collect()
        });
        let statistics = statistics.unwrap_or_default();
        let pair = |line: &str| line.split_once(' ').map(|(key, value)| (key.into(), value.into()));
        Some(Drive {
            name: name.to_owned(),
            number: read(&self.sys.join("block").join(name).join("dev"))?,
            // The file of a drive that cannot have a scheduler contains `none` without brackets.
            scheduler: selected.unwrap_or(&scheduler).to_owned(),
            nr_requests: read(&queue.join("nr_requests")).unwrap_or_default(),
            knobs,
            statistics: statistics.lines().filter_map(pair).collect(),
        })
    }

    /// The drives of these names, or all that have one of fairq's schedulers.
    pub(super) fn chosen(&self, devices: &[String]) -> anyhow::Result<Vec<Drive>> {
        let mut drives = self.drives();
        if devices.is_empty() {
            drives.retain(|drive| drive.knobs.is_some());
            return Ok(drives);
        }
        let one = |device: &String| {
            let name = device.strip_prefix("/dev/").unwrap_or(device);
            let found = drives.iter().find(|drive| drive.name == name).cloned();
            found.ok_or_else(|| self.no_drive(device).into())
        };
        devices.iter().map(one).collect()
    }

    fn no_drive(&self, device: &str) -> Refusal {
        let known: Vec<_> = self.drives().into_iter().map(|drive| drive.name).collect();
        Refusal::new(format!(
            "there is no drive `{device}` with a scheduler; those with a scheduler are {} (a \
             partition has the scheduler of its drive)",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ))
    }

    /// All cgroups, parents before children.
    pub(super) fn cgroups(&self) -> Vec<Cgroup> {
        let mut found = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(name) = folders.pop() {
            let folder = self.cgroups.join(&name);
            // A cgroup may have been removed after its parent was read; it is then treated as one
            // without children.
            let below = fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_folder =
                |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            let mut below: Vec<_> = below
                .filter(is_folder)
                .filter_map(|entry| entry.file_name().into_string().ok())
                .map(|child| if name.is_empty() { child } else { format!("{name}/{child}") })
                .collect();
            // The loop takes the last folder first.
            below.sort_by(|one, other| other.cmp(one));
            folders.append(&mut below);
            let stat = read(&folder.join("io.fairq.stat")).unwrap_or_default();
            let counts = stat.lines().filter_map(Counts::parse);
            found.push(Cgroup {
                counts: counts.map(|(number, counts)| (number.to_owned(), counts)).collect(),
                weights: read(&folder.join("io.fairq.weight"))
                    .and_then(|text| Weights::parse(&text)),
                name: if name.is_empty() { "/".into() } else { name },
            });
        }
        found
    }

    /// Whether the kernel has io.cost, and with it an io.weight for cgroups below the root.
    pub(super) fn has_io_weights(&self) -> bool {
        self.cgroups.join("io.cost.qos").exists()
    }

    /// The io.weight of a cgroup.
    pub(super) fn io_weights(&self, cgroup: &str) -> Option<Weights> {
        Weights::parse(&read(&self.cgroups.join(cgroup).join("io.weight"))?)
    }

    /// Writes a line to `io.fairq.weight`.
    pub(super) fn write_weight(&self, cgroup: &str, line: &str) -> std::io::Result<()> {
        fs::write(self.cgroups.join(cgroup).join("io.fairq.weight"), line)
    }

    /// `fairq kernel weight`.
    pub(super) fn weigh(
        &self,
        cgroup: &str,
        weight: &str,
        device: Option<&str>,
    ) -> anyhow::Result<()> {
        let is_number = weight.parse().is_ok_and(|weight| (1..=10_000).contains(&weight));
        if !is_number && weight != "default" {
            let text = format!("`{weight}` is not a weight: write 1 to 10000, or default");
            return Err(Refusal::new(text).into());
        }
        let whole = Path::new(cgroup);
        let below = whole.strip_prefix(&self.cgroups).unwrap_or(whole);
        let name = below.to_string_lossy().trim_matches('/').to_owned();
        let file = self.cgroups.join(&name).join("io.fairq.weight");
        if name.is_empty() {
            return Err(Refusal::new("the root of cgroups has no weight: name one below").into());
        }
        if !self.cgroups.join(&name).is_dir() {
            let text = format!("there is no cgroup `{name}` in {}", self.cgroups.display());
            return Err(Refusal::new(text).into());
        }
        if !file.exists() {
            // The file may be absent because the module is not loaded, or because the parent does
            // not enable the io controller.
            self.has_module()?;
            let parent = Path::new(&name).parent().unwrap_or(Path::new(""));
            return Err(Refusal::new(format!(
                "{} is missing, because the parent does not enable the io controller: echo +io > \
                 {}",
                file.display(),
                self.cgroups.join(parent).join("cgroup.subtree_control").display()
            ))
            .into());
        }
        let line = match device {
            // The value for all drives has to be a number; 100 is the default of a new cgroup.
            None if weight == "default" => "default 100".to_owned(),
            None => format!("default {weight}"),
            Some(device) => {
                let drive = self.chosen(&[device.to_owned()])?.remove(0);
                if drive.knobs.is_none() {
                    return Err(not_ours(&drive).into());
                }
                format!("{} {weight}", drive.number)
            }
        };
        self.write_weight(&name, &line).with_context(|| denied(&file, &line))
    }

    /// `fairq kernel set`.
    pub(super) fn set(&self, device: &str, values: &[String]) -> anyhow::Result<()> {
        let drive = self.chosen(&[device.to_owned()])?.remove(0);
        let mut pairs = Vec::new();
        for value in values {
            let Some(pair) = value.split_once('=') else {
                let text = format!("`{value}` is not KEY=VALUE, as scheduler=mqfq is");
                return Err(Refusal::new(text).into());
            };
            pairs.push(pair);
        }
        // The scheduler is set first, because its settings depend on it.
        pairs.sort_by_key(|(key, _)| *key != "scheduler");
        pairs.iter().try_for_each(|(key, value)| self.set_one(&drive, key, value))
    }

    fn set_one(&self, drive: &Drive, key: &str, value: &str) -> anyhow::Result<()> {
        let queue = self.queue(&drive.name);
        let file = match key {
            "scheduler" | "nr_requests" => queue.join(key),
            _ => queue.join("iosched").join(key),
        };
        // A key is the name of one file: a path could lead out of the folder.
        if key.contains('/') || key == "stats" || !file.exists() {
            // The drive may have another scheduler by now.
            let drive = self.drive(&drive.name).unwrap_or(drive.clone());
            let Some(knobs) = &drive.knobs else { return Err(not_ours(&drive).into()) };
            let known: Vec<_> = knobs.keys().cloned().collect();
            return Err(Refusal::new(format!(
                "{} takes no `{key}`: there are scheduler, nr_requests, {}",
                drive.scheduler,
                known.join(", ")
            ))
            .into());
        }
        match again_if_busy(|| fs::write(&file, value)) {
            Ok(()) => Ok(()),
            // The kernel refuses a value by EINVAL; the file lists the valid ones.
            Err(error) if error.kind() == ErrorKind::InvalidInput && key == "scheduler" => {
                let known = read(&file).unwrap_or_default();
                Err(Refusal::new(format!(
                    "there is no scheduler `{value}`: {} has {known}; if fairq's are missing, run \
                     modprobe fairq",
                    drive.name
                ))
                .into())
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let now = read(&file).unwrap_or_default();
                let text = format!("{key} cannot be `{value}`; it is {now} now");
                Err(Refusal::new(text).into())
            }
            Err(error) => Err(error).with_context(|| denied(&file, value)),
        }
    }
}

/// Repeats a write for up to two seconds: the kernel refuses a write to a queue's file by EBUSY
/// while another write changes the same queue, which takes some milliseconds.
fn again_if_busy(mut write: impl FnMut() -> std::io::Result<()>) -> std::io::Result<()> {
    for _ in 0..100 {
        match write() {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
    write()
}

fn not_ours(drive: &Drive) -> Refusal {
    Refusal::new(format!(
        "{} has the scheduler {}, which is none of fairq's: fairq kernel set {} scheduler=mqfq",
        drive.name, drive.scheduler, drive.name
    ))
}

fn denied(file: &Path, text: &str) -> String {
    format!("cannot write `{text}` to {} (only root may write it)", file.display())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine with a drive `n0` under mqfq, `n1` under none, and cgroups `db` and `web/front`.
    pub(in super::super) fn machine(root: &Path) -> Machine {
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/module/fairq/refcnt", "1\n");
        write("sys/block/n0/dev", "259:0\n");
        write("sys/block/n0/queue/scheduler", "none [mqfq] sfqd\n");
        write("sys/block/n0/queue/nr_requests", "256\n");
        write("sys/block/n0/queue/iosched/slots", "16\n");
        write("sys/block/n0/queue/iosched/threshold", "auto\n");
        write("sys/block/n0/queue/iosched/stats", "slots 16\nfree_slots 3\nsearch off\n");
        write("sys/block/n1/dev", "259:1\n");
        write("sys/block/n1/queue/scheduler", "[none] mqfq sfqd\n");
        write("sys/block/n1/queue/nr_requests", "64\n");
        write("cgroups/io.fairq.stat", "");
        for (name, weight) in [("db", 300), ("web", 100), ("web/front", 50)] {
            write(&format!("cgroups/{name}/io.fairq.weight"), &format!("default {weight}\n"));
            write(&format!("cgroups/{name}/io.weight"), "default 100\n");
            write(&format!("cgroups/{name}/io.fairq.stat"), "");
        }
        write("cgroups/bare/cgroup.procs", "");
        Machine::at(root)
    }

    #[test]
    fn a_line_of_counts_is_read_whatever_else_it_tells() {
        let line = "259:0 rbytes=8192 wbytes=1 obytes=0 rios=2 wios=1 oios=0 wait_usec=70 \
                    device_usec=9 throttled=6 entitled=62.50 staged=4 inflight=1 lag=17 new=x";
        let (number, counts) = Counts::parse(line).unwrap();
        assert_eq!((number, counts.bytes(), counts.requests()), ("259:0", 8193, 3));
        assert_eq!((counts.entitled, counts.staged, counts.in_flight), (62.5, 4, 1));
        assert_eq!(counts.throttled, 6);
        assert_eq!(Counts::parse("259:0 rbytes=many"), None);
    }

    #[test]
    fn drives_and_cgroups_are_found() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let drives = machine.drives();
        assert_eq!((drives[0].scheduler.as_str(), drives[0].number.as_str()), ("mqfq", "259:0"));
        assert_eq!(drives[0].knobs.as_ref().unwrap()["threshold"], "auto");
        assert_eq!(drives[0].statistics["free_slots"], "3");
        assert_eq!((drives[1].scheduler.as_str(), &drives[1].knobs), ("none", &None));
        let names: Vec<_> = machine.cgroups().into_iter().map(|cgroup| cgroup.name).collect();
        assert_eq!(names, ["/", "bare", "db", "web", "web/front"]);
        assert_eq!(machine.chosen(&[]).unwrap().len(), 1);
        let error = machine.chosen(&["n2".into()]).unwrap_err().to_string();
        assert!(error.contains("are n0, n1"), "{error}");
    }

    #[test]
    fn what_is_set_is_written_and_what_cannot_be_says_why() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let set = |device: &str, values: &[&str]| {
            let values: Vec<_> = values.iter().map(|value| value.to_string()).collect();
            machine.set(device, &values).map_err(|error| error.to_string())
        };
        let file =
            |path: &str| fs::read_to_string(root.path().join("sys/block").join(path)).unwrap();
        set("/dev/n0", &["slots=auto", "scheduler=sfqd", "nr_requests=512"]).unwrap();
        assert_eq!(file("n0/queue/iosched/slots"), "auto");
        assert_eq!(
            (file("n0/queue/scheduler"), file("n0/queue/nr_requests")),
            ("sfqd".into(), "512".into())
        );
        for (device, value, why) in [
            ("n1", "slots=8", "fairq kernel set n1 scheduler=mqfq"),
            ("n0", "slots", "is not KEY=VALUE"),
            ("n0", "depth=8", "there are scheduler, nr_requests, slots, threshold"),
            ("n0", "stats=8", "takes no `stats`"),
            ("n0", "../nr_requests=8", "takes no `../nr_requests`"),
        ] {
            let error = set(device, &[value]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_queue_that_another_write_changes_is_written_to_again() {
        let mut refusals = [ErrorKind::ResourceBusy, ErrorKind::ResourceBusy].into_iter();
        again_if_busy(|| refusals.next().map_or(Ok(()), |kind| Err(kind.into()))).unwrap();
        assert_eq!(refusals.next(), None);
        let mut calls = 0;
        let denied = again_if_busy(|| {
            calls += 1;
            Err(ErrorKind::PermissionDenied.into())
        });
        assert_eq!((denied.unwrap_err().kind(), calls), (ErrorKind::PermissionDenied, 1));
    }

    #[test]
    fn a_weight_goes_to_the_cgroup_it_is_for() {
        let root = tempfile::tempdir().unwrap();
        let machine = machine(root.path());
        let file = |name: &str| {
            let path = root.path().join("cgroups").join(name).join("io.fairq.weight");
            fs::read_to_string(path).unwrap()
        };
        machine.weigh("/web/front", "400", None).unwrap();
        assert_eq!(file("web/front"), "default 400");
        let whole = root.path().join("cgroups/db");
        machine.weigh(whole.to_str().unwrap(), "default", Some("n0")).unwrap();
        assert_eq!(file("db"), "259:0 default");
        for (cgroup, weight, device, why) in [
            ("db", "0", None, "1 to 10000"),
            ("db", "7", Some("n1"), "none of fairq's"),
            ("bare", "7", None, "cgroup.subtree_control"),
            ("gone", "7", None, "there is no cgroup `gone`"),
            ("/", "7", None, "the root"),
        ] {
            let error = machine.weigh(cgroup, weight, device).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
