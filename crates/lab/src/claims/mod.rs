//! The lab: the papers' claims, one by one, and their results.
//!
//! A [`Row`] is a claim of `claims.toml`: the paper's statement, and the tolerance within which our
//! result must be for the claim to hold. An [experiment] of `experiments/*.toml` decides some rows
//! with one set of runs. In every run all checks of the policy's promises are active: if a law is
//! broken, no claim of that experiment holds, and the note names the law. Tolerances were fixed
//! together with the claims, before any run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use fairq_sim::policies::{AnySubject, SerialSubject};
use fairq_sim::scenario::{Scenario, Tenant};
use fairq_sim::{Got, Run};
use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Table};
use crate::parallel;

mod ablations;
mod band;
mod experiment;
mod expression;
mod functions;
mod keys;
mod measures;
mod planned;
mod rules;
mod scope;
mod seeds;
mod setting;
mod values;

pub(crate) use ablations::{ABLATIONS, Ablated, EVIDENCE};
pub(crate) use band::{CONSTANTS, Elsewhere};
pub(crate) use rules::{ROWS, Row, frozen};
pub(crate) use seeds::{Interval, Seeds};
pub(crate) use seeds::{told, verdict};
use setting::{Setting, Used, Varied};

use ablations::Ablation;
use band::Constant;
use experiment::{EXPERIMENTS, Experiment};

/// The source of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Paper {
    /// Woo et al., FAST 2021.
    D2fq,
    /// Hedayati et al., ATC 2019.
    Mqfq,
    /// Son, Oh and Ahn, JSTS 2020.
    Kyber,
    /// NASS, MSST 2020.
    Nass,
    /// No paper: questions of users.
    Beyond,
}

impl Paper {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Paper::D2fq => "d2fq",
            Paper::Mqfq => "mqfq",
            Paper::Kyber => "kyber",
            Paper::Nass => "nass",
            Paper::Beyond => "beyond",
        }
    }

    /// Its title in a report.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Paper::D2fq => "D2FQ (FAST 2021)",
            Paper::Mqfq => "MQFQ (ATC 2019)",
            Paper::Kyber => "Kyber-fairness (JSTS 2020)",
            Paper::Nass => "NASS (MSST 2020)",
            Paper::Beyond => "Beyond the papers",
        }
    }

    /// All papers, in the order of reports.
    pub(crate) const ALL: [Paper; 5] =
        [Paper::D2fq, Paper::Mqfq, Paper::Kyber, Paper::Nass, Paper::Beyond];
}

/// The result of a row.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The row.
    pub(crate) row: &'static Row,
    /// Results by seed, in the seeds' order; empty if some seeds were not run.
    pub(crate) by_seed: Vec<OnSeed>,
    /// Results on the first seed with other values of constants, with `--band`.
    pub(crate) band: Vec<Elsewhere>,
    /// Results on the first seed with ablations, with `--ablations`.
    pub(crate) ablations: Vec<Ablated>,
}

/// The result of a row on one seed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OnSeed {
    /// Seed of the run.
    pub(crate) seed: u64,
    /// Whether the row holds; `None` if the run cannot decide it.
    pub(crate) holds: Option<bool>,
    /// The measurement; empty if there is none.
    pub(crate) measured: String,
    /// The reason, or other remarks; left out of a record if it equals the claim's note.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

impl Experiment {
    fn has(&self, id: &str) -> bool {
        self.ids().any(|of| of == id)
    }

    /// Whether one of its rows is a paper's, and so has a verdict.
    fn decides(&self) -> bool {
        ROWS.iter().any(|row| self.has(&row.id) && row.paper() != Paper::Beyond)
    }

    /// The verdicts of its rows if a run failed or broke a law.
    fn failed(&'static self, why: &str) -> Outcome {
        let failed =
            |id| Answer { id, measured: String::new(), holds: Some(false), note: why.to_owned() };
        let answers = self.ids().map(failed).collect();
        Outcome { answers, figures: Vec::new(), tables: Vec::new() }
    }
}

/// The results of an experiment.
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
    /// `None` if the run cannot decide the row; the note gives the reason.
    holds: Option<bool>,
    note: String,
}

