//! MQFQ's claims about its own cost (Figures 8 to 11), on its authors' machine before the ramdisk.
//!
//! MQFQ to the letter of the paper (`strict-paper`) decides the verdicts, because its lines moved
//! on the authors' machine. fairq's own is reported beside it; the alternatives to its parts are
//! the paper's alone. Where the paper does not say what a flow is, the results with a flow for each
//! thread are reported, too.

use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{
    AnySubject, Kernel, MqfqParts, MqfqSerial, MqfqSubject, SlotKind, UnthrottleKind,
    VirtualTimeKind,
};
use fairq_sim::scenario::{Job, MS, Scenario, Tenant};

use super::cpu::{NONE, answer, list, percent, profile};
use super::{
    Answer, Axis, Experiment, Figure, Line, Outcome, Setting, agreed, go, go_by_thread, host_of,
    linux_bfq, near, rule,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-8.1", "M-8.2", "M-8.3", "M-8.4"], seconds: 20, run: scalability },
    Experiment { ids: &["M-9.1"], seconds: 15, run: virtual_times },
    Experiment { ids: &["M-10.1", "M-10.2"], seconds: 15, run: unthrottling },
    Experiment { ids: &["M-11.1", "M-11.2"], seconds: 15, run: slots },
];

const MULTI: MqfqSubject = MqfqSubject { slots: 128, threshold: 64 << 10 };

/// The variant of MQFQ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The paper's, to the letter.
    Strict,
    /// fairq's own, which it serves with.
    Ours,
}

impl Whose {
    fn mqfq(self) -> AnySubject {
        match self {
            Whose::Strict => AnySubject::MqfqStrict(MULTI.parts()),
            Whose::Ours => AnySubject::Mqfq(MULTI),
        }
    }

    fn serial(self) -> AnySubject {
        match self {
            Whose::Strict => AnySubject::MqfqStrict(MqfqParts { serial: true, ..MULTI.parts() }),
            Whose::Ours => AnySubject::MqfqSerial(MqfqSerial(MULTI)),
        }
    }
}

/// The paper's MQFQ with this way of waking ports.
fn polling(period_ns: u64) -> AnySubject {
    let unthrottle = UnthrottleKind::Polling { period_ns };
    AnySubject::MqfqStrict(MqfqParts { unthrottle, ..MULTI.parts() })
}

/// The paper's MQFQ with these slots and, as in the paper, without the cost of virtual time.
fn untimed(slot_kind: SlotKind) -> AnySubject {
    let virtual_time = VirtualTimeKind::None;
    AnySubject::MqfqStrict(MqfqParts { slot_kind, virtual_time, ..MULTI.parts() })
}

/// An answer that depends on what a flow is, with a reading for each possibility.
fn by_flows(id: &'static str, measured: String, note: &'static str, readings: &[bool]) -> Answer {
    Answer { id, measured, holds: agreed(readings), note: note.into() }
}

/// Threads that read 1 KB each from the ramdisk: all of them one flow, or each a flow of its own.
fn nvmf(threads: usize, each: bool, duration_ns: u64) -> Result<Scenario, String> {
    let job = Job::random_read(1024, 128);
    let tenants = match each {
        false => vec![Tenant::new("fio", 100, (0..threads).collect(), job)],
        true => (0..threads)
            .map(|at| Tenant::new(&format!("fio {at}"), 100, vec![at], job.clone()))
            .collect(),
    };
    let mut scenario = Scenario::new(profile("nvmf-ramdisk")?, threads, tenants, duration_ns);
    scenario.warmup_ns = duration_ns / 3;
    Ok(scenario.on(host_of("M-8.1", MACHINE.host(threads))))
}

const MACHINE: Machine = Machine::E5_2630_V3;

/// Duration of a run. Behind one lock a round of all requests takes longer.
const MANY: u64 = 15 * MS;
const SERIAL: u64 = 90 * MS;

/// The flows: all threads are one, or each is one. The paper does not say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flows {
    One,
    Each,
}

