//! The area that records requests in flight, so that the next server executes them again.
//!
//! **Problem.** When a server is killed, some chains are available and not yet used. The ring does
//! not show which ones, because used buffers are returned in any order.
//!
//! **Model.** The area is a file in memory that the guest's monitor keeps and gives to the next
//! server. It has a region for each queue, as the vhost-user specification lays it out, with an
//! entry for each descriptor. [`Region::begin`] marks a chain before it is executed, and numbers
//! it. [`Region::used`] records pushed buffers, [`Region::publishing`] records the batch that is
//! about to become visible, and [`Region::published`] ends the batch's entries afterwards.
//! [`Region::recover`] determines whether the last batch became visible, and returns the chains to
//! execute again in their order.
//!
//! In a split ring, the used index in the guest's memory shows whether a batch became visible. In a
//! packed ring, a batch became visible unless the descriptor at the old used position is still the
//! available one. Used descriptors overwrite available ones in that ring, so the entries have
//! copies of them. Unused entries form a list; a batch puts its entries at the front of the list.
//!
//! **Order.** If a process is killed, its stores up to some point in program order have been
//! executed, and no later ones. Each step is one store, and atomics keep the compiler from
//! reordering them. The guest sees a batch if and only if its publication was executed.
//!
//! **Untrusted monitors.** The monitor may change the area at any time. Indexes are checked and
//! lists are bounded, so a wrong area causes wrong requests of this guest and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::front::guest_memory;
use crate::front::vhost::queue::packed_ring::{Packed, Position};
use crate::front::vhost::queue::split_ring::Split;
use crate::front::vhost::queue::{Buffer, Chain, Descriptor, Queue, SIZE};
use crate::io::fault::Watched;
use crate::io::memory::PAGE;

const ALIGN: u64 = 64;
const VERSION: u16 = 1;

/// Offsets in a region.
const AT_VERSION: usize = 8;
const AT_SIZE: usize = 10;
/// Split: the head of the last batch, and the used position up to which the entries are cleared.
const LAST_BATCH: usize = 12;
const USED_INDEX: usize = 14;
/// Packed: the list of free entries and the used position, each with its value after the batch and
/// before it. The two positions are one word: two indexes, two wrap counters of a byte, and
/// padding.
const FREE: usize = 12;
const OLD_FREE: usize = 14;
const POSITIONS: usize = 16;

/// The bytes before the entries, and the bytes of an entry.
const fn sizes(is_packed: bool) -> (usize, usize) {
    if is_packed { (32, 32) } else { (16, 16) }
}

/// Offsets in an entry: whether its request is in flight, the next entry of a list, and the number
/// in the order of arrival.
const UNDER_WAY: usize = 0;
const NEXT: usize = 2;
const SPLIT_NEXT: usize = 6;
const SPLIT_NUMBER: usize = 8;
/// Packed: the last entry of the chain, its length, and the copy of a descriptor.
const LAST: usize = 4;
const COUNT: usize = 6;
const NUMBER: usize = 8;
const ID: usize = 16;
const FLAGS: usize = 18;
const LENGTH: usize = 20;
const ADDRESS: usize = 24;

/// The mapped area of a guest.
pub struct Area {
    base: *mut u8,
    length: usize,
    /// The bytes of a queue's region.
    stride: usize,
    queues: usize,
    size: u16,
    is_packed: bool,
    _watched: Watched,
}

// SAFETY: the mapping stays until this is dropped, and all access is by atomics.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// The bytes of the area for `queues` queues of this size.
pub fn bytes(queues: u16, size: u16, is_packed: bool) -> u64 {
    let (head, entry) = sizes(is_packed);
    ((head + entry * usize::from(size)) as u64).next_multiple_of(ALIGN) * u64::from(queues)
}

/// A new file for an area, of zeroes.
pub fn create(length: u64) -> io::Result<File> {
    guest_memory::sealed("vhost-inflight", length)
}

