//! Groups and reservations: shares on each level of a tree, and the least service of a flow; one
//! layer in front of any policy.
//!
//! **Problem.** Weights of flows are one level. Organisations nest: capacity that a team's database
//! leaves is the team's before it is the neighbours'. And a database needs a floor in requests a
//! second, whatever others weigh. **Model.** [`Grouped`] stands around a policy.
//!
//! - *Groups.* Ports count each flow's requests, in words of their own. Every `LOOK_NS` the
//!   [`tick`](Policy::tick) visits `AT_ONCE` flows: the active ones divide their group's weight
//!   (`tree`), and the policy gets the products by [`Policy::set_weights`]. Virtual time is the
//!   policy's, and so are all its promises.
//! - *Reservations.* A flow's reservation is a bucket that fills at its rate, and from which all
//!   the flow's service is taken; service by its weight beyond that is a debt, up to twice the
//!   bucket's size, so that a weight which gives service in bursts adds nothing to the reservation.
//!   While the bucket is not empty, the flow has had less than its reservation: the first of its
//!   requests is taken out of the policy, uncharged, and goes to the device before all others,
//!   beside the policy's D. So a flow whose weight gives it more has its share, and the others have
//!   at least their rate. A direct policy holds no requests that could be taken back: `d2fq`'s
//!   requests go to the urgent class instead; with `none` a reservation does nothing.
//! - *Room on the device.* A flow that keeps `n` requests outstanding has its reservation if at
//!   most `n x the device's rate / reservation` requests are on the device (Little's law). A tick
//!   computes the least of these bounds over all flows whose weights do not give them more than
//!   their reservations; a port does not call the policy while its requests that the policy issued
//!   fill its part of the bound.
//! - *The device's rate.* If the reservations of all active flows together are more than may be
//!   reserved of the measured rate, each is granted the same part (`supply`).
//!
//! ```text
//!   submit ─▶ the policy's submit ─▶ staged ── next ─▶ has less than its reservation?
//!                                                ├─ yes ─▶ the policy's expedite, Issue
//!                                                └─ no ──▶ is there room? the policy's next
//! ```
//!
//! **Example.** Group acme (300) has flows a and b of 100 each, beside solo (100): weights 150, 150
//! and 100. While a is idle, b has 300.
//!
//! **Laws.** The service that goes ahead for a reservation is at most rate x interval + the rate's
//! amount in a twentieth of a second, over all ports, and half of a port's tags at a time: the rest
//! of the device keeps other flows from starving. A port may always have one request of others on
//! the device. A factor on all weights changes nothing.
//!
//! **Bounds of loops.** A call of `next` visits 16 flows; a tick `AT_ONCE`.

#[cfg(all(test, loom))]
mod models;
mod port;
mod shared;
mod supply;
mod tree;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::contract::bounds::ConfigError;
use crate::contract::layer::names::*;
use crate::contract::layer::{self, layer};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering};
use crate::contract::share::{Reservation, ReservationState};
use crate::entry::Built;
use crate::policy::bucket::Time;
use crate::structures::allocation::{boxed, granted, room};
use shared::{Asked, Level, Shared};
use supply::Supply;
use tree::{Part, Place, Tree};

pub use port::GroupedPort;

/// Time between two visits of flows, in nanoseconds, and flows visited at once.
const LOOK_NS: u64 = 10_000_000;
const AT_ONCE: usize = 1024;
/// A flow that has had no request for this time, in nanoseconds, is idle.
const IDLE_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// A flow that did not get its reservation in a second with room gets no room for this long, in
/// nanoseconds. The time doubles with each such second in a row, up to 16 times it.
const FUTILE_NS: u64 = 16_000_000_000;
const FUTILE_MOST: u32 = 4;
/// A flow has its reservation if it has this part of it, in percent.
const MET_PERCENT: u64 = 97;

// **Cost.** `submit` and `next` read a shared word that hardly ever changes, and `complete` a
// number of the port's own. Without groups and reservations that is all; with groups a port counts
// each request when it comes and when it ends, in words that it alone writes. When the policy
// issues a request of a flow with a reservation, the port also reads the flow's buckets and takes
// from them.
//
// *Memory ordering.* A flow's word is stored with Release after its buckets are set, and read with
// Acquire. All other words are counts.
/// A policy whose flows can be in groups and have reservations. See the [module's text](self).
pub struct Grouped<L, P: Platform = Native> {
    inner: L,
    shared: Arc<Shared<P>>,
    control: P::Mutex<Control>,
}

