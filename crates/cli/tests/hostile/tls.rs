//! Hostile bytes inside and around TLS, in the handshake and after it: they end the session and
//! have no other effect.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rustls::{ClientConfig, ClientConnection};

use crate::server::{Honest, Neighbour, PATIENCE, Server, exactly, seconds};
use crate::wire::Keys;

/// The range that a hostile client writes, in bytes: several records.
const RANGE: usize = 100_000;

/// The fault of a session.
#[derive(Clone, Debug)]
enum Twist {
    /// No fault: data are written and read.
    None,
    /// A flipped bit somewhere in the records.
    Flip(u32),
    /// The records end at this offset, in bytes.
    Cut(u32),
    /// Random bytes that are inserted at this offset.
    Insert(u32, Vec<u8>),
    /// A plain-text record of this kind with this length in its header, before the other records.
    Record { kind: u8, length: u16, body: Vec<u8> },
    /// The same records are sent twice.
    Again,
    /// This number of key updates, and data after them.
    Keys(u8),
    /// A close alert, and this number of bytes after it.
    CloseAndGoOn(u32),
    /// A close alert in order.
    Close,
}

#[derive(Clone, Debug)]
struct Session {
    is_old: bool,
    /// Whether the fault is in the handshake.
    is_early: bool,
    /// Number of requests before the fault.
    requests: u8,
    /// Whether each byte of a request's header has a record of its own.
    is_tiny: bool,
    twist: Twist,
    /// Whether the client shuts down its sending side; otherwise it disconnects.
    is_half_closed: bool,
}

fn twist() -> impl Strategy<Value = Twist> {
    let bytes = || prop::collection::vec(any::<u8>(), 1..300);
    // Change of cipher, alert, handshake (a renegotiation), data, and unknown kinds.
    let kind = prop_oneof![Just(20_u8), Just(21), Just(22), Just(23), any::<u8>()];
    prop_oneof![
        1 => Just(Twist::None),
        4 => any::<u32>().prop_map(Twist::Flip),
        3 => any::<u32>().prop_map(Twist::Cut),
        3 => (any::<u32>(), bytes()).prop_map(|(at, bytes)| Twist::Insert(at, bytes)),
        4 => (kind, any::<u16>(), bytes())
            .prop_map(|(kind, length, body)| Twist::Record { kind, length, body }),
        1 => Just(Twist::Again),
        1 => (1..60_u8).prop_map(Twist::Keys),
        1 => (0..150_000_u32).prop_map(Twist::CloseAndGoOn),
        1 => Just(Twist::Close),
    ]
}

fn session() -> impl Strategy<Value = Session> {
    let is_early = prop::bool::weighted(0.2);
    (any::<bool>(), is_early, 0..4_u8, prop::bool::weighted(0.2), twist(), any::<bool>()).prop_map(
        |(is_old, is_early, requests, is_tiny, twist, is_half_closed)| Session {
            is_old,
            is_early,
            requests,
            is_tiny,
            twist,
            is_half_closed,
        },
    )
}

/// Damaged records after more data than TLS buffers. The server finds the damage after it has
/// handled the first records, when it has a reply that it cannot send.
fn came_late() -> Session {
    Session {
        is_old: false,
        is_early: false,
        requests: 1,
        is_tiny: true,
        twist: Twist::Again,
        is_half_closed: true,
    }
}

/// A session that sends, after its end, more bytes than a connection buffers. The server still has
/// to notice that the client disconnects.
fn goes_on_after_the_end() -> Session {
    Session { is_half_closed: false, twist: Twist::CloseAndGoOn(150_000), ..came_late() }
}

/// Applies a fault to records; true if a correct server may accept them.
fn twisted(twist: &Twist, records: &mut Vec<u8>) -> bool {
    let place = |at: u32| at as usize % records.len();
    match twist {
        Twist::Flip(bit) => {
            let bit = *bit as usize % (records.len() * 8);
            records[bit / 8] ^= 1 << (bit % 8);
        }
        Twist::Cut(at) => records.truncate(place(*at)),
        Twist::Insert(at, bytes) => {
            let at = place(*at);
            records.splice(at..at, bytes.iter().copied());
        }
        Twist::Record { kind, length, body } => {
            let head = [*kind, 3, 3, (length >> 8) as u8, *length as u8];
            records.splice(0..0, head.into_iter().chain(body.iter().copied()));
        }
        Twist::Again => records.extend_from_within(..),
        Twist::None | Twist::Keys(_) | Twist::CloseAndGoOn(_) | Twist::Close => return true,
    }
    false
}

