//! The end of connections on real shards and sockets: the requests of a client that disconnects, or
//! whose tenant is removed; and requests without work for the device. The device holds all commands
//! until the test opens its gate, and the policy issues one request at a time, so that all others
//! are staged.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::{FlowId, Native, Policy, PortId, PortSet, Topology, Weight};
use fairq_host::device::null::NullDevice;
use fairq_host::device::{Command as DeviceCommand, Completion, Device, Info, Place, Queue};
use fairq_host::io::budget::Budget;
use fairq_host::io::memory::Memory;
use fairq_host::io::ring::Ring;
use fairq_host::io::wakers::Wakers;
use fairq_host::nbd::serve::conn::{Connect, Limits, Pass};
use fairq_host::nbd::serve::front::{Message as NbdMessage, NbdFront};
use fairq_host::nbd::serve::survey::Surveyor;
use fairq_host::nbd::wire::proto::{
    Command, CommandFlags, EXTENDED_REQUEST_LEN, NbdError, Request,
};
use fairq_host::shard::fence::PATIENCE_S;
use fairq_host::shard::pool::{Shards, policy_loops};
use fairq_host::shard::shared::Common;
use fairq_host::shard::volume::Volume;
use fairq_host::shard::{Meeting, Message, Notice};
use rustix::net::Shutdown;

use common::plain;

mod common;

const SIZE: u64 = 1 << 30;
const TAGS: usize = 256;
const DEPTH: u16 = 64;
/// Long enough for any machine; no test waits that long unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// More seconds than a client has after its disconnect request.
const MANY_SECONDS: usize = 10;

/// A device that completes no command until its gate is open.
struct Held {
    info: Info,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    /// Commands that were issued to the device.
    sent: AtomicUsize,
}

struct HeldQueue {
    gate: Arc<Gate>,
    waiting: Vec<Completion>,
}

impl Device for Held {
    type Queue = HeldQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<HeldQueue> {
        Ok(HeldQueue { gate: self.gate.clone(), waiting: Vec::new() })
    }
}

impl Queue for HeldQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &DeviceCommand, _: &[Memory]) {
        self.gate.sent.fetch_add(1, Ordering::Relaxed);
        self.waiting.push(Completion { tag: command.tag, errno: 0 });
    }

    fn reap(
        &mut self,
        _now_ns: u64,
        _ring: &mut Ring,
        done: &mut Vec<Completion>,
        _wake: &mut PortSet,
    ) {
        if self.gate.is_open.load(Ordering::Relaxed) {
            done.append(&mut self.waiting);
        }
    }
}

/// One shard that serves one tenant.
struct Rig {
    shards: Option<Shards<Held, NbdFront>>,
    policy: Mqfq<Native>,
    flow: FlowId,
    count: Arc<AtomicUsize>,
    gate: Arc<Gate>,
    budget: Arc<Budget>,
}

impl Rig {
    fn new() -> Rig {
        Rig::within(u64::MAX)
    }

    /// A rig with `memory` bytes for connections.
    fn within(memory: u64) -> Rig {
        let config = MqfqConfig::new(Topology::flat(1), 1, TAGS).with(|config| config.slots = 1);
        let (policy, ports) = Mqfq::<Native>::new(config).unwrap();
        let flow = policy.add_flow(Weight::DEFAULT).unwrap();
        let gate = Arc::new(Gate::default());
        let info = NullDevice::new(SIZE).info().clone();
        let common = Common::new(
            Arc::new(Held { info, gate: gate.clone() }),
            Arc::new(Wakers::new(1).unwrap()),
            TAGS,
            1,
        );
        let count = Arc::<AtomicUsize>::default();
        let limits = Limits { depth: DEPTH, ..Limits::default() };
        let surveyor = Surveyor::start(&common).unwrap();
        let budget = Arc::new(Budget::new(memory, 1));
        let front = |shard| {
            let front = NbdFront::new(8, limits, count.clone(), surveyor.client(shard));
            Ok(front.within(budget.clone()))
        };
        let shards = Shards::start(policy_loops(ports), &common, &[], front).unwrap();
        Rig { shards: Some(shards), policy, flow, count, gate, budget }
    }

    fn shards(&self) -> &Shards<Held, NbdFront> {
        self.shards.as_ref().unwrap()
    }

