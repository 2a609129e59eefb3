//! Packed virtqueues: one ring of descriptors, which both sides write.
//!
//! A descriptor is available if its available flag equals the guest's wrap counter and its used
//! flag does not; it is used if both flags equal the device's wrap counter. The descriptors of a
//! chain are consecutive in the ring, and the last one has the number of the buffer. A used buffer
//! occupies one descriptor at the device's position, which then advances by the number of the
//! chain's descriptors. A batch becomes visible when the flags of its first descriptor are stored,
//! since the guest takes used descriptors in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use virtio_bindings::virtio_ring::{
    VRING_PACKED_DESC_F_AVAIL, VRING_PACKED_DESC_F_USED, VRING_PACKED_EVENT_FLAG_DESC,
    VRING_PACKED_EVENT_FLAG_DISABLE, VRING_PACKED_EVENT_FLAG_ENABLE,
};

use crate::front::guest_memory::{Guest, read16};
use crate::front::vhost::queue::{
    Addresses, Buffer, Chain, DESCRIPTOR, Descriptor, Fault, INDIRECT, Layout, NEXT, WRITE, passes,
    word,
};

const AVAILABLE: u16 = 1 << VRING_PACKED_DESC_F_AVAIL;
const USED: u16 = 1 << VRING_PACKED_DESC_F_USED;

/// The offset of a descriptor's length, number and flags.
const LENGTH: usize = 8;
const ID: usize = 12;
const FLAGS: usize = 14;

/// A position in the ring: an index, and the wrap counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The descriptor.
    pub index: u16,
    /// True in the first round, false in the second, and so on.
    pub wrap: bool,
}

impl Position {
    /// The position from its 16 bits in SET_VRING_BASE and in event suppression.
    fn of(bits: u16) -> Position {
        Position { index: bits & 0x7fff, wrap: bits >> 15 != 0 }
    }

    fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// The position `places` descriptors later, at most one round.
    pub fn after(self, places: u16, size: u16) -> Position {
        let index = u32::from(self.index) + u32::from(places);
        match index.checked_sub(u32::from(size)) {
            None => Position { index: index as u16, ..self },
            Some(index) => Position { index: index as u16, wrap: !self.wrap },
        }
    }
}

/// A packed virtqueue.
pub struct Packed {
    size: u16,
    has_event_index: bool,
    rings: Rings,
    /// The next chain.
    next: Position,
    /// The position of the next used buffer.
    used: Position,
    /// The position and the flags of the first pushed buffer that is not published.
    first: Option<(u16, u16)>,
    /// The used position at the last query whether the guest wants a call; `None` if the ring has
    /// wrapped since then.
    asked: Option<u16>,
}

struct Rings {
    descriptors: *mut u8,
    driver: *mut u8,
    device: *mut u8,
    /// Keeps the memory mapped.
    _guest: Arc<Guest>,
}

// SAFETY: the addresses are in mapped memory that `_guest` keeps alive; all access is by atomics
// and copies.
unsafe impl Send for Rings {}

impl Rings {
    fn find(guest: &Arc<Guest>, size: u16, at: &Addresses) -> Result<Rings, Fault> {
        let ring = |address: u64, align: u64, length: u64| {
            let found = guest.user(address, length)?;
            let is_aligned = (found.addr() as u64).is_multiple_of(align);
            if is_aligned { Ok(found) } else { Err(Fault::Alignment(address)) }
        };
        Ok(Rings {
            descriptors: ring(at.descriptors, DESCRIPTOR, DESCRIPTOR * u64::from(size))?,
            driver: ring(at.driver, 4, 4)?,
            device: ring(at.device, 4, 4)?,
            _guest: guest.clone(),
        })
    }

    fn descriptor(&self, index: u16) -> *mut u8 {
        self.descriptors.wrapping_add(usize::from(index) * DESCRIPTOR as usize)
    }

    /// The flags of a descriptor.
    #[inline]
    fn flags(&self, index: u16, ordering: Ordering) -> u16 {
        // SAFETY: the ring is aligned and mapped, and the index is below its size.
        u16::from_le(unsafe { word(self.descriptor(index), FLAGS) }.load(ordering))
    }

    #[inline]
    fn set_flags(&self, index: u16, flags: u16, ordering: Ordering) {
        // SAFETY: as above.
        unsafe { word(self.descriptor(index), FLAGS) }.store(flags.to_le(), ordering);
    }
}

impl Packed {
    pub(super) fn new(guest: &Arc<Guest>, layout: &Layout, base: u32) -> Result<Packed, Fault> {
        let &Layout { size, has_event_index, addresses, .. } = layout;
        let rings = Rings::find(guest, size, &addresses)?;
        // User-mode Linux starts a new ring at 0, though the wrap counters of a new ring are 1. In
        // a ring whose wrap counters are 0 the first descriptor was used in the lap before, and its
        // used flag is set.
        let is_new = base == 0 && rings.flags(0, Ordering::Acquire) & USED == 0;
        let base = if is_new { 0x8000_8000 } else { base };
        // Some monitors set only the position of the next chain, for a ring without chains in
        // flight: the next used buffer then has the same position.
        let used = if base >> 16 == 0 { base as u16 } else { (base >> 16) as u16 };
        let [next, used] = [base as u16, used].map(Position::of);
        if next.index >= size || used.index >= size {
            return Err(Fault::Next(next.index.max(used.index)));
        }
        Ok(Packed { size, has_event_index, rings, next, used, first: None, asked: None })
    }

