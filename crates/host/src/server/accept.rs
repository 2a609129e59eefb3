//! Handshakes: from an accepted connection to a connection that a shard serves.
//!
//! **Floods.** Connections are accepted at once, and the seats of a [`Crowd`](super::crowd::Crowd)
//! bound the number of handshakes in progress. If no descriptor is free, the handshake that has
//! been silent for longest is closed in favour of the new connection. The log has at most one line
//! a second about failed handshakes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fairq_core::PortId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::nbd::serve::conn::{Connect, Pass};
use crate::nbd::serve::front::Message as NbdMessage;
use crate::nbd::serve::pacing::SEND_BUFFER;
use crate::nbd::session::handshake::{HandshakeError, Outcome, Peer, handshake};
use crate::nbd::session::revoked::{Revoked, shown_by};
use crate::nbd::session::tls::{Established, Tls, certificate_end_s};
use crate::nbd::session::users::User;
use crate::observe::log_limit::STRANGERS;
use crate::server::ControlThread;
use crate::server::crowd::{Seat, Watched};
use crate::server::handover::{LeftDoor, Role};
use crate::server::listeners::{self, Listener, OwnName, Stream};
use crate::server::{
    Admin, AdminError, Listen, MAX_HANDSHAKES, Member, Server, ServerError, calls, guests,
};
use crate::shard::Meeting;
use crate::shard::volume::Volume;

/// Handshakes that have failed since the last report in the log.
#[derive(Default)]
pub(super) struct Failures {
    count: u64,
    /// Peer and reason of the last one.
    last: Option<(String, String)>,
}

/// A listening socket and the task that accepts its connections.
pub(super) struct Listening {
    pub(super) at: Listen,
    /// Whether the service manager also holds this socket. If the server closed it, the service
    /// manager would keep it open, and connections to it would wait for ever.
    is_inherited: bool,
    pub(super) task: AbortHandle,
    /// The socket, for the next program in this process, and its name if the name is to be removed
    /// with the socket.
    socket: OwnedFd,
    name: Option<Arc<OwnName>>,
}

impl Listening {
    /// Accepts clients in a new task, which replaces the previous one.
    pub(super) fn accept(&mut self, server: &Arc<Server>) -> io::Result<()> {
        let listener = Listener::of(self.socket.try_clone()?)?;
        self.task = tokio::spawn(accept(server.clone(), listener)).abort_handle();
        Ok(())
    }

    /// The state that the next program in this process takes over.
    pub(super) fn left(&self, role: Role) -> LeftDoor {
        LeftDoor {
            at: self.at.clone(),
            role,
            fd: self.socket.as_raw_fd(),
            is_inherited: self.is_inherited,
            name: self.name.as_ref().map(|name| name.0.clone()),
        }
    }

    /// The socket, unless the service manager has made it.
    pub(super) fn own_socket(&self) -> Option<(Listen, BorrowedFd<'_>)> {
        (!self.is_inherited).then(|| (self.at.clone(), self.socket.as_fd()))
    }

    /// Makes the socket's file be removed when the socket is closed.
    pub(super) fn own(&mut self, name: &Path) {
        self.name = Some(Arc::new(OwnName(name.into())));
    }
}

