//! A port: it prices requests and counts them. They wait in lanes before the policy until their caps
//! let them pass, and staged requests of flows that have less than their reservations go to the
//! device before all others.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::{BY_DEVICE, CAPPED, COUNTED, Counts, RESERVED, SHARED, Shared, Stages};
use crate::contract::layer::names::*;
use crate::contract::op::Op;
use crate::contract::platform::{AtomicWord, Native, Ordering};
use crate::contract::port::{Answer, Class, Held};
use crate::cost::{NO_CLASS, Pricer, grown};
use crate::policy::depth::meter::Live;
use crate::policy::limits::agenda::Agenda;
use crate::policy::limits::bucket::Time;
use crate::policy::limits::shared::{
    BYTES, CAPS, Claim, LEAST_SHIFT, Path, Wait, counted_bytes, is_write,
};
use crate::policy::limits::waiting::Waiting;
use crate::policy::limits::{AGAIN_NS, AT_ONCE};
use crate::structures::allocation::zeroes;

/// Time until the next visit of a lane whose request the policy has chosen already, in nanoseconds.
const CHOSEN_NS: u64 = 1_000_000;
/// The port's tags divided by this are the most requests on the device that went before others.
const PART: usize = 2;

/// A port of [`Managed`](super::Managed).
pub struct ManagedPort<Q, P: Platform = Native> {
    inner: Q,
    shared: Arc<Shared<P>>,
    counts: Arc<Counts<P>>,
    records: Box<[Record]>,
    pricer: Pricer,
    /// Requests that have a record and do not wait here.
    live: Live,
    /// Requests that wait here for caps.
    held: u32,
    waiting: Waiting,
    /// Requests that the policy holds, and those among them whose flows had a reservation. Like the
    /// next three, they are counted while there are reservations.
    staged: u32,
    reserved: u32,
    /// Requests on the device that the policy does not know, and the most that there may be.
    ahead: u32,
    most_ahead: u32,
    /// Requests on the device that the policy has issued.
    others: u32,
    /// The flows with reservations that have requests staged here; their keys are their slots.
    lanes: Agenda,
    /// The policy's last answer was a part of a command.
    is_joining: bool,
    /// The last `next` did not call the policy: this port's part of the room on the device was
    /// taken.
    is_full: bool,
    /// The state of the settings that this port knows, and the number of slots that it has not
    /// visited since it has changed.
    seen: u64,
    unseen: usize,
}

/// A request; without flags it is not there, or nothing was to be counted when it came.
#[derive(Clone, Copy, Default, Zeroable)]
struct Record {
    arrived_ns: u64,
    /// Time at which it went to the device as a command of its own; [`u64::MAX`] else.
    issued_ns: u64,
    /// Its cost as the policy charges it.
    cost: u64,
    slot: u32,
    bytes: u32,
    /// Number of changes of the settings when its caps let it pass.
    changes: u16,
    /// For a request that waits here, the group whose cap held its lane when it came.
    by: u16,
    flags: u16,
    /// The caps that count its operation, and the buckets of its flow's reservation when it came,
    /// if there were such.
    kinds: u8,
    /// Its class for costs by the device's time.
    class: u8,
}

impl Record {
    /// It waits here for a cap.
    const WAITS: u16 = 1;
    /// It has taken from the caps on its path.
    const PASSED: u16 = 2;
    /// It is in its flow's counts.
    const SHARED: u16 = 4;
    /// The policy holds it.
    const STAGED: u16 = 8;
    /// It was on the device before, and its flow's reservation is charged for it.
    const AGAIN: u16 = 16;
    /// The policy has issued it, and it is on the device.
    const OUT: u16 = 32;
    /// It is on the device, and the policy does not know it.
    const AHEAD: u16 = 64;
    /// It went to the device's urgent class.
    const URGENT: u16 = 128;
    /// It is one of the live ones.
    const LIVE: u16 = 256;
    /// It is in the port's counts.
    const COUNTED: u16 = 512;