/// A client inside TLS.
struct Client {
    socket: UnixStream,
    session: ClientConnection,
}

type Told<T = ()> = Result<T, String>;

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Client {
    /// Connects and starts TLS.
    fn open(server: &Server, config: &Arc<ClientConfig>) -> Told<Client> {
        let mut socket = UnixStream::connect(server.path("sock")).map_err(told)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(told)?;
        socket.set_write_timeout(Some(PATIENCE)).map_err(told)?;
        exactly(&mut socket, 18).map_err(told)?;
        socket.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").map_err(told)?;
        let answer = exactly(&mut socket, 20).map_err(told)?;
        if answer[12..16] != [0, 0, 0, 1] {
            return Err("TLS is not started".into());
        }
        let session = ClientConnection::new(config.clone(), "localhost".try_into().unwrap());
        let mut session = session.map_err(told)?;
        session.set_buffer_limit(None);
        Ok(Client { socket, session })
    }

    fn write(&mut self, bytes: &[u8]) -> Told {
        let mut stream = rustls::Stream::new(&mut self.session, &mut self.socket);
        stream.write_all(bytes).and_then(|()| stream.flush()).map_err(told)
    }

    fn read(&mut self, count: usize) -> Told<Vec<u8>> {
        let mut stream = rustls::Stream::new(&mut self.session, &mut self.socket);
        exactly(&mut stream, count).map_err(told)
    }

    /// Opens the export.
    fn go(&mut self) -> Told {
        self.write(b"IHAVEOPT\0\0\0\x01\0\0\0\x02rw")?;
        self.read(10).map(drop)
    }

    fn simple_reply(&mut self) -> Told {
        let reply = self.read(16)?;
        let is_right = reply[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
        if is_right { Ok(()) } else { Err(format!("{reply:x?}")) }
    }

    /// The TLS records of these plain bytes.
    fn records(&mut self, plain: &[u8], is_tiny: bool) -> Vec<u8> {
        let mut records = Vec::new();
        let (head, rest) = plain.split_at(if is_tiny { plain.len().min(28) } else { 0 });
        for piece in head.chunks(1).chain([rest]) {
            self.session.writer().write_all(piece).expect("it is not sent yet");
            while self.session.wants_write() {
                self.session.write_tls(&mut records).expect("a vector takes all");
            }
        }
        records
    }

    /// Reads until the server has ended the connection.
    fn read_to_the_end(&mut self) -> Told {
        match self.socket.read_to_end(&mut Vec::new()) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                Err("the session goes on".into())
            }
            _ => Ok(()),
        }
    }
}

fn request(command: u8, length: usize) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0, 0, command]);
    bytes.extend(7_u64.to_be_bytes());
    bytes.extend(0_u64.to_be_bytes());
    bytes.extend((length as u32).to_be_bytes());
    bytes
}

struct Rig {
    neighbour: Neighbour,
    checker: Honest,
    server: Server,
    configs: [Arc<ClientConfig>; 2],
    /// The byte with which the range was filled last.
    byte: u8,
}

/// Number of the rig's own connections.
const OWN: u64 = 2;

impl Rig {
    fn start() -> Rig {
        let keys = tempfile::tempdir().unwrap();
        let Keys { server: tls, clients: configs } = Keys::make(keys.path());
        let config = format!(
            "device = \"ram,size=4M\"\nshards = 2\n\
             {tls}[[tenant]]\nname = \"rw\"\nsize = \"1M\"\n\
             [[tenant]]\nname = \"beside\"\nsize = \"1M\"\n"
        );
        let server = Server::start(&config, &[]);
        let (neighbour, mut checker) =
            (Neighbour::start(&server, "beside"), Honest::open(&server, "rw"));
        checker.write(0, &vec![1; 1 << 20]);
        Rig { neighbour, checker, server, configs, byte: 1 }
    }

