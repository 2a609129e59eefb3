//! D2FQ to the letter of its paper (Woo, Ahn, Lee and Jeong, USENIX FAST 2021), with the three ways
//! of finding global virtual time that its Figure 17 compares.
//!
//! **Beside `fairq_core::d2fq`.** Thresholds are as configured, however much a flow has in flight
//! and however slow the device is; gvt has no floor, and a flow that comes back after the grace
//! period is at gvt; the first flow that publishes takes an unheld word, and an idle holder keeps
//! it for the grace period; f_min of Eq. 2 is any flow; Eq. 3 counts blocks of 512 bytes; the
//! classes' weights are multiplied until the high one is as large as fits.
//!
//! **Shared words.** A flow has its virtual time and the number of ports on which it is in flight,
//! with the time at which that began, in one cache line. Ports publish a flow's service after an
//! eighth of tau_l divided by the number of ports, as the core's do. With the sloppy tracker a
//! publication moves one more word; with the mindicator it moves the port's leaf and the nodes
//! above; with the scan each submission reads the lines of all flows.
//!
//! **Example.** Flows a (weight 300) and b (weight 100) send 4 KiB reads; tau_l is 8 MiB. Both are
//! served alike in the high class until b is 8 MiB ahead of a in virtual time, after 12 MiB each;
//! then b's requests go to the low class.

use std::array;
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex};

use fairq_core::d2fq::{D2fqConfig, Ratio};
use fairq_core::mindicator::VirtualTime;
use fairq_core::platform::{AtomicWord, Ordering, Platform};
use fairq_core::vtime::{LIFT_PERIOD_NS, Normalizer, VTime};
use fairq_core::{
    Class, ClassWeights, FlowError, FlowId, FlowStats, Growth, Next, Outcome, Policy, Port, PortId,
    PortSet, Reason, Request, Stats, SubmitError, Submitted, Tag, Weight,
};

use super::flows::{Flows, unused_verbs};

/// The way in which global virtual time is found (Figure 17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrackerKind {
    /// One word that a holder moves on (Section 3.4).
    Sloppy,
    /// A scan of all flows for every request: "D2FQ-serial".
    Scan,
    /// The tree of minima that MQFQ uses.
    Mindicator,
}

/// Units per KiU, as a shift.
const KIU: u32 = 10;
/// Bits of gvt's word below its KiU: the holder's slot plus 1, or 0 if no flow holds the word.
const HOLDER_BITS: u32 = 24;
const HOLDER: u64 = (1 << HOLDER_BITS) - 1;
/// Low bits of a flow's activity: the number of ports on which it is in flight. The rest is the
/// time at which that state began, in nanoseconds; 0: it has never been in flight.
const PORTS: u64 = (1 << 9) - 1;
/// Bytes of the blocks that Eq. 3 counts, as a shift.
const BLOCK_BITS: u32 = 9;
/// The least ratio that the adjustment sets, and the largest.
const RATIO_FLOOR: u16 = 3;
const RATIO_MAX: u16 = 256;

/// D2FQ's control side.
pub struct StrictD2fq<P: Platform> {
    shared: Arc<Shared<P>>,
    /// The time of the next adjustment, in nanoseconds, and each flow at the end of the last
    /// period.
    adjuster: Mutex<(u64, Vec<Last>)>,
    ratio: AtomicU16,
    /// tau_w, in units.
    unfair: u64,
    period_ns: u64,
    is_dynamic: bool,
}

struct Shared<P: Platform> {
    flows: Flows<P>,
    states: Box<[State<P>]>,
    gvt: P::U64,
    tracker: TrackerKind,
    /// For the mindicator.
    time: VirtualTime<P>,
    /// tau_m and tau_l in KiU.
    medium: i64,
    low: i64,
    /// The most service that a port leaves unpublished, in units, and for how long in nanoseconds.
    batch: u64,
    flush_ns: u64,
    grace_ns: u64,
}

