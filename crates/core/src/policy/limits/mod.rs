//! Limits: the least and the most service of a flow, and groups of flows; one layer in front of any
//! policy.
//!
//! **Problem.** Weights of flows are one level, and organisations nest: capacity that a team's
//! database leaves is the team's before it is the neighbours'. A database needs a floor in requests
//! a second, whatever others weigh; a service that is sold, or a limit that protects neighbours, is
//! a ceiling, as in Linux's `io.max`. **Model.** [`Limited`] stands around a policy. A flow has a
//! bucket for each of its caps (requests and bytes, of reads, of writes, and of both) and two for
//! its reservation, a group has its caps, and all ports share them.
//!
//! ```text
//!   submit ─▶ caps let it pass? ── yes ─▶ the policy's submit ─▶ staged
//!                 └─ no ─▶ a lane ── next, when they do ─▶ the same
//!   next ─▶ a staged request of a flow with less than its reservation? ─▶ the policy's expedite
//!                 └─ none ─▶ is there room? ─▶ the policy's next
//! ```
//!
//! - *Shares.* Every `VISIT_NS` a tick reads the ports' counts of 1,024 flows: active ones divide
//!   their group's weight (`tree`), and the policy gets the products.
//! - *Caps.* A request takes from its flow's caps and those of all its groups at once, or from
//!   none. Until then it waits in a lane *before* the policy, holds no virtual time and no slot,
//!   and costs the others nothing. Lanes at the same cap take turns: those of several ports, and a
//!   group's by its flows' effective weights.
//! - *Reservations.* All service of a flow is taken from its reservation's buckets. While one is
//!   not empty the flow has had less; then its first request is taken out of the policy, uncharged,
//!   and goes before all others, beside D. A direct policy has no request to take out: `d2fq`'s go
//!   to the urgent class instead, and with `none` a reservation does nothing.
//! - *Room.* A flow with `n` requests outstanding has its reservation if at most `n x the device's
//!   rate / reservation` are on the device (Little's law). A tick computes the least of these
//!   bounds, and a port does not call the policy while its requests on the device fill its part.
//! - *Supply.* If active flows reserve more than the device's rate, all grants shrink alike.
//!
//! **Laws.** Over every interval a cap lets go at most rate x interval + burst, and what goes ahead
//! for a reservation is at most rate x interval + a twentieth of a second's amount. **Bounds.** A
//! verb reads a flow and [`Group::LEVELS`] groups, and visits 16 lanes; a tick visits 1,024 flows;
//! a group's first cap, or the end of its last one, updates all flows. **Cost.** Unused, a verb
//! reads one word that does not change. Reasons: docs/decisions 0039 and 0040.

mod agenda;
mod bucket;
mod counts;
mod member;
#[cfg(all(test, loom))]
mod models;
mod port;
mod shared;
mod supply;
#[cfg(all(test, not(loom)))]
mod tests;
mod tree;
mod waiting;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::bounds::{ConfigError, boxed, granted, room};
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering};
use crate::contract::share::{Reservation, ReservationState};
use crate::entry::Built;
use bucket::Time;
use member::Member;
use shared::{CAPPED, LEAST_SHIFT, RESERVED, SHARED, Shared, Word};
use supply::Supply;
use tree::{Part, Tree};

pub use port::LimitedPort;

/// Time between two visits of flows, in nanoseconds, and flows visited at once.
const VISIT_NS: u64 = 10_000_000;
const AT_ONCE: usize = 1024;

// *Memory ordering.* A flow's word is stored with Release after its buckets are set, and read with
// Acquire. All other words are counts.
/// A policy whose flows can have caps and reservations, and be in groups. See the [module's
/// text](self).
pub struct Limited<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    control: P::Mutex<Control>,
}

