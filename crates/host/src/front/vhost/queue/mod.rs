//! Virtqueues: the rings by which a guest passes buffers to the device and receives them back.
//!
//! **Model.** [`Queue::pop`] takes the next chain of descriptors and fills a [`Chain`] with its
//! memory: the parts that the guest wrote for the device, and the parts that the device is to
//! write. [`Queue::push`] adds a used buffer to the ring. [`Queue::publish`] makes all pushed
//! buffers visible at once, and [`Queue::wants_call`] returns whether the guest wants a
//! notification (a call). [`Queue::disable_kicks`] and [`Queue::enable_kicks`] suppress the guest's
//! notifications (kicks) while the shard polls the ring. Split and packed rings have the same
//! functions.
//!
//! **Untrusted guests.** Each field of a ring is read once. A chain has at most as many descriptors
//! as the queue, or `CHAIN` of them in an indirect table, so a loop ends in a [`Fault`], and so
//! does every address outside the guest's memory. After a fault the queue is not used again.
//!
//! *Memory ordering.* A guest stores descriptors before it makes them available (the guest's
//! release, matched by an acquire here), and this side stores used elements before the word that
//! publishes them (a release). Suppression of notifications is Dekker's pattern: each side stores
//! its own state, executes a full fence, and loads the other side's state. So if the shard reads an
//! outdated suppression of calls, the guest sees the used buffers; and if the shard reads an
//! outdated ring, the guest sees that kicks are enabled.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use crate::front::guest_memory::{self, Guest, Outside, read16};
use crate::io::memory::Memory;

pub mod packed_ring;
pub mod split_ring;
#[cfg(test)]
pub(crate) mod tests;

use packed_ring::Packed;
use split_ring::Split;

/// The largest queue, in descriptors.
pub const SIZE: u16 = 1024;
/// The largest number of descriptors in an indirect table.
const CHAIN: usize = 1024;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// A violation of the specification by a guest. Its device fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// An address is outside the guest's memory.
    #[error(transparent)]
    Outside(#[from] Outside),
    /// The size of the queue is impossible.
    #[error("a queue of {0} descriptors is not possible")]
    Size(u32),
    /// The address of a ring is not aligned.
    #[error("the ring at {0:#x} is not aligned")]
    Alignment(u64),
    /// A chain is too long, or is a loop.
    #[error("a chain of descriptors is a loop, or longer than the queue")]
    Long,
    /// An indirect table within an indirect table, or beside other descriptors of a chain.
    #[error("a table of descriptors is not the only descriptor of its chain")]
    Table,
    /// The length of an indirect table is 0, or not a multiple of a descriptor's size.
    #[error("a table of descriptors has {0} bytes, not a positive multiple of {DESCRIPTOR}")]
    TableLength(u32),
    /// A descriptor's successor does not exist.
    #[error("descriptor {0} does not exist")]
    Next(u16),
    /// Memory that the guest wrote follows memory that the device is to write.
    #[error("a descriptor that is to be read follows one that is to be written")]
    Order,
    /// A descriptor without memory.
    #[error("a descriptor has no bytes")]
    Empty,
    /// The guest makes a chain available that the device already has, or that does not exist.
    #[error("buffer {0} is made available twice, or does not exist")]
    Buffer(u16),
    /// The ring of available buffers holds more chains than its size.
    #[error("the available index has advanced by {0}, more than the queue's size")]
    Jump(u16),
    /// A chain without the parts of a request.
    #[error("a request has no header or no byte for its status")]
    NoRequest,
    /// A file of the guest's memory has become shorter.
    #[error("a file of the guest's memory has become shorter")]
    Shrunk,
}

/// A descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Descriptor {
    /// The guest's address of the memory.
    pub address: u64,
    /// The length in bytes.
    pub length: u32,
    /// `NEXT`, `WRITE`, `INDIRECT`; in packed rings also availability.
    pub flags: u16,
    /// The next descriptor (split), or the buffer's number (packed).
    pub link: u16,
}

