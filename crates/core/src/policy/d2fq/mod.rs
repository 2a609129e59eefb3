//! `d2fq`: device-direct fair queueing (Woo, Ahn, Lee and Jeong, USENIX FAST 2021).
//!
//! **Problem.** Fair queueing on the host holds requests back, sorts them and wakes their ports
//! later. For a device of a million requests per second that costs more CPU than the requests
//! themselves.
//!
//! **Model.** An NVMe controller with weighted round robin serves three classes of submission
//! queues at three speeds. A flow's *virtual time* is its service divided by its weight; one unit
//! is a byte at weight 100 ([`crate::contract::vtime`]). *Global virtual time* (gvt) is the least
//! virtual time of all active flows. A flow behind or near gvt uses the high class, a flow ahead by
//! tau_m the medium, and a flow ahead by tau_l the low class (Eq. 1). Submit is dispatch: nothing
//! is staged, no port waits for another. Virtual time is charged at completion.
//!
//! **Control.** Once a period the *H/L ratio*, the speed of the high class relative to the low one,
//! is adapted to the flows' needs (`ratio`); [`Policy::class_weights`] returns the weights for the
//! device.
//!
//! **Guarantees.** There is no bound on unfairness over short times (the paper has none either);
//! over longer times two backlogged flows stay within about tau_w of each other in virtual time
//! once the ratio has adapted, **if** the device schedules: its queues must be backed up behind a
//! window of commands that it works on, and the ratio needed must be at most 256:1. At all times
//! active flows are within a span of each other (below), so their virtual times compare.
//!
//! **Worked example.** Flows a (weight 300) and b (weight 100) both send 4 KiB reads, many at a
//! time; tau_l = 8 MiB. Both begin in the high class, each is served half, and b's virtual time
//! runs three times as fast. After 12 MiB each, b is at 12 Mi units and a at 4 Mi: b is 8 MiB ahead
//! and its requests go to the low class. With a ratio of 3 that is the right speed for b. With 256
//! it is too slow: b falls back below tau_l, and goes to and fro between the classes.
//!
//! **Flows that want less than their share** do not hold gvt back: no flow is ahead of gvt by more
//! than its span, `SPANS` (2) times tau_w (`Shared::bound`, `gvt`).
//!
//! **Bounds.** A verb reads and writes the words of one flow and of gvt, and 64 other flows' if it
//! searches for the least (`Shared::survey`). A `tick` reads each flow's virtual time, and once a
//! period 7 more words a flow and 8 for each seat of each port; it holds no lock that a verb takes.
//!
//! **Knobs.** [`D2fqConfig`]. docs/decisions/0008 and `decisions.md` beside this file list the
//! points that the paper leaves open and the differences from the paper. "Decision 3" in a comment
//! is row 3 of `decisions.md`. Memory ordering is argued in `gvt` and `activity`; usage statistics
//! are single-writer words, Relaxed.

#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod activity;
mod config;
mod gvt;
#[cfg(all(test, loom))]
mod models;
mod port;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod ratio;
#[cfg(all(test, not(loom)))]
mod tests;
mod tracker;
mod urgent;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use config::{D2fqConfig, Ratio};
pub use port::D2fqPort;

use crate::contract::bounds::{ConfigError, boxed, granted, room};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{ClassWeights, Policy, Stats};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{STAMP_BITS, VTime};
use crate::structures::flow_table::FlowTable;
use activity::{Activity, FlowState};
use gvt::{Holder, KIU};
use port::{Usage, name, units};
use ratio::Sample;
use tracker::Tracker;
use urgent::Budget;

/// tau_l is at least this many times the units that a flow has in flight. Virtual time moves at
/// completion, so a change of class shows in it only when all requests that were in flight are
/// done. A threshold within a few times that distance makes flows oscillate around it, and the
/// ratio with them: in `tests/d2fq`, with 8 flows on two ports, 256 requests in flight each,
/// factors 1 and 3 leave the ratio between 3 and 15 and shares wrong by up to a quarter; at 6 the
/// ratio converges to 17.
const DEPTHS: u64 = 8;

