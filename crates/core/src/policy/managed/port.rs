//! A port: it computes the costs of requests and counts them. Requests wait in lanes before the
//! policy until their caps let them pass, and staged requests of flows that have less than their
//! reservations go to the device before all others.

mod lanes;

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::{BY_DEVICE, CAPPED, COUNTED, Counts, RESERVED, SHARED, Shared, Stages};
use crate::contract::bounds::zeroes;
use crate::contract::layer::names::*;
use crate::contract::platform::{AtomicWord, Native, Ordering};
use crate::contract::port::Op;
use crate::contract::port::{Class, Held};
use crate::cost::{Pricer, grown};
use crate::policy::depth::meter::{Done, Live};
use crate::policy::limits::agenda::Agenda;
use crate::policy::limits::bucket::Time;
use crate::policy::limits::shared::{BYTES, CAPS, Claim, LEAST_SHIFT, counted_bytes};
use crate::policy::limits::waiting::Waiting;

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
    /// The policy's last answer was a [`Next::Join`], so that its command is not complete.
    is_joining: bool,
    /// The last `next` did not call the policy: this port's part of the room on the device was in
    /// use.
    is_full: bool,
    /// The state of the settings that this port knows, and the number of slots that the port has
    /// not visited since that state changed.
    seen: u64,
    unseen: usize,
}

/// The record of a request. Without flags there is no request, or nothing had to be counted when it
/// came.
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
    /// It is counted in `live`.
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
        if record.is(Record::SHARED)
            && let Some(activity) = self.counts.flows.get(record.slot as usize)
        {
            match is_done {
                true => activity.completed(record.bytes),
                false => activity.submitted(false),
            }
        }
        // A request that came before there were reservations and was requeued is in these counts
        // alone.
        if record.is(Record::SHARED | Record::STAGED | Record::OUT | Record::AHEAD) {
            if record.is(Record::OUT) {
                self.others = self.others.wrapping_sub(1);
            } else if record.is(Record::AHEAD | Record::STAGED) {
                self.gone(&record);
            }
            self.show();
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
            total.completed(&Done { bytes, cost, spent_ns, took_ns }, most);
            // For a part of a command only the time since its arrival is known.
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

/// The verb `next` while there is something to do.
impl<Q: Port, P: Platform> ManagedPort<Q, P> {
    /// A request that goes before those of the policy.
    #[inline(never)]
    fn before(&mut self, now_ns: u64, state: u64, wake: &mut PortSet) -> Option<Next> {
        let reserves = state & RESERVED != 0;
        if reserves && (self.seen != state || self.unseen > 0) {
            self.visit_flows(now_ns, state);
        }
        // After a `Join` the policy continues its command.
        if !self.is_joining {
            if self.held > 0
                && let Some(next) = self.release(now_ns, wake)
            {
                return Some(next);
            }
            if reserves
                && self.lanes.first_ns <= now_ns
                && let Some(next) = self.first(now_ns, wake)
            {
                return Some(next);
            }
        }
        None
    }

    /// The answer of a port whose policy gives no request.
    #[inline(never)]
    fn until(&self, next: Next) -> Next {
        // Time alone fills a bucket: no verb of another port wakes this one then. If as many
        // requests went ahead as may be on the device, one of them has to complete first.
        let lanes_ns = if self.may_go() { self.lanes.first_ns } else { u64::MAX };
        let due_ns = self.waiting.agenda.first_ns.min(lanes_ns);
        match next {
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(due_ns)),
            Next::Blocked if due_ns < u64::MAX => Next::WaitUntil(due_ns),
            Next::Idle if self.held > 0 => Next::WaitUntil(due_ns),
            next => next,
        }
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
                // While no request waits, and only one cap counts the request, that cap gives the
                // answer at once.
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
                return next;
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
            next if is_limited => self.until(next),
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
            // A request that was on the device stays charged, and caps that were set meanwhile have
            // nothing to refund.
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
            // The request was charged without the growth when it was issued.
            if record.is(Record::AGAIN) && more > 0 {
                let kinds = record.kinds & BYTES;
                limits.spend(now, Record { kinds, bytes: more, ..record }.claim());
            }
            let (bytes, cost) =
                (record.bytes.saturating_add(more), record.cost.saturating_add(cost));
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
        // Some staged request may wait for the requests of another flow that went ahead: it is of a
        // flow without a reservation, or several flows with reservations have lanes here.
        let is_behind = matches!(reason.held, Some(Held::NoSlot | Held::Target))
            && (self.staged > self.reserved || self.lanes.open > 1)
            && self.shared.limits.ahead.load(Ordering::Relaxed) > 0;
        if is_behind || self.is_full && !reason.is_reserved {
            reason.held = Some(Held::Reserved);
        }
        reason
    }
}
