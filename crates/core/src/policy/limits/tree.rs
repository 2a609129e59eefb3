//! The tree of groups: a flow's effective weight and reservation at its place.
//!
//! **Model.** Each group keeps the sum of the weights of its members that are *active*, and of
//! their reservations. When a member becomes active or idle the sums of the groups above change,
//! which takes one step per level. A flow's effective weight is its top group's, times its part of
//! the sum on each level, so the share that an idle member leaves goes to its siblings first. The
//! weight of an idle flow is computed as if the flow were active, so that the flow has about its
//! share from its first request on.
//!
//! **Reservations.** A group's *base* is its reservation, or the sum of its active members' bases,
//! if that is more. The part of a group's reservation above the bases of its active members is
//! divided among them by weight.

use alloc::boxed::Box;

use crate::contract::bounds::boxed;
use crate::contract::flow::{FlowError, Weight};
use crate::contract::share::{Group, GroupId, Reservation};

/// Shares are kept in parts of 2^32.
const WHOLE_BITS: u32 = 32;

/// The part that an active member adds to the sums of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Part {
    weight: u64,
    rates: [u64; 2],
    count: u32,
}

impl Part {
    pub(super) fn of(weight: Weight, reservation: Reservation) -> Part {
        Part { weight: weight.in_256ths().into(), rates: reservation.rates(), count: 1 }
    }

    /// Replaces the old part with the new one.
    fn replace(&mut self, old: &Part, new: &Part) {
        self.weight = self.weight.saturating_sub(old.weight).saturating_add(new.weight);
        self.count = self.count.saturating_sub(old.count).saturating_add(new.count);
        for ((sum, old), new) in self.rates.iter_mut().zip(old.rates).zip(new.rates) {
            *sum = sum.saturating_sub(old).saturating_add(new);
        }
    }
}

/// A group in the tree.
struct Node {
    group: Group,
    /// Number of groups that it is in.
    depth: usize,
    /// Flows and groups in it.
    members: u32,
    /// Sum of the active ones.
    sum: Part,
}

impl Node {
    /// The part that it adds to the sums of the group that it is in.
    fn part(&self) -> Part {
        if self.sum.count == 0 { Part::default() } else { self.base() }
    }

    /// The part that it adds while it is active.
    fn base(&self) -> Part {
        let mut part = Part::of(self.group.weight, self.group.reservation);
        for (own, sum) in part.rates.iter_mut().zip(self.sum.rates) {
            *own = (*own).max(sum);
        }
        part
    }
}

/// A member's weight and reservation at its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Its weight beside all members that are in no group, in parts of 2^-32 of a 256th.
    weight: u64,
    /// Its reservation.
    pub(super) reservation: Reservation,
}

impl Place {
    /// Its weight times 2^`scale`, in 256ths; the scale is at most 32.
    pub(super) fn parts(self, scale: u32) -> u64 {
        let shift = WHOLE_BITS.saturating_sub(scale);
        self.weight.saturating_add(1 << shift >> 1) >> shift
    }
}