/// A flow and its state in this layer.
struct Member {
    flow: FlowId,
    /// Its own weight, and the weight last set in the policy.
    weight: Weight,
    told: Weight,
    share: Share,
    /// Whether it is active; the time when it was last seen with a request, and its count of
    /// submitted requests then.
    is_active: bool,
    active_ns: u64,
    submitted: u32,
    /// Its granted reservation.
    granted: Reservation,
    /// The second that is counted: its start, the counts then, and whether the flow has had nothing
    /// outstanding at times.
    second_ns: u64,
    begun: Asked,
    has_rested: bool,
    last: [u64; 2],
    state: ReservationState,
    /// The most requests that it had outstanding; decays by an eighth with each visit.
    peak: u32,
    /// Time from which others make room for it on the device; time until which they do not, because
    /// room did not help; and the number of such seconds in a row.
    room_ns: Option<u64>,
    futile_ns: u64,
    futile: u32,
}

impl Member {
    fn own(&self) -> Part {
        Part::of(self.weight, self.share.reservation)
    }

    /// The part that it adds to its group.
    fn part(&self) -> Part {
        if self.is_active { self.own() } else { Part::default() }
    }

    /// The most requests that may be on the device for it to have its granted reservation.
    fn most(&mut self, now_ns: u64, asked: Asked, supply: &Supply, has_more: bool) -> Option<u64> {
        self.peak = asked.live().max(self.peak - self.peak.div_ceil(8));
        // A flow that rests at times keeps too few requests outstanding for room to help it, and
        // one that has more by its weight needs none.
        let can_be = self.is_active && !self.has_rested && now_ns >= self.futile_ns;
        let is_to_be = can_be && !has_more;
        let most = supply.most(self.peak.into(), self.granted).filter(|_| is_to_be);
        self.room_ns = most.and(self.room_ns.or(Some(now_ns)));
        most
    }

    /// Ends the second, if it is over.
    fn count(&mut self, now_ns: u64, asked: Asked, is_short: bool) {
        let is_live = asked.live() != 0;
        self.has_rested |= !is_live;
        let lasted_us = now_ns.saturating_sub(self.second_ns) / 1000;
        if lasted_us < SECOND_NS / 1000 {
            return;
        }
        let done = asked.since(self.begun);
        self.last = done.map(|done| done.saturating_mul(1_000_000) / lasted_us);
        let has = |(last, granted): (&u64, u64)| *last >= granted / 100 * MET_PERCENT;
        let is_met = self.last.iter().zip(self.granted.rates()).all(has);
        // Others have made room for all of this second, so it shows whether that helps.
        if self.room_ns.is_some_and(|since_ns| since_ns <= self.second_ns) {
            // If it does not help, the flow keeps too few requests outstanding.
            let pause_ns = if is_met { 0 } else { FUTILE_NS << self.futile.min(FUTILE_MOST) };
            self.futile_ns = now_ns.saturating_add(pause_ns);
            self.futile = if is_met { 0 } else { self.futile.saturating_add(1) };
        }
        self.state = match is_met {
            _ if self.last == [0, 0] && self.has_rested => ReservationState::Idle,
            true if is_short => ReservationState::Shrunk,
            true => ReservationState::Met,
            false if self.has_rested || now_ns < self.futile_ns => ReservationState::Demand,
            false => ReservationState::Missed,
        };
        (self.second_ns, self.begun, self.has_rested) = (now_ns, asked, !is_live);
    }
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
    look_ns: u64,
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

