//! TLS inside the handshake: when it may, must and must not start, and the exports that a
//! certificate opens.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fairq_host::nbd::session::tls::TlsError;
use fairq_host::nbd::wire::option::{info, opt, rep};
use fairq_host::nbd::wire::proto::Negotiated;
use fairq_host::nbd::{
    Established, Export, Exports, HandshakeError, HandshakeOptions, Outcome, Peer, Tls, TlsMode,
    handshake,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::*;

/// An authority and a directory for the certificates that it issues.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
struct Issued {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn issue(&self, common_name: Option<&str>, dns_names: &[&str]) -> Issued {
        self.issue_with(common_name, dns_names, |_| ())
    }

    fn issue_with(
        &self,
        common_name: Option<&str>,
        dns_names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let names: Vec<String> = dns_names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        change(&mut params);
        let secret = KeyPair::generate().unwrap();
        let file = format!("{}-{}", common_name.unwrap_or("nameless"), dns_names.join("-"));
        let issued = Issued {
            certificate: self.path(&format!("{file}.pem")),
            key: self.path(&format!("{file}.key")),
        };
        std::fs::write(&issued.certificate, params.signed_by(&secret, &self.issuer).unwrap().pem())
            .unwrap();
        std::fs::write(&issued.key, secret.serialize_pem()).unwrap();
        issued
    }

    /// A server with a certificate of this authority, which requires one of its clients if
    /// `ask_clients`.
    fn server(&self, ask_clients: bool) -> Tls {
        let server = self.issue(Some("server"), &["localhost"]);
        let ca = self.path("ca.pem");
        let tls =
            Tls::load(&server.certificate, &server.key, ask_clients.then_some(ca.as_path()), None)
                .unwrap();
        assert_eq!(tls.clients_certified(), ask_clients);
        tls
    }

    /// A client that trusts this authority, and has the certificate `identity`, if any.
    fn connector(
        &self,
        identity: Option<&Issued>,
        version: &'static SupportedProtocolVersion,
    ) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let chain = vec![CertificateDer::from_pem_file(&issued.certificate).unwrap()];
                builder
                    .with_client_auth_cert(
                        chain,
                        PrivateKeyDer::from_pem_file(&issued.key).unwrap(),
                    )
                    .unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

/// `common` for all clients; `db` for alice, `logs` for bob.
fn tenants() -> Exports {
    let owned = |name: &str, owner: &str| {
        let mut export = Export::new(name, 1 << 20);
        export.allowed_identity = Some(owner.into());
        export
    };
    Exports::new(
        vec![Export::new("common", 1 << 20), owned("db", "alice"), owned("logs", "bob")],
        None,
    )
    .unwrap()
}

type Server = JoinHandle<Result<Outcome<DuplexStream>, HandshakeError>>;

/// Starts a handshake and greets the server.
async fn connect(tls: TlsMode) -> (DuplexStream, Server) {
    let (mut client, server) = tokio::io::duplex(PIPE);
    let options = HandshakeOptions { tls, timeout: Duration::from_secs(60), tls_threads: None };
    let server =
        tokio::spawn(async move { handshake(server, &tenants(), &options, Peer::default()).await });
    greet(&mut client, FIXED | NO_ZEROES).await;
    (client, server)
}

/// Starts TLS.
async fn start_tls(
    mut client: DuplexStream,
    connector: &TlsConnector,
) -> std::io::Result<TlsStream<DuplexStream>> {
    let answer = ask(&mut client, &option(opt::STARTTLS, b"")).await;
    assert_eq!((answer[0].kind, answer[0].data.len()), (rep::ACK, 0));
    connector.connect("localhost".try_into().unwrap(), client).await
}

fn kinds(replies: &[Reply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.kind).collect()
}

/// The names in the answer to a listing.
async fn listed(client: &mut TlsStream<DuplexStream>) -> Vec<String> {
    let replies = ask(client, &option(opt::LIST, b"")).await;
    let names = replies.iter().filter(|reply| reply.kind == rep::SERVER);
    names.map(|reply| String::from_utf8(reply.data[4..].to_vec()).unwrap()).collect()
}

/// Reads plain text in the transmission phase without a runtime, as a shard does.
async fn read_plain(stream: &mut DuplexStream, session: &mut ServerConnection, plain: &mut [u8]) {
    let mut filled = 0;
    let mut records = [0; 512];
    while filled < plain.len() {
        match session.reader().read(&mut plain[filled..]) {
            Ok(count) => filled += count,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                let count = stream.read(&mut records).await.unwrap();
                assert!(count > 0, "the client is still there");
                let mut received = &records[..count];
                while !received.is_empty() {
                    session.read_tls(&mut received).unwrap();
                    session.process_new_packets().unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn an_identity_opens_its_export_and_the_stream_goes_on() {
    let authority = Authority::new();
    // The name may be the common name, or one of several DNS names.
    let certificates = [
        authority.issue(Some("alice"), &[]),
        authority.issue(Some("host7"), &["host7.example", "alice"]),
        authority.issue(None, &["alice"]),
    ];
    for issued in &certificates {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let (client, server) = connect(TlsMode::Required(authority.server(true))).await;
            let mut client =
                start_tls(client, &authority.connector(Some(issued), version)).await.unwrap();
            assert_eq!(listed(&mut client).await, ["common", "db"]);
            // The first request comes in the same flight as the last option.
            let request = [9_u8; 32 * 1024];
            client.write_all(&go("db")).await.unwrap();
            client.write_all(&request).await.unwrap();
            client.flush().await.unwrap();
            let Ok(Outcome::Transmission { negotiated, stream }) = server.await.unwrap() else {
                panic!("no GO")
            };
            assert_eq!((negotiated.export, negotiated.identity.as_deref()), (1, Some("alice")));
            let Established::Tls { mut stream, mut session } = stream else { panic!("plain text") };
            let mut received = [0; 32 * 1024];
            read_plain(&mut stream, &mut session, &mut received).await;
            assert_eq!(received, request);
            // A batch of replies is longer than TLS' default buffer.
            let reply: Vec<u8> = (0..1 << 20).map(|at| (at / 7) as u8).collect();
            session.writer().write_all(&reply).unwrap();
            let mut records = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut records).unwrap();
            }
            stream.write_all(&records).await.unwrap();
            for kind in [rep::INFO, rep::ACK] {
                assert_eq!(read_reply(&mut client).await.kind, kind);
            }
            let mut received = vec![0; reply.len()];
            client.read_exact(&mut received).await.unwrap();
            assert!(received == reply);
        }
    }
}

#[tokio::test]
async fn another_identity_finds_nothing() {
    let authority = Authority::new();
    let certificates = [
        authority.issue(Some("mallory"), &["alice.example", "*"]),
        authority.issue(Some("Alice"), &["alic", "alice2"]),
    ];
    for issued in &certificates {
        let (client, server) = connect(TlsMode::Optional(authority.server(true))).await;
        let mut client =
            start_tls(client, &authority.connector(Some(issued), &rustls::version::TLS13))
                .await
                .unwrap();
        assert_eq!(listed(&mut client).await, ["common"]);
        let missing = ask(&mut client, &option(opt::INFO, &info_data("nothing", &[]))).await;
        for number in [opt::INFO, opt::GO] {
            let answer = ask(&mut client, &option(number, &info_data("db", &[info::NAME]))).await;
            assert_eq!(kinds(&answer), [rep::ERR_UNKNOWN]);
            assert_eq!(answer[0].data, missing[0].data, "not yours and not there look alike");
        }
        assert_eq!(kinds(&ask(&mut client, &option(opt::STRUCTURED_REPLY, b"")).await), [rep::ACK]);
        let contexts = option(opt::SET_META_CONTEXT, &context_data("db", &["base:allocation"]));
        assert_eq!(kinds(&ask(&mut client, &contexts).await), [rep::ERR_UNKNOWN]);
        client.write_all(&option(opt::EXPORT_NAME, b"db")).await.unwrap();
        client.flush().await.unwrap();
        assert!(matches!(
            server.await.unwrap(),
            Err(HandshakeError::Refused { option: opt::EXPORT_NAME, .. })
        ));
    }
}

/// The TLS handshake fails without a certificate, with one of a foreign authority, and with an
/// expired one.
#[tokio::test]
async fn a_missing_or_foreign_certificate_ends_the_connection() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let foreign = stranger.issue(Some("alice"), &[]);
    let expired = authority.issue_with(Some("alice"), &["expired"], |params| {
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2002, 1, 1);
    });
    for identity in [None, Some(&foreign), Some(&expired)] {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let (client, server) = connect(TlsMode::Required(authority.server(true))).await;
            if let Ok(mut client) = start_tls(client, &authority.connector(identity, version)).await
            {
                // With TLS 1.3 the client gets the error when it reads.
                let _ = client.write_all(&go("db")).await;
                assert!(client.read_u8().await.is_err());
            }
            assert!(matches!(server.await.unwrap(), Err(HandshakeError::Tls(_))));
        }
    }
}

