//! Drivers for the NBD protocol: arbitrary bytes in, and laws that hold whatever they are.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use fairq_host::nbd::wire::option::{opt, rep};
use fairq_host::nbd::wire::proto::{
    BlockSizes, Command, EXTENDED_REQUEST_LEN, MAX_PAYLOAD, Malformed, NbdError, Negotiated,
    Request, parse_request, validate,
};
use fairq_host::nbd::wire::reply::{BlockStatus, HEADER_MAX, ReplyStyle};
use fairq_host::nbd::{
    Established, Export, Exports, HandshakeError, HandshakeOptions, Outcome, Peer, Tls, TlsMode,
    handshake as perform,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The server that a script is played to.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// 0 and 3: off, 1: optional, 2: required.
    pub tls: u8,
    /// Whether the empty name opens an export.
    pub has_default: bool,
    /// The most bytes that one read or write moves.
    pub step: usize,
}

/// The handshake: the first byte is the setting, the rest is what the client sends.
pub fn handshake(data: &[u8]) {
    let Some((&first, script)) = data.split_first() else { return };
    let step = if first & 8 == 0 { usize::MAX } else { usize::from(first >> 4) + 1 };
    play(Setting { tls: first & 3, has_default: first & 4 != 0, step }, script);
}

/// Plays a script to a server. For any input the handshake ends; every option that was read in full
/// has one final answer, in order; no forbidden export opens; and the bytes after the last option
/// are not read.
pub fn play(setting: Setting, script: &[u8]) {
    let exports = exports(setting.has_default);
    let tls = match setting.tls {
        1 => TlsMode::Optional(tls()),
        2 => TlsMode::Required(tls()),
        _ => TlsMode::Off,
    };
    let options = HandshakeOptions { tls, timeout: Duration::from_secs(60), tls_threads: None };
    let read = Arc::new(AtomicUsize::new(0));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let stream = Script {
        bytes: script.into(),
        read: Arc::clone(&read),
        sent: Arc::clone(&sent),
        step: setting.step,
    };
    // Dropped at the end so that no timer of one script is seen by the next.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let result = runtime.block_on(perform(stream, &exports, &options, Peer::default()));
    let (read, sent) = (&script[..read.load(Ordering::Relaxed)], sent.lock().expect("no panic"));
    let answers = sent.strip_prefix(b"NBDMAGICIHAVEOPT\0\x03").expect("the greeting comes first");
    let (mut expected, complete) = options_in(read);
    let (finals, rest) = final_answers(answers);
    match &result {
        Err(HandshakeError::Timeout(_)) => panic!("the client has left, so nothing is waited for"),
        Err(HandshakeError::ClientFlags(_)) => expected.clear(),
        Err(HandshakeError::Refused { option, .. }) => {
            let last = expected.pop().expect("there is one");
            assert_eq!(last.0, *option, "the option that was refused was the last to be read");
        }
        Err(HandshakeError::Tls(_)) => {
            assert!(matches!(setting.tls, 1 | 2), "TLS is off");
            let start = expected
                .iter()
                .position(|found| *found == (opt::STARTTLS, 0))
                .expect("it was asked for");
            // All bytes that the client sent after it went to TLS.
            expected.truncate(start + 1);
        }
        Ok(Outcome::Transmission { negotiated, stream }) => {
            check_negotiated(setting, &exports, negotiated);
            assert!(matches!(stream, Established::Plain(_)));
            assert_eq!(complete, read.len(), "nothing after the last option was read");
            if expected.last().is_some_and(|last| last.0 == opt::EXPORT_NAME) {
                expected.pop();
                assert_eq!(rest.len(), if negotiated.no_zeroes { 10 } else { 134 });
            } else {
                assert_eq!(rest, b"");
            }
        }
        Ok(Outcome::Closed) | Err(_) => assert_eq!(rest, b"", "nothing but replies is sent"),
    }
    let expected: Vec<u32> = expected.into_iter().map(|(option, _)| option).collect();
    assert_eq!(finals, expected, "one final answer for each option: {result:?}");
}

fn check_negotiated(setting: Setting, exports: &Exports, negotiated: &Negotiated) {
    let export = exports.get(negotiated.export);
    assert_ne!(setting.tls, 2, "TLS is required and the script cannot speak it");
    assert_eq!(export.allowed_identity, None, "nobody has shown a certificate");
    assert_eq!(
        (negotiated.size, negotiated.read_only, negotiated.blocks),
        (export.size, export.read_only, export.blocks)
    );
    assert!(negotiated.structured || !negotiated.extended && negotiated.base_allocation.is_none());
    assert_eq!(negotiated.identity, None);
}

