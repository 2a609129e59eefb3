//! A recording for ui.perfetto.dev, in Chrome's trace event format (JSON).
//!
//! A process for each tenant has two slices for each request: staged, and on the device. A process
//! for each shard has its decisions as instants, and counters of requests on the device, virtual
//! time and free slots. A process for each store has D and the store's estimated rates as counters,
//! and the reason for each D as an instant.
//!
//! Perfetto's importer has rules beyond the format. Slices of requests overlap, so they are
//! asynchronous (`b`, `e`), and both events of a slice have the same category, number, process and
//! *name*. The only thread of a process must have the process's number; otherwise the importer
//! takes it for another thread. Missing values are left out. There is no `displayTimeUnit`, which
//! the importer counts as an error.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{Depth, Entry, Recorded, Row};

const STAGED: &str = "staged";
const ON_DEVICE: &str = "on the device";

/// A live request: its shard and tag.
type Live = (usize, u32);

/// The open slice of a request.
struct Open {
    number: u64,
    process: usize,
    name: &'static str,
}

struct Writer<'a, W> {
    out: &'a mut W,
    first_ns: u64,
    is_first: bool,
    open: HashMap<Live, Open>,
    on_device: Vec<u64>,
}

/// Writes a recording.
pub(super) fn write(recorded: &Recorded, out: &mut impl Write) -> io::Result<()> {
    let first_ns = recorded.first_ns();
    let on_device = vec![0; recorded.shards];
    let mut writer = Writer { out, first_ns, is_first: true, open: HashMap::new(), on_device };
    write!(writer.out, "{{\"traceEvents\":[")?;
    for shard in 0..recorded.shards {
        writer.name(shard_process(shard), &format!("shard {shard}"), "decisions")?;
    }
    let tenants: BTreeSet<u16> = recorded
        .rows
        .iter()
        // A row of kind `held` has no tenant: its tenant's number is a filler.
        .filter(|(_, row)| row.kind != "held")
        .map(|(_, row)| row.tenant)
        .collect();
    for number in tenants {
        writer.name(
            tenant_process(number),
            &format!("tenant {}", recorded.name(number)),
            "requests",
        )?;
    }
    let stores: BTreeSet<&str> = recorded.depths.iter().map(Depth::store).collect();
    let stores: HashMap<&str, usize> = stores.into_iter().zip(STORES..).collect();
    for (name, process) in &stores {
        writer.name(*process, name, "search for D")?;
    }
    let mut number = 0;
    recorded.in_order(|entry| match entry {
        Entry::Decision(shard, row) => {
            number += 1;
            writer.request(number - 1, shard, row)?;
            writer.decision(recorded, shard, row)
        }
        Entry::Depth(depth) => writer.depth(stores[depth.store()], depth),
    })?;
    // Requests under way at the end.
    let last_ns = recorded.last_ns();
    let mut rest: Vec<(Live, Open)> = writer.open.drain().collect();
    // A HashMap's order differs from run to run, but the file must not.
    rest.sort_by_key(|(live, _)| *live);
    for (_, open) in rest {
        writer.slice("e", last_ns, &open, json!({}))?;
    }
    writeln!(writer.out, "\n]}}")
}

