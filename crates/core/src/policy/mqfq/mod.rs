//! `mqfq`: multi-queue fair queueing (Hedayati, Shen, Scott and Marty, USENIX ATC 2019).
//!
//! **Problem.** A fast SSD serves several queues, one per core, without regard to tenants: a tenant
//! with more queues, deeper ones or larger requests gets more of the device. Classical fair
//! queueing sorts all requests in one queue, and the lock of that queue costs more than the device
//! takes for a request.
//!
//! **Model.** Each request of a flow gets a *start tag*, the flow's place in virtual time: the
//! later of virtual time and the end tag of the flow's previous request. Its *end tag* is its start
//! tag plus its cost divided by the flow's weight. One unit is a byte at weight 100
//! ([`crate::contract::vtime`]). *Virtual time* is the least start tag of all requests that wait,
//! on any port (Section 2.1), and never decreases. A flow that does not use its share forfeits it:
//! when it comes back it starts at virtual time.
//!
//! **Control.** Each port sends its own requests in the order of start tags, under two conditions:
//! - the lead request is within the *window* ahead of virtual time, which is **T**, or four fifths
//!   of it if there are several ports (*end tags*, below); else it is *throttled*, in the `wheel`.
//!   T is in bytes of a flow of the [reference weight](ReferenceWeight);
//! - one of the **D** slots of the device is free (`slots`); else the port is *ready* and is woken
//!   by a completion.
//!
//! **Guarantees** (Section 2.2). For two flows f and m that have requests waiting throughout an
//! interval, the services received, in units, differ by at most
//! `(D + 1) (2 T + l_f / r_f + l_m / r_m)`, `l / r` being the largest request at that weight. It is
//! work-conserving. With T = 0, D = 1 and one port it is start-time fair queueing.
//!
//! **Worked example.** Flows a (weight 100) and b (weight 200) both send 4 KiB reads on two ports;
//! T = 5,120, a window of 4,096; D = 2. Both start at virtual time 0. a's requests start at 0,
//! 4096, 8192, ...; b's at 0, 2048, 4096, .... Suppose that a uses port 0 and b port 1. Port 0
//! sends a's first request and may send the second, at 4096, but not the third, at 8192, while
//! virtual time is 0. Port 1 sends b's first. Now the leads are 8192 on port 0 and 2048 on port 1:
//! virtual time is 2048. Port 0 sleeps until that is 4096. Port 1 sends b's second: virtual time is
//! 4096, and it wakes port 0. In the long run b sends two for each of a's.
//!
//! **Bounds.** A verb walks a path of the trees and, if virtual time or T has changed, empties the
//! wheel: 64 buckets, each a word for 64 ports. A `tick` takes no verb's lock. While T follows, it
//! reads 2 words of each port ten times a second; once a minute it reads 3 of each flow.
//!
//! **Knobs.** [`MqfqConfig`]. Decision 6 lists where this is finer than the paper's algorithm
//! (which is in `crates/sim`), and which cache lines move. Each file argues its memory ordering.

mod follow;
mod kept;
#[cfg(all(test, loom))]
mod models;
mod port;
mod queue;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
#[doc(hidden)]
#[allow(rustdoc::private_intra_doc_links, reason = "only the laboratory sees it")]
pub mod wheel;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crossbeam_utils::CachePadded;

pub use port::MqfqPort;

use crate::contract::bounds::{
    ConfigError, MAX_SLOTS, MAX_THRESHOLD, boxed, changeable, check, granted, within,
};
use crate::contract::flow::{FlowError, FlowId, Weight};
use crate::contract::platform::{AtomicWord, Lock, Native, Ordering, Platform};
use crate::contract::port::{Policy, Stats, TuneError, Tuning};
use crate::contract::port_set::{PortId, PortSet};
use crate::contract::vtime::{LIFT_PERIOD_NS, ReferenceWeight, VTime};
use crate::structures::flow_table::{FlowTable, SlotWalk};
use crate::structures::mindicator::VirtualTime;
use crate::structures::topology::Topology;
use follow::{Count, Follow, Late};
use slots::Slots;
use wheel::{Wheel, Window};

