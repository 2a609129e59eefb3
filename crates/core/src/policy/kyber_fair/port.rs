//! One port of Kyber-fairness: the three verbs.
//!
//! **The port's own state.** For each flow a port has a queue set and the tokens in hand, which may
//! be negative: a request goes if there is one token, and its cost beyond that is a debt. Flows
//! that have requests are in one of two lists: *ready*, served in turn, a batch each; and
//! *throttled*, out of tokens until the next period. A flow's tokens are valid in the period in
//! which they were taken and the next; debts do not expire. All this is in the flow's seat
//! ([`PortFlows`]); if another flow takes the seat, tokens in hand are dropped, and a debt is left
//! with the pot, from which the next port that the flow comes to takes it over.
//!
//! **Bounds of loops.** In one period `next` visits each flow of the ready list at most once: a
//! flow sends, or goes to the throttled list. Each further round follows another period, begun here
//! or elsewhere. The port begins several in a row only while all flows have debts for large
//! requests; their tokens double each time (`predict`), so that is some 40 times at most before one
//! can send, or 64 periods for each flow if a request cost 16 TiB. Other ports may begin periods
//! meanwhile. So one call follows [`MOST_PERIODS`] and then returns, to be called again at once.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytemuck::Zeroable;

use super::domain::{Again, Domain, QueueSet, State};
use super::period::{Period, Taken};
use super::predict::Ratio;
use super::units::{Units, next_of};
use super::{KyberFairConfig, Latency, Line, Shared};
use crate::contract::bounds::{boxed, zeroes};
use crate::contract::flow::FlowId;
use crate::contract::platform::{AtomicWord, Native, Ordering, Platform};
use crate::contract::port::{
    Class, FlowStats, Growth, Next, Outcome, Port, Reason, Request, SubmitError, Submitted, Tag,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::policy::serial::merge::{Piece, Placed};
use crate::structures::port_flows::PortFlows;
use crate::structures::queues::{Fifo, Links};

/// No request is charged more than this, 1 TiB, before the ratio is applied.
const MAX_CHARGE: u64 = 1 << 40;
/// The most periods that one call of `next` goes through. In all but absurd cases some flow has
/// paid its debts after fewer periods and can send.
const MOST_PERIODS: u32 = 64;

/// One shard's port of Kyber-fairness.
pub struct KyberFairPort<P: Platform = Native> {
    shared: Arc<Shared<P>>,
    local: Local,
}

/// State of one port.
struct Local {
    port: PortId,
    /// For each flow, the cost of the requests that it has sent from this port.
    account: PortFlows<u64>,
    entries: Box<[Entry]>,
    units: Units,
    links: Links,
    /// By seat.
    flows: Box<[LocalFlow]>,
    again: Again,
    /// Links of the seats in the two lists.
    ring: Links,
    ready: Fifo,
    throttled: Fifo,
    period: Period,
    write_ratio: u64,
    /// The counters of the port's line.
    outstanding: u64,
    used: u64,
    throttles: u64,
    blocks: u64,
    wakes: u64,
}

/// State of a tag. An entry of zeroes is free.
#[derive(Clone, Copy, Zeroable)]
struct Entry {
    cost: u64,
    issued_ns: u64,
    /// Its flow's seat.
    seat: u32,
    domain: Domain,
    state: State,
}

/// State of a flow on a port; one cache line.
#[repr(align(64))]
struct LocalFlow {
    queues: QueueSet,
    tokens: i64,
    /// The period in which the flow last took tokens or ran out of them here; 0: none.
    number: u64,
    /// The flow in this seat.
    owner: FlowId,
    list: List,
}

/// The list that a flow is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    None,
    Ready,
    /// Out of tokens in the period of its `number`: with another period it is ready.
    Throttled,
}

const _: () = assert!(size_of::<LocalFlow>() == 64);

