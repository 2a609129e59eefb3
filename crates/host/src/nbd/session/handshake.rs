//! The handshake: fixed newstyle, from the greeting to the option that opens an export.
//!
//! Problem: an unknown peer receives the list of exports, has to prove its identity for some of
//! them, and must not occupy the server for long. Model: a loop reads one option (header, data),
//! answers it, and reads the next one. The client waits for each answer, so at most one option is
//! unanswered. The state is the set of negotiated features (`Agreed`); `STARTTLS` discards it,
//! because another party may have sent the plain text before it.
//!
//! Control: every length that a client can choose has a bound, see the constants. At a bound the
//! client gets the protocol's error reply. If there is no such reply, or the client ignores it, the
//! connection is closed. A time limit covers the whole handshake, TLS included.
//!
//! Reads are exact: the bytes after the last option belong to the transmission phase and are left
//! in the socket (or in TLS, see [`Established`]) for the code that takes the connection over.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tracing::{debug, info as note};

use super::exports::{Access, Client, Exports, Identity};
use super::tls::{Established, Stream, Tls, TlsMode, TlsThreads};
use crate::nbd::session::users::User;
use crate::nbd::wire::option::{
    self, ContextRequest, InfoRequest, Invalid, greeting, info, opt, rep,
};
use crate::nbd::wire::proto::{BlockSizes, MAX_STRING, Negotiated, magic};
use crate::observe::log_limit::STRANGERS;

/// The most options on one connection. Clients need about ten; a listing with details takes a few
/// for each of up to ten thousand exports.
pub const MAX_OPTIONS: usize = 1 << 16;
/// The longest data of an option that is read, in bytes: a name and a hundred queries of usual
/// length.
pub const MAX_OPTION_DATA: u32 = 64 << 10;
/// The longest data of an option that is skipped and answered with `TOO_BIG`, in bytes. An option
/// with longer data closes the connection.
pub const MAX_OPTION_SKIP: u32 = 1 << 20;
/// The amount of the list of exports that is buffered before it is sent, in bytes; one entry may be
/// longer.
const LIST_PIECE: usize = 64 << 10;
/// The number of times that the admission of a client is retried when the tenant's connections are
/// at their bound, and the pause before each try. Connections that are ending are closed in this
/// time, so a client that connects and disconnects as fast as it can does not exclude others.
const ROOM_TRIES: u32 = 20;
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// The most bytes of a client's name of an export that are logged.
const MAX_SHOWN: usize = 64;

/// The options of a handshake, without the exports.
#[derive(Clone, Debug)]
pub struct HandshakeOptions {
    /// Whether clients start TLS.
    pub tls: TlsMode,
    /// The limit of the whole handshake.
    pub timeout: Duration,
    /// The threads that perform TLS handshakes; without them the caller's thread performs them.
    pub tls_threads: Option<TlsThreads>,
}

impl Default for HandshakeOptions {
    /// No TLS, ten seconds.
    fn default() -> Self {
        Self { tls: TlsMode::Off, timeout: Duration::from_secs(10), tls_threads: None }
    }
}

/// The result of a handshake that ended without an error.
#[derive(Debug)]
pub enum Outcome<S> {
    /// The client opened an export; requests follow on the stream.
    Transmission {
        /// The parameters of the transmission phase.
        negotiated: Negotiated,
        /// The connection.
        stream: Established<S>,
    },
    /// The client sent `ABORT`, or disconnected between two options.
    Closed,
}

/// The reason why a connection was closed during the handshake. None is a fault of the server, and
/// none affects other connections.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The handshake did not end in time.
    #[error("handshake not finished within {0:?}")]
    Timeout(Duration),
    /// Too many handshakes were in progress. This client had been silent for longest, so its
    /// connection was closed in favour of a new one.
    #[error(
        "{0} handshakes were in progress when another client connected, and this client had been \
         silent for longest"
    )]
    Crowded(usize),
    /// The connection broke.
    #[error("connection broke during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The client disconnected in the middle of a message.
    #[error("client disconnected during the handshake")]
    Hangup,
    /// The TLS handshake failed.
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    /// The client set unknown flags.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// The bytes received are not the beginning of an option.
    #[error("an option begins with {0:#018x}, not with IHAVEOPT")]
    OptionMagic(u64),
    /// The data of an option are too long even to be skipped.
    #[error("option {option} has {length} bytes of data, more than {MAX_OPTION_SKIP}")]
    OptionLength {
        /// The option.
        option: u32,
        /// The length of its data.
        length: u32,
    },
    /// The client sent more than [`MAX_OPTIONS`] options.
    #[error("more than {MAX_OPTIONS} options")]
    TooManyOptions,
    /// `EXPORT_NAME`, or an option of a client without fixed newstyle, was refused: the protocol
    /// has no error reply for it.
    #[error("option {option} refused without a reply: {reason}")]
    Refused {
        /// The option.
        option: u32,
        /// The reason.
        reason: &'static str,
    },
}

