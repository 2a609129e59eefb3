//! The view of a running server: its status, its tenants and its groups.
//!
//! The server fills these structures (`operate::overview`), and serialises them as the answers to
//! `status`, `tenants`, `groups` and `look`. `fairq ctl` and `fairq top` read the same structures
//! from the answers, and the metrics are made from them. So a shown field is declared here, and
//! filled in one place.
//!
//! `look` has a [`Summary`], the [`TenantRow`]s and the [`Group`]s: the part of the view that
//! `fairq top` and the web page show each second. [`Status`] and [`Tenant`] contain these and more.
//!
//! A field that an answer lacks has its default, so a program reads the answers of other versions.
//! Sizes and rates are in bytes; times are in the unit of the field's name.

use std::collections::BTreeMap;
use std::path::PathBuf;

#[cfg(feature = "top")]
use fairq_core::TargetState;
use fairq_host::observe::stats::ClientRequests;
use serde::{Deserialize, Serialize};

/// Declares structures of the view, whose fields have defaults.
macro_rules! shown {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field:meta])* $key:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
        #[serde(default)]
        pub(crate) struct $name { $($(#[$field])* pub(crate) $key: $type,)* }
    )*};
}

shown! {
    /// The answer to `look`.
    struct Look {
        status: Summary,
        tenants: Vec<TenantRow>,
        groups: Vec<Group>,
    }

    /// The part of a status that `top` and the page show.
    struct Summary {
        uptime_s: f64,
        device: String,
        /// The policy with its parameters.
        policy: String,
        policy_state: PolicyState,
        connections: usize,
        draining: bool,
        stores: Vec<Store>,
    }

    /// The answer to `status`.
    struct Status {
        #[serde(flatten)]
        summary: Summary,
        version: String,
        pid: u32,
        upgrades: u64,
        shards: Vec<Shard>,
        memory: Memory,
        /// The number of tenants.
        tenants: usize,
        listening: Vec<String>,
        control: Control,
        /// Bytes that are in no tenant's range.
        unassigned: u64,
        /// The tenants whose flushes fail, because written data may be lost.
        write_back_errors: Vec<String>,
        outdated: Vec<OutdatedTenant>,
        cut_off_files: Vec<CutOffFile>,
        latency_targets: Vec<TargetOfTenant>,
        reserved: Vec<Reserved>,
        layout: Option<Layout>,
    }

    /// Bytes of the connections' buffers, and their limit.
    struct Memory {
        used: u64,
        most: u64,
    }

    /// The control thread.
    struct Control {
        turns: u64,
        cpu_s: f64,
        longest_turn_cpu_s: f64,
    }

    /// A shard.
    struct Shard {
        cpu: Option<usize>,
        connections: usize,
        operations: u64,
        bytes: u64,
        turns: u64,
        sleeps: u64,
        cpu_s: Option<f64>,
        /// The time for which the shard was ready to run and had no CPU.
        cpu_wait_s: Option<f64>,
        issued: Issued,
        /// Requests that were merged into another request's command.
        joined: u64,
    }

    /// Requests that were sent to the device, by queue class.
    struct Issued {
        urgent: u64,
        high: u64,
        medium: u64,
        low: u64,
    }

    /// The state of a store's policy, or of the policies of all stores together. If there are
    /// several stores, values that cannot be summed are null in the latter.
    struct PolicyState {
        virtual_time: Option<u64>,
        virtual_time_spread: Option<u64>,
        slots: Option<u64>,
        slots_in_use: Option<u64>,
        throttles: u64,
        blocks: u64,
        wakes: u64,
        tokens: Option<Tokens>,
        class_weights: Option<ClassWeights>,
        depth: Option<Depth>,
        cost: Option<Cost>,
        /// The time for which requests have been waiting for the previous policy to finish.
        changing_s: Option<f64>,
    }

    /// The tokens of a period.
    struct Tokens {
        periods: u64,
        tokens: u64,
        write_percent: u64,
    }

    /// The weights of the device's queue classes.
    struct ClassWeights {
        high: u16,
        medium: u16,
        low: u16,
    }

    /// The search for D.
    struct Depth {
        /// The least D that is believed to fill the device.
        slots: u64,
        state: DepthState,
        /// The device's measured rates with it.
        requests_per_s: u64,
        bytes_per_s: u64,
    }

    /// The costs of requests by the device's time, in equivalent bytes.
    struct Cost {
        random_read: u64,
        sequential_read: u64,
        random_write: u64,
        sequential_write: u64,
        read_kib: u64,
        written_kib: u64,
        /// Windows in which costs were measured; 0 while they are a guess.
        windows: u64,
    }

    /// A store: files that fail and hang together, and share a policy.
    struct Store {
        name: String,
        tenants: Vec<String>,
        /// Requests that the store has not answered.
        on_device: u64,
        /// Age of the oldest of them.
        oldest_s: f64,
        stuck: bool,
        slots: Option<u64>,
        slots_in_use: Option<u64>,
        policy_state: PolicyState,
    }

    /// Connections that have an earlier size of a tenant.
    struct OutdatedTenant {
        tenant: String,
        connections: usize,
    }

    /// A file that became shorter while it was served.
    struct CutOffFile {
        path: PathBuf,
        size: u64,
        intact: u64,
    }

    /// A tenant's latency target in `status`.
    struct TargetOfTenant {
        tenant: String,
        /// The target in words.
        target: String,
        state: String,
        cause: Option<String>,
        completed: u64,
        late: u64,
    }

    /// The reservations of a store's tenants, as parts of the rate of its device.
    struct Reserved {
        store: String,
        asked: f64,
        granted: f64,
        device_iops: u64,
        device_bytes_per_s: u64,
    }

    /// The layout record of the shared file.
    struct Layout {
        path: String,
        id: String,
        size: u64,
        /// Ranges of names that are not served.
        reserved: Vec<ReservedRange>,
    }

    /// A range of the layout record.
    struct ReservedRange {
        name: String,
        offset: u64,
        size: u64,
    }

    /// A group of tenants.
    struct Group {
        name: String,
        weight: u16,
        /// Its weight relative to the tenants and groups that are in no group.
        effective_weight: f64,
        /// Its reservation; 0 for none.
        min_iops: u64,
        min_bandwidth: u64,
        /// The number of tenants and groups in it, and the number of active ones.
        members: u32,
        active: u32,
        tenants: Vec<String>,
        caps: Option<Capped>,
        /// Its reservation, its caps, and the requests that wait for these, in words.
        promised: Option<String>,
        /// The latency target in words.
        latency: Option<String>,
    }

    /// The part of a tenant that `top` and the page show.
    struct TenantRow {
        name: String,
        weight: u16,
        store: Option<String>,
        /// Requests that wait in the scheduler.
        staged: u64,
        /// Requests that the server has received and not completed.
        in_flight: u64,
        errors: u64,
        /// `None` while it is idle.
        last_second: Option<LastSecond>,
        latency_target: Option<LatencyTarget>,
        /// Its group, its reservation, its caps, and the requests that wait for these, in words.
        promised: Option<String>,
        attachments: Vec<Attachment>,
        /// The tenants whose requests were served while its own waited, as parts of its delay.
        hurt_by: Option<BTreeMap<String, f64>>,
    }

    /// A tenant in `tenants`.
    struct Tenant {
        #[serde(flatten)]
        row: TenantRow,
        weight_source: String,
        size: u64,
        file: u16,
        offset: u64,
        read_only: bool,
        identity: Option<String>,
        uids: Vec<u32>,
        gids: Vec<u32>,
        connections: usize,
        outdated: Vec<OldSize>,
        resizing: Option<Resizing>,
        preparing: Option<Preparing>,
        /// The clients' requests.
        requests: ClientRequests,
        /// Operations: pieces of at most 64 KiB of reads and writes, and requests without data.
        reads: u64,
        writes: u64,
        others: u64,
        read_bytes: u64,
        written_bytes: u64,
        write_back_errno: Option<i32>,
        ended: Ended,
        staged_ns: u64,
        device_ns: u64,
        starved_ns: u64,
        latency_ns: Latency,
        capped: Option<Capped>,
        group: Option<String>,
        place: Option<Place>,
    }

    /// A socket of a tenant for guests, or its block device.
    struct Attachment {
        kind: String,
        path: PathBuf,
        connected: bool,
        queues: usize,
        error: Option<String>,
    }

    /// Connections with a size from before a resize.
    struct OldSize {
        size: u64,
        connections: usize,
    }

    /// The progress of a resize.
    struct Resizing {
        to: u64,
        done: Option<u64>,
        size: Option<u64>,
        waits_for: Option<Vec<String>>,
    }

    /// The progress of a preparation.
    struct Preparing {
        done: u64,
        size: u64,
        errno: Option<i32>,
        waits_for: Vec<String>,
    }

    /// Writes of connections that have ended.
    struct Ended {
        writes: u64,
        /// Requests that waited for them.
        waited: u64,
    }

    /// Quantiles of the latencies since the start.
    struct Latency {
        p50: u64,
        p99: u64,
        p999: u64,
        max: u64,
    }

    /// A tenant's latency target and its state.
    struct LatencyTarget {
        target_ns: u64,
        /// Percent of its requests that must meet the target.
        percentile: f64,
        floor_percent: u8,
        state: String,
        /// The reason for which it cannot be met, and the remedy.
        cause: Option<String>,
        /// Requests completed in the last second, and the late ones among them.
        completed: u64,
        late: u64,
        /// Always null; other versions have a measured value here.
        alone_mean_ns: Option<f64>,
        /// The weight with which the tenant is served.
        weight: u16,
        /// The bound of D for all targets together, if there is one.
        slots_bound: Option<u64>,
    }

    /// Caps and their counters.
    struct Capped {
        /// The caps by their keys.
        caps: BTreeMap<String, Cap>,
        held: u64,
        held_ns: u64,
        waiting: u64,
    }

    /// A cap: operations or bytes.
    struct Cap {
        per_s: u64,
        burst: u64,
    }

    /// A tenant's effective weight and reservation.
    struct Place {
        effective_weight: f64,
        active: bool,
        min_iops: u64,
        min_bandwidth: u64,
        granted_iops: u64,
        granted_bandwidth: u64,
        /// The state of the reservation.
        reservation: String,
        iops: u64,
        bytes_per_s: u64,
        /// Requests that went to the device before all others.
        ahead: u64,
    }
}

