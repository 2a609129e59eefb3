//! Sparse memory shared by all shards, with the data of the RAM and the paced device.
//!
//! **Model.** One private anonymous mapping. The first write to a page allocates its memory. A read
//! of a page that was never written maps the kernel's zero page and costs no memory (on a memfd it
//! would: a read fault there allocates). A page that was freed with `MADV_DONTNEED` reads as zeroes
//! again. A bitmap marks the pages that have been written. The store requests huge pages, since
//! random 4 KiB copies otherwise spend a third of their time on translating addresses; if the
//! kernel grants them, memory is allocated 2 MiB at a time.
//!
//! **Races.** Shards copy without a lock. Requests that overlap in time and range leave a mix of
//! their bytes, as on a disk; a request never changes bytes next to its range, whatever its
//! alignment. In Rust such overlap of plain copies is a data race, so the copies are not plain: on
//! x86-64 they are `rep movsb`, which is opaque to the compiler and acts as bytewise relaxed
//! atomics; elsewhere they are relaxed atomics, byte by byte and slower. No reference into the
//! mapping is ever made.
//!
//! The bit of a page is set *after* its bytes were copied, and cleared *before* the page is freed.
//! If a copy races with freeing, bytes that survive were copied after the bit was cleared, so their
//! bit survives as well. So a page with data is never reported as a hole once its write has
//! completed; the reverse (a set bit over zeroes) is harmless.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairq_core::Op;

use crate::device::{Command, Extent};
use crate::io::area::{Area, Piece, Span, SpanReader};
use crate::io::memory::Memory;

/// The granularity of holes, in bytes.
const PAGE: u64 = 4096;
const BITS: u64 = usize::BITS as u64;
/// The most bytes that one query of extents covers: reading their bitmap takes some 100 us.
const EXTENTS_AT_ONCE: u64 = 64 << 30;

/// Bytes that are copied at a time for the next program.
const PART: usize = 1 << 20;

/// Sparse shared memory of a fixed size.
pub(crate) struct Store {
    base: NonNull<u8>,
    mapped: usize,
    size: u64,
    /// One bit for each page that may hold data.
    present: Box<[AtomicUsize]>,
}

