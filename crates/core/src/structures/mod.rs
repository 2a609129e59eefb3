//! Structures that several policies build on: the least start tag over all ports ([`mindicator`]),
//! the proximity of ports ([`topology`]), the least of a port's own tags ([`tournament`]), the
//! table of flows ([`flow_table`]), a port's state of flows ([`port_flows`]), queues threaded
//! through one array ([`fifo`]), and allocation that may fail ([`allocation`]).

pub mod allocation;
#[cfg(loom)]
pub mod broken;
pub mod fifo;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod flow_table;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod mindicator;
#[cfg(all(test, loom))]
mod models;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod port_flows;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod topology;
pub mod tournament;