impl LocalFlow {
    /// A flow that comes to a port with a debt of `debt` tokens.
    fn new(owner: FlowId, debt: i64) -> Self {
        LocalFlow { queues: QueueSet::default(), tokens: -debt, number: 0, owner, list: List::None }
    }
}

impl<P: Platform> KyberFairPort<P> {
    pub(super) fn new(port: PortId, config: &KyberFairConfig, shared: Arc<Shared<P>>) -> Self {
        let tags = config.tags;
        let account = PortFlows::new(port, &shared.flows, tags);
        let seats = account.seats();
        let units = Units::new(seats, tags, config.merge_bytes);
        // Generations begin at 1.
        let nobody = || LocalFlow::new(FlowId::new(0, 0), 0);
        let period = shared.periods.now();
        let local = Local {
            port,
            account,
            entries: zeroes(tags),
            links: Links::new(units.bound()),
            units,
            flows: boxed(seats, |_| nobody()),
            again: Again::new(tags),
            ring: Links::new(seats),
            ready: Fifo::default(),
            throttled: Fifo::default(),
            period,
            write_ratio: Ratio::ONE,
            outstanding: 0,
            used: 0,
            throttles: 0,
            blocks: 0,
            wakes: 0,
        };
        KyberFairPort { shared, local }
    }
}

impl<P: Platform> Port for KyberFairPort<P> {
    #[inline]
    fn submit(
        &mut self,
        _now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let KyberFairPort { shared, local } = self;
        let free = |entry: &&mut Entry| entry.state == State::Free;
        let entry = local
            .entries
            .get_mut(request.tag.0 as usize)
            .filter(free)
            .ok_or(SubmitError::BadTag)?;
        // The port's state of the flow in a seat is in `flows`, which `reseat` keeps current.
        let (weight, seat) =
            local.account.admit(&shared.flows, request.flow, request.tag, |_, _| ())?;
        let flow = local.flows.get_mut(seat).ok_or(SubmitError::NoSuchFlow)?;
        // A seat changes hands only while it is idle.
        if local.account.live(seat) == 1 && flow.owner != request.flow {
            shared.reseat(flow, request.flow);
        }
        let domain = Domain::of(request.op);
        let cost = match local.units.place(request, seat, weight) {
            Placed::New(unit) => {
                flow.queues.stage(&mut local.links, domain, unit.0);
                request.cost.alone
            }
            Placed::Into { .. } => request.cost.joined,
        };
        let cost = cost.min(MAX_CHARGE);
        let seat = seat as u32;
        *entry = Entry { cost, issued_ns: 0, seat, domain, state: State::Staged };
        if flow.list == List::None {
            flow.list = List::Ready;
            local.ring.push(&mut local.ready, seat);
        }
        Ok(Submitted::Staged)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let KyberFairPort { shared, local } = self;
        // The caller is in the midst of a command, and nothing else may come between its parts.
        if let Some(piece) = local.units.piece() {
            return local.send(shared, &piece, now_ns);
        }
        if let Some(next) = local.issue_again() {
            return next;
        }
        local.account.poll(&shared.flows, wake);
        local.follow(shared);
        for _ in 0..MOST_PERIODS {
            while let Some(seat) = local.ready.first() {
                if !local.has_tokens(shared, seat, wake) {
                    local.ring.pop(&mut local.ready);
                    local.ring.push(&mut local.throttled, seat);
                    if let Some(flow) = local.flows.get_mut(seat as usize) {
                        flow.list = List::Throttled;
                    }
                    local.throttles += 1;
                } else if let Some(piece) = local.pick(seat) {
                    return local.send(shared, &piece, now_ns);
                }
            }
            if local.throttled.is_empty() {
                return Next::Idle;
            }
            if let Some(waits) = local.starve(shared, now_ns, wake) {
                return waits;
            }
        }
        // This call has gone through enough periods; the caller calls again at once.
        Next::WaitUntil(now_ns)
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let KyberFairPort { shared, local } = self;
        let issued = |entry: &&mut Entry| entry.state == State::Issued;
        let Some(entry) = local.entries.get_mut(tag.0 as usize).filter(issued) else {
            return local.account.complete_ahead(&shared.flows, tag);
        };
        entry.state = State::Free;
        let Entry { issued_ns, seat, domain, .. } = *entry;
        local.account.finish(&shared.flows, seat as usize);
        // A command counts as outstanding until the last of its parts has completed.
        if local.units.completed(tag, outcome) {
            if let Some(line) = shared.lines.get(usize::from(local.port.0)) {
                measure(line, domain, now_ns.saturating_sub(issued_ns));
            }
            local.left(shared, now_ns, wake);
        }
        true
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.local.account.has_room(&self.shared.flows, flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let KyberFairPort { shared, local } = self;
        match local.take_back(shared, now_ns, tag, wake) {
            Some(seat) => local.account.finish(&shared.flows, seat),
            None => return local.account.cancel_held(&shared.flows, tag),
        }
        true
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let KyberFairPort { shared, local } = self;
        match local.take_back(shared, now_ns, tag, wake) {
            Some(seat) => local.account.goes_ahead(tag, seat),
            None => return local.account.expedite_held(tag),
        }
        true
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        let KyberFairPort { shared, local } = self;
        let free = |entry: &&Entry| entry.state == State::Free;
        local.entries.get(tag.0 as usize).filter(free).ok_or(SubmitError::BadTag)?;
        local.account.hold(&shared.flows, flow, tag, |_, _| ())?;
        let seat = local.account.seat(flow).and_then(|seat| local.flows.get_mut(seat));
        if let Some(seat) = seat.filter(|seat| seat.owner != flow) {
            shared.reseat(seat, flow);
        }
        Ok(())
    }

    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let local = &mut self.local;
        let issued = |entry: &&mut Entry| entry.state == State::Issued;
        let Some(entry) = local.entries.get_mut(tag.0 as usize).filter(issued) else {
            let again = Submitted::Issue { class: Class::Medium };
            return local.account.is_ahead(tag).then_some(again);
        };
        local.units.alone(tag)?;
        entry.state = State::Again;
        local.again.push(tag.0);
        Some(Submitted::Staged)
    }

