//! The metrics, in the Prometheus text format.
//!
//! Names end in their unit, counters in `_total`; times are seconds. Labels are `tenant`, `device`
//! and `shard`; no sample has both a tenant and a shard, so the number of series grows with the sum
//! of both, not with their product. At most [`MOST_TENANTS`] tenants have series of their own; the
//! rest are summed under one name.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use fairq_config::settings::Plan;
use fairq_core::{CostStats, DepthState, DepthStats, FlowId, Stats, TokenStats};
use fairq_host::observe::cpu_time::CpuTime;
use fairq_host::observe::interference::{GROUPS, group};
use fairq_host::observe::log_limit::STRANGERS;
use fairq_host::observe::stats::TenantStats;
use fairq_host::server::{Member, Status, StoreStatus, TenantList};
use fairq_host::shard::fence::FenceStats;
use hdrhistogram::Histogram;

use super::keeper::Shown;
use super::overview::depth_state;
use crate::status::Now;

mod control;
mod layout;
mod promised;

use promised::{caps, groups, targets};

/// The most tenants with series of their own.
const MOST_TENANTS: usize = 500;
/// Upper bounds of the buckets of latencies, in nanoseconds.
const BUCKETS_NS: [u64; 14] = [
    50_000,
    100_000,
    200_000,
    400_000,
    800_000,
    1_600_000,
    3_200_000,
    6_400_000,
    12_800_000,
    25_600_000,
    51_200_000,
    102_400_000,
    409_600_000,
    1_638_400_000,
];
/// The label for all tenants without series of their own.
const OTHERS: &str = "(others)";

/// Families of samples.
#[derive(Default)]
pub(crate) struct Text(String);

