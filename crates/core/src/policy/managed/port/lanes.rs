//! Requests of a port that do not take the usual way: those that wait for caps before the policy,
//! and those that go before all others for a reservation.

use super::{ManagedPort, Record};
use crate::contract::layer::names::*;
use crate::contract::platform::{AtomicWord, Ordering};
use crate::contract::port::Class;
use crate::cost::NO_CLASS;
use crate::policy::limits::bucket::Time;
use crate::policy::limits::shared::{Claim, Path, Wait, is_write};
use crate::policy::limits::{AGAIN_NS, AT_ONCE};

/// Time until the next visit of a lane whose request the policy has chosen already, in nanoseconds.
const CHOSEN_NS: u64 = 1_000_000;

/// Caps: requests before the policy.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// Keeps the request until the caps on its path let it pass.
    #[cold]
    pub(super) fn wait(&mut self, now: Time, request: &Request, path: &Path, wait: Wait) {
        let slot = request.flow.slot();
        // The lane is of this flow: a removed flow keeps its slot while its lane has requests.
        let lane = self.waiting.lane_of(request).or_else(|| {
            let weight = self.weight(slot);
            let at_ns = self.shared.limits.again_ns(now, wait, path, weight);
            let lane = self.waiting.open(request, at_ns, wait.by)?;
            self.count_lane(lane, request, path, weight);
            Some(lane)
        });
        let by = lane.map_or(0, |lane| self.waiting.push(lane, now.ns(), request));
        self.put(request.tag, Record { flags: Record::WAITS, by, ..Record::default() });
        self.held = self.held.saturating_add(1);
        self.shared.limits.count_held(slot, by);
    }

    /// Weight of a lane of the flow in this slot beside others.
    fn weight(&self, slot: usize) -> u64 {
        let account = self.shared.limits.account(slot);
        account.map_or(0, |account| account.weight.load(Ordering::Relaxed))
    }

    /// Counts the lane in its groups, if the lane, its groups or its weight are new.
    fn count_lane(&mut self, lane: usize, request: &Request, path: &Path, weight: u64) {
        let Some(lane) = self.waiting.lanes.get_mut(lane) else { return };
        let limits = &self.shared.limits;
        let groups = limits.groups_on(path);
        if (lane.groups, lane.weight) == (groups, weight) {
            return;
        }
        let (slot, is_write) = (request.flow.slot(), is_write(request));
        limits.weigh_lane(slot, &lane.groups, is_write, lane.weight.wrapping_neg());
        (lane.groups, lane.weight) = (groups, weight);
        limits.weigh_lane(slot, &lane.groups, is_write, weight);
    }

    /// Takes out a waiting request. Gives its lane, unless that is empty and closed now.
    fn leave(&mut self, now_ns: u64, request: &Request, since_ns: u64) -> Option<usize> {
        let slot = request.flow.slot();
        let Record { by, .. } = self.record(request.tag);
        self.put(request.tag, Record::default());
        self.held = self.held.saturating_sub(1);
        self.shared.limits.count_off(slot, by, now_ns.saturating_sub(since_ns));
        let (lane, closed) = self.waiting.take(request)?;
        let Some(closed) = closed else { return Some(lane) };
        let gone = closed.weight.wrapping_neg();
        self.shared.limits.weigh_lane(slot, &closed.groups, is_write(request), gone);
        None
    }

    /// Takes the request out of its lane, if it waits for a cap.
    pub(super) fn leave_lane(&mut self, now_ns: u64, tag: Tag) {
        if self.held > 0
            && self.record(tag).is(Record::WAITS)
            && let Some((request, since_ns)) = self.waiting.request(tag)
            && let Some(lane) = self.leave(now_ns, &request, since_ns)
        {
            // The lane's next request may need less.
            self.waiting.agenda.visit_at(lane, now_ns);
        }
    }

    /// Gives the policy the requests that caps let pass; returns one that is to be issued at once.
    #[cold]
    pub(super) fn release(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            if self.waiting.agenda.first_ns > now_ns {
                return None;
            }
            let (lane, request, since_ns) = self.waiting.first()?;
            let path = self.shared.limits.path(&request);
            let weight = self.weight(request.flow.slot());
            // Weight and groups may have changed while the lane waited, and turns are computed from
            // them.
            self.count_lane(lane, &request, &path, weight);
            if let Err(wait) = self.shared.limits.take(now, &path) {
                let at_ns = self.shared.limits.again_ns(now, wait, &path, weight);
                self.waiting.agenda.visit_at(lane, at_ns);
                if let Some(lane) = self.waiting.lanes.get_mut(lane) {
                    lane.by = wait.by;
                }
                continue;
            }
            let is_fenced = self.waiting.lanes.get(lane).is_some_and(|lane| lane.is_fenced);
            if let Some(lane) = self.leave(now_ns, &request, since_ns) {
                let pace_ns = self.shared.limits.pace_ns(now, &path, weight);
                self.waiting.sent(lane, now_ns, pace_ns);
            }
            // The barrier was set while the request waited here. It is repeated on both sides of
            // the request, because requests that came after the barrier may have reached the policy
            // already, or may reach it later.
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            let flags = if self.shared.limits.is_free(&path) { 0 } else { Record::PASSED };
            let state = self.shared.state();
            let submitted = self.pass(now_ns, &request, (state, flags, path.kinds()), wake);
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            match submitted {
                Ok(Submitted::Staged) => {}
                Ok(Submitted::Issue { class }) => {
                    return Some(Next::Issue { tag: request.tag, class });
                }
                // The request's flow is gone, so the request is issued before all others.
                Err(_) => {
                    let goes = self.inner.expedite(now_ns, request.tag, wake);
                    return goes.then_some(Next::Issue { tag: request.tag, class: Class::Medium });
                }
            }
        }
        // If more lanes are due, `next` returns their time, and its caller calls again at once.
        None
    }

    /// Checks a new request against the caps on its path. Gives the flags of its record: whether it
    /// waits here, or has taken from them; 0 if no cap counts it.
    #[inline(never)]
    pub(super) fn pay(
        &mut self,
        now_ns: u64,
        request: &Request,
        path: &Path,
    ) -> Result<u16, SubmitError> {
        if self.held > 0 && self.record(request.tag).is(Record::WAITS) {
            return Err(SubmitError::BadTag);
        }
        let limits = &self.shared.limits;
        if limits.is_free(path) {
            return Ok(0);
        }
        let now = Time::of_ns(now_ns);
        // Requests that wait in its lane go first.
        let may_go = match self.held > 0 && self.waiting.lane_of(request).is_some() {
            false => limits.take(now, path),
            true => Err(Wait { until: now, by: 0 }),
        };
        let Err(wait) = may_go else { return Ok(Record::PASSED) };
        self.inner.hold(request.tag, request.flow)?;
        self.wait(now, request, path, wait);
        Ok(Record::WAITS)
    }
}

