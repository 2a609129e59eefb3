//! A snapshot of a running server, and the view that is made from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairq_config::settings::{Plan, Settings};
use fairq_config::tenant::by_name;
use fairq_host::observe::interference::{GROUPS, Matrix, group};
use fairq_host::observe::stats::{ShardCounters, TenantStats};
use fairq_host::server::{Admin, AttachmentStatus, Listen, Member, Status, TenantList};
use serde::Serialize;
use serde_json::Value;

use super::Console;
use super::storage::{cut_off_files, outdated, stores, write_back_errors};
use super::{Seconds, caps, groups, keeper, latency};
use crate::view::{self, Look, PolicyState, Summary, TenantRow};

/// The name of tenants that are counted together.
pub(super) const OTHERS: &str = "(others)";

/// The shown state of the server at one time. The control thread copies it, and another thread
/// makes the view and its text, which takes much longer with thousands of tenants.
pub(super) struct Snapshot {
    plan: Arc<Plan>,
    settings: Arc<Settings>,
    pub(super) now: Arc<Status>,
    pub(super) tenants: Arc<TenantList>,
    listening: Vec<Listen>,
    unassigned: u64,
    /// The layout record of the shared file.
    layout: Option<keeper::Shown>,
    /// Each tenant's last second; `None` for an idle one.
    second: Arc<Seconds>,
    /// The interference matrix at the beginning of the shown time.
    earlier: Option<Arc<Matrix>>,
}

/// A part of the view as JSON.
pub(super) fn json_of(view: &impl Serialize) -> Value {
    serde_json::to_value(view).expect("a view is plain data")
}

impl Console {
    /// The server as it is now.
    pub(super) fn snapshot(&self, admin: &dyn Admin) -> Snapshot {
        self.snapshot_of(admin, admin.status().into())
    }

    pub(super) fn snapshot_of(&self, admin: &dyn Admin, now: Arc<Status>) -> Snapshot {
        let tenants = admin.tenants();
        Snapshot {
            plan: self.plan.clone(),
            settings: self.settings.clone(),
            now,
            unassigned: self.unassigned(&tenants),
            layout: self.layout.as_ref().map(keeper::Keeper::shown),
            tenants,
            listening: admin.listening(),
            second: self.second.clone(),
            earlier: self.matrices.front().cloned(),
        }
    }

    pub(super) fn describe_policy(&self) -> String {
        describe_policy(&self.plan)
    }
}

fn describe_policy(plan: &Plan) -> String {
    plan.policy.describe(plan.device.default_slots())
}

/// The state of the policies of all stores together.
pub(super) fn policy_state(now: &Status) -> PolicyState {
    PolicyState {
        class_weights: now.classes.map(|of| view::ClassWeights {
            high: of.high,
            medium: of.medium,
            low: of.low,
        }),
        changing_s: now.changing.map(|time| time.as_secs_f64()),
        ..PolicyState::of(&now.policy)
    }
}

/// A tenant's counters; they may be the sums of several tenants'.
pub(super) fn counted(stats: &TenantStats) -> view::Tenant {
    // A quantile of an empty histogram reads all of its counters, which is slow for thousands of
    // tenants.
    let is_empty = stats.latency_ns.is_empty();
    let quantile =
        |quantile| if is_empty { 0 } else { stats.latency_ns.value_at_quantile(quantile) };
    view::Tenant {
        row: TenantRow {
            staged: stats.staged,
            in_flight: stats.in_flight,
            errors: stats.errors,
            ..TenantRow::default()
        },
        requests: stats.requests,
        reads: stats.reads,
        writes: stats.writes,
        others: stats.others,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        staged_ns: stats.staged_ns,
        device_ns: stats.device_ns,
        starved_ns: stats.starved_ns,
        latency_ns: view::Latency {
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: stats.latency_ns.max(),
        },
        ..view::Tenant::default()
    }
}

impl Snapshot {
    pub(super) fn look(&self) -> Look {
        let names = group_names(&self.tenants);
        let row = |member| self.row(member, &names);
        Look {
            status: self.summary(),
            tenants: self.tenants.members().map(row).collect(),
            groups: groups::shown(&self.settings, &self.now, &self.tenants),
        }
    }

