//! Structures that several policies build on: the least start tag over all ports ([`mindicator`]),
//! which ports are near each other ([`topology`]), and the least of a port's own tags
//! ([`tournament`]), the flows there are ([`flow_table`]), what a port keeps of them
//! ([`port_flows`]), their free slots and extreme weights ([`free_slots`], [`extremes`]), queues
//! threaded through one array ([`fifo`]), and memory that may not be there ([`allocation`]).

pub(crate) mod allocation;
#[cfg(all(test, loom))]
pub(crate) mod broken;
pub(crate) mod extremes;
pub mod fifo;
pub(crate) mod flow_table;
pub(crate) mod free_slots;
pub(crate) mod mindicator;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod port_flows;
pub(crate) mod reference;
pub(crate) mod topology;
pub(crate) mod tournament;