/// All results: the rows', and figures and tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Of each row, in the catalogue's order.
    pub(crate) rows: Vec<Finding>,
    /// Figures of the first seed, by name.
    pub(crate) figures: Vec<Figure>,
    /// Tables of the first seed, by name.
    pub(crate) tables: Vec<Table>,
}

/// The runs to make beside the usual ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The seeds to run on.
    pub(crate) seeds: Seeds,
    /// Also run each constant that is guessed or derived at both ends of its range, on the first
    /// seed.
    pub(crate) band: bool,
    /// Also run ablations of rows that do not hold, on the first seed.
    pub(crate) ablations: bool,
}

#[cfg(test)]
impl Extent {
    /// All experiments on one seed, without band and ablations.
    pub(crate) const fn one(seed: u64) -> Extent {
        Extent { seeds: Seeds::one(seed), band: false, ablations: false }
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Number of experiments done; each seed counts separately.
    pub(crate) done: usize,
    /// Number of experiments in all.
    pub(crate) of: usize,
    /// Approximate duration of the finished experiments, in seconds on one core.
    pub(crate) seconds: u32,
    /// Approximate duration of all experiments, in the same unit.
    pub(crate) of_seconds: u32,
}

/// An experiment that takes longer is not run with the fast ones.
const FAST_SECONDS: u32 = 3;

fn is_fast(row: &Row) -> bool {
    EXPERIMENTS.iter().any(|of| of.seconds <= FAST_SECONDS && of.has(&row.id))
}

/// The rows that a name selects: the row itself, or all rows whose names begin with it (D-11
/// selects D-11a.1 and others). `all` selects every row, `fast` the rows whose experiments take
/// seconds.
pub(crate) fn named(name: &str) -> Vec<&'static Row> {
    let goes_on = |id: &str| {
        let rest = id
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name))
            .map(|start| &id[start.len()..]);
        // D-1 does not select D-11.
        let digit = |c: char| c.is_ascii_digit();
        rest.is_some_and(|rest| !(name.ends_with(digit) && rest.starts_with(digit)))
    };
    let stands = |row: &&Row| name == "all" || (name == "fast" && is_fast(row)) || goes_on(&row.id);
    ROWS.iter().filter(stands).collect()
}

/// Decides rows on each seed in `jobs` threads; the results do not depend on the number of threads.
/// `on` receives the progress; if it returns `false`, no further experiment begins.
pub(crate) fn answer(
    rows: &[&'static Row],
    extent: Extent,
    jobs: usize,
    on: impl Fn(Progress) -> bool + Sync,
) -> Findings {
    let Extent { seeds, band, ablations } = extent;
    let wanted = |of: &&Experiment| of.ids().any(|id| rows.iter().any(|row| row.id == id));
    let mine: Vec<&'static Experiment> = EXPERIMENTS.iter().filter(wanted).collect();
    let is_asked = |id: &str| rows.iter().any(|row| row.id == id);
    let ablations_of = |of: &'static Experiment| {
        let is_of = move |ablation: &&'static Ablation| {
            of.ids().any(|id| ablation.is_of(id) && is_asked(id))
        };
        ABLATIONS.iter().filter(move |one| ablations && one.is_run()).filter(is_of)
    };
    // The plan is ordered by seed and then by experiment. `outcomes` keeps that order, so the
    // answers of a row are in the order of the seeds.
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
            found.entry(id).or_default().push(OnSeed { seed, holds, measured, note });
        }
    }
    figures.sort_by(|a, b| a.id.cmp(&b.id));
    tables.sort_by(|a, b| a.id.cmp(&b.id));
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
                    // The note gives the reason if the experiment could not be run, or broke a law.
                    let measured = if measured.is_empty() { note } else { measured };
                    let one = Ablated { what: ablation.what.clone(), holds, measured };
                    ablated.entry(id).or_default().push(one);
                }
                Varied::Ablation(_) => {}
            }
        }
    }
    let finding = |row: &&'static Row| {
        let by_seed = found.remove(row.id.as_str()).unwrap_or_default();
        // A row that did not run on every requested seed has no results.
        let by_seed = if by_seed.len() == seeds.count { by_seed } else { Vec::new() };
        let band = elsewhere.remove(row.id.as_str()).unwrap_or_default();
        let ablations = ablated.remove(row.id.as_str()).unwrap_or_default();
        Finding { row, by_seed, band, ablations }
    };
    Findings { rows: rows.iter().map(finding).collect(), figures, tables }
}

