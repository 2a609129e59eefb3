//! The scheduling contract: verbs on a port, time always an argument.
//!
//! A **flow** is one tenant's stream of requests. A **port** is one shard's exclusive handle into a
//! policy: everything a port owns is touched by its shard alone, everything shared is
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
//! # What the caller owes
//! - It calls `next` until it gives neither `Issue` nor `Join` whenever it has submitted,
//!   cancelled, requeued or completed a request, or was woken.
//! - It makes one command of the requests that `next` gave as `Join` and of the one that it then
//!   gives as `Issue`: they lie one after the other, in this order, and do the same. It calls
//!   `next` again at once after a `Join`.
//! - Each verb adds to `wake` the ports that it unblocked. The caller sees to it that `next` is
//!   called on each of them soon, its own port included. A wake-up that is never delivered stalls
//!   the device.
//! - A [`Tag`] names one live request of one port, below the bound given when the policy was built;
//!   it is free again after `complete` or `cancel`. Every issued tag is completed or requeued
//!   exactly once, failed or not.
//! - `now_ns` is any monotonic clock, in nanoseconds, the same for all ports.
//! - [`Policy::tick`] is called at the deadline it returns, by any one thread.
//!
//! # What the policy gives
//! - Each staged tag is issued exactly once, by the port it was submitted to.
//! - The verbs do not allocate and do not panic. A request that cannot be taken is refused with a
//!   [`SubmitError`] and leaves no trace: nothing pays for it. A completion of a tag that is not
//!   issued is ignored.
//! - A port adds itself to `wake` where a verb has come to its bound before its work was done.
//!
//! # Layers
//! A port may be around another one, and change some of its verbs. So that none is lost, no verb
//! has a body by default: a port that omits one does not compile.

use crate::contract::bounds::ConfigError;
use crate::contract::cost::{Cost, CostModel};
use crate::contract::flow::{CapStats, Caps, FlowError, FlowId, Target, TargetStats, Weight};
pub use crate::contract::op::Op;
use crate::contract::port_set::PortSet;
use crate::contract::share::{
    CapsOf, Group, GroupId, GroupStats, ReservedStats, Share, ShareStats,
};

/// Names one live request of one port: an index below the policy's bound of tags per port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u32);

/// One request as the scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The port's name for it.
    pub tag: Tag,
    /// The flow that is charged.
    pub flow: FlowId,
    /// What it does.
    pub op: Op,
    /// Where, in bytes from the device's start.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u32,
    /// What it costs its flow. The policies of the registry stand behind a layer that computes it
    /// (`cost::Costs`); policies that are built without that charge what is said here.
    pub cost: Cost,
}

impl Request {
    /// A request that costs its bytes, as [`CostModel::default`] counts them.
    #[inline]
    pub fn new(tag: Tag, flow: FlowId, op: Op, offset: u64, length: u32) -> Request {
        let cost = CostModel::default().charge(op, length);
        Request { tag, flow, op, offset, length, cost }
    }
}

/// The NVMe queue class that a request goes to; a device without classes ignores it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Before all weighted classes.
    Urgent,
    /// Weighted, high.
    High,
    /// Weighted, medium; what policies that do not use classes give.
    Medium,
    /// Weighted, low.
    Low,
}

/// How many commands each weighted class of a device may start per round of its weighted round
/// robin (NVMe 2.1, 3.4.4.2), 1 to 256 each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClassWeights {
    /// Of [`Class::High`].
    pub high: u16,
    /// Of [`Class::Medium`].
    pub medium: u16,
    /// Of [`Class::Low`].
    pub low: u16,
}

/// What became of a submitted request.
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

/// What a port may do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Send this staged request to the device now.
    Issue {
        /// The request.
        tag: Tag,
        /// The class to send it to.
        class: Class,
    },
    /// This staged request is part of one command with what `next` gives now, up to the next
    /// `Issue`.
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

/// A [`Next`] in two registers. A call gives a [`Next`] in memory, and its caller keeps it there.
/// A layer gives its rare answers as this, so that the frequent ones stay in registers.
#[derive(Clone, Copy)]
pub(crate) struct Answer(u64, u64);

impl From<Next> for Answer {
    #[inline(always)]
    fn from(next: Next) -> Self {
        match next {
            Next::Issue { tag, class } => Answer(class as u64, tag.0.into()),
            Next::Join { tag } => Answer(4, tag.0.into()),
            Next::WaitUntil(at_ns) => Answer(5, at_ns),
            Next::Blocked => Answer(6, 0),
            Next::Idle => Answer(7, 0),
        }
    }
}

