//! `fairq ctl trace`: the decisions of a running server's scheduler, with the numbers behind them.
//!
//! | format | for |
//! |---|---|
//! | `text` | people: a line for each decision |
//! | `perfetto` | ui.perfetto.dev |
//! | `csv` | programs, and `fairq lab run` (`format = "fairq"`), which replays the arrivals |

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use fairq_config::files::Output;
use fairq_config::units::{show_bandwidth, show_count, show_duration};
use serde::Deserialize;
use serde_json::json;

use crate::args::{TraceArgs, TraceFormat};
use crate::connection::Connection;

mod perfetto;

/// The columns of the CSV form; `fairq_sim::trace` reads it.
const COLUMNS: &str = "time_ns,shard,event,tenant,tag,op,offset,bytes,class,free_slots,\
    virtual_time,start_tag,why,store,slots,least_slots,requests_per_s,bytes_per_s";
/// The last columns of a row of a decision, which has no values of D.
const NO_DEPTH: &str = ",,,,,";
/// Name of tenants that were removed after the recording.
const GONE: &str = "(gone)";

/// A decision as the server reports it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Row {
    at_ns: u64,
    kind: String,
    tenant: u16,
    tag: u32,
    op: String,
    offset: u64,
    length: u32,
    class: String,
    free_slots: Option<u32>,
    virtual_time: Option<u64>,
    start_tag: Option<u64>,
    why: Option<String>,
}

/// A new value of D, and the reason for it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Depth {
    at_ns: u64,
    store: Option<String>,
    /// D; `None` for no limit.
    slots: Option<u64>,
    /// The least D that is believed to fill the device.
    least_slots: Option<u64>,
    state: String,
    /// The device's estimated rates with it.
    requests_per_s: Option<u64>,
    bytes_per_s: Option<u64>,
}

/// The records of all shards, in the order of time.
#[derive(Debug)]
struct Recorded {
    rows: Vec<(usize, Row)>,
    /// The values of D; empty if the server does not search for D.
    depths: Vec<Depth>,
    shards: usize,
    lost: u64,
    tenants: HashMap<u16, String>,
}

#[derive(Deserialize)]
struct Stopped {
    shards: Vec<StoppedShard>,
    tenants: Vec<(u16, String)>,
    #[serde(default)]
    depth: Vec<Depth>,
}

#[derive(Deserialize)]
struct StoppedShard {
    events: usize,
    lost: u64,
}

/// Records for a while and writes the recording.
pub(crate) fn run(control: &Path, args: &TraceArgs) -> anyhow::Result<()> {
    let seconds = args.seconds.0 as f64 / 1e9;
    let mut server = Connection::open(control)?;
    let output = Output::open_if_named(args.output.as_deref())?;
    let start = json!({ "seconds": seconds, "events": args.events });
    server.call("trace.start", start)?;
    let until = Instant::now() + Duration::from_nanos(args.seconds.0);
    std::thread::sleep(until - Instant::now());
    let recorded = fetch(&mut server, control)?;
    match output {
        Some(output) => {
            output.write(|file| write(&recorded, args.format, BufWriter::new(file)))?;
            report(&recorded, args.output.as_deref());
        }
        None => {
            match write(&recorded, args.format, BufWriter::new(io::stdout().lock())) {
                // The reader has closed the pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                result => result.context("cannot print")?,
            }
            report(&recorded, None);
        }
    }
    Ok(())
}

/// Prints the size of the recording to standard error, and whether it is complete.
fn report(recorded: &Recorded, path: Option<&Path>) {
    let Recorded { rows, lost, .. } = recorded;
    let span_ns = recorded.last_ns() - recorded.first_ns();
    let place = path.map(|path| format!("{}: ", path.display())).unwrap_or_default();
    eprintln!("{place}{} decisions within {}", rows.len(), show_duration(span_ns as f64));
    if *lost > 0 {
        eprintln!("{lost} earlier decisions were lost: raise --events, or shorten --seconds");
    }
}

