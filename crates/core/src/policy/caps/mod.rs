//! Caps: the most service of a flow in a second, even if the device has room; one layer in front of
//! any policy.
//!
//! **Problem.** A weight determines a flow's share beside others. A service that is sold, or a
//! limit that protects neighbours, is a number of requests or bytes a second, as in Linux's
//! `io.max` and QEMU's throttling. **Model.** [`Capped`] stands around a policy. A request whose
//! flow has used up a cap waits here, *before* the policy: it holds no virtual time and no slot,
//! and costs the others nothing; the policy gets it when the cap lets it go.
//!
//! ```text
//!   submit ─▶ may go by all its caps? ── yes ─▶ the policy's submit
//!                 └─ no ─▶ a lane ── next, when a cap says so ─▶ the policy's submit
//! ```
//!
//! - A flow has up to six caps: requests and bytes, of reads, of writes, and of both together. Each
//!   is a bucket that all ports share; a request takes from all that count it at once, or from
//!   none.
//! - A group of flows may have caps, too, and so may the groups that it is in. A request goes when
//!   its flow's caps and those of all its groups allow it, as `io.max` nests.
//! - On each port a flow has a *lane* for reads and one for writes, so that a cap on the one does
//!   not hold back the other. Requests leave a lane in the order in which they came.
//! - Lanes that wait for the same cap take turns: a flow's lanes on several ports, so that the port
//!   that is polled most often does not use up the cap, and a group's lanes by its flows' weights.
//!
//! **Example.** 1,000 requests a second with a burst of 100: a flow that has rested has 100 at once
//! and then one each millisecond, so at most 1,100 in any second. A group of 1,000 with flows of
//! 300 and 100: 750 and 250, and 1,000 for one of them while the other is idle.
//!
//! **Bounds of loops.** `submit` checks the flow and its groups, at most [`Group::LEVELS`] + 1,
//! four buckets each. A call of `next` tries at most 16 lanes, and returns a time that is due if
//! there are more. A tick reads 1,024 flows; adding a group's first cap, or removing its last one,
//! updates all flows.
//!
//! **Removal.** A flow that is removed has no caps from then on. Its requests that wait here go to
//! the device within a tenth of a second, before all others, since the policy accepts no more of
//! that flow ([`Port::expedite`]). The policy knows waiting requests ([`Port::hold`]), so that
//! their tags and their flow's slot stay in use. **Charges.** A request that the policy refuses or
//! that is cancelled pays for nothing; growth after a cap has let the request go is a debt.
//!
//! **Cost.** Without caps anywhere `submit` reads one shared word that does not change, and `next`
//! and `complete` a counter of the port's own.
//!
//! *Memory ordering.* The words of flows and groups are stored with Release after their buckets are
//! set, and read with Acquire. All other words are counts.

mod account;
#[cfg(all(test, loom))]
mod models;
mod port;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::bounds::ConfigError;
use crate::contract::flow::Taken;
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::op::Op;
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering};
use crate::contract::port::{Answer, Class, Held};
use crate::entry::Built;
use crate::policy::bucket::Time;
use crate::structures::allocation::{boxed, granted};
use account::{Account, Own, Path, Shared, Wait, Word};
use waiting::{Lane, Place, Waiter, Waiting};

/// Lanes tried in one call.
const AT_ONCE: usize = 16;
/// The longest time between two tries of a lane, in nanoseconds, since caps may change.
const AGAIN_NS: u64 = 100_000_000;
/// Bytes that a discard counts for.
const DISCARD_BYTES: u64 = 512;
/// Time between two readings of flows' weights while groups have caps, in nanoseconds, and flows
/// read at once.
const LOOK_NS: u64 = 10_000_000;
const FLOWS_AT_ONCE: usize = 1024;

/// A policy whose flows can have caps. See the [module's text](self).
pub struct Capped<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    control: P::Mutex<Control>,
}

/// A port of [`Capped`].
pub struct CappedPort<Q, P: Platform = Native> {
    inner: Q,
    shared: Arc<Shared<P>>,
    waiting: Waiting,
    /// Requests that wait here, in all lanes together.
    held: u32,
    /// Requests in the policy that caps have paid for.
    passed: u32,
    /// The policy's last answer was a part of a command.
    is_joining: bool,
}

struct Control {
    /// The flow of each slot.
    flows: Box<[Option<Member>]>,
    groups: Box<[Option<Node>]>,
    /// Number of groups with caps.
    capped: usize,
    /// All slots in use are below this.
    used: usize,
    /// The slot whose weight is read next; the time of the next reading, and of the policy's next
    /// tick.
    cursor: usize,
    look_ns: u64,
    inner_ns: Option<u64>,
}

