//! The laws of fair queueing, applied to every policy.
//!
//! Each `law_*` module states one law, checks it for any [`world::Subject`], and shows that it
//! catches a policy that is [broken on purpose](canary). The tables below list the laws of each
//! [policy](subjects), one row each. A policy is exempt from the laws that its row omits, and the
//! row gives the reason. A test at the end shows that the exemptions are needed, for laws that
//! apply to such a policy: bounds in virtual time do not apply to a policy without it.

mod canary;
mod clocked;
mod closed;
mod law_absence;
mod law_crowd;
mod law_fairness;
mod law_growth;
mod law_idle;
mod law_layers;
mod law_live;
mod law_merge;
mod law_order;
mod law_periods;
mod law_rates;
mod law_requests;
mod law_scale;
mod law_shares;
mod law_slots;
mod law_take_back;
mod law_virtual_time;
mod law_work;
mod reference;
mod script;
/// The authors' policies are part of the laboratory; the laws apply to them as to those here.
#[allow(dead_code, unreachable_pub, reason = "the laboratory uses all of it")]
#[path = "../../../sim/src/policies/strict/mod.rs"]
mod strict;
/// The authors' NASS is part of the laboratory; the laws apply to it as to the policies here.
#[path = "../../../sim/src/policies/strict_nass.rs"]
mod strict_nass;
mod subjects;
mod world;

use fairq_classic::cfq::CfqConfig;
use fairq_classic::registry;
use fairq_core::{CostModel, Op};

use clocked::MS;
use law_layers::Every;
use script::{ANYTHING, Kind};
use strict::d2fq::TrackerKind;
use strict::mqfq::VirtualTimeKind;
use strict::slots::SlotKind;
use subjects::*;
use world::{Shape, Subject, World};

/// Lengths with one cost: 4096 is the cost of flushes and discards.
const ONE_LENGTH: &[u32] = &[4096];
/// Anticipation in scripts, in nanoseconds; every verb takes one nanosecond there.
const IDLE_NS: u64 = 50;
const FEW: KyberFairSubject = KyberFairSubject(1 << 18);
/// With the default patience.
const PATIENT: KyberFairPatient = KyberFairPatient(FEW, 64);

/// Applies the law at each of the thresholds.
fn each(thresholds: &[u64], law: impl Fn(u64) -> Result<(), String>) {
    for &threshold in thresholds {
        law(threshold).unwrap_or_else(|why| panic!("T = {threshold}: {why}"));
    }
}

/// A law as a test of the policy `$of`, with thresholds to choose from.
macro_rules! law {
    // Laws of every policy that decides the order, has slots and serves whenever it can.
    (all_but_unfairness, $of:expr, $at:expr) => {
        law!(requests, $of, $at);
        law!(slots, $of, $at);
        law!(virtual_time, $of, $at);
        law!(the_wrap, $of, $at);
        law!(shares_after_absence, $of, $at);
        law!(work_conserving, $of, $at);
        law!(returning_starves_nobody, $of, $at);
        law!(one_at_a_time_beside_a_flood, $of, $at);
        law!(two_shards_at_depth_one, $of, $at);
        law!(five_to_one_over_two_ports, $of, $at);
        law!(three_to_one_whatever_the_sum, $of, $at);
        law!(scaling_weights_changes_nothing, $of, $at);
        law!(remainders_are_kept, $of, $at);
    };
    (all, $of:expr, $at:expr) => {
        law!(all_but_unfairness, $of, $at);
        law!(bounded_unfairness, $of, $at);
    };
    (all_of_mqfq, $of:expr, $at:expr) => {
        law!(all, $of, $at);
        law!(taking_back_all, $of, $at);
        law!(order_of_sfq, $of, $at);
    };
    // Laws of every policy that has slots.
    (taking_back_all, $of:expr, $at:expr) => {
        law!(taking_back, $of, $at);
        law!(taking_back_keeps_slots, $of, $at);
        law!(taking_back_conserves_work, $of, $at);
        law!(taking_back_is_free, $of, $at);
    };
    // The same with many flows on many ports, for policies that decide the order by weight.
    (all_of_crowds, $of:expr, $at:expr) => {
        law!(crowds, $of, $at);
        law!(crowds_keep_slots, $of, $at);
        law!(crowds_share_by_weight, $of, $at);
    };
    (keeping, $of:expr, $at:expr) => {
        law!(requests, $of, $at);
        law!(slots, $of, $at);
        law!(virtual_time, $of, $at);
        law!(absence, $of, $at);
        law!(merging, $of, $at);
        law!(taking_back, $of, $at);
        law!(taking_back_keeps_slots, $of, $at);
    };
    ($law:ident, $of:expr, $at:expr) => {
        #[test]
        fn $law() {
            checks::$law(&$of, &$at);
        }
    };
}

