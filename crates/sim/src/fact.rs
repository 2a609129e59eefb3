//! Facts: the events of a run that its checks receive.

use fairq_core::Outcome;

/// A request. `(port, tag)` names it while it is live.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The port to which it was submitted.
    pub port: usize,
    /// Its tag, unique on its port while the request is live.
    pub tag: u32,
    /// Its flow: flows are numbered in the order in which they were added.
    pub flow: usize,
    /// Its length, in bytes.
    pub bytes: u32,
    /// Its cost, in bytes of service.
    pub cost: u64,
    /// The flow's weight when it was submitted.
    pub weight: u16,
    /// Time of submission.
    pub submitted_ns: u64,
    /// Whether it was issued in one command with the next issued request of its port.
    pub joined: bool,
}

/// Fixed-point scale of [`Live::service`].
pub const ONE_UNIT: i128 = 1 << 32;

impl Live {
    /// Its service per weight: in units of virtual time, times [`ONE_UNIT`], exact to 2^-32 of a
    /// unit.
    pub fn service(&self) -> i128 {
        i128::from(self.cost) * 100 * ONE_UNIT / i128::from(self.weight)
    }
}

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// A flow was added.
    Added {
        /// Its number.
        flow: usize,
        /// Its weight.
        weight: u16,
    },
    /// A flow's weight was changed.
    Weighed {
        /// Its number.
        flow: usize,
        /// Its new weight.
        weight: u16,
    },
    /// A flow was removed; it may still have requests live.
    Removed {
        /// Its number.
        flow: usize,
    },
    /// The policy took a request.
    Submitted(Live),
    /// The policy sent a request to the device.
    Issued(Live),
    /// The device has fetched a request.
    Fetched(Live),
    /// The device has completed a request.
    Completed(Live, Outcome),
    /// A port's `next` returned `Idle`.
    SaidIdle {
        /// Its number.
        port: usize,
    },
    /// All events of this moment are done.
    Settled(Moment),
}

/// The state at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Wake-ups under way.
    pub wakes_under_way: usize,
    /// Requests that the policy holds.
    pub staged: usize,
    /// Requests issued and not completed.
    pub outstanding: usize,
    /// Outstanding requests that the device has not fetched.
    pub unfetched: usize,
    /// Number of further requests that the device could work on.
    pub idle_slots: u32,
    /// The policy's virtual time, if it has one.
    pub virtual_time: Option<u64>,
}
