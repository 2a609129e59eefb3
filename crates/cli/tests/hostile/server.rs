//! The server under test, a process of its own: its answers, its resources, and a neighbour that it
//! must continue to serve.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{fairq, until};

/// A time limit that only a failure reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Time for which a test generates input: $FAIRQ_FUZZ_SECONDS, or `usual`.
pub(crate) fn seconds(usual: u64) -> Duration {
    let given = std::env::var("FAIRQ_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(usual))
}

/// A server in a folder of its own; killed if its test fails.
pub(crate) struct Server {
    process: Child,
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the server's log: {}", self.log());
        }
    }
}

impl Server {
    /// Starts a server with this configuration on the Unix socket `sock`, with these flags. Its log
    /// goes to a file, because a full pipe would stop it.
    pub(crate) fn start(config: &str, flags: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("fairq.toml"), config.replace("FOLDER", &path(""))).unwrap();
        let log = std::fs::File::create(path("log")).unwrap();
        let (listen, control) = (format!("unix:{}", path("sock")), path("ctl"));
        let (config, sockets) = (path("fairq.toml"), ["--listen", &listen, "--control", &control]);
        let args = [&["serve", "--config", &config], &sockets[..], flags].concat();
        let process = fairq(&args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut server = Server { process, folder };
        until("the server listens", || {
            assert!(server.process.try_wait().unwrap().is_none(), "it ended: {}", server.log());
            UnixStream::connect(server.path("ctl")).ok()
        });
        server
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Opens a connection to the control socket.
    pub(crate) fn control(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("ctl")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Calls a method on the control socket; returns the result.
    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        let mut stream = self.control();
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).expect("an answer is JSON");
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub(crate) fn connections(&self) -> u64 {
        self.call("status", json!({}))["connections"].as_u64().expect("a number")
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// Bytes of private memory of the server.
    pub(crate) fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let of = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line of it");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
        };
        of("RssAnon:") + of("RssShmem:")
    }

    /// Checks that the server lives, has not panicked, and ends with success.
    pub(crate) fn ends_well(mut self) {
        assert!(self.process.try_wait().unwrap().is_none(), "the server died: {}", self.log());
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        let status = until("the server ends", || self.process.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }

    /// The server's resources when `connections` are left.
    pub(crate) fn rest(&self, connections: u64) -> Rest {
        until("its connections end", || (self.connections() == connections).then_some(()));
        Rest { descriptors: self.descriptors(), memory: self.memory() }
    }

    /// Checks that the server has no more resources than before: the same descriptors, and memory
    /// up to what an allocator keeps.
    pub(crate) fn rests_as(&self, before: &Rest, connections: u64) {
        const KEPT: u64 = 16 << 20;
        until("its connections end", || (self.connections() == connections).then_some(()));
        until("its descriptors are closed", || {
            (self.descriptors() <= before.descriptors).then_some(())
        });
        let most = before.memory + KEPT;
        until("its memory is given back", || (self.memory() <= most).then_some(()));
    }
}

/// The resources of a server at one time.
pub(crate) struct Rest {
    descriptors: usize,
    memory: u64,
}

/// Reads `count` bytes.
pub(crate) fn exactly(stream: &mut impl Read, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A correct client with simple replies and one request at a time.
pub(crate) struct Honest {
    stream: UnixStream,
    cookie: u64,
}

impl Honest {
    pub(crate) fn open(server: &Server, export: &str) -> Honest {
        let mut stream = UnixStream::connect(server.path("sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        exactly(&mut stream, 18).unwrap();
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).unwrap();
        exactly(&mut stream, 10).unwrap();
        Honest { stream, cookie: 0 }
    }

    fn ask(&mut self, command: u16, offset: u64, length: u32, payload: &[u8]) {
        self.cookie += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes).unwrap();
        let reply = exactly(&mut self.stream, 16).expect("an honest client is answered");
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "without an error");
        assert_eq!(reply[8..], self.cookie.to_be_bytes());
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        self.ask(0, offset, length, &[]);
        exactly(&mut self.stream, length as usize).expect("an honest client gets its data")
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.ask(1, offset, data.len() as u32, data);
    }
}

/// A tenant beside the hostile ones; it writes and reads back in a loop.
pub(crate) struct Neighbour {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts work on this export, which has at least 256 KiB.
    pub(crate) fn start(server: &Server, export: &str) -> Neighbour {
        let mut client = Honest::open(server, export);
        let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, counted) = (stop.clone(), rounds.clone());
        let work = move || {
            while !told.load(Ordering::Relaxed) {
                let round = counted.fetch_add(1, Ordering::Relaxed);
                let (at, length) = (round * 7919 % 200_000, 1 + round * 104_729 % 50_000);
                let data = vec![round as u8 | 1; length as usize];
                client.write(at, &data);
                assert!(client.read(at, length as u32) == data, "an honest client's data changed");
            }
        };
        Neighbour { stop, rounds, thread: Some(std::thread::spawn(work)) }
    }

    /// Checks that the neighbour is served: it makes progress.
    pub(crate) fn is_served(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        until("the neighbour is served", || {
            let thread = self.thread.as_ref().expect("it is at work");
            assert!(!thread.is_finished(), "the neighbour has failed");
            (self.rounds.load(Ordering::Relaxed) > before + 1).then_some(())
        });
    }

    pub(crate) fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it is at work").join().expect("the neighbour was served");
    }
}

impl Drop for Neighbour {
    /// Ends before its server does, so that it does not fail.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
