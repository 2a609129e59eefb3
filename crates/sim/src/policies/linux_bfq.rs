//! BFQ as Linux 7.2 runs it on a drive that does not rotate and has tagged queueing, each flow a
//! control group with one process, for the laboratory alone.
//!
//! **Why beside `bfq`.** fairq's own BFQ leaves out what Linux does to keep such a drive busy and
//! to hold back what is slow. Facts are those of `block/bfq-iosched.c` and `bfq-wf2q.c`, in this
//! module's words; a function of these files is named where one is followed. The test
//! `tests/linux_bfq.rs` holds it to what Linux itself was measured to do (`bench/oracle`).
//!
//! **Model.** B-WF2Q+ over queues with budgets of sectors, as in fairq's.
//! - *Budgets* are doubled or quadrupled where they were too small, at most to what the drive's
//!   peak rate serves in 125 ms (`__bfq_bfqq_recalc_budget`, `bfq_update_rate_reset`).
//! - *Slow turns* are charged for their time: one of more than 20 ms that served less than half of
//!   the largest budget, and one that ran out of time with a third of its budget left
//!   (`bfq_bfqq_is_slow`, `bfq_bfqq_charge_time`).
//! - *Waiting.* A queue in service that has nothing staged is waited for while others have
//!   requests, by a timer of 8 ms once its last has come back (`bfq_better_to_idle`).
//! - *Injection.* Meanwhile others' requests go, as many as do not make the queue's own take half
//!   as long again (`bfq_choose_bfqq_for_injection`, `bfq_update_inject_limit`).
//! - *Tags.* A queue has its weight's part of 256 requests; what it sends beyond waits outside,
//!   where BFQ does not see it (`bfqq_request_over_limit`).
//! - *A queue that comes back* within 24 ms goes on with what is left of its budget and takes the
//!   drive from a queue in service (`bfq_bfqq_update_budg_for_activation`).
//!
//! **Left out**: weight raising (`low_latency` is 0), merging of queues, wakers, several processes
//! of a group, and asynchronous writes.

use std::collections::VecDeque;

use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy};
use fairq_core::{Outcome, Weight};

const MS: u64 = 1_000_000;
/// `bfq_slice_idle`, `bfq_timeout`, `BFQ_MIN_TT`.
const IDLE_NS: u64 = 8 * MS;
const TIMEOUT_NS: u64 = 125 * MS;
const LEAST_CHARGED_NS: u64 = 2 * MS;
/// A turn that is longer can be slow.
const SLOW_FROM_NS: u64 = 20 * MS;
/// The largest budget before the drive's rate is known, in sectors; the least is a 32nd of the
/// largest.
const FIRST_BUDGET: u64 = 16 << 10;
const BUDGET_RANGE: u64 = 32;
/// Requests from here on are not injected beside others, and do not seek (`BFQQ_SECT_THR_NONROT`).
const LARGE: u64 = 64;
/// How many requests Linux keeps for a drive (`nr_requests`).
const REQUESTS: u64 = 256;
/// Two requests further apart than this many sectors seek.
const NEAR: u64 = 800;
/// Virtual time counts sectors per weight in 2^20ths.
const SHIFT: u32 = 20;

/// Why a turn ends (`bfqq_expiration`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    TooIdle,
    OutOfTime,
    UsedUp,
    NoMore,
    Preempted,
}

#[derive(Clone, Copy, Debug)]
struct Staged {
    job: Job,
    sectors: u64,
    at: u64,
}

#[derive(Debug)]
struct Queue {
    staged: VecDeque<Staged>,
    on_drive: u32,
    lane: Lane,
    weight: u64,
    /// Whether it is in the tree or in service.
    is_busy: bool,
    start: u64,
    finish: u64,
    /// Of this turn, in sectors, and what of it was served.
    budget: u64,
    service: u64,
    /// Of the next turns.
    usual_budget: u64,
    /// Whether its turn ended since it had nothing, so that it may go on with it.
    may_go_on: bool,
    /// Of its last 32 requests, which sought.
    seeks: u32,
    last_end: u64,
    last_end_ns: u64,
    think: ThinkTime,
    injection: Injection,
    /// Which was busy last: `active_list` begins with it.
    became_busy: u64,
}

/// `bfq_ttime`.
#[derive(Clone, Copy, Debug, Default)]
struct ThinkTime {
    samples: u64,
    total: u64,
}

