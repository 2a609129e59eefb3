//! The metrics, in the Prometheus text format, from the [view] of the server.
//!
//! Names end in their unit, counters in `_total`; times are seconds. A tenant's series have the
//! labels `tenant` and `device`: the name of the tenant's store, as in the label `store` of the
//! series of stores and their policies. Series of shards have the label `shard`. No sample has both
//! a tenant and a shard, so the number of series grows with the number of tenants plus the number
//! of shards, not with the product. At most [`MOST_TENANTS`] tenants have series of their own; the
//! others of a store are summed under one name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use fairq_host::observe::interference::{GROUPS, group};
use fairq_host::observe::log_limit::STRANGERS;
use fairq_host::observe::stats::{ClientRequests, TenantStats};
use fairq_host::server::{Status, TURN_BOUNDS_NS, TenantList};
use hdrhistogram::Histogram;

use super::overview::{OTHERS, Snapshot, counted};
use crate::view::{self, DepthState, PolicyState, Shard, Store, TenantRow};

mod promised;

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

/// Labels of a sample.
type Labels<'a> = Vec<(&'a str, &'a str)>;
/// A family of samples: its name, its help text, and the value of a subject; a subject for which
/// the function returns `None` has no sample.
type Family<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

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

    /// Families of the same subjects.
    fn families<T>(&mut self, families: &[Family<T>], subjects: &[(Labels<'_>, &T)]) {
        for (name, help, value) in families {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            self.family(name, kind, help);
            for (labels, subject) in subjects {
                if let Some(value) = value(subject) {
                    self.sample(name, labels, value);
                }
            }
        }
    }

    /// Families that are left out if no subject has a value.
    fn some_families<T>(&mut self, families: &[Family<T>], subjects: &[(Labels<'_>, &T)]) {
        for family in families {
            if subjects.iter().any(|(_, subject)| family.2(subject).is_some()) {
                self.families(&[*family], subjects);
            }
        }
    }
}

/// A tenant, or the others of a store together.
struct Subject<'a> {
    tenant: view::Tenant,
    /// The name of its store.
    store: String,
    stats: Cow<'a, TenantStats>,
    /// Whether its last second is known. It is unknown for a subject of several tenants.
    is_measured: bool,
}

impl Subject<'_> {
    fn labels(&self) -> Labels<'_> {
        vec![("tenant", &self.tenant.row.name), ("device", &self.store)]
    }

    /// A value of its last second; 0 while it is idle.
    fn last(&self, value: fn(&view::LastSecond) -> f64) -> Option<f64> {
        self.is_measured.then(|| self.tenant.row.last_second.as_ref().map_or(0.0, value))
    }
}

/// The tenants with series of their own, and a subject for the others of each store.
fn subjects(snapshot: &Snapshot) -> Vec<Subject<'_>> {
    let members = || snapshot.tenants.members();
    let mut subjects: Vec<Subject<'_>> = snapshot
        .tenants(MOST_TENANTS)
        .into_iter()
        .zip(members())
        .map(|(tenant, member)| Subject {
            store: tenant.row.store.clone().unwrap_or_default(),
            stats: Cow::Borrowed(snapshot.stats(member)),
            is_measured: snapshot.is_measured(member),
            tenant,
        })
        .collect();
    let mut others: BTreeMap<u16, TenantStats> = BTreeMap::new();
    for member in members().skip(MOST_TENANTS) {
        others.entry(member.store).or_default().add(snapshot.stats(member));
    }
    let stores = &snapshot.now.stores;
    let name = |number| stores.iter().find(|store| store.number == number);
    subjects.extend(others.into_iter().map(|(number, stats)| {
        let together = counted(&stats);
        Subject {
            tenant: view::Tenant {
                row: TenantRow { name: OTHERS.into(), ..together.row },
                ..together
            },
            store: name(number).map(|store| store.name.clone()).unwrap_or_default(),
            stats: Cow::Owned(stats),
            is_measured: false,
        }
    }));
    subjects
}

