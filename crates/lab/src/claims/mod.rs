//! The lab: the papers' claims, one by one, and what came out.
//!
//! A [`Row`] is a claim: what the paper says, and within what ours must be to say that it holds,
//! as `claims.toml` has them. An experiment answers some rows with one set of runs. Every run is
//! under all checks of what its policy promises: where a law is broken no claim of that experiment
//! holds, and the note says which law. Tolerances were written down with the claims; where one does
//! not hold, the row says so.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use fairq_sim::policies::{AnySubject, Kernel, LinuxBfqConfig, Scheduler, SerialSubject};
use fairq_sim::scenario::{Scenario, Tenant};
use fairq_sim::{Got, Run};
use serde::{Deserialize, Serialize};

use crate::parallel;

mod ablations;
mod band;
mod beside;
mod cpu;
mod d2fq;
mod device;
mod figure;
mod keys;
mod kyber;
mod mqfq;
mod nass;
mod parameters;
mod rules;
mod scalability;
mod seeds;
mod setting;
mod sweeps;

pub use ablations::{ABLATIONS, Ablated, EVIDENCE};
pub use band::{CONSTANTS, Elsewhere};
pub use figure::{Axis, Figure, Line, Shape, Table};
pub use rules::{Change, ROWS, Row, frozen};
use rules::{host_of, percents_said, rule};
pub use seeds::{Interval, Seeds};
pub(crate) use seeds::{told, verdict};
use setting::{Setting, Used, Varied};

use ablations::Ablation;
use band::Constant;

/// Where a claim comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paper {
    /// Woo et al., FAST 2021.
    D2fq,
    /// Hedayati et al., ATC 2019.
    Mqfq,
    /// Son, Oh and Ahn, JSTS 2020.
    Kyber,
    /// NASS, MSST 2020.
    Nass,
    /// None: what users ask.
    Beyond,
}

impl Paper {
    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Paper::D2fq => "d2fq",
            Paper::Mqfq => "mqfq",
            Paper::Kyber => "kyber",
            Paper::Nass => "nass",
            Paper::Beyond => "beyond",
        }
    }

    /// What it is called in a report.
    pub fn title(self) -> &'static str {
        match self {
            Paper::D2fq => "D2FQ (FAST 2021)",
            Paper::Mqfq => "MQFQ (ATC 2019)",
            Paper::Kyber => "Kyber-fairness (JSTS 2020)",
            Paper::Nass => "NASS (MSST 2020)",
            Paper::Beyond => "Beyond the papers",
        }
    }

    /// All of them.
    pub const ALL: [Paper; 5] =
        [Paper::D2fq, Paper::Mqfq, Paper::Kyber, Paper::Nass, Paper::Beyond];
}

/// What came out of a row.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The row.
    pub row: &'static Row,
    /// On each seed, in their order; nothing if some were not run.
    pub by_seed: Vec<OnSeed>,
    /// On the first seed where a constant is another, if that was asked for.
    pub band: Vec<Elsewhere>,
    /// On the first seed with what it may hang on taken away, if that was asked for.
    pub ablations: Vec<Ablated>,
}

/// What came out of a row on one seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OnSeed {
    /// The seed.
    pub seed: u64,
    /// Whether it holds; `None` if that cannot be said here.
    pub holds: Option<bool>,
    /// Ours; empty if there is none.
    pub measured: String,
    /// Why, or what else there is to know; nothing in a record where that is what the claim says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Some rows, and how they are answered.
struct Experiment {
    ids: &'static [&'static str],
    /// About how many seconds it takes on one core, for what is to be quick and for the time left.
    seconds: u32,
    run: fn(setting: Setting<'_>) -> Result<Outcome, String>,
}

impl Experiment {
    /// Whether one of its rows is a paper's, which has a verdict.
    fn decides(&self) -> bool {
        let is_ours = |row: &&Row| self.ids.contains(&row.id.as_str());
        ROWS.iter().filter(is_ours).any(|row| row.paper() != Paper::Beyond)
    }