/// Fetches the recording from the server.
fn fetch(server: &mut Connection, control: &Path) -> anyhow::Result<Recorded> {
    let other = "the server is of another version than this program";
    let stopped: Stopped =
        serde_json::from_value(server.call_again(control, "trace.stop", json!({}))?)
            .context(other)?;
    let mut rows = Vec::new();
    for (shard, StoppedShard { events, .. }) in stopped.shards.iter().enumerate() {
        let mut from = 0;
        loop {
            let part = json!({ "shard": shard, "from": from });
            let mut answer = server.call_again(control, "trace.read", part)?;
            let some: Vec<Row> = serde_json::from_value(answer["rows"].take()).context(other)?;
            from += some.len();
            // An empty answer also ends the loop, because another client may have replaced the
            // recording by a shorter one.
            let is_last = some.is_empty() || from >= *events;
            rows.extend(some.into_iter().map(|row| (shard, row)));
            if is_last {
                break;
            }
        }
    }
    // The sort is stable: decisions of a shard at one time keep their order.
    rows.sort_by_key(|(_, row)| row.at_ns);
    let lost = stopped.shards.iter().map(|shard| shard.lost).sum();
    Ok(Recorded {
        rows,
        depths: stopped.depth,
        shards: stopped.shards.len(),
        lost,
        tenants: stopped.tenants.into_iter().collect(),
    })
}

fn write(recorded: &Recorded, format: TraceFormat, mut out: impl Write) -> io::Result<()> {
    match format {
        TraceFormat::Text => text(recorded, &mut out),
        TraceFormat::Perfetto => perfetto::write(recorded, &mut out),
        TraceFormat::Csv => csv(recorded, &mut out),
    }?;
    out.flush()
}

impl Recorded {
    fn tenant(&self, row: &Row) -> &str {
        self.name(row.tenant)
    }

    fn name(&self, tenant: u16) -> &str {
        self.tenants.get(&tenant).map_or(GONE, String::as_str)
    }

    /// Calls `give` for all rows and all changes of D in the order of time; a change comes before
    /// a row of the same time.
    fn in_order<'a>(&'a self, mut give: impl FnMut(Entry<'a>) -> io::Result<()>) -> io::Result<()> {
        let mut depths = self.depths.iter().peekable();
        for (shard, row) in &self.rows {
            while let Some(depth) = depths.next_if(|depth| depth.at_ns <= row.at_ns) {
                give(Entry::Depth(depth))?;
            }
            give(Entry::Decision(*shard, row))?;
        }
        depths.try_for_each(|depth| give(Entry::Depth(depth)))
    }

    /// Time of the first entry, in nanoseconds.
    fn first_ns(&self) -> u64 {
        let row = self.rows.first().map(|(_, row)| row.at_ns);
        let depth = self.depths.first().map(|depth| depth.at_ns);
        row.into_iter().chain(depth).min().unwrap_or(0)
    }

    /// Time of the last entry, in nanoseconds.
    fn last_ns(&self) -> u64 {
        let row = self.rows.last().map(|(_, row)| row.at_ns);
        let depth = self.depths.last().map(|depth| depth.at_ns);
        row.into_iter().chain(depth).max().unwrap_or(0)
    }
}

