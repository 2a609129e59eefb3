//! BFQ as Linux runs it on a drive that does not rotate and has tagged queueing, for the laboratory
//! alone. Each flow is a process, alone or with others in a control group.
//!
//! **Difference from `bfq`.** fairq's own BFQ does not have Linux's mechanisms that keep such a
//! drive busy and hold slow queues back. The rules are those of `block/bfq-iosched.c` and
//! `bfq-wf2q.c`, described in other words; comments name the functions that this module follows.
//! The test `tests/linux_bfq.rs` compares the model with measurements of Linux 4.15, 5.2, 5.3 and
//! 7.2 (`bench/oracle`).
//!
//! **Model.** B-WF2Q+ over groups, and in each over queues with budgets of sectors.
//! - *Budgets* that were too small are doubled or quadrupled, at most to the sectors that the drive
//!   serves in 125 ms at its peak rate (`__bfq_bfqq_recalc_budget`, `bfq_update_rate_reset`).
//! - *Slow turns* are charged for their time: a turn of more than 20 ms that served less than half
//!   of the largest budget, and a turn that ran out of time with a third of its budget left
//!   (`bfq_bfqq_is_slow`, `bfq_bfqq_charge_time`).
//! - *Waiting.* BFQ waits for a queue in service that has nothing staged, for up to 8 ms after its
//!   last request has completed, if the other queues have other weights or groups
//!   (`bfq_better_to_idle`; [`Kernel`] has the rule of each version).
//! - *Injection.* While BFQ waits, it dispatches requests of other queues, as many as lengthen the
//!   time of the queue's own requests by less than a half (`bfq_choose_bfqq_for_injection`,
//!   `bfq_update_inject_limit`).
//! - *Tags.* A queue has its weight's share of 256 tags; its further requests wait outside of BFQ
//!   for a tag (`bfqq_request_over_limit`).
//! - *A queue that gets a request again* within 24 ms continues with the rest of its budget and
//!   preempts the queue in service (`bfq_bfqq_update_budg_for_activation`).
//! - *Weight raising* (`low_latency`; [`raising`]): a queue that is new or was idle for two
//!   seconds, and a queue that sends small batches at regular times, have many times their weight
//!   for a while. BFQ waits for such queues, gives them small budgets, and charges them only for
//!   sectors. In Linux raising is on by default. The papers' rows run without it, because raising
//!   ended early in the papers' runs and lasts longer than a run of the laboratory.
//!
//! **Left out**: asynchronous writes, merging of queues, wakers, and large bursts (eight queues
//! that begin within 180 ms are not raised).

use std::collections::VecDeque;

use fairq_core::serial::{Arrival, Job, Lane, Lanes, Selection, SerialConfig, SerialPolicy};
use fairq_core::{Outcome, Weight};

use self::entity::Entity;
use self::peak::{Peak, seeks};
use self::raising::{Arrived, Raising};
use self::think::ThinkTime;
pub use self::version::{Kernel, LinuxBfqConfig};

mod entity;
mod peak;
mod raising;
#[cfg(test)]
mod tests;
mod think;
mod version;

const MS: u64 = 1_000_000;
/// `bfq_slice_idle`, `bfq_timeout`, `BFQ_MIN_TT`.
const IDLE_NS: u64 = 8 * MS;
const TIMEOUT_NS: u64 = 125 * MS;
/// Time for which 7.2 waits for a queue whose weight is raised.
const RAISED_IDLE_NS: u64 = 20 * MS;
const LEAST_CHARGED_NS: u64 = 2 * MS;
/// Only a longer turn can be slow.
const SLOW_FROM_NS: u64 = 20 * MS;
/// The largest budget before the drive's rate is known, in sectors; the least is a 32nd of the
/// largest.
const FIRST_BUDGET: u64 = 16 << 10;
const BUDGET_RANGE: u64 = 32;
/// A request of at least this many sectors is not injected, and does not count as a seek
/// (`BFQQ_SECT_THR_NONROT`).
const LARGE: u64 = 64;
/// Number of tags that Linux keeps for a drive (`nr_requests`).
const REQUESTS: u64 = 256;
/// The default weight of a process; all processes of a group have it.
const USUAL_WEIGHT: u64 = 40 << 8;
/// A request further than this many sectors from the previous one counts as a seek.
const NEAR: u64 = 800;
/// Virtual time counts sectors per weight in 2^20ths.
const SHIFT: u32 = 20;

