//! A model of the guest's side of both ring formats, and properties that it must have together with
//! the queues.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;

use proptest::prelude::*;

use super::*;
use crate::front::guest_memory::{Plan, tests::file};

/// Bytes of a guest's memory; rings and tables are in the first half, data in the second.
pub(crate) const BYTES: u64 = 1 << 20;
/// The guest's and the monitor's address of the memory.
pub(crate) const GUEST: u64 = 1 << 32;
pub(crate) const USER: u64 = 1 << 40;
/// Offsets in the memory.
const DRIVER: u64 = 0x10000;
const DEVICE: u64 = 0x20000;
const TABLES: u64 = 0x30000;
const TABLE: u64 = 256;
/// The bytes that the rings of a queue take.
pub(crate) const RINGS: u64 = 0x40000;

/// A part of a chain: its offset in the memory, its length, and whether the device writes it.
pub(crate) type Part = (u64, u32, bool);

/// A guest's memory, accessed from the guest's side.
pub(crate) struct Machine {
    pub(crate) guest: Arc<Guest>,
    pub(crate) file: File,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine::with(BYTES)
    }

    pub(crate) fn with(bytes: u64) -> Machine {
        let file = file(bytes);
        let plan = Plan { guest: GUEST, size: bytes, user: USER, offset: 0 };
        let guest = Guest::map([(plan, file.try_clone().unwrap())]).unwrap();
        Machine { guest: Arc::new(guest), file }
    }

    /// The memory at an offset, as the guest sees it.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        self.guest.user(USER + offset, 1).unwrap()
    }

    fn get16(&self, offset: u64) -> u16 {
        // SAFETY: the words are aligned and in mapped memory.
        unsafe { word(self.at(offset), 0) }.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn set16(&self, offset: u64, value: u16) {
        // SAFETY: as above.
        unsafe { word(self.at(offset), 0) }.store(value, std::sync::atomic::Ordering::SeqCst);
    }

    pub(crate) fn set(&self, offset: u64, bytes: &[u8]) {
        bytes.chunks(2).zip((offset..).step_by(2)).for_each(|(two, at)| {
            self.set16(at, u16::from_le_bytes([two[0], *two.get(1).unwrap_or(&0)]));
        });
    }

    fn describe(&self, at: u64, one: &Descriptor, is_packed: bool) {
        let (a, b) = match is_packed {
            true => (one.link, one.flags),
            false => (one.flags, one.link),
        };
        self.set(at, &one.address.to_le_bytes());
        self.set(at + 8, &one.length.to_le_bytes());
        self.set16(at + 12, a);
        self.set16(at + 14, b);
    }
}

/// The guest's side of a queue.
pub(crate) struct Driver {
    pub(crate) layout: Layout,
    /// The offset of its rings in the memory.
    at: u64,
    /// The next position of available and of used buffers, and the wrap counters.
    next: u16,
    used: u16,
    wraps: (bool, bool),
    /// Free buffers, and the descriptors of the buffers in use.
    free: VecDeque<u16>,
    held: BTreeMap<u16, Vec<u16>>,
    room: u16,
    /// The position at the last query whether to kick.
    asked: u16,
}

impl Driver {
    pub(crate) fn new(size: u16, is_packed: bool, has_event_index: bool) -> Driver {
        Driver::at(0, size, is_packed, has_event_index)
    }

    /// A driver whose rings are in the [`RINGS`] bytes from an offset in the memory.
    pub(crate) fn at(at: u64, size: u16, is_packed: bool, has_event_index: bool) -> Driver {
        let user = USER + at;
        let addresses =
            Addresses { descriptors: user, driver: user + DRIVER, device: user + DEVICE };
        let layout = Layout { size, is_packed, has_event_index, addresses };
        let (free, held) = ((0..size).collect(), BTreeMap::new());
        let wraps = (true, true);
        Driver { layout, at, next: 0, used: 0, wraps, free, held, room: size, asked: 0 }
    }

    pub(crate) fn base(&self) -> u32 {
        if self.layout.is_packed { 0x8000_8000 } else { 0 }
    }