    /// The weight at this place.
    fn weight(&mut self, place: Place) -> Weight {
        let parts = place.parts(self.scale);
        let (least, most) = self.extremes;
        self.extremes = (least.min(parts), most.max(parts));
        weight_of(parts)
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
}

/// The weight of this number of 256ths, or the nearest there is.
fn weight_of(parts: u64) -> Weight {
    let most = Weight::MAX.in_256ths();
    let parts = parts.clamp(Weight::LEAST_256THS.into(), most.into());
    u32::try_from(parts).ok().and_then(Weight::of_256ths).unwrap_or(Weight::MAX)
}

impl<L: Policy, P: Platform> Grouped<L, P> {
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
            let shared = Arc::new(Shared::new(ports.len(), flows, has_classes));
            let port = |(index, inner)| GroupedPort::new(inner, shared.clone(), index, tags);
            let ports = ports.into_iter().enumerate().map(port).collect();
            let control = P::Mutex::new(Control {
                members: boxed(flows, |_| None),
                used: 0,
                tree: Tree::new(),
                supply: Supply::new(),
                reserved: 0,
                cursor: 0,
                look_ns: 0,
                inner_ns: Some(0),
                news: room(AT_ONCE),
                scale: 0,
                asked_ppm: 0,
                extremes: NO_WEIGHTS,
                most: None,
                live: 0,
            });
            Ok((Grouped { inner, shared, control }, ports))
        })
    }

    /// Raises the level for a group, or a flow in one, with this reservation. Called under the
    /// lock.
    fn turn_on(&self, reservation: Reservation) {
        let level = if reservation.is_none() { Level::Shares } else { Level::Reservations };
        if level > self.shared.level() {
            self.shared.level.store(level as u64, Ordering::Relaxed);
        }
    }

    /// Computes a flow's effective weight and granted reservation.
    fn visit(&self, control: &mut Control, slot: usize, now_ns: u64) {
        let Control { members, tree, supply, reserved, .. } = control;
        let Some(Some(member)) = members.get_mut(slot) else { return };
        let asked = self.shared.asked(slot);
        if asked.live() != 0 || asked.submitted != member.submitted {
            (member.active_ns, member.submitted) = (now_ns, asked.submitted);
        }
        // The time is 0 for a flow that has never had a request.
        let is_active = now_ns.saturating_sub(member.active_ns) < IDLE_NS && member.active_ns > 0;
        if is_active != member.is_active {
            let before = member.part();
            member.is_active = is_active;
            tree.shift(member.share.group, before, member.part());
        }
        let place = tree.place(member.share.group, member.own(), is_active);
        // After the last reservation is gone, grants are withdrawn here.
        if *reserved > 0 || !member.granted.is_none() {
            if is_active {
                let part_ppm = supply.part_ppm(place.reservation);
                control.asked_ppm = control.asked_ppm.saturating_add(part_ppm);
            }
            let granted = supply.granted(place.reservation);
            let before = core::mem::replace(&mut member.granted, granted);
            self.shared.grant(now_ns, member.flow, before, granted);
            member.count(now_ns, asked, supply.is_short());
            if !granted.is_none() {
                let has_more = self.shared.has_more(Time::of_ns(now_ns), member.flow);
                let most = member.most(now_ns, asked, supply, has_more);
                control.most = control.most.into_iter().chain(most).min();
                control.live = control.live.saturating_add(asked.live().into());
            }
        }
        let weight = control.weight(place);
        if let Some(Some(member)) = control.members.get_mut(slot)
            && member.told != weight
        {
            member.told = weight;
            control.news.push((member.flow, weight));
        }
    }

    /// Sets the new weights in the policy.
    fn tell(&self, control: &mut Control) {
        if !control.news.is_empty() {
            self.inner.set_weights(&control.news);
            control.news.clear();
        }
    }

    /// Visits some flows.
    fn look(&self, control: &mut Control, now_ns: u64) {
        if self.shared.level() == Level::Reservations {
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
        self.tell(control);
    }

    /// Changes the settings of one flow. Gives whether its effective weight has changed; the new
    /// one is then in `news`.
    fn change(
        &self,
        control: &mut Control,
        flow: FlowId,
        change: impl FnOnce(&mut Member),
    ) -> Result<bool, FlowError> {
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
        let is_new = core::mem::replace(&mut member.told, weight) != weight;
        if is_new {
            control.news.push((flow, weight));
        }
        Ok(is_new)
    }
}

layer!(Grouped, GroupedPort);

