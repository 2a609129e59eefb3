//! A storage server of one's own around a scheduler of fairq, in the least code that does all a
//! caller owes ([`fairq_core::port`]): two threads serve, four others read a file for them, and two
//! tenants of weights 300 and 100, who both always have more to ask for, get three bytes to one.
//!
//!     cargo run --release -p fairq-core --example embed [FILE]
//!
//! Where a real server differs: its requests come from connections instead of being made up by
//! `Shard::ask`, and it has something faster than channels and a pool (`fairq-host` has io_uring,
//! and eventfds for wake-ups).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use fairq_core::mqfq::{Mqfq, MqfqConfig, MqfqPort};
use fairq_core::{
    FlowId, Native, Next, Op, Outcome, Policy, Port, PortSet, Request, Submitted, Tag, Topology,
    Weight,
};

/// Serving threads, each with a port of its own.
const PORTS: usize = 2;
/// Requests that each tenant has at each port: their sum is above D, or weights would have nothing
/// to decide.
const DEPTH: u32 = 32;
const LENGTH: u32 = 4096;
const TENANTS: [(&str, u16); 2] = [("gold", 300), ("silver", 100)];

/// What a serving thread is told.
enum Event {
    /// A request was carried out.
    Done(Tag, Outcome),
    /// Another thread's verb has unblocked this port.
    Wake,
    /// Take no more requests, and end when those there are have been served.
    Stop,
}

/// A read for the pool, and whom to tell.
struct Read {
    offset: u64,
    tag: Tag,
    from: Sender<Event>,
}

/// One serving thread: nobody else touches its port or its requests.
struct Shard {
    port: MqfqPort,
    /// What each tag stands for.
    requests: Vec<Option<Request>>,
    events: Receiver<Event>,
    /// How to reach each serving thread, this one too.
    shards: Vec<Sender<Event>>,
    own: usize,
    pool: Sender<Read>,
    flows: [FlowId; TENANTS.len()],
    served: Arc<[AtomicU64; TENANTS.len()]>,
    blocks: u64,
    asked: u64,
    started: Instant,
}

impl Shard {
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn serve(mut self) {
        let mut wake = PortSet::EMPTY;
        for tag in 0..self.requests.len() as u32 {
            self.ask(Tag(tag), tag as usize % TENANTS.len(), &mut wake);
        }
        let (mut open, mut until) = (true, self.dispatch(&mut wake));
        while open || self.requests.iter().any(Option::is_some) {
            match self.wait(until) {
                Some(Event::Done(tag, outcome)) => {
                    let tenant = self.finish(tag, outcome, &mut wake);
                    if open {
                        self.ask(tag, tenant, &mut wake);
                    }
                }
                Some(Event::Stop) => open = false,
                Some(Event::Wake) | None => {}
            }
            until = self.dispatch(&mut wake);
        }
    }

    /// The next event, or none if the time at which to ask the port again has come.
    fn wait(&self, until: Option<u64>) -> Option<Event> {
        let Some(until) = until else {
            return Some(self.events.recv().expect("this thread holds a sender"));
        };
        match self.events.recv_timeout(Duration::from_nanos(until.saturating_sub(self.now_ns()))) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => unreachable!("this thread holds a sender"),
        }
    }

    /// A tenant asks for one more block; where a server would have read a request from a
    /// connection.
    fn ask(&mut self, tag: Tag, tenant: usize, wake: &mut PortSet) {
        self.asked += 1;
        let block = self.asked.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.blocks;
        let offset = block * u64::from(LENGTH);
        let request =
            Request { tag, flow: self.flows[tenant], op: Op::Read, offset, length: LENGTH };
        self.requests[tag.0 as usize] = Some(request);
        match self.port.submit(self.now_ns(), &request, wake) {
            Ok(Submitted::Staged) => {}
            // Only policies whose submit is dispatch say so: `d2fq`, `none`.
            Ok(Submitted::Issue { .. }) => self.start(tag),
            Err(error) => panic!("flows are there throughout, and tags are free: {error}"),
        }
    }

    /// A request has been carried out; gives its tenant, to whom a server would reply.
    fn finish(&mut self, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> usize {
        self.port.complete(self.now_ns(), tag, outcome, wake);
        let request =
            self.requests[tag.0 as usize].take().expect("each request is carried out once");
        let tenant =
            self.flows.iter().position(|flow| *flow == request.flow).expect("its own flow");
        self.served[tenant].fetch_add(u64::from(request.length), Ordering::Relaxed);
        tenant
    }

    /// Starts all that may go, and wakes whom the verbs have unblocked. Gives the time at which to
    /// ask again.
    fn dispatch(&mut self, wake: &mut PortSet) -> Option<u64> {
        let until = loop {
            match self.port.next(self.now_ns(), wake) {
                Next::Issue { tag, .. } => self.start(tag),
                Next::WaitUntil(until) => break Some(until),
                Next::Blocked | Next::Idle => break None,
                Next::Join { .. } => unreachable!("mqfq makes no commands of several requests"),
            }
        };
        for port in std::mem::take(wake) {
            // One that has ended has nothing left to be woken for.
            let _ = self.shards[usize::from(port.0)].send(Event::Wake);
        }
        until
    }

    fn start(&self, tag: Tag) {
        let request = self.requests[tag.0 as usize].expect("it was submitted");
        let read = Read { offset: request.offset, tag, from: self.shards[self.own].clone() };
        self.pool.send(read).expect("the pool lives as long as this");
    }
}