/// All metrics.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let (status, now) = (snapshot.status(), &snapshot.now);
    server(&mut text, &status, snapshot.policy_name());
    control(&mut text, now);
    layout(&mut text, status.layout.as_ref());
    let subjects = subjects(snapshot);
    let labelled: Vec<(Labels<'_>, &Subject<'_>)> =
        subjects.iter().map(|subject| (subject.labels(), subject)).collect();
    tenants(&mut text, &labelled);
    promised::tenants(&mut text, &labelled);
    promised::groups(&mut text, &snapshot.groups());
    promised::stores(&mut text, &status.reserved);
    shards(&mut text, &status.shards);
    policy(&mut text, &status.summary);
    interference(&mut text, now, &snapshot.tenants);
    text.0
}

fn bit(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

fn server(text: &mut Text, status: &view::Status, policy: &str) {
    text.family(
        "fairq_info",
        "gauge",
        "Always 1; its labels name the version, the policy and the device.",
    );
    let device = &status.summary.device;
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("policy", policy), ("device", device)];
    text.sample("fairq_info", &labels, 1.0);
    let families: [Family<view::Status>; 7] = [
        ("fairq_uptime_seconds", "Time since the server started.", |of| Some(of.summary.uptime_s)),
        (
            "fairq_upgrades_total",
            "Number of upgrades (fairq ctl upgrade) since the server started.",
            |of| Some(of.upgrades as f64),
        ),
        ("fairq_tenants", "Tenants being served.", |of| Some(of.tenants as f64)),
        ("fairq_draining", "1 while the server drains and accepts no more connections.", |of| {
            bit(of.summary.draining)
        }),
        (
            "fairq_connections_memory_bytes",
            "Memory that connections hold for requests and replies; it is freed when they are \
             idle.",
            |of| Some(of.memory.used as f64),
        ),
        (
            "fairq_connections_memory_limit_bytes",
            "The limit of fairq_connections_memory_bytes (limits.memory); one request of a tenant \
             may exceed it. At the limit requests wait, and the server accepts no new connection.",
            |of| Some(of.memory.most as f64),
        ),
        (
            "fairq_cut_off_files",
            "Files that became shorter while they were served: the data behind the new end are \
             lost, and requests for them fail. `fairq ctl status` names them.",
            |of| Some(of.cut_off_files.len() as f64),
        ),
    ];
    text.families(&families, &[(Labels::new(), status)]);
    let families: [Family<Store>; 5] = [
        (
            "fairq_store_stuck",
            "1 for a store (a device, or what `store` of tenants names) that has not answered a \
             request for 5 seconds: its tenants wait. `fairq ctl status` names them.",
            |store| bit(store.stuck),
        ),
        (
            "fairq_store_oldest_request_seconds",
            "Age of the oldest request that the store has not answered.",
            |store| Some(store.oldest_s),
        ),
        (
            "fairq_store_requests",
            "Operations that were issued to the store and are not completed.",
            |store| Some(store.on_device as f64),
        ),
        (
            "fairq_store_slots",
            "The most operations that the store may have (D); no sample where there is no limit. \
             Each store has its own.",
            |store| store.slots.map(|slots| slots as f64),
        ),
        ("fairq_store_slots_free", "Slots of the store that are free.", |store| {
            Some(store.slots?.saturating_sub(store.slots_in_use?) as f64)
        }),
    ];
    text.families(&families, &by_store(&status.summary.stores, |store| store));
    let help = "Log lines about unauthenticated clients that were suppressed by the rate limit.";
    let name = "fairq_log_lines_suppressed_total";
    text.family(name, "counter", help);
    text.sample(name, &[], STRANGERS.suppressed() as f64);
}

/// A part of each store, with its label.
fn by_store<T>(stores: &[Store], part: fn(&Store) -> &T) -> Vec<(Labels<'_>, &T)> {
    stores.iter().map(|store| (vec![("store", &*store.name)], part(store))).collect()
}

