//! Reads fio job files, because users have them: each job becomes a tenant of `fairq bench`.
//!
//! This module uses the keys that describe a job's load. Keys that only describe fio's own work
//! (engine, files, logs) have no effect here; an unknown key is named in a warning, and a key that
//! would change the load in an unsupported way is an error with its line. Numbers are fio's: k is
//! 1024, a rate is for each of `numjobs`, `thinktime` is in microseconds and `runtime` in seconds
//! if they have no unit, as `startdelay` is.
//!
//! The weight is `cgroup_weight`, or is proportional to 8 - `prio`, as in the kernel's schedulers:
//! the default `prio` of 4 gives the default weight, 100.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fairq_config::files::read_text;
use fairq_config::refusal::Refusal;
use fairq_config::units::{Bandwidth, Count, Nanos, Size};

use crate::job::{Job, JobTable, Pattern};

/// Keys that describe fio's own work, not the load.
const WITHOUT_EFFECT: &[&str] = &[
    "allow_file_create",
    "buffered",
    "clat_percentiles",
    "create_on_open",
    "create_serialize",
    "description",
    "direct",
    "directory",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "end_fsync",
    "exitall",
    "fallocate",
    "file_service_type",
    "filename",
    "filename_format",
    "fill_device",
    "group_reporting",
    "gtod_reduce",
    "hipri",
    "fixedbufs",
    "registerfiles",
    "invalidate",
    "ioengine",
    "lat_percentiles",
    "log_avg_msec",
    "loops",
    "new_group",
    "norandommap",
    "nrfiles",
    "percentile_list",
    "randrepeat",
    "random_generator",
    "randseed",
    "allrandrepeat",
    "refill_buffers",
    "scramble_buffers",
    "significant_figures",
    "sqthread_poll",
    "thread",
    "time_based",
    "unified_rw_reporting",
    "unlink",
    "uri",
    "userspace_reap",
    "write_bw_log",
    "write_iops_log",
    "write_lat_log",
    "zero_buffers",
    "cgroup",
    "prioclass",
    "cpus_allowed",
    "cpus_allowed_policy",
    "filesize",
    "overwrite",
    "per_job_logs",
];

/// Unsupported keys that would change the load, and the reason.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("blockalign", "requests are aligned to their size"),
    ("bsrange", "requests of a tenant have one size: use bs"),
    ("bssplit", "requests of a tenant have one size: use bs"),
    ("bs_unaligned", "requests are aligned to their size"),
    ("blocksize_range", "requests of a tenant have one size: use bs"),
    ("fdatasync", "there is no flushing load"),
    ("fsync", "there is no flushing load"),
    ("include", "give the included file's lines here"),
    ("io_size", "a run ends by time: use runtime"),
    ("number_ios", "a run ends by time: use runtime"),
    ("offset", "each tenant has a range of its own: use size"),
    ("rate_process", "requests come evenly: use rate or rate_iops alone"),
    ("read_iolog", "there are no replayed loads"),
    ("stonewall", "tenants run at the same time: put the jobs after it into another file"),
    ("verify", "use fio itself, with ioengine=nbd, for verification"),
    ("wait_for", "tenants run at the same time: put the jobs after it into another file"),
    ("zonemode", "there are no zones"),
];

/// The contents of a job file.
#[derive(Clone, PartialEq, Debug)]
pub struct FioFile {
    /// Its jobs, in order.
    pub jobs: Vec<Job>,
    /// Length of the measurement.
    pub runtime: Option<Duration>,
    /// Length of the run before the measurement.
    pub ramp: Option<Duration>,
    /// Warnings about ignored keys.
    pub warnings: Vec<String>,
}

/// A section's keys, each with its value and line.
type Keys = BTreeMap<String, (String, usize)>;

struct Reader<'a> {
    path: &'a str,
    warnings: Vec<String>,
}

/// Reads a job file.
pub fn load(path: &Path) -> Result<FioFile, Refusal> {
    let text = read_text(path)?;
    parse(&text, &path.display().to_string())
}