    #[inline]
    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Its flow's reservation.
    fn claim(&self) -> Claim {
        let kinds = self.kinds >> LEAST_SHIFT;
        Claim { slot: self.slot as usize, kinds, bytes: self.bytes }
    }
}

impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    pub(super) fn new(
        inner: Q,
        shared: Arc<Shared<P>>,
        counts: Arc<Counts<P>>,
        (tags, flows): (usize, usize),
        stages: &Stages,
    ) -> Self {
        // Without limits there are no lanes.
        let (lanes, limited) = if stages.has_limits { (tags, flows) } else { (0, 0) };
        ManagedPort {
            inner,
            counts,
            records: zeroes(tags),
            pricer: Pricer::new(stages.cost, flows),
            live: Live::default(),
            held: 0,
            waiting: Waiting::new(lanes, limited),
            staged: 0,
            reserved: 0,
            ahead: 0,
            most_ahead: (tags / PART).max(1) as u32,
            others: 0,
            lanes: Agenda::new(lanes.min(limited).max(1), limited),
            is_joining: false,
            is_full: false,
            seen: 0,
            unseen: 0,
            shared,
        }
    }

    fn record(&self, tag: Tag) -> Record {
        self.records.get(tag.0 as usize).copied().unwrap_or_default()
    }

    fn put(&mut self, tag: Tag, record: Record) {
        if let Some(place) = self.records.get_mut(tag.0 as usize) {
            *place = record;
        }
    }

    /// Publishes the numbers of requests that the port has.
    #[inline]
    fn show(&self) {
        self.counts.total.hold(self.staged, self.live.now());
    }

    #[inline]
    fn count_submitted(&self, slot: u32) {
        if let Some(activity) = self.counts.flows.get(slot as usize) {
            activity.submitted(true);
        }
    }
}

