//! Utilization of the parts of a device.

/// The counts since the start; times are sums over the parts, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// Busy time of the controller.
    pub controller_ns: u64,
    /// Busy times of all dies: reads, programs, moves, erases.
    pub dies_ns: [u64; 4],
    /// Busy time of all channels.
    pub channels_ns: u64,
    /// Busy times of the links to the host and to the device; SATA uses the first for both.
    pub links_ns: [u64; 2],
    /// Bytes in the buffer, times nanoseconds.
    pub held_byte_ns: u128,
    /// Number of 4 KiB units that were written, and that were moved to make room, where pages are
    /// mapped (`mapping = "pages"`).
    pub units: [u64; 2],
}

/// The utilization of each part of a device over an interval, from 0 to 1: a mean where there are
/// several.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Busy {
    /// The controller.
    pub controller: f64,
    /// The dies: reads, programs, moves, erases.
    pub dies: [f64; 4],
    /// The channels.
    pub channels: f64,
    /// The links to the host and to the device.
    pub links: [f64; 2],
    /// Mean fill level of the buffer.
    pub buffer: f64,
    /// Write amplification: writes to the media for each write of the host; `None` where it is not
    /// counted, or nothing was written.
    pub amplification: Option<f64>,
}

/// The number of parts over which [`Usage`] sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Dies.
    pub dies: u32,
    /// Channels.
    pub channels: u32,
    /// The buffer's size, in bytes.
    pub buffer: u64,
}

impl Usage {
    /// The utilization since `before`, which is `elapsed_ns` ago.
    pub fn since(&self, before: &Usage, elapsed_ns: u64, parts: Parts) -> Busy {
        let elapsed_ns = elapsed_ns.max(1) as f64;
        // Work counts in full when it begins, and may end after the interval.
        let part = |now: u64, before: u64, count: u32| {
            ((now - before) as f64 / (elapsed_ns * f64::from(count.max(1)))).min(1.0)
        };
        let [written, moved] = [0, 1].map(|at| self.units[at] - before.units[at]);
        let held = (self.held_byte_ns - before.held_byte_ns) as f64;
        Busy {
            controller: part(self.controller_ns, before.controller_ns, 1),
            dies: [0, 1, 2, 3]
                .map(|kind| part(self.dies_ns[kind], before.dies_ns[kind], parts.dies)),
            channels: part(self.channels_ns, before.channels_ns, parts.channels),
            links: [0, 1].map(|link| part(self.links_ns[link], before.links_ns[link], 1)),
            // A command enters the buffer while there is any room, so the buffer may hold more than
            // its size.
            buffer: (held / (elapsed_ns * parts.buffer.max(1) as f64)).min(1.0),
            amplification: (written > 0).then(|| 1.0 + moved as f64 / written as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_is_busier_than_always() {
        let parts = Parts { dies: 2, channels: 1, buffer: 4096 };
        let after = Usage {
            controller_ns: 110,
            dies_ns: [210, 50, 0, 0],
            held_byte_ns: 100 * 4097,
            ..Usage::default()
        };
        let busy = after.since(&Usage::default(), 100, parts);
        assert_eq!((busy.controller, busy.dies, busy.buffer), (1.0, [1.0, 0.25, 0.0, 0.0], 1.0));
    }
}
