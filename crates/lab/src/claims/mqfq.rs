//! MQFQ's theorems, and its division of throughput (Figure 5), on its authors' machines. BFQ serves
//! threads ([`go_by_thread`]).

use fairq_device::Profile;
use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, Kernel, MqfqSubject};
use fairq_sim::scenario::{Job, MS, SECOND, Scenario, Tenant};

use super::{
    Answer, Experiment, Figure, Line, Outcome, Setting, go, go_by_thread, linux_bfq, near, rule,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-T1"], seconds: 1, run: theorem_1 },
    Experiment { ids: &["M-T2", "M-T4"], seconds: 1, run: theorem_2 },
    Experiment { ids: &["M-5a.1", "M-5a.2", "M-5d.1"], seconds: 6, run: sizes },
    Experiment { ids: &["M-5b.1", "M-5b.2"], seconds: 4, run: queues },
    Experiment { ids: &["M-5c.1"], seconds: 3, run: weights },
];

/// A device of the paper, a machine with a core for each thread, and the parameters (Section 4,
/// Table 1).
struct Rig {
    profile: &'static str,
    machine: Machine,
    slots: u32,
    threshold: u64,
    /// Threads of each of two flows (left and middle column of Figure 5).
    threads: usize,
    duration_ns: u64,
}

const NVMF: Rig = Rig {
    profile: "nvmf-ramdisk",
    machine: Machine::E5_2630_V3,
    slots: 128,
    threshold: 64 << 10,
    threads: 16,
    duration_ns: 60 * MS,
};
const SSD: Rig = Rig {
    profile: "p3700",
    machine: Machine::E5_2620_V3,
    slots: 64,
    threshold: 45 << 10,
    threads: 12,
    duration_ns: 150 * MS,
};

impl Rig {
    fn mqfq(&self) -> AnySubject {
        AnySubject::Mqfq(MqfqSubject { slots: self.slots, threshold: self.threshold })
    }

    /// A longer run, because turns take up to 125 ms each.
    fn bfq(&self, flows: &[(usize, u32, u16)], setting: Setting<'_>) -> Result<Run, String> {
        let longer = Scenario { duration_ns: 5 * SECOND, ..self.scenario(flows)? };
        go_by_thread(linux_bfq(Kernel::V4_15, 0), &longer, setting)
    }

    /// Flows with a number of threads each; each thread has its own queue.
    fn scenario(&self, flows: &[(usize, u32, u16)]) -> Result<Scenario, String> {
        let profile = Profile::named(self.profile).map_err(|error| error.to_string())?;
        // The start of the remaining range is the number of ports.
        let mut ports = 0..;
        let tenant = |&(threads, bytes, weight): &(usize, u32, u16)| {
            let ports = ports.by_ref().take(threads).collect();
            Tenant::new(
                &format!("{threads}x{bytes}({weight})"),
                weight,
                ports,
                Job::random_read(bytes, 128),
            )
        };
        let tenants: Vec<Tenant> = flows.iter().map(tenant).collect();
        Ok(Scenario::new(profile, ports.start, tenants, self.duration_ns)
            .on(self.machine.host(ports.start)))
    }

    /// The slowdown of each flow beside the others, relative to running alone.
    fn slowdowns(
        &self,
        together: &Run,
        flows: &[(usize, u32, u16)],
        setting: Setting<'_>,
    ) -> Result<Vec<f64>, String> {
        let bytes = |run: &Run, flow: usize| run.tenants[flow].bytes as f64;
        let slowdown = |(number, flow): (usize, &(usize, u32, u16))| {
            let alone = go(AnySubject::None, &self.scenario(&[*flow])?, setting)?;
            Ok(bytes(&alone, 0) / bytes(together, number))
        };
        flows.iter().enumerate().map(slowdown).collect()
    }
}

/// Bytes of the first flow over bytes of the second.
fn ratio(run: &Run) -> f64 {
    run.tenants[0].bytes as f64 / run.tenants[1].bytes as f64
}

