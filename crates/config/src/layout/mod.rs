//! Where the data of tenants that share a file are: a record that belongs to the file.
//!
//! | module | what it holds |
//! |---|---|
//! | [`record`] | the record as a model and as bytes; no I/O |
//! | [`place`] | a configuration beside a record: who is where, and what is refused; no I/O |
//! | [`pool`] | the record on storage: where it is, and what the device and it say of each other |
//!
//! docs/decisions/0048 has the reasons.

pub mod place;
pub mod pool;
pub mod record;