/// The reason why a turn ends (`bfqq_expiration`).
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

/// Queues with a common weight. Without groups all queues are in one group.
#[derive(Debug)]
struct Group {
    entity: Entity,
    /// Virtual time of its queues.
    virtual_time: u64,
}

#[derive(Debug)]
struct Queue {
    staged: VecDeque<Staged>,
    on_drive: u32,
    lane: Lane,
    group: usize,
    /// Weight without raising.
    weight: u64,
    entity: Entity,
    raising: Raising,
    /// Budget of this turn, in sectors.
    budget: u64,
    /// Budget of the next turns, in sectors.
    usual_budget: u64,
    /// Whether its last turn ended because it had no request, so that it may continue that turn.
    may_go_on: bool,
    /// A bit for each of its last 32 requests: whether the request was a seek.
    seeks: u32,
    last_end: u64,
    last_end_ns: u64,
    think: ThinkTime,
    injection: Injection,
    /// Order in which queues became busy: `active_list` begins with the last one.
    became_busy: u64,
}

/// The limit of others' requests on the drive while the queue in service has none staged.
#[derive(Clone, Copy, Debug, Default)]
struct Injection {
    limit: u32,
    /// Time of its own request without injection; 0 while it is unknown.
    usual_ns: u64,
    changed_ns: u64,
}

/// The queue in service.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at: usize,
    began_ns: u64,
    /// Longest time of the turn.
    most_ns: u64,
    /// End of the wait for its next request, while it has none staged or on the drive.
    waits_until_ns: Option<u64>,
    idle_since_ns: u64,
    has_injected: bool,
    /// Whether the next request that the queue dispatches is to be timed; then the request being
    /// timed, and its start.
    times_next: bool,
    timed: Option<Job>,
    timed_from_ns: u64,
}

/// Linux's BFQ.
pub(crate) struct LinuxBfq {
    config: LinuxBfqConfig,
    waits: bool,
    groups: Vec<Group>,
    queues: Vec<Queue>,
    in_service: Option<Turn>,
    virtual_time: u64,
    on_drive: u32,
    most_on_drive: u32,
    largest_budget: u64,
    /// A moving average of the number of assigned budgets, in 256ths.
    assigned: u64,
    peak: Peak,
    became_busy: u64,
}

impl LinuxBfq {
    /// A scheduler with a queue for each of the flows that `bounds` allows, and no requests.
    /// `waits`: whether it waits for queues at all (`slice_idle`).
    pub(crate) fn new(bounds: &SerialConfig, config: LinuxBfqConfig, waits: bool) -> LinuxBfq {
        let of = |flow: usize| flow.checked_div(config.processes).unwrap_or(0);
        let queue = |flow| {
            let staged = VecDeque::with_capacity(bounds.jobs());
            LinuxBfq::queue(staged, Lane::default(), of(flow))
        };
        let group = |_| Group { entity: Entity::IDLE, virtual_time: 0 };
        LinuxBfq {
            config,
            waits,
            groups: (0..=of(bounds.flows.saturating_sub(1))).map(group).collect(),
            queues: (0..bounds.flows).map(queue).collect(),
            in_service: None,
            virtual_time: 0,
            on_drive: 0,
            most_on_drive: 0,
            largest_budget: if config.budget > 0 { config.budget } else { FIRST_BUDGET },
            assigned: 0,
            peak: Peak::default(),
            became_busy: 0,
        }
    }

