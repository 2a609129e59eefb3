//! Space: the cost of making room for writes.
//!
//! Flash is programmed once between erases, so data is written to free space. While there is free
//! space, a write has no other cost (the *fresh* state). Afterwards a block must be emptied first:
//! its valid pages are moved (read and programmed elsewhere) and it is erased (the *steady* state).
//!
//! **Number of moves.** With the whole device written at random, blocks emptied in the order in
//! which they were filled have decayed to a valid part u that solves (u - 1) / ln u = 1 / (1 + s),
//! where s is the spare space as a fraction of the host's capacity (Menon, *A performance
//! comparison of RAID-5 and log-structured arrays*, 1995). Each page written then costs u / (1 - u)
//! moves: 7 % spare, 6.8 moves; 28 %, 1.5.
//!
//! **Sequential writing** empties blocks by itself and costs no moves. A write counts as sequential
//! if it is near the end of one of the last [`STREAMS`] streams of writes.
//!
//! **Discarded** space is free again, up to the free space of a fresh device.
//!
//! **With a map of pages** (`mapping = "pages"`) these costs are simulated instead of assumed: see
//! `ftl`.

use super::ftl::Ftl;
use crate::profile::{Garbage, Mapping, Profile, State};

/// The number of streams of writes that are distinguished.
const STREAMS: usize = 16;
/// The largest distance of a write from its stream's end: commands of a stream overtake each other.
const NEAR: u64 = 256 << 10;

pub(super) struct Space {
    /// Bytes that can be written without making room.
    free: u64,
    /// The most free bytes.
    most: u64,
    /// Moves per program of random data; 0 where media is written in place.
    moves: f64,
    /// Ends of the streams of writes.
    ends: [u64; STREAMS],
    oldest: usize,
    ftl: Option<Box<Ftl>>,
}

impl Space {
    pub(super) fn new(profile: &Profile, capacity: u64, state: State, seed: u64) -> Self {
        let (moves, most) = match &profile.garbage {
            Some(garbage) => {
                let spare = garbage.over_provisioning.get();
                (moves(spare), capacity.saturating_add((capacity as f64 * spare) as u64))
            }
            None => (0.0, u64::MAX),
        };
        let free = if state == State::Steady && profile.garbage.is_some() { 0 } else { most };
        let maps = |garbage: &&Garbage| garbage.mapping == Mapping::Pages;
        let ftl = profile.garbage.as_ref().filter(maps).map(|garbage| {
            let spare = garbage.over_provisioning.get();
            let programs = u64::from(garbage.programs_per_erase.get());
            let block = (programs * u64::from(profile.media.program_kib.get())) << 10;
            Box::new(Ftl::new(capacity, spare, block, state, seed))
        });
        Space { free, most, moves, ends: [u64::MAX; STREAMS], oldest: 0, ftl }
    }

    /// Records a write; returns the number of its bytes that will cost moves: all or 0.
    #[inline]
    pub(super) fn note(&mut self, offset: u64, length: u32) -> u64 {
        if let Some(ftl) = &mut self.ftl {
            ftl.note(offset, length);
            return length.into();
        }
        if self.free > 0 {
            return 0;
        }
        let end = offset + u64::from(length);
        match self.ends.iter_mut().find(|stream| stream.abs_diff(offset) <= NEAR) {
            Some(stream) => {
                *stream = end.max(*stream);
                0
            }
            None => {
                self.ends[self.oldest] = end;
                self.oldest = (self.oldest + 1) % STREAMS;
                u64::from(length)
            }
        }
    }

    /// Takes space for a program; returns whether there was free space.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        if let Some(ftl) = &self.ftl {
            return !ftl.is_collecting();
        }
        let was_free = self.free > 0;
        // Media that is written in place does not use up space.
        if self.most != u64::MAX {
            self.free = self.free.saturating_sub(bytes);
        }
        was_free
    }

    pub(super) fn discard(&mut self, offset: u64, end: u64) {
        match &mut self.ftl {
            Some(ftl) => ftl.discard(offset, end),
            None => self.free = self.free.saturating_add(end - offset).min(self.most),
        }
    }

    /// Moves per program of random data, once there is no free space.
    pub(super) fn moves(&self) -> f64 {
        self.ftl.as_ref().map_or(self.moves, |ftl| ftl.moves())
    }

    /// Units written and units moved; zeroes without a map.
    pub(super) fn units(&self) -> [u64; 2] {
        self.ftl.as_ref().map_or([0; 2], |ftl| ftl.count())
    }
}

/// u / (1 - u) of the [module's text](self).
pub(super) fn moves(spare: f64) -> f64 {
    let full = 1.0 / (1.0 + spare);
    // (u - 1) / ln u grows from 0 to 1 with u.
    let (mut low, mut high) = (0.0, 1.0);
    // 60 halvings reach the resolution of an `f64`.
    for _ in 0..60 {
        let u: f64 = (low + high) / 2.0;
        if (u - 1.0) / u.ln() < full { low = u } else { high = u }
    }
    low / (1.0 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_spare_space_more_moves() {
        for (spare, expected) in [(0.07, 6.8), (0.28, 1.49), (1.0, 0.255)] {
            assert!((moves(spare) / expected - 1.0).abs() < 0.02, "{spare}: {}", moves(spare));
        }
    }
}