/// A flow, in a cache line of its own.
#[repr(align(64))]
struct State<P: Platform> {
    vt: P::U64,
    activity: P::U64,
    /// Units by which `vt` has moved without service; blocks submitted to the high, medium and low
    /// class; bytes in flight. All as published.
    moved: AtomicU64,
    blocks: [AtomicU64; 3],
    in_flight: AtomicU64,
}

/// A flow at the end of a period.
#[derive(Clone, Copy, Default)]
struct Last {
    of: Option<(FlowId, Weight)>,
    vt: VTime,
    moved: u64,
    blocks: [u64; 3],
}

/// A flow's activity in a period: units of progress, blocks of each class, bytes in flight.
struct Sample {
    vt: VTime,
    progress: u64,
    blocks: [u64; 3],
    in_flight: u64,
}

/// A port of D2FQ.
pub struct StrictD2fqPort<P: Platform> {
    shared: Arc<Shared<P>>,
    port: PortId,
    /// The flow and the cost of each live request, by tag.
    live: Vec<Option<(FlowId, u64)>>,
    flows: Vec<PortFlow>,
    /// The port's leaf of the mindicator.
    lead: Option<VTime>,
}

/// A flow on one port: bytes completed and not published, bytes in flight now and as published,
/// blocks submitted since the last publication.
#[derive(Clone, Copy)]
struct PortFlow {
    owner: Option<FlowId>,
    requests: u32,
    pending: u64,
    in_flight: u64,
    shown: u64,
    blocks: [u64; 3],
    published_ns: u64,
    normalizer: Normalizer,
    /// The weight at which `pending` is charged.
    weight: Weight,
    /// Virtual time while it has requests here.
    vt: Option<VTime>,
}

impl<P: Platform> StrictD2fq<P> {
    /// The policy and its ports, for a legal configuration.
    pub fn new(config: &D2fqConfig, tracker: TrackerKind) -> (Self, Vec<StrictD2fqPort<P>>) {
        let ports = config.ports.ports();
        let state = |_| State {
            vt: P::U64::new(0),
            activity: P::U64::new(0),
            moved: AtomicU64::new(0),
            blocks: Default::default(),
            in_flight: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            flows: Flows::new(config.flows, ports),
            states: (0..config.flows).map(state).collect(),
            gvt: P::U64::new(0),
            tracker,
            time: VirtualTime::new(config.ports.tree()),
            medium: (config.medium() >> KIU) as i64,
            low: (config.low() >> KIU) as i64,
            batch: config.low() / (8 * ports as u64).max(64),
            flush_ns: config.period_ns / 64,
            grace_ns: config.grace_ns,
        });
        let flow = PortFlow {
            owner: None,
            requests: 0,
            pending: 0,
            in_flight: 0,
            shown: 0,
            blocks: [0; 3],
            published_ns: 0,
            normalizer: Normalizer::default(),
            weight: Weight::DEFAULT,
            vt: None,
        };
        let port = |port| StrictD2fqPort {
            shared: shared.clone(),
            port: PortId(port as u8),
            live: vec![None; config.tags],
            flows: vec![flow; config.flows],
            lead: None,
        };
        let handles = (0..ports).map(port).collect();
        let (Ratio::Dynamic { initial: ratio } | Ratio::Static(ratio)) = config.ratio;
        let policy = StrictD2fq {
            adjuster: Mutex::new((0, vec![Last::default(); config.flows])),
            ratio: AtomicU16::new(ratio),
            unfair: config.unfair(),
            period_ns: config.period_ns,
            is_dynamic: matches!(config.ratio, Ratio::Dynamic { .. }),
            shared,
        };
        (policy, handles)
    }
}

