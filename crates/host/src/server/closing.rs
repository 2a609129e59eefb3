//! Closes files whose tenant was removed. When none of the tenant's requests is in flight, a thread
//! that may block makes the tenant's writes durable, and every shard releases the file. Then the
//! file is closed and may be opened again.
//!
//! If a tenant with the same file is added before the file is closed, it uses the open file, once
//! no request of the removed tenant is in flight.

use fairq_core::PortSet;

use crate::server::ControlThread;

/// A file that is to be closed.
pub(super) struct Closing {
    /// Its number.
    pub(super) file: u16,
    /// Whether the shards have been notified to release it.
    is_told: bool,
}

impl Closing {
    pub(super) fn new(file: u16) -> Closing {
        Closing { file, is_told: false }
    }
}

impl ControlThread<'_> {
    /// Advances the closing of each file by a step.
    pub(super) fn close_files(&mut self) {
        let ControlThread { closing, leftovers, device, server, .. } = self;
        let mut tell = false;
        closing.retain_mut(|Closing { file, is_told }| {
            // `close_file` fails until all queues have released the file.
            if *is_told {
                return !device.close_file(*file);
            }
            if leftovers.iter().all(|(tenant, _)| tenant.file != *file) {
                *is_told = true;
                tell = true;
                if let Some(unsettled) = device.retire_file(*file) {
                    unsettled.settle();
                }
            }
            true
        });
        // A queue releases a file in its shard's next turn, so sleeping shards must be woken.
        if tell {
            server.shards.wake(PortSet::first(server.shards.count()));
        }
    }
}