impl ControlThread<'_> {
    /// See [`crate::server::Admin::listen`].
    pub(super) fn listen_at(&mut self, at: &Listen) -> Result<Listen, AdminError> {
        if guests::directory(at).is_some() {
            self.open_directory(at)?;
            return Ok(at.clone());
        }
        let fail = |cause: String| AdminError::Listen { at: at.clone(), cause };
        let mut place = at.clone();
        let listeners = match at {
            Listen::Ublk => {
                self.set_disks_of_all(true).map_err(|error| fail(error.to_string()))?;
                return Ok(place);
            }
            Listen::Inherited => listeners::inherited().map_err(|error| fail(error.to_string()))?,
            _ => listeners::bind(at).map_err(fail)?.into_iter().map(|one| (one, true)).collect(),
        };
        for (listener, is_own) in listeners {
            place = listener.place(at).map_err(|error| fail(error.to_string()))?;
            self.open_clients(&place, !is_own, listener)
                .map_err(|error| fail(error.to_string()))?;
        }
        Ok(place)
    }

    /// Accepts clients in a separate task.
    fn open_clients(
        &mut self,
        at: &Listen,
        is_inherited: bool,
        listener: Listener,
    ) -> io::Result<()> {
        let (socket, name) = (listener.copy()?, listener.name());
        let task = tokio::spawn(accept(self.server.clone(), listener)).abort_handle();
        self.listeners.push(Listening { at: at.clone(), is_inherited, task, socket, name });
        Ok(())
    }

    /// Serves the connections of a listener in a separate task.
    pub(super) fn open_door(
        &mut self,
        role: Role,
        at: &Listen,
        is_inherited: bool,
        listener: Listener,
        calls: &calls::Calls,
    ) -> io::Result<()> {
        let (socket, name) = (listener.copy()?, listener.name());
        let (calls, timeouts) = (calls.clone(), self.server.config.timeouts);
        let task = match role {
            Role::Clients => return self.open_clients(at, is_inherited, listener),
            Role::Guests | Role::Controllers => {
                unreachable!("sockets for guests are opened by their tenants")
            }
            Role::Http => tokio::spawn(calls::serve_http(listener, calls, timeouts)),
            Role::Control => tokio::spawn(calls::serve_control(listener, calls, timeouts)),
        };
        let task = task.abort_handle();
        let at = at.clone();
        self.others.push((role, Listening { at, is_inherited, task, socket, name }));
        Ok(())
    }

    /// See [`crate::server::Admin::unlisten`].
    pub(super) fn unlisten_at(&mut self, at: &Listen) -> Result<(), AdminError> {
        if *at == Listen::Ublk && self.has_disks_of_all {
            // The result is ignored: this needs no new device, and `update_disks` logs errors.
            let _ = self.set_disks_of_all(false);
            return Ok(());
        }
        if guests::directory(at).is_some() {
            return self.close_directory(at);
        }
        if self.listeners.iter().any(|listening| listening.at == *at && listening.is_inherited) {
            return Err(AdminError::Inherited(at.clone()));
        }
        let before = self.listeners.len();
        self.listeners.retain(|listening| {
            let stays = listening.at != *at;
            if !stays {
                listening.task.abort();
            }
            stays
        });
        if self.listeners.len() < before {
            Ok(())
        } else {
            Err(AdminError::NotListening(at.clone()))
        }
    }

    /// Serves the one connection on standard input; sends a message to `over` when it has ended.
    fn serve_stdio(&self, over: mpsc::Sender<()>) -> Result<(), String> {
        let stream = listeners::stdio()?;
        let server = self.server.clone();
        tokio::spawn(async move {
            server.welcome(stream, None, "standard input".into()).await;
            // The server may end only when the shard no longer has the connection.
            while !server.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let _ = over.send(()).await;
        });
        Ok(())
    }

    /// Sets up all listeners, each with an accepting task. A message on `over` means that the
    /// connection on standard input has ended, and the server with it.
    pub(super) fn open(
        &mut self,
        over: &mpsc::Sender<()>,
        calls: &calls::Calls,
    ) -> Result<Vec<Listen>, ServerError> {
        let config = self.server.config.clone();
        let mut places = Vec::new();
        for at in &config.listen {
            if *at == Listen::Stdio {
                self.serve_stdio(over.clone())
                    .map_err(|cause| ServerError::Listen { at: at.clone(), cause })?;
                places.push(Listen::Stdio);
                continue;
            }
            // The configuration may list a socket that the service manager has passed.
            if self.listeners.iter().any(|listening| listening.at == *at) {
                continue;
            }
            match self.listen_at(at) {
                Ok(_) => {}
                Err(AdminError::Listen { at, cause }) => {
                    return Err(ServerError::Listen { at, cause });
                }
                // `listen_at` fails in no other way.
                Err(error) => unreachable!("{error}"),
            }
        }
        // Opens the sockets of tenants' keys, which are in no listed directory.
        if let Err(AdminError::Listen { at, cause }) = self.fit_guests() {
            return Err(ServerError::Listen { at, cause });
        }
        for at in &config.metrics {
            let fail = |cause| ServerError::Listen { at: at.clone(), cause };
            let listeners = match at {
                Listen::Unix(path) => vec![listeners::bind_private(path).map_err(fail)?],
                _ => listeners::bind(at).map_err(fail)?,
            };
            for listener in listeners {
                self.open_door(Role::Http, at, false, listener, calls)
                    .map_err(|error| fail(error.to_string()))?;
            }
        }
        // The control socket is opened last, so that a program that reaches it finds all the other
        // sockets.
        if let Some(path) = &config.control {
            let fail = |cause| ServerError::Listen { at: Listen::Unix(path.clone()), cause };
            let listener = listeners::bind_private(path).map_err(fail)?;
            self.open_door(Role::Control, &Listen::Unix(path.clone()), false, listener, calls)
                .map_err(|error| fail(error.to_string()))?;
        }
        places.extend(self.listening());
        Ok(places)
    }
}

