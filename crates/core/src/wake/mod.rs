//! Synchronisation of the threads that run ports, whatever the host: to sleep without missing a
//! wake-up ([`bell`]), and to change to another policy together ([`meeting`]).
//!
//! Both consist of atomic words and memory orders only; the host puts threads to sleep and wakes
//! them.

pub mod bell;
pub mod meeting;
#[cfg(all(test, loom))]
mod models;

pub use bell::Bell;
pub use meeting::Meeting;
