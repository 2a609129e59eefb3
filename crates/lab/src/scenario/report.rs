//! Results of scenario files: as text, and as a folder with tables, figures and data.

use std::path::Path;

use anyhow::Context;
use comfy_table::Table as Grid;
use fairq_bench::report::{Device, Flow, Report, Run};
use fairq_config::table::{align_right, plain_table};
use fairq_config::units::{show_bandwidth, show_count, show_duration, show_percent};
use serde_json::Value;

use super::Cell;
use super::spread::Spread;
use crate::figure::{Axis, Figure, Line, quoted};
use crate::plot::svg;

/// The most combinations of other swept keys that each have figures of their own.
const MOST_FIGURES: usize = 24;

/// A measure of a tenant that is drawn.
struct Measure {
    id: &'static str,
    label: &'static str,
    of: fn(&Flow) -> f64,
}

const DRAWN: [Measure; 3] = [
    Measure { id: "share", label: "% of all bytes", of: |flow| flow.share * 100.0 },
    Measure { id: "iops", label: "requests a second", of: |flow| flow.iops },
    Measure { id: "p99", label: "99th percentile, µs", of: |flow| flow.p99_ns as f64 / 1e3 },
];

/// The seeds of one point of one file.
fn groups(cells: &[Cell]) -> Vec<&[Cell]> {
    cells.chunk_by(|a, b| a.file == b.file && a.point == b.point).collect()
}

/// The results for a terminal.
pub(super) fn text(cells: &[Cell]) -> String {
    groups(cells).into_iter().map(group_text).collect::<Vec<_>>().join("\n")
}

fn group_text(group: &[Cell]) -> String {
    let first = &group[0];
    let title = titled(first);
    if let [cell] = group {
        return format!("{title}\n\n{}", Report { runs: cell.runs.clone() }.text());
    }
    let last = group[group.len() - 1].seed;
    let mut text = format!(
        "{title}\nseeds {} to {last}: means ± half of the interval with the true mean (95 %)\n",
        first.seed
    );
    for index in 0..first.runs.len() {
        let runs: Vec<&Run> = group.iter().map(|cell| &cell.runs[index]).collect();
        let of_runs = |of: fn(&Run) -> f64| spread(&runs, of);
        text += &format!(
            "\n{}  {} IOPS  {}  weighted Jain {}\n{}\n",
            runs[0].policy,
            of_runs(|run| run.iops).told(show_count),
            of_runs(|run| run.bytes_per_s).told(show_bandwidth),
            of_runs(|run| run.jain_weighted).told(|jain| format!("{jain:.4}")),
            table(&runs)
        );
        if let Some(devices) = devices(&runs) {
            let told = |part| {
                let spread = spread(&devices, part);
                (spread.mean, spread.told(show_percent))
            };
            text += &(Device::line(told, amplification(&devices)) + "\n");
        }
    }
    text
}

/// The device's utilization on each seed; `None` if a run has none.
fn devices<'a>(runs: &[&'a Run]) -> Option<Vec<&'a Device>> {
    runs.iter().map(|run| run.device.as_ref()).collect()
}

/// Write amplification over the seeds; `None` if it was not counted on some seed.
fn amplification(devices: &[&Device]) -> Option<String> {
    let times: Vec<f64> = devices.iter().map(|one| one.amplification).collect::<Option<_>>()?;
    Some(Spread::of(&times).told(|times| format!("{times:.2}")))
}

fn spread<T>(all: &[&T], of: impl Fn(&T) -> f64) -> Spread {
    Spread::of(&all.iter().map(|one| of(one)).collect::<Vec<_>>())
}

/// `my.toml`, or `my.toml with tenant.db.weight = 300`.
fn titled(cell: &Cell) -> String {
    let settings: Vec<String> =
        cell.point.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    match settings.is_empty() {
        true => cell.file.clone(),
        false => format!("{} with {}", cell.file, settings.join(", ")),
    }
}

