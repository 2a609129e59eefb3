//! The Linux side of fairq: shards, devices, buffers and front ends.
//!
//! | module | content |
//! |---|---|
//! | [`io`] | the ring, memory that the kernel reads and writes, wake-ups between threads |
//! | [`observe`] | counters, latencies, recorded requests, interference, limits of the log |
//! | [`device`] | devices: files, memory, models, a software NVMe controller |
//! | [`shard`] | a core's loop and its data path through a policy's port to the device |
//! | [`front`] | front ends of a shard: their dispatch, vhost-user, vfio-user, ublk |
//! | [`nbd`] | the protocol: bytes (`wire`), sessions (`session`), requests (`serve`) |
//! | [`server`] | sockets, bounds of connections, tenants; the control thread |
//! | [`measure`] | load on shards, and a client of NBD servers, for `fairq bench` |
//!
//! All `unsafe` code of the project is in this crate; each block explains why it is sound.

pub mod device;
pub mod front;
pub mod io;
pub mod measure;
pub mod nbd;
pub mod observe;
pub mod server;
pub mod shard;
