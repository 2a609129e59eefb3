//! What the threads that run ports need of each other, whatever the host: to sleep without missing
//! a wake-up ([`bell`]), and to go on together under another policy ([`meeting`]).
//!
//! Both are words and orders of memory only; how a thread sleeps and how it is told is the host's.

pub mod bell;
pub mod meeting;
#[cfg(all(test, loom))]
mod models;

pub use bell::Bell;
pub use meeting::Meeting;
