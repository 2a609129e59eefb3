//! `fairq lab`: the papers' claims as a table, as JSON and as a report, and users' own scenarios.
//! The experiments are in [`claims`](crate::claims).

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use fairq_config::files::Output;
use fairq_config::files::write_out;
use fairq_config::refusal::Refusal;

use crate::args::{LabArgs, LabCommand, LabRunArgs, SEED};
use crate::claims::{Extent, Progress, ROWS, Row, Seeds, answer, named};
use crate::progress::{progress_bar, stops_on_interrupt};
use crate::record::{Claims, Record};
use crate::{page, scenario, text};

/// Runs the subcommand.
pub fn run(args: LabArgs) -> anyhow::Result<()> {
    match args.command {
        LabCommand::List => write_out(&list()),
        LabCommand::Run(args) if args.ids.iter().any(|id| scenario::is_scenario(id)) => {
            scenario::run(&args)
        }
        LabCommand::Run(args) => run_rows(&args),
    }
}

fn list() -> String {
    let mut table = text::wrapped();
    table.set_header(vec!["id", "paper", "claim"]);
    for row in ROWS.iter() {
        table.add_row(vec![row.id.as_str(), row.paper().name(), &row.claim]);
    }
    format!("{table}\n\n{} claims and questions.", ROWS.len())
}

fn run_rows(args: &LabRunArgs) -> anyhow::Result<()> {
    let of_files = [
        ("--policy", args.policy.is_some()),
        ("--alone", args.alone),
        ("--histograms", args.histograms),
    ];
    // A flag without effect is refused, because a user would expect an effect.
    if let Some((flag, _)) = of_files.iter().find(|(_, is_given)| *is_given) {
        return Err(Refusal::new(format!(
            "{flag} is for scenario files: the experiments of claims define what they run"
        ))
        .into());
    }
    let rows = selected(args)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(cpus, usize::from);
    let stops = stops_on_interrupt()?;
    let bar = progress_bar();
    let on = |progress: Progress| {
        bar.set_length(u64::from(progress.of_seconds));
        bar.set_position(u64::from(progress.seconds));
        bar.set_message(format!("{} of {} experiments", progress.done, progress.of));
        !stops.load(Ordering::Relaxed)
    };
    let extent = Extent { seeds: seeds(args), band: args.band, ablations: args.ablations };
    let findings = answer(&rows, extent, jobs, on);
    bar.finish_and_clear();
    let was_stopped = stops.load(Ordering::Relaxed);
    let record = Record::new(extent, asked(args), findings);
    tell(&record, args.json.as_deref(), args.output.as_deref())?;
    // Checked after the report is written, so that the results before the interrupt are kept. An
    // incomplete run is an error in any case.
    if was_stopped {
        return Err(anyhow::anyhow!("interrupted: experiments that did not begin have no results"));
    }
    // An interrupted run is not compared: its missing rows would all differ.
    match &args.against {
        None => Ok(()),
        Some(folder) => same(&record, &Record::read(&file_of(folder))?),
    }
}

/// Fails unless the known record has all results of this one.
fn same(record: &Record, known: &Record) -> anyhow::Result<()> {
    let differences = record.differences(known);
    if differences.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!(
        "{} differ from the record:\n{}",
        differences.len(),
        differences.join("\n")
    ))
}

/// The record in the folder of a report.
fn file_of(folder: &Path) -> PathBuf {
    if folder.is_dir() { folder.join("results/lab.json") } else { folder.to_owned() }
}

/// The requested claims, as on the command line.
fn asked(args: &LabRunArgs) -> String {
    args.paper.as_ref().map_or_else(|| args.ids.join(" "), |paper| format!("--paper {paper}"))
}

fn seeds(args: &LabRunArgs) -> Seeds {
    Seeds { first: args.seed.unwrap_or(SEED), count: args.seeds.map_or(1, usize::from) }
}

