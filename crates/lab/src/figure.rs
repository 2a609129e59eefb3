//! Figures and tables as data; `plot`, `page` and `text` render them.

use serde::{Deserialize, Serialize};

/// A figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Names of the groups of bars; empty for lines.
    pub(crate) groups: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) log: bool,
}

/// A series of a figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Half-widths of the points' intervals; empty if they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) halves: Vec<f64>,
    /// Whether the points are the paper's values for the measured line of the same name, or for the
    /// whole figure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) paper: bool,
}

/// A table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Line {
    /// A measured line, or the paper's values for it.
    pub(crate) fn new(name: String, points: Vec<(f64, f64)>, paper: bool) -> Line {
        // JSON has neither NaN nor infinity, and `null` would not be read back as a number, so such
        // points are dropped.
        let points = points.into_iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let points = points.map(|(x, y)| (rounded(x), rounded(y))).collect();
        Line { name, points, halves: Vec::new(), paper }
    }
}

/// A value for CSV, in quotes if it needs them.
pub(crate) fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// Rounds to seven digits: more than any figure shows, and few enough that reading the text back
/// gives the same value.
fn rounded(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}

impl Figure {
    /// The figure as CSV, a line for each point.
    pub(crate) fn csv(&self) -> String {
        let or = |text: &str, usual: &str| quoted(if text.is_empty() { usual } else { text });
        let mut csv =
            format!("what,{},{}\n", or(&self.x.label, "group"), or(&self.y.label, "value"));
        for line in &self.lines {
            let name = match (line.paper, line.name.is_empty()) {
                (false, _) => line.name.clone(),
                (true, true) => "the paper".into(),
                (true, false) => format!("{}, the paper", line.name),
            };
            for &(x, y) in &line.points {
                let x = self
                    .groups
                    .get(x as usize)
                    .map_or_else(|| x.to_string(), |group| quoted(group));
                csv.push_str(&format!("{},{x},{y}\n", quoted(&name)));
            }
        }
        csv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back_as_they_were_written() {
        for value in [1.0 / 3.0, 1e9 / 7.0, 123_456.789, 1e-5 / 3.0, 0.0] {
            let kept = rounded(value);
            let text = serde_json::to_string(&kept).unwrap();
            assert_eq!(serde_json::from_str::<f64>(&text).unwrap(), kept, "{text}");
            assert!((kept - value).abs() <= 1e-6 * value);
        }
    }

    #[test]
    fn csv_has_a_line_for_each_point() {
        let axis = |label: &str| Axis { label: label.into(), log: false };
        let mut figure = Figure {
            id: "f".into(),
            title: "t".into(),
            x: axis(""),
            y: axis("MB/s, all"),
            groups: vec!["a, b".into(), "c".into()],
            lines: vec![Line {
                name: "none".into(),
                points: vec![(0.0, 1.5), (1.0, 2.0)],
                halves: Vec::new(),
                paper: false,
            }],
        };
        assert_eq!(figure.csv(), "what,group,\"MB/s, all\"\nnone,\"a, b\",1.5\nnone,c,2\n");
        figure.groups.clear();
        assert_eq!(figure.csv(), "what,group,\"MB/s, all\"\nnone,0,1.5\nnone,1,2\n");
    }
}
