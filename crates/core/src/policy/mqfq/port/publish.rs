//! A port publishes its least start tag and its counters, and wakes the ports that virtual time
//! releases.

use super::*;

impl Local {
    /// Raises the port's leaf to `lead`, which is not before the published tag.
    #[inline]
    pub(super) fn publish<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        lead: Option<VTime>,
        wake: &mut PortSet,
    ) {
        if self.published != lead {
            self.published = lead;
            self.raise(shared, wake);
        }
    }

    /// Writes the leaf; if that moves virtual time on, turns the wheel.
    #[inline]
    pub(super) fn raise<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        let moved = shared.time.raise(self.port, self.published);
        self.turn(shared, moved, wake);
    }

    /// Turns the wheel if virtual time has moved on, to `moved`.
    #[inline]
    pub(super) fn turn<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        moved: Option<VTime>,
        wake: &mut PortSet,
    ) {
        if let Some(now) = moved {
            self.time = now;
            let free = shared.wheel.turn(now);
            // `free_ns` is only used for a count, so its order does not matter: a port that runs
            // before it is written counts nothing.
            free.filter_map(|port| shared.counters.get(usize::from(port.0)))
                .for_each(|counters| counters.free_ns.store(self.now_ns, Ordering::Relaxed));
            self.wake(shared, free, wake);
        }
    }

    /// Adds the ports to `wake`, the ports that the caller wakes.
    #[inline]
    pub(super) fn wake<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        ports: PortSet,
        wake: &mut PortSet,
    ) {
        if !ports.is_empty() {
            wake.extend(ports);
            self.wakes += ports.len() as u64;
            self.count(shared);
        }
    }

    /// Publishes the port's counters.
    #[cold]
    pub(super) fn count<P: Platform>(&self, shared: &Shared<P>) {
        if let Some(counters) = shared.counters.get(usize::from(self.port.0)) {
            // Written by this port alone, and read only for statistics and for the adjustment of T.
            counters.throttles.store(self.throttles, Ordering::Relaxed);
            counters.blocks.store(self.blocks, Ordering::Relaxed);
            counters.wakes.store(self.wakes, Ordering::Relaxed);
            counters.late_ns.store(self.late_ns, Ordering::Relaxed);
        }
    }
}
