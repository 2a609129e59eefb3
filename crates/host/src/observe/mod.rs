//! A running server's reports about itself, at little cost.

pub mod cpu_time;
pub mod interference;
pub mod log_limit;
pub mod record;
pub mod stats;
