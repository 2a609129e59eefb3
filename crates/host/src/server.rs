//! The server: tenants, listeners and the life of the process; everything but the data path.
//!
//! One thread, beside the shards, runs a small async runtime: it accepts connections, performs their handshakes (so that a
//! flood of them, or a slow TLS client, never holds up a shard), hands each to the shard with the fewest, calls the
//! policy's `tick`, and asks the shards for their statistics once a second.
//!
//! **Floods.** Handshakes under way are bounded. Clients that connect and say nothing would hold all places for as long as
//! a handshake may take: so when all are taken, the one that has been at it longest, beyond [`UNHURRIED`], loses its place
//! to whoever waits. Handshakes that fail are told of once a second, however many they are.
//!
//! **The end.** SIGTERM or SIGINT: no more connections, no more requests; what is in flight is finished, answered and put on
//! stable storage; then [`serve`] returns. Clients that do not take their answers within [`GRACE`] are cut
//! off. A second signal ends the process at once.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairq_core::{FlowId, Policy, Stats, Weight};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use crate::control::{Control, ControlError};
use crate::device::Device;
use crate::nbd::conn::{Limits, Volume};
use crate::nbd::exports::{Export, Exports, ExportsError};
use crate::nbd::front::{Connect, Message as NbdMessage, NbdFront};
use crate::nbd::handshake::{HandshakeError, HandshakeOptions, Outcome, handshake};
use crate::nbd::pace::SEND_BUFFER;
use crate::nbd::proto::BlockSizes;
use crate::nbd::tls::Established;
use crate::shard::{Clock, Common, Message, Wakers};
use crate::shards::Shards;
use crate::stats::TenantStats;

/// How long clients may take to accept their last answers.
pub const GRACE: Duration = Duration::from_secs(5);
/// Handshakes under way at a time; further connections wait to be accepted.
const MAX_HANDSHAKES: usize = 256;
/// What a handshake may take even if others wait for its place.
const UNHURRIED: Duration = Duration::from_secs(1);

/// One tenant.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name, and its export's.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Its share relative to the others'.
    pub weight: Weight,
    /// Which of the device's files holds its data.
    pub file: u16,
    /// Where in the file its range begins, in bytes.
    pub base: u64,
    /// The size of its range, in bytes.
    pub size: u64,
    /// Whether it may only read.
    pub read_only: bool,
    /// Whether it may use the urgent class, within the policy's budget.
    pub urgent: bool,
    /// The only client that may open it, by its certificate's name.
    pub identity: Option<String>,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// The sockets that the service manager has passed (`LISTEN_FDS`).
    Inherited,
    /// The connection on standard input, as inetd passes it; the server ends with it.
    Stdio,
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
            Listen::Inherited => f.write_str("inherited sockets"),
            Listen::Stdio => f.write_str("standard input"),
        }
    }
}

/// What to serve and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The tenants; the first is the export that clients get who name none.
    pub tenants: Vec<Tenant>,
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// The CPU of each shard; as many as the policy has ports, or empty to pin none.
    pub cpus: Vec<usize>,
    /// Bounds of each connection.
    pub limits: Limits,
    /// The most connections of each shard.
    pub connections: usize,
    /// Live requests of each shard; the policy was built with the same number.
    pub tags: usize,
    /// Handshakes.
    pub handshake: HandshakeOptions,
}

/// What the server is doing, once a second.
#[derive(Clone, Debug)]
pub struct Status {
    /// Since the server started.
    pub elapsed: Duration,
    /// What each tenant got since then.
    pub tenants: Vec<TenantStats>,
    /// Open connections.
    pub connections: usize,
    /// The policy's state.
    pub policy: Stats,
}

/// What wants to know how the server is doing.
pub trait Observer {
    /// It accepts connections; `listening` is where, with the port that was chosen if it was left open.
    fn ready(&mut self, listening: &[Listen]);
    /// A second has passed.
    fn second(&mut self, status: &Status);
    /// It was told to end.
    fn stopping(&mut self) {}
}

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A listener could not be set up.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// Where.
        at: Listen,
        /// Why, and what to do.
        cause: String,
    },
    /// The exports are not ones the protocol allows.
    #[error(transparent)]
    Exports(#[from] ExportsError),
    /// The policy and the device do not fit.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A tenant's flow could not be added.
    #[error("tenant {name}: {error}")]
    Flow {
        /// The tenant.
        name: String,
        /// Why.
        error: fairq_core::FlowError,
    },
    /// Something that the system refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |error| ServerError::System { what, error }
}

