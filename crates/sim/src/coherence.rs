//! Caches: the lines that each core holds, and the cost of moving a line to another core.
//!
//! **Problem.** On many cores the cost of a scheduler depends less on its computing than on the
//! caches that hold its words. **Model.** MESI over lines of 64 bytes, a cache per core (hardware
//! threads of a core share it), without capacity: a line leaves a cache only when another core
//! writes it. A line that is not in the cache comes from its holder: another core of the socket, or
//! the other socket. While a line moves it is *busy*, and other cores that access it wait. So a
//! contended line moves from core to core, with one transfer for each access. Readers of an
//! unmodified line do not wait for each other.
//!
//! | access | line in this cache, in the state that the access needs | otherwise |
//! |---|---|---|
//! | load | a load | a transfer; the owner keeps a copy |
//! | plain store | a store | a store; the line moves meanwhile (the store is in the store buffer), and other copies are invalidated |
//! | read-modify-write, SeqCst store | an atomic operation, after earlier stores | the same, after a transfer; other copies are invalidated |
//!
//! **Time** is the time of the core that accesses. Unless cores race, cores are simulated one verb
//! at a time, so the caches may already have recorded an access of another core at a later time. An
//! access does not wait for such a later one.
//!
//! **Locks** are granted in the order of the acquisitions, each when the holder before it has
//! released the lock. Waiting cores have copies of the lock's own line, which has to move back to
//! the holder before the release takes effect (as with Linux's queued spinlocks); this costs one
//! more transfer. The lines of the guarded value move with the lock; memory that the value points
//! to is not counted. Where cores race, the module `races` grants locks instead.

/// The costs of accesses, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) load_ps: u64,
    pub(crate) store_ps: u64,
    pub(crate) atomic_ps: u64,
    /// A line from another core of the socket.
    pub(crate) near_ps: u64,
    /// A line from another socket.
    pub(crate) far_ps: u64,
    /// Number of lines that a core fetches at the same time, where cores race.
    pub(crate) lines_at_once: u64,
}

/// The kind of an access to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Load,
    Store,
    Atomic,
}

/// The caches of a host.
pub(crate) struct Caches {
    latencies: Latencies,
    /// The cores of each core's socket, a bit each.
    sockets: Vec<u64>,
    /// Time at which all stores of each core so far are done.
    stored_ps: Vec<u64>,
    lines: Vec<Line>,
    locks: Vec<Held>,
}

/// The state of a line.
#[derive(Clone, Copy, Default)]
struct Line {
    /// The cores that hold it, a bit each.
    holders: u64,
    /// One core has modified it, and no other core holds it.
    is_changed: bool,
    /// The time from which, and the time until which, the line moves or cores wait for it.
    busy_from_ps: u64,
    busy_until_ps: u64,
}

/// A lock.
#[derive(Clone, Copy, Default)]
struct Held {
    line: usize,
    free_from_ps: u64,
    holder: Option<usize>,
}

impl Caches {
    /// The caches outside of a run.
    pub(crate) const NONE: Caches = Caches {
        latencies: Latencies {
            load_ps: 0,
            store_ps: 0,
            atomic_ps: 0,
            near_ps: 0,
            far_ps: 0,
            lines_at_once: 1,
        },
        sockets: Vec::new(),
        stored_ps: Vec::new(),
        lines: Vec::new(),
        locks: Vec::new(),
    };

    /// Empty caches; `sockets` has the socket of each core, for at most 64 cores.
    pub(crate) fn new(latencies: Latencies, sockets: Vec<u16>) -> Self {
        let same = |here: &u16| {
            let cores = sockets.iter().enumerate().filter(|(_, socket)| *socket == here);
            cores.fold(0, |cores, (core, _)| cores | 1 << core)
        };
        let stored_ps = vec![0; sockets.len()];
        let sockets = sockets.iter().map(same).collect();
        Caches { latencies, sockets, stored_ps, lines: Vec::new(), locks: Vec::new() }
    }

    /// Number of lines that a core fetches at the same time.
    pub(crate) fn lines_at_once(&self) -> u64 {
        self.latencies.lines_at_once
    }

    /// A line that is in no cache.
    pub(crate) fn line(&mut self) -> usize {
        self.lines.push(Line::default());
        self.lines.len() - 1
    }

    /// A lock that is free.
    pub(crate) fn lock(&mut self) -> usize {
        let line = self.line();
        self.locks.push(Held { line, ..Held::default() });
        self.locks.len() - 1
    }

    /// The line of a lock.
    pub(crate) fn line_of(&self, lock: usize) -> usize {
        self.locks[lock].line
    }

    /// The cost of a store to a line in the core's own cache.
    pub(crate) fn store_ps(&self) -> u64 {
        self.latencies.store_ps
    }

    /// Whether a core has a line.
    pub(crate) fn has(&self, core: usize, line: usize) -> bool {
        self.lines[line].holders & 1 << core != 0
    }

