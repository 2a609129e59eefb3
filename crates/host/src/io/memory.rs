//! Buffers: page-aligned memory, mapped once, bounded, allocated in pieces.
//!
//! Each connection (or in-process job) has one [`Region`], so that it can exhaust only its own
//! memory. A region is address space. Its pages are allocated at their first use, within a
//! [`Budget`] if it has one, and freed when the region is dropped or by
//! [`give_back`](Region::give_back). Its first part is registered with the ring if the device
//! benefits: direct I/O then does not pin pages for every request.
//!
//! **Large pages** ([`Region::prefer_large_pages`]) are for memory that the device itself reads and
//! writes. The device receives the address of each physically contiguous range: 256 of them for 1
//! MiB in small pages. A disk bounds their number in one command, and the kernel merges adjacent
//! requests only up to that bound. With a large page the kernel also pins and maps one page instead
//! of 512. Other memory stays in small pages, because otherwise a client with few requests would
//! hold 2 MiB.
//!
//! **Ownership.** A [`Buffer`] belongs to its holder and is returned with [`Region::free`]. While a
//! device command or a socket operation references it, the kernel or the device owns the bytes: the
//! holder neither accesses nor frees it until the completion has been taken. Shards share no
//! regions.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use offset_allocator::{Allocation, Allocator};

use crate::io::budget::Budget;

/// The unit of allocation and the alignment of every buffer: 4 KiB, enough for direct I/O anywhere.
pub const PAGE: usize = 4096;
/// Bytes that are taken from a budget at a time.
const STEP: usize = 64 * PAGE;
/// The number of freed single pages that are kept for the next requests.
const PAGES_KEPT: usize = 64;

/// Allocations of the heap of at least this size, in bytes, go back to the system when they are
/// freed.
#[cfg(target_env = "gnu")]
const LARGE_PIECE: libc::c_int = 128 << 10;

/// Makes the heap return large allocations to the system as soon as they are freed. By default the
/// C library does so only at first: after the first such free it keeps freed blocks up to that size
/// between smaller allocations, so the memory of a hundred connections would stay with the process.
pub fn give_back_large_pieces() {
    // SAFETY: the call sets a number that the C library reads when it allocates or frees memory; it
    // may be called while other threads do so.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_PIECE);
    }
}

/// A region of buffers of one owner.
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    /// The index of the buffer that is registered with the ring, and its length in bytes from the
    /// region's start.
    fixed: Option<(u32, usize)>,
    allocator: Allocator,
    /// Freed single pages; the last one freed is reused first. Most requests need one page, and
    /// taking it from the allocator takes several times as long.
    pages: Vec<Allocation>,
    pages_in_use: u32,
    /// The budget, and the tenant whose part of it this region uses.
    budget: Option<(Arc<Budget>, u16)>,
    /// The length in bytes, from the start, that may be allocated; it is charged to the budget.
    touched: usize,
    /// Whether its only buffer in use exceeds the budget.
    is_overdrawn: bool,
}

// SAFETY: the region owns its mapping; moving the owner to another thread moves that ownership.
unsafe impl Send for Region {}

/// A piece of a region. It is not `Clone`, so it has one holder.
pub struct Buffer {
    memory: Memory,
    allocation: Allocation,
}

// SAFETY: a buffer is exclusive access to its bytes, as a `Box` is.
unsafe impl Send for Buffer {}

/// The address of a buffer, for a device command or a socket operation.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The address of the first byte.
    pub address: *mut u8,
    /// The number of bytes that may be used.
    pub length: u32,
    /// Index of the registered buffer that covers it, if any.
    pub fixed: Option<u32>,
}

// SAFETY: this is an address and a length; the unsafe code that uses them has to justify each
// access.
unsafe impl Send for Memory {}

impl Memory {
    /// No memory; used by commands without data.
    pub const NONE: Memory = Memory { address: std::ptr::null_mut(), length: 0, fixed: None };
}

