//! The time that commands take: that of a drive's profile, or a multiple of it.

use fairq_core::Op;
use fairq_device::{Completed, Profile, Setup, Ssd, State};

/// The drive whose timing a controller has.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The drive.
    pub profile: Profile,
    /// The data written to it before.
    pub state: State,
    /// The factor by which everything takes longer; at least 1.
    pub slowdown: u32,
}

/// The model of the drive, whose clock runs slower by the factor.
pub(super) struct Model {
    ssd: Ssd,
    slowdown: u64,
}

impl Model {
    /// A drive that executes at most `window` commands at a time.
    pub(super) fn new(timing: &Timing, window: u16) -> Model {
        let Timing { profile, state, slowdown } = timing;
        let capacity = profile.host.capacity();
        let setup = Setup { capacity, state: *state, outstanding: window.into(), seed: 1 };
        Model { ssd: Ssd::new(profile, &setup), slowdown: u64::from(*slowdown).max(1) }
    }

    /// See [`Ssd::start`].
    #[inline]
    pub(super) fn start(&mut self, now_ns: u64, id: u32, op: Op, offset: u64, length: u32) {
        self.ssd.start(now_ns / self.slowdown, id, op, offset, length);
    }

    /// See [`Ssd::next_ns`].
    #[inline]
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.ssd.next_ns().map(|next_ns| next_ns.saturating_mul(self.slowdown))
    }

    /// See [`Ssd::pop`].
    #[inline]
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Completed> {
        let completed = self.ssd.pop(now_ns / self.slowdown)?;
        Some(Completed { at_ns: completed.at_ns.saturating_mul(self.slowdown), ..completed })
    }
}