    /// Makes a chain of these parts available. Returns its number; `None` if too few descriptors
    /// are free.
    pub(crate) fn submit(
        &mut self,
        machine: &Machine,
        parts: &[Part],
        in_table: bool,
    ) -> Option<u16> {
        let places = if in_table { 1 } else { parts.len() as u16 };
        let is_packed = self.layout.is_packed;
        if self.room < places || self.free.len() < usize::from(places) {
            return None;
        }
        self.room -= places;
        let id = *self.free.front()?;
        let of = |&(offset, length, writes): &Part| Descriptor {
            address: GUEST + offset,
            length,
            flags: if writes { WRITE } else { 0 },
            link: 0,
        };
        let mut chain: Vec<Descriptor> = parts.iter().map(of).collect();
        if in_table {
            let (at, last) = (self.at + TABLES + u64::from(id) * TABLE, chain.len() - 1);
            for (index, one) in chain.iter_mut().enumerate() {
                if !is_packed && index < last {
                    one.flags |= NEXT;
                    one.link = index as u16 + 1;
                }
                machine.describe(at + index as u64 * DESCRIPTOR, one, is_packed);
            }
            let length = (chain.len() as u64 * DESCRIPTOR) as u32;
            chain = vec![Descriptor { address: GUEST + at, length, flags: INDIRECT, link: 0 }];
        }
        if is_packed {
            self.submit_packed(machine, id, chain);
        } else {
            self.submit_split(machine, id, chain);
        }
        Some(id)
    }

    fn submit_split(&mut self, machine: &Machine, id: u16, chain: Vec<Descriptor>) {
        let taken: Vec<u16> = self.free.drain(..chain.len()).collect();
        for (index, mut one) in chain.into_iter().enumerate() {
            if let Some(&next) = taken.get(index + 1) {
                one.flags |= NEXT;
                one.link = next;
            }
            machine.describe(self.at + u64::from(taken[index]) * DESCRIPTOR, &one, false);
        }
        self.held.insert(id, taken);
        machine.set16(self.at + DRIVER + 4 + 2 * u64::from(self.next % self.layout.size), id);
        self.next = self.next.wrapping_add(1);
        machine.set16(self.at + DRIVER + 2, self.next);
    }

    fn submit_packed(&mut self, machine: &Machine, id: u16, chain: Vec<Descriptor>) {
        self.free.pop_front();
        self.held.insert(id, vec![chain.len() as u16]);
        let (head, last) = (self.next, chain.len() - 1);
        let mut head_flags = 0;
        for (index, mut one) in chain.into_iter().enumerate() {
            one.flags |= if self.wraps.0 { 1 << 7 } else { 1 << 15 };
            if index < last {
                one.flags |= NEXT;
            }
            one.link = id;
            if index == 0 {
                head_flags = one.flags;
                one.flags = machine.get16(self.at + u64::from(head) * DESCRIPTOR + 14);
            }
            machine.describe(self.at + u64::from(self.next) * DESCRIPTOR, &one, true);
            self.next += 1;
            if self.next == self.layout.size {
                (self.next, self.wraps.0) = (0, !self.wraps.0);
            }
        }
        machine.set16(self.at + u64::from(head) * DESCRIPTOR + 14, head_flags);
    }

    /// Whether the device wants to be notified of the chains that were submitted since the last
    /// query.
    pub(crate) fn wants_kick(&mut self, machine: &Machine) -> bool {
        let asked = std::mem::replace(&mut self.asked, self.next);
        if self.layout.is_packed {
            let (event, flags) =
                (machine.get16(self.at + DEVICE), machine.get16(self.at + DEVICE + 2));
            if flags != 2 {
                return flags == 0;
            }
            // This is Linux's calculation: the event's and the old position are relative to the
            // current round's start.
            let (index, wrap) = (event & 0x7fff, event >> 15 != 0);
            let size = self.layout.size;
            let event = if wrap == self.wraps.0 { index } else { index.wrapping_sub(size) };
            let old = if asked > self.next { asked.wrapping_sub(size) } else { asked };
            return old == self.next || passes(event, self.next, old);
        }
        match self.layout.has_event_index {
            true => {
                let event = machine.get16(self.at + DEVICE + 4 + 8 * u64::from(self.layout.size));
                passes(event, self.next, asked)
            }
            false => machine.get16(self.at + DEVICE) & 1 == 0,
        }
    }

    /// Requests a call for the next used buffer, or none.
    pub(crate) fn want_calls(&mut self, machine: &Machine, wanted: bool) {
        if self.layout.is_packed {
            let event = self.used | u16::from(self.wraps.1) << 15;
            let (event, flags) = match (wanted, self.layout.has_event_index) {
                (true, true) => (event, 2),
                (true, false) => (0, 0),
                (false, _) => (0, 1),
            };
            machine.set16(self.at + DRIVER, event);
            machine.set16(self.at + DRIVER + 2, flags);
        } else if self.layout.has_event_index {
            let event = if wanted { self.used } else { self.used.wrapping_sub(0x4000) };
            machine.set16(self.at + DRIVER + 4 + 2 * u64::from(self.layout.size), event);
        } else {
            machine.set16(self.at + DRIVER, u16::from(!wanted));
        }
    }