    /// What is said of its rows where it could not be run, or broke a law.
    fn failed(&self, why: &str) -> Outcome {
        self.ids.iter().map(|id| Answer::failed(id, why)).collect::<Vec<_>>().into()
    }
}

/// What comes out of an experiment.
#[derive(Clone)]
struct Outcome {
    answers: Vec<Answer>,
    figures: Vec<Figure>,
    tables: Vec<Table>,
}

/// An answer to one row.
#[derive(Clone)]
struct Answer {
    id: &'static str,
    measured: String,
    /// `None` where it cannot be said, and the note tells why.
    holds: Option<bool>,
    note: Cow<'static, str>,
}

impl Answer {
    /// Of an experiment that could not be run, or broke a law.
    fn failed(id: &'static str, why: &str) -> Answer {
        Answer { id, measured: String::new(), holds: Some(false), note: why.to_owned().into() }
    }
}

impl From<Vec<Answer>> for Outcome {
    fn from(answers: Vec<Answer>) -> Outcome {
        Outcome { answers, figures: Vec::new(), tables: Vec::new() }
    }
}

/// All that came out: of the rows, and to be drawn.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Of each row, in the catalogue's order.
    pub rows: Vec<Finding>,
    /// Of the first seed, in the order of their names.
    pub figures: Vec<Figure>,
    /// Of the first seed, in the order of their names.
    pub tables: Vec<Table>,
}

/// What to run beside the rows themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// On which seeds.
    pub seeds: Seeds,
    /// Which part of the experiments.
    pub shard: Shard,
    /// On the first seed also with each constant of the models that is guessed or derived at both
    /// ends of what it could be.
    pub band: bool,
    /// On the first seed also with what rows that do not hold may hang on taken away.
    pub ablations: bool,
}

impl Extent {
    /// All experiments on one seed, and no more.
    pub const fn one(seed: u64) -> Extent {
        Extent { seeds: Seeds::one(seed), shard: Shard::WHOLE, band: false, ablations: false }
    }
}

/// Which part of the experiments to run: this one, from 0, of so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// This one.
    pub part: usize,
    /// Of so many.
    pub of: usize,
}

impl Shard {
    /// All of them.
    pub const WHOLE: Shard = Shard { part: 0, of: 1 };
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Experiments done, each on each seed.
    pub done: usize,
    /// Of so many.
    pub of: usize,
    /// How long what is done takes, roughly, in seconds on one core.
    pub seconds: u32,
    /// And everything.
    pub of_seconds: u32,
}

/// An experiment that takes longer is not run with the fast ones.
const FAST_SECONDS: u32 = 3;

fn is_fast(row: &Row) -> bool {
    experiments().any(|experiment| {
        experiment.seconds <= FAST_SECONDS && experiment.ids.contains(&row.id.as_str())
    })
}

fn experiments() -> impl Iterator<Item = &'static Experiment> {
    [
        device::EXPERIMENTS,
        d2fq::EXPERIMENTS,
        mqfq::EXPERIMENTS,
        parameters::EXPERIMENTS,
        beside::EXPERIMENTS,
        kyber::EXPERIMENTS,
        nass::EXPERIMENTS,
        cpu::EXPERIMENTS,
        scalability::EXPERIMENTS,
        sweeps::EXPERIMENTS,
    ]
    .into_iter()
    .flatten()
}

/// The rows that a name stands for: itself, or all that go on with a part (D-11 is D-11a.1 and its
/// like); `all` is all, `fast` all whose experiments take seconds.
pub fn named(name: &str) -> Vec<&'static Row> {
    let goes_on = |id: &str| {
        let rest = id
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name))
            .map(|start| &id[start.len()..]);
        // D-1 does not stand for D-11.
        let digit = |c: char| c.is_ascii_digit();
        rest.is_some_and(|rest| !(name.ends_with(digit) && rest.starts_with(digit)))
    };
    let stands = |row: &&Row| name == "all" || (name == "fast" && is_fast(row)) || goes_on(&row.id);
    ROWS.iter().filter(stands).collect()
}