impl<W: Write> Writer<'_, W> {
    fn put(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { "," };
        write!(self.out, "{comma}\n{event}")
    }

    /// Microseconds after the first event.
    fn ts(&self, at_ns: u64) -> f64 {
        (at_ns - self.first_ns) as f64 / 1e3
    }

    fn name(&mut self, process: usize, name: &str, thread: &str) -> io::Result<()> {
        for (kind, name) in [("process_name", name), ("thread_name", thread)] {
            self.put(&json!({"ph": "M", "pid": process, "tid": process, "name": kind, "args": {"name": name}}))?;
        }
        Ok(())
    }

    fn slice(
        &mut self,
        ph: &str,
        at_ns: u64,
        Open { number, process, name }: &Open,
        args: Value,
    ) -> io::Result<()> {
        let ts = self.ts(at_ns);
        self.put(&json!({
            "ph": ph, "cat": "request", "id": number, "pid": process, "tid": process, "name": name, "ts": ts, "args": args,
        }))
    }

    fn counter(
        &mut self,
        shard: usize,
        at_ns: u64,
        name: &str,
        unit: &str,
        value: u64,
    ) -> io::Result<()> {
        self.count(shard_process(shard), at_ns, name, unit, value)
    }

    fn count(
        &mut self,
        process: usize,
        at_ns: u64,
        name: &str,
        unit: &str,
        value: u64,
    ) -> io::Result<()> {
        let ts = self.ts(at_ns);
        self.put(&json!({"ph": "C", "pid": process, "tid": process, "name": name, "ts": ts, "args": {unit: value}}))
    }

    /// D, the reason for it, and the device's estimated rates.
    fn depth(&mut self, process: usize, depth: &Depth) -> io::Result<()> {
        let ts = self.ts(depth.at_ns);
        self.put(&json!({
            "ph": "i", "s": "t", "cat": "depth", "pid": process, "tid": process,
            "name": depth.describe(), "ts": ts, "args": {},
        }))?;
        if let Some(slots) = depth.slots {
            self.count(process, depth.at_ns, "D", "slots", slots)?;
        }
        if let Some(iops) = depth.requests_per_s {
            self.count(process, depth.at_ns, "device", "IOPS", iops)?;
        }
        Ok(())
    }

    /// The events of a row for its request; if the row is the request's first, its slices get this
    /// `number`.
    fn request(&mut self, number: u64, shard: usize, row: &Row) -> io::Result<()> {
        let (live, process) = ((shard, row.tag), tenant_process(row.tenant));
        let args = arguments([
            ("op", json!(row.op)),
            ("offset", json!(row.offset)),
            ("bytes", json!(row.length)),
            ("tag", json!(row.tag)),
            ("shard", json!(shard)),
            ("class", json!(row.class)),
            ("free_slots", json!(row.free_slots)),
            ("start_tag", json!(row.start_tag)),
            ("virtual_time", json!(row.virtual_time)),
        ]);
        let is_end = matches!(row.kind.as_str(), "complete" | "fail" | "cancel");
        if !is_end && !matches!(row.kind.as_str(), "arrive" | "issue") {
            return Ok(());
        }
        // A tag is reused only after its request has ended: if a full ring has lost the end, the
        // slice ends here.
        let before = self.open.remove(&live);
        if let Some(open) = &before {
            self.slice(
                "e",
                row.at_ns,
                open,
                if is_end { json!({ "failed": row.kind == "fail" }) } else { json!({}) },
            )?;
            self.on_device[shard] -= u64::from(open.name == ON_DEVICE);
        }
        if !is_end {
            let is_issue = row.kind == "issue";
            // A request that was not staged in the recording arrived earlier.
            let staged = before.filter(|open| is_issue && open.name == STAGED);
            let number = staged.map_or(number, |staged| staged.number);
            let open = Open { number, process, name: if is_issue { ON_DEVICE } else { STAGED } };
            self.slice("b", row.at_ns, &open, args)?;
            self.on_device[shard] += u64::from(is_issue);
            self.open.insert(live, open);
        }
        self.counter(shard, row.at_ns, ON_DEVICE, "requests", self.on_device[shard])
    }

    /// The events of a row for its shard.
    fn decision(&mut self, recorded: &Recorded, shard: usize, row: &Row) -> io::Result<()> {
        // A completion ends its slice; an instant would show it a second time.
        if row.kind != "complete" {
            let kind = &row.kind;
            let name = row.why.as_deref().map_or(kind.clone(), |why| format!("{kind}: {why}"));
            let tenant = if row.kind == "held" { Value::Null } else { json!(recorded.tenant(row)) };
            let args = arguments([
                ("tenant", tenant),
                ("start_tag", json!(row.start_tag)),
                ("virtual_time", json!(row.virtual_time)),
                ("free_slots", json!(row.free_slots)),
            ]);
            let (ts, process) = (self.ts(row.at_ns), shard_process(shard));
            self.put(&json!({
                "ph": "i", "s": "t", "cat": "decision", "pid": process, "tid": process, "name": name, "ts": ts, "args": args,
            }))?;
        }
        if let Some(now) = row.virtual_time {
            self.counter(shard, row.at_ns, "virtual time", "units", now)?;
        }
        if let Some(free) = row.free_slots {
            self.counter(shard, row.at_ns, "free slots", "slots", free.into())?;
        }
        Ok(())
    }
}

