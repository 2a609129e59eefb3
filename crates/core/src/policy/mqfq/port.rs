//! One port of MQFQ: the three verbs.

use alloc::sync::Arc;

use super::Shared;
use super::queue::Queue;
use super::wheel::Place;
use crate::contract::flow::{FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{
    Class, Held, Next, Outcome, Port, Reason, Request, SubmitError, Submitted, Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::VTime;
use crate::structures::flow_table::PortFlows;

/// One shard's port of MQFQ.
pub struct MqfqPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    local: Local,
}

/// What belongs to one port alone.
struct Local {
    port: PortId,
    account: PortFlows,
    queue: Queue,
    /// The start tag in the port's leaf: not after its lead, and never before virtual time.
    published: Option<VTime>,
    /// Virtual time when last read; it is at least that.
    time: VTime,
    /// Where the port sleeps, if it does.
    place: Option<Place>,
    /// Whether the port has marked itself as ready; somebody may have claimed it since.
    enlisted: bool,
    /// Where the port last found a slot.
    hint: u32,
    /// Whether slots may be owed, since D has become less.
    owes: bool,
    /// When the verb under way was called, and when the port last went to sleep.
    now_ns: u64,
    asleep_ns: u64,
    throttles: u64,
    blocks: u64,
    wakes: u64,
    /// For how long in all the port had not come when virtual time had let it go, and then found a
    /// slot free.
    late_ns: u64,
}

impl<P: Platform> MqfqPort<P> {
    pub(super) fn new(port: PortId, flows: usize, tags: usize, shared: Arc<Shared<P>>) -> Self {
        let local = Local {
            port,
            account: PortFlows::new(port, &shared.flows, shared.flows.capacity()),
            queue: Queue::new(flows, tags),
            published: None,
            time: VTime::ZERO,
            place: None,
            enlisted: false,
            hint: u32::from(port.0),
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
    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let MqfqPort { shared, local } = self;
        local.now_ns = now_ns;
        local.submit(shared, request, wake)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let MqfqPort { shared, local } = self;
        local.now_ns = now_ns;
        match &shared.serial {
            None => local.next(shared, wake),
            Some(lock) => lock.with(|()| local.next(shared, wake)),
        }
    }

    #[inline]
    fn complete(&mut self, _now_ns: u64, tag: Tag, _outcome: Outcome, wake: &mut PortSet) {
        let MqfqPort { shared, local } = self;
        local.complete(shared, tag, wake)
    }

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
        }
    }
}