/// Without an authority for clients TLS encrypts the traffic, and no client has an identity.
#[tokio::test]
async fn anonymous_clients_open_what_is_open() {
    let authority = Authority::new();
    let (client, server) = connect(TlsMode::Optional(authority.server(false))).await;
    let mut client =
        start_tls(client, &authority.connector(None, &rustls::version::TLS13)).await.unwrap();
    assert_eq!(listed(&mut client).await, ["common"]);
    assert_eq!(kinds(&ask(&mut client, &go("db")).await), [rep::ERR_UNKNOWN]);
    assert_eq!(kinds(&ask(&mut client, &go("common")).await), [rep::INFO, rep::ACK]);
    let Ok(Outcome::Transmission { negotiated, .. }) = server.await.unwrap() else {
        panic!("no GO")
    };
    assert_eq!(negotiated.identity, None);
}

#[tokio::test]
async fn required_tls_comes_before_everything() {
    let authority = Authority::new();
    let (mut client, server) = connect(TlsMode::Required(authority.server(false))).await;
    for number in
        [opt::LIST, opt::INFO, opt::GO, opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS, 9, 10, 4, 99]
    {
        for data in [&info_data("common", &[])[..], b""] {
            assert_eq!(
                kinds(&ask(&mut client, &option(number, data)).await),
                [rep::ERR_TLS_REQD],
                "option {number}"
            );
        }
    }
    let long = vec![0; 100_000];
    assert_eq!(kinds(&ask(&mut client, &option(opt::LIST, &long)).await), [rep::ERR_TLS_REQD]);
    assert_eq!(kinds(&ask(&mut client, &option(opt::STARTTLS, b"x")).await), [rep::ERR_INVALID]);
    let mut client =
        start_tls(client, &authority.connector(None, &rustls::version::TLS13)).await.unwrap();
    assert_eq!(kinds(&ask(&mut client, &option(opt::STARTTLS, b"")).await), [rep::ERR_INVALID]);
    assert_eq!(kinds(&ask(&mut client, &option(99, b"")).await), [rep::ERR_UNSUP]);
    assert_eq!(kinds(&ask(&mut client, &option(opt::ABORT, b"")).await), [rep::ACK]);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "TLS is closed in an orderly way");
    assert!(matches!(server.await.unwrap(), Ok(Outcome::Closed)));
}

