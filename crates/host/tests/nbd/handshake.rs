//! Every option and every error of the handshake, without TLS.

use std::time::Duration;

use fairq_host::nbd::session::exports::flag;
use fairq_host::nbd::session::handshake::{MAX_OPTION_DATA, MAX_OPTION_SKIP, MAX_OPTIONS};
use fairq_host::nbd::wire::option::{info, opt, rep};
use fairq_host::nbd::wire::proto::{MAX_PAYLOAD, MAX_STRING};
use fairq_host::nbd::{Exports, HandshakeError, HandshakeOptions, Outcome, Peer, handshake};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;

use crate::client::*;
use crate::drivers;

const WRITABLE: u16 = flag::HAS_FLAGS
    | flag::SEND_FLUSH
    | flag::SEND_FUA
    | flag::SEND_TRIM
    | flag::SEND_WRITE_ZEROES
    | flag::CAN_MULTI_CONN
    | flag::SEND_CACHE
    | flag::SEND_FAST_ZERO;

async fn played(script: &[Vec<u8>]) -> Played {
    play(&two_exports(), &plain(), &script.concat()).await
}

/// Plays a script after the usual flags and returns option and type of each answer.
async fn kinds(script: &[Vec<u8>]) -> Vec<(u32, u32)> {
    let script = [&[hello(FIXED | NO_ZEROES)], script].concat();
    played(&script).await.kinds()
}

#[tokio::test]
async fn go_tells_and_opens() {
    let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 0x77];
    let script = [
        hello(FIXED | NO_ZEROES),
        option(opt::GO, &info_data("db", &wanted)),
        b"first request".to_vec(),
    ];
    let played = played(&script).await;
    let replies = played.replies();
    let of = |kind: u16, data: &[u8]| Reply {
        option: opt::GO,
        kind: rep::INFO,
        data: [&kind.to_be_bytes(), data].concat(),
    };
    let size_and_flags = [&(1_u64 << 30).to_be_bytes()[..], &WRITABLE.to_be_bytes()].concat();
    let sizes = [1_u32, 4096, MAX_PAYLOAD].map(u32::to_be_bytes).concat();
    assert_eq!(
        replies,
        [
            of(info::EXPORT, &size_and_flags),
            of(info::NAME, b"db"),
            of(info::DESCRIPTION, b"the database"),
            of(info::BLOCK_SIZE, &sizes),
            Reply { option: opt::GO, kind: rep::ACK, data: vec![] },
        ]
    );
    let negotiated = played.negotiated();
    assert_eq!((negotiated.export, negotiated.size, negotiated.read_only), (0, 1 << 30, false));
    assert!(!negotiated.structured && !negotiated.extended && negotiated.base_allocation.is_none());
    assert!(negotiated.no_zeroes && negotiated.blocks_agreed && negotiated.identity.is_none());
    assert_eq!(played.left, b"first request", "the transmission phase is not touched");
}

#[tokio::test]
async fn unusual_block_sizes_are_told_unasked() {
    let played = played(&[hello(FIXED), go("ro")]).await;
    let replies = played.replies();
    let data = [
        &info::BLOCK_SIZE.to_be_bytes()[..],
        &[512_u32, 8192, 1 << 20].map(u32::to_be_bytes).concat(),
    ]
    .concat();
    assert_eq!(replies[1].data, data);
    let flags = flag::HAS_FLAGS
        | flag::READ_ONLY
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE;
    assert_eq!(replies[0].data[10..], flags.to_be_bytes());
    let negotiated = played.negotiated();
    assert!(negotiated.read_only && !negotiated.blocks_agreed && !negotiated.no_zeroes);
    assert_eq!(
        negotiated.blocks.min, 512,
        "what the client did not agree to is enforced all the same"
    );
}

#[tokio::test]
async fn info_tells_and_does_not_open() {
    let info_option = option(opt::INFO, &info_data("", &[info::NAME]));
    let played = played(&[hello(FIXED), info_option, go("")]).await;
    let info_and_ack = [(opt::INFO, rep::INFO), (opt::INFO, rep::INFO), (opt::INFO, rep::ACK)];
    assert_eq!(played.kinds()[..3], info_and_ack);
    assert_eq!(played.replies()[1].data, b"\0\x01db", "the default export has a name");
    assert_eq!(played.negotiated().export, 0);
}

