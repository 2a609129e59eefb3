//! The Linux side of fairq: shards, devices, buffers and front ends.
//!
//! All `unsafe` code of the project is in this crate, each block with its argument.

pub mod budget;
mod charge;
pub mod client;
pub mod common;
pub mod control;
pub mod cpu_time;
pub mod device;
pub mod direct;
pub mod interference;
pub mod load;
pub mod log_limit;
pub mod memory;
pub mod nbd;
pub mod nvme;
pub mod path;
mod patience;
pub mod record;
pub mod ring;
pub mod server;
pub mod shard;
pub mod shards;
pub mod stats;
pub mod users;
pub mod wakers;
pub mod write_back;
