//! A load-generating NBD client that costs a fraction of what general ones do, so that a fast server can be seen.
//!
//! One thread and one connection a job, closed loop: requests that replies have made room for leave in one send, and
//! one receive takes as many replies as have come; data is received and thrown away. All writes send the same bytes,
//! from where they are. Only simple replies are asked for, which every server speaks.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use fairq_core::Op;
use percent_encoding::percent_decode_str;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};

use crate::load::{Measured, Times, process_cpu};
use crate::nbd::proto::{Command, CommandFlags, EXTENDED_REQUEST_LEN, MAX_PAYLOAD, Request, magic};
use crate::stats::TenantStats;

/// Bytes taken by one receive.
const RECEIVE: usize = 512 << 10;
/// Send buffer to ask the kernel for, in bytes; it grants what the system's limit allows. So much that a server finds the
/// next large request there while this thread is woken for the reply to the last.
const SEND_BUFFER: usize = 512 << 10;
/// Memory pieces in one send.
const PIECES: usize = 64;
/// How long connecting and the handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same, for `poll`: how long the last replies may take.
const PATIENCE_TIME: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Which export of which server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the server listens.
    pub server: Server,
    /// The export's name; empty for the server's default.
    pub export: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host name or address, and a port.
    Tcp(String, u16),
}

impl Target {
    /// From an NBD URI: `nbd+unix:///EXPORT?socket=PATH` or `nbd://HOST[:PORT]/EXPORT`.
    pub fn parse(uri: &str) -> Result<Target, String> {
        let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
            let (export, query) = rest.split_once('?').ok_or("nbd+unix URIs name the socket: …?socket=PATH")?;
            let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
            let socket = socket.ok_or("nbd+unix URIs name the socket: …?socket=PATH")?;
            return Ok(Target { server: Server::Unix(decode(socket).into()), export: decode(export) });
        }
        let Some(rest) = uri.strip_prefix("nbd://") else {
            return Err(format!("'{uri}' is neither nbd+unix:///EXPORT?socket=PATH nor nbd://HOST[:PORT]/EXPORT"));
        };
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("'{port}' is not a port number"))?)
            }
            _ => (authority, 10_809),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_string();
        Ok(Target { server: Server::Tcp(host, port), export: decode(export) })
    }
}

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
    /// Uses only this much of the export's start, in bytes, if it is larger.
    pub size: Option<u64>,
    /// Seed of its random numbers.
    pub seed: u64,
}

/// Runs all jobs at the same time; results are by tenant. `watch` is as in [`crate::load::run`]; the CPU time is this
/// process's, the client's.
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
        while began.elapsed() < until && !threads.iter().any(std::thread::JoinHandle::is_finished) {
            if !watch(began.elapsed().as_secs_f64() / total.as_secs_f64()) {
                return;
            }
            std::thread::sleep(until.saturating_sub(began.elapsed()).min(Duration::from_millis(100)));
        }
    };
    pause(times.warmup);
    phase.store(MEASURE, Ordering::Relaxed);
    let (cpu, start) = (process_cpu(), Instant::now());
    pause(total);
    phase.store(STOP, Ordering::Relaxed);
    let (elapsed, cpu) = (start.elapsed(), process_cpu() - cpu);
    let tenants = jobs.iter().map(|job| job.tenant + 1).max().unwrap_or(0);
    let tenants = vec![TenantStats::default(); tenants];
    let mut measured = Measured { tenants, elapsed, cpu, series: Vec::new(), class_weights: Vec::new() };
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
    socket: OwnedFd,
    blocks: u64,
    rng: SmallRng,
    next_block: u64,
    /// For each request in flight, by cookie: when it was made and what it does.
    flights: Vec<(Instant, Op)>,
    /// Cookies not in flight.
    idle: Vec<u16>,
    outgoing: Outgoing,
    incoming: Vec<u8>,
    stats: TenantStats,
}

