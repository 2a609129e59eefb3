//! Reads the configuration file again, and changes the server accordingly.
//!
//! A thread of its own reads the file, resolves users and finds the differences ([`Reading`]); the
//! control thread then makes the changes, those of tenants in one call.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use fairq_config::caps;
use fairq_config::group;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Plan, Settings, Surroundings, Tls};
use fairq_config::tenant::{FIXED, Range, Tenant, TenantTable, by_name};
use fairq_config::units::{Size, exact_size};
use fairq_config::weight::Cgroups;
use fairq_host::nbd::session::tls::TlsMode;
use fairq_host::server::{self, Admin, TenantList, TenantSettings};
use toml::Spanned;

use super::Console;
use super::changes::{self, Change, note_sizes, note_whole, tenant_of};
use super::keeper::{Edit, GivenUp};
use super::methods::no_shared_file;
use crate::parts::{default_tenant, tls_mode};

/// The most lines of one reload in the log: thousands of keys may differ, and the log may be slow.
const LINES_MAX: usize = 200;
/// The key of the only reading under way.
const READING: &str = "config.reload";
/// The most full comparisons that the thread makes if groups change meanwhile.
const COMPARISONS: u32 = 3;

/// The options of a reload.
#[derive(Default)]
pub(super) struct ReloadOptions {
    /// Tenants to be removed, because the file does not have them.
    pub(super) remove: Vec<String>,
    /// Whether the changes are only listed.
    pub(super) dry_run: bool,
}

/// The present file.
struct Contents {
    wanted: Settings,
    plan: Plan,
    tls: TlsMode,
    cgroups: Cgroups,
}

/// The file, and its differences from the configuration.
#[derive(Clone)]
pub(super) struct Reading {
    contents: Arc<Contents>,
    /// The configuration of the comparison.
    in_force: Arc<Settings>,
    /// Number of earlier comparisons of these contents with other configurations.
    earlier: u32,
    /// The groups of that configuration.
    old_groups: Vec<group::Group>,
    /// Groups that are new or differ.
    groups: Vec<group::Group>,
    differences: Differences,
}

/// The differences of tenants between two configurations.
#[derive(Clone)]
struct Differences {
    /// The keys that differ, also outside tenants.
    keys: Vec<Change>,
    /// Tenants that the file does not name.
    missing: Vec<String>,
    /// New tenants.
    come: Vec<(TenantTable, Tenant)>,
    updates: Updates,
}

/// The tenants that stay and get other settings or keys.
#[derive(Clone, Default)]
struct Updates {
    /// The new settings of each.
    settings: Vec<(String, TenantSettings)>,
    /// Its keys after the update.
    tables: Vec<TenantTable>,
}

impl Updates {
    fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.settings.retain(|(name, _)| is_kept(name));
        self.tables.retain(|table| is_kept(&table.name));
    }
}

/// The input of a reading.
struct Start {
    file: PathBuf,
    flags: Settings,
    surroundings: Surroundings,
    in_force: Arc<Settings>,
    tenants: Arc<TenantList>,
    /// The files of TLS. They are read again; other files, or another mode, need a restart.
    tls: Option<Tls>,
}

impl Start {
    /// Reads the file. May wait for file systems and for a directory service.
    fn read(self) -> Result<Arc<Reading>, Refusal> {
        let wanted = settings::load(&self.file)?.overlaid(self.flags).with_tenants();
        let plan = wanted.plan(&self.surroundings)?;
        let tls = tls_mode(self.tls.as_ref())?;
        let contents = Arc::new(Contents { cgroups: wanted.cgroups(), wanted, plan, tls });
        Reading::compared(contents, &self.in_force, &self.tenants, 0)
    }
}