impl From<Answer> for Next {
    #[inline(always)]
    fn from(Answer(kind, number): Answer) -> Self {
        let issue = |class| Next::Issue { tag: Tag(number as u32), class };
        match kind {
            0 => issue(Class::Urgent),
            1 => issue(Class::High),
            2 => issue(Class::Medium),
            3 => issue(Class::Low),
            4 => Next::Join { tag: Tag(number as u32) },
            5 => Next::WaitUntil(number),
            6 => Next::Blocked,
            _ => Next::Idle,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was served.
    Done,
    /// The device gave an error. It used the device all the same and is charged.
    Failed,
}

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The flow was removed, or never was.
    #[error("no such flow: it was removed or never added")]
    NoSuchFlow,
    /// The tag is not below the bound, or still in use.
    #[error("tag out of range or still in use")]
    BadTag,
    /// The flow has its part of the port's tags in use; only [`Port::admit`] says this.
    #[error("the flow has its part of the port's tags in use: complete some of its requests first")]
    Full,
}

/// What a staged request grows by: its caller has merged another into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// What the request does.
    pub op: Op,
    /// Where the added part begins, in bytes: where the request ends, or so that it begins where
    /// the added part ends.
    pub offset: u64,
    /// The added part's length, in bytes.
    pub length: u32,
    /// What it adds to the request's cost, in equivalent bytes; computed as that of requests is.
    pub cost: u64,
}

/// What one port knows of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FlowStats {
    /// Requests that the port holds and has not issued.
    pub staged: u32,
    /// Requests that the port has issued and that have not completed.
    pub in_flight: u32,
    /// How far the flow's first staged request here is ahead of virtual time, in units; `None`
    /// without one, or for a policy without virtual time.
    pub lag: Option<u64>,
    /// What the flow's requests that the port has issued cost, in equivalent bytes; those that
    /// went ahead for a [reservation](Policy::set_share) are not charged, so not counted. A port
    /// keeps it while the flow has requests there and for some time after; it begins at 0 when the
    /// flow comes back later. `None` for a policy that charges nothing.
    pub service: Option<u64>,
    /// The flow's tokens that the port has in hand, in bytes, less than 0 if it owes some; `None`
    /// for a policy without tokens.
    pub tokens: Option<i64>,
}

/// One shard's exclusive handle into a policy. See the [module's text](self) for what each side
/// owes.
pub trait Port: Send {
    /// Whether submit is dispatch: `submit` never answers [`Submitted::Staged`], and `next` has
    /// nothing to give, but for flows that have [caps](Policy::set_caps).
    const IS_DIRECT: bool = false;

    /// Takes a request.
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError>;

    /// Says what this port may do next.
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next;

    /// Takes an issued request off the port when the device has completed it. `false`: it is not
    /// issued, and nothing has changed.
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool;

    /// Says whether the flow may stage another request here, so that a caller can push back before
    /// it has built one. [`Port::submit`] takes a request all the same.
    ///
    /// A flow may keep as many requests here as leave an equal part of the port's tags to each flow
    /// that has requests here and to one flow more, and at least one. So no flow takes all tags; a
    /// flow that is alone may have half of them.
    fn admit(&self, flow: FlowId) -> Result<(), SubmitError>;

    /// Takes a staged request back: it is gone, its tag is free, and neither its flow nor a cap is
    /// charged for it, unless it was issued before and [requeued](Port::requeue), or a policy
    /// behind one lock has chosen it already. `false`: it is not staged here, or the policy has
    /// [merged](crate::serial::merge) it with others, with which it goes.
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;

    /// A staged or [held](Port::hold) request goes to the device now, before all others and beside
    /// D. Its flow is not charged for it, as if it had been [cancelled](Port::cancel), and no cap
    /// holds it; it counts as the flow's and as issued until it is completed. `false`: it cannot be
    /// cancelled, and nothing has changed.
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool;

    /// The request with this tag, which is free, waits in front of the policy, in a layer: until
    /// it is submitted, [expedited](Port::expedite) or [cancelled](Port::cancel) its tag is in use,
    /// and its flow's slot does not become free. Refused as a request that is submitted.
    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError>;

    /// Takes back an issued request that the device has not begun. It keeps its slot, and its flow
    /// is charged for it once in all: a staged policy gives it again before anything else, once
    /// `next` is called. Answers what [`Port::submit`] does; one that was
    /// [expedited](Port::expedite) is to be issued again at once. `None`: it is not issued, or was
    /// issued as one command with others.
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted>;

    /// A staged request has grown, since its caller has merged another into it; that one, if it
    /// was staged, is then [cancelled](Port::cancel). `false`: it is not staged here, or the policy
    /// merges by itself, and nothing has changed.
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool;

    /// Whether `next` may have something to give; changes nothing. `false`: `next` would give
    /// nothing now, and whatever changes that wakes this port or is called on it.
    fn has_work(&self) -> bool;

