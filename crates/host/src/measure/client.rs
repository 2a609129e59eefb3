//! A load-generating NBD client that costs a fraction of the CPU time of general ones, so that a
//! fast server can be measured.
//!
//! Each job has one thread and one connection, in a closed loop. One send contains all requests
//! that the replies have made possible, and one receive takes all replies that have arrived; their
//! data are discarded. All writes send the same bytes without a copy (except with TLS). The client
//! negotiates only simple replies, which every server supports.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fairq_core::Op;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::io::clock::Clock;
use crate::measure::client::channel::Channel;
pub use crate::measure::client::open::{Server, Target, TlsFiles};
use crate::measure::load::{Measured, Times, Usage};
use crate::measure::stall::Watch;
use crate::nbd::wire::proto::{Command, CommandFlags, MAX_PAYLOAD, Request, magic};
use crate::observe::stats::TenantStats;

mod channel;
mod open;

/// Size of the receive buffer in bytes. It may hold the start of a reply whose rest has not
/// arrived.
const RECEIVE: usize = channel::ROOM + (256 << 10);
/// The longest wait of a connection before it checks whether it has to stop.
const STEP: Duration = Duration::from_millis(100);

/// The load of one connection.
#[derive(Clone, Debug)]
pub struct Job {
    /// The index of the tenant in the statistics.
    pub tenant: usize,
    /// The export to which it connects.
    pub target: Target,
    /// Bytes of each request; at most 32 MiB.
    pub block: u32,
    /// Requests that it keeps in flight.
    pub depth: u16,
    /// Percentage of requests that are reads.
    pub read_percent: u8,
    /// Offsets at random, rather than one block after the other.
    pub random: bool,
    /// The most bytes a second that it requests.
    pub rate: Option<u64>,
    /// Pause between a reply and the request that follows it, in nanoseconds.
    pub think_ns: u64,
    /// The number of bytes, from the export's start, that it uses, if the export is larger.
    pub size: Option<u64>,
    /// The longest silence of the server while the job has requests in flight; also the time limit
    /// of connecting and of the handshake.
    pub timeout: Duration,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Runs all jobs at the same time; the results are by tenant. `progress` is as in
/// [`crate::measure::load::run`]; the CPU time is that of the client's process.
pub fn run(jobs: &[Job], times: Times, mut progress: impl FnMut(f64)) -> io::Result<Measured> {
    let clock = Clock::default();
    let connections = jobs.iter().map(Connection::open).collect::<io::Result<Vec<_>>>()?;
    let begins_ns = clock.now_ns().saturating_add(times.warmup.as_nanos() as u64);
    let ends_ns = begins_ns.saturating_add(times.measured.as_nanos() as u64);
    let window = Window { begins_ns, ends_ns, is_cut: Arc::new(AtomicBool::new(false)) };
    let start = |connection: Connection| {
        let window = window.clone();
        std::thread::Builder::new().name("client".into()).spawn(move || connection.drive(&window))
    };
    let threads = connections.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    let (started_ns, total) = (clock.now_ns(), (times.warmup + times.measured).as_nanos() as f64);
    let mut step = |now_ns: u64| {
        progress(now_ns.saturating_sub(started_ns) as f64 / total);
        // A connection ends early only if it has failed, and then the run cannot be used.
        (!threads.iter().any(JoinHandle::is_finished)).then_some(u64::MAX)
    };
    Watch::new(&clock).wait(begins_ns, &mut step);
    let mut watch = Watch::new(&clock);
    // The window of the measurement is fixed in advance. If a stall begins in the warm-up, only its
    // part after the warm-up counts, so the watch starts with the window.
    watch.note(begins_ns);
    let usage = Usage::now();
    watch.wait(ends_ns, &mut step);
    let Usage { cpu, preempted } = Usage::now().since(usage);
    window.is_cut.store(clock.now_ns() < ends_ns, Ordering::Relaxed);
    let tenants = jobs.iter().map(|job| job.tenant + 1).max().unwrap_or(0);
    let mut measured = Measured {
        tenants: vec![TenantStats::default(); tenants],
        elapsed: times.measured,
        disturbance: watch.judge(times.measured, times.measured, None),
        cpu,
        preempted,
        cpu_wait: None,
        series: Vec::new(),
        class_weights: Vec::new(),
        slots: None,
    };
    let ended = threads.into_iter().map(JoinHandle::join).collect::<Vec<_>>();
    for (ended, job) in ended.into_iter().zip(jobs) {
        let stats = ended.map_err(|_| io::Error::other("a client thread panicked"))??;
        measured.tenants[job.tenant].add(&stats);
    }
    Ok(measured)
}

/// The time in which connections count replies.
#[derive(Clone)]
struct Window {
    begins_ns: u64,
    ends_ns: u64,
    /// Whether another connection has failed, so that the run ends early.
    is_cut: Arc<AtomicBool>,
}

/// One connection and the state of its closed loop.
struct Connection {
    job: Job,
    channel: Channel,
    clock: Clock,
    blocks: u64,
    rng: SmallRng,
    next_block: u64,
    /// For each request in flight, by cookie: the time when it was sent, and its operation.
    flights: Vec<(u64, Op)>,
    /// Cookies not in flight, each with the time from which it may be used again.
    idle: VecDeque<(u16, u64)>,
    /// The time from which the rate allows the next request.
    next_ns: u64,
    /// The time when the server's silence began: at its last bytes, or at the first request after a
    /// time without requests.
    silent_ns: u64,
    incoming: Vec<u8>,
    stats: TenantStats,
}

impl Connection {
    fn open(job: &Job) -> io::Result<Connection> {
        let (mut channel, size) = open::connect_to(&job.target, job.timeout)?;
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
        Ok(Connection {
            channel,
            clock: Clock::default(),
            blocks,
            rng,
            next_block: 0,
            flights: vec![(0, Op::Read); usize::from(job.depth)],
            idle: (0..job.depth).map(|cookie| (cookie, 0)).collect(),
            next_ns: 0,
            silent_ns: 0,
            incoming: vec![0; RECEIVE],
            stats: TenantStats::default(),
            job: job.clone(),
        })
    }

