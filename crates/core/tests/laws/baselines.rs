//! The laws applied to the schedulers that the papers compare with, and to NASS around them.
//!
//! *FIOPS* shares requests, whatever their length: it is looked at where all have the same. *BFQ* is fair within budgets,
//! which are small here, to the weights that flows have had since before they were backlogged. *FlashFQ* is looked at
//! with requests that cost their length. *CFQ* shares time, which scripts do not have: its own tests look at its shares.
//! What anticipates is not work conserving, nor is CFQ with its quantum, nor NASS, which keeps places free on purpose;
//! NASS is fair to what no law of dispatches says.

use fairq_core::bfq::{Bfq, BfqConfig, BfqPort, Budgets};
use fairq_core::cfq::{Cfq, CfqConfig, CfqPort, TimeSlices};
use fairq_core::fiops::{Fiops, FiopsPort, VirtualIops};
use fairq_core::flashfq::{FlashFq, FlashFqConfig, FlashFqPort, Throttled};
use fairq_core::nass::{NassConfig, NassOver, NassPort};
use fairq_core::serial::SerialPolicy;
use fairq_core::sfqd::StartTime;

use crate::canary::serial_config;
use crate::script::Kind;
use crate::world::{Shape, Subject};
use crate::{SfqD, law_fairness, law_idle, law_merge, law_requests, law_shares, law_slots, law_virtual_time, law_work};

/// Lengths that all cost the same: 4096 is what flushes and discards cost.
const ONE_LENGTH: &[u32] = &[4096];
/// A budget smaller than some requests.
const BUDGET: u64 = 64 << 10;
/// In scripts, where every verb takes a nanosecond.
const IDLE_NS: u64 = 50;

struct ByIops;