    fn queue(staged: VecDeque<Staged>, lane: Lane, group: usize) -> Queue {
        Queue {
            staged,
            on_drive: 0,
            lane,
            group,
            weight: 0,
            entity: Entity::IDLE,
            raising: Raising::NONE,
            budget: 0,
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
        self.queues.iter().enumerate().filter(|(_, queue)| queue.entity.is_busy)
    }

    /// Number of busy queues whose weights are raised (`wr_busy_queues`).
    fn raised(&self) -> usize {
        self.busy().filter(|(_, queue)| queue.raising.is_on()).count()
    }

    /// Sum of the weights of a group's busy queues.
    fn weights_in(&self, group: usize) -> u64 {
        let queues = self.busy().filter(|(_, queue)| queue.group == group);
        queues.map(|(_, queue)| queue.entity.weight).sum()
    }

    /// Sum of the weights of the busy groups.
    fn weights(&self) -> u64 {
        let busy = self.groups.iter().map(|group| group.entity).filter(|entity| entity.is_busy);
        busy.map(|entity| entity.weight).sum()
    }

    /// The first request of a queue that has a tag; BFQ does not have requests without one.
    fn first(&self, at: usize) -> Option<&Staged> {
        let queue = &self.queues[at];
        let tags = match self.config.kernel {
            Kernel::V7_2 => {
                let part = |tags: u64, entity: &Entity, of: u64| {
                    (tags * entity.weight + of / 2) / of.max(1)
                };
                let group = &self.groups[queue.group].entity;
                let tags = part(REQUESTS, group, self.weights());
                part(tags, &queue.entity, self.weights_in(queue.group)).max(1)
            }
            _ => u64::MAX,
        };
        queue.staged.front().filter(|_| u64::from(queue.on_drive) < tags)
    }

    fn least_budget(&self) -> u64 {
        let largest = if self.assigned < 194 { FIRST_BUDGET } else { self.largest_budget };
        largest / BUDGET_RANGE
    }

    /// `bfq_better_to_idle`: on such a drive waiting only reduces throughput, so BFQ waits only for
    /// service guarantees (`idling_needed_for_service_guarantees`).
    fn is_waited_for(&self, at: usize) -> bool {
        let (kernel, queue) = (self.config.kernel, &self.queues[at]);
        let is_raised = queue.raising.is_on();
        let raised_needs_it = is_raised
            && (kernel == Kernel::V4_15
                || self.raised() < self.busy().count()
                || (kernel >= Kernel::V5_3 && self.on_drive >= queue.on_drive + 4));
        let pending =
            || self.queues.iter().filter(|queue| queue.entity.is_busy || queue.on_drive > 0);
        // Raised weights are not compared.
        let usual = || pending().filter(|queue| !queue.raising.is_on());
        let weight = queue.entity.weight;
        let least = usual().map(|queue| queue.entity.weight).min().unwrap_or(weight);
        let is_lightest = kernel > Kernel::V4_15 && !is_raised && weight == least;
        // In a group all processes have the same weight, which is independent of the group's
        // weight.
        let queues_differ = self.config.processes == 0
            && !is_lightest
            && usual().any(|queue| queue.entity.weight != least);
        let groups_count = match kernel {
            _ if self.config.processes == 0 => false,
            // Only groups in the tree have a counter (`bfq_weights_tree_add`): groups whose
            // requests are all on the drive have none, nor has the group in service if it has no
            // other queue.
            Kernel::V4_15 => {
                let in_tree = || self.busy().filter(|&(other, _)| other != at);
                let mut weights =
                    in_tree().map(|(_, queue)| self.groups[queue.group].entity.weight);
                weights.next().is_some_and(|first| weights.any(|other| other != first))
            }
            Kernel::V5_2 | Kernel::V5_3 => true,
            Kernel::V7_2 => pending().any(|queue| queue.group != self.queues[at].group),
        };
        let is_alone = kernel == Kernel::V7_2 && self.busy().count() == 1;
        self.waits && (raised_needs_it || queues_differ || groups_count || is_alone)
    }

    /// `bfq_bfqq_served`.
    fn charge(&mut self, at: usize, sectors: u64) {
        let of = self.queues[at].group;
        let (weights, in_group) = (self.weights(), self.weights_in(of));
        self.queues[at].entity.service += sectors;
        self.queues[at].raising.served(sectors);
        let group = &mut self.groups[of];
        group.virtual_time += (sectors << SHIFT) / in_group.max(1);
        group.entity.service += sectors;
        self.virtual_time += (sectors << SHIFT) / weights.max(1);
    }

    /// `__bfq_bfqq_recalc_budget`.
    fn next_budget(&self, at: usize, why: End) -> u64 {
        let (queue, least) = (&self.queues[at], self.least_budget());
        if queue.raising.is_on() {
            return 2 * least;
        }
        let (budget, most) = (queue.usual_budget, self.largest_budget);
        match why {
            End::TooIdle if queue.on_drive > 0 => (budget * 2).min(most),
            End::TooIdle if budget > 5 * least => budget - 4 * least,
            End::TooIdle => least,
            End::OutOfTime => (budget * 2).min(most),
            End::UsedUp => (budget * 4).min(most),
            End::NoMore => queue.entity.service.max(least),
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
        let service = queue.entity.service;
        let (is_slow, time_ns) = match took_ns {
            ..MS => (queue.seeks.count_ones() > 19, LEAST_CHARGED_NS),
            MS..=SLOW_FROM_NS => (queue.seeks.count_ones() > 19, took_ns),
            _ => (service < self.largest_budget / 2, took_ns),
        };
        let left = queue.budget.saturating_sub(service);
        let is_charged = is_slow || (why == End::OutOfTime && left >= queue.budget / 3);
        if is_charged && !queue.raising.is_on() {
            let for_time = self.largest_budget * time_ns.min(TIMEOUT_NS) / TIMEOUT_NS;
            self.charge(at, for_time.saturating_sub(service));
        }
        if self.config.low_latency && self.queues[at].staged.is_empty() {
            let queue = &mut self.queues[at];
            queue.raising.expired(now_ns, self.config.kernel, queue.on_drive);
        }
        let usual = self.next_budget(at, why);
        let keeps_place = why == End::Preempted && self.is_waited_for(at);
        let queue = &mut self.queues[at];
        queue.usual_budget = usual;
        let entity = &mut queue.entity;
        entity.settle();
        entity.is_busy = !queue.staged.is_empty() || keeps_place;
        if entity.is_busy {
            entity.start = entity.finish;
            entity.weight = queue.weight * queue.raising.coefficient;
            queue.budget = queue.staged.front().map_or(usual, |next| usual.max(next.sectors));
            entity.finish = entity.finish(queue.budget);
            entity.service = 0;
        } else if why == End::OutOfTime || why == End::UsedUp {
            entity.service = 0;
        } else {
            queue.may_go_on = true;
        }
        let group = queue.group;
        let is_busy = self.busy().any(|(_, queue)| queue.group == group);
        let entity = &mut self.groups[group].entity;
        entity.settle();
        (entity.is_busy, entity.start, entity.service) = (is_busy, entity.finish, 0);
    }

    /// `bfq_may_expire_for_budg_timeout`.
    fn is_out_of_time(&self, turn: Turn, now_ns: u64) -> bool {
        let queue = &self.queues[turn.at];
        let left = queue.budget.saturating_sub(queue.entity.service);
        (turn.waits_until_ns.is_none() || left >= queue.budget / 3)
            && now_ns >= turn.began_ns + turn.most_ns
    }

    /// The next queue of a group, among the queues that may send.
    fn next_in(&self, group: usize, lanes: Lanes) -> Option<usize> {
        let of = || self.busy().filter(|(_, queue)| queue.group == group);
        let first = of().map(|(_, queue)| queue.entity.start).min()?;
        let until = first.max(self.groups[group].virtual_time);
        let may = || of().filter(|(_, queue)| queue.admits(lanes));
        let eligible = may().filter(|(_, queue)| queue.entity.start <= until);
        let least = |&(at, queue): &(usize, &Queue)| (queue.entity.finish, at);
        let next = eligible.min_by_key(least).or_else(|| may().min_by_key(least));
        next.map(|(at, _)| at)
    }

    /// Begins the next turn, by B-WF2Q+, among the queues that may send.
    fn begin(&mut self, now_ns: u64, lanes: Lanes) -> Option<Turn> {
        let busy = || self.groups.iter().enumerate().filter(|(_, group)| group.entity.is_busy);
        let first = busy().map(|(_, group)| group.entity.start).min()?;
        let until = first.max(self.virtual_time);
        let next = |only_eligible: bool| {
            let may = busy().filter(|(_, group)| !only_eligible || group.entity.start <= until);
            // A group has the budget of its next queue.
            let finish = |(at, group): (usize, &Group)| {
                let queue = self.next_in(at, lanes)?;
                Some((group.entity.finish(self.queues[queue].budget), at, queue))
            };
            may.filter_map(finish).min()
        };
        let (_, group, at) = next(true).or_else(|| next(false))?;
        self.virtual_time = until;
        let queues = self.busy().filter(|(_, queue)| queue.group == group);
        let first = queues.map(|(_, queue)| queue.entity.start).min()?;
        let virtual_time = &mut self.groups[group].virtual_time;
        *virtual_time = first.max(*virtual_time);
        self.assigned = (self.assigned * 7 + 256) / 8;
        let queue = &mut self.queues[at];
        queue.may_go_on = false;
        queue.raising.turn_begins(now_ns);
        let turn = Turn {
            at,
            began_ns: now_ns,
            most_ns: TIMEOUT_NS * queue.raising.turns(),
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
        if self.config.kernel == Kernel::V4_15 {
            return None;
        }
        let served = &self.queues[turn.at];
        // An injected request delays the next request of the queue in service. So if that queue is
        // raised and usually sends again soon, only requests of other raised queues are injected.
        let spares = served.raising.is_on() && served.think.is_short();
        if spares && self.raised() < 2 {
            return None;
        }
        let injection = served.injection;
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
                next.sectors <= queue.budget.saturating_sub(queue.entity.service)
                    && !(next.sectors >= LARGE && self.on_drive >= 1)
            })
        };
        let others = self.busy().filter(|&(at, queue)| {
            let is_let = !spares || queue.raising.is_on();
            at != turn.at && is_let && queue.admits(lanes) && may(at, queue)
        });
        others.max_by_key(|(_, queue)| queue.became_busy).map(|(at, _)| at)
    }

