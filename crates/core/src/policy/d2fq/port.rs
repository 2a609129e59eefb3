//! One port of D2FQ: the verbs.
//!
//! A flow's record on a port is one cache line that no other port accesses: its cost in flight, its
//! cost completed but not published, its requests submitted to each class. [`Local::publish`]
//! publishes it. Records lie in the seats of [`PortFlows`], so a port has at most as many records
//! as tags, for any number of flows.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::activity::FlowState;
use super::gvt::{Holder, KIU};
use super::{CHARGE_MAX, DEPTHS, REACH_MAX, Shared};
use crate::contract::bounds::{boxed, zeroes};
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Native, Ordering, Platform};
use crate::contract::port::{
    Class, Cost, FlowStats, Growth, Next, Outcome, Port, Reason, Request, SubmitError, Submitted,
    Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{Normalizer, UNITS};
use crate::structures::port_flows::PortFlows;

/// One shard's port of D2FQ.
pub struct D2fqPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    local: Local,
}

/// The state of one port.
struct Local {
    port: PortId,
    /// The flows of this port, each with the total cost of its requests submitted here, in bytes.
    account: PortFlows<u64>,
    /// Per tag: cost less 1 in the upper 48 bits, its flow's seat plus 1 in the lower 16; 0 where
    /// the tag is not in use.
    live: Box<[u64]>,
    /// Per seat.
    flows: Box<[PortFlow]>,
}

const SEAT_BITS: u32 = 16;

/// A flow on one port.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PortFlow {
    /// Cost of completed requests that are not charged yet, in bytes.
    pending: u64,
    /// Cost of the requests in flight, in bytes.
    in_flight: u64,
    /// Time of the last publication, in nanoseconds.
    published_ns: u64,
    normalizer: Normalizer,
    /// Requests submitted to the high (and urgent), medium and low class, wrapping.
    requests: [u32; 3],
    /// The flow of the record.
    owner: FlowId,
    /// The weight at which `pending` is charged.
    weight: Weight,
}

/// A request accesses one line of its port's memory for its flow.
const _: () = assert!(size_of::<PortFlow>() == 64);

const UNUSED: PortFlow = PortFlow {
    pending: 0,
    in_flight: 0,
    published_ns: 0,
    normalizer: Normalizer::NEW,
    requests: [0; 3],
    // No flow: generations begin at 1.
    owner: FlowId::new(0, 0),
    weight: Weight::DEFAULT,
};

impl<P: Platform> D2fqPort<P> {
    pub(super) fn new(port: PortId, tags: usize, shared: Arc<Shared<P>>) -> Self {
        let account = PortFlows::new(port, &shared.flows, tags);
        let seats = account.seats();
        let local = Local { port, account, live: zeroes(tags), flows: boxed(seats, |_| UNUSED) };
        D2fqPort { shared, local }
    }
}

impl<P: Platform> Port for D2fqPort<P> {
    const IS_DIRECT: bool = true;

    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let class = self.local.submit(&self.shared, now_ns, request)?;
        Ok(Submitted::Issue { class })
    }

    #[inline]
    fn next(&mut self, _now_ns: u64, wake: &mut PortSet) -> Next {
        self.local.account.poll(&self.shared.flows, wake);
        Next::Idle
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, _outcome: Outcome, _wake: &mut PortSet) -> bool {
        let D2fqPort { shared, local } = self;
        local.complete(shared, now_ns, tag).is_some()
            || local.account.complete_ahead(&shared.flows, tag)
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.local.account.has_room(&self.shared.flows, flow)
    }

    /// Only a held request can be cancelled, because nothing is ever staged.
    fn cancel(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        self.local.account.cancel_held(&self.shared.flows, tag)
    }

    fn expedite(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        self.local.account.expedite_held(tag)
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        let D2fqPort { shared, local } = self;
        if local.live.get(tag.0 as usize) != Some(&0) {
            return Err(SubmitError::BadTag);
        }
        local.account.hold(&shared.flows, flow, tag, |_, _| ())
    }

    /// The class of the request is chosen anew. It is never the urgent class, because the credit of
    /// an urgent request is spent already.
    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let D2fqPort { shared, local } = self;
        let ahead = local.account.is_ahead(tag).then_some(Class::Medium);
        let class = local.class_again(shared, tag).or(ahead)?;
        Some(Submitted::Issue { class })
    }

    /// Nothing is ever staged.
    fn grow(&mut self, _now_ns: u64, _tag: Tag, _growth: &Growth, _wake: &mut PortSet) -> bool {
        false
    }

    fn has_work(&self) -> bool {
        self.local.account.has_closings(&self.shared.flows)
    }

    fn staged(&self, _flow: FlowId) -> Option<Tag> {
        None
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let account = &self.local.account;
        let Some(seat) = account.seat(flow) else { return FlowStats::default() };
        let service = account.kept(seat).copied();
        FlowStats { in_flight: account.all(seat), service, ..FlowStats::default() }
    }

    fn barrier(&mut self, _flow: FlowId) {}

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let owner = tag.and_then(|tag| self.local.owner(tag));
        let state = owner.and_then(|flow| self.shared.states.get(flow.slot()));
        Reason {
            virtual_time: Some(self.shared.tracker.gvt.units()),
            start_tag: state.map(|state| state.vt().units()),
            ..Reason::default()
        }
    }
}