impl Region {
    /// Maps a region of `length` bytes, rounded up to pages.
    pub fn map(length: usize) -> io::Result<Region> {
        let length = length.next_multiple_of(PAGE).max(PAGE);
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice replaces no
        // other mapping.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast()).expect("a mapping is never at address 0");
        let pages = (length / PAGE) as u32;
        Ok(Region {
            base,
            length,
            fixed: None,
            // One node for each page, one for the rest, and one that the allocator never uses.
            allocator: Allocator::with_max_allocs(pages, pages + 2),
            pages: Vec::with_capacity(PAGES_KEPT),
            pages_in_use: 0,
            budget: None,
            touched: 0,
            is_overdrawn: false,
        })
    }

    /// Maps a region whose memory is bounded by the budget of a tenant.
    pub fn within(length: usize, budget: Arc<Budget>, tenant: u16) -> io::Result<Region> {
        let mut region = Region::map(length)?;
        region.budget = Some((budget, tenant));
        Ok(region)
    }

    /// Takes the first `length` bytes from the budget; false if the budget has too few.
    pub fn reserve(&mut self, length: usize) -> bool {
        length <= self.touched || self.grow(length)
    }

    /// Takes the bytes up to `end` from the budget; false if the budget has too few.
    fn grow(&mut self, end: usize) -> bool {
        let end = end.next_multiple_of(STEP).min(self.length);
        let bytes = (end - self.touched) as u64;
        let is_allowed =
            self.budget.as_ref().is_none_or(|(budget, tenant)| budget.take(*tenant, bytes));
        if is_allowed {
            self.touched = end;
        }
        is_allowed
    }

    /// Requests large pages for memory from now on. The region also works if the kernel has none.
    pub fn prefer_large_pages(&mut self) {
        // SAFETY: the mapping is this region's own, and the size of its pages changes no byte of
        // it.
        let advised = unsafe {
            rustix::mm::madvise(
                self.base.as_ptr().cast(),
                self.length,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "no large pages");
        }
    }

    /// The first byte and the size of the part to register: at most `most` bytes.
    pub fn head(&self, most: usize) -> (*mut u8, usize) {
        (self.base.as_ptr(), self.length.min(most))
    }

    /// Records that the first `length` bytes are registered as buffer `index`.
    pub fn set_fixed(&mut self, index: u32, length: usize) {
        self.fixed = Some((index, length));
    }

    /// A buffer of `length` bytes on a page boundary, or `None` while the region or the budget has
    /// too little memory.
    pub fn allocate(&mut self, length: u32) -> Option<Buffer> {
        if self.is_overdrawn {
            return None;
        }
        let pages = (length as usize).div_ceil(PAGE).max(1) as u32;
        let kept = if pages == 1 { self.pages.pop() } else { None };
        let allocation = kept.or_else(|| self.allocator.allocate(pages)).or_else(|| {
            // The freed single pages may form a large enough buffer with their neighbours.
            self.pages.drain(..).for_each(|page| self.allocator.free(page));
            self.allocator.allocate(pages)
        })?;
        let offset = allocation.offset as usize * PAGE;
        let end = offset + pages as usize * PAGE;
        if end > self.touched && !self.grow(end) {
            let is_only = self.pages_in_use == 0;
            self.is_overdrawn = is_only && self.ask(Budget::overdraw);
            if !self.is_overdrawn {
                self.allocator.free(allocation);
                return None;
            }
        }
        self.pages_in_use += pages;
        // SAFETY: the allocator gives offsets inside the mapping.
        let address = unsafe { self.base.as_ptr().add(offset) };
        let fixed = self.fixed.filter(|&(_, covered)| end <= covered).map(|(index, _)| index);
        Some(Buffer { memory: Memory { address, length, fixed }, allocation })
    }

    /// Takes a buffer of this region back.
    pub fn free(&mut self, buffer: Buffer) {
        let pages = (buffer.memory.length as usize).div_ceil(PAGE).max(1) as u32;
        self.pages_in_use -= pages;
        if pages == 1 && self.pages.len() < PAGES_KEPT {
            self.pages.push(buffer.allocation);
        } else {
            self.allocator.free(buffer.allocation);
        }
        if self.is_unused() && (self.is_overdrawn || self.ask(Budget::is_short)) {
            self.give_back();
        }
    }

