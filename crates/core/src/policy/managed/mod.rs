//! The stages that surround a policy: costs, D and latency targets, and limits.
//!
//! **Problem.** Tenants need more than an order of their requests: a cost that counts the device's
//! time, the D that the device needs, bounds on latencies, caps, reservations and groups. Each
//! needs the same facts about a request, in front of any policy. **Model.** [`Managed`] is a policy
//! around another. Its port has one record for each request, which the verbs change once, and
//! passes each verb through the stages that are in use:
//!
//! ```text
//!   submit ─▶ caps (`limits`) ─▶ its cost (`cost`) ─▶ the policy's submit ─▶ record, counts
//!                 └─ wait in a lane until a `next`
//!   next ─▶ lanes and reservations (`limits`) ─▶ the policy's next ─▶ record
//!   complete ─▶ the policy's complete ─▶ counts for D, targets, costs, reservations
//!   tick ─▶ the policy's tick ─▶ D and targets (`depth`) ─▶ costs ─▶ effective weights
//! ```
//!
//! The control side of all stages is under one lock. A stage that an embedder does not choose
//! ([`Stages`]) takes no memory.
//!
//! **Cost.** A word that all ports read has a flag for each thing that they are to count; while it
//! is 0 a request has no record, and a verb is the policy's own.

mod port;

use alloc::boxed::Box;
use alloc::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::{ConfigError, MAX_SLOTS};
use crate::contract::bounds::{boxed, granted};
use crate::contract::layer::names::*;
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering};
use crate::cost::{Classes, CostConfig, Finder, Prices};
use crate::entry::Built;
use crate::entry::knobs::AUTO;
use crate::policy::depth::meter::{Sum, Words};
use crate::policy::depth::watch::{Count, Seat, Watch};
use crate::policy::depth::{Depth, DepthConfig, FIRST};
use crate::policy::limits::counts::{Activity, Demand};
use crate::policy::limits::{self, LimitControl};

pub use port::ManagedPort;

/// The stages around a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stages {
    /// The costs of requests; `None`: requests come with their costs.
    pub cost: Option<CostConfig>,
    /// The way in which D is found; `None`: only the policy knows it.
    pub depth: Option<DepthConfig>,
    /// Whether flows can have caps and reservations, and be in groups.
    pub has_limits: bool,
}

impl Stages {
    /// The stages around a policy that is configured with this D. D is searched for if it is
    /// [`AUTO`]; the policy then begins with the D at which the search begins.
    pub fn of_slots(cost: CostConfig, slots: &mut u32) -> Stages {
        let is_auto = is_searched(slots);
        Stages { cost: Some(cost), depth: Some(DepthConfig::Slots { is_auto }), has_limits: false }
    }

    /// The stages around a policy that is configured with the number of requests that keep the
    /// device busy.
    pub fn of_busy(cost: CostConfig, busy: &mut u32) -> Stages {
        let is_auto = is_searched(busy);
        let depth = DepthConfig::Busy { busy: *busy, is_auto };
        Stages { cost: Some(cost), depth: Some(depth), has_limits: false }
    }
}

/// Whether this D is to be searched for; then it becomes the one at which the search begins.
fn is_searched(slots: &mut u32) -> bool {
    let is_auto = *slots == AUTO;
    if is_auto {
        *slots = FIRST;
    }
    is_auto
}

/// A policy within its stages. See the [module's text](self).
pub struct Managed<L, P: Platform = Native> {
    inner: L,
    pub(crate) shared: Arc<Shared<P>>,
    /// It is on the heap, since policies are moved while they are built, and a kernel's stack has
    /// 16 KiB.
    control: Box<P::Mutex<Control>>,
}

/// State that ports and the control side share.
pub(crate) struct Shared<P: Platform> {
    /// The ports' work for the stages: flags and, above them, the number of changes of caps, of
    /// flows' groups and of granted reservations. 0: there is nothing to do.
    state: P::U64,
    /// 1 while targets hold D below its value without them.
    pub(crate) is_bound: P::U64,
    pub(crate) watch: Watch<P>,
    pub(crate) prices: CachePadded<Prices<P>>,
    pub(crate) limits: limits::shared::Shared<P>,
    pub(crate) ports: Box<[Arc<Counts<P>>]>,
}

