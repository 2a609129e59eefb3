//! Structures that several policies build on: the least start tag over all ports ([`mindicator`]),
//! the proximity of ports ([`topology`]), the table of flows ([`flow_table`]), a port's state of
//! flows ([`port_flows`]), and queues without allocation ([`queues`]).

#[cfg(loom)]
pub mod broken;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod flow_table;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod mindicator;
#[cfg(all(test, loom))]
mod models;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod port_flows;
pub mod queues;
#[allow(rustdoc::private_intra_doc_links, reason = "only this project's own crates see it")]
pub mod topology;