/// Serves until told to end; see the module's text.
pub fn serve<L: Policy, D: Device>(
    policy: L,
    ports: Vec<L::Port>,
    device: Arc<D>,
    config: Config,
    observer: &mut dyn Observer,
) -> Result<(), ServerError>
where
    L::Port: 'static,
{
    ignore_file_size_signal();
    let flows = add_flows(&policy, &config.tenants)?;
    let exports = exports(&config.tenants, device.info().preferred_size)?;
    let common = Common {
        device: device.clone(),
        wakers: Arc::new(Wakers::new(ports.len()).map_err(system("cannot make eventfds"))?),
        clock: Clock::default(),
        tags: config.tags,
        tenants: config.tenants.len(),
        fixed_buffers: if device.has_fixed_buffers() { config.connections as u32 } else { 0 },
    };
    let counts: Vec<Arc<AtomicUsize>> = ports.iter().map(|_| Arc::default()).collect();
    let front = |shard: usize| Ok(NbdFront::new(config.connections, config.limits, counts[shard].clone()));
    let mut control = Control::start(&policy, &*device, common.wakers.clone())?;
    let shards = Shards::start(ports, &common, &config.cpus, front).map_err(system("cannot start the shards"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("cannot start the control thread's runtime"))?;
    let server =
        Arc::new(Server { config, exports, flows, counts, shards, crowded: Notify::new(), failures: Mutex::default() });
    let result = runtime.block_on(run(&server, &policy, &mut control, common.clock, observer));
    runtime.block_on(end(&server));
    drop(runtime);
    match Arc::into_inner(server) {
        Some(server) => server.shards.stop(),
        None => unreachable!("the runtime and its tasks are gone"),
    }
    device.sync().map_err(system("cannot flush the device at the end"))?;
    result
}

/// Makes a write beyond a file size limit an error of that write, instead of the end of the process.
fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler, so there is no code that could run at a bad time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// What the control thread's tasks share.
struct Server {
    config: Config,
    exports: Exports,
    flows: Vec<FlowId>,
    counts: Vec<Arc<AtomicUsize>>,
    shards: Shards<NbdMessage>,
    /// Told when a handshake has to make room.
    crowded: Notify,
    failures: Mutex<Failures>,
}

/// Handshakes that have failed since they were last told of.
#[derive(Default)]
struct Failures {
    count: u64,
    /// The last one's peer and reason.
    last: Option<(String, String)>,
}

fn add_flows<L: Policy>(policy: &L, tenants: &[Tenant]) -> Result<Vec<FlowId>, ServerError> {
    let add = |tenant: &Tenant| {
        let add = || {
            let flow = policy.add_flow(tenant.weight)?;
            if tenant.urgent {
                policy.set_urgent(flow, true)?;
            }
            Ok(flow)
        };
        add().map_err(|error| ServerError::Flow { name: tenant.name.clone(), error })
    };
    tenants.iter().map(add).collect()
}

fn exports(tenants: &[Tenant], preferred: u32) -> Result<Exports, ExportsError> {
    let export = |tenant: &Tenant| Export {
        description: tenant.description.clone(),
        read_only: tenant.read_only,
        allowed_identity: tenant.identity.clone(),
        blocks: BlockSizes { preferred, ..BlockSizes::default() },
        ..Export::new(&tenant.name, tenant.size)
    };
    let list: Vec<Export> = tenants.iter().map(export).collect();
    let default = if list.is_empty() { None } else { Some(0) };
    Exports::new(list, default)
}

/// Listens, ticks and reports until a signal comes or a connection on standard input ends.
async fn run<L: Policy, D: Device>(
    server: &Arc<Server>,
    policy: &L,
    control: &mut Control<'_, L, D>,
    clock: Clock,
    observer: &mut dyn Observer,
) -> Result<(), ServerError> {
    let cannot = system("cannot handle signals");
    let (mut terminate, mut interrupt) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => return Err(cannot(error)),
    };
    let (over, mut is_over) = mpsc::channel(1);
    let sockets = listen(server, over).await?;
    observer.ready(&sockets.at);
    let started = Instant::now();
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    loop {
        let tick = async {
            match control.deadline_ns() {
                Some(time_ns) => {
                    tokio::time::sleep(Duration::from_nanos(time_ns.saturating_sub(clock.now_ns()))).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tick => control.tick(clock.now_ns()),
            _ = seconds.tick() => {
                let status = Status {
                    elapsed: started.elapsed(),
                    tenants: server.shards.stats(),
                    connections: server.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum(),
                    policy: policy.stats(),
                };
                observer.second(&status);
                server.tell_failures();
            }
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(()) = is_over.recv() => break,
        }
    }
    server.tell_failures();
    observer.stopping();
    // A second signal must not find us waiting for clients.
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        tracing::warn!("second signal: ending at once");
        std::process::exit(1);
    });
    Ok(())
}

