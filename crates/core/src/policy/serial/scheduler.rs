//! The interface of serial policies: plain data with four verbs, and its bounds.

use alloc::boxed::Box;

use crate::contract::bounds::{ConfigError, MAX_JOBS, changeable, check};
use crate::contract::flow::Weight;
use crate::contract::port::{Op, Outcome};
use crate::contract::vtime::{LIFT_PERIOD_NS, ReferenceWeight};

/// A live request of any port: an index below [`SerialConfig::jobs`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Job(pub u32);

/// A request as a [`SerialPolicy`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its number, free again after `completed`.
    pub job: Job,
    /// Its flow's slot.
    pub flow: usize,
    /// The flow's weight when it was submitted.
    pub weight: Weight,
    /// Its operation.
    pub op: Op,
    /// Its offset, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub length: u32,
    /// Its cost to the flow, in bytes of service.
    pub cost: u64,
}

/// The choice of a [`SerialPolicy`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selection {
    /// Serve this request, of the flow in this slot, now. It is no longer staged.
    Serve(Job, usize),
    /// Requests are staged, but the policy keeps the device free for a request that it expects,
    /// until this time (nanoseconds) at the latest.
    WaitUntil(u64),
    /// No flow that may be served has a request staged.
    Nothing,
}

/// Whether a flow may be served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Lane {
    /// It may be served while all flows may.
    #[default]
    Common,
    /// It may be served whenever any flow may.
    Reserved,
    /// It may not be served.
    Shut,
}

/// The flows that may be served now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lanes {
    /// All that are not [shut](Lane::Shut) out.
    All,
    /// Only those in [`Lane::Reserved`].
    Reserved,
}

/// A scheduler that one thread at a time calls. It neither allocates nor panics once it is built.
pub trait SerialPolicy: Send + 'static {
    /// Adds a new flow in this slot.
    fn add_flow(&mut self, flow: usize, weight: Weight);

    /// Sets the flow's weight for later arrivals, which also carry it.
    fn set_weight(&mut self, _flow: usize, _weight: Weight) {}

    /// Notes that the flow's tenant is gone. Its staged requests are still to be served, and so are
    /// the few arrivals that were admitted just before.
    fn remove_flow(&mut self, _flow: usize) {}

    /// Sets the reference weight of thresholds, after flows or weights have changed. Called after
    /// each of the three calls above; a policy without a threshold ignores it.
    fn set_reference(&mut self, _reference: ReferenceWeight) {}

    /// Takes a request.
    fn insert(&mut self, now_ns: u64, arrival: &Arrival);

    /// Notes that a staged request has grown: `arrival`, which lies before it or behind it, becomes
    /// a part of it, has its number, and adds its own cost.
    fn grow(&mut self, now_ns: u64, arrival: &Arrival);

    /// Puts a flow into another lane; it is in [`Lane::Common`] until then. The slot's next flow
    /// stays in that lane.
    fn set_lane(&mut self, flow: usize, lane: Lane);

    /// Takes out the request to serve next, among those whose flow may be served. The caller has a
    /// slot for it.
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection;

    /// Takes back a staged request of the flow in this slot; the flow is not charged for it.
    fn cancel(&mut self, job: Job, flow: usize);

    /// Notes that a selected request, of the flow in this slot, has been served, or is taken back.
    fn completed(&mut self, _now_ns: u64, _job: Job, _flow: usize, _outcome: Outcome) {}

    /// Does periodic work and returns the time of the next, if there is any.
    fn tick(&mut self, _now_ns: u64) -> Option<u64> {
        None
    }

    /// Virtual time in units, if the policy has one.
    fn virtual_time(&self) -> Option<u64> {
        None
    }
}

/// A scheduler chosen at run time: beside the lock, the cost of a call by pointer does not matter,
/// while each port type costs its callers a copy of their whole data path.
impl SerialPolicy for Box<dyn SerialPolicy> {
    fn add_flow(&mut self, flow: usize, weight: Weight) {
        (**self).add_flow(flow, weight);
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        (**self).set_weight(flow, weight);
    }

    fn remove_flow(&mut self, flow: usize) {
        (**self).remove_flow(flow);
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        (**self).set_reference(reference);
    }

    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        (**self).insert(now_ns, arrival);
    }

    fn grow(&mut self, now_ns: u64, arrival: &Arrival) {
        (**self).grow(now_ns, arrival);
    }

    fn set_lane(&mut self, flow: usize, lane: Lane) {
        (**self).set_lane(flow, lane);
    }

    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        (**self).select(now_ns, lanes)
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        (**self).cancel(job, flow);
    }

    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        (**self).completed(now_ns, job, flow, outcome);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        (**self).tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        (**self).virtual_time()
    }
}

