//! The bytes of the protocol: requests, options and replies, without I/O and without state.

pub mod option;
pub mod proto;
pub mod reply;
