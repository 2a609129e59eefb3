//! The layout record of the file that tenants share, while a server has it.
//!
//! The record is on stable storage before anybody may rely on it: before a tenant can be opened
//! in a range, and before a change of names or sizes is answered. A thread writes it, since a
//! device may hang; a change waits for [`PATIENCE`], and is refused and taken back after that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fairq_config::device::SECTOR;
use fairq_config::layout::pool::Pool;
use fairq_config::layout::record::{Held, LayoutError, Record};
use fairq_config::refusal::Refusal;
use fairq_config::tenant::{Range, Tenant, TenantTable};
use fairq_config::units::{Size, exact_size};
use fairq_host::server::{self, Admin};
use serde_json::{Value, json};
use toml::Spanned;

use super::Console;
use super::rpc::Fault;

/// How long a change waits for the record to be on storage.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the thread is to do.
enum Job {
    Save(Record),
    /// The pool's file has this size.
    Fit(u64),
}

/// The record as it is in force, and the thread that writes it.
pub(super) struct Keeper {
    path: Arc<str>,
    record: Arc<Record>,
    jobs: Sender<Job>,
    done: Receiver<Result<Record, String>>,
    /// Jobs whose end has not been taken.
    under_way: usize,
    /// The size of the pool's file when its growth was last looked for.
    seen: u64,
    /// The last failure that is in the log.
    failure: Option<String>,
}

impl Keeper {
    pub(super) fn new(mut pool: Pool) -> std::io::Result<Keeper> {
        let path = pool.path().display().to_string().into();
        let record = Arc::new(pool.record().clone());
        let (jobs, work) = channel::<Job>();
        let (report, done) = channel();
        let write = move || {
            for job in work {
                let result = match job {
                    Job::Save(record) => pool.save(&record).map_err(|error| error.to_string()),
                    Job::Fit(size) => pool.fit(size).map(drop).map_err(|error| error.to_string()),
                };
                if report.send(result.map(|()| pool.record().clone())).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("fairq-layout".into()).spawn(write)?;
        Ok(Keeper { path, record, jobs, done, under_way: 0, seen: 0, failure: None })
    }

    /// The pool's path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The record in force.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// Changes the record; it is on storage when this gives `Ok`, and as it was otherwise.
    pub(super) fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Record) -> Result<T, LayoutError>,
    ) -> Result<T, Refusal> {
        let mut next = Record::clone(&self.record);
        let value =
            change(&mut next).map_err(|error| Refusal::new(format!("{}: {error}", self.path)))?;
        if next != *self.record {
            self.work(Job::Save(next))?;
        }
        Ok(value)
    }

    /// Writes to the log that a change which is tried again and again has failed, once.
    fn note_failure(&mut self, error: &Refusal) {
        let text = error.to_string();
        if self.failure.as_ref() != Some(&text) {
            tracing::error!("{text}");
            self.failure = Some(text);
        }
    }

    /// The pool's file has this size now.
    fn fit(&mut self, size: u64) -> Result<(), Refusal> {
        self.work(Job::Fit(size))
    }

