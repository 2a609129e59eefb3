//! The cost of a scheduler: nanoseconds per request, which is one submit, one next and one
//! complete.
//!
//! Closed loop: every flow keeps 8 requests of 4 KiB live on every port, weights 100 to 400; a port
//! keeps up to 32 of its requests on the device and completes the oldest when it has that many.
//! With two threads, each has its port, all flows are on both, and the time is per thread: threads
//! that did not disturb each other would take the time of one. A port that is blocked waits until
//! it is woken, and the wait counts. The row *apart* is for two threads with a policy each: they
//! share nothing, so the row is the machine's floor for two threads with one policy.
//!
//! The overhead of NASS, and of the layers around `mqfq` (the search for D, latency targets, caps,
//! groups), is measured in pairs: the scheduler alone and with the addition, one right after the
//! other.
//!
//! After criterion's own report a table gives all medians, with their ratios. `bench/schedulers`
//! reads it, and has the bars. Timings never fail: they depend on the machine and on its load.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use crossbeam_utils::CachePadded;
use fairq_classic::bfq::{BfqConfig, BfqScheduler};
use fairq_classic::cfq::{CfqConfig, CfqScheduler};
use fairq_classic::fiops::{FiopsConfig, FiopsScheduler};
use fairq_classic::flashfq::{FlashFqConfig, FlashFqScheduler};
use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_classic::nass::{self, NassConfig};
use fairq_core::Topology;
use fairq_core::d2fq::{D2fq, D2fqConfig};
use fairq_core::depth::DepthConfig;
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig};
use fairq_core::managed::{Managed, Stages};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::registry::{self, Keys, Shape};
use fairq_core::serial::{
    Arrival, Job, Lane, Lanes, Selection, Serial, SerialConfig, SerialPolicy,
};
use fairq_core::sfqd::SfqdScheduler;
use fairq_core::{
    Cap, Caps, Counted, FlowId, Group, GroupId, Limits, Native, Next, Op, Outcome, Policy, Port,
    PortSet, ReferenceWeight, Request, Reservation, Share, Side, Submitted, Tag, Target, Tuning,
    Weight,
};

const FLOWS: [usize; 4] = [2, 16, 256, 4096];
const DEPTH: usize = 8;
const SLOTS: u32 = 64;
const ON_DEVICE: usize = 32;

/// One port with its closed loop.
struct Shard<P> {
    port: P,
    /// Numbers of the thread, and of the port in its policy.
    index: usize,
    id: usize,
    now_ns: u64,
    /// Per tag, its flow.
    flows: Vec<FlowId>,
    device: VecDeque<Tag>,
    on_device: usize,
    blocked: bool,
}

/// State that the threads of one run share: woken ports, and whether the run is over.
struct Shared {
    woken: Vec<CachePadded<AtomicBool>>,
    over: CachePadded<AtomicBool>,
    start: Barrier,
}

impl<P: Port> Shard<P> {
    fn submit(&mut self, tag: Tag, shared: &Shared) {
        let flow = self.flows[tag.0 as usize];
        let request = Request::new(tag, flow, Op::Read, 0, 4096);
        let mut wake = PortSet::EMPTY;
        self.now_ns += 100;
        match self.port.submit(self.now_ns, black_box(&request), &mut wake) {
            Ok(Submitted::Staged) => {}
            Ok(Submitted::Issue { .. }) => self.device.push_back(tag),
            Err(error) => panic!("{error}"),
        }
        self.pass_on(wake, shared);
    }

    /// Completes the oldest request on the device and submits its successor.
    fn turn_over(&mut self, shared: &Shared) {
        let Some(tag) = self.device.pop_front() else { return };
        let mut wake = PortSet::EMPTY;
        self.port.complete(self.now_ns, black_box(tag), Outcome::Done, &mut wake);
        self.pass_on(wake, shared);
        self.submit(tag, shared);
        self.blocked = false;
    }

    /// Wakes the ports that a verb has named; mostly there are none.
    fn pass_on(&mut self, wake: PortSet, shared: &Shared) {
        if wake.is_empty() {
            return;
        }
        for port in wake {
            if usize::from(port.0) == self.id {
                self.blocked = false;
            } else {
                shared.woken[usize::from(port.0)].store(true, Ordering::Release);
            }
        }
    }

