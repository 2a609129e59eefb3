//! The vhost-user protocol's messages on a socket.
//!
//! A message is a header of 12 bytes (request, flags, length), a body, and files that are sent with
//! the header. The structures are those of the crate `vhost`. The crate's request handler is not
//! used: it supports neither the device's status nor messages about a changed configuration, and it
//! cannot continue a connection whose negotiation another program has finished.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::SendFlags;
use thiserror::Error;
use vhost::vhost_user::message::{
    BackendReq, FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE, VhostUserMsgValidator,
};

use crate::front::socket;

const HEADER: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// The reason why a conversation ends.
#[derive(Debug, Error)]
pub enum MessageError {
    /// The socket has failed, or ended inside a message.
    #[error("the socket: {0}")]
    Socket(#[from] io::Error),
    /// An invalid header.
    #[error("not a message of vhost-user: request {request}, flags {flags:#x}, {length} bytes")]
    Header {
        /// The number of the request.
        request: u32,
        /// The flags.
        flags: u32,
        /// The length of the body, in bytes.
        length: u32,
    },
    /// A body or files that do not match the request.
    #[error("{0:?} has a wrong body or wrong files")]
    Body(FrontendReq),
}

/// A message of the guest's monitor.
pub struct Message {
    /// The request.
    pub request: FrontendReq,
    /// Whether the monitor waits for a reply with the result.
    pub needs_reply: bool,
    /// Its body.
    pub body: Vec<u8>,
    /// The files that were sent with it.
    pub files: Vec<File>,
}

impl Message {
    /// The body as a structure, if its length is the structure's and it is valid.
    pub fn body<T: VhostUserMsgValidator + Default>(&self) -> Result<T, MessageError> {
        if self.body.len() == size_of::<T>() { self.start() } else { Err(self.wrong()) }
    }

    /// The structure at the start of the body.
    pub fn start<T: VhostUserMsgValidator + Default>(&self) -> Result<T, MessageError> {
        let mut value = T::default();
        let bytes = self.body.get(..size_of::<T>()).ok_or_else(|| self.wrong())?;
        value.as_mut_slice().copy_from_slice(bytes);
        if value.is_valid() { Ok(value) } else { Err(self.wrong()) }
    }

    /// The bytes after a structure.
    pub fn rest<T>(&self) -> &[u8] {
        self.body.get(size_of::<T>()..).unwrap_or_default()
    }

    /// Its only file.
    pub fn file(&mut self) -> Result<File, MessageError> {
        match self.files.pop() {
            Some(file) if self.files.is_empty() => Ok(file),
            _ => Err(self.wrong()),
        }
    }

    /// The error of a message with a wrong body.
    pub fn wrong(&self) -> MessageError {
        MessageError::Body(self.request)
    }
}

/// Receives the next message; `None` if the stream has ended.
pub fn receive(mut stream: &UnixStream) -> Result<Option<Message>, MessageError> {
    let (mut header, mut filled, mut files) = ([0; HEADER], 0, Vec::new());
    while filled < HEADER {
        let rest = &mut header[filled..];
        match socket::receive(stream, rest, &mut files, MAX_ATTACHED_FD_ENTRIES)? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
    }
    let word =
        |at| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (number, flags, length) = (word(0), word(4), word(8));
    let wrong = MessageError::Header { request: number, flags, length };
    let is_message = flags & (VERSION_MASK | REPLY) == VERSION && length as usize <= MAX_MSG_SIZE;
    let Ok(request) = FrontendReq::try_from(number) else { return Err(wrong) };
    if !is_message {
        return Err(wrong);
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok(Some(Message { request, needs_reply: flags & NEED_REPLY != 0, body, files }))
}

/// Sends an answer, with at most one file.
pub fn reply(
    stream: &UnixStream,
    to: FrontendReq,
    body: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), MessageError> {
    send(stream, to.into(), VERSION | REPLY, body, file.as_slice())
}

/// Sends a message.
pub fn send(
    stream: &UnixStream,
    request: u32,
    flags: u32,
    body: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), MessageError> {
    let bytes = [header(request, flags, body.len()).as_slice(), body].concat();
    Ok(socket::send(stream, &bytes, files)?)
}

/// Notifies the monitor on the back channel that the configuration has changed. Does not block: a
/// monitor that does not read its channel misses the message.
pub fn configuration_changed(channel: &UnixStream) -> io::Result<()> {
    let bytes = header(BackendReq::CONFIG_CHANGE_MSG.into(), VERSION, 0);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::send(channel.as_fd(), &bytes, flags).map(drop)?)
}

fn header(request: u32, flags: u32, length: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let words = [request, flags, length as u32].map(u32::to_ne_bytes);
    bytes.copy_from_slice(words.as_flattened());
    bytes
}
