//! A shard whose CPU is the limit takes requests from its tenants in proportion to their weights,
//! however many connections they have. The device completes each command at once and records its
//! tenant; the policy issues each request as it comes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairq_core::none::NonePolicy;
use fairq_core::{FlowId, Native, Policy, PortSet, Weight};
use fairq_host::device::null::NullDevice;
use fairq_host::device::{Command as DeviceCommand, Completion, Device, Info, Place, Queue};
use fairq_host::io::memory::Memory;
use fairq_host::io::ring::Ring;
use fairq_host::io::wakers::Wakers;
use fairq_host::nbd::serve::conn::{Connect, Limits, Pass};
use fairq_host::nbd::serve::front::{Message as NbdMessage, NbdFront};
use fairq_host::nbd::serve::survey::Surveyor;
use fairq_host::nbd::wire::proto::{Command, CommandFlags, EXTENDED_REQUEST_LEN, Request};
use fairq_host::shard::pool::{Shards, policy_loops};
use fairq_host::shard::shared::Common;
use fairq_host::shard::volume::Volume;
use fairq_host::shard::{Meeting, Message};

use common::plain;

mod common;

const SIZE: u64 = 1 << 20;
const TAGS: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

struct Logged {
    info: Info,
    /// The tenant of each command.
    log: Arc<Mutex<Vec<u64>>>,
}

struct LoggedQueue {
    log: Arc<Mutex<Vec<u64>>>,
    ended: Vec<Completion>,
}

impl Device for Logged {
    type Queue = LoggedQueue;

    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(&self, _place: &Place, _ring: &mut Ring) -> io::Result<LoggedQueue> {
        Ok(LoggedQueue { log: self.log.clone(), ended: Vec::new() })
    }
}

impl Queue for LoggedQueue {
    unsafe fn issue(&mut self, _: u64, _: &mut Ring, command: &DeviceCommand, _: &[Memory]) {
        self.log.lock().unwrap().push(command.offset / SIZE);
        self.ended.push(Completion { tag: command.tag, errno: 0 });
    }

    fn reap(
        &mut self,
        _now_ns: u64,
        _ring: &mut Ring,
        done: &mut Vec<Completion>,
        _wake: &mut PortSet,
    ) {
        done.append(&mut self.ended);
    }
}

/// The order in which the device gets the requests of two tenants, by tenant. `clients` has the
/// connections and requests of each; all requests wait in the sockets when the shard begins.
fn served(weights: [u16; 2], clients: [(usize, u64); 2]) -> Vec<u64> {
    let (policy, ports) = NonePolicy::<Native>::new(1, 2, TAGS).unwrap();
    let flows: [FlowId; 2] = weights.map(|_| policy.add_flow(Weight::DEFAULT).unwrap());
    let log = Arc::<Mutex<Vec<u64>>>::default();
    let info = NullDevice::new(2 * SIZE).info().clone();
    let device = Arc::new(Logged { info, log: log.clone() });
    let common = Common::new(device, Arc::new(Wakers::new(1).unwrap()), TAGS, 2);
    for (tenant, weight) in (0..).zip(weights) {
        common.weights.set(tenant, Weight::new(weight).unwrap());
    }
    let surveyor = Surveyor::start(&common).unwrap();
    let front = |shard| {
        let (count, survey) = (Arc::<AtomicUsize>::default(), surveyor.client(shard));
        count.fetch_add(100, std::sync::atomic::Ordering::Relaxed);
        Ok(NbdFront::new(100, Limits::default(), count, survey).weighed_by(common.weights.clone()))
    };
    let shards = Shards::start(policy_loops(ports), &common, &[], front).unwrap();
    let gate = Arc::new(Meeting::new(1));
    let mut streams = Vec::new();
    // The tenant with many connections comes first.
    for tenant in [1, 0] {
        let (connections, requests) = clients[tenant];
        for _ in 0..connections {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(PATIENCE)).unwrap();
            for cookie in 0..requests {
                let (flags, command) = (CommandFlags(0), Command::Trim);
                let request = Request { flags, command, cookie, offset: 0, length: 512 };
                let mut bytes = [0; EXTENDED_REQUEST_LEN];
                let length = request.encode(false, &mut bytes);
                ours.write_all(&bytes[..length]).unwrap();
            }
            let (number, flow, base) = (tenant as u16, flows[tenant], tenant as u64 * SIZE);
            let (file, read_only, block) = (0, false, 1);
            let volume = Volume { tenant: number, flow, file, base, size: SIZE, read_only, block };
            let pass = Pass { gate: Some(gate.clone()), ..Pass::default() };
            let connect =
                Connect { fd: theirs.into(), tls: None, negotiated: plain(SIZE), volume, pass };
            shards.send(0, Message::Front(NbdMessage::Connect(Box::new(connect))));
            streams.push((ours, requests));
        }
    }
    // The shard has all connections when it answers this.
    shards.stats();
    assert!(gate.arrive());
    shards.wake(PortSet::first(1));
    for (stream, requests) in &mut streams {
        stream.read_exact(&mut vec![0; 16 * *requests as usize]).unwrap();
    }
    drop(streams);
    shards.stop();
    log.lock().unwrap().clone()
}

#[test]
fn a_saturated_shard_takes_requests_by_the_weights_of_tenants() {
    for (weights, of_four) in [([100, 100], 2), ([300, 100], 3)] {
        let order = served(weights, [(1, 128), (64, 32)]);
        assert_eq!(order.len(), 128 + 64 * 32);
        let last = order.iter().rposition(|tenant| *tenant == 0).unwrap();
        let due = 128 * 4 / of_four;
        assert!(last <= due + 64, "{weights:?}: its last request is number {last}, not {due}");
    }
}