/// The counts of a port, which it alone writes.
#[repr(align(128))]
pub(crate) struct Counts<P: Platform> {
    pub(crate) total: Words<P>,
    /// By class of requests.
    pub(crate) classes: Classes<P>,
    /// By seat of latency targets.
    seats: Box<[Seat<P>]>,
    /// By slot of flows.
    flows: Box<[Activity<P>]>,
}

/// Flags of the state, in this order: some flow or group has had caps; a group was added, or a flow
/// got a reservation; some flow or group has had a reservation; D is searched for or has a bound;
/// costs follow the device's time.
pub(crate) const CAPPED: u64 = 1;
pub(crate) const SHARED: u64 = 2;
pub(crate) const RESERVED: u64 = 4;
const COUNTED: u64 = 8;
const BY_DEVICE: u64 = 16;
/// The amount by which the state rises with each change of the settings.
const CHANGE: u64 = 32;

struct Control {
    depth: Option<Depth>,
    costs: Option<Box<Finder>>,
    limits: Option<LimitControl>,
    /// Time of the policy's own next tick; 0 at first, so that the first tick calls it.
    inner_ns: u64,
}

impl<P: Platform> Shared<P> {
    /// Flags and, above them, the number of changes.
    #[inline(always)]
    pub(crate) fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// Number of changes of the settings; wraps.
    fn changes(state: u64) -> u16 {
        (state / CHANGE) as u16
    }

    /// Sets flags, and counts a change. Called under the lock.
    pub(crate) fn set(&self, flags: u64, has_changed: bool) {
        let change = if has_changed { CHANGE } else { 0 };
        self.state.store((self.state() | flags).wrapping_add(change), Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        self.ports.iter().for_each(|port| port.total.add_to(&mut sum));
        sum
    }

    /// The counts of this seat.
    pub(crate) fn count(&self, seat: usize) -> Count {
        let mut sum = Count::default();
        let seats = self.ports.iter().filter_map(|port| port.seats.get(seat));
        seats.for_each(|seat| seat.add_to(&mut sum));
        sum
    }

    /// The requests of the flow in this slot.
    pub(crate) fn demand(&self, slot: usize) -> Demand {
        let mut sum = Demand::default();
        let flows = self.ports.iter().filter_map(|port| port.flows.get(slot));
        flows.for_each(|activity| activity.add_to(&mut sum));
        sum
    }

    /// The number of ports that have requests.
    pub(crate) fn ports_in_use(&self) -> u64 {
        self.ports.iter().filter(|port| port.total.has_live()).count() as u64
    }

    /// Makes ports count while there is a search or a target.
    fn count_for(&self, depth: &Depth) {
        let flag = if depth.is_counted() { COUNTED } else { 0 };
        self.state.store(self.state() & !COUNTED | flag, Ordering::Relaxed);
    }
}

impl<L: Policy, P: Platform> Managed<L, P> {
    /// Puts the stages around a policy of at most `flows` flows and its ports, which have `tags`
    /// tags each.
    // This is not inlined, because the code that builds a policy inside Linux has a stack of 16
    // KiB.
    #[inline(never)]
    pub fn new(
        (inner, ports): Built<L>,
        tags: usize,
        flows: usize,
        stages: &Stages,
    ) -> Result<Built<Self>, ConfigError> {
        granted(|| {
            let depth = stages.depth.map(|depth| {
                let all = (tags as u64).saturating_mul(ports.len() as u64);
                let (slots, has_slots, is_auto) = match depth {
                    DepthConfig::Busy { busy, is_auto } => (busy, false, is_auto),
                    DepthConfig::Slots { is_auto } => {
                        let slots = inner.stats().slots.unwrap_or(u64::MAX);
                        let slots = slots.min(MAX_SLOTS.into()) as u32;
                        // The D that the policy has is set once more: that changes nothing, and is
                        // refused by a policy without a D. No port waits yet, so there is none to
                        // wake.
                        let set = inner.tune(Tuning::Slots(slots), &mut PortSet::default());
                        (slots, set.is_ok(), is_auto)
                    }
                };
                Depth::new(slots, has_slots, all, flows, is_auto)
            });
            let costs = stages.cost.is_some_and(|cost| cost.is_by_device()).then(Finder::boxed);
            let (limited, groups) = if stages.has_limits { (flows, Group::MOST) } else { (0, 0) };
            let counts = |_| {
                Arc::new(Counts {
                    total: Words::new(),
                    classes: Classes::new(),
                    seats: if depth.is_some() { Seat::all() } else { Box::default() },
                    flows: boxed(limited, |_| Activity::new()),
                })
            };
            let has_classes = inner.class_weights().is_some();
            let shared = Arc::new(Shared {
                state: P::U64::new(if costs.is_some() { BY_DEVICE } else { 0 }),
                is_bound: P::U64::new(0),
                watch: Watch::new(if depth.is_some() { flows } else { 0 }),
                prices: CachePadded::new(Prices::new()),
                limits: limits::shared::Shared::new(limited, groups, has_classes),
                ports: boxed(ports.len(), counts),
            });
            if let Some(depth) = &depth {
                shared.count_for(depth);
            }
            let port = |(inner, counts): (_, &Arc<Counts<P>>)| {
                ManagedPort::new(inner, shared.clone(), counts.clone(), (tags, flows), stages)
            };
            let ports = ports.into_iter().zip(&shared.ports).map(port).collect();
            let limits = stages.has_limits.then(|| LimitControl::new(flows));
            let control = Box::new(P::Mutex::new(Control { depth, costs, limits, inner_ns: 0 }));
            Ok((Managed { inner, shared, control }, ports))
        })
    }

