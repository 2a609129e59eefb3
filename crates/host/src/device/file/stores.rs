//! Stores: files that fail and hang together, and share one scheduler.
//!
//! The files of one device (`st_dev` of a regular file, the device itself of a block device) are
//! one store, unless the operator names another store for a file. A store keeps its number, the
//! index of its scheduler, as long as one of its files is open; then another store may use the
//! number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::error::DeviceError;
use crate::device::file::workers::{Job, Workers};

/// The most stores of a device.
pub const MAX_STORES: usize = 16;
/// The most stores that may be added while a device is used, as files on other devices are opened.
pub const LATER_STORES: usize = 4;

/// The property that makes files one store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// The operator's name for the store.
    Named(String),
    /// The device's number by `stat`.
    Device(u64),
}

impl Key {
    /// Whether a file on this store's device belongs to it; `named` is the operator's name for the
    /// file's store.
    pub(super) fn is_of(&self, named: Option<&str>) -> bool {
        match (self, named) {
            (Key::Named(name), Some(wanted)) => name == wanted,
            (Key::Device(_), None) => true,
            _ => false,
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Named(name) => f.write_str(name),
            Key::Device(device) => {
                write!(f, "{}:{}", libc::major(*device), libc::minor(*device))
            }
        }
    }
}

/// One store.
pub(super) struct Store {
    pub(super) number: u16,
    pub(super) key: Key,
    workers: Workers,
    /// Whether a check of its files is in progress.
    inspecting: AtomicBool,
}

impl Store {
    fn start(number: usize, key: Key) -> Result<Arc<Store>, DeviceError> {
        let workers = Workers::start().map_err(|source| DeviceError::Thread { source })?;
        let number = number as u16;
        Ok(Arc::new(Store { number, key, workers, inspecting: AtomicBool::new(false) }))
    }

    /// Passes a call that may block to a thread of the store.
    pub(super) fn push(&self, job: Job) {
        self.workers.push(job);
    }

    /// Makes a thread of the store check its files, unless the last check is still in progress.
    pub(super) fn inspect(self: &Arc<Self>, look: impl FnOnce() + Send + 'static) {
        // Without this condition, a store that hangs would get one more waiting check, and a thread
        // for it, each second.
        if self.inspecting.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::downgrade(self);
        self.push(Box::new(move || {
            look();
            if let Some(store) = store.upgrade() {
                store.inspecting.store(false, Ordering::Relaxed);
            }
        }));
    }
}

/// The stores of a device.
pub(super) struct Stores {
    list: Mutex<Vec<Arc<Store>>>,
    most: usize,
}

impl Stores {
    /// An empty list of at most `most` stores.
    pub(super) fn new(most: usize) -> Stores {
        Stores { list: Mutex::default(), most }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Store>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names, by number.
    pub(super) fn names(&self) -> Vec<String> {
        self.list().iter().map(|store| store.key.to_string()).collect()
    }

    /// Limits the stores to the present ones and [`LATER_STORES`] more.
    pub(super) fn limit(&mut self) {
        let now = self.list().len();
        self.most = (now + LATER_STORES).min(MAX_STORES);
    }

    /// The most stores.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The store of these files; a new one if the number of stores permits it.
    pub(super) fn of(&self, key: Key) -> Result<Arc<Store>, DeviceError> {
        let mut list = self.list();
        if let Some(store) = list.iter().find(|store| store.key == key) {
            return Ok(store.clone());
        }
        // No new reference can appear in the meantime: references are taken from this list under
        // the lock.
        if let Some(unused) = list.iter_mut().position(|store| Arc::get_mut(store).is_some()) {
            list[unused] = Store::start(unused, key)?;
            return Ok(list[unused].clone());
        }
        if list.len() == self.most {
            return Err(DeviceError::Stores { most: self.most, store: key.to_string() });
        }
        let store = Store::start(list.len(), key)?;
        list.push(store.clone());
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_device_share_a_store_and_names_come_first() {
        let stores = Stores::new(3);
        let of = |key: Key| stores.of(key).map(|store| store.number);
        let held = stores.of(Key::Device(7)).unwrap();
        assert_eq!((held.number, of(Key::Device(7)).unwrap()), (0, 0));
        let other = stores.of(Key::Device(8)).unwrap();
        let named = stores.of(Key::Named("disks".into())).unwrap();
        assert_eq!((other.number, named.number), (1, 2));
        assert!(of(Key::Device(9)).unwrap_err().to_string().contains("store = NAME"));
        // The store has no file left, so its number is free.
        drop(other);
        assert_eq!(of(Key::Device(9)).unwrap(), 1);
        assert_eq!(stores.names(), ["0:7", "0:9", "disks"]);
    }
}
