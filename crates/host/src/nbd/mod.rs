//! NBD, the network block device protocol, server side.
//!
//! Problem: unknown peers connect with a binary protocol; their bytes decide which parts of a
//! tenant's range are read and written. Model: the protocol has two phases with different needs.
//! The *handshake* is rare, chatty and full of options, so it is an ordinary async function over
//! any stream ([`session::handshake`] over [`session::exports`], with TLS in [`session::tls`]). The
//! *transmission* is the data path: [`wire::proto`] and [`wire::reply`] turn bytes into requests
//! and results into reply headers without I/O, without allocation and without state, and a shard
//! drives them as its ring completes ([`serve::conn`]). The result of the handshake for the
//! transmission phase is [`wire::proto::Negotiated`].
//!
//! The specification is `doc/proto.md` of the NBD project, with the extension `EXTENDED_HEADERS`
//! that qemu and libnbd request first; names follow it, without the prefix `NBD_`. Input is
//! validated once, at the edge ([`wire::proto::parse_request`], [`wire::proto::validate`]);
//! validated requests are trusted from there on.

pub mod serve;
pub mod session;
pub mod wire;

pub use session::exports::{Export, Exports};
pub use session::handshake::{HandshakeError, HandshakeOptions, Outcome, Peer, handshake};
pub use session::tls::{Established, Tls, TlsMode};