/// A row, the paper's value, and the tolerance as a fraction of it.
type Rule = (&'static str, f64, f64);

/// The same comparison on both devices: unscheduled 2:1; with MQFQ each half as fast as alone, with
/// BFQ equally fast. It also compares the total throughput.
fn compared(
    rules: [Rule; 2],
    totals: Option<&'static str>,
    figure: (&'static str, &str),
    flows: impl Fn(&Rig) -> [(usize, u32, u16); 2],
    setting: Setting<'_>,
) -> Result<Outcome, String> {
    let (mut ratios, mut budgets) = (Vec::new(), Vec::new());
    let (mut slowdowns, mut served) = (Vec::new(), Vec::new());
    for rig in [NVMF, SSD] {
        let flows = flows(&rig);
        let unscheduled = go(AnySubject::None, &rig.scenario(&flows)?, setting)?;
        let fair = go(rig.mqfq(), &rig.scenario(&flows)?, setting)?;
        let bfq = rig.bfq(&flows, setting)?;
        slowdowns.extend(rig.slowdowns(&fair, &flows, setting)?);
        ratios.push(ratio(&unscheduled));
        budgets.push(ratio(&bfq));
        served.push([&unscheduled, &fair, &bfq].map(|run| run.bandwidth() / 1e9));
    }
    let unscheduled = Answer {
        id: rules[0].0,
        measured: format!("NVMf {:.2}:1, SSD {:.2}:1", ratios[0], ratios[1]),
        holds: Some(ratios.iter().all(|&ratio| near(ratio, rules[0].1, rules[0].2))),
        note: "".into(),
    };
    let fair = Answer {
        id: rules[1].0,
        measured: format!(
            "MQFQ: NVMf {:.2} and {:.2}, SSD {:.2} and {:.2}; BFQ: {:.2}:1, {:.2}:1",
            slowdowns[0], slowdowns[1], slowdowns[2], slowdowns[3], budgets[0], budgets[1]
        ),
        holds: Some(
            slowdowns.iter().all(|&slowdown| near(slowdown, rules[1].1, rules[1].2))
                && budgets.iter().all(|&ratio| near(ratio, 1.0, rules[1].2)),
        ),
        note: "of BFQ the paper says that throughputs are equal. Where all queues have the same \
         weight (left column) Linux 4.15 does not \
                   wait, and before the fabric no thread is backlogged behind BFQ's lock, so that \
                   each gets its turn; where they have not (middle) \
                   it does. Alone the SSD's model gives 8 KB half as many bytes again as 4 KB"
            .into(),
    };
    let mut answers = vec![unscheduled, fair];
    if let Some(id) = totals {
        let [fabric, ssd] = [served[0], served[1]];
        let said = |[none, mqfq, bfq]: [f64; 3]| format!("{none:.2}, {mqfq:.2}, {bfq:.2} GB/s");
        let as_unscheduled =
            |[none, mqfq, _]: [f64; 3]| near(mqfq, none, rule("M-5d.1", "similar"));
        let lost = |[none, _, bfq]: [f64; 3]| 1.0 - bfq / none;
        answers.push(Answer {
            id,
            measured: format!("NVMf {}; SSD {}", said(fabric), said(ssd)),
            holds: Some(
                as_unscheduled(fabric)
                    && as_unscheduled(ssd)
                    && lost(ssd) > rule("M-5d.1", "lower")
                    && lost(fabric) > lost(ssd),
            ),
            note: "nosched, MQFQ, BFQ; bytes are shared evenly, and on the SSD's model 4 KB bring \
             fewer of them"
                .into(),
        });
    }
    let names = ["NVMf, first", "NVMf, second", "SSD, first", "SSD, second"];
    let of_paper = Line { paper: true, ..Line::bars("mqfq", &[rules[1].1; 4]) };
    let figure = Figure::bars(
        figure.0,
        &format!("MQFQ, Fig 5, {}", figure.1),
        "times as slow as alone",
        names,
        vec![Line::bars("mqfq", &slowdowns), of_paper],
    );
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

fn sizes(setting: Setting<'_>) -> Result<Outcome, String> {
    compared(
        [
            ("M-5a.1", rule("M-5a.1", "ratio"), rule("M-5a.1", "off")),
            ("M-5a.2", rule("M-5a.2", "slowdown"), rule("M-5a.2", "off")),
        ],
        Some("M-5d.1"),
        ("m-5a", "left: 8 KB beside 4 KB"),
        |rig| [(rig.threads, 8192, 100), (rig.threads, 4096, 100)],
        setting,
    )
}

fn queues(setting: Setting<'_>) -> Result<Outcome, String> {
    compared(
        [
            ("M-5b.1", rule("M-5b.1", "ratio"), rule("M-5b.1", "off")),
            ("M-5b.2", rule("M-5b.2", "slowdown"), rule("M-5b.2", "off")),
        ],
        None,
        ("m-5b", "middle: so many queues beside half as many"),
        |rig| [(rig.threads, 4096, 100), (rig.threads / 2, 4096, 100)],
        setting,
    )
}

fn weights(setting: Setting<'_>) -> Result<Outcome, String> {
    let flows = [1, 2, 3].map(|weight| (8, 4096, 100 * weight));
    let mut measured = Vec::new();
    let mut holds = true;
    let (mut by_weight, mut without, mut ideals) = (Vec::new(), Vec::new(), Vec::new());
    for (name, rig) in [("NVMf", NVMF), ("SSD", SSD)] {
        let under =
            |policy| rig.slowdowns(&go(policy, &rig.scenario(&flows)?, setting)?, &flows, setting);
        let (fair, unscheduled) = (under(rig.mqfq())?, under(AnySubject::None)?);
        let (equal, within) = (rule("M-5c.1", "unscheduled"), rule("M-5c.1", "off"));
        let ideal = [rule("M-5c.1", "light"), rule("M-5c.1", "middle"), rule("M-5c.1", "heavy")];
        holds &= fair.iter().zip(ideal).all(|(&slowdown, ideal)| near(slowdown, ideal, within));
        holds &= unscheduled.iter().all(|&slowdown| near(slowdown, equal, within));
        let list = |slowdowns: &[f64]| {
            slowdowns.iter().map(|s| format!("{s:.2}")).collect::<Vec<_>>().join("/")
        };
        measured.push(format!("{name} {} (unscheduled {})", list(&fair), list(&unscheduled)));
        by_weight.extend(fair);
        without.extend(unscheduled);
        ideals.extend(ideal);
    }
    let groups = ["NVMf", "SSD"]
        .into_iter()
        .flat_map(|device| (1..=3).map(move |weight| format!("{device}, weight {weight}")));
    let figure = Figure::bars(
        "m-5c",
        "MQFQ, Fig 5, right: weights 1, 2 and 3",
        "times as slow as alone",
        groups,
        vec![
            Line::bars("nosched", &without),
            Line::bars("mqfq", &by_weight),
            Line { paper: true, ..Line::bars("mqfq", &ideals) },
        ],
    );
    let answer =
        Answer { id: "M-5c.1", measured: measured.join(", "), holds: Some(holds), note: "".into() };
    Ok(Outcome { answers: vec![answer], figures: vec![figure], tables: Vec::new() })
}

/// Flows that differ in weight, size and depth, with more than enough requests each, over eight
/// cores.
fn everything(profile: &str) -> Result<Scenario, String> {
    let profile = Profile::named(profile).map_err(|error| error.to_string())?;
    let mixed = Job { sizes: vec![(512, 1), (4096, 4), (65_536, 1)], ..Job::random_read(4096, 64) };
    let tenants = vec![
        Tenant::new("small", 100, vec![0, 1, 2], Job::random_read(4096, 64)),
        Tenant::new("large", 300, vec![2, 3], Job::random_read(65_536, 32)),
        Tenant::new("mixed", 700, vec![4, 5], mixed),
        Tenant::new(
            "writer",
            250,
            vec![6, 7],
            Job { read_percent: 0, ..Job::random_read(16_384, 32) },
        ),
    ];
    Ok(Scenario::new(profile, 8, tenants, 40 * MS))
}

/// Runs under the checks; `go` fails where a bound is exceeded.
fn within_bounds(slots: &[u32], setting: Setting<'_>) -> Result<u64, String> {
    let mut requests = 0;
    for profile in ["p3700", "nvmf-ramdisk"] {
        let scenario = everything(profile)?;
        for &slots in slots {
            for threshold in [0, 4096, 45 << 10, 64 << 10] {
                requests +=
                    go(AnySubject::Mqfq(MqfqSubject { slots, threshold }), &scenario, setting)?
                        .requests;
            }
        }
    }
    Ok(requests)
}

fn theorem_1(setting: Setting<'_>) -> Result<Outcome, String> {
    let requests = within_bounds(&[1], setting)?;
    let measured = format!("never exceeded, {requests} requests");
    let note = "every interval of every pair, two devices, T = 0, 4, 45 and 64 KiB";
    Ok(vec![Answer { id: "M-T1", measured, holds: Some(true), note: note.into() }].into())
}

fn theorem_2(setting: Setting<'_>) -> Result<Outcome, String> {
    let requests = within_bounds(&[2, 64, 128], setting)?;
    let answer = |id, what: &str, note: &'static str| Answer {
        id,
        measured: format!("{what}, {requests} requests"),
        holds: Some(true),
        note: note.into(),
    };
    Ok(vec![
        answer(
            "M-T2",
            "never exceeded",
            "as M-T1, D = 2, 64 and 128; at dispatch even Theorem 1's bound",
        ),
        answer(
            "M-T4",
            "kept throughout",
            "by the checks slots, virtual time and work conservation",
        ),
    ]
    .into())
}