/// The knobs of MQFQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MqfqConfig {
    /// Core and socket of each port.
    pub ports: Topology,
    /// The maximum number of flows.
    pub flows: usize,
    /// The number of tags per port: its tags are `0..tags`.
    pub tags: usize,
    /// D, the most requests outstanding on the device. Default 64, the internal parallelism that
    /// the paper measured on its SSD: fewer starve the device, more weaken the bound on unfairness.
    pub slots: u32,
    /// T, the most that a request's start tag may be ahead of virtual time when the request is
    /// dispatched, in bytes of service at the [reference weight](ReferenceWeight), which is 100 if
    /// all weights are 100. Default 45 KiB, the paper's for its SSD: the smallest that caused no
    /// significant contention. 0 gives SFQ(D)'s order at the price of its contention. With several
    /// ports a fifth of T is reserved for late charges (*end tags*, below).
    pub threshold_bytes: u64,
    /// Whether T grows from `threshold_bytes` while ports are throttled too often, up to the bytes
    /// that the device serves in 0.4 ms, or while ports are late most of the time, up to the bytes
    /// of 20 ms (see `follow`). Default: no, as in the paper, which finds T once for each device
    /// (Section 3.4).
    pub threshold_follows: bool,
    /// Whether one lock serializes dispatches: it is held throughout `next` (the paper's
    /// MQFQ-serial, Section 4.2). Default: no.
    pub serial: bool,
    /// Whether the slot of a completed request is kept for its flow for a moment, if the flow has
    /// had less than its share and mostly comes back at once (`kept`). MQFQ is then not
    /// work-conserving, by a 64th of the slots' time. Default: no.
    pub anticipates: bool,
}

changeable!(MqfqConfig);

impl MqfqConfig {
    /// The default D: the parallelism that the authors measured on their SSD.
    pub const SLOTS: u32 = 64;
    /// The default T, in bytes: the paper's for its SSD.
    pub const THRESHOLD: u64 = 45 << 10;

    /// The default knobs for this number of flows, and of tags per port, over `ports`.
    pub fn new(ports: Topology, flows: usize, tags: usize) -> Self {
        MqfqConfig {
            ports,
            flows,
            tags,
            slots: Self::SLOTS,
            threshold_bytes: Self::THRESHOLD,
            threshold_follows: false,
            serial: false,
            anticipates: false,
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check(self.ports.ports(), self.flows, self.tags, self.slots)?;
        within("threshold", self.threshold_bytes, 0, MAX_THRESHOLD)
    }
}

/// The control side of MQFQ.
pub struct Mqfq<P: Platform = Native> {
    shared: Arc<Shared<P>>,
}

/// State that all ports share.
struct Shared<P: Platform> {
    flows: FlowTable<P>,
    ends: EndTags<P>,
    time: VirtualTime<P>,
    wheel: Wheel<P>,
    slots: Slots<P>,
    counters: Box<[CachePadded<Counters<P>>]>,
    threshold: P::Mutex<Threshold>,
    late: Late<P>,
    /// The walk that lifts the tags of lagging flows.
    walk: SlotWalk<P>,
    /// Held throughout `next`, if dispatches are serialized.
    serial: Option<P::Mutex<()>>,
}

/// T, in bytes at the reference weight, and the other inputs of W.
struct Threshold {
    bytes: u64,
    /// Reference weight of the present flows.
    reference: ReferenceWeight,
    /// State of the adjustment of T, if T follows the device.
    follow: Option<Follow>,
}

/// Counters of a port. Only that port writes them, except for `free_ns`.
struct Counters<P: Platform> {
    throttles: P::U64,
    blocks: P::U64,
    wakes: P::U64,
    late_ns: P::U64,
    /// Time at which virtual time released the port from the wheel, in nanoseconds, or 0. Written
    /// by the port that moved virtual time, and cleared by this port when it leaves the wheel.
    free_ns: P::U64,
}

impl<P: Platform> Counters<P> {
    fn new() -> Self {
        let zero = || P::U64::new(0);
        Counters {
            throttles: zero(),
            blocks: zero(),
            wakes: zero(),
            late_ns: zero(),
            free_ns: zero(),
        }
    }
}

impl<P: Platform> Mqfq<P> {
    /// The policy and its ports, in the order of the topology.
    pub fn new(config: MqfqConfig) -> Result<(Self, Vec<MqfqPort<P>>), ConfigError> {
        config.validate()?;
        granted(|| Ok(Self::of(&config)))
    }

