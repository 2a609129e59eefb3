//! A port of [`Grouped`](super::Grouped): it counts each flow's requests, and lets requests of
//! flows that have less than their reservations go before all others.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::shared::{Activity, Level, Shared};
use crate::contract::layer::{self, names::*};
use crate::contract::platform::{AtomicWord, Ordering};
use crate::contract::port::{Answer, Class, Held};
use crate::contract::vtime::VTime;
use crate::policy::bucket::Time;
use crate::structures::allocation::{boxed, zeroes};
use crate::structures::fifo::{Fifo, Links};
use crate::structures::tournament::{Key, Tournament};

/// Lanes, or slots of flows, visited in one call.
const AT_ONCE: usize = 16;
/// The longest time between two visits of a lane, in nanoseconds, since rates change.
const AGAIN_NS: u64 = 100_000_000;
/// Time until the next visit of a lane whose request the policy has chosen already, in nanoseconds.
const CHOSEN_NS: u64 = 1_000_000;
/// The port's tags divided by this are the most requests on the device that went before others.
const PART: usize = 2;
/// No lane.
const NONE: u32 = u32::MAX;

/// A port of [`Grouped`](super::Grouped).
pub struct GroupedPort<Q, P: Platform> {
    inner: Q,
    shared: Arc<Shared<P>>,
    index: usize,
    /// State of each live request that is counted.
    live: Box<[Entry]>,
    counted: u32,
    staged: u32,
    /// Staged requests whose flows had a reservation.
    reserved: u32,
    done: [u64; 2],
    /// Requests on the device that the policy does not know, and the most that there may be.
    ahead: u32,
    most_ahead: u32,
    /// Requests on the device that the policy has issued.
    others: u32,
    lanes: Lanes,
    /// The policy's last answer was a part of a command, or may have been one.
    is_joining: bool,
    /// The last `next` did not call the policy: this port's part of the room on the device was
    /// taken.
    is_full: bool,
    /// The epoch of the reservations that this port knows, and the number of slots that it has not
    /// visited in it.
    epoch: u64,
    unseen: usize,
}

/// A live request in a word: its flow's slot and one, flags, and its length; 0 if it is not
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Zeroable)]
struct Entry(u64);

impl Entry {
    const FLAGS: u32 = 25;
    /// The policy holds it.
    const STAGED: u64 = 1 << Self::FLAGS;
    /// It is on the device, and the policy does not know it.
    const AHEAD: u64 = 2 << Self::FLAGS;
    /// It went to the device's urgent class.
    const URGENT: u64 = 4 << Self::FLAGS;
    /// The buckets that its flow had when it came, a bit each.
    const KINDS: u32 = Self::FLAGS + 3;
    /// It was on the device, and its flow's buckets have paid for it.
    const PAID: u64 = 1 << (Self::KINDS + 2);
    /// The policy has issued it while there were reservations, and it is on the device.
    const OUT: u64 = 1 << (Self::KINDS + 3);

    fn new(slot: usize, length: u32, flags: u64) -> Entry {
        Entry(u64::from(length) << 32 | flags | (slot as u64 + 1))
    }

