//! Weight raising (`low_latency`): queues that seem to serve an interactive or real-time
//! application have many times their weight for a while.
//!
//! - *Interactive* is a queue that is new, or was idle for two seconds: 30 times its weight, for
//!   the time that a large program's start is assumed to take on the drive (3 to 25 seconds; longer
//!   on slower drives), and for at most 120,000 sectors.
//! - *Soft real-time* is a queue that sends a batch, waits until the whole batch has completed, and
//!   sends the next batch no sooner than a rate of 7000 sectors a second allows: 3000 times its
//!   weight, for 300 ms after each batch. A queue whose last 32 requests were all seeks is not soft
//!   real-time.
//!
//! The rules are those of the source of 7.2, and for [`Kernel::V4_15`] those of a source of that
//! time, in which interactive raising lasts at most 13 seconds and has no limit in sectors, slow
//! drives have other numbers, and a queue that only seeks can be soft real-time. Versions 5.2 and
//! 5.3 are assumed to behave as 7.2 without two later changes: only queues of the default weight
//! are raised (5.12), and BFQ waits 20 ms for raised queues.

use super::{IDLE_NS, Kernel, MS};

#[cfg(test)]
mod tests;

/// `bfq_wr_coeff`, and `bfq_wr_coeff` times `BFQ_SOFTRT_WEIGHT_FACTOR`.
pub(super) const INTERACTIVE: u64 = 30;
pub(super) const SOFT_REAL_TIME: u64 = 3000;
/// `bfq_wr_min_idle_time`, `bfq_wr_rt_max_time`.
const IDLE_FROM_NS: u64 = 2000 * MS;
const SOFT_REAL_TIME_NS: u64 = 300 * MS;
/// `bfq_wr_max_softrt_rate`, in sectors a second.
const SOFT_RATE: u64 = 7000;
/// A queue that sends sooner than this after its last completion is greedy. It is the length of a
/// wait plus four jiffies of 4 ms, the value in distributions' kernels.
const GREEDY_NS: u64 = IDLE_NS + 16 * MS;
/// `max_service_from_wr`, in sectors.
const MOST_SERVICE: u64 = 120_000;
/// `ref_rate` times `ref_wr_duration`, and for 4.15 the same product for slow drives: a drive's
/// rate, in 2^-16 sectors a microsecond, times the time of a program's start on it, in
/// milliseconds.
const REFERENCE: u64 = 33_000 * 2500;
const SLOW_REFERENCE: u64 = 10_700 * 6000;
const SLOW_UP_TO: u64 = 4 * 10_700 / 3;

/// `bfq_wr_duration`.
fn interactive_ns(kernel: Kernel, rate: u64) -> u64 {
    let (reference, most_ms) = match kernel {
        Kernel::V4_15 if rate < SLOW_UP_TO => (SLOW_REFERENCE, 13_000),
        Kernel::V4_15 => (REFERENCE, 13_000),
        _ => (REFERENCE, 25_000),
    };
    (reference / rate.max(1)).clamp(3000, most_ms) * MS
}

/// The raising of a queue's weight, and the state that decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raising {
    /// Factor of its weight: 1 while it is not raised.
    pub(super) coefficient: u64,
    /// `last_wr_start_finish`, `wr_cur_max_time`.
    since_ns: u64,
    lasts_ns: u64,
    /// Start of its interactive raising, if it became soft real-time during it.
    interactive_since_ns: Option<u64>,
    /// Service while raised, since interactive raising began, in sectors.
    service: u64,
    /// `soft_rt_next_start`: a batch that begins later is soft real-time.
    next_start_ns: u64,
    /// Whether `next_start_ns` is computed when the last request has completed.
    next_start_is_due: bool,
    /// Start of its current busy time, and its service since then, in sectors.
    busy_since_ns: u64,
    busy_service: u64,
    /// Start of its idle time; `None` before its first request.
    idle_since_ns: Option<u64>,
}

impl Raising {
    pub(super) const NONE: Raising = Raising {
        coefficient: 1,
        since_ns: 0,
        lasts_ns: 0,
        interactive_since_ns: None,
        service: 0,
        next_start_ns: 0,
        next_start_is_due: false,
        busy_since_ns: 0,
        busy_service: 0,
        idle_since_ns: None,
    };

    pub(super) fn is_on(&self) -> bool {
        self.coefficient > 1
    }

    fn is_soft_real_time(&self) -> bool {
        self.is_on() && self.lasts_ns == SOFT_REAL_TIME_NS
    }

    /// Factor of the usual longest time of a turn (`bfq_set_budget_timeout`).
    pub(super) fn turns(&self) -> u64 {
        if self.is_soft_real_time() { 1 } else { self.coefficient }
    }

