//! Contention between two CPUs, measured on this machine beside the simulator's races
//! (`fairq_sim::races`): contended words, locks, and policies' verbs.
//!
//! The inputs of the model are the times of accesses on one CPU alone and the time of a cache
//! line's transfer from the other CPU, measured in the way of `core-to-core-latency`, the source of
//! these figures for the papers' machines; the model predicts the rest. Timings never fail the
//! benchmark: they depend on the machine.
//!
//! For more than two CPUs the model is compared with published curves: T. Downs, "A Concurrency
//! Cost Hierarchy" (2020), whose figures are in `travisdowns/concurrency-hierarchy-bench`
//! (`results/*/combined.csv`, medians of 15). For these machines the input is the time in which two
//! CPUs add to a word, and the model predicts the rest.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use fairq_core::d2fq::{D2fqConfig, Ratio};
use fairq_core::platform::{AtomicWord, Lock};
use fairq_core::{
    FlowId, Native, Next, Op, Outcome, Platform, Policy, Port, PortSet, Request, Submitted, Tag,
    Topology, Weight,
};
use fairq_sim::Host;
use fairq_sim::contention::{Contended, Contest, contend};
use fairq_sim::host::{Cycles, Machine, Ways};
use fairq_sim::policies::{
    MqfqSubject, StrictD2fq, StrictD2fqPort, StrictMqfq, StrictMqfqPort, TrackerKind,
};
use fairq_sim::traced::Traced;

const CPUS: usize = 2;
const LASTS: Duration = Duration::from_millis(60);
const REPEATS: usize = 5;
/// Iterations of an empty loop between two calls. In the papers a request takes several
/// microseconds of a CPU.
const PAUSES: [u64; 3] = [0, 400, 2000];

/// A value in a line of its own.
#[repr(align(128))]
struct Own<T>(T);

// Measuring.

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("two CPUs");
}

