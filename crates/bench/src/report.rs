//! The results of `fairq bench`: as one JSON object, and as tables for people.

use comfy_table::Table;
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent};
use serde::{Deserialize, Serialize};

use crate::fairness::{Demand, entitled, jain};
use crate::series::Series;

/// All runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// One run for each policy, in the order of the runs.
    pub runs: Vec<Run>,
}

/// One policy's run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The label of the policy.
    pub policy: String,
    /// Length of the measurement, in seconds.
    pub seconds: f64,
    /// Requests a second, of all flows.
    pub iops: f64,
    /// Bytes a second, of all flows.
    pub bytes_per_s: f64,
    /// Jain's index of share over entitled: 1 when every tenant has exactly its entitled share.
    /// Tenants that are entitled to nothing because they were not present do not count.
    pub jain_weighted: f64,
    /// CPU time of this process for each request, in nanoseconds.
    pub cpu_ns_per_io: f64,
    /// D, the most requests on the device, at the end; null if there is none, or it was not found.
    #[serde(default)]
    pub slots: Option<u64>,
    /// Utilization of the parts of a simulated SSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// One entry for each tenant, in the order of the arguments.
    pub flows: Vec<Flow>,
    /// The service over time, if `--series` was given or tenants started or stopped during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// Utilization of the parts of a simulated SSD, from 0 to 1; means where there are several.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// The controller.
    pub controller: f64,
    /// Dies that read.
    pub reads: f64,
    /// Dies that program.
    pub programs: f64,
    /// Dies that move data to make room.
    pub moves: f64,
    /// Dies that erase.
    pub erases: f64,
    /// The channels.
    pub channels: f64,
    /// The link to the host; for SATA, the link in both directions.
    pub link_out: f64,
    /// The link to the device.
    pub link_in: f64,
    /// Mean fill level of the write buffer.
    pub buffer: f64,
    /// Write amplification, where the device maps pages: writes to the media for each write of the
    /// host.
    pub amplification: Option<f64>,
}

/// Reads the utilization of one part from a device.
pub type Part = fn(&Device) -> f64;

impl Device {
    /// The parts by their keys, the buffer last.
    pub const PARTS: [(&'static str, Part); 9] = [
        ("controller", |device| device.controller),
        ("reads", |device| device.reads),
        ("programs", |device| device.programs),
        ("moves", |device| device.moves),
        ("erases", |device| device.erases),
        ("channels", |device| device.channels),
        ("link_out", |device| device.link_out),
        ("link_in", |device| device.link_in),
        ("buffer", |device| device.buffer),
    ];

    /// The utilization as one line of text.
    pub fn text(&self) -> String {
        let told = |part: Part| (part(self), show_percent(part(self)));
        Device::line(told, self.amplification.map(|times| format!("{times:.2}")))
    }

    /// The line, from each part's value and text, and from the amplification.
    pub fn line(told: impl Fn(Part) -> (f64, String), amplification: Option<String>) -> String {
        let [parts @ .., (buffer, of_buffer)] = Device::PARTS;
        let mut text = "device: ".to_owned();
        for (name, part) in parts {
            // A part that would be shown as 0 does not help to find the bottleneck.
            let (value, shown) = told(part);
            if value >= 0.0005 {
                text += &format!("{} {shown}, ", name.replace('_', " "));
            }
        }
        text += &format!("{buffer} {} full", told(of_buffer).1);
        if let Some(times) = amplification {
            text += &format!(", written {times} times");
        }
        text
    }
}

/// The service of one tenant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Flow {
    /// The tenant.
    pub name: String,
    /// Its weight.
    pub weight: u16,
    /// The fraction of all bytes to which it is entitled.
    pub entitled: f64,
    /// The fraction of all bytes that it received.
    pub share: f64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Mean latency, in nanoseconds.
    #[serde(default)]
    pub mean_ns: f64,
    /// Median latency, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of latency, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of latency, in nanoseconds.
    pub p999_ns: u64,
    /// Its bytes a second alone, divided by those of this run; null if it did not run alone.
    pub slowdown: Option<f64>,
    /// Latencies in nanoseconds, to three digits, each with its number of requests; only on
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Vec<(u64, u64)>>,
}

/// The raw measurements of one tenant.
#[derive(Clone, Debug)]
pub struct Got {
    /// The tenant.
    pub name: String,
    /// Its weight.
    pub weight: u16,
    /// The most bytes a second that it submitted.
    pub rate: Option<u64>,
    /// Number of completed requests.
    pub operations: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Mean latency, in nanoseconds.
    pub mean_ns: f64,
    /// Median latency, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of latency, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile of latency, in nanoseconds.
    pub p999_ns: u64,
    /// Its bytes a second alone on the device.
    pub alone: Option<f64>,
    /// Latencies in nanoseconds, each with its number of requests; only on request.
    pub histogram: Option<Vec<(u64, u64)>>,
}