    fn tell(&self, message: NbdMessage) {
        self.shards().send(0, Message::Front(message));
    }

    fn notify(&self, notice: Notice) {
        self.shards().send(0, Message::Notice(notice));
    }

    fn seconds(&self, count: usize) {
        (0..count).for_each(|_| self.notify(Notice::Second));
        // When this is answered, the shard has processed all messages.
        self.in_flight();
    }

    fn serve(&self, fd: OwnedFd) {
        self.serve_after(fd, None);
    }

    fn serve_after(&self, fd: OwnedFd, gate: Option<Arc<Meeting>>) {
        let (tenant, flow, file, base, size) = (0, self.flow, 0, 0, SIZE);
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        let pass = Pass { gate, ..Pass::default() };
        let connect = Connect { fd, tls: None, negotiated: plain(SIZE), volume, pass };
        self.count.fetch_add(1, Ordering::Relaxed);
        self.tell(NbdMessage::Connect(Box::new(connect)));
    }

    fn connect(&self) -> Client<UnixStream> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        self.serve(theirs.into());
        Client(ours)
    }

    fn connect_tcp(&self) -> Client<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        self.serve(listener.accept().unwrap().0.into());
        Client(ours)
    }

    /// A client that connects as through the server: all shards first check which other clients
    /// have ended.
    fn connect_behind_others(&self) -> Client<UnixStream> {
        let gate = Arc::new(Meeting::new(1));
        self.tell(NbdMessage::CheckEnds { flow: self.flow, shard: PortId(0), gate: gate.clone() });
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        self.serve_after(theirs.into(), Some(gate));
        Client(ours)
    }

    /// Requests that the data path holds, on the device or not.
    fn in_flight(&self) -> u64 {
        self.shards().stats().tenants[0].in_flight
    }

    fn sent(&self) -> usize {
        self.gate.sent.load(Ordering::Relaxed)
    }

    fn open_the_gate(&self) {
        self.gate.is_open.store(true, Ordering::Relaxed);
        self.shards().wake(PortSet::first(1));
    }

    fn until(&self, what: &str, holds: impl Fn(&Rig) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}: {} in flight", self.in_flight());
            std::thread::yield_now();
        }
    }

    /// Staged requests are cancelled, and the connection waits only for the request on the device.
    fn only_what_is_on_the_device_is_waited_for(self) {
        self.until("what was staged is cancelled", |rig| rig.in_flight() == 1);
        assert_eq!(self.count.load(Ordering::Relaxed), 1, "the device may use its memory");
        self.open_the_gate();
        self.until("its place is given back", |rig| rig.count.load(Ordering::Relaxed) == 0);
        assert_eq!(self.sent(), 1);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.open_the_gate();
            self.shards.take().unwrap().stop();
            let stats = self.policy.stats();
            assert_eq!(stats.free_slots, stats.slots, "every slot comes back");
            assert_eq!(self.budget.used(), 0, "so does memory");
        }
    }
}

struct Client<S>(S);

impl<S: Read + Write> Client<S> {
    fn ask(&mut self, command: Command, cookie: u64, length: u64) {
        self.ask_at(command, cookie, 0, length);
    }

    fn ask_at(&mut self, command: Command, cookie: u64, offset: u64, length: u64) {
        let flags = CommandFlags(0);
        let request = Request { flags, command, cookie, offset, length };
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        let header = request.encode(false, &mut bytes);
        self.0.write_all(&bytes[..header]).unwrap();
        if command == Command::Write {
            self.0.write_all(&vec![7; length as usize]).unwrap();
        }
    }

    fn ask_often(&mut self, command: Command, count: u64, length: u64) {
        (0..count).for_each(|cookie| self.ask(command, cookie, length));
    }

    /// A simple reply's error.
    fn reply(&mut self) -> u32 {
        let mut bytes = [0; 16];
        self.0.read_exact(&mut bytes).unwrap();
        u32::from_be_bytes(bytes[4..8].try_into().unwrap())
    }
}

#[test]
fn what_a_client_has_staged_goes_with_it() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Trim, DEPTH.into(), 200 << 20);
    rig.until("all has come", |rig| rig.in_flight() == u64::from(DEPTH));
    drop(client);
    rig.only_what_is_on_the_device_is_waited_for();
}

