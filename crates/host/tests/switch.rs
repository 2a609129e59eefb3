//! Policies replace each other under clients that write, read back and flush: no client is dropped,
//! no data is lost, and a policy is replaced only when it holds no request.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fairq_classic::bfq::{self, BfqConfig};
use fairq_classic::cfq::{CfqConfig, CfqScheduler};
use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_classic::nass::{Nass, NassConfig};
use fairq_core::Topology;
use fairq_core::d2fq::{D2fq, D2fqConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::serial::{Serial, SerialConfig};
use fairq_core::{
    FlowId, FlowStats, Growth, Native, Next, Outcome, Policy, Port, PortSet, Reason, Request,
    SubmitError, Submitted, Tag, Weight,
};
use fairq_host::device::paced::{Pace, PacedDevice};
use fairq_host::io::clock::Clock;
use fairq_host::io::wakers::Wakers;
use fairq_host::nbd::serve::conn::{Connect, Limits, Pass};
use fairq_host::nbd::serve::front::{Message as NbdMessage, NbdFront};
use fairq_host::nbd::serve::survey::Surveyor;
use fairq_host::nbd::wire::proto::{self, Command, CommandFlags, EXTENDED_REQUEST_LEN};
use fairq_host::shard::Message;
use fairq_host::shard::pool::{PolicyLoops, Shards, policy_loops};
use fairq_host::shard::shared::Common;
use fairq_host::shard::volume::Volume;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use common::plain;

mod common;

const SIZE: u64 = 16 << 20;
const TAGS: usize = 512;
const SHARDS: usize = 2;
const FLOWS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

type Ports = PolicyLoops<PacedDevice, NbdFront>;

/// A port that counts its requests, and must hold none when it is dropped.
struct Audited<P> {
    port: P,
    held: usize,
    /// Requests that passed through the port.
    served: Arc<AtomicU64>,
}

impl<P: Port> Port for Audited<P> {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let submitted = self.port.submit(now_ns, request, wake)?;
        self.held += 1;
        Ok(submitted)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        self.port.next(now_ns, wake)
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.held -= 1;
        self.served.fetch_add(1, Ordering::Relaxed);
        self.port.complete(now_ns, tag, outcome, wake)
    }
    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.port.admit(flow)
    }
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_back = self.port.cancel(now_ns, tag, wake);
        self.held -= usize::from(is_back);
        is_back
    }
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.port.expedite(now_ns, tag, wake)
    }
    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        self.port.hold(tag, flow)
    }
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.port.requeue(now_ns, tag, wake)
    }
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        self.port.grow(now_ns, tag, growth, wake)
    }
    fn has_work(&self) -> bool {
        self.port.has_work()
    }
    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.port.staged(flow)
    }
    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        self.port.flow_stats(flow)
    }
    fn barrier(&mut self, flow: FlowId) {
        self.port.barrier(flow);
    }
    fn reason(&self, tag: Option<Tag>) -> Reason {
        self.port.reason(tag)
    }
}

impl<P> Drop for Audited<P> {
    fn drop(&mut self) {
        assert_eq!(self.held, 0, "a policy was left that still held requests");
    }
}

/// A policy, its ports for shards, and its count of served requests.
struct Built(Arc<dyn Policy>, Ports, Arc<AtomicU64>);

fn audited<L: Policy>((policy, ports): (L, Vec<L::Port>)) -> Built
where
    L::Port: 'static,
{
    let served = Arc::new(AtomicU64::new(0));
    let audit = |port| Audited { port, held: 0, served: served.clone() };
    let ports = policy_loops(ports.into_iter().map(audit).collect());
    Built(Arc::new(policy), ports, served)
}

const POLICIES: usize = 8;