/// A client before its first message, and the check whether it may be admitted.
#[derive(Clone, Copy, Default)]
pub struct Peer<'a> {
    /// The user at the other end of a Unix socket.
    pub user: Option<&'a User>,
    /// Called with the index of the export that the client is about to open, and with whether this
    /// is the last try. If the last try fails, the client receives the error.
    pub admit: Option<&'a (dyn Fn(usize, bool) -> Result<(), &'static str> + Sync)>,
}

/// Performs the server's side of the handshake on a fresh connection.
///
/// The runtime needs its timer. Dropping the future closes the connection, so a server that stops
/// closes handshakes in this way. If the stream buffers what it reads (such as tokio's standard
/// input), bytes of the first request stay in that buffer.
pub async fn handshake<S>(
    stream: S,
    exports: &Exports,
    options: &HandshakeOptions,
    peer: Peer<'_>,
) -> Result<Outcome<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limit = options.timeout;
    let conversation = converse(Stream::Plain(stream), exports, options, peer);
    match tokio::time::timeout(limit, conversation).await {
        Ok(result) => result,
        Err(_) => Err(HandshakeError::Timeout(limit)),
    }
}

/// Performs the handshake without its time limit.
async fn converse<S>(
    mut stream: Stream<S>,
    exports: &Exports,
    options: &HandshakeOptions,
    peer: Peer<'_>,
) -> Result<Outcome<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(client_flags) = greet(&mut stream).await? else { return Ok(Outcome::Closed) };
    let mut server = Server::new(exports, &options.tls, peer, client_flags);
    for _ in 0..MAX_OPTIONS {
        let Some(header) = read_header(&mut stream).await? else { return Ok(Outcome::Closed) };
        if header.length > MAX_OPTION_DATA {
            // These data precede the next option, so they have to be read.
            skip(&mut stream, header).await?;
            server.too_big(header.option)?;
            send(&mut stream, &mut server.out).await?;
            continue;
        }
        let mut data = vec![0; header.length as usize];
        stream.read_exact(&mut data).await.map_err(broken)?;
        let mut answer = server.answer(header.option, &data);
        for tries_left in (0..ROOM_TRIES).rev() {
            if !std::mem::take(&mut server.has_no_room) {
                break;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
            server.out.clear();
            server.is_last_try = tries_left == 0;
            answer = server.answer(header.option, &data);
        }
        (server.has_no_room, server.is_last_try) = (false, false);
        match answer? {
            Next::Option => send(&mut stream, &mut server.out).await?,
            Next::List => {
                // The list is sent in pieces while it is made: there may be ten thousand exports.
                let Server { client, out, .. } = &mut server;
                for export in exports.visible(client) {
                    let (name, text) = (export.name.as_bytes(), export.description.as_bytes());
                    let length = (name.len() as u32).to_be_bytes();
                    option::put_reply(out, opt::LIST, rep::SERVER, &[&length, name, text]);
                    if out.len() >= LIST_PIECE {
                        send(&mut stream, out).await?;
                    }
                }
                server.ack(opt::LIST);
                send(&mut stream, &mut server.out).await?;
            }
            Next::StartTls(tls) => {
                send(&mut stream, &mut server.out).await?;
                // After the acknowledgement the specification has no way back to plain text: a
                // failed TLS handshake ends the connection.
                let threads = options.tls_threads.as_ref();
                stream = stream.start_tls(tls, threads).await.map_err(HandshakeError::Tls)?;
                server.tls_started(stream.is_certified(), stream.client_names());
            }
            Next::Transmission(negotiated) => {
                send(&mut stream, &mut server.out).await?;
                return Ok(Outcome::Transmission { negotiated, stream: stream.into_established() });
            }
            Next::Close => {
                // Clients may disconnect without waiting for the answer.
                if send(&mut stream, &mut server.out).await.is_ok() {
                    let _ = stream.shutdown().await;
                }
                return Ok(Outcome::Closed);
            }
        }
    }
    Err(HandshakeError::TooManyOptions)
}

