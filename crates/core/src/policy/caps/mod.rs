//! Caps: the most that a flow may be given in a second, whatever is free; one layer in front of any
//! policy.
//!
//! **Problem.** A weight says what a flow gets beside others. What is sold, or what a neighbour is
//! to be spared, is a number of requests or bytes a second, as Linux's `io.max` and QEMU's
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
//! - A group of flows may have caps, too, and so may the groups that it is in. A request goes when
//!   its flow's caps and those of all its groups allow it, as `io.max` nests.
//! - On each port a flow has a *lane* for reads and one for writes, so that a cap on the one does
//!   not hold back the other. Requests leave a lane in the order in which they came.
//! - Lanes that wait for the same cap take turns: those of a flow on several ports, so that the
//!   port that is polled most often does not have all that the cap allows, and those of a group's
//!   flows by what these weigh at their places in the tree.
//!
//! **Example.** 1,000 requests a second with a burst of 100: a flow that has rested has 100 at once
//! and then one each millisecond, so at most 1,100 in any second. A group of 1,000 with flows of
//! 300 and 100: 750 and 250, and 1,000 for one of them while the other is idle.
//!
//! **Bounds of loops.** `submit` asks the flow and its groups, at most [`Group::LEVELS`] + 1, four
//! buckets each. A call of `next` tries 16 lanes at most and asks to be called again if there are
//! more. A tick looks at 1,024 flows; a group's first cap and its last one tell all flows.
//!
//! **Removal.** A flow that is removed has no caps from then on. What waits here is given to the
//! device within a tenth of a second without going by the policy, which takes no more of that flow.
//!
//! **Cost.** Without caps anywhere `submit` reads one shared word that does not change, and `next`
//! and `complete` a number of the port's own.
//!
//! *Memory ordering.* The words of flows and groups are stored with Release after their buckets are
//! set, and read with Acquire. All else are counts.

mod account;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::bounds::ConfigError;
use crate::contract::flow::{CapStats, Caps, FlowError, FlowId, Taken, Weight};
use crate::contract::layer::{self, layer};
use crate::contract::op::Op;
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{
    Answer, Class, FlowStats, Growth, Held, Next, Outcome, Policy, Port, Reason, Request,
    SubmitError, Submitted, Tag,
};
use crate::contract::port_set::PortSet;
use crate::contract::share::{CapsOf, Group, GroupId, GroupStats, Share};
use crate::entry::Built;
use crate::policy::bucket::Time;
use crate::structures::allocation::{boxed, granted};
use account::{Account, Path, Shared, Wait, Word};
use waiting::{Lane, Place, Waiter, Waiting};

/// How many lanes are tried in one call.
const AT_ONCE: usize = 16;
/// A lane is tried again after this long at the latest, in nanoseconds, since caps may change.
const AGAIN_NS: u64 = 100_000_000;
/// What a discard counts for, in bytes.
const DISCARD_BYTES: u64 = 512;
/// How often what flows weigh is looked at while groups have caps, in nanoseconds, and how many at
/// once.
const LOOK_NS: u64 = 10_000_000;
const FLOWS_AT_ONCE: usize = 1024;

/// A policy whose flows can have caps. See the [module's text](self).
pub struct Capped<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    control: P::Mutex<Control>,
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

struct Control {
    /// Of each slot its flow.
    flows: Box<[Option<Member>]>,
    groups: Box<[Option<Node>]>,
    /// How many groups have caps.
    capped: usize,
    /// Slots in use are below it.
    used: usize,
    /// The slot whose weight is looked at next; when to look, and when the policy wants to be
    /// called.
    cursor: usize,
    look_ns: u64,
    inner_ns: Option<u64>,
}

/// A flow that is there.
struct Member {
    flow: FlowId,
    caps: Caps,
    group: Option<GroupId>,
}

/// A group that is there.
struct Node {
    parent: Option<GroupId>,
    caps: Caps,
}

impl Control {
    fn member(&mut self, flow: FlowId) -> Result<&mut Member, FlowError> {
        let member = self.flows.get_mut(flow.slot()).and_then(Option::as_mut);
        member.filter(|member| member.flow == flow).ok_or(FlowError::NoSuchFlow)
    }

    fn node(&self, id: GroupId) -> Option<&Node> {
        self.groups.get(usize::from(id.0))?.as_ref()
    }