    /// Builds them from a valid configuration.
    #[inline(never)]
    fn of(config: &MqfqConfig) -> (Self, Vec<MqfqPort<P>>) {
        let ports = config.ports.ports();
        let tree = config.ports.tree();
        let ends = EndTags::new(config.flows, ports);
        let reference = ReferenceWeight::default();
        let window = ends.window(reference.units(config.threshold_bytes));
        let window = Window::new(window, config.threshold_follows);
        let follow = config.threshold_follows.then(|| Follow::new(config.threshold_bytes, ports));
        let shared = Arc::new(Shared {
            flows: FlowTable::new(config.flows, ports),
            ends,
            time: VirtualTime::new(tree.clone()),
            wheel: Wheel::new(window, ports),
            slots: Slots::new(tree, config.slots),
            counters: boxed(ports, |_| CachePadded::new(Counters::new())),
            threshold: P::Mutex::new(Threshold {
                bytes: config.threshold_bytes,
                reference,
                follow,
            }),
            late: Late::new(),
            walk: SlotWalk::new(),
            serial: config.serial.then(|| P::Mutex::new(())),
        });
        let port = |port| MqfqPort::new(PortId(port as u8), config, shared.clone());
        let handles = boxed(ports, port).into_vec();
        (Mqfq { shared }, handles)
    }

    /// Changes T, in bytes at the reference weight, for requests dispatched from now on. If it
    /// `follows`, T follows the device from there. The caller wakes the ports that are added to
    /// `wake`.
    fn set_threshold(
        &self,
        bytes: u64,
        follows: bool,
        wake: &mut PortSet,
    ) -> Result<(), ConfigError> {
        within("threshold", bytes, 0, MAX_THRESHOLD)?;
        let follow = follows.then(|| Follow::new(bytes, self.shared.counters.len()));
        self.shared.threshold.with(|threshold| {
            *threshold = Threshold { bytes, follow, ..*threshold };
            // `adopt`, below, checks by itself whether W has changed.
            self.want_window(threshold);
        });
        wake.extend(self.shared.wheel.adopt());
        Ok(())
    }

    /// Sets the wanted W; returns whether it differs from the W in force.
    fn want_window(&self, threshold: &Threshold) -> bool {
        let Shared { ends, wheel, .. } = &*self.shared;
        let units = ends.window(threshold.reference.units(threshold.bytes));
        wheel.want(Window::new(units, threshold.follow.is_some()))
    }

    /// Computes W again after a change of flows or weights, for requests dispatched from now on.
    /// The first port that runs adopts the new W, because a port can wake others, and no port
    /// dispatches a request before W is adopted.
    fn weigh(&self) {
        let Shared { flows, threshold, .. } = &*self.shared;
        threshold.with(|threshold| {
            // The reference weight is read under the lock, so that the last writer has seen all
            // earlier changes.
            threshold.reference = flows.reference();
            if self.want_window(threshold) {
                flows.tell();
            }
        });
    }