/// Thresholds are halved at most this many times: the default tau_l is then 64 KiB.
const SCALE_MAX: u64 = 7;

/// Thresholds are halved until all flows together are served tau_l units in one part in this many
/// of a period. The paper's device serves them in 1/400.
const PERIOD_PARTS: u64 = 128;

/// A flow may be ahead of global virtual time by this many times tau_w. The factor is more than 1,
/// so that Eq. 2 sees unfairness before that is forgiven. It is not more than 2, because debt that
/// is not forgiven is paid back at the other flows' cost: at 4 times the lightest flow of Figure
/// 11c is 8 % short for seconds.
const SPANS: u64 = 2;

/// The most units that one publication charges: 11 GB at weight 1. `gvt` gives the reason for these
/// three bounds.
const CHARGE_MAX: u64 = 1 << 40;
/// The most units by which a flow's tau_l grows with its requests in flight.
const REACH_MAX: u64 = 1 << 44;
/// The largest span in units: that of the largest reach.
const SPAN_MAX: u64 = 2 * SPANS * REACH_MAX;

/// Slots in one part of a survey of all flows, and the least time between two parts, in
/// nanoseconds.
const SURVEY_FLOWS: usize = 64;
const SURVEY_NS: u64 = 64_000;
/// Marks that no flow was seen. It is no virtual time: the low bits of virtual times are 0.
const UNSEEN: u64 = 1;
const _: () = assert!(STAMP_BITS > 0);

/// The control side of D2FQ.
pub struct D2fq<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    adjuster: P::Mutex<Adjuster>,
    /// The H/L ratio in force.
    ratio: P::U64,
    /// tau_w, in units.
    unfair: u64,
    period_ns: u64,
    /// Whether the ratio is adjusted.
    is_dynamic: bool,
    /// Whether the thresholds are scaled to the device.
    is_scaled: bool,
}

/// State that all ports share. The words that they read for each request are together, and hardly
/// ever written.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    states: Box<[FlowState<P>]>,
    tracker: CachePadded<Tracker<P>>,
    /// Per port and seat.
    usage: Box<[Box<[Usage<P>]>]>,
    survey: CachePadded<Survey<P>>,
    urgent: Option<CachePadded<Budget<P>>>,
    /// The number of times that all thresholds are halved, up to [`SCALE_MAX`].
    scale: P::U64,
    /// tau_m and tau_l in KiU, and tau_l in units, before they are halved; `batch` and `span` are
    /// halved, too.
    medium: i64,
    low: i64,
    low_units: u64,
    /// The most service that a port leaves unpublished per flow, in units.
    batch: u64,
    /// The longest time for which a port leaves service unpublished, in nanoseconds.
    flush_ns: u64,
    grace_ns: u64,
    /// The most that a flow may be ahead of gvt, in units, without the growth by its requests in
    /// flight.
    span: u64,
}

/// A survey of all flows, of which each verb does a part.
struct Survey<P: Platform> {
    /// The earliest time of the next part, in nanoseconds.
    due_ns: P::U64,
    /// Slots that have been used.
    used: P::U64,
    /// The first slot of the next part.
    next: P::U64,
    /// The least virtual time in the previous parts; [`UNSEEN`] if no flow there was active.
    least: P::U64,
}

impl<P: Platform> Survey<P> {
    fn new() -> Self {
        let [due_ns, used, next] = [(); 3].map(|()| P::U64::new(0));
        Survey { due_ns, used, next, least: P::U64::new(UNSEEN) }
    }
}

/// State that the adjustment of the ratio keeps from period to period.
struct Adjuster {
    /// The end of the last period, in nanoseconds.
    last_ns: Option<u64>,
    /// The most units that were served in a recent period.
    served: u64,
    /// Per flow's slot.
    flows: Box<[Last]>,
    did: Box<[Did]>,
    /// Per port and seat.
    seats: Box<[Box<[LastSeat]>]>,
    /// Requests of the high class on each port in this period.
    high: Box<[u32]>,
    /// Samples of the last period; with room for one of each flow.
    samples: Vec<Sample>,
}