    /// Serves requests until `count` are done here or a thread is done; returns how many, and the
    /// time they took.
    fn run(&mut self, count: u64, direct: bool, shared: &Shared) -> Sample {
        shared.start.wait();
        let (start, cpu) = (Instant::now(), cpu_ns());
        let (mut done, mut spins) = (0, 0);
        while done < count && !(done % 64 == 0 && shared.over.load(Ordering::Relaxed)) {
            let woken = &shared.woken[self.index];
            if self.blocked
                && !(woken.load(Ordering::Relaxed) && woken.swap(false, Ordering::Acquire))
            {
                // Only a completion on this port or another one can unblock it.
                match self.device.is_empty() {
                    false => self.turn_over(shared),
                    true if shared.over.load(Ordering::Relaxed) => break,
                    // The other thread may need this CPU.
                    true if spins >= 200 => thread::yield_now(),
                    true => std::hint::spin_loop(),
                }
                spins += 1;
                continue;
            }
            spins = 0;
            let mut wake = PortSet::EMPTY;
            let next = self.port.next(self.now_ns, &mut wake);
            self.pass_on(wake, shared);
            if let Next::Issue { tag, .. } = next {
                self.device.push_back(tag);
            }
            self.blocked = !direct && !matches!(next, Next::Issue { .. });
            if direct || (!self.blocked && self.device.len() >= self.on_device) {
                self.turn_over(shared);
            }
            done += u64::from(!self.blocked);
        }
        shared.over.store(true, Ordering::Relaxed);
        Sample { done, elapsed: start.elapsed(), cpu_ns: cpu_ns() - cpu }
    }
}

/// Requests that one thread served, their time, and their CPU time.
struct Sample {
    done: u64,
    elapsed: Duration,
    cpu_ns: u64,
}

/// CPU time that this thread has used, in nanoseconds; 0 if the kernel does not report it.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure, or `-` if it was not measured.
fn cell(value: f64, width: usize, digits: usize) -> String {
    match value.is_nan() {
        true => format!("{:>width$}", "-"),
        false => format!("{value:>width$.digits$}"),
    }
}

/// Builds a policy with all flows, calls `prepare` on them, and fills its ports.
fn shards<P: Policy>(
    (policy, ports): (P, Vec<P::Port>),
    first: usize,
    flows: usize,
    prepare: impl Fn(&P, &[FlowId]),
) -> (P, Vec<Shard<P::Port>>) {
    let ids: Vec<FlowId> = (0..flows)
        .map(|flow| {
            policy
                .add_flow(Weight::new(100 * (1 + flow as u16 % 4)).expect("legal"))
                .expect("it fits")
        })
        .collect();
    prepare(&policy, &ids);
    let shared = Shared::new(first + ports.len());
    let fill = |(id, port)| {
        let flows: Vec<FlowId> = ids.iter().copied().cycle().take(flows * DEPTH).collect();
        let tags = flows.len();
        let on_device = ON_DEVICE.min(tags / 2);
        let device = VecDeque::with_capacity(tags);
        let mut shard = Shard {
            port,
            index: first + id,
            id,
            now_ns: 0,
            flows,
            device,
            on_device,
            blocked: false,
        };
        (0..tags).for_each(|tag| shard.submit(Tag(tag as u32), &shared));
        shard
    };
    let shards = ports.into_iter().enumerate().map(fill).collect();
    (policy, shards)
}

impl Shared {
    fn new(ports: usize) -> Shared {
        Shared {
            woken: (0..ports).map(|_| CachePadded::new(AtomicBool::new(true))).collect(),
            over: CachePadded::new(AtomicBool::new(false)),
            start: Barrier::new(ports),
        }
    }
}

/// One row of the tables: nanoseconds per request, by number of flows.
struct Row {
    policy: &'static str,
    threads: &'static str,
    ns: Vec<f64>,
    cpu_ns: Vec<f64>,
}