/// An experiment to run on a seed, with or without a change.
#[derive(Clone, Copy)]
struct Planned<'a> {
    of: &'static Experiment,
    seed: u64,
    varied: Varied,
    /// The runs of the same experiment without a change.
    usual: Option<&'a Used>,
    /// Whether the experiment will be run again with a change.
    again: bool,
}

/// Runs the whole plan; returns the runs used and the outcomes, in the order of the plan.
fn outcomes<'a>(
    plan: Vec<Planned<'a>>,
    jobs: usize,
    on: &(impl Fn(Progress) -> bool + Sync),
) -> Vec<(Planned<'a>, Used, Result<Outcome, String>)> {
    let mut order: Vec<usize> = (0..plan.len()).collect();
    // The longest experiments run first, so that none of them runs alone at the end.
    order.sort_by_key(|&number| std::cmp::Reverse(plan[number].of.seconds));
    let of_seconds = plan.iter().map(|planned| planned.of.seconds).sum();
    let (of, ran) = (plan.len(), AtomicU32::new(0));
    let work = |number: usize| {
        let planned = plan[order[number]];
        let used = Used::default();
        let Planned { of, seed, varied, usual, again } = planned;
        let mut outcome = of.run(Setting { seed, varied, used: &used, usual });
        if let Varied::Ablation(ablation) = varied
            && used.has_no_runs()
            && !ablation.is_of_experiment()
        {
            outcome = Err("the change has no effect on any run".into());
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
        Some(violation) => Err(format!("{LAW}{policy:?} a law is broken: {violation}")),
    }
}

/// Begins the message about a broken law.
const LAW: &str = "under ";

/// Runs a scenario under Linux's BFQ. BFQ serves threads in turn, not tenants: each thread has a
/// queue of its own, and the weights of a tenant's threads add up to the tenant's weight. So
/// tenants of equal weight with different numbers of threads have queues of different weights, and
/// if weights differ BFQ waits for the queue in service. The results are summed by tenant.
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
    // Weights are whole numbers up to 10,000, so the smallest whole numbers in this proportion are
    // used.
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

/// Jain's index: 1 if all values are equal, 1/n if one of n has everything.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        sum += value;
        squares += value * value;
    }
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

/// The verdict of a claim that can be read in several ways: the claim holds if it holds in all
/// readings, does not hold if it holds in none, and otherwise cannot be decided.
fn agreed(readings: &[bool]) -> Option<bool> {
    let first = *readings.first()?;
    readings.iter().all(|&reading| reading == first).then_some(first)
}

/// Whether a value is within the fraction `part` of `should_be`.
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
            let answers = EXPERIMENTS.iter().filter(|of| of.has(&row.id)).count();
            assert_eq!(answers, 1, "experiments for {}", row.id);
        }
        for id in EXPERIMENTS.iter().flat_map(Experiment::ids) {
            assert!(ROWS.iter().any(|row| row.id == id), "{id} is in no row");
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
    #[ignore = "a step of tests/long: ignored"]
    fn a_row_is_decided_at_both_ends_of_each_constant_that_can_matter() {
        let extent = Extent { band: true, ..Extent::one(1) };
        let found = answer(&named("M-P.2"), extent, 2, |_| true).rows.remove(0);
        let names: Vec<&str> = found.band.iter().map(|one| one.constant.as_str()).collect();
        assert!(names.contains(&"controller, each command") && names.contains(&"page"));
        assert!(!names.contains(&"suspending a program"), "{names:?}");
        // If each command takes a tenth less time the rate exceeds the row's limit, and with a
        // tenth more time it does not.
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
        // D-16.1 belongs to the same experiment, but is not among the ablation's rows.
        assert!(of("D-16.1").ablations.is_empty());
    }

    #[test]
    fn it_stops_when_told_to() {
        let findings = answer(&named("D-3.1"), Extent::one(1), 1, |_| false);
        assert!(findings.rows[0].by_seed.is_empty());
    }
}
