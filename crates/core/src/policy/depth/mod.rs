//! Automatic D: a policy that has D, and a search for the D that its device needs.
//!
//! **Problem.** D, the most requests on the device, is a capacity number. If it is too small, the
//! device is idle at times; if it is too large, requests wait in the device, where weights do not
//! count. The least D that fills a device is anything from 2 to 96 for the devices of the
//! laboratory, and for one device from 2 to 16 or from 8 to 96, depending on the load. MQFQ leaves
//! the choice to the operator (Section 3.4 and its outlook). **Model.** [`AutoDepth`] stands around
//! any policy that takes [`Tuning::Slots`]. Its ports count completions (`meter`); its
//! [`tick`](Policy::tick) tries values of D in turn and keeps the least that costs at most 1.5 % of
//! the service (`search`). It uses nothing but submissions and completions.
//!
//! **The resulting D.**
//! - The demand is more than the device needs: the least D that keeps the device at 98.5 %.
//!   Weights hold if each flow has at least its share of that D outstanding.
//! - The demand is less than the device needs: nothing is held back, for throughput comes before
//!   weights.
//! - The load is light: D stays as it is. If no D has been found yet, it is what the device does
//!   one after the other within 10 ms, so that a flood is not held back.
//! - One flow is alone, and the device does all its requests within 10 ms: nothing is held back,
//!   since there is no other flow to protect. Another flow that comes finds D free slots, and D
//!   applies again within two milliseconds. If the flow has more requests than that, D is searched
//!   for as with several flows: all requests on the device are before the next flow's first one.
//! - Fewer than 32 requests complete in a second: D is at most the initial D of a search, or what
//!   the device does within 10 ms if that is more.
//!
//! **A policy without D** may have the same number under another name: `kyber-fair` throttles no
//! flow while fewer than `busy` requests are on the device. `busy` should be the least D that fills
//! the device, and is found in the same way; it bounds nothing ([`AutoDepth::busy`]).
//!
//! **Latency targets.** A flow's [`Target`] lowers D below that (`target`, `watch`).
//!
//! **Cost.** A port stores three words of its own per submission and six per completion. An
//! operator's own D ([`Tuning::Slots`]) ends the search, and [`Tuning::AutoSlots`] begins it again;
//! without a search a verb reads one shared word that does not change.

mod meter;
mod search;
mod target;
#[cfg(all(test, not(loom)))]
mod tests;
mod watch;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

use crate::contract::bounds::{ConfigError, MAX_SLOTS, boxed, granted};
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering};
use crate::contract::port::Held;
use crate::entry::Built;
use meter::{Meter, Sum, Words};
use search::Search;
use target::Targets;
use watch::Watch;

pub(crate) use search::FIRST;

/// A policy whose D is found while it runs. See the [module's text](self).
pub struct AutoDepth<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    /// On the heap, since policies are moved while they are built, and a kernel's stack is 16 KiB.
    control: Box<P::Mutex<Control>>,
    /// The largest useful D: all ports' tags.
    most: u32,
    /// The policy has a D that can change, and bounds the requests on the device by it.
    has_slots: bool,
}

/// A port of [`AutoDepth`].
pub struct AutoPort<Q, P: Platform = Native> {
    inner: Q,
    meter: Meter,
    shared: Arc<Shared<P>>,
    index: usize,
}

/// State that ports and the search share.
struct Shared<P: Platform> {
    /// 1 while D is searched for, or some flow has a target: ports count.
    is_on: P::U64,
    /// 1 while targets hold D below its value without them.
    is_bound: P::U64,
    ports: Box<[CachePadded<Words<P>>]>,
    watch: Watch<P>,
}

struct Control {
    /// `None`: D is the operator's.
    search: Option<Search>,
    targets: Targets,
    /// D as the search or the operator sets it, and as the policy has it.
    wanted: u32,
    told: u32,
    /// Time of the policy's own next tick.
    inner_ns: Option<u64>,
}

impl<P: Platform> Shared<P> {
    #[inline]
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) != 0
    }

    /// Lets ports count while there is a search or a target.
    fn count_if(&self, control: &Control) {
        let is_on = control.search.is_some() || control.targets.is_any();
        self.is_on.store(is_on.into(), Ordering::Relaxed);
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        self.ports.iter().for_each(|words| words.add_to(&mut sum));
        sum
    }
}

impl<L: Policy, P: Platform> AutoDepth<L, P> {
    /// Puts the layer around a policy of at most `flows` flows and its ports, which have `tags`
    /// tags each. `is_auto`: D is searched for from the start, and otherwise it is the one that the
    /// policy was built with, until [`Tuning::AutoSlots`].
    pub fn new(
        inner: L,
        ports: Vec<L::Port>,
        tags: usize,
        flows: usize,
        is_auto: bool,
    ) -> Result<Built<Self>, ConfigError> {
        // The D that the policy has is set once more: that changes nothing, and is refused by a
        // policy without a D.
        let slots = inner.stats().slots.unwrap_or(MAX_SLOTS.into()).min(MAX_SLOTS.into()) as u32;
        // No port waits for anything yet, so there is none to wake.
        let has_slots = inner.tune(Tuning::Slots(slots), &mut PortSet::default()).is_ok();
        Self::around(inner, ports, tags, flows, slots, has_slots, is_auto)
    }

