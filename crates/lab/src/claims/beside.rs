//! Applications beside fio: FlashX and Aerospike (MQFQ, Figures 6 and 7), YCSB on RocksDB (D2FQ,
//! Figures 18 and 19).
//!
//! The applications are [proxies](fairq_sim::proxy), never adjusted to the papers' measurements
//! beside fio. All runs are on the authors' machines; BFQ serves threads ([`go_by_thread`]). A
//! target behind a fabric accepts all requests in its queues, 128 each, and serves them in turn:
//! without a scheduler a tenant that sends little waits for all requests that others have sent.
//! D2FQ's authors pin nothing: fio's four threads, which never sleep, are spread over the machine
//! as Linux spreads them, each on every sixth of its 24 cores, and YCSB's clients are on the 20
//! others; for fairness and latency three adjacent cores share a set of queues, as in Section 4.4.

use fairq_core::d2fq::Ratio;
use fairq_device::Profile;
use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, D2fqSubject, Kernel, MqfqSubject};
use fairq_sim::proxy::Proxy;
use fairq_sim::scenario::{Job, MS, SECOND, Scenario, Tenant};

use super::{
    Answer, D2FQ_BUDGET, Experiment, Figure, Line, Outcome, Setting, go, go_by_thread, linux_bfq,
    near, rule,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-6.1", "M-6.2", "M-6.3"], seconds: 4, run: flashx },
    Experiment { ids: &["M-7.1", "M-7.2", "M-7.3", "M-7.4"], seconds: 5, run: aerospike },
    Experiment { ids: &["D-18.1", "D-18.2", "D-18.4", "D-19.2"], seconds: 16, run: ycsb },
    Experiment { ids: &["D-18.3", "D-19.1"], seconds: 12, run: ycsb_on_cores },
];

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).map_err(|error| error.to_string())
}

/// A machine of MQFQ's authors with its device, and D and T.
struct Rig {
    device: &'static str,
    machine: Machine,
    slots: u32,
    threshold: u64,
    /// Least cost of a request, in bytes.
    least_cost: u32,
}

/// The authors count in KB, of 1024 bytes: a request of 512 bytes costs 1 KB.
const KB: u32 = 1024;

const NVMF: Rig = Rig {
    device: "nvmf-ramdisk",
    machine: Machine::E5_2630_V3,
    slots: 128,
    threshold: 64 << 10,
    least_cost: KB,
};
const SSD: Rig = Rig {
    device: "p3700",
    machine: Machine::E5_2620_V3,
    slots: 64,
    threshold: 45 << 10,
    least_cost: KB,
};

impl Rig {
    fn scenario(&self, tenants: Vec<Tenant>, ports: usize) -> Result<Scenario, String> {
        let mut scenario = Scenario::new(profile(self.device)?, ports, tenants, 100 * MS)
            .on(self.machine.host(ports));
        scenario.cost.min_bytes = self.least_cost;
        Ok(scenario)
    }

    /// The slowdown of each of two tenants beside the other, under nosched, MQFQ and BFQ; and the
    /// run of the first one alone.
    fn slowdowns(
        &self,
        tenants: [Tenant; 2],
        setting: Setting<'_>,
    ) -> Result<(Vec<[f64; 2]>, Run), String> {
        let ports =
            tenants.iter().flat_map(|tenant| &tenant.threads).max().map_or(0, |&port| port + 1);
        let alone = |tenant: &Tenant| {
            go(AnySubject::None, &self.scenario(vec![tenant.clone()], ports)?, setting)
        };
        let alone = [alone(&tenants[0])?, alone(&tenants[1])?];
        let both = self.scenario(tenants.to_vec(), ports)?;
        let mqfq = AnySubject::Mqfq(MqfqSubject { slots: self.slots, threshold: self.threshold });
        let runs = [
            go(AnySubject::None, &both, setting)?,
            go(mqfq, &both, setting)?,
            // A longer run: BFQ's turns take up to 125 ms each.
            go_by_thread(
                linux_bfq(Kernel::V4_15, 0),
                &Scenario { duration_ns: 5 * SECOND, ..both },
                setting,
            )?,
        ];
        let bytes =
            |run: &Run, tenant: usize| run.tenants[tenant].bytes as f64 / run.measured_ns as f64;
        let slower = |run: &Run| [0, 1].map(|tenant| bytes(&alone[tenant], 0) / bytes(run, tenant));
        let slower = runs.iter().map(slower).collect();
        let [first, _] = alone;
        Ok((slower, first))
    }
}