impl ThinkTime {
    fn arrived(&mut self, elapsed_ns: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * elapsed_ns.min(2 * IDLE_NS)) / 8;
    }

    /// `bfq_update_has_short_ttime`.
    fn is_short(&self) -> bool {
        self.samples <= 80 || (self.total + 128) / self.samples <= IDLE_NS / 2
    }
}

/// How many of others' requests may be on the drive while a queue in service has none staged.
#[derive(Clone, Copy, Debug, Default)]
struct Injection {
    limit: u32,
    /// What a request of its own takes without, and 0 while that is not known.
    usual_ns: u64,
    changed_ns: u64,
}

/// The drive's peak rate, in sectors a microsecond and 2^16ths.
#[derive(Clone, Copy, Debug)]
struct Peak {
    rate: u64,
    samples: u64,
    sequential: u64,
    sectors: u64,
    largest: u64,
    first_ns: u64,
    last_ns: u64,
    /// From the first dispatch to the last one seen.
    over_ns: u64,
    last_end: u64,
    completed_ns: u64,
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

    /// `bfq_update_peak_rate`; whether the rate is another now.
    fn dispatched(&mut self, now_ns: u64, request: &Staged, on_drive: u32) -> bool {
        let mut changed = false;
        if self.samples == 0 {
            self.begin(now_ns, Some(request));
        } else if now_ns - self.last_ns > 100 * MS && on_drive == 0 {
            changed = self.reset(now_ns, Some(request));
        } else {
            self.samples += 1;
            let is_fed = on_drive > 0 || now_ns - self.completed_ns < LEAST_CHARGED_NS;
            self.sequential += u64::from(is_fed && !seeks(self.last_end, request));
            self.sectors += request.sectors;
            self.largest = match self.samples % 32 {
                0 => request.sectors,
                _ => self.largest.max(request.sectors),
            };
            self.over_ns = now_ns - self.first_ns;
            if self.over_ns >= 1000 * MS {
                changed = self.reset(now_ns, Some(request));
            }
        }
        self.last_end = request.at + request.sectors;
        self.last_ns = now_ns;
        changed
    }

    /// A request has come back; whether the rate is another now.
    fn completed(&mut self, now_ns: u64) -> bool {
        let took_us = (now_ns - self.completed_ns) / 1000;
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

    /// `bfq_calc_max_budget`.
    fn budget(&self) -> u64 {
        (self.rate * (TIMEOUT_NS / 1000)) >> 16
    }
}

fn seeks(last_end: u64, request: &Staged) -> bool {
    request.at.abs_diff(last_end) > NEAR && request.sectors < LARGE
}

/// The queue in service.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at: usize,
    began_ns: u64,
    /// Until when it is waited for, while it has nothing at all.
    waits_until_ns: Option<u64>,
    idle_since_ns: u64,
    has_injected: bool,
    /// The next of its requests that goes is timed, from then on; and the one that is.
    times_next: bool,
    timed: Option<Job>,
    timed_from_ns: u64,
}

/// Linux's BFQ.
pub(crate) struct LinuxBfq {
    queues: Vec<Queue>,
    in_service: Option<Turn>,
    virtual_time: u64,
    on_drive: u32,
    most_on_drive: u32,
    largest_budget: u64,
    /// Some average of how many budgets were given, in 256ths of one more each time.
    assigned: u64,
    peak: Peak,
    became_busy: u64,
}

impl LinuxBfq {
    /// A scheduler with a queue for each of the flows that `bounds` allows, and no requests yet.
    pub(crate) fn new(bounds: &SerialConfig) -> LinuxBfq {
        let queue = |_| LinuxBfq::queue(VecDeque::with_capacity(bounds.jobs()), Lane::default());
        LinuxBfq {
            queues: (0..bounds.flows).map(queue).collect(),
            in_service: None,
            virtual_time: 0,
            on_drive: 0,
            most_on_drive: 0,
            largest_budget: FIRST_BUDGET,
            assigned: 0,
            peak: Peak {
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
            },
            became_busy: 0,
        }
    }