    /// The same around a policy for which [`Tuning::Slots`] is the number of requests that keeps
    /// the device busy, and bounds nothing. `busy` is the number that it was built with.
    pub fn busy(
        inner: L,
        ports: Vec<L::Port>,
        tags: usize,
        flows: usize,
        busy: u32,
        is_auto: bool,
    ) -> Result<Built<Self>, ConfigError> {
        Self::around(inner, ports, tags, flows, busy, false, is_auto)
    }

    // Not inlined: the code that builds a policy inside Linux has a stack of 16 KiB.
    #[inline(never)]
    fn around(
        inner: L,
        ports: Vec<L::Port>,
        tags: usize,
        flows: usize,
        slots: u32,
        has_slots: bool,
        is_auto: bool,
    ) -> Result<Built<Self>, ConfigError> {
        granted(|| {
            let most = (tags as u64).saturating_mul(ports.len() as u64);
            let most = most.clamp(1, MAX_SLOTS.into()) as u32;
            let shared = Arc::new(Shared {
                is_on: P::U64::new(is_auto.into()),
                is_bound: P::U64::new(0),
                ports: boxed(ports.len(), |_| CachePadded::new(Words::new())),
                watch: Watch::new(flows, ports.len()),
            });
            let port = |(index, inner)| AutoPort {
                inner,
                meter: Meter::new(tags),
                shared: shared.clone(),
                index,
            };
            let ports = ports.into_iter().enumerate().map(port).collect();
            let control = Box::new(P::Mutex::new(Control {
                search: is_auto.then(|| Search::new(most, has_slots)),
                targets: Targets::new(flows),
                wanted: slots,
                told: slots,
                // The policy has named no deadline yet, so the first tick calls it.
                inner_ns: Some(0),
            }));
            Ok((AutoDepth { inner, shared, control, most, has_slots }, ports))
        })
    }
}

impl<L: Policy, P: Platform> AutoDepth<L, P> {
    // Not inlined: inside Linux the search has what is left of the stack.
    #[inline(never)]
    fn look_at_targets(&self, now_ns: u64, control: &mut Control) {
        let Control { targets, search, wanted, .. } = control;
        if targets.deadline_ns() > now_ns {
            return;
        }
        // Trials of the search go up to twice D. A bound that is no lower holds nothing back, and
        // ends there.
        let reach = search.as_ref().map_or(*wanted, Search::reach);
        let is_found = search.as_ref().is_none_or(Search::is_over);
        let count = |seat| self.shared.watch.count(seat);
        targets.look(now_ns, reach, is_found, &self.shared.sum(), count);
    }
}

layer!(AutoDepth, AutoPort);

impl<L: Policy, P: Platform> layer::Layer for AutoDepth<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|control| {
            let flow = self.inner.add_flow_as(known, weight)?;
            control.targets.weigh(flow, weight);
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|control| {
            self.inner.set_weight(flow, weight)?;
            control.targets.weigh(flow, weight);
            Ok(())
        })
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.control.with(|control| {
            self.inner.set_weights(weights);
            weights.iter().for_each(|&(flow, weight)| control.targets.weigh(flow, weight));
        });
    }

    /// An operator's D ends the search; [`Tuning::AutoSlots`] begins one, if none is under way.
    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        self.control.with(|control| {
            match tuning {
                Tuning::Slots(slots) => {
                    // The policy refuses 0, and the bound is at least 1.
                    let held = slots.min(control.targets.bound());
                    // A D that the policy refuses leaves the search as it is.
                    self.inner.tune(Tuning::Slots(held), wake)?;
                    (control.wanted, control.told, control.search) = (slots, held, None);
                }
                Tuning::AutoSlots => {
                    control.search.get_or_insert_with(|| Search::new(self.most, self.has_slots));
                }
                _ => self.inner.tune(tuning, wake)?,
            }
            self.shared.count_if(control);
            Ok(())
        })
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|control| {
            let ports = self.inner.remove_flow(flow)?;
            if control.targets.remove(flow) {
                self.shared.watch.seat(flow.slot(), None);
                self.shared.count_if(control);
            }
            Ok(ports)
        })
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.control.with(|control| {
            if control.inner_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                control.inner_ns = self.inner.tick(now_ns, wake);
            }
            // A search may begin at any time, and so may a target.
            let mut next_ns = now_ns.saturating_add(IDLE_NS);
            next_ns = control.inner_ns.map_or(next_ns, |at_ns| at_ns.min(next_ns));
            if control.targets.is_any() {
                self.look_at_targets(now_ns, control);
                next_ns = next_ns.min(control.targets.deadline_ns());
            }
            let bound = control.targets.bound();
            if let Some(search) = &mut control.search {
                search.bound(now_ns, bound);
                if search.deadline_ns() <= now_ns {
                    search.look(now_ns, &self.shared.sum());
                }
                next_ns = next_ns.min(search.deadline_ns());
                control.wanted = search.tried();
            }
            let slots = control.wanted.min(bound);
            self.shared.is_bound.store((bound < control.wanted).into(), Ordering::Relaxed);
            // From 1 to the policy's most; one that has no D stays as it is.
            if slots != control.told && self.inner.tune(Tuning::Slots(slots), wake).is_ok() {
                control.told = slots;
            }
            Some(next_ns)
        })
    }

    layer::forward_policy! { set_urgent class_weights }

    /// The search waits; with `is_much` it begins again, at its present D.
    fn costs_vary(&self, is_much: bool) {
        self.control
            .with(|control| control.search.iter_mut().for_each(|search| search.wait(is_much)));
    }

    fn stats(&self) -> Stats {
        let depth = self.control.with(|control| control.search.as_ref().map(Search::stats));
        Stats { depth, ..self.inner.stats() }
    }
}