    /// Lifts the tags of lagging flows, so that no tag ever leaves the range of virtual time.
    /// Returns the time of the next step, in nanoseconds.
    fn lift(&self, now_ns: u64) -> u64 {
        let Shared { flows, ends, time, wheel, walk, .. } = &*self.shared;
        let slots = walk.step(now_ns, flows.capacity(), LIFT_PERIOD_NS);
        if !slots.is_empty() {
            let (now, window) = (time.now(), wheel.window().units());
            flows.open_among(slots).for_each(|slot| ends.lift(slot, now, window));
        }
        walk.next_ns()
    }

    /// Adjusts T to the device, if T follows the device and the adjustment is due. Returns the time
    /// of the next adjustment, in nanoseconds.
    fn follow(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let Shared { time, counters, threshold, wheel, .. } = &*self.shared;
        let (deadline_ns, changed) = threshold.with(|threshold| {
            let follow = threshold.follow.as_mut()?;
            if follow.deadline_ns() > now_ns {
                return Some((follow.deadline_ns(), false));
            }
            let late_ns = self.sum(|port| &port.late_ns);
            let count = Count { at_ns: now_ns, now: time.now(), late_ns };
            let stops = counters.iter().map(|port| port.throttles.load(Ordering::Relaxed));
            let changed = follow.look(count, stops, threshold.reference);
            let deadline_ns = follow.deadline_ns();
            threshold.bytes = changed.unwrap_or(threshold.bytes);
            Some((deadline_ns, changed.is_some() && self.want_window(threshold)))
        })?;
        if changed {
            wake.extend(wheel.adopt());
        }
        Some(deadline_ns)
    }

    /// Sum of a counter over all ports, wrapping.
    fn sum(&self, field: fn(&Counters<P>) -> &P::U64) -> u64 {
        let counts = self.shared.counters.iter().map(|port| field(port).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Changes D, for requests dispatched from now on. The caller wakes the ports that are added to
    /// `wake`.
    fn set_slots(&self, count: u32, wake: &mut PortSet) -> Result<(), TuneError> {
        if count == 0 || count > MAX_SLOTS {
            return Err(ConfigError::Slots(count).into());
        }
        wake.extend(self.shared.slots.resize(count));
        // The notification comes after the debt is published, so that a port that reads it also
        // finds the debt, and pays the debt.
        self.shared.flows.tell();
        Ok(())
    }
}

impl<P: Platform> Policy for Mqfq<P> {
    type Port = MqfqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, ends, time, .. } = &*self.shared;
        let added = flows.add(known, weight, |slot| ends.start(slot, time.now()))?;
        self.weigh();
        Ok(added)
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)?;
        self.weigh();
        Ok(())
    }

    fn set_weights(&self, weights: &[(FlowId, Weight)]) {
        self.shared.flows.set_weights(weights, |_, _| ());
        self.weigh();
    }

    fn tune(&self, tuning: Tuning, wake: &mut PortSet) -> Result<(), TuneError> {
        match tuning {
            Tuning::Threshold(bytes) => Ok(self.set_threshold(bytes, false, wake)?),
            Tuning::FollowingThreshold(least) => Ok(self.set_threshold(least, true, wake)?),
            Tuning::Slots(count) => self.set_slots(count, wake),
            Tuning::AutoSlots => Err(TuneError::Fixed),
        }
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        let ports = self.shared.flows.close(flow)?;
        self.weigh();
        Ok(ports)
    }

    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        let follow_ns = self.follow(now_ns, wake).unwrap_or(u64::MAX);
        Some(self.lift(now_ns).min(follow_ns))
    }

    fn stats(&self) -> Stats {
        let Shared { time, slots, .. } = &*self.shared;
        Stats {
            virtual_time: Some(time.now().units()),
            spread: Some(time.spread()),
            slots: Some(u64::from(slots.total())),
            free_slots: Some(slots.free()),
            throttles: self.sum(|port| &port.throttles),
            blocks: self.sum(|port| &port.blocks),
            wakes: self.sum(|port| &port.wakes),
            ..Stats::default()
        }
    }
}