struct Control {
    members: Box<[Option<Member>]>,
    /// All slots in use are below this.
    used: usize,
    tree: Tree,
    supply: Supply,
    /// Number of flows and groups with a reservation.
    reserved: usize,
    /// The slot that is visited next; the time of the next visit, and of the policy's next tick.
    cursor: usize,
    visit_ns: u64,
    inner_ns: Option<u64>,
    /// Weights to be set in the policy.
    news: Vec<(FlowId, Weight)>,
    /// All weights are multiplied by 2 to the power of this, so that the least is exact enough.
    scale: u32,
    /// In the current round through all flows: the active flows' reservations, in millionths of the
    /// device, and the least and the largest weight, in 256ths.
    asked_ppm: u64,
    extremes: (u64, u64),
    /// Likewise the most requests that may be on the device, and the live ones of flows with
    /// reservations.
    most: Option<u64>,
    live: u64,
}

/// The least weight that is exact enough, in 256ths: to a hundredth.
const FINE: u64 = 64;
/// The most that weights are scaled by, as a power of two.
const SCALE_MAX: u32 = 20;
/// The extremes of no weights.
const NO_WEIGHTS: (u64, u64) = (u64::MAX, 0);

impl Control {
    fn member(&mut self, flow: FlowId) -> Result<&mut Member, FlowError> {
        let member = self.members.get_mut(flow.slot()).and_then(Option::as_mut);
        member.filter(|member| member.flow == flow).ok_or(FlowError::NoSuchFlow)
    }

    /// Ends a round through all flows.
    fn end_round(&mut self) {
        self.supply.asked(core::mem::take(&mut self.asked_ppm));
        let (least, most) = core::mem::replace(&mut self.extremes, NO_WEIGHTS);
        let largest = u64::from(Weight::MAX.in_256ths());
        // Up by a factor of 2 if the least is below `FINE`, down if it is four times that, so that
        // weights do not swing between two scales.
        if least < FINE && most.saturating_mul(2) <= largest && self.scale < SCALE_MAX {
            self.scale += 1;
        } else if self.scale > 0 && (least >= 4 * FINE || most > largest) {
            self.scale -= 1;
        }
    }

    /// Counts the change of a flow's or group's reservation.
    fn note(&mut self, before: Reservation, after: Reservation) {
        self.reserved += usize::from(!after.is_none());
        self.reserved = self.reserved.saturating_sub(usize::from(!before.is_none()));
    }

    /// Publishes the word of a flow to the ports: its caps, and the buckets of its reservation.
    fn show<P: Platform>(&self, slot: usize, shared: &Shared<P>) {
        let member = self.members.get(slot).and_then(Option::as_ref);
        let word = member.map(|Member { flow, caps, share, granted, .. }| Word {
            kinds: caps.bits() as u8 | granted.kinds() << LEAST_SHIFT,
            above: self.tree.nearest_cap(share.group),
            generation: flow.generation(),
        });
        shared.put(slot, word.unwrap_or_default());
    }

    /// Publishes the word of a group to the ports.
    fn show_group<P: Platform>(&self, id: GroupId, shared: &Shared<P>) {
        let word = self.tree.group(id).map(|Group { parent, caps, .. }| Word {
            kinds: caps.bits() as u8,
            above: self.tree.nearest_cap(*parent),
            generation: 0,
        });
        shared.put(shared.place(id), word.unwrap_or_default());
    }
}

/// The flag, if it is to be set.
fn flag_if(is_set: bool, flag: u64) -> u64 {
    if is_set { flag } else { 0 }
}

/// The weight of this number of 256ths, or the nearest there is.
fn weight_of(parts: u64) -> Weight {
    let most = Weight::MAX.in_256ths();
    let parts = parts.clamp(Weight::LEAST_256THS.into(), most.into());
    u32::try_from(parts).ok().and_then(Weight::of_256ths).unwrap_or(Weight::MAX)
}

