//! Latency targets: D, moved until late requests are as few as targets allow.
//!
//! **Problem.** A D that fills a device does not make it answer quickly: on the P4500 the D that
//! keeps 97 % of its rate has a 99th percentile of 550 us, and 260 us are possible at 60 % of it.
//! **Model.** A flow with a [`Target`] counts its requests and the *late* ones, those that took
//! longer (`watch`). Every [`TICK_NS`] the controller reads the counts since its last step and
//! compares the late ones with the number allowed. It has one lever: an upper *bound* of D for all
//! flows, below the D that the operator sets or the search tries. With a bound the search is for
//! the least D that is enough for the device's rate at the bound.
//!
//! **Steps.** By chance a count of `n` late requests differs by the square root of `n`. The
//! controller aims at 7/8 of the number allowed. A count that is 1.5 such deviations above it
//! lowers D at once, one that is four below it and next to nothing raises D. After a second one
//! deviation is enough to lower D. When [`ENOUGH`] requests may have been late one deviation is
//! enough in either direction, and less leaves D as it is.
//!
//! **Floor.** All flows except one with a target keep, together, at least its floor: that part of
//! the service to which their weights entitle them. This service is their part of the rate that is
//! measured whenever D has no bound. A step that would leave them less is not made, nor one that
//! leaves all flows together less than the floor of that rate; if they have less, a step is taken
//! back.
//!
//! **A target that cannot be met is given up**, unless the bound helps. No step is left for a flow
//! at the floor, and where D is 1. If more than [`HOPELESS`] times the number allowed are late
//! there, or more than half as many requests as without a bound, something else makes them late:
//! the device alone, or a host whose CPUs have other work. The bound is removed, and tried again
//! [`RETRY_NS`] later. A flow whose requests the policy holds for longer than the device has them
//! is not helped by a smaller D: it needs a larger weight, which is the operator's.
//!
//! **Example.** Weights of 100 each, a flow of depth 1 with a target of 260 us beside four of
//! depth 256 on the P4500; D is found to be 108. A third of its requests are late, so D goes to
//! 88, 72, 59, 48, 39; 1.2 % are, 37; 0.9 %: D stays. When the flow stops for a second D is 108
//! again; when it comes back, 37.
//!
//! **Bounds.** [`SEATS`] flows may have targets. D changes by at most 3/16, or by one, from one
//! interval to the next, except that it has no bound while no flow with a target completes
//! anything, and when targets are given up.

use alloc::boxed::Box;

use super::meter::{LONG_NS, PPM, SECOND_NS, Sum, TICK_NS, per_second};
use super::watch::Count;
use crate::contract::bounds::boxed;
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::share::{Target, TargetState, TargetStats};

/// The most flows with a target.
pub(super) const SEATS: usize = 64;
/// No bound.
const FREE: u32 = u32::MAX;
/// One part in this is the smallest step of D, the weight of a new rate in the recent one, and the
/// difference to a floor that counts. So some fifty intervals decide about a rate: where other
/// programs take the CPUs for some milliseconds at a time, the rates of single intervals differ by
/// half, and a bound that followed them would fall whenever one is above the floor.
const PARTS: u64 = 16;
/// Late requests allowed in a count that is decided: chance moves it by a tenth. More of them take
/// longer, fewer move D by chance; 50 to 200.
const ENOUGH: u64 = 100;
/// A target is given up that is missed by more than this factor at the floor: 4 % for one of the
/// 99th percentile. 2 to 10.
const HOPELESS: u64 = 4;
/// The least time between two attempts to meet a target that was given up, in nanoseconds. An
/// attempt takes a second, in which the other flows may have as little as their floor: a tenth of
/// the time.
const RETRY_NS: u64 = 10_000_000_000;
/// Intervals without a bound before the rate is known that floors are parts of: the memory of a
/// rate many times over, since on a busy host the search for D takes seconds. If D is found, an
/// interval counts as 2 [`PARTS`] of them, so that a flow that comes has its bound after 80 ms.
const KNOWN: u64 = PARTS * PARTS;

/// A step of D, in parts of it: the large one if more than twice as many requests are late as may
/// be, or less than an eighth of that number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Small = 1,
    Large = 3,
}

