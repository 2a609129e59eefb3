//! A server's changes of the layout record of the file that tenants share: claims, frees, renames
//! and resizes of ranges.
//!
//! The record is on stable storage before anything relies on it: before a tenant can be opened in a
//! range, and before a change of names or sizes is answered. [`super::keeper`] writes it, and the
//! control thread does not wait for the write.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use fairq_config::device::SECTOR;
use fairq_config::layout::place::place;
use fairq_config::layout::record::Record;
use fairq_config::refusal::Refusal;
use fairq_config::tenant::{Range, Tenant, TenantTable};
use fairq_config::units::{Size, exact_size};
use fairq_host::server::{self, Admin};
use serde_json::{Value, json};
use toml::Spanned;

use super::Console;
use super::keeper::{Edit, GivenUp};
use super::rpc::Fault;

impl Console {
    /// Takes a range into the record for a new tenant, or finds the tenant's range there. True if
    /// the range is to be zeroed before the tenant can be opened.
    pub(super) fn claim(&mut self, new: &Tenant, range: &Range) -> Result<bool, Refusal> {
        let Some(layout) = &mut self.layout else { return Ok(!new.keep_data) };
        if layout.is_freeing(&new.name) {
            let text = format!("{}: the range of {} is being freed", layout.path(), new.name);
            return Err(Refusal::temporary(text));
        }
        // A reload has taken all ranges into the record at once.
        if layout.record().find(&new.name).is_none() {
            layout.change(&[claim(new, range)], GivenUp::TakenBack)?;
        }
        Ok(layout.record().find(&new.name).is_none_or(|held| !held.zeroed))
    }

    /// The changes of the record for a reload that removes and adds these tenants. A tenant for
    /// which there is no range is left out here; adding it reports the error.
    pub(super) fn claims<'a>(
        &self,
        admin: &dyn Admin,
        gone: &[&str],
        come: impl Iterator<Item = &'a Tenant>,
    ) -> Vec<Edit> {
        let come: Vec<&Tenant> = come.filter(|new| new.path.is_none()).collect();
        let Some(layout) = &self.layout else { return Vec::new() };
        if gone.is_empty() && come.is_empty() {
            return Vec::new();
        }
        let (mut record, tenants) = (Record::clone(layout.record()), admin.tenants());
        reserve_growth(&mut record, &tenants);
        let mut edits = Vec::new();
        for name in gone.iter().filter(|name| layout.record().find(name).is_some()) {
            let _ = record.free(name);
            edits.push(Edit::Free((*name).to_owned()));
        }
        let gone: HashSet<&str> = gone.iter().copied().collect();
        let served = tenants.members().map(|member| &*member.tenant.name);
        let served: Vec<&str> = served.filter(|name| !gone.contains(name)).collect();
        let new: Vec<Tenant> =
            come.into_iter().filter(|new| record.find(&new.name).is_none()).cloned().collect();
        let mut take = |new: &[Tenant]| {
            let placed = place(layout.path(), new, &record, &[], &served).ok()?;
            edits.extend(new.iter().zip(&placed.ranges).map(|(new, range)| claim(new, range)));
            record = placed.record;
            Some(())
        };
        if take(&new).is_none() {
            for one in &new {
                take(std::slice::from_ref(one));
            }
        }
        edits
    }

    /// Frees the range of a tenant that is no longer served. Unfinished while the record is
    /// written.
    pub(super) fn disown(&mut self, name: &str) -> Result<(), Refusal> {
        let Some(layout) = &mut self.layout else { return Ok(()) };
        layout.change(&[Edit::Free(name.to_owned())], GivenUp::Stands)
    }

    /// Like [`disown`](Self::disown), for callers that do not wait.
    pub(super) fn disown_later(&mut self, name: &str) {
        if let Some(layout) = &mut self.layout {
            layout.queue(Edit::Free(name.to_owned()));
        }
    }

    /// Whether the record has the tenant's range as zeroed.
    pub(super) fn is_ready(&self, name: &str) -> bool {
        let held = self.layout.as_ref().and_then(|layout| layout.record().find(name));
        held.is_some_and(|held| held.zeroed)
    }

    /// Notes that a tenant's range has been zeroed. The tenant can be opened only when the record
    /// has this, because the server's next start would otherwise zero the range, which has the data
    /// of its clients. False if the record is not written yet.
    pub(super) fn note_zeroed(&mut self, tenant: &server::Tenant) -> bool {
        let is_own = self.own.values().any(|own| own.0 == tenant.file);
        if let Some(layout) = self.layout.as_mut().filter(|_| !is_own)
            && !layout.note_zeroed(&tenant.name, tenant.size)
        {
            return false;
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

    /// The record with the ranges and the sizes that tenants will have after the changes under way.
    pub(super) fn planned(&self, admin: &dyn Admin) -> Option<Record> {
        let mut record = self.layout.as_ref()?.with_claims();
        reserve_growth(&mut record, &admin.tenants());
        Some(record)
    }

    /// Moves the end of a tenant's range.
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
                "{name} has {now}, and the data behind {to} would be lost: add --discard to allow \
                 this"
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
            let behind = tenants.members().filter(|one| one.tenant.base > base);
            let end = behind.map(|one| one.tenant.base).min().unwrap_or(self.shared);
            if base + size > end {
                return Err(no_room(end - base, "its range cannot grow beyond that"));
            }
            true
        };
        admin.resize(name, size, wipe).map_err(Fault::refused)?;
        Ok(json!({ "tenant": name, "from": before, "to": size }))
    }

    /// Checks whether the shared file has grown.
    pub(super) fn check_growth(&mut self, admin: &dyn Admin) {
        if let (Some(layout), Some(size)) = (&mut self.layout, admin.size_of(0)) {
            layout.fit(size);
        }
    }

    /// Renames a tenant; its clients, its range and its settings stay.
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
            let (from, to) = (tenant.to_owned(), name.to_owned());
            layout.change(&[Edit::Rename { from, to }], GivenUp::TakenBack)?;
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

    /// A tenant's table in force, for a configuration file.
    pub(super) fn table_text(&self, name: &str) -> String {
        let tables = self.settings.tenant.iter().map(Spanned::get_ref);
        let tenant: Vec<_> = tables.filter(|table| table.name == name).collect();
        toml::to_string(&BTreeMap::from([("tenant", tenant)])).unwrap_or_default()
    }
}

/// The range of a new tenant, for the record.
fn claim(new: &Tenant, range: &Range) -> Edit {
    let (name, zeroed) = (new.name.clone(), new.keep_data);
    Edit::Claim { name, offset: range.offset, size: range.size, zeroed }
}

/// Gives growing tenants their new sizes.
fn reserve_growth(record: &mut Record, tenants: &server::TenantList) {
    for member in tenants.members() {
        let to = member.resizing.as_ref().map_or(0, |resizing| resizing.to);
        if to > member.tenant.size {
            // The range was found to be free, so the resize does not fail.
            let _ = record.resize(&member.tenant.name, to);
        }
    }
}