impl Area {
    /// Maps the area of a file, which begins at `offset`.
    pub fn map(
        file: &File,
        offset: u64,
        queues: u16,
        size: u16,
        is_packed: bool,
    ) -> io::Result<Area> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let length = bytes(queues, size, is_packed);
        if size == 0 || size > SIZE || queues == 0 || !offset.is_multiple_of(PAGE as u64) {
            return Err(wrong("the in-flight area has an impossible shape"));
        }
        let metadata = file.metadata()?;
        if !metadata.is_file() || offset.checked_add(length).is_none_or(|end| end > metadata.len())
        {
            return Err(wrong("the in-flight area is larger than its file"));
        }
        if rustix::fs::fstatfs(file)?.f_type as u64 & u64::from(u32::MAX) != 0x0102_1994 {
            return Err(wrong("the in-flight area is not a file in memory"));
        }
        let mapped = (length as usize).next_multiple_of(PAGE);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice replaces no other mapping.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped, protection, flags, file.as_fd(), offset)
        }?;
        let base = base.cast::<u8>();
        let watched = Watched::new(base.addr()..base.addr() + mapped, PAGE);
        let watched = watched.inspect_err(|_| {
            // SAFETY: the mapping was just made, and nothing refers to it.
            let _ = unsafe { rustix::mm::munmap(base.cast(), mapped) };
        })?;
        let stride = (length / u64::from(queues)) as usize;
        let queues = queues.into();
        Ok(Area { base, length: mapped, stride, queues, size, is_packed, _watched: watched })
    }

    /// The region of a queue, if the area has one of the queue's format and of at least its size.
    pub fn region(self: &Arc<Area>, queue: usize, size: u16, is_packed: bool) -> Option<Region> {
        let fits = queue < self.queues && size <= self.size && is_packed == self.is_packed;
        let base = self.base.wrapping_add(queue * self.stride);
        fits.then(|| Region {
            base,
            size,
            is_packed,
            number: 0,
            batch: Vec::new(),
            _area: self.clone(),
        })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this area's own, and no region is left. `_watched` is dropped
        // after this and refers to the addresses until then, but no thread accesses them.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

/// The region of one queue.
pub struct Region {
    base: *mut u8,
    size: u16,
    is_packed: bool,
    /// The number of the next chain.
    number: u64,
    /// The entries of the buffers that are pushed and not published.
    batch: Vec<u16>,
    _area: Arc<Area>,
}

// SAFETY: the address is in mapped memory that `_area` keeps alive, and all access is by atomics.
unsafe impl Send for Region {}

/// A chain to execute again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// Its number in the order of arrival.
    number: u64,
    /// Its entry: in a split ring, the first descriptor.
    pub entry: u16,
    /// The buffer.
    pub buffer: Buffer,
    /// The descriptors, in a packed ring.
    pub descriptors: Vec<Descriptor>,
}

impl Region {
    fn at8(&self, at: usize) -> &AtomicU8 {
        // SAFETY: `at` is the offset of a field of the region, which is mapped and aligned to 64.
        unsafe { AtomicU8::from_ptr(self.base.wrapping_add(at)) }
    }

