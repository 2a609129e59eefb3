//! The views of a running server: its status, its tenants, and the delays that they cause each
//! other.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use fairq_config::settings::{Plan, Settings};
use fairq_config::tenant::TenantTable;
use fairq_core::{DepthState, FlowId};
use fairq_host::observe::interference::{GROUPS, Matrix, group};
use fairq_host::server::{self, Admin, Bytes, Listen, Member, Status, TenantList};
use serde_json::{Map, Value, json};

use super::Console;
use super::methods::by_name;
use super::storage::{cut_off_files, outdated, stores, write_back_errors};
use super::{caps, groups, keeper, latency, metrics};
use crate::look::Look;
use crate::status::Now;

/// The shown state of the server at one time. The control thread copies it, and another thread
/// formats the answer, which takes much longer with thousands of tenants.
pub(super) struct View {
    plan: Arc<Plan>,
    settings: Arc<Settings>,
    now: Arc<Status>,
    tenants: Arc<TenantList>,
    listening: Vec<Listen>,
    unassigned: u64,
    /// The layout record of the shared file.
    layout: Option<keeper::Shown>,
    /// Each tenant's last second; `None` for an idle one.
    second: Arc<HashMap<FlowId, Option<Now>>>,
    /// Interference at the beginning of the shown time.
    earlier: Option<Arc<Matrix>>,
}

/// A view for many callers; the first of them formats the answer for all.
pub(super) struct Shared {
    view: View,
    look: OnceLock<Value>,
    text: OnceLock<Bytes>,
}

impl Shared {
    /// The answer to `look`.
    pub(super) fn look(&self) -> &Value {
        self.look.get_or_init(|| self.view.look())
    }

    /// The answer to `look` as the web page's text.
    pub(super) fn look_text(&self) -> Bytes {
        self.text.get_or_init(|| self.look().to_string().into()).clone()
    }

    /// The metrics.
    pub(super) fn metrics(&self) -> Bytes {
        let View { now, tenants, second, plan, layout, .. } = &self.view;
        let text = || metrics::text(now, tenants, second, plan, layout.as_ref()).into();
        self.text.get_or_init(text).clone()
    }
}

impl Console {
    /// Drops the views after a change, so that the next one is made anew.
    pub(super) fn forget_look(&mut self) {
        (self.looked, self.scraped, self.latest) = (None, None, None);
    }

    /// The server as it is now.
    pub(super) fn view(&self, admin: &dyn Admin) -> View {
        self.view_of(admin, admin.status().into())
    }

    fn view_of(&self, admin: &dyn Admin, now: Arc<Status>) -> View {
        let tenants = admin.tenants();
        View {
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

    /// The view for terminals and the web page: the state at the last full second, so that more
    /// viewers are no more work for shards and control thread.
    pub(super) fn looked(&mut self, admin: &dyn Admin) -> Arc<Shared> {
        let look = self.looked.take().unwrap_or_else(|| {
            let now = self.latest.clone().unwrap_or_else(|| admin.status().into());
            self.view_of(admin, now).into()
        });
        self.looked.insert(look).clone()
    }

    /// The view for scrapers: the state at the first scrape of this second.
    pub(super) fn scraped(&mut self, admin: &dyn Admin) -> Arc<Shared> {
        let view = self.scraped.take().unwrap_or_else(|| self.view(admin).into());
        self.scraped.insert(view).clone()
    }

    pub(super) fn describe_policy(&self) -> String {
        describe_policy(&self.plan)
    }
}

impl From<View> for Arc<Shared> {
    fn from(view: View) -> Arc<Shared> {
        Arc::new(Shared { view, look: OnceLock::new(), text: OnceLock::new() })
    }
}

fn describe_policy(plan: &Plan) -> String {
    plan.policy.describe(plan.device.default_slots())
}

impl View {
    fn look(&self) -> Value {
        let whole = json!({
            "status": self.status(),
            "tenants": self.tenants(),
            "groups": self.groups(),
        });
        serde_json::from_value::<Look>(whole)
            .expect("what is shown is a part of what is told")
            .json()
    }

    pub(super) fn status(&self) -> Value {
        let (now, tenants) = (&*self.now, &*self.tenants);
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
            "upgrades": now.upgrades,
            "device": self.plan.device.describe(),
            "policy": describe_policy(&self.plan),
            "policy_state": policy_state(now),
            "shards": now.connections.iter().enumerate().map(shard).collect::<Vec<_>>(),
            "connections": now.connections.iter().sum::<usize>(),
            "memory": { "used": now.memory.0, "most": now.memory.1 },
            "tenants": tenants.members().len(),
            "listening": self.listening.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "draining": now.is_draining,
            "control": {
                "turns": now.control.count_all(),
                "cpu_s": now.control.cpu_ns as f64 * 1e-9,
                "longest_turn_cpu_s": now.control.longest_ns as f64 * 1e-9,
            },
            "unassigned": self.unassigned,
            "write_back_errors": write_back_errors(tenants, now),
            "outdated": outdated(tenants),
            "cut_off_files": cut_off_files(now),
            "latency_targets": latency::all(tenants, now),
            "stores": stores(tenants, now),
            "reserved": groups::reserved(now),
            "layout": self.layout.as_ref().map(|layout| {
                layout.json(|name| tenants.find(name).is_some())
            }),
        })
    }

