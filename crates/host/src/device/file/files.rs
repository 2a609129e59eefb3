//! The files of a file device: those it was opened with, and those that came later.
//!
//! A file is never taken out, so a number names the same file as long as the device lives, and whoever has a reference has it for
//! as long. Looking one up is a load that nobody writes to.

use std::ops::Index;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::device::error::DeviceError;
use crate::device::file::LATER_FILES;
use crate::device::file::open::Backing;

pub(super) struct Files {
    slots: Box<[OnceLock<Backing>]>,
    /// How many there are; held while one is added.
    count: Mutex<usize>,
}

impl Files {
    /// These, with room for [`LATER_FILES`].
    pub(super) fn new(first: Vec<Backing>) -> Files {
        let count = Mutex::new(first.len());
        let room = (usize::from(u16::MAX) + 1).min(first.len() + LATER_FILES);
        let mut slots: Vec<OnceLock<Backing>> = first.into_iter().map(OnceLock::from).collect();
        slots.resize_with(room, OnceLock::new);
        Files { slots: slots.into_boxed_slice(), count }
    }

    pub(super) fn get(&self, number: usize) -> Option<&Backing> {
        self.slots.get(number)?.get()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Backing> {
        self.slots.iter().map_while(OnceLock::get)
    }

    /// Opens one more; gives its number.
    pub(super) fn add(&self, open: impl FnOnce() -> Result<Backing, DeviceError>) -> Result<usize, DeviceError> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = self.slots.get(*count).ok_or(DeviceError::LaterFiles(LATER_FILES))?;
        let backing = open()?;
        // Slots are filled in order, under the lock: this one is empty.
        let _ = slot.set(backing);
        *count += 1;
        Ok(*count - 1)
    }
}

/// The file of a command that was admitted.
impl Index<u16> for Files {
    type Output = Backing;

    #[inline]
    fn index(&self, number: u16) -> &Backing {
        self.get(usize::from(number)).expect("commands of other files are refused")
    }
}
