//! Tests of NASS: each mechanism, and shares with all of them.

use super::aggressiveness::channels_of;
use super::sequentiality::ONE;
use super::*;
use crate::bfq::{BfqConfig, BfqScheduler};
use crate::cfq::{CfqConfig, CfqScheduler};
use crate::fiops::{FiopsConfig, FiopsScheduler};
use crate::flashfq::{FlashFqConfig, FlashFqScheduler};
use crate::testing::{Loop, config, counts as served_counts, read, run};
use alloc::vec::Vec;
use fairq_core::contract::port::Op;
use fairq_core::sfqd::SfqdScheduler;

type Limited = Nass<FiopsScheduler>;

fn nass(nass: NassConfig) -> Limited {
    let config = config(64).with(|config| config.merge_bytes = 1 << 19);
    Nass::new(FiopsScheduler::new(&config, &FiopsConfig::default()), &config, &nass).unwrap()
}

fn only(aggressiveness: bool, sequentiality: bool, idleness: bool) -> NassConfig {
    NassConfig { aggressiveness, sequentiality, idleness, ..NassConfig::default() }
}

/// Takes all requests that may be sent. Jobs `100 i..` are flow `i`'s.
fn send(nass: &mut Limited) -> Vec<u32> {
    let mut sent = Vec::new();
    while let Selection::Serve(Job(job), _) = nass.select(0, Lanes::All) {
        sent.push(job);
    }
    sent
}

/// Number of jobs of each flow.
fn counts(jobs: &[u32]) -> [usize; 2] {
    [0, 1].map(|flow| jobs.iter().filter(|&&job| job / 100 == flow).count())
}

fn stage(nass: &mut Limited, flow: u32, jobs: core::ops::Range<u32>, length: u32) {
    jobs.for_each(|job| nass.insert(0, &read(100 * flow + job, flow as usize, 100, length)));
}

fn complete(nass: &mut Limited, jobs: &[u32]) {
    jobs.iter().for_each(|&job| nass.completed(0, Job(job), job as usize / 100, Outcome::Done));
}

#[test]
fn channels_as_equation_4_has_them() {
    let mut nass = nass(NassConfig::default());
    let channels = [0, 4096, 8192, 8193, 16_384, 131_072]
        .map(|length| channels_of(&NassConfig::default(), Op::Read, length));
    assert_eq!(channels, [1, 1, 1, 2, 3, 17]);
    assert_eq!(channels_of(&NassConfig::default(), Op::Discard, 1 << 30), 1);
    stage(&mut nass, 0, 0..16, 4096);
    assert_eq!(counts(&send(&mut nass)), [16, 0]);
    assert_eq!(nass.control.flows[0].channels, 16);
}

#[test]
fn a_new_flow_sets_every_limit_to_its_part() {
    let mut nass = nass(NassConfig::default());
    stage(&mut nass, 0, 0..40, 4096);
    assert_eq!(nass.limit(0), 32);
    stage(&mut nass, 1, 0..40, 4096);
    assert_eq!((nass.limit(0), nass.limit(1)), (16, 16));
    // A flow of three times the weight gets three times the part.
    nass.insert(0, &Arrival { weight: Weight::new(300).unwrap(), ..read(199, 1, 100, 4096) });
    assert_eq!((nass.limit(0), nass.limit(1)), (8, 24));
}

/// The life of a limit: an aggressive flow is limited, keeps one request, and recovers when the
/// other has gone.
#[test]
fn an_aggressive_flow_is_limited_and_recovers() {
    let mut nass = nass(only(true, false, false));
    stage(&mut nass, 0, 0..16, 4096);
    stage(&mut nass, 1, 0..64, 131_072);
    let first = send(&mut nass);
    let [small, large] = counts(&first);
    assert!(small == 16 && large <= 3, "{first:?}");
    let (small, mut large): (Vec<u32>, Vec<u32>) =
        first.into_iter().partition(|job| job / 100 == 0);
    for _ in 0..10 {
        complete(&mut nass, &large);
        large = send(&mut nass);
        assert!((1..=2).contains(&large.len()) && nass.limit(1) <= 2, "{large:?}");
    }
    assert!(nass.limit(0) >= 16, "the other is not limited");
    complete(&mut nass, &small);
    let mut most = 0;
    for _ in 0..200 {
        complete(&mut nass, &large);
        large.iter().for_each(|&job| stage(&mut nass, 1, job - 100..job - 99, 131_072));
        large = send(&mut nass);
        most = most.max(large.len());
    }
    assert_eq!((most, nass.limit(1)), (32, 32));
}