// **End tags**: the virtual time at which each flow's next request starts, on any port.
//
// **Problem.** A flow that is served on several ports has one place in virtual time. The paper
// keeps that place in an integer, changed by an atomic addition for each request (Section 3.1,
// which leaves a scalable counter to future work). The integer's cache line goes from core to core
// with the requests, and each addition waits for it, which costs more than all the rest of a
// request.
//
// **Model.** The shared word is a counter that may be a little behind. While a flow has requests
// waiting on a port, the port starts the flow's next request where its last one ended, without
// reading the shared word, and adds the cost to its *arrears*. Before the arrears exceed
// [`most`](EndTags::most), called `L`, the port adds them to the word together with the cost of the
// request at hand, which starts no earlier than the old word plus the arrears. So each request is
// charged once, no virtual time is reserved that might not be used, and the word is behind the
// flow's true end tag `X` by at most the arrears of its `P` ports. A request that costs more than
// `L` is charged at once, and so is each request if T is small or 0. A lone port has no arrears.
//
// **Cache lines.** A charged request moves one line, if another port has charged the flow since
// this port's last charge; any other request moves none. Of requests that cost `c` units, every
// `L / c + 1`-th is charged (rounded down).
//
// **The bounds of Section 2.2** grow by `4 A`, with `A = P L`; the argument is above the verbs.
//
// So that Theorems 1 and 2 hold as they stand, ports are throttled not by T but by the *window*
// `W = T - T/5`, rounded down, ([`EndTags::window`]), and `L` is `W / 8` divided by the number of
// ports (rounded up to a power of two): then `4 A <= W / 2`, and `2 W + 4 A <= 2 T`.
//
// **Worked example.** T = 45 KiB = 46,080 and two ports: W = 36,864, L = 2,304. Requests of 4 KiB
// cost 4,096 units at weight 100 and are charged one by one; at weight 200 they cost 2,048 and
// every second one charges both; at weight 1000 they cost 410 and every sixth one charges all six.
//
// **Memory ordering.** A word is a flow's own counter: each request's place follows from one
// atomic operation on it, no other data is published through it, so it is accessed with Relaxed.

/// The part of T that is reserved for arrears, as a divisor.
const RESERVE: u64 = 5;

/// The most arrears of a flow on all ports, as a part of the window and a power of two: an eighth.
const ARREARS_SHIFT: u32 = 3;

/// The end tags of all flows.
struct EndTags<P: Platform> {
    words: Box<[Word<P>]>,
    /// The logarithm of the number of ports, rounded up.
    ports_log2: u32,
}

/// A flow's end tag less the arrears of all ports, in a cache line of its own. (Not in two lines,
/// as `CachePadded` would align it: with thousands of flows the footprint costs more than the
/// processor's prefetch of neighbouring lines.)
#[repr(align(64))]
struct Word<P: Platform>(P::U64);

/// A port's copy of a flow's end tag, and its arrears; private to the port.
#[derive(Clone, Copy, Default, Debug)]
struct Account {
    /// The end tag of the flow's newest request on this port. Valid while that request waits; later
    /// it may be any distance behind.
    end: VTime,
    /// The arrears: units that have been tagged but not charged.
    arrears: u64,
}

