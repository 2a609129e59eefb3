//! A guest's memory: regions of files that the guest's monitor shares, mapped into this process.
//!
//! **Model.** A [`Guest`] is one generation of the memory: its set of regions between two changes.
//! A change makes a new generation, which shares the remaining regions. Requests hold the
//! generation under which they began, and a region is unmapped when the last generation that has it
//! is dropped. So the device may still use memory that the guest has removed, but never an unmapped
//! address.
//!
//! **Untrusted guests.** The guest may change the bytes at any time, so they are read and written
//! only through raw pointers, by atomics or `copy`. A file may shrink; see [`crate::io::fault`].
//! Only files whose pages are in memory or on a local disk are mapped: a page of a network file
//! system or of a FUSE file system could block the shard forever.
//!
//! **Bounds.** A guest has at most [`REGIONS`] regions and [`BYTES`] of memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::nvme::dma::Dma;
use crate::device::store::copy;
use crate::io::fault::Watched;
use crate::io::memory::{Memory, PAGE};

/// The most regions of a guest.
pub const REGIONS: usize = 128;
/// The most memory of a guest, in bytes: 64 guests fit in half of the address space.
pub const BYTES: u64 = 1 << 40;

/// The types of file systems whose files may be a guest's memory: tmpfs, hugetlbfs, ramfs, ext4,
/// xfs, btrfs.
const FILE_SYSTEMS: [u64; 6] =
    [0x0102_1994, 0x9584_58f6, 0x8584_58f6, 0xef53, 0x5846_5342, 0x9123_683e];

/// A region as the guest's monitor describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The guest's address of the first byte.
    pub guest: u64,
    /// The length in bytes.
    pub size: u64,
    /// The monitor's address of the first byte.
    pub user: u64,
    /// The offset of the region in the file, in bytes.
    pub offset: u64,
}

/// The reason why memory is refused.
#[derive(Debug, Error)]
pub enum MapError {
    /// Too many regions.
    #[error("the guest has more than {REGIONS} regions of memory")]
    TooMany,
    /// Too much memory.
    #[error("the guest has more than {BYTES} bytes of memory")]
    TooLarge,
    /// The description is impossible.
    #[error(
        "the region at {guest:#x} is empty, ends beyond the address space, or overlaps another"
    )]
    Impossible {
        /// The guest's address of the region.
        guest: u64,
    },
    /// The region to remove does not exist.
    #[error("there is no region of {size:#x} bytes at {guest:#x}")]
    Absent {
        /// The guest's address of the region.
        guest: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// The file cannot be a guest's memory.
    #[error("a region's file is too short, or is not a regular file in memory or on a local disk")]
    File,
    /// The kernel has refused.
    #[error("a region cannot be mapped: {0}")]
    Kernel(#[from] io::Error),
}

/// An address that the guest used is not in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{length} bytes at {address:#x} are not in the guest's memory")]
pub struct Outside {
    /// The guest's address.
    pub address: u64,
    /// The number of bytes.
    pub length: u64,
}

/// A mapped region.
struct Region {
    plan: Plan,
    /// The file, which is passed on to the next program in this process.
    file: File,
    /// The first byte.
    address: *mut u8,
    base: *mut u8,
    mapped: usize,
    /// Dropped before the memory is unmapped.
    watched: Option<Watched>,
}

// SAFETY: the mapping stays until the region is dropped, and any thread accesses it only by raw
// copies and atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(plan: Plan, file: File) -> Result<Region, MapError> {
        let (metadata, system) =
            (file.metadata()?, rustix::fs::fstatfs(&file).map_err(io::Error::from)?);
        let end = plan.offset.saturating_add(plan.size);
        let is_fit = metadata.is_file()
            && metadata.len() >= end
            && FILE_SYSTEMS.contains(&(system.f_type as u64 & u64::from(u32::MAX)));
        if !is_fit {
            return Err(MapError::File);
        }
        // Pages of hugetlbfs are as large as its blocks; mappings begin and end at pages.
        let is_huge = system.f_type as u64 & u64::from(u32::MAX) == FILE_SYSTEMS[1];
        let page = if is_huge { system.f_bsize as usize } else { PAGE };
        let first = plan.offset / page as u64 * page as u64;
        let mapped = (end.next_multiple_of(page as u64) - first) as usize;
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other mapping.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file.as_fd(),
                first,
            )
        };
        let base = base.map_err(io::Error::from)?.cast::<u8>();
        let address = base.wrapping_add((plan.offset - first) as usize);
        let mut region = Region { plan, file, address, base, mapped, watched: None };
        // Keeps the guest's memory out of core dumps of the server. SAFETY: the call is advice on
        // this mapping.
        let _ =
            unsafe { rustix::mm::madvise(base.cast(), mapped, rustix::mm::Advice::LinuxDontDump) };
        region.watched = Some(Watched::new(base as usize..base as usize + mapped, page)?);
        Ok(region)
    }

    /// The address of a byte, and the bytes from there to the region's end.
    #[inline]
    fn at(&self, distance: u64) -> Option<(*mut u8, u64)> {
        let rest = self.plan.size.checked_sub(distance).filter(|&rest| rest > 0)?;
        Some((self.address.wrapping_add(distance as usize), rest))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.watched = None;
        // SAFETY: the mapping is this region's own, and no request holds the region any longer.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped) };
    }
}

