//! D2FQ to the letter of its paper (Woo, Ahn, Lee and Jeong, USENIX FAST 2021), with the three ways
//! of finding global virtual time that its Figure 17 compares.
//!
//! **Differences from `fairq_core::d2fq`.** Thresholds stay as configured, independent of the bytes
//! that a flow has in flight and of the device's speed. Global virtual time (gvt) has no floor, and
//! a flow that sends again after the grace period starts at gvt. The first flow that publishes
//! takes a word that no flow holds, and an idle holder keeps it for the grace period. f_min of Eq.
//! 2 may be any flow; Eq. 3 counts blocks of 512 bytes; the classes' weights are multiplied until
//! the weight of the high class is the largest that fits.
//!
//! **Shared words.** One cache line of a flow contains its virtual time, the number of ports on
//! which it has requests in flight, and the start of that activity. A port publishes a flow's
//! service after each eighth of tau_l divided by the number of ports, as the core's ports do. With
//! the sloppy tracker a publication writes one more word; with the mindicator it writes the port's
//! leaf and the nodes above; with the scan each submission reads the lines of all flows.
//!
//! **Example.** Flows a (weight 300) and b (weight 100) send 4 KiB reads; tau_l is 8 MiB. Both get
//! the same service in the high class until b is 8 MiB ahead of a in virtual time, after 12 MiB of
//! service each; then b's requests go to the low class.

use std::array;
use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex};

use fairq_core::d2fq::activity::FlowState;
use fairq_core::d2fq::ratio::{RATIO_MAX, Sample, class_weights, decreased, increased};
use fairq_core::d2fq::{D2fqConfig, Ratio};
use fairq_core::platform::{AtomicWord, Ordering, Platform};
use fairq_core::structures::flow_table::FlowTable;
use fairq_core::structures::mindicator::VirtualTime;
use fairq_core::structures::port_flows::PortFlows;
use fairq_core::vtime::{LIFT_PERIOD_NS, Normalizer, VTime};
use fairq_core::{
    Class, ClassWeights, FlowError, FlowId, FlowStats, Growth, Limits, Next, Outcome, Policy, Port,
    PortId, PortSet, Reason, Request, Stats, SubmitError, Submitted, Tag, Weight,
};

/// The way in which global virtual time is found (Figure 17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrackerKind {
    /// One word that its holder moves forward (Section 3.4).
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

/// D2FQ's control side.
pub struct StrictD2fq<P: Platform> {
    shared: Arc<Shared<P>>,
    /// The time of the next adjustment, in nanoseconds, and each flow at the end of the last
    /// period.
    adjuster: Mutex<(u64, Vec<Last>)>,
    ratio: AtomicU16,
}

struct Shared<P: Platform> {
    config: D2fqConfig,
    tracker: TrackerKind,
    flows: FlowTable<P>,
    states: Box<[FlowState<P>]>,
    /// Blocks of 512 bytes that each flow has submitted to the high, medium and low class.
    blocks: Box<[[AtomicU64; 3]]>,
    gvt: P::U64,
    /// The tree of minima, used only by [`TrackerKind::Mindicator`].
    time: VirtualTime<P>,
}

/// A flow at the end of a period.
#[derive(Clone, Copy, Default)]
struct Last {
    of: Option<(FlowId, Weight)>,
    vt: VTime,
    moved: u64,
    blocks: [u64; 3],
}

/// A port of D2FQ.
pub struct StrictD2fqPort<P: Platform> {
    shared: Arc<Shared<P>>,
    port: PortId,
    flows: PortFlows<PortFlow>,
    /// The seat and the cost of each live request, by tag.
    live: Vec<Option<(usize, u64)>>,
    /// The port's leaf of the mindicator.
    lead: Option<VTime>,
}

/// A flow on one port: bytes completed and not published, the time of the last publication, and
/// virtual time while it has requests here.
#[derive(Default)]
struct PortFlow {
    pending: u64,
    published_ns: u64,
    normalizer: Normalizer,
    vt: Option<VTime>,
}

