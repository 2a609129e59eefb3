//! The time for which a shard that waits for another one polls for the wake-up before it sleeps.
//!
//! **Problem.** Policies make shards wait for each other: for virtual time, for a slot. If the
//! device is as fast as memory, the other shard goes on within a microsecond, and a shard that
//! sleeps meanwhile runs again only after the time of a wake-up: 5 us on a bare machine, up to 160
//! us in a virtual one, whose CPU has to be started by the host. Shards that wait for each other by
//! turns then run one at a time and sleep most of it. If the device is slow, polling only burns
//! CPU. **Model.** Polling for as long as a wake-up takes costs at most twice the best choice (the
//! ski rental problem); so [`MOST_NS`] is the bound. Below it, the bound adapts: [`Patience`]
//! doubles the time that a successful wait needed, and halves the bound after each unsuccessful
//! one. A bound that has become too short never succeeds, so one wait in [`PROBE`] gets
//! [`MOST_NS`]. **Running shards only.** A shard that sleeps, or polls itself, wakes no other: the
//! shards' states say whether polling can succeed. On a slow device all shards sleep most of the
//! time, and none polls. **Other threads.** Other threads that are ready on this CPU run first: the
//! poll yields every [`YIELD_NS`], and ends if that took [`AWAY_NS`], for then another thread has
//! work for this CPU and keeps it awake.

/// The longest poll for a wake-up, in nanoseconds: the time to sleep and be woken in a virtual
/// machine.
const MOST_NS: u64 = 100_000;

/// The shortest bound of a poll, in nanoseconds: less is not worth its overhead.
const LEAST_NS: u64 = 2_000;

/// One wait in this many polls for [`MOST_NS`], whatever the results of the last ones.
const PROBE: u32 = 16;

/// The period in which a polling shard yields its CPU, in nanoseconds.
pub(crate) const YIELD_NS: u64 = 2_000;

/// The interruption, in nanoseconds, that ends a poll: others have run on this CPU.
pub(crate) const AWAY_NS: u64 = 5_000;

/// A shard's bound of polling, adapted to its last waits.
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
    /// The longest poll this time, in nanoseconds.
    pub(crate) fn bound_ns(&mut self) -> u64 {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(PROBE) { MOST_NS } else { self.bound_ns }
    }

    /// Notes that the shard was woken after polling for `waited_ns`.
    pub(crate) fn rewarded(&mut self, waited_ns: u64) {
        self.bound_ns = self.bound_ns.max(waited_ns.saturating_mul(2)).clamp(LEAST_NS, MOST_NS);
    }

    /// Notes that the shard polled up to the bound and was not woken.
    pub(crate) fn in_vain(&mut self) {
        self.bound_ns = (self.bound_ns / 2).max(LEAST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls through waits of a given length; returns the nanoseconds of unsuccessful polls, and
    /// the number of successful ones.
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
        // A hundredth of 1.6 s of waiting, and the time to adapt.
        assert!(lost_ns < 16_000_000, "{lost_ns}");
        // The device has become fast: the next probe finds out.
        let (_, seen) = live(&mut patience, 1_600, 40_000);
        assert!(seen > 1_580, "{seen}");
    }
}