fn measure<P: Policy>(
    criterion: &mut Criterion,
    rows: &mut Vec<Row>,
    policy: &'static str,
    build: impl Fn(usize, usize) -> (P, Vec<P::Port>),
) {
    for (threads, policies, ports) in [("1", 1, 1), ("2", 1, 2), ("apart", 2, 1)] {
        let mut row = Row { policy, threads, ns: Vec::new(), cpu_ns: Vec::new() };
        let mut group = criterion.benchmark_group(format!("{policy}/{threads} threads"));
        for flows in FLOWS {
            let built = (0..policies).map(|nth| shards(build(ports, flows), nth, flows, |_, _| {}));
            let (_policies, shards): (Vec<P>, Vec<_>) = built.unzip();
            let mut shards: Vec<Shard<P::Port>> = shards.into_iter().flatten().collect();
            let mut samples: Vec<(f64, f64)> = Vec::new();
            group.bench_function(BenchmarkId::from_parameter(flows), |bencher| {
                bencher.iter_custom(|count| {
                    let per_request =
                        run(&mut shards, count, policy == "none" || policy.starts_with("d2fq"));
                    samples.push(per_request);
                    Duration::from_nanos((per_request.0 * count as f64) as u64)
                });
            });
            // The first samples are criterion's warm-up.
            samples.drain(..samples.len().saturating_sub(SAMPLES));
            row.ns.push(median(samples.iter().map(|sample| sample.0)));
            row.cpu_ns.push(median(samples.iter().map(|sample| sample.1)));
        }
        rows.push(row);
    }
}

const SAMPLES: usize = 20;

/// Nanoseconds per request and thread: wall-clock time and CPU time.
fn run<P: Port>(shards: &mut [Shard<P>], count: u64, direct: bool) -> (f64, f64) {
    let shared = Shared::new(shards.len());
    let samples: Vec<Sample> = match shards {
        [shard] => vec![shard.run(count, direct, &shared)],
        shards => thread::scope(|scope| {
            let spawn = |shard| scope.spawn(|| Shard::run(shard, count, direct, &shared));
            let threads: Vec<_> = shards.iter_mut().map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        }),
    };
    let done = samples.iter().map(|sample| sample.done).sum::<u64>().max(1) as f64;
    let elapsed: Duration = samples.iter().map(|sample| sample.elapsed).sum();
    let cpu_ns: u64 = samples.iter().map(|sample| sample.cpu_ns).sum();
    (elapsed.as_nanos() as f64 / done, cpu_ns as f64 / done)
}

fn print(title: &str, rows: &[Row], figures: impl Fn(&Row) -> &[f64]) {
    let taken = |values: &[f64]| values.iter().any(|value| !value.is_nan());
    if !rows.iter().any(|row| taken(figures(row))) {
        return;
    }
    println!("\n{title}");
    println!(
        "{:<16}{:>8}{:>9}{:>9}{:>9}{:>9}{:>11}",
        "policy", "threads", 2, 16, 256, 4096, "4096 / 16"
    );
    for row in rows.iter().filter(|row| taken(figures(row))) {
        let ns = figures(row);
        let cells: String = ns.iter().map(|&ns| cell(ns, 9, 1)).collect();
        println!("{:<16}{:>8}{cells}{}", row.policy, row.threads, cell(ns[3] / ns[1], 11, 2));
    }
    for three in rows.chunks(3) {
        let [one, two, apart] = three else { continue };
        for (name, above, below) in
            [("2 / 1", two, one), ("apart/1", apart, one), ("2/apart", two, apart)]
        {
            let ratios: Vec<f64> = figures(above)
                .iter()
                .zip(figures(below))
                .map(|(above, below)| above / below)
                .collect();
            if taken(&ratios) {
                let cells: String = ratios.iter().map(|&ratio| cell(ratio, 9, 2)).collect();
                println!("{:<16}{name:>8}{cells}", one.policy);
            }
        }
    }
}

/// A scheduler with an addition around it: for each number of flows, pairs of nanoseconds of
/// processor time per request, alone and with the addition.
struct Added {
    names: [&'static str; 2],
    pairs: Vec<Vec<(f64, f64)>>,
}

impl Added {
    fn print(all: &[Added]) {
        if all.iter().all(|added| added.pairs.iter().all(Vec::is_empty)) {
            return;
        }
        Self::table(all, "times what it takes alone", 2, |(alone, with)| with / alone);
        Self::table(all, "nanoseconds more than alone", 1, |(alone, with)| with - alone);
    }