fn build(which: usize) -> Built {
    let topology = Topology::flat(SHARDS);
    let serial = SerialConfig::new(SHARDS, FLOWS, TAGS).with(|config| config.slots = 8);
    match which {
        0 => audited(NonePolicy::<Native>::new(SHARDS, FLOWS, TAGS).unwrap()),
        1 => {
            let config = MqfqConfig::new(topology, FLOWS, TAGS).with(|config| {
                config.slots = 8;
                config.threshold_bytes = 16 << 10;
            });
            audited(Mqfq::<Native>::new(config).unwrap())
        }
        2 => audited(D2fq::<Native>::new(D2fqConfig::new(topology, FLOWS, TAGS)).unwrap()),
        3 => {
            let config = KyberFairConfig::new(SHARDS, FLOWS, TAGS)
                .with(|config| config.period_ns = 10_000_000);
            audited(KyberFair::<Native>::new(&config).unwrap())
        }
        4 => audited(bfq::new::<Native>(&serial, &BfqConfig::default()).unwrap()),
        5 => {
            let cfq = CfqScheduler::new(
                &serial,
                &CfqConfig::default().with(|config| config.slice_ns = 2_000_000),
            )
            .unwrap();
            let nass = Nass::new(cfq, &serial, &NassConfig::default()).unwrap();
            audited(Serial::<_, Native>::with_policy(nass, &serial).unwrap())
        }
        6 => audited(Kyber::<Native>::new(&KyberConfig::new(SHARDS, FLOWS, TAGS)).unwrap()),
        _ => {
            let config = MqfqConfig::new(topology, FLOWS, TAGS).with(|config| {
                config.slots = 4;
                config.serial = true;
            });
            audited(Mqfq::<Native>::new(config).unwrap())
        }
    }
}

/// Shards and the policy in force.
struct Rig {
    shards: Shards<PacedDevice, NbdFront>,
    policy: Arc<dyn Policy>,
    served: Arc<AtomicU64>,
    flows: Vec<FlowId>,
    counts: Vec<Arc<AtomicUsize>>,
    clock: Clock,
}

impl Rig {
    fn new(tenants: usize, pace: Pace) -> Rig {
        let Built(policy, ports, served) = build(0);
        let flows: Vec<FlowId> =
            (0..tenants).map(|_| policy.add_flow(Weight::DEFAULT).unwrap()).collect();
        let common = Common::new(
            Arc::new(PacedDevice::new(tenants as u64 * SIZE, pace).unwrap()),
            Arc::new(Wakers::new(SHARDS).unwrap()),
            TAGS,
            FLOWS,
        );
        let counts: Vec<Arc<AtomicUsize>> = (0..SHARDS).map(|_| Arc::default()).collect();
        let limits = Limits { depth: 64, ..Limits::default() };
        let surveyor = Surveyor::start(&common).unwrap();
        let front = |shard: usize| {
            Ok(NbdFront::new(8, limits, counts[shard].clone(), surveyor.client(shard)))
        };
        let shards = Shards::start(ports, &common, &[], front).unwrap();
        Rig { shards, policy, served, flows, counts, clock: common.clock }
    }