/// One generation of a guest's memory.
#[derive(Default)]
pub struct Guest {
    /// The regions, sorted by the guest's addresses.
    regions: Vec<Arc<Region>>,
}

impl Guest {
    /// The first generation, with these regions.
    pub fn map(regions: impl IntoIterator<Item = (Plan, File)>) -> Result<Guest, MapError> {
        let mut guest = Guest::default();
        for (plan, file) in regions {
            guest.add(plan, file)?;
        }
        Ok(guest)
    }

    /// The next generation, with one more region.
    pub fn with(&self, plan: Plan, file: File) -> Result<Guest, MapError> {
        let mut guest = Guest { regions: self.regions.clone() };
        guest.add(plan, file)?;
        Ok(guest)
    }

    /// The next generation, without a region.
    pub fn without(&self, plan: &Plan) -> Result<Guest, MapError> {
        let &Plan { guest, size, user, .. } = plan;
        let is_it = |region: &Arc<Region>| {
            (region.plan.guest, region.plan.size, region.plan.user) == (guest, size, user)
        };
        let mut regions = self.regions.clone();
        let place = regions.iter().position(is_it).ok_or(MapError::Absent { guest, size })?;
        regions.remove(place);
        Ok(Guest { regions })
    }

    fn add(&mut self, plan: Plan, file: File) -> Result<(), MapError> {
        if self.regions.len() == REGIONS {
            return Err(MapError::TooMany);
        }
        let ends = [plan.guest, plan.user, plan.offset].map(|start| start.checked_add(plan.size));
        let overlaps = |a: u64, b: u64, size: u64| {
            a < b.saturating_add(size) && b < a.saturating_add(plan.size)
        };
        let meets = |other: &Arc<Region>| {
            let Plan { guest, user, size, .. } = other.plan;
            overlaps(plan.guest, guest, size) || overlaps(plan.user, user, size)
        };
        let ends_early = ends.into_iter().all(|end| end.is_some_and(|end| end < u64::MAX >> 1));
        if plan.size == 0 || !ends_early || self.regions.iter().any(meets) {
            return Err(MapError::Impossible { guest: plan.guest });
        }
        let bytes: u64 = self.regions.iter().map(|region| region.plan.size).sum();
        if bytes.saturating_add(plan.size) > BYTES || plan.offset > BYTES {
            return Err(MapError::TooLarge);
        }
        let place = self.regions.partition_point(|region| region.plan.guest < plan.guest);
        self.regions.insert(place, Arc::new(Region::map(plan, file)?));
        Ok(())
    }

    /// The byte at one of the guest's addresses, and the bytes from there to its region's end.
    #[inline]
    fn find(&self, address: u64) -> Option<(*mut u8, u64)> {
        let place = self.regions.partition_point(|region| region.plan.guest <= address);
        let region = self.regions.get(place.checked_sub(1)?)?;
        region.at(address - region.plan.guest)
    }

    /// The byte at one of the guest's addresses.
    #[inline]
    pub fn at(&self, address: u64) -> Option<*const u8> {
        self.find(address).map(|(pointer, _)| pointer.cast_const())
    }

    /// Appends the memory of a range of the guest's addresses; the range may span regions.
    #[inline]
    pub fn translate(
        &self,
        address: u64,
        length: u32,
        out: &mut Vec<Memory>,
    ) -> Result<(), Outside> {
        let (mut at, mut left) = (address, length);
        while left > 0 {
            let Some((pointer, rest)) = self.find(at) else {
                return Err(Outside { address, length: length.into() });
            };
            let length = rest.min(left.into()) as u32;
            out.push(Memory { address: pointer, length, fixed: None });
            (at, left) = (at + u64::from(length), left - length);
        }
        Ok(())
    }

