//! Real threads on real ports: whatever the interleaving, no request is lost or issued twice, at
//! most D are outstanding, virtual time never goes back, no wake-up is lost (all threads would
//! sleep for ever), and all slots are free in the end.
//!
//! Each thread keeps `DEPTH` requests live, completes issued ones in a random order, and parks when
//! it has none to submit or to complete. Wake-ups travel by a flag and `unpark`, as an io_uring
//! message or an eventfd would in the host. Meanwhile one more thread changes weights and D, and
//! adds and removes flows.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fairq_classic::bfq::{BfqConfig, BfqScheduler};
use fairq_classic::cfq::{CfqConfig, CfqScheduler};
use fairq_classic::fiops::{FiopsConfig, FiopsScheduler};
use fairq_classic::flashfq::{FlashFqConfig, FlashFqScheduler};
use fairq_classic::kyber::{Kyber, KyberConfig};
use fairq_classic::nass::{self, NassConfig};
use fairq_core::Topology;
use fairq_core::d2fq::{D2fq, D2fqConfig};
use fairq_core::kyber_fair::{KyberFair, KyberFairConfig, Totals};
use fairq_core::mqfq::{Mqfq, MqfqConfig};
use fairq_core::none::NonePolicy;
use fairq_core::serial::{Serial, SerialConfig, SerialPolicy};
use fairq_core::sfqd::{Sfqd, SfqdPort};
use fairq_core::vtime::VTime;
use fairq_core::{
    FlowError, FlowId, FlowStats, Growth, Next, Op, Outcome, Policy, Port, PortSet, Reason,
    Request, Stats, SubmitError, Submitted, Tag, TuneError, Tuning, Weight,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const PORTS: usize = 4;
const FLOWS: usize = 6;
const DEPTH: usize = 24;
const SLOTS: u64 = 7;
const REQUESTS: usize = 40_000;
/// Longer than any thread should sleep: only a lost wake-up takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

struct Bell {
    rung: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

struct House {
    bells: Vec<Bell>,
    flows: Vec<Mutex<FlowId>>,
    outstanding: AtomicU64,
    finished: AtomicUsize,
    /// A shard has panicked; the other threads end.
    failed: AtomicBool,
    started: Instant,
    patience: Duration,
    /// The most requests that may be outstanding.
    bound: u64,
    /// Requests that each port submits.
    requests: usize,
    /// Whether virtual time never goes back.
    is_steady: bool,
}

impl House {
    fn ports(&self) -> PortSet {
        PortSet::first(self.bells.len())
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn wake(&self, wake: PortSet) {
        for port in wake {
            let bell = &self.bells[usize::from(port.0)];
            bell.rung.store(true, Ordering::SeqCst);
            if let Some(sleeper) = &*bell.sleeper.lock().unwrap() {
                sleeper.unpark();
            }
        }
    }

    fn all_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst) == self.bells.len()
            || self.failed.load(Ordering::SeqCst)
    }

    /// Sleeps until the port's bell rings, all shards have finished, or the time has come.
    fn sleep(&self, port: usize, until_ns: Option<u64>) {
        let asleep = Instant::now();
        while !self.bells[port].rung.swap(false, Ordering::SeqCst) && !self.all_finished() {
            let left = match until_ns {
                Some(until) => Duration::from_nanos(until.saturating_sub(self.now_ns())),
                None => self.patience,
            };
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
            assert!(asleep.elapsed() < self.patience, "port {port} was never woken");
        }
    }
}

/// One shard: its live requests, and its random choices.
struct Shard<'a, P: Port> {
    house: &'a House,
    index: usize,
    port: P,
    /// Per tag: free (`None`), staged (`false`) or issued (`true`).
    tags: Vec<Option<bool>>,
    device: Vec<Tag>,
    submitted: usize,
    random: SmallRng,
}

