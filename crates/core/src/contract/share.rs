//! Groups of flows, and reservations of flows and groups: the settings of a tree.

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

    /// The rates that there are, a bit each.
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
    /// Its share relative to its siblings: the flows and groups in the same group, or in none.
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
    /// Its group; `None`: it is a sibling of the groups that are in none.
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
    /// Its weight relative to all flows and groups that are in none.
    pub weight: Weight,
    /// Flows and groups in it.
    pub members: u32,
    /// The members that have had requests lately.
    pub active: u32,
    /// Statistics of its caps; `None` if it never had any.
    pub caps: Option<CapStats>,
}

/// All reservations, compared with the device's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReservedStats {
    /// Recent rate of the device while requests waited, in requests a second.
    pub requests_per_s: u64,
    /// The same in bytes a second.
    pub bytes_per_s: u64,
    /// Reservations of active flows, in millionths of that rate; 0 if the rate is not known.
    pub asked_ppm: u64,
    /// Part of its reservation that each of them is granted, in millionths: 1,000,000 while all
    /// fit.
    pub granted_ppm: u64,
}