impl Connection {
    fn open(job: &Job) -> io::Result<Connection> {
        let (socket, size) = connect(&job.target)?;
        let size = job.size.unwrap_or(u64::MAX).min(size);
        let blocks = size / u64::from(job.block);
        if blocks == 0 || job.block == 0 || job.block > MAX_PAYLOAD {
            let message = format!("blocks of {} bytes do not fit an export of {size} bytes", job.block);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut rng = SmallRng::seed_from_u64(job.seed);
        let mut payload = vec![0; if job.read_percent < 100 { job.block as usize } else { 0 }];
        rng.fill(&mut payload[..]);
        Ok(Connection {
            socket,
            blocks,
            rng,
            next_block: 0,
            flights: vec![(Instant::now(), Op::Read); usize::from(job.depth)],
            idle: (0..job.depth).collect(),
            outgoing: Outgoing { payload, ..Outgoing::default() },
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
            // Not by a receive that blocks: that is woken whenever the server takes a request, too.
            let wanted = if self.send()? { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let mut ready = [PollFd::new(&self.socket, wanted)];
            let patience = if stopping { Some(&PATIENCE_TIME) } else { None };
            match poll(&mut ready, patience) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match recv(&self.socket, &mut self.incoming[have..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
                }
                Ok((_, count)) => have += count,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
            have = self.take_replies(have, &mut skip)?;
        }
    }

    /// Leaves as the protocol wants it; whether the server hears it is its own matter.
    fn say_good_bye(&mut self) {
        let command = Command::Disconnect;
        let request = Request { flags: CommandFlags(0), command, cookie: 0, offset: 0, length: 0 };
        let mut header = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(false, &mut header);
        let _ = send(&self.socket, &header[..length], SendFlags::NOSIGNAL);
    }

    /// Makes a request of every idle cookie.
    fn make_requests(&mut self) {
        let now = Instant::now();
        while let Some(cookie) = self.idle.pop() {
            let block = if self.job.random {
                self.rng.random_range(0..self.blocks)
            } else {
                let block = self.next_block;
                self.next_block = (block + 1) % self.blocks;
                block
            };
            let read = self.rng.random_range(0..100) < self.job.read_percent;
            let request = Request {
                flags: CommandFlags(0),
                command: if read { Command::Read } else { Command::Write },
                cookie: u64::from(cookie),
                offset: block * u64::from(self.job.block),
                length: u64::from(self.job.block),
            };
            self.outgoing.add(&request);
            self.flights[usize::from(cookie)] = (now, if read { Op::Read } else { Op::Write });
        }
    }

    /// Sends what it can without waiting; true if that was all.
    fn send(&mut self) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match self.outgoing.send(&self.socket) {
                Ok(()) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Takes the replies in the first `have` bytes of `incoming`; gives how many bytes are left for the next time.
    fn take_replies(&mut self, have: usize, skip: &mut usize) -> io::Result<usize> {
        let now = Instant::now();
        let mut at = 0;
        loop {
            let skipped = (*skip).min(have - at);
            at += skipped;
            *skip -= skipped;
            let Some(header) = self.incoming[at..have].first_chunk::<16>() else { break };
            let word = |index: usize| {
                u32::from_be_bytes([header[index], header[index + 1], header[index + 2], header[index + 3]])
            };
            let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
            if word(0) != magic::SIMPLE_REPLY || cookie >= self.flights.len() as u64 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent something that is no reply"));
            }
            at += 16;
            let failed = word(4) != 0;
            let (start, op) = self.flights[cookie as usize];
            if op == Op::Read && !failed {
                *skip = self.job.block as usize;
            }
            let latency_ns = now.saturating_duration_since(start).as_nanos() as u64;
            self.stats.count(op, self.job.block, failed, latency_ns, 0);
            self.idle.push(cookie as u16);
        }
        self.incoming.copy_within(at..have, 0);
        Ok(have - at)
    }
}

/// Requests not yet sent: headers, and after each of a write the payload that all writes share.
#[derive(Default)]
struct Outgoing {
    headers: Vec<u8>,
    payload: Vec<u8>,
    pieces: VecDeque<Piece>,
}

/// A part of what is sent.
enum Piece {
    Headers(Range<usize>),
    Payload(Range<usize>),
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn add(&mut self, request: &Request) {
        let mut header = [0; EXTENDED_REQUEST_LEN];
        let length = request.encode(false, &mut header);
        let start = self.headers.len();
        self.headers.extend_from_slice(&header[..length]);
        match self.pieces.back_mut() {
            Some(Piece::Headers(last)) => last.end += length,
            _ => self.pieces.push_back(Piece::Headers(start..start + length)),
        }
        if request.command == Command::Write {
            self.pieces.push_back(Piece::Payload(0..self.payload.len()));
        }
    }

    /// Sends once, without waiting.
    fn send(&mut self, socket: &OwnedFd) -> rustix::io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = self.pieces.len().min(PIECES);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(match piece {
                Piece::Headers(range) => &self.headers[range.clone()],
                Piece::Payload(range) => &self.payload[range.clone()],
            });
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags)?;
        self.advance(sent);
        Ok(())
    }

    /// So many bytes have left.
    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(Piece::Headers(range) | Piece::Payload(range)) = self.pieces.front_mut() else { break };
            let part = count.min(range.len());
            range.start += part;
            count -= part;
            if range.start == range.end {
                self.pieces.pop_front();
            }
        }
        if self.pieces.is_empty() {
            self.headers.clear();
        }
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Connects and opens the export; gives the socket and the export's size.
fn connect(target: &Target) -> io::Result<(OwnedFd, u64)> {
    let context = |error: io::Error| {
        let at = match &target.server {
            Server::Unix(path) => path.display().to_string(),
            Server::Tcp(host, port) => format!("{host}:{port}"),
        };
        io::Error::new(error.kind(), format!("cannot open export '{}' at {at}: {error}", target.export))
    };
    let opened = match &target.server {
        Server::Unix(path) => UnixStream::connect(path).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let size = open_export(&mut stream, &target.export)?;
            stream.set_read_timeout(None)?;
            set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
            Ok((stream.into(), size))
        }),
        Server::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).and_then(|mut stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let size = open_export(&mut stream, &target.export)?;
            stream.set_read_timeout(None)?;
            Ok((stream.into(), size))
        }),
    };
    opened.map_err(context)
}

