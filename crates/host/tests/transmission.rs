//! The transmission phase on real shards: raw bytes over socket pairs, a RAM device, MQFQ.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fairq_core::Topology;
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::{FlowId, Native, Policy, Weight};
use fairq_host::device::ram::RamDevice;
use fairq_host::io::wakers::Wakers;
use fairq_host::nbd::serve::conn::{Connect, Limits, Pass};
use fairq_host::nbd::serve::front::{Message as NbdMessage, NbdFront};
use fairq_host::nbd::serve::survey::Surveyor;
use fairq_host::nbd::wire::proto::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, NbdError, Negotiated, Request,
};
use fairq_host::shard::Message;
use fairq_host::shard::pool::{Shards, policy_loops};
use fairq_host::shard::shared::Common;
use fairq_host::shard::volume::Volume;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use common::plain;

mod common;

const SIZE: u64 = 64 << 20;
const TAGS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(20);

/// Shards that serve two tenants of [`SIZE`] bytes each, back to back.
struct Rig {
    shards: Option<Shards<RamDevice, NbdFront>>,
    policy: Mqfq<Native>,
    flows: [FlowId; 2],
    counts: Vec<Arc<AtomicUsize>>,
}

impl Rig {
    fn new(shards: usize) -> Rig {
        let (policy, ports) =
            Mqfq::<Native>::new(MqfqConfig::new(Topology::flat(shards), 4, TAGS)).unwrap();
        let flows = [100, 300].map(|weight| policy.add_flow(Weight::new(weight).unwrap()).unwrap());
        let common = Common::new(
            Arc::new(RamDevice::new(2 * SIZE).unwrap()),
            Arc::new(Wakers::new(shards).unwrap()),
            TAGS,
            2,
        );
        let counts: Vec<Arc<AtomicUsize>> = (0..shards).map(|_| Arc::default()).collect();
        let limits = Limits { depth: 64, ..Limits::default() };
        let surveyor = Surveyor::start(&common).unwrap();
        let front = |shard: usize| {
            Ok(NbdFront::new(8, limits, counts[shard].clone(), surveyor.client(shard)))
        };
        let shards = Shards::start(policy_loops(ports), &common, &[], front).unwrap();
        Rig { shards: Some(shards), policy, flows, counts }
    }

    fn connect_as(&self, shard: usize, tenant: usize, negotiated: Negotiated) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        let volume = Volume {
            tenant: tenant as u16,
            flow: self.flows[tenant],
            file: 0,
            base: tenant as u64 * SIZE,
            size: SIZE,
            read_only: negotiated.read_only,
            block: 1,
        };
        let extended = negotiated.extended;
        let connect =
            Connect { fd: theirs.into(), tls: None, negotiated, volume, pass: Pass::default() };
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        let shards = self.shards.as_ref().unwrap();
        shards.send(shard, Message::Front(NbdMessage::Connect(Box::new(connect))));
        Client { stream: ours, extended }
    }

    fn connect(&self, shard: usize, tenant: usize) -> Client {
        self.connect_as(shard, tenant, plain(SIZE))
    }

    /// Waits until no shard has a connection, and so no request of one is in flight.
    fn wait_until_empty(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            assert!(Instant::now() < deadline, "connections are never given up");
            std::thread::yield_now();
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.shards.take().unwrap().stop();
            let stats = self.policy.stats();
            assert_eq!(stats.free_slots, stats.slots, "every slot comes back");
        }
    }
}

struct Client {
    stream: UnixStream,
    extended: bool,
}

impl Client {
    fn request(&mut self, command: Command, flags: u16, cookie: u64, offset: u64, length: u64) {
        let request = Request { flags: CommandFlags(flags), command, cookie, offset, length };
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(self.extended, &mut bytes);
        self.stream.write_all(&bytes[..length]).unwrap();
    }

    /// A simple reply: cookie and error.
    fn reply(&mut self) -> (u64, u32) {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        (u64::from_be_bytes(bytes[8..].try_into().unwrap()), error)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.request(Command::Write, 0, 7, offset, data.len() as u64);
        self.stream.write_all(data).unwrap();
        let (cookie, error) = self.reply();
        assert_eq!(cookie, 7);
        error
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.request(Command::Read, 0, 9, offset, length as u64);
        assert_eq!(self.reply(), (9, 0));
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8)
        .collect()
}

