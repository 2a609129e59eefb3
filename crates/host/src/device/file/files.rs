//! The files of a file device: those it was opened with, those that came later, and those that are
//! about to go.
//!
//! **Problem.** Queues use a file at every command, from their own threads, and the kernel through
//! their rings; a file that nobody is to use any more must be closed, and its number be another's,
//! without a command of the one reaching the other.
//!
//! **Model.** A table behind a lock, which says what is open, and a version, which changes with it.
//! Each queue has a table of its own ([`FileQueue`](super::FileQueue)), from which alone it serves,
//! and makes it equal to this one when it finds that the version has changed: in every turn, and
//! when a command names a file that it does not know. What it has it holds by an `Arc`. A file that
//! nobody wants any more *lingers* as long as commands name it. Then it is *retired*: queues let go
//! of it, each when none of its operations names it. Nobody but the table holds it then, it is
//! closed, and only now its number may be another's: so no queue has the old file under a number
//! that it is told means a new one. Until then it is taken back if somebody wants that file again.
//!
//! *Memory ordering.* The version changes under the lock, after the table. A queue reads the
//! version (Acquire), then the table under the lock; if it changes in between, the queue looks once
//! more than it would have had to.

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

/// What has a number.
enum Slot {
    Nothing,
    /// A file that is being opened.
    Reserved,
    Open(Arc<Backing>),
    /// One that nobody wants, and commands may still name.
    Lingering(Arc<Backing>),
    /// One that queues are to let go.
    Retired(Arc<Backing>),
    /// One that a thread of its store closes.
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

    /// What queues are to have.
    fn in_use(&self) -> Option<&Arc<Backing>> {
        if let Slot::Retired(_) = self { None } else { self.backing() }
    }
}

impl Files {
    /// These, with room for [`LATER_FILES`].
    pub(super) fn new(first: Vec<Backing>) -> Files {
        let room = (usize::from(u16::MAX) + 1).min(first.len() + LATER_FILES);
        let slots = first.into_iter().map(|backing| Slot::Open(Arc::new(backing))).collect();
        Files { slots: Arc::new(Mutex::new(slots)), room, version: CachePadded::default() }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there may be.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Another one whenever [`Self::in_use`] gives something else.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn is_changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Those that queues are to have, by number.
    pub(super) fn in_use(&self) -> Vec<Option<Arc<Backing>>> {
        self.slots().iter().map(|slot| slot.in_use().cloned()).collect()
    }

    /// One that is there.
    pub(super) fn get(&self, number: u16) -> Option<Arc<Backing>> {
        self.slots().get(usize::from(number))?.backing().cloned()
    }

    /// All that are there, with their numbers.
    pub(super) fn numbered(&self) -> Vec<(u16, Arc<Backing>)> {
        let slots = self.slots();
        let slots = (0..).zip(slots.iter());
        slots.filter_map(|(number, slot)| Some((number, slot.backing()?.clone()))).collect()
    }

    /// All that are there.
    pub(super) fn all(&self) -> Vec<Arc<Backing>> {
        self.slots().iter().filter_map(Slot::backing).cloned().collect()
    }

    /// One more: one that nobody wanted and that is the same file, or what `open` gives. Gives its
    /// number.
    pub(super) fn add(
        &self,
        spec: &FileSpec,
        open: impl FnOnce() -> Result<Backing, DeviceError>,
    ) -> Result<(u16, Arc<Backing>), DeviceError> {
        if let Some(found) = self.revive(spec)? {
            return Ok(found);
        }
        let number = self.reserve()?;
        // Opening takes its time, and queues must not wait for it.
        let opened = open().map(Arc::new);
        let mut slots = self.slots();
        slots[usize::from(number)] =
            opened.as_ref().map_or(Slot::Nothing, |backing| Slot::Open(backing.clone()));
        self.is_changed();
        opened.map(|backing| (number, backing))
    }

    /// A file that nobody wanted is taken back if it is the one that is wanted, in the same store;
    /// in another store it has to be opened again when it is closed.
    fn revive(&self, spec: &FileSpec) -> Result<Option<(u16, Arc<Backing>)>, DeviceError> {
        // The file system is asked without the lock, for which queues wait.
        let Some(identity) = identity_at(&spec.path) else { return Ok(None) };
        let mut slots = self.slots();
        let is_it = |slot: &Slot| match slot {
            Slot::Lingering(backing) | Slot::Retired(backing) => {
                backing.is(identity) && backing.store.key.is_of(spec)
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

    /// A number that nobody has.
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

    /// The file is to be given up when no command names it.
    pub(super) fn linger(&self, number: u16) {
        if let Some(slot) = self.slots().get_mut(usize::from(number))
            && let Slot::Open(backing) = slot
        {
            *slot = Slot::Lingering(backing.clone());
        }
    }

    /// Tells queues to let go of one that lingers; gives it.
    pub(super) fn retire(&self, number: u16) -> Option<Arc<Backing>> {
        let mut slots = self.slots();
        let slot = slots.get_mut(usize::from(number))?;
        let Slot::Lingering(backing) = slot else { return None };
        let backing = backing.clone();
        *slot = Slot::Retired(backing.clone());
        self.is_changed();
        Some(backing)
    }

    /// Closes a retired one if nobody holds it any more. True if it is closed.
    pub(super) fn close(&self, number: u16) -> bool {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(usize::from(number)) else { return true };
        if let Slot::Closing = slot {
            return false;
        }
        let Slot::Retired(backing) = slot else { return true };
        // Only under the lock does anybody take another one from here.
        if Arc::get_mut(backing).is_some() {
            let (store, file) = (backing.store.clone(), std::mem::replace(slot, Slot::Closing));
            let (slots, number) = (self.slots.clone(), usize::from(number));
            // Closing a file may wait for its device.
            store.push(Box::new(move || {
                drop(file);
                slots.lock().unwrap_or_else(PoisonError::into_inner)[number] = Slot::Nothing;
            }));
        }
        false
    }
}
