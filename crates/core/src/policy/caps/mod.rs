//! Caps: the most that a flow may be given in a second, whatever is free; one layer in front of any
//! policy.
//!
//! **Problem.** A weight says what a flow gets beside others. What is sold, or what a neighbour is
//! to be spared, is a number: so many requests or bytes a second, as Linux's `io.max` and QEMU's
//! throttling have it. **Model.** [`Capped`] stands around a policy. A request whose flow has had
//! what a cap allows waits here, *before* the policy: it holds no virtual time and no slot, and
//! costs the others nothing; the policy sees it when the cap lets it go.
//!
//! ```text
//!   submit ─▶ may go by all its caps? ── yes ─▶ the policy's submit
//!                 └─ no ─▶ a lane ── next, when a cap says so ─▶ the policy's submit
//! ```
//!
//! - A flow has up to six caps: requests and bytes, of reads, of writes, and of both together. Each
//!   is a bucket that all ports share; a request takes from all of its own at once, or from none.
//! - On each port a flow has a *lane* for reads and one for writes, so that a cap on the one does
//!   not hold back the other. Requests leave a lane in the order in which they came.
//! - Lanes of a flow on several ports take turns: which has just sent one lets the others go first.
//!   Otherwise the port that is polled most often could have all that the cap allows.
//!
//! **Example.** 1,000 requests a second with a burst of 100: a flow that has rested has 100 at once
//! and then one each millisecond, so at most 1,100 in any second.
//!
//! **Bounds of loops.** A call of `next` tries 16 lanes at most and asks to be called
//! again if there are more.
//!
//! **Removal.** A flow that is removed has no caps from then on. What waits here is given to the
//! device within a tenth of a second without going by the policy, which takes no more of that flow.
//!
//! **Cost.** Without caps anywhere `submit` reads one shared word that does not change, and `next`
//! and `complete` a number of the port's own.
//!
//! *Memory ordering.* A flow's word is stored with Release after its buckets are set, and read with
//! Acquire. All else are counts.

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::ConfigError;
use crate::contract::cost::Cost;
use crate::contract::flow::{CapStats, Caps, Counted, FlowError, FlowId, Side, Weight};
use crate::contract::layer::{self, layer};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{
    Class, FlowStats, Growth, Held, Next, Op, Outcome, Policy, Port, Reason, Request, SubmitError,
    Submitted, Tag,
};
use crate::contract::port_set::PortSet;
use crate::contract::vtime::VTime;
use crate::entry::Built;
use crate::policy::bucket::{Bucket, Time};
use crate::structures::allocation::{boxed, granted, zeroes};
use crate::structures::fifo::{Fifo, Links};
use crate::structures::tournament::{Key, Tournament};

/// How many lanes are tried in one call.
const AT_ONCE: usize = 16;
/// A lane is tried again after this long at the latest, in nanoseconds, since caps may change.
const AGAIN_NS: u64 = 100_000_000;
/// What a discard counts for, in bytes.
const DISCARD_BYTES: u64 = 512;
/// No lane.
const NONE: u32 = u32::MAX;

/// A policy whose flows can have caps. See the [module's text](self).
pub struct Capped<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    /// The flow of each slot and its caps.
    control: P::Mutex<Box<[Option<(FlowId, Caps)>]>>,
}

/// A port of it.
pub struct CappedPort<Q, P: Platform = Native> {
    inner: Q,
    shared: Arc<Shared<P>>,
    waiting: Waiting,
    /// What waits here, for all lanes together.
    held: u32,
    /// Issued requests that the policy does not know: their flows were gone.
    strays: u32,
    /// The policy's last answer was a part of a command.
    is_joining: bool,
}

/// What ports and the control side share.
struct Shared<P: Platform> {
    /// 1 once a flow has had a cap.
    is_on: P::U64,
    /// Of each flow: its generation in the upper half, and which caps it has.
    flows: Box<[P::U64]>,
    accounts: Box<[CachePadded<Account<P>>]>,
}

/// What is shared of a flow with caps.
struct Account<P: Platform> {
    buckets: [Bucket<P>; Caps::COUNT],
    /// How many lanes of reads there are, and of writes.
    lanes: [P::U64; 2],
    held: P::U64,
    held_ns: P::U64,
    waiting: P::U64,
}

