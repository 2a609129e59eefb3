//! Random scripts of several clients on two exports: each step is any action of a client, in any
//! order. The model in `book` checks the replies.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::book::{self, Book, Over};
use crate::common::until;
use crate::disk::Disk;
use crate::hello::{EXPORTS, Hello, hello};
use crate::server::{Honest, Neighbour, PATIENCE, Rest, Server, seconds};
use crate::wire::{Keys, Wire};

/// Number of clients at a time.
const CLIENTS: usize = 4;
/// Bytes of an export: not a multiple of a page, nor of the size to which the server cuts requests.
const SIZE: u64 = 1_331_712;
/// The longest payload that is sent completely, in bytes.
const LONGEST: u64 = 600_000;

#[derive(Clone, Debug)]
struct Ask {
    command: u16,
    flags: u16,
    offset: u64,
    length: u64,
    /// A bit of the header that is flipped.
    damage: Option<u8>,
    /// Bytes of the request that are sent with the next step.
    held: u32,
}

#[derive(Clone, Debug)]
enum Act {
    /// Opens a new client in this place; the previous one disconnects without a request.
    Open(Hello),
    Ask(Ask),
    /// Reads replies until at most this number of requests is open.
    Await(u8),
    /// Stops reading replies, until the server blocks because of it.
    Deafen,
    /// Sends random bytes.
    Noise(Vec<u8>),
    /// Shuts down the sending side, and reads to the end.
    HalfClose,
    /// Sends a disconnect request, and reads to the end.
    GoodBye,
    /// Disconnects without a request.
    Drop,
    /// Removes the tenant while its clients have requests under way, and adds it again.
    AddAgain,
}

type Step = (usize, Act);

fn extent() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        6 => (0..SIZE, 1..70_000_u64),
        4 => (0..SIZE / 4096, 1..64_u64).prop_map(|(at, length)| (at * 4096, length * 4096)),
        2 => (0..SIZE / 65_536, 1..LONGEST).prop_map(|(at, length)| (at * 65_536, length)),
        1 => (SIZE - 9000..SIZE + 9000, 0..10_000_u64),
        1 => (0..SIZE, 0..40_u64 << 20),
        1 => (any::<u64>(), any::<u64>()),
    ]
}

fn flags() -> impl Strategy<Value = u16> {
    prop_oneof![
        8 => Just(0),
        2 => Just(book::FUA),
        3 => prop::sample::select(vec![
            book::DF,
            book::REQ_ONE,
            book::NO_HOLE,
            book::FAST_ZERO,
            book::NO_HOLE | book::FUA,
            book::PAYLOAD_LEN,
        ]),
        1 => any::<u16>(),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let command = prop_oneof![
        8 => Just(book::READ),
        8 => Just(book::WRITE),
        2 => Just(book::FLUSH),
        3 => Just(book::TRIM),
        1 => Just(book::CACHE),
        3 => Just(book::ZEROES),
        3 => Just(book::STATUS),
        1 => any::<u16>(),
    ];
    let damage = prop::option::weighted(0.03, any::<u8>());
    let held = prop_oneof![3 => Just(0), 1 => 1..40_u32, 1 => 1..100_000_u32];
    (command, flags(), extent(), damage, held, any::<bool>()).prop_map(
        |(command, flags, (offset, length), damage, held, is_bare)| {
            // About half of the flushes are valid.
            let is_bare = command == book::FLUSH && is_bare;
            let (offset, length) = if is_bare { (0, 0) } else { (offset, length) };
            Ask { command, flags, offset, length, damage, held }
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => hello().prop_map(Act::Open),
        40 => ask().prop_map(Act::Ask),
        8 => (0..6_u8).prop_map(Act::Await),
        2 => Just(Act::Deafen),
        1 => prop::collection::vec(any::<u8>(), 1..300).prop_map(Act::Noise),
        1 => Just(Act::HalfClose),
        2 => Just(Act::GoodBye),
        1 => Just(Act::Drop),
        1 => Just(Act::AddAgain),
    ]
}

fn script() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..CLIENTS, act()), 1..60)
}

