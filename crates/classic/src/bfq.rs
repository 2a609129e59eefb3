//! `bfq`: one flow at a time has the device, for a budget of bytes; B-WF2Q+ schedules the budgets.
//!
//! **Problem.** With slices of time a flow's service depends on its use of them: a stream gets more
//! bytes out of its slice than random reads do. A promise of bandwidth has to count bytes, and
//! still serve each flow for long enough at a time.
//! **Model.** The flow *in service* is the only one served until its budget is used up, or its
//! time, or it has nothing staged. Then the next is chosen by B-WF2Q+. A flow has a start `S` and,
//! with budget `B`, a finish `F = S + B / weight`; virtual time `V` moves by `served / (weights of
//! all busy flows)`. Of the flows that are not ahead (`S <= V`) the one with the least `F` is next;
//! if all are ahead, `V` moves up to the first. When its turn ends, a flow's `S` moves by the bytes
//! that it was really served, per weight: that is the B of B-WF2Q+, since the used part of a budget
//! is not known in advance. A flow that comes back after a pause has `S = max(V, S)`: it has saved
//! nothing up.
//!
//! - *Budgets* follow flows' use: a budget that was used up is doubled, at most to `budget_bytes`;
//!   any other shrinks to the bytes used, at least to a 32nd of `budget_bytes`. So flows with
//!   little demand are served soon.
//! - *Time.* A turn ends after `timeout_ns` when others wait. A flow that transfers little in its
//!   time pays for the time, any other for its bytes (`price_of_time`).
//! - *Idling.* When the flow in service has nothing staged but is expected to send
//!   (`anticipation`), the device waits, at most `idle_ns` after the last completion. BFQ-NA is
//!   `idle_ns` = 0. The device does not wait for writes, nor while all busy flows have the same
//!   weight, as in Linux on a device that queues: such a device is kept busy, and the flow that has
//!   the deeper queue gets more.
//! - *A flow that may not be served* keeps its turn; the others go on beside it (`serve_beside`).
//!
//! **Fairness.** Counted at dispatch, two backlogged flows' services per weight differ by at most
//! `(B + l_f) / w_f + (B + l_g) / w_g`, with the largest requests `l`, while turns do not end by
//! time.
//!
//! **Left out**: raised weights for interactive and soft real-time flows, merging of queues,
//! injection of other flows' requests while idling, and groups.
//!
//! **Knobs.** `budget_bytes` (8 MiB: 16,384 sectors), `timeout_ns` (125 ms), `idle_ns` (8 ms; 0 for
//! BFQ-NA): Linux's defaults. `waits_for_equals` and `sync_writes` choose the flows that the device
//! waits for. `slots`: D.
//!
//! **Papers.** Valente, Checconi: High throughput disk scheduling with fair bandwidth distribution,
//! IEEE Transactions on Computers 59(9), 2010. Bennett, Zhang: Hierarchical packet fair queueing
//! algorithms, SIGCOMM 1996 (WF2Q+). Linux, Documentation/block/bfq-iosched.rst.

use alloc::boxed::Box;

use crate::anticipation::{Anticipation, IDLE};
use crate::staged::Staged;
use fairq_core::contract::bounds::{ConfigError, MAX_KNOB_NS, boxed, granted};
use fairq_core::contract::flow::Weight;
use fairq_core::contract::platform::{Native, Platform};
use fairq_core::contract::port::{Op, Outcome};
use fairq_core::contract::vtime::{Normalizer, UNITS, VTime};
use fairq_core::entry::Built;
use fairq_core::entry::knobs::{self, Configure, Knob, Knobs};
use fairq_core::serial::entry::Scheduler;
use fairq_core::serial::heap::{Entry, FlowHeap};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Lift, Selection, Serial, SerialConfig, SerialPolicy, SerialPort,
};

/// The least budget is this part of the largest.
const BUDGET_RANGE: u64 = 32;

/// BFQ behind the port contract.
pub type Bfq<P = Native> = Serial<BfqScheduler, P>;

/// A port of [`Bfq`].
pub type BfqPort<P = Native> = SerialPort<BfqScheduler, P>;

