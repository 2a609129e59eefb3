//! Schedulers behind one lock.
//!
//! **Problem.** The classical schedulers (SFQ(D) and Linux's before multi-queue) keep one queue
//! that every core goes through. They know flows and requests, but neither ports nor slots nor
//! locks; and a filter that limits some flows' dispatches has to fit around any of them unchanged.
//!
//! **Model.** A [`SerialPolicy`] is plain data with four verbs: insert, select among the flows that
//! may be served, completed, and changes of flows. [Lanes](Lane) say which flows may be served; by
//! default all may. [`Serial`] puts a policy behind one [`Platform::Mutex`], counts the slots of
//! the device and implements the [port contract](crate::contract::port):
//!
//! - `submit` inserts; the request is staged.
//! - `next` selects while a slot is free. A request must be issued by the port that it was
//!   submitted to: when the policy picks one of another port, its slot is taken, it goes to that
//!   port's **outbox**, and that port is woken. A port issues what is in its outbox before anything
//!   else, in order. A call of `next` thus selects for all ports, and after a completion, which the
//!   caller has to follow with a `next`, the next request is found on any port.
//! - `complete` frees the slot.
//!
//! With `merge_bytes`, adjacent requests become one while they are staged ([`merge`]): one request
//! of the policy is then a chain of the port's requests, which `next` gives part by part.
//!
//! **Order of locks.** The lock here is always taken before the flow table's. So the policy is
//! notified of a flow before any port can submit for it, and never of a removal after the slot's
//! next flow has been added.
//!
//! **Bounds.** The lock is held for a verb of the policy, whose heaps are as deep as the logarithm
//! of the flows, and in `next` for as many verbs as slots are free. A `tick` holds it while 1,024
//! flows are lifted, and further flows follow a millisecond later ([`Lift`]); adding, weighing and
//! removing a flow hold it for at most 256 steps, which update the extremes of the weights.
//!
//! **Memory.** All of it is allocated when the policy is built. Requests are numbered densely over
//! all ports ([`Job`]), so a policy keeps its state of each in an array, and its queues in
//! [`Links`]. If requests are merged, units of them are numbered.

pub mod entry;
pub mod heap;
pub mod merge;
mod scheduler;
pub mod sfqd;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytemuck::Zeroable;
use crossbeam_utils::CachePadded;

use crate::contract::bounds::{ConfigError, MAX_SLOTS, boxed, granted, zeroes};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{
    Class, FlowStats, Growth, Held, Next, Outcome, Policy, Port, Reason, Request, Stats,
    SubmitError, Submitted, Tag, TuneError, Tuning,
};
use crate::contract::port_set::{PortId, PortSet};
use crate::structures::flow_table::FlowTable;
use crate::structures::port_flows::PortFlows;

use crate::structures::queues::{Fifo, Links};
use merge::{Merger, Piece, Placed};

pub use scheduler::{Arrival, Job, Lane, Lanes, Lift, Selection, SerialConfig, SerialPolicy};

/// The control side of a serial policy.
pub struct Serial<S: SerialPolicy, P: Platform = Native> {
    shared: Arc<Shared<S, P>>,
}

/// One shard's port of a serial policy.
pub struct SerialPort<S: SerialPolicy, P: Platform = Native> {
    shared: Arc<Shared<S, P>>,
    /// For each flow its staged requests and its service on this port.
    account: PortFlows<Here>,
    staged_links: Links,
    id: PortId,
    live: Box<[Live]>,
    /// Cost of each tag's request, in equivalent bytes; 0 if it was counted before the request was
    /// requeued.
    costs: Box<[u64]>,
    /// Requests of this port that it has not issued yet, in the policy or in its outbox.
    staged: u32,
}

/// A port's state of a flow.
#[derive(Default)]
struct Here {
    /// Its staged requests.
    tags: Fifo,
    count: u32,
    /// Cost of its issued requests, in equivalent bytes.
    service: u64,
}

/// State of a port's tag.
#[derive(Clone, Copy, PartialEq, Eq, Zeroable)]
#[repr(u8)]
enum Live {
    Free,
    /// Of the flow in this seat, not issued.
    Staged(u32),
    /// Of the flow in this seat, on the device.
    Issued(u32),
}

struct Shared<S: SerialPolicy, P: Platform> {
    flows: FlowTable<P>,
    tag_bits: u32,
    core: CachePadded<P::Mutex<Core<S>>>,
    shown: CachePadded<Shown<P>>,
}