/// Tells the shards to end, and cuts off clients that do not let them.
async fn end(server: &Server) {
    for shard in 0..server.shards.count() {
        server.shards.send(shard, Message::Stop);
    }
    let deadline = Instant::now() + GRACE;
    while !server.shards.are_finished() {
        if Instant::now() > deadline {
            tracing::warn!("clients do not take their answers: cutting them off");
            for shard in 0..server.shards.count() {
                server.shards.send(shard, Message::Front(NbdMessage::HangUp));
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Where the server listens; Unix sockets vanish with it.
struct Sockets {
    at: Vec<Listen>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for at in &self.at {
            if let Listen::Unix(path) = at {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Sets up all listeners; each accepts in a task of its own. `over` is told when there is nothing more to wait for.
async fn listen(server: &Arc<Server>, over: mpsc::Sender<()>) -> Result<Sockets, ServerError> {
    let permits = Arc::new(tokio::sync::Semaphore::new(MAX_HANDSHAKES));
    let mut sockets = Sockets { at: Vec::new() };
    for at in &server.config.listen {
        let fail = |cause: String| ServerError::Listen { at: at.clone(), cause };
        let listeners = match at {
            Listen::Unix(path) => vec![bind_unix(path).map_err(fail)?],
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(|error| fail(explain_tcp(&error)))?;
                vec![Listener::Tcp(listener)]
            }
            Listen::Inherited => inherited().map_err(|error| fail(error.to_string()))?,
            Listen::Stdio => {
                let stream = stdio().map_err(fail)?;
                let (server, over, permits) = (server.clone(), over.clone(), permits.clone());
                tokio::spawn(async move {
                    let permit = permits.acquire_owned().await.expect("never closed");
                    match stream {
                        Stream::Unix(stream) => server.welcome(stream, permit, "standard input".into()).await,
                        Stream::Tcp(stream) => server.welcome(stream, permit, "standard input".into()).await,
                    }
                    // The shard has it: the server ends when the shard has it no more.
                    while server.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    let _ = over.send(()).await;
                });
                sockets.at.push(Listen::Stdio);
                continue;
            }
        };
        for listener in listeners {
            sockets.at.push(match (&listener, at) {
                (Listener::Tcp(listener), _) => {
                    let address = listener.local_addr().map_err(|error| fail(error.to_string()))?;
                    Listen::Tcp(address)
                }
                (Listener::Unix(_), at) => at.clone(),
            });
            tokio::spawn(accept(server.clone(), listener, permits.clone()));
        }
    }
    Ok(sockets)
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Accepts connections for ever.
async fn accept(server: Arc<Server>, listener: Listener, permits: Arc<tokio::sync::Semaphore>) {
    loop {
        let permit = match permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                server.crowded.notify_one();
                permits.clone().acquire_owned().await.expect("never closed")
            }
        };
        let accepted = match &listener {
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), None)),
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, peer)| (Stream::Tcp(stream), Some(peer))),
        };
        let server = server.clone();
        match accepted {
            Ok((Stream::Unix(stream), _)) => {
                tokio::spawn(async move { server.welcome(stream, permit, "unix socket".into()).await });
            }
            Ok((Stream::Tcp(stream), peer)) => {
                let peer = peer.map_or_else(String::new, |peer| peer.to_string());
                // Requests are small and waited for.
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move { server.welcome(stream, permit, peer).await });
            }
            Err(error) => {
                // Out of descriptors, most likely: existing connections go on, new ones wait a moment.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A stream that becomes a file descriptor for a shard.
trait IntoFd: AsyncRead + AsyncWrite + Unpin {
    fn into_fd(self) -> io::Result<OwnedFd>;
}

impl IntoFd for UnixStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        // Without it (the kernel grants less) replies leave in more pieces.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
        Ok(stream.into())
    }
}

impl IntoFd for TcpStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream.into())
    }
}

