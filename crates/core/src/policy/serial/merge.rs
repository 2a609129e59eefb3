//! Merging: adjacent requests of a flow become one command while they are staged.
//!
//! **Problem.** If a program reads or writes a stream in small pieces, many at a time, adjacent
//! pieces wait together until their flow is served. One command of 128 KiB is less work for the
//! device, and for every layer in between, than 32 commands of 4 KiB; and a scheduler that counts
//! requests, or the device's slots, should count the device's commands.
//!
//! **Model.** The scheduler inside knows *units* instead of requests: a unit is a request, or a
//! chain of them that lie one after the other. An arrival that begins where a staged unit ends is
//! appended to it (*back merging*), one that ends where a staged unit begins is put before it
//! (*front merging*); the scheduler is notified that the unit has
//! [grown](super::SerialPolicy::grow), with the additional cost. Any other arrival is a new unit. A
//! unit takes one slot, from when it is selected until its last part has completed, and its port
//! [joins](crate::Next::Join) its parts to one command.
//!
//! Only requests that a device can do as one command, for one tenant, at one moment are merged:
//! reads with reads and writes with writes of one flow, submitted to one port (whose memory they
//! use), at most `most_bytes` and [`MOST_PARTS`] of them, and nothing across a *barrier*. A request
//! that is neither read nor write is a barrier for its flow, and a host sets one before and after
//! each request that has to be alone ([`Port::barrier`](crate::Port::barrier)), durable writes for
//! example.
//!
//! **Search.** There are two tables of hints, one by the ends of units and one by their beginnings,
//! each with a power of two of entries, without chains: an entry names the unit that was put there
//! last, and a search checks that it is staged and fits. A collision costs a possible merge, and
//! nothing has to be taken out of the tables.
//!
//! **Left out**: joining two staged units when an arrival closes the gap between them. It would
//! take a request out of the middle of the scheduler's queues for a case that a stream does not
//! have.
//!
//! **Memory.** Per request a unit and a part, per flow a number, and the tables; all allocated when
//! the policy is built.
//!
//! **Knobs.** `most_bytes`; Linux merges up to 512 KiB on most drives (max_sectors_kb), and 128
//! parts (max_segments).

use alloc::boxed::Box;

use bytemuck::Zeroable;

use super::{Arrival, Job, SerialConfig};
use crate::contract::bounds::{boxed, zeroes};
use crate::contract::port::{Op, Outcome};

/// The most requests of one command.
pub const MOST_PARTS: u32 = 128;

const NONE: u32 = u32::MAX;
/// An odd number close to 2^64 divided by the golden ratio: multiplying by it spreads numbers that
/// lie at equal distances.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The units of all ports.
pub struct Merger {
    most_bytes: u32,
    tag_bits: u32,
    units: Box<[Unit]>,
    /// The numbers of the units that are not in use: a stack, of which `spare` are left.
    stock: Box<[u32]>,
    spare: usize,
    parts: Box<[Part]>,
    /// Units by their end, and in `starts` by their beginning.
    ends: Box<[u32]>,
    starts: Box<[u32]>,
    table_bits: u32,
    /// Per flow, the number of barriers that it has had.
    barriers: Box<[u64]>,
    /// Per port, the part that it issues next, of a unit that it is in the midst of.
    cursors: Box<[u32]>,
}

/// A unit of zeroes is not staged, so hints at it fit nothing.
#[derive(Clone, Copy, Zeroable)]
struct Unit {
    offset: u64,
    length: u32,
    flow: u32,
    port: u32,
    barrier: u64,
    /// An [`Op`].
    op: u8,
    is_staged: bool,
    failed: bool,
    /// Parts that have not completed.
    live: u32,
    first: u32,
    last: u32,
}

/// A request: its unit, and the next request of that unit.
#[derive(Clone, Copy, Zeroable)]
struct Part {
    unit: u32,
    after: u32,
}

/// The place of an arrival.
pub enum Placed {
    /// A new unit.
    New(Job),
    /// It is part of a staged unit.
    Into {
        /// The unit.
        unit: Job,
    },
}

/// A request that a port may issue.
pub struct Piece {
    /// The request.
    pub job: u32,
    /// Whether the command goes on with the next piece.
    pub goes_on: bool,
}

