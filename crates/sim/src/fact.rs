//! Facts: what a run tells to whoever checks it.

use fairq_core::Outcome;

/// A request. `(port, tag)` names it while it is live.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// The port that it was submitted to.
    pub port: usize,
    /// The port's name for it.
    pub tag: u32,
    /// Whose it is: flows are numbered in the order in which they came.
    pub flow: usize,
    /// Its length, in bytes.
    pub bytes: u32,
    /// What it costs, in bytes.
    pub cost: u64,
    /// The flow's weight when it was submitted.
    pub weight: u16,
    /// When it was submitted.
    pub submitted_ns: u64,
    /// Whether it was issued as part of one command with the next one of its port.
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

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// A flow is there.
    Added {
        /// Its number.
        flow: usize,
        /// Its weight.
        weight: u16,
    },
    /// A flow has another weight.
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
    /// A port said that it has nothing to do.
    SaidIdle {
        /// Which.
        port: usize,
    },
    /// All that this moment asks for has been done.
    Settled(Moment),
}

/// How things are at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Wake-ups on their way.
    pub wakes_under_way: usize,
    /// Requests that the policy holds.
    pub staged: usize,
    /// Requests issued and not completed.
    pub outstanding: usize,
    /// Of those, the ones that the device has not fetched.
    pub unfetched: usize,
    /// How many more requests the device could work on.
    pub idle_slots: u32,
    /// The policy's, if it has one.
    pub virtual_time: Option<u64>,
}