    /// `bfq_dispatch_rq_from_bfqq`.
    fn serve(&mut self, at: usize, now_ns: u64) -> Selection {
        let Some(next) = self.queues[at].staged.pop_front() else { return Selection::Nothing };
        self.charge(at, next.sectors);
        if self.peak.dispatched(now_ns, &next, self.on_drive) && self.config.budget == 0 {
            self.largest_budget = self.peak.budget();
        }
        self.queues[at].on_drive += 1;
        self.on_drive += 1;
        self.most_on_drive = self.most_on_drive.max(self.on_drive);
        match &mut self.in_service {
            Some(turn) if turn.at == at => {
                let timed = std::mem::take(&mut turn.times_next).then_some(next.job);
                turn.timed = timed.or(turn.timed);
                let (queue, rate) = (&mut self.queues[at], self.peak.rate());
                queue.raising.dispatched(now_ns, self.config.kernel, rate);
                if !queue.raising.is_on() {
                    queue.entity.weight = queue.weight;
                }
            }
            Some(turn) => {
                turn.has_injected = true;
                let queue = &mut self.queues[at];
                if queue.staged.is_empty() {
                    // The queue that was injected has no other request: it leaves the tree and
                    // loses its budget (`bfq_remove_request`).
                    queue.budget = 0;
                    self.leave(at);
                }
            }
            None => {}
        }
        Selection::Serve(next.job, at)
    }

