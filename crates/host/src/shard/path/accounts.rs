//! The counts of a data path, and the recording of its decisions.

use fairq_core::{Port, Tag};

use super::DataPath;
use crate::device::{Command, Device, Queue};
use crate::observe::record::{Decision, Kind, Recorder, Recording};
use crate::observe::stats::{ShardReport, StoreLoad, TenantStats};

/// The time between two counts of the requests on the stores.
const LOADS_NS: u64 = 500_000_000;

impl<P: Port, D: Device> DataPath<P, D> {
    /// The counts of the shard, and of the tenants whose counts have changed since the last report.
    pub fn report(&mut self, now_ns: u64) -> ShardReport {
        let tenants = self.stats.iter().zip(&mut self.changed).enumerate();
        let changed = tenants.filter_map(|(index, (stats, changed))| {
            // A tenant with a staged request is reported again, since its time of starvation grows
            // without an event.
            let again = std::mem::replace(changed, stats.staged > 0);
            again.then(|| (index as u16, stats.at(now_ns)))
        });
        ShardReport {
            tenants: changed.collect(),
            counters: self.counters,
            matrix: self.observed.matrix().clone(),
            stores: self.loads(now_ns),
        }
    }

    /// The requests on each store. This visits all live requests, so it is done every [`LOADS_NS`].
    fn loads(&mut self, now_ns: u64) -> Vec<StoreLoad> {
        if now_ns < self.loads_ns {
            return self.loads.clone();
        }
        self.loads_ns = now_ns + LOADS_NS;
        self.loads.clear();
        for live in self.live.iter().flatten().filter(|live| live.issued_ns > 0 && !live.is_void) {
            let store = usize::from(self.queue.store_of(live.command.file));
            if self.loads.len() <= store {
                self.loads.resize(store + 1, StoreLoad::default());
            }
            let load = &mut self.loads[store];
            load.on_device += 1;
            load.oldest_ns = load.oldest_ns.max(now_ns.saturating_sub(live.issued_ns));
        }
        self.loads.clone()
    }

    /// Counts a turn of the shard's loop, and whether it slept.
    #[inline]
    pub fn count_turn(&mut self, slept: bool) {
        self.counters.turns += 1;
        self.counters.sleeps += u64::from(slept);
    }

    /// Clears a tenant's counts, because its number now belongs to another tenant.
    pub fn forget(&mut self, tenant: u16) {
        if let Some(stats) = self.stats.get_mut(usize::from(tenant)) {
            *stats = TenantStats::default();
            self.changed[usize::from(tenant)] = true;
            self.observed.forget(tenant);
            self.charges.forget(tenant);
            self.dirty.forget(tenant);
        }
    }

    /// Starts to record decisions; the last `events` of them are kept.
    pub fn record(&mut self, events: usize) {
        self.recorder = Some(Box::new(Recorder::new(events)));
    }

    /// Stops recording; returns the recording.
    pub fn recorded(&mut self) -> Recording {
        self.recorder.take().map_or_else(Recording::default, |recorder| recorder.finish())
    }

    /// Records an event of a live request.
    #[cold]
    pub(super) fn note(&mut self, at_ns: u64, kind: Kind, tag: Tag) {
        let reason = self.port.reason(Some(tag));
        if let (Some(recorder), Some(Some(live))) =
            (&mut self.recorder, self.live.get(tag.0 as usize))
        {
            let Command { op, class, offset, length, .. } = live.command;
            recorder.add(Decision {
                at_ns,
                kind,
                tag,
                tenant: live.tenant,
                op,
                class,
                offset,
                length,
                reason,
            });
        }
    }
}