impl<P: Platform> StrictD2fq<P> {
    /// The policy and its ports, for a legal configuration.
    pub fn new(config: &D2fqConfig, tracker: TrackerKind) -> (Self, Vec<StrictD2fqPort<P>>) {
        let (ports, flows) = (config.ports.ports(), config.flows);
        let shared = Arc::new(Shared {
            config: config.clone(),
            tracker,
            flows: FlowTable::new(flows, ports),
            states: (0..flows).map(|_| FlowState::new()).collect(),
            blocks: (0..flows).map(|_| Default::default()).collect(),
            gvt: P::U64::new(0),
            time: VirtualTime::new(config.ports.tree()),
        });
        let port = |port| StrictD2fqPort {
            port,
            flows: PortFlows::new(port, &shared.flows, config.tags),
            live: vec![None; config.tags],
            lead: None,
            shared: shared.clone(),
        };
        let handles = (0..ports).map(|number| port(PortId(number as u8))).collect();
        let (Ratio::Dynamic { initial: ratio } | Ratio::Static(ratio)) = config.ratio;
        let adjuster = Mutex::new((0, vec![Last::default(); flows]));
        (StrictD2fq { adjuster, ratio: AtomicU16::new(ratio), shared }, handles)
    }
}

impl<P: Platform> Limits for StrictD2fq<P> {}

impl<P: Platform> Policy for StrictD2fq<P> {
    type Port = StrictD2fqPort<P>;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let Shared { flows, states, gvt, .. } = &*self.shared;
        flows.add(known, weight, |slot| {
            // If the flow that had this slot still holds gvt's word, the word is released, because
            // the new flow does not hold it.
            let is_its = |word| word & HOLDER == slot as u64 + 1;
            update(gvt, |word| is_its(word).then_some(word & !HOLDER));
            let old = states[slot].vt();
            states[slot].reset(at(old, self.shared.ahead(old, 0)));
        })
    }

    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.shared.flows.set_weight(flow, weight)
    }

    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.shared.flows.close(flow)
    }

    fn tick(&self, now_ns: u64, _wake: &mut PortSet) -> Option<u64> {
        let config = &self.shared.config;
        if matches!(config.ratio, Ratio::Static(_)) {
            return Some(now_ns.saturating_add(LIFT_PERIOD_NS));
        }
        let mut adjuster = self.adjuster.lock().expect("nothing fails while it is held");
        let (due_ns, flows) = &mut *adjuster;
        if now_ns >= *due_ns {
            *due_ns = now_ns.saturating_add(config.period_ns);
            let samples = self.shared.samples(flows, now_ns);
            let ratio = next(self.ratio.load(Ordering::Relaxed), &samples, config.unfair());
            self.ratio.store(ratio, Ordering::Relaxed);
        }
        Some(*due_ns)
    }

    /// The weights, multiplied until that of the high class is the largest that fits, as the
    /// authors set them.
    fn class_weights(&self) -> Option<ClassWeights> {
        let ratio = self.ratio.load(Ordering::Relaxed);
        let times = RATIO_MAX / ratio.max(1);
        let ClassWeights { high, medium, low } = class_weights(ratio);
        Some(ClassWeights { high: high * times, medium: medium * times, low: low * times })
    }

    fn stats(&self) -> Stats {
        let Shared { tracker, time, gvt, .. } = &*self.shared;
        let units = match tracker {
            TrackerKind::Mindicator => time.now().units(),
            _ => gvt.load(Ordering::Relaxed) >> HOLDER_BITS << KIU,
        };
        Stats { virtual_time: Some(units), ..Stats::default() }
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
        let (flow, cost) = (request.flow, request.cost.alone.max(1));
        let (_, seat) = self.flows.admit(&self.shared.flows, flow, request.tag, |_, _| ())?;
        self.live[tag] = Some((seat, cost));
        if self.flows.live(seat) == 1 {
            self.activate(flow.slot(), seat, now_ns);
        }
        let Shared { config, states, blocks, .. } = &*self.shared;
        // Eq. 1.
        let ahead = self.shared.ahead(states[flow.slot()].vt(), now_ns);
        let (class, which) = match ahead {
            ahead if ahead < (config.medium() >> KIU) as i64 => (Class::High, 0),
            ahead if ahead < (config.low() >> KIU) as i64 => (Class::Medium, 1),
            _ => (Class::Low, 2),
        };
        blocks[flow.slot()][which].fetch_add((cost / 512).max(1), Ordering::Relaxed);
        Ok(Submitted::Issue { class })
    }

    fn next(&mut self, _now_ns: u64, wake: &mut PortSet) -> Next {
        self.flows.poll(&self.shared.flows, wake);
        Next::Idle
    }

    fn complete(&mut self, now_ns: u64, tag: Tag, _outcome: Outcome, _wake: &mut PortSet) -> bool {
        let live = self.live.get_mut(tag.0 as usize).and_then(Option::take);
        let Some((seat, cost)) = live else { return false };
        let last = self.flows.live(seat) == 1;
        let slot = self.flows.owner(seat).map_or(0, FlowId::slot);
        let Shared { config, flows, .. } = &*self.shared;
        let Some(flow) = self.flows.kept_mut(seat) else { return false };
        flow.pending += cost;
        // As in the core, all ports together hold at most an eighth of tau_l unpublished.
        let batch = config.low() / (8 * config.ports.ports() as u64).max(64);
        let units = Normalizer::default().units(flow.pending, flows.weight_in(slot));
        if last || units >= batch || now_ns >= flow.published_ns + config.period_ns / 64 {
            self.publish(slot, seat, last, now_ns);
        }
        self.flows.finish(&self.shared.flows, seat);
        true
    }

    fn has_work(&self) -> bool {
        self.flows.has_closings(&self.shared.flows)
    }

    unused_verbs!();
}