    /// Sets the effective weights that limits have computed.
    fn publish(&self, control: &mut Control) {
        if let Some(limits) = &mut control.limits
            && !limits.news.is_empty()
        {
            self.weigh(&mut control.depth, &limits.news);
            limits.news.clear();
        }
    }

    fn weigh(&self, depth: &mut Option<Depth>, weights: &[(FlowId, Weight)]) {
        self.inner.set_weights(weights);
        if let Some(depth) = depth {
            weights.iter().for_each(|&(flow, weight)| depth.weigh(flow, weight));
        }
    }

    /// Runs a function with the limits, if there are some, and then sets the weights that it has
    /// changed.
    fn with_limits<R>(
        &self,
        or: impl FnOnce() -> R,
        run: impl FnOnce(&mut LimitControl, &Shared<P>) -> R,
    ) -> R {
        self.control.with(|control| {
            let Some(limits) = &mut control.limits else { return or() };
            let result = run(limits, &self.shared);
            self.publish(control);
            result
        })
    }
}

impl<L: Policy, P: Platform> Policy for Managed<L, P> {
    type Port = ManagedPort<L::Port, P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|control| {
            let scaled = control.limits.as_ref().map_or(weight, |limits| limits.scaled(weight));
            let flow = self.inner.add_flow_as(known, scaled)?;
            if let Some(depth) = &mut control.depth {
                depth.weigh(flow, scaled);
            }
            if let Some(limits) = &mut control.limits {
                limits.add(flow, (weight, scaled), &self.shared);
            }
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, mut weight: Weight) -> Result<(), FlowError> {
        self.control.with(|control| {
            if let Some(limits) = &mut control.limits {
                weight = limits.set_weight(flow, weight, &self.shared)?;
                // This calls `set_weight` and not `set_weights`, because an operator changed the
                // weight, and the policy then restarts its measurements of the flow.
                limits.news.clear();
            }
            self.inner.set_weight(flow, weight)?;
            if let Some(depth) = &mut control.depth {
                depth.weigh(flow, weight);
            }
            Ok(())
        })
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.control.with(|control| {
            if control.limits.is_none() {
                return self.weigh(&mut control.depth, weights);
            }
            for &(flow, weight) in weights {
                if let Some(limits) = &mut control.limits {
                    // A flow that is gone has no weight.
                    let _ = limits.set_weight(flow, weight, &self.shared);
                    if !limits.is_full() {
                        continue;
                    }
                }
                self.publish(control);
            }
            self.publish(control);
        });
    }