    fn table(all: &[Added], title: &str, digits: usize, figure: impl Fn((f64, f64)) -> f64) {
        println!(
            "\nwith something around, {title}, processor time on one thread: medians of pairs, and \
             half of the pairs within"
        );
        println!("{:<28}{:>20}{:>20}{:>20}{:>20}", "flows", 2, 16, 256, 4096);
        for Added { names: [alone, with], pairs } in all {
            let figures = pairs.iter().map(|pairs| pairs.iter().copied().map(&figure).collect());
            let cells: String =
                figures.map(|figures| format!("{:>20}", Self::cell(figures, digits))).collect();
            println!("{:<28}{cells}", format!("{with} / {alone}"));
        }
    }

    fn cell(mut figures: Vec<f64>, digits: usize) -> String {
        figures.sort_by(f64::total_cmp);
        let at = |quarter: usize| figures.get(figures.len() * quarter / 4).copied();
        match (at(1), at(2), at(3)) {
            (Some(low), Some(median), Some(high)) => {
                format!("{median:.digits$} ({low:.digits$}-{high:.digits$})")
            }
            _ => "-".into(),
        }
    }
}

/// The turns that NASS makes a scheduler take where each of many flows may have one request on the
/// device, without NASS.
struct Turns<S> {
    inner: S,
}

impl<S: SerialPolicy> SerialPolicy for Turns<S> {
    fn add_flow(&mut self, flow: usize, weight: Weight) {
        self.inner.add_flow(flow, weight);
    }

    fn set_weight(&mut self, flow: usize, weight: Weight) {
        self.inner.set_weight(flow, weight);
    }

    fn remove_flow(&mut self, flow: usize) {
        self.inner.remove_flow(flow);
    }

    fn set_reference(&mut self, reference: ReferenceWeight) {
        self.inner.set_reference(reference);
    }

    #[inline]
    fn insert(&mut self, now_ns: u64, arrival: &Arrival) {
        self.inner.insert(now_ns, arrival);
    }

    fn grow(&mut self, now_ns: u64, arrival: &Arrival) {
        self.inner.grow(now_ns, arrival);
    }

    fn set_lane(&mut self, _flow: usize, _lane: Lane) {}

    #[inline]
    fn select(&mut self, now_ns: u64, lanes: Lanes) -> Selection {
        let selection = self.inner.select(now_ns, lanes);
        if let Selection::Serve(_, flow) = selection {
            self.inner.set_lane(flow, Lane::Shut);
        }
        selection
    }

    fn cancel(&mut self, job: Job, flow: usize) {
        self.inner.cancel(job, flow);
    }

    #[inline]
    fn completed(&mut self, now_ns: u64, job: Job, flow: usize, outcome: Outcome) {
        self.inner.completed(now_ns, job, flow, outcome);
        self.inner.set_lane(flow, Lane::Common);
    }

    fn tick(&mut self, now_ns: u64) -> Option<u64> {
        self.inner.tick(now_ns)
    }

