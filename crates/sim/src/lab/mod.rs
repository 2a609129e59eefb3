//! The lab: the papers' claims, one by one, and what came out.
//!
//! A [`Row`] is a claim: what the paper says, and within what ours must be to say that it holds. An experiment answers some
//! rows with one set of runs. Every run is under all checks of what its policy promises: where a law is broken no claim
//! of that experiment holds, and the note says which law. Tolerances were written down with the claims; where one does not
//! hold, the row says so.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::meter::Run;
use crate::scenario::Scenario;
use crate::subject::AnyPolicy;

mod catalogue;
mod cpu;
mod d2fq;
mod device;
mod mqfq;

pub use catalogue::ROWS;

/// Where a claim comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paper {
    /// Woo et al., FAST 2021.
    D2fq,
    /// Hedayati et al., ATC 2019.
    Mqfq,
}

impl Paper {
    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Paper::D2fq => "d2fq",
            Paper::Mqfq => "mqfq",
        }
    }
}

/// A claim.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Names it, as in D-11a.1.
    pub id: &'static str,
    /// Where it is made.
    pub paper: Paper,
    /// What it says.
    pub claim: &'static str,
    /// The paper's value.
    pub expected: &'static str,
    /// What counts as the same.
    pub within: &'static str,
}

/// What came out of a row.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The row.
    pub row: &'static Row,
    /// Ours; empty if there is none.
    pub measured: String,
    /// Whether it holds; `None` if that cannot be said here.
    pub holds: Option<bool>,
    /// Why, or what else there is to know.
    pub note: String,
}

/// Some rows, and how they are answered.
struct Experiment {
    ids: &'static [&'static str],
    run: fn(seed: u64) -> Result<Vec<Answer>, String>,
}

/// An answer to one row.
struct Answer {
    id: &'static str,
    measured: String,
    holds: bool,
    note: &'static str,
}

/// Measured, whether it holds, and the note.
type Found = (String, Option<bool>, String);

const NOT_BUILT: &str = "not built yet";

/// Whether there is an experiment for a row.
pub fn is_built(row: &Row) -> bool {
    experiments().any(|experiment| experiment.ids.contains(&row.id))
}

fn experiments() -> impl Iterator<Item = &'static Experiment> {
    [device::EXPERIMENTS, d2fq::EXPERIMENTS, mqfq::EXPERIMENTS, cpu::EXPERIMENTS].into_iter().flatten()
}

/// The rows that a name stands for: itself, or all that go on with a part (D-11 is D-11a.1 and its like); `all` is all.
pub fn named(name: &str) -> Vec<&'static Row> {
    let goes_on = |id: &str| {
        let rest =
            id.get(..name.len()).filter(|start| start.eq_ignore_ascii_case(name)).map(|start| &id[start.len()..]);
        // D-1 does not stand for D-11.
        rest.is_some_and(|rest| !(rest.starts_with(|c: char| c.is_ascii_digit())))
    };
    ROWS.iter().filter(|row| name == "all" || goes_on(row.id)).collect()
}

/// Answers rows, with so many threads; tells how many experiments of how many are done. The answers do not depend on how
/// many threads there are.
pub fn answer(rows: &[&'static Row], seed: u64, jobs: usize, done: impl Fn(usize, usize) + Sync) -> Vec<Finding> {
    let wanted = |experiment: &&Experiment| experiment.ids.iter().any(|id| rows.iter().any(|row| row.id == *id));
    let experiments: Vec<&Experiment> = experiments().filter(wanted).collect();
    let findings: Mutex<BTreeMap<&str, Found>> = Mutex::default();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(experiment) = experiments.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answers = (experiment.run)(seed);
            let mut findings = findings.lock().expect("nobody panics with it");
            match answers {
                Ok(answers) => findings.extend(
                    answers
                        .into_iter()
                        .map(|answer| (answer.id, (answer.measured, Some(answer.holds), answer.note.to_owned()))),
                ),
                Err(why) => {
                    findings.extend(experiment.ids.iter().map(|id| (*id, (String::new(), Some(false), why.clone()))));
                }
            }
            done(ended.fetch_add(1, Ordering::Relaxed) + 1, experiments.len());
        }
    };
    std::thread::scope(|scope| (0..jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    let mut findings = findings.into_inner().expect("nobody panics with it");
    let finding = |row: &&'static Row| {
        let (measured, holds, note) =
            findings.remove(row.id).unwrap_or_else(|| (String::new(), None, NOT_BUILT.to_owned()));
        Finding { row, measured, holds, note }
    };
    rows.iter().map(finding).collect()
}

/// Runs a scenario under a policy; a broken law is an error.
fn go(policy: AnyPolicy, scenario: &Scenario, seed: u64) -> Result<Run, String> {
    let scenario = Scenario { seed, ..scenario.clone() };
    let run = policy.run(&scenario).map_err(|error| error.to_string())?;
    match &run.violation {
        None => Ok(run),
        Some(violation) => Err(format!("under {policy:?} a law is broken: {violation}")),
    }
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
        }
        for id in experiments().flat_map(|experiment| experiment.ids) {
            assert!(ROWS.iter().any(|row| row.id == *id), "{id} is in no row");
        }
    }

    #[test]
    fn a_name_stands_for_what_goes_on_with_a_part() {
        let ids = |name| named(name).iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids("m-t1"), ["M-T1"]);
        assert_eq!(ids("D-3.1"), ["D-3.1"]);
        assert_eq!(ids("M-5a"), ["M-5a.1", "M-5a.2"]);
        assert!(ids("D-1").is_empty() && ids("X").is_empty());
        assert_eq!(ids("all").len(), ROWS.len());
    }

    #[test]
    fn what_is_not_built_is_said_to_be() {
        let findings = answer(&named("D-18"), 1, 1, |_, _| ());
        assert!(findings.len() == 4 && findings.iter().all(|finding| finding.holds.is_none()));
        assert!(findings.iter().all(|finding| finding.note == NOT_BUILT && finding.measured.is_empty()));
    }

    #[test]
    fn more_threads_give_the_same() {
        let rows = [named("D-3.1"), named("M-T1")].concat();
        let table = |jobs| format!("{:?}", answer(&rows, 1, jobs, |_, _| ()));
        assert_eq!(table(1), table(3));
    }
}
