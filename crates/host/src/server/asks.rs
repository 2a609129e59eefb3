//! Who asks the control thread for something: lines on the control socket, and scrapers.
//!
//! Each connection is a task that reads and writes; what is asked goes to the one place that may change the server, through a
//! channel that holds a few. The control socket's line is passed on as it is: its meaning is the operator's matter.
//!
//! **Bounds.** So many connections of each kind, lines of at most [`LINE`] bytes, and a client that takes longer than
//! [`PATIENCE`] to take an answer or to finish a line is cut off; one that is silent between lines is not.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::listen::{Listener, Stream};

/// The longest line.
const LINE: u64 = 1 << 20;
/// Connections of each kind at a time.
const CONNECTIONS: usize = 32;
/// How long a client may take to take an answer, or from a line's first byte to its last.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something asked of the control thread.
pub(super) enum Ask {
    /// A line of the control socket; its answer, if it is to have one.
    Call(String, oneshot::Sender<Option<String>>),
    /// The metrics.
    Scrape(oneshot::Sender<String>),
}

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
    let peer = stream.peer_cred()?;
    let (ours, theirs) = (rustix::process::geteuid().as_raw(), peer.uid());
    if theirs != ours && theirs != 0 {
        tracing::warn!(uid = theirs, "refused a control connection: only the server's user and root may change it");
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

/// Serves metrics for ever.
pub(super) async fn serve_metrics(listener: Listener, asks: Asks) {
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
                Stream::Unix(stream) => http(stream, asks).await,
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
        async move { Ok::<_, Infallible>(answer(&request, &asks).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    // Also the time that a scraper may keep a connection: a new one costs it nothing.
    if let Ok(Err(error)) = timeout(6 * PATIENCE, connection).await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

async fn answer(request: &Request<Incoming>, asks: &Asks) -> Response<Full<Bytes>> {
    let text = |status: StatusCode, kind: &str, body: String| {
        let response = Response::builder().status(status).header(CONTENT_TYPE, kind);
        response.body(Full::new(Bytes::from(body))).expect("status and header are valid")
    };
    let plain = "text/plain; charset=utf-8";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, plain, "there is nothing to change here: use GET\n".into());
    }
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, plain, "there is /metrics, and nothing else\n".into());
    }
    let (reply, metrics) = oneshot::channel();
    let sent = asks.send(Ask::Scrape(reply)).await.is_ok();
    match metrics.await {
        Ok(metrics) if sent => text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics),
        _ => text(StatusCode::SERVICE_UNAVAILABLE, plain, "the server is ending\n".into()),
    }
}

/// Out of descriptors, most likely: existing connections go on, new ones wait a moment.
pub(super) async fn pause(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
