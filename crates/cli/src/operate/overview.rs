//! What a running server tells of itself: its status, its tenants, and who hurts whom.

use fairq_config::tenant::TenantTable;
use fairq_core::DepthState;
use fairq_host::observe::interference::{GROUPS, Matrix, group};
use fairq_host::server::{self, Admin, Member, Status};
use serde_json::{Map, Value, json};

use super::Console;
use super::methods::by_name;
use super::storage::{cut_off_files, stores, write_back_errors};
use super::{caps, groups, latency};
use crate::look::Look;

impl Console {
    /// What is shown next is asked for: something has changed.
    pub(super) fn forget_look(&mut self) {
        (self.look, self.latest) = (None, None);
    }

    /// What is shown of the server on a terminal and on the web page: what was said at the last
    /// full second, so that neither the shards nor anybody else have more to do however many look.
    pub(super) fn look(&mut self, admin: &dyn Admin) -> &Value {
        let look = self.look.take().unwrap_or_else(|| {
            let asked;
            let now = match &self.latest {
                Some(latest) => latest,
                None => {
                    asked = admin.status();
                    &asked
                }
            };
            let whole = json!({
                "status": self.status(admin, now),
                "tenants": self.tenants(admin, now),
                "groups": self.groups_of(admin, now),
            });
            serde_json::from_value::<Look>(whole)
                .expect("what is shown is a part of what is told")
                .json()
        });
        self.look.insert(look)
    }

    pub(super) fn status(&self, admin: &dyn Admin, now: &Status) -> Value {
        let shard = |(index, connections): (usize, &usize)| {
            let counters = now.totals.shards[index];
            json!({
                "cpu": self.plan.cpus.get(index),
                "connections": connections,
                "operations": counters.completed,
                "bytes": counters.bytes,
                "turns": counters.turns,
                "sleeps": counters.sleeps,
                "cpu_s": counters.cpu.map(|cpu| cpu.ran_ns as f64 * 1e-9),
                "cpu_wait_s": counters.cpu.map(|cpu| cpu.waited_ns as f64 * 1e-9),
                "issued": classes(counters.issued),
                "joined": counters.joined,
            })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": now.elapsed.as_secs_f64(),
            "device": self.plan.device.describe(),
            "policy": self.describe_policy(),
            "policy_state": policy_state(now),
            "shards": now.connections.iter().enumerate().map(shard).collect::<Vec<_>>(),
            "connections": now.connections.iter().sum::<usize>(),
            "memory": { "used": now.memory.0, "most": now.memory.1 },
            "tenants": admin.tenants().members().len(),
            "listening": admin.listening().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "draining": now.is_draining,
            "unassigned": self.unassigned(&admin.tenants()),
            "write_back_errors": write_back_errors(&admin.tenants(), now),
            "cut_off_files": cut_off_files(now),
            "latency_targets": latency::all(&admin.tenants(), now),
            "stores": stores(&admin.tenants(), now),
            "reserved": groups::reserved(now),
            "layout": self.layout.as_ref().map(|layout| {
                layout.json(|name| admin.tenants().find(name).is_some())
            }),
        })
    }

    pub(super) fn describe_policy(&self) -> String {
        self.plan.policy.describe(self.plan.device.default_slots())
    }

    pub(super) fn tenants(&self, admin: &dyn Admin, now: &Status) -> Value {
        let tenants = admin.tenants();
        let names = group_names(tenants.members());
        let written = by_name(&self.settings);
        let tenant = |member: &Member| {
            let table = written.get(&*member.tenant.name).copied();
            self.tenant(now, member, table, &names)
        };
        tenants.members().iter().map(tenant).collect()
    }

    fn tenant(
        &self,
        now: &Status,
        member: &Member,
        table: Option<&TenantTable>,
        names: &[&str; GROUPS],
    ) -> Value {
        let server::Tenant { name, weight, file, base, size, read_only, identity, users, .. } =
            &member.tenant;
        let stats = &now.totals.tenants[usize::from(member.number())];
        let quantile = |quantile| stats.latency_ns.value_at_quantile(quantile);
        let ended = now.fence_of(member);
        let source = table.and_then(|table| table.weight.clone());
        let last = self.second.get(&member.flow).and_then(|row| row.now).map(|now| {
            json!({
                "entitled": now.entitled,
                "share": now.share,
                "iops": now.iops,
                "bytes_per_s": now.bytes_per_s,
                "p50_ns": now.p50_ns,
                "p99_ns": now.p99_ns,
                "staged_ns": now.staged_ns,
                "device_ns": now.device_ns,
            })
        });
        json!({
            "name": name,
            "weight": weight.get(),
            "weight_source": source.unwrap_or_default().to_string(),
            "size": size,
            "file": file,
            "store": now.store_of(member),
            "offset": base,
            "read_only": read_only,
            "identity": identity.as_ref().map(ToString::to_string),
            "uids": users.uids,
            "gids": users.gids,
            "connections": member.all_connections(),
            "outdated": member.outdated_connections().into_iter().map(|(size, connections)| json!({
                "size": size, "connections": connections,
            })).collect::<Vec<_>>(),
            "resizing": member.resizing.as_ref().map(|of| json!({
                "to": of.to,
                "done": of.wiping.as_ref().map(|wiping| wiping.done()),
                "size": of.wiping.as_ref().map(|wiping| wiping.size()),
                "waits_for": of.wiping.as_ref().map(|wiping| wiping.waits_for()),
            })),
            "preparing": member.preparing.as_ref().map(|wiping| json!({
                "done": wiping.done(), "size": wiping.size(), "errno": wiping.outcome().filter(|errno| *errno != 0),
                "waits_for": wiping.waits_for(),
            })),
            "reads": stats.reads,
            "writes": stats.writes,
            "others": stats.others,
            "read_bytes": stats.read_bytes,
            "written_bytes": stats.written_bytes,
            "errors": stats.errors,
            "write_back_errno": now.write_back_errno(member),
            "ended": json!({ "writes": ended.left, "waited": ended.waited }),
            "in_flight": stats.in_flight,
            "staged": stats.staged,
            "staged_ns": stats.staged_ns,
            "device_ns": stats.device_ns,
            "starved_ns": stats.starved_ns,
            "latency_ns": {
                "p50": quantile(0.5), "p99": quantile(0.99), "p999": quantile(0.999), "max": stats.latency_ns.max(),
            },
            "last_second": last,
            "latency_target": now.target_of(member).map(latency::json),
            "capped": now.caps_of(member).map(caps::json),
            "group": member.tenant.group,
            "place": now.share_of(member).map(groups::json),
            "promised": groups::promised(now, member),
            "hurt_by": self.hurt_by(member, &now.totals.matrix, names),
        })
    }

    /// The parts that others have in a tenant's delay over the last seconds; by number.
    fn parts(&self, victim: usize, now: &Matrix) -> Option<[f64; GROUPS]> {
        let earlier = self.matrices.front();
        let since = |other: usize| {
            // A number that went to another tenant counts from 0 again.
            now[victim][other].saturating_sub(earlier.map_or(0, |matrix| matrix[victim][other]))
        };
        let total: u64 = (0..GROUPS).map(since).sum();
        (total > 0).then(|| std::array::from_fn(|other| since(other) as f64 / total as f64))
    }

    /// Who hurt a tenant, by name; nobody if it did not wait.
    fn hurt_by(&self, victim: &Member, now: &Matrix, names: &[&str; GROUPS]) -> Value {
        let Some(parts) = self.parts(group(victim.number()), now) else { return Value::Null };
        let mut object = Map::new();
        for (name, part) in names.iter().zip(parts).filter(|(_, part)| *part > 0.0) {
            // Several groups may have one name: those without a tenant are all `(others)`.
            let sum = object.get(*name).and_then(Value::as_f64).unwrap_or(0.0) + part;
            object.insert((*name).to_owned(), json!(sum));
        }
        Value::Object(object)
    }

    pub(super) fn interference(&self, admin: &dyn Admin) -> Value {
        let (now, tenants) = (admin.status(), admin.tenants());
        let names = group_names(tenants.members());
        let row = |member: &Member| {
            let parts = self.hurt_by(member, &now.totals.matrix, &names);
            (!parts.is_null()).then(|| (member.tenant.name.clone(), parts))
        };
        Value::Object(tenants.members().iter().filter_map(row).collect())
    }
}