#[tokio::test]
async fn required_tls_refuses_the_old_way_in() {
    let authority = Authority::new();
    let options = HandshakeOptions {
        tls: TlsMode::Required(authority.server(false)),
        timeout: Duration::from_secs(60),
        tls_threads: None,
    };
    for flags in [0, FIXED] {
        let script = [hello(flags), option(opt::EXPORT_NAME, b"common")].concat();
        let played = play(&tenants(), &options, &script).await;
        assert!(matches!(
            played.result,
            Err(HandshakeError::Refused { option: opt::EXPORT_NAME, .. })
        ));
        assert_eq!(played.sent, b"");
    }
    let abort = play(&tenants(), &options, &[hello(FIXED), option(opt::ABORT, b"")].concat()).await;
    assert_eq!(abort.kinds(), [(opt::ABORT, rep::ACK)], "a good-bye needs no TLS");
}

/// If TLS is optional, only exports with an identity need it, and unknown exports get the same
/// answer.
#[tokio::test]
async fn optional_tls_is_needed_for_exports_with_an_identity() {
    let authority = Authority::new();
    let (mut client, server) = connect(TlsMode::Optional(authority.server(true))).await;
    let list = ask(&mut client, &option(opt::LIST, b"")).await;
    assert_eq!(kinds(&list), [rep::SERVER, rep::ACK]);
    for name in ["db", "logs", "nothing", ""] {
        assert_eq!(kinds(&ask(&mut client, &go(name)).await), [rep::ERR_TLS_REQD]);
        assert_eq!(
            kinds(&ask(&mut client, &option(opt::INFO, &info_data(name, &[]))).await),
            [rep::ERR_TLS_REQD]
        );
    }
    // Other options must not answer with TLS_REQD in this mode.
    assert_eq!(kinds(&ask(&mut client, &option(opt::STRUCTURED_REPLY, b"")).await), [rep::ACK]);
    let contexts = option(opt::LIST_META_CONTEXT, &context_data("db", &[]));
    assert_eq!(kinds(&ask(&mut client, &contexts).await), [rep::ERR_UNKNOWN]);
    assert_eq!(kinds(&ask(&mut client, &go("common")).await), [rep::INFO, rep::ACK]);
    assert!(matches!(
        server.await.unwrap(),
        Ok(Outcome::Transmission { negotiated: Negotiated { export: 0, identity: None, .. }, .. })
    ));
}

