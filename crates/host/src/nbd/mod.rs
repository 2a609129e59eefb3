//! NBD, the network block device protocol, server side.
//!
//! Problem: unknown peers connect with a binary protocol, and their bytes decide which parts of a
//! tenant's range are read and written. Model: the protocol has two phases with different needs.
//! The *handshake* is rare, needs several exchanges and has many options, so it is an ordinary
//! async function over any stream ([`session::handshake`] over [`session::exports`], with TLS in
//! [`session::tls`]). The *transmission* is the data path: [`wire::proto`] and [`wire::reply`]
//! convert bytes to requests and results to reply headers, without I/O, allocation or state, and a
//! shard calls them when its ring has events ([`serve::conn`]). The handshake passes its result to
//! the transmission phase as [`wire::proto::Negotiated`].
//!
//! The specification is `doc/proto.md` of the NBD project, with the extension `EXTENDED_HEADERS`
//! that qemu and libnbd request first; names follow it, without the prefix `NBD_`. Input is
//! validated once, when it is received ([`wire::proto::parse_request`], [`wire::proto::validate`]);
//! later code trusts validated requests.

pub mod serve;
pub mod session;
pub mod wire;

pub use session::exports::{Export, Exports};
pub use session::handshake::{HandshakeError, HandshakeOptions, Outcome, Peer, handshake};
pub use session::tls::{Established, Tls, TlsMode};