/// Accepts connections until the task is aborted.
async fn accept(server: Arc<Server>, listener: Listener) {
    loop {
        match listener.accept(server.config.timeouts.peer).await {
            Ok((stream, peer)) => {
                let (seat, must_leave) = server.handshakes.enter(stream.source());
                let server = server.clone();
                tokio::spawn(async move {
                    // The branches are checked in order: a handshake that completes in the moment
                    // of its eviction is kept.
                    tokio::select! {
                        biased;
                        () = server.welcome(stream, Some(seat), peer.clone()) => {}
                        Ok(()) = must_leave => {
                            server.failed(peer, &HandshakeError::Crowded(MAX_HANDSHAKES));
                        }
                    }
                });
            }
            Err(error) => calls::make_room(&error, &server.handshakes).await,
        }
    }
}

/// A stream that becomes a file descriptor for a shard.
trait IntoFd: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn into_fd(self) -> io::Result<OwnedFd>;
}

impl IntoFd for UnixStream {
    fn into_fd(self) -> io::Result<OwnedFd> {
        // The ring waits only on blocking sockets: on others it returns `EAGAIN` at once.
        let stream = self.into_std()?;
        stream.set_nonblocking(false)?;
        // The kernel may grant a smaller buffer; replies are then sent in more pieces.
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
    async fn welcome(&self, stream: Stream, seat: Option<Seat>, peer: String) {
        match stream {
            Stream::Unix(stream) => match User::of_peer(&stream) {
                Ok(user) => self.negotiate(Watched::new(stream, seat), Some(user), peer).await,
                Err(error) => tracing::debug!(%error, "cannot determine the user of a connection"),
            },
            Stream::Tcp(stream) => self.negotiate(Watched::new(stream, seat), None, peer).await,
        }
    }

    /// Performs a connection's handshake and passes the connection to a shard. Dropping the future
    /// closes the connection.
    async fn negotiate<S: IntoFd>(&self, stream: Watched<S>, user: Option<User>, peer: String) {
        let tenants = self.tenants();
        let place = Mutex::new(None);
        let admit = |export, is_last_try| {
            let member = tenants.member_of(export);
            let found = self.place(member).inspect_err(|reason| {
                if is_last_try && STRANGERS.allows() {
                    tracing::warn!(peer, tenant = member.tenant.name, reason, "refused a client");
                }
            })?;
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            Ok(())
        };
        let client = Peer { user: user.as_ref(), admit: Some(&admit) };
        let options = self.handshake();
        let outcome = handshake(stream, tenants.exports(), &options, client).await;
        let (negotiated, stream) = match outcome {
            Ok(Outcome::Transmission { negotiated, stream }) => (negotiated, stream),
            Ok(Outcome::Closed) => return,
            Err(error) => return self.failed(peer, &error),
        };
        let (stream, tls) = match stream {
            Established::Plain(stream) => (stream, None),
            Established::Tls { stream, session } => (stream, Some(session)),
        };
        let until = tls.as_ref().and_then(|session| certificate_end_s(session));
        let shown = tls.as_ref().map(|session| shown_by(session)).unwrap_or_default();
        let fd = match stream.into_inner().into_fd() {
            Ok(fd) => fd,
            Err(error) => {
                if STRANGERS.allows() {
                    tracing::warn!(peer, %error, "lost a connection after its handshake");
                }
                return;
            }
        };
        // A client with a certificate's identity is always logged; all others share the log's rate
        // limit.
        let is_told = negotiated.identity.is_some() || STRANGERS.allows();
        let Member { tenant, flow, .. } = tenants.member_of(negotiated.export);
        // The handshake used the list of tenants as of its beginning. A tenant that was removed and
        // added again has another flow.
        let tenants_now = self.tenants();
        let Some(now) = tenants_now.members().find(|now| now.flow == *flow) else {
            if is_told {
                tracing::info!(
                    peer,
                    tenant = tenant.name,
                    "the tenant was removed during the handshake"
                );
            }
            return;
        };
        // The handshake used the revocation lists as of its beginning.
        if self.revoked().is_some_and(|revoked| revoked.has_one_of(&shown)) {
            tracing::info!(peer, "the client's certificate was revoked during the handshake");
            return;
        }
        let place = place.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (shard, place) = place.expect("no export is opened without a place");
        if is_told {
            tracing::info!(peer, tenant = tenant.name, shard, "connected");
        }
        // The tenant's range may have shrunk during the handshake.
        let size = negotiated.size.min(now.tenant.size);
        let volume = Volume { size, ..now.volume(negotiated.blocks.min) };
        // The count includes this connection.
        let has_others = now.all_connections() > 1;
        let gate = has_others.then(|| Arc::new(Meeting::new(self.shards.count())));
        if let Some(gate) = &gate {
            let shard = PortId(shard as u8);
            self.send_nbd_all(|| NbdMessage::CheckEnds { flow: *flow, shard, gate: gate.clone() });
        }
        let pass = Pass { until, shown, place: Some(place.handed_over()), gate, ..Pass::default() };
        let connect = Connect { fd, tls, negotiated, volume, pass };
        self.send_nbd(shard, NbdMessage::Connect(Box::new(connect)));
    }

    /// The revoked certificates, as of now.
    fn revoked(&self) -> Option<Arc<Revoked>> {
        self.handshake().tls.tls().map(|tls| tls.revoked().clone())
    }

    /// Ends the connections of clients whose certificates are in the revocation lists just read.
    /// This thread also passes new connections to the shards, so no connection is missed.
    pub(super) fn end_revoked(&self) {
        if let Some(revoked) = self.revoked().filter(|revoked| !revoked.is_empty()) {
            self.send_nbd_all(|| NbdMessage::Revoke(revoked.clone()));
        }
    }

    /// Records a failed handshake.
    fn failed(&self, peer: String, error: &HandshakeError) {
        tracing::debug!(peer, %error, "handshake failed");
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count += 1;
        failures.last = Some((peer, error.to_string()));
    }

    /// Logs the number of failed handshakes since the last call, and the number of suppressed log
    /// lines.
    pub(super) fn log_failures(&self) {
        let failures =
            std::mem::take(&mut *self.failures.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some((peer, error)) = failures.last {
            tracing::warn!(count = failures.count, peer, error, "handshake failed");
        }
        STRANGERS.tell();
    }

    /// Ends the connections of clients whose certificates have expired: the certificate is checked
    /// only in the handshake, and a connection may last for months.
    pub(super) fn end_expired(&self) {
        if !self.handshake().tls.tls().is_some_and(Tls::clients_certified) {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.send_nbd_all(|| NbdMessage::Expire(now.as_secs()));
    }
}
