//! Connecting to a server and opening one of its exports, in plain text or with TLS.
//!
//! Addresses are NBD URIs as in libnbd and qemu. The files for TLS are also as there: a directory
//! with `ca-cert.pem`, which must have signed the server's certificate, and optionally
//! `client-cert.pem` and `client-key.pem`.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_send_buffer_size, set_socket_timeout, set_tcp_nodelay,
};
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustls::ClientConnection;

use crate::measure::client::channel::Channel;
use crate::nbd::session::tls::connect_as;
use crate::nbd::wire::option::{info, opt, rep};
use crate::nbd::wire::proto::magic;

/// The send buffer to request from the kernel on a Unix socket, in bytes; the kernel grants it up
/// to the system's limit. It is large enough to hold the next large request, so that the server can
/// receive that one while the client is being woken for the reply to the last one.
const SEND_BUFFER: usize = 512 << 10;
/// The longest answer to an option, in bytes.
const ANSWER_MAX: u32 = 65_536;

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server's address.
    pub server: Server,
    /// The export's name; empty for the server's default.
    pub export: String,
    /// The TLS settings; `None` for no TLS.
    pub tls: Option<TlsFiles>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host name or address, and a port.
    Tcp(String, u16),
}

/// The TLS settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The directory of the certificates.
    pub certificates: PathBuf,
    /// The name that the server's certificate has to have.
    pub host: String,
}

impl Target {
    /// Parses an NBD URI: `nbd+unix:///EXPORT?socket=PATH` or `nbd://HOST[:PORT]/EXPORT`. With TLS
    /// the schemes are `nbds+unix:` or `nbds:`, and the query has `tls-certificates=DIRECTORY` and,
    /// if the certificate's name is not the host's, `tls-hostname=NAME`.
    pub fn parse(uri: &str) -> Result<Target, String> {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let unknown = || {
            format!(
                "'{uri}' is neither nbd+unix:///EXPORT?socket=PATH nor nbd://HOST[:PORT]/EXPORT"
            )
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(unknown)?;
        let (with_tls, is_unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(unknown()),
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let value = |key: &str| {
            query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=')).map(decode)
        };
        let (authority, export) = place.split_once('/').unwrap_or((place, ""));
        let server = if is_unix {
            let socket = value("socket").filter(|_| authority.is_empty());
            Server::Unix(
                socket
                    .ok_or("nbd+unix URIs name the socket: nbd+unix:///EXPORT?socket=PATH")?
                    .into(),
            )
        } else {
            let (host, port) = match authority.rsplit_once(':') {
                // The last colon of `[::1]` is inside the address.
                Some((host, port)) if !port.ends_with(']') => {
                    (host, port.parse().map_err(|_| format!("'{port}' is not a port number"))?)
                }
                // The default port, which IANA has assigned to NBD.
                _ => (authority, 10_809),
            };
            Server::Tcp(host.trim_start_matches('[').trim_end_matches(']').to_string(), port)
        };
        let tls = match (with_tls, value("tls-certificates")) {
            (false, _) => None,
            (true, None) => {
                return Err(
                    "with TLS the URI names the directory of certificates: …?tls-certificates=DIRECTORY"
                        .into(),
                );
            }
            (true, Some(certificates)) => {
                let host = value("tls-hostname").unwrap_or_else(|| match &server {
                    Server::Unix(_) => "localhost".into(),
                    Server::Tcp(host, _) => host.clone(),
                });
                Some(TlsFiles { certificates: certificates.into(), host })
            }
        };
        Ok(Target { server, export: decode(export), tls })
    }
}

trait Transport: Read + Write {}
impl<T: Read + Write> Transport for T {}

/// A socket during the handshake, with a deadline for the whole handshake.
struct Timed {
    socket: OwnedFd,
    deadline: Instant,
}

impl Timed {
    /// Connects a socket of this kind to an address.
    fn connect(address: &SocketAddrAny, deadline: Instant) -> io::Result<Timed> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(address.address_family(), SocketType::STREAM, flags, None)?;
        let timed = Timed { socket, deadline };
        // The timeout for sending also bounds `connect`.
        timed.bound(Timeout::Send)?;
        match connect(&timed.socket, address) {
            Err(Errno::INPROGRESS | Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
            result => Ok(result.map(|()| timed)?),
        }
    }

    /// Bounds the next call by the time that is left.
    fn bound(&self, direction: Timeout) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // For the kernel 0 means no bound, and it counts in microseconds.
        let left = left.max(Duration::from_micros(1));
        Ok(set_socket_timeout(&self.socket, direction, Some(left))?)
    }
}

/// The error of a call that has failed or exceeded its timeout.
fn timed_out(error: Errno) -> io::Error {
    if error == Errno::AGAIN { io::ErrorKind::TimedOut.into() } else { error.into() }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.bound(Timeout::Recv)?;
        rustix::io::retry_on_intr(|| recv(&self.socket, &mut *into, RecvFlags::empty()))
            .map(|(_, count)| count)
            .map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound(Timeout::Send)?;
        rustix::io::retry_on_intr(|| send(&self.socket, bytes, SendFlags::NOSIGNAL))
            .map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects and opens the export within this time; returns the connection and the export's size in
/// bytes.
pub(super) fn connect_to(target: &Target, timeout: Duration) -> io::Result<(Channel, u64)> {
    try_connect(target, Instant::now() + timeout).map_err(|error| {
        let at = match &target.server {
            Server::Unix(path) => path.display().to_string(),
            Server::Tcp(host, port) => format!("{host}:{port}"),
        };
        let (text, cure) = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                (error.to_string(), ": no server listens there: start it, or correct the address")
            }
            io::ErrorKind::TimedOut => (
                format!("the handshake did not end within {timeout:.2?}"),
                ": the server hangs, or it takes longer: see its log, or allow more with --timeout",
            ),
            _ => (error.to_string(), ""),
        };
        let export = &target.export;
        io::Error::new(error.kind(), format!("cannot open export '{export}' at {at}: {text}{cure}"))
    })
}