    fn set_urgent(&self, flow: FlowId, urgent: bool) -> Result<(), FlowError> {
        self.inner.set_urgent(flow, urgent)
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        self.control.with(|control| {
            let Some(depth) = &mut control.depth else { return self.inner.tune(tuning, wake) };
            depth.tune(tuning, |tuning| self.inner.tune(tuning, wake))?;
            self.shared.count_for(depth);
            Ok(())
        })
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|control| {
            let ports = self.inner.remove_flow(flow)?;
            if let Some(depth) = &mut control.depth {
                depth.remove(flow, &self.shared);
                self.shared.count_for(depth);
            }
            if let Some(limits) = &mut control.limits {
                limits.remove(flow, &self.shared);
            }
            Ok(ports)
        })
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let Managed { inner, shared, control } = self;
        control.with(|control| {
            if control.inner_ns <= now_ns {
                control.inner_ns = inner.tick(now_ns, wake).unwrap_or(u64::MAX);
            }
            let mut next_ns = control.inner_ns;
            if let Some(depth) = &mut control.depth {
                let set = |slots| inner.tune(Tuning::Slots(slots), wake).is_ok();
                next_ns = next_ns.min(depth.tick(now_ns, shared, set));
            }
            if let Some(finder) = &mut control.costs {
                let add = |sum: &mut _| {
                    shared.ports.iter().for_each(|port| port.classes.add_to(sum));
                };
                let varies = finder.tick(now_ns, &shared.prices, add, || inner.stats());
                next_ns = next_ns.min(finder.next_ns);
                if let Some((depth, is_much)) = control.depth.as_mut().zip(varies) {
                    depth.wait(now_ns, is_much);
                }
            }
            if let Some(limits) = &mut control.limits {
                next_ns = next_ns.min(limits.tick(now_ns, shared));
                self.publish(control);
            }
            (next_ns < u64::MAX).then_some(next_ns)
        })
    }

    fn class_weights(&self) -> Option<ClassWeights> {
        self.inner.class_weights()
    }

    fn stats(&self) -> Stats {
        let stats = self.inner.stats();
        self.control.with(|Control { depth, costs, limits, .. }| Stats {
            depth: depth.as_ref().and_then(Depth::stats),
            cost: costs.as_ref().map(|finder| finder.stats()),
            reserved: limits.as_ref().and_then(LimitControl::stats),
            ..stats
        })
    }
}

impl<L: Policy, P: Platform> Limits for Managed<L, P> {
    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        self.control.with(|control| {
            let depth = control.depth.as_mut().ok_or(FlowError::NoTargets)?;
            depth.set_target(flow, target, &self.shared)?;
            self.shared.count_for(depth);
            Ok(())
        })
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.control.with(|control| control.depth.as_ref()?.target(flow))
    }

    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        let or = || Err(FlowError::NoCaps);
        self.with_limits(or, |limits, shared| limits.set_caps(flow, caps, shared))
    }

    fn resume_caps(&self, of: CapsOf, before: &CapStats) {
        self.with_limits(|| (), |limits, shared| limits.resume_caps(of, before, shared));
    }

    fn caps(&self, flow: FlowId) -> Option<CapStats> {
        self.with_limits(|| None, |limits, shared| limits.caps(flow, shared))
    }

    fn set_group(&self, id: GroupId, group: Option<&Group>) -> Result<(), FlowError> {
        let or = || Err(FlowError::NoGroups);
        self.with_limits(or, |limits, shared| limits.set_group(id, group, shared))
    }

    fn group(&self, id: GroupId) -> Option<GroupStats> {
        self.with_limits(|| None, |limits, shared| limits.group(id, shared))
    }

    fn set_share(&self, flow: FlowId, share: &Share) -> Result<(), FlowError> {
        let or = || Err(FlowError::NoGroups);
        self.with_limits(or, |limits, shared| limits.set_share(flow, share, shared))
    }

    fn share(&self, flow: FlowId) -> Option<ShareStats> {
        self.with_limits(|| None, |limits, shared| limits.share(flow, shared))
    }
}