impl<P: Platform> Policy for StrictD2fq<P> {
    type Port = StrictD2fqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, states, gvt, .. } = &*self.shared;
        flows.add(known, weight, |slot| {
            // The word of a flow that was in this slot is not the new flow's.
            let word = gvt.load(Ordering::Relaxed);
            if word & HOLDER == slot as u64 + 1 {
                gvt.store(word & !HOLDER, Ordering::Relaxed);
            }
            let state = &states[slot];
            let old = state.vt();
            state.vt.store(at(old, self.shared.ahead(old, None)).to_word(), Ordering::Relaxed);
            state.activity.store(0, Ordering::Relaxed);
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.weigh(flow, Some(weight))?;
        Ok(())
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.shared.flows.weigh(flow, None)
    }

    fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        if !self.is_dynamic {
            return Some(now_ns.saturating_add(LIFT_PERIOD_NS));
        }
        let mut adjuster = self.adjuster.lock().expect("nothing fails while it is held");
        let (due_ns, flows) = &mut *adjuster;
        if now_ns >= *due_ns {
            *due_ns = now_ns.saturating_add(self.period_ns);
            let samples = self.shared.samples(flows, now_ns);
            let ratio = next(self.ratio.load(Ordering::Relaxed), &samples, self.unfair);
            self.ratio.store(ratio, Ordering::Relaxed);
        }
        Some(*due_ns)
    }

    /// Multiplied until the high class is as large as fits, as the authors set them.
    fn class_weights(&self) -> Option<ClassWeights> {
        let ratio = self.ratio.load(Ordering::Relaxed);
        let times = RATIO_MAX / ratio.max(1);
        let [high, medium, low] = registers(ratio).map(|weight| weight * times);
        Some(ClassWeights { high, medium, low })
    }

    fn stats(&self) -> Stats {
        let gvt = match self.shared.tracker {
            TrackerKind::Mindicator => self.shared.time.now().units(),
            _ => self.shared.gvt.load(Ordering::Relaxed) >> HOLDER_BITS << KIU,
        };
        Stats { virtual_time: Some(gvt), ..Stats::default() }
    }
}

impl<P: Platform> Port for StrictD2fqPort<P> {
    const IS_DIRECT: bool = true;

    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        _wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        let tag = request.tag.0 as usize;
        if self.live.get(tag).is_none_or(Option::is_some) {
            return Err(SubmitError::BadTag);
        }
        self.shared.flows.admit(request.flow)?;
        let (flow, cost) = (request.flow, request.cost.alone.max(1));
        self.live[tag] = Some((flow, cost));
        if self.flows[flow.slot()].requests == 0 {
            self.activate(flow, now_ns);
        }
        let StrictD2fqPort { shared, flows, .. } = self;
        let ahead = shared.ahead(shared.states[flow.slot()].vt(), Some(now_ns));
        // Eq. 1.
        let (class, which) = match ahead {
            ahead if ahead < shared.medium => (Class::High, 0),
            ahead if ahead < shared.low => (Class::Medium, 1),
            _ => (Class::Low, 2),
        };
        let flow = &mut flows[flow.slot()];
        flow.requests += 1;
        flow.in_flight += cost;
        flow.blocks[which] += (cost >> BLOCK_BITS).max(1);
        Ok(Submitted::Issue { class })
    }

    fn next(&mut self, _now_ns: u64, _wake: &mut PortSet) -> Next {
        Next::Idle
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, _outcome: Outcome, _wake: &mut PortSet) -> bool {
        let live = self.live.get_mut(tag.0 as usize).and_then(Option::take);
        let Some((id, cost)) = live else { return false };
        let slot = id.slot();
        let flow = &self.flows[slot];
        let weight = self.shared.flows.weight_in(slot);
        if flow.weight != weight {
            // Earlier completions are charged at the old weight.
            if flow.pending > 0 {
                self.publish(slot, false, now_ns);
            }
            self.flows[slot].weight = weight;
        }
        let StrictD2fqPort { shared, flows, .. } = self;
        let flow = &mut flows[slot];
        flow.requests -= 1;
        flow.pending += cost;
        flow.in_flight -= cost;
        let (last, due_ns) = (flow.requests == 0, flow.published_ns + shared.flush_ns);
        let units = Normalizer::default().units(flow.pending, weight);
        if last || units >= shared.batch || now_ns >= due_ns {
            self.publish(slot, last, now_ns);
        }
        self.shared.flows.finish(slot);
        true
    }

    fn has_work(&self) -> bool {
        false
    }

    unused_verbs!();
}

