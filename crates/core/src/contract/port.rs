//! The scheduling contract: the verbs of a port. Time is always an argument.
//!
//! A **flow** is one tenant's stream of requests. A **port** is one shard's exclusive handle into a
//! policy: only its shard accesses the data of a port, and all shared data are
//! [atomics](crate::Platform).
//!
//! ```text
//!   request ── submit ──▶ Issue{class} ───────────────▶ device     (direct policies: submit = dispatch)
//!                    └──▶ Staged ── next ──▶ Issue{tag, class} ──▶ device
//!                                       ├──▶ Join{tag}             part of the command that the next Issue completes
//!                                       ├──▶ WaitUntil(time)       call again then
//!                                       ├──▶ Blocked               another verb will wake this port
//!                                       └──▶ Idle                  nothing staged here
//!   completion ── complete ──▶ charges the flow, frees the slot
//!
//!   staged ── cancel ───▶ gone, not charged
//!   staged ── grow ─────▶ staged, longer, charged for both
//!   staged ── expedite ─▶ on the device, not charged
//!   issued ── requeue ──▶ staged again (direct policies: Issue again), charged once in all
//! ```
//!
//! # Duties of the caller
//! - Whenever it has submitted, cancelled, requeued or completed a request, or was woken, it calls
//!   `next` until that gives neither `Issue` nor `Join`.
//! - After a `Join` it calls `next` again at once. It makes one command of the requests that `next`
//!   gave as `Join` and of the one that `next` then gives as `Issue`: they are adjacent, in this
//!   order, and have the same operation.
//! - Each verb adds to `wake` the ports that it unblocked. The caller ensures that `next` is called
//!   soon on each of them, its own port included. A wake-up that is never delivered stalls the
//!   device.
//! - A [`Tag`] names one live request of one port, below the bound given when the policy was built;
//!   it is free again after `complete` or `cancel`. Every issued tag is completed or requeued
//!   exactly once, failed or not.
//! - `now_ns` is any monotonic clock, in nanoseconds, the same for all ports.
//! - [`Policy::tick`] is called at the deadline it returns, by any one thread.
//!
//! # Guarantees of the policy
//! - Each staged tag is issued exactly once, by the port it was submitted to.
//! - The verbs do not allocate and do not panic. A request that cannot be taken is refused with a
//!   [`SubmitError`] and leaves no trace: no flow is charged for it. A completion of a tag that is
//!   not issued is ignored.
//! - A port adds itself to `wake` if a verb stopped at its bound of work and left some work undone.
//!
//! # Stages
//! A port may surround another one and change some of its verbs ([`crate::managed`]). No verb has a
//! default body, so that a port that omits one does not compile.

use crate::contract::bounds::ConfigError;
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::port_set::PortSet;

/// Names one live request of one port: an index below the policy's bound of tags per port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u32);

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads `length` bytes at `offset`.
    Read,
    /// Writes `length` bytes at `offset`.
    Write,
    /// Puts completed writes on stable storage.
    Flush,
    /// Reports to the device that the range is no longer needed; also any other change of the
    /// device's map alone, such as zeroing without a write.
    Discard,
    /// Makes the range read as zeroes; it is assumed that the device writes them.
    WriteZeroes,
}

/// The cost of a request to its flow, in equivalent bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Cost as a command of its own, at least 1.
    pub alone: u64,
    /// Cost that it adds to a command that it is [joined](crate::Next::Join) to: the base cost of a
    /// command is charged once.
    pub joined: u64,
}

impl Cost {
    /// The most that a request costs, whatever its length: 2^42 bytes, a thousand times 4 GiB.
    pub const MAX: u64 = 1 << 42;

    /// The cost of this number of bytes, alone or joined.
    pub const fn bytes(bytes: u64) -> Cost {
        Cost { alone: bytes, joined: bytes }
    }
}

/// One request as the scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its number on the port.
    pub tag: Tag,
    /// The flow that is charged.
    pub flow: FlowId,
    /// Its operation.
    pub op: Op,
    /// Its start, in bytes from the start of the device.
    pub offset: u64,
    /// Its length, in bytes.
    pub length: u32,
    /// Its cost to its flow. For the policies of the registry, [`crate::cost`] replaces it; a
    /// policy without that stage charges this value.
    pub cost: Cost,
}

/// The NVMe queue class that a request goes to; a device without classes ignores it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Before all weighted classes.
    Urgent,
    /// Weighted, high.
    High,
    /// Weighted, medium; the class of all requests of policies that do not use classes.
    Medium,
    /// Weighted, low.
    Low,
}