// SAFETY: the mapping lives as long as the store, and the module's text explains why concurrent
// access to its bytes is sound.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Store {
    /// Maps a store of `size` bytes that reads as zeroes.
    pub(crate) fn map(size: u64) -> io::Result<Store> {
        let too_big = || io::Error::from_raw_os_error(libc::ENOMEM);
        let mapped = size.max(1).checked_next_multiple_of(PAGE).ok_or_else(too_big)?;
        let mapped = isize::try_from(mapped).map_err(|_| too_big())? as usize;
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice replaces no
        // other mapping.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
            )
        }?;
        // SAFETY: the call is advice on this mapping and changes no contents. Without huge pages
        // the store is only slower.
        let _ = unsafe { rustix::mm::madvise(base, mapped, rustix::mm::Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address 0");
        // Allocated as zeroed memory, so that the bitmap of a huge store costs nothing until it is
        // used.
        let words = vec![0usize; (mapped as u64 / PAGE).div_ceil(BITS) as usize].into_boxed_slice();
        // SAFETY: an AtomicUsize has the size, alignment and bit validity of a usize, and the whole
        // box is converted.
        let present = unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicUsize]) };
        Ok(Store { base, mapped, size, present })
    }

    /// Carries out a command and returns its errno, or 0.
    ///
    /// # Safety
    /// The command's memory must be valid for its length and used by no other code during the call.
    pub(crate) unsafe fn execute(&self, command: &Command) -> i32 {
        let (offset, length) = (command.offset, u64::from(command.length));
        if command.op == Op::Flush {
            return 0;
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            return libc::EINVAL;
        }
        let memory = command.memory;
        debug_assert!(command.fits(&[]));
        // SAFETY: the range was just found to be inside the mapping, since size <= mapped.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        match command.op {
            // SAFETY: the caller guarantees that its memory is valid, and the range check above
            // that the mapping is; the two do not overlap.
            Op::Read => unsafe { copy(at, memory.address, command.length as usize) },
            Op::Write => {
                // SAFETY: as for reads.
                unsafe { copy(memory.address, at, command.length as usize) };
                self.mark(offset, length);
            }
            Op::Discard => self.zero(offset, length, false),
            Op::WriteZeroes => self.zero(offset, length, command.no_hole),
            Op::Flush => {}
        }
        0
    }

    /// Carries out a command whose data may be in several stretches of memory; returns the errno of
    /// the first stretch that fails, or 0.
    ///
    /// # Safety
    /// As for [`Self::execute`], for each of the stretches.
    #[inline]
    pub(crate) unsafe fn execute_all(&self, command: &Command, rest: &[Memory]) -> i32 {
        if rest.is_empty() {
            // SAFETY: the caller's guarantee for the memory holds here.
            return unsafe { self.execute(command) };
        }
        let mut offset = command.offset;
        for memory in command.stretches(rest) {
            let part = Command { offset, length: memory.length, memory, ..*command };
            // SAFETY: the caller's guarantee for the memory holds here.
            let errno = unsafe { self.execute(&part) };
            if errno != 0 {
                return errno;
            }
            offset += u64::from(memory.length);
        }
        0
    }

    /// Makes a range inside the store read as zeroes; with `keep`, [`Store::extents`] reports it as
    /// allocated.
    fn zero(&self, offset: u64, length: u64, keep: bool) {
        let end = offset + length;
        let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first >= last {
            self.fill(offset, length);
            return;
        }
        self.fill(offset, first - offset);
        self.fill(last, end - last);
        self.clear(first / PAGE, last / PAGE);
        // SAFETY: whole pages inside the mapping; their bytes are to become zero.
        let given_back = unsafe {
            let address = self.base.as_ptr().add(first as usize);
            rustix::mm::madvise(
                address.cast(),
                (last - first) as usize,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        if given_back.is_err() {
            self.fill(first, last - first);
        }
        if keep {
            self.mark(first, last - first);
        }
    }

    /// Overwrites bytes inside the store with zeroes. Pages never written are skipped: they are
    /// zero.
    fn fill(&self, offset: u64, length: u64) {
        let mut at = offset;
        while at < offset + length {
            let until = (at / PAGE * PAGE + PAGE).min(offset + length);
            if self.word(at / PAGE).0.load(Ordering::Acquire) & self.word(at / PAGE).1 != 0 {
                // SAFETY: callers stay inside the store.
                unsafe { clear(self.base.as_ptr().add(at as usize), (until - at) as usize) };
            }
            at = until;
        }
    }

    /// Marks the pages of a range as holding data.
    fn mark(&self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        self.for_each_word(offset / PAGE, (offset + length).div_ceil(PAGE), |word, mask| {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::AcqRel);
            }
        });
    }

    /// Marks the pages `first..last` as holding no data.
    fn clear(&self, first: u64, last: u64) {
        self.for_each_word(first, last, |word, mask| {
            if word.load(Ordering::Relaxed) & mask != 0 {
                word.fetch_and(!mask, Ordering::AcqRel);
            }
        });
    }

    /// Calls `act` for each word of the bitmap that has bits of the pages `first..last`, with a
    /// mask of these bits.
    #[inline]
    fn for_each_word(&self, first: u64, last: u64, act: impl Fn(&AtomicUsize, usize)) {
        let mut page = first;
        while page < last {
            let until = (page / BITS * BITS + BITS).min(last);
            act(self.word(page).0, usize::MAX >> (BITS - (until - page)) << (page % BITS));
            page = until;
        }
    }

    /// Bytes of pages that may hold data.
    pub(crate) fn used(&self) -> u64 {
        let pages = |word: &AtomicUsize| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.present.iter().map(pages).sum::<u64>() * PAGE
    }

    /// Writes the data to `area` for the next program in this process; returns the parts, each with
    /// its start in bytes. No command may be in flight.
    pub(crate) fn leave(&self, area: &Area) -> io::Result<Vec<(u64, Span)>> {
        let (mut parts, mut at) = (Vec::new(), 0);
        let mut bytes = vec![0; PART];
        while at < self.size {
            let (is_present, page) = self.run(at / PAGE, self.size.div_ceil(PAGE));
            let until = (page * PAGE).min(self.size);
            while is_present && at < until {
                let length = (until - at).min(PART as u64) as usize;
                // SAFETY: the range is inside the mapping, and the buffer is long enough.
                unsafe {
                    copy(self.base.as_ptr().add(at as usize), bytes.as_mut_ptr(), length);
                }
                parts.push((at, area.add(&[Piece::Bytes(bytes[..length].into())])?));
                at += length as u64;
            }
            at = until;
        }
        Ok(parts)
    }

    /// Reads one of the parts that [`Self::leave`] has written.
    pub(crate) fn take(&self, at: u64, mut part: SpanReader) -> io::Result<()> {
        let (mut at, mut bytes) = (at, vec![0; PART]);
        while !part.is_empty() {
            let length = part.read(&mut bytes)?;
            let end = at.checked_add(length as u64).filter(|&end| end <= self.size);
            end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
            // SAFETY: the range was just found to be inside the mapping.
            unsafe { copy(bytes.as_ptr(), self.base.as_ptr().add(at as usize), length) };
            self.mark(at, length as u64);
            at += length as u64;
        }
        Ok(())
    }

    fn word(&self, page: u64) -> (&AtomicUsize, usize) {
        (&self.present[(page / BITS) as usize], 1 << (page % BITS))
    }

    /// Allocates memory for the pages of a range inside the store; they are still reported as holes
    /// and read as zeroes.
    pub(crate) fn take_memory(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size);
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let first = offset / PAGE * PAGE;
        // SAFETY: these are whole pages inside the mapping, since its size is rounded up to pages;
        // their contents do not change.
        unsafe {
            let address = self.base.as_ptr().add(first as usize);
            let length = (end.next_multiple_of(PAGE) - first) as usize;
            rustix::mm::madvise(address.cast(), length, rustix::mm::Advice::LinuxPopulateWrite)?;
        }
        Ok(())
    }

    /// Holes and data of a range inside the store; see [`crate::device::Device::extents`].
    pub(crate) fn extents(&self, offset: u64, length: u64, most: usize) -> io::Result<Vec<Extent>> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size);
        let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let end = end.min(offset.saturating_add(EXTENTS_AT_ONCE));
        let mut extents = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < most.max(1) {
            let (is_present, page) = self.run(at / PAGE, end.div_ceil(PAGE));
            let until = (page * PAGE).min(end);
            extents.push(Extent { length: until - at, is_hole: !is_present });
            at = until;
        }
        Ok(extents)
    }

    /// Whether a page may hold data, and the first later page for which that differs, at most
    /// `end`.
    fn run(&self, page: u64, end: u64) -> (bool, u64) {
        let first = self.word(page);
        let is_present = first.0.load(Ordering::Acquire) & first.1 != 0;
        let mut at = page;
        while at < end {
            let shift = at % BITS;
            let word = self.word(at).0.load(Ordering::Acquire) >> shift;
            let same = if is_present { word.trailing_ones() } else { word.trailing_zeros() };
            let same = u64::from(same).min(BITS - shift);
            at += same;
            if same < BITS - shift {
                break;
            }
        }
        // For a page that is cleared between the two reads, the first read counts.
        (is_present, at.clamp(page + 1, end.max(page + 1)))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the mapping is this store's own, and no reference to it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Copies bytes that other threads may copy to or from at the same time.
///
/// # Safety
/// Both ranges must be valid for `length` bytes and not overlap.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: reads and writes just the two ranges; the direction flag is clear by the calling
    // convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Zeroes bytes that other threads may copy to or from at the same time.
///
/// # Safety
/// The range must be valid for `length` bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn clear(to: *mut u8, length: usize) {
    // SAFETY: writes just the range; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") length => _, inout("rdi") to => _, in("al") 0u8,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
use portable::clear;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use portable::copy;

/// Copying and zeroing on other processors.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// See the x86-64 version.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
        for index in 0..length {
            // SAFETY: the caller vouches for both ranges; all access to shared bytes is atomic.
            unsafe {
                let byte = AtomicU8::from_ptr(from.cast_mut().add(index)).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(index)).store(byte, Ordering::Relaxed);
            }
        }
    }

    /// See the x86-64 version.
    pub(super) unsafe fn clear(to: *mut u8, length: usize) {
        for index in 0..length {
            // SAFETY: the caller vouches for the range; all access to shared bytes is atomic.
            unsafe { AtomicU8::from_ptr(to.add(index)) }.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(store: &Store, offset: u64, length: u64) -> Vec<(u64, bool)> {
        store
            .extents(offset, length, 100)
            .unwrap()
            .iter()
            .map(|extent| (extent.length, extent.is_hole))
            .collect()
    }

    #[test]
    fn memory_that_is_taken_stays_a_hole_and_is_there() {
        let store = Store::map(1 << 20).unwrap();
        store.take_memory(5000, 100_000).unwrap();
        assert_eq!(extents(&store, 0, 1 << 20), [(1 << 20, true)]);
        let mut resident = [0u8; 256];
        // SAFETY: the range is the store's mapping, and there is a byte for each of its pages.
        let told =
            unsafe { libc::mincore(store.base.as_ptr().cast(), 1 << 20, resident.as_mut_ptr()) };
        assert_eq!(told, 0);
        assert!(resident[1..=25].iter().all(|page| page & 1 == 1), "{resident:?}");
        assert_eq!(store.take_memory(1 << 20, 1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(store.take_memory(u64::MAX, 2).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn extents_follow_writes_and_zeroes() {
        let store = Store::map(300 * PAGE + 10).unwrap();
        assert_eq!(extents(&store, 0, store.size), [(300 * PAGE + 10, true)]);
        store.mark(PAGE + 5, 1);
        store.mark(60 * PAGE, 200 * PAGE);
        let all = [
            (PAGE, true),
            (PAGE, false),
            (58 * PAGE, true),
            (200 * PAGE, false),
            (40 * PAGE + 10, true),
        ];
        assert_eq!(extents(&store, 0, store.size), all);
        assert_eq!(extents(&store, PAGE + 7, PAGE), [(PAGE - 7, false), (7, true)]);
        assert_eq!(store.extents(0, store.size, 2).unwrap().len(), 2);
        store.zero(64 * PAGE + 1, 127 * PAGE - 1, false);
        assert_eq!(
            extents(&store, 60 * PAGE, 200 * PAGE),
            [(5 * PAGE, false), (126 * PAGE, true), (69 * PAGE, false)]
        );
        store.zero(0, PAGE * 2, true);
        assert_eq!(extents(&store, 0, PAGE * 3), [(2 * PAGE, false), (PAGE, true)]);
        assert!(store.extents(1, store.size, 1).is_err());
    }

    #[test]
    fn a_huge_store_costs_nothing_until_it_is_used() {
        let store = Store::map(1 << 42).unwrap();
        assert_eq!(extents(&store, 0, 1 << 30), [(1 << 30, true)]);
        store.mark((1 << 42) - 1, 1);
        assert_eq!(
            extents(&store, (1 << 42) - 3 * PAGE, 3 * PAGE),
            [(2 * PAGE, true), (PAGE, false)]
        );
        assert!(Store::map(u64::MAX).is_err());
    }

    #[test]
    fn the_portable_copies_copy() {
        let from: Vec<u8> = (0..=255).collect();
        let mut to = vec![7; 258];
        // SAFETY: both vectors are long enough.
        unsafe { portable::copy(from.as_ptr(), to.as_mut_ptr().add(1), 256) };
        assert_eq!((to[0], &to[1..257], to[257]), (7, &from[..], 7));
        // SAFETY: as above.
        unsafe { portable::clear(to.as_mut_ptr().add(1), 256) };
        assert_eq!((to[0], to[1..257].iter().max(), to[257]), (7, Some(&0), 7));
    }
}
