//! Files whose tenant was removed are closed: when nothing that it had asked for is under way, what
//! it wrote is put on stable storage, by a thread that may wait, and every shard gives the file up;
//! then it is closed and may be opened again, by anybody.
//!
//! A tenant that is added with the file before that gets it as it is, when nothing is under way.

use fairq_core::PortSet;

use crate::server::control_thread::ControlThread;

/// A file that is to be closed.
pub(super) struct Closing {
    /// Its number.
    pub(super) file: u16,
    /// Whether the shards have been told.
    is_told: bool,
}

impl Closing {
    pub(super) fn new(file: u16) -> Closing {
        Closing { file, is_told: false }
    }
}

impl ControlThread<'_> {
    /// Takes each file that is to be closed a step further.
    pub(super) fn close_files(&mut self) {
        let ControlThread { closing, leftovers, device, server, .. } = self;
        let mut tell = false;
        closing.retain_mut(|Closing { file, is_told }| {
            // The device refuses until all queues have given the file up.
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
        // A queue gives a file up in its shard's next turn, and a shard that sleeps has none.
        if tell {
            server.shards.wake(PortSet::first(server.shards.count()));
        }
    }
}