/// Commands that each weighted class of a device may start per round of its weighted round robin
/// (NVMe 2.1, 3.4.4.2), 1 to 256 each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClassWeights {
    /// Commands of [`Class::High`].
    pub high: u16,
    /// Commands of [`Class::Medium`].
    pub medium: u16,
    /// Commands of [`Class::Low`].
    pub low: u16,
}

/// The result of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// Send it to the device now.
    Issue {
        /// The class to send it to.
        class: Class,
    },
    /// The policy holds it; `next` will give it.
    Staged,
}

/// The next step of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send this staged request to the device now.
    Issue {
        /// The request.
        tag: Tag,
        /// The class to send it to.
        class: Class,
    },
    /// This staged request is part of one command with the requests that the next calls give, up to
    /// the next `Issue`.
    Join {
        /// The request.
        tag: Tag,
    },
    /// Requests are staged; call again at this time (nanoseconds), or when woken.
    WaitUntil(u64),
    /// Requests are staged; another verb on some port will wake this one.
    Blocked,
    /// Nothing is staged on this port.
    Idle,
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was served.
    Done,
    /// The device gave an error. It used the device all the same and is charged.
    Failed,
}

/// The reason why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The flow was removed, or never added.
    #[error("no such flow: it was removed or never added")]
    NoSuchFlow,
    /// The tag is not below the bound, or still in use.
    #[error("tag out of range or still in use")]
    BadTag,
    /// The flow has its part of the port's tags in use; only [`Port::admit`] gives this error.
    #[error("the flow has its part of the port's tags in use: complete some of its requests first")]
    Full,
}

/// The growth of a staged request, into which the caller has merged another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The operation of the request.
    pub op: Op,
    /// Start of the added part, in bytes: the end of the request, or `length` before its start.
    pub offset: u64,
    /// The added part's length, in bytes.
    pub length: u32,
    /// Addition to the request's cost, in equivalent bytes; computed like the costs of requests.
    pub cost: u64,
}

/// The state of one flow on one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FlowStats {
    /// Requests that the port holds and has not issued.
    pub staged: u32,
    /// Requests that the port has issued and that have not completed.
    pub in_flight: u32,
    /// Units by which the flow's first staged request here is ahead of virtual time; `None` without
    /// a staged request, or for a policy without virtual time.
    pub lag: Option<u64>,
    /// Cost of the flow's requests that the port has issued, in equivalent bytes. Requests that
    /// went ahead for a [reservation](crate::Limits::set_share) are not charged and not counted. A
    /// port keeps the sum while the flow has requests there and for some time after; the sum begins
    /// at 0 again if the flow comes back later. `None` for a policy that charges nothing.
    pub service: Option<u64>,
    /// The flow's tokens on the port, in bytes, negative for a debt; `None` for a policy without
    /// tokens.
    pub tokens: Option<i64>,
}

/// One shard's exclusive handle into a policy. See the [module's text](self) for the duties of each
/// side.
pub trait Port: Send {
    /// Whether submit is dispatch: `submit` never returns [`Submitted::Staged`], and `next` gives
    /// no request, except for flows that have [caps](crate::Limits::set_caps).
    const IS_DIRECT: bool = false;

    /// Takes a request.
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError>;

    /// Gives the next step of this port.
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next;

    /// Takes an issued request off the port when the device has completed it. `false`: it was not
    /// issued, and nothing has changed.
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool;

    /// Whether the flow may stage another request here, so that a caller can push back before it
    /// has built one. [`Port::submit`] does not check this.
    ///
    /// The port's tags are divided equally among the flows that have requests here and one flow
    /// more. A flow may have as many requests here as its part has tags, and at least one. So no
    /// flow takes all tags; a flow that is alone may have half of them.
    fn admit(&self, flow: FlowId) -> Result<(), SubmitError>;

    /// Takes a staged request back: it is gone, its tag is free, and neither its flow nor a cap is
    /// charged for it, unless it was issued before and [requeued](Port::requeue), or a policy
    /// behind one lock has chosen it already. `false`: it is not staged here, or the policy has
    /// [merged](crate::serial::merge) it with others, with which it is issued.
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;

    /// Sends a staged or [held](Port::hold) request to the device now, before all others and in
    /// addition to D. Its flow is not charged for it, as if it had been [cancelled](Port::cancel),
    /// and no cap holds it; it counts as the flow's and as issued until it is completed. `false`:
    /// it cannot be cancelled, and nothing has changed.
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;

