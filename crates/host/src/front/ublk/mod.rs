//! ublk: tenants as block devices of this machine, `/dev/ublkbN`.
//!
//! **Model.** A device has as many queues as there are shards, and each shard serves one queue of
//! each device on its own ring: a command waits in the kernel for each request of a queue, and ends
//! when there is one ([`disk_queue`]). Devices are added, started, resized and deleted by control
//! commands, which a thread of the server's sends ([`control_commands`]).
//!
//! **When the server ends**, is replaced or killed, a device stays. The kernel keeps its requests
//! and gives those that were not answered to the next server, which recovers the device. A write
//! that had reached the device before a kill is then done again; its client has not seen it end.
//!
//! [`sys`] has the kernel's constants and structures.

pub mod control_commands;
pub mod disk_queue;
pub mod disk_queues;
pub mod sys;
#[cfg(test)]
mod tests;