/// Measurements of an active tenant in the last second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct LastSecond {
    /// Its part by weight, and its part of the bytes, among the active tenants of its store.
    pub(crate) entitled: f64,
    pub(crate) share: f64,
    pub(crate) iops: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    /// A request's mean time in the scheduler.
    pub(crate) staged_ns: f64,
    /// A request's mean time on the device.
    pub(crate) device_ns: f64,
}

/// The state of the search for D.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DepthState {
    /// The load is new.
    Searching,
    /// A smaller D would cost throughput.
    Found,
    /// All requests are on the device and do not fill it.
    AllDemand,
    /// One tenant is active, so there is no limit.
    Alone,
    /// A state of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

impl From<fairq_core::DepthState> for DepthState {
    fn from(state: fairq_core::DepthState) -> DepthState {
        match state {
            fairq_core::DepthState::Searching => DepthState::Searching,
            fairq_core::DepthState::Found => DepthState::Found,
            fairq_core::DepthState::AllDemand => DepthState::AllDemand,
            fairq_core::DepthState::Alone => DepthState::Alone,
        }
    }
}

impl DepthState {
    /// The states that a server has, with their names.
    pub(crate) const NAMED: [(DepthState, &str); 4] = [
        (DepthState::Searching, "searching"),
        (DepthState::Found, "found"),
        (DepthState::AllDemand, "all-demand"),
        (DepthState::Alone, "alone"),
    ];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        DepthState::NAMED.iter().find(|(state, _)| *state == self).map_or("unknown", |of| of.1)
    }
}