/// Millions of requests a second.
fn millions(
    policy: AnySubject,
    flows: Flows,
    threads: usize,
    setting: Setting<'_>,
) -> Result<f64, String> {
    let is_serial = matches!(
        policy,
        AnySubject::MqfqSerial(_) | AnySubject::MqfqStrict(MqfqParts { serial: true, .. })
    );
    let duration_ns = if is_serial { SERIAL } else { MANY };
    let scenario = nvmf(threads, flows == Flows::Each, duration_ns)?;
    Ok(go(policy, &scenario, setting)?.iops() / 1e6)
}

fn millions_of_bfq(threads: usize, setting: Setting<'_>) -> Result<f64, String> {
    Ok(go_by_thread(linux_bfq(Kernel::V4_15, 0), &nvmf(threads, false, SERIAL)?, setting)?.iops()
        / 1e6)
}

/// The results of Figure 8 for one MQFQ.
struct Scaling {
    /// The best number of threads of 15 to 19 with one flow, and with a flow each; and millions of
    /// requests a second there.
    threads: [usize; 2],
    millions: [f64; 2],
    /// Throughput with one flow, as a multiple of the serial variant's and of BFQ's.
    by_serial: f64,
    by_bfq: f64,
    /// At 16 threads: MQFQ's and the serial variant's, in millions a second.
    at_16: [f64; 2],
}

impl Scaling {
    fn new(whose: Whose, setting: Setting<'_>) -> Result<Scaling, String> {
        let best = |flows| {
            let mut best = (0, 0.0);
            for threads in 15..=19 {
                let millions = millions(whose.mqfq(), flows, threads, setting)?;
                if millions > best.1 {
                    best = (threads, millions);
                }
            }
            Ok::<_, String>(best)
        };
        let [one, each] = [best(Flows::One)?, best(Flows::Each)?];
        let at = |policy, threads| millions(policy, Flows::One, threads, setting);
        Ok(Scaling {
            threads: [one.0, each.0],
            millions: [one.1, each.1],
            by_serial: one.1 / at(whose.serial(), one.0)?,
            by_bfq: one.1 / millions_of_bfq(one.0, setting)?,
            at_16: [at(whose.mqfq(), 16)?, at(whose.serial(), 16)?],
        })
    }
}

/// Figure 8, MQFQ to the letter; with the paper's values for 15 to 19 threads.
fn by_threads(setting: Setting<'_>) -> Result<Figure, String> {
    let line = |name: &str, threads: &[usize], millions: &dyn Fn(usize) -> Result<f64, String>| {
        let point = |&threads: &usize| Ok((threads as f64, millions(threads)?));
        Ok::<_, String>(Line::new(name, threads.iter().map(point).collect::<Result<_, String>>()?))
    };
    let under = |policy| move |threads| millions(policy, Flows::One, threads, setting);
    let (mqfq, serial) = (Whose::Strict.mqfq(), Whose::Strict.serial());
    let most = rule("M-8.1", "millions");
    let of_paper = |name, times| {
        Line::of_paper(name, [15.0, 19.0].map(|threads| (threads, most / times)).to_vec())
    };
    let lines = vec![
        line("nosched", &[1, 4, 8, 16, 24, 32], &under(NONE))?,
        line("MQFQ", &[1, 4, 8, 15, 16, 17, 18, 19, 32], &under(mqfq))?,
        line("MQFQ-serial", &[1, 4, 8, 16], &under(serial))?,
        line("BFQ", &[1, 4, 8, 16], &|threads| millions_of_bfq(threads, setting))?,
        of_paper("MQFQ", 1.0),
        of_paper("MQFQ-serial", rule("M-8.2", "serial")),
        of_paper("BFQ", rule("M-8.2", "bfq")),
    ];
    let axes = [Axis::linear("threads"), Axis::linear("million requests a second")];
    let title = "MQFQ, Fig 8: reads of 1 KB over NVMf, all threads one flow";
    Ok(Figure::lines("m-8", title, axes, lines))
}