/// The slowdowns as a figure, with the paper's values for the first and the second tenant.
fn drawn(
    id: &'static str,
    title: &str,
    names: [&str; 2],
    on: &[(&str, &[[f64; 2]])],
    of_paper: [Vec<(f64, f64)>; 2],
) -> Figure {
    let groups = on.iter().flat_map(|(device, _)| {
        ["nosched", "mqfq", "bfq"].map(|policy| format!("{device} {policy}"))
    });
    let line = |tenant: usize| {
        let values: Vec<f64> =
            on.iter().flat_map(|(_, rows)| rows.iter().map(move |row| row[tenant])).collect();
        Line::bars(names[tenant], &values)
    };
    let said = names.into_iter().zip(of_paper).filter(|(_, points)| !points.is_empty());
    let said = said.map(|(name, points)| Line::of_paper(name, points));
    let lines = [line(0), line(1)].into_iter().chain(said).collect();
    Figure::bars(id, &format!("MQFQ, {title}"), "times as slow as alone", groups, lines)
}

fn fio(threads: usize, first: usize) -> Tenant {
    Tenant::new("fio", 100, (first..first + threads).collect(), Job::random_read(4096, 128))
}

/// Figure 6.
fn flashx(setting: Setting<'_>) -> Result<Outcome, String> {
    let (threads, pagerank) = setting.proxy("flashx")?;
    let tenants =
        || [Tenant::new("FlashX", 100, (0..threads).collect(), pagerank.clone()), fio(6, threads)];
    let ((fabric, _), (ssd, _)) =
        (NVMF.slowdowns(tenants(), setting)?, SSD.slowdowns(tenants(), setting)?);
    let both = |policy: usize| {
        let mean = |tenant: usize| (fabric[policy][tenant] + ssd[policy][tenant]) / 2.0;
        [mean(0), mean(1)]
    };
    let [flashx, other] = both(1);
    let answers = vec![
        Answer {
            id: "M-6.1",
            measured: format!("{:.2} → {:.2}", fabric[0][0], fabric[1][0]),
            holds: Some({
                let within = rule("M-6.1", "off");
                near(fabric[0][0], rule("M-6.1", "nosched"), within)
                    && near(fabric[1][0], rule("M-6.1", "mqfq"), within)
            }),
            note: "NVMf; how many requests FlashX keeps outstanding, 24 here, is a guess, and \
             unscheduled it is as slow as that is small"
                .into(),
        },
        Answer {
            id: "M-6.2",
            measured: format!(
                "FlashX {:.0} %, fio {:.0} \
             %",
                100.0 * (flashx - 1.0),
                100.0 * (other - 1.0)
            ),
            holds: Some({
                let points = rule("M-6.2", "points");
                flashx.max(other) < rule("M-6.2", "below")
                    && (flashx - 1.0 - rule("M-6.2", "flashx")).abs() <= points
                    && (other - 1.0 - rule("M-6.2", "fio")).abs() <= points
            }),
            note:
                "mean of the two devices; how much FlashX computes for each request, 20 us here, \
             is a guess, and the more the less it is slowed down"
                    .into(),
        },
        Answer {
            id: "M-6.3",
            measured: format!(
                "BFQ: FlashX {:.2}, fio {:.2} (nosched {:.2}, {:.2})",
                fabric[2][0], fabric[2][1], fabric[0][0], fabric[0][1]
            ),
            holds: Some({
                let [flashx, fio] = fabric[2];
                flashx < rule("M-6.3", "times")
                    && flashx < fabric[0][0]
                    && fio > rule("M-6.3", "times")
            }),
            note: "NVMf".into(),
        },
    ];
    let figure = drawn(
        "m-6",
        "Fig 6: FlashX beside fio (proxy)",
        ["FlashX", "fio"],
        &[("NVMf", &fabric), ("SSD", &ssd)],
        // The paper's values for NVMf, unscheduled and under MQFQ.
        [vec![(0.0, rule("M-6.1", "nosched")), (1.0, rule("M-6.1", "mqfq"))], Vec::new()],
    );
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 7.
fn aerospike(setting: Setting<'_>) -> Result<Outcome, String> {
    let (clients, reads) = setting.proxy("aerospike")?;
    let tenants = |threads| {
        [
            Tenant::new("Aerospike", 100, (0..clients).collect(), reads.clone()),
            fio(threads, clients),
        ]
    };
    let ((fabric, alone), (ssd, _)) =
        (NVMF.slowdowns(tenants(8), setting)?, SSD.slowdowns(tenants(4), setting)?);
    let alone = alone.iops();
    let [aerospike, other] = fabric[1];
    let answers =
        vec![
        Answer {
            id: "M-7.1",
            measured: format!("{:.2} → {aerospike:.2}", fabric[0][0]),
            holds: Some(
                near(fabric[0][0], rule("M-7.1", "nosched"), rule("M-7.1", "nosched_off"))
                    && near(aerospike, rule("M-7.1", "mqfq"), rule("M-7.1", "mqfq_off")),
            ),
            note: "NVMf".into(),
        },
        Answer {
            id: "M-7.2",
            measured: format!(
                "Aerospike {:.0} %, fio {:.0} %; {:.2} M a second alone",
                100.0 * (aerospike - 1.0),
                100.0 * (other - 1.0),
                alone / 1e6
            ),
            holds: Some(
                aerospike <= 1.0 + rule("M-7.2", "aerospike")
                    && other < 1.0 + rule("M-7.2", "fio")
                    && near(alone, rule("M-7.2", "alone"), rule("M-7.2", "off")),
            ),
            note: "".into(),
        },
        Answer {
            id: "M-7.3",
            measured: format!("BFQ: fio {:.2}, Aerospike {:.2}", fabric[2][1], fabric[2][0]),
            holds: Some(
                near(fabric[2][1], rule("M-7.3", "fio"), rule("M-7.3", "off"))
                    && fabric[2][0] < fabric[0][0],
            ),
            note: "NVMf; the queues of 16 and 8 threads have different weights, so that BFQ waits \
                   for whomever it serves"
                .into(),
        },
        Answer {
            id: "M-7.4",
            measured: format!("Aerospike {:.2}, fio {:.2}", ssd[1][0], ssd[1][1]),
            holds: Some(ssd[1].iter().all(|&slowdown| {
                near(slowdown, rule("M-7.4", "slowdown"), rule("M-7.4", "off"))
            })),
            note: "MQFQ on the SSD".into(),
        },
    ];
    let names = ["Aerospike", "fio"];
    let figure = drawn(
        "m-7",
        "Fig 7: Aerospike beside fio (proxy)",
        names,
        &[("NVMf", &fabric), ("SSD", &ssd)],
        // The paper's values for NVMf unscheduled, under MQFQ and under BFQ; and for the SSD under
        // MQFQ.
        [
            vec![
                (0.0, rule("M-7.1", "nosched")),
                (1.0, rule("M-7.1", "mqfq")),
                (4.0, rule("M-7.4", "slowdown")),
            ],
            vec![(2.0, rule("M-7.3", "fio")), (4.0, rule("M-7.4", "slowdown"))],
        ],
    );
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Hardware threads of machine B.
const CORES: usize = 24;

/// YCSB's clients and fio's threads on their cores; `port` maps a core to its port.
fn ycsb_and_fio(ycsb: Proxy, port: impl Fn(usize) -> usize) -> Vec<Tenant> {
    let (clients, reader) = ycsb;
    let (fio, others): (Vec<usize>, Vec<usize>) = (0..CORES).partition(|core| core % 6 == 0);
    let clients = others.into_iter().cycle().take(clients).map(&port).collect();
    let fio = fio.into_iter().map(&port).collect();
    vec![
        Tenant::new("YCSB", 100, clients, reader),
        Tenant::new("fio", 100, fio, Job::random_read(4096, 128)),
    ]
}

/// Figure 18, CPU, and Figure 19, latency: all 24 cores, three of which share a set of queues.
fn ycsb_on_cores(setting: Setting<'_>) -> Result<Outcome, String> {
    let (clients, client) = setting.proxy("ycsb")?;
    let tenants = ycsb_and_fio((clients, client.clone()), |core| core);
    let mut scenario =
        Scenario::new(profile("z-ssd")?, CORES, tenants, SECOND).on(Machine::GOLD_6226.host(CORES));
    scenario.warmup_ns = SECOND / 2;
    scenario.cores_per_queue = 3;
    let direct =
        D2fqSubject { ratio: Ratio::Static(8), tau_l: 8 << 20, tau_m: None, strict_paper: false };
    let policies = [
        AnySubject::None,
        AnySubject::D2fq(direct),
        AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 }),
    ];
    let mut runs = policies
        .into_iter()
        .map(|policy| go(policy, &scenario, setting))
        .collect::<Result<Vec<Run>, String>>()?;
    runs.push(go_by_thread(linux_bfq(Kernel::V5_3, D2FQ_BUDGET), &scenario, setting)?);
    // YCSB's clients compute between their requests; fio's threads do not.
    let computing = |run: &Run| {
        let computed_ns = run.tenants[0].requests * client.think_ns;
        computed_ns as f64 / (CORES as f64 * run.measured_ns as f64)
    };
    let layers = [0, 1, 2].map(|policy: usize| 100.0 * runs[policy].cpu());
    let cpus = [0, 1, 2].map(|policy: usize| layers[policy] + 100.0 * computing(&runs[policy]));
    let latency = |run: &Run, tenant: usize| {
        run.tenants[tenant].mean_us() / runs[0].tenants[tenant].mean_us()
    };
    let [d2fq, mqfq, bfq] =
        [1, 2, 3].map(|policy: usize| [0, 1].map(|tenant| latency(&runs[policy], tenant)));
    let said = |name: &str, [ycsb, fio]: [f64; 2]| format!("{name} YCSB {ycsb:.2}, fio {fio:.2}");
    Ok(vec![
        Answer {
            id: "D-18.3",
            measured: format!(
                "{:.1}, {:.1}, {:.1} %; of that the block layer {:.1}, {:.1}, {:.1}",
                cpus[0], cpus[1], cpus[2], layers[0], layers[1], layers[2]
            ),
            holds: Some(cpus[0] < cpus[1] && cpus[0] < cpus[2]),
            note: "none, D2FQ, MQFQ; 20 us of computing for each of YCSB's requests are a guess"
                .into(),
        },
        Answer {
            id: "D-19.1",
            measured: [said("D2FQ", d2fq), said("MQFQ", mqfq), said("BFQ", bfq)].join("; "),
            holds: Some(
                [d2fq, mqfq].iter().all(|[ycsb, fio]| *fio > 1.0 && *ycsb < 1.0)
                    && bfq.iter().all(|&b| b > rule("D-19.1", "long")),
            ),
            note: "mean latency, of none's; BFQ longer than twice; on the machine's 24 cores"
                .into(),
        },
    ]
    .into())
}

