//! The timing model: when each command completes.
//!
//! **Problem.** Schedulers are judged by what a device does with what they send it: how its
//! parallel parts fill up, where its bandwidth ends, how writing slows reading down. Few machines
//! have the devices of the papers; a model has to stand in for them, in real time at a million
//! commands a second and in virtual time. **Model.** A line of servers, each serving in the order
//! of arrival:
//!
//! ```text
//!            ┌ read:  die (page read) ─▶ channel ─▶ link to the host ─▶ fixed ─▶ done       per page
//! controller ┤
//!            └ write: room in the buffer ─▶ link to the device ─▶ fixed ─▶ done             per command
//!                     buffer ─▶ channel ─▶ idle die: program, and what makes room           in the background
//! ```
//!
//! - *The controller* takes its time for each command, one after the other, whatever its size.
//! - *Reads* are cut into pages, which go to their dies at once, share channels and leave over one
//!   link; the command is done when its last page is. Each server takes pages in the order in which
//!   they come to it, whosever they are: pages of commands mix at dies, channels and link, but at a
//!   die a page waits for all pages of earlier commands. With `pages-at-once` a command sends the
//!   next page when one has arrived, so that a small read overtakes most of a large one.
//! - *Writes* are done when they are in the buffer; each crosses the link as a whole. As soon as
//!   there is enough for a program an idle die takes it. When the buffer is full writes wait: then
//!   the dies set the pace. A command is let in while there is any room, so that one larger than the
//!   buffer does not wait for ever.
//! - *Flush* waits until all that was in the buffer is on the media; with power-loss protection it
//!   has nothing to wait for.
//! - *Discard* and *write zeroes* change tables only, and give space back.
//! - *SATA*: one link for both directions.
//!
//! The other work of a die is in `media`, the cost of overwriting data in `space`, and reading
//! ahead in `read_ahead`.
//!
//! Each server is reserved at the very time when something arrives there, never ahead: a command
//! that waits for a busy die does not hold the link up. Therefore it is a small event loop and not
//! one formula per command.
//!
//! **What it leaves out.** Reading what is still in the buffer (it costs what reading from the
//! media does), wear, read retries, mapping tables that do not fit, moves over the
//! channel, the time that a controller needs to find work. Times do not vary by themselves; they
//! vary by who meets whom where.
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
    /// ([`crate::profile::Host::capacity`]): it says how long a fresh device stays fresh.
    pub capacity: u64,
    /// The writes that the device has had before.
    pub state: State,
    /// The most commands started and not popped.
    pub outstanding: u32,
    /// Where pages lie and where each die is in its cycle.
    pub seed: u64,
}

/// A command that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The caller's name for it.
    pub id: u32,
    /// When.
    pub at_ns: u64,
}

/// A device that takes its time. See the [module's text](self).
pub struct Ssd {
    times: Times,
    controller: Server,
    /// To the host, and to the device; the first is both where there is only one.
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
    /// A die's work ends, unless it was put off.
    worked: Agenda,
    /// A command is done.
    done: Agenda,
    /// When the first of all these is due.
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
    /// From where pages are still to be read.
    offset: u64,
    end: u64,
    /// Pages on their way.
    pages: u32,
}

/// Where writes wait for the media. Positions count bytes in the order in which they came in.
struct Buffer {
    size: u64,
    program: u64,
    /// Everything that came in.
    came: u64,
    /// Of that, what dies have taken.
    taken: u64,
    /// The bytes in the buffer that are not on the media.
    held: u64,
    /// Bytes held, times how long, up to some time.
    held_byte_ns: u128,
    counted_ns: u64,
    /// Of what came and was not taken, what will cost moves.
    random: u64,
    /// The bytes that can still be written at the faster rate.
    slc: u64,
    /// Writes that wait for room.
    waiting: VecDeque<u32>,
    /// Flushes that wait, and the position up to which they do.
    flushes: VecDeque<(u32, u64)>,
    /// Dies without work, the longest idle first.
    idle: VecDeque<u32>,
    /// Per die, the moves it owes in 1/65536, and its programs since it erased.
    debts: Box<[(u32, u32)]>,
}