/// Sends the greeting and reads the client's flags; `None` if the client disconnects instead.
async fn greet<S>(stream: &mut Stream<S>) -> Result<Option<u32>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let flags = greeting::FIXED_NEWSTYLE | greeting::NO_ZEROES;
    let mut hello = Vec::with_capacity(18);
    hello.extend_from_slice(&magic::GREETING.to_be_bytes());
    hello.extend_from_slice(&magic::OPTION.to_be_bytes());
    hello.extend_from_slice(&flags.to_be_bytes());
    send(stream, &mut hello).await?;
    let mut answer = [0; 4];
    if !read_or_end(stream, &mut answer).await? {
        return Ok(None);
    }
    let client_flags = u32::from_be_bytes(answer);
    // The specification requires that an unknown flag closes the connection.
    if client_flags & !u32::from(flags) != 0 {
        return Err(HandshakeError::ClientFlags(client_flags));
    }
    Ok(Some(client_flags))
}

/// The header of an option.
#[derive(Clone, Copy)]
struct Header {
    option: u32,
    length: u32,
}

/// Reads the header of the next option; `None` if the client disconnected instead.
async fn read_header<S>(stream: &mut Stream<S>) -> Result<Option<Header>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut bytes = [0; 16];
    if !read_or_end(stream, &mut bytes).await? {
        return Ok(None);
    }
    let [m0, m1, m2, m3, m4, m5, m6, m7, o0, o1, o2, o3, l0, l1, l2, l3] = bytes;
    let found = u64::from_be_bytes([m0, m1, m2, m3, m4, m5, m6, m7]);
    if found != magic::OPTION {
        return Err(HandshakeError::OptionMagic(found));
    }
    let option = u32::from_be_bytes([o0, o1, o2, o3]);
    Ok(Some(Header { option, length: u32::from_be_bytes([l0, l1, l2, l3]) }))
}

/// Reads and discards the data of an option that is too long.
async fn skip<S>(stream: &mut Stream<S>, header: Header) -> Result<(), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Header { option, length } = header;
    if length > MAX_OPTION_SKIP {
        return Err(HandshakeError::OptionLength { option, length });
    }
    let mut left = length as usize;
    let mut scratch = [0; 4096];
    while left > 0 {
        let part = left.min(scratch.len());
        stream.read_exact(&mut scratch[..part]).await.map_err(broken)?;
        left -= part;
    }
    Ok(())
}

/// Fills `bytes`; false if the stream ends before the first of them.
async fn read_or_end<S>(stream: &mut Stream<S>, bytes: &mut [u8]) -> Result<bool, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = match stream.read(bytes).await {
        Ok(0) => return Ok(false),
        Ok(count) => count,
        // A client may disconnect between two messages without an orderly close of TLS or TCP. This
        // counts as a normal end.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            ) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    stream.read_exact(&mut bytes[first..]).await.map_err(broken)?;
    Ok(true)
}

fn broken(error: io::Error) -> HandshakeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => HandshakeError::Hangup,
        _ => HandshakeError::Io(error),
    }
}

/// Sends the bytes in `out` and empties it.
async fn send<S>(stream: &mut Stream<S>, out: &mut Vec<u8>) -> Result<(), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(out).await?;
    stream.flush().await?;
    out.clear();
    Ok(())
}

/// The step that follows an option.
enum Next<'a> {
    /// Read the next option.
    Option,
    /// Send the list of exports, then read the next option.
    List,
    /// Start TLS.
    StartTls(&'a Tls),
    /// Start the transmission phase.
    Transmission(Negotiated),
    /// Close the connection.
    Close,
}

/// The features negotiated so far.
#[derive(Debug, Default)]
struct Agreed {
    structured: bool,
    extended: bool,
    /// The index of the export for which `base:allocation` was selected.
    base_allocation: Option<usize>,
}