impl<L: Policy, P: Platform> Limited<L, P> {
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
            let has_classes = inner.class_weights().is_some();
            let shared = Arc::new(Shared::new(ports.len(), flows, Group::MOST, has_classes));
            let port = |(index, inner)| LimitedPort::new(inner, shared.clone(), index, tags);
            let ports = ports.into_iter().enumerate().map(port).collect();
            let control = P::Mutex::new(Control {
                members: boxed(flows, |_| None),
                used: 0,
                tree: Tree::new(),
                supply: Supply::new(),
                reserved: 0,
                cursor: 0,
                visit_ns: 0,
                inner_ns: Some(0),
                news: room(AT_ONCE),
                scale: 0,
                asked_ppm: 0,
                extremes: NO_WEIGHTS,
                most: None,
                live: 0,
            });
            Ok((Limited { inner, shared, control }, ports))
        })
    }

    /// Computes a flow's effective weight and granted reservation.
    fn visit(&self, control: &mut Control, slot: usize, now_ns: u64) {
        let Some(Some(member)) = control.members.get_mut(slot) else { return };
        let (tree, supply) = (&mut control.tree, &control.supply);
        let demand = self.shared.demand(slot);
        let is_active = member.is_active_at(now_ns, demand);
        if is_active != member.is_active {
            let before = member.part();
            member.is_active = is_active;
            tree.shift(member.share.group, before, member.part());
        }
        let place = tree.place(member.share.group, member.own(), is_active);
        let mut is_shown = true;
        // After the last reservation is gone, grants are withdrawn here.
        if control.reserved > 0 || !member.granted.is_none() {
            if is_active {
                let part_ppm = supply.part_ppm(place.reservation);
                control.asked_ppm = control.asked_ppm.saturating_add(part_ppm);
            }
            let (now, granted) = (Time::of_ns(now_ns), supply.granted(place.reservation));
            let before = core::mem::replace(&mut member.granted, granted);
            self.shared.grant(now, slot, before, granted);
            is_shown = before.kinds() == granted.kinds();
            member.count(now_ns, demand, supply.is_short());
            if !granted.is_none() {
                let has_more = self.shared.has_more(now, member.flow);
                let most = member.most(now_ns, demand, supply, has_more);
                control.most = control.most.into_iter().chain(most).min();
                control.live = control.live.saturating_add(demand.live().into());
            }
        }
        let parts = place.parts(control.scale);
        let (least, most) = control.extremes;
        control.extremes = (least.min(parts), most.max(parts));
        let (flow, weight) = (member.flow, weight_of(parts));
        if core::mem::replace(&mut member.effective, weight) != weight {
            self.note_weight(control, flow, weight);
        }
        if !is_shown {
            // Last: a port that sees the buckets finds their rates, and new ones empty. Then ports
            // search for requests of such flows that are staged already.
            control.show(slot, &self.shared);
            self.shared.set_state(0, true);
        }
    }

    /// Notes a flow's new effective weight, for its lanes and for the policy.
    fn note_weight(&self, control: &mut Control, flow: FlowId, weight: Weight) {
        self.weigh(flow, weight);
        control.news.push((flow, weight));
    }

    /// Sets the weight of the flow's lanes.
    fn weigh(&self, flow: FlowId, weight: Weight) {
        if let Some(account) = self.shared.account(flow.slot()) {
            account.weight.store(weight.in_256ths().into(), Ordering::Relaxed);
        }
    }

    /// Sets the new weights in the policy.
    fn publish(&self, control: &mut Control) {
        if !control.news.is_empty() {
            self.inner.set_weights(&control.news);
            control.news.clear();
        }
    }

    /// Visits some flows.
    fn visit_some(&self, control: &mut Control, now_ns: u64) {
        if self.shared.state() & RESERVED != 0 {
            control.supply.look(now_ns, &self.shared.total());
        }
        let until = control.used.min(control.cursor.saturating_add(AT_ONCE));
        (control.cursor..until).for_each(|slot| self.visit(control, slot, now_ns));
        control.cursor = until;
        if until >= control.used {
            control.cursor = 0;
            // `most` bounds all requests on the device. Ports bound only those that the policy
            // issues, so the live ones of flows with reservations are taken off.
            let (most, live) = (control.most.take(), core::mem::take(&mut control.live));
            self.shared.make_room(most.map_or(u64::MAX, |most| most.saturating_sub(live).max(1)));
            control.end_round();
        }
        self.publish(control);
    }

    /// Changes the settings of one flow. If its effective weight has changed, the new one is then
    /// in `news`.
    fn change(
        &self,
        control: &mut Control,
        flow: FlowId,
        change: impl FnOnce(&mut Member),
    ) -> Result<Weight, FlowError> {
        let member = control.member(flow)?;
        let (before, group) = (member.part(), member.share.group);
        change(member);
        let (after, own) = (member.part(), member.own());
        let (to, is_active) = (member.share.group, member.is_active);
        if group == to {
            control.tree.shift(group, before, after);
        } else {
            control.tree.shift(group, before, Part::default());
            control.tree.join(to, group);
            control.tree.shift(to, Part::default(), after);
        }
        let place = control.tree.place(to, own, is_active);
        let weight = weight_of(place.parts(control.scale));
        let member = control.member(flow)?;
        if core::mem::replace(&mut member.effective, weight) != weight {
            self.note_weight(control, flow, weight);
        }
        Ok(weight)
    }
}