/// A line of a recording.
enum Entry<'a> {
    Decision(usize, &'a Row),
    Depth(&'a Depth),
}

impl Depth {
    /// The store's name.
    fn store(&self) -> &str {
        self.store.as_deref().unwrap_or(GONE)
    }

    /// D, the reason for it, and the device's estimated rates.
    fn describe(&self) -> String {
        let Depth { slots, least_slots, state, requests_per_s, bytes_per_s, .. } = self;
        let slots = slots.map_or("no limit".into(), |slots| slots.to_string());
        let why = match &state[..] {
            "found" => format!(
                "{} fill the device ({} IOPS, {})",
                least_slots.unwrap_or(0),
                show_count(requests_per_s.unwrap_or(0) as f64),
                show_bandwidth(bytes_per_s.unwrap_or(0) as f64)
            ),
            "set" => "it is set, or limited by latency targets".into(),
            "searching" => "the search goes on".into(),
            "alone" => "one tenant is active".into(),
            _ => "all requests are on the device".into(),
        };
        format!("D is {slots} ({}): {why}", self.store())
    }
}

fn csv(recorded: &Recorded, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{COLUMNS}")?;
    // A name may contain separators; they are replaced, because the programs that read this form
    // do not parse quotation marks.
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let plain = |name: &str| name.replace([',', '"', '\n'], "_");
    recorded.in_order(|entry| {
        let (shard, row) = match entry {
            Entry::Decision(shard, row) => (shard, row),
            Entry::Depth(depth) => {
                let Depth { at_ns, slots, least_slots, state, requests_per_s, bytes_per_s, .. } =
                    depth;
                let numbers = [*slots, *least_slots, *requests_per_s, *bytes_per_s].map(number);
                let (store, numbers) = (plain(depth.store()), numbers.join(","));
                return writeln!(out, "{at_ns},,depth,,,,,,,,,,{state},{store},{numbers}");
            }
        };
        let Row { at_ns, kind, tag, op, offset, length, class, .. } = row;
        let (free, now, start) = (
            number(row.free_slots.map(u64::from)),
            number(row.virtual_time),
            number(row.start_tag),
        );
        let why = row.why.as_deref().unwrap_or_default();
        // A row of kind `held` has no request, so its tag, tenant and place are meaningless.
        if kind == "held" {
            return writeln!(
                out,
                "{at_ns},{shard},held,,,,,,,{free},{now},{start},{why}{NO_DEPTH}"
            );
        }
        let tenant = plain(recorded.tenant(row));
        writeln!(
            out,
            "{at_ns},{shard},{kind},{tenant},{tag},{op},{offset},{length},{class},{free},{now},\
             {start},{why}{NO_DEPTH}"
        )
    })
}

/// Times at which a live request arrived and was issued.
#[derive(Clone, Copy, Default)]
struct Life {
    arrived_ns: Option<u64>,
    issued_ns: Option<u64>,
}

fn text(recorded: &Recorded, out: &mut impl Write) -> io::Result<()> {
    let first_ns = recorded.first_ns();
    let width =
        recorded.tenants.values().map(|name| name.chars().count()).max().unwrap_or(0).clamp(6, 24);
    let mut lives: HashMap<(usize, u32), Life> = HashMap::new();
    writeln!(out, "{:>12}  shard  {:<8}  {:<width$}  what", "time/us", "event", "tenant")?;
    recorded.in_order(|entry| {
        let (shard, row) = match entry {
            Entry::Decision(shard, row) => (shard, row),
            Entry::Depth(depth) => {
                let at_us = (depth.at_ns - first_ns) as f64 / 1e3;
                let what = depth.describe();
                return writeln!(
                    out,
                    "{at_us:>12.3}         {:<8}  {:<width$}  {what}",
                    "depth", ""
                );
            }
        };
        let at_us = (row.at_ns - first_ns) as f64 / 1e3;
        let life = lives.entry((shard, row.tag)).or_default();
        let since = |then: Option<u64>| then.map(|then| show_duration((row.at_ns - then) as f64));
        let request = format!("{} {} at {} (tag {})", row.op, row.length, row.offset, row.tag);
        let what = match row.kind.as_str() {
            "arrive" => {
                *life = Life { arrived_ns: Some(row.at_ns), issued_ns: None };
                format!("{request}{}", numbers(row))
            }
            "issue" => {
                life.issued_ns = Some(row.at_ns);
                let waited = since(life.arrived_ns)
                    .map(|time| format!(", staged for {time}"))
                    .unwrap_or_default();
                let free =
                    row.free_slots.map(|free| format!(", {free} slots free")).unwrap_or_default();
                let first = match row.why.as_deref() {
                    Some("reserved") => ", before all others because of its reservation",
                    _ => "",
                };
                let numbers = numbers(row);
                format!("{request}: class {}{first}{free}{numbers}{waited}", row.class)
            }
            "held" => match row.why.as_deref() {
                Some("ahead") => format!("the next request is too far ahead{}", numbers(row)),
                Some("no-slot") => format!("no slot of the device is free{}", numbers(row)),
                Some("target") => {
                    format!("no slot is free of those that latency targets leave{}", numbers(row))
                }
                Some("cap") => "its tenant has used up a cap".into(),
                Some("reserved-for-others") => format!(
                    "no slot is free, and others' requests went first for their reservations{}",
                    numbers(row)
                ),
                Some("group-cap") => "a group of its tenant has used up a cap".into(),
                // The policy gives no reason, or the server is newer and its reason is unknown
                // here.
                _ => format!("the policy waits{}", numbers(row)),
            },
            // `complete`, `fail` and `cancel`: the end of the request.
            _ => {
                let device = since(life.issued_ns)
                    .map(|time| format!(": {time} on the device"))
                    .unwrap_or_default();
                let whole = since(life.arrived_ns)
                    .map(|time| format!(", {time} in all"))
                    .unwrap_or_default();
                format!("{request}{device}{whole}")
            }
        };
        let tenant = if row.kind == "held" { "" } else { recorded.tenant(row) };
        writeln!(out, "{at_us:>12.3}  {shard:>5}  {:<8}  {tenant:<width$}  {what}", row.kind)
    })
}

/// Virtual time, and the request's distance ahead of it.
fn numbers(row: &Row) -> String {
    match (row.start_tag, row.virtual_time) {
        (Some(start), Some(now)) => {
            format!(
                ", start tag {start}, {:+} of virtual time {now}",
                i128::from(start) - i128::from(now)
            )
        }
        (None, Some(now)) => format!(", virtual time {now}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_ns: u64, kind: &str, tenant: u16, tag: u32) -> Row {
        Row {
            at_ns,
            kind: kind.into(),
            tenant,
            tag,
            op: "read".into(),
            offset: 8192,
            length: 4096,
            class: "medium".into(),
            free_slots: (kind == "issue").then_some(3),
            virtual_time: (kind != "complete").then_some(500),
            start_tag: (kind != "complete").then_some(900),
            why: (kind == "held").then(|| "ahead".to_owned()),
        }
    }

    fn recorded() -> Recorded {
        let rows = vec![
            (1, row(900, "complete", 0, 9)),
            (0, row(1000, "arrive", 0, 5)),
            (0, row(1000, "held", 0, 0)),
            (1, row(2500, "issue", 1, 5)),
            (0, row(3500, "issue", 0, 5)),
            (0, row(9500, "complete", 0, 5)),
            (0, row(9600, "arrive", 7, 5)),
        ];
        let depth = |at_ns, state: &str| Depth {
            at_ns,
            store: Some("ram, 1G".into()),
            slots: Some(12),
            least_slots: (state != "set").then_some(10),
            state: state.into(),
            requests_per_s: (state != "set").then_some(20_000),
            bytes_per_s: (state != "set").then_some(81_920_000),
        };
        Recorded {
            rows,
            depths: vec![depth(950, "set"), depth(9700, "found")],
            shards: 2,
            lost: 0,
            tenants: HashMap::from([(0, "db".into()), (1, "web, two".into())]),
        }
    }

    fn written(format: TraceFormat) -> String {
        let mut out = Vec::new();
        write(&recorded(), format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_says_what_happened_and_why() {
        let expected = [
            "     time/us  shard  event     tenant    what",
            "       0.000      1  complete  db        read 4096 at 8192 (tag 9)",
            "       0.050         depth               D is 12 (ram, 1G): it is set, or limited by \
             latency targets",
            "       0.100      0  arrive    db        read 4096 at 8192 (tag 5), start tag 900, \
             +400 of virtual time 500",
            "       0.100      0  held                the next request is too far ahead, start tag \
             900, \
             +400 of virtual time 500",
            "       1.600      1  issue     web, two  read 4096 at 8192 (tag 5): class medium, 3 \
             slots free, start tag 900, +400 of virtual time 500",
            "       2.600      0  issue     db        read 4096 at 8192 (tag 5): class medium, 3 \
             slots free, start tag 900, +400 of virtual time 500, staged for 2.50 µs",
            "       8.600      0  complete  db        read 4096 at 8192 (tag 5): 6.00 µs on the \
             device, 8.50 µs in all",
            "       8.700      0  arrive    (gone)    read 4096 at 8192 (tag 5), start tag 900, \
             +400 of virtual time 500",
            "       8.800         depth               D is 12 (ram, 1G): 10 fill the device \
             (20.0 k IOPS, 81.9 MB/s)",
        ];
        assert_eq!(written(TraceFormat::Text).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn csv_is_for_programs() {
        let text = written(TraceFormat::Csv);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], COLUMNS);
        assert_eq!(lines[2], "950,,depth,,,,,,,,,,set,ram_ 1G,12,,,");
        let found = "9700,,depth,,,,,,,,,,found,ram_ 1G,12,10,20000,81920000";
        assert_eq!(lines.last(), Some(&found));
        assert_eq!(lines[3], "1000,0,arrive,db,5,read,8192,4096,medium,,500,900,,,,,,");
        assert_eq!(lines[4], "1000,0,held,,,,,,,,500,900,ahead,,,,,");
        assert_eq!(lines[5], "2500,1,issue,web_ two,5,read,8192,4096,medium,3,500,900,,,,,,");
        assert!(lines.iter().all(|line| line.matches(',').count() == 17), "{text}");
    }

    #[test]
    fn perfetto_is_told_whole_slices() {
        let read = perfetto::reader::read(&written(TraceFormat::Perfetto));
        let slice = |process: &str, name: &str, us: f64| (process.to_owned(), name.to_owned(), us);
        let rounded: Vec<_> = read
            .slices
            .iter()
            .map(|(process, name, us)| slice(process, name, us.round()))
            .collect();
        let expected = [
            slice("tenant db", "staged", 3.0),
            slice("tenant db", "on the device", 6.0),
            // Requests under way at the end.
            slice("tenant (gone)", "staged", 0.0),
            slice("tenant web, two", "on the device", 7.0),
        ];
        assert_eq!(rounded, expected);
        let count =
            |shard: &str| read.counters[&(shard.to_owned(), "on the device requests".to_owned())];
        assert_eq!((count("shard 0"), count("shard 1")), (0.0, 1.0));
        assert_eq!(read.counters[&("shard 0".to_owned(), "free slots slots".to_owned())], 3.0);
        assert_eq!(read.instants.iter().filter(|instant| instant.1 == "held: ahead").count(), 1);
        assert_eq!(read.instants.len(), 5 + 2, "and those of D");
        assert_eq!(read.counters[&("ram, 1G".to_owned(), "D slots".to_owned())], 12.0);
    }

    /// A full ring has lost the ends of requests whose tags were reused.
    #[test]
    fn perfetto_is_told_whole_slices_of_what_has_gaps() {
        let rows = [
            ("arrive", 5),
            ("issue", 5),
            ("arrive", 5),
            ("arrive", 5),
            ("issue", 6),
            ("issue", 6),
            ("complete", 6),
        ];
        let rows = rows
            .iter()
            .zip(0..)
            .map(|(&(kind, tag), at)| (0, row(at * 1000, kind, 0, tag)))
            .collect();
        let recorded =
            Recorded { rows, depths: Vec::new(), shards: 1, lost: 9, tenants: HashMap::new() };
        let mut out = Vec::new();
        write(&recorded, TraceFormat::Perfetto, &mut out).unwrap();
        let read = perfetto::reader::read(&String::from_utf8(out).unwrap());
        assert_eq!(read.slices.len(), 6);
        assert_eq!(
            read.counters[&("shard 0".to_owned(), "on the device requests".to_owned())],
            0.0
        );
    }
}