// **The bounds of Section 2.2.** Let `A = P L` be the most arrears of a flow on all ports.
// 1. *Too early.* A request that is not charged at once may start before `X`, where requests of
//    other ports have been tagged already. On each port such requests follow each other from one
//    charge to the next, and the request of that charge starts after everything that it found in
//    the word. So of all requests that start before any one point, the requests that are not yet in
//    the word at that point come, on each port, after the port's last charge, and cost at most `L`;
//    on all ports, at most `A`.
// 2. *Too late.* The word may be before virtual time although the flow is backlogged, since arrears
//    are not in it; so, unlike in the paper, the word must not be moved up to virtual time. It is
//    moved up to `A` before virtual time: it can be farther back only if the flow has been idle. A
//    flow that was idle may thus return with `X` up to `A` before its first start tag, which is
//    virtual time. While the flow stays backlogged that distance does not grow: a request starts at
//    its port's last end or at the word, or at virtual time, which is not after the flow's first
//    waiting request. Whenever the word is moved up, the distance shrinks by as much, so the units
//    lost in this way come to at most `A` as well.
// 3. Except in these two cases, requests tile the flow's virtual time. The flow's service in an
//    interval may thus be `2 A` below the lemmas' lower bound and `2 A` above their upper bound,
//    and the services of two flows may differ by `4 A` more.
//
// When T is lowered, a port whose arrears exceed the new `L` charges them with the flow's next
// request.
impl<P: Platform> EndTags<P> {
    /// All end tags are virtual time 0.
    fn new(flows: usize, ports: usize) -> Self {
        EndTags {
            words: boxed(flows, |_| Word(P::U64::new(0))),
            ports_log2: ports.next_power_of_two().trailing_zeros(),
        }
    }

    #[inline]
    fn alone(&self) -> bool {
        self.ports_log2 == 0
    }

    /// The window W in units: the most that a port may dispatch ahead of virtual time, so that T
    /// holds for any arrears.
    fn window(&self, threshold: u64) -> u64 {
        if self.alone() { threshold } else { threshold - threshold.div_ceil(RESERVE) }
    }

    /// `L`: the most arrears of a flow on one port, in units.
    #[inline]
    fn most(&self, window: u64) -> u64 {
        // The shift is below 64 anyway; the mask shows this to the compiler.
        if self.alone() { 0 } else { window >> ((ARREARS_SHIFT + self.ports_log2) & 63) }
    }

    /// `A`: the most arrears of a flow on all ports, in units, for the number of ports rounded up
    /// to a power of two.
    #[inline]
    fn most_of_all(&self, window: u64) -> u64 {
        self.most(window) << (self.ports_log2 & 63)
    }

    /// Sets a new flow's end tag to virtual time. No port uses the slot yet; the flow table makes
    /// it visible.
    fn start(&self, slot: usize, time: VTime) {
        if let Some(Word(word)) = self.words.get(slot) {
            word.store(time.to_word(), Ordering::Relaxed);
        }
    }

    /// Lifts the end tag of a lagging flow to `A` before virtual time. This changes no start tag,
    /// because each is at least virtual time anyway.
    fn lift(&self, slot: usize, time: VTime, window: u64) {
        // The tag is not lifted to `time` itself: arrears are not in the word, so the word of a
        // backlogged flow may lag by as much.
        let floor = time.minus(self.most_of_all(window));
        let Some(Word(word)) = self.words.get(slot) else { return };
        let mut old = word.load(Ordering::Relaxed);
        // Ports add to the word meanwhile: a plain store would lose their charges.
        while VTime::from_word(old).is_before(floor) {
            match word.compare_exchange(old, floor.to_word(), Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(newer) => old = newer,
            }
        }
    }

