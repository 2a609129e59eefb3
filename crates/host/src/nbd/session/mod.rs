//! How a client becomes a session of a tenant: exports, users, TLS, the handshake.

pub mod exports;
pub mod handshake;
pub mod place;
pub mod revoked;
pub mod tls;
pub mod users;
