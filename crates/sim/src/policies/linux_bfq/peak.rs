//! The drive's peak rate as Linux's BFQ estimates it; budgets follow from it
//! (`bfq_update_peak_rate`).

use super::{LARGE, LEAST_CHARGED_NS, MS, NEAR, Staged, TIMEOUT_NS};

/// The drive's peak rate, in 2^-16 sectors a microsecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peak {
    rate: u64,
    samples: u64,
    sequential: u64,
    sectors: u64,
    largest: u64,
    first_ns: u64,
    last_ns: u64,
    /// Time from the first dispatch to the last one.
    over_ns: u64,
    last_end: u64,
    completed_ns: u64,
}

impl Default for Peak {
    fn default() -> Peak {
        Peak {
            // `ref_rate` of a drive that does not rotate, times 2 / 3.
            rate: 22_000,
            samples: 0,
            sequential: 0,
            sectors: 0,
            largest: 0,
            first_ns: 0,
            last_ns: 0,
            over_ns: 0,
            last_end: 0,
            completed_ns: 0,
        }
    }
}

impl Peak {
    /// `bfq_reset_rate_computation`.
    fn begin(&mut self, now_ns: u64, first: Option<&Staged>) {
        self.samples = 0;
        if let Some(request) = first {
            (self.first_ns, self.last_ns) = (now_ns, now_ns);
            (self.samples, self.sequential) = (1, 0);
            (self.sectors, self.largest) = (request.sectors, request.sectors);
        }
    }

    /// `bfq_update_peak_rate`; returns whether the rate has changed.
    pub(super) fn dispatched(&mut self, now_ns: u64, request: &Staged, on_drive: u32) -> bool {
        let mut changed = false;
        if self.samples == 0 {
            self.begin(now_ns, Some(request));
        } else if now_ns.saturating_sub(self.last_ns) > 100 * MS && on_drive == 0 {
            changed = self.reset(now_ns, Some(request));
        } else {
            self.samples += 1;
            let is_fed =
                on_drive > 0 || now_ns.saturating_sub(self.completed_ns) < LEAST_CHARGED_NS;
            self.sequential += u64::from(is_fed && !seeks(self.last_end, request));
            self.sectors += request.sectors;
            self.largest = match self.samples % 32 {
                0 => request.sectors,
                _ => self.largest.max(request.sectors),
            };
            self.over_ns = now_ns.saturating_sub(self.first_ns);
            if self.over_ns >= 1000 * MS {
                changed = self.reset(now_ns, Some(request));
            }
        }
        self.last_end = request.at + request.sectors;
        self.last_ns = now_ns;
        changed
    }

    /// A request has completed; returns whether the rate has changed.
    pub(super) fn completed(&mut self, now_ns: u64) -> bool {
        let took_us = now_ns.saturating_sub(self.completed_ns) / 1000;
        let is_gap = took_us > 2000 && (self.largest << 16) / took_us < 1 << 6;
        let changed = is_gap && self.reset(now_ns, None);
        self.completed_ns = now_ns;
        changed
    }

    /// `bfq_update_rate_reset`.
    fn reset(&mut self, now_ns: u64, next: Option<&Staged>) -> bool {
        let changed = self.samples >= 32 && self.over_ns >= 300 * MS && {
            let over_ns = self.over_ns.max(self.completed_ns.saturating_sub(self.first_ns));
            let rate = (self.sectors << 16) / (over_ns / 1000);
            let is_low = self.sequential < 3 * self.samples / 4 && rate <= self.rate;
            let is_known = !is_low && rate <= 20 << 16;
            if is_known {
                let weight = (9 * self.sequential / self.samples * over_ns / (1000 * MS)).min(8);
                let divisor = 10 - weight;
                self.rate = (self.rate * (divisor - 1) / divisor + rate / divisor).max(1);
            }
            is_known
        };
        self.begin(now_ns, next);
        changed
    }

    /// The rate in 2^-16 sectors a microsecond.
    pub(super) fn rate(&self) -> u64 {
        self.rate
    }

    /// `bfq_calc_max_budget`.
    pub(super) fn budget(&self) -> u64 {
        (self.rate * (TIMEOUT_NS / 1000)) >> 16
    }
}

pub(super) fn seeks(last_end: u64, request: &Staged) -> bool {
    request.at.abs_diff(last_end) > NEAR && request.sectors < LARGE
}
