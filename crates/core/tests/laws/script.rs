//! Random scripts: arrivals, completions, late calls, and flows that come and go.

use fairq_core::{CostModel, Op};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::law_layers::Change;
use crate::world::{Shape, Subject, Trace, World};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Arrive {
        port: usize,
        flow: usize,
        op: Op,
        length: u32,
        count: u8,
    },
    Complete {
        pick: usize,
    },
    /// Makes one pending call of `next`, if calls are late.
    Pay,
    /// Calls `next` on a port that does not need it.
    Spurious {
        port: usize,
    },
    Settle,
    SetWeight {
        flow: usize,
        weight: u16,
    },
    Remove {
        flow: usize,
    },
    Add {
        weight: u16,
    },
    Tick {
        later_ns: u64,
    },
    Misuse {
        port: usize,
    },
    /// Cancels a staged request.
    Cancel {
        pick: usize,
    },
    /// Requeues an issued request that the device has not begun.
    Requeue {
        pick: usize,
    },
    /// Expedites a staged request: it goes before all others.
    Expedite {
        pick: usize,
    },
    /// Changes a flow's settings in the layers, or D.
    Change {
        flow: usize,
        change: Change,
    },
    /// Merges another request into a staged one.
    Grow {
        pick: usize,
        length: u32,
    },
}

/// The contents of scripts of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The least and the most ports.
    pub(crate) ports: (usize, usize),
    /// The least and the most flows at the beginning; the most is also the bound at any time.
    pub(crate) flows: (usize, usize),
    /// Live requests per port.
    pub(crate) tags: usize,
    pub(crate) max_slots: u32,
    /// Thresholds to choose from, in units.
    pub(crate) thresholds: &'static [u64],
    /// Weights to choose from.
    pub(crate) weights: &'static [u16],
    /// Lengths to choose from, in bytes.
    pub(crate) lengths: &'static [u32],
    /// Whether weights change, and flows come and go.
    pub(crate) control: bool,
    /// Whether calls of `next` may be late; if not, all pending ones are made after every step.
    pub(crate) late: bool,
    pub(crate) max_steps: usize,
    /// Whether requests are cancelled, requeued and grown.
    pub(crate) takes_back: bool,
    /// Whether requests are expedited, and settings of layers change.
    pub(crate) layers: bool,
    /// The most bytes that are merged to one command; if not 0, requests come in streams.
    pub(crate) merge_bytes: u32,
}

/// Scripts of all verbs that every policy serves.
pub(crate) const ANYTHING: Kind = Kind {
    ports: (1, 4),
    flows: (2, 5),
    tags: 48,
    max_slots: 9,
    thresholds: &[0, 4096, 65_536, 1_000_000],
    weights: &[1, 7, 50, 100, 100, 300, 1000, 9999, 10_000],
    lengths: &[1, 512, 4096, 5000, 65_536, 1 << 20],
    control: true,
    late: true,
    max_steps: 300,
    takes_back: false,
    layers: false,
    merge_bytes: 0,
};

#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) shape: Shape,
    pub(crate) weights: Vec<u16>,
    pub(crate) late: bool,
    pub(crate) seed: u64,
    pub(crate) steps: Vec<Step>,
}

fn step(kind: Kind, ports: usize) -> BoxedStrategy<Step> {
    let weight = prop::sample::select(kind.weights);
    let op = prop_oneof![4 => Just(Op::Read), 4 => Just(Op::Write), 1 => Just(Op::Flush), 1 => Just(Op::Discard)];
    let flow = 0..kind.flows.1;
    let length = prop::sample::select(kind.lengths);
    let control = u32::from(kind.control);
    let steps = prop_oneof![
        30 => (0..ports, flow.clone(), op, length, 1u8..6)
            .prop_map(|(port, flow, op, length, count)| Step::Arrive { port, flow, op, length, count }),
        60 => any::<usize>().prop_map(|pick| Step::Complete { pick }),
        30 => Just(Step::Pay),
        3 => (0..ports).prop_map(|port| Step::Spurious { port }),
        3 => Just(Step::Settle),
        2 * control => (flow.clone(), weight.clone()).prop_map(|(flow, weight)| Step::SetWeight { flow, weight }),
        control => flow.prop_map(|flow| Step::Remove { flow }),
        control => weight.prop_map(|weight| Step::Add { weight }),
        1 => (0u64..90_000_000_000).prop_map(|later_ns| Step::Tick { later_ns }),
        1 => (0..ports).prop_map(|port| Step::Misuse { port }),
    ];
    if !kind.takes_back {
        return steps.boxed();
    }
    let longer = prop::sample::select(kind.lengths);
    let layers = u32::from(kind.layers);
    prop_oneof![
        130 => steps,
        8 * layers => any::<usize>().prop_map(|pick| Step::Expedite { pick }),
        8 * layers => (0..kind.flows.1, prop::sample::select(&Change::ALL))
            .prop_map(|(flow, change)| Step::Change { flow, change }),
        20 => any::<usize>().prop_map(|pick| Step::Cancel { pick }),
        10 => any::<usize>().prop_map(|pick| Step::Requeue { pick }),
        10 => (any::<usize>(), longer).prop_map(|(pick, length)| Step::Grow { pick, length }),
    ]
    .boxed()
}

