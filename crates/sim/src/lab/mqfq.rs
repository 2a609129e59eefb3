//! MQFQ's claims that need no model of the host's CPU: the theorems, and who gets what (Figure 5).

use fairq_device::Profile;

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Shape, go, near};
use crate::meter::Run;
use crate::scenario::{Job, MS, Scenario, Tenant};
use crate::subject::{AnyPolicy, Multi, OneLock, Scheduler};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-T1"], seconds: 1, run: theorem_1 },
    Experiment { ids: &["M-T2", "M-T4"], seconds: 1, run: theorem_2 },
    Experiment { ids: &["M-5a.1", "M-5a.2"], seconds: 3, run: sizes },
    Experiment { ids: &["M-5b.1", "M-5b.2"], seconds: 3, run: queues },
    Experiment { ids: &["M-5c.1"], seconds: 3, run: weights },
];

/// A device of the paper's, as many cores as threads that it uses, and the parameters (Section 4, Table 1).
struct Rig {
    profile: &'static str,
    slots: u32,
    threshold: u64,
    /// Threads of each of two flows (left and middle column of Figure 5).
    threads: usize,
    duration_ns: u64,
}

const NVMF: Rig = Rig { profile: "nvmf-ramdisk", slots: 128, threshold: 64 << 10, threads: 16, duration_ns: 60 * MS };
const SSD: Rig = Rig { profile: "p3700", slots: 64, threshold: 45 << 10, threads: 12, duration_ns: 150 * MS };

impl Rig {
    fn mqfq(&self) -> AnyPolicy {
        AnyPolicy::Multi(Multi { slots: self.slots, threshold: self.threshold })
    }

    /// With as many requests on the device as MQFQ.
    fn bfq(&self) -> AnyPolicy {
        AnyPolicy::OneLock(OneLock::new(Scheduler::Bfq, self.slots))
    }

    /// Flows of so many threads, each with its own queue.
    fn scenario(&self, flows: &[(usize, u32, u16)]) -> Result<Scenario, String> {
        let profile = Profile::named(self.profile).map_err(|error| error.to_string())?;
        let mut ports = 0..;
        let tenant = |&(threads, bytes, weight): &(usize, u32, u16)| {
            let ports = ports.by_ref().take(threads).collect();
            Tenant::new(&format!("{threads}x{bytes}({weight})"), weight, ports, Job::random_read(bytes, 128))
        };
        let tenants: Vec<Tenant> = flows.iter().map(tenant).collect();
        Ok(Scenario::new(profile, ports.start, tenants, self.duration_ns))
    }

    /// How much slower each flow is than alone, under a policy.
    fn slowdowns(&self, policy: AnyPolicy, flows: &[(usize, u32, u16)], seed: u64) -> Result<Vec<f64>, String> {
        let together = go(policy, &self.scenario(flows)?, seed)?;
        let bytes = |run: &Run, flow: usize| run.tenants[flow].bytes as f64;
        let slowdown = |(number, flow): (usize, &(usize, u32, u16))| {
            let alone = go(AnyPolicy::FirstCome, &self.scenario(&[*flow])?, seed)?;
            Ok(bytes(&alone, 0) / bytes(&together, number))
        };
        flows.iter().enumerate().map(slowdown).collect()
    }

    /// The flows' bytes under no scheduler, the first relative to the second.
    fn unscheduled(&self, flows: &[(usize, u32, u16)], seed: u64) -> Result<f64, String> {
        let run = go(AnyPolicy::FirstCome, &self.scenario(flows)?, seed)?;
        Ok(run.tenants[0].bytes as f64 / run.tenants[1].bytes as f64)
    }
}

const BFQ: &str = "BFQ gives the same bytes to each; alone the SSD's model gives 8 KB more bytes than 4 KB";