/// Figure 18, bandwidth: three cores share a set of queues.
fn ycsb(setting: Setting<'_>) -> Result<Outcome, String> {
    let tenants = ycsb_and_fio(setting.proxy("ycsb")?, |core| core / 3);
    let mut scenario = Scenario::new(profile("z-ssd")?, 8, tenants, 12 * SECOND);
    // The H/L ratio has converged by then.
    scenario.warmup_ns = 8 * SECOND;
    let run = |policy| go(policy, &scenario, setting);
    let direct = D2fqSubject {
        ratio: Ratio::Dynamic { initial: 256 },
        tau_l: 8 << 20,
        tau_m: None,
        strict_paper: false,
    };
    let none = run(AnySubject::None)?;
    let d2fq = run(AnySubject::D2fq(direct))?;
    let mqfq = run(AnySubject::Mqfq(MqfqSubject { slots: 64, threshold: 45 << 10 }))?;
    let bfq = go_by_thread(linux_bfq(Kernel::V5_3, D2FQ_BUDGET), &scenario, setting)?;
    let ratio = |run: &Run| run.tenants[0].bytes as f64 / run.tenants[1].bytes as f64;
    // In hundredths of a percent, as it is printed; never -0.
    let gain = (1e4 * (d2fq.bandwidth() / mqfq.bandwidth() - 1.0)).round() + 0.0;
    let answers =
        vec![
        Answer {
            id: "D-18.1",
            measured: format!("YCSB over fio {:.2}", ratio(&none)),
            holds: Some(ratio(&none) < 1.0 - rule("D-18.1", "less")),
            note: "a proxy of 48 clients on 20 of 24 cores, beside fio's four, which are spread \
             over the machine"
                .into(),
        },
        Answer {
            id: "D-18.2",
            measured: format!("D2FQ {:.2}, MQFQ {:.2}", ratio(&d2fq), ratio(&mqfq)),
            holds: Some(
                (ratio(&d2fq) - 1.0).abs() <= rule("D-18.2", "d2fq")
                    && (ratio(&mqfq) - 1.0).abs() <= rule("D-18.2", "mqfq"),
            ),
            note: "YCSB over fio; the proxy has at most 48 requests out, of the 64 that fill the \
             device".into(),
        },
        Answer {
            id: "D-18.4",
            measured: format!("{:+.2} %", gain / 100.0),
            holds: Some((0.0..=1e4 * rule("D-18.4", "most")).contains(&gain)),
            note: "0 to 1.83 %; the paper's reason, slots on their way between sockets, costs only \
             wake-ups here"
                .into(),
        },
        Answer {
            id: "D-19.2",
            measured: format!("D2FQ {:.2}", ratio(&d2fq)),
            holds: Some((ratio(&d2fq) - 1.0).abs() <= rule("D-19.2", "off")),
            note: "24 cores on eight sets of queues, as in these runs".into(),
        },
    ];
    let mb_s = |run: &Run| {
        run.tenants
            .iter()
            .map(|got| got.bytes as f64 * 1e3 / run.measured_ns as f64)
            .collect::<Vec<_>>()
    };
    let all = [("none", &none), ("D2FQ", &d2fq), ("MQFQ", &mqfq), ("BFQ", &bfq)];
    // The paper's YCSB values lie between fio's rate and the rate that is higher by the stated
    // gain.
    let as_fio = |name, run: &Run, more: f64| {
        let fio = mb_s(run)[1];
        Line::of_paper(name, vec![(0.0, fio), (0.0, (1.0 + more) * fio)])
    };
    let of_paper = [
        as_fio("D2FQ", &d2fq, rule("D-18.2", "d2fq")),
        as_fio("MQFQ", &mqfq, rule("D-18.2", "mqfq")),
    ];
    let lines = all.map(|(name, run)| Line::bars(name, &mb_s(run)));
    let title = "D2FQ, Fig 18: YCSB beside fio (proxy)";
    let lines = lines.into_iter().chain(of_paper).collect();
    let figures = vec![Figure::bars("d-18", title, "MB/s", ["YCSB", "fio"], lines)];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}