#[test]
fn memory_of_what_was_cancelled_is_given_back_too() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Read, 40, 1 << 16);
    client.ask_often(Command::Write, 20, 1 << 16);
    rig.until("all has come", |rig| rig.in_flight() == 60);
    drop(client);
    rig.only_what_is_on_the_device_is_waited_for();
}

/// A connection at its bound reads no further, so no receive reports the end.
#[test]
fn a_client_at_its_bound_is_missed_within_a_second() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Trim, 2 * u64::from(DEPTH), 200 << 20);
    rig.until("its bound is reached", |rig| rig.in_flight() == u64::from(DEPTH));
    rig.seconds(MANY_SECONDS);
    rig.until("it is not missed while it lives", |rig| rig.in_flight() == u64::from(DEPTH));
    drop(client);
    rig.seconds(1);
    rig.only_what_is_on_the_device_is_waited_for();
}

#[test]
fn a_reset_of_a_tcp_client_is_noticed() {
    let rig = Rig::new();
    let mut client = rig.connect_tcp();
    client.ask_often(Command::Trim, DEPTH.into(), 200 << 20);
    rig.until("all has come", |rig| rig.in_flight() == u64::from(DEPTH));
    rustix::net::sockopt::set_socket_linger(&client.0, Some(Duration::ZERO)).unwrap();
    drop(client);
    rig.only_what_is_on_the_device_is_waited_for();
}

/// Over TCP a client that has ended its sending may still read.
#[test]
fn a_tcp_client_that_ends_without_good_bye_has_some_seconds() {
    let rig = Rig::new();
    let mut client = rig.connect_tcp();
    client.ask_often(Command::Trim, DEPTH.into(), 200 << 20);
    rig.until("all has come", |rig| rig.in_flight() == u64::from(DEPTH));
    drop(client);
    let deadline = Instant::now() + PATIENCE;
    while rig.in_flight() > 1 {
        assert!(Instant::now() < deadline, "it is waited for for ever");
        rig.seconds(1);
    }
    rig.only_what_is_on_the_device_is_waited_for();
}

/// "The server must handle all outstanding requests", says the protocol of a disconnect request.
#[test]
fn what_was_asked_before_a_good_bye_is_done() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Write, 20, 4096);
    client.ask(Command::Disconnect, 0, 0);
    drop(client);
    rig.until("all has come", |rig| rig.in_flight() == 20);
    rig.open_the_gate();
    rig.until("its place is given back", |rig| rig.count.load(Ordering::Relaxed) == 0);
    assert_eq!(rig.sent(), 20);
}

#[test]
fn but_not_for_ever_if_the_client_has_gone() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Trim, 20, 200 << 20);
    client.ask(Command::Disconnect, 0, 0);
    drop(client);
    rig.until("all has come", |rig| rig.in_flight() == 20);
    rig.seconds(MANY_SECONDS);
    rig.only_what_is_on_the_device_is_waited_for();
}

#[test]
fn a_client_that_said_good_bye_and_waits_is_answered() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Trim, 3, 4096);
    client.ask(Command::Disconnect, 0, 0);
    rig.until("all has come", |rig| rig.in_flight() == 3);
    rig.seconds(MANY_SECONDS);
    rig.open_the_gate();
    assert_eq!([client.reply(), client.reply(), client.reply()], [0; 3]);
}

#[test]
fn a_client_that_said_good_bye_and_does_not_read_is_given_up() {
    let rig = Rig::new();
    rig.open_the_gate();
    let mut client = rig.connect();
    client.ask_often(Command::Read, 30, 1 << 20);
    client.ask(Command::Disconnect, 0, 0);
    rig.until("all has been read from the device", |rig| {
        rig.sent() == 30 * 16 && rig.in_flight() == 0
    });
    rig.seconds(1);
    assert_eq!(rig.count.load(Ordering::Relaxed), 1);
    rig.seconds(MANY_SECONDS);
    rig.until("its place is given back", |rig| rig.count.load(Ordering::Relaxed) == 0);
}