impl<P: Platform> StrictD2fqPort<P> {
    /// The flow has requests here again.
    fn activate(&mut self, id: FlowId, now_ns: u64) {
        let slot = id.slot();
        let (shared, flow) = (&*self.shared, &mut self.flows[slot]);
        let state = &shared.states[slot];
        if flow.owner != Some(id) {
            (flow.owner, flow.normalizer) = (Some(id), Normalizer::default());
        }
        flow.published_ns = now_ns;
        // Read before the flow itself counts as active.
        let ahead = shared.ahead(state.vt(), Some(now_ns));
        if let Some(was) = state.enter(now_ns)
            && !is_active(was, now_ns, shared.grace_ns)
        {
            // Idling erases debt (decision 5).
            let vt = state.vt();
            state.vt.store(at(vt, ahead).to_word(), Ordering::Relaxed);
            state.moved.fetch_add(at(vt, ahead).since(vt) as u64, Ordering::Relaxed);
        }
        if shared.tracker == TrackerKind::Mindicator {
            flow.vt = Some(state.vt());
            self.show_lead();
        }
    }

    /// Charges the flow for requests completed here, and moves global virtual time. `last`: the
    /// flow has nothing in flight here from now on.
    fn publish(&mut self, slot: usize, last: bool, now_ns: u64) {
        let (shared, flow) = (&*self.shared, &mut self.flows[slot]);
        let state = &shared.states[slot];
        let units = flow.normalizer.units(flow.pending, flow.weight);
        let word = VTime::from_units(units).to_word();
        let after = VTime::from_word(state.vt.fetch_add(word, Ordering::Relaxed)).plus(units);
        (flow.pending, flow.published_ns) = (0, now_ns);
        for (sum, blocks) in state.blocks.iter().zip(&mut flow.blocks) {
            sum.fetch_add(std::mem::take(blocks), Ordering::Relaxed);
        }
        state.in_flight.fetch_add(flow.in_flight.wrapping_sub(flow.shown), Ordering::Relaxed);
        flow.shown = flow.in_flight;
        match shared.tracker {
            TrackerKind::Sloppy => shared.moved(slot, after, now_ns),
            TrackerKind::Mindicator => {
                flow.vt = (!last).then_some(after);
                self.show_lead();
            }
            // Ports read the flow's own words.
            TrackerKind::Scan => {}
        }
        if last {
            self.shared.states[slot].leave(now_ns);
        }
    }

    /// Writes the least virtual time of the flows here into the port's leaf of the mindicator.
    fn show_lead(&mut self) {
        let lead = self.flows.iter().filter_map(|flow| flow.vt).reduce(VTime::min);
        let before = std::mem::replace(&mut self.lead, lead);
        if lead == before {
            return;
        }
        let time = &self.shared.time;
        if let Some(lead) = lead
            && before.is_none_or(|before| lead.is_before(before))
        {
            // A leaf is lowered to a point not after virtual time, and raised from there.
            let to = lead.min(time.now());
            time.pin(self.port, to);
            if to == lead {
                return;
            }
        }
        time.raise(self.port, lead);
    }
}

impl<P: Platform> State<P> {
    fn vt(&self) -> VTime {
        VTime::from_word(self.vt.load(Ordering::Relaxed))
    }

    fn is_active(&self, now_ns: u64, grace_ns: u64) -> bool {
        is_active(self.activity.load(Ordering::Acquire), now_ns, grace_ns)
    }

    /// Counts a port that has a request in flight again; returns the state before if no port had
    /// one.
    fn enter(&self, now_ns: u64) -> Option<u64> {
        let old = self.change(|old| match old & PORTS {
            0 => now_ns & !PORTS | 1,
            _ => old + 1,
        });
        (old & PORTS == 0).then_some(old)
    }

    /// Subtracts a port that has none from now on.
    fn leave(&self, now_ns: u64) {
        self.change(|old| match old & PORTS {
            // At least one unit of time: the word of a flow that has been active is not 0.
            1 => (now_ns & !PORTS).max(PORTS + 1),
            _ => old - 1,
        });
    }