    /// Registers a request that waits in a layer in front of the policy, under a free tag. Until it
    /// is submitted, [expedited](Port::expedite) or [cancelled](Port::cancel), its tag is in use
    /// and its flow's slot does not become free. It is refused for the same reasons as a
    /// submission.
    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError>;

    /// Takes back an issued request that the device has not begun. It keeps its slot, and its flow
    /// is charged for it only once. `next` of a staged policy gives it before all others. The
    /// result is that of [`Port::submit`]; a request that was [expedited](Port::expedite) is to be
    /// issued again at once. `None`: it was not issued, or was issued as one command with others.
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted>;

    /// Records that a staged request has grown, because the caller has merged another one into it.
    /// The caller then [cancels](Port::cancel) the other one if it was staged. `false`: the request
    /// is not staged here, or the policy merges by itself, and nothing has changed.
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool;

    /// Whether `next` may give a request; changes nothing. `false`: `next` would give none now, and
    /// any event that changes that wakes this port or is a call of one of its verbs.
    fn has_work(&self) -> bool;

    /// The first of the flow's requests that are staged here. A caller that removes a flow and
    /// [cancels](Port::cancel) its staged requests calls this until there is none.
    fn staged(&self, flow: FlowId) -> Option<Tag>;

    /// The state of the flow on this port. Reads only the port's own memory.
    fn flow_stats(&self, flow: FlowId) -> FlowStats;

    /// From now on no request of the flow that is submitted to this port is [joined](Next::Join)
    /// with an earlier one. A request that is neither a read nor a write is always such a barrier.
    /// Requests of different ports are never joined.
    fn barrier(&mut self, flow: FlowId);

    /// The numbers behind the port's last decision: about this live request, or, for `None`, that
    /// the port may issue no request. Called only while decisions are recorded.
    fn reason(&self, tag: Option<Tag>) -> Reason;
}

/// The numbers behind a decision, in units ([`crate::contract::vtime`]); `None` is a number that
/// the policy does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reason {
    /// Virtual time that the port used.
    pub virtual_time: Option<u64>,
    /// Start tag of the request, or its flow's virtual time in a policy without start tags. Without
    /// a request, the start tag of the request that would be next.
    pub start_tag: Option<u64>,
    /// Free slots of the device.
    pub free_slots: Option<u32>,
    /// The reason why no request may be issued.
    pub held: Option<Held>,
    /// Whether the request went before all others because its flow had less than its reservation.
    pub is_reserved: bool,
}

/// The reason why no staged request may be issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// The next one is too far ahead of virtual time.
    Ahead,
    /// No slot of the device is free.
    NoSlot,
    /// All slots that the latency targets leave are in use.
    Target,
    /// A cap of its flow is used up.
    Cap,
    /// A cap of its flow's group, or of a group around that, is used up.
    GroupCap,
    /// No slot of the device is free, and the device is at work on requests that went before all
    /// others for reservations of other flows.
    Reserved,
}

/// A parameter of a policy that may be changed while requests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuning {
    /// D, the most requests outstanding on the device. When it becomes less, the policy waits until
    /// the requests beyond it have completed.
    Slots(u32),
    /// T, the most that a flow may run ahead of virtual time, in bytes at the [reference
    /// weight](crate::ReferenceWeight).
    Threshold(u64),
    /// D is searched for while requests run, as [`crate::depth`] says.
    AutoSlots,
    /// T is at least this, and larger if the device and the ports need it.
    FollowingThreshold(u64),
}

/// The reason why a parameter was not changed; the old value stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TuneError {
    /// The policy does not have the parameter, or has built its structures for the old value.
    #[error("this policy cannot change it while it runs")]
    Fixed,
    /// The value is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The control side of a policy, shared by all threads.