/// Statistics, written under the lock when they change. They are read without the lock, because a
/// reader may not be able to wait for a verb that holds the lock.
struct Shown<P: Platform> {
    /// In units; [`NO_VIRTUAL_TIME`] for a policy without virtual time.
    virtual_time: P::U64,
    slots: P::U64,
    free: P::U64,
    throttles: P::U64,
    blocks: P::U64,
    wakes: P::U64,
}

/// More units than virtual time has.
const NO_VIRTUAL_TIME: u64 = u64::MAX;

impl<P: Platform> Shown<P> {
    fn new() -> Self {
        let zero = || P::U64::new(0);
        Shown {
            virtual_time: zero(),
            slots: zero(),
            free: zero(),
            throttles: zero(),
            blocks: zero(),
            wakes: zero(),
        }
    }
}

/// The state that the lock protects.
struct Core<S> {
    policy: S,
    slots: u32,
    free: u32,
    /// Requests outstanding beyond `slots`, issued when there were more slots.
    excess: u32,
    tag_bits: u32,
    /// Present if requests are merged. Then the policy selects, and outboxes hold, units.
    merger: Option<Merger>,
    links: Links,
    outboxes: Box<[Fifo]>,
    /// Whether each request is in an outbox: chosen, or requeued.
    chosen: Box<[bool]>,
    throttles: u64,
    blocks: u64,
    wakes: u64,
    /// The statistics last published, in the order of [`Shown`].
    told: [u64; 6],
}

/// The action of a port, as decided under the lock.
enum Turn {
    Issue(Tag),
    Join(Tag),
    WaitUntil(u64),
    Full,
    Nothing,
}

impl<S: SerialPolicy, P: Platform> Serial<S, P> {
    /// Puts `policy`, made for the same bounds, behind a lock; gives the control side and the
    /// ports.
    pub fn with_policy(
        policy: S,
        config: &SerialConfig,
    ) -> Result<(Self, Vec<SerialPort<S, P>>), ConfigError> {
        config.check()?;
        granted(|| Ok(Self::of(policy, config)))
    }

    /// The control side and the ports, for valid bounds.
    fn of(policy: S, config: &SerialConfig) -> (Self, Vec<SerialPort<S, P>>) {
        let core = Core {
            policy,
            slots: config.slots,
            free: config.slots,
            excess: 0,
            tag_bits: config.tag_bits(),
            merger: (config.merge_bytes > 0).then(|| Merger::new(config)),
            links: Links::new(config.jobs()),
            outboxes: boxed(config.ports, |_| Fifo::default()),
            chosen: zeroes(config.jobs()),
            throttles: 0,
            blocks: 0,
            wakes: 0,
            told: [0; 6],
        };
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, config.ports),
            tag_bits: config.tag_bits(),
            core: CachePadded::new(P::Mutex::new(core)),
            shown: CachePadded::new(Shown::new()),
        });
        // Statistics show the slots before the first verb, too.
        shared.with(|_| ());
        let port = |index: usize| SerialPort {
            shared: shared.clone(),
            account: PortFlows::new(PortId(index as u8), &shared.flows, config.tags),
            staged_links: Links::new(config.tags),
            id: PortId(index as u8),
            live: zeroes(config.tags),
            costs: zeroes(config.tags),
            staged: 0,
        };
        let ports = boxed(config.ports, port).into_vec();
        (Serial { shared }, ports)
    }
}

impl<S: SerialPolicy, P: Platform> Policy for Serial<S, P> {
    type Port = SerialPort<S, P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let shared = &*self.shared;
        shared.with(|core| {
            let added =
                shared.flows.add(known, weight, |slot| core.policy.add_flow(slot, weight))?;
            core.weigh(&shared.flows);
            Ok(added)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        let shared = &*self.shared;
        shared.with(|core| {
            shared.flows.set_weight(flow, weight)?;
            core.policy.set_weight(flow.slot(), weight);
            core.weigh(&shared.flows);
            Ok(())
        })
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        let shared = &*self.shared;
        shared.with(|core| {
            let changed = |flow: FlowId, weight| core.policy.set_weight(flow.slot(), weight);
            shared.flows.set_weights(weights, changed);
            core.weigh(&shared.flows);
        });
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        let Tuning::Slots(slots) = tuning else { return Err(TuneError::Fixed) };
        if slots == 0 || slots > MAX_SLOTS {
            return Err(ConfigError::Slots(slots).into());
        }
        let shared = &*self.shared;
        shared.with(|core| core.resize(slots));
        // New slots come without a completion, so ports have to be woken.
        wake.extend(shared.flows.ports());
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let shared = &*self.shared;
        shared.with(|core| {
            let ports = shared.flows.close(flow)?;
            core.policy.remove_flow(flow.slot());
            core.weigh(&shared.flows);
            Ok(ports)
        })
    }

    fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        self.shared.with(|core| core.policy.tick(now_ns))
    }

