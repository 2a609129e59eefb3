//! A load-generating NBD client that costs a fraction of what general ones do, so that a fast
//! server can be seen.
//!
//! One thread and one connection a job, closed loop: requests that replies have made room for leave
//! in one send, and one receive takes as many replies as have come; data is received and thrown
//! away. All writes send the same bytes, from where they are (with TLS they have to be copied).
//! Only simple replies are asked for, which every server speaks.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use fairq_core::Op;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::measure::client::channel::Channel;
pub use crate::measure::client::open::{Server, Target, TlsFiles};
use crate::measure::load::{Measured, Times, Usage};
use crate::nbd::wire::proto::{Command, CommandFlags, MAX_PAYLOAD, Request, magic};
use crate::observe::stats::TenantStats;

mod channel;
mod open;

/// Bytes taken by one receive; the start of a reply may wait there for the rest.
const RECEIVE: usize = channel::ROOM + (256 << 10);
/// How long the last replies may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection that holds itself back waits before it looks whether to stop.
const WATCH: Duration = Duration::from_millis(100);

/// What one connection does.
#[derive(Clone, Debug)]
pub struct Job {
    /// The tenant it is counted for.
    pub tenant: usize,
    /// Where to.
    pub target: Target,
    /// Bytes of each request; at most 32 MiB.
    pub block: u32,
    /// Requests it keeps in flight.
    pub depth: u16,
    /// Percentage of requests that are reads.
    pub read_percent: u8,
    /// Offsets at random, rather than one block after the other.
    pub random: bool,
    /// The most bytes a second it asks for.
    pub rate: Option<u64>,
    /// Pause between a reply and the request that follows it, in nanoseconds.
    pub think_ns: u64,
    /// Uses only this much of the export's start, in bytes, if it is larger.
    pub size: Option<u64>,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Runs all jobs at the same time; results are by tenant. `watch` is as in
/// [`crate::measure::load::run`]; the CPU time is the client's process's.
pub fn run(jobs: &[Job], times: Times, mut watch: impl FnMut(f64) -> bool) -> io::Result<Measured> {
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let connections = jobs.iter().map(Connection::open).collect::<io::Result<Vec<_>>>()?;
    let start = |connection: Connection| {
        let phase = phase.clone();
        std::thread::Builder::new().name("client".into()).spawn(move || connection.drive(&phase))
    };
    let threads = connections.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    let total = times.warmup + times.measured;
    let began = Instant::now();
    let mut pause = |until: Duration| {
        // A connection that ends before it is told to has failed, and the run is of no use.
        while began.elapsed() < until && !threads.iter().any(std::thread::JoinHandle::is_finished) {
            if !watch(began.elapsed().as_secs_f64() / total.as_secs_f64()) {
                return;
            }
            std::thread::sleep(
                until.saturating_sub(began.elapsed()).min(Duration::from_millis(100)),
            );
        }
    };
    pause(times.warmup);
    phase.store(MEASURE, Ordering::Relaxed);
    let (usage, start) = (Usage::now(), Instant::now());
    pause(total);
    phase.store(STOP, Ordering::Relaxed);
    let (elapsed, Usage { cpu, preempted }) = (start.elapsed(), Usage::now().since(usage));
    let tenants = jobs.iter().map(|job| job.tenant + 1).max().unwrap_or(0);
    let tenants = vec![TenantStats::default(); tenants];
    let mut measured = Measured {
        tenants,
        elapsed,
        cpu,
        preempted,
        cpu_wait: None,
        series: Vec::new(),
        class_weights: Vec::new(),
        slots: None,
    };
    for (thread, job) in threads.into_iter().zip(jobs) {
        let stats = thread.join().map_err(|_| io::Error::other("a client thread panicked"))??;
        measured.tenants[job.tenant].add(&stats);
    }
    Ok(measured)
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

/// One connection and the state of its closed loop.
struct Connection {
    job: Job,
    channel: Channel,
    blocks: u64,
    rng: SmallRng,
    next_block: u64,
    /// For each request in flight, by cookie: when it was made and what it does.
    flights: Vec<(Instant, Op)>,
    /// Cookies not in flight, and when each may be used again.
    idle: VecDeque<(u16, Instant)>,
    /// When the next request may go, as the rate says.
    next: Instant,
    incoming: Vec<u8>,
    stats: TenantStats,
}

impl Connection {
    fn open(job: &Job) -> io::Result<Connection> {
        let (mut channel, size) = open::connect(&job.target)?;
        let size = job.size.unwrap_or(u64::MAX).min(size);
        let blocks = if job.block == 0 { 0 } else { size / u64::from(job.block) };
        if blocks == 0 || job.block > MAX_PAYLOAD {
            let message =
                format!("blocks of {} bytes do not fit an export of {size} bytes", job.block);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut rng = SmallRng::seed_from_u64(job.seed);
        let mut payload = vec![0; if job.read_percent < 100 { job.block as usize } else { 0 }];
        rng.fill(&mut payload[..]);
        channel.set_payload(payload);
        let now = Instant::now();
        Ok(Connection {
            channel,
            blocks,
            rng,
            next_block: 0,
            flights: vec![(now, Op::Read); usize::from(job.depth)],
            idle: (0..job.depth).map(|cookie| (cookie, now)).collect(),
            next: now,
            incoming: vec![0; RECEIVE],
            stats: TenantStats::default(),
            job: job.clone(),
        })
    }

    /// Runs the closed loop until told to stop; then waits for what is in flight and leaves.
    fn drive(mut self, phase: &AtomicU8) -> io::Result<TenantStats> {
        let (mut counting, mut stopping) = (false, false);
        let mut counted = TenantStats::default();
        // Bytes of `incoming` that are there, and bytes of a reply's data still to be thrown away.
        let (mut have, mut skip) = (0, 0);
        loop {
            match phase.load(Ordering::Relaxed) {
                // Replies that come after the measurement has ended are not counted.
                STOP if !stopping => {
                    stopping = true;
                    counted = std::mem::take(&mut self.stats);
                }
                MEASURE if !counting => {
                    counting = true;
                    self.stats = TenantStats::default();
                }
                _ => {}
            }
            if !stopping {
                self.make_requests();
            } else if self.idle.len() == self.flights.len() {
                self.say_good_bye();
                return Ok(counted);
            }
            let all_sent = self.channel.send()?;
            if !self.wait(all_sent, stopping)? {
                continue;
            }
            have += self.channel.receive(&mut self.incoming[have..])?;
            have = self.take_replies(have, &mut skip)?;
        }
    }

    /// Waits until there is something to receive, room to send what has not left, or a request to
    /// make; true if something may have come. Not by a receive that blocks: that is woken whenever
    /// the server takes a request, too.
    fn wait(&self, all_sent: bool, stopping: bool) -> io::Result<bool> {
        let patience = match self.idle.front() {
            _ if stopping => Some(PATIENCE),
            Some(&(_, ready)) => {
                Some(ready.max(self.next).saturating_duration_since(Instant::now()).min(WATCH))
            }
            None => None,
        };
        let patience = patience.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let wanted = if all_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut ready = [PollFd::new(&self.channel.socket, wanted)];
        match poll(&mut ready, patience.as_ref()) {
            Ok(0) if stopping => Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            // With room to send and nothing else there is nothing to receive.
            Ok(_) => Ok(ready[0].revents() != PollFlags::OUT),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves as the protocol wants it; whether the server hears it is its own matter.
    fn say_good_bye(&mut self) {
        let command = Command::Disconnect;
        self.channel.add(&Request {
            flags: CommandFlags(0),
            command,
            cookie: 0,
            offset: 0,
            length: 0,
        });
        let _ = self.channel.send();
    }

    /// Makes a request of every idle cookie that may be used.
    fn make_requests(&mut self) {
        let now = Instant::now();
        while let Some(&(cookie, ready)) = self.idle.front()
            && ready <= now
            && self.next <= now
        {
            self.idle.pop_front();
            if let Some(rate) = self.job.rate {
                // A connection that could not keep up does not burst afterwards by more than one
                // request.
                let interval =
                    Duration::from_nanos(u64::from(self.job.block) * 1_000_000_000 / rate.max(1));
                self.next = (self.next + interval).max(now);
            }
            let block = if self.job.random {
                self.rng.random_range(0..self.blocks)
            } else {
                let block = self.next_block;
                self.next_block = (block + 1) % self.blocks;
                block
            };
            let read = self.rng.random_range(0..100) < self.job.read_percent;
            self.channel.add(&Request {
                flags: CommandFlags(0),
                command: if read { Command::Read } else { Command::Write },
                cookie: u64::from(cookie),
                offset: block * u64::from(self.job.block),
                length: u64::from(self.job.block),
            });
            self.flights[usize::from(cookie)] = (now, if read { Op::Read } else { Op::Write });
        }
    }

    /// Takes the replies in the first `have` bytes of `incoming`; gives how many bytes are left for
    /// the next time.
    fn take_replies(&mut self, have: usize, skip: &mut usize) -> io::Result<usize> {
        let (now, think) = (Instant::now(), Duration::from_nanos(self.job.think_ns));
        let mut at = 0;
        loop {
            let skipped = (*skip).min(have - at);
            at += skipped;
            *skip -= skipped;
            let Some(header) = self.incoming[at..have].first_chunk::<16>() else { break };
            let word = |index: usize| {
                u32::from_be_bytes([
                    header[index],
                    header[index + 1],
                    header[index + 2],
                    header[index + 3],
                ])
            };
            let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
            if word(0) != magic::SIMPLE_REPLY || cookie >= self.flights.len() as u64 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the server sent something that is no reply",
                ));
            }
            at += 16;
            let errno = word(4) as i32;
            let (start, op) = self.flights[cookie as usize];
            if op == Op::Read && errno == 0 {
                *skip = self.job.block as usize;
            }
            let latency_ns = now.saturating_duration_since(start).as_nanos() as u64;
            self.stats.count(op, self.job.block, errno, latency_ns, 0);
            self.idle.push_back((cookie as u16, now + think));
        }
        self.incoming.copy_within(at..have, 0);
        Ok(have - at)
    }
}