impl Run {
    /// Derives shares, rates and the index from the measurements. If there is a series, entitled
    /// shares come from it, because it has the times at which each tenant was present.
    pub fn new(
        policy: &str,
        seconds: f64,
        cpu_ns: f64,
        got: &[Got],
        series: Option<Series>,
    ) -> Run {
        let operations: u64 = got.iter().map(|flow| flow.operations).sum();
        let bytes: u64 = got.iter().map(|flow| flow.bytes).sum();
        let demands: Vec<Demand> = got
            .iter()
            .map(|flow| Demand {
                weight: f64::from(flow.weight),
                most: flow.rate.map_or(f64::INFINITY, |rate| rate as f64 * seconds),
            })
            .collect();
        // Without a series, or with a series without a byte, entitled shares follow from the
        // weights.
        let entitled = series
            .as_ref()
            .and_then(Series::entitled)
            .unwrap_or_else(|| entitled(&demands, bytes as f64));
        let fraction =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let flows: Vec<Flow> = got
            .iter()
            .zip(&entitled)
            .map(|(flow, &entitled)| {
                let bytes_per_s = flow.bytes as f64 / seconds;
                Flow {
                    name: flow.name.clone(),
                    weight: flow.weight,
                    entitled,
                    share: fraction(flow.bytes, bytes),
                    iops: flow.operations as f64 / seconds,
                    bytes_per_s,
                    mean_ns: flow.mean_ns,
                    p50_ns: flow.p50_ns,
                    p99_ns: flow.p99_ns,
                    p999_ns: flow.p999_ns,
                    // With no bytes the slowdown would be infinite, which JSON cannot represent.
                    slowdown: flow
                        .alone
                        .filter(|_| flow.bytes > 0)
                        .map(|alone| alone / bytes_per_s),
                    histogram: flow.histogram.clone(),
                }
            })
            .collect();
        Run {
            policy: policy.to_owned(),
            seconds,
            iops: operations as f64 / seconds,
            bytes_per_s: bytes as f64 / seconds,
            jain_weighted: jain(
                flows
                    .iter()
                    .filter(|flow| flow.entitled > 0.0)
                    .map(|flow| flow.share / flow.entitled),
            ),
            cpu_ns_per_io: if operations == 0 { 0.0 } else { cpu_ns / operations as f64 },
            slots: None,
            device: None,
            flows,
            series,
        }
    }
}

impl Report {
    /// The tables, and a comparison of the policies.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let name_width = self.runs.iter().map(|run| run.policy.len()).max().unwrap_or(0);
        for run in &self.runs {
            text += &run.text(name_width);
            text.push('\n');
        }
        text + &self.comparison(name_width)
    }

    /// Each policy's throughput relative to the first one's: in bytes, because requests may differ
    /// in size.
    fn comparison(&self, name_width: usize) -> String {
        let Some((first, others)) =
            self.runs.split_first().filter(|(first, _)| first.bytes_per_s > 0.0)
        else {
            return String::new();
        };
        let line = |run: &Run| {
            format!(
                "{:<name_width$} keeps {:.1} % of the throughput of {}\n",
                run.policy,
                100.0 * run.bytes_per_s / first.bytes_per_s,
                first.policy
            )
        };
        others.iter().map(line).collect()
    }
}

impl Run {
    fn text(&self, name_width: usize) -> String {
        // A simulation uses no CPU time.
        let cpu = if self.cpu_ns_per_io > 0.0 {
            format!("  CPU {} a request", show_duration(self.cpu_ns_per_io))
        } else {
            String::new()
        };
        let slots = self.slots.map(|slots| format!("  D {slots}")).unwrap_or_default();
        let device = self.device.as_ref().map(|device| device.text() + "\n").unwrap_or_default();
        format!(
            "{:<name_width$}  {}IOPS  {}  weighted Jain {:.4}{cpu}{slots}\n{}\n{device}{}",
            self.policy,
            with_space(&show_count(self.iops)),
            show_bandwidth(self.bytes_per_s),
            self.jain_weighted,
            self.table(),
            self.series.as_ref().map(Series::text).unwrap_or_default(),
        )
    }

    fn table(&self) -> Table {
        let with_slowdown = self.flows.iter().any(|flow| flow.slowdown.is_some());
        let mut table = plain_table();
        let mut header = vec![
            "tenant",
            "weight",
            "entitled",
            "share",
            "IOPS",
            "bandwidth",
            "p50",
            "p99",
            "p99.9",
        ];
        if with_slowdown {
            header.push("slowdown");
        }
        table.set_header(header);
        for flow in &self.flows {
            let mut row = vec![
                flow.name.clone(),
                flow.weight.to_string(),
                show_percent(flow.entitled),
                show_percent(flow.share),
                show_count(flow.iops),
                show_bandwidth(flow.bytes_per_s),
                show_duration(flow.p50_ns as f64),
                show_duration(flow.p99_ns as f64),
                show_duration(flow.p999_ns as f64),
            ];
            if with_slowdown {
                row.push(flow.slowdown.map_or("–".into(), |slowdown| format!("{slowdown:.2} ×")));
            }
            table.add_row(row);
        }
        align_right(&mut table);
        table
    }
}

