//! Recordings of the scheduler's decisions, over the control socket.
//!
//! `trace.start` makes the shards record, `trace.stop` takes what they have, and `trace.read` tells
//! it piece by piece: rows of plain numbers, at most [`ROWS`] a call, so that the control thread is
//! never busy with it for long. What is made of them is `fairq ctl trace`'s matter
//! ([`crate::trace`]). One recording at a time; a client that forgets to stop one costs memory for
//! at most [`SECONDS_MAX`] seconds, one that does not read it for [`READ_WITHIN`] more, and
//! `trace.read` at its end drops it.

use std::time::{Duration, Instant};

use fairq_core::{Held, Op};
use fairq_host::observe::record::{Decision, DepthChange, Kind, Recording};
use fairq_host::server::Admin;
use serde_json::{Value, json};

use super::Console;
use super::overview::depth_state;
use super::rpc::Fault;

/// Rows that one call gives.
const ROWS: usize = 4096;
/// Decisions that a shard keeps if nothing is said.
const EVENTS: usize = 1 << 18;
/// And at most: 80 MiB a shard.
const EVENTS_MAX: usize = 1 << 20;
/// The longest recording.
const SECONDS_MAX: f64 = 600.0;
/// How long a recording that was stopped is kept after the last call for it.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// What has been or is being recorded.
#[derive(Default)]
pub(super) struct Records {
    /// When it is to be stopped, or read, at the latest.
    until: Option<Instant>,
    is_stopped: bool,
    /// What each shard recorded.
    shards: Vec<Recording>,
    /// What D was.
    depths: Vec<DepthChange>,
}

impl Records {
    /// Whether there is a recording that was not read to its end.
    pub(super) fn is_recording(&self) -> bool {
        self.until.is_some()
    }
}

impl Console {
    /// Begins a recording, in place of any other.
    pub(super) fn trace_start(
        &mut self,
        admin: &mut dyn Admin,
        seconds: f64,
        events: Option<usize>,
    ) -> Result<Value, Fault> {
        let events = events.unwrap_or(EVENTS);
        if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
            return Err(Fault::params(format!(
                "{seconds} seconds: record for up to {SECONDS_MAX}"
            )));
        }
        if !(1..=EVENTS_MAX).contains(&events) {
            return Err(Fault::params(format!(
                "{events} events: a shard keeps the last 1 to {EVENTS_MAX}"
            )));
        }
        self.records = Records {
            until: Some(Instant::now() + Duration::from_secs_f64(seconds)),
            ..Records::default()
        };
        admin.record(events);
        Ok(json!({ "events": events }))
    }

    /// Ends the recording; says how much there is, and whose the numbers of tenants are.
    pub(super) fn trace_stop(&mut self, admin: &mut dyn Admin) -> Result<Value, Fault> {
        // Only the first stop takes the shards' rings; a second one tells the same again.
        if self.records.until.is_some() && !self.records.is_stopped {
            (self.records.shards, self.records.depths) = admin.recorded();
            self.records.is_stopped = true;
        }
        if self.records.shards.is_empty() {
            return Err(Fault::refused("nothing is being recorded: call trace.start first"));
        }
        self.records.until = Some(Instant::now() + READ_WITHIN);
        let shard = |recording: &Recording| json!({ "events": recording.decisions.len(), "lost": recording.lost });
        let tenants = admin.tenants();
        let tenants: Vec<Value> = tenants
            .members()
            .iter()
            .map(|member| json!([member.number(), member.tenant.name]))
            .collect();
        let stores: Vec<String> =
            admin.status().stores.into_iter().map(|store| store.name).collect();
        let depths = self.records.depths.iter().map(|change| depth(change, &stores));
        Ok(json!({
            "shards": self.records.shards.iter().map(shard).collect::<Vec<_>>(),
            "tenants": tenants,
            "depth": depths.collect::<Vec<_>>(),
        }))
    }

    /// Some of a shard's rows; after the last shard's last the recording is gone.
    pub(super) fn trace_read(&mut self, shard: usize, from: usize) -> Result<Value, Fault> {
        let Some(recording) = self.records.shards.get(shard) else {
            return Err(Fault::refused("there is no such recording: call trace.stop first"));
        };
        self.records.until = Some(Instant::now() + READ_WITHIN);
        let rest = recording.decisions.get(from..).unwrap_or_default();
        let rows: Vec<Value> = rest.iter().take(ROWS).map(row).collect();
        if shard + 1 == self.records.shards.len() && rest.len() <= ROWS {
            self.records = Records::default();
        }
        Ok(json!({ "rows": rows }))
    }

    /// Drops a recording that was not stopped, or not read, in time.
    pub(super) fn trace_expire(&mut self, admin: &mut dyn Admin) {
        // The client that asked for these seconds needs some more to end the recording.
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

/// What D was, as `crate::trace` reads it.
fn depth(change: &DepthChange, stores: &[String]) -> Value {
    let DepthChange { at_ns, store, slots, depth } = change;
    json!({
        "at_ns": at_ns,
        "store": stores.get(usize::from(*store)),
        "slots": slots,
        "least_slots": depth.map(|of| of.slots),
        "state": depth.map_or("set", |of| depth_state(of.state)),
        "requests_per_s": depth.map(|of| of.requests_per_s),
        "bytes_per_s": depth.map(|of| of.bytes_per_s),
    })
}

/// A decision as `crate::trace` reads it.
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
