//! The CPU time of the device side: nanoseconds per decision of the arbiter, and per 4 KiB command
//! of the timing model.
//!
//! Timings never fail the benchmark: they depend on the machine and its other load.
//! `bench/schedulers` has the bars.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use fairq_core::{Class, ClassWeights, Op};
use fairq_device::profile::BUILT_IN;
use fairq_device::{
    Arbiter, Arbitration, Burst, Mechanism, Profile, QueueIndex, Setup, Ssd, State,
};

const CLASSES: [Class; 3] = [Class::High, Class::Medium, Class::Low];

/// An arbiter over `queues` queues of the three weighted classes; every `stride`th has commands.
fn arbiter(mechanism: Mechanism, queues: u16, stride: usize) -> Arbiter {
    let weights = ClassWeights { high: 255, medium: 170, low: 85 };
    let mut arbiter =
        Arbiter::new(mechanism, usize::from(queues), Arbitration { burst: Burst::ONE, weights });
    for queue in 0..queues {
        arbiter.add(QueueIndex(queue), CLASSES[usize::from(queue) % 3]);
    }
    (0..queues).step_by(stride).for_each(|queue| arbiter.post(QueueIndex(queue), 1));
    arbiter
}

/// A decision, and a new command in the queue that it chose: with `stride` 1 all queues stay
/// backlogged.
fn arbitrate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("arbiter: next + post");
    for mechanism in [Mechanism::RoundRobin, Mechanism::Weighted] {
        for (queues, stride) in [(6, 1), (96, 1), (1024, 1), (1024, 341)] {
            let mut arbiter = arbiter(mechanism, queues, stride);
            let name = format!(
                "{mechanism:?}/{queues} queues, {} with commands",
                usize::from(queues).div_ceil(stride)
            );
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| {
                    let queue = arbiter.next().expect("there are always commands");
                    arbiter.post(black_box(queue), 1);
                });
            });
        }
    }
}

/// A closed loop of 4 KiB requests at random places in virtual time: start, the events inside,
/// next_ns and pop.
fn serve(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("timing model: one 4 KiB command");
    let loads = [
        (Op::Read, State::Fresh, 64u32),
        (Op::Read, State::Fresh, 1024),
        (Op::Write, State::Steady, 64),
    ];
    for (name, _) in BUILT_IN {
        let profile = Profile::named(name).expect("it is built in");
        for (op, state, depth) in loads {
            let setup = Setup { capacity: 1 << 36, state, outstanding: depth, seed: 1 };
            let mut ssd = Ssd::new(&profile, &setup);
            let mut random = 1u64;
            let mut offset = move || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random >> 28 & !4095
            };
            (0..depth).for_each(|id| ssd.start(0, id, op, offset(), 4096));
            let name = format!("{name}, {op:?} {state:?} x {depth}");
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| {
                    loop {
                        let now_ns = ssd.next_ns().expect("commands are outstanding");
                        if let Some(completed) = ssd.pop(now_ns) {
                            break ssd.start(
                                completed.at_ns,
                                completed.id,
                                op,
                                black_box(offset()),
                                4096,
                            );
                        }
                    }
                });
            });
        }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(600))
        .configure_from_args();
    arbitrate(&mut criterion);
    serve(&mut criterion);
    criterion.final_summary();
}