impl<L: Policy, P: Platform> layer::Layer for Grouped<L, P> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.inner
    }

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.control.with(|control| {
            let told = match control.scale {
                0 => weight,
                scale => weight_of(u64::from(weight.in_256ths()) << scale),
            };
            let flow = self.inner.add_flow_as(known, told)?;
            let slot = flow.slot();
            // A slot's counts go on from one flow to the next: the earlier flow's counts are left
            // out.
            let asked = self.shared.asked(slot);
            if let Some(account) = self.shared.account(slot) {
                account.ahead.store(0, Ordering::Relaxed);
            }
            control.used = control.used.max(slot + 1);
            if let Some(place) = control.members.get_mut(slot) {
                *place = Some(Member {
                    flow,
                    weight,
                    told,
                    share: Share::default(),
                    is_active: false,
                    active_ns: 0,
                    submitted: asked.submitted,
                    granted: Reservation::NONE,
                    second_ns: 0,
                    begun: asked,
                    has_rested: true,
                    last: [0; 2],
                    state: ReservationState::Idle,
                    peak: 0,
                    room_ns: None,
                    futile_ns: 0,
                    futile: 0,
                });
            }
            Ok(flow)
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.control.with(|control| {
            self.change(control, flow, |member| member.weight = weight)?;
            // `set_weight` and not `set_weights`: the policy is to know that an operator changed
            // it.
            control.news.clear();
            let told = control.member(flow)?.told;
            self.inner.set_weight(flow, told)
        })
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.control.with(|control| {
            for &(flow, weight) in weights {
                // A flow that is gone has no weight.
                let _ = self.change(control, flow, |member| member.weight = weight);
                if control.news.len() >= AT_ONCE {
                    self.tell(control);
                }
            }
            self.tell(control);
        });
    }

    layer::forward_policy! {
        set_urgent set_target target set_caps caps tune costs_vary class_weights resume_caps
    }

    fn set_group(&self, id: GroupId, group: Option<&Group>) -> Result<(), FlowError> {
        self.control.with(|control| {
            let before = control.tree.reservation(id);
            match group {
                Some(group) => control.tree.set(id, group)?,
                None => control.tree.remove(id)?,
            }
            let after = control.tree.reservation(id);
            control.note(before, after);
            self.turn_on(after);
            Ok(())
        })
    }

    fn group(&self, id: GroupId) -> Option<GroupStats> {
        self.control.with(|control| {
            let (group, place, members, active) = control.tree.look(id)?;
            let weight = weight_of(place.parts(0));
            Some(GroupStats { group, weight, members, active, caps: None })
        })
    }

    fn set_share(&self, flow: FlowId, share: &Share) -> Result<(), FlowError> {
        self.control.with(|control| {
            if share.group.is_some_and(|group| !control.tree.has(group)) {
                return Err(FlowError::NoSuchGroup);
            }
            let before = control.member(flow)?.share.reservation;
            // A flow in no group and without reservation gives ports nothing to count.
            if *share != Share::default() {
                self.turn_on(share.reservation);
            }
            control.note(before, share.reservation);
            if self.change(control, flow, |member| member.share = *share)? {
                self.tell(control);
            }
            Ok(())
        })
    }

    fn share(&self, flow: FlowId) -> Option<ShareStats> {
        if !self.shared.is_on() {
            return None;
        }
        self.control.with(|control| {
            let member = control.member(flow).ok()?;
            let Member { share, told: weight, is_active, granted, state, last, .. } = *member;
            let ahead = self.shared.account(flow.slot())?.ahead.load(Ordering::Relaxed);
            let state = if granted.is_none() { ReservationState::Idle } else { state };
            let [requests, bytes] = if granted.is_none() { [0; 2] } else { last };
            Some(ShareStats { share, weight, is_active, granted, state, requests, bytes, ahead })
        })
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.control.with(|control| {
            let ports = self.inner.remove_flow(flow)?;
            if let Some(member) = control.members.get_mut(flow.slot()).and_then(Option::take) {
                control.tree.shift(member.share.group, member.part(), Part::default());
                control.tree.join(None, member.share.group);
                control.note(member.share.reservation, Reservation::NONE);
            }
            if let Some(word) = self.shared.flows.get(flow.slot()) {
                word.store(0, Ordering::Release);
            }
            Ok(ports)
        })
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        if !self.shared.is_on() {
            return self.inner.tick(now_ns, wake);
        }
        self.control.with(|control| {
            if control.inner_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                control.inner_ns = self.inner.tick(now_ns, wake);
            }
            if control.look_ns <= now_ns {
                self.look(control, now_ns);
                control.look_ns = now_ns.saturating_add(LOOK_NS);
            }
            let look_ns = control.look_ns;
            Some(control.inner_ns.map_or(look_ns, |at_ns| at_ns.min(look_ns)))
        })
    }

    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        if self.shared.is_on() {
            let reserved =
                |control: &mut Control| (control.reserved > 0).then(|| control.supply.stats());
            stats.reserved = self.control.with(reserved);
        }
        stats
    }
}
