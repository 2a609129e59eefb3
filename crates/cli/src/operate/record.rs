//! Recordings of the scheduler's decisions, over the control socket.
//!
//! `trace.start` makes the shards record, `trace.stop` fetches their records, and `trace.read`
//! returns them in pieces: rows of plain numbers, at most [`ROWS`] a call, so that no call takes
//! the control thread long. `fairq ctl trace` evaluates them ([`crate::trace`]). There is one
//! recording at a time. A recording that no client stops uses memory for at most [`SECONDS_MAX`]
//! seconds; a stopped recording that no client reads uses memory for [`READ_WITHIN`] more.
//! `trace.read` drops the recording at its end.
//!
//! A recording continues over an upgrade: earlier records are passed on as rows of text ([`Left`]),
//! at most [`LEFT_MAX`] of all shards together, because clients wait meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fairq_core::{Held, Op};
use fairq_host::observe::record::{Decision, DepthChange, Kind, Recording};
use fairq_host::server::Admin;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Console;
use super::rpc::Fault;
use crate::view::DepthState;

/// The most rows of a call.
const ROWS: usize = 4096;
/// Default number of decisions that a shard keeps.
const EVENTS: usize = 1 << 18;
/// The most decisions that a shard keeps: 80 MiB.
const EVENTS_MAX: usize = 1 << 20;
/// The longest recording, in seconds.
const SECONDS_MAX: f64 = 600.0;
/// The most rows that are passed to the next program: 15 MB.
const LEFT_MAX: usize = 1 << 17;
/// The tenant's number in a row without a tenant.
const NOBODY: u16 = u16::MAX;
/// Index of the tenant's number in a row.
const TENANT: usize = 2;
/// Time after the last call until a stopped recording is dropped.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// The recording, under way or stopped.
#[derive(Default)]
pub(super) struct Records {
    /// Deadline for stopping or reading the recording.
    until: Option<Instant>,
    is_stopped: bool,
    /// The most decisions that a shard keeps.
    events: usize,
    /// The records of each shard from before an upgrade.
    earlier: Vec<Earlier>,
    /// The values of D before an upgrade.
    earlier_depths: Vec<Value>,
    /// The records of each shard after the upgrade.
    shards: Vec<Recording>,
    /// The values of D after the upgrade.
    depths: Vec<DepthChange>,
}

/// The records of a shard from before an upgrade.
#[derive(Default, Serialize, Deserialize)]
struct Earlier {
    rows: Vec<EarlierRow>,
    lost: u64,
    /// Number of its first rows that an upgrade has dropped after the recording was stopped.
    cut: usize,
}

/// The present number of the row's tenant, and the row as text.
#[derive(Clone, Serialize, Deserialize)]
struct EarlierRow(u16, Box<str>);

impl EarlierRow {
    fn new(decision: &Decision) -> EarlierRow {
        EarlierRow(decision.tenant, row(decision).to_string().into())
    }
}

impl Earlier {
    /// Keeps the last `most` rows.
    fn trim(&mut self, most: usize) {
        let excess = self.rows.len().saturating_sub(most);
        self.rows.drain(..excess);
        self.lost += excess as u64;
    }
}

/// A recording that is passed to the next program.
#[derive(Serialize, Deserialize)]
pub(super) struct Left {
    rest: Duration,
    is_stopped: bool,
    events: usize,
    shards: Vec<Earlier>,
    depths: Vec<Value>,
    /// Numbers of tenants, and their names.
    tenants: Vec<(u16, String)>,
}

impl Records {
    /// The records of a shard from before an upgrade and after it, and the number of lost ones.
    fn of(&self, shard: usize) -> (&[EarlierRow], &[Decision], u64) {
        let (earlier, now) = (self.earlier.get(shard), self.shards.get(shard));
        let lost = earlier.map_or(0, |of| of.lost) + now.map_or(0, |of| of.lost);
        let earlier = earlier.map(|of| &*of.rows).unwrap_or_default();
        (earlier, now.map(|of| &*of.decisions).unwrap_or_default(), lost)
    }

    /// The number of shards that have recorded.
    fn count(&self) -> usize {
        self.earlier.len().max(self.shards.len())
    }

    /// Converts the shards' records to rows of text, which the next program can read.
    fn set_aside(&mut self, admin: &dyn Admin) {
        let (shards, depths) = (std::mem::take(&mut self.shards), std::mem::take(&mut self.depths));
        self.earlier.resize_with(shards.len().max(self.earlier.len()), Earlier::default);
        for (earlier, now) in self.earlier.iter_mut().zip(&shards) {
            earlier.lost += now.lost;
            earlier.rows.extend(now.decisions.iter().map(EarlierRow::new));
        }
        self.earlier_depths.extend(depths_of(admin, &depths));
    }

