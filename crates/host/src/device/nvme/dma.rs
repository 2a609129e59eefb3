//! The memory that a controller reaches: addresses of a bus, which are resolved and checked before
//! each access.
//!
//! A driver names memory by bus addresses (in PRP entries, SGL descriptors and Create Queue
//! commands), and what they are is the transport's matter: a guest's physical memory, a window set
//! up by an IOMMU, a table of buffers. The controller resolves each address by a [`Dma`] and
//! accesses only the memory that it returns. So a hostile driver can at worst make it access memory
//! that the driver may access itself. The driver may change memory at any moment: the controller
//! reads each value once, and then checks it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::io::memory::Memory;

/// Memory by bus address.
///
/// # Safety
/// What [`resolve`](Dma::resolve) gives is valid for reads and writes of its whole length: for data
/// until the command that named it has completed, for queues until they are deleted or the
/// controller is reset. No Rust reference to it is live meanwhile.
pub unsafe trait Dma: Send + Sync + 'static {
    /// The bytes `address..address + length`, if the driver has made all of them available, in one
    /// piece.
    fn resolve(&self, address: u64, length: u32) -> Option<Memory>;
}

/// Reads 16 bytes once.
pub(super) fn read_pair(dma: &impl Dma, address: u64) -> Option<[u64; 2]> {
    let memory = dma.resolve(address, 16)?;
    // SAFETY: the memory was resolved for 16 bytes; an array of bytes needs no alignment.
    let bytes = unsafe { memory.address.cast::<[u8; 16]>().read_volatile() };
    let (first, second) = bytes.split_at(8);
    Some(
        [first, second]
            .map(|half| half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))),
    )
}

/// Reads 8 bytes once.
pub(super) fn read_word(dma: &impl Dma, address: u64) -> Option<u64> {
    let memory = dma.resolve(address, 8)?;
    // SAFETY: as in `read_pair`.
    Some(u64::from_le_bytes(unsafe { memory.address.cast::<[u8; 8]>().read_volatile() }))
}

/// The memory of a queue of `length` bytes that begins at a page.
pub(super) fn queue_memory(dma: &impl Dma, address: u64, length: u32) -> Option<NonNull<u64>> {
    let memory = dma.resolve(address, length)?;
    let base = NonNull::new(memory.address.cast::<u64>())?;
    base.is_aligned().then_some(base)
}

/// A piece of zeroed memory at some bus address: what a driver of a controller in the same process
/// has its queues in, and all the memory that a test has.
pub struct Flat {
    bus: u64,
    base: NonNull<u8>,
    length: usize,
    // Keeps the mapping.
    _region: crate::io::memory::Region,
}

// SAFETY: the mapping lives as long as the value; the users argue the order of their accesses.
unsafe impl Send for Flat {}
// SAFETY: as above; sharing the value shares an address and a length.
unsafe impl Sync for Flat {}

impl Flat {
    /// Maps `length` bytes and gives them the bus address `bus`.
    pub fn map(bus: u64, length: usize) -> std::io::Result<Flat> {
        let region = crate::io::memory::Region::map(length)?;
        let (address, length) = region.head(usize::MAX);
        let base = NonNull::new(address).expect("a mapping is never at address 0");
        Ok(Flat { bus, base, length, _region: region })
    }

    /// Where the bytes at a bus address are in this process, if they are here.
    pub fn at(&self, address: u64, length: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(address.checked_sub(self.bus)?).ok()?;
        let end = offset.checked_add(length)?;
        // SAFETY: the offset was just found to be inside the mapping.
        (end <= self.length).then(|| unsafe { self.base.add(offset) })
    }

    /// Writes bytes to a bus address, as far as they are here.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        for (address, &byte) in (address..).zip(bytes) {
            if let Some(at) = self.at(address, 1) {
                // SAFETY: inside the mapping, to which others have no references, only atomic and
                // volatile accesses.
                unsafe { AtomicU8::from_ptr(at.as_ptr()) }.store(byte, Ordering::Relaxed);
            }
        }
    }
}

// SAFETY: the mapping outlives the controller, which holds this value, and its owner makes no
// references into it.
unsafe impl Dma for Flat {
    fn resolve(&self, address: u64, length: u32) -> Option<Memory> {
        let base = self.at(address, length as usize)?;
        Some(Memory { address: base.as_ptr(), length, fixed: None })
    }
}
