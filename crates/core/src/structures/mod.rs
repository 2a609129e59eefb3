//! Structures that several policies build on: the least start tag over all ports ([`mindicator`]),
//! the proximity of ports ([`topology`]), the least of a port's own tags ([`tournament`]), the
//! table of flows ([`flow_table`]), a port's state of flows ([`port_flows`]), free slots and
//! extreme weights ([`free_slots`], [`extremes`]), walks over all slots in steps ([`slot_walk`]),
//! queues threaded through one array ([`fifo`]), and allocation that may fail ([`allocation`]).

pub(crate) mod allocation;
#[cfg(all(test, loom))]
pub(crate) mod broken;
pub(crate) mod extremes;
pub mod fifo;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod flow_table;
pub(crate) mod free_slots;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod mindicator;
#[cfg(all(test, loom))]
mod models;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod port_flows;
pub(crate) mod reference;
pub(crate) mod slot_walk;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod topology;
pub(crate) mod tournament;