/// The server does not receive from a client whose requests have no room, so no receive reports the
/// end of its stream; it sends more than it may have in flight, and reads nothing.
fn is_given_up(rig: &Rig, mut client: Client<impl Read + Write + AsFd>, says_good_bye: bool) {
    client.ask_often(Command::Read, DEPTH.into(), 1 << 20);
    rig.until("its memory is used up", |rig| rig.sent() >= 35 * 16 && rig.in_flight() == 0);
    rig.seconds(MANY_SECONDS);
    assert_eq!(rig.count.load(Ordering::Relaxed), 1, "it may still read");
    if says_good_bye {
        client.ask(Command::Disconnect, 0, 0);
    } else {
        rustix::net::shutdown(&client.0, Shutdown::Write).unwrap();
    }
    rig.until("its place is given back", |rig| {
        rig.seconds(1);
        rig.count.load(Ordering::Relaxed) == 0
    });
    assert!(rig.sent() < usize::from(DEPTH) * 16, "its last requests had no room");
}

#[test]
fn the_end_of_a_client_behind_its_bound_is_noticed() {
    for says_good_bye in [true, false] {
        let rig = Rig::new();
        rig.open_the_gate();
        is_given_up(&rig, rig.connect(), says_good_bye);
        let rig = Rig::new();
        rig.open_the_gate();
        is_given_up(&rig, rig.connect_tcp(), says_good_bye);
    }
}

/// Requests that have no room when a client ends its stream are carried out when it reads its
/// answers.
#[test]
fn a_client_that_ends_its_stream_behind_its_bound_and_reads_is_answered() {
    let rig = Rig::new();
    rig.open_the_gate();
    let mut client = rig.connect();
    client.ask_often(Command::Read, DEPTH.into(), 1 << 20);
    rustix::net::shutdown(&client.0, Shutdown::Write).unwrap();
    rig.until("its memory is used up", |rig| rig.sent() >= 35 * 16 && rig.in_flight() == 0);
    rig.seconds(3);
    for _ in 0..DEPTH {
        assert_eq!(client.reply(), 0);
        client.0.read_exact(&mut vec![0; 1 << 20]).unwrap();
    }
    rig.until("its place is given back", |rig| rig.count.load(Ordering::Relaxed) == 0);
}

/// The device has a write of a client that has disconnected: the next client's requests to the same
/// bytes, and its flush, wait for the write.
#[test]
fn requests_wait_for_writes_of_an_earlier_client() {
    for says_good_bye in [true, false] {
        let rig = Rig::new();
        let mut old = rig.connect();
        old.ask_at(Command::Write, 0, 8192, 4096);
        old.ask_at(Command::Write, 1, 12_288, 4096);
        rig.until("all has come", |rig| rig.in_flight() == 2);
        if says_good_bye {
            old.ask(Command::Disconnect, 0, 0);
        }
        drop(old);
        let mut new = rig.connect_behind_others();
        new.ask_at(Command::Read, 1, 10_000, 1);
        new.ask_at(Command::Trim, 2, 0, 16_384);
        new.ask(Command::Flush, 3, 0);
        new.ask_at(Command::Read, 4, 16_384, 1);
        new.ask_at(Command::Read, 5, 0, 1);
        // Two requests of the new client, and the old one's: both, or the one that was not
        // cancelled.
        let left = if says_good_bye { 2 } else { 1 };
        rig.until("what overlaps nothing has come", |rig| rig.in_flight() == 2 + left);
        rig.seconds(1);
        assert_eq!((rig.in_flight(), rig.sent()), (2 + left, 1));
        rig.open_the_gate();
        let mut bytes = [0; 5 * 16 + 3];
        new.0.read_exact(&mut bytes).unwrap();
        rig.until("the old client's place is free", |rig| rig.count.load(Ordering::Relaxed) == 1);
        assert_eq!(rig.sent() as u64, left + 5);
    }
}

/// A write on a device that hangs does not keep the next client waiting for ever.
#[test]
fn the_wait_for_an_earlier_client_is_bounded() {
    let rig = Rig::new();
    let mut old = rig.connect();
    old.ask(Command::Write, 0, 4096);
    rig.until("it has come", |rig| rig.sent() == 1);
    drop(old);
    let mut new = rig.connect_behind_others();
    new.ask(Command::Write, 1, 4096);
    new.ask_at(Command::Write, 2, 4096, 4096);
    rig.until("the other one has come", |rig| rig.in_flight() == 2);
    rig.seconds(PATIENCE_S as usize);
    assert_eq!(rig.in_flight(), 2);
    rig.seconds(1);
    assert_eq!(new.reply(), NbdError::Io.to_wire());
    rig.open_the_gate();
    assert_eq!(new.reply(), 0);
}