/// Figure 8.
fn scalability(setting: Setting<'_>) -> Result<Outcome, String> {
    let (strict, ours) =
        (Scaling::new(Whose::Strict, setting)?, Scaling::new(Whose::Ours, setting)?);
    let none = |threads| millions(NONE, Flows::One, threads, setting);
    let mut peak: f64 = 0.0;
    for threads in [16, 24, 32] {
        peak = peak.max(none(threads)?);
    }
    let (none, bfq) = (none(16)?, millions_of_bfq(16, setting)?);
    let order = |scaling: &Scaling| [none, scaling.at_16[0], scaling.at_16[1], bfq];
    let best = |Scaling { threads, millions, .. }: &Scaling| {
        let [one, each] = *millions;
        let [with_one, with_each] = *threads;
        format!(
            "{one:.2} M with {with_one} threads of one flow, {each:.2} M with {with_each} of a flow each"
        )
    };
    let part = rule("M-8.3", "least")..=rule("M-8.3", "most");
    let parts = |scaling: &Scaling| scaling.millions.map(|millions| millions / peak);
    let said = |scaling: &Scaling| {
        let [one, each] = parts(scaling).map(percent);
        format!("{one} with one flow, {each} with a flow each")
    };
    let answers = vec![
        by_flows(
            "M-8.1",
            format!("{}; ours {}", best(&strict), best(&ours)),
            "while cores and not the device are the limit, each request finds its port empty: its \
             token goes through the root of the token tree both ways, where the cores of both \
             sockets meet. See M-11.1: where requests wait, ports keep their tokens",
            &strict.millions.map(|m| near(m, rule("M-8.1", "millions"), rule("M-8.1", "off"))),
        ),
        answer(
            "M-8.2",
            format!(
                "{:.1}; {:.1}; ours {:.1}; {:.1}",
                strict.by_serial, strict.by_bfq, ours.by_serial, ours.by_bfq
            ),
            near(strict.by_serial, rule("M-8.2", "serial"), rule("M-8.2", "serial_off"))
                && near(strict.by_bfq, rule("M-8.2", "bfq"), rule("M-8.2", "bfq_off")),
            "serial takes its lock twice or more a request, since a port asks until there is \
             nothing to issue. Under BFQ's lock a request \
             takes the 1.9 us that its documentation has for one processor, and the lock's lines \
             that move beside it",
        ),
        by_flows(
            "M-8.3",
            format!("{}; ours {}", said(&strict), said(&ours)),
            "of the most that is reached without a scheduler; see M-8.1",
            &parts(&strict).map(|measured| part.contains(&measured)),
        ),
        answer(
            "M-8.4",
            format!("{} M; ours {}", list(&order(&strict), 2), list(&order(&ours), 2)),
            order(&strict).windows(2).all(|pair| pair[0] > pair[1]),
            "nosched, MQFQ, serial, BFQ at 16 threads; serial has MQFQ's shared words to fetch \
             while it holds the lock, BFQ only its own",
        ),
    ];
    Ok(Outcome { answers, figures: vec![by_threads(setting)?], tables: Vec::new() })
}

/// A figure of the paper's MQFQ and of ours, in million requests a second; of ours with the number
/// of the group.
fn both(
    id: &'static str,
    title: &str,
    groups: &[&str],
    (strict, ours): (&[f64], Vec<(f64, f64)>),
    of_paper: Vec<(f64, f64)>,
) -> Figure {
    let lines = vec![
        Line::bars(STRICT, strict),
        Line::new("fairq's", ours),
        Line::of_paper(STRICT, of_paper),
    ];
    let groups = groups.iter().copied();
    Figure::bars(id, &format!("MQFQ, {title}"), "million requests a second", groups, lines)
}

const STRICT: &str = "to the letter";