    fn stats(&self) -> Stats {
        let Shown { virtual_time, slots, free, throttles, blocks, wakes } = &*self.shared.shown;
        let read = |word: &P::U64| word.load(Ordering::Relaxed);
        Stats {
            virtual_time: Some(read(virtual_time)).filter(|&units| units != NO_VIRTUAL_TIME),
            spread: None,
            slots: Some(read(slots)),
            free_slots: Some(read(free)),
            throttles: read(throttles),
            blocks: read(blocks),
            wakes: read(wakes),
            ..Stats::default()
        }
    }
}

impl<S: SerialPolicy, P: Platform> Port for SerialPort<S, P> {
    #[inline]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let free = |live: &&mut Live| **live == Live::Free;
        // The tag is checked first: `admit` counts the request, and a refused one must not be
        // counted.
        let live =
            self.live.get_mut(request.tag.0 as usize).filter(free).ok_or(SubmitError::BadTag)?;
        let shared = &*self.shared;
        let (weight, seat) =
            self.account.admit(&shared.flows, request.flow, request.tag, |_, _| ())?;
        let arrival = Arrival {
            job: shared.job(self.id, request.tag),
            flow: request.flow.slot(),
            weight,
            op: request.op,
            offset: request.offset,
            length: request.length,
            cost: request.cost.alone,
        };
        let cost = shared.with(|core| core.insert(now_ns, &arrival, request.cost.joined));
        *live = Live::Staged(seat as u32);
        if let Some(place) = self.costs.get_mut(request.tag.0 as usize) {
            *place = cost;
        }
        if let Some(staged) = self.account.kept_mut(seat) {
            self.staged_links.push(&mut staged.tags, request.tag.0);
            staged.count += 1;
        }
        self.staged += 1;
        Ok(Submitted::Staged)
    }

    #[inline]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let shared = &*self.shared;
        self.account.poll(&shared.flows, wake);
        let staged = self.staged;
        match shared.with(|core| core.turn(now_ns, self.id, staged, wake)) {
            Turn::Issue(tag) => {
                self.leaves(tag);
                Next::Issue { tag, class: Class::Medium }
            }
            Turn::Join(tag) => {
                self.leaves(tag);
                Next::Join { tag }
            }
            Turn::WaitUntil(time_ns) => Next::WaitUntil(time_ns),
            Turn::Full | Turn::Nothing if staged > 0 => Next::Blocked,
            Turn::Full | Turn::Nothing => Next::Idle,
        }
    }

    #[inline]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, _wake: &mut PortSet) -> bool {
        // A completion of a tag that is not on the device is ignored, as the contract requires.
        let Some(live @ &mut Live::Issued(seat)) = self.live.get_mut(tag.0 as usize) else {
            return self.account.complete_ahead(&self.shared.flows, tag);
        };
        *live = Live::Free;
        let shared = &*self.shared;
        let (job, slot) = (shared.job(self.id, tag), self.slot(seat));
        shared.with(|core| core.completed(now_ns, job, slot, outcome));
        // This comes last, because it may give the flow's slot to another flow.
        self.account.finish(&shared.flows, seat as usize);
        true
    }

    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.account.has_room(&self.shared.flows, flow)
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        let Some(&Live::Staged(seat)) = self.live.get(tag.0 as usize) else {
            return self.account.cancel_held(&self.shared.flows, tag);
        };
        let is_gone = self.take_back(now_ns, tag, seat);
        if is_gone {
            self.account.finish(&self.shared.flows, seat as usize);
        }
        is_gone
    }

    fn expedite(&mut self, now_ns: u64, tag: Tag, _wake: &mut PortSet) -> bool {
        let Some(&Live::Staged(seat)) = self.live.get(tag.0 as usize) else {
            return self.account.expedite_held(tag);
        };
        let is_gone = self.take_back(now_ns, tag, seat);
        if is_gone {
            self.account.goes_ahead(tag, seat as usize);
        }
        is_gone
    }

    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        if self.live.get(tag.0 as usize) != Some(&Live::Free) {
            return Err(SubmitError::BadTag);
        }
        self.account.hold(&self.shared.flows, flow, tag, |_, _| ())
    }

    fn requeue(&mut self, _now_ns: u64, tag: Tag, _wake: &mut PortSet) -> Option<Submitted> {
        let Some(live @ &mut Live::Issued(seat)) = self.live.get_mut(tag.0 as usize) else {
            let again = Submitted::Issue { class: Class::Medium };
            return self.account.is_ahead(tag).then_some(again);
        };
        let job = self.shared.job(self.id, tag);
        self.shared.with(|core| core.requeue(self.id, job)).then(|| {
            *live = Live::Staged(seat);
            if let Some(cost) = self.costs.get_mut(tag.0 as usize) {
                // The cost of a request is counted when it is issued first, and not again.
                *cost = 0;
            }
            if let Some(here) = self.account.kept_mut(seat as usize) {
                self.staged_links.push_front(&mut here.tags, tag.0);
                here.count += 1;
            }
            self.staged += 1;
            Submitted::Staged
        })
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, _wake: &mut PortSet) -> bool {
        let Some(&Live::Staged(seat)) = self.live.get(tag.0 as usize) else { return false };
        let (job, slot) = (self.shared.job(self.id, tag), self.slot(seat));
        let weight = self.shared.flows.weight_in(slot);
        let has_grown = self.shared.with(|core| core.grow(now_ns, job, slot, weight, growth));
        // A cost of 0 was counted when the request was issued before it was requeued.
        let cost = self.costs.get_mut(tag.0 as usize).filter(|cost| has_grown && **cost > 0);
        if let Some(cost) = cost {
            *cost = cost.saturating_add(growth.cost);
        }
        has_grown
    }

    fn has_work(&self) -> bool {
        self.staged > 0 || self.account.has_closings(&self.shared.flows)
    }

    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.account.kept(self.account.seat(flow)?)?.tags.first().map(Tag)
    }

    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        let Some(seat) = self.account.seat(flow) else { return FlowStats::default() };
        let Some(here) = self.account.kept(seat) else { return FlowStats::default() };
        let (staged, service) = (here.count, Some(here.service));
        let in_flight = self.account.all(seat).saturating_sub(staged);
        FlowStats { staged, in_flight, service, ..FlowStats::default() }
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        self.shared.with(|core| Reason {
            virtual_time: core.policy.virtual_time(),
            free_slots: Some(core.free),
            held: Some(Held::NoSlot).filter(|_| tag.is_none() && core.free == 0),
            ..Reason::default()
        })
    }

    #[inline]
    fn barrier(&mut self, flow: FlowId) {
        self.shared.with(|core| {
            if let Some(merger) = &mut core.merger {
                merger.barrier(flow.slot());
            }
        });
    }
}

