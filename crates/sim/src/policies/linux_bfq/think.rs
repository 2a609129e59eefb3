//! The think time of a process: from its last completion to its next request.

use super::IDLE_NS;

/// `bfq_ttime`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThinkTime {
    samples: u64,
    total: u64,
}

impl ThinkTime {
    pub(super) fn arrived(&mut self, elapsed_ns: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * elapsed_ns.min(2 * IDLE_NS)) / 8;
    }

    /// `bfq_update_has_short_ttime`.
    pub(super) fn is_short(&self) -> bool {
        self.samples <= 80 || (self.total + 128) / self.samples <= IDLE_NS / 2
    }
}
