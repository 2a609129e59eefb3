//! The lines of racing cores: as [`crate::coherence`] has them, but for the time in which a line is
//! still with the core that is about to lose it.
//!
//! A transfer is a request on its way to the directory, from there to the
//! holder, and then the line on its way: three ways. Until the request arrives the holder goes on
//! with its line, so a core whose compare-and-swap has failed tries again before the line is gone,
//! and a core that does nothing but add to a counter adds several times before another does.
//! Requests for one line are served one after the other, in the order of asking.

use crate::coherence::{Access, Caches, Latencies};

/// All lines.
pub(super) struct Lines {
    latencies: Latencies,
    /// The part of a transfer for which the holder still has the line.
    kept_percent: u64,
    /// When the stores of each core so far are done.
    stored_ps: [u64; 64],
    lines: Vec<Line>,
}

#[derive(Default)]
struct Line {
    /// The cores that have it once all transfers are done, a bit each.
    holders: u64,
    is_changed: bool,
    /// When the last transfer is done.
    free_ps: u64,
    /// Cores that are about to lose it: when, and whether they may write until then.
    losing: Vec<Losing>,
}

#[derive(Clone, Copy)]
struct Losing {
    core: usize,
    until_ps: u64,
    writes: bool,
}

impl Lines {
    pub(super) fn new(caches: &Caches, kept_percent: u64) -> Self {
        Lines { latencies: caches.latencies(), kept_percent, stored_ps: [0; 64], lines: Vec::new() }
    }

    /// A core has a copy of a line that no core has changed since it was read.
    pub(super) fn share(&mut self, core: usize, line: usize) {
        self.lines[line].holders |= 1 << core;
    }

    /// A core that spins on a line sees the value that another writes at `now_ps`: its copy is lost
    /// first, and then it fetches the line.
    pub(super) fn sees(&mut self, caches: &Caches, core: usize, line: usize, now_ps: u64) -> u64 {
        self.lines[line].losing.retain(|losing| losing.core != core);
        self.access(caches, core, line, Access::Load, now_ps)
    }

    /// A core accesses a line at a time; says when that is done. Times of calls do not decrease by
    /// more than one access.
    #[inline]
    pub(super) fn access(
        &mut self,
        caches: &Caches,
        core: usize,
        line: usize,
        access: Access,
        now_ps: u64,
    ) -> u64 {
        if self.lines.len() <= line {
            self.lines.resize_with(line + 1, Line::default);
        }
        let now_ps =
            if access == Access::Atomic { now_ps.max(self.stored_ps[core]) } else { now_ps };
        let Latencies { load_ps, store_ps, atomic_ps, .. } = self.latencies;
        let local_ps = match access {
            Access::Load => load_ps,
            Access::Store => store_ps,
            Access::Atomic => atomic_ps,
        };
        let own = 1 << core;
        let place = &mut self.lines[line];
        let reads = access == Access::Load;
        if if reads { place.holders & own != 0 } else { place.holders == own } {
            place.is_changed |= !reads;
            return now_ps + local_ps;
        }
        let keeps = |losing: &Losing| {
            losing.core == core && now_ps < losing.until_ps && (reads || losing.writes)
        };
        if place.losing.iter().any(keeps) {
            return now_ps + local_ps;
        }
        place.losing.retain(|losing| losing.until_ps > now_ps);
        let transfer_ps = caches.transfer_ps(core, place.holders, !reads || place.is_changed);
        if reads && !place.is_changed {
            // A copy of a clean line is had from any holder, once it is there.
            place.holders |= own;
            return now_ps.max(place.free_ps) + transfer_ps + load_ps;
        }
        let start_ps = now_ps.max(place.free_ps);
        let there_ps = start_ps + transfer_ps;
        let until_ps = start_ps + transfer_ps * self.kept_percent / 100;
        let writes = place.holders.count_ones() == 1;
        let mut others = place.holders & !own;
        while others != 0 {
            let core = others.trailing_zeros() as usize;
            others &= others - 1;
            place.losing.push(Losing { core, until_ps, writes });
        }
        place.free_ps = there_ps;
        if reads {
            place.holders |= own;
            place.is_changed = false;
            return there_ps + load_ps;
        }
        place.holders = own;
        place.is_changed = true;
        if access == Access::Store {
            self.stored_ps[core] = self.stored_ps[core].max(there_ps);
            return now_ps + store_ps;
        }
        there_ps + atomic_ps
    }
}