impl Reading {
    /// Compares the contents with this configuration.
    fn compared(
        contents: Arc<Contents>,
        with: &Arc<Settings>,
        tenants: &TenantList,
        earlier: u32,
    ) -> Result<Arc<Reading>, Refusal> {
        let Contents { wanted, plan, .. } = &*contents;
        let old_groups = with.complete_groups()?;
        let groups = plan.groups.iter().filter(|group| !is_among(group, &old_groups));
        let groups = groups.cloned().collect();
        let planned: Vec<&Tenant> = plan.tenants.iter().collect();
        let groups_of = (&*old_groups, &*plan.groups);
        let differences = Differences::between(with, tenants, wanted, &planned, groups_of)?;
        let in_force = with.clone();
        Ok(Arc::new(Reading { contents, in_force, earlier, old_groups, groups, differences }))
    }

    /// Compares the contents with a configuration that has the same groups. Only tenants that
    /// differ from the last comparison are compared again, so that the control thread can do it.
    fn compared_again(
        &mut self,
        with: &Arc<Settings>,
        tenants: &TenantList,
    ) -> Result<(), Refusal> {
        let Contents { wanted, plan, .. } = &*self.contents;
        let (before, now) = (by_name(&self.in_force.tenant), by_name(&with.tenant));
        let names = before.keys().chain(now.keys()).copied();
        let is_same = |name: &&str| match (before.get(name), now.get(name)) {
            (Some(before), Some(now)) => before.says_the_same_as(now),
            _ => false,
        };
        let changed: HashSet<&str> = names.filter(|name| !is_same(name)).collect();
        let is_changed = |name: &str| changed.contains(name);
        let (part, wanted) = (with.of_tenants(is_changed), wanted.of_tenants(is_changed));
        let planned = plan.tenants.iter().filter(|tenant| is_changed(&tenant.name));
        let planned: Vec<&Tenant> = planned.collect();
        let groups_of = (&*self.old_groups, &*plan.groups);
        let all = &mut self.differences;
        all.keys.retain(|change| tenant_of(&change.key).is_some_and(|(name, _)| !is_changed(name)));
        all.missing.retain(|name| !is_changed(name));
        all.come.retain(|(table, _)| !is_changed(&table.name));
        all.updates.retain(|name| !is_changed(name));
        let Differences { keys, missing, come, updates } =
            Differences::between(&part, tenants, &wanted, &planned, groups_of)?;
        all.keys.extend(keys);
        all.keys.sort_by(|a, b| a.key.cmp(&b.key));
        all.missing.extend(missing);
        all.come.extend(come);
        all.updates.settings.extend(updates.settings);
        all.updates.tables.extend(updates.tables);
        drop((before, now));
        self.in_force = with.clone();
        Ok(())
    }
}

impl Differences {
    /// The changes from `in_force` to `wanted`; `planned` has the completed tenants of `wanted`.
    fn between(
        in_force: &Settings,
        tenants: &TenantList,
        wanted: &Settings,
        planned: &[&Tenant],
        (old_groups, groups): (&[group::Group], &[group::Group]),
    ) -> Result<Differences, Refusal> {
        let keys = changes::between(&comparable(in_force, tenants, wanted), wanted);
        let (old, new) = (by_name(&in_force.tenant), by_name(&wanted.tenant));
        let missing = old.keys().filter(|name| !new.contains_key(*name));
        let missing = missing.map(|name| (*name).to_owned()).collect();
        let pairs = || wanted.tenant.iter().map(Spanned::get_ref).zip(planned.iter().copied());
        let come = pairs().filter(|(table, _)| !old.contains_key(&*table.name));
        let come = come.map(|(table, tenant)| (table.clone(), tenant.clone())).collect();
        let mut updates = Updates::default();
        for (table, tenant) in pairs() {
            let (Some(old), Some(member)) = (old.get(&*table.name), tenants.find(&table.name))
            else {
                continue;
            };
            let now = &member.tenant.settings;
            let settings = now.updated(&tenant.settings);
            let table = old.updated(table, (old_groups, groups));
            if settings != *now || !table.says_the_same_as(old) {
                updates.settings.push((table.name.clone(), settings));
                updates.tables.push(table);
            }
        }
        Ok(Differences { keys, missing, come, updates })
    }
}

