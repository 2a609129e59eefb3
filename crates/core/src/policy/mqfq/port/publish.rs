//! A port publishes its least start tag, wakes the ports that virtual time frees, and counts.

use super::*;

impl Local {
    /// Makes the port's leaf say `lead`, which is not before what it says.
    #[inline]
    pub(super) fn publish<P: Platform, R: Reading>(
        &mut self,
        shared: &Shared<P, R>,
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
    pub(super) fn raise<P: Platform, R: Reading>(
        &mut self,
        shared: &Shared<P, R>,
        wake: &mut PortSet,
    ) {
        if R::IS_TIMED {
            let moved = shared.time.raise(self.port, self.published);
            self.turn(shared, moved, wake);
        }
    }

    /// Turns the wheel if virtual time has moved on, to `moved`.
    #[inline]
    pub(super) fn turn<P: Platform, R: Reading>(
        &mut self,
        shared: &Shared<P, R>,
        moved: Option<VTime>,
        wake: &mut PortSet,
    ) {
        if let Some(now) = moved {
            self.time = now;
            if shared.polling.is_none() {
                let free = shared.wheel.turn(now);
                // Only counted by, so the order does not matter: one that comes before it is told
                // counts nothing.
                free.filter_map(|port| shared.counters.get(usize::from(port.0)))
                    .for_each(|counters| counters.free_ns.store(self.now_ns, Ordering::Relaxed));
                self.wake(shared, free, wake);
            }
        }
    }

    /// Adds the ports to those the caller is to wake.
    #[inline]
    pub(super) fn wake<P: Platform, R: Reading>(
        &mut self,
        shared: &Shared<P, R>,
        ports: PortSet,
        wake: &mut PortSet,
    ) {
        if !ports.is_empty() {
            wake.extend(ports);
            self.wakes += ports.len() as u64;
            self.count(shared);
        }
    }

    /// Shows the port's counters.
    #[cold]
    pub(super) fn count<P: Platform, R: Reading>(&self, shared: &Shared<P, R>) {
        if let Some(counters) = shared.counters.get(usize::from(self.port.0)) {
            // Written by this port alone and only read for statistics.
            counters.throttles.store(self.throttles, Ordering::Relaxed);
            counters.blocks.store(self.blocks, Ordering::Relaxed);
            counters.wakes.store(self.wakes, Ordering::Relaxed);
            counters.late_ns.store(self.late_ns, Ordering::Relaxed);
        }
    }
}
