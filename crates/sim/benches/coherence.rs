//! Contention between two CPUs, measured on this machine beside the simulator's races
//! (`fairq_sim::races`): contended words, locks, and policies' verbs.
//!
//! The model is given the time of accesses on one CPU alone and that of a line on its way from the
//! other, measured as `core-to-core-latency` does, the source of these figures for the papers'
//! machines; all else it has to predict. Timings never fail: they belong to the machine.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use fairq_core::d2fq::{D2fq, D2fqConfig, Ratio, TrackerKind};
use fairq_core::mqfq::{Mqfq, MqfqConfig, StrictPaper};
use fairq_core::platform::{AtomicWord, Lock};
use fairq_core::{
    FlowId, Native, Next, Op, Outcome, Platform, Policy, Port, PortSet, Request, Submitted, Tag,
    Topology, Weight,
};
use fairq_sim::Host;
use fairq_sim::contention::{Contended, Contest, contend, work_ns};
use fairq_sim::host::{Cycles, Machine, Ways};
use fairq_sim::races::LockKind;
use fairq_sim::traced::Traced;

const CPUS: usize = 2;
const LASTS: Duration = Duration::from_millis(60);
const REPEATS: usize = 5;

/// A value in a line of its own.
#[repr(align(128))]
struct Own<T>(T);

// Measuring.

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("two CPUs");
}

