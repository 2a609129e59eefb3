//! Sessions, from the connection of a client to an opened export: exports, users, TLS, the
//! handshake.

pub mod exports;
pub mod handshake;
pub mod place;
pub mod revoked;
pub mod tls;
pub mod users;
