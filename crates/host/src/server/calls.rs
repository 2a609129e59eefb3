//! Requests to the control thread: lines on the control socket, and HTTP requests of scrapers and
//! browsers.
//!
//! A task reads and writes each connection. It sends the requests through a short channel to the
//! control thread, the only thread that may change the server. Lines and HTTP requests are passed
//! on unchanged, and the operator interprets them.
//!
//! **Rights.** Only the server's user and root may use a Unix socket, for control or HTTP: its mode
//! ensures this, and the peer's credentials are checked. Over TCP everybody may send requests, so
//! the operator must restrict what they can change.
//!
//! **Bounds.** The server has at most [`CONNECTIONS`] of the control socket and
//! [`HTTP_CONNECTIONS`] of HTTP. A line has at most [`LINE`] bytes, a body at most [`BODY`]. A
//! client that takes longer than [`Timeouts::http`](super::Timeouts::http) to take an answer or to
//! finish a line is disconnected; a client that is silent between lines is not. Untrusted clients
//! reach HTTP, so a new connection there never waits for slow ones: see [`Crowd`].
//!
//! **Descriptors.** When no descriptor is free, the HTTP connection that has been silent for
//! longest is closed in favour of a new one, and a connection of the control socket takes a
//! reserved descriptor ([`Reserve`]), so that the operator can find and close the connections that
//! use the descriptors.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
pub use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::Timeouts;
use super::crowd::{Crowd, Seat, Watched};
use super::listeners::{Listener, Stream};
use crate::observe::log_limit::STRANGERS;

/// The longest line, in bytes.
const LINE: u64 = 1 << 20;
/// The longest body of an HTTP request, in bytes.
const BODY: usize = 1 << 16;
/// Connections of the control socket at a time.
const CONNECTIONS: usize = 32;
/// HTTP connections at a time.
const HTTP_CONNECTIONS: usize = 128;
/// The number of descriptors that are reserved for the control socket.
const RESERVE: usize = 4;
/// The pause between two tries of a call that waits for a file system.
pub(super) const CALL_PERIOD: Duration = Duration::from_millis(20);

/// An answer, or the function that computes it. A separate thread calls the function, since it
/// takes long with thousands of tenants.
pub enum Answer<T> {
    /// The answer.
    Ready(T),
    /// The function that computes the answer.
    Later(Box<dyn FnOnce() -> T + Send>),
}

impl<T: Send + 'static> Answer<T> {
    /// The answer; this thread computes it if necessary.
    pub fn now(self) -> T {
        match self {
            Answer::Ready(answer) => answer,
            Answer::Later(make) => make(),
        }
    }

    /// The answer; another thread computes it if necessary. `None` if that thread failed.
    async fn made(self) -> Option<T> {
        match self {
            Answer::Ready(answer) => Some(answer),
            Answer::Later(make) => tokio::task::spawn_blocking(make).await.ok(),
        }
    }
}

/// The result of a line of the control socket.
pub struct Reply {
    /// The answer; `None` if the line requires no answer.
    pub text: Option<Answer<String>>,
    /// Whether the call has begun work that is not finished. The same line is then passed again,
    /// for at most [`Timeouts::call`](super::Timeouts::call), and the last answer is sent.
    pub is_unfinished: bool,
    /// The answers of the finished calls of a batch, which are passed to the operator again with
    /// the line.
    pub made: Made,
}

/// The answers of the first calls of a batch; `None` for a call that requires no answer.
pub type Made = Vec<Option<String>>;

/// A connection of the control socket, its line, and the answers made so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Caller {
    pub(super) fd: RawFd,
    pub(super) line: String,
    pub(super) made: Made,
}

/// A request to the control thread.
pub(super) enum Call {
    /// A line of the control socket, with the answers made so far, and the channel for the reply.
    Line(Caller, oneshot::Sender<Reply>),
    /// An HTTP request.
    Http(Box<HttpRequest>, oneshot::Sender<HttpResponse>),
}

/// A complete HTTP request. If it came over TCP, its extensions contain the [`Door`].
pub type HttpRequest = Request<Vec<u8>>;
/// Its answer. A body that many clients request is shared by their answers.
pub type HttpResponse = Response<Answer<Bytes>>;

/// The address of this machine to which an HTTP client has connected.
#[derive(Clone, Copy, Debug)]
pub struct Door(pub SocketAddr);

/// The sender of requests to the control thread.
pub(super) type Calls = mpsc::Sender<Call>;

