//! Servers: each request is served as soon as those before it have been.

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

/// What moving bytes takes.
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