    /// The memory at one of the guest's addresses; the range must lie in one region.
    #[inline]
    pub fn range(&self, address: u64, length: u64) -> Result<*mut u8, Outside> {
        match self.find(address) {
            Some((pointer, rest)) if length <= rest => Ok(pointer),
            _ => Err(Outside { address, length }),
        }
    }

    /// The memory at one of the monitor's addresses; the range must lie in one region.
    pub fn user(&self, address: u64, length: u64) -> Result<*mut u8, Outside> {
        let found = self.regions.iter().find_map(|region| {
            let (pointer, rest) = region.at(address.checked_sub(region.plan.user)?)?;
            (length <= rest).then_some(pointer)
        });
        found.ok_or(Outside { address, length })
    }

    /// Its regions, with their files.
    pub fn regions(&self) -> impl Iterator<Item = (Plan, RawFd)> {
        self.regions.iter().map(|region| (region.plan, region.file.as_raw_fd()))
    }

    /// Whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Whether an access hit a page that no longer exists, because the guest has shortened a file.
    pub fn is_broken(&self) -> bool {
        let mut watched = self.regions.iter().filter_map(|region| region.watched.as_ref());
        watched.any(Watched::has_faulted)
    }
}

/// A new file in memory, filled with zeroes, whose length cannot be changed.
pub fn sealed(name: &str, length: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file: File = rustix::fs::memfd_create(name, flags)?.into();
    file.set_len(length)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A word of four bytes at one of the guest's addresses.
#[inline]
pub(super) fn word(guest: &Guest, address: u64) -> Result<&AtomicU32, Outside> {
    let at = guest.range(address, 4)?.cast::<u32>();
    if !at.is_aligned() {
        return Err(Outside { address, length: 4 });
    }
    // SAFETY: mapped as long as the generation, and aligned; all access is atomic.
    Ok(unsafe { AtomicU32::from_ptr(at) })
}

/// Reads 16 bytes as two words in the machine's byte order.
///
/// # Safety
/// The 16 bytes must be in a guest's mapped memory.
#[inline]
pub(super) unsafe fn read16(from: *const u8) -> [u64; 2] {
    let mut words = [0u64; 2];
    if from.addr().is_multiple_of(8) {
        let from = from.cast::<u64>().cast_mut();
        // SAFETY: the address is aligned and, as the caller guarantees, mapped. Other code accesses
        // it by atomics, by copies or from outside the process.
        words = unsafe {
            [AtomicU64::from_ptr(from), AtomicU64::from_ptr(from.add(1))]
                .map(|word| word.load(Ordering::Relaxed))
        };
    } else {
        // SAFETY: the caller guarantees that `from` is mapped; `words` is a local variable.
        unsafe { copy(from, words.as_mut_ptr().cast(), 16) };
    }
    words
}

/// Copies bytes of a guest's memory, starting `skip` bytes after its start; returns their number.
///
/// # Safety
/// The memory must be a guest's mapped memory.
pub(super) unsafe fn read(memory: &[Memory], mut skip: u64, out: &mut [u8]) -> usize {
    let mut filled = 0;
    for part in memory {
        if skip >= u64::from(part.length) {
            skip -= u64::from(part.length);
            continue;
        }
        let length = (part.length as usize - skip as usize).min(out.len() - filled);
        let from = part.address.wrapping_add(skip as usize);
        // SAFETY: the caller guarantees that the memory is mapped; the length fits both ranges.
        unsafe { copy(from, out[filled..].as_mut_ptr(), length) };
        (skip, filled) = (0, filled + length);
    }
    filled
}

/// Copies as many bytes as fit to the start of a guest's memory; returns their number.
///
/// # Safety
/// The memory must be a guest's mapped memory.
pub(super) unsafe fn write(memory: &[Memory], bytes: &[u8]) -> usize {
    let mut written = 0;
    for part in memory {
        let length = (part.length as usize).min(bytes.len() - written);
        // SAFETY: the caller guarantees that the memory is mapped; the length fits both ranges.
        unsafe { copy(bytes[written..].as_ptr(), part.address, length) };
        written += length;
    }
    written
}

// SAFETY: an address resolves to memory that stays mapped as long as the generation, and users hold
// the generation until their last access. No Rust reference points into a guest's memory.
unsafe impl Dma for Guest {
    fn resolve(&self, address: u64, length: u32) -> Option<Memory> {
        let address = self.range(address, length.into()).ok()?;
        Some(Memory { address, length, fixed: None })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    /// A file in memory.
    pub(crate) fn file(length: u64) -> File {
        let file: File = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(length).unwrap();
        file
    }

    fn plan(guest: u64, size: u64, offset: u64) -> Plan {
        Plan { guest, size, user: guest + (1 << 40), offset }
    }

    fn lengths(guest: &Guest, address: u64, length: u32) -> Result<Vec<u32>, Outside> {
        let mut parts = Vec::new();
        guest.translate(address, length, &mut parts)?;
        Ok(parts.iter().map(|part| part.length).collect())
    }

    #[test]
    fn a_range_spans_regions_and_never_leaves_them() {
        let shared = file(0x4000);
        let regions = [(0x3000, 0x1000, 0x1000), (0x1000, 0x2000, 0x2000), (0x8000, 0x800, 0x200)];
        let regions = regions
            .map(|(guest, size, offset)| (plan(guest, size, offset), shared.try_clone().unwrap()));
        let guest = Guest::map(regions).unwrap();
        assert_eq!(lengths(&guest, 0x1800, 0x2000), Ok(vec![0x1800, 0x800]));
        assert_eq!(lengths(&guest, 0x87ff, 1), Ok(vec![1]));
        for (address, length) in [(0, 1), (0xfff, 2), (0x87ff, 2), (0x3fff, 2), (u64::MAX, 2)] {
            let outside = Outside { address, length: length.into() };
            assert_eq!(lengths(&guest, address, length), Err(outside));
        }
        // The region at 0x8000 begins in the middle of a page of the file, at 0x200.
        let mut part = Vec::new();
        guest.translate(0x8000, 4, &mut part).unwrap();
        // SAFETY: mapped memory of this test.
        unsafe {
            assert_eq!(write(&part, b"abcdef"), 4);
            let mut back = [0; 6];
            assert_eq!(read(&part, 1, &mut back), 3);
            assert_eq!(&back, b"bcd\0\0\0");
        }
        let user = plan(0x8000, 0, 0).user;
        assert_eq!(guest.user(user, 4).unwrap(), part[0].address);
        assert!(guest.user(user, 0x801).is_err(), "a ring lies in one region");
    }

    #[test]
    fn impossible_memory_is_refused() {
        let shared = file(0x2000);
        let map = |plans: &[Plan]| {
            let files = plans.iter().map(|&plan| (plan, shared.try_clone().unwrap()));
            Guest::map(files).map(|_| ()).unwrap_err()
        };
        let ok = plan(0x1000, 0x1000, 0);
        assert!(matches!(map(&[ok, plan(0x1800, 0x1000, 0)]), MapError::Impossible { .. }));
        assert!(matches!(map(&[plan(0, 0, 0)]), MapError::Impossible { .. }));
        let beyond = Plan { guest: u64::MAX - 10, ..ok };
        assert!(matches!(map(&[beyond]), MapError::Impossible { .. }));
        assert!(matches!(map(&[plan(0, 0x1000, 0x1001)]), MapError::File), "too short a file");
        assert!(matches!(map(&[plan(0, BYTES + 1, 0)]), MapError::TooLarge));
        let device = File::open("/dev/zero").unwrap();
        assert!(matches!(Guest::map([(ok, device)]), Err(MapError::File)));
    }

    #[test]
    fn a_region_stays_mapped_as_long_as_a_generation_has_it() {
        let shared = file(0x2000);
        let (one, two) = (plan(0x1000, 0x1000, 0), plan(0x4000, 0x1000, 0x1000));
        let first = Guest::map([(one, shared.try_clone().unwrap())]).unwrap();
        let second = first.with(two, shared.try_clone().unwrap()).unwrap();
        let third = second.without(&one).unwrap();
        assert!(matches!(third.without(&one), Err(MapError::Absent { .. })));
        let mut parts = Vec::new();
        second.translate(0x1000, 8, &mut parts).unwrap();
        drop((first, third));
        // SAFETY: the second generation still has the region.
        unsafe { assert_eq!(write(&parts, b"kept"), 4) };
        assert!(!second.is_broken());
        shared.set_len(0).unwrap();
        // SAFETY: as above; the lost page is replaced.
        unsafe { assert_eq!(write(&parts, b"lost"), 4) };
        assert!(second.is_broken());
    }
}