/// Figure 9.
fn virtual_times(setting: Setting<'_>) -> Result<Outcome, String> {
    const CASES: [(Flows, usize); 3] = [(Flows::One, 32), (Flows::One, 16), (Flows::Each, 32)];
    let rate = |policy, (flows, threads)| millions(policy, flows, threads, setting);
    let scan = MqfqParts { virtual_time: VirtualTimeKind::ArrayScan, ..MULTI.parts() };
    // Mindicator and scan alternate.
    let policies = [Whose::Strict.mqfq(), AnySubject::MqfqStrict(scan)];
    let each = CASES.into_iter().flat_map(|case| policies.map(|policy| rate(policy, case)));
    let strict_rates = each.collect::<Result<Vec<f64>, String>>()?;
    let our_rates = CASES.map(|case| rate(Whose::Ours.mqfq(), case));
    let our_rates = our_rates.into_iter().collect::<Result<Vec<f64>, String>>()?;
    let strict = [0, 2, 4].map(|at: usize| strict_rates[at] / strict_rates[at + 1] - 1.0);
    let said = |[all, half, each]: [f64; 3]| {
        let [all, half, each] = [all, half, each].map(percent);
        format!("{all} better at 32 threads, {half} at 16, with a flow each {each} at 32")
    };
    let [all, _, each] = strict;
    // The paper's gain at 32 threads, at both kinds of flows: it does not say which one it
    // measured.
    let better = [0, 4].map(|at| (at as f64, (1.0 + rule("M-9.1", "more")) * strict_rates[at + 1]));
    let figure = both(
        "m-9",
        "Fig 9: virtual time by mindicator and by scan, with 32 and 16 threads of one flow, and 32 \
         of a flow each",
        &[
            "mindicator, 32",
            "scan, 32",
            "mindicator, 16",
            "scan, 16",
            "mindicator, each",
            "scan, each",
        ],
        (&strict_rates, [0.0, 2.0, 4.0].into_iter().zip(our_rates.iter().copied()).collect()),
        better.to_vec(),
    );
    let answer = by_flows(
        "M-9.1",
        format!("{}; ours {} M", said(strict), list(&our_rates, 2)),
        "a core fetches ten of the scan's 32 lines at a time, which takes little of a request's 8 \
         us; tokens cost more (M-8.1)",
        &[all, each].map(|more| (more - rule("M-9.1", "more")).abs() <= rule("M-9.1", "points")),
    );
    Ok(Outcome { answers: vec![answer], figures: vec![figure], tables: Vec::new() })
}

/// A run of Figure 10, with a flow for each thread, since threads of one flow progress alike.
fn waking(policy: AnySubject, threads: usize, setting: Setting<'_>) -> Result<Run, String> {
    let policy = match policy {
        AnySubject::MqfqStrict(parts)
            if setting.asks_for("ports-find-tokens-of-their-path-alone") =>
        {
            AnySubject::MqfqStrict(MqfqParts { slot_kind: SlotKind::TokenPath, ..parts })
        }
        policy => policy,
    };
    go(policy, &nvmf(threads, true, 15 * MS)?, setting)
}