/// Answers rows on each of the seeds, in a number of threads on which the answers do not depend.
/// `on` is told how far it is; if it answers `false`, no other experiment is begun. A shard answers
/// only the rows of its own experiments.
pub fn answer(
    rows: &[&'static Row],
    extent: Extent,
    jobs: usize,
    on: impl Fn(Progress) -> bool + Sync,
) -> Findings {
    let Extent { seeds, shard, band, ablations } = extent;
    let wanted = |experiment: &&Experiment| {
        experiment.ids.iter().any(|id| rows.iter().any(|row| row.id == *id))
    };
    let all = experiments().filter(wanted).enumerate();
    let mine: Vec<&Experiment> = all
        .filter(|(number, _)| number % shard.of == shard.part)
        .map(|(_, experiment)| experiment)
        .collect();
    let is_asked = |id: &str| rows.iter().any(|row| row.id == id);
    let ablations_of = |of: &'static Experiment| {
        let is_of = move |ablation: &&'static Ablation| {
            of.ids.iter().any(|id| ablation.is_of(id) && is_asked(id))
        };
        ABLATIONS.iter().filter(move |one| ablations && one.is_run()).filter(is_of)
    };
    // By seed and then by experiment: `outcomes` keeps that order, so answers of a row stand by
    // seed.
    let planned = |seed| {
        let one = move |&of: &&'static Experiment| Planned {
            of,
            seed,
            varied: Varied::Nothing,
            usual: None,
            again: seed == seeds.first
                && (band && of.decides() || ablations_of(of).next().is_some()),
        };
        mine.iter().map(one)
    };
    let usual = outcomes(seeds.all().flat_map(planned).collect(), jobs, &on);
    let mut found: BTreeMap<&str, Vec<OnSeed>> = BTreeMap::new();
    let (mut figures, mut tables, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (planned, used, outcome) in &usual {
        let Planned { of, seed, again, .. } = *planned;
        if again {
            let ends = |constant: &'static Constant| {
                constant.ends().map(move |end| Varied::Constant(constant, end))
            };
            let constants = if band { used.constants() } else { Vec::new() };
            let varied = constants.into_iter().flat_map(ends);
            let varied = varied.chain(ablations_of(of).map(Varied::Ablation));
            let one = |varied| Planned { varied, usual: Some(used), again: false, ..*planned };
            others.extend(varied.map(one));
        }
        let outcome = outcome.as_ref().map_or_else(|why| of.failed(why), Outcome::clone);
        if seed == seeds.first {
            figures.extend(outcome.figures);
            tables.extend(outcome.tables);
        }
        for Answer { id, measured, holds, note } in outcome.answers {
            let note = note.into_owned();
            found.entry(id).or_default().push(OnSeed { seed, holds, measured, note });
        }
    }
    figures.sort_by_key(|figure| figure.id);
    tables.sort_by_key(|table| table.id);
    let mut elsewhere: BTreeMap<&str, Vec<Elsewhere>> = BTreeMap::new();
    let mut ablated: BTreeMap<&str, Vec<Ablated>> = BTreeMap::new();
    for (Planned { of, varied, .. }, _, outcome) in outcomes(others, jobs, &on) {
        for Answer { id, measured, holds, note } in
            outcome.unwrap_or_else(|why| of.failed(&why)).answers
        {
            match varied {
                Varied::Nothing => {}
                Varied::Constant(constant, end) => {
                    let (constant, end) = (constant.name.clone(), end.to_string());
                    let one = Elsewhere { constant, end, holds, measured };
                    elsewhere.entry(id).or_default().push(one);
                }
                Varied::Ablation(ablation) if ablation.is_of(id) => {
                    // Where it could not be run, or broke a law, the note says why.
                    let measured = if measured.is_empty() { note.into_owned() } else { measured };
                    let one = Ablated { what: ablation.what.clone(), holds, measured };
                    ablated.entry(id).or_default().push(one);
                }
                Varied::Ablation(_) => {}
            }
        }
    }
    // Rows without an experiment are told by the first part, so that all parts together have each
    // row.
    let ours = |row: &&&'static Row| {
        shard.part == 0 || mine.iter().any(|experiment| experiment.ids.contains(&row.id.as_str()))
    };
    let others = |row: &&&'static Row| {
        !experiments().any(|experiment| {
            experiment.ids.contains(&row.id.as_str())
                && !mine.iter().any(|mine| std::ptr::eq(*mine, experiment))
        })
    };
    let finding = |row: &&'static Row| {
        let by_seed = found.remove(row.id.as_str()).unwrap_or_default();
        // Of fewer seeds than were asked for nothing is said.
        let by_seed = if by_seed.len() == seeds.count { by_seed } else { Vec::new() };
        let band = elsewhere.remove(row.id.as_str()).unwrap_or_default();
        let ablations = ablated.remove(row.id.as_str()).unwrap_or_default();
        Finding { row, by_seed, band, ablations }
    };
    Findings {
        rows: rows.iter().filter(ours).filter(others).map(finding).collect(),
        figures,
        tables,
    }
}