/// Serves the control socket until the task is dropped.
pub(super) async fn serve_control(listener: Listener, calls: Calls, timeouts: Timeouts) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let reserve = Arc::new(Reserve::new());
    loop {
        let permit = permits.clone().acquire_owned().await.expect("never closed");
        match listener.accept(timeouts.peer).await {
            Ok((Stream::Unix(mut stream), _)) => {
                let (calls, reserve) = (calls.clone(), reserve.clone());
                tokio::spawn(async move {
                    if let Err(error) = control(&mut stream, calls, timeouts).await {
                        tracing::debug!(%error, "a control connection ended");
                    }
                    reserve.take_back(stream);
                    drop(permit);
                });
            }
            Ok(_) => unreachable!("the control socket is a Unix socket"),
            Err(error) if is_out_of_descriptors(&error) && reserve.give() => {}
            Err(error) => pause(&error).await,
        }
    }
}

/// Reserved descriptors. One can be closed to accept a connection. When such a connection ends, its
/// descriptor returns to the reserve at once, so no other code can take it.
struct Reserve(Mutex<Vec<OwnedFd>>);

impl Reserve {
    fn new() -> Reserve {
        // A smaller reserve does not prevent the start.
        let spare = |_| std::fs::File::open("/dev/null").map(OwnedFd::from).ok();
        Reserve(Mutex::new((0..=RESERVE).filter_map(spare).collect()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees a reserved descriptor; false if the reserve is empty.
    fn give(&self) -> bool {
        let mut spare = self.lock();
        // The last descriptor is kept, because the others are copies of it.
        spare.len() > 1 && spare.pop().is_some()
    }

    /// Closes a connection; its descriptor returns to the reserve unless the reserve is full.
    fn take_back(&self, stream: UnixStream) {
        let mut spare = self.lock();
        let Ok(mut fd) = stream.into_std().map(OwnedFd::from) else { return };
        if (1..=RESERVE).contains(&spare.len()) && rustix::io::dup2(&spare[0], &mut fd).is_ok() {
            spare.push(fd);
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// One connection of the control socket.
async fn control(stream: &mut UnixStream, calls: Calls, timeouts: Timeouts) -> io::Result<()> {
    if !is_ours(stream)? {
        return Ok(());
    }
    serve_calls(stream, None, calls, timeouts).await
}

/// Continues a connection of the control socket that the previous program has passed on with its
/// last line unanswered.
pub(super) async fn go_on(
    mut stream: UnixStream,
    caller: Caller,
    calls: Calls,
    timeouts: Timeouts,
) {
    if let Err(error) = serve_calls(&mut stream, Some(caller), calls, timeouts).await {
        tracing::debug!(%error, "a control connection ended");
    }
}

/// Answers the lines of a connection; the first line may have been read already.
async fn serve_calls(
    stream: &mut UnixStream,
    mut first: Option<Caller>,
    calls: Calls,
    timeouts: Timeouts,
) -> io::Result<()> {
    let fd = stream.as_raw_fd();
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    loop {
        if let Some(caller) = first.take() {
            answer_call(Caller { fd, ..caller }, &mut writer, &calls, timeouts).await?;
        }
        if reader.fill_buf().await?.is_empty() {
            return Ok(());
        }
        let mut line = Vec::new();
        let mut bounded = (&mut reader).take(LINE);
        timeout(timeouts.http, bounded.read_until(b'\n', &mut line)).await??;
        if line.last() != Some(&b'\n') && line.len() as u64 == LINE {
            return Err(io::Error::other("a line longer than 1 MiB"));
        }
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            continue;
        }
        let caller = Caller { fd, line: line.into_owned(), made: Made::new() };
        answer_call(caller, &mut writer, &calls, timeouts).await?;
    }
}

async fn answer_call(
    caller: Caller,
    writer: &mut (impl AsyncWrite + Unpin),
    calls: &Calls,
    timeouts: Timeouts,
) -> io::Result<()> {
    // There is no answer if the server is ending or the line requires none.
    if let Some(mut answer) = called(caller, calls, timeouts.call).await {
        answer.push('\n');
        timeout(timeouts.http, writer.write_all(answer.as_bytes())).await??;
    }
    Ok(())
}

/// Makes a call, and repeats it while it is unfinished, for at most `longest`; each call of a batch
/// has its own `longest`. Returns the answer.
async fn called(mut caller: Caller, calls: &Calls, longest: Duration) -> Option<String> {
    let mut deadline = Instant::now() + longest;
    loop {
        let (reply, answer) = oneshot::channel();
        let over = caller.made.len();
        calls.send(Call::Line(caller.clone(), reply)).await.ok()?;
        let Reply { text, is_unfinished, made } = answer.await.ok()?;
        caller.made = made;
        if is_unfinished && caller.made.len() > over {
            deadline = Instant::now() + longest;
            continue;
        }
        if !is_unfinished || Instant::now() > deadline {
            return text?.made().await;
        }
        sleep(CALL_PERIOD).await;
    }
}

/// Whether the peer is the server's user or root.
fn is_ours(stream: &UnixStream) -> io::Result<bool> {
    let (ours, theirs) = (rustix::process::geteuid().as_raw(), stream.peer_cred()?.uid());
    if theirs != ours && theirs != 0 && STRANGERS.allows() {
        tracing::warn!(
            uid = theirs,
            "refused a connection: only the server's user and root may use this socket"
        );
    }
    Ok(theirs == ours || theirs == 0)
}

/// Serves HTTP until the task is dropped.
pub(super) async fn serve_http(listener: Listener, calls: Calls, timeouts: Timeouts) {
    let crowd = Crowd::new(HTTP_CONNECTIONS);
    loop {
        let stream = match listener.accept(timeouts.peer).await {
            Ok((stream, _)) => stream,
            Err(error) => {
                make_room(&error, &crowd).await;
                continue;
            }
        };
        let (calls, (seat, must_leave)) = (calls.clone(), crowd.enter(stream.source()));
        tokio::spawn(async move {
            tokio::select! {
                () = welcome(stream, seat, calls, timeouts.http) => {}
                Ok(()) = must_leave => {
                    tracing::debug!("closed the HTTP connection that had been silent for longest");
                }
            }
        });
    }
}

/// Serves HTTP on a connection if its client may use it.
async fn welcome(stream: Stream, seat: Seat, calls: Calls, patience: Duration) {
    match stream {
        Stream::Unix(stream) if is_ours(&stream).unwrap_or(false) => {
            http(Watched::new(stream, Some(seat)), None, calls, patience).await;
        }
        Stream::Unix(_) => {}
        // A connection without an address is closed, because its client has disconnected.
        Stream::Tcp(stream) => {
            if let Ok(at) = stream.local_addr() {
                http(Watched::new(stream, Some(seat)), Some(Door(at)), calls, patience).await;
            }
        }
    }
}

/// One HTTP connection.
async fn http<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    door: Option<Door>,
    calls: Calls,
    patience: Duration,
) {
    let service = hyper::service::service_fn(move |request| {
        let calls = calls.clone();
        async move { Ok::<_, Infallible>(answer(request, door, &calls, patience).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(TokioIo::new(stream), service);
    // This also bounds the lifetime of a connection; a client can open a new one at no cost.
    if let Ok(Err(error)) = timeout(6 * patience, connection).await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

async fn answer(
    request: Request<Incoming>,
    door: Option<Door>,
    calls: &Calls,
    patience: Duration,
) -> Response<Full<Bytes>> {
    let refuse = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    let (head, body) = request.into_parts();
    let Ok(Ok(body)) = timeout(patience, Limited::new(body, BODY).collect()).await else {
        return refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is longer than 64 KiB, or took too long to arrive\n",
        );
    };
    let (reply, answer) = oneshot::channel();
    let mut request = Request::from_parts(head, body.to_bytes().to_vec());
    if let Some(door) = door {
        request.extensions_mut().insert(door);
    }
    if calls.send(Call::Http(Box::new(request), reply)).await.is_ok()
        && let Ok(answer) = answer.await
    {
        let (head, body) = answer.into_parts();
        return match body.made().await {
            Some(body) => Response::from_parts(head, Full::new(body)),
            None => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be computed\n"),
        };
    }
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the server is ending\n")
}

/// Handles a connection that could not be accepted. If no descriptor is free, one of this crowd's
/// connections is closed.
pub(super) async fn make_room(error: &io::Error, crowd: &Crowd) {
    if is_out_of_descriptors(error) && crowd.send_one_away() {
        // The connection's own task closes it when it runs.
        return tokio::task::yield_now().await;
    }
    pause(error).await;
}

/// Existing connections continue, and new ones wait for a short pause.
async fn pause(error: &io::Error) {
    if STRANGERS.allows() {
        tracing::warn!(%error, "cannot accept a connection");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}
