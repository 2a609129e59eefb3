//! NBD, the network block device protocol, server side.
//!
//! Problem: strangers connect and speak a binary protocol; what they send decides what is read from
//! and written to a tenant's range of the device. Model: the protocol has two phases, and they want
//! different things. The *handshake* is rare, chatty and full of options, so it is an ordinary
//! async function over any stream ([`session::handshake`] over [`session::exports`], with TLS in
//! [`session::tls`]). The *transmission* is the data path: [`wire::proto`] and [`wire::reply`] turn
//! bytes into requests and results into reply headers without I/O, without allocation and without
//! state, and a shard drives them as its ring completes ([`serve::conn`]). Between the two stands
//! [`wire::proto::Negotiated`]: everything that the transmission phase has to know about the
//! handshake.
//!
//! The specification is `doc/proto.md` of the NBD project, with the extension `EXTENDED_HEADERS`
//! that qemu and libnbd ask for first; names follow it, less the prefix `NBD_`. Input is validated
//! once, at the edge ([`wire::proto::parse_request`], [`wire::proto::validate`]); what has passed
//! is trusted from there on.

pub mod serve;
pub mod session;
pub mod wire;

pub use session::exports::{Export, Exports};
pub use session::handshake::{HandshakeError, HandshakeOptions, Outcome, Peer, handshake};
pub use session::tls::{Established, Tls, TlsMode};