impl<P: Platform> StrictD2fqPort<P> {
    /// Marks the flow as active on this port, where it has a request again.
    fn activate(&mut self, slot: usize, seat: usize, now_ns: u64) {
        let (shared, Some(flow)) = (&*self.shared, self.flows.kept_mut(seat)) else { return };
        flow.published_ns = now_ns;
        let state = &shared.states[slot];
        // Read before the flow itself counts as active.
        let ahead = shared.ahead(state.vt(), now_ns);
        if let Some(was) = state.enter(now_ns)
            && !was.is_active(now_ns, shared.config.grace_ns)
        {
            // Idling erases debt (decision 5).
            let before = state.vt();
            state.shift(|vt| (vt == before && ahead != 0).then(|| at(vt, ahead)));
        }
        if shared.tracker == TrackerKind::Mindicator {
            flow.vt = Some(state.vt());
            self.show_lead();
        }
    }

    /// Charges the flow for requests completed here, and moves global virtual time. `last` means
    /// that the flow has nothing in flight on this port from now on.
    fn publish(&mut self, slot: usize, seat: usize, last: bool, now_ns: u64) {
        let (shared, Some(flow)) = (&*self.shared, self.flows.kept_mut(seat)) else { return };
        let state = &shared.states[slot];
        let units = flow.normalizer.units(flow.pending, shared.flows.weight_in(slot));
        let after = state.charge(units).plus(units);
        (flow.pending, flow.published_ns) = (0, now_ns);
        match shared.tracker {
            TrackerKind::Sloppy => shared.moved(slot, after, now_ns),
            TrackerKind::Mindicator => {
                flow.vt = (!last).then_some(after);
                self.show_lead();
            }
            // Nothing to publish: with the scan, ports read the flow's own words.
            TrackerKind::Scan => {}
        }
        if last {
            self.shared.states[slot].leave(now_ns);
        }
    }