/// Counts.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// Submits a request whose caps have let it pass; `flags` and `kinds` are those of its record.
    #[inline(always)]
    fn pass(
        &mut self,
        now_ns: u64,
        request: &Request,
        (state, flags, kinds): (u64, u16, u8),
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let (class, cost) = self.pricer.price(request, &self.shared.prices);
        let priced = Request { cost, ..*request };
        let submitted = match self.inner.submit(now_ns, &priced, wake) {
            Ok(submitted) => submitted,
            Err(why) => {
                if flags != 0 {
                    let limits = &self.shared.limits;
                    limits.refund(&limits.path(request));
                }
                return Err(why);
            }
        };
        if state & (SHARED | COUNTED | BY_DEVICE) == 0 && flags == 0 {
            return Ok(submitted);
        }
        // `next` does not return a request that went to the device at once.
        let is_issued = matches!(submitted, Submitted::Issue { .. });
        let record = Record {
            arrived_ns: now_ns,
            issued_ns: if is_issued { now_ns } else { u64::MAX },
            cost: cost.alone,
            slot: request.flow.slot() as u32,
            bytes: counted_bytes(request.op, request.length),
            changes: Shared::<P>::changes(state),
            by: 0,
            flags: flags | Record::LIVE,
            kinds,
            class,
        };
        Ok(self.count_new(now_ns, request, state, record, submitted))
    }

    /// Counts a request that the policy has accepted, and keeps its record.
    #[inline(always)]
    fn count_new(
        &mut self,
        now_ns: u64,
        request: &Request,
        state: u64,
        mut record: Record,
        mut submitted: Submitted,
    ) -> Submitted {
        self.live.add();
        if state & (COUNTED | RESERVED) != 0 {
            record.flags |= Record::COUNTED;
            self.counts.total.came(request.flow.slot());
        }
        if state & SHARED != 0 {
            record.flags |= Record::SHARED;
            self.count_submitted(record.slot);
        }
        if state & RESERVED != 0 {
            let claim = record.claim();
            if submitted == Submitted::Staged {
                record.flags |= Record::STAGED;
                self.staged = self.staged.wrapping_add(1);
                if claim.kinds != 0 {
                    self.reserved = self.reserved.wrapping_add(1);
                    self.open(request.flow, now_ns);
                }
            } else if claim.kinds != 0 && self.may_be_urgent(now_ns, claim) {
                record.flags |= Record::URGENT;
                submitted = Submitted::Issue { class: Class::Urgent };
            }
            self.show();
        }
        self.put(request.tag, record);
        submitted
    }

    /// Ends the record of a request that is done or taken back; `None` if it has none.
    #[inline(always)]
    fn end(&mut self, tag: Tag, is_done: bool) -> Option<Record> {
        let place = self.records.get_mut(tag.0 as usize).filter(|at| at.is(Record::LIVE))?;
        let record = *place;
        place.flags = 0;
        self.live.remove();
        if record.is(Record::SHARED) {
            match self.counts.flows.get(record.slot as usize) {
                Some(activity) if is_done => activity.completed(record.bytes),
                Some(activity) => activity.submitted(false),
                None => {}
            }
            if record.is(Record::OUT) {
                self.others = self.others.wrapping_sub(1);
                self.show();
            } else if record.is(Record::AHEAD | Record::STAGED) {
                self.gone(&record);
            }
        }
        Some(record)
    }

    /// Counts a completed request.
    #[inline(always)]
    fn count_done(&mut self, now_ns: u64, record: Record) {
        let Record { arrived_ns, issued_ns, cost, slot, bytes, class, .. } = record;
        let (bytes, most) = (u64::from(bytes), self.live.recent());
        let Counts { total, classes, seats, .. } = &*self.counts;
        if record.is(Record::COUNTED) {
            let spent_ns = now_ns.saturating_sub(issued_ns);
            let took_ns = now_ns.saturating_sub(arrived_ns).max(spent_ns);
            total.completed([bytes, cost, spent_ns, took_ns], most);
            // Of a part of a command only the time since it came is known.
            let spent_ns = if issued_ns == u64::MAX { took_ns } else { spent_ns };
            self.shared.watch.completed(seats, slot, (took_ns, spent_ns), bytes);
        }
        classes.completed(class, bytes);
    }

    /// Notes that the policy has given a request to the device.
    #[inline(always)]
    fn left(&mut self, now_ns: u64, tag: Tag, is_part: bool, reserves: bool) {
        let Some(record) = self.records.get_mut(tag.0 as usize) else { return };
        if !is_part {
            record.issued_ns = now_ns;
        }
        if reserves && record.is(Record::STAGED) {
            record.flags ^= Record::STAGED | Record::OUT;
            let (claim, is_again) = (record.claim(), record.is(Record::AGAIN));
            self.goes_out(now_ns, claim, is_again);
        }
    }
}