/// An experiment that is to be run: on which seed, and with what changed.
#[derive(Clone, Copy)]
struct Planned<'a> {
    of: &'static Experiment,
    seed: u64,
    varied: Varied,
    /// What it ran with nothing changed.
    usual: Option<&'a Used>,
    /// Whether it will be run again with something changed.
    again: bool,
}

/// Runs all that is planned; gives what it ran on and what came out, in the order of the plan.
fn outcomes<'a>(
    plan: Vec<Planned<'a>>,
    jobs: usize,
    on: &(impl Fn(Progress) -> bool + Sync),
) -> Vec<(Planned<'a>, Used, Result<Outcome, String>)> {
    let mut order: Vec<usize> = (0..plan.len()).collect();
    // The longest first: then none of them runs alone at the end.
    order.sort_by_key(|&number| std::cmp::Reverse(plan[number].of.seconds));
    let of_seconds = plan.iter().map(|planned| planned.of.seconds).sum();
    let (of, ran) = (plan.len(), AtomicU32::new(0));
    let work = |number: usize| {
        let planned = plan[order[number]];
        let used = Used::default();
        let Planned { of, seed, varied, usual, again } = planned;
        let mut outcome = (of.run)(Setting { seed, varied, used: &used, usual });
        if let Varied::Ablation(ablation) = varied
            && used.has_no_runs()
            && !ablation.is_of_experiment()
        {
            outcome = Err("it changes nothing that is run".into());
        }
        let used = if again { used } else { used.without_runs() };
        ran.fetch_add(planned.of.seconds, Ordering::Relaxed);
        (order[number], (planned, used, outcome))
    };
    let progress =
        |done| on(Progress { done, of, seconds: ran.load(Ordering::Relaxed), of_seconds });
    let outcomes = parallel::each(of, jobs, progress, work);
    let mut outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Runs a scenario under a policy; a broken law is an error.
fn go(policy: AnySubject, scenario: &Scenario, setting: Setting<'_>) -> Result<Run, String> {
    let run = setting.run(policy, scenario)?;
    match &run.violation {
        None => Ok(run),
        Some(violation) => Err(format!("under {policy:?} a law is broken: {violation}")),
    }
}

/// Linux keeps no request back for a full drive: more than anybody here sends.
const LINUX_SLOTS: u32 = 8192;

/// The `max_budget` of BFQ that D2FQ's authors set, in sectors.
const D2FQ_BUDGET: u64 = 256;

/// Linux's BFQ without control groups; a budget of 0 is the drive's.
fn linux_bfq(kernel: Kernel, budget: u64) -> SerialSubject {
    let bfq = LinuxBfqConfig {
        kernel,
        processes: 0,
        budget,
        cycles: LinuxBfqConfig::CYCLES,
        low_latency: false,
    };
    SerialSubject::new(Scheduler::LinuxBfq(bfq), LINUX_SLOTS)
}

/// Runs a scenario under Linux's BFQ: whom it serves in turn are not the tenants but their threads,
/// since each has a queue of its own, and a tenant's weight is what its threads have together. So
/// tenants of one weight and different numbers of threads have queues of different weights, and
/// there BFQ waits for the queue in service. What comes out is of the tenants again.
fn go_by_thread(
    bfq: SerialSubject,
    scenario: &Scenario,
    setting: Setting<'_>,
) -> Result<Run, String> {
    let all = scenario.tenants.iter().map(|tenant| tenant.threads.len() as u64);
    let common = all.fold(1, |common, threads| common / gcd(common, threads) * threads);
    let each = |tenant: &Tenant| u64::from(tenant.weight) * (common / tenant.threads.len() as u64);
    let each = |tenant: &Tenant| match setting.asks_for("each-thread-has-the-weight") {
        true => u64::from(tenant.weight),
        false => each(tenant),
    };
    // Weights are whole numbers up to 10,000: the least ones that are in this proportion.
    let least = scenario.tenants.iter().map(each).fold(0, gcd);
    let mut tenants = Vec::new();
    for tenant in &scenario.tenants {
        let weight = u16::try_from(each(tenant) / least)
            .map_err(|_| format!("{} has too many threads", tenant.name))?;
        let alone = |&port: &usize| Tenant { weight, threads: vec![port], ..tenant.clone() };
        tenants.extend(tenant.threads.iter().map(alone));
    }
    let by_thread = Scenario { tenants, ..scenario.clone() };
    let mut run = go(AnySubject::Serial(bfq), &by_thread, setting)?;
    let mut threads = std::mem::take(&mut run.tenants).into_iter();
    let together = |tenant: &Tenant| threads.by_ref().take(tenant.threads.len()).reduce(Got::with);
    run.tenants = scenario.tenants.iter().filter_map(together).collect();
    Ok(run)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Runs a scenario without checks, for sweeps that are too large for them.
fn measured(policy: AnySubject, scenario: &Scenario, setting: Setting<'_>) -> Result<Run, String> {
    let scenario = setting.applied(scenario)?;
    setting.policy(policy, &scenario)?.measure(&scenario).map_err(|error| error.to_string())
}

/// Jain's index: 1 when all are equal, 1/n when one has everything.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        sum += value;
        squares += value * value;
    }
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

/// The verdict where a paper may be read in several ways: it holds if it does in all, it does not
/// if it does in none, and else the paper does not say what decides it.
fn agreed(readings: &[bool]) -> Option<bool> {
    let first = *readings.first()?;
    readings.iter().all(|&reading| reading == first).then_some(first)
}

/// A part of a hundred.
fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Whether a value is what it should be, within a part of that.
fn near(value: f64, should_be: f64, part: f64) -> bool {
    (value / should_be - 1.0).abs() <= part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_experiments_know_each_other() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.id != row.id), "{} is there twice", row.id);
            let answers = experiments()
                .filter(|experiment| experiment.ids.contains(&row.id.as_str()))
                .count();
            assert_eq!(answers, 1, "experiments for {}", row.id);
        }
        for id in experiments().flat_map(|experiment| experiment.ids) {
            assert!(ROWS.iter().any(|row| row.id == *id), "{id} is in no row");
        }
    }

    #[test]
    fn readings_that_disagree_decide_nothing() {
        assert_eq!(agreed(&[true, true]), Some(true));
        assert_eq!(agreed(&[false, false]), Some(false));
        assert_eq!((agreed(&[true, false]), agreed(&[])), (None, None));
    }

    #[test]
    fn a_name_stands_for_what_goes_on_with_a_part() {
        let ids = |name| named(name).iter().map(|row| row.id.as_str()).collect::<Vec<_>>();
        assert_eq!(ids("m-t1"), ["M-T1"]);
        assert_eq!(ids("D-3.1"), ["D-3.1"]);
        assert_eq!(ids("M-5a"), ["M-5a.1", "M-5a.2"]);
        assert_eq!(ids("M-T"), ["M-T1", "M-T2", "M-T3", "M-T4"]);
        assert!(ids("D-1").is_empty() && ids("Y").is_empty());
        assert_eq!(ids("all").len(), ROWS.len());
    }

    #[test]
    fn more_threads_give_the_same() {
        let rows = [named("D-3.1"), named("M-T1")].concat();
        let two = Seeds { first: 3, count: 2 };
        let table = |jobs| {
            format!("{:?}", answer(&rows, Extent { seeds: two, ..Extent::one(3) }, jobs, |_| true))
        };
        assert_eq!(table(1), table(3));
    }

    #[test]
    fn each_row_is_decided_on_each_seed_as_on_that_seed_alone() {
        let rows = named("M-T1");
        let on = |first, count| {
            let extent = Extent { seeds: Seeds { first, count }, ..Extent::one(first) };
            answer(&rows, extent, 2, |_| true).rows.remove(0).by_seed
        };
        let both = on(3, 2);
        assert_eq!(both, [on(3, 1), on(4, 1)].concat());
        assert_ne!(both[0].measured, both[1].measured, "another seed, other requests");
    }

    #[test]
    fn shards_are_the_whole_and_each_row_is_in_one() {
        let rows = [named("D-3.1"), named("M-T1"), named("M-5c")].concat();
        let ids = |shard| {
            answer(&rows, Extent { shard, ..Extent::one(1) }, 2, |_| true)
                .rows
                .iter()
                .map(|f| f.row.id.clone())
                .collect::<Vec<_>>()
        };
        let mut parts = [0, 1].map(|part| ids(Shard { part, of: 2 })).concat();
        parts.sort_unstable();
        assert_eq!(parts, ["D-3.1", "M-5c.1", "M-T1"]);
    }

    #[test]
    #[ignore = "a step of tests/long: ignored"]
    fn a_row_is_decided_at_both_ends_of_each_constant_that_can_matter() {
        let extent = Extent { band: true, ..Extent::one(1) };
        let found = answer(&named("M-P.2"), extent, 2, |_| true).rows.remove(0);
        let names: Vec<&str> = found.band.iter().map(|one| one.constant.as_str()).collect();
        assert!(names.contains(&"controller, each command") && names.contains(&"page"));
        assert!(!names.contains(&"suspending a program"), "{names:?}");
        // Commands that take a tenth less are more than the row allows, a tenth more are not.
        let each = |one: &&Elsewhere| one.constant == "controller, each command";
        let rates: Vec<_> = found.band.iter().filter(each).map(|one| one.holds).collect();
        assert_eq!((found.by_seed[0].holds, rates), (Some(true), vec![Some(false), Some(true)]));
    }

    #[test]
    fn a_row_is_run_again_with_what_it_may_hang_on_taken_away() {
        let extent = Extent { ablations: true, ..Extent::one(1) };
        let found = answer(&named("D-16"), extent, 2, |_| true).rows;
        let of = |id: &str| found.iter().find(|finding| finding.row.id == id).unwrap();
        let [later] = &of("D-16.3").ablations[..] else { panic!("{:?}", of("D-16.3")) };
        assert!(
            later.what.contains("13 us later")
                && later.of("D-16.3").is_some()
                && later.of("D-2.3").is_none()
        );
        assert_eq!((of("D-16.3").by_seed[0].holds, later.holds), (Some(false), Some(true)));
        // Of the same experiment, and not of the ablation's rows.
        assert!(of("D-16.1").ablations.is_empty());
    }

    #[test]
    fn it_stops_when_told_to() {
        let findings = answer(&named("D-3.1"), Extent::one(1), 1, |_| false);
        assert!(findings.rows[0].by_seed.is_empty());
    }
}
