//! One port of D2FQ: the three verbs.
//!
//! A flow's record on a port is one cache line that nobody else touches: what it has in flight,
//! what has been completed but not published, what it submitted to each class. [`Local::publish`]
//! writes it where others see it.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::activity::FlowState;
use super::gvt::{Holder, KIU};
use super::tracker::{Leads, Way};
use super::{CHARGE_MAX, DEPTHS, REACH_MAX, Shared};
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Native, Ordering, Platform};
use crate::contract::port::{
    Class, Next, Outcome, Port, Reason, Request, SubmitError, Submitted, Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{Normalizer, VTime};
use crate::structures::flow_table::PortFlows;

/// One shard's port of D2FQ.
pub struct D2fqPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    local: Local,
}

/// What belongs to one port alone.
struct Local {
    port: PortId,
    account: PortFlows,
    /// Per tag: cost less 1 in the upper 48 bits, slot plus 1 in the lower 16; 0 where the tag is
    /// not in use.
    live: Box<[u64]>,
    flows: Box<[PortFlow]>,
    /// For the mindicator.
    leads: Option<Box<Leads>>,
}

const SLOT_BITS: u32 = 16;
/// Bytes per block that the paper's mode counts, as a shift.
const BLOCK_BITS: u32 = 9;

/// A flow on one port.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PortFlow {
    /// Cost of what was completed and not charged yet, in bytes.
    pending: u64,
    /// Cost of what is in flight, in bytes.
    in_flight: u64,
    /// When it was last published.
    published_ns: u64,
    normalizer: Normalizer,
    /// Requests submitted to the high (and urgent), medium and low class, wrapping; in the paper's
    /// mode their blocks of 512 bytes.
    requests: [u32; 3],
    /// Of the flow that the record is about; 0: of none.
    generation: u32,
    /// At which `pending` is charged.
    weight: Weight,
}

/// A request touches one line of its port's memory for its flow.
const _: () = assert!(size_of::<PortFlow>() == 64);

const UNUSED: PortFlow = PortFlow {
    pending: 0,
    in_flight: 0,
    published_ns: 0,
    normalizer: Normalizer::NEW,
    requests: [0; 3],
    generation: 0,
    weight: Weight::DEFAULT,
};

