//! Figures 12 to 14: Filebench's servers, Spark beside OLTP, and the cost of NASS.

use fairq_classic::nass::NassConfig;
use fairq_sim::Run;
use fairq_sim::host::Machine;
use fairq_sim::policies::{AnySubject, Scheduler, SerialSubject};
use fairq_sim::proxy::Proxy;
use fairq_sim::scenario::{SECOND, Scenario, Tenant};

use super::{
    BFQ, Both, CHANGES, FOUR, Measured, NCQ, Pairs, Said, both, du, fv, named, profile, scenario,
    with_nass,
};
use crate::claims::{Answer, Axis, Figure, Line, Outcome, Setting, go, jain, percents_said, rule};

/// Table IV: file, mail and database servers of Filebench.
fn servers(setting: Setting<'_>) -> Result<[Proxy; 3], String> {
    let proxy = |name| setting.proxy(name);
    Ok([proxy("file-server")?, proxy("mail-server")?, proxy("database")?])
}

/// Figure 12.
pub(super) fn filebench(setting: Setting<'_>) -> Result<Outcome, String> {
    use Scheduler::{Fiops, FlashFq, LinuxCfq as Cfq};
    let all = Both::new(&servers(setting)?, NassConfig::default(), setting)?;
    let pairs = &all.strict;
    let dominates = |m: &Measured| m.kept[0] > m.kept[1] && m.kept[0] > m.kept[2];
    let gain = |pairs: &Pairs, server: usize| pairs.gain(BFQ, |m| m.kept[server]);
    let (mail, db) = (gain(pairs, 1), gain(pairs, 2));
    let servers_of_bfq = |pairs: &Pairs| {
        format!(
            "mail {:+.0} %, DB {:+.0} %, FV {:.2}",
            100.0 * gain(pairs, 1),
            100.0 * gain(pairs, 2),
            pairs.of(BFQ).1.fairness
        )
    };
    let fiops = pairs.gain(Fiops, du);
    let before = pairs.0.iter().map(|(one, before, _)| format!("{} {}", named(*one), both(before)));
    let answers = vec![
        Answer {
            id: "N-12.1",
            measured: all.gains(&[BFQ, Cfq, FlashFq, Fiops], fv),
            holds: Some(FOUR.iter().all(|&one| pairs.gain(one, fv) >= rule("N-12.1", "more"))),
            note: format!(
                "FV, {CHANGES}. FIOPS counts requests, and is fair without it. The \
             limits are in requests, a third of 32 each at first, which binds the database's 64 \
                   threads of 4 KiB; and NASS evens out channels"
            )
            .into(),
        },
        Answer {
            id: "N-12.2",
            measured: before.collect::<Vec<_>>().join(", "),
            holds: Some(pairs.0.iter().all(|(_, before, _)| dominates(before))),
            note: "BDR of file, mail and database server; the applications are proxies".into(),
        },
        Answer {
            id: "N-12.3",
            measured: format!("{}; ours {}", servers_of_bfq(pairs), servers_of_bfq(&all.ours)),
            holds: Some(mail.min(db) >= rule("N-12.3", "more")),
            note: "BFQ's BDRs with NASS; without it the mail server, whose eight threads wait for \
             their answers, gets next to nothing here"
                .into(),
        },
        Answer {
            id: "N-12.4",
            measured: all.gains(&[BFQ, FlashFq, Cfq, Fiops], du),
            holds: Some(
                [BFQ, FlashFq, Cfq].iter().all(|&one| pairs.gain(one, du) > 0.0)
                    && (-rule("N-12.4", "slight")..=0.0).contains(&fiops),
            ),
            note: format!(
                "DU, {CHANGES}. What the proxies compute between requests, 10 us, is a \
             guess"
            )
            .into(),
        },
    ];
    let of_bfq = percents_said("N-12.3");
    let figure = with_nass(
        "n-12",
        "Fig 12: three servers of Filebench",
        &["BDR-F", "BDR-M", "BDR-D"],
        &pairs.groups(),
        [
            Said::new("BDR-M", |m| m.kept[1], &[BFQ], &of_bfq[..1]),
            Said::new("BDR-D", |m| m.kept[2], &[BFQ], &of_bfq[1..]),
            Said::new("FV", fv, &[BFQ, Cfq, FlashFq, Fiops], &percents_said("N-12.1")),
            Said::new("DU", du, &[BFQ, FlashFq, Cfq], &percents_said("N-12.4")),
        ],
    );
    Ok(Outcome { answers, figures: vec![figure], tables: Vec::new() })
}