impl<P: Port> Shard<'_, P> {
    fn run(mut self) -> P {
        *self.house.bells[self.index].sleeper.lock().unwrap() = Some(thread::current());
        let mut finished = false;
        while !self.house.all_finished() {
            self.fill();
            let last = self.issue();
            // Of the issued requests a random number completes, at least one.
            if !self.device.is_empty() {
                for _ in 0..self.random.random_range(1..=self.device.len()) {
                    self.complete();
                }
                continue;
            }
            let idle = self.tags.iter().all(Option::is_none);
            // A policy that anticipates makes any port wait for the sake of another.
            let is_right = matches!(last, Next::Idle | Next::WaitUntil(_));
            assert!(!idle || is_right, "nothing is live, but next says {last:?}");
            if idle && self.submitted == self.house.requests && !finished {
                finished = true;
                self.house.finished.fetch_add(1, Ordering::SeqCst);
                self.house.wake(self.house.ports());
            } else if idle && !finished {
                continue;
            }
            let until = if let Next::WaitUntil(time) = last { Some(time) } else { None };
            self.house.sleep(self.index, until);
        }
        self.port
    }

    fn fill(&mut self) {
        while self.submitted < self.house.requests {
            let Some(tag) = self.tags.iter().position(Option::is_none) else { return };
            let flows = &self.house.flows;
            let flow = *flows[self.random.random_range(0..flows.len())].lock().unwrap();
            let length = [512, 4096, 4096, 65_536][self.random.random_range(0..4)];
            let request = Request::new(Tag(tag as u32), flow, Op::Write, 0, length);
            let mut wake = PortSet::EMPTY;
            match self.port.submit(self.house.now_ns(), &request, &mut wake) {
                Ok(submitted) => {
                    self.tags[tag] = Some(false);
                    self.submitted += 1;
                    if let Submitted::Issue { .. } = submitted {
                        self.issued(Tag(tag as u32));
                    }
                }
                // The flow has just been removed.
                Err(SubmitError::NoSuchFlow) => {}
                Err(other) => panic!("submit gave {other:?}"),
            }
            self.house.wake(wake);
        }
    }

    fn issue(&mut self) -> Next {
        loop {
            let mut wake = PortSet::EMPTY;
            let next = self.port.next(self.house.now_ns(), &mut wake);
            self.house.wake(wake);
            let Next::Issue { tag, .. } = next else { return next };
            self.issued(tag);
        }
    }

    fn issued(&mut self, tag: Tag) {
        let outstanding = self.house.outstanding.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(outstanding <= self.house.bound, "{outstanding} requests outstanding");
        let state = self.tags[tag.0 as usize].replace(true);
        assert_eq!(state, Some(false), "port {} issued {tag:?}, which was not staged", self.index);
        self.device.push(tag);
    }

    fn complete(&mut self) {
        let tag = self.device.swap_remove(self.random.random_range(0..self.device.len()));
        self.tags[tag.0 as usize] = None;
        self.house.outstanding.fetch_sub(1, Ordering::SeqCst);
        let mut wake = PortSet::EMPTY;
        self.port.complete(self.house.now_ns(), tag, Outcome::Done, &mut wake);
        self.house.wake(wake);
    }
}

/// Ends the other threads when its thread panics.
struct Tell<'a>(&'a House);

impl Drop for Tell<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
            self.0.wake(self.0.ports());
        }
    }
}

/// Changes weights and D, and adds and removes flows, until the shards have finished.
fn control(policy: &impl Policy, house: &House) {
    let mut random = SmallRng::seed_from_u64(99);
    let mut time = VTime::ZERO;
    let mut weight = move || Weight::new(10u16.pow(random.random_range(0..=4))).unwrap();
    for round in 0.. {
        if house.all_finished() {
            return;
        }
        let mut wake = PortSet::EMPTY;
        let mut flow = house.flows[round % house.flows.len()].lock().unwrap();
        policy.set_weight(*flow, weight()).unwrap();
        if round % 4 == 3 {
            // There are more slots than flows, but a removed flow holds its slot until all ports
            // have released it.
            if let Ok(new) = policy.add_flow(weight()) {
                wake.extend(policy.remove_flow(*flow).unwrap());
                *flow = new;
            }
        }
        drop(flow);
        let slots = 1 + round as u32 % SLOTS as u32;
        let tuned = policy.tune(Tuning::Slots(slots), &mut wake);
        assert!(matches!(tuned, Ok(()) | Err(TuneError::Fixed)), "{tuned:?}");
        policy.tick(house.now_ns(), &mut wake);
        if let Some(now) = policy.stats().virtual_time.map(VTime::from_units) {
            let goes_back = house.is_steady && now.is_before(time);
            assert!(!goes_back, "virtual time went back from {time:?} to {now:?}");
            time = now;
        }
        house.wake(wake);
        thread::park_timeout(Duration::from_micros(500));
    }
}