    /// Plays a session to its end.
    fn play(&mut self, session: &Session) -> Told {
        let config = &self.configs[usize::from(!session.is_old)];
        let mut client = Client::open(&self.server, config)?;
        if session.is_early {
            let mut hello = Vec::new();
            client.session.write_tls(&mut hello).map_err(told)?;
            let is_sound = twisted(&session.twist, &mut hello);
            let _ = client.socket.write_all(&hello);
            if !is_sound {
                return self.leave(client, session);
            }
        }
        client.go()?;
        let old = self.byte;
        for _ in 0..session.requests {
            client.write(&request(0, RANGE))?;
            client.simple_reply()?;
            if client.read(RANGE)? != vec![old; RANGE] {
                return Err("another tenant's bytes, or none".into());
            }
        }
        let new = (old % 250) + 1;
        let plain = [request(1, RANGE), vec![new; RANGE]].concat();
        let is_sound = match &session.twist {
            Twist::Keys(count) if !session.is_old => {
                // Each update is a record of its own, because the next record uses another key.
                let mut records = Vec::new();
                for _ in 0..*count {
                    client.session.refresh_traffic_keys().map_err(told)?;
                    records.extend(client.records(&[], false));
                }
                records.extend(client.records(&plain, session.is_tiny));
                let _ = client.socket.write_all(&records);
                // A server may refuse more than one update.
                *count == 1
            }
            Twist::Close | Twist::CloseAndGoOn(_) => {
                client.session.send_close_notify();
                let mut records = Vec::new();
                while client.session.wants_write() {
                    client.session.write_tls(&mut records).map_err(told)?;
                }
                if let Twist::CloseAndGoOn(length) = session.twist {
                    records.extend_from_slice(&[23, 3, 3, 0, 40]);
                    records.resize(records.len() + length as usize, 5);
                }
                let _ = client.socket.write_all(&records);
                return self.leave(client, session);
            }
            twist => {
                let mut records = client.records(&plain, session.is_tiny);
                let is_sound = twisted(twist, &mut records);
                let _ = client.socket.write_all(&records);
                is_sound
            }
        };
        if is_sound {
            client.simple_reply()?;
            self.byte = new;
        }
        self.leave(client, session)?;
        // A part of an interrupted write may be there.
        let content = self.checker.read(0, RANGE as u32);
        if !content.iter().all(|byte| *byte == new || *byte == old && !is_sound) {
            return Err("bytes that were never written".into());
        }
        self.checker.write(0, &vec![self.byte; RANGE]);
        Ok(())
    }

    /// The client disconnects, and the server drops the connection.
    fn leave(&self, mut client: Client, session: &Session) -> Told {
        if session.is_half_closed {
            let _ = client.socket.shutdown(Shutdown::Write);
            client.read_to_the_end()?;
        }
        drop(client);
        let deadline = Instant::now() + PATIENCE;
        while self.server.connections() > OWN {
            if Instant::now() > deadline {
                return Err("the connection is never given up".into());
            }
        }
        self.neighbour.is_served();
        Ok(())
    }
}

#[test]
fn bytes_that_are_no_tls_end_their_own_session_only() {
    let deadline = Instant::now() + seconds(6);
    let rig = std::sync::Mutex::new(None);
    let (mut count, mut before) = (0, None);
    while count == 0 || Instant::now() < deadline {
        let config = Config { cases: 16, failure_persistence: None, ..Config::default() };
        let play = |session: Session| {
            let mut playing: Rig = rig.lock().unwrap().take().unwrap_or_else(Rig::start);
            playing.play(&session).map_err(TestCaseError::fail)?;
            *rig.lock().unwrap() = Some(playing);
            Ok(())
        };
        play(came_late()).unwrap();
        play(goes_on_after_the_end()).unwrap();
        let outcome = TestRunner::new(config).run(&session(), play);
        if let Err(error) = outcome {
            panic!("{error}");
        }
        count += 16;
        let rig = rig.lock().unwrap();
        let server = &rig.as_ref().expect("it was played to").server;
        before.get_or_insert_with(|| server.rest(OWN));
    }
    println!("{count} sessions");
    let Rig { server, checker, neighbour, .. } = rig.into_inner().unwrap().expect("it is there");
    server.rests_as(&before.expect("it was measured"), OWN);
    neighbour.stop();
    drop(checker);
    server.ends_well();
}