impl Server {
    /// Performs a connection's handshake and hands it to a shard. Holds `permit` meanwhile.
    async fn welcome<S: IntoFd>(&self, stream: S, permit: tokio::sync::OwnedSemaphorePermit, peer: String) {
        let crowded_out = async {
            tokio::time::sleep(UNHURRIED).await;
            self.crowded.notified().await;
        };
        let outcome = tokio::select! {
            biased;
            outcome = handshake(stream, &self.exports, &self.config.handshake) => outcome,
            () = crowded_out => Err(HandshakeError::Crowded(UNHURRIED)),
        };
        let (negotiated, stream) = match outcome {
            Ok(Outcome::Transmission { negotiated, stream }) => (negotiated, stream),
            Ok(Outcome::Closed) => return,
            Err(error) => return self.failed(peer, &error),
        };
        drop(permit);
        let (stream, tls) = match stream {
            Established::Plain(stream) => (stream, None),
            Established::Tls { stream, session } => (stream, Some(session)),
        };
        let fd = match stream.into_fd() {
            Ok(fd) => fd,
            Err(error) => return tracing::warn!(peer, %error, "lost a connection after its handshake"),
        };
        let Some(shard) = self.choose_shard() else {
            return tracing::warn!(peer, most = self.config.connections, "too many connections: closing this one");
        };
        let (index, tenant) = (negotiated.export, &self.config.tenants[negotiated.export]);
        tracing::info!(peer, tenant = tenant.name, shard, "connected");
        let volume = Volume { tenant: index as u16, flow: self.flows[index], file: tenant.file, base: tenant.base };
        let connect = Connect { fd, tls, negotiated, volume };
        self.shards.send(shard, Message::Front(NbdMessage::Connect(Box::new(connect))));
    }

    /// Notes a failed handshake.
    fn failed(&self, peer: String, error: &HandshakeError) {
        tracing::debug!(peer, %error, "handshake failed");
        let mut failures = self.failures.lock().expect("nobody panics with it");
        failures.count += 1;
        failures.last = Some((peer, error.to_string()));
    }

    /// Tells of the handshakes that have failed since the last call.
    fn tell_failures(&self) {
        let failures = std::mem::take(&mut *self.failures.lock().expect("nobody panics with it"));
        if let Some((peer, error)) = failures.last {
            tracing::warn!(count = failures.count, peer, error, "handshake failed");
        }
    }

    /// The shard with the fewest connections, which has one more now; `None` if all are full.
    fn choose_shard(&self) -> Option<usize> {
        let load = |shard: &usize| self.counts[*shard].load(Ordering::Relaxed);
        let shard = (0..self.counts.len()).min_by_key(load)?;
        if load(&shard) >= self.config.connections {
            return None;
        }
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        Some(shard)
    }
}

/// Listens on a Unix socket; replaces one that a server has left behind.
fn bind_unix(path: &Path) -> Result<Listener, String> {
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err("something that is not a socket is there: choose another path".into());
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err("another server listens there: stop it or choose another path".into());
        }
        std::fs::remove_file(path).map_err(|error| format!("cannot remove a stale socket: {error}"))?;
    }
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "its directory does not exist: create it or choose another path".into(),
        io::ErrorKind::InvalidInput => "the path is too long for a Unix socket (107 bytes)".into(),
        _ => error.to_string(),
    };
    UnixListener::bind(path).map(Listener::Unix).map_err(explain)
}

fn explain_tcp(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use: stop who uses it or choose another".into(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address".into(),
        io::ErrorKind::PermissionDenied => "not permitted: ports below 1024 need privileges".into(),
        _ => error.to_string(),
    }
}

/// The listening sockets that the service manager has passed, by its protocol: descriptors from 3 on.
fn inherited() -> io::Result<Vec<Listener>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let ours = number("LISTEN_PID").is_none_or(|pid| pid == std::process::id());
    let count = number("LISTEN_FDS").filter(|&count| ours && count > 0).ok_or_else(|| {
        io::Error::other("no sockets were passed: LISTEN_FDS and LISTEN_PID are not set for this process")
    })?;
    (3..3 + count as RawFd).map(listener_of).collect()
}

fn listener_of(fd: RawFd) -> io::Result<Listener> {
    // SAFETY: the service manager passed this descriptor to us, and nothing else in the process uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    match rustix::net::getsockname(&fd)?.address_family() {
        rustix::net::AddressFamily::UNIX => UnixListener::from_std(fd.into()).map(Listener::Unix),
        _ => TcpListener::from_std(fd.into()).map(Listener::Tcp),
    }
}

/// The connection on standard input.
fn stdio() -> Result<Stream, String> {
    let fd = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(|error| error.to_string())?;
    let name = rustix::net::getsockname(&fd)
        .map_err(|_| "standard input is not a socket: --stdio is for inetd and programs like it".to_string())?;
    rustix::io::ioctl_fionbio(&fd, true).map_err(|error| error.to_string())?;
    let stream = match name.address_family() {
        rustix::net::AddressFamily::UNIX => UnixStream::from_std(fd.into()).map(Stream::Unix),
        _ => TcpStream::from_std(fd.into()).map(Stream::Tcp),
    };
    stream.map_err(|error| error.to_string())
}
