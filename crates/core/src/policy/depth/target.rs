//! Latency targets: D and weights, moved until late requests are as few as targets allow.
//!
//! **Problem.** A D that fills a device does not make it answer quickly: on the P4500 the D that
//! keeps 97 % of its rate has a 99th percentile of 550 us, and 260 us are possible at 60 % of it.
//! **Model.** A flow with a [`Target`] counts its requests and the *late* ones, those that took
//! longer (`watch`). The *ratio* is the number of late ones over the number allowed, so 1 is the
//! target. Every [`LOOK_NS`] the controller reads the counts since its last step, and moves one of
//! two *levers*:
//! - D has an upper *bound* for all flows, below the D that the operator sets or the search tries:
//!   with a bound the search is for the least D that is enough for the device's rate at the bound.
//!   The bound is lowered if requests were on the device for longer than the policy held them.
//! - The flow's weight is raised, so that its requests go first, if the policy held them for longer
//!   than they were on the device.
//!
//! **Steps.** Evidence comes before a step, and the step is bounded by it: [`Step`] has the table.
//!
//! **Floor.** All flows except one with a target keep, together, at least its floor: that part of
//! the service to which their weights entitle them. This service is their part of the rate that is
//! measured whenever D has no bound. A step that would leave them less is not made, nor one that
//! leaves all flows together less than the floor of that rate; if they have less, a step is taken
//! back. The weight is raised only as far as the others keep their floor.
//!
//! **A target that cannot be met** does not keep D small for nothing. Below some D requests are no
//! faster, since they wait for one of the few places instead. So while a flow misses its target and
//! no step is left, D goes up by 3/16 at a time on *trial*, as long as the mean time of the flow's
//! requests grows by at most a 16th of that part; if it grows more, D goes back and rests for
//! [`PROBES_NS`].
//!
//! **The latency alone** on the device is reported for a target that cannot be met. A *probe*
//! measures it: once in [`PROBES_NS`] D is 1 for some requests' time.
//!
//! **Example.** Weights of 100 each, a flow of depth 1 with a target of 260 us beside four of depth
//! 256 on the P4500; D is found to be 108. A third of its requests are late, so D goes to 88, 72,
//! 59, 48; 1.6 % are, 42; 0.9 %: D stays. When the flow stops for a second D is 108 again; when it
//! comes back, 42.
//!
//! **Bounds.** [`SEATS`] flows may have targets. D changes by at most 3/16, or by one, from one
//! look to the next, except for probes, and except that D has no bound while no flow with a target
//! completes anything.

use alloc::boxed::Box;

use super::meter::Sum;
use super::watch::Count;
use crate::contract::flow::{FlowError, FlowId, Target, TargetState, TargetStats, Weight};
use crate::structures::allocation::boxed;

/// The most flows with a target.
pub(super) const SEATS: usize = 64;
/// Time between two looks, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// Time without a completion that makes a flow idle; the longest wait of a step for evidence.
const SECOND_NS: u64 = 1_000_000_000;
/// Time that requests on the device have to leave it, in nanoseconds: twice their mean time, within
/// these.
const SETTLE_MIN_NS: u64 = 1_000_000;
const SETTLE_MAX_NS: u64 = 100_000_000;
/// Looks without a bound before the rate is known that floors are parts of.
const KNOWN: u32 = 8;
/// Looks in a row that find other flows below their floor before a step is taken back.
const BELOW: u32 = 3;
/// No bound.
const FREE: u32 = u32::MAX;
/// Requests alone on the device that show their time there.
const SOME: u64 = 8;
/// The longest wait of a probe for them, and the time between two probes, in nanoseconds.
const PROBE_NS: u64 = 100_000_000;
const PROBES_NS: u64 = 30_000_000_000;

/// Requests whose mean time is exact enough: to half a percent if times vary by half.
const MANY: u64 = 10_000;