/// Whether a group equals one of these; ambiguity of the name is ignored.
fn is_among(group: &group::Group, others: &[group::Group]) -> bool {
    let is_ambiguous = group.is_ambiguous;
    others.iter().any(|other| group::Group { is_ambiguous, ..other.clone() } == *group)
}

/// The configuration in force, with places of tenants only where `wanted` names them: a tenant
/// without a place in `wanted` may stay at its present place, which is then no difference.
fn comparable<'a>(
    in_force: &'a Settings,
    tenants: &TenantList,
    wanted: &Settings,
) -> Cow<'a, Settings> {
    let wanted = by_name(&wanted.tenant);
    let place = |table: &TenantTable| {
        let said = wanted.get(&*table.name)?;
        let now = tenants.find(&table.name).filter(|_| table.path.is_none());
        let (offset, size) = now.map(|now| (Size(now.tenant.base), Size(now.tenant.size))).unzip();
        let offset = table.offset.or(offset).filter(|_| said.offset.is_some());
        let size = table.size.or(size).filter(|_| said.size.is_some());
        Some((offset, size)).filter(|place| *place != (table.offset, table.size))
    };
    let mut comparable = Cow::Borrowed(in_force);
    for (number, table) in in_force.tenant.iter().enumerate() {
        if let Some((offset, size)) = place(table.get_ref()) {
            let table = comparable.to_mut().tenant[number].get_mut();
            (table.offset, table.size) = (offset, size);
        }
    }
    comparable
}

/// Adds notes for tenants that stay although the file does not name them.
fn note_staying(differ: &mut Vec<Change>, staying: &[String], come: &[(TenantTable, Tenant)]) {
    let note = |name: &str| {
        let renamed = match come {
            [(only, _)] => format!(
                "; if {} is {name} under another name, run fairq ctl rename {name} {0} instead",
                only.name
            ),
            _ => String::new(),
        };
        format!(
            "tenant {name} is not in the file, and stays with its data and clients: write its \
             table into the file (fairq ctl config dump shows it), or remove it by fairq ctl \
             config reload --remove {name}{renamed}"
        )
    };
    note_whole(differ, &staying.iter().map(|name| (&**name, note(name))).collect());
}

/// The changes of a reload, made or predicted. Another thread formats the answer, because
/// with thousands of tenants this takes much longer than the changes.
pub(super) struct Outcome {
    reading: Arc<Reading>,
    /// Tenants that stay although the file does not name them.
    staying: Vec<String>,
    /// Notes for tenants that are added or removed.
    notes: HashMap<String, String>,
    done: Done,
    /// Whether each update has been made.
    made: Vec<bool>,
    is_dry_run: bool,
}

impl Outcome {
    /// The differing keys with the result of each, for the answer and the log.
    pub(super) fn changes(self) -> Vec<Change> {
        let Reading { contents, differences, .. } = &*self.reading;
        let Differences { keys, come, updates, .. } = differences;
        let mut differ = keys.clone();
        let notes: HashMap<&str, String> =
            self.notes.iter().map(|(name, note)| (&**name, note.clone())).collect();
        note_staying(&mut differ, &self.staying, come);
        note_sizes(&mut differ);
        note_whole(&mut differ, &notes);
        let wanted = by_name(&contents.wanted.tenant);
        let made = updates.tables.iter().zip(&self.made).filter(|(_, made)| **made);
        let updated: HashMap<&str, &TenantTable> =
            made.map(|(table, _)| (&*table.name, table)).collect();
        for change in &mut differ {
            let is_updated = tenant_of(&change.key).is_some_and(|(name, key)| {
                let Some(table) = updated.get(name) else { return false };
                // `group` names a group of tenants and groups of users. A running server changes
                // only the former, so the key is done if no group of users differs.
                let has_users = || wanted.get(name).is_some_and(|new| new.group == table.group);
                !FIXED.contains(&key) && (key != "group" || has_users())
            });
            change.done = is_updated || self.done.has(&change.key);
        }
        if !self.is_dry_run {
            log_changes(&differ);
        }
        differ
    }
}