    pub(super) fn tenants(&self) -> Value {
        let tenants = &self.tenants;
        let names = group_names(tenants);
        let written = by_name(&self.settings);
        let tenant = |member: &Member| {
            let table = written.get(&*member.tenant.name).copied();
            self.tenant(&self.now, member, table, &names)
        };
        tenants.members().map(tenant).collect()
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
        // A quantile of an empty histogram sums all of its counters, and there may be thousands.
        let is_empty = stats.latency_ns.is_empty();
        let quantile =
            |quantile| if is_empty { 0 } else { stats.latency_ns.value_at_quantile(quantile) };
        let ended = now.fence_of(member);
        let source = table.and_then(|table| table.weight.clone());
        let last = self.second.get(&member.flow).copied().flatten().map(|now| {
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
            "attachments": now.attachments_of(member).iter().map(|of| json!({
                "kind": of.kind.name(),
                "path": of.path,
                "connected": of.is_connected,
                "queues": of.queues,
                "error": of.error,
            })).collect::<Vec<_>>(),
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

    /// The tenants that have delayed a tenant, with their parts; null if it did not wait.
    fn hurt_by(&self, victim: &Member, now: &Matrix, names: &[&str; GROUPS]) -> Value {
        let Some(parts) = self.parts(group(victim.number()), now) else { return Value::Null };
        let mut object = Map::new();
        for (name, part) in names.iter().zip(parts).filter(|(_, part)| *part > 0.0) {
            // Several groups may have the same name: all groups without a tenant are `(others)`.
            let sum = object.get(*name).and_then(Value::as_f64).unwrap_or(0.0) + part;
            object.insert((*name).to_owned(), json!(sum));
        }
        Value::Object(object)
    }

    pub(super) fn groups(&self) -> Value {
        groups::shown(&self.settings, &self.now, &self.tenants)
    }

    pub(super) fn interference(&self) -> Value {
        let (now, tenants) = (&self.now, &self.tenants);
        let names = group_names(tenants);
        let row = |member: &Member| {
            let parts = self.hurt_by(member, &now.totals.matrix, &names);
            (!parts.is_null()).then(|| (member.tenant.name.clone(), parts))
        };
        Value::Object(tenants.members().filter_map(row).collect())
    }
}

/// The tenant's name for each group of the interference matrix.
fn group_names(tenants: &TenantList) -> [&str; GROUPS] {
    let mut names = ["(others)"; GROUPS];
    for member in tenants.members().filter(|member| group(member.number()) < GROUPS - 1) {
        names[group(member.number())] = &member.tenant.name;
    }
    names
}

fn classes([urgent, high, medium, low]: [u64; 4]) -> Value {
    json!({ "urgent": urgent, "high": high, "medium": medium, "low": low })
}

/// The state of D's search in a word.
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
