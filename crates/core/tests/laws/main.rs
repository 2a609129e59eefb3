//! The laws of fair queueing, applied to every policy.
//!
//! Each `law_*` module states one law, checks it for any [`world::Subject`], and shows that it catches a policy that is
//! [broken on purpose](canary). Here the laws are applied, and the exemptions stated.

mod baselines;
mod canary;
mod closed;
mod law_fairness;
mod law_idle;
mod law_order;
mod law_requests;
mod law_shares;
mod law_slots;
mod law_virtual_time;
mod law_work;
mod reference;
mod script;
mod world;

use fairq_core::d2fq::{D2fq, D2fqConfig, D2fqPort, TrackerKind};
use fairq_core::mqfq::{Mqfq, MqfqConfig, MqfqPort, SlotKind, Topology, UnthrottleKind, VirtualTimeKind};
use fairq_core::none::{NonePolicy, NonePort};
use fairq_core::sfqd::{Sfqd, SfqdPort};

use world::{Shape, Subject};

struct None;

impl Subject for None {
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

struct SfqD;

impl Subject for SfqD {
    type Policy = Sfqd;
    fn build(&self, shape: &Shape) -> (Sfqd, Vec<SfqdPort>) {
        Sfqd::new(&canary::serial_config(shape)).expect("the shape is legal")
    }
    /// The order is one for all ports.
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// MQFQ, or one of the alternatives that the paper compares its parts with.
#[derive(Clone, Copy, Debug)]
enum Multi {
    Paper,
    ArrayScan,
    AtomicCounter,
    ScalableBitmap,
    Polling,
    Serial,
    /// Cores of two threads on two sockets.
    Sockets,
}

impl Subject for Multi {
    type Policy = Mqfq;
    fn build(&self, shape: &Shape) -> (Mqfq, Vec<MqfqPort>) {
        let sockets = Topology::new((0..shape.ports as u16).map(|port| (port / 3, port / 2)).collect());
        let flat = Topology::flat(shape.ports);
        let topology = if matches!(self, Multi::Sockets) { sockets } else { flat };
        let mut config = MqfqConfig::new(topology, shape.flows, shape.tags);
        config.slots = shape.slots;
        config.threshold_bytes = shape.threshold;
        config.cost = shape.cost;
        match self {
            Multi::Paper | Multi::Sockets => {}
            Multi::ArrayScan => config.virtual_time = VirtualTimeKind::ArrayScan,
            Multi::AtomicCounter => config.slot_kind = SlotKind::AtomicCounter,
            Multi::ScalableBitmap => config.slot_kind = SlotKind::ScalableBitmap,
            Multi::Polling => config.unthrottle = UnthrottleKind::Polling { period_ns: 1000 },
            Multi::Serial => config.serial = true,
        }
        Mqfq::new(config).expect("the shape is legal")
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// The laws that fair, work-conserving policies keep, whatever their order.
macro_rules! laws_of_fair_queueing {
    ($subject:expr, thresholds: $thresholds:expr) => {
        crate::laws_of_fair_queueing!($subject, thresholds: $thresholds, exempt: |kind| kind);
    };
    ($subject:expr, thresholds: $thresholds:expr, exempt: $exempt:expr) => {
        use super::*;

        fn with_thresholds(law: impl Fn(u64) -> Result<(), String>) {
            for threshold in $thresholds {
                law(threshold).unwrap_or_else(|why| panic!("T = {threshold}: {why}"));
            }
        }

        #[test]
        fn bounded_unfairness() {
            law_fairness::holds_for(&$subject, $exempt).unwrap();
        }
        #[test]
        fn slots() {
            law_slots::holds(&$subject).unwrap();
        }
        #[test]
        fn virtual_time() {
            law_virtual_time::holds(&$subject).unwrap();
            law_virtual_time::survives_the_wrap(&$subject).unwrap();
        }
        #[test]
        fn work_conserving() {
            law_work::holds(&$subject).unwrap();
        }
        #[test]
        fn requests() {
            law_requests::holds(&$subject).unwrap();
        }
        #[test]
        fn returning_starves_nobody() {
            with_thresholds(|threshold| law_idle::returning_starves_nobody(&$subject, 1, threshold));
            with_thresholds(|threshold| law_idle::returning_starves_nobody(&$subject, 2, threshold));
        }
        #[test]
        fn one_at_a_time_beside_a_flood() {
            with_thresholds(|threshold| law_idle::one_at_a_time_beside_a_flood(&$subject, 1, threshold));
            with_thresholds(|threshold| law_idle::one_at_a_time_beside_a_flood(&$subject, 2, threshold));
        }
        #[test]
        fn two_shards_at_depth_one() {
            with_thresholds(|threshold| law_idle::two_shards_at_depth_one(&$subject, threshold));
        }
        #[test]
        fn five_to_one_over_two_ports() {
            with_thresholds(|threshold| law_shares::five_to_one_over_two_ports(&$subject, threshold));
        }
        #[test]
        fn three_to_one_whatever_the_sum() {
            with_thresholds(|threshold| law_shares::three_to_one_whatever_the_sum(&$subject, threshold));
        }
        #[test]
        fn scaling_weights_changes_nothing() {
            for ports in [1, 2] {
                with_thresholds(|threshold| law_shares::scaling_weights_changes_nothing(&$subject, ports, threshold));
            }
        }
        #[test]
        fn remainders_are_kept() {
            law_shares::remainders_are_kept(&$subject).unwrap();
        }
    };
}

pub(crate) use laws_of_fair_queueing;

/// SFQ(D): all laws.
mod sfqd {
    laws_of_fair_queueing!(SfqD, thresholds: [0]);

    #[test]
    fn order_of_sfq_at_any_depth() {
        law_order::holds_at_any_depth(&SfqD, reference::VirtualTime::LastDispatched).unwrap();
        law_order::holds_for_backlogged_flows(&SfqD).unwrap();
    }
}

/// None stages nothing and promises no fairness: the laws of requests only.
mod none {
    use super::*;

    #[test]
    fn requests() {
        law_requests::holds(&None).unwrap();
    }
    #[test]
    fn work_conserving() {
        law_work::holds(&None).unwrap();
    }
    #[test]
    fn is_not_fair() {
        law_shares::five_to_one_over_two_ports(&None, 0).unwrap_err();
    }
}

/// D2FQ. What it owes in shares it owes on a device with classes: see `tests/d2fq`.
struct Direct(TrackerKind, bool);

impl Subject for Direct {
    type Policy = D2fq;
    fn build(&self, shape: &Shape) -> (D2fq, Vec<D2fqPort>) {
        let mut config = D2fqConfig::new(Topology::flat(shape.ports), shape.flows, shape.tags);
        (config.tracker, config.strict_paper) = (self.0, self.1);
        config.cost = shape.cost;
        D2fq::new(config).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

/// D2FQ stages nothing and has no slots: the laws of requests, with each tracker.
#[test]
fn d2fq_requests() {
    for tracker in [TrackerKind::Sloppy, TrackerKind::Scan, TrackerKind::Mindicator] {
        for strict in [false, true] {
            law_requests::holds(&Direct(tracker, strict)).unwrap();
            law_work::holds(&Direct(tracker, strict)).unwrap();
        }
    }
}

/// MQFQ with a larger threshold than it says.
struct Overstepping;

impl Subject for Overstepping {
    type Policy = Mqfq;
    fn build(&self, shape: &Shape) -> (Mqfq, Vec<MqfqPort>) {
        Multi::Paper.build(&Shape { threshold: 4 * shape.threshold + 16_384, ..*shape })
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn assigns_to_ports(&self) -> bool {
        false
    }
}

#[test]
fn a_threshold_that_is_not_kept_is_noticed() {
    canary::caught(law_fairness::holds(&Overstepping), "counted at dispatch");
}

/// MQFQ: all laws, with T and without. Its order with T = 0 is that of SFQ with MQFQ's virtual time.
macro_rules! laws_of_mqfq {
    ($($name:ident: $subject:expr),*) => {$(
        mod $name {
            laws_of_fair_queueing!($subject, thresholds: [0, 16_384, 46_080]);

            #[test]
            fn order_of_sfq() {
                law_order::holds(&$subject, reference::VirtualTime::LeastStaged).unwrap();
                law_order::holds_for_backlogged_flows(&$subject).unwrap();
            }
        }
    )*};
}

laws_of_mqfq!(
    mqfq: Multi::Paper,
    mqfq_array_scan: Multi::ArrayScan,
    mqfq_atomic_counter: Multi::AtomicCounter,
    mqfq_scalable_bitmap: Multi::ScalableBitmap,
    mqfq_polling: Multi::Polling,
    mqfq_serial: Multi::Serial,
    mqfq_sockets: Multi::Sockets
);
