//! A connection that the control thread passes to a shard.

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
    /// The conditions of the connection.
    pub pass: Pass,
}

/// The values that the control thread sets for the lifetime of a connection.
#[derive(Default)]
pub struct Pass {
    /// The end of the client's certificate, in seconds since 1970; the connection then ends.
    pub until: Option<u64>,
    /// The certificates that its client has presented.
    pub shown: Vec<CertificateId>,
    /// Its place among its tenant's connections.
    pub place: Option<Place>,
    /// The barrier at which every shard reports which clients of the tenant have ended; requests of
    /// this connection wait until it is released.
    pub gate: Option<Arc<Meeting>>,
    /// The state that the previous program has passed on, if any.
    pub rest: Option<Rest>,
}
