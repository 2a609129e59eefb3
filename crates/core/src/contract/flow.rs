//! Flows: their names, their weights, and why the control side refuses one.

/// A flow's share relative to the others': 1 to 10,000, as in Linux cgroup v2; 100 by default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(u16);

impl Weight {
    /// The smallest weight.
    pub const MIN: Weight = Weight(1);
    /// The largest weight.
    pub const MAX: Weight = Weight(10_000);
    /// The weight of a flow of which nothing is said.
    pub const DEFAULT: Weight = Weight(100);

    /// The weight, if it is in 1..=10000.
    pub const fn new(weight: u16) -> Option<Weight> {
        if weight >= Self::MIN.0 && weight <= Self::MAX.0 { Some(Weight(weight)) } else { None }
    }

    /// The weight that a control word keeps.
    #[inline]
    pub(crate) const fn of_word(bits: u16) -> Weight {
        Weight(bits)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::DEFAULT
    }
}

/// Names a flow: a dense slot, and a generation that tells it from earlier flows in the same slot.
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

    /// The same generation in another slot: for a caller that numbers the flows of several
    /// policies together.
    #[inline]
    pub const fn at(self, slot: u32) -> FlowId {
        FlowId { slot, ..self }
    }

    /// The name of a slot's flow.
    pub(crate) const fn new(slot: u32, generation: u32) -> FlowId {
        FlowId { slot, generation }
    }

    /// The generation.
    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        self.generation
    }
}

/// Why the control side refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlowError {
    /// Every slot is taken (a removed flow's slot is taken until its last request has completed).
    #[error("all flow slots are in use")]
    Full,
    /// The slot that a flow had in another policy is taken here, or beyond the bound.
    #[error(
        "the flow's slot is not free in this policy: build it for as many flows as the one before \
         it"
    )]
    Taken,
    /// The flow was removed, or never was.
    #[error("no such flow: it was removed or never added")]
    NoSuchFlow,
    /// The policy never uses the urgent class, or was built without a budget for it.
    #[error("no urgent class: only d2fq has one, and only with a budget (urgent=10%, say)")]
    NotUrgent,
}