    /// Of the flow's requests that are staged here, the one that goes first. A caller that removes
    /// a flow and wants what it has staged [cancelled](Port::cancel) asks until there is none.
    fn staged(&self, flow: FlowId) -> Option<Tag>;

    /// What the port knows of the flow. Reads only what is the port's own.
    fn flow_stats(&self, flow: FlowId) -> FlowStats;

    /// No request of the flow that is submitted to this port from now on is [joined](Next::Join)
    /// with one that was submitted to it before. Requests that are neither reads nor writes do that
    /// by themselves. Requests of different ports never are.
    fn barrier(&mut self, flow: FlowId);

    /// The numbers behind the port's last answer: about this live request, or (`None`) about why
    /// nothing may go. It is called while decisions are recorded, and not otherwise.
    fn reason(&self, tag: Option<Tag>) -> Reason;
}

/// The numbers that a decision came from, in units ([`crate::contract::vtime`]); `None` is what the
/// policy does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reason {
    /// Virtual time, as the port knew it.
    pub virtual_time: Option<u64>,
    /// The request's start tag, or where policies have none, its flow's virtual time; without a
    /// request that of the one that would be next.
    pub start_tag: Option<u64>,
    /// How many of the device's slots are free.
    pub free_slots: Option<u32>,
    /// Why nothing may go.
    pub held: Option<Held>,
    /// The request went before all others, since its flow had less than its reservation.
    pub is_reserved: bool,
}

/// Why requests are staged and none may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// The next one is too far ahead of virtual time.
    Ahead,
    /// No slot of the device is free.
    NoSlot,
    /// No slot of those is free that latency targets leave of the device's.
    Target,
    /// Its flow has had what a cap of its own allows.
    Cap,
    /// Its flow's group, or one that this is in, has had what a cap allows.
    GroupCap,
    /// No slot of the device is free, and the device is at work on requests that went before all
    /// others for reservations of other flows.
    Reserved,
}

/// A parameter of a policy that may be changed while requests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuning {
    /// D, the most requests outstanding on the device. When it becomes less, requests beyond it are
    /// waited for.
    Slots(u32),
    /// T, how far a flow may run ahead of virtual time, in bytes at the
    /// [reference weight](crate::ReferenceWeight).
    Threshold(u64),
    /// D is searched for while requests run, as [`AutoDepth`](crate::depth::AutoDepth) does.
    AutoSlots,
    /// T is this at least, and more as the device and the ports need it.
    FollowingThreshold(u64),
}

/// Why a parameter was not changed; the old value goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TuneError {
    /// The policy does not have it, or has built its structures for it.
    #[error("this policy cannot change it while it runs")]
    Fixed,
    /// The value makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The control side of a policy, shared by all threads.
