//! The configuration file is read again: what has changed in it is changed in the server.

use std::time::Instant;

use fairq_config::caps::{KEYS, Written};
use fairq_config::group;
use fairq_config::refusal::Refusal;
use fairq_config::settings::{self, Settings};
use fairq_config::tenant::TenantTable;
use fairq_config::units::{Size, exact_size};
use fairq_config::weight::WeightSource;
use fairq_host::server::{self, Admin};
use toml::Spanned;

use super::Console;
use super::changes::{self, Change};
use super::groups::Place;
use super::latency;
use super::methods::by_name;
use crate::parts::{default_tenant, tls_mode};

/// What a reload may do beyond what the file says.
#[derive(Default)]
pub(super) struct Asked {
    /// Tenants that are to be removed, since the file has them no more.
    pub(super) remove: Vec<String>,
    /// Nothing is changed.
    pub(super) dry_run: bool,
}

impl Console {
    /// The same, and it is in the log, whoever asked.
    pub(super) fn reload_told(
        &mut self,
        admin: &mut dyn Admin,
        asked: &Asked,
    ) -> Result<Vec<Change>, Refusal> {
        if asked.dry_run {
            return self.foretell(admin, asked);
        }
        let result = self.reload_file(admin, asked);
        self.forget_look();
        match &result {
            Ok(changes) => {
                for Change { key, from, to, done, note } in changes {
                    let (from, to) = (
                        from.as_deref().unwrap_or("(nothing)"),
                        to.as_deref().unwrap_or("(nothing)"),
                    );
                    if let Some(note) = note.as_ref().filter(|_| !*done) {
                        tracing::warn!(key, from, to, "not changed: {note}");
                    } else if *done {
                        tracing::info!(key, from, to, "changed");
                    } else {
                        tracing::warn!(key, from, to, "not changed: this needs a restart");
                    }
                }
                tracing::info!(changes = changes.len(), "read the configuration again");
            }
            // Each try of a slow file comes here: only the last one is an error to tell.
            Err(error) if error.is_temporary() => tracing::debug!("not reloaded yet: {error}"),
            Err(error) => tracing::error!("cannot reload, nothing has changed: {error}"),
        }
        result
    }

    /// Does what SIGHUP asks for, again each second while a file system takes its time.
    pub(super) fn reload_asked(&mut self, admin: &mut dyn Admin, asked: Instant) {
        self.reload_due = match self.reload_told(admin, &Asked::default()) {
            Err(error) if error.is_temporary() && asked.elapsed() < self.plan.timeouts.range => {
                Some(asked)
            }
            Err(error) if error.is_temporary() => {
                tracing::error!("cannot reload, nothing has changed: {error}");
                None
            }
            _ => None,
        };
    }

    /// The file as it is now, with the flags.
    fn wanted(&self) -> Result<Settings, Refusal> {
        let Some(path) = &self.given.file else {
            return Err(Refusal::new(
                "there is no file to read again: the server was started without --config",
            ));
        };
        Ok(settings::load(path)?.overlaid(self.given.flags.clone()).with_tenants())
    }

    /// The tenants that the file does not name: those that are to be removed, and those that stay,
    /// since they have data and nobody has said that they are to go.
    fn missing(
        &self,
        wanted: &Settings,
        asked: &Asked,
    ) -> Result<(Vec<String>, Vec<String>), Refusal> {
        let (old, new) = (by_name(&self.settings), by_name(wanted));
        for name in &asked.remove {
            if new.contains_key(&**name) {
                return Err(Refusal::new(format!(
                    "tenant {name} is in the file: take its table out, or do not have it removed"
                )));
            }
            if !old.contains_key(&**name) {
                return Err(Refusal::new(format!("there is no tenant {name} to be removed")));
            }
        }
        let missing = old.keys().filter(|name| !new.contains_key(*name));
        let goes = |name: &String| asked.remove.contains(name) || self.plan.device.is_in_memory();
        Ok(missing.map(|name| (*name).to_owned()).partition(goes))
    }

    /// Makes one difference of all keys of a tenant that stays although the file does not name it.
    fn note_staying(differ: &mut Vec<Change>, staying: &[String], come: &[TenantTable]) {
        for name in staying {
            let key = format!("tenant.{name}");
            let within = |change: &Change| {
                change.key.strip_prefix(&*key).is_some_and(|rest| rest.starts_with('.'))
            };
            differ.retain(|change| !within(change) || change.key == format!("{key}.name"));
            let renamed = match come {
                [only] => format!(
                    "; if {} is {name} under another name, run fairq ctl rename {name} {0} instead",
                    only.name
                ),
                _ => String::new(),
            };
            for change in differ.iter_mut().filter(|change| within(change)) {
                change.note = Some(format!(
                    "tenant {name} is not in the file, and stays with its data and clients: write \
                     its table into the file (fairq ctl config dump shows it), or remove it by \
                     fairq ctl config reload --remove {name}{renamed}"
                ));
            }
        }
    }