/// The knobs of BFQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BfqConfig {
    /// The largest budget, in bytes; default 8 MiB.
    pub budget_bytes: u64,
    /// The longest turn while others wait, in nanoseconds; default 125 ms.
    pub timeout_ns: u64,
    /// The longest wait for the next request of the flow in service, in nanoseconds; 0 is BFQ-NA;
    /// default 8 ms.
    pub idle_ns: u64,
    /// Whether to wait also while all busy flows have the same weight, as Linux does if flows are
    /// control groups. Default: no.
    pub waits_for_equals: bool,
    /// Whether the device waits for flows that write as for flows that read, because their clients
    /// wait for each answer (as with `O_DIRECT`, which is synchronous to Linux). Default: no.
    pub sync_writes: bool,
}

fairq_core::changeable!(BfqConfig);

impl Default for BfqConfig {
    fn default() -> Self {
        BfqConfig {
            budget_bytes: 8 << 20,
            timeout_ns: 125_000_000,
            idle_ns: 8_000_000,
            waits_for_equals: false,
            sync_writes: false,
        }
    }
}

impl BfqConfig {
    fn least_budget(&self) -> u64 {
        (self.budget_bytes / BUDGET_RANGE).max(1)
    }
}

impl Configure for BfqConfig {
    fn knobs(&mut self, knobs: &mut Knobs<'_>) {
        let budget = "the most bytes that a turn may serve";
        knobs.is(Knob::bytes("budget", 1, 1 << 40, budget), &mut self.budget_bytes);
        let timeout = "the longest turn while others wait";
        knobs.is(Knob::duration("timeout", 1, MAX_KNOB_NS, timeout), &mut self.timeout_ns);
        knobs.is(IDLE, &mut self.idle_ns);
        let equals = "whether the device waits while all busy tenants have the same weight, too";
        knobs.is(Knob::switch("wait-for-equals", equals), &mut self.waits_for_equals);
        let writes = "whether the device waits for tenants that write, too";
        knobs.is(Knob::switch("sync-writes", writes), &mut self.sync_writes);
    }
}

impl Scheduler for BfqScheduler {
    const NAME: &'static str = "bfq";
    const LIMITED: &'static str = "nass+bfq";
    type Config = BfqConfig;

    fn limited(keeps_room: bool) -> BfqConfig {
        let usual = BfqConfig::default();
        if keeps_room { BfqConfig { idle_ns: 0, ..usual } } else { usual }
    }

    fn build(
        config: &BfqConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        Ok(Box::new(BfqScheduler::new(bounds, config)?))
    }
}

/// BFQ without anticipation.
pub enum BfqNa {}

impl Scheduler for BfqNa {
    const NAME: &'static str = "bfq-na";
    /// BFQ-NA waits for no flow, so it has no keys that choose the flows.
    const WITHOUT: &'static [&'static str] = &["idle", "wait-for-equals", "sync-writes"];
    type Config = BfqConfig;

    fn config() -> BfqConfig {
        BfqConfig { idle_ns: 0, ..BfqConfig::default() }
    }

    fn build(
        config: &BfqConfig,
        bounds: &SerialConfig,
    ) -> Result<Box<dyn SerialPolicy>, ConfigError> {
        BfqScheduler::build(config, bounds)
    }
}

/// BFQ behind one lock, and its ports.
pub fn new<P: Platform>(
    config: &SerialConfig,
    bfq: &BfqConfig,
) -> Result<Built<Bfq<P>>, ConfigError> {
    Serial::with_policy(BfqScheduler::new(config, bfq)?, config)
}

/// BFQ as a [`SerialPolicy`].
pub struct BfqScheduler {
    config: BfqConfig,
    virtual_time: VTime,
    /// Remainder of the last division that advanced virtual time, in 1/25,600 of a byte.
    remainder: u64,
    flows: Box<[FlowState]>,
    /// Backlogged flows that were ahead at the last check, by their start.
    ahead: FlowHeap,
    /// Backlogged flows that are not ahead, by their finish.
    ready: FlowHeap,
    staged: Staged<JobState>,
    in_service: Option<Turn>,
    /// All flows that have requests staged or are in service.
    busy: Busy,
    /// The most bytes served in a turn that ended by time; decays by a 64th with each such turn.
    in_time: u64,
    turns: u64,
    lift: Lift,
}

/// Weights of flows, in 256ths: their number, their sum and the sum of their squares.
#[derive(Clone, Copy, Default)]
struct Busy {
    flows: u64,
    weight: u64,
    squares: u128,
}

impl Busy {
    #[inline]
    fn add(&mut self, weight: Weight) {
        let weight = u64::from(weight.in_256ths());
        self.flows += 1;
        self.weight += weight;
        self.squares += square(weight);
    }