fn try_connect(target: &Target, deadline: Instant) -> io::Result<(Channel, u64)> {
    let mut stream = match &target.server {
        Server::Unix(path) => {
            let stream = Timed::connect(&SocketAddrUnix::new(path)?.into(), deadline)?;
            set_socket_send_buffer_size(&stream.socket, SEND_BUFFER)?;
            stream
        }
        Server::Tcp(host, port) => {
            let stream = connect_tcp(host, *port, deadline)?;
            set_tcp_nodelay(&stream.socket, true)?;
            stream
        }
    };
    let (session, size) = open(&mut stream, target)?;
    Ok((Channel::new(stream.socket, session), size))
}

/// Connects to the first of the host's addresses that answers.
fn connect_tcp(host: &str, port: u16, deadline: Instant) -> io::Result<Timed> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match Timed::connect(&address.into(), deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// The client's side of the shortest handshake: TLS if requested, then the export.
fn open(
    stream: &mut dyn Transport,
    target: &Target,
) -> io::Result<(Option<Box<ClientConnection>>, u64)> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if greeting[..8] != magic::GREETING.to_be_bytes()
        || greeting[8..16] != magic::OPTION.to_be_bytes()
    {
        return Err(invalid("this is not an NBD server (newstyle)"));
    }
    // The client requests fixed newstyle and no zeroes, so the answer to `EXPORT_NAME` ends after
    // ten bytes.
    stream.write_all(&3u32.to_be_bytes())?;
    let Some(files) = &target.tls else { return Ok((None, open_export(stream, &target.export)?)) };
    send_option(stream, opt::STARTTLS, &[])?;
    let (kind, data) = answer(stream)?;
    if kind != rep::ACK {
        return Err(refusal(kind, &data));
    }
    let mut session =
        Box::new(connect_as(&files.certificates, &files.host).map_err(io::Error::other)?);
    let size =
        open_export(&mut rustls::Stream::new(&mut *session, &mut { stream }), &target.export)?;
    // The code that writes to the session from here on bounds its own batches.
    session.set_buffer_limit(None);
    Ok((Some(session), size))
}