impl Subject for ByIops {
    type Policy = Fiops;
    fn build(&self, shape: &Shape) -> (Fiops, Vec<FiopsPort>) {
        Fiops::new(&serial_config(shape)).expect("the shape is legal")
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
struct ByBudgets {
    idle_ns: u64,
}

impl ByBudgets {
    fn config(self) -> BfqConfig {
        BfqConfig { budget_bytes: BUDGET, idle_ns: self.idle_ns, ..Default::default() }
    }
}

impl Subject for ByBudgets {
    type Policy = Bfq;
    fn build(&self, shape: &Shape) -> (Bfq, Vec<BfqPort>) {
        Bfq::new(&serial_config(shape), &self.config()).expect("the shape is legal")
    }
    /// A budget at the least weight.
    fn threshold(&self, _shape: &Shape) -> u64 {
        BUDGET * 100
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct ByDeviceTime {
    idle_ns: u64,
}

impl ByDeviceTime {
    fn config(self, shape: &Shape) -> FlashFqConfig {
        FlashFqConfig { threshold_bytes: shape.threshold, idle_ns: self.idle_ns, request_bytes: 0 }
    }
}

impl Subject for ByDeviceTime {
    type Policy = FlashFq;
    fn build(&self, shape: &Shape) -> (FlashFq, Vec<FlashFqPort>) {
        FlashFq::new(&serial_config(shape), &self.config(shape)).expect("the shape is legal")
    }
    fn threshold(&self, shape: &Shape) -> u64 {
        shape.threshold
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
struct BySlices {
    idle_ns: u64,
}

impl BySlices {
    fn config(self) -> CfqConfig {
        CfqConfig { slice_ns: 400, target_ns: 1200, quantum: 3, idle_ns: self.idle_ns }
    }
}

impl Subject for BySlices {
    type Policy = Cfq;
    fn build(&self, shape: &Shape) -> (Cfq, Vec<CfqPort>) {
        Cfq::new(&serial_config(shape), &self.config()).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

/// NASS, small enough for its limits to matter, around a scheduler.
struct Limited<F>(F);

impl<S: SerialPolicy, F: Fn(&Shape) -> S> Subject for Limited<F> {
    type Policy = NassOver<S>;
    fn build(&self, shape: &Shape) -> (NassOver<S>, Vec<NassPort<S>>) {
        let nass = NassConfig {
            channels: 3,
            history: 12,
            reserve: 2,
            queue_length: 6,
            sequentiality: true,
            ..NassConfig::default()
        };
        NassOver::new((self.0)(shape), &serial_config(shape), &nass).expect("the shape is legal")
    }
    fn threshold(&self, _shape: &Shape) -> u64 {
        0
    }
    fn assigns_to_ports(&self) -> bool {
        true
    }
}

mod fiops {
    crate::laws_of_fair_queueing!(ByIops, thresholds: [0], exempt: |kind| Kind { lengths: ONE_LENGTH, ..kind });
}

/// But for remainders and wrap-around, which are looked at in orders and to a thousandth: budgets are coarser.
mod bfq_na {
    use super::*;

    const SUBJECT: ByBudgets = ByBudgets { idle_ns: 0 };

    #[test]
    fn bounded_unfairness() {
        law_fairness::holds_for(&SUBJECT, |kind| Kind { control: false, ..kind }).unwrap();
    }
    #[test]
    fn slots() {
        law_slots::holds(&SUBJECT).unwrap();
    }
    #[test]
    fn virtual_time() {
        law_virtual_time::holds(&SUBJECT).unwrap();
    }
    #[test]
    fn work_conserving() {
        law_work::holds(&SUBJECT).unwrap();
    }
    #[test]
    fn requests() {
        law_requests::holds(&SUBJECT).unwrap();
    }
    #[test]
    fn idle_flows_gain_no_credit() {
        for ports in [1, 2] {
            law_idle::returning_starves_nobody(&SUBJECT, ports, 0).unwrap();
            law_idle::one_at_a_time_beside_a_flood(&SUBJECT, ports, 0).unwrap();
        }
        law_idle::two_shards_at_depth_one(&SUBJECT, 0).unwrap();
    }
    #[test]
    fn shares() {
        law_shares::five_to_one_over_two_ports(&SUBJECT, 0).unwrap();
        law_shares::three_to_one_whatever_the_sum(&SUBJECT, 0).unwrap();
        law_shares::scaling_weights_changes_nothing(&SUBJECT, 2, 0).unwrap();
    }
}

mod flashfq_na {
    const SUBJECT: ByDeviceTime = ByDeviceTime { idle_ns: 0 };
    crate::laws_of_fair_queueing!(SUBJECT, thresholds: [0, 16_384]);
}

/// What every policy keeps that holds requests back.
macro_rules! laws_of_requests {
    ($($name:ident: $subject:expr),*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn requests() {
                law_requests::holds(&$subject).unwrap();
            }
            #[test]
            fn slots() {
                law_slots::holds(&$subject).unwrap();
            }
            #[test]
            fn virtual_time() {
                law_virtual_time::holds(&$subject).unwrap();
            }
            #[test]
            fn merging() {
                law_merge::holds(&$subject).unwrap();
            }
        }
    )*};
}

laws_of_requests!(
    cfq: BySlices { idle_ns: IDLE_NS },
    cfq_na: BySlices { idle_ns: 0 },
    bfq: ByBudgets { idle_ns: IDLE_NS },
    flashfq: ByDeviceTime { idle_ns: IDLE_NS },
    nass_cfq: Limited(|shape: &Shape| {
        TimeSlices::new(&serial_config(shape), &BySlices { idle_ns: 0 }.config()).expect("legal")
    }),
    nass_bfq: Limited(|shape: &Shape| {
        Budgets::new(&serial_config(shape), &ByBudgets { idle_ns: 0 }.config()).expect("legal")
    }),
    nass_flashfq: Limited(|shape: &Shape| {
        Throttled::new(&serial_config(shape), &ByDeviceTime { idle_ns: 0 }.config(shape)).expect("legal")
    }),
    nass_fiops: Limited(|shape: &Shape| VirtualIops::new(&serial_config(shape))),
    nass_mqfq: Limited(|shape: &Shape| StartTime::new(&serial_config(shape)))
);

/// Anticipation leaves dispatch as fair as it is without.
#[test]
fn flashfq_is_fair_while_it_anticipates() {
    law_fairness::holds(&ByDeviceTime { idle_ns: IDLE_NS }).unwrap();
}

/// The exemptions are needed: each of these does break the law that it is exempted from.
#[test]
fn exempted_with_reason() {
    law_fairness::holds(&ByIops).unwrap_err();
    law_work::holds(&BySlices { idle_ns: 0 }).unwrap_err();
    law_work::holds(&Limited(|shape: &Shape| VirtualIops::new(&serial_config(shape)))).unwrap_err();
    law_shares::five_to_one_over_two_ports(&BySlices { idle_ns: 0 }, 0).unwrap_err();
    law_idle::two_shards_at_depth_one(&BySlices { idle_ns: IDLE_NS }, 0).unwrap_err();
}

/// Merged requests are paid for as what they are.
#[test]
fn fair_in_bytes_with_merging() {
    law_merge::bounded_unfairness(&SfqD).unwrap();
    law_merge::bounded_unfairness(&ByDeviceTime { idle_ns: 0 }).unwrap();
    law_merge::bounded_unfairness(&ByBudgets { idle_ns: 0 }).unwrap();
}

/// Those whose laws are looked at one by one above.
#[test]
fn merging() {
    law_merge::holds(&SfqD).unwrap();
    law_merge::holds(&ByIops).unwrap();
    law_merge::holds(&ByBudgets { idle_ns: 0 }).unwrap();
    law_merge::holds(&ByDeviceTime { idle_ns: 0 }).unwrap();
}