impl Merger {
    /// Merges requests of a policy of these dimensions.
    pub fn new(config: &SerialConfig) -> Merger {
        let jobs = config.jobs();
        // Twice as many entries as requests: live units fill half of a table at most.
        let entries = jobs.next_power_of_two().saturating_mul(2);
        Merger {
            most_bytes: config.merge_bytes,
            tag_bits: config.tag_bits(),
            units: zeroes(jobs),
            stock: boxed(jobs, |job| (jobs - 1 - job) as u32),
            spare: jobs,
            parts: zeroes(jobs),
            ends: zeroes(entries),
            starts: zeroes(entries),
            table_bits: entries.trailing_zeros(),
            barriers: boxed(config.flows, |_| 0),
            cursors: boxed(config.ports, |_| NONE),
        }
    }

    /// From now on no arrival is merged with requests that the flow has staged.
    #[inline]
    pub fn barrier(&mut self, flow: usize) {
        if let Some(count) = self.barriers.get_mut(flow) {
            *count = count.wrapping_add(1);
        }
    }

    /// Puts an arrival into a staged unit, if it fits one, or makes it a unit.
    #[inline]
    pub fn place(&mut self, arrival: &Arrival) -> Placed {
        if !matches!(arrival.op, Op::Read | Op::Write) {
            self.barrier(arrival.flow);
            return Placed::New(self.open(arrival));
        }
        let end = arrival.offset.wrapping_add(arrival.length.into());
        // A stream goes on at its end, so back merging is tried first.
        let ahead =
            self.look_up(arrival, arrival.offset, true).filter(|&at| self.fits(at, arrival, true));
        let behind =
            || self.look_up(arrival, end, false).filter(|&at| self.fits(at, arrival, false));
        let (at, is_back) = match ahead {
            Some(at) => (at, true),
            None => match behind() {
                Some(at) => (at, false),
                None => return Placed::New(self.open(arrival)),
            },
        };
        self.extend(at, arrival, is_back)
    }

    /// Opens a unit of one part.
    #[inline]
    fn open(&mut self, arrival: &Arrival) -> Job {
        let job = arrival.job.0;
        self.spare = self.spare.saturating_sub(1);
        // There are as many units as there can be live requests.
        let at = self.stock.get(self.spare).copied().unwrap_or(job);
        let barrier = self.barriers.get(arrival.flow).copied().unwrap_or(0);
        if let Some(unit) = self.units.get_mut(at as usize) {
            *unit = Unit {
                offset: arrival.offset,
                length: arrival.length,
                flow: arrival.flow as u32,
                port: job.wrapping_shr(self.tag_bits),
                barrier,
                op: arrival.op as u8,
                is_staged: true,
                failed: false,
                live: 1,
                first: job,
                last: job,
            };
        }
        self.set_part(job, Part { unit: at, after: NONE });
        // Other operations are never merged, so they need no hints.
        if matches!(arrival.op, Op::Read | Op::Write) {
            self.note(at, arrival, true);
            self.note(at, arrival, false);
        }
        Job(at)
    }

    /// Whether the arrival may be put behind the unit, or before it.
    #[inline]
    fn fits(&self, at: u32, arrival: &Arrival, is_back: bool) -> bool {
        let Some(unit) = self.units.get(at as usize) else { return false };
        let length = unit.length.saturating_add(arrival.length);
        let is_adjacent = match is_back {
            true => unit.offset.wrapping_add(unit.length.into()) == arrival.offset,
            false => arrival.offset.wrapping_add(arrival.length.into()) == unit.offset,
        };
        // A hint may be stale: its unit may have left, or its number be another unit's.
        unit.is_staged
            && is_adjacent
            && unit.flow == arrival.flow as u32
            && unit.op == arrival.op as u8
            && unit.port == arrival.job.0.wrapping_shr(self.tag_bits)
            && self.barriers.get(arrival.flow) == Some(&unit.barrier)
            && length <= self.most_bytes
            && unit.live < MOST_PARTS
    }

