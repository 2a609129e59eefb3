//! The timing model: when each command completes.
//!
//! **Problem.** The effect of a scheduler depends on the device: on the use of its parallel parts,
//! the limit of its bandwidth, and the effect of writes on reads. Few machines have the devices of
//! the papers; a model has to replace them, in real time at a million commands a second and in
//! virtual time. **Model.** A line of servers, each serving in the order of arrival:
//!
//! ```text
//!            ┌ read:  die (page read) ─▶ channel ─▶ link to the host ─▶ fixed ─▶ done  per page
//! controller ┤
//!            └ write: room in the buffer ─▶ link to the device ─▶ fixed ─▶ done     per command
//!                     buffer ─▶ channel ─▶ idle die: program, moves, erase       in the background
//! ```
//!
//! - *The controller* takes its time for each command, one after the other, independent of the
//!   size.
//! - *Reads* are cut into pages, which go to their dies at once, share channels and leave over one
//!   link; the command is done when its last page is. Each server takes the pages of all commands
//!   in the order of arrival: pages of commands mix at dies, channels and link, but at a die a page
//!   waits for all pages of earlier commands. With `pages-at-once` a command sends the next page
//!   when one has arrived, so that a small read overtakes most of a large one.
//! - *Writes* are done when they are in the buffer; each crosses the link as a whole. When the
//!   buffer has enough data for a program, an idle die takes it. When the buffer is full, writes
//!   wait: then the dies set the pace. A command enters the buffer while there is any room, so that
//!   a command larger than the buffer does not wait for ever.
//! - *Flush* waits until all data that was in the buffer is on the media; with power-loss
//!   protection it does not wait.
//! - *Discard* and *write zeroes* change tables only, and give space back.
//! - *SATA*: one link for both directions.
//!
//! The other work of a die is in `media`, the cost of overwriting data in `space`, and reading
//! ahead in `read_ahead`.
//!
//! Each server is reserved at the time when a page or command arrives there, never ahead: a command
//! that waits for a busy die does not delay the link. Therefore the model is a small event loop and
//! not one formula per command.
//!
//! **Left out.** Reads of data that is still in the buffer (they cost as much as reads from the
//! media), wear, read retries, mapping tables that do not fit, moves over the channel, the time
//! that a controller needs to find work. Times vary only because commands wait for each other.
//!
//! **Cost.** No allocation per command. Events of a kind are added nearly in order (`agenda`).

use std::collections::VecDeque;

use fairq_core::Op;

use crate::profile::{Interface, Profile, State};
use agenda::{Agenda, Event, NEVER};
use media::{Media, PageRead, Work, mix};
use read_ahead::{Found, ReadAhead};
use server::{Server, Speed};
use space::Space;

mod agenda;
mod ftl;
mod media;
mod read_ahead;
mod server;
mod space;
mod usage;

pub use usage::{Busy, Parts, Usage};

/// The parameters of a model in addition to the profile.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The device's capacity in bytes. For a volume that is a part of a device give the device's
    /// ([`crate::profile::Host::capacity`]), which determines how long a fresh device stays fresh.
    pub capacity: u64,
    /// Earlier writes to the device.
    pub state: State,
    /// The most commands started and not popped.
    pub outstanding: u32,
    /// Seed of the pages' places and of each die's position in its cycle.
    pub seed: u64,
}

/// A command that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The caller's identifier.
    pub id: u32,
    /// Time of completion.
    pub at_ns: u64,
}

/// A model of an SSD in time. See the [module's text](self).
pub struct Ssd {
    times: Times,
    controller: Server,
    /// The links to the host and to the device; the first serves both directions where there is
    /// only one.
    links: [Server; 2],
    to_device: usize,
    media: Media,
    space: Space,
    buffer: Buffer,
    ahead: Option<Box<ReadAhead>>,
    commands: Box<[Command]>,
    unused: Vec<u32>,
    live: u32,
    /// The pages that may be under way in addition to one for each command.
    spare_pages: u32,
    /// The controller has a command ready.
    fetched: Agenda,
    /// A page is in its die's register.
    read: Agenda,
    /// A page has left its channel.
    moved: Agenda,
    /// A die's work ends, unless it was delayed.
    worked: Agenda,
    /// A command is done.
    done: Agenda,
    /// Time of the first of all these events.
    next_ns: u64,
}

