//! The sockets at which clients, control programs and scrapers connect.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::nbd::session::users::Users;
use crate::server::MAX_HANDSHAKES;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// A directory with a socket for the guests of each tenant.
    VhostUser(PathBuf),
    /// A directory with an NVMe controller for the guests of each tenant.
    VfioUser(PathBuf),
    /// A directory with one NVMe controller that has the whole device.
    VfioUserDevice(PathBuf),
    /// The sockets that the service manager has passed (`LISTEN_FDS`).
    Inherited,
    /// The connection on standard input, as inetd passes it. The server ends with this connection.
    Stdio,
    /// Block devices of this machine, one for each tenant that needs no certificate.
    Ublk,
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
            Listen::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
            Listen::VfioUser(path) => write!(f, "vfio-user:{}", path.display()),
            Listen::VfioUserDevice(path) => write!(f, "vfio-user-device:{}", path.display()),
            Listen::Inherited => f.write_str("inherited sockets"),
            Listen::Stdio => f.write_str("standard input"),
            Listen::Ublk => f.write_str("ublk"),
        }
    }
}

/// A socket that accepts connections. The file of a Unix socket is removed when the socket is
/// closed.
pub(super) enum Listener {
    /// The file is removed only if this process has created it.
    Unix {
        listener: UnixListener,
        name: Option<Arc<OwnName>>,
    },
    Tcp(TcpListener),
}

/// The name of a socket that this process has made.
pub(super) struct OwnName(pub(super) PathBuf);

impl Listener {
    /// Keeps the socket's file when the socket is closed.
    pub(super) fn leave_name(self) {
        if let Listener::Unix { name: Some(name), .. } = self {
            std::mem::forget(name);
        }
    }
}

impl Drop for OwnName {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A connection of either kind.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// The origin of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Source {
    /// A process of this machine.
    Process(i32),
    /// A machine with this address.
    Address(IpAddr),
    /// The kernel does not report the source.
    Unknown,
}

impl Stream {
    /// The source of the connection.
    pub(super) fn source(&self) -> Source {
        let source = match self {
            Stream::Unix(stream) => {
                stream.peer_cred().ok().and_then(|of| of.pid()).map(Source::Process)
            }
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|at| Source::Address(at.ip())),
        };
        source.unwrap_or(Source::Unknown)
    }
}

impl Listener {
    /// The next connection, and its peer. A TCP peer may be silent for `peer_timeout`.
    pub(super) async fn accept(&self, peer_timeout: Duration) -> io::Result<(Stream, String)> {
        match self {
            Listener::Unix { listener, .. } => listener
                .accept()
                .await
                .map(|(stream, _)| (Stream::Unix(stream), "unix socket".into())),
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Requests are small and clients wait for the replies, so they are sent without
                // delay.
                let _ = stream.set_nodelay(true);
                notice_death(&stream, peer_timeout);
                Ok((Stream::Tcp(stream), peer.to_string()))
            }
        }
    }

    /// Takes over a socket that is already listening.
    pub(super) fn of(fd: OwnedFd) -> io::Result<Listener> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        match rustix::net::getsockname(&fd)?.address_family() {
            AddressFamily::UNIX => {
                Ok(Listener::Unix { listener: UnixListener::from_std(fd.into())?, name: None })
            }
            _ => TcpListener::from_std(fd.into()).map(Listener::Tcp),
        }
    }

    /// The socket's name, if this process has made it.
    pub(super) fn name(&self) -> Option<Arc<OwnName>> {
        match self {
            Listener::Unix { name, .. } => name.clone(),
            Listener::Tcp(_) => None,
        }
    }

    /// Duplicates its descriptor.
    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix { listener, .. } => listener.as_fd().try_clone_to_owned(),
            Listener::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
        }
    }

    /// The address at which it listens; `at` is the requested one.
    pub(super) fn place(&self, at: &Listen) -> io::Result<Listen> {
        match self {
            Listener::Tcp(listener) => Ok(Listen::Tcp(listener.local_addr()?)),
            // The service manager does not report the address. A socket without a name has no other
            // address.
            Listener::Unix { listener, .. } if *at == Listen::Inherited => Ok(listener
                .local_addr()?
                .as_pathname()
                .map_or(Listen::Inherited, |path| Listen::Unix(path.into()))),
            Listener::Unix { .. } => Ok(at.clone()),
        }
    }
}

/// Opens the listeners of an address; the error message says what to do. Must be called within the
/// runtime.
pub(super) fn bind(at: &Listen) -> Result<Vec<Listener>, String> {
    match at {
        Listen::Unix(path) => Ok(vec![bind_unix(path)?]),
        Listen::Tcp(address) => {
            let listener = bind_tcp(*address).map_err(|error| explain_tcp(&error))?;
            Ok(vec![Listener::Tcp(listener)])
        }
        Listen::VhostUser(_)
        | Listen::VfioUser(_)
        | Listen::VfioUserDevice(_)
        | Listen::Ublk
        | Listen::Inherited
        | Listen::Stdio => Err(format!("{at} is not an address to listen on")),
    }
}

/// Makes the kernel end a connection whose peer has been silent for `timeout`, since a machine that
/// has lost power or its network does not close the connection. A peer that does not accept its
/// replies counts as silent. A socket that refuses these options is served without them.
fn notice_death(stream: &TcpStream, timeout: Duration) {
    // The kernel takes these times in whole seconds.
    let part = |of: u32| (timeout / of).max(Duration::from_secs(1));
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, part(3));
    let _ = sockopt::set_tcp_keepintvl(stream, part(6));
    let _ = sockopt::set_tcp_keepcnt(stream, 4);
    let _ = sockopt::set_tcp_user_timeout(stream, timeout.as_millis() as u32);
}

