//! Messages of the vfio-user protocol on a socket.
//!
//! A message is a header of 16 bytes (identifier, command, size of the whole, flags, errno), a
//! body, and files that come with the header. All numbers have the machine's byte order.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use thiserror::Error;

use crate::front::socket::{self, FILES};

const HEADER: usize = 16;
const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The most bytes that one message reads from a region or writes to it.
pub const TRANSFER: usize = 64 << 10;
/// The most bytes of a body: the data of a transfer, and the fields before them.
pub const BODY: usize = TRANSFER + 64;

/// Numbers of commands.
pub mod command {
    #![allow(missing_docs)]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const GET_INFO: u16 = 4;
    pub const GET_REGION_INFO: u16 = 5;
    pub const GET_REGION_IO_FDS: u16 = 6;
    pub const GET_IRQ_INFO: u16 = 7;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
    pub const REGION_WRITE_MULTI: u16 = 15;
    pub const DEVICE_FEATURE: u16 = 16;
}

/// The reason why a conversation ends.
#[derive(Debug, Error)]
pub enum FramingError {
    /// The socket has failed, or ended inside a message.
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
    /// A header that no command has.
    #[error("no command of vfio-user: {size} bytes, flags {flags:#x}")]
    Header {
        /// The size of the whole message, in bytes.
        size: u32,
        /// The flags.
        flags: u32,
    },
}

/// A command of the client.
#[derive(Debug)]
pub struct Command {
    id: u16,
    /// Its number.
    pub number: u16,
    /// Whether the client wants no reply.
    wants_none: bool,
    /// Its body.
    pub body: Vec<u8>,
    /// The files that came with it.
    pub files: Vec<File>,
}

impl Command {
    /// A field of four bytes; 0 beyond the body.
    pub fn word(&self, at: usize) -> u32 {
        word(&self.body, at)
    }

    /// A field of eight bytes; 0 beyond the body.
    pub fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }

    /// Whether its body has at least `length` bytes.
    pub fn has(&self, length: usize) -> bool {
        self.body.len() >= length
    }
}

/// Four bytes as a number; 0 beyond the end.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at.saturating_add(4)).and_then(|field| field.try_into().ok());
    field.map_or(0, u32::from_ne_bytes)
}

/// Receives the next command; `None` if the stream has ended.
pub fn receive(mut stream: &UnixStream) -> Result<Option<Command>, FramingError> {
    let (mut header, mut filled, mut files) = ([0; HEADER], 0, Vec::new());
    while filled < HEADER {
        match socket::receive(stream, &mut header[filled..], &mut files, FILES)? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
    }
    let (head, size, flags) = (word(&header, 0), word(&header, 4), word(&header, 8));
    let length = (size as usize).checked_sub(HEADER).filter(|&length| length <= BODY);
    let (Some(length), 0) = (length, flags & TYPE) else {
        return Err(FramingError::Header { size, flags });
    };
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let [id, number] = [head as u16, (head >> 16) as u16];
    Ok(Some(Command { id, number, wants_none: flags & NO_REPLY != 0, body, files }))
}

/// Sends the reply to a command, unless the client wants none.
pub fn reply(
    stream: &UnixStream,
    to: &Command,
    body: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(stream, to, REPLY, 0, body, files)
}

/// Replies with an error.
pub fn refuse(stream: &UnixStream, to: &Command, errno: i32) -> io::Result<()> {
    send(stream, to, REPLY | ERROR, errno as u32, &[], &[])
}

fn send(
    stream: &UnixStream,
    to: &Command,
    flags: u32,
    errno: u32,
    body: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if to.wants_none {
        return Ok(());
    }
    let head = u32::from(to.id) | u32::from(to.number) << 16;
    let header = [head, (HEADER + body.len()) as u32, flags, errno].map(u32::to_ne_bytes);
    socket::send(stream, &[header.as_flattened(), body].concat(), files)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn sent(bytes: &[u8]) -> Result<Option<Command>, FramingError> {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(bytes).unwrap();
        drop(ours);
        receive(&theirs)
    }

    fn header(size: u32, flags: u32) -> Vec<u8> {
        [7 | 4 << 16, size, flags, 0].map(u32::to_ne_bytes).concat()
    }

    #[test]
    fn a_command_has_its_size_or_ends_the_conversation() {
        let command = sent(&[header(20, 0), vec![1, 0, 0, 0]].concat()).unwrap().unwrap();
        assert_eq!((command.number, command.word(0), command.word(2)), (4, 1, 0));
        assert!(sent(&[]).unwrap().is_none());
        assert!(matches!(sent(&header(20, 0)), Err(FramingError::Socket(_))), "no body");
        assert!(matches!(sent(&[1, 2]), Err(FramingError::Socket(_))), "no header");
        for (size, flags) in [(15, 0), (u32::MAX, 0), (17 + BODY as u32, 0), (16, 1)] {
            assert!(matches!(sent(&header(size, flags)), Err(FramingError::Header { .. })));
        }
    }
}