/// An attacker in between may have made the agreements in plain text.
#[tokio::test]
async fn tls_forgets_what_was_said_before() {
    let authority = Authority::new();
    let (mut client, server) = connect(TlsMode::Optional(authority.server(false))).await;
    assert_eq!(kinds(&ask(&mut client, &option(opt::EXTENDED_HEADERS, b"")).await), [rep::ACK]);
    let contexts = option(opt::SET_META_CONTEXT, &context_data("common", &["base:allocation"]));
    assert_eq!(kinds(&ask(&mut client, &contexts).await), [rep::META_CONTEXT, rep::ACK]);
    let mut client =
        start_tls(client, &authority.connector(None, &rustls::version::TLS13)).await.unwrap();
    assert_eq!(kinds(&ask(&mut client, &go("common")).await), [rep::INFO, rep::ACK]);
    let Ok(Outcome::Transmission { negotiated, .. }) = server.await.unwrap() else {
        panic!("no GO")
    };
    assert!(!negotiated.extended && !negotiated.structured && negotiated.base_allocation.is_none());
}

/// Options that an attacker adds after `STARTTLS` in plain text have no effect: they are no TLS.
#[tokio::test]
async fn plain_text_after_starttls_is_not_obeyed() {
    let authority = Authority::new();
    let (mut client, server) = connect(TlsMode::Optional(authority.server(false))).await;
    client.write_all(&[option(opt::STARTTLS, b""), go("common")].concat()).await.unwrap();
    assert!(matches!(server.await.unwrap(), Err(HandshakeError::Tls(_))));
    assert_eq!(read_reply(&mut client).await.kind, rep::ACK);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.first(), Some(&21), "the rest is a TLS alert: {rest:?}");
}