/// Reservations: requests that the policy has.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// Takes from its reservation the amounts of a request that the policy has issued at once;
    /// gives whether the request may go to the urgent class.
    #[cold]
    pub(super) fn may_be_urgent(&self, now_ns: u64, claim: Claim) -> bool {
        let (now, limits) = (Time::of_ns(now_ns), &self.shared.limits);
        let may = limits.take_least(now, claim).is_ok();
        if !may {
            limits.spend(now, claim);
        } else if limits.has_classes {
            limits.count_ahead(claim.slot);
        }
        may && limits.has_classes
    }

    /// Opens a lane for the flow, if it has none.
    #[inline(always)]
    pub(super) fn open(&mut self, flow: FlowId, now_ns: u64) {
        if self.lanes.lane(flow.slot(), flow).is_none() {
            self.open_new(flow, now_ns);
        }
    }

    #[inline(never)]
    fn open_new(&mut self, flow: FlowId, now_ns: u64) {
        let slot = flow.slot();
        // This closes the lane of a flow that had the slot before.
        self.close(slot);
        if self.lanes.open(slot, flow, now_ns).is_some() {
            self.shared.limits.count_port(slot, true);
        }
    }

    fn close(&mut self, slot: usize) {
        if self.lanes.close(slot) {
            self.shared.limits.count_port(slot, false);
        }
    }

    /// Notes that the policy no longer holds this request.
    fn unstaged(&mut self, record: &Record) {
        let is_staged = record.is(Record::STAGED);
        self.staged = self.staged.saturating_sub(is_staged.into());
        let is_reserved = is_staged && record.claim().kinds != 0;
        self.reserved = self.reserved.saturating_sub(is_reserved.into());
    }

    /// Notes that the policy has issued a staged request.
    #[inline(always)]
    pub(super) fn goes_out(&mut self, now_ns: u64, claim: Claim, is_again: bool) {
        self.staged = self.staged.wrapping_sub(1);
        self.others = self.others.wrapping_add(1);
        if claim.kinds != 0 {
            self.reserved = self.reserved.wrapping_sub(1);
            if !is_again {
                self.shared.limits.spend(Time::of_ns(now_ns), claim);
            }
        }
    }

    /// Takes a request that the policy held, or that went before all others, off the counts.
    #[cold]
    pub(super) fn gone(&mut self, record: &Record) {
        if record.is(Record::AHEAD) {
            self.ahead = self.ahead.saturating_sub(1);
            self.shared.limits.ahead.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.unstaged(record);
        }
    }

    /// Whether a staged request may go before all others.
    pub(super) fn may_go(&self) -> bool {
        self.lanes.open > 0 && self.ahead < self.most_ahead
    }

    /// Notes that a request goes to the device before all others.
    pub(super) fn goes_ahead(&mut self, now_ns: u64, tag: Tag, record: Record) {
        self.unstaged(&record);
        let flags = record.flags & !(Record::STAGED | Record::OUT) | Record::AHEAD;
        self.put(tag, Record { issued_ns: now_ns, flags, ..record });
        self.ahead = self.ahead.saturating_add(1);
        self.shared.limits.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Visits some flows after reservations have changed, and opens lanes for those that have
    /// requests staged here.
    #[cold]
    pub(super) fn visit_flows(&mut self, now_ns: u64, state: u64) {
        if self.seen != state {
            (self.seen, self.unseen) = (state, self.shared.limits.flows);
        }
        // Each call visits some of the slots, since a verb is bounded; the next calls go on.
        for _ in 0..AT_ONCE.min(self.unseen) {
            self.unseen -= 1;
            let Some(flow) = self.shared.limits.reserved_in(self.unseen) else { continue };
            if self.inner.staged(flow).is_some() {
                self.open(flow, now_ns);
            }
        }
    }

    /// A request that goes before all others, if some flow has less than its reservation.
    pub(super) fn first(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            if self.lanes.first_ns > now_ns || self.ahead >= self.most_ahead {
                return None;
            }
            let (lane, flow) = self.lanes.first()?;
            let (slot, kinds) = (flow.slot(), self.shared.limits.least_of(flow));
            let later_ns = |when: Time| when.ns().min(now_ns.saturating_add(AGAIN_NS));
            // The request is not known yet, so this checks for one byte, and `take_least` later
            // checks for all bytes. The check comes before the call of `staged`, in which `kyber`
            // has to search.
            let when = self.shared.limits.when_least(now, Claim { slot, kinds, bytes: 1 });
            if kinds != 0 && when > now {
                self.lanes.visit_at(lane, later_ns(when));
                continue;
            }
            let staged = self.inner.staged(flow);
            let Some(tag) = staged.filter(|_| kinds != 0) else {
                self.close(slot);
                continue;
            };
            let mut record = self.record(tag);
            if !record.is(Record::LIVE) {
                record = Record::default();
            }
            let claim = Claim { slot, kinds, bytes: record.bytes };
            if let Err(when) = self.shared.limits.take_least(now, claim) {
                self.lanes.visit_at(lane, later_ns(when));
                continue;
            }
            if !self.inner.expedite(now_ns, tag, wake) {
                // The request is part of a command, or the policy has chosen it already.
                self.shared.limits.refund_least(claim);
                self.lanes.visit_at(lane, now_ns.saturating_add(CHOSEN_NS));
                continue;
            }
            // Other ports may have requests of the flow, too: ports take turns.
            let turn_ns = self.shared.limits.turn_ns(now, claim);
            self.lanes.visit_at(lane, now_ns.saturating_add(turn_ns.min(AGAIN_NS)));
            if !record.is(Record::LIVE) {
                // The request was submitted when there was nothing to count, so its record begins
                // now.
                (record.arrived_ns, record.slot, record.class) = (now_ns, slot as u32, NO_CLASS);
                self.live.add();
            }
            if !record.is(Record::SHARED) {
                self.count_submitted(slot as u32);
            }
            record.flags |= Record::LIVE | Record::SHARED;
            self.goes_ahead(now_ns, tag, record);
            self.shared.limits.count_ahead(slot);
            return Some(Next::Issue { tag, class: Class::Medium });
        }
        None
    }
}