/// Requests that need only the server's work wait for the tenant's turn like all others; otherwise
/// a flood of them would take the server's CPU from other tenants.
#[test]
fn requests_without_work_wait_for_their_turn() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask(Command::Read, 1, 4096);
    client.ask(Command::Cache, 2, 4096);
    client.ask(Command::Unknown(99), 3, 4096);
    client.ask(Command::Read, 4, 2 * SIZE);
    rig.until("the scheduler has them", |rig| rig.in_flight() == 4);
    assert_eq!(rig.sent(), 1);
    rig.open_the_gate();
    assert_eq!(client.reply(), 0);
    client.0.read_exact(&mut [0; 4096]).unwrap();
    let invalid = NbdError::Invalid.to_wire();
    assert_eq!([client.reply(), client.reply(), client.reply()], [0, invalid, invalid]);
    assert_eq!(rig.sent(), 1, "the device has nothing to do for them");
}

/// Clients that need more memory together than the budget has wait for each other, and all are
/// served.
#[test]
fn requests_wait_for_memory() {
    let rig = Rig::within(4 << 20);
    let mut clients: Vec<_> = (0..3).map(|_| rig.connect()).collect();
    for client in &mut clients {
        client.ask_often(Command::Read, 20, 1 << 20);
    }
    rig.until("memory is used up", |rig| rig.budget.used() == 2 << 20);
    rig.open_the_gate();
    std::thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(client.reply(), 0);
                    client.0.read_exact(&mut vec![0; 1 << 20]).unwrap();
                }
            });
        }
        rig.until("all are served", |rig| {
            rig.seconds(1);
            assert!(rig.budget.used() <= 2 << 20);
            rig.sent() == 60 * 16
        });
    });
}

#[test]
fn idle_connections_give_memory_back() {
    let rig = Rig::within(128 << 20);
    rig.open_the_gate();
    let mut client = rig.connect();
    client.ask(Command::Read, 1, 32 << 20);
    assert_eq!(client.reply(), 0);
    client.0.read_exact(&mut vec![0; 32 << 20]).unwrap();
    assert!(rig.budget.used() >= 32 << 20, "for the next request");
    rig.until("nothing is kept", |rig| {
        rig.seconds(1);
        rig.budget.used() == 0
    });
    client.ask(Command::Read, 2, 4096);
    assert_eq!(client.reply(), 0);
}

/// Some seconds after a removal its clients are cut off. Its slot may be another tenant's by then.
#[test]
fn the_next_tenant_of_a_slot_is_not_cut_off_with_the_one_before() {
    let mut rig = Rig::new();
    let before = rig.flow;
    let ports = rig.policy.remove_flow(before).unwrap();
    rig.shards().wake(ports);
    // The slot is free when the shard has released it.
    let deadline = Instant::now() + PATIENCE;
    rig.flow = loop {
        match rig.policy.add_flow(Weight::DEFAULT) {
            Ok(flow) => break flow,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!(rig.flow.slot(), before.slot());
    let mut client = rig.connect();
    client.ask_often(Command::Trim, 20, 4096);
    rig.until("all has come", |rig| rig.in_flight() == 20);
    rig.notify(Notice::Detach { flow: before, cut_off: true });
    rig.open_the_gate();
    for _ in 0..20 {
        assert_eq!(client.reply(), 0);
    }
}

#[test]
fn what_a_removed_tenant_has_staged_is_answered_at_once() {
    let rig = Rig::new();
    let mut client = rig.connect();
    client.ask_often(Command::Trim, 20, 200 << 20);
    rig.until("all has come", |rig| rig.in_flight() == 20);
    rig.notify(Notice::Detach { flow: rig.flow, cut_off: false });
    rig.policy.remove_flow(rig.flow).unwrap();
    for _ in 0..19 {
        assert_eq!(client.reply(), NbdError::Shutdown.to_wire());
    }
    rig.only_what_is_on_the_device_is_waited_for();
    assert_eq!(client.reply(), NbdError::Shutdown.to_wire(), "200 MiB are several orders");
}