/// A flow at the end of the last period.
#[derive(Clone, Copy)]
struct Last {
    of: Option<(FlowId, Weight)>,
    vt: VTime,
    moved: u64,
    was_active: bool,
}

/// A flow's activity on all ports in the period that ends.
#[derive(Clone, Copy)]
struct Did {
    /// The flow and its weight now, if it is open.
    of: Option<(FlowId, Weight)>,
    /// Requests submitted to each class.
    requests: [u64; 3],
    /// Bytes in flight.
    in_flight: u64,
    /// See [`Sample::waits`].
    waits: bool,
}

/// A seat of a port at the end of the last period: the name of its owner (`port::name`), and its
/// counts.
#[derive(Clone, Copy)]
struct LastSeat {
    owner: u64,
    requests: [u32; 3],
}

impl<P: Platform> D2fq<P> {
    /// The policy and its ports, in the order of the topology.
    pub fn new(config: D2fqConfig) -> Result<(Self, Vec<D2fqPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(config)))
    }

    /// Builds them from a valid configuration.
    fn of(config: D2fqConfig) -> (Self, Vec<D2fqPort<P>>) {
        let (ports, flows) = (config.ports.ports(), config.flows);
        let seats = flows.min(config.tags);
        let budget = || CachePadded::new(Budget::new(config.urgent_percent, config.medium()));
        let shared = Arc::new(Shared {
            flows: FlowTable::new(flows, ports),
            states: boxed(flows, |_| FlowState::new()),
            tracker: CachePadded::new(Tracker::new()),
            usage: boxed(ports, |_| boxed(seats, |_| Usage::new())),
            survey: CachePadded::new(Survey::new()),
            urgent: (config.urgent_percent > 0).then(budget),
            medium: (config.medium() >> KIU) as i64,
            low: (config.low() >> KIU) as i64,
            low_units: config.low(),
            scale: P::U64::new(0),
            // All ports together leave at most an eighth of tau_l unpublished.
            batch: config.low() / (8 * ports as u64).max(64),
            flush_ns: config.period_ns / 64,
            grace_ns: config.grace_ns,
            span: span(config.unfair()),
        });
        let port = |port| D2fqPort::new(PortId(port as u8), config.tags, shared.clone());
        let handles = boxed(ports, port).into_vec();
        let (Ratio::Dynamic { initial: ratio } | Ratio::Static(ratio)) = config.ratio;
        let none = Last { of: None, vt: VTime::ZERO, moved: 0, was_active: false };
        let seat = LastSeat { owner: 0, requests: [0; 3] };
        let adjuster = Adjuster {
            last_ns: None,
            served: 0,
            flows: boxed(flows, |_| none),
            did: boxed(flows, |_| Did::of(None)),
            seats: boxed(ports, |_| boxed(seats, |_| seat)),
            high: boxed(ports, |_| 0),
            samples: room(flows),
        };
        let policy = D2fq {
            adjuster: P::Mutex::new(adjuster),
            ratio: P::U64::new(u64::from(ratio)),
            unfair: config.unfair(),
            period_ns: config.period_ns,
            is_dynamic: matches!(config.ratio, Ratio::Dynamic { .. }),
            is_scaled: config.tau_l.is_none(),
            shared,
        };
        (policy, handles)
    }

    fn ratio(&self) -> u16 {
        self.ratio.load(Ordering::Relaxed) as u16
    }
}

/// The span for a tau_w of `unfair`: the most that a flow may be ahead of gvt, in units.
fn span(unfair: u64) -> u64 {
    unfair.saturating_mul(SPANS).min(SPAN_MAX)
}