impl Local {
    #[inline]
    fn submit<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        now_ns: u64,
        request: &Request,
    ) -> Result<Class, SubmitError> {
        let tag = request.tag.0 as usize;
        if self.live.get(tag).is_none_or(|&live| live != 0) {
            return Err(SubmitError::BadTag);
        }
        let (weight, seat) =
            self.account.admit(&shared.flows, request.flow, request.tag, |_, _| ())?;
        if self.account.live(seat) == 1 {
            self.activate(shared, request.flow, seat, now_ns);
        }
        // The cost is 1 to 2^42, so that the cost less 1 fits into 48 bits of the tag's word.
        let cost = request.cost.alone.clamp(1, Cost::MAX);
        if let Some(live) = self.live.get_mut(tag) {
            *live = cost.wrapping_sub(1) << SEAT_BITS | (seat as u64).wrapping_add(1);
        }
        let state = shared.states.get(request.flow.slot());
        // Both arrays were built for all seats and slots, so this does not fail.
        let (Some(flow), Some(state)) = (self.flows.get_mut(seat), state) else {
            return Err(SubmitError::NoSuchFlow);
        };
        let ahead = shared.tracker.gvt.ahead(state.vt());
        let mut class = shared.class(ahead, flow.in_flight, state, weight);
        if let (Class::High, Some(budget)) = (class, &shared.urgent)
            && state.is_urgent()
            // This is the last condition, because it takes the credit.
            && budget.spend(cost)
        {
            class = Class::Urgent;
        }
        flow.in_flight = flow.in_flight.wrapping_add(cost);
        flow.count(class);
        if let Some(service) = self.account.kept_mut(seat) {
            *service = service.wrapping_add(cost);
        }
        Ok(class)
    }

    /// The flow of a live tag.
    fn owner(&self, tag: Tag) -> Option<FlowId> {
        let (seat, _) = unpack(*self.live.get(tag.0 as usize)?)?;
        self.flows.get(seat).map(|flow| flow.owner)
    }

    /// The class of a request that the device has not begun and that is issued again. The request
    /// is charged when it completes.
    fn class_again<P: Platform>(&mut self, shared: &Shared<P>, tag: Tag) -> Option<Class> {
        let (seat, cost) = unpack(*self.live.get(tag.0 as usize)?)?;
        let flow = self.flows.get_mut(seat)?;
        let slot = flow.owner.slot();
        let (state, weight) = (shared.states.get(slot)?, shared.flows.weight_in(slot));
        // The request itself has been in flight all the time, so only the others count.
        let others = flow.in_flight.wrapping_sub(cost);
        let class = shared.class(shared.tracker.gvt.ahead(state.vt()), others, state, weight);
        flow.count(class);
        Some(class)
    }

    /// Completes a request; `None` if the tag is free.
    #[inline]
    fn complete<P: Platform>(&mut self, shared: &Shared<P>, now_ns: u64, tag: Tag) -> Option<()> {
        let live = self.live.get_mut(tag.0 as usize)?;
        let (seat, cost) = unpack(core::mem::take(live))?;
        let flow = self.flows.get_mut(seat)?;
        let weight = shared.flows.weight_in(flow.owner.slot());
        if flow.weight != weight {
            self.reweigh(shared, seat, weight, now_ns);
        }
        let last = self.account.live(seat) == 1;
        let flow = self.flows.get_mut(seat)?;
        flow.pending = flow.pending.wrapping_add(cost);
        flow.in_flight = flow.in_flight.wrapping_sub(cost);
        let batch = u64::from(weight.in_256ths()).wrapping_mul(shared.batch >> shared.scale());
        let due_ns = flow.published_ns.wrapping_add(shared.flush_ns);
        // Both sides are multiplied by the weight, which saves each completion a division.
        if last || flow.pending.wrapping_mul(UNITS) >= batch || now_ns >= due_ns {
            self.publish(shared, seat, last, now_ns);
        }
        // This comes last, because another flow may take the seat after it.
        self.account.finish(&shared.flows, seat);
        Some(())
    }

    /// Registers a flow that has requests here again.
    #[cold]
    fn activate<P: Platform>(&mut self, shared: &Shared<P>, id: FlowId, seat: usize, now_ns: u64) {
        let state = shared.states.get(id.slot());
        let (Some(flow), Some(state)) = (self.flows.get_mut(seat), state) else { return };
        if flow.owner != id {
            flow.owner = id;
            flow.normalizer = Normalizer::NEW;
            if let Some(usage) = shared.usage(self.port, seat) {
                usage.change_hands(id);
            }
        }
        flow.published_ns = now_ns;
        // The distance is read before the flow itself counts as active.
        let ahead = shared.tracker.gvt.ahead(state.vt());
        if let Some(was) = state.enter(now_ns) {
            shared.reactivate(state, was, ahead, now_ns);
        }
    }

    /// Charges requests that completed before a change of weight at the old weight (decision 11).
    #[cold]
    fn reweigh<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        seat: usize,
        weight: Weight,
        now_ns: u64,
    ) {
        if self.flows.get(seat).is_some_and(|flow| flow.pending > 0) {
            self.publish(shared, seat, false, now_ns);
        }
        if let Some(flow) = self.flows.get_mut(seat) {
            flow.weight = weight;
        }
    }

    /// Charges the flow for requests completed here, publishes its activity, and moves global
    /// virtual time. `last`: the flow has nothing in flight here from now on.
    #[inline(never)]
    fn publish<P: Platform>(&mut self, shared: &Shared<P>, seat: usize, last: bool, now_ns: u64) {
        let Some(flow) = self.flows.get_mut(seat) else { return };
        let slot = flow.owner.slot();
        let Some(state) = shared.states.get(slot) else { return };
        // A larger charge could leave the window in which virtual times compare (`gvt`).
        let units = flow.normalizer.units(flow.pending, flow.weight).min(CHARGE_MAX);
        let before = state.charge(units);
        let own = || in_flight_units(flow.in_flight.wrapping_add(flow.pending), state, flow.weight);
        let after = shared.bound(state, before.plus(units), own);
        if let Some(budget) = &shared.urgent {
            budget.earn(flow.pending);
        }
        flow.pending = 0;
        flow.published_ns = now_ns;
        if let Some(usage) = shared.usage(self.port, seat) {
            usage.show(flow.requests, flow.in_flight);
        }
        let holder = Holder::new(slot, flow.owner.generation());
        shared.moved(holder, before, after, now_ns);
        // A port leaves after it has swapped the word, so that the port that takes the count to 0
        // has seen all swaps (`gvt`).
        if last && state.leave(now_ns) {
            shared.tracker.gvt.release(holder);
        }
    }
}