    fn virtual_time(&self) -> Option<u64> {
        self.inner.virtual_time()
    }
}

/// A scheduler behind one lock, alone, where flows take turns, and with NASS around it.
fn measure_serial<S: SerialPolicy>(
    criterion: &mut Criterion,
    rows: &mut Vec<Row>,
    added: &mut Vec<Added>,
    names: [&'static str; 3],
    build: impl Fn(&SerialConfig) -> S,
) {
    let bounds = |ports: usize, flows: usize| {
        SerialConfig::new(ports, flows, flows * DEPTH).with(|config| config.slots = SLOTS)
    };
    let alone = |ports, flows| {
        let bounds = bounds(ports, flows);
        Serial::<S>::with_policy(build(&bounds), &bounds).expect("the bounds are legal")
    };
    let turns = |ports, flows| {
        let bounds = bounds(ports, flows);
        let turns = Turns { inner: build(&bounds) };
        Serial::<Turns<S>>::with_policy(turns, &bounds).expect("the bounds are legal")
    };
    let nass = NassConfig::default().with(|config| config.queue_length = SLOTS);
    let with = |ports, flows| {
        let bounds = bounds(ports, flows);
        nass::new::<S, Native>(build(&bounds), &bounds, &nass).expect("the bounds are legal")
    };
    measure(criterion, rows, names[0], alone);
    measure(criterion, rows, names[1], turns);
    measure(criterion, rows, names[2], with);
    added.push(measure_pairs(criterion, [names[0], names[2]], alone, with, |_, _| {}));
}

/// Measures two policies alternately, on one thread.
fn measure_pairs<A: Policy, B: Policy>(
    criterion: &mut Criterion,
    names: [&'static str; 2],
    alone: impl Fn(usize, usize) -> (A, Vec<A::Port>),
    with: impl Fn(usize, usize) -> (B, Vec<B::Port>),
    prepare: impl Fn(&B, &[FlowId]),
) -> Added {
    let mut group = criterion.benchmark_group(format!("{} over {}", names[1], names[0]));
    let pairs = FLOWS.map(|flows| {
        let (_alone, mut alone) = shards(alone(1, flows), 0, flows, |_, _| {});
        let (_with, mut with) = shards(with(1, flows), 0, flows, &prepare);
        let mut pairs = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(flows), |bencher| {
            bencher.iter_custom(|count| {
                let (below, above) = (run(&mut alone, count, false), run(&mut with, count, false));
                pairs.push((below.1, above.1));
                Duration::from_nanos((above.0 * count as f64) as u64)
            });
        });
        pairs.drain(..pairs.len().saturating_sub(SAMPLES));
        pairs
    });
    Added { names, pairs: pairs.to_vec() }
}

/// The overhead of groups, reservations and caps on a server that has none of them.
fn measure_settings(criterion: &mut Criterion) -> Added {
    let shape = |threads, flows| Shape::new(Topology::flat(threads), flows, flows * DEPTH);
    measure_pairs(
        criterion,
        ["bare mqfq", "no groups, no caps+mqfq"],
        |threads, flows| {
            registry::bare::<registry::mqfq::Entry, Native>(&[], &shape(threads, flows))
                .expect("legal")
        },
        |threads, flows| {
            registry::build::<registry::mqfq::Entry, Native>(&[], &shape(threads, flows))
                .expect("legal")
        },
        |_, _| {},
    )
}

/// The overhead of the stages around `mqfq`: idle, each with something to do, and all of them.
/// Ticks are only before the run, so D does not change.
fn measure_layers(criterion: &mut Criterion, added: &mut Vec<Added>) {
    let mut pair = |name, keys, prepare: &dyn Fn(&Layered, &[FlowId])| {
        added.push(measure_pairs(
            criterion,
            ["mqfq", name],
            |threads, flows| mqfq(threads, flows, false),
            |threads, flows| {
                let shape = Shape::new(Topology::flat(threads), flows, flows * DEPTH);
                registry::build::<registry::mqfq::Entry, Native>(keys, &shape).expect("legal")
            },
            prepare,
        ));
    };
    let bytes = fairq_core::cost::CostKind::Bytes as u64;
    let fixed: Keys<'_> = &[("slots", SLOTS as u64), ("cost", bytes)];
    let share = |policy: &Layered, flows: &[FlowId], groups: u16, iops: u64| {
        for id in (0..groups).map(GroupId) {
            policy.set_group(id, Some(&Group::default())).expect("there is room");
        }
        let reservation = Reservation::new(iops, 0).unwrap_or(Reservation::NONE);
        for (at, &flow) in (0..).zip(flows) {
            let group = (groups > 0).then(|| GroupId(at % groups));
            policy.set_share(flow, &Share { group, reservation }).expect("it is there");
        }
        (0..200).for_each(|tick| {
            policy.tick(tick * 10_000_000, &mut PortSet::default());
        });
    };
    // A cap that is never reached.
    let cap = |policy: &Layered, flows: &[FlowId]| {
        let cap = Cap::new(Cap::MOST, Cap::MOST);
        let caps = Caps::default().with(Side::Both, Counted::Bytes, cap);
        flows.iter().for_each(|&flow| policy.set_caps(flow, &caps).expect("it is there"));
    };
    // On as many flows as may have one.
    let aim = |policy: &Layered, flows: &[FlowId]| {
        let target = Target::new(1_000_000, Target::LATE_PPM, 50).expect("legal");
        flows.iter().for_each(|&flow| _ = policy.set_target(flow, Some(target)));
    };
    pair("idle layers+mqfq", fixed, &|_, _| {});
    // Less than the weight of each flow gives it.
    pair("reservations+mqfq", fixed, &|policy, flows| share(policy, flows, 0, 1000));
    // Ports count for the costs by the device.
    pair("costs by the device+mqfq", &[("slots", SLOTS as u64)], &|_, _| {});
    pair("targets+mqfq", fixed, &|policy, flows| aim(policy, flows));
    pair("caps+mqfq", fixed, &|policy, flows| cap(policy, flows));
    pair("groups+mqfq", fixed, &|policy, flows| share(policy, flows, 2, 0));
    pair("a server's layers+mqfq", &[], &|policy, _| search(policy));
    let all = |policy: &Layered, flows: &[FlowId]| {
        share(policy, flows, 2, 1000);
        cap(policy, flows);
        aim(policy, flows);
    };
    pair("all limits+mqfq", fixed, &all);
    pair("a server's, all limits+mqfq", &[], &|policy, flows| {
        all(policy, flows);
        search(policy);
    });
}

/// Sets the same D as in the other rows, while ports count for the search.
fn search(policy: &Layered) {
    for tuning in [Tuning::Slots(SLOTS), Tuning::AutoSlots] {
        policy.tune(tuning, &mut PortSet::default()).expect("it has D");
    }
}

/// `mqfq` as a server builds it, with 10,000 tenants in 100 groups and with 16 tenants, in pairs;
/// and the time of a tick with 10,000 tenants.
fn measure_many(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("10000 tenants in 100 groups over 16 tenants");
    for (name, groups) in [("none", 0), ("4 groups", 4)] {
        let (_few, mut few) = as_served(16, groups);
        let (many, mut shards) = as_served(MANY, 100);
        let mut pairs = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|count| {
                let (below, above) = (run(&mut few, count, false), run(&mut shards, count, false));
                pairs.push((below.1, above.1));
                Duration::from_nanos((above.0 * count as f64) as u64)
            });
        });
        pairs.drain(..pairs.len().saturating_sub(SAMPLES));
        if !pairs.is_empty() {
            let all = |figure: fn(&(f64, f64)) -> f64| median(pairs.iter().map(figure));
            println!(
                "\n16 tenants ({name}): {:.1} ns of processor time; {MANY} in 100 groups: \
                 {:.1} ns, {:.2} times",
                all(|pair| pair.0),
                all(|pair| pair.1),
                all(|pair| pair.1 / pair.0)
            );
            let start = Instant::now();
            let ticks = 100;
            for tick in 1..=ticks {
                many.tick(tick * 10_000_000, &mut PortSet::default());
            }
            println!("a tick: {:?}", start.elapsed() / ticks as u32);
        }
    }
}