    /// Stops the shards' recording. Rows from before an upgrade are trimmed to the remaining space.
    fn stop(&mut self, admin: &mut dyn Admin) {
        (self.shards, self.depths) = admin.recorded();
        for (earlier, now) in self.earlier.iter_mut().zip(&self.shards) {
            earlier.trim(self.events.saturating_sub(now.decisions.len()));
        }
    }
}

impl Console {
    /// Begins a recording, which replaces any other.
    pub(super) fn trace_start(
        &mut self,
        admin: &mut dyn Admin,
        seconds: f64,
        events: Option<usize>,
    ) -> Result<Value, Fault> {
        let events = events.unwrap_or(EVENTS);
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            return Err(Fault::params(format!(
                "{seconds} seconds: write a number up to {SECONDS_MAX}"
            )));
        }
        if !(1..=EVENTS_MAX).contains(&events) {
            return Err(Fault::params(format!("{events} events: write 1 to {EVENTS_MAX}")));
        }
        self.records = Records {
            until: Some(Instant::now() + Duration::from_secs_f64(seconds)),
            events,
            ..Records::default()
        };
        admin.record(events);
        Ok(json!({ "events": events }))
    }

    /// Ends the recording; returns the numbers of rows, and the tenants' names by number.
    pub(super) fn trace_stop(&mut self, admin: &mut dyn Admin) -> Result<Value, Fault> {
        // The first call of `trace.stop` fetches the shards' rings; a second call returns the same
        // answer.
        if self.records.until.is_some() && !self.records.is_stopped {
            self.records.stop(admin);
            self.records.is_stopped = true;
        }
        self.records.earlier.iter_mut().for_each(|earlier| earlier.cut = 0);
        if self.records.count() == 0 {
            return Err(Fault::refused("nothing is being recorded: call trace.start first"));
        }
        self.records.until = Some(Instant::now() + READ_WITHIN);
        let shard = |shard| {
            let (earlier, now, lost) = self.records.of(shard);
            json!({ "events": earlier.len() + now.len(), "lost": lost })
        };
        let mut depths = self.records.earlier_depths.clone();
        depths.extend(depths_of(admin, &self.records.depths));
        Ok(json!({
            "shards": (0..self.records.count()).map(shard).collect::<Vec<_>>(),
            "tenants": numbers(admin),
            "depth": depths,
        }))
    }

    /// Rows of a shard; after the last row of the last shard the recording is dropped.
    pub(super) fn trace_read(&mut self, shard: usize, from: usize) -> Result<Value, Fault> {
        if shard >= self.records.count() || !self.records.is_stopped {
            return Err(Fault::refused("there is no such recording: call trace.stop first"));
        }
        self.records.until = Some(Instant::now() + READ_WITHIN);
        let cut = self.records.earlier.get(shard).map_or(0, |earlier| earlier.cut);
        let from = from.checked_sub(cut).ok_or_else(|| {
            Fault::refused("an upgrade has cut the recording: call trace.stop and read it again")
        })?;
        let (earlier, now, _) = self.records.of(shard);
        let rest = earlier.get(from..).unwrap_or_default();
        let since = now.get(from.saturating_sub(earlier.len())..).unwrap_or_default();
        let rows: Vec<Value> =
            rest.iter().map(earlier_row).chain(since.iter().map(row)).take(ROWS).collect();
        if shard + 1 == self.records.count() && rest.len() + since.len() <= ROWS {
            self.records = Records::default();
        }
        Ok(json!({ "rows": rows }))
    }

    /// The state of a recording for the next program without its rows, which is enough to check an
    /// upgrade.
    pub(super) fn trace_outline(&self, admin: &dyn Admin) -> Option<Left> {
        let Records { until, is_stopped, events, .. } = self.records;
        let rest = until?.saturating_duration_since(Instant::now());
        let (shards, depths) = (Vec::new(), Vec::new());
        Some(Left { rest, is_stopped, events, shards, depths, tenants: numbers(admin) })
    }

    /// The state with its rows. The shards do not record until [`Console::trace_stays`].
    pub(super) fn trace_leave(&mut self, admin: &mut dyn Admin) -> Option<Left> {
        let outline = self.trace_outline(admin)?;
        let records = &mut self.records;
        if !records.is_stopped {
            records.stop(admin);
            records.set_aside(admin);
        }
        let count = records.count();
        let most = LEFT_MAX / count.max(1);
        let left = |shard| {
            let (earlier, now, lost) = records.of(shard);
            let cut = (earlier.len() + now.len()).saturating_sub(most);
            let text = now.iter().skip(cut.saturating_sub(earlier.len())).map(EarlierRow::new);
            let rows = earlier.iter().skip(cut).cloned().chain(text).collect();
            let before = records.earlier.get(shard).map_or(0, |earlier| earlier.cut);
            let lost = lost + cut as u64;
            Earlier { rows, lost, cut: if records.is_stopped { before + cut } else { 0 } }
        };
        let shards = (0..count).map(left).collect();
        let mut depths = records.earlier_depths.clone();
        depths.extend(depths_of(admin, &records.depths));
        Some(Left { shards, depths, ..outline })
    }

    /// Makes the shards record again after an upgrade that has failed.
    pub(super) fn trace_stays(&mut self, admin: &mut dyn Admin) {
        if self.records.until.is_some() && !self.records.is_stopped {
            admin.record(self.records.events);
        }
    }

    /// Continues a recording after an upgrade. Tenants may have new numbers.
    pub(super) fn trace_go_on(&mut self, admin: &mut dyn Admin, left: Left) {
        let Left { rest, is_stopped, events, shards: mut earlier, depths, tenants } = left;
        let now = admin.tenants();
        let number = |name: &String| now.find(name).map_or(NOBODY, |member| member.number());
        let numbers: HashMap<u16, u16> =
            tenants.iter().map(|(before, name)| (*before, number(name))).collect();
        for EarlierRow(tenant, _) in earlier.iter_mut().flat_map(|earlier| &mut earlier.rows) {
            *tenant = numbers.get(tenant).copied().unwrap_or(NOBODY);
        }
        self.records = Records {
            until: Some(Instant::now() + rest),
            is_stopped,
            events,
            earlier,
            earlier_depths: depths,
            ..Records::default()
        };
        if !is_stopped {
            admin.record(events);
        }
    }

    /// Drops a recording that was not stopped, or not read, in time.
    pub(super) fn trace_expire(&mut self, admin: &mut dyn Admin) {
        // A client needs some time after the deadline to end the recording.
        if self.records.until.is_some_and(|until| until + Duration::from_secs(10) < Instant::now())
        {
            if !self.records.is_stopped {
                admin.recorded();
            }
            self.records = Records::default();
            tracing::warn!("dropped a recording that was not fetched");
        }
    }
}