struct Times {
    read_ns: u64,
    write_ns: u64,
    read_fixed_ns: u64,
    write_fixed_ns: u64,
    to_host: Speed,
    to_device: Speed,
    program_ns: u64,
    slc_program_ns: u64,
    die_read_ns: u64,
    erase_ns: u64,
    programs_per_erase: u32,
    flush_waits: bool,
    pages_at_once: u32,
}

#[derive(Clone, Copy)]
struct Command {
    id: u32,
    op: Op,
    length: u32,
    /// Start of the range that is still to be read.
    offset: u64,
    end: u64,
    /// Number of pages under way.
    pages: u32,
}

/// The buffer in which writes wait for the media. Positions count bytes in the order of their
/// arrival.
struct Buffer {
    size: u64,
    program: u64,
    /// Bytes that have arrived.
    came: u64,
    /// Bytes of these that dies have taken.
    taken: u64,
    /// The bytes in the buffer that are not on the media.
    held: u64,
    /// Bytes held, times nanoseconds, up to `counted_ns`.
    held_byte_ns: u128,
    counted_ns: u64,
    /// Bytes that have arrived and were not taken, and will cost moves.
    random: u64,
    /// The bytes that can still be written at the faster rate.
    slc: u64,
    /// Writes that wait for room.
    waiting: VecDeque<u32>,
    /// Flushes that wait, and the position up to which each waits.
    flushes: VecDeque<(u32, u64)>,
    /// Dies without work, the longest idle first.
    idle: VecDeque<u32>,
    /// For each die, its outstanding moves in 1/65536, and its programs since its last erase.
    debts: Box<[(u32, u32)]>,
}

/// Pages under way beside one for each command: enough for many large commands to keep every die
/// busy.
const SPARE_PAGES: u32 = 1024;

const ONE_MOVE: u32 = 1 << 16;

/// Bits of the number of bytes in the detail of a page's event; the channel is above them.
const BYTES_BITS: u32 = 17;

impl Ssd {
    /// An idle device.
    pub fn new(profile: &Profile, setup: &Setup) -> Self {
        let media = Media::new(profile, setup.seed);
        let dies = media.dies() as usize;
        let commands = setup.outstanding.max(1) as usize;
        let ahead = ReadAhead::new(profile, setup.capacity).map(Box::new);
        let places = ahead.as_ref().map_or(0, |ahead| ahead.places());
        let pages = commands + SPARE_PAGES as usize + places;
        let idle = Command { id: 0, op: Op::Flush, length: 0, offset: 0, end: 0, pages: 0 };
        Ssd {
            times: Times::new(profile),
            controller: Server::default(),
            links: [Server::default(); 2],
            to_device: usize::from(profile.host.interface == Interface::Nvme),
            space: Space::new(profile, setup.capacity, setup.state, setup.seed),
            buffer: Buffer::new(profile, setup, dies, commands),
            media,
            ahead,
            commands: vec![idle; commands].into(),
            unused: (0..commands as u32).rev().collect(),
            live: 0,
            spare_pages: SPARE_PAGES,
            fetched: Agenda::new(commands),
            read: Agenda::new(pages),
            moved: Agenda::new(pages),
            worked: Agenda::new(dies),
            done: Agenda::new(commands),
            next_ns: NEVER,
        }
    }