    /// Writes the least virtual time of the flows here into the port's leaf of the mindicator.
    fn show_lead(&mut self) {
        let times = (0..self.flows.seats()).filter_map(|seat| self.flows.kept(seat)?.vt);
        let lead = times.reduce(VTime::min);
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

/// Replaces a word by `new(word)`, unless that is `None`.
fn update<A: AtomicWord>(word: &A, new: impl Fn(u64) -> Option<u64>) {
    let mut old = word.load(Ordering::Relaxed);
    while let Some(new) = new(old)
        && let Err(now) = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
    {
        old = now;
    }
}

/// Global virtual time, of which `vt` is `ahead` KiU ahead.
fn at(vt: VTime, ahead: i64) -> VTime {
    let units = ahead.unsigned_abs() << KIU;
    if ahead < 0 { vt.plus(units) } else { vt.minus(units) }
}

/// A point in virtual time in the format of gvt's word, without a holder.
fn point(vt: VTime) -> u64 {
    vt.units() >> KIU << HOLDER_BITS
}

/// The distance from word `b` to word `a`, in KiU.
fn since(a: u64, b: u64) -> i64 {
    ((a & !HOLDER).wrapping_sub(b & !HOLDER) as i64) >> HOLDER_BITS
}

impl<P: Platform> Shared<P> {
    fn is_active(&self, slot: usize, now_ns: u64) -> bool {
        self.states[slot].activity().is_active(now_ns, self.config.grace_ns)
    }

    /// The distance of a flow at `vt` ahead of global virtual time, in KiU.
    fn ahead(&self, vt: VTime, now_ns: u64) -> i64 {
        match self.tracker {
            TrackerKind::Mindicator => return vt.since(self.time.now()) >> KIU,
            TrackerKind::Scan => {
                let active = (0..self.states.len()).filter(|slot| self.is_active(*slot, now_ns));
                let least = active.map(|slot| self.states[slot].vt()).reduce(VTime::min);
                // While no flow is active, the word keeps the last virtual time.
                if let Some(least) = least {
                    let to = point(least);
                    update(&self.gvt, |old| (since(to, old) > 0).then_some(to));
                    return vt.since(least) >> KIU;
                }
            }
            TrackerKind::Sloppy => {}
        }
        since(point(vt), self.gvt.load(Ordering::Relaxed))
    }

    /// Updates the sloppy word after a flow's virtual time has risen to `after` (Figure 9).
    fn moved(&self, slot: usize, after: VTime, now_ns: u64) {
        // The port that publishes next releases an idle holder's word.
        let holder = self.gvt.load(Ordering::Relaxed) & HOLDER;
        if holder != 0 && !self.is_active(holder as usize - 1, now_ns) {
            update(&self.gvt, |old| (old & HOLDER == holder).then_some(old & !HOLDER));
        }
        let (my, me) = (point(after), slot as u64 + 1);
        update(&self.gvt, |old| {
            let moves = match old & HOLDER {
                0 => true,
                // The holder moves the word forward; another flow that is behind moves it back, and
                // then holds it.
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
            let (state, blocks) = (&self.states[slot], &self.blocks[slot]);
            let now = Last {
                of: self.flows.open_in(slot),
                vt: state.vt(),
                moved: state.moved(),
                blocks: array::from_fn(|class| blocks[class].load(Ordering::Relaxed)),
            };
            let before = std::mem::replace(last, now);
            let counts = now.of.is_some() && now.of == before.of && self.is_active(slot, now_ns);
            let shifted = now.moved.wrapping_sub(before.moved) as i64;
            counts.then(|| Sample {
                vt: now.vt,
                progress: (now.vt.since(before.vt) - shifted).max(0) as u64,
                requests: array::from_fn(|class| now.blocks[class] - before.blocks[class]),
                waits: true,
                in_flight: state.activity().ports(),
            })
        };
        last.iter_mut().enumerate().filter_map(one).collect()
    }
}

/// The ratio of the next period (Section 3.2): by Eq. 2 if a flow is unfairly far behind the
/// foremost, whatever the reason, else by Eq. 3.
fn next(ratio: u16, samples: &[Sample], unfair: u64) -> u16 {
    let foremost = samples.iter().reduce(|a, b| if a.vt.is_before(b.vt) { b } else { a });
    let least = samples.iter().reduce(|a, b| if b.vt.is_before(a.vt) { b } else { a });
    match foremost.zip(least) {
        Some((foremost, least)) if least.vt.is_before(foremost.vt.minus(unfair)) => {
            increased(ratio, foremost, least)
        }
        _ => decreased(ratio, samples),
    }
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
            Sample { vt, progress, requests: blocks, waits: true, in_flight: 1 }
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
        let tag = rig.submit(0, MIB).1;
        rig.complete(tag);
        let blocks = rig.policy.shared.blocks[0].each_ref();
        assert_eq!(blocks.map(|blocks| blocks.load(Ordering::Relaxed)), [2048, 0, 0]);
    }
}
