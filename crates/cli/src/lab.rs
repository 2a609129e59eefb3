//! `fairq lab`: the papers' claims as a table or as JSON. The experiments are in `fairq-sim`.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use fairq_sim::lab::{Finding, ROWS, Row, answer, is_built, named};
use serde::Serialize;

use crate::args::{LabArgs, LabCommand, LabRunArgs};
use crate::bench::write_out;
use crate::config::Refusal;
use crate::report::plain_table;

/// What came out, for programs.
#[derive(Serialize)]
struct Report {
    claims: Vec<Claim>,
}

#[derive(Serialize)]
struct Claim {
    id: &'static str,
    paper: &'static str,
    claim: &'static str,
    expected: &'static str,
    measured: String,
    holds: Option<bool>,
    note: String,
}

pub(crate) fn run(args: LabArgs) -> anyhow::Result<()> {
    match args.command {
        LabCommand::List => write_out(&list()),
        LabCommand::Run(args) => run_rows(&args),
    }
}

fn list() -> String {
    let mut table = plain_table();
    table.set_header(vec!["id", "paper", "", "claim"]);
    for row in ROWS {
        table.add_row(vec![row.id, row.paper.name(), if is_built(row) { "" } else { "not built yet" }, row.claim]);
    }
    let built = ROWS.iter().filter(|row| is_built(row)).count();
    format!("{table}\n\n{built} of {} claims have an experiment.", ROWS.len())
}

fn run_rows(args: &LabRunArgs) -> anyhow::Result<()> {
    let rows = selected(args)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cpus, usize::from);
    let tells = std::io::stderr().is_terminal();
    let done = |done: usize, of: usize| {
        if tells {
            eprint!("\r{done} of {of} experiments{}", if done == of { "\n" } else { "" });
        }
    };
    let findings = answer(&rows, args.seed, jobs, done);
    let table = table(&findings);
    let report = Report { claims: findings.into_iter().map(Claim::from).collect() };
    let json = serde_json::to_string_pretty(&report)?;
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => return write_out(&json),
        Some(path) => {
            std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => {}
    }
    write_out(&table)
}

/// The rows that were asked for, in the catalogue's order and each once.
fn selected(args: &LabRunArgs) -> Result<Vec<&'static Row>, Refusal> {
    let mut ids = Vec::new();
    for name in &args.ids {
        let rows = named(name);
        if rows.is_empty() {
            return Err(Refusal::new(format!("no claim is called `{name}`: see `fairq lab list`")));
        }
        ids.extend(rows.iter().map(|row| row.id));
    }
    let of_paper = |row: &Row| args.paper.as_deref() == Some(row.paper.name());
    Ok(ROWS.iter().filter(|row| ids.contains(&row.id) || of_paper(row)).collect())
}

fn table(findings: &[Finding]) -> String {
    let mut table = plain_table();
    table.set_header(vec!["id", "paper's value", "within", "ours", "", "note"]);
    for Finding { row, measured, holds, note } in findings {
        let verdict = match holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "-",
        };
        table.add_row(vec![row.id, row.expected, row.within, measured, verdict, note]);
    }
    let count = |verdict| findings.iter().filter(|finding| finding.holds == verdict).count();
    let (hold, fail, open) = (count(Some(true)), count(Some(false)), count(None));
    format!("{table}\n\n{hold} hold, {fail} do not, {open} cannot be said yet.")
}

impl From<Finding> for Claim {
    fn from(finding: Finding) -> Claim {
        let Finding { row, measured, holds, note } = finding;
        Claim { id: row.id, paper: row.paper.name(), claim: row.claim, expected: row.expected, measured, holds, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_selected_once_and_unknown_ones_refused() {
        let args = |ids: &[&str], paper: Option<&str>| LabRunArgs {
            ids: ids.iter().map(|id| id.to_string()).collect(),
            paper: paper.map(str::to_owned),
            seed: 1,
            jobs: None,
            json: None,
        };
        let ids = |args| selected(&args).map(|rows| rows.iter().map(|row| row.id).collect::<Vec<_>>());
        assert_eq!(ids(args(&["M-5c", "m-5c.1", "D-3.1"], None)).unwrap(), ["D-3.1", "M-5c.1"]);
        assert!(ids(args(&[], Some("mqfq"))).unwrap().iter().all(|id| id.starts_with("M-")));
        assert_eq!(ids(args(&["all"], None)).unwrap().len(), ROWS.len());
        let error = ids(args(&["M-99"], None)).unwrap_err();
        assert_eq!(error.to_string(), "no claim is called `M-99`: see `fairq lab list`");
    }

    #[test]
    fn the_json_has_exactly_these_keys() {
        let rows = named("D-3.1").into_iter().chain(named("D-18.1")).collect::<Vec<_>>();
        let claims = answer(&rows, 1, 1, |_, _| ()).into_iter().map(Claim::from).collect();
        let json = serde_json::to_value(Report { claims }).unwrap();
        let keys: Vec<_> = json["claims"][0].as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["claim", "expected", "holds", "id", "measured", "note", "paper"]);
        assert_eq!(json["claims"][0]["holds"], true);
        assert_eq!(json["claims"][1]["holds"], serde_json::Value::Null);
        assert_eq!(json["claims"][1]["note"], "not built yet");
    }
}