#[tokio::test]
async fn export_name_with_and_without_zeroes() {
    let answer = [&(1_u64 << 30).to_be_bytes()[..], &WRITABLE.to_be_bytes()].concat();
    for (flags, zeroes) in [(0, 124), (FIXED, 124), (NO_ZEROES, 0), (FIXED | NO_ZEROES, 0)] {
        for name in ["db", ""] {
            let script = [
                hello(flags),
                option(opt::EXPORT_NAME, name.as_bytes()),
                b"first request".to_vec(),
            ];
            let played = played(&script).await;
            assert_eq!(played.sent, [&answer[..], &vec![0; zeroes]].concat());
            assert_eq!(played.negotiated().export, 0);
            assert_eq!(played.left, b"first request");
        }
    }
}

/// `EXPORT_NAME` has no errors: the connection closes without a reply.
#[tokio::test]
async fn export_name_refused_closes() {
    let long = "x".repeat(MAX_STRING + 1);
    let too_big = "x".repeat(MAX_OPTION_DATA as usize + 1);
    for script in [
        vec![option(opt::EXPORT_NAME, b"nothing")],
        vec![option(opt::EXPORT_NAME, b"\xff\xfe\x00")],
        vec![option(opt::EXPORT_NAME, long.as_bytes())],
        vec![option(opt::EXPORT_NAME, too_big.as_bytes())],
    ] {
        let played = played(&[vec![hello(FIXED)], script].concat()).await;
        assert!(matches!(
            played.result,
            Err(HandshakeError::Refused { option: opt::EXPORT_NAME, .. })
        ));
        assert_eq!(played.sent, b"");
    }
    let extended = played(&[
        hello(FIXED),
        option(opt::EXTENDED_HEADERS, b""),
        option(opt::EXPORT_NAME, b"db"),
    ])
    .await;
    assert!(
        matches!(extended.result, Err(HandshakeError::Refused { .. })),
        "extended headers need GO"
    );
    let no_default = Exports::new(vec![fairq_host::nbd::Export::new("db", 1)], None).unwrap();
    let script = [hello(FIXED), option(opt::EXPORT_NAME, b"")].concat();
    assert!(matches!(
        play(&no_default, &plain(), &script).await.result,
        Err(HandshakeError::Refused { .. })
    ));
}

/// A client without the flag of fixed newstyle would not understand a reply.
#[tokio::test]
async fn old_clients_have_one_option() {
    for number in [opt::LIST, opt::GO, opt::STARTTLS, opt::ABORT, 99] {
        let played = played(&[hello(0), option(number, b"")]).await;
        assert!(matches!(played.result, Err(HandshakeError::Refused { .. })));
        assert_eq!(played.sent, b"");
    }
}

#[tokio::test]
async fn unknown_client_flags_close() {
    for flags in [4, 1 << 31 | FIXED] {
        let played = played(&[hello(flags), go("db")]).await;
        assert!(matches!(played.result, Err(HandshakeError::ClientFlags(found)) if found == flags));
    }
}

#[tokio::test]
async fn list_shows_names_and_descriptions() {
    let played = played(&[hello(FIXED), option(opt::LIST, b"")]).await;
    let replies = played.replies();
    assert_eq!(
        played.kinds(),
        [(opt::LIST, rep::SERVER), (opt::LIST, rep::SERVER), (opt::LIST, rep::ACK)]
    );
    assert_eq!(replies[0].data, [&sized(b"db")[..], b"the database"].concat());
    assert_eq!(replies[1].data, sized(b"ro"));
    assert!(matches!(played.result, Ok(Outcome::Closed)), "leaving after the list is no error");
}

#[tokio::test]
async fn abort_is_acknowledged_and_closes() {
    let played =
        played(&[hello(FIXED), option(opt::ABORT, b"so long"), option(opt::LIST, b"")]).await;
    assert_eq!(played.kinds(), [(opt::ABORT, rep::ACK)]);
    assert!(matches!(played.result, Ok(Outcome::Closed)));
}

/// A client may close the connection after `ABORT` before the answer is sent: the pipe has no room
/// for it.
#[tokio::test]
async fn abort_without_waiting() {
    let (mut client, server) = tokio::io::duplex(20);
    client.write_all(&[hello(FIXED), option(opt::ABORT, b"")].concat()).await.unwrap();
    let server =
        tokio::spawn(
            async move { handshake(server, &two_exports(), &plain(), Peer::default()).await },
        );
    tokio::task::yield_now().await;
    assert!(!server.is_finished(), "the answer is waiting for room");
    drop(client);
    assert!(matches!(server.await.unwrap(), Ok(Outcome::Closed)));
}

