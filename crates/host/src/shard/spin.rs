//! The time for which a shard that waits for another one polls for the wake-up before it sleeps.
//!
//! **Problem.** Policies make shards wait for each other: for virtual time, or for a slot. If the
//! device is as fast as memory, the other shard continues within a microsecond. A shard that sleeps
//! meanwhile runs again only after the time of a wake-up: 5 us on a bare machine, up to 160 us in a
//! virtual one, whose CPU the host has to start. Shards that alternately wait for each other then
//! run one at a time and sleep most of the time. If the device is slow, polling only wastes CPU
//! time. **Model.** Polling for as long as a wake-up takes costs at most twice the best choice (the
//! ski rental problem), so [`MOST_NS`] is the bound. Below it, [`Patience`] adapts: it raises the
//! bound to twice the length of a successful wait, and halves it after each unsuccessful one. With
//! a bound that has become too short no poll succeeds, so one wait in [`PROBE`] uses [`MOST_NS`].
//! **Running shards only.** A shard that sleeps, or polls itself, wakes no other, so the shards'
//! states show whether polling can succeed. On a slow device all shards sleep most of the time, and
//! none polls. **Other threads.** Threads that are ready on this CPU run first: the poll yields
//! every [`YIELD_NS`], and ends if a yield took [`AWAY_NS`], because another thread then has work
//! for this CPU.

/// The longest poll for a wake-up, in nanoseconds: the time to sleep and be woken in a virtual
/// machine.
const MOST_NS: u64 = 100_000;

/// The shortest bound of a poll, in nanoseconds: less is not worth its overhead.
const LEAST_NS: u64 = 2_000;

/// One wait in this many polls for [`MOST_NS`], regardless of earlier results.
const PROBE: u32 = 16;

/// The interval at which a polling shard yields its CPU, in nanoseconds.
pub(crate) const YIELD_NS: u64 = 2_000;

/// The interruption, in nanoseconds, that ends a poll, because other threads have run on this CPU.
pub(crate) const AWAY_NS: u64 = 5_000;

/// The bound of a shard's polls, adapted to its last waits.
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
    /// The bound of the next poll, in nanoseconds.
    pub(crate) fn bound_ns(&mut self) -> u64 {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(PROBE) { MOST_NS } else { self.bound_ns }
    }

    /// Records that the shard was woken after polling for `waited_ns`.
    pub(crate) fn rewarded(&mut self, waited_ns: u64) {
        self.bound_ns = self.bound_ns.max(waited_ns.saturating_mul(2)).clamp(LEAST_NS, MOST_NS);
    }

    /// Records that the shard polled up to the bound and was not woken.
    pub(crate) fn in_vain(&mut self) {
        self.bound_ns = (self.bound_ns / 2).max(LEAST_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates waits of a given length; returns the nanoseconds of unsuccessful polls, and the
    /// number of successful ones.
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
        // The bound is a hundredth of the 1.6 s of waiting, which includes the time to adapt.
        assert!(lost_ns < 16_000_000, "{lost_ns}");
        // The device has become fast; the next probe raises the bound.
        let (_, seen) = live(&mut patience, 1_600, 40_000);
        assert!(seen > 1_580, "{seen}");
    }
}