/// The CPU time of the control thread for one event at a time.
fn control(text: &mut Text, now: &Status) {
    let name = "fairq_control_turn_cpu_seconds";
    let help = "CPU time of the control thread for each event (a call, a scrape, a reload, a \
                tick); handshakes wait meanwhile.";
    text.family(name, "histogram", help);
    let (bucket, mut below) = (format!("{name}_bucket"), 0);
    for (bound, count) in TURN_BOUNDS_NS.iter().zip(now.control.classes) {
        below += count;
        let bound = (*bound as f64 * 1e-9).to_string();
        text.sample(&bucket, &[("le", &bound)], below as f64);
    }
    let count = now.control.count_all() as f64;
    text.sample(&bucket, &[("le", "+Inf")], count);
    text.sample(&format!("{name}_sum"), &[], now.control.cpu_ns as f64 * 1e-9);
    text.sample(&format!("{name}_count"), &[], count);
}

/// The ranges of the layout record whose names are not served.
fn layout(text: &mut Text, layout: Option<&view::Layout>) {
    let families: [Family<view::Layout>; 2] = [
        (
            "fairq_layout_reserved_ranges",
            "Ranges in the file's layout record that are reserved for names that no tenant has.",
            |of| Some(of.reserved.len() as f64),
        ),
        (
            "fairq_layout_reserved_bytes",
            "Bytes of the reserved ranges of the layout record, which no tenant can use.",
            |of| Some(of.reserved.iter().map(|range| range.size).sum::<u64>() as f64),
        ),
    ];
    let files: Vec<_> = layout.iter().map(|of| (vec![("file", &*of.path)], *of)).collect();
    text.families(&families, &files);
}

fn tenants(text: &mut Text, subjects: &[(Labels<'_>, &Subject<'_>)]) {
    operations(text, subjects);
    let families: [Family<Subject<'_>>; 16] = [
        ("fairq_tenant_read_bytes_total", "Bytes read.", |of| Some(of.tenant.read_bytes as f64)),
        ("fairq_tenant_written_bytes_total", "Bytes written.", |of| {
            Some(of.tenant.written_bytes as f64)
        }),
        ("fairq_tenant_errors_total", "Operations that the device failed.", |of| {
            Some(of.tenant.row.errors as f64)
        }),
        (
            "fairq_tenant_staged_seconds_total",
            "Sum of the times that operations waited in the scheduler.",
            |of| Some(of.tenant.staged_ns as f64 * 1e-9),
        ),
        (
            "fairq_tenant_device_seconds_total",
            "Sum of the times that operations were on the device.",
            |of| Some(of.tenant.device_ns as f64 * 1e-9),
        ),
        (
            "fairq_tenant_starved_seconds_total",
            "Time in which the tenant had operations waiting in the scheduler and none on the \
             device.",
            |of| Some(of.tenant.starved_ns as f64 * 1e-9),
        ),
        (
            "fairq_tenant_in_flight",
            "Operations that the server has received and not completed.",
            |of| Some(of.tenant.row.in_flight as f64),
        ),
        ("fairq_tenant_queue_length", "Operations that wait in the scheduler.", |of| {
            Some(of.tenant.row.staged as f64)
        }),
        ("fairq_tenant_latency_max_seconds", "The longest latency of an operation so far.", |of| {
            Some(of.tenant.latency_ns.max as f64 * 1e-9)
        }),
        ("fairq_tenant_weight", "The tenant's weight.", |of| {
            (of.tenant.row.weight > 0).then(|| of.tenant.row.weight.into())
        }),
        (
            "fairq_tenant_entitled_ratio",
            "The tenant's weight divided by those of all tenants of its store that had requests \
             in the last second; 0 if this one had none.",
            |of| of.last(|last| last.entitled),
        ),
        (
            "fairq_tenant_received_ratio",
            "The tenant's part of all bytes that its store served in the last second.",
            |of| of.last(|last| last.share),
        ),
        (
            "fairq_tenant_write_back_error",
            "1 for a tenant whose flushes and FUA writes fail, because data that it wrote may be \
             lost, until `fairq ctl clear-error TENANT`. Other tenants have no sample.",
            |of| of.tenant.write_back_errno.map(|_| 1.0),
        ),
        (
            "fairq_tenant_ended_writes",
            "Writes of the tenant's ended connections that are still in flight; overlapping \
             requests of other connections wait for them.",
            |of| Some(of.tenant.ended.writes as f64).filter(|_| of.has_ended()),
        ),
        (
            "fairq_tenant_ended_waits_total",
            "Requests that waited for writes of an ended connection. Tenants without any have no \
             sample.",
            |of| Some(of.tenant.ended.waited as f64).filter(|_| of.has_ended()),
        ),
        (
            "fairq_tenant_outdated_connections",
            "Connections that have an earlier size of the tenant, until they connect again. \
             Tenants without any have no sample.",
            |of| {
                let count: usize = of.tenant.outdated.iter().map(|of| of.connections).sum();
                (count > 0).then_some(count as f64)
            },
        ),
    ];
    text.families(&families, subjects);
    latencies(text, subjects);
}