/// The caps that count reads, and those that count writes.
const READS: u64 = bits(Side::Both) | bits(Side::Reads);
const WRITES: u64 = bits(Side::Both) | bits(Side::Writes);

const fn bits(side: Side) -> u64 {
    1 << Caps::index(side, Counted::Requests) | 1 << Caps::index(side, Counted::Bytes)
}

/// Which caps count it.
fn counted_by(op: Op) -> u64 {
    match op {
        Op::Read => READS,
        Op::Write | Op::WriteZeroes | Op::Discard => WRITES,
        Op::Flush => 0,
    }
}

fn word(flow: FlowId, caps: u64) -> u64 {
    u64::from(flow.generation()) << 32 | caps
}

impl<P: Platform> Shared<P> {
    fn new(flows: usize) -> Self {
        let account = || Account {
            buckets: core::array::from_fn(|_| Bucket::new()),
            lanes: core::array::from_fn(|_| P::U64::new(0)),
            held: P::U64::new(0),
            held_ns: P::U64::new(0),
            waiting: P::U64::new(0),
        };
        Shared {
            is_on: P::U64::new(0),
            flows: boxed(flows, |_| P::U64::new(0)),
            accounts: boxed(flows, |_| CachePadded::new(account())),
        }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) != 0
    }

    fn account(&self, flow: FlowId) -> Option<&Account<P>> {
        self.accounts.get(flow.slot()).map(|account| &**account)
    }

    /// The caps that count such a request of the flow; 0 also if the flow is gone.
    fn caps(&self, flow: FlowId, op: Op) -> u64 {
        let caps = self.flows.get(flow.slot()).map_or(0, |word| word.load(Ordering::Acquire));
        if (caps >> 32) as u32 == flow.generation() { caps & counted_by(op) } else { 0 }
    }

    /// [Takes](Self::take), if nothing of the same lane is before it.
    fn take_if(&self, is_first: bool, now: Time, request: &Request) -> Result<(), Time> {
        if is_first { self.take(now, request) } else { Err(now) }
    }

    /// How long a lane that has sent this waits before it is tried again, in nanoseconds: until all
    /// other lanes that the same caps count have had a turn.
    fn pause_ns(&self, now: Time, request: &Request) -> u64 {
        let caps = self.caps(request.flow, request.op);
        let Some(account) = self.account(request.flow).filter(|_| caps != 0) else { return 0 };
        let [reads, writes] = account.lanes.each_ref().map(|lanes| lanes.load(Ordering::Relaxed));
        let (own, others) = if is_write(request) { (writes, reads) } else { (reads, writes) };
        let others = if caps & bits(Side::Both) != 0 { others } else { 0 };
        let turns = own.saturating_add(others).saturating_sub(1);
        if turns == 0 {
            return 0;
        }
        let until_ns = account.when(now, caps, request).ns().saturating_sub(now.ns());
        until_ns
            .saturating_add(account.lasts(caps, request).ns().saturating_mul(turns))
            .min(AGAIN_NS)
    }

    /// Takes what the request needs from all of its caps; or says from when on it may go.
    fn take(&self, now: Time, request: &Request) -> Result<(), Time> {
        let (caps, Some(account)) =
            (self.caps(request.flow, request.op), self.account(request.flow))
        else {
            return Ok(());
        };
        let when = account.when(now, caps, request);
        if when > now {
            return Err(when);
        }
        for (index, bucket) in chosen(&account.buckets, caps) {
            if let Err(when) = bucket.take(now, bucket.cost(amount(index, request))) {
                // Another port was faster; what the caps before this one gave goes back.
                let before = caps & ((1 << index) - 1);
                for (index, bucket) in chosen(&account.buckets, before) {
                    bucket.give_back(bucket.cost(amount(index, request)));
                }
                return Err(when);
            }
        }
        Ok(())
    }
}

