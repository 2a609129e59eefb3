//! The version of Linux whose BFQ runs, and its options.

use crate::host::Host;

/// The version of Linux. Later versions behave as earlier ones unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kernel {
    /// BFQ waits for a queue whose requests are all on the drive if queues or groups have different
    /// weights. It dispatches no request meanwhile.
    V4_15,
    /// BFQ injects requests of other queues while it waits, one at a time and only after a long
    /// wait. With groups it waits for all queues; without groups it does not wait for the lightest
    /// ones.
    V5_2,
    /// The number of injected requests adapts to their effect on the waiting queue's own requests.
    /// A queue that becomes busy preempts a lighter one.
    V5_3,
    /// Queues get tags by weight. With groups, BFQ waits for a queue while other groups have
    /// requests. It also waits for a queue that is the only busy one.
    V7_2,
}

impl Kernel {
    /// All versions.
    pub const ALL: [Kernel; 4] = [Kernel::V4_15, Kernel::V5_2, Kernel::V5_3, Kernel::V7_2];
}

/// The options of Linux's BFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinuxBfqConfig {
    /// The version of Linux.
    pub kernel: Kernel,
    /// Number of consecutive flows that are the processes of one control group, whose weight is the
    /// sum of theirs; 0 for no groups.
    pub processes: usize,
    /// The largest budget in sectors (`max_budget`); 0 to derive it from the drive's peak rate.
    pub budget: u64,
    /// Time of a request under BFQ's lock, in cycles.
    pub cycles: u64,
    /// Whether weights are raised (`low_latency`).
    pub low_latency: bool,
}

impl LinuxBfqConfig {
    /// Time by which each hook of a request takes longer on a host than the lightest scheduler's
    /// hook, in picoseconds.
    pub(crate) fn hook_ps(&self, host: &Host) -> u64 {
        host.ps(self.cycles.saturating_sub(host.machine.layer.stage) / 3)
    }

    /// The value of Linux's documentation: 1.9 us at 2.4 GHz, where the lightest scheduler's
    /// request takes 0.7 (bfq-iosched.rst).
    pub const CYCLES: u64 = 4560;
}