    fn queue(staged: VecDeque<Staged>, lane: Lane) -> Queue {
        Queue {
            staged,
            on_drive: 0,
            lane,
            weight: 1,
            is_busy: false,
            start: 0,
            finish: 0,
            budget: 0,
            service: 0,
            usual_budget: 2 * FIRST_BUDGET / 3,
            may_go_on: false,
            seeks: 0,
            last_end: 0,
            last_end_ns: 0,
            think: ThinkTime::default(),
            injection: Injection::default(),
            became_busy: 0,
        }
    }

    fn busy(&self) -> impl Iterator<Item = (usize, &Queue)> {
        self.queues.iter().enumerate().filter(|(_, queue)| queue.is_busy)
    }

    /// The first request of a queue that BFQ sees: what has no tag does not count.
    fn first(&self, at: usize) -> Option<&Staged> {
        let weights: u64 = self.busy().map(|(_, queue)| queue.weight).sum();
        let queue = &self.queues[at];
        let tags = (REQUESTS * queue.weight + weights / 2) / weights.max(1);
        queue.staged.front().filter(|_| u64::from(queue.on_drive) < tags.max(1))
    }

    fn least_budget(&self) -> u64 {
        let largest = if self.assigned < 194 { FIRST_BUDGET } else { self.largest_budget };
        largest / BUDGET_RANGE
    }

    /// `idling_needed_for_service_guarantees`: of groups it is needed whatever they weigh.
    fn is_waited_for(&self) -> bool {
        let pending = self.queues.iter().filter(|queue| queue.is_busy || queue.on_drive > 0);
        pending.count() > 1 || self.busy().count() == 1
    }

    fn advance(&mut self, sectors: u64) {
        let weights: u64 = self.busy().map(|(_, queue)| queue.weight).sum();
        self.virtual_time += (sectors << SHIFT) / weights.max(1);
    }

    /// `bfq_bfqq_served`.
    fn charge(&mut self, at: usize, sectors: u64) {
        self.queues[at].service += sectors;
        self.advance(sectors);
    }

    /// `__bfq_bfqq_recalc_budget`, for a queue whose weight is not raised.
    fn next_budget(&self, at: usize, why: End) -> u64 {
        let (queue, least) = (&self.queues[at], self.least_budget());
        let (budget, most) = (queue.usual_budget, self.largest_budget);
        match why {
            End::TooIdle if queue.on_drive > 0 => (budget * 2).min(most),
            End::TooIdle if budget > 5 * least => budget - 4 * least,
            End::TooIdle => least,
            End::OutOfTime => (budget * 2).min(most),
            End::UsedUp => (budget * 4).min(most),
            End::NoMore => queue.service.max(least),
            End::Preempted => budget,
        }
    }

    /// `bfq_bfqq_expire`.
    fn expire(&mut self, turn: Turn, now_ns: u64, why: End, timer: bool) {
        let at = turn.at;
        self.in_service = None;
        let until_ns = if timer { turn.idle_since_ns } else { now_ns };
        let took_ns = until_ns.saturating_sub(turn.began_ns);
        let queue = &self.queues[at];
        let (is_slow, time_ns) = match took_ns {
            ..MS => (queue.seeks.count_ones() > 19, LEAST_CHARGED_NS),
            MS..=SLOW_FROM_NS => (queue.seeks.count_ones() > 19, took_ns),
            _ => (queue.service < self.largest_budget / 2, took_ns),
        };
        let left = queue.budget.saturating_sub(queue.service);
        if is_slow || (why == End::OutOfTime && left >= queue.budget / 3) {
            let for_time = self.largest_budget * time_ns.min(TIMEOUT_NS) / TIMEOUT_NS;
            let more = for_time.saturating_sub(queue.service);
            self.charge(at, more);
        }
        let usual = self.next_budget(at, why);
        let keeps_place = why == End::Preempted && self.is_waited_for();
        let queue = &mut self.queues[at];
        queue.usual_budget = usual;
        queue.finish = queue.start + (queue.service << SHIFT) / queue.weight;
        queue.is_busy = !queue.staged.is_empty() || keeps_place;
        if queue.is_busy {
            queue.start = queue.finish;
            queue.budget = queue.staged.front().map_or(usual, |next| usual.max(next.sectors));
            queue.finish = queue.start + (queue.budget << SHIFT) / queue.weight;
            queue.service = 0;
        } else if why == End::OutOfTime || why == End::UsedUp {
            queue.service = 0;
        } else {
            queue.may_go_on = true;
        }
    }