    /// A request to be issued again has been charged; its growth is not charged.
    fn grow(&mut self, _now_ns: u64, tag: Tag, growth: &Growth, _wake: &mut PortSet) -> bool {
        let local = &mut self.local;
        let staged = |entry: &&mut Entry| matches!(entry.state, State::Staged | State::Again);
        let Some(entry) = local.entries.get_mut(tag.0 as usize).filter(staged) else {
            return false;
        };
        if local.units.merges() {
            return false;
        }
        entry.cost = entry.cost.saturating_add(growth.cost).min(MAX_CHARGE);
        true
    }

    /// A throttled flow may go as soon as its period's time is over, which `next` checks.
    fn has_work(&self) -> bool {
        let Local { units, again, ready, throttled, account, .. } = &self.local;
        let is_any = |list: &Fifo| !list.is_empty();
        units.is_in_command()
            || !again.is_empty()
            || is_any(ready)
            || is_any(throttled)
            || account.has_closings(&self.shared.flows)
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.local.staged_of(flow).next()
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let local = &self.local;
        let Some(seat) = local.account.seat(flow) else { return FlowStats::default() };
        let staged = local.staged_of(flow).count() as u32;
        let in_flight = local.account.all(seat).saturating_sub(staged);
        let tokens = local.flows.get(seat).map(|flow| flow.tokens);
        let service = local.account.kept(seat).copied();
        FlowStats { staged, in_flight, service, tokens, ..FlowStats::default() }
    }

    fn reason(&self, _tag: Option<Tag>) -> Reason {
        Reason::default()
    }