/// With the mechanism switched off, no limit is below its flow's part.
#[test]
fn without_aggressiveness_nobody_is_halved() {
    let mut nass = nass(only(false, false, false));
    stage(&mut nass, 0, 0..40, 4096);
    stage(&mut nass, 1, 0..40, 131_072);
    assert_eq!(counts(&send(&mut nass)), [16, 16]);
    assert_eq!((nass.limit(0), nass.limit(1)), (16, 16));
}

#[test]
fn room_is_kept_for_a_flow_that_is_about_to_send() {
    let mut nass = nass(only(false, false, true));
    stage(&mut nass, 0, 0..2, 4096);
    assert_eq!(counts(&send(&mut nass)), [2, 0]);
    stage(&mut nass, 1, 0..80, 4096);
    assert_eq!(counts(&send(&mut nass)), [0, 8], "eight beside the two of the expected flow");
    stage(&mut nass, 0, 2..3, 4096);
    assert_eq!(counts(&send(&mut nass)), [1, 0], "an expected request goes at once");
    complete(&mut nass, &[0, 1, 2]);
    assert_eq!(counts(&send(&mut nass)), [0, 0]);
    complete(&mut nass, &[100, 101]);
    assert_eq!(counts(&send(&mut nass)), [0, 2]);
    // 128 arrivals later flow 0 is no longer expected.
    stage(&mut nass, 1, 80..100, 4096);
    stage(&mut nass, 2, 0..110, 4096);
    assert_eq!(nass.control.reserved.flows, 0);
    assert_eq!(counts(&send(&mut nass))[1], 8, "with the eight before, half of the queue");
}

/// Requests staged when the flow was removed still go, and no others follow.
#[test]
fn no_room_is_kept_for_a_flow_that_is_removed() {
    let mut nass = nass(only(false, false, true));
    stage(&mut nass, 0, 0..2, 4096);
    nass.remove_flow(0);
    assert_eq!(counts(&send(&mut nass)), [2, 0]);
    stage(&mut nass, 1, 0..80, 4096);
    assert_eq!(counts(&send(&mut nass)), [0, 16], "its part, as if no flow were expected");
    complete(&mut nass, &[0, 1]);
    nass.add_flow(0, Weight::DEFAULT);
    assert_eq!(nass.control.reserved.flows, 0);
    // The slot's next flow is expected as any other.
    stage(&mut nass, 0, 2..4, 4096);
    assert_eq!(counts(&send(&mut nass)), [2, 0]);
    assert_eq!(nass.control.reserved.flows, 1);
}

/// The variant that the paper calls NM: merging neither lowers nor raises limits.
#[test]
fn without_sequentiality_a_stream_is_not_held_back() {
    let stream = |sequentiality| {
        let mut nass = nass(only(false, sequentiality, false));
        nass.insert(0, &read(0, 0, 100, 4096));
        (0..10).for_each(|_| nass.grow(0, &read(0, 0, 100, 4096)));
        nass.limit(0)
    };
    assert_eq!((stream(true), stream(false)), (32 - 9, 32));
}

#[test]
fn without_idleness_no_room_is_kept() {
    let mut nass = nass(only(false, false, false));
    stage(&mut nass, 0, 0..2, 4096);
    stage(&mut nass, 1, 0..80, 4096);
    assert_eq!(counts(&send(&mut nass)), [2, 16]);
}

