//! Automatic D: a policy that has D, and a search for the D that its device needs.
//!
//! **Problem.** D, the most requests on the device, is a capacity number. If it is too small, the
//! device is idle at times; if it is too large, requests wait in the device, where weights do not
//! count. The least D that fills a device is anything from 2 to 96 for the devices of the
//! laboratory, and for one device from 2 to 16 or from 8 to 96, depending on the load. MQFQ leaves
//! the choice to the operator (Section 3.4 and its outlook). **Model.** `Depth` controls a policy
//! that takes [`Tuning::Slots`]. Ports count completions (`meter`); a tick tries values of D in
//! turn and keeps the least that costs at most 1.6 % of the service (`search`). It uses nothing but
//! submissions and completions.
//!
//! **The resulting D.**
//! - The demand is more than the device needs: the least D that keeps the device at 98.4 %.
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
//! the device, and is found in the same way; it bounds nothing ([`DepthConfig::Busy`]).
//!
//! **Latency targets.** A flow's [`Target`] lowers D below that (`target`, `watch`).
//!
//! **Cost.** A port counts in ten words, if D is searched for or some flow has a target. An
//! operator's own D ([`Tuning::Slots`]) ends the search, and [`Tuning::AutoSlots`] begins it again.

pub(crate) mod meter;
mod search;
mod target;
#[cfg(all(test, not(loom)))]
mod tests;
pub(crate) mod watch;

use crate::contract::bounds::MAX_SLOTS;
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::{DepthStats, TuneError, Tuning};
use crate::contract::share::{Target, TargetStats};
use crate::policy::managed::Shared;
use meter::LONG_NS;
use search::Search;
use target::Targets;

pub(crate) use search::FIRST;

/// The way in which the D of a policy is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DepthConfig {
    /// The policy bounds the requests on the device by D, if it takes [`Tuning::Slots`].
    Slots {
        /// Whether D is searched for from the start. Otherwise it is the one that the policy was
        /// built with, until [`Tuning::AutoSlots`].
        is_auto: bool,
    },
    /// [`Tuning::Slots`] is the number of requests that keeps the device busy, and bounds nothing.
    Busy {
        /// The number that the policy was built with.
        busy: u32,
        /// The same as above.
        is_auto: bool,
    },
}

/// The control of a policy's D. See the [module's text](self).
pub(crate) struct Depth {
    /// `None`: D is the operator's.
    search: Option<Search>,
    targets: Targets,
    /// D as the search or the operator sets it, and as the policy has it.
    wanted: u32,
    told: u32,
    /// The largest useful D: all ports' tags.
    most: u32,
    /// The policy has a D that can change, and bounds the requests on the device by it.
    has_slots: bool,
}

impl Depth {
    /// For a policy of at most `flows` flows that has this D, and whose ports have `tags` tags
    /// together.
    pub(crate) fn new(slots: u32, has_slots: bool, tags: u64, flows: usize, is_auto: bool) -> Self {
        let most = tags.clamp(1, MAX_SLOTS.into()) as u32;
        let search = is_auto.then(|| Search::new(most, has_slots));
        let targets = Targets::new(flows);
        Depth { search, targets, wanted: slots, told: slots, most, has_slots }
    }

    /// Whether ports are to count: there is a search or a target.
    pub(crate) fn is_counted(&self) -> bool {
        self.search.is_some() || self.targets.is_any()
    }

    /// Notes a new flow, or a flow's new weight.
    pub(crate) fn weigh(&mut self, flow: FlowId, weight: Weight) {
        self.targets.weigh(flow, weight);
    }

    /// Needs a D that can change.
    pub(crate) fn set_target<P: Platform>(
        &mut self,
        flow: FlowId,
        target: Option<Target>,
        shared: &Shared<P>,
    ) -> Result<(), FlowError> {
        let Some(target) = target else {
            self.targets.clear(flow)?;
            shared.watch.seat(flow.slot(), None);
            return Ok(());
        };
        if !self.has_slots {
            return Err(FlowError::NoTargets);
        }
        // The seat comes first: if all are taken the target is refused, and ports are not notified.
        let seat = self.targets.set(flow, target, |seat| shared.count(seat))?;
        shared.watch.seat(flow.slot(), Some((seat, target)));
        Ok(())
    }

    pub(crate) fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.targets.stats(flow)
    }

    /// Drops a flow that the policy has removed.
    pub(crate) fn remove<P: Platform>(&mut self, flow: FlowId, shared: &Shared<P>) {
        if self.targets.remove(flow) {
            shared.watch.seat(flow.slot(), None);
        }
    }

    /// An operator's D ends the search; [`Tuning::AutoSlots`] begins one, if none is under way.
    pub(crate) fn tune(
        &mut self,
        tuning: Tuning,
        policy: impl FnOnce(Tuning) -> Result<(), TuneError>,
    ) -> Result<(), TuneError> {
        match tuning {
            Tuning::Slots(slots) => {
                // The policy refuses 0, and the bound is at least 1.
                let held = slots.min(self.targets.bound());
                // A D that the policy refuses leaves the search as it is.
                policy(Tuning::Slots(held))?;
                (self.wanted, self.told, self.search) = (slots, held, None);
            }
            Tuning::AutoSlots => {
                self.search.get_or_insert_with(|| Search::new(self.most, self.has_slots));
            }
            _ => policy(tuning)?,
        }
        Ok(())
    }

    /// The costs of requests vary, so the search waits; with `is_much` it begins again, at its
    /// present D.
    pub(crate) fn wait(&mut self, now_ns: u64, is_much: bool) {
        self.search.iter_mut().for_each(|search| search.wait(now_ns, is_much));
    }

    /// Adjusts D, which `set` gives to the policy; returns the time of the next tick.
    pub(crate) fn tick<P: Platform>(
        &mut self,
        now_ns: u64,
        shared: &Shared<P>,
        set: impl FnOnce(u32) -> bool,
    ) -> u64 {
        // A search may begin at any time, and so may a target.
        let mut next_ns = now_ns.saturating_add(LONG_NS);
        if self.targets.is_any() {
            self.look_at_targets(now_ns, shared);
            next_ns = next_ns.min(self.targets.deadline_ns());
        }
        let bound = self.targets.bound();
        if let Some(search) = &mut self.search {
            search.bound(now_ns, bound);
            if search.deadline_ns() <= now_ns {
                search.look(now_ns, &shared.sum());
            }
            next_ns = next_ns.min(search.deadline_ns());
            self.wanted = search.tried();
        }
        let slots = self.wanted.min(bound);
        shared.is_bound.store((bound < self.wanted).into(), Ordering::Relaxed);
        // From 1 to the policy's most; one that has no D stays as it is.
        if slots != self.told && set(slots) {
            self.told = slots;
        }
        next_ns
    }

    // Not inlined: inside Linux the search has what is left of the stack.
    #[inline(never)]
    fn look_at_targets<P: Platform>(&mut self, now_ns: u64, shared: &Shared<P>) {
        if self.targets.deadline_ns() > now_ns {
            return;
        }
        // Trials of the search go up to twice D. A bound that is no lower holds nothing back, and
        // ends there.
        let reach = self.search.as_ref().map_or(self.wanted, Search::reach);
        let is_found = self.search.as_ref().is_none_or(Search::is_over);
        let count = |seat| shared.count(seat);
        self.targets.look(now_ns, reach, is_found, &shared.sum(), count);
    }

    /// The state of the search; `None` if the operator has set D.
    pub(crate) fn stats(&self) -> Option<DepthStats> {
        self.search.as_ref().map(Search::stats)
    }
}