    fn change(&self, new: impl Fn(u64) -> u64) -> u64 {
        update(&self.activity, |old| Some(new(old)))
    }
}

/// Swaps a word for `new` of it, unless that is `None`; gives the word before.
fn update<A: AtomicWord>(word: &A, new: impl Fn(u64) -> Option<u64>) -> u64 {
    let mut old = word.load(Ordering::Relaxed);
    while let Some(new) = new(old)
        && let Err(now) = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
    {
        old = now;
    }
    old
}

/// Whether a flow with this activity is in flight, or was so within the grace period.
fn is_active(activity: u64, now_ns: u64, grace_ns: u64) -> bool {
    let lasts_ns = now_ns.saturating_sub(activity & !PORTS);
    activity & PORTS > 0 || activity != 0 && lasts_ns <= grace_ns
}

/// Global virtual time, of which `vt` is `ahead` KiU ahead.
fn at(vt: VTime, ahead: i64) -> VTime {
    let units = ahead.unsigned_abs() << KIU;
    if ahead < 0 { vt.plus(units) } else { vt.minus(units) }
}

/// A point in virtual time as gvt's word has it, without a holder.
fn point(vt: VTime) -> u64 {
    vt.units() >> KIU << HOLDER_BITS
}

/// The distance from word `b` to word `a`, in KiU.
fn since(a: u64, b: u64) -> i64 {
    ((a & !HOLDER).wrapping_sub(b & !HOLDER) as i64) >> HOLDER_BITS
}

impl<P: Platform> Shared<P> {
    /// The distance of a flow at `vt` ahead of global virtual time, in KiU. With the scan it
    /// searches all flows that are active at `now_ns`.
    fn ahead(&self, vt: VTime, now_ns: Option<u64>) -> i64 {
        match self.tracker {
            TrackerKind::Mindicator => return vt.since(self.time.now()) >> KIU,
            TrackerKind::Scan => {
                let now_ns = now_ns.unwrap_or_default();
                let active = self.states.iter().filter(|it| it.is_active(now_ns, self.grace_ns));
                if let Some(least) = active.map(State::vt).reduce(VTime::min) {
                    // While no flow is active, the word keeps the last virtual time.
                    update(&self.gvt, |old| (since(point(least), old) > 0).then_some(point(least)));
                    return vt.since(least) >> KIU;
                }
            }
            TrackerKind::Sloppy => {}
        }
        since(point(vt), self.gvt.load(Ordering::Relaxed))
    }

    /// The sloppy word, after a flow's virtual time has come to `after` (Figure 9).
    fn moved(&self, slot: usize, after: VTime, now_ns: u64) {
        // The port that publishes next releases an idle holder's word.
        let word = self.gvt.load(Ordering::Relaxed);
        if let Some(holder) = ((word & HOLDER) as usize).checked_sub(1)
            && !self.states[holder].is_active(now_ns, self.grace_ns)
        {
            update(&self.gvt, |old| (old & HOLDER == word & HOLDER).then_some(old & !HOLDER));
        }
        let (my, me) = (point(after), slot as u64 + 1);
        update(&self.gvt, |old| {
            let moves = match old & HOLDER {
                0 => true,
                // The holder moves the word on; another flow moves it back, and then holds it.
                holder if holder == me => since(my, old) > 0,
                _ => since(my, old) < 0,
            };
            moves.then_some(my | me)
        });
    }

    /// The activity of flows since the last period; a flow that is new or has another weight counts
    /// from the next period on.
    fn samples(&self, last: &mut [Last], now_ns: u64) -> Vec<Sample> {
        let one = |(slot, last): (usize, &mut Last)| {
            let state = &self.states[slot];
            let now = Last {
                of: self.flows.in_slot(slot),
                vt: state.vt(),
                moved: state.moved.load(Ordering::Relaxed),
                blocks: array::from_fn(|class| state.blocks[class].load(Ordering::Relaxed)),
            };
            let before = std::mem::replace(last, now);
            let counts = now.of.is_some() && now.of == before.of;
            (counts && state.is_active(now_ns, self.grace_ns)).then(|| Sample {
                vt: now.vt,
                progress: (now.vt.since(before.vt) as u64)
                    .wrapping_sub(now.moved.wrapping_sub(before.moved)),
                blocks: array::from_fn(|class| now.blocks[class] - before.blocks[class]),
                in_flight: state.in_flight.load(Ordering::Relaxed),
            })
        };
        last.iter_mut().enumerate().filter_map(one).collect()
    }
}