/// Opens an export by `GO`, or by `EXPORT_NAME` on servers without `GO`; returns its size in bytes.
fn open_export(stream: &mut dyn Transport, export: &str) -> io::Result<u64> {
    let mut go = Vec::from((export.len() as u32).to_be_bytes());
    go.extend_from_slice(export.as_bytes());
    go.extend_from_slice(&0u16.to_be_bytes());
    send_option(stream, opt::GO, &go)?;
    let mut size = None;
    loop {
        match answer(stream)? {
            (rep::ACK, _) => {
                return size
                    .ok_or_else(|| invalid("the server did not send the size of the export"));
            }
            (rep::INFO, data) if data.len() >= 12 && data[..2] == info::EXPORT.to_be_bytes() => {
                size = data[2..10].try_into().ok().map(u64::from_be_bytes);
            }
            // The specification requires that a client ignores unknown information.
            (rep::INFO, _) => {}
            // The specification requires that clients fall back to `EXPORT_NAME` on old servers.
            (rep::ERR_UNSUP, _) => return open_by_name(stream, export),
            (kind, data) => return Err(refusal(kind, &data)),
        }
    }
}

fn refusal(kind: u32, message: &[u8]) -> io::Error {
    invalid(&format!(
        "the server refuses it (error {kind:#x}) {}",
        String::from_utf8_lossy(message)
    ))
}

/// Opens an export by `EXPORT_NAME`.
fn open_by_name(stream: &mut dyn Transport, export: &str) -> io::Result<u64> {
    send_option(stream, opt::EXPORT_NAME, export.as_bytes())?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    let (size, _flags) = reply.split_at(8);
    Ok(u64::from_be_bytes(size.try_into().expect("eight bytes")))
}

fn send_option(stream: &mut dyn Transport, option: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::from(magic::OPTION.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)
}

/// The next answer to an option: its type and its data.
fn answer(stream: &mut dyn Transport) -> io::Result<(u32, Vec<u8>)> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (kind, length) = (word(12), word(16));
    if header[..8] != magic::OPTION_REPLY.to_be_bytes() || length > ANSWER_MAX {
        return Err(invalid("the server sent bytes that are not a reply to an option"));
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris() {
        let unix = Target::parse("nbd+unix:///my%20disk?socket=/run/fairq.sock").unwrap();
        let expected = Target {
            server: Server::Unix("/run/fairq.sock".into()),
            export: "my disk".into(),
            tls: None,
        };
        assert_eq!(unix, expected);
        let tcp = |uri: &str| match Target::parse(uri).unwrap() {
            Target { server: Server::Tcp(host, port), export, tls: None } => (host, port, export),
            other => panic!("{other:?}"),
        };
        assert_eq!(tcp("nbd://localhost/db"), ("localhost".into(), 10_809, "db".into()));
        assert_eq!(tcp("nbd://[::1]:9000/db"), ("::1".into(), 9000, "db".into()));
        assert_eq!(tcp("nbd://[::1]"), ("::1".into(), 10_809, String::new()));
        assert!(Target::parse("nbd+unix:///db").is_err());
        assert!(Target::parse("http://example/").is_err());
        assert!(Target::parse("nbd://host:port/db").is_err());
    }

    #[test]
    fn uris_with_tls_say_where_certificates_are() {
        let tls = |uri: &str| {
            Target::parse(uri).unwrap().tls.map(|files| (files.certificates, files.host))
        };
        assert_eq!(
            tls("nbds://db.example/x?tls-certificates=/pki"),
            Some(("/pki".into(), "db.example".into()))
        );
        assert_eq!(
            tls("nbds+unix:///x?socket=/s&tls-certificates=/p%20i&tls-hostname=db"),
            Some(("/p i".into(), "db".into()))
        );
        assert_eq!(
            tls("nbds+unix:///?tls-certificates=/pki&socket=/s"),
            Some(("/pki".into(), "localhost".into()))
        );
        assert!(Target::parse("nbds://db.example/x").unwrap_err().contains("tls-certificates"));
    }
}