/// A flow, its caps and its group.
struct Member {
    flow: FlowId,
    caps: Caps,
    group: Option<GroupId>,
}

/// A group, its parent and its caps.
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

    /// Publishes the word of a flow to the ports.
    fn show<P: Platform>(&self, slot: usize, shared: &Shared<P>) {
        let Some(Some(Member { flow, caps, group })) = self.flows.get(slot) else {
            return shared.put(slot, Word::default());
        };
        let (above, generation) = (self.nearest(*group), flow.generation());
        shared.put(slot, Word { caps: caps.bits(), above, generation });
    }

    /// Publishes the word of a group to the ports.
    fn show_group<P: Platform>(&self, id: GroupId, shared: &Shared<P>) {
        let word = self.node(id).map(|node| {
            let (caps, above) = (node.caps.bits(), self.nearest(node.parent));
            Word { caps, above, generation: 0 }
        });
        shared.put_group(id, word.unwrap_or_default());
    }
}

/// Gives the buckets new caps. A cap that does not change keeps the amounts taken from it; others
/// start full.
fn fill<P: Platform>(account: &Account<P>, old: &Caps, caps: &Caps) {
    for (((_, cap), (_, old)), bucket) in caps.all().zip(old.all()).zip(&account.buckets) {
        if let Some(cap) = cap
            && old != Some(cap)
        {
            bucket.set(cap.per_second(), cap.burst());
        }
    }
}

/// Continues from the state of these caps under another policy.
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

/// Statistics of the caps; `None` if there are none and none has held a request.
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
    /// Puts the layer around a policy of at most `flows` flows and its ports, which have `tags`
    /// tags each.
    // Not inlined: the code that builds a policy inside Linux has a stack of 16 KiB.
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
                passed: 0,
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
    /// Sets the weight that the flow has while it has no place in a tree.
    fn weigh(&self, flow: FlowId, weight: Weight) {
        if let Some(account) = self.shared.account(flow) {
            account.weight.store(weight.in_256ths().into(), Ordering::Relaxed);
        }
    }

    /// Reads the effective weights of some flows.
    fn look(&self, control: &mut Control) {
        let until = control.used.min(control.cursor.saturating_add(FLOWS_AT_ONCE));
        for member in control.flows.iter().take(until).skip(control.cursor).flatten() {
            let Some(account) = self.shared.account(member.flow) else { continue };
            let is_held = account.waiting.load(Ordering::Relaxed) > 0;
            // Only flows that wait for a group's cap have turns by weight, and the policy takes a
            // lock to give the weight.
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
            }
            self.weigh(flow, weight);
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.inner.set_weight(flow, weight)?;
        self.weigh(flow, weight);
        Ok(())
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.inner.set_weights(weights);
        self.control.with(|control| {
            for &(flow, weight) in weights {
                if control.member(flow).is_ok() {
                    self.weigh(flow, weight);
                }
            }
        });
    }

    layer::forward_policy! {
        set_urgent set_target target share tune costs_vary class_weights stats
    }

    /// A cap that does not change keeps the amounts taken from it; others start full.
    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        self.control.with(|control| {
            let member = control.member(flow)?;
            let old = core::mem::replace(&mut member.caps, *caps);
            if let Some(account) = self.shared.account(flow) {
                fill(account, &old, caps);
            }
            control.show(flow.slot(), &self.shared);
            if !(caps.is_empty() && old.is_empty()) {
                self.shared.changes();
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

    /// Sets a group's caps likewise. When a group gets its first caps or loses its last ones, the
    /// words of all flows and groups are updated.
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
            // The nearest group with caps changes for all flows and groups inside of this one.
            if old.is_empty() != caps.is_empty() {
                control.capped += usize::from(!caps.is_empty());
                control.capped = control.capped.saturating_sub(usize::from(!old.is_empty()));
                (0..Group::MOST as u16)
                    .map(GroupId)
                    .filter(|&id| control.node(id).is_some())
                    .for_each(|id| control.show_group(id, &self.shared));
                (0..control.used).for_each(|slot| control.show(slot, &self.shared));
            }
            if old != caps {
                self.shared.changes();
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
            if self.shared.is_on() {
                self.shared.changes();
            }
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

    /// Flows that wait for a group's cap have turns by their effective weights, which the policy
    /// inside knows.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        if !self.shared.is_on() {
            return self.inner.tick(now_ns, wake);
        }
        self.control.with(|control| {
            // Without a group's cap the layer has no deadline of its own, so the policy's deadline
            // has come.
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
