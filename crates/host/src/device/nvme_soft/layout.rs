//! Which shard uses which queues.
//!
//! Each shard wants a completion queue with a submission queue for each class on it. Where the
//! device has too few queues, groups of adjacent shards share such a set (D2FQ, Section 4.4: 24
//! cores on 32 queues share by threes). Where it has enough, a set also has an urgent queue; where
//! not, urgent commands go with the high ones.

use std::ops::Range;

use fairq_core::{Class, PortId, PortSet};

/// The least number of queues: one of each weighted class.
pub(super) const QUEUES_MIN: u16 = 3;

/// The assignment of the shards of a run to the queues of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    ports: usize,
    /// Adjacent shards that share a set.
    pub(super) group: usize,
    pub(super) has_urgent: bool,
}

impl Layout {
    /// For a run with `ports` shards on a device with `queues` I/O queues of each kind, at least
    /// [`QUEUES_MIN`].
    pub(super) fn plan(queues: u16, ports: usize) -> Layout {
        let ports = ports.max(1);
        let group = ports.div_ceil(usize::from(queues / QUEUES_MIN).max(1));
        let sets = ports.div_ceil(group);
        Layout { ports, group, has_urgent: sets * 4 <= usize::from(queues) }
    }

    /// The number of sets of queues.
    pub(super) fn sets(self) -> usize {
        self.ports.div_ceil(self.group)
    }

    /// The set of a shard, and which of its members the shard is.
    pub(super) fn place(self, port: PortId) -> (usize, usize) {
        let port = usize::from(port.0);
        (port / self.group, port % self.group)
    }

    /// The shards of a set.
    pub(super) fn members(self, set: usize) -> PortSet {
        let mut ports = PortSet::EMPTY;
        self.range(set).for_each(|port| ports.insert(PortId(port as u8)));
        ports
    }

    fn range(self, set: usize) -> Range<usize> {
        set * self.group..((set + 1) * self.group).min(self.ports)
    }

    /// The classes of a set, in the order of their queues.
    pub(super) fn classes(self) -> &'static [Class] {
        let all = &[Class::High, Class::Medium, Class::Low, Class::Urgent];
        if self.has_urgent { all } else { &all[..3] }
    }

    /// The identifier of a completion queue.
    pub(super) fn cqid(self, set: usize) -> u16 {
        set as u16 + 1
    }

    /// The identifier of a submission queue.
    pub(super) fn sqid(self, set: usize, class: usize) -> u16 {
        (set * self.classes().len() + class + 1) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_where_queues_are_few() {
        let plan = |queues, ports| {
            let layout = Layout::plan(queues, ports);
            (layout.group, layout.sets(), layout.has_urgent)
        };
        assert_eq!(plan(32, 2), (1, 2, true));
        assert_eq!(plan(32, 8), (1, 8, true));
        assert_eq!(plan(32, 9), (1, 9, false));
        assert_eq!(plan(32, 10), (1, 10, false));
        assert_eq!(plan(32, 24), (3, 8, true), "the paper's: 24 cores share by threes");
        assert_eq!(plan(3, 64), (64, 1, false));
        assert_eq!(plan(4, 1), (1, 1, true));
    }

    #[test]
    fn every_shard_has_one_set_and_every_queue_one_identifier() {
        for queues in QUEUES_MIN..=61 {
            for ports in 1..=64usize {
                let layout = Layout::plan(queues, ports);
                let mut seen = PortSet::EMPTY;
                for set in 0..layout.sets() {
                    let members = layout.members(set);
                    assert!(!members.is_empty() && seen.and(members).is_empty());
                    seen.extend(members);
                    for (member, port) in members.enumerate() {
                        assert_eq!(layout.place(port), (set, member));
                    }
                }
                assert_eq!(seen, PortSet::first(ports));
                let last = layout.sqid(layout.sets() - 1, layout.classes().len() - 1);
                assert!(
                    usize::from(last) == layout.sets() * layout.classes().len() && last <= queues
                );
            }
        }
    }
}