/// Reads what it is told to until nobody can tell it any more.
fn read_all(file: &File, reads: &Mutex<Receiver<Read>>) {
    let mut buffer = [0; LENGTH as usize];
    loop {
        let Ok(read) = reads.lock().expect("no reader panics").recv() else { return };
        let outcome = match file.read_exact_at(&mut buffer, read.offset) {
            Ok(()) => Outcome::Done,
            Err(_) => Outcome::Failed,
        };
        let _ = read.from.send(Event::Done(read.tag, outcome));
    }
}

/// Serves both tenants for so many bytes, and says how many each got.
fn serve(file: &File, bytes: u64) -> io::Result<[u64; TENANTS.len()]> {
    let tags = TENANTS.len() * DEPTH as usize;
    let config = MqfqConfig { slots: 16, ..MqfqConfig::new(Topology::flat(PORTS), 16, tags) };
    let (policy, ports) = Mqfq::<Native>::new(config).map_err(io::Error::other)?;
    // Tenants may also be added, re-weighted and removed while the threads serve.
    let flows = TENANTS.map(|(_, weight)| {
        policy.add_flow(Weight::new(weight).expect("1 to 10000")).expect("room for 16")
    });
    let served: Arc<[AtomicU64; TENANTS.len()]> = Arc::default();
    let (pool, reads) = channel();
    let reads = Mutex::new(reads);
    let (shards, events): (Vec<_>, Vec<_>) = (0..PORTS).map(|_| channel()).unzip();
    let started = Instant::now();
    let blocks = (file.metadata()?.len() / u64::from(LENGTH)).max(1);
    thread::scope(|scope| {
        for (own, (port, events)) in ports.into_iter().zip(events).enumerate() {
            let (requests, shards, pool) = (vec![None; tags], shards.clone(), pool.clone());
            let served = served.clone();
            let (asked, flows) = (own as u64, flows);
            let shard = Shard {
                port,
                requests,
                events,
                shards,
                own,
                pool,
                flows,
                served,
                blocks,
                asked,
                started,
            };
            scope.spawn(|| shard.serve());
        }
        drop(pool);
        for _ in 0..4 {
            scope.spawn(|| read_all(file, &reads));
        }
        // The control side: any one thread does the policy's periodic work, and wakes whom that
        // unblocks.
        while served.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum::<u64>() < bytes {
            thread::sleep(Duration::from_millis(1));
            let mut wake = PortSet::EMPTY;
            policy.tick(started.elapsed().as_nanos() as u64, &mut wake);
            for port in wake {
                let _ = shards[usize::from(port.0)].send(Event::Wake);
            }
        }
        // What is counted from here on is served while tenants leave, not in proportion to weights.
        let received = [0, 1].map(|tenant: usize| served[tenant].load(Ordering::Relaxed));
        for shard in &shards {
            let _ = shard.send(Event::Stop);
        }
        Ok(received)
    })
}

fn main() -> io::Result<()> {
    let path =
        env::args_os().nth(1).map_or_else(env::current_exe, |path| Ok(PathBuf::from(path)))?;
    let received = serve(&File::open(&path)?, 1 << 30)?;
    let (bytes, weights): (u64, u16) =
        (received.iter().sum(), TENANTS.iter().map(|(_, weight)| weight).sum());
    println!("tenant  entitled  received");
    for ((name, weight), received) in TENANTS.iter().zip(received) {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
        let (entitled, share) =
            (percent((*weight).into(), weights.into()), percent(received, bytes));
        println!("{name:<8}{entitled:>6.1} %{share:>8.1} %");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_as_weights() {
        let file = File::open(env::current_exe().unwrap()).unwrap();
        let [gold, silver] = serve(&file, 64 << 20).unwrap();
        assert!(gold * 100 > silver * 290 && gold * 100 < silver * 310, "{gold} : {silver}");
    }
}