fn tell(record: &Record, json: Option<&Path>, output: Option<&Path>) -> anyhow::Result<()> {
    if let Some(folder) = output {
        page::write(record, &record.command(), folder)?;
    }
    let claims = serde_json::to_string_pretty(&Claims { claims: &record.claims })?;
    match json {
        Some(path) if path == Path::new("-") => return write_out(&claims),
        Some(path) => {
            Output::open(path)?.write_text(&claims)?;
        }
        None => {}
    }
    write_out(&text::table(record))
}

/// The requested rows, in the catalogue's order and each once.
fn selected(args: &LabRunArgs) -> Result<Vec<&'static Row>, Refusal> {
    let mut ids: Vec<&str> = Vec::new();
    for name in &args.ids {
        let rows = named(name);
        if rows.is_empty() {
            return Err(Refusal::new(format!("no claim is called `{name}`: see `fairq lab list`")));
        }
        ids.extend(rows.iter().map(|row| row.id.as_str()));
    }
    let of_paper = |row: &Row| args.paper.as_deref() == Some(row.paper().name());
    Ok(ROWS.iter().filter(|row| ids.contains(&row.id.as_str()) || of_paper(row)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(ids: &[&str], paper: Option<&str>) -> LabRunArgs {
        LabRunArgs {
            ids: ids.iter().map(|id| id.to_string()).collect(),
            paper: paper.map(str::to_owned),
            seed: Some(1),
            seeds: None,
            band: false,
            ablations: false,
            jobs: None,
            policy: None,
            json: None,
            output: None,
            alone: false,
            histograms: false,
            against: None,
        }
    }

    #[test]
    fn claims_are_selected_once_and_unknown_ones_refused() {
        let ids = |args: LabRunArgs| {
            selected(&args).map(|rows| rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(ids(args(&["M-5c", "m-5c.1", "D-3.1"], None)).unwrap(), ["D-3.1", "M-5c.1"]);
        assert!(ids(args(&[], Some("mqfq"))).unwrap().iter().all(|id| id.starts_with("M-")));
        assert_eq!(ids(args(&["all"], None)).unwrap().len(), ROWS.len());
        let error = ids(args(&["M-99"], None)).unwrap_err();
        assert_eq!(error.to_string(), "no claim is called `M-99`: see `fairq lab list`");
    }

    #[test]
    fn a_flag_that_a_scenario_file_does_not_know_is_refused() {
        let refused = |change: fn(&mut LabRunArgs)| {
            let mut args = args(&["my.toml"], None);
            change(&mut args);
            scenario::run(&args).unwrap_err().to_string()
        };
        let said = |flag| format!("{flag} is for claims, not for scenario files");
        assert_eq!(refused(|args| args.band = true), said("--band"));
        assert_eq!(refused(|args| args.ablations = true), said("--ablations"));
    }

    #[test]
    fn the_json_has_exactly_these_keys() {
        let json = |goes_on| {
            let findings = answer(&named("D-3.1"), Extent::one(1), 1, |_| goes_on);
            let record = Record::new(Extent::one(1), "D-3.1".into(), findings);
            serde_json::to_value(Claims { claims: &record.claims }).unwrap()
        };
        let (json, interrupted) = (json(true), json(false));
        assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), ["claims"]);
        let keys: Vec<_> = json["claims"][0].as_object().unwrap().keys().cloned().collect();
        let known = ["claim", "expected", "holds", "id", "measured", "note", "paper"];
        assert!(known.iter().all(|key| keys.iter().any(|there| there == key)), "{keys:?}");
        let told = ["by_seed", "calibration", "counted", "intervals"];
        let mut all = [known.as_slice(), &told].concat();
        all.sort_unstable();
        assert_eq!(keys, all);
        assert_eq!(
            (&json["claims"][0]["calibration"], &json["claims"][0]["counted"]),
            (&false.into(), &true.into())
        );
        assert_eq!(json["claims"][0]["holds"], true);
        assert_eq!(interrupted["claims"][0]["holds"], serde_json::Value::Null);
        assert_eq!(interrupted["claims"][0]["note"], "interrupted");
    }
}
