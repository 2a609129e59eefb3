//! Claims about devices that need no scheduler: the order of arbitration, and the number of
//! requests that fill a drive.

use fairq_core::{Class, ClassWeights};
use fairq_device::{Arbiter, Arbitration, Burst, Mechanism, Profile, QueueIndex};
use fairq_sim::host::Machine;
use fairq_sim::policies::AnySubject;
use fairq_sim::scenario::{Job, MS, Scenario, Tenant};

use super::{Answer, Axis, Experiment, Figure, Line, Outcome, Setting, go, near, rule};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment { ids: &["D-3.1"], seconds: 2, run: order_of_arbitration },
    Experiment { ids: &["M-P.1", "M-P.2"], seconds: 3, run: internal_parallelism },
];

/// Two queues of each class, each with many commands, weights 3:2:1.
fn order_of_arbitration(_setting: Setting<'_>) -> Result<Outcome, String> {
    let classes = [Class::High, Class::Medium, Class::Low];
    let weights = ClassWeights { high: 3, medium: 2, low: 1 };
    let mut arbiter =
        Arbiter::new(Mechanism::Weighted, 6, Arbitration { burst: Burst::ONE, weights });
    for queue in 0..6u16 {
        arbiter.add(QueueIndex(queue), classes[usize::from(queue) / 2]);
        arbiter.post(QueueIndex(queue), 100);
    }
    let fetched: Vec<u16> =
        std::iter::from_fn(|| arbiter.next()).map(|queue| queue.0).take(12).collect();
    let measured =
        fetched.iter().map(|&queue| ["H0", "H1", "M0", "M1", "L0", "L1"][usize::from(queue)]);
    let measured = measured.collect::<Vec<_>>().join(" ");
    let holds = measured == "H0 H1 H0 M0 M1 L0 H1 H0 H1 M0 M1 L1";
    Ok(vec![Answer {
        id: "D-3.1",
        measured,
        holds: Some(holds),
        note: "two queues a class".into(),
    }]
    .into())
}

/// Depths as in the calibration that MQFQ's authors refer to (Chen et al., HPCA 2011): each twice
/// the one before.
const DEPTHS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Requests a second at each depth, first come, first served, on a machine whose threads share the
/// depth.
fn sweep(
    name: &str,
    bytes: u32,
    machine: Machine,
    most: u32,
    setting: Setting<'_>,
) -> Result<Vec<(u32, f64)>, String> {
    let profile = Profile::named(name).map_err(|error| error.to_string())?;
    let at = |depth: u32| {
        // One thread a port, each with an equal part of the depth.
        let threads = most.min(depth);
        let tenant = Tenant::new(
            "all",
            100,
            (0..threads as usize).collect(),
            Job::random_read(bytes, depth / threads),
        );
        let scenario = Scenario::new(profile.clone(), threads as usize, vec![tenant], 20 * MS)
            .on(machine.host(threads as usize));
        Ok((depth, go(AnySubject::None, &scenario, setting)?.iops()))
    };
    DEPTHS.map(at).into_iter().collect()
}

/// The least depth that reaches nearly the greatest rate, and that rate.
fn fills(points: &[(u32, f64)]) -> (u32, f64) {
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let least = points.iter().find(|point| point.1 >= rule("M-P.1", "most") * most);
    (least.map_or(0, |point| point.0), most)
}

fn internal_parallelism(setting: Setting<'_>) -> Result<Outcome, String> {
    let on_ssd = sweep("p3700", 4096, Machine::E5_2620_V3, 16, setting)?;
    let on_fabric = sweep("nvmf-ramdisk", 1024, Machine::E5_2630_V3, 32, setting)?;
    let ((ssd, ssd_iops), (fabric, fabric_iops)) = (fills(&on_ssd), fills(&on_fabric));
    let parallelism = Answer {
        id: "M-P.1",
        measured: format!("P3700 {ssd}, NVMf {fabric}"),
        holds: Some(
            f64::from(ssd) == rule("M-P.1", "ssd") && f64::from(fabric) == rule("M-P.1", "fabric"),
        ),
        note: "the least power of two that gives 98 % of the most".into(),
    };
    let peak = Answer {
        id: "M-P.2",
        measured: format!("P3700 {:.0} K, NVMf {:.2} M", ssd_iops / 1e3, fabric_iops / 1e6),
        holds: Some({
            let within = rule("M-P.2", "off");
            near(ssd_iops, rule("M-P.2", "ssd"), within)
                && near(fabric_iops, rule("M-P.2", "fabric"), within)
        }),
        note: "".into(),
    };
    let line = |name: &str, points: &[(u32, f64)]| {
        Line::new(
            name,
            points.iter().map(|&(depth, iops)| (f64::from(depth), iops / 1e3)).collect(),
        )
    };
    // The paper's depth that fills the drive, and its rate there.
    let of_paper = |name, depth: f64, iops: f64| Line::of_paper(name, vec![(depth, iops / 1e3)]);
    let figure = Figure::lines(
        "m-p",
        "MQFQ, Section 4: requests a second by depth",
        [Axis::log("requests outstanding"), Axis::linear("thousand requests a second")],
        vec![
            line("P3700, 4 KB", &on_ssd),
            line("NVMf, 1 KB", &on_fabric),
            of_paper("P3700, 4 KB", rule("M-P.1", "ssd"), rule("M-P.2", "ssd")),
            of_paper("NVMf, 1 KB", rule("M-P.1", "fabric"), rule("M-P.2", "fabric")),
        ],
    );
    Ok(Outcome { answers: vec![parallelism, peak], figures: vec![figure], tables: Vec::new() })
}
