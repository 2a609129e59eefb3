//! The client against servers that stall.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(100);

/// Starts a server that calls `serve` with its first connection; returns the job of a client that
/// connects to it.
fn server(
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> (tempfile::TempDir, Job, JoinHandle<()>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let job = Job {
        tenant: 0,
        target: Target { server: Server::Unix(path), export: String::new(), tls: None },
        block: 512,
        depth: 4,
        read_percent: 100,
        random: true,
        rate: None,
        think_ns: 0,
        size: None,
        timeout: Duration::from_secs(60),
        seed: 1,
    };
    (folder, job, thread)
}

/// Performs the shortest handshake, for an export of 1 MiB.
fn shake_hands(stream: &mut UnixStream) {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    // These are the client's flags, and the option GO with an empty name.
    stream.read_exact(&mut [0; 4 + 16 + 6]).unwrap();
    let reply = |kind: u32, data: &[u8]| {
        let head = [&magic::OPTION_REPLY.to_be_bytes()[..], &7u32.to_be_bytes()].concat();
        let length = (data.len() as u32).to_be_bytes();
        [&head[..], &kind.to_be_bytes(), &length, data].concat()
    };
    let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &[0, 1]].concat();
    stream.write_all(&[reply(3, &export), reply(1, &[])].concat()).unwrap();
}

/// Answers `reads` reads of 512 bytes; fewer if the client disconnects.
fn answer(stream: &mut UnixStream, reads: usize) {
    let mut request = [0; 28];
    for _ in 0..reads {
        if stream.read_exact(&mut request).is_err() || request[7] == 2 {
            return;
        }
        let head = [&magic::SIMPLE_REPLY.to_be_bytes()[..], &[0; 4], &request[8..16]].concat();
        stream.write_all(&[&head[..], &[0; 512]].concat()).unwrap();
    }
}

/// The number of requests that a client counts in this window if the server closes the connection
/// after 100 replies.
fn counted(begins_ns: u64, ends_ns: u64) -> u64 {
    let window = Window { begins_ns, ends_ns, is_cut: Arc::default() };
    let is_cut = window.is_cut.clone();
    let (_folder, job, thread) = server(move |mut stream| {
        shake_hands(&mut stream);
        answer(&mut stream, 100);
        is_cut.store(true, Ordering::Relaxed);
        answer(&mut stream, usize::MAX);
    });
    let stats = Connection::open(&job).unwrap().drive(&window).unwrap();
    thread.join().unwrap();
    stats.operations()
}

/// Replies of the warm-up must not be counted, even if the server answers none during the
/// measurement.
#[test]
fn replies_count_if_they_come_in_the_window() {
    assert_eq!(counted(u64::MAX - 1, u64::MAX), 0, "all of them came before it");
    assert!(counted(0, u64::MAX) >= 100);
}

#[test]
fn a_server_that_stops_answering_ends_the_run_with_the_reason() {
    let (_folder, job, thread) = server(|mut stream| {
        shake_hands(&mut stream);
        answer(&mut stream, 100);
        // This reads until the client has timed out and disconnected.
        while stream.read(&mut [0; 512]).is_ok_and(|count| count > 0) {}
    });
    let job = Job { timeout: TIMEOUT, ..job };
    let window = Window { begins_ns: 0, ends_ns: u64::MAX, is_cut: Arc::default() };
    let error = Connection::open(&job).unwrap().drive(&window).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(text.contains("has answered none of 4 requests for 100.00ms"), "{text}");
    assert!(text.ends_with("allow more with --timeout"), "{text}");
    thread.join().unwrap();
}

#[test]
fn a_handshake_ends_in_time_however_slowly_the_server_sends() {
    let silent: fn(UnixStream) = |mut stream| drop(stream.read_to_end(&mut Vec::new()));
    let slow: fn(UnixStream) = |mut stream| {
        for byte in b"NBDMAGICIHAVEOPT\0\x03" {
            std::thread::sleep(TIMEOUT / 5);
            let _ = stream.write_all(&[*byte]);
        }
    };
    for serve in [silent, slow] {
        let (_folder, job, thread) = server(serve);
        let job = Job { timeout: TIMEOUT, ..job };
        let error = Connection::open(&job).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let text = error.to_string();
        assert!(text.contains(": the handshake did not end within 100.00ms: the server"), "{text}");
        thread.join().unwrap();
    }
}