pub trait Policy: Send + Sync + 'static {
    /// The handle each shard gets. The rest of a policy is the same for all: a `dyn Policy` has it.
    type Port: Port
    where
        Self: Sized;

    /// Adds a flow.
    fn add_flow(&self, weight: Weight) -> Result<FlowId, FlowError> {
        self.add_flow_as(None, weight)
    }

    /// Adds a flow under the name that it had in another policy, which this one follows; or,
    /// without one, as [`add_flow`](Self::add_flow). Known flows come before all others. A policy
    /// takes the memory for all its flows when it is built, and none here.
    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError>;

    /// Changes a flow's weight, for requests submitted from now on.
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError>;

    /// Says whether a flow may use [`Class::Urgent`], within what the policy allows for that.
    fn set_urgent(&self, _flow: FlowId, _urgent: bool) -> Result<(), FlowError> {
        Err(FlowError::NotUrgent)
    }

    /// Gives a flow a latency target, or takes it away, from now on.
    fn set_target(&self, _flow: FlowId, _target: Option<Target>) -> Result<(), FlowError> {
        Err(FlowError::NoTargets)
    }

    /// How a flow does beside its target; `None` without one.
    fn target(&self, _flow: FlowId) -> Option<TargetStats> {
        None
    }

    /// Gives a flow these caps instead of those it has, or none. What waits for a cap hears of it
    /// within a tenth of a second.
    fn set_caps(&self, _flow: FlowId, _caps: &Caps) -> Result<(), FlowError> {
        Err(FlowError::NoCaps)
    }

    /// This policy takes the place of another, under which a flow's or group's caps have done this:
    /// a cap that is the same here goes on with what was taken from it, and the counts go on.
    /// Nothing may be under way here yet.
    fn resume_caps(&self, _of: CapsOf, _before: &CapStats) {}

    /// What a flow's caps have done; `None` if it never had any.
    fn caps(&self, _flow: FlowId) -> Option<CapStats> {
        None
    }

    /// Changes the weights of several flows at once, as [`set_weight`](Self::set_weight) does, for
    /// a layer that computes them: what is measured of the flows goes on. Flows that are gone are
    /// left out.
    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        for &(flow, weight) in weights {
            // A flow that is gone has no weight.
            let _ = self.set_weight(flow, weight);
        }
    }

    /// Adds a group, changes it, or (`None`) takes it away. It is in the group that it was added
    /// to, which must be there.
    fn set_group(&self, _id: GroupId, _group: Option<&Group>) -> Result<(), FlowError> {
        Err(FlowError::NoGroups)
    }

    /// What a group comes to; `None` if there is none.
    fn group(&self, _id: GroupId) -> Option<GroupStats> {
        None
    }

    /// Puts a flow into a group, and gives it a reservation, instead of those that it has.
    fn set_share(&self, _flow: FlowId, _share: &Share) -> Result<(), FlowError> {
        Err(FlowError::NoGroups)
    }

    /// What a flow's place and reservation come to; `None` while no flow has any.
    fn share(&self, _flow: FlowId) -> Option<ShareStats> {
        None
    }

    /// Changes a parameter, for requests dispatched from now on. The caller wakes the ports added
    /// to `wake`.
    fn tune(&self, _tuning: Tuning, _wake: &mut PortSet) -> Result<(), TuneError> {
        Err(TuneError::Fixed)
    }

    /// Removes a flow. Requests of it that are staged or in flight are still served; new ones are
    /// refused. Its slot is free again when all ports have seen the removal and completed what they
    /// had: the caller wakes the ports returned.
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError>;

    /// Does periodic work and returns the time (nanoseconds) of the next, if there is any.
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64>;

    /// What requests cost is being tried out, so the mixture that the device gets varies.
    /// `is_much`: it has changed, and rates that were counted before say nothing of those that
    /// come.
    fn costs_vary(&self, _is_much: bool) {}

    /// The weights that the device's classes are to have now, for a policy that schedules with
    /// them: it needs a device with classes. The caller asks when the policy is built and after
    /// each [`tick`](Self::tick), and tells the device.
    fn class_weights(&self) -> Option<ClassWeights> {
        None
    }

    /// The policy's state in numbers.
    fn stats(&self) -> Stats;
}

/// What a policy tells about itself; counters since the start, over all ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Virtual time in units ([`crate::contract::vtime`]); `None` for a policy without.
    pub virtual_time: Option<u64>,
    /// How far the foremost of the ports' first requests, or of the active flows, is ahead of
    /// virtual time, in units; `None` for a policy that does not say.
    pub spread: Option<u64>,
    /// The most requests that may be outstanding on the device; `None` if unbounded.
    pub slots: Option<u64>,
    /// Slots not in use now.
    pub free_slots: Option<u64>,
    /// Times a port stopped because its lead request was too far ahead.
    pub throttles: u64,
    /// Times a port stopped for want of a slot.
    pub blocks: u64,
    /// Wake-ups given to other ports.
    pub wakes: u64,
    /// `None` for a policy that hands out no tokens.
    pub tokens: Option<TokenStats>,
    /// `None` where D is the operator's.
    pub depth: Option<DepthStats>,
    /// `None` where costs do not follow the device.
    pub cost: Option<CostStats>,
    /// `None` where no flow or group has a reservation.
    pub reserved: Option<ReservedStats>,
}

/// What requests cost by the device's time ([`crate::cost`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CostStats {
    /// What one costs beside its bytes, in equivalent bytes: a random read, a sequential read, a
    /// random write, a sequential write.
    pub bases: [u64; 4],
    /// What each KiB costs, in equivalent bytes: one read, and one written.
    pub per_kib: [u64; 2],
    /// Windows of time that this was found in, since the start; 0: nothing is known yet.
    pub windows: u64,
}

impl Stats {
    /// The most requests that may be outstanding on the device, as it was set or is believed to be
    /// enough; `None` if unbounded, or if that is not known yet.
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
    /// The least D that is believed to fill the device; the most there is while one flow is alone.
    pub slots: u32,
    /// Why D is that.
    pub state: DepthState,
    /// What the device was seen to do with it lately: requests a second.
    pub requests_per_s: u64,
    /// And bytes a second.
    pub bytes_per_s: u64,
}

/// Why D is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DepthState {
    /// Values are being tried, since the load is new.
    Searching,
    /// Less would cost more than 1.5 % of the rate (4.5 % where more only serves another mixture).
    Found,
    /// All that is asked for is on the device, and does not fill it.
    AllDemand,
    /// One flow asks for anything: there is no other one to protect.
    Alone,
}

/// How a policy's tokens went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenStats {
    /// Periods begun.
    pub periods: u64,
    /// Tokens of the current one, for all flows, in bytes read.
    pub tokens: u64,
    /// What writes cost, in hundredths of their bytes.
    pub write_percent: u64,
}