impl<P: Platform> Account<P> {
    /// From when on the request may go by these caps, if no other does.
    fn when(&self, now: Time, caps: u64, request: &Request) -> Time {
        let all = chosen(&self.buckets, caps);
        let when =
            all.map(|(index, bucket)| bucket.when(now, bucket.cost(amount(index, request)))).max();
        when.unwrap_or(now)
    }

    /// How long the slowest of these caps needs for the request.
    fn lasts(&self, caps: u64, request: &Request) -> Time {
        let all = chosen(&self.buckets, caps);
        all.map(|(index, bucket)| bucket.cost(amount(index, request))).max().unwrap_or_default()
    }
}

/// The buckets whose bits are set.
fn chosen<P: Platform>(
    buckets: &[Bucket<P>; Caps::COUNT],
    caps: u64,
) -> impl Iterator<Item = (usize, &Bucket<P>)> {
    buckets.iter().enumerate().filter(move |(index, _)| caps >> index & 1 != 0)
}

/// What the cap of this number counts of it.
fn amount(index: usize, request: &Request) -> u64 {
    match (index % 2 == Counted::Requests as usize, request.op) {
        (true, _) => 1,
        (false, Op::Discard) => DISCARD_BYTES,
        (false, _) => request.length.into(),
    }
}

impl<L: Policy, P: Platform> Capped<L, P> {
    /// Around a policy of at most `flows` flows and its ports, which have `tags` tags each.
    // A call of its own: what builds a policy inside Linux has a stack of 16 KiB.
    #[inline(never)]
    pub fn new(
        inner: L,
        ports: Vec<L::Port>,
        tags: usize,
        flows: usize,
    ) -> Result<Built<Self>, ConfigError> {
        granted(|| {
            let shared = Arc::new(Shared::new(flows));
            let port = |inner| CappedPort {
                inner,
                shared: shared.clone(),
                waiting: Waiting::new(tags, flows),
                held: 0,
                strays: 0,
                is_joining: false,
            };
            let ports = ports.into_iter().map(port).collect();
            let control = P::Mutex::new(boxed(flows, |_| None));
            Ok((Capped { inner, shared, control }, ports))
        })
    }
}

layer!(Capped, CappedPort);