fn stress<P: Policy>(patience: Duration, built: (P, Vec<P::Port>)) {
    stress_with(patience, FLOWS, REQUESTS, true, built);
}

/// The policy must have room for `2 * flows` flows.
fn stress_with<P: Policy>(
    patience: Duration,
    flows: usize,
    requests: usize,
    is_steady: bool,
    (policy, ports): (P, Vec<P::Port>),
) {
    let slots = policy.stats().slots;
    let house = House {
        bells: (0..ports.len())
            .map(|_| Bell { rung: AtomicBool::new(true), sleeper: Mutex::new(None) })
            .collect(),
        flows: (0..flows as u16)
            .map(|n| Weight::new((n % FLOWS as u16 + 1) * 100).unwrap())
            .map(|weight| Mutex::new(policy.add_flow(weight).unwrap()))
            .collect(),
        outstanding: AtomicU64::new(0),
        finished: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        started: Instant::now(),
        patience,
        bound: slots.unwrap_or(u64::MAX),
        requests,
        is_steady,
    };
    let mut ports: Vec<P::Port> = thread::scope(|scope| {
        let shard = |(index, port): (usize, P::Port)| {
            let random = SmallRng::seed_from_u64(index as u64);
            let tags = vec![None; DEPTH];
            let shard = Shard {
                house: &house,
                index,
                port,
                tags,
                device: Vec::new(),
                submitted: 0,
                random,
            };
            scope.spawn(|| {
                let tell = Tell(shard.house);
                let port = shard.run();
                drop(tell);
                port
            })
        };
        let shards: Vec<_> = ports.into_iter().enumerate().map(shard).collect();
        control(&policy, &house);
        shards
            .into_iter()
            .map(|shard| shard.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    assert_eq!(house.outstanding.load(Ordering::SeqCst), 0);
    // One `next` handles a bounded number of removals, so several are needed.
    for _ in 0..2 + flows / 16 {
        for port in &mut ports {
            assert_eq!(port.next(house.now_ns(), &mut { PortSet::EMPTY }), Next::Idle);
        }
    }
    assert_eq!(policy.stats().free_slots, policy.stats().slots);
    let added = std::iter::repeat_with(|| policy.add_flow(Weight::DEFAULT))
        .take_while(Result::is_ok)
        .count();
    assert_eq!(added, flows, "the slots of removed flows have come back");
}

const CAPACITY: usize = 2 * FLOWS;

fn mqfq(change: impl FnOnce(&mut MqfqConfig)) {
    let topology = Topology::new((0..PORTS as u16).map(|port| (0, port / 2)).collect());
    let mut config = MqfqConfig::new(topology, CAPACITY, DEPTH);
    config.slots = SLOTS as u32;
    config.threshold_bytes = 16_384;
    change(&mut config);
    stress(PATIENCE, Mqfq::<fairq_core::Native>::new(config).unwrap());
}

#[test]
fn sfqd() {
    stress(PATIENCE, build_sfqd());
}

/// 64 ports, and more flows than a port has tags.
mod crowds {
    use super::*;

    const PORTS: usize = 64;
    const FLOWS: usize = 1000;

    fn crowd<P: Policy>(built: (P, Vec<P::Port>)) {
        stress_with(PATIENCE, FLOWS, 4000, true, built);
    }

    #[test]
    fn mqfq() {
        let topology = Topology::new((0..PORTS as u16).map(|port| (port / 8, port / 2)).collect());
        let config = MqfqConfig::new(topology, 2 * FLOWS, DEPTH).with(|config| config.slots = 70);
        crowd(Mqfq::<fairq_core::Native>::new(config).unwrap());
    }

    #[test]
    fn sfqd() {
        let (ports, flows, tags) = (PORTS, 2 * FLOWS, DEPTH);
        let config = SerialConfig::new(ports, flows, tags).with(|config| config.slots = 70);
        crowd(<Sfqd>::new(&config).unwrap());
    }

    #[test]
    fn kyber() {
        let config =
            KyberConfig::new(PORTS, 2 * FLOWS, DEPTH).with(|config| config.depths = [1, 70, 1, 1]);
        crowd(Kyber::<fairq_core::Native>::new(&config).unwrap());
    }

    #[test]
    fn kyber_fair() {
        let config = KyberFairConfig::new(PORTS, 2 * FLOWS, DEPTH);
        crowd(KyberFair::<fairq_core::Native>::new(&config).unwrap());
    }

    #[test]
    fn d2fq() {
        let config = D2fqConfig::new(Topology::flat(PORTS), 2 * FLOWS, DEPTH);
        let built = D2fq::<fairq_core::Native>::new(config).unwrap();
        stress_with(PATIENCE, FLOWS, 4000, false, built);
    }

    #[test]
    fn none() {
        crowd(NonePolicy::<fairq_core::Native>::new(PORTS, 2 * FLOWS, DEPTH).unwrap());
    }
}

fn bounds() -> SerialConfig {
    SerialConfig::new(PORTS, CAPACITY, DEPTH).with(|config| config.slots = SLOTS as u32)
}

fn build_sfqd() -> (Sfqd, Vec<SfqdPort>) {
    Sfqd::new(&bounds()).unwrap()
}

/// Runs a scheduler alone, and one with NASS around it.
fn serial<S: SerialPolicy>(alone: S, inside: S) {
    stress(PATIENCE, Serial::<S>::with_policy(alone, &bounds()).unwrap());
    let nass = NassConfig::of_window(SLOTS as u32);
    stress(PATIENCE, nass::new::<S, fairq_core::Native>(inside, &bounds(), &nass).unwrap());
}

#[test]
fn cfq() {
    let build = |idle_ns| {
        CfqScheduler::new(
            &bounds(),
            &CfqConfig::default().with(|config| {
                config.slice_ns = 50_000;
                config.idle_ns = idle_ns;
            }),
        )
        .unwrap()
    };
    serial(build(20_000), build(0));
}

#[test]
fn bfq() {
    let build = |idle_ns| {
        BfqScheduler::new(
            &bounds(),
            &BfqConfig::default().with(|config| {
                config.budget_bytes = 1 << 16;
                config.idle_ns = idle_ns;
                config.sync_writes = true;
            }),
        )
        .unwrap()
    };
    serial(build(20_000), build(0));
}

#[test]
fn flashfq() {
    let build = |idle_ns| {
        FlashFqScheduler::new(
            &bounds(),
            &FlashFqConfig::default().with(|config| {
                config.threshold_bytes = 16_384;
                config.idle_ns = idle_ns;
            }),
        )
        .unwrap()
    };
    serial(build(20_000), build(0));
}

#[test]
fn fiops() {
    let fiops = || FiopsScheduler::new(&bounds(), &FiopsConfig::default());
    serial(fiops(), fiops());
}

/// A policy that loses wake-ups: the test must catch it.
struct Forgetful(Sfqd);
struct ForgetfulPort(SfqdPort);

impl Policy for Forgetful {
    type Port = ForgetfulPort;
    fn add_flow_as(&self, known: Option<FlowId>, weight: Weight) -> Result<FlowId, FlowError> {
        self.0.add_flow_as(known, weight)
    }
    fn set_weight(&self, flow: FlowId, weight: Weight) -> Result<(), FlowError> {
        self.0.set_weight(flow, weight)
    }
    fn remove_flow(&self, flow: FlowId) -> Result<PortSet, FlowError> {
        // A port woken for this would also find the work whose wake-up was lost.
        self.0.remove_flow(flow).map(|_| PortSet::EMPTY)
    }
    fn tick(&self, now_ns: u64, wake: &mut PortSet) -> Option<u64> {
        self.0.tick(now_ns, wake)
    }
    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

impl Port for ForgetfulPort {
    fn submit(
        &mut self,
        now_ns: u64,
        request: &Request,
        wake: &mut PortSet,
    ) -> Result<Submitted, SubmitError> {
        self.0.submit(now_ns, request, wake)
    }
    fn next(&mut self, now_ns: u64, wake: &mut PortSet) -> Next {
        let next = self.0.next(now_ns, wake);
        *wake = PortSet::EMPTY;
        next
    }
    fn complete(&mut self, now_ns: u64, tag: Tag, outcome: Outcome, wake: &mut PortSet) -> bool {
        self.0.complete(now_ns, tag, outcome, wake)
    }
    fn admit(&self, flow: FlowId) -> Result<(), SubmitError> {
        self.0.admit(flow)
    }
    fn cancel(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.0.cancel(now_ns, tag, wake)
    }
    fn expedite(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> bool {
        self.0.expedite(now_ns, tag, wake)
    }
    fn hold(&mut self, tag: Tag, flow: FlowId) -> Result<(), SubmitError> {
        self.0.hold(tag, flow)
    }
    fn requeue(&mut self, now_ns: u64, tag: Tag, wake: &mut PortSet) -> Option<Submitted> {
        self.0.requeue(now_ns, tag, wake)
    }
    fn grow(&mut self, now_ns: u64, tag: Tag, growth: &Growth, wake: &mut PortSet) -> bool {
        self.0.grow(now_ns, tag, growth, wake)
    }
    fn has_work(&self) -> bool {
        self.0.has_work()
    }
    fn staged(&self, flow: FlowId) -> Option<Tag> {
        self.0.staged(flow)
    }
    fn flow_stats(&self, flow: FlowId) -> FlowStats {
        self.0.flow_stats(flow)
    }
    fn barrier(&mut self, flow: FlowId) {
        self.0.barrier(flow);
    }
    fn reason(&self, tag: Option<Tag>) -> Reason {
        self.0.reason(tag)
    }
}

#[test]
#[should_panic(expected = "was never woken")]
fn lost_wake_ups_are_noticed() {
    let (policy, ports) = build_sfqd();
    let ports = ports.into_iter().map(ForgetfulPort).collect();
    stress(Duration::from_secs(1), (Forgetful(policy), ports));
}

#[test]
fn mqfq_of_the_paper() {
    mqfq(|_| ());
}

#[test]
fn mqfq_without_threshold() {
    mqfq(|config| config.threshold_bytes = 0);
}

#[test]
fn mqfq_serial() {
    mqfq(|config| config.serial = true);
}

#[test]
fn kyber() {
    // All requests are writes.
    let depths = [1, SLOTS as u32, 1, 1];
    stress(
        PATIENCE,
        Kyber::<fairq_core::Native>::new(
            &KyberConfig::new(PORTS, CAPACITY, DEPTH).with(|config| config.depths = depths),
        )
        .unwrap(),
    );
}

/// A flow that returns with an older virtual time lowers the global one (Figure 9).
#[test]
fn d2fq() {
    let mut config = D2fqConfig::new(Topology::flat(PORTS), CAPACITY, DEPTH);
    // Thresholds that requests of 64 KiB cross, and the shortest period.
    config.tau_l = Some(1 << 18);
    config.period_ns = 1_000_000;
    let built = D2fq::<fairq_core::Native>::new(config).unwrap();
    stress_with(PATIENCE, FLOWS, REQUESTS, false, built);
}

#[test]
fn kyber_fair() {
    stress(
        PATIENCE,
        KyberFair::<fairq_core::Native>::new(&KyberFairConfig::new(PORTS, CAPACITY, DEPTH))
            .unwrap(),
    );
}

/// With few tokens, one period follows the other as fast as possible.
#[test]
fn kyber_fair_with_few_tokens() {
    let config = KyberFairConfig::new(PORTS, CAPACITY, DEPTH).with(|config| {
        config.busy = SLOTS as u32;
        config.tokens = Totals::fixed(1 << 16);
    });
    stress(PATIENCE, KyberFair::<fairq_core::Native>::new(&config).unwrap());
}
