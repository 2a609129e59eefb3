//! **Law: scale.** Only ratios of weights matter: multiplying all by any factor gives the same run.
//! The service of each flow and the longest wait of one of its requests agree within a hundredth,
//! and two grains: a request of each flow, since the rounding of tags decides which of equal start
//! tags goes first; and an eighth of T for each, since the divisor of T is a power of two, in
//! units.
//!
//! The device is slow, so a window of some kilobytes lasts for many milliseconds: it serves 2,000
//! requests a second, and D is 64. A dependency on the absolute size of weights appears there as a
//! flow that is served alone for too long.

use fairq_core::{CostModel, Weight};

use crate::canary::{self, Fault, caught};
use crate::closed::{Loop, Plan, served};
use crate::world::Subject;

const SLOTS: u32 = 64;
/// Time of the device for a request.
const SERVICE_NS: u64 = 500_000;
const RUN_NS: u64 = 4_000_000_000;

/// Weights, before the factor.
const PROPORTIONS: [[u16; 3]; 3] = [[1, 1, 1], [4, 2, 1], [100, 10, 1]];

/// The service of a flow.
struct Got {
    share: f64,
    /// The longest time from submission to dispatch, in nanoseconds.
    longest_ns: f64,
}

/// Depth of the first flow's queue; the others have 64 requests live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum First {
    Deep,
    /// One request at a time: the policy may anticipate it.
    Shallow,
}

fn run(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
    weights: [u16; 3],
    first: First,
) -> Vec<Got> {
    let deep = |weight| Loop::new(weight, 0, 32, 4096).also(ports - 1, 32);
    let mut loops = weights.map(deep);
    if first == First::Shallow {
        loops[0] = Loop::new(weights[0], 0, 1, 4096);
    }
    let mut plan = Plan::new(subject, ports, SLOTS, threshold, CostModel::default(), &loops);
    plan.run_paced(RUN_NS, SERVICE_NS);
    let waits = plan.longest_waits_ns();
    let to = plan.mark();
    let bytes = served(&plan.finish(), 0, to);
    let all = bytes.iter().sum::<u64>() as f64;
    let got = |(&bytes, &ns)| Got { share: bytes as f64 / all, longest_ns: ns as f64 };
    bytes.iter().zip(&waits).map(got).collect()
}

/// The factors that keep these weights in range: the least, one in between, and the greatest.
fn factors(proportions: [u16; 3]) -> [u16; 3] {
    let greatest = Weight::MAX.get() / proportions[0];
    [1, greatest.div_ceil(100), greatest]
}

pub(crate) fn holds(
    subject: &dyn Subject,
    ports: usize,
    threshold: u64,
    first: First,
) -> Result<(), String> {
    for proportions in PROPORTIONS {
        let weights = |factor| proportions.map(|weight| weight * factor);
        let [least, others @ ..] = factors(proportions);
        let of_least = run(subject, ports, threshold, weights(least), first);
        for factor in others {
            let got = run(subject, ports, threshold, weights(factor), first);
            for (flow, (a, b)) in of_least.iter().zip(&got).enumerate() {
                let agree = |a: f64, b: f64, slack: f64| (a - b).abs() <= 0.01 * a.max(b) + slack;
                let one_each = (3 * SERVICE_NS) as f64;
                let shares = agree(a.share, b.share, one_each / RUN_NS as f64);
                let grain = one_each * (1.0 + threshold as f64 / 8.0 / 4096.0);
                if !shares || !agree(a.longest_ns, b.longest_ns, grain) {
                    let ms = |got: &Got| got.longest_ns / 1e6;
                    return Err(format!(
                        "weights {:?} and {:?}, {ports} ports, the first {first:?}: flow {flow} \
                         has shares {:.3} and {:.3}, its longest waits are {:.1} and {:.1} ms",
                        weights(least),
                        weights(factor),
                        a.share,
                        b.share,
                        ms(a),
                        ms(b),
                    ));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn catches_a_threshold_in_units_of_virtual_time() {
    let broken = canary::Serial(Fault::AheadByAMegabyte);
    caught(holds(&broken, 1, 0, First::Deep), "its longest waits are");
}

#[test]
fn passes_a_naive_serial_policy() {
    for first in [First::Deep, First::Shallow] {
        holds(&canary::Serial(Fault::None), 2, 0, first).unwrap();
    }
}