    /// The nearest group that has caps: this one, or one that it is in.
    fn nearest(&self, mut group: Option<GroupId>) -> Option<GroupId> {
        for _ in 0..Group::LEVELS {
            let node = self.node(group?)?;
            if !node.caps.is_empty() {
                return group;
            }
            group = node.parent;
        }
        None
    }

    /// What ports see of a flow.
    fn show<P: Platform>(&self, slot: usize, shared: &Shared<P>) {
        let Some(Some(Member { flow, caps, group })) = self.flows.get(slot) else {
            return shared.put(slot, Word::default());
        };
        let (above, generation) = (self.nearest(*group), flow.generation());
        shared.put(slot, Word { caps: caps.bits(), above, generation });
    }

    /// The same of a group.
    fn show_group<P: Platform>(&self, id: GroupId, shared: &Shared<P>) {
        let word = self.node(id).map(|node| {
            let (caps, above) = (node.caps.bits(), self.nearest(node.parent));
            Word { caps, above, generation: 0 }
        });
        shared.put_group(id, word.unwrap_or_default());
    }
}

/// Gives the buckets new caps. One that stays as it is keeps what was taken from it; others start
/// full.
fn fill<P: Platform>(account: &Account<P>, old: &Caps, caps: &Caps) {
    for (((_, cap), (_, old)), bucket) in caps.all().zip(old.all()).zip(&account.buckets) {
        if let Some(cap) = cap
            && old != Some(cap)
        {
            bucket.set(cap.per_second(), cap.burst());
        }
    }
}

/// Goes on where caps under another policy have come to.
fn resume<P: Platform>(account: &Account<P>, caps: &Caps, before: &CapStats) {
    account.held.store(before.held, Ordering::Relaxed);
    account.held_ns.store(before.held_ns, Ordering::Relaxed);
    let both = caps.all().zip(before.caps.all()).zip(account.buckets.iter().zip(before.taken.0));
    for (((_, cap), (_, old)), (bucket, taken)) in both {
        if cap.is_some() && cap == old {
            bucket.resume(taken);
        }
    }
}

/// What the caps have done; `None` if there never were any.
fn stats_of<P: Platform>(account: &Account<P>, caps: Caps) -> Option<CapStats> {
    let [held, held_ns, waiting] = [&account.held, &account.held_ns, &account.waiting]
        .map(|word| word.load(Ordering::Relaxed));
    let is_any = !caps.is_empty() || held > 0;
    let taken = Taken(core::array::from_fn(|index| {
        account.buckets.get(index).map_or(0, |bucket| bucket.taken())
    }));
    is_any.then_some(CapStats { caps, held, held_ns, waiting, taken })
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
            let shared = Arc::new(Shared::new(flows, Group::MOST));
            let port = |inner| CappedPort {
                inner,
                shared: shared.clone(),
                waiting: Waiting::new(tags, flows),
                held: 0,
                strays: 0,
                is_joining: false,
            };
            let ports = ports.into_iter().map(port).collect();
            let control = P::Mutex::new(Control {
                flows: boxed(flows, |_| None),
                groups: boxed(Group::MOST, |_| None),
                capped: 0,
                used: 0,
                cursor: 0,
                look_ns: 0,
                inner_ns: Some(0),
            });
            Ok((Capped { inner, shared, control }, ports))
        })
    }
}

impl<L: Policy, P: Platform> Capped<L, P> {
    /// Looks at what some flows weigh.
    fn look(&self, control: &mut Control) {
        let until = control.used.min(control.cursor.saturating_add(FLOWS_AT_ONCE));
        for member in control.flows.iter().take(until).skip(control.cursor).flatten() {
            let Some(account) = self.shared.account(member.flow) else { continue };
            let is_held = account.waiting.load(Ordering::Relaxed) > 0;
            // Only flows that wait for a group's cap have turns by weight, and the policy takes a
            // lock to tell it.
            if is_held
                && member.group.is_some()
                && let Some(share) = self.inner.share(member.flow)
            {
                account.weight.store(share.weight.in_256ths().into(), Ordering::Relaxed);
            }
        }
        control.cursor = if until >= control.used { 0 } else { until };
    }
}

layer!(Capped, CappedPort);