impl Step {
    /// The step of D, at least one.
    fn of(self, slots: u32) -> u32 {
        (u64::from(slots) * self as u64 / PARTS).max(1) as u32
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
    /// Fewer late requests.
    Faster(Step),
    /// It may have more late requests.
    Slower(Step),
}

/// A flow with a target.
struct Seat {
    flow: FlowId,
    target: Target,
    /// The counts when counting began, at the last interval, and when the second began.
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
    /// The part of its requests that was late while D had no bound, in millionths.
    free_late_ppm: u64,
    /// Recent bytes a second.
    rate: u64,
}

/// The controller, which moves D for targets.
pub(super) struct Targets {
    /// The number and weight of each flow, by slot.
    flows: Box<[Option<(FlowId, Weight)>]>,
    /// All weights, in 256ths.
    total: u64,
    /// On the heap: there are 64, and a kernel module that builds a policy has a stack of 16 KiB.
    seats: Box<[Option<Seat>]>,
    count: usize,
    bound: u32,
    /// Some flow with a target has completed something in the last second.
    is_busy: bool,
    /// Time of the last interval, and the counts then.
    looked: Option<(u64, Sum)>,
    second_ns: u64,
    /// Time when counting begins, or began.
    begins_ns: u64,
    has_begun: bool,
    /// Recent bytes a second of all flows, and those while D has no bound.
    rate: u64,
    full_rate: u64,
    /// Intervals in which the latter was measured without a bound, in parts of one.
    free: u64,
    /// Time when D was bounded last, after it had no bound; and the time until which targets are
    /// given up.
    tried_ns: u64,
    rests_ns: u64,
}

/// A part of `whole` in percent.
fn percent(whole: u64, percent: u64) -> u64 {
    (whole / 100).saturating_mul(percent)
}

fn blend(old: u64, new: u64) -> u64 {
    if old == 0 { new } else { old - old / PARTS + new / PARTS }
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
            tried_ns: 0,
            rests_ns: 0,
        }
    }

    /// Whether a flow has a target.
    pub(super) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// The most that D may be.
    pub(super) fn bound(&self) -> u32 {
        if self.is_busy { self.bound } else { FREE }
    }

    /// Time of the next interval, in nanoseconds.
    pub(super) fn deadline_ns(&self) -> u64 {
        self.looked.map_or(0, |(at_ns, _)| at_ns.saturating_add(TICK_NS))
    }

    // Flows.

    /// Notes a new flow, or a flow's new weight.
    pub(super) fn weigh(&mut self, flow: FlowId, weight: Weight) {
        let Some(entry) = self.flows.get_mut(flow.slot()) else { return };
        let old = entry.replace((flow, weight)).map_or(0, |(_, old)| u64::from(old.in_256ths()));
        self.total = self.total.saturating_sub(old) + u64::from(weight.in_256ths());
    }

    /// Removes a flow; gives whether it had a target.
    pub(super) fn remove(&mut self, flow: FlowId) -> bool {
        let Some(entry) = self.flows.get_mut(flow.slot()) else { return false };
        if let Some((_, weight)) = entry.take_if(|(known, _)| *known == flow) {
            self.total = self.total.saturating_sub(weight.in_256ths().into());
        }
        self.leave(flow)
    }

    fn leave(&mut self, flow: FlowId) -> bool {
        let is_its = |seat: &&mut Option<Seat>| seat.as_ref().is_some_and(|s| s.flow == flow);
        let Some(seat) = self.seats.iter_mut().find(is_its) else { return false };
        *seat = None;
        self.count -= 1;
        if self.count == 0 {
            (self.bound, self.is_busy, self.looked) = (FREE, false, None);
        }
        true
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
        self.count += usize::from(seat.is_none());
        *seat = Some(Seat {
            flow,
            target,
            begun: count,
            looked: count,
            second: count,
            busy_ns: 0,
            last: Count::default(),
            state: TargetState::Idle,
            refused: None,
            free_late_ppm: 0,
            rate: 0,
        });
        (self.has_begun, self.rests_ns) = (false, 0);
        Ok(at)
    }

    /// Takes a flow's target away.
    pub(super) fn clear(&mut self, flow: FlowId) -> Result<(), FlowError> {
        self.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        self.leave(flow);
        Ok(())
    }

    fn weight(&self, flow: FlowId) -> Option<Weight> {
        let known = (*self.flows.get(flow.slot())?)?;
        (known.0 == flow).then_some(known.1)
    }

    /// Statistics of a flow with a target.
    pub(super) fn stats(&self, flow: FlowId) -> Option<TargetStats> {
        let seat = self.seats.iter().flatten().find(|seat| seat.flow == flow)?;
        Some(TargetStats {
            target: seat.target,
            state: seat.state,
            completed: seat.last.done,
            late: seat.last.late,
            weight: self.weight(flow)?,
            bound: Some(self.bound()).filter(|&bound| bound != FREE),
        })
    }

    // Looking.

    /// Reads the counts, and moves the bound if they demand it. `wanted` is the largest D without a
    /// bound; `is_found`: no search for it is under way.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        wanted: u32,
        is_found: bool,
        sum: &Sum,
        count: impl Fn(usize) -> Count,
    ) {
        let Some((before_ns, before)) = self.looked.replace((now_ns, *sum)) else {
            self.second_ns = now_ns;
            return;
        };
        let after_ns = now_ns.saturating_sub(before_ns).max(1);
        let per_second = |bytes: u64| per_second(bytes, after_ns);
        let new = sum.since(&before);
        // Requests on the device have twice their mean time to leave it.
        let settles_ns = (new.spent_ns / new.requests.max(1)).saturating_mul(2).min(LONG_NS);
        self.note_rates(per_second(new.bytes), wanted, is_found);
        let was_busy = core::mem::take(&mut self.is_busy);
        let is_second = now_ns.saturating_sub(self.second_ns) >= SECOND_NS;
        let starts = !self.has_begun && now_ns >= self.begins_ns.max(self.rests_ns);
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
            (self.has_begun, self.begins_ns) = (false, now_ns);
        }
        if !self.is_busy || !self.has_begun {
            return;
        }
        // Little's law: the mean number of requests on the device. D may be far above it.
        let reached = new.spent_ns / after_ns + 1;
        let slots = self.bound.min(wanted).min(u32::try_from(reached).unwrap_or(FREE)).max(1);
        if self.step(now_ns, slots, wanted) {
            (self.has_begun, self.begins_ns) = (false, now_ns.saturating_add(settles_ns));
        }
    }

    fn note_rates(&mut self, rate: u64, wanted: u32, is_found: bool) {
        self.rate = blend(self.rate, rate);
        let is_free = self.bound() >= wanted;
        if !is_free {
            self.full_rate = self.full_rate.max(self.rate);
        } else if rate > 0 {
            self.full_rate = self.rate;
            self.free = self.free.saturating_add(if is_found { 2 * PARTS } else { 1 });
        } else {
            self.free = 0;
        }
    }

    /// Moves the bound if the counts demand it; gives whether counting begins anew.
    fn step(&mut self, now_ns: u64, slots: u32, wanted: u32) -> bool {
        if self.are_others_below() {
            self.raise(Step::Large, wanted);
            return true;
        }
        let age_ns = now_ns.saturating_sub(self.begins_ns);
        let (mut lower, mut slower) = (None, Some(Step::Large));
        let (mut is_needed, mut is_hopeless, mut is_unknown) = (false, false, false);
        for at in 0..SEATS {
            let Some(Some(seat)) = self.seats.get_mut(at) else { continue };
            let wish = seat.wish(now_ns, age_ns);
            let count = seat.looked.since(&seat.begun);
            let late_ppm = count.late.saturating_mul(PPM) / count.done.max(1);
            if self.bound == FREE && matches!(wish, Wish::Faster(_)) {
                seat.free_late_ppm = late_ppm;
            }
            let free_late_ppm = seat.free_late_ppm;
            let (late, allowed) = seat.late(&count);
            let is_far = late > allowed.saturating_mul(HOPELESS);
            // The rate by which a step may be refused is an estimate at first.
            let is_sure = self.bound != FREE && age_ns >= LONG_NS;
            match wish {
                Wish::Idle => {}
                // All flows share D, so it is raised only if no flow may need it as it is.
                Wish::Unknown | Wish::Stay => {
                    (slower, is_needed) = (None, true);
                    is_unknown |= wish == Wish::Unknown;
                }
                Wish::Slower(step) => slower = slower.map(|least: Step| least.min(step)),
                Wish::Faster(step) => {
                    slower = None;
                    let is_held = count.held_ns > count.spent_ns;
                    if is_held {
                        seat.refused = Some(TargetState::Spent);
                    }
                    if !is_held && self.may_lower(at, slots, step) {
                        lower = lower.max(Some(step));
                    } else if is_sure && (is_far || late_ppm > free_late_ppm / 2) {
                        is_hopeless = true;
                    } else {
                        is_needed = true;
                    }
                }
            }
        }
        match (lower, slower) {
            (Some(step), _) => {
                if self.bound == FREE {
                    self.tried_ns = now_ns;
                }
                self.bound = slots.saturating_sub(step.of(slots)).max(1);
                // An estimate of the rate for the next interval, until it is measured.
                self.rate = Self::less(self.rate, slots, step);
                true
            }
            (None, _) if is_hopeless && !is_needed => {
                self.give_up();
                true
            }
            (None, Some(step)) => {
                self.raise(step, wanted);
                true
            }
            // A flow that has too few requests for its count keeps it.
            (None, None) => age_ns >= SECOND_NS && !is_unknown,
        }
    }

    /// Removes the bound, which does not help, for some time.
    fn give_up(&mut self) {
        (self.bound, self.rests_ns) = (FREE, self.tried_ns.saturating_add(RETRY_NS));
        for seat in self.seats.iter_mut().flatten() {
            seat.refused = seat.refused.map(|_| TargetState::Device);
        }
    }

    /// Bytes a second that weights give all flows except this one while D has no bound.
    fn entitled(&self, seat: &Seat) -> u64 {
        let own = self.weight(seat.flow).map_or(0, |weight| u64::from(weight.in_256ths()));
        let part = (u128::from(self.full_rate) * u128::from(self.total.saturating_sub(own)))
            / u128::from(self.total.max(1));
        part as u64
    }

    /// Whether the others of some flow have less than its floor while D has a bound.
    fn are_others_below(&self) -> bool {
        self.bound != FREE
            && self.seats.iter().flatten().any(|seat| {
                let floor = percent(self.entitled(seat), seat.target.floor_percent().into());
                let others = self.rate.saturating_sub(seat.rate);
                others + others / PARTS < floor
            })
    }

    /// The least rate that is left when D goes a step down.
    fn less(rate: u64, slots: u32, step: Step) -> u64 {
        rate.saturating_sub(rate / u64::from(slots.max(1)) * u64::from(step.of(slots)))
    }

    /// Whether D may be lowered by this step for the flow in this seat.
    fn may_lower(&mut self, at: usize, slots: u32, step: Step) -> bool {
        let Some(Some(seat)) = self.seats.get(at) else { return false };
        let floor_percent = u64::from(seat.target.floor_percent());
        let less = |rate| Self::less(rate, slots, step);
        let others = less(self.rate.saturating_sub(seat.rate));
        // Without a rate that was measured at a free D no floor is known.
        let refused = if self.free < KNOWN {
            Some(TargetState::Missed)
        } else if slots == 1 {
            Some(TargetState::Spent)
        } else if others < percent(self.entitled(seat), floor_percent)
            || less(self.rate) < percent(self.full_rate, floor_percent)
        {
            Some(TargetState::Floor)
        } else {
            None
        };
        if let Some(Some(seat)) = self.seats.get_mut(at) {
            seat.refused = refused;
        }
        refused.is_none()
    }

    /// Takes a step of D back.
    fn raise(&mut self, step: Step, wanted: u32) {
        let more = self.bound.saturating_add(step.of(self.bound));
        // An estimate, until it is measured.
        let rate = self.rate.saturating_add(self.rate - Self::less(self.rate, self.bound, step));
        self.rate = rate.min(self.full_rate.max(self.rate));
        self.bound = if more >= wanted { FREE } else { more };
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
        let (late, allowed) = self.late(&self.last);
        self.state = match self.refused {
            _ if self.last.done == 0 => TargetState::Idle,
            _ if late <= allowed => TargetState::Met,
            Some(why) => why,
            None => TargetState::Missed,
        };
        if self.state == TargetState::Met {
            self.refused = None;
        }
    }

    /// The late requests of a count, and those allowed, in parts of a request.
    fn late(&self, count: &Count) -> (u64, u64) {
        let allowed =
            u128::from(count.done) * u128::from(self.target.late_ppm()) * u128::from(PARTS);
        let allowed = u64::try_from(allowed / u128::from(PPM)).unwrap_or(u64::MAX);
        (count.late.saturating_mul(PARTS), allowed)
    }

    /// The step that its counts of `age_ns` demand.
    fn wish(&self, now_ns: u64, age_ns: u64) -> Wish {
        if now_ns.saturating_sub(self.busy_ns) >= SECOND_NS {
            return Wish::Idle;
        }
        let (late, allowed) = self.late(&self.looked.since(&self.begun));
        let aim = allowed - allowed / PARTS * 2;
        let apart = late.abs_diff(aim);
        // Of `n` parts: `n / PARTS` requests, whose root is in requests.
        let chance = late.max(allowed).saturating_mul(PARTS).isqrt().max(1);
        let is_clear = apart >= chance.saturating_add(chance / 2);
        let is_all = allowed >= ENOUGH * PARTS;
        // D is raised with more evidence than it is lowered, so that more requests than may be are
        // late for a short time only.
        let is_idle = late < allowed / PARTS * 2 && apart / 2 >= chance * 2;
        match () {
            () if late > aim && is_clear && late > allowed.saturating_mul(2) => {
                Wish::Faster(Step::Large)
            }
            () if late > aim && (is_clear || age_ns >= SECOND_NS && apart >= chance) => {
                Wish::Faster(Step::Small)
            }
            () if is_idle => Wish::Slower(Step::Large),
            () if !is_all => Wish::Unknown,
            () if apart < chance => Wish::Stay,
            () if late > aim => Wish::Faster(Step::Small),
            () => Wish::Slower(Step::Small),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