impl<P: Platform> D2fqPort<P> {
    pub(super) fn new(port: PortId, tags: usize, shared: Arc<Shared<P>>) -> Self {
        let flows = shared.flows.capacity();
        let local = Local {
            port,
            account: PortFlows::new(port, &shared.flows, shared.flows.capacity()),
            live: (0..tags).map(|_| 0).collect(),
            flows: (0..flows).map(|_| UNUSED).collect(),
            leads: matches!(shared.tracker.way(), Way::Mindicator(_))
                .then(|| Box::new(Leads::new(flows))),
        };
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
    fn next(&mut self, _now_ns: u64, _wake: &mut PortSet) -> Next {
        self.local.account.poll(&self.shared.flows);
        Next::Idle
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, _outcome: Outcome, _wake: &mut PortSet) {
        self.local.complete(&self.shared, now_ns, tag);
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let live = tag.and_then(|tag| self.local.live.get(tag.0 as usize)).copied().unwrap_or(0);
        let slot = (live as usize & 0xffff).wrapping_sub(1);
        Reason {
            virtual_time: Some(self.shared.tracker.units()),
            start_tag: self.shared.states.get(slot).map(|state| state.vt().units()),
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
        let slot = request.flow.slot();
        let tag = request.tag.0 as usize;
        if self.live.get(tag).is_none_or(|&live| live != 0) {
            return Err(SubmitError::BadTag);
        }
        let (weight, _) =
            self.account.admit(&shared.flows, request.flow).ok_or(SubmitError::NoSuchFlow)?;
        if self.account.live(slot) == 1 {
            self.activate(shared, request.flow, now_ns);
        }
        let cost = shared.cost.cost(request.op, request.length);
        if let Some(live) = self.live.get_mut(tag) {
            *live = cost.wrapping_sub(1) << SLOT_BITS | (slot as u64).wrapping_add(1);
        }
        let (Some(flow), Some(state)) = (self.flows.get_mut(slot), shared.states.get(slot)) else {
            return Err(SubmitError::NoSuchFlow);
        };
        let ahead = shared.ahead(state.vt(), now_ns);
        let mut class = shared.class(ahead, flow.in_flight, state, weight);
        if let (Class::High, Some(budget)) = (class, &shared.urgent)
            && state.is_urgent()
            && budget.spend(cost)
        {
            class = Class::Urgent;
        }
        flow.in_flight = flow.in_flight.wrapping_add(cost);
        let [high, medium, low] = &mut flow.requests;
        let requests = match class {
            Class::Urgent | Class::High => high,
            Class::Medium => medium,
            Class::Low => low,
        };
        let count = if shared.strict_paper { (cost >> BLOCK_BITS).max(1) as u32 } else { 1 };
        *requests = requests.wrapping_add(count);
        Ok(class)
    }

    #[inline]
    fn complete<P: Platform>(&mut self, shared: &Shared<P>, now_ns: u64, tag: Tag) {
        let Some(live) = self.live.get_mut(tag.0 as usize).filter(|live| **live != 0) else {
            return;
        };
        let (slot, cost) =
            ((*live as usize & 0xffff).wrapping_sub(1), (*live >> SLOT_BITS).wrapping_add(1));
        *live = 0;
        let Some(flow) = self.flows.get_mut(slot) else { return };
        let weight = shared.flows.weight_in(slot);
        if flow.weight != weight {
            self.reweigh(shared, slot, weight, now_ns);
        }
        let last = self.account.live(slot) == 1;
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.pending = flow.pending.wrapping_add(cost);
        flow.in_flight = flow.in_flight.wrapping_sub(cost);
        let batch = u64::from(weight.get()).wrapping_mul(shared.batch >> shared.scale());
        let due_ns = flow.published_ns.wrapping_add(shared.flush_ns);
        if last || flow.pending.wrapping_mul(100) >= batch || now_ns >= due_ns {
            self.publish(shared, slot, last, now_ns);
        }
        // Last of all: then the slot may be another flow's.
        self.account.finish(&shared.flows, slot);
    }

    /// The flow has requests here again.
    #[cold]
    fn activate<P: Platform>(&mut self, shared: &Shared<P>, id: FlowId, now_ns: u64) {
        let slot = id.slot();
        let (Some(flow), Some(state)) = (self.flows.get_mut(slot), shared.states.get(slot)) else {
            return;
        };
        if flow.generation != id.generation() {
            flow.generation = id.generation();
            flow.normalizer = Normalizer::NEW;
        }
        flow.published_ns = now_ns;
        // Before it counts as active itself.
        let ahead = shared.ahead(state.vt(), now_ns);
        if let Some(was) = state.enter(now_ns) {
            shared.reactivate(state, was, ahead, now_ns);
        }
        if let (Way::Mindicator(time), Some(leads)) = (shared.tracker.way(), &mut self.leads) {
            leads.put(time, self.port, slot, Some(state.vt()));
        }
    }

    /// What was completed before a change of weight is charged at the weight before (decision 11).
    #[cold]
    fn reweigh<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        slot: usize,
        weight: Weight,
        now_ns: u64,
    ) {
        if self.flows.get(slot).is_some_and(|flow| flow.pending > 0) {
            self.publish(shared, slot, false, now_ns);
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.weight = weight;
        }
    }

    /// Charges the flow for what was completed here, shows what it did, and moves global virtual
    /// time. `last`: it has nothing in flight here any more.
    #[inline(never)]
    fn publish<P: Platform>(&mut self, shared: &Shared<P>, slot: usize, last: bool, now_ns: u64) {
        let (Some(flow), Some(state)) = (self.flows.get_mut(slot), shared.states.get(slot)) else {
            return;
        };
        let units = flow.normalizer.units(flow.pending, flow.weight).min(CHARGE_MAX);
        let before = state.charge(units);
        let own = || in_flight_units(flow.in_flight.wrapping_add(flow.pending), state, flow.weight);
        let after = shared.bound(state, before.plus(units), own);
        if let Some(budget) = &shared.urgent {
            budget.earn(flow.pending);
        }
        flow.pending = 0;
        flow.published_ns = now_ns;
        if let Some(usage) =
            shared.usage.get(usize::from(self.port.0)).and_then(|port| port.get(slot))
        {
            usage.show(flow.requests, flow.in_flight);
        }
        let holder = Holder::new(slot, flow.generation);
        match (shared.tracker.way(), &mut self.leads) {
            (Way::Sloppy(_), _) => shared.moved(holder, before, after, now_ns),
            (Way::Mindicator(time), Some(leads)) => {
                leads.put(time, self.port, slot, (!last).then_some(after))
            }
            _ => {}
        }
        if last && state.leave(now_ns) {
            shared.left(holder);
        }
    }
}

/// Bytes at a weight, in units.
#[inline]
pub(super) fn units(bytes: u64, weight: Weight) -> u64 {
    bytes.saturating_mul(100) / u64::from(weight.get()).max(1)
}

/// What a flow has in flight on all ports together, if it has so many bytes on one of them.
fn in_flight_units<P: Platform>(bytes: u64, state: &FlowState<P>, weight: Weight) -> u64 {
    units(bytes.saturating_mul(state.activity().ports()), weight)
}

/// What a flow did on one port, for the adjustment of the ratio. Written by that port alone.
pub(super) struct Usage<P: Platform> {
    requests: [P::U64; 3],
    in_flight: P::U64,
}

impl<P: Platform> Usage<P> {
    pub(super) fn new() -> Self {
        Usage { requests: core::array::from_fn(|_| P::U64::new(0)), in_flight: P::U64::new(0) }
    }

    /// Shows the requests submitted to each class and the bytes in flight.
    fn show(&self, requests: [u32; 3], in_flight: u64) {
        for (word, requests) in self.requests.iter().zip(requests) {
            word.store(u64::from(requests), Ordering::Relaxed);
        }
        self.in_flight.store(in_flight, Ordering::Relaxed);
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
    /// How far a flow is ahead of global virtual time, in KiU.
    #[inline]
    fn ahead(&self, vt: VTime, now_ns: u64) -> i64 {
        self.tracker.ahead(vt, || self.least(now_ns))
    }

    /// How often all thresholds are halved.
    #[inline]
    pub(super) fn scale(&self) -> u32 {
        // 7 at the most.
        self.scale.load(Ordering::Relaxed) as u32 & 7
    }

    /// Eq. 1, for a flow with so many bytes in flight on this port.
    #[inline]
    fn class(&self, ahead: i64, in_flight: u64, state: &FlowState<P>, weight: Weight) -> Class {
        let scale = self.scale();
        let ahead = ahead << scale;
        if ahead < self.medium {
            return Class::High;
        }
        // On all ports together about that much. No division here: it is seldom more than tau_l.
        let own = in_flight.saturating_mul(state.activity().ports().wrapping_mul(DEPTHS << scale));
        if own.saturating_mul(100) > self.low_units.wrapping_mul(u64::from(weight.get()))
            && !self.strict_paper
        {
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
