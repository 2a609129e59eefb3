//! Dies and channels: the places of pages, reads, and a die's other work.
//!
//! **A die** does one thing at a time. Reads are served in the order in which they come. A program,
//! a move of a page to make room, or an erase is *work*; a die has at most one piece of it, and
//! while it lasts a read waits, unless the device can suspend work: then the read goes first, and
//! suspending and reading delay the work's end. Work is delayed at most by its own length; after
//! that reads wait, because writing would otherwise stop under a load of reads. **The register.** A
//! die keeps the page that it has read last until its next work; reading that page again takes no
//! time at the die. So small sequential reads are faster than random ones. **The place of a page.**
//! Logical pages are striped over all dies, neighbours on different channels, and each stripe is
//! rotated by a number drawn from the seed, so that no stride meets the same die every time. A
//! write goes to the die that is idle first, as in a log. A table of the places of the last writes
//! would take two bytes for each page of the device without a benefit: after random writes pages
//! are at random places, and after sequential writes they are in stripes, as with this rule.

use super::server::{Bookings, Server, Speed};
use crate::profile::Profile;

/// The operation of a die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// A program of `bytes` bytes of the buffer, from `position` in the order of writing.
    Program { bytes: u32, position: u64 },
    /// A move of a page that is still valid, out of a block that will be erased.
    Move,
    /// The erase of a block.
    Erase,
}

struct Die {
    /// Time at which it has done all its reads.
    free_ns: u64,
    /// The page in the register; [`NO_PAGE`] for none.
    page: u64,
    work: Option<Work>,
    work_ends_ns: u64,
    /// Time by which its work may still be delayed.
    patience_ns: u64,
    channel: u32,
}

/// All dies, and the channels that they share.
pub(super) struct Media {
    dies: Box<[Die]>,
    channels: Box<[Server]>,
    /// Used instead of `channels` where dies are held until their page has left: they book ahead.
    booked: Option<Box<[Bookings]>>,
    channel_speed: Speed,
    page_shift: u32,
    read_ns: u64,
    suspend_ns: Option<u64>,
    seed: u64,
    /// Time in which dies have read, programmed, moved and erased.
    busy_ns: [u64; 4],
}

/// The state of a page after the die has done its part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageRead {
    /// The page is in the die's register at `at_ns`, and this channel is next.
    InRegister { at_ns: u64, channel: u32 },
    /// The page has left the channel at `at_ns`.
    Moved { at_ns: u64 },
}

const NO_PAGE: u64 = u64::MAX;

impl Media {
    pub(super) fn new(profile: &Profile, seed: u64) -> Self {
        let media = &profile.media;
        let channels = media.channels.get();
        let die = |index| Die {
            free_ns: 0,
            page: NO_PAGE,
            work: None,
            work_ends_ns: 0,
            patience_ns: 0,
            channel: index % channels,
        };
        Media {
            dies: (0..profile.dies()).map(die).collect(),
            channels: vec![Server::default(); channels as usize].into(),
            booked: media
                .held_through_transfer
                .then(|| vec![Bookings::default(); channels as usize].into()),
            channel_speed: Speed::new(media.channel_mb_s.ns_per_mib()),
            page_shift: (media.page_kib.get() * 1024).trailing_zeros(),
            read_ns: media.read_us.ns(),
            suspend_ns: media.suspend_us.map(|suspend| suspend.ns()),
            seed,
            busy_ns: [0; 4],
        }
    }

    pub(super) fn dies(&self) -> u32 {
        self.dies.len() as u32
    }

    pub(super) fn channels(&self) -> u32 {
        self.channels.len() as u32
    }

    /// Time in which all dies together have read, programmed, moved and erased.
    pub(super) fn busy_ns(&self) -> [u64; 4] {
        self.busy_ns
    }

    /// Time in which all channels together have moved data.
    pub(super) fn channels_ns(&self) -> u64 {
        let booked = self.booked.iter().flatten().map(Bookings::busy_ns);
        self.channels.iter().map(Server::busy_ns).chain(booked).sum()
    }

    pub(super) fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The die of a logical page.
    #[inline]
    fn die_of(&self, page: u64) -> usize {
        let dies = self.dies.len() as u64;
        let (stripe, place) = (page / dies, page % dies);
        // Each stripe is rotated at random, so that no stride meets the same die every time.
        let turned = place + (((mix(stripe ^ self.seed) >> 32) * dies) >> 32);
        (if turned >= dies { turned - dies } else { turned }) as usize
    }

