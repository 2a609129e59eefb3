//! The places of data of tenants that share a file: a record that belongs to the file.
//!
//! | module | contents |
//! |---|---|
//! | [`record`] | the record as a model and as bytes; no I/O |
//! | [`place`] | a configuration compared with a record: places, and refusals; no I/O |
//! | [`pool`] | the record on storage: its place, and whether it fits the device |
//!
//! docs/decisions/0048 has the reasons.

pub mod place;
pub mod pool;
pub mod record;