/// Global virtual time, if `vt` is `ahead` KiU ahead of it.
fn at_gvt(vt: VTime, ahead: i64) -> VTime {
    let units = ahead.unsigned_abs() << KIU;
    if ahead < 0 { vt.plus(units) } else { vt.minus(units) }
}

impl<P: Platform> Policy for D2fq<P> {
    type Port = D2fqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, states, tracker, survey, .. } = &*self.shared;
        flows.add(known, weight, |slot| {
            let Some(state) = states.get(slot) else { return };
            // No port uses the slot yet; the table makes it visible. The new flow does not inherit
            // the old flow's debt.
            let old = state.vt();
            state.reset(at_gvt(old, tracker.gvt.ahead(old)));
            // Only `add` writes `used`, under the table's lock.
            let used = survey.used.load(Ordering::Relaxed).max(slot as u64 + 1);
            survey.used.store(used, Ordering::Relaxed);
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)
    }

    /// A flow's activity in the present period stays valid, because virtual time is charged at the
    /// weight of each moment.
    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.adjuster.with(|adjuster| {
            for &(flow, weight) in weights {
                let old = self.shared.flows.weight(flow);
                if self.shared.flows.set_weight(flow, weight).is_err() {
                    continue;
                }
                let last = adjuster.flows.get_mut(flow.slot());
                // The record gets the new weight only if the last period ended at the old one.
                // Otherwise `set_weight` has changed the weight since then, which begins a new
                // period (decision 11).
                if let Some(of) = last.and_then(|last| last.of.as_mut())
                    && Some(of.1) == old
                    && of.0 == flow
                {
                    of.1 = weight;
                }
            }
        });
    }

    fn set_urgent(&self, flow: FlowId, urgent: bool) -> Result<(), FlowError> {
        let Shared { flows, states, urgent: budget, .. } = &*self.shared;
        if urgent && budget.is_none() {
            return Err(FlowError::NotUrgent);
        }
        flows.weight(flow).ok_or(FlowError::NoSuchFlow)?;
        states.get(flow.slot()).ok_or(FlowError::NoSuchFlow)?.set_urgent(urgent);
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.shared.flows.close(flow)
    }

    fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        self.shared.lift();
        let next = self.adjuster.with(|adjuster| {
            let due_ns = adjuster.last_ns.map_or(0, |last| last.saturating_add(self.period_ns));
            if now_ns < due_ns {
                return due_ns;
            }
            adjuster.sample(&self.shared, now_ns);
            // Until something is served, the device's speed is unknown.
            if self.is_scaled && adjuster.served > 0 {
                self.shared.scale.store(adjuster.scale(self.shared.low_units), Ordering::Relaxed);
            }
            let unfair = self.unfair >> self.shared.scale();
            if self.is_dynamic {
                let (ratio, samples) = (self.ratio(), &adjuster.samples);
                let ratio = ratio::next(ratio, samples, unfair);
                self.ratio.store(u64::from(ratio), Ordering::Relaxed);
            }
            // The next tick is at most a minute away (`D2fqConfig::validate`), so that tags are
            // lifted in time.
            now_ns.saturating_add(self.period_ns)
        });
        Some(next)
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        Some(ratio::class_weights(self.ratio()))
    }

    fn stats(&self) -> Stats {
        let spread = Some(spread(&self.shared.states));
        Stats { virtual_time: Some(self.shared.tracker.gvt.units()), spread, ..Stats::default() }
    }
}

/// The distance from the least to the greatest virtual time of the flows with requests in flight,
/// in units.
fn spread<P: Platform>(states: &[FlowState<P>]) -> u64 {
    let mut times = states.iter().filter(|state| state.activity().ports() > 0).map(FlowState::vt);
    let Some(first) = times.next() else { return 0 };
    let (least, most) = times.fold((0i64, 0i64), |(least, most), vt| {
        let from_first = vt.since(first);
        (least.min(from_first), most.max(from_first))
    });
    most.abs_diff(least)
}