/// `99.8 k` to `99.8 k`, `500` to `500 `: a form that a unit can follow.
fn with_space(count: &str) -> String {
    if count.contains(' ') { count.to_owned() } else { format!("{count} ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn got(name: &str, weight: u16, rate: Option<u64>, bytes: u64) -> Got {
        Got {
            name: name.into(),
            weight,
            rate,
            operations: bytes / 4096,
            bytes,
            mean_ns: 85_000.0,
            p50_ns: 80_000,
            p99_ns: 123_456,
            p999_ns: 2_000_000,
            alone: None,
            histogram: None,
        }
    }

    #[test]
    fn exact_shares_have_index_one_and_equal_ones_do_not() {
        let fair = Run::new(
            "mqfq",
            10.0,
            1e9,
            &[got("gold", 300, None, 3_000_000), got("silver", 100, None, 1_000_000)],
            None,
        );
        assert_eq!(fair.jain_weighted, 1.0);
        assert_eq!(fair.flows.iter().map(|flow| flow.entitled).collect::<Vec<_>>(), [0.75, 0.25]);
        assert_eq!(fair.flows.iter().map(|flow| flow.share).collect::<Vec<_>>(), [0.75, 0.25]);
        assert_eq!(fair.bytes_per_s, 400_000.0);
        let even = Run::new(
            "none",
            10.0,
            1e9,
            &[got("gold", 300, None, 2_000_000), got("silver", 100, None, 2_000_000)],
            None,
        );
        // x = 2/3 and 2: (8/3)^2 / (2 (4/9 + 4)).
        assert!((even.jain_weighted - 0.8).abs() < 1e-12);
    }

    #[test]
    fn who_asks_for_less_and_gets_it_does_not_spoil_the_index() {
        let run = Run::new(
            "mqfq",
            10.0,
            0.0,
            &[got("a", 100, None, 3_000_000), got("c", 100, Some(100_000), 1_000_000)],
            None,
        );
        assert_eq!(run.jain_weighted, 1.0);
    }

    #[test]
    fn a_run_in_which_nothing_was_done_has_finite_numbers() {
        let run =
            Run::new("mqfq", 10.0, 1e9, &[got("a", 100, None, 0), got("b", 100, None, 0)], None);
        assert_eq!((run.jain_weighted, run.cpu_ns_per_io), (0.0, 0.0));
        let json = serde_json::to_string(&run).unwrap();
        assert!(
            !json.contains("_per_io\":null")
                && !json.contains("_weighted\":null")
                && serde_json::from_str::<Run>(&json).unwrap() == run,
            "{json}"
        );
    }

    #[test]
    fn the_json_has_exactly_these_keys() {
        let alone = Got { alone: Some(600_000.0), ..got("gold", 300, None, 3_000_000) };
        let run = Run::new("mqfq", 10.0, 2e6, &[alone, got("silver", 100, None, 1_000_000)], None);
        let json = serde_json::to_value(Report { runs: vec![run] }).unwrap();
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let sorted = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.iter().map(|name| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&json), ["runs"]);
        let run = &json["runs"][0];
        let expected = [
            "policy",
            "seconds",
            "iops",
            "bytes_per_s",
            "jain_weighted",
            "cpu_ns_per_io",
            "slots",
            "flows",
        ];
        assert_eq!(keys(run), sorted(expected.to_vec()));
        let expected = [
            "name",
            "weight",
            "entitled",
            "share",
            "iops",
            "bytes_per_s",
            "mean_ns",
            "p50_ns",
            "p99_ns",
            "p999_ns",
            "slowdown",
        ];
        assert_eq!(keys(&run["flows"][0]), sorted(expected.to_vec()));
        assert_eq!(run["flows"][0]["slowdown"], 2.0);
        assert_eq!(run["flows"][1]["slowdown"], serde_json::Value::Null);
    }

    #[test]
    fn the_table_stands_in_columns() {
        let run = |policy: &str, gold, silver| {
            Run::new(
                policy,
                10.0,
                1e9,
                &[got("gold", 300, None, gold), got("silver", 100, None, silver)],
                None,
            )
        };
        let held = Run { slots: Some(16), ..run("mqfq", 3_040_000_000, 1_015_808_000) };
        let report = Report { runs: vec![run("none", 2_048_000_000, 2_048_000_000), held] };
        let expected = "\
none  100 kIOPS  410 MB/s  weighted Jain 0.8000  CPU 1.00 µs a request
 tenant   weight   entitled    share     IOPS   bandwidth       p50      p99     p99.9 
───────────────────────────────────────────────────────────────────────────────────────
 gold        300     75.0 %   50.0 %   50.0 k    205 MB/s   80.0 µs   123 µs   2.00 ms 
 silver      100     25.0 %   50.0 %   50.0 k    205 MB/s   80.0 µs   123 µs   2.00 ms 
";
        assert!(report.text().starts_with(expected), "{}", report.text());
        assert!(report.text().contains("CPU 1.01 µs a request  D 16\n"), "{}", report.text());
        assert!(
            report.text().ends_with("mqfq keeps 99.0 % of the throughput of none\n"),
            "{}",
            report.text()
        );
    }
}