#[tokio::test]
async fn options_that_take_no_data() {
    for number in [opt::LIST, opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS] {
        assert_eq!(kinds(&[option(number, b"x")]).await, [(number, rep::ERR_INVALID)]);
    }
    // An option that was refused has changed nothing.
    let played = played(&[hello(FIXED), option(opt::EXTENDED_HEADERS, b"x"), go("db")]).await;
    assert!(!played.negotiated().extended);
}

#[tokio::test]
async fn unknown_options_are_unsupported() {
    for number in [0, 4, 12, 0x0765_4321, u32::MAX] {
        let list = option(opt::LIST, b"");
        let answers = kinds(&[option(number, &[7; 100]), list]).await;
        assert_eq!(answers[..2], [(number, rep::ERR_UNSUP), (opt::LIST, rep::SERVER)]);
    }
}

#[tokio::test]
async fn starttls_without_tls_is_against_policy() {
    assert_eq!(kinds(&[option(opt::STARTTLS, b"")]).await, [(opt::STARTTLS, rep::ERR_POLICY)]);
}

#[tokio::test]
async fn unknown_exports_are_unknown() {
    for name in ["nothing", "DB", "db\0", "db ", "ro\u{0301}"] {
        for number in [opt::INFO, opt::GO] {
            let script = [option(number, &info_data(name, &[info::BLOCK_SIZE])), go("db")];
            assert_eq!(
                kinds(&script).await[..2],
                [(number, rep::ERR_UNKNOWN), (opt::GO, rep::INFO)]
            );
        }
    }
}

#[tokio::test]
async fn damaged_info_requests_are_invalid() {
    let good = info_data("db", &[info::NAME]);
    let mut long_name = info_data("db", &[]);
    long_name[..4].copy_from_slice(&u32::MAX.to_be_bytes());
    let overlong = info_data(&"x".repeat(MAX_STRING + 1), &[]);
    let cases =
        [vec![], good[..good.len() - 1].to_vec(), [&good[..], &[0]].concat(), long_name, overlong];
    for data in cases {
        for number in [opt::INFO, opt::GO] {
            assert_eq!(kinds(&[option(number, &data)]).await, [(number, rep::ERR_INVALID)]);
        }
    }
}

#[tokio::test]
async fn structured_replies_and_extended_headers() {
    let structured = option(opt::STRUCTURED_REPLY, b"");
    let extended = option(opt::EXTENDED_HEADERS, b"");
    let with_structured = played(&[hello(FIXED), structured.clone(), go("db")]).await;
    assert!(with_structured.negotiated().structured && !with_structured.negotiated().extended);
    let flags = |played: &Played| {
        let replies = played.replies();
        let export = replies.iter().find(|reply| reply.kind == rep::INFO).unwrap();
        u16::from_be_bytes(export.data[10..12].try_into().unwrap())
    };
    assert_eq!(flags(&with_structured), WRITABLE | flag::SEND_DF);
    let with_extended = played(&[hello(FIXED), extended.clone(), go("db")]).await;
    assert!(with_extended.negotiated().structured && with_extended.negotiated().extended);
    assert_eq!(flags(&with_extended), WRITABLE | flag::SEND_DF);
    // qemu requests extended headers first, and for structured replies only if those are refused.
    let both = kinds(&[extended.clone(), structured.clone()]).await;
    assert_eq!(
        both,
        [(opt::EXTENDED_HEADERS, rep::ACK), (opt::STRUCTURED_REPLY, rep::ERR_EXT_HEADER_REQD)]
    );
    let other_way = kinds(&[structured, extended]).await;
    assert_eq!(other_way, [(opt::STRUCTURED_REPLY, rep::ACK), (opt::EXTENDED_HEADERS, rep::ACK)]);
}

#[tokio::test]
async fn contexts_need_structured_replies() {
    for number in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let data = context_data("db", &["base:allocation"]);
        assert_eq!(kinds(&[option(number, &data)]).await, [(number, rep::ERR_INVALID)]);
    }
}

#[tokio::test]
async fn contexts_are_listed() {
    let cases: [(&[&str], bool); 6] = [
        (&[], true),
        (&["base:"], true),
        (&["qemu:", "base:allocation"], true),
        (&["base:allocation", "base:"], true),
        (&["base:nothing", "qemu:dirty-bitmap:x"], false),
        (&["base", "allocation", ""], false),
    ];
    for (queries, found) in cases {
        let list = option(opt::LIST_META_CONTEXT, &context_data("db", queries));
        let played = played(&[hello(FIXED), option(opt::STRUCTURED_REPLY, b""), list]).await;
        let contexts: Vec<_> =
            played.replies().into_iter().filter(|reply| reply.kind == rep::META_CONTEXT).collect();
        assert_eq!(contexts.len(), usize::from(found), "{queries:?}");
        assert!(contexts.iter().all(|context| context.data == b"\0\0\0\0base:allocation"));
        assert_eq!(played.kinds().last(), Some(&(opt::LIST_META_CONTEXT, rep::ACK)));
    }
}