/// Figure 10.
fn unthrottling(setting: Setting<'_>) -> Result<Outcome, String> {
    let at = |policy, threads| waking(policy, threads, setting);
    let [wheel, one, five, ours] =
        [Whose::Strict.mqfq(), polling(1000), polling(5000), Whose::Ours.mqfq()]
            .map(|policy| at(policy, 32));
    let (wheel, one, five, ours) = (wheel?, one?, five?, ours?);
    let rates = [&wheel, &one, &five].map(|run| run.iops() / 1e6);
    let our_rate = ours.iops() / 1e6;
    let a_request = |run: &Run, of: fn(&fairq_sim::CpuUse) -> u64| {
        let requests = run.tenants.iter().map(|got| got.requests).sum::<u64>().max(1);
        run.cpus.iter().map(of).sum::<u64>() as f64 / requests as f64
    };
    let reschedules = |run: &Run| a_request(run, |cpu| cpu.reschedules);
    // Of all reschedules with the wheel, and of those without work.
    let woken = |run: &Run| [reschedules(run), a_request(run, |cpu| cpu.idle_reschedules)];
    let polls = [&at(polling(1000), 4)?, &at(polling(1000), 16)?, &one].map(reschedules);
    let ([all, idle], [our_all, our_idle]) = (woken(&wheel), woken(&ours));
    let said = |all, idle| format!("wheel {all:.2} a request, {idle:.2} of them for nothing");
    let figures = vec![
        both(
            "m-10a",
            "Fig 10 left: how queues are woken, 32 threads of a flow each",
            &["timer wheel", "polling, 1 us", "polling, 5 us"],
            (&rates, vec![(0.0, our_rate)]),
            Vec::new(),
        ),
        Figure::bars(
            "m-10b",
            "MQFQ, Fig 10 right: reschedules, a flow a thread",
            "for each request",
            ["wheel, 32 threads", "1 us, 4 threads", "1 us, 16 threads", "1 us, 32 threads"],
            vec![
                Line::bars(STRICT, &[&[all][..], &polls].concat()),
                Line::bars("fairq's", &[our_all]),
            ],
        ),
    ];
    let answers = vec![
        answer(
            "M-10.1",
            format!("{} M; ours {our_rate:.2} M", list(&rates, 2)),
            rates.windows(2).all(|pair| pair[0] > pair[1]),
            "wheel, 1 us, 5 us, with 32 flows. Cores are the limit: each request finds its port \
             empty, none waits for a slot or for virtual time, and so nothing polls",
        ),
        answer(
            "M-10.2",
            format!(
                "{}, 1 us polling {}; ours {}",
                said(all, idle),
                list(&polls, 2),
                said(our_all, our_idle)
            ),
            all <= 1.0
                && idle <= rule("M-10.2", "idle") * all
                && polls.windows(2).all(|pair| pair[0] < pair[1]),
            "polling at 4, 16 and 32 threads; with the fabric's own time flows stay within T of \
             each other, so that none is throttled",
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 11.
fn slots(setting: Setting<'_>) -> Result<Outcome, String> {
    let at = |policy, threads| millions(policy, Flows::One, threads, setting);
    let [tree, counter, bitmap] =
        [SlotKind::TokenTree, SlotKind::AtomicCounter, SlotKind::ScalableBitmap]
            .map(|slots| at(untimed(slots), 32));
    let (tree, counter, bitmap) = (tree?, counter?, bitmap?);
    let socket =
        [at(untimed(SlotKind::AtomicCounter), 8)?, at(untimed(SlotKind::AtomicCounter), 16)?];
    // Without a window, but with virtual time.
    let ours = at(AnySubject::Mqfq(MqfqSubject { threshold: 1 << 40, ..MULTI }), 32)?;
    // The paper: the counter below half of the tree, the bitmap lower by the stated factor, and the
    // counter no faster with twice the threads.
    let of_paper = vec![
        (1.0, tree / rule("M-11.1", "counter")),
        (2.0, tree / rule("M-11.1", "bitmap")),
        (4.0, socket[0]),
    ];
    let figure = both(
        "m-11",
        "Fig 11: how slots are counted, without virtual time, by threads",
        &["token tree, 32", "counter, 32", "bitmap, 32", "counter, 8", "counter, 16"],
        (&[tree, counter, bitmap, socket[0], socket[1]], vec![(0.0, ours)]),
        of_paper,
    );
    let answers = vec![
        answer(
            "M-11.1",
            format!(
                "{:.2}; {:.2} ({} M); ours {ours:.2} M",
                tree / counter,
                tree / bitmap,
                list(&[tree, counter, bitmap], 2),
            ),
            tree / counter >= rule("M-11.1", "counter")
                && (tree / bitmap - rule("M-11.1", "bitmap")).abs() <= rule("M-11.1", "points"),
            "tree, counter and bitmap at 32 threads. The paper's order comes where requests wait \
             for slots (its 4.3.3 speaks of that). The bitmap is Linux's: 128 bits in four words",
        ),
        answer(
            "M-11.2",
            format!("{} M with 8 and 16 threads", list(&socket, 2)),
            socket[1] <= (1.0 + rule("M-11.2", "above")) * socket[0],
            "twice the cores do half as much again, not nothing more: beyond the socket a swap \
             fails 1.6 times a request, and a request has a core for 5 us beside it",
        ),
    ];
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}
