//! The experiments: tables of `experiments/*.toml`.
//!
//! ```toml
//! [policy.MQFQ]                  # a policy; names are those of reports
//! kind = "mqfq"
//! slots = 64
//!
//! [scenario.deep]                # a scenario, as in a file of its own
//! device = "z-ssd"
//! duration = "40ms"
//! tenant = [{ name = "a", depth = "=depth" }]
//!
//! [value]                        # expressions that rows and figures share
//! runs = "[run('MQFQ', 'deep') for depth in 1..16]"
//!
//! [[experiment]]
//! seconds = 10                   # on one core
//!
//! [[experiment.row]]             # the answer to a row of `claims.toml`
//! id = "D-2.1"
//! measured = "{runs.mean_us.0:1} us"
//! holds = "rises(runs.iops)"     # or `readings`, where the paper leaves open what decides
//! note = ""
//! ```
//!
//! All experiments of a file share its policies, scenarios and values; an experiment may have
//! further values. A value is computed only when a row or a figure needs it.

use std::sync::LazyLock;

use serde::Deserialize;
use toml::{Table as Toml, Value as Written};

use super::rules::row;
use super::scope::{Scope, Tables};
use super::{Answer, Outcome, Setting, agreed};
use crate::figure::{Axis, Figure, Line, Table};

/// An experiment, and the rows that it answers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Experiment {
    /// Approximate duration in seconds on one core: selects `fast` claims and estimates the time
    /// left.
    pub(super) seconds: u32,
    /// The experiment's values; `tables` also has those of its file.
    #[serde(default)]
    value: Toml,
    #[serde(skip)]
    tables: Tables,
    pub(super) row: Vec<Answered>,
    #[serde(default)]
    figure: Vec<Drawn>,
    #[serde(default)]
    table: Vec<Tabled>,
}

/// The measurement of a row as a sentence, and its verdict.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answered {
    pub(super) id: String,
    measured: String,
    /// The condition for the verdict; a row without a condition claims nothing.
    holds: Option<String>,
    /// A condition for each reading of the paper.
    readings: Option<String>,
    #[serde(default)]
    note: String,
}

/// A figure: lines, or bars in groups.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drawn {
    id: String,
    title: String,
    /// Quantity and unit of the horizontal axis; empty for bars.
    #[serde(default)]
    x: String,
    y: String,
    /// The axes that are logarithmic.
    #[serde(default)]
    log: String,
    /// Names of the groups of bars: texts, or an expression.
    groups: Option<Written>,
    line: Vec<DrawnLine>,
}

/// One line, or, if its values have names, a line for each name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawnLine {
    /// The name of the line; for several lines the beginning of their names.
    #[serde(default)]
    name: String,
    /// Horizontal values; by default 0, 1, 2 and so on.
    x: Option<String>,
    /// Distance of the horizontal values from each other.
    #[serde(default = "one")]
    step: f64,
    y: String,
    /// Whether these are the paper's values.
    #[serde(default)]
    paper: bool,
}

fn one() -> f64 {
    1.0
}

/// A table: its rows are lists of cells.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tabled {
    id: String,
    title: String,
    header: Vec<String>,
    rows: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    policy: Toml,
    #[serde(default)]
    scenario: Toml,
    #[serde(default)]
    value: Toml,
    experiment: Vec<Experiment>,
}

pub(super) const FILES: [&str; 8] = [
    include_str!("../../experiments/device.toml"),
    include_str!("../../experiments/d2fq.toml"),
    include_str!("../../experiments/d2fq-cpu.toml"),
    include_str!("../../experiments/mqfq.toml"),
    include_str!("../../experiments/mqfq-cpu.toml"),
    include_str!("../../experiments/kyber.toml"),
    include_str!("../../experiments/nass.toml"),
    include_str!("../../experiments/beyond.toml"),
];

/// All experiments.
pub(super) static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let read = |text: &&str| {
        let File { policy, scenario, value, experiment } =
            toml::from_str(text).expect("a test reads the files");
        experiment.into_iter().map(move |own| {
            let (policy, scenario) = (policy.clone(), scenario.clone());
            let value = value.clone().into_iter().chain(own.value.clone()).collect();
            Experiment { tables: Tables { policy, scenario, value }, ..own }
        })
    };
    FILES.iter().flat_map(read).collect()
});

impl Experiment {
    /// The rows that it answers.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.row.iter().map(|row| row.id.as_str())
    }

    pub(super) fn run(&'static self, setting: Setting<'_>) -> Result<Outcome, String> {
        let scope = Scope::new(&self.tables, setting);
        Ok(Outcome {
            answers: self.row.iter().map(|row| row.answer(&scope)).collect::<Result<_, _>>()?,
            figures: self.figure.iter().map(|of| of.draw(&scope)).collect::<Result<_, _>>()?,
            tables: self.table.iter().map(|of| of.fill(&scope)).collect::<Result<_, _>>()?,
        })
    }
}