impl<L: Policy, P: Platform> layer::Layer for Capped<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|control| {
            let flow = self.inner.add_flow_as(known, weight)?;
            let slot = flow.slot();
            control.used = control.used.max(slot + 1);
            if let Some(place) = control.flows.get_mut(slot) {
                *place = Some(Member { flow, caps: Caps::default(), group: None });
            }
            control.show(slot, &self.shared);
            if let Some(account) = self.shared.account(flow) {
                account.begin();
                account.weight.store(weight.in_256ths().into(), Ordering::Relaxed);
            }
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.inner.set_weight(flow, weight)?;
        if let Some(account) = self.shared.account(flow) {
            account.weight.store(weight.in_256ths().into(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// A cap that stays as it is keeps what was taken from it; others start full.
    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        self.control.with(|control| {
            let member = control.member(flow)?;
            let old = core::mem::replace(&mut member.caps, *caps);
            if let Some(account) = self.shared.account(flow) {
                fill(account, &old, caps);
            }
            control.show(flow.slot(), &self.shared);
            if !caps.is_empty() {
                self.shared.turn_on();
            }
            Ok(())
        })
    }

    fn resume_caps(&self, of: CapsOf, before: &CapStats) {
        self.control.with(|control| {
            let (account, caps) = match of {
                CapsOf::Flow(flow) => {
                    (self.shared.account(flow), control.member(flow).ok().map(|member| member.caps))
                }
                CapsOf::Group(id) => {
                    (self.shared.group(id), control.node(id).map(|node| node.caps))
                }
            };
            if let Some((account, caps)) = account.zip(caps) {
                resume(account, &caps, before);
            }
        });
    }

    fn caps(&self, flow: FlowId) -> Option<CapStats> {
        let caps =
            self.control.with(|control| control.member(flow).map(|member| member.caps).ok())?;
        stats_of(self.shared.account(flow)?, caps)
    }

    /// The same for a group. When it gets its first caps or loses its last ones, all flows and
    /// groups are told.
    fn set_group(&self, id: GroupId, group: Option<&Group>) -> Result<(), FlowError> {
        self.control.with(|control| {
            self.inner.set_group(id, group)?;
            let node = group.map(|group| Node { parent: group.parent, caps: group.caps });
            let (is_new, caps) = (node.is_some(), node.as_ref().map(|node| node.caps));
            let Some(place) = control.groups.get_mut(usize::from(id.0)) else { return Ok(()) };
            let before = core::mem::replace(place, node);
            let (old, caps) = (
                before.as_ref().map(|node| node.caps).unwrap_or_default(),
                caps.unwrap_or_default(),
            );
            if let Some(account) = self.shared.group(id) {
                fill(account, &old, &caps);
                if is_new && before.is_none() {
                    account.begin();
                }
            }
            control.show_group(id, &self.shared);
            // The nearest group with caps is another one for all flows and groups inside of this
            // one.
            if old.is_empty() != caps.is_empty() {
                control.capped += usize::from(!caps.is_empty());
                control.capped = control.capped.saturating_sub(usize::from(!old.is_empty()));
                (0..Group::MOST as u16)
                    .map(GroupId)
                    .filter(|&id| control.node(id).is_some())
                    .for_each(|id| control.show_group(id, &self.shared));
                (0..control.used).for_each(|slot| control.show(slot, &self.shared));
                self.shared.turn_on();
            }
            Ok(())
        })
    }

    fn group(&self, id: GroupId) -> Option<GroupStats> {
        let stats = self.inner.group(id)?;
        Some(GroupStats { caps: stats_of(self.shared.group(id)?, stats.group.caps), ..stats })
    }

    fn set_share(&self, flow: FlowId, share: &Share) -> Result<(), FlowError> {
        self.control.with(|control| {
            self.inner.set_share(flow, share)?;
            control.member(flow)?.group = share.group;
            control.show(flow.slot(), &self.shared);
            Ok(())
        })
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|control| {
            let ports = self.inner.remove_flow(flow)?;
            if let Some(place) = control.flows.get_mut(flow.slot()) {
                *place = None;
            }
            control.show(flow.slot(), &self.shared);
            Ok(ports)
        })
    }

    /// Flows that wait for a group's cap have turns by what they weigh at their places, which the
    /// policy inside knows.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        if !self.shared.is_on() {
            return self.inner.tick(now_ns, wake);
        }
        self.control.with(|control| {
            // Without a group's cap the layer has no deadline of its own, so it is the policy's
            // that has come.
            if control.capped == 0 || control.inner_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                control.inner_ns = self.inner.tick(now_ns, wake);
            }
            if control.capped == 0 {
                return control.inner_ns;
            }
            if control.look_ns <= now_ns {
                self.look(control);
                control.look_ns = now_ns.saturating_add(LOOK_NS);
            }
            let look_ns = control.look_ns;
            Some(control.inner_ns.map_or(look_ns, |at_ns| at_ns.min(look_ns)))
        })
    }
}