#[test]
fn data_of_any_size_and_alignment_comes_back() {
    let rig = Rig::new(2);
    let mut client = rig.connect(0, 0);
    let mut other = rig.connect(1, 0);
    for (offset, length) in
        [(0, 1), (513, 4096), (4096, 65_536), (100_001, 1 << 20), (1 << 20, 32 << 20)]
    {
        let data = pattern(length, offset);
        assert_eq!(client.write(offset, &data), 0);
        assert!(other.read(offset, length) == data, "{length} bytes at {offset}");
    }
}

/// Large payloads are received differently from small ones, together with the header of the next
/// request.
#[test]
fn payloads_of_all_sizes_in_pieces_of_all_sizes_come_through() {
    let rig = Rig::new(1);
    let mut rng = SmallRng::seed_from_u64(4);
    for extended in [false, true] {
        let mut client = rig.connect_as(0, 0, Negotiated { extended, ..plain(SIZE) });
        let (mut stream, mut parts, mut at) = (Vec::new(), Vec::new(), 0);
        for cookie in 0..200 {
            let length =
                [1, 512, 4096, 16_383, 16_384, 65_536, 70_001, 600_000][rng.random_range(0..8)];
            // A tenth of the writes are refused, and their payload has to be skipped.
            let offset = if rng.random_bool(0.1) { SIZE - 1 + length as u64 } else { at };
            let data = pattern(length, cookie);
            let flags = CommandFlags(if extended { CommandFlags::PAYLOAD_LEN.0 } else { 0 });
            let request =
                Request { flags, command: Command::Write, cookie, offset, length: length as u64 };
            let mut header = [0; EXTENDED_REQUEST_LEN];
            let header_len = request.encode(extended, &mut header);
            stream.extend_from_slice(&header[..header_len]);
            stream.extend_from_slice(&data);
            if offset == at {
                parts.push((offset, data));
                at += length as u64;
            }
        }
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let most = [3, 100, 5000, 200_000][rng.random_range(0..4)];
            let (piece, after) = rest.split_at(rng.random_range(1..=most.min(rest.len())));
            client.stream.write_all(piece).unwrap();
            rest = after;
        }
        let mut replies = vec![0; 200 * if extended { 32 } else { 16 }];
        if !extended {
            client.stream.read_exact(&mut replies).unwrap();
        }
        let mut reader = rig.connect(0, 0);
        if extended {
            // Errors carry a message of any length, so the end of the connection shows that all
            // replies have come.
            client.request(Command::Disconnect, 0, 0, 0, 0);
            client.stream.read_to_end(&mut replies).unwrap();
        }
        for (offset, data) in parts {
            assert!(reader.read(offset, data.len()) == data, "{} bytes at {offset}", data.len());
        }
    }
}

#[test]
fn a_tenant_never_reaches_what_belongs_to_another() {
    let rig = Rig::new(1);
    let (mut a, mut b) = (rig.connect(0, 0), rig.connect(0, 1));
    assert_eq!(b.write(0, &[0xbb; 512]), 0);
    let last = SIZE - 512;
    assert_eq!(a.write(last, &[0xaa; 512]), 0);
    for (offset, length) in [(SIZE, 512), (last, 513), (u64::MAX - 511, 512), (u64::MAX, 1)] {
        a.request(Command::Read, 0, 1, offset, length);
        assert_eq!(a.reply(), (1, NbdError::Invalid.to_wire()));
        assert_eq!(a.write(offset, &vec![0xcc; length as usize]), NbdError::NoSpace.to_wire());
        a.request(Command::Trim, 0, 2, offset, length);
        assert_eq!(a.reply(), (2, NbdError::Invalid.to_wire()));
        a.request(Command::WriteZeroes, 0, 3, offset, length);
        assert_eq!(a.reply(), (3, NbdError::NoSpace.to_wire()));
    }
    assert_eq!(b.read(0, 512), [0xbb; 512]);
    assert_eq!(a.read(last, 512), [0xaa; 512]);
}

