//! Users' own scenarios: `fairq lab run my.toml --policy all`. `docs/fairq.scenario.toml` has every
//! key.
//!
//! Keys have the names and meanings of `fairq bench`, also those of fio's job files. Further keys
//! exist only in simulations: a device by its profile, cores with a submission queue each, bursts,
//! lives, weights that change, traces, applications by name, errors and stalls.
//!
//! ```text
//!   Document ─▶ points (sweep) ─▶ scenario (table) ─▶ run (simulate) ─▶ Cell ─▶ JSON
//!                x seeds x policies, in parallel                         └▶ text, report (spread)
//! ```

mod report;
mod simulate;
mod spread;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::Ordering;

use fairq_bench::report::Run;
use fairq_config::files::{Output, write_out};
use fairq_config::flags::Policies;
use fairq_config::policy::PolicyConfig;
use fairq_config::refusal::Refusal;
use fairq_sim::scenario::Scenario;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::args::LabRunArgs;
use crate::parallel;
use crate::progress::{progress_bar, stops_on_interrupt};

pub use sweep::{Document, Point};
pub(crate) use table::parse;

/// Optional results of a point in addition to rates and percentiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// Whether every tenant is run alone first, which gives its slowdown.
    pub alone: bool,
    /// Whether results have whole histograms of latencies.
    pub histograms: bool,
}

/// Results of a point on one seed, under each policy.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// Name of the scenario file.
    pub file: String,
    /// The values of the keys that are swept, in the file's order.
    #[serde(serialize_with = "as_object")]
    pub point: Vec<(String, Value)>,
    /// Seed of the runs.
    pub seed: u64,
    /// Results by policy, in the policies' order.
    pub runs: Vec<Run>,
}

fn as_object<S: Serializer>(point: &[(String, Value)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(point.iter().map(|(key, value)| (key, value)))
}

/// Whether a name is that of a scenario file and not of a claim.
pub(crate) fn is_scenario(name: &str) -> bool {
    name.ends_with(".toml")
}

impl Point {
    /// Runs the point under policies, on a seed (the file's own if `None`).
    pub fn run(
        &self,
        policies: &[PolicyConfig],
        seed: Option<u64>,
        details: Details,
    ) -> anyhow::Result<Cell> {
        let scenario = self.seeded(seed)?;
        let alone = details.alone.then(|| simulate::alone(&scenario)).transpose()?;
        let run = |policy| {
            let outcome = simulate::under(&scenario, policy)?;
            Ok(outcome.told(&scenario, alone.as_deref(), details.histograms))
        };
        let runs = policies.iter().map(run).collect::<anyhow::Result<_>>()?;
        Ok(self.cell(scenario.seed, runs))
    }

    fn seeded(&self, seed: Option<u64>) -> Result<Scenario, Refusal> {
        let scenario = self.scenario()?;
        Ok(Scenario { seed: seed.unwrap_or(scenario.seed), ..scenario })
    }

    fn cell(&self, seed: u64, runs: Vec<Run>) -> Cell {
        let json = |(key, value): &(String, toml::Value)| {
            (key.clone(), serde_json::to_value(value).unwrap_or_default())
        };
        Cell {
            file: self.file.clone(),
            point: self.settings.iter().map(json).collect(),
            seed,
            runs,
        }
    }
}

/// Runs scenario files under policies.
pub(crate) fn run(args: &LabRunArgs) -> anyhow::Result<()> {
    if let Some(id) = args.ids.iter().find(|id| !is_scenario(id)) {
        return Err(Refusal::new(format!(
            "`{id}` is a claim and other arguments are files: run claims and files separately"
        ))
        .into());
    }
    let of_claims = [
        ("--against", args.against.is_some()),
        ("--band", args.band),
        ("--ablations", args.ablations),
    ];
    // A flag without effect is refused, because a user would expect an effect.
    if let Some((flag, _)) = of_claims.iter().find(|(_, is_given)| *is_given) {
        return Err(Refusal::new(format!("{flag} is for claims, not for scenario files")).into());
    }
    let Policies(policies) = args.policy.clone().unwrap_or_else(Policies::usual);
    let policies = policies
        .into_iter()
        .map(|table| table.complete_for_lab())
        .collect::<Result<Vec<_>, _>>()?;
    let mut points = Vec::new();
    for path in &args.ids {
        points.extend(Document::read(Path::new(path))?.points()?);
    }
    let plan = Plan::new(args, &points, &policies)?;
    let cells = plan.carry_out(args)?;
    if let Some(folder) = &args.output {
        report::write(&cells, folder)?;
    }
    let json = || serde_json::to_string_pretty(&cells);
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => return write_out(&json()?),
        Some(path) => {
            Output::open(path)?.write_text(&json()?)?;
        }
        None => {}
    }
    write_out(&report::text(&cells))
}

/// The runs to make: each point on each seed.
struct Plan<'a> {
    policies: &'a [PolicyConfig],
    /// A point and its scenario with a seed.
    worlds: Vec<(&'a Point, Scenario)>,
}

impl<'a> Plan<'a> {
    fn new(
        args: &LabRunArgs,
        points: &'a [Point],
        policies: &'a [PolicyConfig],
    ) -> Result<Plan<'a>, Refusal> {
        let mut worlds = Vec::new();
        for point in points {
            let scenario = point.seeded(args.seed)?;
            for more in 0..u64::from(args.seeds.unwrap_or(1)) {
                let seed = scenario.seed.wrapping_add(more);
                worlds.push((point, Scenario { seed, ..scenario.clone() }));
            }
        }
        Ok(Plan { policies, worlds })
    }

    /// Runs the whole plan in parallel; returns the results in the order of the plan.
    fn carry_out(&self, args: &LabRunArgs) -> anyhow::Result<Vec<Cell>> {
        let threads = args.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        );
        let stops = stops_on_interrupt()?;
        let each = self.policies.len();
        let of_runs = self.worlds.len() * each;
        let bar = progress_bar();
        let on = |done: usize, of: usize, what: &str| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{done} of {of} {what}"));
            !stops.load(Ordering::Relaxed)
        };
        let alone = match args.alone {
            false => Vec::new(),
            true => {
                let of = self.worlds.len();
                let work = |number: usize| simulate::alone(&self.worlds[number].1);
                parallel::each(of, threads, |done| on(done, of, "alone"), work)
            }
        };
        let alone = finished(alone)?;
        let work = |number: usize| {
            let (_, scenario) = &self.worlds[number / each];
            let outcome = simulate::under(scenario, &self.policies[number % each])?;
            let alone = alone.get(number / each).map(Vec::as_slice);
            anyhow::Ok(outcome.told(scenario, alone, args.histograms))
        };
        let done = parallel::each(of_runs, threads, |done| on(done, of_runs, "runs"), work);
        bar.finish_and_clear();
        let mut runs = finished(done)?.into_iter();
        let cell = |(point, scenario): &(&Point, Scenario)| {
            point.cell(scenario.seed, runs.by_ref().take(each).collect())
        };
        Ok(self.worlds.iter().map(cell).collect())
    }
}

/// All results, or the first error.
fn finished<T>(done: Vec<Option<anyhow::Result<T>>>) -> anyhow::Result<Vec<T>> {
    // An interrupted run gives no results, because a reader could take means over some of the seeds
    // for means over all seeds.
    let interrupted = || Err(anyhow::anyhow!("interrupted: nothing was written"));
    done.into_iter().map(|done| done.unwrap_or_else(interrupted)).collect()
}
