//! One port of MQFQ: the verbs.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::kept::KeptSlots;
use super::queue::{Cancelled, LocalFlow, Queue};
use super::wheel::Place;
use super::{MqfqConfig, Shared};
use crate::contract::bounds::boxed;
use crate::contract::flow::FlowId;
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{
    Class, FlowStats, Growth, Held, Next, Outcome, Port, Reason, Request, SubmitError, Submitted,
    Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{VTime, most_at_once};
use crate::structures::port_flows::PortFlows;

/// One shard's port of MQFQ.
pub struct MqfqPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    local: Local,
}

/// The state of one port.
struct Local {
    port: PortId,
    flows: PortFlows<LocalFlow>,
    queue: Queue,
    /// The start tag in the port's leaf: not after its lead, and never before virtual time.
    published: Option<VTime>,
    /// Virtual time when last read: virtual time is at least this.
    time: VTime,
    /// The port's place in the wheel, if it sleeps.
    place: Option<Place>,
    /// The most units that one request is charged.
    at_once: u64,
    /// Whether the port has marked itself as ready; another port may have claimed it since.
    enlisted: bool,
    /// Whether a verb of this port requires a call of `next`.
    is_asked: bool,
    /// Whether there may be a debt of slots, because D was reduced.
    owes: bool,
    /// One element if the policy anticipates, and none otherwise.
    kept: Box<[KeptSlots]>,
    /// Time of the verb under way, and time at which the port last went to sleep, in nanoseconds.
    now_ns: u64,
    asleep_ns: u64,
    throttles: u64,
    blocks: u64,
    wakes: u64,
    /// Late time of the port, in nanoseconds: from its release by virtual time until it ran, if it
    /// then found a slot free; without the time that another port has counted (see `follow`).
    late_ns: u64,
}

impl<P: Platform> MqfqPort<P> {
    pub(super) fn new(port: PortId, config: &MqfqConfig, shared: Arc<Shared<P>>) -> Self {
        let flows = PortFlows::new(port, &shared.flows, config.tags);
        let local = Local {
            port,
            queue: Queue::new(flows.seats(), config.tags),
            kept: boxed(config.anticipates.into(), |_| KeptSlots::new(flows.seats())),
            flows,
            is_asked: false,
            published: None,
            time: VTime::ZERO,
            place: None,
            at_once: most_at_once(shared.counters.len()),
            enlisted: false,
            owes: false,
            now_ns: 0,
            asleep_ns: 0,
            throttles: 0,
            blocks: 0,
            wakes: 0,
            late_ns: 0,
        };
        MqfqPort { shared, local }
    }
}

impl<P: Platform> Port for MqfqPort<P> {
    // Always inlined, so that `managed`, which computes a request's cost, need not copy the
    // request.
    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let MqfqPort { shared, local } = self;
        local.now_ns = now_ns;
        local.is_asked = true;
        local.submit(shared, request, wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let MqfqPort { shared, local } = self;
        local.now_ns = now_ns;
        let next = match &shared.serial {
            None => local.next(shared, wake),
            Some(lock) => lock.with(|()| local.next(shared, wake)),
        };
        let next = local.kept.first().map_or(next, |kept| kept.and_ask(next));
        // The caller calls `next` again after an `Issue`.
        local.is_asked = matches!(next, Next::Issue { .. });
        next
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, _outcome: Outcome, wake: &mut PortSet) -> bool {
        let MqfqPort { shared, local } = self;
        local.now_ns = now_ns;
        local.is_asked = true;
        local.complete(shared, tag, wake)
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.local.flows.has_room(&self.shared.flows, flow)
    }

    fn cancel(&mut self, _now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let MqfqPort { shared, local } = self;
        local.is_asked = true;
        match local.take_back(shared, tag, wake) {
            Some(seat) => local.flows.finish(&shared.flows, seat),
            None => return local.flows.cancel_held(&shared.flows, tag),
        }
        true
    }