/// A client that stops in the middle of the TLS handshake is cut off in time like any other.
#[tokio::test(start_paused = true)]
async fn tls_is_within_the_time_limit() {
    let authority = Authority::new();
    let (mut client, server) = tokio::io::duplex(PIPE);
    client
        .write_all(&[hello(FIXED), option(opt::STARTTLS, b""), vec![22, 3, 1]].concat())
        .await
        .unwrap();
    let options = HandshakeOptions { tls: TlsMode::Optional(authority.server(false)), ..plain() };
    assert!(matches!(
        handshake(server, &tenants(), &options, Peer::default()).await,
        Err(HandshakeError::Timeout(_))
    ));
}

/// A certificate that its authority has revoked is refused, and a file without a list is an error.
#[tokio::test]
async fn revoked_certificates_are_refused() {
    let authority = Authority::new();
    let alice = authority.issue(Some("alice"), &[]);
    let revoked = authority
        .issue_with(Some("revoked"), &[], |params| params.serial_number = Some(77_u64.into()));
    let time = |year| rcgen::date_time_ymd(year, 1, 1);
    let list = rcgen::CertificateRevocationListParams {
        this_update: time(2020),
        next_update: time(2090),
        crl_number: 1_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: 77_u64.into(),
            revocation_time: time(2021),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let crl = authority.path("revoked.crl");
    std::fs::write(&crl, list.signed_by(&authority.issuer).unwrap().pem().unwrap()).unwrap();
    let server = authority.issue(Some("server"), &["localhost"]);
    let ca = authority.path("ca.pem");
    let tls = Tls::load(&server.certificate, &server.key, Some(&ca), Some(&crl)).unwrap();
    for (identity, welcome) in [(&alice, true), (&revoked, false)] {
        let (client, server) = connect(TlsMode::Required(tls.clone())).await;
        let connector = authority.connector(Some(identity), &rustls::version::TLS12);
        let client = start_tls(client, &connector).await;
        assert_eq!(client.is_ok(), welcome, "{identity:?}");
        drop(client);
        match server.await.unwrap() {
            Ok(_) => assert!(welcome),
            Err(error) => assert!(!welcome && error.to_string().contains("Revoked"), "{error}"),
        }
    }
    let none = Tls::load(&server.certificate, &server.key, Some(&ca), Some(&ca)).unwrap_err();
    assert!(none.to_string().contains("BEGIN X509 CRL"), "{none}");
}

/// Each message names the faulty file.
#[test]
fn unusable_files() {
    let authority = Authority::new();
    let good = authority.issue(Some("server"), &["localhost"]);
    let other = authority.issue(Some("other"), &[]);
    let absent = authority.path("absent.pem");
    let empty = authority.path("empty.pem");
    std::fs::write(&empty, "no sections here\n").unwrap();
    let damaged = authority.path("damaged.pem");
    std::fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let no_certificate = authority.path("nonsense.pem");
    std::fs::write(
        &no_certificate,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let load = |certificate, key, ca: Option<&PathBuf>| {
        let error = Tls::load(certificate, key, ca.map(PathBuf::as_path), None).unwrap_err();
        (error.to_string(), error)
    };
    let cases = [
        (load(&absent, &good.key, None), &absent, "check the path"),
        (load(&good.certificate, &absent, None), &absent, "check the path"),
        (load(&empty, &good.key, None), &empty, "BEGIN CERTIFICATE"),
        (load(&good.certificate, &good.certificate, None), &good.certificate, "BEGIN PRIVATE KEY"),
        (load(&good.certificate, &good.key, Some(&empty)), &empty, "BEGIN CERTIFICATE"),
        (load(&damaged, &good.key, None), &damaged, "damaged"),
        (load(&good.certificate, &other.key, None), &other.key, "requested with"),
        (load(&good.certificate, &good.key, Some(&no_certificate)), &no_certificate, "authority"),
    ];
    for ((message, error), path, cure) in cases {
        assert!(message.contains(&path.display().to_string()), "{message} names {path:?}");
        assert!(message.contains(cure), "{message} has a cure: {cure}");
        assert!(!matches!(error, TlsError::Read { .. }) || path == &absent);
    }
}