fn is_write(request: &Request) -> bool {
    request.op != Op::Read
}

impl<Q: Port, P: Platform> CappedPort<Q, P> {
    /// Keeps the request until the caps on its path let it go.
    #[cold]
    fn hold(&mut self, now: Time, request: &Request, path: &Path, wait: Wait) {
        let (flow, is_write) = (request.flow, is_write(request));
        let number = self.waiting.lane(flow, is_write);
        if number.is_none() {
            // The slot may have one of a flow that is gone.
            if let Some(old) = self.waiting.number(flow.slot(), is_write) {
                self.close(old);
            }
            let weight = self.weight(flow);
            let at_ns = self.shared.again_ns(now, wait, path, request, weight);
            self.waiting.open(request, at_ns, wait.by);
            self.count_lane(flow, is_write, path, weight);
        }
        let by = self.waiting.push(now.ns(), request);
        self.held = self.held.saturating_add(1);
        let group = self.shared.numbered(by);
        self.shared.account(flow).into_iter().chain(group).for_each(Account::count);
    }

    /// What a lane of the flow weighs beside others.
    fn weight(&self, flow: FlowId) -> u64 {
        self.shared.account(flow).map_or(0, |account| account.weight.load(Ordering::Relaxed))
    }

    /// Counts the flow's lane where it is: it is new, or its groups or its weight are.
    fn count_lane(&mut self, flow: FlowId, is_write: bool, path: &Path, weight: u64) {
        let Some(lane) = self.waiting.lane_mut(flow, is_write) else { return };
        if (lane.groups, lane.weight) == (path.groups, weight) {
            return;
        }
        self.shared.lane(flow, &lane.groups, is_write, lane.weight, false);
        (lane.groups, lane.weight) = (path.groups, weight);
        self.shared.lane(flow, &lane.groups, is_write, lane.weight, true);
    }

    fn close(&mut self, number: u32) {
        if let Some(Lane { flow: Some(flow), is_write, groups, weight, .. }) =
            self.waiting.close(number)
        {
            self.shared.lane(flow, &groups, is_write, weight, false);
        }
    }

    /// Takes a request that waits out. A lane that is empty then is closed; the number of one that
    /// is not.
    fn leave(&mut self, now_ns: u64, request: &Request) -> Option<u32> {
        let (waiter, lane) = self.waiting.take(request);
        self.held = self.held.saturating_sub(1);
        if let Some(Waiter { since_ns, by, .. }) = waiter {
            let held_ns = now_ns.saturating_sub(since_ns);
            let group = self.shared.numbered(by);
            let all = self.shared.account(request.flow).into_iter().chain(group);
            all.for_each(|account| account.count_off(held_ns));
        }
        let (number, is_empty) = lane?;
        if !is_empty {
            return Some(number);
        }
        self.close(number);
        None
    }