impl<L: Policy, P: Platform> layer::Layer for Capped<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|flows| {
            let flow = self.inner.add_flow_as(known, weight)?;
            if let Some(place) = flows.get_mut(flow.slot()) {
                *place = Some((flow, Caps::default()));
            }
            if let Some(account) = self.shared.account(flow) {
                account.held.store(0, Ordering::Relaxed);
                account.held_ns.store(0, Ordering::Relaxed);
            }
            Ok(flow)
        })
    }

    /// A cap that stays as it is keeps what was taken from it; others start full.
    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        self.control.with(|flows| {
            let place = flows.get_mut(flow.slot()).and_then(Option::as_mut);
            let (_, old) = place.filter(|place| place.0 == flow).ok_or(FlowError::NoSuchFlow)?;
            let account = self.shared.account(flow).ok_or(FlowError::NoSuchFlow)?;
            let mut bits = 0;
            for (((index, cap), (_, old)), bucket) in
                caps.all().zip(old.all()).zip(&account.buckets)
            {
                let Some(cap) = cap else { continue };
                bits |= 1 << index;
                if old != Some(cap) {
                    bucket.set(cap.per_second(), cap.burst());
                }
            }
            *old = *caps;
            if let Some(place) = self.shared.flows.get(flow.slot()) {
                place.store(word(flow, bits), Ordering::Release);
            }
            if bits != 0 {
                self.shared.is_on.store(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn caps(&self, flow: FlowId) -> Option<CapStats> {
        let caps = self.control.with(|flows| {
            let place = flows.get(flow.slot()).and_then(Option::as_ref);
            place.filter(|place| place.0 == flow).map(|place| place.1)
        })?;
        let account = self.shared.account(flow)?;
        let [held, held_ns, waiting] = [&account.held, &account.held_ns, &account.waiting]
            .map(|word| word.load(Ordering::Relaxed));
        let is_any = !caps.is_empty() || held > 0;
        is_any.then_some(CapStats { caps, held, held_ns, waiting })
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|flows| {
            let ports = self.inner.remove_flow(flow)?;
            if let Some(place) = flows.get_mut(flow.slot()) {
                *place = None;
            }
            if let Some(place) = self.shared.flows.get(flow.slot()) {
                place.store(0, Ordering::Release);
            }
            Ok(ports)
        })
    }
}

/// Where a tag is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Free, or the policy has it.
    Policy,
    /// In the lane of its flow and side; among the loose ones if there is no such lane.
    Lane,
    /// It has been issued without the policy.
    Stray,
}

/// A tag's request while it waits.
#[derive(Clone, Copy)]
struct Waiter {
    place: Place,
    since_ns: u64,
    request: Request,
}

/// A waiter in words; zeroes say that the policy has the tag. Memory that is allocated as zeroes
/// takes no room until it is written, and most tags never wait for a cap.
type Packed = [u64; 6];

const PLACES: [Place; 3] = [Place::Policy, Place::Lane, Place::Stray];
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

/// The operation's place in [`OPS`]. An operation that is added does not compile without one.
fn number(op: Op) -> u64 {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

impl Waiter {
    fn pack(&self) -> Packed {
        let Request { tag: _, flow, op, offset, length, cost } = self.request;
        let first = u64::from(length) << 32 | number(op) << 8 | self.place as u64;
        let flow = (flow.slot() as u64) << 32 | u64::from(flow.generation());
        [first, self.since_ns, flow, offset, cost.alone, cost.joined]
    }

    fn unpack(tag: Tag, packed: &Packed) -> Waiter {
        let [first, since_ns, flow, offset, alone, joined] = *packed;
        let request = Request {
            tag,
            flow: FlowId::new((flow >> 32) as u32, flow as u32),
            op: OPS.get((first >> 8 & 0xff) as usize).copied().unwrap_or(Op::Read),
            offset,
            length: (first >> 32) as u32,
            cost: Cost { alone, joined },
        };
        Waiter { place: place(packed), since_ns, request }
    }
}

fn place([first, ..]: &Packed) -> Place {
    PLACES.get((first & 0xff) as usize).copied().unwrap_or(Place::Policy)
}

/// What waits of one flow's reads, or of its writes.
#[derive(Clone, Copy, Default)]
struct Lane {
    flow: Option<FlowId>,
    queue: Fifo,
    count: u32,
    is_write: bool,
    /// When it is to be tried.
    at_ns: u64,
    /// No request that leaves it may be joined with one that the policy has, or gets later.
    is_fenced: bool,
}

/// What waits on a port.
struct Waiting {
    tags: Box<[Packed]>,
    links: Links,
    lanes: Box<[Lane]>,
    /// The lanes that are not in use, and how many are.
    free: Fifo,
    free_links: Links,
    open: usize,
    /// The lane of each slot's reads, and of its writes.
    lane_of: Box<[[u32; 2]]>,
    /// The lanes by when they are to be tried.
    order: Tournament,
    turns: u64,
    /// What waited of flows that are gone, and whose slots others have.
    loose: Fifo,
}

fn is_write(request: &Request) -> bool {
    request.op != Op::Read
}

impl Waiting {
    fn new(tags: usize, flows: usize) -> Self {
        let lanes = tags.min(flows.saturating_mul(2)).max(1);
        let (mut free, mut free_links) = (Fifo::default(), Links::new(lanes));
        for lane in 0..lanes as u32 {
            free_links.push(&mut free, lane);
        }
        Waiting {
            tags: zeroes(tags),
            links: Links::new(tags),
            lanes: boxed(lanes, |_| Lane::default()),
            free,
            free_links,
            open: 0,
            lane_of: boxed(flows, |_| [NONE; 2]),
            order: Tournament::new(lanes),
            turns: 0,
            loose: Fifo::default(),
        }
    }

    fn place(&self, tag: Tag) -> Place {
        self.tags.get(tag.0 as usize).map_or(Place::Policy, place)
    }

    fn waiter(&self, tag: u32) -> Option<Waiter> {
        self.tags.get(tag as usize).map(|packed| Waiter::unpack(Tag(tag), packed))
    }

    fn put(&mut self, tag: Tag, waiter: Option<Waiter>) {
        if let Some(packed) = self.tags.get_mut(tag.0 as usize) {
            *packed = waiter.map_or([0; 6], |waiter| waiter.pack());
        }
    }

    /// The lane of the flow's reads or writes, if it has one.
    fn lane(&self, flow: FlowId, is_write: bool) -> Option<u32> {
        let number = self.lane_of.get(flow.slot())?[usize::from(is_write)];
        (self.lanes.get(number as usize)?.flow == Some(flow)).then_some(number)
    }

    /// The flow's lanes.
    fn lanes(&self, flow: FlowId) -> impl Iterator<Item = &Lane> {
        let lanes = [false, true].map(|is_write| self.lane(flow, is_write));
        lanes.into_iter().flatten().filter_map(|number| self.lanes.get(number as usize))
    }

    /// When something is to be tried.
    fn due_ns(&self) -> Option<u64> {
        if !self.loose.is_empty() {
            return Some(0);
        }
        self.lanes.get(self.order.get()?.tag()).map(|lane| lane.at_ns)
    }

    /// The first lane, and the first request in it.
    fn first(&self) -> Option<(u32, Request)> {
        let number = self.order.get()?.tag();
        let tag = self.lanes.get(number)?.queue.first()?;
        Some((number as u32, self.waiter(tag)?.request))
    }

    /// Has the lane tried at this time.
    fn try_at(&mut self, number: u32, at_ns: u64) {
        let Some(lane) = self.lanes.get_mut(number as usize) else { return };
        lane.at_ns = at_ns;
        self.turns = self.turns.wrapping_add(1);
        let key = Key::new(VTime::from_units(at_ns), self.turns, Tag(number));
        self.order.put(number as usize, key);
    }

    /// Opens a lane for such requests, to be tried at this time. There is one: each lane has a
    /// request.
    fn open(&mut self, request: &Request, at_ns: u64) {
        let (flow, is_write) = (request.flow, is_write(request));
        let Some(number) = self.free_links.pop(&mut self.free) else { return };
        self.open += 1;
        if let Some(lane) = self.lanes.get_mut(number as usize) {
            *lane = Lane { flow: Some(flow), is_write, ..Lane::default() };
        }
        if let Some(place) = self.lane_of.get_mut(flow.slot()) {
            place[usize::from(is_write)] = number;
        }
        self.try_at(number, at_ns);
    }

    /// Puts the request at the end of its lane.
    fn push(&mut self, now_ns: u64, request: &Request) {
        let number = self.lane(request.flow, is_write(request));
        if let Some(lane) = number.and_then(|number| self.lanes.get_mut(number as usize)) {
            self.links.push(&mut lane.queue, request.tag.0);
            lane.count = lane.count.saturating_add(1);
        }
        let waiter = Waiter { place: Place::Lane, since_ns: now_ns, request: *request };
        self.put(request.tag, Some(waiter));
    }

    /// Takes a request that waits out of its lane, or from the loose ones. Gives since when it has
    /// waited, and its lane's number and whether it is empty.
    fn take(&mut self, request: &Request) -> (u64, Option<(u32, bool)>) {
        let tag = request.tag.0;
        let number = self.lane(request.flow, is_write(request));
        let lane = match number.and_then(|number| self.lanes.get_mut(number as usize)) {
            Some(lane) => {
                self.links.remove(&mut lane.queue, tag);
                lane.count = lane.count.saturating_sub(1);
                number.map(|number| (number, lane.queue.is_empty()))
            }
            None => {
                self.links.remove(&mut self.loose, tag);
                None
            }
        };
        let since_ns = self.waiter(tag).map_or(0, |waiter| waiter.since_ns);
        self.put(request.tag, None);
        (since_ns, lane)
    }

    /// The lane is no more; what is in it is loose.
    fn close(&mut self, number: u32) {
        let Some(lane) = self.lanes.get_mut(number as usize) else { return };
        let mut lane = core::mem::take(lane);
        self.links.append(&mut self.loose, &mut lane.queue);
        self.order.remove(number as usize);
        self.free_links.push_front(&mut self.free, number);
        self.open = self.open.saturating_sub(1);
        if let Some(place) = lane.flow.and_then(|flow| self.lane_of.get_mut(flow.slot())) {
            place[usize::from(lane.is_write)] = NONE;
        }
    }
}

impl<Q: Port, P: Platform> CappedPort<Q, P> {
    /// Keeps the request until a cap lets it go, at this time if nothing else is sent.
    #[cold]
    fn hold(&mut self, now_ns: u64, request: &Request, at_ns: u64) {
        let (flow, is_write) = (request.flow, is_write(request));
        let account = self.shared.account(flow);
        let waiting = &mut self.waiting;
        if waiting.lane(flow, is_write).is_none() {
            let old = waiting.lane_of.get(flow.slot()).map_or(NONE, |of| of[usize::from(is_write)]);
            let is_old = waiting.lanes.get(old as usize).is_some();
            if is_old {
                waiting.close(old);
            } else if let Some(account) = account {
                account.lanes[usize::from(is_write)].fetch_add(1, Ordering::Relaxed);
            }
            waiting.open(request, at_ns.min(now_ns.saturating_add(AGAIN_NS)));
        }
        waiting.push(now_ns, request);
        self.held = self.held.saturating_add(1);
        if let Some(account) = account {
            account.held.fetch_add(1, Ordering::Relaxed);
            account.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a request that waits out. A lane that is empty then is closed; the number of one that
    /// is not.
    fn leave(&mut self, now_ns: u64, request: &Request) -> Option<u32> {
        let (since_ns, lane) = self.waiting.take(request);
        self.held = self.held.saturating_sub(1);
        let account = self.shared.account(request.flow);
        if let Some(account) = account {
            account.waiting.fetch_sub(1, Ordering::Relaxed);
            let held_ns = now_ns.saturating_sub(since_ns);
            account.held_ns.fetch_add(held_ns, Ordering::Relaxed);
        }
        let (number, is_empty) = lane?;
        if !is_empty {
            return Some(number);
        }
        self.waiting.close(number);
        if let Some(account) = account {
            account.lanes[usize::from(is_write(request))].fetch_sub(1, Ordering::Relaxed);
        }
        None
    }

    /// Gives the policy what caps let go. What is to be issued at once is the answer.
    #[cold]
    fn release(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            let loose = self.waiting.loose.first();
            if let Some(Waiter { request, .. }) = loose.and_then(|tag| self.waiting.waiter(tag)) {
                self.leave(now_ns, &request);
                return Some(self.stray(request.tag));
            }
            let (number, request) = self.waiting.first()?;
            if self.waiting.due_ns().is_none_or(|at_ns| at_ns > now_ns) {
                return None;
            }
            if let Err(when) = self.shared.take(now, &request) {
                let at_ns = when.ns().min(now_ns.saturating_add(AGAIN_NS));
                self.waiting.try_at(number, at_ns);
                continue;
            }
            let is_fenced =
                self.waiting.lanes.get(number as usize).is_some_and(|lane| lane.is_fenced);
            if let Some(number) = self.leave(now_ns, &request) {
                let at_ns = now_ns.saturating_add(self.shared.pause_ns(now, &request));
                self.waiting.try_at(number, at_ns);
            }
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            let submitted = self.inner.submit(now_ns, &request, wake);
            if is_fenced {
                self.inner.barrier(request.flow);
            }
            match submitted {
                Ok(Submitted::Staged) => {}
                Ok(Submitted::Issue { class }) => {
                    return Some(Next::Issue { tag: request.tag, class });
                }
                // Its flow is gone.
                Err(_) => return Some(self.stray(request.tag)),
            }
        }
        None
    }

    /// The request is issued without the policy.
    fn stray(&mut self, tag: Tag) -> Next {
        if let Some(waiter) = self.waiting.waiter(tag.0) {
            self.waiting.put(tag, Some(Waiter { place: Place::Stray, ..waiter }));
            self.strays = self.strays.saturating_add(1);
        }
        Next::Issue { tag, class: Class::Medium }
    }

    /// A request that waits for a cap.
    fn waiter(&self, tag: Tag) -> Option<Request> {
        if self.held == 0 || self.waiting.place(tag) != Place::Lane {
            return None;
        }
        self.waiting.waiter(tag.0).map(|waiter| waiter.request)
    }
}

impl<Q: Port, P: Platform> layer::PortLayer for CappedPort<Q, P> {
    type Inner = Q;

    fn inner(&self) -> &Q {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.shared.is_on() && self.shared.caps(request.flow, request.op) != 0 {
            match self.waiting.tags.get(request.tag.0 as usize).map(place) {
                Some(Place::Policy) => {}
                _ => return Err(SubmitError::BadTag),
            }
            let is_first = self.waiting.lane(request.flow, is_write(request)).is_none();
            let may_go = self.shared.take_if(is_first, Time::of_ns(now_ns), request);
            if let Err(when) = may_go {
                self.hold(now_ns, request, when.ns());
                return Ok(Submitted::Staged);
            }
        } else if self.held > 0 && self.waiter(request.tag).is_some() {
            return Err(SubmitError::BadTag);
        }
        self.inner.submit(now_ns, request, wake)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.held == 0 {
            return self.inner.next(now_ns, wake);
        }
        // What follows a `Join` is the policy's.
        if !self.is_joining
            && let Some(next) = self.release(now_ns, wake)
        {
            return next;
        }
        let next = self.inner.next(now_ns, wake);
        self.is_joining = matches!(next, Next::Join { .. });
        let due_ns = self.waiting.due_ns().unwrap_or(u64::MAX);
        match next {
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(due_ns)),
            Next::Blocked | Next::Idle if self.held > 0 => Next::WaitUntil(due_ns),
            next => next,
        }
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) {
        if self.strays > 0 && self.waiting.place(tag) == Place::Stray {
            self.waiting.put(tag, None);
            self.strays -= 1;
            return;
        }
        self.inner.complete(now_ns, tag, outcome, wake);
    }

    /// What waits for caps has half of the port's tags.
    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.inner.admit(flow)?;
        let parts = self.waiting.open.saturating_add(1);
        let part = (self.waiting.tags.len() / 2 / parts).max(1);
        let count: u32 = self.waiting.lanes(flow).map(|lane| lane.count).sum();
        if (count as usize) < part { Ok(()) } else { Err(SubmitError::Full) }
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let Some(request) = self.waiter(tag) else {
            return self.inner.cancel(now_ns, tag, wake);
        };
        if let Some(number) = self.leave(now_ns, &request) {
            // The next one may need less.
            self.waiting.try_at(number, now_ns);
        }
        true
    }

    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        if self.strays > 0 && self.waiting.place(tag) == Place::Stray {
            return Some(Submitted::Issue { class: Class::Medium });
        }
        self.inner.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        if self.waiter(tag).is_none() {
            return self.inner.grow(now_ns, tag, growth, wake);
        }
        if let Some(mut waiter) = self.waiting.waiter(tag.0) {
            let request = &mut waiter.request;
            request.offset = request.offset.min(growth.offset);
            request.length = request.length.saturating_add(growth.length);
            self.waiting.put(tag, Some(waiter));
        }
        true
    }

    fn has_work(&self) -> bool {
        self.held > 0 || self.inner.has_work()
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        let first = self.waiting.lanes(flow).find_map(|lane| lane.queue.first());
        first.map(Tag).or_else(|| self.inner.staged(flow))
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let mut stats = self.inner.flow_stats(flow);
        for lane in self.waiting.lanes(flow) {
            stats.staged = stats.staged.saturating_add(lane.count);
        }
        stats
    }

    fn barrier(&mut self, flow: FlowId) {
        self.inner.barrier(flow);
        for is_write in [false, true] {
            let number = self.waiting.lane(flow, is_write).unwrap_or(NONE);
            if let Some(lane) = self.waiting.lanes.get_mut(number as usize) {
                lane.is_fenced = true;
            }
        }
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let waits = match tag {
            Some(tag) => self.waiter(tag).is_some(),
            None => self.held > 0 && !self.inner.has_work(),
        };
        if waits {
            return Reason { held: Some(Held::Cap), ..Reason::default() };
        }
        self.inner.reason(tag)
    }
}