// **Steps.** Evidence comes before a step, and the step is bounded by it:
//
// | ratio | seen | step |
// |---|---|---|
// | above 3 | 8 late ones | D less 3/16, or the weight a half more |
// | above 1.6 | 20 late ones | D less 1/8, or the weight a quarter more |
// | above 1.3 | 40 late ones | 1/16; 1/8 |
// | above 0.97 | as many requests as may have 90 late ones, or a second | the same |
// | below 0.8 | the same | D 1/16 more, or the weight 1/8 less |
// | below 0.1 | as many requests as may have 20 late ones | 3/16; a half |
//
// Chance moves a count by its square root: 90 late ones by a tenth, which is why nothing moves
// between 0.8 and 0.97; at a ratio of 0.9 one of a hundred counts of 20 or 40 is so large by
// chance. A step of 1/16 does not cross that gap: on a device of dies it changes the ratio by a
// fifth. After a step nothing is counted until the requests that were on the device then have left
// it.
/// A step of 1, 2 or 3 sixteenths of D, or of 2, 4 or 8 sixteenths of a weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Small,
    Middle,
    Large,
}

impl Step {
    fn sixteenths(self) -> u32 {
        match self {
            Step::Small => 1,
            Step::Middle => 2,
            Step::Large => 3,
        }
    }

    /// The step of D, at least one.
    fn of_slots(self, slots: u32) -> u32 {
        (u64::from(slots) * u64::from(self.sixteenths()) / 16).max(1) as u32
    }

    /// The step of a weight, in 256ths, at least one.
    fn of_weight(self, weight: Weight) -> u32 {
        (weight.in_256ths() * (1 << self.sixteenths()) / 16).max(1)
    }
}

/// The step that a flow's counts demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// There is too little evidence yet.
    Unknown,
    /// The flow completes nothing.
    Idle,
    Stay,
    /// Fewer late requests: it waits in the policy (`is_held`) or on the device.
    Faster {
        step: Step,
        is_held: bool,
    },
    /// It may have more late requests.
    Slower(Step),
}

/// Whether D is 1 for a moment, to measure latencies alone on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    No,
    /// Requests on the device leave it, until this time (nanoseconds).
    Drain(u64),
    /// Requests are counted, from this time on (nanoseconds).
    Count(u64),
}

/// Whether D is raised for a flow that misses its target, and for which no step is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Climb {
    No,
    /// D was `slots`, and the requests of the flow in seat `at` took `mean_ns` on average.
    Trial {
        at: usize,
        slots: u32,
        mean_ns: u64,
    },
    /// A larger D would be worse. A smaller one waits until `until_ns`, or for slower requests.
    Rest {
        at: usize,
        mean_ns: u64,
        until_ns: u64,
    },
}

/// A flow with a target.
struct Seat {
    flow: FlowId,
    target: Target,
    /// Its weight now, if that is more than its own.
    raised: Option<Weight>,
    /// The counts when counting began, at the last look, and when the second began.
    begun: Count,
    looked: Count,
    second: Count,
    /// Time when its last completion was seen.
    busy_ns: u64,
    /// The counts of the last whole second.
    last: Count,
    state: TargetState,
    /// Why the last step that its counts demanded was not made.
    refused: Option<TargetState>,
    alone_ns: Option<u64>,
    /// Recent bytes a second.
    rate: u64,
}

/// The controller, which moves D and weights for targets.
pub(super) struct Targets {
    /// The number and own weight of each flow, by slot.
    flows: Box<[Option<(FlowId, Weight)>]>,
    /// All weights, in 256ths.
    total: u64,
    /// On the heap: there are 64, and a kernel module that builds a policy has a stack of 16 KiB.
    seats: Box<[Option<Seat>]>,
    count: usize,
    bound: u32,
    /// Some flow with a target has completed something in the last second.
    is_busy: bool,
    /// Time of the last look, and the counts then.
    looked: Option<(u64, Sum)>,
    second_ns: u64,
    /// Time when counting begins, or began.
    begins_ns: u64,
    has_begun: bool,
    /// Recent bytes a second of all flows, and those while D has no bound.
    rate: u64,
    full_rate: u64,
    /// Number of looks in which the latter was measured without a bound.
    free: u32,
    probe: Probe,
    /// Earliest time of the next probe.
    probe_ns: u64,
    climb: Climb,
    /// Number of looks in a row that have found a flow's others below its floor.
    below: u32,
}