    /// Returns all memory except the registered part to the system; no buffer may be in use.
    /// Returns an upper bound of the bytes that this freed.
    pub fn give_back(&mut self) -> usize {
        debug_assert!(self.is_unused());
        let kept = self.fixed.map_or(0, |(_, length)| length);
        // Memory beyond the budget may lie anywhere.
        let end = if self.is_overdrawn { self.length } else { self.touched };
        if end <= kept {
            return 0;
        }
        // SAFETY: the pages are this region's own. No buffer is in use, so no operation references
        // them, and the kernel pins none of them, as they are not registered.
        let advised = unsafe {
            let first = self.base.as_ptr().add(kept);
            rustix::mm::madvise(first.cast(), end - kept, rustix::mm::Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "memory is not given back");
        }
        self.settle(kept);
        end - kept
    }

    /// Calls a function of the region's budget; false if the region has no budget.
    fn ask(&self, question: impl FnOnce(&Budget, u16) -> bool) -> bool {
        self.budget.as_ref().is_some_and(|(budget, tenant)| question(budget, *tenant))
    }

    /// Returns all bytes except the first `kept` ones to the budget.
    fn settle(&mut self, kept: usize) {
        let given = self.touched.saturating_sub(kept);
        self.touched -= given;
        let is_overdrawn = std::mem::take(&mut self.is_overdrawn);
        if let Some((budget, tenant)) = &self.budget {
            budget.give(*tenant, given as u64);
            if is_overdrawn {
                budget.settle(*tenant);
            }
        }
    }

    /// Whether no buffer is in use.
    pub fn is_unused(&self) -> bool {
        self.pages_in_use == 0
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.is_unused() {
            // The kernel or a device may still write there: leaked memory is better than unmapped
            // memory.
            debug_assert!(
                std::thread::panicking(),
                "a region is dropped while {} pages are out",
                self.pages_in_use
            );
            return;
        }
        // SAFETY: the mapping is this region's own, and no buffer of it is in use.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
        self.settle(0);
    }
}

impl Buffer {
    /// Address, length and registration, for an operation.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Address, length and registration of a part, for an operation.
    pub fn memory_of(&self, part: &Range<u32>) -> Memory {
        assert!(part.start <= part.end && part.end <= self.memory.length, "a part of the buffer");
        let address = self.memory.address.wrapping_add(part.start as usize);
        Memory { address, length: part.end - part.start, fixed: self.memory.fixed }
    }