impl Descriptor {
    fn of_split([address, rest]: [u64; 2]) -> Descriptor {
        let [address, rest] = [u64::from_le(address), u64::from_le(rest)];
        Descriptor {
            address,
            length: rest as u32,
            flags: (rest >> 32) as u16,
            link: (rest >> 48) as u16,
        }
    }

    fn of_packed([address, rest]: [u64; 2]) -> Descriptor {
        let split = Descriptor::of_split([address, rest]);
        Descriptor { flags: split.link, link: split.flags, ..split }
    }

    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The memory of one request, collected from its chain of descriptors.
#[derive(Default)]
pub struct Chain {
    /// The memory that the guest wrote for the device.
    pub readable: Vec<Memory>,
    /// The memory that the device is to write.
    pub writable: Vec<Memory>,
    /// The descriptors of the chain in a packed ring; empty for a split ring.
    pub ring: Vec<Descriptor>,
    table: Vec<Memory>,
}

impl Chain {
    pub(super) fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.ring.clear();
    }

    /// Adds the memory of a descriptor.
    fn add(&mut self, guest: &Guest, descriptor: &Descriptor) -> Result<(), Fault> {
        let &Descriptor { address, length, .. } = descriptor;
        if length == 0 {
            return Err(Fault::Empty);
        }
        let out = match (descriptor.is(WRITE), self.writable.is_empty()) {
            (true, _) => &mut self.writable,
            (false, true) => &mut self.readable,
            (false, false) => return Err(Fault::Order),
        };
        Ok(guest.translate(address, length, out)?)
    }

    /// Adds the memory of an indirect table. In split rings, each descriptor of the table names its
    /// successor; in packed rings, the successor is the next one in the table.
    fn add_table(&mut self, guest: &Guest, at: &Descriptor, is_linked: bool) -> Result<(), Fault> {
        let count = u64::from(at.length) / DESCRIPTOR;
        if count == 0 || !u64::from(at.length).is_multiple_of(DESCRIPTOR) {
            return Err(Fault::TableLength(at.length));
        }
        self.table.clear();
        let mut table = std::mem::take(&mut self.table);
        let added = guest
            .translate(at.address, at.length, &mut table)
            .map_err(Fault::Outside)
            .and_then(|()| self.add_entries(guest, &table, count, is_linked));
        self.table = table;
        added
    }

    fn add_entries(
        &mut self,
        guest: &Guest,
        table: &[Memory],
        count: u64,
        is_linked: bool,
    ) -> Result<(), Fault> {
        let mut index = 0u64;
        for _ in 0..CHAIN {
            // SAFETY: the table was translated in this generation of the guest's memory, which
            // stays mapped.
            let words = unsafe { entry(table, index) };
            let entry = match is_linked {
                true => Descriptor::of_split(words),
                false => Descriptor::of_packed(words),
            };
            if entry.is(INDIRECT) {
                return Err(Fault::Table);
            }
            self.add(guest, &entry)?;
            let next = match is_linked {
                true => entry.is(NEXT).then_some(u64::from(entry.link)),
                false => (index + 1 < count).then_some(index + 1),
            };
            match next {
                None => return Ok(()),
                Some(next) if next < count => index = next,
                Some(next) => return Err(Fault::Next(next as u16)),
            }
        }
        Err(Fault::Long)
    }
}

/// Reads the descriptor of this index in a table.
///
/// The table is in a guest's memory and mapped.
unsafe fn entry(table: &[Memory], index: u64) -> [u64; 2] {
    let at = index * DESCRIPTOR;
    if let [one] = table
        && at + DESCRIPTOR <= u64::from(one.length)
    {
        // SAFETY: the bytes are inside the table.
        return unsafe { read16(one.address.wrapping_add(at as usize)) };
    }
    let mut bytes = [0; DESCRIPTOR as usize];
    // SAFETY: the caller guarantees that the table is mapped.
    unsafe { guest_memory::read(table, at, &mut bytes) };
    let (address, rest) = bytes.split_at(8);
    [address, rest].map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// A buffer that the guest has made available and the device has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Its number, below the size of the queue: the index of the chain's first descriptor (split),
    /// or the buffer ID that the guest chose (packed).
    pub id: u16,
    /// The number of ring elements that it occupies: 1 (split), or one for each descriptor
    /// (packed).
    pub places: u16,
}