/// A part of `whole` in percent.
fn percent(whole: u64, percent: u64) -> u64 {
    (whole / 100).saturating_mul(percent)
}

/// A quarter is new, so that some ten looks decide.
fn blend(old: u64, new: u64) -> u64 {
    if old == 0 { new } else { old / 4 * 3 + new / 4 }
}

/// `raised`, which was above the weight `before`, by the same factor above the weight `now`.
fn scaled(raised: Weight, before: Weight, now: Weight) -> Weight {
    let [raised, before, now] = [raised, before, now].map(|weight| u64::from(weight.in_256ths()));
    let times = raised * now / before.max(1);
    let most = Weight::MAX.in_256ths();
    let bounded = times.clamp(Weight::LEAST_256THS.into(), most.into());
    u32::try_from(bounded).ok().and_then(Weight::of_256ths).unwrap_or(Weight::MAX)
}

impl Targets {
    pub(super) fn new(flows: usize) -> Self {
        Targets {
            flows: boxed(flows, |_| None),
            total: 0,
            seats: boxed(SEATS, |_| None),
            count: 0,
            bound: FREE,
            is_busy: false,
            looked: None,
            second_ns: 0,
            begins_ns: 0,
            has_begun: false,
            rate: 0,
            full_rate: 0,
            free: 0,
            probe: Probe::No,
            probe_ns: 0,
            climb: Climb::No,
            below: 0,
        }
    }

    /// Whether a flow has a target.
    pub(super) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// The most that D may be.
    pub(super) fn bound(&self) -> u32 {
        match self.is_busy {
            true if self.is_probing() => 1,
            true => self.bound,
            false => FREE,
        }
    }

    /// Whether D is 1 for a moment.
    pub(super) fn is_probing(&self) -> bool {
        self.is_busy && self.probe != Probe::No
    }