/// One client.
struct Client {
    stream: Wire,
    book: Book,
    /// Index of the client's disk.
    disk: usize,
    /// Bytes to be sent.
    out: Vec<u8>,
    is_deaf: bool,
    /// Whether the client has shut down its sending side.
    is_leaving: bool,
    /// Whether the server has ended the connection.
    has_ended: bool,
}

impl Client {
    fn end_stream(&mut self) {
        self.is_leaving = true;
        self.stream.end_stream();
    }
}

/// The clients, and the disks that they may see.
struct World<'a> {
    server: &'a Server,
    keys: &'a Keys,
    disks: [Disk; 2],
    clients: [Option<Client>; CLIENTS],
    /// The last moment, which also makes cookies.
    count: u64,
    noise: SmallRng,
}

type Told<T = ()> = Result<T, String>;

impl World<'_> {
    fn tick(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn step(&mut self, (place, act): &Step) -> Told {
        let place = *place;
        match act {
            Act::Open(hello) => self.open(place, hello)?,
            Act::Drop => self.clients[place] = None,
            Act::Ask(ask) => self.ask(place, ask)?,
            Act::Await(most) => self.until(place, |client| {
                client.out.is_empty() && client.book.unanswered() <= usize::from(*most)
            })?,
            Act::Deafen => self.of(place, |client| client.is_deaf = true),
            Act::Noise(bytes) => {
                self.of(place, |client| client.out.extend(bytes));
                self.send(place, 0)?;
            }
            Act::HalfClose => {
                self.send(place, 0)?;
                self.of(place, Client::end_stream);
                self.read_to_the_end(place)?;
            }
            Act::GoodBye => self.good_bye(place)?,
            Act::AddAgain => self.add_again(),
        }
        // All clients read now, so that replies do not fill a socket for long.
        (0..CLIENTS).try_for_each(|place| self.hear(place))
    }

    fn of(&mut self, place: usize, change: impl FnOnce(&mut Client)) {
        if let Some(client) = &mut self.clients[place] {
            change(client);
        }
    }

    fn open(&mut self, place: usize, hello: &Hello) -> Told {
        self.clients[place] = None;
        let Some((stream, agreed)) = hello.play(self.server, self.keys)? else { return Ok(()) };
        let disk = hello.export;
        let is_right = agreed.size == self.disks[disk].size() && agreed.read_only == (disk == 1);
        if !is_right {
            return Err(format!("{agreed:?} of {hello:?}"));
        }
        stream.socket().set_nonblocking(true).map_err(|error| error.to_string())?;
        let book = Book::new(agreed);
        let out = Vec::new();
        let (is_deaf, is_leaving, has_ended) = (false, false, false);
        self.clients[place] =
            Some(Client { stream, book, disk, out, is_deaf, is_leaving, has_ended });
        Ok(())
    }

    fn ask(&mut self, place: usize, ask: &Ask) -> Told {
        if self.clients[place].is_none() {
            self.open(place, &Hello::plain())?;
        }
        // Cookies differ in many bits, so that damage does not turn one into another.
        let cookie = self.tick().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Ask { command, flags, offset, length, damage, held } = *ask;
        let client = self.clients[place].as_mut().expect("it was opened");
        let is_extended = client.book.agreed().extended;
        let own = if is_extended && command == book::WRITE { book::PAYLOAD_LEN } else { 0 };
        let length = if command == book::WRITE { length.min(LONGEST) } else { length };
        let mut bytes = client.book.header(flags ^ own, command, cookie, offset, length);
        if let Some(bit) = damage {
            let bit = usize::from(bit) % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let payload = client.book.payload_after(&bytes);
        // A longer payload is cut short: the next bytes count as the rest of it.
        let sent = if payload > LONGEST { 1000 } else { payload };
        let header = bytes.len();
        bytes.resize(header + sent as usize, 0);
        self.noise.fill_bytes(&mut bytes[header..]);
        client.out.extend(bytes);
        self.send(place, held as usize)
    }

    /// Sends the pending bytes except the last `held`.
    fn send(&mut self, place: usize, held: usize) -> Told {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.tick();
            let Some(client) = &mut self.clients[place] else { return Ok(()) };
            if client.has_ended {
                return Ok(());
            }
            let most = client.out.len().saturating_sub(held);
            let sent = match most {
                0 => client.stream.flush().map(|()| 0),
                _ => client.stream.write(&client.out[..most]),
            };
            match sent {
                Ok(_) if most == 0 => return Ok(()),
                Ok(count) => {
                    client.book.sent(&client.out[..count], now, &mut self.disks[client.disk]);
                    client.out.drain(..count);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // The server may wait for this client to read.
                    client.is_deaf = false;
                    self.wait(place, PollFlags::IN | PollFlags::OUT);
                    self.hear(place)?;
                }
                Err(_) => {
                    // Replies from before the end can still be read.
                    client.out.clear();
                    client.is_deaf = false;
                    return self.read_to_the_end(place);
                }
            }
            if Instant::now() > deadline {
                return Err("the server takes nothing any more".into());
            }
        }
    }

    fn wait(&self, place: usize, mut flags: PollFlags) {
        let Some(client) = &self.clients[place] else { return };
        flags.set(PollFlags::OUT, flags.contains(PollFlags::OUT) || client.stream.has_pending());
        let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut [PollFd::new(client.stream.socket(), flags)], Some(&limit));
    }

    /// Reads the received bytes of a client that reads replies.
    fn hear(&mut self, place: usize) -> Told {
        let mut bytes = [0; 65_536];
        loop {
            let now = self.tick();
            let Some(client) = &mut self.clients[place] else { return Ok(()) };
            if client.is_deaf || client.has_ended {
                return Ok(());
            }
            match client.stream.read(&mut bytes) {
                Ok(count) if count > 0 => {
                    client.book.came(&bytes[..count], now, &mut self.disks[client.disk])?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                _ => {
                    client.has_ended = true;
                    if client.book.over.is_none() && !client.is_leaving {
                        return Err("the server hung up".into());
                    }
                }
            }
        }
    }

    /// Reads for a client until `is_so` holds, or its connection has ended.
    fn until(&mut self, place: usize, is_so: impl Fn(&Client) -> bool) -> Told {
        self.send(place, 0)?;
        self.of(place, |client| client.is_deaf = false);
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.hear(place)?;
            let Some(client) = &self.clients[place] else { return Ok(()) };
            if is_so(client) {
                return Ok(());
            }
            if client.has_ended {
                return Ok(());
            }
            if Instant::now() > deadline {
                let open = client.book.unanswered();
                return Err(format!("{open} requests are never answered"));
            }
            self.wait(place, PollFlags::IN);
        }
    }

    /// Removes the first tenant and adds it again, in the same place: requests of the old tenant's
    /// clients must not change the new one's data.
    fn add_again(&mut self) {
        self.server.call("remove", json!({ "tenant": EXPORTS[0] }));
        self.server.call("add", json!({ "tenant": format!("{}={SIZE}", EXPORTS[0]) }));
        until("the tenant is prepared", || {
            let tenants = self.server.call("tenants", json!({}));
            let found = tenants.as_array()?.iter().find(|tenant| tenant["name"] == EXPORTS[0])?;
            found["preparing"].is_null().then_some(())
        });
        for place in &mut self.clients {
            *place = place.take().filter(|client| client.disk != 0);
        }
        self.disks[0] = Disk::new(SIZE);
    }

    fn good_bye(&mut self, place: usize) -> Told {
        self.send(place, 0)?;
        self.of(place, |client| {
            if client.book.is_between() {
                let header = client.book.header(0, book::DISCONNECT, 0, 0, 0);
                client.out.extend(header);
            } else {
                client.end_stream();
            }
        });
        self.send(place, 0)?;
        self.read_to_the_end(place)
    }

    /// Reads for a client until its connection ends: then all complete requests have been answered,
    /// unless the client sent bytes that are not a request.
    fn read_to_the_end(&mut self, place: usize) -> Told {
        self.of(place, |client| client.is_deaf = false);
        let deadline = Instant::now() + PATIENCE;
        while self.clients[place].as_ref().is_some_and(|client| !client.has_ended) {
            self.hear(place)?;
            self.wait(place, PollFlags::IN);
            if Instant::now() > deadline {
                return Err("the connection does not end".into());
            }
        }
        let Some(client) = self.clients[place].take() else { return Ok(()) };
        let open = client.book.unanswered();
        if client.book.over == Some(Over::Malformed) {
            return Ok(());
        }
        if open > 0 || !client.book.is_at_a_reply() {
            return Err(format!("the connection ended with {open} requests open"));
        }
        Ok(())
    }
}

