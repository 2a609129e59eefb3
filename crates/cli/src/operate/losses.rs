//! The tenants whose written data may be lost, on storage.
//!
//! **Problem.** The kernel reports a failed write-back once. A server that has taken the report and
//! is killed leaves its successor no error: a flush would succeed although data are lost.
//! **Model.** A *location* is a pool, by its record's identifier, or a tenant's own file. For each
//! location with such tenants, a file in the state directory has their names and errors. The file
//! is written within about a second, by a thread, and replaces the one before in one step. A server
//! that starts reads the files of its locations, and these tenants' flushes fail until
//! `fairq ctl clear-error`. A name leaves its file when the operator clears the error, and when its
//! range is free.
//!
//! **Bounds.** An error that the server takes less than a second before it is killed may be lost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use fairq_config::layout::pool::{named_by, state_directory};
use fairq_host::server::{Admin, Member, Status, TenantList};

use super::Console;

/// Errors by tenant, by location.
type Losses = BTreeMap<String, BTreeMap<String, i32>>;

/// The losses on storage.
#[derive(Default)]
pub(super) struct Keeper {
    written: Losses,
    /// The losses that a thread writes.
    writing: Option<(Losses, Receiver<io::Result<()>>)>,
    /// The last write has failed.
    has_failed: bool,
}

impl Keeper {
    /// Starts to write `losses`, unless they are on storage already. If an earlier write is not
    /// finished, this call does nothing: the next call, a second later, tries again.
    fn put(&mut self, losses: Losses) {
        if let Some((wanted, thread)) = &self.writing {
            match thread.try_recv() {
                Err(TryRecvError::Empty) => return,
                Ok(Ok(())) => (self.written, self.has_failed) = (wanted.clone(), false),
                Ok(Err(error)) => self.note_failure(&error),
                Err(TryRecvError::Disconnected) => {
                    self.note_failure(&io::Error::other("the thread that writes it has ended"));
                }
            }
            self.writing = None;
        }
        if losses == self.written {
            return;
        }
        let (sender, thread) = channel();
        let (old, new) = (self.written.clone(), losses.clone());
        // The receiver is gone when the server ends.
        let run = move || drop(sender.send(write(&state_directory(), &old, &new)));
        match std::thread::Builder::new().name("fairq-losses".into()).spawn(run) {
            Ok(_) => self.writing = Some((losses, thread)),
            Err(error) => self.note_failure(&error),
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(
                %error,
                folder = %state_directory().display(),
                "cannot record the tenants whose data may be lost: if the server is killed, the \
                 next server's flushes succeed although data are lost; make the folder writable \
                 for the server's user"
            );
        }
    }
}

/// The file of a location.
fn file(folder: &Path, location: &str) -> PathBuf {
    folder.join(format!("{}.losses", named_by(location)))
}

/// Brings the files of the locations that differ up to date.
fn write(folder: &Path, old: &Losses, new: &Losses) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let locations = old.keys().chain(new.keys());
    for location in locations.filter(|location| old.get(*location) != new.get(*location)) {
        let path = file(folder, location);
        let Some(tenants) = new.get(location) else {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => continue,
            }
        };
        let part = path.with_extension("part");
        let mut out = File::create(&part)?;
        out.write_all(&serde_json::to_vec(tenants)?)?;
        out.sync_all()?;
        std::fs::rename(&part, &path)?;
    }
    File::open(folder)?.sync_all()
}

/// The tenants of a location whose data may be lost. A file that cannot be read is reported.
fn read(folder: &Path, location: &str) -> Option<BTreeMap<String, i32>> {
    let path = file(folder, location);
    let tenants = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
    };
    let report = |error: &io::Error| {
        tracing::error!(
            path = %path.display(),
            %error,
            "cannot read the list of tenants of {location} that may have lost data: check the data \
             of all its tenants, then remove the file"
        );
    };
    tenants.inspect_err(report).ok()
}

/// Gives a tenant of a pool, whose server does not run, its new name in the losses; `None` for a
/// tenant whose range is free.
pub(crate) fn rename(pool: &str, old: &str, new: Option<&str>) -> io::Result<()> {
    let (folder, location) = (state_directory(), format!("pool {pool}"));
    let Some(before) = read(&folder, &location) else { return Ok(()) };
    let mut after = before.clone();
    let Some(errno) = after.remove(old) else { return Ok(()) };
    if let Some(new) = new {
        after.insert(new.to_owned(), errno);
    }
    let all = |tenants: BTreeMap<_, _>| match tenants.is_empty() {
        true => Losses::new(),
        false => Losses::from([(location.clone(), tenants)]),
    };
    write(&folder, &all(before), &all(after))
}