    /// Time of the next look, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.looked.map_or(0, |(at_ns, _)| at_ns.saturating_add(LOOK_NS))
    }

    // Flows.

    /// Notes a new flow, or a flow's new weight.
    pub(super) fn weigh(&mut self, flow: FlowId, weight: Weight) {
        let Some(entry) = self.flows.get_mut(flow.slot()) else { return };
        let old = entry.replace((flow, weight)).map_or(0, |(_, old)| u64::from(old.in_256ths()));
        self.total = self.total.saturating_sub(old) + u64::from(weight.in_256ths());
        let before = Weight::of_256ths(u32::try_from(old).unwrap_or(0)).unwrap_or(weight);
        if let Some(seat) = self.find(flow) {
            let now = seat.raised.map(|raised| scaled(raised, before, weight));
            seat.raised = now.filter(|&raised| raised > weight);
        }
    }

    /// The flow's weight in the policy if its own weight becomes `weight`.
    pub(super) fn raised(&mut self, flow: FlowId, weight: Weight) -> Weight {
        let before = self.weight(flow).unwrap_or(weight);
        let raised = self.find(flow).and_then(|seat| seat.raised);
        raised.map_or(weight, |raised| scaled(raised, before, weight).max(weight))
    }

    /// Removes a flow; gives whether it had a target.
    pub(super) fn remove(&mut self, flow: FlowId) -> bool {
        let Some(entry) = self.flows.get_mut(flow.slot()) else { return false };
        if let Some((_, weight)) = entry.take_if(|(known, _)| *known == flow) {
            self.total = self.total.saturating_sub(weight.in_256ths().into());
        }
        self.leave(flow).is_some()
    }

    fn leave(&mut self, flow: FlowId) -> Option<Seat> {
        let is_its = |seat: &&mut Option<Seat>| seat.as_ref().is_some_and(|s| s.flow == flow);
        let seat = self.seats.iter_mut().find(is_its)?.take()?;
        self.count -= 1;
        self.climb = Climb::No;
        if self.count == 0 {
            (self.bound, self.is_busy, self.looked) = (FREE, false, None);
            self.probe = Probe::No;
        }
        Some(seat)
    }

    fn find(&mut self, flow: FlowId) -> Option<&mut Seat> {
        self.seats.iter_mut().flatten().find(|seat| seat.flow == flow)
    }

    /// Sets a flow's target; gives its seat. `count` gives a seat's counts.
    pub(super) fn set(
        &mut self,
        flow: FlowId,
        target: Target,
        count: impl Fn(usize) -> Count,
    ) -> Result<usize, FlowError> {
        self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        let has = |seat: &Option<Seat>| seat.as_ref().is_some_and(|seat| seat.flow == flow);
        let at = self.seats.iter().position(has);
        let at = at.or_else(|| self.seats.iter().position(Option::is_none));
        let at = at.ok_or(FlowError::ManyTargets)?;
        let count = count(at);
        let seat = self.seats.get_mut(at).ok_or(FlowError::ManyTargets)?;
        let raised = seat.as_ref().and_then(|seat| seat.raised);
        self.count += usize::from(seat.is_none());
        *seat = Some(Seat {
            flow,
            target,
            raised,
            begun: count,
            looked: count,
            second: count,
            busy_ns: 0,
            last: Count::default(),
            state: TargetState::Idle,
            refused: None,
            alone_ns: None,
            rate: 0,
        });
        (self.has_begun, self.climb) = (false, Climb::No);
        Ok(at)
    }

    /// Takes a flow's target away; gives its own weight, if that was raised.
    pub(super) fn clear(&mut self, flow: FlowId) -> Result<Option<Weight>, FlowError> {
        let own = self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        let was_raised = self.leave(flow).is_some_and(|seat| seat.raised.is_some());
        Ok(was_raised.then_some(own))
    }

    fn weight(&self, flow: FlowId) -> Option<Weight> {
        let known = (*self.flows.get(flow.slot())?)?;
        (known.0 == flow).then_some(known.1)
    }

    /// Statistics of a flow with a target.
    pub(super) fn stats(&self, flow: FlowId) -> Option<TargetStats> {
        let seat = self.seats.iter().flatten().find(|seat| seat.flow == flow)?;
        let own = self.weight(flow)?;
        Some(TargetStats {
            target: seat.target,
            state: seat.state,
            completed: seat.last.done,
            late: seat.last.late,
            alone_ns: seat.alone_ns,
            weight: seat.raised.unwrap_or(own),
            bound: Some(self.bound()).filter(|&bound| bound != FREE),
        })
    }

    // Looking.

    /// Reads the counts, and moves a lever if they demand it. `wanted` is the largest D without a
    /// bound; `weigh` changes a flow's weight.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        wanted: u32,
        sum: &Sum,
        count: impl Fn(usize) -> Count,
        mut weigh: impl FnMut(FlowId, Weight),
    ) {
        let Some((before_ns, before)) = self.looked.replace((now_ns, *sum)) else {
            self.second_ns = now_ns;
            return;
        };
        let after_us = (now_ns.saturating_sub(before_ns) / 1000).max(1);
        let per_second = |bytes: u64| bytes.saturating_mul(1_000_000) / after_us;
        let requests = sum.requests.wrapping_sub(before.requests).max(1);
        let spent_ns = sum.spent_ns.wrapping_sub(before.spent_ns);
        let settles_ns = (spent_ns / requests).saturating_mul(2);
        let settles_ns = settles_ns.clamp(SETTLE_MIN_NS, SETTLE_MAX_NS);
        self.note_rates(per_second(sum.bytes.wrapping_sub(before.bytes)), wanted);
        let was_busy = core::mem::take(&mut self.is_busy);
        let is_second = now_ns.saturating_sub(self.second_ns) >= SECOND_NS;
        let is_probing = self.probe != Probe::No;
        let starts = !is_probing && !self.has_begun && now_ns >= self.begins_ns;
        for (seat, count) in (0..)
            .zip(&mut self.seats)
            .filter_map(|(at, seat)| seat.as_mut().map(|seat| (seat, count(at))))
        {
            seat.look(now_ns, &count, per_second);
            self.is_busy |= now_ns.saturating_sub(seat.busy_ns) < SECOND_NS;
            if starts {
                seat.begun = count;
            }
            if is_second {
                seat.end_second(&count);
            }
        }
        if is_second {
            self.second_ns = now_ns;
        }
        if starts {
            (self.has_begun, self.begins_ns) = (true, now_ns);
        }
        if self.is_busy && !was_busy {
            // The first requests met a device without a bound, and are not counted.
            (self.has_begun, self.begins_ns) = (false, now_ns.saturating_add(SETTLE_MIN_NS));
        }
        if !self.is_busy {
            (self.probe, self.climb) = (Probe::No, Climb::No);
            return;
        }
        if is_probing {
            return self.go_on_probing(now_ns);
        }
        if is_second && self.is_any_refused() && now_ns >= self.probe_ns {
            self.probe = Probe::Drain(now_ns.saturating_add(settles_ns));
            self.probe_ns = now_ns.saturating_add(PROBES_NS);
            return;
        }
        if !self.has_begun {
            return;
        }
        // Little's law: the mean number of requests on the device. D may be far above it.
        let reached = spent_ns / 1000 / after_us + 1;
        let slots = self.bound.min(wanted).min(u32::try_from(reached).unwrap_or(FREE)).max(1);
        if self.step(now_ns, slots, wanted, &mut weigh) {
            (self.has_begun, self.begins_ns) = (false, now_ns.saturating_add(settles_ns));
        }
    }

    /// Whether some flow misses its target and no step is left for it.
    fn is_any_refused(&self) -> bool {
        let is =
            |seat: &Seat| matches!(seat.refused, Some(TargetState::Floor | TargetState::Spent));
        self.seats.iter().flatten().any(is)
    }

    /// Continues a probe: D is 1, so that a request has the device alone.
    fn go_on_probing(&mut self, now_ns: u64) {
        self.has_begun = false;
        match self.probe {
            Probe::Drain(until_ns) if now_ns >= until_ns => {
                self.seats.iter_mut().flatten().for_each(|seat| seat.begun = seat.looked);
                self.probe = Probe::Count(now_ns);
            }
            Probe::Count(since_ns) => {
                let mut is_known = true;
                for seat in self.seats.iter_mut().flatten() {
                    let Count { done, spent_ns, .. } = seat.looked.since(&seat.begun);
                    seat.alone_ns = spent_ns.checked_div(done).or(seat.alone_ns);
                    is_known &= done >= SOME || seat.refused.is_none();
                }
                if is_known || now_ns.saturating_sub(since_ns) >= PROBE_NS {
                    self.probe = Probe::No;
                    self.begins_ns = now_ns.saturating_add(SETTLE_MIN_NS);
                }
            }
            _ => {}
        }
    }

    fn note_rates(&mut self, rate: u64, wanted: u32) {
        if self.probe != Probe::No {
            return;
        }
        self.rate = blend(self.rate, rate);
        let is_free = self.bound() >= wanted;
        if !is_free {
            self.full_rate = self.full_rate.max(self.rate);
        } else if rate > 0 {
            self.full_rate = self.rate;
            self.free = self.free.saturating_add(1);
        } else {
            self.free = 0;
        }
    }

    /// Moves a lever if the counts demand it; gives whether it has.
    fn step(
        &mut self,
        now_ns: u64,
        slots: u32,
        wanted: u32,
        weigh: &mut impl FnMut(FlowId, Weight),
    ) -> bool {
        if self.are_others_below() {
            self.below += 1;
            if self.below >= BELOW {
                self.below = 0;
                return self.relax(Step::Small, wanted, weigh);
            }
        } else {
            self.below = 0;
        }
        let age_ns = now_ns.saturating_sub(self.begins_ns);
        if let Some(has_moved) = self.climb(now_ns, age_ns, slots, wanted) {
            return has_moved;
        }
        let (mut lower, mut slower) = (None, Some(Step::Large));
        let mut has_moved = false;
        for at in 0..SEATS {
            let Some(Some(seat)) = self.seats.get(at) else { continue };
            let wish = seat.wish(now_ns, age_ns);
            match wish {
                Wish::Idle => {}
                // All flows share D, so it is raised only if no flow may need it as it is.
                Wish::Unknown | Wish::Stay => slower = None,
                Wish::Slower(step) => slower = slower.map(|least: Step| least.min(step)),
                Wish::Faster { step, is_held } => {
                    slower = None;
                    if is_held {
                        has_moved |= self.raise(at, step, weigh);
                    } else if self.may_lower(at, slots, step) {
                        lower = lower.max(Some(step));
                    }
                }
            }
        }
        if let Some(step) = lower {
            self.bound = slots.saturating_sub(step.of_slots(slots)).max(1);
            // An estimate of the rate for the next look, until it is measured.
            self.rate = Self::less(self.rate, slots, step);
            return true;
        }
        if let Some(step) = slower {
            return self.relax(step, wanted, weigh);
        }
        has_moved || age_ns >= SECOND_NS
    }

    /// Tries a larger D for a flow that misses its target for good; `None` if there is no such
    /// flow, else whether D has moved.
    fn climb(&mut self, now_ns: u64, age_ns: u64, slots: u32, wanted: u32) -> Option<bool> {
        let wants_steps = |seat: &Seat| matches!(seat.wish(now_ns, age_ns), Wish::Faster { .. });
        let seats = || (0..).zip(&self.seats).filter_map(|(at, seat)| Some((at, seat.as_ref()?)));
        let is_helped = seats().any(|(_, seat)| wants_steps(seat) && seat.refused.is_none());
        let missing = seats().find(|(_, seat)| wants_steps(seat) && seat.refused.is_some());
        let wish =
            |at| seats().find(|&(known, _)| known == at).map(|(_, seat)| seat.wish(now_ns, age_ns));
        let mean_ns = |at| seats().find(|&(known, _)| known == at)?.1.mean_ns(age_ns);
        let (at, now_mean_ns) = match self.climb {
            Climb::Trial { slots, .. } if is_helped => {
                (self.climb, self.bound) = (Climb::No, slots);
                return Some(true);
            }
            Climb::Trial { at, .. }
                if !matches!(wish(at), Some(Wish::Faster { .. } | Wish::Unknown)) =>
            {
                // The flow meets its target, or is idle.
                self.climb = Climb::No;
                return None;
            }
            Climb::Trial { at, slots: before, mean_ns: before_ns } => {
                let Some(now_mean_ns) = mean_ns(at) else { return Some(false) };
                let more = u64::from(slots.saturating_sub(before));
                let allowed_ns = before_ns / 16 * more / u64::from(before.max(1));
                let is_worse = now_mean_ns > before_ns.saturating_add(allowed_ns);
                if is_worse || self.bound == FREE {
                    let mean_ns = if is_worse { before_ns } else { now_mean_ns };
                    let until_ns = now_ns.saturating_add(PROBES_NS);
                    self.climb = Climb::Rest { at, mean_ns, until_ns };
                    self.bound = if is_worse { before } else { FREE };
                    return Some(true);
                }
                (at, now_mean_ns)
            }
            Climb::Rest { at, mean_ns: best_ns, until_ns } => {
                let is_slower = mean_ns(at).is_some_and(|ns| ns > best_ns / 4 * 5);
                if now_ns >= until_ns || is_slower {
                    self.climb = Climb::No;
                }
                return None;
            }
            Climb::No if is_helped || self.bound == FREE => return None,
            Climb::No => {
                let (at, seat) = missing?;
                (at, seat.mean_ns(age_ns)?)
            }
        };
        self.climb = Climb::Trial { at, slots, mean_ns: now_mean_ns };
        let more = slots.saturating_add(Step::Large.of_slots(slots));
        self.bound = if more >= wanted { FREE } else { more };
        Some(true)
    }

    /// Bytes a second that weights give all flows except this one while D has no bound.
    fn entitled(&self, seat: &Seat) -> u64 {
        let own = self.weight(seat.flow).map_or(0, |weight| u64::from(weight.in_256ths()));
        let part = (u128::from(self.full_rate) * u128::from(self.total.saturating_sub(own)))
            / u128::from(self.total.max(1));
        part as u64
    }

    /// Whether the others of some flow have less than its floor while D has a bound or a weight is
    /// raised.
    fn are_others_below(&self) -> bool {
        let is_moved =
            self.bound != FREE || self.seats.iter().flatten().any(|s| s.raised.is_some());
        is_moved
            && self.seats.iter().flatten().any(|seat| {
                let floor = percent(self.entitled(seat), seat.target.floor_percent().into());
                percent(self.rate.saturating_sub(seat.rate), 105) < floor
            })
    }

    /// The least rate that is left when D goes a step down.
    fn less(rate: u64, slots: u32, step: Step) -> u64 {
        rate.saturating_sub(rate / u64::from(slots.max(1)) * u64::from(step.of_slots(slots)))
    }

    /// Whether D may be lowered by this step for the flow in this seat.
    fn may_lower(&mut self, at: usize, slots: u32, step: Step) -> bool {
        let Some(Some(seat)) = self.seats.get(at) else { return false };
        let floor_percent = u64::from(seat.target.floor_percent());
        let less = |rate| Self::less(rate, slots, step);
        let others = less(self.rate.saturating_sub(seat.rate));
        let is_resting = matches!(self.climb, Climb::Rest { at: resting, .. } if resting == at);
        // Without a rate that was measured at a free D no floor is known.
        let refused = if self.free < KNOWN {
            Some(TargetState::Missed)
        } else if slots == 1 {
            Some(TargetState::Spent)
        } else if others < percent(self.entitled(seat), floor_percent)
            || less(self.rate) < percent(self.full_rate, floor_percent)
        {
            Some(TargetState::Floor)
        } else if is_resting {
            Some(TargetState::Spent)
        } else {
            None
        };
        if let Some(Some(seat)) = self.seats.get_mut(at) {
            seat.refused = refused;
        }
        refused.is_none()
    }

    /// Raises the weight of the flow in this seat, if the others keep their floor; gives whether it
    /// has.
    fn raise(&mut self, at: usize, step: Step, weigh: &mut impl FnMut(FlowId, Weight)) -> bool {
        let Some(Some(seat)) = self.seats.get(at) else { return false };
        let Some(own) = self.weight(seat.flow) else { return false };
        let floor = u64::from(seat.target.floor_percent());
        // The others have (W - w) of W + room: the floor of (W - w) of W if room is W (1 - floor) /
        // floor.
        let room = match floor {
            0 => u64::MAX,
            floor => self.total.saturating_mul(100 - floor) / floor,
        };
        let own_256ths = u64::from(own.in_256ths());
        let most = own_256ths.saturating_add(room).min(Weight::MAX.in_256ths().into()) as u32;
        let now = seat.raised.unwrap_or(own);
        let wanted = now.in_256ths().saturating_add(step.of_weight(now)).min(most);
        let wanted = Weight::of_256ths(wanted).unwrap_or(now);
        let is_less = self.total > own_256ths && self.are_others_below();
        let refused = match () {
            () if wanted > now && !is_less => None,
            () if now >= Weight::MAX => Some(TargetState::Spent),
            () => Some(TargetState::Floor),
        };
        let Some(Some(seat)) = self.seats.get_mut(at) else { return false };
        seat.refused = refused;
        if refused.is_some() {
            return false;
        }
        seat.raised = Some(wanted);
        weigh(seat.flow, wanted);
        true
    }

    /// Takes a step back: first of weights, then of D.
    fn relax(&mut self, step: Step, wanted: u32, weigh: &mut impl FnMut(FlowId, Weight)) -> bool {
        let mut has_moved = false;
        for at in 0..SEATS {
            let Some(Some(seat)) = self.seats.get_mut(at) else { continue };
            let (Some(now), flow) = (seat.raised, seat.flow) else { continue };
            let Some(own) = self.weight(flow) else { continue };
            let less = now.in_256ths().saturating_sub(step.of_weight(now));
            let weight = Weight::of_256ths(less).unwrap_or(own).max(own);
            if let Some(Some(seat)) = self.seats.get_mut(at) {
                seat.raised = Some(weight).filter(|_| weight > own);
            }
            weigh(flow, weight);
            has_moved = true;
        }
        if has_moved || self.bound == FREE {
            return true;
        }
        let more = self.bound.saturating_add(step.of_slots(self.bound));
        self.bound = if more >= wanted { FREE } else { more };
        true
    }
}

