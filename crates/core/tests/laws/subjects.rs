//! The policies that the laws are applied to.

use std::sync::atomic::{AtomicU64, Ordering};

use fairq_classic::bfq::{self, Bfq, BfqConfig, BfqPort, BfqScheduler};
use fairq_classic::cfq::{self, Cfq, CfqConfig, CfqPort, CfqScheduler};
use fairq_classic::fiops::{self, Fiops, FiopsConfig, FiopsPort, FiopsScheduler};
use fairq_classic::flashfq::{self, FlashFq, FlashFqConfig, FlashFqPort, FlashFqScheduler};
use fairq_classic::kyber::{Kyber, KyberConfig, KyberPort};
use fairq_classic::nass::{self, NassConfig, NassOver, NassPort};
use fairq_classic::{AnyPolicy, AnyPort, registry};
use fairq_core::d2fq::{D2fq, D2fqConfig, D2fqPort};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig, KyberFairPort, Totals};
use fairq_core::mqfq::{Mqfq, MqfqConfig, MqfqPort};
use fairq_core::none::{NonePolicy, NonePort};
use fairq_core::serial::{Serial, SerialPolicy, SerialPort};
use fairq_core::sfqd::{Sfqd, SfqdPort, SfqdScheduler};
use fairq_core::{
    Cap, Caps, Counted, FlowError, FlowId, Group, GroupId, Limits, Native, Policy, PortSet,
    Reservation, Share, Side, Stats, Target, Topology, Weight,
};

use crate::canary::serial_config;
use crate::strict::d2fq::{StrictD2fq, StrictD2fqPort, TrackerKind};
use crate::strict::mqfq::{MqfqParts, StrictMqfq, StrictMqfqPort, UnthrottleKind, VirtualTimeKind};
use crate::strict::slots::SlotKind;
use crate::strict_nass::StrictNass;
use crate::world::{Shape, TypedSubject};

pub(crate) struct None;

