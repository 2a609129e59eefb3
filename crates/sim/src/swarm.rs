//! The swarm: random hosts, devices, tenants and faults, under every check.
//!
//! A seed determines everything, so a failure is named by its seed: [`scenario`] makes the same
//! scenario again. Each scenario ends with a phase in which no tenant submits and all requests must
//! be served.

use fairq_classic::nass::NassConfig;
use fairq_core::d2fq::Ratio;
use fairq_core::kyber_fair::Totals;
use fairq_device::profile::{BUILT_IN, Count, ReadAhead};
use fairq_device::{Profile, State};

use crate::policies::{
    AnySubject, D2fqParts, D2fqSubject, Kernel, KyberFairSubject, KyberSubject, LinuxBfqConfig,
    MqfqParts, MqfqSubject, Scheduler, SerialSubject, SfqdSubject, SlotKind, TrackerKind,
    UnthrottleKind, VirtualTimeKind,
};
use crate::random::Random;
use crate::scenario::{Access, Arrivals, Burst, Faults, Job, MS, Scenario, Tenant, US};

// A value that is twice in a list is drawn twice as often.
const WEIGHTS: [u16; 9] = [1, 7, 50, 100, 100, 300, 1000, 9999, 10_000];
const SIZES: [u32; 5] = [512, 4096, 4096, 16_384, 131_072];
const DURATION_NS: u64 = 8 * MS;

/// The stream from which scenarios are drawn; threads have the low streams.
const STREAM: u64 = 1 << 40;

/// The scenario of a seed, and its policy.
pub fn scenario(seed: u64) -> (Scenario, AnySubject) {
    let random = &mut Random::new(seed, STREAM);
    let ports = 1 + random.below(8) as usize;
    let (name, _) = random.pick(&BUILT_IN);
    let profile = Profile::named(name).expect("it is built in");
    // All threads, up to twelve, may be on one port, and their requests must fit into its queue,
    // which is short on SATA drives.
    let room = (profile.host.queue_entries.get() / 12).clamp(1, 64);
    let tenants = (0..1 + random.below(6))
        .map(|number| tenant(random, &format!("t{number}"), ports, room))
        .collect();
    let mut scenario = Scenario::new(profile, ports, tenants, DURATION_NS);
    scenario.state = random.pick(&[State::Fresh, State::Steady]);
    scenario.wake_ns = random.pick(&[1, 500, US, 20 * US]);
    scenario.faults = faults(random);
    scenario.seed = seed;
    // The order of the draws determines the scenario of a seed: moving one draw changes all
    // scenarios.
    let policy = policy(random);
    scenario.moves_ns = random.one_in(4).then_some(MS);
    let ahead = ReadAhead { kib: Count::new(64), streams: Count::new(2) };
    scenario.profile.read_ahead = random.one_in(4).then_some(ahead);
    scenario.profile.controller.pages_at_once = random.one_in(4).then_some(Count::new(4));
    (scenario, policy)
}

fn policy(random: &mut Random) -> AnySubject {
    let slots = random.pick(&[1, 2, 9, 64, 200]);
    let ratio =
        random.pick(&[Ratio::Dynamic { initial: 256 }, Ratio::Static(3), Ratio::Static(256)]);
    match random.below(8) {
        0 => AnySubject::None,
        1 => AnySubject::Sfqd(SfqdSubject { slots }),
        2..4 => AnySubject::D2fq(D2fqSubject {
            ratio,
            tau_l: random.pick(&[1 << 16, 1 << 20, 8 << 20]),
            tau_m: random.one_in(2).then_some(1 << 16),
            strict_paper: false,
        }),
        _ => AnySubject::Mqfq(MqfqSubject {
            slots,
            threshold: random.pick(&[0, 4096, 46_080, 1 << 20]),
        }),
    }
}

/// Another policy for the scenario of a seed: Kyber, or a scheduler behind one lock (also Linux's),
/// without limits or with those of fairq's NASS or its paper's.
pub fn older_policy(seed: u64) -> AnySubject {
    let random = &mut Random::new(seed, STREAM + 1);
    let slots = random.pick(&[1, 2, 9, 32, 64]);
    match random.below(6) {
        0 => AnySubject::Kyber(KyberSubject),
        1 => AnySubject::KyberFair(KyberFairSubject {
            busy: random.pick(&[1, 16, 64]),
            totals: Totals::default(),
        }),
        _ => {
            use Scheduler::{Bfq, Cfq, Fiops, FlashFq, LinuxBfq, LinuxCfq};
            let linux = LinuxBfq(LinuxBfqConfig {
                kernel: random.pick(&Kernel::ALL),
                processes: random.pick(&[0, 1, 2]),
                budget: random.pick(&[0, 256]),
                cycles: LinuxBfqConfig::CYCLES,
                low_latency: false,
            });
            let schedulers = [Cfq, Bfq, FlashFq, Fiops, LinuxCfq, linux];
            let mut lock = SerialSubject::new(random.pick(&schedulers), slots);
            lock.waits = random.one_in(2);
            lock.merge_bytes = random.pick(&[0, 0, 65_536, 512 << 10]);
            let nass = NassConfig::default().with(|config| config.sequentiality = random.one_in(2));
            lock.quantum = random.pick(&[1, 8, 32]);
            lock.async_writes = random.one_in(2);
            AnySubject::Serial(match (random.one_in(2), random.one_in(2)) {
                (false, _) => lock,
                (true, false) => lock.limited(nass),
                (true, true) => lock.limited_strictly(nass),
            })
        }
    }
}