    fn summary(&self) -> Summary {
        let now = &*self.now;
        Summary {
            uptime_s: now.elapsed.as_secs_f64(),
            device: self.plan.device.describe(),
            policy: describe_policy(&self.plan),
            policy_state: policy_state(now),
            connections: now.connections.iter().sum(),
            draining: now.is_draining,
            stores: stores(&self.tenants, now),
        }
    }

    /// The answer to `status`.
    pub(super) fn status(&self) -> view::Status {
        let (now, tenants) = (&*self.now, &*self.tenants);
        let counters = now.totals.shards.iter().zip(&now.connections).enumerate();
        view::Status {
            summary: self.summary(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            upgrades: now.upgrades,
            shards: counters
                .map(|(index, (of, connections))| {
                    shard(self.plan.cpus.get(index), *connections, of)
                })
                .collect(),
            memory: view::Memory { used: now.memory.0, most: now.memory.1 },
            tenants: tenants.members().len(),
            listening: self.listening.iter().map(ToString::to_string).collect(),
            control: view::Control {
                turns: now.control.count_all(),
                cpu_s: now.control.cpu_ns as f64 * 1e-9,
                longest_turn_cpu_s: now.control.longest_ns as f64 * 1e-9,
            },
            unassigned: self.unassigned,
            write_back_errors: write_back_errors(tenants, now),
            outdated: outdated(tenants),
            cut_off_files: cut_off_files(now),
            latency_targets: latency::all(tenants, now),
            reserved: groups::reserved(now),
            layout: self.layout.as_ref().map(|of| of.view(|name| tenants.find(name).is_some())),
        }
    }

    pub(super) fn policy_name(&self) -> &'static str {
        self.plan.policy.name()
    }

    /// The answer to `tenants`, with at most `most` of them.
    pub(super) fn tenants(&self, most: usize) -> Vec<view::Tenant> {
        let names = group_names(&self.tenants);
        let written = by_name(&self.settings.tenant);
        let tenant = |member: &Member| {
            let source = written.get(&*member.tenant.name).and_then(|table| table.weight.clone());
            view::Tenant {
                weight_source: source.unwrap_or_default().to_string(),
                row: self.row(member, &names),
                ..self.tenant(member)
            }
        };
        self.tenants.members().take(most).map(tenant).collect()
    }

    /// A tenant without its row.
    fn tenant(&self, member: &Member) -> view::Tenant {
        let (now, tenant) = (&*self.now, &member.tenant);
        let settings = &tenant.settings;
        let outdated = member.outdated_connections().into_iter();
        let wiping = |of: &fairq_host::shard::wipe::Wiping| view::Preparing {
            done: of.done(),
            size: of.size(),
            errno: of.outcome().filter(|errno| *errno != 0),
            waits_for: of.waits_for(),
        };
        let ended = now.fence_of(member);
        view::Tenant {
            size: tenant.size,
            file: tenant.file,
            offset: tenant.base,
            read_only: settings.read_only,
            identity: settings.identity.as_ref().map(ToString::to_string),
            uids: settings.users.uids.clone(),
            gids: settings.users.gids.clone(),
            connections: member.all_connections(),
            outdated: outdated
                .map(|(size, connections)| view::OldSize { size, connections })
                .collect(),
            resizing: member.resizing.as_ref().map(|of| {
                let wiping = of.wiping.as_deref();
                view::Resizing {
                    to: of.to,
                    done: wiping.map(|of| of.done()),
                    size: wiping.map(|of| of.size()),
                    waits_for: wiping.map(|of| of.waits_for()),
                }
            }),
            preparing: member.preparing.as_deref().map(wiping),
            write_back_errno: now.write_back_errno(member),
            ended: view::Ended { writes: ended.left as u64, waited: ended.waited },
            capped: now.caps_of(member).map(caps::view),
            group: settings.group.clone(),
            place: now.share_of(member).map(groups::view),
            ..counted(self.stats(member))
        }
    }