/// Reads jobs; `path` is for messages.
pub fn parse(text: &str, path: &str) -> Result<FioFile, Refusal> {
    let mut reader = Reader { path, warnings: Vec::new() };
    let sections = reader.sections(text)?;
    let mut jobs: Vec<Job> = Vec::new();
    let mut runtime: Option<Duration> = None;
    let mut ramp: Option<Duration> = None;
    for (name, line, keys) in &sections {
        let job = reader.job(name, *line, keys)?;
        if jobs.iter().any(|earlier| earlier.name == job.name) {
            return Err(reader.refuse(
                *line,
                format!("job {} is already there: rename one, or use numjobs", job.name),
            ));
        }
        jobs.push(job);
        for (key, slot) in [("runtime", &mut runtime), ("ramp_time", &mut ramp)] {
            let Some((value, line)) = keys.get(key) else { continue };
            let Nanos(ns) = reader.time(key, value, "s", *line)?;
            let time = Duration::from_nanos(ns);
            if slot.is_some_and(|earlier| earlier != time) {
                return Err(reader.refuse(
                    *line,
                    format!(
                        "{key} {value} differs from that of the other jobs: all jobs run for \
                             the same time"
                    ),
                ));
            }
            *slot = Some(time);
        }
    }
    if jobs.is_empty() {
        return Err(Refusal::new(format!(
            "{path}: there is no job in it: a line such as [db] begins one"
        )));
    }
    Ok(FioFile { jobs, runtime, ramp, warnings: reader.warnings })
}