/// The tenants of a policy's runs, one for each seed: the header, and a row for each tenant.
fn rows(runs: &[&Run]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let with_slowdown = runs[0].flows.iter().any(|flow| flow.slowdown.is_some());
    let mut header =
        vec!["tenant", "weight", "entitled", "share", "IOPS", "bandwidth", "mean", "p50", "p99"];
    if with_slowdown {
        header.push("slowdown");
    }
    let row = |(index, tenant): (usize, &Flow)| {
        let flows: Vec<&Flow> = runs.iter().map(|run| &run.flows[index]).collect();
        let spread = |of: fn(&Flow) -> f64| spread(&flows, of);
        let mut row = vec![
            tenant.name.clone(),
            tenant.weight.to_string(),
            spread(|flow| flow.entitled).told(show_percent),
            spread(|flow| flow.share).told(show_percent),
            spread(|flow| flow.iops).told(show_count),
            spread(|flow| flow.bytes_per_s).told(show_bandwidth),
            spread(|flow| flow.mean_ns).told(show_duration),
            spread(|flow| flow.p50_ns as f64).told(show_duration),
            spread(|flow| flow.p99_ns as f64).told(show_duration),
        ];
        if with_slowdown {
            // A tenant without service on one seed has no slowdown on it, and so no mean slowdown.
            let slowdown = spread(|flow| flow.slowdown.unwrap_or(f64::NAN));
            row.push(match slowdown.mean.is_nan() {
                true => "–".into(),
                false => slowdown.told(|times| format!("{times:.2} ×")),
            });
        }
        row
    };
    (header, runs[0].flows.iter().enumerate().map(row).collect())
}

fn table(runs: &[&Run]) -> Grid {
    let (header, rows) = rows(runs);
    let mut grid = plain_table();
    grid.set_header(header).add_rows(rows);
    align_right(&mut grid);
    grid
}

/// Writes `report.md`, figures, `results.csv` and `results.json`.
pub(super) fn write(cells: &[Cell], folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let figures = figures(cells);
    for figure in &figures {
        put(&format!("{}.svg", figure.id), &svg(figure)?)?;
    }
    put("results.json", &(serde_json::to_string_pretty(cells)? + "\n"))?;
    put("results.csv", &csv(cells))?;
    put("report.md", &markdown(cells, &figures))
}

fn markdown(cells: &[Cell], figures: &[Figure]) -> String {
    let mut text = String::from(
        "# Results\n\nEach tenant under each policy; the data are in `results.csv` and, \
         with more, in `results.json`.\n",
    );
    if groups(cells).iter().any(|group| group.len() > 1) {
        text += "Figures are means over seeds, ± half of the interval that contains the true mean \
                 with 95 % (Student's t).\n";
    }
    for figure in figures {
        text += &format!("\n![{}]({}.svg)\n", figure.title, figure.id);
    }
    for group in groups(cells) {
        text += &format!("\n## {}\n\n", titled(&group[0]));
        let (mut tenants, mut parts) = (String::new(), String::new());
        for index in 0..group[0].runs.len() {
            let runs: Vec<&Run> = group.iter().map(|cell| &cell.runs[index]).collect();
            let policy = &runs[0].policy;
            let (header, rows) = rows(&runs);
            if tenants.is_empty() {
                tenants += &head(&[vec!["policy"], header].concat());
            }
            for row in rows {
                tenants += &line(std::iter::once(policy).chain(&row));
            }
            if let Some(devices) = devices(&runs) {
                if parts.is_empty() {
                    let names = Device::PARTS.map(|(key, _)| key.replace('_', " "));
                    let names = names.iter().map(String::as_str);
                    parts += "\nHow busy the device's parts were, how full its buffer was, and how \
                              many times each write was written:\n\n";
                    let names = ["policy"].into_iter().chain(names).chain(["written"]);
                    parts += &head(&names.collect::<Vec<_>>());
                }
                let shown = |(_, part)| spread(&devices, part).told(show_percent);
                let written = amplification(&devices).unwrap_or("–".into());
                let shown = Device::PARTS.into_iter().map(shown).chain([written]);
                parts += &line([policy.clone()].into_iter().chain(shown));
            }
        }
        text += &(tenants + &parts);
    }
    text
}

/// A row of a table in Markdown.
fn line(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = "|".to_owned();
    cells.into_iter().for_each(|cell| {
        text += &format!(" {} |", cell.as_ref().replace('|', "\\|"));
    });
    text + "\n"
}

/// The header of a table in Markdown.
fn head(names: &[&str]) -> String {
    format!("{}|{}\n", line(names), "---|".repeat(names.len()))
}