    /// Gives the policy what caps let go. What is to be issued at once is the answer.
    #[cold]
    fn release(&mut self, now_ns: u64, wake: &mut PortSet) -> Option<Next> {
        let now = Time::of_ns(now_ns);
        for _ in 0..AT_ONCE {
            // Requests of flows that are gone: no cap holds them, and the policy refuses them.
            let loose = self.waiting.loose.first();
            if let Some(Waiter { request, .. }) = loose.and_then(|tag| self.waiting.waiter(tag)) {
                self.leave(now_ns, &request);
                return Some(self.stray(request.tag));
            }
            let (number, request) = self.waiting.first()?;
            if self.waiting.due_ns().is_none_or(|at_ns| at_ns > now_ns) {
                return None;
            }
            let path = self.shared.path(request.flow, request.op);
            let weight = self.weight(request.flow);
            // Weight and groups may have changed while the lane waited, and turns are computed from
            // them.
            self.count_lane(request.flow, is_write(&request), &path, weight);
            if let Err(wait) = self.shared.take(now, &path, &request) {
                let at_ns = self.shared.again_ns(now, wait, &path, &request, weight);
                self.waiting.try_at(number, at_ns);
                self.waiting.is_held_by(number, wait.by);
                continue;
            }
            let is_fenced =
                self.waiting.lanes.get(number as usize).is_some_and(|lane| lane.is_fenced);
            if let Some(number) = self.leave(now_ns, &request) {
                let pace_ns = self.shared.pace_ns(now, &path, &request, weight);
                self.waiting.sent(number, now_ns, pace_ns);
            }
            // The barrier came while the request waited here, and stands on both sides of it.
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
        // If more lanes are due, their time is what `next` answers, and its caller comes back at
        // once.
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

impl<Q: Port, P: Platform> CappedPort<Q, P> {
    /// Some flow has caps. Out of line, as what is next is, so that a verb of a server without caps
    /// is the policy's own.
    #[cold]
    #[inline(never)]
    fn submit_capped(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        // While nothing waits here there is no tag and no lane to look up.
        if self.held == 0 && self.strays == 0 {
            if self.shared.take_own(Time::of_ns(now_ns), request) {
                return self.inner.submit(now_ns, request, wake);
            }
        } else if !self.shared.is_capped(request.flow) {
            if self.waiter(request.tag).is_some() {
                return Err(SubmitError::BadTag);
            }
            return self.inner.submit(now_ns, request, wake);
        }
        match self.waiting.tags.get(request.tag.0 as usize).map(waiting::place) {
            Some(Place::Policy) => {}
            _ => return Err(SubmitError::BadTag),
        }
        let path = self.shared.path(request.flow, request.op);
        if !path.is_empty() {
            let now = Time::of_ns(now_ns);
            // What is in a lane is before it.
            let may_go = match self.waiting.lane(request.flow, is_write(request)) {
                None => self.shared.take(now, &path, request),
                Some(_) => Err(Wait { until: now, by: 0 }),
            };
            if let Err(wait) = may_go {
                self.hold(now, request, &path, wait);
                return Ok(Submitted::Staged);
            }
        }
        self.inner.submit(now_ns, request, wake)
    }

    /// Something waits here.
    #[cold]
    #[inline(never)]
    fn next_held(&mut self, now_ns: u64, wake: &mut PortSet) -> Answer {
        // What follows a `Join` is the policy's.
        if !self.is_joining
            && let Some(next) = self.release(now_ns, wake)
        {
            return next.into();
        }
        let next = self.inner.next(now_ns, wake);
        self.is_joining = matches!(next, Next::Join { .. });
        let due_ns = self.waiting.due_ns().unwrap_or(u64::MAX);
        let next = match next {
            Next::WaitUntil(at_ns) => Next::WaitUntil(at_ns.min(due_ns)),
            Next::Blocked | Next::Idle if self.held > 0 => Next::WaitUntil(due_ns),
            next => next,
        };
        next.into()
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

    #[inline(always)]
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        if self.shared.is_on() {
            return self.submit_capped(now_ns, request, wake);
        }
        self.inner.submit(now_ns, request, wake)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        if self.held == 0 {
            return self.inner.next(now_ns, wake);
        }
        self.next_held(now_ns, wake).into()
    }

    #[inline(always)]
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
            // The policy does not know it, so it goes again as it went before.
            return Some(Submitted::Issue { class: Class::Medium });
        }
        self.inner.requeue(now_ns, tag, wake)
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        if self.waiter(tag).is_none() {
            return self.inner.grow(now_ns, tag, growth, wake);
        }
        if let Some(mut waiter) = self.waiting.waiter(tag.0) {
            // The caps are asked when it goes, for all of its length; what it costs is computed
            // then, too.
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
            if let Some(lane) = self.waiting.lane_mut(flow, is_write) {
                lane.is_fenced = true;
            }
        }
    }

    fn reason(&self, tag: Option<Tag>) -> Reason {
        let waits = match tag {
            Some(tag) => self.waiter(tag).is_some(),
            None => self.held > 0 && !self.inner.has_work(),
        };
        if !waits {
            return self.inner.reason(tag);
        }
        let first = || self.waiting.first().map(|(_, request)| request.tag);
        let waiter = tag.or_else(first).and_then(|Tag(tag)| self.waiting.waiter(tag));
        let by_group = waiter.is_some_and(|waiter| waiter.by != 0);
        let held = if by_group { Held::GroupCap } else { Held::Cap };
        Reason { held: Some(held), ..Reason::default() }
    }
}