impl<S: SerialPolicy, P: Platform> SerialPort<S, P> {
    /// Takes back a staged request of the flow in the seat; its tag is free then.
    fn take_back(&mut self, now_ns: u64, tag: Tag, seat: u32) -> bool {
        let shared = &*self.shared;
        let (job, slot) = (shared.job(self.id, tag), self.slot(seat));
        let is_gone = shared.with(|core| core.cancel(now_ns, self.id, job, slot));
        if is_gone {
            self.unstage(tag, Live::Free);
        }
        is_gone
    }

    /// Marks a request of this port as issued.
    #[inline]
    fn leaves(&mut self, tag: Tag) {
        if let Some(&Live::Staged(seat)) = self.live.get(tag.0 as usize) {
            self.unstage(tag, Live::Issued(seat));
            let cost = self.costs.get(tag.0 as usize).copied().unwrap_or(0);
            if let Some(here) = self.account.kept_mut(seat as usize) {
                here.service = here.service.wrapping_add(cost);
            }
        }
    }

    /// Marks a staged request of this port as `what`.
    #[inline]
    fn unstage(&mut self, tag: Tag, what: Live) {
        let Some(live) = self.live.get_mut(tag.0 as usize) else { return };
        let Live::Staged(seat) = core::mem::replace(live, what) else { return };
        if let Some(staged) = self.account.kept_mut(seat as usize) {
            self.staged_links.remove(&mut staged.tags, tag.0);
            staged.count = staged.count.saturating_sub(1);
        }
        self.staged = self.staged.saturating_sub(1);
    }