/// The options in what the server has read, with the lengths of their data, and how many bytes they
/// and the client's flags are.
fn options_in(read: &[u8]) -> (Vec<(u32, usize)>, usize) {
    let Some(mut rest) = read.get(4..) else { return (Vec::new(), read.len()) };
    let mut found = Vec::new();
    while let Some((
        [b'I', b'H', b'A', b'V', b'E', b'O', b'P', b'T', o0, o1, o2, o3, l0, l1, l2, l3],
        data,
    )) = rest.split_first_chunk::<16>()
    {
        let length = u32::from_be_bytes([*l0, *l1, *l2, *l3]) as usize;
        let Some(after) = data.get(length..) else { break };
        found.push((u32::from_be_bytes([*o0, *o1, *o2, *o3]), length));
        rest = after;
    }
    (found, read.len() - rest.len())
}

/// The options to which `answers` has final replies, and what comes after the last reply.
fn final_answers(mut answers: &[u8]) -> (Vec<u32>, &[u8]) {
    let mut finals = Vec::new();
    while let Some((header, data)) = answers.split_first_chunk::<20>() {
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if (word(0), word(4)) != (0x0003_e889, 0x0455_65a9) {
            break;
        }
        let (option, kind, length) = (word(8), word(12), word(16) as usize);
        if kind == rep::ACK || kind & rep::ERROR != 0 {
            finals.push(option);
        }
        answers = data.get(length..).expect("the data of the reply are there");
    }
    (finals, answers)
}

fn exports(has_default: bool) -> Exports {
    let mut list =
        vec![Export::new("db", 1 << 30), Export::new("ro", 4096), Export::new("mine", 1)];
    list[0].description = "the database".into();
    list[1].read_only = true;
    list[1].blocks.min = 512;
    list[2].allowed_identity = Some("me".into());
    Exports::new(list, has_default.then_some(0)).expect("good exports")
}

/// A certificate of our own; scripts get no further with it than the start of TLS.
fn tls() -> Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    let make = || {
        let dir = tempfile::tempdir().expect("a directory");
        let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let issued =
            rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
        std::fs::write(&certificate, issued.cert.pem()).expect("a file");
        std::fs::write(&key, issued.signing_key.serialize_pem()).expect("a file");
        Tls::load(&certificate, &key, None, None).expect("a server's half of TLS")
    };
    TLS.get_or_init(make).clone()
}

/// A client that has sent everything and left: reads and writes are never waited for.
#[derive(Debug)]
struct Script {
    bytes: Arc<[u8]>,
    read: Arc<AtomicUsize>,
    sent: Arc<Mutex<Vec<u8>>>,
    step: usize,
}

