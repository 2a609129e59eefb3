//! The transmission phase on a shard: connections, their requests and their bytes.

pub mod conn;
pub mod front;
mod live_request;
pub(crate) mod pacing;
pub mod survey;
mod transport;
