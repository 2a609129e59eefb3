//! The contract between a policy and its caller: the verbs of a port ([`port`]), flows and their
//! weights ([`flow`]), groups of them ([`share`]), costs ([`cost`]), virtual time ([`vtime`]),
//! bounds ([`bounds`]), sets of ports ([`port_set`]), the list of their methods (`layer`), and the
//! machine's atomics and locks ([`platform`]).

pub mod bounds;
pub mod cost;
pub mod flow;
pub mod layer;
pub mod platform;
pub mod port;
pub mod port_set;
pub mod share;
pub mod vtime;