    /// Takes the next used buffer: its number, and the number of bytes written.
    pub(crate) fn used(&mut self, machine: &Machine) -> Option<(u16, u32)> {
        let (id, length, places);
        if self.layout.is_packed {
            let at = self.at + u64::from(self.used) * DESCRIPTOR;
            let flags = machine.get16(at + 14);
            if (flags & 1 << 7 != 0, flags & 1 << 15 != 0) != (self.wraps.1, self.wraps.1) {
                return None;
            }
            id = machine.get16(at + 12);
            length = u32::from(machine.get16(at + 8)) | u32::from(machine.get16(at + 10)) << 16;
            places = self.held.remove(&id).expect("the device returns what it has")[0];
            self.used += places;
            if self.used >= self.layout.size {
                (self.used, self.wraps.1) = (self.used - self.layout.size, !self.wraps.1);
            }
            self.free.push_back(id);
        } else {
            if self.used == machine.get16(self.at + DEVICE + 2) {
                return None;
            }
            let at = self.at + DEVICE + 4 + 8 * u64::from(self.used % self.layout.size);
            id = machine.get16(at);
            length = u32::from(machine.get16(at + 4)) | u32::from(machine.get16(at + 6)) << 16;
            let taken = self.held.remove(&id).expect("the device returns what it has");
            places = taken.len() as u16;
            self.free.extend(taken);
            self.used = self.used.wrapping_add(1);
        }
        self.room += places;
        Some((id, length))
    }
}

/// A step of the guest or of the device.
#[derive(Clone, Debug)]
enum Step {
    Submit { reads: u8, writes: u8, in_table: bool },
    Pop,
    Use { which: u8, publish: bool },
    Collect,
    Sleep,
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4_u8, 1..4_u8, any::<bool>())
            .prop_map(|(reads, writes, in_table)| Step::Submit { reads, writes, in_table }),
        3 => Just(Step::Pop),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(which, publish)| Step::Use { which, publish }),
        2 => Just(Step::Collect),
        1 => Just(Step::Sleep),
        1 => Just(Step::Wait),
    ]
}

proptest! {
    /// Chains arrive complete and in order, used buffers are returned in the order in which they
    /// were pushed, and neither side waits for a notification that never arrives.
    #[test]
    fn both_sides_agree(
        size in 1..40_u16, is_packed in any::<bool>(), has_event_index in any::<bool>(),
        starts_at_0 in any::<bool>(), steps in prop::collection::vec(step(), 1..300),
    ) {
        let size = if is_packed { size } else { size.next_power_of_two() };
        let (machine, mut driver) = (Machine::new(), Driver::new(size, is_packed, has_event_index));
        let base = if starts_at_0 { 0 } else { driver.base() };
        let mut queue = Queue::new(&machine.guest, &driver.layout, base).unwrap();
        let mut chain = Chain::default();
        let mut sent: VecDeque<(u16, Vec<Part>)> = VecDeque::new();
        let (mut held, mut pushed, mut visible) = (Vec::new(), VecDeque::new(), 0);
        let (mut sleeps, mut waits, mut serial) = (!queue.enable_kicks(), false, 0u32);
        for step in steps {
            match step {
                Step::Submit { reads, writes, in_table } => {
                    let parts: Vec<_> = (0..reads + writes).map(|index| {
                        serial += 1;
                        let offset = BYTES / 2 + u64::from(serial % 1000) * 64;
                        (offset, 1 + serial % 64, index >= reads)
                    }).collect();
                    if let Some(id) = driver.submit(&machine, &parts, in_table) {
                        sent.push_back((id, parts));
                        let is_kicked = driver.wants_kick(&machine);
                        prop_assert!(is_kicked || !sleeps, "the device sleeps, and gets no kick");
                        if sleeps {
                            sleeps = false;
                            queue.disable_kicks();
                        }
                    }
                }
                Step::Pop => match queue.pop(&machine.guest, &mut chain).unwrap() {
                    None => prop_assert!(sent.is_empty()),
                    Some(buffer) => {
                        let (id, parts) = sent.pop_front().unwrap();
                        prop_assert_eq!(buffer.id, id);
                        let all = chain.readable.iter().map(|one| (one, false));
                        let all = all.chain(chain.writable.iter().map(|one| (one, true)));
                        let got: Vec<_> = all.map(|(one, writes)| {
                            let offset = one.address as u64 - machine.at(0) as u64;
                            (offset, one.length, writes)
                        }).collect();
                        prop_assert_eq!(got, parts);
                        held.push(buffer);
                    }
                },
                Step::Use { which, publish } => {
                    if !held.is_empty() {
                        let buffer = held.remove(usize::from(which) % held.len());
                        serial += 1;
                        queue.push(buffer, serial);
                        pushed.push_back((buffer.id, serial));
                    }
                    if publish && pushed.len() > visible {
                        queue.publish();
                        visible = pushed.len();
                        let is_called = queue.wants_call();
                        prop_assert!(is_called || !waits, "the guest waits, and gets no call");
                        waits = false;
                    }
                }
                Step::Collect => {
                    while let Some(one) = driver.used(&machine) {
                        prop_assert_eq!(Some(one), pushed.pop_front());
                        visible -= 1;
                    }
                    prop_assert_eq!(visible, 0);
                    driver.want_calls(&machine, false);
                    waits = false;
                }
                Step::Sleep => sleeps = !queue.enable_kicks(),
                Step::Wait => {
                    driver.want_calls(&machine, true);
                    waits = visible == 0;
                }
            }
        }
    }

    /// Rings with any content lead to a fault, or to chains inside the guest's memory.
    #[test]
    fn no_ring_leads_outside(
        is_packed in any::<bool>(), shift in 0..7_u32, seed in any::<u64>(), near in any::<bool>(),
    ) {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        let mut random = SmallRng::seed_from_u64(seed);
        let (machine, driver) = (Machine::new(), Driver::new(1 << shift, is_packed, true));
        let mut bytes = vec![0u8; 4096];
        random.fill(&mut bytes[..]);
        for at in [0, DRIVER, DEVICE, TABLES] {
            machine.set(at, &bytes);
        }
        // Mostly valid addresses and few flags let more of the code run before a fault.
        for index in 0..if near { 256 } else { 0 } {
            let tables = TABLES - DRIVER;
            let one = Descriptor {
                address: GUEST + random.random_range(0..2 * tables) / 16 * 16,
                length: random.random_range(0..512) / 16 * 16,
                flags: random.random_range(0..8) | (random.random::<u16>() & 0x8080),
                link: random.random_range(0..80),
            };
            let at = if index < 128 { index * DESCRIPTOR } else { TABLES + index * DESCRIPTOR };
            machine.describe(at, &one, is_packed);
        }
        let mut queue = Queue::new(&machine.guest, &driver.layout, random.random()).unwrap_or_else(
            |_| Queue::new(&machine.guest, &driver.layout, driver.base()).unwrap()
        );
        let (start, mut chain) = (machine.at(0) as usize, Chain::default());
        for _ in 0..200 {
            match queue.pop(&machine.guest, &mut chain) {
                Ok(None) => machine.set16(DRIVER + 2, random.random()),
                Err(_) => break,
                Ok(Some(buffer)) => {
                    prop_assert!(buffer.id < driver.layout.size);
                    for part in chain.readable.iter().chain(&chain.writable) {
                        let at = part.address as usize;
                        prop_assert!(at >= start && at + part.length as usize <= start + BYTES as usize);
                    }
                    queue.push(buffer, 1);
                    queue.publish();
                    queue.wants_call();
                    queue.enable_kicks();
                }
            }
        }
    }
}