layer!(Limited, LimitedPort);

impl<L: Policy, P: Platform> layer::Layer for Limited<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|control| {
            let effective = match control.scale {
                0 => weight,
                scale => weight_of(u64::from(weight.in_256ths()) << scale),
            };
            let flow = self.inner.add_flow_as(known, effective)?;
            let slot = flow.slot();
            if let Some(account) = self.shared.account(slot) {
                account.begin();
            }
            self.weigh(flow, effective);
            control.used = control.used.max(slot + 1);
            if let Some(place) = control.members.get_mut(slot) {
                *place = Some(Member::new(flow, weight, effective, self.shared.demand(slot)));
            }
            control.show(slot, &self.shared);
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|control| {
            let effective = self.change(control, flow, |member| member.weight = weight)?;
            // `set_weight` and not `set_weights`: the policy is to know that an operator changed
            // it.
            control.news.clear();
            self.inner.set_weight(flow, effective)
        })
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.control.with(|control| {
            for &(flow, weight) in weights {
                // A flow that is gone has no weight.
                let _ = self.change(control, flow, |member| member.weight = weight);
                if control.news.len() >= AT_ONCE {
                    self.publish(control);
                }
            }
            self.publish(control);
        });
    }

    layer::forward_policy! { set_urgent tune costs_vary class_weights }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|control| {
            let ports = self.inner.remove_flow(flow)?;
            if let Some(member) = control.members.get_mut(flow.slot()).and_then(Option::take) {
                control.tree.shift(member.share.group, member.part(), Part::default());
                control.tree.join(None, member.share.group);
                control.note(member.share.reservation, Reservation::NONE);
            }
            control.show(flow.slot(), &self.shared);
            Ok(ports)
        })
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        if self.shared.state() & SHARED == 0 {
            return self.inner.tick(now_ns, wake);
        }
        self.control.with(|control| {
            if control.inner_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                control.inner_ns = self.inner.tick(now_ns, wake);
            }
            if control.visit_ns <= now_ns {
                self.visit_some(control, now_ns);
                control.visit_ns = now_ns.saturating_add(VISIT_NS);
            }
            let visit_ns = control.visit_ns;
            Some(control.inner_ns.map_or(visit_ns, |at_ns| at_ns.min(visit_ns)))
        })
    }

    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        if self.shared.state() & SHARED != 0 {
            let reserved =
                |control: &mut Control| (control.reserved > 0).then(|| control.supply.stats());
            stats.reserved = self.control.with(reserved);
        }
        stats
    }
}

impl<L: Limits, P: Platform> Limits for Limited<L, P> {
    fn set_target(&self, flow: FlowId, target: Option<Target>) -> Result<(), FlowError> {
        self.inner.set_target(flow, target)
    }

    fn target(&self, flow: FlowId) -> Option<TargetStats> {
        self.inner.target(flow)
    }

    /// A cap that does not change keeps the amounts taken from it; others start full.
    fn set_caps(&self, flow: FlowId, caps: &Caps) -> Result<(), FlowError> {
        self.control.with(|control| {
            let old = core::mem::replace(&mut control.member(flow)?.caps, *caps);
            if let Some(account) = self.shared.account(flow.slot()) {
                account.set_caps(&old, caps);
            }
            control.show(flow.slot(), &self.shared);
            if !(caps.is_empty() && old.is_empty()) {
                self.shared.set_state(CAPPED, true);
            }
            Ok(())
        })
    }

