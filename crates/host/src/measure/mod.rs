//! Measured load: jobs on shards of this process, or over NBD against any server.

pub mod client;
pub mod load;
pub mod stall;