    /// `bfq_may_expire_for_budg_timeout`.
    fn is_out_of_time(&self, turn: Turn, now_ns: u64) -> bool {
        let queue = &self.queues[turn.at];
        let left = queue.budget.saturating_sub(queue.service);
        (turn.waits_until_ns.is_none() || left >= queue.budget / 3)
            && now_ns >= turn.began_ns + TIMEOUT_NS
    }

    /// The next turn, by B-WF2Q+, of those that may go.
    fn begin(&mut self, now_ns: u64, lanes: Lanes) -> Option<Turn> {
        let waiting = |this: &Self, only_eligible: bool| {
            let busy = this.busy().filter(|(_, queue)| {
                queue.admits(lanes) && (!only_eligible || queue.start <= this.virtual_time)
            });
            busy.min_by_key(|&(at, queue)| (queue.finish, at)).map(|(at, _)| at)
        };
        let first = self.busy().map(|(_, queue)| queue.start).min()?;
        self.virtual_time = self.virtual_time.max(first);
        let at = waiting(self, true).or_else(|| waiting(self, false))?;
        self.assigned = (self.assigned * 7 + 256) / 8;
        let queue = &mut self.queues[at];
        queue.may_go_on = false;
        let turn = Turn {
            at,
            began_ns: now_ns,
            waits_until_ns: None,
            idle_since_ns: 0,
            has_injected: false,
            times_next: false,
            timed: None,
            timed_from_ns: 0,
        };
        self.in_service = Some(turn);
        Some(turn)
    }

    /// `bfq_choose_bfqq_for_injection`.
    fn injected(&self, turn: Turn, now_ns: u64, lanes: Lanes) -> Option<usize> {
        let injection = self.queues[turn.at].injection;
        let has_waited = turn.waits_until_ns.is_some() && now_ns >= turn.idle_since_ns + IDLE_NS;
        let limit = match injection.limit {
            0 if injection.usual_ns == 0 && has_waited => 1,
            limit => limit,
        };
        if self.on_drive >= limit {
            return None;
        }
        let may = |at: usize, queue: &Queue| {
            self.first(at).is_some_and(|next| {
                next.sectors <= queue.budget.saturating_sub(queue.service)
                    && !(next.sectors >= LARGE && self.on_drive >= 1)
            })
        };
        let others = self
            .busy()
            .filter(|&(at, queue)| at != turn.at && queue.admits(lanes) && may(at, queue));
        others.max_by_key(|(_, queue)| queue.became_busy).map(|(at, _)| at)
    }

    /// `bfq_dispatch_rq_from_bfqq`.
    fn serve(&mut self, at: usize, now_ns: u64) -> Selection {
        let Some(next) = self.queues[at].staged.pop_front() else { return Selection::Nothing };
        self.charge(at, next.sectors);
        if self.peak.dispatched(now_ns, &next, self.on_drive) {
            self.largest_budget = self.peak.budget();
        }
        self.queues[at].on_drive += 1;
        self.on_drive += 1;
        self.most_on_drive = self.most_on_drive.max(self.on_drive);
        match &mut self.in_service {
            Some(turn) if turn.at == at => {
                let timed = std::mem::take(&mut turn.times_next).then_some(next.job);
                turn.timed = timed.or(turn.timed);
            }
            Some(turn) => {
                turn.has_injected = true;
                let queue = &mut self.queues[at];
                if queue.staged.is_empty() {
                    // The queue that was injected has no other request: it leaves the tree and
                    // loses its budget (`bfq_remove_request`).
                    queue.finish = queue.start + (queue.service << SHIFT) / queue.weight;
                    (queue.is_busy, queue.budget, queue.service) = (false, 0, 0);
                }
            }
            None => {}
        }
        Selection::Serve(next.job, at)
    }

    /// `bfq_update_inject_limit`.
    fn adapt(&mut self, turn: Turn, now_ns: u64) {
        let (took_ns, is_alone) = (now_ns - turn.timed_from_ns, self.on_drive == 1);
        let most = self.most_on_drive;
        let injection = &mut self.queues[turn.at].injection;
        let before = injection.limit;
        if injection.usual_ns > 0 && turn.has_injected {
            let bound_ns = injection.usual_ns * 3 / 2;
            if took_ns >= bound_ns && before > 0 {
                (injection.limit, injection.changed_ns) = (before - 1, now_ns);
            } else if took_ns < bound_ns && before <= most {
                injection.limit += 1;
            }
        }
        if (injection.usual_ns == 0 && is_alone) || took_ns < injection.usual_ns {
            if injection.usual_ns == 0 {
                injection.limit = before.max(1);
            }
            injection.usual_ns = took_ns;
        } else if !turn.has_injected && is_alone {
            injection.usual_ns = took_ns;
        }
    }