/// A line of CSV for each tenant of each run, with the device's use in that run at the end.
fn csv(cells: &[Cell]) -> String {
    let mut keys: Vec<&String> = Vec::new();
    for (key, _) in cells.iter().flat_map(|cell| &cell.point) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut text = String::from("file,");
    keys.iter().for_each(|key| text += &format!("{},", quoted(key)));
    text += "seed,policy,tenant,weight,entitled,share,iops,bytes_per_s,mean_ns,p50_ns,p99_ns,\
             p999_ns,slowdown";
    Device::PARTS.iter().for_each(|(key, _)| text += &format!(",device_{key}"));
    text += ",device_amplification\n";
    for cell in cells {
        for run in &cell.runs {
            let or_none = |value: Option<f64>| value.map_or(String::new(), |it| it.to_string());
            let device = run.device.as_ref();
            let mut parts: Vec<String> =
                Device::PARTS.iter().map(|(_, part)| or_none(device.map(part))).collect();
            parts.push(or_none(device.and_then(|device| device.amplification)));
            for flow in &run.flows {
                text += &format!("{},", quoted(&cell.file));
                for key in &keys {
                    let value = cell.point.iter().find(|(own, _)| own == *key);
                    let value = value.map(|(_, value)| shown(value)).unwrap_or_default();
                    text += &format!("{},", quoted(&value));
                }
                text += &format!(
                    "{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                    cell.seed,
                    quoted(&run.policy),
                    quoted(&flow.name),
                    flow.weight,
                    flow.entitled,
                    flow.share,
                    flow.iops,
                    flow.bytes_per_s,
                    flow.mean_ns,
                    flow.p50_ns,
                    flow.p99_ns,
                    flow.p999_ns,
                    or_none(flow.slowdown),
                    parts.join(",")
                );
            }
        }
    }
    text
}

/// Figures over the first swept key, one for each combination of the other keys' values; if no key
/// is swept, bars for each tenant.
fn figures(cells: &[Cell]) -> Vec<Figure> {
    let mut rests: Vec<(String, Vec<&[Cell]>)> = Vec::new();
    for group in groups(cells) {
        let mut rest = group[0].clone();
        if !rest.point.is_empty() {
            rest.point.remove(0);
        }
        let title = titled(&rest);
        match rests.iter_mut().find(|known| known.0 == title) {
            Some((_, groups)) => groups.push(group),
            None => rests.push((title, vec![group])),
        }
    }
    // More figures than this would not help a reader, and the tables have all data.
    rests.truncate(MOST_FIGURES);
    let mut figures = Vec::new();
    for (number, (title, groups)) in (1..).zip(&rests) {
        figures.extend(DRAWN.iter().map(|measure| figure(number, title, groups, measure)));
    }
    figures
}

fn figure(number: usize, title: &str, groups: &[&[Cell]], measure: &Measure) -> Figure {
    let first = &groups[0][0];
    let at = |group: &[Cell], run: usize, flow: usize| {
        let flows: Vec<&Flow> = group.iter().map(|cell| &cell.runs[run].flows[flow]).collect();
        spread(&flows, measure.of)
    };
    let value = |group: &[Cell]| group[0].point.first().map(|(_, value)| value.clone());
    let line = |name: String, spreads: Vec<Spread>, places: &[f64]| {
        let points = places.iter().zip(&spreads).map(|(x, spread)| (*x, spread.mean)).collect();
        let halves = spreads.iter().filter_map(|spread| spread.half).collect();
        Line { name, points, halves, paper: false }
    };
    let tenants = || first.runs[0].flows.iter().enumerate();
    let (x, names, lines) = match first.point.first() {
        // Tenants side by side, a bar for each policy.
        None => {
            let places: Vec<f64> = tenants().map(|(index, _)| index as f64).collect();
            let of_policy = |(run, policy): (usize, &Run)| {
                let spreads = tenants().map(|(flow, _)| at(groups[0], run, flow)).collect();
                line(policy.policy.clone(), spreads, &places)
            };
            let names = tenants().map(|(_, flow)| flow.name.clone()).collect();
            (String::new(), names, first.runs.iter().enumerate().map(of_policy).collect())
        }
        // A line for each policy and tenant, or groups of bars if values are not numbers.
        Some((key, _)) => {
            let values: Vec<Value> = groups.iter().filter_map(|group| value(group)).collect();
            let numbers: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
            let names = match numbers {
                Some(_) => Vec::new(),
                None => values.iter().map(shown).collect(),
            };
            let places =
                numbers.unwrap_or_else(|| (0..groups.len()).map(|place| place as f64).collect());
            let mut lines = Vec::new();
            for (run, policy) in first.runs.iter().enumerate() {
                for (flow, tenant) in tenants() {
                    let spreads = groups.iter().map(|group| at(group, run, flow)).collect();
                    let policy = policy.policy.split(' ').next().unwrap_or_default();
                    lines.push(line(format!("{policy}: {}", tenant.name), spreads, &places));
                }
            }
            (key.clone(), names, lines)
        }
    };
    Figure {
        id: format!("{number}-{}", measure.id),
        title: format!("{title}: {}", measure.label),
        x: Axis { label: x, log: false },
        y: Axis { label: measure.label.to_owned(), log: false },
        groups: names,
        lines,
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