/// Listens on a Unix socket that only the same user may use.
pub(super) fn bind_private(path: &Path) -> Result<Listener, String> {
    // The umask restricts the permissions from the beginning, so no client can connect before they
    // are right. The shards create no files that the umask could affect.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = bind_unix(path);
    rustix::process::umask(before);
    let listener = listener?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(|error| error.to_string())?;
    Ok(listener)
}

/// Listens on a Unix socket that these users may use, or any user if none is named. Owner and mode
/// can admit one user and one group. If there are more, or if this process may not change the
/// owner, the mode admits everybody, and the peer's credentials are checked.
pub(super) fn bind_for(path: &Path, users: &Users) -> Result<Listener, String> {
    if users.is_empty() {
        return bind_unix(path);
    }
    let listener = bind_private(path)?;
    let (uid, gid) = (users.uids.first().copied(), users.gids.first().copied());
    let fits = users.uids.len() <= 1 && users.gids.len() <= 1;
    let mode = match fits && std::os::unix::fs::lchown(path, uid, gid).is_ok() {
        false => 0o666,
        true if gid.is_some() => 0o660,
        true => 0o600,
    };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| error.to_string())?;
    Ok(listener)
}

/// Listens with a queue of as many connections as there may be handshakes at once: when the queue
/// is full, the kernel makes a client retry after a second. The kernel reduces the queue to the
/// system's limit (`net.core.somaxconn`).
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without this the bind fails while connections of a previous server are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(MAX_HANDSHAKES as u32)
}

/// Removes a socket that a dead server has left; fails if the path is in use or not a socket.
pub(super) fn make_way(path: &Path) -> Result<(), String> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err("the path names a file that is not a socket: choose another path".into());
    }
    if has_listener(path) {
        return Err("another server listens there: stop it or choose another path".into());
    }
    std::fs::remove_file(path).map_err(|error| format!("cannot remove a stale socket: {error}"))
}

/// Listens on a Unix socket; replaces a socket that a dead server has left.
fn bind_unix(path: &Path) -> Result<Listener, String> {
    make_way(path)?;
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "its directory does not exist: create it or choose another \
         path"
            .into(),
        io::ErrorKind::InvalidInput => {
            "the path is too long for a Unix socket (107 bytes): choose a shorter one".into()
        }
        io::ErrorKind::PermissionDenied => {
            "not permitted: choose a path whose directory this user may write to, or change its \
             rights"
                .into()
        }
        _ => error.to_string(),
    };
    let listener = UnixListener::bind(path).map_err(explain)?;
    Ok(Listener::Unix { listener, name: Some(Arc::new(OwnName(path.to_owned()))) })
}

/// Whether a process listens on this socket. The attempt to connect does not block: if the
/// listener's queue is full, the kernel refuses at once.
fn has_listener(path: &Path) -> bool {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (Ok(socket), Ok(address)) =
        (socket_with(family, kind, flags, None), SocketAddrUnix::new(path))
    else {
        return false;
    };
    matches!(connect(&socket, &address), Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS))
}

fn explain_tcp(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use: stop the program that uses it, or choose another".into()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: `ip address` lists those it has".into()
        }
        io::ErrorKind::PermissionDenied => {
            "not permitted: ports below 1024 need privileges: choose a higher one".into()
        }
        _ => error.to_string(),
    }
}

/// Prefix of the names of sockets that a server has put into the service manager's store.
pub const STORED: &str = "listen-";

/// The listening sockets that the service manager has passed, which are the descriptors from 3 on;
/// and for each, whether a previous server has put it into the service manager's store.
pub(super) fn inherited() -> io::Result<Vec<(Listener, bool)>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let ours = number("LISTEN_PID").is_none_or(|pid| pid == std::process::id());
    let count = number("LISTEN_FDS").filter(|&count| ours && count > 0).ok_or_else(|| {
        io::Error::other(
            "no sockets were passed: LISTEN_FDS and LISTEN_PID are not set for this process",
        )
    })?;
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').chain(std::iter::repeat(""));
    let listener = |(fd, name): (RawFd, &str)| {
        let mut listener = listener_of(fd)?;
        let is_stored = name.starts_with(STORED);
        if let Listener::Unix { listener, name } = &mut listener
            && is_stored
        {
            // The previous server has created the file and has not removed it.
            let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
            *name = path.map(|path| Arc::new(OwnName(path)));
        }
        Ok((listener, is_stored))
    };
    (3..3 + count as RawFd).zip(names).map(listener).collect()
}

fn listener_of(fd: RawFd) -> io::Result<Listener> {
    // SAFETY: the service manager passed this descriptor to us, and nothing else in the process
    // uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Listener::of(fd)
}

/// The connection on standard input.
pub(super) fn stdio() -> Result<Stream, String> {
    let fd =
        rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(|error| error.to_string())?;
    let name = rustix::net::getsockname(&fd).map_err(|_| {
        "standard input is not a socket: --stdio is for inetd and programs like it".to_string()
    })?;
    rustix::io::ioctl_fionbio(&fd, true).map_err(|error| error.to_string())?;
    let stream = match name.address_family() {
        AddressFamily::UNIX => UnixStream::from_std(fd.into()).map(Stream::Unix),
        _ => TcpStream::from_std(fd.into()).map(Stream::Tcp),
    };
    stream.map_err(|error| error.to_string())
}