    /// `bfq_bfqq_handle_idle_busy_switch`.
    fn becomes_busy(&mut self, at: usize, now_ns: u64) {
        self.became_busy += 1;
        let (virtual_time, order) = (self.virtual_time, self.became_busy);
        let queue = &mut self.queues[at];
        let left = queue.budget.saturating_sub(queue.service);
        let in_time = now_ns <= queue.last_end_ns + 3 * IDLE_NS;
        let next = queue.staged.front().map_or(0, |next| next.sectors);
        let goes_on = std::mem::take(&mut queue.may_go_on);
        let preempts = goes_on && in_time && left > 0;
        queue.budget = match preempts {
            true => left.min(queue.usual_budget),
            false => queue.usual_budget.max(next),
        };
        queue.service = 0;
        // `__bfq_activate_entity`: what goes on where it stopped is not put behind virtual time.
        let back = preempts && virtual_time > queue.finish;
        queue.start = if back { queue.finish } else { virtual_time.max(queue.finish) };
        queue.finish = queue.start + (queue.budget << SHIFT) / queue.weight;
        if back && virtual_time > queue.finish {
            let delta = virtual_time - queue.finish;
            (queue.start, queue.finish) = (queue.start + delta, queue.finish + delta);
        }
        (queue.is_busy, queue.became_busy) = (true, order);
        let weight = queue.weight;
        if let Some(turn) = self.in_service
            && (preempts || weight > self.queues[turn.at].weight || !self.is_waited_for())
        {
            self.expire(turn, now_ns, End::Preempted, false);
        }
    }
}

impl Queue {
    fn admits(&self, lanes: Lanes) -> bool {
        match lanes {
            Lanes::All => self.lane != Lane::Shut,
            Lanes::Reserved => self.lane == Lane::Reserved,
        }
    }
}

impl SerialPolicy for LinuxBfq {
    fn add_flow(&mut self, flow: usize, weight: Weight) {
        self.in_service = self.in_service.filter(|turn| turn.at != flow);
        if let Some(queue) = self.queues.get_mut(flow) {
            queue.staged.clear();
            // Its memory is kept: verbs do not allocate.
            let (staged, lane) = (std::mem::take(&mut queue.staged), queue.lane);
            *queue = LinuxBfq::queue(staged, lane);
            queue.weight = u64::from(weight.in_256ths()).max(1);
        }
    }