/// The server's side of the negotiation: computes the answer to each option, without I/O.
struct Server<'a> {
    exports: &'a Exports,
    tls: &'a TlsMode,
    peer: Peer<'a>,
    fixed_newstyle: bool,
    no_zeroes: bool,
    tls_running: bool,
    client: Client,
    agreed: Agreed,
    /// Whether the last option was refused because the tenant has too many connections, and whether
    /// this is the last try.
    has_no_room: bool,
    is_last_try: bool,
    /// Answers that have not been sent.
    out: Vec<u8>,
}

impl<'a> Server<'a> {
    fn new(exports: &'a Exports, tls: &'a TlsMode, peer: Peer<'a>, client_flags: u32) -> Self {
        let has = |flag: u16| client_flags & u32::from(flag) != 0;
        let fixed_newstyle = has(greeting::FIXED_NEWSTYLE);
        // If TLS is required, no answer has to refer a client to TLS: the client can request no
        // export before it has started TLS.
        let may_start_tls = matches!(tls, TlsMode::Optional(_)) && fixed_newstyle;
        Self {
            exports,
            tls,
            peer,
            fixed_newstyle,
            no_zeroes: has(greeting::NO_ZEROES),
            tls_running: false,
            client: Client { may_start_tls, user: peer.user.cloned(), ..Client::default() },
            agreed: Agreed::default(),
            has_no_room: false,
            is_last_try: false,
            out: Vec::new(),
        }
    }

    fn tls_started(&mut self, certified: bool, names: Vec<String>) {
        debug!(?names, "TLS started");
        self.tls_running = true;
        // The specification forbids keeping features that were negotiated before `STARTTLS`. The
        // user is kept, because the kernel and not the client has reported it.
        let user = self.client.user.take();
        self.client = Client { certified, names, user, may_start_tls: false };
        self.agreed = Agreed::default();
    }

