//! The bus between this process and its controller: which addresses mean which memory.
//!
//! ```text
//!   0x1_0000_0000 …            the queues, the admin data and the ranges of discards: mapped once
//!   1 << 63 | window << 32 …   the data of one command on its way: a window for each command identifier
//! ```
//!
//! A window is set before its command's doorbell is rung (release) and read after the controller
//! has seen the doorbell (acquire), so relaxed accesses are enough here. It states the length of
//! the memory, so no entry can lead to an access outside it.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::device::nvme::dma::{Dma, Flat};
use crate::io::memory::Memory;

const FIXED: u64 = 1 << 32;
const WINDOWS: u64 = 1 << 63;
const NOT_FIXED: u32 = u32::MAX;

/// See the [module's text](self).
pub(super) struct Bus {
    flat: Flat,
    windows: Box<[Window]>,
}

struct Window {
    address: AtomicPtr<u8>,
    length: AtomicU32,
    fixed: AtomicU32,
}

impl Bus {
    /// With `length` bytes that are mapped for good, and so many windows.
    pub(super) fn map(length: usize, windows: usize) -> io::Result<Bus> {
        let window = |_| Window {
            address: AtomicPtr::new(std::ptr::null_mut()),
            length: AtomicU32::new(0),
            fixed: AtomicU32::new(NOT_FIXED),
        };
        Ok(Bus { flat: Flat::map(FIXED, length)?, windows: (0..windows).map(window).collect() })
    }

    /// The bus address of an offset in the part that is mapped for good.
    pub(super) fn fixed(offset: usize) -> u64 {
        FIXED + offset as u64
    }

    /// The memory at such an address.
    pub(super) fn memory(&self, address: u64, length: usize) -> NonNull<u8> {
        self.flat.at(address, length).expect("the layout fits the mapping")
    }

    /// Opens a window on a command's memory, and gives its bus address.
    #[inline]
    pub(super) fn open(&self, window: usize, memory: Memory) -> u64 {
        let slot = &self.windows[window];
        slot.address.store(memory.address, Ordering::Relaxed);
        slot.length.store(memory.length, Ordering::Relaxed);
        slot.fixed.store(memory.fixed.unwrap_or(NOT_FIXED), Ordering::Relaxed);
        WINDOWS | (window as u64) << 32
    }
}

// SAFETY: the flat part lives as long as the controller. A window shows the memory of a command on
// its way, which whoever issued it keeps valid and untouched until it has reaped the completion.
unsafe impl Dma for Bus {
    #[inline]
    fn resolve(&self, address: u64, length: u32) -> Option<Memory> {
        if address & WINDOWS == 0 {
            return self.flat.resolve(address, length);
        }
        let slot = self.windows.get((address & !WINDOWS) as usize >> 32)?;
        let offset = address as u32;
        if offset.checked_add(length)? > slot.length.load(Ordering::Relaxed) {
            return None;
        }
        let fixed = slot.fixed.load(Ordering::Relaxed);
        // SAFETY: the window is open on that much memory.
        let address = unsafe { slot.address.load(Ordering::Relaxed).add(offset as usize) };
        Some(Memory { address, length, fixed: (fixed != NOT_FIXED).then_some(fixed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_shows_its_memory_and_nothing_else() {
        let bus = Bus::map(4096, 2).unwrap();
        let mut bytes = [0u8; 100];
        let memory = Memory { address: bytes.as_mut_ptr(), length: 100, fixed: Some(3) };
        let at = bus.open(1, memory);
        let seen = bus.resolve(at + 60, 40).unwrap();
        assert_eq!(
            (seen.address, seen.length, seen.fixed),
            (memory.address.wrapping_add(60), 40, Some(3))
        );
        for (address, length) in
            [(at, 101), (at + 61, 40), (at + 0xffff_ffff, 1), (at - 1, 1), (at + (1 << 32), 1)]
        {
            assert!(bus.resolve(address, length).is_none(), "{address:x} {length}");
        }
        assert!(
            bus.resolve(Bus::fixed(4096), 1).is_none()
                && bus.resolve(Bus::fixed(0), 4096).is_some()
        );
        assert!(bus.resolve(0, 1).is_none() && bus.resolve(u64::MAX, 1).is_none());
    }
}