    /// `bfq_add_request`, `bfq_rq_enqueued`.
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let (at, on_drive) = (arrival.flow, self.on_drive);
        let sectors = u64::from(arrival.length).div_ceil(512).max(1);
        let request = Staged { job: arrival.job, sectors, at: arrival.offset / 512 };
        let queue = &mut self.queues[at];
        queue.weight = u64::from(arrival.weight.in_256ths()).max(1);
        if queue.on_drive == 0 && !queue.is_busy {
            queue.think.arrived(now_ns - queue.last_end_ns.min(now_ns));
        }
        queue.seeks = queue.seeks << 1 | u32::from(seeks(queue.last_end, &request));
        queue.last_end = request.at + sectors;
        let is_only = queue.staged.is_empty() && queue.on_drive == 0;
        queue.staged.push_back(request);
        if is_only && now_ns >= queue.injection.changed_ns + 1000 * MS {
            // `bfq_reset_inject_limit`.
            let limit = u32::from(!queue.think.is_short());
            queue.injection = Injection { limit, usual_ns: 0, changed_ns: now_ns };
        }
        if let Some(turn) = &mut self.in_service
            && turn.at == at
        {
            let known = queue.injection.usual_ns > 0 && turn.has_injected && on_drive > 0;
            let is_due = now_ns >= queue.injection.changed_ns + 10 * MS;
            if is_only && (on_drive == 0 || known) && is_due {
                (turn.timed_from_ns, turn.times_next) = (now_ns, true);
                turn.has_injected &= on_drive > 0;
            }
            turn.waits_until_ns = None;
            let turn = *turn;
            if now_ns >= turn.began_ns + TIMEOUT_NS {
                self.expire(turn, now_ns, End::OutOfTime, false);
            }
        } else if !self.queues[at].is_busy {
            self.becomes_busy(at, now_ns);
        }
    }

    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        let more = u64::from(arrival.length).div_ceil(512);
        let staged = self.queues[arrival.flow].staged.iter_mut();
        if let Some(request) = staged.into_iter().find(|request| request.job == arrival.job) {
            request.sectors += more;
        }
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        let is_served = self.in_service.is_some_and(|turn| turn.at == flow);
        let queue = &mut self.queues[flow];
        queue.staged.retain(|staged| staged.job != job);
        if queue.staged.is_empty() && !is_served {
            (queue.is_busy, queue.service) = (false, 0);
        }
    }

    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.queues[flow].lane = lane;
    }

    /// `bfq_select_queue`. A queue that is held back keeps its turn, and the first other that may
    /// go does.
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        // Each turn that ends here has nothing to serve or no time left, and the next one has.
        for _ in 0..=self.queues.len() {
            let Some(turn) = self.in_service.or_else(|| self.begin(now_ns, lanes)) else { break };
            let queue = &self.queues[turn.at];
            let first = self.first(turn.at);
            let is_empty = first.is_none();
            if self.is_out_of_time(turn, now_ns) && !(is_empty && self.is_waited_for()) {
                self.expire(turn, now_ns, End::OutOfTime, false);
                continue;
            }
            if let Some(next) = first {
                if !queue.admits(lanes) {
                    let others = self
                        .busy()
                        .filter(|(_, queue)| queue.admits(lanes) && !queue.staged.is_empty());
                    let other = others.min_by_key(|&(at, queue)| (queue.finish, at));
                    let Some((other, _)) = other else { return Selection::Nothing };
                    return self.serve(other, now_ns);
                }
                if queue.service > 0 && queue.service + next.sectors > queue.budget {
                    self.expire(turn, now_ns, End::UsedUp, false);
                    continue;
                }
                return self.serve(turn.at, now_ns);
            }
            let waits = queue.on_drive > 0 && self.is_waited_for();
            match turn.waits_until_ns {
                // `bfq_idle_slice_timer_body`.
                Some(until_ns) if now_ns >= until_ns => {
                    let is_over = now_ns >= turn.began_ns + TIMEOUT_NS;
                    let why = if is_over { End::OutOfTime } else { End::TooIdle };
                    self.expire(turn, now_ns, why, true);
                }
                until_ns if until_ns.is_some() || waits => {
                    return match (self.injected(turn, now_ns, lanes), until_ns) {
                        (Some(other), _) => self.serve(other, now_ns),
                        (None, Some(until_ns)) => Selection::WaitUntil(until_ns),
                        (None, None) => Selection::Nothing,
                    };
                }
                _ => self.expire(turn, now_ns, End::NoMore, false),
            }
        }
        Selection::Nothing
    }

    /// `bfq_finish_requeue_request`, `bfq_completed_request`.
    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, _outcome: Outcome) {
        if let Some(turn) = &mut self.in_service
            && turn.timed == Some(job)
        {
            turn.timed = None;
            let turn = *turn;
            self.adapt(turn, now_ns);
            if let Some(turn) = &mut self.in_service {
                turn.has_injected = false;
            }
        }
        self.on_drive = self.on_drive.saturating_sub(1);
        let queue = &mut self.queues[flow];
        queue.on_drive = queue.on_drive.saturating_sub(1);
        queue.last_end_ns = now_ns;
        if self.peak.completed(now_ns) {
            self.largest_budget = self.peak.budget();
        }
        let Some(turn) = self.in_service.filter(|turn| turn.at == flow) else { return };
        let (is_empty, out) = (self.first(flow).is_none(), self.queues[flow].on_drive);
        if is_empty && self.is_waited_for() {
            if out == 0
                && let Some(turn) = &mut self.in_service
            {
                // `bfq_arm_slice_timer`.
                (turn.waits_until_ns, turn.idle_since_ns) = (Some(now_ns + IDLE_NS), now_ns);
            }
        } else if self.is_out_of_time(turn, now_ns) {
            self.expire(turn, now_ns, End::OutOfTime, false);
        } else if is_empty {
            self.expire(turn, now_ns, End::NoMore, false);
        }
    }
}
