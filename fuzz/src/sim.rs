//! Drivers for the lab: traces and scenarios from strangers. The tests of `fairq-sim` use the same
//! code.

use fairq_core::Op;
use fairq_device::profile::{BUILT_IN, Count, ReadAhead};
use fairq_device::{Profile, State};
use fairq_sim::host::{BlockLayer, Cycles, Ways};
use fairq_sim::scenario::{Access, Arrivals, Burst, Faults, Job, Replay, Scenario, Tenant, US};
use fairq_sim::trace::{Format, LARGEST, Trace};
use fairq_sim::{Machine, swarm};

/// A trace: the first byte says in which format, and whether only one volume counts. The parsed
/// trace is consistent: times do not go back, each request has a length and an end.
pub(crate) fn trace(data: &[u8]) {
    let Some((&first, text)) = data.split_first() else { return };
    let (_, format) = Format::ALL[usize::from(first & 7)];
    let volume = (first & 8 != 0).then_some("1");
    let Ok(trace) = Trace::read(format, text, volume) else { return };
    let asked = trace.asked();
    assert!(!asked.is_empty() && asked[0].at_ns == 0);
    assert!(asked.is_sorted_by_key(|asked| asked.at_ns));
    for asked in asked {
        assert!(matches!(asked.op, Op::Read | Op::Write));
        assert!((1..=LARGEST).contains(&u64::from(asked.length)));
        assert!(
            asked
                .offset
                .checked_add(u64::from(asked.length))
                .is_some_and(|end| end <= i64::MAX as u64)
        );
    }
}

/// A scenario, whether there can be such a one or not: it is refused, or it runs to its end with
/// every check content, and twice the same.
pub(crate) fn scenario(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let scenario = drawn(bytes);
    let seed = u64::from(bytes.byte());
    let policy =
        if bytes.one_in_two() { swarm::scenario(seed).1 } else { swarm::older_policy(seed) };
    let refused = scenario.check().is_err();
    match policy.run(&scenario) {
        Err(_) => {}
        Ok(_) if refused => panic!("it ran, though it cannot be: {scenario:#?}"),
        Ok(run) => {
            assert_eq!(run.violation, None, "under {policy:?}: {scenario:#?}");
            let again = policy.run(&scenario).expect("it ran before");
            assert_eq!(run.digest, again.digest, "under {policy:?}: {scenario:#?}");
        }
    }
}

/// Values out of bytes; zeros when there are none left.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn one_in_two(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    /// Small ones, round ones, and any.
    fn number(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..=63 => u64::from(kind),
            kind @ 64..=191 => u64::from(self.byte()) << (kind % 64),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in_two().then(|| value(self))
    }

    fn some<T>(&mut self, most: u8, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| value(self)).collect()
    }
}

/// Short, and with small requests, so that it can be run often.
fn drawn(bytes: &mut Bytes<'_>) -> Scenario {
    let (name, _) = BUILT_IN[usize::from(bytes.byte()) % BUILT_IN.len()];
    let profile = Profile::named(name).expect("it is built in");
    let ports = usize::from(bytes.byte() % 66);
    let tenants = bytes.some(4, tenant);
    let mut scenario = Scenario::new(profile, ports, tenants, bytes.number() % (200 * US));
    scenario.warmup_ns = if bytes.one_in_two() { 0 } else { bytes.number() };
    scenario.series_ns = bytes.maybe(Bytes::number);
    scenario.wake_ns = bytes.number();
    // Placing threads anew costs as much as a request.
    scenario.moves_ns = bytes
        .maybe(Bytes::number)
        .map(|moves_ns| if moves_ns == 0 { 0 } else { moves_ns.max(10 * US) });
    scenario.state = if bytes.one_in_two() { State::Fresh } else { State::Steady };
    scenario.host = bytes
        .maybe(machine)
        .filter(|machine| machine.sockets > 0 && machine.cores > 0)
        .map(|it| if bytes.one_in_two() { it.host(ports) } else { it.host(ports).racing() });
    let stall = |bytes: &mut Bytes<'_>| (bytes.number() % (100 * US), bytes.number() % (300 * US));
    // As much as leaves room for writes in each buffer.
    scenario.profile.read_ahead = bytes.maybe(|bytes| ReadAhead {
        kib: Count::new(16 + u32::from(bytes.byte() % 64)),
        streams: Count::new(1 + u32::from(bytes.byte() % 2)),
    });
    scenario.profile.controller.pages_at_once =
        bytes.maybe(|bytes| Count::new(1 + u32::from(bytes.byte())));
    scenario.faults =
        Faults { errors_per_million: bytes.number() as u32, stalls: bytes.some(2, stall) };
    scenario
}

fn tenant(bytes: &mut Bytes<'_>) -> Tenant {
    let threads = bytes.some(3, |bytes| usize::from(bytes.byte() % 66));
    let mut tenant = Tenant::new("tenant", bytes.number() as u16, threads, job(bytes));
    if bytes.one_in_two() {
        tenant.lives = bytes.some(3, |bytes| (bytes.number(), bytes.number()));
    }
    tenant.reweights = bytes.some(2, |bytes| (bytes.number(), bytes.number() as u16));
    tenant
}

fn job(bytes: &mut Bytes<'_>) -> Job {
    Job {
        sizes: bytes.some(3, |bytes| (bytes.number() as u32 % (256 << 10), bytes.number() as u32)),
        read_percent: u32::from(bytes.byte()),
        access: match bytes.byte() % 3 {
            0 => Access::Random,
            1 => Access::Sequential,
            _ => Access::Zipf { thousandths: bytes.number() as u32 },
        },
        depth: u32::from(bytes.byte()),
        think_ns: bytes.number(),
        interval_ns: bytes.number(),
        arrivals: match bytes.byte() % 4 {
            0 => Arrivals::Even,
            1 => Arrivals::Poisson,
            _ => Arrivals::Closed,
        },
        burst: bytes.maybe(|bytes| Burst { on_ns: bytes.number(), off_ns: bytes.number() }),
        replay: bytes.maybe(replay).flatten(),
    }
}

fn replay(bytes: &mut Bytes<'_>) -> Option<Replay> {
    let line = |bytes: &mut Bytes<'_>| {
        format!(
            "{} 0 {} {} {}\n",
            bytes.number(),
            bytes.number() >> 12,
            bytes.byte(),
            bytes.byte() & 1
        )
    };
    let text = bytes.some(20, line).concat();
    let trace = Trace::read(Format::Mqsim, text.as_bytes(), None).ok()?;
    Some(Replay { trace, keeps_time: bytes.one_in_two() })
}

fn machine(bytes: &mut Bytes<'_>) -> Machine {
    let (_, usual) = Machine::ALL[usize::from(bytes.byte()) % Machine::ALL.len()];
    if bytes.one_in_two() {
        return usual;
    }
    let mut ways = || Ways { near_ns: bytes.number(), far_ns: bytes.number() };
    let (lines, wakes) = (ways(), ways());
    let mut cycles = || bytes.number();
    Machine {
        lines,
        wakes,
        layer: BlockLayer {
            submit: cycles(),
            stage: cycles(),
            issue: cycles(),
            interrupt: cycles(),
            complete: cycles(),
            reap: cycles(),
        },
        cycles: Cycles {
            load: cycles(),
            store: cycles(),
            atomic: cycles(),
            verb: cycles(),
            send: cycles(),
            timer: cycles(),
        },
        sockets: cycles() as u16,
        cores: cycles() as u16,
        threads: cycles() as u16,
        mhz: cycles(),
        shared_percent: cycles(),
        lines_at_once: cycles(),
    }
}