/// The same comparison on both devices: unscheduled 2:1, and equal slowdowns of 2.
fn compared(
    ids: [&'static str; 2],
    figure: (&'static str, &str),
    flows: impl Fn(&Rig) -> [(usize, u32, u16); 2],
    seed: u64,
) -> Result<Outcome, String> {
    let mut ratios = Vec::new();
    let (mut slowdowns, mut budgets) = (Vec::new(), Vec::new());
    for rig in [NVMF, SSD] {
        let flows = flows(&rig);
        ratios.push(rig.unscheduled(&flows, seed)?);
        slowdowns.extend(rig.slowdowns(rig.mqfq(), &flows, seed)?);
        budgets.extend(rig.slowdowns(rig.bfq(), &flows, seed)?);
    }
    let unscheduled = Answer {
        id: ids[0],
        measured: format!("NVMf {:.2}:1, SSD {:.2}:1", ratios[0], ratios[1]),
        holds: Some(ratios.iter().all(|&ratio| near(ratio, 2.0, 0.1))),
        note: "".into(),
    };
    let fair = Answer {
        id: ids[1],
        measured: format!(
            "MQFQ: NVMf {:.2} and {:.2}, SSD {:.2} and {:.2}; BFQ: {:.2} and {:.2}, {:.2} and {:.2}",
            slowdowns[0], slowdowns[1], slowdowns[2], slowdowns[3], budgets[0], budgets[1], budgets[2], budgets[3]
        ),
        holds: Some(slowdowns.iter().chain(&budgets).all(|&slowdown| near(slowdown, 2.0, 0.1))),
        note: BFQ.into(),
    };
    let names = ["NVMf, first", "NVMf, second", "SSD, first", "SSD, second"];
    let figure = Figure {
        id: figure.0,
        title: format!("MQFQ, Fig 5, {}", figure.1),
        x: Axis::linear(""),
        y: Axis::linear("times as slow as alone"),
        shape: Shape::Bars(names.map(str::to_owned).to_vec()),
        lines: vec![Line::bars("mqfq", &slowdowns), Line::bars("BFQ", &budgets), Line::bars("ideal", &[2.0; 4])],
    };
    Ok(Outcome { answers: vec![unscheduled, fair], figures: vec![figure], tables: Vec::new() })
}

fn sizes(seed: u64) -> Result<Outcome, String> {
    compared(
        ["M-5a.1", "M-5a.2"],
        ("m-5a", "left: 8 KB beside 4 KB"),
        |rig| [(rig.threads, 8192, 100), (rig.threads, 4096, 100)],
        seed,
    )
}

fn queues(seed: u64) -> Result<Outcome, String> {
    compared(
        ["M-5b.1", "M-5b.2"],
        ("m-5b", "middle: so many queues beside half as many"),
        |rig| [(rig.threads, 4096, 100), (rig.threads / 2, 4096, 100)],
        seed,
    )
}

fn weights(seed: u64) -> Result<Outcome, String> {
    let flows = [1, 2, 3].map(|weight| (8, 4096, 100 * weight));
    let mut measured = Vec::new();
    let mut holds = true;
    for (name, rig) in [("NVMf", NVMF), ("SSD", SSD)] {
        let fair = rig.slowdowns(rig.mqfq(), &flows, seed)?;
        let unscheduled = rig.slowdowns(AnyPolicy::FirstCome, &flows, seed)?;
        holds &= fair.iter().zip([6.0, 3.0, 2.0]).all(|(&slowdown, ideal)| near(slowdown, ideal, 0.1));
        holds &= unscheduled.iter().all(|&slowdown| near(slowdown, 3.0, 0.1));
        let list = |slowdowns: &[f64]| slowdowns.iter().map(|s| format!("{s:.2}")).collect::<Vec<_>>().join("/");
        measured.push(format!("{name} {} (unscheduled {})", list(&fair), list(&unscheduled)));
    }
    Ok(vec![Answer { id: "M-5c.1", measured: measured.join(", "), holds: Some(holds), note: "".into() }].into())
}

/// Flows that differ in everything, more than enough of each, over eight cores.
fn everything(profile: &str) -> Result<Scenario, String> {
    let profile = Profile::named(profile).map_err(|error| error.to_string())?;
    let mixed = Job { sizes: vec![(512, 1), (4096, 4), (65_536, 1)], ..Job::random_read(4096, 64) };
    let tenants = vec![
        Tenant::new("small", 100, vec![0, 1, 2], Job::random_read(4096, 64)),
        Tenant::new("large", 300, vec![2, 3], Job::random_read(65_536, 32)),
        Tenant::new("mixed", 700, vec![4, 5], mixed),
        Tenant::new("writer", 250, vec![6, 7], Job { read_percent: 0, ..Job::random_read(16_384, 32) }),
    ];
    Ok(Scenario::new(profile, 8, tenants, 40 * MS))
}

/// Runs under the checks; `go` fails where a bound is exceeded.
fn within_bounds(slots: &[u32], seed: u64) -> Result<u64, String> {
    let mut requests = 0;
    for profile in ["p3700", "nvmf-ramdisk"] {
        let scenario = everything(profile)?;
        for &slots in slots {
            for threshold in [0, 4096, 45 << 10, 64 << 10] {
                requests += go(AnyPolicy::Multi(Multi { slots, threshold }), &scenario, seed)?.requests;
            }
        }
    }
    Ok(requests)
}

fn theorem_1(seed: u64) -> Result<Outcome, String> {
    let requests = within_bounds(&[1], seed)?;
    let measured = format!("never exceeded, {requests} requests");
    let note = "every interval of every pair, two devices, T = 0, 4, 45 and 64 KiB";
    Ok(vec![Answer { id: "M-T1", measured, holds: Some(true), note: note.into() }].into())
}

fn theorem_2(seed: u64) -> Result<Outcome, String> {
    let requests = within_bounds(&[2, 64, 128], seed)?;
    let answer = |id, what: &str, note: &'static str| Answer {
        id,
        measured: format!("{what}, {requests} requests"),
        holds: Some(true),
        note: note.into(),
    };
    Ok(vec![
        answer("M-T2", "never exceeded", "as M-T1, D = 2, 64 and 128; at dispatch even Theorem 1's bound"),
        answer("M-T4", "kept throughout", "by the checks slots, virtual time and work conservation"),
    ]
    .into())
}