pub trait Policy: Send + Sync + 'static {
    /// The handle of each shard. All other items can be used through `dyn Policy`.
    type Port: Port
    where
        Self: Sized;

    /// Adds a flow.
    fn add_flow(&self, weight: Weight) -> Result<FlowId, FlowError> {
        self.add_flow_as(None, weight)
    }

    /// Adds a flow under the name that it had in the policy that this one replaces, or, without a
    /// name, as [`add_flow`](Self::add_flow) does. The caller adds known flows before all others. A
    /// policy allocates the memory for all its flows when it is built, and none here.
    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError>;

    /// Changes a flow's weight, for requests submitted from now on.
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError>;

    /// Sets whether a flow may use [`Class::Urgent`], within the policy's budget for it.
    fn set_urgent(&self, _flow: FlowId, _urgent: bool) -> Result<(), FlowError> {
        Err(FlowError::NotUrgent)
    }

    /// Changes the weights of several flows at once, as [`set_weight`](Self::set_weight) does. It
    /// is for layers that compute weights and change them often. Unlike a change by an operator, it
    /// does not restart measurements of the flows. Removed flows are left out.
    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        for &(flow, weight) in weights {
            // A removed flow has no weight to change.
            let _ = self.set_weight(flow, weight);
        }
    }

    /// Changes a parameter, for requests dispatched from now on. The caller wakes the ports added
    /// to `wake`.
    fn tune(&self, _tuning: Tuning, _wake: &mut PortSet) -> Result<(), TuneError> {
        Err(TuneError::Fixed)
    }

    /// Removes a flow. Its requests that are staged or in flight are still served; new ones are
    /// refused. Its slot is free again when all ports have seen the removal and completed its
    /// requests: the caller wakes the ports returned.
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError>;

    /// Does periodic work and returns the time of the next tick in nanoseconds, if there is one.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64>;

    /// The present weights of the device's classes, for a policy that schedules by classes and so
    /// needs a device that has them. The caller reads them when the policy is built and after each
    /// [`tick`](Self::tick), and sets them on the device.
    fn class_weights(&self) -> Option<ClassWeights> {
        None
    }

    /// The policy's state in numbers.
    fn stats(&self) -> Stats;
}

/// The state of a policy; counters since the start, over all ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Virtual time in units ([`crate::contract::vtime`]); `None` for a policy without virtual
    /// time.
    pub virtual_time: Option<u64>,
    /// Units by which the foremost of the ports' first requests, or of the active flows, is ahead
    /// of virtual time; `None` for a policy that does not report it.
    pub spread: Option<u64>,
    /// The most requests that may be outstanding on the device; `None` if unbounded.
    pub slots: Option<u64>,
    /// Slots not in use now.
    pub free_slots: Option<u64>,
    /// Times a port stopped because its first request was too far ahead of virtual time.
    pub throttles: u64,
    /// Times a port stopped for want of a slot.
    pub blocks: u64,
    /// Wake-ups given to other ports.
    pub wakes: u64,
    /// `None` for a policy that hands out no tokens.
    pub tokens: Option<TokenStats>,
    /// `None` if the operator has set D.
    pub depth: Option<DepthStats>,
    /// `None` if costs do not follow the device.
    pub cost: Option<CostStats>,
    /// `None` if no flow or group has a reservation.
    pub reserved: Option<ReservedStats>,
}

/// The costs of requests by the device's time ([`crate::cost`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostStats {
    /// Cost of a request without its bytes, in equivalent bytes: of a random read, a sequential
    /// read, a random write, a sequential write.
    pub bases: [u64; 4],
    /// Cost of a KiB, in equivalent bytes: of one read, and of one written.
    pub per_kib: [u64; 2],
    /// Windows of time in which costs were measured, since the start; 0: nothing is known yet.
    pub windows: u64,
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
    /// Part of its reservation that each active flow is granted, in millionths: 1,000,000 while all
    /// fit.
    pub granted_ppm: u64,
}

impl Stats {
    /// The most requests that may be outstanding on the device, as set or as found by a search;
    /// `None` if unbounded, or while a search runs.
    #[must_use]
    pub fn known_slots(&self) -> Option<u64> {
        match self.depth {
            Some(DepthStats { state: DepthState::Searching, .. }) => None,
            Some(depth) => Some(depth.slots.into()),
            None => self.slots,
        }
    }
}

/// A search for D ([`crate::depth`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthStats {
    /// The least D that is assumed to fill the device; the largest D while one flow is alone.
    pub slots: u32,
    /// The reason for this D.
    pub state: DepthState,
    /// Recent rate of the device with this D, in requests a second.
    pub requests_per_s: u64,
    /// The same in bytes a second.
    pub bytes_per_s: u64,
}

/// The reason for the present D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DepthState {
    /// Values are being tried, because the load is new.
    Searching,
    /// A smaller D would lower the service a second by more than 1.5 %.
    Found,
    /// All requests are on the device and do not fill it, or the load is light.
    AllDemand,
    /// Only one flow has requests: there is no other flow to protect.
    Alone,
}

/// The state of a policy's tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenStats {
    /// Periods begun.
    pub periods: u64,
    /// Tokens of the current period for all flows together; one token pays for one byte of a read.
    pub tokens: u64,
    /// Cost of writes, in hundredths of their bytes.
    pub write_percent: u64,
}