/// Runs each closure over and over on a CPU of its own; returns nanoseconds per call, of all CPUs
/// together: the least of several runs. Between calls are `pause` iterations of an empty loop.
fn measure<F: FnMut() -> u64 + Send>(fs: Vec<F>, pause: u64) -> f64 {
    let cpus = fs.len();
    let fs: Vec<Mutex<F>> = fs.into_iter().map(Mutex::new).collect();
    let go = || {
        let (start, over) = (Barrier::new(cpus), Own(AtomicBool::new(false)));
        let counts: Vec<(u64, f64)> = std::thread::scope(|scope| {
            let run = |cpu: usize| {
                let (start, over, f) = (&start, &over, &fs[cpu]);
                scope.spawn(move || {
                    pin(cpu);
                    let f = &mut *f.lock().expect("no run panics");
                    (0..1000).for_each(|_| _ = f());
                    start.wait();
                    let from = Instant::now();
                    let mut count = 0;
                    while !over.0.load(Relaxed) {
                        for _ in 0..64 {
                            rest(pause, f());
                        }
                        count += 64;
                        if from.elapsed() > LASTS {
                            over.0.store(true, Relaxed);
                        }
                    }
                    (count, from.elapsed().as_nanos() as f64)
                })
            };
            let threads: Vec<_> = (0..cpus).map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let a_ns: f64 = counts.iter().map(|(count, ns)| *count as f64 / ns).sum();
        1.0 / a_ns
    };
    least((0..REPEATS).map(|_| go()))
}

/// The least value, because other work on this machine only adds time.
fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

/// The pause between two calls: a chain of dependent additions, of which the first depends on
/// `value`. So a processor cannot begin the pause before the call has returned its result.
#[inline]
fn rest(iterations: u64, mut value: u64) {
    for _ in 0..iterations {
        value = black_box(value + 1);
    }
}

/// Time of a line's transfer: two CPUs wait in turn for the other's compare-and-swap.
fn line_ns() -> f64 {
    const ROUNDS: u64 = 200_000;
    let go = || {
        let word = Own(AtomicU64::new(0));
        let start = Barrier::new(CPUS);
        let ns: Vec<f64> = std::thread::scope(|scope| {
            let run = |cpu: usize| {
                let (word, start) = (&word, &start);
                scope.spawn(move || {
                    pin(cpu);
                    start.wait();
                    let from = Instant::now();
                    let mine = cpu as u64;
                    for _ in 0..ROUNDS {
                        while word.0.compare_exchange(mine, 1 - mine, AcqRel, Relaxed).is_err() {}
                    }
                    from.elapsed().as_nanos() as f64
                })
            };
            let threads: Vec<_> = (0..CPUS).map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        ns[0] / (2 * ROUNDS) as f64
    };
    least((0..9).map(|_| go()))
}

// The contended work, the same on this machine and on the model's.

fn add<P: Platform>(word: &P::U64) -> u64 {
    word.fetch_add(1, SeqCst)
}

fn swap_loop<P: Platform>(word: &P::U64) -> u64 {
    let mut old = word.load(Relaxed);
    while let Err(now) = word.compare_exchange(old, old + 1, SeqCst, Relaxed) {
        old = now;
    }
    old
}

/// Loads both words first, like code whose swap also depends on other words.
fn swap_of_two<P: Platform>([word, other]: &[Own<P::U64>; 2]) -> u64 {
    let mut old = word.0.load(Relaxed);
    loop {
        let more = other.0.load(Relaxed);
        match word.0.compare_exchange(old, old + more + 1, SeqCst, Relaxed) {
            Ok(old) => return old,
            Err(now) => old = now,
        }
    }
}

/// The cache lines that a lock guards; a holder of the lock reads and writes each of them.
struct Guarded<P: Platform, const N: usize>([Own<P::U64>; N]);

impl<P: Platform, const N: usize> Guarded<P, N> {
    fn new() -> Self {
        Guarded([(); N].map(|()| Own(P::U64::new(0))))
    }

    fn touch(&self) -> u64 {
        let touch = |line: &Own<P::U64>| {
            let value = line.0.load(Relaxed);
            line.0.store(value + 1, Relaxed);
            value
        };
        self.0.iter().map(touch).sum()
    }
}

/// A lock that hands out tickets.
struct Tickets<P: Platform, const N: usize> {
    /// Both words are in one line.
    next_and_served: Own<[P::U64; 2]>,
    lines: Guarded<P, N>,
}

impl<P: Platform, const N: usize> Tickets<P, N> {
    fn new() -> Self {
        let words = [(); 2].map(|()| P::U64::new(0));
        Tickets { next_and_served: Own(words), lines: Guarded::new() }
    }

    fn touch(&self) -> u64 {
        let [next, served] = &self.next_and_served.0;
        let mine = next.fetch_add(1, Relaxed);
        while served.load(Acquire) != mine {
            P::relax();
        }
        let sum = self.lines.touch();
        served.store(served.load(Relaxed) + 1, Release);
        sum
    }
}

/// A test-and-set lock: the first CPU that swaps its word gets it.
struct Spin<P: Platform, const N: usize> {
    is_held: Own<P::U64>,
    lines: Guarded<P, N>,
}

impl<P: Platform, const N: usize> Spin<P, N> {
    fn new() -> Self {
        Spin { is_held: Own(P::U64::new(0)), lines: Guarded::new() }
    }

    fn touch(&self) -> u64 {
        loop {
            while self.is_held.0.load(Relaxed) != 0 {
                P::relax();
            }
            if self.is_held.0.swap(1, Acquire) == 0 {
                break;
            }
        }
        let sum = self.lines.touch();
        self.is_held.0.store(0, Release);
        sum
    }
}

/// A port's part in a closed loop of requests.
struct Loop<P: Port> {
    port: P,
    device: std::collections::VecDeque<Tag>,
    flow: FlowId,
    now_ns: u64,
}

const TAGS: u32 = 16;

fn loops<L: Policy>((policy, ports): (L, Vec<L::Port>)) -> Vec<Loop<L::Port>> {
    let start = |port| {
        let flow = policy.add_flow(Weight::DEFAULT).expect("it fits");
        let mut one = Loop { port, device: Default::default(), flow, now_ns: 0 };
        (0..TAGS).for_each(|tag| one.submit(Tag(tag)));
        one
    };
    ports.into_iter().map(start).collect()
}

impl<P: Port> Loop<P> {
    fn submit(&mut self, tag: Tag) {
        let mut wake = PortSet::EMPTY;
        let request = Request::new(tag, self.flow, Op::Read, 0, 4096);
        if let Ok(Submitted::Issue { .. }) = self.port.submit(self.now_ns, &request, &mut wake) {
            self.device.push_back(tag);
        }
    }

    /// One round of the loop.
    fn turn(&mut self) -> u64 {
        self.now_ns += 100;
        let mut wake = PortSet::EMPTY;
        if let Next::Issue { tag, .. } = self.port.next(self.now_ns, &mut wake) {
            self.device.push_back(tag);
        }
        if self.device.len() > TAGS as usize / 2
            && let Some(tag) = self.device.pop_front()
        {
            self.port.complete(self.now_ns, tag, Outcome::Done, &mut wake);
            self.submit(tag);
        }
        self.device.len() as u64
    }
}

fn mqfq<P: Platform>() -> Vec<Loop<StrictMqfqPort<P>>> {
    let parts = MqfqSubject { slots: 128, threshold: 64 << 10 }.parts();
    loops(StrictMqfq::<P>::new(parts, &topology(), CPUS, TAGS as usize))
}

fn d2fq<P: Platform>(tracker: TrackerKind) -> Vec<Loop<StrictD2fqPort<P>>> {
    let mut config = D2fqConfig::new(topology(), CPUS, TAGS as usize);
    (config.ratio, config.tau_l) = (Ratio::Static(3), Some(64 << 10));
    loops(StrictD2fq::<P>::new(&config, tracker))
}

fn topology() -> Topology {
    Topology::flat(CPUS)
}

// The model of this machine.

/// A clock of which a cycle is a hundredth of a nanosecond.
const MHZ: u64 = 100_000;

fn cycles(ns: f64) -> u64 {
    (ns * MHZ as f64 / 1000.0).round() as u64
}

/// Times of one CPU of this machine, in nanoseconds.
struct Alone {
    atomic: f64,
    /// An iteration of an empty loop.
    rest: f64,
}

impl Alone {
    fn new() -> Alone {
        let word = Own(AtomicU64::new(0));
        let alone = |f: &mut (dyn FnMut() -> u64 + Send)| measure(vec![f], 0);
        let nothing = alone(&mut || 0);
        let rest = (measure(vec![|| 0], 1000) - nothing) / 1000.0;
        Alone { atomic: alone(&mut || add::<Native>(&word.0)) - nothing, rest }
    }
}

/// The model of this machine, and the pause between two calls of a core.
struct Here {
    host: Host,
    pause_ps: u64,
}

impl Here {
    fn new(alone: &Alone, line_ns: f64, pause: u64) -> Here {
        let usual = Machine::GOLD_5112;
        let line = line_ns.round() as u64;
        let machine = Machine {
            sockets: 1,
            cores: CPUS as u16,
            mhz: MHZ,
            lines: Ways { near_ns: line, far_ns: line },
            cycles: Cycles {
                load: cycles(1.0),
                store: cycles(0.3),
                atomic: cycles(alone.atomic),
                ..usual.cycles
            },
            ..usual
        };
        let pause_ps = (alone.rest * pause as f64 * 1000.0) as u64;
        Here { host: machine.host(CPUS), pause_ps }
    }

    /// The same model with only the first of the two CPUs.
    fn first(&self) -> Here {
        Here { host: self.host.machine.host(1), ..*self }
    }

    /// Each CPU calls one of the closures that `build` makes.
    fn contend<F: FnMut() + Send + 'static>(
        &self,
        takes_ns: f64,
        build: impl FnOnce() -> Vec<F>,
    ) -> Contended {
        let takes_ps = (takes_ns.max(0.0) * 1000.0) as u64;
        let contest = Contest { lasts_ns: 2_000_000, takes_ps, pause_ps: self.pause_ps };
        contend(&self.host, &contest, build)
    }

    /// All CPUs call the same closure on a shared value.
    fn share<S: Send + Sync + 'static>(
        &self,
        takes_ns: f64,
        new: impl FnOnce() -> S,
        call: impl Fn(&S) -> u64 + Copy + Send + 'static,
    ) -> Contended {
        self.contend(takes_ns, || {
            let shared = Arc::new(new());
            let one = |_| {
                let shared = Arc::clone(&shared);
                move || _ = call(&shared)
            };
            self.host.places.iter().map(one).collect()
        })
    }
}

struct Table {
    alone: Alone,
    /// The absolute logarithm of each ratio, by the pause.
    off: BTreeMap<u64, Vec<f64>>,
}

/// The most measurements of a row; it is measured again if the CPUs moved meanwhile.
const TRIES: usize = 6;

impl Table {
    /// The CPUs of a virtual machine can move to other cores: a row counts if a cache line's
    /// transfer took the same time before and after the measurement, within a fifth.
    fn row(
        &mut self,
        name: &str,
        pause: u64,
        measure: impl Fn() -> f64,
        model: impl Fn(&Here) -> Contended,
    ) {
        let mut before = line_ns();
        for _ in 0..TRIES {
            let measured = measure();
            let after = line_ns();
            let (line_ns, stayed) =
                ((before + after) / 2.0, before.max(after) < 1.2 * before.min(after));
            before = after;
            if !stayed {
                continue;
            }
            let modelled = model(&Here::new(&self.alone, line_ns, pause));
            let (each, failures) = (modelled.each_ns(), modelled.failures());
            println!(
                "{name:41} {pause:5} {line_ns:6.0} {measured:8.1} {each:8.1} {:6.2} {failures:8.2}",
                each / measured
            );
            return self.off.entry(pause).or_default().push((each / measured).ln().abs());
        }
        println!("{name:41} {pause:5}   the CPUs are moved too often");
    }
}

fn words(table: &mut Table, pause: u64) {
    type Word<P> = Own<<P as Platform>::U64>;
    let word = || Own(AtomicU64::new(0));
    let (one, two) = (word(), [word(), word()]);
    let both = |f: &(dyn Fn() -> u64 + Sync)| measure(vec![f; CPUS], pause);
    let traced = || Own(<Traced as Platform>::U64::new(0));
    table.row(
        "fetch-and-add",
        pause,
        || both(&|| add::<Native>(&one.0)),
        |here| here.share(0.0, traced, |word: &Word<Traced>| add::<Traced>(&word.0)),
    );
    table.row(
        "compare-and-swap loop",
        pause,
        || both(&|| swap_loop::<Native>(&one.0)),
        |here| here.share(0.0, traced, |word: &Word<Traced>| swap_loop::<Traced>(&word.0)),
    );
    table.row(
        "compare-and-swap loop that reads another",
        pause,
        || both(&|| swap_of_two::<Native>(&two)),
        |here| here.share(0.0, || [traced(), traced()], swap_of_two::<Traced>),
    );
}

fn locks<const N: usize>(table: &mut Table, pause: u64) {
    let tickets = Tickets::<Native, N>::new();
    let spin = Spin::<Native, N>::new();
    let both = |f: &(dyn Fn() -> u64 + Sync)| measure(vec![f; CPUS], pause);
    table.row(
        &format!("ticket lock that guards {N} lines"),
        pause,
        || both(&|| tickets.touch()),
        |here| here.share(0.0, Tickets::<Traced, N>::new, Tickets::touch),
    );
    table.row(
        &format!("the same, {N} lines: the lab's locks"),
        pause,
        || both(&|| tickets.touch()),
        |here| here.share(0.0, || InTurn::<N>::new([[0; 8]; N]), |lock| lock.with(|_| 0)),
    );
    table.row(
        &format!("test-and-set lock that guards {N} lines"),
        pause,
        || both(&|| spin.touch()),
        |here| here.share(0.0, Spin::<Traced, N>::new, Spin::touch),
    );
}

/// The lock of policies in the lab.
type InTurn<const N: usize> = <Traced as Platform>::Mutex<[[u64; 8]; N]>;

fn verbs<P: Port, Q: Port + 'static>(
    table: &mut Table,
    name: &str,
    pause: u64,
    native: impl Fn() -> Vec<Loop<P>>,
    traced: impl Fn() -> Vec<Loop<Q>>,
) {
    let run = |loops: Vec<Loop<P>>| {
        measure(loops.into_iter().map(|mut one| move || one.turn()).collect(), pause)
    };
    let model = |here: &Here, takes_ns| {
        here.contend(takes_ns, || {
            traced().into_iter().map(|mut one| move || _ = one.turn()).collect()
        })
    };
    // On one CPU a round takes the time of the model and the time of computing, so the difference
    // between the measured time and the model's is the time of computing.
    let alone = run(native().into_iter().take(1).collect());
    table.row(
        &format!("{name}: once around"),
        pause,
        || run(native()),
        |here| model(here, alone - model(&here.first(), 0.0).each_ns()),
    );
}

// The model of other machines.

/// Published times of operations on one word or lock without a pause: nanoseconds per operation, of
/// all CPUs together, by the number of CPUs; the first is for one CPU.
struct Published {
    machine: &'static str,
    cpus: &'static [usize],
    add: &'static [f64],
    swap: &'static [f64],
    tickets: &'static [f64],
    spin: &'static [f64],
}

const PUBLISHED: [Published; 3] = [
    Published {
        machine: "Skylake",
        cpus: &[1, 2, 3, 4],
        add: &[7.0, 22.1, 23.3, 24.1],
        swap: &[12.0, 54.3, 75.6, 86.8],
        tickets: &[9.7, 107.6, 115.3, 122.3],
        spin: &[11.2, 97.3, 121.7, 159.9],
    },
    Published {
        machine: "Ice Lake",
        cpus: &[1, 2, 3, 4],
        add: &[6.1, 16.4, 16.4, 17.4],
        swap: &[11.0, 51.5, 57.1, 66.7],
        tickets: &[6.1, 100.8, 120.3, 129.7],
        spin: &[7.3, 62.5, 71.4, 80.3],
    },
    Published {
        machine: "Graviton 2",
        cpus: &[1, 2, 4, 8, 16],
        add: &[5.3, 8.5, 8.7, 9.4, 9.4],
        swap: &[8.4, 26.1, 29.1, 40.4, 39.9],
        tickets: &[12.2, 132.8, 170.4, 249.4, 427.6],
        spin: &[13.9, 50.9, 82.4, 128.4, 198.1],
    },
];

impl Published {
    /// Prints the model's values beside the published ones; returns the absolute logarithms of the
    /// ratios.
    fn table(&self) -> Vec<f64> {
        let line = self.add[1].round() as u64;
        let usual = Machine::GOLD_5112;
        let machine = Machine {
            sockets: 1,
            cores: 16,
            mhz: MHZ,
            lines: Ways { near_ns: line, far_ns: line },
            cycles: Cycles {
                load: cycles(1.0),
                store: cycles(0.3),
                atomic: cycles(self.add[0]),
                ..usual.cycles
            },
            ..usual
        };
        let here = |cpus| Here { host: machine.host(cpus), pause_ps: 0 };
        let word = |cpus, ns, f: fn(&<Traced as Platform>::U64) -> u64| {
            here(cpus).share(ns, || <Traced as Platform>::U64::new(0), f)
        };
        type Model<'a> = &'a dyn Fn(usize, f64) -> Contended;
        let rows: [(&str, &[f64], Model<'_>); 4] = [
            ("fetch-and-add", self.add, &|cpus, ns| word(cpus, ns, add::<Traced>)),
            ("compare-and-swap loop", self.swap, &|cpus, ns| word(cpus, ns, swap_loop::<Traced>)),
            ("ticket lock", self.tickets, &|cpus, ns| {
                here(cpus).share(ns, Tickets::<Traced, 1>::new, Tickets::touch)
            }),
            ("test-and-set lock", self.spin, &|cpus, ns| {
                here(cpus).share(ns, Spin::<Traced, 1>::new, Spin::touch)
            }),
        ];
        let mut off = Vec::new();
        println!(
            "\n{}: {:24} {:>8} {:>8} {:>6}",
            self.machine, "", "measured", "modelled", "ratio"
        );
        for (name, published, model) in rows {
            // The time that one CPU spends outside of its accesses to the word is not contention.
            let beside_ns = published[0] - model(1, 0.0).each_ns();
            for (&cpus, &measured) in self.cpus.iter().zip(published).skip(1) {
                let modelled = model(cpus, beside_ns).each_ns();
                println!(
                    "{name:24} {cpus:2} CPUs {:10} {measured:8.1} {modelled:8.1} {:6.2}",
                    "",
                    modelled / measured
                );
                off.push((modelled / measured).ln().abs());
            }
        }
        off
    }
}

/// Prints the factor by which a model is off, on average and at most.
fn off(logarithms: &[f64]) {
    let worst = logarithms.iter().copied().fold(0.0, f64::max).exp();
    let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
    println!("off by a factor of {mean:.2} on average, {worst:.2} at most");
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let published = || PUBLISHED.iter().for_each(|machine| off(&machine.table()));
    if std::thread::available_parallelism().map_or(1, usize::from) < CPUS {
        println!("there is one CPU: only the published values are compared");
        return published();
    }
    let mut table = Table { alone: Alone::new(), off: BTreeMap::new() };
    println!(
        "an atomic operation of one CPU alone takes {:.1} ns, an iteration of nothing {:.2} ns",
        table.alone.atomic, table.alone.rest
    );
    println!(
        "{:41} {:>5} {:>6} {:>8} {:>8} {:>6} {:>8}",
        "two CPUs, ns", "pause", "a line", "measured", "modelled", "ratio", "failures"
    );
    for pause in PAUSES {
        words(&mut table, pause);
        locks::<1>(&mut table, pause);
        locks::<4>(&mut table, pause);
        locks::<16>(&mut table, pause);
    }
    for pause in PAUSES {
        verbs(&mut table, "MQFQ (strict-paper)", pause, mqfq::<Native>, mqfq::<Traced>);
        for (name, tracker) in [
            ("D2FQ (sloppy)", TrackerKind::Sloppy),
            ("D2FQ (mindicator)", TrackerKind::Mindicator),
            ("D2FQ (scan)", TrackerKind::Scan),
        ] {
            verbs(&mut table, name, pause, || d2fq::<Native>(tracker), || d2fq::<Traced>(tracker));
        }
    }
    for pause in PAUSES {
        print!("with a pause of {pause}: ");
        off(&table.off[&pause]);
    }
    published();
}