/// Runs each closure over and over on a CPU of its own; nanoseconds for each time, of all CPUs
/// together: the least of several goes. `pause` iterations of nothing come between.
fn measure<F: FnMut() + Send>(fs: Vec<F>, pause: u64) -> f64 {
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
                    (0..1000).for_each(|_| f());
                    start.wait();
                    let from = Instant::now();
                    let mut count = 0;
                    while !over.0.load(Relaxed) {
                        for _ in 0..64 {
                            f();
                            rest(pause);
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

/// Other work on this machine only adds.
fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

/// Nothing, for so many iterations: dependent additions, which no compiler takes out.
#[inline]
fn rest(iterations: u64) {
    let mut value = 0u64;
    for _ in 0..iterations {
        value = black_box(value + 1);
    }
}

/// How long a line is under way: each waits by compare-and-swap for the other's.
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

fn add<P: Platform>(word: &P::U64) {
    word.fetch_add(1, SeqCst);
}

fn swap_loop<P: Platform>(word: &P::U64) {
    let mut old = word.load(Relaxed);
    while let Err(now) = word.compare_exchange(old, old + 1, SeqCst, Relaxed) {
        old = now;
    }
}

/// Reads first, as where a swap depends on other words, too.
fn swap_of_two<P: Platform>([word, other]: &[Own<P::U64>; 2]) {
    let mut old = word.0.load(Relaxed);
    loop {
        let more = other.0.load(Relaxed);
        match word.0.compare_exchange(old, old + more + 1, SeqCst, Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// A lock that hands out tickets.
struct Tickets<T> {
    next: AtomicU64,
    serves: AtomicU64,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: only the holder of the ticket that is served touches the value.
unsafe impl<T: Send> Sync for Tickets<T> {}

impl<T> Tickets<T> {
    fn with(&self, f: impl FnOnce(&mut T)) {
        let mine = self.next.fetch_add(1, Relaxed);
        while self.serves.load(Acquire) != mine {
            spin_loop();
        }
        // SAFETY: it is this ticket's turn.
        f(unsafe { &mut *self.value.get() });
        self.serves.store(mine + 1, Release);
    }
}

type Lines<const N: usize> = [[u64; 8]; N];

fn touch<const N: usize>(lines: &mut Lines<N>) {
    for line in lines {
        line[0] = black_box(line[0] + 1);
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

    /// Once around.
    fn turn(&mut self) {
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
    }
}

fn mqfq<P: Platform>() -> Vec<Loop<<Mqfq<P, StrictPaper> as Policy>::Port>> {
    let mut config = MqfqConfig::new(topology(), CPUS, TAGS as usize);
    (config.slots, config.threshold_bytes) = (128, 64 << 10);
    loops(Mqfq::<P, StrictPaper>::read(config).expect("legal"))
}

fn d2fq<P: Platform>(tracker: TrackerKind) -> Vec<Loop<<D2fq<P> as Policy>::Port>> {
    let mut config = D2fqConfig::new(topology(), CPUS, TAGS as usize);
    (config.ratio, config.tau_l, config.strict_paper) = (Ratio::Static(3), Some(64 << 10), true);
    config.tracker = tracker;
    loops(D2fq::<P>::new(config).expect("legal"))
}

fn topology() -> Topology {
    Topology::flat(CPUS)
}

// The model of this machine.

/// A hundredth of a nanosecond, as cycles.
const MHZ: u64 = 100_000;

fn cycles(ns: f64) -> u64 {
    (ns * MHZ as f64 / 1000.0).round() as u64
}

/// What one CPU of this machine takes, in nanoseconds.
struct Alone {
    atomic: f64,
    /// An iteration of nothing.
    rest: f64,
}

impl Alone {
    fn new() -> Alone {
        let word = Own(AtomicU64::new(0));
        let alone = |f: &mut (dyn FnMut() + Send)| measure(vec![f], 0);
        let nothing = alone(&mut || ());
        let rest = (measure(vec![|| ()], 1000) - nothing) / 1000.0;
        Alone { atomic: alone(&mut || _ = word.0.fetch_add(1, SeqCst)) - nothing, rest }
    }
}

/// This machine as the model has it, and how much a core does between two calls.
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

    /// The first of its two CPUs.
    fn first(&self) -> Here {
        Here { host: self.host.machine.host(1), ..*self }
    }

    fn contend<F: FnMut(usize)>(
        &self,
        locks: LockKind,
        takes_ns: f64,
        build: impl FnOnce() -> F,
    ) -> Contended {
        let takes_ps = (takes_ns.max(0.0) * 1000.0) as u64;
        let contest = Contest { locks, lasts_ns: 2_000_000, takes_ps, pause_ps: self.pause_ps };
        contend(&self.host, &contest, build)
    }
}

struct Table {
    alone: Alone,
    off: Vec<f64>,
}

/// How often a row is measured until the CPUs have stayed where they were.
const TRIES: usize = 6;

impl Table {
    /// A virtual machine's CPUs are moved: a row counts if a line took the same before and after it,
    /// within a fifth.
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
            return self.off.push((each / measured).ln().abs());
        }
        println!("{name:41} {pause:5}   the CPUs are moved too often");
    }
}

fn words(table: &mut Table, pause: u64) {
    let word = Own(AtomicU64::new(0));
    let both = |f: fn(&AtomicU64)| measure((0..CPUS).map(|_| || f(&word.0)).collect(), pause);
    let model = |here: &Here, f: fn(&<Traced as Platform>::U64)| {
        here.contend(LockKind::InTurn, 0.0, || {
            let word = <Traced as Platform>::U64::new(0);
            move |_| f(&word)
        })
    };
    table.row("fetch-and-add", pause, || both(add::<Native>), |here| model(here, add::<Traced>));
    table.row(
        "compare-and-swap loop",
        pause,
        || both(swap_loop::<Native>),
        |here| model(here, swap_loop::<Traced>),
    );
    let two = [(); 2].map(|()| Own(AtomicU64::new(0)));
    table.row(
        "compare-and-swap loop that reads another",
        pause,
        || measure((0..CPUS).map(|_| || swap_of_two::<Native>(&two)).collect(), pause),
        |here| {
            here.contend(LockKind::InTurn, 0.0, || {
                let two = [(); 2].map(|()| Own(<Traced as Platform>::U64::new(0)));
                move |_| swap_of_two::<Traced>(&two)
            })
        },
    );
}

fn locks<const N: usize>(table: &mut Table, pause: u64) {
    let mut lines = Own([[0u64; 8]; N]);
    let inside = measure(vec![|| touch(&mut lines.0)], 0);
    let tickets = Own(Tickets {
        next: AtomicU64::new(0),
        serves: AtomicU64::new(0),
        value: Own([[0u64; 8]; N]).into(),
    });
    let spin = Own(<<Native as Platform>::Mutex<Own<Lines<N>>> as Lock<_>>::new(Own([[0; 8]; N])));
    let model = |here: &Here, kind| {
        here.contend(kind, 0.0, || {
            let lock = <<Traced as Platform>::Mutex<Lines<N>> as Lock<_>>::new([[0; 8]; N]);
            move |_| lock.with(|_| work_ns(inside))
        })
    };
    table.row(
        &format!("ticket lock that guards {N} lines"),
        pause,
        || measure((0..CPUS).map(|_| || tickets.0.with(|all| touch(&mut all.0))).collect(), pause),
        |here| model(here, LockKind::InTurn),
    );
    table.row(
        &format!("test-and-set lock that guards {N} lines"),
        pause,
        || measure((0..CPUS).map(|_| || spin.0.with(|all| touch(&mut all.0))).collect(), pause),
        |here| model(here, LockKind::TestAndSet),
    );
}

fn verbs<P: Port + Send, Q: Port>(
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
        here.contend(LockKind::InTurn, takes_ns, || {
            let mut loops = traced();
            move |port: usize| loops[port].turn()
        })
    };
    // Alone, a turn takes the model's time and that of computing: the rest is the latter.
    let alone = run(native().into_iter().take(1).collect());
    table.row(
        &format!("{name}: once around"),
        pause,
        || run(native()),
        |here| model(here, alone - model(&here.first(), 0.0).each_ns()),
    );
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < CPUS {
        return println!("there is one CPU");
    }
    let mut table = Table { alone: Alone::new(), off: Vec::new() };
    println!(
        "an atomic operation of one CPU alone takes {:.1} ns, an iteration of nothing {:.2} ns",
        table.alone.atomic, table.alone.rest
    );
    println!(
        "{:41} {:>5} {:>6} {:>8} {:>8} {:>6} {:>8}",
        "two CPUs, ns", "pause", "a line", "measured", "modelled", "ratio", "failures"
    );
    for pause in [0, 100, 400] {
        words(&mut table, pause);
        locks::<1>(&mut table, pause);
        locks::<4>(&mut table, pause);
        locks::<16>(&mut table, pause);
    }
    for pause in [0, 400] {
        verbs(&mut table, "MQFQ (strict-paper)", pause, mqfq::<Native>, mqfq::<Traced>);
        for (name, tracker) in [
            ("D2FQ (sloppy)", TrackerKind::Sloppy),
            ("D2FQ (mindicator)", TrackerKind::Mindicator),
            ("D2FQ (scan)", TrackerKind::Scan),
        ] {
            verbs(&mut table, name, pause, || d2fq::<Native>(tracker), || d2fq::<Traced>(tracker));
        }
    }
    let worst = table.off.iter().copied().fold(0.0, f64::max).exp();
    let mean = (table.off.iter().sum::<f64>() / table.off.len() as f64).exp();
    println!("off by a factor of {mean:.2} on average, {worst:.2} at most");
}