#[test]
fn a_refused_write_does_not_derail_the_stream() {
    let rig = Rig::new(1);
    let mut client = rig.connect_as(0, 0, Negotiated { read_only: true, ..plain(SIZE) });
    assert_eq!(client.write(0, &pattern(200_000, 1)), NbdError::NotPermitted.to_wire());
    assert_eq!(client.read(0, 4), [0; 4]);
    client.request(Command::Unknown(77), 0, 5, 0, 512);
    assert_eq!(client.reply(), (5, NbdError::Invalid.to_wire()));
    client.request(Command::Flush, 0, 6, 0, 0);
    assert_eq!(client.reply(), (6, 0));
}

#[test]
fn garbage_closes_its_own_connection_only() {
    let rig = Rig::new(1);
    let (mut bad, mut good) = (rig.connect(0, 0), rig.connect(0, 1));
    bad.stream.write_all(&pattern(4096, 3)).unwrap();
    assert!(bad.is_closed());
    assert_eq!(good.write(0, &[1; 100]), 0);
    assert_eq!(good.read(0, 100), [1; 100]);
}

#[test]
fn a_client_killed_in_the_middle_of_a_write_leaves_nothing_behind() {
    let rig = Rig::new(1);
    for round in 0..20 {
        for length in [4096, 1 << 20, 32 << 20] {
            let mut client = rig.connect(0, 0);
            client.request(Command::Write, 0, 1, 0, length);
            client.stream.write_all(&pattern(length as usize / 2 + round, 5)).unwrap();
        }
    }
    rig.wait_until_empty();
    let mut client = rig.connect(0, 0);
    assert_eq!(client.write(0, &[5; 4096]), 0);
}

#[test]
fn a_client_that_does_not_read_its_replies_holds_up_nobody_else() {
    let rig = Rig::new(1);
    let mut slow = rig.connect(0, 0);
    let mut quick = rig.connect(0, 1);
    // The client sends far more than its memory (40 MiB), its depth (64) and its socket hold.
    let mut sent = 0;
    slow.stream.set_nonblocking(true).unwrap();
    let mut bytes = [0; EXTENDED_REQUEST_LEN];
    for cookie in 0..100_000 {
        let request = Request {
            flags: CommandFlags(0),
            command: Command::Read,
            cookie,
            offset: 0,
            length: 1 << 20,
        };
        let length = request.encode(false, &mut bytes);
        match slow.stream.write(&bytes[..length]) {
            Ok(written) if written == length => sent += 1,
            _ => break,
        }
    }
    assert!(sent < 100_000, "the server stops reading at its bound");
    for round in 0..200 {
        assert_eq!(quick.write(round * 4096, &[round as u8; 4096]), 0);
        assert_eq!(quick.read(round * 4096, 4096), [round as u8; 4096]);
    }
    // When it does read, it gets all its answers.
    slow.stream.set_nonblocking(false).unwrap();
    let mut data = vec![0; 1 << 20];
    let mut cookies: Vec<u64> = (0..sent)
        .map(|_| {
            let (cookie, error) = slow.reply();
            assert_eq!(error, 0);
            slow.stream.read_exact(&mut data).unwrap();
            cookie
        })
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..sent).collect::<Vec<u64>>());
}

#[test]
fn more_requests_than_depth_and_tags_are_all_answered() {
    let rig = Rig::new(2);
    let mut clients: Vec<Client> = (0..8).map(|index| rig.connect(index % 2, index % 2)).collect();
    for client in &mut clients {
        for cookie in 0..500 {
            client.request(Command::Read, 0, cookie, cookie * 512, 512);
        }
    }
    for client in &mut clients {
        let mut cookies: Vec<u64> = (0..500)
            .map(|_| {
                let (cookie, error) = client.reply();
                assert_eq!(error, 0);
                client.stream.read_exact(&mut [0; 512]).unwrap();
                cookie
            })
            .collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..500).collect::<Vec<u64>>());
    }
}

#[test]
fn what_was_asked_before_good_bye_is_answered() {
    let rig = Rig::new(1);
    let mut client = rig.connect(0, 0);
    for cookie in 0..50 {
        client.request(Command::Flush, 0, cookie, 0, 0);
    }
    client.request(Command::Disconnect, 0, 0, 0, 0);
    let mut cookies: Vec<u64> = (0..50).map(|_| client.reply().0).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..50).collect::<Vec<u64>>());
    assert!(client.is_closed());
    rig.wait_until_empty();
}

