//! The load of one tenant of `fairq bench`: `--tenant
//! NAME=weight:300,bs:4k,depth:128,jobs:4,rw:randread`.
//!
//! The keys have fio's names and meanings: `depth` is for each of `jobs`; a rate is for the tenant
//! as a whole.

use std::str::FromStr;

use fairq_config::caps::Burst;
use fairq_config::group;
use fairq_config::name::check_name;
use fairq_config::pairs::{self, Pair};
use fairq_config::refusal::Refusal;
use fairq_config::units::{
    Bandwidth, Count, Nanos, Part, Percentile, Size, exact_size, show_duration,
};
use fairq_config::{latency, weight};
use fairq_core::{Caps, Reservation, Target, Weight};
use serde::Deserialize;

/// Bytes of one request.
const BLOCK: std::ops::RangeInclusive<u64> = 512..=32 << 20;
/// Requests that one job keeps in flight.
const DEPTH: std::ops::RangeInclusive<u64> = 1..=4096;
/// Jobs of one tenant.
const JOBS: std::ops::RangeInclusive<u64> = 1..=256;

/// Reads, writes or both, one after the other or at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads and writes.
    #[serde(alias = "readwrite")]
    Rw,
    /// Random reads and writes.
    RandRw,
}

impl Pattern {
    /// Whether offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw)
    }

    fn is_mixed(self) -> bool {
        matches!(self, Pattern::Rw | Pattern::RandRw)
    }
}

/// A tenant's load as it is written.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct JobTable {
    pub(crate) name: String,
    #[serde(default, deserialize_with = "weight::weight")]
    pub(crate) weight: Option<Weight>,
    pub(crate) urgent: Option<bool>,
    pub(crate) latency: Option<Nanos>,
    pub(crate) latency_percentile: Option<Percentile>,
    pub(crate) floor: Option<Part>,
    pub(crate) max_iops: Option<Count>,
    pub(crate) read_max_iops: Option<Count>,
    pub(crate) write_max_iops: Option<Count>,
    pub(crate) max_bandwidth: Option<Bandwidth>,
    pub(crate) read_max_bandwidth: Option<Bandwidth>,
    pub(crate) write_max_bandwidth: Option<Bandwidth>,
    pub(crate) burst: Option<Burst>,
    pub(crate) min_iops: Option<Count>,
    pub(crate) min_bandwidth: Option<Bandwidth>,
    pub(crate) group: Option<String>,
    pub(crate) bs: Option<Size>,
    pub(crate) depth: Option<Count>,
    pub(crate) jobs: Option<Count>,
    pub(crate) rw: Option<Pattern>,
    pub(crate) rwmix: Option<Count>,
    pub(crate) rate: Option<Bandwidth>,
    pub(crate) iops: Option<Count>,
    pub(crate) think: Option<Nanos>,
    pub(crate) start: Option<Nanos>,
    pub(crate) stop: Option<Nanos>,
    pub(crate) size: Option<Size>,
    pub(crate) export: Option<String>,
}

/// A tenant's load, complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The tenant.
    pub name: String,
    /// Its weight relative to the others'.
    pub weight: Weight,
    /// Whether it may use the urgent class, within the policy's budget.
    pub urgent: bool,
    /// The latency target of its requests.
    pub target: Option<Target>,
    /// Its caps.
    pub caps: Caps,
    /// The name of its group.
    pub group: Option<String>,
    /// Its reservation.
    pub reservation: Reservation,
    /// Bytes of one request.
    pub block: u32,
    /// Requests that each job keeps in flight.
    pub depth: u16,
    /// Number of jobs that run at once.
    pub jobs: u16,
    /// Whether offsets are random.
    pub random: bool,
    /// Percentage of requests that are reads.
    pub read_percent: u8,
    /// The most bytes a second that the tenant submits, all its jobs together.
    pub rate: Option<u64>,
    /// Pause between a completion and the request that follows it, in nanoseconds.
    pub think_ns: u64,
    /// Start of the load, in nanoseconds from the start of the measurement.
    pub starts_ns: u64,
    /// End of the load, in nanoseconds from the start of the measurement; `u64::MAX` if it does not
    /// end.
    pub stops_ns: u64,
    /// Size of its part of the device, in bytes; an equal part by default.
    pub size: Option<u64>,
    /// The export to which it connects, if that is not the tenant's name.
    pub export: Option<String>,
}

impl FromStr for Job {
    type Err = String;

    fn from_str(text: &str) -> Result<Job, String> {
        // `db,weight=300` is the same as `db=weight:300`, because `serve` takes that form.
        let (name, rest) = match text.find(['=', ':', ',']) {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, ""),
        };
        let mut list = vec![Pair::new("name", name.trim())];
        list.extend(pairs::pairs(&pairs::items(rest)));
        let table: JobTable = pairs::read(list)?;
        table.complete().map_err(|refusal| refusal.to_string())
    }
}

