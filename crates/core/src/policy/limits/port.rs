//! A port: requests wait in lanes before the policy until their caps let them pass, and staged
//! requests of flows that have less than their reservations go to the device before all others.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::agenda::Agenda;
use super::bucket::Time;
use super::counts::Activity;
use super::shared::{
    BYTES, CAPPED, CAPS, Claim, LEAST_SHIFT, Path, RESERVED, SHARED, Shared, Wait, counted_by,
    counted_bytes, is_write,
};
use super::waiting::Waiting;
use crate::contract::bounds::zeroes;
use crate::contract::layer::{self, names::*};
use crate::contract::platform::{AtomicWord, Ordering};
use crate::contract::port::{Class, Held, Op};

/// Lanes, or slots of flows, visited in one call.
pub(super) const AT_ONCE: usize = 16;
/// The longest time between two visits of a lane, in nanoseconds, since settings change.
pub(super) const AGAIN_NS: u64 = 100_000_000;
/// Time until the next visit of a lane whose request the policy has chosen already, in nanoseconds.
const CHOSEN_NS: u64 = 1_000_000;
/// The port's tags divided by this are the most requests on the device that went before others.
const PART: usize = 2;

/// A port of [`Limited`](super::Limited).
pub struct LimitedPort<Q, P: Platform> {
    inner: Q,
    shared: Arc<Shared<P>>,
    index: usize,
    records: Box<[Record]>,
    waiting: Waiting,
    /// Requests that wait here for caps, and those that the policy has and that have a record.
    held: u32,
    live: u32,
    /// Requests that the policy holds, and those among them whose flows had a reservation. Like the
    /// next four, they are counted while there are reservations.
    staged: u32,
    reserved: u32,
    done: [u64; 2],
    /// Requests on the device that the policy does not know, and the most that there may be.
    ahead: u32,
    most_ahead: u32,
    /// Requests on the device that the policy has issued.
    others: u32,
    /// The flows with reservations that have requests staged here; their keys are their slots.
    lanes: Agenda,
    /// The policy's last answer was a part of a command, or may have been one.
    is_joining: bool,
    /// The last `next` did not call the policy: this port's part of the room on the device was
    /// taken.
    is_full: bool,
    /// The state of the settings that this port knows, and the number of slots that it has not
    /// visited since it has changed.
    seen: u64,
    unseen: usize,
}

/// A live request; all zeroes if this layer does not count it.
#[derive(Clone, Copy, Default, Zeroable)]
struct Record {
    slot: u32,
    bytes: u32,
    /// Number of changes of the settings when its caps let it pass.
    changes: u16,
    /// For a request that waits here, the group whose cap held its lane when it came.
    by: u16,
    flags: u8,
    /// The caps that count its operation, and the buckets of its flow's reservation when it came.
    kinds: u8,
}

impl Record {
    /// It waits here for a cap.
    const WAITS: u8 = 1;
    /// It has taken from the caps on its path.
    const PASSED: u8 = 2;
    /// It is in its flow's counts.
    const COUNTED: u8 = 4;
    /// The policy holds it.
    const STAGED: u8 = 8;
    /// It was on the device before, and its flow's reservation is charged for it.
    const AGAIN: u8 = 16;
    /// The policy has issued it, and it is on the device.
    const OUT: u8 = 32;
    /// It is on the device, and the policy does not know it.
    const AHEAD: u8 = 64;
    /// It went to the device's urgent class.
    const URGENT: u8 = 128;

