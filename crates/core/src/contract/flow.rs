//! Flows: their names, weights, caps and latency targets, and the errors of the control side.

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

    /// The name of a slot's flow: for a caller that numbers the flows of several policies together.
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

/// The reason why the control side refused.
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
    /// The policy has no D, or cannot change it, so it keeps no latency targets.
    #[error(
        "no latency targets: this policy has no D by which to hold others back; take one that has \
         (mqfq, say), or leave out latency; with d2fq, urgent=true sends its requests first"
    )]
    NoTargets,
    /// The most flows that can have a target have one already.
    #[error("64 tenants of this store have a latency target already: leave out one's latency")]
    ManyTargets,
    /// The policy was built without limits.
    #[error("no caps: this policy was built without limits")]
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

/// The requests of a flow that a cap counts. Discards and zeroing count as writes; flushes are
/// never counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Reads and writes together.
    Both,
    /// Reads.
    Reads,
    /// Writes.
    Writes,
}

/// The quantity that a cap counts of these requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Counted {
    /// Requests.
    Requests,
    /// Bytes; 512 for a discard, which moves none.
    Bytes,
}

/// The most requests or bytes that a flow may be given in a second, and above that at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap {
    per_second: u64,
    burst: u64,
}

impl Cap {
    /// The largest rate and burst: 2^40, which is a terabyte a second.
    pub const MOST: u64 = 1 << 40;

    /// A rate of 1 to [`Self::MOST`] requests or bytes a second, and a burst: the most that a flow
    /// that has had less may be given at once above that, at most [`Self::MOST`]. A single request
    /// may be larger than the burst. `None` if a number is out of range.
    pub const fn new(per_second: u64, burst: u64) -> Option<Cap> {
        let is_rate = per_second > 0 && per_second <= Self::MOST;
        if is_rate && burst <= Self::MOST { Some(Cap { per_second, burst }) } else { None }
    }

    /// Requests or bytes a second.
    pub const fn per_second(self) -> u64 {
        self.per_second
    }

    /// The burst, in requests or bytes.
    pub const fn burst(self) -> u64 {
        self.burst
    }
}

/// A flow's caps: of requests and bytes, for reads, writes and both together. Without caps the
/// policy alone limits the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caps([Option<Cap>; Self::COUNT]);

impl Caps {
    /// The most caps of a flow.
    pub(crate) const COUNT: usize = 6;

    pub(crate) const fn index(side: Side, counted: Counted) -> usize {
        side as usize * 2 + counted as usize
    }

    /// The caps with this one set, or (`None`) removed.
    #[must_use]
    pub const fn with(mut self, side: Side, counted: Counted, cap: Option<Cap>) -> Caps {
        self.0[Self::index(side, counted)] = cap;
        self
    }

    /// The cap on `counted` of `side`.
    pub const fn get(&self, side: Side, counted: Counted) -> Option<Cap> {
        self.0[Self::index(side, counted)]
    }

    /// Whether there is no cap.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// A bit for each cap, set if there is one.
    pub(crate) fn bits(&self) -> u64 {
        self.all().map(|(index, cap)| u64::from(cap.is_some()) << index).sum()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, Option<Cap>)> + '_ {
        self.0.iter().copied().enumerate()
    }
}

/// Statistics of a flow's caps since it was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CapStats {
    /// The caps.
    pub caps: Caps,
    /// Requests that had to wait for a cap.
    pub held: u64,
    /// Total time that they waited, in nanoseconds.
    pub held_ns: u64,
    /// Requests that wait for a cap now.
    pub waiting: u64,
    /// The amounts taken from them.
    pub taken: Taken,
}

/// The amount taken from each cap of a flow or group that has not come back yet, as the time at
/// which it will have come back, in a unit of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken(pub(crate) [u64; Caps::COUNT]);

impl Taken {
    /// The times, for a program that goes on with them in the same process, by the same clock.
    pub const fn to_words(self) -> [u64; Caps::COUNT] {
        self.0
    }

    /// The amounts in words of [`Taken::to_words`].
    pub const fn from_words(words: [u64; Caps::COUNT]) -> Taken {
        Taken(words)
    }
}

/// The time that a flow's requests may take, from submission to completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    latency_ns: u64,
    late_ppm: u32,
    floor_percent: u8,
}

impl Target {
    /// The longest target: an hour, in nanoseconds.
    pub const LONGEST_NS: u64 = 3_600_000_000_000;
    /// Default number of requests in a million that may take longer: the 99th percentile.
    pub const LATE_PPM: u32 = 10_000;
    /// Default part of their weighted shares that other flows keep, in percent: one half.
    pub const FLOOR_PERCENT: u8 = 50;

    /// A time of 1 ns to [`Self::LONGEST_NS`]; the number of requests in a million that may take
    /// longer, 1 to 500,000; and the part of their weighted shares that all other flows together
    /// keep, 0 to 99 %. `None` if a number is out of range.
    pub const fn new(latency_ns: u64, late_ppm: u32, floor_percent: u8) -> Option<Target> {
        let is_time = latency_ns > 0 && latency_ns <= Self::LONGEST_NS;
        let is_part = late_ppm > 0 && late_ppm <= 500_000 && floor_percent < 100;
        if is_time && is_part { Some(Target { latency_ns, late_ppm, floor_percent }) } else { None }
    }

    /// The time, in nanoseconds.
    pub const fn latency_ns(self) -> u64 {
        self.latency_ns
    }

    /// Requests in a million that may take longer.
    pub const fn late_ppm(self) -> u32 {
        self.late_ppm
    }

    /// Part of their weighted shares that all other flows together keep, in percent.
    pub const fn floor_percent(self) -> u8 {
        self.floor_percent
    }
}

/// The state of a flow's [`Target`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetStats {
    /// The target.
    pub target: Target,
    /// Whether the flow meets it.
    pub state: TargetState,
    /// Requests completed in the last whole second.
    pub completed: u64,
    /// The completed requests that took longer than the target.
    pub late: u64,
    /// Its weight.
    pub weight: Weight,
    /// The bound on D for all targets together; `None` without a bound.
    pub bound: Option<u32>,
}

/// Whether a flow meets its [`Target`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetState {
    /// It completed nothing in the last second.
    Idle,
    /// It met its target in the last second.
    Met,
    /// It missed its target, and D is being changed for it.
    Missed,
    /// It missed its target, and does so at any D: the device or the host takes longer. The target
    /// is given up and tried again.
    Device,
    /// It missed its target, because the other flows would have less than their floor.
    Floor,
    /// It missed its target, and no step is left: D is 1, or its requests wait in the policy for
    /// longer than on the device, since its weight is too small.
    Spent,
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