    /// A queue that is not in service leaves the tree.
    fn leave(&mut self, at: usize) {
        let group = self.queues[at].group;
        let entity = &mut self.queues[at].entity;
        entity.settle();
        (entity.is_busy, entity.service) = (false, 0);
        if !self.busy().any(|(_, queue)| queue.group == group) {
            let entity = &mut self.groups[group].entity;
            entity.settle();
            (entity.is_busy, entity.service) = (false, 0);
        }
    }

    /// `bfq_update_inject_limit`. 5.2 tests whether the drive is empty while the completed request
    /// still counts, so it never measures a request's time, and its limit stays at the last reset's
    /// value.
    fn adapt(&mut self, turn: Turn, now_ns: u64) {
        let is_alone = self.on_drive == 1 && self.config.kernel >= Kernel::V5_3;
        let took_ns = now_ns - turn.timed_from_ns;
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
        let order = self.became_busy;
        let queue = &mut self.queues[at];
        let group = queue.group;
        let left = queue.budget.saturating_sub(queue.entity.service);
        let in_time = now_ns <= queue.last_end_ns + 3 * IDLE_NS;
        let next = queue.staged.front().map_or(0, |next| next.sectors);
        let goes_on = std::mem::take(&mut queue.may_go_on) && in_time && left > 0;
        queue.budget = match goes_on {
            true => left.min(queue.usual_budget),
            false => queue.usual_budget.max(next),
        };
        let deserves = self.config.low_latency && self.raise(at, now_ns);
        let queue = &mut self.queues[at];
        queue.became_busy = order;
        queue.entity.activate(self.groups[group].virtual_time, queue.budget, goes_on);
        let budget = queue.budget;
        if !self.groups[group].entity.is_busy {
            self.groups[group].entity.activate(self.virtual_time, budget, goes_on);
        }
        if let Some(turn) = self.in_service
            && self.preempts(at, turn, goes_on, deserves)
        {
            self.expire(turn, now_ns, End::Preempted, false);
        }
    }

