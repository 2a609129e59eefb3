//! **Law: shares.** Backlogged flows receive service in proportion to their weights: 5:1 over two
//! ports, however the flows are placed on them; 1:3 whatever the sum of the weights; unchanged when
//! all weights are multiplied by 100; and exactly when requests are small and weights large,
//! because remainders are kept.

use crate::canary::{self, Fault, caught};
use crate::closed::{Loop, Plan, bound_units, dispatches, served};
use crate::world::{ONE_UNIT, Subject, Trace};

/// Runs the loops and checks every pair's service against the bound; returns the trace and the
/// bytes.
fn run(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
    loops: &[Loop],
    count: usize,
) -> Result<(Trace, Vec<u64>), String> {
    let slots = 8;
    let mut plan = Plan::new(subject, ports, slots, threshold, Default::default(), loops);
    let from = plan.mark();
    plan.run(count);
    let to = plan.mark();
    let trace = plan.finish();
    let bytes = served(&trace, from, to);
    for f in 0..loops.len() {
        for g in 0..f {
            let [a, b] = [f, g].map(|flow| {
                i128::from(bytes[flow]) * 100 * ONE_UNIT
                    / i128::from(trace.flows[flow].weights[0])
                    / ONE_UNIT
            });
            // Requests dispatched before all flows had submitted are not counted: the bound allows
            // for them.
            let early: u64 = dispatches(&trace, 0, from)
                .map(|(flow, cost)| cost * 100 / u64::from(trace.flows[flow].weights[0]))
                .max()
                .unwrap_or(0);
            let bound = bound_units(&trace, f, g) + early * u64::from(slots);
            if (a - b).unsigned_abs() > u128::from(bound) {
                return Err(format!(
                    "flows {f} and {g} were served {a} and {b} units, bound {bound}; {bytes:?} \
                     bytes"
                ));
            }
        }
    }
    Ok((trace, bytes))
}

fn expect_ratio(
    bytes: &[u64],
    f: usize,
    g: usize,
    ratio: f64,
    tolerance: f64,
) -> Result<(), String> {
    let got = bytes[f] as f64 / bytes[g] as f64;
    if (got / ratio - 1.0).abs() <= tolerance {
        Ok(())
    } else {
        Err(format!("{got:.4} instead of {ratio}: {bytes:?}"))
    }
}

/// Layouts: each flow on its own port, both on both ports, and one on both beside one on one port.
pub(crate) fn five_to_one_over_two_ports(
    subject: &dyn Subject,
    threshold: u64,
) -> Result<(), String> {
    let layouts = [
        [Loop::new(500, 0, 64, 4096), Loop::new(100, 1, 64, 4096)],
        [Loop::new(500, 0, 32, 4096).also(1, 32), Loop::new(100, 1, 32, 4096).also(0, 32)],
        [Loop::new(500, 0, 64, 4096), Loop::new(100, 1, 64, 4096).also(0, 64)],
        [Loop::new(500, 0, 64, 4096).also(1, 64), Loop::new(100, 1, 64, 65_536)],
    ];
    let of_one_length = layouts.len() - usize::from(subject.counts_requests());
    for loops in &layouts[..of_one_length] {
        let (_, bytes) = run(subject, 2, threshold, loops, 30_000)?;
        expect_ratio(&bytes, 0, 1, 5.0, 0.02)?;
    }
    Ok(())
}

/// In one scheduler the ratio is 3.00 only while the sum of weights is below a capacity, and 1.00
/// at twice the capacity.
pub(crate) fn three_to_one_whatever_the_sum(
    subject: &dyn Subject,
    threshold: u64,
) -> Result<(), String> {
    for (a, b) in [(1, 3), (100, 300), (2500, 7500), (3333, 9999)] {
        let loops = [Loop::new(a, 0, 48, 65_536), Loop::new(b, 1, 48, 65_536)];
        let (_, bytes) = run(subject, 2, threshold, &loops, 40_000)?;
        expect_ratio(&bytes, 1, 0, 3.0, 0.01).map_err(|why| format!("weights {a}:{b}: {why}"))?;
    }
    Ok(())
}

/// On one port and with T = 0 both runs have the same order. A larger T is rounded to units of
/// virtual time.
pub(crate) fn scaling_weights_changes_nothing(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
) -> Result<(), String> {
    let shares = |scale: u16| -> Result<(Vec<usize>, Vec<u64>), String> {
        let loops = [1, 2, 4, 100]
            .map(|weight| Loop::new(weight * scale, 0, 32, 65_536).also(ports - 1, 32));
        let (trace, bytes) = run(subject, ports, threshold, &loops, 40_000)?;
        Ok((dispatches(&trace, 0, trace.events.len()).map(|(flow, _)| flow).collect(), bytes))
    };
    let (order, bytes) = shares(1)?;
    let (order_of_100, bytes_of_100) = shares(100)?;
    if ports == 1 && threshold == 0 && order != order_of_100 {
        return Err("the order of dispatch changes when weights are scaled".into());
    }
    let total = |bytes: &[u64]| bytes.iter().sum::<u64>() as f64;
    for (flow, pair) in bytes.iter().zip(&bytes_of_100).enumerate() {
        let (a, b) = (*pair.0 as f64 / total(&bytes), *pair.1 as f64 / total(&bytes_of_100));
        if (a - b).abs() > 0.01 {
            return Err(format!(
                "flow {flow}: share {a:.4}, and {b:.4} with all weights times 100"
            ));
        }
    }
    Ok(())
}

/// 512 bytes are 6.58 units at one of the weights and 15.36 at the other: rounding down would give
/// one flow 7 % more.
pub(crate) fn remainders_are_kept(subject: &dyn Subject) -> Result<(), String> {
    let loops = [Loop::new(7777, 0, 16, 512).also(1, 16), Loop::new(3333, 1, 16, 512).also(0, 16)];
    let (_, bytes) = run(subject, 2, 0, &loops, 30_000)?;
    expect_ratio(&bytes, 0, 1, 7777.0 / 3333.0, 0.001)
}

#[test]
fn catches_shares_per_port() {
    caught(five_to_one_over_two_ports(&canary::PerPort, 0), "units, bound");
}

#[test]
fn catches_weights_that_stop_counting() {
    caught(
        three_to_one_whatever_the_sum(&canary::Serial(Fault::WeightsUpTo100), 0),
        "units, bound",
    );
    caught(
        scaling_weights_changes_nothing(&canary::Serial(Fault::WeightsUpTo100), 2, 0),
        "units, bound",
    );
}

#[test]
fn catches_lost_remainders() {
    caught(remainders_are_kept(&canary::Serial(Fault::RoundsDown)), "units, bound");
    remainders_are_kept(&canary::Serial(Fault::None)).unwrap();
}