    /// Tags a request that costs `units` and returns its start tag; `None` if that might be before
    /// `bound`, which virtual time cannot pass during the call. `waiting`: the flow's newest
    /// request on this port has not been dispatched.
    #[inline]
    fn tag_from(
        &self,
        slot: usize,
        account: &mut Account,
        units: u64,
        bound: VTime,
        waiting: bool,
        window: u64,
    ) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        let owed = account.arrears.wrapping_add(units);
        // A lone port's word is exact. Once the newest request has been dispatched, `end` is not
        // valid.
        if !self.alone() && waiting && !account.end.is_before(bound) {
            let start = account.end;
            if owed <= self.most(window) {
                *account = Account { end: start.plus(units), arrears: owed };
                return Some(start);
            }
            let old = VTime::from_word(
                word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed),
            );
            // The word may be behind this copy: other ports have arrears, or have refunded credit.
            let start = old.plus(account.arrears).max(start);
            *account = Account { end: start.plus(units), arrears: 0 };
            return Some(start);
        }
        // Only refunds decrease the word, so the value read here may be stale, but is seldom later
        // than the word.
        let raw = word.load(Ordering::Relaxed);
        let known = VTime::from_word(raw);
        if known.is_before(bound) {
            return None;
        }
        let start = if self.alone() {
            // Besides this port only `lift` writes the word, and only if it lags: a lost lift does
            // no harm.
            word.store(raw.wrapping_add(VTime::from_units(units).to_word()), Ordering::Relaxed);
            known
        } else {
            let old = VTime::from_word(
                word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed),
            );
            // Another port may have refunded credit after the word was read.
            old.plus(account.arrears).max(bound)
        };
        *account = Account { end: start.plus(units), arrears: 0 };
        Some(start)
    }

    /// Charges a flow for the growth of a request that waits on this port, in units.
    fn charge(&self, slot: usize, account: &mut Account, units: u64, window: u64) {
        let Some(Word(word)) = self.words.get(slot) else { return };
        account.end = account.end.plus(units);
        account.arrears = account.arrears.wrapping_add(units);
        if account.arrears > self.most(window) {
            let owed = core::mem::take(&mut account.arrears);
            word.fetch_add(VTime::from_units(owed).to_word(), Ordering::Relaxed);
        }
    }

    /// Charges a flow for all of the port's arrears, and for `part`, a part of a unit in 256ths.
    fn pay(&self, slot: usize, account: &mut Account, part: u64) {
        // The bits of a word below its units count these parts, and carry into the units.
        let owed = VTime::from_units(core::mem::take(&mut account.arrears)).to_word();
        if let Some(Word(word)) = self.words.get(slot).filter(|_| owed + part > 0) {
            word.fetch_add(owed.wrapping_add(part), Ordering::Relaxed);
        }
    }

    /// Refunds `units` that a flow was charged for cancelled requests.
    fn give_back(&self, slot: usize, account: &mut Account, units: u64) {
        account.end = account.end.minus(units);
        // Arrears are reduced first, because this writes no shared word.
        let owed = account.arrears.min(units);
        account.arrears -= owed;
        if let Some(Word(word)) = self.words.get(slot).filter(|_| units > owed) {
            word.fetch_sub(VTime::from_units(units - owed).to_word(), Ordering::Relaxed);
        }
    }

    /// The start tag that a request would get at virtual time `time`; later requests do not start
    /// earlier.
    fn earliest(&self, slot: usize, account: &Account, time: VTime) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        Some(VTime::from_word(word.load(Ordering::Relaxed)).plus(account.arrears).max(time))
    }

    /// Tags a request that costs `units`; returns its start tag, which is not before virtual time
    /// `time`.
    fn tag_at(
        &self,
        slot: usize,
        account: &mut Account,
        units: u64,
        time: VTime,
        window: u64,
    ) -> Option<VTime> {
        let Word(word) = self.words.get(slot)?;
        let floor = time.minus(self.most_of_all(window));
        let mut old = word.load(Ordering::Relaxed);
        loop {
            // A word farther back than the most arrears belongs to a flow that has been idle.
            let base = VTime::from_word(old).plus(account.arrears).max(floor);
            match word.compare_exchange(
                old,
                base.plus(units).to_word() | part_of(old),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let start = base.max(time);
                    *account = Account { end: start.plus(units), arrears: 0 };
                    return Some(start);
                }
                Err(newer) => old = newer,
            }
        }
    }
}

/// The part of a word below its units.
const fn part_of(word: u64) -> u64 {
    word ^ VTime::from_word(word).to_word()
}