#[test]
fn a_stream_is_held_back_while_its_aggressiveness_rises() {
    let part = |job: u32| read(job, 0, 100, 4096);
    let mut nass = nass(only(false, true, false));
    (0..3).for_each(|job| nass.insert(0, &part(job)));
    // Requests that could not be merged count against it.
    assert_eq!((nass.control.sequentiality[0].value, nass.limit(0)), (-3 * ONE, 32));
    (0..10).for_each(|_| nass.grow(0, &part(2)));
    // The fourth growth is the first that makes the flow sequential.
    assert_eq!(nass.control.sequentiality[0].value, 7 * ONE);
    assert_eq!(nass.limit(0), 32 - 7);
    assert_eq!(send(&mut nass), [0, 1, 2]);
    assert_eq!(nass.control.served.channels, 1 + 1 + 6, "the third is 44 KiB by now");
    complete(&mut nass, &[2]);
    let limit = nass.limit(0);
    // One of its requests has just completed.
    nass.insert(0, &part(3));
    assert_eq!(
        (nass.control.sequentiality[0].value, nass.limit(0)),
        (6 * ONE, (limit + 1).min(32))
    );
    // It decays to a half with each unit of time, rounded to zero.
    nass.grow(3 * DECAY_UNIT_NS, &part(3));
    assert_eq!(nass.control.sequentiality[0].value, 6 * ONE / 8 + ONE);
}

/// A flow of large requests may have one request at a time on the device here. It can still get its
/// share, a quarter, if the scheduler inside does not take this for the flow's whole demand.
#[test]
fn a_limited_flow_keeps_its_turns() {
    fn ratio<S: SerialPolicy>(inner: S) -> f64 {
        let mut nass = Nass::new(inner, &config(16), &NassConfig::default()).unwrap();
        let loops = [
            Loop { weight: 100, length: 65_536, depth: 32 },
            Loop { weight: 300, length: 4096, depth: 64 },
        ];
        let served = served_counts(&run(&mut nass, &loops, 16, 20_000_000_000, |_| 1_000_000), 2);
        served[1] as f64 * 4096.0 / (served[0] as f64 * 65_536.0)
    }
    // The budgets are so small that no turn ends by time.
    let bfq = BfqConfig { budget_bytes: 1 << 20, idle_ns: 0, ..BfqConfig::default() };
    let bfq = ratio(BfqScheduler::new(&config(16), &bfq).unwrap());
    let cfq = ratio(
        CfqScheduler::new(
            &config(16),
            &CfqConfig { idle_ns: 0, quantum: 32, ..CfqConfig::default() },
        )
        .unwrap(),
    );
    assert!((2.9..3.1).contains(&bfq), "bfq 1:{bfq}");
    // `cfq` shares time, which gives three requests to one, and NASS limits channels, which gives
    // 27 requests to one.
    assert!((3.0 / 16.0..27.0 / 16.0).contains(&cfq), "cfq 1:{cfq}");
}

/// Requests served of each flow of `loops`, in 5 s, by a device of 32 places, with NASS around each
/// scheduler.
fn served_around_each(
    loops: &[Loop],
    service_ns: impl Fn(u32) -> u64,
) -> [(&'static str, Vec<usize>); 5] {
    fn served<S: SerialPolicy>(
        inner: S,
        config: &SerialConfig,
        loops: &[Loop],
        service_ns: impl Fn(u32) -> u64,
    ) -> Vec<usize> {
        let mut nass = Nass::new(inner, config, &NassConfig::default()).unwrap();
        served_counts(&run(&mut nass, loops, 32, 5_000_000_000, service_ns), loops.len())
    }
    let config =
        config(32).with(|config| (config.flows, config.tags) = (loops.len(), loops.len() * 64));
    let cfq = CfqConfig { idle_ns: 0, quantum: 32, ..CfqConfig::default() };
    // With budgets of 8 MiB shares are even only over minutes.
    let bfq = BfqConfig { idle_ns: 0, budget_bytes: 1 << 20, ..BfqConfig::default() };
    let flashfq = FlashFqConfig { idle_ns: 0, ..FlashFqConfig::default() };
    [
        ("cfq", served(CfqScheduler::new(&config, &cfq).unwrap(), &config, loops, &service_ns)),
        ("bfq", served(BfqScheduler::new(&config, &bfq).unwrap(), &config, loops, &service_ns)),
        (
            "flashfq",
            served(FlashFqScheduler::new(&config, &flashfq).unwrap(), &config, loops, &service_ns),
        ),
        (
            "fiops",
            served(
                FiopsScheduler::new(&config, &FiopsConfig::default()),
                &config,
                loops,
                &service_ns,
            ),
        ),
        ("mqfq", served(SfqdScheduler::new(&config), &config, loops, &service_ns)),
    ]
}

/// Service times of 1 ms on average.
fn random_service() -> impl Fn(u32) -> u64 {
    let random = core::cell::Cell::new(1u64);
    move |_| {
        random.set(
            random
                .get()
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407),
        );
        100_000 + (random.get() >> 33) % 1_800_000
    }
}

