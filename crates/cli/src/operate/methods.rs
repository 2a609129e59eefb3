//! What each method of the control socket does.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairq_config::caps::{KEYS, Written};
use fairq_config::device::FileConfig;
use fairq_config::engine::file_spec;
use fairq_config::listen::Listen;
use fairq_config::policy::value;
use fairq_config::policy::{PolicyConfig, PolicyTable};
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Settings, Source};
use fairq_config::tenant::{Range, Tenant, TenantTable, layout};
use fairq_config::units::Size;
use fairq_config::weight::WeightSource;
use fairq_core::registry::Knob;
use fairq_core::{DepthState, TuneError, Weight};
use fairq_host::device::file::FileSpec;
use fairq_host::observe::interference::{GROUPS, Matrix, group};
use fairq_host::server::{self, Admin, AdminError, Member, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::changes::{self, Change};
use super::rpc::{Fault, params};
use super::storage::{clear_error, cut_off_files, stores, write_back_errors};
use super::{Console, rpc};
use super::{caps, latency};
use crate::look::Look;
use crate::parts::{build_policy, server_tenant, tls_mode};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTenant {
    tenant: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfWeight {
    tenant: String,
    weight: WeightSource,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfParams {
    #[serde(default)]
    params: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfPolicy {
    policy: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfAddress {
    address: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfDrain {
    #[serde(default)]
    now: bool,
}

/// How long a reload that SIGHUP asked for waits for file systems.
const RELOAD_MAX: Duration = Duration::from_secs(30);

/// The methods that change the server, and leave it to their caller to say so.
const CHANGES: [&str; 11] = [
    "add",
    "remove",
    "weight",
    "latency",
    "caps",
    "clear_error",
    "policy.set",
    "params",
    "listen",
    "unlisten",
    "drain",
];

/// The methods that change nothing of what is shown.
const READS: [&str; 6] = ["status", "tenants", "look", "policy", "interference", "trace.read"];

impl Console {
    /// Carries out a call of the control socket; what it changed is in the log.
    pub(super) fn call_method(
        &mut self,
        admin: &mut dyn Admin,
        method: &str,
        given: Value,
    ) -> Result<Value, Fault> {
        // `params` without any only tells.
        let changes = CHANGES.contains(&method)
            && (method == "drain" || given.as_object().is_some_and(|given| !given.is_empty()));
        let params = changes.then(|| given.to_string());
        let result = self.method(admin, method, given);
        if let (Some(params), Ok(result)) = (params, &result) {
            tracing::info!(method, params, %result, "changed by the control socket");
        }
        result
    }

    /// Carries out a call.
    pub(super) fn method(
        &mut self,
        admin: &mut dyn Admin,
        method: &str,
        given: Value,
    ) -> Result<Value, Fault> {
        let bare = |given: Value| params::<Nothing>(given);
        if !READS.contains(&method) {
            self.forget_look();
        }
        match method {
            "rpc.discover" => bare(given).map(|Nothing {}| rpc::discover()),
            "status" => bare(given).map(|Nothing {}| self.status(admin, &admin.status())),
            "tenants" => bare(given).map(|Nothing {}| self.tenants(admin, &admin.status())),
            "look" => bare(given).map(|Nothing {}| self.look(admin).clone()),
            "policy" => bare(given).map(|Nothing {}| self.policy(admin)),
            "interference" => bare(given).map(|Nothing {}| self.interference(admin)),
            "add" => self.add(admin, &params::<OfTenant>(given)?.tenant),
            "remove" => self.remove(admin, &params::<OfTenant>(given)?.tenant),
            "weight" => {
                let OfWeight { tenant, weight } = params(given)?;
                self.weight(admin, &tenant, weight)
            }
            "latency" => self.latency(admin, params(given)?),
            "caps" => self.caps(admin, params(given)?),
            "clear_error" => clear_error(admin, &params::<OfTenant>(given)?.tenant),
            "policy.set" => self.set_policy(admin, &params::<OfPolicy>(given)?.policy),
            "params" => match params::<OfParams>(given)?.params {
                nothing if nothing.is_empty() => Ok(json!({ "params": self.parameters() })),
                text => self.params(admin, &text),
            },
            "listen" => self.listen(admin, &params::<OfAddress>(given)?.address),
            "unlisten" => self.unlisten(admin, &params::<OfAddress>(given)?.address),
            "config.dump" => {
                let Nothing {} = params(given)?;
                toml::to_string(&self.in_force(admin)).map(Value::from).map_err(Fault::refused)
            }
            "config.reload" => {
                let Nothing {} = params(given)?;
                self.reload_told(admin)
                    .map(|changes| json!({ "changes": changes }))
                    .map_err(Fault::from)
            }
            "drain" => {
                let OfDrain { now } = params(given)?;
                admin.drain(now);
                Ok(json!({ "connections": admin.status().connections.iter().sum::<usize>() }))
            }
            "trace.start" => self.trace_start(admin, given),
            "trace.stop" => bare(given).and_then(|Nothing {}| self.trace_stop(admin)),
            "trace.read" => self.trace_read(given),
            name => Err(Fault::no_method(name)),
        }
    }

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
            let whole =
                json!({ "status": self.status(admin, now), "tenants": self.tenants(admin, now) });
            serde_json::from_value::<Look>(whole)
                .expect("what is shown is a part of what is told")
                .json()
        });
        self.look.insert(look)
    }

    fn status(&self, admin: &dyn Admin, now: &Status) -> Value {
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
            "tenants": admin.roster().members().len(),
            "listening": admin.listening().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "draining": now.is_draining,
            "unassigned": self.unassigned(&admin.roster()),
            "write_back_errors": write_back_errors(&admin.roster(), now),
            "cut_off_files": cut_off_files(now),
            "latency_targets": latency::all(&admin.roster(), now),
            "stores": stores(&admin.roster(), now),
        })
    }

    fn describe_policy(&self) -> String {
        self.plan.policy.describe(self.plan.device.default_slots())
    }

    fn tenants(&self, admin: &dyn Admin, now: &Status) -> Value {
        let roster = admin.roster();
        let names = group_names(roster.members());
        let written = by_name(&self.settings);
        let tenant = |member: &Member| {
            let table = written.get(&*member.tenant.name).copied();
            self.tenant(now, member, table, &names)
        };
        roster.members().iter().map(tenant).collect()
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
            "connections": member.connections.load(Ordering::Relaxed),
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
            "hurt_by": self.hurt_by(member, &now.totals.matrix, names),
        })
    }

    /// The parts that others have in a tenant's delay over the last seconds; by number.
    fn parts(&self, victim: usize, now: &Matrix) -> Option<[f64; GROUPS]> {
        let earlier = self.matrices.front();
        let since = |other: usize| {
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
            let sum = object.get(*name).and_then(Value::as_f64).unwrap_or(0.0) + part;
            object.insert((*name).to_owned(), json!(sum));
        }
        Value::Object(object)
    }

    fn interference(&self, admin: &dyn Admin) -> Value {
        let (now, roster) = (admin.status(), admin.roster());
        let names = group_names(roster.members());
        let row = |member: &Member| {
            let parts = self.hurt_by(member, &now.totals.matrix, &names);
            (!parts.is_null()).then(|| (member.tenant.name.clone(), parts))
        };
        Value::Object(roster.members().iter().filter_map(row).collect())
    }

    fn policy(&self, admin: &dyn Admin) -> Value {
        let mut keys = serde_json::to_value(self.settings.policy.clone().unwrap_or_default())
            .unwrap_or_default();
        if let Some(keys) = keys.as_object_mut() {
            keys.retain(|key, value| key != "name" && !value.is_null());
        }
        json!({
            "name": self.plan.policy.name(),
            "description": self.describe_policy(),
            "params": keys,
            "state": policy_state(&admin.status()),
        })
    }

    /// The configuration with every address and every tenant's place, so that a server started with
    /// it is found where this one is and finds each tenant's data.
    fn in_force(&self, admin: &dyn Admin) -> Settings {
        let mut settings = self.settings.clone();
        if self.plan.source != Source::Stdio {
            settings.listen =
                admin.listening().into_iter().filter_map(|at| at.try_into().ok()).collect();
        }
        settings.control = self.plan.control.clone();
        let roster = admin.roster();
        for table in
            settings.tenant.iter_mut().map(Spanned::get_mut).filter(|table| table.path.is_none())
        {
            if let Some(member) = roster.find(&table.name) {
                table.size = Some(Size(member.tenant.size));
                table.offset = Some(Size(member.tenant.base));
            }
        }
        settings
    }

    fn add(&mut self, admin: &mut dyn Admin, spec: &str) -> Result<Value, Fault> {
        let table: TenantTable = spec.parse().map_err(Fault::params)?;
        let tenant = self.add_table(admin, table)?;
        Ok(
            json!({ "tenant": tenant.name, "size": tenant.size, "offset": tenant.base, "weight": tenant.weight.get() }),
        )
    }

    /// Adds a tenant as it is written, at a place that nobody has.
    fn add_table(
        &mut self,
        admin: &mut dyn Admin,
        table: TenantTable,
    ) -> Result<server::Tenant, Refusal> {
        let new = table.clone().complete(&self.plan.cgroup_root)?;
        let refuse =
            |text: &str| Err(Refusal::new(format!("{}: tenant {}: {text}", new.origin, new.name)));
        settings::check_identities(std::slice::from_ref(&new), self.plan.tls.as_ref())?;
        let roster = admin.roster();
        if roster.find(&new.name).is_some() {
            return refuse("there is one already: remove it first or choose another name");
        }
        let range = match &new.path {
            Some(path) => self.own_file(admin, &new, path)?,
            None => self.gap(admin, &new)?,
        };
        let tenant = server_tenant(&new, &range);
        let wipe = new.path.is_none() && !new.keep_data;
        if let Err(error) = admin.add(tenant.clone(), wipe) {
            self.close_own(admin, tenant.file);
            return Err(Refusal::new(error.to_string()));
        }
        let table = match new.path {
            Some(_) => table,
            None => TenantTable {
                offset: Some(Size(range.offset)),
                size: Some(Size(range.size)),
                ..table
            },
        };
        self.settings.tenant.push(Spanned::new(0..0, table));
        Ok(tenant)
    }

    /// A part of the shared file that nobody has.
    fn gap(&self, admin: &dyn Admin, new: &Tenant) -> Result<Range, Refusal> {
        if !self.plan.device.has_shared_file() {
            return Err(Refusal::new(format!(
                "{}: tenant {}: the device has no file to share: give it one of its own with \
                 path=FILE",
                new.origin, new.name
            )));
        }
        let own: Vec<u16> = self.own.values().map(|&(number, _)| number).collect();
        let roster = admin.roster();
        let of_others = roster.members().iter().filter(|member| !own.contains(&member.tenant.file));
        let pinned = |member: &Member| Tenant {
            name: member.tenant.name.clone(),
            size: Some(member.tenant.size),
            offset: Some(member.tenant.base),
            ..new.clone()
        };
        let mut tenants: Vec<Tenant> = of_others.map(pinned).collect();
        tenants.push(new.clone());
        let ranges = layout(&tenants, Some(self.shared), &[])?;
        Ok(*ranges.last().expect("the new one is the last"))
    }

    /// A file of the tenant's own.
    fn own_file(
        &mut self,
        admin: &mut dyn Admin,
        new: &Tenant,
        path: &Path,
    ) -> Result<Range, Refusal> {
        let refuse =
            |text: String| Refusal::new(format!("{}: tenant {}: {text}", new.origin, new.name));
        if let Some(&(file, _)) = self.own.get(path)
            && let Some(other) =
                admin.roster().members().iter().find(|member| member.tenant.file == file)
        {
            return Err(refuse(format!(
                "{} is the file of tenant {}: name another",
                path.display(),
                other.tenant.name
            )));
        }
        let (file, size) =
            admin.open_file(&own_spec(new, path)).map_err(|error| refused_file(new, &error))?;
        self.own.insert(path.into(), (file, size));
        Ok(Range { file, offset: 0, size })
    }

    /// Has the files of tenants that are new in `wanted` opened before anything changes.
    fn prepare_files(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> Result<(), Refusal> {
        let old = by_name(&self.settings);
        let come = wanted.tenant.iter().map(Spanned::get_ref);
        for table in come.filter(|table| !old.contains_key(&*table.name)) {
            let new = table.clone().complete(&self.plan.cgroup_root)?;
            // A file that is open is one of a tenant that goes, or is refused later.
            let Some(path) = new.path.as_ref().filter(|path| !self.own.contains_key(*path)) else {
                continue;
            };
            admin
                .prepare_file(&own_spec(&new, path))
                .map_err(|error| refused_file(&new, &error))?;
        }
        Ok(())
    }

    /// Closes a file if it is a tenant's own.
    fn close_own(&mut self, admin: &mut dyn Admin, file: u16) {
        let before = self.own.len();
        self.own.retain(|_, (own, _)| *own != file);
        if self.own.len() < before {
            admin.close_file(file);
        }
    }

    pub(super) fn remove(&mut self, admin: &mut dyn Admin, name: &str) -> Result<Value, Fault> {
        let file = admin.roster().find(name).map(|member| member.tenant.file);
        admin.remove(name).map_err(Fault::refused)?;
        if let Some(file) = file {
            self.close_own(admin, file);
        }
        self.settings.tenant.retain(|table| table.get_ref().name != name);
        Ok(json!({ "tenant": name }))
    }

    pub(super) fn weight(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        source: WeightSource,
    ) -> Result<Value, Fault> {
        let weight = source.now(&self.plan.cgroup_root).map_err(Fault::params)?;
        let before = admin.roster().find(name).map(|member| member.tenant.weight);
        admin.set_weight(name, weight).map_err(Fault::refused)?;
        self.write_weight(name, source);
        Ok(json!({ "tenant": name, "from": before.map(Weight::get), "to": weight.get() }))
    }

    fn write_weight(&mut self, name: &str, source: WeightSource) {
        if let Some(table) =
            self.settings.tenant.iter_mut().find(|table| table.get_ref().name == name)
        {
            table.get_mut().weight = Some(source);
        }
    }

    /// Gives tenants whose weight is a cgroup's the weight that it has now.
    pub(super) fn follow_cgroups(&mut self, admin: &mut dyn Admin) {
        let followed = self.settings.tenant.iter().map(Spanned::get_ref).filter_map(|table| {
            match &table.weight {
                Some(source @ WeightSource::Cgroup(_)) => Some((&table.name, source)),
                _ => None,
            }
        });
        for (name, source) in followed {
            let Ok(weight) = source
                .now(&self.plan.cgroup_root)
                .inspect_err(|error| tracing::debug!(tenant = name, "{error}"))
            else {
                continue;
            };
            let roster = admin.roster();
            if roster.find(name).is_some_and(|member| member.tenant.weight != weight) {
                match admin.set_weight(name, weight) {
                    Ok(()) => {
                        tracing::info!(tenant = name, weight = weight.get(), %source, "the \
                         cgroup's weight changed")
                    }
                    Err(error) => {
                        tracing::warn!(tenant = name, %error, "cannot follow the cgroup's weight")
                    }
                }
            }
        }
    }

    /// The parameters that the policy takes, and what they are now.
    fn parameters(&self) -> Value {
        let parameter = |(knob, now): &(Knob, Option<u64>)| {
            json!({
                "key": knob.key,
                "value": value::show_or_auto(knob, *now),
                "takes": value::takes(knob),
                "summary": knob.help,
            })
        };
        self.plan.policy.knobs(self.plan.device.default_slots()).iter().map(parameter).collect()
    }

    fn params(&mut self, admin: &mut dyn Admin, text: &str) -> Result<Value, Fault> {
        let PolicyConfig { policy, .. } = self.plan.policy;
        let flags: PolicyTable =
            format!("{}:{text}", policy.name).parse().map_err(Fault::params)?;
        let written = self.settings.policy.clone().unwrap_or_default().named(policy);
        self.change_policy(admin, written.overlaid(flags))
    }

    fn set_policy(&mut self, admin: &mut dyn Admin, text: &str) -> Result<Value, Fault> {
        self.change_policy(admin, text.parse().map_err(Fault::params)?)
    }

    /// Makes the policy what `table` says, and tells what is different.
    fn change_policy(&mut self, admin: &mut dyn Admin, table: PolicyTable) -> Result<Value, Fault> {
        let wanted = table.clone().complete().map_err(Fault::params)?;
        let before = self.describe_policy();
        let settings = Settings { policy: Some(table), ..self.settings.clone() };
        let mut differ = changes::between(&self.settings, &settings);
        // The policy that nobody named has a name from now on; that is no difference.
        differ.retain(|change| {
            change.key != "policy.name" || wanted.policy != self.plan.policy.policy
        });
        self.make_policy(admin, wanted, &settings).map_err(Fault::refused)?;
        differ.iter_mut().for_each(|change| change.done = true);
        Ok(json!({ "from": before, "to": self.describe_policy(), "changes": differ }))
    }

    /// Makes the policy what it is in `settings`, and writes it down: parameters that the running
    /// policy can change are changed there; for anything else another one takes its place.
    fn make_policy(
        &mut self,
        admin: &mut dyn Admin,
        wanted: PolicyConfig,
        settings: &Settings,
    ) -> Result<(), String> {
        let mut differ = changes::between(&self.settings, settings);
        differ.retain(|change| change.key.starts_with("policy."));
        if wanted.policy == self.plan.policy.policy {
            differ.retain(|change| change.key != "policy.name");
        }
        if wanted != self.plan.policy && !self.tune_all(admin, &differ, &wanted)? {
            let built = build_policy(&wanted, &self.shape, self.stores)
                .map_err(|refusal| refusal.to_string())?;
            admin.change_policy(built).map_err(|error| error.to_string())?;
        }
        self.plan.policy = wanted;
        self.settings.policy.clone_from(&settings.policy);
        Ok(())
    }

    /// Changes parameters in the policy in force; false if that does not change all of them.
    fn tune_all(
        &self,
        admin: &mut dyn Admin,
        differ: &[Change],
        wanted: &PolicyConfig,
    ) -> Result<bool, String> {
        let knobs = wanted.knobs(self.plan.device.default_slots());
        let mut tunings = Vec::new();
        for Change { key, .. } in differ {
            let changed = |(knob, _): &&(Knob, _)| key.strip_prefix("policy.") == Some(knob.key);
            let Some((knob, value)) = knobs.iter().find(changed) else { return Ok(false) };
            let Some(tuning) = knob.tuning else { return Ok(false) };
            tunings.push((key, tuning(*value)));
        }
        for (key, tuning) in tunings {
            match admin.tune(tuning) {
                Ok(()) => {}
                Err(AdminError::Tune(TuneError::Fixed)) => return Ok(false),
                Err(error) => return Err(format!("{key}: {error}")),
            }
        }
        Ok(true)
    }

    fn listen(&mut self, admin: &mut dyn Admin, address: &str) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        let place = admin.listen(&at.clone().into()).map_err(Fault::refused)?;
        self.settings.listen.push(place.clone().try_into().unwrap_or(at));
        Ok(json!({ "address": place.to_string() }))
    }

    fn unlisten(&mut self, admin: &mut dyn Admin, address: &str) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        admin.unlisten(&at.clone().into()).map_err(Fault::refused)?;
        self.settings.listen.retain(|listen| *listen != at);
        Ok(json!({ "address": at.to_string() }))
    }

    /// The same, and it is in the log, whoever asked.
    pub(super) fn reload_told(&mut self, admin: &mut dyn Admin) -> Result<Vec<Change>, Refusal> {
        let result = self.reload_file(admin);
        self.forget_look();
        match &result {
            Ok(changes) => {
                for Change { key, from, to, done } in changes {
                    let (from, to) = (
                        from.as_deref().unwrap_or("(nothing)"),
                        to.as_deref().unwrap_or("(nothing)"),
                    );
                    if *done {
                        tracing::info!(key, from, to, "changed");
                    } else {
                        tracing::warn!(key, from, to, "not changed: this needs a restart");
                    }
                }
                tracing::info!(changes = changes.len(), "read the configuration again");
            }
            Err(error) if error.is_temporary() => tracing::debug!("not reloaded yet: {error}"),
            Err(error) => tracing::error!("cannot reload, nothing has changed: {error}"),
        }
        result
    }

    /// Does what SIGHUP asks for, again each second while a file system takes its time.
    pub(super) fn reload_asked(&mut self, admin: &mut dyn Admin, asked: Instant) {
        self.reload_due = match self.reload_told(admin) {
            Err(error) if error.is_temporary() && asked.elapsed() < RELOAD_MAX => Some(asked),
            Err(error) if error.is_temporary() => {
                tracing::error!("cannot reload, nothing has changed: {error}");
                None
            }
            _ => None,
        };
    }

    /// Reads the file again and makes the server so, as far as that can be done while it runs.
    fn reload_file(&mut self, admin: &mut dyn Admin) -> Result<Vec<Change>, Refusal> {
        let Some(path) = &self.given.file else {
            return Err(Refusal::new(
                "there is no file to read again: the server was started without --config",
            ));
        };
        let wanted = settings::load(path)?.overlaid(self.given.flags.clone()).with_tenants();
        let plan = wanted.plan(&self.given.surroundings)?;
        let in_force = self.comparable(&wanted);
        let mut differ = changes::between(&in_force, &wanted);
        // What may be refused as a whole comes first: then nothing has changed. The files of TLS
        // are read again; other files, or another mode, need a restart, as identities do.
        let tls = tls_mode(self.plan.tls.as_ref())?;
        self.prepare_files(admin, &wanted)?;
        self.make_policy(admin, plan.policy, &wanted).map_err(Refusal::new)?;
        admin.set_tls(tls);
        let tables = || wanted.tenant.iter().map(Spanned::get_ref);
        let (old, new) = (by_name(&self.settings), by_name(&wanted));
        let gone: Vec<String> = old
            .keys()
            .filter(|name| !new.contains_key(*name))
            .map(|name| (*name).to_owned())
            .collect();
        let come: Vec<TenantTable> =
            tables().filter(|table| !old.contains_key(&*table.name)).cloned().collect();
        let source = |table: &TenantTable| table.weight.clone().unwrap_or_default();
        let reweighted: Vec<(String, WeightSource)> = tables()
            .filter(|table| old.get(&*table.name).is_some_and(|old| source(old) != source(table)))
            .map(|table| (table.name.clone(), source(table)))
            .collect();
        let retargeted: Vec<(String, latency::Written)> = tables()
            .filter(|table| {
                let old = old.get(&*table.name);
                old.is_some_and(|old| latency::written(old) != latency::written(table))
            })
            .map(|table| (table.name.clone(), latency::written(table)))
            .collect();
        let recapped: Vec<(String, Written)> = tables()
            .filter(|table| old.get(&*table.name).is_some_and(|old| old.caps() != table.caps()))
            .map(|table| (table.name.clone(), table.caps()))
            .collect();
        let mut done = |prefix: &str| {
            let under = |key: &str| {
                key == prefix || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
            };
            differ
                .iter_mut()
                .filter(|change| under(&change.key))
                .for_each(|change| change.done = true);
        };
        done("policy");
        for name in gone {
            self.remove(admin, &name).map_err(|fault| Refusal::new(fault.message()))?;
            done(&format!("tenant.{name}"));
        }
        for table in come {
            let name = table.name.clone();
            match self.add_table(admin, table) {
                Ok(_) => done(&format!("tenant.{name}")),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        for (name, source) in reweighted {
            if self.weight(admin, &name, source).is_ok() {
                done(&format!("tenant.{name}.weight"));
            }
        }
        for (name, said) in retargeted {
            match self.set_latency(admin, &name, said) {
                Ok(_) => ["latency", "latency-percentile", "floor"]
                    .iter()
                    .for_each(|key| done(&format!("tenant.{name}.{key}"))),
                Err(fault) => tracing::warn!("{}", fault.message()),
            }
        }
        for (name, said) in recapped {
            match self.set_caps(admin, &name, &said) {
                Ok(_) => KEYS.iter().for_each(|key| done(&format!("tenant.{name}.{key}"))),
                Err(fault) => tracing::warn!("{}", fault.message()),
            }
        }
        if self.move_listeners(admin, &wanted) {
            done("listen");
        }
        Ok(differ)
    }

    /// The configuration in force, with places of tenants only where `wanted` names them: where
    /// nothing is said, any place will do, and the one that a tenant has is as good as another.
    fn comparable(&self, wanted: &Settings) -> Settings {
        let mut in_force = self.settings.clone();
        let wanted = by_name(wanted);
        for table in &mut in_force.tenant {
            let table = table.get_mut();
            if let Some(said) = wanted.get(&*table.name) {
                table.offset = table.offset.filter(|_| said.offset.is_some());
                table.size = table.size.filter(|_| said.size.is_some());
            }
        }
        in_force
    }

    /// Listens where `wanted` says. True if that holds now.
    fn move_listeners(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> bool {
        if wanted.listen.is_empty() {
            return self.settings.listen.is_empty();
        }
        let places = admin.listening();
        let missing = wanted.listen.iter().filter(|at| !self.settings.listen.contains(at));
        let missing =
            missing.map(|at| server::Listen::from(at.clone())).filter(|at| !places.contains(at));
        let mut all = true;
        for at in missing {
            if let Err(error) = admin.listen(&at) {
                tracing::warn!("{error}");
                all = false;
            }
        }
        for at in self.settings.listen.iter().filter(|at| !wanted.listen.contains(at)) {
            if let Err(error) = admin.unlisten(&at.clone().into()) {
                tracing::warn!("{error}");
            }
        }
        if all {
            self.settings.listen.clone_from(&wanted.listen);
        }
        all
    }
}

/// What is written of each tenant.
fn by_name(settings: &Settings) -> HashMap<&str, &TenantTable> {
    settings.tenant.iter().map(Spanned::get_ref).map(|table| (&*table.name, table)).collect()
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

fn policy_state(now: &Status) -> Value {
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
        "changing_s": now.changing.map(|time| time.as_secs_f64()),
    })
}

/// A tenant's own file, as the device opens it.
fn own_spec(new: &Tenant, path: &Path) -> FileSpec {
    file_spec(FileConfig {
        path: path.into(),
        size: new.size,
        create: new.create,
        store: new.store.clone(),
    })
}

fn refused_file(new: &Tenant, error: &AdminError) -> Refusal {
    let text = format!("{}: tenant {}: {error}", new.origin, new.name);
    match error {
        AdminError::Opening { .. } => Refusal::temporary(text),
        _ => Refusal::new(text),
    }
}
