//! The minimum work of an NBD server: `nbd_floor SOCKET BYTES [FILE [direct]]`.
//!
//! It takes all arrived bytes in large receives, parses only the headers, and answers all requests
//! of one receive with one send. Without a file it stores nothing. With one it makes the bare read
//! or write in the cheapest way: through the page cache one system call each, directly between the
//! file and the bytes of the socket; with `direct` all requests of one receive go to the kernel in
//! one call by registered buffers, and it waits for half of the requests under way and answers them
//! together. It waits until a client has read most of its answers, so that batches are large. It
//! has no scheduler, no statistics, no bounds, and a thread for each client: its CPU time a request
//! is the kernel's cost for any server that moves these bytes, in the pieces in which the client
//! sends them. `bench/nbd-peers --floor` measures it beside the real ones.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use fairq_host::io::memory::{Buffer, Memory, Region};
use fairq_host::io::ring::{Asker, Ring, UserData};
use fairq_host::nbd::wire::option::{opt, rep};
use fairq_host::nbd::wire::proto::{Command, Request, magic, parse_request};
use io_uring::{opcode, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Bytes of one receive.
const RECEIVE: usize = 256 << 10;
/// Bytes of memory for requests under way with `direct`.
const MEMORY: usize = 64 << 20;

/// The place of the data.
enum Store {
    Nowhere,
    Cached(File),
    Direct(Box<Direct>),
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, size, file, direct) = match &*arguments {
        [path, size] => (path, size, None, false),
        [path, size, file] => (path, size, Some(file), false),
        [path, size, file, word] if word == "direct" => (path, size, Some(file), true),
        _ => {
            eprintln!("usage: nbd_floor SOCKET BYTES [FILE [direct]]");
            std::process::exit(2);
        }
    };
    let size: u64 = size.parse().map_err(io::Error::other)?;
    for stream in UnixListener::bind(path)?.incoming() {
        let stream = stream?;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let file = file
            .map(|file| File::options().read(true).write(true).custom_flags(flags).open(file))
            .transpose()?;
        // A client that disconnects, in whatever way, ends its own connection only.
        std::thread::spawn(move || {
            let store = match file {
                None => Store::Nowhere,
                Some(file) if direct => Store::Direct(Box::new(Direct::new(file)?)),
                Some(file) => Store::Cached(file),
            };
            open(stream, size).and_then(|stream| serve(stream, store))
        });
    }
    Ok(())
}

/// The shortest handshake that clients accept.
fn open(mut stream: UnixStream, size: u64) -> io::Result<UnixStream> {
    let mut greeting = Vec::from(magic::GREETING.to_be_bytes());
    greeting.extend(magic::OPTION.to_be_bytes());
    greeting.extend(3u16.to_be_bytes());
    stream.write_all(&greeting)?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (option, length) = (word(8), word(12));
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut bytes = Vec::from(magic::OPTION_REPLY.to_be_bytes());
            bytes.extend(
                [option, kind, data.len() as u32].iter().flat_map(|word| word.to_be_bytes()),
            );
            bytes.extend(data);
            stream.write_all(&bytes)
        };
        if option == opt::GO || option == opt::INFO {
            let mut info = Vec::from(0u16.to_be_bytes());
            info.extend(size.to_be_bytes());
            info.extend(1u16.to_be_bytes());
            reply(rep::INFO, &info)?;
            reply(rep::ACK, &[])?;
        } else {
            reply(rep::ERR_UNSUP, &[])?;
        }
        if option == opt::GO {
            return Ok(stream);
        }
    }
}

/// Receives, carries out and answers until the client disconnects.
fn serve(mut stream: UnixStream, mut store: Store) -> io::Result<()> {
    let mut bytes = vec![0; RECEIVE];
    let mut have = 0;
    let mut replies = Replies::default();
    // The request whose payload is being received, and the bytes of it that have come.
    let mut current: Option<(Request, usize)> = None;
    loop {
        let count = match recv(&stream, &mut bytes[have..], store.receives(&stream)?) {
            Ok((0, _)) => return Ok(()),
            Ok((count, _)) => count,
            Err(Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        have += count;
        let mut at = 0;
        loop {
            let Some((request, payload)) = &mut current else {
                let parsed = parse_request(&bytes[at..have], false).map_err(io::Error::other)?;
                let Some((request, header)) = parsed else { break };
                if request.command == Command::Disconnect {
                    return Ok(());
                }
                at += header;
                current = Some((request, request.payload(false) as usize));
                continue;
            };
            let came = (*payload).min(have - at);
            let done = request.length - *payload as u64;
            store.write(request, done, &bytes[at..at + came])?;
            at += came;
            *payload -= came;
            if *payload > 0 {
                break;
            }
            store.answer(request, &mut replies)?;
            current = None;
        }
        bytes.copy_within(at..have, 0);
        have -= at;
        store.send(&mut stream, &mut replies)?;
    }
}

impl Store {
    /// The flags of the next receive: it does not wait while requests are under way. Otherwise
    /// waits until the client has read most of its last answers.
    fn receives(&mut self, stream: &UnixStream) -> io::Result<RecvFlags> {
        match self {
            Store::Direct(direct) if direct.under_way > 0 => Ok(RecvFlags::DONTWAIT),
            Store::Direct(_) => Ok(RecvFlags::empty()),
            _ => {
                let patience = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&patience))?;
                Ok(RecvFlags::empty())
            }
        }
    }

    /// Takes a part of a write's payload, which begins at `done`.
    fn write(&mut self, request: &Request, done: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Store::Cached(file) if !bytes.is_empty() => {
                file.write_all_at(bytes, request.offset + done)
            }
            Store::Direct(direct) if !bytes.is_empty() => direct.write(request, done, bytes),
            _ => Ok(()),
        }
    }

    /// Answers a request whose payload has come, or begins it.
    fn answer(&mut self, request: &Request, replies: &mut Replies) -> io::Result<()> {
        if let Store::Direct(direct) = self
            && request.length > 0
        {
            return direct.begin(request);
        }
        replies.add(&header(request));
        match self {
            _ if request.command != Command::Read => Ok(()),
            Store::Cached(file) => {
                file.read_exact_at(replies.room(request.length as usize), request.offset)
            }
            _ => {
                replies.room(request.length as usize);
                Ok(())
            }
        }
    }

    /// Sends all replies of a batch.
    fn send(&mut self, stream: &mut UnixStream, replies: &mut Replies) -> io::Result<()> {
        if let Store::Direct(direct) = self {
            direct.finish(stream)?;
        }
        stream.write_all(&replies.bytes[..replies.filled])?;
        replies.filled = 0;
        Ok(())
    }
}