impl Subject<'_> {
    /// Whether an ended connection of the tenant has or had unfinished writes.
    fn has_ended(&self) -> bool {
        self.tenant.ended != view::Ended::default()
    }
}

/// The clients' requests, and the operations that they were cut into.
fn operations(text: &mut Text, subjects: &[(Labels<'_>, &Subject<'_>)]) {
    let of_tenant = |of: &view::Tenant| [of.reads, of.writes, of.others];
    let of_clients = |of: &view::Tenant| {
        let ClientRequests { reads, writes, others } = of.requests;
        [reads, writes, others]
    };
    type Counts = fn(&view::Tenant) -> [u64; 3];
    let families: [(&str, &str, Counts); 2] = [
        (
            "fairq_tenant_requests_total",
            "Requests of the tenant's clients, each counted once whatever its length.",
            of_clients,
        ),
        (
            "fairq_tenant_operations_total",
            "Operations completed: a read or write of more than 64 KiB counts once for each piece \
             of 64 KiB.",
            of_tenant,
        ),
    ];
    for (name, help, counts) in families {
        text.family(name, "counter", help);
        for (labels, subject) in subjects {
            for (op, count) in ["read", "write", "other"].iter().zip(counts(&subject.tenant)) {
                text.sample(name, &[&labels[..], &[("op", op)]].concat(), count as f64);
            }
        }
    }
}