    /// Time until which a core has to wait for a moving line, if its access needs that line to
    /// arrive.
    pub(crate) fn waits(
        &self,
        core: usize,
        line: usize,
        access: Access,
        now_ps: u64,
    ) -> Option<u64> {
        let place = &self.lines[line];
        let (own, reads) = (1 << core, access == Access::Load);
        let is_here = if reads { place.holders & own != 0 } else { place.holders == own };
        let free_ps = place.free_from(now_ps);
        (!is_here && free_ps > now_ps).then_some(free_ps)
    }

    /// Time at which all stores of a core so far are done.
    pub(crate) fn stored_ps(&self, core: usize) -> u64 {
        self.stored_ps[core]
    }

    /// Adds a core to the holders of a line that another core also reads.
    pub(crate) fn share(&mut self, core: usize, line: usize) {
        self.lines[line].holders |= 1 << core;
    }

    /// Time of the transfer of a line to a core from the farthest of its holders, or from the
    /// nearest.
    pub(crate) fn transfer_ps(&self, core: usize, holders: u64, farthest: bool) -> u64 {
        let others = holders & !(1 << core);
        // A line that no cache holds comes from memory, which is assumed to be as near as the own
        // socket.
        let (near, far) = (others & self.sockets[core] != 0, others & !self.sockets[core] != 0);
        if far && (farthest || !near) { self.latencies.far_ps } else { self.latencies.near_ps }
    }

    /// A core accesses a line at `now_ps`; returns the time at which the access is done.
    #[inline]
    pub(crate) fn access(&mut self, core: usize, line: usize, access: Access, now_ps: u64) -> u64 {
        self.access_here(1 << core, line, access, now_ps)
            .unwrap_or_else(|| self.bring(core, line, access, now_ps))
    }

    /// An access of the core with the bit `own`, if its cache holds the line in the state that the
    /// access needs; `None` otherwise, and for a bit or a line that does not exist.
    #[inline]
    pub(crate) fn access_here(
        &mut self,
        own: u64,
        line: usize,
        access: Access,
        now_ps: u64,
    ) -> Option<u64> {
        let Line { holders, is_changed, .. } = self.lines.get_mut(line)?;
        let is_alone = *holders == own && own != 0;
        let is_here = if access == Access::Load { *holders & own != 0 } else { is_alone };
        if !is_here {
            return None;
        }
        *is_changed |= access != Access::Load;
        let core = own.trailing_zeros() as usize;
        Some(self.begins_ps(core, access, now_ps) + self.local_ps(access))
    }

    /// An atomic operation comes after the core's stores before it.
    #[inline]
    fn begins_ps(&self, core: usize, access: Access, now_ps: u64) -> u64 {
        if access == Access::Atomic { now_ps.max(self.stored_ps[core]) } else { now_ps }
    }

    #[inline]
    fn local_ps(&self, access: Access) -> u64 {
        match access {
            Access::Load => self.latencies.load_ps,
            Access::Store => self.latencies.store_ps,
            Access::Atomic => self.latencies.atomic_ps,
        }
    }

    /// An access if the core's cache does not hold the line in the state that the access needs.
    #[inline]
    fn bring(&mut self, core: usize, line: usize, access: Access, now_ps: u64) -> u64 {
        let own = 1 << core;
        let now_ps = self.begins_ps(core, access, now_ps);
        let Line { holders, is_changed, .. } = self.lines[line];
        // A reader takes the nearest copy; a writer waits until the farthest one is gone.
        let transfer_ps = self.transfer_ps(core, holders, access != Access::Load || is_changed);
        let local_ps = self.local_ps(access);
        let moved = &mut self.lines[line];
        let start_ps = moved.free_from(now_ps);
        let there_ps = start_ps + transfer_ps;
        if access == Access::Load {
            // An unmodified line is copied, and other readers need not wait for the copy.
            if is_changed {
                moved.keep_busy(now_ps, there_ps);
            }
            moved.holders |= own;
            moved.is_changed = false;
            return there_ps + local_ps;
        }
        moved.keep_busy(now_ps, there_ps);
        moved.holders = own;
        moved.is_changed = true;
        if access == Access::Store {
            self.stored_ps[core] = self.stored_ps[core].max(there_ps);
            // The store waits in the store buffer: only the core's next atomic operation waits for
            // the line.
            return now_ps + local_ps;
        }
        there_ps + local_ps
    }

    /// A core acquires a lock and the `guarded` lines behind it; returns the time at which it holds
    /// the lock.
    pub(crate) fn acquire(&mut self, core: usize, lock: usize, guarded: u64, now_ps: u64) -> u64 {
        let Held { line, free_from_ps, holder } = self.locks[lock];
        let (others, waits) = (holder.map_or(0, |holder| 1 << holder), now_ps < free_from_ps);
        let back_ps = if waits { self.transfer_ps(core, others, true) } else { 0 };
        let has_ps = self.access(core, line, Access::Atomic, now_ps.max(free_from_ps) + back_ps);
        let moves_ps = match holder {
            Some(holder) if holder != core => guarded * self.transfer_ps(core, others, true),
            _ => 0,
        };
        has_ps + moves_ps
    }