/// The keys that have been changed; each stands for the keys below it.
#[derive(Default)]
struct Done(HashSet<String>);

impl Done {
    fn add(&mut self, key: impl Into<String>) {
        self.0.insert(key.into());
    }

    /// Whether this key, or one above it, has been changed.
    fn has(&self, key: &str) -> bool {
        let dots = key.match_indices('.').map(|(at, _)| at);
        dots.chain([key.len()]).any(|end| self.0.contains(&key[..end]))
    }
}

/// Warnings of one reload: the first ones are logged, then their number.
#[derive(Default)]
struct Warnings(usize);

impl Warnings {
    fn add(&mut self, text: &impl std::fmt::Display) {
        self.0 += 1;
        if self.0 <= LINES_MAX {
            tracing::warn!("{text}");
        }
    }

    fn end(self) {
        if self.0 > LINES_MAX {
            tracing::warn!(
                more = self.0 - LINES_MAX,
                "further warnings of this reload are left out"
            );
        }
    }
}

impl Console {
    /// Reads the file again and applies its changes, or only lists them.
    pub(super) fn reload_file(
        &mut self,
        admin: &mut dyn Admin,
        options: &ReloadOptions,
    ) -> Result<Outcome, Refusal> {
        let result = self.reading(admin).and_then(|reading| match options.dry_run {
            true => self.predict(admin, reading, options),
            false => self.apply(admin, reading, options),
        });
        if !result.as_ref().is_err_and(Refusal::is_temporary) {
            self.reading.forget(READING);
        }
        match &result {
            _ if options.dry_run => {}
            Ok(_) => {}
            // Each retry with a slow file system returns this temporary error. Only a final error
            // is logged as an error.
            Err(error) if error.is_temporary() => tracing::debug!("not reloaded yet: {error}"),
            Err(error) => tracing::error!("cannot reload, nothing has changed: {error}"),
        }
        result
    }

    /// Reloads for SIGHUP. True if the reload is unfinished, so that the server calls it again.
    pub(super) fn reload_by_signal(&mut self, admin: &mut dyn Admin) -> bool {
        let since = *self.reload_since.get_or_insert_with(Instant::now);
        let result = self.reload_file(admin, &ReloadOptions::default());
        if !result.as_ref().is_err_and(Refusal::is_temporary) {
            self.drop_snapshots();
        }
        let longest = self.plan.timeouts.range;
        let is_unfinished = match result {
            Err(error) if error.is_temporary() && since.elapsed() < longest => true,
            Err(error) if error.is_temporary() => {
                tracing::error!("cannot reload, nothing has changed: {error}");
                false
            }
            Ok(outcome) => {
                let log = std::thread::Builder::new().name("fairq-config".into());
                if let Err(error) = log.spawn(move || drop(outcome.changes())) {
                    tracing::warn!("read the configuration again; changes are not logged: {error}");
                }
                false
            }
            Err(_) => false,
        };
        self.reload_since = Some(since).filter(|_| is_unfinished);
        is_unfinished
    }