/// The least weights of the classes that have this ratio: the medium one is at the root.
fn registers(ratio: u16) -> [u16; 3] {
    [ratio, (1..=16).find(|root| root * root >= ratio).unwrap_or(16), 1]
}

/// The ratio of the next period (Section 3.2).
fn next(ratio: u16, samples: &[Sample], unfair: u64) -> u16 {
    let foremost = samples.iter().reduce(|a, b| if a.vt.is_before(b.vt) { b } else { a });
    let least = samples.iter().reduce(|a, b| if b.vt.is_before(a.vt) { b } else { a });
    let (Some(foremost), Some(least)) = (foremost, least) else { return ratio };
    let within = |next: u128| {
        u16::try_from(next).map_or(RATIO_MAX, |next| next.clamp(RATIO_FLOOR, RATIO_MAX))
    };
    // Eq. 2.
    if least.vt.is_before(foremost.vt.minus(unfair)) {
        return match least.progress {
            // A flow that got nothing, though it has requests in flight, needs the most.
            0 if least.in_flight > 0 => RATIO_MAX,
            0 => ratio,
            progress => {
                let widened = u128::from(foremost.progress) * u128::from(ratio);
                within(widened / u128::from(progress) + 1)
            }
        };
    }
    // Eq. 3: the time of a flow's blocks in their classes, relative to the high class alone.
    let [h, m, l] = registers(ratio).map(u128::from);
    let slowdown = |sample: &Sample| {
        let [high, medium, low] = sample.blocks.map(u128::from);
        let served = (high + medium + low) * m * l;
        let in_high_only = high * m * l + medium * h * l + low * h * m;
        (served > 0).then(|| in_high_only.div_ceil(served))
    };
    samples.iter().filter_map(slowdown).max().map_or(ratio, within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairq_core::{Native, Op, Topology};

    const MS: u64 = 1_000_000;
    const MIB: u32 = 1 << 20;

    struct Rig {
        policy: StrictD2fq<Native>,
        port: StrictD2fqPort<Native>,
        flows: [FlowId; 2],
        now_ns: u64,
        tag: u32,
    }

    impl Rig {
        fn new() -> Rig {
            let config = D2fqConfig::new(Topology::flat(1), 2, 4096);
            let (policy, mut ports) = StrictD2fq::new(&config, TrackerKind::Sloppy);
            let flows = [(); 2].map(|()| policy.add_flow(Weight::DEFAULT).unwrap());
            Rig { policy, port: ports.remove(0), flows, now_ns: 0, tag: 0 }
        }

        fn submit(&mut self, flow: usize, length: u32) -> (Class, Tag) {
            let tag = Tag(self.tag);
            self.tag += 1;
            let request = Request::new(tag, self.flows[flow], Op::Read, 0, length);
            match self.port.submit(self.now_ns, &request, &mut PortSet::EMPTY.clone()) {
                Ok(Submitted::Issue { class }) => (class, tag),
                other => panic!("{other:?}"),
            }
        }

        fn complete(&mut self, tag: Tag) {
            assert!(self.port.complete(self.now_ns, tag, Outcome::Done, &mut PortSet::default()));
        }

        /// Flow 1 holds gvt with a request that stays in flight, and flow 0 is served this many
        /// MiB.
        fn ahead(mib: usize) -> Rig {
            let mut rig = Rig::new();
            rig.submit(1, 4096);
            let tag = rig.submit(1, MIB / 2).1;
            rig.now_ns += 20 * MS;
            rig.complete(tag);
            for _ in 0..mib {
                let tag = rig.submit(0, MIB).1;
                rig.complete(tag);
            }
            rig
        }

        fn holder(&self) -> u64 {
            self.policy.shared.gvt.load(Ordering::Relaxed) & HOLDER
        }
    }

    #[test]
    fn thresholds_do_not_grow_with_what_is_in_flight() {
        let mut rig = Rig::ahead(20);
        assert!((0..60).all(|_| rig.submit(0, MIB).0 == Class::Low));
        assert_eq!(Rig::ahead(5).submit(0, 4096).0, Class::Medium);
        assert_eq!(Rig::ahead(3).submit(0, 4096).0, Class::High);
    }

    #[test]
    fn idling_erases_debt_after_the_grace_period() {
        for (pause_ns, class) in [(100 * MS, Class::High), (4 * MS, Class::Low)] {
            let mut rig = Rig::ahead(10);
            rig.now_ns += pause_ns;
            assert_eq!(rig.submit(0, 4096).0, class, "{pause_ns} ns");
        }
    }

    /// An idle holder keeps the word until its grace period is over; the next flow that publishes
    /// takes the word, at its own virtual time.
    #[test]
    fn the_first_to_come_takes_an_idle_holders_word() {
        let mut rig = Rig::new();
        let tag = rig.submit(1, MIB / 2).1;
        rig.complete(tag);
        assert_eq!(rig.holder(), 2);
        for (pause_ns, holder) in [(4 * MS, 2), (2 * MS, 1)] {
            rig.now_ns += pause_ns;
            let tag = rig.submit(0, 4 * MIB).1;
            rig.complete(tag);
            assert_eq!(rig.holder(), holder);
        }
        // It began at gvt, half a MiB.
        assert_eq!(rig.policy.stats().virtual_time, Some(17 << 19));
    }

    #[test]
    fn the_registers_are_as_large_as_fits() {
        for ratio in 1..=RATIO_MAX {
            let rig = Rig::new();
            rig.policy.ratio.store(ratio, Ordering::Relaxed);
            let weights = rig.policy.class_weights().unwrap();
            assert_eq!(weights.high, ratio * weights.low);
            assert!(weights.high <= 256 && weights.high + ratio > 256);
            assert!((weights.low..=weights.high).contains(&weights.medium));
        }
    }

    #[test]
    fn the_ratio_follows_equations_2_and_3() {
        let unfair = 16 << 20;
        let sample = |mib: u64, progress, blocks| {
            let vt = VTime::from_units(mib << 20);
            Sample { vt, progress, blocks, in_flight: 4096 }
        };
        let most = || sample(40, 700, [0, 0, 100]);
        let least = || sample(10, 100, [300, 0, 0]);
        assert_eq!(next(3, &[most(), least()], unfair), 22, "Figure 6: 7 x 3 + 1");
        let stuck = sample(0, 0, [0; 3]);
        assert_eq!(next(3, &[most(), least(), stuck], unfair), 256, "it got nothing");
        let unpublished = Sample { in_flight: 0, ..sample(0, 0, [0; 3]) };
        assert_eq!(next(3, &[most(), unpublished], unfair), 3, "nothing to divide by");
        let small = sample(0, 1, [300, 0, 0]);
        assert_eq!(next(3, &[most(), least(), small], unfair), 256, "f_min is any flow");
        let near = sample(20, 100, [100, 0, 100]);
        assert_eq!(next(9, &[near, sample(24, 100, [1, 0, 0])], unfair), 5, "Eq. 3");
        assert_eq!(next(77, &[], unfair), 77, "no samples, no change");
    }

    #[test]
    fn equation_3_counts_blocks() {
        let mut rig = Rig::ahead(0);
        rig.policy.tick(rig.now_ns, &mut PortSet::default());
        let tag = rig.submit(0, MIB).1;
        rig.complete(tag);
        let mut last = [Last::default(); 2];
        for _ in 0..2 {
            rig.policy.shared.samples(&mut last, rig.now_ns);
        }
        assert_eq!(last[0].blocks, [2048, 0, 0]);
    }
}