    /// The bytes. No operation may be writing to the buffer.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as for `part_mut`, of the whole buffer.
        unsafe { std::slice::from_raw_parts(self.memory.address, self.memory.length as usize) }
    }

    /// The bytes. No operation may be using the buffer.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part_mut(0..self.memory.length)
    }

    /// Some of the bytes. No operation may be using them.
    pub fn part_mut(&mut self, part: Range<u32>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.memory.length, "a part of the buffer");
        // SAFETY: the part is inside the buffer, as checked above. The holder of the buffer has
        // exclusive access to these mapped bytes while no operation names them, which is the
        // module's rule of ownership; pages not yet used read as zero, so all are initialised.
        unsafe {
            let address = self.memory.address.add(part.start as usize);
            std::slice::from_raw_parts_mut(address, (part.end - part.start) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_bounded_and_everything_can_be_used_again() {
        let mut region = Region::map(16 * PAGE).unwrap();
        let mut buffers: Vec<Buffer> =
            std::iter::from_fn(|| region.allocate(PAGE as u32)).collect();
        assert_eq!(buffers.len(), 16);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.memory().address as usize % PAGE, 0);
            buffer.bytes_mut().fill(index as u8);
        }
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert!(
                buffer.bytes_mut().iter().all(|&byte| byte == index as u8),
                "buffers do not overlap"
            );
        }
        buffers.into_iter().for_each(|buffer| region.free(buffer));
        assert!(region.is_unused());
        let whole = region.allocate(16 * PAGE as u32).expect("freed pages join again");
        region.free(whole);
    }

    /// Pages of a region that are memory.
    fn resident(region: &Region) -> usize {
        let mut pages = vec![0u8; region.length / PAGE];
        // SAFETY: the mapping is there, and there is a byte for each page.
        let told = unsafe {
            libc::mincore(region.base.as_ptr().cast(), region.length, pages.as_mut_ptr())
        };
        assert_eq!(told, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn memory_is_given_back_but_for_what_is_registered() {
        let budget = Arc::new(Budget::new(16 << 20, 1));
        let mut region = Region::within(8 << 20, budget.clone(), 0).unwrap();
        assert!(region.reserve(STEP));
        region.set_fixed(0, STEP);
        let mut buffer = region.allocate(4 << 20).unwrap();
        buffer.bytes_mut().fill(1);
        assert!(budget.used() >= 4 << 20);
        assert!(resident(&region) >= 1024);
        region.free(buffer);
        assert!(region.give_back() >= (4 << 20) - STEP);
        assert_eq!(budget.used(), STEP as u64);
        assert!(resident(&region) <= STEP / PAGE);
        let buffer = region.allocate(6 << 20).unwrap();
        assert!(buffer.bytes()[6 << 19..].iter().all(|&byte| byte == 0));
        region.free(buffer);
        drop(region);
        assert_eq!(budget.used(), 0);
    }

    /// A tenant may use half of the budget, and one request more; its next request waits, and other
    /// tenants do not.
    #[test]
    fn the_budget_is_kept_but_for_one_request() {
        let budget = Arc::new(Budget::new(2 << 20, 2));
        let mut regions =
            [0, 0, 0, 1, 1].map(|tenant| Region::within(8 << 20, budget.clone(), tenant).unwrap());
        let first = regions[0].allocate(1 << 20).unwrap();
        assert!(regions[0].allocate(PAGE as u32).is_none(), "it has a buffer out");
        let beyond = regions[1].allocate(4 << 20).expect("one may");
        assert!(regions[1].allocate(PAGE as u32).is_none(), "and has no other one then");
        assert!(regions[2].allocate(PAGE as u32).is_none(), "one of all");
        assert_eq!(budget.used(), 1 << 20);
        let others = regions[3].allocate(1 << 20).expect("it has its half");
        let beyond_that = regions[4].allocate(PAGE as u32).expect("and one request");
        regions[4].free(beyond_that);
        regions[3].free(others);
        regions[1].free(beyond);
        let beyond = regions[2].allocate(PAGE as u32).expect("the next");
        regions[2].free(beyond);
        regions[0].free(first);
        assert_eq!(budget.used(), 0, "memory is short, so nothing is kept");
        let within = regions[2].allocate(1 << 20).unwrap();
        regions[2].free(within);
    }

    #[test]
    fn large_pages_are_asked_for_only_where_they_are_wanted() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            eprintln!("skipped: this kernel has no large pages");
            return;
        }
        let flags = |region: &Region| {
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let (begin, end) =
                (region.base.as_ptr() as usize, region.base.as_ptr() as usize + region.length);
            let mut lines = smaps.lines().skip_while(|line| {
                let mut ends = line.split([' ', '-']).map(|word| usize::from_str_radix(word, 16));
                !matches!((ends.next(), ends.next()), (Some(Ok(from)), Some(Ok(to))) if from <= begin && end <= to)
            });
            lines.find(|line| line.starts_with("VmFlags:")).unwrap().to_owned()
        };
        let mut region = Region::map(8 << 20).unwrap();
        assert!(!flags(&region).contains(" hg"));
        region.prefer_large_pages();
        assert!(flags(&region).contains(" hg"), "{}", flags(&region));
        let mut buffer = region.allocate(3 << 20).unwrap();
        buffer.bytes_mut().fill(7);
        region.free(buffer);
    }

    #[test]
    fn only_buffers_inside_the_registered_part_say_so() {
        let mut region = Region::map(4 * PAGE).unwrap();
        region.set_fixed(7, 2 * PAGE);
        let buffers: Vec<Buffer> = std::iter::from_fn(|| region.allocate(1)).collect();
        assert_eq!(buffers.iter().filter(|buffer| buffer.memory().fixed == Some(7)).count(), 2);
        buffers.into_iter().for_each(|buffer| region.free(buffer));
    }
}
