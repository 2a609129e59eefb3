//! Limits: the least and the most service of a flow, and groups of flows, in front of any policy.
//!
//! **Problem.** Weights of flows form one level, but organisations nest: capacity that a team's
//! database leaves unused should go to the team before it goes to other teams. A database needs a
//! least rate of requests, whatever the weights of others; a service that is sold, or that could
//! disturb its neighbours, needs a highest rate, as in Linux's `io.max`. **Model.** A flow has a
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
//!   and costs the others nothing. Lanes that wait for the same cap take turns: the lanes of a flow
//!   on several ports, and the lanes of a group's flows by their effective weights.
//! - *Reservations.* All service of a flow is taken from its reservation's buckets. While one of
//!   them is not empty, the flow has had less than its reservation; then its first request is taken
//!   out of the policy, is not charged, and goes before all others, in addition to D. A direct
//!   policy has no request to take out: `d2fq`'s go to the urgent class instead, and with `none` a
//!   reservation does nothing.
//! - *Room.* A flow with `n` requests outstanding has its reservation if at most `n x the device's
//!   rate / reservation` are on the device (Little's law). A tick computes the least of these
//!   bounds, and a port does not call the policy while its requests on the device fill its part.
//! - *Supply.* If active flows reserve more than the device's rate, all grants are reduced by the
//!   same factor.
//!
//! **Laws.** Over every interval a cap lets at most rate x interval + burst pass, and requests that
//! go ahead for a reservation take at most rate x interval + a twentieth of a second's amount.
//! **Bounds.** A verb reads a flow and [`Group::LEVELS`] groups, and visits 16 lanes; a tick visits
//! 1,024 flows; a group's first cap, or the end of its last one, updates all flows. **Cost.** While
//! no limits are set, a verb reads one word that does not change. Reasons: docs/decisions 0039 and
//! 0040.

pub(crate) mod agenda;
pub(crate) mod bucket;
pub(crate) mod counts;
mod member;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod shared;
mod supply;
#[cfg(all(test, not(loom)))]
mod tests;
mod tree;
pub(crate) mod waiting;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::contract::bounds::{boxed, room};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Ordering, Platform};
use crate::contract::port::ReservedStats;
use crate::contract::share::{CapStats, Caps};
use crate::contract::share::{
    CapsOf, Group, GroupId, GroupStats, Reservation, ReservationState, Share, ShareStats,
};
use crate::policy::managed::{CAPPED, RESERVED, SHARED, Shared};
use bucket::Time;
use member::Member;
use shared::{LEAST_SHIFT, Word};
use supply::{Supply, Total};
use tree::{Part, Tree};

/// Time between two visits of flows, in nanoseconds, and flows visited at once.
const VISIT_NS: u64 = 10_000_000;
const FLOWS_AT_ONCE: usize = 1024;
/// Lanes, or slots of flows, that a port visits in one call.
pub(crate) const AT_ONCE: usize = 16;
/// The longest time between two visits of a lane, in nanoseconds: settings may change meanwhile.
pub(crate) const AGAIN_NS: u64 = 100_000_000;

// *Memory ordering.* A flow's word is stored with Release after its buckets are set, and read with
// Acquire. All other words are counts.
/// The settings of flows and groups, and what is computed from them. See the [module's
/// text](self).
pub(crate) struct LimitControl {
    members: Box<[Option<Member>]>,
    /// All slots in use are below this.
    used: usize,
    tree: Tree,
    supply: Supply,
    /// Number of flows and groups with a reservation.
    reserved: usize,
    /// The slot that is visited next, and the time of the next visit.
    cursor: usize,
    visit_ns: u64,
    /// Weights to be set in the policy.
    pub(crate) news: Vec<(FlowId, Weight)>,
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

/// The least scaled weight that is exact enough, in 256ths: rounding changes it by about a
/// hundredth.
const FINE: u64 = 64;
/// The most that weights are scaled by, as a power of two.
const SCALE_MAX: u32 = 20;
/// The extremes of no weights.
const NO_WEIGHTS: (u64, u64) = (u64::MAX, 0);

impl LimitControl {
    pub(crate) fn new(flows: usize) -> LimitControl {
        LimitControl {
            members: boxed(flows, |_| None),
            used: 0,
            tree: Tree::new(),
            supply: Supply::new(),
            reserved: 0,
            cursor: 0,
            visit_ns: 0,
            news: room(FLOWS_AT_ONCE),
            scale: 0,
            asked_ppm: 0,
            extremes: NO_WEIGHTS,
            most: None,
            live: 0,
        }
    }