/// Hardware threads of the authors' machine: four processors of four cores.
const CORES: f64 = 16.0;

/// Figure 14: Filebench's servers on four cores of that machine, where the schedulers' code under
/// their lock takes time by steps ([`fairq_sim::policies::SerialSubject`]).
pub(super) fn overhead(setting: Setting<'_>) -> Result<Outcome, String> {
    let mut scenario = scenario(&profile()?, &servers(setting)?);
    scenario.host = Some(Machine::FOUR_QUAD_CORES.host(scenario.ports));
    let used = |lock| {
        let run = go(AnySubject::Serial(lock), &scenario, setting)?;
        Ok::<_, String>((100.0 * run.cpu() * scenario.ports as f64 / CORES, run.cpu_us()))
    };
    let (mut said, mut more) = (Vec::new(), Vec::new());
    for scheduler in [Scheduler::LinuxCfq, Scheduler::Fiops] {
        let lock = SerialSubject::new(scheduler, NCQ).merging();
        let nass = NassConfig::default();
        let (before, request) = used(lock)?;
        let (after, with) = used(lock.limited_strictly(nass))?;
        let (ours, our_request) = used(lock.limited(nass))?;
        more.push(after - before);
        said.push(format!(
            "{} {before:.2} to {after:.2} % ({:+.2}), {request:.2} to {with:.2} us a request, ours \
             {:+.2}, {our_request:.2} us",
            named(scheduler),
            after - before,
            ours - before
        ));
    }
    Ok(vec![Answer {
        id: "N-14.1",
        measured: said.join("; "),
        holds: Some({
            let points = rule("N-14.1", "points");
            (more[0] - rule("N-14.1", "cfq")).abs() <= points
                && (more[1] - rule("N-14.1", "fiops")).abs() <= points
        }),
        note: "of all 16 cores; without what Filebench itself takes. Each call of a scheduler and \
         of NASS \
               takes what a verb takes, 40 cycles; a request more is more work too"
            .into(),
    }]
    .into())
}

/// Figure 13: OLTP from the beginning, Sort's map phase from 12 to 34 s, Wordcount's from 20 to 39
/// s. Each keeps eight requests outstanding; Sort is I/O-intensive, Wordcount computes in between.
fn applications(setting: Setting<'_>) -> Result<[Tenant; 3], String> {
    let tenant =
        |name, port, (threads, job): Proxy| Tenant::new(name, 100, vec![port; threads], job);
    let mut tenants = [
        tenant("OLTP", 0, setting.proxy("oltp")?),
        tenant("Sort", 1, setting.proxy("sort")?),
        tenant("Wordcount", 2, setting.proxy("wordcount")?),
    ];
    tenants[1].lives = vec![(12 * SECOND, 34 * SECOND)];
    tenants[2].lives = vec![(20 * SECOND, 39 * SECOND)];
    Ok(tenants)
}