impl Reader<'_> {
    fn refuse(&self, line: usize, text: impl std::fmt::Display) -> Refusal {
        Refusal::new(format!("{}:{line}: {text}", self.path))
    }

    fn value<T: std::str::FromStr<Err = String>>(
        &self,
        key: &str,
        value: &str,
        line: usize,
    ) -> Result<T, Refusal> {
        value.parse().map_err(|text: String| self.refuse(line, format_args!("{key}: {text}")))
    }

    /// The jobs' names, lines and keys, with the keys of `[global]` filled in.
    fn sections(&mut self, text: &str) -> Result<Vec<(String, usize, Keys)>, Refusal> {
        let mut global = Keys::new();
        let mut jobs: Vec<(String, usize, Keys)> = Vec::new();
        let mut in_global = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let line = line.split([';', '#']).next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let name = name
                    .strip_suffix(']')
                    .ok_or_else(|| self.refuse(number, "a section ends with `]`"))?
                    .trim();
                in_global = Some(name == "global");
                // As in fio, a job has the keys of the `[global]` sections above it, not of those
                // below.
                if name != "global" {
                    jobs.push((name.to_owned(), number, global.clone()));
                }
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let keys = match (in_global, jobs.last_mut()) {
                (Some(true), _) => &mut global,
                (Some(false), Some((_, _, keys))) => keys,
                _ => {
                    return Err(self.refuse(
                        number,
                        "a key comes after the [section] it belongs \
                     to",
                    ));
                }
            };
            if let Some(key) = self.check_key(key.trim(), number)? {
                keys.insert(key, (value.trim().to_owned(), number));
            }
        }
        Ok(jobs)
    }

    /// The key by its usual name; `None` if the key has no effect.
    fn check_key(&mut self, key: &str, line: usize) -> Result<Option<String>, Refusal> {
        let key = match key {
            "blocksize" => "bs",
            "readwrite" => "rw",
            "timeout" => "runtime",
            "iodepth" | "numjobs" | "bs" | "rw" | "rwmixread" | "rwmixwrite" | "size"
            | "runtime" | "ramp_time" | "rate" | "rate_iops" | "thinktime" | "startdelay"
            | "cgroup_weight" | "prio" | "name" => key,
            _ if WITHOUT_EFFECT.contains(&key) => return Ok(None),
            _ => {
                // If such a key were ignored silently, the load would differ from the file's.
                if let Some((_, why)) = UNSUPPORTED.iter().find(|(name, _)| *name == key) {
                    return Err(
                        self.refuse(line, format_args!("`{key}` is not supported here: {why}"))
                    );
                }
                self.warnings.push(format!("{}:{line}: unknown key `{key}` is ignored", self.path));
                return Ok(None);
            }
        };
        Ok(Some(key.to_owned()))
    }

    fn job(&mut self, section: &str, line: usize, keys: &Keys) -> Result<Job, Refusal> {
        let get = |key: &str| keys.get(key).map(|(value, line)| (value.as_str(), *line));
        let size = |key: &str| {
            get(key)
                .map(|(value, line)| self.value::<Size>(key, one(self, key, value, line)?, line))
        };
        let count = |key: &str| get(key).map(|(value, line)| self.value::<Count>(key, value, line));
        let jobs = count("numjobs").transpose()?;
        let rw = get("rw").map(|(value, line)| self.pattern(value, line)).transpose()?;
        // A mix in [global] applies to the jobs that read and write.
        let mixed = matches!(rw, Some(Pattern::Rw | Pattern::RandRw));
        let copies = jobs.map_or(1, |Count(jobs)| jobs);
        // `JobTable` also refuses this, but has only the section's line.
        if let (Some((_, one)), Some((_, two))) = (get("rate"), get("rate_iops")) {
            return Err(self.refuse(
                one.max(two),
                "rate and rate_iops are two words for one limit: leave one out",
            ));
        }
        // fio limits each of a job's copies, `JobTable` the tenant as a whole.
        let per_job = |bytes: u64| bytes.saturating_mul(copies);
        let table = JobTable {
            // A tenant's name may contain neither a space nor a slash.
            name: get("name").map_or(section, |(name, _)| name).replace([' ', '/'], "-"),
            weight: self.weight(keys)?,
            bs: size("bs").transpose()?,
            // The defaults of this key and of `rw` are those of fio, which differ from those of
            // `--tenant`.
            depth: Some(count("iodepth").transpose()?.unwrap_or(Count(1))),
            jobs,
            rw: Some(rw.unwrap_or(Pattern::Read)),
            rwmix: if mixed { self.mix(keys)? } else { None },
            rate: size("rate")
                .transpose()?
                .filter(|size| size.0 > 0)
                .map(|Size(bytes)| Bandwidth(per_job(bytes))),
            iops: count("rate_iops")
                .transpose()?
                .filter(|count| count.0 > 0)
                .map(|Count(iops)| Count(per_job(iops))),
            think: get("thinktime")
                .map(|(value, line)| self.time("thinktime", value, "us", line))
                .transpose()?,
            start: get("startdelay")
                .map(|(value, line)| self.time("startdelay", value, "s", line))
                .transpose()?,
            size: match get("size") {
                // A percentage refers to a file, and there is none here: the tenant has an equal
                // part of the device.
                Some((value, _)) if value.ends_with('%') => None,
                _ => size("size").transpose()?,
            },
            ..JobTable::default()
        };
        table.complete().map_err(|refusal| self.refuse(line, refusal))
    }

    fn pattern(&self, value: &str, line: usize) -> Result<Pattern, Refusal> {
        Ok(match value {
            "read" => Pattern::Read,
            "write" => Pattern::Write,
            "randread" => Pattern::RandRead,
            "randwrite" => Pattern::RandWrite,
            "rw" | "readwrite" => Pattern::Rw,
            "randrw" => Pattern::RandRw,
            _ => {
                return Err(self.refuse(
                    line,
                    format_args!(
                        "rw={value} is not supported here (allowed: read, write, randread, \
                         randwrite, rw, randrw)"
                    ),
                ));
            }
        })
    }

    fn mix(&self, keys: &Keys) -> Result<Option<Count>, Refusal> {
        let percent = |key: &str| {
            let Some((value, line)) = keys.get(key) else { return Ok(None) };
            let Count(percent) = self.value(key, value.trim_end_matches('%'), *line)?;
            if percent > 100 {
                return Err(self.refuse(*line, format_args!("{key} {percent} is more than 100 %")));
            }
            Ok(Some((percent, *line)))
        };
        match (percent("rwmixread")?, percent("rwmixwrite")?) {
            (Some((read, one)), Some((write, two))) if read + write != 100 => Err(self.refuse(
                one.max(two),
                format_args!("rwmixread {read} and rwmixwrite {write} do not make 100"),
            )),
            (Some((read, _)), _) => Ok(Some(Count(read))),
            (None, Some((write, _))) => Ok(Some(Count(100 - write))),
            (None, None) => Ok(None),
        }
    }

    fn weight(&self, keys: &Keys) -> Result<Option<fairq_core::Weight>, Refusal> {
        match (keys.get("cgroup_weight"), keys.get("prio")) {
            (Some((_, one)), Some((_, two))) => Err(self.refuse(
                *one.max(two),
                "cgroup_weight and prio both set the weight: leave one out",
            )),
            (Some((value, line)), None) => fairq_config::weight::parse_weight(value)
                .map(Some)
                .map_err(|text| self.refuse(*line, format_args!("cgroup_weight: {text}"))),
            (None, Some((value, line))) => {
                // 0 is the highest of the kernel's priorities and 7 the lowest.
                let prio = value.parse::<u16>().ok().filter(|prio| *prio <= 7);
                let prio = prio.ok_or_else(|| {
                    self.refuse(*line, format_args!("prio {value} is not in 0..7"))
                })?;
                Ok(fairq_core::Weight::new((8 - prio) * 25))
            }
            (None, None) => Ok(None),
        }
    }

    /// A time, in `unit` if it has none.
    fn time(&self, key: &str, value: &str, unit: &str, line: usize) -> Result<Nanos, Refusal> {
        let has_none = value.chars().all(|c| c.is_ascii_digit());
        let with_unit = if has_none { format!("{value}{unit}") } else { value.to_owned() };
        self.value(key, &with_unit, line)
    }
}