    pub(super) fn stats(&self, member: &Member) -> &TenantStats {
        &self.now.totals.tenants[usize::from(member.number())]
    }

    fn row(&self, member: &Member, names: &[&str; GROUPS]) -> TenantRow {
        let (now, stats) = (&*self.now, self.stats(member));
        TenantRow {
            name: member.tenant.name.clone(),
            weight: member.tenant.settings.weight.get(),
            store: now.store_of(member).map(str::to_owned),
            staged: stats.staged,
            in_flight: stats.in_flight,
            errors: stats.errors,
            last_second: self.second.get(&member.flow).copied().flatten(),
            latency_target: now.target_of(member).map(latency::view),
            promised: groups::promised(now, member),
            attachments: now.attachments_of(member).iter().map(attachment).collect(),
            hurt_by: self.hurt_by(member, &now.totals.matrix, names),
        }
    }

    /// Whether the tenant's last second is known.
    pub(super) fn is_measured(&self, member: &Member) -> bool {
        self.second.contains_key(&member.flow)
    }

    /// The parts that others have in a tenant's delay over the shown seconds, by group number.
    fn parts(&self, victim: usize, now: &Matrix) -> Option<[f64; GROUPS]> {
        let earlier = self.earlier.as_ref();
        let since = |other: usize| {
            // A number that was given to another tenant counts from 0 again.
            now[victim][other].saturating_sub(earlier.map_or(0, |matrix| matrix[victim][other]))
        };
        let total: u64 = (0..GROUPS).map(since).sum();
        (total > 0).then(|| std::array::from_fn(|other| since(other) as f64 / total as f64))
    }

    /// The tenants that have delayed a tenant, with their parts; `None` if it did not wait.
    fn hurt_by(
        &self,
        victim: &Member,
        now: &Matrix,
        names: &[&str; GROUPS],
    ) -> Option<BTreeMap<String, f64>> {
        let parts = self.parts(group(victim.number()), now)?;
        let mut by_name = BTreeMap::new();
        for (name, part) in names.iter().zip(parts).filter(|(_, part)| *part > 0.0) {
            // Several groups may have the same name: all groups without a tenant are `(others)`.
            *by_name.entry((*name).to_owned()).or_default() += part;
        }
        Some(by_name)
    }

    /// The answer to `groups`.
    pub(super) fn groups(&self) -> Vec<view::Group> {
        groups::shown(&self.settings, &self.now, &self.tenants)
    }

    /// The answer to `interference`.
    pub(super) fn interference(&self) -> BTreeMap<String, BTreeMap<String, f64>> {
        let names = group_names(&self.tenants);
        let row = |member: &Member| {
            let parts = self.hurt_by(member, &self.now.totals.matrix, &names)?;
            Some((member.tenant.name.clone(), parts))
        };
        self.tenants.members().filter_map(row).collect()
    }
}

fn attachment(of: &AttachmentStatus) -> view::Attachment {
    view::Attachment {
        kind: of.kind.name().into(),
        path: of.path.clone(),
        connected: of.is_connected,
        queues: of.queues,
        error: of.error.clone(),
    }
}

fn shard(cpu: Option<&usize>, connections: usize, counters: &ShardCounters) -> view::Shard {
    let [urgent, high, medium, low] = counters.issued;
    view::Shard {
        cpu: cpu.copied(),
        connections,
        operations: counters.completed,
        bytes: counters.bytes,
        turns: counters.turns,
        sleeps: counters.sleeps,
        cpu_s: counters.cpu.map(|cpu| cpu.ran_ns as f64 * 1e-9),
        cpu_wait_s: counters.cpu.map(|cpu| cpu.waited_ns as f64 * 1e-9),
        issued: view::Issued { urgent, high, medium, low },
        joined: counters.joined,
    }
}

/// The tenant's name for each group of the interference matrix.
pub(super) fn group_names(tenants: &TenantList) -> [&str; GROUPS] {
    let mut names = [OTHERS; GROUPS];
    for member in tenants.members().filter(|member| group(member.number()) < GROUPS - 1) {
        names[group(member.number())] = &member.tenant.name;
    }
    names
}
