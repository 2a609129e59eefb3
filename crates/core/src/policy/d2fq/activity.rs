//! The shared state of a flow: its virtual time, the number of ports on which it has requests in
//! flight, and the start time of that activity.
//!
//! **Problem.** The paper counts each flow's requests in flight to distinguish active flows from
//! idle ones. A shared counter would be written twice for every request, by every port. **Model.**
//! Each port counts in its own memory; only the number of *ports* that have any requests is shared,
//! which changes when a port's own count goes between 0 and 1. Beside it is the time at which the
//! flow's state began: in flight without a break, or not in flight. A flow that has had nothing in
//! flight for longer than the **grace period** is idle; until then its client may just be thinking
//! (deceptive idleness, Section 3.5).
//!
//! **The word**, from the top: 55 bits of time in units of 512 ns, 9 bits of ports, of which there
//! are at most 256. 0: the flow has never been active.
//!
//! **Memory ordering.** Leaving is Release and Acquire: the port that takes the number to 0 has
//! seen all writes that ports made while they were counted. Virtual time and reach are counters of
//! their own and are accessed with Relaxed, because nothing is published through them.

use crate::contract::platform::{AtomicWord, Native, Ordering, Platform};
use crate::contract::port_set::PortSet;
use crate::contract::vtime::VTime;

/// Low bits of the word: the ports.
const PORT_BITS: u32 = 9;
const PORTS: u64 = (1 << PORT_BITS) - 1;
const _: () = assert!(PortSet::MAX_PORTS as u64 <= PORTS);

/// The shared part of a flow, in a cache line of its own.
#[repr(align(64))]
pub struct FlowState<P: Platform> {
    vt: P::U64,
    activity: P::U64,
    /// Units by which `vt` has been moved without service, so that the service can be computed.
    moved: P::U64,
    /// The most virtual time that the flow has recently had in flight, times `DEPTHS`, in units;
    /// halved once a period.
    reach: P::U64,
    /// 1 if it may be urgent.
    urgent: P::U64,
}

/// One line a flow, so that no flow slows another down.
const _: () = assert!(size_of::<FlowState<Native>>() == 64);

/// The number of ports on which a flow has requests in flight, and the start time of its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity(u64);

impl Activity {
    /// The ports on which it has requests.
    #[inline]
    pub fn ports(self) -> u64 {
        self.0 & PORTS
    }

    /// The duration of the state, in nanoseconds.
    fn lasts_ns(self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.0 & !PORTS)
    }

    /// Whether the flow has requests in flight, or had some within the grace period.
    #[inline]
    pub fn is_active(self, now_ns: u64, grace_ns: u64) -> bool {
        self.ports() > 0 || (self.0 != 0 && self.lasts_ns(now_ns) <= grace_ns)
    }
}

impl<P: Platform> FlowState<P> {
    #[expect(clippy::new_without_default, reason = "no caller makes a default state")]
    pub fn new() -> Self {
        let zero = || P::U64::new(0);
        FlowState { vt: zero(), activity: zero(), moved: zero(), reach: zero(), urgent: zero() }
    }

    /// Prepares the slot for a new flow, which no port uses yet.
    pub fn reset(&self, vt: VTime) {
        self.vt.store(vt.to_word(), Ordering::Relaxed);
        self.activity.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        self.reach.store(0, Ordering::Relaxed);
        self.urgent.store(0, Ordering::Relaxed);
    }

    /// Its virtual time, less the service that ports have not published yet.
    #[inline]
    pub fn vt(&self) -> VTime {
        VTime::from_word(self.vt.load(Ordering::Relaxed))
    }

    /// Charges the flow; returns its virtual time before the charge.
    #[inline]
    pub fn charge(&self, units: u64) -> VTime {
        VTime::from_word(self.vt.fetch_add(VTime::from_units(units).to_word(), Ordering::Relaxed))
    }

    /// Sets its virtual time to the result of `to`; leaves it if the result is `None`.
    pub fn shift(&self, to: impl Fn(VTime) -> Option<VTime>) {
        let mut old = self.vt.load(Ordering::Relaxed);
        while let Some(new) = to(VTime::from_word(old)) {
            match self.vt.compare_exchange(old, new.to_word(), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    let units = new.since(VTime::from_word(old)) as u64;
                    self.moved.fetch_add(units, Ordering::Relaxed);
                    return;
                }
                Err(now) => old = now,
            }
        }
    }

    /// Lifts its virtual time to the floor.
    #[cold]
    pub fn lift(&self, floor: VTime) {
        self.shift(|vt| vt.is_before(floor).then_some(floor));
    }

    /// Units by which it has been moved without service, wrapping.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) != 0
    }

    pub fn set_urgent(&self, urgent: bool) {
        self.urgent.store(u64::from(urgent), Ordering::Relaxed);
    }

    #[inline]
    pub fn activity(&self) -> Activity {
        Activity(self.activity.load(Ordering::Acquire))
    }

    /// Records the flow's present reach, in units; returns its recent maximum. Ports that record at
    /// the same time may lose each other's value: each records its value again with its next
    /// publication.
    pub fn reach(&self, now: u64) -> u64 {
        let most = self.reach.load(Ordering::Relaxed);
        if now > most {
            self.reach.store(now, Ordering::Relaxed);
        }
        now.max(most)
    }

    /// Halves the reach at the end of a period.
    pub fn halve_reach(&self) {
        self.reach.store(self.reach.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
    }

    /// Counts a port that has a request in flight again. If no other port has one, returns the
    /// flow's previous state.
    pub fn enter(&self, now_ns: u64) -> Option<Activity> {
        let mut old = self.activity.load(Ordering::Relaxed);
        loop {
            // The first port begins the state, and its time; others only count themselves.
            let new = if old & PORTS == 0 { (now_ns & !PORTS) | 1 } else { old + 1 };
            match self.activity.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (old & PORTS == 0).then_some(Activity(old)),
                Err(now) => old = now,
            }
        }
    }

    /// Subtracts a port that has no request in flight from now on; true if no port has one.
    pub fn leave(&self, now_ns: u64) -> bool {
        let mut old = self.activity.load(Ordering::Relaxed);
        loop {
            let last = old & PORTS <= 1;
            // The time is at least one unit, so that the word of a flow that has been active is not
            // 0.
            let new = if last { (now_ns & !PORTS).max(PORTS + 1) } else { old - 1 };
            match self.activity.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(now) => old = now,
            }
        }
    }
}