/// A server with its neighbour, for as many scripts as it survives.
struct Rig {
    neighbour: Neighbour,
    before: Option<Rest>,
    played: u32,
    keys: Keys,
    server: Server,
}

/// Number of the rig's own connections.
const OWN: u64 = 1;

impl Rig {
    fn start(device: &str) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::make(folder.path());
        let config = format!(
            "device = \"{device}\"\nshards = 2\n\
             {}[[tenant]]\nname = \"rw\"\nsize = {SIZE}\n\
             [[tenant]]\nname = \"ro\"\nsize = \"1M\"\nread-only = true\n\
             [[tenant]]\nname = \"beside\"\nsize = \"1M\"\n",
            keys.server
        );
        let server = Server::start(&config, &[]);
        let neighbour = Neighbour::start(&server, "beside");
        // This allocates the device's memory now, so that it does not count as memory kept for a
        // client.
        Honest::open(&server, EXPORTS[0]).write(0, &vec![1; SIZE as usize]);
        Rig { neighbour, before: None, played: 0, keys, server }
    }

    fn play(&mut self, script: &[Step]) -> Told {
        let content = Honest::open(&self.server, EXPORTS[0]).read(0, SIZE as u32);
        let mut world = World {
            server: &self.server,
            keys: &self.keys,
            disks: [Disk::new(SIZE), Disk::new(1 << 20)],
            clients: [const { None }; CLIENTS],
            count: 0,
            noise: SmallRng::seed_from_u64(7),
        };
        world.disks[0].settle(content);
        for step in script {
            world.step(step).map_err(|error| format!("{error}, at {step:?}"))?;
        }
        for place in 0..CLIENTS {
            // Half of the remaining clients disconnect without a request.
            if place % 2 == 0 {
                world.good_bye(place)?;
            }
            world.clients[place] = None;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.server.connections() > OWN {
            if Instant::now() > deadline {
                return Err("connections are never given up".into());
            }
        }
        let (asked, answered) = (world.tick(), world.tick());
        for (disk, export) in world.disks.iter().zip(EXPORTS) {
            let content = Honest::open(&self.server, export).read(0, disk.size() as u32);
            disk.explains(0, &content, asked, answered)
                .map_err(|error| format!("after all: {error}"))?;
        }
        self.neighbour.is_served();
        self.played += 1;
        // The first scripts make the server allocate memory that it keeps.
        if self.played == 16 {
            self.before = Some(self.server.rest(OWN));
        }
        Ok(())
    }

    fn end(self) {
        if let Some(before) = &self.before {
            self.server.rests_as(before, OWN);
        }
        self.neighbour.stop();
        self.server.ends_well();
    }
}

/// Plays scripts against servers on this device for this time; returns their number.
fn play_on(device: &str, limit: Duration) -> u32 {
    let deadline = Instant::now() + limit;
    let rig = Mutex::new(None);
    let mut count = 0;
    while count == 0 || Instant::now() < deadline {
        let mut runner =
            TestRunner::new(Config { cases: 8, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&script(), |script| {
            // A rig after a failure is not used again.
            let mut playing = rig.lock().unwrap().take().unwrap_or_else(|| Rig::start(device));
            playing.play(&script).map_err(TestCaseError::fail)?;
            *rig.lock().unwrap() = Some(playing);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
        count += 8;
    }
    rig.into_inner().unwrap().expect("it was played to").end();
    count
}

#[test]
fn whatever_clients_do_each_gets_what_is_its_own() {
    let limit = seconds(6) / 3;
    for device in [
        "ram,size=16M",
        "file,path=FOLDERdisk.img,size=16M,create",
        "nvme-soft,backing=ram,size=16M",
    ] {
        let count = play_on(device, limit);
        println!("{device}: {count} scripts");
    }
}
