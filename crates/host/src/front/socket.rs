//! Sends and receives bytes and files on the socket of a guest's monitor.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The largest number of files of one message.
pub const FILES: usize = 16;

/// Receives at least one byte, unless the stream has ended, and appends the files that were sent
/// with the bytes. Fails if a message has more than `most` files.
pub fn receive(
    stream: &UnixStream,
    bytes: &mut [u8],
    files: &mut Vec<File>,
    most: usize,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds.map(File::from));
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || files.len() > most {
        return Err(io::Error::other(format!("a message has more than {most} files")));
    }
    Ok(received.bytes)
}

/// Sends all bytes, and the files with the first of them.
pub fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other(format!("a message has more than {FILES} files")));
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let part = [IoSlice::new(&bytes[sent..])];
        match sendmsg(stream, &part, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => {
                sent += result?;
                control.clear();
            }
        }
    }
    Ok(())
}

/// Whether a file is an eventfd. Another file could be permanently readable and so keep the shard
/// busy.
pub fn is_eventfd(file: &File) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}
