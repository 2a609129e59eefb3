//! What was counted at one D, and how two of these compare.

/// What D is to keep of the device's rate, in ten thousandths.
pub(super) const KEPT: u64 = 9_850;
/// One, in ten thousandths.
pub(super) const WHOLE: u64 = 10_000;
/// With so many completions the question is answered.
pub(super) const ENOUGH: u64 = 1024;

/// What was counted at one D.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) requests: u64,
    /// Of 512 bytes.
    pub(super) blocks: u64,
    pub(super) time_us: u64,
    /// The time that requests spent on the device, all together, in microseconds.
    pub(super) spent_us: u64,
}

impl Rate {
    /// `self` over `than`, in ten thousandths: the lesser of requests and bytes.
    pub(super) fn over(&self, than: &Rate) -> u64 {
        let ratio = |a: u64, b: u64| {
            let (a, b) = (a.saturating_mul(than.time_us), b.saturating_mul(self.time_us));
            if b == 0 { WHOLE } else { (a / (b / WHOLE).max(1)).min(100 * WHOLE) }
        };
        ratio(self.requests, than.requests).min(ratio(self.blocks, than.blocks))
    }

    /// At this D the device does enough of what it does at the larger D of `than`. Few completions
    /// get the benefit of the doubt, so that a slow device stays at the D where a search begins
    /// unless more does clearly more; a tenth more (a disk that orders what it has) shows in a
    /// hundred.
    pub(super) fn is_enough(&self, than: &Rate) -> bool {
        let doubt = if self.requests < ENOUGH { self.noise() } else { 0 };
        self.over(than) + doubt >= KEPT
    }

    pub(super) fn add(&mut self, other: &Rate) {
        self.requests = self.requests.saturating_add(other.requests);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.time_us = self.time_us.saturating_add(other.time_us);
        self.spent_us = self.spent_us.saturating_add(other.spent_us);
    }

    pub(super) fn halve(&mut self) {
        *self = Rate {
            requests: self.requests / 2,
            blocks: self.blocks / 2,
            time_us: self.time_us / 2,
            spent_us: self.spent_us / 2,
        };
    }

    /// How far chance may have moved it, in ten thousandths: half of what it would for completions
    /// that know nothing of each other, because a closed loop is steadier than that.
    pub(super) fn noise(&self) -> u64 {
        WHOLE / 2 / self.requests.isqrt().max(1)
    }

    /// Requests on the device on average, in hundredths (Little's law).
    pub(super) fn outstanding(&self) -> u64 {
        self.spent_us.saturating_mul(100) / self.time_us.max(1)
    }

    /// The same, rounded to requests, at least one.
    pub(super) fn reached(&self) -> u32 {
        u32::try_from((self.outstanding() + 50) / 100).unwrap_or(u32::MAX).max(1)
    }

    /// How long a request is on the device, in nanoseconds.
    pub(super) fn latency_ns(&self) -> u64 {
        self.spent_us.saturating_mul(1000) / self.requests.max(1)
    }
}
