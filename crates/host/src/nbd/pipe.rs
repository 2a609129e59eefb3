//! How a connection's replies get to its socket without a copy: by a pipe, in which the cache's
//! pages lie as they are.
//!
//! Headers are written into the pipe, data are spliced into it out of the file, in the order of the
//! replies, until it is full or there is no more; then all goes to the socket with one call, many
//! pieces to a message of the socket's. Nothing here waits: for the file because the one who asks
//! knows that the data are in the cache, for the pipe because it is filled only when it is empty,
//! and for the socket because it is put into the other mode for that one call (the ring needs it to
//! be one that waits).
//!
//! A splice to a socket whose other end is gone raises `SIGPIPE`, which nothing but the process can
//! prevent: Rust's programs ignore it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

use crate::device::file::Source;
use crate::memory::PAGE;

/// Bytes of a pipe, in pages; one page for each piece, however short. The system allows a user
/// 16384 in all.
const BYTES: usize = 64 * PAGE;
/// With fewer pieces at a time it is not worth it.
const PIECES_MIN: usize = 4;
/// The longest piece that is copied into the pipe: a header.
pub(super) const INLINE: usize = 64;

/// The pipe of one connection.
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// How many pieces it holds at most, and how many more there is room for.
    pieces: usize,
    room: usize,
    /// Bytes in it.
    bytes: usize,
}

impl Pipe {
    pub(super) fn new() -> io::Result<Pipe> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Refused to a user who has many pipes; then it may be small.
        let _ = rustix::pipe::fcntl_setpipe_size(&write, BYTES);
        let pieces = rustix::pipe::fcntl_getpipe_size(&write)? / PAGE;
        if pieces < PIECES_MIN {
            return Err(io::Error::other("pipes are too small for this user"));
        }
        Ok(Pipe { read, write, pieces, room: pieces, bytes: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Puts a short piece into the pipe, for which there is room.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len() <= INLINE && self.room > 0);
        // As short as that it is written whole.
        let count = rustix::io::write(&self.write, bytes)?;
        debug_assert_eq!(count, bytes.len());
        self.room -= 1;
        self.bytes += count;
        Ok(())
    }

    /// Puts as much of a range of the file into the pipe as there is room for; how much that was. 0
    /// if the file ends there.
    pub(super) fn splice(
        &mut self,
        source: &Source,
        offset: u64,
        length: usize,
    ) -> io::Result<usize> {
        let within = (offset % PAGE as u64) as usize;
        let length = length.min(self.room * PAGE - within);
        let mut at = offset;
        let count = rustix::pipe::splice(
            source,
            Some(&mut at),
            &self.write,
            None,
            length,
            SpliceFlags::empty(),
        )?;
        self.room -= (within + count).div_ceil(PAGE);
        self.bytes += count;
        Ok(count)
    }

    /// Gives the socket what it takes; true if that is all.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        rustix::fs::fcntl_setfl(socket, OFlags::RDWR | OFlags::NONBLOCK)?;
        let result = self.send_at_once(socket);
        rustix::fs::fcntl_setfl(socket, OFlags::RDWR)?;
        result
    }

    fn send_at_once(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while self.bytes > 0 {
            match rustix::pipe::splice(
                &self.read,
                None,
                socket.as_fd(),
                None,
                self.bytes,
                SpliceFlags::empty(),
            ) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.bytes -= count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.room = self.pieces;
        Ok(true)
    }
}