/// Another policy for the scenario of a seed: MQFQ or D2FQ to the letter of its paper, made of any
/// of the parts that the paper compares. (`SlotKind::TokenPath` is never drawn, because with
/// it requests may wait for ever.)
pub fn papers_policy(seed: u64) -> AnySubject {
    let random = &mut Random::new(seed, STREAM + 2);
    if random.one_in(4) {
        let ratio = random.pick(&[Ratio::Dynamic { initial: 256 }, Ratio::Static(3)]);
        let tau_l = random.pick(&[1 << 16, 1 << 20, 8 << 20]);
        let direct = D2fqSubject { ratio, tau_l, tau_m: None, strict_paper: true };
        let trackers = [TrackerKind::Sloppy, TrackerKind::Scan, TrackerKind::Mindicator];
        return AnySubject::D2fqParts(D2fqParts { direct, tracker: random.pick(&trackers) });
    }
    let slots = random.pick(&[1, 2, 9, 64, 200]);
    let threshold = random.pick(&[0, 4096, 46_080, 1 << 20]);
    AnySubject::MqfqStrict(MqfqParts {
        slots,
        threshold,
        virtual_time: random.pick(&[
            VirtualTimeKind::Mindicator,
            VirtualTimeKind::ArrayScan,
            VirtualTimeKind::None,
        ]),
        slot_kind: random.pick(&[
            SlotKind::TokenTree,
            SlotKind::AtomicCounter,
            SlotKind::ScalableBitmap,
        ]),
        unthrottle: random
            .pick(&[UnthrottleKind::Wheel, UnthrottleKind::Polling { period_ns: 1000 }]),
        serial: random.one_in(2),
    })
}

fn tenant(random: &mut Random, name: &str, ports: usize, room: u32) -> Tenant {
    let threads = (0..1 + random.below(2)).map(|_| random.below(ports as u64) as usize).collect();
    let mut tenant = Tenant::new(name, random.pick(&WEIGHTS), threads, job(random, room));
    if random.one_in(2) {
        tenant.lives = lives(random);
    }
    if random.one_in(4) {
        tenant.reweights = vec![(random.below(DURATION_NS), random.pick(&WEIGHTS))];
    }
    tenant
}

fn job(random: &mut Random, room: u32) -> Job {
    let size = |random: &mut Random| (random.pick(&SIZES), 1 + random.below(4) as u32);
    let burst = Burst { on_ns: 100 * US, off_ns: random.pick(&[50, 300]) * US };
    let mut job = Job {
        sizes: (0..1 + random.below(2)).map(|_| size(random)).collect(),
        read_percent: random.pick(&[0, 50, 70, 100, 100]),
        access: random.pick(&[Access::Random, Access::Sequential]),
        depth: (1 + random.below(u64::from(room)) as u32).min(if random.one_in(3) {
            1
        } else {
            room
        }),
        think_ns: if random.one_in(4) { random.below(200 * US) } else { 0 },
        interval_ns: if random.one_in(6) { random.below(100 * US) } else { 0 },
        burst: random.one_in(5).then_some(burst),
        arrivals: Arrivals::Closed,
        replay: None,
    };
    if random.one_in(8) {
        (job.think_ns, job.interval_ns) = (0, US + random.below(100 * US));
        job.arrivals = random.pick(&[Arrivals::Even, Arrivals::Poisson]);
    }
    if random.one_in(8) {
        job.access = Access::Zipf { thousandths: random.pick(&[500, 1000, 1500]) };
    }
    job
}

/// Up to three lives, with pauses.
fn lives(random: &mut Random) -> Vec<(u64, u64)> {
    let mut ends: Vec<u64> =
        (0..2 + 2 * random.below(3)).map(|_| random.below(DURATION_NS)).collect();
    ends.sort_unstable();
    // Equal ends would make lives without a gap or without length, which a scenario may not have.
    ends.dedup();
    ends.chunks_exact(2).map(|life| (life[0], life[1])).collect()
}

fn faults(random: &mut Random) -> Faults {
    let from_ns = random.below(DURATION_NS);
    let stall = (from_ns, from_ns + random.below(3 * MS));
    Faults {
        errors_per_million: random.pick(&[0, 0, 1000, 200_000]),
        stalls: if random.one_in(3) { vec![stall] } else { Vec::new() },
    }
}
