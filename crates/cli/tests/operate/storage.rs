//! What becomes of tenants' data: through the program, its sockets and files that misbehave.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use fairq_host::nbd::proto::{Command, CommandFlags, EXTENDED_REQUEST_LEN, Request};

use super::*;

/// An NBD client that does one thing after the other.
struct Client {
    stream: UnixStream,
    size: u64,
}

/// Socket and pages of a client whose export may be opened; `None` if the server refuses it.
fn open(server: &Server, export: &str) -> Option<Client> {
    let mut stream = UnixStream::connect(server.path("sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend(1u32.to_be_bytes());
    hello.extend((export.len() as u32).to_be_bytes());
    hello.extend(export.as_bytes());
    stream.write_all(&hello).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).ok()?;
    let size = u64::from_be_bytes(answer[..8].try_into().unwrap());
    Some(Client { stream, size })
}

impl Client {
    fn of(server: &Server, export: &str) -> Client {
        until("the export can be opened", || open(server, export))
    }

    fn ask(&mut self, command: Command, flags: CommandFlags, offset: u64, length: u64) {
        let request = Request { flags, command, cookie: 7, offset, length };
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        let count = request.encode(false, &mut bytes);
        self.stream.write_all(&bytes[..count]).unwrap();
    }

    /// The error of a reply: 0, or as NBD has it.
    fn answer(&mut self) -> u32 {
        let mut bytes = [0; 16];
        self.stream.read_exact(&mut bytes).unwrap();
        u32::from_be_bytes(bytes[4..8].try_into().unwrap())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(Command::Write, CommandFlags(0), offset, data.len() as u64);
        self.stream.write_all(data).unwrap();
        self.answer()
    }
}

/// Takes `length` bytes out of a socket without reading them: they stay what they are, in pipes.
fn take(stream: &UnixStream, length: usize) -> Vec<OwnedFd> {
    let (mut pipes, mut left) = (Vec::new(), length);
    while left > 0 {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // A piece for each page, and one for each place where a message of the socket's ends.
        let flags = rustix::pipe::SpliceFlags::empty();
        let most = left.min(32 << 10);
        left -= rustix::pipe::splice(stream, None, &writer, None, most, flags).unwrap();
        pipes.push(reader);
    }
    pipes
}

/// A client may keep a reply unread for as long as it likes, in its socket or in pipes that it has
/// moved the socket's memory to. What is there must be what was read, whatever the range holds by
/// then: here those that have it next write to all of it, once after it was zeroed, at ends that no
/// page of the cache has, and once as it was.
#[test]
fn a_reply_shows_nothing_that_was_written_after_it() {
    const SIZE: usize = 1_331_712 + 512;
    for next in [&["left=1331712", "right=512"][..], &["all=1332224,keep-data"]] {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("disk");
        std::fs::write(&path, vec![b'o'; SIZE]).unwrap();
        let config = format!(
            "device = \"file,path={},direct=off\"\n[[tenant]]\nname = \"old\"\nsize = {SIZE}\n",
            path.display()
        );
        let server = Server::start(&config, &[]);
        let mut old = Client::of(&server, "old");
        assert_eq!(old.size, SIZE as u64);
        old.ask(Command::Read, CommandFlags(0), 0, SIZE as u64);
        assert_eq!(old.answer(), 0);
        let in_pipes = take(&old.stream, SIZE - 131_072);
        server.said(&["remove", "old"]);
        for tenant in next {
            server.said(&["add", tenant]);
            let mut new = Client::of(&server, tenant.split('=').next().unwrap());
            let data = vec![b'n'; new.size as usize];
            assert_eq!(new.write(0, &data), 0);
        }
        let mut got = Vec::new();
        for pipe in in_pipes {
            std::fs::File::from(pipe).read_to_end(&mut got).unwrap();
        }
        let at = got.len();
        got.resize(SIZE, 0);
        old.stream.read_exact(&mut got[at..]).unwrap();
        let strange = got.iter().filter(|&&byte| byte == b'n').count();
        assert_eq!(strange, 0, "bytes of {next:?} in a reply to another tenant");
        assert!(got.iter().all(|&byte| byte == b'o'), "the reply is what was read");
    }
}
