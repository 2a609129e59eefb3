//! ublk: tenants as block devices of this machine, `/dev/ublkbN`.
//!
//! **Model.** A device has as many queues as there are shards, and each shard serves one queue of
//! each device on its own ring. For each request slot of a queue, a command waits in the kernel and
//! completes when a request arrives ([`disk_queue`]). A thread of the server sends the control
//! commands that add, start, resize and delete devices ([`control_commands`]).
//!
//! **When the server ends**, is replaced or killed, a device remains. The kernel keeps its requests
//! and gives the unanswered ones to the next server, which recovers the device. So a write that had
//! reached the storage before a kill is executed again; its client had not received an answer.
//!
//! [`sys`] has the kernel's constants and structures.

pub mod control_commands;
pub mod disk_queue;
pub mod disk_queues;
pub mod sys;
#[cfg(test)]
mod tests;