    fn connect(&self, shard: usize, tenant: usize) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        ours.set_write_timeout(Some(PATIENCE)).unwrap();
        let flow = self.flows[tenant];
        let base = tenant as u64 * SIZE;
        let (tenant, file, size) = (flow.slot() as u16, 0, SIZE);
        let volume = Volume { tenant, flow, file, base, size, read_only: false, block: 1 };
        let connect = Connect {
            fd: theirs.into(),
            tls: None,
            negotiated: plain(SIZE),
            volume,
            pass: Pass::default(),
        };
        self.counts[shard].fetch_add(1, Ordering::Relaxed);
        self.shards.send(shard, Message::Front(NbdMessage::Connect(Box::new(connect))));
        ours
    }

    fn tick(&self, policy: &dyn Policy) {
        let mut wake = PortSet::EMPTY;
        policy.tick(self.clock.now_ns(), &mut wake);
        self.shards.wake(wake);
    }

    /// Changes the policy and waits for the end of the change.
    fn change(&mut self, which: usize) {
        self.change_while(which, || {});
    }

    /// The same; `meanwhile` is called when the shards have been sent the change.
    fn change_while(&mut self, which: usize, meanwhile: impl FnOnce()) {
        let Built(next, ports, served) = build(which);
        for &flow in &self.flows {
            next.add_flow_as(Some(flow), Weight::DEFAULT).unwrap();
        }
        let old = std::mem::replace(&mut self.policy, next);
        self.served = served;
        let meeting = self.shards.change(ports, PATIENCE, || ());
        meanwhile();
        let deadline = Instant::now() + PATIENCE;
        while !meeting.is_over() {
            assert!(Instant::now() < deadline, "policy {which} never takes over");
            self.tick(&*old);
            std::thread::yield_now();
        }
        let stats = old.stats();
        assert_eq!(stats.free_slots, stats.slots, "every slot came back");
    }

    /// Reads that the data path has accepted and not cancelled.
    fn taken(&self) -> u64 {
        self.shards.stats().tenants.iter().map(|of| of.in_flight + of.reads).sum()
    }

    /// Ticks the policy until the data path has accepted `reads` reads.
    fn await_taken(&self, reads: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.taken() < reads {
            assert!(Instant::now() < deadline, "{} of {reads} have come", self.taken());
            self.pass(Duration::from_millis(1));
        }
    }

    /// Ticks the policy for a while.
    fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick(&*self.policy);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn request(command: Command, cookie: u64, offset: u64, length: u64, out: &mut Vec<u8>) {
    let request = proto::Request { flags: CommandFlags(0), command, cookie, offset, length };
    let mut bytes = [0; EXTENDED_REQUEST_LEN];
    let count = request.encode(false, &mut bytes);
    out.extend_from_slice(&bytes[..count]);
}

fn reply(stream: &mut UnixStream) -> u64 {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a reply without an error");
    u64::from_be_bytes(bytes[8..].try_into().unwrap())
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 7) as u8)
        .collect()
}

/// Writes 24 blocks at a time, flushes and reads all back, until `end` is set. Returns the number
/// of rounds.
fn client(mut stream: UnixStream, seed: u64, end: &AtomicBool) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut rounds = 0;
    while !end.load(Ordering::Relaxed) {
        let lengths: Vec<usize> =
            (0..24).map(|_| [512, 4096, 20_000, 300_000][rng.random_range(0..4)]).collect();
        let slot = SIZE / 24;
        let place = |index: u64| index * slot;
        let data = |index: u64| pattern(lengths[index as usize], seed + rounds * 24 + index);
        let mut out = Vec::new();
        for index in 0..24 {
            let data = data(index);
            request(Command::Write, index, place(index), data.len() as u64, &mut out);
            out.extend_from_slice(&data);
        }
        stream.write_all(&out).unwrap();
        let mut replies: Vec<u64> = (0..24).map(|_| reply(&mut stream)).collect();
        replies.sort_unstable();
        assert_eq!(replies, (0..24).collect::<Vec<_>>(), "each request is answered once");
        out.clear();
        request(Command::Flush, 99, 0, 0, &mut out);
        (0..24).for_each(|index| {
            request(Command::Read, index, place(index), lengths[index as usize] as u64, &mut out);
        });
        stream.write_all(&out).unwrap();
        for _ in 0..25 {
            let index = reply(&mut stream);
            if index != 99 {
                let mut read = vec![0; lengths[index as usize]];
                stream.read_exact(&mut read).unwrap();
                assert!(
                    read == data(index),
                    "what was written is read, round {rounds} block {index}"
                );
            }
        }
        rounds += 1;
    }
    rounds
}

