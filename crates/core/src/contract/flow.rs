//! Flows: their names and weights, and the errors of the control side.

/// A flow's share relative to the others': 1 to 10,000, as in Linux cgroup v2; 100 by default.
///
/// It is kept in 256ths, so that a weight may be a product over the levels of a tree.
/// [`Self::of_256ths`] gives weights between two whole numbers, and down to a 64th.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(u32);

impl Weight {
    /// The smallest whole weight.
    pub const MIN: Weight = Weight(1 << Self::FRACTION_BITS);
    /// The largest weight.
    pub const MAX: Weight = Weight(10_000 << Self::FRACTION_BITS);
    /// The default weight of a flow: 100.
    pub const DEFAULT: Weight = Weight(100 << Self::FRACTION_BITS);
    /// The smallest weight in 256ths: a 64th. The tags of a flow of at least this weight stay in
    /// the window of virtual time ([`crate::vtime`]).
    pub const LEAST_256THS: u32 = 4;

    /// Bits after the point.
    pub(crate) const FRACTION_BITS: u32 = 8;
    /// [`Self::in_256ths`] of a whole weight of 1.
    pub(crate) const ONE: u64 = 1 << Self::FRACTION_BITS;
    /// Bits of a weight in 256ths.
    pub(crate) const BITS: u32 = Self::MAX.0.ilog2() + 1;

    /// The weight, if it is in 1..=10000.
    pub const fn new(weight: u16) -> Option<Weight> {
        Self::of_256ths((weight as u32) << Self::FRACTION_BITS)
    }

    /// The weight of this number of 256ths, if it is from a 64th to 10,000.
    pub const fn of_256ths(parts: u32) -> Option<Weight> {
        let is_legal = parts >= Self::LEAST_256THS && parts <= Self::MAX.0;
        if is_legal { Some(Weight(parts)) } else { None }
    }

    /// The weight that a word keeps in its low [`Self::BITS`].
    #[inline]
    pub(crate) const fn of_word(word: u64) -> Weight {
        Weight(word as u32 & ((1 << Self::BITS) - 1))
    }

    /// The weight in 256ths, from which shares are computed.
    #[inline]
    pub const fn in_256ths(self) -> u32 {
        self.0
    }

    /// The whole weight that is nearest, at least 1: for people to read.
    #[inline]
    pub const fn get(self) -> u16 {
        let whole = (self.0 + (1 << Self::FRACTION_BITS) / 2) >> Self::FRACTION_BITS;
        if whole == 0 { 1 } else { whole as u16 }
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// Names a flow: a dense slot, and a generation that distinguishes it from earlier flows in the
/// same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowId {
    slot: u32,
    generation: u32,
}

impl FlowId {
    /// The slot: an index below the policy's bound of flows.
    #[inline]
    pub const fn slot(self) -> usize {
        self.slot as usize
    }

    /// The same generation in another slot.
    #[inline]
    pub const fn at(self, slot: u32) -> FlowId {
        FlowId { slot, ..self }
    }

    /// The name of the flow with this slot and generation, for a caller that gives the flows of
    /// several policies numbers of its own.
    #[inline]
    pub const fn new(slot: u32, generation: u32) -> FlowId {
        FlowId { slot, generation }
    }

    /// The generation: larger than that of each earlier flow in the slot, until 2^32 flows have
    /// been there.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// The reason why the control side refused a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlowError {
    /// Every slot is taken (a removed flow's slot is taken until its last request has completed).
    #[error("all flow slots are in use")]
    Full,
    /// The slot that a flow had in another policy is taken here, or beyond the bound.
    #[error(
        "the flow's slot is not free in this policy: build the policy for as many flows as the \
         policy that it replaces"
    )]
    Taken,
    /// The flow was removed, or never added.
    #[error("no such flow: it was removed or never added")]
    NoSuchFlow,
    /// The policy never uses the urgent class, or was built without a budget for it.
    #[error("no urgent class: only d2fq has one, and only with a budget (urgent=10%, say)")]
    NotUrgent,
    /// The policy has no D, or cannot change it, so it keeps no latency targets.
    #[error(
        "no latency targets: this policy has no D by which to hold other tenants back; choose a \
         policy that has one, such as mqfq, or leave out latency; with d2fq, urgent=true sends the \
         tenant's requests first"
    )]
    NoTargets,
    /// The most flows that can have a target have one already.
    #[error("64 tenants of this store have a latency target already: remove latency from one")]
    ManyTargets,
    /// The policy was built without limits.
    #[error("no caps: this policy was built without the layer that keeps them")]
    NoCaps,
    /// The policy was built without the layer that keeps groups and reservations.
    #[error("no groups or reservations: this policy was built without the layer that keeps them")]
    NoGroups,
    /// The group or its parent was removed, or never added.
    #[error("no such group: it was removed or never added")]
    NoSuchGroup,
    /// The group's number is too large.
    #[error("there can be 1024 groups: leave out one")]
    ManyGroups,
    /// The group has flows or groups in it.
    #[error("the group has members: move or remove them first")]
    HasMembers,
    /// The group would change its parent, or be too deep.
    #[error("groups can be 4 deep, and stay in the group that they were added to")]
    Misplaced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_whole_or_in_256ths() {
        let whole = |weight| Weight::new(weight).map(Weight::in_256ths);
        assert_eq!([0, 1, 10_000, 10_001].map(whole), [None, Some(256), Some(2_560_000), None]);
        let parts = |parts| Weight::of_256ths(parts).map(Weight::get);
        assert_eq!([3, 4, 256, 383, 384].map(parts), [None, Some(1), Some(1), Some(1), Some(2)]);
        assert_eq!([2_560_000, 2_560_001].map(parts), [Some(10_000), None]);
        assert_eq!(Weight::of_word(u64::from(Weight::MAX.in_256ths())), Weight::MAX);
    }
}
