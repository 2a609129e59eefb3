//! What an NBD server cannot do without, and nothing else: `nbd_floor SOCKET SIZE`.
//!
//! It takes whatever has come in large receives, looks at nothing but the headers, stores nothing, and answers all
//! requests of one receive with one send. Its CPU time a request is what the kernel asks of any server for moving these
//! bytes through a Unix socket in the pieces in which the client sends them. `bench/nbd-peers --floor` measures it beside
//! the real ones.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use fairq_host::nbd::option::{opt, rep};
use fairq_host::nbd::proto::{Command, Request, magic, parse_request};

/// Bytes of one receive.
const RECEIVE: usize = 256 << 10;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(Ok(size))) = (arguments.next(), arguments.next().map(|size| size.parse())) else {
        eprintln!("usage: nbd_floor SOCKET BYTES");
        std::process::exit(2);
    };
    for stream in UnixListener::bind(path)?.incoming() {
        let stream = stream?;
        // A client that leaves, however it does, is the end of its connection only.
        std::thread::spawn(move || open(stream, size).and_then(serve));
    }
    Ok(())
}

/// The shortest handshake that clients put up with.
fn open(mut stream: UnixStream, size: u64) -> io::Result<UnixStream> {
    let mut greeting = Vec::from(magic::GREETING.to_be_bytes());
    greeting.extend(magic::OPTION.to_be_bytes());
    greeting.extend(3u16.to_be_bytes());
    stream.write_all(&greeting)?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut header = [0; 16];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (option, length) = (word(8), word(12));
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut bytes = Vec::from(magic::OPTION_REPLY.to_be_bytes());
            bytes.extend([option, kind, data.len() as u32].iter().flat_map(|word| word.to_be_bytes()));
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

/// Receives, counts and answers until the client leaves.
fn serve(mut stream: UnixStream) -> io::Result<()> {
    let mut bytes = vec![0; RECEIVE];
    let mut have = 0;
    let mut replies = Vec::new();
    // The request whose payload is on its way, and how much of it is.
    let mut current: Option<(Request, usize)> = None;
    loop {
        let count = stream.read(&mut bytes[have..])?;
        if count == 0 {
            return Ok(());
        }
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
            let skipped = (*payload).min(have - at);
            at += skipped;
            *payload -= skipped;
            if *payload > 0 {
                break;
            }
            replies.extend(magic::SIMPLE_REPLY.to_be_bytes());
            replies.extend(0u32.to_be_bytes());
            replies.extend(request.cookie.to_be_bytes());
            if request.command == Command::Read {
                replies.resize(replies.len() + request.length as usize, 0);
            }
            current = None;
        }
        bytes.copy_within(at..have, 0);
        have -= at;
        stream.write_all(&replies)?;
        replies.clear();
    }
}