    /// Starts a command that the caller calls `id`. Times never go back.
    ///
    /// # Panics
    /// When as many commands are outstanding as the setup allows.
    #[inline]
    pub fn start(&mut self, now_ns: u64, id: u32, op: Op, offset: u64, length: u32) {
        assert!((self.live as usize) < self.commands.len(), "more commands than the setup allows");
        let slot = self.unused.pop().expect("a command that is done has given its slot back");
        self.live += 1;
        self.commands[slot as usize] =
            Command { id, op, length, offset, end: offset + u64::from(length), pages: 0 };
        let takes_ns = if op == Op::Read { self.times.read_ns } else { self.times.write_ns };
        let at_ns = self.controller.serve(now_ns, takes_ns);
        self.fetched.add(Event { at_ns, subject: slot, detail: 0 });
        self.next_ns = self.next_ns.min(at_ns);
    }

    /// Time at which to call [`pop`](Self::pop): no command completes earlier, and it may be that
    /// none has completed even then. `None` when no command is outstanding.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        (self.live > 0).then_some(self.next_ns)
    }

    /// Takes the next command that has completed by now, in the order of completion.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Completed> {
        // Most calls come when nothing is due.
        if self.next_ns > now_ns {
            return None;
        }
        self.pop_due(now_ns)
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<Completed> {
        loop {
            let (inner_ns, done_ns) = (self.inner_ns(), self.done.next_ns());
            self.next_ns = inner_ns.min(done_ns);
            if self.next_ns > now_ns {
                return None;
            }
            // No event inside adds a completion before its own time, so this one is the next.
            if done_ns <= inner_ns {
                let Event { at_ns, subject: id, .. } = self.done.take();
                self.next_ns = inner_ns.min(self.done.next_ns());
                self.live -= 1;
                return Some(Completed { id, at_ns });
            }
            self.step(inner_ns);
        }
    }

    /// Busy times of its parts since the start.
    pub fn usage(&self) -> Usage {
        Usage {
            controller_ns: self.controller.busy_ns(),
            dies_ns: self.media.busy_ns(),
            channels_ns: self.media.channels_ns(),
            links_ns: self.links.each_ref().map(Server::busy_ns),
            held_byte_ns: self.buffer.held_byte_ns,
            units: self.space.units(),
        }
    }

    /// The number of these parts.
    pub fn parts(&self) -> Parts {
        let (dies, channels) = (self.media.dies(), self.media.channels());
        Parts { dies, channels, buffer: self.buffer.size }
    }

    /// The number of commands that are started and not popped.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.live
    }

    /// Time of the next event inside.
    #[inline]
    fn inner_ns(&self) -> u64 {
        let reads_ns = self.read.next_ns().min(self.moved.next_ns());
        self.fetched.next_ns().min(self.worked.next_ns()).min(reads_ns)
    }

    /// Performs one event of this time.
    #[inline]
    fn step(&mut self, now_ns: u64) {
        // Kinds of events at the same time have a fixed order, so that the same calls return the
        // same results.
        if self.moved.next_ns() == now_ns {
            let Event { subject, detail, .. } = self.moved.take();
            // Pages that were read ahead have the subjects beyond those of commands.
            match subject.checked_sub(self.commands.len() as u32) {
                None => self.page_moved(now_ns, subject, u64::from(detail)),
                Some(place) => self.page_is_here(now_ns, place),
            }
        } else if self.read.next_ns() == now_ns {
            let Event { subject, detail, .. } = self.read.take();
            let bytes = detail & ((1 << BYTES_BITS) - 1);
            let at_ns = self.media.transfer(now_ns, detail >> BYTES_BITS, u64::from(bytes));
            self.moved.add(Event { at_ns, subject, detail: bytes });
        } else if self.fetched.next_ns() == now_ns {
            let slot = self.fetched.take().subject;
            self.command_fetched(now_ns, slot);
        } else {
            let die = self.worked.take().subject;
            self.die_worked(now_ns, die);
        }
    }

    #[inline]
    fn command_fetched(&mut self, now_ns: u64, slot: u32) {
        let Command { op, offset, end, .. } = self.commands[slot as usize];
        match op {
            Op::Read if offset < end => self.read_pages(now_ns, slot),
            Op::Read => self.complete(now_ns + self.times.read_fixed_ns, slot),
            Op::Write => {
                self.buffer.waiting.push_back(slot);
                self.let_in(now_ns);
            }
            Op::Flush if self.times.flush_waits && self.buffer.held > 0 => {
                self.buffer.flushes.push_back((slot, self.buffer.came));
                self.hand_out(now_ns);
            }
            Op::Flush => self.complete(now_ns + self.times.write_fixed_ns, slot),
            Op::Discard | Op::WriteZeroes => {
                self.space.discard(offset, end);
                if let Some(ahead) = &mut self.ahead {
                    ahead.drop_range(offset, end);
                }
                self.complete(now_ns + self.times.write_fixed_ns, slot);
            }
        }
    }

    /// Sends the command's pages to their dies, as many as may be under way.
    #[inline]
    fn read_pages(&mut self, now_ns: u64, slot: u32) {
        let shift = self.media.page_shift();
        loop {
            let command = &mut self.commands[slot as usize];
            if command.offset >= command.end {
                return self.read_on(now_ns, slot);
            }
            if command.pages >= self.times.pages_at_once {
                return;
            }
            // The first page needs no spare place: each command has a place of its own, so none
            // waits for ever.
            if command.pages > 0 {
                if self.spare_pages == 0 {
                    return;
                }
                self.spare_pages -= 1;
            }
            command.pages += 1;
            let page = command.offset >> shift;
            let page_end = command.end.min((page + 1) << shift);
            let bytes = page_end - command.offset;
            command.offset = page_end;
            let found = match &mut self.ahead {
                None => Found::No,
                Some(ahead) => ahead.take(page, page_end, bytes, slot),
            };
            match found {
                Found::No => self.send_page(now_ns, slot, page, bytes),
                Found::OnItsWay => {}
                Found::Here => {
                    self.moved.add(Event { at_ns: now_ns, subject: slot, detail: bytes as u32 })
                }
            }
        }
    }

    /// A page goes to its die.
    #[inline]
    fn send_page(&mut self, now_ns: u64, subject: u32, page: u64, bytes: u64) {
        match self.media.read(now_ns, page, bytes) {
            PageRead::InRegister { at_ns, channel } => {
                // A page has at most 64 KiB, which is 17 bits.
                let detail = channel << BYTES_BITS | bytes as u32;
                self.read.add(Event { at_ns, subject, detail });
            }
            PageRead::Moved { at_ns } => {
                self.moved.add(Event { at_ns, subject, detail: bytes as u32 })
            }
        }
    }

    /// A read has found or requested all of its pages: the next ones may be read ahead.
    #[inline]
    fn read_on(&mut self, now_ns: u64, slot: u32) {
        let Some(ahead) = &mut self.ahead else { return };
        let Command { length, end, .. } = self.commands[slot as usize];
        if let Some(stream) = ahead.note(end - u64::from(length), end) {
            self.read_ahead(now_ns, stream);
        }
    }

    /// Reads ahead for a stream while the next page's die is idle.
    fn read_ahead(&mut self, now_ns: u64, stream: usize) {
        let bytes = 1 << self.media.page_shift();
        while let Some(ahead) = &mut self.ahead
            && let Some(page) = ahead.wanted(stream)
            && self.media.is_idle(now_ns, page)
        {
            let subject = self.commands.len() as u32 + ahead.send(stream);
            self.send_page(now_ns, subject, page, bytes);
        }
    }

    /// A page that was read ahead is in the buffer, for waiting and for later commands.
    fn page_is_here(&mut self, now_ns: u64, place: u32) {
        let ahead = self.ahead.as_mut().expect("it has a place");
        ahead.arrived(place);
        let stream = ahead.stream_of(place);
        while let Some((slot, bytes)) = self.ahead.as_mut().and_then(|it| it.next_waiting(place)) {
            self.page_moved(now_ns, slot, bytes);
        }
        self.read_ahead(now_ns, stream);
    }

    #[inline]
    fn page_moved(&mut self, now_ns: u64, slot: u32, bytes: u64) {
        let at_ns = self.links[0].serve(now_ns, self.times.to_host.takes_ns(bytes));
        let command = &mut self.commands[slot as usize];
        command.pages -= 1;
        if command.pages > 0 {
            self.spare_pages += 1;
        }
        if command.offset < command.end {
            self.read_pages(now_ns, slot);
        } else if command.pages == 0 {
            // The link serves in order: its last page is the last to arrive.
            self.complete(at_ns + self.times.read_fixed_ns, slot);
        }
    }

    /// Completes a command at `at_ns`, and frees its slot.
    #[inline]
    fn complete(&mut self, at_ns: u64, slot: u32) {
        self.unused.push(slot);
        self.done.add(Event { at_ns, subject: self.commands[slot as usize].id, detail: 0 });
    }

    /// Moves waiting writes into the buffer while there is room.
    fn let_in(&mut self, now_ns: u64) {
        self.buffer.count(now_ns);
        while self.buffer.held < self.buffer.size {
            let Some(slot) = self.buffer.waiting.pop_front() else { break };
            let Command { offset, end, .. } = self.commands[slot as usize];
            let bytes = end - offset;
            let at_ns =
                self.links[self.to_device].serve(now_ns, self.times.to_device.takes_ns(bytes));
            self.complete(at_ns + self.times.write_fixed_ns, slot);
            self.buffer.came += bytes;
            self.buffer.held += bytes;
            self.buffer.random += self.space.note(offset, bytes as u32);
            // From here on reads must get the new data.
            if let Some(ahead) = &mut self.ahead {
                ahead.drop_range(offset, end);
            }
        }
        self.hand_out(now_ns);
    }

    /// Gives programs to idle dies.
    fn hand_out(&mut self, now_ns: u64) {
        while self.buffer.has_program() {
            let Some(die) = self.buffer.idle.pop_front() else { return };
            self.find_work(now_ns, die);
        }
    }

    fn die_worked(&mut self, now_ns: u64, die: u32) {
        match self.media.end(now_ns, die) {
            Err(at_ns) => self.worked.add(Event { at_ns, subject: die, detail: 0 }),
            Ok(work) => {
                self.find_work(now_ns, die);
                if let Work::Program { bytes, .. } = work {
                    self.buffer.count(now_ns);
                    self.buffer.held -= u64::from(bytes);
                    self.end_flushes(now_ns);
                    self.let_in(now_ns);
                }
            }
        }
    }

    /// A die without work begins an outstanding move or erase, else a program, else it is idle.
    fn find_work(&mut self, now_ns: u64, die: u32) {
        let (owed, programs) = &mut self.buffer.debts[die as usize];
        let (work, takes_ns) = if *owed >= ONE_MOVE {
            *owed -= ONE_MOVE;
            *programs += 1;
            (Work::Move, self.times.die_read_ns + self.times.program_ns)
        } else if *programs >= self.times.programs_per_erase {
            *programs -= self.times.programs_per_erase;
            (Work::Erase, self.times.erase_ns)
        } else if self.buffer.has_program() {
            self.program(die)
        } else {
            return self.buffer.idle.push_back(die);
        };
        let at_ns = self.media.begin(now_ns, die, work, takes_ns);
        self.worked.add(Event { at_ns, subject: die, detail: 0 });
    }

    /// Takes the data of a program out of the buffer.
    fn program(&mut self, die: u32) -> (Work, u64) {
        let Buffer { program, came, taken, .. } = self.buffer;
        let bytes = program.min(came - taken);
        let random = bytes.min(self.buffer.random);
        self.buffer.taken += bytes;
        self.buffer.random -= random;
        // A program uses its whole space even if its data is shorter.
        if !self.space.take(program) {
            let (owed, programs) = &mut self.buffer.debts[die as usize];
            *owed +=
                (self.space.moves() * random as f64 / program as f64 * f64::from(ONE_MOVE)) as u32;
            *programs += 1;
        }
        let fast = self.buffer.slc > 0;
        self.buffer.slc = self.buffer.slc.saturating_sub(program);
        let takes_ns = if fast { self.times.slc_program_ns } else { self.times.program_ns };
        (Work::Program { bytes: bytes as u32, position: taken }, takes_ns)
    }

    /// Completes flushes whose earlier writes are all on the media.
    fn end_flushes(&mut self, now_ns: u64) {
        while let Some(&(slot, position)) = self.buffer.flushes.front() {
            // All data before the oldest program under way, and before the data that no die has
            // taken, is on the media.
            let oldest = self.media.positions().min().unwrap_or(u64::MAX).min(self.buffer.taken);
            if oldest < position {
                return;
            }
            self.buffer.flushes.pop_front();
            self.complete(now_ns + self.times.write_fixed_ns, slot);
        }
    }
}

