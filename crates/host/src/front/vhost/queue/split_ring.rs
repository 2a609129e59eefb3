//! Split virtqueues: a table of descriptors, a ring of available chains and a ring of used ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

use crate::front::guest_memory::{Guest, read16};
use crate::front::vhost::queue::{
    Addresses, Buffer, Chain, DESCRIPTOR, Descriptor, Fault, INDIRECT, Layout, NEXT, passes,
    prefetch, word,
};

const FLAGS: usize = 0;
const INDEX: usize = 2;
const RING: usize = 4;

/// A split virtqueue.
pub struct Split {
    size: u16,
    has_event_index: bool,
    rings: Rings,
    /// The position of the next chain, and the position up to which chains are known to be
    /// available.
    next: u16,
    seen: u16,
    /// The position after the last pushed buffer, and after the last published one.
    used: u16,
    published: u16,
    /// The published position at the last query whether the guest wants a call.
    asked: Option<u16>,
}

/// The rings in the guest's memory.
struct Rings {
    descriptors: *mut u8,
    available: *mut u8,
    used: *mut u8,
    /// Keeps the memory mapped.
    _guest: Arc<Guest>,
}

// SAFETY: the addresses are in mapped memory that `_guest` keeps alive; all access is by atomics
// and copies.
unsafe impl Send for Rings {}

impl Rings {
    fn find(guest: &Arc<Guest>, size: u16, at: &Addresses) -> Result<Rings, Fault> {
        let size = u64::from(size);
        let ring = |address: u64, align: u64, length: u64| {
            let found = guest.user(address, length)?;
            let is_aligned = (found.addr() as u64).is_multiple_of(align);
            if is_aligned { Ok(found) } else { Err(Fault::Alignment(address)) }
        };
        Ok(Rings {
            descriptors: ring(at.descriptors, DESCRIPTOR, DESCRIPTOR * size)?,
            available: ring(at.driver, 2, 6 + 2 * size)?,
            used: ring(at.device, 4, 6 + 8 * size)?,
            _guest: guest.clone(),
        })
    }
}

impl Split {
    pub(super) fn new(guest: &Arc<Guest>, layout: &Layout, base: u32) -> Result<Split, Fault> {
        let &Layout { size, has_event_index, addresses, .. } = layout;
        let rings = Rings::find(guest, size, &addresses)?;
        let next = base as u16;
        let mut queue = Split {
            size,
            has_event_index,
            rings,
            next,
            seen: next,
            used: 0,
            published: 0,
            asked: None,
        };
        queue.used = queue.guest_used();
        queue.published = queue.used;
        Ok(queue)
    }

    /// The position after the last buffer that the guest sees as used.
    pub fn guest_used(&self) -> u16 {
        // SAFETY: the ring is aligned and mapped, with all its words.
        u16::from_le(unsafe { word(self.rings.used, INDEX) }.load(Ordering::Relaxed))
    }

    /// The position after the last published buffer.
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Continues at this position.
    pub fn go_on_at(&mut self, next: u16) {
        (self.next, self.seen) = (next, next);
    }

    pub(super) fn rebind(
        &mut self,
        guest: &Arc<Guest>,
        addresses: &Addresses,
    ) -> Result<(), Fault> {
        self.rings = Rings::find(guest, self.size, addresses)?;
        Ok(())
    }

    pub(super) fn base(&self) -> u32 {
        self.next.into()
    }

    #[inline]
    fn available(&self) -> u16 {
        // SAFETY: as above.
        u16::from_le(unsafe { word(self.rings.available, INDEX) }.load(Ordering::Acquire))
    }

    #[inline]
    pub(super) fn has_news(&mut self) -> bool {
        self.next != self.seen || self.available() != self.next
    }