impl PolicyState {
    /// The state of a policy from its statistics.
    pub(crate) fn of(stats: &fairq_core::Stats) -> PolicyState {
        let fairq_core::Stats { virtual_time, spread, slots, free_slots, .. } = *stats;
        let fairq_core::Stats { throttles, blocks, wakes, tokens, depth, cost, .. } = *stats;
        PolicyState {
            virtual_time,
            virtual_time_spread: spread,
            slots,
            slots_in_use: slots.zip(free_slots).map(|(slots, free)| slots.saturating_sub(free)),
            throttles,
            blocks,
            wakes,
            tokens: tokens.map(|of| Tokens {
                periods: of.periods,
                tokens: of.tokens,
                write_percent: of.write_percent,
            }),
            class_weights: None,
            depth: depth.map(|of| Depth {
                slots: of.slots.into(),
                state: of.state.into(),
                requests_per_s: of.requests_per_s,
                bytes_per_s: of.bytes_per_s,
            }),
            cost: cost.map(|of| Cost {
                random_read: of.bases[0],
                sequential_read: of.bases[1],
                random_write: of.bases[2],
                sequential_write: of.bases[3],
                read_kib: of.per_kib[0],
                written_kib: of.per_kib[1],
                windows: of.windows,
            }),
            changing_s: None,
        }
    }
}

#[cfg(feature = "top")]
impl LatencyTarget {
    /// Whether the target was missed in the last second.
    pub(crate) fn is_missed(&self) -> bool {
        let not_missed = [TargetState::Idle, TargetState::Met].map(fairq_config::latency::state);
        !not_missed.contains(&&*self.state)
    }
}