    fn member(&mut self, flow: FlowId) -> Result<&mut Member, FlowError> {
        let member = self.members.get_mut(flow.slot()).and_then(Option::as_mut);
        member.filter(|member| member.flow == flow).ok_or(FlowError::NoSuchFlow)
    }

    /// Ends a round through all flows.
    fn end_round(&mut self) {
        self.supply.asked(core::mem::take(&mut self.asked_ppm));
        let (least, most) = core::mem::replace(&mut self.extremes, NO_WEIGHTS);
        let largest = u64::from(Weight::MAX.in_256ths());
        // All weights are doubled if the least is below `FINE`, and halved only if that is at least
        // four times `FINE`, so that weights do not swing between two scales.
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
        shared.limits.put(slot, word.unwrap_or_default());
    }

    /// Publishes the word of a group to the ports.
    fn show_group<P: Platform>(&self, id: GroupId, shared: &Shared<P>) {
        let word = self.tree.group(id).map(|Group { parent, caps, .. }| Word {
            kinds: caps.bits() as u8,
            above: self.tree.nearest_cap(*parent),
            generation: 0,
        });
        shared.limits.put(shared.limits.place(id), word.unwrap_or_default());
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

impl LimitControl {
    /// Computes a flow's effective weight and granted reservation.
    fn visit<P: Platform>(&mut self, slot: usize, now_ns: u64, shared: &Shared<P>) {
        let Some(Some(member)) = self.members.get_mut(slot) else { return };
        let (tree, supply) = (&mut self.tree, &self.supply);
        let demand = shared.demand(slot);
        let is_active = member.is_active_at(now_ns, demand);
        if is_active != member.is_active {
            let before = member.part();
            member.is_active = is_active;
            tree.shift(member.share.group, before, member.part());
        }
        let place = tree.place(member.share.group, member.own(), is_active);
        let mut is_shown = true;
        // After the last reservation is gone, grants are withdrawn here.
        if self.reserved > 0 || !member.granted.is_none() {
            if is_active {
                let part_ppm = supply.part_ppm(place.reservation);
                self.asked_ppm = self.asked_ppm.saturating_add(part_ppm);
            }
            let (now, granted) = (Time::of_ns(now_ns), supply.granted(place.reservation));
            let before = core::mem::replace(&mut member.granted, granted);
            shared.limits.grant(now, slot, before, granted);
            is_shown = before.kinds() == granted.kinds();
            member.count(now_ns, demand, supply.is_short());
            if !granted.is_none() {
                let has_more = shared.limits.has_more(now, member.flow);
                let most = member.most(now_ns, demand, supply, has_more);
                self.most = self.most.into_iter().chain(most).min();
                self.live = self.live.saturating_add(demand.live().into());
            }
        }
        let parts = place.parts(self.scale);
        let (least, most) = self.extremes;
        self.extremes = (least.min(parts), most.max(parts));
        let (flow, weight) = (member.flow, weight_of(parts));
        if core::mem::replace(&mut member.effective, weight) != weight {
            self.note_weight(flow, weight, shared);
        }
        if !is_shown {
            // The word is published last, so that a port that sees the buckets also sees their
            // rates, and sees new buckets empty. After this change of the settings ports search for
            // staged requests of flows with reservations.
            self.show(slot, shared);
            shared.set(0, true);
        }
    }

    /// Notes a flow's new effective weight, for its lanes and for the policy.
    fn note_weight<P: Platform>(&mut self, flow: FlowId, weight: Weight, shared: &Shared<P>) {
        shared.limits.weigh(flow, weight);
        self.news.push((flow, weight));
    }

    /// Visits some flows, if it is time; gives the time of the next visit.
    pub(crate) fn tick<P: Platform>(&mut self, now_ns: u64, shared: &Shared<P>) -> u64 {
        let state = shared.state();
        if state & SHARED == 0 {
            return u64::MAX;
        }
        if self.visit_ns > now_ns {
            return self.visit_ns;
        }
        if state & RESERVED != 0 {
            self.supply.look(now_ns, &Total::of(&shared.sum()));
        }
        let until = self.used.min(self.cursor.saturating_add(FLOWS_AT_ONCE));
        (self.cursor..until).for_each(|slot| self.visit(slot, now_ns, shared));
        self.cursor = until;
        if until >= self.used {
            self.cursor = 0;
            // `most` bounds all requests on the device. Ports bound only those that the policy
            // issues, so the live ones of flows with reservations are taken off.
            let (most, live) = (self.most.take(), core::mem::take(&mut self.live));
            let most = most.map_or(u64::MAX, |most| most.saturating_sub(live).max(1));
            shared.limits.make_room(most, shared.ports_in_use());
            self.end_round();
        }
        self.visit_ns = now_ns.saturating_add(VISIT_NS);
        self.visit_ns
    }

    /// Changes the settings of one flow, and gives its effective weight. If that is new, it is then
    /// in `news`, too.
    fn change<P: Platform>(
        &mut self,
        flow: FlowId,
        shared: &Shared<P>,
        change: impl FnOnce(&mut Member),
    ) -> Result<Weight, FlowError> {
        let member = self.member(flow)?;
        let (before, group) = (member.part(), member.share.group);
        change(member);
        let (after, own) = (member.part(), member.own());
        let (to, is_active) = (member.share.group, member.is_active);
        if group == to {
            self.tree.shift(group, before, after);
        } else {
            self.tree.shift(group, before, Part::default());
            self.tree.join(to, group);
            self.tree.shift(to, Part::default(), after);
        }
        let place = self.tree.place(to, own, is_active);
        let weight = weight_of(place.parts(self.scale));
        let member = self.member(flow)?;
        if core::mem::replace(&mut member.effective, weight) != weight {
            self.note_weight(flow, weight, shared);
        }
        Ok(weight)
    }

    /// Changes a flow's weight; gives its effective weight.
    pub(crate) fn set_weight<P: Platform>(
        &mut self,
        flow: FlowId,
        weight: Weight,
        shared: &Shared<P>,
    ) -> Result<Weight, FlowError> {
        self.change(flow, shared, |member| member.weight = weight)
    }

    /// The effective weight of a new flow.
    pub(crate) fn scaled(&self, weight: Weight) -> Weight {
        match self.scale {
            0 => weight,
            scale => weight_of(u64::from(weight.in_256ths()) << scale),
        }
    }

    /// Notes a new flow that the policy has with this effective weight.
    pub(crate) fn add<P: Platform>(
        &mut self,
        flow: FlowId,
        (weight, effective): (Weight, Weight),
        shared: &Shared<P>,
    ) {
        let slot = flow.slot();
        if let Some(account) = shared.limits.account(slot) {
            account.begin();
        }
        shared.limits.weigh(flow, effective);
        self.used = self.used.max(slot + 1);
        if let Some(place) = self.members.get_mut(slot) {
            *place = Some(Member::new(flow, weight, effective, shared.demand(slot)));
        }
        self.show(slot, shared);
    }

    /// Drops a flow that the policy has removed.
    pub(crate) fn remove<P: Platform>(&mut self, flow: FlowId, shared: &Shared<P>) {
        if let Some(member) = self.members.get_mut(flow.slot()).and_then(Option::take) {
            self.tree.shift(member.share.group, member.part(), Part::default());
            self.tree.join(None, member.share.group);
            self.note(member.share.reservation, Reservation::NONE);
        }
        self.show(flow.slot(), shared);
    }

    /// Replaces a flow's caps. A cap that does not change keeps the amounts taken from it; others
    /// start full.
    pub(crate) fn set_caps<P: Platform>(
        &mut self,
        flow: FlowId,
        caps: &Caps,
        shared: &Shared<P>,
    ) -> Result<(), FlowError> {
        let old = core::mem::replace(&mut self.member(flow)?.caps, *caps);
        if let Some(account) = shared.limits.account(flow.slot()) {
            account.set_caps(&old, caps);
        }
        self.show(flow.slot(), shared);
        if !(caps.is_empty() && old.is_empty()) {
            shared.set(CAPPED, true);
        }
        Ok(())
    }

    pub(crate) fn resume_caps<P: Platform>(
        &mut self,
        of: CapsOf,
        before: &CapStats,
        shared: &Shared<P>,
    ) {
        let (account, caps) = match of {
            CapsOf::Flow(flow) => {
                let caps = self.member(flow).map(|member| member.caps);
                (shared.limits.account(flow.slot()), caps.ok())
            }
            CapsOf::Group(id) => {
                (shared.limits.group(id), self.tree.group(id).map(|group| group.caps))
            }
        };
        if let Some((account, caps)) = account.zip(caps) {
            account.resume_caps(&caps, before);
        }
    }

    pub(crate) fn caps<P: Platform>(
        &mut self,
        flow: FlowId,
        shared: &Shared<P>,
    ) -> Option<CapStats> {
        let caps = self.member(flow).ok()?.caps;
        shared.limits.account(flow.slot())?.cap_stats(caps)
    }

    /// Sets a group's caps like a flow's. When a group gets its first caps or loses its last ones,
    /// the words of all flows and groups are updated.
    pub(crate) fn set_group<P: Platform>(
        &mut self,
        id: GroupId,
        group: Option<&Group>,
        shared: &Shared<P>,
    ) -> Result<(), FlowError> {
        let before = self.tree.group(id).copied();
        match group {
            Some(group) => self.tree.set(id, group)?,
            None => self.tree.remove(id)?,
        }
        let (old, new) = (before.unwrap_or_default(), group.copied().unwrap_or_default());
        self.note(old.reservation, new.reservation);
        if let Some(account) = shared.limits.group(id) {
            account.set_caps(&old.caps, &new.caps);
            if before.is_none() {
                account.begin();
            }
        }
        self.show_group(id, shared);
        // The nearest group with caps changes for all flows and groups inside of this one.
        if old.caps.is_empty() != new.caps.is_empty() {
            (0..Group::MOST as u16).for_each(|id| self.show_group(GroupId(id), shared));
            (0..self.used).for_each(|slot| self.show(slot, shared));
        }
        let capped = flag_if(!new.caps.is_empty(), CAPPED);
        let reserved = flag_if(!new.reservation.is_none(), RESERVED);
        shared.set(SHARED | capped | reserved, old.caps != new.caps);
        Ok(())
    }

    pub(crate) fn group<P: Platform>(&self, id: GroupId, shared: &Shared<P>) -> Option<GroupStats> {
        let (group, place, members, active) = self.tree.look(id)?;
        let caps = shared.limits.group(id)?.cap_stats(group.caps);
        Some(GroupStats { group, weight: weight_of(place.parts(0)), members, active, caps })
    }

    pub(crate) fn set_share<P: Platform>(
        &mut self,
        flow: FlowId,
        share: &Share,
        shared: &Shared<P>,
    ) -> Result<(), FlowError> {
        if share.group.is_some_and(|group| self.tree.group(group).is_none()) {
            return Err(FlowError::NoSuchGroup);
        }
        let before = self.member(flow)?.share;
        self.note(before.reservation, share.reservation);
        self.change(flow, shared, |member| member.share = *share)?;
        self.show(flow.slot(), shared);
        // A flow in no group and without reservation gives ports nothing to count.
        let counted = flag_if(*share != Share::default(), SHARED);
        let reserved = flag_if(!share.reservation.is_none(), RESERVED);
        shared.set(counted | reserved, share.group != before.group);
        Ok(())
    }

    pub(crate) fn share<P: Platform>(
        &mut self,
        flow: FlowId,
        shared: &Shared<P>,
    ) -> Option<ShareStats> {
        if shared.state() & SHARED == 0 {
            return None;
        }
        let Member { share, effective: weight, is_active, granted, state, last, .. } =
            *self.member(flow).ok()?;
        let ahead = shared.limits.account(flow.slot())?.ahead.load(Ordering::Relaxed);
        let state = if granted.is_none() { ReservationState::Idle } else { state };
        let [requests, bytes] = if granted.is_none() { [0; 2] } else { last };
        Some(ShareStats { share, weight, is_active, granted, state, requests, bytes, ahead })
    }

    /// Whether there is no room for more weights in `news`.
    pub(crate) fn is_full(&self) -> bool {
        self.news.len() >= FLOWS_AT_ONCE
    }

    /// The state of the supply; `None` without reservations.
    pub(crate) fn stats(&self) -> Option<ReservedStats> {
        (self.reserved > 0).then(|| self.supply.stats())
    }
}
