//! What each method of the control socket does.

use fairq_core::{Tuning, Weight};
use fairq_host::interference::{GROUPS, Matrix, group};
use fairq_host::server::{self, Admin, Member, Status};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::changes::{self, Change};
use super::rpc::{Fault, params};
use super::{Console, rpc};
use crate::config::listen::Listen;
use crate::config::policy::PolicyTable;
use crate::config::tenant::{Tenant, TenantTable, layout};
use crate::config::weight::WeightSource;
use crate::config::{self, Refusal, Settings};
use crate::engine::describe_policy;
use crate::serve::server_tenant;
use crate::top::Look;
use crate::units::Size;

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
    params: String,
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

impl Console {
    /// Carries out a call.
    pub(super) fn method(&mut self, admin: &mut dyn Admin, method: &str, given: Value) -> Result<Value, Fault> {
        let bare = |given: Value| params::<Nothing>(given);
        match method {
            "rpc.discover" => bare(given).map(|Nothing {}| rpc::discover()),
            "status" => bare(given).map(|Nothing {}| self.status(admin, &admin.status())),
            "tenants" => bare(given).map(|Nothing {}| self.tenants(admin, &admin.status())),
            "look" => bare(given).map(|Nothing {}| self.look(admin)),
            "policy" => bare(given).map(|Nothing {}| self.policy(admin)),
            "interference" => bare(given).map(|Nothing {}| self.interference(admin)),
            "add" => self.add(admin, &params::<OfTenant>(given)?.tenant),
            "remove" => self.remove(admin, &params::<OfTenant>(given)?.tenant),
            "weight" => {
                let OfWeight { tenant, weight } = params(given)?;
                self.weight(admin, &tenant, weight)
            }
            "params" => self.params(admin, &params::<OfParams>(given)?.params),
            "listen" => self.listen(admin, &params::<OfAddress>(given)?.address),
            "unlisten" => self.unlisten(admin, &params::<OfAddress>(given)?.address),
            "config.dump" => {
                let Nothing {} = params(given)?;
                toml::to_string(&self.in_force(admin)).map(Value::from).map_err(Fault::refused)
            }
            "config.reload" => {
                let Nothing {} = params(given)?;
                self.reload_file(admin).map(|changes| json!({ "changes": changes })).map_err(Fault::refused)
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

    /// What is shown of the server on a terminal and on the web page: what was said at the last full second, so that the shards
    /// are not asked however many look.
    pub(super) fn look(&self, admin: &dyn Admin) -> Value {
        let asked;
        let now = match &self.latest {
            Some(latest) => latest,
            None => {
                asked = admin.status();
                &asked
            }
        };
        let whole = json!({ "status": self.status(admin, now), "tenants": self.tenants(admin, now) });
        serde_json::from_value::<Look>(whole).expect("what is shown is a part of what is told").json()
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
            "tenants": admin.roster().members().len(),
            "listening": admin.listening().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "draining": now.is_draining,
        })
    }

    fn describe_policy(&self) -> String {
        describe_policy(&self.plan.policy, self.plan.device.default_slots())
    }

    fn tenants(&self, admin: &dyn Admin, now: &Status) -> Value {
        let roster = admin.roster();
        roster.members().iter().map(|member| self.tenant(now, member, roster.members())).collect()
    }

    fn tenant(&self, now: &Status, member: &Member, all: &[Member]) -> Value {
        let server::Tenant { name, weight, file, base, size, read_only, identity, .. } = &member.tenant;
        let stats = &now.totals.tenants[usize::from(member.number())];
        let quantile = |quantile| stats.latency_ns.value_at_quantile(quantile);
        let source = self.table(name).and_then(|table| table.weight.clone());
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
            "offset": base,
            "read_only": read_only,
            "identity": identity,
            "reads": stats.reads,
            "writes": stats.writes,
            "others": stats.others,
            "read_bytes": stats.read_bytes,
            "written_bytes": stats.written_bytes,
            "errors": stats.errors,
            "in_flight": stats.in_flight,
            "staged": stats.staged,
            "staged_ns": stats.staged_ns,
            "device_ns": stats.device_ns,
            "starved_ns": stats.starved_ns,
            "latency_ns": {
                "p50": quantile(0.5), "p99": quantile(0.99), "p999": quantile(0.999), "max": stats.latency_ns.max(),
            },
            "last_second": last,
            "hurt_by": self.hurt_by(member, &now.totals.matrix, all),
        })
    }

    /// The parts that others have in a tenant's delay over the last seconds; by number.
    fn parts(&self, victim: usize, now: &Matrix) -> Option<[f64; GROUPS]> {
        let earlier = self.matrices.front();
        let since = |other: usize| now[victim][other].saturating_sub(earlier.map_or(0, |matrix| matrix[victim][other]));
        let total: u64 = (0..GROUPS).map(since).sum();
        (total > 0).then(|| std::array::from_fn(|other| since(other) as f64 / total as f64))
    }

    /// Who hurt a tenant, by name; nobody if it did not wait.
    fn hurt_by(&self, victim: &Member, now: &Matrix, all: &[Member]) -> Value {
        let Some(parts) = self.parts(group(victim.number()), now) else { return Value::Null };
        let named = |other: usize| {
            let is_it = |member: &&Member| usize::from(member.number()) == other && other < GROUPS - 1;
            let name = all.iter().find(is_it).map(|member| member.tenant.name.clone());
            name.unwrap_or_else(|| "(others)".to_owned())
        };
        let mut object = Map::new();
        for (other, part) in parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
            let sum = object.get(&named(other)).and_then(Value::as_f64).unwrap_or(0.0) + part;
            object.insert(named(other), json!(sum));
        }
        Value::Object(object)
    }

    fn interference(&self, admin: &dyn Admin) -> Value {
        let (now, roster) = (admin.status(), admin.roster());
        let row = |member: &Member| {
            let parts = self.hurt_by(member, &now.totals.matrix, roster.members());
            (!parts.is_null()).then(|| (member.tenant.name.clone(), parts))
        };
        Value::Object(roster.members().iter().filter_map(row).collect())
    }

    fn policy(&self, admin: &dyn Admin) -> Value {
        let name = self.plan.policy.name;
        let mut keys = serde_json::to_value(self.settings.policy.clone().unwrap_or_default()).unwrap_or_default();
        if let Some(keys) = keys.as_object_mut() {
            keys.retain(|key, value| key != "name" && !value.is_null());
        }
        json!({
            "name": name.name(),
            "description": self.describe_policy(),
            "params": keys,
            "live": name.live_keys(),
            "needs_restart": name.keys().into_iter().filter(|key| !name.live_keys().contains(key)).collect::<Vec<_>>(),
            "state": policy_state(&admin.status()),
        })
    }

    /// What is written of a tenant.
    fn table(&self, name: &str) -> Option<&TenantTable> {
        self.settings.tenant.iter().map(Spanned::get_ref).find(|table| table.name == name)
    }

    /// The configuration with every tenant's place, so that a server started with it finds each one's data.
    fn in_force(&self, admin: &dyn Admin) -> Settings {
        let mut settings = self.settings.clone();
        let roster = admin.roster();
        for table in settings.tenant.iter_mut().map(Spanned::get_mut).filter(|table| table.path.is_none()) {
            if let Some(member) = roster.find(&table.name) {
                table.size = Some(Size(member.tenant.size));
                table.offset = Some(Size(member.tenant.base));
            }
        }
        settings
    }

    fn add(&mut self, admin: &mut dyn Admin, spec: &str) -> Result<Value, Fault> {
        let table: TenantTable = spec.parse().map_err(Fault::params)?;
        let tenant = self.add_table(admin, table).map_err(Fault::refused)?;
        Ok(json!({ "tenant": tenant.name, "size": tenant.size, "offset": tenant.base, "weight": tenant.weight.get() }))
    }

    /// Adds a tenant as it is written, at a place that nobody has.
    fn add_table(&mut self, admin: &mut dyn Admin, table: TenantTable) -> Result<server::Tenant, Refusal> {
        let new = table.clone().complete()?;
        let refuse = |text: &str| Err(Refusal::new(format!("{}: tenant {}: {text}", new.origin, new.name)));
        if new.path.is_some() {
            return refuse(
                "a file of its own can only be opened at the start: add it to the configuration and restart",
            );
        }
        if new.identity.is_some() && self.plan.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
            return refuse(
                "identity needs client certificates: restart with --tls-cert, --tls-key and --tls-client-ca",
            );
        }
        let roster = admin.roster();
        if roster.find(&new.name).is_some() {
            return refuse("there is one already: remove it first or choose another name");
        }
        let of_others = roster.members().iter().filter(|member| member.tenant.file == 0);
        let pinned = |member: &Member| Tenant {
            name: member.tenant.name.clone(),
            size: Some(member.tenant.size),
            offset: Some(member.tenant.base),
            path: None,
            ..new.clone()
        };
        let mut tenants: Vec<Tenant> = of_others.map(pinned).collect();
        tenants.push(new.clone());
        let Some(&shared) = self.sizes.first().filter(|_| self.has_shared_file()) else {
            return refuse("the device has no file to share: give it one and restart");
        };
        let ranges = layout(&tenants, Some(shared), &[])?;
        let range = ranges.last().expect("the new one is the last");
        let tenant = server_tenant(&new, range);
        admin.add(tenant.clone()).map_err(|error| Refusal::new(error.to_string()))?;
        self.latest = None;
        let (offset, size) = (Some(Size(range.offset)), Some(Size(range.size)));
        self.settings.tenant.push(Spanned::new(0..0, TenantTable { offset, size, ..table }));
        Ok(tenant)
    }

    fn has_shared_file(&self) -> bool {
        !matches!(&self.plan.device, config::device::DeviceConfig::File { file: None, .. })
    }

    fn remove(&mut self, admin: &mut dyn Admin, name: &str) -> Result<Value, Fault> {
        admin.remove(name).map_err(Fault::refused)?;
        self.latest = None;
        self.settings.tenant.retain(|table| table.get_ref().name != name);
        Ok(json!({ "tenant": name }))
    }

    fn weight(&mut self, admin: &mut dyn Admin, name: &str, source: WeightSource) -> Result<Value, Fault> {
        let weight = source.now().map_err(Fault::params)?;
        let before = admin.roster().find(name).map(|member| member.tenant.weight);
        admin.set_weight(name, weight).map_err(Fault::refused)?;
        self.write_weight(name, source);
        Ok(json!({ "tenant": name, "from": before.map(Weight::get), "to": weight.get() }))
    }

    fn write_weight(&mut self, name: &str, source: WeightSource) {
        if let Some(table) = self.settings.tenant.iter_mut().find(|table| table.get_ref().name == name) {
            table.get_mut().weight = Some(source);
        }
    }

    /// Gives tenants whose weight is a cgroup's the weight that it has now.
    pub(super) fn follow_cgroups(&mut self, admin: &mut dyn Admin) {
        let followed = self.settings.tenant.iter().map(Spanned::get_ref).filter_map(|table| match &table.weight {
            Some(source @ WeightSource::Cgroup(_)) => Some((&table.name, source)),
            _ => None,
        });
        for (name, source) in followed {
            let Ok(weight) = source.now().inspect_err(|error| tracing::debug!(tenant = name, "{error}")) else {
                continue;
            };
            let roster = admin.roster();
            if roster.find(name).is_some_and(|member| member.tenant.weight != weight) {
                match admin.set_weight(name, weight) {
                    Ok(()) => {
                        tracing::info!(tenant = name, weight = weight.get(), %source, "the cgroup's weight changed")
                    }
                    Err(error) => tracing::warn!(tenant = name, %error, "cannot follow the cgroup's weight"),
                }
            }
        }
    }

    fn params(&mut self, admin: &mut dyn Admin, text: &str) -> Result<Value, Fault> {
        let name = self.plan.policy.name;
        let flags: PolicyTable = format!("{}:{text}", name.name()).parse().map_err(Fault::params)?;
        let written = self.settings.policy.clone().unwrap_or_default();
        let written = PolicyTable { name: Some(name), ..written };
        let policy = Some(written.overlaid(flags));
        let wanted = Settings { policy, ..self.settings.clone() };
        let completed = wanted.policy.clone().unwrap_or_default().complete().map_err(Fault::params)?;
        let mut differ = changes::between(&self.settings, &wanted);
        differ.retain(|change| change.key != "policy.name");
        let live = |change: &Change| name.live_keys().iter().any(|key| change.key == format!("policy.{key}"));
        if let Some(fixed) = differ.iter().find(|change| !live(change)) {
            let can = if name.live_keys().is_empty() { "nothing".into() } else { name.live_keys().join(", ") };
            return Err(Fault::refused(format!(
                "{} of {} is built in at the start: change it in the configuration and restart (while it runs: {can})",
                fixed.key.trim_start_matches("policy."),
                name.name(),
            )));
        }
        for change in &mut differ {
            self.tune(admin, &change.key, &completed).map_err(Fault::refused)?;
            change.done = true;
        }
        self.plan.policy = completed;
        self.settings = wanted;
        Ok(json!({ "changes": differ }))
    }

    /// Makes one live parameter what `wanted` says.
    fn tune(&self, admin: &mut dyn Admin, key: &str, wanted: &config::policy::PolicyConfig) -> Result<(), String> {
        let tuning = match key {
            "policy.slots" => Tuning::Slots(wanted.slots.unwrap_or(self.plan.device.default_slots())),
            _ => Tuning::Threshold(wanted.threshold.unwrap_or(crate::engine::default_threshold())),
        };
        admin.tune(tuning).map_err(|error| format!("{key}: {error}"))
    }

    fn listen(&mut self, admin: &mut dyn Admin, address: &str) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        let place = admin.listen(&at.clone().into()).map_err(Fault::refused)?;
        self.settings.listen.push(at);
        Ok(json!({ "address": place.to_string() }))
    }

    fn unlisten(&mut self, admin: &mut dyn Admin, address: &str) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        admin.unlisten(&at.clone().into()).map_err(Fault::refused)?;
        self.settings.listen.retain(|listen| *listen != at);
        Ok(json!({ "address": at.to_string() }))
    }

    /// Reads the file again and makes the server so, as far as that can be done while it runs.
    pub(super) fn reload_file(&mut self, admin: &mut dyn Admin) -> Result<Vec<Change>, Refusal> {
        let Some(path) = &self.given.file else {
            return Err(Refusal::new("there is no file to read again: the server was started without --config"));
        };
        let wanted = config::load(path)?.overlaid(self.given.flags.clone()).with_tenants();
        let plan = wanted.plan(&self.given.surroundings)?;
        let in_force = self.comparable(&wanted);
        let mut differ = changes::between(&in_force, &wanted);
        let tables = || wanted.tenant.iter().map(Spanned::get_ref);
        let gone: Vec<String> = self
            .settings
            .tenant
            .iter()
            .map(|table| table.get_ref().name.clone())
            .filter(|name| tables().all(|table| table.name != *name))
            .collect();
        let come: Vec<TenantTable> = tables().filter(|table| self.table(&table.name).is_none()).cloned().collect();
        let mut done = |prefix: &str| {
            let under = |key: &str| key == prefix || key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
            differ.iter_mut().filter(|change| under(&change.key)).for_each(|change| change.done = true);
        };
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
        for table in tables() {
            let source = table.weight.clone().unwrap_or_default();
            if self.table(&table.name).is_some_and(|old| old.weight.clone().unwrap_or_default() != source)
                && self.weight(admin, &table.name, source).is_ok()
            {
                done(&format!("tenant.{}.weight", table.name));
            }
        }
        if plan.policy.name == self.plan.policy.name {
            for key in plan.policy.name.live_keys() {
                let key = format!("policy.{key}");
                let differs = changes::between(&self.settings, &wanted).iter().any(|change| change.key == key);
                if differs && self.tune(admin, &key, &plan.policy).is_ok() {
                    self.write_live(&key, &plan, &wanted);
                    done(&key);
                }
            }
        }
        if self.move_listeners(admin, &wanted) {
            done("listen");
        }
        Ok(differ)
    }

    /// The configuration in force, with places of tenants only where `wanted` names them: where nothing is said, any
    /// place will do, and the one that a tenant has is as good as another.
    fn comparable(&self, wanted: &Settings) -> Settings {
        let mut in_force = self.settings.clone();
        for table in &mut in_force.tenant {
            let table = table.get_mut();
            let said = wanted.tenant.iter().map(Spanned::get_ref).find(|said| said.name == table.name);
            if let Some(said) = said {
                table.offset = table.offset.filter(|_| said.offset.is_some());
                table.size = table.size.filter(|_| said.size.is_some());
            }
        }
        in_force
    }

    /// Writes down a parameter that has been changed.
    fn write_live(&mut self, key: &str, plan: &config::Plan, wanted: &Settings) {
        let said = wanted.policy.clone().unwrap_or_default();
        let written = self.settings.policy.get_or_insert_default();
        match key {
            "policy.slots" => (written.slots, self.plan.policy.slots) = (said.slots, plan.policy.slots),
            _ => (written.threshold, self.plan.policy.threshold) = (said.threshold, plan.policy.threshold),
        }
    }

    /// Listens where `wanted` says. True if that holds now.
    fn move_listeners(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> bool {
        if wanted.listen.is_empty() {
            return self.settings.listen.is_empty();
        }
        let missing = wanted.listen.iter().filter(|at| !self.settings.listen.contains(at));
        let mut all = true;
        for at in missing {
            if let Err(error) = admin.listen(&at.clone().into()) {
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

fn classes([urgent, high, medium, low]: [u64; 4]) -> Value {
    json!({ "urgent": urgent, "high": high, "medium": medium, "low": low })
}

fn policy_state(now: &Status) -> Value {
    let fairq_core::Stats { virtual_time, slots, free_slots, throttles, blocks, wakes } = now.policy;
    let classes =
        now.classes.map(|classes| json!({ "high": classes.high, "medium": classes.medium, "low": classes.low }));
    json!({
        "virtual_time": virtual_time,
        "slots": slots,
        "slots_in_use": slots.zip(free_slots).map(|(slots, free)| slots.saturating_sub(free)),
        "throttles": throttles,
        "blocks": blocks,
        "wakes": wakes,
        "class_weights": classes,
    })
}
