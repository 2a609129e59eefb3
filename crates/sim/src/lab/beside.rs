//! Applications beside fio: FlashX and Aerospike (MQFQ, Figures 6 and 7), YCSB on RocksDB (D2FQ, Figures 18 and 19).
//!
//! The applications are [proxies](crate::proxy), never adjusted to what the papers measured beside fio. YCSB's clients are on 20
//! of the machine's 24 cores, three to a set of queues as in Section 4.4; fio has the four others.

use fairq_core::d2fq::Ratio;
use fairq_device::Profile;

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Shape, go, near};
use crate::meter::Run;
use crate::proxy;
use crate::scenario::{Job, MS, SECOND, Scenario, Tenant};
use crate::subject::{AnyPolicy, Direct, Multi, OneLock, Scheduler};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-5d.1"], seconds: 4, run: totals },
    Experiment { ids: &["M-6.1", "M-6.2", "M-6.3"], seconds: 4, run: flashx },
    Experiment { ids: &["M-7.1", "M-7.2", "M-7.3", "M-7.4"], seconds: 5, run: aerospike },
    Experiment { ids: &["D-18.1", "D-18.2", "D-18.4", "D-19.1", "D-19.2"], seconds: 8, run: ycsb },
];

const NO_CPU: &str = "verbs take no CPU time here, which is what BFQ loses in the paper";

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).map_err(|error| error.to_string())
}

