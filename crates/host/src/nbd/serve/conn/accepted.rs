//! A connection as the control thread hands it to a shard.

use super::*;
use crate::nbd::session::place::Place;
use crate::nbd::session::revoked::CertificateId;

/// A connection whose handshake is done.
pub struct Connect {
    /// The socket, in blocking mode.
    pub fd: OwnedFd,
    /// The TLS session on it.
    pub tls: Option<Box<rustls::ServerConnection>>,
    /// The result of the handshake.
    pub negotiated: Negotiated,
    /// The range that it serves.
    pub volume: Volume,
    /// The conditions under which it lives.
    pub pass: Pass,
}

/// The values that the control thread gives a connection, for as long as it lives.
#[derive(Default)]
pub struct Pass {
    /// When its client's certificate ends, in seconds since 1970; the connection ends then.
    pub until: Option<u64>,
    /// The certificates that its client has shown.
    pub shown: Vec<CertificateId>,
    /// Its place among its tenant's connections.
    pub place: Option<Place>,
    /// Over when every shard has found out which clients of the tenant have ended; requests of this
    /// one wait until then.
    pub gate: Option<Arc<Meeting>>,
    /// The bytes that the previous program has left of it.
    pub rest: Option<Rest>,
}