/// The client's side of the shortest handshake: `GO`, with `EXPORT_NAME` for servers that do not know it.
fn open_export(stream: &mut dyn Stream, export: &str) -> io::Result<u64> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    if greeting[..8] != magic::GREETING.to_be_bytes() || greeting[8..16] != magic::OPTION.to_be_bytes() {
        return Err(invalid("this is not an NBD server (newstyle)"));
    }
    stream.write_all(&3u32.to_be_bytes())?;
    let mut go = Vec::from((export.len() as u32).to_be_bytes());
    go.extend_from_slice(export.as_bytes());
    go.extend_from_slice(&0u16.to_be_bytes());
    send_option(stream, 7, &go)?;
    let mut size = None;
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (kind, length) = (word(12), word(16));
        if header[..8] != magic::OPTION_REPLY.to_be_bytes() || length > 65_536 {
            return Err(invalid("the server sent something that is no reply to an option"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            1 => return size.ok_or_else(|| invalid("the server did not say how large the export is")),
            3 if data.len() >= 12 && data[..2] == [0, 0] => {
                size = data[2..10].try_into().ok().map(u64::from_be_bytes);
            }
            3 => {}
            0x8000_0001 => return open_by_name(stream, export),
            _ => {
                let message = String::from_utf8_lossy(&data);
                return Err(invalid(&format!("the server refuses it (error {:#x}) {message}", kind)));
            }
        }
    }
}

/// Opens an export the old way.
fn open_by_name(stream: &mut dyn Stream, export: &str) -> io::Result<u64> {
    send_option(stream, 1, export.as_bytes())?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply)?;
    let (size, _flags) = reply.split_at(8);
    Ok(u64::from_be_bytes(size.try_into().expect("eight bytes")))
}

fn send_option(stream: &mut dyn Stream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::from(magic::OPTION.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris() {
        let unix = Target::parse("nbd+unix:///my%20disk?socket=/run/fairq.sock").unwrap();
        assert_eq!(unix, Target { server: Server::Unix("/run/fairq.sock".into()), export: "my disk".into() });
        let tcp = |uri: &str| match Target::parse(uri).unwrap() {
            Target { server: Server::Tcp(host, port), export } => (host, port, export),
            other => panic!("{other:?}"),
        };
        assert_eq!(tcp("nbd://localhost/db"), ("localhost".into(), 10_809, "db".into()));
        assert_eq!(tcp("nbd://[::1]:9000/db"), ("::1".into(), 9000, "db".into()));
        assert_eq!(tcp("nbd://[::1]"), ("::1".into(), 10_809, String::new()));
        assert!(Target::parse("nbd+unix:///db").is_err());
        assert!(Target::parse("http://example/").is_err());
        assert!(Target::parse("nbd://host:port/db").is_err());
    }
}
