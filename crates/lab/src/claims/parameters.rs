//! MQFQ's claims about its parameters, and about properties that it shares with simpler schedulers.

use fairq_device::Profile;
use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, MqfqSubject, SfqdSubject};
use fairq_sim::scenario::{Burst, Job, MS, Scenario, Tenant};

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Setting, go, percent, rule};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["M-T3"], seconds: 1, run: as_sfq },
    Experiment { ids: &["M-D.1"], seconds: 6, run: depth_and_threshold },
    Experiment { ids: &["M-K.1"], seconds: 2, run: tokens },
];

fn mqfq(slots: u32, threshold: u64) -> AnySubject {
    AnySubject::Mqfq(MqfqSubject { slots, threshold })
}

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).map_err(|error| error.to_string())
}

/// One request at a time and no head start, on one queue: the order must be SFQ's. A flow that
/// comes to a busy device starts at virtual time, which in SFQ is the tag in service and in MQFQ
/// the least tag that waits. So all flows come while one first request is in service and nothing
/// waits, and stay.
fn as_sfq(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut requests = 0;
    let mut same = true;
    for name in ["p3700", "nvmf-ramdisk", "z-ssd"] {
        let mixed = Job {
            sizes: vec![(512, 1), (4096, 4), (65_536, 1)],
            read_percent: 70,
            ..Job::random_read(4096, 16)
        };
        let tenants = vec![
            Tenant {
                lives: vec![(0, 1)],
                ..Tenant::new("first", 100, vec![0], Job::random_read(4096, 1))
            },
            Tenant::new("a", 100, vec![0], Job::random_read(4096, 16)).from(2),
            Tenant::new("b", 300, vec![0], Job::random_read(16_384, 8)).from(2),
            Tenant::new("c", 700, vec![0], mixed).from(2),
        ];
        let scenario = Scenario::new(profile(name)?, 1, tenants, 100 * MS);
        let (ours, sfq) = (
            go(mqfq(1, 0), &scenario, setting)?,
            go(AnySubject::Sfqd(SfqdSubject { slots: 1 }), &scenario, setting)?,
        );
        requests += ours.requests;
        same &= ours.digest == sfq.digest;
    }
    let measured =
        format!("{} order in {requests} requests", if same { "the same" } else { "another" });
    let note = "D = 1, T = 0, one port, three flows that stay backlogged, against fairq's own \
     SFQ(D) with D = 1; the bounds are M-T1 and \
                M-T2 at T = 0. One that comes back is ordered otherwise: virtual time is the tag \
                in service in SFQ, the least that \
                waits in MQFQ";
    Ok(vec![Answer { id: "M-T3", measured, holds: Some(same), note: note.into() }].into())
}

