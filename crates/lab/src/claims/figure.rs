//! What can be drawn: data only. Who draws it is not our matter.

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Names it and its files, as in `d-11a`.
    pub id: &'static str,
    /// What it shows.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// Lines or bars.
    pub shape: Shape,
    /// What is compared.
    pub lines: Vec<Line>,
}

/// An axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// What, and its unit.
    pub label: &'static str,
    /// Whether equal steps multiply.
    pub is_log: bool,
}

/// How it is drawn.
#[derive(Clone, PartialEq, Debug)]
pub enum Shape {
    /// Points in a row.
    Lines,
    /// Groups of bars; a point's x is the number of its group.
    Bars(Vec<String>),
}

/// One of the things compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What it is called.
    pub name: String,
    /// Where it is.
    pub points: Vec<(f64, f64)>,
    /// What the paper says of the line of this name, or of the figure.
    pub paper: bool,
}

/// A table, for what is no figure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Names it and its file.
    pub id: &'static str,
    /// What it shows.
    pub title: String,
    /// Of the columns.
    pub header: Vec<String>,
    /// As many cells each.
    pub rows: Vec<Vec<String>>,
}

impl Figure {
    /// Lines over an axis.
    pub fn lines(id: &'static str, title: &str, axes: [Axis; 2], lines: Vec<Line>) -> Figure {
        let [x, y] = axes;
        Figure { id, title: title.into(), x, y, shape: Shape::Lines, lines }
    }

    /// Groups of bars.
    pub fn bars(
        id: &'static str,
        title: &str,
        label: &'static str,
        groups: impl IntoIterator<Item = impl Into<String>>,
        lines: Vec<Line>,
    ) -> Figure {
        let shape = Shape::Bars(groups.into_iter().map(Into::into).collect());
        let (x, y) = (Axis::linear(""), Axis::linear(label));
        Figure { id, title: title.into(), x, y, shape, lines }
    }
}

impl Axis {
    /// Equal steps add.
    pub const fn linear(label: &'static str) -> Axis {
        Axis { label, is_log: false }
    }

    /// Equal steps multiply.
    pub const fn log(label: &'static str) -> Axis {
        Axis { label, is_log: true }
    }
}

impl Line {
    /// Through these points.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, paper: false }
    }

    /// A bar in each group.
    pub fn bars(name: impl Into<String>, values: &[f64]) -> Line {
        let points =
            values.iter().enumerate().map(|(group, &value)| (group as f64, value)).collect();
        Line { name: name.into(), points, paper: false }
    }

    /// What the paper's text says of the line of this name; nothing is drawn that it does not
    /// state.
    pub fn of_paper(of: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: of.into(), points, paper: true }
    }

    /// Bytes of each interval as MB (10^6) a second over seconds, so many intervals taken together.
    pub fn bandwidth(
        name: impl Into<String>,
        series: &[u64],
        interval_ns: u64,
        together: usize,
    ) -> Line {
        // Whole chunks only: one that the run's end cuts short would be drawn as a drop.
        let interval_s = (interval_ns * together as u64) as f64 / 1e9;
        let point = |(number, chunk): (usize, &[u64])| {
            let bytes: u64 = chunk.iter().sum();
            (number as f64 * interval_s, bytes as f64 / 1e6 / interval_s)
        };
        Line {
            name: name.into(),
            points: series.chunks_exact(together).enumerate().map(point).collect(),
            paper: false,
        }
    }
}
