//! Limits of flows: latency targets, caps, groups, and reservations of flows and groups.
//! Layers around policies keep all of these.

use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::port::Policy;

/// The limits of flows in addition to their weights. Layers around a policy keep them; a policy
/// that was built without these layers refuses them.
pub trait Limits: Policy {
    /// Gives a flow a latency target, or takes it away, from now on.
    fn set_target(&self, _flow: FlowId, _target: Option<Target>) -> Result<(), FlowError> {
        Err(FlowError::NoTargets)
    }

    /// The state of a flow's latency target; `None` without one.
    fn target(&self, _flow: FlowId) -> Option<TargetStats> {
        None
    }

    /// Replaces a flow's caps. Requests that wait for a cap are checked against the new caps within
    /// a tenth of a second.
    fn set_caps(&self, _flow: FlowId, _caps: &Caps) -> Result<(), FlowError> {
        Err(FlowError::NoCaps)
    }

    /// Takes over the state of a flow's or group's caps from the policy that this one replaces. A
    /// cap that is the same here keeps the amount taken from it, and the counts go on. Called
    /// before this policy has any request.
    fn resume_caps(&self, _of: CapsOf, _before: &CapStats) {}

    /// Statistics of a flow's caps; `None` if it never had any.
    fn caps(&self, _flow: FlowId) -> Option<CapStats> {
        None
    }

    /// Adds a group, changes it, or (`None`) removes it. Its parent must exist and does not change.
    fn set_group(&self, _id: GroupId, _group: Option<&Group>) -> Result<(), FlowError> {
        Err(FlowError::NoGroups)
    }

    /// The state of a group; `None` if there is none.
    fn group(&self, _id: GroupId) -> Option<GroupStats> {
        None
    }

    /// Replaces a flow's group and reservation.
    fn set_share(&self, _flow: FlowId, _share: &Share) -> Result<(), FlowError> {
        Err(FlowError::NoGroups)
    }

    /// The state of a flow's group and reservation; `None` while no flow has any.
    fn share(&self, _flow: FlowId) -> Option<ShareStats> {
        None
    }
}

/// Names a group: a number that the caller chooses, below [`Group::MOST`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u16);

/// A flow or a group, as the owner of caps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapsOf {
    /// A flow.
    Flow(FlowId),
    /// A group.
    Group(GroupId),
}

/// The least that a flow or group gets while the device can serve it, in requests or bytes a
/// second. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reservation {
    iops: u64,
    bytes: u64,
}

impl Reservation {
    /// None.
    pub const NONE: Reservation = Reservation { iops: 0, bytes: 0 };

    /// A reservation of requests and of bytes a second, each at most [`Cap::MOST`]; 0 reserves
    /// none. If both are set, the flow gets at least both. `None` if a number is larger.
    pub const fn new(iops: u64, bytes: u64) -> Option<Reservation> {
        if iops <= Cap::MOST && bytes <= Cap::MOST {
            Some(Reservation { iops, bytes })
        } else {
            None
        }
    }

    /// Requests a second, or 0.
    pub const fn iops(self) -> u64 {
        self.iops
    }

    /// Bytes a second, or 0.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether there is none.
    pub const fn is_none(self) -> bool {
        self.iops == 0 && self.bytes == 0
    }

    /// In the order of [`Counted`].
    pub(crate) const fn rates(self) -> [u64; 2] {
        [self.iops, self.bytes]
    }

    /// A bit for each rate that is set.
    pub(crate) const fn kinds(self) -> u8 {
        (self.iops > 0) as u8 | ((self.bytes > 0) as u8) << 1
    }

    pub(crate) fn of_rates([iops, bytes]: [u64; 2]) -> Reservation {
        // A sum over a group's members may exceed the largest reservation.
        Reservation { iops: iops.min(Cap::MOST), bytes: bytes.min(Cap::MOST) }
    }
}

/// A group: the weight, the reservation and the caps that its flows and groups share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The group that it is in; it does not change while the group exists.
    pub parent: Option<GroupId>,
    /// Its share relative to its siblings: the flows and groups in the same group, or in no group.
    pub weight: Weight,
    /// The least that its flows get together.
    pub reservation: Reservation,
    /// The most that its flows get together.
    pub caps: Caps,
}

impl Group {
    /// The most groups that there can be.
    pub const MOST: usize = 1024;
    /// The most groups that can be inside each other.
    pub const LEVELS: usize = 4;
}

/// The place of a flow in the tree, and its reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Its group; `None`: it is in no group, and a sibling of the groups that are in no group.
    pub group: Option<GroupId>,
    /// The least that it gets.
    pub reservation: Reservation,
}

/// The state of a flow's place in the tree and of its reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareStats {
    /// The settings.
    pub share: Share,
    /// The weight that the policy uses: its group's, divided among the members that are active.
    pub weight: Weight,
    /// Whether it has had requests lately.
    pub is_active: bool,
    /// The reservation that it is granted: its own and its part of its groups', reduced if the
    /// device cannot serve all reservations.
    pub granted: Reservation,
    /// Whether it gets the granted reservation.
    pub state: ReservationState,
    /// Requests completed in the last whole second, and their bytes; 0 without a reservation.
    pub requests: u64,
    /// See [`Self::requests`].
    pub bytes: u64,
    /// Requests that went before all others for the reservation, since the flow was added.
    pub ahead: u64,
}

/// Whether a flow has its reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReservationState {
    /// It had no requests in the last second, or has no reservation.
    #[default]
    Idle,
    /// It had its reservation.
    Met,
    /// It had less because it demanded less: at times it had no request waiting.
    Demand,
    /// It had less because all reservations together are more than the device can serve.
    Shrunk,
    /// It had less, though it always had requests outstanding: they take too long on the device, or
    /// too few are outstanding.
    Missed,
}

/// The state of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupStats {
    /// The settings.
    pub group: Group,
    /// Its weight relative to all flows and groups that are in no group.
    pub weight: Weight,
    /// Flows and groups in it.
    pub members: u32,
    /// The members that have had requests lately.
    pub active: u32,
    /// Statistics of its caps; `None` if it never had any.
    pub caps: Option<CapStats>,
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

/// A limit of a flow's service: a rate in requests or bytes a second, and a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cap {
    per_second: u64,
    burst: u64,
}

impl Cap {
    /// The largest rate and burst: 2^40, which is a terabyte a second.
    pub const MOST: u64 = 1 << 40;

    /// A rate of 1 to [`Self::MOST`] requests or bytes a second, and a burst of at most
    /// [`Self::MOST`]: the amount above the rate that a flow may be given at once after it was
    /// given less than the rate. A single request may be larger than the burst. `None` if a number
    /// is out of range.
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

/// The amount that each cap of a flow or group lacks, expressed as the time at which the cap will
/// be full again, in a unit of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken(pub(crate) [u64; Caps::COUNT]);

impl Taken {
    /// The times as words, for a process that takes over the caps and reads the same clock.
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
    /// It missed its target, and a smaller D would leave the other flows less than their floor.
    Floor,
    /// It missed its target, and no step is left: D is 1, or its requests wait in the policy for
    /// longer than on the device, since its weight is too small.
    Spent,
}