impl Text {
    /// Begins a family.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}")
            .expect("a string takes everything");
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0 += name;
        let mut before = '{';
        for (key, value) in labels {
            self.0.push(before);
            self.0 += key;
            self.0 += "=\"";
            for letter in value.chars() {
                match letter {
                    '\\' => self.0 += "\\\\",
                    '"' => self.0 += "\\\"",
                    '\n' => self.0 += "\\n",
                    letter => self.0.push(letter),
                }
            }
            self.0.push('"');
            before = ',';
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("a string takes everything");
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// A tenant's numbers.
struct Subject {
    name: String,
    weight: Option<u16>,
    stats: Arc<TenantStats>,
    /// Its last second; `None` before its first, `Some(None)` while idle.
    second: Option<Option<Now>>,
}

/// The tenants with series of their own, and one subject for the rest.
fn subjects(
    now: &Status,
    tenants: &TenantList,
    second: &HashMap<FlowId, Option<Now>>,
) -> Vec<Subject> {
    let stats = |member: &Member| now.totals.tenants[usize::from(member.number())].clone();
    let mut members = tenants.members();
    let mut subjects: Vec<Subject> = members
        .by_ref()
        .take(MOST_TENANTS)
        .map(|member| Subject {
            name: member.tenant.name.clone(),
            weight: Some(member.tenant.weight.get()),
            stats: stats(member),
            second: second.get(&member.flow).copied(),
        })
        .collect();
    if members.len() > 0 {
        let mut all = TenantStats::default();
        members.for_each(|member| all.add(&stats(member)));
        subjects.push(Subject {
            name: OTHERS.into(),
            weight: None,
            stats: Arc::new(all),
            second: None,
        });
    }
    subjects
}

/// Writes of connections that have ended, and the requests that waited for them.
fn ended(text: &mut Text, now: &Status, tenants: &TenantList, device: &str) {
    type Ended = fn(&FenceStats) -> f64;
    let families: [(&str, &str, &str, Ended); 2] = [
        (
            "fairq_tenant_ended_writes",
            "gauge",
            "Writes of the tenant's ended connections that are still under way: requests of others \
             that overlap them wait.",
            |of| of.left as f64,
        ),
        (
            "fairq_tenant_ended_waits_total",
            "counter",
            "Requests that waited for writes of an ended connection. Tenants without any have no \
             sample.",
            |of| of.waited as f64,
        ),
    ];
    for (name, kind, help, value) in families {
        text.family(name, kind, help);
        for member in tenants.members().take(MOST_TENANTS) {
            let stats = now.fence_of(member);
            if stats != FenceStats::default() {
                let labels = [("tenant", member.tenant.name.as_str()), ("device", device)];
                text.sample(name, &labels, value(&stats));
            }
        }
    }
}

/// All metrics.
pub(super) fn text(
    now: &Status,
    tenants: &TenantList,
    second: &HashMap<FlowId, Option<Now>>,
    plan: &Plan,
    shown: Option<&Shown>,
) -> String {
    let mut text = Text::default();
    server(&mut text, now, tenants, plan);
    control::control(&mut text, now);
    layout::reserved(&mut text, shown, tenants);
    let device = plan.device.describe();
    layout::outdated(&mut text, tenants, &device);
    log(&mut text);
    per_tenant(&mut text, &subjects(now, tenants, second), &device);
    targets(&mut text, now, tenants, &device);
    caps(&mut text, now, tenants, &device);
    groups(&mut text, now, tenants, &device);
    shards(&mut text, now);
    policy(&mut text, now);
    interference(&mut text, now, tenants);
    text.0
}

fn server(text: &mut Text, now: &Status, tenants: &TenantList, plan: &Plan) {
    text.family("fairq_info", "gauge", "Always 1; its labels say what runs.");
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("policy", plan.policy.name()),
        ("device", &plan.device.describe()),
    ];
    text.sample("fairq_info", &labels, 1.0);
    text.one(
        "fairq_uptime_seconds",
        "gauge",
        "Time since the server started.",
        now.elapsed.as_secs_f64(),
    );
    text.one(
        "fairq_upgrades_total",
        "counter",
        "Times that another program has taken the server over (fairq ctl upgrade).",
        now.upgrades as f64,
    );
    text.one("fairq_tenants", "gauge", "Tenants being served.", tenants.members().len() as f64);
    text.one(
        "fairq_draining",
        "gauge",
        "1 while the server drains: it takes no more connections.",
        f64::from(u8::from(now.is_draining)),
    );
    text.one(
        "fairq_connections_memory_bytes",
        "gauge",
        "Memory that connections hold for requests and replies; given back when they are idle.",
        now.memory.0 as f64,
    );
    text.one(
        "fairq_connections_memory_limit_bytes",
        "gauge",
        "The most that it may be (limits.memory), but for one request of a tenant: at it requests wait, and no \
         new connection is taken.",
        now.memory.1 as f64,
    );
    let name = "fairq_tenant_write_back_error";
    text.family(
        name,
        "gauge",
        "1 for a tenant whose flushes and FUA writes fail, since data that it wrote may be lost; \
         until `fairq ctl clear-error TENANT`. Others have no sample.",
    );
    for member in tenants.members().filter(|member| now.write_back_errno(member).is_some()) {
        text.sample(name, &[("tenant", &member.tenant.name)], 1.0);
    }
    ended(text, now, tenants, &plan.device.describe());
    text.one(
        "fairq_cut_off_files",
        "gauge",
        "Files that became shorter while they were served: what was behind their end is lost, and \
         requests there fail. `fairq ctl status` names them.",
        now.cut_off.len() as f64,
    );
    type Value = fn(&StoreStatus) -> f64;
    let families: [(&str, &str, Value); 5] = [
        (
            "fairq_store_stuck",
            "1 for a store (a device, or what `store` of tenants names) that has not answered a \
             request for 5 seconds: its tenants wait. `fairq ctl status` names them.",
            |store| f64::from(u8::from(store.is_stuck)),
        ),
        (
            "fairq_store_oldest_request_seconds",
            "Age of the oldest request that the store has not answered.",
            |store| store.oldest.as_secs_f64(),
        ),
        ("fairq_store_requests", "Requests that the store has and has not answered.", |store| {
            store.on_device as f64
        }),
        (
            "fairq_store_slots",
            "The most requests that the store may have (D); no sample where there is no limit. \
             Each store has its own.",
            |store| store.policy.slots.map_or(f64::NAN, |slots| slots as f64),
        ),
        ("fairq_store_slots_free", "Slots of the store that are free.", |store| {
            store.policy.free_slots.map_or(f64::NAN, |slots| slots as f64)
        }),
    ];
    for (name, help, value) in families {
        text.family(name, "gauge", help);
        for store in &now.stores {
            let value = value(store);
            // Prometheus would take NaN as a sample, so a missing value has no line.
            if !value.is_nan() {
                text.sample(name, &[("store", store.name.as_str())], value);
            }
        }
    }
}

fn log(text: &mut Text) {
    text.one(
        "fairq_log_lines_suppressed_total",
        "counter",
        "Log lines about unauthenticated clients that were left out, because they came too fast.",
        STRANGERS.suppressed() as f64,
    );
}

fn per_tenant(text: &mut Text, subjects: &[Subject], device: &str) {
    type Value = fn(&TenantStats) -> u64;
    let ops: [(&str, Value); 3] = [
        ("read", |stats| stats.reads),
        ("write", |stats| stats.writes),
        ("other", |stats| stats.others),
    ];
    let name = "fairq_tenant_operations_total";
    text.family(
        name,
        "counter",
        "Requests completed; a read or write beyond 64 KiB counts once for each piece of 64 KiB.",
    );
    for subject in subjects {
        for (op, value) in ops {
            let labels = [("tenant", subject.name.as_str()), ("device", device), ("op", op)];
            text.sample(name, &labels, value(&subject.stats) as f64);
        }
    }
    let counters: [(&str, &str, Value, f64); 9] = [
        ("fairq_tenant_read_bytes_total", "Bytes read.", |stats| stats.read_bytes, 1.0),
        ("fairq_tenant_written_bytes_total", "Bytes written.", |stats| stats.written_bytes, 1.0),
        (
            "fairq_tenant_errors_total",
            "Requests that the device failed.",
            |stats| stats.errors,
            1.0,
        ),
        (
            "fairq_tenant_staged_seconds_total",
            "Time that requests waited in the scheduler, added up over requests.",
            |stats| stats.staged_ns,
            1e-9,
        ),
        (
            "fairq_tenant_device_seconds_total",
            "Time that requests were on the device, added up over requests.",
            |stats| stats.device_ns,
            1e-9,
        ),
        (
            "fairq_tenant_starved_seconds_total",
            "Time in which the tenant had requests waiting in the scheduler and none on the device.",
            |stats| stats.starved_ns,
            1e-9,
        ),
        (
            "fairq_tenant_in_flight",
            "Requests that the server has taken in and not completed.",
            |stats| stats.in_flight,
            1.0,
        ),
        (
            "fairq_tenant_queue_length",
            "Requests that wait in the scheduler.",
            |stats| stats.staged,
            1.0,
        ),
        (
            "fairq_tenant_latency_max_seconds",
            "The longest latency so far.",
            |stats| stats.latency_ns.max(),
            1e-9,
        ),
    ];
    for (name, help, value, unit) in counters {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        text.family(name, kind, help);
        for subject in subjects {
            let labels = [("tenant", subject.name.as_str()), ("device", device)];
            text.sample(name, &labels, value(&subject.stats) as f64 * unit);
        }
    }
    type Gauge = fn(&Subject) -> Option<f64>;
    let gauges: [(&str, &str, Gauge); 3] = [
        ("fairq_tenant_weight", "The tenant's weight.", |subject| subject.weight.map(f64::from)),
        (
            "fairq_tenant_entitled_ratio",
            "The tenant's weight divided by those of all tenants that had requests in the last \
             second; 0 if this one had none.",
            |subject| subject.second.map(|now| now.map_or(0.0, |now| now.entitled)),
        ),
        (
            "fairq_tenant_received_ratio",
            "The tenant's part of all bytes served in the last second.",
            |subject| subject.second.map(|now| now.map_or(0.0, |now| now.share)),
        ),
    ];
    for (name, help, value) in gauges {
        text.family(name, "gauge", help);
        for subject in subjects {
            if let Some(value) = value(subject) {
                text.sample(name, &[("tenant", subject.name.as_str()), ("device", device)], value);
            }
        }
    }
    latencies(text, subjects, device);
}

fn latencies(text: &mut Text, subjects: &[Subject], device: &str) {
    text.family(
        "fairq_tenant_latency_seconds",
        "histogram",
        "Time from a request's arrival to its completion.",
    );
    let bounds = BUCKETS_NS.map(|bound| (bound as f64 * 1e-9).to_string());
    for Subject { name, stats, .. } in subjects {
        let labels = [("tenant", name.as_str()), ("device", device)];
        for (le, below) in bounds.iter().zip(at_or_below(&stats.latency_ns)) {
            let labels = [labels[0], labels[1], ("le", le.as_str())];
            text.sample("fairq_tenant_latency_seconds_bucket", &labels, below as f64);
        }
        let count = stats.latency_ns.len() as f64;
        text.sample(
            "fairq_tenant_latency_seconds_bucket",
            &[labels[0], labels[1], ("le", "+Inf")],
            count,
        );
        let sum = (stats.staged_ns + stats.device_ns) as f64 * 1e-9;
        text.sample("fairq_tenant_latency_seconds_sum", &labels, sum);
        text.sample("fairq_tenant_latency_seconds_count", &labels, count);
    }
}

/// The number of latencies at or below each bound.
fn at_or_below(latency_ns: &Histogram<u64>) -> [u64; BUCKETS_NS.len()] {
    let (mut from, mut sum) = (0, 0);
    BUCKETS_NS.map(|bound| {
        // A latency in the histogram's slot of a bound counts as below the bound, and is not
        // counted again above it.
        sum += if latency_ns.is_empty() { 0 } else { latency_ns.count_between(from, bound) };
        from = latency_ns.next_non_equivalent(bound);
        sum
    })
}

fn shards(text: &mut Text, now: &Status) {
    let shards: Vec<String> = (0..now.totals.shards.len()).map(|shard| shard.to_string()).collect();
    type Value = fn(&fairq_host::observe::stats::ShardCounters) -> u64;
    let counters: [(&str, &str, Value); 5] = [
        ("fairq_shard_operations_total", "Requests completed.", |shard| shard.completed),
        ("fairq_shard_bytes_total", "Bytes read and written.", |shard| shard.bytes),
        (
            "fairq_shard_joined_total",
            "Requests that were merged into another request's command.",
            |shard| shard.joined,
        ),
        ("fairq_shard_turns_total", "Turns of the shard's loop.", |shard| shard.turns),
        (
            "fairq_shard_sleeps_total",
            "Times the shard slept; each ended with a wake-up.",
            |shard| shard.sleeps,
        ),
    ];
    for (name, help, value) in counters {
        text.family(name, "counter", help);
        for (shard, counters) in shards.iter().zip(&now.totals.shards) {
            text.sample(name, &[("shard", shard)], value(counters) as f64);
        }
    }
    type Time = fn(&CpuTime) -> u64;
    let times: [(&str, &str, Time); 2] = [
        ("fairq_shard_cpu_seconds_total", "Time the shard had its CPU.", |cpu| cpu.ran_ns),
        (
            "fairq_shard_cpu_wait_seconds_total",
            "Time the shard was ready to run while other programs had its CPU.",
            |cpu| cpu.waited_ns,
        ),
    ];
    for (name, help, value) in times {
        text.family(name, "counter", help);
        for (shard, cpu) in
            shards.iter().zip(&now.totals.shards).filter_map(|(shard, all)| Some((shard, all.cpu?)))
        {
            text.sample(name, &[("shard", shard)], value(&cpu) as f64 * 1e-9);
        }
    }
    text.family(
        "fairq_shard_issued_total",
        "counter",
        "Requests sent to the device, by queue class.",
    );
    for (shard, counters) in shards.iter().zip(&now.totals.shards) {
        for (class, issued) in ["urgent", "high", "medium", "low"].iter().zip(counters.issued) {
            text.sample(
                "fairq_shard_issued_total",
                &[("shard", shard), ("class", class)],
                issued as f64,
            );
        }
    }
    text.family("fairq_shard_connections", "gauge", "Open connections.");
    for (shard, connections) in shards.iter().zip(&now.connections) {
        text.sample("fairq_shard_connections", &[("shard", shard)], *connections as f64);
    }
}

/// The search for D.
fn depth(text: &mut Text, depth: &DepthStats) {
    text.one(
        "fairq_policy_slots_found",
        "gauge",
        "The least number of outstanding requests that is believed to fill the device: D, and of \
         kyber-fair what keeps the device busy.",
        depth.slots.into(),
    );
    let help = "1 for what D follows: searching (the load is new), found (less would cost more \
                than 1.5 % of the rate), all-demand (all requests are on the device and do not \
                fill it), alone (one tenant asks, so there is no limit).";
    text.family("fairq_policy_slots_state", "gauge", help);
    let states =
        [DepthState::Searching, DepthState::Found, DepthState::AllDemand, DepthState::Alone];
    for state in states {
        let is_it = f64::from(u8::from(state == depth.state));
        text.sample("fairq_policy_slots_state", &[("state", depth_state(state))], is_it);
    }
    text.one(
        "fairq_policy_device_requests_per_second",
        "gauge",
        "Requests a second that the device was last seen to complete with that D.",
        depth.requests_per_s as f64,
    );
    text.one(
        "fairq_policy_device_bytes_per_second",
        "gauge",
        "Bytes a second that the device was last seen to move with that D.",
        depth.bytes_per_s as f64,
    );
}

/// Costs by the device's time.
fn cost(text: &mut Text, cost: &CostStats) {
    let [read, sequential_read, write, sequential_write] = cost.bases;
    let help = "What a request costs beside its bytes, in equivalent bytes: a random read of 4 KiB \
                costs 4096 with its bytes, where there are some.";
    text.family("fairq_policy_cost_base_bytes", "gauge", help);
    let kinds = [
        ("read", "random", read),
        ("read", "sequential", sequential_read),
        ("write", "random", write),
        ("write", "sequential", sequential_write),
    ];
    for (operation, access, base) in kinds {
        let labels = [("operation", operation), ("access", access)];
        text.sample("fairq_policy_cost_base_bytes", &labels, base as f64);
    }
    let help = "What each KiB of a request costs, in equivalent bytes.";
    text.family("fairq_policy_cost_kib_bytes", "gauge", help);
    for (operation, price) in [("read", cost.per_kib[0]), ("write", cost.per_kib[1])] {
        text.sample("fairq_policy_cost_kib_bytes", &[("operation", operation)], price as f64);
    }
    text.one(
        "fairq_policy_cost_windows_total",
        "counter",
        "Windows of a busy device that costs were found in; 0 while they are a guess.",
        cost.windows as f64,
    );
}

fn policy(text: &mut Text, now: &Status) {
    let Stats {
        virtual_time,
        spread,
        slots,
        free_slots,
        throttles,
        blocks,
        wakes,
        tokens,
        depth,
        cost,
        ..
    } = now.policy;
    if let Some(depth) = depth {
        self::depth(text, &depth);
    }
    if let Some(cost) = cost {
        self::cost(text, &cost);
    }
    if let Some(time) = virtual_time {
        text.one(
            "fairq_policy_virtual_time_bytes",
            "gauge",
            "Virtual time, in bytes at weight 100; it wraps.",
            time as f64,
        );
    }
    if let Some(spread) = spread {
        text.one(
            "fairq_policy_virtual_time_spread_bytes",
            "gauge",
            "How far the foremost request or tenant is ahead of virtual time, in bytes at weight 100.",
            spread as f64,
        );
    }
    if let (Some(slots), Some(free)) = (slots, free_slots) {
        text.one(
            "fairq_policy_slots",
            "gauge",
            "The most requests outstanding on the device (D).",
            slots as f64,
        );
        let used = slots.saturating_sub(free) as f64;
        text.one(
            "fairq_policy_slots_in_use",
            "gauge",
            "Slots that outstanding requests take, or that shards keep at hand.",
            used,
        );
    }
    let help = "Times a shard stopped because its next request was too far ahead of virtual time.";
    text.one("fairq_policy_throttles_total", "counter", help, throttles as f64);
    text.one(
        "fairq_policy_blocks_total",
        "counter",
        "Times a shard stopped because no slot of the device was free.",
        blocks as f64,
    );
    text.one(
        "fairq_policy_wakes_total",
        "counter",
        "Wake-ups that shards gave each other.",
        wakes as f64,
    );
    if let Some(TokenStats { periods, tokens, write_percent }) = tokens {
        text.one(
            "fairq_policy_periods_total",
            "counter",
            "Periods that have begun.",
            periods as f64,
        );
        text.one(
            "fairq_policy_tokens",
            "gauge",
            "Tokens of this period for all tenants together; reading a byte takes one.",
            tokens as f64,
        );
        let help = "Tokens that writing a byte takes.";
        text.one("fairq_policy_write_cost", "gauge", help, write_percent as f64 / 100.0);
    }
    if let Some(weights) = now.classes {
        let name = "fairq_policy_class_weight";
        text.family(name, "gauge", "The weight of each of the device's queue classes.");
        for (class, weight) in
            [("high", weights.high), ("medium", weights.medium), ("low", weights.low)]
        {
            text.sample(name, &[("class", class)], f64::from(weight));
        }
        let ratio = f64::from(weights.high) / f64::from(weights.low.max(1));
        text.one(
            "fairq_policy_hl_ratio",
            "gauge",
            "The weight of the high class divided by that of the low one.",
            ratio,
        );
    }
}

fn interference(text: &mut Text, now: &Status, tenants: &TenantList) {
    let name = "fairq_interference_seconds_total";
    text.family(
        name,
        "counter",
        "Latency of sampled requests of a tenant, divided among the tenants (by) that were served \
         meanwhile.",
    );
    let mut names = vec![None; GROUPS];
    for member in tenants.members() {
        let slot = &mut names[group(member.number())];
        // The last group has several tenants, so it has a name for all.
        *slot = Some(if group(member.number()) == GROUPS - 1 {
            OTHERS
        } else {
            member.tenant.name.as_str()
        });
    }
    for (victim, row) in names.iter().zip(now.totals.matrix.iter()) {
        for (by, ns) in names.iter().zip(row) {
            if let (Some(victim), Some(by)) = (victim, by)
                && *ns > 0
            {
                text.sample(name, &[("tenant", victim), ("by", by)], *ns as f64 * 1e-9);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_at_or_below_their_bounds() {
        let mut histogram = TenantStats::default().latency_ns;
        assert_eq!(at_or_below(&histogram), [0; BUCKETS_NS.len()]);
        for ns in [10, 50_000, 51_000, 99_000, 150_000, 1_500_000_000, 90_000_000_000] {
            histogram.saturating_record(ns);
        }
        let all = at_or_below(&histogram);
        assert_eq!((all[0], all[1], all[2], all[11], all[13]), (2, 4, 5, 5, 6));
        assert_eq!(all, BUCKETS_NS.map(|bound| histogram.count_between(0, bound)));
    }

    #[test]
    fn labels_are_escaped() {
        let mut text = Text::default();
        text.sample("a", &[("tenant", "x\"y\\z\n"), ("by", "ü")], 0.5);
        text.one("b", "gauge", "What.", 3.0);
        assert_eq!(
            text.0,
            "a{tenant=\"x\\\"y\\\\z\\n\",by=\"ü\"} 0.5\n# HELP b What.\n# TYPE b gauge\nb 3\n"
        );
    }
}