    #[inline]
    fn remove(&mut self, weight: Weight) {
        let weight = u64::from(weight.in_256ths());
        self.flows = self.flows.saturating_sub(1);
        self.weight = self.weight.saturating_sub(weight);
        self.squares = self.squares.saturating_sub(square(weight));
    }

    /// Whether all flows have the same weight: this is so if and only if the mean of the squares is
    /// the square of the mean.
    ///
    /// The products for 2^24 flows of weights below 2^22 in 256ths take 92 bits, so 64 are too few.
    /// Products of that width are a few multiplications.
    #[inline]
    fn is_even(&self) -> bool {
        u128::from(self.flows) * self.squares == square(self.weight)
    }
}

#[inline]
fn square(weight: u64) -> u128 {
    u128::from(weight) * u128::from(weight)
}

#[derive(Clone, Copy)]
struct Turn {
    flow: usize,
    served: u64,
    budget: u64,
    ends_ns: u64,
    /// Bytes that others were served in the meantime.
    others: u64,
}

/// The reason why a turn ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    UsedUp,
    OutOfTime,
    NothingStaged,
}

#[derive(Clone, Copy, Default)]
struct FlowState {
    start: VTime,
    finish: VTime,
    budget: u64,
    /// Bytes that it was served beside the flow in service and has not paid for.
    beside: u64,
    normalizer: Normalizer,
    weight: Weight,
    anticipation: Anticipation,
}

#[derive(Clone, Copy, Default)]
struct JobState {
    cost: u64,
    read: bool,
}

impl BfqScheduler {
    /// A scheduler without flows.
    pub fn new(config: &SerialConfig, bfq: &BfqConfig) -> Result<Self, ConfigError> {
        config.check()?;
        knobs::check(&mut bfq.clone())?;
        granted(|| {
            Ok(BfqScheduler {
                config: *bfq,
                virtual_time: VTime::ZERO,
                remainder: 0,
                flows: boxed(config.flows, |_| FlowState::default()),
                ahead: FlowHeap::new(config.flows),
                ready: FlowHeap::new(config.flows),
                staged: Staged::new(config.flows, config.jobs()),
                in_service: None,
                busy: Busy::default(),
                in_time: 0,
                turns: 0,
                lift: Lift::default(),
            })
        })
    }