impl Seat {
    fn look(&mut self, now_ns: u64, count: &Count, per_second: impl Fn(u64) -> u64) {
        let new = count.since(&self.looked);
        self.looked = *count;
        self.rate = blend(self.rate, per_second(new.bytes));
        if new.done > 0 {
            self.busy_ns = now_ns;
        }
    }

    /// Ends a second.
    fn end_second(&mut self, count: &Count) {
        self.last = count.since(&self.second);
        self.second = *count;
        let done = self.last.done;
        let ratio = self.ratio(&self.last);
        self.state = match self.refused {
            _ if done == 0 => TargetState::Idle,
            _ if ratio <= 100 => TargetState::Met,
            _ if self.alone_ns.is_some_and(|ns| ns > self.target.latency_ns()) => {
                TargetState::Device
            }
            Some(why) => why,
            None => TargetState::Missed,
        };
        if self.state == TargetState::Met {
            self.refused = None;
        }
    }

    /// Mean time of its requests since counting began, in nanoseconds, if that is known.
    fn mean_ns(&self, age_ns: u64) -> Option<u64> {
        let count = self.looked.since(&self.begun);
        let is_known = count.done >= MANY || age_ns >= SECOND_NS;
        let mean_ns = || count.held_ns.saturating_add(count.spent_ns).checked_div(count.done);
        is_known.then(mean_ns).flatten()
    }