    /// Continues at these positions.
    pub fn go_on_at(&mut self, next: Position, used: Position) {
        (self.next, self.used) = (next, used);
    }

    /// The position of the next used buffer.
    pub fn used_position(&self) -> Position {
        self.used
    }

    /// Whether the descriptor at this position is available.
    pub fn is_available(&self, position: Position) -> bool {
        let flags = self.rings.flags(position.index, Ordering::Acquire);
        (flags & AVAILABLE != 0) == position.wrap && (flags & USED != 0) != position.wrap
    }

    /// Stores the flags of available descriptors, for the chains that the device has not returned:
    /// the last server may have stored some flags of used descriptors, of a batch that it did not
    /// publish.
    pub fn hold(&self, from: Position, places: u16) {
        let mut at = from;
        for _ in 0..places.min(self.size) {
            let flags = if at.wrap { AVAILABLE } else { USED };
            self.rings.set_flags(at.index, flags, Ordering::Release);
            at = at.after(1, self.size);
        }
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
        u32::from(self.next.bits()) | u32::from(self.used.bits()) << 16
    }

    #[inline]
    pub(super) fn has_news(&mut self) -> bool {
        self.is_available(self.next)
    }

    #[inline]
    pub(super) fn pop(
        &mut self,
        guest: &Guest,
        chain: &mut Chain,
    ) -> Result<Option<Buffer>, Fault> {
        if !self.has_news() {
            return Ok(None);
        }
        let mut at = self.next;
        let id = loop {
            if chain.ring.len() >= usize::from(self.size) {
                return Err(Fault::Long);
            }
            // SAFETY: the ring is mapped, and the index is below its size.
            let words = unsafe { read16(self.rings.descriptor(at.index)) };
            let descriptor = Descriptor::of_packed(words);
            chain.ring.push(descriptor);
            at = at.after(1, self.size);
            if !descriptor.is(NEXT) {
                break descriptor.link;
            }
        };
        if id >= self.size {
            return Err(Fault::Buffer(id));
        }
        walk(guest, chain)?;
        self.next = at;
        Ok(Some(Buffer { id, places: chain.ring.len() as u16 }))
    }

    #[inline]
    pub(super) fn push(&mut self, buffer: Buffer, length: u32) {
        let at = self.used;
        let descriptor = self.rings.descriptor(at.index);
        // SAFETY: the ring is aligned to 16 and mapped, and the index is below its size.
        unsafe {
            let length_at = descriptor.wrapping_add(LENGTH).cast();
            AtomicU32::from_ptr(length_at).store(length.to_le(), Ordering::Relaxed);
            word(descriptor, ID).store(buffer.id.to_le(), Ordering::Relaxed);
        }
        let wrap = if at.wrap { AVAILABLE | USED } else { 0 };
        let flags = if length > 0 { wrap | WRITE } else { wrap };
        if self.first.is_none() {
            self.first = Some((at.index, flags));
        } else {
            self.rings.set_flags(at.index, flags, Ordering::Release);
        }
        self.used = at.after(buffer.places, self.size);
        if self.used.wrap != at.wrap {
            self.asked = None;
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if let Some((index, flags)) = self.first.take() {
            self.rings.set_flags(index, flags, Ordering::Release);
        }
    }

    #[inline]
    pub(super) fn wants_call(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let asked = self.asked.replace(self.used.index);
        // SAFETY: the word is aligned to 4 and mapped.
        let words = unsafe { AtomicU32::from_ptr(self.rings.driver.cast()) };
        let words = u32::from_le(words.load(Ordering::Acquire));
        let (event, flags) = (Position::of(words as u16), words >> 16 & 3);
        match flags {
            VRING_PACKED_EVENT_FLAG_ENABLE => true,
            VRING_PACKED_EVENT_FLAG_DISABLE => false,
            _ if !self.has_event_index => true,
            _ => {
                let is_last_round = event.wrap != self.used.wrap;
                let size = if is_last_round { self.size } else { 0 };
                let event = event.index.wrapping_sub(size);
                asked.is_none_or(|asked| passes(event, self.used.index, asked))
            }
        }
    }

    pub(super) fn enable_kicks(&mut self) -> bool {
        let (event, flags) = match self.has_event_index {
            true => (self.next.bits(), VRING_PACKED_EVENT_FLAG_DESC),
            false => (0, VRING_PACKED_EVENT_FLAG_ENABLE),
        };
        self.set_event(event, flags);
        fence(Ordering::SeqCst);
        self.has_news()
    }

    pub(super) fn disable_kicks(&mut self) {
        self.set_event(0, VRING_PACKED_EVENT_FLAG_DISABLE);
    }

    /// Stores position and flags as one word, so that the guest never reads a new one with an old
    /// one.
    fn set_event(&self, event: u16, flags: u32) {
        // SAFETY: the word is aligned to 4 and mapped.
        unsafe { AtomicU32::from_ptr(self.rings.device.cast()) }
            .store((u32::from(event) | flags << 16).to_le(), Ordering::Release);
    }
}

/// Fills in the memory of a chain from its descriptors.
pub fn walk(guest: &Guest, chain: &mut Chain) -> Result<(), Fault> {
    let ring = std::mem::take(&mut chain.ring);
    let walked = match &ring[..] {
        [table] if table.is(INDIRECT) => chain.add_table(guest, table, false),
        descriptors if descriptors.iter().any(|one| one.is(INDIRECT)) => Err(Fault::Table),
        descriptors => descriptors.iter().try_for_each(|one| chain.add(guest, one)),
    };
    chain.ring = ring;
    walked
}