/// Section 3.4.
fn depth_and_threshold(setting: Setting<'_>) -> Result<Outcome, String> {
    let ssd = profile("p3700")?;
    let deep = Tenant::new("deep", 100, (0..8).collect(), Job::random_read(4096, 64));
    let full = |slots| {
        let scenario = Scenario::new(ssd.clone(), 8, vec![deep.clone()], 60 * MS);
        Ok(go(mqfq(slots, 45 << 10), &scenario, setting)?.iops())
    };
    let depths = [4, 8, 16, 32, 48, 64, 128];
    let by_depth: Vec<f64> = depths.into_iter().map(full).collect::<Result<_, String>>()?;
    // The rate at D = 64, which the authors use for this device.
    let fills = by_depth[5];
    // A tenant in bursts of 2 ms beside a deep one: the latency of its requests shows how many
    // requests are ahead of them.
    let bursts =
        Job { burst: Some(Burst { on_ns: 2 * MS, off_ns: 8 * MS }), ..Job::random_read(4096, 16) };
    let late = |slots| {
        let tenants = vec![deep.clone(), Tenant::new("bursts", 100, vec![0], bursts.clone())];
        // This device takes up to 128 requests, so D alone limits the requests ahead of a burst.
        let scenario = Scenario::new(profile("nvmf-ramdisk")?, 8, tenants, 200 * MS);
        Ok(go(mqfq(slots, 45 << 10), &scenario, setting)?.tenants[1].quantile_us(0.99))
    };
    let tails: Vec<f64> = [32, 64, 128].into_iter().map(late).collect::<Result<_, String>>()?;
    let fast = profile("nvmf-ramdisk")?;
    let single = |threshold| {
        let tenants = vec![Tenant::new("one", 100, vec![0], Job::random_read(4096, 128))];
        let scenario =
            Scenario::new(fast.clone(), 1, tenants, 40 * MS).on(Machine::E5_2630_V3.host(1));
        Ok::<f64, String>(go(mqfq(128, threshold), &scenario, setting)?.iops())
    };
    let alone = single(0)? / single(64 << 10)?;
    let many = |threshold| {
        let tenant = |number| {
            Tenant::new(
                &format!("t{number}"),
                100,
                vec![number, number + 8],
                Job::random_read(1024, 64),
            )
        };
        let scenario = Scenario::new(fast.clone(), 16, (0..8).map(tenant).collect(), 40 * MS)
            .on(Machine::E5_2630_V3.host(16));
        Ok::<f64, String>(go(mqfq(128, threshold), &scenario, setting)?.iops())
    };
    let thresholds = [0, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
    let by_threshold: Vec<f64> = thresholds.into_iter().map(many).collect::<Result<_, String>>()?;
    let small = by_threshold[0] / by_threshold[4];
    let saturates = by_depth[..3].iter().all(|&iops| iops < (1.0 - rule("M-D.1", "lost")) * fills);
    let parts =
        by_depth.iter().map(|iops| format!("{:.2}", iops / fills)).collect::<Vec<_>>().join(" ");
    let tails_said = tails.iter().map(|tail| format!("{tail:.0}")).collect::<Vec<_>>().join(" ");
    let answers = vec![Answer {
        id: "M-D.1",
        measured: format!(
            "D 4 to 128: {parts} of D = 64; bursts' p99 {tails_said} us at D 32, 64, 128; T = 0: \
             one thread {}, 16 threads {} of T = 64 KiB",
            percent(alone),
            percent(small)
        ),
        holds: Some(
            saturates
                && tails.is_sorted()
                && tails[2] > (1.0 + rule("M-D.1", "longer")) * tails[0]
                && alone >= 1.0 - rule("M-D.1", "none")
                && small < 1.0 - rule("M-D.1", "none"),
        ),
        note: "P3700 for D, NVMf for bursts and T, where T is tried on the authors' machine".into(),
    }];
    let points = depths
        .iter()
        .zip(&by_depth)
        .map(|(&depth, &iops)| (f64::from(depth), iops / 1e3))
        .collect();
    let by_t = thresholds
        .iter()
        .zip(&by_threshold)
        .map(|(&t, &iops)| (t as f64 / 1024.0, iops / 1e6))
        .collect();
    let fills = (rule("M-P.1", "ssd"), rule("M-P.2", "ssd") / 1e3);
    let figures = vec![
        Figure::lines(
            "m-d-depth",
            "MQFQ, Section 3.4: too small a D does not fill the device (P3700)",
            [Axis::log("D"), Axis::linear("thousand requests a second")],
            vec![
                Line::new("8 threads, 4 KiB", points),
                Line::of_paper("8 threads, 4 KiB", vec![fills]),
            ],
        ),
        Figure::lines(
            "m-d-threshold",
            "MQFQ, Section 3.4: too small a T makes cores wait for each other (NVMf)",
            [Axis::linear("T, KiB"), Axis::linear("million requests a second")],
            vec![Line::new("8 tenants on 16 cores, 1 KiB", by_t)],
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Sections 3.2 and 3.3: after all requests are served the tree holds D tokens again; during the
/// run at most D tokens are out (a check).
fn tokens(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut requests = 0;
    let mut kept = true;
    for slots in [1, 9, 64, 128] {
        for threshold in [0, 4096, 64 << 10] {
            let tenant = |number| {
                let threads = vec![number, (number + 3) % 8];
                Tenant::new(
                    &format!("t{number}"),
                    100 * (1 + number as u16),
                    threads,
                    Job::random_read(4096, 16),
                )
            };
            let scenario =
                Scenario::new(profile("p3700")?, 8, (0..6).map(tenant).collect(), 20 * MS);
            let run: Run = go(mqfq(slots, threshold), &scenario, setting)?;
            requests += run.requests;
            kept &= run.stats.free_slots == Some(u64::from(slots));
        }
    }
    let measured = format!(
        "{} after {requests} requests",
        if kept { "all tokens are back" } else { "tokens are lost" }
    );
    let note = "D of 1, 9, 64, 128 and T of 0, 4, 64 KiB; never more than D outstanding; buckets: \
     fairq-core's own tests";
    Ok(vec![Answer { id: "M-K.1", measured, holds: Some(kept), note: note.into() }].into())
}
