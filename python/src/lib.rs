//! The interface between Python and the lab, which takes texts and returns JSON. The convenient
//! functions for users are in `python/fairq/__init__.py`.

use std::path::PathBuf;

use fairq_config::flags::{Policies, parse_policies};
use fairq_config::policy::NAMES;
use fairq_config::refusal::Refusal;
use fairq_lab::scenario::{Details, Document};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// An error in the arguments is a `ValueError`, an error of the run a `RuntimeError`.
fn raised(error: &anyhow::Error) -> PyErr {
    let text = format!("{error:#}");
    if error.is::<Refusal>() { PyValueError::new_err(text) } else { PyRuntimeError::new_err(text) }
}

fn refused(what: impl ToString) -> PyErr {
    PyValueError::new_err(what.to_string())
}

/// A point: the values of the keys that are swept, as a JSON list of pairs; the scenario; its name;
/// its seed.
type Point = (String, String, String, u64);

/// The points of a scenario. `scenario` is TOML, or JSON with the same keys; `over` is a JSON list
/// of pairs of keys and lists of values.
#[pyfunction]
fn points(
    scenario: &str,
    is_json: bool,
    name: &str,
    folder: PathBuf,
    over: &str,
) -> PyResult<Vec<Point>> {
    let mut document = if is_json {
        let values: toml::Table = serde_json::from_str(scenario).map_err(refused)?;
        Document::of_values(&values, name.to_owned(), folder).map_err(refused)?
    } else {
        Document::new(scenario.to_owned(), name.to_owned(), folder)
    };
    let over: Vec<(String, toml::Value)> = serde_json::from_str(over).map_err(refused)?;
    for (key, values) in &over {
        document.sweep(key, values).map_err(refused)?;
    }
    let point = |point: fairq_lab::scenario::Point| {
        let settings = serde_json::to_string(&point.settings).map_err(refused)?;
        let seed = point.scenario().map_err(refused)?.seed;
        Ok((settings, point.text, point.name, seed))
    };
    document.points().map_err(refused)?.into_iter().map(point).collect()
}

/// Runs a point, which must not have a sweep, under policies as `fairq bench --policy` names them,
/// and returns the results as JSON. Other Python threads run meanwhile.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn run(
    py: Python<'_>,
    scenario: String,
    name: String,
    folder: PathBuf,
    policies: &str,
    seed: Option<u64>,
    alone: bool,
    histograms: bool,
) -> PyResult<String> {
    let Policies(policies) = parse_policies(policies).map_err(refused)?;
    let policies = policies
        .into_iter()
        .map(|table| table.complete())
        .collect::<Result<Vec<_>, _>>()
        .map_err(refused)?;
    let work = || {
        let points = Document::new(scenario, name, folder).points()?;
        let [point] = &points[..] else {
            anyhow::bail!("only a single point can be run, and this has {} points", points.len());
        };
        let cell = point.run(&policies, seed, Details { alone, histograms })?;
        Ok(serde_json::to_string(&cell)?)
    };
    py.detach(work).map_err(|error| raised(&error))
}

/// The names of all policies.
#[pyfunction]
fn policies() -> Vec<&'static str> {
    NAMES.to_vec()
}

#[pymodule]
mod _fairq {
    #[pymodule_export]
    use super::{points, policies, run};
}