    /// The slot of the flow in this seat.
    #[inline]
    fn slot(&self, seat: u32) -> usize {
        self.account.owner(seat as usize).map_or(usize::MAX, FlowId::slot)
    }
}

impl<S: SerialPolicy, P: Platform> Shared<S, P> {
    /// Calls `f` under the lock, and publishes statistics.
    #[inline]
    fn with<R>(&self, f: impl FnOnce(&mut Core<S>) -> R) -> R {
        self.core.with(|core| {
            let result = f(core);
            core.show(&self.shown);
            result
        })
    }

    #[inline]
    fn job(&self, port: PortId, tag: Tag) -> Job {
        // Tags have 24 bits at most. A wrapping shift cannot panic; verbs must not contain code
        // that panics.
        Job(u32::from(port.0).wrapping_shl(self.tag_bits) | tag.0)
    }
}

impl<S: SerialPolicy> Core<S> {
    /// Publishes the statistics that have changed.
    #[inline]
    fn show<P: Platform>(&mut self, shown: &Shown<P>) {
        let Shown { virtual_time, slots, free, throttles, blocks, wakes } = shown;
        let now = [
            self.policy.virtual_time().unwrap_or(NO_VIRTUAL_TIME),
            self.slots.into(),
            self.free.into(),
            self.throttles,
            self.blocks,
            self.wakes,
        ];
        let words = [virtual_time, slots, free, throttles, blocks, wakes];
        for ((word, now), told) in words.into_iter().zip(now).zip(&mut self.told) {
            // A word that has not changed is not stored: releasing the lock waits for all earlier
            // stores.
            if now != *told {
                *told = now;
                word.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Updates the reference weight after flows or weights have changed.
    fn weigh<P: Platform>(&mut self, flows: &FlowTable<P>) {
        self.policy.set_reference(flows.reference());
    }

    /// Inserts a request. If possible, it becomes a part of a staged unit, and then adds `joined`
    /// to that unit's cost. Returns the cost of the request.
    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival, joined: u64) -> u64 {
        let placed = self.merger.as_mut().map(|merger| merger.place(arrival));
        match placed.unwrap_or(Placed::New(arrival.job)) {
            Placed::New(job) => {
                self.policy.insert(now_ns, &Arrival { job, ..*arrival });
                arrival.cost
            }
            Placed::Into { unit: job } => {
                self.policy.grow(now_ns, &Arrival { job, cost: joined, ..*arrival });
                joined
            }
        }
    }

    /// Completes a request. A command of several requests completes with the last of them.
    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        let ended = match &mut self.merger {
            None => Some((job, outcome)),
            Some(merger) => merger.completed(job, outcome),
        };
        if let Some((job, outcome)) = ended {
            self.policy.completed(now_ns, job, flow, outcome);
            self.free_slot();
        }
    }

    /// Takes back a request that its port has not issued; `false`: it is one command with others. A
    /// chosen request has taken its slot and been charged.
    fn cancel(&mut self, now_ns: u64, port: PortId, job: Job, flow: usize) -> bool {
        let Some(unit) = self.alone(job) else { return false };
        let is_chosen = self.is_chosen(unit);
        if let Some(merger) = &mut self.merger {
            // No arrival becomes a part of it from now on: hints that name it do not fit.
            merger.leave(unit);
            merger.completed(job, Outcome::Done);
        }
        if !is_chosen {
            self.policy.cancel(unit, flow);
            return true;
        }
        self.choose(unit.0, false);
        if let Some(outbox) = self.outboxes.get_mut(usize::from(port.0)) {
            self.links.remove(outbox, unit.0);
        }
        // The policy counts a chosen request as on the device.
        self.policy.completed(now_ns, unit, flow, Outcome::Done);
        self.free_slot();
        true
    }

    /// Puts an issued request into its port's outbox, to be issued again before any other. `false`:
    /// it was one command with others.
    fn requeue(&mut self, port: PortId, job: Job) -> bool {
        let Some(unit) = self.alone(job) else { return false };
        let Some(outbox) = self.outboxes.get_mut(usize::from(port.0)) else { return false };
        self.links.push_front(outbox, unit.0);
        self.choose(unit.0, true);
        true
    }

    /// Notes the growth of a request that its port has not issued. A chosen request has been
    /// charged, without the growth.
    fn grow(
        &mut self,
        now_ns: u64,
        job: Job,
        flow: usize,
        weight: Weight,
        growth: &Growth,
    ) -> bool {
        if self.merger.is_some() {
            return false;
        }
        // A request in an outbox is no longer staged for the policy.
        if !self.is_chosen(job) {
            let Growth { op, offset, length, cost } = *growth;
            self.policy.grow(now_ns, &Arrival { job, flow, weight, op, offset, length, cost });
        }
        true
    }

    /// The policy's number of a request that is not in a command with others.
    fn alone(&self, job: Job) -> Option<Job> {
        match &self.merger {
            None => Some(job),
            Some(merger) => merger.unit_alone(job),
        }
    }

    fn is_chosen(&self, unit: Job) -> bool {
        self.chosen.get(unit.0 as usize).is_some_and(|chosen| *chosen)
    }

    fn choose(&mut self, job: u32, chosen: bool) {
        if let Some(place) = self.chosen.get_mut(job as usize) {
            *place = chosen;
        }
    }

    /// Frees the slot of a request that has left the device.
    #[inline]
    fn free_slot(&mut self) {
        if self.excess > 0 {
            self.excess -= 1;
        } else {
            self.free = self.slots.min(self.free + 1);
        }
    }

    /// Changes the number of slots.
    fn resize(&mut self, slots: u32) {
        let used = self.slots.saturating_sub(self.free).saturating_add(self.excess);
        self.slots = slots;
        self.free = slots.saturating_sub(used);
        self.excess = used.saturating_sub(slots);
    }

    /// The action of `port`, which has `staged` requests. Each round but the last takes a slot, so
    /// there are at most `slots` + 1 rounds.
    #[inline]
    fn turn(&mut self, now_ns: u64, port: PortId, staged: u32, wake: &mut PortSet) -> Turn {
        // A command that has begun goes on: the contract allows nothing between its parts.
        if let Some(piece) = self.merger.as_mut().and_then(|merger| merger.piece(port.0.into())) {
            return self.piece(&piece);
        }
        // A request that was chosen for this port has its slot already and needs no free one.
        if let Some(job) =
            self.outboxes.get_mut(port.0 as usize).and_then(|outbox| self.links.pop(outbox))
        {
            self.choose(job, false);
            return self.issue(port, job);
        }
        while self.free > 0 {
            let job = match self.policy.select(now_ns, Lanes::All) {
                Selection::Serve(job, _) => job,
                Selection::WaitUntil(time_ns) => {
                    self.throttles = self.throttles.wrapping_add(1);
                    return Turn::WaitUntil(time_ns);
                }
                Selection::Nothing => return Turn::Nothing,
            };
            let owner = match &mut self.merger {
                None => job.0.wrapping_shr(self.tag_bits),
                Some(merger) => merger.leave(job),
            };
            self.free -= 1;
            if owner == u32::from(port.0) {
                return self.issue(port, job.0);
            }
            if let Some(outbox) = self.outboxes.get_mut(owner as usize) {
                self.links.push(outbox, job.0);
                self.choose(job.0, true);
                wake.insert(PortId(owner as u8));
                self.wakes = self.wakes.wrapping_add(1);
            }
        }
        if staged > 0 {
            self.blocks = self.blocks.wrapping_add(1);
        }
        Turn::Full
    }

    /// Issues the request that the policy has selected, or the first part of a unit.
    #[inline]
    fn issue(&mut self, port: PortId, job: u32) -> Turn {
        let Some(merger) = &mut self.merger else { return Turn::Issue(self.tag(job)) };
        merger.begin(port.0.into(), Job(job));
        match merger.piece(port.0.into()) {
            Some(piece) => self.piece(&piece),
            None => Turn::Nothing,
        }
    }

    #[inline]
    fn piece(&self, piece: &Piece) -> Turn {
        let tag = self.tag(piece.job);
        if piece.goes_on { Turn::Join(tag) } else { Turn::Issue(tag) }
    }

    #[inline]
    fn tag(&self, job: u32) -> Tag {
        Tag(job & 1u32.wrapping_shl(self.tag_bits).wrapping_sub(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
