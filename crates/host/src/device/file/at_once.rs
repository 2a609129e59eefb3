//! Reads and writes through the page cache that are done on the spot, without a thread that may
//! wait.
//!
//! **Problem.** A read that the page cache can answer is a copy of memory, and so are reads and
//! writes of a file system that is in memory. Handing them to another thread costs several times
//! what they take.
//! **Model.** The shard does them itself, if they cannot wait for a device: a read says so to the
//! kernel (`RWF_NOWAIT`) and goes to the store's threads if it would have to wait; a write has no
//! such promise where there is a device behind the cache (`pwritev2` waits for a frozen file system
//! whatever it is told), and is done here on file systems in memory only.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Reads what is in the page cache; `None` if some of it, or all, is not, or cannot be read in this
/// way. A file that is in memory is
/// always read here.
///
/// # Safety
/// The pieces are writable memory that nobody else has.
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
    // Errors are found out once more, and at leisure, by a thread that may wait.
    if result < 0 { None } else { Some(result as i32) }
}

/// Writes, waiting for the device if need be: bytes, or a negative errno.
///
/// # Safety
/// The pieces are readable memory that nobody changes.
pub(super) unsafe fn write(file: &File, pieces: &[libc::iovec], offset: u64, flags: i32) -> i32 {
    let (fd, offset) = (file.as_raw_fd(), offset as i64);
    // SAFETY: the caller vouches for the pieces.
    result(unsafe {
        match pieces {
            // A vector takes the kernel a little longer.
            [one] if flags == 0 => libc::pwrite(fd, one.iov_base, one.iov_len, offset),
            _ => libc::pwritev2(fd, pieces.as_ptr(), pieces.len() as i32, offset, flags),
        }
    })
}

/// What a system call has given: a negative errno if it failed.
pub(super) fn result(returned: isize) -> i32 {
    if returned < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        returned as i32
    }
}
