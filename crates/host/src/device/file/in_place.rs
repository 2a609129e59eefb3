//! Reads of which nothing is copied: the data stay in the page cache, and are sent from there.
//!
//! **Problem.** A read through the page cache is copied twice, out of the cache and into the
//! socket, which is most of what a large one costs, and a third of a small one. The kernel can give
//! a socket the cache's pages instead (`splice`), but it waits for those that are not there, and
//! with it everybody on the shard. **Model.** A read that says that its data may stay
//! ([`Command::in_place`](crate::device::Command::in_place)) ends at once if each of its pages can
//! be read without waiting ([`is_ready`]); all others are copied as ever, by way of the ring if
//! they have to be fetched. Whoever sends the data does so from a [`Source`], soon, or asks again
//! before ([`Source::is_cached`]).
//!
//! **What is given away.** A page that was given to a socket is the file's own until the client has
//! taken it from there: it shows what is written meanwhile. For the tenant that is as it should be,
//! as its read is still under way. But nobody may see what *another* tenant writes there later. A
//! range gets another tenant only after it has been zeroed by punching holes (`nbd::wipe`), which
//! takes all whole pages out of the cache, so that what is written next is written to others. Hence
//! only regular files of file systems that can punch holes. A *large* page of the cache is taken
//! out only if the hole covers all of it; [`LARGEST`] is how large they are.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::FallocateFlags;

use crate::device::file::open::Backing;
use crate::memory::PAGE;

/// Bytes of the largest page that the cache may have, which lies at a multiple of it.
pub const LARGEST: u64 = 2 << 20;

/// A file from whose cache data can be sent. As long as there is one the file stays open.
#[derive(Clone)]
pub struct Source(Arc<Backing>);

impl Source {
    pub(super) fn of(backing: Arc<Backing>) -> Source {
        Source(backing)
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Whether data that were ready once still are in the cache. Pages that are being fetched
    /// count: it would have to be at this moment.
    pub fn is_cached(&self, offset: u64, length: u64) -> bool {
        let pages = (offset + length).div_ceil(PAGE as u64) - offset / PAGE as u64;
        cached_pages(&self.0.file, offset, length).is_some_and(|cached| cached >= pages)
    }

    /// Copies data out of the file. Waits if they are not in the cache. What the file has lost at
    /// its end is zeroes.
    pub fn read(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !out.is_empty() {
            match self.0.file.read_at(out, offset) {
                Ok(0) => break,
                Ok(count) => (out, offset) = (&mut out[count..], offset + count as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out.fill(0);
        Ok(())
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// Whether the kernel and the file's system have what it takes.
pub(super) fn is_possible(file: &File, size: u64) -> bool {
    // Behind the end there is nothing to lose. Kernels that tell what is cached (Linux 6.5) give
    // Unix sockets pages, too.
    let beyond = size.next_multiple_of(PAGE as u64);
    // SAFETY: a question about a constant.
    let has_usual_pages = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } == PAGE as i64;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    has_usual_pages
        && rustix::fs::fallocate(file, hole, beyond, PAGE as u64).is_ok()
        && cached_pages(file, 0, 1).is_some()
}

/// Whether all pages of a range can be read without waiting. Two are asked for at a time, by the
/// last byte of one and the first of the next.
pub(super) fn is_ready(file: &File, offset: u64, length: u32) -> bool {
    let end = offset + u64::from(length);
    let mut at = offset;
    while at < end {
        let last = (at / PAGE as u64 + 1) * PAGE as u64 - 1;
        let from = last.min(end - 1);
        let count = (end - from).min(2) as usize;
        let mut bytes = [0u8; 2];
        let piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: the piece is of `bytes`, and no longer.
        let result =
            unsafe { libc::preadv2(file.as_raw_fd(), &piece, 1, from as i64, libc::RWF_NOWAIT) };
        if result != count as isize {
            return false;
        }
        at = last + 1 + PAGE as u64;
    }
    true
}

/// How many pages of a range are in the cache; `None` if the kernel does not tell.
fn cached_pages(file: &File, offset: u64, length: u64) -> Option<u64> {
    /// The same on all architectures, as all system calls of these years are.
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, length];
    let mut counts = [0u64; 5];
    // SAFETY: the range is two, and the counts are five words, as the kernel has them.
    let result = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    (result == 0).then_some(counts[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::file::{Direct, FileDevice, FileSpec};

    const PAGES: u64 = 40;

    #[test]
    fn a_range_is_ready_if_all_its_pages_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // By pages, so that the cache's are small.
        (0..PAGES)
            .for_each(|page| file.as_file().write_all_at(&[7; PAGE], page * PAGE as u64).unwrap());
        let spec = FileSpec { path: file.path().into(), create_size: None };
        let device = FileDevice::open(&[spec], Direct::Off).unwrap();
        let Some(source) = device.source(0) else {
            eprintln!("skipped: this file system or kernel does not give pages");
            return;
        };
        let page = PAGE as u64;
        let ranges = [
            (0, 1),
            (0, PAGES * page),
            (page - 1, 2),
            (5 * page + 17, 20 * page),
            (7 * page, page),
        ];
        for (offset, length) in ranges {
            assert!(is_ready(file.as_file(), offset, length as u32), "{length} at {offset}");
            assert!(source.is_cached(offset, length), "{length} at {offset}");
        }
        assert!(
            !is_ready(file.as_file(), (PAGES - 1) * page, 2 * page as u32),
            "the file ends before"
        );
        assert!(!source.is_cached((PAGES - 1) * page, 2 * page));
        file.as_file().set_len(3 * page).unwrap();
        assert!(is_ready(file.as_file(), 0, 3 * page as u32));
        for lost in 3..10u64 {
            assert!(
                !is_ready(file.as_file(), 0, ((lost + 1) * page) as u32),
                "page {lost} is no more"
            );
            assert!(!source.is_cached(page, lost * page));
        }
    }
}