    fn resume_caps(&self, of: CapsOf, before: &CapStats) {
        self.control.with(|control| {
            let (account, caps) = match of {
                CapsOf::Flow(flow) => {
                    let caps = control.member(flow).map(|member| member.caps);
                    (self.shared.account(flow.slot()), caps.ok())
                }
                CapsOf::Group(id) => {
                    (self.shared.group(id), control.tree.group(id).map(|group| group.caps))
                }
            };
            if let Some((account, caps)) = account.zip(caps) {
                account.resume_caps(&caps, before);
            }
        });
    }

    fn caps(&self, flow: FlowId) -> Option<CapStats> {
        let caps = self.control.with(|control| control.member(flow).map(|member| member.caps));
        self.shared.account(flow.slot())?.cap_stats(caps.ok()?)
    }

    /// Sets a group's caps like a flow's. When a group gets its first caps or loses its last ones,
    /// the words of all flows and groups are updated.
    fn set_group(&self, id: GroupId, group: Option<&Group>) -> Result<(), FlowError> {
        self.control.with(|control| {
            let before = control.tree.group(id).copied();
            match group {
                Some(group) => control.tree.set(id, group)?,
                None => control.tree.remove(id)?,
            }
            let (old, new) = (before.unwrap_or_default(), group.copied().unwrap_or_default());
            control.note(old.reservation, new.reservation);
            if let Some(account) = self.shared.group(id) {
                account.set_caps(&old.caps, &new.caps);
                if before.is_none() {
                    account.begin();
                }
            }
            control.show_group(id, &self.shared);
            // The nearest group with caps changes for all flows and groups inside of this one.
            if old.caps.is_empty() != new.caps.is_empty() {
                (0..Group::MOST as u16)
                    .for_each(|id| control.show_group(GroupId(id), &self.shared));
                (0..control.used).for_each(|slot| control.show(slot, &self.shared));
            }
            let capped = flag_if(!new.caps.is_empty(), CAPPED);
            let reserved = flag_if(!new.reservation.is_none(), RESERVED);
            self.shared.set_state(SHARED | capped | reserved, old.caps != new.caps);
            Ok(())
        })
    }

    fn group(&self, id: GroupId) -> Option<GroupStats> {
        self.control.with(|control| {
            let (group, place, members, active) = control.tree.look(id)?;
            let caps = self.shared.group(id)?.cap_stats(group.caps);
            Some(GroupStats { group, weight: weight_of(place.parts(0)), members, active, caps })
        })
    }

    fn set_share(&self, flow: FlowId, share: &Share) -> Result<(), FlowError> {
        self.control.with(|control| {
            if share.group.is_some_and(|group| control.tree.group(group).is_none()) {
                return Err(FlowError::NoSuchGroup);
            }
            let before = control.member(flow)?.share;
            control.note(before.reservation, share.reservation);
            self.change(control, flow, |member| member.share = *share)?;
            self.publish(control);
            control.show(flow.slot(), &self.shared);
            // A flow in no group and without reservation gives ports nothing to count.
            let shared = flag_if(*share != Share::default(), SHARED);
            let reserved = flag_if(!share.reservation.is_none(), RESERVED);
            self.shared.set_state(shared | reserved, share.group != before.group);
            Ok(())
        })
    }

    fn share(&self, flow: FlowId) -> Option<ShareStats> {
        if self.shared.state() & SHARED == 0 {
            return None;
        }
        self.control.with(|control| {
            let Member { share, effective: weight, is_active, granted, state, last, .. } =
                *control.member(flow).ok()?;
            let ahead = self.shared.account(flow.slot())?.ahead.load(Ordering::Relaxed);
            let state = if granted.is_none() { ReservationState::Idle } else { state };
            let [requests, bytes] = if granted.is_none() { [0; 2] } else { last };
            Some(ShareStats { share, weight, is_active, granted, state, requests, bytes, ahead })
        })
    }
}