    /// The present file, compared with the configuration in force.
    fn reading(&mut self, admin: &dyn Admin) -> Result<Arc<Reading>, Refusal> {
        let Some(file) = self.given.file.clone() else {
            return Err(Refusal::new(
                "there is no file to read again: the server was started without --config",
            ));
        };
        let start = Start {
            file: file.clone(),
            flags: self.given.flags.clone(),
            surroundings: self.given.surroundings.clone(),
            in_force: self.settings.clone(),
            tenants: admin.tenants(),
            tls: self.plan.tls.clone(),
        };
        let what = format!("reading {}", file.display());
        let mut reading = self.reading.result(READING, &what, move || start.read())??;
        if Arc::ptr_eq(&reading.in_force, &self.settings) {
            return Ok(reading);
        }
        // If a call has changed the configuration meanwhile, the differences are out of date. A new
        // reading could always be too late, so the contents are compared again here.
        if reading.in_force.group == self.settings.group {
            self.reading.forget(READING);
            Arc::make_mut(&mut reading).compared_again(&self.settings, &admin.tenants())?;
            self.reading.put(READING, Ok(reading.clone()));
            return Ok(reading);
        }
        let (contents, earlier) = (reading.contents.clone(), reading.earlier + 1);
        let (settings, tenants) = (self.settings.clone(), admin.tenants());
        let again = move || Reading::compared(contents, &settings, &tenants, earlier);
        if earlier > COMPARISONS {
            return again();
        }
        self.reading.forget(READING);
        self.reading.result(READING, &what, again)?
    }

