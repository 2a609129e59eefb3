//! The transmission phase on a shard: connections, their requests and their bytes.

pub mod conn;
pub mod front;
mod op;
pub(crate) mod pace;
pub mod survey;
mod transport;
pub mod wipe;