/// Time between two checks whether a search or a target has begun, in nanoseconds.
const IDLE_NS: u64 = 100_000_000;

impl<Q: Port, P: Platform> AutoPort<Q, P> {
    /// Counts a request that the policy has accepted.
    #[inline]
    fn count_submitted(&mut self, now_ns: u64, request: &Request, submitted: &Submitted) {
        let Some(words) = self.shared.ports.get(self.index) else { return };
        let word = self.shared.watch.word(request.flow.slot());
        self.meter.submitted(now_ns, request, word, words);
        // `next` does not return a request that went to the device at once.
        if let Submitted::Issue { .. } = submitted {
            self.meter.issued(request.tag.0, now_ns);
        }
    }

    #[inline]
    fn count_completed(&mut self, now_ns: u64, tag: Tag) {
        let Some(words) = self.shared.ports.get(self.index) else { return };
        self.meter.completed(tag.0, now_ns, words, (self.index, &self.shared.watch));
    }
}

impl<L: Policy, P: Platform> Limits for AutoDepth<L, P> {
    /// Needs a D that can change.
    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        self.control.with(|control| {
            match target {
                Some(target) => {
                    if !self.has_slots {
                        return Err(FlowError::NoTargets);
                    }
                    let count = |seat| self.shared.watch.count(seat);
                    // The seat comes first: if all are taken the target is refused, and ports are
                    // not notified.
                    let seat = control.targets.set(flow, target, count)?;
                    self.shared.watch.seat(flow.slot(), Some((seat, target)));
                }
                None => {
                    control.targets.clear(flow)?;
                    self.shared.watch.seat(flow.slot(), None);
                }
            }
            self.shared.count_if(control);
            Ok(())
        })
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.control.with(|control| control.targets.stats(flow))
    }
}

impl<Q: Port, P: Platform> layer::PortLayer for AutoPort<Q, P> {
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
        let submitted = self.inner.submit(now_ns, request, wake)?;
        if self.shared.is_on() {
            self.count_submitted(now_ns, request, &submitted);
        }
        Ok(submitted)
    }

    #[inline(always)]
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let next = self.inner.next(now_ns, wake);
        if let Next::Issue { tag, .. } = next
            && self.shared.is_on()
        {
            self.meter.issued(tag.0, now_ns);
        }
        next
    }

    #[inline(always)]
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        let was_issued = self.inner.complete(now_ns, tag, outcome, wake);
        if was_issued {
            if self.shared.is_on() {
                self.count_completed(now_ns, tag);
            } else if self.meter.has_any() {
                self.meter.forget(tag.0);
            }
        }
        was_issued
    }

    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.cancel(now_ns, tag, wake);
        if is_gone && self.meter.has_any() {
            self.meter.forget(tag.0);
        }
        is_gone
    }

    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        let has_grown = self.inner.grow(now_ns, tag, growth, wake);
        if has_grown {
            self.meter.grown(tag.0, growth);
        }
        has_grown
    }

    layer::forward_port! { requeue hold barrier admit has_work staged flow_stats }

    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        let is_gone = self.inner.expedite(now_ns, tag, wake);
        if is_gone {
            // The request goes to the device from here, and `next` does not return it.
            self.meter.issued(tag.0, now_ns);
        }
        is_gone
    }

    /// Names the target as the reason if no slot is free and a target lowers D.
    fn reason(&self, tag: Option<Tag>) -> Reason {
        let reason = self.inner.reason(tag);
        let is_bound = || self.shared.is_bound.load(Ordering::Relaxed) != 0;
        match reason.held {
            Some(Held::NoSlot) if is_bound() => Reason { held: Some(Held::Target), ..reason },
            _ => reason,
        }
    }
}
