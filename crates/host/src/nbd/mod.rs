//! NBD, the network block device protocol, server side.
//!
//! Problem: strangers connect and speak a binary protocol; what they send decides what is read from
//! and written to a tenant's range of the device. Model: the protocol has two phases, and they want
//! different things. The *handshake* is rare, chatty and full of options, so it is an ordinary
//! async function over any stream ([`mod@handshake`] over [`exports`], with TLS in [`tls`]). The
//! *transmission* is the data path: [`proto`] and [`reply`] turn bytes into requests and results
//! into reply headers without I/O, without allocation and without state, and a shard drives them as
//! its ring completes ([`conn`]). Between the two stands [`proto::Negotiated`]: everything that the
//! transmission phase has to know about the handshake.
//!
//! The specification is `doc/proto.md` of the NBD project, with the extension `EXTENDED_HEADERS`
//! that qemu and libnbd ask for first; names follow it, less the prefix `NBD_`. Input is validated
//! once, at the edge ([`proto::parse_request`], [`proto::validate`]); what has passed is trusted
//! from there on.

pub mod conn;
pub mod exports;
pub mod front;
pub mod handshake;
mod op;
pub mod option;
pub(crate) mod pace;
pub mod proto;
pub mod reply;
pub mod survey;
pub mod tls;
pub mod wipe;
mod wire;

pub use exports::{Export, Exports};
pub use handshake::{HandshakeError, HandshakeOptions, Outcome, Peer, handshake};
pub use tls::{Established, Tls, TlsMode};