/// Weights 3:1 count with each scheduler inside: two flows that both have more to send than the
/// device takes, of requests so large that channels are always short, on a device of even service
/// times and on one of random ones.
#[test]
fn weights_count_where_channels_are_always_short() {
    let loops = [300, 100].map(|weight| Loop { weight, length: 16_384, depth: 64 });
    for even in [true, false] {
        let random = random_service();
        for (name, counts) in
            served_around_each(&loops, |length| if even { 1_000_000 } else { random(length) })
        {
            let ratio = counts[0] as f64 / counts[1] as f64;
            assert!((2.95..3.05).contains(&ratio), "{name}, even {even}: {ratio}:1");
        }
    }
}

/// Sixteen flows that keep four or eight requests each, twice or four times what the device takes:
/// a flow that has all its requests there must not stay there while others wait.
#[test]
fn weights_count_among_many_flows_of_a_few_requests() {
    for depth in [4, 8] {
        let loops: Vec<Loop> = (0..16)
            .map(|flow| Loop { weight: 100 * (1 + flow % 4), length: 4096, depth })
            .collect();
        for (name, counts) in served_around_each(&loops, random_service()) {
            let total: usize = counts.iter().sum();
            for (flow, (count, tenant)) in counts.iter().zip(&loops).enumerate() {
                let of_due = *count as f64 / total as f64 * 4000.0 / f64::from(tenant.weight);
                assert!(
                    (0.8..1.2).contains(&of_due),
                    "{name}, depth {depth}, flow {flow}: {of_due} of its due"
                );
            }
        }
    }
}

/// Thirty flows that keep two requests each could fill the device: a deep flow gets its part all
/// the same.
#[test]
fn a_deep_flow_has_its_part_among_many_shallow_ones() {
    let mut loops = std::vec![Loop { weight: 100, length: 4096, depth: 2 }; 31];
    loops[0].depth = 32;
    for (name, counts) in served_around_each(&loops, random_service()) {
        let total: usize = counts.iter().sum();
        let of_due = counts[0] as f64 / total as f64 * 31.0;
        assert!((0.9..2.0).contains(&of_due), "{name}: {of_due} of its due");
    }
}

#[test]
fn the_papers_parameters_are_those_of_a_window_of_32() {
    assert_eq!(NassConfig::of_window(32), NassConfig::default());
    let NassConfig { channels, reserve, queue_length, .. } = NassConfig::of_window(128);
    assert_eq!((channels, reserve, queue_length), (40, 32, 128));
    let NassConfig { channels, reserve, queue_length, .. } = NassConfig::of_window(1);
    assert_eq!((channels, reserve, queue_length), (1, 1, 1));
}

#[test]
fn parameters_out_of_range_are_refused() {
    let config = config(64);
    let refused = |nass: NassConfig| {
        Nass::new(FiopsScheduler::new(&config, &FiopsConfig::default()), &config, &nass).is_err()
    };
    assert!(!refused(NassConfig::default()));
    let zeroes = [
        NassConfig { channels: 0, ..NassConfig::default() },
        NassConfig { sub_request_bytes: 0, ..NassConfig::default() },
        NassConfig { history: 0, ..NassConfig::default() },
        NassConfig { decay: 1, ..NassConfig::default() },
        NassConfig { reserve: 0, ..NassConfig::default() },
        NassConfig { queue_length: 0, ..NassConfig::default() },
    ];
    assert!(zeroes.into_iter().all(refused));
}
