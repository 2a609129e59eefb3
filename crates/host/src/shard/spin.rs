//! How long a shard that waits for another one looks for the wake-up itself before it sleeps.
//!
//! **Problem.** Policies make shards wait for each other: for virtual time, for a slot. Where the
//! device is as fast as memory the other one moves on in a microsecond, and a shard that sleeps
//! meanwhile is back after the time of a wake-up: 5 us on a bare machine, up to 160 us in a virtual
//! one, whose CPU has to be started by the host. Shards that wait for each other by turns then run
//! one at a time and sleep most of it. Where the device is slow, looking only burns CPU. **Model.**
//! To look as long as a wake-up takes costs at most twice what the best choice would (the ski
//! rental problem); so [`MOST_NS`] is the bound. Below it, the bound follows what came of looking:
//! [`Patience`] gives the double of what was needed, and half as much each time when it was in
//! vain. What has become too short never succeeds, so one wait in [`PROBE`] gets all. **Only for
//! those who run.** A shard that sleeps, or looks itself, wakes nobody: the shards' states say
//! whether there is a point in looking. Before a slow device all shards sleep most of the time, and
//! none looks at all. **Others' CPU.** Whoever else is ready to run on this CPU goes first: the
//! look gives way every [`YIELD_NS`], and ends if that took [`AWAY_NS`], for then somebody has work
//! for this CPU, which needs no waking as long as it has.

/// The most that is looked for a wake-up, in nanoseconds: what it takes to sleep and to be woken in
/// a virtual machine.
const MOST_NS: u64 = 100_000;

/// Below this looking is not worth its own overhead.
const LEAST_NS: u64 = 2_000;

/// One wait in so many may take [`MOST_NS`], whatever came of the last ones.
const PROBE: u32 = 16;

/// How often a shard that looks lets others go first, in nanoseconds.
pub(crate) const YIELD_NS: u64 = 2_000;

/// A look that was interrupted for so long ends, in nanoseconds: others have run on this CPU.
pub(crate) const AWAY_NS: u64 = 5_000;

/// What a shard has learnt about its waits.
#[derive(Debug)]
pub(crate) struct Patience {
    bound_ns: u64,
    waits: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { bound_ns: MOST_NS, waits: 0 }
    }
}

impl Patience {
    /// How long to look this time, in nanoseconds.
    pub(crate) fn bound_ns(&mut self) -> u64 {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(PROBE) { MOST_NS } else { self.bound_ns }
    }

    /// It was woken after looking for so long.
    pub(crate) fn rewarded(&mut self, waited_ns: u64) {
        self.bound_ns = self.bound_ns.max(waited_ns.saturating_mul(2)).clamp(LEAST_NS, MOST_NS);
    }

    /// It looked as long as it was to, and was not woken.
    pub(crate) fn in_vain(&mut self) {
        self.bound_ns = (self.bound_ns / 2).max(LEAST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks through waits of a given length; gives what was spent in vain, and how many were seen
    /// to their end.
    fn live(patience: &mut Patience, waits: u32, length_ns: u64) -> (u64, u32) {
        let (mut lost_ns, mut seen) = (0, 0);
        for _ in 0..waits {
            let bound_ns = patience.bound_ns();
            if length_ns <= bound_ns {
                patience.rewarded(length_ns);
                seen += 1;
            } else {
                patience.in_vain();
                lost_ns += bound_ns;
            }
        }
        (lost_ns, seen)
    }

    #[test]
    fn short_waits_are_seen_to_their_end_and_long_ones_cost_little() {
        let mut patience = Patience::default();
        assert_eq!(live(&mut patience, 100, 5_000), (0, 100));
        let (lost_ns, seen) = live(&mut patience, 1_600, 1_000_000);
        assert_eq!(seen, 0);
        // 1.6 s of waiting: a hundredth of it, and what it takes to learn.
        assert!(lost_ns < 16_000_000, "{lost_ns}");
        // The device has become fast: the next probe finds out.
        let (_, seen) = live(&mut patience, 1_600, 40_000);
        assert!(seen > 1_580, "{seen}");
    }
}