/// The number and name of each tenant.
fn numbers(admin: &dyn Admin) -> Vec<(u16, String)> {
    let tenants = admin.tenants();
    let members = tenants.members();
    members.map(|member| (member.number(), member.tenant.name.clone())).collect()
}

/// The values of D in the form that `crate::trace` reads.
fn depths_of(admin: &dyn Admin, changes: &[DepthChange]) -> Vec<Value> {
    if changes.is_empty() {
        return Vec::new();
    }
    let stores: Vec<String> = admin.status().stores.into_iter().map(|store| store.name).collect();
    changes.iter().map(|change| depth(change, &stores)).collect()
}

/// A row from before an upgrade, with the present number of its tenant.
fn earlier_row(EarlierRow(tenant, row): &EarlierRow) -> Value {
    let mut row = serde_json::from_str(row).unwrap_or_else(|_| Value::Array(Vec::new()));
    if let Some(number) = row.get_mut(TENANT) {
        *number = json!(tenant);
    }
    row
}

/// A value of D in the form that `crate::trace` reads.
fn depth(change: &DepthChange, stores: &[String]) -> Value {
    let DepthChange { at_ns, store, slots, depth } = change;
    json!({
        "at_ns": at_ns,
        "store": stores.get(usize::from(*store)),
        "slots": slots,
        "least_slots": depth.map(|of| of.slots),
        "state": depth.map_or("set", |of| DepthState::from(of.state).name()),
        "requests_per_s": depth.map(|of| of.requests_per_s),
        "bytes_per_s": depth.map(|of| of.bytes_per_s),
    })
}

/// A decision in the form that `crate::trace` reads.
fn row(decision: &Decision) -> Value {
    let Decision { at_ns, kind, tag, tenant, op, class, offset, length, reason } = *decision;
    let kind = match kind {
        Kind::Arrive => "arrive",
        Kind::Issue => "issue",
        Kind::Held => "held",
        Kind::Complete => "complete",
        Kind::Fail => "fail",
        Kind::Cancel => "cancel",
    };
    let op = match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write-zeroes",
    };
    let class = ["urgent", "high", "medium", "low"][class as usize];
    let held = reason.held.map(|held| match held {
        Held::Ahead => "ahead",
        Held::NoSlot => "no-slot",
        Held::Target => "target",
        Held::Cap => "cap",
        Held::GroupCap => "group-cap",
        Held::Reserved => "reserved-for-others",
    });
    let is_ahead = reason.is_reserved && decision.kind == Kind::Issue;
    let why = held.or(is_ahead.then_some("reserved"));
    json!([
        at_ns,
        kind,
        tenant,
        tag.0,
        op,
        offset,
        length,
        class,
        reason.free_slots,
        reason.virtual_time,
        reason.start_tag,
        why
    ])
}
