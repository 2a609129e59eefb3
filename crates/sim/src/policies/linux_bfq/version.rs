//! Which Linux's BFQ runs, and how.

use crate::host::Host;

/// Which Linux. Later ones have what earlier ones have unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kernel {
    /// A queue whose requests are all on the drive is waited for where queues or groups have
    /// different weights. Nothing goes meanwhile.
    V4_15,
    /// Others' requests are injected meanwhile, one at a time and once it has waited long. In
    /// groups all queues are waited for; without groups the lightest is not.
    V5_2,
    /// As many are injected as the queue's own bear. A queue that becomes busy takes the drive from
    /// a lighter one.
    V5_3,
    /// Tags by weight. In groups a queue is waited for while other groups have requests, and also
    /// one that is alone.
    V7_2,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 4] = [Kernel::V4_15, Kernel::V5_2, Kernel::V5_3, Kernel::V7_2];
}

/// How Linux's BFQ runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinuxBfqConfig {
    /// Of which Linux.
    pub kernel: Kernel,
    /// How many flows, one after the other, are the processes of a control group, which has the
    /// weight of all of them; 0 where there are no groups.
    pub processes: usize,
    /// The largest budget in sectors (`max_budget`); 0 for what the drive's peak rate allows.
    pub budget: u64,
    /// What a request takes under BFQ's lock, in cycles.
    pub cycles: u64,
    /// Whether weights are raised (`low_latency`).
    pub low_latency: bool,
}

impl LinuxBfqConfig {
    /// What each hook of a request takes on a host, more than the lightest scheduler's.
    pub(crate) fn hook_ps(&self, host: &Host) -> u64 {
        host.ps(self.cycles.saturating_sub(host.machine.layer.stage) / 3)
    }

    /// What Linux's documentation has: 1.9 us at 2.4 GHz, where the lightest scheduler's request
    /// takes 0.7 (bfq-iosched.rst).
    pub const CYCLES: u64 = 4560;
}
