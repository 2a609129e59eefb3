//! B-WF2Q+'s timestamps, of a queue in its group and of a group.

use super::SHIFT;

/// The state of B-WF2Q+ for a queue in its group, or for a group (`bfq_entity`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity {
    pub(super) weight: u64,
    /// Whether it is in the tree or in service.
    pub(super) is_busy: bool,
    pub(super) start: u64,
    pub(super) finish: u64,
    /// Service in this turn, in sectors.
    pub(super) service: u64,
}

impl Entity {
    pub(super) const IDLE: Entity =
        Entity { weight: 0, is_busy: false, start: 0, finish: 0, service: 0 };

    /// `bfq_calc_finish`.
    pub(super) fn finish(&self, sectors: u64) -> u64 {
        self.start + (sectors << SHIFT) / self.weight.max(1)
    }

    /// `__bfq_activate_entity`: an entity that continues its turn keeps its finish as its start,
    /// even if virtual time has passed it.
    pub(super) fn activate(&mut self, virtual_time: u64, budget: u64, goes_on: bool) {
        let back = goes_on && virtual_time > self.finish;
        self.start = if back { self.finish } else { virtual_time.max(self.finish) };
        self.finish = self.finish(budget);
        if back && virtual_time > self.finish {
            let delta = virtual_time - self.finish;
            (self.start, self.finish) = (self.start + delta, self.finish + delta);
        }
        (self.is_busy, self.service) = (true, 0);
    }

    /// Ends its turn: computes its finish from the service that it received.
    pub(super) fn settle(&mut self) {
        self.finish = self.finish(self.service);
    }
}