impl JobTable {
    /// Fills in the defaults and refuses illegal values.
    pub(crate) fn complete(self) -> Result<Job, Refusal> {
        check_name(&self.name).map_err(Refusal::new)?;
        let refuse = |text: String| Err(Refusal::new(format!("tenant {}: {text}", self.name)));
        let Size(block) = self.bs.unwrap_or(Size(4096));
        if !BLOCK.contains(&block) || block % 512 != 0 {
            return refuse(format!(
                "bs {} is not a multiple of 512 from 512 to 32M",
                exact_size(block)
            ));
        }
        let Count(depth) = self.depth.unwrap_or(Count(32));
        if !DEPTH.contains(&depth) {
            return refuse(format!("depth {depth} is not in {}..{}", DEPTH.start(), DEPTH.end()));
        }
        let Count(jobs) = self.jobs.unwrap_or(Count(1));
        if !JOBS.contains(&jobs) {
            return refuse(format!("jobs {jobs} is not in {}..{}", JOBS.start(), JOBS.end()));
        }
        let pattern = self.rw.unwrap_or(Pattern::RandRead);
        let read_percent = match (pattern, self.rwmix) {
            // Before the pattern, so that the last arm's cast to u8 loses nothing.
            (_, Some(Count(percent))) if percent > 100 => {
                return refuse(format!("rwmix {percent} is more than 100 %"));
            }
            (pattern, Some(_)) if !pattern.is_mixed() => {
                return refuse("rwmix needs reads and writes: add rw:rw or rw:randrw".into());
            }
            (Pattern::Read | Pattern::RandRead, _) => 100,
            (Pattern::Write | Pattern::RandWrite, _) => 0,
            (Pattern::Rw | Pattern::RandRw, mix) => mix.map_or(50, |Count(percent)| percent as u8),
        };
        let rate = match (self.rate, self.iops) {
            (Some(_), Some(_)) => {
                return refuse("rate and iops are two words for one limit: leave one out".into());
            }
            (Some(Bandwidth(0)), None) => {
                return refuse("rate 0 would do nothing: leave the tenant out".into());
            }
            (None, Some(Count(0))) => {
                return refuse("iops 0 would do nothing: leave the tenant out".into());
            }
            // A limit beyond the range of `u64` limits nothing, like the greatest one.
            (None, Some(Count(iops))) => Some(iops.saturating_mul(block)),
            (rate, None) => rate.map(|Bandwidth(bytes)| bytes),
        };
        // A tenant's range has whole blocks only, so this one would be empty.
        if let Some(Size(size)) = self.size
            && size < block
        {
            return refuse(format!(
                "size {} is less than one block of {}",
                exact_size(size),
                exact_size(block)
            ));
        }
        let target = match latency::target(self.latency, self.latency_percentile, self.floor) {
            Ok(target) => target,
            Err(text) => return refuse(text),
        };
        let caps = match fairq_config::caps_of!(self).caps() {
            Ok(caps) => caps,
            Err(text) => return refuse(text),
        };
        let reserved = group::Written { iops: self.min_iops, bandwidth: self.min_bandwidth };
        let reservation = match reserved.reservation(&caps) {
            Ok(reservation) => reservation,
            Err(text) => return refuse(text),
        };
        let starts_ns = self.start.map_or(0, |Nanos(ns)| ns);
        let stops_ns = self.stop.map_or(u64::MAX, |Nanos(ns)| ns);
        if stops_ns <= starts_ns {
            return refuse(
                "it would stop before it starts: give a stop that is later than start".into(),
            );
        }
        Ok(Job {
            name: self.name,
            weight: self.weight.unwrap_or_default(),
            urgent: self.urgent.unwrap_or(false),
            target,
            caps,
            group: self.group,
            reservation,
            // The three ranges above make the casts safe.
            block: block as u32,
            depth: depth as u16,
            jobs: jobs as u16,
            random: pattern.is_random(),
            read_percent,
            rate,
            think_ns: self.think.map_or(0, |Nanos(ns)| ns),
            starts_ns,
            stops_ns,
            size: self.size.map(|Size(bytes)| bytes),
            export: self.export,
        })
    }
}

impl Job {
    /// Requests in flight of all its jobs.
    pub fn outstanding(&self) -> u32 {
        u32::from(self.depth) * u32::from(self.jobs)
    }