/// Whom each group of the interference matrix stands for.
fn group_names(all: &[Member]) -> [&str; GROUPS] {
    let mut names = ["(others)"; GROUPS];
    for member in all.iter().filter(|member| group(member.number()) < GROUPS - 1) {
        names[group(member.number())] = &member.tenant.name;
    }
    names
}

fn classes([urgent, high, medium, low]: [u64; 4]) -> Value {
    json!({ "urgent": urgent, "high": high, "medium": medium, "low": low })
}

/// Why D is what it is, in a word.
pub(super) fn depth_state(state: DepthState) -> &'static str {
    match state {
        DepthState::Searching => "searching",
        DepthState::Found => "found",
        DepthState::AllDemand => "all-demand",
        DepthState::Alone => "alone",
    }
}

pub(super) fn policy_state(now: &Status) -> Value {
    let fairq_core::Stats {
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
        reserved: _,
    } = now.policy;
    let classes = now.classes.map(
        |classes| json!({ "high": classes.high, "medium": classes.medium, "low": classes.low }),
    );
    json!({
        "virtual_time": virtual_time,
        "virtual_time_spread": spread,
        "slots": slots,
        "slots_in_use": slots.zip(free_slots).map(|(slots, free)| slots.saturating_sub(free)),
        "throttles": throttles,
        "blocks": blocks,
        "wakes": wakes,
        "tokens": tokens.map(|of| json!({ "periods": of.periods, "tokens": of.tokens, "write_percent": of.write_percent })),
        "class_weights": classes,
        "depth": depth.map(|of| json!({
            "slots": of.slots,
            "state": depth_state(of.state),
            "requests_per_s": of.requests_per_s,
            "bytes_per_s": of.bytes_per_s,
        })),
        "cost": cost.map(|of| {
            let [read, sequential_read, write, sequential_write] = of.bases;
            let [read_kib, write_kib] = of.per_kib;
            json!({
                "random_read": read,
                "sequential_read": sequential_read,
                "random_write": write,
                "sequential_write": sequential_write,
                "read_kib": read_kib,
                "written_kib": write_kib,
                "windows": of.windows,
            })
        }),
        "changing_s": now.changing.map(|time| time.as_secs_f64()),
    })
}