/// fio has values for `read,write,trim`; here all must be equal.
fn one<'a>(
    reader: &Reader<'_>,
    key: &str,
    value: &'a str,
    line: usize,
) -> Result<&'a str, Refusal> {
    let mut values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
    let first = values.next().unwrap_or("");
    if values.all(|value| value == first) {
        return Ok(first);
    }
    Err(reader.refuse(
        line,
        format_args!("{key}={value}: reads and writes cannot differ here: give one value"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<FioFile, String> {
        parse(text, "two.fio").map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_file_as_users_have_them() {
        let file = read(
            "; two \
             tenants\n[global]\nioengine=libaio\ndirect=1\ntime_based\nruntime=30\nramp_time=2s\nbs=4k\n\
             rwmixread=70\ngroup_reporting\n\n[db]\nrw=randrw\niodepth=64\nnumjobs=2\nrate=10m\ncgroup_weight=300\n\
             size=1g  # \
             each\n\n[scan]\nrw=read\nblocksize=128k,128k\niodepth=8\nprio=7\nthinktime=50\nstartdelay=5\nfrobnicate=1\n",
        )
        .unwrap();
        let db: Job = "db=weight:300,bs:4k,depth:64,jobs:2,rw:randrw,rwmix:70,rate:20M,size:1G"
            .parse()
            .unwrap();
        let scan: Job =
            "scan=weight:25,bs:128k,depth:8,rw:read,think:50us,start:5s".parse().unwrap();
        assert_eq!(file.jobs, [db, scan]);
        assert_eq!(
            (file.runtime, file.ramp),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(2)))
        );
        assert_eq!(file.warnings, ["two.fio:27: unknown key `frobnicate` is ignored"]);
    }

    #[test]
    fn defaults_are_those_of_fio() {
        let file = read("[a job]\nrate_iops=500\n").unwrap();
        assert_eq!(file.jobs, ["a-job=bs:4k,depth:1,rw:read,iops:500".parse().unwrap()]);
        assert_eq!((file.runtime, file.ramp), (None, None));
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_line() {
        let refusal = |text: &str| read(text).unwrap_err();
        assert_eq!(refusal("bs=4k\n"), "two.fio:1: a key comes after the [section] it belongs to");
        assert_eq!(refusal("[a\n"), "two.fio:1: a section ends with `]`");
        assert_eq!(
            refusal("[global]\nbs=4k\n"),
            "two.fio: there is no job in it: a line such as [db] begins one"
        );
        assert_eq!(
            refusal("[a]\n[a]\n"),
            "two.fio:2: job a is already there: rename one, or use numjobs"
        );
        assert_eq!(
            refusal("[a]\nbssplit=4k/50:8k/50\n"),
            "two.fio:2: `bssplit` is not supported here: requests of a tenant have one size: use bs"
        );
        assert_eq!(
            refusal("[a]\n[b]\nstonewall\n"),
            "two.fio:3: `stonewall` is not supported here: tenants run at the same time: put the \
             jobs after it into another file"
        );
        assert_eq!(
            refusal("[a]\nrw=trim\n"),
            "two.fio:2: rw=trim is not supported here (allowed: read, write, randread, randwrite, \
             rw, randrw)"
        );
        assert_eq!(
            refusal("[a]\nbs=4k,8k\n"),
            "two.fio:2: bs=4k,8k: reads and writes cannot differ here: give one value"
        );
        assert_eq!(
            refusal("[a]\nrate=1m\nrate_iops=5\n"),
            "two.fio:3: rate and rate_iops are two words for one limit: leave one out"
        );
        assert_eq!(
            refusal("[a]\nrw=rw\nrwmixread=70\nrwmixwrite=40\n"),
            "two.fio:4: rwmixread 70 and rwmixwrite 40 do not make 100"
        );
        assert_eq!(
            refusal("[a]\nruntime=10\n[b]\nruntime=20\n"),
            "two.fio:4: runtime 20 differs from that of the other jobs: all jobs run for the same \
             time"
        );
        assert_eq!(refusal("[a]\nprio=9\n"), "two.fio:2: prio 9 is not in 0..7");
        assert_eq!(
            refusal("[a]\nbs=four\n"),
            "two.fio:2: bs: `four` is not a size: write bytes, or binary units as in 4k, 64KiB, \
             1.5G, 2T (1k = 1024)"
        );
        assert_eq!(refusal("\n[a]\niodepth=0\n"), "two.fio:2: tenant a: depth 0 is not in 1..4096");
    }
}