    /// A core releases a lock; returns the time at which the release is done.
    pub(crate) fn release(&mut self, core: usize, lock: usize, now_ps: u64) -> u64 {
        let free_from_ps = now_ps + self.latencies.store_ps;
        let held = &mut self.locks[lock];
        held.holder = Some(core);
        // Cores are simulated one verb at a time, so a later holder may have been simulated first.
        held.free_from_ps = held.free_from_ps.max(free_from_ps);
        free_from_ps
    }

    /// Moves the release of a lock to `until_ps`, if that is later.
    pub(crate) fn held_until(&mut self, lock: usize, until_ps: u64) {
        let held = &mut self.locks[lock];
        held.free_from_ps = held.free_from_ps.max(until_ps);
    }
}

impl Line {
    /// Time at which the line can move, for an access at `now_ps`.
    fn free_from(&self, now_ps: u64) -> u64 {
        if (self.busy_from_ps..self.busy_until_ps).contains(&now_ps) {
            self.busy_until_ps
        } else {
            now_ps
        }
    }

    /// Marks the line as busy until `until_ps`, for an access at `now_ps`.
    fn keep_busy(&mut self, now_ps: u64, until_ps: u64) {
        if !(self.busy_from_ps..self.busy_until_ps).contains(&now_ps) {
            self.busy_from_ps = now_ps;
        }
        self.busy_until_ps = until_ps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCIES: Latencies = Latencies {
        load_ps: 1,
        store_ps: 2,
        atomic_ps: 5,
        near_ps: 40,
        far_ps: 100,
        lines_at_once: 10,
    };

    /// Two sockets, two cores each.
    fn caches() -> Caches {
        Caches::new(LATENCIES, vec![0, 0, 1, 1])
    }

    #[test]
    fn a_line_is_dear_only_where_it_is_not() {
        let mut caches = caches();
        let line = caches.line();
        caches.access(0, line, Access::Atomic, 0);
        let mut cost = |core, access, at_ps| caches.access(core, line, access, at_ps) - at_ps;
        assert_eq!(cost(0, Access::Atomic, 1_000), 5);
        assert_eq!(cost(1, Access::Load, 2_000), 41, "from the same socket");
        assert_eq!(cost(1, Access::Load, 3_000), 1);
        assert_eq!(cost(0, Access::Load, 4_000), 1, "the owner keeps a copy");
        assert_eq!(cost(2, Access::Load, 5_000), 101, "from the other socket");
        assert_eq!(cost(3, Access::Load, 6_000), 41, "a clean copy is nearer by now");
        assert_eq!(cost(0, Access::Atomic, 7_000), 105, "the farthest copy has to go");
        assert_eq!(cost(3, Access::Load, 8_000), 101);
    }

    #[test]
    fn who_wants_a_line_that_moves_waits_and_readers_of_a_clean_one_do_not() {
        let mut caches = caches();
        let (hot, cold) = (caches.line(), caches.line());
        caches.access(0, hot, Access::Atomic, 0);
        assert_eq!(caches.access(1, hot, Access::Atomic, 1_000), 1_045);
        assert_eq!(caches.access(0, hot, Access::Atomic, 1_010), 1_085, "after the one before");
        assert_eq!(caches.access(1, hot, Access::Atomic, 1_020), 1_125, "and after both");
        assert_eq!(
            caches.access(0, hot, Access::Load, 900),
            941,
            "an earlier one does not wait for later ones"
        );
        for core in 0..3 {
            caches.access(core, cold, Access::Load, 0);
        }
        assert_eq!(caches.access(3, cold, Access::Load, 1_000), 1_041);
    }

    #[test]
    fn a_store_does_not_wait_for_its_line_but_an_atomic_after_it_does() {
        let mut caches = caches();
        let (line, own) = (caches.line(), caches.line());
        caches.access(2, line, Access::Atomic, 0);
        caches.access(0, own, Access::Atomic, 0);
        assert_eq!(caches.access(0, line, Access::Store, 1_000), 1_002);
        assert_eq!(caches.access(0, own, Access::Load, 1_002), 1_003);
        assert_eq!(caches.access(0, own, Access::Atomic, 1_003), 1_105);
    }

    #[test]
    fn a_lock_serves_one_after_the_other_and_brings_what_it_guards() {
        let mut caches = caches();
        let lock = caches.lock();
        let has = caches.acquire(0, lock, 3, 0);
        caches.release(0, lock, has + 1_000);
        assert_eq!(caches.acquire(0, lock, 3, 5_000), 5_005, "still all here");
        caches.release(0, lock, 6_000);
        assert_eq!(
            caches.acquire(2, lock, 3, 5_500),
            6_002 + 100 + 100 + 5 + 300,
            "waits, and four lines come"
        );
        caches.release(2, lock, 8_000);
        caches.held_until(lock, 9_000);
        assert_eq!(caches.acquire(2, lock, 3, 9_500), 9_505);
    }
}
