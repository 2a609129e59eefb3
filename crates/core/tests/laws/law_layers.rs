//! **Law: layers.** All layers together, with something to do for each, keep the contract of a
//! policy: under random sequences of all verbs, while caps, reservations, groups, weights and D
//! change, no request is lost or repeated, no tag that is in use is accepted or completed, and no
//! slot of a flow is given to another one while a request of it is live.

use fairq_classic::{AnyPolicy, AnyPort};
use fairq_core::{
    Cap, Caps, Counted, Group, GroupId, PortSet, Reservation, Share, Side, Target, Tuning, Weight,
};

use crate::canary::{self, Misbehave, caught};
use crate::law_requests;
use crate::law_take_back::TAKING_BACK;
use crate::script::{Kind, for_all};
use crate::subjects::{NO_VIRTUAL_TIME, registered};
use crate::world::{Req, Shape, Subject, TypedSubject, World};

/// A change of the layers' settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    NoCaps,
    /// Some requests at once and then 1000 a second; the next caps bytes, and the one after it the
    /// group's requests.
    CapRequests,
    CapBytes,
    CapGroup,
    NoShare,
    /// A place in the group, and a reservation.
    Share,
    Reserve,
    Target,
    NoTarget,
    Slots,
    AutoSlots,
    /// All flows' weights in one call.
    Weights,
}

impl Change {
    pub(crate) const ALL: [Change; 12] = [
        Change::NoCaps,
        Change::CapRequests,
        Change::CapBytes,
        Change::CapGroup,
        Change::NoShare,
        Change::Share,
        Change::Reserve,
        Change::Target,
        Change::NoTarget,
        Change::Slots,
        Change::AutoSlots,
        Change::Weights,
    ];
}

const GROUP: GroupId = GroupId(0);

fn cap(counted: Counted, per_second: u64, burst: u64) -> Caps {
    Caps::default().with(Side::Both, counted, Cap::new(per_second, burst))
}

impl World {
    /// Expedites a staged request: it goes to the device before all others.
    pub(crate) fn expedite(&mut self, pick: usize) {
        let Some(index) = self.staged_request(pick) else { return };
        let Req { port, tag, .. } = self.trace.requests[index];
        if self.verb(port, |port, now, wake| port.expedite(now, tag, wake)) {
            self.issue(port, tag, false);
        }
    }

    /// Changes a setting of the layers. A policy refuses settings that it does not have.
    pub(crate) fn change(&mut self, flow: usize, change: Change) {
        let id = self.trace.flows[flow].id;
        let mut wake = PortSet::EMPTY;
        let reservation = Reservation::new(2000, 0).expect("legal");
        match change {
            Change::NoCaps => _ = self.policy.set_caps(id, &Caps::default()),
            Change::CapRequests => _ = self.policy.set_caps(id, &cap(Counted::Requests, 1000, 4)),
            Change::CapBytes => _ = self.policy.set_caps(id, &cap(Counted::Bytes, 1 << 23, 0)),
            Change::CapGroup => {
                let caps = cap(Counted::Requests, 2000, 2);
                _ = self.policy.set_group(GROUP, Some(&Group { caps, ..Group::default() }));
            }
            Change::NoShare => _ = self.policy.set_share(id, &Share::default()),
            Change::Share => {
                let group = self.policy.group(GROUP).map(|_| GROUP);
                _ = self.policy.set_share(id, &Share { group, reservation });
            }
            Change::Reserve => _ = self.policy.set_share(id, &Share { group: None, reservation }),
            Change::Target => _ = self.policy.set_target(id, Target::new(1_000_000, 10_000, 50)),
            Change::NoTarget => _ = self.policy.set_target(id, None),
            Change::Slots => _ = self.policy.tune(Tuning::Slots(1 + flow as u32 % 3), &mut wake),
            Change::AutoSlots => _ = self.policy.tune(Tuning::AutoSlots, &mut wake),
            Change::Weights => {
                let weight = |at| Weight::new(1 + at as u16 % 300).expect("legal");
                let all = (1..).zip(&self.trace.flows);
                let all: Vec<_> = all.map(|(at, flow)| (flow.id, weight(at))).collect();
                self.policy.set_weights(&all);
            }
        }
        self.owe(wake);
        self.tick();
    }
}

/// A policy of the registry with all of its layers.
pub(crate) struct Every(pub(crate) &'static str);

impl TypedSubject for Every {
    type Policy = AnyPolicy;
    fn build(&self, shape: &Shape) -> (AnyPolicy, Vec<AnyPort>) {
        registered(self.0, shape, &[("threshold", shape.threshold)])
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
    fn starts_ns(&self) -> u64 {
        3_600_000_000_000
    }
}

const LAYERS: Kind = Kind { layers: true, tags: 12, ..TAKING_BACK };

pub(crate) fn holds(subject: &dyn Subject) -> Result<(), String> {
    for_all(subject, LAYERS, 120, law_requests::check)
}

#[test]
fn catches_what_loses_repeats_or_takes_twice() {
    let faults = [
        Misbehave::LoseRequests,
        Misbehave::TakeBadTags,
        Misbehave::CancelOnlySays,
        Misbehave::ExpediteForgets,
        Misbehave::KeepRemovedFlows,
        Misbehave::CompletesStaged,
    ];
    for fault in faults {
        caught(holds(&canary::Wrapped(fault)), "law broken");
    }
}