impl Times {
    fn new(profile: &Profile) -> Self {
        let (controller, media) = (&profile.controller, &profile.media);
        let garbage = profile.garbage.as_ref();
        Times {
            read_ns: controller.read_us.ns(),
            write_ns: controller.write_us.ns(),
            read_fixed_ns: controller.read_fixed_us.ns(),
            write_fixed_ns: controller.write_fixed_us.ns(),
            to_host: Speed::new(profile.link.read_mb_s.ns_per_mib()),
            to_device: Speed::new(profile.link.write_mb_s.ns_per_mib()),
            program_ns: media.program_us.ns(),
            slc_program_ns: profile.slc.as_ref().map_or(0, |slc| slc.program_us.ns()),
            die_read_ns: media.read_us.ns(),
            erase_ns: garbage.map_or(0, |garbage| garbage.erase_us.ns()),
            // Media that is written in place is never erased.
            programs_per_erase: garbage
                .map_or(u32::MAX, |garbage| garbage.programs_per_erase.get()),
            flush_waits: !controller.power_loss_protection,
            pages_at_once: controller.pages_at_once.map_or(u32::MAX, |pages| pages.get()),
        }
    }
}

impl Buffer {
    fn new(profile: &Profile, setup: &Setup, dies: usize, commands: usize) -> Self {
        // On a device that has been written for long, every die is at a random position of its
        // cycle.
        let debt = |die: u64| match &profile.garbage {
            Some(garbage) if setup.state == State::Steady => {
                let random = mix(setup.seed ^ die);
                (
                    random as u32 & (ONE_MOVE - 1),
                    (random >> 32) as u32 % garbage.programs_per_erase.get(),
                )
            }
            _ => (0, 0),
        };
        let slc = profile.slc.as_ref().filter(|_| setup.state == State::Fresh);
        let ahead_kib = profile.read_ahead.map_or(0, |ahead| ahead.room_kib());
        Buffer {
            size: u64::from(profile.buffer.size_kib.get() - ahead_kib) << 10,
            program: u64::from(profile.media.program_kib.get()) << 10,
            came: 0,
            taken: 0,
            held: 0,
            held_byte_ns: 0,
            counted_ns: 0,
            random: 0,
            slc: slc.map_or(0, |slc| u64::from(slc.size_gb.get()) * 1_000_000_000),
            waiting: VecDeque::with_capacity(commands),
            flushes: VecDeque::with_capacity(commands),
            idle: (0..dies as u32).collect(),
            debts: (0..dies as u64).map(debt).collect(),
        }
    }

    /// Adds the bytes held up to now to `held_byte_ns`.
    fn count(&mut self, now_ns: u64) {
        self.held_byte_ns += u128::from(self.held) * u128::from(now_ns - self.counted_ns);
        self.counted_ns = now_ns;
    }

    /// Whether a die may take data: enough for a program, or data for which a flush waits.
    #[inline]
    fn has_program(&self) -> bool {
        let left = self.came - self.taken;
        left >= self.program
            || (left > 0 && self.flushes.back().is_some_and(|&(_, position)| position > self.taken))
    }
}