impl PortFlow {
    /// Counts a request that goes to a class.
    #[inline]
    fn count(&mut self, class: Class) {
        let [high, medium, low] = &mut self.requests;
        let requests = match class {
            Class::Urgent | Class::High => high,
            Class::Medium => medium,
            Class::Low => low,
        };
        *requests = requests.wrapping_add(1);
    }
}

/// The seat and the cost of a live tag, from its word.
#[inline]
fn unpack(live: u64) -> Option<(usize, u64)> {
    let seat = (live as usize & 0xffff).checked_sub(1)?;
    Some((seat, (live >> SEAT_BITS).wrapping_add(1)))
}

/// Bytes at a weight, in units.
#[inline]
pub(super) fn units(bytes: u64, weight: Weight) -> u64 {
    bytes.saturating_mul(UNITS) / u64::from(weight.in_256ths()).max(1)
}

/// The estimated units that a flow has in flight on all ports together, if it has `bytes` on one of
/// them.
fn in_flight_units<P: Platform>(bytes: u64, state: &FlowState<P>, weight: Weight) -> u64 {
    units(bytes.saturating_mul(state.activity().ports()), weight)
}

/// The activity of the flow in a seat of a port, for the adjustment of the ratio. Written by that
/// port alone; the counts belong to the seat, and go on when another flow takes it.
pub(super) struct Usage<P: Platform> {
    /// The flow, as [`name`] encodes it; 0: none yet.
    owner: P::U64,
    requests: [P::U64; 3],
    in_flight: P::U64,
}