    /// The tenants that the file does not name. They are returned in two lists: tenants to be
    /// removed, and tenants that stay because they have data and the operator has not named them
    /// for removal.
    fn missing<'a>(
        &self,
        reading: &'a Reading,
        options: &ReloadOptions,
    ) -> Result<(Vec<&'a str>, Vec<&'a str>), Refusal> {
        let missing: HashSet<&str> =
            reading.differences.missing.iter().map(String::as_str).collect();
        let wanted = &reading.contents.wanted.tenant;
        if let Some(name) = options.remove.iter().find(|name| !missing.contains(&***name)) {
            let is_wanted = wanted.iter().any(|table| table.get_ref().name == *name);
            return Err(Refusal::new(match is_wanted {
                true => format!(
                    "tenant {name} is in the file: remove its table from the file, or leave out \
                     --remove"
                ),
                false => format!("there is no tenant {name} to be removed"),
            }));
        }
        let is_named: HashSet<&str> = options.remove.iter().map(String::as_str).collect();
        let in_memory = self.plan.device.is_in_memory();
        let goes = |name: &&str| in_memory || is_named.contains(name);
        Ok(reading.differences.missing.iter().map(String::as_str).partition(goes))
    }

    /// The changes that a reload would make, without making them.
    fn predict(
        &self,
        admin: &dyn Admin,
        reading: Arc<Reading>,
        options: &ReloadOptions,
    ) -> Result<Outcome, Refusal> {
        let (gone, staying) = self.missing(&reading, options)?;
        let gone = gone.iter().map(|name| {
            let note = format!(
                "tenant {name} would be removed: its clients are disconnected, and its range \
                 becomes free and is zeroed before another tenant gets it"
            );
            ((*name).to_owned(), note)
        });
        let come = reading.differences.come.iter().map(|(_, new)| new);
        let gaps = self.gaps(admin, come.clone());
        let come = come.enumerate().map(|(place, new)| {
            let gap = match &gaps {
                Ok(gaps) => Ok(gaps[place]),
                // Some of these tenants have no place; this finds out which.
                Err(_) => self.gaps(admin, std::iter::once(new)).map(|gaps| gaps[0]),
            };
            (new.name.clone(), self.predict_new(new, gap))
        });
        let notes = gone.chain(come).collect();
        let staying = staying.into_iter().map(str::to_owned).collect();
        let (done, made) = (Done::default(), Vec::new());
        Ok(Outcome { reading, staying, notes, done, made, is_dry_run: true })
    }

    /// The place of a new tenant of the file, or the reason against it, in words.
    fn predict_new(&self, new: &Tenant, gap: Result<Option<Range>, Refusal>) -> String {
        let name = &new.name;
        let record = self.layout.as_ref().map(|layout| layout.record());
        let place = match &new.path {
            Some(path) => Ok(format!("with the file {}", path.display())),
            None => gap.and_then(|gap| gap.ok_or_else(|| no_shared_file(new))).map(|range| {
                let what = match record.is_some_and(|record| record.find(name).is_some()) {
                    true => "its own range, with its data",
                    false => "a range that reads as zeroes",
                };
                format!("with {what}: {} at {}", exact_size(range.size), exact_size(range.offset))
            }),
        };
        match place {
            Ok(place) => format!("tenant {name} would be added {place}"),
            Err(error) => format!("tenant {name} would be refused: {error}"),
        }
    }

    /// Makes the changes that may be refused as a whole; after a refusal nothing has changed.
    /// Returns the changes of the layout record, which are in force.
    fn prepare_reload(
        &mut self,
        admin: &mut dyn Admin,
        reading: &Reading,
        options: &ReloadOptions,
    ) -> Result<Vec<Edit>, Refusal> {
        let Reading { contents, differences: Differences { come, .. }, .. } = reading;
        let (gone, _) = self.missing(reading, options)?;
        self.prepare_files(admin, come)?;
        // The record has the ranges of new tenants first. When it is in force, adding a tenant does
        // not wait for it.
        let claims = self.claims(admin, &gone, come.iter().map(|(_, tenant)| tenant));
        if let Some(layout) = &mut self.layout {
            layout.written(&claims, GivenUp::TakenBack)?;
        }
        if let Err(error) = self.make_policy(admin, contents.plan.policy.clone(), &contents.wanted)
        {
            self.layout.iter_mut().for_each(|layout| layout.give_up(&claims));
            return Err(Refusal::new(error));
        }
        self.layout.iter_mut().for_each(|layout| layout.commit(&claims));
        Ok(claims)
    }

    /// Makes the changes of a reload.
    fn apply(
        &mut self,
        admin: &mut dyn Admin,
        mut reading: Arc<Reading>,
        options: &ReloadOptions,
    ) -> Result<Outcome, Refusal> {
        let claims = self.prepare_reload(admin, &reading, options)?;
        // From here on nothing is refused as a whole. The reading drops its reference to the
        // configuration in force, so that the changes below do not copy it.
        self.reading.forget(READING);
        if let Some(reading) = Arc::get_mut(&mut reading) {
            reading.in_force = Arc::default();
        }
        let Reading { contents, differences: Differences { come, .. }, .. } = &*reading;
        let Contents { wanted, plan, tls, cgroups } = &**contents;
        let (mut done, mut warnings) = (Done::default(), Warnings::default());
        let (gone, staying) = self.missing(&reading, options)?;
        let staying = staying.into_iter().map(str::to_owned).collect();
        done.add("policy");
        admin.set_tls(tls.clone());
        self.cgroups = cgroups.clone();
        self.ambiguous = super::ambiguous(&plan.groups);
        // Groups are added before tenants move into them, and removed after tenants have left them.
        match self.put_groups(admin, &reading.groups, wanted) {
            Ok(()) => {
                reading.groups.iter().for_each(|group| done.add(format!("group.{}", group.name)));
            }
            Err(error) => warnings.add(&error),
        }
        // Tenants are removed first, so that their ranges and files are free for new tenants.
        for (name, result) in gone.iter().zip(self.remove_all(admin, &gone)) {
            match result {
                Ok(()) => done.add(format!("tenant.{name}")),
                Err(error) => warnings.add(&error),
            }
        }
        let mut notes = HashMap::new();
        for ((table, _), result) in come.iter().zip(self.add_tables(admin, come)) {
            match result {
                Ok(_) => done.add(format!("tenant.{}", table.name)),
                Err(error) => {
                    notes.insert(table.name.clone(), error.to_string());
                    if claims.iter().any(|edit| edit.is_claim_of(&table.name)) {
                        self.disown_later(&table.name);
                    }
                }
            }
        }
        self.warn_of_groups(come.iter().map(|(table, _)| table));
        let made = self.make_updates(admin, &reading.differences.updates, &mut warnings);
        self.drop_groups(admin, wanted).iter().for_each(|name| done.add(format!("group.{name}")));
        if self.move_listeners(admin, wanted) {
            done.add("listen");
        }
        self.take_default(admin, contents);
        done.add("default");
        warnings.end();
        Ok(Outcome { reading, staying, notes, done, made, is_dry_run: false })
    }

    /// Sets the server's default tenant to the file's.
    fn take_default(&mut self, admin: &mut dyn Admin, Contents { wanted, plan, .. }: &Contents) {
        // If the file names no default but has only one tenant, this tenant is the default only if
        // it was the default before. Otherwise clients that name no export would get another
        // tenant's export than before.
        let before = self.plan.default.as_ref();
        let default = plan.default.clone().filter(|default| {
            default.is_named || before.is_some_and(|before| before.name == default.name)
        });
        if default != self.plan.default {
            Arc::make_mut(&mut self.plan).default.clone_from(&default);
            if let Err(error) = admin.set_default(default.map(default_tenant)) {
                tracing::warn!("{error}");
            }
        }
        if self.settings.default_tenant != wanted.default_tenant {
            Arc::make_mut(&mut self.settings).default_tenant.clone_from(&wanted.default_tenant);
        }
    }

    /// Updates the tenants that stay, and stores their keys; returns whether each was updated.
    fn make_updates(
        &mut self,
        admin: &mut dyn Admin,
        updates: &Updates,
        warnings: &mut Warnings,
    ) -> Vec<bool> {
        let before = admin.tenants();
        let results = admin.update(&updates.settings);
        for ((name, settings), result) in updates.settings.iter().zip(&results) {
            let caps = before.find(name).map(|member| member.tenant.settings.caps);
            match result {
                Err(error) => warnings.add(error),
                Ok(()) if caps == Some(settings.caps) => {}
                Ok(()) => {
                    if let Some(text) = caps::warning(&settings.caps) {
                        warnings.add(&format!("tenant {name}: {text}"));
                    }
                }
            }
        }
        let made: Vec<bool> = results.iter().map(Result::is_ok).collect();
        let tables = updates.tables.iter().zip(&made).filter(|(_, made)| **made);
        self.write_tables(tables.map(|(table, _)| table.clone()));
        made
    }

    /// Listens at the addresses of `wanted`. True if the server now does.
    fn move_listeners(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> bool {
        // The default address is chosen only at the start.
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
        // New addresses are opened first, so that the server can always be reached.
        for at in self.settings.listen.iter().filter(|at| !wanted.listen.contains(at)) {
            if let Err(error) = admin.unlisten(&at.clone().into()) {
                tracing::warn!("{error}");
            }
        }
        // An address that failed is still a difference, so the next reload tries it again.
        if all && self.settings.listen != wanted.listen {
            Arc::make_mut(&mut self.settings).listen.clone_from(&wanted.listen);
        }
        all
    }
}

/// Logs changes, at most [`LINES_MAX`].
fn log_changes(changes: &[Change]) {
    for Change { key, from, to, done, note } in changes.iter().take(LINES_MAX) {
        let (from, to) =
            (from.as_deref().unwrap_or("(nothing)"), to.as_deref().unwrap_or("(nothing)"));
        if let Some(note) = note.as_ref().filter(|_| !*done) {
            tracing::warn!(key, from, to, "not changed: {note}");
        } else if *done {
            tracing::info!(key, from, to, "changed");
        } else {
            tracing::warn!(key, from, to, "not changed: this needs a restart");
        }
    }
    let rest = changes.get(LINES_MAX..).unwrap_or_default();
    if !rest.is_empty() {
        let not_done = rest.iter().filter(|change| !change.done).count();
        tracing::info!(more = rest.len(), not_done, "further changes: config reload prints all");
    }
    tracing::info!(changes = changes.len(), "read the configuration again");
}