/// The laws by name.
mod checks {
    use super::*;

    pub(crate) fn requests(of: &dyn Subject, _at: &[u64]) {
        law_requests::holds(of).unwrap();
    }
    /// For policies that may leave requests staged.
    pub(crate) fn issued_requests(of: &dyn Subject, _at: &[u64]) {
        law_requests::holds_for_issued(of, ANYTHING).unwrap();
    }
    pub(crate) fn slots(of: &dyn Subject, _at: &[u64]) {
        law_slots::holds(of).unwrap();
    }
    pub(crate) fn virtual_time(of: &dyn Subject, _at: &[u64]) {
        law_virtual_time::holds(of).unwrap();
    }
    pub(crate) fn the_wrap(of: &dyn Subject, _at: &[u64]) {
        law_virtual_time::survives_the_wrap(of).unwrap();
    }
    pub(crate) fn absence(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_absence::holds(of, threshold, Option::None));
    }
    pub(crate) fn shares_after_absence(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_absence::holds(of, threshold, Some(40 * MS)));
    }
    /// For policies in which a flow counts from the next period on.
    pub(crate) fn shares_some_periods_after_absence(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_absence::holds(of, threshold, Some(250 * MS)));
    }
    pub(crate) fn weights_change_at_once(of: &dyn Subject, _at: &[u64]) {
        law_live::weights_change_at_once(of).unwrap();
    }
    pub(crate) fn shares_at_any_rate(of: &dyn Subject, _at: &[u64]) {
        law_rates::holds(of).unwrap();
    }
    pub(crate) fn never_idle(of: &dyn Subject, _at: &[u64]) {
        law_work::is_never_idle(of).unwrap();
    }
    pub(crate) fn work_conserving(of: &dyn Subject, _at: &[u64]) {
        law_work::holds(of).unwrap();
    }
    pub(crate) fn taking_back(of: &dyn Subject, _at: &[u64]) {
        law_take_back::holds(of).unwrap();
    }
    pub(crate) fn taking_back_keeps_slots(of: &dyn Subject, _at: &[u64]) {
        law_take_back::keeps_slots(of).unwrap();
    }
    pub(crate) fn taking_back_conserves_work(of: &dyn Subject, _at: &[u64]) {
        law_take_back::is_work_conserving(of).unwrap();
    }
    pub(crate) fn taking_back_is_free(of: &dyn Subject, _at: &[u64]) {
        law_take_back::is_free(of).unwrap();
    }
    pub(crate) fn crowds(of: &dyn Subject, _at: &[u64]) {
        law_crowd::holds(of).unwrap();
    }
    pub(crate) fn crowds_keep_slots(of: &dyn Subject, _at: &[u64]) {
        law_crowd::keeps_slots(of).unwrap();
    }
    pub(crate) fn evicted_flows_are_not_ahead(of: &dyn Subject, _at: &[u64]) {
        law_crowd::evicted_flows_are_not_ahead(of).unwrap();
    }
    pub(crate) fn layers(of: &dyn Subject, _at: &[u64]) {
        law_layers::holds(of).unwrap();
    }
    pub(crate) fn crowds_share_by_weight(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_crowd::shares_by_weight(of, threshold));
    }
    pub(crate) fn merging(of: &dyn Subject, _at: &[u64]) {
        law_merge::holds(of).unwrap();
    }
    pub(crate) fn merging_without_slots(of: &dyn Subject, _at: &[u64]) {
        law_merge::holds_without_slots(of).unwrap();
    }
    pub(crate) fn merged_requests_are_paid_for(of: &dyn Subject, _at: &[u64]) {
        law_merge::bounded_unfairness(of).unwrap();
    }
    pub(crate) fn bounded_unfairness(of: &dyn Subject, _at: &[u64]) {
        law_fairness::holds(of).unwrap();
    }
    pub(crate) fn bounded_unfairness_of_one_length(of: &dyn Subject, _at: &[u64]) {
        law_fairness::holds_for(of, |kind| Kind { lengths: ONE_LENGTH, ..kind }).unwrap();
    }
    pub(crate) fn bounded_unfairness_of_steady_flows(of: &dyn Subject, _at: &[u64]) {
        law_fairness::holds_for(of, |kind| Kind { control: false, ..kind }).unwrap();
    }
    pub(crate) fn returning_starves_nobody(of: &dyn Subject, at: &[u64]) {
        for ports in [1, 2] {
            each(at, |threshold| law_idle::returning_starves_nobody(of, ports, threshold));
        }
    }
    pub(crate) fn returning_is_soon_even(of: &dyn Subject, _at: &[u64]) {
        for ports in [1, 2] {
            law_idle::returning_is_soon_even(of, ports).unwrap();
        }
    }
    pub(crate) fn one_at_a_time_beside_a_flood(of: &dyn Subject, at: &[u64]) {
        for ports in [1, 2] {
            each(at, |threshold| law_idle::one_at_a_time_beside_a_flood(of, ports, threshold));
        }
    }
    pub(crate) fn two_shards_at_depth_one(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_idle::two_shards_at_depth_one(of, threshold));
    }
    pub(crate) fn five_to_one_over_two_ports(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_shares::five_to_one_over_two_ports(of, threshold));
    }
    pub(crate) fn three_to_one_whatever_the_sum(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_shares::three_to_one_whatever_the_sum(of, threshold));
    }
    pub(crate) fn scaling_weights_changes_nothing(of: &dyn Subject, at: &[u64]) {
        for ports in [1, 2] {
            each(at, |threshold| law_shares::scaling_weights_changes_nothing(of, ports, threshold));
        }
    }
    pub(crate) fn scaling_weights_on_two_ports(of: &dyn Subject, at: &[u64]) {
        each(at, |threshold| law_shares::scaling_weights_changes_nothing(of, 2, threshold));
    }
    pub(crate) fn scale(of: &dyn Subject, at: &[u64]) {
        for first in [law_scale::First::Deep, law_scale::First::Shallow] {
            for ports in [1, 2] {
                each(at, |threshold| law_scale::holds(of, ports, threshold, first));
            }
        }
    }
    pub(crate) fn remainders_are_kept(of: &dyn Subject, _at: &[u64]) {
        law_shares::remainders_are_kept(of).unwrap();
    }
    /// With MQFQ's virtual time, and T = 0.
    pub(crate) fn order_of_sfq(of: &dyn Subject, _at: &[u64]) {
        law_order::holds(of, reference::VirtualTime::LeastStaged).unwrap();
        law_order::holds_for_backlogged_flows(of).unwrap();
    }
    pub(crate) fn order_of_sfq_at_any_depth(of: &dyn Subject, _at: &[u64]) {
        law_order::holds_at_any_depth(of, reference::VirtualTime::LastDispatched).unwrap();
        law_order::holds_for_backlogged_flows(of).unwrap();
    }
}