    #[inline]
    fn extend(&mut self, at: u32, arrival: &Arrival, is_back: bool) -> Placed {
        let job = arrival.job.0;
        let mut part = Part { unit: at, after: NONE };
        let mut last = NONE;
        if let Some(unit) = self.units.get_mut(at as usize) {
            unit.length = unit.length.saturating_add(arrival.length);
            unit.live += 1;
            if is_back {
                last = core::mem::replace(&mut unit.last, job);
            } else {
                part.after = core::mem::replace(&mut unit.first, job);
                unit.offset = arrival.offset;
            }
        }
        self.set_part(job, part);
        if let Some(last) = self.parts.get_mut(last as usize) {
            last.after = job;
        }
        self.note(at, arrival, is_back);
        Placed::Into { unit: Job(at) }
    }

    /// Marks the unit as no longer staged; gives the port, which is to issue its parts.
    #[inline]
    pub fn leave(&mut self, unit: Job) -> u32 {
        let Some(unit) = self.units.get_mut(unit.0 as usize) else { return 0 };
        unit.is_staged = false;
        unit.port
    }

    /// Makes the unit the one that its port issues now.
    #[inline]
    pub fn begin(&mut self, port: usize, unit: Job) {
        let first = self.units.get(unit.0 as usize).map_or(NONE, |unit| unit.first);
        if let Some(cursor) = self.cursors.get_mut(port) {
            *cursor = first;
        }
    }

    /// Whether the port is in the midst of a unit.
    pub fn is_in_unit(&self, port: usize) -> bool {
        self.cursors.get(port).is_some_and(|&cursor| cursor != NONE)
    }

    /// The next part of the unit that the port is in the midst of.
    #[inline]
    pub fn piece(&mut self, port: usize) -> Option<Piece> {
        let cursor = self.cursors.get_mut(port)?;
        let job = *cursor;
        let part = self.parts.get(job as usize)?;
        *cursor = part.after;
        Some(Piece { job, goes_on: part.after != NONE })
    }

    /// The first request of a unit.
    pub fn first(&self, unit: Job) -> Option<Job> {
        self.units.get(unit.0 as usize).map(|unit| Job(unit.first))
    }

    /// The unit of a request that is alone in it.
    pub fn unit_alone(&self, job: Job) -> Option<Job> {
        let at = self.parts.get(job.0 as usize)?.unit;
        let unit = self.units.get(at as usize)?;
        (unit.first == job.0 && unit.last == job.0).then_some(Job(at))
    }

    /// Notes that a part has completed; gives its unit and the unit's outcome if it was the last.
    #[inline]
    pub fn completed(&mut self, job: Job, outcome: Outcome) -> Option<(Job, Outcome)> {
        let at = self.parts.get(job.0 as usize)?.unit;
        let unit = self.units.get_mut(at as usize)?;
        unit.failed |= outcome == Outcome::Failed;
        unit.live = unit.live.saturating_sub(1);
        if unit.live > 0 {
            return None;
        }
        let outcome = if unit.failed { Outcome::Failed } else { Outcome::Done };
        if let Some(place) = self.stock.get_mut(self.spare) {
            *place = at;
            self.spare += 1;
        }
        Some((Job(at), outcome))
    }

    #[inline]
    fn set_part(&mut self, job: u32, part: Part) {
        if let Some(place) = self.parts.get_mut(job as usize) {
            *place = part;
        }
    }

    /// The unit that was last noted to end, or to begin, at `offset`.
    #[inline]
    fn look_up(&self, arrival: &Arrival, offset: u64, end: bool) -> Option<u32> {
        let table = if end { &self.ends } else { &self.starts };
        table.get(self.index(arrival, offset)).copied()
    }

    /// Notes where the unit ends, or begins, when the arrival has become its last part, or its
    /// first.
    #[inline]
    fn note(&mut self, at: u32, arrival: &Arrival, end: bool) {
        let offset =
            if end { arrival.offset.wrapping_add(arrival.length.into()) } else { arrival.offset };
        let index = self.index(arrival, offset);
        let table = if end { &mut self.ends } else { &mut self.starts };
        if let Some(place) = table.get_mut(index) {
            *place = at;
        }
    }

    #[inline]
    fn index(&self, arrival: &Arrival, offset: u64) -> usize {
        // Tenants begin at the same offsets; flow and direction keep their hints apart.
        let whose = (arrival.flow as u64) << 1 | u64::from(arrival.op == Op::Write);
        let mixed = (offset ^ whose.wrapping_mul(SPREAD).rotate_left(23)).wrapping_mul(SPREAD);
        mixed.wrapping_shr(u64::BITS - self.table_bits) as usize
    }
}
