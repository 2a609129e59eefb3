//! The client's side of a handshake: scripts of bytes, and parsers of the answers.

use std::time::Duration;

use fairq_host::nbd::wire::option::{opt, rep};
use fairq_host::nbd::{
    Established, Export, Exports, HandshakeError, HandshakeOptions, Outcome, Peer, handshake,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};

/// Bytes of the pipe: more than any script and its answers need, so that each side can write before
/// the other reads.
pub(crate) const PIPE: usize = 8 << 20;

pub(crate) const FIXED: u32 = 1;
pub(crate) const NO_ZEROES: u32 = 2;

/// A script begins with the client's flags.
pub(crate) fn hello(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat()
}

pub(crate) fn sized(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text].concat()
}

/// Data of `INFO` and `GO`.
pub(crate) fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = sized(name.as_bytes());
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

pub(crate) fn go(name: &str) -> Vec<u8> {
    option(opt::GO, &info_data(name, &[]))
}

/// Data of the two options about metadata contexts.
pub(crate) fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = sized(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| sized(query.as_bytes())));
    data
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) option: u32,
    pub(crate) kind: u32,
    pub(crate) data: Vec<u8>,
}

impl Reply {
    pub(crate) fn is_final(&self) -> bool {
        self.kind == rep::ACK || self.kind & rep::ERROR != 0
    }
}

/// Parses a sequence of replies; panics if it is anything else.
pub(crate) fn parse_replies(mut rest: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (0x0003_e889, 0x0455_65a9), "the magic number of replies");
        let (option, kind, length) = (word(8), word(12), word(16) as usize);
        replies.push(Reply { option, kind, data: rest[20..20 + length].to_vec() });
        rest = &rest[20 + length..];
    }
    replies
}

/// Reads one reply; panics if it is not one.
pub(crate) async fn read_reply(stream: &mut (impl AsyncRead + Unpin)) -> Reply {
    assert_eq!(
        stream.read_u64().await.expect("a reply"),
        0x0003_e889_0455_65a9,
        "the magic number of replies"
    );
    let option = stream.read_u32().await.unwrap();
    let kind = stream.read_u32().await.unwrap();
    let mut data = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut data).await.unwrap();
    Reply { option, kind, data }
}

/// Sends an option and reads its answer to the end.
pub(crate) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    script: &[u8],
) -> Vec<Reply> {
    stream.write_all(script).await.unwrap();
    stream.flush().await.unwrap();
    let mut replies = vec![read_reply(stream).await];
    while !replies[replies.len() - 1].is_final() {
        replies.push(read_reply(stream).await);
    }
    replies
}

/// Reads the greeting and answers it.
pub(crate) async fn greet(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), flags: u32) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_u32(flags).await.unwrap();
    stream.flush().await.unwrap();
}

/// The result of a script.
pub(crate) struct Played {
    pub(crate) result: Result<Outcome<DuplexStream>, HandshakeError>,
    /// The bytes that the server sent after its greeting.
    pub(crate) sent: Vec<u8>,
    /// The bytes that the server did not read.
    pub(crate) left: Vec<u8>,
}

impl Played {
    /// The server's answers; panics if it sent anything else.
    pub(crate) fn replies(&self) -> Vec<Reply> {
        parse_replies(&self.sent)
    }

    /// Option and type of each answer.
    pub(crate) fn kinds(&self) -> Vec<(u32, u32)> {
        self.replies().iter().map(|reply| (reply.option, reply.kind)).collect()
    }

    pub(crate) fn negotiated(&self) -> &fairq_host::nbd::wire::proto::Negotiated {
        match &self.result {
            Ok(Outcome::Transmission { negotiated, .. }) => negotiated,
            other => panic!("no transmission phase but {other:?}"),
        }
    }
}

/// Plays a whole script, after which the client disconnects.
pub(crate) async fn play(exports: &Exports, options: &HandshakeOptions, script: &[u8]) -> Played {
    let (mut client, server) = tokio::io::duplex(PIPE);
    client.write_all(script).await.unwrap();
    client.shutdown().await.unwrap();
    let mut result = handshake(server, exports, options, Peer::default()).await;
    let mut left = Vec::new();
    if let Ok(Outcome::Transmission { stream: Established::Plain(stream), .. }) = &mut result {
        stream.read_to_end(&mut left).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    let mut sent = Vec::new();
    client.read_to_end(&mut sent).await.unwrap();
    assert_eq!(&sent[..18], b"NBDMAGICIHAVEOPT\0\x03", "the greeting");
    Played { result, sent: sent.split_off(18), left }
}

/// Options without TLS.
pub(crate) fn plain() -> HandshakeOptions {
    HandshakeOptions { timeout: Duration::from_secs(5), ..HandshakeOptions::default() }
}

/// Two exports: `db`, the default, with a description; and `ro`, read-only with block sizes of its
/// own.
pub(crate) fn two_exports() -> Exports {
    let mut db = Export::new("db", 1 << 30);
    db.description = "the database".into();
    let mut ro = Export::new("ro", 4096);
    ro.read_only = true;
    ro.blocks.min = 512;
    ro.blocks.preferred = 8192;
    ro.blocks.max_payload = 1 << 20;
    Exports::new(vec![db, ro], Some(0)).unwrap()
}
