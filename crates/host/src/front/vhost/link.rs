//! The state that a guest's session shares with its vrings.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use fairq_core::FlowId;

use crate::front::vhost::conversation::lock;
use crate::front::vhost::message;

/// The state that a session shares with its vrings.
pub struct Link {
    pub(super) name: String,
    pub(super) flow: FlowId,
    pub(super) stream: UnixStream,
    /// The back channel, if the monitor has one.
    pub(super) back: Mutex<Option<UnixStream>>,
    /// The disk's size in bytes. A session that starts a vring holds the lock until the message
    /// with the size is sent, so that each vring starts with the present size or receives a later
    /// change.
    pub(super) size: Mutex<u64>,
    pub(super) has_failed: AtomicBool,
    /// Whether the guest permits the device to cache writes.
    pub(super) caches_writes: AtomicBool,
}

impl Link {
    /// The disk's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the device has failed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Whether the guest permits the device to cache writes.
    #[inline]
    pub fn caches_writes(&self) -> bool {
        self.caches_writes.load(Ordering::Relaxed)
    }

    /// Marks the device as failed.
    pub fn fail(&self) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            self.notify();
        }
    }

    /// Ends the session.
    pub fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn size(&self) -> MutexGuard<'_, u64> {
        lock(&self.size)
    }

    /// Notifies the monitor that the configuration or the status has changed.
    pub(super) fn notify(&self) {
        let back = lock(&self.back);
        if let Some(channel) = &*back
            && let Err(error) = message::configuration_changed(channel)
        {
            tracing::debug!(disk = self.name, %error, "cannot notify a monitor of a change");
        }
    }
}