    fn at16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: as above, and `at` is a multiple of 2.
        unsafe { AtomicU16::from_ptr(self.base.wrapping_add(at).cast()) }
    }

    fn at32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as above, and `at` is a multiple of 4.
        unsafe { AtomicU32::from_ptr(self.base.wrapping_add(at).cast()) }
    }

    fn at64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above, and `at` is a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.base.wrapping_add(at).cast()) }
    }

    fn get(&self, at: usize) -> u16 {
        self.at16(at).load(Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u16) {
        self.at16(at).store(value, Ordering::Release);
    }

    /// The offset of a field of an entry. Its index may come from the area, so it is bounded.
    fn entry(&self, index: u16, field: usize) -> usize {
        let (head, entry) = sizes(self.is_packed);
        head + entry * usize::from(index.min(self.size - 1)) + field
    }

    fn set_under_way(&self, index: u16, value: bool) {
        self.at8(self.entry(index, UNDER_WAY)).store(value.into(), Ordering::Release);
    }

    /// Records a chain before it is executed; returns its entry.
    pub fn begin(&mut self, buffer: Buffer, chain: &Chain) -> u16 {
        let number = self.number;
        self.number += 1;
        if !self.is_packed {
            self.at64(self.entry(buffer.id, SPLIT_NUMBER)).store(number, Ordering::Release);
            self.set_under_way(buffer.id, true);
            return buffer.id;
        }
        let (head, mut last) = (self.get(FREE), self.get(FREE));
        let mut free = head;
        for descriptor in &chain.ring {
            last = free;
            let field = |field| self.entry(last, field);
            self.set(field(ID), descriptor.link);
            self.set(field(FLAGS), descriptor.flags);
            self.at32(field(LENGTH)).store(descriptor.length, Ordering::Release);
            self.at64(field(ADDRESS)).store(descriptor.address, Ordering::Release);
            free = self.get(field(NEXT));
        }
        self.set(self.entry(head, LAST), last);
        self.set(self.entry(head, COUNT), chain.ring.len() as u16);
        self.at64(self.entry(head, NUMBER)).store(number, Ordering::Release);
        // From here on the chain is recorded, even if the list is not yet updated: `recover`
        // rebuilds the list.
        self.set_under_way(head, true);
        self.set(FREE, free);
        head
    }

    /// Records a pushed buffer.
    pub fn used(&mut self, entry: u16) {
        self.batch.push(entry);
        if !self.is_packed {
            self.set(self.entry(entry, SPLIT_NEXT), self.get(LAST_BATCH));
            self.set(LAST_BATCH, entry);
        }
    }

    /// Records the buffers that the guest sees as used after the next publication.
    pub fn publishing(&mut self, queue: &Queue) {
        let Queue::Packed(packed) = queue else { return };
        self.set(OLD_FREE, self.get(FREE));
        for &entry in &self.batch {
            let last = self.get(self.entry(entry, LAST));
            self.set(self.entry(last, NEXT), self.get(FREE));
            self.set(FREE, entry);
        }
        self.set_positions(packed.used_position(), self.positions().1);
    }

    /// Clears the entries of the pushed buffers, which the guest now sees as used.
    pub fn published(&mut self, queue: &Queue) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.drain(..).for_each(|entry| self.set_under_way(entry, false));
        self.batch = batch;
        match queue {
            Queue::Split(split) => self.set(USED_INDEX, split.published()),
            Queue::Packed(packed) => {
                self.set_positions(packed.used_position(), packed.used_position());
            }
        }
    }

    /// The used positions after and before the last batch.
    fn positions(&self) -> (Position, Position) {
        let word = self.at64(POSITIONS).load(Ordering::Acquire).to_le();
        let position = |index: u64, wrap: u64| Position {
            index: (index as u16).min(self.size - 1),
            wrap: wrap & 0xff != 0,
        };
        (position(word, word >> 32), position(word >> 16, word >> 40))
    }

    fn set_positions(&self, new: Position, old: Position) {
        let indexes = u64::from(new.index) | u64::from(old.index) << 16;
        let wraps = u64::from(new.wrap) << 32 | u64::from(old.wrap) << 40;
        self.at64(POSITIONS).store((indexes | wraps).to_le(), Ordering::Release);
    }

    /// Forgets all chains: the queue restarts at its current position.
    pub fn forget(&self) {
        self.set(AT_VERSION, 0);
        (0..self.size).for_each(|index| self.set_under_way(index, false));
    }

    /// Sets a queue to the position that the last server reached; returns the chains to execute
    /// again, oldest first. A new region is initialised.
    pub fn recover(&mut self, queue: &mut Queue) -> Vec<Again> {
        if self.get(AT_VERSION) == 0 {
            self.initialise(queue);
        }
        let mut again = match queue {
            Queue::Split(split) => self.recover_split(split),
            Queue::Packed(packed) => self.recover_packed(packed),
        };
        again.sort_by_key(|chain| chain.number);
        self.number = again.last().map_or(0, |last| last.number.wrapping_add(1));
        again
    }

    fn initialise(&self, queue: &Queue) {
        match queue {
            Queue::Split(split) => self.set(USED_INDEX, split.guest_used()),
            Queue::Packed(packed) => {
                (0..self.size).for_each(|index| self.set(self.entry(index, NEXT), index + 1));
                self.set_positions(packed.used_position(), packed.used_position());
            }
        }
        self.set(AT_SIZE, self.size);
        self.set(AT_VERSION, VERSION);
    }

    fn is_under_way(&self, index: u16) -> bool {
        self.at8(self.entry(index, UNDER_WAY)).load(Ordering::Acquire) != 0
    }

    fn recover_split(&self, split: &mut Split) -> Vec<Again> {
        let used = split.guest_used();
        // The last batch became visible, but its entries may not have been cleared.
        let mut entry = self.get(LAST_BATCH);
        for _ in 0..used.wrapping_sub(self.get(USED_INDEX)).min(self.size) {
            self.set_under_way(entry, false);
            entry = self.get(self.entry(entry, SPLIT_NEXT));
        }
        self.set(USED_INDEX, used);
        let under_way = (0..self.size).filter(|&index| self.is_under_way(index));
        let again: Vec<Again> = under_way
            .map(|entry| Again {
                number: self.at64(self.entry(entry, SPLIT_NUMBER)).load(Ordering::Acquire),
                entry,
                buffer: Buffer { id: entry, places: 1 },
                descriptors: Vec::new(),
            })
            .collect();
        split.go_on_at(used.wrapping_add(again.len() as u16));
        again
    }

    /// The entries of a chain that begins with this one.
    fn chain(&self, head: u16) -> Vec<u16> {
        let count = self.get(self.entry(head, COUNT)).clamp(1, self.size);
        let next = |&entry: &u16| Some(self.get(self.entry(entry, NEXT)));
        std::iter::successors(Some(head), next).take(count.into()).collect()
    }

    fn recover_packed(&self, packed: &mut Packed) -> Vec<Again> {
        let (new, old) = self.positions();
        let is_visible = new != old && !packed.is_available(old);
        if is_visible {
            let (mut head, end) = (self.get(FREE), self.get(OLD_FREE));
            for _ in 0..self.size {
                if head == end {
                    break;
                }
                self.set_under_way(head, false);
                head = self.get(self.entry(self.get(self.entry(head, LAST)), NEXT));
            }
        }
        let used = if is_visible { new } else { old };
        let heads: Vec<u16> = (0..self.size).filter(|&index| self.is_under_way(index)).collect();
        let again: Vec<Again> = heads.iter().map(|&head| self.again(head)).collect();
        // The list of free entries is rebuilt, because it may have been changed only in part.
        let mut is_taken = vec![false; usize::from(self.size)];
        for &head in &heads {
            self.chain(head)
                .iter()
                .for_each(|&one| is_taken[usize::from(one.min(self.size - 1))] = true);
        }
        let mut next = self.size;
        for index in (0..self.size).rev().filter(|&index| !is_taken[usize::from(index)]) {
            self.set(self.entry(index, NEXT), next);
            next = index;
        }
        self.set(FREE, next);
        self.set(OLD_FREE, next);
        self.set_positions(used, used);
        let places: u32 = again.iter().map(|chain| u32::from(chain.buffer.places)).sum();
        let places = places.min(self.size.into()) as u16;
        packed.hold(used, places);
        packed.go_on_at(used.after(places, self.size), used);
        again
    }

    fn again(&self, head: u16) -> Again {
        let descriptor = |entry: u16| Descriptor {
            address: self.at64(self.entry(entry, ADDRESS)).load(Ordering::Acquire),
            length: self.at32(self.entry(entry, LENGTH)).load(Ordering::Acquire),
            flags: self.get(self.entry(entry, FLAGS)),
            link: self.get(self.entry(entry, ID)),
        };
        let descriptors: Vec<Descriptor> = self.chain(head).into_iter().map(descriptor).collect();
        let id = descriptors.last().map_or(0, |last| last.link).min(self.size - 1);
        Again {
            number: self.at64(self.entry(head, NUMBER)).load(Ordering::Acquire),
            entry: head,
            buffer: Buffer { id, places: descriptors.len() as u16 },
            descriptors,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::front::vhost::queue::tests::{BYTES, Driver, Machine};

    /// The steps of a server after which it may be killed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Kill {
        BeforePublishing,
        BeforePublication,
        AfterPublication,
        Later,
    }

    /// A server with the queue, and its unfinished chains in order of arrival.
    struct Server {
        queue: Queue,
        region: Region,
        chain: Chain,
        held: Vec<(u16, Buffer)>,
    }

    impl Server {
        fn start(machine: &Machine, driver: &Driver, file: &File) -> (Server, Vec<Again>) {
            let layout = driver.layout;
            let area = Area::map(file, 0, 1, layout.size, layout.is_packed).unwrap();
            let region = Arc::new(area).region(0, layout.size, layout.is_packed);
            let mut region = region.unwrap();
            let mut queue = Queue::new(&machine.guest, &layout, driver.base()).unwrap();
            let again = region.recover(&mut queue);
            let held = again.iter().map(|chain| (chain.entry, chain.buffer)).collect();
            (Server { queue, region, chain: Chain::default(), held }, again)
        }

        fn pop(&mut self, machine: &Machine) -> Option<Buffer> {
            let buffer = self.queue.pop(&machine.guest, &mut self.chain).unwrap()?;
            let entry = self.region.begin(buffer, &self.chain);
            self.held.push((entry, buffer));
            Some(buffer)
        }
    }

    proptest! {
        /// A server is killed again and again while the guest continues. Each chain is used exactly
        /// once, and a new server repeats chains in the order of arrival.
        #[test]
        fn a_killed_server_loses_nothing_and_repeats_nothing(
            size in 1..20_u16, is_packed in any::<bool>(),
            rounds in prop::collection::vec((0..6_usize, 0..6_usize, 0..6_usize, 0..4_u8, any::<u32>()), 1..60),
        ) {
            let size = if is_packed { size } else { size.next_power_of_two() };
            let (machine, mut driver) = (Machine::new(), Driver::new(size, is_packed, true));
            let file = create(bytes(1, size, is_packed)).unwrap();
            let (mut server, again) = Server::start(&machine, &driver, &file);
            prop_assert!(again.is_empty());
            // The serial numbers of the chains that the guest has made available and that are not
            // yet used.
            let (mut open, mut serial) = (BTreeMap::new(), 0u32);
            for (submits, pops, uses, kill, random) in rounds {
                for step in 0..submits {
                    serial += 1;
                    let parts: Vec<_> = (0..1 + (random as usize + step) % 3)
                        .map(|part| (BYTES / 2 + part as u64 * 512, 1 + serial, true))
                        .collect();
                    if let Some(id) = driver.submit(&machine, &parts, false) {
                        prop_assert_eq!(open.insert(id, serial), None);
                    }
                }
                for _ in 0..pops {
                    server.pop(&machine);
                }
                for step in 0..uses {
                    if !server.held.is_empty() {
                        let which = (random as usize >> step) % server.held.len();
                        let (entry, buffer) = server.held.remove(which);
                        server.queue.push(buffer, 1);
                        server.region.used(entry);
                    }
                }
                let kills = [Kill::BeforePublishing, Kill::BeforePublication, Kill::AfterPublication, Kill::Later];
                let kill = kills[usize::from(kill)];
                if kill != Kill::BeforePublishing {
                    server.region.publishing(&server.queue);
                }
                if matches!(kill, Kill::AfterPublication | Kill::Later) {
                    server.queue.publish();
                }
                if kill == Kill::Later {
                    server.region.published(&server.queue);
                    if random % 2 == 0 {
                        continue;
                    }
                }
                // The guest takes used buffers while there is no server.
                while let Some((id, _)) = driver.used(&machine) {
                    prop_assert!(open.remove(&id).is_some());
                }
                if random % 3 == 0 {
                    serial += 1;
                    let part = [(BYTES / 2, 1 + serial, true)];
                    if let Some(id) = driver.submit(&machine, &part, false) {
                        prop_assert_eq!(open.insert(id, serial), None);
                    }
                }
                let again;
                (server, again) = Server::start(&machine, &driver, &file);
                let serials: Vec<_> = again.iter().map(|chain| open.get(&chain.buffer.id)).collect();
                prop_assert!(serials.iter().all(Option::is_some), "a used chain is executed again");
                prop_assert!(serials.is_sorted(), "the order of arrival: {:?}", serials);
            }
            // The last server uses all remaining chains.
            while server.pop(&machine).is_some() {}
            for (entry, buffer) in std::mem::take(&mut server.held) {
                server.queue.push(buffer, 1);
                server.region.used(entry);
            }
            server.region.publishing(&server.queue);
            server.queue.publish();
            server.region.published(&server.queue);
            while let Some((id, _)) = driver.used(&machine) {
                prop_assert!(open.remove(&id).is_some());
            }
            prop_assert!(open.is_empty(), "chains are lost: {:?}", open);
        }

        /// An area with any content yields some chains and no panic.
        #[test]
        fn any_area_is_read(is_packed in any::<bool>(), seed in any::<u64>()) {
            use rand::rngs::SmallRng;
            use rand::{Rng, SeedableRng};
            use std::os::unix::fs::FileExt;
            let (machine, driver) = (Machine::new(), Driver::new(8, is_packed, true));
            let file = create(bytes(1, 8, is_packed)).unwrap();
            let mut content = vec![0u8; bytes(1, 8, is_packed) as usize];
            let mut random = SmallRng::seed_from_u64(seed);
            content.iter_mut().for_each(|byte| *byte = random.random_range(0..12));
            file.write_all_at(&content, 0).unwrap();
            let (mut server, again) = Server::start(&machine, &driver, &file);
            prop_assert!(again.len() <= 8);
            for chain in again {
                prop_assert!(chain.buffer.id < 8 && chain.buffer.places <= 8);
                server.queue.push(chain.buffer, 0);
                server.region.used(chain.entry);
            }
            server.region.publishing(&server.queue);
            server.queue.publish();
            server.region.published(&server.queue);
        }
    }

    #[test]
    fn an_area_that_does_not_fit_is_refused() {
        let file = create(bytes(2, 8, false)).unwrap();
        assert!(Area::map(&file, 0, 200, 8, false).is_err());
        assert!(Area::map(&file, 1, 1, 8, false).is_err());
        assert!(Area::map(&file, 0, 1, 0, false).is_err());
        assert!(Area::map(&File::open("/dev/zero").unwrap(), 0, 1, 8, false).is_err());
        let area = Arc::new(Area::map(&file, 0, 2, 8, false).unwrap());
        assert!(area.region(1, 8, false).is_some() && area.region(2, 8, false).is_none());
        assert!(area.region(0, 16, false).is_none() && area.region(0, 8, true).is_none());
    }
}
