//! The three ways to track global virtual time that Figure 17 compares, and each port's part in the
//! third.

use super::activity::FlowState;
use super::config::{D2fqConfig, TrackerKind};
use super::gvt::{Floor, Gvt, KIU};
use crate::contract::platform::Platform;
use crate::contract::port::Tag;
use crate::contract::port_set::PortId;
use crate::contract::vtime::VTime;
use crate::structures::mindicator::VirtualTime;
use crate::structures::tournament::{Key, Tournament};

/// The method of finding global virtual time, and its state.
pub(super) enum Way<P: Platform> {
    /// One word with a holder.
    Sloppy(Gvt<P>),
    /// The least of all active flows, searched for each time; the word keeps it for times without
    /// active flows.
    Scan(Gvt<P>),
    /// The least of all ports' leads, in MQFQ's tree.
    Mindicator(VirtualTime<P>),
}

/// Global virtual time: the value of `way`, but never before `floor`.
pub(super) struct Tracker<P: Platform> {
    way: Way<P>,
    floor: Floor<P>,
}

impl<P: Platform> Tracker<P> {
    pub(super) fn new(config: &D2fqConfig) -> Self {
        let way = match config.tracker {
            TrackerKind::Sloppy => Way::Sloppy(Gvt::new()),
            TrackerKind::Scan => Way::Scan(Gvt::new()),
            TrackerKind::Mindicator => Way::Mindicator(VirtualTime::new(config.ports.tree())),
        };
        Tracker { way, floor: Floor::new() }
    }

    #[inline]
    pub(super) fn way(&self) -> &Way<P> {
        &self.way
    }

    #[inline]
    pub(super) fn floor(&self) -> VTime {
        self.floor.get()
    }

    /// Raises the floor, and the word to it.
    pub(super) fn raise(&self, floor: VTime) {
        self.floor.raise(floor);
        self.follow();
    }

    /// Raises the word to the floor if it is before the floor, after one of them has been written.
    pub(super) fn follow(&self) {
        P::fence();
        if let Way::Sloppy(gvt) = &self.way {
            gvt.raise(self.floor());
        }
    }

    /// The distance of a flow at `vt` ahead of gvt, in KiU. `least` finds the least of all active
    /// flows.
    #[inline]
    pub(super) fn ahead(&self, vt: VTime, least: impl FnOnce() -> Option<VTime>) -> i64 {
        match &self.way {
            Way::Sloppy(gvt) => gvt.ahead(vt),
            Way::Scan(gvt) => match least() {
                Some(least) => {
                    let least = least.max(self.floor());
                    // While no flow is active, the word keeps the last virtual time.
                    gvt.raise_unheld(least);
                    vt.since(least) >> KIU
                }
                None => gvt.ahead(vt),
            },
            Way::Mindicator(time) => vt.since(time.now().max(self.floor())) >> KIU,
        }
    }

    /// Global virtual time in units; modulo 2^50 where one word keeps it.
    pub(super) fn units(&self) -> u64 {
        match &self.way {
            Way::Sloppy(gvt) | Way::Scan(gvt) => gvt.units(),
            Way::Mindicator(time) => time.now().max(self.floor()).units(),
        }
    }
}

/// A port's flows by the virtual time that the port last knew; its leaf of the mindicator holds the
/// least.
pub(super) struct Leads {
    flows: Tournament,
    published: Option<VTime>,
}

impl Leads {
    pub(super) fn new(flows: usize) -> Self {
        Leads { flows: Tournament::new(flows), published: None }
    }

    /// Enters a flow that has requests here and is at `vt`; `None` removes a flow that has none.
    pub(super) fn put<P: Platform>(
        &mut self,
        time: &VirtualTime<P>,
        port: PortId,
        slot: usize,
        vt: Option<VTime>,
    ) {
        match vt {
            Some(vt) => self.flows.put(slot, Key::new(vt, 0, Tag(slot as u32))),
            None => self.flows.remove(slot),
        }
        let lead = self.flows.get().map(Key::start);
        if lead == self.published {
            return;
        }
        let earlier =
            lead.filter(|lead| self.published.is_none_or(|published| lead.is_before(published)));
        self.published = lead;
        if let Some(lead) = earlier {
            // A leaf is lowered to a point not after virtual time, and raised from there.
            let at = lead.min(time.now());
            time.pin(port, at);
            if at == lead {
                return;
            }
        }
        time.raise(port, lead);
    }
}

/// The least virtual time of the active flows; scans all flows.
pub(super) fn least<P: Platform>(
    states: &[FlowState<P>],
    now_ns: u64,
    grace_ns: u64,
) -> Option<VTime> {
    let active = states.iter().filter(|state| state.activity().is_active(now_ns, grace_ns));
    active.map(FlowState::vt).reduce(VTime::min)
}