const MANY: usize = 10_000;

/// Builds `mqfq` with the layers and keys that a server has by default, for one port. The tenants
/// are spread over the groups; with 0 groups each is in none.
fn as_served(flows: usize, groups: usize) -> (Layered, Vec<Shard<<Layered as Policy>::Port>>) {
    let shape = Shape::new(Topology::flat(1), flows, flows * DEPTH);
    let built = registry::build::<registry::mqfq::Entry, Native>(&[], &shape).expect("legal");
    shards(built, 0, flows, |policy, flows| {
        search(policy);
        for id in (0..groups as u16).map(GroupId) {
            policy.set_group(id, Some(&Group::default())).expect("there is room");
        }
        for (at, &flow) in flows.iter().enumerate().take(flows.len() * groups.min(1)) {
            let share = Share { group: Some(GroupId((at % groups) as u16)), ..Share::default() };
            policy.set_share(flow, &share).expect("its group is there");
        }
    })
}

/// The overhead of the counters for the search for D, and of the same layer without a search. Time
/// does not pass for the search here, so D does not change.
fn measure_search(criterion: &mut Criterion, name: &'static str, is_auto: bool) -> Added {
    measure_pairs(
        criterion,
        ["mqfq", name],
        |threads, flows| mqfq(threads, flows, false),
        |threads, flows| {
            let built = mqfq(threads, flows, false);
            let depth = Some(DepthConfig::Slots { is_auto });
            let stages = Stages { depth, ..Stages::default() };
            Managed::<_, Native>::new(built, flows * DEPTH, flows, &stages).expect("memory")
        },
        |_, _| {},
    )
}

