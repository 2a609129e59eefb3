//! Groups of flows, and what flows and groups are to have at least: the settings of a tree.

use crate::contract::flow::{Cap, CapStats, Caps, FlowId, Weight};

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

/// The least that a flow or group has while the device can: requests or bytes a second. 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reservation {
    iops: u64,
    bytes: u64,
}

impl Reservation {
    /// None.
    pub const NONE: Reservation = Reservation { iops: 0, bytes: 0 };

    /// Requests and bytes a second, each at most [`Cap::MOST`], 0 for none; with both, the flow has
    /// at least both. `None` beyond that.
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

    /// In the order of [`Counted`](crate::Counted).
    pub(crate) const fn rates(self) -> [u64; 2] {
        [self.iops, self.bytes]
    }

    pub(crate) fn of_rates([iops, bytes]: [u64; 2]) -> Reservation {
        // A sum over a group's members may be more than one reservation can say.
        Reservation { iops: iops.min(Cap::MOST), bytes: bytes.min(Cap::MOST) }
    }
}

/// A group: what its flows and groups have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The group that it is in; it does not change while the group is there.
    pub parent: Option<GroupId>,
    /// Its share beside its siblings: the flows and groups in the same group, or in none.
    pub weight: Weight,
    /// What its flows have together at least.
    pub reservation: Reservation,
    /// What they have together at most.
    pub caps: Caps,
}

impl Group {
    /// The most groups that there can be.
    pub const MOST: usize = 1024;
    /// How many groups can be inside each other.
    pub const LEVELS: usize = 4;
}

/// Where a flow is in the tree, and what it has at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Its group; `None`: it is beside the groups that are in none.
    pub group: Option<GroupId>,
    /// What it has at least.
    pub reservation: Reservation,
}

/// What a flow's place in the tree and its reservation come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareStats {
    /// What was set.
    pub share: Share,
    /// The weight that the policy uses: its group's, divided among the members that are active.
    pub weight: Weight,
    /// Whether it has asked for something lately.
    pub is_active: bool,
    /// What is kept for it: its reservation and its part of its groups', less what the device does
    /// not have.
    pub granted: Reservation,
    /// Whether it has that.
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
    /// It asked for nothing in the last second, or has no reservation.
    #[default]
    Idle,
    /// It had it.
    Met,
    /// It had less, and asked for no more: at times it had no request waiting.
    Demand,
    /// It had less, since all reservations together are more than the device does.
    Shrunk,
    /// It had less, though it always had requests outstanding: they take too long on the device, or
    /// too few are outstanding.
    Missed,
}

/// What a group comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupStats {
    /// What was set.
    pub group: Group,
    /// Its weight beside all flows and groups that are in none.
    pub weight: Weight,
    /// Flows and groups in it.
    pub members: u32,
    /// Those of them that have asked for something lately.
    pub active: u32,
    /// What its caps have done; `None` if it never had any.
    pub caps: Option<CapStats>,
}

/// All reservations beside the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReservedStats {
    /// What the device was seen to do lately while requests waited: requests a second.
    pub requests_per_s: u64,
    /// And bytes a second.
    pub bytes_per_s: u64,
    /// What flows that are active have reserved, in millionths of that; 0 if that is not known.
    pub asked_ppm: u64,
    /// What they are granted of it, in millionths: 1,000,000 while it fits.
    pub granted_ppm: u64,
}
