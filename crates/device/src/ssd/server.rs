//! Servers: each request is served as soon as those before it have been.

use std::collections::VecDeque;

/// Serves one at a time, first come, first served.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    free_ns: u64,
    busy_ns: u64,
}

impl Server {
    /// When it is done with what comes now and takes so long.
    #[inline]
    pub(super) fn serve(&mut self, now_ns: u64, takes_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + takes_ns;
        self.busy_ns += takes_ns;
        self.free_ns
    }

    /// For how long it has served, or will have when it is done.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

/// Serves one at a time what asks for it now or for a time to come. What asks later goes first
/// where there is room for it before what was booked.
#[derive(Clone, Debug, Default)]
pub(super) struct Bookings {
    /// From when to when, in that order; what has ended is forgotten.
    taken: VecDeque<(u64, u64)>,
    busy_ns: u64,
}

impl Bookings {
    /// When it is done with what asks now for so long, from a time on.
    pub(super) fn serve(&mut self, now_ns: u64, from_ns: u64, takes_ns: u64) -> u64 {
        while self.taken.front().is_some_and(|&(_, ends_ns)| ends_ns <= now_ns) {
            self.taken.pop_front();
        }
        let mut begins_ns = from_ns;
        let before = |&(taken_ns, ends_ns): &(u64, u64)| {
            let has_room = begins_ns + takes_ns <= taken_ns;
            if !has_room {
                begins_ns = begins_ns.max(ends_ns);
            }
            has_room
        };
        let place = self.taken.iter().position(before).unwrap_or(self.taken.len());
        self.taken.insert(place, (begins_ns, begins_ns + takes_ns));
        self.busy_ns += takes_ns;
        begins_ns + takes_ns
    }

    /// For how long it has served, or will have when it is done.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

/// The time that moving bytes takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    ns_per_mib: u64,
}

impl Speed {
    pub(super) fn new(ns_per_mib: u64) -> Self {
        Speed { ns_per_mib }
    }

    #[inline]
    pub(super) fn takes_ns(self, bytes: u64) -> u64 {
        (bytes * self.ns_per_mib) >> 20
    }
}