    /// The late requests over those allowed, in hundredths.
    fn ratio(&self, count: &Count) -> u64 {
        let may = count.done.saturating_mul(self.target.late_ppm().into());
        if may == 0 {
            return 0;
        }
        let ratio = u128::from(count.late) * 100_000_000 / u128::from(may);
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }

    /// The step that its counts of `age_ns` demand.
    fn wish(&self, now_ns: u64, age_ns: u64) -> Wish {
        if now_ns.saturating_sub(self.busy_ns) >= SECOND_NS {
            return Wish::Idle;
        }
        let count = self.looked.since(&self.begun);
        let (ratio, is_held) = (self.ratio(&count), count.held_ns > count.spent_ns);
        let expected = count.done.saturating_mul(self.target.late_ppm().into()) / 1_000_000;
        let is_clear = expected >= 90 || age_ns >= SECOND_NS;
        match ratio {
            301.. if count.late >= 8 => Wish::Faster { step: Step::Large, is_held },
            161.. if count.late >= 20 => Wish::Faster { step: Step::Middle, is_held },
            131.. if count.late >= 40 => Wish::Faster { step: Step::Small, is_held },
            // Among few requests a single late one may be allowed, so this needs clear evidence.
            101.. if is_clear => Wish::Faster { step: Step::Small, is_held },
            97.. if is_clear && expected >= 20 => Wish::Faster { step: Step::Small, is_held },
            ..10 if expected >= 20 => Wish::Slower(Step::Large),
            ..80 if is_clear => Wish::Slower(Step::Small),
            _ if is_clear => Wish::Stay,
            _ => Wish::Unknown,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
