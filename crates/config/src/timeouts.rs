//! Time limits of a server: `[timeouts]`.
//!
//! A missing key has its default. With shorter limits the server gives up earlier on slow clients
//! and slow storage; all limits are at least 10 ms.

use std::time::Duration;

use fairq_host::nbd::session::handshake::HandshakeOptions;
use fairq_host::server;

use crate::refusal::Refusal;
use crate::units::{Nanos, exact_duration};

/// The shortest limit, in nanoseconds.
const LEAST_NS: u64 = 10_000_000;
/// The longest limit, in nanoseconds, unless a client of the control socket would give up earlier.
const MOST_NS: u64 = 3_600_000_000_000;
/// The longest wait of a call for a file system, in nanoseconds: `fairq ctl` waits for an answer
/// for 10 s.
const CALL_MOST_NS: u64 = 8_000_000_000;

/// `[timeouts]`.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs, reason = "fields are keys of files, which docs/REFERENCE.md describes")]
pub struct TimeoutsTable {
    pub handshake: Option<Nanos>,
    pub peer: Option<Nanos>,
    pub answers: Option<Nanos>,
    pub stuck: Option<Nanos>,
    pub change: Option<Nanos>,
    pub overlap: Option<Nanos>,
    pub call: Option<Nanos>,
    pub http: Option<Nanos>,
    pub range: Option<Nanos>,
}

/// Complete time limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Limit of a client's whole handshake.
    pub handshake: Duration,
    /// Limit of two waits: that of a new tenant for requests of removed tenants on its range or
    /// file, and that of a reload by SIGHUP for file systems.
    pub range: Duration,
    /// All other limits.
    pub server: server::Timeouts,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: HandshakeOptions::default().timeout,
            range: Duration::from_secs(30),
            server: server::Timeouts::default(),
        }
    }
}

impl TimeoutsTable {
    /// Fills in defaults and refuses values outside of the range.
    pub fn complete(&self) -> Result<Timeouts, Refusal> {
        let default = Timeouts::default();
        let within = |key: &str, value: Option<Nanos>, default: Duration, most_ns: u64| {
            let Some(Nanos(ns)) = value else { return Ok(default) };
            if (LEAST_NS..=most_ns).contains(&ns) {
                return Ok(Duration::from_nanos(ns));
            }
            Err(Refusal::new(format!(
                "timeouts: {key} {} is not in {}..{}: the default is {}",
                exact_duration(ns),
                exact_duration(LEAST_NS),
                exact_duration(most_ns),
                exact_duration(default.as_nanos() as u64)
            )))
        };
        let server = server::Timeouts {
            peer: within("peer", self.peer, default.server.peer, MOST_NS)?,
            answers: within("answers", self.answers, default.server.answers, MOST_NS)?,
            stuck: within("stuck", self.stuck, default.server.stuck, MOST_NS)?,
            change: within("change", self.change, default.server.change, MOST_NS)?,
            overlap: within("overlap", self.overlap, default.server.overlap, MOST_NS)?,
            call: within("call", self.call, default.server.call, CALL_MOST_NS)?,
            http: within("http", self.http, default.server.http, MOST_NS)?,
        };
        let handshake = within("handshake", self.handshake, default.handshake, MOST_NS)?;
        let range = within("range", self.range, default.range, MOST_NS)?;
        Ok(Timeouts { handshake, range, server })
    }
}