pub(super) fn spark(setting: Setting<'_>) -> Result<Outcome, String> {
    let (profile, applications) = (profile()?, applications(setting)?);
    let over = |tenants: Vec<Tenant>, seconds: u64| {
        let mut scenario = Scenario::new(profile.clone(), 3, tenants, seconds * SECOND);
        scenario.series_ns = Some(SECOND);
        scenario
    };
    let cfq = SerialSubject::new(Scheduler::LinuxCfq, NCQ).merging();
    let mut alone = Vec::new();
    for tenant in applications.clone() {
        // Alone the tenant is active all the time, so its bandwidth does not depend on when it is.
        let tenant = Tenant { lives: vec![(0, u64::MAX)], ..tenant };
        alone.push(go(AnySubject::Serial(cfq), &over(vec![tenant], 4), setting)?.bandwidth());
    }
    let run = |lock| go(AnySubject::Serial(lock), &over(applications.to_vec(), 40), setting);
    let nass = NassConfig::default();
    let (plain, limited) = (run(cfq)?, run(cfq.limited_strictly(nass))?);
    let ours = run(cfq.limited(nass))?;
    // The part that each active tenant keeps in a second.
    let present = |second: u64| {
        let second = second * SECOND;
        applications
            .each_ref()
            .map(|tenant| tenant.lives.iter().any(|&(a, b)| (a..b).contains(&second)))
    };
    let kept = |run: &Run, second: u64| -> Vec<f64> {
        let each = run.tenants.iter().zip(&alone).zip(present(second));
        each.filter(|(_, is_there)| *is_there)
            .map(|((got, alone), _)| got.series[second as usize] as f64 / alone)
            .collect()
    };
    let mean = |run: &Run, seconds: std::ops::Range<u64>, value: &dyn Fn(&[f64]) -> f64| {
        let values = seconds.map(|second| value(&kept(run, second))).collect::<Vec<f64>>();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let (index, sum) =
        (|kept: &[f64]| jain(kept.iter().copied()), |kept: &[f64]| kept.iter().sum::<f64>());
    let phases = [13..20, 20..34, 35..39].map(|seconds| mean(&plain, seconds, &index));
    let oltp = mean(&plain, 13..20, &|kept| kept[0]);
    let least = |run: &Run| (13..39).map(|second| index(&kept(run, second))).fold(1.0, f64::min);
    let gain = |run: &Run| mean(run, 13..39, &sum) / mean(&plain, 13..39, &sum) - 1.0;
    let line = |name: &str, run: &Run, value: &dyn Fn(&[f64]) -> f64| {
        Line::new(name, (12..39).map(|second| (second as f64, value(&kept(run, second)))).collect())
    };
    let drawn = |id, title: &str, label, value: &dyn Fn(&[f64]) -> f64, said| {
        let lines = vec![
            line("CFQ", &plain, value),
            line("CFQ(N)", &limited, value),
            line("CFQ, our NASS", &ours, value),
            Line::of_paper("CFQ(N)", said),
        ];
        let axes = [Axis::linear("s"), Axis::linear(label)];
        Figure::lines(id, &format!("NASS, {title}"), axes, lines)
    };
    // The paper's values: always above `above`; and the stated gain over CFQ while others are
    // beside OLTP.
    let above = [16.0, 27.0, 37.0].map(|at_s| (at_s, rule("N-13.2", "above"))).to_vec();
    let gains = percents_said("N-13.3").into_iter();
    let more = gains.map(|gain| (26.0, (1.0 + gain) * mean(&plain, 13..39, &sum))).collect();
    let answers = vec![
        Answer {
            id: "N-13.1",
            measured: format!(
                "FV {:.2}, {:.2}, {:.2}; OLTP keeps {:.0} %",
                phases[0],
                phases[1],
                phases[2],
                100.0 * oltp
            ),
            holds: Some(
                oltp < rule("N-13.1", "oltp")
                    && phases.is_sorted()
                    && phases[2] >= rule("N-13.1", "high"),
            ),
            note: "12 to 20, 20 to 34, 35 to 39 s; the applications are proxies".into(),
        },
        Answer {
            id: "N-13.2",
            measured: format!("at least {:.2}; ours {:.2}", least(&limited), least(&ours)),
            holds: Some(least(&limited) > rule("N-13.2", "above")),
            note: "each second from 13 to 39; while Sort's requests of 800 KiB are on the drive \
             OLTP's wait behind them, whatever their number"
                .into(),
        },
        Answer {
            id: "N-13.3",
            measured: format!(
                "{:+.0} %; ours {:+.0} %",
                100.0 * gain(&limited),
                100.0 * gain(&ours)
            ),
            holds: Some(gain(&limited) > 0.0 && gain(&limited) <= rule("N-13.3", "most")),
            note: "mean DU from 13 to 39 s; whether DU dips when bursts end is in the \
             figure"
                .into(),
        },
    ];
    let figures = vec![
        drawn("n-13a", "Fig 13a: FV", "FV", &index, above),
        drawn("n-13b", "Fig 13b: DU", "DU", &sum, more),
    ];
    Ok(Outcome { answers, figures, tables: Vec::new() })
}