impl Answered {
    /// All its expressions in one text.
    #[cfg(test)]
    pub(super) fn expressions(&self) -> String {
        let written = [Some(&self.measured), self.holds.as_ref(), self.readings.as_ref()];
        written.into_iter().flatten().map(|text| format!("{text}\n")).collect()
    }

    fn answer(&'static self, scope: &Scope<'_>) -> Result<Answer, String> {
        let scope = scope.of_row(row(&self.id)?);
        let holds = match (&self.holds, &self.readings) {
            (Some(holds), _) => Some(scope.evaluate(holds)?.truth()?),
            (None, None) => None,
            (None, Some(readings)) => {
                let readings = scope.evaluate(readings)?;
                let each = readings.items().iter().map(|reading| reading.truth());
                agreed(&each.collect::<Result<Vec<_>, _>>()?)
            }
        };
        let measured = scope.sentence(&self.measured)?;
        Ok(Answer { id: &self.id, measured, holds, note: self.note.clone() })
    }
}

impl Drawn {
    fn draw(&self, scope: &Scope<'_>) -> Result<Figure, String> {
        let groups: Vec<String> = match &self.groups {
            None => Vec::new(),
            Some(Written::String(expression)) => {
                let groups = scope.evaluate(expression)?;
                groups
                    .items()
                    .iter()
                    .map(|group| Ok(group.text()?.to_owned()))
                    .collect::<Result<_, String>>()?
            }
            Some(other) => other.clone().try_into().map_err(|error| format!("groups: {error}"))?,
        };
        let mut lines = Vec::new();
        for line in &self.line {
            line.draw(scope, &mut lines)?;
        }
        let axis = |label: &str, name| Axis { label: label.into(), log: self.log.contains(name) };
        let (x, y) = (axis(&self.x, 'x'), axis(&self.y, 'y'));
        Ok(Figure { id: self.id.clone(), title: self.title.clone(), x, y, groups, lines })
    }
}

impl DrawnLine {
    fn draw(&self, scope: &Scope<'_>, into: &mut Vec<Line>) -> Result<(), String> {
        let y = scope.evaluate(&self.y)?;
        let x = self.x.as_ref().map(|x| scope.evaluate(x)?.numbers()).transpose()?;
        let mut line = |name: String, y: Vec<f64>| {
            let at = |number: usize| match &x {
                Some(x) => x.get(number).copied().unwrap_or(f64::NAN),
                None => number as f64 * self.step,
            };
            let points = y.iter().enumerate().map(|(number, &y)| (at(number), y)).collect();
            into.push(Line::new(name, points, self.paper));
        };
        let is_several = y.items().iter().any(|item| item.numbers().is_ok_and(|of| of.len() > 1));
        match y.names() {
            names if is_several => {
                for (name, item) in names.iter().zip(y.items()) {
                    line(format!("{}{name}", self.name), item.numbers()?);
                }
            }
            _ => line(self.name.clone(), y.numbers()?),
        }
        Ok(())
    }
}

impl Tabled {
    fn fill(&self, scope: &Scope<'_>) -> Result<Table, String> {
        let rows = scope.evaluate(&self.rows)?;
        let cells = |row: &super::values::Value| {
            row.items().iter().map(|cell| cell.shown(&Default::default())).collect()
        };
        let (id, title, header) = (self.id.clone(), self.title.clone(), self.header.clone());
        Ok(Table { id, title, header, rows: rows.items().iter().map(cells).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::expression::parse;
    use crate::claims::functions::filled;

    #[test]
    fn each_expression_can_be_read() {
        let sentence = |text: &str| {
            filled(text, |inner| {
                parse(inner.rsplit_once(':').map_or(inner, |(expression, _)| expression))?;
                Ok(String::new())
            })
        };
        let mut read = 0;
        for experiment in EXPERIMENTS.iter() {
            let values = experiment.tables.value.values().filter_map(Written::as_str);
            let rows = experiment.row.iter().flat_map(|row| [&row.holds, &row.readings]);
            let lines = experiment.figure.iter().flat_map(|figure| &figure.line);
            let lines = lines.flat_map(|line| [Some(&line.y), line.x.as_ref()]).flatten();
            let tables = experiment.table.iter().map(|table| &table.rows);
            let others = rows.flatten().chain(lines).chain(tables);
            for text in values.chain(others.map(String::as_str)) {
                parse(text).unwrap_or_else(|error| panic!("{error}"));
                read += 1;
            }
            for row in &experiment.row {
                sentence(&row.measured).unwrap_or_else(|error| panic!("{}: {error}", row.id));
                assert!(row.holds.is_none() || row.readings.is_none(), "{}: both", row.id);
            }
        }
        assert!(read > 500, "{read} expressions");
    }
}