    /// The load in a few words.
    pub fn summary(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let what = match self.read_percent {
            100 => "read".to_owned(),
            0 => "write".to_owned(),
            percent => format!("{percent} % read"),
        };
        let jobs = if self.jobs > 1 { format!("{} × ", self.jobs) } else { String::new() };
        let rate =
            self.rate.map(|rate| format!(", at most {}/s", exact_size(rate))).unwrap_or_default();
        let from = if self.starts_ns > 0 {
            format!(", from {}", show_duration(self.starts_ns as f64))
        } else {
            String::new()
        };
        let until = if self.stops_ns < u64::MAX {
            format!(", until {}", show_duration(self.stops_ns as f64))
        } else {
            String::new()
        };
        format!(
            "{} {order} {what}, depth {jobs}{}{rate}{from}{until}",
            exact_size(self.block.into()),
            self.depth
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::{Cap, Counted, Side};

    #[test]
    fn every_key_is_read() {
        let job: Job =
            "db=weight:300,urgent:true,latency:200us,latency-percentile:99.9,floor:25%,max-iops:1k,min-iops:500,group:acme,bs:64k,depth:128,jobs:4,rw:randrw,rwmix:70,rate:100M/s,think:5us,size:1G,export:x"
                .parse()
                .unwrap();
        let expected = Job {
            name: "db".into(),
            weight: Weight::new(300).unwrap(),
            urgent: true,
            target: Target::new(200_000, 1_000, 25),
            caps: Caps::default().with(Side::Both, Counted::Requests, Cap::new(1000, 100)),
            group: Some("acme".into()),
            reservation: Reservation::new(500, 0).unwrap(),
            block: 65_536,
            depth: 128,
            jobs: 4,
            random: true,
            read_percent: 70,
            rate: Some(100 << 20),
            think_ns: 5_000,
            starts_ns: 0,
            stops_ns: u64::MAX,
            size: Some(1 << 30),
            export: Some("x".into()),
        };
        assert_eq!(job, expected);
        assert_eq!(job.summary(), "64k random 70 % read, depth 4 × 128, at most 100M/s");
        assert_eq!(job.outstanding(), 512);
        let plain: Job = "db".parse().unwrap();
        assert_eq!(plain.summary(), "4k random read, depth 32");
        let guest: Job = "db=start:10s,stop:20s".parse().unwrap();
        assert_eq!(guest.summary(), "4k random read, depth 32, from 10.0 s, until 20.0 s");
        let limited: Job = "db=iops:1k,rw=write".parse().unwrap();
        assert_eq!(
            (limited.rate, limited.read_percent, limited.random),
            (Some(4_096_000), 0, false)
        );
    }

    #[test]
    fn keys_are_written_as_for_serve_too() {
        let [usual, too] = ["db=weight:300,bs:64k", "db,weight=300,bs=64k"]
            .map(|text| text.parse::<Job>().unwrap());
        assert_eq!(usual, too);
    }

    #[test]
    fn refusals_name_the_tenant_and_the_cure() {
        let refusal = |text: &str| text.parse::<Job>().unwrap_err();
        assert_eq!(
            refusal("db=dept:3"),
            "unknown key `dept`; did you mean `depth`? (allowed: name, weight, urgent, latency, \
             latency-percentile, floor, max-iops, read-max-iops, write-max-iops, max-bandwidth, \
             read-max-bandwidth, write-max-bandwidth, burst, min-iops, min-bandwidth, group, bs, \
             depth, jobs, rw, rwmix, rate, iops, think, start, stop, size, export)"
        );
        assert_eq!(
            refusal("db=bs:1000"),
            "tenant db: bs 1000 is not a multiple of 512 from 512 to 32M"
        );
        assert_eq!(refusal("db=depth:0"), "tenant db: depth 0 is not in 1..4096");
        assert_eq!(refusal("db=jobs:1k"), "tenant db: jobs 1000 is not in 1..256");
        assert_eq!(
            refusal("db=rw:random"),
            "rw: unknown value `random`; did you mean `randrw`? (allowed: read, write, randread, \
             randwrite, readwrite, rw, \
             randrw)"
        );
        assert_eq!(
            refusal("db=rwmix:70"),
            "tenant db: rwmix needs reads and writes: add rw:rw or rw:randrw"
        );
        assert_eq!(
            refusal("db=rate:1M/s,iops:5"),
            "tenant db: rate and iops are two words for one limit: leave one out"
        );
        assert_eq!(
            refusal("db=start:2s,stop:1s"),
            "tenant db: it would stop before it starts: give a stop that is later than start"
        );
        assert_eq!(
            refusal("db=latency:0"),
            "tenant db: latency 0ns is not from 1ns to 1h: write the time that a request may take, \
             as in 200us, or leave it out"
        );
        assert_eq!(
            refusal("db=size:4k,bs:64k"),
            "tenant db: size 4k is less than one block of 64k"
        );
        assert_eq!(refusal("=bs:4k"), "a tenant needs a name, as in db=10G,weight=300");
    }
}