    /// Whether the die of a page neither reads nor works.
    pub(super) fn is_idle(&self, now_ns: u64, page: u64) -> bool {
        let die = &self.dies[self.die_of(page)];
        die.free_ns <= now_ns && die.work.is_none()
    }

    /// Reads `bytes` of a page.
    #[inline]
    pub(super) fn read(&mut self, now_ns: u64, page: u64, bytes: u64) -> PageRead {
        let index = self.die_of(page);
        let die = &mut self.dies[index];
        let mut begins = die.free_ns.max(now_ns);
        // The register keeps the page that was read last, until the die works.
        let takes_ns = if die.page == page { 0 } else { self.read_ns };
        if die.work.is_some() && die.work_ends_ns > begins {
            begins = die.interrupt(now_ns, begins, takes_ns, self.suspend_ns);
        }
        let at_ns = begins + takes_ns;
        self.busy_ns[0] += takes_ns;
        (die.free_ns, die.page) = (at_ns, page);
        let channel = die.channel;
        // The channel is reserved when the page is in the register, unless the die is held until
        // the page has left.
        let Some(booked) = &mut self.booked else {
            return PageRead::InRegister { at_ns, channel };
        };
        let takes_ns = self.channel_speed.takes_ns(bytes);
        die.free_ns = booked[channel as usize].serve(now_ns, at_ns, takes_ns);
        PageRead::Moved { at_ns: die.free_ns }
    }

    /// Moves bytes of a page through its channel; returns the time at which they are through.
    #[inline]
    pub(super) fn transfer(&mut self, now_ns: u64, channel: u32, bytes: u64) -> u64 {
        let takes_ns = self.channel_speed.takes_ns(bytes);
        match &mut self.booked {
            None => self.channels[channel as usize].serve(now_ns, takes_ns),
            Some(booked) => booked[channel as usize].serve(now_ns, now_ns, takes_ns),
        }
    }

    /// An idle die begins a piece of work; returns its end if nothing delays it. Data to program
    /// goes through the channel first.
    pub(super) fn begin(&mut self, now_ns: u64, index: u32, work: Work, takes_ns: u64) -> u64 {
        let channel = self.dies[index as usize].channel;
        let ready_ns = match work {
            Work::Program { bytes, .. } => self.transfer(now_ns, channel, u64::from(bytes)),
            Work::Move | Work::Erase => now_ns,
        };
        let kind = match work {
            Work::Program { .. } => 1,
            Work::Move => 2,
            Work::Erase => 3,
        };
        self.busy_ns[kind] += takes_ns;
        let die = &mut self.dies[index as usize];
        debug_assert!(die.work.is_none(), "one piece of work at a time");
        die.page = NO_PAGE;
        die.work = Some(work);
        die.work_ends_ns = die.free_ns.max(ready_ns) + takes_ns;
        // Work is delayed at most by its own length, because otherwise it would stop under a load
        // of reads.
        die.patience_ns = takes_ns;
        die.work_ends_ns
    }

    /// Ends the work of a die, if it ends now; an error has the later end of delayed work.
    pub(super) fn end(&mut self, now_ns: u64, index: u32) -> Result<Work, u64> {
        let die = &mut self.dies[index as usize];
        if die.work_ends_ns > now_ns {
            return Err(die.work_ends_ns);
        }
        Ok(die.work.take().expect("it works"))
    }

    /// The positions of programs under way.
    pub(super) fn positions(&self) -> impl Iterator<Item = u64> {
        self.dies.iter().filter_map(|die| match die.work {
            Some(Work::Program { position, .. }) => Some(position),
            _ => None,
        })
    }
}

impl Die {
    /// A read arrives during work: returns the time at which the read begins.
    fn interrupt(
        &mut self,
        now_ns: u64,
        begins_ns: u64,
        takes_ns: u64,
        suspend_ns: Option<u64>,
    ) -> u64 {
        let Some(suspend_ns) = suspend_ns.filter(|_| self.patience_ns > 0) else {
            return self.work_ends_ns;
        };
        // If another read is under way, the work is already suspended.
        let suspend_ns = if self.free_ns > now_ns { 0 } else { suspend_ns };
        let put_off_ns = suspend_ns + takes_ns;
        self.work_ends_ns += put_off_ns;
        self.patience_ns = self.patience_ns.saturating_sub(put_off_ns);
        begins_ns + suspend_ns
    }
}

/// Scatters the bits of a number (splitmix64).
#[inline]
pub(super) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