/// The three policies of MQFQ's figures, with the paper's D and T.
fn three(slots: u32, threshold: u64) -> [(&'static str, AnyPolicy); 3] {
    [
        ("nosched", AnyPolicy::FirstCome),
        ("MQFQ", AnyPolicy::Multi(Multi { slots, threshold })),
        ("BFQ", AnyPolicy::OneLock(OneLock::new(Scheduler::Bfq, slots))),
    ]
}

const NVMF: (&str, u32, u64) = ("nvmf-ramdisk", 128, 64 << 10);
const SSD: (&str, u32, u64) = ("p3700", 64, 45 << 10);

/// How much slower each of two is beside the other, under each policy.
fn slowdowns(device: (&str, u32, u64), tenants: [Tenant; 2], seed: u64) -> Result<Vec<[f64; 2]>, String> {
    let (name, slots, threshold) = device;
    let ports = tenants.iter().flat_map(|tenant| &tenant.threads).max().map_or(0, |&port| port + 1);
    let run = |policy, tenants: Vec<Tenant>| go(policy, &Scenario::new(profile(name)?, ports, tenants, 200 * MS), seed);
    let bytes = |run: &Run, tenant: usize| run.tenants[tenant].bytes as f64;
    let mut alone = [0.0; 2];
    for (alone, tenant) in alone.iter_mut().zip(&tenants) {
        *alone = bytes(&run(AnyPolicy::FirstCome, vec![tenant.clone()])?, 0);
    }
    let one = |(_, policy)| {
        let together = run(policy, tenants.to_vec())?;
        Ok([0, 1].map(|tenant| alone[tenant] / bytes(&together, tenant)))
    };
    three(slots, threshold).into_iter().map(one).collect()
}

fn drawn(id: &'static str, title: &str, names: [&str; 2], on: &[(&str, &[[f64; 2]])]) -> Figure {
    let groups =
        on.iter().flat_map(|(device, _)| ["nosched", "mqfq", "bfq"].map(|policy| format!("{device} {policy}")));
    let line = |tenant: usize| {
        let values: Vec<f64> = on.iter().flat_map(|(_, rows)| rows.iter().map(move |row| row[tenant])).collect();
        Line::bars(names[tenant], &values)
    };
    Figure {
        id,
        title: format!("MQFQ, {title}"),
        x: Axis::linear(""),
        y: Axis::linear("times as slow as alone"),
        shape: Shape::Bars(groups.collect()),
        lines: vec![line(0), line(1)],
    }
}

fn fio(threads: usize, first: usize) -> Tenant {
    Tenant::new("fio", 100, (first..first + threads).collect(), Job::random_read(4096, 128))
}

/// Figure 5's bars on top: what is served in all, 8 KB beside 4 KB.
fn totals(seed: u64) -> Result<Outcome, String> {
    let mut said = Vec::new();
    for (device, threads) in [(NVMF, 16), (SSD, 12)] {
        let (name, slots, threshold) = device;
        let large = Tenant::new("8 KB", 100, (0..threads).collect(), Job::random_read(8192, 128));
        let scenario = Scenario::new(profile(name)?, 2 * threads, vec![large, fio(threads, threads)], 100 * MS);
        let run = |(_, policy)| Ok(go(policy, &scenario, seed)?.bandwidth() / 1e9);
        let rates = three(slots, threshold).into_iter().map(run).collect::<Result<Vec<f64>, String>>()?;
        said.push(format!("{name} {:.2}, {:.2}, {:.2} GB/s", rates[0], rates[1], rates[2]));
    }
    let note = format!("not checkable here: nosched, MQFQ and BFQ, but {NO_CPU}");
    Ok(vec![Answer { id: "M-5d.1", measured: said.join("; "), holds: None, note: note.into() }].into())
}

/// Figure 6.
fn flashx(seed: u64) -> Result<Outcome, String> {
    let (threads, pagerank) = proxy::flashx();
    let tenants = || [Tenant::new("FlashX", 100, (0..threads).collect(), pagerank.clone()), fio(6, threads)];
    let (fabric, ssd) = (slowdowns(NVMF, tenants(), seed)?, slowdowns(SSD, tenants(), seed)?);
    let both = |policy: usize| {
        let mean = |tenant: usize| (fabric[policy][tenant] + ssd[policy][tenant]) / 2.0;
        [mean(0), mean(1)]
    };
    let [flashx, other] = both(1);
    let answers = vec![
        Answer {
            id: "M-6.1",
            measured: format!("{:.2} → {:.2}", fabric[0][0], fabric[1][0]),
            holds: Some(near(fabric[0][0], 3.78, 0.3) && near(fabric[1][0], 1.33, 0.3)),
            note: "NVMf; the model takes turns between queues, so a shallow queue does not wait for deep ones".into(),
        },
        Answer {
            id: "M-6.2",
            measured: format!("FlashX {:.0} %, fio {:.0} %", 100.0 * (flashx - 1.0), 100.0 * (other - 1.0)),
            holds: Some(flashx < 2.0 && other < 2.0 && (flashx - 1.33).abs() <= 0.2 && (other - 1.14).abs() <= 0.2),
            note: "mean of the two devices".into(),
        },
        Answer {
            id: "M-6.3",
            measured: format!(
                "BFQ: FlashX {:.2}, fio {:.2} (nosched {:.2}, {:.2})",
                fabric[2][0], fabric[2][1], fabric[0][0], fabric[0][1]
            ),
            holds: Some(fabric[2][0] < 2.0 && fabric[2][0] < fabric[0][0] && fabric[2][1] > 2.0),
            note: format!("NVMf; {NO_CPU}").into(),
        },
    ];
    let figure =
        drawn("m-6", "Fig 6: FlashX beside fio (proxy)", ["FlashX", "fio"], &[("NVMf", &fabric), ("SSD", &ssd)]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figure 7.
fn aerospike(seed: u64) -> Result<Outcome, String> {
    let (clients, reads) = proxy::aerospike();
    let tenants =
        |threads| [Tenant::new("Aerospike", 100, (0..clients).collect(), reads.clone()), fio(threads, clients)];
    let (fabric, ssd) = (slowdowns(NVMF, tenants(8), seed)?, slowdowns(SSD, tenants(4), seed)?);
    let alone = Scenario::new(profile(NVMF.0)?, 16, vec![tenants(8)[0].clone()], 100 * MS);
    let alone = go(AnyPolicy::FirstCome, &alone, seed)?.iops();
    let [aerospike, other] = fabric[1];
    let answers = vec![
        Answer {
            id: "M-7.1",
            measured: format!("{:.2} → {aerospike:.2}", fabric[0][0]),
            holds: Some(near(fabric[0][0], 6.57, 0.3) && near(aerospike, 1.03, 0.1)),
            note: "NVMf; a rate that the device can serve is served under any fair policy, and by turns between queues"
                .into(),
        },
        Answer {
            id: "M-7.2",
            measured: format!(
                "Aerospike {:.0} %, fio {:.0} %; {:.2} M a second alone",
                100.0 * (aerospike - 1.0),
                100.0 * (other - 1.0),
                alone / 1e6
            ),
            holds: Some(aerospike <= 1.1 && other < 1.2 && near(alone, 1e6, 0.1)),
            note: "the rate alone is the proxy's".into(),
        },
        Answer {
            id: "M-7.3",
            measured: format!("BFQ: fio {:.2}, Aerospike {:.2}", fabric[2][1], fabric[2][0]),
            holds: Some(near(fabric[2][1], 15.0, 0.3) && fabric[2][0] < fabric[0][0]),
            note: format!("NVMf; {NO_CPU}").into(),
        },
        Answer {
            id: "M-7.4",
            measured: format!("Aerospike {:.2}, fio {:.2}", ssd[1][0], ssd[1][1]),
            holds: Some(ssd[1].iter().all(|&slowdown| near(slowdown, 2.0, 0.1))),
            note: "MQFQ on the SSD; bytes are shared, so that 512 bytes are an eighth of a request of fio's".into(),
        },
    ];
    let names = ["Aerospike", "fio"];
    let figure = drawn("m-7", "Fig 7: Aerospike beside fio (proxy)", names, &[("NVMf", &fabric), ("SSD", &ssd)]);
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Figures 18 and 19.
fn ycsb(seed: u64) -> Result<Outcome, String> {
    let set = |core: usize| core / 3;
    let (clients, reader) = proxy::ycsb();
    let clients = (0..clients).map(|client| set(4 + client % 20)).collect();
    let fio = Tenant::new("fio", 100, (0..4).map(set).collect(), Job::random_read(4096, 128));
    let tenants = vec![Tenant::new("YCSB", 100, clients, reader), fio];
    let mut scenario = Scenario::new(profile("z-ssd")?, 8, tenants, 6 * SECOND);
    scenario.warmup_ns = 4 * SECOND;
    let run = |policy| go(policy, &scenario, seed);
    let direct = Direct { ratio: Ratio::Dynamic { initial: 256 }, tau_l: 8 << 20, tau_m: None, strict_paper: false };
    let none = run(AnyPolicy::FirstCome)?;
    let d2fq = run(AnyPolicy::Direct(direct))?;
    let mqfq = run(AnyPolicy::Multi(Multi { slots: 64, threshold: 45 << 10 }))?;
    let bfq = run(AnyPolicy::OneLock(OneLock::new(Scheduler::Bfq, 64)))?;
    let ratio = |run: &Run| run.tenants[0].bytes as f64 / run.tenants[1].bytes as f64;
    let latency = |run: &Run, tenant: usize| run.tenants[tenant].mean_us() / none.tenants[tenant].mean_us();
    let policies = [("D2FQ", &d2fq), ("MQFQ", &mqfq), ("BFQ", &bfq)];
    let normal = policies.map(|(_, run)| [latency(run, 0), latency(run, 1)]);
    let gain = d2fq.bandwidth() / mqfq.bandwidth() - 1.0;
    let answers = vec![
        Answer {
            id: "D-18.1",
            measured: format!("YCSB over fio {:.2}", ratio(&none)),
            holds: Some(ratio(&none) < 0.95),
            note: "a proxy of 48 clients".into(),
        },
        Answer {
            id: "D-18.2",
            measured: format!("D2FQ {:.2}, MQFQ {:.2}", ratio(&d2fq), ratio(&mqfq)),
            holds: Some((ratio(&d2fq) - 1.0).abs() <= 0.05 && (ratio(&mqfq) - 1.0).abs() <= 0.08),
            note: "YCSB over fio; the proxy has at most 48 requests out, of the 64 that fill the device".into(),
        },
        Answer {
            id: "D-18.4",
            measured: format!("{:+.2} %", 100.0 * gain),
            holds: Some((0.0..=0.0183).contains(&gain)),
            note: "0 to 1.83 %; the paper's reason, slots on their way between sockets, costs only wake-ups here"
                .into(),
        },
        Answer {
            id: "D-19.1",
            measured: policies
                .iter()
                .zip(&normal)
                .map(|((name, _), [ycsb, fio])| format!("{name} YCSB {ycsb:.2}, fio {fio:.2}"))
                .collect::<Vec<_>>()
                .join("; "),
            holds: Some(
                normal[..2].iter().all(|[ycsb, fio]| *fio > 1.0 && *ycsb < 1.0) && normal[2].iter().all(|&b| b > 2.0),
            ),
            note: "mean latency, of none's; BFQ longer than twice".into(),
        },
        Answer {
            id: "D-19.2",
            measured: format!("D2FQ {:.2}", ratio(&d2fq)),
            holds: Some((ratio(&d2fq) - 1.0).abs() <= 0.05),
            note: "24 cores on eight sets of queues, as in these runs".into(),
        },
    ];
    let groups = ["YCSB", "fio"].map(str::to_owned).to_vec();
    let mb_s =
        |run: &Run| run.tenants.iter().map(|got| got.bytes as f64 * 1e3 / run.measured_ns as f64).collect::<Vec<_>>();
    let all = [("none", &none), ("D2FQ", &d2fq), ("MQFQ", &mqfq), ("BFQ", &bfq)];
    let figures = vec![Figure {
        id: "d-18",
        title: "D2FQ, Fig 18: YCSB beside fio (proxy)".into(),
        x: Axis::linear(""),
        y: Axis::linear("MB/s"),
        shape: Shape::Bars(groups),
        lines: all.map(|(name, run)| Line::bars(name, &mb_s(run))).to_vec(),
    }];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}