/// An object of the pairs that have a value.
fn arguments<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    let pairs = pairs.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(pairs.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
}

/// The first process number of stores, above those of at most 65,536 tenants.
const STORES: usize = 100_000;

fn shard_process(shard: usize) -> usize {
    1 + shard
}

fn tenant_process(number: u16) -> usize {
    1000 + usize::from(number)
}

/// Reads a recording as Perfetto's importer does, and panics on input that the importer would drop,
/// count as an error or misunderstand. Returns the slices (process, name, microseconds), the last
/// values of counters, and the names of instants.
#[cfg(test)]
pub(super) mod reader {
    use std::collections::{BTreeMap, HashMap};

    use serde_json::Value;

    #[derive(Debug, Default)]
    pub(crate) struct Read {
        pub(crate) slices: Vec<(String, String, f64)>,
        pub(crate) counters: BTreeMap<(String, String), f64>,
        pub(crate) instants: Vec<(String, String)>,
    }

    pub(crate) fn read(text: &str) -> Read {
        let whole: Value = serde_json::from_str(text).unwrap();
        let keys: Vec<&String> = whole.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["traceEvents"]);
        let (mut processes, mut threads) = (HashMap::new(), HashMap::new());
        // A slice's track: category, number, process and name.
        let mut open: HashMap<(String, u64, u64, String), f64> = HashMap::new();
        let mut last = 0.0;
        let mut read = Read::default();
        for event in whole["traceEvents"].as_array().unwrap() {
            let fields = event.as_object().unwrap();
            // A field with an array ends the whole import, and a null is not the same as a missing
            // field.
            assert!(fields.values().all(|value| !value.is_array() && !value.is_null()), "{event}");
            let text = |key: &str| {
                event[key]
                    .as_str()
                    .unwrap_or_else(|| panic!("{key} is no text: {event}"))
                    .to_owned()
            };
            let number = |key: &str| {
                event[key].as_u64().unwrap_or_else(|| panic!("{key} is no number: {event}"))
            };
            let (pid, args) = (number("pid"), event["args"].as_object().unwrap());
            assert!(u32::try_from(pid).is_ok() && pid == number("tid"), "{event}");
            assert!(
                args.values()
                    .all(|value| value.is_string() || value.is_number() || value.is_boolean()),
                "{event}"
            );
            if text("ph") == "M" {
                let known =
                    if text("name") == "process_name" { &mut processes } else { &mut threads };
                let name = args["name"].as_str().filter(|name| !name.is_empty()).unwrap();
                assert_eq!(known.insert(pid, name.to_owned()), None, "{event}");
                continue;
            }
            let ts = event["ts"].as_f64().unwrap();
            assert!(ts >= last, "not in the order of time: {event}");
            last = ts;
            let process: String =
                processes.get(&pid).unwrap_or_else(|| panic!("no name: {event}")).clone();
            let track = || (text("cat"), number("id"), pid, text("name"));
            match &*text("ph") {
                "b" => assert_eq!(open.insert(track(), ts), None, "{event}"),
                "e" => {
                    let began =
                        open.remove(&track()).unwrap_or_else(|| panic!("never began: {event}"));
                    read.slices.push((process, text("name"), ts - began));
                }
                "i" => {
                    assert_eq!(text("s"), "t");
                    read.instants.push((process, text("name")));
                }
                "C" => {
                    let (unit, value) = args.iter().next().unwrap();
                    assert_eq!(args.len(), 1);
                    read.counters.insert(
                        (process, format!("{} {unit}", text("name"))),
                        value.as_f64().unwrap(),
                    );
                }
                other => panic!("{other}: {event}"),
            }
        }
        assert!(open.is_empty(), "never ended: {open:?}");
        assert!(processes.keys().all(|pid| threads.contains_key(pid)));
        read
    }
}
