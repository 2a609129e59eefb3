//! Figures 3 to 6: interference between loads in the device's queue, and its dependence on the
//! queue's length (Observations 1 to 6).

use fairq_device::Profile;
use fairq_sim::policies::{Scheduler, SerialSubject};

use super::{
    Measured, NCQ, Variant, at, both, drawn, fairness_by_length, fairness_grows, lengths, list,
    measure, of, pair, profile, six,
};
use crate::claims::{Answer, Outcome, Setting, rule};

/// Figure 3.
pub(super) fn sequentiality(setting: Setting<'_>) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(1, setting)?, lengths(2, setting)?);
    let all = |names: &[&str], claim: &dyn Fn(&Measured) -> bool| {
        [&reads[2], &writes[2]]
            .iter()
            .all(|results| names.iter().all(|name| claim(of(results, name))))
    };
    let said = |names: &[&str]| {
        format!("T1 {}; T2 {}", list(&reads[2], names, both), list(&writes[2], names, both))
    };
    let in_bytes = |m: &Measured| format!("{:.2}", m.got[0] / m.got[1]);
    let by_length = |names: &[&str]| {
        format!(
            "T1 {}; T2 {}",
            fairness_by_length(&reads, names),
            fairness_by_length(&writes, names)
        )
    };
    let (random, sequential) = (["CFQ", "CFQ-NA"], ["FIOPS", "FlashFQ"]);
    let grows =
        |name, more| [&reads, &writes].iter().all(|results| fairness_grows(results, name) > more);
    let falls = |results: &[Vec<(&'static str, Measured)>; 3]| {
        let by = of(&results[0], "FIOPS").kept[0] - of(&results[2], "FIOPS").kept[0];
        by > rule("N-3.4", "more")
    };
    let profile = profile()?;
    let apart =
        six(NCQ).map(|variant| (variant.name, SerialSubject { merge_bytes: 0, ..variant.lock }));
    let unmerged = apart
        .into_iter()
        .filter(|(name, _)| random.contains(name))
        .map(|(name, lock)| Ok((name, measure(lock, &profile, &pair(1, setting)?, setting)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let merging_hurts = |name: &&str| {
        let (with, without) = (of(&reads[2], name), of(&unmerged, name));
        with.merged[0] > rule("N-3.5", "requests") * without.merged[0]
            && with.fairness < without.fairness - rule("N-3.5", "more")
    };
    let effect = |name: &&str| {
        let (with, without) = (of(&reads[2], name), of(&unmerged, name));
        format!(
            "{name} {:.1} requests a command, FV {:.2}; without {:.2}",
            with.merged[0], with.fairness, without.fairness
        )
    };
    let answers = vec![
        Answer {
            id: "N-3.5",
            measured: random.iter().map(effect).collect::<Vec<_>>().join("; "),
            holds: Some(random.iter().all(merging_hurts)),
            note: "T1 at 32".into(),
        },
        Answer {
            id: "N-3.1",
            measured: format!("BDR-S/BDR-R: {}", said(&random)),
            holds: Some(all(&random, &|m| {
                let more = 1.0 + rule("N-3.1", "more");
                m.kept[1] > more * m.kept[0] && m.got[1] > more * m.got[0]
            })),
            note: "".into(),
        },
        Answer {
            id: "N-3.2",
            measured: format!(
                "S over R in bytes: T1 {}; T2 {}; BDR-S/BDR-R: {}",
                list(&reads[2], &sequential, in_bytes),
                list(&writes[2], &sequential, in_bytes),
                said(&sequential)
            ),
            holds: Some(all(&sequential, &|m| m.got[0] >= rule("N-3.2", "least") * m.got[1])),
            note: "".into(),
        },
        Answer {
            id: "N-3.3",
            measured: format!("FV at 8, 16, 32: {}", by_length(&["BFQ", "BFQ-NA"])),
            holds: Some({
                let more = rule("N-3.3", "more");
                grows("BFQ", more) && grows("BFQ-NA", more)
            }),
            note: "".into(),
        },
        Answer {
            id: "N-3.4",
            measured: format!("FV at 8, 16, 32: {}", by_length(&["FIOPS"])),
            holds: Some(grows("FIOPS", rule("N-3.4", "more")) && falls(&reads) && falls(&writes)),
            note: "".into(),
        },
    ];
    let figures = vec![
        drawn(
            "n-3a",
            "Fig 3a: sequential beside random reads, NCQ 32",
            "BDR-S",
            "BDR-R",
            &reads[2],
        ),
        drawn(
            "n-3b",
            "Fig 3b: sequential beside random writes, NCQ 32",
            "BDR-S",
            "BDR-R",
            &writes[2],
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// The same drive, but writing takes no longer than reading: the buffer takes a write as soon as
/// the link brings it, and the dies keep up with the link.
fn symmetric() -> Result<Profile, String> {
    let (_, text) = fairq_device::profile::BUILT_IN
        .iter()
        .find(|(name, _)| *name == "intel-530")
        .expect("built in");
    let even = text
        .replace("program-us = 670", "program-us = 300")
        .replace("write-us = 17.2", "write-us = 5")
        .replace("write-fixed-us = 32", "write-fixed-us = 174");
    Profile::parse(&even).map_err(|error| error.to_string())
}

/// Figure 4.
pub(super) fn reads_and_writes(setting: Setting<'_>) -> Result<Outcome, String> {
    let (sequential, random) = (lengths(3, setting)?, at(4, NCQ, setting)?);
    let names = ["CFQ", "CFQ-NA", "BFQ", "BFQ-NA", "FlashFQ", "FIOPS"];
    let even = symmetric()?;
    let one = |variant: Variant| {
        Ok((variant.name, measure(variant.lock, &even, &pair(3, setting)?, setting)?))
    };
    let even: Vec<(&'static str, Measured)> =
        six(NCQ).into_iter().map(one).collect::<Result<_, String>>()?;
    let fv = |measured: &Measured| format!("{:.2}", measured.fairness);
    let better = |name: &&str| {
        let (before, after) = (of(&sequential[2], name).fairness, of(&even, name).fairness);
        after >= rule("N-4.3", "fair") && after >= before - rule("N-4.3", "less")
    };
    let answers = vec![
        Answer {
            id: "N-4.1",
            measured: format!("BDR-R/BDR-W: {}", list(&sequential[2], &names, both)),
            holds: Some(
                names.iter().all(|name| {
                    of(&sequential[2], name).kept[0] > of(&sequential[2], name).kept[1]
                }),
            ),
            note: "T3. Sequential writes are merged while they wait for the dies, so that each \
             that goes is larger: they gain by merging, where the paper's lose by it"
                .into(),
        },
        Answer {
            id: "N-4.2",
            measured: format!("FV at 8, 16, 32: {}", fairness_by_length(&sequential, &names)),
            holds: Some(
                names.iter().all(|name| -fairness_grows(&sequential, name) > rule("N-4.2", "more")),
            ),
            note: "T3; as in N-4.1 it is the writer that gains, and its merging is what a shorter \
             queue adds to"
                .into(),
        },
        Answer {
            id: "N-4.3",
            measured: format!("FV with equal times: {}", list(&even, &names, fv)),
            holds: Some(names.iter().all(better)),
            note: "T3 on a drive that writes as fast as it reads; what is left is merging".into(),
        },
    ];
    let figures = vec![
        drawn(
            "n-4a",
            "Fig 4a: sequential reads beside sequential writes, NCQ 32",
            "BDR-R",
            "BDR-W",
            &sequential[2],
        ),
        drawn(
            "n-4b",
            "Fig 4b: random reads beside random writes, NCQ 32",
            "BDR-R",
            "BDR-W",
            &random,
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 5.
pub(super) fn sizes(setting: Setting<'_>) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(5, setting)?, lengths(6, setting)?);
    let budgets = ["BFQ", "BFQ-NA"];
    let suffers = |m: &Measured| m.fairness < rule("N-5.1", "low") && m.kept[0] < m.kept[1];
    let show = |m: &Measured| format!("{} FV {:.2}", both(m), m.fairness);
    let rising = ["BFQ", "FlashFQ"];
    let answers = vec![
        Answer {
            id: "N-5.1",
            measured: format!(
                "T5 {}; T6 \
             {}",
                list(&reads[2], &budgets, show),
                list(&writes[2], &budgets, show)
            ),
            holds: Some(
                [&reads[2], &writes[2]]
                    .iter()
                    .all(|at| budgets.iter().all(|name| suffers(of(at, name)))),
            ),
            note: "BDR-4K/BDR-128K; counted in bytes BFQ is fair here: it chooses among all that \
             is staged, whatever its size"
                .into(),
        },
        Answer {
            id: "N-5.2",
            measured: format!(
                "T5 {}; T6 \
             {}",
                fairness_by_length(&reads, &rising),
                fairness_by_length(&writes, &rising)
            ),
            holds: Some([&reads, &writes].iter().all(|at| {
                rising.iter().all(|name| -fairness_grows(at, name) > rule("N-5.2", "more"))
            })),
            note: "FV at 8, 16, 32. BFQ does. FlashFQ gives both the same number of what reads \
             take one at a time, whatever the queue: many at a time large ones take \
                   more"
                .into(),
        },
    ];
    let figures = vec![
        drawn(
            "n-5a",
            "Fig 5a: reads of 4 KiB beside 128 KiB, NCQ 32",
            "BDR-4",
            "BDR-128",
            &reads[2],
        ),
        drawn(
            "n-5b",
            "Fig 5b: writes of 4 KiB beside 128 KiB, NCQ 32",
            "BDR-4",
            "BDR-128",
            &writes[2],
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}

/// Figure 6, and the paper's observations over all tests.
pub(super) fn intensities(setting: Setting<'_>) -> Result<Outcome, String> {
    let (reads, writes) = (lengths(7, setting)?, at(8, NCQ, setting)?);
    let deep = &reads[2];
    let show = |m: &Measured| format!("FV {:.2} DU {:.2}", m.fairness, m.utilization);
    let (waiting, hasty) = (["CFQ", "FlashFQ"], ["BFQ-NA", "CFQ-NA", "FIOPS"]);
    let fairer =
        waiting.iter().all(|a| hasty.iter().all(|b| of(deep, a).fairness > of(deep, b).fairness));
    let slower = waiting
        .iter()
        .all(|a| hasty.iter().all(|b| of(deep, a).utilization < of(deep, b).utilization));
    let (short, long) = (of(&reads[0], "FIOPS"), of(deep, "FIOPS"));
    let mut costs = Vec::new();
    for test in 1..=8 {
        let profile = profile()?;
        let du = |lock| {
            Ok::<f64, String>(measure(lock, &profile, &pair(test, setting)?, setting)?.utilization)
        };
        let cfq = SerialSubject::new(Scheduler::LinuxCfq, NCQ).merging();
        costs.push((du(cfq)?, du(cfq.without_waiting())?));
    }
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| costs.iter().map(of).sum::<f64>() / 8.0;
    let (with, without) = (mean(&|cost| cost.0), mean(&|cost| cost.1));
    let ours = {
        let profile = profile()?;
        let cfq = SerialSubject::new(Scheduler::Cfq, NCQ).merging();
        let fv = |test| {
            Ok::<f64, String>(measure(cfq, &profile, &pair(test, setting)?, setting)?.fairness)
        };
        [fv(7)?, fv(8)?]
    };
    let costs = costs
        .iter()
        .map(|(with, without)| format!("{with:.2}/{without:.2}"))
        .collect::<Vec<_>>()
        .join(" ");
    let answers = vec![
        Answer {
            id: "N-6.1",
            measured: format!("{}; {}", list(deep, &waiting, show), list(deep, &hasty, show)),
            holds: Some(fairer && slower),
            note:
                "T7. Our FlashFQ waits for the shallow tenant and lets the deep one send as many \
             bytes meanwhile: all that the one has alone and a fifth of what the other has"
                    .into(),
        },
        Answer {
            id: "N-6.2",
            measured: format!(
                "FV of CFQ: T7 {:.2}, T8 {:.2}; fairq's, which waits for no write, {:.2}, {:.2}",
                of(deep, "CFQ").fairness,
                of(&writes, "CFQ").fairness,
                ours[0],
                ours[1]
            ),
            holds: Some({
                let part = 1.0 - rule("N-6.2", "lower");
                of(&writes, "CFQ").fairness < part * of(deep, "CFQ").fairness
            }),
            note: "".into(),
        },
        Answer {
            id: "N-6.3",
            measured: fairness_by_length(&reads, &["FIOPS"]),
            holds: Some(-fairness_grows(&reads, "FIOPS") > rule("N-6.3", "more")),
            note: "FV at 8, 16, 32, T7".into(),
        },
        Answer {
            id: "N-O5",
            measured: format!(
                "FIOPS at 8: FV {:.2} DU {:.2}; at 32: FV {:.2} DU {:.2}",
                short.fairness, short.utilization, long.fairness, long.utilization
            ),
            holds: Some(
                short.fairness > long.fairness + rule("N-O5", "more")
                    && short.utilization < long.utilization - rule("N-O5", "more"),
            ),
            note: "T7".into(),
        },
        Answer {
            id: "N-O6",
            measured: format!("mean DU of CFQ/CFQ-NA {with:.3}/{without:.3}; of each test {costs}"),
            holds: Some(with < without - rule("N-O6", "lower")),
            note: "tests 1 to 8".into(),
        },
    ];
    let figures = vec![
        drawn(
            "n-6a",
            "Fig 6a: reads at depth 2 beside depth 32, NCQ 32",
            "BDR-NON",
            "BDR-INTEN",
            deep,
        ),
        drawn(
            "n-6b",
            "Fig 6b: writes at depth 2 beside depth 32, NCQ 32",
            "BDR-NON",
            "BDR-INTEN",
            &writes,
        ),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}