/// All groups.
pub(super) struct Tree {
    nodes: Box<[Option<Node>]>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Tree { nodes: boxed(Group::MOST, |_| None) }
    }

    fn node(&self, id: GroupId) -> Option<&Node> {
        self.nodes.get(usize::from(id.0))?.as_ref()
    }

    fn node_mut(&mut self, id: GroupId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The settings of the group.
    pub(super) fn group(&self, id: GroupId) -> Option<&Group> {
        self.node(id).map(|node| &node.group)
    }

    /// The nearest group that has caps: this one, or one that it is in.
    pub(super) fn nearest_cap(&self, mut group: Option<GroupId>) -> Option<GroupId> {
        for _ in 0..Group::LEVELS {
            let Group { parent, caps, .. } = self.group(group?)?;
            if !caps.is_empty() {
                return group;
            }
            group = *parent;
        }
        None
    }

    /// Adds the group, or changes it.
    pub(super) fn set(&mut self, id: GroupId, group: &Group) -> Result<(), FlowError> {
        if usize::from(id.0) >= self.nodes.len() {
            return Err(FlowError::ManyGroups);
        }
        // A parent was there before its groups and never changes, so there are no circles.
        let depth = match group.parent {
            None => 0,
            Some(parent) => self.node(parent).ok_or(FlowError::NoSuchGroup)?.depth + 1,
        };
        if depth >= Group::LEVELS {
            return Err(FlowError::Misplaced);
        }
        match self.node_mut(id) {
            Some(node) => {
                // A group does not move: its members' parts are in the sums of those above it.
                if node.group.parent != group.parent {
                    return Err(FlowError::Misplaced);
                }
                let before = node.part();
                node.group = *group;
                let after = node.part();
                self.shift(group.parent, before, after);
            }
            None => {
                let node = Node { group: *group, depth, members: 0, sum: Part::default() };
                if let Some(place) = self.nodes.get_mut(usize::from(id.0)) {
                    *place = Some(node);
                }
                self.join(group.parent, None);
            }
        }
        Ok(())
    }

    /// Takes the group away.
    pub(super) fn remove(&mut self, id: GroupId) -> Result<(), FlowError> {
        let node = self.node(id).ok_or(FlowError::NoSuchGroup)?;
        if node.members > 0 {
            return Err(FlowError::HasMembers);
        }
        let parent = node.group.parent;
        if let Some(place) = self.nodes.get_mut(usize::from(id.0)) {
            *place = None;
        }
        self.join(None, parent);
        Ok(())
    }

    /// Moves a member, which is idle, from one group to another.
    pub(super) fn join(&mut self, to: Option<GroupId>, from: Option<GroupId>) {
        if let Some(node) = from.and_then(|id| self.node_mut(id)) {
            node.members = node.members.saturating_sub(1);
        }
        if let Some(node) = to.and_then(|id| self.node_mut(id)) {
            node.members = node.members.saturating_add(1);
        }
    }

    /// Changes the part that a member of the group adds to it. One step a level.
    pub(super) fn shift(&mut self, group: Option<GroupId>, mut before: Part, mut after: Part) {
        let mut above = group;
        for _ in 0..Group::LEVELS {
            let Some(node) = above.and_then(|id| self.node_mut(id)) else { return };
            let part = node.part();
            node.sum.replace(&before, &after);
            (before, after) = (part, node.part());
            above = node.group.parent;
        }
    }

    /// The place of a member that adds `own` to the group while it is active. One step a level.
    pub(super) fn place(&self, group: Option<GroupId>, own: Part, is_active: bool) -> Place {
        // This loop goes from the flow up, and records the part of each level's sum.
        let (mut path, mut length) = ([(own, own); Group::LEVELS], 0);
        let mut above = group;
        let (mut child, mut child_is_active) = (own, is_active);
        for step in &mut path {
            let Some(node) = above.and_then(|id| self.node(id)) else { break };
            let mut sum = node.sum;
            if !child_is_active {
                sum.replace(&Part::default(), &child);
            }
            *step = (child, sum);
            length += 1;
            (child, child_is_active) = (node.base(), node.sum.count > 0);
            above = node.group.parent;
        }
        // The loop below goes from the top down. `child` is now the member that is in no group.
        let (mut share, mut rates) = (1u64 << WHOLE_BITS, child.rates);
        for (child, sum) in path.iter().take(length).rev() {
            let whole = sum.weight.max(1);
            share = share.saturating_mul(child.weight) / whole;
            for ((rate, base), bases) in rates.iter_mut().zip(child.rates).zip(sum.rates) {
                let extra = rate.saturating_sub(bases);
                *rate = base.saturating_add(extra.saturating_mul(child.weight) / whole);
            }
        }
        let weight = child.weight.saturating_mul(share);
        Place { weight, reservation: Reservation::of_rates(rates) }
    }

    /// The group; its weight beside all members that are in no group; its members, and those that
    /// are active.
    pub(super) fn look(&self, id: GroupId) -> Option<(Group, Place, u32, u32)> {
        let node = self.node(id)?;
        let place = self.place(node.group.parent, node.base(), node.sum.count > 0);
        Some((node.group, place, node.members, node.sum.count))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn weight(weight: u16) -> Weight {
        Weight::new(weight).unwrap()
    }

    fn group(parent: Option<u16>, of: u16, iops: u64) -> Group {
        let reservation = Reservation::new(iops, 0).unwrap();
        let parent = parent.map(GroupId);
        Group { parent, weight: weight(of), reservation, ..Group::default() }
    }

    #[test]
    fn what_a_member_leaves_goes_to_its_siblings_first() {
        let mut tree = Tree::new();
        tree.set(GroupId(0), &group(None, 300, 900)).unwrap();
        tree.set(GroupId(1), &group(Some(0), 100, 0)).unwrap();
        let own = |of, iops| Part::of(weight(of), Reservation::new(iops, 0).unwrap());
        let (a, b, c) = (own(100, 0), own(50, 0), own(50, 100));
        let has = |tree: &Tree, at, own, is_active| {
            let place = tree.place(Some(GroupId(at)), own, is_active);
            (place.parts(0) as f64 / 256.0, place.reservation.iops())
        };
        // `a` is in the upper group, `b` and `c` in the lower one.
        let idle = Part::default();
        tree.shift(Some(GroupId(0)), idle, a);
        assert_eq!(has(&tree, 0, a, true), (300.0, 900));
        assert_eq!(has(&tree, 1, b, false), (150.0, 450), "as if it were active");
        tree.shift(Some(GroupId(1)), idle, b);
        tree.shift(Some(GroupId(1)), idle, c);
        assert_eq!(has(&tree, 0, a, true), (150.0, 400));
        assert_eq!(has(&tree, 1, b, true), (75.0, 200));
        assert_eq!(has(&tree, 1, c, true), (75.0, 300), "its own and its part of the rest");
        tree.shift(Some(GroupId(1)), b, idle);
        assert_eq!(has(&tree, 1, c, true), (150.0, 500));
        tree.shift(Some(GroupId(1)), c, idle);
        assert_eq!(has(&tree, 0, a, true), (300.0, 900), "a group of idle members is idle");
        assert_eq!(tree.look(GroupId(0)).unwrap().2, 1);
    }

    #[test]
    fn what_makes_no_tree_is_refused() {
        let mut tree = Tree::new();
        let refused = |tree: &mut Tree, id, of: &Group| tree.set(GroupId(id), of).unwrap_err();
        let missing = refused(&mut tree, 1, &group(Some(0), 100, 0));
        assert_eq!(missing, FlowError::NoSuchGroup);
        assert_eq!(refused(&mut tree, 0, &group(Some(0), 1, 0)), FlowError::NoSuchGroup);
        assert_eq!(refused(&mut tree, 1024, &group(None, 1, 0)), FlowError::ManyGroups);
        for id in 0..4 {
            tree.set(GroupId(id), &group(id.checked_sub(1), 100, 0)).unwrap();
        }
        assert_eq!(refused(&mut tree, 4, &group(Some(3), 100, 0)), FlowError::Misplaced);
        assert_eq!(
            refused(&mut tree, 0, &group(Some(3), 100, 0)),
            FlowError::Misplaced,
            "a circle"
        );
        assert_eq!(tree.remove(GroupId(2)), Err(FlowError::HasMembers));
        assert_eq!(tree.remove(GroupId(3)), Ok(()));
        assert_eq!(tree.remove(GroupId(2)), Ok(()));
        assert_eq!(tree.remove(GroupId(2)), Err(FlowError::NoSuchGroup));
    }
}