    fn is(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Its flow's reservation.
    fn claim(self) -> Claim {
        let kinds = self.kinds >> LEAST_SHIFT;
        Claim { slot: self.slot as usize, kinds, bytes: self.bytes }
    }
}

impl<Q: Port, P: Platform> LimitedPort<Q, P> {
    pub(super) fn new(inner: Q, shared: Arc<Shared<P>>, index: usize, tags: usize) -> Self {
        let flows = shared.flows;
        LimitedPort {
            inner,
            index,
            records: zeroes(tags),
            waiting: Waiting::new(tags, flows),
            held: 0,
            live: 0,
            staged: 0,
            reserved: 0,
            done: [0; 2],
            ahead: 0,
            most_ahead: (tags / PART).max(1) as u32,
            others: 0,
            lanes: Agenda::new(tags.min(flows).max(1), flows),
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

    /// Publishes this port's counts.
    fn show(&self) {
        if let Some(words) = self.shared.ports.get(self.index) {
            words.show(self.done, self.staged, self.live);
        }
    }

    fn activity(&self, slot: u32) -> Option<&Activity<P>> {
        self.shared.activity.get(self.index)?.get(slot as usize)
    }

    #[inline]
    fn count_submitted(&self, slot: u32) {
        if let Some(activity) = self.activity(slot) {
            activity.submitted(true);
        }
    }
}

/// Caps: requests before the policy.
impl<Q: Port, P: Platform> LimitedPort<Q, P> {
    /// Keeps the request until the caps on its path let it pass.
    #[cold]
    fn wait(&mut self, now: Time, request: &Request, path: &Path, wait: Wait) {
        let slot = request.flow.slot();
        // A lane of a flow that is gone has requests, so its slot is not another flow's.
        let lane = self.waiting.lane_of(request).or_else(|| {
            let weight = self.weight(slot);
            let at_ns = self.shared.again_ns(now, wait, path, weight);
            let lane = self.waiting.open(request, at_ns, wait.by)?;
            self.count_lane(lane, request, path, weight);
            Some(lane)
        });
        let by = lane.map_or(0, |lane| self.waiting.push(lane, now.ns(), request));
        self.put(request.tag, Record { flags: Record::WAITS, by, ..Record::default() });
        self.held = self.held.saturating_add(1);
        self.shared.count_held(slot, by);
    }

    /// Weight of a lane of the flow in this slot beside others.
    fn weight(&self, slot: usize) -> u64 {
        self.shared.account(slot).map_or(0, |account| account.weight.load(Ordering::Relaxed))
    }

    /// Counts the lane in its groups, if the lane, its groups or its weight are new.
    fn count_lane(&mut self, lane: usize, request: &Request, path: &Path, weight: u64) {
        let Some(lane) = self.waiting.lanes.get_mut(lane) else { return };
        if (lane.groups, lane.weight) == (path.groups, weight) {
            return;
        }
        let (slot, is_write) = (request.flow.slot(), is_write(request));
        self.shared.weigh_lane(slot, &lane.groups, is_write, lane.weight.wrapping_neg());
        (lane.groups, lane.weight) = (path.groups, weight);
        self.shared.weigh_lane(slot, &lane.groups, is_write, weight);
    }

    /// Takes out a waiting request. Gives its lane, unless that is empty and closed now.
    fn leave(&mut self, now_ns: u64, request: &Request, since_ns: u64) -> Option<usize> {
        let slot = request.flow.slot();
        let Record { by, .. } = self.record(request.tag);
        self.put(request.tag, Record::default());
        self.held = self.held.saturating_sub(1);
        self.shared.count_off(slot, by, now_ns.saturating_sub(since_ns));
        let (lane, closed) = self.waiting.take(request)?;
        let Some(closed) = closed else { return Some(lane) };
        let gone = closed.weight.wrapping_neg();
        self.shared.weigh_lane(slot, &closed.groups, is_write(request), gone);
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
            let path = self.shared.path(&request);
            let weight = self.weight(request.flow.slot());
            // Weight and groups may have changed while the lane waited, and turns are computed from
            // them.
            self.count_lane(lane, &request, &path, weight);
            if let Err(wait) = self.shared.take(now, &path) {
                let at_ns = self.shared.again_ns(now, wait, &path, weight);
                self.waiting.agenda.visit_at(lane, at_ns);
                if let Some(lane) = self.waiting.lanes.get_mut(lane) {
                    lane.by = wait.by;
                }
                continue;
            }
            let is_fenced = self.waiting.lanes.get(lane).is_some_and(|lane| lane.is_fenced);
            if let Some(lane) = self.leave(now_ns, &request, since_ns) {
                let pace_ns = self.shared.pace_ns(now, &path, weight);
                self.waiting.sent(lane, now_ns, pace_ns);
            }
            // The barrier came while the request waited here, and stands on both sides of it.
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            let submitted = self.pass(now_ns, &request, Some(&path), wake);
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

    /// Submits to the policy a request that has taken from the caps on its path, if there are any.
    #[cold]
    #[inline(never)]
    fn pass(
        &mut self,
        now_ns: u64,
        request: &Request,
        path: Option<&Path>,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let paid = path.filter(|path| !path.is_free());
        let mut submitted = match self.inner.submit(now_ns, request, wake) {
            Ok(submitted) => submitted,
            Err(why) => {
                paid.into_iter().for_each(|path| self.shared.refund(path));
                return Err(why);
            }
        };
        let state = self.shared.state();
        if paid.is_none() && state & SHARED == 0 {
            return Ok(submitted);
        }
        let mut record = Record {
            slot: request.flow.slot() as u32,
            bytes: counted_bytes(request.op, request.length),
            changes: Shared::<P>::changes(state),
            by: 0,
            flags: if paid.is_some() { Record::PASSED } else { 0 },
            kinds: counted_by(request.op),
        };
        self.live = self.live.saturating_add(1);
        if state & SHARED != 0 {
            record.flags |= Record::COUNTED;
            self.count_submitted(record.slot);
        }
        if state & RESERVED != 0 {
            let least = path.map_or_else(|| self.shared.least_of(request.flow), |path| path.least);
            (record, submitted) = self.admitted(now_ns, request.flow, least, record, submitted);
        }
        self.put(request.tag, record);
        Ok(submitted)
    }
}

/// Reservations: requests that the policy has.
impl<Q: Port, P: Platform> LimitedPort<Q, P> {
    /// Counts a request that the policy has accepted.
    fn admitted(
        &mut self,
        now_ns: u64,
        flow: FlowId,
        least: u8,
        mut record: Record,
        mut submitted: Submitted,
    ) -> (Record, Submitted) {
        record.kinds |= least << LEAST_SHIFT;
        match &mut submitted {
            Submitted::Staged => {
                record.flags |= Record::STAGED;
                self.staged = self.staged.saturating_add(1);
                if least != 0 {
                    self.reserved = self.reserved.saturating_add(1);
                    self.open(flow, now_ns);
                }
            }
            Submitted::Issue { class } if least != 0 => {
                let (now, claim) = (Time::of_ns(now_ns), record.claim());
                let may = self.shared.take_least(now, claim).is_ok();
                if may && self.shared.has_classes {
                    *class = Class::Urgent;
                    record.flags |= Record::URGENT;
                    self.shared.count_ahead(claim.slot);
                } else if !may {
                    self.shared.spend(now, claim);
                }
            }
            Submitted::Issue { .. } => {}
        }
        self.show();
        (record, submitted)
    }

    /// Opens a lane for the flow, if it has none.
    #[inline]
    fn open(&mut self, flow: FlowId, now_ns: u64) {
        let slot = flow.slot();
        if self.lanes.lane(slot, flow).is_none() {
            // The lane of a flow that had the slot before.
            self.close(slot);
            if self.lanes.open(slot, flow, now_ns).is_some() {
                self.shared.count_port(slot, true);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        if self.lanes.close(slot) {
            self.shared.count_port(slot, false);
        }
    }

    /// Notes that the policy no longer holds this request.
    fn unstaged(&mut self, record: Record) {
        let is_staged = record.is(Record::STAGED);
        self.staged = self.staged.saturating_sub(is_staged.into());
        let is_reserved = is_staged && record.claim().kinds != 0;
        self.reserved = self.reserved.saturating_sub(is_reserved.into());
    }

    /// Notes that the policy has issued the request.
    fn left(&mut self, now_ns: u64, tag: Tag) {
        let mut record = self.record(tag);
        // It came before there were reservations, when ports did not count staged requests.
        if !record.is(Record::STAGED) {
            return;
        }
        self.unstaged(record);
        record.flags = record.flags & !Record::STAGED | Record::OUT;
        self.put(tag, record);
        self.others = self.others.saturating_add(1);
        if record.claim().kinds != 0 && !record.is(Record::AGAIN) {
            self.shared.spend(Time::of_ns(now_ns), record.claim());
        }
    }

    /// Ends a request, which is done or taken back. Out of line, like the verbs below.
    #[cold]
    #[inline(never)]
    fn ended(&mut self, tag: Tag, is_done: bool) {
        let Some(place) = self.records.get_mut(tag.0 as usize) else { return };
        let record = core::mem::take(place);
        if record.flags == 0 {
            return;
        }
        self.live = self.live.saturating_sub(1);
        if !record.is(Record::COUNTED) {
            return;
        }
        match self.activity(record.slot) {
            Some(activity) if is_done => activity.completed(record.bytes),
            Some(activity) => activity.submitted(false),
            None => {}
        }
        if self.shared.state() & RESERVED == 0 {
            return;
        }
        if record.is(Record::OUT) {
            self.others = self.others.saturating_sub(1);
        } else if record.is(Record::AHEAD) {
            self.ahead = self.ahead.saturating_sub(1);
            self.shared.ahead.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.unstaged(record);
        }
        if is_done {
            let [requests, bytes] = self.done;
            self.done = [requests.wrapping_add(1), bytes.wrapping_add(record.bytes.into())];
        }
        self.show();
    }

    /// Whether a staged request may go before all others.
    fn may_go(&self) -> bool {
        self.lanes.open > 0 && self.ahead < self.most_ahead
    }

    /// Notes that a counted request goes to the device before all others.
    fn goes_ahead(&mut self, tag: Tag, record: Record) {
        self.unstaged(record);
        let flags = record.flags & !(Record::STAGED | Record::OUT) | Record::AHEAD;
        self.put(tag, Record { flags, ..record });
        self.ahead = self.ahead.saturating_add(1);
        self.shared.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Visits some flows after reservations have changed, and opens lanes for those that have
    /// requests staged here.
    #[cold]
    fn visit_flows(&mut self, now_ns: u64, state: u64) {
        if self.seen != state {
            // Answers are read only while there are reservations, and the last one before may have
            // been a `Join`.
            self.is_joining |= self.seen & RESERVED == 0;
            (self.seen, self.unseen) = (state, self.shared.flows);
        }
        // Some of the slots in each call, since a verb is bounded: the next calls go on.
        for _ in 0..AT_ONCE.min(self.unseen) {
            self.unseen -= 1;
            let Some(flow) = self.shared.reserved_in(self.unseen) else { continue };
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
            let (slot, kinds) = (flow.slot(), self.shared.least_of(flow));
            let later_ns = |when: Time| when.ns().min(now_ns.saturating_add(AGAIN_NS));
            // The request is not known yet: this checks for one byte, and `take_least` for all of
            // them. It comes before the call for a staged request, for which `kyber` has to search.
            let when = self.shared.when_least(now, Claim { slot, kinds, bytes: 1 });
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
            let claim = Claim { slot, kinds, bytes: record.bytes };
            if let Err(when) = self.shared.take_least(now, claim) {
                self.lanes.visit_at(lane, later_ns(when));
                continue;
            }
            if !self.inner.expedite(now_ns, tag, wake) {
                // It is part of a command, or about to go.
                self.shared.refund_least(claim);
                self.lanes.visit_at(lane, now_ns.saturating_add(CHOSEN_NS));
                continue;
            }
            // Other ports may have requests of the flow, too: ports take turns.
            let turn_ns = self.shared.turn_ns(now, claim);
            self.lanes.visit_at(lane, now_ns.saturating_add(turn_ns.min(AGAIN_NS)));
            if !record.is(Record::COUNTED) {
                // It was submitted when there was nothing to count.
                self.live = self.live.saturating_add((record.flags == 0).into());
                (record.slot, record.flags) = (slot as u32, record.flags | Record::COUNTED);
                self.count_submitted(record.slot);
            }
            self.goes_ahead(tag, record);
            self.shared.count_ahead(slot);
            return Some(Next::Issue { tag, class: Class::Medium });
        }
        None
    }
}

/// The verbs while there is something to do. Out of line, so that else a verb is the policy's own.
impl<Q: Port, P: Platform> LimitedPort<Q, P> {
    #[cold]
    #[inline(never)]
    fn submit_limited(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let path = self.shared.path(request);
        if self.held > 0 && self.record(request.tag).is(Record::WAITS) {
            return Err(SubmitError::BadTag);
        }
        if !path.is_free() {
            let now = Time::of_ns(now_ns);
            // Requests in a lane are before it.
            let may_go = match self.held > 0 && self.waiting.lane_of(request).is_some() {
                false => self.shared.take(now, &path),
                true => Err(Wait { until: now, by: 0 }),
            };
            if let Err(wait) = may_go {
                self.inner.hold(request.tag, request.flow)?;
                self.wait(now, request, &path, wait);
                return Ok(Submitted::Staged);
            }
        }
        self.pass(now_ns, request, Some(&path), wake)
    }

    #[cold]
    #[inline(never)]
    fn next_limited(&mut self, now_ns: u64, state: u64, wake: &mut PortSet) -> Next {
        let reserves = state & RESERVED != 0;
        if reserves && (self.seen != state || self.unseen > 0) {
            self.visit_flows(now_ns, state);
        }
        // After a `Join` the policy continues its command.
        if !self.is_joining {
            if self.held > 0
                && let Some(next) = self.release(now_ns, wake)
            {
                return next;
            }
            if reserves
                && self.lanes.first_ns <= now_ns
                && let Some(next) = self.first(now_ns, wake)
            {
                return next;
            }
        }
        // A full port has at least one request on the device, so its caller calls `next` again when
        // that completes.
        let is_taken = u64::from(self.others) >= self.shared.room.load(Ordering::Relaxed);
        self.is_full = is_taken && self.staged > 0 && !self.is_joining;
        let next = if self.is_full { Next::Blocked } else { self.inner.next(now_ns, wake) };
        self.is_joining = matches!(next, Next::Join { .. });
        if let Next::Issue { tag, .. } | Next::Join { tag } = next {
            self.left(now_ns, tag);
            return next;
        }
        // Time alone fills a bucket: no verb of another port wakes this one then. If as many
        // requests as may have gone ahead, a completion has to come first.
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

impl<Q: Port, P: Platform> layer::PortLayer for LimitedPort<Q, P> {
    type Inner = Q;

    fn inner(&self) -> &Q {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let state = self.shared.state();
        if state & CAPPED != 0 {
            return self.submit_limited(now_ns, request, wake);
        }
        if state != 0 {
            return self.pass(now_ns, request, None, wake);
        }
        self.inner.submit(now_ns, request, wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let state = self.shared.state();
        if self.held > 0 || state & RESERVED != 0 {
            return self.next_limited(now_ns, state, wake);
        }
        self.inner.next(now_ns, wake)
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued && self.live > 0 {
            self.ended(tag, true);
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        let record = self.record(tag);
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if is_gone {
            self.ended(tag, false);
            // A request that was on the device stays charged, and buckets of other caps have given
            // nothing.
            let is_same = record.changes == Shared::<P>::changes(self.shared.state());
            if record.is(Record::PASSED) && !record.is(Record::AGAIN) && is_same {
                self.shared.refund(&self.shared.path_of(record.slot, record.kinds, record.bytes));
            }
        }
        is_gone
    }

    /// The request takes nothing from a cap that it waits for.
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.leave_lane(now_ns, tag);
        let is_gone = self.inner.expedite(now_ns, tag, wake);
        let record = self.record(tag);
        // Staged requests are counted only with reservations.
        if is_gone && record.is(Record::STAGED) {
            self.goes_ahead(tag, record);
        }
        is_gone
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
        let has_grown = self.inner.grow(now_ns, tag, growth, wake);
        // A discard counts for the same bytes whatever its length.
        if has_grown && record.flags != 0 && growth.op != Op::Discard {
            let (now, more) = (Time::of_ns(now_ns), growth.length);
            if record.is(Record::PASSED) {
                let caps = record.kinds & BYTES & CAPS;
                self.shared.charge(now, &self.shared.path_of(record.slot, caps, more));
            }
            // It was charged when it was issued, without the growth.
            if record.is(Record::AGAIN) {
                let kinds = record.kinds & BYTES;
                self.shared.spend(now, Record { kinds, bytes: more, ..record }.claim());
            }
            self.put(tag, Record { bytes: record.bytes.saturating_add(more), ..record });
        }
        has_grown
    }

    layer::forward_port! { hold admit }

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
        // A request that is staged here is of a flow without a reservation, or flows with different
        // reservations have lanes here.
        let is_behind = matches!(reason.held, Some(Held::NoSlot | Held::Target))
            && (self.staged > self.reserved || self.lanes.open > 1)
            && self.shared.ahead.load(Ordering::Relaxed) > 0;
        if is_behind || self.is_full && !reason.is_reserved {
            reason.held = Some(Held::Reserved);
        }
        reason
    }
}