/// `mqfq` with all layers around it.
type Layered = registry::Layered<registry::mqfq::Entry, Native>;

fn mqfq(
    threads: usize,
    flows: usize,
    serial: bool,
) -> (Mqfq<Native>, Vec<fairq_core::mqfq::MqfqPort<Native>>) {
    let mut config = MqfqConfig::new(Topology::flat(threads), flows, flows * DEPTH);
    config.slots = SLOTS;
    config.serial = serial;
    Mqfq::new(config).expect("the bounds are legal")
}

fn d2fq(threads: usize, flows: usize) -> (D2fq<Native>, Vec<fairq_core::d2fq::D2fqPort<Native>>) {
    let config = D2fqConfig::new(Topology::flat(threads), flows, flows * DEPTH);
    D2fq::new(config).expect("the bounds are legal")
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(400))
        .measurement_time(Duration::from_millis(1200))
        .configure_from_args();
    let (mut rows, mut added) = (Vec::new(), Vec::new());
    measure(&mut criterion, &mut rows, "none", |threads, flows| {
        NonePolicy::<Native>::new(threads, flows, flows * DEPTH).expect("the bounds are legal")
    });
    measure(&mut criterion, &mut rows, "d2fq", d2fq);
    measure_serial(
        &mut criterion,
        &mut rows,
        &mut added,
        ["sfqd", "turns+sfqd", "nass+mqfq"],
        SfqdScheduler::new,
    );
    // Without anticipation, because time does not pass here while a port waits. NASS replaces the
    // quantum.
    let cfq = CfqConfig::default().with(|config| {
        config.idle_ns = 0;
        config.quantum = SLOTS;
    });
    let bfq = BfqConfig::default().with(|config| config.idle_ns = 0);
    let flashfq = FlashFqConfig::default().with(|config| config.idle_ns = 0);
    let slices = |bounds: &SerialConfig| CfqScheduler::new(bounds, &cfq).expect("legal");
    let budgets = |bounds: &SerialConfig| BfqScheduler::new(bounds, &bfq).expect("legal");
    let throttled = |bounds: &SerialConfig| FlashFqScheduler::new(bounds, &flashfq).expect("legal");
    measure_serial(
        &mut criterion,
        &mut rows,
        &mut added,
        ["cfq-na", "turns+cfq", "nass+cfq"],
        slices,
    );
    measure_serial(
        &mut criterion,
        &mut rows,
        &mut added,
        ["bfq-na", "turns+bfq", "nass+bfq"],
        budgets,
    );
    measure_serial(
        &mut criterion,
        &mut rows,
        &mut added,
        ["flashfq", "turns+flashfq", "nass+flashfq"],
        throttled,
    );
    measure_serial(
        &mut criterion,
        &mut rows,
        &mut added,
        ["fiops", "turns+fiops", "nass+fiops"],
        |bounds| FiopsScheduler::new(bounds, &FiopsConfig::default()),
    );
    measure(&mut criterion, &mut rows, "mqfq", |threads, flows| mqfq(threads, flows, false));
    measure(&mut criterion, &mut rows, "mqfq-serial", |threads, flows| mqfq(threads, flows, true));
    measure(&mut criterion, &mut rows, "kyber", |ports, flows| {
        Kyber::<Native>::new(&KyberConfig::new(ports, flows, flows * DEPTH))
            .expect("the bounds are legal")
    });
    measure(&mut criterion, &mut rows, "kyber-fair", |ports, flows| {
        let busy = ON_DEVICE as u32 / 2;
        let config =
            KyberFairConfig::new(ports, flows, flows * DEPTH).with(|config| config.busy = busy);
        KyberFair::<Native>::new(&config).expect("the bounds are legal")
    });
    added.push(measure_search(&mut criterion, "D that is set+mqfq", false));
    added.push(measure_search(&mut criterion, "search for D+mqfq", true));
    added.push(measure_settings(&mut criterion));
    measure_layers(&mut criterion, &mut added);
    measure_many(&mut criterion);
    print("nanoseconds per request (submit + next + complete) and thread, medians", &rows, |row| {
        &row.ns
    });
    print("the same in processor time, for when the machine is shared", &rows, |row| &row.cpu_ns);
    Added::print(&added);
    criterion.final_summary();
}