/// Pages on their way beside one for each command: enough for many large commands to keep every die
/// busy.
const SPARE_PAGES: u32 = 1024;

const ONE_MOVE: u32 = 1 << 16;

/// Channel and bytes of a page, in one event's detail.
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

    /// When to call [`pop`](Self::pop): nothing completes before. It may turn out to be a little
    /// early, while the command is still on its way; `None` when nothing is.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        (self.live > 0).then_some(self.next_ns)
    }

    /// Takes the next command that has completed by now, in the order of completion.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Completed> {
        // Callers ask far more often than anything is due.
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

    /// How busy its parts have been since the start.
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

    /// When something happens inside.
    #[inline]
    fn inner_ns(&self) -> u64 {
        let reads_ns = self.read.next_ns().min(self.moved.next_ns());
        self.fetched.next_ns().min(self.worked.next_ns()).min(reads_ns)
    }

    /// Lets happen what happens at this time: one event.
    #[inline]
    fn step(&mut self, now_ns: u64) {
        // Kinds at the same time go in a fixed order: the same calls give the same answers.
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

    /// Sends the command's pages to their dies, as many as there may be on their way.
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
            // The first page needs no spare place: each command has one, so none waits for ever.
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

    /// A read has taken or sent for all of its pages: what comes next may be read ahead.
    #[inline]
    fn read_on(&mut self, now_ns: u64, slot: u32) {
        let Some(ahead) = &mut self.ahead else { return };
        let Command { length, end, .. } = self.commands[slot as usize];
        if let Some(stream) = ahead.note(end - u64::from(length), end) {
            self.read_ahead(now_ns, stream);
        }
    }

    /// Reads ahead what the stream wants, as far as dies are idle.
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

    /// A page that was read ahead is in the buffer: for those that wait for it, and for later.
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

    /// The command will be done at this time; its slot is free.
    #[inline]
    fn complete(&mut self, at_ns: u64, slot: u32) {
        self.unused.push(slot);
        self.done.add(Event { at_ns, subject: self.commands[slot as usize].id, detail: 0 });
    }

    /// Writes that wait come into the buffer while there is room.
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
            // From here on reads get what was written.
            if let Some(ahead) = &mut self.ahead {
                ahead.drop_range(offset, end);
            }
        }
        self.hand_out(now_ns);
    }

    /// Idle dies take what the buffer has for them.
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

    /// A die without work begins what it owes, else a program, else it is idle.
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

    /// Takes what a program writes out of the buffer.
    fn program(&mut self, die: u32) -> (Work, u64) {
        let Buffer { program, came, taken, .. } = self.buffer;
        let bytes = program.min(came - taken);
        let random = bytes.min(self.buffer.random);
        self.buffer.taken += bytes;
        self.buffer.random -= random;
        // A program takes its whole space even if it is not full.
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

    /// Flushes end when all that came before them is on the media.
    fn end_flushes(&mut self, now_ns: u64) {
        while let Some(&(slot, position)) = self.buffer.flushes.front() {
            // All before the oldest program under way, and before what no die has taken, is on the
            // media.
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
        // On a device that has been written for long every die is somewhere in its cycle.
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

    /// Counts what it holds up to now.
    fn count(&mut self, now_ns: u64) {
        self.held_byte_ns += u128::from(self.held) * u128::from(now_ns - self.counted_ns);
        self.counted_ns = now_ns;
    }

    /// Whether a die may take something: enough for a program, or what a flush waits for.
    #[inline]
    fn has_program(&self) -> bool {
        let left = self.came - self.taken;
        left >= self.program
            || (left > 0 && self.flushes.back().is_some_and(|&(_, position)| position > self.taken))
    }
}