fn latencies(text: &mut Text, subjects: &[(Labels<'_>, &Subject<'_>)]) {
    text.family(
        "fairq_tenant_latency_seconds",
        "histogram",
        "Time from an operation's arrival to its completion.",
    );
    let bounds = BUCKETS_NS.map(|bound| (bound as f64 * 1e-9).to_string());
    for (labels, Subject { stats, .. }) in subjects {
        let bucket = "fairq_tenant_latency_seconds_bucket";
        for (le, below) in bounds.iter().zip(at_or_below(&stats.latency_ns)) {
            text.sample(bucket, &[&labels[..], &[("le", le)]].concat(), below as f64);
        }
        let count = stats.latency_ns.len() as f64;
        text.sample(bucket, &[&labels[..], &[("le", "+Inf")]].concat(), count);
        let sum = (stats.staged_ns + stats.device_ns) as f64 * 1e-9;
        text.sample("fairq_tenant_latency_seconds_sum", labels, sum);
        text.sample("fairq_tenant_latency_seconds_count", labels, count);
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

fn shards(text: &mut Text, shards: &[Shard]) {
    let names: Vec<String> = (0..shards.len()).map(|shard| shard.to_string()).collect();
    let labelled: Vec<(Labels<'_>, &Shard)> =
        names.iter().zip(shards).map(|(name, of)| (vec![("shard", &**name)], of)).collect();
    let families: [Family<Shard>; 8] = [
        ("fairq_shard_operations_total", "Operations completed.", |of| Some(of.operations as f64)),
        ("fairq_shard_bytes_total", "Bytes read and written.", |of| Some(of.bytes as f64)),
        (
            "fairq_shard_joined_total",
            "Operations that were merged into another operation's command.",
            |of| Some(of.joined as f64),
        ),
        ("fairq_shard_turns_total", "Iterations of the shard's loop.", |of| Some(of.turns as f64)),
        ("fairq_shard_sleeps_total", "Times the shard slept until a wake-up.", |of| {
            Some(of.sleeps as f64)
        }),
        ("fairq_shard_cpu_seconds_total", "Time the shard had its CPU.", |of| of.cpu_s),
        (
            "fairq_shard_cpu_wait_seconds_total",
            "Time the shard was ready to run while other programs had its CPU.",
            |of| of.cpu_wait_s,
        ),
        ("fairq_shard_connections", "Open connections.", |of| Some(of.connections as f64)),
    ];
    text.families(&families, &labelled);
    let name = "fairq_shard_issued_total";
    text.family(name, "counter", "Operations sent to the device, by queue class.");
    for (labels, shard) in &labelled {
        let view::Issued { urgent, high, medium, low } = shard.issued;
        for (class, issued) in
            [("urgent", urgent), ("high", high), ("medium", medium), ("low", low)]
        {
            text.sample(name, &[&labels[..], &[("class", class)]].concat(), issued as f64);
        }
    }
}

/// The policies: sums over all stores, and the state of each store's.
fn policy(text: &mut Text, summary: &view::Summary) {
    let together: [Family<PolicyState>; 5] = [
        (
            "fairq_policy_slots",
            "The most operations outstanding on the device (D); of all stores together.",
            |of| of.slots.map(|slots| slots as f64),
        ),
        (
            "fairq_policy_slots_in_use",
            "Slots that outstanding operations use or that shards hold in reserve; of all stores.",
            |of| of.slots_in_use.map(|slots| slots as f64),
        ),
        (
            "fairq_policy_throttles_total",
            "Times a shard stopped because its next request was too far ahead of virtual time.",
            |of| Some(of.throttles as f64),
        ),
        (
            "fairq_policy_blocks_total",
            "Times a shard stopped because no slot of the device was free.",
            |of| Some(of.blocks as f64),
        ),
        ("fairq_policy_wakes_total", "Wake-ups that shards sent to each other.", |of| {
            Some(of.wakes as f64)
        }),
    ];
    let all = &summary.policy_state;
    text.some_families(&together, &[(Labels::new(), all)]);
    let of_store: [Family<PolicyState>; 9] = [
        (
            "fairq_policy_slots_found",
            "The smallest number of outstanding requests that is estimated to fill the store: the \
             automatic D, or, with kyber-fair, the number that keeps the store busy.",
            |of| Some(of.depth.as_ref()?.slots as f64),
        ),
        (
            "fairq_policy_device_requests_per_second",
            "Operations a second that the store completed with fairq_policy_slots_found, when last \
             measured.",
            |of| Some(of.depth.as_ref()?.requests_per_s as f64),
        ),
        (
            "fairq_policy_device_bytes_per_second",
            "Bytes a second that the store moved with fairq_policy_slots_found, when last \
             measured.",
            |of| Some(of.depth.as_ref()?.bytes_per_s as f64),
        ),
        (
            "fairq_policy_cost_windows_total",
            "Windows of a busy store in which costs were measured; 0 while the costs are only \
             assumed.",
            |of| Some(of.cost.as_ref()?.windows as f64),
        ),
        (
            "fairq_policy_virtual_time_bytes",
            "Virtual time of the store's policy, in bytes at weight 100; it wraps.",
            |of| of.virtual_time.map(|time| time as f64),
        ),
        (
            "fairq_policy_virtual_time_spread_bytes",
            "The distance from virtual time of the request or tenant that is farthest ahead, in \
             bytes at weight 100.",
            |of| of.virtual_time_spread.map(|spread| spread as f64),
        ),
        ("fairq_policy_periods_total", "Periods that have begun.", |of| {
            Some(of.tokens.as_ref()?.periods as f64)
        }),
        (
            "fairq_policy_tokens",
            "Tokens of this period for all tenants of the store; a read uses one for each byte.",
            |of| Some(of.tokens.as_ref()?.tokens as f64),
        ),
        ("fairq_policy_write_cost", "Tokens that a write uses for each byte.", |of| {
            Some(of.tokens.as_ref()?.write_percent as f64 / 100.0)
        }),
    ];
    let states = by_store(&summary.stores, |store| &store.policy_state);
    text.some_families(&of_store, &states);
    depths(text, &states);
    costs(text, &states);
    classes(text, all.class_weights.as_ref());
}

/// The state of the search for D.
fn depths(text: &mut Text, stores: &[(Labels<'_>, &PolicyState)]) {
    let name = "fairq_policy_slots_state";
    let help = "1 for the present state of the search for D: searching (the load is new), found (a \
                smaller D would reduce the rate by more than 1.5 %), all-demand (all requests are \
                on the store and do not fill it), alone (one tenant is active, so there is no \
                limit).";
    let depths: Vec<_> =
        stores.iter().filter_map(|(labels, of)| Some((labels, of.depth.as_ref()?.state))).collect();
    if !depths.is_empty() {
        text.family(name, "gauge", help);
    }
    for (labels, now) in depths {
        for (state, word) in DepthState::NAMED {
            let value = f64::from(u8::from(state == now));
            text.sample(name, &[&labels[..], &[("state", word)]].concat(), value);
        }
    }
}

/// Costs by the device's time.
fn costs(text: &mut Text, stores: &[(Labels<'_>, &PolicyState)]) {
    type Parts = fn(&view::Cost) -> Vec<(Labels<'static>, u64)>;
    let families: [(&str, &str, Parts); 2] = [
        (
            "fairq_policy_cost_base_bytes",
            "The cost of a request in addition to its bytes, in equivalent bytes. A random read of \
             4 KiB costs 4096 in all, if the store has such reads.",
            |of| {
                let kinds = [
                    ("read", "random", of.random_read),
                    ("read", "sequential", of.sequential_read),
                    ("write", "random", of.random_write),
                    ("write", "sequential", of.sequential_write),
                ];
                let labels = |operation, access| vec![("operation", operation), ("access", access)];
                kinds.map(|(operation, access, base)| (labels(operation, access), base)).into()
            },
        ),
        (
            "fairq_policy_cost_kib_bytes",
            "The cost of each KiB of a request, in equivalent bytes.",
            |of| {
                let kinds = [("read", of.read_kib), ("write", of.written_kib)];
                kinds.map(|(operation, price)| (vec![("operation", operation)], price)).into()
            },
        ),
    ];
    let costs: Vec<_> =
        stores.iter().filter_map(|(labels, of)| Some((labels, of.cost.as_ref()?))).collect();
    for (name, help, parts) in families.iter().filter(|_| !costs.is_empty()) {
        text.family(name, "gauge", help);
        for (store, cost) in &costs {
            for (labels, value) in parts(cost) {
                text.sample(name, &[&store[..], &labels].concat(), value as f64);
            }
        }
    }
}

/// The weights of the device's queue classes.
fn classes(text: &mut Text, weights: Option<&view::ClassWeights>) {
    let Some(weights) = weights else { return };
    let name = "fairq_policy_class_weight";
    text.family(name, "gauge", "The weight of each of the device's queue classes.");
    for (class, weight) in
        [("high", weights.high), ("medium", weights.medium), ("low", weights.low)]
    {
        text.sample(name, &[("class", class)], f64::from(weight));
    }
    let help = "The weight of the high class divided by that of the low one.";
    text.family("fairq_policy_hl_ratio", "gauge", help);
    let ratio = f64::from(weights.high) / f64::from(weights.low.max(1));
    text.sample("fairq_policy_hl_ratio", &[], ratio);
}

fn interference(text: &mut Text, now: &Status, tenants: &TenantList) {
    let name = "fairq_interference_seconds_total";
    text.family(
        name,
        "counter",
        "Latency of sampled requests of a tenant (tenant), divided among the tenants (by) whose \
         requests were served meanwhile.",
    );
    let mut names = [None; GROUPS];
    for member in tenants.members() {
        let slot = &mut names[group(member.number())];
        // The last group of the matrix may have several tenants, so it has the common name.
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
        text.families(&[("b", "Bytes.", |of: &f64| Some(*of))], &[(Vec::new(), &3.0)]);
        assert_eq!(
            text.0,
            "a{tenant=\"x\\\"y\\\\z\\n\",by=\"ü\"} 0.5\n# HELP b Bytes.\n# TYPE b gauge\nb 3\n"
        );
    }
}