    /// Notes how a tenant's size is changed, which a reload does not do.
    fn note_sizes(&self, differ: &mut [Change]) {
        for change in differ {
            let name = change.key.strip_prefix("tenant.").and_then(|key| key.strip_suffix(".size"));
            if let (Some(name), Some(to), Some(_)) = (name, &change.to, &change.from) {
                change.note = Some(format!("run fairq ctl resize {name} {to}"));
            }
        }
    }

    /// What a reload would do, and nothing is done.
    fn foretell(&mut self, admin: &mut dyn Admin, asked: &Asked) -> Result<Vec<Change>, Refusal> {
        let wanted = self.wanted()?;
        wanted.plan(&self.given.surroundings)?;
        let (gone, staying) = self.missing(&wanted, asked)?;
        let mut differ = changes::between(&self.comparable(admin, &wanted), &wanted);
        let old = by_name(&self.settings);
        let tables = wanted.tenant.iter().map(Spanned::get_ref);
        let come: Vec<TenantTable> =
            tables.filter(|table| !old.contains_key(&*table.name)).cloned().collect();
        Self::note_staying(&mut differ, &staying, &come);
        self.note_sizes(&mut differ);
        let mut whole = |name: &str, note: String| {
            let key = format!("tenant.{name}.");
            differ.retain(|change| {
                !change.key.starts_with(&key) || change.key == format!("{key}name")
            });
            differ.iter_mut().filter(|change| change.key.starts_with(&key)).for_each(|change| {
                change.note = Some(note.clone());
            });
        };
        for name in &gone {
            whole(
                name,
                format!(
                    "tenant {name} would be removed: its clients are disconnected, and its range \
                     is free for others, who find it zeroed"
                ),
            );
        }
        for table in &come {
            whole(&table.name, self.foretell_new(admin, table, &wanted));
        }
        Ok(differ)
    }

    /// What would become of a tenant that is new in the file.
    fn foretell_new(&self, admin: &dyn Admin, table: &TenantTable, wanted: &Settings) -> String {
        let groups = wanted.known_groups().unwrap_or_default();
        let name = &table.name;
        let place = table.clone().complete(&self.plan.cgroup_root, &groups).and_then(|new| {
            match &new.path {
                Some(path) => Ok(format!("with the file {}", path.display())),
                None => self.gap(admin, &new).map(|range| {
                    let what = if self
                        .layout
                        .as_ref()
                        .is_some_and(|layout| layout.record().find(name).is_some())
                    {
                        "its own range, with its data"
                    } else {
                        "a range that reads as zeroes"
                    };
                    format!(
                        "with {what}: {} at {}",
                        exact_size(range.size),
                        exact_size(range.offset)
                    )
                }),
            }
        });
        match place {
            Ok(place) => format!("tenant {name} would be added {place}"),
            Err(error) => format!("tenant {name} would be refused: {error}"),
        }
    }