    fn work(&mut self, job: Job) -> Result<(), Refusal> {
        let refused = |what: &str| {
            Refusal::new(format!(
                "{}: the layout record cannot be written: {what}; nothing has changed",
                self.path
            ))
        };
        while self.under_way > 0 {
            match self.done.try_recv() {
                Ok(_) => self.under_way -= 1,
                Err(_) => return Err(refused("the last change is still being written")),
            }
        }
        if self.jobs.send(job).is_err() {
            return Err(refused("its thread has ended"));
        }
        self.under_way += 1;
        match self.done.recv_timeout(PATIENCE) {
            Ok(result) => {
                self.under_way -= 1;
                match result {
                    Ok(record) => self.record = Arc::new(record),
                    Err(error) => return Err(refused(&error)),
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                // What is under way is taken back by what comes after it.
                if self.jobs.send(Job::Save(Record::clone(&self.record))).is_ok() {
                    self.under_way += 1;
                }
                Err(refused("the device does not answer"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(refused("its thread has ended")),
        }
    }

    /// The record in force, as it is shown.
    pub(super) fn shown(&self) -> Shown {
        Shown { path: self.path.clone(), record: self.record.clone() }
    }
}

/// A record as `status` shows it.
pub(super) struct Shown {
    path: Arc<str>,
    record: Arc<Record>,
}

impl Shown {
    /// For `status`; ranges of names that are not served are reserved.
    pub(super) fn json(&self, is_served: impl Fn(&str) -> bool) -> Value {
        let reserved = self.record.ranges().iter().filter(|held| !is_served(&held.name));
        let range =
            |held: &Held| json!({ "name": held.name, "offset": held.offset, "size": held.size });
        json!({
            "path": &*self.path,
            "id": self.record.id,
            "size": self.record.size,
            "reserved": reserved.map(range).collect::<Vec<_>>(),
        })
    }
}

impl Console {
    /// Takes a range into the record for a new tenant, or finds there that the tenant has it. True
    /// if the range is to be zeroed before the tenant can be opened.
    pub(super) fn claim(&mut self, new: &Tenant, range: &Range) -> Result<bool, Refusal> {
        let Some(layout) = &mut self.layout else { return Ok(!new.keep_data) };
        layout.change(|record| {
            if record.find(&new.name).is_none() {
                record.claim(&new.name, range.offset, range.size, new.keep_data)?;
            }
            Ok(record.find(&new.name).is_none_or(|held| !held.zeroed))
        })
    }

    /// Frees the range of a tenant that is served no more.
    pub(super) fn disown(&mut self, name: &str) -> Result<(), Refusal> {
        let Some(layout) = &mut self.layout else { return Ok(()) };
        layout.change(|record| match record.free(name) {
            Ok(_) | Err(LayoutError::Unknown(_)) => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Whether the range of a tenant needs no zeroing, by the record.
    pub(super) fn is_ready(&self, name: &str) -> bool {
        let held = self.layout.as_ref().and_then(|layout| layout.record().find(name));
        held.is_some_and(|held| held.zeroed)
    }

    /// A tenant's range has been zeroed: nobody may open it before the record says so, or another
    /// start would zero what its clients have written. False if that cannot be written down now.
    pub(super) fn note_zeroed(&mut self, tenant: &server::Tenant) -> bool {
        let is_own = self.own.values().any(|own| own.0 == tenant.file);
        if let Some(layout) = self.layout.as_mut().filter(|_| !is_own) {
            let noted = layout.change(|record| {
                record.resize(&tenant.name, tenant.size)?;
                record.set_zeroed(&tenant.name)
            });
            if let Err(error) = &noted {
                layout.note_failure(error);
                return false;
            }
        }
        let size = Some(Size(tenant.size));
        let is_other = |table: &Spanned<TenantTable>| {
            let TenantTable { name, size: before, .. } = table.get_ref();
            *name == tenant.name && before.is_some() && *before != size
        };
        if let Some(place) = self.settings.tenant.iter().position(is_other) {
            Arc::make_mut(&mut self.settings).tenant[place].get_mut().size = size;
        }
        true
    }

    /// The record with the sizes that tenants are about to have.
    pub(super) fn planned(&self, admin: &dyn Admin) -> Option<Record> {
        let mut record = Record::clone(self.layout.as_ref()?.record());
        for member in admin.tenants().members() {
            let to = member.resizing.as_ref().map_or(0, |resizing| resizing.to);
            if to > member.tenant.size {
                // What was found to be free for it is nobody's.
                let _ = record.resize(&member.tenant.name, to);
            }
        }
        Some(record)
    }

    /// Gives a tenant's range another end.
    pub(super) fn resize(
        &mut self,
        admin: &mut dyn Admin,
        name: &str,
        Size(size): Size,
        discard: bool,
    ) -> Result<Value, Fault> {
        if size == 0 || size % SECTOR != 0 {
            return Err(Fault::params(format!("a size is a multiple of {SECTOR} above 0")));
        }
        let tenants = admin.tenants();
        let no_tenant = || Fault::refused(format!("there is no tenant {name}"));
        let server::Tenant { file, base, size: before, .. } =
            tenants.find(name).ok_or_else(no_tenant)?.tenant;
        if size < before && !discard {
            let (now, to) = (exact_size(before), exact_size(size));
            return Err(Fault::refused(format!(
                "{name} has {now}, and what is behind {to} would be lost: add --discard if it may \
                 be"
            )));
        }
        let is_own = self.own.values().any(|own| own.0 == file);
        let no_room = |most: u64, why: &str| {
            let most = exact_size(most);
            Fault::refused(format!("{name} can have at most {most}: {why}"))
        };
        let wipe = if is_own {
            let most = admin.size_of(file).unwrap_or(before) / SECTOR * SECTOR;
            if size > most {
                return Err(no_room(most, "its file ends there; make the file larger first"));
            }
            false
        } else if let Some(mut record) = self.planned(admin) {
            let is_fresh = base + before >= record.fresh;
            record.resize(name, size).map_err(Fault::refused)?;
            !is_fresh
        } else {
            let behind = tenants.members().iter().filter(|one| one.tenant.base > base);
            let end = behind.map(|one| one.tenant.base).min().unwrap_or(self.shared);
            if base + size > end {
                return Err(no_room(end - base, "that is where its range can end"));
            }
            true
        };
        admin.resize(name, size, wipe).map_err(Fault::refused)?;
        Ok(json!({ "tenant": name, "from": before, "to": size }))
    }

    /// Finds out whether the file that is shared has grown.
    pub(super) fn look_for_growth(&mut self, admin: &dyn Admin) {
        let (Some(layout), Some(size)) = (&mut self.layout, admin.size_of(0)) else { return };
        if size == layout.seen {
            return;
        }
        let before = layout.record().size;
        match layout.fit(size) {
            Ok(()) => {
                layout.seen = size;
                let now = layout.record().size;
                if now > before {
                    let (pool, from, to) = (layout.path(), before, now);
                    tracing::info!(pool, from, to, "the pool has grown: the new space is free");
                }
            }
            // The next second tries again.
            Err(error) => layout.note_failure(&error),
        }
    }

    /// Gives a tenant another name; its clients, its range and all that it has stay.
    pub(super) fn rename(
        &mut self,
        admin: &mut dyn Admin,
        tenant: &str,
        name: &str,
    ) -> Result<Value, Fault> {
        fairq_config::name::check_name(name).map_err(Fault::params)?;
        let tenants = admin.tenants();
        let member = tenants
            .find(tenant)
            .ok_or_else(|| Fault::refused(format!("there is no tenant {tenant}")))?;
        if tenants.find(name).is_some() {
            return Err(Fault::refused(format!("there is a tenant {name} already")));
        }
        let is_own = self.own.values().any(|own| own.0 == member.tenant.file);
        if let Some(layout) = self.layout.as_mut().filter(|_| !is_own) {
            layout.change(|record| record.rename(tenant, name))?;
        }
        admin.rename(tenant, name).map_err(Fault::refused)?;
        let settings = Arc::make_mut(&mut self.settings);
        let tables = settings.tenant.iter_mut().map(Spanned::get_mut);
        tables.filter(|table| table.name == tenant).for_each(|table| table.name = name.to_owned());
        if settings.default_tenant.as_deref() == Some(tenant) {
            settings.default_tenant = Some(name.to_owned());
        }
        if self.plan.default.as_ref().is_some_and(|default| default.name == tenant)
            && let Some(default) = &mut Arc::make_mut(&mut self.plan).default
        {
            default.name = name.to_owned();
        }
        Ok(json!({ "from": tenant, "to": name }))
    }

    /// A tenant's table as it is in force, for a configuration file.
    pub(super) fn table_text(&self, name: &str) -> String {
        let tables = self.settings.tenant.iter().map(Spanned::get_ref);
        let tenant: Vec<_> = tables.filter(|table| table.name == name).collect();
        toml::to_string(&BTreeMap::from([("tenant", tenant)])).unwrap_or_default()
    }
}
