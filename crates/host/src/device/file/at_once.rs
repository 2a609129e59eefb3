//! Reads and writes through the page cache that the shard makes itself, instead of a thread that
//! may block.
//!
//! **Problem.** A read that the page cache can answer is a copy of memory, and so are reads and
//! writes of a file system in memory. Passing them to another thread costs several times their own
//! time. **Model.** The shard makes the calls itself if they cannot block on a device. A read has
//! the flag `RWF_NOWAIT`; if it would block, a thread of the store makes it instead. A write to a
//! file system with a device has no such guarantee (`pwritev2` waits for a frozen file system
//! whatever its flags), so only writes to file systems in memory are made here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Reads from the page cache; returns `None` if part of the range is not in it, or if the file
/// cannot be read in this way. A file in memory is always read here.
///
/// # Safety
/// The pieces are writable memory that no other code uses during the call.
pub(super) unsafe fn read(
    file: &File,
    pieces: &[libc::iovec],
    offset: u64,
    is_in_memory: bool,
) -> Option<i32> {
    let (pointer, count) = (pieces.as_ptr(), pieces.len() as i32);
    let flags = if is_in_memory { 0 } else { libc::RWF_NOWAIT };
    // SAFETY: the caller vouches for the pieces.
    let result = unsafe { libc::preadv2(file.as_raw_fd(), pointer, count, offset as i64, flags) };
    // After an error, a thread that may block repeats the call and receives the same error.
    if result < 0 { None } else { Some(result as i32) }
}

/// Writes, and blocks on the device if necessary; returns the number of bytes, or a negative errno.
///
/// # Safety
/// The pieces are readable memory that no other code changes during the call.
pub(super) unsafe fn write(file: &File, pieces: &[libc::iovec], offset: u64, flags: i32) -> i32 {
    let (fd, offset) = (file.as_raw_fd(), offset as i64);
    // SAFETY: the caller vouches for the pieces.
    result(unsafe {
        match pieces {
            // A plain `pwrite` is slightly cheaper in the kernel than a vectored call.
            [one] if flags == 0 => libc::pwrite(fd, one.iov_base, one.iov_len, offset),
            _ => libc::pwritev2(fd, pieces.as_ptr(), pieces.len() as i32, offset, flags),
        }
    })
}

/// The result of a system call, or a negative errno if it failed.
pub(super) fn result(returned: isize) -> i32 {
    if returned < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        returned as i32
    }
}