impl Did {
    /// No activity yet.
    fn of(of: Option<(FlowId, Weight)>) -> Did {
        Did { of, requests: [0; 3], in_flight: 0, waits: false }
    }
}

impl Adjuster {
    /// Adds up each flow's activity on the ports after the last period. A flow that has taken
    /// another one's seat counts there from the next period on.
    fn add_up<P: Platform>(&mut self, shared: &Shared<P>) {
        for (slot, did) in self.did.iter_mut().enumerate() {
            *did = Did::of(shared.flows.open_in(slot));
        }
        for (high, (seats, usage)) in self.high.iter_mut().zip(self.seats.iter().zip(&shared.usage))
        {
            let new = |(last, usage): (&LastSeat, &Usage<P>)| {
                usage.requests()[0].wrapping_sub(last.requests[0])
            };
            *high = seats.iter().zip(usage).map(new).fold(0, u32::wrapping_add);
        }
        let most_high = u64::from(self.high.iter().copied().max().unwrap_or(0));
        for (&high, (seats, usage)) in
            self.high.iter().zip(self.seats.iter_mut().zip(&shared.usage))
        {
            // A port counts as the busiest from fifteen sixteenths of the most requests on: queues
            // that are backed up get equally many turns, but not exactly.
            let is_busiest = u64::from(high) * 16 >= most_high * 15;
            for (last, usage) in seats.iter_mut().zip(usage) {
                let now = LastSeat { owner: usage.owner(), requests: usage.requests() };
                let before = core::mem::replace(last, now);
                // The lower half of a name is the slot.
                let did = self.did.get_mut(now.owner as u32 as usize);
                let is_same = |did: &&mut Did| did.of.is_some_and(|of| name(of.0) == now.owner);
                let Some(did) = did.filter(is_same) else { continue };
                let in_flight = usage.in_flight();
                did.in_flight = did.in_flight.wrapping_add(in_flight);
                did.waits |= is_busiest && in_flight > 0;
                // A seat without a previous owner has counted for this flow only.
                if before.owner == now.owner || before.owner == 0 {
                    for (sum, class) in did.requests.iter_mut().zip(0..) {
                        let class: usize = class;
                        *sum += u64::from(now.requests[class].wrapping_sub(before.requests[class]));
                    }
                }
            }
        }
    }

    /// Fills `samples` with each flow's activity after the last period.
    fn sample<P: Platform>(&mut self, shared: &Shared<P>, now_ns: u64) {
        self.samples.clear();
        self.last_ns = Some(now_ns);
        // The recent maximum decays, so that thresholds follow a device that has become slower.
        self.served /= 2;
        self.add_up(shared);
        let mut served = 0u64;
        for ((last, did), state) in self.flows.iter_mut().zip(&self.did).zip(shared.states.iter()) {
            let Did { of, requests, in_flight, waits } = *did;
            if of.is_none() && last.of.is_none() {
                continue;
            }
            let was_active = state.activity().is_active(now_ns, shared.grace_ns);
            let now = Last { of, vt: state.vt(), moved: state.moved(), was_active };
            let before = core::mem::replace(last, now);
            state.halve_reach();
            // A new flow, or one of another weight, or one that came back, counts from the next
            // period on.
            let Some((_, weight)) = of.filter(|_| of == before.of) else { continue };
            if was_active {
                let shifted = now.moved.wrapping_sub(before.moved) as i64;
                let progress = now.vt.since(before.vt).saturating_sub(shifted);
                // Two words are read one after the other: a flow that is moved in between may seem
                // to go back.
                let progress = u64::try_from(progress).unwrap_or(0);
                served = served.saturating_add(progress);
                if !before.was_active {
                    continue;
                }
                let in_flight = units(in_flight, weight);
                self.samples.push(Sample { vt: now.vt, progress, waits, requests, in_flight });
            }
        }
        self.served = self.served.max(served);
    }

    /// The number of times to halve the thresholds, of which tau_l is `low` units.
    fn scale(&self, low: u64) -> u64 {
        (0..SCALE_MAX)
            .find(|&scale| low >> scale <= self.served / PERIOD_PARTS)
            .unwrap_or(SCALE_MAX)
    }
}