/// A module of tests for each row: a policy, the thresholds to check it at, and its laws.
macro_rules! laws {
    ($($(#[doc = $why:expr])* $name:ident: $of:expr, $at:expr => $($law:ident)*;)*) => {$(
        $(#[doc = $why])*
        mod $name {
            use super::*;
            $(law!($law, $of, $at);)*
        }
    )*};
}

const T: [u64; 3] = [0, 16_384, 46_080];

/// MQFQ over sockets and behind one lock: all of its laws (in `tests/long laws`), or those that
/// concern its structures.
macro_rules! variants_of_mqfq {
    ($($laws:ident)*) => {
        laws! {
            mqfq_serial: MqfqSubject::Serial, T => $($laws)*;
            mqfq_sockets: MqfqSubject::Sockets, T => $($laws)* crowds
                crowds_keep_slots evicted_flows_are_not_ahead;
        }
    };
}
#[cfg(feature = "long")]
variants_of_mqfq!(scale all_of_mqfq);
#[cfg(not(feature = "long"))]
variants_of_mqfq!(requests slots virtual_time work_conserving bounded_unfairness taking_back_all
    order_of_sfq);

/// The papers' MQFQ, made of the parts that the paper compares. No run of the laboratory takes
/// requests back or lasts until virtual time wraps, so these laws do not apply.
macro_rules! papers_mqfq {
    ($($laws:ident)*) => {
        laws! {
            mqfq_strict_paper: SOCKETS, T => $($laws)*;
            mqfq_array_scan: SOCKETS.timed(VirtualTimeKind::ArrayScan), T => $($laws)*;
            mqfq_atomic_counter: SOCKETS.counted(SlotKind::AtomicCounter), T => $($laws)*;
            mqfq_scalable_bitmap: SOCKETS.counted(SlotKind::ScalableBitmap), T => $($laws)*;
            /// In a flat topology a port's path covers the whole tree, so every free slot is on it.
            mqfq_on_path: FLAT.counted(SlotKind::TokenPath), T => $($laws)*;
            mqfq_strict_paper_serial: SOCKETS.behind_a_lock(), T => $($laws)*;
            mqfq_strict_paper_polling: SOCKETS.polling(), T => $($laws)*;
        }
    };
}
#[cfg(feature = "long")]
papers_mqfq!(requests slots virtual_time shares_after_absence work_conserving bounded_unfairness
    returning_starves_nobody one_at_a_time_beside_a_flood two_shards_at_depth_one
    five_to_one_over_two_ports three_to_one_whatever_the_sum scaling_weights_changes_nothing
    remainders_are_kept order_of_sfq scale);
#[cfg(not(feature = "long"))]
papers_mqfq!(requests slots virtual_time work_conserving bounded_unfairness order_of_sfq);

laws! {
    /// It stages nothing and does not promise fairness.
    none: None, [0] => requests absence work_conserving taking_back crowds;
    sfqd: SfqdSubject, [0] => scale all order_of_sfq_at_any_depth merging
        merged_requests_are_paid_for
        taking_back_all all_of_crowds weights_change_at_once;
    mqfq: MqfqSubject::Flat, T => scale all_of_mqfq all_of_crowds evicted_flows_are_not_ahead
        weights_change_at_once;
    /// It stages nothing and has no slots; its laws of shares need a device with classes
    /// (`tests/d2fq`).
    d2fq: D2fqSubject, [0] => requests taking_back absence
        work_conserving
        crowds;
    /// It has depths by domain instead of D (so more than D requests are outstanding; its own tests
    /// check its depths), no virtual time and no shares.
    kyber: KyberSubject, [0] => requests taking_back absence work_conserving two_shards_at_depth_one
        merging_without_slots crowds;
    /// It limits tokens, not requests outstanding, and has no virtual time. Its unfairness is
    /// bounded by the tokens of a period (`law_periods`, below). It is work conserving if D
    /// requests keep the device busy.
    kyber_fair: FEW, [0] => requests taking_back shares_after_absence work_conserving
        two_shards_at_depth_one
        five_to_one_over_two_ports three_to_one_whatever_the_sum merging_without_slots crowds;
    kyber_fair_short: KyberFairSubject(10_000), [0] => requests taking_back taking_back_is_free
        work_conserving merging_without_slots;
    /// With patience, requests may wait beside free places, for a 64th of the time.
    kyber_fair_patient: PATIENT, [0] => requests taking_back never_idle five_to_one_over_two_ports
        three_to_one_whatever_the_sum
        merging_without_slots;
    /// With the predicted number of tokens.
    kyber_fair_predicting: KyberFairPredicting, [0] => requests crowds
        shares_some_periods_after_absence shares_at_any_rate weights_change_at_once;
    /// Shares do not change with the scale. Waits are whole periods, and single tokens decide in
    /// which period a request goes.
    kyber_fair_scaled: FEW, [1] => scaling_weights_changes_nothing;
    kyber_fair_exact: KyberFairSubject(8192), [0] => remainders_are_kept;
    /// It shares requests, whatever their length, so it is checked with requests of one length.
    fiops: FiopsSubject, [0] => scale all_but_unfairness bounded_unfairness_of_one_length merging
        taking_back_all all_of_crowds;
    /// It is fair within budgets, which are small here, at the weights that flows had when they
    /// became backlogged. Budgets are too coarse for the laws of remainders and the wrap, which
    /// check the order and a thousandth.
    bfq_na: BfqSubject { idle_ns: 0 }, [0] => scale keeping shares_after_absence work_conserving
        bounded_unfairness_of_steady_flows
        returning_starves_nobody one_at_a_time_beside_a_flood two_shards_at_depth_one
        five_to_one_over_two_ports
        three_to_one_whatever_the_sum scaling_weights_on_two_ports merged_requests_are_paid_for
        taking_back_conserves_work taking_back_is_free crowds crowds_keep_slots;
    /// Checked with requests that cost their length.
    flashfq_na: FlashFqSubject { idle_ns: 0 }, [0, 16_384] => scale all merging
        merged_requests_are_paid_for
        taking_back_all crowds crowds_keep_slots;
    /// A policy that anticipates is not work conserving; its dispatches are as fair as without.
    flashfq: FlashFqSubject { idle_ns: IDLE_NS }, [0] => keeping shares_after_absence the_wrap
        bounded_unfairness returning_starves_nobody
        one_at_a_time_beside_a_flood two_shards_at_depth_one five_to_one_over_two_ports
        three_to_one_whatever_the_sum
        scaling_weights_changes_nothing remainders_are_kept;
    /// It anticipates and lends no turn, so a flow with one request at a time has the device alone.
    bfq: BfqSubject { idle_ns: IDLE_NS }, [0] => scale keeping returning_starves_nobody
        one_at_a_time_beside_a_flood
        five_to_one_over_two_ports three_to_one_whatever_the_sum scaling_weights_on_two_ports;
    /// It shares time, which does not pass in scripts (its own tests check its shares), and has a
    /// quantum: while others wait it leaves slots free.
    cfq_na: CfqSubject { idle_ns: 0 }, [0] => keeping two_shards_at_depth_one crowds
        crowds_keep_slots;
    cfq: CfqSubject { idle_ns: IDLE_NS }, [0] => keeping;
    /// NASS keeps places free on purpose, and its fairness is not of dispatches: its limits are
    /// whole requests, one to six of them here, so weights of 1:3 give 1:2.3 and 1:5 give 1:5.1
    /// (with 32 places its own tests have them within a sixtieth), and they are set anew when a
    /// flow comes. Around CFQ shares are of time.
    nass_cfq: AROUND_CFQ, [0] => keeping one_at_a_time_beside_a_flood two_shards_at_depth_one;
    nass_bfq: AROUND_BFQ, [0] => scale keeping returning_is_soon_even one_at_a_time_beside_a_flood
        two_shards_at_depth_one
        scaling_weights_on_two_ports crowds crowds_keep_slots;
    nass_flashfq: AROUND_FLASHFQ, [0] => scale keeping returning_is_soon_even
        one_at_a_time_beside_a_flood
        two_shards_at_depth_one scaling_weights_changes_nothing crowds crowds_keep_slots;
    nass_fiops: AROUND_FIOPS, [0] => scale keeping returning_is_soon_even
        one_at_a_time_beside_a_flood two_shards_at_depth_one
        scaling_weights_changes_nothing crowds crowds_keep_slots;
    /// It has no weights. It is here because of one module and one line of the registry.
    toy: Registered("toy"), [0] => requests slots work_conserving never_idle merging taking_back
        taking_back_keeps_slots taking_back_conserves_work;
    /// Requests that go ahead for a reservation do not count against D and follow no order.
    mqfq_reserving: Reserving("mqfq"), [0] => requests taking_back;
    kyber_fair_reserving: Reserving("kyber-fair"), [0] => requests taking_back;
    sfqd_reserving: Reserving("sfqd"), [0] => requests taking_back;
    d2fq_reserving: Reserving("d2fq"), [0] => requests taking_back;
    cfq_reserving: Reserving("cfq"), [0] => requests taking_back;
    /// All layers at once, while their settings change.
    none_every_layer: Every("none"), [0] => layers;
    mqfq_every_layer: Every("mqfq"), [0] => layers;
    kyber_every_layer: Every("kyber"), [0] => layers;
    kyber_fair_every_layer: Every("kyber-fair"), [0] => layers;
    d2fq_every_layer: Every("d2fq"), [0] => layers;
    sfqd_every_layer: Every("sfqd"), [0] => layers;
    nass_bfq_every_layer: Every("nass+bfq"), [0] => layers;
    nass_mqfq_every_layer: Every("nass+mqfq"), [0] => layers;
    bfq_every_layer: Every("bfq"), [0] => layers;
    cfq_every_layer: Every("cfq"), [0] => layers;
    fiops_every_layer: Every("fiops"), [0] => layers;
    flashfq_every_layer: Every("flashfq"), [0] => layers;
    mqfq_serial_every_layer: Every("mqfq-serial"), [0] => layers;
    /// All layers at once, each with something to do.
    mqfq_layered: Layered("mqfq"), [46_080] => absence;
    kyber_fair_layered: Layered("kyber-fair"), [0] => absence;
    sfqd_layered: Layered("sfqd"), [0] => absence;
    d2fq_layered: Layered("d2fq"), [0] => absence;
    nass_bfq_layered: Layered("nass+bfq"), [0] => absence;
    nass_mqfq: AROUND_MQFQ, [0] => scale keeping returning_is_soon_even one_at_a_time_beside_a_flood
        two_shards_at_depth_one
        scaling_weights_changes_nothing;
}

/// Other readings of the papers and other settings, which the laboratory compares. `tests/long
/// laws` applies all of their laws.
#[cfg(feature = "long")]
laws! {
    /// Without virtual time only slots are kept; it serves comparisons.
    mqfq_untimed: SOCKETS.timed(VirtualTimeKind::None), T => requests slots absence
        work_conserving two_shards_at_depth_one crowds crowds_keep_slots;
    /// Over sockets, tokens may be where a waiting port does not search: for ever, if the ports
    /// below them send nothing more or are throttled, since a request that waits holds virtual time
    /// back. So it promises neither that all is served nor that the device has work. The requests
    /// that it issues are issued correctly.
    mqfq_on_path_of_sockets: SOCKETS.counted(SlotKind::TokenPath), T => scale issued_requests slots
        virtual_time bounded_unfairness crowds_keep_slots;
    d2fq_paper: StrictD2fqSubject(TrackerKind::Sloppy), [0] => requests absence work_conserving
        crowds;
    d2fq_paper_scan: StrictD2fqSubject(TrackerKind::Scan), [0] => requests absence
        work_conserving crowds;
    d2fq_paper_mindicator: StrictD2fqSubject(TrackerKind::Mindicator), [0] => requests absence
        work_conserving crowds;
    /// The same with fewer tokens and with more.
    kyber_fair_one_token: KyberFairSubject(1), [0] => requests taking_back absence work_conserving;
    kyber_fair_rich: KyberFairSubject(1 << 38), [0] => requests absence work_conserving;
    /// With a threshold, so that others may run ahead of a flow that it waits for.
    flashfq_ahead: FlashFqSubject { idle_ns: IDLE_NS }, [16_384, 46_080] => scale;
    /// With slices as long as on a real device.
    cfq_linux: CfqConfigured(CfqConfig::default().with(|config| config.idle_ns = 0)), [0] => scale;
    cfq_linux_idles: CfqConfigured(CfqConfig::default()), [0] => scale;
    nass_cfq_linux: AROUND_SLICES, [0] => scale;
    /// NASS by the letter of Algorithm 1: the device is never idle while a request waits, and the
    /// scheduler inside decides where no limit is reached. It does not promise
    /// - work conservation: limits that were set for more workloads (line 5) or halved (line 27)
    ///   stay, and all together may stay below β for good once a workload has sent its last request
    ///   (lines 16 to 22);
    /// - shares by weight where limits are reached: lines 5 and 27 count workloads, so that of
    ///   1:100 each has one place (`scaling_weights_changes_nothing`, `bounded_unfairness`,
    ///   `the_wrap`), and line 26 counts channels, of which merged requests take more
    ///   (`merged_requests_are_paid_for`).
    nass_strict_paper_flashfq: Strictly::new(AROUND_FLASHFQ), [0] => scale keeping never_idle
        shares_after_absence returning_starves_nobody returning_is_soon_even
        one_at_a_time_beside_a_flood two_shards_at_depth_one five_to_one_over_two_ports
        three_to_one_whatever_the_sum remainders_are_kept taking_back_is_free all_of_crowds;
    nass_strict_paper_fiops: Strictly::new(AROUND_FIOPS), [0] => scale keeping never_idle
        shares_after_absence returning_starves_nobody returning_is_soon_even
        one_at_a_time_beside_a_flood two_shards_at_depth_one
        three_to_one_whatever_the_sum remainders_are_kept taking_back_is_free all_of_crowds;
    /// Lines 16 to 22 restrict all flows alike and let none go ahead, so a flow with one request at
    /// a time waits for the rest of a budget (fairq's own NASS lets it go first).
    nass_strict_paper_bfq: Strictly::new(AROUND_BFQ), [0] => scale keeping never_idle
        shares_after_absence returning_is_soon_even two_shards_at_depth_one
        three_to_one_whatever_the_sum taking_back_is_free crowds crowds_keep_slots;
    /// For the same reason a flow waits for the rest of a slice, which is longer than scripts are.
    nass_strict_paper_cfq: Strictly::new(AROUND_CFQ), [0] => keeping never_idle
        two_shards_at_depth_one crowds crowds_keep_slots;
    nass_strict_paper_cfq_linux: Strictly::new(AROUND_SLICES), [0] => scale;
}
#[cfg(not(feature = "long"))]
laws! {
    mqfq_untimed: SOCKETS.timed(VirtualTimeKind::None), T => requests slots work_conserving;
    mqfq_on_path_of_sockets: SOCKETS.counted(SlotKind::TokenPath), T => issued_requests slots
        virtual_time;
    d2fq_paper: StrictD2fqSubject(TrackerKind::Sloppy), [0] => requests absence work_conserving;
    d2fq_paper_scan: StrictD2fqSubject(TrackerKind::Scan), [0] => requests work_conserving;
    d2fq_paper_mindicator: StrictD2fqSubject(TrackerKind::Mindicator), [0] => requests
        work_conserving;
    kyber_fair_one_token: KyberFairSubject(1), [0] => requests;
    kyber_fair_rich: KyberFairSubject(1 << 38), [0] => requests;
    flashfq_ahead: FlashFqSubject { idle_ns: IDLE_NS }, [16_384, 46_080] => requests;
    cfq_linux: CfqConfigured(CfqConfig::default().with(|config| config.idle_ns = 0)), [0] =>
        requests;
    cfq_linux_idles: CfqConfigured(CfqConfig::default()), [0] => requests;
    nass_cfq_linux: AROUND_SLICES, [0] => requests;
    nass_strict_paper_flashfq: Strictly::new(AROUND_FLASHFQ), [0] => requests;
    nass_strict_paper_fiops: Strictly::new(AROUND_FIOPS), [0] => requests;
    nass_strict_paper_bfq: Strictly::new(AROUND_BFQ), [0] => requests;
    nass_strict_paper_cfq: Strictly::new(AROUND_CFQ), [0] => requests;
    nass_strict_paper_cfq_linux: Strictly::new(AROUND_SLICES), [0] => requests;
}

/// Each policy of the registry without keys: the laws of all policies, and that of slots if the
/// policy promises it. A policy is included here by its line in the registry.
#[test]
fn each_of_the_registry_owes_what_all_owe() {
    for policy in registry::ALL {
        let of = &Registered(policy.name);
        law_requests::holds(of).unwrap_or_else(|why| panic!("{}: {why}", policy.name));
        if policy.promises.slots {
            law_slots::holds(of).unwrap_or_else(|why| panic!("{}: {why}", policy.name));
        }
    }
}

/// The exemptions are needed: each of these policies breaks the law that it is exempt from.
#[test]
fn exempted_with_reason() {
    law_shares::five_to_one_over_two_ports(&None, 0).unwrap_err();
    law_shares::five_to_one_over_two_ports(&KyberSubject, 0).unwrap_err();
    law_periods::bounded_deviation(&KyberSubject, 1, 1 << 18).unwrap_err();
    law_fairness::holds(&FiopsSubject).unwrap_err();
    law_work::holds(&CfqSubject { idle_ns: 0 }).unwrap_err();
    law_idle::two_shards_at_depth_one(&PATIENT, 0).unwrap_err();
    law_idle::one_at_a_time_beside_a_flood(&FEW, 2, 0).unwrap_err();
    law_work::holds(&AROUND_FIOPS).unwrap_err();
    law_shares::five_to_one_over_two_ports(&CfqSubject { idle_ns: 0 }, 0).unwrap_err();
    law_idle::two_shards_at_depth_one(&CfqSubject { idle_ns: IDLE_NS }, 0).unwrap_err();
    law_idle::two_shards_at_depth_one(&BfqSubject { idle_ns: IDLE_NS }, 0).unwrap_err();
    law_work::holds(&FlashFqSubject { idle_ns: IDLE_NS }).unwrap_err();
    law_idle::returning_starves_nobody(&AROUND_MQFQ, 1, 0).unwrap_err();
    law_shares::three_to_one_whatever_the_sum(&AROUND_MQFQ, 0).unwrap_err();
    law_shares::five_to_one_over_two_ports(&AROUND_MQFQ, 0).unwrap_err();
    law_shares::remainders_are_kept(&AROUND_MQFQ).unwrap_err();
    law_virtual_time::survives_the_wrap(&AROUND_MQFQ).unwrap_err();
    law_take_back::is_free(&Registered("toy")).unwrap_err();
    assert_eq!(left_elsewhere(&SOCKETS), 0);
    assert_eq!(left_elsewhere(&FLAT.counted(SlotKind::TokenPath)), 0);
    assert_eq!(left_elsewhere(&SOCKETS.counted(SlotKind::TokenPath)), 1);
    law_fairness::holds(&FLAT.timed(VirtualTimeKind::None)).unwrap_err();
    let strict = Strictly::new(AROUND_FIOPS);
    law_work::holds(&strict).unwrap_err();
    law_take_back::is_work_conserving(&strict).unwrap_err();
    law_shares::scaling_weights_changes_nothing(&strict, 1, 0).unwrap_err();
    law_virtual_time::survives_the_wrap(&strict).unwrap_err();
    law_fairness::holds_for(&strict, |kind| Kind { lengths: ONE_LENGTH, ..kind }).unwrap_err();
    law_merge::bounded_unfairness(&Strictly::new(AROUND_FLASHFQ)).unwrap_err();
    law_idle::one_at_a_time_beside_a_flood(&Strictly::new(AROUND_BFQ), 1, 0).unwrap_err();
    law_idle::one_at_a_time_beside_a_flood(&Strictly::new(AROUND_CFQ), 1, 0).unwrap_err();
}

/// The only slot is released on one core, and then a request is submitted on another. Returns the
/// number of requests left in the end.
fn left_elsewhere(of: &dyn Subject) -> usize {
    let (ports, flows, tags, slots) = (3, 1, 1, 1);
    let cost = CostModel::default();
    let shape = Shape { ports, flows, tags, slots, threshold: 0, cost, merge_bytes: 0 };
    let mut world = World::new(of, shape, 1);
    let flow = world.add_flow(100).expect("it fits");
    for port in [0, 2] {
        world.submit(port, flow, Op::Read, 4096).expect("a tag is free");
        world.drain();
    }
    world.staged()
}

/// NASS's queue takes six requests, whatever D is.
#[test]
fn nass_keeps_to_the_queue() {
    let kept = [
        law_slots::holds_within(&AROUND_CFQ, 6),
        law_slots::holds_within(&AROUND_BFQ, 6),
        law_slots::holds_within(&AROUND_FLASHFQ, 6),
        law_slots::holds_within(&AROUND_FIOPS, 6),
        law_slots::holds_within(&Strictly::new(AROUND_CFQ), 6),
        law_slots::holds_within(&Strictly::new(AROUND_BFQ), 6),
        law_slots::holds_within(&Strictly::new(AROUND_FLASHFQ), 6),
        law_slots::holds_within(&Strictly::new(AROUND_FIOPS), 6),
    ];
    kept.into_iter().for_each(Result::unwrap);
    canary::caught(law_slots::holds_within(&FiopsSubject, 6), "outstanding, D is 6");
}

/// With β = 0, lines 16 to 22 close the device for good.
#[test]
fn a_total_limit_of_none_is_noticed() {
    let shut = Strictly { reserve: 0, ..Strictly::new(AROUND_FIOPS) };
    canary::caught(law_work::is_never_idle(&shut), "nothing outstanding");
    canary::caught(law_requests::holds(&shut), "law broken");
}

#[test]
fn a_threshold_that_is_not_kept_is_noticed() {
    canary::caught(law_fairness::holds(&Overstepping), "counted at dispatch");
}

/// Kyber-fairness's own bounds.
mod periods {
    use super::*;

    #[test]
    fn bounded_deviation() {
        for ports in [1, 2] {
            for tokens in [1 << 16, 1 << 18, 1 << 20] {
                law_periods::bounded_deviation(&KyberFairSubject(tokens), ports, tokens).unwrap();
            }
        }
    }
    #[test]
    fn no_credit_beyond_a_period() {
        for ports in [1, 2] {
            law_periods::no_credit_beyond_a_period(&FEW, ports, 1 << 18).unwrap();
        }
    }
    #[test]
    fn catches_more_tokens_than_it_says() {
        canary::caught(
            law_periods::bounded_deviation(&KyberFairSubject(1 << 21), 1, 1 << 18),
            "units within",
        );
    }
    /// K-w.1. With hundreds of times the bytes of the whole run no flow runs out of tokens, and
    /// weights have no effect. With a 64th of a suitable number shares are as fair, with 64 times
    /// as many periods.
    #[test]
    fn over_prediction_costs_fairness_and_under_prediction_periods() {
        let [over, right, under] = [1 << 36, 1 << 18, 1 << 12]
            .map(|tokens| law_periods::shares_and_periods(&KyberFairSubject(tokens)));
        assert!(over.0 < 1.1 && over.1 <= 3, "{over:?}");
        assert!(
            (right.0 / 3.0 - 1.0).abs() < 0.01 && (right.1 - 625).unsigned_abs() < 50,
            "{right:?}"
        );
        assert!((under.0 / 3.0 - 1.0).abs() < 0.01 && under.1 > 30 * right.1, "{under:?}");
    }
}
