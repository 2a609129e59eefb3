//! Who asks the control thread for something: lines on the control socket, and HTTP requests of
//! scrapers and browsers.
//!
//! Each connection is a task that reads and writes; what is asked goes to the one place that may
//! change the server, through a channel that holds a few. A line or an HTTP request is passed on as
//! it is: its meaning is the operator's matter.
//!
//! **Rights.** A Unix socket, of either kind, is the server's user's and root's: its mode says so,
//! and the peer's credentials are looked at again. Over TCP everybody may ask; what may be changed
//! that way is for the operator to guard.
//!
//! **Bounds.** So many connections of each kind, lines of at most [`LINE`] bytes, bodies of
//! [`BODY`], and a client that takes longer than [`PATIENCE`] to take an answer or to finish a line
//! is cut off; one that is silent between lines is not.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::listen::{Listener, Stream};

/// The longest line.
const LINE: u64 = 1 << 20;
/// The longest body of an HTTP request.
const BODY: usize = 1 << 16;
/// Connections of each kind at a time.
const CONNECTIONS: usize = 32;
/// How long a client may take to take an answer, or from a line's first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something asked of the control thread.
pub(super) enum Ask {
    /// A line of the control socket; its answer, if it is to have one.
    Call(String, oneshot::Sender<Option<String>>),
    /// An HTTP request.
    Http(Box<HttpRequest>, oneshot::Sender<HttpResponse>),
}

/// An HTTP request, whole.
pub type HttpRequest = Request<Vec<u8>>;
/// Its answer.
pub type HttpResponse = Response<Cow<'static, [u8]>>;

/// Where they go.
pub(super) type Asks = mpsc::Sender<Ask>;

/// Serves the control socket for ever.
pub(super) async fn serve_control(listener: Listener, asks: Asks) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = permits.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((Stream::Unix(stream), _)) => {
                let asks = asks.clone();
                tokio::spawn(async move {
                    if let Err(error) = control(stream, asks).await {
                        tracing::debug!(%error, "a control connection ended");
                    }
                    drop(permit);
                });
            }
            Ok(_) => unreachable!("the control socket is a Unix socket"),
            Err(error) => pause(&error).await,
        }
    }
}

/// One connection of the control socket.
async fn control(stream: UnixStream, asks: Asks) -> io::Result<()> {
    if !is_ours(&stream)? {
        return Ok(());
    }
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        if reader.fill_buf().await?.is_empty() {
            return Ok(());
        }
        let mut line = Vec::new();
        let mut bounded = (&mut reader).take(LINE);
        timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await??;
        if line.last() != Some(&b'\n') && line.len() as u64 == LINE {
            return Err(io::Error::other("a line longer than 1 MiB"));
        }
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            continue;
        }
        let (reply, answer) = oneshot::channel();
        if asks.send(Ask::Call(line.into_owned(), reply)).await.is_err() {
            return Ok(());
        }
        // Without an answer the server is ending, or none is wanted.
        if let Ok(Some(mut answer)) = answer.await {
            answer.push('\n');
            timeout(PATIENCE, writer.write_all(answer.as_bytes())).await??;
        }
    }
}

/// Whether the peer is the server's user or root.
fn is_ours(stream: &UnixStream) -> io::Result<bool> {
    let (ours, theirs) = (rustix::process::geteuid().as_raw(), stream.peer_cred()?.uid());
    if theirs != ours && theirs != 0 {
        tracing::warn!(
            uid = theirs,
            "refused a connection: only the server's user and root may use this socket"
        );
    }
    Ok(theirs == ours || theirs == 0)
}

/// Serves HTTP for ever.
pub(super) async fn serve_http(listener: Listener, asks: Asks) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = permits.clone().acquire_owned().await.expect("never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        let asks = asks.clone();
        tokio::spawn(async move {
            match stream {
                Stream::Unix(stream) if is_ours(&stream).unwrap_or(false) => {
                    http(stream, asks).await
                }
                Stream::Unix(_) => {}
                Stream::Tcp(stream) => http(stream, asks).await,
            }
            drop(permit);
        });
    }
}

/// One HTTP connection.
async fn http<S: AsyncRead + AsyncWrite + Unpin>(stream: S, asks: Asks) {
    let service = hyper::service::service_fn(move |request| {
        let asks = asks.clone();
        async move { Ok::<_, Infallible>(answer(request, &asks).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    // Also the time that a client may keep a connection: a new one costs it nothing.
    if let Ok(Err(error)) = timeout(6 * PATIENCE, connection).await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

async fn answer(request: Request<Incoming>, asks: &Asks) -> Response<Full<Bytes>> {
    let refuse = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        response
    };
    let (head, body) = request.into_parts();
    let Ok(Ok(body)) = timeout(PATIENCE, Limited::new(body, BODY).collect()).await else {
        return refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is longer than 64 KiB, or took too long to come\n",
        );
    };
    let (reply, answer) = oneshot::channel();
    let request = Request::from_parts(head, body.to_bytes().to_vec());
    if asks.send(Ask::Http(Box::new(request), reply)).await.is_ok()
        && let Ok(answer) = answer.await
    {
        return answer.map(|body| match body {
            Cow::Borrowed(body) => Full::new(Bytes::from_static(body)),
            Cow::Owned(body) => Full::new(Bytes::from(body)),
        });
    }
    refuse(StatusCode::SERVICE_UNAVAILABLE, "the server is ending\n")
}

/// Out of descriptors, most likely: existing connections go on, new ones wait a moment.
pub(super) async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