#[test]
fn policies_change_under_load_and_nothing_is_lost() {
    let mut rig = Rig::new(
        4,
        Pace { iops: 30_000, bandwidth: 400 << 20, latency_ns: 100_000, parallelism: 16 },
    );
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|tenant| {
                let (stream, end) = (rig.connect(tenant % SHARDS, tenant), &end);
                scope.spawn(move || client(stream, tenant as u64 * 1000, end))
            })
            .collect();
        let mut rng = SmallRng::seed_from_u64(11);
        // Each policy after each other one would be 56; these are each policy before and after
        // several.
        let order = (0..POLICIES)
            .chain((0..POLICIES).rev())
            .chain((0..16).map(|_| rng.random_range(0..POLICIES)));
        for which in order.collect::<Vec<_>>() {
            rig.change(which);
            rig.pass(Duration::from_millis(30));
            let deadline = Instant::now() + PATIENCE;
            while rig.served.load(Ordering::Relaxed) == 0 {
                assert!(Instant::now() < deadline, "policy {which} serves nobody");
                rig.pass(Duration::from_millis(1));
            }
        }
        end.store(true, Ordering::Relaxed);
        while clients.iter().any(|client| !client.is_finished()) {
            rig.pass(Duration::from_millis(1));
        }
        for client in clients {
            assert!(client.join().unwrap() > 0, "each client got through");
        }
    });
    rig.shards.stop();
}

/// A connection that ends with unsubmitted requests must be closed: these requests were forgotten,
/// and the connection waited for them for ever. A shard that changes its policy submits nothing for
/// a while.
#[test]
fn a_client_that_vanishes_during_a_change_is_given_up() {
    // The change waits a quarter of a second for the first requests.
    let pace = Pace { latency_ns: 30_000_000, parallelism: 2, ..Pace::default() };
    let mut rig = Rig::new(2, pace);
    let reads = |indices: std::ops::Range<u64>| {
        let mut out = Vec::new();
        indices.for_each(|index| request(Command::Read, index, index * 4096, 4096, &mut out));
        out
    };
    for round in 0..4 {
        let mut clients = [0, 1].map(|shard| rig.connect(shard, shard));
        let before = rig.taken();
        clients.iter_mut().for_each(|client| client.write_all(&reads(0..8)).unwrap());
        rig.await_taken(before + 16);
        rig.change_while(round % 2, || {
            clients.iter_mut().for_each(|client| client.write_all(&reads(8..48)).unwrap());
            drop(clients);
        });
        let deadline = Instant::now() + PATIENCE;
        while rig.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            assert!(Instant::now() < deadline, "connections are never given up");
            rig.pass(Duration::from_millis(1));
        }
    }
    rig.shards.stop();
}

/// A flow that is removed before the change is refused after it.
#[test]
fn a_flow_that_was_removed_is_unknown_to_the_next_policy_too() {
    let mut rig = Rig::new(1, Pace { iops: 50_000, ..Pace::default() });
    let mut stream = rig.connect(0, 0);
    let flow = rig.flows.pop().unwrap();
    rig.shards.wake(rig.policy.remove_flow(flow).unwrap());
    rig.change(1);
    let mut out = Vec::new();
    request(Command::Read, 5, 0, 4096, &mut out);
    stream.write_all(&out).unwrap();
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).unwrap();
    assert_ne!(bytes[4..8], [0; 4], "it is refused");
    drop(stream);
    rig.shards.stop();
}

/// A server that gets a stop while its policy changes completes both.
#[test]
fn shards_that_are_told_to_stop_during_a_change_end() {
    let rig = Rig::new(1, Pace { latency_ns: 20_000_000, parallelism: 1, ..Pace::default() });
    let mut stream = rig.connect(0, 0);
    let mut out = Vec::new();
    (0..20).for_each(|index| request(Command::Read, index, 0, 512, &mut out));
    stream.write_all(&out).unwrap();
    rig.await_taken(20);
    let Built(next, ports, _) = build(4);
    next.add_flow_as(Some(rig.flows[0]), Weight::DEFAULT).unwrap();
    let meeting = rig.shards.change(ports, PATIENCE, || ());
    let answered = std::thread::spawn(move || {
        let mut count = 0;
        let mut bytes = [0; 16 + 512];
        while stream.read_exact(&mut bytes).is_ok() {
            count += 1;
        }
        count
    });
    rig.shards.stop();
    assert!(meeting.is_over());
    assert_eq!(answered.join().unwrap(), 20, "all that had been asked for is answered");
}