pub(crate) fn script(kind: Kind) -> impl Strategy<Value = Script> {
    let ports = kind.ports.0..=kind.ports.1;
    let shape = (ports, 1..=kind.max_slots, prop::sample::select(kind.thresholds)).prop_map(
        move |(ports, slots, threshold)| Shape {
            ports,
            flows: kind.flows.1,
            tags: kind.tags,
            slots,
            threshold,
            cost: CostModel::default(),
            merge_bytes: kind.merge_bytes,
        },
    );
    shape.prop_flat_map(move |shape| {
        let flows = kind.flows.0..=kind.flows.1;
        let weights = prop::collection::vec(prop::sample::select(kind.weights), flows);
        let steps = prop::collection::vec(step(kind, shape.ports), 1..=kind.max_steps);
        let late = if kind.late { any::<bool>().boxed() } else { Just(false).boxed() };
        (weights, late, any::<u64>(), steps).prop_map(move |(weights, late, seed, steps)| Script {
            shape,
            weights,
            late,
            seed,
            steps,
        })
    })
}

/// Runs a script, and then drains.
pub(crate) fn run(subject: &dyn Subject, script: &Script) -> Trace {
    let mut world = World::new(subject, script.shape, script.seed);
    // The flow of each number in the script.
    let mut flows: Vec<usize> =
        script.weights.iter().map(|&weight| world.add_flow(weight).expect("it fits")).collect();
    for step in &script.steps {
        apply(&mut world, &mut flows, step, script);
        if !script.late {
            world.settle();
        }
    }
    world.drain();
    if world.staged() == 0 {
        world.check_flow_slots();
    }
    world.trace
}

fn apply(world: &mut World, flows: &mut Vec<usize>, step: &Step, script: &Script) {
    match *step {
        Step::Arrive { port, flow, op, length, count } => {
            for _ in 0..count {
                world.submit(port, flows[flow % flows.len()], op, length);
                if !script.late {
                    world.settle();
                }
            }
        }
        Step::Complete { pick } => {
            if !world.device.is_empty() {
                world.complete(pick % world.device.len());
            }
        }
        Step::Pay => {
            world.pay_one();
        }
        Step::Spurious { port } => {
            world.next(port);
        }
        Step::Settle => world.settle(),
        Step::SetWeight { flow, weight } => world.set_weight(flows[flow % flows.len()], weight),
        Step::Remove { flow } => world.remove_flow(flows[flow % flows.len()]),
        Step::Add { weight } => {
            if let Ok(flow) = world.add_flow(weight) {
                if flows.len() < script.shape.flows {
                    flows.push(flow);
                } else if let Some(closed) =
                    flows.iter().position(|&flow| !world.trace.flows[flow].open)
                {
                    flows[closed] = flow;
                }
            }
        }
        Step::Tick { later_ns } => {
            world.now_ns += later_ns;
            world.tick();
        }
        Step::Misuse { port } => world.misuse(port),
        Step::Cancel { pick } => world.cancel(pick),
        Step::Requeue { pick } => world.requeue(pick),
        Step::Grow { pick, length } => world.grow(pick, length),
        Step::Expedite { pick } => world.expedite(pick),
        Step::Change { flow, change } => world.change(flows[flow % flows.len()], change),
    }
}

/// Applies a law to the traces of `cases` random scripts (a quarter of them by default: a
/// PROPTEST_CASES of 1024 means all); returns a script that breaks the law, and how. The scripts
/// are the same in every run, so that a failure can be repeated; FAIRQ_LAW_SEED selects others.
/// FAIRQ_LAW_SHRINK searches for the smallest script, which takes long and is of no use where a
/// law is expected to fail.
pub(crate) fn for_all(
    subject: &dyn Subject,
    kind: Kind,
    cases: u32,
    law: impl Fn(&Trace) -> Result<(), String>,
) -> Result<(), String> {
    let times = Config::default().cases;
    let cases = (cases * times / 1024).max(1);
    let shrinks = std::env::var_os("FAIRQ_LAW_SHRINK").is_some();
    // Large scripts take long to shrink.
    let max_shrink_iters = if shrinks { 2_000 / kind.flows.1 as u32 } else { 0 };
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let mut seed = [7; 32];
    if let Some(given) =
        std::env::var("FAIRQ_LAW_SEED").ok().and_then(|seed| seed.parse::<u64>().ok())
    {
        seed[..8].copy_from_slice(&given.to_le_bytes());
    }
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&script(kind), |script| {
        law(&run(subject, &script)).map_err(|why| TestCaseError::fail(format!("law broken: {why}")))
    });
    result.map_err(|error| match error {
        TestError::Fail(why, script) => format!("{why}\nby {script:#?}"),
        other => other.to_string(),
    })
}
