//! What two CPUs do to each other, measured here and as the simulator's races have it
//! (`fairq_sim::races`): contended words, locks, and policies' verbs.
//!
//! The model is given what accesses take on one CPU alone, and how long a line is under way from the
//! other, measured as `core-to-core-latency` does it, from where the papers' machines have theirs;
//! everything else it has to predict. Timings never fail: they belong to the machine.

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
use fairq_sim::contention::{Contended, Contest, contend};
use fairq_sim::host::{Cycles, Machine, Ways};
use fairq_sim::races::LockKind;
use fairq_sim::traced::Traced;
use fairq_sim::{Host, host};

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

/// Runs what is given over and over on so many CPUs at once; nanoseconds for each time, whosever:
/// the least of several goes. `pause` iterations of nothing come between.
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
                    let f = &mut *f.lock().expect("nobody panics");
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

/// Whatever else runs here only adds.
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

// What is done, on this machine and on the model's.

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

// SAFETY: the value is touched by whoever's ticket is served.
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

struct Here {
    host: Host,
    /// What an iteration of nothing takes.
    rest_ns: f64,
}

impl Here {
    fn new() -> Here {
        let word = Own(AtomicU64::new(0));
        let alone = |f: &mut (dyn FnMut() + Send)| measure(vec![f], 0);
        let nothing = alone(&mut || ());
        let rest_ns = (measure(vec![|| ()], 1000) - nothing) / 1000.0;
        let atomic = alone(&mut || _ = word.0.fetch_add(1, SeqCst)) - nothing;
        let line_ns = line_ns();
        println!(
            "here: an atomic operation {atomic:.1} ns, a line from the other CPU {line_ns:.1} ns, an \
             iteration of nothing {rest_ns:.2} ns"
        );
        let usual = Machine::GOLD_5112;
        let machine = Machine {
            sockets: 1,
            cores: CPUS as u16,
            mhz: MHZ,
            lines: Ways { near_ns: line_ns.round() as u64, far_ns: line_ns.round() as u64 },
            cycles: Cycles {
                load: cycles(1.0),
                store: cycles(0.3),
                atomic: cycles(atomic),
                ..usual.cycles
            },
            layer: host::BlockLayer::LINUX_5,
            ..usual
        };
        Here { host: machine.host(CPUS), rest_ns }
    }

    fn model<F: FnMut(usize)>(
        &self,
        locks: LockKind,
        takes_ns: f64,
        pause: u64,
        build: impl FnOnce() -> F,
    ) -> Contended {
        let contest = Contest {
            locks,
            lasts_ns: 2_000_000,
            takes_ps: (takes_ns.max(0.0) * 1000.0) as u64,
            pause_ps: (self.rest_ns * pause as f64 * 1000.0) as u64,
        };
        contend(&self.host, &contest, build)
    }
}

struct Table(Vec<f64>);

impl Table {
    fn row(&mut self, name: &str, pause: u64, measured: f64, modelled: &Contended) {
        let each = modelled.each_ns();
        println!(
            "{name:44} {pause:5} {measured:9.1} {each:9.1} {:6.2} {:8.2}",
            each / measured,
            modelled.failures()
        );
        self.0.push((each / measured).ln().abs());
    }
}

fn words(here: &Here, table: &mut Table, pause: u64) {
    let word = Own(AtomicU64::new(0));
    let both = |f: fn(&AtomicU64)| measure((0..CPUS).map(|_| || f(&word.0)).collect(), pause);
    let modelled = |f: fn(&<Traced as Platform>::U64)| {
        here.model(LockKind::InTurn, 0.0, pause, || {
            let word = <Traced as Platform>::U64::new(0);
            move |_| f(&word)
        })
    };
    table.row("fetch-and-add", pause, both(add::<Native>), &modelled(add::<Traced>));
    let swaps = (both(swap_loop::<Native>), modelled(swap_loop::<Traced>));
    table.row("compare-and-swap loop", pause, swaps.0, &swaps.1);
    let two = [(); 2].map(|()| Own(AtomicU64::new(0)));
    let measured = measure((0..CPUS).map(|_| || swap_of_two::<Native>(&two)).collect(), pause);
    let modelled = here.model(LockKind::InTurn, 0.0, pause, || {
        let two = [(); 2].map(|()| Own(<Traced as Platform>::U64::new(0)));
        move |_| swap_of_two::<Traced>(&two)
    });
    table.row("compare-and-swap loop that reads another", pause, measured, &modelled);
}

