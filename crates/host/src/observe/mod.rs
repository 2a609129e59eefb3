//! Cheap reports of a running server about itself.

pub mod cpu_time;
pub mod interference;
pub mod log_limit;
pub mod record;
pub mod stats;