    /// Gives a backlogged flow its finish and its place.
    #[inline]
    fn enqueue(&mut self, slot: usize) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.finish = flow
            .start
            .plus(flow.budget.saturating_mul(UNITS) / u64::from(flow.weight.in_256ths()).max(1));
        self.turns = self.turns.wrapping_add(1);
        self.ahead.push(Entry { tag: flow.start, arrival: self.turns, flow: slot as u32 });
    }

    // **Bounds.** A flow that becomes eligible moves from one heap to the other, once for each of
    // its turns; so if virtual time passes many starts at once one `next` moves as many flows; on
    // average each moves one.
    /// Moves the flows that virtual time has caught up with to `ready`, by their finish.
    #[inline]
    fn admit(&mut self) {
        while let Some(&entry) = self.ahead.first(Lanes::All)
            && !self.virtual_time.is_before(entry.tag)
        {
            self.ahead.remove(entry.flow as usize);
            let finish = self.flows.get(entry.flow as usize).map_or(entry.tag, |flow| flow.finish);
            self.ready.push(Entry { tag: finish, ..entry });
        }
    }

    fn others_wait(&self) -> bool {
        !self.ready.is_empty() || !self.ahead.is_empty()
    }

    /// Begins the next turn.
    #[inline]
    fn begin(&mut self, now_ns: u64, lanes: Lanes) -> Option<Turn> {
        self.admit();
        if self.ready.first(Lanes::All).is_none()
            && let Some(first) = self.ahead.first(Lanes::All)
        {
            self.virtual_time = self.virtual_time.max(first.tag);
            self.admit();
        }
        let first =
            self.ready.take_first(lanes).or_else(|| self.ahead.take_first(lanes))?.flow as usize;
        let flow = self.flows.get_mut(first)?;
        // These bytes are charged apart, because they are not part of this turn.
        flow.start =
            flow.start.plus(flow.normalizer.units(core::mem::take(&mut flow.beside), flow.weight));
        let budget = flow.budget;
        let ends_ns = now_ns.saturating_add(self.config.timeout_ns);
        let turn = Turn { flow: first, served: 0, budget, ends_ns, others: 0 };
        self.in_service = Some(turn);
        Some(turn)
    }

    /// Ends the turn, charges the flow and gives it its next budget.
    #[inline]
    fn end(&mut self, turn: Turn, why: End) {
        self.in_service = None;
        let largest = self.config.budget_bytes;
        let charged = if why == End::OutOfTime { self.price_of_time(turn) } else { turn.served };
        self.advance(charged - turn.served);
        let Some(flow) = self.flows.get_mut(turn.flow) else { return };
        flow.start = flow.start.plus(flow.normalizer.units(charged, flow.weight));
        flow.budget = match why {
            End::UsedUp => (turn.budget * 2).min(largest),
            End::NothingStaged => turn.served.max(self.config.least_budget()).min(largest),
            End::OutOfTime => turn.budget,
        };
        if self.staged.is_empty(turn.flow) {
            self.busy.remove(flow.weight);
        } else {
            self.enqueue(turn.flow);
        }
    }

    /// The bytes charged for a turn that ended by time.
    #[inline]
    // *Time.* A turn ends after `timeout_ns` when others wait. If the device served less in the
    // turn than half of the maximum of such turns, the flow is charged its part of that maximum: a
    // flow that transfers little in its time pays for the time. Any other flow pays for its bytes,
    // as in Linux. If it paid for time, too, the shares would be wrong on a device so slow that no
    // budget is used up and each turn ends by time, because the bytes of turns differ with the
    // device's behaviour and the last request (1:2.96 for 1:3, 64 KiB beside 4 KiB at 16 MiB/s).
    // The maximum decays by a 64th with each such turn; Linux uses the device's peak rate instead.
    fn price_of_time(&mut self, turn: Turn) -> u64 {
        let all = (turn.served + turn.others).max(1);
        self.in_time = all.max(self.in_time - self.in_time / 64);
        if all >= self.in_time / 2 {
            return turn.served;
        }
        // Both are at most a turn's bytes, and no turn exceeds 2^40 by more than one request.
        (turn.served / 1024 * (self.in_time / all.div_ceil(1024).max(1))).max(turn.served)
    }

    #[inline]
    fn advance(&mut self, served: u64) {
        let numerator = served.saturating_mul(UNITS).saturating_add(self.remainder);
        let divisor = self.busy.weight.max(1);
        let units = numerator / divisor;
        self.remainder = numerator - units * divisor;
        self.virtual_time = self.virtual_time.plus(units);
    }

    /// The selection that the turn allows, or the reason why it ends.
    #[inline]
    fn within(&mut self, now_ns: u64, turn: Turn, lanes: Lanes) -> Result<Selection, End> {
        let others_wait = self.others_wait();
        let Some(first) = self.staged.first(turn.flow) else {
            if !others_wait {
                return Ok(Selection::Nothing);
            }
            let anticipation =
                self.flows.get(turn.flow).map(|flow| flow.anticipation).unwrap_or_default();
            let waits = self.config.waits_for_equals || !self.busy.is_even();
            let idle_ns = if waits { self.config.idle_ns } else { 0 };
            let until_ns = anticipation.until(now_ns, idle_ns).ok_or(End::NothingStaged)?;
            if now_ns >= turn.ends_ns {
                return Err(End::OutOfTime);
            }
            return Ok(Selection::WaitUntil(until_ns.min(turn.ends_ns)));
        };
        if !self.ready.admits(turn.flow, lanes) {
            return Ok(self.serve_beside(lanes));
        }
        // A turn is at least one request, however large.
        if turn.served > 0 && turn.served + first.cost > turn.budget {
            return Err(End::UsedUp);
        }
        if turn.served > 0 && others_wait && now_ns >= turn.ends_ns {
            return Err(End::OutOfTime);
        }
        let (job, cost) = self.serve(turn.flow).ok_or(End::NothingStaged)?;
        self.in_service = Some(Turn { served: turn.served + cost, ..turn });
        Ok(Selection::Serve(job, turn.flow))
    }

    /// Sends the first request of a flow to the device, and moves virtual time by the request's
    /// cost.
    #[inline]
    fn serve(&mut self, flow: usize) -> Option<(Job, u64)> {
        let (job, kept) = self.staged.pop(flow)?;
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.anticipation.served(if kept.read || self.config.sync_writes {
                Op::Read
            } else {
                Op::Write
            });
        }
        self.advance(kept.cost);
        Some((job, kept.cost))
    }

    // *A flow that may not be served* keeps its turn, and the others go on beside it, in their
    // order, in turns of the least budget, for which they pay as usual; the flow pays its part of
    // its turn's time. (If the turn ended, a flow that may have only one request on the device
    // would get one for each full budget of the others.)
    /// While the flow in service may not be served, serves the first flow by its finish that may,
    /// or else the one that is least ahead.
    #[inline]
    fn serve_beside(&mut self, lanes: Lanes) -> Selection {
        self.admit();
        let ready = self.ready.first(lanes);
        let is_ready = ready.is_some();
        let Some(slot) = ready.or_else(|| self.ahead.first(lanes)).map(|entry| entry.flow as usize)
        else {
            return Selection::Nothing;
        };
        let Some((job, cost)) = self.serve(slot) else { return Selection::Nothing };
        if let Some(turn) = &mut self.in_service {
            turn.others += cost;
        }
        let next = self.staged.first(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return Selection::Nothing };
        flow.beside = flow.beside.saturating_add(cost);
        if next.is_some_and(|next| flow.beside + next.cost <= self.config.least_budget()) {
            return Selection::Serve(job, slot);
        }
        // The flow is charged for the bytes served beside, and leaves its place in the queue: it
        // gets another one if it has more requests.
        flow.start =
            flow.start.plus(flow.normalizer.units(core::mem::take(&mut flow.beside), flow.weight));
        match is_ready {
            true => self.ready.remove(slot),
            false => self.ahead.remove(slot),
        };
        match next {
            Some(_) => self.enqueue(slot),
            None => self.busy.remove(flow.weight),
        }
        Selection::Serve(job, slot)
    }
}