impl TypedSubject for None {
    type Policy = NonePolicy;
    fn build(&self, shape: &Shape) -> (NonePolicy, Vec<NonePort>) {
        NonePolicy::new(shape.ports, shape.flows, shape.tags).expect("the bounds are legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

pub(crate) struct SfqdSubject;

impl TypedSubject for SfqdSubject {
    type Policy = Sfqd;
    fn build(&self, shape: &Shape) -> (Sfqd, Vec<SfqdPort>) {
        Sfqd::new(&serial_config(shape)).expect("the shape is legal")
    }
    /// All ports share one order.
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// MQFQ.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MqfqSubject {
    Flat,
    /// With one lock around dispatches.
    Serial,
    /// Ports as threads on cores of two sockets.
    Sockets,
}

/// Ports as threads on cores of two sockets, three cores each.
fn sockets(ports: usize) -> Topology {
    Topology::new((0..ports as u16).map(|port| (port / 3, port / 2)).collect())
}

impl MqfqSubject {
    fn config(self, shape: &Shape) -> MqfqConfig {
        let topology = match self {
            MqfqSubject::Sockets => sockets(shape.ports),
            _ => Topology::flat(shape.ports),
        };
        MqfqConfig::new(topology, shape.flows, shape.tags).with(|config| {
            config.slots = shape.slots;
            config.threshold_bytes = shape.threshold;
            config.serial = matches!(self, MqfqSubject::Serial);
        })
    }
}

/// MQFQ to the letter of its paper, made of these parts; D and T are the shape's.
#[derive(Clone, Copy)]
pub(crate) struct StrictMqfqSubject {
    parts: MqfqParts,
    on_sockets: bool,
}

const PARTS: MqfqParts = MqfqParts {
    slots: 0,
    threshold: 0,
    virtual_time: VirtualTimeKind::Mindicator,
    slot_kind: SlotKind::TokenTree,
    unthrottle: UnthrottleKind::Wheel,
    serial: false,
};
pub(crate) const FLAT: StrictMqfqSubject = StrictMqfqSubject { parts: PARTS, on_sockets: false };
pub(crate) const SOCKETS: StrictMqfqSubject = StrictMqfqSubject { parts: PARTS, on_sockets: true };

impl StrictMqfqSubject {
    pub(crate) fn timed(mut self, virtual_time: VirtualTimeKind) -> Self {
        self.parts.virtual_time = virtual_time;
        self
    }
    pub(crate) fn counted(mut self, slot_kind: SlotKind) -> Self {
        self.parts.slot_kind = slot_kind;
        self
    }
    pub(crate) fn polling(mut self) -> Self {
        self.parts.unthrottle = UnthrottleKind::Polling { period_ns: 1000 };
        self
    }
    pub(crate) fn behind_a_lock(mut self) -> Self {
        self.parts.serial = true;
        self
    }
}

impl TypedSubject for StrictMqfqSubject {
    type Policy = StrictMqfq<Native>;
    fn build(&self, shape: &Shape) -> (Self::Policy, Vec<StrictMqfqPort<Native>>) {
        let topology = match self.on_sockets {
            true => sockets(shape.ports),
            false => Topology::flat(shape.ports),
        };
        let parts = MqfqParts { slots: shape.slots, threshold: shape.threshold, ..self.parts };
        StrictMqfq::new(parts, &topology, shape.flows, shape.tags)
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn is_relative(&self) -> bool {
        true
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

impl TypedSubject for MqfqSubject {
    type Policy = Mqfq;
    fn build(&self, shape: &Shape) -> (Mqfq, Vec<MqfqPort>) {
        Mqfq::new(self.config(shape)).expect("the shape is legal")
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn is_relative(&self) -> bool {
        true
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// D2FQ. The laws of its shares are in `tests/d2fq`, since they need a device with classes.
pub(crate) struct D2fqSubject;

impl TypedSubject for D2fqSubject {
    type Policy = D2fq;
    fn build(&self, shape: &Shape) -> (D2fq, Vec<D2fqPort>) {
        let config = D2fqConfig::new(Topology::flat(shape.ports), shape.flows, shape.tags);
        D2fq::new(config).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// D2FQ to the letter of its paper.
pub(crate) struct StrictD2fqSubject(pub(crate) TrackerKind);

impl TypedSubject for StrictD2fqSubject {
    type Policy = StrictD2fq<Native>;
    fn build(&self, shape: &Shape) -> (Self::Policy, Vec<StrictD2fqPort<Native>>) {
        let config = D2fqConfig::new(Topology::flat(shape.ports), shape.flows, shape.tags);
        StrictD2fq::new(&config, self.0)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// MQFQ with a larger threshold than it reports.
pub(crate) struct Overstepping;

impl TypedSubject for Overstepping {
    type Policy = Mqfq;
    fn build(&self, shape: &Shape) -> (Mqfq, Vec<MqfqPort>) {
        MqfqSubject::Flat.build(&Shape { threshold: 4 * shape.threshold + 16_384, ..*shape })
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn is_relative(&self) -> bool {
        true
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// The threshold of a policy without virtual time: none. Bounds in units then have no effect; the
/// laws check only its shares and waits.
pub(crate) const NO_VIRTUAL_TIME: u64 = 1 << 50;

/// Kyber with depths of D in each domain, and with targets that nothing misses.
pub(crate) struct KyberSubject;

impl TypedSubject for KyberSubject {
    type Policy = Kyber;
    fn build(&self, shape: &Shape) -> (Kyber, Vec<KyberPort>) {
        let hour_ns = 3_600_000_000_000;
        let config = KyberConfig::new(shape.ports, shape.flows, shape.tags).with(|config| {
            config.depths = [shape.slots; 4];
            config.read_target_ns = hour_ns;
            config.write_target_ns = hour_ns;
            config.discard_target_ns = hour_ns;
            config.merge_bytes = shape.merge_bytes;
        });
        Kyber::new(&config).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// Kyber-fairness with a fixed number of tokens a period. D requests keep the device busy, and the
/// patience is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KyberFairSubject(pub(crate) u64);

/// The same, with a patience.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KyberFairPatient(pub(crate) KyberFairSubject, pub(crate) u32);

impl TypedSubject for KyberFairSubject {
    type Policy = KyberFair;
    fn build(&self, shape: &Shape) -> (KyberFair, Vec<KyberFairPort>) {
        KyberFairPatient(*self, 0).build(shape)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

impl TypedSubject for KyberFairPatient {
    type Policy = KyberFair;
    fn build(&self, shape: &Shape) -> (KyberFair, Vec<KyberFairPort>) {
        let KyberFairPatient(KyberFairSubject(tokens), patience) = *self;
        let config = KyberFairConfig::new(shape.ports, shape.flows, shape.tags).with(|config| {
            config.busy = shape.slots;
            config.patience = patience;
            config.tokens = Totals::fixed(tokens);
            config.measured_writes = false;
            config.merge_bytes = shape.merge_bytes;
        });
        KyberFair::new(&config).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// Kyber-fairness with its default prediction: tokens follow the rate of service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KyberFairPredicting;

impl TypedSubject for KyberFairPredicting {
    type Policy = KyberFair;
    fn build(&self, shape: &Shape) -> (KyberFair, Vec<KyberFairPort>) {
        let config = KyberFairConfig::new(shape.ports, shape.flows, shape.tags).with(|config| {
            config.busy = shape.slots;
            config.merge_bytes = shape.merge_bytes;
        });
        KyberFair::new(&config).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// A budget in bytes, smaller than some requests.
pub(crate) const BUDGET: u64 = 64 << 10;

pub(crate) struct FiopsSubject;

impl TypedSubject for FiopsSubject {
    type Policy = Fiops;
    fn build(&self, shape: &Shape) -> (Fiops, Vec<FiopsPort>) {
        fiops::new(&serial_config(shape), &FiopsConfig::default()).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
    fn counts_requests(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
pub(crate) struct BfqSubject {
    pub(crate) idle_ns: u64,
}

impl BfqSubject {
    fn config(self) -> BfqConfig {
        BfqConfig::default().with(|config| {
            config.budget_bytes = BUDGET;
            config.idle_ns = self.idle_ns;
        })
    }
}

impl TypedSubject for BfqSubject {
    type Policy = Bfq;
    fn build(&self, shape: &Shape) -> (Bfq, Vec<BfqPort>) {
        bfq::new(&serial_config(shape), &self.config()).expect("the shape is legal")
    }
    /// A budget at weight 1.
    fn threshold(&self, _shape: &Shape) -> u64 {
        BUDGET * 100
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
pub(crate) struct FlashFqSubject {
    pub(crate) idle_ns: u64,
}

impl FlashFqSubject {
    fn config(self, shape: &Shape) -> FlashFqConfig {
        FlashFqConfig::default().with(|config| {
            config.threshold_bytes = shape.threshold;
            config.idle_ns = self.idle_ns;
            config.request_bytes = 0;
        })
    }
}

impl TypedSubject for FlashFqSubject {
    type Policy = FlashFq;
    fn build(&self, shape: &Shape) -> (FlashFq, Vec<FlashFqPort>) {
        flashfq::new(&serial_config(shape), &self.config(shape)).expect("the shape is legal")
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn is_relative(&self) -> bool {
        true
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
pub(crate) struct CfqSubject {
    pub(crate) idle_ns: u64,
}

impl CfqSubject {
    fn config(self) -> CfqConfig {
        CfqConfig::default().with(|config| {
            config.slice_ns = 400;
            config.target_ns = 1200;
            config.quantum = 3;
            config.idle_ns = self.idle_ns;
        })
    }
}

impl TypedSubject for CfqSubject {
    type Policy = Cfq;
    fn build(&self, shape: &Shape) -> (Cfq, Vec<CfqPort>) {
        cfq::new(&serial_config(shape), &self.config()).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// CFQ with a given configuration.
pub(crate) struct CfqConfigured(pub(crate) CfqConfig);

impl TypedSubject for CfqConfigured {
    type Policy = Cfq;
    fn build(&self, shape: &Shape) -> (Cfq, Vec<CfqPort>) {
        cfq::new(&serial_config(shape), &self.0).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// A NASS so small that its limits are reached.
fn small_nass() -> NassConfig {
    NassConfig::default().with(|config| {
        config.channels = 3;
        config.history = 12;
        config.reserve = 2;
        config.queue_length = 6;
        config.sequentiality = true;
    })
}

/// [`small_nass`] around a scheduler.
pub(crate) struct Limited<F>(pub(crate) F);

impl<S: SerialPolicy, F: Fn(&Shape) -> S> TypedSubject for Limited<F> {
    type Policy = NassOver<S>;
    fn build(&self, shape: &Shape) -> (NassOver<S>, Vec<NassPort<S>>) {
        nass::new((self.0)(shape), &serial_config(shape), &small_nass())
            .expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// [`small_nass`] by the letter of its paper, around a scheduler.
pub(crate) struct Strictly<F> {
    pub(crate) around: Limited<F>,
    /// β.
    pub(crate) reserve: u32,
}

impl<F> Strictly<F> {
    pub(crate) fn new(around: Limited<F>) -> Strictly<F> {
        Strictly { around, reserve: small_nass().reserve }
    }
}

impl<S: SerialPolicy, F: Fn(&Shape) -> S> TypedSubject for Strictly<F> {
    type Policy = Serial<StrictNass>;
    fn build(&self, shape: &Shape) -> (Serial<StrictNass>, Vec<SerialPort<StrictNass>>) {
        let (inner, bounds) = ((self.around.0)(shape), serial_config(shape));
        let nass = small_nass().with(|config| config.reserve = self.reserve);
        Serial::with_policy(StrictNass::new(Box::new(inner), &bounds, nass), &bounds)
            .expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

type Make<S> = fn(&Shape) -> S;

/// NASS around each of the schedulers, without anticipation.
pub(crate) const AROUND_CFQ: Limited<Make<CfqScheduler>> = Limited(|shape| {
    CfqScheduler::new(&serial_config(shape), &CfqSubject { idle_ns: 0 }.config()).expect("legal")
});
pub(crate) const AROUND_SLICES: Limited<Make<CfqScheduler>> = Limited(|shape| {
    CfqScheduler::new(&serial_config(shape), &CfqConfig::default()).expect("legal")
});
pub(crate) const AROUND_BFQ: Limited<Make<BfqScheduler>> = Limited(|shape| {
    BfqScheduler::new(&serial_config(shape), &BfqSubject { idle_ns: 0 }.config()).expect("legal")
});
pub(crate) const AROUND_FLASHFQ: Limited<Make<FlashFqScheduler>> = Limited(|shape| {
    FlashFqScheduler::new(&serial_config(shape), &FlashFqSubject { idle_ns: 0 }.config(shape))
        .expect("legal")
});
pub(crate) const AROUND_FIOPS: Limited<Make<FiopsScheduler>> =
    Limited(|shape| FiopsScheduler::new(&serial_config(shape), &FiopsConfig::default()));
pub(crate) const AROUND_MQFQ: Limited<Make<SfqdScheduler>> =
    Limited(|shape| SfqdScheduler::new(&serial_config(shape)));

/// Builds a policy of the registry with those of the keys that it has.
pub(crate) fn registered(
    name: &str,
    shape: &Shape,
    keys: &[(&str, u64)],
) -> (AnyPolicy, Vec<AnyPort>) {
    let topology = Topology::flat(shape.ports);
    let of = registry::Shape::new(topology, shape.flows, shape.tags).before(shape.slots);
    let knobs = registry::find(name).expect("it is registered").knobs();
    let has = |(key, _): &(&str, u64)| knobs.iter().any(|knob| knob.key == *key);
    let keys: Vec<_> = keys.iter().copied().filter(has).collect();
    AnyPolicy::new(name, &keys, &of).expect("the shape is legal")
}

/// A policy of the registry by its name, with the shape's D.
pub(crate) struct Registered(pub(crate) &'static str);

impl TypedSubject for Registered {
    type Policy = AnyPolicy;
    fn build(&self, shape: &Shape) -> (AnyPolicy, Vec<AnyPort>) {
        let keys = [
            ("merge", u64::from(shape.merge_bytes)),
            ("threshold", shape.threshold),
            ("slots", u64::from(shape.slots)),
            ("busy", u64::from(shape.slots / 2).max(1)),
        ];
        registered(self.0, shape, &keys)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// A policy of the registry whose flows have reservations. The bucket of each is full at first, so
/// its first requests go ahead; the others do not, since scripts last for microseconds.
pub(crate) struct Reserving(pub(crate) &'static str);

/// A policy that calls `give` for each flow that is added, with its number, counted from 1.
pub(crate) struct Giving {
    policy: AnyPolicy,
    give: fn(&AnyPolicy, FlowId, u64) -> Result<(), FlowError>,
    added: AtomicU64,
}

impl Limits for Giving {}

impl Policy for Giving {
    type Port = AnyPort;

    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        let flow = self.policy.add_flow_as(known, weight)?;
        (self.give)(&self.policy, flow, 1 + self.added.fetch_add(1, Ordering::Relaxed))?;
        Ok(flow)
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.policy.set_weight(flow, weight)
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        self.policy.remove_flow(flow)
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.policy.tick(now_ns, wake)
    }
    fn stats(&self) -> Stats {
        self.policy.stats()
    }
}

/// Sets a reservation, and ticks so that it is granted at once.
fn give_reservation(policy: &AnyPolicy, flow: FlowId, nth: u64) -> Result<(), FlowError> {
    let reservation = Reservation::new(60, 0).expect("legal");
    policy.set_share(flow, &Share { reservation, ..Share::default() })?;
    policy.tick(nth * 10_000_000, &mut PortSet::default());
    Ok(())
}

impl TypedSubject for Reserving {
    type Policy = Giving;
    fn build(&self, shape: &Shape) -> (Giving, Vec<AnyPort>) {
        let (policy, ports) = Registered(self.0).build(shape);
        (Giving { policy, give: give_reservation, added: AtomicU64::new(0) }, ports)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
    fn starts_ns(&self) -> u64 {
        3_600_000_000_000
    }
}

/// A policy of the registry with all settings of a flow: a group, a reservation, a cap and a
/// latency target; D and costs are found automatically.
pub(crate) struct Layered(pub(crate) &'static str);

fn give_all(policy: &AnyPolicy, flow: FlowId, _nth: u64) -> Result<(), FlowError> {
    let (reservation, group) = (Reservation::new(500, 0).expect("legal"), Some(GroupId(0)));
    policy.set_share(flow, &Share { reservation, group })?;
    let cap = Cap::new(8000, 16);
    policy.set_caps(flow, &Caps::default().with(Side::Both, Counted::Requests, cap))?;
    // A direct policy has no D that a target could change.
    match policy.set_target(flow, Target::new(1_000_000, Target::LATE_PPM, 50)) {
        Err(FlowError::NoTargets) => Ok(()),
        outcome => outcome,
    }
}

impl TypedSubject for Layered {
    type Policy = Giving;
    fn build(&self, shape: &Shape) -> (Giving, Vec<AnyPort>) {
        let (policy, ports) = registered(self.0, shape, &[("threshold", shape.threshold)]);
        let group = Group {
            parent: Option::None,
            weight: Weight::DEFAULT,
            reservation: Reservation::NONE,
            caps: Caps::default(),
        };
        policy.set_group(GroupId(0), Some(&group)).expect("there is room for a group");
        (Giving { policy, give: give_all, added: AtomicU64::new(0) }, ports)
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        NO_VIRTUAL_TIME
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}