    fn expedite(&mut self, _now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let MqfqPort { shared, local } = self;
        local.is_asked = true;
        match local.take_back(shared, tag, wake) {
            Some(seat) => local.flows.goes_ahead(tag, seat),
            None => return local.flows.expedite_held(tag),
        }
        true
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        let MqfqPort { shared, local } = self;
        if !local.queue.is_free(tag) {
            return Err(SubmitError::BadTag);
        }
        local.flows.hold(&shared.flows, flow, tag, |old, kept| kept.leave(&shared.ends, old))
    }

    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let Local { queue, flows, is_asked, kept, .. } = &mut self.local;
        *is_asked = true;
        kept.iter_mut().for_each(|kept| kept.forgets(tag));
        let again = Submitted::Issue { class: Class::Medium };
        if queue.requeue(tag) {
            Some(Submitted::Staged)
        } else {
            flows.is_ahead(tag).then_some(again)
        }
    }

    fn grow(&mut self, _now_ns: u64, tag: Tag, growth: &Growth, _wake: &mut PortSet) -> bool {
        let MqfqPort { shared, local } = self;
        local.is_asked = true;
        local.grow(shared, tag, growth.cost).is_some()
    }

    /// If another port has released this port after this port's last `next`, this port is no longer
    /// in the wheel, or no longer in the ready set. Ports are notified of changes of D and W, after
    /// which a sleeping port may dispatch. A sleeping port may also dispatch for up to a bucket's
    /// width of virtual time before it is woken.
    fn has_work(&self) -> bool {
        let MqfqPort { shared, local } = self;
        let has_closings = local.flows.has_closings(&shared.flows);
        let Some(lead) = local.queue.lead() else {
            return local.queue.has_again() || has_closings;
        };
        let sleeps = local.place.is_some_and(|place| shared.wheel.sleeps(local.port, lead, place))
            && shared.wheel.window().holds_back(lead, shared.time.now());
        let waits = local.enlisted
            && shared.slots.is_enlisted(local.port)
            && !shared.slots.has_any(local.port);
        let has_news = local.flows.has_news(&shared.flows);
        local.is_asked || local.queue.has_again() || has_news || !(sleeps || waits)
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        let seat = self.local.flows.seat(flow)?;
        self.local.queue.staged_of(seat, self.local.flows.kept(seat)?).0
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let Local { flows, queue, time, .. } = &self.local;
        let Some(seat) = flows.seat(flow) else { return FlowStats::default() };
        let staged = flows.kept(seat).map_or(0, |local| queue.staged_of(seat, local).1);
        let lead = queue.lead_of(seat).map(|lead| lead.since(*time).max(0).unsigned_abs());
        let in_flight = flows.all(seat).saturating_sub(staged);
        let service = flows.kept(seat).map(|local| queue.service(seat, local));
        FlowStats { staged, in_flight, lag: lead, service, ..FlowStats::default() }
    }

    /// MQFQ joins no requests, so a barrier has no effect.
    fn barrier(&mut self, _flow: FlowId) {}

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let Local { queue, time, enlisted, .. } = &self.local;
        let start = tag.map_or(queue.lead(), |tag| queue.start(tag));
        let held = match tag {
            Some(_) => None,
            None if *enlisted => Some(Held::NoSlot),
            None => start.map(|_| Held::Ahead),
        };
        Reason {
            virtual_time: Some(time.units()),
            start_tag: start.map(VTime::units),
            free_slots: Some(self.shared.slots.free() as u32),
            held,
            ..Reason::default()
        }
    }
}