#[tokio::test]
async fn contexts_are_selected_for_one_export() {
    let structured = || option(opt::STRUCTURED_REPLY, b"");
    let set =
        |name: &str, queries: &[&str]| option(opt::SET_META_CONTEXT, &context_data(name, queries));
    let allocation = ["base:allocation"];
    let unfinished = option(opt::SET_META_CONTEXT, b"\0\0\0\xff");
    // The options before GO, and whether the context is selected afterwards.
    let cases = [
        ("selected", vec![structured(), set("db", &allocation), go("db")], true),
        (
            "with extended headers",
            vec![option(opt::EXTENDED_HEADERS, b""), set("db", &allocation), go("db")],
            true,
        ),
        ("the default export is db", vec![structured(), set("", &allocation), go("db")], true),
        (
            "by the old way in",
            vec![structured(), set("db", &allocation), option(opt::EXPORT_NAME, b"db")],
            true,
        ),
        (
            "among unknown ones",
            vec![structured(), set("db", &["x-a:b", "base:allocation"]), go("db")],
            true,
        ),
        ("for another export", vec![structured(), set("ro", &allocation), go("db")], false),
        ("wildcards do not select", vec![structured(), set("db", &["base:"]), go("db")], false),
        (
            "no queries, no contexts",
            vec![structured(), set("db", &allocation), set("db", &[]), go("db")],
            false,
        ),
        (
            "replaced by a failure",
            vec![structured(), set("db", &allocation), unfinished, go("db")],
            false,
        ),
        (
            "replaced by no export",
            vec![structured(), set("db", &allocation), set("no", &allocation), go("db")],
            false,
        ),
    ];
    for (what, script, selected) in cases {
        let played = played(&[vec![hello(FIXED)], script].concat()).await;
        assert_eq!(played.negotiated().base_allocation.is_some(), selected, "{what}");
        if let Some(id) = played.negotiated().base_allocation {
            let context = [&id.to_be_bytes()[..], b"base:allocation"].concat();
            assert!(
                played.sent.windows(context.len()).any(|part| part == context),
                "{what}: the client knows the id"
            );
        }
    }
}

#[tokio::test]
async fn contexts_of_unknown_exports() {
    for number in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let answers = kinds(&[
            option(opt::STRUCTURED_REPLY, b""),
            option(number, &context_data("nothing", &[])),
        ])
        .await;
        assert_eq!(answers[1], (number, rep::ERR_UNKNOWN));
    }
}

#[tokio::test]
async fn long_options_are_skipped_and_endless_ones_close() {
    for number in [opt::LIST, opt::GO, opt::SET_META_CONTEXT, 99] {
        for length in [MAX_OPTION_DATA + 1, MAX_OPTION_SKIP] {
            let answers = kinds(&[option(number, &vec![0xaa; length as usize]), go("db")]).await;
            assert_eq!(answers[..2], [(number, rep::ERR_TOO_BIG), (opt::GO, rep::INFO)]);
        }
        // The length alone closes the connection: no data are read or allocated.
        for length in [MAX_OPTION_SKIP + 1, u32::MAX] {
            let mut script = option(number, b"");
            script[12..16].copy_from_slice(&length.to_be_bytes());
            let played = played(&[hello(FIXED), script]).await;
            assert!(matches!(played.result, Err(HandshakeError::OptionLength { .. })));
            assert_eq!(played.sent, b"");
        }
    }
    let at_the_bound = kinds(&[option(99, &vec![0; MAX_OPTION_DATA as usize])]).await;
    assert_eq!(at_the_bound, [(99, rep::ERR_UNSUP)]);
}

#[tokio::test]
async fn a_good_bye_may_be_long() {
    let abort = option(opt::ABORT, &vec![0; MAX_OPTION_DATA as usize + 1]);
    let played = played(&[hello(FIXED), abort]).await;
    assert_eq!(played.kinds(), [(opt::ABORT, rep::ACK)]);
    assert!(matches!(played.result, Ok(Outcome::Closed)));
}