/// A flow in a word; never 0, since generations begin at 1.
pub(super) fn name(flow: FlowId) -> u64 {
    u64::from(flow.generation()) << 32 | flow.slot() as u64
}

impl<P: Platform> Usage<P> {
    pub(super) fn new() -> Self {
        let zero = || P::U64::new(0);
        Usage { owner: zero(), requests: core::array::from_fn(|_| zero()), in_flight: zero() }
    }

    /// Gives the seat to this flow, which has published nothing here.
    fn change_hands(&self, flow: FlowId) {
        self.in_flight.store(0, Ordering::Relaxed);
        self.owner.store(name(flow), Ordering::Relaxed);
    }

    /// Publishes the requests submitted to each class and the bytes in flight.
    fn show(&self, requests: [u32; 3], in_flight: u64) {
        for (word, requests) in self.requests.iter().zip(requests) {
            word.store(u64::from(requests), Ordering::Relaxed);
        }
        self.in_flight.store(in_flight, Ordering::Relaxed);
    }

    /// The flow in the seat, as [`name`] encodes it; 0: none yet.
    pub(super) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// The requests submitted to each class, wrapping.
    pub(super) fn requests(&self) -> [u32; 3] {
        [0, 1, 2].map(|class: usize| {
            self.requests.get(class).map_or(0, |word| word.load(Ordering::Relaxed) as u32)
        })
    }

    /// Bytes in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl<P: Platform> Shared<P> {
    /// The activity of the flow in a seat of a port.
    fn usage(&self, port: PortId, seat: usize) -> Option<&Usage<P>> {
        self.usage.get(usize::from(port.0))?.get(seat)
    }

    /// The number of times that all thresholds are halved.
    #[inline]
    pub(super) fn scale(&self) -> u32 {
        // The value is at most 7; the mask shows this to the compiler.
        self.scale.load(Ordering::Relaxed) as u32 & 7
    }

    /// Eq. 1, for a flow with `in_flight` bytes in flight on this port.
    #[inline]
    fn class(&self, ahead: i64, in_flight: u64, state: &FlowState<P>, weight: Weight) -> Class {
        let scale = self.scale();
        // Doubling the distance has the effect of halving all thresholds.
        let ahead = ahead << scale;
        if ahead < self.medium {
            return Class::High;
        }
        // This is the estimate for all ports together. It is seldom more than tau_l, so only that
        // case takes a division.
        let own = in_flight.saturating_mul(state.activity().ports().wrapping_mul(DEPTHS << scale));
        if own.saturating_mul(UNITS) > self.low_units.wrapping_mul(weight.in_256ths().into()) {
            let low = units(own, weight).min(REACH_MAX << scale);
            return self.class_of_deep(ahead, (low >> KIU) as i64);
        }
        if ahead < self.low { Class::Medium } else { Class::Low }
    }

    /// Eq. 1 for a flow that has so much in flight that its thresholds grow with it.
    #[cold]
    fn class_of_deep(&self, ahead: i64, low: i64) -> Class {
        // 16 bits after the point are exact enough.
        let share = (self.medium << 16) / self.low.max(1);
        let medium =
            (low >> 16).wrapping_mul(share).wrapping_add((low & 0xffff).wrapping_mul(share) >> 16);
        if ahead < medium {
            Class::High
        } else if ahead < low {
            Class::Medium
        } else {
            Class::Low
        }
    }
}