    fn is(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    fn kinds(self) -> u32 {
        (self.0 >> Self::KINDS) as u32 & 3
    }

    fn slot(self) -> usize {
        ((self.0 & (Self::STAGED - 1)) as usize).wrapping_sub(1)
    }

    fn length(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The request after it has grown by `more` bytes.
    fn grown(self, more: u32) -> Entry {
        let length = self.length().saturating_add(more);
        Entry(u64::from(length) << 32 | u64::from(self.0 as u32))
    }
}

/// The flows with reservations that have requests staged here, in the order of their visits.
struct Lanes {
    lanes: Box<[Option<FlowId>]>,
    /// Time of each lane's next visit: the order has the lower 56 bits, two years of nanoseconds.
    at_ns: Box<[u64]>,
    /// The lane of each flow's slot, as its number plus one; 0 for none.
    of: Box<[u32]>,
    free: Fifo,
    links: Links,
    open: u32,
    order: Tournament,
    /// Time of the first visit; [`u64::MAX`] if there is none.
    first_ns: u64,
    turns: u64,
}

impl Lanes {
    fn new(tags: usize, flows: usize) -> Self {
        let lanes = tags.min(flows).max(1);
        let (mut free, mut links) = (Fifo::default(), Links::new(lanes));
        (0..lanes as u32).for_each(|lane| links.push(&mut free, lane));
        Lanes {
            lanes: boxed(lanes, |_| None),
            at_ns: boxed(lanes, |_| 0),
            of: boxed(flows, |_| 0),
            free,
            links,
            open: 0,
            order: Tournament::new(lanes),
            first_ns: u64::MAX,
            turns: 0,
        }
    }

    /// The first lane, and its number.
    fn first(&self) -> Option<(u32, FlowId)> {
        let number = self.order.get()?.tag();
        Some((number as u32, (*self.lanes.get(number)?)?))
    }

    fn look_at(&mut self, number: u32, at_ns: u64) {
        self.turns = self.turns.wrapping_add(1);
        if let Some(lane) = self.at_ns.get_mut(number as usize) {
            *lane = at_ns;
        }
        let key = Key::new(VTime::from_units(at_ns), self.turns, Tag(number));
        self.order.put(number as usize, key);
        self.note_first();
    }

    fn note_first(&mut self) {
        let first = self.order.get().and_then(|key| self.at_ns.get(key.tag()));
        self.first_ns = first.copied().unwrap_or(u64::MAX);
    }

    /// Whether the flow has a lane.
    #[inline]
    fn has(&self, flow: FlowId) -> bool {
        let number = self.of.get(flow.slot()).map_or(NONE, |number| number.wrapping_sub(1));
        self.lanes.get(number as usize) == Some(&Some(flow))
    }

    /// Opens a lane for the flow, which has none, to be visited now; gives whether its slot has one
    /// now and had none before.
    #[cold]
    fn open(&mut self, flow: FlowId, now_ns: u64) -> bool {
        // The lane of a flow that had the slot before.
        let old = self.of.get(flow.slot()).map_or(NONE, |number| number.wrapping_sub(1));
        self.close(old);
        let Some(number) = self.links.pop(&mut self.free) else { return false };
        self.open += 1;
        if let Some(lane) = self.lanes.get_mut(number as usize) {
            *lane = Some(flow);
        }
        if let Some(of) = self.of.get_mut(flow.slot()) {
            *of = number.wrapping_add(1);
        }
        self.look_at(number, now_ns);
        old == NONE
    }

    fn close(&mut self, number: u32) {
        let lane = self.lanes.get_mut(number as usize).and_then(Option::take);
        let Some(flow) = lane else { return };
        if let Some(of) = self.of.get_mut(flow.slot()) {
            *of = 0;
        }
        self.order.remove(number as usize);
        self.note_first();
        self.links.push(&mut self.free, number);
        self.open = self.open.saturating_sub(1);
    }
}

impl<Q: Port, P: Platform> GroupedPort<Q, P> {
    pub(super) fn new(inner: Q, shared: Arc<Shared<P>>, index: usize, tags: usize) -> Self {
        let flows = shared.flows.len();
        GroupedPort {
            inner,
            index,
            live: zeroes(tags),
            counted: 0,
            staged: 0,
            reserved: 0,
            done: [0; 2],
            ahead: 0,
            most_ahead: (tags / PART).max(1) as u32,
            others: 0,
            lanes: Lanes::new(tags, flows),
            // Answers are read only when there are reservations; the last one before that may be a
            // `Join`.
            is_joining: true,
            is_full: false,
            epoch: 0,
            unseen: 0,
            shared,
        }
    }

    fn entry(&self, tag: Tag) -> Entry {
        self.live.get(tag.0 as usize).copied().unwrap_or_default()
    }

    fn put(&mut self, tag: Tag, entry: Entry) {
        if let Some(place) = self.live.get_mut(tag.0 as usize) {
            *place = entry;
        }
    }

    /// Publishes this port's counts.
    fn show(&self) {
        if let Some(words) = self.shared.ports.get(self.index) {
            words.show(self.done, self.staged, self.counted);
        }
    }

    /// Notes that the policy no longer holds this request.
    fn unstaged(&mut self, entry: Entry) {
        self.staged = self.staged.saturating_sub(entry.is(Entry::STAGED).into());
        let is_reserved = entry.is(Entry::STAGED) && entry.kinds() != 0;
        self.reserved = self.reserved.saturating_sub(is_reserved.into());
    }

    fn activity(&self, slot: usize) -> Option<&Activity<P>> {
        self.shared.activity.get(self.index)?.get(slot)
    }

    /// Counts a request of the flow in this slot, or takes it off the count.
    #[inline]
    fn count_submitted(&self, slot: usize, more: bool) {
        if let Some(activity) = self.activity(slot) {
            activity.submitted(more);
        }
    }

    #[inline]
    fn count_completed(&self, slot: usize, length: u32) {
        if let Some(activity) = self.activity(slot) {
            activity.completed(length);
        }
    }

    /// Counts a submitted request while no flow has a reservation.
    #[inline]
    fn came(&mut self, request: &Request) {
        self.put(request.tag, Entry::new(request.flow.slot(), request.length, 0));
        self.counted = self.counted.saturating_add(1);
        self.count_submitted(request.flow.slot(), true);
    }

    /// Counts a completed request while no flow has a reservation.
    #[inline]
    fn went(&mut self, tag: Tag) {
        let entry = self.entry(tag);
        if entry != Entry::default() {
            self.put(tag, Entry::default());
            self.counted = self.counted.saturating_sub(1);
            self.count_completed(entry.slot(), entry.length());
        }
    }

    /// Counts a submitted request.
    fn taken(&mut self, now_ns: u64, request: &Request, submitted: &mut Submitted) {
        let flow = request.flow;
        let kinds = self.shared.kinds(flow);
        let mut flags = u64::from(kinds) << Entry::KINDS;
        match submitted {
            Submitted::Staged => {
                flags |= Entry::STAGED;
                self.staged = self.staged.saturating_add(1);
                if kinds != 0 {
                    self.reserved = self.reserved.saturating_add(1);
                    self.open(flow, now_ns);
                }
            }
            Submitted::Issue { class } if kinds != 0 => {
                let (now, slot) = (Time::of_ns(now_ns), flow.slot());
                let may = self.shared.take(now, slot, kinds, request.length).is_ok();
                if may && self.shared.has_classes {
                    *class = Class::Urgent;
                    flags |= Entry::URGENT;
                    self.shared.went_ahead(slot);
                } else if !may {
                    self.shared.spend(now, slot, kinds, request.length);
                }
            }
            Submitted::Issue { .. } => {}
        }
        self.put(request.tag, Entry::new(flow.slot(), request.length, flags));
        self.counted = self.counted.saturating_add(1);
        self.count_submitted(flow.slot(), true);
        self.show();
    }

    /// Opens a lane for the flow, if it has none.
    #[inline]
    fn open(&mut self, flow: FlowId, now_ns: u64) {
        if !self.lanes.has(flow) && self.lanes.open(flow, now_ns) {
            self.shared.lanes(flow.slot(), true);
        }
    }

    /// Notes that the policy has issued the request.
    fn left(&mut self, now_ns: u64, tag: Tag) {
        let entry = self.entry(tag);
        // It came before there were reservations, when ports did not count staged requests.
        if !entry.is(Entry::STAGED) {
            return;
        }
        self.unstaged(entry);
        self.put(tag, Entry(entry.0 & !Entry::STAGED | Entry::OUT));
        self.others = self.others.saturating_add(1);
        if entry.kinds() != 0 && !entry.is(Entry::PAID) {
            let now = Time::of_ns(now_ns);
            self.shared.spend(now, entry.slot(), entry.kinds(), entry.length());
        }
    }

    /// Notes that the policy holds the request again.
    fn came_back(&mut self, tag: Tag) {
        let entry = self.entry(tag);
        if entry == Entry::default() || entry.is(Entry::STAGED) {
            return;
        }
        self.others = self.others.saturating_sub(entry.is(Entry::OUT).into());
        self.staged = self.staged.saturating_add(1);
        self.reserved = self.reserved.saturating_add((entry.kinds() != 0).into());
        self.put(tag, Entry(entry.0 & !Entry::OUT | Entry::STAGED | Entry::PAID));
        self.show();
    }

    /// Ends a request, which is done or taken back.
    fn ended(&mut self, tag: Tag, is_done: bool) {
        let entry = self.entry(tag);
        if entry == Entry::default() {
            return;
        }
        self.put(tag, Entry::default());
        self.unstaged(entry);
        self.others = self.others.saturating_sub(entry.is(Entry::OUT).into());
        self.counted = self.counted.saturating_sub(1);
        if is_done {
            let length = entry.length();
            self.count_completed(entry.slot(), length);
            self.done = [self.done[0].wrapping_add(1), self.done[1].wrapping_add(length.into())];
        } else {
            self.count_submitted(entry.slot(), false);
        }
        self.show();
    }

    /// Whether this port's part of the room on the device is taken. At least one request of the
    /// port is on the device then, so the caller calls `next` again when that completes.
    fn is_full(&self) -> bool {
        u64::from(self.others) >= self.shared.room.load(Ordering::Relaxed)
    }

    /// Notes that a counted request goes to the device before all others.
    fn goes_ahead(&mut self, tag: Tag, slot: usize, kinds: u32) {
        let entry = self.entry(tag);
        self.unstaged(entry);
        let flags = u64::from(kinds) << Entry::KINDS | Entry::AHEAD;
        self.put(tag, Entry::new(slot, entry.length(), flags));
        self.ahead = self.ahead.saturating_add(1);
        self.shared.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Visits some flows after reservations have changed, and opens lanes for those that have
    /// requests staged here.
    #[cold]
    fn look_around(&mut self, now_ns: u64, epoch: u64) {
        if self.epoch != epoch {
            (self.epoch, self.unseen) = (epoch, self.shared.flows.len());
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

    fn close(&mut self, number: u32, flow: FlowId) {
        self.lanes.close(number);
        self.shared.lanes(flow.slot(), false);
    }

    /// A request that goes before all others, if some flow has less than its reservation.
    fn first(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            if self.lanes.first_ns > now_ns || self.ahead >= self.most_ahead {
                return None;
            }
            let (number, flow) = self.lanes.first()?;
            let (slot, kinds) = (flow.slot(), self.shared.kinds(flow));
            let later_ns = |when: Time| when.ns().min(now_ns.saturating_add(AGAIN_NS));
            // This comes before the call for a staged request, for which `kyber` has to search.
            let when = self.shared.when(now, slot, kinds);
            if kinds != 0 && when > now {
                self.lanes.look_at(number, later_ns(when));
                continue;
            }
            let staged = self.inner.staged(flow);
            let Some(tag) = staged.filter(|_| kinds != 0) else {
                self.close(number, flow);
                continue;
            };
            let entry = self.entry(tag);
            if let Err(when) = self.shared.take(now, slot, kinds, entry.length()) {
                self.lanes.look_at(number, later_ns(when));
                continue;
            }
            if !self.inner.expedite(now_ns, tag, wake) {
                // It is part of a command, or about to go.
                self.shared.give_back(slot, kinds, entry.length());
                self.lanes.look_at(number, now_ns.saturating_add(CHOSEN_NS));
                continue;
            }
            // Other ports may have requests of the flow, too: ports take turns.
            let turn_ns = self.shared.turn_ns(now, slot, kinds, entry.length());
            self.lanes.look_at(number, now_ns.saturating_add(turn_ns.min(AGAIN_NS)));
            if entry == Entry::default() {
                // It was submitted when nothing was counted.
                self.counted = self.counted.saturating_add(1);
                self.count_submitted(slot, true);
            }
            self.goes_ahead(tag, flow.slot(), kinds);
            self.shared.went_ahead(slot);
            return Some(Next::Issue { tag, class: Class::Medium });
        }
        None
    }
}

impl<Q: Port, P: Platform> GroupedPort<Q, P> {
    /// `submit` while there are groups or reservations. Out of line, like `next_reserved`, so that
    /// without them a verb is the policy's own.
    #[cold]
    #[inline(never)]
    fn submit_counted(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.shared.level() == Level::Shares {
            let submitted = self.inner.submit(now_ns, request, wake)?;
            self.came(request);
            return Ok(submitted);
        }
        let mut submitted = self.inner.submit(now_ns, request, wake)?;
        self.taken(now_ns, request, &mut submitted);
        Ok(submitted)
    }

    /// `next` while there are reservations.
    #[cold]
    #[inline(never)]
    fn next_reserved(&mut self, now_ns: u64, wake: &mut PortSet) -> Answer {
        let epoch = self.shared.epoch();
        if self.epoch != epoch || self.unseen > 0 {
            self.look_around(now_ns, epoch);
        }
        // After a `Join` the policy continues its command.
        if !self.is_joining
            && self.lanes.first_ns <= now_ns
            && let Some(next) = self.first(now_ns, wake)
        {
            return next.into();
        }
        self.is_full = self.staged > 0 && !self.is_joining && self.is_full();
        let next = if self.is_full { Next::Blocked } else { self.inner.next(now_ns, wake) };
        self.is_joining = matches!(next, Next::Join { .. });
        if let Next::Issue { tag, .. } | Next::Join { tag } = next {
            self.left(now_ns, tag);
            return next.into();
        }
        if self.ahead >= self.most_ahead {
            // A completion has to come first.
            return next.into();
        }
        let next = match next {
            _ if self.lanes.open == 0 => next,
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(self.lanes.first_ns)),
            // Time alone fills a bucket: no verb of another port wakes this one then.
            Next::Blocked => Next::WaitUntil(self.lanes.first_ns),
            _ => next,
        };
        next.into()
    }

    /// Counts a request as done.
    #[cold]
    #[inline(never)]
    fn completed(&mut self, tag: Tag) {
        if self.shared.level() == Level::Shares {
            self.went(tag);
            return;
        }
        if self.entry(tag).is(Entry::AHEAD) {
            self.ahead = self.ahead.saturating_sub(1);
            self.shared.ahead.fetch_sub(1, Ordering::Relaxed);
        }
        self.ended(tag, true);
    }
}

impl<Q: Port, P: Platform> layer::PortLayer for GroupedPort<Q, P> {
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
        if self.shared.is_on() {
            return self.submit_counted(now_ns, request, wake);
        }
        self.inner.submit(now_ns, request, wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.shared.level() == Level::Reservations {
            return self.next_reserved(now_ns, wake).into();
        }
        self.inner.next(now_ns, wake)
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued && self.counted > 0 {
            self.completed(tag);
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if is_gone && self.counted > 0 {
            self.ended(tag, false);
        }
        is_gone
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.expedite(now_ns, tag, wake);
        let entry = self.entry(tag);
        // Staged requests are counted only with reservations.
        if is_gone && entry.is(Entry::STAGED) {
            self.goes_ahead(tag, entry.slot(), entry.kinds());
        }
        is_gone
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let has_grown = self.inner.grow(now_ns, tag, growth, wake);
        let entry = self.entry(tag);
        if has_grown && entry != Entry::default() {
            self.put(tag, entry.grown(growth.length));
            // It was charged when it was issued, without the growth.
            if entry.is(Entry::PAID) {
                let now = Time::of_ns(now_ns);
                self.shared.spend_bytes(now, entry.slot(), entry.kinds(), growth.length);
            }
        }
        has_grown
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        let submitted = self.inner.requeue(now_ns, tag, wake);
        if submitted == Some(Submitted::Staged) && self.shared.level() == Level::Reservations {
            self.came_back(tag);
        }
        submitted
    }

    fn has_work(&self) -> bool {
        let may_go = self.lanes.open > 0 && self.ahead < self.most_ahead;
        may_go || self.inner.has_work()
    }

    layer::forward_port! { hold barrier admit staged flow_stats }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let is_reserved = tag.is_some_and(|tag| self.entry(tag).is(Entry::AHEAD | Entry::URGENT));
        let mut reason = Reason { is_reserved, ..self.inner.reason(tag) };
        // A request that is staged here is of a flow without a reservation, or flows with different
        // reservations have lanes here.
        let is_behind = matches!(reason.held, Some(Held::NoSlot | Held::Target))
            && (self.staged > self.reserved || self.lanes.open > 1)
            && self.shared.is_ahead();
        if is_behind || self.is_full && !reason.is_reserved {
            reason.held = Some(Held::Reserved);
        }
        reason
    }
}