    #[inline]
    pub(super) fn pop(
        &mut self,
        guest: &Guest,
        chain: &mut Chain,
    ) -> Result<Option<Buffer>, Fault> {
        if self.next == self.seen {
            self.seen = self.available();
            let ahead = self.seen.wrapping_sub(self.next);
            if ahead == 0 {
                return Ok(None);
            }
            if ahead > self.size {
                return Err(Fault::Jump(ahead));
            }
        }
        let head = self.head(self.next);
        let ahead = self.seen.wrapping_sub(self.next);
        if ahead > 2 {
            prefetch(self.descriptor_at(self.head(self.next.wrapping_add(2))));
        }
        if ahead > 1 {
            self.prefetch_memory(guest, self.head(self.next.wrapping_add(1)));
        }
        self.walk(guest, head, chain)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(Buffer { id: head, places: 1 }))
    }

    /// The first descriptor of the chain at a position.
    #[inline]
    fn head(&self, position: u16) -> u16 {
        let place = RING + 2 * usize::from(position & (self.size - 1));
        // SAFETY: as above.
        u16::from_le(unsafe { word(self.rings.available, place) }.load(Ordering::Relaxed))
    }

    #[inline]
    fn descriptor_at(&self, index: u16) -> *const u8 {
        self.rings.descriptors.wrapping_add(usize::from(index) * DESCRIPTOR as usize)
    }

    /// Prefetches the memory of a descriptor: the header or the table of a request that is to be
    /// taken soon, which the guest has written on another CPU.
    #[inline]
    fn prefetch_memory(&self, guest: &Guest, index: u16) {
        if index < self.size {
            // SAFETY: the table is mapped, with `size` descriptors.
            let descriptor = Descriptor::of_split(unsafe { read16(self.descriptor_at(index)) });
            if let Some(at) = guest.at(descriptor.address) {
                prefetch(at);
            }
        }
    }

    /// Fills in the memory of the chain that begins with this descriptor.
    pub fn walk(&self, guest: &Guest, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        let mut index = head;
        for count in 0..self.size {
            if index >= self.size {
                let fault = if count == 0 { Fault::Buffer(index) } else { Fault::Next(index) };
                return Err(fault);
            }
            // SAFETY: the table is mapped, with `size` descriptors.
            let descriptor = Descriptor::of_split(unsafe { read16(self.descriptor_at(index)) });
            if descriptor.is(INDIRECT) {
                let is_alone = count == 0 && !descriptor.is(NEXT);
                return match is_alone {
                    true => chain.add_table(guest, &descriptor, true),
                    false => Err(Fault::Table),
                };
            }
            chain.add(guest, &descriptor)?;
            if !descriptor.is(NEXT) {
                return Ok(());
            }
            index = descriptor.link;
        }
        Err(Fault::Long)
    }

    #[inline]
    pub(super) fn push(&mut self, buffer: Buffer, length: u32) {
        let place = RING + 8 * usize::from(self.used & (self.size - 1));
        let at = self.rings.used.wrapping_add(place).cast::<u32>();
        // SAFETY: the ring is aligned to 4 and mapped, with `size` elements of 8 bytes.
        unsafe {
            AtomicU32::from_ptr(at).store(u32::from(buffer.id).to_le(), Ordering::Relaxed);
            AtomicU32::from_ptr(at.add(1)).store(length.to_le(), Ordering::Relaxed);
        }
        self.used = self.used.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.published = self.used;
        // SAFETY: as above.
        unsafe { word(self.rings.used, INDEX) }.store(self.used.to_le(), Ordering::Release);
    }

    #[inline]
    pub(super) fn wants_call(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let asked = self.asked.replace(self.published);
        let of_guest = |place| {
            // SAFETY: as above.
            let word = unsafe { word(self.rings.available, place) };
            u16::from_le(word.load(Ordering::Relaxed))
        };
        if !self.has_event_index {
            return of_guest(FLAGS) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0;
        }
        let event = of_guest(RING + 2 * usize::from(self.size));
        asked.is_none_or(|asked| passes(event, self.published, asked))
    }

    pub(super) fn enable_kicks(&mut self) -> bool {
        let (place, value) = match self.has_event_index {
            true => (RING + 8 * usize::from(self.size), self.next),
            false => (FLAGS, 0),
        };
        // SAFETY: as above.
        unsafe { word(self.rings.used, place) }.store(value.to_le(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_news()
    }

    pub(super) fn disable_kicks(&mut self) {
        // With an event index, a guest that has passed it sends no more kicks.
        if !self.has_event_index {
            let flags = VRING_USED_F_NO_NOTIFY as u16;
            // SAFETY: as above.
            unsafe { word(self.rings.used, FLAGS) }.store(flags.to_le(), Ordering::Relaxed);
        }
    }
}