#[tokio::test]
async fn endless_haggling_closes() {
    let script = vec![option(opt::STRUCTURED_REPLY, b""); MAX_OPTIONS];
    let played = played(&[vec![hello(FIXED)], script, vec![go("db")]].concat()).await;
    assert!(matches!(played.result, Err(HandshakeError::TooManyOptions)));
    assert_eq!(played.kinds(), vec![(opt::STRUCTURED_REPLY, rep::ACK); MAX_OPTIONS]);
}

#[tokio::test]
async fn wrong_magic_closes() {
    let mut script = go("db");
    script[7] ^= 1;
    let played = played(&[hello(FIXED), script]).await;
    assert!(matches!(played.result, Err(HandshakeError::OptionMagic(_))));
    // Bytes of the transmission phase are no option either.
    let request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let played = self::played(&[hello(FIXED), request]).await;
    assert!(matches!(played.result, Err(HandshakeError::OptionMagic(_))));
}

/// The client disconnects after each byte of a handshake in turn. Between two options that is an
/// orderly end, within one a hang-up; after the last there is a transmission phase that ends at
/// once.
#[tokio::test]
async fn hang_up_at_each_byte() {
    let parts = [
        hello(FIXED | NO_ZEROES),
        option(opt::EXTENDED_HEADERS, b""),
        option(opt::LIST, b""),
        option(0x0765_4321, b"data"),
        option(opt::SET_META_CONTEXT, &context_data("db", &["base:allocation"])),
        option(opt::INFO, &info_data("db", &[info::BLOCK_SIZE])),
        go("db"),
    ];
    let script = parts.concat();
    let mut boundary = 0;
    let mut boundaries = vec![0];
    for part in &parts {
        boundary += part.len();
        boundaries.push(boundary);
    }
    for cut in 0..=script.len() {
        let played = play(&two_exports(), &plain(), &script[..cut]).await;
        match played.result {
            Ok(Outcome::Transmission { .. }) => assert_eq!(cut, script.len()),
            Ok(Outcome::Closed) => assert!(boundaries.contains(&cut), "closed at {cut}"),
            Err(HandshakeError::Hangup) => assert!(!boundaries.contains(&cut), "hang-up at {cut}"),
            Err(other) => panic!("{other} at {cut}"),
        }
    }
}

/// A client that connects and sends nothing, or stops in the middle, or does not read, is cut off
/// in time.
#[tokio::test(start_paused = true)]
async fn idle_clients_time_out() {
    let limit = Duration::from_secs(7);
    let options = HandshakeOptions { timeout: limit, ..HandshakeOptions::default() };
    let silent: &[u8] = &[];
    let stopped = [hello(FIXED), option(opt::LIST, b"")[..9].to_vec()].concat();
    let endless = [hello(FIXED), vec![option(opt::LIST, b""); 20].concat()].concat();
    for (what, pipe, script) in
        [("silent", PIPE, silent), ("stopped", PIPE, &stopped), ("not reading", 600, &endless)]
    {
        let (mut client, server) = tokio::io::duplex(pipe);
        client.write_all(script).await.unwrap();
        let before = tokio::time::Instant::now();
        let result = handshake(server, &two_exports(), &options, Peer::default()).await;
        assert!(matches!(result, Err(HandshakeError::Timeout(_))), "{what}");
        assert_eq!(before.elapsed().as_secs(), limit.as_secs(), "{what}");
    }
}

/// The test program of the NBD project sends this before its integrity runs: an unknown option,
/// then `ABORT`.
#[tokio::test]
async fn unknown_option_then_abort() {
    let answers = kinds(&[option(0x0765_4321, &[0, 0, 0, 4]), option(opt::ABORT, b"")]).await;
    assert_eq!(answers, [(0x0765_4321, rep::ERR_UNSUP), (opt::ABORT, rep::ACK)]);
}

/// Options as a hostile client might make them: mostly well-formed headers around anything.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        Just(vec![]),
        Just(info_data("db", &[info::NAME])),
        Just(context_data("db", &["base:allocation", "base:"])),
        proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..40),
    ];
    let number = prop_oneof![0..13_u32, any::<u32>()];
    prop_oneof![
        8 => (number, data).prop_map(|(number, data)| option(number, &data)),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The laws of the fuzz driver, for scripts that get further than random bytes would.
    #[test]
    fn anything_ends(
        options in proptest::collection::vec(any_option(), 0..12), flags in 0..5_u32, tls in 0..3_u8,
        has_default in any::<bool>(), step in prop_oneof![Just(usize::MAX), 1..20_usize],
    ) {
        let script = [vec![hello(flags)], options].concat().concat();
        drivers::nbd::play(drivers::nbd::Setting { tls, has_default, step }, &script);
    }
}