/// The bounds of a serial policy, fixed when it is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SerialConfig {
    /// Ports: 1 to [`PortSet::MAX_PORTS`](crate::PortSet::MAX_PORTS); default 1.
    pub ports: usize,
    /// The most flows at a time; default 256.
    pub flows: usize,
    /// Live requests per port, rounded up to a power of two; default 1024.
    pub tags: usize,
    /// The most requests outstanding on the device (D); default 64, the parallelism of an NVMe SSD
    /// as MQFQ's authors measured it.
    pub slots: u32,
    /// The most bytes of requests that are [merged](super::merge) to one command; default 0, which
    /// merges none.
    pub merge_bytes: u32,
}

changeable!(SerialConfig);

impl Default for SerialConfig {
    fn default() -> Self {
        SerialConfig { ports: 1, flows: 256, tags: 1024, slots: 64, merge_bytes: 0 }
    }
}

impl SerialConfig {
    /// The default D, and nothing merged, for this number of flows and of tags of each port.
    pub fn new(ports: usize, flows: usize, tags: usize) -> Self {
        SerialConfig { ports, flows, tags, ..SerialConfig::default() }
    }

    /// The bound of [`Job`] numbers.
    pub fn jobs(&self) -> usize {
        self.ports.saturating_mul(1usize.checked_shl(self.tag_bits()).unwrap_or(usize::MAX))
    }

    pub(super) fn tag_bits(&self) -> u32 {
        self.tags.checked_next_power_of_two().map_or(usize::BITS, usize::trailing_zeros)
    }

    /// Refuses dimensions that are not valid.
    pub fn check(&self) -> Result<(), ConfigError> {
        check(self.ports, self.flows, self.tags, self.slots)?;
        if self.jobs() > MAX_JOBS {
            let tags = self.tags.next_power_of_two();
            return Err(ConfigError::Jobs { ports: self.ports, tags });
        }
        Ok(())
    }
}

/// Flows that one tick of a policy behind one lock lifts; meanwhile verbs wait for the lock, for
/// some microseconds.
const LIFTED_AT_ONCE: usize = 1024;
/// Time until the next flows are lifted, in nanoseconds: 2^24 flows take 16 seconds.
const LIFT_PAUSE_NS: u64 = 1_000_000;

/// Lifts the tags of the lagging flows of a policy behind one lock: at the first tick and then once
/// a period, some flows a tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lift {
    next_ns: u64,
    /// Slot of the flow that is lifted next.
    at: usize,
}

impl Lift {
    /// Lifts the flows whose turn it is, if any; gives the time of the next tick, in nanoseconds.
    pub fn tick<T>(
        &mut self,
        now_ns: u64,
        flows: &mut [T],
        mut lift: impl FnMut(usize, &mut T),
    ) -> Option<u64> {
        if now_ns >= self.next_ns {
            let each = flows.iter_mut().enumerate();
            each.skip(self.at).take(LIFTED_AT_ONCE).for_each(|(slot, flow)| lift(slot, flow));
            self.at = self.at.saturating_add(LIFTED_AT_ONCE);
            let is_done = self.at >= flows.len();
            self.at = if is_done { 0 } else { self.at };
            let pause_ns = if is_done { LIFT_PERIOD_NS } else { LIFT_PAUSE_NS };
            self.next_ns = now_ns.saturating_add(pause_ns);
        }
        Some(self.next_ns)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Each flow is lifted once a period, and at most `LIFTED_AT_ONCE` flows in a tick.
    #[test]
    fn flows_are_lifted_some_at_a_time() {
        for count in [1, 1023, 1024, 1025, 5000] {
            let (mut lift, mut flows) = (Lift::default(), std::vec![0; count]);
            let mut now_ns = 7;
            for round in 1..=3 {
                let began_ns = now_ns;
                while now_ns < began_ns + LIFT_PERIOD_NS / 2 {
                    let mut lifted = 0;
                    let next_ns = lift.tick(now_ns, &mut flows, |_, flow| {
                        *flow += 1;
                        lifted += 1;
                    });
                    assert!((1..=LIFTED_AT_ONCE).contains(&lifted), "{count}: {lifted}");
                    assert_eq!(lift.tick(now_ns, &mut flows, |_, _| panic!()), next_ns);
                    now_ns = next_ns.unwrap();
                }
                assert!(flows.iter().all(|&lifted| lifted == round), "{count}");
            }
        }
    }
}
