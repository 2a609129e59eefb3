//! TLS: configuration from PEM files, a stream that can switch to it, and the client's names.
//!
//! TLS begins in the middle of a handshake (`STARTTLS`), so the handshake works on a [`Stream`]
//! that is plain first and encrypted later. When the handshake is over,
//! [`Stream::into_established`] returns the socket and rustls' state, which may already hold bytes
//! of the first request; the shard drives TLS from then on. Sessions are not resumed, because
//! connections are long and the certificate is checked each time. So after the handshake the server
//! sends only data and the end of the session.
//!
//! A client is identified only by its certificate: by the common name and the DNS names in it. The
//! configured authority must have signed the certificate. A name is compared literally, without
//! wildcards.

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::{fmt, io};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, ServerConnection, SignatureScheme,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::nbd::session::revoked::Revoked;

/// The most threads that perform handshakes.
const TLS_THREADS_MAX: usize = 4;

/// The reason why TLS cannot be set up; each message names the file and what to do.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what} {}: {source}; check the path and that the server's user may \
     read it", path.display())]
    Read {
        /// The kind of the file.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file lacks the required section.
    #[error("{} has no {what} in it: it has to be a PEM file with a section `-----BEGIN \
     {section}-----`", path.display())]
    Missing {
        /// The kind that the file should have.
        what: &'static str,
        /// The section that is missing.
        section: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("the {what} {} is damaged ({reason}); create or copy it again", path.display())]
    Damaged {
        /// The kind of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        reason: String,
    },
    /// Certificate and key do not belong together, or their type is not supported.
    #[error(
        "the certificate {} and the key {} cannot be used together ({reason}); the key has to be \
         the one that the \
         certificate was requested with, of type RSA, ECDSA (P-256, P-384) or Ed25519",
        certificate.display(), key.display()
    )]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// The reason of rustls.
        reason: String,
    },
    /// The server cannot sign with its own RSA key, because of the key's length.
    #[error(
        "the certificate {} is for an RSA key of {bits} bits, and this server signs with 2048, \
         2560, 3072, 3584 or 4096 only: make it for a key of such a length, or for ECDSA (P-256, \
         P-384) or Ed25519",
        path.display()
    )]
    OwnKey {
        /// The certificate.
        path: PathBuf,
        /// The key's length.
        bits: usize,
    },
    /// The certificate of the authority that signs the peer's certificates is refused.
    #[error("{} cannot be the authority for the peer's certificates: \
     {reason}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason of rustls.
        reason: String,
    },
}

/// The server's side of TLS: certificate, key and the trusted authority.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    clients_certified: bool,
    revoked: Arc<Revoked>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("clients_certified", &self.clients_certified)
            .finish_non_exhaustive()
    }
}

/// Whether clients may or must start TLS.
#[derive(Clone, Debug, Default)]
pub enum TlsMode {
    /// Clients cannot start TLS.
    #[default]
    Off,
    /// Clients may start TLS, and must for an export with an identity.
    Optional(Tls),
    /// Clients must start TLS before any other option.
    Required(Tls),
}

impl TlsMode {
    /// The server's side of TLS, unless it is off.
    pub fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Off => None,
            Self::Optional(tls) | Self::Required(tls) => Some(tls),
        }
    }
}

impl Tls {
    /// Reads the certificate chain (the server's own certificate first), its key, and optionally
    /// the authority that signs client certificates, with its revocation lists. With an authority,
    /// clients without a certificate are refused. With revocation lists, the server also refuses
    /// clients whose certificate is revoked, or whose authority has no list.
    pub fn load(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
        client_crl: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = certificates("certificate", certificate)?;
        if let Some(bits) = rsa_bits(&chain[0]).filter(|bits| !RSA_OWN.contains(bits)) {
            return Err(TlsError::OwnKey { path: certificate.to_owned(), bits });
        }
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| pem_error(error, "private key", "PRIVATE KEY", key))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for TLS 1.2 and 1.3");
        let lists = client_crl.map(revocations).transpose()?.unwrap_or_default();
        let revoked = Arc::new(Revoked::read(&lists));
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refused =
                    |reason: String| TlsError::Authority { path: path.to_owned(), reason };
                let mut roots = RootCertStore::empty();
                for authority in certificates("client authority", path)? {
                    check_length(&authority).map_err(refused)?;
                    roots.add(authority).map_err(|error| refused(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .with_crls(lists)
                        .build()
                        .map_err(|error| refused(error.to_string()))?;
                builder.with_client_cert_verifier(Arc::new(Verifier(verifier)))
            }
        };
        let mut config =
            builder.with_single_cert(chain, secret).map_err(|error| TlsError::Pair {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                reason: error.to_string(),
            })?;
        // Without resumption, TLS sends only data and the end of the session after the handshake,
        // and each connection's certificate is verified.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), clients_certified: client_ca.is_some(), revoked })
    }

    /// The certificates that the lists name as revoked.
    pub fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    /// Whether every client must have a certificate; otherwise no export with an identity can be
    /// opened.
    pub fn clients_certified(&self) -> bool {
        self.clients_certified
    }
}

/// The client's side of TLS for a server with the name `host`: the directory holds `ca-cert.pem`,
/// which signs the server's certificate, and may hold `client-cert.pem` and `client-key.pem`.
pub(crate) fn connect_as(directory: &Path, host: &str) -> Result<ClientConnection, TlsError> {
    let authority = directory.join("ca-cert.pem");
    let refused = |reason: String| TlsError::Authority { path: authority.clone(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("server authority", &authority)? {
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for TLS 1.2 and 1.3")
            .with_root_certificates(roots);
    let (certificate, key) = (directory.join("client-cert.pem"), directory.join("client-key.pem"));
    let config = if certificate.exists() {
        let chain = certificates("certificate", &certificate)?;
        let secret = PrivateKeyDer::from_pem_file(&key)
            .map_err(|error| pem_error(error, "private key", "PRIVATE KEY", &key))?;
        let pair =
            |error: rustls::Error| TlsError::Pair { certificate, key, reason: error.to_string() };
        builder.with_client_auth_cert(chain, secret).map_err(pair)?
    } else {
        builder.with_no_client_auth()
    };
    let host = ServerName::try_from(host.to_owned())
        .map_err(|error| refused(format!("'{host}': {error}")))?;
    ClientConnection::new(Arc::new(config), host).map_err(|error| refused(error.to_string()))
}

/// The lengths in bits of RSA keys with which this server can sign, and of clients' keys that it
/// accepts.
const RSA_OWN: [usize; 5] = [2048, 2560, 3072, 3584, 4096];
const RSA_CLIENTS: RangeInclusive<usize> = 2048..=8192;

/// The length of a certificate's key if that is an RSA key, in bits.
fn rsa_bits(certificate: &CertificateDer<'_>) -> Option<usize> {
    // rustls refuses a certificate that cannot be read here.
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    match certificate.public_key().parsed().ok()? {
        // The modulus may begin with zero bytes, one of which is its sign.
        PublicKey::RSA(key) => {
            let modulus: &[u8] = key.modulus;
            let modulus = &modulus[modulus.iter().take_while(|byte| **byte == 0).count()..];
            let first = modulus.first()?;
            Some(modulus.len() * 8 - first.leading_zeros() as usize)
        }
        _ => None,
    }
}

/// Refuses a key whose length the verification of signatures does not support. Without this check,
/// the verification would report a bad signature.
fn check_length(certificate: &CertificateDer<'_>) -> Result<(), String> {
    match rsa_bits(certificate) {
        Some(bits) if !RSA_CLIENTS.contains(&bits) => Err(format!(
            "it has an RSA key of {bits} bits, and {} to {} are accepted: make it for another \
             key length, or for ECDSA (P-256, P-384) or Ed25519",
            RSA_CLIENTS.start(),
            RSA_CLIENTS.end()
        )),
        _ => Ok(()),
    }
}

/// Checks clients' certificates: first the length of the key, then the signatures.
#[derive(Debug)]
struct Verifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        for certificate in std::iter::once(end_entity).chain(intermediates) {
            check_length(certificate).map_err(|reason| {
                rustls::Error::General(format!("the client's certificate is refused: {reason}"))
            })?;
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The lists of revoked certificates in a file.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let (what, section) = ("list of revoked certificates", "X509 CRL");
    let read = |error| pem_error(error, what, section, path);
    let lists = CertificateRevocationListDer::pem_file_iter(path).map_err(read)?;
    let lists: Vec<_> = lists.collect::<Result<_, _>>().map_err(read)?;
    if lists.is_empty() {
        return Err(TlsError::Missing { what, section, path: path.to_owned() });
    }
    Ok(lists)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let section = "CERTIFICATE";
    let read = |error| pem_error(error, what, section, path);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(read)?.collect();
    let chain = chain.map_err(read)?;
    if chain.is_empty() {
        return Err(TlsError::Missing { what, section, path: path.to_owned() });
    }
    Ok(chain)
}

fn pem_error(
    error: pem::Error,
    what: &'static str,
    section: &'static str,
    path: &Path,
) -> TlsError {
    let path = path.to_owned();
    match error {
        pem::Error::Io(source) => TlsError::Read { what, path, source },
        pem::Error::NoItemsFound => TlsError::Missing { what, section, path },
        other => TlsError::Damaged { what, path, reason: other.to_string() },
    }
}

/// The names in a certificate that has been verified: the common name, then the DNS names.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    // A client without a name may only open exports that any certificate opens.
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names);
    let dns = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let mut names: Vec<String> = Vec::new();
    for name in common.chain(dns) {
        if !name.is_empty() && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The earliest end of the client's certificate and of its intermediate certificates, in seconds
/// since 1970; `None` without a certificate.
pub fn certificate_end_s(session: &ServerConnection) -> Option<u64> {
    let chain = session.peer_certificates()?.iter();
    let end = |certificate: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        Some(certificate.validity().not_after.timestamp().max(0) as u64)
    };
    chain.filter_map(end).min()
}

/// A connection during the handshake: plain first, encrypted after `STARTTLS`.
#[derive(Debug)]
pub enum Stream<S> {
    /// The plain connection.
    Plain(S),
    /// The connection with TLS on top.
    Tls(Box<TlsStream<S>>),
}

/// A connection after the handshake, with all bytes that were received after the last option.
#[derive(Debug)]
pub enum Established<S> {
    /// The requests are plain text.
    Plain(S),
    /// The requests are encrypted.
    Tls {
        /// The transport, which carries TLS records.
        stream: S,
        /// TLS after its handshake. It may hold records or plain text that arrived with the last
        /// option. It accepts any amount of plain text to send, so the writer must bound its writes
        /// and fetch the records in between.
        session: Box<ServerConnection>,
    },
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream<S> {
    /// Performs the server's side of the TLS handshake, on `threads` if given. Closes the stream if
    /// the handshake fails.
    pub async fn start_tls(self, tls: &Tls, threads: Option<&TlsThreads>) -> io::Result<Self> {
        let Self::Plain(stream) = self else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "TLS has already been started",
            ));
        };
        let accept = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream);
        let stream = match threads {
            None => accept.await?,
            Some(threads) => {
                // The `JoinSet` aborts its task when it is dropped, for example at the handshake's
                // time limit.
                let mut task = JoinSet::new();
                task.spawn_on(accept, threads.next());
                task.join_next().await.expect("it has one task").map_err(io::Error::other)??
            }
        };
        Ok(Self::Tls(Box::new(stream)))
    }
}

/// The threads that perform TLS handshakes. With an RSA key each signature takes milliseconds, and
/// on these threads it delays no other work. Each thread computes for one handshake at a time;
/// handshakes that wait for their clients use no thread. The threads end when the last clone of
/// this is dropped.
#[derive(Clone, Debug)]
pub struct TlsThreads {
    threads: Arc<[TlsThread]>,
    /// Handshakes begun so far.
    begun: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct TlsThread {
    runtime: Handle,
    /// The thread ends when this is dropped.
    _end: oneshot::Sender<()>,
}

impl TlsThread {
    fn start() -> io::Result<TlsThread> {
        // This runtime needs no I/O and timer drivers: the sockets and timers belong to the
        // caller's runtime.
        let runtime = Builder::new_current_thread().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let run = move || drop(runtime.block_on(ended));
        std::thread::Builder::new().name("fairq-tls".into()).spawn(run)?;
        Ok(TlsThread { runtime: handle, _end: end })
    }
}

impl TlsThreads {
    /// Starts the threads: one for every two CPUs, from 1 to 4.
    pub fn start() -> io::Result<TlsThreads> {
        // The other half of the CPUs is left to shards and the control thread.
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = (cpus / 2).clamp(1, TLS_THREADS_MAX);
        let threads = (0..count).map(|_| TlsThread::start()).collect::<io::Result<_>>()?;
        Ok(TlsThreads { threads, begun: Arc::default() })
    }

    /// The next thread in round-robin order.
    fn next(&self) -> &Handle {
        let turn = self.begun.fetch_add(1, Ordering::Relaxed);
        &self.threads[turn % self.threads.len()].runtime
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream<S> {
    /// Whether the stream is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether the client has presented a certificate.
    pub fn is_certified(&self) -> bool {
        let Self::Tls(stream) = self else { return false };
        stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty())
    }

    /// The names in the client's certificate; none without TLS or without a certificate.
    pub fn client_names(&self) -> Vec<String> {
        let Self::Tls(stream) = self else { return Vec::new() };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        chain.first().map(names_of).unwrap_or_default()
    }

    /// Separates the socket and the TLS state for the transmission phase.
    pub fn into_established(self) -> Established<S> {
        match self {
            Self::Plain(stream) => Established::Plain(stream),
            Self::Tls(stream) => {
                let (stream, mut session) = stream.into_inner();
                // By default rustls accepts 64 KiB of plain text before its records are fetched,
                // which is less than one reply to a long read. The code that writes to the session
                // from here on bounds its batches.
                session.set_buffer_limit(None);
                Established::Tls { stream, session: Box::new(session) }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