impl Local {
    #[inline]
    fn submit<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if !self.queue.is_free(request.tag) {
            return Err(SubmitError::BadTag);
        }
        let (weight, _) =
            self.account.admit(&shared.flows, request.flow).ok_or(SubmitError::NoSuchFlow)?;
        let cost = shared.cost.cost(request.op, request.length);
        let start =
            self.tag(shared, request.flow, weight, cost, wake).ok_or(SubmitError::NoSuchFlow)?;
        self.queue.stage(request.tag, request.flow, start);
        Ok(Submitted::Staged)
    }

    /// The start tag of a new request: the flow's end tag, or virtual time if that is later. The
    /// end tag moves on by the request's cost, and virtual time cannot pass the start tag from now
    /// on.
    #[inline]
    fn tag<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        flow: FlowId,
        weight: Weight,
        cost: u64,
        wake: &mut PortSet,
    ) -> Option<VTime> {
        let local = self.queue.local(flow)?;
        let units = local.normalizer.units(cost, weight);
        let window = shared.wheel.window().units();
        // Virtual time is not after what this port has published, and cannot pass it.
        if let Some(published) = self.published {
            let waiting = local.is_waiting();
            let start = shared.ends.tag_from(
                flow.slot(),
                &mut local.account,
                units,
                published,
                waiting,
                window,
            );
            if start.is_some() {
                return start;
            }
        }
        self.tag_lagging(shared, flow, units, window, wake)
    }

    /// Tags a request of a flow whose end tag is not known to be ahead of all that may hold virtual
    /// time back.
    #[cold]
    fn tag_lagging<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        flow: FlowId,
        units: u64,
        window: u64,
        wake: &mut PortSet,
    ) -> Option<VTime> {
        let account = &mut self.queue.local(flow)?.account;
        self.time = shared.time.now();
        let earliest = shared.ends.earliest(flow.slot(), account, self.time)?;
        if self.published.is_some_and(|published| !earliest.is_before(published)) {
            return shared.ends.tag_at(flow.slot(), account, units, self.time, window);
        }
        // The request would be this port's lead. Hold virtual time back before reading the time
        // that it is tagged with.
        self.time = shared.time.pin(self.port, self.time);
        let start = shared.ends.tag_at(flow.slot(), account, units, self.time, window)?;
        let lead = self.published.map_or(start, |published| published.min(start));
        self.published = Some(lead);
        self.raise(shared, wake);
        Some(start)
    }

    #[inline]
    fn next<P: Platform>(&mut self, shared: &Shared<P>, wake: &mut PortSet) -> Next {
        self.owes |= self.account.poll(&shared.flows);
        loop {
            let Some(lead) = self.queue.lead() else {
                self.rest(shared, wake);
                self.publish(shared, None, wake);
                return Next::Idle;
            };
            let window = shared.wheel.window();
            if window.holds_back(lead, self.time) {
                // The port's own leaf may be what holds virtual time back.
                self.publish(shared, Some(lead), wake);
                self.time = shared.time.now();
                if window.holds_back(lead, self.time) {
                    match self.throttle(shared, lead, wake) {
                        Some(answer) => return answer,
                        None => continue,
                    }
                }
            }
            let late_ns = self.leave_wheel(shared);
            let Some(slot) = self.acquire(shared) else {
                self.publish(shared, Some(lead), wake);
                return Next::Blocked;
            };
            if let Some(late_ns) = late_ns {
                self.late_ns += late_ns;
                self.count(shared);
            }
            let Some(tag) = self.queue.issue(slot) else { continue };
            if let (Some(lead), Some(published)) = (self.queue.lead(), self.published)
                && lead.since(published) > window.lag()
            {
                self.publish(shared, Some(lead), wake);
            }
            return Next::Issue { tag, class: Class::Medium };
        }
    }

    #[inline]
    fn complete<P: Platform>(&mut self, shared: &Shared<P>, tag: Tag, wake: &mut PortSet) {
        let Some((flow, slot)) = self.queue.finish(tag) else { return };
        self.account.finish(&shared.flows, flow);
        let can_use = match self.queue.lead() {
            None => false,
            Some(lead) => {
                let window = shared.wheel.window();
                if window.holds_back(lead, self.time) {
                    self.time = shared.time.now();
                }
                !window.holds_back(lead, self.time)
            }
        };
        self.wake(shared, shared.slots.release(self.port, slot, can_use), wake);
    }

    /// Takes a slot, if there is one.
    #[inline]
    fn take<P: Platform>(&mut self, shared: &Shared<P>) -> Option<u32> {
        if !self.owes {
            return shared.slots.acquire(self.port, &mut self.hint);
        }
        let (slot, owes) = shared.slots.acquire_owing(self.port, &mut self.hint);
        self.owes = owes;
        slot
    }

    /// Takes a slot, or marks the port as ready.
    #[inline]
    fn acquire<P: Platform>(&mut self, shared: &Shared<P>) -> Option<u32> {
        let mut slot = self.take(shared);
        if slot.is_none() && !(self.enlisted && shared.slots.is_enlisted(self.port)) {
            shared.slots.enlist(self.port);
            self.enlisted = true;
            // Whoever frees a slot and does not see the mark has freed it before this.
            slot = self.take(shared);
            if slot.is_none() {
                self.blocks += 1;
                self.count(shared);
            }
        }
        if slot.is_some() {
            self.delist(shared);
        }
        slot
    }

    /// Stops because `lead` is too far ahead. `None`: not any more.
    fn throttle<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        lead: VTime,
        wake: &mut PortSet,
    ) -> Option<Next> {
        if let Some(place) = self.place
            && shared.wheel.sleeps(self.port, lead, place)
        {
            self.rest_awake(shared, wake);
            return Some(Next::Blocked);
        }
        self.rest(shared, wake);
        let answer = match shared.polling {
            Some(period_ns) => Next::WaitUntil(self.now_ns.saturating_add(period_ns)),
            None => {
                let window = shared.wheel.window();
                if !window.holds_back(lead, self.time) {
                    return None;
                }
                self.place =
                    Some(shared.wheel.enter(self.port, lead, window, self.time, &shared.time)?);
                self.asleep_ns = self.now_ns;
                Next::Blocked
            }
        };
        self.throttles += 1;
        self.count(shared);
        Some(answer)
    }

    /// The port has nothing that may go: takes it out of the wheel and gives up its slots.
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

    /// Takes the port out of the wheel; if virtual time had let it go, how long ago.
    #[inline]
    fn leave_wheel<P: Platform>(&mut self, shared: &Shared<P>) -> Option<u64> {
        let place = self.place.take()?;
        shared.wheel.leave(self.port, place);
        let free_ns =
            shared.counters.get(usize::from(self.port.0))?.free_ns.swap(0, Ordering::Relaxed);
        // Who let it go may have said so when the port had left by itself, and this is another
        // sleep.
        (free_ns != 0).then(|| self.now_ns.saturating_sub(free_ns.max(self.asleep_ns)))
    }

    #[inline]
    fn delist<P: Platform>(&mut self, shared: &Shared<P>) {
        if self.enlisted {
            self.enlisted = false;
            shared.slots.delist(self.port);
        }
    }

    /// Makes the port's leaf say `lead`, which is not before what it says.
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
        if let Some(now) = shared.time.raise(self.port, self.published) {
            self.time = now;
            if shared.polling.is_none() {
                let free = shared.wheel.turn(now);
                // Only counted by, so the order does not matter: one that comes before it is told
                // counts nothing.
                free.filter_map(|port| shared.counters.get(usize::from(port.0)))
                    .for_each(|counters| counters.free_ns.store(self.now_ns, Ordering::Relaxed));
                self.wake(shared, free, wake);
            }
        }
    }

    /// Adds the ports to those the caller is to wake.
    #[inline]
    fn wake<P: Platform>(&mut self, shared: &Shared<P>, ports: PortSet, wake: &mut PortSet) {
        if !ports.is_empty() {
            wake.extend(ports);
            self.wakes += ports.len() as u64;
            self.count(shared);
        }
    }

    /// Shows the port's counters.
    #[cold]
    fn count<P: Platform>(&self, shared: &Shared<P>) {
        if let Some(counters) = shared.counters.get(usize::from(self.port.0)) {
            // Written by this port alone and only read for statistics.
            counters.throttles.store(self.throttles, Ordering::Relaxed);
            counters.blocks.store(self.blocks, Ordering::Relaxed);
            counters.wakes.store(self.wakes, Ordering::Relaxed);
            counters.late_ns.store(self.late_ns, Ordering::Relaxed);
        }
    }
}