impl<P: Platform> Shared<P> {
    /// Searches for the least of all flows, because no flow holds gvt: surveys a part of them, if
    /// that is due.
    ///
    /// The port that moves `due_ns` has the other words for itself, unless it is suspended for
    /// longer than a part may take: then gvt may be raised to a flow that is not the least, but
    /// still to some flow's virtual time. So all words are accessed with Relaxed.
    #[cold]
    fn survey(&self, now_ns: u64) {
        let Survey { due_ns, used, next, least } = &*self.survey;
        let due = due_ns.load(Ordering::Relaxed);
        let then = now_ns.saturating_add(SURVEY_NS);
        if now_ns < due
            || due_ns.compare_exchange(due, then, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let [from, used] = [next, used].map(|word| word.load(Ordering::Relaxed) as usize);
        let to = from.saturating_add(SURVEY_FLOWS).min(used);
        let seen = Some(least.load(Ordering::Relaxed)).filter(|&seen| seen != UNSEEN);
        let part = tracker::least(self.states.get(from..to).unwrap_or(&[]), now_ns, self.grace_ns);
        let both = seen.map(VTime::from_word).into_iter().chain(part).reduce(VTime::min);
        if to < used {
            next.store(to as u64, Ordering::Relaxed);
            least.store(both.map_or(UNSEEN, VTime::to_word), Ordering::Relaxed);
            return;
        }
        next.store(0, Ordering::Relaxed);
        least.store(UNSEEN, Ordering::Relaxed);
        if let Some(least) = both {
            self.tracker.gvt.raise_unheld(least);
        }
    }

    /// Updates the virtual time of a flow that comes back after it had nothing in flight on any
    /// port; the flow is `ahead` KiU ahead of gvt.
    fn reactivate(&self, state: &FlowState<P>, was: Activity, ahead: i64, now_ns: u64) {
        // Idling does not erase debt (decision 5).
        if !was.is_active(now_ns, self.grace_ns) && ahead < 0 {
            let before = state.vt();
            state.shift(|vt| (vt == before).then(|| at_gvt(vt, ahead)));
        }
    }

    /// Bounds a flow whose virtual time is now `after`: no flow is farther ahead of gvt than its
    /// span, and none is before the floor. Returns its virtual time. `in_flight` computes its units
    /// in flight.
    #[inline]
    fn bound(&self, state: &FlowState<P>, after: VTime, in_flight: impl FnOnce() -> u64) -> VTime {
        let floor = self.tracker.floor();
        let above = after.since(floor);
        if above < 0 {
            state.lift(floor);
            return floor;
        }
        if above as u64 > self.span >> self.scale() {
            self.pull(state, after, in_flight());
        }
        after
    }

    /// Raises gvt, and with it the flows that are left behind, because this flow is far ahead.
    #[cold]
    fn pull(&self, state: &FlowState<P>, after: VTime, in_flight: u64) {
        let reach = state.reach(in_flight.saturating_mul(DEPTHS).min(REACH_MAX));
        // The span is that of a tau_w of twice the reach, as in `ratio::unfair`.
        let span = (self.span >> self.scale()).max(span(2 * reach));
        self.tracker.raise(after.minus(span));
    }

    /// Updates gvt after a flow's virtual time has been published.
    #[inline]
    fn moved(&self, me: Holder, before: VTime, after: VTime, now_ns: u64) {
        if !self.tracker.gvt.update(me, before, after) {
            self.survey(now_ns);
        }
        self.tracker.follow();
    }

    /// Lifts flows that have not published after the floor passed them, or are idle, to the floor,
    /// so that no flow leaves the window in which virtual times compare.
    fn lift(&self) {
        let floor = self.tracker.floor();
        self.states.iter().filter(|state| state.vt().is_before(floor)).for_each(|state| {
            state.lift(floor);
        });
    }
}