/// A simple reply without an error.
fn header(request: &Request) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&magic::SIMPLE_REPLY.to_be_bytes());
    header[8..].copy_from_slice(&request.cookie.to_be_bytes());
    header
}

/// Replies in memory that is allocated once.
#[derive(Default)]
struct Replies {
    bytes: Vec<u8>,
    filled: usize,
}

impl Replies {
    fn room(&mut self, length: usize) -> &mut [u8] {
        let from = self.filled;
        self.filled += length;
        if self.bytes.len() < self.filled {
            self.bytes.resize(self.filled, 0);
        }
        &mut self.bytes[from..self.filled]
    }

    fn add(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }
}

/// A file with direct I/O.
struct Direct {
    ring: Ring,
    region: Region,
    /// The write whose payload is being received.
    partial: Option<Buffer>,
    /// Requests under way, with the headers of their replies; an operation's user data is its
    /// index.
    slots: Vec<Option<(Request, [u8; 16], Buffer)>>,
    free: Vec<usize>,
    under_way: usize,
    _file: File,
}

impl Direct {
    fn new(file: File) -> io::Result<Direct> {
        let (mut region, mut ring) = (Region::map(MEMORY)?, Ring::new(1)?);
        let (memory, length) = region.head(MEMORY);
        // SAFETY: the ring, which is declared before the region, is dropped before it.
        if unsafe { ring.register_buffer(0, memory, length) } {
            region.set_fixed(0, length);
        }
        ring.register_files(&[file.as_raw_fd()])?;
        Ok(Direct {
            ring,
            region,
            partial: None,
            slots: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            _file: file,
        })
    }

    fn allocate(&mut self, request: &Request) -> io::Result<Buffer> {
        let buffer = self.region.allocate(request.length as u32);
        buffer.ok_or_else(|| io::Error::other("more under way than there is memory"))
    }

    /// Stores payload until all of it has come.
    fn write(&mut self, request: &Request, done: u64, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = match self.partial.take() {
            Some(buffer) => buffer,
            None => self.allocate(request)?,
        };
        buffer.bytes_mut()[done as usize..][..bytes.len()].copy_from_slice(bytes);
        self.partial = Some(buffer);
        Ok(())
    }

    fn begin(&mut self, request: &Request) -> io::Result<()> {
        let buffer = match self.partial.take() {
            Some(buffer) => buffer,
            None => self.allocate(request)?,
        };
        let Memory { address, length, .. } = buffer.memory();
        let entry = match request.command {
            Command::Read => opcode::ReadFixed::new(types::Fixed(0), address, length, 0)
                .offset(request.offset)
                .build(),
            _ => opcode::WriteFixed::new(types::Fixed(0), address, length, 0)
                .offset(request.offset)
                .build(),
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some((*request, header(request), buffer));
        // SAFETY: the buffer is kept, and not used, until `finish` has taken the operation's event.
        unsafe { self.ring.push(entry, UserData { asker: Asker::Device, value: slot as u64 }) };
        self.under_way += 1;
        Ok(())
    }

    /// Waits for half of the requests under way, and answers the completed ones.
    fn finish(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        let (enough, mut done) = (self.under_way.div_ceil(2), Vec::new());
        while done.len() < enough {
            self.ring.enter(enough - done.len(), None);
            while let Some(event) = self.ring.event() {
                if event.result < 0 {
                    return Err(io::Error::from_raw_os_error(-event.result));
                }
                let slot = event.data.value as usize;
                done.push(self.slots[slot].take().expect("an event of what is under way"));
                self.free.push(slot);
            }
        }
        self.under_way -= done.len();
        let mut pieces = Vec::with_capacity(2 * done.len());
        for (request, header, buffer) in &done {
            pieces.push(IoSlice::new(header));
            if request.command == Command::Read {
                pieces.push(IoSlice::new(buffer.bytes()));
            }
        }
        let mut rest = &mut pieces[..];
        while !rest.is_empty() {
            let sent = stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        done.into_iter().for_each(|(_, _, buffer)| self.region.free(buffer));
        Ok(())
    }
}