impl AsyncRead for Script {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.bytes[self.read.load(Ordering::Relaxed)..];
        let count = rest.len().min(buf.remaining()).min(self.step);
        buf.put_slice(&rest[..count]);
        self.read.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Script {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = bytes.len().min(self.step);
        self.sent.lock().expect("no panic").extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The transmission phase: the first two bytes are what was negotiated, the rest is what the client
/// sends.
///
/// Every header is either read in full, with its payload after it, or ends the connection; what is
/// granted lies inside the export; and every reply has the length that its header says.
pub fn transmission(data: &[u8]) {
    let Some((&[bits, sizes], mut stream)) = data.split_first_chunk::<2>() else { return };
    let negotiated = negotiated(bits, sizes);
    let extended = negotiated.extended;
    loop {
        let (request, header) = match parse_request(stream, extended) {
            Ok(Some(found)) => found,
            Ok(None) => {
                assert!(stream.len() < EXTENDED_REQUEST_LEN, "a whole header is always enough");
                return;
            }
            Err(error) => return check_malformed(error, stream, extended),
        };
        for cut in 0..header {
            assert_eq!(
                parse_request(&stream[..cut], extended),
                Ok(None),
                "a part of a header is not one"
            );
        }
        let mut again = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(extended, &mut again);
        assert_eq!(again[..length], stream[..header], "what was read is what was sent");
        let payload = request.payload(extended);
        assert!(payload <= u64::from(MAX_PAYLOAD));
        check_answer(&negotiated, &request, &stream[header..]);
        let Some(after) = stream.get(header + payload as usize..) else { return };
        stream = after;
    }
}

fn negotiated(bits: u8, sizes: u8) -> Negotiated {
    let has = |bit: u8| bits >> bit & 1 != 0;
    let extended = has(0);
    let structured = extended || has(1);
    let min = 1 << (sizes & 15);
    Negotiated {
        export: 0,
        size: if has(2) { u64::MAX } else { 1 << (sizes >> 4) << 10 },
        read_only: has(3),
        structured,
        extended,
        base_allocation: (structured && has(4)).then_some(1),
        no_zeroes: has(5),
        blocks: BlockSizes {
            min,
            preferred: min.max(4096),
            max_payload: MAX_PAYLOAD >> (bits >> 6),
        },
        blocks_agreed: has(5),
        identity: None,
    }
}

fn check_malformed(error: Malformed, stream: &[u8], extended: bool) {
    match error {
        Malformed::Magic { found, expected } => {
            assert_ne!(found, expected);
            assert_eq!(stream[..4], found.to_be_bytes());
        }
        Malformed::PayloadTooLong(length) => assert!(length > u64::from(MAX_PAYLOAD)),
        Malformed::WriteWithoutPayload => assert!(extended),
    }
}

/// Decides about a request and encodes each kind of answer that it could get.
fn check_answer(negotiated: &Negotiated, request: &Request, what_follows: &[u8]) {
    let style = ReplyStyle::of(negotiated);
    let verdict = validate(request, negotiated);
    if let Err(error) = verdict {
        check_reply(style, request, style.error(request, error).as_bytes(), 0);
        return;
    }
    let ranged = !matches!(request.command, Command::Flush | Command::Disconnect);
    if ranged {
        let end = request.offset.checked_add(request.length).expect("the range does not wrap");
        assert!(end <= negotiated.size && request.length > 0);
        assert_eq!((request.offset | request.length) & u64::from(negotiated.blocks.min - 1), 0);
    }
    assert!(!(negotiated.read_only && request.command.modifies()));
    assert!(request.payload(negotiated.extended) <= u64::from(negotiated.blocks.max_payload));
    match request.command {
        Command::Unknown(_) => panic!("an unknown command was granted"),
        Command::Read => {
            assert!(request.length <= u64::from(negotiated.blocks.max_payload));
            let length = request.length as u32;
            check_reply(
                style,
                request,
                style.data(request, request.offset, length, true).as_bytes(),
                length,
            );
            check_reply(
                style,
                request,
                style.error_at(request, NbdError::Io, request.offset).as_bytes(),
                0,
            );
            if negotiated.structured {
                check_reply(
                    style,
                    request,
                    style.hole(request, request.offset, length, false).as_bytes(),
                    0,
                );
                check_reply(style, request, style.end(request).as_bytes(), 0);
            }
        }
        Command::BlockStatus => {
            let mut out = vec![
                0;
                BlockStatus::buffer_len(
                    usize::from(what_follows.first().copied().unwrap_or(0)) + 1
                )
            ];
            let mut status = BlockStatus::new(style, request, 1, &mut out);
            for extent in what_follows.chunks_exact(9) {
                let (flags, length) = extent.split_first_chunk::<1>().expect("nine bytes");
                let length = u64::from_be_bytes(length.try_into().expect("eight bytes"));
                if !status.push(length, u32::from(flags[0] & 3)) {
                    break;
                }
            }
            if let Some(length) = status.finish() {
                check_reply(style, request, &out[..length], 0);
            }
        }
        _ => check_reply(style, request, style.done(request).as_bytes(), 0),
    }
}

/// A reply without `data` bytes of data that follow it: its header names the request and its own
/// length.
fn check_reply(style: ReplyStyle, request: &Request, reply: &[u8], data: u32) {
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_be_bytes(reply[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(long(8), request.cookie);
    match word(0) {
        0x6744_6698 => {
            assert!(style != ReplyStyle::Extended && reply.len() == 16);
            assert!(style == ReplyStyle::Simple || request.command != Command::Read);
        }
        0x668e_33ef => {
            assert_eq!(style, ReplyStyle::Structured);
            assert_eq!(u64::from(word(16)), reply.len() as u64 - 20 + u64::from(data));
        }
        0x6e8a_278c => {
            assert_eq!(style, ReplyStyle::Extended);
            assert_eq!(long(16), request.offset);
            assert_eq!(long(24), reply.len() as u64 - 32 + u64::from(data));
        }
        other => panic!("{other:#x} is no reply"),
    }
    assert!(reply.len() <= HEADER_MAX || request.command == Command::BlockStatus);
}