#[test]
fn loops_and_impossible_queues_are_faults() {
    let machine = Machine::new();
    let driver = Driver::new(8, false, false);
    let mut queue = Queue::new(&machine.guest, &driver.layout, 0).unwrap();
    let looped = Descriptor { address: GUEST, length: 1, flags: NEXT, link: 0 };
    machine.describe(0, &looped, false);
    machine.set16(DRIVER + 2, 1);
    assert_eq!(queue.pop(&machine.guest, &mut Chain::default()), Err(Fault::Long));
    // The last entry of this table points back to the first.
    let table = Descriptor { address: GUEST + TABLES, length: 32, flags: INDIRECT, link: 0 };
    machine.describe(0, &table, false);
    machine.describe(TABLES, &Descriptor { link: 1, ..looped }, false);
    machine.describe(TABLES + 16, &looped, false);
    assert_eq!(queue.pop(&machine.guest, &mut Chain::default()), Err(Fault::Long));
    machine.describe(TABLES, &Descriptor { flags: INDIRECT, ..looped }, false);
    assert_eq!(queue.pop(&machine.guest, &mut Chain::default()), Err(Fault::Table));
    machine.set16(DRIVER + 2, 9);
    let mut queue = Queue::new(&machine.guest, &driver.layout, 0).unwrap();
    assert_eq!(queue.pop(&machine.guest, &mut Chain::default()), Err(Fault::Jump(9)));

    let refused = |size, is_packed, addresses| {
        let layout = Layout { size, is_packed, addresses, ..driver.layout };
        Queue::new(&machine.guest, &layout, 0).err().unwrap()
    };
    let right = driver.layout.addresses;
    assert_eq!(refused(0, false, right), Fault::Size(0));
    assert_eq!(refused(7, false, right), Fault::Size(7));
    assert_eq!(refused(SIZE * 2, true, right), Fault::Size(2048));
    let outside = Addresses { device: USER + BYTES - 8, ..right };
    assert!(matches!(refused(8, false, outside), Fault::Outside(_)));
    let odd = Addresses { descriptors: USER + 8, ..right };
    assert!(matches!(refused(8, false, odd), Fault::Alignment(_)));
}