fn locks<const N: usize>(here: &Here, table: &mut Table, pause: u64) {
    let inside = measure(
        vec![{
            let mut lines = Own([[0u64; 8]; N]);
            move || touch(&mut lines.0)
        }],
        0,
    );
    let tickets = Own(Tickets {
        next: AtomicU64::new(0),
        serves: AtomicU64::new(0),
        value: Own([[0u64; 8]; N]).into(),
    });
    let measured =
        measure((0..CPUS).map(|_| || tickets.0.with(|lines| touch(&mut lines.0))).collect(), pause);
    let spin = Own(<<Native as Platform>::Mutex<Own<Lines<N>>> as Lock<_>>::new(Own([[0; 8]; N])));
    let measured_spin =
        measure((0..CPUS).map(|_| || spin.0.with(|lines| touch(&mut lines.0))).collect(), pause);
    let modelled = |kind| {
        here.model(kind, 0.0, pause, || {
            let lock = <<Traced as Platform>::Mutex<Lines<N>> as Lock<_>>::new([[0; 8]; N]);
            move |_| {
                lock.with(|lines| {
                    touch(lines);
                    fairq_sim::contention::work_ns(inside);
                })
            }
        })
    };
    let name = |kind: &str| format!("{kind} that guards {N} lines");
    table.row(&name("ticket lock"), pause, measured, &modelled(LockKind::InTurn));
    table.row(&name("test-and-set lock"), pause, measured_spin, &modelled(LockKind::TestAndSet));
}

fn verbs<P: Port + Send, Q: Port>(
    here: &Here,
    table: &mut Table,
    name: &str,
    pause: u64,
    native: impl Fn() -> Vec<Loop<P>>,
    traced: impl Fn() -> Vec<Loop<Q>>,
) {
    let run = |loops: Vec<Loop<P>>| {
        measure(loops.into_iter().map(|mut one| move || one.turn()).collect(), pause)
    };
    // What it computes beside its words: alone, it takes what the model says and this.
    let alone = run(native().into_iter().take(1).collect());
    let alone_host = Here {
        host: Host { places: here.host.places[..1].to_vec(), ..here.host.clone() },
        ..*here
    };
    let words = alone_host
        .model(LockKind::InTurn, 0.0, pause, || {
            let mut loops = traced();
            move |port: usize| loops[port].turn()
        })
        .each_ns();
    let modelled = here.model(LockKind::InTurn, alone - words, pause, || {
        let mut loops = traced();
        move |port: usize| loops[port].turn()
    });
    table.row(name, pause, run(native()), &modelled);
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < CPUS {
        return println!("there is one CPU");
    }
    let mut table = Table(Vec::new());
    println!(
        "{:44} {:>5} {:>9} {:>9} {:>6} {:>8}",
        "on two CPUs, ns each", "pause", "measured", "modelled", "ratio", "failures"
    );
    // A virtual machine's CPUs may be moved: how far they are apart is measured anew each time.
    for pause in [0, 100, 400] {
        let here = Here::new();
        words(&here, &mut table, pause);
        locks::<1>(&here, &mut table, pause);
        locks::<4>(&here, &mut table, pause);
        locks::<16>(&here, &mut table, pause);
    }
    for pause in [0, 400] {
        let here = Here::new();
        verbs(
            &here,
            &mut table,
            "MQFQ (strict-paper): once around",
            pause,
            mqfq::<Native>,
            mqfq::<Traced>,
        );
        for (name, tracker) in [
            ("sloppy", TrackerKind::Sloppy),
            ("mindicator", TrackerKind::Mindicator),
            ("scan", TrackerKind::Scan),
        ] {
            let name = format!("D2FQ ({name}): once around");
            verbs(
                &here,
                &mut table,
                &name,
                pause,
                || d2fq::<Native>(tracker),
                || d2fq::<Traced>(tracker),
            );
        }
    }
    let worst = table.0.iter().copied().fold(0.0, f64::max).exp();
    let mean = (table.0.iter().sum::<f64>() / table.0.len() as f64).exp();
    println!("off by a factor of {mean:.2} on average, {worst:.2} at most");
}
