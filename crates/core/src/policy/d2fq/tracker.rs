//! The three ways to track global virtual time that Figure 17 compares, and each port's part in the
//! third.

use super::activity::FlowState;
use super::config::{D2fqConfig, TrackerKind};
use super::gvt::{Gvt, KIU};
use crate::contract::platform::Platform;
use crate::contract::port::Tag;
use crate::contract::port_set::PortId;
use crate::contract::vtime::VTime;
use crate::structures::mindicator::VirtualTime;
use crate::structures::tournament::{Key, Tournament};

/// Global virtual time.
pub(super) enum Tracker<P: Platform> {
    /// One word with a holder.
    Sloppy(Gvt<P>),
    /// The least of all active flows, looked for each time; the word keeps it for when there is
    /// none.
    Scan(Gvt<P>),
    /// The least of all ports' leads, in MQFQ's tree.
    Mindicator(VirtualTime<P>),
}

impl<P: Platform> Tracker<P> {
    pub(super) fn new(config: &D2fqConfig) -> Self {
        match config.tracker {
            TrackerKind::Sloppy => Tracker::Sloppy(Gvt::new()),
            TrackerKind::Scan => Tracker::Scan(Gvt::new()),
            TrackerKind::Mindicator => Tracker::Mindicator(VirtualTime::new(config.ports.tree())),
        }
    }

    /// How far a flow at `vt` is ahead, in KiU. `least` finds the least of all active flows.
    #[inline]
    pub(super) fn ahead(&self, vt: VTime, least: impl FnOnce() -> Option<VTime>) -> i64 {
        match self {
            Tracker::Sloppy(gvt) => gvt.ahead(vt),
            Tracker::Scan(gvt) => match least() {
                Some(least) => {
                    gvt.raise_unheld(least);
                    vt.since(least) >> KIU
                }
                None => gvt.ahead(vt),
            },
            Tracker::Mindicator(time) => vt.since(time.now()) >> KIU,
        }
    }

    /// Its value in units; modulo 2^50 where one word keeps it.
    pub(super) fn units(&self) -> u64 {
        match self {
            Tracker::Sloppy(gvt) | Tracker::Scan(gvt) => gvt.units(),
            Tracker::Mindicator(time) => time.now().units(),
        }
    }
}

/// A port's flows by virtual time, as it last knew it; its leaf of the mindicator says the first.
pub(super) struct Leads {
    flows: Tournament,
    published: Option<VTime>,
}

impl Leads {
    pub(super) fn new(flows: usize) -> Self {
        Leads { flows: Tournament::new(flows), published: None }
    }

    /// The flow has requests here and is at `vt`; `None`: it has none any more.
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
            // A leaf is lowered to virtual time at the latest, and raised from there.
            let at = lead.min(time.now());
            time.pin(port, at);
            if at == lead {
                return;
            }
        }
        time.raise(port, lead);
    }
}

/// The least virtual time of what is active, and of what has been in flight without a break.
#[derive(Clone, Copy, Default)]
pub(super) struct Least {
    pub(super) active: Option<VTime>,
    pub(super) backlogged: Option<VTime>,
}

/// Looks at every flow.
pub(super) fn least<P: Platform>(states: &[FlowState<P>], now_ns: u64, grace_ns: u64) -> Least {
    let earlier = |least: Option<VTime>, vt: VTime| Some(least.map_or(vt, |least| least.min(vt)));
    states.iter().fold(Least::default(), |least, state| {
        let activity = state.activity();
        if !activity.is_active(now_ns, grace_ns) {
            return least;
        }
        let vt = state.vt();
        let backlogged = activity.is_backlogged(now_ns, grace_ns);
        Least {
            active: earlier(least.active, vt),
            backlogged: if backlogged { earlier(least.backlogged, vt) } else { least.backlogged },
        }
    })
}