impl Local {
    #[inline(always)]
    fn submit<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        // A request that is not passed on by reference need not be in memory.
        let Request { tag, flow, .. } = *request;
        if !self.queue.is_free(tag) {
            return Err(SubmitError::BadTag);
        }
        let leave = |old, kept: &LocalFlow| kept.leave(&shared.ends, old);
        let (weight, seat) = self.flows.admit(&shared.flows, flow, tag, leave)?;
        let Local { flows, queue, published, at_once, .. } = self;
        let local = flows.kept_mut(seat).ok_or(SubmitError::NoSuchFlow)?;
        // A request without a cost would move no end tag: its flow would never be throttled.
        let cost = request.cost.alone.max(1);
        let units = local.normalizer.units(cost, weight).min(*at_once);
        let window = shared.wheel.window().units();
        // Virtual time is not after the tag that this port has published, and cannot pass it.
        let start = match *published {
            Some(bound) if local.credit == 0 => {
                let (slot, waiting) = (flow.slot(), local.is_waiting());
                shared.ends.tag_from(slot, &mut local.account, units, bound, waiting, window)
            }
            _ => None,
        };
        match start.zip(*published) {
            Some((start, bound)) if start.has_room(bound, units) => {
                queue.stage(tag, seat, local, start, (cost, units));
            }
            _ => self
                .stage_slowly(shared, (tag, flow), seat, (cost, units), (start, window), wake)
                .ok_or(SubmitError::NoSuchFlow)?,
        }
        if let Some(kept) = self.kept.first_mut() {
            kept.came(seat, self.now_ns);
        }
        Ok(Submitted::Staged)
    }

    /// Stages a request whose start tag is not known, or is so far ahead that only a part of its
    /// cost is charged. Out of line, so that the usual case above stays short.
    #[inline(never)]
    fn stage_slowly<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        (tag, flow): (Tag, FlowId),
        seat: usize,
        (cost, units): (u64, u64),
        (start, window): (Option<VTime>, u64),
        wake: &mut PortSet,
    ) -> Option<()> {
        let start = match start {
            Some(start) => start,
            None => self.tag(shared, flow, seat, (units, window), wake)?,
        };
        // Virtual time has not passed the tag that this port has published, and cannot pass it.
        let now = self.published.unwrap_or(self.time);
        let units = match start.has_room(now, units) {
            true => units,
            false => self.charge_less(shared, flow, seat, (start, now), units)?,
        };
        let local = self.flows.kept_mut(seat)?;
        self.queue.stage(tag, seat, local, start, (cost, units));
        Some(())
    }

    /// The start tag of a new request: the flow's end tag, or virtual time if that is later. The
    /// end tag moves on by the request's cost, and virtual time cannot pass the start tag from now
    /// on.
    fn tag<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        flow: FlowId,
        seat: usize,
        (units, window): (u64, u64),
        wake: &mut PortSet,
    ) -> Option<VTime> {
        // Credit is refunded before the request is tagged, so that the request starts at the end
        // tag after the refund.
        let has_credit = self.flows.kept(seat)?.credit > 0;
        if has_credit {
            self.give_back(shared, seat);
        }
        // Without credit the caller has already tried this.
        if let Some(bound) = self.published.filter(|_| has_credit) {
            let local = self.flows.kept_mut(seat)?;
            let (slot, waiting, account) = (flow.slot(), local.is_waiting(), &mut local.account);
            let start = shared.ends.tag_from(slot, account, units, bound, waiting, window);
            if start.is_some() {
                return start;
            }
        }
        self.tag_lagging(shared, flow, seat, (units, window), wake)
    }

    /// Refunds the part of a request's cost that is beyond the most that a tag may be ahead;
    /// returns the rest. Out of line, because no real flow is that far ahead.
    #[cold]
    #[inline(never)]
    fn charge_less<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        flow: FlowId,
        seat: usize,
        (start, now): (VTime, VTime),
        units: u64,
    ) -> Option<u64> {
        let charged = start.charge(now, units);
        let local = self.flows.kept_mut(seat)?;
        shared.ends.give_back(flow.slot(), &mut local.account, units.saturating_sub(charged));
        Some(charged)
    }

    /// Tags a request of a flow whose end tag is not known to be at or after the published tag.
    #[cold]
    fn tag_lagging<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        flow: FlowId,
        seat: usize,
        (units, window): (u64, u64),
        wake: &mut PortSet,
    ) -> Option<VTime> {
        let account = &mut self.flows.kept_mut(seat)?.account;
        self.time = shared.time.now();
        let earliest = shared.ends.earliest(flow.slot(), account, self.time)?;
        // The request does not start before the published tag, which holds virtual time back: no
        // pin is needed.
        if self.published.is_some_and(|published| !earliest.is_before(published)) {
            let start = shared.ends.tag_at(flow.slot(), account, units, self.time, window)?;
            // Another port may have refunded credit meanwhile: the request must not start before
            // the tag that holds virtual time back.
            return Some(self.published.map_or(start, |published| published.max(start)));
        }
        // The request would be this port's lead. Virtual time is held back before the port reads
        // the time with which it tags the request.
        self.time = shared.time.pin(self.port, self.time);
        let start = shared.ends.tag_at(flow.slot(), account, units, self.time, window)?;
        // The pin may have lowered the leaf below the port's lead.
        let lead = self.published.map_or(start, |published| published.min(start));
        self.published = Some(lead);
        self.raise(shared, wake);
        Some(start)
    }

    #[inline]
    fn next<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) -> Next {
        // Notifications are read first, so that once the port has been notified of a change, it
        // issues no request beyond a smaller D, or by an old W.
        if self.flows.poll(&shared.flows, wake) {
            self.hear(shared, wake);
        }
        // A requeued request holds its slot, and is issued before all others (the port's contract).
        if let Some(tag) = self.queue.issue_again() {
            return Next::Issue { tag, class: Class::Medium };
        }
        if self.kept.first().is_some_and(KeptSlots::is_any)
            && let Some(tag) = self.issue_anticipated(shared, wake)
        {
            return Next::Issue { tag, class: Class::Medium };
        }
        loop {
            let Some(lead) = self.queue.lead() else {
                self.rest(shared, wake);
                self.publish(shared, None, wake);
                return Next::Idle;
            };
            let window = shared.wheel.window();
            // The value read last is not after virtual time, so only a refusal has to be checked
            // again.
            if window.holds_back(lead, self.time) {
                // The port's own leaf may hold virtual time back.
                self.publish(shared, Some(lead), wake);
                self.time = shared.time.now();
                if window.holds_back(lead, self.time) {
                    match self.throttle(shared, lead, wake) {
                        Some(answer) => return answer,
                        None => continue,
                    }
                }
            }
            let free_ns = self.leave_wheel(shared);
            if !self.acquire(shared) {
                // A port that stops publishes its lead exactly: a lagging tag would hold others
                // back.
                self.publish(shared, Some(lead), wake);
                return Next::Blocked;
            }
            if let Some(free_ns) = free_ns {
                // Late time that another port has counted matters only if T follows the device.
                self.late_ns += match window.follows() {
                    true => shared.late.since(free_ns, self.now_ns),
                    false => self.now_ns.saturating_sub(free_ns),
                };
                self.count(shared);
            }
            // There is a lead, so this does not fail; but a verb must not panic.
            let Some(tag) = self.queue.issue(&mut self.flows) else { continue };
            if let Some(kept) = self.kept.first_mut() {
                kept.issued(tag, self.now_ns);
            }
            if let (Some(lead), Some(published)) = (self.queue.lead(), self.published)
                && lead.since(published) > window.lag()
            {
                self.publish(shared, Some(lead), wake);
            }
            return Next::Issue { tag, class: Class::Medium };
        }
    }

    /// Issues a request for which a slot was kept, if it has arrived; releases slots whose patience
    /// is over.
    #[cold]
    fn issue_anticipated<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        wake: &mut PortSet,
    ) -> Option<Tag> {
        while let Some(seat) = self.kept.first_mut()?.take(self.now_ns) {
            // The request may have been cancelled, and its flow may be too far ahead by now.
            if let Some(seat) = seat
                && let Some(start) = self.queue.lead_of(seat)
            {
                let window = shared.wheel.window();
                self.time = shared.time.now();
                if !window.holds_back(start, self.time)
                    && let Some(tag) = self.queue.issue_of(&mut self.flows, seat)
                {
                    self.kept.first_mut()?.issued(tag, self.now_ns);
                    return Some(tag);
                }
            }
            self.release(shared, wake);
        }
        None
    }

    /// Whether the slot of a request of the flow in the seat, which has completed, is kept for the
    /// flow.
    fn anticipates<P: Platform>(&mut self, shared: &Shared<P>, tag: Tag, seat: usize) -> bool {
        let Local { kept, queue, flows, time, now_ns, .. } = self;
        let Some(kept) = kept.first_mut() else { return false };
        kept.completed(tag, *now_ns);
        let Some((local, flow)) = flows.kept(seat).zip(flows.owner(seat)) else { return false };
        if local.is_waiting() || !kept.left(seat, *now_ns) {
            return false;
        }
        *time = shared.time.now();
        // The end tag of the request that would get the slot otherwise. The end tag of another
        // port's request is not known, but the request does not start before virtual time.
        let other = match queue.lead_end() {
            Some(end) => end,
            None if shared.slots.free() == 0 => time.plus(queue.units(tag)),
            // Slots are free: the flow's next request finds one anyway.
            None => return false,
        };
        let Some(start) = shared.ends.earliest(flow.slot(), &local.account, *time) else {
            return false;
        };
        if other.is_before(start.plus(queue.units(tag))) {
            return false;
        }
        kept.keep(seat, *now_ns);
        true
    }

    /// Acts on a notification: D may have been reduced, and another W may be wanted.
    #[cold]
    fn hear<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        self.owes = true;
        self.wake(shared, shared.wheel.adopt(), wake);
    }

    #[inline]
    fn complete<P: Platform>(&mut self, shared: &Shared<P>, tag: Tag, wake: &mut PortSet) -> bool {
        let Some(seat) = self.queue.finish(tag) else {
            return self.flows.complete_ahead(&shared.flows, tag);
        };
        let is_kept = !self.kept.is_empty() && self.anticipates(shared, tag, seat);
        self.flows.finish(&shared.flows, seat);
        if !is_kept {
            self.release(shared, wake);
        }
        true
    }

    /// Removes a request that is staged or is to be issued again; returns its flow's seat.
    fn take_back<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        tag: Tag,
        wake: &mut PortSet,
    ) -> Option<usize> {
        let Cancelled { seat, has_slot } = self.queue.cancel(&mut self.flows, tag)?;
        self.give_back(shared, seat);
        if has_slot {
            self.release(shared, wake);
        }
        Some(seat)
    }

    /// Refunds the cost of cancelled requests: moves the flow's end tag back, but not so far that
    /// its next request would start before a request that is staged here. The rest stays as credit.
    #[cold]
    fn give_back<P: Platform>(&mut self, shared: &Shared<P>, seat: usize) {
        let Some(slot) = self.flows.owner(seat).map(FlowId::slot) else { return };
        let Some(local) = self.flows.kept_mut(seat) else { return };
        let room = match self.queue.newest_start(local) {
            Some(start) => local.account.end.since(start).max(0).unsigned_abs(),
            // The flow has no request staged here, so no order has to be kept.
            None => u64::MAX,
        };
        let units = local.credit.min(room);
        local.credit -= units;
        shared.ends.give_back(slot, &mut local.account, units);
    }

    /// Charges the flow for the growth of a staged request.
    fn grow<P: Platform>(&mut self, shared: &Shared<P>, tag: Tag, cost: u64) -> Option<()> {
        if !self.queue.is_staged(tag) {
            return None;
        }
        // A request that was issued before stays charged for its size at that time.
        let Some(seat) = self.queue.staged_seat(tag) else { return Some(()) };
        let slot = self.flows.owner(seat)?.slot();
        let local = self.flows.kept_mut(seat)?;
        let cost = cost.max(1);
        let units = local.normalizer.units(cost, shared.flows.weight_in(slot)).min(self.at_once);
        let units = local.account.end.charge(self.published.unwrap_or(self.time), units);
        shared.ends.charge(slot, &mut local.account, units, shared.wheel.window().units());
        self.queue.grow(tag, local, (cost, units));
        Some(())
    }

    /// Releases a slot.
    #[inline]
    fn release<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        let can_use = match self.queue.lead() {
            None => false,
            Some(lead) => {
                let window = shared.wheel.window();
                // As in `next`, only a refusal by the value read last has to be checked again.
                if window.holds_back(lead, self.time) {
                    self.time = shared.time.now();
                }
                !window.holds_back(lead, self.time)
            }
        };
        self.wake(shared, shared.slots.release(self.port, can_use), wake);
    }

    /// Takes a slot, if there is one.
    #[inline]
    fn take<P: Platform>(&mut self, shared: &Shared<P>) -> bool {
        if !self.owes {
            return shared.slots.acquire(self.port);
        }
        let (taken, owes) = shared.slots.acquire_owing(self.port);
        self.owes = owes;
        taken
    }

    /// Takes a slot, or marks the port as ready.
    #[inline]
    fn acquire<P: Platform>(&mut self, shared: &Shared<P>) -> bool {
        let mut taken = self.take(shared);
        // A port whose mark is still set will be claimed for a slot; a port that was claimed sets
        // its mark again.
        let is_marked = || self.enlisted && shared.slots.is_enlisted(self.port);
        if !taken && !is_marked() {
            shared.slots.enlist(self.port);
            self.enlisted = true;
            // A port that frees a slot and does not see the mark has freed the slot before this
            // attempt.
            taken = self.take(shared);
            if !taken {
                self.blocks += 1;
                self.count(shared);
            }
        }
        if taken {
            self.delist(shared);
        }
        taken
    }

    /// Throttles the port because `lead` is too far ahead. `None` if `lead` is no longer too far
    /// ahead.
    fn throttle<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        lead: VTime,
        wake: &mut PortSet,
    ) -> Option<Next> {
        if let Some(place) = self.place
            && shared.wheel.sleeps(self.port, lead, place)
        {
            // The port sleeps already. A slot that it has got meanwhile is for other ports.
            self.rest_awake(shared, wake);
            return Some(Next::Blocked);
        }
        self.rest(shared, wake);
        let window = shared.wheel.window();
        // W may have grown since the caller read it.
        if !window.holds_back(lead, self.time) {
            return None;
        }
        self.place = Some(shared.wheel.enter(self.port, lead, window, self.time, &shared.time)?);
        self.asleep_ns = self.now_ns;
        self.throttles += 1;
        self.count(shared);
        Some(Next::Blocked)
    }

    /// Removes the port from the wheel and gives up its slots, because it has no request that may
    /// be issued.
    #[inline]
    fn rest<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        self.leave_wheel(shared);
        self.rest_awake(shared, wake);
    }

    /// Gives up the port's slots.
    #[inline]
    fn rest_awake<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        self.delist(shared);
        self.wake(shared, shared.slots.stop(self.port), wake);
    }

    /// Removes the port from the wheel; returns the time at which virtual time released it, if it
    /// did.
    #[inline]
    fn leave_wheel<P: Platform>(&mut self, shared: &Shared<P>) -> Option<u64> {
        let place = self.place.take()?;
        shared.wheel.leave(self.port, place);
        let free_ns =
            shared.counters.get(usize::from(self.port.0))?.free_ns.swap(0, Ordering::Relaxed);
        // The releasing port may have written `free_ns` after this port had left the wheel by
        // itself and had entered it again. Then the time counts from the start of this sleep.
        (free_ns != 0).then(|| free_ns.max(self.asleep_ns))
    }

    #[inline]
    fn delist<P: Platform>(&mut self, shared: &Shared<P>) {
        if self.enlisted {
            self.enlisted = false;
            shared.slots.delist(self.port);
        }
    }

    /// Raises the port's leaf to `lead`, which is not before the published tag.
    #[inline]
    fn publish<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        lead: Option<VTime>,
        wake: &mut PortSet,
    ) {
        if self.published != lead {
            self.published = lead;
            self.raise(shared, wake);
        }
    }

    /// Writes the leaf; if that moves virtual time on, turns the wheel.
    #[inline]
    fn raise<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) {
        let moved = shared.time.raise(self.port, self.published);
        self.turn(shared, moved, wake);
    }

    /// Turns the wheel if virtual time has moved on, to `moved`.
    #[inline]
    fn turn<P: Platform>(&mut self, shared: &Shared<P>, moved: Option<VTime>, wake: &mut PortSet) {
        if let Some(now) = moved {
            self.time = now;
            let free = shared.wheel.turn(now);
            // `free_ns` is only used for a count, so its order does not matter: a port that runs
            // before `free_ns` is written counts nothing.
            free.filter_map(|port| shared.counters.get(usize::from(port.0)))
                .for_each(|counters| counters.free_ns.store(self.now_ns, Ordering::Relaxed));
            self.wake(shared, free, wake);
        }
    }

    /// Adds the ports to `wake`, the ports that the caller wakes.
    #[inline]
    fn wake<P: Platform>(&mut self, shared: &Shared<P>, ports: PortSet, wake: &mut PortSet) {
        if !ports.is_empty() {
            wake.extend(ports);
            self.wakes += ports.len() as u64;
            self.count(shared);
        }
    }

    /// Publishes the port's counters.
    #[cold]
    fn count<P: Platform>(&self, shared: &Shared<P>) {
        if let Some(counters) = shared.counters.get(usize::from(self.port.0)) {
            // The counters are written by this port alone, and are read only for statistics and for
            // the adjustment of T.
            counters.throttles.store(self.throttles, Ordering::Relaxed);
            counters.blocks.store(self.blocks, Ordering::Relaxed);
            counters.wakes.store(self.wakes, Ordering::Relaxed);
            counters.late_ns.store(self.late_ns, Ordering::Relaxed);
        }
    }
}
