//! The files of a file device: the initial ones, files added later, and files that are to be
//! closed.
//!
//! **Problem.** Queues use a file in every command, from their own threads, and so does the kernel
//! through their rings. A file that is no longer used must be closed and its number reused, but no
//! command for the old file may reach the new one.
//!
//! **Model.** There is a shared table of the open files behind a lock, and a version, which changes
//! with the table. Each queue uses only its own copy of the table
//! ([`FileQueue`](super::FileQueue)), whose entries are `Arc`s. It updates the copy when the
//! version has changed, which it checks in every turn and when a command has an unknown file. A
//! file whose tenant was removed *stays open* while commands use it. Then it is *retired*: each
//! queue releases it when none of its operations uses it. When only the shared table holds the
//! file, it is closed, and only then its number may be reused, so no queue has the old file under
//! the number of a new one. Until then a new tenant of the same file can use it again.
//!
//! *Memory ordering.* The version changes under the lock, after the table. A queue reads the
//! version (Acquire), then the table under the lock. If the version changes in between, the queue
//! only makes one more check than necessary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use crate::device::error::DeviceError;
use crate::device::file::LATER_FILES;
use crate::device::file::open::{Backing, FileSpec, identity_at};

pub(super) struct Files {
    slots: Arc<Mutex<Vec<Slot>>>,
    room: usize,
    version: CachePadded<AtomicU64>,
}

/// The state of a number.
enum Slot {
    Nothing,
    /// A file that is being opened.
    Reserved,
    Open(Arc<Backing>),
    /// A file without a tenant that commands may still use.
    Lingering(Arc<Backing>),
    /// A file that queues must release.
    Retired(Arc<Backing>),
    /// A file that a thread of its store is closing.
    Closing,
}

impl Slot {
    fn backing(&self) -> Option<&Arc<Backing>> {
        match self {
            Slot::Nothing | Slot::Reserved | Slot::Closing => None,
            Slot::Open(backing) | Slot::Lingering(backing) | Slot::Retired(backing) => {
                Some(backing)
            }
        }
    }

    /// The file that queues may use.
    fn in_use(&self) -> Option<&Arc<Backing>> {
        if let Slot::Retired(_) = self { None } else { self.backing() }
    }
}

impl Files {
    /// A table of these files and up to [`LATER_FILES`] more.
    pub(super) fn new(first: Vec<Backing>) -> Files {
        let room = (usize::from(u16::MAX) + 1).min(first.len() + LATER_FILES);
        let slots = first.into_iter().map(|backing| Slot::Open(Arc::new(backing))).collect();
        Files { slots: Arc::new(Mutex::new(slots)), room, version: CachePadded::default() }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest number of files.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// A number that changes whenever the result of [`Self::in_use`] changes.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn is_changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The files that queues may use, by number.
    pub(super) fn in_use(&self) -> Vec<Option<Arc<Backing>>> {
        self.slots().iter().map(|slot| slot.in_use().cloned()).collect()
    }

    /// The file with a number, unless it is closed.
    pub(super) fn get(&self, number: u16) -> Option<Arc<Backing>> {
        self.slots().get(usize::from(number))?.backing().cloned()
    }

    /// All files, with their numbers.
    pub(super) fn numbered(&self) -> Vec<(u16, Arc<Backing>)> {
        let slots = self.slots();
        let slots = (0..).zip(slots.iter());
        slots.filter_map(|(number, slot)| Some((number, slot.backing()?.clone()))).collect()
    }

    /// All files.
    pub(super) fn all(&self) -> Vec<Arc<Backing>> {
        self.slots().iter().filter_map(Slot::backing).cloned().collect()
    }

    /// Adds a file: reuses the same file if it is still open without a tenant, or opens one with
    /// `open`. Returns it with its number.
    pub(super) fn add(
        &self,
        spec: &FileSpec,
        open: impl FnOnce() -> Result<Backing, DeviceError>,
    ) -> Result<(u16, Arc<Backing>), DeviceError> {
        if let Some(found) = self.revive(spec)? {
            return Ok(found);
        }
        let number = self.reserve()?;
        // Opening may take long, so the lock, for which queues may wait, is not held.
        let opened = open().map(Arc::new);
        let mut slots = self.slots();
        slots[usize::from(number)] =
            opened.as_ref().map_or(Slot::Nothing, |backing| Slot::Open(backing.clone()));
        self.is_changed();
        opened.map(|backing| (number, backing))
    }

    /// Reuses a file that is open without a tenant, if it is the requested one in the same store.
    /// For another store it has to be closed and opened again.
    fn revive(&self, spec: &FileSpec) -> Result<Option<(u16, Arc<Backing>)>, DeviceError> {
        // The lock, for which queues may wait, is not held while the file system is queried.
        let Some(identity) = identity_at(&spec.path) else { return Ok(None) };
        let mut slots = self.slots();
        let is_it = |slot: &Slot| match slot {
            Slot::Lingering(backing) | Slot::Retired(backing) => {
                backing.is(identity) && backing.store.key.is_of(spec.store.as_deref())
            }
            _ => false,
        };
        let Some(number) = slots.iter().position(is_it) else { return Ok(None) };
        let Some(backing) = slots[number].backing().cloned() else { return Ok(None) };
        if let Some(wanted) = spec.create_size.filter(|&wanted| wanted != backing.size()) {
            return Err(DeviceError::OtherSize {
                path: spec.path.clone(),
                actual: backing.size(),
                wanted,
            });
        }
        slots[number] = Slot::Open(backing.clone());
        self.is_changed();
        Ok(Some((number as u16, backing)))
    }

    /// Reserves a free number.
    fn reserve(&self) -> Result<u16, DeviceError> {
        let mut slots = self.slots();
        let number =
            slots.iter().position(|slot| matches!(slot, Slot::Nothing)).unwrap_or(slots.len());
        if number == self.room {
            return Err(DeviceError::LaterFiles(self.room));
        }
        if number == slots.len() {
            slots.push(Slot::Nothing);
        }
        slots[number] = Slot::Reserved;
        Ok(number as u16)
    }

    /// Marks a file that is to be closed when no command uses it.
    pub(super) fn keep_open(&self, number: u16) {
        if let Some(slot) = self.slots().get_mut(usize::from(number))
            && let Slot::Open(backing) = slot
        {
            *slot = Slot::Lingering(backing.clone());
        }
    }

    /// Makes queues release a file that is open without a tenant; returns the file.
    pub(super) fn retire(&self, number: u16) -> Option<Arc<Backing>> {
        let mut slots = self.slots();
        let slot = slots.get_mut(usize::from(number))?;
        let Slot::Lingering(backing) = slot else { return None };
        let backing = backing.clone();
        *slot = Slot::Retired(backing.clone());
        self.is_changed();
        Some(backing)
    }

    /// Closes a retired file if only this table holds it. True if the file is closed: it is neither
    /// retired nor being closed.
    pub(super) fn close(&self, number: u16) -> bool {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(usize::from(number)) else { return true };
        if let Slot::Closing = slot {
            return false;
        }
        let Slot::Retired(backing) = slot else { return true };
        // No new reference can appear in the meantime: references are taken from this table under
        // the lock.
        if Arc::get_mut(backing).is_some() {
            let (store, file) = (backing.store.clone(), std::mem::replace(slot, Slot::Closing));
            let (slots, number) = (self.slots.clone(), usize::from(number));
            // Closing a file may block on its device, so a thread of the store does it.
            store.push(Box::new(move || {
                drop(file);
                slots.lock().unwrap_or_else(PoisonError::into_inner)[number] = Slot::Nothing;
            }));
        }
        false
    }
}
