//! The methods of the control socket that change tenants, the policy and addresses.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use fairq_config::access::Directory;
use fairq_config::device::FileConfig;
use fairq_config::engine::file_spec;
use fairq_config::layout::place::place;
use fairq_config::listen::Listen;
use fairq_config::policy::value;
use fairq_config::policy::{PolicyConfig, PolicyTable};
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Settings, Source};
use fairq_config::tenant::{Range, Tenant, TenantTable, layout};
use fairq_config::units::Size;
use fairq_config::weight::WeightSource;
use fairq_core::TuneError;
use fairq_core::registry::Knob;
use fairq_host::device::file::FileSpec;
use fairq_host::server::{self, Admin, AdminError, Member, TenantSettings};
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::Console;
use super::caps::warn;
use super::changes;
use super::overview::policy_state;
use super::rpc::Fault;
use crate::parts::{build_policy, server_tenant};

impl Console {
    pub(super) fn policy(&self, admin: &dyn Admin) -> Value {
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

    /// The configuration with every address and every tenant's place. A server started with it has
    /// the same addresses and finds each tenant's data.
    pub(super) fn in_force(&self, admin: &dyn Admin) -> Settings {
        let mut settings = Settings::clone(&self.settings);
        if self.plan.source != Source::Stdio {
            // A socket of the service manager has no address for a file.
            settings.listen =
                admin.listening().into_iter().filter_map(|at| at.try_into().ok()).collect();
        }
        settings.control = self.plan.control.clone();
        let tenants = admin.tenants();
        for table in
            settings.tenant.iter_mut().map(Spanned::get_mut).filter(|table| table.path.is_none())
        {
            if let Some(member) = tenants.find(&table.name) {
                table.size = Some(Size(member.tenant.size));
                table.offset = Some(Size(member.tenant.base));
            }
        }
        // A file with an unknown default tenant would be refused.
        settings.default_tenant.take_if(|name| tenants.find(name).is_none());
        settings
    }

    /// Adds a tenant from its text. Unfinished while its users are resolved, or its file is opened.
    pub(super) fn add(&mut self, admin: &mut dyn Admin, spec: &str) -> Result<Value, Fault> {
        let table: TenantTable = spec.parse().map_err(Fault::params)?;
        let tenant = self.completed(spec, &table).and_then(|new| {
            self.add_tables(admin, &[(table.clone(), new)])
                .pop()
                .expect("one result for each table")
        });
        if !tenant.as_ref().is_err_and(Refusal::is_temporary) {
            self.adding.forget(spec);
        }
        let server::Tenant { name, size, base, settings, .. } = tenant?;
        self.warn_of_groups(std::iter::once(&table));
        let warning = warn(&format!("tenant {name}"), &settings.caps);
        Ok(json!({
            "tenant": name,
            "size": size,
            "offset": base,
            "weight": settings.weight.get(),
            "warning": warning,
            "table": self.table_text(&name),
            "config": self.given.file.as_ref().and_then(|file| file.canonicalize().ok()),
        }))
    }

    /// The tenant of a table.
    fn completed(&mut self, spec: &str, table: &TenantTable) -> Result<Tenant, Refusal> {
        let groups = self.known_groups()?;
        let (new, root) = (table.clone(), self.plan.cgroup_root.clone());
        let complete = move || new.complete(&root, &groups, &Directory::default());
        if !table.names_users() {
            return complete();
        }
        let what = format!("tenant {}: looking up its users (getent passwd, group)", table.name);
        self.adding.result(spec, &what, complete)?
    }

    /// Adds tenants, each given by its table and its completed form, in free ranges. The tenants
    /// are added together, because the cost of a call hardly depends on their number.
    pub(super) fn add_tables(
        &mut self,
        admin: &mut dyn Admin,
        come: &[(TenantTable, Tenant)],
    ) -> Vec<Result<server::Tenant, Refusal>> {
        if come.is_empty() {
            return Vec::new();
        }
        let new = come.iter().map(|(_, new)| new);
        let checked = new.clone().try_for_each(|new| self.check(admin, new));
        let gaps = match checked.and_then(|()| self.gaps(admin, new)) {
            Ok(gaps) => gaps,
            Err(refusal) if come.len() == 1 => return vec![Err(refusal)],
            // If the call refuses one tenant, no tenant is added. The tenants are then added one by
            // one.
            Err(_) => {
                let one = |one| self.add_tables(admin, std::slice::from_ref(one)).pop();
                return come.iter().filter_map(one).collect();
            }
        };
        let prepare = |((_, new), gap): (&(_, Tenant), _)| self.prepare(admin, new, gap);
        let prepared: Vec<Result<(server::Tenant, bool), Refusal>> =
            come.iter().zip(gaps).map(prepare).collect();
        let mut added = admin.add(prepared.iter().flatten().cloned().collect()).into_iter();
        let mut end = |((table, new), prepared): (&(TenantTable, Tenant), _)| {
            let (tenant, wipe): (server::Tenant, bool) = prepared?;
            if let Err(error) = added.next().expect("one result for each tenant") {
                self.close_own(admin, tenant.file);
                if wipe {
                    self.disown_later(&tenant.name);
                }
                return Err(Refusal::new(error.to_string()));
            }
            // The place is stored, so that a restart finds the tenant's data.
            let (offset, size) = match new.path {
                Some(_) => (table.offset, table.size),
                None => (Some(Size(tenant.base)), Some(Size(tenant.size))),
            };
            let table = TenantTable { offset, size, ..table.clone() };
            Arc::make_mut(&mut self.settings).tenant.push(Spanned::new(0..0, table));
            Ok(tenant)
        };
        let added = come.iter().zip(prepared).map(&mut end).collect::<Vec<_>>();
        let names: Vec<&str> = added.iter().flatten().map(|tenant| &*tenant.name).collect();
        self.mark_losses_of(&*admin, &names);
        added
    }

    fn check(&self, admin: &dyn Admin, new: &Tenant) -> Result<(), Refusal> {
        settings::check_identities(std::slice::from_ref(new), self.plan.tls.as_ref())?;
        match admin.tenants().find(&new.name) {
            None => Ok(()),
            Some(_) => Err(Refusal::new(format!(
                "{}: tenant {}: there is one already: remove that one first or choose another name",
                new.origin, new.name
            ))),
        }
    }

    /// A tenant with its range, which is in its own file or is `gap`, and whether the range is to
    /// be zeroed.
    fn prepare(
        &mut self,
        admin: &mut dyn Admin,
        new: &Tenant,
        gap: Option<Range>,
    ) -> Result<(server::Tenant, bool), Refusal> {
        // A range of the shared file may hold another tenant's data, so it is zeroed. A file of the
        // tenant's own is not zeroed, because the operator chose it for the tenant.
        let (range, wipe) = match (&new.path, gap) {
            (Some(path), _) => (self.own_file(admin, new, path)?, false),
            (None, Some(range)) => (range, self.claim(new, &range)?),
            (None, None) => return Err(no_shared_file(new)),
        };
        Ok((server_tenant(new, &range), wipe))
    }

    /// Finds free parts of the shared file for the tenants without a file of their own.
    pub(super) fn gaps<'a>(
        &self,
        admin: &dyn Admin,
        new: impl Iterator<Item = &'a Tenant> + Clone,
    ) -> Result<Vec<Option<Range>>, Refusal> {
        let sharing: Vec<Tenant> = new.clone().filter(|new| new.path.is_none()).cloned().collect();
        let ranges = match sharing.first() {
            Some(first) if !self.plan.device.has_shared_file() => {
                return Err(no_shared_file(first));
            }
            Some(first) => self.shared_gaps(admin, first, &sharing)?,
            None => Vec::new(),
        };
        let mut ranges = ranges.into_iter();
        let gap = |new: &Tenant| if new.path.is_none() { ranges.next() } else { None };
        Ok(new.map(gap).collect())
    }