    /// A request has arrived at the queue while it had none (`bfq_bfqq_handle_idle_busy_switch`,
    /// `bfq_update_bfqq_wr_on_rq_arrival`). Returns whether raising begins, in which case the
    /// caller bounds the queue's budget.
    pub(super) fn begins(&mut self, now_ns: u64, arrival: Arrived) -> bool {
        let Arrived { kernel, rate, is_usual_weight, only_seeks, on_drive } = arrival;
        let may = is_usual_weight || kernel < Kernel::V7_2;
        let has_been_idle =
            self.idle_since_ns.is_none_or(|since_ns| now_ns > since_ns + IDLE_FROM_NS);
        let is_interactive = may && on_drive == 0 && has_been_idle;
        let is_isochronous = kernel == Kernel::V4_15 || (on_drive == 0 && !only_seeks);
        let is_soft_real_time = may && is_isochronous && now_ns > self.next_start_ns;

        let was_on = self.is_on();
        let begins = !was_on && (is_interactive || is_soft_real_time);
        if is_interactive {
            if begins {
                self.service = 0;
            }
            self.coefficient = INTERACTIVE;
            self.lasts_ns = interactive_ns(kernel, rate);
            self.since_ns = now_ns;
        } else if is_soft_real_time {
            if begins {
                self.interactive_since_ns = None;
            } else if !self.is_soft_real_time() {
                self.interactive_since_ns = Some(self.since_ns);
            }
            (self.coefficient, self.lasts_ns) = (SOFT_REAL_TIME, SOFT_REAL_TIME_NS);
            self.since_ns = now_ns;
        }
        (self.busy_since_ns, self.busy_service) = (now_ns, 0);
        self.next_start_is_due = false;
        begins
    }

    /// Its turn begins: the time without service does not count (`__bfq_set_in_service_queue`).
    pub(super) fn turn_begins(&mut self, now_ns: u64) {
        if let Some(idle_since_ns) = self.idle_since_ns
            && self.is_soft_real_time()
            && now_ns > self.since_ns
            && now_ns > idle_since_ns
        {
            self.since_ns = match idle_since_ns > self.since_ns {
                true => self.since_ns + (now_ns - idle_since_ns),
                false => now_ns,
            };
        }
    }

    /// The queue was served some sectors.
    pub(super) fn served(&mut self, sectors: u64) {
        if self.is_on() {
            self.service += sectors;
        }
        self.busy_service += sectors;
    }

    /// A request of the queue was dispatched while it is in service: raising may end
    /// (`bfq_update_wr_data`).
    pub(super) fn dispatched(&mut self, now_ns: u64, kernel: Kernel, rate: u64) {
        if self.is_on() && now_ns > self.since_ns + self.lasts_ns {
            self.ends_or_falls_back(now_ns, kernel, rate);
        }
        let is_limited = kernel > Kernel::V4_15 && !self.is_soft_real_time();
        if self.is_on() && is_limited && self.service > MOST_SERVICE {
            self.ends(now_ns);
        }
    }

    /// Called when all of the queue's last 32 requests were seeks (`bfq_update_io_seektime`).
    pub(super) fn only_seeks(&mut self, now_ns: u64, kernel: Kernel, rate: u64) {
        if self.is_soft_real_time() && kernel > Kernel::V4_15 {
            self.ends_or_falls_back(now_ns, kernel, rate);
        }
    }

    fn ends(&mut self, now_ns: u64) {
        (self.coefficient, self.lasts_ns, self.since_ns) = (1, 0, now_ns);
    }

    /// Ends raising; a queue that became soft real-time during its interactive time is interactive
    /// again for the rest of that time.
    fn ends_or_falls_back(&mut self, now_ns: u64, kernel: Kernel, rate: u64) {
        let lasts_ns = interactive_ns(kernel, rate);
        match self.interactive_since_ns {
            Some(since_ns) if self.is_soft_real_time() && now_ns <= since_ns + lasts_ns => {
                (self.coefficient, self.lasts_ns, self.since_ns) =
                    (INTERACTIVE, lasts_ns, since_ns);
            }
            _ => self.ends(now_ns),
        }
    }

    /// Called when the queue's turn is over and it has nothing staged (`bfq_bfqq_expire`).
    pub(super) fn expired(&mut self, now_ns: u64, kernel: Kernel, on_drive: u32) {
        if on_drive == 0 {
            self.next_start(now_ns, kernel);
            self.idle_since_ns = Some(now_ns);
        } else {
            self.next_start_is_due = true;
            if kernel == Kernel::V4_15 {
                self.next_start_ns = u64::MAX;
            }
        }
    }

    /// Called when the queue's last request has completed (`bfq_completed_request`).
    pub(super) fn emptied(&mut self, now_ns: u64, kernel: Kernel, is_busy: bool) {
        if !is_busy {
            self.idle_since_ns = Some(now_ns);
        }
        let counts = kernel == Kernel::V4_15 || self.coefficient != INTERACTIVE;
        if self.next_start_is_due && counts {
            self.next_start(now_ns, kernel);
        }
    }

    /// `bfq_bfqq_softrt_next_start`.
    fn next_start(&mut self, now_ns: u64, kernel: Kernel) {
        let at_rate_ns = self.busy_since_ns + self.busy_service * 1000 * MS / SOFT_RATE;
        let before_ns = if kernel == Kernel::V4_15 { 0 } else { self.next_start_ns };
        self.next_start_ns = before_ns.max(at_rate_ns).max(now_ns + GREEDY_NS);
    }
}

/// The state of a queue when its first request arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) kernel: Kernel,
    /// The drive's peak rate, in 2^-16 sectors a microsecond.
    pub(super) rate: u64,
    pub(super) is_usual_weight: bool,
    /// Whether each of its last 32 requests was a seek.
    pub(super) only_seeks: bool,
    pub(super) on_drive: u32,
}