/// Caps: requests before the policy.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// Keeps the request until the caps on its path let it pass.
    #[cold]
    fn wait(&mut self, now: Time, request: &Request, path: &Path, wait: Wait) {
        let slot = request.flow.slot();
        // A lane of a flow that is gone has requests, so its slot is not another flow's.
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
    fn leave_lane(&mut self, now_ns: u64, tag: Tag) {
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
    fn release(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
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
            // The barrier came while the request waited here, and stands on both sides of it.
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
                // Its flow is gone: it is issued before all others.
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
    fn pay(&mut self, now_ns: u64, request: &Request, path: &Path) -> Result<u16, SubmitError> {
        if self.held > 0 && self.record(request.tag).is(Record::WAITS) {
            return Err(SubmitError::BadTag);
        }
        let limits = &self.shared.limits;
        if limits.is_free(path) {
            return Ok(0);
        }
        let now = Time::of_ns(now_ns);
        // Requests in a lane are before it.
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
    /// Takes the amounts of a request that the policy has issued at once from its reservation; gives
    /// whether the request may go to the urgent class.
    #[cold]
    fn may_be_urgent(&self, now_ns: u64, claim: Claim) -> bool {
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
    fn open(&mut self, flow: FlowId, now_ns: u64) {
        if self.lanes.lane(flow.slot(), flow).is_none() {
            self.open_new(flow, now_ns);
        }
    }

    #[inline(never)]
    fn open_new(&mut self, flow: FlowId, now_ns: u64) {
        let slot = flow.slot();
        // The lane of a flow that had the slot before.
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
    fn goes_out(&mut self, now_ns: u64, claim: Claim, is_again: bool) {
        self.staged = self.staged.wrapping_sub(1);
        self.others = self.others.wrapping_add(1);
        if claim.kinds != 0 {
            self.reserved = self.reserved.wrapping_sub(1);
            if !is_again {
                self.shared.limits.spend(Time::of_ns(now_ns), claim);
            }
        }
    }

    /// Takes a request off the counts that the policy held, or that went before all others.
    #[cold]
    fn gone(&mut self, record: &Record) {
        if record.is(Record::AHEAD) {
            self.ahead = self.ahead.saturating_sub(1);
            self.shared.limits.ahead.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.unstaged(record);
        }
        self.show();
    }

    /// Whether a staged request may go before all others.
    fn may_go(&self) -> bool {
        self.lanes.open > 0 && self.ahead < self.most_ahead
    }

    /// Notes that a request goes to the device before all others.
    fn goes_ahead(&mut self, now_ns: u64, tag: Tag, record: Record) {
        self.unstaged(&record);
        let flags = record.flags & !(Record::STAGED | Record::OUT) | Record::AHEAD;
        self.put(tag, Record { issued_ns: now_ns, flags, ..record });
        self.ahead = self.ahead.saturating_add(1);
        self.shared.limits.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Visits some flows after reservations have changed, and opens lanes for those that have
    /// requests staged here.
    #[cold]
    fn visit_flows(&mut self, now_ns: u64, state: u64) {
        if self.seen != state {
            (self.seen, self.unseen) = (state, self.shared.limits.flows);
        }
        // Some of the slots in each call, since a verb is bounded: the next calls go on.
        for _ in 0..AT_ONCE.min(self.unseen) {
            self.unseen -= 1;
            let Some(flow) = self.shared.limits.reserved_in(self.unseen) else { continue };
            if self.inner.staged(flow).is_some() {
                self.open(flow, now_ns);
            }
        }
    }

    /// A request that goes before all others, if some flow has less than its reservation.
    fn first(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            if self.lanes.first_ns > now_ns || self.ahead >= self.most_ahead {
                return None;
            }
            let (lane, flow) = self.lanes.first()?;
            let (slot, kinds) = (flow.slot(), self.shared.limits.least_of(flow));
            let later_ns = |when: Time| when.ns().min(now_ns.saturating_add(AGAIN_NS));
            // The request is not known yet: this checks for one byte, and `take_least` for all of
            // them. It comes before the call for a staged request, for which `kyber` has to search.
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
                // It is part of a command, or about to go.
                self.shared.limits.refund_least(claim);
                self.lanes.visit_at(lane, now_ns.saturating_add(CHOSEN_NS));
                continue;
            }
            // Other ports may have requests of the flow, too: ports take turns.
            let turn_ns = self.shared.limits.turn_ns(now, claim);
            self.lanes.visit_at(lane, now_ns.saturating_add(turn_ns.min(AGAIN_NS)));
            if !record.is(Record::LIVE) {
                // It was submitted when there was nothing to count.
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

/// The verb `next` while there is something to do.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// A request that goes before those of the policy.
    #[inline(never)]
    fn before(&mut self, now_ns: u64, state: u64, wake: &mut PortSet) -> Option<Answer> {
        let reserves = state & RESERVED != 0;
        if reserves && (self.seen != state || self.unseen > 0) {
            self.visit_flows(now_ns, state);
        }
        // After a `Join` the policy continues its command.
        if !self.is_joining {
            if self.held > 0
                && let Some(next) = self.release(now_ns, wake)
            {
                return Some(next.into());
            }
            if reserves
                && self.lanes.first_ns <= now_ns
                && let Some(next) = self.first(now_ns, wake)
            {
                return Some(next.into());
            }
        }
        None
    }

    /// The answer of a port whose policy gives no request.
    #[inline(never)]
    fn until(&self, next: Next) -> Answer {
        // Time alone fills a bucket: no verb of another port wakes this one then. If as many
        // requests as may have gone ahead, a completion has to come first.
        let lanes_ns = if self.may_go() { self.lanes.first_ns } else { u64::MAX };
        let due_ns = self.waiting.agenda.first_ns.min(lanes_ns);
        let next = match next {
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(due_ns)),
            Next::Blocked if due_ns < u64::MAX => Next::WaitUntil(due_ns),
            Next::Idle if self.held > 0 => Next::WaitUntil(due_ns),
            next => next,
        };
        next.into()
    }
}

impl<Q: Port, P: Platform> Port for ManagedPort<Q, P> {
    const IS_DIRECT: bool = Q::IS_DIRECT;

    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let (state, mut flags, mut kinds) = (self.shared.state(), 0, 0);
        if state & (CAPPED | RESERVED) != 0 {
            let limits = &self.shared.limits;
            let path = limits.path(request);
            kinds = path.kinds();
            if path.may_have_caps() || self.held > 0 {
                // While none waits, a cap that alone counts the request gives the answer at once.
                let has_paid = self.held == 0 && limits.take_one(Time::of_ns(now_ns), &path);
                flags = if has_paid { Record::PASSED } else { self.pay(now_ns, request, &path)? };
                if flags == Record::WAITS {
                    return Ok(Submitted::Staged);
                }
            }
        }
        self.pass(now_ns, request, (state, flags, kinds), wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let state = self.shared.state();
        let is_limited = self.held > 0 || state & RESERVED != 0;
        if is_limited {
            let due_ns = self.waiting.agenda.first_ns.min(self.lanes.first_ns);
            if (due_ns <= now_ns || self.seen != state || self.unseen > 0)
                && let Some(next) = self.before(now_ns, state, wake)
            {
                return next.into();
            }
            // A full port has at least one request on the device, so its caller calls `next` again
            // when that completes.
            let room = self.shared.limits.room.load(Ordering::Relaxed);
            self.is_full = u64::from(self.others) >= room && self.staged > 0 && !self.is_joining;
        }
        let next = if self.is_full { Next::Blocked } else { self.inner.next(now_ns, wake) };
        let is_part = matches!(next, Next::Join { .. });
        self.is_joining = is_part;
        match next {
            Next::Issue { tag, .. } | Next::Join { tag } => {
                if self.live.now() > 0 {
                    self.left(now_ns, tag, is_part, state & RESERVED != 0);
                }
                next
            }
            next if is_limited => self.until(next).into(),
            next => next,
        }
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued
            && self.live.now() > 0
            && let Some(record) = self.end(tag, true)
        {
            self.count_done(now_ns, record);
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if is_gone && let Some(record) = self.end(tag, false) {
            // A request that was on the device stays charged, and buckets of other caps have given
            // nothing.
            let is_same = record.changes == Shared::<P>::changes(self.shared.state());
            if record.is(Record::PASSED) && !record.is(Record::AGAIN) && is_same {
                let limits = &self.shared.limits;
                limits.refund(&limits.path_of(record.slot, record.kinds, record.bytes));
            }
        }
        is_gone
    }

    /// The request takes nothing from a cap that it waits for.
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        let is_gone = self.inner.expedite(now_ns, tag, wake);
        let record = self.record(tag);
        if is_gone && record.is(Record::LIVE) {
            // Staged requests are counted only with reservations.
            match record.is(Record::STAGED) {
                true => self.goes_ahead(now_ns, tag, record),
                false => self.put(tag, Record { issued_ns: now_ns, ..record }),
            }
        }
        is_gone
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.hold(tag, flow)
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        let submitted = self.inner.requeue(now_ns, tag, wake);
        let mut record = self.record(tag);
        if submitted.is_none() || record.flags == 0 {
            return submitted;
        }
        record.flags |= Record::AGAIN;
        let is_staged = submitted == Some(Submitted::Staged) && !record.is(Record::STAGED);
        if is_staged && self.shared.state() & RESERVED != 0 {
            self.others = self.others.saturating_sub(record.is(Record::OUT).into());
            self.staged = self.staged.saturating_add(1);
            self.reserved = self.reserved.saturating_add((record.claim().kinds != 0).into());
            record.flags = record.flags & !Record::OUT | Record::STAGED;
            self.show();
        }
        self.put(tag, record);
        submitted
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let record = self.record(tag);
        if record.is(Record::WAITS) {
            self.waiting.grow(tag, growth);
            return true;
        }
        let cost = self.pricer.growth(growth, &self.shared.prices);
        if !self.inner.grow(now_ns, tag, &Growth { cost, ..*growth }, wake) {
            return false;
        }
        if record.is(Record::LIVE) {
            // A discard counts for the same bytes whatever its length.
            let more = if growth.op == Op::Discard { 0 } else { growth.length };
            let (now, limits) = (Time::of_ns(now_ns), &self.shared.limits);
            if record.is(Record::PASSED) && more > 0 {
                limits.charge(now, &limits.path_of(record.slot, record.kinds & BYTES & CAPS, more));
            }
            // It was charged when it was issued, without the growth.
            if record.is(Record::AGAIN) && more > 0 {
                let kinds = record.kinds & BYTES;
                limits.spend(now, Record { kinds, bytes: more, ..record }.claim());
            }
            let (bytes, cost) = (record.bytes.saturating_add(more), record.cost.saturating_add(cost));
            let class = grown(record.class, bytes);
            self.put(tag, Record { bytes, cost, class, ..record });
        }
        true
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.admit(flow)
    }

    fn has_work(&self) -> bool {
        self.held > 0 || self.may_go() || self.inner.has_work()
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        let first = self.waiting.lanes(flow).find_map(|lane| lane.queue.first());
        first.map(Tag).or_else(|| self.inner.staged(flow))
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let mut stats = self.inner.flow_stats(flow);
        // The policy knows the requests that wait here, and does not have them staged.
        for lane in self.waiting.lanes(flow) {
            stats.staged = stats.staged.saturating_add(lane.count);
            stats.in_flight = stats.in_flight.saturating_sub(lane.count);
        }
        stats
    }

    fn barrier(&mut self, flow: FlowId) {
        self.inner.barrier(flow);
        self.waiting.fence(flow);
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let first = || self.waiting.first().map(|(_, request, _)| request.tag);
        let has_work = || self.may_go() || self.inner.has_work();
        let waits = tag.or_else(|| first().filter(|_| !has_work())).map(|tag| self.record(tag));
        let waits = waits.filter(|record| record.is(Record::WAITS));
        if let Some(Record { by, .. }) = waits {
            let held = if by != 0 { Held::GroupCap } else { Held::Cap };
            return Reason { held: Some(held), ..Reason::default() };
        }
        let is_reserved =
            tag.is_some_and(|tag| self.record(tag).is(Record::AHEAD | Record::URGENT));
        let mut reason = Reason { is_reserved, ..self.inner.reason(tag) };
        let is_bound = || self.shared.is_bound.load(Ordering::Relaxed) != 0;
        if reason.held == Some(Held::NoSlot) && is_bound() {
            reason.held = Some(Held::Target);
        }
        // A request that is staged here is of a flow without a reservation, or flows with different
        // reservations have lanes here.
        let is_behind = matches!(reason.held, Some(Held::NoSlot | Held::Target))
            && (self.staged > self.reserved || self.lanes.open > 1)
            && self.shared.limits.ahead.load(Ordering::Relaxed) > 0;
        if is_behind || self.is_full && !reason.is_reserved {
            reason.held = Some(Held::Reserved);
        }
        reason
    }
}