    fn shared_gaps(
        &self,
        admin: &dyn Admin,
        any: &Tenant,
        new: &[Tenant],
    ) -> Result<Vec<Range>, Refusal> {
        let tenants = admin.tenants();
        if let (Some(layout), Some(record)) = (&self.layout, self.planned(admin)) {
            let served: Vec<&str> = tenants.members().map(|member| &*member.tenant.name).collect();
            return Ok(place(layout.path(), new, &record, &[], &served)?.ranges);
        }
        let own: Vec<u16> = self.own.values().map(|&(number, _)| number).collect();
        let of_others = tenants.members().filter(|member| !own.contains(&member.tenant.file));
        // Other tenants stay where they are: `layout` has to find places around them.
        let pinned = |member: &Member| Tenant {
            name: member.tenant.name.clone(),
            size: Some(member.tenant.size),
            offset: Some(member.tenant.base),
            ..any.clone()
        };
        let mut all: Vec<Tenant> = of_others.map(pinned).collect();
        let others = all.len();
        all.extend_from_slice(new);
        Ok(layout(&all, Some(self.shared), &[])?.split_off(others))
    }

    /// Opens the tenant's own file, and returns the range of the whole file.
    fn own_file(
        &mut self,
        admin: &mut dyn Admin,
        new: &Tenant,
        path: &Path,
    ) -> Result<Range, Refusal> {
        let refuse =
            |text: String| Refusal::new(format!("{}: tenant {}: {text}", new.origin, new.name));
        if let Some(&(file, _)) = self.own.get(path)
            && let Some(other) = admin.tenants().members().find(|member| member.tenant.file == file)
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

    /// Opens the files of new tenants before anything changes.
    pub(super) fn prepare_files(
        &mut self,
        admin: &mut dyn Admin,
        come: &[(TenantTable, Tenant)],
    ) -> Result<(), Refusal> {
        for (_, new) in come {
            // A file that is already open is not opened again: its tenant is removed in the same
            // reload, or the new tenant is refused later.
            let Some(path) = new.path.as_ref().filter(|path| !self.own.contains_key(*path)) else {
                continue;
            };
            admin.prepare_file(&own_spec(new, path)).map_err(|error| refused_file(new, &error))?;
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

    /// Removes a tenant. Its range is reserved under its name if `keep`, and free otherwise. For a
    /// name that is not served the range is freed.
    pub(super) fn remove(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        keep: bool,
    ) -> Result<Value, Fault> {
        // The file's number is read before the removal, because the list does not have the tenant
        // afterwards.
        let file = admin.tenants().find(name).map(|member| member.tenant.file);
        let has_own = file.is_some_and(|file| self.own.values().any(|own| own.0 == file));
        let is_reserved = file.is_none()
            && self.layout.as_ref().is_some_and(|layout| layout.record().find(name).is_some());
        if !is_reserved {
            let removed = self.remove_all(admin, &[name]).pop().expect("one result for each name");
            removed.map_err(Fault::refused)?;
        }
        if !keep && !has_own {
            self.disown(name).map_err(|error| {
                self.drop_snapshots();
                if error.is_temporary() {
                    // The write continues, and the keeper puts the record in force when the write
                    // ends.
                    return Fault::unfinished(format!(
                        "{name} is removed; the device does not answer now, so the range stays \
                         reserved until it does, and is free then"
                    ));
                }
                Fault::refused(format!(
                    "{name} is removed, but its range stays reserved; repeat the command to free \
                     it: {error}"
                ))
            })?;
        }
        Ok(json!({ "tenant": name, "kept": keep || has_own }))
    }

    /// Removes tenants, but leaves the layout record as it is.
    pub(super) fn remove_all(
        &mut self,
        admin: &mut dyn Admin,
        names: &[&str],
    ) -> Vec<Result<(), AdminError>> {
        if names.is_empty() {
            return Vec::new();
        }
        // The files' numbers are read before the removal, because the list does not have the
        // tenants afterwards.
        let tenants = admin.tenants();
        let results = admin.remove(names);
        let pairs = names.iter().copied().zip(&results);
        let gone: HashSet<&str> =
            pairs.filter(|(_, result)| result.is_ok()).map(|(name, _)| name).collect();
        for member in gone.iter().filter_map(|name| tenants.find(name)) {
            self.close_own(admin, member.tenant.file);
        }
        if let Some(layout) = &mut self.layout {
            layout.forget(&gone);
        }
        let is_gone = |table: &Spanned<TenantTable>| gone.contains(&*table.get_ref().name);
        Arc::make_mut(&mut self.settings).tenant.retain(|table| !is_gone(table));
        results
    }

    /// A tenant's keys.
    pub(super) fn table(&self, name: &str) -> Result<TenantTable, Fault> {
        let mut tables = self.settings.tenant.iter().map(Spanned::get_ref);
        let table = tables.find(|table| table.name == name);
        table.cloned().ok_or_else(|| Fault::refused(AdminError::NoSuchTenant(name.into())))
    }

    /// Gives a tenant these keys; returns its settings before and now.
    pub(super) fn update(
        &mut self,
        admin: &mut dyn Admin,
        table: TenantTable,
    ) -> Result<(TenantSettings, TenantSettings), Fault> {
        let groups = self.known_groups()?;
        let wanted = table.settings(&self.plan.cgroup_root, &groups).map_err(Fault::params)?;
        let tenants = admin.tenants();
        let before = tenants.find(&table.name).map(|member| member.tenant.settings.clone());
        let before =
            before.ok_or_else(|| Fault::refused(AdminError::NoSuchTenant(table.name.clone())))?;
        let now = before.updated(&wanted);
        let updated = admin.update(&[(table.name.clone(), now.clone())]);
        updated.into_iter().collect::<Result<(), _>>().map_err(Fault::refused)?;
        self.write_tables([table]);
        Ok((before, now))
    }

    /// Stores the keys of tenants.
    pub(super) fn write_tables(&mut self, tables: impl IntoIterator<Item = TenantTable>) {
        let mut tables: HashMap<String, TenantTable> =
            tables.into_iter().map(|table| (table.name.clone(), table)).collect();
        let known = Arc::make_mut(&mut self.settings).tenant.iter_mut().map(Spanned::get_mut);
        for known in known {
            if let Some(table) = tables.remove(&known.name) {
                *known = table;
            }
        }
    }

    /// Changes keys of a tenant; the value `off` removes a key.
    pub(super) fn set(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        keys: &Map<String, Value>,
    ) -> Result<Value, Fault> {
        let groups = self.known_groups()?;
        let (old, mut new) = (self.table(name)?, self.table(name)?);
        for (key, value) in keys {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let refused = |text| Fault::params(format!("tenant {name}: {text}"));
            new.set(key, &value, &groups).map_err(refused)?;
        }
        let of = |table: &TenantTable| Settings {
            tenant: vec![Spanned::new(0..0, table.clone())],
            ..Settings::default()
        };
        let mut differ = changes::between(&of(&old), &of(&new));
        differ.iter_mut().for_each(|change| change.done = true);
        let (_, now) = self.update(admin, new)?;
        let warning = warn(&format!("tenant {name}"), &now.caps);
        Ok(json!({ "tenant": name, "changes": differ, "warning": warning }))
    }

    pub(super) fn weight(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        source: WeightSource,
    ) -> Result<Value, Fault> {
        let table = TenantTable { weight: Some(source), ..self.table(name)? };
        let (before, now) = self.update(admin, table)?;
        Ok(json!({ "tenant": name, "from": before.weight.get(), "to": now.weight.get() }))
    }

    /// Updates the weights of tenants that follow cgroups.
    pub(super) fn follow_cgroups(&mut self, admin: &mut dyn Admin) {
        self.follow_groups(admin);
        let followed = self.settings.tenant.iter().map(Spanned::get_ref).filter_map(|table| {
            match &table.weight {
                Some(source @ WeightSource::Cgroup(_)) => Some((&table.name, source)),
                _ => None,
            }
        });
        let (tenants, root) = (admin.tenants(), &self.plan.cgroup_root);
        let changed = followed.filter_map(|(name, source)| {
            // The last weight stays. The level is debug, because the line repeats each second.
            let weight = source.now(root).inspect_err(|error| {
                tracing::debug!(tenant = name, "{error}");
            });
            let weight = weight.ok()?;
            let now = &tenants.find(name)?.tenant.settings;
            (now.weight != weight).then(|| (name.clone(), TenantSettings { weight, ..now.clone() }))
        });
        let updates: Vec<(String, TenantSettings)> = changed.collect();
        if updates.is_empty() {
            return;
        }
        for ((tenant, now), made) in updates.iter().zip(admin.update(&updates)) {
            match made {
                Ok(()) => {
                    tracing::info!(
                        tenant,
                        weight = now.weight.get(),
                        "the cgroup's weight changed"
                    );
                }
                Err(error) => {
                    tracing::warn!(tenant, %error, "cannot follow the cgroup's weight");
                }
            }
        }
    }

    /// The policy's parameters and their values.
    pub(super) fn parameters(&self) -> Value {
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

    pub(super) fn params(&mut self, admin: &mut dyn Admin, text: &str) -> Result<Value, Fault> {
        let PolicyConfig { policy, .. } = self.plan.policy;
        let flags: PolicyTable =
            format!("{}:{text}", policy.name).parse().map_err(Fault::params)?;
        let written = self.settings.policy.clone().unwrap_or_default().named(policy);
        self.change_policy(admin, written.overlaid(flags))
    }

    pub(super) fn set_policy(&mut self, admin: &mut dyn Admin, text: &str) -> Result<Value, Fault> {
        self.change_policy(admin, text.parse().map_err(Fault::params)?)
    }

    /// Changes the policy to that of `table`; returns the differences.
    fn change_policy(&mut self, admin: &mut dyn Admin, table: PolicyTable) -> Result<Value, Fault> {
        let wanted = table.clone().complete().map_err(Fault::params)?;
        if self.settings.has_whole_device() && wanted.name() != "none" {
            return Err(Fault::refused(
                "a controller has the whole device (vfio-user-device) and arbitrates among its \
                 queues itself: the policy stays none",
            ));
        }
        let before = self.describe_policy();
        let settings = Settings { policy: Some(table), ..Settings::default() };
        let mut differ = changes::between(&policy_only(&self.settings), &settings);
        // If the new settings only name the default policy, which is in force already, their key
        // `policy.name` is not a difference.
        differ.retain(|change| {
            change.key != "policy.name" || wanted.policy != self.plan.policy.policy
        });
        self.make_policy(admin, wanted, &settings).map_err(Fault::refused)?;
        differ.iter_mut().for_each(|change| change.done = true);
        Ok(json!({ "from": before, "to": self.describe_policy(), "changes": differ }))
    }

    /// Changes the policy to that of `settings`, and stores it. Parameters that the running policy
    /// can change are changed there; any other difference replaces the policy.
    pub(super) fn make_policy(
        &mut self,
        admin: &mut dyn Admin,
        wanted: PolicyConfig,
        settings: &Settings,
    ) -> Result<(), String> {
        let mut differ = changes::between(&policy_only(&self.settings), &policy_only(settings));
        if wanted.policy == self.plan.policy.policy {
            differ.retain(|change| change.key != "policy.name");
        }
        if wanted != self.plan.policy && !self.tune_all(admin, &differ, &wanted)? {
            let built = build_policy(&wanted, &self.shape, self.stores)
                .map_err(|refusal| refusal.to_string())?;
            admin.change_policy(built).map_err(|error| error.to_string())?;
        }
        // Views may share the plan and the settings: then a change copies them with all tenants.
        if self.plan.policy != wanted {
            Arc::make_mut(&mut self.plan).policy = wanted;
        }
        if self.settings.policy != settings.policy {
            warn_of_policy(settings, &self.settings);
            Arc::make_mut(&mut self.settings).policy.clone_from(&settings.policy);
        }
        Ok(())
    }

    /// Changes parameters of the policy in force; false if some of them need another policy.
    fn tune_all(
        &self,
        admin: &mut dyn Admin,
        differ: &[changes::Change],
        wanted: &PolicyConfig,
    ) -> Result<bool, String> {
        let knobs = wanted.knobs(self.plan.device.default_slots());
        let mut tunings = Vec::new();
        // All parameters are checked before one changes: if one of them needs another policy, the
        // present policy stays as it is.
        for changes::Change { key, .. } in differ {
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

    /// Stops accepting connections, or ends at once; returns the number of connections that it
    /// waits for.
    pub(super) fn drain(&self, admin: &mut dyn Admin, now: bool) -> Value {
        admin.drain(now);
        json!({ "connections": admin.status().connections.iter().sum::<usize>() })
    }

    pub(super) fn listen(&mut self, admin: &mut dyn Admin, address: &str) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        let place = admin.listen(&at.clone().into()).map_err(Fault::refused)?;
        // With port 0 the kernel has chosen the port: the resulting address is stored.
        Arc::make_mut(&mut self.settings).listen.push(place.clone().try_into().unwrap_or(at));
        self.stored.put(admin);
        Ok(json!({ "address": place.to_string() }))
    }

    pub(super) fn unlisten(
        &mut self,
        admin: &mut dyn Admin,
        address: &str,
    ) -> Result<Value, Fault> {
        let at: Listen = address.parse().map_err(Fault::params)?;
        admin.unlisten(&at.clone().into()).map_err(Fault::refused)?;
        Arc::make_mut(&mut self.settings).listen.retain(|listen| *listen != at);
        self.stored.keep(&admin.listening());
        Ok(json!({ "address": at.to_string() }))
    }
}

/// Logs the keys of the policy that have no effect and were not there before.
pub(super) fn warn_of_policy(settings: &Settings, before: &Settings) {
    let warnings =
        |of: &Settings| of.policy.as_ref().map(PolicyTable::warnings).unwrap_or_default();
    let known = warnings(before);
    let new = warnings(settings).into_iter().filter(|warning| !known.contains(warning));
    new.for_each(|warning| tracing::warn!("{warning}"));
}

/// Settings with only the policy's keys.
fn policy_only(settings: &Settings) -> Settings {
    Settings { policy: settings.policy.clone(), ..Settings::default() }
}

/// The specification of a tenant's own file for the device.
fn own_spec(new: &Tenant, path: &Path) -> FileSpec {
    file_spec(FileConfig {
        path: path.into(),
        size: new.size,
        create: new.create,
        store: new.store.clone(),
    })
}

/// Refuses a tenant without a file on a device without a shared file.
pub(super) fn no_shared_file(new: &Tenant) -> Refusal {
    Refusal::new(format!(
        "{}: tenant {}: the device has no file to share: give it one of its own with path=FILE",
        new.origin, new.name
    ))
}

fn refused_file(new: &Tenant, error: &AdminError) -> Refusal {
    let text = format!("{}: tenant {}: {error}", new.origin, new.name);
    match error {
        // The file is still being opened: a repeated call returns the result.
        AdminError::Opening { .. } => Refusal::temporary(text),
        _ => Refusal::new(text),
    }
}
