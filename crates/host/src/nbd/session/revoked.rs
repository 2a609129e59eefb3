//! Certificates that their authority has revoked.
//!
//! The handshake refuses revoked certificates. A connection may last for months, so the identities
//! of its client's certificates (issuer and serial number, [`shown_by`]) are kept and compared with
//! the lists whenever these are read again. A comparison needs no signature check, so it takes
//! little time of a shard.

use std::collections::{HashMap, HashSet};

use rustls::ServerConnection;
use rustls_pki_types::CertificateRevocationListDer;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// A certificate's identity: its issuer and its serial number, both as encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateId {
    issuer: Box<[u8]>,
    serial: Box<[u8]>,
}

/// The certificates that a client has presented, including those of intermediate authorities; empty
/// without TLS or without a certificate.
pub fn shown_by(session: &ServerConnection) -> Vec<CertificateId> {
    let chain = session.peer_certificates().unwrap_or_default().iter();
    chain
        .filter_map(|certificate| {
            let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
            let (issuer, serial) = (certificate.issuer().as_raw().into(), certificate.raw_serial());
            Some(CertificateId { issuer, serial: serial.into() })
        })
        .collect()
}

/// The serial numbers of revoked certificates, by issuer.
#[derive(Debug, Default)]
pub struct Revoked(HashMap<Box<[u8]>, HashSet<Box<[u8]>>>);

impl Revoked {
    /// Reads these lists. A list that cannot be read is skipped: rustls has accepted all lists that
    /// are in use.
    pub(super) fn read(lists: &[CertificateRevocationListDer<'_>]) -> Revoked {
        let mut revoked = Revoked::default();
        for list in lists {
            let Ok((_, list)) = CertificateRevocationList::from_der(list) else { continue };
            let serials = revoked.0.entry(list.issuer().as_raw().into()).or_default();
            serials.extend(list.iter_revoked_certificates().map(|one| one.raw_serial().into()));
        }
        revoked
    }

    /// Whether one of these certificates is revoked.
    pub fn has_one_of(&self, shown: &[CertificateId]) -> bool {
        shown.iter().any(|CertificateId { issuer, serial }| {
            self.0.get(issuer).is_some_and(|serials| serials.contains(serial))
        })
    }

    /// Whether no certificate is revoked.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(HashSet::is_empty)
    }
}