    /// Appends the answer to one option to `out`.
    fn answer(&mut self, option: u32, data: &[u8]) -> Result<Next<'a>, HandshakeError> {
        debug!(option, length = data.len(), "option");
        if let Some(next) = self.answer_before_all(option)? {
            return Ok(next);
        }
        match option {
            opt::EXPORT_NAME => return self.export_name(data),
            opt::STARTTLS => return Ok(self.start_tls(data)),
            opt::LIST if data.is_empty() => return Ok(Next::List),
            opt::LIST => self.error(option, rep::ERR_INVALID, "the option takes no data"),
            opt::INFO | opt::GO => return Ok(self.info_or_go(option, data)),
            opt::STRUCTURED_REPLY => self.structured_reply(data),
            opt::EXTENDED_HEADERS => self.extended_headers(data),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data),
            _ => self.error(option, rep::ERR_UNSUP, "this server does not know the option"),
        }
        Ok(Next::Option)
    }

    /// Applies the rules that precede the meaning of an option: `ABORT`, old clients, and required
    /// TLS.
    fn answer_before_all(&mut self, option: u32) -> Result<Option<Next<'a>>, HandshakeError> {
        let tls_missing = matches!(self.tls, TlsMode::Required(_)) && !self.tls_running;
        match option {
            // `EXPORT_NAME` has no error reply; the specification requires that the session ends
            // instead.
            opt::EXPORT_NAME if tls_missing => Err(HandshakeError::Refused {
                option,
                reason: "TLS is required and was not started",
            }),
            opt::EXPORT_NAME => Ok(None),
            // Without fixed newstyle options have no replies, so a refusal cannot be sent.
            _ if !self.fixed_newstyle => Err(HandshakeError::Refused {
                option,
                reason: "the client does not speak fixed newstyle",
            }),
            // `ABORT` and `STARTTLS` are the two options that the specification allows without TLS
            // where TLS is required.
            opt::ABORT => {
                self.ack(option);
                Ok(Some(Next::Close))
            }
            opt::STARTTLS => Ok(None),
            _ if tls_missing => {
                self.error(option, rep::ERR_TLS_REQD, "this server requires TLS");
                Ok(Some(Next::Option))
            }
            _ => Ok(None),
        }
    }

    /// Answers an option whose data were too long.
    fn too_big(&mut self, option: u32) -> Result<(), HandshakeError> {
        match self.answer_before_all(option)? {
            None if option == opt::EXPORT_NAME => {
                Err(HandshakeError::Refused { option, reason: "the name is too long" })
            }
            // `ABORT` is valid even if its data are too long; no further option follows.
            Some(_) => Ok(()),
            None => {
                self.error(option, rep::ERR_TOO_BIG, "the data of the option are too long");
                Ok(())
            }
        }
    }

    fn export_name(&mut self, name: &[u8]) -> Result<Next<'a>, HandshakeError> {
        let option = opt::EXPORT_NAME;
        let refused = |reason| Err(HandshakeError::Refused { option, reason });
        // The specification forbids this option to clients that have negotiated extended headers.
        if self.agreed.extended {
            return refused("with extended headers an export can only be opened by GO");
        }
        if name.len() > MAX_STRING {
            return refused("the name is too long");
        }
        let index = match self.find(name) {
            Ok(index) => index,
            Err(Access::NeedsTls) => return refused("no such export without TLS"),
            Err(_) => return refused("no such export"),
        };
        if let Err(reason) = self.admit(index) {
            return refused(reason);
        }
        let export = self.exports.get(index);
        self.out.extend_from_slice(&export.size.to_be_bytes());
        self.out.extend_from_slice(&export.flags(self.agreed.structured).to_be_bytes());
        if !self.no_zeroes {
            self.out.extend_from_slice(&[0; 124]);
        }
        Ok(Next::Transmission(self.negotiated(index, false)))
    }

    fn start_tls(&mut self, data: &[u8]) -> Next<'a> {
        let option = opt::STARTTLS;
        match self.tls.tls() {
            None => self.error(option, rep::ERR_POLICY, "TLS is not configured on this server"),
            Some(_) if !data.is_empty() => {
                self.error(option, rep::ERR_INVALID, "the option takes no data")
            }
            Some(_) if self.tls_running => {
                self.error(option, rep::ERR_INVALID, "TLS has already been started")
            }
            Some(tls) => {
                self.ack(option);
                return Next::StartTls(tls);
            }
        }
        Next::Option
    }

    fn info_or_go(&mut self, option: u32, data: &[u8]) -> Next<'a> {
        let request = match InfoRequest::parse(data) {
            Ok(request) => request,
            Err(invalid) => return self.invalid(option, invalid),
        };
        let index = match self.find(request.name) {
            Ok(index) => index,
            Err(access) => {
                self.not_found(option, access);
                return Next::Option;
            }
        };
        // `INFO` opens no export, so it does not count among the tenant's connections.
        if option == opt::GO
            && let Err(reason) = self.admit(index)
        {
            self.error(option, rep::ERR_POLICY, reason);
            return Next::Option;
        }
        self.put_info(option, index, &request);
        self.ack(option);
        if option == opt::INFO {
            return Next::Option;
        }
        Next::Transmission(self.negotiated(index, request.wants(info::BLOCK_SIZE)))
    }

    /// Adds the information about an export that every client gets and that this one requested.
    fn put_info(&mut self, option: u32, index: usize, request: &InfoRequest<'_>) {
        let export = self.exports.get(index);
        let size_and_flags =
            [&export.size.to_be_bytes() as &[u8], &export.flags(self.chunks()).to_be_bytes()]
                .concat();
        let BlockSizes { min, preferred, max_payload } = export.blocks;
        let out = &mut self.out;
        let mut put = |kind: u16, data: &[u8]| {
            option::put_reply(out, option, rep::INFO, &[&kind.to_be_bytes(), data])
        };
        put(info::EXPORT, &size_and_flags);
        if request.wants(info::NAME) {
            put(info::NAME, export.name.as_bytes());
        }
        if request.wants(info::DESCRIPTION) && !export.description.is_empty() {
            put(info::DESCRIPTION, export.description.as_bytes());
        }
        // The specification requires that sizes other than the defaults are sent even if they were
        // not requested.
        if request.wants(info::BLOCK_SIZE) || export.blocks != BlockSizes::default() {
            put(
                info::BLOCK_SIZE,
                &[min.to_be_bytes(), preferred.to_be_bytes(), max_payload.to_be_bytes()].concat(),
            );
        }
    }

    fn structured_reply(&mut self, data: &[u8]) {
        let option = opt::STRUCTURED_REPLY;
        if !data.is_empty() {
            self.error(option, rep::ERR_INVALID, "the option takes no data");
        } else if self.agreed.extended {
            self.error(option, rep::ERR_EXT_HEADER_REQD, "extended headers have been agreed on");
        } else {
            self.agreed.structured = true;
            self.ack(option);
        }
    }

    fn extended_headers(&mut self, data: &[u8]) {
        let option = opt::EXTENDED_HEADERS;
        if !data.is_empty() {
            self.error(option, rep::ERR_INVALID, "the option takes no data");
        } else {
            self.agreed.extended = true;
            self.ack(option);
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.agreed.base_allocation = None; // also if the option fails
        }
        if !self.chunks() {
            return self.error(
                option,
                rep::ERR_INVALID,
                "structured replies have to be agreed on first",
            );
        }
        let request = match ContextRequest::parse(data) {
            Ok(request) => request,
            Err(Invalid(reason)) => return self.error(option, rep::ERR_INVALID, reason),
        };
        // Only INFO and GO may refer a client to TLS.
        let Ok(index) = self.find(request.name) else {
            return self.not_found(option, Access::Denied);
        };
        // By the specification, no query or only `base:` lists all contexts and selects none.
        let all = !set && (request.queries == 0 || request.base_wildcard);
        if all || request.base_allocation {
            // In a listing the context's number is reserved and must be zero.
            let id = if set { option::BASE_ALLOCATION_ID } else { 0 };
            let data: [&[u8]; 2] = [&id.to_be_bytes(), option::BASE_ALLOCATION];
            option::put_reply(&mut self.out, option, rep::META_CONTEXT, &data);
            if set {
                self.agreed.base_allocation = Some(index);
            }
        }
        self.ack(option);
    }

    /// The index of the export with this name, if the client may open it; refusals are logged, as
    /// clients do not get the reason.
    fn find(&self, name: &[u8]) -> Result<usize, Access> {
        self.exports.find(name, &self.client).inspect_err(|access| {
            let shown = String::from_utf8_lossy(&name[..name.len().min(MAX_SHOWN)]);
            if STRANGERS.allows() {
                note!(export = ?shown, client = ?self.client.names, ?access, "export refused");
            }
        })
    }

    /// Admits one more client of an export; fails if the tenant or the server has too many
    /// connections.
    fn admit(&mut self, index: usize) -> Result<(), &'static str> {
        let Some(admit) = self.peer.admit else { return Ok(()) };
        admit(index, self.is_last_try).inspect_err(|_| self.has_no_room = true)
    }

    fn chunks(&self) -> bool {
        self.agreed.structured || self.agreed.extended
    }

    fn negotiated(&self, index: usize, blocks_agreed: bool) -> Negotiated {
        let export = self.exports.get(index);
        let owner = match &export.allowed_identity {
            Some(Identity::Name(name)) => Some(name),
            _ => None,
        };
        Negotiated {
            export: index,
            size: export.size,
            read_only: export.read_only,
            structured: self.chunks(),
            extended: self.agreed.extended,
            // The specification says that a selection is valid only for the export that it named.
            base_allocation: (self.agreed.base_allocation == Some(index))
                .then_some(option::BASE_ALLOCATION_ID),
            no_zeroes: self.no_zeroes,
            blocks: export.blocks,
            blocks_agreed,
            // The name in the certificate that permits this export, or else the first name, the
            // common name.
            identity: owner.or(self.client.names.first()).cloned(),
        }
    }

    fn ack(&mut self, option: u32) {
        option::put_reply(&mut self.out, option, rep::ACK, &[]);
    }

    fn error(&mut self, option: u32, kind: u32, message: &str) {
        debug!(option, kind, message, "option refused");
        option::put_reply(&mut self.out, option, kind, &[message.as_bytes()]);
    }

    fn invalid(&mut self, option: u32, Invalid(reason): Invalid) -> Next<'a> {
        self.error(option, rep::ERR_INVALID, reason);
        Next::Option
    }

    fn not_found(&mut self, option: u32, access: Access) {
        match access {
            Access::NeedsTls => self.error(option, rep::ERR_TLS_REQD, "no such export without TLS"),
            _ => self.error(option, rep::ERR_UNKNOWN, "no such export"),
        }
    }
}