/// The addresses of a guest's rings, in the address space of its monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Addresses {
    /// The descriptors.
    pub descriptors: u64,
    /// The ring of available buffers (split), or the guest's suppression of events (packed).
    pub driver: u64,
    /// The ring of used buffers (split), or the device's suppression of events (packed).
    pub device: u64,
}

/// The properties of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The number of descriptors.
    pub size: u16,
    /// Whether the ring is packed.
    pub is_packed: bool,
    /// Whether `EVENT_IDX` was negotiated: each side publishes the position at which it wants the
    /// next notification.
    pub has_event_index: bool,
    /// The addresses of the rings.
    pub addresses: Addresses,
}

/// A virtqueue.
pub enum Queue {
    /// With three rings.
    Split(Split),
    /// With one ring.
    Packed(Packed),
}

/// Calls the same method of either kind.
macro_rules! either {
    ($queue:expr, $one:ident => $call:expr) => {
        match $queue {
            Queue::Split($one) => $call,
            Queue::Packed($one) => $call,
        }
    };
}

impl Queue {
    /// A queue in the guest's memory that starts at position `base`, in the format of
    /// SET_VRING_BASE.
    pub fn new(guest: &Arc<Guest>, layout: &Layout, base: u32) -> Result<Queue, Fault> {
        let size = layout.size;
        if size == 0 || size > SIZE || !layout.is_packed && !size.is_power_of_two() {
            return Err(Fault::Size(size.into()));
        }
        Ok(match layout.is_packed {
            true => Queue::Packed(Packed::new(guest, layout, base)?),
            false => Queue::Split(Split::new(guest, layout, base)?),
        })
    }

    /// Continues in another generation of the guest's memory.
    pub fn rebind(&mut self, guest: &Arc<Guest>, addresses: &Addresses) -> Result<(), Fault> {
        either!(self, queue => queue.rebind(guest, addresses))
    }

    /// The position that GET_VRING_BASE returns.
    pub fn base(&self) -> u32 {
        either!(self, queue => queue.base())
    }

    /// Whether a chain is available.
    #[inline]
    pub fn has_news(&mut self) -> bool {
        either!(self, queue => queue.has_news())
    }

    /// Takes the next chain, if one is available.
    #[inline]
    pub fn pop(&mut self, guest: &Guest, chain: &mut Chain) -> Result<Option<Buffer>, Fault> {
        chain.clear();
        either!(self, queue => queue.pop(guest, chain))
    }

    /// Adds a used buffer to the ring. The device has written `length` bytes to the buffer.
    #[inline]
    pub fn push(&mut self, buffer: Buffer, length: u32) {
        either!(self, queue => queue.push(buffer, length));
    }

    /// Makes the pushed buffers visible.
    #[inline]
    pub fn publish(&mut self) {
        either!(self, queue => queue.publish());
    }

    /// Whether the guest wants a call for the buffers that were published since the last query.
    #[inline]
    pub fn wants_call(&mut self) -> bool {
        either!(self, queue => queue.wants_call())
    }

    /// Makes the guest notify the shard of the next chain. True if there is one already.
    pub fn enable_kicks(&mut self) -> bool {
        either!(self, queue => queue.enable_kicks())
    }

    /// Suppresses the guest's notifications.
    pub fn disable_kicks(&mut self) {
        either!(self, queue => queue.disable_kicks());
    }
}

/// A word of a ring.
///
/// # Safety
/// The address is aligned, and mapped for as long as the word is used.
#[inline]
unsafe fn word<'a>(base: *mut u8, offset: usize) -> &'a AtomicU16 {
    // SAFETY: the caller guarantees alignment and mapping; only atomics and the guest access the
    // word.
    unsafe { AtomicU16::from_ptr(base.wrapping_add(offset).cast()) }
}

/// Prefetches a byte's cache line; the address need not be mapped.
#[inline]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing, and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Whether the event position `event` is after `old` and not after `new`.
#[inline]
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