impl Console {
    /// The location of a tenant's data; `None` in memory. This function reads no
    /// file, because the tenant's file system may have failed and hang.
    fn location(&self, member: &Member) -> Option<String> {
        let own = self.own.iter().find(|(_, (file, _))| *file == member.tenant.file);
        match own {
            Some((path, _)) => Some(format!("file {}", path.display())),
            None => self.layout.as_ref().map(|layout| format!("pool {}", layout.record().id)),
        }
    }

    /// Reads the losses that earlier servers have written. With `marks`, the flushes of these
    /// tenants fail from now on.
    pub(super) fn read_losses(&mut self, admin: &dyn Admin, marks: bool) {
        let folder = state_directory();
        for member in admin.tenants().members() {
            let Some(location) = self.location(member) else { continue };
            if !self.losses.written.contains_key(&location) {
                let Some(tenants) = read(&folder, &location) else { continue };
                self.losses.written.insert(location.clone(), tenants);
            }
            if marks {
                self.mark_loss(admin, member, &location);
            }
        }
    }

    fn mark_loss(&self, admin: &dyn Admin, member: &Member, location: &str) {
        let Some(tenants) = self.losses.written.get(location) else { return };
        // A tenant's own file has the same data after the tenant is renamed, so for such a file the
        // entry of any name counts.
        let is_own = location.starts_with("file ");
        let errno = tenants.get(&member.tenant.name);
        if let Some(&errno) = errno.or_else(|| tenants.values().next().filter(|_| is_own)) {
            admin.lose(member, errno);
        }
    }

    /// Marks added tenants whose ranges already have data, if these data may be lost.
    pub(super) fn mark_losses_of(&mut self, admin: &dyn Admin, names: &[&str]) {
        if self.losses.written.is_empty() {
            return;
        }
        let tenants = admin.tenants();
        for member in names.iter().filter_map(|name| tenants.find(name)) {
            if let Some(location) = self.location(member) {
                self.mark_loss(admin, member, &location);
            }
        }
    }

    /// Records the tenants whose data may be lost, if the list has changed.
    pub(super) fn keep_losses(&mut self, now: &Status, tenants: &TenantList) {
        let is_quiet = self.losses.written.is_empty() && self.losses.writing.is_none();
        if is_quiet && now.write_back_errors.is_empty() {
            return;
        }
        let errors: HashMap<u16, i32> = now.write_back_errors.iter().copied().collect();
        let (mut losses, mut served) = (Losses::new(), HashSet::new());
        for member in tenants.members() {
            let Some(location) = self.location(member) else { continue };
            if let Some(&errno) = errors.get(&member.number()) {
                let names = losses.entry(location.clone()).or_default();
                names.insert(member.tenant.name.clone(), errno);
            }
            served.insert(location);
        }
        // A tenant that is not served keeps its entry as long as it has its range.
        let record = self.layout.as_ref().map(|layout| layout.record());
        for (location, names) in &self.losses.written {
            let is_pool = record.is_some_and(|record| *location == format!("pool {}", record.id));
            for (name, &errno) in names.iter().filter(|(name, _)| tenants.find(name).is_none()) {
                let has_data = match is_pool {
                    true => record.is_some_and(|record| record.find(name).is_some()),
                    false => !served.contains(location),
                };
                if has_data {
                    losses.entry(location.clone()).or_default().insert(name.clone(), errno);
                }
            }
        }
        self.losses.put(losses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(list: &[(&str, &str, i32)]) -> Losses {
        let mut losses = Losses::new();
        for &(location, tenant, errno) in list {
            losses.entry(location.into()).or_default().insert(tenant.into(), errno);
        }
        losses
    }

    #[test]
    fn files_follow_the_losses_of_their_locations() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let files = || std::fs::read_dir(&folder).unwrap().count();
        let one = losses(&[("pool 1", "a", 5), ("pool 1", "b", 28), ("file /x 7", "c", 5)]);
        write(&folder, &Losses::new(), &one).unwrap();
        assert_eq!((read(&folder, "pool 1"), files()), (one.get("pool 1").cloned(), 2));
        assert_eq!((read(&folder, "pool 2"), read(&folder, "file /x 8")), (None, None));
        let two = losses(&[("pool 1", "b", 28)]);
        write(&folder, &one, &two).unwrap();
        assert_eq!((read(&folder, "pool 1"), files()), (two.get("pool 1").cloned(), 1));
        write(&folder, &two, &Losses::new()).unwrap();
        assert_eq!((read(&folder, "pool 1"), files()), (None, 0));
        std::fs::write(file(&folder, "pool 1"), "{").unwrap();
        assert_eq!(read(&folder, "pool 1"), None, "it is reported");
    }
}