    /// Runs the closed loop until the window ends; then waits for the requests in flight and
    /// disconnects.
    fn drive(mut self, window: &Window) -> io::Result<TenantStats> {
        // Bytes received in `incoming`, and bytes of a reply's data that are still to be discarded.
        let (mut have, mut skip) = (0, 0);
        loop {
            let now_ns = self.clock.now_ns();
            let stopping = now_ns >= window.ends_ns || window.is_cut.load(Ordering::Relaxed);
            if !stopping {
                self.make_requests(now_ns);
            } else if self.in_flight() == 0 {
                self.disconnect();
                return Ok(self.stats);
            }
            let all_sent = self.channel.send()?;
            if !self.wait(all_sent)? {
                continue;
            }
            have += self.channel.receive(&mut self.incoming[have..])?;
            have = self.take_replies(have, &mut skip, window)?;
        }
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.idle.len()
    }

    /// Waits until there are bytes to receive, space to send queued requests, or a request to make;
    /// true if bytes may have arrived. It does not block in a receive, because that would also be
    /// woken whenever the server reads a request from the socket.
    fn wait(&self, all_sent: bool) -> io::Result<bool> {
        let now_ns = self.clock.now_ns();
        let ready_ns = self.idle.front().map(|&(_, ready_ns)| ready_ns.max(self.next_ns));
        let silent_until_ns = (self.in_flight() > 0)
            .then(|| self.silent_ns.saturating_add(self.job.timeout.as_nanos() as u64));
        if silent_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            let message = format!(
                "the server has answered none of {} requests for {:.2?}: it hangs, or it takes \
                 longer: see its log, or allow more with --timeout",
                self.in_flight(),
                self.job.timeout
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        let next_ns = [ready_ns, silent_until_ns].into_iter().flatten().min().unwrap_or(u64::MAX);
        let time = Duration::from_nanos(next_ns.saturating_sub(now_ns)).min(STEP);
        let time =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let wanted = if all_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut ready = [PollFd::new(&self.channel.socket, wanted)];
        match poll(&mut ready, Some(&time)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            // If the socket is only writable, there is nothing to receive.
            Ok(_) => Ok(ready[0].revents() != PollFlags::OUT),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the request that ends a connection. An error is ignored, because the connection is
    /// closed next.
    fn disconnect(&mut self) {
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

    /// Makes a request for every idle cookie that may be used again.
    fn make_requests(&mut self, now_ns: u64) {
        while let Some(&(cookie, ready_ns)) = self.idle.front()
            && ready_ns <= now_ns
            && self.next_ns <= now_ns
        {
            if self.in_flight() == 0 {
                self.silent_ns = now_ns;
            }
            self.idle.pop_front();
            if let Some(rate) = self.job.rate {
                // A connection that fell behind its rate bursts by at most one request afterwards.
                let interval_ns = u64::from(self.job.block) * 1_000_000_000 / rate.max(1);
                self.next_ns = self.next_ns.saturating_add(interval_ns).max(now_ns);
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
            self.flights[usize::from(cookie)] = (now_ns, if read { Op::Read } else { Op::Write });
        }
    }

    /// Handles the replies in the first `have` bytes of `incoming`; returns the number of bytes
    /// left for the next call.
    fn take_replies(
        &mut self,
        have: usize,
        skip: &mut usize,
        window: &Window,
    ) -> io::Result<usize> {
        let now_ns = self.clock.now_ns();
        self.silent_ns = now_ns;
        let counts = (window.begins_ns..window.ends_ns).contains(&now_ns);
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
                    "the server sent bytes that are not a reply",
                ));
            }
            at += 16;
            let errno = word(4) as i32;
            let (start_ns, op) = self.flights[cookie as usize];
            if op == Op::Read && errno == 0 {
                *skip = self.job.block as usize;
            }
            if counts {
                let latency_ns = now_ns.saturating_sub(start_ns);
                self.stats.count(op, self.job.block, errno, latency_ns, 0);
            }
            self.idle.push_back((cookie as u16, now_ns.saturating_add(self.job.think_ns)));
        }
        self.incoming.copy_within(at..have, 0);
        Ok(have - at)
    }
}

#[cfg(test)]
mod tests;
