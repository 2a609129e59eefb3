//! Servers: each request is served as soon as the requests before it are done.

use std::collections::VecDeque;

/// Serves one request at a time, first come, first served.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    free_ns: u64,
    busy_ns: u64,
}

impl Server {
    /// Serves a request that arrives now and takes `takes_ns`; returns its end.
    #[inline]
    pub(super) fn serve(&mut self, now_ns: u64, takes_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + takes_ns;
        self.busy_ns += takes_ns;
        self.free_ns
    }

    /// Total service time of all requests so far, including service that is not finished yet.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

/// Serves one request at a time, with bookings for later times. A later request goes first if it
/// fits before a booking.
#[derive(Clone, Debug, Default)]
pub(super) struct Bookings {
    /// Start and end of each booking, in that order; past ones are dropped.
    taken: VecDeque<(u64, u64)>,
    busy_ns: u64,
}

impl Bookings {
    /// Books `takes_ns` from `from_ns` on at the earliest; returns the end.
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

    /// Total service time of all requests so far, including service that is not finished yet.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

/// The time of moving bytes.
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