    /// Reads the file again and makes the server so, as far as that can be done while it runs.
    fn reload_file(
        &mut self,
        admin: &mut dyn Admin,
        asked: &Asked,
    ) -> Result<Vec<Change>, Refusal> {
        let wanted = self.wanted()?;
        let plan = wanted.plan(&self.given.surroundings)?;
        let (gone, staying) = self.missing(&wanted, asked)?;
        let in_force = self.comparable(admin, &wanted);
        let mut differ = changes::between(&in_force, &wanted);
        let tables = || wanted.tenant.iter().map(Spanned::get_ref);
        let old = by_name(&self.settings);
        let groups = plan.groups.clone();
        let old_groups = self.settings.known_groups()?;
        let users = |table: &TenantTable, groups: &[group::Group]| {
            group::split(table.group.as_ref(), groups).map(|(_, users)| users)
        };
        let mut moved: Vec<(String, Place, bool)> = Vec::new();
        for table in tables() {
            let Some(old) = old.get(&*table.name) else { continue };
            if old.reservation() == table.reservation() && old.group == table.group {
                continue;
            }
            let group = table.group_of(&groups).map_err(Refusal::new)?;
            let reservation = table.reservation();
            moved.push((
                table.name.clone(),
                Place { group, reservation },
                users(old, &old_groups) == users(table, &groups),
            ));
        }
        let come: Vec<TenantTable> =
            tables().filter(|table| !old.contains_key(&*table.name)).cloned().collect();
        Self::note_staying(&mut differ, &staying, &come);
        self.note_sizes(&mut differ);
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
        // What may be refused as a whole comes first: then nothing has changed. The files of TLS
        // are read again; other files, or another mode, need a restart, as identities do.
        let tls = tls_mode(self.plan.tls.as_ref())?;
        self.prepare_files(admin, &wanted)?;
        self.make_policy(admin, plan.policy, &wanted).map_err(Refusal::new)?;
        admin.set_tls(tls);
        // Groups are there before tenants come or move into them, and go when tenants have left.
        let changed = self.put_groups(admin, &wanted).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
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
        changed.iter().for_each(|name| done(&format!("group.{name}")));
        // Those that go come first: their ranges and files are free for those that come.
        for name in gone {
            match self.remove(admin, &name, false) {
                Ok(_) => done(&format!("tenant.{name}")),
                Err(fault) => tracing::warn!("{}", fault.message()),
            }
        }
        let mut failed = Vec::new();
        for table in come {
            let name = table.name.clone();
            match self.add_table(admin, table) {
                Ok(_) => done(&format!("tenant.{name}")),
                Err(error) => failed.push((format!("tenant.{name}.name"), error.to_string())),
            }
        }
        for (name, source) in reweighted {
            match self.weight(admin, &name, source) {
                Ok(_) => done(&format!("tenant.{name}.weight")),
                Err(fault) => tracing::warn!("{}", fault.message()),
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
        for (name, place, same_users) in moved {
            match self.set_place(admin, &name, &place) {
                Ok(_) => {
                    // The key names users as well, and a running server does not change these: a
                    // restart does.
                    let group = same_users.then_some("group");
                    let keys = group::KEYS.into_iter().chain(group);
                    keys.for_each(|key| done(&format!("tenant.{name}.{key}")));
                }
                Err(fault) => tracing::warn!("{}", fault.message()),
            }
        }
        if let Err(fault) = self.settle(admin, &groups, None) {
            tracing::warn!("{}", fault.message());
        }
        self.drop_groups(admin, &wanted).iter().for_each(|name| done(&format!("group.{name}")));
        for (name, said) in recapped {
            match self.set_caps(admin, &name, &said) {
                Ok(_) => KEYS.iter().for_each(|key| done(&format!("tenant.{name}.{key}"))),
                Err(fault) => tracing::warn!("{}", fault.message()),
            }
        }
        if self.move_listeners(admin, &wanted) {
            done("listen");
        }
        // The only tenant of a new file is not the default of clients that had another one's.
        let before = self.plan.default.take();
        self.plan.default = plan.default.filter(|default| {
            default.is_named || before.is_some_and(|before| before.name == default.name)
        });
        if let Err(error) = admin.set_default(self.plan.default.clone().map(default_tenant)) {
            tracing::warn!("{error}");
        }
        self.settings.default_tenant.clone_from(&wanted.default_tenant);
        done("default");
        for (key, error) in failed {
            differ.iter_mut().filter(|change| change.key == key).for_each(|change| {
                change.note = Some(error.clone());
            });
        }
        Ok(differ)
    }

    /// The configuration in force, with places of tenants only where `wanted` names them: where
    /// nothing is said, any place will do, and the one that a tenant has is as good as another.
    fn comparable(&self, admin: &dyn Admin, wanted: &Settings) -> Settings {
        let (mut in_force, tenants) = (self.settings.clone(), admin.tenants());
        let wanted = by_name(wanted);
        for table in &mut in_force.tenant {
            let table = table.get_mut();
            if let Some(said) = wanted.get(&*table.name) {
                let now = tenants.find(&table.name).filter(|_| table.path.is_none());
                let (offset, size) =
                    now.map(|now| (Size(now.tenant.base), Size(now.tenant.size))).unzip();
                table.offset = table.offset.or(offset).filter(|_| said.offset.is_some());
                table.size = table.size.or(size).filter(|_| said.size.is_some());
            }
        }
        in_force
    }

    /// Listens where `wanted` says. True if that holds now.
    fn move_listeners(&mut self, admin: &mut dyn Admin, wanted: &Settings) -> bool {
        // The default address is chosen at the start, and only there.
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
        // New addresses are there first: the server can be reached all along.
        for at in self.settings.listen.iter().filter(|at| !wanted.listen.contains(at)) {
            if let Err(error) = admin.unlisten(&at.clone().into()) {
                tracing::warn!("{error}");
            }
        }
        // What could not be listened on is still a difference, so the next reload tries it again.
        if all {
            self.settings.listen.clone_from(&wanted.listen);
        }
        all
    }
}
