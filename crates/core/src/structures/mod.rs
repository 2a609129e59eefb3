//! Structures that several policies build on: the least start tag over all ports ([`mindicator`]),
//! which ports are near each other ([`topology`]), and the least of a port's own tags
//! ([`tournament`]).

#[cfg(all(test, loom))]
pub(crate) mod broken;
pub(crate) mod mindicator;
pub(crate) mod topology;
pub(crate) mod tournament;