#[test]
fn stopping_answers_what_is_in_flight() {
    let mut rig = Rig::new(2);
    let mut clients: Vec<Client> = (0..4).map(|index| rig.connect(index % 2, 0)).collect();
    for client in &mut clients {
        assert_eq!(client.write(0, &[1; 512]), 0);
        client.request(Command::Read, 0, 1, 0, 512);
    }
    // Each request is answered in full or, at the end of the stream, not at all: never in part.
    rig.shards.take().unwrap().stop();
    for client in &mut clients {
        let mut answer = Vec::new();
        client.stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.len() == 16 + 512, "{} bytes", answer.len());
    }
    std::mem::forget(rig);
}

#[test]
fn a_removed_tenant_is_told_so() {
    let rig = Rig::new(1);
    let mut client = rig.connect(0, 0);
    assert_eq!(client.write(0, &[1; 512]), 0);
    let ports = rig.policy.remove_flow(rig.flows[0]).unwrap();
    rig.shards.as_ref().unwrap().wake(ports);
    assert_eq!(client.write(0, &[1; 512]), NbdError::Shutdown.to_wire());
    assert_eq!(client.write(0, &[1; 1 << 20]), NbdError::Shutdown.to_wire());
}

#[test]
fn structured_and_extended_replies_carry_data_and_map() {
    let rig = Rig::new(1);
    let negotiated =
        Negotiated { structured: true, extended: true, base_allocation: Some(3), ..plain(SIZE) };
    let mut client = rig.connect_as(0, 0, negotiated);
    let data = pattern(8192, 9);
    client.request(
        Command::Write,
        CommandFlags::PAYLOAD_LEN.0 | CommandFlags::FUA.0,
        1,
        1 << 20,
        8192,
    );
    client.stream.write_all(&data).unwrap();
    let mut header = [0; 32];
    client.stream.read_exact(&mut header).unwrap();
    assert_eq!(
        header[..8],
        [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0],
        "an extended header, done, no data"
    );
    client.request(Command::Read, 0, 2, 1 << 20, 8192);
    client.stream.read_exact(&mut header).unwrap();
    assert_eq!(header[4..8], [0, 1, 0, 1], "done, data at an offset");
    let mut payload = vec![0; 8 + 8192];
    client.stream.read_exact(&mut payload).unwrap();
    assert!(payload[..8] == (1u64 << 20).to_be_bytes() && payload[8..] == data);
    client.request(Command::BlockStatus, 0, 3, 0, SIZE);
    client.stream.read_exact(&mut header).unwrap();
    let length = u64::from_be_bytes(header[24..].try_into().unwrap()) as usize;
    let mut status = vec![0; length];
    client.stream.read_exact(&mut status).unwrap();
    let extents: Vec<(u64, u64)> = status[8..]
        .chunks(16)
        .map(|extent| {
            let word = |at: usize| u64::from_be_bytes(extent[at..at + 8].try_into().unwrap());
            (word(0), word(8))
        })
        .collect();
    assert_eq!(
        extents,
        [(1 << 20, 3), (8192, 0), (SIZE - (1 << 20) - 8192, 3)],
        "holes read as zeroes"
    );
}

/// Each connection has one query with the surveyor at a time, and the rest wait.
#[test]
fn all_questions_before_a_disconnect_are_answered_and_none_of_a_lost_connection_stays() {
    let rig = Rig::new(1);
    let negotiated =
        || Negotiated { structured: true, extended: true, base_allocation: Some(3), ..plain(SIZE) };
    let [mut client, mut lost] = [0, 1].map(|tenant| rig.connect_as(0, tenant, negotiated()));
    for cookie in 0..50 {
        lost.request(Command::BlockStatus, 0, cookie, 0, SIZE);
        client.request(Command::BlockStatus, 0, cookie, 0, SIZE);
    }
    drop(lost);
    client.request(Command::Disconnect, 0, 0, 0, 0);
    let mut answers = Vec::new();
    client.stream.read_to_end(&mut answers).unwrap();
    // A header, the context and the count of extents, and one extent.
    let cookies: Vec<u64> = answers
        .chunks(32 + 8 + 16)
        .map(|answer| u64::from_be_bytes(answer[8..16].try_into().unwrap()))
        .collect();
    assert_eq!(cookies, (0..50).collect::<Vec<_>>());
    rig.wait_until_empty();
}