    #[inline]
    fn barrier(&mut self, flow: FlowId) {
        // A flow without a seat has no requests here.
        if let Some(seat) = self.local.account.seat(flow) {
            self.local.units.barrier(seat);
        }
    }
}

impl Local {
    /// Follows to another period, if there is one: all flows may send again.
    #[inline]
    fn follow<P: Platform>(&mut self, shared: &Shared<P>) {
        if shared.periods.number() != self.period.number() {
            self.period = shared.periods.now();
            self.write_ratio = shared.write_ratio.load(Ordering::Relaxed);
            self.ring.append(&mut self.ready, &mut self.throttled);
        }
    }

    /// The next request to issue again.
    #[inline]
    fn issue_again(&mut self) -> Option<Next> {
        let tag = Tag(self.again.pop()?);
        self.entries.get_mut(tag.0 as usize)?.state = State::Issued;
        Some(Next::Issue { tag, class: Class::Medium })
    }

    /// The flow's staged requests; of each command the first part.
    fn staged_of(&self, flow: FlowId) -> impl Iterator<Item = Tag> + '_ {
        let seat = self.account.seat(flow);
        let of_flow = move |tag: &u32| {
            let entry = self.entries.get(*tag as usize);
            seat.is_some() && entry.map(|entry| entry.seat as usize) == seat
        };
        let local = seat.and_then(|seat| self.flows.get(seat));
        let again = self.again.iter().filter(of_flow).map(Tag);
        let units = local.into_iter().flat_map(|local| local.queues.iter(&self.links));
        again.chain(units.filter_map(|unit| self.units.first(unit)))
    }

    /// Takes back a request that is staged or to be issued again; gives its flow's seat.
    fn take_back<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        now_ns: u64,
        tag: Tag,
        wake: &mut PortSet,
    ) -> Option<usize> {
        match self.entries.get(tag.0 as usize)?.state {
            State::Staged => self.take_staged(shared, tag, wake),
            State::Again => {
                // It counts as outstanding and was paid for; its latency is not measured, since the
                // device has not served it.
                self.again.remove(tag.0);
                let entry = self.entries.get_mut(tag.0 as usize)?;
                entry.state = State::Free;
                let seat = entry.seat as usize;
                if self.units.completed(tag, Outcome::Done) {
                    self.left(shared, now_ns, wake);
                }
                Some(seat)
            }
            State::Free | State::Issued => None,
        }
    }

    /// Counts a command that has left the device.
    #[inline]
    fn left<P: Platform>(&mut self, shared: &Shared<P>, now_ns: u64, wake: &mut PortSet) {
        let Some(line) = shared.lines.get(usize::from(self.port.0)) else { return };
        self.outstanding = self.outstanding.wrapping_sub(1);
        let busy = shared.busy();
        // This port alone has `busy` requests outstanding, so no sleeper waits for this count, and
        // no order is needed.
        if self.outstanding >= busy {
            line.outstanding.store(self.outstanding, Ordering::Relaxed);
            return;
        }
        // The count is written before the sleepers are read: see *Sleepers* in `period`.
        line.outstanding.store(self.outstanding, Ordering::SeqCst);
        if let Some(sleeper) = shared.periods.a_sleeper_beside(self.port) {
            let outstanding = shared.outstanding();
            if outstanding < busy && shared.periods.calls_for_help(outstanding, now_ns) {
                self.wake(shared, PortSet::only(sleeper), wake);
            }
        }
    }

    /// Takes back a staged request, for which its flow has not paid yet.
    fn take_staged<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        tag: Tag,
        wake: &mut PortSet,
    ) -> Option<usize> {
        let unit = self.units.alone(tag)?;
        let entry = self.entries.get_mut(tag.0 as usize)?;
        entry.state = State::Free;
        let (seat, domain) = (entry.seat, entry.domain);
        self.units.cancel(tag, unit);
        let flow = self.flows.get_mut(seat as usize)?;
        flow.queues.remove(&mut self.links, domain, unit);
        if flow.queues.is_empty() {
            // `follow` moves a whole list and marks no flow, so the period says which list the flow
            // is in.
            let is_throttled = flow.list == List::Throttled && flow.number == self.period.number();
            let list = if is_throttled { &mut self.throttled } else { &mut self.ready };
            self.ring.remove(list, seat);
            flow.list = List::None;
            // A port without a throttled request must not be the one that is woken.
            if self.throttled.is_empty()
                && let Some(sleeper) = shared.periods.delist(self.port)
            {
                self.wake(shared, PortSet::only(sleeper), wake);
            }
        }
        Some(seat as usize)
    }

    /// Whether the flow has a token in hand, or can take some from its pot.
    #[inline]
    fn has_tokens<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        seat: u32,
        wake: &mut PortSet,
    ) -> bool {
        let Some(flow) = self.flows.get_mut(seat as usize) else { return false };
        flow.tokens > 0 && flow.number == self.period.number() || self.take(shared, seat, wake)
    }

    /// Takes tokens from the flow's pot; gives whether it then has one in hand.
    fn take<P: Platform>(&mut self, shared: &Shared<P>, seat: u32, wake: &mut PortSet) -> bool {
        let Some(flow) = self.flows.get_mut(seat as usize) else { return false };
        let slot = flow.owner.slot();
        let Some(pot) = shared.pots.get(slot) else { return false };
        // The port may read a flow's control word while the flow has requests here.
        let weight = shared.flows.weight_in(slot);
        let (periods, number) = (&shared.periods, self.period.number());
        if flow.number != number {
            // Tokens taken in the last period are still valid.
            if flow.number + 1 != number {
                flow.tokens = flow.tokens.min(0);
            }
            flow.number = number;
            flow.list = List::Ready;
            pot.see(&shared.census, self.period, weight);
        }
        if flow.tokens > 0 {
            return true;
        }
        let taken = pot.take(periods, self.period, weight, flow.tokens.unsigned_abs());
        let (Taken::Some(tokens) | Taken::Last(tokens)) = taken else { return false };
        flow.tokens = flow.tokens.saturating_add_unsigned(tokens);
        let has_tokens = flow.tokens > 0;
        if matches!(taken, Taken::Last(_))
            && periods.run_out(pot, self.period)
            && let Some(sleeper) = periods.a_sleeper_beside(self.port)
        {
            self.wake(shared, PortSet::only(sleeper), wake);
        }
        has_tokens
    }

    /// The next piece of the first flow in the ready list.
    #[inline]
    fn pick(&mut self, seat: u32) -> Option<Piece> {
        let flow = self.flows.get_mut(seat as usize)?;
        // There are no depths: only tokens throttle.
        let unit = flow.queues.pick(&mut self.links, |_| true);
        if flow.queues.is_empty() {
            flow.list = List::None;
            self.ring.pop(&mut self.ready);
        } else if flow.queues.batch_is_over() {
            self.ring.pop(&mut self.ready);
            self.ring.push(&mut self.ready, seat);
        }
        self.units.begin(unit?)
    }

    /// Issues a request and charges its flow; of several requests in one command, only the last
    /// counts as outstanding.
    #[inline]
    fn send<P: Platform>(&mut self, shared: &Shared<P>, piece: &Piece, now_ns: u64) -> Next {
        let next = next_of(piece);
        let Some(entry) = self.entries.get_mut(piece.job as usize) else { return next };
        entry.state = State::Issued;
        entry.issued_ns = now_ns;
        // The product is at most 2^40 times 2^12 (`MAX_CHARGE`, `Ratio::MAX`), so it fits.
        let charge = if entry.domain == Domain::Write {
            (entry.cost * self.write_ratio) >> 8
        } else {
            entry.cost
        };
        if let Some(flow) = self.flows.get_mut(entry.seat as usize) {
            flow.tokens = flow.tokens.saturating_sub_unsigned(charge);
        }
        if let Some(service) = self.account.kept_mut(entry.seat as usize) {
            *service = service.wrapping_add(entry.cost);
        }
        self.used = self.used.wrapping_add(charge);
        if piece.goes_on {
            return next;
        }
        self.outstanding = self.outstanding.wrapping_add(1);
        if let Some(line) = shared.lines.get(usize::from(self.port.0)) {
            // A port that reads the count late may end a period early, which does no harm.
            line.outstanding.store(self.outstanding, Ordering::Relaxed);
            line.used.store(self.used, Ordering::Relaxed);
        }
        if shared.periods.is_short() && shared.outstanding() >= shared.busy() {
            shared.periods.is_supplied();
        }
        next
    }

    /// Begins the next period if it is due, since all flows with staged requests here are out of
    /// tokens. Gives the answer of `next`, or `None` if there is another period.
    #[cold]
    fn starve<P: Platform>(
        &mut self,
        shared: &Shared<P>,
        now_ns: u64,
        wake: &mut PortSet,
    ) -> Option<Next> {
        let period = self.period;
        shared.periods.enlist(self.port);
        if shared.periods.number() == period.number() {
            let due_ns = shared.due_ns(period, now_ns);
            let begun = if due_ns.is_some_and(|due_ns| due_ns <= now_ns) {
                shared.begin_period(period, now_ns)
            } else {
                None
            };
            let Some(mut sleepers) = begun else {
                // The next period is not due, or another port begins it and wakes this one.
                self.blocks += 1;
                self.show(shared);
                return Some(
                    due_ns.filter(|&due_ns| due_ns > now_ns).map_or(Next::Blocked, Next::WaitUntil),
                );
            };
            sleepers.remove(self.port);
            self.wake(shared, sleepers, wake);
        }
        self.follow(shared);
        None
    }

    /// Adds the ports to those the caller is to wake.
    fn wake<P: Platform>(&mut self, shared: &Shared<P>, ports: PortSet, wake: &mut PortSet) {
        wake.extend(ports);
        self.wakes += ports.len() as u64;
        self.show(shared);
    }

    /// Publishes the port's counters.
    #[cold]
    fn show<P: Platform>(&self, shared: &Shared<P>) {
        if let Some(line) = shared.lines.get(usize::from(self.port.0)) {
            line.throttles.store(self.throttles, Ordering::Relaxed);
            line.blocks.store(self.blocks, Ordering::Relaxed);
            line.wakes.store(self.wakes, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> Shared<P> {
    /// Gives the seat to another flow: the old flow leaves its debt with its pot, and the new flow
    /// takes over the debt in its own pot.
    ///
    /// The pot belongs to the old flow as long as that flow is open: the port has not released its
    /// slot, and releases none in the middle of a verb.
    #[cold]
    fn reseat(&self, seat: &mut LocalFlow, flow: FlowId) {
        let old = seat.owner;
        if seat.tokens < 0
            && self.flows.weight(old).is_some()
            && let Some(pot) = self.pots.get(old.slot())
        {
            pot.leave_debt(seat.tokens.unsigned_abs());
        }
        let debt = self.pots.get(flow.slot()).map_or(0, |pot| pot.take_up_debt());
        *seat = LocalFlow::new(flow, i64::try_from(debt).unwrap_or(i64::MAX));
    }
}

/// Counts a request's time in the device.
#[inline]
fn measure<P: Platform>(line: &Line<P>, domain: Domain, latency_ns: u64) {
    let Latency { sum_ns, count } = match domain {
        Domain::Read => &line.reads,
        Domain::Write => &line.writes,
        Domain::Discard | Domain::Other => &line.others,
    };
    sum_ns.store(sum_ns.load(Ordering::Relaxed).wrapping_add(latency_ns), Ordering::Relaxed);
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}