impl SerialPolicy for BfqScheduler {
    fn add_flow(&mut self, slot: usize, weight: Weight) {
        if let Some(turn) = self.in_service.filter(|turn| turn.flow == slot) {
            // The slot's last flow no longer has anything staged.
            self.end(turn, End::NothingStaged);
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            let budget = self.config.budget_bytes;
            *flow = FlowState { start: self.virtual_time, budget, weight, ..FlowState::default() };
        }
    }

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        let slot = arrival.flow;
        let alone = self.staged.is_empty(slot);
        let comes_back = alone && self.in_service.is_none_or(|turn| turn.flow != slot);
        let kept = JobState { cost: arrival.cost, read: arrival.op == Op::Read };
        self.staged.push(slot, arrival.job, kept);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.anticipation.arrived(now_ns, alone, self.config.idle_ns);
        if !comes_back {
            self.busy.remove(flow.weight);
        }
        flow.weight = arrival.weight;
        self.busy.add(flow.weight);
        if comes_back {
            flow.start = flow.start.max(self.virtual_time);
            self.enqueue(slot);
        }
    }

    #[inline]
    fn grow(&mut self, _now_ns: u64, arrival: &Arrival) {
        if let Some(kept) = self.staged.kept_mut(arrival.job) {
            kept.cost = kept.cost.saturating_add(arrival.cost);
        }
    }

    /// Nothing was charged: a flow is charged when it is served.
    fn cancel(&mut self, job: Job, slot: usize) {
        self.staged.remove(slot, job);
        let is_served = self.in_service.is_some_and(|turn| turn.flow == slot);
        if !self.staged.is_empty(slot) || is_served {
            return;
        }
        if self.ready.remove(slot).or_else(|| self.ahead.remove(slot)).is_some()
            && let Some(flow) = self.flows.get_mut(slot)
        {
            let beside = core::mem::take(&mut flow.beside);
            flow.start = flow.start.plus(flow.normalizer.units(beside, flow.weight));
            self.busy.remove(flow.weight);
        }
    }

    #[inline]
    fn set_lane(&mut self, flow: usize, lane: Lane) {
        self.ahead.set_lane(flow, lane);
        self.ready.set_lane(flow, lane);
    }

    #[inline]
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        let mut has_ended = false;
        // The loop calls `within` in one place, for the turn in service and for a new one, so that
        // the compiler lets `within` write its result where the caller reads it, without a copy.
        while let Some(turn) = self.in_service.or_else(|| self.begin(now_ns, lanes)) {
            match self.within(now_ns, turn, lanes) {
                Ok(selection) => return selection,
                Err(why) => self.end(turn, why),
            }
            if core::mem::replace(&mut has_ended, true) {
                break;
            }
        }
        Selection::Nothing
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, _job: Job, flow: usize, _outcome: Outcome) {
        if let Some(flow) = self.flows.get_mut(flow) {
            flow.anticipation.completed(now_ns);
        }
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        let in_service = self.in_service.map(|turn| turn.flow);
        self.lift.tick(now_ns, &mut self.flows, |slot, flow| {
            // A flow with staged requests is not moved up to virtual time, because it is still due
            // the service by which it is behind.
            if self.staged.is_empty(slot) && in_service != Some(slot) {
                flow.start = flow.start.max(self.virtual_time);
            }
        })
    }

    fn virtual_time(&self) -> Option<u64> {
        Some(self.virtual_time.units())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::testing::{Loop, config, counts, run};
    use fairq_core::contract::bounds::MAX_FLOWS;
    use proptest::prelude::*;

    const BUDGET: u64 = 256 << 10;
    /// A time at which no turn ends, in nanoseconds.
    const FOR_EVER: u64 = MAX_KNOB_NS;

    fn bfq(idle_ns: u64) -> BfqScheduler {
        BfqScheduler::new(
            &config(8),
            &BfqConfig {
                budget_bytes: BUDGET,
                timeout_ns: FOR_EVER,
                idle_ns,
                ..BfqConfig::default()
            },
        )
        .unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// The bound of the header holds at every moment and for every pair of flows that are
        /// always backlogged.
        #[test]
        fn lag_is_bounded_by_budgets(
            flows in prop::collection::vec((20u16..1000, prop::sample::select(&[512u32, 4096, 65_536, 1 << 20][..])), 2..6)
        ) {
            let loops: Vec<Loop> = flows.iter().map(|&(weight, length)| Loop { weight, length, depth: 64 }).collect();
            let served = run(&mut bfq(0), &loops, 8, 300_000, |length| u64::from(length / 512));
            let mut service = std::vec![0u64; loops.len()];
            for flow in served {
                service[flow] += u64::from(loops[flow].length);
                for (f, a) in loops.iter().enumerate() {
                    for (g, b) in loops[..f].iter().enumerate() {
                        let (w, v) = (i128::from(a.weight), i128::from(b.weight));
                        let apart = (i128::from(service[f]) * v - i128::from(service[g]) * w).unsigned_abs();
                        let budget = u128::from(BUDGET);
                        let bound = (budget + u128::from(a.length)) * v as u128 + (budget + u128::from(b.length)) * w as u128;
                        // Rounding: a unit for each turn at the most.
                        let rounding = (w * v) as u128 * 4096;
                        prop_assert!(apart <= bound + rounding, "{f} and {g}: {service:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn as_many_flows_as_there_may_be_are_even_or_not() {
        let mut busy = Busy::default();
        (0..MAX_FLOWS).for_each(|_| busy.add(Weight::MAX));
        assert!(busy.is_even());
        busy.remove(Weight::MAX);
        busy.add(Weight::MIN);
        assert!(!busy.is_even());
    }

    /// A flow that waits for its answers keeps its share of the bytes if the device waits for it,
    /// which it does only if weights differ.
    #[test]
    fn idling_keeps_a_shallow_flows_share() {
        let tenant = |weight, depth| Loop { weight, length: 4096, depth };
        let share = |idle_ns, weight| {
            let loops = [tenant(weight, 1), tenant(100, 32)];
            let served = run(&mut bfq(idle_ns), &loops, 8, 2_000_000_000, |_| 100_000);
            counts(&served, 2)[0] as f64 / served.len() as f64
        };
        let (bfq, na, even) = (share(8_000_000, 101), share(0, 101), share(8_000_000, 100));
        assert!((0.48..0.52).contains(&bfq) && na < 0.2, "{bfq} with idling, {na} without");
        assert!(even < 0.2, "{even} with even weights");
    }

    /// A flow whose budget takes too long pays for the time: both get turns of the same time.
    #[test]
    fn turns_that_take_too_long_end() {
        let timeout_ns = 10_000_000;
        let knobs =
            BfqConfig { budget_bytes: 1 << 30, timeout_ns, idle_ns: 0, ..BfqConfig::default() };
        let mut policy = BfqScheduler::new(&config(8), &knobs).unwrap();
        let tenant = |length| Loop { weight: 100, length, depth: 32 };
        let served =
            run(&mut policy, &[tenant(4096), tenant(65_536)], 8, 1_000_000_000, |_| 100_000);
        let [a, b] = counts(&served, 2)[..] else { panic!("two flows") };
        assert!(a.abs_diff(b) * 20 < a, "{a} and {b}");
        assert!(served.chunk_by(|a, b| a == b).count() > 90);
    }
}