    /// A queue becomes busy; returns whether its weight is raised from now on, or already was.
    fn raise(&mut self, at: usize, now_ns: u64) -> bool {
        let (rate, least) = (self.peak.rate(), self.least_budget());
        let queue = &mut self.queues[at];
        let arrived = Arrived {
            kernel: self.config.kernel,
            rate,
            is_usual_weight: self.config.processes > 0 || queue.weight == USUAL_WEIGHT,
            only_seeks: queue.seeks == u32::MAX,
            on_drive: queue.on_drive,
        };
        if queue.raising.begins(now_ns, arrived) {
            queue.budget = queue.budget.min(2 * least);
        }
        queue.entity.weight = queue.weight * queue.raising.coefficient;
        queue.raising.is_on()
    }

    /// Whether a queue that became busy takes the drive from the one in service.
    fn preempts(&self, at: usize, turn: Turn, goes_on: bool, deserves: bool) -> bool {
        let (queue, served) = (&self.queues[at], &self.queues[turn.at]);
        let (ours, its) = (queue.raising.coefficient, served.raising.coefficient);
        let is_more_raised = deserves && ours > its;
        let goes_on = goes_on && ours >= its;
        // `bfq_bfqq_higher_class_or_weight`.
        let is_heavier = if queue.group == served.group {
            queue.entity.weight > served.entity.weight
        } else {
            self.groups[queue.group].entity.weight > self.groups[served.group].entity.weight
        };
        match self.config.kernel {
            Kernel::V4_15 | Kernel::V5_2 => is_more_raised,
            Kernel::V5_3 => goes_on || is_heavier,
            Kernel::V7_2 => goes_on || is_heavier || !self.is_waited_for(turn.at),
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
        let queue = &mut self.queues[flow];
        queue.staged.clear();
        // The queue keeps its memory, because verbs must not allocate.
        let (staged, lane) = (std::mem::take(&mut queue.staged), queue.lane);
        *queue = LinuxBfq::queue(staged, lane, queue.group);
        self.set_weight(flow, weight);
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        let queue = &mut self.queues[flow];
        queue.weight = u64::from(weight.in_256ths()).max(1);
        queue.entity.weight = queue.weight * queue.raising.coefficient;
        let group = queue.group;
        let queues = self.queues.iter().filter(|queue| queue.group == group);
        self.groups[group].entity.weight = queues.map(|queue| queue.weight).sum();
    }

    /// `bfq_add_request`, `bfq_rq_enqueued`.
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let (at, on_drive, kernel) = (arrival.flow, self.on_drive, self.config.kernel);
        let sectors = u64::from(arrival.length).div_ceil(512).max(1);
        let request = Staged { job: arrival.job, sectors, at: arrival.offset / 512 };
        let queue = &mut self.queues[at];
        if queue.on_drive == 0 && !queue.entity.is_busy {
            queue.think.arrived(now_ns - queue.last_end_ns.min(now_ns));
        }
        queue.seeks = queue.seeks << 1 | u32::from(seeks(queue.last_end, &request));
        queue.last_end = request.at + sectors;
        if queue.seeks == u32::MAX {
            queue.raising.only_seeks(now_ns, kernel, self.peak.rate());
        }
        let is_first = queue.staged.is_empty() && (kernel < Kernel::V7_2 || queue.on_drive == 0);
        queue.staged.push_back(request);
        if is_first && now_ns >= queue.injection.changed_ns + 1000 * MS {
            // `bfq_reset_inject_limit`.
            let limit = u32::from(!queue.think.is_short());
            queue.injection = Injection { limit, usual_ns: 0, changed_ns: now_ns };
        }
        if let Some(turn) = &mut self.in_service
            && turn.at == at
        {
            let known = queue.injection.usual_ns > 0 && turn.has_injected && on_drive > 0;
            let between = if kernel == Kernel::V5_2 { 100 * MS } else { 10 * MS };
            let is_due = now_ns >= queue.injection.changed_ns + between;
            if is_first && (on_drive == 0 || known) && is_due {
                (turn.timed_from_ns, turn.times_next) = (now_ns, true);
                turn.has_injected &= on_drive > 0;
            }
            turn.waits_until_ns = None;
            let turn = *turn;
            if now_ns >= turn.began_ns + turn.most_ns {
                self.expire(turn, now_ns, End::OutOfTime, false);
            }
        } else if !self.queues[at].entity.is_busy {
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
            self.leave(flow);
        }
    }

    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.queues[flow].lane = lane;
    }

    /// `bfq_select_queue`. A queue that NASS holds back keeps its turn, and the first other queue
    /// that may send is served.
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        // Each turn that ends in this loop has nothing to serve, no budget or no time left.
        for _ in 0..=self.queues.len() {
            let Some(turn) = self.in_service.or_else(|| self.begin(now_ns, lanes)) else { break };
            let queue = &self.queues[turn.at];
            let first = self.first(turn.at);
            let is_empty = first.is_none();
            if self.is_out_of_time(turn, now_ns) && !(is_empty && self.is_waited_for(turn.at)) {
                self.expire(turn, now_ns, End::OutOfTime, false);
                continue;
            }
            if let Some(next) = first {
                if !queue.admits(lanes) {
                    let others = self
                        .busy()
                        .filter(|(_, queue)| queue.admits(lanes) && !queue.staged.is_empty());
                    let other = others.min_by_key(|&(at, queue)| (queue.entity.finish, at));
                    let Some((other, _)) = other else { return Selection::Nothing };
                    return self.serve(other, now_ns);
                }
                let service = queue.entity.service;
                if service > 0 && service + next.sectors > queue.budget {
                    self.expire(turn, now_ns, End::UsedUp, false);
                    continue;
                }
                return self.serve(turn.at, now_ns);
            }
            let waits = queue.on_drive > 0 && self.is_waited_for(turn.at);
            match turn.waits_until_ns {
                // `bfq_idle_slice_timer_body`.
                Some(until_ns) if now_ns >= until_ns => {
                    let is_over = now_ns >= turn.began_ns + turn.most_ns;
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
        if self.config.low_latency && queue.on_drive == 0 && queue.staged.is_empty() {
            queue.raising.emptied(now_ns, self.config.kernel, queue.entity.is_busy);
        }
        if self.peak.completed(now_ns) && self.config.budget == 0 {
            self.largest_budget = self.peak.budget();
        }
        let Some(turn) = self.in_service.filter(|turn| turn.at == flow) else { return };
        let (is_empty, out) = (self.first(flow).is_none(), self.queues[flow].on_drive);
        if is_empty && self.is_waited_for(flow) {
            if out == 0
                && let Some(turn) = &mut self.in_service
            {
                // `bfq_arm_slice_timer`.
                let is_raised = self.queues[flow].raising.is_on();
                let idle_ns = match self.config.kernel {
                    Kernel::V7_2 if is_raised => RAISED_IDLE_NS,
                    _ => IDLE_NS,
                };
                (turn.waits_until_ns, turn.idle_since_ns) = (Some(now_ns + idle_ns), now_ns);
            }
        } else if self.is_out_of_time(turn, now_ns) {
            self.expire(turn, now_ns, End::OutOfTime, false);
        } else if is_empty {
            self.expire(turn, now_ns, End::NoMore, false);
        }
    }
}
